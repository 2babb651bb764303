//! A user's file, read within bounds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::configuration::forget_other_values;
use super::hcl::LARGEST;
use super::{Files, MAX_BYTES};

/// Names read from a folder.
const MAX_ENTRIES: usize = 100_000;

/// Reads a file of at most [`LARGEST`] bytes.
///
/// # Errors
/// The system's error, a file that is too large, or not a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, LARGEST)
}

/// Reads a file of at most `largest` bytes.
///
/// # Errors
/// Those of [`read`].
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
pub fn read_up_to(path: &Path, largest: usize) -> io::Result<Vec<u8>> {
    // Opening a pipe without a writer blocks.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = File::open(path)?;
    // A pipe would never end, and a device may not either.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(largest as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > largest {
        return Err(io::Error::other(format!("it has more than {} KiB", largest >> 10)));
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

/// Reads a user's tar of folders; of its values only those that decide which modules are
/// called are kept.
///
/// # Errors
/// Those of [`read_lock_file`].
pub fn read_tar(path: &Path) -> Result<Files, String> {
    let name = path.display();
    // Between files, and of those that no client reads, there may be as much again and more.
    let bytes = read_up_to(path, 4 * MAX_BYTES).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let mut files = Files::from_users_tar(&bytes).map_err(|bad| format!("{name}: {bad}"))?;
    forget_other_values(&mut files);
    Ok(files)
}

/// Kind of a folder entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderEntry {
    /// A folder.
    Folder,
    /// A file or a link.
    Other,
}

/// The names in a folder; names that are not UTF-8 are dropped, because no client reads them.
///
/// # Errors
/// The system's error, or too many names.
pub(super) fn entries(folder: &Path) -> io::Result<BTreeMap<String, FolderEntry>> {
    let mut names = BTreeMap::new();
    for (number, entry) in folder.read_dir()?.enumerate() {
        if number == MAX_ENTRIES {
            return Err(io::Error::other(format!("there are more than {MAX_ENTRIES} files in it")));
        }
        let entry = entry?;
        let kind = if entry.file_type()?.is_dir() { FolderEntry::Folder } else { FolderEntry::Other };
        names.extend(entry.file_name().into_string().ok().map(|name| (name, kind)));
    }
    Ok(names)
}
