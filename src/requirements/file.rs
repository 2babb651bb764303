//! A user's file, read within bounds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::configuration::keep_deciding_values;
use super::hcl::MAX_FILE_BYTES;
use super::{Files, MAX_BYTES};

/// The maximum number of names in a folder.
const MAX_ENTRIES: usize = 100_000;

/// Reads a file of at most [`MAX_FILE_BYTES`] bytes.
///
/// # Errors
/// The system's error, a file that is too large, or not a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, MAX_FILE_BYTES)
}

/// Reads a file of at most `max_bytes` bytes.
///
/// # Errors
/// Those of [`read`].
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
pub fn read_up_to(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    // Opening a pipe without a writer blocks.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let file = File::open(path)?;
    // A pipe would never end, and a device may not either.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes {
        return Err(io::Error::other(format!("the file is larger than {} KiB", max_bytes >> 10)));
    }
    Ok(bytes)
}

/// Reads a user's lock file as text.
///
/// # Errors
/// The reason, for people.
pub fn read_lock_file(path: &Path) -> Result<String, String> {
    let name = path.display();
    let bytes = read(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| format!("{name} is not UTF-8 text"))
}

/// Reads a user's tar of folders. Drops the values of variables except those that decide which modules are called.
///
/// # Errors
/// Those of [`read_lock_file`].
pub fn read_tar(path: &Path) -> Result<Files, String> {
    let name = path.display();
    // Headers, padding and files that no client reads make the tar larger than the files that are read.
    let bytes = read_up_to(path, 4 * MAX_BYTES).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let mut files = Files::from_users_tar(&bytes).map_err(|refused| format!("{name}: {refused}"))?;
    keep_deciding_values(&mut files);
    Ok(files)
}

/// The type of a folder entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderEntry {
    /// A folder.
    Folder,
    /// A file or a link.
    Other,
}

/// The entries of a folder by name. Names that are not UTF-8 are dropped, because no client reads them.
///
/// # Errors
/// The system's error, or too many names.
pub(super) fn entries(folder: &Path) -> io::Result<BTreeMap<String, FolderEntry>> {
    let mut names = BTreeMap::new();
    for (number, entry) in folder.read_dir()?.enumerate() {
        if number == MAX_ENTRIES {
            return Err(io::Error::other(format!("the folder has more than {MAX_ENTRIES} files")));
        }
        let entry = entry?;
        let kind = if entry.file_type()?.is_dir() { FolderEntry::Folder } else { FolderEntry::Other };
        names.extend(entry.file_name().into_string().ok().map(|name| (name, kind)));
    }
    Ok(names)
}
