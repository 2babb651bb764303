//! Scheduling of job steps: few at a time, retried when an upstream or a local limit asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{CLOCK_SLACK, Clock, Timestamp};
use crate::error::Error;
use crate::mirror::Urgency;

/// The longest time without any progress in which a job retries; then it fails.
const GIVE_UP_AFTER: Duration = Duration::from_secs(6 * 3600);
/// The longest wait before a rate limit is checked again.
const MAX_RATE_LIMIT_PAUSE: Duration = Duration::from_secs(30);
/// The wait after a local limit was reached.
const LOCAL_LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// Archives fetched at a time, over all jobs.
const MAX_ARCHIVES: usize = 4;
/// Additional permits for small archives, whose wait would take longer than their fetch.
const MAX_SMALL_ARCHIVES: usize = 16;
/// Other concurrent steps: document fetches and syncs.
const MAX_STEPS: usize = 16;

/// Retries of a plan when a local limit is reached.
const MAX_PLAN_RETRIES: u32 = 30;

/// Concurrency limits of jobs.
#[derive(Debug)]
pub(super) struct JobLimits {
    steps: Semaphore,
    archives: Semaphore,
    small: Semaphore,
}

/// The permit of one archive.
pub(super) struct ArchivePermit<'a> {
    limits: &'a JobLimits,
    permit: Mutex<PermitKind<'a>>,
}

enum PermitKind<'a> {
    Regular(#[expect(dead_code, reason = "held only for its Drop")] Option<SemaphorePermit<'a>>),
    Small(#[expect(dead_code, reason = "held only for its Drop")] SemaphorePermit<'a>),
}

impl JobLimits {
    /// The given number of permits for steps and for archives; none extra for small archives.
    pub(super) fn with_permits(number: usize) -> Self {
        let [steps, archives, small] = [number, number, 0].map(Semaphore::new);
        Self { steps, archives, small }
    }
}

impl Default for JobLimits {
    fn default() -> Self {
        let [steps, archives, small] = [MAX_STEPS, MAX_ARCHIVES, MAX_SMALL_ARCHIVES].map(Semaphore::new);
        Self { steps, archives, small }
    }
}

impl ArchivePermit<'_> {
    /// For a small archive: exchanges the regular permit for one of the extra permits, if one is free.
    pub(super) fn release_if_small(&self) {
        let mut permit = self.permit.lock();
        if let PermitKind::Regular(_) = &*permit
            && let Ok(small) = self.limits.small.try_acquire()
        {
            *permit = PermitKind::Small(small);
        }
    }
}

/// The retry rules of one job.
pub(super) struct RetryPolicy<'a> {
    limits: &'a JobLimits,
    clock: &'a Clock,
    /// When the last byte arrived, in seconds since 1970.
    last_progress: AtomicU64,
    urgency: Urgency,
}

impl<'a> RetryPolicy<'a> {
    /// The rules of a job that begins now, within these limits.
    pub(super) fn new(limits: &'a JobLimits, clock: &'a Clock) -> Self {
        Self { limits, clock, last_progress: AtomicU64::new(clock.now().0), urgency: Urgency::Job }
    }

    /// The rules of a plan, for which a person waits: it waits for local limits, and never for an upstream.
    pub(super) fn for_plan(limits: &'a JobLimits, clock: &'a Clock) -> Self {
        Self { urgency: Urgency::Plan, ..Self::new(limits, clock) }
    }

    pub(super) fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Runs a step within the limits, and again after each requested delay; calls `on_wait` before a delay.
    pub(super) async fn run_step<'b, T, E: AsError>(
        &self,
        step: impl Fn() -> BoxFuture<'b, Result<T, E>>,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        self.retry_until_done(&self.limits.steps, |_| step(), on_wait).await
    }

    /// Runs a step that fetches an archive; the step receives its permit.
    pub(super) async fn run_archive_step<'b, T, E: AsError>(
        &self,
        step: impl Fn(Arc<ArchivePermit<'a>>) -> BoxFuture<'b, Result<T, E>>,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        self.retry_until_done(&self.limits.archives, step, on_wait).await
    }

    async fn retry_until_done<'b, T, E: AsError>(
        &self,
        permits: &'a Semaphore,
        step: impl Fn(Arc<ArchivePermit<'a>>) -> BoxFuture<'b, Result<T, E>>,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        let (mut retries, mut delayed_since): (u32, _) = (0, None);
        loop {
            // The semaphores are never closed.
            let permit = Mutex::new(PermitKind::Regular(permits.acquire().await.ok()));
            let result = step(Arc::new(ArchivePermit { limits: self.limits, permit })).await;
            let retry_at = match result.as_ref().err().and_then(AsError::as_error) {
                Some(Error::HeldBack { .. }) if self.urgency == Urgency::Plan => return result,
                Some(Error::RevalidationSkipped(_) | Error::Busy { .. })
                    if self.urgency == Urgency::Plan && retries >= MAX_PLAN_RETRIES =>
                {
                    return result;
                }
                Some(Error::HeldBack { subject, until })
                    if !self.has_stalled(*delayed_since.get_or_insert_with(|| self.clock.now())) =>
                {
                    tracing::debug!(what = subject, until = until.0, "a job waits: its upstream has asked for a pause");
                    retries = retries.saturating_add(1);
                    let pause = LOCAL_LIMIT_PAUSE.saturating_mul(retries).min(MAX_RATE_LIMIT_PAUSE);
                    self.clock.now().after(pause).max(*until)
                }
                Some(Error::RevalidationSkipped(_) | Error::Busy { .. })
                    if !self.has_stalled(*delayed_since.get_or_insert_with(|| self.clock.now())) =>
                {
                    retries = retries.saturating_add(1);
                    self.clock.now().after(LOCAL_LIMIT_PAUSE)
                }
                Some(_) => return result,
                None => {
                    self.last_progress.store(self.clock.now().0, Ordering::Relaxed);
                    return result;
                }
            };
            on_wait();
            self.wait_until(retry_at).await;
        }
    }

    /// Returns true if nothing has arrived for so long that a step delayed since `delayed_since` should give up.
    fn has_stalled(&self, delayed_since: Timestamp) -> bool {
        let last_progress = Timestamp(self.last_progress.load(Ordering::Relaxed));
        self.clock.now().since(last_progress.max(delayed_since)) > GIVE_UP_AFTER
    }

    /// Waits until the given time, and no longer than planned if the clock is set back.
    async fn wait_until(&self, until: Timestamp) {
        let max_wait = until.since(self.clock.now()).saturating_add(CLOCK_SLACK);
        // The caller checks the time again.
        let _ = tokio::time::timeout(max_wait, self.clock.sleep_until(until)).await;
    }
}

/// Access to the mirror's error inside a step's error.
pub(super) trait AsError {
    fn as_error(&self) -> Option<&Error>;
}

impl AsError for Error {
    fn as_error(&self) -> Option<&Error> {
        Some(self)
    }
}
