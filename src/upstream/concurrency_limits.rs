//! Concurrency limits for upstream requests, per upstream and in total. No request waits for a permit while it has one.
//! Clients go before jobs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::request::RequestPriority;
use crate::address::Hostname;

/// Concurrency limit for one kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// Limit for one upstream, wherever its documents lead.
    pub per_upstream: usize,
    /// Limit for all upstreams together.
    pub all: usize,
    /// The longest wait for a permit.
    pub wait: Duration,
    /// Queue length for one upstream; the next request is refused at once.
    pub queue: usize,
}

/// Grants permits, and queues the requests that wait for one.
#[derive(Debug, Clone)]
pub(crate) struct ConcurrencyLimits(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bound: ConcurrencyLimit,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: HashMap<Hostname, usize>,
    all: usize,
    clients: VecDeque<QueuedRequest>,
    jobs: VecDeque<QueuedRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    upstream: Hostname,
    priority: RequestPriority,
    tell: oneshot::Sender<Permit>,
}

/// A permit for one request, released on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    upstream: Hostname,
    limits: Arc<Inner>,
}

impl ConcurrencyLimits {
    pub(crate) fn new(bound: ConcurrencyLimit) -> Self {
        Self(Arc::new(Inner { bound, state: Mutex::default() }))
    }

    /// Takes a permit, waiting if necessary. `None` if the queue is full or the wait is too long.
    pub(crate) async fn take(&self, upstream: &Hostname, priority: RequestPriority) -> Option<Permit> {
        let receiver = {
            let mut state = self.0.state.lock();
            if state.has_capacity(upstream, self.0.bound) {
                // No queued request could use this permit: a released one is passed on at once.
                return Some(state.grant(upstream, &self.0));
            }
            let (sender, receiver) = oneshot::channel();
            let waiting = QueuedRequest { upstream: upstream.clone(), priority, tell: sender };
            state.clients.retain(|waiting| !waiting.tell.is_closed());
            state.jobs.retain(|waiting| !waiting.tell.is_closed());
            let queued = state.clients.iter().chain(&state.jobs).filter(|waiting| waiting.upstream == *upstream);
            if queued.count() >= self.0.bound.queue {
                return None;
            }
            match priority {
                RequestPriority::ClientMidway => state.clients.push_front(waiting),
                RequestPriority::Client => state.clients.push_back(waiting),
                RequestPriority::Job => state.jobs.push_back(waiting),
            }
            receiver
        };
        timeout(self.0.bound.wait, receiver).await.ok()?.ok()
    }
}

impl State {
    fn has_capacity(&self, upstream: &Hostname, bound: ConcurrencyLimit) -> bool {
        self.all < bound.all && self.taken.get(upstream).copied().unwrap_or_default() < bound.per_upstream
    }

    fn grant(&mut self, upstream: &Hostname, limits: &Arc<Inner>) -> Permit {
        *self.taken.entry(upstream.clone()).or_default() += 1;
        self.all += 1;
        Permit { upstream: upstream.clone(), limits: Arc::clone(limits) }
    }

    fn release(&mut self, upstream: &Hostname) {
        self.all = self.all.saturating_sub(1);
        if let Some(taken) = self.taken.get_mut(upstream) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                self.taken.remove(upstream);
            }
        }
    }

    /// Removes the next request that can run, clients before jobs. It is one of the upstream with the fewest permits,
    /// so that slow upstreams do not take them all. A client in the middle of a file goes first: it has waited before.
    fn next(&mut self, bound: ConcurrencyLimit) -> Option<QueuedRequest> {
        let first = |state: &Self, queue: &VecDeque<QueuedRequest>| {
            let waits =
                |waiting: &QueuedRequest| !waiting.tell.is_closed() && state.has_capacity(&waiting.upstream, bound);
            let waiting = queue.iter().enumerate().filter(|(_, waiting)| waits(waiting));
            let least = |waiting: &QueuedRequest| match waiting.priority {
                RequestPriority::ClientMidway => 0,
                RequestPriority::Client | RequestPriority::Job => {
                    state.taken.get(&waiting.upstream).copied().unwrap_or_default() + 1
                }
            };
            waiting.min_by_key(|(_, waiting)| least(waiting)).map(|(index, _)| index)
        };
        match first(self, &self.clients) {
            Some(index) => self.clients.remove(index),
            None => first(self, &self.jobs).and_then(|index| self.jobs.remove(index)),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut handed_on = Vec::new();
        {
            let mut state = self.limits.state.lock();
            state.release(&self.upstream);
            while let Some(waiting) = state.next(self.limits.bound) {
                handed_on.push((state.grant(&waiting.upstream, &self.limits), waiting.tell));
            }
        }
        for (permit, sender) in handed_on {
            // If the receiver gave up meanwhile, the permit is dropped here and passes to the next request.
            let _ = sender.send(permit);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    const BOUND: ConcurrencyLimit =
        ConcurrencyLimit { per_upstream: 2, all: 3, wait: Duration::from_millis(20), queue: 10 };

    fn host(name: &str) -> Hostname {
        Hostname::parse(name).unwrap()
    }

    async fn take_permit(permits: &ConcurrencyLimits, name: &str) -> Permit {
        permits.take(&host(name), RequestPriority::Client).await.unwrap()
    }

    fn spawn_request(permits: &ConcurrencyLimits, name: &str, priority: RequestPriority) -> JoinHandle<Option<Permit>> {
        let (permits, name) = (permits.clone(), host(name));
        tokio::spawn(async move { permits.take(&name, priority).await })
    }

    /// Lets all spawned tasks reach their wait.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_upstream_does_not_take_all_permits() {
        let permits = ConcurrencyLimits::new(BOUND);
        let (first, _second) = (take_permit(&permits, "a.example").await, take_permit(&permits, "a.example").await);
        assert!(permits.take(&host("a.example"), RequestPriority::Client).await.is_none(), "a third to one");
        let _third = take_permit(&permits, "b.example").await;
        assert!(permits.take(&host("b.example"), RequestPriority::Client).await.is_none(), "a fourth in all");
        drop(first);
        let _fourth = take_permit(&permits, "b.example").await;
    }

    /// DESIGN, promise 11: clients go before jobs.
    #[tokio::test]
    async fn a_released_permit_goes_to_clients_before_jobs_in_order() {
        let permits = ConcurrencyLimits::new(ConcurrencyLimit {
            per_upstream: 1,
            all: 1,
            wait: Duration::from_secs(60),
            ..BOUND
        });
        let mut permit = Some(take_permit(&permits, "a.example").await);
        let mut waiting = Vec::new();
        for (name, asker) in
            [("a", RequestPriority::Job), ("b", RequestPriority::Client), ("a", RequestPriority::Client)]
        {
            waiting.push(spawn_request(&permits, &format!("{name}.example"), asker));
            settle().await;
        }
        for next in [1, 1, 0] {
            drop(permit.take());
            settle().await;
            let done: Vec<bool> = waiting.iter().map(JoinHandle::is_finished).collect();
            assert_eq!(done.iter().filter(|done| **done).count(), 1, "{done:?}");
            assert!(done[next], "{next}: {done:?}");
            permit = waiting.remove(next).await.unwrap();
        }
    }

    /// DESIGN, promise 11: an upstream with slow requests does not delay others.
    #[tokio::test]
    async fn a_released_permit_goes_to_the_upstream_with_the_fewest_and_queues_are_limited() {
        let permits = ConcurrencyLimits::new(ConcurrencyLimit {
            per_upstream: 2,
            all: 2,
            wait: Duration::from_secs(60),
            queue: 2,
        });
        let (first, _second) = (take_permit(&permits, "a.example").await, take_permit(&permits, "a.example").await);
        let mut waiting = Vec::new();
        for name in ["a.example", "a.example", "b.example"] {
            waiting.push(spawn_request(&permits, name, RequestPriority::Client));
            settle().await;
        }
        assert!(permits.take(&host("a.example"), RequestPriority::Client).await.is_none(), "a third in the queue");
        drop(first);
        settle().await;
        let done: Vec<bool> = waiting.iter().map(JoinHandle::is_finished).collect();
        assert_eq!(done, [false, false, true]);
    }

    #[tokio::test]
    async fn an_abandoned_wait_takes_no_permit() {
        let permits = ConcurrencyLimits::new(ConcurrencyLimit { per_upstream: 1, all: 1, ..BOUND });
        let permit = take_permit(&permits, "a.example").await;
        let gave_up = spawn_request(&permits, "a.example", RequestPriority::Client);
        settle().await;
        gave_up.abort();
        let _ = gave_up.await;
        drop(permit);
        let again = take_permit(&permits, "a.example").await;
        assert!(permits.take(&host("a.example"), RequestPriority::Client).await.is_none(), "waited, and gave up");
        drop(again);
        drop(take_permit(&permits, "a.example").await);
        assert_eq!(permits.0.state.lock().all, 0);
    }
}
