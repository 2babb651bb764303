//! Users' files in memory, within limits: the files that a client reads, from disk, a tar or JSON.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::hcl;
use super::tar_upload::UnpackedTar;
use crate::packaging::{BadTar, TarLimits, TarReader};

/// The maximum number of files in one order.
const MAX_FILES: usize = 10_000;
/// The maximum total size of the files of one order, in bytes, names included.
pub const MAX_BYTES: usize = 16 << 20;
/// The maximum length of a path, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// A client's lock file.
pub(super) const LOCK_FILE: &str = ".terraform.lock.hcl";
/// The folder in which a client keeps what it installed.
const CLIENT_FOLDER: &str = ".terraform";
/// The limits of a tar.
pub(super) const TAR_LIMITS: TarLimits = TarLimits { entries: 100_000, extension_bytes: 1 << 20 };
/// Endings of the files that clients read.
const ENDINGS: [&str; 8] =
    [".tf", ".tf.json", ".tofu", ".tofu.json", ".tftest.hcl", ".tftest.json", ".tofutest.hcl", ".tofutest.json"];

/// Returns true for the names of files with values of a root's variables.
pub(super) fn is_values_file(name: &str) -> bool {
    ["terraform.tfvars", "terraform.tfvars.json"].contains(&name)
        || [".auto.tfvars", ".auto.tfvars.json"].iter().any(|ending| name.ends_with(ending))
}

/// Files by path: segments between `/`, none of them empty, `.` or `..`. Contains only files that a client reads, and links
/// without a target file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, FileContents>", into = "BTreeMap<String, FileContents>")]
pub struct Files {
    by_path: BTreeMap<String, FileContents>,
    /// The total size of paths and texts.
    bytes: usize,
}

/// Contents of a file. As JSON: a string, or `{"unreadable": "no_text"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FileContents {
    /// The text.
    Text(String),
    /// The file exists, but is unreadable. Only the requirements of this file fail.
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
    #[serde(rename = "no_text")]
    #[error("the file is not UTF-8 text")]
    NotUtf8,
    /// Larger than any real configuration file.
    #[error("the file has more than 1 MiB")]
    TooLarge,
    /// A link whose target is outside the tar, a folder, or missing.
    #[serde(rename = "link")]
    #[error("the target of this link is not a file in the tar: make the tar with `tar -h --hard-dereference`")]
    LinkWithoutFile,
    /// A pipe, a device or a sparse file.
    #[serde(rename = "no_file")]
    #[error("the entry is not a plain file: make the tar of files and folders, without --sparse")]
    SpecialFile,
}

/// Reasons why files are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFiles {
    /// An invalid path.
    #[error(
        "{0:?} is not a path of a file in a folder: write segments between /, without . and .. and without control characters"
    )]
    Path(String),
    /// The files exceed a limit of the order.
    #[error("there are more than {MAX_FILES} files or 16 MiB: name fewer folders")]
    TooMany,
    /// Not a tar, or a damaged one, with the reason.
    #[error("it is not a tar of files: {0}")]
    InvalidTar(String),
}

impl From<BadTar> for BadFiles {
    fn from(bad: BadTar) -> Self {
        match bad {
            BadTar::TooManyEntries(_) => Self::TooMany,
            bad => Self::InvalidTar(bad.to_string()),
        }
    }
}

impl Files {
    /// Returns true for file names that a client reads.
    pub fn are_read(name: &str) -> bool {
        // Editor backups are ignored, as the clients do.
        let is_editor_backup =
            name.starts_with('.') || name.ends_with('~') || (name.starts_with('#') && name.ends_with('#'));
        let is_configuration = ENDINGS.iter().any(|ending| name.ends_with(ending)) || is_values_file(name);
        name == LOCK_FILE || (!is_editor_backup && is_configuration)
    }

    /// Returns true for paths that a client reads as configuration: nothing below `.terraform`.
    fn is_read_at(path: &str) -> bool {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        Self::are_read(name) && !folders.split('/').any(|folder| folder == CLIENT_FOLDER)
    }

    /// Adds or replaces a file. Files that no client reads are dropped; one that is not text, or too large, becomes
    /// [`Unreadable`].
    ///
    /// # Errors
    /// [`BadFiles`]; nothing was added.
    pub fn insert(&mut self, path: &str, contents: &[u8]) -> Result<(), BadFiles> {
        Self::check_path(path)?;
        if !Self::is_read_at(path) {
            return Ok(());
        }
        self.insert_contents(
            path,
            match std::str::from_utf8(contents) {
                _ if contents.len() > hcl::MAX_FILE_BYTES => {
                    FileContents::Unreadable { unreadable: Unreadable::TooLarge }
                }
                Ok(text) => FileContents::Text(text.to_owned()),
                Err(_) => FileContents::Unreadable { unreadable: Unreadable::NotUtf8 },
            },
        )
    }

    fn check_path(path: &str) -> Result<(), BadFiles> {
        let is_segment = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
        if path.len() > MAX_PATH_BYTES || !path.split('/').all(is_segment) || path.contains(char::is_control) {
            return Err(BadFiles::Path(path.chars().take(128).collect()));
        }
        Ok(())
    }

    fn insert_contents(&mut self, path: &str, contents: FileContents) -> Result<(), BadFiles> {
        let replaced_bytes = self.by_path.get(path).map(|replaced| path.len() + replaced.text().map_or(0, str::len));
        let bytes = self.bytes + path.len() + contents.text().map_or(0, str::len) - replaced_bytes.unwrap_or(0);
        if bytes > MAX_BYTES || (replaced_bytes.is_none() && self.by_path.len() >= MAX_FILES) {
            return Err(BadFiles::TooMany);
        }
        self.bytes = bytes;
        self.by_path.insert(path.to_owned(), contents);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) {
        if let Some(removed) = self.by_path.remove(path) {
            self.bytes -= path.len() + removed.text().map_or(0, str::len);
        }
    }

    /// Reads a user's tar. A link to a file in the tar becomes a copy of that file; any other link becomes [`Unreadable`].
    ///
    /// # Errors
    /// [`BadFiles`].
    pub fn from_users_tar(tar: &[u8]) -> Result<Self, BadFiles> {
        let mut files = Self::default();
        let unpacked = UnpackedTar::read(tar)?;
        for path in unpacked.paths() {
            match unpacked.file(path) {
                Ok(contents) => files.insert(path, contents)?,
                // Any link is recorded, whatever its name: the target may be a folder with modules.
                Err(unreadable @ Unreadable::LinkWithoutFile)
                    if !path.split('/').any(|folder| folder == CLIENT_FOLDER) =>
                {
                    Self::check_path(path)?;
                    files.insert_contents(path, FileContents::Unreadable { unreadable })?;
                }
                Err(unreadable) if Self::is_read_at(path) => {
                    Self::check_path(path)?;
                    files.insert_contents(path, FileContents::Unreadable { unreadable })?;
                }
                Err(_) => {}
            }
        }
        Ok(files)
    }

    /// Reads a module's tar. Entries other than files are skipped: clients turn a link in a module into an empty file. A
    /// leading `./` of a path is dropped.
    ///
    /// # Errors
    /// [`BadFiles`].
    pub fn from_tar(tar: impl Read) -> Result<Self, BadFiles> {
        let mut files = Self::default();
        let mut tar = TarReader::new(tar, TAR_LIMITS);
        while let Some(entry) = tar.next_member()? {
            if !entry.kind().is_file() {
                continue;
            }
            let Ok(path) = String::from_utf8(entry.name) else { continue };
            let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
            if !Self::is_read_at(&path) {
                continue;
            }
            let mut contents = Vec::new();
            let read = (&mut tar).take(hcl::MAX_FILE_BYTES as u64 + 1).read_to_end(&mut contents);
            read.map_err(|e| BadFiles::InvalidTar(e.to_string()))?;
            files.insert(&path, &contents)?;
        }
        Ok(files)
    }

    /// The text of a file; `None` if there is no file at the path.
    pub fn get(&self, path: &str) -> Option<Result<&str, Unreadable>> {
        self.by_path.get(path).map(FileContents::text)
    }

    /// The unreadable entry at a folder's path or at one of its parents, which makes the folder unavailable.
    pub fn blocking_entry(&self, folder: &str) -> Option<(&str, Unreadable)> {
        let path_ends = folder.match_indices('/').map(|(end, _)| end).chain([folder.len()]);
        path_ends
            .filter_map(|end| self.by_path.get_key_value(&folder[..end]))
            .find_map(|(path, contents)| Some((path.as_str(), contents.text().err()?)))
    }

    /// The files in a folder, by name, without subfolders. `""` is the top.
    pub fn in_folder(&self, folder: &str) -> Vec<(&str, Result<&str, Unreadable>)> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let from_prefix = self.by_path.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let below = from_prefix.map_while(|(path, contents)| Some((path.strip_prefix(&prefix)?, contents.text())));
        below.filter(|(name, _)| !name.contains('/')).collect()
    }

    /// Returns true if a folder, or one below it, has files. The top always exists.
    pub fn has_folder(&self, folder: &str) -> bool {
        let prefix = format!("{folder}/");
        let mut from_prefix = self.by_path.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        folder.is_empty() || from_prefix.next().is_some_and(|(path, _)| path.starts_with(&prefix))
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

    fn try_from(contents_by_path: BTreeMap<String, FileContents>) -> Result<Self, BadFiles> {
        let mut files = Self::default();
        for (path, contents) in contents_by_path {
            match contents {
                FileContents::Text(text) => files.insert(&path, text.as_bytes())?,
                unreadable @ FileContents::Unreadable { .. } => {
                    Self::check_path(&path)?;
                    files.insert_contents(&path, unreadable)?;
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
