//! One running or finished job: updates of its state, its record, and its followers. A follower gets the difference since
//! its last event, never more than the whole job; a slow one gets the latest state and delays no other.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::job_report::{ItemState, Job, JobId, JobItem, JobState, JobSummary};
use super::job_state::{ItemSubject, JobEnd, TrackedJob, shortened};
use super::list::ToPin;
use super::record::{JobRecord, JobRecords};
use super::warm::WarmUp;
use crate::address::Artifact;
use crate::clock::{Clock, Timestamp};
use crate::digest::Digest;
use crate::mirror::{PinChange, WarmedArchive};

/// One job.
#[derive(Debug)]
pub(super) struct RunningJob {
    pub(super) id: JobId,
    pub(super) beginning: JobOrigin,
    shared: SharedJobState,
    /// Cancelled when the job or larder is stopped.
    pub(super) stop: CancellationToken,
    tracked: Mutex<TrackedJob>,
    changes: watch::Sender<u64>,
    /// Locked while the end is written.
    ending: tokio::sync::Mutex<()>,
}

/// Origin of a job; unchanged by a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobOrigin {
    pub(super) started: Timestamp,
    /// Position in the order of all jobs: later jobs have higher numbers.
    pub(super) place: u64,
    /// Key of the recurring warm-up whose run this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) recurs: Option<String>,
}

/// State shared by all jobs of a larder.
#[derive(Debug, Clone)]
pub(super) struct SharedJobState {
    /// The records; `None` for a command's own jobs.
    pub(super) records: Option<JobRecords>,
    pub(super) clock: Clock,
    /// Cancelled when larder stops.
    pub(super) shutdown: CancellationToken,
    /// Notified whenever a job ends.
    pub(super) job_ended: Arc<Notify>,
}

impl RunningJob {
    /// Creates a new or resumed job.
    pub(super) fn new(id: JobId, warm_up: Arc<WarmUp>, beginning: JobOrigin, shared: &SharedJobState) -> Self {
        let items = warm_up.items();
        let job = Job {
            id: id.to_string(),
            state: JobState::Running,
            started: beginning.started,
            ended: None,
            what: warm_up.names(),
            platforms: warm_up.platforms.iter().map(ToString::to_string).collect(),
            pin: warm_up.pin,
            resolving: warm_up.configurations.is_some(),
            unconfirmed: Vec::new(),
            items,
        };
        let subjects = vec![ItemSubject::default(); job.items.len()];
        Self::with_state(id, beginning, shared, job, subjects, Some(warm_up))
    }

    /// Creates a job that ended before a restart.
    pub(super) fn ended(id: JobId, record: JobRecord, shared: &SharedJobState) -> Self {
        let JobRecord { job, about: mut subjects, beginning, .. } = record;
        subjects.resize(job.items.len(), ItemSubject::default());
        Self::with_state(id, beginning, shared, job, subjects, None)
    }

    fn with_state(
        id: JobId,
        beginning: JobOrigin,
        shared: &SharedJobState,
        job: Job,
        subjects: Vec<ItemSubject>,
        warm_up: Option<Arc<WarmUp>>,
    ) -> Self {
        let tracked = TrackedJob::new(job, subjects, warm_up);
        let (tracked, changes, ending) = (Mutex::new(tracked), watch::Sender::new(0), tokio::sync::Mutex::default());
        let (shared, stop) = (shared.clone(), shared.shutdown.child_token());
        Self { id, beginning, shared, stop, tracked, changes, ending }
    }

    pub(super) fn report(&self) -> Job {
        self.tracked.lock().job.clone()
    }

    /// The order to run; `None` once the job has ended.
    pub(super) fn pending_warm_up(&self) -> Option<Arc<WarmUp>> {
        self.tracked.lock().warm_up.clone()
    }

    /// Returns true if larder was stopped rather than this job: the job resumes at the next start.
    pub(super) fn is_interrupted(&self) -> bool {
        self.shared.shutdown.is_cancelled() && !self.tracked.lock().is_ending
    }

    pub(super) async fn shutdown(&self) {
        self.shared.shutdown.cancelled().await;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.tracked.lock().job.state.has_ended()
    }

    pub(super) fn summary(&self) -> JobSummary {
        self.tracked.lock().summary()
    }

    /// Reads the state under its lock.
    pub(super) fn read_state<T>(&self, read: impl FnOnce(&TrackedJob) -> T) -> T {
        read(&self.tracked.lock())
    }

    /// A receiver that changes with every update.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until the job ends; returns its summary.
    pub(super) async fn wait(&self) -> JobSummary {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let summary = self.summary();
            // This job owns the sender, so the channel stays open.
            if summary.state.has_ended() || changes.changed().await.is_err() {
                return summary;
            }
        }
    }

    /// Updates the state, unless the job has ended.
    fn update<T>(&self, change: impl FnOnce(&mut TrackedJob) -> T) -> Option<T> {
        let changed = {
            let mut tracked = self.tracked.lock();
            if tracked.is_ending {
                return None;
            }
            tracked.revision += 1;
            change(&mut tracked)
        };
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
        Some(changed)
    }

    fn update_item(&self, item: usize, change: impl FnOnce(&mut JobItem, &mut ItemSubject)) {
        self.update(|tracked| {
            if let Some((item, item_subject)) = tracked.item_mut(item) {
                change(item, item_subject);
            }
        });
    }

    /// Returns the current pin setting, which may change while the job runs.
    pub(super) fn pins(&self) -> bool {
        self.tracked.lock().job.pin
    }

    /// The job's packages to pin or unpin now. The setting also applies to packages still to be fetched.
    pub(super) async fn to_pin(&self, pin: PinChange) -> Vec<ToPin> {
        self.update(|tracked| tracked.job_fields_mut().pin = pin == PinChange::Set);
        self.write().await;
        let tracked = self.tracked.lock();
        let items = tracked.job.items.iter().zip(&tracked.subjects).map(|(item, item_subject)| ToPin {
            named: item.package.clone(),
            package: item_subject.of.clone(),
            is_pending: !item.state.has_ended(),
        });
        items.collect()
    }

    /// Adds waiting items; returns their indexes.
    pub(super) fn add(&self, items: Vec<(JobItem, ItemSubject)>) -> Range<usize> {
        let added = self.update(|tracked| {
            let first = tracked.job.items.len();
            items.into_iter().for_each(|(item, item_subject)| tracked.add(item, item_subject));
            first..tracked.job.items.len()
        });
        // A finished job ignores the addition; no item has this index.
        added.unwrap_or(usize::MAX..usize::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.tracked.lock().job.items.len()
    }

    /// Marks the requirements as resolved, with the lists that upstream did not confirm.
    pub(super) fn mark_resolved(&self, unconfirmed: Vec<String>) {
        self.update(|tracked| {
            let job = tracked.job_fields_mut();
            (job.resolving, job.unconfirmed) = (false, unconfirmed);
        });
    }

    pub(super) fn set_item_state(&self, item: usize, state: ItemState) {
        self.update_item(item, |item, _| item.state = state);
    }

    /// Records the chosen version of an item, and sets the item to waiting.
    pub(super) fn set_subject(&self, item: usize, artifact: &Artifact) {
        self.update_item(item, |item, item_subject| {
            item.package = artifact.into();
            item.state = ItemState::Waiting;
            item_subject.of = Some(artifact.clone());
        });
    }

    /// Records an unconfirmed answer that an item depends on.
    pub(super) fn mark_unconfirmed(&self, item: usize, reason: String) {
        self.update_item(item, |item, _| {
            tracing::warn!(job = %self.id, what = %item.package, reason, "warmed from stored documents");
            item.unconfirmed.get_or_insert(reason);
        });
    }

    pub(super) fn update_progress(&self, item: usize, bytes: u64, length: Option<u64>) {
        self.update_item(item, |item, _| (item.bytes, item.size_bytes) = (bytes, length.or(item.size_bytes)));
    }

    pub(super) fn mark_stored(&self, item: usize, outcome: WarmedArchive, digest: Digest, size_bytes: u64) {
        let state = match outcome {
            WarmedArchive::AlreadyStored => ItemState::Held,
            WarmedArchive::Fetched => ItemState::Fetched,
        };
        self.update_item(item, |item, item_subject| {
            (item.state, item.bytes, item.size_bytes) = (state, size_bytes, Some(size_bytes));
            item_subject.digest = Some(digest);
        });
    }

    pub(super) fn mark_failed(&self, item: usize, error: &str) {
        let error = shortened(error);
        self.update_item(item, |item, _| {
            tracing::warn!(job = %self.id, what = %item.package, error, "could not be warmed");
            item.state = ItemState::Failed { error };
        });
    }

    /// The items with a stored archive.
    pub(super) fn stored_items(&self) -> Vec<(usize, Artifact, Digest)> {
        self.tracked.lock().stored_items()
    }

    /// Writes the record of an unfinished job. `end` writes the final one.
    pub(super) async fn write(&self) {
        let Some(records) = &self.shared.records else { return };
        let _end_lock = self.ending.lock().await;
        let record = {
            let tracked = self.tracked.lock();
            let Some(warm_up) = tracked.warm_up.clone() else { return };
            let job = Job { items: Vec::new(), ..tracked.job.clone() };
            JobRecord { job, beginning: self.beginning.clone(), about: Vec::new(), warm_up: Some(warm_up) }
        };
        records.write(self.id, record).await;
    }

    /// Ends the job, unless it has ended already. The record is written before the end is reported.
    pub(super) async fn end(&self, end: JobEnd) {
        let _end_lock = self.ending.lock().await;
        let record = {
            let mut tracked = self.tracked.lock();
            if tracked.job.state.has_ended() {
                return;
            }
            // Later updates of running steps are ignored.
            tracked.is_ending = true;
            let ended = tracked.ended_copy(end, self.shared.clock.now());
            JobRecord { job: ended.job, beginning: self.beginning.clone(), about: ended.subjects, warm_up: None }
        };
        let (state, ended) = (record.job.state, record.job.ended);
        if let Some(records) = &self.shared.records {
            records.write_end(self.id, record).await;
        }
        {
            let mut tracked = self.tracked.lock();
            tracked.revision += 1;
            tracked.end(end, ended.unwrap_or(Timestamp(0)));
        }
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
        self.shared.job_ended.notify_waiters();
        tracing::info!(job = %self.id, ?state, "a warm-up ended");
    }
}

/// Time between two batches of events: a download changes its item with each chunk.
const COALESCING_INTERVAL: Duration = Duration::from_millis(100);

/// A change of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// The whole job: sent first, and after a change outside its items.
    Job(Box<Job>),
    /// The new state of one item.
    Item(NumberedItem),
    /// The last event: the job ended, with counts of its items.
    End(Box<JobSummary>),
}

/// An item with its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumberedItem {
    /// Index of the item in `items`, from 0.
    pub number: usize,
    /// The current state.
    #[serde(flatten)]
    pub item: JobItem,
}

/// A subscription to the changes of one job.
#[derive(Debug)]
pub struct JobSubscription {
    job: Arc<RunningJob>,
    changes: watch::Receiver<u64>,
    /// The revision of the last batch sent; `None` before the first batch.
    last_reported: Option<u64>,
    has_ended: bool,
    next_event_at: Instant,
}

impl JobSubscription {
    pub(super) fn of(job: Arc<RunningJob>) -> Self {
        let changes = job.changes();
        Self { job, changes, last_reported: None, has_ended: false, next_event_at: Instant::now() }
    }

    /// Waits for the next changes; `None` after the end, or when larder stops. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<JobEvent>> {
        loop {
            if self.has_ended {
                return None;
            }
            tokio::time::sleep_until(self.next_event_at).await;
            self.changes.borrow_and_update();
            let events = self.collect_events();
            if !events.is_empty() {
                self.next_event_at = Instant::now() + COALESCING_INTERVAL;
                return Some(events);
            }
            tokio::select! {
                // The job owns the sender, so the channel stays open.
                _ = self.changes.changed() => {}
                // The job resumes at the next start.
                () = self.job.shutdown() => self.has_ended = true,
            }
        }
    }

    fn collect_events(&mut self) -> Vec<JobEvent> {
        let last_reported = self.last_reported;
        let (events, revision, has_ended) = self.job.read_state(|tracked| {
            let mut events = Vec::new();
            match last_reported {
                Some(last_reported) if tracked.head_revision <= last_reported => {
                    let items = tracked.job.items.iter().zip(&tracked.item_revisions).enumerate();
                    let changed = items.filter(|(_, (_, revision))| **revision > last_reported);
                    events.extend(
                        changed.map(|(number, (item, _))| JobEvent::Item(NumberedItem { number, item: item.clone() })),
                    );
                }
                _ => events.push(JobEvent::Job(Box::new(tracked.job.clone()))),
            }
            let has_ended = tracked.job.state.has_ended();
            if has_ended {
                events.push(JobEvent::End(Box::new(tracked.summary())));
            }
            (events, tracked.revision, has_ended)
        });
        self.last_reported = Some(revision);
        self.has_ended = has_ended;
        events
    }
}
