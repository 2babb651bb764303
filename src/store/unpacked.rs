//! Unpacked providers for clients on this machine: trees of verified archives at stable paths, which a client links instead of
//! unpacking a copy of its own. Files and folders have no write bits. A tree counts only while it is exactly as it was unpacked:
//! its seal has the size, the times, the inode and the mode of everything in it.
//!
//! ```text
//! unpacked/DIGEST/HOST/NS/TYPE/VERSION/OS_ARCH/…   the tree; `unpacked/DIGEST` has the layout of a filesystem mirror
//! unpacked/seals/NAME.json                          its seal, written last; who links to it
//! ```
#![expect(clippy::disallowed_methods, reason = "the store owns the files, and removes trees that it unpacked itself")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::disk::DiskSpace;
use super::locks::{StoreLock, Striped};
use super::{Durability, Staging, StoreError, disk};
use crate::address::{Package, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;

/// The folder of the trees, in the folder of the store.
pub(super) const UNPACKED: &str = "unpacked";
const SEALS: &str = "seals";
/// The folders of installed providers in a client's data folder: of today, and of Terraform 0.13.
pub const INSTALLED_FOLDERS: [&str; 2] = ["providers", "plugins"];
/// The names in the place of a tree: `DIGEST/HOST/NS/TYPE/VERSION/OS_ARCH`.
const PLACE_DEPTH: usize = 6;
/// The most files and folders of a tree.
const MAX_ENTRIES: usize = 20_000;
/// The most folders of clients that one tree remembers.
const MAX_LINKS: usize = 4096;
/// The time after which an unused tree is removed.
const UNUSED_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);
/// The shortest time between two notes of a use.
const NOTE_PERIOD: Duration = Duration::from_secs(3600);
/// Free space that stays for the rest of the store and of the disk.
const SPARE_BYTES: u64 = 256 << 20;

const FILE_MODE: u32 = 0o444;
const PROGRAM_MODE: u32 = 0o555;
const FOLDER_MODE: u32 = 0o555;
/// The bits of a mode that say what kind of file it is, and those of a regular file.
const KIND_BITS: u32 = 0o170_000;
const REGULAR_FILE: u32 = 0o100_000;

/// The unpacked providers of a store.
#[derive(Debug)]
pub struct UnpackedTrees {
    folder: PathBuf,
    staging: Staging,
    lock: StoreLock,
    /// One change of a tree and its seal at a time.
    turns: Striped<Mutex<()>>,
}

/// A tree that is as it was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedTree {
    /// The folder to name as a `filesystem_mirror`; absolute.
    pub mirror: PathBuf,
    /// The folder of the package in it, to which clients link.
    pub tree: PathBuf,
    /// The `h1:` that clients compute from the tree.
    pub package_hash: String,
}

/// The record of a tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Seal {
    /// `DIGEST/HOST/NS/TYPE/VERSION/OS_ARCH`.
    tree: PathBuf,
    /// The `h1:` of its files: the digest of a list of their digests.
    package_hash: String,
    /// Everything in it, in the order of the paths; the tree itself is the first.
    entries: Vec<SealedEntry>,
    /// The last use that was noted.
    used: Timestamp,
    /// The data folders of clients that may link to it (`.terraform`).
    #[serde(default)]
    links: BTreeSet<PathBuf>,
}

/// A file or folder as it was when the tree was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SealedEntry {
    /// The path in the tree; empty for the tree itself.
    path: PathBuf,
    mode: u32,
    size: u64,
    inode: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Receives the files of a package while it is unpacked.
#[derive(Debug)]
pub struct TreeWriter {
    root: PathBuf,
    file: Option<(File, PathBuf, u32)>,
}

impl UnpackedTrees {
    pub(super) fn open(folder: PathBuf, staging: Staging, lock: StoreLock) -> Self {
        Self { folder, staging, lock, turns: Striped::default() }
    }

    /// True where trees can be made: not in a store that cannot be written.
    pub fn is_writable(&self) -> bool {
        self.lock.kind() == disk::LockKind::Exclusive
    }

    /// The folder of all trees, as links to them name it; absolute.
    ///
    /// # Errors
    /// The working folder is gone.
    pub fn folder(&self) -> Result<PathBuf, StoreError> {
        std::path::absolute(&self.folder).map_err(|e| StoreError::io("find the folder", &self.folder, e))
    }

    /// The tree of a package's archive, if there is one and it is as it was unpacked.
    ///
    /// # Errors
    /// The disk failed.
    pub fn find(&self, package: &Package, archive: &Digest) -> Result<Option<SealedTree>, StoreError> {
        let Some(seal) = self.seal(&place_of(package, archive))? else { return Ok(None) };
        self.is_sound(&seal)?.then(|| self.sealed(&seal)).transpose()
    }

    /// Unpacks an archive with `unpack`, which returns its `h1:`. An unsound tree in its place is replaced at once, because clients
    /// may have links to it.
    ///
    /// # Errors
    /// The disk failed or is nearly full; the errors of `unpack`. Then nothing is in place of the tree but what was there.
    pub fn build<E: From<StoreError>>(
        &self,
        package: &Package,
        archive: &Digest,
        unpacked_bytes: u64,
        now: Timestamp,
        unpack: impl FnOnce(&mut TreeWriter) -> Result<String, E>,
    ) -> Result<SealedTree, E> {
        let place = place_of(package, archive);
        let _turn = self.turns.of(&place).lock();
        let DiskSpace { free_bytes, .. } = disk::disk_space(self.staging.folder_now()?)?;
        if free_bytes < unpacked_bytes.saturating_add(SPARE_BYTES) {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(StoreError::io("unpack a provider in", &self.folder, full).into());
        }
        let scratch = self.staging.scratch()?;
        let mut writer = TreeWriter { root: scratch.path().join("new"), file: None };
        writer.make_folder(&writer.root)?;
        let package_hash = unpack(&mut writer)?;
        let new = writer.finish()?;
        let seal = self.put_in_place(&new, place, package_hash, now)?;
        Ok(self.sealed(&seal)?)
    }

    /// Moves a new tree to its place, closes it, and seals it last: after a crash before that it does not count.
    fn put_in_place(
        &self,
        new: &Path,
        place: PathBuf,
        package_hash: String,
        now: Timestamp,
    ) -> Result<Seal, StoreError> {
        let tree = self.folder.join(&place);
        disk::create_folder_if_missing(&self.folder)?;
        disk::create_parent(&tree, &self.folder, Durability::Synced)?;
        let links = self.seal(&place)?.map(|seal| seal.links).unwrap_or_default();
        let open = Seal { tree: place, package_hash, entries: Vec::new(), used: now, links };
        self.write_seal(&open, Durability::Synced)?;
        match fs::symlink_metadata(&tree) {
            Ok(there) => {
                if there.is_dir() {
                    disk::set_mode(&tree, disk::PRIVATE_FOLDER)?;
                }
                // Not every file system can exchange. Then a link to the tree leads nowhere for a moment.
                if renameat_with(CWD, new, CWD, &tree, RenameFlags::EXCHANGE).is_err() {
                    disk::remove_tree(&tree)?;
                    disk::rename(new, &tree)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk::rename(new, &tree)?,
            Err(error) => return Err(StoreError::io("look at", &tree, error)),
        }
        close_folders(&tree)?;
        disk::sync_folder_of(&tree)?;
        let Some(entries) = entries_of(&tree)? else {
            disk::remove_tree(&tree)?;
            let odd = io::Error::other("what was written there is not as it was written");
            return Err(StoreError::io("unpack a provider in", &tree, odd));
        };
        let seal = Seal { entries, ..open };
        self.write_seal(&seal, Durability::Synced)?;
        Ok(seal)
    }

    /// Notes that a client with this data folder may link to a tree now. False if the tree is gone, or if too many may link to it.
    ///
    /// # Errors
    /// The disk failed. Then the client must not link to it.
    pub fn note_use(
        &self,
        package: &Package,
        archive: &Digest,
        data_folder: &Path,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let place = place_of(package, archive);
        let _turn = self.turns.of(&place).lock();
        let Some(mut seal) = self.seal(&place)? else { return Ok(false) };
        let is_noted = seal.links.contains(data_folder) && now < seal.used.after(NOTE_PERIOD) && now >= seal.used;
        if is_noted {
            return Ok(true);
        }
        if seal.links.len() >= MAX_LINKS {
            seal.links.retain(|folder| links_to(folder, &seal.tree).iter().any(|link| link.exists()));
        }
        if seal.links.len() >= MAX_LINKS {
            return Ok(false);
        }
        seal.links.insert(data_folder.to_owned());
        seal.used = now;
        self.write_seal(&seal, Durability::Lazy).map(|()| true)
    }

    /// Removes the trees that nobody has used for 30 days, with the links to them, and those that a crash left without a seal. What
    /// cannot be removed is logged and stays.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sweep(&self, now: Timestamp) -> Result<(), StoreError> {
        for place in self.places()? {
            let _turn = self.turns.of(&place).lock();
            let removed = match self.seal(&place)? {
                Some(seal) if now < self.last_use(&seal).after(UNUSED_PERIOD) => continue,
                Some(seal) => self.remove(&seal),
                None => disk::remove_tree(&self.folder.join(&place)),
            };
            match removed {
                Ok(()) => {
                    tracing::info!(tree = %place.display(), "an unpacked provider was unused for 30 days and is removed")
                }
                Err(error) => tracing::warn!(tree = %place.display(), %error, "an unused unpacked provider stays"),
            }
        }
        Ok(())
    }

    /// Removes the trees of the selected versions of a provider, with the links to them.
    ///
    /// # Errors
    /// The disk failed, or one of them cannot be removed; the others are.
    pub fn remove_of(
        &self,
        provider: &ProviderAddress,
        is_selected: impl Fn(&Version) -> bool,
    ) -> Result<(), StoreError> {
        let mut ended = Ok(());
        for place in self.places()? {
            let names: Vec<&str> = place.iter().filter_map(OsStr::to_str).collect();
            let [_, host, namespace, type_, version, _] = names[..] else { continue };
            let ProviderAddress { host: of_host, namespace: of_namespace, type_: of_type } = provider;
            let is_of_provider =
                [of_host.as_str(), of_namespace.as_str(), of_type.as_str()] == [host, namespace, type_];
            if is_of_provider && Version::parse(version).is_ok_and(|version| is_selected(&version)) {
                let _turn = self.turns.of(&place).lock();
                let removed = match self.seal(&place)? {
                    Some(seal) => self.remove(&seal),
                    None => disk::remove_tree(&self.folder.join(&place)),
                };
                ended = ended.and(removed);
            }
        }
        ended
    }

    /// The places of all trees and of all seals.
    fn places(&self) -> Result<BTreeSet<PathBuf>, StoreError> {
        self.lock.check()?;
        let mut places = BTreeSet::new();
        for name in disk::names_in(&self.folder.join(SEALS))? {
            places.extend(read_seal(&self.folder.join(SEALS).join(name))?.map(|seal| seal.tree));
        }
        let mut waiting = vec![PathBuf::new()];
        while let Some(below) = waiting.pop() {
            for name in disk::names_in(&self.folder.join(&below))? {
                let place = below.join(&name);
                let is_folder = fs::symlink_metadata(self.folder.join(&place)).is_ok_and(|metadata| metadata.is_dir());
                match place.components().count() {
                    PLACE_DEPTH => drop(places.insert(place)),
                    _ if is_folder && name != SEALS => waiting.push(place),
                    _ => {}
                }
            }
        }
        Ok(places)
    }

    /// The last use: the one that was noted, or a later one that the file system noted.
    fn last_use(&self, seal: &Seal) -> Timestamp {
        let read = |entry: &SealedEntry| fs::symlink_metadata(self.folder.join(&seal.tree).join(&entry.path)).ok();
        let files = seal.entries.iter().filter(|entry| entry.mode & KIND_BITS == REGULAR_FILE).filter_map(read);
        let accessed = files.filter_map(|metadata| metadata.accessed().ok()).map(Timestamp::of).max();
        accessed.map_or(seal.used, |accessed| accessed.max(seal.used))
    }

    /// Removes a tree. The links go first: a link that leads nowhere makes a client's `init` fail.
    fn remove(&self, seal: &Seal) -> Result<(), StoreError> {
        let folder = self.folder()?;
        let tree = folder.join(&seal.tree);
        for link in seal.links.iter().flat_map(|data_folder| links_to(data_folder, &seal.tree)) {
            if fs::read_link(&link).is_ok_and(|target| target == tree)
                && let Err(error) = disk::remove(&link)
            {
                tracing::warn!(link = %link.display(), %error, "a link to an unpacked provider that is removed stays");
            }
        }
        disk::remove_tree(&tree)?;
        disk::remove(&self.seal_path(&seal.tree))?;
        // Folders that still have another tree stay.
        for parent in tree.ancestors().skip(1).take_while(|parent| *parent != folder) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn seal(&self, place: &Path) -> Result<Option<Seal>, StoreError> {
        self.lock.check()?;
        Ok(read_seal(&self.seal_path(place))?.filter(|seal| seal.tree == *place))
    }

    fn write_seal(&self, seal: &Seal, durability: Durability) -> Result<(), StoreError> {
        let path = self.seal_path(&seal.tree);
        disk::create_parent(&path, &self.folder, Durability::Synced)?;
        let text = serde_json::to_vec(seal).map_err(|e| StoreError::io("write", &path, e.into()))?;
        let scratch = self.staging.scratch()?;
        let temp_path = scratch.path().join("seal");
        disk::write_new(&temp_path, &[&text], durability)?;
        disk::rename(&temp_path, &path)?;
        match durability {
            Durability::Synced => disk::sync_folder_of(&path),
            Durability::Lazy | Durability::Copy => Ok(()),
        }
    }

    /// One flat name for each tree.
    fn seal_path(&self, place: &Path) -> PathBuf {
        let name = Digest::of(place.as_os_str().as_bytes());
        self.folder.join(SEALS).join(format!("{name}.json"))
    }

    fn is_sound(&self, seal: &Seal) -> Result<bool, StoreError> {
        let entries = entries_of(&self.folder.join(&seal.tree))?;
        Ok(entries.is_some_and(|entries| !entries.is_empty() && entries == seal.entries))
    }

    fn sealed(&self, seal: &Seal) -> Result<SealedTree, StoreError> {
        let folder = self.folder()?;
        let mirror = folder.join(seal.tree.components().next().map_or(OsStr::new(""), Component::as_os_str));
        Ok(SealedTree { mirror, tree: folder.join(&seal.tree), package_hash: seal.package_hash.clone() })
    }
}

impl TreeWriter {
    /// A folder of the package.
    ///
    /// # Errors
    /// It cannot be made, or its name is not UTF-8.
    pub fn folder(&mut self, path: &[u8]) -> io::Result<()> {
        let path = self.path(path)?;
        self.make_folder(&path).map_err(io::Error::other)
    }

    /// The beginning of a file, of this mode if the package tells one.
    ///
    /// # Errors
    /// It cannot be written, it is no regular file, its name is not UTF-8, or there is a file of this name.
    pub fn file(&mut self, path: &[u8], mode: Option<u32>) -> io::Result<()> {
        self.finish_file()?;
        let mode = mode.unwrap_or_default();
        if !matches!(mode & KIND_BITS, 0 | REGULAR_FILE) {
            return Err(io::Error::other("it is neither a file nor a folder"));
        }
        let path = self.path(path)?;
        if let Some(folder) = path.parent() {
            self.make_folder(folder).map_err(io::Error::other)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        self.file = Some((file, path, if mode & 0o111 == 0 { FILE_MODE } else { PROGRAM_MODE }));
        Ok(())
    }

    /// The next bytes of the file.
    ///
    /// # Errors
    /// The disk failed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |(file, ..)| file.write_all(bytes))
    }

    fn finish_file(&mut self) -> io::Result<()> {
        let Some((file, _, mode)) = self.file.take() else { return Ok(()) };
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    }

    fn path(&self, path: &[u8]) -> io::Result<PathBuf> {
        let path = std::str::from_utf8(path).map_err(|_| io::Error::other("its name is not UTF-8"))?;
        let is_plain = Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
        match is_plain && !path.contains(['\\', '\0']) {
            true => Ok(self.root.join(path)),
            false => Err(io::Error::other("its name leads elsewhere on some systems")),
        }
    }

    fn make_folder(&self, path: &Path) -> Result<(), StoreError> {
        let made = DirBuilder::new().recursive(true).mode(disk::PRIVATE_FOLDER).create(path);
        made.map_err(|e| StoreError::io("make the folder", path, e))
    }

    fn finish(mut self) -> Result<PathBuf, StoreError> {
        self.finish_file().map_err(|e| StoreError::io("write", &self.root, e))?;
        Ok(self.root)
    }
}

/// `DIGEST/HOST/NS/TYPE/VERSION/OS_ARCH`.
fn place_of(package: &Package, archive: &Digest) -> PathBuf {
    let Package { provider, version, platform } = package;
    let names = [
        archive.to_string(),
        provider.host.to_string(),
        provider.namespace.to_string(),
        provider.type_.to_string(),
        version.to_string(),
        platform.to_string(),
    ];
    names.iter().collect()
}

/// The places at which a client with this data folder links to a tree.
fn links_to(data_folder: &Path, place: &Path) -> [PathBuf; 2] {
    let package: PathBuf = place.iter().skip(1).collect();
    INSTALLED_FOLDERS.map(|folder| data_folder.join(folder).join(&package))
}

/// Reads a seal. One that a crash tore does not count, and neither does one that leads elsewhere.
fn read_seal(path: &Path) -> Result<Option<Seal>, StoreError> {
    let seal = disk::read(path)?.and_then(|text| serde_json::from_slice::<Seal>(&text).ok());
    let is_place = |tree: &Path| {
        let is_plain = tree.components().all(|component| matches!(component, Component::Normal(_)));
        is_plain && tree.components().count() == PLACE_DEPTH
    };
    Ok(seal.filter(|seal| is_place(&seal.tree)))
}

/// Everything in a tree, in the order of the paths. `None` if it is not one that larder made: something else than files and
/// folders, of another owner, or not readable.
fn entries_of(tree: &Path) -> Result<Option<Vec<SealedEntry>>, StoreError> {
    let (mut entries, mut waiting) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(path) = waiting.pop() {
        let full = tree.join(&path);
        let Some(metadata) = unless_odd(fs::symlink_metadata(&full), "look at", &full)? else { return Ok(None) };
        let is_ours = metadata.uid() == geteuid().as_raw() && (metadata.is_dir() || metadata.is_file());
        if !is_ours || entries.len() + waiting.len() >= MAX_ENTRIES {
            return Ok(None);
        }
        if metadata.is_dir() {
            let Some(names) = unless_odd(fs::read_dir(&full), "list", &full)? else { return Ok(None) };
            for entry in names {
                waiting.push(path.join(entry.map_err(|e| StoreError::io("list", &full, e))?.file_name()));
            }
        }
        entries.push(SealedEntry {
            path,
            mode: metadata.mode(),
            // The size of a folder depends on the file system.
            size: if metadata.is_dir() { 0 } else { metadata.size() },
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        });
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(Some(entries))
}

/// `None` for something that is gone, is no folder any more, or may not be read: then the disk is well, and the tree is not.
fn unless_odd<T>(result: io::Result<T>, doing: &'static str, path: &Path) -> Result<Option<T>, StoreError> {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => Ok(None),
        Err(error) => Err(StoreError::io(doing, path, error)),
    }
}

/// Takes the write bits off the folders of a tree and syncs them.
fn close_folders(tree: &Path) -> Result<(), StoreError> {
    each_folder(tree, &mut |folder| {
        disk::set_mode(folder, FOLDER_MODE)?;
        File::open(folder).and_then(|open| open.sync_all()).map_err(|e| StoreError::io("sync the folder", folder, e))
    })
}

/// Visits the folders of a tree, each after those in it.
fn each_folder(tree: &Path, visit: &mut impl FnMut(&Path) -> Result<(), StoreError>) -> Result<(), StoreError> {
    for entry in fs::read_dir(tree).map_err(|e| StoreError::io("list", tree, e))? {
        let entry = entry.map_err(|e| StoreError::io("list", tree, e))?;
        if entry.file_type().map_err(|e| StoreError::io("look at", &entry.path(), e))?.is_dir() {
            each_folder(&entry.path(), visit)?;
        }
    }
    visit(tree)
}
