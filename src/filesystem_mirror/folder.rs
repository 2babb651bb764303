//! A tree in a folder of this machine: read without following a link, written so that nothing in it is ever torn.
#![expect(clippy::disallowed_methods, reason = "an operator's own tree is no part of the store")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, readlinkat, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::layout::LONGEST_PATH;
use super::{Meaning, TreePath};
use crate::address::{Hostname, Version};
use crate::digest::{Digest, Hasher};

/// The most files and folders that are looked at.
const MOST_ENTRIES: usize = 1_000_000;
/// What the names of files begin with that are being written.
const BEING_WRITTEN: &str = ".larder-";
/// How much is read from a file at a time, in bytes.
const READ_AT_ONCE: usize = 256 << 10;
/// Levels of folders above a packed archive.
const LEVELS: usize = 3;

/// A tree, or where one is to be.
#[derive(Debug)]
pub struct Folder {
    place: PathBuf,
    root: OwnedFd,
}

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its path below the tree's folder.
    pub path: String,
    /// What it is.
    pub kind: FoundKind,
}

/// What something in a tree is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundKind {
    /// A plain file, of so many bytes.
    File(u64),
    /// A folder with an unpacked package.
    Unpacked,
    /// A link, a device, a name that is none: it is not taken, and this is why.
    Refused(String),
}

/// That a tree cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("could not {doing} {}: {source}", .path.display())]
pub struct BadFolder {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Folder {
    /// Opens a tree that is there.
    ///
    /// # Errors
    /// There is no such folder, or it cannot be read.
    pub fn open(place: &Path) -> Result<Self, BadFolder> {
        let root = openat(CWD, place, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let root =
            root.map_err(|e| BadFolder { doing: "open the folder", path: place.to_owned(), source: e.into() })?;
        Ok(Self { place: place.to_owned(), root })
    }

    /// Opens a tree, and makes its folder where there is none.
    ///
    /// # Errors
    /// It cannot be made or read.
    pub fn make(place: &Path) -> Result<Self, BadFolder> {
        let made = fs::create_dir_all(place);
        made.map_err(|source| BadFolder { doing: "make the folder", path: place.to_owned(), source })?;
        Self::open(place)
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Everything in it that could be a part of a tree, in the order of its paths. No link is followed: a link of a
    /// host's other spelling to that host's own folder is passed over, any other is told.
    ///
    /// # Errors
    /// A folder cannot be read, or there is too much in it.
    pub fn all(&self) -> Result<Vec<Found>, BadFolder> {
        let mut found = Vec::new();
        let mut left = MOST_ENTRIES;
        self.walk(&self.root, "", 0, &mut left, &mut found)?;
        Ok(found)
    }

    fn walk(
        &self,
        folder: &OwnedFd,
        path: &str,
        level: usize,
        left: &mut usize,
        found: &mut Vec<Found>,
    ) -> Result<(), BadFolder> {
        for (name, kind, size_bytes) in self.entries(folder, path, left)? {
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let is_version = || Version::parse(&name).is_ok();
            let kind = match kind {
                FileType::RegularFile if level == LEVELS => FoundKind::File(size_bytes),
                // What is no part of the layout is nobody's business.
                FileType::RegularFile => continue,
                FileType::Directory if level < LEVELS || (level == LEVELS && is_version()) => {
                    let inner = self.folder_in(folder, &name, &below)?;
                    self.walk(&inner, &below, level + 1, left, found)?;
                    continue;
                }
                FileType::Directory if level == LEVELS + 1 => FoundKind::Unpacked,
                FileType::Directory => continue,
                FileType::Symlink if level == 0 && is_other_spelling(folder, &name) => continue,
                FileType::Symlink => FoundKind::Refused("it is a link, and no link is followed".to_owned()),
                _ => FoundKind::Refused("it is no plain file".to_owned()),
            };
            found.push(Found { path: below, kind });
        }
        Ok(())
    }

    /// The names in a folder with what each is, sorted; without those that cannot be a name of the layout.
    fn entries(
        &self,
        folder: &OwnedFd,
        path: &str,
        left: &mut usize,
    ) -> Result<Vec<(String, FileType, u64)>, BadFolder> {
        let failed = |e: Errno| self.bad("list", path, e.into());
        let mut entries = Vec::new();
        for entry in Dir::read_from(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." || name.starts_with(BEING_WRITTEN) {
                continue;
            }
            *left = left.checked_sub(1).ok_or_else(|| {
                let why = format!("there are more than {MOST_ENTRIES} files and folders in it");
                self.bad("list", path, io::Error::other(why))
            })?;
            let told = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(told) => told,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(self.bad("look at", &format!("{path}/{name}"), e.into())),
            };
            let size_bytes = u64::try_from(told.st_size).unwrap_or_default();
            entries.push((name.to_owned(), FileType::from_raw_mode(told.st_mode), size_bytes));
        }
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        Ok(entries)
    }

    /// Opens a file of it for reading, with its size.
    ///
    /// # Errors
    /// It is not there, or no plain file any more, or a link leads to it.
    pub fn read(&self, path: &str) -> Result<(File, u64), BadFolder> {
        let failed = |e: io::Error| self.bad("open", path, e);
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.folder_of(folder)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(openat(&folder, name, flags, Mode::empty()).map_err(|e| failed(e.into()))?);
        let told = file.metadata().map_err(failed)?;
        if !told.is_file() {
            return Err(failed(io::Error::other("it is no plain file")));
        }
        Ok((file, told.len()))
    }

    /// All of a small file; nothing where there is none.
    ///
    /// # Errors
    /// It cannot be read, or has more bytes than that.
    pub fn small(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, BadFolder> {
        let (file, _) = match self.read(path) {
            Ok(opened) => opened,
            Err(bad) if bad.source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(bad) => return Err(bad),
        };
        let mut bytes = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|e| self.bad("read", path, e))?;
        if bytes.len() > most {
            return Err(self.bad("read", path, io::Error::other(format!("it has more than {most} bytes"))));
        }
        Ok(Some(bytes))
    }

    /// The digest of a file; nothing where there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn digest(&self, path: &str) -> Result<Option<Digest>, BadFolder> {
        match self.read(path) {
            Ok((mut file, _)) => {
                let mut hasher = Hasher::new();
                let mut buffer = vec![0; READ_AT_ONCE];
                loop {
                    match file.read(&mut buffer).map_err(|e| self.bad("read", path, e))? {
                        0 => return Ok(Some(hasher.finish().0)),
                        read => hasher.update(&buffer[..read]),
                    }
                }
            }
            Err(bad) if bad.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(bad) => Err(bad),
        }
    }

    /// Writes a file whole: beside its place, synced, then renamed into it. Where `expected` is given and the bytes are
    /// others, nothing of it stays. Says what it hashes to.
    ///
    /// # Errors
    /// It cannot be read or written, or is not what it should be.
    pub fn write(
        &self,
        path: &TreePath,
        mut contents: impl Read,
        expected: Option<Digest>,
    ) -> Result<Digest, BadFolder> {
        let (shown, name) = (path.to_string(), path.file_name());
        let folder = self.make_folder(&path.folder())?;
        let beside = format!("{BEING_WRITTEN}{name}");
        // What an earlier run left is begun anew.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let writing = || {
            let mut file = File::from(openat(&folder, beside.as_str(), flags, Mode::from_raw_mode(0o644))?);
            let mut hasher = Hasher::new();
            let mut buffer = vec![0; READ_AT_ONCE];
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
                return Err(io::Error::other(format!("its SHA-256 is {digest}, and should be {expected}")));
            }
            file.sync_all()?;
            renameat(&folder, beside.as_str(), &folder, name.as_str())?;
            rustix::fs::fsync(&folder)?;
            Ok(digest)
        };
        let written: io::Result<Digest> = { writing }();
        written.map_err(|e| {
            // The write failed for its own reason, which is the one to tell.
            let _ = unlinkat(&folder, beside.as_str(), AtFlags::empty());
            self.bad("write", &shown, e)
        })
    }

    /// Writes a small file, unless it is there with these bytes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_small(&self, path: &TreePath, bytes: &[u8]) -> Result<(), BadFolder> {
        if self.digest(&path.to_string())? == Some(Digest::of(bytes)) {
            return Ok(());
        }
        self.write(path, bytes, None).map(drop)
    }

    /// Removes what an earlier run left half written in a folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn sweep(&self, folder: &str) -> Result<(), BadFolder> {
        let opened = match self.folder_of(folder) {
            Ok(opened) => opened,
            Err(bad) if bad.source.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(bad) => return Err(bad),
        };
        let failed = |e: Errno| self.bad("list", folder, e.into());
        for entry in Dir::read_from(&opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_bytes().starts_with(BEING_WRITTEN.as_bytes()) {
                unlinkat(&opened, entry.file_name(), AtFlags::empty()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Every archive in a provider's folder, as a reader of the layout finds them.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn archives(&self, folder: &str) -> Result<Vec<(String, TreePath)>, BadFolder> {
        let opened = self.folder_of(folder)?;
        let mut left = MOST_ENTRIES;
        let entries = self.entries(&opened, folder, &mut left)?;
        let archive = |(name, kind, _): (String, FileType, u64)| {
            let path = format!("{folder}/{name}");
            match TreePath::parse(&path) {
                Ok(Meaning::File(found))
                    if kind == FileType::RegularFile && matches!(found.member, super::Member::Archive(..)) =>
                {
                    Some((path, found))
                }
                _ => None,
            }
        };
        Ok(entries.into_iter().filter_map(archive).collect())
    }

    /// Puts a relative link from the spelling of a host that a web server is asked for to its folder; nothing where both
    /// are the same. What is there already is left as it is.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn link_spelling(&self, host: &Hostname) -> Result<(), BadFolder> {
        let (ascii, shown) = (host.as_str(), host.to_unicode());
        if ascii == shown {
            return Ok(());
        }
        match symlinkat(shown.as_str(), &self.root, ascii) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.bad("make the link", ascii, e.into())),
        }
    }

    fn folder_of(&self, path: &str) -> Result<OwnedFd, BadFolder> {
        let mut folder = self.root.try_clone().map_err(|e| self.bad("open", "", e))?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            folder = self.folder_in(&folder, name, path)?;
        }
        Ok(folder)
    }

    fn make_folder(&self, path: &str) -> Result<OwnedFd, BadFolder> {
        let failed = |e: Errno| self.bad("make the folder", path, e.into());
        let mut folder = self.root.try_clone().map_err(|e| self.bad("open", "", e))?;
        for name in path.split('/') {
            match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => rustix::fs::fsync(&folder).map_err(failed)?,
                Err(Errno::EXIST) => {}
                Err(e) => return Err(failed(e)),
            }
            folder = self.folder_in(&folder, name, path)?;
        }
        Ok(folder)
    }

    fn folder_in(&self, folder: &OwnedFd, name: &str, path: &str) -> Result<OwnedFd, BadFolder> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        openat(folder, name, flags, Mode::empty()).map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => {
                self.bad("open the folder", path, io::Error::other("it is no folder, and no link is followed"))
            }
            e => self.bad("open the folder", path, e.into()),
        })
    }

    fn bad(&self, doing: &'static str, path: &str, source: io::Error) -> BadFolder {
        BadFolder { doing, path: self.place.join(path), source }
    }
}

/// Whether a link is what [`Folder::link_spelling`] makes.
fn is_other_spelling(root: &OwnedFd, name: &str) -> bool {
    let target = readlinkat(root, name, Vec::with_capacity(LONGEST_PATH));
    let target = target.ok().and_then(|target| target.into_string().ok());
    let (Ok(host), Some(target)) = (Hostname::parse(name), target) else { return false };
    !target.contains('/') && Hostname::parse(&target).is_ok_and(|of| of == host) && target != name
}
