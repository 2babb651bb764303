//! Records in memory: another store, which has nothing of the folder's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder::address::Artifact;
use larder::clock::Timestamp;
use larder::store::{
    Change, Generation, GroupRef, IndexEntry, IndexedName, Key, NameCursor, ReadOutcome, RecordAction, RecordGroup,
    RecordScope, Records, StoreError, Turns, WriteOutcome,
};
use parking_lot::Mutex;

/// Records in memory. A clone has the same records.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryRecords(Arc<Memory>);

#[derive(Debug, Default)]
struct Memory {
    now: Mutex<RecordsNow>,
    turns: Turns,
}

#[derive(Debug, Default)]
struct RecordsNow {
    records: BTreeMap<PathBuf, Vec<u8>>,
    /// The records that cannot be read.
    unreadable: BTreeMap<PathBuf, Unreadable>,
    /// The listed values of each name, by its cursor.
    names: BTreeMap<String, (Artifact, IndexedName)>,
    /// The generation of each group: that of the last change of any group, so that no group has an earlier one again.
    generations: HashMap<RecordGroup, u64>,
    last_generation: u64,
    /// The number of times that everything was forgotten.
    forgotten: u64,
}

impl RecordsNow {
    fn generation(&self, group: &RecordGroup) -> Generation {
        let unknown = self.forgotten.checked_sub(1).map_or(0, |before| u64::MAX - before);
        Generation(self.generations.get(group).copied().unwrap_or(unknown))
    }

    fn is_in(path: &Path, group: &RecordGroup) -> bool {
        Key::from_path(path).is_some_and(|key| key.group() == *group)
    }

    /// Replaces the records of a group by those that `other` has.
    fn copy_group(&mut self, group: &RecordGroup, other: &Self) {
        self.records.retain(|path, _| !Self::is_in(path, group));
        self.unreadable.retain(|path, _| !Self::is_in(path, group));
        self.names.retain(|_, (artifact, _)| Key::Name(artifact.clone()).group() != *group);
        let is_of_group = |path: &Path| Self::is_in(path, group);
        self.records
            .extend(other.records.iter().filter(|(path, _)| is_of_group(path)).map(|(p, r)| (p.clone(), r.clone())));
        self.unreadable
            .extend(other.unreadable.iter().filter(|(path, _)| is_of_group(path)).map(|(p, u)| (p.clone(), *u)));
        let names = other.names.iter().filter(|(_, (artifact, _))| Key::Name(artifact.clone()).group() == *group);
        self.names.extend(names.map(|(cursor, name)| (cursor.clone(), name.clone())));
        self.generations.insert(group.clone(), other.generation(group).0);
    }
}

#[derive(Debug, Clone, Copy)]
enum Unreadable {
    Damaged,
    Newer,
}

impl MemoryRecords {
    /// The paths of all records, in their order; damaged ones that a step quarantined are below `aside`.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.now.lock().records.keys().cloned().collect()
    }

    /// Forgets all records. Their groups have generations that they never had.
    pub(crate) fn forget_all(&self) {
        let mut now = self.0.now.lock();
        *now = RecordsNow { forgotten: now.forgotten + 1, ..RecordsNow::default() };
    }

    /// The groups that were ever written.
    pub(crate) fn groups(&self) -> Vec<RecordGroup> {
        self.0.now.lock().generations.keys().cloned().collect()
    }

    /// Replaces the records of a group by those that `other` has.
    pub(crate) fn copy_group(&self, group: &RecordGroup, other: &Self) {
        let (mut now, other) = (self.0.now.lock(), other.0.now.lock());
        if now.generation(group) != other.generation(group) {
            now.copy_group(group, &other);
        }
    }

    /// The bytes of the record at a path.
    pub(crate) fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        self.0.now.lock().records.get(path).cloned()
    }

    /// Stores a record at a path, as a person may put its file back.
    pub(crate) fn put(&self, path: &Path, record: Vec<u8>) {
        let mut now = self.0.now.lock();
        now.records.insert(path.to_owned(), record);
        now.unreadable.remove(path);
    }

    /// Makes the record at a path unreadable, as a failing disk does.
    pub(crate) fn damage(&self, path: &Path) {
        self.0.now.lock().unreadable.insert(path.to_owned(), Unreadable::Damaged);
    }

    /// Makes the record at a path one that a newer larder wrote.
    pub(crate) fn make_newer(&self, path: &Path) {
        self.0.now.lock().unreadable.insert(path.to_owned(), Unreadable::Newer);
    }

    /// Removes the record at a path, as a person may remove its file.
    pub(crate) fn lose(&self, path: &Path) {
        let mut now = self.0.now.lock();
        now.records.remove(path);
        now.unreadable.remove(path);
    }
}

impl Records for MemoryRecords {
    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        let (now, path) = (self.0.now.lock(), key.path());
        match now.unreadable.get(&path) {
            Some(Unreadable::Damaged) => Ok(ReadOutcome::Damaged),
            Some(Unreadable::Newer) => Err(StoreError::Newer { path, found: u32::MAX }),
            None => Ok(now.records.get(&path).cloned().map_or(ReadOutcome::Absent, ReadOutcome::Intact)),
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        Ok(self.0.now.lock().records.get(&key.path()).map(|record| (record.len() as u64, Timestamp(0))))
    }

    fn refresh(&self, _: RecordScope<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError> {
        Ok(self.0.now.lock().generation(group))
    }

    fn generation_now(&self, group: GroupRef<'_>) -> Generation {
        self.0.now.lock().generation(&group.to_owned())
    }

    fn of_machine(&self) -> &dyn Records {
        self
    }

    fn turns(&self) -> &Turns {
        &self.0.turns
    }

    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError> {
        let mut now = self.0.now.lock();
        if now.generation(group) != read_at {
            return Ok(WriteOutcome::Conflict);
        }
        for Change { key, action, entry } in changes {
            if let (Key::Name(artifact), IndexEntry::Name(name)) = (key, entry) {
                let cursor = NameCursor::of(artifact).as_str().to_owned();
                match name.is_empty() {
                    true => drop(now.names.remove(&cursor)),
                    false => drop(now.names.insert(cursor, (artifact.clone(), name.clone()))),
                }
            }
            if *action != RecordAction::Keep {
                now.last_generation += 1;
                let generation = now.last_generation;
                now.generations.insert(group.clone(), generation);
                now.unreadable.remove(&key.path());
            }
            match action {
                RecordAction::Put(record, _) => drop(now.records.insert(key.path(), record.clone())),
                RecordAction::Remove(_) => drop(now.records.remove(&key.path())),
                RecordAction::Quarantine => {
                    let damaged = now.records.remove(&key.path()).unwrap_or_default();
                    now.records.insert(Path::new("aside").join(key.path()), damaged);
                }
                RecordAction::Keep => {}
            }
        }
        Ok(WriteOutcome::Written)
    }

    fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(self.stat(key)?.is_some())
    }

    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError> {
        let (now, after) = (self.0.now.lock(), after.map(Key::path));
        let below = now.records.range(after.clone().unwrap_or_else(|| folder.to_owned())..);
        let below = below.filter(|(path, _)| path.starts_with(folder) && after.as_ref() != Some(path));
        let keys = below.filter_map(|(path, record)| Some((Key::from_path(path)?, record.len() as u64)));
        Ok(keys.take(limit).collect())
    }

    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        Ok(self.0.now.lock().names.get(NameCursor::of(artifact).as_str()).map(|(_, name)| name.clone()))
    }

    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let names = self.0.now.lock().names.clone();
        let after = after.map_or("", NameCursor::as_str);
        for (artifact, name) in names.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).map(|(_, name)| name)
        {
            let is_below = Key::Name(artifact.clone()).path().starts_with(folder);
            if is_below && visit(artifact.clone(), name.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        let now = self.0.now.lock();
        let below = now.records.keys().filter_map(|path| path.strip_prefix(folder).ok()?.iter().next()?.to_str());
        Ok(below.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect())
    }
}
