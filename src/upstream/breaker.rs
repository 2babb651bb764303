//! The circuit breaker: origins that are not revalidated for a while after a failure. Pure: the caller passes events
//! and the time.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::outbound::origin;
use crate::clock::{CLOCK_SLACK, Timestamp};

/// The first pause; each further failure doubles it.
const INITIAL_BREAKER_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause of our own choice.
const MAX_OWN_PAUSE: Duration = Duration::from_secs(300);
/// The longest Retry-After that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// A failure this long after the last pause starts a new count.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
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

/// Effect of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BreakerChange {
    /// The breaker opens.
    Opened(Duration),
    /// The origin failed again after its pause: the breaker opens again.
    Reopened(Duration),
    /// The breaker is open already.
    StillOpen,
}

/// The origins that failed recently; `T` is stored with each and returned when it recovers.
#[derive(Debug)]
pub(super) struct Breaker<T> {
    open: HashMap<Origin, OpenBreaker<T>>,
    probes: u64,
}

#[derive(Debug)]
struct OpenBreaker<T> {
    failures: u32,
    since: Timestamp,
    until: Timestamp,
    /// End of a Retry-After. An answer does not end it early.
    retry_after_until: Option<Timestamp>,
    probe: Option<u64>,
    value: T,
}

impl<T> OpenBreaker<T> {
    /// Returns true during the pause. A pause that begins in the future is over: the clock was set back.
    fn is_open_at(&self, now: Timestamp) -> bool {
        self.since <= now.after(CLOCK_SLACK) && now < self.until
    }
}

impl<T> Default for Breaker<T> {
    fn default() -> Self {
        Self { open: HashMap::new(), probes: 0 }
    }
}

impl<T> Breaker<T> {
    /// Checks that all these origins may be revalidated, and takes the probe of each origin whose pause is over. `None`
    /// if one may not. `own_probes` are the caller's.
    pub(super) fn admit(&mut self, origins: &[Origin], own_probes: &[Probe], now: Timestamp) -> Option<Vec<Probe>> {
        let mut taken = Vec::new();
        for origin in origins {
            let Some(left) = self.open.get(origin) else { continue };
            let may_probe =
                left.probe.is_none_or(|number| own_probes.contains(&Probe { origin: origin.clone(), number }));
            if left.is_open_at(now) || !may_probe {
                return None;
            }
            if left.probe.is_none() && !taken.contains(origin) {
                taken.push(origin.clone());
            }
        }
        let probes = taken.into_iter().map(|origin| {
            self.probes += 1;
            if let Some(left) = self.open.get_mut(&origin) {
                left.probe = Some(self.probes);
            }
            Probe { origin, number: self.probes }
        });
        Some(probes.collect())
    }

    /// The origins with an open breaker, the end of each pause, and the stored value.
    pub(super) fn open_breakers(&self, now: Timestamp) -> impl Iterator<Item = (&Origin, Timestamp, &T)> {
        let lasting = self.open.iter().filter(move |(_, left)| left.is_open_at(now));
        lasting.map(|(origin, left)| (origin, left.until, &left.value))
    }

    /// The end of the longest Retry-After among matching origins. Our own pauses do not count.
    pub(super) fn retry_after_until(
        &self,
        is_meant: impl Fn(&Origin, &T) -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let left_alone =
            self.open.iter().filter(|(origin, left)| left.is_open_at(now) && is_meant(origin, &left.value));
        left_alone.filter_map(|(_, left)| left.retry_after_until).filter(|until| *until > now).max()
    }

    /// Returns an unused probe.
    pub(super) fn return_probe(&mut self, probe: &Probe) {
        if let Some(left) = self.open.get_mut(&probe.origin).filter(|left| left.probe == Some(probe.number)) {
            left.probe = None;
        }
    }

    /// Records a failure, with an optional Retry-After. `jitter` is in 0..1.
    pub(super) fn failed(
        &mut self,
        origin: &Origin,
        asked_for: Option<Duration>,
        jitter: f64,
        now: Timestamp,
        kept: impl FnOnce() -> T,
    ) -> BreakerChange {
        let asked_for = asked_for.map(|time| time.min(MAX_RETRY_AFTER));
        if let Some(left) = self.open.get_mut(origin) {
            if left.is_open_at(now) {
                // One outage makes many requests fail. Only a failure after the pause lengthens the next one.
                if let Some(time) = asked_for {
                    let asked_until = left.retry_after_until.max(Some(now.after(time)));
                    (left.since, left.retry_after_until) = (now, asked_until);
                    left.until = left.until.max(asked_until.unwrap_or(left.until));
                }
                return BreakerChange::StillOpen;
            }
            let forgotten = now.since(left.until) > FORGOTTEN_AFTER;
            left.failures = if forgotten { 1 } else { left.failures.saturating_add(1) };
            let time = pause(left.failures, jitter).max(asked_for.unwrap_or_default());
            (left.since, left.until) = (now, now.after(time));
            (left.retry_after_until, left.probe) = (asked_for.map(|time| now.after(time)), None);
            return BreakerChange::Reopened(time);
        }
        self.remove_expired(now);
        let time = pause(1, jitter).max(asked_for.unwrap_or_default());
        let left = OpenBreaker {
            failures: 1,
            since: now,
            until: now.after(time),
            retry_after_until: asked_for.map(|time| now.after(time)),
            probe: None,
            value: kept(),
        };
        self.open.insert(origin.clone(), left);
        BreakerChange::Opened(time)
    }

    /// Records an answer. Returns the stored value if this closes the breaker.
    pub(super) fn answered(&mut self, origin: &Origin, now: Timestamp) -> Option<T> {
        let left = self.open.get_mut(origin)?;
        // An answer ends our own pause, but not a Retry-After.
        left.until = left.retry_after_until.unwrap_or(now).min(left.until);
        if left.retry_after_until.is_some() && left.is_open_at(now) {
            return None;
        }
        self.open.remove(origin).map(|left| left.value)
    }

    /// Makes space for an entry: removes the expired ones, or else the one that expires first.
    fn remove_expired(&mut self, now: Timestamp) {
        if self.open.len() < MAX_ORIGINS {
            return;
        }
        self.open.retain(|_, left| left.is_open_at(now));
        if self.open.len() >= MAX_ORIGINS {
            let first = self.open.iter().min_by_key(|(_, left)| left.until).map(|(origin, _)| origin.clone());
            first.and_then(|origin| self.open.remove(&origin));
        }
    }
}

/// The pause after this many failures: 5 s, doubling to 5 min, plus or minus a quarter.
fn pause(failures: u32, jitter: f64) -> Duration {
    let doubled =
        INITIAL_BREAKER_PAUSE.saturating_mul(1u32.checked_shl(failures.saturating_sub(1).min(16)).unwrap_or(u32::MAX));
    let seconds = doubled.min(MAX_OWN_PAUSE).as_secs_f64() * (0.75 + jitter.clamp(0.0, 1.0) / 2.0);
    Duration::from_secs(seconds.round() as u64)
}

#[cfg(test)]
mod tests;
