//! Lays out a commit's files as a checkout on Linux does, into a [`Tree`].

use std::sync::atomic::{AtomicBool, Ordering};

use gix_hash::ObjectId;
use gix_object::bstr::BString;
use gix_object::tree::EntryKind;
use gix_object::{Find, FindExt, FindHeader, Kind};
use gix_worktree::validate::path::component;

use super::attributes::{Attributes, costly};
use super::error::GitCodeError;
use super::fetch::Objects;
use crate::pack::{Tree, TreeError, TreePath};

/// The longest symlink target that common file systems accept.
const MAX_LINK: usize = 4095;
/// Size limit for one `.gitattributes` or `.gitmodules`; [`MOST_RULES`] limits all `.gitattributes` together. Parsed
/// rules take many times their size in memory.
const LARGEST_RULES: u64 = 256 << 10;
const MOST_RULES: u64 = 2 << 20;
/// Pointers of Git LFS are smaller than this, and begin with [`POINTER`].
const MAX_POINTER: usize = 1024;
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
/// Git's checks of names on Linux: `aux` is accepted, `.git` is refused in every spelling.
const NAMES: component::Options = component::Options { protect_windows: false, protect_hfs: false, protect_ntfs: true };

/// The layout of one repository's commit.
pub(super) struct Checkout<'a> {
    pub(super) objects: &'a Objects,
    /// The repository's origin.
    pub(super) origin: &'a str,
    /// The folder to lay it out in.
    pub(super) below: &'a TreePath,
    pub(super) largest_object: usize,
    pub(super) stop: &'a AtomicBool,
}

/// Result of a checkout: the submodules to fetch, and notes for the log.
#[derive(Debug, Default)]
pub(super) struct CheckoutResult {
    /// Submodules: path relative to the repository, and commit id.
    pub(super) submodules: Vec<(BString, ObjectId)>,
    /// The contents of `.gitmodules`.
    pub(super) modules: Option<Vec<u8>>,
    /// Paths of Git LFS pointers.
    pub(super) pointers: Vec<String>,
    /// Files with an unsupported encoding, with its name.
    pub(super) unknown_encodings: Vec<String>,
}

struct File {
    /// Relative to the repository.
    path: BString,
    id: ObjectId,
    kind: EntryKind,
}

impl Checkout<'_> {
    /// Peels tags. Returns the ids of the commit and its tree.
    pub(super) fn commit(&self, named: ObjectId) -> Result<(ObjectId, ObjectId), GitCodeError> {
        const MAX_TAGS: usize = 16;
        let mut id = named;
        let mut buffer = Vec::new();
        for _ in 0..MAX_TAGS {
            let object = self.objects.find(&id, &mut buffer).map_err(|e| self.trouble(&e))?;
            let broken = |e| self.trouble(&e);
            match object.kind {
                Kind::Commit => {
                    let mut commit = gix_object::CommitRefIter::from_bytes(object.data, gix_hash::Kind::Sha1);
                    return Ok((id, commit.tree_id().map_err(broken)?));
                }
                Kind::Tag => {
                    let tag = gix_object::TagRefIter::from_bytes(object.data, gix_hash::Kind::Sha1);
                    id = tag.target_id().map_err(broken)?;
                }
                Kind::Tree | Kind::Blob => break,
            }
        }
        Err(GitCodeError::unusable(self.origin, "a reference that leads to no commit"))
    }

    /// Lays out the tree object `root` in `tree`.
    pub(super) fn lay_out(&self, root: ObjectId, tree: &mut Tree) -> Result<CheckoutResult, GitCodeError> {
        let files = self.files(root, tree.limits().entries)?;
        self.measure(&files, tree)?;
        let mut buffer = Vec::new();
        let rules = self.rules(&files, &mut buffer)?;
        let mut attributes = Attributes::new(rules).map_err(|e| self.broken(&e))?;
        let mut laid_out = CheckoutResult::default();
        for file in files {
            self.check_cancelled()?;
            let relative =
                TreePath::parse(&file.path).map_err(|bad| self.refused(TreeError::bad_path(&file.path, &bad)))?;
            let path = self.below.join(&relative);
            let path = path.map_err(|bad| self.refused(TreeError::bad_path(&file.path, &bad)))?;
            match file.kind {
                EntryKind::Commit => {
                    tree.add_folder(&path).map_err(|e| self.refused(e))?;
                    laid_out.submodules.push((file.path, file.id));
                }
                EntryKind::Link => {
                    let to = self.blob(&file.id, &mut buffer)?;
                    if to.is_empty() || to.len() > MAX_LINK || to.contains(&0) {
                        return Err(self.refused(TreeError::refused(&path, "it is a link that no disk takes")));
                    }
                    tree.add_symlink(&path, to).map_err(|e| self.refused(e))?;
                }
                EntryKind::Blob | EntryKind::BlobExecutable | EntryKind::Tree => {
                    let bytes = self.blob(&file.id, &mut buffer)?;
                    if file.path == ".gitmodules" {
                        laid_out.modules = Some(bytes.to_vec());
                    }
                    if bytes.len() < MAX_POINTER && bytes.starts_with(POINTER) {
                        laid_out.pointers.push(path.to_string());
                    }
                    let treatment = attributes.of(file.path.as_ref(), self.objects).map_err(|e| self.broken(&e))?;
                    let treated = treatment.applied(bytes, &file.id);
                    if let Some(encoding) = treated.unknown_encoding {
                        laid_out.unknown_encodings.push(format!("{path} ({encoding})"));
                    }
                    let mode = if file.kind == EntryKind::BlobExecutable { 0o755 } else { 0o644 };
                    let mut bytes = treated.bytes.as_deref().unwrap_or(bytes);
                    tree.add_file(&path, mode, &mut bytes).map_err(|e| self.refused(e))?;
                }
            }
        }
        Ok(laid_out)
    }

    /// Lists all entries except folders, which follow from their contents. Folders count towards the limit, because one
    /// tree object may occur many times.
    fn files(&self, root: ObjectId, most: usize) -> Result<Vec<File>, GitCodeError> {
        let mut files = Vec::new();
        let mut trees = vec![(BString::default(), root)];
        let mut seen = 0;
        let mut buffer = Vec::new();
        while let Some((above, id)) = trees.pop() {
            self.check_cancelled()?;
            for entry in self.objects.find_tree_iter(&id, &mut buffer).map_err(|e| self.trouble(&e))? {
                let entry = entry.map_err(|_| GitCodeError::unusable(self.origin, "a tree that cannot be read"))?;
                seen += 1;
                if seen > most {
                    return Err(self.refused(TreeError::TooLarge(format!("{most} files, folders and links"))));
                }
                let path = if above.is_empty() { entry.filename.into() } else { joined(&above, entry.filename) };
                let kind = entry.mode.kind();
                let mode = (kind == EntryKind::Link).then_some(component::Mode::Symlink);
                if let Err(reason) = gix_worktree::validate::path::component(entry.filename, mode, NAMES) {
                    return Err(self.refused(TreeError::refused(
                        printable(&path),
                        format!("git lets nothing be called so: {reason}"),
                    )));
                }
                if let Err(bad) = TreePath::parse(&path) {
                    return Err(self.refused(TreeError::bad_path(&path, &bad)));
                }
                match kind {
                    EntryKind::Tree => trees.push((path, entry.oid.to_owned())),
                    kind => files.push(File { path, id: entry.oid.to_owned(), kind }),
                }
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(files)
    }

    /// Adds up the declared sizes before any file is written.
    fn measure(&self, files: &[File], tree: &Tree) -> Result<(), GitCodeError> {
        let most = tree.limits().bytes;
        let mut sum = tree.bytes();
        let mut rules: u64 = 0;
        for file in files.iter().filter(|file| file.kind != EntryKind::Commit) {
            self.check_cancelled()?;
            let header = FindHeader::try_header(self.objects, &file.id).map_err(|e| self.trouble(&e))?;
            let header =
                header.ok_or_else(|| GitCodeError::unusable(self.origin, "a pack without all of its files"))?;
            let largest = if file.is_read_by_git() { LARGEST_RULES } else { self.largest_object as u64 };
            if header.size > largest {
                let reason = format!("it has more than {largest} bytes");
                return Err(self.refused(TreeError::refused(printable(&file.path), reason)));
            }
            if file.is_rules() {
                rules += header.size;
            }
            if rules > MOST_RULES {
                let reason = format!("{MOST_RULES} bytes in its .gitattributes");
                return Err(self.refused(TreeError::TooLarge(reason)));
            }
            sum = sum.saturating_add(header.size);
            if sum > most {
                return Err(self.refused(TreeError::TooLarge(format!("{most} bytes in its files"))));
            }
        }
        Ok(())
    }

    /// Returns the `.gitattributes` files, sorted. Refuses patterns that are expensive to match.
    fn rules(&self, files: &[File], buffer: &mut Vec<u8>) -> Result<Vec<(BString, ObjectId)>, GitCodeError> {
        let mut rules = Vec::new();
        for file in files.iter().filter(|file| file.is_rules()) {
            self.check_cancelled()?;
            if let Some(pattern) = costly(self.blob(&file.id, buffer)?) {
                let reason = format!("its pattern {pattern:?} has more stars in it than larder follows");
                return Err(self.refused(TreeError::refused(printable(&file.path), reason)));
            }
            rules.push((file.path.clone(), file.id));
        }
        rules.sort();
        Ok(rules)
    }

    fn blob<'b>(&self, id: &ObjectId, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], GitCodeError> {
        let found = self.objects.try_find(id, buffer).map_err(|e| self.trouble(&e))?;
        match found {
            Some(object) if object.kind == Kind::Blob => Ok(object.data),
            Some(_) | None => Err(GitCodeError::unusable(self.origin, "a pack without all of its files")),
        }
    }

    pub(super) fn check_cancelled(&self) -> Result<(), GitCodeError> {
        if self.stop.load(Ordering::Relaxed) { Err(GitCodeError::Broken) } else { Ok(()) }
    }

    fn trouble(&self, error: &gix_error::Error) -> GitCodeError {
        GitCodeError::of(self.origin, self.largest_object, error)
    }

    fn broken(&self, error: &std::io::Error) -> GitCodeError {
        GitCodeError::unusable(self.origin, format!(".gitattributes that cannot be read: {error}"))
    }

    fn refused(&self, error: TreeError) -> GitCodeError {
        GitCodeError::tree(self.origin, error)
    }
}

impl File {
    fn is_called(&self, name: &[u8]) -> bool {
        self.path.rsplit(|byte| *byte == b'/').next() == Some(name)
    }

    fn is_rules(&self) -> bool {
        self.is_called(b".gitattributes") && self.is_regular()
    }

    /// Returns true for files that git itself interprets.
    fn is_read_by_git(&self) -> bool {
        self.is_rules() || self.path == ".gitmodules"
    }

    fn is_regular(&self) -> bool {
        matches!(self.kind, EntryKind::Blob | EntryKind::BlobExecutable)
    }
}

fn joined(above: &[u8], name: &[u8]) -> BString {
    [above, b"/", name].concat().into()
}

fn printable(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).take(256).collect()
}
