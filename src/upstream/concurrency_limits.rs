//! Concurrency limits for upstream requests, per upstream and in total. A request that has a permit never waits for
//! another one. Clients go before jobs.

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
    /// Limit for one upstream, including requests to other origins that its documents lead to.
    pub per_upstream: usize,
    /// Limit for all upstreams together.
    pub all: usize,
    /// The longest wait for a permit.
    pub wait: Duration,
    /// Queue length for one upstream. While the queue is full, further requests are refused at once.
    pub queue: usize,
}

/// Grants permits, and queues the requests that wait for one.
#[derive(Debug, Clone)]
pub(crate) struct ConcurrencyLimits(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: ConcurrencyLimit,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of permits in use, by upstream and in total.
    in_use: HashMap<Hostname, usize>,
    total_in_use: usize,
    clients: VecDeque<QueuedRequest>,
    jobs: VecDeque<QueuedRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    upstream: Hostname,
    priority: RequestPriority,
    sender: oneshot::Sender<Permit>,
}

/// A permit for one request, released on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    upstream: Hostname,
    shared: Arc<Inner>,
}

impl ConcurrencyLimits {
    pub(crate) fn new(limit: ConcurrencyLimit) -> Self {
        Self(Arc::new(Inner { limit, state: Mutex::default() }))
    }

    /// Takes a permit, waiting if necessary. `None` if the queue is full or the wait is too long.
    pub(crate) async fn take(&self, upstream: &Hostname, priority: RequestPriority) -> Option<Permit> {
        let receiver = {
            let mut state = self.0.state.lock();
            if state.has_capacity(upstream, self.0.limit) {
                // No queued request could use this permit, because every released permit is passed on at once.
                return Some(state.grant(upstream, &self.0));
            }
            let (sender, receiver) = oneshot::channel();
            let request = QueuedRequest { upstream: upstream.clone(), priority, sender };
            state.clients.retain(|queued| !queued.sender.is_closed());
            state.jobs.retain(|queued| !queued.sender.is_closed());
            let of_upstream = state.clients.iter().chain(&state.jobs).filter(|queued| queued.upstream == *upstream);
            if of_upstream.count() >= self.0.limit.queue {
                return None;
            }
            match priority {
                RequestPriority::ClientMidway => state.clients.push_front(request),
                RequestPriority::Client => state.clients.push_back(request),
                RequestPriority::Job => state.jobs.push_back(request),
            }
            receiver
        };
        timeout(self.0.limit.wait, receiver).await.ok()?.ok()
    }
}

impl State {
    fn has_capacity(&self, upstream: &Hostname, limit: ConcurrencyLimit) -> bool {
        self.total_in_use < limit.all && self.in_use.get(upstream).copied().unwrap_or_default() < limit.per_upstream
    }

    fn grant(&mut self, upstream: &Hostname, shared: &Arc<Inner>) -> Permit {
        *self.in_use.entry(upstream.clone()).or_default() += 1;
        self.total_in_use += 1;
        Permit { upstream: upstream.clone(), shared: Arc::clone(shared) }
    }

    fn release(&mut self, upstream: &Hostname) {
        self.total_in_use = self.total_in_use.saturating_sub(1);
        if let Some(count) = self.in_use.get_mut(upstream) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.in_use.remove(upstream);
            }
        }
    }

    /// Removes the next request that can run, clients before jobs. Requests of the upstream with the fewest permits go
    /// first, so that slow upstreams do not take all permits. A client in the middle of a file goes before all others,
    /// because it has waited before.
    fn next(&mut self, limit: ConcurrencyLimit) -> Option<QueuedRequest> {
        let first = |state: &Self, queue: &VecDeque<QueuedRequest>| {
            let can_run =
                |queued: &QueuedRequest| !queued.sender.is_closed() && state.has_capacity(&queued.upstream, limit);
            let runnable = queue.iter().enumerate().filter(|(_, queued)| can_run(queued));
            let rank = |queued: &QueuedRequest| match queued.priority {
                RequestPriority::ClientMidway => 0,
                RequestPriority::Client | RequestPriority::Job => {
                    state.in_use.get(&queued.upstream).copied().unwrap_or_default() + 1
                }
            };
            runnable.min_by_key(|(_, queued)| rank(queued)).map(|(index, _)| index)
        };
        match first(self, &self.clients) {
            Some(index) => self.clients.remove(index),
            None => first(self, &self.jobs).and_then(|index| self.jobs.remove(index)),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut passed_on = Vec::new();
        {
            let mut state = self.shared.state.lock();
            state.release(&self.upstream);
            while let Some(queued) = state.next(self.shared.limit) {
                passed_on.push((state.grant(&queued.upstream, &self.shared), queued.sender));
            }
        }
        for (permit, sender) in passed_on {
            // If the receiver gave up meanwhile, the permit is dropped here and passes to the next request.
            let _ = sender.send(permit);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    const LIMIT: ConcurrencyLimit =
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
        let permits = ConcurrencyLimits::new(LIMIT);
        let (first, _second) = (take_permit(&permits, "a.example").await, take_permit(&permits, "a.example").await);
        assert!(
            permits.take(&host("a.example"), RequestPriority::Client).await.is_none(),
            "a third permit for one upstream"
        );
        let _third = take_permit(&permits, "b.example").await;
        assert!(permits.take(&host("b.example"), RequestPriority::Client).await.is_none(), "a fourth permit in total");
        drop(first);
        let _fourth = take_permit(&permits, "b.example").await;
    }

    /// Clients go before jobs (DESIGN, promise 11).
    #[tokio::test]
    async fn a_released_permit_goes_to_clients_before_jobs_in_order() {
        let permits = ConcurrencyLimits::new(ConcurrencyLimit {
            per_upstream: 1,
            all: 1,
            wait: Duration::from_secs(60),
            ..LIMIT
        });
        let mut permit = Some(take_permit(&permits, "a.example").await);
        let mut waiting = Vec::new();
        for (name, priority) in
            [("a", RequestPriority::Job), ("b", RequestPriority::Client), ("a", RequestPriority::Client)]
        {
            waiting.push(spawn_request(&permits, &format!("{name}.example"), priority));
            settle().await;
        }
        for expected in [1, 1, 0] {
            drop(permit.take());
            settle().await;
            let done: Vec<bool> = waiting.iter().map(JoinHandle::is_finished).collect();
            assert_eq!(done.iter().filter(|done| **done).count(), 1, "{done:?}");
            assert!(done[expected], "{expected}: {done:?}");
            permit = waiting.remove(expected).await.unwrap();
        }
    }

    /// An upstream with slow requests does not delay others (DESIGN, promise 11).
    #[tokio::test]
    async fn a_released_permit_goes_to_the_upstream_with_the_fewest_permits_and_queues_are_limited() {
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
        assert!(
            permits.take(&host("a.example"), RequestPriority::Client).await.is_none(),
            "a third request in the queue"
        );
        drop(first);
        settle().await;
        let done: Vec<bool> = waiting.iter().map(JoinHandle::is_finished).collect();
        assert_eq!(done, [false, false, true]);
    }

    #[tokio::test]
    async fn an_abandoned_wait_takes_no_permit() {
        let permits = ConcurrencyLimits::new(ConcurrencyLimit { per_upstream: 1, all: 1, ..LIMIT });
        let permit = take_permit(&permits, "a.example").await;
        let gave_up = spawn_request(&permits, "a.example", RequestPriority::Client);
        settle().await;
        gave_up.abort();
        let _ = gave_up.await;
        drop(permit);
        let retaken = take_permit(&permits, "a.example").await;
        assert!(
            permits.take(&host("a.example"), RequestPriority::Client).await.is_none(),
            "the limit is reached again"
        );
        drop(retaken);
        drop(take_permit(&permits, "a.example").await);
        assert_eq!(permits.0.state.lock().total_in_use, 0);
    }
}
