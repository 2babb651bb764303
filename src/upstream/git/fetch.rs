//! One git fetch: resolves the reference, fetches the pack, lays out the files, and repeats this for each submodule.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use gix_hash::ObjectId;
use gix_object::{FindHeader, Kind};

use super::blocking_bridge::GitBridge;
use super::checkout::{Checkout, CheckoutResult};
use super::connection::{Extent, Objects, RepositoryConnection};
use super::error::GitCodeError;
use super::refs::{OfferedRef, Reference, ResolvedRef};
use super::repository::{Repository, Submodule, Submodules};
use super::{GitSource, GitTree};
use crate::packaging::{Tree, TreeError, TreePath};
use crate::upstream::limits::GitLimits;

/// One git fetch: a repository, a reference, and limits.
pub(super) struct GitFetch {
    repository: Repository,
    reference: Option<String>,
    has_depth: bool,
    scratch: PathBuf,
    limits: GitLimits,
}

/// The state of a fetch that fetches.
struct RunningFetch<'a> {
    bridge: GitBridge,
    stop: &'a AtomicBool,
    scratch: PathBuf,
    limits: GitLimits,
    /// Number of packs received. Each has a folder.
    packs: usize,
    submodules: usize,
    tree: Tree,
    lfs_pointers: Vec<String>,
    unknown_encodings: Vec<String>,
}

impl GitFetch {
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

    fn parse_reference(&self) -> Result<Reference, GitCodeError> {
        let reference = Reference::parse(self.reference.as_deref(), self.has_depth);
        reference.map_err(|error| {
            let reason = format!(
                "a source whose reference {:?} is not fetched: {error}",
                self.reference.as_deref().unwrap_or_default()
            );
            GitCodeError::unusable(&self.repository.origin_text(), reason)
        })
    }

    /// The commit, if the reference is a full id.
    pub(super) fn full_id(&self) -> Option<String> {
        match self.parse_reference() {
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
        GitCodeError::unusable(&self.repository.origin_text(), reason)
    }

    /// Resolves the reference among the server's refs, without a pack. `None` for an abbreviated id.
    pub(super) fn resolve_by_refs(&self, bridge: GitBridge) -> Result<Option<String>, GitCodeError> {
        let reference = self.parse_reference()?;
        let mut connection = RepositoryConnection::open(&bridge, &self.repository, self.limits)?;
        let offered = connection.list_refs(&reference.prefixes())?;
        match reference.resolve(&offered) {
            ResolvedRef::Offered(offered) => Ok(Some(offered.peeled.to_string())),
            ResolvedRef::Id(id) => Ok(Some(id.to_string())),
            ResolvedRef::AbbreviatedId(_) => Ok(None),
            ResolvedRef::NotFound => Err(self.not_found_error()),
        }
    }

    /// Fetches the commit and lays out its tree.
    pub(super) fn fetch(&self, bridge: GitBridge, stop: &AtomicBool, tree: Tree) -> Result<GitTree, GitCodeError> {
        let reference = self.parse_reference()?;
        let mut connection = RepositoryConnection::open(&bridge, &self.repository, self.limits)?;
        let offered = connection.list_refs(&reference.prefixes())?;
        let mut running = RunningFetch {
            bridge,
            stop,
            scratch: self.scratch.clone(),
            limits: self.limits,
            packs: 0,
            submodules: 0,
            tree,
            lfs_pointers: Vec::new(),
            unknown_encodings: Vec::new(),
        };
        let (objects, id) = self.fetch_resolved(&mut running, connection, reference.resolve(&offered), &offered)?;
        let commit = running.lay_out(&self.repository, &objects, id, &TreePath::root(), 0)?;
        Ok(GitTree { commit: commit.to_string(), notes: running.notes(), tree: running.tree, permit: None })
    }

    /// Fetches the objects of the resolved commit. Returns the objects, and the id of the commit or of its tag.
    fn fetch_resolved(
        &self,
        running: &mut RunningFetch<'_>,
        mut connection: RepositoryConnection,
        resolved: ResolvedRef,
        offered: &[OfferedRef],
    ) -> Result<(Objects, ObjectId), GitCodeError> {
        match resolved {
            ResolvedRef::Offered(offered) => {
                Ok((running.fetch_pack(&mut connection, &[offered.id], Extent::OneCommit)?, offered.id))
            }
            ResolvedRef::Id(id) => {
                let (history, extent) =
                    running.fetch_history(&mut connection, offered)?.ok_or_else(|| self.not_found_error())?;
                if !is_commit(&history, &id) {
                    let reason = format!("a repository in which no branch and no tag leads to the commit {id}");
                    return Err(GitCodeError::unusable(&connection.origin, reason));
                }
                running.commit_from_history(&self.repository, connection, history, extent, id)
            }
            ResolvedRef::AbbreviatedId(prefix) => {
                let (history, extent) =
                    running.fetch_history(&mut connection, offered)?.ok_or_else(|| self.not_found_error())?;
                let mut commits = commits_with_prefix(&history, &prefix);
                match (commits.pop(), commits.is_empty()) {
                    (Some(id), true) => running.commit_from_history(&self.repository, connection, history, extent, id),
                    (Some(_), false) => {
                        let reason = format!("a repository with several commits whose ids begin with {prefix}");
                        Err(GitCodeError::unusable(&connection.origin, reason))
                    }
                    (None, _) => Err(self.not_found_error()),
                }
            }
            ResolvedRef::NotFound => Err(self.not_found_error()),
        }
    }
}

impl RunningFetch<'_> {
    fn fetch_pack(
        &mut self,
        connection: &mut RepositoryConnection,
        wanted: &[ObjectId],
        extent: Extent,
    ) -> Result<Objects, GitCodeError> {
        self.packs += 1;
        connection.fetch_pack(wanted, extent, &self.scratch.join(format!("pack-{}", self.packs)), self.stop)
    }

    /// Fetches all commits that branches and tags lead to, without their trees if the server can omit them. `None` for a
    /// repository without refs.
    fn fetch_history(
        &mut self,
        connection: &mut RepositoryConnection,
        offered: &[OfferedRef],
    ) -> Result<Option<(Objects, Extent)>, GitCodeError> {
        let extent = if connection.can_omit_trees() { Extent::CommitsOnly } else { Extent::Everything };
        Ok(self.fetch_tips(connection, offered, extent)?.map(|history| (history, extent)))
    }

    /// Fetches what all branches and tags lead to. `None` for a repository without refs.
    fn fetch_tips(
        &mut self,
        connection: &mut RepositoryConnection,
        offered: &[OfferedRef],
        extent: Extent,
    ) -> Result<Option<Objects>, GitCodeError> {
        let is_tip =
            |name: &[u8]| name == b"HEAD" || name.starts_with(b"refs/heads/") || name.starts_with(b"refs/tags/");
        let mut tips: Vec<_> =
            offered.iter().filter(|offered| is_tip(&offered.name)).map(|offered| offered.id).collect();
        tips.sort();
        tips.dedup();
        if tips.is_empty() { Ok(None) } else { self.fetch_pack(connection, &tips, extent).map(Some) }
    }

    /// Returns the objects of the commit `id`. Fetches its tree, unless the history was fetched with trees.
    fn commit_from_history(
        &mut self,
        repository: &Repository,
        mut connection: RepositoryConnection,
        history: Objects,
        extent: Extent,
        id: ObjectId,
    ) -> Result<(Objects, ObjectId), GitCodeError> {
        if extent == Extent::Everything {
            return Ok((history, id));
        }
        let fetched = self.fetch_pack(&mut connection, &[id], Extent::OneCommit);
        drop(connection);
        Ok((self.or_fetch_everything(repository, id, fetched)?, id))
    }

    /// Returns the fetched objects. If the server refused the id, fetches everything that branches and tags lead to.
    fn or_fetch_everything(
        &mut self,
        repository: &Repository,
        id: ObjectId,
        fetched: Result<Objects, GitCodeError>,
    ) -> Result<Objects, GitCodeError> {
        match fetched {
            Err(GitCodeError::NoSuchId { .. }) => self.fetch_everything(repository, id),
            fetched => fetched,
        }
    }

    /// Fetches everything that branches and tags lead to, in a new connection. Fails if the commit `id` is not in it.
    fn fetch_everything(&mut self, repository: &Repository, id: ObjectId) -> Result<Objects, GitCodeError> {
        let mut connection = RepositoryConnection::open(&self.bridge, repository, self.limits)?;
        let offered = connection.list_refs(&["HEAD".into(), "refs/heads/".into(), "refs/tags/".into()])?;
        let objects = self.fetch_tips(&mut connection, &offered, Extent::Everything)?;
        objects.filter(|objects| is_commit(objects, &id)).ok_or_else(|| {
            GitCodeError::unusable(
                &repository.origin_text(),
                format!("a repository that does not serve the commit {id}"),
            )
        })
    }

    /// Lays out the commit `id` in the folder `target` of the tree, then its submodules. Returns the id of the commit,
    /// to which `id` may be a tag.
    fn lay_out(
        &mut self,
        repository: &Repository,
        objects: &Objects,
        id: ObjectId,
        target: &TreePath,
        depth: usize,
    ) -> Result<ObjectId, GitCodeError> {
        let origin = repository.origin_text();
        let largest_object = self.limits.object_bytes;
        let checkout = Checkout { objects, origin: &origin, target, largest_object, stop: self.stop };
        let (commit, root) = checkout.peel_to_commit(id)?;
        let CheckoutResult { submodules, gitmodules, lfs_pointers, unknown_encodings } =
            checkout.lay_out(root, &mut self.tree)?;
        self.lfs_pointers.extend(lfs_pointers);
        self.unknown_encodings.extend(unknown_encodings);
        let refused = |error| GitCodeError::tree(&origin, error);
        let submodule_entries = Submodules::parse(gitmodules.as_deref()).map_err(refused)?;
        for (path, id) in submodules {
            // Each lookup scans all submodules, so many lookups take long.
            checkout.check_cancelled()?;
            let Submodule::From(inner_repository) =
                submodule_entries.find(path.as_ref(), repository).map_err(refused)?
            else {
                continue;
            };
            if depth >= self.limits.submodule_depth {
                let limit = self.limits.submodule_depth;
                return Err(refused(TreeError::TooLarge(format!("{limit} submodules one in the other"))));
            }
            self.submodules += 1;
            if self.submodules > self.limits.submodules {
                return Err(refused(TreeError::TooLarge(format!("{} submodules", self.limits.submodules))));
            }
            let inner_target = TreePath::parse(&path).and_then(|path| target.join(&path));
            let inner_target = inner_target.map_err(|error| refused(TreeError::bad_path(&path, &error)))?;
            let objects = self.fetch_submodule(&inner_repository, id)?;
            self.lay_out(&inner_repository, &objects, id, &inner_target, depth + 1)?;
        }
        Ok(commit)
    }

    /// Fetches the commit of a submodule. The outer tree names the commit, so no ref of the submodule needs to lead to it.
    fn fetch_submodule(&mut self, repository: &Repository, id: ObjectId) -> Result<Objects, GitCodeError> {
        let mut connection = RepositoryConnection::open(&self.bridge, repository, self.limits)?;
        if !connection.may_serve_any_id() {
            let offered = connection.list_refs(&["HEAD".into(), "refs/heads/".into(), "refs/tags/".into()])?;
            if !offered.iter().any(|offered| offered.id == id) {
                drop(connection);
                return self.fetch_everything(repository, id);
            }
        }
        let fetched = self.fetch_pack(&mut connection, &[id], Extent::OneCommit);
        drop(connection);
        self.or_fetch_everything(repository, id, fetched)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.lfs_pointers.is_empty() {
            notes.push(format!("pointers of Git LFS stay pointers: {}", join_first(&self.lfs_pointers)));
        }
        if !self.unknown_encodings.is_empty() {
            let files = join_first(&self.unknown_encodings);
            notes.push(format!("files whose working-tree-encoding is not known stay in UTF-8: {files}"));
        }
        notes
    }
}

fn is_commit(objects: &Objects, id: &ObjectId) -> bool {
    let header = FindHeader::try_header(objects, id);
    matches!(header, Ok(Some(header)) if matches!(header.kind, Kind::Commit | Kind::Tag))
}

/// The commits and tags whose ids begin with `prefix`.
fn commits_with_prefix(objects: &Objects, prefix: &str) -> Vec<ObjectId> {
    let Ok(prefix) = gix_hash::Prefix::from_hex(prefix) else { return Vec::new() };
    let mut found = std::collections::HashSet::new();
    if objects.lookup_prefix(prefix, Some(&mut found)).is_err() {
        return Vec::new();
    }
    found.into_iter().filter(|id| is_commit(objects, id)).collect()
}

/// Joins the first few texts, and counts the others.
fn join_first(texts: &[String]) -> String {
    const MAX_QUOTED: usize = 3;
    let shown = texts.iter().take(MAX_QUOTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if texts.len() > MAX_QUOTED { format!("{shown} and {} more", texts.len() - MAX_QUOTED) } else { shown }
}
