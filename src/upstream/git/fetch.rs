//! One git fetch: resolves the reference, fetches the pack, lays out the files, and repeats this for each submodule.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use gix_hash::ObjectId;
use gix_object::{FindHeader, Kind};

use super::blocking_bridge::GitBridge;
use super::checkout::{Checkout, CheckoutResult};
use super::connection::{Extent, LargeFiles, Objects, PackDestination, RepositoryConnection};
use super::error::{RepositoryError, RepositoryFailure};
use super::refs::{OfferedRef, Reference, ResolvedRef, TIP_PREFIXES};
use super::repository::{Repository, Submodules};
use super::{GitSource, GitTree};
use crate::packaging::{Tree, TreeError, TreePath};
use crate::upstream::error::UpstreamError;
use crate::upstream::limits::{GitLimits, GrowingMemory, Permit};
use crate::upstream::request::UpstreamRequest;

/// One git fetch: a repository, a reference, and limits.
pub(super) struct GitFetch {
    repository: Repository,
    reference: Option<String>,
    has_depth: bool,
    scratch: PathBuf,
    limits: GitLimits,
}

/// The state of a fetch.
struct RunningFetch<'a> {
    fetch: &'a GitFetch,
    bridge: &'a GitBridge,
    stop: &'a AtomicBool,
    /// The origin of the repository that is being fetched, for errors.
    origin: String,
    /// Number of packs received. Each has a folder.
    packs: usize,
    submodules: usize,
    tree: Tree,
    large_files: LargeFiles,
    /// The size of the file for which a pack was refused, where it is known.
    refused_file_bytes: Option<u64>,
    /// True if the server of the last pack can leave large files out of it.
    can_omit_files: bool,
    /// The memory of the largest objects.
    memory: GrowingMemory,
    lfs_pointers: Vec<String>,
    unknown_encodings: Vec<String>,
}

impl GitFetch {
    /// # Errors
    /// The source's URL is not that of a repository.
    pub(super) fn new(
        request: UpstreamRequest<'_>,
        source: &GitSource,
        scratch: &Path,
        limits: GitLimits,
    ) -> Result<Self, UpstreamError> {
        let refused = |bad| request.unusable(&source.url, format!("a source that is not fetched: {bad}"));
        Ok(Self {
            repository: Repository::of(&source.url).map_err(refused)?,
            reference: source.reference.clone(),
            // go-getter treats a depth of 0 as none.
            has_depth: source.depth.is_some_and(|depth| depth > 0),
            scratch: scratch.to_owned(),
            limits,
        })
    }

    /// The repository's origin.
    pub(super) fn repository_origin(&self) -> String {
        self.repository.origin_text()
    }

    fn parse_reference(&self) -> Result<Reference, RepositoryFailure> {
        let reference = Reference::parse(self.reference.as_deref(), self.has_depth);
        reference.map_err(|error| {
            let text = self.reference.as_deref().unwrap_or_default();
            RepositoryFailure::unusable(format!("a source whose reference {text:?} is not fetched: {error}"))
        })
    }

    /// The commit, if the reference is a full id.
    pub(super) fn full_id(&self) -> Option<String> {
        match self.parse_reference() {
            Ok(Reference::Id(id)) => Some(id.to_string()),
            Ok(_) | Err(_) => None,
        }
    }

    fn not_found_error(&self) -> RepositoryFailure {
        RepositoryFailure::unusable(match &self.reference {
            Some(reference) if !reference.is_empty() => {
                format!("a repository without a branch, a tag or a commit that is called {reference:?}")
            }
            _ => "a repository without a commit".to_owned(),
        })
    }

    /// Connects to the repository, and resolves the reference among the refs that the server offers.
    fn resolve(
        &self,
        bridge: &GitBridge,
    ) -> Result<(RepositoryConnection, Vec<OfferedRef>, ResolvedRef), RepositoryFailure> {
        let reference = self.parse_reference()?;
        let mut connection = RepositoryConnection::open(bridge, &self.repository, self.limits)?;
        let offered = connection.list_refs(&reference.prefixes())?;
        let resolved = reference.resolve(&offered);
        Ok((connection, offered, resolved))
    }

    /// Resolves the reference among the server's refs, without a pack. `None` for an abbreviated id.
    pub(super) fn resolve_by_refs(&self, bridge: &GitBridge) -> Result<Option<String>, RepositoryError> {
        let resolved = self.resolve(bridge).and_then(|(.., resolved)| match resolved {
            ResolvedRef::Offered(offered) => Ok(Some(offered.peeled.to_string())),
            ResolvedRef::Id(id) => Ok(Some(id.to_string())),
            ResolvedRef::AbbreviatedId(_) => Ok(None),
            ResolvedRef::NotFound => Err(self.not_found_error()),
        });
        resolved.map_err(|failure| RepositoryError { origin: self.repository_origin(), failure })
    }

    /// Fetches the commit and lays out its tree.
    pub(super) fn fetch(
        &self,
        bridge: &GitBridge,
        stop: &AtomicBool,
        tree: Tree,
        memory: GrowingMemory,
        permit: Permit,
    ) -> Result<GitTree, RepositoryError> {
        let mut running = RunningFetch {
            fetch: self,
            bridge,
            stop,
            origin: self.repository_origin(),
            packs: 0,
            submodules: 0,
            tree,
            large_files: LargeFiles::Refused,
            refused_file_bytes: None,
            can_omit_files: false,
            memory,
            lfs_pointers: Vec::new(),
            unknown_encodings: Vec::new(),
        };
        match running.fetch_tree_or_name_large_file() {
            Ok(commit) => {
                Ok(GitTree { commit: commit.to_string(), notes: running.notes(), tree: running.tree, permit })
            }
            Err(failure) => Err(RepositoryError { origin: running.origin, failure }),
        }
    }
}

impl RunningFetch<'_> {
    /// Fetches the tree. A pack with a file beyond the limit is refused as it arrives, before it is known which file that is:
    /// then a second fetch, without such files, looks for its name.
    fn fetch_tree_or_name_large_file(&mut self) -> Result<ObjectId, RepositoryFailure> {
        let limit = self.tree.limits().file_bytes;
        let (size_bytes, refused) = match self.fetch_tree() {
            Err(RepositoryFailure::Tree(TreeError::LargeFile { file: None, size_bytes, limit })) => {
                (size_bytes, TreeError::LargeFile { file: None, size_bytes, limit })
            }
            Err(RepositoryFailure::LargeObject) => (None, TreeError::LargeFile { file: None, size_bytes: None, limit }),
            fetched => return fetched,
        };
        if !self.can_omit_files {
            return Err(refused.into());
        }
        self.tree.clear();
        (self.large_files, self.submodules, self.refused_file_bytes) = (LargeFiles::Omitted, 0, size_bytes);
        match self.fetch_tree() {
            Err(RepositoryFailure::Tree(named @ TreeError::LargeFile { file: Some(_), .. })) => Err(named.into()),
            _ => Err(refused.into()),
        }
    }

    /// Fetches the commit, and lays it out in the tree with its submodules. Returns its id.
    fn fetch_tree(&mut self) -> Result<ObjectId, RepositoryFailure> {
        let (connection, offered, resolved) = self.fetch.resolve(self.bridge)?;
        let (objects, id) = self.fetch_resolved(connection, resolved, &offered)?;
        self.lay_out(&self.fetch.repository, &objects, id, &TreePath::root(), 0)
    }

    /// Fetches the objects of the resolved commit. Returns the objects, and the id of the commit or of its tag.
    fn fetch_resolved(
        &mut self,
        mut connection: RepositoryConnection,
        resolved: ResolvedRef,
        offered: &[OfferedRef],
    ) -> Result<(Objects, ObjectId), RepositoryFailure> {
        let fetch = self.fetch;
        let (hex_id, not_found) = match resolved {
            ResolvedRef::Offered(tip) => {
                return Ok((self.fetch_pack(&mut connection, &[tip.id], Extent::OneCommit)?, tip.id));
            }
            ResolvedRef::NotFound => return Err(fetch.not_found_error()),
            ResolvedRef::Id(id) => {
                let reason = format!("a repository in which no branch and no tag leads to the commit {id}");
                (id.to_string(), RepositoryFailure::unusable(reason))
            }
            ResolvedRef::AbbreviatedId(hex_id) => (hex_id, fetch.not_found_error()),
        };
        // The commits that branches and tags lead to, without their trees if the server can omit them.
        let extent = if connection.can_omit_objects() { Extent::CommitsOnly } else { Extent::Everything };
        let history = self.fetch_tips(&mut connection, offered, extent)?.ok_or_else(|| fetch.not_found_error())?;
        let id = match commits_with_prefix(&history, &hex_id).as_slice() {
            [id] => *id,
            [] => return Err(not_found),
            [..] => {
                let reason = format!("a repository with several commits whose ids begin with {hex_id}");
                return Err(RepositoryFailure::unusable(reason));
            }
        };
        match extent {
            Extent::Everything => Ok((history, id)),
            _ => Ok((self.fetch_commit(&fetch.repository, connection, id)?, id)),
        }
    }

    fn fetch_pack(
        &mut self,
        connection: &mut RepositoryConnection,
        wanted: &[ObjectId],
        extent: Extent,
    ) -> Result<Objects, RepositoryFailure> {
        self.packs += 1;
        let folder = self.fetch.scratch.join(format!("pack-{}", self.packs));
        self.can_omit_files = connection.can_omit_objects() && extent == Extent::OneCommit;
        let large_files = if self.can_omit_files { self.large_files } else { LargeFiles::Refused };
        let max_file_bytes = self.tree.limits().file_bytes;
        let destination = PackDestination { folder: &folder, max_file_bytes, large_files, memory: &mut self.memory };
        connection.fetch_pack(wanted, extent, destination, self.stop)
    }

    /// Fetches what all branches and tags lead to. `None` for a repository without refs.
    fn fetch_tips(
        &mut self,
        connection: &mut RepositoryConnection,
        offered: &[OfferedRef],
        extent: Extent,
    ) -> Result<Option<Objects>, RepositoryFailure> {
        let is_tip =
            |name: &[u8]| name == b"HEAD" || name.starts_with(b"refs/heads/") || name.starts_with(b"refs/tags/");
        let tips: BTreeSet<_> =
            offered.iter().filter(|offered| is_tip(&offered.name)).map(|offered| offered.id).collect();
        let tips = Vec::from_iter(tips);
        if tips.is_empty() { Ok(None) } else { self.fetch_pack(connection, &tips, extent).map(Some) }
    }

    /// Fetches one commit. If the server refuses the id, fetches everything that branches and tags lead to.
    fn fetch_commit(
        &mut self,
        repository: &Repository,
        mut connection: RepositoryConnection,
        id: ObjectId,
    ) -> Result<Objects, RepositoryFailure> {
        match self.fetch_pack(&mut connection, &[id], Extent::OneCommit) {
            Err(RepositoryFailure::NoSuchId) => {
                drop(connection);
                self.fetch_everything(repository, id)
            }
            fetched => fetched,
        }
    }

    /// Fetches everything that branches and tags lead to, in a new connection. Fails if the commit `id` is not in it.
    fn fetch_everything(&mut self, repository: &Repository, id: ObjectId) -> Result<Objects, RepositoryFailure> {
        let mut connection = RepositoryConnection::open(self.bridge, repository, self.fetch.limits)?;
        let offered = connection.list_refs(&TIP_PREFIXES.map(str::to_owned))?;
        let objects = self.fetch_tips(&mut connection, &offered, Extent::Everything)?;
        objects
            .filter(|objects| is_commit(objects, &id))
            .ok_or_else(|| RepositoryFailure::unusable(format!("a repository that does not serve the commit {id}")))
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
    ) -> Result<ObjectId, RepositoryFailure> {
        let GitLimits { submodule_depth, submodules: max_submodules, .. } = self.fetch.limits;
        let checkout = Checkout { objects, target, refused_file_bytes: self.refused_file_bytes, stop: self.stop };
        let (commit, root) = checkout.peel_to_commit(id)?;
        let CheckoutResult { submodules, gitmodules, lfs_pointers, unknown_encodings } =
            checkout.lay_out(root, &mut self.tree)?;
        self.lfs_pointers.extend(lfs_pointers);
        self.unknown_encodings.extend(unknown_encodings);
        let submodule_entries = Submodules::parse(gitmodules.as_deref().unwrap_or_default())?;
        for (path, id) in submodules {
            // Each lookup scans all submodules, so many lookups take long.
            checkout.check_cancelled()?;
            let Some(inner_repository) = submodule_entries.find(path.as_ref(), repository)? else { continue };
            TreeError::check_limit(depth + 1, submodule_depth, "submodules one in the other")?;
            self.submodules += 1;
            TreeError::check_limit(self.submodules, max_submodules, "submodules")?;
            let inner_target = TreePath::parse(&path).and_then(|path| target.join(&path));
            let inner_target = inner_target.map_err(|error| TreeError::bad_path(&path, &error))?;
            self.origin = inner_repository.origin_text();
            let objects = self.fetch_submodule(&inner_repository, id)?;
            self.lay_out(&inner_repository, &objects, id, &inner_target, depth + 1)?;
            self.origin = repository.origin_text();
        }
        Ok(commit)
    }

    /// Fetches the commit of a submodule. The outer tree names the commit, so no ref of the submodule needs to lead to it.
    fn fetch_submodule(&mut self, repository: &Repository, id: ObjectId) -> Result<Objects, RepositoryFailure> {
        let mut connection = RepositoryConnection::open(self.bridge, repository, self.fetch.limits)?;
        if !connection.may_serve_any_id() {
            let offered = connection.list_refs(&TIP_PREFIXES.map(str::to_owned))?;
            if !offered.iter().any(|offered| offered.id == id) {
                drop(connection);
                return self.fetch_everything(repository, id);
            }
        }
        self.fetch_commit(repository, connection, id)
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
    let header = FindHeader::try_header(&**objects, id);
    matches!(header, Ok(Some(header)) if matches!(header.kind, Kind::Commit | Kind::Tag))
}

/// The commits and tags whose ids begin with `prefix`.
fn commits_with_prefix(objects: &Objects, prefix: &str) -> Vec<ObjectId> {
    let Ok(prefix) = gix_hash::Prefix::from_hex(prefix) else { return Vec::new() };
    let mut found = HashSet::new();
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
