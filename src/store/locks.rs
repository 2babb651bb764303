//! The lock of an open store, the check that the store's path still leads to the locked store, and locks for many keys.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, Hash, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::StoreError;
use super::disk::{self, Identity};

/// The lock on a store, shared by its readers and writers and released with the last of them.
///
/// A store may be unmounted, moved or replaced while larder runs. Then the lock file at the path is another one, and
/// the store is gone: nothing in it is read or written until it is back. A different store at the path may belong to
/// another larder.
#[derive(Debug, Clone)]
pub(super) struct StoreLock(Arc<LockedFile>);

#[derive(Debug)]
struct LockedFile {
    root: PathBuf,
    path: PathBuf,
    identity: Identity,
    is_gone: AtomicBool,
    _file: File,
}

impl StoreLock {
    /// Locks the store at `root`, whose folder exists.
    pub(super) fn lock_folder(root: &Path) -> Result<Self, StoreError> {
        let path = root.join("lock");
        let lock_file = disk::open_lock(&path)?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(root.to_owned())),
            Err(TryLockError::Error(source)) => return Err(StoreError::io("lock", root, source)),
        }
        let identity = disk::identity(&lock_file).map_err(|e| StoreError::io("look at", &path, e))?;
        Ok(Self(Arc::new(LockedFile {
            root: root.to_owned(),
            path,
            identity,
            is_gone: AtomicBool::new(false),
            _file: lock_file,
        })))
    }

    /// The store's folder.
    pub(super) fn root(&self) -> &Path {
        &self.0.root
    }

    /// Checks that the store is still the locked one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], if the store at the path is not the locked one.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let LockedFile { root, path, identity, is_gone, .. } = &*self.0;
        let is_ours = match disk::identity_of(path) {
            Ok(current) => current == *identity,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => false,
            // A failed check does not mean that the store is gone.
            Err(e) => return Err(StoreError::io("look at", path, e)),
        };
        if is_gone.swap(!is_ours, Ordering::Relaxed) == is_ours {
            if is_ours {
                tracing::warn!(store = %root.display(), "the store is back");
            } else {
                tracing::error!(
                    store = %root.display(),
                    to_do = StoreError::Unavailable.remedy(),
                    "the store was removed or replaced; until it is back, nothing is stored, and stored packages are not served"
                );
            }
        }
        if is_ours { Ok(()) } else { Err(StoreError::Unavailable) }
    }

    /// Returns the result of a read only if the store is still the locked one.
    pub(super) fn if_ours<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        self.check()?;
        result
    }
}

/// The number of values: so many that two of the some twenty keys in use at one time rarely share one.
const STRIPES: usize = 4096;

/// Values that keys share by their hash: locks and counters. A thread must not take two locks of one kind.
#[derive(Debug)]
pub(crate) struct Striped<T> {
    pub(crate) stripes: Box<[T]>,
    hasher: RandomState,
}

impl<T: Default> Default for Striped<T> {
    fn default() -> Self {
        Self { stripes: (0..STRIPES).map(|_| T::default()).collect(), hasher: RandomState::new() }
    }
}

impl<T> Striped<T> {
    pub(crate) fn of(&self, key: &(impl Hash + ?Sized)) -> &T {
        // The modulus keeps the index in bounds.
        &self.stripes[self.hasher.hash_one(key) as usize % self.stripes.len()]
    }
}
