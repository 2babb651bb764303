//! A provider tree in a folder of this machine. Reads follow no link, and writes are atomic per file.
#![expect(clippy::disallowed_methods, reason = "an operator's own tree is no part of the store")]

mod walk;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, mkdirat, openat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

pub use self::walk::{ListedFile, ListedFileKind};
use super::MirrorPath;
use crate::address::Hostname;
use crate::digest::{Digest, Hasher};

/// The name prefix of files that are still being written.
const TEMP_PREFIX: &str = ".larder-";
const READ_BUFFER_BYTES: usize = 256 << 10;

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

impl MirrorFolder {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// The folder does not exist or cannot be read.
    pub fn open(path: &Path) -> Result<Self, MirrorFolderError> {
        let root = openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
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
        let file = File::from(openat(&folder, name, flags, Mode::empty()).map_err(|e| failed(e.into()))?);
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
        let (file, _) = match self.read(path) {
            Ok(opened) => opened,
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
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
        match self.read(path) {
            Ok((mut file, _)) => {
                let mut hasher = Hasher::new();
                let mut buffer = vec![0; READ_BUFFER_BYTES];
                loop {
                    match file.read(&mut buffer).map_err(|e| self.error("read", path, e))? {
                        0 => return Ok(Some(hasher.finish().0)),
                        read => hasher.update(&buffer[..read]),
                    }
                }
            }
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a file atomically: temporary file, sync, rename, sync of the folder. If the digest is not `expected`, the
    /// file is discarded. Returns the digest.
    ///
    /// # Errors
    /// The contents cannot be read, the file cannot be written, or its digest is not `expected`.
    pub fn write(
        &self,
        path: &MirrorPath,
        mut contents: impl Read,
        expected: Option<Digest>,
    ) -> Result<Digest, MirrorFolderError> {
        let (path_text, name) = (path.to_string(), path.file_name());
        let folder = self.make_folder(&path.folder())?;
        let temp_name = format!("{TEMP_PREFIX}{name}");
        // A temporary file of an earlier run is overwritten.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let write = || {
            let mut file = File::from(openat(&folder, temp_name.as_str(), flags, Mode::from_raw_mode(0o644))?);
            let mut hasher = Hasher::new();
            let mut buffer = vec![0; READ_BUFFER_BYTES];
            loop {
                match contents.read(&mut buffer)? {
                    0 => break,
                    read => {
                        hasher.update(&buffer[..read]);
                        file.write_all(&buffer[..read])?;
                    }
                }
            }
            let digest = hasher.finish().0;
            if let Some(expected) = expected.filter(|expected| *expected != digest) {
                return Err(io::Error::other(format!("expected SHA-256 {expected}, got {digest}")));
            }
            file.sync_all()?;
            renameat(&folder, temp_name.as_str(), &folder, name.as_str())?;
            rustix::fs::fsync(&folder)?;
            Ok(digest)
        };
        let result: io::Result<Digest> = { write }();
        result.map_err(|e| {
            // An error of the removal is not reported: the cause of the failed write matters more.
            let _ = unlinkat(&folder, temp_name.as_str(), AtFlags::empty());
            self.error("write", &path_text, e)
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
        self.write(path, bytes, None).map(drop)
    }

    /// Removes the temporary files of earlier runs from a folder.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub fn sweep(&self, folder: &str) -> Result<(), MirrorFolderError> {
        let opened = match self.open_folder(folder) {
            Ok(opened) => opened,
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
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
            match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
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
        openat(folder, name, flags, Mode::empty()).map_err(|e| match e {
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
