//! One running or finished job: updates of its state, its followers, and its record.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::id::JobId;
use super::job_report::{ItemState, Job, JobItem, JobState, JobSummary};
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
    home: SharedJobState,
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
    /// Its order number: later jobs have higher ones.
    pub(super) place: u64,
    /// The recurring warm-up, for its runs.
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
    pub(super) stops: CancellationToken,
    /// Notified whenever a job ends.
    pub(super) one_ended: Arc<Notify>,
}

impl RunningJob {
    /// Creates a new or resumed job.
    pub(super) fn new(id: JobId, warm_up: Arc<WarmUp>, beginning: JobOrigin, home: &SharedJobState) -> Self {
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
        Self::set_item_state(id, beginning, home, job, subjects, Some(warm_up))
    }

    /// Creates a job that ended before a restart.
    pub(super) fn ended(id: JobId, written: JobRecord, home: &SharedJobState) -> Self {
        let JobRecord { job, about: mut subjects, beginning, .. } = written;
        subjects.resize(job.items.len(), ItemSubject::default());
        Self::set_item_state(id, beginning, home, job, subjects, None)
    }

    fn set_item_state(
        id: JobId,
        beginning: JobOrigin,
        home: &SharedJobState,
        job: Job,
        subjects: Vec<ItemSubject>,
        warm_up: Option<Arc<WarmUp>>,
    ) -> Self {
        let tracked = TrackedJob::new(job, subjects, warm_up);
        let (tracked, changes, ending) = (Mutex::new(tracked), watch::Sender::new(0), tokio::sync::Mutex::default());
        let (home, stop) = (home.clone(), home.stops.child_token());
        Self { id, beginning, home, stop, tracked, changes, ending }
    }

    pub(super) fn job(&self) -> Job {
        self.tracked.lock().job.clone()
    }

    /// The order to run; `None` once it has ended.
    pub(super) fn to_do(&self) -> Option<Arc<WarmUp>> {
        self.tracked.lock().warm_up.clone()
    }

    /// Returns true if larder was stopped rather than this job: it resumes at the next start.
    pub(super) fn is_interrupted(&self) -> bool {
        self.home.stops.is_cancelled() && !self.tracked.lock().is_ending
    }

    pub(super) async fn larder_stops(&self) {
        self.home.stops.cancelled().await;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.tracked.lock().job.state.has_ended()
    }

    pub(super) fn listed(&self) -> JobSummary {
        self.tracked.lock().listed()
    }

    /// Reads the state under its lock.
    pub(super) fn read_state<T>(&self, look: impl FnOnce(&TrackedJob) -> T) -> T {
        look(&self.tracked.lock())
    }

    /// A receiver that changes with every update.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits for its end; returns its summary.
    pub(super) async fn wait(&self) -> JobSummary {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let listed = self.listed();
            // The sender is this job, so it exists.
            if listed.state.has_ended() || changes.changed().await.is_err() {
                return listed;
            }
        }
    }

    /// Updates the state, unless the job has ended.
    fn update<T>(&self, change: impl FnOnce(&mut TrackedJob) -> T) -> Option<T> {
        let changed = {
            let mut subjects = self.tracked.lock();
            if subjects.is_ending {
                return None;
            }
            subjects.revision += 1;
            change(&mut subjects)
        };
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
        Some(changed)
    }

    fn update_item(&self, item: usize, change: impl FnOnce(&mut JobItem, &mut ItemSubject)) {
        self.update(|tracked| {
            if let Some((item, item_subject)) = tracked.item(item) {
                change(item, item_subject);
            }
        });
    }

    /// Returns the current pin setting, which may change while the job runs.
    pub(super) fn pins(&self) -> bool {
        self.tracked.lock().job.pin
    }

    /// Its packages to pin or unpin now. The setting also applies to packages still to be fetched.
    pub(super) async fn to_pin(&self, pin: PinChange) -> Vec<ToPin> {
        self.update(|tracked| tracked.head().pin = pin == PinChange::Set);
        self.write().await;
        let tracked = self.tracked.lock();
        let items = tracked.job.items.iter().zip(&tracked.subjects).map(|(item, item_subject)| ToPin {
            named: item.package.clone(),
            package: item_subject.of.clone(),
            is_coming: !item.state.has_ended(),
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
        // A finished job does not change, and no item has this index.
        added.unwrap_or(usize::MAX..usize::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.tracked.lock().job.items.len()
    }

    /// Marks the requirements as resolved, with the lists that upstream did not confirm.
    pub(super) fn is_resolved(&self, unconfirmed: Vec<String>) {
        self.update(|tracked| {
            let job = tracked.head();
            (job.resolving, job.unconfirmed) = (false, unconfirmed);
        });
    }

    pub(super) fn is_now(&self, item: usize, state: ItemState) {
        self.update_item(item, |item, _| item.state = state);
    }

    /// Records the chosen version of an item, which waits again.
    pub(super) fn set_subject(&self, item: usize, artifact: &Artifact) {
        self.update_item(item, |item, item_subject| {
            item.package = artifact.into();
            item.state = ItemState::Waiting;
            item_subject.of = Some(artifact.clone());
        });
    }

    /// Records an unconfirmed answer that an item depends on.
    pub(super) fn is_unconfirmed(&self, item: usize, reason: String) {
        self.update_item(item, |item, _| {
            tracing::warn!(job = %self.id, what = %item.package, reason, "warmed from stored documents");
            item.unconfirmed.get_or_insert(reason);
        });
    }

    pub(super) fn arriving(&self, item: usize, bytes: u64, length: Option<u64>) {
        self.update_item(item, |item, _| (item.bytes, item.size_bytes) = (bytes, length.or(item.size_bytes)));
    }

    pub(super) fn mark_stored(&self, item: usize, came: WarmedArchive, digest: Digest, size_bytes: u64) {
        let state = match came {
            WarmedArchive::AlreadyStored => ItemState::Held,
            WarmedArchive::Fetched => ItemState::Fetched,
        };
        self.update_item(item, |item, item_subject| {
            (item.state, item.bytes, item.size_bytes) = (state, size_bytes, Some(size_bytes));
            item_subject.digest = Some(digest);
        });
    }

    pub(super) fn has_failed(&self, item: usize, error: &str) {
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

    /// Writes its record, unless it has ended: the end writes its own.
    pub(super) async fn write(&self) {
        let Some(records) = &self.home.records else { return };
        let _nobody_ends_it = self.ending.lock().await;
        let written = {
            let tracked = self.tracked.lock();
            let Some(warm_up) = tracked.warm_up.clone() else { return };
            let job = Job { items: Vec::new(), ..tracked.job.clone() };
            JobRecord { job, beginning: self.beginning.clone(), about: Vec::new(), warm_up: Some(warm_up) }
        };
        records.write(self.id, written).await;
    }

    /// Ends the job, unless it has ended. The record is written before the end is reported.
    pub(super) async fn end(&self, how: JobEnd) {
        let _nobody_else = self.ending.lock().await;
        let written = {
            let mut tracked = self.tracked.lock();
            if tracked.job.state.has_ended() {
                return;
            }
            // Later updates of running steps are ignored.
            tracked.is_ending = true;
            let ended = tracked.ended(how, self.home.clock.now());
            JobRecord { job: ended.job, beginning: self.beginning.clone(), about: ended.subjects, warm_up: None }
        };
        let (state, ended) = (written.job.state, written.job.ended);
        if let Some(records) = &self.home.records {
            records.write_end(self.id, written).await;
        }
        {
            let mut tracked = self.tracked.lock();
            tracked.revision += 1;
            tracked.end(how, ended.unwrap_or(Timestamp(0)));
        }
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
        self.home.one_ended.notify_waiters();
        tracing::info!(job = %self.id, ?state, "a warm-up ended");
    }
}
