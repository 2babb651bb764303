//! Recurring warm-ups (`[[warm]]`): at the start unless the last run was recent, and then once in each interval. A
//! failed run is retried sooner.

mod last;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use self::last::{LastRuns, with_jitter};
use super::job_report::JobSummary;
use super::list::{JobStartError, Jobs};
use super::record::JobRecords;
use super::running_job::RunningJob;
use super::warm::WarmUp;
use crate::address::{Hostname, PackageSelector};
use crate::clock::Clock;
use crate::config::{Config, RecurringWarmTarget, RecurringWarmUp};
use crate::requirements::{self, ArgumentKind, Configurations, Order, OrderEntry, file, lock_file};
use crate::store::Store;
use crate::supervisor::{Supervisor, Task};

pub use self::last::{LastRun, RecurringState};

/// The shortest delay of a retry.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_secs(5 * 60);

/// The recurring warm-ups of one larder.
#[derive(Debug)]
pub struct Recurring {
    jobs: Arc<Jobs>,
    clock: Clock,
    supervisor: Supervisor,
    configured: watch::Sender<Arc<ConfiguredJobs>>,
    last_runs: Mutex<LastRuns>,
    /// Locked while the records are written.
    write_lock: tokio::sync::Mutex<()>,
    /// Locked by the run that waits for a free slot.
    start_lock: tokio::sync::Mutex<()>,
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
        let last_runs = match jobs.records() {
            Some(records) => records.recurring().await,
            None => LastRuns::default(),
        };
        let configured = watch::Sender::new(ConfiguredJobs::of(config));
        let [write_lock, start_lock] = <[tokio::sync::Mutex<()>; 2]>::default();
        Arc::new(Self { jobs, clock, supervisor, configured, last_runs: Mutex::new(last_runs), write_lock, start_lock })
    }

    /// The recurring jobs of a configuration whose larder does not run, from the records in its store.
    pub async fn states_from_store(store: Arc<Store>, clock: &Clock, config: &Config) -> Vec<RecurringState> {
        let last_runs: LastRuns = JobRecords::of(store).recurring().await;
        let state = |entry| RecurringState::of(entry, last_runs.get(&last::key(entry)), None, false, clock.now());
        config.warm.iter().map(state).collect()
    }

    /// Applies a reloaded configuration. A running job continues with the previous one.
    pub fn reload(&self, config: &Config) {
        self.configured.send_replace(ConfiguredJobs::of(config));
    }

    /// The recurring warm-ups and their last runs.
    pub fn states(&self) -> Vec<RecurringState> {
        let configured = self.configured.borrow().clone();
        configured.entries.iter().for_each(|entry| self.record_finished_run(&last::key(entry)));
        let last_runs = self.last_runs.lock();
        let state = configured.entries.iter().map(|entry| {
            let key = last::key(entry);
            let run = self.jobs.unfinished_run(&key).map(|run| run.id.to_string());
            RecurringState::of(entry, last_runs.get(&key), run, !configured.offline, self.clock.now())
        });
        state.collect()
    }

    /// Runs each recurring warm-up in its own task, until dropped; none while larder is offline.
    pub async fn run(self: Arc<Self>) {
        let mut configured = self.configured.subscribe();
        let mut tasks = JoinSet::new();
        let mut running_tasks: HashMap<String, (RecurringWarmUp, Hostname, AbortHandle)> = HashMap::new();
        loop {
            let current = configured.borrow_and_update().clone();
            let wanted: HashMap<String, &RecurringWarmUp> = match current.offline {
                true => HashMap::new(),
                false => current.entries.iter().map(|entry| (last::key(entry), entry)).collect(),
            };
            running_tasks.retain(|key, (entry, host, task)| {
                let is_unchanged =
                    wanted.get(key).is_some_and(|wanted| *wanted == entry) && *host == current.default_host;
                if !is_unchanged {
                    task.abort();
                }
                is_unchanged
            });
            for (key, entry) in wanted {
                let (entry, host) = (entry.clone(), current.default_host.clone());
                running_tasks.entry(key.clone()).or_insert_with(|| {
                    let (recurring, warm, default_host) = (Arc::clone(&self), entry.clone(), host.clone());
                    let start =
                        move || Arc::clone(&recurring).run_scheduler(key.clone(), warm.clone(), default_host.clone());
                    let task = self.supervisor.spawn(&mut tasks, Task::RecurringWarmUps, start);
                    (entry, host, task)
                });
            }
            while tasks.try_join_next().is_some() {}
            // `self` owns the sender, so the channel stays open.
            if configured.changed().await.is_err() {
                return;
            }
        }
    }

    async fn run_scheduler(self: Arc<Self>, key: String, entry: RecurringWarmUp, default_host: Hostname) {
        loop {
            self.record_finished_run(&key);
            // A run that a restart interrupted has resumed by itself.
            let run = match self.jobs.unfinished_run(&key) {
                Some(run) => Ok(run),
                None => {
                    self.until_due(&key, entry.every).await;
                    self.begin(&key, &entry, &default_host).await
                }
            };
            let ended = match run {
                Ok(run) => Ok(run.wait().await),
                Err(RunNotStarted::Stopping) => return,
                Err(RunNotStarted::Failed(reason)) => Err(reason),
            };
            self.record_run(&key, ended).await;
        }
    }

    /// Records a run that ended unobserved, because of a reload or restart.
    fn record_finished_run(&self, key: &str) {
        if let Some(run) = self.jobs.finished_run(key) {
            self.last_runs.lock().record_finished_run(key, run, self.clock.now());
        }
    }

    async fn until_due(&self, key: &str, every: Duration) {
        let due = |now| self.last_runs.lock().due(key, every, now);
        let now = self.clock.now();
        let Some(first) = due(now) else { return };
        let jitter = with_jitter(first, now).since(first);
        self.clock.until_due(|now| due(now).map_or(now, |due| due.after(jitter))).await;
    }

    /// Begins a run once a slot is free.
    async fn begin(
        &self,
        key: &str,
        entry: &RecurringWarmUp,
        default_host: &Hostname,
    ) -> Result<Arc<RunningJob>, RunNotStarted> {
        let _start_lock = self.start_lock.lock().await;
        loop {
            self.jobs.until_recurring_slot().await;
            match self.try_start(key, entry, default_host).await {
                // Another job took the slot meanwhile.
                None => {}
                Some(result) => return result,
            }
        }
    }

    /// Begins a run if a slot is free; `None` otherwise.
    async fn try_start(
        &self,
        key: &str,
        entry: &RecurringWarmUp,
        default_host: &Hostname,
    ) -> Option<Result<Arc<RunningJob>, RunNotStarted>> {
        let (blocking_entry, host, pin) = (entry.clone(), default_host.clone(), entry.pin);
        let read = tokio::task::spawn_blocking(move || read_order(&blocking_entry, &host)).await;
        let order = read.unwrap_or_else(|error| Err(vec![error.to_string()]));
        let warm_up = order.and_then(|order| WarmUp::of_order(order, pin));
        let warm_up = match warm_up {
            Ok(warm_up) => warm_up,
            Err(problems) => return Some(Err(RunNotStarted::Failed(problems.join("; ")))),
        };
        match self.jobs.begin(warm_up, Some(key.to_owned())).await {
            Ok(run) => Some(Ok(run)),
            Err(JobStartError::TooMany) => None,
            Err(JobStartError::Stopping) => Some(Err(RunNotStarted::Stopping)),
            Err(reason @ JobStartError::Random) => Some(Err(RunNotStarted::Failed(reason.to_string()))),
        }
    }

    async fn record_run(&self, key: &str, ended: Result<JobSummary, String>) {
        if let Err(reason) = &ended {
            tracing::error!(reason, "a recurring warm-up could not start; larder retries it");
        }
        let _write_lock = self.write_lock.lock().await;
        let written = {
            let configured = self.configured.borrow().clone();
            let mut last_runs = self.last_runs.lock();
            last_runs.put(key, ended, self.clock.now());
            last_runs.keep_only(configured.entries.iter().map(last::key));
            last_runs.clone()
        };
        if let Some(records) = self.jobs.records() {
            records.write_recurring(written).await;
        }
    }
}

/// Reasons why a run did not begin.
enum RunNotStarted {
    Stopping,
    Failed(String),
}

/// Builds the order of a recurring warm-up. Its files are read again for each run.
///
/// # Errors
/// Every problem of the named files.
fn read_order(entry: &RecurringWarmUp, default_host: &Hostname) -> Result<Order, Vec<String>> {
    let (mut given, mut folders, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for target in &entry.targets {
        let read = match target {
            RecurringWarmTarget::Address(address) => match PackageSelector::parse(address, default_host) {
                Ok(selector) => Ok(OrderEntry::Address { what: selector, platforms: Vec::new() }),
                Err(bad) => Err(vec![bad.to_string()]),
            },
            RecurringWarmTarget::Path(path) => match ArgumentKind::of_path(path) {
                Some(ArgumentKind::Folder) => {
                    folders.push(path.clone());
                    continue;
                }
                Some(ArgumentKind::Tar) => read_tar(path, entry),
                _ => read_lock_file(path),
            },
        };
        match read {
            Ok(order_entry) => given.push(order_entry),
            Err(found) => problems.extend(found),
        }
    }
    if !folders.is_empty() {
        match read_folders(&folders, entry) {
            Ok(configurations) => given.push(configurations),
            Err(reason) => problems.push(reason),
        }
    }
    if problems.is_empty() { Order::new(given, entry.platforms.clone()) } else { Err(problems) }
}

fn read_lock_file(path: &Path) -> Result<OrderEntry, Vec<String>> {
    let name = path.display().to_string();
    let text = file::read_lock_file(path).map_err(|reason| vec![reason])?;
    let with_name = |problem: String| format!("{name}: {problem}");
    let locked = lock_file::parse(text.as_bytes())
        .map_err(|bad| bad.problems().into_iter().map(with_name).collect::<Vec<_>>())?;
    Ok(OrderEntry::LockFile { name, locked })
}

fn read_tar(path: &Path, entry: &RecurringWarmUp) -> Result<OrderEntry, Vec<String>> {
    let files = file::read_tar(path).map_err(|reason| vec![reason])?;
    let configurations = Configurations::new(files, Vec::new(), entry.client);
    Ok(OrderEntry::Configurations(configurations.map_err(|reason| vec![format!("{}: {reason}", path.display())])?))
}

fn read_folders(folders: &[PathBuf], entry: &RecurringWarmUp) -> Result<OrderEntry, String> {
    let collected =
        requirements::collect(folders, &requirements::GivenValues::default()).map_err(|bad| bad.to_string())?;
    Ok(OrderEntry::Configurations(Configurations::new(collected.files, collected.roots, entry.client)?))
}
