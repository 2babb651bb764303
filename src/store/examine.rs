//! Inspects a store without opening it, for the doctor: it may be unused or in use by a running larder. Changes
//! nothing, except for one new file that is removed at once.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::disk::DiskSpace;
use super::folder::record_of;
use super::{Key, ReadOutcome, Store, StoreError, disk};
use crate::address::{Hostname, Name, ProviderAddress};

/// Findings about a store's folder.
#[derive(Debug)]
pub struct StoreFindings {
    /// True if the store exists.
    pub exists: Result<bool, StoreError>,
    /// `Ok` if this larder reads the format of the store.
    pub format: Result<(), StoreError>,
    /// `Ok` if this user can write to the store, or create it.
    pub writable: Result<(), StoreError>,
    /// The user id of the store's owner, if that is another user.
    pub foreign_owner: Option<u32>,
    /// The space on the store's disk.
    pub disk_space: Result<DiskSpace, StoreError>,
    /// The file of the admin token.
    pub token: TokenFile,
}

/// The file that the commands find the admin token in.
#[derive(Debug)]
pub enum TokenFile {
    /// Absent.
    Absent,
    /// A file with a token.
    Good {
        /// The token.
        token: secrecy::SecretString,
        /// File mode.
        mode: u32,
    },
    /// A file without a usable token.
    Empty,
    /// A file that this user may not read, or that the disk could not read.
    Unreadable(StoreError),
}

impl Store {
    /// Examines the store in `folder` from outside.
    pub fn examine(folder: &Path) -> StoreFindings {
        let root = folder.join("v1");
        let exists = disk::folder_exists(&root);
        let exists_on_disk = matches!(exists, Ok(true));
        let nearest_existing = nearest_existing(&root);
        let owner = std::fs::metadata(&nearest_existing).ok().map(|meta| meta.uid());
        let own_user = rustix::process::geteuid().as_raw();
        StoreFindings {
            format: if exists_on_disk { disk::format_of(&root.join("format")).map(drop) } else { Ok(()) },
            writable: if exists_on_disk { check_writable(&root) } else { check_creatable(&nearest_existing) },
            foreign_owner: owner.filter(|owner| exists_on_disk && *owner != own_user),
            disk_space: disk::disk_space(&nearest_existing),
            token: token(&Self::token_file(folder)),
            exists,
        }
    }

    /// Reads a record of the store in `folder`, and leaves a damaged one in its place.
    ///
    /// # Errors
    /// This user may not read it, or the disk failed.
    pub fn read_unopened(folder: &Path, key: &Key) -> Result<ReadOutcome, StoreError> {
        let path = folder.join("v1").join(key.path());
        disk::read(&path)?.map_or(Ok(ReadOutcome::Absent), |file| record_of(file, path))
    }

    /// Counts the bytes of archives and documents, file by file.
    pub fn measure(folder: &Path) -> Result<u64, StoreError> {
        let mut sum = 0;
        for kind in ["blobs", "documents"] {
            sum += disk::files_below(&folder.join("v1").join(kind))?.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        Ok(sum)
    }

    /// A provider of `host` with a cached version list, if there is one.
    pub fn any_cached_provider(folder: &Path, host: &Hostname) -> Option<ProviderAddress> {
        let providers = folder.join("v1/documents").join(host.as_str()).join("providers");
        // Providers in an unreadable folder are skipped.
        let names = |folder: &Path| disk::names_in(folder).unwrap_or_default();
        for namespace in names(&providers) {
            for type_ in names(&providers.join(&namespace)) {
                let (Ok(namespace), Ok(type_)) = (Name::parse(&namespace), Name::parse(&type_)) else { continue };
                let address = ProviderAddress { host: host.clone(), namespace, type_ };
                if folder.join("v1").join(super::Key::version_list(&address).path()).is_file() {
                    return Some(address);
                }
            }
        }
        None
    }
}

/// The folder itself, or its nearest existing parent.
fn nearest_existing(folder: &Path) -> PathBuf {
    let exists = |path: &&Path| path.symlink_metadata().is_ok();
    folder.ancestors().find(exists).unwrap_or(Path::new("/")).to_owned()
}

/// Checks that this user can create files in an existing store.
fn check_writable(root: &Path) -> Result<(), StoreError> {
    let staging = root.join("staging");
    let folder = if staging.is_dir() { staging } else { root.to_owned() };
    // A random name: no leftover of a killed doctor has it, and nobody can place a link there beforehand. Without random
    // bytes the file is still created only where none exists.
    let random = disk::random_hex::<8>().unwrap_or_default();
    disk::probe_writing(&folder.join(format!("doctor-{random}")))
}

/// Checks that this user can create the store below an existing folder.
fn check_creatable(nearest_existing: &Path) -> Result<(), StoreError> {
    if !nearest_existing.is_dir() {
        return Err(StoreError::io("make a folder in", nearest_existing, std::io::ErrorKind::NotADirectory.into()));
    }
    access(nearest_existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|e| StoreError::io("make a folder in", nearest_existing, e.into()))
}

fn token(path: &Path) -> TokenFile {
    match disk::read_secret(path) {
        Ok(Some(token)) => {
            let mode = std::fs::metadata(path).map_or(0o600, |meta| meta.mode() & 0o777);
            TokenFile::Good { token: token.into(), mode }
        }
        Ok(None) if path.exists() => TokenFile::Empty,
        Ok(None) => TokenFile::Absent,
        Err(error) => TokenFile::Unreadable(error),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test needs files that are not the store's own")]
mod tests {
    use super::*;

    /// The doctor may run as root in a folder where another user can place links.
    #[test]
    fn probing_neither_follows_a_link_nor_removes_an_existing_file() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, link, free) =
            (folder.path().join("victim"), folder.path().join("link"), folder.path().join("free"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert!(disk::probe_writing(&link).is_err() && disk::probe_writing(&victim).is_err());
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "precious");
        assert!(disk::probe_writing(&free).is_ok() && !free.exists());
    }
}
