//! Reads configurations from disk: the files that a client would read, and the local modules that they call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::configuration::GivenValues;
use super::configuration::{self, FolderRole, Inputs, ModuleSource, TEST_FOLDER, is_configuration};
use super::file::{self, FolderEntry};
use super::request::ClientKind;
use super::resolve::uncalled;
use super::{BadFiles, Files};

/// The maximum number of folders.
const MAX_FOLDERS: usize = 4096;
/// Depth of the search for configurations below a folder without one.
const DEEPEST: usize = 16;

/// The files that a client would read.
#[derive(Debug)]
pub struct Collected {
    /// Their files, and those of the local modules that they call, by paths below the folder that all of them are in;
    /// below the working directory, if it has them all: then a path is what people would write there.
    pub files: Files,
    /// The roots, relative to that folder: the named directories. A directory without configuration stands for those
    /// below it that have one and are called by no other.
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
        /// Its folder.
        folder: PathBuf,
        /// The reason.
        bad: BadFiles,
    },
    /// No file that a client reads.
    #[error(
        "{0}: there is no configuration in it, nor in a folder below it: no .tf, .tofu, .tf.json or .tofu.json file"
    )]
    Nothing(PathBuf),
    /// Too many folders.
    #[error("{0}: there are more than {MAX_FOLDERS} folders in it, or called from there: name fewer")]
    TooMany(PathBuf),
}

/// Reads directories, and gives these values to their roots. Paths are resolved like the client does: first `..` in the
/// text, then links.
///
/// # Errors
/// [`CollectError`]
pub fn collect(folders: &[PathBuf], values: &GivenValues) -> Result<Collected, CollectError> {
    let mut collecting = DirectoryLoader { values: values.as_file(), ..DirectoryLoader::default() };
    let (mut roots, mut searched) = (BTreeSet::new(), BTreeSet::new());
    for given in folders {
        let folder = given.canonicalize().map_err(|error| unreadable(given, error))?;
        if has_configuration(&names_in(&folder)?) {
            roots.insert(folder);
            continue;
        }
        let below = collecting.search(given, &folder)?;
        if below.is_empty() {
            return Err(CollectError::Nothing(given.clone()));
        }
        searched.extend(below);
    }
    let started = roots.iter().chain(&searched);
    started.for_each(|folder| collecting.next(folder.clone(), folder.clone(), FolderRole::Root));
    collecting.load_all()?;
    collecting.below_one_folder(&roots, &searched)
}

/// Reads folders into [`Files`].
#[derive(Default)]
struct DirectoryLoader {
    /// Files read so far, by the path under which callers know them.
    read: BTreeMap<PathBuf, BTreeMap<String, Vec<u8>>>,
    /// Folders to read: that path, the real path, and the role.
    waiting: VecDeque<(PathBuf, PathBuf, FolderRole)>,
    passed_over: Vec<String>,
    /// The values of all roots, as a file beside each.
    values: Option<(String, Vec<u8>)>,
}

impl DirectoryLoader {
    /// The folders with a configuration below one without.
    fn search(&mut self, given: &Path, top: &Path) -> Result<BTreeSet<PathBuf>, CollectError> {
        let mut found = BTreeSet::new();
        let mut level = vec![top.to_owned()];
        let mut looked_at = 0;
        for _ in 0..DEEPEST {
            let mut next = Vec::new();
            for folder in std::mem::take(&mut level) {
                looked_at += 1;
                if looked_at > MAX_FOLDERS {
                    return Err(CollectError::TooMany(given.to_owned()));
                }
                // A named root must be readable; other folders need not be.
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
                // Hidden folders belong to tools. A link may lead anywhere.
                let folders =
                    names.iter().filter(|(name, entry)| **entry == FolderEntry::Folder && !name.starts_with('.'));
                next.extend(folders.map(|(name, _)| folder.join(name)));
            }
            level = next;
        }
        Ok(found)
    }

    fn next(&mut self, path: PathBuf, real: PathBuf, role: FolderRole) {
        self.waiting.push_back((path, real, role));
    }

    fn load_all(&mut self) -> Result<(), CollectError> {
        while let Some((path, real, role)) = self.waiting.pop_front() {
            if self.read.contains_key(&path) {
                continue;
            }
            if self.read.len() >= MAX_FOLDERS {
                return Err(CollectError::TooMany(path));
            }
            self.folder(path, &real, role)?;
        }
        Ok(())
    }

    /// Reads the files of a folder.
    fn read_all(&mut self, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, CollectError> {
        let mut read = BTreeMap::new();
        for (name, entry) in names_in(folder)? {
            let path = folder.join(&name);
            // Clients do not read a folder with a file's name either.
            if entry == FolderEntry::Folder || !Files::are_read(&name) || path.is_dir() {
                continue;
            }
            match file::read(&path) {
                Ok(bytes) => drop(read.insert(name, bytes)),
                // An editor or a pull removed it meanwhile; a dangling link is the client's problem, too.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                    self.passed_over.push(unreadable(&path, error).to_string());
                }
                Err(error) => return Err(unreadable(&path, error)),
            }
        }
        Ok(read)
    }

    fn folder(&mut self, path: PathBuf, real: &Path, role: FolderRole) -> Result<(), CollectError> {
        // Without the folder its call cannot be resolved, which is reported there.
        let Ok(real) = real.canonicalize() else {
            self.read.insert(path, BTreeMap::new());
            return Ok(());
        };
        if !real.is_dir() {
            self.read.insert(path, BTreeMap::new());
            return Ok(());
        }
        let mut contents = self.read_all(&real)?;
        if role == FolderRole::Root {
            contents.extend(self.values.clone());
        }
        let mut files = in_memory(&real, "", &contents)?;
        if role == FolderRole::Root {
            let (path, real) = (path.join(TEST_FOLDER), real.join(TEST_FOLDER));
            if real.is_dir() {
                let tests = self.read_all(&real)?;
                files =
                    tests.iter().try_fold(files, |files, (name, bytes)| and(files, &real, TEST_FOLDER, name, bytes))?;
                self.read.insert(path, tests);
            }
        }
        for to in local_calls(&files, role) {
            self.next(from(&path, &to), from(&real, &to), FolderRole::Called);
        }
        self.read.insert(path, contents);
        Ok(())
    }

    /// The files, relative to one folder.
    fn below_one_folder(
        self,
        roots: &BTreeSet<PathBuf>,
        searched: &BTreeSet<PathBuf>,
    ) -> Result<Collected, CollectError> {
        let mut top = self.read.keys().cloned().reduce(|a, b| common(&a, &b)).unwrap_or_default();
        if let Ok(here) = std::env::current_dir().and_then(|here| here.canonicalize())
            && top.starts_with(&here)
        {
            top = here;
        }
        let mut files = Files::default();
        for (path, contents) in &self.read {
            let folder = below(path, &top)?;
            for (name, bytes) in contents {
                files = and(files, path, &folder, name, bytes)?;
            }
        }
        configuration::forget_other_values(&mut files);
        let named = |folders: &BTreeSet<PathBuf>| {
            folders.iter().map(|folder| below(folder, &top)).collect::<Result<BTreeSet<String>, _>>()
        };
        let (mut roots, searched) = (named(roots)?, named(searched)?);
        if !searched.is_empty() {
            roots.extend(uncalled(&files).into_iter().filter(|folder| searched.contains(folder)));
        }
        Ok(Collected { files, roots: roots.into_iter().collect(), passed_over: self.passed_over })
    }
}

/// The local modules that a folder calls, by either client's rules.
fn local_calls(files: &Files, role: FolderRole) -> BTreeSet<String> {
    let calls_of = |client| configuration::read(files, "", role, client, "", &Inputs::new()).calls;
    let calls = calls_of(ClientKind::Terraform).into_iter().chain(calls_of(ClientKind::Opentofu));
    calls
        .filter_map(|call| match call.source {
            ModuleSource::Local(to) => Some(to),
            ModuleSource::Registry { .. } => None,
        })
        .collect()
}

/// The target of a path relative to a folder.
fn from(folder: &Path, to: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for segment in to.split('/') {
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

/// The common parent of both.
fn common(a: &Path, b: &Path) -> PathBuf {
    a.components().zip(b.components()).take_while(|(a, b)| a == b).map(|(component, _)| component).collect()
}

/// A path relative to another one, in the form of [`Files`].
fn below(path: &Path, top: &Path) -> Result<String, CollectError> {
    let rest = path.strip_prefix(top).unwrap_or(path).components();
    let segments = rest.filter_map(|component| match component {
        Component::Normal(segment) => Some(segment.to_str()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    });
    let segments: Option<Vec<&str>> = segments.collect();
    let bad = || CollectError::Bad {
        folder: path.to_owned(),
        bad: BadFiles::Path(path.to_string_lossy().chars().take(128).collect()),
    };
    segments.map(|segments| segments.join("/")).ok_or_else(bad)
}

fn in_memory(folder: &Path, shown: &str, contents: &BTreeMap<String, Vec<u8>>) -> Result<Files, CollectError> {
    contents.iter().try_fold(Files::default(), |files, (name, bytes)| and(files, folder, shown, name, bytes))
}

fn and(mut files: Files, folder: &Path, below: &str, name: &str, bytes: &[u8]) -> Result<Files, CollectError> {
    let path = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
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
