//! Background check that a stored module version still resolves to the pinned tree. It runs after its location was
//! revalidated. A moved tag is an alarm; the stored archive stays served (DESIGN 6).

use crate::mirror::Modules;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::address::ModulePackage;
use crate::clock::CLOCK_SLACK;
use crate::error::Error;
use crate::mirror::documents::module_location::LocationDocument;
use crate::mirror::documents::module_location::subdir_in_archive;
use crate::mirror::library::module_history::{self, ModuleFirstSeen, PinnedTree};
use crate::mirror::modules::fetch::{FetchTreeError, SourceFetch, git_ask};
use crate::mirror::{Connectivity, RequestContext};
use crate::packaging::{PACKER, pack};
use crate::upstream::error::Fault;
use crate::upstream::request::{Fetched, RequestPriority};
use crate::upstream::source::PackageSource;

/// Minimum interval between two attempts to check one version, unless its location becomes stale earlier.
const RECHECK_INTERVAL: Duration = Duration::from_secs(300);

/// The condition for a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) enum RecheckMode {
    /// Only if upstream confirmed the location since the last check.
    IfDue,
    /// Always: an operator asks for it.
    Always,
}

impl Modules {
    /// Starts a background check, unless one ran since upstream confirmed the location.
    pub(in crate::mirror) fn recheck_if_due(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        location: LocationDocument,
        call: &RequestContext,
    ) {
        // Upstream has deleted the version, so its old location proves nothing.
        if self.runtime.connectivity() == Connectivity::Offline
            || location.age.gone
            || call.config.recently_rechecked.get(key, call.now).is_some()
        {
            return;
        }
        let fresh = call
            .config
            .upstreams
            .get(&key.module.host)
            .map_or(Duration::ZERO, |upstream| upstream.settings.fresh.download);
        let until = call.now.after(RECHECK_INTERVAL.min(fresh));
        call.config.recently_rechecked.insert(key.clone(), (), until, call.now);
        let recheck = (key.clone(), call.config.generation);
        // One check at a time per version. No request waits for it.
        drop(self.work.recheck_flights.join_or_spawn(&self.runtime.tasks, recheck, (), || {
            let (modules, package, key) = (Arc::clone(self), package.clone(), key.clone());
            // Clients take precedence.
            let call = RequestContext { priority: RequestPriority::Job, ..self.runtime.flight_context(call) };
            async move {
                if let Err(error) = modules.recheck(&package, &key, &location, RecheckMode::IfDue, &call).await {
                    tracing::warn!(%package, %error, "a module version could not be rechecked; the stored copy is served");
                }
            }
        }));
    }

    /// Checks the version and records the result.
    pub(in crate::mirror) async fn recheck(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        location: &LocationDocument,
        mode: RecheckMode,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let owned_key = key.clone();
        let Some(seen) = self
            .library
            .on_disk(move |library| module_history::read_first_seen(library, &owned_key))
            .await?
            .first_seen()
        else {
            return Ok(());
        };
        // A check time in the future comes from a clock that was ahead, and does not count.
        if mode == RecheckMode::IfDue
            && seen.looked >= location.age.checked
            && seen.looked <= call.now.after(CLOCK_SLACK)
        {
            return Ok(());
        }
        let pinned_tree = match self.probe(package, location, &seen, call).await? {
            Some(known) => known,
            None => self.observe(package, location, call).await?,
        };
        let (recheck, looked) = (key.clone(), location.age.checked);
        let now = pinned_tree.clone();
        let comparison =
            self.library.on_disk(move |library| module_history::compare(library, &recheck, &now, Some(looked))).await?;
        let (package, key) = (package.clone(), key.clone());
        self.library
            .on_disk(move |library| {
                let accepting = format!("`larder accept {key}`");
                if library.require_pinned_tree(&package, &key, &pinned_tree, comparison, &accepting).is_ok() {
                    library.resolve_alarms(crate::mirror::modules::RESOLVED_BY_ACCEPT, &key.module, &key.version);
                }
                Ok(())
            })
            .await
    }

    /// Compares by the commit of the ref or by a conditional request, without fetching the tree. `None` if that is not
    /// conclusive.
    async fn probe(
        self: &Arc<Self>,
        package: &ModulePackage,
        location: &LocationDocument,
        seen: &ModuleFirstSeen,
        call: &RequestContext,
    ) -> Result<Option<PinnedTree>, Error> {
        let mut reservation = self.library.reservation();
        let fetch = SourceFetch::new(self, package, call, &mut reservation).await?;
        let subject = fetch.subject();
        let subdir = subdir_in_archive(package, location.located.subdir.as_ref())?;
        let known = || [Some(&seen.pinned), seen.moved.as_ref()].into_iter().flatten();
        match &location.located.source {
            PackageSource::Git(git) => {
                let commit = call.config.outbound.git_commit(git_ask(fetch.request(&git.url, &subject), git)).await;
                let commit = commit.map_err(|error| fetch.git_failed(error, &git.url))?;
                let is_it = |pinned_tree: &&PinnedTree| pinned_tree.commit == commit && pinned_tree.subdir == subdir;
                Ok(known().find(is_it).filter(|_| commit.is_some()).cloned())
            }
            PackageSource::Archive(archive) => {
                let of_this =
                    |pinned_tree: &&PinnedTree| pinned_tree.source == location.digest && pinned_tree.has_validators();
                let Some(before) = known().find(of_this) else { return Ok(None) };
                // A body limit of one byte: only a 304 is useful.
                match call
                    .config
                    .outbound
                    .small_file(fetch.request(&archive.url, &subject), Some(&before.validators), 1)
                    .await
                {
                    Ok(Fetched::Unchanged) => Ok(Some(before.clone())),
                    Ok(Fetched::New(_)) => Ok(None),
                    Err(error) if matches!(error.fault, Fault::TooLarge(_)) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            PackageSource::Indirect(_) | PackageSource::Unsupported(_) => Ok(None),
        }
    }

    /// Fetches the current tree and computes its digest, without storing anything.
    async fn observe(
        self: &Arc<Self>,
        package: &ModulePackage,
        location: &LocationDocument,
        call: &RequestContext,
    ) -> Result<PinnedTree, Error> {
        let mut reservation = self.library.reservation();
        let fetched = SourceFetch::new(self, package, call, &mut reservation)
            .await?
            .tree(location)
            .await
            .map_err(FetchTreeError::error)?;
        self.library.reserve(&mut reservation, fetched.tree.bytes()).await?;
        let (commit, validators, at, origin) =
            (fetched.commit.clone(), fetched.validators.clone(), call.now, fetched.origin.clone());
        let subdir = fetched.subdir.clone();
        let packed = self.library.on_disk(move |_| Ok(pack(&fetched.tree, &fetched.root, &mut io::sink()))).await?;
        let subject = || format!("the package of {package} from {origin}");
        let packed = packed.map_err(|reason| Error::Unverified { subject: subject(), verdict: reason.to_string() })?;
        Ok(PinnedTree { tree: packed.tree, commit, packer: PACKER, source: location.digest, subdir, validators, at })
    }
}
