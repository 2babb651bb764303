//! A provider tree in a folder of this machine. Reads follow no link, and writes are atomic per file.
#![expect(clippy::disallowed_methods, reason = "an operator's own tree is no part of the store")]

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode as Bits, OFlags, mkdirat, openat, readlinkat, renameat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::layout::{MAX_PATH, enclosing_package};
use super::{MirrorFileKind, MirrorPath, Mode, PathMeaning};
use crate::address::{Hostname, Version};
use crate::digest::{Digest, Hasher, HashingReader};

/// The name prefix of files that are still being written.
const TEMP_PREFIX: &str = ".larder-";
const BUFFER_BYTES: usize = 256 << 10;

/// The folder of a provider tree, which may be empty.
#[derive(Debug)]
pub struct MirrorFolder {
    path: PathBuf,
    root: OwnedFd,
}

/// An I/O error of a provider tree, with the path.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {}: {source}", .path.display())]
pub struct MirrorFolderError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl From<MirrorFolderError> for io::Error {
    fn from(error: MirrorFolderError) -> Self {
        Self::other(error)
    }
}

/// Replaces the error for a file or folder that does not exist by `None`.
fn if_exists<T>(opened: Result<T, MirrorFolderError>) -> Result<Option<T>, MirrorFolderError> {
    match opened {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

impl MirrorFolder {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// The folder does not exist or cannot be read.
    pub fn open(path: &Path) -> Result<Self, MirrorFolderError> {
        let root = openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Bits::empty());
        let root =
            root.map_err(|e| MirrorFolderError { action: "open the folder", path: path.to_owned(), source: e.into() })?;
        Ok(Self { path: path.to_owned(), root })
    }

    /// Opens a folder and creates it if absent.
    ///
    /// # Errors
    /// The folder cannot be created or read.
    pub fn open_or_create(path: &Path) -> Result<Self, MirrorFolderError> {
        let created = fs::create_dir_all(path);
        created.map_err(|source| MirrorFolderError { action: "make the folder", path: path.to_owned(), source })?;
        Self::open(path)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading and returns it with its size in bytes.
    ///
    /// # Errors
    /// The file does not exist, is not a regular file, or its path contains a link.
    pub fn read(&self, path: &str) -> Result<(File, u64), MirrorFolderError> {
        let failed = |e: io::Error| self.error("open", path, e);
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.open_folder(folder)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(openat(&folder, name, flags, Bits::empty()).map_err(|e| failed(e.into()))?);
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        Ok((file, metadata.len()))
    }

    /// Reads a whole file of at most `max_bytes` bytes. `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or has more bytes than `max_bytes`.
    pub fn read_at_most(&self, path: &str, max_bytes: usize) -> Result<Option<Vec<u8>>, MirrorFolderError> {
        let Some((file, _)) = if_exists(self.read(path))? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(|e| self.error("read", path, e))?;
        if bytes.len() > max_bytes {
            return Err(self.error("read", path, io::Error::other(format!("it has more than {max_bytes} bytes"))));
        }
        Ok(Some(bytes))
    }

    /// Computes the SHA-256 of a file. `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn digest(&self, path: &str) -> Result<Option<Digest>, MirrorFolderError> {
        let Some((file, _)) = if_exists(self.read(path))? else { return Ok(None) };
        let mut hasher = Hasher::new();
        io::copy(&mut BufReader::with_capacity(BUFFER_BYTES, file), &mut hasher)
            .map_err(|e| self.error("read", path, e))?;
        Ok(Some(hasher.finish().0))
    }

    /// Writes a file atomically: temporary file, sync, rename, sync of the folder. If the digest is not `expected`, the
    /// file is discarded.
    ///
    /// # Errors
    /// The contents cannot be read, the file cannot be written, or its digest is not `expected`.
    pub fn write(
        &self,
        path: &MirrorPath,
        contents: impl Read,
        expected: Option<Digest>,
    ) -> Result<(), MirrorFolderError> {
        let name = path.name_of_file();
        let folder = self.make_folder(&path.folder())?;
        let temp_name = format!("{TEMP_PREFIX}{name}");
        // A temporary file of an earlier run is overwritten.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let write = || -> io::Result<()> {
            let file = File::from(openat(&folder, temp_name.as_str(), flags, Bits::from_raw_mode(0o644))?);
            let (mut file, mut contents) = (BufWriter::with_capacity(BUFFER_BYTES, file), HashingReader::new(contents));
            io::copy(&mut contents, &mut file)?;
            let digest = contents.digest();
            if let Some(expected) = expected.filter(|expected| *expected != digest) {
                return Err(io::Error::other(format!("expected SHA-256 {expected}, got {digest}")));
            }
            file.into_inner()?.sync_all()?;
            renameat(&folder, temp_name.as_str(), &folder, name.as_str())?;
            Ok(rustix::fs::fsync(&folder)?)
        };
        write().map_err(|e| {
            // An error of the removal is not reported: the cause of the failed write matters more.
            let _ = unlinkat(&folder, temp_name.as_str(), AtFlags::empty());
            self.error("write", &path.to_string(), e)
        })
    }

    /// Writes a small file unless the file already has these bytes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_small(&self, path: &MirrorPath, bytes: &[u8]) -> Result<(), MirrorFolderError> {
        if self.digest(&path.to_string())? == Some(Digest::of(bytes)) {
            return Ok(());
        }
        self.write(path, bytes, None)
    }

    /// Removes the temporary files of earlier runs from a folder.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub fn sweep(&self, folder: &str) -> Result<(), MirrorFolderError> {
        let Some(opened) = if_exists(self.open_folder(folder))? else { return Ok(()) };
        let failed = |e: Errno| self.error("list", folder, e.into());
        for entry in Dir::read_from(&opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_bytes().starts_with(TEMP_PREFIX.as_bytes()) {
                unlinkat(&opened, entry.file_name(), AtFlags::empty()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Creates a relative link from a host's ASCII spelling, which clients request from a web server, to its folder.
    /// Does nothing if both spellings are equal or if the name exists.
    ///
    /// # Errors
    /// The link cannot be created.
    pub fn link_spelling(&self, host: &Hostname) -> Result<(), MirrorFolderError> {
        let (ascii, unicode) = (host.as_str(), host.to_unicode());
        if ascii == unicode {
            return Ok(());
        }
        match symlinkat(unicode.as_str(), &self.root, ascii) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.error("make the link", ascii, e.into())),
        }
    }

    /// Creates a folder and its parents, and opens it.
    fn make_folder(&self, path: &str) -> Result<OwnedFd, MirrorFolderError> {
        let failed = |e: Errno| self.error("make the folder", path, e.into());
        let mut folder = self.root.try_clone().map_err(|e| self.error("open", "", e))?;
        for name in path.split('/') {
            match mkdirat(&folder, name, Bits::from_raw_mode(0o755)) {
                Ok(()) => rustix::fs::fsync(&folder).map_err(failed)?,
                Err(Errno::EXIST) => {}
                Err(e) => return Err(failed(e)),
            }
            folder = self.open_folder_in(&folder, name, path)?;
        }
        Ok(folder)
    }

    /// Opens a folder of the tree by its path.
    fn open_folder(&self, path: &str) -> Result<OwnedFd, MirrorFolderError> {
        let mut folder = self.root.try_clone().map_err(|e| self.error("open", "", e))?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            folder = self.open_folder_in(&folder, name, path)?;
        }
        Ok(folder)
    }

    /// Opens a folder in an open folder. `path` is the path for errors.
    fn open_folder_in(&self, folder: &OwnedFd, name: &str, path: &str) -> Result<OwnedFd, MirrorFolderError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        openat(folder, name, flags, Bits::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => {
                self.error("open the folder", path, io::Error::other("it is not a folder, and no link is followed"))
            }
            e => self.error("open the folder", path, e.into()),
        })
    }

    fn error(&self, action: &'static str, path: &str, source: io::Error) -> MirrorFolderError {
        MirrorFolderError { action, path: self.path.join(path), source }
    }
}

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
    /// The size in bytes and the mode of a regular file; the reason to refuse another entry, such as a link or a device.
    pub file: Result<(u64, Mode), String>,
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
            let file = match kind {
                FileType::RegularFile if depth == PROVIDER_DEPTH && !name.starts_with(TEMP_PREFIX) => {
                    Ok((size_bytes, Mode::Plain))
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
                    Err("it contains no file".to_owned())
                }
                FileType::Directory => continue,
                FileType::Symlink if depth == 0 && is_spelling_link(folder, &name) => continue,
                kind => Err(refusal_of(kind).to_owned()),
            };
            self.files.push(ListedFile { path: entry_path, file });
        }
        Ok(())
    }

    /// Walks an unpacked package. Every file is listed, because a package without one of its files is another package.
    fn walk_package(&mut self, folder: &OwnedFd, path: &str, depth: usize) -> Result<(), MirrorFolderError> {
        for DirectoryEntry { name, kind, mode, size_bytes } in self.entries(folder, path)? {
            let is_utf8 = name.is_ok();
            let name = name.unwrap_or_else(|lossy| lossy);
            let entry_path = format!("{path}/{name}");
            let file = match kind {
                _ if !is_utf8 => Err("its name is not UTF-8".to_owned()),
                FileType::Directory if depth < MAX_PACKAGE_DEPTH => {
                    let inner = self.folder.open_folder_in(folder, &name, &entry_path)?;
                    self.walk_package(&inner, &entry_path, depth + 1)?;
                    continue;
                }
                FileType::Directory => Err(format!("folders are nested more than {MAX_PACKAGE_DEPTH} deep")),
                FileType::RegularFile => Ok((size_bytes, mode)),
                kind => Err(refusal_of(kind).to_owned()),
            };
            self.files.push(ListedFile { path: entry_path, file });
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
