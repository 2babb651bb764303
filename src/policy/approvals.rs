//! Approvals: the word of a person that a version may be used before it has the age that a rule demands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;

/// The most decisions about the versions of one address. None is ever removed, so there is a limit.
pub const MAX_DECISIONS: usize = 2_000;

/// What a person decided about a version.
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
    /// True if the entry came with a bundle, from another larder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_bundle: bool,
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

    /// Returns true if the record has an entry, from wherever it came.
    fn has(&self, entry: &ApprovalEntry) -> bool {
        let from = |from_bundle| ApprovalEntry { from_bundle, ..entry.clone() };
        self.entries.iter().any(|known| *known == from(true) || *known == from(false))
    }

    /// The entry that counts for each version: the latest. Of two of one moment, which two larders made, the one behind.
    fn deciding(&self) -> BTreeMap<&Version, &ApprovalEntry> {
        let mut deciding = BTreeMap::<&Version, &ApprovalEntry>::new();
        for entry in &self.entries {
            if deciding.get(&entry.version).is_none_or(|known| known.time <= entry.time) {
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
            from_bundle: entry.from_bundle,
        };
        self.in_force(now).map(approval).collect()
    }

    /// Adds decisions. Returns those that were not there; `None`, and nothing is added, if there is no room for them.
    pub fn add(&mut self, decisions: &[ApprovalEntry]) -> Option<Vec<ApprovalEntry>> {
        let known = self.entries.len();
        for entry in decisions {
            let mut entry = entry.clone();
            // Of two decisions within a second, and after a clock was set back, the second one is the later.
            if !entry.from_bundle
                && let Some(latest) = self.deciding().get(&entry.version)
            {
                entry.time = entry.time.max(Timestamp(latest.time.0.saturating_add(1)));
            }
            if !self.has(&entry) {
                self.entries.push(entry);
            }
        }
        if self.entries.len() > MAX_DECISIONS {
            self.entries.truncate(known);
            return None;
        }
        Some(self.entries.get(known..).unwrap_or_default().to_vec())
    }
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
        from_bundle: bool,
    ) -> ApprovalEntry {
        let version = Version::parse(&format!("1.0.{version}")).unwrap();
        let until = until.map(Timestamp);
        ApprovalEntry { version, decision, time: Timestamp(time), until, reason: None, by: None, from_bundle }
    }

    fn any_entry() -> impl Strategy<Value = ApprovalEntry> {
        let decision = prop_oneof![Just(ApprovalDecision::Approved), Just(ApprovalDecision::TakenBack)];
        (0..3u8, decision, 0..20u64, prop::option::of(0..30u64), any::<bool>()).prop_map(
            |(version, decision, time, until, from_bundle)| entry(version, decision, time, until, from_bundle),
        )
    }

    proptest! {
        /// A bundle that is applied again, also an older one, changes nothing.
        #[test]
        fn a_repeated_bundle_changes_nothing(own in prop::collection::vec(any_entry(), 0..8), sent in prop::collection::vec(any_entry(), 0..8)) {
            let sent: Vec<_> = sent.into_iter().map(|entry| ApprovalEntry { from_bundle: true, ..entry }).collect();
            let mut approvals = Approvals::default();
            approvals.add(&sent).unwrap();
            approvals.add(&own).unwrap();
            let before = approvals.clone();
            prop_assert_eq!(approvals.add(&sent), Some(Vec::new()));
            prop_assert_eq!(approvals, before);
        }

        /// The last decision of a person here counts, whatever came before and however the clock was set.
        #[test]
        fn the_last_decision_counts(before in prop::collection::vec(any_entry(), 0..8), last in any_entry()) {
            let mut approvals = Approvals::default();
            approvals.add(&before).unwrap();
            let last = ApprovalEntry { from_bundle: false, until: None, ..last };
            prop_assert_eq!(approvals.add(std::slice::from_ref(&last)).unwrap().len(), 1);
            let is_approved = approvals.ends(Timestamp(1_000)).contains_key(&last.version);
            prop_assert_eq!(is_approved, last.decision == ApprovalDecision::Approved);
        }
    }

    #[test]
    fn an_approval_counts_until_its_last_moment() {
        let mut approvals = Approvals::default();
        approvals.add(&[entry(1, ApprovalDecision::Approved, 5, Some(9), false)]).unwrap();
        assert_eq!(approvals.ends(Timestamp(9)).into_values().collect::<Vec<_>>(), [Timestamp(10)]);
        assert!(approvals.ends(Timestamp(10)).is_empty());
    }

    #[test]
    fn a_full_record_takes_nothing_more() {
        let mut approvals = Approvals::default();
        let many: Vec<_> =
            (0..MAX_DECISIONS as u64).map(|time| entry(1, ApprovalDecision::Approved, time, None, false)).collect();
        approvals.add(&many).unwrap();
        let before = approvals.clone();
        assert_eq!(approvals.add(&[entry(2, ApprovalDecision::Approved, 1, None, false)]), None);
        assert_eq!(approvals, before);
    }
}
