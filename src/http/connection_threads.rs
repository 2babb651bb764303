//! The threads that drive the sockets of clients: one for each core, with a runtime of its own. A connection stays on its
//! thread, so what it touches does not move between cores. Its timers, its file reads and all that its requests start (fills,
//! jobs) belong to the runtime of the process. A request that is not answered from memory is worked on in short steps here.

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

/// More cores share them: each keeps files open, which a low limit has to hold beside those of clients.
const MAX_THREADS: usize = 16;

/// The threads of a larder's connections; clones share them. They end with the last clone.
#[derive(Debug, Clone)]
pub struct ConnectionThreads(Arc<Threads>);

#[derive(Debug)]
struct Threads {
    runtimes: Vec<ConnectionRuntime>,
    last: AtomicUsize,
    _stop: DropGuard,
}

#[derive(Debug)]
struct ConnectionRuntime {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// One connection in the count of its thread.
#[derive(Debug)]
pub(super) struct CountedConnection(Arc<AtomicUsize>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionThreads {
    /// Starts a thread for each core.
    ///
    /// # Errors
    /// The system has no thread or no file descriptor left.
    pub fn one_for_each_core() -> io::Result<Self> {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let mut runtimes = Vec::new();
        for _ in 0..Self::count() {
            // Without timers and blocking threads: those are the business of the process's runtime.
            let runtime = Builder::new_current_thread().enable_io().build()?;
            runtimes.push(runtime.handle().clone());
            let stop = stop.clone();
            std::thread::Builder::new()
                .name("connections".to_owned())
                .spawn(move || runtime.block_on(stop.cancelled()))?;
        }
        Ok(Self::of(runtimes, guard))
    }

    /// The runtime that this is called in, for a listener with few connections.
    pub fn of_this_runtime() -> Self {
        Self::of(vec![Handle::current()], CancellationToken::new().drop_guard())
    }

    fn of(runtimes: Vec<Handle>, stop: DropGuard) -> Self {
        let counted = |runtime| ConnectionRuntime { runtime, connections: Arc::default() };
        let runtimes = runtimes.into_iter().map(counted).collect();
        Self(Arc::new(Threads { runtimes, last: AtomicUsize::default(), _stop: stop }))
    }

    /// About the number of files that [`Self::one_for_each_core`] keeps open.
    pub fn open_files() -> u64 {
        Self::count() as u64 * OPEN_FILES_OF_ONE
    }

    fn count() -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS)
    }

    /// The thread of the next connection: of those with the fewest, each in turn. The connection counts until the returned
    /// value is dropped.
    pub(super) fn next(&self) -> (&Handle, CountedConnection) {
        let Threads { runtimes, last, .. } = &*self.0;
        let (before, after) = runtimes.split_at((last.load(Ordering::Relaxed) + 1) % runtimes.len());
        let in_turn = after.iter().chain(before).zip(1..);
        let fewest = in_turn.min_by_key(|(runtime, _)| runtime.connections.load(Ordering::Relaxed));
        let (next, turn) = fewest.unwrap_or((&runtimes[0], 0));
        last.fetch_add(turn, Ordering::Relaxed);
        next.connections.fetch_add(1, Ordering::Relaxed);
        (&next.runtime, CountedConnection(Arc::clone(&next.connections)))
    }

    /// Waits until each thread has run a task. The caller sets the deadline.
    pub async fn respond(&self) {
        for ConnectionRuntime { runtime, .. } in &self.0.runtimes {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_gets_the_thread_with_the_fewest_and_each_has_its_turn() {
        let threads = ConnectionThreads::of(vec![Handle::current(); 3], CancellationToken::new().drop_guard());
        let counts =
            || threads.0.runtimes.iter().map(|one| one.connections.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let mut open: Vec<_> = (0..6).map(|_| threads.next().1).collect();
        assert_eq!(counts(), [2, 2, 2]);
        // Every third one is long: all of them on one thread.
        let long: Vec<_> = [open.remove(0), open.remove(2)].into();
        drop(open);
        assert_eq!(counts().iter().sum::<usize>(), 2);
        let more: Vec<_> = (0..4).map(|_| threads.next().1).collect();
        assert_eq!(counts(), [2, 2, 2]);
        drop((long, more));
        assert_eq!(counts(), [0, 0, 0]);
        // One at a time, as probes come: not always the same thread.
        let turns: Vec<usize> = (0..3)
            .map(|_| {
                let (_, _probe) = threads.next();
                counts().iter().position(|count| *count == 1).unwrap()
            })
            .collect();
        assert_eq!(turns.iter().collect::<std::collections::HashSet<_>>().len(), 3);
    }
}
