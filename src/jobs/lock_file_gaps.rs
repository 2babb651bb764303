//! The platforms for which existing lock files lack hashes, for plans.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::job_limits::StepRunner;
use crate::address::{Package, PackageRef, Platform, ProviderAddress, Version};
use crate::digest::Digest;
use crate::mirror::{PackageHashState, WarmedDocument};
use crate::requirements::lock_file::{self, LockedProvider, PlatformArchive};
use crate::requirements::{ChosenProvider, Order, OrderEntry, ResolvedRoot};

/// The most archives of a version that are looked up. Publishers have a dozen or two.
const MAX_KNOWN_ARCHIVES: usize = 64;

/// A platform for which a lock file is incomplete: a client there refuses the providers, or changes the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockFileGap {
    /// The lock file, as the order names it.
    pub path: String,
    /// The platform.
    pub platform: Platform,
    /// The providers without a hash for the platform.
    pub providers: Vec<PackageRef>,
}

impl StepRunner<'_> {
    /// The platforms for which existing lock files of an order lack hashes, as far as that is known without an archive.
    pub(super) async fn lock_file_gaps(
        &self,
        order: &Order,
        roots: &[ResolvedRoot],
        platforms: &[Platform],
    ) -> Vec<LockFileGap> {
        let locked = locked_versions(order, roots);
        // A version that several lock files have is looked up once.
        let versions: BTreeSet<_> = locked.iter().map(|locked| (&locked.provider, &locked.version)).collect();
        let archives =
            versions.iter().map(|(provider, version)| self.known_archives(provider, version, order, platforms));
        let archives = join_all(archives.collect::<Vec<_>>()).await;
        let archives: BTreeMap<_, _> = versions.into_iter().zip(archives).collect();
        let mut gaps: BTreeMap<(String, Platform), Vec<PackageRef>> = BTreeMap::new();
        for locked in &locked {
            let archives = archives.get(&(&locked.provider, &locked.version)).map(Vec::as_slice).unwrap_or_default();
            let lacking = lock_file::lacking_platforms(&locked.hashes, archives).into_iter();
            for platform in lacking.filter(|platform| platforms.contains(platform)) {
                gaps.entry((locked.path.clone(), platform.clone())).or_default().push(locked.package());
            }
        }
        let gap = |((path, platform), providers)| LockFileGap { path, platform, providers };
        gaps.into_iter().map(gap).collect()
    }

    /// Returns the known archives of a version: those that the SHA256SUMS names in the conventional way, and those of the
    /// documents for the order's platforms. Those for `platforms` come first. None where no document can be had.
    async fn known_archives(
        &self,
        provider: &ProviderAddress,
        version: &Version,
        order: &Order,
        platforms: &[Platform],
    ) -> Vec<PlatformArchive> {
        let package = |platform: &Platform| Package {
            provider: provider.clone(),
            version: version.clone(),
            platform: platform.clone(),
        };
        let (mut digests, mut of_documents) = (BTreeMap::new(), BTreeMap::new());
        for platform in &order.platforms {
            let package = package(platform);
            let resolve = || async { self.mirror.operations.warm_set(&package, &self.context()).await };
            let Ok(WarmedDocument { value: proof_set, .. }) = self.run_step(resolve, || {}).await else { continue };
            let of_version = self.mirror.library.archives_of_version(&package, &proof_set).await;
            digests.extend(of_version.map(|of_version| of_version.archives).unwrap_or_default());
            of_documents.insert(platform.clone(), proof_set.document.shasum);
        }
        // A document says more than the name of a file.
        digests.extend(of_documents);
        let mut digests: Vec<_> = digests.into_iter().collect();
        digests.sort_by_key(|(platform, _)| !platforms.contains(platform));
        digests.truncate(MAX_KNOWN_ARCHIVES);
        let wanted = digests.iter().cloned().collect();
        // Without the store a plan says nothing of lock files, and of its archives that they cannot be read.
        let known = self.mirror.library.known_archives(provider, version, wanted).await.unwrap_or_default();
        let archive = |(platform, digest): (Platform, Digest)| {
            let h1 = match known.get(&platform).map(|known| &known.hashes) {
                Some(PackageHashState::Known { zip, directory }) => vec![zip.clone(), directory.clone()],
                Some(PackageHashState::NotYet | PackageHashState::Impossible { .. }) | None => Vec::new(),
            };
            PlatformArchive { platform, zh: digest.zh(), h1 }
        };
        digests.into_iter().map(archive).collect()
    }
}

/// A required version with the hashes that a lock file has for it.
struct LockedVersion {
    path: String,
    provider: ProviderAddress,
    version: Version,
    hashes: Vec<String>,
}

impl LockedVersion {
    fn package(&self) -> PackageRef {
        PackageRef::requested(&format!("{}@{}", self.provider, self.version))
    }
}

/// The required versions of every existing lock file of an order.
fn locked_versions(order: &Order, roots: &[ResolvedRoot]) -> Vec<LockedVersion> {
    let of_roots = roots.iter().filter_map(|root| Some((root, root.locked.as_ref()?))).flat_map(|(root, locked)| {
        root.providers.iter().map(move |ChosenProvider { provider, version, .. }| {
            let entry = locked.iter().find(|entry| entry.provider == *provider && entry.version == *version);
            let hashes = entry.map(|entry| entry.hashes.clone()).unwrap_or_default();
            LockedVersion { path: root.lock_file(), provider: provider.clone(), version: version.clone(), hashes }
        })
    });
    let of_files = order.given.iter().filter_map(|entry| match entry {
        OrderEntry::LockFile { name, locked } => Some((name, locked)),
        OrderEntry::Address { .. } | OrderEntry::Configurations(_) => None,
    });
    let of_files = of_files.flat_map(|(name, locked)| {
        locked.iter().cloned().map(move |LockedProvider { provider, version, hashes, .. }| LockedVersion {
            path: name.clone(),
            provider,
            version,
            hashes,
        })
    });
    of_roots.chain(of_files).collect()
}
