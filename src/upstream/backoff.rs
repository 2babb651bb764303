//! Delays revalidations and jobs, by a circuit breaker for each origin and rate limits for each upstream. Every request
//! is observed, but a client's fetch of an uncached object is never delayed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use derive_more::Display;
use http::StatusCode;
use http::header::HeaderMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use url::Url;

use super::outbound::origin;
use super::request::retry_after;
use crate::address::Hostname;
use crate::clock::{CLOCK_SLACK, Timestamp};

/// The origin of a URL: `scheme://host:port`.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Origin(String);

impl Origin {
    /// The origin of a URL.
    pub fn of(url: &Url) -> Self {
        Self(origin(url))
    }

    /// Returns true if nobody on the way reads or changes what is sent.
    pub fn is_https(&self) -> bool {
        self.0.starts_with("https://")
    }
}

/// A request that is abandoned before its answer counts as a failure of the origin only if it had waited this long. One
/// that was abandoned sooner was ended by larder or by the client.
const MIN_ABANDONED_WAIT: Duration = Duration::from_secs(1);

/// The breakers and rate limits that all requests share.
#[derive(Debug, Clone)]
pub struct UpstreamBackoff(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    revalidation_rate: Rate,
    job_rate: Rate,
    jitter: RandomState,
    state: Mutex<State>,
    /// The number of breakers that an answer has closed.
    closings: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    breakers: Breakers,
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
    /// A look at a version that no list names.
    SecondOpinion,
}

/// Permission to revalidate, with the breaker probes of this work and of the work around it. Each probe is returned when
/// the last permit with it is dropped.
#[derive(Debug, Clone, Default)]
pub struct RevalidationPermit(Vec<Arc<OwnedProbe>>);

#[derive(Debug)]
struct OwnedProbe {
    probe: Probe,
    backoff: UpstreamBackoff,
}

impl Drop for OwnedProbe {
    fn drop(&mut self) {
        self.backoff.0.state.lock().breakers.return_probe(&self.probe);
    }
}

/// The start of a request: by the caller's clock, and by the monotonic clock, which measures how long it has run.
#[derive(Debug, Clone, Copy)]
pub struct RequestTime {
    started_at: Timestamp,
    started: Instant,
}

impl RequestTime {
    /// The time of a request that starts now, by the caller's clock.
    pub fn new(started_at: Timestamp) -> Self {
        Self { started_at, started: Instant::now() }
    }

    /// The time now, by the caller's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.started_at.after(self.started.elapsed())
    }
}

impl UpstreamBackoff {
    pub(super) fn new(revalidation_rate: Rate, job_rate: Rate) -> Self {
        Self(Arc::new(Inner {
            revalidation_rate,
            job_rate,
            jitter: RandomState::new(),
            state: Mutex::default(),
            closings: AtomicU64::default(),
        }))
    }

    /// Returns a permit to revalidate at all of these origins; `None` while the breaker of one is open. `enclosing` is the
    /// permit of the enclosing work. Its probes also allow this work.
    pub fn revalidation_permit(
        &self,
        origins: &[Origin],
        enclosing: &RevalidationPermit,
        now: Timestamp,
    ) -> Option<RevalidationPermit> {
        let own_probes: Vec<Probe> = enclosing.0.iter().map(|owned| owned.probe.clone()).collect();
        let taken = self.0.state.lock().breakers.admit(origins, &own_probes, now)?;
        let taken = taken.into_iter().map(|probe| Arc::new(OwnedProbe { probe, backoff: self.clone() }));
        Some(RevalidationPermit(enclosing.0.iter().cloned().chain(taken).collect()))
    }

    /// The number of breakers that an answer has closed so far. What was answered because a breaker was open holds until it
    /// changes.
    pub fn closings(&self) -> u64 {
        self.0.closings.load(Ordering::Acquire)
    }

    /// The end of the first pause among these origins that lasts at `now`; `None` if none does. A probe that another request
    /// has taken may end a pause earlier.
    pub fn open_until(&self, origins: &[Origin], now: Timestamp) -> Option<Timestamp> {
        let state = self.0.state.lock();
        let paused = origins.iter().filter_map(|origin| state.breakers.by_origin.get(origin));
        paused.filter(|breaker| breaker.is_open_at(now)).map(|breaker| breaker.until).min()
    }

    /// Returns true if [`revalidation_permit`](Self::revalidation_permit) would return a permit now. Takes no probe.
    pub fn may_revalidate(&self, origins: &[Origin], enclosing: &RevalidationPermit, now: Timestamp) -> bool {
        let own_probes: Vec<Probe> = enclosing.0.iter().map(|owned| owned.probe.clone()).collect();
        let state = self.0.state.lock();
        origins.iter().all(|origin| state.breakers.admits(origin, &own_probes, now))
    }

    /// The end of the longest Retry-After of these origins, or of any other origin that this upstream led to.
    pub fn retry_after_until(&self, upstream: &Hostname, origins: &[Origin], now: Timestamp) -> Option<Timestamp> {
        let is_relevant = |origin: &Origin, host: &Hostname| host == upstream || origins.contains(origin);
        self.0.state.lock().breakers.retry_after_until(is_relevant, now)
    }

    /// Takes requests from an upstream's rate limit. Takes none and returns false if too few are left.
    pub fn spend(&self, upstream: &Hostname, purpose: BudgetPurpose, requests: u32, now: Timestamp) -> bool {
        let rate = self.rate(purpose);
        let mut state = self.0.state.lock();
        // The map has at most one bucket for each configured upstream and purpose.
        let bucket =
            state.token_buckets.entry((upstream.clone(), purpose)).or_insert_with(|| TokenBucket::full(rate, now));
        bucket.spend(requests, rate, now)
    }

    /// Returns true if [`spend`](Self::spend) would return true now. Takes nothing.
    pub fn can_spend(&self, upstream: &Hostname, purpose: BudgetPurpose, requests: u32, now: Timestamp) -> bool {
        let rate = self.rate(purpose);
        let bucket = self.0.state.lock().token_buckets.get(&(upstream.clone(), purpose)).copied();
        bucket.unwrap_or(TokenBucket::full(rate, now)).spend(requests, rate, now)
    }

    fn rate(&self, purpose: BudgetPurpose) -> Rate {
        match purpose {
            BudgetPurpose::Revalidation => self.0.revalidation_rate,
            BudgetPurpose::Job => self.0.job_rate,
            BudgetPurpose::SecondOpinion => SECOND_OPINION_RATE,
        }
    }

    /// The upstreams and origins with an open breaker, and the end of each pause.
    pub fn open_breakers(&self, now: Timestamp) -> Vec<(Hostname, Origin, Timestamp)> {
        let state = self.0.state.lock();
        let open = state.breakers.by_origin.iter().filter(|(_, breaker)| breaker.is_open_at(now));
        open.map(|(origin, breaker)| (breaker.upstream.clone(), origin.clone(), breaker.until)).collect()
    }

    /// Records that a client waited `patience` for these origins, and got the cached copy instead of an answer. Every
    /// origin with a request that has been unanswered for at least half of `patience` counts as failed.
    pub fn record_client_timeout(&self, upstream: &Hostname, origins: &[Origin], patience: Duration, now: Timestamp) {
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
            is_without_answer: true,
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
        let change = self.0.state.lock().breakers.record_failure(origin, retry_after, jitter, now, upstream);
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
        if self.0.state.lock().breakers.record_answer(origin, now) {
            self.0.closings.fetch_add(1, Ordering::AcqRel);
            tracing::info!(%origin, %upstream, "an origin answers again: its stored copies are revalidated again");
        }
    }
}

/// Observes one request, and records its result for the circuit breakers. If the observer is dropped without a result,
/// the request was abandoned. A request that is abandoned before the head of its answer counts as failed if the origin
/// had time to answer: see [`MIN_ABANDONED_WAIT`]. An abandoned body says nothing about the origin.
#[derive(Debug)]
pub(super) struct RequestObserver {
    backoff: UpstreamBackoff,
    upstream: Hostname,
    origin: Origin,
    request_time: RequestTime,
    started: Instant,
    request_number: u64,
    /// True until a failure or the head of an answer; for a document, until its body has arrived.
    is_without_answer: bool,
}

impl RequestObserver {
    pub(super) fn record_failure(mut self, reason: &str) {
        self.is_without_answer = false;
        self.backoff.record_failure(&self.upstream, &self.origin, reason, None, self.request_time.now());
    }

    /// Counts the body as part of the answer: if it is abandoned, that is a failure of the origin. For documents, which
    /// only a time limit abandons.
    pub(super) fn awaiting_body(mut self) -> Self {
        self.is_without_answer = true;
        self
    }

    /// Records a complete answer.
    pub(super) fn record_success(mut self) {
        self.is_without_answer = false;
        self.backoff.record_answer(&self.upstream, &self.origin, self.request_time.now());
    }

    /// Records the head of an answer. Returns the observer for a successful status, because the body may still fail.
    pub(super) fn record_head(mut self, status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let now = self.request_time.now();
        self.is_without_answer = false;
        match status.as_u16() {
            // A request loop (508) is a fault of this request's path, not of the origin.
            429 | 500..=507 | 509.. => {
                let retry_after = matches!(status.as_u16(), 429 | 503).then(|| retry_after(headers, now)).flatten();
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
        if self.is_without_answer && self.started.elapsed() >= MIN_ABANDONED_WAIT {
            let (reason, now) = ("the origin did not answer in time", self.request_time.now());
            self.backoff.record_failure(&self.upstream, &self.origin, reason, None, now);
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

/// A client may ask for any version by its number, so looks at versions that no list names take nothing from what clients need.
const SECOND_OPINION_RATE: Rate = Rate { burst: 20, per_second: 1 };

/// Token bucket of one upstream and purpose.
#[derive(Debug, Clone, Copy)]
struct TokenBucket {
    tokens: u32,
    updated: Timestamp,
}

impl TokenBucket {
    /// A bucket with a full burst.
    fn full(rate: Rate, now: Timestamp) -> Self {
        Self { tokens: rate.burst, updated: now }
    }

    /// Takes a token for each request. Takes none and returns false if the bucket has too few.
    fn spend(&mut self, requests: u32, rate: Rate, now: Timestamp) -> bool {
        if now > self.updated {
            let seconds = u32::try_from(now.since(self.updated).as_secs()).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(seconds.saturating_mul(rate.per_second)).min(rate.burst);
            self.updated = now;
        } else if self.updated > now.after(CLOCK_SLACK) {
            // The clock was set back. With the old time, no token would be added until the clock catches up.
            self.updated = now;
        }
        let remaining = self.tokens.checked_sub(requests);
        self.tokens = remaining.unwrap_or(self.tokens);
        remaining.is_some()
    }
}

/// The pause after the first failure. Each further failure doubles the pause.
const INITIAL_BREAKER_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause without a Retry-After.
const MAX_OWN_PAUSE: Duration = Duration::from_secs(300);
/// The longest Retry-After that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// A failure this long after the end of the last pause counts as a first failure.
const FAILURES_FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// Limit for the number of open breakers.
const MAX_ORIGINS: usize = 1000;

/// The right to send the one request that tests an origin after its pause.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Probe {
    origin: Origin,
    number: u64,
}

/// Effect of a failure, with the new pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerChange {
    /// The breaker opens.
    Opened(Duration),
    /// The origin failed again after its pause: the breaker opens again.
    Reopened(Duration),
    /// The breaker is open already.
    StillOpen,
}

/// The breakers of the origins that failed recently. They do no I/O and read no clock: the caller passes events and the
/// time.
#[derive(Debug, Default)]
struct Breakers {
    by_origin: HashMap<Origin, BreakerState>,
    /// The number of the latest probe.
    last_probe_number: u64,
}

#[derive(Debug)]
struct BreakerState {
    failures: u32,
    /// Start and end of the pause.
    since: Timestamp,
    until: Timestamp,
    /// End of a Retry-After. An answer does not end a Retry-After early.
    retry_after_until: Option<Timestamp>,
    /// Number of the probe that a caller has taken.
    probe: Option<u64>,
    /// The upstream whose documents led to the origin.
    upstream: Hostname,
}

impl BreakerState {
    /// Returns true during the pause. A pause that begins in the future is over, because the clock was set back.
    fn is_open_at(&self, now: Timestamp) -> bool {
        self.since <= now.after(CLOCK_SLACK) && now < self.until
    }
}

impl Breakers {
    /// Checks that all these origins may be revalidated, and takes the probe of each origin whose pause is over. `None`
    /// if one origin may not be revalidated. `own_probes` are the probes that the caller has already.
    fn admit(&mut self, origins: &[Origin], own_probes: &[Probe], now: Timestamp) -> Option<Vec<Probe>> {
        if !origins.iter().all(|origin| self.admits(origin, own_probes, now)) {
            return None;
        }
        let mut taken = Vec::new();
        for origin in origins {
            if let Some(breaker) = self.by_origin.get_mut(origin).filter(|breaker| breaker.probe.is_none()) {
                self.last_probe_number += 1;
                breaker.probe = Some(self.last_probe_number);
                taken.push(Probe { origin: origin.clone(), number: self.last_probe_number });
            }
        }
        Some(taken)
    }

    /// Returns true if this origin may be revalidated by a caller with these probes.
    fn admits(&self, origin: &Origin, own_probes: &[Probe], now: Timestamp) -> bool {
        self.by_origin.get(origin).is_none_or(|breaker| {
            let is_own = |number| own_probes.contains(&Probe { origin: origin.clone(), number });
            !breaker.is_open_at(now) && breaker.probe.is_none_or(is_own)
        })
    }

    /// The end of the longest Retry-After among the origins that match. Pauses without a Retry-After do not count.
    fn retry_after_until(&self, matches: impl Fn(&Origin, &Hostname) -> bool, now: Timestamp) -> Option<Timestamp> {
        let paused = self
            .by_origin
            .iter()
            .filter(|(origin, breaker)| breaker.is_open_at(now) && matches(origin, &breaker.upstream));
        paused.filter_map(|(_, breaker)| breaker.retry_after_until).filter(|until| *until > now).max()
    }

    /// Returns an unused probe.
    fn return_probe(&mut self, probe: &Probe) {
        if let Some(breaker) = self.by_origin.get_mut(&probe.origin) {
            breaker.probe.take_if(|number| *number == probe.number);
        }
    }

    /// Records a failure. `jitter` is in 0..1. `upstream` is the one whose documents led to the origin.
    fn record_failure(
        &mut self,
        origin: &Origin,
        retry_after: Option<Duration>,
        jitter: f64,
        now: Timestamp,
        upstream: &Hostname,
    ) -> BreakerChange {
        let retry_after = retry_after.map(|pause| pause.min(MAX_RETRY_AFTER));
        let retry_after_until = retry_after.map(|pause| now.after(pause));
        if let Some(breaker) = self.by_origin.get_mut(origin).filter(|breaker| breaker.is_open_at(now)) {
            // One outage makes many requests fail. Only a failure after the pause lengthens the next one.
            if retry_after_until.is_some() {
                breaker.since = now;
                breaker.retry_after_until = breaker.retry_after_until.max(retry_after_until);
                breaker.until = breaker.until.max(breaker.retry_after_until.unwrap_or(breaker.until));
            }
            return BreakerChange::StillOpen;
        }
        let previous = self.by_origin.remove(origin);
        let remembered = previous.as_ref().filter(|breaker| now.since(breaker.until) <= FAILURES_FORGOTTEN_AFTER);
        let failures = remembered.map_or(1, |breaker| breaker.failures.saturating_add(1));
        let pause = pause_after(failures, jitter).max(retry_after.unwrap_or_default());
        let change = if previous.is_some() { BreakerChange::Reopened(pause) } else { BreakerChange::Opened(pause) };
        let upstream = previous.map_or_else(|| upstream.clone(), |breaker| breaker.upstream);
        self.remove_expired(now);
        let until = now.after(pause);
        let breaker = BreakerState { failures, since: now, until, retry_after_until, probe: None, upstream };
        self.by_origin.insert(origin.clone(), breaker);
        change
    }

    /// Records an answer. Returns true if it closes the breaker.
    fn record_answer(&mut self, origin: &Origin, now: Timestamp) -> bool {
        let Some(breaker) = self.by_origin.get_mut(origin) else { return false };
        // An answer ends a pause, but not a Retry-After.
        breaker.until = breaker.retry_after_until.unwrap_or(now).min(breaker.until);
        if breaker.retry_after_until.is_some() && breaker.is_open_at(now) {
            return false;
        }
        self.by_origin.remove(origin).is_some()
    }

    /// Makes space for a breaker: removes those whose pause is over, or else the one whose pause ends first.
    fn remove_expired(&mut self, now: Timestamp) {
        if self.by_origin.len() < MAX_ORIGINS {
            return;
        }
        self.by_origin.retain(|_, breaker| breaker.is_open_at(now));
        if self.by_origin.len() >= MAX_ORIGINS {
            let first_to_end =
                self.by_origin.iter().min_by_key(|(_, breaker)| breaker.until).map(|(origin, _)| origin.clone());
            first_to_end.and_then(|origin| self.by_origin.remove(&origin));
        }
    }
}

/// The pause after this many failures: 5 s, doubling to 5 min, plus or minus a quarter.
fn pause_after(failures: u32, jitter: f64) -> Duration {
    let doubled =
        INITIAL_BREAKER_PAUSE.saturating_mul(1u32.checked_shl(failures.saturating_sub(1).min(16)).unwrap_or(u32::MAX));
    let seconds = doubled.min(MAX_OWN_PAUSE).as_secs_f64() * (0.75 + jitter.clamp(0.0, 1.0) / 2.0);
    Duration::from_secs(seconds.round() as u64)
}

#[cfg(test)]
mod tests;
