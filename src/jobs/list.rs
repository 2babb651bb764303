//! The list of jobs: running ones and the most recent finished ones. When larder serves, jobs survive a restart:
//! finished jobs stay listed, interrupted jobs resume. A command's own job does not resume by itself: a user who
//! stopped the command must not find larder fetching later. The same command resumes it.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::id::JobId;
use super::job_events::JobSubscription;
use super::job_limits::JobLimits;
use super::job_report::{Job, JobState, JobSummary};
use super::job_state::JobEnd;
use super::record::JobRecords;
use super::running_job::{JobOrigin, RunningJob, SharedJobState};
use super::warm::WarmUp;
use super::warming;
use crate::address::{Artifact, PackageRef};
use crate::clock::Clock;
use crate::digest::Digest;
use crate::mirror::{Connectivity, Mirror, PinChange};
use crate::store::Store;

const MAX_RUNNING: usize = 8;
/// The last slot is for jobs that a person starts.
const MAX_RUNNING_FOR_RECURRING: usize = MAX_RUNNING - 1;
/// The number of jobs in the list, running ones included.
const MAX_LISTED: usize = 16;

/// All jobs of this larder.
#[derive(Debug)]
pub struct Jobs {
    mirror: Arc<Mirror>,
    home: SharedJobState,
    jobs: Mutex<VecDeque<Arc<RunningJob>>>,
    /// The order number of the next job.
    next_order: AtomicU64,
    turns: Arc<JobLimits>,
    running: TaskTracker,
}

/// A package of a job, for pinning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToPin {
    /// The package as named in the order, while nothing of it is stored.
    pub named: PackageRef,
    /// The artifact, once its version is chosen.
    pub package: Option<Artifact>,
    /// True while its job runs and will pin it after storing it.
    pub is_coming: bool,
}

/// Reasons why a job was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobStartError {
    /// The maximum number of jobs runs already.
    #[error("{MAX_RUNNING} jobs run, and no more may at one time: wait for one to end, or stop one")]
    TooMany,
    /// Larder is stopping.
    #[error("larder is stopping: ask again when it is back")]
    Stopping,
    /// No random bytes for its name.
    #[error("the system gives no random bytes")]
    Random,
}

impl Jobs {
    /// The jobs of one command: empty at first, and not resumed later.
    pub fn new(mirror: Arc<Mirror>, clock: Clock) -> Arc<Self> {
        Self::over(mirror, clock, None)
    }

    /// Loads the jobs of a serving larder, including those of earlier runs. Interrupted jobs resume on [`Jobs::resume_interrupted`].
    pub async fn of_store(mirror: Arc<Mirror>, clock: Clock, store: Arc<Store>) -> Arc<Self> {
        let records = JobRecords::of(store);
        let mut written = records.all().await;
        written.sort_by_key(|(_, written)| written.beginning.place);
        let jobs = Self::over(mirror, clock, Some(records));
        let places = written.iter().map(|(_, written)| written.beginning.place.saturating_add(1));
        jobs.next_order.store(places.max().unwrap_or(0), Ordering::Relaxed);
        let restored = written.into_iter().map(|(id, mut written)| {
            Arc::new(match (written.job.state, written.warm_up.take()) {
                (JobState::Running, Some(mut warm_up)) => {
                    warm_up.pin = written.job.pin;
                    RunningJob::new(id, Arc::new(warm_up), written.beginning, &jobs.home)
                }
                (JobState::Running, None) => {
                    written.job.state = JobState::Failed;
                    RunningJob::ended(id, written, &jobs.home)
                }
                _ => RunningJob::ended(id, written, &jobs.home),
            })
        });
        jobs.jobs.lock().extend(restored);
        jobs
    }

    fn over(mirror: Arc<Mirror>, clock: Clock, records: Option<JobRecords>) -> Arc<Self> {
        Arc::new(Self {
            mirror,
            home: SharedJobState {
                records,
                clock,
                stops: CancellationToken::new(),
                one_ended: Arc::new(Notify::new()),
            },
            jobs: Mutex::default(),
            next_order: AtomicU64::new(0),
            turns: Arc::default(),
            running: TaskTracker::new(),
        })
    }

    /// Resumes the jobs that a restart interrupted. Offline, recurring jobs do not run: their interrupted runs are
    /// dropped and start again when they are due.
    pub fn resume_interrupted(&self) {
        let mut jobs = self.jobs.lock();
        if self.mirror.connectivity() == Connectivity::Offline {
            let is_no_more = |under: &Arc<RunningJob>| under.beginning.recurs.is_some() && !under.has_ended();
            let forgotten = jobs.iter().filter(|under| is_no_more(under)).map(|under| under.id).collect();
            jobs.retain(|under| !is_no_more(under));
            if let Some(records) = self.home.records.clone() {
                self.running.spawn(async move { records.forget(forgotten).await });
            }
        }
        let interrupted: Vec<_> = jobs.iter().filter_map(|under| Some((Arc::clone(under), under.to_do()?))).collect();
        drop(jobs);
        for (under, warm_up) in interrupted {
            tracing::info!(job = %under.id, "a warm-up resumes after a restart");
            self.running.spawn(self.run_warm_up(under, warm_up));
        }
    }

    /// Accepts a warm-up, writes it to the store, and returns its initial report.
    ///
    /// # Errors
    /// [`JobStartError`].
    pub async fn start(&self, warm_up: WarmUp) -> Result<(JobId, Job), JobStartError> {
        let under = self.begin(warm_up, None).await?;
        Ok((under.id, under.job()))
    }

    /// Waits until a run of a recurring job may begin.
    pub(super) async fn until_recurring_slot(&self) {
        loop {
            // Registered before the check, so that a job that ends after it is not missed.
            let one_ended = self.home.one_ended.notified();
            if running(&self.jobs.lock()) < MAX_RUNNING_FOR_RECURRING {
                return;
            }
            one_ended.await;
        }
    }

    /// Accepts a run of a recurring job, and forgets its previous run.
    pub(super) async fn begin(
        &self,
        warm_up: WarmUp,
        recurs: Option<String>,
    ) -> Result<Arc<RunningJob>, JobStartError> {
        let id = JobId::random().ok_or(JobStartError::Random)?;
        let warm_up = Arc::new(warm_up);
        let (started, place) = (self.home.clock.now(), self.next_order.fetch_add(1, Ordering::Relaxed));
        let beginning = JobOrigin { started, place, recurs };
        let under = Arc::new(RunningJob::new(id, Arc::clone(&warm_up), beginning, &self.home));
        let (forgotten, runs) = self.put_on_list(&under)?;
        let (sender, written) = oneshot::channel();
        let (to_write, records, work) =
            (Arc::clone(&under), self.home.records.clone(), self.run_warm_up(Arc::clone(&under), warm_up));
        // The client may disconnect meanwhile.
        self.running.spawn(async move {
            if let Some(records) = records.filter(|_| !forgotten.is_empty()) {
                records.forget(forgotten).await;
            }
            to_write.write().await;
            let _ = sender.send(());
            work.await;
            drop(runs);
        });
        // It ends early only when larder stops.
        let _ = written.await;
        Ok(under)
    }

    /// Adds a job to the list, so that a stop waits for it; returns the jobs that were dropped from the list.
    fn put_on_list(&self, under: &Arc<RunningJob>) -> Result<(Vec<JobId>, TaskTrackerToken), JobStartError> {
        let mut jobs = self.jobs.lock();
        if self.home.stops.is_cancelled() {
            return Err(JobStartError::Stopping);
        }
        let recurs = &under.beginning.recurs;
        let most = if recurs.is_some() { MAX_RUNNING_FOR_RECURRING } else { MAX_RUNNING };
        if running(&jobs) >= most {
            return Err(JobStartError::TooMany);
        }
        let mut forgotten = Vec::new();
        let is_run_before = |other: &Arc<RunningJob>| recurs.is_some() && other.beginning.recurs == *recurs;
        while let Some(before) = jobs.iter().position(|other| is_run_before(other) && other.has_ended()) {
            forgotten.extend(jobs.remove(before).map(|under| under.id));
        }
        while jobs.len() >= MAX_LISTED {
            let Some(oldest) = jobs.iter().position(|under| under.has_ended()) else { break };
            forgotten.extend(jobs.remove(oldest).map(|under| under.id));
        }
        jobs.push_back(Arc::clone(under));
        Ok((forgotten, self.running.token()))
    }

    /// The work of one job.
    fn run_warm_up(&self, under: Arc<RunningJob>, warm_up: Arc<WarmUp>) -> impl Future<Output = ()> + Send + 'static {
        let (mirror, clock, turns) = (Arc::clone(&self.mirror), self.home.clock.clone(), Arc::clone(&self.turns));
        async move {
            let job = &under;
            tracing::info!(job = %job.id, items = job.len(), pin = job.pins(), "a warm-up begins");
            let work = warming::run(&mirror, &clock, &turns, job, &warm_up);
            let how = match AssertUnwindSafe(job.stop.run_until_cancelled(work)).catch_unwind().await {
                Ok(Some(())) => JobEnd::Reached,
                // The job resumes at the next start.
                Ok(None) if job.is_interrupted() => return,
                Ok(None) => JobEnd::Stopped,
                Err(_) => JobEnd::Lost,
            };
            job.end(how).await;
        }
    }

    /// Reports on every job in the list, newest first, without items.
    pub fn all(&self) -> Vec<JobSummary> {
        self.jobs.lock().iter().rev().map(|under| under.listed()).collect()
    }

    /// The report of one job; `None` for an unknown or dropped one.
    pub fn report(&self, id: JobId) -> Option<Job> {
        Some(self.find(id)?.job())
    }

    /// The stored archives of a job; `None` if there is no such job.
    pub fn stored_archives(&self, id: JobId) -> Option<Vec<(Artifact, Digest)>> {
        let stored = self.find(id)?.stored_items();
        Some(stored.into_iter().map(|(_, artifact, digest)| (artifact, digest)).collect())
    }

    /// Subscribes to the changes of one job; `None` if there is no such job.
    pub fn subscribe(&self, id: JobId) -> Option<JobSubscription> {
        Some(JobSubscription::of(self.find(id)?))
    }

    /// Cancels a job unless it has ended, and returns its report. Stored packages stay. A running download continues,
    /// as for any client that leaves.
    pub async fn cancel(&self, id: JobId) -> Option<Job> {
        let under = self.find(id)?;
        under.stop.cancel();
        under.end(JobEnd::Stopped).await;
        Some(under.job())
    }

    /// The packages of a job to pin or unpin now. For a running job the setting also applies to packages that it still
    /// has to fetch.
    pub async fn to_pin(&self, id: JobId, pin: PinChange) -> Option<Vec<ToPin>> {
        Some(self.find(id)?.to_pin(pin).await)
    }

    /// Stops all jobs and accepts no more. The jobs of a serving larder resume at its next start.
    pub async fn stop(&self) {
        {
            // Waits for a job that is being added.
            let _kept = self.jobs.lock();
            self.home.stops.cancel();
        }
        self.running.close();
        self.running.wait().await;
    }

    /// The unfinished run of a recurring job.
    pub(super) fn run_of(&self, recurs: &str) -> Option<Arc<RunningJob>> {
        let jobs = self.jobs.lock();
        jobs.iter().rev().find(|under| under.beginning.recurs.as_deref() == Some(recurs) && !under.has_ended()).cloned()
    }

    /// The finished run of a recurring job, while it is in the list.
    pub(super) fn ended_run_of(&self, recurs: &str) -> Option<JobSummary> {
        let jobs = self.jobs.lock();
        let ended = |under: &&Arc<RunningJob>| under.beginning.recurs.as_deref() == Some(recurs) && under.has_ended();
        jobs.iter().rev().find(ended).map(|under| under.listed())
    }

    pub(super) fn records(&self) -> Option<&JobRecords> {
        self.home.records.as_ref()
    }

    fn find(&self, id: JobId) -> Option<Arc<RunningJob>> {
        self.jobs.lock().iter().find(|under| under.id == id).cloned()
    }
}

fn running(jobs: &VecDeque<Arc<RunningJob>>) -> usize {
    jobs.iter().filter(|under| !under.has_ended()).count()
}
