//! Delays revalidations and jobs: circuit breakers per origin, rate limits per upstream. Every request is observed, but
//! a client's fetch of an uncached object is never delayed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use super::breaker::{Breaker, BreakerChange, Origin, Probe};
use super::rate_budget::{Rate, TokenBucket};
use super::retry_after::retry_after;
use crate::address::Hostname;
use crate::clock::Timestamp;

/// A request abandoned sooner than this is no evidence about the origin: something else ended it.
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
    /// Stored with each origin: the upstream that led to it.
    breaker: Breaker<Hostname>,
    budgets: HashMap<(Hostname, BudgetPurpose), TokenBucket>,
    /// Start times of the requests that wait for an answer, by request number.
    waiting: HashMap<Origin, HashMap<u64, Instant>>,
    number: u64,
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

/// Permission to revalidate. It owns breaker probes, which are returned when its last copy is dropped.
#[derive(Debug, Clone, Default)]
pub struct RevalidationPermit(Option<Arc<Probes>>);

#[derive(Debug)]
struct Probes {
    taken: Vec<Probe>,
    /// The permit of the enclosing work.
    before: RevalidationPermit,
    backoff: UpstreamBackoff,
}

impl RevalidationPermit {
    fn probes(&self) -> Vec<Probe> {
        let mut probes = Vec::new();
        let mut next = self;
        while let Some(here) = &next.0 {
            probes.extend_from_slice(&here.taken);
            next = &here.before;
        }
        probes
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        let mut state = self.backoff.0.state.lock();
        self.taken.iter().for_each(|probe| state.breaker.return_probe(probe));
    }
}

/// The time of a request: on the caller's clock, and on the clock that measures waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTime {
    time: Timestamp,
    read: Instant,
}

impl RequestTime {
    pub(super) fn new(time: Timestamp) -> Self {
        Self { time, read: Instant::now() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.time.after(self.read.elapsed())
    }
}

impl UpstreamBackoff {
    pub(super) fn new(rates: Rates) -> Self {
        Self(Arc::new(Inner { rates, jitter: RandomState::new(), state: Mutex::default() }))
    }

    /// Returns a permit to revalidate at all of these origins; `None` while a breaker is open. `permit` is that of
    /// the enclosing work, whose probes count as taken by this work.
    pub(super) fn revalidation_permit(
        &self,
        origins: &[Origin],
        permit: &RevalidationPermit,
        now: Timestamp,
    ) -> Option<RevalidationPermit> {
        let taken = self.0.state.lock().breaker.admit(origins, &permit.probes(), now)?;
        if taken.is_empty() {
            return Some(permit.clone());
        }
        Some(RevalidationPermit(Some(Arc::new(Probes { taken, before: permit.clone(), backoff: self.clone() }))))
    }

    /// The end of the longest Retry-After of these origins, or of any other origin that this upstream led to.
    pub(super) fn retry_after_until(
        &self,
        upstream: &Hostname,
        origins: &[Origin],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_meant = |origin: &Origin, host: &Hostname| host == upstream || origins.contains(origin);
        self.0.state.lock().breaker.retry_after_until(is_meant, now)
    }

    /// Takes requests from an upstream's rate limit. Takes none and returns false if too few are left.
    pub(super) fn spend(&self, upstream: &Hostname, on: BudgetPurpose, requests: u32, now: Timestamp) -> bool {
        let rate = match on {
            BudgetPurpose::Revalidation => self.0.rates.revalidations,
            BudgetPurpose::Job => self.0.rates.jobs,
        };
        let mut state = self.0.state.lock();
        // At most one for each configured upstream and purpose.
        let budget = state.budgets.entry((upstream.clone(), on)).or_insert_with(|| TokenBucket::full(rate, now));
        budget.spend(requests, rate, now)
    }

    /// The upstreams and origins with an open breaker, and the end of each pause.
    pub(super) fn open_breakers(&self, now: Timestamp) -> Vec<(Hostname, Origin, Timestamp)> {
        let state = self.0.state.lock();
        let left = state.breaker.open_breakers(now);
        left.map(|(origin, until, host)| (host.clone(), origin.clone(), until)).collect()
    }

    /// Records that a client's patience ran out. An origin that had at least half of it to answer has failed.
    pub(super) fn out_of_patience(&self, upstream: &Hostname, origins: &[Origin], patience: Duration, now: Timestamp) {
        let silent = |origin: &&Origin| {
            let state = self.0.state.lock();
            let mut waiting = state.waiting.get(*origin).into_iter().flat_map(HashMap::values);
            !patience.is_zero() && waiting.any(|since| since.elapsed() >= patience / 2)
        };
        for origin in origins.iter().filter(silent) {
            self.failed(upstream, origin, "it is slow to answer", None, now);
        }
    }

    /// Starts to observe one request to one origin.
    pub(super) fn observe(&self, upstream: &Hostname, url: &Url, request_time: RequestTime) -> RequestObserver {
        let origin = Origin::of(url);
        let mut state = self.0.state.lock();
        state.number += 1;
        let number = state.number;
        let since = Instant::now();
        state.waiting.entry(origin.clone()).or_default().insert(number, since);
        let backoff = self.clone();
        RequestObserver {
            backoff,
            upstream: upstream.clone(),
            origin,
            request_time,
            started: since,
            number,
            is_over: false,
        }
    }

    fn failed(&self, upstream: &Hostname, origin: &Origin, reason: &str, asked_for: Option<Duration>, now: Timestamp) {
        let jitter = (self.0.jitter.hash_one((origin, now)) % 1000) as f64 / 1000.0;
        let kept = || upstream.clone();
        let consequence = self.0.state.lock().breaker.failed(origin, asked_for, jitter, now, kept);
        match consequence {
            BreakerChange::Opened(time) => {
                tracing::warn!(%origin, %upstream, reason, seconds = time.as_secs(), "the circuit breaker of an origin is open: stored copies are served stale");
            }
            BreakerChange::Reopened(time) => {
                tracing::debug!(%origin, %upstream, reason, seconds = time.as_secs(), "an origin failed again");
            }
            BreakerChange::StillOpen => {}
        }
    }

    fn answered(&self, upstream: &Hostname, origin: &Origin, now: Timestamp) {
        if self.0.state.lock().breaker.answered(origin, now).is_some() {
            tracing::info!(%origin, %upstream, "an origin answers again: its stored copies are revalidated again");
        }
    }
}

/// Observation of one request. Dropped without a result, the request was abandoned. It counts as failed if the origin
/// had time to answer: see [`MIN_ABANDONED_WAIT`].
#[derive(Debug)]
pub(super) struct RequestObserver {
    backoff: UpstreamBackoff,
    upstream: Hostname,
    origin: Origin,
    request_time: RequestTime,
    started: Instant,
    number: u64,
    is_over: bool,
}

impl RequestObserver {
    pub(super) fn record_failure(mut self, reason: &str) {
        self.is_over = true;
        self.backoff.failed(&self.upstream, &self.origin, reason, None, self.request_time.now());
    }

    /// Records a complete answer.
    pub(super) fn record_success(mut self) {
        self.is_over = true;
        self.backoff.answered(&self.upstream, &self.origin, self.request_time.now());
    }

    /// Records the head of an answer. Returns the observation for a successful status, because the body may still fail.
    pub(super) fn record_head(mut self, status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let now = self.request_time.now();
        match status.as_u16() {
            // A loop concerns the path of this request only.
            508 => {
                self.record_success();
                None
            }
            429 | 500.. => {
                let asked_for = matches!(status.as_u16(), 429 | 503).then(|| retry_after(headers, now)).flatten();
                self.is_over = true;
                self.backoff.failed(&self.upstream, &self.origin, &format!("it answered {status}"), asked_for, now);
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
            if let Some(waiting) = state.waiting.get_mut(&self.origin) {
                waiting.remove(&self.number);
                if waiting.is_empty() {
                    state.waiting.remove(&self.origin);
                }
            }
        }
        if !self.is_over && self.started.elapsed() >= MIN_ABANDONED_WAIT {
            self.backoff.failed(
                &self.upstream,
                &self.origin,
                "it did not answer in time",
                None,
                self.request_time.now(),
            );
        }
    }
}
