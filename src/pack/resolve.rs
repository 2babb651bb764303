//! Follows the links of a tree, so that only folders and files remain to be packed.

use std::collections::{BTreeMap, BTreeSet};

use super::{Tree, TreeEntry, TreeError, TreePath};

/// The most links that one path may lead through, as in Linux.
const MAX_LINKS: usize = 40;
/// The work limit in bytes of names visited; a few seconds.
const MAX_WORK: u64 = 1 << 30;
/// The fixed cost of visiting a name, in bytes.
const EACH_LOOK: u64 = 128;
/// The most notes for one reason; further links are only counted.
const MAX_NOTES: usize = 20;
/// The limit for all names together, in bytes, because they stay in memory.
const MAX_NAME_BYTES: usize = 64 << 20;

/// An entry once links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResolvedEntry {
    Folder,
    File { mode: u32, offset: u64, size_bytes: u64 },
}

/// The contents of a folder with links followed, ready to be packed.
#[derive(Debug)]
pub struct ResolvedTree<'t> {
    pub(super) tree: &'t Tree,
    /// Entries by path relative to the root.
    pub(super) nodes: BTreeMap<TreePath, ResolvedEntry>,
    pub(super) notes: Vec<String>,
}

/// Follows every link below `root`; targets may be anywhere in the tree. The root's own `.git` is left out.
///
/// # Errors
/// [`TreeError::Refused`] for a link out of the tree, to an absolute path or round in a circle, and for a root that is
/// no folder; [`TreeError::TooLarge`] where the copies exceed the tree's limits, or following is too much work.
pub fn resolve<'t>(tree: &'t Tree, root: &TreePath) -> Result<ResolvedTree<'t>, TreeError> {
    match tree.get(root) {
        Some(TreeEntry::Folder) => {}
        Some(_) => return Err(TreeError::refused(root, "it is the root of the module, but not a folder")),
        None => return Err(TreeError::refused(root, "it is the root of the module, but does not exist")),
    }
    let mut walk = LinkResolver {
        tree,
        nodes: BTreeMap::new(),
        dangling: BTreeSet::new(),
        endless: BTreeSet::new(),
        bytes: 0,
        name_bytes: 0,
        work: 0,
        links: Vec::new(),
    };
    let mut folders = vec![Copied { from: root.clone(), target: TreePath::root(), through: None }];
    while let Some(folder) = folders.pop() {
        walk.copy(&folder, &mut folders)?;
    }
    Ok(ResolvedTree { tree, notes: walk.notes(), nodes: walk.nodes })
}

/// A folder to copy: its source, its destination, and the index of the last link on the path to it.
struct Copied {
    from: TreePath,
    target: TreePath,
    through: Option<usize>,
}

struct LinkResolver<'t> {
    tree: &'t Tree,
    nodes: BTreeMap<TreePath, ResolvedEntry>,
    /// Links without a target. A set, because a link in a folder that is copied several times is noted once.
    dangling: BTreeSet<&'t TreePath>,
    /// Links to a folder that contains them.
    endless: BTreeSet<&'t TreePath>,
    bytes: u64,
    name_bytes: usize,
    work: u64,
    /// Links to folders: the path of each, and the index of the link before it.
    links: Vec<(&'t TreePath, Option<usize>)>,
}

enum LinkTarget {
    Folder(TreePath),
    File(ResolvedEntry),
    Nowhere,
}

impl<'t> LinkResolver<'t> {
    fn copy(&mut self, folder: &Copied, more: &mut Vec<Copied>) -> Result<(), TreeError> {
        for (path, entry) in self.tree.entries_below(&folder.from) {
            // Entries that are left out count too: a folder of only such entries can be copied once per link to it.
            self.spend(path.as_bytes().len() + folder.target.as_bytes().len())?;
            let Some(below) = path.below(&folder.from) else { continue };
            let to = folder.target.join(&below).map_err(|bad| TreeError::refused(path, bad.to_string()))?;
            if to.names().next() == Some(b".git") {
                continue;
            }
            match entry {
                TreeEntry::Folder => self.put(to, ResolvedEntry::Folder)?,
                TreeEntry::File { mode, offset, size_bytes } => {
                    self.put(to, ResolvedEntry::File { mode: *mode, offset: *offset, size_bytes: *size_bytes })?;
                }
                TreeEntry::Link(target) => match self.follow(path, target)? {
                    LinkTarget::File(file) => self.put(to, file)?,
                    LinkTarget::Folder(from) => match self.record_folder_link(path, &from, folder.through)? {
                        Some(link) => {
                            // The path stays in memory until it is copied, and many links may have it as their target.
                            self.name_bytes = self.name_bytes.saturating_add(from.as_bytes().len());
                            self.put(to.clone(), ResolvedEntry::Folder)?;
                            more.push(Copied { from, target: to, through: Some(link) });
                        }
                        None => drop(self.endless.insert(path)),
                    },
                    LinkTarget::Nowhere => drop(self.dangling.insert(path)),
                },
            }
        }
        Ok(())
    }

    fn put(&mut self, to: TreePath, node: ResolvedEntry) -> Result<(), TreeError> {
        let limits = self.tree.limits();
        if let ResolvedEntry::File { size_bytes, .. } = node {
            self.bytes = self.bytes.saturating_add(size_bytes);
        }
        self.name_bytes = self.name_bytes.saturating_add(to.as_bytes().len());
        self.nodes.insert(to, node);
        if self.nodes.len() > limits.entries {
            return Err(TreeError::TooLarge(format!("{} files and folders, links followed", limits.entries)));
        }
        if self.bytes > limits.bytes {
            return Err(TreeError::TooLarge(format!("{} bytes in its files, links followed", limits.bytes)));
        }
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(TreeError::TooLarge(format!("{MAX_NAME_BYTES} bytes in its names, links followed")));
        }
        Ok(())
    }

    fn spend(&mut self, name_bytes: usize) -> Result<(), TreeError> {
        self.work = self.work.saturating_add(EACH_LOOK + name_bytes as u64);
        if self.work > MAX_WORK {
            return Err(TreeError::TooLarge("the maximum of links to follow".to_owned()));
        }
        Ok(())
    }

    /// Records a link to a folder. Returns `None` if copying would never end, because that folder contains the link
    /// itself or one that led to it.
    fn record_folder_link(
        &mut self,
        link: &'t TreePath,
        to: &TreePath,
        through: Option<usize>,
    ) -> Result<Option<usize>, TreeError> {
        let mut next = Some((link, through));
        while let Some((on_the_way, before)) = next {
            self.spend(to.as_bytes().len())?;
            if on_the_way.below(to).is_some() {
                return Ok(None);
            }
            next = before.and_then(|before| self.links.get(before).copied());
        }
        self.links.push((link, through));
        Ok(Some(self.links.len() - 1))
    }

    /// Resolves a link as the kernel would if the tree were a whole file system.
    fn follow(&mut self, link: &TreePath, target: &[u8]) -> Result<LinkTarget, TreeError> {
        let refused = |reason: &str| Err(TreeError::refused(link, reason));
        let mut folder = link.parent().unwrap_or_default();
        // Names still to resolve, the next one last.
        let mut names: Vec<&[u8]> = Vec::new();
        let mut targets = 0;
        let mut target = target;
        loop {
            if target.starts_with(b"/") {
                return refused("it is a link to an absolute path");
            }
            targets += 1;
            if targets > MAX_LINKS {
                return refused("it is a link to itself, or a chain of too many links");
            }
            self.spend(target.len())?;
            names.extend(target.rsplit(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")));
            let next = loop {
                let Some(name) = names.pop() else { return Ok(LinkTarget::Folder(folder)) };
                self.spend(folder.as_bytes().len() + name.len())?;
                if name == b".." {
                    match folder.parent() {
                        Some(parent) => folder = parent,
                        None => return refused("it is a link out of the package"),
                    }
                    continue;
                }
                let Ok(path) = TreePath::parse(name).and_then(|name| folder.join(&name)) else {
                    return Ok(LinkTarget::Nowhere);
                };
                match self.tree.get(&path) {
                    Some(TreeEntry::Folder) => folder = path,
                    Some(TreeEntry::File { mode, offset, size_bytes }) if names.is_empty() => {
                        return Ok(LinkTarget::File(ResolvedEntry::File {
                            mode: *mode,
                            offset: *offset,
                            size_bytes: *size_bytes,
                        }));
                    }
                    Some(TreeEntry::File { .. }) | None => return nowhere(link, &folder, &names),
                    Some(TreeEntry::Link(target)) => break target.as_slice(),
                }
            };
            target = next;
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = dropped_notes(&self.dangling, "has no target", "have no target");
        notes.extend(dropped_notes(
            &self.endless,
            "points to a folder that contains it",
            "point to folders that contain them",
        ));
        notes
    }
}

/// Notes about links that are left out for one reason.
fn dropped_notes(links: &BTreeSet<&TreePath>, one: &str, many: &str) -> Vec<String> {
    let note = |link: &&TreePath| format!("the link {link} {one}, and is left out");
    let mut notes: Vec<String> = links.iter().take(MAX_NOTES).map(note).collect();
    let more = links.len().saturating_sub(MAX_NOTES);
    if more > 0 {
        notes.push(format!("{more} more links {many}, and are left out"));
    }
    notes
}

/// Ends a path at a missing entry. The rest of the path must not lead out of the package either.
fn nowhere(link: &TreePath, folder: &TreePath, names: &[&[u8]]) -> Result<LinkTarget, TreeError> {
    let mut depth = folder.names().count() + 1;
    for name in names.iter().rev() {
        match *name {
            b".." if depth == 0 => return Err(TreeError::refused(link, "it is a link out of the package")),
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    Ok(LinkTarget::Nowhere)
}
