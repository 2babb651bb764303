//! Lists the files of a provider tree in a folder, and the entries that cannot be a part of it. Follows no link.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, readlinkat, statat};
use rustix::io::Errno;

use super::super::layout::{MAX_PATH, enclosing_package};
use super::super::{MirrorFileKind, MirrorPath, Mode, PathMeaning};
use super::{MirrorFolder, MirrorFolderError, TEMP_PREFIX};
use crate::address::{Hostname, Version};

const MAX_ENTRIES: usize = 1_000_000;
/// The depth of a provider's folder: HOST/NAMESPACE/TYPE. An unpacked package is two levels deeper.
const PROVIDER_DEPTH: usize = 3;
/// The deepest nesting of folders in an unpacked package.
const MAX_PACKAGE_DEPTH: usize = 64;

/// One entry of a tree in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// The path relative to the tree's folder.
    pub path: String,
    /// The kind of entry.
    pub kind: ListedFileKind,
}

/// The kind of an entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListedFileKind {
    /// A regular file in a provider's folder, with its size in bytes.
    File(u64),
    /// A file of an unpacked package, with its size in bytes and its mode.
    InPackage(u64, Mode),
    /// A refused entry, such as a link or a device, with the reason.
    Refused(String),
}

struct DirectoryEntry {
    /// The name. If the name is not UTF-8, the error has a lossy form of it.
    name: Result<String, String>,
    kind: FileType,
    mode: Mode,
    size_bytes: u64,
}

/// The state of one walk through a folder.
struct MirrorWalk<'a> {
    folder: &'a MirrorFolder,
    /// The number of entries that this walk may still visit.
    remaining_entries: usize,
    files: Vec<ListedFile>,
}

impl MirrorFolder {
    /// All entries that could be a part of a tree, sorted within each folder. Follows no link. A link from
    /// the other spelling of a host to the host's folder is skipped; any other link is a refused entry.
    ///
    /// # Errors
    /// A folder cannot be read, or the tree has too many entries.
    pub fn list_files(&self) -> Result<Vec<ListedFile>, MirrorFolderError> {
        let mut walk = MirrorWalk { folder: self, remaining_entries: MAX_ENTRIES, files: Vec::new() };
        walk.walk_layout(&self.root, "", 0)?;
        Ok(walk.files)
    }

    /// The archives that a reader of the layout would find in a provider's folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn archives(&self, folder: &str) -> Result<Vec<(String, MirrorPath)>, MirrorFolderError> {
        let opened = self.open_folder(folder)?;
        let entries =
            MirrorWalk { folder: self, remaining_entries: MAX_ENTRIES, files: Vec::new() }.entries(&opened, folder)?;
        let archive = |DirectoryEntry { name, kind, .. }: DirectoryEntry| {
            let path = format!("{folder}/{}", name.ok()?);
            match MirrorPath::parse(&path) {
                Ok(PathMeaning::File(found))
                    if kind == FileType::RegularFile && matches!(found.kind, MirrorFileKind::Archive(..)) =>
                {
                    Some((path, found))
                }
                _ => None,
            }
        };
        Ok(entries.into_iter().filter_map(archive).collect())
    }
}

impl MirrorWalk<'_> {
    /// Walks the folders of the layout.
    fn walk_layout(&mut self, folder: &OwnedFd, path: &str, depth: usize) -> Result<(), MirrorFolderError> {
        for DirectoryEntry { name, kind, size_bytes, .. } in self.entries(folder, path)? {
            // The layout has no name that is not UTF-8.
            let Ok(name) = name else { continue };
            let entry_path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let is_version = || Version::parse(&name).is_ok();
            let kind = match kind {
                FileType::RegularFile if depth == PROVIDER_DEPTH && !name.starts_with(TEMP_PREFIX) => {
                    ListedFileKind::File(size_bytes)
                }
                // Other files in these folders are not part of the layout.
                FileType::RegularFile => continue,
                FileType::Directory if depth < PROVIDER_DEPTH || (depth == PROVIDER_DEPTH && is_version()) => {
                    let inner = self.folder.open_folder_in(folder, &name, &entry_path)?;
                    self.walk_layout(&inner, &entry_path, depth + 1)?;
                    continue;
                }
                FileType::Directory if depth == PROVIDER_DEPTH + 1 && enclosing_package(&entry_path).is_some() => {
                    let inner = self.folder.open_folder_in(folder, &name, &entry_path)?;
                    let files_before = self.files.len();
                    self.walk_package(&inner, &entry_path, 0)?;
                    if self.files.len() > files_before {
                        continue;
                    }
                    ListedFileKind::Refused("it contains no file".to_owned())
                }
                FileType::Directory => continue,
                FileType::Symlink if depth == 0 && is_spelling_link(folder, &name) => continue,
                kind => ListedFileKind::Refused(refusal_of(kind).to_owned()),
            };
            self.files.push(ListedFile { path: entry_path, kind });
        }
        Ok(())
    }

    /// Walks an unpacked package. Every file is listed, because a package without one of its files is another package.
    fn walk_package(&mut self, folder: &OwnedFd, path: &str, depth: usize) -> Result<(), MirrorFolderError> {
        for DirectoryEntry { name, kind, mode, size_bytes } in self.entries(folder, path)? {
            let (name, kind) = match name {
                Ok(name) => (name, Ok(kind)),
                Err(shown) => (shown, Err("its name is not UTF-8")),
            };
            let entry_path = format!("{path}/{name}");
            let kind = match kind {
                Ok(FileType::Directory) if depth < MAX_PACKAGE_DEPTH => {
                    let inner = self.folder.open_folder_in(folder, &name, &entry_path)?;
                    self.walk_package(&inner, &entry_path, depth + 1)?;
                    continue;
                }
                Ok(FileType::Directory) => {
                    ListedFileKind::Refused(format!("folders are nested more than {MAX_PACKAGE_DEPTH} deep"))
                }
                Ok(FileType::RegularFile) => ListedFileKind::InPackage(size_bytes, mode),
                Ok(kind) => ListedFileKind::Refused(refusal_of(kind).to_owned()),
                Err(reason) => ListedFileKind::Refused(reason.to_owned()),
            };
            self.files.push(ListedFile { path: entry_path, kind });
        }
        Ok(())
    }

    /// The entries of a folder, sorted by name.
    fn entries(&mut self, folder: &OwnedFd, path: &str) -> Result<Vec<DirectoryEntry>, MirrorFolderError> {
        let failed = |e: Errno| self.folder.error("list", path, e.into());
        let mut entries = Vec::new();
        for entry in Dir::read_from(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.remaining_entries = self.remaining_entries.checked_sub(1).ok_or_else(|| {
                let reason = format!("there are more than {MAX_ENTRIES} files and folders in it");
                self.folder.error("list", path, io::Error::other(reason))
            })?;
            let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(e) => {
                    return Err(self.folder.error("inspect", &format!("{path}/{}", name.to_string_lossy()), e.into()));
                }
            };
            entries.push(DirectoryEntry {
                name: name.to_str().map(str::to_owned).map_err(|_| name.to_string_lossy().into_owned()),
                kind: FileType::from_raw_mode(stat.st_mode),
                mode: Mode::of(stat.st_mode),
                size_bytes: u64::try_from(stat.st_size).unwrap_or_default(),
            });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

/// Why an entry that is neither a file nor a folder is refused.
fn refusal_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "it is a link, and no link is followed",
        _ => "it is not a regular file",
    }
}

/// True for a link that [`MirrorFolder::link_spelling`] makes.
fn is_spelling_link(root: &OwnedFd, name: &str) -> bool {
    let target = readlinkat(root, name, Vec::with_capacity(MAX_PATH));
    let target = target.ok().and_then(|target| target.into_string().ok());
    let (Ok(host), Some(target)) = (Hostname::parse(name), target) else { return false };
    !target.contains('/') && Hostname::parse(&target).is_ok_and(|target_host| target_host == host) && target != name
}
