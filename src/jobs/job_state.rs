//! State of one job: its report, and the revision of the last change of each part.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::job_report::{ItemCounts, ItemState, Job, JobItem, JobState, JobSummary};
use super::warm::WarmUp;
use crate::address::{Artifact, PackageRef};
use crate::clock::Timestamp;
use crate::digest::Digest;

const MAX_ERROR_CHARS: usize = 400;
/// The error of an item whose job panicked.
const PANICKED_ERROR: &str = "the job ended unexpectedly: larder's log has the reason; send the same order again";

/// The package of an item, once resolved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ItemSubject {
    /// The package, once its version is chosen.
    pub(super) of: Option<Artifact>,
    /// Digest of the archive, once it is stored.
    pub(super) digest: Option<Digest>,
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
#[derive(Debug)]
pub(super) struct TrackedJob {
    pub(super) job: Job,
    pub(super) subjects: Vec<ItemSubject>,
    /// The order to resume after a restart; `None` once the job has ended.
    pub(super) warm_up: Option<Arc<WarmUp>>,
    /// True from the moment at which the final record is written; true at once for a job that ended before a restart.
    pub(super) is_ending: bool,
    /// Number of changes so far.
    pub(super) revision: u64,
    /// Revision of the last change outside the items.
    pub(super) head_revision: u64,
    /// Revision of each item's last change, by index.
    pub(super) item_revisions: Vec<u64>,
}

impl TrackedJob {
    /// State of a new, resumed or finished job.
    pub(super) fn new(job: Job, subjects: Vec<ItemSubject>, warm_up: Option<Arc<WarmUp>>) -> Self {
        let item_revisions = vec![0; job.items.len()];
        let is_ending = warm_up.is_none();
        Self { job, subjects, warm_up, is_ending, revision: 0, head_revision: 0, item_revisions }
    }

    /// The summary of this job in the list of jobs.
    pub(super) fn summary(&self) -> JobSummary {
        let Job { id, state, started, ended, what, platforms, pin, resolving, unconfirmed: _, items } = &self.job;
        JobSummary {
            id: id.clone(),
            state: *state,
            started: *started,
            ended: *ended,
            what: what.clone(),
            platforms: platforms.clone(),
            pin: *pin,
            resolving: *resolving,
            items: ItemCounts::of(items),
        }
    }

    /// The items with a stored archive.
    pub(super) fn stored_items(&self) -> Vec<(usize, Artifact, Digest)> {
        let items = self.job.items.iter().zip(&self.subjects).enumerate();
        items
            .filter(|(_, (item, _))| matches!(item.state, ItemState::Held | ItemState::Fetched))
            .filter_map(|(number, (_, item_subject))| Some((number, item_subject.of.clone()?, item_subject.digest?)))
            .collect()
    }

    /// Adds an item.
    pub(super) fn add(&mut self, item: JobItem, item_subject: ItemSubject) {
        self.job.items.push(item);
        self.subjects.push(item_subject);
        self.item_revisions.push(self.revision);
    }

    /// An item to change; marks it as changed in this revision.
    pub(super) fn item_mut(&mut self, number: usize) -> Option<(&mut JobItem, &mut ItemSubject)> {
        *self.item_revisions.get_mut(number)? = self.revision;
        Some((self.job.items.get_mut(number)?, self.subjects.get_mut(number)?))
    }

    /// The job to change outside its items; marks it as changed in this revision.
    pub(super) fn job_fields_mut(&mut self) -> &mut Job {
        self.head_revision = self.revision;
        &mut self.job
    }

    /// A copy of the state with the job ended.
    pub(super) fn ended_copy(&self, end: JobEnd, now: Timestamp) -> Self {
        let (job, subjects) = (self.job.clone(), self.subjects.clone());
        let item_revisions = self.item_revisions.clone();
        let mut ended = Self { job, subjects, item_revisions, warm_up: None, ..*self };
        ended.end(end, now);
        ended
    }

    /// Ends the job: its unfinished items become cancelled or failed.
    pub(super) fn end(&mut self, end: JobEnd, now: Timestamp) {
        let unfinished: Vec<usize> =
            (0..).zip(&self.job.items).filter(|(_, item)| !item.state.has_ended()).map(|(number, _)| number).collect();
        for number in unfinished {
            let Some((item, _)) = self.item_mut(number) else { continue };
            item.state = match end {
                JobEnd::Completed | JobEnd::Cancelled => ItemState::Cancelled,
                JobEnd::Panicked => ItemState::Failed { error: PANICKED_ERROR.to_owned() },
            };
        }
        let is_stored = |item: &JobItem| matches!(item.state, ItemState::Held | ItemState::Fetched);
        self.job.state = match end {
            JobEnd::Cancelled => JobState::Cancelled,
            JobEnd::Completed if self.job.items.iter().all(is_stored) => JobState::Done,
            JobEnd::Completed | JobEnd::Panicked => JobState::Failed,
        };
        self.job.resolving = false;
        self.job.ended = Some(now);
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
