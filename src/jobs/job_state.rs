//! State of one job: its report, and the revision of the last change of each part.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::job_report::{ItemCounts, ItemState, Job, JobItem, JobState, JobSummary};
use super::warm::WarmUp;
use crate::address::{Artifact, PackageRef};
use crate::clock::Timestamp;
use crate::digest::Digest;

const MAX_ERROR: usize = 400;
/// The error of an item whose job panicked.
const LOST: &str = "its job ended unexpectedly: larder's log says why; send the same order again";

/// The package of an item, once resolved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ItemSubject {
    /// The package, once its version is chosen.
    pub(super) of: Option<Artifact>,
    /// Set once the archive is stored.
    pub(super) digest: Option<Digest>,
}

/// Outcome of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// All items were processed.
    Reached,
    /// The job was cancelled.
    Stopped,
    /// Its task panicked.
    Lost,
}

/// A job's report with the revision of each part.
#[derive(Debug)]
pub(super) struct TrackedJob {
    pub(super) job: Job,
    pub(super) subjects: Vec<ItemSubject>,
    /// The order to resume after a restart; `None` once the job has ended.
    pub(super) warm_up: Option<Arc<WarmUp>>,
    /// True while its record is written at its end, or if it ended before a restart.
    pub(super) is_ending: bool,
    /// Incremented by every change.
    pub(super) revision: u64,
    /// The revision of the last change outside its items.
    pub(super) head: u64,
    /// The revision of each item's last change.
    pub(super) items: Vec<u64>,
}

impl TrackedJob {
    /// State of a new, resumed or finished job.
    pub(super) fn new(job: Job, subjects: Vec<ItemSubject>, warm_up: Option<Arc<WarmUp>>) -> Self {
        let items = vec![0; job.items.len()];
        let is_ending = warm_up.is_none();
        Self { job, subjects, warm_up, is_ending, revision: 0, head: 0, items }
    }

    /// Its summary in the list of jobs.
    pub(super) fn listed(&self) -> JobSummary {
        let Job { id, state, started, ended, what: subjects, platforms, pin, resolving, unconfirmed: _, items } =
            &self.job;
        JobSummary {
            id: id.clone(),
            state: *state,
            started: *started,
            ended: *ended,
            what: subjects.clone(),
            platforms: platforms.clone(),
            pin: *pin,
            resolving: *resolving,
            items: ItemCounts::of(items),
        }
    }

    /// The items with a stored archive.
    pub(super) fn stored_items(&self) -> Vec<(usize, Artifact, Digest)> {
        let archive = self.job.items.iter().zip(&self.subjects).enumerate();
        archive
            .filter(|(_, (item, _))| matches!(item.state, ItemState::Held | ItemState::Fetched))
            .filter_map(|(number, (_, item_subject))| Some((number, item_subject.of.clone()?, item_subject.digest?)))
            .collect()
    }

    /// Adds an item.
    pub(super) fn add(&mut self, item: JobItem, item_subject: ItemSubject) {
        self.job.items.push(item);
        self.subjects.push(item_subject);
        self.items.push(self.revision);
    }

    /// An item, for a change.
    pub(super) fn item(&mut self, number: usize) -> Option<(&mut JobItem, &mut ItemSubject)> {
        *self.items.get_mut(number)? = self.revision;
        Some((self.job.items.get_mut(number)?, self.subjects.get_mut(number)?))
    }

    /// The parts other than items, for a change.
    pub(super) fn head(&mut self) -> &mut Job {
        self.head = self.revision;
        &mut self.job
    }

    /// A copy of the state with the job ended.
    pub(super) fn ended(&self, how: JobEnd, now: Timestamp) -> Self {
        let (job, subjects, items) = (self.job.clone(), self.subjects.clone(), self.items.clone());
        let mut ended = Self { job, subjects, items, warm_up: None, ..*self };
        ended.end(how, now);
        ended
    }

    /// True once it has ended.
    pub(super) fn end(&mut self, how: JobEnd, now: Timestamp) {
        let unended: Vec<usize> =
            (0..).zip(&self.job.items).filter(|(_, item)| !item.state.has_ended()).map(|(number, _)| number).collect();
        for number in unended {
            let Some((item, _)) = self.item(number) else { continue };
            item.state = match how {
                JobEnd::Reached | JobEnd::Stopped => ItemState::Cancelled,
                JobEnd::Lost => ItemState::Failed { error: LOST.to_owned() },
            };
        }
        let is_well = |item: &JobItem| matches!(item.state, ItemState::Held | ItemState::Fetched);
        self.job.state = match how {
            JobEnd::Stopped => JobState::Cancelled,
            JobEnd::Reached if self.job.items.iter().all(is_well) => JobState::Done,
            JobEnd::Reached | JobEnd::Lost => JobState::Failed,
        };
        self.job.resolving = false;
        self.job.ended = Some(now);
        self.warm_up = None;
    }
}

/// A waiting item.
pub(super) fn waiting(package: PackageRef) -> JobItem {
    JobItem { package, state: ItemState::Waiting, bytes: 0, size_bytes: None, unconfirmed: None }
}

/// Truncates an error to the reported length.
pub(super) fn shortened(error: &str) -> String {
    error.chars().take(MAX_ERROR).collect()
}
