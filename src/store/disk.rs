//! File operations of the store. Each error names the operation and the path.
#![expect(clippy::disallowed_methods, reason = "the store owns the files")]

use std::cmp;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, StatVfsMountFlags, access, fstatvfs, statvfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{Durability, FORMAT, StoreError};
use crate::clock::Timestamp;

/// The mode of a folder that only this user can use.
pub(super) const PRIVATE_FOLDER: u32 = 0o700;

/// The time that a damaged file stays in the quarantine.
const QUARANTINE_PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) fn create_folder(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(|e| StoreError::io("make the folder", path, e))
}

/// Makes a folder private (0700), whatever its mode was: documents are stored as upstream sent them, and their URLs may
/// be signed.
pub(super) fn make_private_folder(path: &Path) -> Result<(), StoreError> {
    let created = fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(path);
    created.map_err(|e| StoreError::io("make the folder", path, e))?;
    let mode = fs::metadata(path).map_err(|e| StoreError::io("look at", path, e))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0
        && let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(PRIVATE_FOLDER))
    {
        // A store on a read-only disk is still served.
        tracing::warn!(path = %path.display(), mode = format!("{mode:o}"), %error, "other users can read the store, and its mode could not be changed: chmod 700 the folder");
    }
    Ok(())
}

/// Recreates a removed folder, but not the store itself, which may be a disk that is not mounted.
pub(super) fn create_folder_if_missing(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Ok(());
    }
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(StoreError::io("make the folder", path, e)),
        _ => Ok(()),
    }
}

/// Returns true if the folder exists. A failed check is an error, not false.
pub(super) fn folder_exists(path: &Path) -> Result<bool, StoreError> {
    Ok(metadata_of(path)?.is_some_and(|(is_folder, _, _)| is_folder))
}

/// Refuses a store that a newer larder wrote to, before anything in it is read, swept or moved.
pub(super) fn check_format(path: &Path) -> Result<(), StoreError> {
    // An unreadable marker is ignored: each record has its own format version.
    match format_of(path)? {
        Some(_) => Ok(()),
        None => write_new(path, &[FORMAT.to_string().as_bytes(), b"\n"], Durability::Synced),
    }
}

/// The format marked at `path`, if there is one.
///
/// # Errors
/// This larder does not read it.
pub(super) fn format_of(path: &Path) -> Result<Option<u32>, StoreError> {
    let bytes = read(path)?.unwrap_or_default();
    match std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()) {
        Some(found) if found > FORMAT => Err(StoreError::Newer { path: path.to_owned(), found }),
        found => Ok(found),
    }
}

/// Opens the lock file of a store, creates it if absent, and says how to lock it.
pub(super) fn open_lock(path: &Path) -> Result<(File, LockKind), StoreError> {
    // For reading and writing: network file systems want both for a lock of either kind.
    match open_or_make(path) {
        Err(error) if error.is_unwritable() => {
            let folder = path.parent().unwrap_or(path);
            let kind = match access(folder, Access::WRITE_OK) {
                Ok(()) => LockKind::Exclusive,
                Err(_) => LockKind::Shared,
            };
            File::open(path).map(|file| (file, kind)).map_err(|_| error)
        }
        opened => opened.map(|file| (file, LockKind::Exclusive)),
    }
}

/// The lock that a larder takes on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockKind {
    /// For the one larder that may write.
    Exclusive,
    /// For a store that cannot be written: several processes may read it.
    Shared,
}

/// The result of an operation on a path; `None` if nothing exists there, also where a parent is a file.
fn if_exists<T>(result: io::Result<T>, doing: &'static str, path: &Path) -> Result<Option<T>, StoreError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(StoreError::io(doing, path, e)),
    }
}

/// Device and inode: the identity of a file whatever its path.
pub(super) type FileIdentity = (u64, u64);

pub(super) fn identity(file: &File) -> io::Result<FileIdentity> {
    file.metadata().map(|metadata| identity_in(&metadata))
}

fn identity_in(metadata: &fs::Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino())
}

/// A file with its contents, as far as the system tells: its identity, its size in bytes, and when the system last saw a
/// change of it, in seconds and nanoseconds. Another file at the same path has another version, and so has one that somebody wrote to,
/// whatever time of modification it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileVersion {
    identity: FileIdentity,
    size_bytes: u64,
    changed: (i64, i64),
}

impl FileVersion {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Self {
            identity: identity_in(&metadata),
            size_bytes: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// True for a version of the same file.
    pub(super) fn is_of_same_file(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

/// The identity of the file at a path; `None` if it does not exist.
pub(super) fn identity_of(path: &Path) -> Result<Option<FileIdentity>, StoreError> {
    let found = if_exists(fs::metadata(path), "look at", path)?;
    Ok(found.as_ref().map(identity_in))
}

/// Opens a file for reading; `None` if it does not exist.
pub(super) fn open(path: &Path) -> Result<Option<File>, StoreError> {
    if_exists(File::open(path), "open", path)
}

/// Opens a file for reading and writing; creates it if absent.
pub(super) fn open_or_make(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| StoreError::io("open", path, e))
}

/// Reserves disk space for a file of `bytes`, of which `written` exist; an error if there is none.
pub(super) fn reserve_space(file: &File, written: u64, bytes: u64) -> rustix::io::Result<()> {
    // RLIMIT_FSIZE limits the file whatever the disk has, and fallocate does not check it.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| bytes > limit) {
        return Err(Errno::FBIG);
    }
    match allocate(file, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let free = fstatvfs(file)?;
            let free = free.f_bavail.saturating_mul(free.f_frsize);
            if bytes.saturating_sub(written) > free { Err(Errno::NOSPC) } else { Ok(()) }
        }
        reserved => reserved,
    }
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes)
}

/// Elsewhere an allocation makes the file longer.
#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64) -> rustix::io::Result<()> {
    Err(Errno::NOSYS)
}

/// Free and total space of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Space available to this user, in bytes.
    pub free_bytes: u64,
    /// Total size, in bytes.
    pub total_bytes: u64,
    /// Free inodes, where the file system counts them.
    pub free_files: Option<u64>,
    /// Mounted read-only.
    pub is_read_only: bool,
}

/// Space of the disk that holds a path.
pub(super) fn disk_space(path: &Path) -> Result<DiskSpace, StoreError> {
    let stat = statvfs(path).map_err(|e| StoreError::io("determine the free space at", path, e.into()))?;
    Ok(DiskSpace {
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_files: (stat.f_files > 0).then_some(stat.f_favail),
        is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

/// Reads a whole file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    if_exists(fs::read(path), "read", path)
}

/// Removes a file; a missing file is not an error.
pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(StoreError::io("remove", path, e)),
    }
}

/// Makes the folders of a tree writable for their owner, so that it can be removed. A file that is no tree stays.
fn open_folders(tree: &Path) -> Result<(), StoreError> {
    // From the top down, because a folder may not be readable.
    match fs::symlink_metadata(tree) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("look at", tree, error)),
    }
    if fs::symlink_metadata(tree).is_ok_and(|metadata| metadata.mode() & 0o7777 != PRIVATE_FOLDER) {
        set_mode(tree, PRIVATE_FOLDER)?;
    }
    for name in fs::read_dir(tree).map_err(|e| StoreError::io("list", tree, e))? {
        open_folders(&name.map_err(|e| StoreError::io("list", tree, e))?.path())?;
    }
    Ok(())
}

/// Removes a folder with its contents, or a file, also where their folders are not writable. A missing one is not an error.
pub(super) fn remove_tree(tree: &Path) -> Result<(), StoreError> {
    open_folders(tree)?;
    let removed = match fs::symlink_metadata(tree) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(tree),
        Ok(_) => fs::remove_file(tree),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", tree, error)),
        _ => Ok(()),
    }
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), StoreError> {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set.map_err(|e| StoreError::io("change the mode of", path, e))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(|e| StoreError::io("rename into place", to, e))
}

/// Makes a rename or removal in `path`'s folder survive a power cut.
pub(super) fn sync_folder_of(path: &Path) -> Result<(), StoreError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| StoreError::io("sync the folder", folder, e))
}

/// Creates the folders above `path` below `root`; but not the root itself, which may be an unmounted disk.
pub(super) fn create_parent(path: &Path, root: &Path, durability: Durability) -> Result<(), StoreError> {
    let Some(folder) = path.parent().filter(|folder| *folder != root) else { return Ok(()) };
    if folder.is_dir() {
        return Ok(());
    }
    create_parent(folder, root, durability)?;
    match fs::create_dir(folder) {
        Ok(()) if durability == Durability::Copy => Ok(()),
        Ok(()) => sync_folder_of(folder),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(StoreError::io("make the folder", folder, e)),
    }
}

/// Writes a new file from these parts. A [`Durability::Synced`] file is synced before this returns; its folder is not.
pub(super) fn write_new(path: &Path, parts: &[&[u8]], durability: Durability) -> Result<(), StoreError> {
    let failed = |e| StoreError::io("write", path, e);
    let mut file = File::create(path).map_err(failed)?;
    for part in parts {
        file.write_all(part).map_err(failed)?;
    }
    if durability == Durability::Synced {
        file.sync_all().map_err(|e| StoreError::io("sync", path, e))?;
    }
    Ok(())
}

/// Checks that a folder is writable by creating and removing a new file. Existing files are untouched.
pub(super) fn probe_writing(path: &Path) -> Result<(), StoreError> {
    let failed = |e| StoreError::io("write", path, e);
    let mut file = File::create_new(path).map_err(failed)?;
    let written = file.write_all(b"?").map_err(failed);
    written.and(remove(path))
}

/// The names in a folder, sorted; empty if there is no folder.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>, StoreError> {
    let Some(entries) = if_exists(fs::read_dir(folder), "list", folder)? else { return Ok(vec![]) };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| StoreError::io("list", folder, e))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Every file below a folder, with its size in bytes.
pub(super) fn files_below(folder: &Path) -> Result<Vec<(PathBuf, u64)>, StoreError> {
    let mut found = Vec::new();
    let _ = each_file_after(folder, None, &mut |path, size_bytes| {
        found.push((path, size_bytes));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Visits the files below a folder in the order of their paths, with their sizes in bytes: those after the path `after`, which
/// is relative to the folder, until `visit` breaks.
pub(super) fn each_file_after(
    folder: &Path,
    after: Option<&Path>,
    visit: &mut dyn FnMut(PathBuf, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, StoreError> {
    let mut rest = after.map(Path::iter);
    let first = rest.as_mut().and_then(Iterator::next);
    let rest = rest.map(|rest| rest.as_path().to_owned());
    for name in names_in(folder)? {
        // Below the name that `after` begins with, only what follows it; a file of this name is `after` itself.
        let (is_before, rest) = match first.map(|first| OsStr::new(&name).cmp(first)) {
            Some(cmp::Ordering::Less) => continue,
            Some(cmp::Ordering::Equal) => (true, rest.as_deref()),
            Some(cmp::Ordering::Greater) | None => (false, None),
        };
        let path = folder.join(name);
        let flow = match metadata_of(&path)? {
            Some((true, ..)) => each_file_after(&path, rest.filter(|rest| !rest.as_os_str().is_empty()), visit)?,
            Some((false, size_bytes, _)) if !is_before => visit(path, size_bytes),
            Some(_) | None => ControlFlow::Continue(()),
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// A file's size in bytes and modification time; `None` if it does not exist.
pub(super) fn file_metadata(path: &Path) -> Result<Option<(u64, Timestamp)>, StoreError> {
    let existing = metadata_of(path)?.filter(|(is_folder, ..)| !is_folder);
    Ok(existing.map(|(_, size_bytes, changed)| (size_bytes, changed)))
}

/// Whether the path is a folder, its size in bytes, and its modification time; `None` if nothing exists there.
fn metadata_of(path: &Path) -> Result<Option<(bool, u64, Timestamp)>, StoreError> {
    let found = if_exists(fs::symlink_metadata(path), "look at", path)?;
    Ok(found.map(|meta| (meta.is_dir(), meta.len(), meta.modified().map_or(Timestamp(0), Timestamp::of))))
}

/// Makes the removal of a file durable.
pub(super) fn sync_removal(path: &Path, durability: Durability) -> Result<(), StoreError> {
    let must_sync = durability == Durability::Synced && path.parent().is_some_and(Path::is_dir);
    if must_sync { sync_folder_of(path) } else { Ok(()) }
}

/// Removes the files directly in `folder` modified before `oldest`.
pub(super) fn sweep(folder: &Path, oldest: Timestamp) -> Result<(), StoreError> {
    for name in names_in(folder)? {
        let path = folder.join(name);
        if metadata_of(&path)?.is_some_and(|(is_folder, _, changed)| !is_folder && changed < oldest) {
            tracing::info!(file = %path.display(), "swept a leftover");
            remove(&path)?;
        }
    }
    Ok(())
}

/// So many random bytes in hex, for names and secrets.
pub(super) fn random_hex<const N: usize>() -> io::Result<String> {
    let mut random = [0; N];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("the system returned no random bytes"))?;
    Ok(hex::encode(random))
}

/// Writes a token that only this user can read, in place of an unusable one.
pub(super) fn write_secret(path: &Path, token: &str) -> Result<(), StoreError> {
    let failed = |e| StoreError::io("write", path, e);
    remove(path)?;
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(token.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// Reads the token at `path`; `None` if there is no usable one.
pub(super) fn read_secret(path: &Path) -> Result<Option<String>, StoreError> {
    let token = read(path)?.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(token.map(|token| token.trim().to_owned()).filter(|token| token.len() >= 32))
}

/// The quarantine: damaged files are moved here for inspection.
#[derive(Debug, Clone)]
pub(super) struct Quarantine {
    folder: PathBuf,
    next_number: Arc<AtomicU64>,
}

impl Quarantine {
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        create_folder(folder)?;
        Ok(Self { folder: folder.to_owned(), next_number: Arc::default() })
    }

    /// Moves `path` to the quarantine, and returns its new path. A missing file is not an error.
    pub(super) fn add(&self, path: &Path) -> Result<PathBuf, StoreError> {
        let name = path.file_name().map_or_else(|| "unnamed".into(), |name| name.to_string_lossy().into_owned());
        let target = loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let target = self.folder.join(format!("{name}.{number}"));
            if !target.exists() {
                break target;
            }
        };
        match fs::rename(path, &target) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(target),
            Err(e) => return Err(StoreError::io("set aside", path, e)),
        }
        // The week starts now; a failed change of the time only shortens it.
        let _ = File::options().write(true).open(&target).and_then(|file| file.set_modified(SystemTime::now()));
        Ok(target)
    }

    /// Empties the quarantine.
    pub(super) fn remove_all(&self) -> Result<(), StoreError> {
        sweep(&self.folder, Timestamp(u64::MAX))
    }

    /// Removes files quarantined more than a week ago.
    pub(super) fn sweep(&self, now: Timestamp) -> Result<(), StoreError> {
        sweep(&self.folder, Timestamp(now.0.saturating_sub(QUARANTINE_PERIOD.as_secs())))
    }
}
