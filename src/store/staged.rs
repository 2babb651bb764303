//! Staged downloads, and the notes needed to resume them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blobs::{FileBytes, READ_BUFFER_BYTES};
use super::store_lock::StoreLock;
use super::{StoreError, disk};
use crate::digest::{Digest, FastHash, Hasher};

/// The note needed to resume a download after a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StagedNote {
    /// The strong validator of the response.
    pub etag: Option<String>,
    /// The date of the response.
    pub last_modified: Option<String>,
    /// The whole length, if announced.
    pub length: Option<u64>,
}

/// A download in progress: appended to, hashed as it grows, visible to its followers only.
#[derive(Debug)]
pub struct Staged {
    file: Arc<File>,
    path: PathBuf,
    note_path: PathBuf,
    note: Option<StagedNote>,
    hasher: Hasher,
    /// The number of staged bytes.
    written: u64,
    /// Disk space reserved, in bytes.
    reserved_bytes: u64,
    lock: StoreLock,
}

impl Drop for Staged {
    /// Releases reserved but unused space: the download may never be resumed.
    fn drop(&mut self) {
        if self.reserved_bytes > self.written {
            // A failure here is harmless: the sweep removes the file within a day.
            let _ = self.file.set_len(self.written);
        }
    }
}

impl Staged {
    /// Opens a staging file and hashes its bytes.
    pub(super) fn open(path: PathBuf, note_path: PathBuf, lock: StoreLock) -> Result<Self, StoreError> {
        let mut file = disk::open_or_make(&path)?;
        let note = disk::read(&note_path)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut hasher = Hasher::new();
        let mut written = 0;
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        loop {
            let read = file.read(&mut buffer).map_err(|e| StoreError::io("read", &path, e))?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            written += read as u64;
        }
        Ok(Staged { file: Arc::new(file), path, note_path, note, hasher, written, reserved_bytes: 0, lock })
    }

    /// The note of the earlier download.
    pub fn note(&self) -> Option<&StagedNote> {
        self.note.as_ref()
    }

    /// Writes the resume note, and reserves disk space for a download of `total_bytes`.
    pub fn remember(&mut self, note: StagedNote, total_bytes: u64) -> Result<(), StoreError> {
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
        disk::write_new(&temp_path, &[&bytes], false)?;
        disk::rename(&temp_path, &self.note_path)?;
        self.note = Some(note);
        Ok(())
    }

    /// The number of staged bytes.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The staged bytes, for followers of the download.
    pub fn bytes(&self) -> FileBytes {
        FileBytes::of(&self.file)
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

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_all().map_err(|e| StoreError::io("sync", &self.path, e))
    }

    pub(super) fn move_to(&self, target: &Path) -> Result<(), StoreError> {
        disk::rename(&self.path, target)
    }

    pub(super) fn remove_note(&self) -> Result<(), StoreError> {
        disk::remove(&self.note_path)
    }

    /// Removes the staging file and its note.
    pub fn discard(self) -> Result<(), StoreError> {
        self.lock.check()?;
        disk::remove(&self.note_path)?;
        disk::remove(&self.path)
    }
}
