//! The work that nobody waits for, and its end: a mirror that closes leaves none of it behind.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long the work may take to notice that it has been stopped.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);

/// Flights, fills and what follows them.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Runs `work` until it ends or the mirror closes; `None` in that case.
    pub(super) fn spawn<F>(&self, work: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(work))
    }

    /// Runs file work on a thread where it may block. It is never cut short: a close waits for it.
    pub(super) fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn_blocking(work)
    }

    /// The mirror closes: long work ends early.
    pub(super) fn are_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Stops everything; says whether it has all ended.
    pub(super) async fn stop(&self) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(STOPPED_WITHIN, self.tracker.wait()).await.is_ok()
    }
}

/// Turns at work that is heavy for the machine: so many at a time. Who waits for a turn takes no thread.
#[derive(Debug)]
pub(super) struct Turns(Arc<Semaphore>);

impl Turns {
    /// Turns for `most` at a time.
    pub(super) fn of(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Waits for a turn, then runs file work where it may block; `None` where that panicked. Whoever waits no more before
    /// its turn has come gives it up; work that began keeps its turn until it has ended.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        tasks: &Tasks,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.0).acquire_owned().await.ok()?;
        let working = tasks.spawn_blocking(move || {
            let _turn = turn;
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

    /// Promise 11: heavy work has a bound, however much of it there is.
    #[tokio::test]
    async fn as_many_work_at_a_time_as_there_are_turns() {
        let (tasks, turns) = (Tasks::default(), Turns::of(2));
        let (working, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Work goes on only where another works beside it: so two do, and a third would be counted.
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

    /// Promise 11: work that panics gives its turn back.
    #[tokio::test]
    async fn a_turn_that_ends_in_a_panic_is_free_again() {
        let (tasks, turns) = (Tasks::default(), Turns::of(1));
        assert_eq!(turns.run(&tasks, || panic!("it fails")).await, None::<()>);
        assert_eq!(turns.run(&tasks, || 7).await, Some(7));
    }
}
