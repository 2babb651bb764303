//! Decides if a stored document is served or revalidated. Pure: no clock, no disk, no network.

use std::time::Duration;

use crate::clock::{CLOCK_SLACK, Timestamp};
use crate::config::FreshnessLifetimes;
use crate::error::Error;
use crate::upstream::Upstream;
use crate::upstream::backoff::Origin;
use crate::upstream::outbound::Connectivity;

/// The lifetime of an answer from a checked copy, before the archive is opened and checked again. A change of the
/// provider's generation ends it earlier.
pub const CHECKED_COPY_LIFETIME: Duration = Duration::from_secs(60);
/// The freshness lifetime of an answer computed from the store, unless a change of the store is noticed.
pub const STORED_ANSWER_LIFETIME: Duration = Duration::from_secs(5);

/// The last answer of upstream about a stored document. Freshness counts from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// The time of upstream's last confirmation.
    pub checked: Timestamp,
    /// True if upstream said then that it no longer exists.
    pub gone: bool,
}

impl Confirmation {
    /// Returns true if this copy stays when `incoming` arrives: upstream confirmed it later. A time in the future, from a
    /// wrong clock, does not count.
    pub fn is_confirmed_after(self, incoming: Self, now: Timestamp) -> bool {
        self.checked > incoming.checked && self.checked <= now.after(CLOCK_SLACK)
    }
}

/// The freshness rule of a kind of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreshnessRule {
    /// The lifetime of a confirmed document.
    pub fresh: Duration,
    /// The lifetime of a 404; never longer than `fresh`.
    pub not_found: Duration,
    /// The longest wait for a revalidation.
    pub patience: Duration,
    pub target: RevalidationTarget,
}

impl Upstream {
    pub(super) fn freshness_rule(&self, fresh: impl Fn(&FreshnessLifetimes) -> Duration) -> FreshnessRule {
        let settings = &self.settings;
        FreshnessRule {
            fresh: fresh(&settings.fresh),
            not_found: settings.fresh.not_found,
            patience: settings.patience,
            target: RevalidationTarget::SameLocation,
        }
    }

    /// The lifetime of a 404 for a document of one version.
    pub(super) fn not_found_lifetime(&self) -> Duration {
        self.freshness_rule(|fresh| fresh.download).not_found_lifetime()
    }
}

/// The location at which a stored document is revalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevalidationTarget {
    /// The location that it came from.
    SameLocation,
    /// A new location: its upstream has moved since.
    NewLocation,
}

impl FreshnessRule {
    /// The end of freshness for a document that was confirmed then.
    pub fn fresh_until(&self, confirmed: Confirmation) -> Timestamp {
        confirmed.checked.after(if confirmed.gone { self.not_found_lifetime() } else { self.fresh })
    }

    /// The rule for a copy from a former location: it is stale at any age.
    pub fn at_new_location(self) -> Self {
        Self { fresh: Duration::ZERO, target: RevalidationTarget::NewLocation, ..self }
    }

    /// The effective lifetime of a 404.
    pub fn not_found_lifetime(&self) -> Duration {
        self.not_found.min(self.fresh)
    }
}

/// The decision about a stored copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreshnessDecision {
    /// Serve it; it is fresh.
    Serve,
    /// Serve it; upstream cannot be asked.
    ServeStale,
    /// Revalidate it with patience; serve it if that fails.
    Revalidate,
}

pub fn decide(
    confirmed: Confirmation,
    rule: &FreshnessRule,
    connectivity: Connectivity,
    now: Timestamp,
) -> FreshnessDecision {
    let from_the_future = confirmed.checked > now.after(CLOCK_SLACK);
    match connectivity {
        _ if now < rule.fresh_until(confirmed) && !from_the_future => FreshnessDecision::Serve,
        Connectivity::Online => FreshnessDecision::Revalidate,
        Connectivity::Offline => FreshnessDecision::ServeStale,
    }
}

/// A stored or fetched value, with upstream's last answer about it.
#[derive(Debug, Clone)]
pub struct Confirmed<T> {
    pub value: T,
    pub confirmed: Confirmation,
}

pub type FlightResult<T> = Result<Confirmed<T>, Error>;

/// A stored object that can be revalidated.
pub trait Revalidatable {
    /// The origins that a revalidation contacts.
    fn origins(&self) -> Vec<Origin>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: FreshnessRule = FreshnessRule {
        fresh: Duration::from_secs(300),
        not_found: Duration::from_secs(30),
        patience: Duration::from_secs(2),
        target: RevalidationTarget::SameLocation,
    };

    #[test]
    fn freshness_decisions_match_the_table() {
        let stored = |checked, gone| Confirmation { checked: Timestamp(checked), gone };
        for (case, stored, connectivity, now, verdict) in [
            ("just checked", stored(1000, false), Connectivity::Online, 1000, FreshnessDecision::Serve),
            ("the last fresh second", stored(1000, false), Connectivity::Online, 1299, FreshnessDecision::Serve),
            ("the first stale second", stored(1000, false), Connectivity::Online, 1300, FreshnessDecision::Revalidate),
            ("stale and sealed", stored(1000, false), Connectivity::Offline, 1300, FreshnessDecision::ServeStale),
            ("fresh and sealed", stored(1000, false), Connectivity::Offline, 1001, FreshnessDecision::Serve),
            (
                "a 404 is fresh for a shorter time",
                stored(1000, true),
                Connectivity::Online,
                1029,
                FreshnessDecision::Serve,
            ),
            ("then asked again", stored(1000, true), Connectivity::Online, 1030, FreshnessDecision::Revalidate),
            ("the clock went back a little", stored(1000, false), Connectivity::Online, 990, FreshnessDecision::Serve),
            (
                "the clock went back a lot",
                stored(9000, false),
                Connectivity::Online,
                1000,
                FreshnessDecision::Revalidate,
            ),
        ] {
            assert_eq!(decide(stored, &RULE, connectivity, Timestamp(now)), verdict, "{case}");
        }
    }

    #[test]
    fn a_later_confirmation_wins_unless_it_lies_in_the_future() {
        let confirmed = |checked| Confirmation { checked: Timestamp(checked), gone: false };
        for (case, stored, incoming, now, stays) in [
            ("older", 900, 1000, 1000, false),
            ("just as old", 1000, 1000, 1000, false),
            ("newer", 1000, 900, 1000, true),
            ("confirmed a little in the future, within the clock slack", 1010, 1000, 1000, true),
            ("from a time that has not come", 9000, 1000, 1000, false),
        ] {
            assert_eq!(confirmed(stored).is_confirmed_after(confirmed(incoming), Timestamp(now)), stays, "{case}");
        }
    }

    #[test]
    fn a_zero_lifetime_always_revalidates() {
        let rule = FreshnessRule { fresh: Duration::ZERO, ..RULE };
        let confirmed = Confirmation { checked: Timestamp(5), gone: false };
        assert_eq!(decide(confirmed, &rule, Connectivity::Online, Timestamp(5)), FreshnessDecision::Revalidate);
        assert_eq!(rule.not_found_lifetime(), Duration::ZERO);
    }
}
