//! A user's files: what an argument of a warm-up names, and reads within bounds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::configuration::{is_configuration, keep_deciding_values};
use super::hcl::MAX_FILE_BYTES;
use super::{Files, MAX_BYTES};
use crate::address::{Hostname, PackageSelector};

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

/// The kind of a command-line argument or configuration entry that names requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A provider or a module.
    Address,
    /// A `.terraform.lock.hcl`, under any name.
    LockFile,
    /// A folder where `init` runs, or with such folders below it.
    Folder,
    /// A tar of such folders.
    Tar,
    /// The JSON of an order, as larder prints it.
    OrderJson,
}

impl ArgumentKind {
    /// Interprets an argument; `path` is the argument as a path. The spellings `./NAME`, `/NAME` and `NAME/` are paths. A
    /// valid address is an address, unless a folder of that name has a configuration.
    ///
    /// # Errors
    /// Nothing exists at the path, or the argument is ambiguous; with the remedy.
    pub fn of(argument: &str, path: &Path, default_host: &Hostname) -> Result<Self, String> {
        if argument.is_empty() {
            return Err("the argument is empty".to_owned());
        }
        let is_written_as_path = argument.starts_with(['.', '/']) || argument.ends_with('/');
        if is_configuration(&path.file_name().unwrap_or_default().to_string_lossy()) && path.is_file() {
            return Err(format!("{argument:?} is one file of a configuration: name the folder of that file"));
        }
        let kind_of_path = || Self::of_path(path).ok_or_else(|| format!("there is no file and no folder {argument:?}"));
        if is_written_as_path || Self::by_ending(path).is_some_and(|kind| kind == Self::LockFile) {
            return kind_of_path();
        }
        match PackageSelector::parse(argument, default_host) {
            Ok(_) if path.is_dir() && has_configuration(path) => Err(format!(
                "{argument:?} is a folder with a configuration, and could be an address: write \"./{argument}\" for the folder, or \"{default_host}/{argument}\" for the address"
            )),
            Ok(_) if path.is_dir() => Ok(Self::Address),
            Ok(_) => Ok(Self::of_path(path).unwrap_or(Self::Address)),
            Err(bad) => kind_of_path().map_err(|none| format!("{none}, and: {bad}")),
        }
    }

    /// The kind of an existing path, by its name and type; `None` if it does not exist.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.metadata().ok()? {
            path if path.is_dir() => Some(Self::Folder),
            _ => Some(Self::by_ending(path).unwrap_or(Self::LockFile)),
        }
    }

    fn by_ending(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "hcl" => Some(Self::LockFile),
            "tar" => Some(Self::Tar),
            "json" => Some(Self::OrderJson),
            _ => None,
        }
    }
}

fn has_configuration(folder: &Path) -> bool {
    let names = entries(folder).unwrap_or_default();
    names.iter().any(|(name, entry)| *entry != FolderEntry::Folder && is_configuration(name))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_argument_that_is_both_a_folder_and_an_address_is_refused_with_the_two_spellings() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("envs/prod")).unwrap();
        fs::create_dir_all(top.path().join("hashicorp/null")).unwrap();
        for file in ["envs/prod/main.tf", "x.tar", "envs/x", ".terraform.lock.hcl"] {
            fs::write(top.path().join(file), "").unwrap();
        }
        let host = Hostname::parse("registry.example").unwrap();
        let interpret = |given: &str| ArgumentKind::of(given, &top.path().join(given), &host);
        let refused = interpret("envs/prod").unwrap_err();
        assert!(refused.contains("\"./envs/prod\"") && refused.contains("registry.example/envs/prod"), "{refused}");
        for (given, expected) in [
            ("./envs/prod", ArgumentKind::Folder),
            ("envs/prod/", ArgumentKind::Folder),
            ("envs", ArgumentKind::Folder),
            ("hashicorp/null", ArgumentKind::Address),
            ("hashicorp/null@~> 3.0", ArgumentKind::Address),
            ("envs/x", ArgumentKind::LockFile),
            (".terraform.lock.hcl", ArgumentKind::LockFile),
            ("x.tar", ArgumentKind::Tar),
        ] {
            assert_eq!(interpret(given), Ok(expected), "{given}");
        }
        for given in ["./none", "none.tar", "none/", "none"] {
            assert!(interpret(given).unwrap_err().contains("there is no file and no folder"), "{given}");
        }
        for given in ["./envs/prod/main.tf", "envs/prod/main.tf"] {
            assert!(interpret(given).unwrap_err().contains("name the folder"), "{given}");
        }
    }
}
