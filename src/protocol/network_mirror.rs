//! The provider network mirror protocol (PROTOCOL, section 3): `index.json` and `VERSION.json`, with hashes from verified
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

/// Proof sets of one version that are fetched at the same time.
const CONCURRENT_FETCHES: usize = 8;
/// Platforms that are tried in turn until one has a proof set.
const MAX_TRIED_PLATFORMS: usize = 4;

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
    let Answer { value: list, outcome, fresh_until, checked } = mirror.offline.client_versions(address, call).await?;
    let body = render_index(address, &list)?;
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// Renders `index.json` from upstream's version list.
pub(super) async fn rendered_index(
    address: &ProviderAddress,
    document: &Arc<StoredDocument>,
) -> Result<Vec<u8>, Error> {
    render_index(address, &document.versions().await.map_err(|reason| unreadable(address, reason))?)
}

fn render_index(address: &ProviderAddress, list: &VersionList) -> Result<Vec<u8>, Error> {
    let versions = list.versions.iter().map(|listed| (&listed.version, VersionEntryBody {})).collect();
    serde_json::to_vec(&IndexBody { versions }).map_err(|e| unreadable(address, e.to_string()))
}

/// `VERSION.json`: the archives of a version. For an unknown version the list is empty: after a 404 the client would
/// give up instead of asking its next installation method (PROTOCOL, section 3.4).
pub(super) async fn version(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let (archives_by_platform, combined) = match mirror.runtime.connectivity() {
        Connectivity::Online => listed_archives(mirror, address, version, call).await?,
        Connectivity::Offline => stored_archives(mirror, address, version, call).await?,
    };
    let mut archives = VersionBody::default();
    for (platform, archive) in archives_by_platform {
        let package = Package { provider: address.clone(), version: version.clone(), platform };
        let stored = mirror.library.stored_archive(&package, archive.digest).await?;
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
    let CombinedOutcome { outcome, fresh_until, checked } = combined;
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// The archives of a version that upstream lists.
async fn listed_archives(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
) -> Result<(NamedArchives, CombinedOutcome), Error> {
    let list = mirror.documents.provider_versions(address, call).await?;
    let mut combined = CombinedOutcome::of(&list);
    let listed = list.value.versions().await.map_err(|reason| unreadable(address, reason))?;
    let Some(listed) = listed.get(version) else { return Ok((NamedArchives::new(), combined)) };
    let sets = ProofSetsOfVersion::of(mirror, address, listed, call, &mut combined).await?;
    let archives = sets.archives(mirror, call, &mut combined).await?;
    Ok((archives, combined))
}

/// The archives of a version while offline: platforms with a stored set and archive.
async fn stored_archives(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    version: &Version,
    call: &RequestContext,
) -> Result<(NamedArchives, CombinedOutcome), Error> {
    let stored_platforms = mirror.offline.stored_platforms(address, version, call).await?;
    let mut combined = CombinedOutcome::of(&stored_platforms);
    let mut archives = NamedArchives::new();
    for platform in stored_platforms.value {
        let package = Package { provider: address.clone(), version: version.clone(), platform };
        match mirror.proof_sets.proof_set(&package, call).await {
            Ok(set) => {
                combined.merge(&set);
                archives.insert(package.platform, archive_of_set(&set.value));
            }
            // The set was removed a moment ago; the other platforms are unaffected.
            Err(Error::NotFound(_) | Error::Offline(_)) => combined.limit_freshness(Duration::ZERO, call),
            Err(error) => return Err(error),
        }
    }
    Ok((archives, combined))
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
    sets: BTreeMap<Platform, Arc<ProofSet>>,
}

impl<'a> ProofSetsOfVersion<'a> {
    /// Loads the cached sets of a version and revalidates stale ones. Fetches one set if none is cached.
    async fn of(
        mirror: &Arc<Mirror>,
        address: &'a ProviderAddress,
        listed: &'a ListedVersion,
        call: &RequestContext,
        combined: &mut CombinedOutcome,
    ) -> Result<Self, Error> {
        let package = |platform| Package { provider: address.clone(), version: listed.version.clone(), platform };
        let mut this = Self { address, listed, sets: BTreeMap::new() };
        let stored_platforms = mirror.library.platforms_with_sets(address, &listed.version).await?;
        let results: Vec<_> = stream::iter(stored_platforms)
            .map(|platform| {
                let package = package(platform);
                async move { (package.platform.clone(), mirror.proof_sets.proof_set(&package, call).await) }
            })
            .buffer_unordered(CONCURRENT_FETCHES)
            .collect()
            .await;
        let mut last_error = None;
        for (platform, set) in results {
            match set {
                Ok(set) => {
                    combined.merge(&set);
                    this.sets.insert(platform, set.value);
                }
                // Other platforms are unaffected. If there are none, this error is the answer.
                Err(error) => last_error = Some(error),
            }
        }
        if let Some(error) = last_error {
            combined.limit_freshness(Duration::ZERO, call);
            if this.sets.is_empty() && !matches!(error, Error::NotFound(_)) {
                return Err(error);
            }
        }
        if this.sets.is_empty() {
            this.fetch_one(mirror, call, combined, package).await?;
        }
        Ok(this)
    }

    async fn fetch_one(
        &mut self,
        mirror: &Arc<Mirror>,
        call: &RequestContext,
        combined: &mut CombinedOutcome,
        package: impl Fn(Platform) -> Package,
    ) -> Result<(), Error> {
        let common_platforms: Vec<Platform> = Platform::common().collect();
        let listed = &self.listed.platforms;
        let mut candidates: Vec<Platform> =
            common_platforms.iter().filter(|platform| listed.contains(platform)).cloned().collect();
        candidates.extend(listed.iter().filter(|platform| !common_platforms.contains(platform)).cloned());
        if listed.is_empty() {
            candidates = common_platforms;
        }
        for platform in candidates.into_iter().take(MAX_TRIED_PLATFORMS) {
            match mirror.proof_sets.proof_set(&package(platform.clone()), call).await {
                Ok(set) => {
                    combined.merge(&set);
                    self.sets.insert(platform, set.value);
                    return Ok(());
                }
                Err(Error::NotFound(_)) => {
                    combined.limit_freshness(mirror.runtime.not_found_lifetime(&self.address.host), call)
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The archive of every platform: from the proof set of the platform, else from the newest verified SHA256SUMS by the
    /// conventional file name, else from a proof set that is fetched for the platform.
    async fn archives(
        &self,
        mirror: &Arc<Mirror>,
        call: &RequestContext,
        combined: &mut CombinedOutcome,
    ) -> Result<NamedArchives, Error> {
        let archives_by_convention = self.archives_by_convention();
        let mut archives = NamedArchives::new();
        let mut unresolved = Vec::new();
        let listed = self.listed.platforms.iter().chain(self.sets.keys());
        let platforms: std::collections::BTreeSet<&Platform> = if self.listed.platforms.is_empty() {
            listed.chain(archives_by_convention.keys()).collect()
        } else {
            listed.collect()
        };
        for platform in platforms {
            if let Some(set) = self.sets.get(platform) {
                archives.insert(platform.clone(), archive_of_set(set));
            } else if let Some(archive) = archives_by_convention.get(platform) {
                archives.insert(platform.clone(), archive.clone());
            } else {
                unresolved.push(platform.clone());
            }
        }
        let results: Vec<_> = stream::iter(unresolved)
            .map(|platform| async move {
                let version = self.listed.version.clone();
                let package = Package { provider: self.address.clone(), version, platform: platform.clone() };
                (platform, mirror.proof_sets.proof_set(&package, call).await)
            })
            .buffer_unordered(CONCURRENT_FETCHES)
            .collect()
            .await;
        let mut last_error = None;
        for (platform, set) in results {
            match set {
                Ok(set) => {
                    combined.merge(&set);
                    archives.insert(platform, archive_of_set(&set.value));
                }
                // A missing or unverified platform is not listed, and the others are unaffected.
                Err(Error::NotFound(_)) => {
                    combined.limit_freshness(mirror.runtime.not_found_lifetime(&self.address.host), call)
                }
                Err(Error::Unverified { .. } | Error::Unaccepted { .. }) => {
                    combined.limit_freshness(Duration::ZERO, call)
                }
                // It is unknown whether the platform exists. The failure must not hide the other platforms.
                Err(error) => {
                    tracing::warn!(provider = %self.address, %platform, %error, "a platform is missing from the list of its version for now");
                    combined.limit_freshness(Duration::ZERO, call);
                    combined.outcome = Outcome::Stale;
                    last_error = Some(error);
                }
            }
        }
        match last_error {
            Some(error) if archives.is_empty() => Err(error),
            _ => Ok(archives),
        }
    }

    fn archives_by_convention(&self) -> NamedArchives {
        let newest = self.sets.values().max_by_key(|set| set.fetched());
        let is_imported = newest.is_some_and(|set| set.was_imported());
        let Some(sums) = newest.and_then(|set| set.checksums()) else { return NamedArchives::new() };
        let versions = [self.listed.version.as_str(), self.listed.upstream_spelling.as_str()];
        let archive_of_file = |(name, digest): (&str, Digest)| {
            let (os, arch) = platform_of(name, self.address.type_.as_str(), &versions)?;
            let filename = FileName::parse(name).ok()?;
            Some((Platform::new(os, arch).ok()?, NamedArchive { digest, filename, is_imported }))
        };
        sums.iter().filter_map(archive_of_file).collect()
    }
}

fn archive_of_set(set: &ProofSet) -> NamedArchive {
    let (digest, filename) = (set.document.shasum, set.document.filename.clone());
    NamedArchive { digest, filename, is_imported: set.was_imported() }
}

fn unreadable(address: &ProviderAddress, reason: String) -> Error {
    Error::Interrupted(format!("the cached version list of {address} cannot be read: {reason}"))
}
