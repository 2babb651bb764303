//! The work that nobody waits for, and its end: a mirror that closes leaves none of it behind.

use std::time::Duration;

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

    /// Stops everything; says whether it has all ended.
    pub(super) async fn stop(&self) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(STOPPED_WITHIN, self.tracker.wait()).await.is_ok()
    }
}
