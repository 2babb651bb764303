//! The kind of store of the larders that run in this process: files, which larder runs with, or, where `LARDER_TEST_RECORDS` is
//! `memory`, records in memory, and where it is `fleet`, a copy of records in a PostgreSQL database of its own.
//! `tests/long/run memory copy` runs the tests with these.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::bucket::TestBucket;
use crate::support::lagging_records::LaggingRecords;
use crate::support::memory_records::MemoryRecords;
use crate::support::postgres::{RUN_ROLE, TestDatabase};
use larder::clock::{Clock, Timestamp};
use larder::fleet::archives::BucketArchives;
use larder::fleet::bucket::Bucket;
use larder::fleet::copy::CopiedRecords;
use larder::fleet::records::DatabaseRecords;
use larder::fleet::replicas::Announcement;
use larder::store::{Fleet as _, Store, StoreError};

/// The records of each folder, which outlive the larders that use it.
static RECORDS: Mutex<BTreeMap<PathBuf, Kind>> = Mutex::new(BTreeMap::new());

/// Records that are not files.
#[derive(Debug, Clone)]
enum Kind {
    Memory(MemoryRecords),
    Lagging(LaggingRecords),
    Fleet(Replica),
}

/// A replica of a fleet whose records are in PostgreSQL.
#[derive(Debug, Clone)]
pub(crate) struct Replica {
    pub(crate) database: Arc<TestDatabase>,
    pub(crate) bucket: Arc<TestBucket>,
    /// The role of its connections.
    pub(crate) role: &'static str,
    /// The URL at which it announces itself.
    pub(crate) url: &'static str,
    pub(crate) serve_behind: Option<Duration>,
    pub(crate) clock: Clock,
}

impl Replica {
    /// The one replica of a fleet.
    fn of(database: TestDatabase) -> Self {
        let url = "http://replica.test:8082/";
        let (database, bucket) = (Arc::new(database), Arc::new(TestBucket::start()));
        Self { database, bucket, role: RUN_ROLE, url, serve_behind: None, clock: Clock::system() }
    }
}

impl Kind {
    /// The kind that this run of the tests asks for; `None` for files.
    fn asked() -> Option<Self> {
        match std::env::var("LARDER_TEST_RECORDS").ok()?.as_str() {
            "memory" => Some(Self::Memory(MemoryRecords::default())),
            "fleet" => Some(Self::Fleet(Replica::of(TestDatabase::new().expect("PostgreSQL is not installed")))),
            other => panic!("LARDER_TEST_RECORDS is {other}"),
        }
    }
}

/// Makes the larders of these folders replicas, which share records. Returns those of each.
pub(crate) fn share<const N: usize>(folders: [&Path; N]) -> [LaggingRecords; N] {
    let shared = LaggingRecords::default();
    folders.map(|folder| join(folder, &shared))
}

/// Makes the larder of this folder another replica. Returns its records.
pub(crate) fn join(folder: &Path, replica: &LaggingRecords) -> LaggingRecords {
    let records = replica.another();
    RECORDS.lock().unwrap().insert(folder.to_owned(), Kind::Lagging(records.clone()));
    records
}

/// Makes the larder of this folder a replica of a fleet.
pub(crate) fn join_fleet(folder: &Path, replica: &Replica) {
    RECORDS.lock().unwrap().insert(folder.to_owned(), Kind::Fleet(replica.clone()));
}

/// The records in memory of a folder; `None` where they are files, as are those of a larder in a process of its own.
pub(crate) fn records_in_memory(folder: &Path) -> Option<MemoryRecords> {
    match RECORDS.lock().unwrap().get(folder)? {
        Kind::Memory(records) => Some(records.clone()),
        Kind::Lagging(records) => Some(records.copy().clone()),
        Kind::Fleet(_) => None,
    }
}

/// Opens the store in a folder.
pub(crate) fn open(folder: &Path, now: Timestamp) -> Result<Store, StoreError> {
    let store = Store::open(folder, now)?;
    let kind = match RECORDS.lock().unwrap().entry(folder.to_owned()) {
        Entry::Occupied(known) => Some(known.get().clone()),
        Entry::Vacant(place) => Kind::asked().map(|kind| place.insert(kind).clone()),
    };
    let Some(kind) = kind else { return Ok(store) };
    let Store { records, archives, local } = store;
    Ok(match kind {
        Kind::Memory(records) => Store::assemble(Box::new(records), archives, local),
        Kind::Lagging(records) => Store::assemble(Box::new(records), archives, local),
        Kind::Fleet(Replica { database, bucket, role, url, serve_behind, clock }) => {
            let shared = DatabaseRecords::of(Arc::new(database.connect_as(role)));
            let records = CopiedRecords::new(records, Arc::clone(&local.index), shared, serve_behind, clock)?;
            records.join_fleet(Announcement::new(url.to_owned(), String::new()).unwrap()).unwrap();
            let (fleet, network) = bucket.settings();
            let bucket = Bucket::new(&fleet, &network).unwrap();
            let archives =
                BucketArchives::new(bucket, records.shared(), Arc::clone(&local.index), Arc::clone(records.events()))
                    .unwrap();
            Store::assemble(Box::new(records), Box::new(archives), local)
        }
    })
}
