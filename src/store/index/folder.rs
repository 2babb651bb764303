//! The folder that the index lies in: whether somebody else has it open, and out of the way with it.
#![expect(clippy::disallowed_methods, reason = "the store owns the files; an index that will not open is moved aside")]

use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::super::{StoreError, disk};
use crate::clock::Timestamp;

/// An index that somebody else has open is not damaged, and must not be moved away under them. The store's own lock is
/// no proof that nobody has: it may have been removed, or not be kept by the file system.
pub(super) fn refuse_if_locked(folder: &Path) -> Result<(), StoreError> {
    // What cannot be opened is no lock; sled says what is wrong with it.
    let file = disk::open(&folder.join("db")).ok().flatten();
    match file.map(|file| file.try_lock()) {
        Some(Err(TryLockError::WouldBlock)) => Err(StoreError::Locked(folder.to_owned())),
        _ => Ok(()),
    }
}

/// Moves a damaged index out of the way. Of those that were moved before, none is worth keeping.
pub(super) fn set_aside(folder: &Path, now: Timestamp) -> Result<PathBuf, StoreError> {
    let (parent, prefix) = (folder.parent().unwrap_or(folder), "index.broken-");
    for name in disk::names_in(parent)?.iter().filter(|name| name.starts_with(prefix)) {
        let before = parent.join(name);
        fs::remove_dir_all(&before).map_err(|e| StoreError::io("remove", &before, e))?;
    }
    let aside = parent.join(format!("{prefix}{}", now.0));
    match fs::rename(folder, &aside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("set aside", folder, e)),
        _ => Ok(aside),
    }
}
