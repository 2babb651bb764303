//! Users' files in memory, within limits: the files that a client reads, from disk, a tar or JSON. In a user's own tar,
//! links are resolved to the files that they lead to.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read;
use std::ops::Bound;

use serde::{Deserialize, Serialize};
use tar::EntryType;

use super::hcl;
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
const TAR_LIMITS: TarLimits = TarLimits { entries: 100_000, extension_bytes: 1 << 20 };
/// Endings of the files that clients read.
const ENDINGS: [&str; 8] =
    [".tf", ".tf.json", ".tofu", ".tofu.json", ".tftest.hcl", ".tftest.json", ".tofutest.hcl", ".tofutest.json"];

/// The maximum number of links from a path to its file, as on Linux.
const MAX_LINKS: usize = 40;

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
    /// Folders without such a file that a configuration calls: to a client they are empty modules.
    empty_folders: BTreeSet<String>,
    /// Hashes of the paths of all folders of a tar. A tar has far more folders than a client needs.
    folders_of_tar: HashSet<u64>,
    /// The total size of paths and texts.
    bytes: usize,
}

/// Contents of a file. As JSON: a string, or `{"unreadable": "no_text"}`; of a folder without a file, `{"folder": "empty"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum FileContents {
    /// The text.
    Text(String),
    /// The file exists, but is unreadable. Only the requirements of this file fail.
    Unreadable {
        /// The reason.
        unreadable: Unreadable,
    },
    /// No file, but a folder.
    Folder {
        /// Its contents.
        folder: FolderContents,
    },
}

/// The contents of a folder that has no file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FolderContents {
    /// No file that a client reads.
    Empty,
}

/// Reasons why an existing file is unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// A file on disk that the system refuses to read.
    #[error("the file cannot be read")]
    ReadFailed,
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
        Self::are_read(path.rsplit('/').next().unwrap_or(path)) && !is_of_client(path)
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
        let text = match path.ends_with(".json") {
            _ if contents.len() > hcl::MAX_FILE_BYTES => None,
            true => std::str::from_utf8(contents).map(Cow::Borrowed).ok(),
            false => hcl::text_of(contents).ok(),
        };
        let contents = match text {
            _ if contents.len() > hcl::MAX_FILE_BYTES => FileContents::Unreadable { unreadable: Unreadable::TooLarge },
            Some(text) => FileContents::Text(text.into_owned()),
            None => FileContents::Unreadable { unreadable: Unreadable::NotUtf8 },
        };
        self.insert_contents(path, contents)
    }

    /// Adds a file that exists and cannot be read.
    ///
    /// # Errors
    /// [`BadFiles`]; nothing was added.
    pub(super) fn insert_unreadable(&mut self, path: &str) -> Result<(), BadFiles> {
        Self::check_path(path)?;
        self.insert_contents(path, FileContents::Unreadable { unreadable: Unreadable::ReadFailed })
    }

    fn check_path(path: &str) -> Result<(), BadFiles> {
        let is_segment = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
        if path.len() > MAX_PATH_BYTES || !path.split('/').all(is_segment) || path.contains(char::is_control) {
            return Err(BadFiles::Path(path.chars().take(128).collect()));
        }
        Ok(())
    }

    /// Adds a folder without a file.
    ///
    /// # Errors
    /// [`BadFiles`]; nothing was added.
    pub(super) fn insert_folder(&mut self, path: &str) -> Result<(), BadFiles> {
        Self::check_path(path)?;
        if self.has_folder(path) || is_of_client(path) {
            return Ok(());
        }
        if self.empty_folders.len() >= MAX_FILES || self.bytes + path.len() > MAX_BYTES {
            return Err(BadFiles::TooMany);
        }
        self.bytes += path.len();
        self.empty_folders.insert(path.to_owned());
        Ok(())
    }

    /// Notes the folders that a path of a tar leads through.
    fn note_folders_of(&mut self, path: &str) {
        let mut folder = path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            // The parents of a known folder are known.
            if !self.folders_of_tar.insert(hash_of(parent)) {
                break;
            }
            folder = parent;
        }
    }

    /// Adds the folders of the tar that a local path of a call leads to and that have no file, so that JSON has them, too.
    ///
    /// # Errors
    /// [`BadFiles`]; some were added.
    pub(super) fn insert_called_folders(&mut self, called: impl IntoIterator<Item = String>) -> Result<(), BadFiles> {
        let is_empty = |files: &Self, folder: &str| files.below(&child_path(folder, "")).next().is_none();
        for folder in called {
            if self.folders_of_tar.contains(&hash_of(&folder)) && is_empty(self, &folder) {
                self.folders_of_tar.remove(&hash_of(&folder));
                self.insert_folder(&folder)?;
            }
        }
        Ok(())
    }

    fn insert_contents(&mut self, path: &str, contents: FileContents) -> Result<(), BadFiles> {
        Self::check_path(path)?;
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
        let members = tar_members(tar)?;
        for (path, member) in &members {
            files.note_folders_of(path);
            if let TarMember::Folder = member {
                files.note_folders_of(&child_path(path, ""));
                continue;
            }
            match file_at(&members, path) {
                Ok(contents) => files.insert(path, contents)?,
                // Any link is recorded, whatever its name: the target may be a folder with modules.
                Err(unreadable)
                    if Self::is_read_at(path) || (unreadable == Unreadable::LinkWithoutFile && !is_of_client(path)) =>
                {
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
            if entry.kind().is_dir()
                && let Ok(path) = str::from_utf8(&entry.name)
            {
                let path = path.strip_prefix("./").unwrap_or(path).trim_end_matches('/');
                files.note_folders_of(&child_path(path, ""));
            }
            if !entry.kind().is_file() {
                continue;
            }
            let Ok(path) = String::from_utf8(entry.name) else { continue };
            let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
            files.note_folders_of(&path);
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
        self.below(&child_path(folder, "")).filter(|(name, _)| !name.contains('/')).collect()
    }

    /// Returns true if a folder is known to exist. The top always exists.
    pub fn has_folder(&self, folder: &str) -> bool {
        folder.is_empty()
            || self.below(&child_path(folder, "")).next().is_some()
            || self.empty_folders.contains(folder)
            || self.folders_of_tar.contains(&hash_of(folder))
    }

    /// The files whose paths begin with `prefix`, by the rest of their paths.
    fn below(&self, prefix: &str) -> impl Iterator<Item = (&str, Result<&str, Unreadable>)> {
        let from_prefix = self.by_path.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from_prefix.map_while(move |(path, contents)| Some((path.strip_prefix(prefix)?, contents.text())))
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

/// Returns true for paths below `.terraform`.
fn is_of_client(path: &str) -> bool {
    path.split('/').any(|folder| folder == CLIENT_FOLDER)
}

impl FileContents {
    fn text(&self) -> Result<&str, Unreadable> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Unreadable { unreadable } => Err(*unreadable),
            Self::Folder { .. } => Ok(""),
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
                FileContents::Folder { folder: FolderContents::Empty } => files.insert_folder(&path)?,
                unreadable @ FileContents::Unreadable { .. } => files.insert_contents(&path, unreadable)?,
            }
        }
        Ok(files)
    }
}

impl From<Files> for BTreeMap<String, FileContents> {
    fn from(files: Files) -> Self {
        // A file may have been added to a folder that had none.
        let is_empty = |folder: &&String| files.below(&child_path(folder, "")).next().is_none();
        let folders: Vec<String> = files.empty_folders.iter().filter(is_empty).cloned().collect();
        let mut by_path = files.by_path;
        by_path.extend(folders.into_iter().map(|path| (path, FileContents::Folder { folder: FolderContents::Empty })));
        by_path
    }
}

/// The entries of a parsed tar by path.
type TarMembers<'a> = BTreeMap<String, TarMember<'a>>;

/// The entry at a path.
enum TarMember<'a> {
    File(&'a [u8]),
    /// A symbolic or hard link, with its target as a path in the tar; `None` if the target is outside the tar.
    Link(Option<String>),
    Folder,
    /// A pipe, a device or a sparse file.
    Other,
}

/// Parses a tar. Of several entries at one path, the last one counts.
///
/// # Errors
/// [`BadFiles`]: the bytes are not a tar, are cut short, or have too many entries.
fn tar_members(bytes: &[u8]) -> Result<TarMembers<'_>, BadFiles> {
    let mut members = BTreeMap::new();
    let mut tar = TarReader::new(bytes, TAR_LIMITS);
    while let Some(entry) = tar.next_member()? {
        let Ok(path) = String::from_utf8(entry.name.clone()) else { continue };
        let path = path.strip_prefix("./").unwrap_or(&path);
        let link_target = || entry.link.clone().and_then(|name| String::from_utf8(name).ok());
        let member = match entry.kind() {
            _ if entry.is_sparse => TarMember::Other,
            EntryType::Directory => TarMember::Folder,
            EntryType::Regular | EntryType::Continuous if path.ends_with('/') => TarMember::Folder,
            EntryType::Regular | EntryType::Continuous => {
                let contents = tar.input().get(..usize::try_from(entry.size_bytes).unwrap_or(usize::MAX));
                let cut_short = || BadFiles::InvalidTar(format!("the tar ends within {path:?}"));
                TarMember::File(contents.ok_or_else(cut_short)?)
            }
            EntryType::Symlink => {
                // A relative target is relative to the folder of the link.
                let relative_target = link_target().filter(|target| !target.starts_with('/'));
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                TarMember::Link(relative_target.and_then(|target| resolve_path(folder, &target)))
            }
            // The target of a hard link is relative to the top of the tar.
            EntryType::Link => TarMember::Link(link_target().and_then(|target| resolve_path("", &target))),
            _ => TarMember::Other,
        };
        members.insert(path.trim_end_matches('/').to_owned(), member);
    }
    Ok(members)
}

/// The contents of the file at a path. Links are followed.
///
/// # Errors
/// [`Unreadable`]: the entry is not a file, or a link that leads to none.
fn file_at<'a, 'm>(members: &'m TarMembers<'a>, mut path: &'m str) -> Result<&'a [u8], Unreadable> {
    for followed_links in 0..MAX_LINKS {
        match members.get(path) {
            Some(TarMember::File(contents)) => return Ok(contents),
            Some(TarMember::Link(Some(target))) => path = target,
            Some(TarMember::Other) if followed_links == 0 => return Err(Unreadable::SpecialFile),
            Some(TarMember::Link(None) | TarMember::Folder | TarMember::Other) | None => break,
        }
    }
    Err(Unreadable::LinkWithoutFile)
}

/// The hash of a path. Two paths of one hash would make a missing folder an empty module.
fn hash_of(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// The path of a file in a folder; `""` is the top.
pub(super) fn child_path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Resolves a path relative to a folder; `None` if the path leads out of the top folder.
pub(super) fn resolve_path(folder: &str, path: &str) -> Option<String> {
    let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            segment => segments.push(segment),
        }
    }
    Some(segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar of entries `(type, path, contents or link target)`.
    fn tar(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (entry_type, path, contents) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*entry_type);
            header.set_mode(0o644);
            if entry_type.is_file() {
                header.set_size(contents.len() as u64);
                tar.append_data(&mut header, path, contents.as_bytes()).unwrap();
            } else {
                header.set_size(0);
                tar.append_link(&mut header, path, contents).unwrap();
            }
        }
        tar.into_inner().unwrap()
    }

    /// To a client, an existing folder without a file is an empty module, however many others there are.
    #[test]
    fn every_folder_of_a_tar_is_known_and_the_called_ones_travel() {
        let paths: Vec<String> = (0..12_000).map(|number| format!("docs/a-{number:05}/readme.md")).collect();
        let mut entries: Vec<_> = paths.iter().map(|path| (EntryType::Regular, path.as_str(), "")).collect();
        entries.push((EntryType::Regular, "modules/empty/README.md", "nothing yet"));
        entries.push((EntryType::Regular, "main.tf", "module \"empty\" {\n  source = \"./modules/empty\"\n}\n"));
        let tar = tar(&entries);
        for mut files in [Files::from_users_tar(&tar).unwrap(), Files::from_tar(tar.as_slice()).unwrap()] {
            for folder in ["docs", "docs/a-00000", "docs/a-11999", "modules", "modules/empty"] {
                assert!(files.has_folder(folder), "{folder}");
            }
            for folder in ["doc", "docs/a", "docs/a-12000", "modules/empty/README.md", "modules/other"] {
                assert!(!files.has_folder(folder), "{folder}");
            }
            files.insert_called_folders(["modules/empty".to_owned(), "modules/other".to_owned()]).unwrap();
            let json = serde_json::to_string(&files).unwrap();
            assert!(json.contains(r#""modules/empty":{"folder":"empty"}"#) && !json.contains("docs"), "{json}");
            let received: Files = serde_json::from_str(&json).unwrap();
            assert!(received.has_folder("modules/empty") && !received.has_folder("modules/other"));
            assert_eq!(received.size_bytes(), files.size_bytes());
        }
    }

    #[test]
    fn a_link_to_a_file_has_the_contents_of_that_file() {
        let tar = tar(&[
            (EntryType::Regular, "common/versions.txt", "a = 1"),
            (EntryType::Symlink, "prod/versions.tf", "../common/versions.txt"),
            (EntryType::Symlink, "stage/versions.tf", "../prod/./versions.tf"),
            (EntryType::Link, "dev/versions.tf", "common/versions.txt"),
            (EntryType::Symlink, "prod/.terraform/providers/x", "/cache/x"),
        ]);
        let files = Files::from_users_tar(&tar).unwrap();
        for path in ["prod/versions.tf", "stage/versions.tf", "dev/versions.tf"] {
            assert_eq!(files.get(path), Some(Ok("a = 1")), "{path}");
        }
        assert_eq!(files.folders(), ["dev", "prod", "stage"]);
    }

    #[test]
    fn other_links_and_special_files_are_recorded_as_unreadable() {
        let tar = tar(&[
            (EntryType::Regular, "prod/main.tf", ""),
            (EntryType::Regular, "real/x/main.tf", ""),
            (EntryType::Symlink, "prod/out.tf", "../../out.tf"),
            (EntryType::Symlink, "prod/gone.tf", "gone"),
            (EntryType::Symlink, "prod/absolute.tf", "/prod/main.tf"),
            (EntryType::Symlink, "prod/a.tf", "b.tf"),
            (EntryType::Symlink, "prod/b.tf", "a.tf"),
            (EntryType::Symlink, "prod/modules", "../real"),
            (EntryType::Fifo, "prod/pipe.tf", "x"),
            (EntryType::Fifo, "prod/pipe", "x"),
        ]);
        let files = Files::from_users_tar(&tar).unwrap();
        for name in ["out.tf", "gone.tf", "absolute.tf", "a.tf", "b.tf"] {
            assert_eq!(files.get(&format!("prod/{name}")), Some(Err(Unreadable::LinkWithoutFile)), "{name}");
        }
        assert_eq!(files.get("prod/pipe.tf"), Some(Err(Unreadable::SpecialFile)));
        assert_eq!((files.get("prod/pipe"), files.get("prod/main.tf")), (None, Some(Ok(""))));
        assert_eq!(files.blocking_entry("prod/modules/x"), Some(("prod/modules", Unreadable::LinkWithoutFile)));
        assert_eq!(files.blocking_entry("real/x"), None);
        let json = serde_json::to_string(&files).unwrap();
        let received: Files = serde_json::from_str(&json).unwrap();
        assert_eq!((serde_json::to_string(&received).unwrap(), received.size_bytes()), (json, files.size_bytes()));
    }

    #[test]
    fn a_truncated_tar_is_refused() {
        let complete = tar(&[(EntryType::Regular, "main.tf", &"#".repeat(5000))]);
        assert!(Files::from_users_tar(&complete[..2000]).is_err());
    }

    #[test]
    fn paths_are_resolved_relative_to_a_folder_and_never_leave_the_top() {
        for (folder, path, expected) in [
            ("", "./a", Some("a")),
            ("a/b", "../c", Some("a/c")),
            ("a/b", "../../c//d/./", Some("c/d")),
            ("a", "../", Some("")),
            ("a", "..", Some("")),
            ("", "/a", Some("a")),
            ("a", "../..", None),
            ("a", "../../a", None),
        ] {
            assert_eq!(resolve_path(folder, path).as_deref(), expected, "{folder} {path}");
        }
    }
}
