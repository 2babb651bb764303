//! Lays out a commit's files in a [`Tree`], as git's checkout on Linux does on a disk.

use std::sync::atomic::{AtomicBool, Ordering};

use gix_hash::ObjectId;
use gix_object::bstr::BString;
use gix_object::tree::EntryKind;
use gix_object::{Find, FindExt, FindHeader, Kind};
use gix_worktree::validate::path::component;

use super::attributes::{Attributes, find_costly_pattern};
use super::connection::Objects;
use super::error::RepositoryFailure;
use crate::packaging::{Tree, TreeError, TreePath, printable};

/// The longest symlink target that common file systems accept.
const MAX_SYMLINK_BYTES: usize = 4095;
/// Size limit for one `.gitattributes` or `.gitmodules`. Parsed files take many times their size in memory.
const MAX_GIT_FILE_BYTES: u64 = 256 << 10;
/// Size limit for all `.gitattributes` together.
const MAX_ATTRIBUTES_BYTES: u64 = 2 << 20;
/// Pointers of Git LFS are smaller than this, and begin with [`LFS_POINTER_START`].
const MAX_LFS_POINTER_BYTES: usize = 1024;
const LFS_POINTER_START: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
/// Git's checks of names on Linux: `aux` is accepted, `.git` is refused in every spelling.
const NAME_CHECKS: component::Options =
    component::Options { protect_windows: false, protect_hfs: false, protect_ntfs: true };

/// The layout of one repository's commit.
pub(super) struct Checkout<'a> {
    pub(super) objects: &'a Objects,
    /// The folder of the tree to lay the commit out in.
    pub(super) target: &'a TreePath,
    /// The size of the file for which a pack with all files was refused, where it is known.
    pub(super) refused_file_bytes: Option<u64>,
    pub(super) stop: &'a AtomicBool,
}

/// Result of a checkout: the submodules to fetch, and notes for the log.
#[derive(Debug, Default)]
pub(super) struct CheckoutResult {
    /// Submodules: path relative to the repository, and commit id.
    pub(super) submodules: Vec<(BString, ObjectId)>,
    /// The contents of `.gitmodules`.
    pub(super) gitmodules: Option<Vec<u8>>,
    /// Paths of Git LFS pointers.
    pub(super) lfs_pointers: Vec<String>,
    /// Paths of files with an unsupported encoding, each with the name of the encoding.
    pub(super) unknown_encodings: Vec<String>,
}

struct File {
    /// The path in the repository.
    path: BString,
    id: ObjectId,
    kind: EntryKind,
}

impl Checkout<'_> {
    /// Follows tags from `id` to a commit. Returns the ids of the commit and its tree.
    pub(super) fn peel_to_commit(&self, id: ObjectId) -> Result<(ObjectId, ObjectId), RepositoryFailure> {
        const MAX_NESTED_TAGS: usize = 16;
        let mut id = id;
        let mut buffer = Vec::new();
        for _ in 0..MAX_NESTED_TAGS {
            let object = self.objects.find(&id, &mut buffer)?;
            match object.kind {
                Kind::Commit => {
                    let mut commit = gix_object::CommitRefIter::from_bytes(object.data, gix_hash::Kind::Sha1);
                    return Ok((id, commit.tree_id()?));
                }
                Kind::Tag => {
                    id = gix_object::TagRefIter::from_bytes(object.data, gix_hash::Kind::Sha1).target_id()?;
                }
                Kind::Tree | Kind::Blob => break,
            }
        }
        Err(RepositoryFailure::unusable("a reference that leads to no commit"))
    }

    /// Lays out the tree object `root` in `tree`.
    pub(super) fn lay_out(&self, root: ObjectId, tree: &mut Tree) -> Result<CheckoutResult, RepositoryFailure> {
        let files = self.list_files(root, tree.limits().entries)?;
        self.check_sizes(&files, tree)?;
        let mut buffer = Vec::new();
        let attributes_files = self.attributes_files(&files, &mut buffer)?;
        let mut attributes = Attributes::new(attributes_files).map_err(unreadable_attributes)?;
        let mut result = CheckoutResult::default();
        for file in files {
            self.check_cancelled()?;
            let path = TreePath::parse(&file.path).and_then(|path| self.target.join(&path));
            let path = path.map_err(|error| TreeError::bad_path(&file.path, &error))?;
            match file.kind {
                EntryKind::Commit => {
                    tree.add_folder(&path)?;
                    result.submodules.push((file.path, file.id));
                }
                EntryKind::Link => {
                    let link_target = self.blob(&file.id, &mut buffer)?;
                    if link_target.is_empty() || link_target.len() > MAX_SYMLINK_BYTES || link_target.contains(&0) {
                        let reason = "it is a symbolic link whose target no file system accepts";
                        return Err(TreeError::refused(&path, reason).into());
                    }
                    tree.add_symlink(&path, link_target)?;
                }
                EntryKind::Blob | EntryKind::BlobExecutable | EntryKind::Tree => {
                    let bytes = self.blob(&file.id, &mut buffer)?;
                    if file.path == ".gitmodules" {
                        result.gitmodules = Some(bytes.to_vec());
                    }
                    if bytes.len() < MAX_LFS_POINTER_BYTES && bytes.starts_with(LFS_POINTER_START) {
                        result.lfs_pointers.push(path.to_string());
                    }
                    let converted = attributes.convert(file.path.as_ref(), bytes, &file.id, &**self.objects);
                    let converted = converted.map_err(unreadable_attributes)?;
                    if let Some(encoding) = converted.unknown_encoding {
                        result.unknown_encodings.push(format!("{path} ({encoding})"));
                    }
                    let mode = if file.kind == EntryKind::BlobExecutable { 0o755 } else { 0o644 };
                    let mut bytes = converted.bytes.as_deref().unwrap_or(bytes);
                    tree.add_file(&path, mode, &mut bytes)?;
                }
            }
        }
        Ok(result)
    }

    /// Lists all entries except folders, which follow from their contents. Folders count towards the limit, because one
    /// tree object may occur many times.
    fn list_files(&self, root: ObjectId, max_entries: usize) -> Result<Vec<File>, RepositoryFailure> {
        let mut files = Vec::new();
        let mut pending_trees = vec![(BString::default(), root)];
        let mut count = 0;
        let mut buffer = Vec::new();
        while let Some((folder, id)) = pending_trees.pop() {
            self.check_cancelled()?;
            for entry in self.objects.find_tree_iter(&id, &mut buffer)? {
                let entry = entry.map_err(|_| RepositoryFailure::unusable("a tree that cannot be read"))?;
                count += 1;
                TreeError::check_limit(count, max_entries, "files, folders and links")?;
                let separator: &[u8] = if folder.is_empty() { b"" } else { b"/" };
                let path = BString::from([&folder, separator, entry.filename].concat());
                let kind = entry.mode.kind();
                let mode = (kind == EntryKind::Link).then_some(component::Mode::Symlink);
                component(entry.filename, mode, NAME_CHECKS).map_err(|reason| {
                    TreeError::refused(printable(&path), format!("git does not allow this name: {reason}"))
                })?;
                TreePath::parse(&path).map_err(|error| TreeError::bad_path(&path, &error))?;
                match kind {
                    EntryKind::Tree => pending_trees.push((path, entry.oid.to_owned())),
                    kind => files.push(File { path, id: entry.oid.to_owned(), kind }),
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// Adds up the declared sizes before any file is written.
    fn check_sizes(&self, files: &[File], tree: &Tree) -> Result<(), RepositoryFailure> {
        let mut total = tree.bytes();
        let mut attributes_total: u64 = 0;
        let mut omitted = Vec::new();
        for file in files.iter().filter(|file| file.kind != EntryKind::Commit) {
            self.check_cancelled()?;
            let max_file_bytes = tree.limits().file_bytes;
            let large_file = |size| TreeError::large_file(printable(&file.path), size, max_file_bytes);
            let header = match FindHeader::try_header(&**self.objects, &file.id)? {
                Some(header) => header,
                None if self.objects.lacks_large_files => {
                    omitted.push(file);
                    continue;
                }
                None => return Err(missing_file()),
            };
            if file.is_read_by_git() {
                let counted = format!("bytes in {}, which git reads", printable(&file.path));
                TreeError::check_limit(header.size, MAX_GIT_FILE_BYTES, &counted)?;
            }
            if header.size > max_file_bytes {
                return Err(large_file(Some(header.size)).into());
            }
            if file.is_attributes_file() {
                attributes_total += header.size;
            }
            TreeError::check_limit(attributes_total, MAX_ATTRIBUTES_BYTES, "bytes in its .gitattributes")?;
            total = total.saturating_add(header.size);
            TreeError::check_limit(total, tree.limits().bytes, "bytes in its files")?;
        }
        match omitted.first() {
            None => Ok(()),
            Some(file) => {
                // Of several files nobody knows which one has the size.
                let size_bytes = self.refused_file_bytes.filter(|_| omitted.iter().all(|other| other.id == file.id));
                Err(TreeError::large_file(printable(&file.path), size_bytes, tree.limits().file_bytes).into())
            }
        }
    }

    /// Returns the `.gitattributes` files, sorted. Refuses patterns that are expensive to match.
    fn attributes_files(
        &self,
        files: &[File],
        buffer: &mut Vec<u8>,
    ) -> Result<Vec<(BString, ObjectId)>, RepositoryFailure> {
        let mut found = Vec::new();
        for file in files.iter().filter(|file| file.is_attributes_file()) {
            self.check_cancelled()?;
            if let Some(pattern) = find_costly_pattern(self.blob(&file.id, buffer)?) {
                let reason = format!("its pattern {pattern:?} has more stars than larder supports");
                return Err(TreeError::refused(printable(&file.path), reason).into());
            }
            found.push((file.path.clone(), file.id));
        }
        found.sort();
        Ok(found)
    }

    fn blob<'b>(&self, id: &ObjectId, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], RepositoryFailure> {
        let found = self.objects.try_find(id, buffer)?.filter(|object| object.kind == Kind::Blob);
        found.map(|object| object.data).ok_or_else(missing_file)
    }

    pub(super) fn check_cancelled(&self) -> Result<(), RepositoryFailure> {
        if self.stop.load(Ordering::Relaxed) { Err(RepositoryFailure::BridgeClosed) } else { Ok(()) }
    }
}

fn unreadable_attributes(error: std::io::Error) -> RepositoryFailure {
    RepositoryFailure::unusable(format!(".gitattributes that cannot be read: {error}"))
}

fn missing_file() -> RepositoryFailure {
    RepositoryFailure::unusable("a pack without all of its files")
}

impl File {
    fn is_attributes_file(&self) -> bool {
        let name = self.path.rsplit(|byte| *byte == b'/').next();
        name == Some(b".gitattributes") && matches!(self.kind, EntryKind::Blob | EntryKind::BlobExecutable)
    }

    /// Returns true for files that git itself interprets.
    fn is_read_by_git(&self) -> bool {
        self.is_attributes_file() || self.path == ".gitmodules"
    }
}
