//! State of the index relative to the files: complete, or being completed after the start, and tasks that wait for
//! that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::StoreError;
use super::super::index_backend::IndexBackend;
use super::{Index, Totals};

/// State of the index relative to the files.
#[derive(Debug, Clone)]
pub(super) enum IndexState {
    /// Contains everything in the files.
    Whole,
    /// Being completed: it lacks some files, and lists some that are gone.
    Behind,
    /// It could not be completed, for this reason.
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
            IndexState::Whole => Ok(()),
            IndexState::Behind => Err(StoreError::Index("it is still being made from the files".to_owned())),
            IndexState::Failed(reason) => Err(reason.clone()),
        }
    }

    /// Waits until the index is complete: as long as it takes to read all names.
    ///
    /// # Errors
    /// The reason why it cannot be completed.
    pub async fn until_complete(&self) -> Result<(), StoreError> {
        let mut state = self.state.subscribe();
        // The sender exists.
        let _ = state.wait_for(|state| !matches!(state, IndexState::Behind)).await;
        self.needs_to_be_whole()
    }

    /// Reports the end of the completion to all waiting tasks.
    pub fn completed(&self, ended: Result<(), StoreError>) {
        self.state.send_replace(match ended {
            Ok(()) => IndexState::Whole,
            Err(reason) => IndexState::Failed(reason),
        });
    }

    /// Starts to complete the index. Its entries are kept, unless one cannot be read: a damaged index may have lost any
    /// entry, so a new one starts in memory. Returns true if every file is to be recorded.
    pub fn begin_completion(&self) -> bool {
        let read = catch_unwind(AssertUnwindSafe(|| self.read_all()));
        let damaged = read.unwrap_or_else(|_| Err(StoreError::Index("it panicked".to_owned()))).err();
        if let Some(reason) = damaged {
            self.start_over(&reason);
        }
        let was_whole = self.is_complete();
        if !was_whole {
            self.state.send_replace(IndexState::Behind);
        }
        !was_whole
    }

    fn start_over(&self, reason: &StoreError) {
        tracing::error!(%reason, "the index is damaged; it is quarantined, and rebuilt from the files");
        // First: operations that need all names must not act on missing entries.
        self.state.send_replace(IndexState::Behind);
        let mut totals = self.totals.lock();
        let damaged = std::mem::replace(&mut *self.entries.write(), IndexBackend::in_memory());
        // Closing it may wait forever for a dead thread.
        std::mem::forget(damaged);
        *totals = Totals::default();
        *self.left_behind.lock() = Some(self.folder.clone());
        self.quarantine_on_disk();
    }

    fn read_all(&self) -> Result<(), StoreError> {
        let entries = self.entries.read();
        entries.each_below(&[], |_, _| ())?;
        drop(entries);
        // Nothing is recorded meanwhile.
        let totals = self.totals.lock();
        let counted = self.count()?;
        if *totals == counted {
            Ok(())
        } else {
            Err(StoreError::Index(format!("its totals are {totals:?}, and its entries {counted:?}")))
        }
    }
}
