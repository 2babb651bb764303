//! The list of jobs, running ones and the most recent finished ones, and their records. When larder serves, jobs survive a restart:
//! finished jobs stay listed, interrupted jobs resume. A command's own job does not resume by itself: a user who
//! stopped the command must not find larder fetching later. The same command resumes it.
//!
//! A record has the order of a running job, or the result of a finished one. Progress is not recorded: a resumed job checks
//! the store again.

use std::collections::VecDeque;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::job_limits::JobLimits;
use super::job_report::{Job, JobId, JobState, JobSummary};
use super::on_disk;
use super::running_job::{EndedJobs, ItemSubject, JobEnd, JobOrigin, RunningJob, SharedJobState};
use super::warm::{self, WarmUp};
use crate::address::{Artifact, PackageRef};
use crate::clock::Clock;
use crate::mirror::{Connectivity, Mirror};
use crate::store::{Durability, IndexEntry, Key, RecordScope, Store, StoreError, to_json};

const MAX_RUNNING: usize = 8;
/// The last slot is for jobs that a person starts.
const MAX_RUNNING_FOR_RECURRING: usize = MAX_RUNNING - 1;
/// The number of jobs in the list, running ones included.
const MAX_LISTED: usize = 16;

/// All jobs of this larder.
#[derive(Debug)]
pub struct Jobs {
    pub(super) mirror: Arc<Mirror>,
    pub(super) shared: SharedJobState,
    jobs: Mutex<VecDeque<Arc<RunningJob>>>,
    /// The order number of the next job.
    next_order: AtomicU64,
    pub(super) limits: Arc<JobLimits>,
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
    pub is_pending: bool,
}

/// Reasons why a job was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobStartError {
    /// The maximum number of jobs runs already.
    #[error("{MAX_RUNNING} jobs run already, which is the limit: wait until one ends, or cancel one")]
    TooMany,
    /// Larder is stopping.
    #[error("larder is stopping: send the request again after the restart")]
    Stopping,
    /// The system returned no random bytes for the job's ID.
    #[error("the system returned no random bytes for the job's ID")]
    NoRandomId,
}

impl Jobs {
    /// The jobs of one command: empty at first, and not resumed later.
    pub fn new(mirror: Arc<Mirror>, clock: Clock) -> Arc<Self> {
        Self::with_records(mirror, clock, None)
    }

    /// Loads the jobs of a serving larder, including those of earlier runs. Interrupted jobs resume on [`Jobs::resume_interrupted`].
    pub async fn of_store(mirror: Arc<Mirror>, clock: Clock, store: Arc<Store>) -> Arc<Self> {
        let records = JobRecords(store);
        let mut loaded = records.all().await;
        loaded.sort_by_key(|(_, record)| record.origin.number);
        let jobs = Self::with_records(mirror, clock, Some(records));
        let orders = loaded.iter().map(|(_, record)| record.origin.number.saturating_add(1));
        jobs.next_order.store(orders.max().unwrap_or(0), Ordering::Relaxed);
        let restored = loaded.into_iter().map(|(id, mut record)| {
            Arc::new(match (record.job.state, record.warm_up.take()) {
                (JobState::Running, Some(mut warm_up)) => {
                    warm_up.pin = record.job.pin;
                    RunningJob::new(id, Arc::new(warm_up), record.origin, &jobs.shared)
                }
                (state, _) => {
                    record.job.state = if state == JobState::Running { JobState::Failed } else { state };
                    RunningJob::ended(id, record, &jobs.shared)
                }
            })
        });
        jobs.jobs.lock().extend(restored);
        jobs
    }

    fn with_records(mirror: Arc<Mirror>, clock: Clock, records: Option<JobRecords>) -> Arc<Self> {
        Arc::new(Self {
            mirror,
            shared: SharedJobState {
                records,
                clock,
                shutdown: CancellationToken::new(),
                job_ended: Arc::new(Notify::new()),
                ended_jobs: EndedJobs::default(),
            },
            jobs: Mutex::default(),
            next_order: AtomicU64::new(0),
            limits: Arc::default(),
            running: TaskTracker::new(),
        })
    }

    /// Resumes the jobs that a restart interrupted. Offline, recurring jobs do not run: their interrupted runs are
    /// dropped and start again when they are due.
    pub fn resume_interrupted(&self) {
        let mut jobs = self.jobs.lock();
        if self.mirror.runtime.connectivity() == Connectivity::Offline {
            let is_dropped = |job: &Arc<RunningJob>| job.origin.recurring_key.is_some() && !job.has_ended();
            let forgotten = jobs.iter().filter(|job| is_dropped(job)).map(|job| job.id).collect();
            jobs.retain(|job| !is_dropped(job));
            if let Some(records) = self.shared.records.clone() {
                self.running.spawn(async move { records.forget_jobs(forgotten).await });
            }
        }
        let interrupted: Vec<_> =
            jobs.iter().filter_map(|job| Some((Arc::clone(job), job.pending_warm_up()?))).collect();
        drop(jobs);
        for (job, warm_up) in interrupted {
            tracing::info!(job = %job.id, "a warm-up resumes after a restart");
            self.running.spawn(self.run_warm_up(job, warm_up));
        }
    }

    /// Accepts a warm-up, writes it to the store, and returns its initial report.
    ///
    /// # Errors
    /// [`JobStartError`].
    pub async fn start(&self, warm_up: WarmUp) -> Result<(JobId, Job), JobStartError> {
        let job = self.begin(warm_up, None).await?;
        Ok((job.id, job.report()))
    }

    /// Waits until a run of a recurring job may begin.
    pub(super) async fn until_recurring_slot(&self) {
        loop {
            // Registered before the check, so that a job that ends after it is not missed.
            let job_ended = self.shared.job_ended.notified();
            if running(&self.jobs.lock()) < MAX_RUNNING_FOR_RECURRING {
                return;
            }
            job_ended.await;
        }
    }

    /// Accepts a run of a recurring job, and forgets its previous run.
    pub(super) async fn begin(
        &self,
        warm_up: WarmUp,
        recurring_key: Option<String>,
    ) -> Result<Arc<RunningJob>, JobStartError> {
        let id = JobId::random().ok_or(JobStartError::NoRandomId)?;
        let warm_up = Arc::new(warm_up);
        let (started, number) = (self.shared.clock.now(), self.next_order.fetch_add(1, Ordering::Relaxed));
        let origin = JobOrigin { started, number, recurring_key };
        let job = Arc::new(RunningJob::new(id, Arc::clone(&warm_up), origin, &self.shared));
        let (forgotten, task_token) = self.add_to_list(&job)?;
        let (sender, written) = oneshot::channel();
        let (recorded_job, records, work) =
            (Arc::clone(&job), self.shared.records.clone(), self.run_warm_up(Arc::clone(&job), warm_up));
        // The client may disconnect meanwhile.
        self.running.spawn(async move {
            if let Some(records) = records.filter(|_| !forgotten.is_empty()) {
                records.forget_jobs(forgotten).await;
            }
            recorded_job.write().await;
            let _ = sender.send(());
            work.await;
            drop(task_token);
        });
        // The channel closes without a message only when larder stops.
        let _ = written.await;
        Ok(job)
    }

    /// Adds a job to the list, so that a stop waits for it; returns the jobs that were dropped from the list.
    fn add_to_list(&self, job: &Arc<RunningJob>) -> Result<(Vec<JobId>, TaskTrackerToken), JobStartError> {
        let mut jobs = self.jobs.lock();
        if self.shared.shutdown.is_cancelled() {
            return Err(JobStartError::Stopping);
        }
        let recurring_key = &job.origin.recurring_key;
        let max_running = if recurring_key.is_some() { MAX_RUNNING_FOR_RECURRING } else { MAX_RUNNING };
        if running(&jobs) >= max_running {
            return Err(JobStartError::TooMany);
        }
        let mut forgotten = Vec::new();
        let is_previous_run =
            |other: &Arc<RunningJob>| recurring_key.is_some() && other.origin.recurring_key == *recurring_key;
        while let Some(previous) = jobs.iter().position(|other| is_previous_run(other) && other.has_ended()) {
            forgotten.extend(jobs.remove(previous).map(|job| job.id));
        }
        while jobs.len() >= MAX_LISTED {
            let Some(oldest) = jobs.iter().position(|job| job.has_ended()) else { break };
            forgotten.extend(jobs.remove(oldest).map(|job| job.id));
        }
        jobs.push_back(Arc::clone(job));
        Ok((forgotten, self.running.token()))
    }

    /// Runs the work of one job, and records its end.
    fn run_warm_up(&self, job: Arc<RunningJob>, warm_up: Arc<WarmUp>) -> impl Future<Output = ()> + Send + 'static {
        let (mirror, clock, limits) = (Arc::clone(&self.mirror), self.shared.clock.clone(), Arc::clone(&self.limits));
        async move {
            let job = &job;
            tracing::info!(job = %job.id, items = job.len(), pin = job.pins(), "a warm-up begins");
            let work = warm::run(&mirror, &clock, &limits, job, &warm_up);
            let end = match AssertUnwindSafe(job.stop.run_until_cancelled(work)).catch_unwind().await {
                Ok(Some(())) => JobEnd::Completed,
                // The job resumes at the next start.
                Ok(None) if job.is_interrupted() => return,
                Ok(None) => JobEnd::Cancelled,
                Err(_) => JobEnd::Panicked,
            };
            job.end(end).await;
        }
    }

    /// Reports on every job in the list, newest first, without items.
    pub fn all(&self) -> Vec<JobSummary> {
        self.jobs.lock().iter().rev().map(|job| job.summary()).collect()
    }

    /// One job; `None` for an unknown or dropped one.
    pub fn find(&self, id: JobId) -> Option<Arc<RunningJob>> {
        self.jobs.lock().iter().find(|job| job.id == id).cloned()
    }

    /// Stops all jobs and accepts no more. The jobs of a serving larder resume at its next start.
    pub async fn stop(&self) {
        {
            // The lock waits for a job that is being added.
            let _jobs = self.jobs.lock();
            self.shared.shutdown.cancel();
        }
        self.running.close();
        self.running.wait().await;
    }

    /// The run of a recurring job that is in progress.
    pub(super) fn current_run(&self, recurring_key: &str) -> Option<Arc<RunningJob>> {
        self.last_run(recurring_key, |run| !run.has_ended())
    }

    /// The last run of a recurring job that has ended, while it is in the list.
    pub(super) fn last_ended_run(&self, recurring_key: &str) -> Option<Arc<RunningJob>> {
        self.last_run(recurring_key, RunningJob::has_ended)
    }

    fn last_run(&self, recurring_key: &str, is_wanted: impl Fn(&RunningJob) -> bool) -> Option<Arc<RunningJob>> {
        let is_run = |job: &&Arc<RunningJob>| job.origin.recurring_key.as_deref() == Some(recurring_key);
        self.jobs.lock().iter().rev().find(|job| is_run(job) && is_wanted(job)).cloned()
    }

    /// Registers the metrics of jobs.
    pub fn register_metrics(self: &Arc<Self>, registry: &mut Registry) {
        let help = "Warm-ups that ended, by state";
        registry.register("larder_jobs_ended", help, self.shared.ended_jobs.0.clone());
        registry.register_collector(Box::new(RunningJobs(Arc::clone(self))));
    }
}

/// The gauge of running jobs, read when it is scraped.
#[derive(Debug)]
struct RunningJobs(Arc<Jobs>);

impl Collector for RunningJobs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let count = ConstGauge::new(running(&self.0.jobs.lock()) as u64);
        let encoder =
            encoder.encode_descriptor("larder_jobs_running", "Warm-ups that run.", None, MetricType::Gauge)?;
        count.encode(encoder)
    }
}

fn running(jobs: &VecDeque<Arc<RunningJob>>) -> usize {
    jobs.iter().filter(|job| !job.has_ended()).count()
}

/// The records of a store.
#[derive(Debug, Clone)]
pub(super) struct JobRecords(pub(super) Arc<Store>);

/// The record of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobRecord<W = WarmUp> {
    /// The report at the time of writing. The items of a running job are omitted: the resumed job resolves them again.
    pub(super) job: Job,
    #[serde(rename = "beginning")]
    pub(super) origin: JobOrigin,
    /// The package of each item.
    #[serde(rename = "about")]
    pub(super) subjects: Vec<ItemSubject>,
    /// The order to resume; `None` once the job has ended.
    pub(super) warm_up: Option<W>,
}

impl JobRecords {
    /// Writes a job's record durably. After a disk error the job runs, but does not resume after a restart.
    pub(super) async fn write(&self, id: JobId, record: JobRecord<Arc<WarmUp>>) {
        if let Err(error) = self.put(id, record).await {
            tracing::warn!(job = %id, %error, "the order of a job could not be recorded; after a restart its previous record, if any, is used");
        }
    }

    /// Writes the result of a job. If the disk refuses, the old record is removed: it would resume a job that a person
    /// may have stopped.
    pub(super) async fn write_end(&self, id: JobId, record: JobRecord<Arc<WarmUp>>) {
        let Err(error) = self.put(id, record).await else { return };
        match on_disk(&self.0, move |store| store.records.remove(&Key::Job(id.0), Durability::Synced)).await {
            Ok(()) => {
                tracing::warn!(job = %id, %error, "the result of a job could not be recorded; after a restart it is forgotten")
            }
            Err(remove_error) => {
                tracing::error!(job = %id, %error, remove_error, "the result of a job could not be recorded, and its old record could not be removed; after a restart the job resumes");
            }
        }
    }

    /// Removes the records of jobs.
    pub(super) async fn forget_jobs(&self, ids: Vec<JobId>) {
        let removed = on_disk(&self.0, move |store| {
            ids.iter().try_for_each(|id| store.records.remove(&Key::Job(id.0), Durability::Synced))
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "the records of old jobs could not be removed; those jobs are listed again after a restart");
        }
    }

    /// Reads all job records. Unreadable ones are quarantined and logged.
    pub(super) async fn all(&self) -> Vec<(JobId, JobRecord)> {
        let read = on_disk(&self.0, |store| {
            let mut jobs = Vec::new();
            for id in store.records.jobs()? {
                match read(store, &Key::Job(id)) {
                    Ok(record) => jobs.extend(record.map(|record| (JobId(id), record))),
                    Err(error) => {
                        tracing::error!(job = hex::encode(id), %error, "the record of a job cannot be read; the job is not listed")
                    }
                }
            }
            Ok(jobs)
        });
        read.await.unwrap_or_else(|error| {
            tracing::error!(%error, "the jobs of an earlier run cannot be read; none of them is listed");
            Vec::new()
        })
    }

    /// Reads the shared record of all recurring jobs; the default if there is none.
    pub(super) async fn recurring<T: DeserializeOwned + Default + Send + 'static>(&self) -> T {
        let read = on_disk(&self.0, |store| read(store, &Key::RecurringJobs));
        read.await
            .unwrap_or_else(|error| {
                tracing::error!(%error, "the last runs of the recurring warm-ups cannot be read; every warm-up runs now");
                None
            })
            .unwrap_or_default()
    }

    /// Reads the record of all recurring jobs, as the other replicas have it at this moment.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) async fn recurring_now<T: DeserializeOwned + Default + Send + 'static>(&self) -> Result<T, String> {
        let read = on_disk(&self.0, |store| {
            store.records.refresh(RecordScope::Group(&Key::RecurringJobs.group()))?;
            read(store, &Key::RecurringJobs)
        });
        read.await.map(Option::unwrap_or_default)
    }

    /// Changes the record of all recurring jobs. Returns true if it is written.
    pub(super) async fn change_recurring<T>(&self, change: impl Fn(&mut T) + Send + 'static) -> bool
    where
        T: Serialize + DeserializeOwned + Default,
    {
        let changing = on_disk(&self.0, move |store| {
            let key = Key::RecurringJobs;
            store.records.change(&key, |step| {
                let mut runs: T = step.read_as(&key, |record| parse(&key, &record))?.intact().unwrap_or_default();
                change(&mut runs);
                step.put_json(&key, &runs, Durability::Synced);
                Ok(())
            })
        });
        let changed = changing.await;
        if let Err(error) = &changed {
            tracing::warn!(%error, "the last run of a recurring warm-up could not be recorded; it is recorded later, or it may run again");
        }
        changed.is_ok()
    }

    /// Writes the record of a job, unless it has ended by its record.
    async fn put(&self, id: JobId, record: JobRecord<Arc<WarmUp>>) -> Result<(), String> {
        on_disk(&self.0, move |store| {
            let (JobRecord { job, origin, subjects, warm_up }, key) = (record, Key::Job(id.0));
            let has_ended = job.state.has_ended();
            let record = to_json(&JobRecord { job, origin, subjects, warm_up: warm_up.as_deref() });
            store.records.change(&key, |step| {
                let recorded: Option<JobRecord> = step.read_as(&key, |record| parse(&key, &record))?.intact();
                if recorded.is_none_or(|recorded| !recorded.job.state.has_ended() || has_ended) {
                    step.put(&key, record.clone(), Durability::Synced, IndexEntry::Unindexed);
                }
                Ok(())
            })
        })
        .await
    }
}

fn read<T: DeserializeOwned>(store: &Store, key: &Key) -> Result<Option<T>, StoreError> {
    Ok(store.records.read_as(key, |record| parse(key, &record))?.intact())
}

fn parse<T: DeserializeOwned>(key: &Key, record: &[u8]) -> Option<T> {
    let parsed = serde_json::from_slice(record);
    parsed.inspect_err(|error| tracing::error!(%key, %error, "a record cannot be parsed; it is quarantined")).ok()
}
