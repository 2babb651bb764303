//! The files of archives on this machine, and those that are on their way to be one.

use crate::digest::Digest;
use crate::mirror::Library;
use crate::store::{Blob, Durability, Scratch, Staged, StoreError};

/// The result of removing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRemoval {
    /// There was none.
    Absent,
    /// A name lists it, so it stays.
    Named,
    /// It is removed.
    Removed {
        /// Its size.
        bytes: u64,
    },
}

impl Library {
    /// Opens the staging file of this name, with what an earlier download wrote. Blocks.
    pub(in crate::mirror) fn stage(&self, name: &str) -> Result<Staged, StoreError> {
        self.store.blobs.stage(name)
    }

    /// Opens an empty staging file of this name; what an earlier run left is discarded. Blocks.
    pub(in crate::mirror) fn stage_anew(&self, name: &str) -> Result<Staged, StoreError> {
        self.store.blobs.stage(name)?.discard()?;
        self.store.blobs.stage(name)
    }

    /// A folder for temporary files, on the disk of the store. Blocks.
    pub(in crate::mirror) fn scratch(&self) -> Result<Scratch, StoreError> {
        self.store.blobs.scratch()
    }

    /// Opens an archive's file; `None` if it is not on this machine. Blocks.
    pub(in crate::mirror) fn open_file(&self, digest: &Digest) -> Result<Option<Blob>, StoreError> {
        self.store.blobs.open(digest)
    }

    /// True if an archive's file is on this machine. Blocks.
    pub(in crate::mirror) fn has_file(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.store.blobs.is_stored(digest)
    }

    /// Removes an archive's file, unless a name lists it. Needs the complete index. Blocks.
    pub(in crate::mirror) fn remove_file(&self, digest: &Digest) -> Result<FileRemoval, StoreError> {
        let Some(blob) = self.store.blobs.open(digest)? else { return Ok(FileRemoval::Absent) };
        if !self.store.index.names_of(digest)?.is_empty() {
            return Ok(FileRemoval::Named);
        }
        self.store.blobs.remove(digest, Durability::Synced)?;
        self.store.index.archive_gone(digest);
        self.catalog.verified_since_start.lock().remove(digest);
        Ok(FileRemoval::Removed { bytes: blob.size_bytes() })
    }
}
