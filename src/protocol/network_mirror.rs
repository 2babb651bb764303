//! The provider network mirror protocol: `index.json` and `VERSION.json`, with
//! hashes from verified checksums. Needs no archive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Links;
use super::route::Route;
use crate::address::{Address, FileName, Package, Platform, ProviderAddress, Version};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{
    Answer, ArchiveRef, ClientList, Connectivity, Mirror, Outcome, PackageHashState, ProofSet, RequestContext,
    ZipOrigin,
};
use crate::upstream::discovery::Service;
use crate::upstream::providers::ListedVersion;

/// Proof sets of one version that are fetched at the same time.
const CONCURRENT_FETCHES: usize = 8;
/// Platforms that are tried in turn until one has a proof set.
const MAX_TRIED_PLATFORMS: usize = 4;

#[derive(Serialize)]
struct ArchiveEntry {
    url: String,
    hashes: Vec<String>,
}

/// Renders `index.json`, the versions of a provider, from a version list.
pub(super) fn render_index(ClientList { list, .. }: &ClientList) -> serde_json::Result<Vec<u8>> {
    let versions: BTreeMap<_, _> =
        list.versions.iter().map(|listed| (&listed.version, Map::<String, Value>::new())).collect();
    serde_json::to_vec(&BTreeMap::from([("versions", versions)]))
}

/// `VERSION.json`: the archives of a version. For an unknown version the list is empty: after a 404 the client would
/// give up instead of asking its next installation method (provider network mirror protocol).
pub(super) async fn version(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    mirror.documents.permit(address, version, call).await?;
    let (archives, combined) = match mirror.runtime.connectivity() {
        Connectivity::Online => {
            let list = mirror.documents.get(&Address::from(address), call).await?;
            let versions = list
                .value
                .versions(Service::Providers)
                .await
                .map_err(|reason| Error::unreadable_list(address, reason))?;
            let mut answer = VersionAnswer { mirror, address, version, call, combined: list.map(drop) };
            let archives = match versions.get(version) {
                Some(listed) => answer.listed_archives(listed).await?,
                None => NamedArchives::new(),
            };
            (archives, answer.combined)
        }
        Connectivity::Offline => {
            let mut platforms = BTreeSet::new();
            let stored = mirror.offline.stored_platforms(address, version, call).await?;
            let combined = stored.map(|stored| platforms = stored);
            let mut answer = VersionAnswer { mirror, address, version, call, combined };
            (answer.stored_archives(platforms).await?, answer.combined)
        }
    };
    let mut entries = BTreeMap::new();
    let wanted = archives.iter().map(|(platform, archive)| (platform.clone(), archive.digest)).collect();
    let mut known = mirror.library.known_archives(address, version, wanted).await?;
    for (platform, archive) in archives {
        let known = known.remove(&platform);
        let package = Package { provider: address.clone(), version: version.clone(), platform };
        // An archive that larder packed has a `zh:` that no other source has. In a lock file it would make the client
        // refuse all others. For an imported archive without a name record the packer is unknown.
        let is_published = known.as_ref().map_or(!archive.is_imported, |known| known.zip == ZipOrigin::Published);
        let zh = is_published.then(|| archive.digest.zh());
        let h1 = match known.map(|known| known.hashes) {
            Some(PackageHashState::Known { zip, .. }) => Some(zip),
            Some(PackageHashState::NotYet | PackageHashState::Impossible { .. }) | None => None,
        };
        let hashes = zh.into_iter().chain(h1).collect();
        let key = package.platform.to_string();
        let reference = ArchiveRef { package, digest: archive.digest.prefix(), filename: archive.filename };
        entries.insert(key, ArchiveEntry { url: links.archive(&Route::ProviderFile(reference)), hashes });
    }
    let body = serde_json::to_vec(&BTreeMap::from([("archives", entries)]));
    let body = body.map_err(|e| Error::unreadable_list(address, e))?;
    Ok(combined.map(|()| body))
}

#[derive(Clone)]
struct NamedArchive {
    digest: Digest,
    filename: FileName,
    /// The set was imported without signatures.
    is_imported: bool,
}

impl From<&ProofSet> for NamedArchive {
    fn from(set: &ProofSet) -> Self {
        let (digest, filename) = (set.document.shasum, set.document.filename.clone());
        Self { digest, filename, is_imported: set.was_imported() }
    }
}

type NamedArchives = BTreeMap<Platform, NamedArchive>;
type ProofSets = BTreeMap<Platform, Arc<ProofSet>>;

/// The answer about one version in the making. It is made of several documents, and as certain as the least certain one.
struct VersionAnswer<'a> {
    mirror: &'a Arc<Mirror>,
    address: &'a ProviderAddress,
    version: &'a Version,
    call: &'a RequestContext,
    combined: Answer<()>,
}

impl VersionAnswer<'_> {
    fn merge<T>(&mut self, other: &Answer<T>) {
        let weight = |outcome| match outcome {
            Outcome::Hit => 0,
            Outcome::Revalidated => 1,
            Outcome::Miss | Outcome::Pending | Outcome::PassedThrough => 2,
            Outcome::Gone => 3,
            Outcome::Stale => 4,
        };
        let combined = &mut self.combined;
        if weight(other.outcome) > weight(combined.outcome) {
            combined.outcome = other.outcome;
        }
        combined.fresh_until = combined.fresh_until.min(other.fresh_until);
        combined.checked = combined.checked.min(other.checked);
    }

    /// Limits the freshness of an answer from which something is missing.
    fn limit_freshness(&mut self, time: Duration) {
        self.combined.fresh_until = self.combined.fresh_until.min(self.call.now.after(time));
    }

    /// Limits the freshness of an answer to that of a 404.
    fn limit_to_not_found(&mut self) {
        self.limit_freshness(self.mirror.runtime.not_found_lifetime(&self.address.host));
    }

    async fn proof_set(&self, platform: &Platform) -> Result<Answer<Arc<ProofSet>>, Error> {
        let (provider, version) = (self.address.clone(), self.version.clone());
        let package = Package { provider, version, platform: platform.clone() };
        self.mirror.proof_sets.proof_set(&package, self.call).await
    }

    async fn proof_sets_of(&self, platforms: Vec<Platform>) -> Vec<(Platform, Result<Answer<Arc<ProofSet>>, Error>)> {
        let fetch = |platform: Platform| async move {
            let set = self.proof_set(&platform).await;
            (platform, set)
        };
        stream::iter(platforms).map(fetch).buffer_unordered(CONCURRENT_FETCHES).collect().await
    }

    /// The archives to list while offline: those of `platforms`, which have a stored archive, whose proof set is stored
    /// too.
    async fn stored_archives(&mut self, platforms: BTreeSet<Platform>) -> Result<NamedArchives, Error> {
        let mut archives = NamedArchives::new();
        for platform in platforms {
            match self.proof_set(&platform).await {
                Ok(set) => {
                    self.merge(&set);
                    archives.insert(platform, (&*set.value).into());
                }
                // The set was removed a moment ago; the other platforms are unaffected.
                Err(Error::NotFound(_) | Error::Offline(_)) => self.limit_freshness(Duration::ZERO),
                Err(error) => return Err(error),
            }
        }
        Ok(archives)
    }

    /// The archive of every platform of a listed version: from the proof set of the platform, else from the newest
    /// verified SHA256SUMS by the conventional file name, else from a proof set that is fetched for the platform.
    async fn listed_archives(&mut self, listed: &ListedVersion) -> Result<NamedArchives, Error> {
        let sets = self.sets(listed).await?;
        let archives_by_convention = self.archives_by_convention(listed, &sets);
        let mut archives = NamedArchives::new();
        let mut unresolved = Vec::new();
        let named = listed.platforms();
        let mut platforms: BTreeSet<&Platform> = named.iter().chain(sets.keys()).collect();
        if named.is_empty() {
            platforms.extend(archives_by_convention.keys());
        }
        for platform in platforms {
            let of_set = sets.get(platform).map(|set| NamedArchive::from(&**set));
            match of_set.or_else(|| archives_by_convention.get(platform).cloned()) {
                Some(archive) => drop(archives.insert(platform.clone(), archive)),
                None => unresolved.push(platform.clone()),
            }
        }
        let mut last_error = None;
        for (platform, set) in self.proof_sets_of(unresolved).await {
            match set {
                Ok(set) => {
                    self.merge(&set);
                    archives.insert(platform, (&*set.value).into());
                }
                // A missing or unverified platform is not listed, and the others are unaffected.
                Err(Error::NotFound(_)) => self.limit_to_not_found(),
                Err(Error::Unverified { .. } | Error::Unaccepted { .. }) => self.limit_freshness(Duration::ZERO),
                Err(error @ Error::WouldAsk(_)) => return Err(error),
                // It is unknown whether the platform exists. The failure must not hide the other platforms.
                Err(error) => {
                    tracing::warn!(provider = %self.address, %platform, %error, "a platform is missing from the list of its version for now");
                    self.limit_freshness(Duration::ZERO);
                    self.combined.outcome = Outcome::Stale;
                    last_error = Some(error);
                }
            }
        }
        match last_error {
            Some(error) if archives.is_empty() => Err(error),
            _ => Ok(archives),
        }
    }

    /// Loads the cached sets of a version and revalidates stale ones. Fetches one set if none is cached.
    async fn sets(&mut self, listed: &ListedVersion) -> Result<ProofSets, Error> {
        let mut sets = ProofSets::new();
        let mut last_error = None;
        let stored_platforms = self.mirror.library.platforms_with_sets(self.address, self.version).await?;
        for (platform, set) in self.proof_sets_of(stored_platforms).await {
            match set {
                Ok(set) => {
                    self.merge(&set);
                    sets.insert(platform, set.value);
                }
                // Other platforms are unaffected. If there are none, this error is the answer.
                Err(error) => last_error = Some(error),
            }
        }
        if let Some(error) = last_error {
            self.limit_freshness(Duration::ZERO);
            if sets.is_empty() && !matches!(error, Error::NotFound(_)) {
                return Err(error);
            }
        }
        if !sets.is_empty() {
            return Ok(sets);
        }
        let (common, listed) = (Platform::common().collect::<Vec<_>>(), listed.platforms());
        let likely = common.iter().filter(|platform| listed.is_empty() || listed.contains(platform));
        let rare = listed.iter().filter(|platform| !common.contains(platform));
        for platform in likely.chain(rare).take(MAX_TRIED_PLATFORMS) {
            match self.proof_set(platform).await {
                Ok(set) => {
                    self.merge(&set);
                    sets.insert(platform.clone(), set.value);
                    break;
                }
                Err(Error::NotFound(_)) => self.limit_to_not_found(),
                Err(error) => return Err(error),
            }
        }
        Ok(sets)
    }

    fn archives_by_convention(&self, listed: &ListedVersion, sets: &ProofSets) -> NamedArchives {
        let Some(newest) = sets.values().max_by_key(|set| set.fetched()) else { return NamedArchives::new() };
        let is_imported = newest.was_imported();
        let versions = [self.version.as_str(), listed.upstream_spelling.as_str()];
        let archives = newest.conventional_archives(self.address.type_.as_str(), &versions).into_iter();
        archives
            .map(|(platform, filename, digest)| (platform, NamedArchive { digest, filename, is_imported }))
            .collect()
    }
}
