//! The provider network mirror protocol (PROTOCOL 3): `index.json` and `VERSION.json`, with hashes from verified
//! checksums. Needs no archive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde::Serialize;

use super::Links;
use super::route::Route;
use crate::address::{FileName, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{
    Answer, ArchiveRef, Connectivity, Mirror, Outcome, PackageHashState, ProofSet, RequestContext, StoredDocument,
    ZipOrigin,
};
use crate::upstream::providers::{ListedVersion, VersionList};
use crate::verify::platform_of;

/// Proof sets of one version fetched at a time.
const AT_ONCE: usize = 8;
/// Platforms that are tried in turn until one has a proof set.
const MAX_TRIED: usize = 4;

#[derive(Serialize)]
struct VersionEntryBody {}

#[derive(Serialize)]
struct IndexBody<'a> {
    versions: BTreeMap<&'a Version, VersionEntryBody>,
}

#[derive(Serialize, Default)]
struct VersionBody {
    archives: BTreeMap<String, ArchiveEntry>,
}

#[derive(Serialize)]
struct ArchiveEntry {
    url: String,
    hashes: Vec<String>,
}

/// `index.json`: the versions of a provider.
pub(super) async fn index(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    call: &RequestContext,
) -> Result<Answer<Vec<u8>>, Error> {
    let Answer { value: list, outcome, fresh_until, checked } = mirror.client_versions(address, call).await?;
    let body = index_of(address, &list)?;
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// Renders `index.json` from upstream's version list.
pub(super) async fn index_written(address: &ProviderAddress, document: &Arc<StoredDocument>) -> Result<Vec<u8>, Error> {
    index_of(address, &document.versions().await.map_err(|reason| unreadable(address, reason))?)
}

fn index_of(address: &ProviderAddress, list: &VersionList) -> Result<Vec<u8>, Error> {
    let versions = list.versions.iter().map(|listed| (&listed.version, VersionEntryBody {})).collect();
    serde_json::to_vec(&IndexBody { versions }).map_err(|e| unreadable(address, e.to_string()))
}

/// `VERSION.json`: the archives of a version. For an unknown version the list is empty: after a 404 the client would
/// give up instead of asking its next installation method (PROTOCOL 3.4).
pub(super) async fn version(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let (named, answer) = match mirror.connectivity() {
        Connectivity::Online => listed_archives(mirror, address, version, call).await?,
        Connectivity::Offline => stored_archives(mirror, address, version, call).await?,
    };
    let mut archives = VersionBody::default();
    for (platform, archive) in named {
        let package = Package { provider: address.clone(), version: version.clone(), platform };
        let stored = mirror.stored_archive(&package, archive.digest).await?;
        // No other mirror has the `zh:` of an archive that was packed here, so in a lock file it would exclude them
        // all. For an imported archive without a name record the packer is unknown.
        let is_published = stored.as_ref().map_or(!archive.is_imported, |stored| stored.zip == ZipOrigin::Published);
        let zh = is_published.then(|| archive.digest.zh());
        let h1 = match stored.map(|stored| stored.hashes) {
            Some(PackageHashState::Known { zip, .. }) => Some(zip),
            Some(PackageHashState::NotYet | PackageHashState::Impossible { .. }) | None => None,
        };
        let hashes = zh.into_iter().chain(h1).collect();
        let key = package.platform.to_string();
        let reference = ArchiveRef { package, digest: archive.digest.prefix(), filename: archive.filename };
        archives.archives.insert(key, ArchiveEntry { url: links.url(&Route::ProviderFile(reference).path()), hashes });
    }
    let body = serde_json::to_vec(&archives).map_err(|e| unreadable(address, e.to_string()))?;
    let CombinedOutcome { outcome, fresh_until, checked } = answer;
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// The archives of a version that upstream lists.
async fn listed_archives(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
) -> Result<(NamedArchives, CombinedOutcome), Error> {
    let list = mirror.provider_versions(address, call).await?;
    let mut answer = CombinedOutcome::of(&list);
    let listed = list.value.versions().await.map_err(|reason| unreadable(address, reason))?;
    let Some(listed) = listed.get(version) else { return Ok((NamedArchives::new(), answer)) };
    let sets = ProofSetsOfVersion::of(mirror, address, listed, call, &mut answer).await?;
    let archives = sets.archives(mirror, call, &mut answer).await?;
    Ok((archives, answer))
}

/// The archives of a version while offline: platforms with a stored set and archive.
async fn stored_archives(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
) -> Result<(NamedArchives, CombinedOutcome), Error> {
    let stored_platforms = mirror.stored_platforms(address, version, call).await?;
    let mut answer = CombinedOutcome::of(&stored_platforms);
    let mut archives = NamedArchives::new();
    for platform in stored_platforms.value {
        let package = Package { provider: address.clone(), version: version.clone(), platform };
        match mirror.proof_set(&package, call).await {
            Ok(set) => {
                answer.merge(&set);
                archives.insert(package.platform, of_set(&set.value));
            }
            // Removed a moment ago; the others are unaffected.
            Err(Error::NotFound(_) | Error::Offline(_)) => answer.limit_freshness(Duration::ZERO, call),
            Err(error) => return Err(error),
        }
    }
    Ok((archives, answer))
}

/// The outcome of an answer made of several documents: the least certain one.
struct CombinedOutcome {
    outcome: Outcome,
    fresh_until: Timestamp,
    checked: Timestamp,
}

impl CombinedOutcome {
    fn of<T>(answer: &Answer<T>) -> Self {
        Self { outcome: answer.outcome, fresh_until: answer.fresh_until, checked: answer.checked }
    }

    fn merge<T>(&mut self, other: &Answer<T>) {
        let weight = |outcome| match outcome {
            Outcome::Hit => 0,
            Outcome::Revalidated => 1,
            Outcome::Miss | Outcome::Pending | Outcome::PassedThrough => 2,
            Outcome::Gone => 3,
            Outcome::Stale => 4,
        };
        if weight(other.outcome) > weight(self.outcome) {
            self.outcome = other.outcome;
        }
        self.fresh_until = self.fresh_until.min(other.fresh_until);
        self.checked = self.checked.min(other.checked);
    }

    /// Limits the freshness of an answer from which something is missing.
    fn limit_freshness(&mut self, time: Duration, call: &RequestContext) {
        self.fresh_until = self.fresh_until.min(call.now.after(time));
    }
}

#[derive(Clone)]
struct NamedArchive {
    digest: Digest,
    filename: FileName,
    /// The set was imported without signatures.
    is_imported: bool,
}

type NamedArchives = BTreeMap<Platform, NamedArchive>;

/// The proof sets of one version.
struct ProofSetsOfVersion<'a> {
    address: &'a ProviderAddress,
    listed: &'a ListedVersion,
    own: BTreeMap<Platform, Arc<ProofSet>>,
}

impl<'a> ProofSetsOfVersion<'a> {
    /// Loads the cached sets of a version and revalidates stale ones. Fetches one set if none is cached.
    async fn of(
        mirror: &Arc<Mirror>,
        address: &'a ProviderAddress,
        listed: &'a ListedVersion,
        call: &RequestContext,
        answer: &mut CombinedOutcome,
    ) -> Result<Self, Error> {
        let package = |platform| Package { provider: address.clone(), version: listed.version.clone(), platform };
        let mut sets = Self { address, listed, own: BTreeMap::new() };
        let stored_platforms = mirror.platforms_with_sets(address, &listed.version).await?;
        let looked_up: Vec<_> = stream::iter(stored_platforms)
            .map(|platform| {
                let package = package(platform);
                async move { (package.platform.clone(), mirror.proof_set(&package, call).await) }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut failed = None;
        for (platform, set) in looked_up {
            match set {
                Ok(set) => {
                    answer.merge(&set);
                    sets.own.insert(platform, set.value);
                }
                // Other platforms are unaffected. If there are none, this error is the answer.
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            answer.limit_freshness(Duration::ZERO, call);
            if sets.own.is_empty() && !matches!(error, Error::NotFound(_)) {
                return Err(error);
            }
        }
        if sets.own.is_empty() {
            sets.fetch_one(mirror, call, answer, package).await?;
        }
        Ok(sets)
    }

    async fn fetch_one(
        &mut self,
        mirror: &Arc<Mirror>,
        call: &RequestContext,
        answer: &mut CombinedOutcome,
        package: impl Fn(Platform) -> Package,
    ) -> Result<(), Error> {
        let common: Vec<Platform> = Platform::common().collect();
        let listed = &self.listed.platforms;
        let mut candidates: Vec<Platform> =
            common.iter().filter(|platform| listed.contains(platform)).cloned().collect();
        candidates.extend(listed.iter().filter(|platform| !common.contains(platform)).cloned());
        if listed.is_empty() {
            candidates = common;
        }
        for platform in candidates.into_iter().take(MAX_TRIED) {
            match mirror.proof_set(&package(platform.clone()), call).await {
                Ok(set) => {
                    answer.merge(&set);
                    self.own.insert(platform, set.value);
                    return Ok(());
                }
                Err(Error::NotFound(_)) => answer.limit_freshness(mirror.not_found_lifetime(&self.address.host), call),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The archive of every platform: from its own set, else from the newest verified sums, else from its own document
    /// where its file name is unconventional.
    async fn archives(
        &self,
        mirror: &Arc<Mirror>,
        call: &RequestContext,
        answer: &mut CombinedOutcome,
    ) -> Result<NamedArchives, Error> {
        let by_convention = self.by_convention();
        let mut archives = NamedArchives::new();
        let mut unknown = Vec::new();
        let listed = self.listed.platforms.iter().chain(self.own.keys());
        let all: std::collections::BTreeSet<&Platform> = if self.listed.platforms.is_empty() {
            listed.chain(by_convention.keys()).collect()
        } else {
            listed.collect()
        };
        for platform in all {
            if let Some(set) = self.own.get(platform) {
                archives.insert(platform.clone(), of_set(set));
            } else if let Some(archive) = by_convention.get(platform) {
                archives.insert(platform.clone(), archive.clone());
            } else {
                unknown.push(platform.clone());
            }
        }
        let looked_up: Vec<_> = stream::iter(unknown)
            .map(|platform| async move {
                let version = self.listed.version.clone();
                let package = Package { provider: self.address.clone(), version, platform: platform.clone() };
                (platform, mirror.proof_set(&package, call).await)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut failed = None;
        for (platform, set) in looked_up {
            match set {
                Ok(set) => {
                    answer.merge(&set);
                    archives.insert(platform, of_set(&set.value));
                }
                // Missing or unverified: not offered, and the others are unaffected.
                Err(Error::NotFound(_)) => answer.limit_freshness(mirror.not_found_lifetime(&self.address.host), call),
                Err(Error::Unverified { .. } | Error::Unaccepted { .. }) => {
                    answer.limit_freshness(Duration::ZERO, call)
                }
                // Status unknown: the failure must not hide the other platforms.
                Err(error) => {
                    tracing::warn!(provider = %self.address, %platform, %error, "a platform is left out of its version for now");
                    answer.limit_freshness(Duration::ZERO, call);
                    answer.outcome = Outcome::Stale;
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if archives.is_empty() => Err(error),
            _ => Ok(archives),
        }
    }

    fn by_convention(&self) -> NamedArchives {
        let newest = self.own.values().max_by_key(|set| set.fetched());
        let is_imported = newest.is_some_and(|set| set.was_imported());
        let Some(sums) = newest.and_then(|set| set.checksums()) else { return NamedArchives::new() };
        let versions = [self.listed.version.as_str(), self.listed.upstream_spelling.as_str()];
        let entry = |(name, digest): (&str, Digest)| {
            let (os, arch) = platform_of(name, self.address.type_.as_str(), &versions)?;
            let filename = FileName::parse(name).ok()?;
            Some((Platform::new(os, arch).ok()?, NamedArchive { digest, filename, is_imported }))
        };
        sums.iter().filter_map(entry).collect()
    }
}

fn of_set(set: &ProofSet) -> NamedArchive {
    let (digest, filename) = (set.document.shasum, set.document.filename.clone());
    NamedArchive { digest, filename, is_imported: set.was_imported() }
}

fn unreadable(address: &ProviderAddress, reason: String) -> Error {
    Error::Interrupted(format!("the cached version list of {address} cannot be read: {reason}"))
}
