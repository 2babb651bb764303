//! Packs a tree into the module archive that clients download: links are replaced by what they point to, so that only
//! folders and files remain. Equal trees give equal bytes on any machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use flate2::{Compression, GzBuilder};

use super::chunks::FixedChunkWriter;
use super::tar::{BLOCK, TarWriter};
use super::{Tree, TreeEntry, TreeError, TreeFile, TreePath};
use crate::digest::{Digest, Hasher, HashingReader};

/// The version of the packer. Any change to the bytes of an archive needs a new version: other headers, another level,
/// or other output of the encoder (zlib-rs, which `Cargo.lock` pins; the golden test detects a change). Tree digests do
/// not depend on it.
pub const PACKER: u32 = 1;

const COMPRESSION_LEVEL: u32 = 6;
/// The operating system "unknown" in a gzip header (RFC 1952).
const UNKNOWN_SYSTEM: u8 = 255;
/// The size of each write to the encoder, in bytes. The encoder's output depends on it.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// The length from which a name may need a tar entry of its own.
const MIN_LONG_NAME_BYTES: u64 = 100;

/// The result of packing a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackResult {
    /// The digest of the tree: SHA-256 over `larder tree 1\n`, then over each entry, in the order of the paths as
    /// bytes. An entry is one byte for its kind (`d` a folder, `f` a file, `x` a file that its owner may execute), its
    /// path relative to the root, and a zero byte. For a file, the 32 bytes of the SHA-256 of its contents follow.
    /// Links are followed first. Every folder is an entry, except the root. The digest depends neither on the format
    /// that a tree arrived in nor on the packer.
    pub tree_digest: Digest,
    /// Notes for the operator about links that were left out.
    pub notes: Vec<String>,
}

/// Follows the links below `root` and packs it as `tar.gz`, as [`ResolvedTree::write`] does.
///
/// # Errors
/// Errors of [`resolve`] and of [`ResolvedTree::write`].
pub fn pack(tree: &Tree, root: &TreePath, out: &mut dyn Write) -> Result<PackResult, TreeError> {
    resolve(tree, root)?.write(out)
}

impl ResolvedTree<'_> {
    /// An upper bound for the size of the archive in bytes, before it is written: the file contents, 1 KiB for each
    /// entry, and more for long names.
    pub fn max_archive_bytes(&self) -> u64 {
        let entry_bytes = |(path, entry): (&TreePath, &ResolvedEntry)| {
            let content_bytes = if let ResolvedEntry::File(file) = entry { file.size_bytes } else { 0 };
            let name_bytes = path.as_bytes().len() as u64;
            let long_name_bytes = if name_bytes < MIN_LONG_NAME_BYTES { 0 } else { 1024 + name_bytes };
            content_bytes.saturating_add(1024 + long_name_bytes)
        };
        self.entries.iter().map(entry_bytes).fold(2 * BLOCK as u64, u64::saturating_add)
    }

    /// Writes a `tar.gz`: links replaced by copies, entries sorted, no owners, no times. Files keep their permission
    /// bits and are at least readable by their owner; folders have 0755. Contents are not loaded into memory.
    ///
    /// # Errors
    /// [`TreeError::Spool`] if reading or writing fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<PackResult, TreeError> {
        let gzip =
            GzBuilder::new().mtime(0).operating_system(UNKNOWN_SYSTEM).write(out, Compression::new(COMPRESSION_LEVEL));
        let mut tar = TarWriter::new(FixedChunkWriter::new(gzip, CHUNK_BYTES));
        let mut tree_hasher = Hasher::new();
        tree_hasher.update(b"larder tree 1\n");
        for (path, entry) in &self.entries {
            let kind = match entry {
                ResolvedEntry::Folder => b"d",
                ResolvedEntry::File(file) if file.mode & 0o100 == 0 => b"f",
                ResolvedEntry::File(_) => b"x",
            };
            tree_hasher.update(kind);
            tree_hasher.update(path.as_bytes());
            tree_hasher.update(b"\0");
            match entry {
                ResolvedEntry::Folder => tar.folder(path.as_bytes()).map_err(TreeError::spool)?,
                ResolvedEntry::File(file) => {
                    let mut contents = HashingReader::new(self.tree.contents(file));
                    let written = tar.file(path.as_bytes(), file.mode | 0o400, file.size_bytes, &mut contents);
                    written.map_err(TreeError::spool)?;
                    tree_hasher.update(contents.digest().as_bytes());
                }
            }
        }
        let gzip = tar.end().map_err(TreeError::spool)?.inner;
        gzip.finish().and_then(Write::flush).map_err(TreeError::spool)?;
        Ok(PackResult { tree_digest: tree_hasher.finish().0, notes: self.notes.clone() })
    }
}

/// The most links that one path may lead through, as in Linux.
const MAX_LINKS: usize = 40;
/// The limit for the work of following links, in bytes of visited names. It corresponds to a few seconds.
const MAX_WORK_BYTES: u64 = 1 << 30;
/// The work of visiting a name in addition to its length, in bytes.
const WORK_PER_NAME: u64 = 128;
/// The most notes for one reason; further links are only counted.
const MAX_NOTES: usize = 20;
/// The limit for all names together, in bytes, because they stay in memory.
const MAX_NAME_BYTES: usize = 64 << 20;

/// An entry after links were followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResolvedEntry {
    Folder,
    File(TreeFile),
}

/// The contents of a folder after links were followed, ready to be packed.
#[derive(Debug)]
pub struct ResolvedTree<'t> {
    tree: &'t Tree,
    /// Entries by path relative to the root.
    entries: BTreeMap<TreePath, ResolvedEntry>,
    notes: Vec<String>,
}

/// Follows every link below `root`; targets may be anywhere in the tree. A link that leads out of the tree, to an absolute
/// path, nowhere, into itself or in a circle is left out and noted: clients install such a module, and mostly nobody follows
/// the link. The root's own `.git` is left out.
///
/// # Errors
/// [`TreeError::Refused`] for a root that is not a folder; [`TreeError::TooLarge`] if the copies exceed the tree's limits,
/// or if following links is too much work.
pub fn resolve<'t>(tree: &'t Tree, root: &TreePath) -> Result<ResolvedTree<'t>, TreeError> {
    match tree.get(root) {
        Some(TreeEntry::Folder) => {}
        Some(_) => return Err(TreeError::refused(root, "it is the root of the module, but not a folder")),
        None => return Err(TreeError::refused(root, "it is the root of the module, but does not exist")),
    }
    let mut resolver = LinkResolver {
        tree,
        entries: BTreeMap::new(),
        dropped: BTreeMap::new(),
        bytes: 0,
        name_bytes: 0,
        work: 0,
        links: Vec::new(),
    };
    let mut pending = vec![FolderCopy { source: root.clone(), destination: TreePath::root(), last_link: None }];
    while let Some(folder) = pending.pop() {
        resolver.copy(&folder, &mut pending)?;
    }
    Ok(ResolvedTree { tree, notes: resolver.notes(), entries: resolver.entries })
}

/// A folder to copy.
struct FolderCopy {
    source: TreePath,
    destination: TreePath,
    /// The index in [`LinkResolver::links`] of the last link on the way to this copy.
    last_link: Option<usize>,
}

struct LinkResolver<'t> {
    tree: &'t Tree,
    entries: BTreeMap<TreePath, ResolvedEntry>,
    /// The links that are left out. They are sets, so that a link in a folder that is copied several times is noted once.
    dropped: BTreeMap<DropReason, BTreeSet<&'t TreePath>>,
    bytes: u64,
    name_bytes: usize,
    work: u64,
    /// The links to folders that were followed: the path of each, and the index of the link that led to it.
    links: Vec<(&'t TreePath, Option<usize>)>,
}

enum LinkTarget {
    Folder(TreePath),
    File(TreeFile),
    /// There is nothing to copy.
    None(DropReason),
}

/// Why a link is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DropReason {
    /// Its target does not exist.
    Missing,
    /// It leads to a folder that contains it.
    Recursive,
    /// It leads out of the tree, or to an absolute path.
    Outside,
    /// It leads to itself, or through more links than Linux follows.
    Circular,
}

impl DropReason {
    /// The reason in the singular and in the plural, after the link or the links.
    fn phrases(self) -> [&'static str; 2] {
        match self {
            Self::Missing => ["has no target", "have no target"],
            Self::Recursive => ["points to a folder that contains it", "point to folders that contain them"],
            Self::Outside => ["leads out of the package", "lead out of the package"],
            Self::Circular => ["leads in a circle", "lead in circles"],
        }
    }
}

impl<'t> LinkResolver<'t> {
    /// Copies the contents of a folder. Folders that links point to are added to `pending`.
    fn copy(&mut self, folder: &FolderCopy, pending: &mut Vec<FolderCopy>) -> Result<(), TreeError> {
        for (path, entry) in self.tree.entries_below(&folder.source) {
            // Entries that are left out count too. Otherwise a folder of such entries could be copied endlessly, once
            // per link.
            self.add_work(path.as_bytes().len() + folder.destination.as_bytes().len())?;
            let Some(relative) = path.below(&folder.source) else { continue };
            let destination =
                folder.destination.join(&relative).map_err(|bad| TreeError::refused(path, bad.to_string()))?;
            if destination.names().next() == Some(b".git") {
                continue;
            }
            match entry {
                TreeEntry::Folder => self.insert(destination, ResolvedEntry::Folder)?,
                TreeEntry::File(file) => self.insert(destination, ResolvedEntry::File(*file))?,
                TreeEntry::Link(target) => match self.follow(path, target)? {
                    LinkTarget::File(file) => self.insert(destination, ResolvedEntry::File(file))?,
                    LinkTarget::Folder(source) => match self.record_folder_link(path, &source, folder.last_link)? {
                        Some(link) => {
                            // `pending` keeps the path in memory until the folder is copied, once for each link to it.
                            self.name_bytes = self.name_bytes.saturating_add(source.as_bytes().len());
                            self.insert(destination.clone(), ResolvedEntry::Folder)?;
                            pending.push(FolderCopy { source, destination, last_link: Some(link) });
                        }
                        None => self.drop_link(path, DropReason::Recursive),
                    },
                    LinkTarget::None(reason) => self.drop_link(path, reason),
                },
            }
        }
        Ok(())
    }

    fn drop_link(&mut self, link: &'t TreePath, reason: DropReason) {
        self.dropped.entry(reason).or_default().insert(link);
    }

    /// Adds an entry, within the limits of the tree.
    fn insert(&mut self, path: TreePath, resolved: ResolvedEntry) -> Result<(), TreeError> {
        let limits = self.tree.limits();
        if let ResolvedEntry::File(file) = resolved {
            self.bytes = self.bytes.saturating_add(file.size_bytes);
        }
        self.name_bytes = self.name_bytes.saturating_add(path.as_bytes().len());
        self.entries.insert(path, resolved);
        TreeError::check_limit(self.entries.len(), limits.entries, "files and folders, links followed")?;
        TreeError::check_limit(self.bytes, limits.bytes, "bytes in its files, links followed")?;
        TreeError::check_limit(self.name_bytes, MAX_NAME_BYTES, "bytes in its names, links followed")
    }

    /// Adds the work of visiting a name of this length. Fails above [`MAX_WORK_BYTES`].
    fn add_work(&mut self, name_bytes: usize) -> Result<(), TreeError> {
        self.work = self.work.saturating_add(WORK_PER_NAME + name_bytes as u64);
        if self.work > MAX_WORK_BYTES {
            return Err(TreeError::TooLarge("the maximum of links to follow".to_owned()));
        }
        Ok(())
    }

    /// Records a link to a folder, and returns its index. Returns `None` if copying would never end, because the folder
    /// contains the link itself or a link that led to it.
    fn record_folder_link(
        &mut self,
        link: &'t TreePath,
        folder: &TreePath,
        previous: Option<usize>,
    ) -> Result<Option<usize>, TreeError> {
        let mut next = Some((link, previous));
        while let Some((followed, previous)) = next {
            self.add_work(folder.as_bytes().len())?;
            if followed.below(folder).is_some() {
                return Ok(None);
            }
            next = previous.and_then(|index| self.links.get(index).copied());
        }
        self.links.push((link, previous));
        Ok(Some(self.links.len() - 1))
    }

    /// Resolves a link as the kernel would if the tree were a whole file system.
    fn follow(&mut self, link: &TreePath, target: &[u8]) -> Result<LinkTarget, TreeError> {
        let mut folder = link.parent_folder().unwrap_or_default();
        // The names still to resolve; the next one is last.
        let mut remaining_names: Vec<&[u8]> = Vec::new();
        let mut followed_links = 0;
        let mut target = target;
        loop {
            if target.starts_with(b"/") {
                return Ok(LinkTarget::None(DropReason::Outside));
            }
            followed_links += 1;
            if followed_links > MAX_LINKS {
                return Ok(LinkTarget::None(DropReason::Circular));
            }
            self.add_work(target.len())?;
            remaining_names.extend(target.rsplit(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")));
            let next_target = loop {
                let Some(name) = remaining_names.pop() else { return Ok(LinkTarget::Folder(folder)) };
                self.add_work(folder.as_bytes().len() + name.len())?;
                if name == b".." {
                    match folder.parent_folder() {
                        Some(parent) => folder = parent,
                        None => return Ok(LinkTarget::None(DropReason::Outside)),
                    }
                    continue;
                }
                let Ok(path) = TreePath::parse(name).and_then(|name| folder.join(&name)) else {
                    return Ok(LinkTarget::None(DropReason::Missing));
                };
                match self.tree.get(&path) {
                    Some(TreeEntry::Folder) => folder = path,
                    Some(TreeEntry::File(file)) if remaining_names.is_empty() => return Ok(LinkTarget::File(*file)),
                    Some(TreeEntry::File(_)) | None => {
                        return Ok(LinkTarget::None(reason_without_target(&folder, &remaining_names)));
                    }
                    Some(TreeEntry::Link(target)) => break target.as_slice(),
                }
            };
            target = next_target;
        }
    }

    fn notes(&self) -> Vec<String> {
        self.dropped.iter().flat_map(|(reason, links)| dropped_notes(links, reason.phrases())).collect()
    }
}

/// Notes about links that are left out for the same reason.
fn dropped_notes(links: &BTreeSet<&TreePath>, [singular, plural]: [&str; 2]) -> Vec<String> {
    let note = |link: &&TreePath| format!("the link {link} {singular}, and is left out");
    let mut notes: Vec<String> = links.iter().take(MAX_NOTES).map(note).collect();
    let more = links.len().saturating_sub(MAX_NOTES);
    if more > 0 {
        notes.push(format!("{more} more links {plural}, and are left out"));
    }
    notes
}

/// The reason for a path whose next entry is missing in `folder`: the remaining names may lead out of the package, too.
fn reason_without_target(folder: &TreePath, remaining_names: &[&[u8]]) -> DropReason {
    let mut depth = folder.names().count() + 1;
    for name in remaining_names.iter().rev() {
        match *name {
            b".." if depth == 0 => return DropReason::Outside,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    DropReason::Missing
}

#[cfg(test)]
mod tests;
