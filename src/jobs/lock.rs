//! Lock files for every platform: resolves the roots of an order as `init` does, and completes the lock file of each with the
//! hashes of its providers. It fetches no provider archive: the answer names those whose hashes larder does not know yet, for
//! a warm-up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::job_limits::{JobLimits, StepRunner};
use super::list::Jobs;
use super::plan::{CONCURRENT_STEPS, PlanError};
use super::resolve::MirrorRegistries;
use super::warm::MAX_ITEMS;
use crate::address::{Package, PackageRef, Platform, ProviderAddress, Version};
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::{Connectivity, Mirror, PackageHashState, ProofSet, Urgency, WarmedDocument, ZipOrigin, is_absent};
use crate::requirements::lock_file::{self, LockChange, LockedProvider, PlatformArchive, ProviderToLock};
use crate::requirements::{self, ChosenProvider, ClientKind, Order, OrderEntry, ResolvedRoot, UnavailableItem};

/// The lock files of an order: the answer to `POST /admin/v1/lock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockReport {
    /// True if every lock file has all hashes of these platforms already.
    pub complete: bool,
    /// True if this larder is offline: what is not stored cannot be locked.
    pub offline: bool,
    /// The platforms of the order.
    pub platforms: Vec<Platform>,
    /// Each lock file, by folder.
    pub files: Vec<LockFileReport>,
    /// Packages that upstream does not publish: no lock file can have their hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpublished: Vec<PackageRef>,
    /// Notes for people about choices that the files leave open, such as the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockFileReport {
    /// The path in the order's files.
    pub path: String,
    /// The client whose form the file has.
    #[cfg_attr(test, schemars(with = "String"))]
    pub client: ClientKind,
    /// State of the file.
    #[serde(flatten)]
    pub state: LockFileState,
}

/// State of a lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LockFileState {
    /// It has everything.
    Complete {
        /// The same entries as the client writes them.
        text: String,
    },
    /// It lacks something, or does not exist.
    Incomplete {
        /// The complete file.
        text: String,
        /// The differences.
        changes: Vec<LockChange>,
    },
    /// The hashes of some archives are unknown until they are fetched.
    Unknown {
        /// These archives. After a warm-up of them, larder knows the hashes.
        to_fetch: Vec<PackageRef>,
    },
    /// No complete file can be made.
    Impossible {
        /// Each cause, with the remedy.
        #[serde(rename = "why")]
        problems: Vec<LockProblem>,
    },
}

/// A cause that no complete lock file can be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockProblem {
    /// The provider, module or file.
    pub subject: String,
    /// The reason and the remedy.
    pub reason: String,
    /// The requirements that name it: a file with its line.
    #[serde(rename = "by", default, skip_serializing_if = "Vec::is_empty")]
    pub required_by: Vec<String>,
}

impl From<UnavailableItem> for LockProblem {
    fn from(UnavailableItem { subject, reason, required_by }: UnavailableItem) -> Self {
        Self { subject, reason, required_by }
    }
}

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

impl Jobs {
    /// Resolves the configurations of an order, and completes their lock files.
    ///
    /// # Errors
    /// [`PlanError`].
    pub async fn lock(&self, order: &Order) -> Result<LockReport, PlanError> {
        let _permits = self.plan_permits().await?;
        lock(&self.mirror, &self.shared.clock, order).await
    }
}

async fn lock(mirror: &Arc<Mirror>, clock: &Clock, order: &Order) -> Result<LockReport, PlanError> {
    let limits = JobLimits::of_plan(CONCURRENT_STEPS);
    let steps = StepRunner::new(mirror, clock, &limits, Urgency::Plan);
    let registries = MirrorRegistries::new(&steps);
    let resolved = requirements::resolve(order, &registries).await;
    if resolved.archives.len() > MAX_ITEMS {
        return Err(PlanError::TooMany(resolved.archives.len()));
    }
    let chosen = resolved.roots.iter().flat_map(|root| &root.providers);
    let packages: BTreeSet<Package> = chosen.flat_map(|chosen| packages_of(chosen, &order.platforms)).collect();
    let looked_up = join_all(packages.iter().map(|package| steps.hashes_to_lock(package)).collect::<Vec<_>>()).await;
    let found: BTreeMap<&Package, FoundHashes> = packages.iter().zip(looked_up).collect();
    let files: Vec<LockFileReport> =
        resolved.roots.iter().map(|root| lock_file_report(root, &order.platforms, &found)).collect();
    let unpublished = found.iter().filter(|(_, found)| found.own == OwnHashes::NotPublished);
    Ok(LockReport {
        complete: files.iter().all(|file| matches!(file.state, LockFileState::Complete { .. })),
        offline: mirror.runtime.connectivity() == Connectivity::Offline,
        platforms: order.platforms.clone(),
        unpublished: unpublished.map(|(package, _)| PackageRef::from(*package)).collect(),
        notes: resolved.notes,
        files,
    })
}

/// The packages of a provider for these platforms.
fn packages_of<'a>(chosen: &'a ChosenProvider, platforms: &'a [Platform]) -> impl Iterator<Item = Package> + 'a {
    platforms.iter().map(|platform| {
        let ChosenProvider { provider, version, .. } = chosen;
        Package { provider: provider.clone(), version: version.clone(), platform: platform.clone() }
    })
}

/// The hashes of one package for lock files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FoundHashes {
    /// The `zh:` of every line of the signed SHA256SUMS; empty where no key signed them.
    signed: Vec<String>,
    own: OwnHashes,
}

/// The hashes of an archive that larder computed itself.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnHashes {
    Known(Vec<String>),
    /// The archive must be fetched first.
    NotFetched,
    /// Upstream does not publish the provider for this platform.
    NotPublished,
    /// They cannot be had, for this reason.
    Unavailable(String),
}

impl StepRunner<'_> {
    /// Finds the hashes of a package. Fetches its proof set, and not its archive.
    async fn hashes_to_lock(&self, package: &Package) -> FoundHashes {
        let resolve = || async { self.mirror.operations.warm_set(package, &self.context()).await };
        let proof_set = match self.run_step(resolve, || {}).await {
            Ok(proof_set) => proof_set.value,
            Err(error) if is_absent(&error) || matches!(error, Error::NotFound(_)) => {
                return FoundHashes { signed: Vec::new(), own: OwnHashes::NotPublished };
            }
            Err(error) => {
                return FoundHashes { signed: Vec::new(), own: OwnHashes::Unavailable(error.to_string()) };
            }
        };
        let signed: Vec<String> = proof_set.signed_digests().into_iter().map(|digest| digest.zh()).collect();
        let own = self.own_hashes(package, &proof_set, signed.is_empty()).await;
        FoundHashes { signed, own: own.unwrap_or_else(|error| OwnHashes::Unavailable(error.to_string())) }
    }

    /// The hashes that larder computed of the archive of a set. Where no signature covers the `zh:` of the archive, it is one
    /// of them, unless larder packed the archive itself.
    async fn own_hashes(&self, package: &Package, proof_set: &ProofSet, is_unsigned: bool) -> Result<OwnHashes, Error> {
        let (library, digest) = (&self.mirror.library, proof_set.document.shasum);
        let directory = match library.package_hashes(package, digest).await? {
            PackageHashState::Known { directory, .. } => directory,
            PackageHashState::Impossible { why } => {
                return Ok(OwnHashes::Unavailable(format!("its archive is no zip that a client can install: {why}")));
            }
            PackageHashState::NotYet => return Ok(OwnHashes::NotFetched),
        };
        let is_published = || async {
            let stored = library.stored_archive(package, digest).await?;
            Ok::<_, Error>(stored.is_none_or(|archive| archive.zip == ZipOrigin::Published))
        };
        let zh = if is_unsigned && is_published().await? { Some(digest.zh()) } else { None };
        Ok(OwnHashes::Known([directory].into_iter().chain(zh).collect()))
    }
}

impl StepRunner<'_> {
    /// The platforms for which existing lock files of an order lack hashes, as far as that is known without an archive.
    pub(super) async fn lock_file_gaps(
        &self,
        order: &Order,
        roots: &[ResolvedRoot],
        platforms: &[Platform],
    ) -> Vec<LockFileGap> {
        let locked = join_all(locked_versions(order, roots).into_iter().map(|locked| async move {
            let archives = self.known_archives(&locked.provider, &locked.version, &order.platforms).await;
            let lacking = lock_file::lacking_platforms(&locked.hashes, &archives);
            let lacking = lacking.into_iter().filter(|platform| platforms.contains(platform));
            lacking.map(|platform| (locked.path.clone(), platform.clone(), locked.package())).collect::<Vec<_>>()
        }));
        let mut gaps: BTreeMap<(String, Platform), Vec<PackageRef>> = BTreeMap::new();
        for (path, platform, package) in locked.await.into_iter().flatten() {
            gaps.entry((path, platform)).or_default().push(package);
        }
        let gap = |((path, platform), providers)| LockFileGap { path, platform, providers };
        gaps.into_iter().map(gap).collect()
    }

    /// What is known of the archives of a version: those that the SHA256SUMS names in the conventional way, and those of the
    /// documents for these platforms. None where no document can be had.
    async fn known_archives(
        &self,
        provider: &ProviderAddress,
        version: &Version,
        platforms: &[Platform],
    ) -> Vec<PlatformArchive> {
        let package = |platform: &Platform| Package {
            provider: provider.clone(),
            version: version.clone(),
            platform: platform.clone(),
        };
        let (mut digests, mut of_documents) = (BTreeMap::new(), BTreeMap::new());
        for platform in platforms {
            let package = package(platform);
            let resolve = || async { self.mirror.operations.warm_set(&package, &self.context()).await };
            let Ok(WarmedDocument { value: proof_set, .. }) = self.run_step(resolve, || {}).await else { continue };
            let named = proof_set.conventional_archives(provider.type_.as_str(), &[version.as_str()]);
            digests.extend(named.into_iter().map(|(platform, _, digest)| (platform, digest)));
            of_documents.insert(platform.clone(), proof_set.document.shasum);
        }
        // A document says more than the name of a file.
        digests.extend(of_documents);
        let mut archives = Vec::new();
        for (platform, digest) in digests {
            let hashes = self.mirror.library.package_hashes(&package(&platform), digest).await;
            let h1 = match hashes {
                Ok(PackageHashState::Known { zip, directory }) => vec![zip, directory],
                Ok(PackageHashState::NotYet | PackageHashState::Impossible { .. }) | Err(_) => Vec::new(),
            };
            archives.push(PlatformArchive { platform, zh: digest.zh(), h1 });
        }
        archives
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

/// Completes the lock file of one root.
fn lock_file_report(
    root: &ResolvedRoot,
    platforms: &[Platform],
    found: &BTreeMap<&Package, FoundHashes>,
) -> LockFileReport {
    let mut problems: Vec<LockProblem> = root.unavailable.iter().cloned().map(LockProblem::from).collect();
    let (mut required, mut to_fetch) = (Vec::new(), Vec::new());
    for chosen in &root.providers {
        let (mut signed, mut own, mut is_published) = (BTreeSet::new(), BTreeSet::new(), false);
        for package in packages_of(chosen, platforms) {
            let Some(hashes) = found.get(&package) else { continue };
            signed.extend(hashes.signed.iter().cloned());
            is_published |= hashes.own != OwnHashes::NotPublished;
            match &hashes.own {
                OwnHashes::Known(known) => own.extend(known.iter().cloned()),
                OwnHashes::NotFetched => to_fetch.push(PackageRef::from(&package)),
                OwnHashes::NotPublished => {}
                OwnHashes::Unavailable(reason) => problems.push(problem(&package, reason.clone())),
            }
        }
        let ChosenProvider { provider, version, constraint } = chosen;
        if !is_published {
            problems.push(problem(
                format!("{provider}@{version}"),
                "it is published for none of these platforms: name others with --platform",
            ));
        }
        let (provider, version) = (provider.clone(), version.clone());
        required.push(ProviderToLock { provider, version, constraints: constraint.lock_file_text(), signed, own });
    }
    let completed = lock_file::complete(root.locked.as_deref().unwrap_or_default(), &required);
    problems.extend(completed.contradictions.iter().map(|(provider, reason)| problem(provider, reason.clone())));
    let text = || lock_file::write(&completed.entries, root.client);
    let state = match completed.changes.as_slice() {
        _ if !problems.is_empty() => LockFileState::Impossible { problems },
        _ if !to_fetch.is_empty() => LockFileState::Unknown { to_fetch },
        [] => LockFileState::Complete { text: text() },
        changes => LockFileState::Incomplete { text: text(), changes: changes.to_vec() },
    };
    LockFileReport { path: root.lock_file(), client: root.client, state }
}

fn problem(subject: impl ToString, reason: impl Into<String>) -> LockProblem {
    LockProblem { subject: subject.to_string(), reason: reason.into(), required_by: Vec::new() }
}
