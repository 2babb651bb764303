//! Storage of the index entries: sled, or memory while the disk refuses sled's files. The folder of sled is checked for
//! another process, and moved to quarantine when it is damaged.
#![expect(
    clippy::disallowed_methods,
    reason = "the store owns the files; an index that will not open is moved to quarantine"
)]

use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::io;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::super::{StoreError, disk};
use crate::clock::Timestamp;

const CACHE_BYTES: u64 = 32 << 20;

/// Small values by key, in order.
#[derive(Debug)]
pub(super) enum IndexBackend {
    /// Entries in sled, on disk.
    OnDisk(sled::Db),
    /// Entries in memory; the next start rebuilds them from the files.
    InMemory(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>),
}

impl IndexBackend {
    pub(super) fn on_disk(folder: &Path) -> Result<Self, StoreError> {
        let config = sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).flush_every_ms(Some(500));
        config.open().map(Self::OnDisk).map_err(store_error)
    }

    pub(super) fn in_memory() -> Self {
        Self::InMemory(Mutex::default())
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::OnDisk(db) => Ok(db.get(key).map_err(store_error)?.map(|value| value.to_vec())),
            Self::InMemory(map) => Ok(map.lock().get(key).cloned()),
        }
    }

    pub(super) fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::OnDisk(db) => db.insert(key, value).map(drop).map_err(store_error),
            Self::InMemory(map) => {
                map.lock().insert(key.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    /// Removes an entry and returns it.
    pub(super) fn remove(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::OnDisk(db) => Ok(db.remove(key).map_err(store_error)?.map(|value| value.to_vec())),
            Self::InMemory(map) => Ok(map.lock().remove(key)),
        }
    }

    /// Visits all entries with a key prefix, in order. Concurrent changes may or may not be seen.
    pub(super) fn each_with_prefix(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), StoreError> {
        self.each_after(prefix, &[], |key, value| {
            visit(key, value);
            ControlFlow::Continue(())
        })
    }

    /// Visits the entries with a key prefix, in order, from the first one whose key is greater than `after`, until
    /// `visit` breaks. Concurrent changes may or may not be seen.
    pub(super) fn each_after(
        &self,
        prefix: &[u8],
        after: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        // No entry's key is the prefix alone.
        let range = (Bound::Excluded(prefix.max(after)), Bound::Unbounded);
        match self {
            Self::OnDisk(db) => {
                for pair in db.range::<&[u8], _>(range) {
                    let (key, value) = pair.map_err(store_error)?;
                    if !key.starts_with(prefix) || visit(&key, &value).is_break() {
                        break;
                    }
                }
            }
            Self::InMemory(map) => {
                for (key, value) in map.lock().range::<[u8], _>(range) {
                    if !key.starts_with(prefix) || visit(key, value).is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Size on disk; zero if unknown.
    pub(super) fn disk_bytes(&self) -> u64 {
        match self {
            Self::OnDisk(db) => db.size_on_disk().unwrap_or_default(),
            Self::InMemory(_) => 0,
        }
    }

    pub(super) fn flush(&self) -> Result<(), StoreError> {
        match self {
            Self::OnDisk(db) => db.flush().map(drop).map_err(store_error),
            Self::InMemory(_) => Ok(()),
        }
    }
}

fn store_error(error: sled::Error) -> StoreError {
    let index_failed = StoreError::Index(error.to_string());
    let sled::Error::Io(source) = error else { return index_failed };
    let disk_failed = StoreError::io("use", Path::new("the index"), source);
    if disk_failed.is_full() || disk_failed.is_unwritable() { disk_failed } else { index_failed }
}

/// Refuses an index that another process has open: it is not damaged and must not be moved. The store's own lock does
/// not prove that: it may have been removed, or the file system may not support it.
pub(super) fn refuse_if_locked(folder: &Path) -> Result<(), StoreError> {
    // A folder that cannot be opened is not locked; sled reports its error.
    let file = disk::open(&folder.join("db")).ok().flatten();
    match file.map(|file| file.try_lock()) {
        Some(Err(TryLockError::WouldBlock)) => Err(StoreError::Locked(folder.to_owned())),
        _ => Ok(()),
    }
}

/// Quarantines a damaged index, and returns its new path. Earlier quarantined indexes are removed.
pub(super) fn quarantine_index(folder: &Path, now: Timestamp) -> Result<PathBuf, StoreError> {
    let (parent, prefix) = (folder.parent().unwrap_or(folder), "index.broken-");
    for name in disk::names_in(parent)?.iter().filter(|name| name.starts_with(prefix)) {
        let earlier = parent.join(name);
        fs::remove_dir_all(&earlier).map_err(|e| StoreError::io("remove", &earlier, e))?;
    }
    let target = parent.join(format!("{prefix}{}", now.0));
    match fs::rename(folder, &target) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("set aside", folder, e)),
        _ => Ok(target),
    }
}
