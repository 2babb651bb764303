//! Limits for upstream requests and git fetches (promise 11): concurrency and memory, per upstream and in total, so
//! that an upstream with large and slow answers leaves permits and memory for the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::backoff::Rate;
use super::request::RequestPriority;
use crate::address::Hostname;

/// Limits for upstream requests.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamLimits {
    /// Requests for documents and the files of proof sets.
    pub documents: ConcurrencyLimit,
    /// Requests for archives. Each runs until the last byte has arrived.
    pub archives: ConcurrencyLimit,
    /// Memory of document bodies.
    pub document_memory: DocumentMemoryLimits,
    /// Rate of revalidations for one upstream.
    pub revalidation_rate: Rate,
    /// Rate of job requests for one upstream. Few run at a time, and `Retry-After` delays them; this rate limits their
    /// total.
    pub job_rate: Rate,
    /// Time limit for a whole document, with redirects and retries. For other requests, the time limit until the first
    /// byte.
    pub give_up_after: Duration,
    /// Git fetches. Each runs from its first request to the last file of its tree.
    pub git_fetches: ConcurrencyLimit,
    /// Git fetches that only resolve a name to a commit.
    pub git_resolves: ConcurrencyLimit,
    /// Limits of one git fetch.
    pub git: GitLimits,
}

/// Limits of one git fetch.
#[derive(Debug, Clone, Copy)]
pub struct GitLimits {
    /// The longest silence during an answer.
    pub idle: Duration,
    /// Total time of a fetch, from the time that it has a permit.
    pub total: Duration,
    /// Total time of a fetch that only resolves a name.
    pub resolve_time: Duration,
    /// The longest wait for the first byte of a pack. Refs and progress messages do not reset it.
    pub preparing: Duration,
    /// Bytes before the pack. These are mostly refs, which are in memory.
    pub bytes_before_pack: u64,
    /// Number of refs in a repository.
    pub names: usize,
    /// Bytes received.
    pub received_bytes: u64,
    /// Objects in a pack. Each has an entry in memory.
    pub objects: u32,
    /// Size of one object. Whole objects are in memory.
    pub object_bytes: usize,
    /// Total size of a delta chain, which may be in memory at once.
    pub chain_bytes: u64,
    /// Time for the thread that runs gix to stop after cancellation. After that time it is abandoned.
    pub stop_time: Duration,
    /// Depth of nested submodules.
    pub submodule_depth: usize,
    /// Number of submodules.
    pub submodules: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            documents: ConcurrencyLimit { per_upstream: 64, all: 256, wait: Duration::from_secs(3), queue: 4096 },
            // Clients wait longer for an archive than for a document, and a permit is free as soon as its archive has
            // arrived.
            archives: ConcurrencyLimit { per_upstream: 64, all: 256, wait: Duration::from_secs(20), queue: 4096 },
            // One upstream gets half of the budget at most: eight documents of the largest size.
            document_memory: DocumentMemoryLimits { each_kib: 128 * 1024, all_kib: 256 * 1024 },
            revalidation_rate: Rate { burst: 500, per_second: 20 },
            job_rate: Rate { burst: 10_000, per_second: 50 },
            give_up_after: Duration::from_secs(15),
            // A fetch may wait for slow fetches before it. One upstream never gets every permit.
            git_fetches: ConcurrencyLimit { per_upstream: 2, all: 4, wait: Duration::from_secs(300), queue: 256 },
            git_resolves: ConcurrencyLimit { per_upstream: 2, all: 4, wait: Duration::from_secs(15), queue: 64 },
            git: GitLimits::default(),
        }
    }
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            total: Duration::from_secs(30 * 60),
            resolve_time: Duration::from_secs(15),
            preparing: Duration::from_secs(120),
            bytes_before_pack: 32 << 20,
            names: 500_000,
            received_bytes: 2 << 30,
            objects: 1_000_000,
            object_bytes: 32 << 20,
            chain_bytes: 256 << 20,
            stop_time: Duration::from_secs(10),
            submodule_depth: 8,
            submodules: 64,
        }
    }
}

/// The use of a resource, by upstream and in total. An upstream that uses none has no entry.
#[derive(Debug, Default)]
struct Usage {
    by_upstream: HashMap<Hostname, u64>,
    total: u64,
}

impl Usage {
    fn of(&self, upstream: &Hostname) -> u64 {
        self.by_upstream.get(upstream).copied().unwrap_or_default()
    }

    fn add(&mut self, upstream: &Hostname, amount: u64) {
        *self.by_upstream.entry(upstream.clone()).or_default() += amount;
        self.total += amount;
    }

    fn release(&mut self, upstream: &Hostname, amount: u64) {
        self.total = self.total.saturating_sub(amount);
        if let Some(used) = self.by_upstream.get_mut(upstream) {
            *used = used.saturating_sub(amount);
            if *used == 0 {
                self.by_upstream.remove(upstream);
            }
        }
    }
}

/// Concurrency limit for one kind of request. A request that has a permit never waits for another one. Clients go before
/// jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// Limit for one upstream, including requests to other origins that its documents lead to.
    pub per_upstream: u64,
    /// Limit for all upstreams together.
    pub all: u64,
    /// The longest wait for a permit.
    pub wait: Duration,
    /// Queue length for one upstream. While the queue is full, further requests are refused at once.
    pub queue: usize,
}

/// Grants permits, and queues the requests that wait for one.
#[derive(Debug, Clone)]
pub(crate) struct ConcurrencyLimits(Arc<PermitQueue>);

#[derive(Debug)]
struct PermitQueue {
    limit: ConcurrencyLimit,
    state: Mutex<PermitState>,
}

#[derive(Debug, Default)]
struct PermitState {
    /// The number of permits in use.
    in_use: Usage,
    /// The requests that wait for a permit, in the order of their arrival.
    queue: Vec<QueuedRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    upstream: Hostname,
    priority: RequestPriority,
    sender: oneshot::Sender<Permit>,
}

/// A permit for one request, released on drop.
#[derive(Debug)]
pub struct Permit {
    upstream: Hostname,
    shared: Arc<PermitQueue>,
}

impl ConcurrencyLimits {
    pub(crate) fn new(limit: ConcurrencyLimit) -> Self {
        Self(Arc::new(PermitQueue { limit, state: Mutex::default() }))
    }

    /// Takes a permit, waiting if necessary. `None` if the queue is full or the wait is too long.
    pub(crate) async fn take(&self, upstream: &Hostname, priority: RequestPriority) -> Option<Permit> {
        let receiver = {
            let mut state = self.0.state.lock();
            if state.has_capacity(upstream, self.0.limit) {
                // No queued request could use this permit, because every released permit is passed on at once.
                return Some(state.grant(upstream, &self.0));
            }
            state.queue.retain(|queued| !queued.sender.is_closed());
            if state.queue.iter().filter(|queued| queued.upstream == *upstream).count() >= self.0.limit.queue {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            state.queue.push(QueuedRequest { upstream: upstream.clone(), priority, sender });
            receiver
        };
        timeout(self.0.limit.wait, receiver).await.ok()?.ok()
    }
}

impl PermitState {
    fn has_capacity(&self, upstream: &Hostname, limit: ConcurrencyLimit) -> bool {
        self.in_use.total < limit.all && self.in_use.of(upstream) < limit.per_upstream
    }

    fn grant(&mut self, upstream: &Hostname, shared: &Arc<PermitQueue>) -> Permit {
        self.in_use.add(upstream, 1);
        Permit { upstream: upstream.clone(), shared: Arc::clone(shared) }
    }

    /// Removes the next request that can run, clients before jobs. Requests of the upstream with the fewest permits go
    /// first, so that slow upstreams do not take all permits. A client in the middle of a file goes before all others,
    /// because it has waited before.
    fn next(&mut self, limit: ConcurrencyLimit) -> Option<QueuedRequest> {
        let can_run = |queued: &QueuedRequest| !queued.sender.is_closed() && self.has_capacity(&queued.upstream, limit);
        let rank = |queued: &QueuedRequest| match queued.priority {
            RequestPriority::ClientResumption => (queued.priority, 0),
            RequestPriority::Client | RequestPriority::Job => (queued.priority, self.in_use.of(&queued.upstream)),
        };
        let runnable = self.queue.iter().enumerate().filter(|(_, queued)| can_run(queued));
        let (index, _) = runnable.min_by_key(|(_, queued)| rank(queued))?;
        Some(self.queue.remove(index))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut passed_on = Vec::new();
        {
            let mut state = self.shared.state.lock();
            state.in_use.release(&self.upstream, 1);
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

/// A body without a Content-Length grows in steps of this size.
const GROWTH_STEP_KIB: u64 = 64;

/// Memory limits for documents, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentMemoryLimits {
    /// Limit for one upstream, including the documents at other origins that its documents lead to.
    pub each_kib: u32,
    /// Limit for all upstreams together.
    pub all_kib: u32,
}

/// The limit that refused a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MemoryLimitReached {
    #[error("the documents of this upstream that are in memory have reached their limit")]
    PerUpstream,
    #[error("the documents that are in memory have reached their limit")]
    Total,
}

/// The memory budget.
#[derive(Debug)]
pub(super) struct DocumentMemory {
    limits: DocumentMemoryLimits,
    /// Memory in use, in KiB.
    used: Mutex<Usage>,
}

/// The memory of a complete body, released when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct MemoryGrant(#[expect(dead_code, reason = "held only for its Drop")] Option<Arc<GrowingMemory>>);

/// The memory of an arriving body. Growth is granted or refused at once; it never waits.
#[derive(Debug)]
pub(super) struct GrowingMemory {
    memory: Arc<DocumentMemory>,
    upstream: Hostname,
    kib: u64,
    /// Memory beyond the limits, so that the largest object fits whatever else is in memory.
    extra_kib: u64,
}

impl DocumentMemory {
    pub(super) fn new(limits: DocumentMemoryLimits) -> Arc<Self> {
        Arc::new(Self { limits, used: Mutex::default() })
    }

    /// Starts a body or a git fetch of this upstream. It has no memory yet. So many extra bytes always fit, whatever else is in
    /// memory.
    pub(super) fn start(self: &Arc<Self>, upstream: &Hostname, extra_bytes: u64) -> GrowingMemory {
        let extra_kib = extra_bytes.div_ceil(1024);
        GrowingMemory { memory: Arc::clone(self), upstream: upstream.clone(), kib: 0, extra_kib }
    }

    fn take(&self, upstream: &Hostname, kib: u64, extra_kib: u64) -> Result<(), MemoryLimitReached> {
        let DocumentMemoryLimits { each_kib, all_kib } = self.limits;
        let mut used = self.used.lock();
        if used.of(upstream).saturating_add(kib) > u64::from(each_kib).saturating_add(extra_kib) {
            return Err(MemoryLimitReached::PerUpstream);
        }
        if used.total.saturating_add(kib) > u64::from(all_kib).saturating_add(extra_kib) {
            return Err(MemoryLimitReached::Total);
        }
        used.add(upstream, kib);
        Ok(())
    }
}

impl GrowingMemory {
    /// Grows the body's memory to this many bytes.
    ///
    /// # Errors
    /// The limit that was reached. The body keeps the memory that it has.
    pub(super) fn grow_to(&mut self, bytes: u64) -> Result<(), MemoryLimitReached> {
        let needed = bytes.div_ceil(1024);
        if needed <= self.kib {
            return Ok(());
        }
        let needed = if self.kib == 0 { needed } else { needed.next_multiple_of(GROWTH_STEP_KIB) };
        self.memory.take(&self.upstream, needed - self.kib, self.extra_kib)?;
        self.kib = needed;
        Ok(())
    }

    pub(super) fn into_grant(self) -> MemoryGrant {
        MemoryGrant((self.kib > 0).then(|| Arc::new(self)))
    }
}

impl Drop for GrowingMemory {
    fn drop(&mut self) {
        if self.kib > 0 {
            self.memory.used.lock().release(&self.upstream, self.kib);
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

    /// Clients go before jobs (promise 11).
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

    /// An upstream with slow requests does not delay others (promise 11).
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
        assert_eq!(permits.0.state.lock().in_use.total, 0);
    }

    /// Limits are exact to the KiB, the last clone releases its memory, and no empty entry stays (promise 11).
    #[test]
    fn each_upstream_has_a_share_of_the_memory_budget() {
        let memory = DocumentMemory::new(DocumentMemoryLimits { each_kib: 100, all_kib: 150 });
        let (a, b) = (Hostname::parse("a.example").unwrap(), Hostname::parse("b.example").unwrap());
        let body = |upstream, kib| {
            let mut growing = memory.start(upstream, 0);
            growing.grow_to(kib * 1024).map(|()| growing.into_grant())
        };
        let first = body(&a, 60).unwrap();
        let first_clone = first.clone();
        assert_eq!(body(&a, 41).unwrap_err(), MemoryLimitReached::PerUpstream);
        let second = body(&b, 90).unwrap();
        assert_eq!(body(&a, 1).unwrap_err(), MemoryLimitReached::Total);
        drop(first);
        assert_eq!(body(&a, 41).unwrap_err(), MemoryLimitReached::PerUpstream, "a clone of the first body is left");
        drop((first_clone, second));
        assert!(memory.used.lock().by_upstream.is_empty());
        drop(body(&a, 100).unwrap());
        assert_eq!(body(&a, u64::MAX / 1024).unwrap_err(), MemoryLimitReached::PerUpstream);
        assert_eq!(memory.used.lock().total, 0);
    }

    /// A body without a Content-Length grows in steps, and a refused body releases its memory (promise 11).
    #[test]
    fn a_body_grows_until_it_reaches_a_limit() {
        let memory = DocumentMemory::new(DocumentMemoryLimits { each_kib: 130, all_kib: 150 });
        let upstream = Hostname::parse("a.example").unwrap();
        let mut growing = memory.start(&upstream, 0);
        growing.grow_to(0).unwrap();
        assert!(memory.used.lock().by_upstream.is_empty());
        growing.grow_to(10).unwrap();
        growing.grow_to(2000).unwrap();
        growing.grow_to(64 * 1024 + 1).unwrap();
        assert_eq!(memory.used.lock().total, 128);
        assert_eq!(growing.grow_to(128 * 1024 + 1), Err(MemoryLimitReached::PerUpstream));
        assert_eq!(memory.used.lock().total, 128);
        drop(growing);
        assert_eq!(memory.used.lock().total, 0);
    }
}
