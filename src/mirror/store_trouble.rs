//! The store's last write errors, for `status`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::counters::Stored;
use crate::store::StoreError;

/// The last failure to store an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The cause.
    pub why: String,
    /// The remedy.
    pub to_do: String,
}

/// The last failure of each kind. With one entry for all, a small document that fits would hide that no archive does.
#[derive(Debug, Default)]
pub(super) struct StoreErrors(BTreeMap<Stored, Trouble>);

impl Mirror {
    /// Records that an object could not be stored.
    pub(super) fn was_not_kept(&self, kind: Stored, why: &StoreError) {
        self.counters.not_kept(kind);
        let trouble = Trouble { why: why.to_string(), to_do: why.remedy().to_owned() };
        self.troubles.lock().0.insert(kind, trouble);
    }

    /// Clears the failure of a kind, after an object was stored.
    pub(super) fn was_kept(&self, kind: Stored) {
        self.troubles.lock().0.remove(&kind);
    }

    /// The last failure; that of archives first.
    pub fn trouble(&self) -> Option<Trouble> {
        self.troubles.lock().0.values().next().cloned()
    }
}
