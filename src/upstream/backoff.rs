//! Delays revalidations and jobs, by a circuit breaker for each origin and rate limits for each upstream. Every request
//! is observed, but a client's fetch of an uncached object is never delayed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use super::breaker::{BreakerChange, Breakers, Origin, Probe};
use super::response_headers::retry_after;
use crate::address::Hostname;
use crate::clock::{CLOCK_SLACK, Timestamp};

/// An abandoned request counts as a failure of the origin only if it had waited this long. One that was abandoned sooner
/// was ended by larder or by the client.
const MIN_ABANDONED_WAIT: Duration = Duration::from_secs(1);

/// The breakers and rate limits that all requests share.
#[derive(Debug, Clone)]
pub(super) struct UpstreamBackoff(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rates: Rates,
    jitter: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// One circuit breaker for each origin, with the upstream whose documents led to that origin.
    breakers: Breakers<Hostname>,
    token_buckets: HashMap<(Hostname, BudgetPurpose), TokenBucket>,
    /// Start times of the requests that wait for an answer, by origin and request number.
    unanswered: HashMap<Origin, HashMap<u64, Instant>>,
    /// The number of the latest request.
    last_request_number: u64,
}

/// Purposes with separate rate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetPurpose {
    /// Revalidation of a cached document.
    Revalidation,
    /// Fetch by a job.
    Job,
}

/// Rate limits of one upstream, by purpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) revalidations: Rate,
    pub(super) jobs: Rate,
}

/// Permission to revalidate. The permit owns breaker probes, and returns them when its last copy is dropped.
#[derive(Debug, Clone, Default)]
pub struct RevalidationPermit(Option<Arc<Probes>>);

#[derive(Debug)]
struct Probes {
    owned: Vec<Probe>,
    /// The permit of the enclosing work.
    enclosing: RevalidationPermit,
    backoff: UpstreamBackoff,
}

impl RevalidationPermit {
    /// The probes of this permit and of those around it.
    fn probes(&self) -> Vec<Probe> {
        let mut probes = Vec::new();
        let mut permit = self;
        while let Some(inner) = &permit.0 {
            probes.extend_from_slice(&inner.owned);
            permit = &inner.enclosing;
        }
        probes
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        let mut state = self.backoff.0.state.lock();
        self.owned.iter().for_each(|probe| state.breakers.return_probe(probe));
    }
}

/// The start of a request: by the caller's clock, and by the monotonic clock, which measures how long it has run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTime {
    started_at: Timestamp,
    started: Instant,
}

impl RequestTime {
    pub(super) fn new(started_at: Timestamp) -> Self {
        Self { started_at, started: Instant::now() }
    }

    /// The time now, by the caller's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.started_at.after(self.started.elapsed())
    }
}

impl UpstreamBackoff {
    pub(super) fn new(rates: Rates) -> Self {
        Self(Arc::new(Inner { rates, jitter: RandomState::new(), state: Mutex::default() }))
    }

    /// Returns a permit to revalidate at all of these origins; `None` while the breaker of one is open. `enclosing` is the
    /// permit of the enclosing work. Its probes also allow this work.
    pub(super) fn revalidation_permit(
        &self,
        origins: &[Origin],
        enclosing: &RevalidationPermit,
        now: Timestamp,
    ) -> Option<RevalidationPermit> {
        let owned = self.0.state.lock().breakers.admit(origins, &enclosing.probes(), now)?;
        if owned.is_empty() {
            return Some(enclosing.clone());
        }
        Some(RevalidationPermit(Some(Arc::new(Probes { owned, enclosing: enclosing.clone(), backoff: self.clone() }))))
    }

    /// The end of the longest Retry-After of these origins, or of any other origin that this upstream led to.
    pub(super) fn retry_after_until(
        &self,
        upstream: &Hostname,
        origins: &[Origin],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_relevant = |origin: &Origin, host: &Hostname| host == upstream || origins.contains(origin);
        self.0.state.lock().breakers.retry_after_until(is_relevant, now)
    }

    /// Takes requests from an upstream's rate limit. Takes none and returns false if too few are left.
    pub(super) fn spend(&self, upstream: &Hostname, purpose: BudgetPurpose, requests: u32, now: Timestamp) -> bool {
        let rate = match purpose {
            BudgetPurpose::Revalidation => self.0.rates.revalidations,
            BudgetPurpose::Job => self.0.rates.jobs,
        };
        let mut state = self.0.state.lock();
        // The map has at most one bucket for each configured upstream and purpose.
        let bucket =
            state.token_buckets.entry((upstream.clone(), purpose)).or_insert_with(|| TokenBucket::full(rate, now));
        bucket.spend(requests, rate, now)
    }

    /// The upstreams and origins with an open breaker, and the end of each pause.
    pub(super) fn open_breakers(&self, now: Timestamp) -> Vec<(Hostname, Origin, Timestamp)> {
        let state = self.0.state.lock();
        let open = state.breakers.open_breakers(now);
        open.map(|(origin, until, host)| (host.clone(), origin.clone(), until)).collect()
    }

    /// Records that a client waited `patience` for these origins, and got the cached copy instead of an answer. Every
    /// origin with a request that has been unanswered for at least half of `patience` counts as failed.
    pub(super) fn record_client_timeout(
        &self,
        upstream: &Hostname,
        origins: &[Origin],
        patience: Duration,
        now: Timestamp,
    ) {
        let is_slow = |origin: &&Origin| {
            let state = self.0.state.lock();
            let mut start_times = state.unanswered.get(*origin).into_iter().flat_map(HashMap::values);
            !patience.is_zero() && start_times.any(|started| started.elapsed() >= patience / 2)
        };
        for origin in origins.iter().filter(is_slow) {
            self.record_failure(upstream, origin, "the origin is slow to answer", None, now);
        }
    }

    /// Starts to observe one request to one origin.
    pub(super) fn observe(&self, upstream: &Hostname, url: &Url, request_time: RequestTime) -> RequestObserver {
        let origin = Origin::of(url);
        let mut state = self.0.state.lock();
        state.last_request_number += 1;
        let request_number = state.last_request_number;
        let started = Instant::now();
        state.unanswered.entry(origin.clone()).or_default().insert(request_number, started);
        let backoff = self.clone();
        RequestObserver {
            backoff,
            upstream: upstream.clone(),
            origin,
            request_time,
            started,
            request_number,
            is_recorded: false,
        }
    }

    fn record_failure(
        &self,
        upstream: &Hostname,
        origin: &Origin,
        reason: &str,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) {
        let jitter = (self.0.jitter.hash_one((origin, now)) % 1000) as f64 / 1000.0;
        let value = || upstream.clone();
        let change = self.0.state.lock().breakers.record_failure(origin, retry_after, jitter, now, value);
        match change {
            BreakerChange::Opened(pause) => {
                tracing::warn!(%origin, %upstream, reason, seconds = pause.as_secs(), "the circuit breaker of an origin is open: stored copies are served stale");
            }
            BreakerChange::Reopened(pause) => {
                tracing::debug!(%origin, %upstream, reason, seconds = pause.as_secs(), "an origin failed again");
            }
            BreakerChange::StillOpen => {}
        }
    }

    fn record_answer(&self, upstream: &Hostname, origin: &Origin, now: Timestamp) {
        if self.0.state.lock().breakers.record_answer(origin, now).is_some() {
            tracing::info!(%origin, %upstream, "an origin answers again: its stored copies are revalidated again");
        }
    }
}

/// Observes one request, and records its result for the circuit breakers. If the observer is dropped without a result,
/// the request was abandoned. An abandoned request counts as failed if the origin had time to answer: see
/// [`MIN_ABANDONED_WAIT`].
#[derive(Debug)]
pub(super) struct RequestObserver {
    backoff: UpstreamBackoff,
    upstream: Hostname,
    origin: Origin,
    request_time: RequestTime,
    started: Instant,
    request_number: u64,
    /// True once the result is recorded.
    is_recorded: bool,
}

impl RequestObserver {
    pub(super) fn record_failure(mut self, reason: &str) {
        self.is_recorded = true;
        self.backoff.record_failure(&self.upstream, &self.origin, reason, None, self.request_time.now());
    }

    /// Records a complete answer.
    pub(super) fn record_success(mut self) {
        self.is_recorded = true;
        self.backoff.record_answer(&self.upstream, &self.origin, self.request_time.now());
    }

    /// Records the head of an answer. Returns the observer for a successful status, because the body may still fail.
    pub(super) fn record_head(mut self, status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let now = self.request_time.now();
        match status.as_u16() {
            // A request loop (508) is a fault of this request's path, not of the origin.
            508 => {
                self.record_success();
                None
            }
            429 | 500.. => {
                let retry_after = matches!(status.as_u16(), 429 | 503).then(|| retry_after(headers, now)).flatten();
                self.is_recorded = true;
                let reason = format!("the origin answered {status}");
                self.backoff.record_failure(&self.upstream, &self.origin, &reason, retry_after, now);
                None
            }
            200..300 => Some(self),
            _ => {
                self.record_success();
                None
            }
        }
    }
}

impl Drop for RequestObserver {
    fn drop(&mut self) {
        {
            let mut state = self.backoff.0.state.lock();
            if let Some(start_times) = state.unanswered.get_mut(&self.origin) {
                start_times.remove(&self.request_number);
                if start_times.is_empty() {
                    state.unanswered.remove(&self.origin);
                }
            }
        }
        if !self.is_recorded && self.started.elapsed() >= MIN_ABANDONED_WAIT {
            self.backoff.record_failure(
                &self.upstream,
                &self.origin,
                "the origin did not answer in time",
                None,
                self.request_time.now(),
            );
        }
    }
}

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Burst size.
    pub burst: u32,
    /// Requests per second after the burst.
    pub per_second: u32,
}

/// Token bucket of one upstream and purpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenBucket {
    tokens: u32,
    updated: Timestamp,
}

impl TokenBucket {
    /// A bucket with a full burst.
    pub(super) fn full(rate: Rate, now: Timestamp) -> Self {
        Self { tokens: rate.burst, updated: now }
    }

    /// Takes a token for each request. Takes none and returns false if the bucket has too few.
    pub(super) fn spend(&mut self, requests: u32, rate: Rate, now: Timestamp) -> bool {
        if now > self.updated {
            let seconds = u32::try_from(now.since(self.updated).as_secs()).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(seconds.saturating_mul(rate.per_second)).min(rate.burst);
            self.updated = now;
        } else if self.updated > now.after(CLOCK_SLACK) {
            // The clock was set back. With the old time, no token would be added until the clock catches up.
            self.updated = now;
        }
        match self.tokens.checked_sub(requests) {
            Some(remaining) => {
                self.tokens = remaining;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 5, per_second: 2 };

    #[test]
    fn a_bucket_allows_a_burst_and_then_a_rate() {
        let mut bucket = TokenBucket::full(RATE, Timestamp(1000));
        for (now, requests, is_allowed) in [
            (1000, 3, true),
            (1000, 3, false),
            (1000, 2, true),
            (1000, 1, false),
            (999, 1, false),
            (1001, 2, true),
            (1001, 1, false),
            (9000, 6, false),
            (9000, 5, true),
            (1000, 1, false),
            (1001, 2, true),
            (1001, 1, false),
        ] {
            assert_eq!(bucket.spend(requests, RATE, Timestamp(now)), is_allowed, "{requests} at {now}");
        }
    }
}
