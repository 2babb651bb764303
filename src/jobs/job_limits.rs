//! Scheduling of job steps: few at a time, retried when an upstream or a local limit asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::address::{Address, Version};
use crate::clock::{CLOCK_SLACK, Clock, Timestamp};
use crate::error::Error;
use crate::mirror::{Mirror, RequestContext, Urgency, WarmedDocument};
use crate::policy::Policy;

/// The longest time without any progress in which a job retries; then it fails.
const GIVE_UP_AFTER: Duration = Duration::from_secs(6 * 3600);
/// The longest wait before a rate limit is checked again.
const MAX_RATE_LIMIT_PAUSE: Duration = Duration::from_secs(30);
/// The wait after a local limit was reached.
const LOCAL_LIMIT_PAUSE: Duration = Duration::from_secs(1);

/// Archives fetched at a time, over all jobs.
const MAX_ARCHIVES: usize = 8;
/// Additional permits for small archives, whose wait would take longer than their fetch.
const MAX_SMALL_ARCHIVES: usize = 16;
/// Modules fetched at a time: apart, so that a slow git server holds up no archive.
const MAX_MODULES: usize = 8;
/// Documents fetched at a time.
const MAX_STEPS: usize = 16;
/// Archives checked, pinned and synced at a time: apart, so that none waits behind the documents of a large order, where it
/// may be evicted before it is pinned.
const MAX_LAST_STEPS: usize = 16;

/// Plans that run at a time.
const MAX_RUNNING_PLANS: usize = 4;
/// Plans that run or wait: each may hold a whole order in memory.
const MAX_ADMITTED_PLANS: usize = 16;
/// Retries of a plan when a local limit is reached.
const MAX_PLAN_RETRIES: u32 = 30;

/// Concurrency limits of jobs and plans.
#[derive(Debug)]
pub(super) struct JobLimits {
    steps: Semaphore,
    last_steps: Semaphore,
    archives: Semaphore,
    small: Semaphore,
    modules: Semaphore,
    pub(super) running_plans: Semaphore,
    pub(super) admitted_plans: Semaphore,
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
    /// The limits of a plan, which fetches no archive.
    pub(super) fn of_plan(concurrent_steps: usize) -> Self {
        Self { steps: Semaphore::new(concurrent_steps), ..Self::default() }
    }
}

impl Default for JobLimits {
    fn default() -> Self {
        Self {
            steps: Semaphore::new(MAX_STEPS),
            last_steps: Semaphore::new(MAX_LAST_STEPS),
            archives: Semaphore::new(MAX_ARCHIVES),
            small: Semaphore::new(MAX_SMALL_ARCHIVES),
            modules: Semaphore::new(MAX_MODULES),
            running_plans: Semaphore::new(MAX_RUNNING_PLANS),
            admitted_plans: Semaphore::new(MAX_ADMITTED_PLANS),
        }
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

/// Runs the steps of one job or plan: within the limits, and again after each delay that an upstream or a limit asks for.
pub(super) struct StepRunner<'a> {
    pub(super) mirror: &'a Arc<Mirror>,
    pub(super) clock: &'a Clock,
    limits: &'a JobLimits,
    /// When the last byte arrived, in seconds since 1970.
    last_progress: AtomicU64,
    /// `Plan` if a person waits: then a step waits for local limits, and never for an upstream.
    pub(super) urgency: Urgency,
    /// The policies that a plan tries in place of those of this larder.
    trial: Option<Arc<Policy>>,
}

impl<'a> StepRunner<'a> {
    /// Begins a job or plan now.
    pub(super) fn new(mirror: &'a Arc<Mirror>, clock: &'a Clock, limits: &'a JobLimits, urgency: Urgency) -> Self {
        Self { mirror, clock, limits, last_progress: AtomicU64::new(clock.now().0), urgency, trial: None }
    }

    /// Tries these policies in place of those of this larder.
    pub(super) fn trying(self, policy: Option<Arc<Policy>>) -> Self {
        Self { trial: policy, ..self }
    }

    /// The context of a step that begins now.
    pub(super) fn context(&self) -> RequestContext {
        let (runtime, now) = (&self.mirror.runtime, self.clock.now());
        match &self.trial {
            Some(policy) => runtime.trial_context(Arc::clone(policy), now),
            None => runtime.step_context(self.urgency, now),
        }
    }

    /// Fetches the versions of a provider or module that clients see. Calls `on_start` before each attempt.
    pub(super) async fn versions(
        &self,
        address: &Address,
        on_start: impl Fn() + Sync,
        on_wait: impl Fn(),
    ) -> Result<WarmedDocument<Vec<Version>>, Error> {
        let operations = &self.mirror.operations;
        let on_start = &on_start;
        let fetch = || async move {
            on_start();
            let WarmedDocument { value, unconfirmed } = operations.warm_list(address, &self.context()).await?;
            let value = value.list.versions.into_iter().map(|listed| listed.version).collect();
            Ok(WarmedDocument { value, unconfirmed })
        };
        self.run_step(fetch, on_wait).await
    }

    /// Runs a step; calls `on_wait` before each delay.
    pub(super) async fn run_step<T, E: AsError, F: Future<Output = Result<T, E>> + Send>(
        &self,
        step: impl Fn() -> F,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        self.retry_until_done(&self.limits.steps, |_| step(), on_wait).await
    }

    /// Runs the last step of an archive.
    pub(super) async fn run_last_step<T, E: AsError, F: Future<Output = Result<T, E>> + Send>(
        &self,
        step: impl Fn() -> F,
    ) -> Result<T, E> {
        self.retry_until_done(&self.limits.last_steps, |_| step(), || {}).await
    }

    /// Runs a step that fetches a module.
    pub(super) async fn run_module_step<T, E: AsError, F: Future<Output = Result<T, E>> + Send>(
        &self,
        step: impl Fn() -> F,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        self.retry_until_done(&self.limits.modules, |_| step(), on_wait).await
    }

    /// Runs a step that fetches an archive; the step receives its permit.
    pub(super) async fn run_archive_step<T, E: AsError, F: Future<Output = Result<T, E>> + Send>(
        &self,
        step: impl Fn(Arc<ArchivePermit<'a>>) -> F,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        self.retry_until_done(&self.limits.archives, step, on_wait).await
    }

    async fn retry_until_done<T, E: AsError, F: Future<Output = Result<T, E>> + Send>(
        &self,
        permits: &'a Semaphore,
        step: impl Fn(Arc<ArchivePermit<'a>>) -> F,
        on_wait: impl Fn(),
    ) -> Result<T, E> {
        let is_plan = self.urgency == Urgency::Plan;
        let (mut retries, mut delayed_since): (u32, _) = (0, None);
        loop {
            // The semaphores are never closed.
            let permit = Mutex::new(PermitKind::Regular(permits.acquire().await.ok()));
            let permit = Arc::new(ArchivePermit { limits: self.limits, permit });
            let result = Box::pin(step(Arc::clone(&permit))).await;
            // Held until here, also by a step that has no use for it; a delay holds none.
            drop(permit);
            let held_back_until = match result.as_ref().err().and_then(AsError::as_error) {
                Some(Error::HeldBack { subject, until }) if !is_plan => {
                    tracing::debug!(what = subject, until = until.0, "a job waits: its upstream has asked for a pause");
                    Some(*until)
                }
                Some(Error::RevalidationSkipped(_) | Error::Busy { .. }) if !is_plan || retries < MAX_PLAN_RETRIES => {
                    None
                }
                Some(_) => return result,
                None => {
                    self.last_progress.store(self.clock.now().0, Ordering::Relaxed);
                    return result;
                }
            };
            if self.has_stalled(*delayed_since.get_or_insert_with(|| self.clock.now())) {
                return result;
            }
            retries = retries.saturating_add(1);
            let retry_at = match held_back_until {
                Some(until) => {
                    let pause = LOCAL_LIMIT_PAUSE.saturating_mul(retries).min(MAX_RATE_LIMIT_PAUSE);
                    self.clock.now().after(pause).max(until)
                }
                None => self.clock.now().after(LOCAL_LIMIT_PAUSE),
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
