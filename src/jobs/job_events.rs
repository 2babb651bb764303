//! Changes of a job for its followers: the difference since the last event, never more than the whole job. A slow
//! follower gets the latest state and delays no other.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::job_report::{Job, JobItem, JobSummary};
use super::running_job::RunningJob;

/// Changes are collected for this long before they are sent: an arriving archive changes with each piece.
const GATHERED_FOR: Duration = Duration::from_millis(100);

/// A change of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// The whole job: first, and after a change outside its items.
    Job(Box<Job>),
    /// The new state of one item.
    Item(NumberedItem),
    /// The end, with counts of the items; the last event.
    End(Box<JobSummary>),
}

/// An item with its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumberedItem {
    /// Its index in `items`, from 0.
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
    /// The revision last sent; `None` before the first.
    last_reported: Option<u64>,
    is_over: bool,
    not_before: Instant,
}

impl JobSubscription {
    pub(super) fn of(job: Arc<RunningJob>) -> Self {
        let changes = job.changes();
        Self { job, changes, last_reported: None, is_over: false, not_before: Instant::now() }
    }

    /// Waits for the next changes; `None` after the end, or when larder stops. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<JobEvent>> {
        loop {
            if self.is_over {
                return None;
            }
            tokio::time::sleep_until(self.not_before).await;
            self.changes.borrow_and_update();
            let events = self.gather();
            if !events.is_empty() {
                self.not_before = Instant::now() + GATHERED_FOR;
                return Some(events);
            }
            tokio::select! {
                // The sender is the job, so it exists.
                _ = self.changes.changed() => {}
                // The job resumes at the next start.
                () = self.job.larder_stops() => self.is_over = true,
            }
        }
    }

    fn gather(&mut self) -> Vec<JobEvent> {
        let before = self.last_reported;
        let (events, revision, is_over) = self.job.read_state(|tracked| {
            let mut events = Vec::new();
            match before {
                Some(before) if tracked.head <= before => {
                    let items = tracked.job.items.iter().zip(&tracked.items).enumerate();
                    let changed = items.filter(|(_, (_, changed))| **changed > before);
                    events.extend(
                        changed.map(|(number, (item, _))| JobEvent::Item(NumberedItem { number, item: item.clone() })),
                    );
                }
                _ => events.push(JobEvent::Job(Box::new(tracked.job.clone()))),
            }
            let is_over = tracked.job.state.has_ended();
            if is_over {
                events.push(JobEvent::End(Box::new(tracked.listed())));
            }
            (events, tracked.revision, is_over)
        });
        self.last_reported = Some(revision);
        self.is_over = is_over;
        events
    }
}
