//! How a job takes its turns: few steps at a time, and again later where an upstream or a bound of ours says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{CLOCK_SLACK, Clock, Timestamp};
use crate::error::Error;
use crate::mirror::Urgency;

/// For how long upstreams may say "later" to a job, of which nothing comes in meanwhile, before that is a failure.
const LONGEST_PUT_OFF: Duration = Duration::from_secs(6 * 3600);
/// How long a step waits at most before it asks again what upstream allows already.
const LONGEST_OF_OUR_OWN: Duration = Duration::from_secs(30);
/// How many seconds a step waits that our own bounds have no room for.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How many archives are fetched at one time, in all jobs.
const ARCHIVES: usize = 4;
/// How many more of those that are small: there the waiting takes longer than the fetching.
const SMALL_ARCHIVES: usize = 16;
/// How many steps of any other kind are taken at one time: documents that are asked for, and what is synced.
const STEPS: usize = 16;

/// How often a plan tries again what there is no room for.
const MOST_MOMENTS: u32 = 30;

/// The turns that jobs take.
#[derive(Debug)]
pub(super) struct Turns {
    steps: Semaphore,
    archives: Semaphore,
    small: Semaphore,
}

/// The turn of one archive.
pub(super) struct ArchiveTurn<'a> {
    turns: &'a Turns,
    held: Mutex<Held<'a>>,
}

enum Held<'a> {
    Usual(#[expect(dead_code, reason = "held, and never looked at")] Option<SemaphorePermit<'a>>),
    Small(#[expect(dead_code, reason = "held, and never looked at")] SemaphorePermit<'a>),
}

impl Turns {
    /// Turns of which so many are taken at one time.
    pub(super) fn of(number: usize) -> Self {
        let [steps, archives, small] = [number, number, 0].map(Semaphore::new);
        Self { steps, archives, small }
    }
}

impl Default for Turns {
    fn default() -> Self {
        let [steps, archives, small] = [STEPS, ARCHIVES, SMALL_ARCHIVES].map(Semaphore::new);
        Self { steps, archives, small }
    }
}

impl ArchiveTurn<'_> {
    /// The archive has turned out to be small: another has this turn, too, unless there are enough of those.
    pub(super) fn is_of_a_small_one(&self) {
        let mut held = self.held.lock();
        if let Held::Usual(_) = &*held
            && let Ok(small) = self.turns.small.try_acquire()
        {
            *held = Held::Small(small);
        }
    }
}

/// The patience of one job.
pub(super) struct Patience<'a> {
    turns: &'a Turns,
    clock: &'a Clock,
    /// When something was had last, in seconds since 1970.
    came_in: AtomicU64,
    haste: Urgency,
}

impl<'a> Patience<'a> {
    /// The patience of a job that begins now, and has its turns among these.
    pub(super) fn new(turns: &'a Turns, clock: &'a Clock) -> Self {
        Self { turns, clock, came_in: AtomicU64::new(clock.now().0), haste: Urgency::None }
    }

    /// That of a plan, for which somebody waits: it waits for room that is there in a moment, and for nothing else.
    pub(super) fn of_a_plan(turns: &'a Turns, clock: &'a Clock) -> Self {
        Self { haste: Urgency::ToTell, ..Self::new(turns, clock) }
    }

    /// Whether somebody waits to be told.
    pub(super) fn haste(&self) -> Urgency {
        self.haste
    }

    /// Takes a turn for a step, and takes it again later where it is put off; `waits` is told of that.
    pub(super) async fn take<'b, T, E: AsError>(
        &self,
        step: impl Fn() -> BoxFuture<'b, Result<T, E>>,
        waits: impl Fn(),
    ) -> Result<T, E> {
        self.until_taken(&self.turns.steps, |_| step(), waits).await
    }

    /// The same for an archive; the step is told its turn.
    pub(super) async fn take_archive<'b, T, E: AsError>(
        &self,
        step: impl Fn(Arc<ArchiveTurn<'a>>) -> BoxFuture<'b, Result<T, E>>,
        waits: impl Fn(),
    ) -> Result<T, E> {
        self.until_taken(&self.turns.archives, step, waits).await
    }

    async fn until_taken<'b, T, E: AsError>(
        &self,
        turns: &'a Semaphore,
        step: impl Fn(Arc<ArchiveTurn<'a>>) -> BoxFuture<'b, Result<T, E>>,
        waits: impl Fn(),
    ) -> Result<T, E> {
        let (mut times, mut since): (u32, _) = (0, None);
        loop {
            // They are never closed.
            let held = Mutex::new(Held::Usual(turns.acquire().await.ok()));
            let taken = step(Arc::new(ArchiveTurn { turns: self.turns, held })).await;
            let until = match taken.as_ref().err().and_then(AsError::as_error) {
                Some(Error::HeldBack { .. }) if self.haste == Urgency::ToTell => return taken,
                Some(Error::Spared(_) | Error::Busy { .. })
                    if self.haste == Urgency::ToTell && times >= MOST_MOMENTS =>
                {
                    return taken;
                }
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
                Some(Error::Spared(_) | Error::Busy { .. })
                    if !self.stands_still(*since.get_or_insert_with(|| self.clock.now())) =>
                {
                    times = times.saturating_add(1);
                    self.clock.now().after(TRY_AGAIN_AFTER)
                }
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
}

/// What is wrong, where it is of the mirror.
pub(super) trait AsError {
    fn as_error(&self) -> Option<&Error>;
}

impl AsError for Error {
    fn as_error(&self) -> Option<&Error> {
        Some(self)
    }
}
