//! Records in memory that several replicas share, and each has a copy of.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder::address::Artifact;
use larder::clock::Timestamp;
use larder::store::{
    Change, Generation, GroupRef, IndexedName, Key, NameCursor, ReadOutcome, RecordGroup, RecordScope, Records,
    StoreError, Turns, WriteOutcome,
};

use super::memory_records::MemoryRecords;

/// The records of one replica of several: its own copy, which lags behind what others wrote until it is refreshed, and the records
/// that all share. Writes go to the shared ones, and win only with a copy that is up to date.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaggingRecords {
    copy: MemoryRecords,
    shared: MemoryRecords,
    /// True while the shared records cannot be reached.
    is_cut: Arc<AtomicBool>,
}

impl LaggingRecords {
    /// A replica that has copied nothing yet.
    pub(crate) fn of(shared: &MemoryRecords) -> Self {
        Self { shared: shared.clone(), ..Self::default() }
    }

    /// The shared records below a folder, or at a path.
    pub(crate) fn shared(&self, below: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = self.shared.paths().into_iter().filter(|path| path.starts_with(below));
        paths.filter_map(|path| Some((path.clone(), self.shared.bytes(&path)?))).collect()
    }

    /// Another replica of the same records, which has copied nothing yet.
    pub(crate) fn another(&self) -> Self {
        Self::of(&self.shared)
    }

    /// Forgets the copy, as a replica whose folder is lost.
    pub(crate) fn forget(&self) {
        self.copy.forget_all();
    }

    /// The copy.
    pub(crate) fn copy(&self) -> &MemoryRecords {
        &self.copy
    }

    /// Cuts the connection to the shared records, or mends it.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Release);
    }

    fn check_connection(&self) -> Result<(), StoreError> {
        match self.is_cut.load(Ordering::Acquire) {
            true => Err(StoreError::Unreachable("the connection is cut".to_owned())),
            false => Ok(()),
        }
    }
}

impl Records for LaggingRecords {
    fn refresh(&self, scope: RecordScope<'_>) -> Result<(), StoreError> {
        self.check_connection()?;
        match scope {
            RecordScope::Group(group) => self.copy.copy_group(group, &self.shared),
            RecordScope::All => {
                self.shared.groups().iter().for_each(|group| self.copy.copy_group(group, &self.shared));
            }
        }
        Ok(())
    }

    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError> {
        self.check_connection()?;
        let written = self.shared.write(group, read_at, changes)?;
        self.copy.copy_group(group, &self.shared);
        Ok(written)
    }

    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        self.copy.read(key)
    }

    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        self.copy.stat(key)
    }

    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError> {
        self.copy.generation(group)
    }

    fn generation_now(&self, group: GroupRef<'_>) -> Generation {
        self.copy.generation_now(group)
    }

    fn of_machine(&self) -> &dyn Records {
        &self.copy
    }

    fn turns(&self) -> &Turns {
        self.copy.turns()
    }

    fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        self.copy.sync(key)
    }

    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError> {
        self.copy.page(folder, after, limit)
    }

    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        self.copy.name(artifact)
    }

    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.copy.each_name(folder, after, visit)
    }

    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        self.copy.names_in(folder)
    }
}
