//! The parts of a store that belong to this machine: the folder and its lock, the files of archives, the index, the token,
//! receipts, the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archives::LocalArchives;
use super::disk::{self, DiskSpace};
use super::folder::FolderRecords;
use super::locks::StoreLock;
use super::unpacked::{UNPACKED, UnpackedTrees};
use super::{Durability, Index, ListenerNote, Staging, Store, StoreError};
use crate::clock::Timestamp;
use crate::digest::Digest;

/// The part of a store that belongs to this machine.
#[derive(Debug)]
pub struct Local {
    /// Last use and sizes of what is stored here.
    pub index: Arc<Index>,
    /// The archives that are here.
    pub archives: LocalArchives,
    /// Unpacked providers for the clients of this machine.
    pub unpacked: UnpackedTrees,
    /// Downloads and records in progress.
    pub staging: Staging,
    quarantine: disk::Quarantine,
    /// Dropped last: nothing is open when the next process locks the store.
    lock: StoreLock,
}

const MAX_SAME_NAME: u32 = 1000;

/// The note of the fleet, in the folder of this version's files.
fn fleet_note(root: &Path) -> PathBuf {
    root.join("fleet")
}

impl Local {
    /// Opens a store folder with the records in it; creates it if absent.
    ///
    /// # Errors
    /// [`StoreError::Locked`] before anything was touched, if another process has it.
    pub(super) fn open(folder: &Path, now: Timestamp) -> Result<(Self, FolderRecords), StoreError> {
        let root = folder.join("v1");
        disk::make_private_folder(&root)?;
        let lock = StoreLock::lock_folder(&root)?;
        disk::check_format(&root.join("format"))?;
        let quarantine = disk::Quarantine::open(&root.join("aside"))?;
        let staging = Staging::open(root.join("staging"), lock.clone())?;
        let archives = LocalArchives::open_folder(quarantine.clone(), lock.clone())?;
        let index = Arc::new(Index::open(&root.join("index"), now)?);
        let records = FolderRecords::open(staging.clone(), Arc::clone(&index), quarantine.clone(), lock.clone())?;
        let unpacked = UnpackedTrees::open(root.join(UNPACKED), staging.clone(), lock.clone());
        let local = Self { index, archives, unpacked, staging, quarantine, lock };
        // Leftovers that cannot be removed cost disk space, not the start.
        if let Err(error) = local.staging.sweep_half_written().and_then(|()| local.sweep(now)) {
            tracing::warn!(%error, to_do = error.remedy(), "leftovers could not be swept");
        }
        Ok((local, records))
    }

    /// Marks a clean close, so that the next start trusts the index.
    ///
    /// # Errors
    /// The disk failed.
    pub fn close(&self) -> Result<(), StoreError> {
        if self.lock.check().is_err() {
            // The folder was moved or replaced while larder ran. Its index may lack changes, so it is not marked as clean.
            return Ok(());
        }
        self.index.close()
    }

    /// Notes the listeners of this process, for [`Store::use_of`].
    pub fn note_listeners(&self, listeners: ListenerNote) {
        self.lock.note_listeners(listeners);
    }

    /// Removes downloads abandoned more than a day ago, and files quarantined more than a week ago.
    pub fn sweep(&self, now: Timestamp) -> Result<(), StoreError> {
        self.lock.check()?;
        self.staging.sweep(now)?;
        self.quarantine.sweep(now)
    }

    /// Empties the quarantine: on a full disk damaged files are removed before anything is evicted.
    pub fn empty_quarantine(&self) -> Result<(), StoreError> {
        self.lock.check()?;
        self.quarantine.remove_all()
    }

    /// The current state of the disk.
    pub fn disk_space(&self) -> Result<DiskSpace, StoreError> {
        disk::disk_space(self.root())
    }

    /// The folder of this version's files.
    pub fn root(&self) -> &Path {
        self.lock.root()
    }

    /// The configured folder.
    pub fn folder(&self) -> &Path {
        self.root().parent().unwrap_or(self.root())
    }

    /// True for a store that cannot be written: other processes may have it open, too.
    pub fn is_shared(&self) -> bool {
        self.lock.kind() == disk::LockKind::Shared
    }

    /// Checks that the store is still there and still the locked one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it is not.
    pub fn check(&self) -> Result<(), StoreError> {
        self.lock.check()
    }

    /// Tests the disk by writing and removing a byte. Blocks for as long as that takes.
    ///
    /// # Errors
    /// [`StoreError`] if the write fails.
    pub fn try_disk(&self) -> Result<(), StoreError> {
        self.lock.check()?;
        // After a crash it is swept as a half-written record.
        let path = self.root().join("staging").join("record-of-nothing");
        disk::write_new(&path, &[b"?"], Durability::Synced)?;
        disk::remove(&path)
    }

    /// The bearer token of the admin listener, made at the first start (mode 0600).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: a folder that is not ours gets none.
    pub fn admin_token(&self) -> Result<String, StoreError> {
        self.secret_in(&Store::token_file(self.folder()))
    }

    /// The key of signed archive URLs, made when it is first needed (mode 0600).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: a folder that is not ours gets none.
    pub fn archive_url_key(&self) -> Result<String, StoreError> {
        self.secret_in(&self.folder().join("archive-url-key"))
    }

    /// The secret in a file, made if it is absent.
    fn secret_in(&self, path: &Path) -> Result<String, StoreError> {
        self.lock.check()?;
        if let Some(secret) = disk::read_secret(path)? {
            return Ok(secret);
        }
        let secret = disk::random_hex::<32>().map_err(|e| StoreError::io("write", path, e))?;
        match disk::write_secret(path, &secret) {
            // The store can be read without one; commands that need the admin token say that it is missing.
            Err(error) if error.is_unwritable() => tracing::debug!(%error, "a secret is not stored"),
            written => written?,
        }
        Ok(secret)
    }

    /// The fleet whose replica a store folder is, as it was noted; `None` for another folder.
    ///
    /// # Errors
    /// The note cannot be read.
    pub fn fleet_of(folder: &Path) -> Result<Option<String>, StoreError> {
        let note = disk::read(&fleet_note(&folder.join("v1")))?.and_then(|note| String::from_utf8(note).ok());
        Ok(note.map(|note| note.trim().to_owned()).filter(|note| !note.is_empty()))
    }

    /// Notes durably that this is the folder of a replica of a fleet.
    ///
    /// # Errors
    /// The disk failed.
    pub fn note_fleet(&self, id: &str) -> Result<(), StoreError> {
        self.check()?;
        let (note, temp) = (fleet_note(self.root()), self.root().join("fleet.new"));
        disk::write_new(&temp, &[id.as_bytes(), b"\n"], Durability::Synced)?;
        disk::rename(&temp, &note)?;
        disk::sync_folder_of(&note)
    }

    /// Makes `token` the bearer token of the admin listener, so that commands on this machine find it.
    ///
    /// # Errors
    /// The disk failed.
    pub fn set_admin_token(&self, token: &str) -> Result<(), StoreError> {
        self.lock.check()?;
        let path = Store::token_file(self.folder());
        if disk::read_secret(&path)?.as_deref() == Some(token) { Ok(()) } else { disk::write_secret(&path, token) }
    }

    /// Stores a receipt durably, and returns its path.
    ///
    /// # Errors
    /// The disk failed.
    pub fn write_receipt(&self, time: Timestamp, manifest: &Digest, receipt: &[u8]) -> Result<PathBuf, StoreError> {
        self.check()?;
        let folder = self.root().join("receipts");
        disk::create_folder_if_missing(&folder)?;
        let name = format!("{}-{}", time.date_time().replace(':', "-"), manifest.prefix());
        let mut path = folder.join(format!("{name}.json"));
        for number in 2..MAX_SAME_NAME {
            if disk::file_metadata(&path)?.is_none() {
                break;
            }
            path = folder.join(format!("{name}-{number}.json"));
        }
        let temp_path = path.with_extension("json.new");
        disk::write_new(&temp_path, &[receipt, b"\n"], Durability::Synced)?;
        disk::rename(&temp_path, &path)?;
        disk::sync_folder_of(&path)?;
        disk::sync_folder_of(&folder)?;
        Ok(path)
    }

    /// The last receipt; `None` if there is none.
    ///
    /// # Errors
    /// The disk failed.
    pub fn last_receipt(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.check()?;
        let folder = self.root().join("receipts");
        // File names begin with the time.
        let names = disk::names_in(&folder)?;
        let last = names.into_iter().filter(|name| name.ends_with(".json")).max();
        last.map_or(Ok(None), |name| disk::read(&folder.join(name)))
    }
}
