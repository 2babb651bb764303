//! State of the index relative to the files: complete, or being completed after the start, and tasks that wait for
//! that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::StoreError;
use super::backend::IndexBackend;
use super::{Index, Totals};

/// State of the index relative to the files.
#[derive(Debug, Clone)]
pub(super) enum IndexState {
    /// The index contains everything in the files.
    Complete,
    /// The index is being completed: it lacks some files, and lists some that were removed.
    Incomplete,
    /// The index could not be completed, for this reason.
    Failed(StoreError),
}

impl Index {
    /// Returns true if the index contains everything in the files.
    pub fn is_complete(&self) -> bool {
        self.needs_to_be_whole().is_ok()
    }

    /// Checks that the index is complete, before any lock of the store is taken.
    ///
    /// # Errors
    /// The index is being completed, or cannot be.
    pub fn needs_to_be_whole(&self) -> Result<(), StoreError> {
        match &*self.state.borrow() {
            IndexState::Complete => Ok(()),
            IndexState::Incomplete => {
                Err(StoreError::Index("the index is still being completed from the files".to_owned()))
            }
            IndexState::Failed(reason) => Err(reason.clone()),
        }
    }

    /// Waits until the index is complete: as long as it takes to read all names.
    ///
    /// # Errors
    /// The reason why it cannot be completed.
    pub async fn until_complete(&self) -> Result<(), StoreError> {
        let mut state = self.state.subscribe();
        // An error means that the sender was dropped; the index owns it.
        let _ = state.wait_for(|state| !matches!(state, IndexState::Incomplete)).await;
        self.needs_to_be_whole()
    }

    /// Reports the end of the completion to all waiting tasks.
    pub fn completed(&self, result: Result<(), StoreError>) {
        self.state.send_replace(match result {
            Ok(()) => IndexState::Complete,
            Err(reason) => IndexState::Failed(reason),
        });
    }

    /// Starts to complete the index. The existing entries stay, unless one cannot be read: a damaged index may have lost
    /// any entry, so a new index starts in memory. Returns true if the caller must record every file.
    pub fn begin_completion(&self) -> bool {
        let checked = catch_unwind(AssertUnwindSafe(|| self.read_all()));
        let damage = checked.unwrap_or_else(|_| Err(StoreError::Index("its library panicked".to_owned()))).err();
        if let Some(reason) = damage {
            self.start_over(&reason);
        }
        let was_complete = self.is_complete();
        if !was_complete {
            self.state.send_replace(IndexState::Incomplete);
        }
        !was_complete
    }

    /// Quarantines a damaged index, and continues with an empty one in memory.
    fn start_over(&self, reason: &StoreError) {
        tracing::error!(%reason, "the index is damaged; it is quarantined, and rebuilt from the files");
        // The state changes first: operations that need all names must not act on missing entries.
        self.state.send_replace(IndexState::Incomplete);
        let mut totals = self.totals.lock();
        let damaged = std::mem::replace(&mut *self.entries.write(), IndexBackend::in_memory());
        // The damaged index is not closed: closing may wait forever for a dead thread.
        std::mem::forget(damaged);
        *totals = Totals::default();
        *self.replaced_folder.lock() = Some(self.folder.clone());
        self.quarantine_on_disk();
    }

    /// Reads every entry, and compares the totals with them.
    fn read_all(&self) -> Result<(), StoreError> {
        let entries = self.entries.read();
        entries.each_with_prefix(&[], |_, _| ())?;
        drop(entries);
        // The lock keeps the totals unchanged while the entries are counted.
        let totals = self.totals.lock();
        let counted = self.count()?;
        if *totals == counted {
            Ok(())
        } else {
            Err(StoreError::Index(format!("the stored totals {totals:?} differ from the counted ones {counted:?}")))
        }
    }
}
