//! Lock files for every platform: resolves the roots of an order as `init` does, and completes the lock file of each with the
//! hashes of its providers. It fetches no provider archive: the answer names those whose hashes larder does not know yet, for
//! a warm-up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::job_limits::{JobLimits, StepRunner};
use super::list::Jobs;
use super::plan::{CONCURRENT_STEPS, PlanError};
use super::resolve::MirrorRegistries;
use super::warm::MAX_ITEMS;
use crate::address::{Package, PackageRef, Platform};
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{Connectivity, Mirror, PackageHashState, ProofSet, Urgency, WarmedDocument, ZipOrigin, is_absent};
use crate::requirements::lock_file::{self, LockChange, LockedProvider, ProviderToLock};
use crate::requirements::{self, ChosenProvider, ClientKind, Order, ResolvedRoot, UnavailableItem};

/// The most bytes of SHA256SUMS in one order, over all providers and platforms. One has a kilobyte or two.
const MAX_SUMS_BYTES: usize = 64 << 20;

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
    /// The causes that concern no single lock file. With any, some lock files may not be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<UnavailableItem>,
    /// Packages that upstream does not publish: no lock file can have their hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpublished: Vec<PackageRef>,
    /// Notes for people about stored documents that upstream did not confirm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
    /// Notes for people: choices that the files leave open, and entries that nothing requires.
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
        problems: Vec<UnavailableItem>,
    },
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
    let budget = AtomicUsize::new(MAX_SUMS_BYTES);
    let looked_up = packages.iter().map(|package| steps.hashes_to_lock(package, &budget));
    let looked_up = join_all(looked_up.collect::<Vec<_>>()).await;
    let found: BTreeMap<&Package, FoundHashes> = packages.iter().zip(looked_up).collect();
    let mut files = Vec::new();
    for root in &resolved.roots {
        files.push(lock_file_report(root, &order.platforms, &found));
        // Hundreds of files take a while; other tasks run in between.
        tokio::task::yield_now().await;
    }
    let unpublished = found.iter().filter(|(_, found)| found.own == OwnHashes::NotPublished);
    let identity = |item: &'_ UnavailableItem| (item.subject.clone(), item.reason.clone());
    let of_roots: BTreeSet<_> = resolved.roots.iter().flat_map(|root| &root.unavailable).map(identity).collect();
    let problems: Vec<UnavailableItem> =
        resolved.unavailable.into_iter().filter(|item| !of_roots.contains(&identity(item))).collect();
    let unconfirmed = found.values().filter_map(|found| found.unconfirmed.clone());
    let unconfirmed: BTreeSet<String> = registries.findings().unconfirmed.into_iter().chain(unconfirmed).collect();
    let is_complete = |file: &LockFileReport| matches!(file.state, LockFileState::Complete { .. });
    Ok(LockReport {
        complete: problems.is_empty() && files.iter().all(is_complete),
        offline: mirror.runtime.connectivity() == Connectivity::Offline,
        platforms: order.platforms.clone(),
        problems,
        unpublished: unpublished.map(|(package, _)| PackageRef::from(*package)).collect(),
        unconfirmed: unconfirmed.into_iter().collect(),
        notes: resolved.notes.into_iter().chain(resolved.roots.iter().filter_map(note_on_superfluous)).collect(),
        files,
    })
}

/// A sentence about the locked providers that a root does not require. They stay, as in the client's own command.
fn note_on_superfluous(root: &ResolvedRoot) -> Option<String> {
    let is_required = |locked: &&LockedProvider| root.providers.iter().any(|chosen| chosen.provider == locked.provider);
    // OpenTofu adds entries without hashes for some of Terraform's.
    let superfluous = root.locked.iter().flatten().filter(|locked| !is_required(locked) && !locked.hashes.is_empty());
    let names: Vec<String> = superfluous.map(|locked| locked.provider.to_string()).collect();
    // Without a version of each provider, what is required is not known.
    let is_known = root.unavailable.is_empty() && !names.is_empty();
    is_known.then(|| {
        format!(
            "{} has entries that the configuration does not require: {}. Unless the state does, `init` removes them, and \
             `init -lockfile=readonly` fails",
            root.lock_file(),
            names.join(", ")
        )
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
    /// The digests that a client takes from the signed SHA256SUMS; none where no key signed them.
    signed: Vec<Digest>,
    /// Every line of SHA256SUMS, signed or not.
    lines: Vec<(String, Digest)>,
    /// The digest of the archive.
    archive: Option<Digest>,
    own: OwnHashes,
    /// A note for people if upstream did not confirm the documents.
    unconfirmed: Option<String>,
}

impl FoundHashes {
    fn without_set(own: OwnHashes) -> Self {
        Self { signed: Vec::new(), lines: Vec::new(), archive: None, own, unconfirmed: None }
    }
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
    /// Finds the hashes of a package. Fetches its proof set, and not its archive. `budget` is the number of bytes of SHA256SUMS
    /// that one order may still have.
    async fn hashes_to_lock(&self, package: &Package, budget: &AtomicUsize) -> FoundHashes {
        let resolve = || async { self.mirror.operations.warm_set(package, &self.context()).await };
        let (proof_set, unconfirmed) = match self.run_step(resolve, || {}).await {
            Ok(WarmedDocument { value, unconfirmed }) => (value, unconfirmed),
            Err(error) if is_absent(&error) || matches!(error, Error::NotFound(_)) => {
                return FoundHashes::without_set(OwnHashes::NotPublished);
            }
            Err(error) => return FoundHashes::without_set(OwnHashes::Unavailable(error.to_string())),
        };
        let within = |left: usize| left.checked_sub(proof_set.sums.len());
        if budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            let reason = format!(
                "the SHA256SUMS of all providers have more than {} MiB: name fewer folders",
                MAX_SUMS_BYTES >> 20
            );
            return FoundHashes::without_set(OwnHashes::Unavailable(reason));
        }
        let (signed, lines) = (proof_set.signed_digests(), proof_set.sums_lines());
        let own = self.own_hashes(package, &proof_set, signed.is_empty()).await;
        let own = own.unwrap_or_else(|error| OwnHashes::Unavailable(error.to_string()));
        FoundHashes { signed, lines, archive: Some(proof_set.document.shasum), own, unconfirmed }
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
        let stored = library.stored_archive(package, digest).await?;
        let is_published = stored.is_none_or(|archive| archive.zip == ZipOrigin::Published);
        let zh = (is_unsigned && is_published).then(|| digest.zh());
        Ok(OwnHashes::Known([directory].into_iter().chain(zh).collect()))
    }
}

/// Completes the lock file of one root.
fn lock_file_report(
    root: &ResolvedRoot,
    platforms: &[Platform],
    found: &BTreeMap<&Package, FoundHashes>,
) -> LockFileReport {
    let mut problems: Vec<UnavailableItem> = root.unavailable.clone();
    let (mut required, mut to_fetch) = (Vec::new(), Vec::new());
    for chosen in &root.providers {
        let ChosenProvider { provider, version, constraint } = chosen;
        let mut to_lock = ProviderToLock::of(provider.clone(), version.clone(), constraint.lock_file_text());
        let (mut digest_of_file, mut is_published, mut differs) = (BTreeMap::new(), false, false);
        for package in packages_of(chosen, platforms) {
            let Some(hashes) = found.get(&package) else { continue };
            for (name, digest) in &hashes.lines {
                differs |= digest_of_file.insert(name, digest).is_some_and(|other| other != digest);
                to_lock.published.insert(digest.zh());
            }
            to_lock.signed.extend(hashes.signed.iter().map(Digest::zh));
            to_lock.archives.extend(hashes.archive.iter().map(Digest::zh));
            is_published |= hashes.own != OwnHashes::NotPublished;
            match &hashes.own {
                OwnHashes::Known(known) => to_lock.own.extend(known.iter().cloned()),
                OwnHashes::NotFetched => to_fetch.push(PackageRef::from(&package)),
                OwnHashes::NotPublished => {}
                OwnHashes::Unavailable(reason) => problems.push(problem(&package, reason.clone())),
            }
        }
        let subject = format!("{provider}@{version}");
        if !is_published {
            problems
                .push(problem(&subject, "it is published for none of these platforms: name others with --platform"));
        }
        if differs {
            let reason = "the cached SHA256SUMS differ between its platforms, because the version was published again: \
                          `larder refresh` of this version revalidates them, `larder explain` shows them";
            problems.push(problem(&subject, reason));
        }
        required.push(to_lock);
    }
    let completed = lock_file::complete(root.locked.as_deref().unwrap_or_default(), &required);
    problems.extend(completed.contradictions.iter().map(|(provider, reason)| problem(provider, reason.clone())));
    let text = lock_file::write(&completed.entries, root.client);
    if let Err(bad) = lock_file::parse(text.as_bytes()) {
        problems.push(problem(root.lock_file(), format!("the complete file would be one that larder refuses: {bad}")));
    }
    let state = match completed.changes.as_slice() {
        _ if !problems.is_empty() => LockFileState::Impossible { problems },
        _ if !to_fetch.is_empty() => LockFileState::Unknown { to_fetch },
        [] => LockFileState::Complete { text },
        changes => LockFileState::Incomplete { text, changes: changes.to_vec() },
    };
    LockFileReport { path: root.lock_file(), client: root.client, state }
}

fn problem(subject: impl ToString, reason: impl Into<String>) -> UnavailableItem {
    UnavailableItem { subject: subject.to_string(), reason: reason.into(), required_by: Vec::new() }
}
