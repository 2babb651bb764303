//! Reads configurations from disk: the files that a client would read, and the local modules that they call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::configuration::GivenValues;
use super::configuration::{self, Inputs, ModuleRole, ModuleSource, NO_PACKAGE, TEST_FOLDER, is_configuration};
use super::file::{self, FolderEntry};
use super::request::ClientKind;
use super::resolve::uncalled_folders;
use super::{BadFiles, Files};

/// The maximum number of folders that are read or searched.
const MAX_FOLDERS: usize = 4096;
/// The maximum depth of the search for configurations below a folder without one.
const MAX_SEARCH_DEPTH: usize = 16;

/// The files that a client would read.
#[derive(Debug)]
pub struct Collected {
    /// The files of the named directories and of the local modules that they call. Paths are relative to the working
    /// directory if it contains all of them, and otherwise to their common parent.
    pub files: Files,
    /// The roots, as paths in `files`: the named directories. Where a named directory has no configuration, the directories
    /// below it that have one and that no other calls are roots instead.
    pub roots: Vec<String>,
    /// Skipped paths with their reasons: unreadable folders, and files that vanished.
    pub passed_over: Vec<String>,
}

/// Reasons why directories are not read.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The system's error.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file is refused.
    #[error("{folder}: {bad}")]
    Bad {
        /// The folder of the file.
        folder: PathBuf,
        /// The reason.
        bad: BadFiles,
    },
    /// A folder without a file that a client reads.
    #[error(
        "{0}: neither this folder nor one below it has a configuration: no .tf, .tofu, .tf.json or .tofu.json file"
    )]
    NoConfiguration(PathBuf),
    /// Too many folders.
    #[error("{0}: more than {MAX_FOLDERS} folders are in this folder or called from it: name fewer")]
    TooMany(PathBuf),
}

/// Reads directories; `values` are those of the roots' variables. Paths are resolved as clients do: first `..` in the text,
/// then links.
///
/// # Errors
/// [`CollectError`]
pub fn collect(folders: &[PathBuf], values: &GivenValues) -> Result<Collected, CollectError> {
    let mut loader = DirectoryLoader { values: values.as_file(), ..DirectoryLoader::default() };
    let (mut roots, mut root_candidates) = (BTreeSet::new(), BTreeSet::new());
    for named_folder in folders {
        let folder = named_folder.canonicalize().map_err(|error| unreadable(named_folder, error))?;
        if has_configuration(&names_in(&folder)?) {
            roots.insert(folder);
            continue;
        }
        let candidates = loader.search(named_folder, &folder)?;
        if candidates.is_empty() {
            return Err(CollectError::NoConfiguration(named_folder.clone()));
        }
        root_candidates.extend(candidates);
    }
    let root_folders = roots.iter().chain(&root_candidates);
    root_folders.for_each(|folder| loader.enqueue(folder.clone(), folder.clone(), ModuleRole::Root));
    loader.load_all()?;
    loader.into_collected(&roots, &root_candidates)
}

/// Reads folders into [`Files`].
#[derive(Default)]
struct DirectoryLoader {
    /// The files of each folder read so far, by the folder's path as callers write it.
    loaded: BTreeMap<PathBuf, BTreeMap<String, Vec<u8>>>,
    /// Folders to read: the path as callers write it, the path without links, and the role.
    queue: VecDeque<(PathBuf, PathBuf, ModuleRole)>,
    passed_over: Vec<String>,
    /// The values of the roots' variables, as a file that is added to each root.
    values: Option<(String, Vec<u8>)>,
}

impl DirectoryLoader {
    /// Finds the folders with a configuration below `top`, which has none. `named_folder` is the same folder as the user
    /// named it.
    fn search(&mut self, named_folder: &Path, top: &Path) -> Result<BTreeSet<PathBuf>, CollectError> {
        let mut found = BTreeSet::new();
        let mut level = vec![top.to_owned()];
        let mut visited_folders = 0;
        for _ in 0..MAX_SEARCH_DEPTH {
            let mut next_level = Vec::new();
            for folder in std::mem::take(&mut level) {
                visited_folders += 1;
                if visited_folders > MAX_FOLDERS {
                    return Err(CollectError::TooMany(named_folder.to_owned()));
                }
                // A folder that the user named must be readable; other folders need not be.
                let names = match names_in(&folder) {
                    Err(error) if folder != top => {
                        self.passed_over.push(error.to_string());
                        continue;
                    }
                    names => names?,
                };
                if has_configuration(&names) {
                    found.insert(folder.clone());
                }
                // Hidden folders belong to tools. Links are not followed.
                let subfolders =
                    names.iter().filter(|(name, entry)| **entry == FolderEntry::Folder && !name.starts_with('.'));
                next_level.extend(subfolders.map(|(name, _)| folder.join(name)));
            }
            level = next_level;
        }
        Ok(found)
    }

    fn enqueue(&mut self, path: PathBuf, real: PathBuf, role: ModuleRole) {
        self.queue.push_back((path, real, role));
    }

    fn load_all(&mut self) -> Result<(), CollectError> {
        while let Some((path, real, role)) = self.queue.pop_front() {
            if self.loaded.contains_key(&path) {
                continue;
            }
            if self.loaded.len() >= MAX_FOLDERS {
                return Err(CollectError::TooMany(path));
            }
            self.load_folder(path, &real, role)?;
        }
        Ok(())
    }

    /// Reads the files of a folder that a client reads.
    fn read_files(&mut self, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, CollectError> {
        let mut contents = BTreeMap::new();
        for (name, entry) in names_in(folder)? {
            let path = folder.join(&name);
            // Clients do not read a folder with a file's name either.
            if entry == FolderEntry::Folder || !Files::are_read(&name) || path.is_dir() {
                continue;
            }
            match file::read(&path) {
                Ok(bytes) => drop(contents.insert(name, bytes)),
                // The file was removed after its folder was listed. A dangling link fails: clients refuse it too.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                    self.passed_over.push(unreadable(&path, error).to_string());
                }
                Err(error) => return Err(unreadable(&path, error)),
            }
        }
        Ok(contents)
    }

    /// Loads a folder and enqueues the local modules that it calls.
    fn load_folder(&mut self, path: PathBuf, real: &Path, role: ModuleRole) -> Result<(), CollectError> {
        // A missing folder has no files; resolving reports the call.
        let Ok(real) = real.canonicalize() else {
            self.loaded.insert(path, BTreeMap::new());
            return Ok(());
        };
        if !real.is_dir() {
            self.loaded.insert(path, BTreeMap::new());
            return Ok(());
        }
        let mut contents = self.read_files(&real)?;
        if role == ModuleRole::Root {
            contents.extend(self.values.clone());
        }
        let mut files = as_files(&real, TOP_FOLDER, &contents)?;
        if role == ModuleRole::Root {
            let (path, real) = (path.join(TEST_FOLDER), real.join(TEST_FOLDER));
            if real.is_dir() {
                let tests = self.read_files(&real)?;
                files = tests
                    .iter()
                    .try_fold(files, |files, (name, bytes)| with_file(files, &real, TEST_FOLDER, name, bytes))?;
                self.loaded.insert(path, tests);
            }
        }
        for call_path in local_calls(&files, role) {
            self.enqueue(resolve_path(&path, &call_path), resolve_path(&real, &call_path), ModuleRole::Child);
        }
        self.loaded.insert(path, contents);
        Ok(())
    }

    /// The loaded files with paths relative to one folder, and the roots.
    fn into_collected(
        self,
        roots: &BTreeSet<PathBuf>,
        root_candidates: &BTreeSet<PathBuf>,
    ) -> Result<Collected, CollectError> {
        let mut top = self.loaded.keys().cloned().reduce(|a, b| common_parent(&a, &b)).unwrap_or_default();
        if let Ok(working_folder) = std::env::current_dir().and_then(|folder| folder.canonicalize())
            && top.starts_with(&working_folder)
        {
            top = working_folder;
        }
        let mut files = Files::default();
        for (path, contents) in &self.loaded {
            let folder = relative_path(path, &top)?;
            for (name, bytes) in contents {
                files = with_file(files, path, &folder, name, bytes)?;
            }
        }
        configuration::keep_deciding_values(&mut files);
        let relative_paths = |folders: &BTreeSet<PathBuf>| {
            folders.iter().map(|folder| relative_path(folder, &top)).collect::<Result<BTreeSet<String>, _>>()
        };
        let (mut roots, root_candidates) = (relative_paths(roots)?, relative_paths(root_candidates)?);
        if !root_candidates.is_empty() {
            roots.extend(uncalled_folders(&files).into_iter().filter(|folder| root_candidates.contains(folder)));
        }
        Ok(Collected { files, roots: roots.into_iter().collect(), passed_over: self.passed_over })
    }
}

/// The folder of `files` that contains all others.
const TOP_FOLDER: &str = "";

/// The paths of the local modules that the top folder of `files` calls, by either client's rules.
fn local_calls(files: &Files, role: ModuleRole) -> BTreeSet<String> {
    let calls_of = |client| configuration::read(files, TOP_FOLDER, role, client, NO_PACKAGE, &Inputs::new()).calls;
    let calls = calls_of(ClientKind::Terraform).into_iter().chain(calls_of(ClientKind::Opentofu));
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
            ".." => {
                path.pop();
            }
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
fn relative_path(path: &Path, top: &Path) -> Result<String, CollectError> {
    let components = path.strip_prefix(top).unwrap_or(path).components();
    let segments = components.filter_map(|component| match component {
        Component::Normal(segment) => Some(segment.to_str()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    });
    let segments: Option<Vec<&str>> = segments.collect();
    let invalid_path = || CollectError::Bad {
        folder: path.to_owned(),
        bad: BadFiles::Path(path.to_string_lossy().chars().take(128).collect()),
    };
    segments.map(|segments| segments.join("/")).ok_or_else(invalid_path)
}

/// The files of one folder; `folder_path` is its path in them.
fn as_files(folder: &Path, folder_path: &str, contents: &BTreeMap<String, Vec<u8>>) -> Result<Files, CollectError> {
    contents
        .iter()
        .try_fold(Files::default(), |files, (name, bytes)| with_file(files, folder, folder_path, name, bytes))
}

/// Adds a file at `folder_path` with this name; `folder` is named in the error.
fn with_file(
    mut files: Files,
    folder: &Path,
    folder_path: &str,
    name: &str,
    bytes: &[u8],
) -> Result<Files, CollectError> {
    let path = if folder_path.is_empty() { name.to_owned() } else { format!("{folder_path}/{name}") };
    match files.insert(&path, bytes) {
        Ok(()) => Ok(files),
        Err(bad) => Err(CollectError::Bad { folder: folder.to_owned(), bad }),
    }
}

fn has_configuration(names: &BTreeMap<String, FolderEntry>) -> bool {
    names.iter().any(|(name, entry)| *entry != FolderEntry::Folder && Files::are_read(name) && is_configuration(name))
}

fn names_in(folder: &Path) -> Result<BTreeMap<String, FolderEntry>, CollectError> {
    file::entries(folder).map_err(|error| unreadable(folder, error))
}

fn unreadable(path: &Path, error: io::Error) -> CollectError {
    CollectError::Unreadable { path: path.to_owned(), error }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
mod tests;
