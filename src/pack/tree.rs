//! A tree of files, as it would lie on a disk, without lying there: names and modes in memory, contents one after
//! the other in a spool. So nothing that upstream names can touch a file of this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::path::{BadPath, TreePath};

/// How much is copied at a time, in bytes.
const COPIED_AT_ONCE: usize = 256 * 1024;
/// The longest target of a link, in bytes: what Linux takes.
const LONGEST_TARGET: usize = 4096;
/// How many bytes its names and targets may have in all: they are kept in memory.
const MOST_NAME_BYTES: usize = 64 << 20;

/// What a tree may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// How many files, folders and links.
    pub entries: usize,
    /// How many bytes in all its files.
    pub bytes: u64,
}

impl Default for TreeLimits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 4 << 30 }
    }
}

/// One thing in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Its permission bits, 0o777 at most.
        mode: u32,
        /// Where its bytes begin in the spool.
        at: u64,
        /// How many there are.
        size_bytes: u64,
    },
    /// A symbolic link, and where it leads, as it was written.
    Link(Vec<u8>),
}

/// Why something cannot be in a tree.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// What upstream names there is refused.
    #[error("its entry {entry:?} is refused: {why}")]
    Refused {
        /// The entry, for people.
        entry: String,
        /// Why.
        why: String,
    },
    /// It is more than may be.
    #[error("it has more than {0}")]
    TooLarge(String),
    /// What it was to be read from broke, or is no such thing.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The disk under the spool failed: no fault of whoever sent it.
    #[error("its files could not be spooled: {0}")]
    Spool(Arc<io::Error>),
}

impl TreeError {
    /// An entry that is refused.
    pub fn refused(entry: impl std::fmt::Display, why: impl Into<String>) -> Self {
        Self::Refused { entry: entry.to_string(), why: why.into() }
    }

    pub(super) fn spool(error: io::Error) -> Self {
        Self::Spool(Arc::new(error))
    }
}

/// The tree.
#[derive(Debug)]
pub struct Tree {
    entries: BTreeMap<TreePath, Entry>,
    spool: File,
    spooled: u64,
    limits: TreeLimits,
    name_bytes: usize,
}

impl Tree {
    /// An empty one, whose files go into `spool`: an empty file that nobody else writes to.
    pub fn new(spool: File, limits: TreeLimits) -> Self {
        Self { entries: BTreeMap::new(), spool, spooled: 0, limits, name_bytes: 0 }
    }

    /// Adds a folder, and those above it. One that is there already is no news.
    ///
    /// # Errors
    /// [`TreeError::Refused`] where something else has that name, or a name above it.
    pub fn folder(&mut self, path: &TreePath) -> Result<(), TreeError> {
        self.folder_for(path, path)
    }

    /// Adds a folder, and those above it, for an entry of that name.
    fn folder_for(&mut self, path: &TreePath, entry: &TreePath) -> Result<(), TreeError> {
        let mut missing = Vec::new();
        let mut next = Some(path.clone());
        while let Some(folder) = next.filter(|folder| !folder.is_root()) {
            match self.entries.get(&folder) {
                Some(Entry::Folder) => break,
                Some(_) if folder == *entry => {
                    return Err(TreeError::refused(entry, "something else has the same name"));
                }
                Some(_) => {
                    return Err(TreeError::refused(entry, format!("{folder}, which it is to be in, is no folder")));
                }
                None => next = folder.parent(),
            }
            missing.push(folder);
        }
        missing.iter().rev().try_for_each(|folder| self.insert(folder, Entry::Folder))
    }

    /// Gives a file or a link a second name, as a hard link does. Its bytes are kept once.
    ///
    /// # Errors
    /// [`TreeError::Refused`] where there is no such file or link, or the name is taken.
    pub fn hard_link(&mut self, path: &TreePath, to: &TreePath) -> Result<(), TreeError> {
        match self.get(to) {
            Some(entry @ (Entry::File { .. } | Entry::Link(_))) => {
                let entry = entry.clone();
                self.make_way_for(path)?;
                self.insert(path, entry)
            }
            Some(Entry::Folder) => Err(TreeError::refused(path, "it is a hard link to a folder")),
            None => Err(TreeError::refused(path, "it is a hard link to nothing that came before it")),
        }
    }

    /// Adds a link.
    ///
    /// # Errors
    /// As [`file`](Self::file); [`TreeError::Refused`] for a target that is longer than any file system takes.
    pub fn link(&mut self, path: &TreePath, to: &[u8]) -> Result<(), TreeError> {
        if to.len() > LONGEST_TARGET {
            return Err(TreeError::refused(path, "it is a link that leads too far"));
        }
        self.make_way_for(path)?;
        self.insert(path, Entry::Link(to.to_vec()))
    }

    /// Adds a file with what `from` reads, and says how many bytes that was. Of `mode` only the permission bits count.
    ///
    /// # Errors
    /// [`TreeError::Refused`] where the name is taken, [`TreeError::TooLarge`] past the limits,
    /// [`TreeError::Unreadable`] where `from` fails, [`TreeError::Spool`] where the disk does.
    pub fn file(&mut self, path: &TreePath, mode: u32, from: &mut dyn Read) -> Result<u64, TreeError> {
        self.make_way_for(path)?;
        let at = self.spooled;
        let mut buffer = vec![0; COPIED_AT_ONCE];
        loop {
            let read = match from.read(&mut buffer) {
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(TreeError::Unreadable(format!("its entry {path}: {e}"))),
            };
            if read == 0 {
                break;
            }
            if self.spooled + read as u64 > self.limits.bytes {
                return Err(TreeError::TooLarge(format!("{} bytes in its files", self.limits.bytes)));
            }
            self.spool.write_all_at(&buffer[..read], self.spooled).map_err(TreeError::spool)?;
            self.spooled += read as u64;
        }
        let size_bytes = self.spooled - at;
        self.insert(path, Entry::File { mode: mode & 0o777, at, size_bytes })?;
        Ok(size_bytes)
    }

    /// What has a path; of the root, a folder.
    pub fn get(&self, path: &TreePath) -> Option<&Entry> {
        if path.is_root() { Some(&Entry::Folder) } else { self.entries.get(path) }
    }

    /// Everything in it, a folder before what is below it.
    pub fn entries(&self) -> impl Iterator<Item = (&TreePath, &Entry)> {
        self.entries.iter()
    }

    /// Everything below a folder, a folder before what is below it.
    pub fn below(&self, folder: &TreePath) -> impl Iterator<Item = (&TreePath, &Entry)> {
        // What follows `/` in ASCII ends what begins with it.
        let (first, end) = match folder.is_root() {
            true => (Vec::new(), None),
            false => ([folder.as_bytes(), b"/"].concat(), Some([folder.as_bytes(), b"0"].concat())),
        };
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.entries.range::<[u8], _>((Bound::Excluded(first.as_slice()), end))
    }

    /// The bytes of a file that begins at `at` in the spool.
    pub fn contents(&self, at: u64, size_bytes: u64) -> impl Read + '_ {
        Contents { spool: &self.spool, at, end: at.saturating_add(size_bytes).min(self.spooled) }
    }

    /// How many bytes its files have.
    pub fn bytes(&self) -> u64 {
        self.spooled
    }

    /// What it may have.
    pub fn limits(&self) -> TreeLimits {
        self.limits
    }

    fn make_way_for(&mut self, path: &TreePath) -> Result<(), TreeError> {
        if path.is_root() || self.entries.contains_key(path) {
            return Err(TreeError::refused(path, "something else has the same name"));
        }
        match path.parent() {
            Some(parent) => self.folder_for(&parent, path),
            None => Ok(()),
        }
    }

    fn insert(&mut self, path: &TreePath, entry: Entry) -> Result<(), TreeError> {
        if self.entries.len() >= self.limits.entries {
            return Err(TreeError::TooLarge(format!("{} files, folders and links", self.limits.entries)));
        }
        let target = if let Entry::Link(to) = &entry { to.len() } else { 0 };
        self.name_bytes += path.as_bytes().len() + target;
        if self.name_bytes > MOST_NAME_BYTES {
            return Err(TreeError::TooLarge(format!("{MOST_NAME_BYTES} bytes in its names")));
        }
        self.entries.insert(path.clone(), entry);
        Ok(())
    }
}

impl TreeError {
    /// A path that cannot be in a tree; `shown` is the name as it was given.
    pub fn bad_path(shown: &[u8], bad: &BadPath) -> Self {
        let shown: String = String::from_utf8_lossy(shown).chars().take(256).collect();
        Self::refused(shown, bad.to_string())
    }
}

struct Contents<'a> {
    spool: &'a File,
    at: u64,
    end: u64,
}

impl Read for Contents<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(buffer.len());
        let most = buffer.len().min(left);
        let read = self.spool.read_at(&mut buffer[..most], self.at)?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    fn tree(limits: TreeLimits) -> Tree {
        Tree::new(tempfile::tempfile().unwrap(), limits)
    }

    #[test]
    fn what_is_put_into_a_tree_is_there_again() {
        let mut tree = tree(TreeLimits::default());
        tree.file(&path("a/b/main.tf"), 0o104_755, &mut &b"one"[..]).unwrap();
        tree.file(&path("a/empty"), 0o644, &mut io::empty()).unwrap();
        tree.link(&path("a/link"), b"b/main.tf").unwrap();
        tree.folder(&path("a/b")).unwrap();
        let names: Vec<_> = tree.entries().map(|(path, _)| path.to_string()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/main.tf", "a/empty", "a/link"]);
        let Some(Entry::File { mode: 0o755, at, size_bytes: 3 }) = tree.get(&path("a/b/main.tf")) else { panic!() };
        let mut read = Vec::new();
        tree.contents(*at, 3).read_to_end(&mut read).unwrap();
        assert_eq!(read, b"one");
    }

    #[test]
    fn a_name_is_had_once_and_nothing_lies_below_a_file_or_a_link() {
        let mut tree = tree(TreeLimits::default());
        tree.file(&path("a"), 0o644, &mut &b"1"[..]).unwrap();
        tree.link(&path("l"), b"/etc").unwrap();
        for refused in [
            tree.file(&path("a"), 0o644, &mut &b"2"[..]).map(drop),
            tree.file(&path("a/b"), 0o644, &mut &b"2"[..]).map(drop),
            tree.file(&path("l/b"), 0o644, &mut &b"2"[..]).map(drop),
            tree.folder(&path("a")),
            tree.link(&path("l"), b"x"),
            tree.link(&TreePath::root(), b"x"),
        ] {
            assert!(matches!(refused, Err(TreeError::Refused { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_tree_has_limits() {
        let mut few = tree(TreeLimits { entries: 2, bytes: 10 });
        few.file(&path("a/b"), 0o644, &mut &b"1"[..]).unwrap();
        assert!(matches!(few.folder(&path("c")), Err(TreeError::TooLarge(_))));
        let mut small = tree(TreeLimits { entries: 9, bytes: 10 });
        let bomb = &mut io::repeat(0);
        assert!(matches!(small.file(&path("a"), 0o644, bomb), Err(TreeError::TooLarge(_))));
    }
}
