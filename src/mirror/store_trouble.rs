//! What the store would not take, so that `status` says so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::counters::Stored;
use crate::store::StoreError;

/// That the store would not take something, the last time that one tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Why.
    pub why: String,
    /// What the operator can do about it.
    pub to_do: String,
}

/// What the store would not take, the last time that one tried: each kind for itself, or a small document would hide
/// that no archive finds room.
#[derive(Debug, Default)]
pub(super) struct StoreErrors(BTreeMap<Stored, Trouble>);

impl Mirror {
    /// The store would not take something.
    pub(super) fn was_not_kept(&self, kind: Stored, why: &StoreError) {
        self.counters.not_kept(kind);
        let trouble = Trouble { why: why.to_string(), to_do: why.to_do().to_owned() };
        self.troubles.lock().0.insert(kind, trouble);
    }

    /// The store took something.
    pub(super) fn was_kept(&self, kind: Stored) {
        self.troubles.lock().0.remove(&kind);
    }

    /// Why the store would not take what it was last given of a kind; of archives, where it is neither.
    pub fn trouble(&self) -> Option<Trouble> {
        self.troubles.lock().0.values().next().cloned()
    }
}
