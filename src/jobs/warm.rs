//! One warm-up: everything that an `init` will ask for, fetched before anybody does. What is wanted is resolved against
//! the version list as a client would, each archive ends by itself, and clients go first.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use super::list::Under;
use super::report::ItemState;
use crate::address::{
    Artifact, Meant, ModuleAddress, ModulePackage, Package, Platform, ProviderAddress, Version, Versions, What,
};
use crate::clock::{CLOCK_SLACK, Clock, Timestamp};
use crate::closure::lock_file::{self, Locked};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{Came, Mirror, Pin, Resolved};

/// The most archives that one job is about.
const MOST_ITEMS: usize = 2048;
/// The most platforms in one job.
const MOST_PLATFORMS: usize = 32;
/// For how long upstreams may say "later" to a job, of which nothing comes in meanwhile, before that is a failure.
const LONGEST_PUT_OFF: Duration = Duration::from_secs(6 * 3600);
/// How long a step waits at most before it asks again what upstream allows already.
const LONGEST_OF_OUR_OWN: Duration = Duration::from_secs(30);
/// How many seconds a step waits that our own bounds have no room for.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a warm-up is to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmUp {
    pub(super) wanted: Vec<Wanted>,
    pub(super) platforms: Vec<Platform>,
    pub(super) pin: bool,
}

/// One thing of a warm-up: it names one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) what: What,
    /// What a lock file says that its archive has; nothing where no lock file names it.
    hashes: Vec<String>,
}

impl WarmUp {
    /// A warm-up of these; of this machine's platform where none is named.
    ///
    /// # Errors
    /// It is about more than one job may be, or about nothing.
    pub fn of_addresses(what: Vec<What>, platforms: Vec<Platform>, pin: bool) -> Result<Self, Vec<String>> {
        let wanted = what.into_iter().map(|what| Wanted { what, hashes: Vec::new() });
        Self::of(wanted.collect(), platforms, pin)
    }

    /// A warm-up of what a lock file names.
    ///
    /// # Errors
    /// Everything that is wrong with the file, and as for addresses.
    pub fn of_lock_file(file: &[u8], platforms: Vec<Platform>, pin: bool) -> Result<Self, Vec<String>> {
        let locked = lock_file::parse(file).map_err(|bad| bad.problems())?;
        if locked.is_empty() {
            return Err(vec!["the lock file names no provider".to_owned()]);
        }
        let wanted = locked.into_iter().map(|Locked { provider, version, hashes, .. }| Wanted {
            what: What::Provider(Meant { of: provider, versions: Versions::Exactly(version) }),
            hashes,
        });
        Self::of(wanted.collect(), platforms, pin)
    }

    fn of(wanted: Vec<Wanted>, mut platforms: Vec<Platform>, pin: bool) -> Result<Self, Vec<String>> {
        if platforms.is_empty() {
            platforms.push(Platform::here());
        }
        platforms.sort();
        platforms.dedup();
        let mut problems = Vec::new();
        if wanted.is_empty() {
            problems.push("nothing is named that could be warmed".to_owned());
        }
        if platforms.len() > MOST_PLATFORMS {
            problems.push(format!("{} platforms are named; at most {MOST_PLATFORMS} can be", platforms.len()));
        }
        let warm_up = Self { wanted, platforms, pin };
        let items = warm_up.wanted.iter().map(|wanted| warm_up.items_of(wanted)).fold(0, usize::saturating_add);
        if items > MOST_ITEMS {
            problems.push(format!("that is about {items} archives; one job can be about {MOST_ITEMS}"));
        }
        if problems.is_empty() { Ok(warm_up) } else { Err(problems) }
    }

    /// How many archives one thing is about: a module is the same for every platform.
    fn items_of(&self, wanted: &Wanted) -> usize {
        match wanted.what {
            What::Provider(_) => self.platforms.len(),
            What::Module(_) => 1,
        }
    }

    /// Every archive that it is about: what names it, and for which platform.
    pub(super) fn items(&self) -> impl Iterator<Item = (&Wanted, Option<&Platform>)> {
        self.wanted.iter().flat_map(|wanted| {
            let (platforms, once) = match wanted.what {
                What::Provider(_) => (self.platforms.as_slice(), None),
                What::Module(_) => (&[][..], Some((wanted, None))),
            };
            platforms.iter().map(move |platform| (wanted, Some(platform))).chain(once)
        })
    }
}

/// Why an archive is not warmed.
#[derive(Debug, thiserror::Error)]
enum NotWarm {
    #[error(transparent)]
    Mirror(#[from] Error),
    #[error(
        "{package}: none of the {locked} hashes in the lock file fits the archive that is proven for it ({proven}), so a client would refuse it: lock it again with `terraform providers lock -platform={}`, or ask why it is another one", .package.platform
    )]
    LockedToAnother { package: Package, locked: usize, proven: String },
}

/// Runs a warm-up to its end, and says of each archive how it went.
pub(super) async fn run(mirror: &Arc<Mirror>, clock: &Clock, under: &Arc<Under>, warm_up: &WarmUp) {
    let run = Run { mirror, clock, under, warm_up, came_in: AtomicU64::new(clock.now().0) };
    let mut first = 0;
    let each = warm_up.wanted.iter().map(|wanted| {
        let items = first..first + warm_up.items_of(wanted);
        first = items.end;
        run.warm(items, wanted)
    });
    join_all(each.collect::<Vec<_>>()).await;
    run.look_again().await;
}

struct Run<'a> {
    mirror: &'a Arc<Mirror>,
    clock: &'a Clock,
    under: &'a Arc<Under>,
    warm_up: &'a WarmUp,
    /// When something was had last, in seconds since 1970.
    came_in: AtomicU64,
}

impl Run<'_> {
    /// Chooses the version, and warms it: of a provider, for each platform.
    async fn warm(&self, items: Range<usize>, wanted: &Wanted) {
        let warmed = match &wanted.what {
            What::Provider(meant) => self.provider(items.clone(), meant, wanted).await,
            What::Module(meant) => self.module(items.clone(), meant).await,
        };
        if let Err(error) = warmed {
            items.for_each(|item| self.failed(item, &error));
        }
    }

    async fn provider(
        &self,
        items: Range<usize>,
        meant: &Meant<ProviderAddress>,
        wanted: &Wanted,
    ) -> Result<(), Error> {
        let list = || -> BoxFuture<'_, _> { Box::pin(self.mirror.warm_list(&meant.of, self.clock.now())) };
        let list = self.list(items.clone(), list).await?;
        let version = chosen(list.versions.iter().map(|listed| &listed.version), meant)?;
        join_all(items.zip(&self.warm_up.platforms).map(|(item, platform)| {
            let package = Package { provider: meant.of.clone(), version: version.clone(), platform: platform.clone() };
            self.item(item, package, wanted)
        }))
        .await;
        Ok(())
    }

    async fn module(&self, items: Range<usize>, meant: &Meant<ModuleAddress>) -> Result<(), Error> {
        let list = || -> BoxFuture<'_, _> { Box::pin(self.mirror.warm_module_list(&meant.of, self.clock.now())) };
        let list = self.list(items.clone(), list).await?;
        let version = chosen(list.versions.iter().map(|listed| &listed.version), meant)?;
        let package = ModulePackage { module: meant.of.clone(), version };
        let item = items.start;
        self.under.is_about(item, &Artifact::from(&package));
        let warmed = self.patiently(
            || Box::pin(self.module_package(item, &package)),
            || self.under.is_now(item, ItemState::Waiting),
        );
        let (came, digest, size_bytes) = warmed.await?;
        self.under.is_held(item, came, digest, size_bytes);
        Ok(())
    }

    async fn module_package(&self, item: usize, package: &ModulePackage) -> Result<(Came, Digest, u64), Error> {
        self.under.is_now(item, ItemState::Fetching);
        let Resolved { value: (came, held), unconfirmed } = self.mirror.warm_module(package, self.clock.now()).await?;
        if let Some(why) = unconfirmed {
            self.under.is_unconfirmed(item, why);
        }
        self.pin_if_told(self.mirror.artifact_of(package)).await?;
        self.mirror.settle_module(package, held.digest).await?;
        Ok((came, held.digest, held.size_bytes))
    }

    async fn pin_if_told(&self, of: Artifact) -> Result<(), Error> {
        if !self.under.pins() {
            return Ok(());
        }
        let what = format!("the archive of {of}");
        let pinned = self.mirror.pin_artifacts(vec![of], Pin::Set).await?;
        if pinned.iter().all(|pinned| pinned.is_well()) { Ok(()) } else { Err(self.mirror.not_kept(&what).await) }
    }

    /// The version list that a version is chosen from.
    async fn list<'b, T>(
        &self,
        items: Range<usize>,
        list: impl Fn() -> BoxFuture<'b, Result<Resolved<T>, Error>>,
    ) -> Result<T, Error> {
        let each = |state: ItemState| items.clone().for_each(|item| self.under.is_now(item, state.clone()));
        let list = self.patiently(
            || {
                each(ItemState::Resolving);
                list()
            },
            || each(ItemState::Waiting),
        );
        let Resolved { value: list, unconfirmed } = list.await?;
        if let Some(why) = unconfirmed {
            items.clone().for_each(|item| self.under.is_unconfirmed(item, why.clone()));
        }
        Ok(list)
    }

    async fn item(&self, item: usize, package: Package, wanted: &Wanted) {
        self.under.is_about(item, &Artifact::from(&package));
        let warmed = self.patiently(
            || Box::pin(self.package(item, &package, &wanted.hashes)),
            || self.under.is_now(item, ItemState::Waiting),
        );
        match warmed.await {
            Ok((came, digest, size_bytes)) => self.under.is_held(item, came, digest, size_bytes),
            Err(error) => self.failed(item, &error),
        }
    }

    async fn package(&self, item: usize, package: &Package, locked: &[String]) -> Result<(Came, Digest, u64), NotWarm> {
        self.under.is_now(item, ItemState::Resolving);
        let Resolved { value: set, unconfirmed } = self.mirror.warm_set(package, self.clock.now()).await?;
        if let Some(why) = unconfirmed {
            self.under.is_unconfirmed(item, why);
        }
        let digest = set.document.shasum;
        // Before anything is fetched for it, where that can be told.
        let fit = Fit::of(locked, digest);
        if fit == Fit::None {
            return Err(locked_to_another(package, locked, digest.zh()));
        }
        self.under.is_now(item, ItemState::Fetching);
        let arriving = |bytes, length| self.under.arriving(item, bytes, length);
        let (came, held) = self.mirror.warm_archive(package, digest, self.clock.now(), arriving).await?;
        if fit == Fit::ItsPackageHashTells {
            match self.mirror.package_hash(package, digest).await? {
                Some(hash) if locked.contains(&hash) => {}
                hash => return Err(locked_to_another(package, locked, hash.unwrap_or_else(|| digest.zh()))),
            }
        }
        self.pin_if_told(Artifact::from(package)).await?;
        self.mirror.settle(package, digest).await?;
        Ok((came, digest, held.size_bytes))
    }

    /// Takes a turn for a step, and takes it again later where it is put off.
    async fn patiently<'b, T, E: AsError>(
        &self,
        step: impl Fn() -> BoxFuture<'b, Result<T, E>>,
        waits: impl Fn(),
    ) -> Result<T, E> {
        let (mut times, mut since): (u32, _) = (0, None);
        loop {
            // It is never closed.
            let turn = self.under.turns.acquire().await;
            let taken = step().await;
            drop(turn);
            let until = match taken.as_ref().err().and_then(AsError::as_error) {
                Some(Error::HeldBack { what, until })
                    if !self.stands_still(*since.get_or_insert_with(|| self.clock.now())) =>
                {
                    tracing::debug!(
                        what,
                        until = until.0,
                        "a job waits, because its upstream has asked to be left alone"
                    );
                    times = times.saturating_add(1);
                    let pause = TRY_AGAIN_AFTER.saturating_mul(times).min(LONGEST_OF_OUR_OWN);
                    self.clock.now().after(pause).max(*until)
                }
                Some(Error::Spared(_) | Error::Busy(_)) => self.clock.now().after(TRY_AGAIN_AFTER),
                Some(_) => return taken,
                None => {
                    self.came_in.store(self.clock.now().0, Ordering::Relaxed);
                    return taken;
                }
            };
            waits();
            self.wait_until(until).await;
        }
    }

    /// Whether nothing has come in for so long that to wait on is no use to a step that has been put off `since` then.
    fn stands_still(&self, since: Timestamp) -> bool {
        let came_in = Timestamp(self.came_in.load(Ordering::Relaxed));
        self.clock.now().since(came_in.max(since)) > LONGEST_PUT_OFF
    }

    /// Waits, and no longer than was meant where the clock is set back meanwhile.
    async fn wait_until(&self, until: Timestamp) {
        let time = until.since(self.clock.now()).saturating_add(CLOCK_SLACK);
        // Whether it is time is asked again by whoever waited.
        let _ = tokio::time::timeout(time, self.clock.until(until)).await;
    }

    fn failed(&self, item: usize, error: &dyn Display) {
        self.under.has_failed(item, error.to_string());
    }

    /// What came first may have been evicted for what came last.
    async fn look_again(&self) {
        for (item, of, digest) in self.under.all_held() {
            let holds = match &of {
                Artifact::Provider(package) => self.mirror.still_holds(package, digest).await,
                Artifact::Module(package) => self.mirror.still_holds_module(package, digest).await,
            };
            match holds {
                Ok(true) => {}
                Ok(false) => self.failed(item, &self.mirror.not_kept(&format!("the archive of {of}")).await),
                Err(error) => self.failed(item, &error),
            }
        }
    }
}

/// The version that a client would take: the newest that is meant. Only a version that is named exactly may be a
/// pre-release.
fn chosen<'a, A: Display>(listed: impl Iterator<Item = &'a Version>, what: &Meant<A>) -> Result<Version, Error> {
    let is_meant = |version: &&Version| match &what.versions {
        Versions::All => !version.is_pre_release(),
        versions @ (Versions::Exactly(_) | Versions::Matching(_)) => versions.include(version),
    };
    let listed: Vec<&Version> = listed.collect();
    listed.iter().copied().filter(is_meant).max().cloned().ok_or_else(|| {
        let number = listed.len();
        Error::NotFound(match what.versions {
            Versions::All => format!("none of the {number} versions that {} lists is a release", what.of),
            Versions::Exactly(_) => {
                format!("{what} is none of the {number} versions that are listed, so no client would ask for it")
            }
            Versions::Matching(_) => format!("none of the {number} versions that are listed is {what}"),
        })
    })
}

/// How the hashes of a lock file stand to an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// One of them is its own, or there are none to go by.
    Its,
    /// Its `h1:` may be among them.
    ItsPackageHashTells,
    /// None of them can be.
    None,
}

impl Fit {
    fn of(locked: &[String], digest: Digest) -> Self {
        let is_package_hash = |hash: &&String| hash.starts_with("h1:");
        if !locked.iter().any(|hash| hash.starts_with("zh:") || hash.starts_with("h1:"))
            || locked.contains(&digest.zh())
        {
            Self::Its
        } else if locked.iter().any(|hash| is_package_hash(&hash)) {
            Self::ItsPackageHashTells
        } else {
            Self::None
        }
    }
}

fn locked_to_another(package: &Package, locked: &[String], proven: String) -> NotWarm {
    NotWarm::LockedToAnother { package: package.clone(), locked: locked.len(), proven }
}

/// What is wrong, where it is of the mirror.
trait AsError {
    fn as_error(&self) -> Option<&Error>;
}

impl AsError for Error {
    fn as_error(&self) -> Option<&Error> {
        Some(self)
    }
}

impl AsError for NotWarm {
    fn as_error(&self) -> Option<&Error> {
        match self {
            Self::Mirror(error) => Some(error),
            Self::LockedToAnother { .. } => None,
        }
    }
}
