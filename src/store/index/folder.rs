//! The folder of the index: its lock, and moving it to quarantine.
#![expect(
    clippy::disallowed_methods,
    reason = "the store owns the files; an index that will not open is moved to quarantine"
)]

use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::super::{StoreError, disk};
use crate::clock::Timestamp;

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
