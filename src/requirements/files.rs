//! Users' files in memory, within limits: the files that a client reads, from disk, a tar or JSON.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::hcl;
use super::tar_upload::UnpackedTar;

/// The most files of one order.
const MAX_FILES: usize = 10_000;
/// The limit of their total size in bytes, names included.
pub const MAX_BYTES: usize = 16 << 20;
/// The longest path, in bytes.
const MAX_PATH: usize = 1024;
/// A client's lock file.
const LOCK_FILE: &str = ".terraform.lock.hcl";
/// A client's private folder.
const PRIVATE: &str = ".terraform";
/// Entries read from a tar.
pub(super) const MAX_ENTRIES: usize = 100_000;
/// Endings of the files that clients read.
const ENDINGS: [&str; 8] =
    [".tf", ".tf.json", ".tofu", ".tofu.json", ".tftest.hcl", ".tftest.json", ".tofutest.hcl", ".tofutest.json"];

/// Returns true for files with values of a root's variables.
pub(super) fn is_values_file(name: &str) -> bool {
    ["terraform.tfvars", "terraform.tfvars.json"].contains(&name)
        || [".auto.tfvars", ".auto.tfvars.json"].iter().any(|ending| name.ends_with(ending))
}

/// Files by path: segments between `/`, none of them empty, `.` or `..`. Only those that a client reads, and unreadable
/// links.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, FileContents>", into = "BTreeMap<String, FileContents>")]
pub struct Files {
    by_path: BTreeMap<String, FileContents>,
    bytes: usize,
}

/// Contents of a file. As JSON: a string, or `{"unreadable": "no_text"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FileContents {
    /// The text.
    Text(String),
    /// Unreadable. Only requirements of this file fail.
    Unreadable {
        /// The reason.
        unreadable: Unreadable,
    },
}

/// Reasons why an existing file is unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unreadable {
    /// Not UTF-8 text.
    #[error("it is not UTF-8 text")]
    NoText,
    /// Larger than any client's file.
    #[error("it has more than 1 MiB")]
    TooLarge,
    /// A link out of the tar, to a folder, or to nothing.
    #[error(
        "it is a link, and what it leads to is not a file in the tar: make the tar with `tar -h --hard-dereference`"
    )]
    Link,
    /// An entry that is neither file nor folder.
    #[error("it is not a plain file in the tar: make the tar without --sparse, of files and folders")]
    NoFile,
}

/// Reasons why files are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFiles {
    /// An invalid path.
    #[error(
        "{0:?} is not a path of a file in a folder: write segments between /, without . and .. and without control characters"
    )]
    Path(String),
    /// The order exceeds a limit.
    #[error("these are more than {MAX_FILES} files or 16 MiB: name fewer folders")]
    TooMany,
    /// Not a tar.
    #[error("it is not a tar of files: {0}")]
    NoTar(String),
}

impl Files {
    /// Returns true for file names that a client reads.
    pub fn are_read(name: &str) -> bool {
        // Editor backups are ignored, as the clients do.
        let is_left_over =
            name.starts_with('.') || name.ends_with('~') || (name.starts_with('#') && name.ends_with('#'));
        let is_configuration = ENDINGS.iter().any(|ending| name.ends_with(ending)) || is_values_file(name);
        name == LOCK_FILE || (!is_left_over && is_configuration)
    }

    /// Returns true for paths that a client reads: `.terraform` is private.
    fn is_read_at(path: &str) -> bool {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        Self::are_read(name) && !folders.split('/').any(|folder| folder == PRIVATE)
    }

    /// Adds or replaces a file. Files that no client reads are dropped; one that is not text, or too large, becomes
    /// [`Unreadable`].
    ///
    /// # Errors
    /// [`BadFiles`]; nothing was added.
    pub fn insert(&mut self, path: &str, contents: &[u8]) -> Result<(), BadFiles> {
        Self::checked(path)?;
        if !Self::is_read_at(path) {
            return Ok(());
        }
        self.put(
            path,
            match std::str::from_utf8(contents) {
                _ if contents.len() > hcl::LARGEST => FileContents::Unreadable { unreadable: Unreadable::TooLarge },
                Ok(text) => FileContents::Text(text.to_owned()),
                Err(_) => FileContents::Unreadable { unreadable: Unreadable::NoText },
            },
        )
    }

    fn checked(path: &str) -> Result<(), BadFiles> {
        let shown = || path.chars().take(128).collect::<String>();
        let is_segment = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
        if path.len() > MAX_PATH || !path.split('/').all(is_segment) || path.contains(char::is_control) {
            return Err(BadFiles::Path(shown()));
        }
        Ok(())
    }

    fn put(&mut self, path: &str, contents: FileContents) -> Result<(), BadFiles> {
        let before = self.by_path.get(path).map(|before| path.len() + before.text().map_or(0, str::len));
        let bytes = self.bytes + path.len() + contents.text().map_or(0, str::len) - before.unwrap_or(0);
        if bytes > MAX_BYTES || (before.is_none() && self.by_path.len() >= MAX_FILES) {
            return Err(BadFiles::TooMany);
        }
        self.bytes = bytes;
        self.by_path.insert(path.to_owned(), contents);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) {
        if let Some(before) = self.by_path.remove(path) {
            self.bytes -= path.len() + before.text().map_or(0, str::len);
        }
    }

    /// Reads a user's tar, as if unpacked. A link to a file in the tar becomes that file; any other becomes
    /// [`Unreadable`].
    ///
    /// # Errors
    /// [`BadFiles`].
    pub fn from_users_tar(tar: &[u8]) -> Result<Self, BadFiles> {
        let mut files = Self::default();
        let unpacked = UnpackedTar::read(tar)?;
        for path in unpacked.paths() {
            match unpacked.file(path) {
                Ok(contents) => files.insert(path, contents)?,
                // Any link may lead to a folder, whatever its name.
                Err(unreadable @ Unreadable::Link) if !path.split('/').any(|folder| folder == PRIVATE) => {
                    Self::checked(path)?;
                    files.put(path, FileContents::Unreadable { unreadable })?;
                }
                Err(unreadable) if Self::is_read_at(path) => {
                    Self::checked(path)?;
                    files.put(path, FileContents::Unreadable { unreadable })?;
                }
                Err(_) => {}
            }
        }
        Ok(files)
    }

    /// Reads a module's tar. Entries other than files are skipped, because clients turn a link in a module into an
    /// empty file. A leading `./` is dropped.
    ///
    /// # Errors
    /// [`BadFiles`].
    pub fn from_tar(tar: impl Read) -> Result<Self, BadFiles> {
        let bad = |e: std::io::Error| BadFiles::NoTar(e.to_string());
        let mut files = Self::default();
        let mut archive = tar::Archive::new(tar);
        for (number, entry) in archive.entries().map_err(bad)?.enumerate() {
            if number == MAX_ENTRIES {
                return Err(BadFiles::TooMany);
            }
            let entry = entry.map_err(bad)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let path = entry.path_bytes().into_owned();
            let Ok(path) = String::from_utf8(path) else { continue };
            let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
            if !Self::is_read_at(&path) {
                continue;
            }
            let mut contents = Vec::new();
            entry.take(hcl::LARGEST as u64 + 1).read_to_end(&mut contents).map_err(bad)?;
            files.insert(&path, &contents)?;
        }
        Ok(files)
    }

    /// The text of a file, if there is one.
    pub fn get(&self, path: &str) -> Option<Result<&str, Unreadable>> {
        self.by_path.get(path).map(FileContents::text)
    }

    /// The link that blocks a folder, at its path or above it.
    pub fn describe_obstacle(&self, folder: &str) -> Option<(&str, Unreadable)> {
        let ends = folder.match_indices('/').map(|(end, _)| end).chain([folder.len()]);
        ends.filter_map(|end| self.by_path.get_key_value(&folder[..end]))
            .find_map(|(path, contents)| Some((path.as_str(), contents.text().err()?)))
    }

    /// The files in a folder, by name, without subfolders. `""` is the top.
    pub fn in_folder(&self, folder: &str) -> Vec<(&str, Result<&str, Unreadable>)> {
        let first = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let from = self.by_path.range::<str, _>((Bound::Included(first.as_str()), Bound::Unbounded));
        let below = from.map_while(|(path, text)| Some((path.strip_prefix(&first)?, text.text())));
        below.filter(|(name, _)| !name.contains('/')).collect()
    }

    /// Returns true if a folder, or one below it, has files. The top always exists.
    pub fn has_folder(&self, folder: &str) -> bool {
        let first = format!("{folder}/");
        let mut from = self.by_path.range::<str, _>((Bound::Included(first.as_str()), Bound::Unbounded));
        folder.is_empty() || from.next().is_some_and(|(path, _)| path.starts_with(&first))
    }

    /// Total size in bytes, including names.
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }

    /// Every folder with files, each once.
    pub fn folders(&self) -> Vec<&str> {
        let mut folders: Vec<&str> =
            self.by_path.keys().map(|path| path.rsplit_once('/').map_or("", |(folder, _)| folder)).collect();
        folders.sort_unstable();
        folders.dedup();
        folders
    }

    /// Returns true if there are no files.
    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }
}

impl FileContents {
    fn text(&self) -> Result<&str, Unreadable> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Unreadable { unreadable } => Err(*unreadable),
        }
    }
}

impl TryFrom<BTreeMap<String, FileContents>> for Files {
    type Error = BadFiles;

    fn try_from(given: BTreeMap<String, FileContents>) -> Result<Self, BadFiles> {
        let mut files = Self::default();
        for (path, contents) in given {
            match contents {
                FileContents::Text(text) => files.insert(&path, text.as_bytes())?,
                unreadable @ FileContents::Unreadable { .. } => {
                    Self::checked(&path)?;
                    files.put(&path, unreadable)?;
                }
            }
        }
        Ok(files)
    }
}

impl From<Files> for BTreeMap<String, FileContents> {
    fn from(files: Files) -> Self {
        files.by_path
    }
}
