//! Approvals: the word of a person that a version may be used before it has the age that a rule demands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;

/// The most decisions about the versions of one address. None is ever removed, so there is a limit.
pub const MAX_DECISIONS: usize = 2_000;

/// A person's decision about a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalEntry {
    /// The version.
    pub version: Version,
    /// The decision.
    pub decision: ApprovalDecision,
    /// The time of the decision.
    pub time: Timestamp,
    /// The last moment for which an approval counts; `None` for one without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The reason. One who takes an approval back need not give any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The name of the person, as given: nobody proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The time at which the entry came with a bundle, from another larder; `None` for a decision that was made here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Timestamp>,
}

impl ApprovalEntry {
    /// The time that counts between decisions: one from the future of a receiver counts from its arrival.
    fn counts_from(&self) -> Timestamp {
        self.received.map_or(self.time, |received| received.min(self.time))
    }

    /// Returns true if both are one decision, wherever they are from.
    fn is_same_decision(&self, other: &Self) -> bool {
        let Self { version, decision, time, until, reason, by, received: _ } = self;
        (version, decision, time, until, reason, by)
            == (&other.version, &other.decision, &other.time, &other.until, &other.reason, &other.by)
    }
}

/// A decision about a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalDecision {
    /// It may be used whatever its age.
    Approved,
    /// The approval is taken back.
    TakenBack,
}

/// An approval that counts now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Approval {
    /// `HOST/NAMESPACE/TYPE`, or `HOST/NAMESPACE/NAME/SYSTEM`
    pub address: String,
    /// The version.
    pub version: Version,
    /// The time of the approval.
    pub since: Timestamp,
    /// Its end; null for none.
    pub until: Option<Timestamp>,
    /// The reason.
    pub reason: String,
    /// The name of the person, as given: nobody proves it.
    pub by: Option<String>,
    /// True if it came with a bundle, from another larder.
    pub from_bundle: bool,
}

/// The record of one address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approvals {
    entries: Vec<ApprovalEntry>,
}

impl Approvals {
    /// All entries, in their order.
    pub fn entries(&self) -> &[ApprovalEntry] {
        &self.entries
    }

    /// The entry that counts for each version: the latest. Of two of one moment, which two larders made, the one behind.
    fn deciding(&self) -> BTreeMap<&Version, &ApprovalEntry> {
        let mut deciding = BTreeMap::<&Version, &ApprovalEntry>::new();
        for entry in &self.entries {
            if deciding.get(&entry.version).is_none_or(|known| known.counts_from() <= entry.counts_from()) {
                deciding.insert(&entry.version, entry);
            }
        }
        deciding
    }

    /// The approvals that count at a moment: each version, with its entry.
    fn in_force(&self, now: Timestamp) -> impl Iterator<Item = (&Version, &ApprovalEntry)> {
        let counts = move |entry: &ApprovalEntry| {
            entry.decision == ApprovalDecision::Approved && entry.until.is_none_or(|until| now <= until)
        };
        self.deciding().into_iter().filter(move |(_, entry)| counts(entry))
    }

    /// The approved versions at a moment, each with the first moment at which it no longer is.
    pub fn ends(&self, now: Timestamp) -> BTreeMap<Version, Timestamp> {
        let end = |entry: &ApprovalEntry| {
            entry.until.map_or(Timestamp(u64::MAX), |until| Timestamp(until.0.saturating_add(1)))
        };
        self.in_force(now).map(|(version, entry)| (version.clone(), end(entry))).collect()
    }

    /// The approvals that count at a moment, for people.
    pub fn of_address(&self, address: &Address, now: Timestamp) -> Vec<Approval> {
        let approval = |(version, entry): (&Version, &ApprovalEntry)| Approval {
            address: address.to_string(),
            version: version.clone(),
            since: entry.time,
            until: entry.until,
            reason: entry.reason.clone().unwrap_or_default(),
            by: entry.by.clone(),
            from_bundle: entry.received.is_some(),
        };
        self.in_force(now).map(approval).collect()
    }

    /// Adds decisions that were not there. A full record still takes an approval back.
    pub fn add(&mut self, decisions: &[ApprovalEntry]) -> Added {
        let mut added = Added::default();
        for entry in decisions {
            let mut entry = entry.clone();
            let deciding = if entry.received.is_none() || self.entries.len() >= MAX_DECISIONS {
                self.deciding().get(&entry.version).map(|known| (known.decision, known.counts_from()))
            } else {
                None
            };
            if let (None, Some((_, latest))) = (entry.received, deciding) {
                // Of two decisions within a second, and after a clock was set back, the second one is the later.
                entry.time = entry.time.max(Timestamp(latest.0.saturating_add(1)));
                while self.entries.iter().any(|known| known.is_same_decision(&entry)) {
                    entry.time = Timestamp(entry.time.0.saturating_add(1));
                }
            }
            if self.entries.iter().any(|known| known.is_same_decision(&entry)) {
                continue;
            }
            let ends_approval = entry.decision == ApprovalDecision::TakenBack
                && deciding.is_some_and(|(decision, _)| decision == ApprovalDecision::Approved);
            if self.entries.len() >= MAX_DECISIONS && !ends_approval {
                added.left_out += 1;
                continue;
            }
            self.entries.push(entry.clone());
            added.new.push(entry);
        }
        added
    }
}

/// The outcome of adding decisions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added {
    /// Those that were not there.
    pub new: Vec<ApprovalEntry>,
    /// The number of those for which the record has no room.
    pub left_out: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(
        version: u8,
        decision: ApprovalDecision,
        time: u64,
        until: Option<u64>,
        received: Option<u64>,
    ) -> ApprovalEntry {
        let version = Version::parse(&format!("1.0.{version}")).unwrap();
        let [until, received] = [until, received].map(|time| time.map(Timestamp));
        ApprovalEntry { version, decision, time: Timestamp(time), until, reason: None, by: None, received }
    }

    fn any_entry() -> impl Strategy<Value = ApprovalEntry> {
        let decision = prop_oneof![Just(ApprovalDecision::Approved), Just(ApprovalDecision::TakenBack)];
        (0..3u8, decision, 0..20u64, prop::option::of(0..30u64), prop::option::of(0..20u64)).prop_map(
            |(version, decision, time, until, from_bundle)| entry(version, decision, time, until, from_bundle),
        )
    }

    proptest! {
        /// A bundle that is applied again, also an older one, changes nothing.
        #[test]
        fn a_repeated_bundle_changes_nothing(own in prop::collection::vec(any_entry(), 0..8), sent in prop::collection::vec(any_entry(), 0..8), first in 0..20u64, second in 0..40u64) {
            let sent_at = |time| sent.iter().map(|entry| ApprovalEntry { received: Some(Timestamp(time)), ..entry.clone() }).collect::<Vec<_>>();
            let mut approvals = Approvals::default();
            approvals.add(&sent_at(first));
            approvals.add(&own);
            let before = approvals.clone();
            prop_assert_eq!(approvals.add(&sent_at(second)), Added::default());
            prop_assert_eq!(approvals, before);
        }

        /// The last decision of a person here counts, whatever came before and however the clock was set.
        #[test]
        fn the_last_decision_counts(before in prop::collection::vec(any_entry(), 0..8), last in any_entry()) {
            let mut approvals = Approvals::default();
            approvals.add(&before);
            let last = ApprovalEntry { received: None, until: None, ..last };
            prop_assert_eq!(approvals.add(std::slice::from_ref(&last)).new.len(), 1);
            let is_approved = approvals.ends(Timestamp(1_000)).contains_key(&last.version);
            prop_assert_eq!(is_approved, last.decision == ApprovalDecision::Approved);
        }
    }

    #[test]
    fn an_approval_counts_until_its_last_moment() {
        let mut approvals = Approvals::default();
        approvals.add(&[entry(1, ApprovalDecision::Approved, 5, Some(9), None)]);
        assert_eq!(approvals.ends(Timestamp(9)).into_values().collect::<Vec<_>>(), [Timestamp(10)]);
        assert!(approvals.ends(Timestamp(10)).is_empty());
    }

    #[test]
    fn a_full_record_still_takes_an_approval_back() {
        let (approved, taken_back) = (ApprovalDecision::Approved, ApprovalDecision::TakenBack);
        let mut approvals = Approvals::default();
        let many: Vec<_> = (0..MAX_DECISIONS as u64).map(|time| entry(1, approved, time, None, Some(time))).collect();
        approvals.add(&many);
        for received in [None, Some(3)] {
            let further = [entry(2, approved, 1, None, received), entry(2, taken_back, 2, None, received)];
            assert_eq!(approvals.add(&further), Added { new: Vec::new(), left_out: 2 });
        }
        assert_eq!(approvals.add(&[entry(1, taken_back, 9_999, None, Some(9_999))]).new.len(), 1);
        assert!(approvals.ends(Timestamp(10_000)).is_empty());
    }
}
