//! Errors of the store, with what an operator can do about them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FORMAT;

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
    Gone,
    /// Written by a newer larder.
    #[error("{path} has format {found}, and this larder reads up to {FORMAT}: run the newer larder that wrote it", path = .path.display())]
    Newer {
        /// The path.
        path: PathBuf,
        /// The format in it.
        found: u32,
    },
    /// The index failed, and so did rebuilding it.
    #[error("the index failed: {0}")]
    Index(String),
    /// The bytes do not fit, even after everything that can be evicted is removed.
    #[error(
        "{needed} bytes do not fit: the limit of the store is {limit} bytes ([store] max_size, or the disk), of which {unevictable} cannot be evicted, because they are pinned or belong to a bundle that is being applied"
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
    /// Returns true if the disk or this user's quota is full, or would be with a file of this size.
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

    /// Returns true if this user lacks permission.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The remedy for the operator.
    pub fn remedy(&self) -> &'static str {
        use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::Gone => {
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
            Self::Locked(_) | Self::Newer { .. } | Self::Index(_) => "check the disk of the store",
        }
    }

    /// A short form without paths of this machine.
    pub fn without_paths(&self) -> String {
        match self {
            Self::NoRoom { .. } | Self::Gone => self.to_string(),
            Self::Io { source, .. } => source.kind().to_string(),
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
