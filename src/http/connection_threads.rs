//! The threads that drive the sockets of clients: one for each core, with a runtime of its own. A connection stays on its
//! thread, so what it touches does not move between cores. Everything else (fills, jobs, file reads, timers) belongs to
//! the runtime of the process, and delays no answer.

use std::future::poll_fn;
use std::io;
use std::num::NonZero;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The event queue of a thread, with a duplicate, what wakes it, and what tells it of signals.
const OPEN_FILES_OF_ONE: u64 = 4;

/// The threads of a larder's connections; clones share them. They end with the last clone.
#[derive(Debug, Clone)]
pub struct ConnectionThreads(Arc<Threads>);

#[derive(Debug)]
struct Threads {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
    _stop: Option<DropGuard>,
}

impl ConnectionThreads {
    /// Starts a thread for each core.
    ///
    /// # Errors
    /// The system has no thread or no file descriptor left.
    pub fn one_for_each_core() -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut runtimes = Vec::new();
        for _ in 0..std::thread::available_parallelism()?.get() {
            // Without timers and blocking threads: those are the business of the process's runtime.
            let runtime = Builder::new_current_thread().enable_io().build()?;
            runtimes.push(runtime.handle().clone());
            let stop = stop.clone();
            std::thread::Builder::new()
                .name("connections".to_owned())
                .spawn(move || runtime.block_on(stop.cancelled()))?;
        }
        Ok(Self(Arc::new(Threads { runtimes, next: AtomicUsize::default(), _stop: Some(stop.drop_guard()) })))
    }

    /// About the number of files that [`Self::one_for_each_core`] keeps open.
    pub fn open_files() -> u64 {
        std::thread::available_parallelism().map_or(1, NonZero::get) as u64 * OPEN_FILES_OF_ONE
    }

    /// The runtime that this is called in, for a listener with few connections.
    pub fn of_this_runtime() -> Self {
        Self(Arc::new(Threads { runtimes: vec![Handle::current()], next: AtomicUsize::default(), _stop: None }))
    }

    /// The thread of the next connection: each in turn.
    pub(super) fn next(&self) -> &Handle {
        let Threads { runtimes, next, .. } = &*self.0;
        &runtimes[next.fetch_add(1, Ordering::Relaxed) % runtimes.len()]
    }

    /// Waits until each thread has run a task. The caller sets the deadline.
    pub async fn respond(&self) {
        for runtime in &self.0.runtimes {
            // The task is empty. If its runtime is shut down, no connection waits for it.
            let _ = runtime.spawn(async {}).await;
        }
    }
}

/// Polls a future in the context of a runtime: its timers, its blocking work and what it spawns belong there.
pub(super) async fn in_context_of<F: Future>(runtime: Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _context = runtime.enter();
        future.as_mut().poll(cx)
    })
    .await
}
