//! One git job: resolves the reference, fetches the pack, lays out the files, and repeats this for each submodule.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use gix_hash::ObjectId;
use gix_object::{FindHeader, Kind};

use super::blocking_bridge::GitBridge;
use super::checkout::{Checkout, CheckoutResult};
use super::error::GitCodeError;
use super::fetch::{Conversation, Extent, Objects};
use super::refs::{OfferedRef, Reference, ResolvedRef};
use super::repository::Repository;
use super::submodules::{Submodule, Submodules};
use super::{GitSource, GitTree};
use crate::pack::{Tree, TreeError, TreePath};
use crate::upstream::limits::GitLimits;

/// A git fetch and its limits.
pub(super) struct Job {
    repository: Repository,
    reference: Option<String>,
    has_depth: bool,
    scratch: PathBuf,
    limits: GitLimits,
}

struct RunningGitJob<'a> {
    wire: GitBridge,
    stop: &'a AtomicBool,
    scratch: PathBuf,
    limits: GitLimits,
    /// Number of packs received; each has a folder.
    packs: usize,
    submodules: usize,
    tree: Tree,
    pointers: Vec<String>,
    unknown_encodings: Vec<String>,
}

impl Job {
    pub(super) fn new(source: &GitSource, repository: Repository, scratch: &Path, limits: GitLimits) -> Self {
        Self {
            repository,
            reference: source.reference.clone(),
            // go-getter treats a depth of 0 as none.
            has_depth: source.depth.is_some_and(|depth| depth > 0),
            scratch: scratch.to_owned(),
            limits,
        }
    }

    fn reference(&self) -> Result<Reference, GitCodeError> {
        let reference = Reference::parse(self.reference.as_deref(), self.has_depth);
        reference.map_err(|bad| {
            let reason = format!(
                "a source whose reference {:?} is not fetched: {bad}",
                self.reference.as_deref().unwrap_or_default()
            );
            GitCodeError::unusable(&self.repository.origin(), reason)
        })
    }

    /// The commit, if the reference is a full id.
    pub(super) fn whole_id(&self) -> Option<String> {
        match self.reference() {
            Ok(Reference::Id(id)) => Some(id.to_string()),
            Ok(_) | Err(_) => None,
        }
    }

    fn not_found_error(&self) -> GitCodeError {
        let reason = match &self.reference {
            Some(reference) if !reference.is_empty() => {
                format!("a repository without a branch, a tag or a commit that is called {reference:?}")
            }
            _ => "a repository without a commit".to_owned(),
        };
        GitCodeError::unusable(&self.repository.origin(), reason)
    }

    /// Resolves the reference among the server's refs, without a pack. `None` for an abbreviated id.
    pub(super) fn resolve_by_name(&self, wire: GitBridge) -> Result<Option<String>, GitCodeError> {
        let reference = self.reference()?;
        let mut conversation = Conversation::open(&wire, &self.repository, self.limits)?;
        let offered = conversation.offered(&reference.prefixes())?;
        match reference.choose(&offered) {
            ResolvedRef::Offered(offered) => Ok(Some(offered.peeled.to_string())),
            ResolvedRef::Id(id) => Ok(Some(id.to_string())),
            ResolvedRef::Short(_) => Ok(None),
            ResolvedRef::Nothing => Err(self.not_found_error()),
        }
    }

    /// Fetches the commit and lays out its tree.
    pub(super) fn fetch(&self, wire: GitBridge, stop: &AtomicBool, tree: Tree) -> Result<GitTree, GitCodeError> {
        let reference = self.reference()?;
        let mut conversation = Conversation::open(&wire, &self.repository, self.limits)?;
        let offered = conversation.offered(&reference.prefixes())?;
        let mut work = RunningGitJob {
            wire,
            stop,
            scratch: self.scratch.clone(),
            limits: self.limits,
            packs: 0,
            submodules: 0,
            tree,
            pointers: Vec::new(),
            unknown_encodings: Vec::new(),
        };
        let (objects, named) = self.objects(&mut work, conversation, reference.choose(&offered), &offered)?;
        let commit = work.lay_out(&self.repository, &objects, named, &TreePath::root(), 0)?;
        Ok(GitTree { commit: commit.to_string(), notes: work.notes(), tree: work.tree, permit: None })
    }

    /// Fetches the objects of the chosen commit. Returns them with its id.
    fn objects(
        &self,
        work: &mut RunningGitJob<'_>,
        mut conversation: Conversation,
        chosen: ResolvedRef,
        offered: &[OfferedRef],
    ) -> Result<(Objects, ObjectId), GitCodeError> {
        match chosen {
            ResolvedRef::Offered(found) => {
                Ok((work.pack(&mut conversation, &[found.id], Extent::OneCommit)?, found.id))
            }
            ResolvedRef::Id(id) => {
                let (history, extent) =
                    work.history(&mut conversation, offered)?.ok_or_else(|| self.not_found_error())?;
                if !is_commit(&history, &id) {
                    let reason = format!("a repository in which no branch and no tag leads to the commit {id}");
                    return Err(GitCodeError::unusable(&conversation.origin, reason));
                }
                work.commit_from_history(&self.repository, conversation, history, extent, id)
            }
            ResolvedRef::Short(short) => {
                let (history, extent) =
                    work.history(&mut conversation, offered)?.ok_or_else(|| self.not_found_error())?;
                let mut all = describe_commits(&history, &short);
                match (all.pop(), all.is_empty()) {
                    (Some(id), true) => work.commit_from_history(&self.repository, conversation, history, extent, id),
                    (Some(_), false) => {
                        let reason = format!("a repository with several commits whose ids begin with {short}");
                        Err(GitCodeError::unusable(&conversation.origin, reason))
                    }
                    (None, _) => Err(self.not_found_error()),
                }
            }
            ResolvedRef::Nothing => Err(self.not_found_error()),
        }
    }
}

impl RunningGitJob<'_> {
    fn pack(
        &mut self,
        conversation: &mut Conversation,
        wanted: &[ObjectId],
        extent: Extent,
    ) -> Result<Objects, GitCodeError> {
        self.packs += 1;
        conversation.pack(wanted, extent, &self.scratch.join(format!("pack-{}", self.packs)), self.stop)
    }

    /// Fetches all commits below heads and tags; with their trees if the server cannot omit them. `None` for a
    /// repository without refs.
    fn history(
        &mut self,
        conversation: &mut Conversation,
        offered: &[OfferedRef],
    ) -> Result<Option<(Objects, Extent)>, GitCodeError> {
        let extent = if conversation.can_leave_out_trees() { Extent::CommitsAlone } else { Extent::Everything };
        Ok(self.tips(conversation, offered, extent)?.map(|history| (history, extent)))
    }

    fn tips(
        &mut self,
        conversation: &mut Conversation,
        offered: &[OfferedRef],
        extent: Extent,
    ) -> Result<Option<Objects>, GitCodeError> {
        let is_tip =
            |name: &[u8]| name == b"HEAD" || name.starts_with(b"refs/heads/") || name.starts_with(b"refs/tags/");
        let mut tips: Vec<_> = offered.iter().filter(|one| is_tip(&one.name)).map(|one| one.id).collect();
        tips.sort();
        tips.dedup();
        if tips.is_empty() { Ok(None) } else { self.pack(conversation, &tips, extent).map(Some) }
    }

    /// Returns the objects of the commit `id`: the history if it is complete, otherwise another fetch.
    fn commit_from_history(
        &mut self,
        repository: &Repository,
        mut conversation: Conversation,
        history: Objects,
        extent: Extent,
        id: ObjectId,
    ) -> Result<(Objects, ObjectId), GitCodeError> {
        if extent == Extent::Everything {
            return Ok((history, id));
        }
        let fetched = self.pack(&mut conversation, &[id], Extent::OneCommit);
        drop(conversation);
        Ok((self.or_everything(repository, id, fetched)?, id))
    }

    /// Returns the fetched objects. If the server refuses ids without a ref, fetches everything below heads and tags.
    fn or_everything(
        &mut self,
        repository: &Repository,
        id: ObjectId,
        fetched: Result<Objects, GitCodeError>,
    ) -> Result<Objects, GitCodeError> {
        match fetched {
            Err(GitCodeError::NoSuchId { .. }) => self.everything(repository, id),
            fetched => fetched,
        }
    }

    /// Fetches everything below heads and tags in a new conversation. Fails if the commit `id` is not in it.
    fn everything(&mut self, repository: &Repository, id: ObjectId) -> Result<Objects, GitCodeError> {
        let mut conversation = Conversation::open(&self.wire, repository, self.limits)?;
        let offered = conversation.offered(&["HEAD".into(), "refs/heads/".into(), "refs/tags/".into()])?;
        let all = self.tips(&mut conversation, &offered, Extent::Everything)?;
        all.filter(|objects| is_commit(objects, &id)).ok_or_else(|| {
            GitCodeError::unusable(&repository.origin(), format!("a repository that does not hand out the commit {id}"))
        })
    }

    fn lay_out(
        &mut self,
        repository: &Repository,
        objects: &Objects,
        named: ObjectId,
        below: &TreePath,
        depth: usize,
    ) -> Result<ObjectId, GitCodeError> {
        let origin = repository.origin();
        let largest_object = self.limits.object_bytes;
        let checkout = Checkout { objects, origin: &origin, below, largest_object, stop: self.stop };
        let (commit, root) = checkout.commit(named)?;
        let CheckoutResult { submodules, modules, pointers, unknown_encodings } =
            checkout.lay_out(root, &mut self.tree)?;
        self.pointers.extend(pointers);
        self.unknown_encodings.extend(unknown_encodings);
        let refused = |error| GitCodeError::tree(&origin, error);
        let known = Submodules::parse(modules.as_deref()).map_err(refused)?;
        for (path, id) in submodules {
            // Each lookup scans all submodules, so many of them take long.
            checkout.check_cancelled()?;
            let Submodule::From(from) = known.find(path.as_ref(), repository).map_err(refused)? else { continue };
            if depth >= self.limits.submodule_depth {
                let most = self.limits.submodule_depth;
                return Err(refused(TreeError::TooLarge(format!("{most} submodules one in the other"))));
            }
            self.submodules += 1;
            if self.submodules > self.limits.submodules {
                return Err(refused(TreeError::TooLarge(format!("{} submodules", self.limits.submodules))));
            }
            let inside = TreePath::parse(&path).and_then(|path| below.join(&path));
            let inside = inside.map_err(|bad| refused(TreeError::bad_path(&path, &bad)))?;
            let objects = self.submodule(&from, id)?;
            self.lay_out(&from, &objects, id, &inside, depth + 1)?;
        }
        Ok(commit)
    }

    /// Fetches the commit of a submodule. The tree around it names the commit, so no ref needs to lead to it.
    fn submodule(&mut self, from: &Repository, id: ObjectId) -> Result<Objects, GitCodeError> {
        let mut conversation = Conversation::open(&self.wire, from, self.limits)?;
        if !conversation.serves_any_id() {
            let offered = conversation.offered(&["HEAD".into(), "refs/heads/".into(), "refs/tags/".into()])?;
            if !offered.iter().any(|one| one.id == id) {
                drop(conversation);
                return self.everything(from, id);
            }
        }
        let fetched = self.pack(&mut conversation, &[id], Extent::OneCommit);
        drop(conversation);
        self.or_everything(from, id, fetched)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.pointers.is_empty() {
            notes.push(format!("pointers of Git LFS stay pointers: {}", a_few(&self.pointers)));
        }
        if !self.unknown_encodings.is_empty() {
            let files = a_few(&self.unknown_encodings);
            notes.push(format!("files whose working-tree-encoding is not known stay in UTF-8: {files}"));
        }
        notes
    }
}

fn is_commit(objects: &Objects, id: &ObjectId) -> bool {
    let header = FindHeader::try_header(objects, id);
    matches!(header, Ok(Some(header)) if matches!(header.kind, Kind::Commit | Kind::Tag))
}

/// The commits and tags whose ids begin with `short`.
fn describe_commits(objects: &Objects, short: &str) -> Vec<ObjectId> {
    let Ok(prefix) = gix_hash::Prefix::from_hex(short) else { return Vec::new() };
    let mut found = std::collections::HashSet::new();
    if objects.lookup_prefix(prefix, Some(&mut found)).is_err() {
        return Vec::new();
    }
    found.into_iter().filter(|id| is_commit(objects, id)).collect()
}

fn a_few(all: &[String]) -> String {
    const FEW: usize = 3;
    let shown = all.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ");
    if all.len() > FEW { format!("{shown} and {} more", all.len() - FEW) } else { shown }
}
