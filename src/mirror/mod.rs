//! The cache core: decides between hit, stale, fill and refusal. Contains no HTTP and no client wire format.
//!
//! A request carries its own time. Documents age, archives do not. Upstream work runs in single flights, so a client
//! that disconnects cancels nothing for others.

mod archives;
mod counters;
mod documents;
mod freshness;
mod library;
mod limits;
mod modules;
mod offline;
mod operate;
mod proof_sets;
mod request_context;
mod runtime_config;
mod single_flight;
mod tasks;
mod transfer;
mod ttl_cache;

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

pub use crate::mirror::archives::pass_through::PassThrough;
pub use crate::mirror::archives::unattended::ClientAddress;
pub use crate::mirror::archives::{Archive, ArchiveRef, ProofFile, ProofFileRef, ProofSetRefs};
pub use crate::mirror::counters::Counters;
pub use crate::mirror::documents::pages::{
    PageFromStore, PageSource, StoredDetails, StoredEntry, StoredList, StoredSubject, UpstreamPage,
};
pub use crate::mirror::documents::stored::StoredDocument;
pub use crate::mirror::library::proof_set::ProofSet;
pub use crate::mirror::library::record;
pub use crate::mirror::library::store_errors::StoreFailure;
pub use crate::mirror::library::{Alarm, AlarmKind, PackageHashState, StoredArchive, ZipOrigin};
pub use crate::mirror::limits::Limits;
pub use crate::mirror::modules::{ModuleArchiveRef, ModuleLocation};
pub use crate::mirror::offline::{MissingPackage, RequiredPlatforms};
pub use crate::mirror::operate::accept::{AcceptOutcome, AcceptResult, ChangedFile};
pub use crate::mirror::operate::gauges::MirrorGauges;
pub use crate::mirror::operate::pin::{PinChange, PinOutcome, PinResult};
pub use crate::mirror::operate::purge::PurgeResult;
pub use crate::mirror::operate::refresh::{RefreshOutcome, RefreshResult};
pub use crate::mirror::operate::rehash::{DamageFinding, DamagedArchive, RepairOutcome};
pub use crate::mirror::operate::scrub::VerifyEvent;
pub use crate::mirror::operate::status::{LastBundle, OriginBackoff, Status, StoreState, UpstreamState};
pub use crate::mirror::operate::warm::{WarmedArchive, WarmedDocument};
pub use crate::mirror::request_context::{Answer, Outcome, RequestContext, Urgency};
pub use crate::mirror::runtime_config::RuntimeConfig;
pub use crate::mirror::transfer::bundle::{ApplyError, ApplyOptions, GatherError, GatheredBundle};
pub use crate::mirror::transfer::permits::TransferPermit;
pub use crate::mirror::transfer::tree::{
    Export, FileVerdict, ImportCounts, ImportStep, ImportedFile, NotExported, ProvenBy, UnsignedPolicy,
};

use crate::address::{Artifact, Hostname, ModuleAddress, ModulePackage, Package, ProviderAddress};
use crate::cdn_loop::{CdnLoop, OwnEntry};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::fill::FillKey;
use crate::mirror::archives::pass_through::MAX_PASS_THROUGHS;
use crate::mirror::archives::small_copies::SmallCopies;
use crate::mirror::archives::tail_stream::FillProgress;
use crate::mirror::archives::unattended::FillsByClient;
use crate::mirror::documents::stored::DocumentFlight;
use crate::mirror::library::intake::MAX_CONCURRENT_HASHING;
use crate::mirror::library::store_errors::LastStoreFailures;
use crate::mirror::library::{Alarms, Catalog, Evictor, ProviderHistories};
use crate::mirror::modules::{StageNames, UNPACK_LIMITS};
use crate::mirror::offline::OfflineState;
use crate::mirror::proof_sets::{ProofSetRefresh, SetFlight};
use crate::mirror::request_context::{FetchReason, FlightGroup, ProxyPath};
use crate::mirror::runtime_config::ConfigGeneration;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::tasks::{Tasks, WorkLimit};
use crate::mirror::transfer::bundle::EvictionHolds;
use crate::mirror::transfer::permits::MAX_TRANSFERS;
use crate::mirror::ttl_cache::TtlCache;
use crate::store::{Key, SizeLimit, Store, StoreError};
use crate::supervisor::{Supervisor, Task};
use crate::upstream::concurrency_limits::ConcurrencyLimits;
pub use crate::upstream::outbound::Connectivity;
use crate::upstream::pages::PageRef;

/// Archives up to this size are verified before the status line, and checked on every read.
pub const SMALL_ARCHIVE_BYTES: u64 = 1 << 20;

/// The most proof sets verified at a time; each may take a second of CPU.
const MAX_CONCURRENT_VERIFICATIONS: usize = 2;

/// Deadline of the readiness probe of the store.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// A reason why the store is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// The store is gone or cannot be read.
    StoreGone,
    /// Its disk does not respond.
    DiskUnresponsive,
}

impl NotReady {
    /// The reason, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::StoreGone => "the store is not there",
            Self::DiskUnresponsive => "the store does not answer",
        }
    }
}

/// The facade of the cache core.
#[derive(Debug)]
pub struct Mirror {
    store: Arc<Store>,
    config: ArcSwap<RuntimeConfig>,
    own_loop_entry: OwnEntry,
    limits: Limits,
    tasks: Tasks,
    document_flights: SingleFlights<(Key, FetchReason, FlightGroup), SharedResult<DocumentFlight>>,
    stored_pages: SingleFlights<PageRef, SharedResult<Result<Option<PageFromStore>, Error>>>,
    set_flights: SingleFlights<(Package, ProofSetRefresh, FlightGroup), SharedResult<SetFlight>>,
    fill_flights: SingleFlights<(FillKey, ProxyPath), watch::Receiver<FillProgress>>,
    module_fill_flights: SingleFlights<(ModulePackage, FlightGroup), SharedResult<Result<StoredArchive, Error>>>,
    started_fills: FillsByClient,
    recheck_flights: SingleFlights<(ModulePackage, ConfigGeneration), SharedResult<()>>,
    check_flights: SingleFlights<Digest, SharedResult<Result<bool, Error>>>,
    probe_flights: SingleFlights<(), SharedResult<Result<(), NotReady>>>,
    recently_used: TtlCache<Digest, ()>,
    checked_archives: Mutex<HashSet<Digest>>,
    small: SmallCopies,
    catalog: Catalog,
    evictor: Arc<Evictor>,
    disk_share_bytes: AtomicU64,
    verify_lock: Arc<tokio::sync::Mutex<()>>,
    tree_import_lock: Arc<tokio::sync::Mutex<()>>,
    /// Serializes bundle imports.
    bundle_import_lock: tokio::sync::Mutex<()>,
    eviction_holds: EvictionHolds,
    sealed: OfflineState,
    alarms: Alarms,
    histories: ProviderHistories,
    store_failures: Mutex<LastStoreFailures>,
    waiting_permits: Arc<Semaphore>,
    pass_through_permits: Arc<Semaphore>,
    unpacking: ConcurrencyLimits,
    verification_limit: WorkLimit,
    hashing_limit: WorkLimit,
    transfers: Arc<Semaphore>,
    stage_names: StageNames,
    learned_lengths: TtlCache<FillKey, u64>,
    revisions: [AtomicU64; 256],
    hasher: std::hash::RandomState,
    counters: Counters,
}

impl Mirror {
    /// Creates the mirror and starts its background tasks: eviction, and rebuilding the index where needed.
    ///
    /// # Errors
    /// The stored alarms cannot be read.
    pub fn new(
        store: Arc<Store>,
        terms: RuntimeConfig,
        limits: Limits,
        counters: Counters,
        supervisor: &Supervisor,
    ) -> Result<Arc<Self>, StoreError> {
        terms.upstreams.hosts().into_iter().for_each(|host| counters.register_host(host));
        let sealed = OfflineState::load(&store);
        let alarms = Alarms::load(Arc::clone(&store))?;
        let histories = ProviderHistories::new(Arc::clone(&store));
        let catalog = Catalog::new(Arc::clone(&store));
        let mirror = Arc::new(Self {
            store,
            own_loop_entry: terms.outbound.own_entry().clone(),
            config: ArcSwap::from_pointee(terms),
            limits,
            tasks: Tasks::default(),
            document_flights: SingleFlights::default(),
            stored_pages: SingleFlights::default(),
            set_flights: SingleFlights::default(),
            fill_flights: SingleFlights::default(),
            module_fill_flights: SingleFlights::default(),
            started_fills: FillsByClient::default(),
            recheck_flights: SingleFlights::default(),
            check_flights: SingleFlights::default(),
            probe_flights: SingleFlights::default(),
            recently_used: TtlCache::default(),
            checked_archives: Mutex::default(),
            small: SmallCopies::default(),
            catalog,
            evictor: Arc::default(),
            disk_share_bytes: AtomicU64::new(SizeLimit::MAX_SHARE),
            verify_lock: Arc::default(),
            tree_import_lock: Arc::default(),
            bundle_import_lock: tokio::sync::Mutex::default(),
            eviction_holds: EvictionHolds::default(),
            sealed,
            alarms,
            histories,
            store_failures: Mutex::default(),
            waiting_permits: Arc::new(Semaphore::new(limits.waiting)),
            pass_through_permits: Arc::new(Semaphore::new(MAX_PASS_THROUGHS)),
            unpacking: ConcurrencyLimits::new(UNPACK_LIMITS),
            verification_limit: WorkLimit::of(MAX_CONCURRENT_VERIFICATIONS),
            hashing_limit: WorkLimit::of(MAX_CONCURRENT_HASHING),
            transfers: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            stage_names: StageNames::default(),
            learned_lengths: TtlCache::default(),
            revisions: std::array::from_fn(|_| AtomicU64::new(0)),
            hasher: std::hash::RandomState::new(),
            counters,
        });
        mirror.spawn_background_tasks(supervisor);
        Ok(mirror)
    }

    fn spawn_background_tasks(self: &Arc<Self>, supervisor: &Supervisor) {
        let (mirror, evictor) = (Arc::downgrade(self), Arc::clone(&self.evictor));
        let evicting = move || Self::run_evictor(Weak::clone(&mirror), Arc::clone(&evictor));
        let watched = supervisor.clone();
        self.tasks.spawn(async move { watched.run(Task::Evictor, evicting).await });
        let (mirror, watched) = (Arc::downgrade(self), supervisor.clone());
        let indexing = move || Self::rebuild_index(Weak::clone(&mirror));
        self.tasks.spawn(async move { watched.run(Task::Index, indexing).await });
        // The last process may have ended while over the limit.
        self.enforce_size_limit();
    }

    /// Refuses a request that has already passed through this larder.
    ///
    /// # Errors
    /// [`Error::Looped`], before the request joins any flight.
    pub fn refuse_loops(&self, via: &CdnLoop) -> Result<(), Error> {
        if via.is_a_loop(&self.own_loop_entry) { Err(Error::Looped) } else { Ok(()) }
    }

    /// Checks that the store can be read. A hanging disk blocks one thread, however many requests ask.
    ///
    /// # Errors
    /// [`NotReady`] with the reason.
    pub async fn ready(self: &Arc<Self>) -> Result<(), NotReady> {
        let probe = self.probe_flights.join_or_spawn(&self.tasks, (), Err(NotReady::StoreGone), || {
            let mirror = Arc::clone(self);
            async move {
                let mirror_clone = Arc::clone(&mirror);
                let looked = mirror.tasks.spawn_blocking(move || mirror_clone.store.check()).await;
                if matches!(looked, Ok(Ok(()))) { Ok(()) } else { Err(NotReady::StoreGone) }
            }
        });
        tokio::time::timeout(PROBE_TIMEOUT, probe).await.unwrap_or(Err(NotReady::DiskUnresponsive))
    }

    /// A counter that grows with every change to a provider's data. An answer rendered at an older revision must be
    /// rendered again.
    pub fn revision(&self, address: &ProviderAddress) -> u64 {
        self.revision_of(address).load(Ordering::Acquire)
    }

    /// The revision counter of a module, regardless of the spelling of its name.
    pub fn revision_of_module(&self, address: &ModuleAddress) -> u64 {
        self.revision_of(&address.folded()).load(Ordering::Acquire)
    }

    fn bump_revision(&self, address: &ProviderAddress) {
        self.revision_of(address).fetch_add(1, Ordering::AcqRel);
    }

    fn bump_module_revision(&self, address: &ModuleAddress) {
        self.revision_of(&address.folded()).fetch_add(1, Ordering::AcqRel);
    }

    /// A counter that grows with each purge of a registry's pages.
    pub fn revision_of_pages(&self, host: &Hostname) -> u64 {
        self.revision_of(host).load(Ordering::Acquire)
    }

    fn bump_pages_revision(&self, host: &Hostname) {
        self.revision_of(host).fetch_add(1, Ordering::AcqRel);
    }

    fn bump_artifact_revision(&self, artifact: &Artifact) {
        match artifact {
            Artifact::Provider(package) => self.bump_revision(&package.provider),
            Artifact::Module(package) => self.bump_module_revision(&package.module),
        }
    }

    fn revision_of(&self, address: &impl Hash) -> &AtomicU64 {
        // The modulus keeps the index in bounds. A shared counter only causes an extra rendering.
        &self.revisions[self.hasher.hash_one(address) as usize % self.revisions.len()]
    }

    /// Runs file work on a blocking thread.
    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let mirror = Arc::clone(self);
        match self.tasks.spawn_blocking(move || work(&mirror)).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::Interrupted("the store".into())),
        }
    }

    /// Runs file work once the index is whole.
    async fn on_complete_index<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        self.store.index.until_complete().await?;
        self.on_disk(work).await
    }

    /// Returns true if an archive is stored.
    pub async fn has_archive(self: &Arc<Self>, digest: Digest) -> Result<bool, Error> {
        self.on_disk(move |mirror| default_if_gone(mirror.store.blobs.is_stored(&digest))).await
    }

    /// The time for which a 404 of this upstream is cached.
    pub fn not_found_lifetime(&self, host: &Hostname) -> Duration {
        let terms = self.config.load();
        terms
            .upstreams
            .get(host)
            .map_or(Duration::ZERO, |upstream| upstream.rule(|fresh| fresh.download).not_found_lifetime())
    }

    /// The state of the outbound link: online or offline.
    pub fn connectivity(&self) -> Connectivity {
        self.config.load().outbound.connectivity()
    }

    /// Removes leftover files past their lifetime.
    pub async fn sweep(self: &Arc<Self>, now: Timestamp) -> Result<(), Error> {
        self.on_disk(move |mirror| mirror.store.sweep(now)).await
    }

    /// Stops the work in progress, which resumes at the next start, and closes the store.
    pub async fn close(&self) -> Result<(), StoreError> {
        let stopped = self.tasks.stop().await;
        if let Err(error) = self.save_missing() {
            tracing::warn!(%error, "the missing list could not be written");
        }
        if !stopped {
            // The index may miss a commit in progress. Without the clean mark, it is rebuilt.
            tracing::warn!("some work did not stop in time; the index is rebuilt at the next start");
            return Ok(());
        }
        self.store.close()
    }
}

/// Treats a store that is gone as empty.
fn default_if_gone<T: Default>(read: Result<T, StoreError>) -> Result<T, StoreError> {
    match read {
        Err(StoreError::Gone) => Ok(T::default()),
        read => read,
    }
}
