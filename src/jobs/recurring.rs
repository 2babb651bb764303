//! Recurring warm-ups (`[[warm]]`): at the start unless the last run was recent, and then once in each interval. A
//! failed one is retried sooner.

mod last;
mod order;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

pub use self::last::{LastRun, RecurringState};

use self::last::{LastRuns, with_jitter};
use super::job_report::JobSummary;
use super::list::{JobStartError, Jobs};
use super::record::JobRecords;
use super::running_job::RunningJob;
use super::warm::WarmUp;
use crate::address::Hostname;
use crate::clock::Clock;
use crate::config::{Config, RecurringWarmUp};
use crate::store::Store;
use crate::supervisor::{Supervisor, Task};

/// The shortest delay of a retry.
pub(super) const TRIES_AGAIN_AFTER: Duration = Duration::from_secs(5 * 60);

/// The recurring warm-ups of one larder.
#[derive(Debug)]
pub struct Recurring {
    jobs: Arc<Jobs>,
    clock: Clock,
    supervisor: Supervisor,
    in_force: watch::Sender<Arc<ConfiguredJobs>>,
    last: Mutex<LastRuns>,
    /// Locked while the records are written.
    writing: tokio::sync::Mutex<()>,
    /// Locked by the run that waits for a place among the jobs.
    beginning: tokio::sync::Mutex<()>,
}

/// The recurring jobs of the current configuration.
#[derive(Debug, PartialEq, Eq)]
struct ConfiguredJobs {
    entries: Vec<RecurringWarmUp>,
    default_host: Hostname,
    offline: bool,
}

impl ConfiguredJobs {
    fn of(config: &Config) -> Arc<Self> {
        let (entries, default_host) = (config.warm.clone(), config.default_host());
        Arc::new(Self { entries, default_host, offline: config.network.offline })
    }
}

impl Recurring {
    /// Creates the recurring jobs of a configuration, with their recorded runs.
    pub async fn new(jobs: Arc<Jobs>, clock: Clock, config: &Config, supervisor: Supervisor) -> Arc<Self> {
        let last = match jobs.records() {
            Some(records) => records.recurring().await,
            None => LastRuns::default(),
        };
        let in_force = watch::Sender::new(ConfiguredJobs::of(config));
        let [writing, beginning] = <[tokio::sync::Mutex<()>; 2]>::default();
        Arc::new(Self { jobs, clock, supervisor, in_force, last: Mutex::new(last), writing, beginning })
    }

    /// The recurring jobs of a configuration whose larder does not run, from the records in its store.
    pub async fn at_rest(store: Arc<Store>, clock: &Clock, config: &Config) -> Vec<RecurringState> {
        let last: LastRuns = JobRecords::of(store).recurring().await;
        let state = |entry| RecurringState::of(entry, last.get(&last::key(entry)), None, false, clock.now());
        config.warm.iter().map(state).collect()
    }

    /// Applies another configuration. A running job ends as it began.
    pub fn renew(&self, config: &Config) {
        self.in_force.send_replace(ConfiguredJobs::of(config));
    }

    /// The recurring warm-ups and their last runs.
    pub fn states(&self) -> Vec<RecurringState> {
        let in_force = self.in_force.borrow().clone();
        in_force.entries.iter().for_each(|entry| self.record_finished_run(&last::key(entry)));
        let last = self.last.lock();
        let state = in_force.entries.iter().map(|entry| {
            let key = last::key(entry);
            let run = self.jobs.run_of(&key).map(|run| run.id.to_string());
            RecurringState::of(entry, last.get(&key), run, !in_force.offline, self.clock.now())
        });
        state.collect()
    }

    /// Runs each recurring warm-up in its own task, until dropped; none while larder is offline.
    pub async fn run(self: Arc<Self>) {
        let mut in_force = self.in_force.subscribe();
        let mut tasks = JoinSet::new();
        let mut at_work: HashMap<String, (RecurringWarmUp, Hostname, AbortHandle)> = HashMap::new();
        loop {
            let now = in_force.borrow_and_update().clone();
            let wanted: HashMap<String, &RecurringWarmUp> = match now.offline {
                true => HashMap::new(),
                false => now.entries.iter().map(|entry| (last::key(entry), entry)).collect(),
            };
            at_work.retain(|key, (entry, host, task)| {
                let stays = wanted.get(key).is_some_and(|wanted| *wanted == entry) && *host == now.default_host;
                if !stays {
                    task.abort();
                }
                stays
            });
            for (key, entry) in wanted {
                let (entry, host) = (entry.clone(), now.default_host.clone());
                at_work.entry(key.clone()).or_insert_with(|| {
                    let (recurring, warm, default_host) = (Arc::clone(&self), entry.clone(), host.clone());
                    let start =
                        move || Arc::clone(&recurring).run_scheduler(key.clone(), warm.clone(), default_host.clone());
                    let task = self.supervisor.spawn(&mut tasks, Task::RecurringWarmUps, start);
                    (entry, host, task)
                });
            }
            while tasks.try_join_next().is_some() {}
            // The sender exists.
            if in_force.changed().await.is_err() {
                return;
            }
        }
    }

    async fn run_scheduler(self: Arc<Self>, key: String, entry: RecurringWarmUp, default_host: Hostname) {
        loop {
            self.record_finished_run(&key);
            // After a restart the run resumes by itself.
            let run = match self.jobs.run_of(&key) {
                Some(run) => Ok(run),
                None => {
                    self.until_due(&key, entry.every).await;
                    self.begin(&key, &entry, &default_host).await
                }
            };
            let ended = match run {
                Ok(run) => Ok(run.wait().await),
                Err(RunNotStarted::Stopping) => return,
                Err(RunNotStarted::Why(reason)) => Err(reason),
            };
            self.has_run(&key, ended).await;
        }
    }

    /// Records a run that ended while a reload or restart came between.
    fn record_finished_run(&self, key: &str) {
        if let Some(run) = self.jobs.ended_run_of(key) {
            self.last.lock().record_finished_run(key, run, self.clock.now());
        }
    }

    async fn until_due(&self, key: &str, every: Duration) {
        let due = |now| self.last.lock().due(key, every, now);
        let now = self.clock.now();
        let Some(first) = due(now) else { return };
        let jitter = with_jitter(first, now).since(first);
        self.clock.until_due(|now| due(now).map_or(now, |due| due.after(jitter))).await;
    }

    /// Begins a run once there is a place for it.
    async fn begin(
        &self,
        key: &str,
        entry: &RecurringWarmUp,
        default_host: &Hostname,
    ) -> Result<Arc<RunningJob>, RunNotStarted> {
        let _one_after_the_other = self.beginning.lock().await;
        loop {
            self.jobs.until_recurring_slot().await;
            match self.try_start(key, entry, default_host).await {
                // Another task took the place meanwhile.
                None => {}
                Some(begun) => return begun,
            }
        }
    }

    /// Begins a run if there is a place for it.
    async fn try_start(
        &self,
        key: &str,
        entry: &RecurringWarmUp,
        default_host: &Hostname,
    ) -> Option<Result<Arc<RunningJob>, RunNotStarted>> {
        let (reading, host, pin) = (entry.clone(), default_host.clone(), entry.pin);
        let read = tokio::task::spawn_blocking(move || order::read(&reading, &host)).await;
        let order = read.unwrap_or_else(|error| Err(vec![error.to_string()]));
        let warm_up = order.and_then(|order| WarmUp::of_order(order, pin));
        let warm_up = match warm_up {
            Ok(warm_up) => warm_up,
            Err(problems) => return Some(Err(RunNotStarted::Why(problems.join("; ")))),
        };
        match self.jobs.begin(warm_up, Some(key.to_owned())).await {
            Ok(run) => Some(Ok(run)),
            Err(JobStartError::TooMany) => None,
            Err(JobStartError::Stopping) => Some(Err(RunNotStarted::Stopping)),
            Err(reason @ JobStartError::Random) => Some(Err(RunNotStarted::Why(reason.to_string()))),
        }
    }

    async fn has_run(&self, key: &str, ended: Result<JobSummary, String>) {
        if let Err(reason) = &ended {
            tracing::error!(reason, "a recurring warm-up could not start; it is tried again");
        }
        let _one_after_the_other = self.writing.lock().await;
        let written = {
            let in_force = self.in_force.borrow().clone();
            let mut last = self.last.lock();
            last.put(key, ended, self.clock.now());
            last.keep_only(in_force.entries.iter().map(last::key));
            last.clone()
        };
        if let Some(records) = self.jobs.records() {
            records.write_recurring(written).await;
        }
    }
}

/// Reasons why a run did not begin.
enum RunNotStarted {
    Stopping,
    Why(String),
}
