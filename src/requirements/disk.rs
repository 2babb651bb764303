//! Reads users' files from disk: what an argument of a warm-up names, and of a folder the files that a client would read,
//! with the local modules that they call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::configuration::{
    self, CommandLineValues, ModuleRole, ModuleSource, NO_PACKAGE, TEST_FOLDER, VariableValues, is_configuration,
    keep_deciding_values,
};
use super::files::{LOCK_FILE, child_path};
use super::hcl::{self, MAX_FILE_BYTES};
use super::resolve::{called_folders, root_folders};
use super::{BadFiles, ClientKind, Files, MAX_BYTES};
use crate::address::{Hostname, PackageSelector};

/// The maximum size of a tar. Headers, padding and files that no client reads make it larger than the files that are read.
const MAX_TAR_BYTES: usize = 4 * MAX_BYTES;
/// The maximum number of names in a folder.
const MAX_ENTRIES: usize = 100_000;
/// The maximum number of folders that are read or searched.
const MAX_FOLDERS: usize = 4096;
/// The name of a lock file that is being written.
const NEW_LOCK_FILE: &str = ".terraform.lock.hcl.new";
/// The longest wait for another larder that writes into the same folder.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The maximum depth of the search for configurations below a folder without one.
const MAX_SEARCH_DEPTH: usize = 16;

/// Reads a file of at most [`MAX_FILE_BYTES`] bytes.
///
/// # Errors
/// The system's error, a file that is too large, or not a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, MAX_FILE_BYTES)
}

/// Reads a file of at most `max_bytes` bytes.
///
/// # Errors
/// Those of [`read`].
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
pub fn read_up_to(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    // Opening a pipe without a writer blocks.
    let check_regular = |metadata: Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("not a regular file")),
    };
    check_regular(path.metadata()?)?;
    let file = File::open(path)?;
    // A pipe would never end, and a device may not either.
    check_regular(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes {
        return Err(io::Error::other(format!("the file is larger than {} KiB", max_bytes >> 10)));
    }
    Ok(bytes)
}

/// Reads a user's lock file as text.
///
/// # Errors
/// The reason, for people.
pub fn read_lock_file(path: &Path) -> Result<String, String> {
    let bytes = read(path).map_err(|error| unreadable(path, &error))?;
    let text = hcl::text_of(&bytes).map_err(|_| format!("{} is not UTF-8 text", path.display()))?;
    Ok(text.into_owned())
}

/// The path of the lock file of a root, relative to the same folder.
pub fn lock_file_of(root: &str) -> String {
    child_path(root, LOCK_FILE)
}

/// Replaces a lock file at once, or creates it. `read` is the text that [`read_lock_file`] returned; `None` if there was no
/// file. The file keeps its mode and, as far as this user may give files away, its owner.
///
/// # Errors
/// The reason, for people: the file is another one by now, or cannot be written. Then it is as it was.
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
pub fn replace_lock_file(path: &Path, read: Option<&str>, text: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
    let check_unchanged = || {
        let now = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            _ => Some(read_lock_file(path)?),
        };
        let changed = || format!("{} was changed meanwhile: run the command again", path.display());
        (now.as_deref() == read).then_some(()).ok_or_else(changed)
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).map_err(failed)?;
    // Two larders in one folder: the second one finds what the first has written.
    let is_locked = lock_exclusively(&folder).map_err(failed)?;
    check_unchanged()?;
    let temp = path.with_file_name(NEW_LOCK_FILE);
    let write = || {
        if is_locked {
            // One that a killed larder left; no other one writes now. Where it cannot be removed, creating it fails.
            let _ = fs::remove_file(&temp);
        }
        let in_the_way = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", temp.display()));
        let mut file = File::create_new(&temp).map_err(in_the_way)?;
        let mut fill = || {
            file.write_all(text.as_bytes())?;
            if let Ok(before) = path.metadata() {
                file.set_permissions(Permissions::from_mode(before.mode() & 0o777))?;
                // Only root may give a file away. Whoever may not becomes its owner, as with a client.
                let _ = fchown(&file, Some(before.uid()), Some(before.gid()));
            }
            file.sync_all()
        };
        fill().inspect_err(|_| drop(fs::remove_file(&temp)))
    };
    write().map_err(failed)?;
    let renamed = check_unchanged().and_then(|()| fs::rename(&temp, path).map_err(failed));
    renamed.inspect_err(|_| drop(fs::remove_file(&temp)))?;
    // The file is the new one by now. At worst a power cut brings the old one back.
    let _ = folder.sync_all();
    Ok(())
}

/// Locks a folder against other larders, within [`MAX_LOCK_WAIT`]. Returns false on a file system without such locks.
fn lock_exclusively(folder: &File) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if began.elapsed() < MAX_LOCK_WAIT => std::thread::sleep(LOCK_RETRY_PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another process has locked its folder")),
            // Some network file systems cannot lock a folder.
            locked => return Ok(locked.is_ok()),
        }
    }
}

/// Reads a user's tar of folders, which may be compressed by gzip. Drops the values of variables except those that decide which modules are called.
///
/// # Errors
/// Those of [`read_lock_file`].
pub fn read_tar(path: &Path) -> Result<Files, String> {
    let read = read_up_to(path, MAX_TAR_BYTES).and_then(gunzip);
    let bytes = read.map_err(|error| unreadable(path, &error))?;
    let mut files = Files::from_users_tar(&bytes).map_err(|refused| format!("{}: {refused}", path.display()))?;
    keep_deciding_values(&mut files);
    let called = called_folders(&files);
    files.insert_called_folders(called).map_err(|refused| format!("{}: {refused}", path.display()))?;
    Ok(files)
}

/// Decompresses what gzip has compressed, and leaves other bytes as they are.
fn gunzip(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut decompressed = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).take(MAX_TAR_BYTES as u64 + 1).read_to_end(&mut decompressed)?;
    match decompressed.len() {
        ..=MAX_TAR_BYTES => Ok(decompressed),
        _ => Err(io::Error::other(format!("the tar in it is larger than {} KiB", MAX_TAR_BYTES >> 10))),
    }
}

/// The names in a folder; true for a subfolder, false for a file or a link.
type FolderNames = BTreeMap<String, bool>;

/// Lists a folder. Names that are not UTF-8 are dropped, because no client reads them.
///
/// # Errors
/// The system's error, or too many names, with the folder.
fn names_in(folder: &Path) -> Result<FolderNames, String> {
    let list = || {
        let mut names = FolderNames::new();
        for (number, entry) in folder.read_dir()?.enumerate() {
            if number == MAX_ENTRIES {
                return Err(io::Error::other(format!("the folder has more than {MAX_ENTRIES} files")));
            }
            let entry = entry?;
            let is_folder = entry.file_type()?.is_dir();
            names.extend(entry.file_name().into_string().ok().map(|name| (name, is_folder)));
        }
        Ok(names)
    };
    list().map_err(|error| unreadable(folder, &error))
}

/// The kind of a command-line argument or configuration entry that names requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A provider or a module.
    Address,
    /// A `.terraform.lock.hcl`, under any name.
    LockFile,
    /// A folder where `init` runs, or with such folders below it.
    Folder,
    /// A tar of such folders.
    Tar,
    /// The JSON of an order, as larder prints it.
    OrderJson,
}

impl ArgumentKind {
    /// Interprets an argument; `path` is the argument as a path. The spellings `./NAME`, `/NAME` and `NAME/` are paths. A
    /// valid address is an address, unless a folder of that name has a configuration.
    ///
    /// # Errors
    /// Nothing exists at the path, or the argument is ambiguous; with the remedy.
    pub fn of(argument: &str, path: &Path, default_host: &Hostname) -> Result<Self, String> {
        if argument.is_empty() {
            return Err("the argument is empty".to_owned());
        }
        let is_written_as_path = argument.starts_with(['.', '/']) || argument.ends_with('/');
        if is_configuration(&path.file_name().unwrap_or_default().to_string_lossy()) && path.is_file() {
            return Err(format!("{argument:?} is one file of a configuration: name the folder of that file"));
        }
        let kind_of_path = || Self::of_path(path).ok_or_else(|| format!("there is no file and no folder {argument:?}"));
        if is_written_as_path || Self::by_ending(path).is_some_and(|kind| kind == Self::LockFile) {
            return kind_of_path();
        }
        match PackageSelector::parse(argument, default_host) {
            Ok(_) if path.is_dir() && names_in(path).is_ok_and(|names| has_configuration(&names)) => Err(format!(
                "{argument:?} is a folder with a configuration, and could be an address: write \"./{argument}\" for the folder, or \"{default_host}/{argument}\" for the address"
            )),
            Ok(_) if path.is_dir() => Ok(Self::Address),
            Ok(_) => Ok(Self::of_path(path).unwrap_or(Self::Address)),
            Err(bad) => kind_of_path().map_err(|none| format!("{none}, and: {bad}")),
        }
    }

    /// The kind of an existing path, by its name and type; `None` if it does not exist.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.metadata().ok()? {
            path if path.is_dir() => Some(Self::Folder),
            _ => Some(Self::by_ending(path).unwrap_or(Self::LockFile)),
        }
    }

    fn by_ending(path: &Path) -> Option<Self> {
        let is_gzipped_tar = |stem: &OsStr| Path::new(stem).extension().is_some_and(|extension| extension == "tar");
        match path.extension()?.to_str()? {
            "hcl" => Some(Self::LockFile),
            "tar" | "tgz" => Some(Self::Tar),
            "gz" if path.file_stem().is_some_and(is_gzipped_tar) => Some(Self::Tar),
            "json" => Some(Self::OrderJson),
            _ => None,
        }
    }
}

/// The files that a client would read.
#[derive(Debug)]
pub struct Collected {
    /// The files of the named directories and of the local modules that they call. Paths are relative to the working
    /// directory if it contains all of them, and otherwise to their common parent.
    pub files: Files,
    /// The folder on disk that the paths in `files` are relative to.
    pub top: PathBuf,
    /// The roots, as paths in `files`: the named directories. Where a named directory has no configuration, the directories
    /// below it that have one and that no other calls, or that have a lock file, are roots instead.
    pub roots: Vec<String>,
    /// Skipped paths with their reasons: unreadable folders, and files that vanished.
    pub passed_over: Vec<String>,
}

/// Reads directories; `values` are those of the roots' variables. Paths are resolved as clients do: first `..` in the text,
/// then links.
///
/// # Errors
/// The reason, for people, with the path.
pub fn collect(folders: &[PathBuf], values: &CommandLineValues) -> Result<Collected, String> {
    let mut loader = DirectoryLoader { values: values.as_file(), ..DirectoryLoader::default() };
    let (mut roots, mut root_candidates) = (BTreeSet::new(), BTreeSet::new());
    for named_folder in folders {
        let folder = named_folder.canonicalize().map_err(|error| unreadable(named_folder, &error))?;
        if has_configuration(&names_in(&folder)?) {
            roots.insert(folder);
            continue;
        }
        let candidates = loader.search(named_folder, &folder)?;
        if candidates.is_empty() {
            return Err(format!(
                "{}: neither this folder nor one below it has a configuration: no .tf, .tofu, .tf.json or .tofu.json file",
                named_folder.display()
            ));
        }
        root_candidates.extend(candidates);
    }
    let root_folders = roots.iter().chain(&root_candidates);
    loader.queue.extend(root_folders.map(|folder| (folder.clone(), folder.clone(), ModuleRole::Root)));
    while let Some((path, real, role)) = loader.queue.pop_front() {
        if loader.loaded.contains_key(&path) {
            continue;
        }
        if loader.loaded.len() >= MAX_FOLDERS {
            return Err(too_many_folders(&path));
        }
        let contents = loader.load_folder(&path, &real, role)?;
        loader.loaded.insert(path, contents);
    }
    loader.into_collected(&roots, &root_candidates)
}

/// The contents of a folder's files, by name; `None` for a lock file that cannot be read.
type FolderFiles = BTreeMap<String, Option<Vec<u8>>>;

/// Reads folders into [`Files`].
#[derive(Default)]
struct DirectoryLoader {
    /// The files of each folder read so far, by the folder's path as callers write it.
    loaded: BTreeMap<PathBuf, FolderFiles>,
    /// Those of them that exist.
    existing: BTreeSet<PathBuf>,
    /// Folders to read: the path as callers write it, the path without links, and the role.
    queue: VecDeque<(PathBuf, PathBuf, ModuleRole)>,
    passed_over: Vec<String>,
    /// The values of the roots' variables, as a file that is added to each root.
    values: Option<(String, Vec<u8>)>,
}

impl DirectoryLoader {
    /// Finds the folders with a configuration below `top`, which has none. `named_folder` is the same folder as the user
    /// named it.
    fn search(&mut self, named_folder: &Path, top: &Path) -> Result<BTreeSet<PathBuf>, String> {
        let mut found = BTreeSet::new();
        let mut level = vec![top.to_owned()];
        let mut visited_folders = 0;
        for _ in 0..MAX_SEARCH_DEPTH {
            for folder in std::mem::take(&mut level) {
                visited_folders += 1;
                if visited_folders > MAX_FOLDERS {
                    return Err(too_many_folders(named_folder));
                }
                // A folder that the user named must be readable; other folders need not be.
                let names = match names_in(&folder) {
                    Err(error) if folder != top => {
                        self.passed_over.push(error);
                        continue;
                    }
                    names => names?,
                };
                if has_configuration(&names) {
                    found.insert(folder.clone());
                }
                // Hidden folders belong to tools. Links are not followed.
                let subfolders = names.iter().filter(|(name, is_folder)| **is_folder && !name.starts_with('.'));
                level.extend(subfolders.map(|(name, _)| folder.join(name)));
            }
        }
        Ok(found)
    }

    /// Reads the files of a folder that a client reads.
    fn read_files(&mut self, folder: &Path) -> Result<FolderFiles, String> {
        let mut contents = BTreeMap::new();
        for (name, is_folder) in names_in(folder)? {
            let path = folder.join(&name);
            // Clients do not read a folder with a file's name either.
            if is_folder || !Files::are_read(&name) || path.is_dir() {
                continue;
            }
            match read(&path) {
                Ok(bytes) => drop(contents.insert(name, Some(bytes))),
                // The file was removed after its folder was listed. A dangling link fails: clients refuse it too.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                    self.passed_over.push(unreadable(&path, &error));
                }
                // It is of one root, and no reason to leave out the others.
                Err(error) if name == LOCK_FILE => {
                    self.passed_over.push(unreadable(&path, &error));
                    contents.insert(name, None);
                }
                Err(error) => return Err(unreadable(&path, &error)),
            }
        }
        Ok(contents)
    }

    /// Reads a folder, and enqueues the local modules that it calls.
    fn load_folder(&mut self, path: &Path, real: &Path, role: ModuleRole) -> Result<FolderFiles, String> {
        // Resolving reports the call of a missing folder.
        let Some(real) = real.canonicalize().ok().filter(|real| real.is_dir()) else { return Ok(FolderFiles::new()) };
        self.existing.insert(path.to_owned());
        let mut contents = self.read_files(&real)?;
        let mut files = Files::default();
        if role == ModuleRole::Root {
            contents.extend(self.values.clone().map(|(name, bytes)| (name, Some(bytes))));
            let real_tests = real.join(TEST_FOLDER);
            if real_tests.is_dir() {
                let tests = self.read_files(&real_tests)?;
                add_files(&mut files, &real_tests, TEST_FOLDER, &tests)?;
                self.loaded.insert(path.join(TEST_FOLDER), tests);
            }
        }
        add_files(&mut files, &real, TOP_FOLDER, &contents)?;
        let called = local_calls(&files, role)
            .into_iter()
            .map(|call_path| (resolve_path(path, &call_path), resolve_path(&real, &call_path), ModuleRole::Child));
        self.queue.extend(called);
        Ok(contents)
    }

    /// The loaded files with paths relative to one folder, and the roots.
    fn into_collected(
        self,
        roots: &BTreeSet<PathBuf>,
        root_candidates: &BTreeSet<PathBuf>,
    ) -> Result<Collected, String> {
        let mut top = self.loaded.keys().cloned().reduce(|a, b| common_parent(&a, &b)).unwrap_or_default();
        if let Ok(working_folder) = std::env::current_dir().and_then(|folder| folder.canonicalize())
            && top.starts_with(&working_folder)
        {
            top = working_folder;
        }
        let mut files = Files::default();
        for (path, contents) in &self.loaded {
            let relative = relative_path(path, &top)?;
            add_files(&mut files, path, &relative, contents)?;
            if contents.is_empty() && self.existing.contains(path) {
                files.insert_folder(&relative).map_err(|bad| format!("{}: {bad}", path.display()))?;
            }
        }
        keep_deciding_values(&mut files);
        let relative_paths = |folders: &BTreeSet<PathBuf>| {
            folders.iter().map(|folder| relative_path(folder, &top)).collect::<Result<BTreeSet<String>, _>>()
        };
        let (mut roots, root_candidates) = (relative_paths(roots)?, relative_paths(root_candidates)?);
        if !root_candidates.is_empty() {
            roots.extend(root_folders(&files).into_iter().filter(|folder| root_candidates.contains(folder)));
        }
        Ok(Collected { files, top, roots: roots.into_iter().collect(), passed_over: self.passed_over })
    }
}

/// The folder of `files` that contains all others.
const TOP_FOLDER: &str = "";

/// The paths of the local modules that the top folder of `files` calls, by either client's rules.
fn local_calls(files: &Files, role: ModuleRole) -> BTreeSet<String> {
    let calls_of =
        |client| configuration::read(files, TOP_FOLDER, role, client, NO_PACKAGE, &VariableValues::new()).calls;
    let calls = ClientKind::ALL.into_iter().flat_map(calls_of);
    calls
        .filter_map(|call| match call.source {
            ModuleSource::Local(path) => Some(path),
            ModuleSource::Registry { .. } => None,
        })
        .collect()
}

/// Resolves a call's path relative to a folder; `..` is applied to the text, as clients do.
fn resolve_path(folder: &Path, call_path: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for segment in call_path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(path.pop()),
            segment => path.push(segment),
        }
    }
    path
}

/// The common parent of two paths.
fn common_parent(a: &Path, b: &Path) -> PathBuf {
    a.components().zip(b.components()).take_while(|(a, b)| a == b).map(|(component, _)| component).collect()
}

/// A path relative to another one, in the form of [`Files`].
fn relative_path(path: &Path, top: &Path) -> Result<String, String> {
    let relative = path.strip_prefix(top).unwrap_or(path).to_str();
    relative.map(str::to_owned).ok_or_else(|| {
        let bad = BadFiles::Path(path.to_string_lossy().chars().take(128).collect());
        format!("{}: {bad}", path.display())
    })
}

/// Adds a folder's files, with `folder_path` as the folder's path; `folder` is named in the error.
fn add_files(files: &mut Files, folder: &Path, folder_path: &str, contents: &FolderFiles) -> Result<(), String> {
    let mut contents = contents.iter();
    let added = contents.try_for_each(|(name, bytes)| match bytes {
        Some(bytes) => files.insert(&child_path(folder_path, name), bytes),
        None => files.insert_unreadable(&child_path(folder_path, name)),
    });
    added.map_err(|bad| format!("{}: {bad}", folder.display()))
}

fn has_configuration(names: &FolderNames) -> bool {
    names.iter().any(|(name, is_folder)| !is_folder && Files::are_read(name) && is_configuration(name))
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}

fn too_many_folders(path: &Path) -> String {
    format!("{}: more than {MAX_FOLDERS} folders are in this folder or called from it: name fewer", path.display())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
mod tests;
