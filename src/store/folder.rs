//! Records in a folder, which larder runs with. Each is a file with its checksum, replaced by rename and never torn.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::disk::{self, Quarantine};
use super::key::{GroupRef, RecordGroup};
use super::locks::StoreLock;
use super::records::KINDS;
use super::{
    Change, Durability, FORMAT, Generation, Index, IndexedName, Key, NameCursor, ReadOutcome, RecordAction,
    RecordScope, Records, Staging, StoreError, Striped, Turns, WriteOutcome, to_json,
};
use crate::address::Artifact;
use crate::clock::Timestamp;
use crate::digest::Digest;

/// The first line of every record's file, in JSON; the record follows.
#[derive(Serialize, Deserialize)]
struct RecordHeader {
    format: u32,
    blake3: String,
    bytes: usize,
}

/// The generation of a group, even while nobody writes to it. Groups may share one, which only causes a conflict without a
/// reason.
#[derive(Debug, Default)]
struct GroupState {
    /// Odd while a write is in progress, so that what is read meanwhile is of no later generation.
    generation: AtomicU64,
    /// Locked while a write is in progress.
    writing: Mutex<()>,
}

impl GroupState {
    /// Begins a write. It ends on drop, also where it fails: the first changes may be in the store.
    fn begin_write(&self) -> WriteInProgress<'_> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        WriteInProgress(self)
    }

    fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }
}

struct WriteInProgress<'a>(&'a GroupState);

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        self.0.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// The records below a store's root: each replaced by rename, with its checksum, never torn.
#[derive(Debug)]
pub(super) struct FolderRecords {
    /// Before `lock`: the index is closed while the store is locked.
    index: Arc<Index>,
    staging: Staging,
    quarantine: Quarantine,
    lock: StoreLock,
    groups: Striped<GroupState>,
    turns: Turns,
    next_temp: AtomicU64,
}

impl FolderRecords {
    pub(super) fn open(
        staging: Staging,
        index: Arc<Index>,
        quarantine: Quarantine,
        lock: StoreLock,
    ) -> Result<Self, StoreError> {
        let is_new = !lock.root().join(KINDS[0]).is_dir();
        for kind in KINDS {
            let made = disk::create_folder(&lock.root().join(kind));
            // A store of an older larder lacks some folders, and its disk may be mounted read-only: then reading still works.
            if is_new {
                made?;
            }
        }
        let (groups, turns, next_temp) = (Striped::default(), Turns::default(), AtomicU64::default());
        Ok(Self { index, staging, quarantine, lock, groups, turns, next_temp })
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.lock.root().join(key.path())
    }

    /// Runs a listing, and fails unless the store is still the locked one.
    fn listed<T>(&self, list: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.lock.check()?;
        self.lock.if_ours(list())
    }

    /// Writes the file of a record in staging.
    fn write_temp(&self, record: &[u8], durability: Durability) -> Result<TempRecord, StoreError> {
        let blake3 = blake3::hash(record).to_hex().to_string();
        let header = to_json(&RecordHeader { format: FORMAT, blake3, bytes: record.len() });
        let number = self.next_temp.fetch_add(1, Ordering::Relaxed);
        let path = self.staging.folder_now()?.join(format!("record-{number}"));
        let temp = TempRecord { path: Some(path.clone()), size_bytes: (header.len() + 1 + record.len()) as u64 };
        disk::write_new(&path, &[&header, b"\n", record], durability)?;
        Ok(temp)
    }

    /// Makes one change; the caller holds the lock of the group. Returns the size of the record's new file in bytes.
    fn apply(&self, change: &Change, temp: Option<TempRecord>) -> Result<u64, StoreError> {
        let path = self.path(&change.key);
        match (&change.action, temp) {
            (RecordAction::Put(_, durability), Some(temp)) => {
                disk::create_parent(&path, self.lock.root(), *durability)?;
                let size_bytes = temp.put_in_place(&path)?;
                if *durability == Durability::Synced {
                    disk::sync_folder_of(&path)?;
                }
                return Ok(size_bytes);
            }
            (RecordAction::Remove(durability), _) => {
                // Others may have been waited for since the step began.
                self.lock.check()?;
                disk::remove(&path)?;
                disk::sync_removal(&path, *durability)?;
            }
            (RecordAction::Quarantine, _) => {
                self.lock.check()?;
                let quarantined = self.quarantine.add(&path)?;
                tracing::error!(record = %path.display(), aside = %quarantined.display(), "a damaged record was quarantined");
            }
            (RecordAction::Put(..) | RecordAction::Keep, _) => {}
        }
        Ok(0)
    }
}

/// The file of a record before it is renamed into place; removed if it never is.
struct TempRecord {
    /// `None` once it is renamed.
    path: Option<PathBuf>,
    size_bytes: u64,
}

impl TempRecord {
    /// Renames the file into place; returns its size in bytes.
    fn put_in_place(mut self, target: &Path) -> Result<u64, StoreError> {
        if let Some(path) = &self.path {
            disk::rename(path, target)?;
        }
        // To remove what is gone would still lock the folder that all writers share.
        self.path = None;
        Ok(self.size_bytes)
    }
}

impl Drop for TempRecord {
    fn drop(&mut self) {
        // The error of the write is reported, not one of the cleanup. The next start removes what is left.
        let _ = self.path.as_deref().map(disk::remove);
    }
}

impl Records for FolderRecords {
    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        let path = self.path(key);
        let file = match self.lock.if_ours(disk::read(&path)) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(ReadOutcome::Absent),
            Err(unreadable) if unreadable.is_damage() => {
                tracing::error!(error = %unreadable, "a record cannot be read");
                return Ok(ReadOutcome::Damaged);
            }
            Err(failed) => return Err(failed),
        };
        record_of(file, path)
    }

    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        self.listed(|| disk::file_metadata(&self.path(key)))
    }

    fn refresh(&self, _: RecordScope<'_>) -> Result<(), StoreError> {
        // Nobody else writes to a folder that is locked.
        Ok(())
    }

    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError> {
        let group = self.groups.of(&group.as_ref());
        let _nobody_writes = group.writing.lock();
        Ok(group.generation())
    }

    fn generation_now(&self, group: GroupRef<'_>) -> Generation {
        self.groups.of(&group).generation()
    }

    fn of_machine(&self) -> &dyn Records {
        self
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError> {
        debug_assert!(changes.iter().all(|change| change.key.group() == *group), "{group:?}: {changes:?}");
        let group = self.groups.of(&group.as_ref());
        // A step that has lost already writes no files in vain.
        if group.generation() != read_at {
            return Ok(WriteOutcome::Conflict);
        }
        let mut temps = Vec::with_capacity(changes.len());
        for change in changes {
            self.lock.check()?;
            temps.push(match &change.action {
                // The bytes are synced before the lock is taken, so that other writers of the group do not wait for that.
                RecordAction::Put(record, durability) => Some(self.write_temp(record, *durability)?),
                RecordAction::Remove(_) | RecordAction::Quarantine | RecordAction::Keep => None,
            });
        }
        let _writing = group.writing.lock();
        if group.generation() != read_at {
            return Ok(WriteOutcome::Conflict);
        }
        // A record stays as it is if only its entry in the index changes.
        let _write = changes.iter().any(|change| change.action != RecordAction::Keep).then(|| group.begin_write());
        for (change, temp) in changes.iter().zip(temps) {
            let size_bytes = self.apply(change, temp)?;
            self.index.record_changed(change, size_bytes);
        }
        Ok(WriteOutcome::Written)
    }

    fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        let path = self.path(key);
        let Some(file) = self.lock.if_ours(disk::open(&path))? else { return Ok(false) };
        file.sync_all().map_err(|e| StoreError::io("sync", &path, e))?;
        disk::sync_folder_of(&path)?;
        Ok(true)
    }

    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError> {
        let (mut keys, after) = (Vec::new(), after.map(Key::path));
        let below = after.as_deref().map(|after| after.strip_prefix(folder).unwrap_or(after));
        let _ = self.listed(|| {
            disk::each_file_after(&self.lock.root().join(folder), below, &mut |path, size_bytes| {
                let key = path.strip_prefix(self.lock.root()).ok().and_then(Key::from_path);
                keys.extend(key.map(|key| (key, size_bytes)));
                if keys.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        })?;
        Ok(keys)
    }

    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        self.index.name(artifact)
    }

    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.index.names_below(folder, after, visit)
    }

    fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        self.index.names_of(digest)
    }

    fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        self.index.pinned_names()
    }

    fn imported_names(&self, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        self.index.imported_names(limit)
    }

    fn unreadable_name(&self) -> Option<StoreError> {
        self.index.unreadable_name()
    }

    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        self.listed(|| disk::names_in(&self.lock.root().join(folder)))
    }
}

/// The record in its file, which is at `path`.
///
/// # Errors
/// A newer larder wrote it.
pub(super) fn record_of(mut file: Vec<u8>, path: PathBuf) -> Result<ReadOutcome, StoreError> {
    let Some(end) = file.iter().take(1024).position(|byte| *byte == b'\n') else { return Ok(ReadOutcome::Damaged) };
    let (line, record) = (&file[..end], &file[end + 1..]);
    // A header of a newer format may have other members, but always has `format`.
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    if let Ok(Format { format: found }) = serde_json::from_slice(line)
        && found > FORMAT
    {
        return Err(StoreError::Newer { path, found });
    }
    let is_of_record =
        |header: RecordHeader| header.bytes == record.len() && header.blake3 == *blake3::hash(record).to_hex();
    let is_intact = serde_json::from_slice(line).is_ok_and(is_of_record);
    Ok(if is_intact { ReadOutcome::Intact(file.split_off(end + 1)) } else { ReadOutcome::Damaged })
}
