//! Staging: downloads with the notes needed to resume them, and temporary folders for files that cannot be resumed.
#![expect(clippy::disallowed_methods, reason = "the store owns the files, and removes a folder that it created itself")]

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::blobs::{FileBytes, each_piece};
use super::locks::StoreLock;
use super::{Durability, FileVersion, StoreError, disk};
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash, Hasher};

/// The time that an abandoned download stays in staging.
const STAGING_PERIOD_SECONDS: u64 = 24 * 3600;

/// The local folder of downloads and records in progress. Every implementation of the store has one.
#[derive(Debug, Clone)]
pub struct Staging {
    folder: PathBuf,
    lock: StoreLock,
}

impl Staging {
    pub(super) fn open(folder: PathBuf, lock: StoreLock) -> Result<Self, StoreError> {
        disk::create_folder(&folder)?;
        Ok(Self { folder, lock })
    }

    /// The folder; made again if it was removed.
    pub(super) fn folder_now(&self) -> Result<&Path, StoreError> {
        self.lock.check()?;
        disk::create_folder_if_missing(&self.folder)?;
        Ok(&self.folder)
    }

    /// Opens the staged download called `name`. The bytes of an earlier one are read and hashed.
    pub fn stage(&self, name: &str) -> Result<Staged, StoreError> {
        let folder = self.folder_now()?;
        let (path, note_path) = (folder.join(format!("{name}.part")), folder.join(format!("{name}.json")));
        let file = disk::open_or_make(&path)?;
        let note = disk::read(&note_path)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let (mut hasher, mut written) = (Hasher::new(), 0);
        each_piece(&file, &path, |piece| {
            hasher.update(piece);
            written += piece.len() as u64;
        })?;
        let (file, lock) = (Arc::new(file), self.lock.clone());
        let syncs = Arc::default();
        Ok(Staged { file, path, note_path, note, hasher, written, reserved_bytes: 0, lock, syncs })
    }

    /// Creates a temporary folder, for files that are unpacked or fetched on the way to an archive.
    pub fn scratch(&self) -> Result<Scratch, StoreError> {
        let staging = self.folder_now()?;
        let random = disk::random_hex::<8>().map_err(|e| StoreError::io("name a folder in", staging, e))?;
        let folder = staging.join(format!("{SCRATCH_PREFIX}{random}"));
        let created = fs::DirBuilder::new().mode(disk::PRIVATE_FOLDER).create(&folder);
        created.map_err(|e| StoreError::io("make the folder", &folder, e))?;
        Ok(Scratch { folder })
    }

    /// Removes what a crash left: scratch folders and half-written records.
    pub(super) fn sweep_half_written(&self) -> Result<(), StoreError> {
        for name in disk::names_in(&self.folder)? {
            let path = self.folder.join(&name);
            if name.starts_with(SCRATCH_PREFIX) {
                disk::remove_tree(&path)?;
            } else if name.starts_with("record-") {
                disk::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes files older than a day. A running download is younger, because it is written to.
    pub(super) fn sweep(&self, now: Timestamp) -> Result<(), StoreError> {
        disk::sweep(&self.folder, Timestamp(now.0.saturating_sub(STAGING_PERIOD_SECONDS)))
    }
}

/// The note needed to resume a download after a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ResumeNote {
    /// The strong validator of the response.
    pub etag: Option<String>,
    /// The Last-Modified of the response.
    pub last_modified: Option<String>,
    /// The whole length, if announced.
    pub length: Option<u64>,
}

/// A download in progress: appended to, hashed as it grows, visible only to those who joined the download.
#[derive(Debug)]
pub struct Staged {
    file: Arc<File>,
    path: PathBuf,
    note_path: PathBuf,
    note: Option<ResumeNote>,
    hasher: Hasher,
    /// The number of staged bytes.
    written: u64,
    /// Disk space reserved, in bytes.
    reserved_bytes: u64,
    lock: StoreLock,
    syncs: Arc<Mutex<Syncs>>,
}

impl Drop for Staged {
    /// Releases reserved but unused space: the download may never be resumed.
    fn drop(&mut self) {
        self.release_reserved();
    }
}

impl Staged {
    /// The note of the earlier download.
    pub fn note(&self) -> Option<&ResumeNote> {
        self.note.as_ref()
    }

    /// Writes the resume note, and reserves disk space for a download of `total_bytes`.
    pub fn remember(&mut self, note: ResumeNote, total_bytes: u64) -> Result<(), StoreError> {
        if total_bytes > self.written
            && let Err(e) = disk::reserve_space(&self.file, self.written, total_bytes)
        {
            // A part of the space may have been reserved; the error of the reservation is returned.
            let _ = self.file.set_len(self.written);
            return Err(StoreError::io("reserve the disk space of", &self.path, e.into()));
        }
        self.reserved_bytes = self.reserved_bytes.max(total_bytes);
        self.lock.check()?;
        let bytes = serde_json::to_vec(&note).map_err(|e| StoreError::io("write", &self.note_path, e.into()))?;
        let temp_path = self.note_path.with_extension("json.new");
        disk::write_new(&temp_path, &[&bytes], Durability::Lazy)?;
        disk::rename(&temp_path, &self.note_path)?;
        self.note = Some(note);
        Ok(())
    }

    fn release_reserved(&mut self) {
        if self.reserved_bytes > self.written {
            // A failure here is harmless: the sweep removes the file within a day.
            let _ = self.file.set_len(self.written);
            self.reserved_bytes = self.written;
        }
    }

    /// The number of staged bytes.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The staged bytes, for those who joined the download.
    pub fn bytes(&self) -> FileBytes {
        FileBytes { file: Arc::clone(&self.file) }
    }

    /// The staged bytes as a file, from the start. It shares its offset with appends, so do not append meanwhile.
    pub fn file(&self) -> Result<File, StoreError> {
        let failed = |e| StoreError::io("read", &self.path, e);
        let mut file = self.file.try_clone().map_err(failed)?;
        file.rewind().map_err(failed)?;
        Ok(file)
    }

    /// The error of a failed read.
    pub fn unreadable(&self, reason: std::io::Error) -> StoreError {
        StoreError::io("read", &self.path, reason)
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("write", &self.path, e);
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.written)).and_then(|_| file.write_all(bytes)).map_err(failed)?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Returns true if the staged bytes at `offset` equal `bytes`.
    pub fn agrees(&self, offset: u64, bytes: &[u8]) -> Result<bool, StoreError> {
        let mut staged = vec![0; bytes.len()];
        let read = self.file.read_exact_at(&mut staged, offset);
        read.map_err(|e| StoreError::io("read", &self.path, e))?;
        Ok(staged == bytes)
    }

    /// The hashes of the staged bytes.
    pub fn hashes(&self) -> (Digest, FastHash) {
        self.hasher.clone().finish()
    }

    /// The sync of the bytes that are staged now, for another thread.
    pub fn sync(&self) -> StagedSync {
        let (file, path, syncs) = (Arc::clone(&self.file), self.path.clone(), Arc::clone(&self.syncs));
        StagedSync { file, path, bytes: self.written, syncs }
    }

    /// Moves the staged bytes to `target`, in this order: sync, rename, and the sync of the folder where that is wanted. After a power
    /// cut the file is whole, or not there. Returns its version.
    pub(super) fn move_to(mut self, target: &Path, durability: Durability) -> Result<FileVersion, StoreError> {
        self.release_reserved();
        self.sync().run()?;
        self.lock.check()?;
        // A later archive in the same folder may have to survive a power cut.
        disk::create_parent(target, self.lock.root(), Durability::Synced)?;
        disk::rename(&self.path, target)?;
        if durability == Durability::Synced {
            disk::sync_folder_of(target)?;
        }
        disk::remove(&self.note_path)?;
        FileVersion::of(&self.file).map_err(|e| StoreError::io("look at", target, e))
    }

    /// Removes the staging file and its note.
    pub fn discard(self) -> Result<(), StoreError> {
        self.lock.check()?;
        disk::remove(&self.note_path)?;
        disk::remove(&self.path)
    }
}

/// The syncs of a staged file so far.
#[derive(Debug, Default)]
struct Syncs {
    /// The bytes, from the start, that are certain to be on the disk.
    synced_bytes: u64,
    /// The first failure. The system reports it to one sync, and the next one succeeds although bytes are lost.
    failed: Option<StoreError>,
}

/// A sync of the bytes that were staged at one moment.
#[derive(Debug)]
pub struct StagedSync {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    syncs: Arc<Mutex<Syncs>>,
}

impl StagedSync {
    /// Writes the bytes to the disk, unless that is done. Where it fails, the file is removed: nobody may resume a download whose bytes
    /// are lost. Blocks.
    ///
    /// # Errors
    /// This sync of the file failed, or an earlier one.
    pub fn run(&self) -> Result<(), StoreError> {
        // One at a time, or another one would succeed before the failure of this one is noted.
        let mut syncs = self.syncs.lock();
        if let Some(failed) = &syncs.failed {
            return Err(failed.clone());
        }
        if syncs.synced_bytes >= self.bytes {
            return Ok(());
        }
        if let Err(error) = self.file.sync_all() {
            let failed = StoreError::io("sync", &self.path, error);
            syncs.failed = Some(failed.clone());
            if let Err(error) = disk::remove(&self.path) {
                tracing::error!(%error, "a download whose bytes are lost stays in staging");
            }
            return Err(failed);
        }
        syncs.synced_bytes = self.bytes;
        Ok(())
    }
}

const SCRATCH_PREFIX: &str = "scratch-";

/// A temporary folder, removed with its contents on drop, or at the next start.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// A new empty file for reading and writing, without a name.
    pub fn file(&self) -> Result<File, StoreError> {
        let path = self.folder.join("spool");
        let failed = |e| StoreError::io("make the file", &path, e);
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).map_err(failed)?;
        fs::remove_file(&path).map_err(failed)?;
        Ok(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = disk::remove_tree(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "a scratch folder could not be removed; the next start removes it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Local;

    /// `fsync` reports the failure of a write once; the next one succeeds, and the bytes are lost all the same.
    #[test]
    fn an_archive_of_which_an_early_sync_failed_is_never_published() {
        let folder = tempfile::tempdir().unwrap();
        let (local, _records) = Local::open(folder.path(), Timestamp(0)).unwrap();
        let mut staged = local.staging.stage("download").unwrap();
        staged.append(b"archive").unwrap();
        let target = folder.path().join("v1/blobs/sha256/aa/archive");

        // A device that takes no sync.
        let device = Arc::new(File::open("/dev/null").unwrap());
        assert!(StagedSync { file: device, ..staged.sync() }.run().is_err());
        let refused = staged.move_to(&target, Durability::Synced).unwrap_err();

        assert!(refused.to_string().contains("could not sync"), "{refused}");
        assert!(!target.exists());
        assert_eq!(local.staging.stage("download").unwrap().written(), 0, "the next download begins anew");
    }
}
