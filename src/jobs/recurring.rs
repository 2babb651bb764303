//! Recurring warm-ups (`[[warm]]`): at the start unless the last run was recent, and then once in each interval. A
//! failed run is retried sooner. Of the replicas of a fleet, one runs it for all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::job_report::{ItemCounts, JobState, JobSummary};
use super::list::{JobRecords, JobStartError, Jobs};
use super::on_disk;
use super::running_job::RunningJob;
use super::warm::WarmUp;
use crate::address::{Hostname, PackageSelector};
use crate::clock::{Clock, Timestamp};
use crate::config::{Config, RecurringWarmTarget, RecurringWarmUp};
use crate::requirements::{self, ArgumentKind, CommandLineValues, Configurations, Order, OrderEntry, disk, lock_file};
use crate::store::{Fleet, Store};
use crate::supervisor::{Supervisor, Task};

/// The shortest delay of a retry.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5 * 60);
/// The random delay is at most the interval divided by this, so that several larders do not start at once.
const JITTER_DIVISOR: u32 = 20;
/// The time between two words with the other replicas. A claim lasts for half a minute.
const TALK_INTERVAL: Duration = Duration::from_secs(5);
/// The time after which a fleet forgets the last run of a warm-up that a replica has not configured.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);
/// The number of times that consecutive failures double the delay of a retry.
const MAX_DOUBLINGS: u32 = 16;

/// The recurring warm-ups of one larder.
#[derive(Debug)]
pub struct Recurring {
    jobs: Arc<Jobs>,
    records: JobRecords,
    clock: Clock,
    supervisor: Supervisor,
    configured: watch::Sender<Arc<ConfiguredJobs>>,
    last_runs: Mutex<LastRuns>,
    /// True if the record lacks something of them.
    is_unrecorded: AtomicBool,
    /// The warm-ups that this replica has claimed, by key.
    claimed: Mutex<BTreeSet<String>>,
    /// The URLs of the replicas that have claimed work, by the name of the work.
    elsewhere: Mutex<BTreeMap<String, String>>,
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
    pub async fn new(jobs: Arc<Jobs>, store: Arc<Store>, config: &Config, supervisor: Supervisor) -> Arc<Self> {
        let (records, clock) = (JobRecords(store), jobs.shared.clock.clone());
        let configured = watch::Sender::new(ConfiguredJobs::of(config));
        let (last_runs, elsewhere) = (Mutex::new(records.recurring().await), Mutex::default());
        let (is_unrecorded, claimed, start_lock) = Default::default();
        Arc::new(Self {
            jobs,
            records,
            clock,
            supervisor,
            configured,
            last_runs,
            is_unrecorded,
            claimed,
            elsewhere,
            start_lock,
        })
    }

    /// The recurring jobs of a configuration whose larder does not run, from the records in its store.
    pub async fn states_from_store(store: Arc<Store>, clock: &Clock, config: &Config) -> Vec<RecurringState> {
        let last_runs: LastRuns = JobRecords(store).recurring().await;
        let state = |entry| RecurringState::of(entry, last_runs.0.get(&key_of(entry)), None, None, false, clock.now());
        config.warm.iter().map(state).collect()
    }

    /// Applies a reloaded configuration. A running job continues with the previous one.
    pub fn reload(&self, config: &Config) {
        let reloaded = ConfiguredJobs::of(config);
        self.configured.send_if_modified(|configured| {
            let is_changed = *configured != reloaded;
            *configured = reloaded;
            is_changed
        });
    }

    /// The recurring warm-ups and their last runs.
    pub fn states(&self) -> Vec<RecurringState> {
        let configured = self.configured.borrow().clone();
        configured.entries.iter().for_each(|entry| self.record_finished_run(&key_of(entry)));
        let last_runs = self.last_runs.lock();
        let state = configured.entries.iter().map(|entry| {
            let key = key_of(entry);
            let run = self.jobs.current_run(&key).map(|run| run.id.to_string());
            let elsewhere = self.elsewhere.lock().get(&work_of(&key)).cloned();
            RecurringState::of(entry, last_runs.0.get(&key), run, elsewhere, !configured.offline, self.clock.now())
        });
        state.collect()
    }

    /// Runs each recurring warm-up in its own task, until dropped; none while larder is offline. A changed configuration
    /// starts all tasks anew, and each continues with the run that it finds.
    pub async fn run(self: Arc<Self>) {
        let mut configured = self.configured.subscribe();
        loop {
            let ConfiguredJobs { entries, default_host, offline } = &*configured.borrow_and_update().clone();
            let entries: HashMap<String, &RecurringWarmUp> =
                entries.iter().filter(|_| !offline).map(|entry| (key_of(entry), entry)).collect();
            let mut tasks = JoinSet::new();
            for (key, entry) in entries {
                let (recurring, entry, host) = (Arc::clone(&self), entry.clone(), default_host.clone());
                let start = move || Arc::clone(&recurring).run_scheduler(key.clone(), entry.clone(), host.clone());
                self.supervisor.spawn(&mut tasks, Task::RecurringWarmUps, start);
            }
            loop {
                tokio::select! {
                    // `self` owns the sender, so the channel stays open.
                    changed = configured.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    () = tokio::time::sleep(TALK_INTERVAL) => self.talk_to_others().await,
                }
            }
            tasks.shutdown().await;
        }
    }

    async fn run_scheduler(self: Arc<Self>, key: String, entry: RecurringWarmUp, default_host: Hostname) {
        loop {
            self.record_finished_run(&key);
            // A run that a restart interrupted has resumed by itself.
            let run = match self.jobs.current_run(&key) {
                Some(run) => Ok(Some(run)),
                None => {
                    self.until_due(&key, entry.every).await;
                    self.begin(&key, &entry, &default_host).await
                }
            };
            let ended = match run {
                Ok(Some(run)) => Ok(run.wait().await),
                Ok(None) => {
                    // Larder stops, or the warm-up is that of another replica.
                    tokio::time::sleep(TALK_INTERVAL).await;
                    continue;
                }
                Err(reason) => Err(reason),
            };
            self.record_run(&key, ended).await;
            self.give_up(&key).await;
        }
    }

    /// Claims what runs here anew, gives up what does not, records what could not be recorded, and hears of the runs of others. Does
    /// nothing for a larder that runs alone, but for a record that the disk refused.
    async fn talk_to_others(&self) {
        if self.is_unrecorded.load(Ordering::Acquire) {
            self.record().await;
        }
        if self.records.0.records.fleet().is_none() {
            return;
        }
        let claimed: Vec<String> = self.claimed.lock().iter().cloned().collect();
        if claimed.is_empty() && self.configured.borrow().entries.is_empty() {
            return;
        }
        for key in claimed {
            if self.jobs.current_run(&key).is_some() {
                self.claim(&key).await;
            } else if let Ok(_none_begins) = self.start_lock.try_lock() {
                self.give_up(&key).await;
            }
        }
        if let Err(error) = self.hear_of_runs().await {
            tracing::debug!(%error, "nothing was heard of the recurring warm-ups of other replicas");
        }
        let held =
            on_disk(&self.records.0, |store| store.records.fleet().map_or(Ok(Vec::new()), Fleet::claims_of_others));
        if let Ok(held) = held.await {
            *self.elsewhere.lock() = held.into_iter().collect();
        }
    }

    /// Claims a warm-up for half a minute. Returns false if another replica has it, or nobody says.
    async fn claim(&self, key: &str) -> bool {
        let work = work_of(key);
        let claimed =
            on_disk(&self.records.0, move |store| store.records.fleet().map_or(Ok(true), |fleet| fleet.claim(&work)));
        match claimed.await {
            Ok(is_ours) => {
                if is_ours {
                    self.claimed.lock().insert(key.to_owned());
                }
                is_ours
            }
            Err(error) => {
                tracing::debug!(%error, "a recurring warm-up waits for the database");
                false
            }
        }
    }

    /// Leaves a warm-up to the other replicas, once its run is recorded. Otherwise this is tried again, or the claim ends by itself.
    async fn give_up(&self, key: &str) {
        if self.is_unrecorded.load(Ordering::Acquire) {
            return;
        }
        let work = work_of(key);
        let given_up =
            on_disk(&self.records.0, move |store| store.records.fleet().map_or(Ok(()), |fleet| fleet.give_up(&work)));
        match given_up.await {
            Ok(()) => drop(self.claimed.lock().remove(key)),
            Err(error) => tracing::debug!(%error, "a claim of a recurring warm-up ends in half a minute"),
        }
    }

    /// Takes over what other replicas have recorded.
    ///
    /// # Errors
    /// Nobody says what they have recorded.
    async fn hear_of_runs(&self) -> Result<(), String> {
        if self.records.0.records.fleet().is_none() {
            return Ok(());
        }
        let recorded: LastRuns = self.records.recurring_now().await?;
        self.last_runs.lock().take_recorded(recorded);
        Ok(())
    }

    /// Records a run that ended unobserved, because of a reload or restart.
    fn record_finished_run(&self, key: &str) {
        if let Some(run) = self.jobs.last_ended_run(key)
            && self.last_runs.lock().record_finished_run(key, run.summary(), self.clock.now())
        {
            self.is_unrecorded.store(true, Ordering::Release);
        }
    }

    async fn until_due(&self, key: &str, every: Duration) {
        let due = |now| self.last_runs.lock().due(key, every, now);
        let now = self.clock.now();
        let Some(due_at_start) = due(now) else { return };
        let jitter = with_jitter(due_at_start, now).since(due_at_start);
        self.clock.until_due(|now| due(now).map_or(now, |due| due.after(jitter))).await;
    }

    /// Begins a run once a slot is free; `None` if larder stops, if another replica has the warm-up, or if one has run it meanwhile.
    ///
    /// # Errors
    /// The reason why the run cannot begin.
    async fn begin(
        &self,
        key: &str,
        entry: &RecurringWarmUp,
        default_host: &Hostname,
    ) -> Result<Option<Arc<RunningJob>>, String> {
        let _start_lock = self.start_lock.lock().await;
        loop {
            self.jobs.until_recurring_slot().await;
            // In this order: what another one has recorded before it gave up is heard.
            if !self.claim(key).await || self.hear_of_runs().await.is_err() || !self.is_due(key, entry.every) {
                self.give_up(key).await;
                return Ok(None);
            }
            let (blocking_entry, host) = (entry.clone(), default_host.clone());
            let read = tokio::task::spawn_blocking(move || read_order(&blocking_entry, &host)).await;
            let order = read.unwrap_or_else(|error| Err(vec![error.to_string()]));
            let warm_up = order.and_then(|order| WarmUp::of_order(order, entry.pin));
            match self.jobs.begin(warm_up.map_err(|problems| problems.join("; "))?, Some(key.to_owned())).await {
                Ok(run) => return Ok(Some(run)),
                // Another job took the slot meanwhile.
                Err(JobStartError::TooMany) => {}
                Err(JobStartError::Stopping) => return Ok(None),
                Err(reason @ JobStartError::NoRandomId) => return Err(reason.to_string()),
            }
        }
    }

    fn is_due(&self, key: &str, every: Duration) -> bool {
        let now = self.clock.now();
        self.last_runs.lock().due(key, every, now).is_none_or(|due| due <= now)
    }

    async fn record_run(&self, key: &str, ended: Result<JobSummary, String>) {
        if let Err(reason) = &ended {
            tracing::error!(reason, "a recurring warm-up could not start; larder retries it");
        }
        self.last_runs.lock().put(key, ended, self.clock.now());
        self.record().await;
    }

    /// Writes what is known of the last runs into their record; what is later there stays.
    async fn record(&self) {
        // Before the record is made: what comes meanwhile is recorded the next time.
        self.is_unrecorded.store(false, Ordering::Release);
        let (now, configured) = (self.clock.now(), self.configured.borrow().clone());
        let keys: BTreeSet<String> = configured.entries.iter().map(key_of).collect();
        let kept_for = self.records.0.records.fleet().map_or(Duration::ZERO, |_| FORGOTTEN_AFTER);
        let known = {
            let mut last_runs = self.last_runs.lock();
            last_runs.forget_others(&keys, now, kept_for);
            last_runs.clone()
        };
        let add = move |runs: &mut LastRuns| {
            runs.take_recorded(known.clone());
            runs.forget_others(&keys, now, kept_for);
        };
        if !self.records.change_recurring(add).await {
            self.is_unrecorded.store(true, Ordering::Release);
        }
    }
}

/// The last run of a recurring warm-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastRun {
    /// When the run ended.
    pub ended: Timestamp,
    /// The result.
    pub state: JobState,
    /// ID of the run's job; `None` if the run did not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Archives of the run, by state.
    pub items: ItemCounts,
    /// The reason why the run did not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Consecutive failures.
    pub failures: u32,
}

/// A recurring warm-up in `GET /admin/v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecurringState {
    /// The configured addresses and paths.
    #[serde(rename = "what")]
    pub targets: Vec<String>,
    /// Interval between the end of a run and the next, in seconds.
    pub every_seconds: u64,
    /// The job of the current run.
    pub running: Option<String>,
    /// The URL of the replica that runs it for the others, if another one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_on: Option<String>,
    /// The last run; `None` before the first.
    pub last: Option<LastRun>,
    /// The due time; `None` during a run, and where larder is offline or does not run.
    pub next: Option<Timestamp>,
}

impl RecurringState {
    fn of(
        entry: &RecurringWarmUp,
        last: Option<&LastRun>,
        running: Option<String>,
        running_on: Option<String>,
        is_scheduled: bool,
        now: Timestamp,
    ) -> Self {
        let next = (is_scheduled && running.is_none() && running_on.is_none())
            .then(|| last.map_or(now, |last| last.due(entry.every, now)));
        let display_name = |target: &RecurringWarmTarget| match target {
            RecurringWarmTarget::Address(address) => address.clone(),
            RecurringWarmTarget::Path(path) => path.display().to_string(),
        };
        let targets = entry.targets.iter().map(display_name).collect();
        Self { targets, every_seconds: entry.every.as_secs(), running, running_on, last: last.cloned(), next }
    }
}

impl LastRun {
    /// The due time of the next run.
    fn due(&self, every: Duration, now: Timestamp) -> Timestamp {
        let pause = match self.failures.checked_sub(1) {
            None => every,
            Some(doublings) => {
                let delay = MIN_RETRY_DELAY.saturating_mul(1 << doublings.min(MAX_DOUBLINGS));
                delay.min(every.max(MIN_RETRY_DELAY))
            }
        };
        // A clock that was set back must not lengthen the pause.
        self.ended.min(now).after(pause)
    }
}

/// The last runs of all recurring warm-ups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct LastRuns(BTreeMap<String, LastRun>);

impl LastRuns {
    /// The next due time; `None` before the first run.
    ///
    /// A run that ended in the future, because the clock was set back, counts as ended now. Otherwise each call would
    /// return a later time.
    fn due(&mut self, key: &str, every: Duration, now: Timestamp) -> Option<Timestamp> {
        let last = self.0.get_mut(key)?;
        last.ended = last.ended.min(now);
        Some(last.due(every, now))
    }

    /// Records a run that ended unobserved, unless a later run is recorded. Returns true if it was not.
    fn record_finished_run(&mut self, key: &str, run: JobSummary, now: Timestamp) -> bool {
        let is_new = self.0.get(key).is_none_or(|last| run.ended > Some(last.ended));
        if is_new {
            self.put(key, Ok(run), now);
        }
        is_new
    }

    /// Records a finished run, or the reason why it did not begin. A run counts once, however often it is recorded.
    fn put(&mut self, key: &str, ended: Result<JobSummary, String>, now: Timestamp) {
        let previous = self.0.get(key);
        if let (Some(last), Ok(run)) = (previous, &ended)
            && last.job.as_ref() == Some(&run.id)
        {
            return;
        }
        let failures = previous.map_or(0, |last| last.failures).saturating_add(1);
        let last = match ended {
            Ok(JobSummary { id, state, ended, items, .. }) => LastRun {
                ended: ended.unwrap_or(now),
                state,
                job: Some(id),
                items,
                error: None,
                failures: if state == JobState::Failed { failures } else { 0 },
            },
            Err(error) => LastRun {
                ended: now,
                state: JobState::Failed,
                job: None,
                items: ItemCounts::default(),
                error: Some(error),
                failures,
            },
        };
        self.0.insert(key.to_owned(), last);
    }

    /// Takes over runs that ended later than those that are known.
    fn take_recorded(&mut self, recorded: Self) {
        for (key, run) in recorded.0 {
            if self.0.get(&key).is_none_or(|last| last.ended < run.ended) {
                self.0.insert(key, run);
            }
        }
    }

    /// Removes the runs of warm-ups that are not among these `keys`, and ended this long ago: a replica with another configuration may
    /// have the others.
    fn forget_others(&mut self, keys: &BTreeSet<String>, now: Timestamp, kept_for: Duration) {
        self.0.retain(|key, last| keys.contains(key) || now.since(last.ended) < kept_for);
    }
}

/// Key of a recurring warm-up, from all its settings but the interval.
fn key_of(entry: &RecurringWarmUp) -> String {
    let RecurringWarmUp { targets, platforms, every: _, pin, client } = entry;
    let named = targets.iter().map(|target| match target {
        RecurringWarmTarget::Address(address) => format!("a{address}"),
        RecurringWarmTarget::Path(path) => format!("p{}", path.display()),
    });
    let named: Vec<String> = named.collect();
    let platforms: Vec<String> = platforms.iter().map(ToString::to_string).collect();
    let text = format!("{named:?}{platforms:?}{pin}{client:?}");
    blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect()
}

/// The name of a warm-up among the work of all replicas.
fn work_of(key: &str) -> String {
    format!("warm-up {key}")
}

/// Adds jitter to a due time in the future.
fn with_jitter(due: Timestamp, now: Timestamp) -> Timestamp {
    let mut random = [0u8; 4];
    // Without random bytes there is no jitter.
    let _ = aws_lc_rs::rand::fill(&mut random);
    let fraction = f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX);
    due.after((due.since(now) / JITTER_DIVISOR).mul_f64(fraction))
}

/// Builds the order of a recurring warm-up. Its files are read again for each run.
///
/// # Errors
/// Every problem of the named files.
fn read_order(entry: &RecurringWarmUp, default_host: &Hostname) -> Result<Order, Vec<String>> {
    let (mut given, mut folders, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    let configurations = |files, roots| Configurations::new(files, roots, entry.client).map(OrderEntry::Configurations);
    for target in &entry.targets {
        let read = match target {
            RecurringWarmTarget::Address(address) => PackageSelector::parse(address, default_host)
                .map(|selector| OrderEntry::Address { what: selector, platforms: Vec::new() })
                .map_err(|bad| bad.to_string()),
            RecurringWarmTarget::Path(path) => match ArgumentKind::of_path(path) {
                Some(ArgumentKind::Folder) => {
                    folders.push(path.clone());
                    continue;
                }
                Some(ArgumentKind::Tar) => disk::read_tar(path).and_then(|files| {
                    configurations(files, Vec::new()).map_err(|reason| format!("{}: {reason}", path.display()))
                }),
                // The configuration accepts no other kind. An absent path is reported as one.
                _ => read_lock_file(path),
            },
        };
        read.map_or_else(|reason| problems.push(reason), |order_entry| given.push(order_entry));
    }
    if !folders.is_empty() {
        let collected = requirements::collect(&folders, &CommandLineValues::default());
        let read = collected.and_then(|collected| configurations(collected.files, collected.roots));
        read.map_or_else(|reason| problems.push(reason), |order_entry| given.push(order_entry));
    }
    if problems.is_empty() { Order::new(given, entry.platforms.clone()) } else { Err(problems) }
}

fn read_lock_file(path: &Path) -> Result<OrderEntry, String> {
    let name = path.display().to_string();
    let text = disk::read_lock_file(path)?;
    let locked = lock_file::parse(text.as_bytes()).map_err(|bad| format!("{name}: {}", bad.problems().join("; ")))?;
    Ok(OrderEntry::LockFile { name, locked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn summary(state: JobState) -> JobSummary {
        JobSummary {
            id: "1".to_owned(),
            state,
            started: Timestamp(900),
            ended: Some(Timestamp(1000)),
            ordered: vec![],
            platforms: vec![],
            pin: false,
            resolving: false,
            unconfirmed: Vec::new(),
            items: ItemCounts::default(),
        }
    }

    #[test]
    fn retries_of_a_failed_run_back_off_up_to_the_configured_interval() {
        let mut runs = LastRuns::default();
        let pauses: Vec<u64> = (0..12)
            .map(|number| {
                runs.put("a", Ok(JobSummary { id: number.to_string(), ..summary(JobState::Failed) }), Timestamp(1000));
                runs.0.get("a").unwrap().due(DAY, Timestamp(1000)).0 - 1000
            })
            .collect();
        assert_eq!(pauses[..4], [300, 600, 1200, 2400]);
        assert_eq!(pauses[11], DAY.as_secs());
        runs.put("a", Ok(JobSummary { id: "done".to_owned(), ..summary(JobState::Done) }), Timestamp(1000));
        assert_eq!(runs.0.get("a").unwrap().due(DAY, Timestamp(5000)).0, 1000 + DAY.as_secs());
        runs.put("a", Err("no such folder".to_owned()), Timestamp(2000));
        assert_eq!(runs.0.get("a").unwrap().due(DAY, Timestamp(2000)).0, 2300);
    }

    #[test]
    fn a_clock_set_back_does_not_lengthen_the_pause() {
        let mut runs = LastRuns::default();
        runs.put("a", Ok(summary(JobState::Done)), Timestamp(1000));
        assert_eq!(runs.0.get("a").unwrap().due(DAY, Timestamp(10)).0, 10 + DAY.as_secs());
    }

    #[tokio::test]
    async fn a_clock_set_back_during_the_wait_does_not_lengthen_it() {
        let clock = Clock::system();
        let year = 365 * DAY;
        clock.advance(year);
        let ended = clock.now();
        let mut runs = LastRuns::default();
        runs.put("a", Ok(JobSummary { ended: Some(ended), ..summary(JobState::Done) }), ended);
        let waiting = clock.until_due(|now| runs.due("a", DAY, now).unwrap());
        let set_back = async {
            tokio::task::yield_now().await;
            clock.set_back(year);
            tokio::task::yield_now().await;
            clock.advance(DAY + Duration::from_secs(1));
        };
        let both = async { tokio::join!(waiting, set_back) };
        tokio::time::timeout(Duration::from_secs(20), both)
            .await
            .expect("the wait took the year by which the clock was set back");
        assert!(clock.now() < ended);
    }

    #[test]
    fn an_unobserved_run_is_recorded_once_and_never_over_a_later_one() {
        let mut runs = LastRuns::default();
        let run = |id: &str, ended| JobSummary {
            id: id.to_owned(),
            ended: Some(Timestamp(ended)),
            ..summary(JobState::Failed)
        };
        runs.record_finished_run("a", run("1", 1000), Timestamp(1500));
        runs.put("a", Ok(run("1", 1000)), Timestamp(1600));
        assert_eq!((runs.0.get("a").unwrap().failures, runs.0.get("a").unwrap().ended), (1, Timestamp(1000)));
        runs.put("a", Err("no such folder".to_owned()), Timestamp(2000));
        runs.record_finished_run("a", run("1", 1000), Timestamp(2500));
        assert_eq!((runs.0.get("a").unwrap().failures, runs.0.get("a").unwrap().job.as_deref()), (2, None));
        runs.record_finished_run("a", run("2", 3000), Timestamp(3500));
        assert_eq!((runs.0.get("a").unwrap().failures, runs.0.get("a").unwrap().job.as_deref()), (3, Some("2")));
    }

    #[test]
    fn jitter_adds_at_most_a_twentieth_and_never_makes_a_run_early() {
        for _ in 0..100 {
            let due = with_jitter(Timestamp(1000 + DAY.as_secs()), Timestamp(1000));
            assert!((DAY.as_secs()..=DAY.as_secs() * 21 / 20).contains(&(due.0 - 1000)), "{due:?}");
            assert_eq!(with_jitter(Timestamp(5), Timestamp(1000)), Timestamp(5));
        }
    }
}
