//! Approvals: the word of a person that a version may be used before it has the age that a rule demands. Each address has one
//! record, to which entries are only added.

use std::collections::BTreeSet;

use crate::address::Address;
use crate::clock::Timestamp;
use crate::mirror::Library;
use crate::policy::{Added, Approval, ApprovalEntry, Approvals};
use crate::store::{Durability, Key, ReadOutcome, StoreError};

/// The most approvals in a status.
const MAX_IN_STATUS: usize = 1_000;

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

    /// Adds decisions about versions of an address in its canonical spelling. A damaged record begins anew with a decision that was
    /// made here; one that came with a bundle is left out, because the lost record may have taken it back. Blocks.
    pub fn add_approvals(&self, address: &Address, decisions: &[ApprovalEntry]) -> Result<Added, StoreError> {
        let key = Key::Approvals(address.clone());
        self.store.records.change(&key, |step| {
            let read = step.read(&key)?.json::<Approvals>();
            if matches!(read, ReadOutcome::Damaged) && decisions.iter().any(|entry| entry.received.is_some()) {
                return Ok(Added { new: Vec::new(), left_out: decisions.len() });
            }
            let mut approvals = read.intact().unwrap_or_default();
            let added = approvals.add(decisions);
            if !added.new.is_empty() {
                step.put_json(&key, &approvals, Durability::Synced);
            }
            Ok(added)
        })
    }

    /// The latest time that this larder has seen: approvals end by it.
    pub fn latest_time(&self, now: Timestamp) -> Timestamp {
        self.latest_time.at(now)
    }

    /// The approvals of an address in its canonical spelling that count now. Blocks.
    pub fn approvals_of(&self, address: &Address, now: Timestamp) -> Result<Vec<Approval>, StoreError> {
        Ok(self.read_approvals(address)?.of_address(address, self.latest_time.at(now)))
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
