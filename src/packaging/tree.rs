//! A file tree that is never written to disk as files and folders. Names and modes are in memory, and the contents of
//! all files are in one spool file, one after the other. A name from upstream therefore cannot touch a file of this
//! machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytesize::ByteSize;

use super::path::{BadTreePath, TreePath, escape_controls};

const COPY_BUFFER_BYTES: usize = 256 * 1024;
/// Linux's limit for a link target, in bytes.
const MAX_TARGET_BYTES: usize = 4096;
/// The limit for all names and link targets together, in bytes, because they stay in memory.
const MAX_NAME_BYTES: usize = 64 << 20;

/// Limits of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// The most files, folders and links.
    pub entries: usize,
    /// The most bytes in all files together.
    pub bytes: u64,
    /// The most bytes of one file.
    pub file_bytes: u64,
}

impl Default for TreeLimits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 4 << 30, file_bytes: 4 << 30 }
    }
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEntry {
    /// A folder.
    Folder,
    /// A file.
    File(TreeFile),
    /// A symbolic link and its unresolved target.
    Link(Vec<u8>),
}

/// A file of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeFile {
    /// The permission bits, 0o777 at most.
    pub mode: u32,
    /// The offset of its bytes in the spool.
    pub offset: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Why a tree cannot be read, unpacked or packed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// One entry is refused.
    #[error("its entry {entry:?} is refused: {reason}")]
    Refused {
        /// The entry's path, printable.
        entry: String,
        /// The reason.
        reason: String,
    },
    /// A limit is exceeded; the text names it.
    #[error("it has more than {0}")]
    TooLarge(String),
    /// A file is larger than the limit for one file.
    #[error("{}", describe_large_file(file.as_deref(), *size_bytes, *limit))]
    LargeFile {
        /// The file's path, printable; `None` where git does not tell it.
        file: Option<String>,
        /// Its size in bytes, where it is known.
        size_bytes: Option<u64>,
        /// The limit in bytes.
        limit: u64,
    },
    /// The source failed, is damaged or has another format.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The disk under the spool failed; the sender is not at fault.
    #[error("its files could not be spooled: {0}")]
    Spool(Arc<io::Error>),
}

/// Names a file and its size beside the limit. Sizes that read the same are given in bytes.
fn describe_large_file(file: Option<&str>, size_bytes: Option<u64>, limit: u64) -> String {
    let file = file.unwrap_or("a file of its repository");
    let shown = |bytes: u64| ByteSize(bytes).to_string();
    match size_bytes {
        None => format!("{file} is larger than the {} that larder takes", shown(limit)),
        Some(size) if shown(size) == shown(limit) => format!("{file} has {size} bytes; larder takes {limit}"),
        Some(size) => format!("{file} is {}; larder takes {}", shown(size), shown(limit)),
    }
}

impl TreeError {
    /// Refuses one entry.
    pub fn refused(entry: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Self::Refused { entry: entry.to_string(), reason: reason.into() }
    }

    /// Refuses an entry for its path; `shown` is the path as the source spells it.
    pub fn bad_path(shown: &[u8], bad: &BadTreePath) -> Self {
        let shown: String = String::from_utf8_lossy(shown).chars().take(256).collect();
        Self::refused(shown, bad.to_string())
    }

    /// Refuses a file for its size.
    pub fn large_file(file: impl std::fmt::Display, size_bytes: Option<u64>, limit: u64) -> Self {
        Self::LargeFile { file: Some(file.to_string()), size_bytes, limit }
    }

    /// Checks a count against its limit; `counted` says what it counts.
    ///
    /// # Errors
    /// [`TreeError::TooLarge`].
    pub fn check_limit<N: PartialOrd + std::fmt::Display>(count: N, limit: N, counted: &str) -> Result<(), Self> {
        if count > limit { Err(Self::TooLarge(format!("{limit} {counted}"))) } else { Ok(()) }
    }

    pub(super) fn spool(error: io::Error) -> Self {
        Self::Spool(Arc::new(error))
    }
}

/// A file tree with names in memory and contents in a spool file.
#[derive(Debug)]
pub struct Tree {
    entries: BTreeMap<TreePath, TreeEntry>,
    spool: File,
    spooled_bytes: u64,
    limits: TreeLimits,
    name_bytes: usize,
}

impl Tree {
    /// Creates an empty tree. `spool` must be an empty file that nothing else writes to.
    pub fn new(spool: File, limits: TreeLimits) -> Self {
        Self { entries: BTreeMap::new(), spool, spooled_bytes: 0, limits, name_bytes: 0 }
    }

    /// Adds a folder and its parents. A folder that exists already is not an error.
    ///
    /// # Errors
    /// [`TreeError::Refused`] if the path or one of its parents is a file or a link.
    pub fn add_folder(&mut self, path: &TreePath) -> Result<(), TreeError> {
        self.ensure_folder(path, path)
    }

    /// Adds a folder and its parents on behalf of `entry`, which errors name.
    fn ensure_folder(&mut self, path: &TreePath, entry: &TreePath) -> Result<(), TreeError> {
        let mut missing = Vec::new();
        let mut next = Some(path.clone());
        while let Some(folder) = next.filter(|folder| !folder.is_root()) {
            match self.entries.get(&folder) {
                Some(TreeEntry::Folder) => break,
                Some(_) if folder == *entry => {
                    return Err(TreeError::refused(entry, "another entry has the same name"));
                }
                Some(_) => {
                    return Err(TreeError::refused(entry, format!("its parent {folder} is not a folder")));
                }
                None => next = folder.parent_folder(),
            }
            missing.push(folder);
        }
        missing.iter().rev().try_for_each(|folder| self.insert(folder, TreeEntry::Folder))
    }

    /// Adds a symbolic link. Its target is escaped as paths are, so that it leads to the same entry.
    ///
    /// # Errors
    /// [`TreeError::Refused`] if the name is taken, or if the target is longer than Linux allows.
    pub fn add_symlink(&mut self, path: &TreePath, target: &[u8]) -> Result<(), TreeError> {
        let target = escape_controls(target);
        if target.len() > MAX_TARGET_BYTES {
            return Err(TreeError::refused(path, "its link target is too long"));
        }
        self.check_free_and_add_parents(path)?;
        self.insert(path, TreeEntry::Link(target.into_owned()))
    }

    /// Adds a file as [`Self::add_file`] does, in place of an earlier file with the same name.
    ///
    /// # Errors
    /// Those of [`Self::add_file`], but for a file with the same name.
    pub fn put_file(&mut self, path: &TreePath, mode: u32, contents: &mut dyn Read) -> Result<u64, TreeError> {
        // The names of both count towards the limit.
        if let Some(TreeEntry::File(_)) = self.entries.get(path) {
            self.entries.remove(path);
        }
        self.add_file(path, mode, contents)
    }

    /// Adds a file with these contents and returns their size in bytes. Only the permission bits of `mode` are used.
    ///
    /// # Errors
    /// [`TreeError::Refused`] if the name is taken, [`TreeError::TooLarge`] past the limits,
    /// [`TreeError::Unreadable`] if `contents` fail, [`TreeError::Spool`] if the disk fails.
    pub fn add_file(&mut self, path: &TreePath, mode: u32, contents: &mut dyn Read) -> Result<u64, TreeError> {
        self.check_free_and_add_parents(path)?;
        let offset = self.spooled_bytes;
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        loop {
            let read = match contents.read(&mut buffer) {
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(TreeError::Unreadable(format!("its entry {path}: {e}"))),
            };
            if read == 0 {
                break;
            }
            TreeError::check_limit(self.spooled_bytes + read as u64, self.limits.bytes, "bytes in its files")?;
            if self.spooled_bytes - offset + read as u64 > self.limits.file_bytes {
                return Err(TreeError::large_file(path, None, self.limits.file_bytes));
            }
            self.spool.write_all_at(&buffer[..read], self.spooled_bytes).map_err(TreeError::spool)?;
            self.spooled_bytes += read as u64;
        }
        let size_bytes = self.spooled_bytes - offset;
        self.insert(path, TreeEntry::File(TreeFile { mode: mode & 0o777, offset, size_bytes }))?;
        Ok(size_bytes)
    }

    /// The entry at a path; the root is a folder.
    pub fn get(&self, path: &TreePath) -> Option<&TreeEntry> {
        if path.is_root() { Some(&TreeEntry::Folder) } else { self.entries.get(path) }
    }

    /// All entries, each folder before its contents.
    pub fn entries(&self) -> impl Iterator<Item = (&TreePath, &TreeEntry)> {
        self.entries.iter()
    }

    /// All entries below a folder, each folder before its contents.
    pub fn entries_below(&self, folder: &TreePath) -> impl Iterator<Item = (&TreePath, &TreeEntry)> {
        // `0` follows `/` in ASCII, so it ends the range of paths below the folder.
        let (first, end) = match folder.is_root() {
            true => (Vec::new(), None),
            false => ([folder.as_bytes(), b"/"].concat(), Some([folder.as_bytes(), b"0"].concat())),
        };
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.entries.range::<[u8], _>((Bound::Excluded(first.as_slice()), end))
    }

    /// Reads the bytes of a file from its offset in the spool.
    pub fn contents(&self, file: &TreeFile) -> impl Read + '_ {
        Contents { spool: &self.spool, offset: file.offset, end: file.offset + file.size_bytes }
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.spooled_bytes
    }

    /// The limits that the tree was created with.
    pub fn limits(&self) -> TreeLimits {
        self.limits
    }

    /// Checks the size that a file claims, before it is read.
    ///
    /// # Errors
    /// [`TreeError::LargeFile`] past the limit for one file.
    pub fn check_file_size(&self, path: &TreePath, size_bytes: u64) -> Result<(), TreeError> {
        match size_bytes > self.limits.file_bytes {
            true => Err(TreeError::large_file(path, Some(size_bytes), self.limits.file_bytes)),
            false => Ok(()),
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        (self.spooled_bytes, self.name_bytes) = (0, 0);
    }

    /// Checks that no entry has this path, and adds its parents.
    fn check_free_and_add_parents(&mut self, path: &TreePath) -> Result<(), TreeError> {
        if path.is_root() || self.entries.contains_key(path) {
            return Err(TreeError::refused(path, "another entry has the same name"));
        }
        match path.parent_folder() {
            Some(parent) => self.ensure_folder(&parent, path),
            None => Ok(()),
        }
    }

    fn insert(&mut self, path: &TreePath, entry: TreeEntry) -> Result<(), TreeError> {
        TreeError::check_limit(self.entries.len() + 1, self.limits.entries, "files, folders and links")?;
        let target_bytes = if let TreeEntry::Link(target) = &entry { target.len() } else { 0 };
        self.name_bytes += path.as_bytes().len() + target_bytes;
        TreeError::check_limit(self.name_bytes, MAX_NAME_BYTES, "bytes in its names")?;
        self.entries.insert(path.clone(), entry);
        Ok(())
    }
}

struct Contents<'a> {
    spool: &'a File,
    offset: u64,
    end: u64,
}

impl Read for Contents<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = usize::try_from(self.end - self.offset).unwrap_or(buffer.len());
        let length = buffer.len().min(remaining);
        let read = self.spool.read_at(&mut buffer[..length], self.offset)?;
        if read == 0 && length > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += read as u64;
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
    fn added_entries_can_be_read_back() {
        let mut tree = tree(TreeLimits::default());
        tree.add_file(&path("a/b/main.tf"), 0o104_755, &mut &b"one"[..]).unwrap();
        tree.add_file(&path("a/empty"), 0o644, &mut io::empty()).unwrap();
        tree.add_symlink(&path("a/link"), b"b/main.tf").unwrap();
        tree.add_folder(&path("a/b")).unwrap();
        let names: Vec<_> = tree.entries().map(|(path, _)| path.to_string()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/main.tf", "a/empty", "a/link"]);
        let Some(TreeEntry::File(file)) = tree.get(&path("a/b/main.tf")) else { panic!() };
        assert_eq!((file.mode, file.size_bytes), (0o755, 3));
        let mut read = Vec::new();
        tree.contents(file).read_to_end(&mut read).unwrap();
        assert_eq!(read, b"one");
    }

    #[test]
    fn duplicate_names_and_entries_below_files_or_links_are_refused() {
        let mut tree = tree(TreeLimits::default());
        tree.add_file(&path("a"), 0o644, &mut &b"1"[..]).unwrap();
        tree.add_symlink(&path("l"), b"/etc").unwrap();
        for refused in [
            tree.add_file(&path("a"), 0o644, &mut &b"2"[..]).map(drop),
            tree.add_file(&path("a/b"), 0o644, &mut &b"2"[..]).map(drop),
            tree.add_file(&path("l/b"), 0o644, &mut &b"2"[..]).map(drop),
            tree.add_folder(&path("a")),
            tree.add_symlink(&path("l"), b"x"),
            tree.add_symlink(&TreePath::root(), b"x"),
        ] {
            assert!(matches!(refused, Err(TreeError::Refused { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_tree_limits_its_entries_and_bytes() {
        let mut limited_entries = tree(TreeLimits { entries: 2, bytes: 10, file_bytes: 10 });
        limited_entries.add_file(&path("a/b"), 0o644, &mut &b"1"[..]).unwrap();
        assert!(matches!(limited_entries.add_folder(&path("c")), Err(TreeError::TooLarge(_))));
        let mut limited_bytes = tree(TreeLimits { entries: 9, bytes: 10, file_bytes: 20 });
        let endless = &mut io::repeat(0);
        assert!(matches!(limited_bytes.add_file(&path("a"), 0o644, endless), Err(TreeError::TooLarge(_))));
        let mut limited_file = tree(TreeLimits { entries: 9, bytes: 100, file_bytes: 10 });
        limited_file.add_file(&path("ten"), 0o644, &mut &[0; 10][..]).unwrap();
        let refused = limited_file.add_file(&path("a/b"), 0o644, &mut &[0; 11][..]).unwrap_err();
        assert_eq!(refused.to_string(), "a/b is larger than the 10 B that larder takes");
        let claims = |size| limited_file.check_file_size(&path("c"), size).map_err(|error| error.to_string());
        assert_eq!((claims(10), claims(33 << 20)), (Ok(()), Err("c is 33.0 MiB; larder takes 10 B".to_owned())));
    }
}
