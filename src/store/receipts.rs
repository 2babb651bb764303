//! Receipts of imported bundles: one file each, written once.

use std::path::PathBuf;

use super::{Store, StoreError, disk};
use crate::clock::Timestamp;
use crate::digest::Digest;

const MAX_SAME_NAME: u32 = 1000;

impl Store {
    /// Stores a receipt durably, and returns its path.
    ///
    /// # Errors
    /// The disk failed.
    pub fn write_receipt(&self, time: Timestamp, manifest: &Digest, receipt: &[u8]) -> Result<PathBuf, StoreError> {
        self.check()?;
        let folder = self.root.join("receipts");
        disk::recreate_folder(&folder)?;
        let name = format!("{}-{}", time.date_time().replace(':', "-"), manifest.prefix());
        let mut path = folder.join(format!("{name}.json"));
        for number in 2..MAX_SAME_NAME {
            if !disk::file_exists(&path)? {
                break;
            }
            path = folder.join(format!("{name}-{number}.json"));
        }
        let temp_path = path.with_extension("json.new");
        disk::write_new(&temp_path, &[receipt, b"\n"], true)?;
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
        let folder = self.root.join("receipts");
        // File names begin with the time.
        let names = disk::names_in(&folder)?;
        let last = names.into_iter().filter(|name| name.ends_with(".json")).max();
        last.map_or(Ok(None), |name| disk::read(&folder.join(name)))
    }
}
