//! The cache core: decides between hit, stale, fill and refusal. Contains no HTTP and no client wire format.
//!
//! A request carries its own time. Documents age, archives do not. Upstream work runs in single flights, so a client
//! that disconnects cancels nothing for others.

mod accept;
mod alarm;
mod archives;
mod asking;
mod attempts;
mod call;
mod carry;
mod check;
mod commit;
mod counters;
mod discovery;
mod documents;
mod download;
mod eviction;
mod fill;
mod follow;
mod freshness;
mod gauges;
mod library;
mod limits;
mod listed;
mod modules;
mod opened;
mod pages;
mod parts;
mod passing;
mod pin;
mod proof_set;
mod proving;
mod pull;
mod purge;
pub mod record;
mod refresh;
mod remembered;
mod sealed;
mod sets;
mod single_flight;
mod small_copies;
mod status;
mod store_trouble;
mod tasks;
mod terms;
mod transfer;
mod trees;
mod unattended;
mod verify;
mod versions;
mod wanted;
mod warm;
mod whole_index;

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

pub use self::accept::{Accepted, ChangedFile, Ruling};
pub use self::archives::{Archive, ArchiveRef, ProofFile, ProofFileRef, References};
pub use self::call::{Answer, Outcome, RequestContext, Urgency};
pub use self::carry::{ApplyError, ApplyOptions, GatherError, GatheredBundle};
pub use self::check::{DamageFinding, Healed, Wrong};
pub use self::counters::Counters;
pub use self::documents::KeptDocument;
pub use self::gauges::Gauges;
pub use self::library::{Alarm, AlarmKind, PackageHashState, StoredArchive, ZipOrigin};
pub use self::limits::Limits;
pub use self::modules::{ModuleArchiveRef, ModuleLocation};
pub use self::pages::{FromStore, PageFound, StoredDetails, StoredEntry, StoredList, StoredThing, UpstreamPage};
pub use self::passing::Passing;
pub use self::pin::{Pin, PinOutcome, Pinned};
pub use self::proof_set::ProofSet;
pub use self::purge::Purged;
pub use self::refresh::{News, Refreshed};
pub use self::sealed::{MissingPackage, RequiredPlatforms};
pub use self::status::{LastBundle, LeftAlone, Status, StoreState, UpstreamState};
pub use self::store_trouble::Trouble;
pub use self::terms::RuntimeConfig;
pub use self::transfer::Transfer;
pub use self::trees::{
    Export, FileVerdict, ImportCounts, ImportStep, ImportedFile, NotExported, ProvenBy, UnsignedPolicy,
};
pub use self::unattended::ClientAddress;
pub use self::verify::Step;
pub use self::warm::{Came, Resolved};

use self::call::{CameBy, Company, FetchReason};
use self::carry::EvictionHolds;
use self::commit::MOST_HASHING;
use self::documents::DocumentFlight;
use self::fill::FillKey;
use self::follow::Progress;
use self::library::{Alarms, Catalog, Evictor, ProviderHistories};
use self::modules::{StageNames, UNPACK_LIMITS};
use self::passing::MOST_PASSING;
use self::remembered::Remembered;
use self::sealed::OfflineState;
use self::sets::{ProofSetRefresh, SetFlight};
use self::single_flight::{Awaited, Flights};
use self::small_copies::SmallCopies;
use self::store_trouble::StoreErrors;
use self::tasks::{Tasks, Turns};
use self::terms::Generation;
use self::transfer::MOST_TRANSFERS;
use self::unattended::StartedFills;
use crate::address::{Artifact, Hostname, ModuleAddress, ModulePackage, Package, ProviderAddress};
use crate::cdn_loop::{CdnLoop, OwnEntry};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Key, SizeLimit, Store, StoreError};
use crate::supervisor::{Supervisor, Task};
use crate::upstream::concurrency_limits::ConcurrencyLimits;
pub use crate::upstream::outbound::Connectivity;
use crate::upstream::pages::PageRef;

/// Archives up to this size are verified before the status line, and checked on every read.
pub const SMALL_ARCHIVE_BYTES: u64 = 1 << 20;

/// The most proof sets verified at a time; each may take a second of CPU.
const MOST_JUDGING: usize = 2;

/// Deadline of the readiness probe of the store.
const PROBED_WITHIN: Duration = Duration::from_secs(3);

/// A reason why the store is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// The store is gone or cannot be read.
    NotThere,
    /// Its disk does not respond.
    Silent,
}

impl NotReady {
    /// The reason, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotThere => "the store is not there",
            Self::Silent => "the store does not answer",
        }
    }
}

/// The facade of the cache core.
#[derive(Debug)]
pub struct Mirror {
    store: Arc<Store>,
    terms: ArcSwap<RuntimeConfig>,
    own: OwnEntry,
    limits: Limits,
    tasks: Tasks,
    documents: Flights<(Key, FetchReason, Company), Awaited<DocumentFlight>>,
    stored_pages: Flights<PageRef, Awaited<Result<Option<FromStore>, Error>>>,
    sets: Flights<(Package, ProofSetRefresh, Company), Awaited<SetFlight>>,
    fills: Flights<(FillKey, CameBy), watch::Receiver<Progress>>,
    module_fills: Flights<(ModulePackage, Company), Awaited<Result<StoredArchive, Error>>>,
    started_fills: StartedFills,
    looks: Flights<(ModulePackage, Generation), Awaited<()>>,
    checks: Flights<Digest, Awaited<Result<bool, Error>>>,
    probes: Flights<(), Awaited<Result<(), NotReady>>>,
    used_lately: Remembered<Digest, ()>,
    checked: Mutex<HashSet<Digest>>,
    small: SmallCopies,
    catalog: Catalog,
    evictor: Arc<Evictor>,
    share_of_disk: AtomicU64,
    verifying: Arc<tokio::sync::Mutex<()>>,
    importing: Arc<tokio::sync::Mutex<()>>,
    /// Serializes bundle imports.
    taking_in: tokio::sync::Mutex<()>,
    staying: EvictionHolds,
    sealed: OfflineState,
    alarms: Alarms,
    histories: ProviderHistories,
    troubles: Mutex<StoreErrors>,
    places: Arc<Semaphore>,
    passing: Arc<Semaphore>,
    unpacking: ConcurrencyLimits,
    judging: Turns,
    hashing: Turns,
    transfers: Arc<Semaphore>,
    stage_names: StageNames,
    lengths: Remembered<FillKey, u64>,
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
        terms.upstreams.hosts().into_iter().for_each(|host| counters.expect(host));
        let sealed = OfflineState::load(&store);
        let alarms = Alarms::load(Arc::clone(&store))?;
        let histories = ProviderHistories::new(Arc::clone(&store));
        let catalog = Catalog::new(Arc::clone(&store));
        let mirror = Arc::new(Self {
            store,
            own: terms.outbound.own_entry().clone(),
            terms: ArcSwap::from_pointee(terms),
            limits,
            tasks: Tasks::default(),
            documents: Flights::default(),
            stored_pages: Flights::default(),
            sets: Flights::default(),
            fills: Flights::default(),
            module_fills: Flights::default(),
            started_fills: StartedFills::default(),
            looks: Flights::default(),
            checks: Flights::default(),
            probes: Flights::default(),
            used_lately: Remembered::default(),
            checked: Mutex::default(),
            small: SmallCopies::default(),
            catalog,
            evictor: Arc::default(),
            share_of_disk: AtomicU64::new(SizeLimit::LARGEST_SHARE),
            verifying: Arc::default(),
            importing: Arc::default(),
            taking_in: tokio::sync::Mutex::default(),
            staying: EvictionHolds::default(),
            sealed,
            alarms,
            histories,
            troubles: Mutex::default(),
            places: Arc::new(Semaphore::new(limits.waiting)),
            passing: Arc::new(Semaphore::new(MOST_PASSING)),
            unpacking: ConcurrencyLimits::new(UNPACK_LIMITS),
            judging: Turns::of(MOST_JUDGING),
            hashing: Turns::of(MOST_HASHING),
            transfers: Arc::new(Semaphore::new(MOST_TRANSFERS)),
            stage_names: StageNames::default(),
            lengths: Remembered::default(),
            revisions: std::array::from_fn(|_| AtomicU64::new(0)),
            hasher: std::hash::RandomState::new(),
            counters,
        });
        mirror.work_behind(supervisor);
        Ok(mirror)
    }

    fn work_behind(self: &Arc<Self>, supervisor: &Supervisor) {
        let (of, evictor) = (Arc::downgrade(self), Arc::clone(&self.evictor));
        let evicting = move || Self::evict_when_asked(Weak::clone(&of), Arc::clone(&evictor));
        let watched = supervisor.clone();
        self.tasks.spawn(async move { watched.run(Task::Evictor, evicting).await });
        let (of, watched) = (Arc::downgrade(self), supervisor.clone());
        let indexing = move || Self::make_index_whole(Weak::clone(&of));
        self.tasks.spawn(async move { watched.run(Task::Index, indexing).await });
        // The last process may have ended while over the limit.
        self.keep_to_the_limit();
    }

    /// Refuses a request that has already passed through this larder.
    ///
    /// # Errors
    /// [`Error::Looped`], before the request joins any flight.
    pub fn refuse_loops(&self, via: &CdnLoop) -> Result<(), Error> {
        if via.is_a_loop(&self.own) { Err(Error::Looped) } else { Ok(()) }
    }

    /// Checks that the store can be read. A hanging disk blocks one thread, however many requests ask.
    ///
    /// # Errors
    /// [`NotReady`] with the reason.
    pub async fn ready(self: &Arc<Self>) -> Result<(), NotReady> {
        let probe = self.probes.share(&self.tasks, (), Err(NotReady::NotThere), || {
            let mirror = Arc::clone(self);
            async move {
                let of = Arc::clone(&mirror);
                let looked = mirror.tasks.spawn_blocking(move || of.store.check()).await;
                if matches!(looked, Ok(Ok(()))) { Ok(()) } else { Err(NotReady::NotThere) }
            }
        });
        tokio::time::timeout(PROBED_WITHIN, probe).await.unwrap_or(Err(NotReady::Silent))
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

    fn changed(&self, address: &ProviderAddress) {
        self.revision_of(address).fetch_add(1, Ordering::AcqRel);
    }

    fn module_changed(&self, address: &ModuleAddress) {
        self.revision_of(&address.folded()).fetch_add(1, Ordering::AcqRel);
    }

    /// A counter that grows with each purge of a registry's pages.
    pub fn revision_of_pages(&self, host: &Hostname) -> u64 {
        self.revision_of(host).load(Ordering::Acquire)
    }

    fn pages_changed(&self, host: &Hostname) {
        self.revision_of(host).fetch_add(1, Ordering::AcqRel);
    }

    fn artifact_changed(&self, of: &Artifact) {
        match of {
            Artifact::Provider(package) => self.changed(&package.provider),
            Artifact::Module(package) => self.module_changed(&package.module),
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
    async fn on_whole_index<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        self.store.index.until_complete().await?;
        self.on_disk(work).await
    }

    /// Returns true if an archive is stored.
    pub async fn holds(self: &Arc<Self>, digest: Digest) -> Result<bool, Error> {
        self.on_disk(move |mirror| unless_gone(mirror.store.blobs.is_stored(&digest))).await
    }

    /// The time for which a 404 of this upstream is cached.
    pub fn absence_is_believed(&self, host: &Hostname) -> Duration {
        let terms = self.terms.load();
        terms.upstreams.get(host).map_or(Duration::ZERO, |upstream| upstream.rule(|fresh| fresh.download).believed())
    }

    /// The state of the outbound link: online or offline.
    pub fn link(&self) -> Connectivity {
        self.terms.load().outbound.link()
    }

    /// Removes leftover files past their lifetime.
    pub async fn sweep(self: &Arc<Self>, now: Timestamp) -> Result<(), Error> {
        self.on_disk(move |mirror| mirror.store.sweep(now)).await
    }

    /// Stops the work in progress, which resumes at the next start, and closes the store.
    pub async fn close(&self) -> Result<(), StoreError> {
        let stopped = self.tasks.stop().await;
        if let Err(error) = self.save_missing() {
            tracing::warn!(%error, "what is missing while sealed could not be written down");
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
fn unless_gone<T: Default>(read: Result<T, StoreError>) -> Result<T, StoreError> {
    match read {
        Err(StoreError::Gone) => Ok(T::default()),
        read => read,
    }
}
