//! Circuit breakers. After a failure, an origin is not revalidated for a while. This module does no I/O and reads no
//! clock: the caller passes events and the time.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::outbound::origin;
use crate::clock::{CLOCK_SLACK, Timestamp};

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

/// The origin of a URL: `scheme://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Origin(String);

impl Origin {
    /// The origin of a URL.
    pub fn of(url: &Url) -> Self {
        Self(origin(url))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The right to send the one request that tests an origin after its pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probe {
    origin: Origin,
    number: u64,
}

/// Effect of a failure, with the new pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BreakerChange {
    /// The breaker opens.
    Opened(Duration),
    /// The origin failed again after its pause: the breaker opens again.
    Reopened(Duration),
    /// The breaker is open already.
    StillOpen,
}

/// The breakers of the origins that failed recently. A `T` is stored with each breaker, and returned when it closes.
#[derive(Debug)]
pub(super) struct Breakers<T> {
    by_origin: HashMap<Origin, BreakerState<T>>,
    /// The number of the latest probe.
    last_probe_number: u64,
}

#[derive(Debug)]
struct BreakerState<T> {
    failures: u32,
    /// Start and end of the pause.
    since: Timestamp,
    until: Timestamp,
    /// End of a Retry-After. An answer does not end a Retry-After early.
    retry_after_until: Option<Timestamp>,
    /// Number of the probe that a caller has taken.
    probe: Option<u64>,
    value: T,
}

impl<T> BreakerState<T> {
    /// Returns true during the pause. A pause that begins in the future is over, because the clock was set back.
    fn is_open_at(&self, now: Timestamp) -> bool {
        self.since <= now.after(CLOCK_SLACK) && now < self.until
    }
}

impl<T> Default for Breakers<T> {
    fn default() -> Self {
        Self { by_origin: HashMap::new(), last_probe_number: 0 }
    }
}

impl<T> Breakers<T> {
    /// Checks that all these origins may be revalidated, and takes the probe of each origin whose pause is over. `None`
    /// if one origin may not be revalidated. `own_probes` are the probes that the caller has already.
    pub(super) fn admit(&mut self, origins: &[Origin], own_probes: &[Probe], now: Timestamp) -> Option<Vec<Probe>> {
        let mut taken = Vec::new();
        for origin in origins {
            let Some(breaker) = self.by_origin.get(origin) else { continue };
            let may_probe =
                breaker.probe.is_none_or(|number| own_probes.contains(&Probe { origin: origin.clone(), number }));
            if breaker.is_open_at(now) || !may_probe {
                return None;
            }
            if breaker.probe.is_none() && !taken.contains(origin) {
                taken.push(origin.clone());
            }
        }
        let probes = taken.into_iter().map(|origin| {
            self.last_probe_number += 1;
            if let Some(breaker) = self.by_origin.get_mut(&origin) {
                breaker.probe = Some(self.last_probe_number);
            }
            Probe { origin, number: self.last_probe_number }
        });
        Some(probes.collect())
    }

    /// The origins with an open breaker, the end of each pause, and the stored value.
    pub(super) fn open_breakers(&self, now: Timestamp) -> impl Iterator<Item = (&Origin, Timestamp, &T)> {
        let open = self.by_origin.iter().filter(move |(_, breaker)| breaker.is_open_at(now));
        open.map(|(origin, breaker)| (origin, breaker.until, &breaker.value))
    }

    /// The end of the longest Retry-After among the origins that match. Pauses without a Retry-After do not count.
    pub(super) fn retry_after_until(&self, matches: impl Fn(&Origin, &T) -> bool, now: Timestamp) -> Option<Timestamp> {
        let paused = self
            .by_origin
            .iter()
            .filter(|(origin, breaker)| breaker.is_open_at(now) && matches(origin, &breaker.value));
        paused.filter_map(|(_, breaker)| breaker.retry_after_until).filter(|until| *until > now).max()
    }

    /// Returns an unused probe.
    pub(super) fn return_probe(&mut self, probe: &Probe) {
        if let Some(breaker) =
            self.by_origin.get_mut(&probe.origin).filter(|breaker| breaker.probe == Some(probe.number))
        {
            breaker.probe = None;
        }
    }

    /// Records a failure. `jitter` is in 0..1. `value` makes the value to store with a new breaker.
    pub(super) fn record_failure(
        &mut self,
        origin: &Origin,
        retry_after: Option<Duration>,
        jitter: f64,
        now: Timestamp,
        value: impl FnOnce() -> T,
    ) -> BreakerChange {
        let retry_after = retry_after.map(|pause| pause.min(MAX_RETRY_AFTER));
        if let Some(breaker) = self.by_origin.get_mut(origin) {
            if breaker.is_open_at(now) {
                // One outage makes many requests fail. Only a failure after the pause lengthens the next one.
                if let Some(pause) = retry_after {
                    let retry_after_until = breaker.retry_after_until.max(Some(now.after(pause)));
                    (breaker.since, breaker.retry_after_until) = (now, retry_after_until);
                    breaker.until = breaker.until.max(retry_after_until.unwrap_or(breaker.until));
                }
                return BreakerChange::StillOpen;
            }
            let forgotten = now.since(breaker.until) > FAILURES_FORGOTTEN_AFTER;
            breaker.failures = if forgotten { 1 } else { breaker.failures.saturating_add(1) };
            let new_pause = pause_after(breaker.failures, jitter).max(retry_after.unwrap_or_default());
            (breaker.since, breaker.until) = (now, now.after(new_pause));
            (breaker.retry_after_until, breaker.probe) = (retry_after.map(|pause| now.after(pause)), None);
            return BreakerChange::Reopened(new_pause);
        }
        self.remove_expired(now);
        let new_pause = pause_after(1, jitter).max(retry_after.unwrap_or_default());
        let breaker = BreakerState {
            failures: 1,
            since: now,
            until: now.after(new_pause),
            retry_after_until: retry_after.map(|pause| now.after(pause)),
            probe: None,
            value: value(),
        };
        self.by_origin.insert(origin.clone(), breaker);
        BreakerChange::Opened(new_pause)
    }

    /// Records an answer. Returns the stored value if this closes the breaker.
    pub(super) fn record_answer(&mut self, origin: &Origin, now: Timestamp) -> Option<T> {
        let breaker = self.by_origin.get_mut(origin)?;
        // An answer ends a pause, but not a Retry-After.
        breaker.until = breaker.retry_after_until.unwrap_or(now).min(breaker.until);
        if breaker.retry_after_until.is_some() && breaker.is_open_at(now) {
            return None;
        }
        self.by_origin.remove(origin).map(|breaker| breaker.value)
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
