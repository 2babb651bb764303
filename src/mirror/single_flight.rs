//! One piece of work per key at a time. It outlives whoever asked first; all who ask share how it ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::tasks::Tasks;

/// The work under way, by key; `V` is what those who join it get hold of.
#[derive(Debug)]
pub(super) struct Flights<K: Hash + Eq, V>(Arc<Mutex<HashMap<K, V>>>);

impl<K: Hash + Eq, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Ends a flight when it is dropped: the next to ask starts another.
#[derive(Debug)]
pub(super) struct Landing<K: Hash + Eq, V> {
    key: K,
    flights: Arc<Mutex<HashMap<K, V>>>,
}

impl<K: Hash + Eq, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Flights<K, V> {
    /// Joins the flight for `key`, or starts it: `start` says what there is to join, and gives the work,
    /// which must hold the landing, as something to set off once others can join.
    pub(super) fn join<Go: FnOnce()>(&self, key: K, start: impl FnOnce(Landing<K, V>) -> (V, Go)) -> V {
        let Ok(joined) = self.try_join(key, || Ok::<(), Infallible>(()), start);
        joined
    }

    /// The same where not everybody may start one.
    ///
    /// # Errors
    /// What `may_start` says; it is not asked where there is a flight to join.
    pub(super) fn try_join<E, Go: FnOnce()>(
        &self,
        key: K,
        may_start: impl FnOnce() -> Result<(), E>,
        start: impl FnOnce(Landing<K, V>) -> (V, Go),
    ) -> Result<V, E> {
        let (started, go) = {
            let mut flights = self.0.lock();
            if let Some(under_way) = flights.get(&key) {
                return Ok(under_way.clone());
            }
            may_start()?;
            let (started, go) = start(Landing { key: key.clone(), flights: Arc::clone(&self.0) });
            flights.insert(key, started.clone());
            (started, go)
        };
        // Not under the lock: a runtime that is shutting down drops the work, and with it the landing, here.
        go();
        Ok(started)
    }
}

/// A result that many wait for.
pub(super) type Awaited<T> = Shared<BoxFuture<'static, T>>;

impl<K, T> Flights<K, Awaited<T>>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Joins the work for `key`, or spawns it. `lost` is what all get if its task dies.
    pub(super) fn share<F>(&self, tasks: &Tasks, key: K, lost: T, work: impl FnOnce() -> F) -> Awaited<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.join(key, |landing| {
            let (awaited, spawn) = awaited(tasks, lost, work());
            (awaited, || spawn(landing))
        })
    }
}

/// The result of work that many wait for, and what spawns that work, given what is to be dropped when it is done and
/// before anybody is told. `lost` is what all get if its task dies.
pub(super) fn awaited<T, F, L>(tasks: &Tasks, lost: T, work: F) -> (Awaited<T>, impl FnOnce(L))
where
    T: Clone + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
    L: Send + 'static,
{
    let (tell, told) = oneshot::channel();
    let spawn = move |landing| {
        tasks.spawn(async move {
            let done = work.await;
            drop(landing);
            // Nobody may be left to be told.
            let _ = tell.send(done);
        });
    };
    (async move { told.await.unwrap_or(lost) }.boxed().shared(), spawn)
}
