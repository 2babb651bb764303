//! Approvals: the word of a person that a version may be used before it has the age that a rule demands. Each address has one
//! record, to which entries are only added.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::mirror::Library;
use crate::store::{Durability, Key, ReadOutcome, StoreError};

/// The most entries of one address. None is ever removed, so there is a limit.
pub const MAX_DECISIONS: usize = 2_000;
/// The most approvals in a status.
const MAX_IN_STATUS: usize = 1_000;

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

    fn shown<'a>(&'a self, address: &'a Address, now: Timestamp) -> impl Iterator<Item = Approval> + 'a {
        self.in_force(now).map(|(version, entry)| Approval {
            address: address.to_string(),
            version: version.clone(),
            since: entry.time,
            until: entry.until,
            reason: entry.reason.clone().unwrap_or_default(),
            by: entry.by.clone(),
            from_bundle: entry.from_bundle,
        })
    }
}

impl Library {
    /// Reads the approvals of an address in its canonical spelling. A damaged record approves nothing. Blocks.
    pub fn read_approvals(&self, address: &Address) -> Result<Approvals, StoreError> {
        Ok(match self.store.records.read(&Key::Approvals(address.clone()))?.json() {
            ReadOutcome::Intact(approvals) => approvals,
            ReadOutcome::Absent => Approvals::default(),
            ReadOutcome::Damaged => {
                tracing::error!(%address, "the record of its approvals is damaged: none of them counts; approve again what is needed");
                Approvals::default()
            }
        })
    }

    /// Adds decisions about versions of an address in its canonical spelling. Returns those that its record did not have; `None`
    /// if it has no room for them. Blocks.
    pub fn add_approvals(
        &self,
        address: &Address,
        decisions: &[ApprovalEntry],
    ) -> Result<Option<Vec<ApprovalEntry>>, StoreError> {
        let key = Key::Approvals(address.clone());
        self.store.records.change(&key, |step| {
            let parse = |record: Vec<u8>| serde_json::from_slice::<Approvals>(&record).ok();
            let mut approvals = step.read_as(&key, parse)?.intact().unwrap_or_default();
            let known = approvals.entries.len();
            for entry in decisions {
                let mut entry = entry.clone();
                // Of two decisions within a second, and after a clock was set back, the second one is the later.
                if let Some(latest) = approvals.deciding().get(&entry.version).filter(|_| !entry.from_bundle) {
                    entry.time = entry.time.max(Timestamp(latest.time.0.saturating_add(1)));
                }
                if !approvals.has(&entry) {
                    approvals.entries.push(entry);
                }
            }
            let new = approvals.entries.get(known..).unwrap_or_default().to_vec();
            if approvals.entries.len() > MAX_DECISIONS {
                return Ok(None);
            }
            if !new.is_empty() {
                step.put_json(&key, &approvals, Durability::Synced);
            }
            Ok(Some(new))
        })
    }

    /// The approvals of an address in its canonical spelling that count now. Blocks.
    pub fn approvals_of(&self, address: &Address, now: Timestamp) -> Result<Vec<Approval>, StoreError> {
        Ok(self.read_approvals(address)?.shown(address, self.latest_time.at(now)).collect())
    }

    /// The approvals that count now, at most a thousand. Blocks.
    pub fn approvals_in_force(&self, now: Timestamp) -> Result<Vec<Approval>, StoreError> {
        let mut in_force = Vec::new();
        let addresses: BTreeSet<Address> = self.store.records.addresses_with_approvals()?.into_iter().collect();
        for address in addresses {
            in_force.extend(self.approvals_of(&address, now)?);
            if in_force.len() >= MAX_IN_STATUS {
                in_force.truncate(MAX_IN_STATUS);
                break;
            }
        }
        Ok(in_force)
    }
}
