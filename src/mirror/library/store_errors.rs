//! The store's last write errors, for `status`.

use crate::mirror::Library;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::mirror::counters::ObjectKind;
use crate::store::StoreError;

/// The last failure to store an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreFailure {
    /// The cause.
    pub why: String,
    /// The remedy.
    pub to_do: String,
}

/// The last failure of each kind. With one entry for all, a small document that fits would hide that no archive does.
#[derive(Debug, Default)]
pub(in crate::mirror) struct LastStoreFailures(BTreeMap<ObjectKind, StoreFailure>);

impl Library {
    /// Records that an object could not be stored.
    pub(in crate::mirror) fn record_not_stored(&self, kind: ObjectKind, reason: &StoreError) {
        self.runtime.counters.count_not_stored(kind);
        let trouble = StoreFailure { why: reason.to_string(), to_do: reason.remedy().to_owned() };
        self.work.store_failures.lock().0.insert(kind, trouble);
    }

    /// Clears the failure of a kind, after an object was stored.
    pub(in crate::mirror) fn record_stored(&self, kind: ObjectKind) {
        self.work.store_failures.lock().0.remove(&kind);
    }

    /// The last failure; that of archives first.
    pub fn last_store_failure(&self) -> Option<StoreFailure> {
        self.work.store_failures.lock().0.values().next().cloned()
    }
}
