//! Changes of a job for its followers: the difference since the last event, never more than the whole job. A slow
//! follower gets the latest state and delays no other.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::job_report::{Job, JobItem, JobSummary};
use super::running_job::RunningJob;

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
