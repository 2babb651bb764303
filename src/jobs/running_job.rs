//! One running or finished job: its state, its record, and its followers. A follower gets the difference since its last
//! event, never more than the whole job; a slow one gets the latest state and delays no other.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::job_report::{ItemCounts, ItemState, Job, JobId, JobItem, JobState, JobSummary};
use super::list::{JobRecord, JobRecords, ToPin};
use super::warm::WarmUp;
use crate::address::{Artifact, PackageRef};
use crate::clock::{Clock, Timestamp};
use crate::digest::Digest;
use crate::mirror::{PinChange, WarmedArchive};

const MAX_ERROR_CHARS: usize = 400;
/// The error of an item whose job panicked.
const PANICKED_ERROR: &str = "the job ended unexpectedly: larder's log has the reason; send the same order again";

/// One job.
#[derive(Debug)]
pub struct RunningJob {
    pub(super) id: JobId,
    pub(super) origin: JobOrigin,
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
    #[serde(rename = "place")]
    pub(super) number: u64,
    /// Key of the recurring warm-up whose run this is.
    #[serde(rename = "recurs", default, skip_serializing_if = "Option::is_none")]
    pub(super) recurring_key: Option<String>,
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
    pub(super) ended_jobs: EndedJobs,
}

/// Counts the jobs that ended since the start, by state. All copies share the counters.
#[derive(Debug, Clone)]
pub(super) struct EndedJobs(pub(super) Family<[(&'static str, &'static str); 1], Counter>);

impl Default for EndedJobs {
    /// Each counter exists from the start, at 0.
    fn default() -> Self {
        let counters = Self(Family::default());
        for state in [JobState::Done, JobState::Failed, JobState::Cancelled] {
            counters.of(state);
        }
        counters
    }
}

impl EndedJobs {
    fn of(&self, state: JobState) -> Counter {
        self.0.get_or_create_owned(&[("state", state.word())])
    }
}

/// The package of an item, once resolved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ItemSubject {
    /// The package, once its version is chosen.
    #[serde(rename = "of")]
    pub(super) artifact: Option<Artifact>,
    /// Digest of the archive, once it is stored.
    digest: Option<Digest>,
}

/// Outcome of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// All items were processed.
    Completed,
    /// The job was cancelled.
    Cancelled,
    /// The task of the job panicked.
    Panicked,
}

/// A job's report with the revision of each part.
#[derive(Debug, Clone)]
struct TrackedJob {
    /// The report without its items.
    head: Job,
    items: Vec<TrackedItem>,
    /// The order to resume after a restart; `None` once the job has ended.
    warm_up: Option<Arc<WarmUp>>,
    /// True from the moment at which the final record is written; true at once for a job that ended before a restart.
    is_ending: bool,
    /// Number of changes so far.
    revision: u64,
    /// Revision of the last change outside the items.
    head_revision: u64,
}

/// An item of a job.
#[derive(Debug, Clone)]
struct TrackedItem {
    item: JobItem,
    subject: ItemSubject,
    /// Revision of the last change.
    revision: u64,
}

impl TrackedJob {
    /// State of a new, resumed or finished job.
    fn new(mut job: Job, subjects: Vec<ItemSubject>, warm_up: Option<Arc<WarmUp>>) -> Self {
        let subjects = subjects.into_iter().chain(std::iter::repeat(ItemSubject::default()));
        let items = std::mem::take(&mut job.items).into_iter().zip(subjects);
        let items = items.map(|(item, subject)| TrackedItem { item, subject, revision: 0 }).collect();
        Self { head: job, items, is_ending: warm_up.is_none(), warm_up, revision: 0, head_revision: 0 }
    }

    fn report(&self) -> Job {
        self.head.clone().with_items(self.items.iter().map(|tracked| tracked.item.clone()).collect())
    }

    /// The summary of this job in the list of jobs.
    fn summary(&self) -> JobSummary {
        let counts = ItemCounts::of(self.items.iter().map(|tracked| &tracked.item.state));
        Job { unconfirmed: Vec::new(), ..self.head.clone() }.with_items(counts)
    }

    /// The job to change outside its items; marks it as changed in this revision.
    fn head_mut(&mut self) -> &mut Job {
        self.head_revision = self.revision;
        &mut self.head
    }

    /// Ends the job: its unfinished items become cancelled or failed.
    fn end(&mut self, end: JobEnd, now: Timestamp) {
        self.revision += 1;
        for tracked in self.items.iter_mut().filter(|tracked| !tracked.item.state.has_ended()) {
            tracked.revision = self.revision;
            tracked.item.state = match end {
                JobEnd::Completed | JobEnd::Cancelled => ItemState::Cancelled,
                JobEnd::Panicked => ItemState::Failed { error: PANICKED_ERROR.to_owned() },
            };
        }
        self.head.state = match end {
            JobEnd::Cancelled => JobState::Cancelled,
            JobEnd::Completed if self.items.iter().all(|tracked| tracked.item.state.was_stored()) => JobState::Done,
            JobEnd::Completed | JobEnd::Panicked => JobState::Failed,
        };
        self.head.resolving = false;
        self.head.ended = Some(now);
        self.warm_up = None;
    }
}

/// A new item, which waits.
pub(super) fn waiting_item(package: PackageRef) -> JobItem {
    JobItem { package, state: ItemState::Waiting, bytes: 0, size_bytes: None, unconfirmed: None }
}

/// Truncates an error to the reported length.
pub(super) fn shortened(error: &str) -> String {
    error.chars().take(MAX_ERROR_CHARS).collect()
}

impl RunningJob {
    /// Creates a new or resumed job.
    pub(super) fn new(id: JobId, warm_up: Arc<WarmUp>, origin: JobOrigin, shared: &SharedJobState) -> Self {
        let job = Job {
            id: id.to_string(),
            state: JobState::Running,
            started: origin.started,
            ended: None,
            ordered: warm_up.names(),
            platforms: warm_up.platforms.iter().map(ToString::to_string).collect(),
            pin: warm_up.pin,
            resolving: warm_up.configurations.is_some(),
            unconfirmed: Vec::new(),
            items: warm_up.items(),
        };
        Self::with_state(id, origin, shared, TrackedJob::new(job, Vec::new(), Some(warm_up)))
    }

    /// Creates a job that ended before a restart.
    pub(super) fn ended(id: JobId, record: JobRecord, shared: &SharedJobState) -> Self {
        Self::with_state(id, record.origin, shared, TrackedJob::new(record.job, record.subjects, None))
    }

    fn with_state(id: JobId, origin: JobOrigin, shared: &SharedJobState, tracked: TrackedJob) -> Self {
        let (tracked, changes, ending) = (Mutex::new(tracked), watch::Sender::new(0), tokio::sync::Mutex::default());
        let (shared, stop) = (shared.clone(), shared.shutdown.child_token());
        Self { id, origin, shared, stop, tracked, changes, ending }
    }

    /// The report of this job.
    pub fn report(&self) -> Job {
        self.tracked.lock().report()
    }

    /// The first failures of the job, at most `number`.
    pub fn first_failures(&self, number: usize) -> Vec<(PackageRef, String)> {
        let tracked = self.tracked.lock();
        let failed = tracked.items.iter().filter_map(|TrackedItem { item, .. }| match &item.state {
            ItemState::Failed { error } => Some((item.package.clone(), error.clone())),
            _ => None,
        });
        failed.take(number).collect()
    }

    /// The order to run; `None` once the job has ended.
    pub(super) fn pending_warm_up(&self) -> Option<Arc<WarmUp>> {
        self.tracked.lock().warm_up.clone()
    }

    /// Returns true if larder was stopped rather than this job: the job resumes at the next start.
    pub(super) fn is_interrupted(&self) -> bool {
        self.shared.shutdown.is_cancelled() && !self.tracked.lock().is_ending
    }

    pub(super) fn has_ended(&self) -> bool {
        self.tracked.lock().head.state.has_ended()
    }

    pub(super) fn summary(&self) -> JobSummary {
        self.tracked.lock().summary()
    }

    /// Waits until the job ends; returns its summary.
    pub(super) async fn wait(&self) -> JobSummary {
        // This job owns the sender, so the channel stays open.
        let _ = self.changes.subscribe().wait_for(|_| self.has_ended()).await;
        self.summary()
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
        self.update(|job| {
            if let Some(tracked) = job.items.get_mut(item) {
                tracked.revision = job.revision;
                change(&mut tracked.item, &mut tracked.subject);
            }
        });
    }

    /// Returns the current pin setting, which may change while the job runs.
    pub(super) fn pins(&self) -> bool {
        self.tracked.lock().head.pin
    }

    /// The packages to pin or unpin now. While the job runs, the setting also applies to packages still to be fetched.
    pub async fn to_pin(&self, pin: PinChange) -> Vec<ToPin> {
        self.update(|tracked| tracked.head_mut().pin = pin == PinChange::Set);
        self.write().await;
        let to_pin = |TrackedItem { item, subject, .. }: &TrackedItem| ToPin {
            named: item.package.clone(),
            package: subject.artifact.clone(),
            is_pending: !item.state.has_ended(),
        };
        self.tracked.lock().items.iter().map(to_pin).collect()
    }

    /// Adds an item, with its package where that is known; returns its index.
    pub(super) fn add(&self, item: JobItem, artifact: Option<Artifact>) -> usize {
        let added = self.update(|tracked| {
            let subject = ItemSubject { artifact, digest: None };
            tracked.items.push(TrackedItem { item, subject, revision: tracked.revision });
            tracked.items.len() - 1
        });
        // A finished job ignores the addition; no item has this index.
        added.unwrap_or(usize::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.tracked.lock().items.len()
    }

    /// Marks the requirements as resolved, with the lists that upstream did not confirm.
    pub(super) fn mark_resolved(&self, unconfirmed: Vec<String>) {
        self.update(|tracked| {
            let job = tracked.head_mut();
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
            item_subject.artifact = Some(artifact.clone());
        });
    }

    /// Records the note about an unconfirmed document that an item depends on, if any.
    pub(super) fn mark_unconfirmed(&self, item: usize, reason: Option<String>) {
        let Some(reason) = reason else { return };
        self.update_item(item, |item, _| {
            tracing::warn!(job = %self.id, what = %item.package, reason, "warmed from stored documents");
            item.unconfirmed.get_or_insert(reason);
        });
    }

    pub(super) fn update_progress(&self, item: usize, bytes: u64, length: Option<u64>) {
        self.update_item(item, |item, _| (item.bytes, item.size_bytes) = (bytes, length.or(item.size_bytes)));
    }

    pub(super) fn mark_stored(&self, item: usize, (outcome, digest, size_bytes): (WarmedArchive, Digest, u64)) {
        let state = match outcome {
            WarmedArchive::AlreadyStored => ItemState::AlreadyStored,
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

    /// The items with a stored archive, each with its position.
    pub fn stored_items(&self) -> Vec<(usize, Artifact, Digest)> {
        let tracked = self.tracked.lock();
        let stored = tracked.items.iter().enumerate().filter(|(_, tracked)| tracked.item.state.was_stored());
        let items = stored.filter_map(|(number, TrackedItem { subject, .. })| {
            Some((number, subject.artifact.clone()?, subject.digest?))
        });
        items.collect()
    }

    /// Cancels the job unless it has ended, and returns its report. Stored packages stay. A running download continues,
    /// as for any client that leaves.
    pub async fn cancel(&self) -> Job {
        self.stop.cancel();
        self.end(JobEnd::Cancelled).await;
        self.report()
    }

    /// Writes the record of an unfinished job. `end` writes the final one.
    pub(super) async fn write(&self) {
        let Some(records) = &self.shared.records else { return };
        let _end_lock = self.ending.lock().await;
        let record = {
            let tracked = self.tracked.lock();
            let Some(warm_up) = tracked.warm_up.clone() else { return };
            let (job, origin) = (tracked.head.clone(), self.origin.clone());
            JobRecord { job, origin, subjects: Vec::new(), warm_up: Some(warm_up) }
        };
        records.write(self.id, record).await;
    }

    /// Ends the job, unless it has ended already. The record is written before the end is reported.
    pub(super) async fn end(&self, end: JobEnd) {
        let _end_lock = self.ending.lock().await;
        let ended = {
            let mut tracked = self.tracked.lock();
            if tracked.head.state.has_ended() {
                return;
            }
            // Later updates of running steps are ignored.
            tracked.is_ending = true;
            let mut ended = tracked.clone();
            ended.end(end, self.shared.clock.now());
            ended
        };
        if let Some(records) = &self.shared.records {
            let subjects = ended.items.iter().map(|tracked| tracked.subject.clone()).collect();
            let (job, origin) = (ended.report(), self.origin.clone());
            records.write_end(self.id, JobRecord { job, origin, subjects, warm_up: None }).await;
        }
        tracing::info!(job = %self.id, state = ?ended.head.state, "a warm-up ended");
        self.shared.ended_jobs.of(ended.head.state).inc();
        *self.tracked.lock() = ended;
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
        self.shared.job_ended.notify_waiters();
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Subscribes to the changes of a job.
    pub fn of(job: Arc<RunningJob>) -> Self {
        let changes = job.changes.subscribe();
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
                () = self.job.shared.shutdown.cancelled() => self.has_ended = true,
            }
        }
    }

    fn collect_events(&mut self) -> Vec<JobEvent> {
        let tracked = self.job.tracked.lock();
        let mut events = match self.last_reported {
            Some(last_reported) if tracked.head_revision <= last_reported => {
                let changed = tracked.items.iter().enumerate().filter(|(_, item)| item.revision > last_reported);
                changed
                    .map(|(number, TrackedItem { item, .. })| {
                        JobEvent::Item(NumberedItem { number, item: item.clone() })
                    })
                    .collect()
            }
            _ => vec![JobEvent::Job(Box::new(tracked.report()))],
        };
        if tracked.head.state.has_ended() {
            events.push(JobEvent::End(Box::new(tracked.summary())));
        }
        (self.last_reported, self.has_ended) = (Some(tracked.revision), tracked.head.state.has_ended());
        events
    }
}
