//! What survives a restart. Files are the truth; the index over them can always be made again.
//!
//! ```text
//! DIR/admin-token                 the admin listener's bearer token (mode 0600)
//! DIR/v1/lock                     taken before anything is read, swept or moved
//! DIR/v1/format                   the newest format that was ever written here
//! DIR/v1/blobs/sha256/ab/abcd…    archives: complete, immutable, named by digest, and nothing else
//! DIR/v1/names/HOST/…json         address -> current digest and earlier ones
//! DIR/v1/documents/HOST/…         documents as upstream sent them, and proof sets
//! DIR/v1/seen/HOST/…json          what was ever proven, one file per provider; never evicted
//! DIR/v1/staging/…                downloads and records under way; downloads are resumed, swept after a day
//! DIR/v1/aside/…                  what did not match its checksum, kept a week to be looked at
//! DIR/v1/index/                   last use and sizes; set aside and rebuilt when it will not open
//! ```
//!
//! The store knows nothing of formats, policy or the network. Everything here blocks: callers on the
//! async side go through a blocking task.

mod blobs;
mod disk;
mod index;
mod key;
mod reading;
mod records;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::blobs::{Blob, Blobs, FileBytes, READ_AT_ONCE, Staged, StagedNote};
pub use self::index::{Index, IndexedArchive, Totals};
pub use self::key::Key;
pub use self::reading::Reading;
pub use self::records::{Durability, Recorded, Records};

use crate::clock::Timestamp;

/// The format of everything below `DIR/v1`. A newer one makes an older binary stop.
pub const FORMAT: u32 = 1;

/// What the store can fail with. Absence is never among it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The disk said no.
    #[error("could not {doing} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Another process has the store.
    #[error("{path} is in use by another larder: stop it, or give this one a [store] path of its own", path = .0.display())]
    Locked(PathBuf),
    /// Written by a newer larder.
    #[error("{path} has format {found}, and this larder reads up to {FORMAT}: run the newer larder that wrote it", path = .path.display())]
    Newer {
        /// Which file.
        path: PathBuf,
        /// The format it names.
        found: u32,
    },
    /// The index failed, and so did its rebuilding.
    #[error("the index failed: {0}")]
    Index(String),
    /// It is larger than the whole store may be.
    #[error(
        "{needed} bytes do not fit: the store may have {limit}, of which {pinned} are pinned ([store] max_size, or the disk)"
    )]
    NoRoom {
        /// How many bytes are needed.
        needed: u64,
        /// How many there could be: the size limit, or what the disk has.
        limit: u64,
        /// How much of it cannot be evicted.
        pinned: u64,
    },
}

impl StoreError {
    /// Whether the disk, or this user's share of it, is full.
    pub fn is_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    /// Whether what lies there is no file of ours. A read that the disk failed is not: it may pass, and is an
    /// error for the one request.
    pub fn is_damage(&self) -> bool {
        let damage = [io::ErrorKind::IsADirectory, io::ErrorKind::UnexpectedEof];
        matches!(self, Self::Io { source, .. } if damage.contains(&source.kind()))
    }

    fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source: Arc::new(source) }
    }
}

/// One store, and the lock that makes it ours.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    _lock: File,
    aside: disk::Aside,
    /// Archives by digest.
    pub blobs: Blobs,
    /// Names, documents and what was seen, by key.
    pub records: Records,
    /// Last use and sizes.
    pub index: Index,
}

impl Store {
    /// Whether there is a store in `folder`.
    ///
    /// # Errors
    /// Where that cannot be told, for instance because this user may not look there.
    pub fn exists(folder: &Path) -> Result<bool, StoreError> {
        disk::is_folder_there(&folder.join("v1"))
    }

    /// Opens the store in `folder`, making it where it is absent.
    ///
    /// # Errors
    /// [`StoreError::Locked`] before anything was touched, if another process has it.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Self, StoreError> {
        let root = folder.join("v1");
        disk::make_private_folder(&root)?;
        let lock = disk::open_lock(&root.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(root)),
            Err(TryLockError::Error(source)) => return Err(StoreError::io("lock", &root, source)),
        }
        disk::check_format(&root.join("format"))?;
        let aside = disk::Aside::open(&root.join("aside"))?;
        let staging = root.join("staging");
        disk::make_folder(&staging)?;
        let blobs = Blobs::open(&root.join("blobs/sha256"), &staging, aside.clone())?;
        blobs.sweep_halves()?;
        let records = Records::open(&root, &staging, aside.clone())?;
        let index = Index::open(&root.join("index"), now, &blobs, &records)?;
        let store = Self { root, _lock: lock, aside, blobs, records, index };
        store.sweep(now)?;
        Ok(store)
    }

    /// Removes downloads that were given up more than a day ago, and what was set aside more than a week ago.
    pub fn sweep(&self, now: Timestamp) -> Result<(), StoreError> {
        self.blobs.sweep_staging(now)?;
        self.aside.sweep(now)
    }

    /// How many bytes the disk still takes.
    pub fn free_bytes(&self) -> Result<u64, StoreError> {
        let told = rustix::fs::statvfs(&self.root);
        let told = told.map_err(|e| StoreError::io("ask for the free room at", &self.root, e.into()))?;
        Ok(told.f_bavail.saturating_mul(told.f_frsize))
    }

    /// The folder everything is in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the folder is still there.
    pub fn is_usable(&self) -> bool {
        disk::is_folder(&self.root.join("staging"))
    }

    /// The bearer token of the admin listener, made at the first start (mode 0600).
    pub fn admin_token(&self) -> Result<String, StoreError> {
        let folder = self.root.parent().unwrap_or(&self.root);
        disk::secret(&Self::admin_token_path(folder))
    }

    /// Where the commands find that token, given the configured store folder.
    fn admin_token_path(folder: &Path) -> PathBuf {
        folder.join("admin-token")
    }

    /// Reads the token another process made; `None` where there is none, or it may not be read.
    pub fn read_admin_token(folder: &Path) -> Option<String> {
        // Without a token the running larder still answers on loopback, and says what is missing elsewhere.
        disk::read_secret(&Self::admin_token_path(folder)).ok().flatten()
    }

    /// Writes down that all is well, so that the next start trusts the index.
    pub fn close(&self) -> Result<(), StoreError> {
        self.index.close()
    }
}
