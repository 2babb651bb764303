//! The state of the store as a whole: its disk, its totals, the last failure to store something.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::Library;
use crate::mirror::counters::ObjectKind;
use crate::mirror::effects::Effects;
use crate::store::{DiskSpace, Standing, StoreError, Totals};

/// Deadline of the readiness probe of the store.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// A reason why the store is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// The store is gone or cannot be read.
    StoreGone,
    /// Its disk does not respond.
    DiskUnresponsive,
    /// It is further behind other replicas than `serve_behind` allows.
    TooFarBehind,
}

impl NotReady {
    /// The reason, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::StoreGone => "the store is not there",
            Self::DiskUnresponsive => "the store does not answer",
            Self::TooFarBehind => "the database has not answered for longer than serve_behind allows",
        }
    }
}

/// The state of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StoreState {
    /// It can be read and written.
    Ready,
    /// The last archive or the last document could not be stored.
    NotKeeping,
    /// Its disk is mounted read-only.
    ReadOnly,
    /// It was removed or replaced, or its folder cannot be read.
    Gone,
}

impl StoreState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Ready, Self::NotKeeping, Self::ReadOnly, Self::Gone];

    /// The name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotKeeping => "not-keeping",
            Self::ReadOnly => "read-only",
            Self::Gone => "gone",
        }
    }
}

/// The last failure to store an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreFailure {
    /// The cause.
    pub why: String,
    /// The remedy.
    pub to_do: String,
}

impl Library {
    /// Checks that the store can be read. A hanging disk blocks one thread, however many requests ask.
    ///
    /// # Errors
    /// [`NotReady`] with the reason.
    pub async fn ready(self: &Arc<Self>) -> Result<(), NotReady> {
        if let Standing::TooFar(_) = self.standing() {
            return Err(NotReady::TooFarBehind);
        }
        let probe = self.work.probe_flights.join_or_spawn(
            Effects::Real,
            &self.runtime.tasks,
            (),
            Err(NotReady::StoreGone),
            || {
                let library = Arc::clone(self);
                async move {
                    let blocking_library = Arc::clone(&library);
                    let checked = library.runtime.tasks.spawn_blocking(move || blocking_library.require_store()).await;
                    if matches!(checked, Ok(Ok(()))) { Ok(()) } else { Err(NotReady::StoreGone) }
                }
            },
        );
        tokio::time::timeout(PROBE_TIMEOUT, probe).await.unwrap_or(Err(NotReady::DiskUnresponsive))
    }

    /// Checks that the store is still there and still the one that was opened. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it is not.
    pub fn require_store(&self) -> Result<(), StoreError> {
        self.store.local.check()
    }

    /// The state of the store. Reads the disk.
    pub fn store_state(&self) -> StoreState {
        if self.require_store().is_err() {
            return StoreState::Gone;
        }
        match self.disk_space() {
            Ok(space) if space.is_read_only => StoreState::ReadOnly,
            _ if self.last_store_failure().is_some() => StoreState::NotKeeping,
            _ => StoreState::Ready,
        }
    }

    /// The folder of the stored files, for messages.
    pub fn folder(&self) -> &Path {
        self.store.local.root()
    }

    /// The current state of the disk. Blocks.
    pub fn disk_space(&self) -> Result<DiskSpace, StoreError> {
        self.store.local.disk_space()
    }

    /// Numbers and bytes of what is stored. They lag behind until the index is complete.
    pub fn totals(&self) -> Totals {
        self.store.local.index.totals()
    }

    /// The size of the index on disk, in bytes.
    pub fn index_bytes(&self) -> u64 {
        self.store.local.index.disk_bytes()
    }

    /// True if the index contains everything that is stored.
    pub fn index_is_complete(&self) -> bool {
        self.store.local.index.is_complete()
    }

    /// Stores the receipt of a bundle durably, and returns its path. Blocks.
    pub fn write_receipt(&self, time: Timestamp, manifest: &Digest, receipt: &[u8]) -> Result<PathBuf, StoreError> {
        self.store.local.write_receipt(time, manifest, receipt)
    }

    /// The receipt of the bundle that was applied last. Blocks.
    pub fn last_receipt(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.local.last_receipt()
    }

    /// Records that an object could not be stored.
    pub fn count_not_stored(&self, kind: ObjectKind, reason: &StoreError) {
        self.runtime.counters.count_not_stored(kind);
        let trouble = StoreFailure { why: reason.to_string(), to_do: reason.remedy().to_owned() };
        self.work.store_failures.lock().insert(kind, trouble);
    }

    /// Clears the failure of a kind, after an object was stored.
    pub fn count_stored(&self, kind: ObjectKind) {
        self.work.store_failures.lock().remove(&kind);
    }

    /// The last failure; that of archives first.
    pub fn last_store_failure(&self) -> Option<StoreFailure> {
        self.work.store_failures.lock().values().next().cloned()
    }
}
