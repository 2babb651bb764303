//! The files of archives on this machine, and those that are on their way to be one.

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::Library;
use crate::store::{Blob, Durability, IndexedArchive, Scratch, SharedArchives, Staged, StoreError};
use crate::verify::Verified;

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
    pub fn stage(&self, name: &str) -> Result<Staged, StoreError> {
        self.store.local.staging.stage(name)
    }

    /// Opens an empty staging file of this name; what an earlier run left is discarded. Blocks.
    pub fn stage_anew(&self, name: &str) -> Result<Staged, StoreError> {
        self.store.local.staging.stage(name)?.discard()?;
        self.store.local.staging.stage(name)
    }

    /// A folder for temporary files, on the disk of the store. Blocks.
    pub fn scratch(&self) -> Result<Scratch, StoreError> {
        self.store.local.staging.scratch()
    }

    /// Opens an archive's file; `None` if it is not on this machine. Blocks.
    pub fn open_file(&self, digest: &Digest) -> Result<Option<Blob>, StoreError> {
        self.store.local.archives.open(digest)
    }

    /// True if the bytes of an archive can be had without upstream: on this machine, or where all replicas keep them. Blocks.
    pub fn is_at_hand(&self, digest: &Digest) -> Result<bool, StoreError> {
        Ok(self.is_here(digest)? || self.shared_archives().map_or(Ok(false), |shared| shared.is_noted(digest))?)
    }

    /// True if an archive's file is on this machine. Blocks.
    pub fn is_here(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.store.local.archives.contains(digest)
    }

    /// The archives that all replicas share; `None` for a larder of one machine.
    pub fn shared_archives(&self) -> Option<&dyn SharedArchives> {
        self.store.archives.shared()
    }

    /// Makes a verified archive that has its name already a file of this machine. Blocks.
    pub fn keep_copy(&self, verified: Verified<Staged>, now: Timestamp) -> Result<(), StoreError> {
        let (digest, size_bytes) = (verified.digest(), verified.value().written());
        // Requests that find the file missing wait for the lock, so it is not held for this.
        verified.value().sync().run()?;
        let _lock = self.catalog.digest_lock(&digest).lock();
        self.publish(verified, Durability::Copy)?;
        self.store.local.index.archive_stored(&digest, size_bytes, now);
        Ok(())
    }

    /// Makes a verified archive a file of this machine. The caller holds its digest lock.
    pub(super) fn publish(&self, verified: Verified<Staged>, durability: Durability) -> Result<(), StoreError> {
        let digest = verified.digest();
        let file = self.store.local.archives.publish(verified, durability)?;
        self.catalog.checked_files.lock().insert(digest, file);
        self.presence_changed(&digest);
        Ok(())
    }

    /// Every file of an archive, with its size in bytes, by a look at the folder. Blocks.
    pub fn files(&self) -> Result<Vec<(Digest, u64)>, StoreError> {
        self.store.local.archives.all()
    }

    /// Every file of an archive, the one with the oldest check first. Blocks.
    pub fn files_by_check(&self) -> Result<Vec<IndexedArchive>, StoreError> {
        self.store.local.index.archives_by_verification()
    }

    /// Visits every file of an archive, in no particular order. Blocks.
    pub fn each_file(&self, visit: impl FnMut(IndexedArchive)) -> Result<(), StoreError> {
        self.store.local.index.each_archive(visit)
    }

    /// The size of an archive's file, its last use and its last check; `None` if it is not on this machine. Blocks.
    pub fn file_use(&self, digest: &Digest) -> Result<Option<IndexedArchive>, StoreError> {
        self.store.local.index.archive(digest)
    }

    /// Records the use of an archive's file.
    pub fn file_used(&self, digest: &Digest, now: Timestamp) {
        self.store.local.index.archive_used(digest, now);
    }

    /// Records that an archive's whole file was compared with its digest.
    pub fn file_checked(&self, digest: &Digest, now: Timestamp) {
        self.store.local.index.archive_verified(digest, now);
    }

    /// Removes an archive's file, unless a name lists it. Needs the complete index. Blocks.
    pub fn remove_file(&self, digest: &Digest) -> Result<FileRemoval, StoreError> {
        let Some(blob) = self.store.local.archives.open(digest)? else { return Ok(FileRemoval::Absent) };
        if !self.names_of(digest)?.is_empty() {
            return Ok(FileRemoval::Named);
        }
        self.trim(digest, Durability::Synced)?;
        Ok(FileRemoval::Removed { bytes: blob.size_bytes() })
    }

    /// Frees the bytes of an archive on this machine, and changes no record. The caller holds its digest lock.
    pub(super) fn trim(&self, digest: &Digest, durability: Durability) -> Result<(), StoreError> {
        self.store.local.archives.remove(digest, durability)?;
        self.forget_file(digest);
        Ok(())
    }

    /// Forgets the use of a file that is not on this machine any more, and that it is owed. What is shown offline changes at once.
    pub(super) fn forget_file(&self, digest: &Digest) {
        let owed = self.catalog.owed.names_of(digest);
        for artifact in &owed {
            if let Err(error) = self.catalog.owed.forget(digest, artifact) {
                tracing::warn!(package = %artifact, %digest, %error, "the receipt of an archive that is not here any more stays");
            }
            self.show_anew(artifact);
        }
        self.catalog.checked_files.lock().remove(digest);
        self.store.local.index.archive_gone(digest);
        self.presence_changed(digest);
    }
}
