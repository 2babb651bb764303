//! Plans: will `init` work offline? Compares the requirements of an order with the store: what is stored, what must be
//! fetched, what is unavailable. It fetches no provider archive. It fetches modules, because only their contents say
//! which further modules they call; fetched modules stay stored.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::job_limits::{AsError, JobLimits, StepRunner};
use super::list::Jobs;
use super::lock_file_gaps::LockFileGap;
use super::resolve::{ItemAvailability, MirrorRegistries, ResolveFindings};
use super::warm::{LockFit, LockMismatch, MAX_ITEMS};
use crate::address::{Address, Artifact, ModulePackage, Package, PackageRef, Platform, Versions};
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::{Connectivity, Mirror, StoredArchive, Urgency, WarmedDocument};
use crate::policy::Policy;
use crate::requirements::{self, Order, OrderEntry, RequiredArchive, ResolvedRequirements, UnavailableItem};

/// Concurrent steps of one plan, each with at most one upstream request.
pub(super) const CONCURRENT_STEPS: usize = 16;
/// Note for an item that an offline larder does not have.
const NEEDS_BUNDLE_NOTE: &str = "this mirror is offline: a bundle must bring it";
/// Note for a plan made offline: its versions were chosen from stored lists.
const MAYBE_OUTDATED_NOTE: &str = "this mirror is offline: there may be newer versions than its stored lists have";
/// Note for an archive that cannot be compared with its lock-file hashes before it is fetched.
const UNCHECKED_UNTIL_FETCHED_NOTE: &str =
    "no zh hash of the lock file matches; its h1 hashes can be checked only after the archive is fetched";
/// The longest wait for other plans.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a plan: the answer to `POST /admin/v1/plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Plan {
    /// True if everything is stored and installs by every route.
    pub ready: bool,
    /// True if this larder is offline: only a bundle can bring missing packages.
    pub offline: bool,
    /// The platforms of the order. While this larder is offline, also those that a provider must be stored for.
    #[serde(default)]
    pub platforms: Vec<Platform>,
    /// Counts by state.
    #[serde(rename = "sums")]
    pub counts: PlanCounts,
    /// Each archive, and each unavailable item.
    pub items: Vec<PlannedItem>,
    /// Notes for people about stored documents that upstream did not confirm: an `init` with upstream may choose other
    /// versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
    /// The platforms for which lock files are incomplete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lock_files: Vec<LockFileGap>,
    /// Notes for people about choices that the files leave open, such as the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Counts by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanCounts {
    /// Stored archives.
    #[serde(rename = "have")]
    pub stored: u64,
    /// Bytes of the stored archives.
    #[serde(rename = "have_bytes")]
    pub stored_bytes: u64,
    /// Stored archives that install through the network mirror only.
    #[serde(default)]
    pub network_mirror_only: u64,
    /// Archives to be fetched.
    #[serde(rename = "need")]
    pub to_fetch: u64,
    /// Bytes of the archives to be fetched, as far as the sizes are known.
    #[serde(rename = "need_bytes")]
    pub to_fetch_bytes: u64,
    /// Archives to be fetched whose size is unknown.
    #[serde(rename = "need_unknown")]
    pub unknown_sizes: u64,
    /// Unavailable items.
    #[serde(rename = "cannot")]
    pub unavailable: u64,
    /// Items without an upstream answer.
    #[serde(default)]
    pub unknown: u64,
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlannedItem {
    /// The archive, or the unavailable item.
    #[serde(flatten)]
    pub package: PackageRef,
    /// State of the item.
    #[serde(flatten)]
    pub state: PlanState,
    /// The requirements that name it: an address, a lock file, or a file with its line.
    #[serde(rename = "by")]
    pub required_by: Vec<String>,
}

/// State of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PlanState {
    /// Stored, with all its documents.
    #[serde(rename = "have")]
    Stored {
        /// Size of the archive, in bytes.
        size_bytes: u64,
        /// The routes by which it installs.
        #[serde(default, skip_serializing_if = "Installs::is_any_way")]
        installs: Installs,
    },
    /// Not stored, and can be fetched.
    #[serde(rename = "need")]
    ToFetch {
        /// Size of the archive in bytes, where known.
        size_bytes: Option<u64>,
        /// A remark for the reader.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Unavailable.
    #[serde(rename = "cannot")]
    Unavailable {
        /// The attempt, its result, and the remedy.
        #[serde(rename = "why")]
        reason: String,
    },
    /// Upstream gave no answer just now.
    Unknown {
        /// The attempt and its result.
        #[serde(rename = "why")]
        reason: String,
    },
}

/// The routes by which a stored package installs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Installs {
    /// All routes.
    #[default]
    AnyWay,
    /// The network mirror only: it was imported without signatures, which clients of the registry protocol require.
    NetworkMirrorOnly,
}

impl Installs {
    fn is_any_way(&self) -> bool {
        *self == Self::AnyWay
    }
}

/// Reasons why a plan is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many plans run already.
    #[error("too many plans run at this moment: send the request again shortly")]
    Busy,
    /// The order exceeds the limit of items.
    #[error("the order has about {0} archives; the limit of one plan is {MAX_ITEMS}: name fewer folders or platforms")]
    TooMany(usize),
}

impl Jobs {
    /// Resolves an order and compares it with the store. An unavailable item is a line of the plan, not an error. `trial` are
    /// policies to try in place of those of this larder; `lock_platforms` are those that lock files should have, besides the
    /// order's.
    ///
    /// # Errors
    /// [`PlanError`].
    pub async fn plan(
        &self,
        order: &Order,
        trial: Option<Arc<Policy>>,
        lock_platforms: &[Platform],
    ) -> Result<Plan, PlanError> {
        let _permits = self.plan_permits().await?;
        plan(&self.mirror, &self.shared.clock, order, trial, lock_platforms).await
    }

    /// Waits until a plan may run. Its turn ends when the permits are dropped.
    ///
    /// # Errors
    /// [`PlanError::Busy`].
    pub(super) async fn plan_permits(&self) -> Result<impl Sized, PlanError> {
        let admission = self.limits.admitted_plans.try_acquire().map_err(|_| PlanError::Busy)?;
        let running = timeout(QUEUE_TIMEOUT, self.limits.running_plans.acquire());
        let permit = running.await.map_err(|_| PlanError::Busy)?;
        Ok((admission, permit))
    }
}

async fn plan(
    mirror: &Arc<Mirror>,
    clock: &Clock,
    order: &Order,
    trial: Option<Arc<Policy>>,
    lock_platforms: &[Platform],
) -> Result<Plan, PlanError> {
    let limits = JobLimits::of_plan(CONCURRENT_STEPS);
    let steps = StepRunner::new(mirror, clock, &limits, Urgency::Plan).trying(trial);
    let registries = MirrorRegistries::new(&steps);
    let ResolvedRequirements { archives, unavailable, notes: choices, roots } =
        requirements::resolve(order, &registries).await;
    if archives.len() + unavailable.len() > MAX_ITEMS {
        return Err(PlanError::TooMany(archives.len() + unavailable.len()));
    }
    let findings = registries.findings();
    let checked = join_all(archives.iter().map(|required| steps.check_archive(required)).collect::<Vec<_>>()).await;
    let (mut items, notes): (Vec<PlannedItem>, Vec<Option<String>>) = checked.into_iter().unzip();
    let unavailable: Vec<PlannedItem> =
        unavailable.into_iter().map(|item| findings.planned_unavailable(item)).collect();
    // An unreadable module is listed with its reason, and not again as needed.
    let reported: BTreeSet<&PackageRef> = unavailable.iter().map(|item| &item.package).collect();
    items.retain(|item| item.package.platform.is_some() || !reported.contains(&item.package));
    items.extend(unavailable);
    let locked_for: Vec<Platform> = order.platforms.iter().chain(lock_platforms).cloned().collect();
    let lock_files = steps.lock_file_gaps(order, &roots, &locked_for).await;
    let unconfirmed: BTreeSet<String> = findings.unconfirmed.into_iter().chain(notes.into_iter().flatten()).collect();
    let mut unconfirmed: Vec<String> = unconfirmed.into_iter().collect();
    let counts = PlanCounts::of(&items);
    let offline = mirror.runtime.connectivity() == Connectivity::Offline;
    if offline && !unconfirmed.is_empty() {
        unconfirmed = if names_exact_versions(order) { Vec::new() } else { vec![MAYBE_OUTDATED_NOTE.to_owned()] };
    }
    let not_ready = counts.to_fetch + counts.unavailable + counts.unknown + counts.network_mirror_only;
    let sealed = if offline { mirror.runtime.sealed_platforms() } else { Vec::new() };
    let platforms: BTreeSet<Platform> = order.platforms.iter().cloned().chain(sealed).collect();
    let platforms = platforms.into_iter().collect();
    Ok(Plan { ready: not_ready == 0, offline, platforms, counts, items, unconfirmed, lock_files, notes: choices })
}

/// Returns true if the order names exact versions, so that a newer version changes nothing.
fn names_exact_versions(order: &Order) -> bool {
    order.given.iter().all(|given| match given {
        OrderEntry::Address { what, .. } => matches!(what.versions(), Versions::Exactly(_)),
        OrderEntry::LockFile { .. } => true,
        OrderEntry::Configurations(_) => false,
    })
}

impl PlanCounts {
    fn of(items: &[PlannedItem]) -> Self {
        let mut counts = Self::default();
        for item in items {
            match item.state {
                PlanState::Stored { size_bytes, installs } => {
                    counts.network_mirror_only += u64::from(installs == Installs::NetworkMirrorOnly);
                    counts.stored += 1;
                    counts.stored_bytes += size_bytes;
                }
                PlanState::ToFetch { size_bytes, .. } => {
                    counts.to_fetch += 1;
                    counts.to_fetch_bytes += size_bytes.unwrap_or(0);
                    counts.unknown_sizes += u64::from(size_bytes.is_none());
                }
                PlanState::Unavailable { .. } => counts.unavailable += 1,
                PlanState::Unknown { .. } => counts.unknown += 1,
            }
        }
        counts
    }
}

impl ResolveFindings {
    /// The plan's entry for an unavailable item.
    fn planned_unavailable(&self, UnavailableItem { subject, reason, required_by }: UnavailableItem) -> PlannedItem {
        let address = subject.split('@').next().unwrap_or_default();
        let availability = self.availability.get(&subject).or_else(|| self.availability.get(address));
        let state = state_of(availability.copied().unwrap_or(ItemAvailability::Unavailable), reason);
        PlannedItem { package: PackageRef::requested(&subject), state, required_by }
    }
}

fn state_of(availability: ItemAvailability, reason: String) -> PlanState {
    match availability {
        ItemAvailability::NeedsBundle => {
            PlanState::ToFetch { size_bytes: None, note: Some(NEEDS_BUNDLE_NOTE.to_owned()) }
        }
        ItemAvailability::WaitsForPlatforms => PlanState::ToFetch { size_bytes: None, note: Some(reason) },
        ItemAvailability::Unknown => PlanState::Unknown { reason },
        ItemAvailability::Unavailable => PlanState::Unavailable { reason },
    }
}

impl StepRunner<'_> {
    /// Checks one archive. Also returns a note if upstream did not confirm a document of it.
    async fn check_archive(&self, required: &RequiredArchive) -> (PlannedItem, Option<String>) {
        let checked = match &required.artifact {
            Artifact::Provider(package) => match self.check_provider(package, &required.hashes).await {
                Ok(checked) => Ok(checked),
                // Boxed: the compiler takes minutes over the nested futures.
                Err(error) => Err(Box::pin(self.state_after(package, &error)).await),
            },
            Artifact::Module(package) => self
                .check_module(package)
                .await
                .map_err(|error| state_of(ItemAvailability::after_error(&error), error.to_string())),
        };
        let (state, unconfirmed) = checked.unwrap_or_else(|state| (state, None));
        (
            PlannedItem { package: (&required.artifact).into(), state, required_by: required.required_by.clone() },
            unconfirmed,
        )
    }

    /// The state of a package that could not be checked.
    async fn state_after(&self, package: &Package, error: &LockMismatch) -> PlanState {
        let availability =
            error.as_error().map_or(ItemAvailability::Unavailable, ItemAvailability::after_document_error);
        if availability == ItemAvailability::NeedsBundle
            && let Some(waits) = self.waiting_sentence(package).await
        {
            return state_of(ItemAvailability::WaitsForPlatforms, waits);
        }
        state_of(availability, error.to_string())
    }

    /// The sentence about the version of a package, if it waits for sealed platforms.
    async fn waiting_sentence(&self, package: &Package) -> Option<String> {
        let address = Address::from(&package.provider);
        let waiting = self.mirror.offline.waiting_versions(&address, &self.context()).await.unwrap_or_default();
        let waiting = waiting.into_iter().find(|waiting| waiting.version == package.version)?;
        Some(format!("{} is {waiting} ([network] sealed_platforms)", waiting.version))
    }

    async fn check_provider(
        &self,
        package: &Package,
        locked: &[Vec<String>],
    ) -> Result<(PlanState, Option<String>), LockMismatch> {
        let Self { mirror, clock, .. } = self;
        let resolve = || async { mirror.operations.warm_set(package, &self.context()).await };
        let WarmedDocument { value: proof_set, unconfirmed } = self.run_step(resolve, || {}).await?;
        let digest = proof_set.document.shasum;
        let fit = LockFit::check(package, locked, digest)?;
        let archive = match mirror.library.is_installable(package, digest).await? {
            true => mirror.library.stored_archive(package, digest).await?,
            false => None,
        };
        let Some(archive) = self.verified_archive(package.into(), archive).await? else {
            let size =
                || async { Ok::<_, Error>(mirror.operations.announced_size(package, &proof_set, clock.now()).await) };
            let size_bytes = self.run_step(size, || {}).await?;
            let note = (fit == LockFit::NeedsPackageHash).then(|| UNCHECKED_UNTIL_FETCHED_NOTE.to_owned());
            return Ok((PlanState::ToFetch { size_bytes, note }, unconfirmed));
        };
        self.check_package_hash(package, digest, locked).await?;
        let installs = match mirror.library.was_imported(package).await? {
            true => Installs::NetworkMirrorOnly,
            false => Installs::AnyWay,
        };
        Ok((PlanState::Stored { size_bytes: archive.size_bytes, installs }, unconfirmed))
    }

    /// Returns the stored archive of a package if it is the verified one.
    async fn verified_archive(
        &self,
        artifact: Artifact,
        archive: Option<StoredArchive>,
    ) -> Result<Option<StoredArchive>, Error> {
        let Some(archive) = archive else { return Ok(None) };
        Ok(self.mirror.archives.reader.is_sound(artifact, &archive, self.clock.now()).await?.then_some(archive))
    }

    /// Checks a module. A module that was fetched for its calls counts as stored.
    async fn check_module(&self, package: &ModulePackage) -> Result<(PlanState, Option<String>), Error> {
        let mirror = self.mirror;
        let find = || async { mirror.operations.warmed_module(package, &self.context()).await };
        let WarmedDocument { value, unconfirmed } = self.run_step(find, || {}).await?;
        let archive = match value {
            Some(archive) if mirror.library.is_installable(package, archive.digest).await? => Some(archive),
            Some(_) | None => None,
        };
        let archive = self.verified_archive(mirror.runtime.artifact_of(package), archive).await?;
        let state = match archive.map(|archive| archive.size_bytes) {
            Some(size_bytes) => PlanState::Stored { size_bytes, installs: Installs::AnyWay },
            None => PlanState::ToFetch { size_bytes: None, note: None },
        };
        Ok((state, unconfirmed))
    }
}
