//! The lock of an open store with the note of its owner, the check that the store's path still leads to the
//! locked store, and locks for many keys.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, Hash};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::disk::{self, FileIdentity, LockKind};
use crate::place::Place;

/// Size of the note in a lock file, in bytes. A shorter note ends in spaces.
const NOTE_BYTES: usize = 4096;

/// Tries to lock a store at whose lock others only look.
const MAX_LOOKS: u32 = 1000;
/// The pause between two of them.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// The process that has a store, as the lock file notes it from the moment that the lock is taken. Other processes then know
/// whether it answers requests, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerNote {
    /// Where it runs.
    pub place: Place,
    /// Its process id, for people.
    pub process: u32,
    /// The kind of process, and its listener if it has one.
    #[serde(flatten)]
    pub owner: StoreOwner,
}

/// The kinds of processes that have a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "owner", rename_all = "snake_case")]
pub enum StoreOwner {
    /// A command, or a larder that does not listen yet. It answers no requests.
    Silent,
    /// A larder that listens.
    Larder(ListenerNote),
}

/// Where a larder listens. Besides, it answers the commands of this machine at [`super::Store::admin_socket`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerNote {
    /// The main listener.
    pub main: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
    /// The Unix socket at which another process gets both sockets, where the larder ends with a client.
    pub handover: Option<PathBuf>,
}

impl OwnerNote {
    fn of_this_process(owner: StoreOwner) -> Self {
        Self { place: Place::here(), process: std::process::id(), owner }
    }

    /// Reads the note in a lock file; `None` without one that this version can read.
    pub(super) fn read(lock_file: &File) -> Option<Self> {
        let mut note = [0; NOTE_BYTES];
        let length = lock_file.read_at(&mut note, 0).ok()?;
        serde_json::from_slice(note.get(..length)?).ok()
    }

    /// Replaces the note of an earlier owner in one write, so that nobody reads half of each.
    fn write(&self, lock_file: &File) -> io::Result<()> {
        let mut note = serde_json::to_vec(self).map_err(io::Error::other)?;
        if note.len() >= NOTE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        note.resize(NOTE_BYTES - 1, b' ');
        note.push(b'\n');
        lock_file.write_all_at(&note, 0)
    }

    /// The listeners; `None` for a process that answers no requests.
    pub fn listeners(&self) -> Option<&ListenerNote> {
        match &self.owner {
            StoreOwner::Silent => None,
            StoreOwner::Larder(listeners) => Some(listeners),
        }
    }
}

/// The use of the store in a folder, seen from outside.
#[derive(Debug, Clone)]
pub enum StoreUse {
    /// Nobody: there is no store, or its lock is free, or several processes only read it.
    Free,
    /// A process that noted itself.
    Noted(OwnerNote),
    /// A process without a note that this version can read: it has just taken the lock, or is of another version.
    Unnoted,
    /// This user may not look.
    Unseen(StoreError),
}

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
    identity: FileIdentity,
    is_gone: AtomicBool,
    file: File,
    kind: LockKind,
}

impl StoreLock {
    /// Locks the store at `root`, whose folder exists.
    pub(super) fn lock_folder(root: &Path) -> Result<Self, StoreError> {
        let path = root.join("lock");
        let (lock_file, kind) = disk::open_lock(&path)?;
        let locked = match kind {
            LockKind::Exclusive => try_lock_past_looks(&lock_file),
            LockKind::Shared => lock_file.try_lock_shared(),
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(root.to_owned())),
            Err(TryLockError::Error(source)) => return Err(StoreError::io("lock", root, source)),
        }
        // The note of an earlier owner says nothing about this one. A store that is only read keeps it, and nobody heeds
        // it, because its lock is shared.
        if kind == LockKind::Exclusive
            && let Err(error) = OwnerNote::of_this_process(StoreOwner::Silent).write(&lock_file)
        {
            tracing::debug!(%error, "the lock file does not name this process");
        }
        let identity = disk::identity(&lock_file).map_err(|e| StoreError::io("look at", &path, e))?;
        Ok(Self(Arc::new(LockedFile {
            root: root.to_owned(),
            path,
            identity,
            is_gone: AtomicBool::new(false),
            file: lock_file,
            kind,
        })))
    }

    /// Notes the listeners of this process. Without the note, commands take the store for one in use by a command.
    pub(super) fn note_listeners(&self, listeners: ListenerNote) {
        if let Err(error) = OwnerNote::of_this_process(StoreOwner::Larder(listeners)).write(&self.0.file) {
            tracing::warn!(%error, "the lock file does not name the listeners, so no command finds this larder");
        }
    }

    /// The kind of lock.
    pub(super) fn kind(&self) -> LockKind {
        self.0.kind
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
        // A failed check does not mean that the store is gone.
        let is_ours = disk::identity_of(path)? == Some(*identity);
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

/// Locks the file. A command that looks whether a larder runs locks it, too, for a moment and shared; that is waited for.
fn try_lock_past_looks(lock_file: &File) -> Result<(), TryLockError> {
    for _ in 0..MAX_LOOKS {
        match lock_file.try_lock() {
            // A lock that others share is only looked at.
            Err(TryLockError::WouldBlock) if lock_file.try_lock_shared().is_ok() => {}
            locked => return locked,
        }
        lock_file.unlock().map_err(TryLockError::Error)?;
        std::thread::sleep(LOOK_PAUSE);
    }
    Err(TryLockError::WouldBlock)
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
        Self { stripes: (0..STRIPES).map(|_| T::default()).collect(), hasher: RandomState::default() }
    }
}

impl<T> Striped<T> {
    pub(crate) fn of(&self, key: &(impl Hash + ?Sized)) -> &T {
        // The modulus keeps the index in bounds.
        &self.stripes[self.hasher.hash_one(key) as usize % self.stripes.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_opened_while_commands_look_at_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        drop(StoreLock::lock_folder(folder.path()).unwrap());
        let is_done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let look = disk::open(&folder.path().join("lock")).unwrap().unwrap();
                    let _ = look.try_lock_shared();
                    std::thread::yield_now();
                    drop(look);
                    std::thread::yield_now();
                }
            });
            for _ in 0..300 {
                let lock = StoreLock::lock_folder(folder.path());
                if lock.is_err() {
                    is_done.store(true, Ordering::Relaxed);
                }
                lock.unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let _lock = StoreLock::lock_folder(folder.path()).unwrap();
        assert!(matches!(StoreLock::lock_folder(folder.path()), Err(StoreError::Locked(_))));
    }
}
