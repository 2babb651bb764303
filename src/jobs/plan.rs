//! Plans: will `init` work offline? Compares the requirements of an order with the store: what is stored, what must be
//! fetched, what is unavailable. It fetches no provider archive. It fetches modules, because only their contents say
//! what they call; they stay stored.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::availability::ItemAvailability;
use super::job_limits::{AsError, JobLimits, RetryPolicy};
use super::lockfile_targets::{LockFit, LockMismatch, all_have};
use super::registries::{MirrorRegistries, ResolveFindings};
use super::warm::MAX_ITEMS;
use crate::address::{Artifact, ModulePackage, Package, PackageRef, PackageSelector, Versions};
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::{Mirror, StoredArchive, WarmedDocument};
use crate::requirements::{self, Order, OrderEntry, RequiredArchive, ResolvedRequirements, UnavailableItem};

/// Upstream requests at a time, for one plan.
const TURNS: usize = 8;
const TO_BE_BROUGHT: &str =
    "this mirror is offline: it must be brought (outside: larder bundle create --for the same words)";
/// A note, given once for all versions chosen from a list while offline.
const MAY_BE_OLD: &str = "this mirror is offline: there may be newer versions than it knows";
/// A note for an archive that cannot be compared with its lock-file hashes before it is fetched.
const KNOWN_ONCE_FETCHED: &str = "the lock file has no hash by which it can be known before it is fetched";
/// Plans that run at a time.
static PLANS: Semaphore = Semaphore::const_new(4);
/// Plans that run or wait: each may hold a whole order in memory.
static PLACES: Semaphore = Semaphore::const_new(16);
/// The longest wait for other plans.
const WAITS: Duration = Duration::from_secs(60);

/// The result of a plan: the answer to `POST /admin/v1/plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Everything is stored, and installs by every route.
    pub ready: bool,
    /// This larder is offline: missing packages must be brought in a bundle.
    pub offline: bool,
    /// Counts by state.
    pub sums: Sums,
    /// Each archive, and each unavailable item.
    pub items: Vec<Planned>,
    /// Versions that upstream did not confirm: an `init` with upstream may choose others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
}

/// Counts by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Stored archives.
    pub have: u64,
    /// Their bytes.
    pub have_bytes: u64,
    /// Stored archives that install through the network mirror only.
    #[serde(default)]
    pub network_mirror_only: u64,
    /// Archives to be fetched.
    pub need: u64,
    /// Their bytes, as far as the sizes are known.
    pub need_bytes: u64,
    /// Archives to be fetched whose size is unknown.
    pub need_unknown: u64,
    /// Unavailable items.
    pub cannot: u64,
    /// Items without an upstream answer.
    #[serde(default)]
    pub unknown: u64,
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// The archive, or the unavailable item.
    #[serde(flatten)]
    pub package: PackageRef,
    /// Its state.
    #[serde(flatten)]
    pub state: PlanState,
    /// The requirements that name it: an address, a lock file, or a file with its line.
    pub by: Vec<String>,
}

/// State of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PlanState {
    /// Stored, with all its documents.
    Have {
        /// The size of its archive, in bytes.
        size_bytes: u64,
        /// The routes by which it installs.
        #[serde(default, skip_serializing_if = "Installs::is_any_way")]
        installs: Installs,
    },
    /// Not stored, and can be fetched.
    Need {
        /// Size of the archive in bytes, where known.
        size_bytes: Option<u64>,
        /// A remark for the reader.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Unavailable.
    Cannot {
        /// The attempt, its result, and the remedy.
        why: String,
    },
    /// Upstream gave no answer just now.
    Unknown {
        /// The attempt and its result.
        why: String,
    },
}

/// The routes by which a stored package installs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[error("as many plans are made as may be at one time: ask again in a moment")]
    Busy,
    /// The order exceeds the limit of items.
    #[error("that is about {0} archives; one plan can be about {MAX_ITEMS}: name fewer folders or platforms")]
    TooMany(usize),
}

/// Resolves an order and compares it with the store. An unavailable item is a line of the plan, not an error.
///
/// # Errors
/// [`PlanError`].
pub async fn plan(mirror: &Arc<Mirror>, clock: &Clock, order: &Order) -> Result<Plan, PlanError> {
    let _place = PLACES.try_acquire().map_err(|_| PlanError::Busy)?;
    let _turn = timeout(WAITS, PLANS.acquire()).await.map_err(|_| PlanError::Busy)?;
    let turns = JobLimits::of(TURNS);
    let retry_policy = RetryPolicy::of_a_plan(&turns, clock);
    let registries = MirrorRegistries::new(mirror, clock, &retry_policy);
    let ResolvedRequirements { archives, cannot } = requirements::resolve(order, &registries).await;
    if archives.len() + cannot.len() > MAX_ITEMS {
        return Err(PlanError::TooMany(archives.len() + cannot.len()));
    }
    let findings = registries.findings();
    let planning = Planner { mirror, clock, retry_policy: &retry_policy };
    let looked = join_all(archives.iter().map(|wanted| planning.check_archive(wanted)).collect::<Vec<_>>()).await;
    let (mut items, notes): (Vec<Planned>, Vec<Option<String>>) = looked.into_iter().unzip();
    let cannot: Vec<Planned> = cannot.into_iter().map(|cannot| findings.line_of(cannot)).collect();
    // An unreadable module has its reason already, and is not listed again as needed.
    let reported: BTreeSet<&PackageRef> = cannot.iter().map(|line| &line.package).collect();
    items.retain(|item| item.package.platform.is_some() || !reported.contains(&item.package));
    items.extend(cannot);
    let mut unconfirmed: Vec<String> =
        findings.unconfirmed.iter().cloned().chain(notes.into_iter().flatten()).collect();
    unconfirmed.sort();
    unconfirmed.dedup();
    let sums = Sums::of(&items);
    let offline = mirror.connectivity() == crate::mirror::Connectivity::Offline;
    if offline && !unconfirmed.is_empty() {
        unconfirmed = if names_versions(order) { Vec::new() } else { vec![MAY_BE_OLD.to_owned()] };
    }
    let lacking = sums.need + sums.cannot + sums.unknown + sums.network_mirror_only;
    Ok(Plan { ready: lacking == 0, offline, sums, items, unconfirmed })
}

/// Returns true if the order names exact versions, so that a newer version changes nothing.
fn names_versions(order: &Order) -> bool {
    order.given.iter().all(|given| match given {
        OrderEntry::Address { what: PackageSelector::Provider(selection), .. } => {
            matches!(selection.versions, Versions::Exactly(_))
        }
        OrderEntry::Address { what: PackageSelector::Module(selection), .. } => {
            matches!(selection.versions, Versions::Exactly(_))
        }
        OrderEntry::LockFile { .. } => true,
        OrderEntry::Configurations(_) => false,
    })
}

impl Sums {
    fn of(items: &[Planned]) -> Self {
        let mut sums = Self::default();
        for item in items {
            match item.state {
                PlanState::Have { size_bytes, installs } => {
                    sums.network_mirror_only += u64::from(installs == Installs::NetworkMirrorOnly);
                    sums.have += 1;
                    sums.have_bytes += size_bytes;
                }
                PlanState::Need { size_bytes, .. } => {
                    sums.need += 1;
                    sums.need_bytes += size_bytes.unwrap_or(0);
                    sums.need_unknown += u64::from(size_bytes.is_none());
                }
                PlanState::Cannot { .. } => sums.cannot += 1,
                PlanState::Unknown { .. } => sums.unknown += 1,
            }
        }
        sums
    }
}

impl ResolveFindings {
    /// The line of an unavailable item.
    fn line_of(&self, UnavailableItem { subject, reason, required_by }: UnavailableItem) -> Planned {
        let address = subject.split('@').next().unwrap_or_default();
        let outlook = self.outlooks.get(&subject).or_else(|| self.outlooks.get(address));
        let state = state_of(outlook.copied().unwrap_or(ItemAvailability::Never), reason);
        Planned { package: PackageRef::requested(&subject), state, by: required_by }
    }
}

fn state_of(outlook: ItemAvailability, reason: String) -> PlanState {
    match outlook {
        ItemAvailability::ToBeBrought => PlanState::Need { size_bytes: None, note: Some(TO_BE_BROUGHT.to_owned()) },
        ItemAvailability::Unknown => PlanState::Unknown { why: reason },
        ItemAvailability::Never => PlanState::Cannot { why: reason },
    }
}

struct Planner<'a> {
    mirror: &'a Arc<Mirror>,
    clock: &'a Clock,
    retry_policy: &'a RetryPolicy<'a>,
}

impl Planner<'_> {
    /// Checks one archive. Also returns the unconfirmed lists.
    async fn check_archive(&self, wanted: &RequiredArchive) -> (Planned, Option<String>) {
        let looked = match &wanted.artifact {
            Artifact::Provider(package) => self.provider(package, &wanted.hashes).await.map_err(|error| {
                let outlook = error.as_error().map_or(ItemAvailability::Never, ItemAvailability::of_a_document);
                state_of(outlook, error.to_string())
            }),
            Artifact::Module(package) => {
                self.module(package).await.map_err(|error| state_of(ItemAvailability::of(&error), error.to_string()))
            }
        };
        let (state, unconfirmed) = looked.unwrap_or_else(|state| (state, None));
        (Planned { package: (&wanted.artifact).into(), state, by: wanted.required_by.clone() }, unconfirmed)
    }

    async fn provider(
        &self,
        package: &Package,
        locked: &[Vec<String>],
    ) -> Result<(PlanState, Option<String>), LockMismatch> {
        let set = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.warm_set(package, self.retry_policy.urgency(), self.clock.now()))
        };
        let WarmedDocument { value: set, unconfirmed } = self.retry_policy.run_step(set, || {}).await?;
        let digest = set.document.shasum;
        let fit = LockFit::of_all(locked, digest);
        if fit == LockFit::None {
            return Err(LockMismatch::locked_to_another(package, &locked.concat(), digest.zh()));
        }
        let archive = match self.mirror.is_installable(package, digest).await? {
            true => self.mirror.stored_archive(package, digest).await?,
            false => None,
        };
        let Some(archive) = self.verified_archive(package.into(), archive).await? else {
            let size = || -> BoxFuture<'_, Result<_, Error>> {
                Box::pin(async { Ok(self.mirror.announced_size(package, &set, self.clock.now()).await) })
            };
            let size_bytes = self.retry_policy.run_step(size, || {}).await?;
            let note = (fit == LockFit::ItsPackageHashTells).then(|| KNOWN_ONCE_FETCHED.to_owned());
            return Ok((PlanState::Need { size_bytes, note }, unconfirmed));
        };
        if fit == LockFit::ItsPackageHashTells {
            match self.mirror.package_hash(package, digest).await? {
                Some(hash) if all_have(locked, digest, &hash) => {}
                hash => {
                    let proven = hash.unwrap_or_else(|| digest.zh());
                    return Err(LockMismatch::locked_to_another(package, &locked.concat(), proven));
                }
            }
        }
        let installs = match self.mirror.was_imported(package).await? {
            true => Installs::NetworkMirrorOnly,
            false => Installs::AnyWay,
        };
        Ok((PlanState::Have { size_bytes: archive.size_bytes, installs }, unconfirmed))
    }

    /// Returns the stored archive of a package if it is the verified one.
    async fn verified_archive(
        &self,
        artifact: Artifact,
        archive: Option<StoredArchive>,
    ) -> Result<Option<StoredArchive>, Error> {
        let Some(archive) = archive else { return Ok(None) };
        Ok(self.mirror.is_sound(artifact, &archive, self.clock.now()).await?.then_some(archive))
    }

    /// Checks a module. A module that was fetched for its calls counts as stored.
    async fn module(&self, package: &ModulePackage) -> Result<(PlanState, Option<String>), Error> {
        let look = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.warmed_module(package, self.retry_policy.urgency(), self.clock.now()))
        };
        let WarmedDocument { value, unconfirmed } = self.retry_policy.run_step(look, || {}).await?;
        let archive = match value {
            Some(archive) if self.mirror.is_module_installable(package, archive.digest).await? => Some(archive),
            Some(_) | None => None,
        };
        let archive = self.verified_archive(self.mirror.artifact_of(package), archive).await?;
        let state = match archive.map(|archive| archive.size_bytes) {
            Some(size_bytes) => PlanState::Have { size_bytes, installs: Installs::AnyWay },
            None => PlanState::Need { size_bytes: None, note: None },
        };
        Ok((state, unconfirmed))
    }
}
