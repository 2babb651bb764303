//! Temporary folders on the store's disk, for files that cannot be resumed. Dropped with their owner.
#![expect(clippy::disallowed_methods, reason = "the store owns the files, and removes a folder that it created itself")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::StoreError;

pub(super) const PREFIX: &str = "scratch-";

/// A temporary folder, removed with its contents on drop, or at the next start.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// Creates a temporary folder below `staging`.
    pub(super) fn below(staging: &Path) -> Result<Self, StoreError> {
        let folder = staging.join(format!("{PREFIX}{:016x}", random_name(staging)?));
        let created = fs::DirBuilder::new().mode(0o700).create(&folder);
        created.map_err(|e| StoreError::io("make the folder", &folder, e))?;
        Ok(Self { folder })
    }

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
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "a scratch folder could not be removed; the next start removes it");
        }
    }
}

/// Removes the temporary folders of an earlier run.
pub(super) fn sweep(staging: &Path) -> Result<(), StoreError> {
    for name in super::disk::names_in(staging)?.iter().filter(|name| name.starts_with(PREFIX)) {
        let folder = staging.join(name);
        fs::remove_dir_all(&folder).map_err(|e| StoreError::io("remove the folder", &folder, e))?;
    }
    Ok(())
}

/// A random number for the name of a folder in `staging`.
fn random_name(staging: &Path) -> Result<u64, StoreError> {
    let mut random = [0u8; 8];
    let filled = aws_lc_rs::rand::fill(&mut random);
    filled.map_err(|_| {
        StoreError::io("name a folder in", staging, std::io::Error::other("the system returned no random bytes"))
    })?;
    Ok(u64::from_be_bytes(random))
}
