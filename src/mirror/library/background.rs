//! Starts the background tasks of the library, and stops everything when the mirror closes.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

use crate::mirror::Library;
use crate::mirror::counters::ObjectKind;
use crate::store::StoreError;
use crate::supervisor::{Supervisor, Task};

impl Library {
    pub(in crate::mirror) fn spawn_background_tasks(self: &Arc<Self>, supervisor: &Supervisor) {
        let (mirror, evictor) = (Arc::downgrade(self), Arc::clone(&self.evictor));
        let evicting = move || Self::run_evictor(Weak::clone(&mirror), Arc::clone(&evictor));
        let watched = supervisor.clone();
        self.runtime.tasks.spawn(async move { watched.run(Task::Evictor, evicting).await });
        let (mirror, watched) = (Arc::downgrade(self), supervisor.clone());
        let indexing = move || Self::rebuild_index(Weak::clone(&mirror));
        self.runtime.tasks.spawn(async move { watched.run(Task::Index, indexing).await });
        // The last process may have ended while over the limit.
        self.enforce_size_limit();
    }

    /// Stops the work in progress, which resumes at the next start, and closes the store.
    pub async fn close(&self) -> Result<(), StoreError> {
        let stopped = self.runtime.tasks.stop().await;
        if let Err(error) = self.save_missing() {
            tracing::warn!(%error, "the missing list could not be written");
        }
        if !stopped {
            // The index may miss a commit in progress. Without the clean mark, it is rebuilt.
            tracing::warn!("some work did not stop in time; the index is rebuilt at the next start");
            return Ok(());
        }
        self.store.close()
    }
}

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
