//! The background tasks of the mirror, and their shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The time that a shutdown gives tasks to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Tracks flights, fills and their follow-up work.
#[derive(Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Runs `work` until it ends or the mirror closes; `None` in the latter case.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(work))
    }

    /// Runs `work` until it ends: a shutdown waits for it.
    pub fn spawn_to_end<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(work)
    }

    /// Runs file work on a blocking thread. It is never cut short: a shutdown waits for it.
    pub fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn_blocking(work)
    }

    /// Returns true once the mirror is closing. Long work must end early then.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Stops everything. Returns true if it ended in time.
    pub async fn stop(&self) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(SHUTDOWN_TIMEOUT, self.tracker.wait()).await.is_ok()
    }
}

/// A concurrency limit for CPU-heavy work. Waiting for a permit takes no thread.
#[derive(Debug)]
pub struct WorkLimit(Arc<Semaphore>);

impl WorkLimit {
    pub fn of(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Waits for a permit, then runs `work` on a blocking thread; `None` if it panicked. A caller that stops waiting
    /// gives up its place in the queue. Work that has begun keeps its permit until it ends.
    pub async fn run<T: Send + 'static>(&self, tasks: &Tasks, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let permit = Arc::clone(&self.0).acquire_owned().await.ok()?;
        let working = tasks.spawn_blocking(move || {
            let _turn = permit;
            work()
        });
        working.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    /// Promise 11: heavy work is limited, however much of it is queued.
    #[tokio::test]
    async fn no_more_jobs_run_at_once_than_the_limit() {
        let (tasks, turns) = (Tasks::default(), WorkLimit::of(2));
        let (working, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Each job waits for a second one: so two run together, and a third would be counted.
        let beside = Arc::new(Barrier::new(2));
        let all = (0..16).map(|_| {
            let (working, most, beside) = (Arc::clone(&working), Arc::clone(&most), Arc::clone(&beside));
            turns.run(&tasks, move || {
                most.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                beside.wait();
                working.fetch_sub(1, Ordering::SeqCst);
            })
        });
        assert!(join_all(all).await.iter().all(Option::is_some));
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }

    /// Promise 11: work that panics releases its permit.
    #[tokio::test]
    async fn a_panicking_job_releases_its_permit() {
        let (tasks, turns) = (Tasks::default(), WorkLimit::of(1));
        assert_eq!(turns.run(&tasks, || panic!("it fails")).await, None::<()>);
        assert_eq!(turns.run(&tasks, || 7).await, Some(7));
    }
}
