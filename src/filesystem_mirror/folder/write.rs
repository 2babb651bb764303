//! Writes files into a provider tree, each whole or not at all.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::super::MirrorPath;
use super::{MirrorFolder, MirrorFolderError, READ_BUFFER_BYTES, TEMP_PREFIX};
use crate::address::Hostname;
use crate::digest::{Digest, Hasher};

impl MirrorFolder {
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
}
