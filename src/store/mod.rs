//! The persistent store. Files are the truth; the index over them can always be rebuilt.
//!
//! ```text
//! DIR/admin-token                 the admin listener's bearer token (mode 0600)
//! DIR/archive-url-key             the key of signed archive URLs, where clients authenticate (mode 0600)
//! DIR/v1/lock                     locked before anything is read, swept or moved; names the owner's listeners
//! DIR/v1/format                   the newest format ever written here
//! DIR/v1/fleet                    the id of the fleet, in the folder of a replica
//! DIR/v1/blobs/sha256/ab/abcd…    archives: complete, immutable, named by digest
//! DIR/v1/names/HOST/…json         address -> current digest and earlier ones
//! DIR/v1/documents/HOST/…         documents as upstream sent them, and proof sets
//! DIR/v1/seen/HOST/…json          first-seen records; never evicted
//! DIR/v1/jobs/ID.json             a job's order and its result
//! DIR/v1/missing.json             packages requested while offline and not stored
//! DIR/v1/usage.json               the last start of a service, and what runs were sent
//! DIR/v1/unpacked/…               unpacked providers for clients on this machine, which link to them
//! DIR/v1/staging/…                downloads and records in progress; downloads are resumed, swept after a day
//! DIR/v1/receipts/…json           receipts of imported bundles; for people
//! DIR/v1/aside/…                  the quarantine: damaged files, for a week or until the disk is full
//! DIR/v1/index/                   last use, sizes, names by digest; rebuilt when it does not open
//! ```
//!
//! The store knows nothing of the contents of its records, of policy or of the network. All its functions block: async
//! callers use a blocking task.

mod archives;
mod blobs;
mod contact;
mod disk;
mod examine;
mod fleet;
mod fleet_alarms;
mod folder;
mod index;
mod key;
mod local;
mod locks;
mod records;
mod staged;
mod unpacked;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::archives::OnThisMachine;
pub use self::archives::{ArchiveFile, Archives, ArrivingBytes, Intake, LocalArchives, SharedArchives};
pub use self::blobs::{Blob, FileBytes, PieceReader, READ_BUFFER_BYTES, ReadBudget, ReadCursor, ReadGrant, ReadShare};
pub use self::contact::{Contact, Standing};
pub use self::disk::{DiskSpace, FileVersion};
pub use self::examine::{StoreFindings, TokenFile};
pub use self::fleet::{Fleet, ReplicaAmounts, Unreached};
pub use self::fleet_alarms::{FleetAlarm, FleetAlarmKind, FleetEvents};
pub use self::index::{
    CopiedRecord, Index, IndexedArchive, IndexedName, ListedArchive, Moment, NameCursor, SeenLife, SizeLimit, Totals,
};
pub use self::key::{DocumentKey, GroupRef, HourOfDay, Key, RecordGroup, sort_text};
pub use self::local::Local;
pub(crate) use self::locks::Striped;
pub use self::locks::{ListenerNote, OwnerNote, StoreOwner, StoreUse};
pub use self::records::{
    Change, Durability, Generation, IndexEntry, ReadOutcome, RecordAction, RecordScope, RecordStep, Records, Trimmed,
    Turns, WriteOutcome, to_json,
};
pub use self::staged::{ResumeNote, Scratch, Staged, StagedSync, Staging};
use self::unpacked::UNPACKED;
pub use self::unpacked::{INSTALLED_FOLDERS, SealedTree, TreeWriter, UnpackedTrees};
use crate::clock::Timestamp;

/// The format of everything below `DIR/v1`. A newer one makes an older binary stop.
pub const FORMAT: u32 = 1;

/// An open store, locked by this process.
#[derive(Debug)]
pub struct Store {
    /// Names, documents, first-seen records and jobs, by key. Dropped before `local`, which holds the lock.
    pub records: Box<dyn Records>,
    /// The place that keeps archives.
    pub archives: Box<dyn Archives>,
    /// All that belongs to this machine.
    pub local: Local,
}

impl Store {
    /// Opens the store in `folder`; creates it if absent.
    ///
    /// # Errors
    /// [`StoreError::Locked`] before anything was touched, if another process has it.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Self, StoreError> {
        let (local, records) = Local::open(folder, now)?;
        Ok(Self::assemble(Box::new(records), Box::new(OnThisMachine), local))
    }

    /// The folder and its records, without the place of its archives: for a store of other parts.
    pub fn into_folder(self) -> (Local, Box<dyn Records>) {
        (self.local, self.records)
    }

    /// A store of these parts.
    pub fn assemble(records: Box<dyn Records>, archives: Box<dyn Archives>, local: Local) -> Self {
        Self { records, archives, local }
    }

    /// Returns true if there is a store in `folder`.
    ///
    /// # Errors
    /// The check failed, for instance for lack of permission.
    pub fn exists(folder: &Path) -> Result<bool, StoreError> {
        disk::folder_exists(&folder.join("v1"))
    }

    /// Returns true if a store in `folder` has records or archives.
    ///
    /// # Errors
    /// The check failed, for instance for lack of permission.
    pub fn is_used(folder: &Path) -> Result<bool, StoreError> {
        for part in ["names", "seen", "documents", "blobs/sha256"] {
            let part = folder.join("v1").join(part);
            if disk::folder_exists(&part)? && !disk::names_in(&part)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The use of the store in `folder`. Opens nothing but its lock file, and never waits.
    pub fn use_of(folder: &Path) -> StoreUse {
        match disk::open(&folder.join("v1/lock")) {
            Ok(None) => StoreUse::Free,
            Ok(Some(lock)) => match lock.try_lock_shared() {
                Ok(()) => StoreUse::Free,
                Err(_) => OwnerNote::read(&lock).map_or(StoreUse::Unnoted, StoreUse::Noted),
            },
            Err(error) => StoreUse::Unseen(error),
        }
    }

    /// The note of the process that last had the store in `folder`, whether it still runs or not.
    pub fn last_owner(folder: &Path) -> Option<OwnerNote> {
        let lock = disk::open(&folder.join("v1/lock")).ok().flatten()?;
        OwnerNote::read(&lock)
    }

    /// The Unix socket at which the larder that has the store in `folder` answers commands of this machine. Its folder is
    /// private.
    pub fn admin_socket(folder: &Path) -> PathBuf {
        folder.join("v1/admin.sock")
    }

    /// The folder of unpacked providers, for the configured store folder.
    pub fn unpacked_folder(folder: &Path) -> PathBuf {
        folder.join("v1").join(UNPACKED)
    }

    /// The path of the admin token, for the configured store folder.
    pub fn token_file(folder: &Path) -> PathBuf {
        folder.join("admin-token")
    }

    /// Reads the token that another process made; `None` if there is no usable one.
    ///
    /// # Errors
    /// This user may not read it, or the disk failed.
    pub fn read_admin_token(folder: &Path) -> Result<Option<String>, StoreError> {
        disk::read_secret(&Self::token_file(folder))
    }

    /// Marks a clean close, so that the next start trusts the index; the other replicas wait for this one no more.
    pub fn close(&self) -> Result<(), StoreError> {
        if let Some(fleet) = self.records.fleet() {
            fleet.leave();
        }
        self.local.close()
    }
}

/// Errors of the store. Absence is not an error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// An I/O error.
    #[error("could not {doing} {path}: {source}", path = .path.display())]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Another process has the store.
    #[error("{path} is in use by another larder: stop it, or give this one a [store] path of its own", path = .0.display())]
    Locked(PathBuf),
    /// The store at the path is not the one that was locked at the start.
    #[error("the store of this mirror is gone: its folder was removed or replaced while larder runs")]
    Unavailable,
    /// Written by a newer larder.
    #[error("{path} has format {found}, and this larder reads up to {FORMAT}: run the newer larder that wrote it", path = .path.display())]
    Newer {
        /// The path.
        path: PathBuf,
        /// The format in it.
        found: u32,
    },
    /// Other changes of the same records came first, again and again.
    #[error("{0} are changed so often at this moment that another change finds no gap")]
    Busy(String),
    /// The records that all replicas share cannot be read or written.
    #[error("the records of the fleet cannot be reached: {0}")]
    Unreachable(String),
    /// larder stops.
    #[error("larder stops")]
    Stopping,
    /// The place of the archives that all replicas share does not take or send them.
    #[error("{said}")]
    Bucket {
        /// The kind of trouble, in a word.
        trouble: &'static str,
        /// The attempt, and the answer.
        said: String,
        /// The remedy for the operator.
        remedy: &'static str,
    },
    /// A pass of eviction did not end as it should.
    #[error("no room could be made in the store: {0}")]
    NotEvicted(&'static str),
    /// The index failed, and so did rebuilding it.
    #[error("the index failed: {0}")]
    Index(String),
    /// The bytes do not fit, even after everything that can be evicted is removed.
    #[error(
        "{needed} bytes do not fit: the limit of the store is {limit} bytes ([store] max_size, or the disk), of which {unevictable} cannot be evicted, because they are pinned, belong to a bundle that is being applied, or are owed to the bucket of a fleet"
    )]
    NoRoom {
        /// Bytes needed.
        needed: u64,
        /// Bytes that could be made available: the size limit, or the disk.
        limit: u64,
        /// Bytes that cannot be evicted.
        unevictable: u64,
    },
}

impl StoreError {
    /// Returns true if the bytes do not fit: the disk or this user's quota is full, or the file is larger than allowed.
    pub fn is_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    /// Returns true if a file of this size is not allowed, however much space is free.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge)
    }

    /// Returns true if this user's quota is used up.
    pub fn is_over_quota(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::QuotaExceeded)
    }

    /// Returns true if the process, or the system, has no file descriptor left.
    fn lacks_descriptors(&self) -> bool {
        let lacking = |source: &io::Error| {
            let errno = rustix::io::Errno::from_io_error(source);
            matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
        };
        matches!(self, Self::Io { source, .. } if lacking(source))
    }

    /// Returns true if this user lacks permission.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Returns true if this user cannot write here at all: for lack of permission, or because the disk is read-only.
    pub fn is_unwritable(&self) -> bool {
        let is_read_only =
            matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem);
        is_read_only || self.is_denied()
    }

    /// The remedy for the operator.
    pub fn remedy(&self) -> &'static str {
        use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::Unavailable => {
                "bring the store folder back, and larder continues by itself; or restart larder with the present folder"
            }
            Self::NoRoom { .. } => "free space on the store's disk, raise [store] max_size, or unpin something",
            Self::Io { source, .. } => match source.kind() {
                StorageFull => "free space on the store's disk; larder continues by itself",
                QuotaExceeded => "raise the quota of larder's user; larder continues by itself",
                FileTooLarge => "raise the limit on the size of a file (ulimit -f, LimitFSIZE=), or move the store",
                ReadOnlyFilesystem => "mount the store's disk for writing; larder continues by itself",
                PermissionDenied => "let larder's user write to the store; larder continues by itself",
                _ => "check the disk of the store",
            },
            Self::Busy(_) => "try again in a moment",
            Self::Stopping => "start larder again: it goes on where it stopped",
            Self::Unreachable(_) => "check the database of the fleet; larder continues by itself",
            Self::Bucket { remedy, .. } => remedy,
            Self::Locked(_) => "stop the other larder, or give this one a [store] path of its own",
            Self::Newer { .. } => "run the larder that wrote the store, or a newer one",
            Self::NotEvicted(_) => "check whether the disk of the store is very slow; the log of larder may say more",
            Self::Index(_) => "check the disk of the store, and restart larder: it rebuilds the index from the files",
        }
    }

    /// A short form without paths of this machine.
    pub fn without_paths(&self) -> String {
        match self {
            Self::NoRoom { .. }
            | Self::NotEvicted(_)
            | Self::Unavailable
            | Self::Busy(_)
            | Self::Unreachable(_)
            | Self::Stopping => self.to_string(),
            Self::Io { source, .. } => source.kind().to_string(),
            Self::Bucket { trouble, .. } => format!("the bucket of the fleet is in trouble ({trouble})"),
            Self::Locked(_) | Self::Newer { .. } | Self::Index(_) => "the store failed".to_owned(),
        }
    }

    /// Returns true if the file's contents are wrong. A read error is not damage: it may be temporary, and fails one
    /// request.
    pub fn is_damage(&self) -> bool {
        let damage = [io::ErrorKind::IsADirectory, io::ErrorKind::UnexpectedEof];
        matches!(self, Self::Io { source, .. } if damage.contains(&source.kind()))
    }

    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source: Arc::new(source) }
    }
}
