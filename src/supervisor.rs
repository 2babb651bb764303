//! The tasks that run as long as larder does: one that panics is logged, counted and restarted.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

/// The first pause before a restart.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

/// A task that runs as long as larder does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Sweeps leftovers and completes work of earlier runs.
    Housekeeping,
    /// Compares every archive with its digest, repeatedly.
    Scrub,
    /// A recurring warm-up, or their scheduler.
    RecurringWarmUps,
    /// Watches the certificate files.
    TlsReload,
    /// Evicts down to the size limit.
    Evictor,
    /// Rebuilds the index from the files.
    Index,
}

impl Task {
    const ALL: [Self; 6] =
        [Self::Housekeeping, Self::Scrub, Self::RecurringWarmUps, Self::TlsReload, Self::Evictor, Self::Index];

    fn word(self) -> &'static str {
        match self {
            Self::Housekeeping => "housekeeping",
            Self::Scrub => "scrub",
            Self::RecurringWarmUps => "recurring-warm-ups",
            Self::TlsReload => "tls-reload",
            Self::Evictor => "evictor",
            Self::Index => "index",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTask {
    task: &'static str,
}

/// Restarts tasks that panicked, and counts the panics; all copies share the counts.
#[derive(Debug, Clone)]
pub struct Supervisor {
    panics: Family<OfTask, Counter>,
    first_pause: Duration,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self { panics: Family::default(), first_pause: FIRST_PAUSE }
    }
}

impl Supervisor {
    /// Registers the counters, each task at zero.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Panics of background tasks, each of which is started again";
        registry.register("larder_task_panics", help, self.panics.clone());
        for task in Task::ALL {
            self.panics.get_or_create_owned(&OfTask { task: task.word() });
        }
    }

    /// Runs what `start` makes until it ends. Where it panics, it is started again after a pause of 1 s, which doubles
    /// with each panic up to 5 min; one that ran for longer than that begins at 1 s again. Ends when it is dropped.
    pub async fn run<F: Future>(&self, task: Task, mut start: impl FnMut() -> F) -> F::Output {
        let mut in_a_row = 0;
        loop {
            let began = Instant::now();
            let panic = match AssertUnwindSafe(async { start().await }).catch_unwind().await {
                Ok(ended) => return ended,
                Err(panic) => panic,
            };
            if began.elapsed() > MAX_PAUSE {
                in_a_row = 0;
            }
            let pause = self.pause_after(in_a_row);
            in_a_row += 1;
            let (task, panic) = (task.word(), panic_message(&*panic));
            self.panics.get_or_create(&OfTask { task }).inc();
            tracing::error!(task, panic, again_in = ?pause, "a background task panicked; it is started again");
            sleep(pause).await;
        }
    }

    /// Spawns a task that is run in the same way.
    pub fn spawn<F>(
        &self,
        beside: &mut JoinSet<()>,
        task: Task,
        start: impl FnMut() -> F + Send + 'static,
    ) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let supervisor = self.clone();
        beside.spawn(async move { supervisor.run(task, start).await })
    }

    /// The pause after a panic, given the number of consecutive earlier ones.
    fn pause_after(&self, others: u32) -> Duration {
        self.first_pause.saturating_mul(2_u32.saturating_pow(others)).min(MAX_PAUSE)
    }
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn state_text(supervisor: &Supervisor) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        supervisor.register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    /// DESIGN, promise 11: a background task that panics is counted and restarted.
    #[tokio::test]
    async fn a_task_that_panics_is_counted_and_started_again_until_it_ends() {
        let supervisor = Supervisor { first_pause: Duration::from_millis(1), ..Supervisor::default() };
        let starts = Cell::new(0);
        let ended = supervisor.run(Task::Scrub, || {
            starts.set(starts.get() + 1);
            assert_ne!(starts.get(), 1, "before its first await");
            let start = starts.get();
            async move {
                tokio::task::yield_now().await;
                assert_ne!(start, 2, "in its midst");
                start
            }
        });
        assert_eq!(ended.await, 3);
        let shown = state_text(&supervisor);
        assert!(shown.contains("larder_task_panics_total{task=\"scrub\"} 2"), "{shown}");
        assert!(shown.contains("larder_task_panics_total{task=\"housekeeping\"} 0"), "{shown}");
    }

    #[test]
    fn each_panic_in_a_row_waits_longer_than_the_last_up_to_a_bound() {
        let supervisor = Supervisor::default();
        let pauses: Vec<u64> = (0..5).map(|others| supervisor.pause_after(others).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert_eq!(supervisor.pause_after(9), MAX_PAUSE);
        assert_eq!(supervisor.pause_after(u32::MAX), MAX_PAUSE);
    }
}
