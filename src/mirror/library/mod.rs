//! The stored state: names and their locks, first-seen records of providers, alarms, and eviction.

pub mod access;
pub mod adopt;
pub mod alarms;
pub mod approvals;
pub mod background;
pub mod catalog;
pub mod damage;
pub mod document_store;
pub mod eviction;
pub mod evidence;
pub mod file_refs;
pub mod files;
pub mod fill_progress;
pub mod first_listed;
pub mod first_seen;
pub mod installable;
pub mod intake;
pub mod known_archives;
pub mod latest_time;
pub mod missing;
pub mod module_history;
pub mod owed;
pub mod pins;
pub mod proof_set;
pub mod provider_history;
pub mod reconcile;
pub mod record_format;
pub mod space;
pub mod store_state;
pub mod stored_document;
pub mod unpacked;
pub mod usage;
pub mod version_ages;

pub use self::alarms::Alarm;
pub use self::alarms::{AcceptedFinding, AlarmEvent, AlarmPart, AlarmSubject, Alarms, AlarmsRecord};
pub use self::catalog::{Catalog, NameRecord};
pub use self::catalog::{PackageHashState, StoredArchive, ZipOrigin};

pub use self::first_listed::FirstListed;
pub use self::first_seen::{
    AcceptScope, HistoryChange, Observation, Recoverable, Signer, SigningKeyLog, VersionHistory,
};
pub use self::known_archives::{KnownArchive, VersionArchives};
pub use self::provider_history::{ProviderHistories, ProviderRecordV0, observation};
pub use self::space::{Evictor, Reservation};
pub use self::store_state::{NotReady, StoreFailure, StoreState};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Runtime;
use crate::mirror::counters::ObjectKind;
use crate::mirror::library::document_store::DocumentsInUse;
use crate::mirror::library::intake::MAX_CONCURRENT_HASHING;
use crate::mirror::library::latest_time::LatestTime;
use crate::mirror::library::missing::MissingLog;
use crate::mirror::library::owed::OwedAmount;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::tasks::WorkLimit;
use crate::store::{
    Fleet, FleetAlarm, FleetAlarmKind, RecordGroup, RecordScope, ReplicaAmounts, Standing, Store, StoreError, Unreached,
};

/// The silence of the database after which a person should know that this replica is behind.
const ALARMED_AFTER: Duration = Duration::from_secs(60);

/// Everything stored, and the services that read and change it.
#[derive(Debug)]
pub struct Library {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    /// Nobody above this folder sees records, files or the index: the verbs here are the one door.
    store: Arc<Store>,
    pub(in crate::mirror) catalog: Catalog,
    pub(in crate::mirror) evictor: Arc<Evictor>,
    pub(in crate::mirror) alarms: Alarms,
    pub(in crate::mirror) histories: ProviderHistories,
    pub(in crate::mirror) missing: MissingLog,
    latest_time: LatestTime,
    pub(in crate::mirror) work: LibraryWork,
}

/// Limits and shared results of the library's own work, and its last failures.
#[derive(Debug)]
pub struct LibraryWork {
    pub hashing_limit: WorkLimit,
    pub documents_in_use: DocumentsInUse,
    pub probe_flights: SingleFlights<(), SharedResult<Result<(), NotReady>>>,
    /// The last failure of each kind. With one entry for all, a small document that fits would hide that no archive does.
    store_failures: Mutex<BTreeMap<ObjectKind, StoreFailure>>,
}

impl Library {
    /// Loads what is kept in memory of the store.
    ///
    /// # Errors
    /// The stored alarms cannot be read.
    pub fn open(store: Arc<Store>, runtime: Arc<Runtime>) -> Result<Arc<Self>, StoreError> {
        Ok(Arc::new(Self {
            catalog: Catalog::open(Arc::clone(&store))?,
            evictor: Arc::new(Evictor::new()),
            alarms: Alarms::load(Arc::clone(&store))?,
            histories: ProviderHistories::new(Arc::clone(&store)),
            missing: MissingLog::load(&store),
            latest_time: LatestTime::load(&store)?,
            work: LibraryWork {
                hashing_limit: WorkLimit::of(MAX_CONCURRENT_HASHING),
                documents_in_use: DocumentsInUse::default(),
                probe_flights: SingleFlights::default(),
                store_failures: Mutex::default(),
            },
            runtime,
            store,
        }))
    }

    /// Runs file work on a blocking thread.
    pub async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let (library, (sender, receiver)) = (Arc::clone(self), oneshot::channel());
        // One type of task for the work of all callers: a type for each takes 8 % of the time to compile larder.
        let work: Box<dyn FnOnce() + Send> = Box::new(move || {
            // The caller may be gone.
            let _ = sender.send(work(&library));
        });
        drop(self.runtime.tasks.spawn_blocking(work));
        match receiver.await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::Interrupted("the store".into())),
        }
    }

    /// Runs file work once the index is complete.
    pub async fn on_complete_index<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        self.until_index_is_complete().await?;
        self.on_disk(work).await
    }

    /// Waits until the index contains everything that is stored.
    ///
    /// # Errors
    /// The reason why it cannot be completed.
    pub async fn until_index_is_complete(&self) -> Result<(), StoreError> {
        self.store.local.index.until_complete().await
    }

    /// Brings the records of an address, a registry or a document up to date with what other replicas wrote. What changed has
    /// another generation.
    ///
    /// # Errors
    /// The shared records cannot be read.
    pub async fn refresh(self: &Arc<Self>, group: RecordGroup) -> Result<(), Error> {
        self.on_disk(move |library| library.store.records.refresh(RecordScope::Group(&group))).await
    }

    /// Brings all records up to date with what other replicas wrote.
    ///
    /// # Errors
    /// The shared records cannot be read.
    pub async fn refresh_all(self: &Arc<Self>) -> Result<(), Error> {
        self.on_disk(|library| library.store.records.refresh(RecordScope::All)).await
    }

    /// The other replicas; `None` for a larder that runs alone.
    pub fn fleet(&self) -> Option<&dyn Fleet> {
        self.store.records.fleet()
    }

    /// The amounts of the folder of this larder, and those that are owed.
    pub fn amounts(&self) -> ReplicaAmounts {
        let OwedAmount { count: owed_archives, bytes: owed_bytes, .. } = self.owed_totals();
        ReplicaAmounts { stored_bytes: self.totals().bytes(), owed_archives, owed_bytes }
    }

    /// Waits until the other replicas have heard of what was written before. Returns those that have not.
    ///
    /// # Errors
    /// The shared records do not answer.
    pub async fn spread(self: &Arc<Self>) -> Result<Vec<Unreached>, Error> {
        self.on_disk(|library| library.fleet().map_or(Ok(Vec::new()), Fleet::spread)).await
    }

    /// The standing of this replica: it may be behind the others.
    pub fn standing(&self) -> Standing {
        self.fleet().map_or(Standing::Current, |fleet| fleet.contact().standing())
    }

    /// The questions to the database of the fleet since the start, without those by which this replica hears of others; none for a larder
    /// that runs alone.
    pub fn database_questions(&self) -> u64 {
        self.fleet().map_or(0, Fleet::questions)
    }

    /// The alarms of the fleet; none for a larder that runs alone.
    pub fn fleet_alarms(&self, now: Timestamp) -> Vec<FleetAlarm> {
        let Some(fleet) = self.fleet() else { return Vec::new() };
        let silence = fleet.contact().silence();
        let behind = (silence >= ALARMED_AFTER).then(|| {
            let whole = Duration::from_secs(silence.as_secs());
            let detail = format!("the database has not answered for {}", humantime::format_duration(whole));
            FleetAlarm::new(FleetAlarmKind::Behind, detail, Timestamp(now.0.saturating_sub(whole.as_secs())))
        });
        behind.into_iter().chain(fleet.events().told()).collect()
    }

    /// Looks for something in the records of a group, and where it is absent, again in what other replicas have written
    /// meanwhile: nothing that one replica lists is absent for another. Blocks.
    ///
    /// # Errors
    /// The shared records cannot be read, so nobody knows that it is absent.
    pub fn find<T>(
        &self,
        group: &RecordGroup,
        look: impl Fn() -> Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let records = &self.store.records;
        // Before the look: another request may bring the records up to date after it.
        let seen = records.generation_now(group.as_ref());
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        records.refresh(RecordScope::Group(group))?;
        if records.generation_now(group.as_ref()) == seen { Ok(None) } else { look() }
    }

    /// Returns true if the bytes of an archive are at hand, as [`Self::is_at_hand`] says.
    pub async fn file_is_at_hand(self: &Arc<Self>, digest: Digest) -> Result<bool, Error> {
        self.on_disk(move |library| default_if_store_unavailable(library.is_at_hand(&digest))).await
    }

    /// Returns true if an archive's file is on this machine.
    pub async fn file_is_here(self: &Arc<Self>, digest: Digest) -> Result<bool, Error> {
        self.on_disk(move |library| default_if_store_unavailable(library.is_here(&digest))).await
    }

    /// Removes leftovers past their lifetime: files of this machine, and what no archive needs where the larder keeps them.
    pub async fn sweep(self: &Arc<Self>, now: Timestamp) -> Result<(), Error> {
        self.on_disk(move |library| library.store.local.sweep(now).and(library.store.archives.sweep())).await
    }
}

/// True for a value that a record leaves out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Treats a store that is gone as empty.
pub fn default_if_store_unavailable<T: Default>(read: Result<T, StoreError>) -> Result<T, StoreError> {
    match read {
        Err(StoreError::Unavailable) => Ok(T::default()),
        read => read,
    }
}
