//! Supervises the background tasks, which run as long as larder does. A task that panics is logged, counted and
//! restarted.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::labels::labelled_enum;

/// The pause before the first restart.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before a restart.
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

labelled_enum! {
    /// A background task, with its name in metrics and logs.
    pub Task {
        /// Sweeps leftovers and completes work of earlier runs.
        Housekeeping "housekeeping",
        /// Compares every archive with its digest, repeatedly.
        Scrub "scrub",
        /// Fetches archives for their hashes, where `complete_hashes` asks for them.
        CompleteHashes "complete-hashes",
        /// Runs the recurring warm-ups: their scheduler, and each of them.
        RecurringWarmUps "recurring-warm-ups",
        /// Records the traffic of each minute.
        Traffic "traffic",
        /// Sends archives that the bucket of a fleet refused.
        Owed "owed-archives",
        /// Compares the settings of the replicas of a fleet.
        FleetSettings "fleet-settings",
        /// Watches the certificate files.
        TlsReload "tls-reload",
        /// Evicts down to the size limit.
        Evictor "evictor",
        /// Rebuilds the index from the files.
        Index "index",
    }
}

/// Restarts tasks that panicked, and counts the panics; all copies share the counts.
#[derive(Debug, Clone)]
pub struct Supervisor {
    panics: Family<[(&'static str, &'static str); 1], Counter>,
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
            self.panics.get_or_create_owned(&[("task", task.label())]);
        }
    }

    /// Runs the task that `start` creates until the task ends. If the task panics, it is started again after a pause.
    /// The pause is 1 s at first and doubles with each panic, up to 5 min. A task that ran for more than 5 min before
    /// its panic starts over with 1 s. Dropping the returned future stops the task.
    pub async fn run<F: Future>(&self, task: Task, mut start: impl FnMut() -> F) -> F::Output {
        let mut consecutive_panics = 0;
        loop {
            let started = Instant::now();
            let panic = match AssertUnwindSafe(async { start().await }).catch_unwind().await {
                Ok(output) => return output,
                Err(panic) => panic,
            };
            if started.elapsed() > MAX_PAUSE {
                consecutive_panics = 0;
            }
            let pause = self.pause_after(consecutive_panics);
            consecutive_panics += 1;
            let (task, panic) = (task.label(), panic_message(&*panic));
            self.panics.get_or_create(&[("task", task)]).inc();
            tracing::error!(task, panic, again_in = %humantime::format_duration(pause), "a background task panicked; it is started again");
            sleep(pause).await;
        }
    }

    /// Spawns a task into `tasks` and supervises it as [`Supervisor::run`] does.
    pub fn spawn<F>(
        &self,
        tasks: &mut JoinSet<()>,
        task: Task,
        start: impl FnMut() -> F + Send + 'static,
    ) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let supervisor = self.clone();
        tasks.spawn(async move { supervisor.run(task, start).await })
    }

    /// The pause after a panic that follows this number of consecutive panics.
    fn pause_after(&self, earlier_panics: u32) -> Duration {
        self.first_pause.saturating_mul(2_u32.saturating_pow(earlier_panics)).min(MAX_PAUSE)
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

    /// The metrics in the text format of Prometheus.
    fn metrics_text(supervisor: &Supervisor) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        supervisor.register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    /// A background task that panics is counted and restarted (promise 11).
    #[tokio::test]
    async fn a_task_that_panics_is_counted_and_restarted_until_it_ends() {
        let supervisor = Supervisor { first_pause: Duration::from_millis(1), ..Supervisor::default() };
        let starts = Cell::new(0);
        let running = supervisor.run(Task::Scrub, || {
            starts.set(starts.get() + 1);
            assert_ne!(starts.get(), 1, "before its first await");
            let start = starts.get();
            async move {
                tokio::task::yield_now().await;
                assert_ne!(start, 2, "after its first await");
                start
            }
        });
        assert_eq!(running.await, 3);
        let metrics = metrics_text(&supervisor);
        assert!(metrics.contains("larder_task_panics_total{task=\"scrub\"} 2"), "{metrics}");
        assert!(metrics.contains("larder_task_panics_total{task=\"housekeeping\"} 0"), "{metrics}");
    }

    #[test]
    fn the_pause_doubles_with_each_consecutive_panic_up_to_the_maximum() {
        let supervisor = Supervisor::default();
        let pauses: Vec<u64> = (0..5).map(|earlier_panics| supervisor.pause_after(earlier_panics).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert_eq!(supervisor.pause_after(9), MAX_PAUSE);
        assert_eq!(supervisor.pause_after(u32::MAX), MAX_PAUSE);
    }
}
