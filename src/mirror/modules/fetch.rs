//! Fetches the tree of a module from a source address: git, archives, and pages that name another source. Archives are
//! downloaded into staging, and resumed where they break, also after a restart.

use std::collections::HashSet;
use std::io::Seek;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use url::Url;

use crate::address::ModulePackage;
use crate::digest::FastHash;
use crate::error::Error;
use crate::mirror::Modules;
use crate::mirror::archives::archive_request::{FileRequest, as_upstream_failure};
use crate::mirror::archives::download::{Download, validators};
use crate::mirror::counters::REFUSED_TREE;
use crate::mirror::documents::RETRIES;
use crate::mirror::documents::module_location::{LocationDocument, location_label, subdir_in_archive};
use crate::mirror::library::Reservation;
use crate::mirror::request_context::RequestContext;
use crate::packaging::{Tree, TreeError, TreeLimits, TreePath, find_folder, unpack};
use crate::store::{Scratch, StoreError};
use crate::upstream::CredentialScope;
use crate::upstream::discovery::Service;
use crate::upstream::error::UpstreamError;
use crate::upstream::git::GitError;
use crate::upstream::limits::{ConcurrencyLimit, Permit};
use crate::upstream::outbound::origin;
use crate::upstream::request::{AcceptedCoding, Fetched, UpstreamRequest, Validators};
use crate::upstream::source::{
    ArchiveSource, Checksum, ExpectedChecksum, LocatedSource, PackageSource, Subdir, location_in_page,
};

/// Maximum length of a chain of pages (go-getter).
const MAX_PAGES: usize = 10;
/// Limits how many archives are unpacked and packed concurrently: this takes CPU time, and file names are in memory.
/// One upstream gets at most half.
pub const UNPACK_LIMITS: ConcurrencyLimit =
    ConcurrencyLimit { per_upstream: 2, all: 4, wait: Duration::from_secs(300), queue: 256 };
/// The time that a folder named by a page is remembered, for clients that cannot wait for the archive.
const SUBDIR_CACHED_FOR: Duration = Duration::from_secs(3600);
/// Maximum size of a page that names a source, in bytes.
const MAX_PAGE_BYTES: u64 = 1 << 20;
/// The fetched tree of a package, and the folder of the module in it.
pub struct FetchedTree {
    pub tree: Tree,
    /// The folder that becomes the root of the archive.
    pub root: TreePath,
    /// The folder of the module below that root.
    pub subdir: Option<String>,
    pub commit: Option<String>,
    /// The validators sent by an archive's server.
    pub validators: Validators,
    /// The origin that it was fetched from.
    pub origin: String,
    /// Held until the tree is packed, so that many cold modules do not exhaust memory. A task that waits for one holds
    /// neither another one nor any other permit.
    _permit: Permit,
    /// Dropped last: it contains the tree's files.
    _scratch: Scratch,
}

/// The reason that a tree could not be fetched.
pub struct FetchTreeError {
    pub error: Error,
    /// True if the location may be outdated: registries sign URLs, and the file behind one may have been replaced.
    pub may_be_stale_location: bool,
}

impl<E: Into<Error>> From<E> for FetchTreeError {
    fn from(error: E) -> Self {
        Self { error: error.into(), may_be_stale_location: false }
    }
}

/// One fetch of a package: its upstream, credential scope and memory reservation.
pub struct SourceFetch<'a> {
    pub modules: &'a Arc<Modules>,
    pub package: &'a ModulePackage,
    pub credential_scope: CredentialScope,
    pub call: &'a RequestContext,
    pub reservation: &'a mut Reservation,
}

impl<'a> SourceFetch<'a> {
    pub async fn new(
        modules: &'a Arc<Modules>,
        package: &'a ModulePackage,
        call: &'a RequestContext,
        reservation: &'a mut Reservation,
    ) -> Result<Self, Error> {
        call.upstream(&package.module.host)?;
        let credential_scope = modules.documents.credentials_for(Service::Modules, &package.module.host, call).await;
        Ok(Self { modules, package, credential_scope, call, reservation })
    }

    /// Fetches the tree that a location leads to.
    pub async fn fetch_tree(mut self, location: &LocationDocument) -> Result<FetchedTree, FetchTreeError> {
        let LocatedSource { mut source, mut subdir } = location.parsed.clone();
        for _ in 0..=MAX_PAGES {
            match source {
                PackageSource::Git(_) | PackageSource::Archive(_) => return self.fetched(&source, subdir).await,
                PackageSource::Unsupported(unsupported) => {
                    let reason = format!("names {}, which larder cannot fetch", unsupported.describe());
                    return Err(self.unusable(&self.package.module.host, reason).into());
                }
                PackageSource::Indirect(page) => {
                    let inner = self.page(&page).await?;
                    subdir = match (inner.subdir, subdir) {
                        (Some(outer), Some(below)) => {
                            Some(outer.join(&below).map_err(|bad| self.unusable(origin(&page), bad.to_string()))?)
                        }
                        (outer, below) => outer.or(below),
                    };
                    source = inner.source;
                    if let PackageSource::Git(_) | PackageSource::Archive(_) = source {
                        self.remember_subdir(subdir.as_ref())?;
                    }
                }
            }
        }
        let reason = format!("a chain of more than {MAX_PAGES} pages");
        Err(self.unusable(&self.package.module.host, reason).into())
    }

    /// Remembers the module's folder for clients whose deadline ends before the archive is packed.
    fn remember_subdir(&self, subdir: Option<&Subdir>) -> Result<(), Error> {
        let RequestContext { config, now, .. } = self.call;
        let (key, subdir) = (config.key_of_package(self.package), subdir_in_archive(self.package, subdir)?);
        config.pending_subdirs.insert(self.call.effects(), key, subdir, SUBDIR_CACHED_FOR, *now);
        Ok(())
    }

    /// Fetches a page and reads the source that it names.
    async fn page(&self, page: &Url) -> Result<LocatedSource, FetchTreeError> {
        let (outbound, subject) = (&self.call.config.outbound, self.subject());
        let request = self.request(page, &subject);
        let unusable = |reason: &str| self.unusable(origin(page), reason);
        let fetched = outbound.document(AcceptedCoding::Any, request, None, MAX_PAGE_BYTES).await;
        let Fetched::New(document) = fetched.map_err(location_fault)? else {
            return Err(unusable("304 to an unconditional request").into());
        };
        let named = location_in_page(document.location.as_deref(), &document.body)
            .ok_or_else(|| unusable("neither X-Terraform-Get nor a terraform-get tag in its page names a source"))?;
        Ok(PackageSource::parse(&named, page).map_err(|bad| unusable(&bad.to_string()))?)
    }

    async fn fetched(&mut self, source: &PackageSource, subdir: Option<Subdir>) -> Result<FetchedTree, FetchTreeError> {
        let spooling = self.modules.library.on_disk(|library| {
            let scratch = library.scratch()?;
            let spool = scratch.file()?;
            Ok((scratch, spool))
        });
        let (scratch, spool) = spooling.await?;
        let (bytes, file_bytes) = (self.modules.max_tree_bytes(), self.call.config.max_module_file_bytes);
        let limits = TreeLimits { bytes, file_bytes, ..TreeLimits::default() };
        let tree = Tree::new(spool, limits);
        let (tree, permit, commit, validators, origin) = match source {
            PackageSource::Git(git) => {
                let subject = self.subject();
                let ask = self.request(&git.url, &subject);
                let fetched = self.call.config.outbound.git(ask, git, scratch.path(), tree).await;
                let fetched = fetched.map_err(|error| self.git_failed(error, &git.url))?;
                for note in fetched.notes {
                    tracing::warn!(package = %self.package, note, "clients should know this about a module's repository");
                }
                (fetched.tree, fetched.permit, Some(fetched.commit), Validators::default(), origin(&git.url))
            }
            PackageSource::Archive(archive) => {
                let (tree, permit, validators) = self.archive(archive, tree).await?;
                (tree, permit, None, validators, origin(&archive.url))
            }
            PackageSource::Indirect(_) | PackageSource::Unsupported(_) => {
                return Err(Error::Interrupted(self.subject()).into());
            }
        };
        let root = match &subdir {
            Some(Subdir::Glob { wrapper: pattern, .. }) => {
                find_folder(&tree, pattern).map_err(|reason| self.refused(&origin, reason))?
            }
            Some(Subdir::Plain(_)) | None => TreePath::root(),
        };
        let subdir = subdir_in_archive(self.package, subdir.as_ref())?;
        Ok(FetchedTree { tree, root, subdir, commit, validators, origin, _permit: permit, _scratch: scratch })
    }

    pub fn request<'b>(&'b self, url: &'b Url, subject: &'b str) -> UpstreamRequest<'b> {
        self.call.upstream_request(subject, url, &self.package.module.host, &self.credential_scope, RETRIES)
    }

    pub fn subject(&self) -> String {
        format!("the package of {}", self.package)
    }

    fn unusable(&self, origin: impl ToString, reason: impl Into<String>) -> Error {
        UpstreamError::unusable(location_label(self.package), origin, reason).into()
    }

    /// Converts an error of the git client.
    pub fn git_failed(&self, error: GitError, url: &Url) -> Error {
        match error {
            GitError::Upstream(error) => error.into(),
            GitError::Tree { origin, error, .. } => self.refused(&origin, error),
            GitError::Disk { error, .. } => self.refused(&origin(url), TreeError::Spool(error)),
        }
    }

    fn refused(&self, origin: &str, reason: TreeError) -> Error {
        self.modules.refused_tree(self.package, origin, reason)
    }
}

impl Modules {
    /// Maximum size of a tree: one that cannot fit into the store is not unpacked.
    fn max_tree_bytes(&self) -> u64 {
        self.runtime.limits.archive_bytes.min(self.library.size_limit_bytes())
    }

    /// Converts an error about the tree. A failed or full disk is a store error, not a refused tree.
    pub(super) fn refused_tree(&self, package: &ModulePackage, origin: &str, reason: TreeError) -> Error {
        match reason {
            TreeError::Spool(source) => {
                let path = self.library.folder().join("staging");
                StoreError::Io { doing: "unpack and pack a module in", path, source }.into()
            }
            TreeError::TooLarge(_) if self.max_tree_bytes() < self.runtime.limits.archive_bytes => {
                let limit = self.library.size_limit_bytes();
                StoreError::NoRoom { needed: limit + 1, limit, unevictable: 0 }.into()
            }
            reason => {
                self.runtime.counters.count_unverified(&package.module.host, REFUSED_TREE);
                let (subject, cause) = (format!("the package of {package} from {origin}"), reason.to_string());
                match reason {
                    TreeError::LargeFile { .. } => {
                        Error::BeyondLimit { subject, cause, remedy: "raise [store] max_module_file" }
                    }
                    TreeError::TooLarge(_) => {
                        Error::BeyondLimit { subject, cause, remedy: "larder takes no larger module" }
                    }
                    _ => Error::Unverified { subject, verdict: cause, instead: None },
                }
            }
        }
    }
}

/// Converts an error for a file that a location names.
pub fn location_fault(error: UpstreamError) -> FetchTreeError {
    let may_be_stale_location = error.fault.may_be_an_expired_url();
    let error = as_upstream_failure(error, "the source that its location names").into();
    FetchTreeError { error, may_be_stale_location }
}

/// Maximum size of a checksum list, in bytes.
const MAX_CHECKSUM_LIST_BYTES: u64 = 1 << 20;

impl SourceFetch<'_> {
    /// Downloads an archive, compares it with the checksum in its address, and unpacks it.
    pub async fn archive(
        &mut self,
        source: &ArchiveSource,
        tree: Tree,
    ) -> Result<(Tree, Permit, Validators), FetchTreeError> {
        let subject = self.subject();
        let expected = match &source.checksum {
            None => None,
            Some(ExpectedChecksum::Is(checksum)) => Some(checksum.clone()),
            Some(ExpectedChecksum::Listed(list)) => Some(self.listed_checksum(list, &source.url).await?),
        };
        // A staging file belongs to one package and one URL.
        let name = FastHash::of(format!("{} {}", self.package, source.url).as_bytes()).to_string();
        let name = self.modules.work.stage_names.reserve(&format!("module~{}", &name[..32]));
        let Self { modules, call, .. } = self;
        let service = (Service::Modules, &self.package.module.host);
        let mut request =
            FileRequest::new(&modules.documents, service, subject.clone(), source.url.clone(), (*call).clone());
        let download = Download {
            library: &modules.library,
            source: &mut request,
            stage_name: &name.name,
            reservation: self.reservation,
            expected_bytes: 0,
            is_verified_by_digest: false,
            intake: None,
            progress: None,
            listed_fill: None,
        };
        let staged = download.run().await.map_err(|error| match error {
            Error::Upstream(error) => location_fault((*error).clone()),
            error => error.into(),
        })?;
        let validators = validators(&staged);
        let permit = self.unpack_permit().await?;
        let (format, origin) = (source.format, origin(&source.url));
        let unpacking = self.modules.library.on_disk(move |_| {
            let (mut tree, _name) = (tree, name);
            let mut file = staged.file()?;
            let actual = expected.as_ref().map(|expected| Checksum::of(expected.kind(), &mut file)).transpose();
            let actual = actual.map_err(|error| staged.unreadable(error))?;
            let unpacked = match (actual, expected) {
                (Some(actual), Some(expected)) if actual != expected => {
                    Err(format!("its bytes have {actual}, but its address says {expected}"))
                }
                _ => {
                    file.rewind().map_err(|error| staged.unreadable(error))?;
                    Ok(unpack(format, &mut file, &mut tree).map(|()| tree))
                }
            };
            // Discarded even if it is wrong, so that a resume never builds on wrong bytes.
            staged.discard()?;
            Ok(unpacked)
        });
        match unpacking.await? {
            Ok(Ok(tree)) => Ok((tree, permit, validators)),
            Ok(Err(reason)) => Err(self.refused(&origin, reason).into()),
            Err(verdict) => {
                let error = Error::Unverified { subject: format!("{subject} from {origin}"), verdict, instead: None };
                Err(FetchTreeError { error, may_be_stale_location: true })
            }
        }
    }

    /// Waits for a permit to unpack. The caller holds nothing but its staging file meanwhile.
    async fn unpack_permit(&self) -> Result<Permit, Error> {
        let permit = self.modules.work.unpacking.take(&self.package.module.host, self.call.priority).await;
        let reason = || "the limit of archives unpacked at one time is reached".to_owned();
        permit.ok_or_else(|| Error::Busy { subject: self.subject(), reason: reason() })
    }

    /// Fetches a checksum list and finds the archive's checksum in it.
    async fn listed_checksum(&self, list: &Url, archive: &Url) -> Result<Checksum, FetchTreeError> {
        let subject = format!("the list of checksums for {}", self.subject());
        let (outbound, request) = (&self.call.config.outbound, self.request(list, &subject));
        let fetched = outbound.document(AcceptedCoding::Identity, request, None, MAX_CHECKSUM_LIST_BYTES).await;
        let found = match fetched.map_err(location_fault)? {
            Fetched::New(document) => Checksum::in_list(&document.body, list, archive),
            Fetched::Unchanged => None,
        };
        Ok(found.ok_or_else(|| self.unusable(origin(list), "its list of checksums has none for the archive"))?)
    }
}

/// The staging names in use. Two fetches that append to one file would mix their bytes.
#[derive(Debug, Clone, Default)]
pub struct StageNames(Arc<Mutex<HashSet<String>>>);

/// A staging name, reserved until dropped.
pub struct StageName {
    name: String,
    names: StageNames,
}

impl StageNames {
    /// Reserves the name, or a numbered variant while another fetch uses it: an `accept` and a client's fill may run
    /// concurrently.
    fn reserve(&self, name: &str) -> StageName {
        let mut taken = self.0.lock();
        let mut reserved = name.to_owned();
        for number in 1_u64.. {
            if taken.insert(reserved.clone()) {
                break;
            }
            reserved = format!("{name}~{number}");
        }
        StageName { name: reserved, names: self.clone() }
    }
}

impl Drop for StageName {
    fn drop(&mut self) {
        self.names.0.lock().remove(&self.name);
    }
}
