//! When a held document is served, asked about again, or fetched. Pure: no clock, no disk, no network.

use std::time::Duration;

use crate::clock::{CLOCK_SLACK, Timestamp};
use crate::upstream::outbound::Link;

/// How old a held document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    /// When upstream last confirmed it.
    pub(super) checked: Timestamp,
    /// Whether upstream said then that it does not exist any more.
    pub(super) gone: bool,
}

impl Age {
    /// Whether what is held with this age stays where something of another comes to take its place: it was confirmed
    /// later, and not at a time that has not come.
    pub(super) fn outlasts(self, coming: Self, now: Timestamp) -> bool {
        self.checked > coming.checked && self.checked <= now.after(CLOCK_SLACK)
    }
}

/// How long documents of a kind stay fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    /// The fresh time of the kind.
    pub(super) fresh: Duration,
    /// For how long a 404 is believed; never longer than `fresh`.
    pub(super) not_found: Duration,
    /// How long a request waits for a revalidation.
    pub(super) patience: Duration,
    /// Where it is asked about again.
    pub(super) place: RevalidationOrder,
}

/// Where something held is asked about again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RevalidationOrder {
    /// Where it came from.
    AsBefore,
    /// Elsewhere: its upstream has moved since.
    Another,
}

impl Rule {
    /// When a document of this age stops being fresh.
    pub(super) fn fresh_until(&self, age: Age) -> Timestamp {
        age.checked.after(if age.gone { self.believed() } else { self.fresh })
    }

    /// The rule for what another place said: it is past its time whatever its age.
    pub(super) fn of_another_place(self) -> Self {
        Self { fresh: Duration::ZERO, place: RevalidationOrder::Another, ..self }
    }

    /// For how long a 404 is believed.
    pub(super) fn believed(&self) -> Duration {
        self.not_found.min(self.fresh)
    }
}

/// What to do with a request for a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FreshnessDecision {
    /// Serve what is held; it is fresh.
    Serve,
    /// Serve what is held; nobody can be asked.
    ServeStale,
    /// Ask upstream again, with patience; serve what is held if that fails.
    Revalidate,
    /// Fetch it; nothing is held.
    Fetch,
    /// Nothing is held, and nobody can be asked.
    Refuse,
}

/// Decides.
pub(super) fn decide(held: Option<Age>, rule: &Rule, link: Link, now: Timestamp) -> FreshnessDecision {
    let Some(age) = held else {
        return match link {
            Link::Online => FreshnessDecision::Fetch,
            Link::Offline => FreshnessDecision::Refuse,
        };
    };
    let from_the_future = age.checked > now.after(CLOCK_SLACK);
    match link {
        _ if now < rule.fresh_until(age) && !from_the_future => FreshnessDecision::Serve,
        Link::Online => FreshnessDecision::Revalidate,
        Link::Offline => FreshnessDecision::ServeStale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        fresh: Duration::from_secs(300),
        not_found: Duration::from_secs(30),
        patience: Duration::from_secs(2),
        place: RevalidationOrder::AsBefore,
    };

    #[test]
    fn the_table_of_decisions_holds() {
        let held = |checked, gone| Some(Age { checked: Timestamp(checked), gone });
        for (case, held, link, now, verdict) in [
            ("nothing held", None, Link::Online, 1000, FreshnessDecision::Fetch),
            ("nothing held, sealed", None, Link::Offline, 1000, FreshnessDecision::Refuse),
            ("just checked", held(1000, false), Link::Online, 1000, FreshnessDecision::Serve),
            ("the last fresh second", held(1000, false), Link::Online, 1299, FreshnessDecision::Serve),
            ("the first stale second", held(1000, false), Link::Online, 1300, FreshnessDecision::Revalidate),
            ("stale and sealed", held(1000, false), Link::Offline, 1300, FreshnessDecision::ServeStale),
            ("fresh and sealed", held(1000, false), Link::Offline, 1001, FreshnessDecision::Serve),
            ("gone is believed for less", held(1000, true), Link::Online, 1029, FreshnessDecision::Serve),
            ("then asked again", held(1000, true), Link::Online, 1030, FreshnessDecision::Revalidate),
            ("the clock went back a little", held(1000, false), Link::Online, 990, FreshnessDecision::Serve),
            ("the clock went back a lot", held(9000, false), Link::Online, 1000, FreshnessDecision::Revalidate),
        ] {
            assert_eq!(decide(held, &RULE, link, Timestamp(now)), verdict, "{case}");
        }
    }

    #[test]
    fn what_was_confirmed_later_stays_unless_a_wrong_clock_said_so() {
        let age = |checked| Age { checked: Timestamp(checked), gone: false };
        for (case, held, coming, now, stays) in [
            ("older", 900, 1000, 1000, false),
            ("just as old", 1000, 1000, 1000, false),
            ("newer", 1000, 900, 1000, true),
            ("confirmed while the other was on its way", 1010, 1000, 1000, true),
            ("from a time that has not come", 9000, 1000, 1000, false),
        ] {
            assert_eq!(age(held).outlasts(age(coming), Timestamp(now)), stays, "{case}");
        }
    }

    #[test]
    fn no_fresh_time_means_always_asked() {
        let rule = Rule { fresh: Duration::ZERO, ..RULE };
        let age = Age { checked: Timestamp(5), gone: false };
        assert_eq!(decide(Some(age), &rule, Link::Online, Timestamp(5)), FreshnessDecision::Revalidate);
        assert_eq!(rule.believed(), Duration::ZERO);
    }
}
