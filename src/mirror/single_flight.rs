//! One task per key at a time. It outlives its first caller, and all callers share its result.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::mirror::effects::Effects;
use crate::mirror::tasks::Tasks;

/// The tasks in progress, by key; `V` is the handle for those who join.
#[derive(Debug)]
pub struct SingleFlights<K: Hash + Eq, V>(Arc<Mutex<HashMap<K, V>>>);

impl<K: Hash + Eq, V> Default for SingleFlights<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Ends a flight on drop: the next request starts another.
#[derive(Debug)]
pub struct FlightGuard<K: Hash + Eq, V> {
    key: K,
    flights: Arc<Mutex<HashMap<K, V>>>,
}

impl<K: Hash + Eq, V> Drop for FlightGuard<K, V> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}

impl<K: Hash + Eq + Clone, V: Clone> SingleFlights<K, V> {
    /// Joins the flight for `key`, or starts one if `may_start` allows it. `start` returns the handle to join, and a
    /// closure that runs the work once others can join. The work must own the guard.
    ///
    /// # Errors
    /// The error of `may_start`, which is not called where a flight can be joined.
    pub fn try_join<E, Run: FnOnce()>(
        &self,
        key: K,
        may_start: impl FnOnce() -> Result<(), E>,
        start: impl FnOnce(FlightGuard<K, V>) -> (V, Run),
    ) -> Result<V, E> {
        let (started, run) = {
            let mut flights = self.0.lock();
            if let Some(flight) = flights.get(&key) {
                return Ok(flight.clone());
            }
            may_start()?;
            let (started, run) = start(FlightGuard { key: key.clone(), flights: Arc::clone(&self.0) });
            flights.insert(key, started.clone());
            (started, run)
        };
        // Outside the lock: a runtime in shutdown drops the work, and with it the guard, here.
        run();
        Ok(started)
    }
}

/// A result that several callers wait for.
pub type SharedResult<T> = Shared<BoxFuture<'static, T>>;

impl<K, T> SingleFlights<K, SharedResult<T>>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Joins the work for `key`, or spawns it. All callers get `if_task_dies` if its task dies. Without effects the caller
    /// itself does the work.
    pub fn join_or_spawn<F>(
        &self,
        effects: Effects,
        tasks: &Tasks,
        key: K,
        if_task_dies: T,
        work: impl FnOnce() -> F,
    ) -> SharedResult<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        if effects == Effects::None {
            return work().boxed().shared();
        }
        let Ok(joined) = self.try_join(
            key,
            || Ok::<(), Infallible>(()),
            |guard| {
                let (awaited, spawn) = shareable(tasks, if_task_dies, work());
                (awaited, || spawn(guard))
            },
        );
        joined
    }
}

/// Makes the result of `work` shareable. The closure spawns the work, and drops its argument, such as the guard of the
/// flight, when the work is done and before the result is published. All callers get `if_task_dies` if the task dies.
pub fn shareable<T, F, L>(tasks: &Tasks, if_task_dies: T, work: F) -> (SharedResult<T>, impl FnOnce(L))
where
    T: Clone + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
    L: Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let spawn = move |drop_when_done| {
        tasks.spawn(async move {
            let done = work.await;
            drop(drop_when_done);
            // The callers may be gone.
            let _ = sender.send(done);
        });
    };
    (async move { receiver.await.unwrap_or(if_task_dies) }.boxed().shared(), spawn)
}
