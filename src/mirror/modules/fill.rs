//! Fills one module version: locate, fetch, pack, compare with the first-seen tree, commit. A fill outlives its first
//! caller. Concurrent callers share its result (promise 4). A background check sees if a stored version still resolves
//! to the first-seen tree: it runs after its location was revalidated. A moved tag is an alarm; the stored archive stays
//! served.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::address::{Artifact, ModulePackage};
use crate::clock::{CLOCK_SLACK, Timestamp};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::download::StageWriter;
use crate::mirror::archives::fill::FillGauge;
use crate::mirror::counters::ObjectKind;
use crate::mirror::documents::module_location::{LocationDocument, subdir_in_archive};
use crate::mirror::library::StoredArchive;
use crate::mirror::library::damage::DELETED_UPSTREAM;
use crate::mirror::library::intake::{PackedArchive, TreeExpectation};
use crate::mirror::library::module_history::{self, ComparisonPurpose, ModuleFirstSeen, ModuleTree};
use crate::mirror::modules::fetch::{FetchTreeError, FetchedTree, SourceFetch};
use crate::mirror::single_flight::shareable;
use crate::mirror::{Connectivity, Library, Modules, RequestContext};
use crate::packaging::{PACKER, PackResult, TreeError, pack, resolve};
use crate::store::{Key, StoreError};
use crate::upstream::error::Fault;
use crate::upstream::request::{AcceptedCoding, Fetched, RequestPriority};
use crate::upstream::source::PackageSource;
use crate::verify::PackedTree;

/// Bytes evicted at the first attempt to recover from a full disk during a fill.
const FIRST_EVICTION_BYTES: u64 = 64 << 20;
/// Maximum bytes evicted for one module: the size of the largest tree allowed.
const MAX_EVICTION_BYTES: u64 = 4 << 30;

impl Modules {
    /// Joins or starts the fill of a version and waits for it.
    ///
    /// # Errors
    /// [`Error::TooManyUnattendedFills`] if the client already started the maximum of fills that it does not wait for; otherwise
    /// the error of the fill.
    pub async fn module_fill(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<StoredArchive, Error> {
        self.documents.permit(&package.module, &package.version, call).await?;
        if call.tries_other_policies() {
            // It fetches nothing that those of this larder deny.
            let own = RequestContext { policy: Arc::clone(&call.config.policy), ..call.clone() };
            self.documents.permit(&package.module, &package.version, &own).await?;
        }
        let key = call.config.key_of_package(package);
        let subject = format!("the archive of {package}");
        let if_task_dies = Err(Error::Interrupted(subject.clone()));
        let (flight, client) = ((key.clone(), call.config_and_proxy_path()), call.client);
        let may_start = || self.started_fills.may_start(client, || subject);
        let filled = self.work.fill_flights.try_join(flight, may_start, |guard| {
            let (modules, package, call) = (Arc::clone(self), package.clone(), self.runtime.flight_context(call));
            let work = async move {
                // A fill may have finished just before this one started.
                if let Some(archive) = modules.library.stored_module_here(&key).await? {
                    return Ok(archive);
                }
                let filled = modules.fill_module(&package, TreeExpectation::FirstSeen, &call).await;
                if let Err(error) = &filled {
                    tracing::error!(%package, %error, "a module could not be fetched");
                }
                filled
            };
            let (filled, spawn) = shareable(&self.runtime.tasks, if_task_dies, work);
            let followed = filled.downgrade();
            let run = || {
                let started = followed.and_then(|followed| self.started_fills.started(client, followed));
                spawn((started, guard));
            };
            (filled, run)
        });
        filled?.await
    }

    /// The error of a fill for a dry run: that of the last one, [`Error::Slow`] if that took longer than `patience`, and
    /// [`Error::WouldAsk`] if none is known.
    pub fn replay_fill(&self, package: &ModulePackage, patience: Duration, call: &RequestContext) -> Error {
        let subject = format!("the archive of {package}");
        let name = Key::Name(Artifact::Module(call.config.key_of_package(package)));
        let replayed = call.config.last_answers.replay(&name, &subject, patience, call.now);
        replayed.err().unwrap_or(Error::WouldAsk(subject))
    }

    /// Fetches, packs and commits a version. On a full disk it evicts increasing amounts and retries.
    pub async fn fill_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        expectation: TreeExpectation,
        call: &RequestContext,
    ) -> Result<StoredArchive, Error> {
        let _counted = FillGauge::new(&self.runtime.counters.fills);
        let mut eviction_bytes = FIRST_EVICTION_BYTES;
        let filled = loop {
            match self.try_to_fill_module(package, expectation.clone(), call).await {
                Err(Error::Store(full)) if full.is_full() && eviction_bytes <= MAX_EVICTION_BYTES => {
                    // The size needed is unknown in advance, so each retry evicts eight times as much.
                    let freeing =
                        self.library.on_disk(move |library| library.free_more_disk_space(eviction_bytes, &full));
                    if let Err(reason) = freeing.await {
                        break Err(reason);
                    }
                    eviction_bytes = eviction_bytes.saturating_mul(8);
                }
                filled => break filled,
            }
        };
        let name = Key::Name(Artifact::Module(call.config.key_of_package(package)));
        // No late fill needs a record: its archive is stored.
        call.record_answer(&name, Duration::MAX, &filled);
        match &filled {
            Ok(_) => self.library.count_stored(ObjectKind::Archive),
            Err(Error::NotFound(_)) => self.drop_lost(&call.config.key_of_package(package)).await,
            Err(Error::Store(reason)) => self.library.count_not_stored(ObjectKind::Archive, reason),
            Err(_) => {}
        }
        filled
    }

    /// Takes the archives of a version off its name that are not there, because upstream has deleted it.
    async fn drop_lost(&self, key: &ModulePackage) {
        let owned_key = key.clone();
        let name = self.library.on_disk(move |library| library.catalog.name_record(&owned_key)).await;
        for archive in name.map(|name| name.archives).unwrap_or_default() {
            self.library.drop_lost(key, archive.digest, DELETED_UPSTREAM).await;
        }
    }

    async fn try_to_fill_module(
        self: &Arc<Self>,
        package: &ModulePackage,
        expectation: TreeExpectation,
        call: &RequestContext,
    ) -> Result<StoredArchive, Error> {
        let packed = self.fetch_and_pack(package, call).await?;
        let (package, key, now) = (package.clone(), call.config.key_of_package(package), call.present());
        self.library.on_disk(move |library| library.commit_module(&package, &key, packed, expectation, now)).await?
    }

    /// Fetches a version and packs it into staging. If the location may be outdated, it is fetched again, once.
    async fn fetch_and_pack(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<PackedArchive, Error> {
        // A separate reservation per fill, released when the archive is packed.
        let mut reservation = self.library.reservation();
        let mut location = self.documents.get(package, call).await?.value.as_location(package)?;
        let fetched = match SourceFetch::new(self, package, call, &mut reservation).await?.fetch_tree(&location).await {
            Err(FetchTreeError { error, may_be_stale_location: true }) => {
                tracing::warn!(%package, %error, "a location's source was refused; the location is fetched again");
                let document = self.documents.fetch_now(package, Some(location.confirmed), call).await?;
                location = document.value.as_location(package)?;
                SourceFetch::new(self, package, call, &mut reservation).await?.fetch_tree(&location).await
            }
            fetched => fetched,
        };
        let fetched = fetched.map_err(|failed| failed.error)?;
        let origin = fetched.origin.clone();
        // The archive may be larger than the tree, because links become copies.
        let resolving = self.library.on_disk(move |_| {
            let bytes = resolve(&fetched.tree, &fetched.root).map(|resolved| resolved.max_archive_bytes());
            Ok((fetched, bytes))
        });
        let (fetched, resolved) = resolving.await?;
        if let Ok(bytes) = resolved {
            self.library.reserve(&mut reservation, bytes).await?;
        }
        // A separate staging file: an `accept` and a client's fill of one version may run concurrently.
        let name = format!("packed~{}", self.work.packed.fetch_add(1, Ordering::Relaxed));
        let (owned_package, now) = (package.clone(), call.present());
        let packing = self
            .library
            .on_disk(move |library| pack_into_stage(library, &owned_package, &name, fetched, &location, now));
        packing.await?.map_err(|reason| self.refused_tree(package, &origin, reason))
    }
}

/// Packs a tree into a staging file. The scratch folder is deleted with the tree.
fn pack_into_stage(
    library: &Library,
    package: &ModulePackage,
    name: &str,
    fetched: FetchedTree,
    location: &LocationDocument,
    now: Timestamp,
) -> Result<Result<PackedArchive, TreeError>, StoreError> {
    // Leftovers of an earlier run are discarded: packing again takes only a moment.
    let mut staged = library.stage_anew(name)?;
    let mut writer = StageWriter::new(&mut staged);
    let packed = pack(&fetched.tree, &fetched.root, &mut writer);
    let PackResult { tree_digest: tree, notes } = match writer.end(packed) {
        Ok(Ok(packed)) => packed,
        Ok(Err(reason)) => {
            staged.discard()?;
            return Ok(Err(reason));
        }
        Err(failed) => {
            staged.discard()?;
            return Err(failed);
        }
    };
    for note in notes {
        tracing::warn!(%package, note, "a part of a module's repository was left out of its archive");
    }
    Ok(Ok(PackedArchive { staged, tree: fetched.summary(tree, location, now), origin: fetched.origin }))
}

impl FetchedTree {
    /// The tree with this digest, without its files.
    fn summary(&self, tree: Digest, location: &LocationDocument, at: Timestamp) -> ModuleTree {
        let (commit, subdir) = (self.commit.clone(), self.subdir.clone());
        let packed = PackedTree { tree_digest: tree, commit, packer: PACKER, source: location.digest, subdir };
        ModuleTree { packed, validators: self.validators.clone(), at }
    }
}

/// Minimum interval between two attempts to check one version, unless its location becomes stale earlier.
const RECHECK_INTERVAL: Duration = Duration::from_secs(300);

/// The condition for a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecheckMode {
    /// Only if upstream confirmed the location since the last check.
    IfDue,
    /// Always: an operator asks for it.
    Always,
}

impl Modules {
    /// Starts a background check, unless one ran since upstream confirmed the location.
    pub fn recheck_if_due(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        location: LocationDocument,
        call: &RequestContext,
    ) {
        // Upstream has deleted the version, so its old location proves nothing.
        if self.runtime.connectivity() == Connectivity::Offline
            || location.confirmed.gone
            || call.config.recently_rechecked.get(key, call.now).is_some()
        {
            return;
        }
        let fresh = call
            .config
            .upstreams
            .get(&key.module.host)
            .map_or(Duration::ZERO, |upstream| upstream.settings.fresh.download);
        let interval = RECHECK_INTERVAL.min(fresh);
        call.config.recently_rechecked.insert(call.effects(), key.clone(), (), interval, call.now);
        let recheck = (key.clone(), call.config.generation);
        // One check at a time per version. No request waits for it, so without effects it never runs.
        drop(self.work.recheck_flights.join_or_spawn(call.effects(), &self.runtime.tasks, recheck, (), || {
            let (modules, package) = (Arc::clone(self), package.clone());
            // Clients take precedence.
            let call = RequestContext { priority: RequestPriority::Job, ..self.runtime.flight_context(call) };
            async move {
                if let Err(error) = modules.recheck(&package, &location, RecheckMode::IfDue, &call).await {
                    tracing::warn!(%package, %error, "a module version could not be rechecked; the stored copy is served");
                }
            }
        }));
    }

    /// Checks the version and records the result.
    pub async fn recheck(
        self: &Arc<Self>,
        package: &ModulePackage,
        location: &LocationDocument,
        mode: RecheckMode,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let key = call.config.key_of_package(package);
        let wanted = key.clone();
        let first_seen = self.library.on_disk(move |library| module_history::read_first_seen(library, &wanted));
        let Some(seen) = first_seen.await?.intact() else { return Ok(()) };
        // A check time in the future comes from a clock that was ahead, and does not count.
        if mode == RecheckMode::IfDue
            && seen.location_checked >= location.confirmed.checked
            && seen.location_checked <= call.now.after(CLOCK_SLACK)
        {
            return Ok(());
        }
        let tree = match self.probe(package, location, &seen, call).await? {
            Some(known) => known,
            None => self.observe(package, location, call).await?,
        };
        let package = package.clone();
        let purpose = ComparisonPurpose::Recheck { location_checked: location.confirmed.checked };
        let record = move |library: &Library| {
            let comparison = module_history::compare(library, &key, &tree, purpose)?;
            let accept_command = format!("`larder accept {key}`");
            if library.require_first_seen_tree(&package, &key, &tree, comparison, &accept_command).is_ok() {
                library.resolve_tree_alarms(&key);
            }
            Ok(())
        };
        self.library.on_disk(record).await
    }

    /// Compares by the commit of the ref or by a conditional request, without fetching the tree. `None` if that is not
    /// conclusive.
    async fn probe(
        self: &Arc<Self>,
        package: &ModulePackage,
        location: &LocationDocument,
        seen: &ModuleFirstSeen,
        call: &RequestContext,
    ) -> Result<Option<ModuleTree>, Error> {
        let mut reservation = self.library.reservation();
        let fetch = SourceFetch::new(self, package, call, &mut reservation).await?;
        let subject = fetch.subject();
        let subdir = subdir_in_archive(package, location.parsed.subdir.as_ref())?;
        let known = || [Some(&seen.tree), seen.moved.as_ref()].into_iter().flatten();
        match &location.parsed.source {
            PackageSource::Git(git) => {
                let commit = call.config.outbound.git_commit(fetch.request(&git.url, &subject), git).await;
                let commit = commit.map_err(|error| fetch.git_failed(error, &git.url))?;
                let is_same = |tree: &&ModuleTree| tree.packed.commit == commit && tree.packed.subdir == subdir;
                Ok(known().find(is_same).filter(|_| commit.is_some()).cloned())
            }
            PackageSource::Archive(archive) => {
                let is_from_here = |tree: &&ModuleTree| tree.packed.source == location.digest && tree.has_validators();
                let Some(before) = known().find(is_from_here) else { return Ok(None) };
                // A body limit of one byte: only a 304 is useful.
                let request = fetch.request(&archive.url, &subject);
                let (outbound, conditions) = (&call.config.outbound, Some(&before.validators));
                match outbound.document(AcceptedCoding::Identity, request, conditions, 1).await {
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
    pub async fn observe(
        self: &Arc<Self>,
        package: &ModulePackage,
        location: &LocationDocument,
        call: &RequestContext,
    ) -> Result<ModuleTree, Error> {
        let mut reservation = self.library.reservation();
        let fetched = SourceFetch::new(self, package, call, &mut reservation).await?.fetch_tree(location).await;
        let fetched = fetched.map_err(|failed| failed.error)?;
        self.library.reserve(&mut reservation, fetched.tree.bytes()).await?;
        let (origin, location, now) = (fetched.origin.clone(), location.clone(), call.now);
        let packing = self.library.on_disk(move |_| {
            let packed = pack(&fetched.tree, &fetched.root, &mut io::sink());
            Ok(packed.map(|packed| fetched.summary(packed.tree_digest, &location, now)))
        });
        packing.await?.map_err(|reason| self.refused_tree(package, &origin, reason))
    }
}
