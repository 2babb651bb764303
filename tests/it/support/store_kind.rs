//! The kind of store of the larders that run in this process: files, which larder runs with, or records in memory, where
//! `LARDER_TEST_RECORDS` is `memory`. `tests/long/run memory` runs every test with the latter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::support::lagging_records::LaggingRecords;
use crate::support::memory_records::MemoryRecords;
use larder::clock::Timestamp;
use larder::store::{Records, Store, StoreError};

/// The records of each folder, which outlive the larders that use it.
static RECORDS: Mutex<BTreeMap<PathBuf, Kind>> = Mutex::new(BTreeMap::new());

/// Records that are not files.
#[derive(Debug, Clone)]
enum Kind {
    Memory(MemoryRecords),
    Lagging(LaggingRecords),
}

/// True where records are in memory.
fn is_memory() -> bool {
    std::env::var("LARDER_TEST_RECORDS").is_ok_and(|kind| kind == "memory")
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

/// The records in memory of a folder; `None` where they are files, as are those of a larder in a process of its own.
pub(crate) fn records_in_memory(folder: &Path) -> Option<MemoryRecords> {
    RECORDS.lock().unwrap().get(folder).map(|kind| match kind {
        Kind::Memory(records) => records.clone(),
        Kind::Lagging(records) => records.copy().clone(),
    })
}

/// Opens the store in a folder.
pub(crate) fn open(folder: &Path, now: Timestamp) -> Result<Store, StoreError> {
    let store = Store::open(folder, now)?;
    let mut all = RECORDS.lock().unwrap();
    if is_memory() {
        all.entry(folder.to_owned()).or_insert_with(|| Kind::Memory(MemoryRecords::default()));
    }
    let records: Box<dyn Records> = match all.get(folder) {
        None => return Ok(store),
        Some(Kind::Memory(records)) => Box::new(records.clone()),
        Some(Kind::Lagging(records)) => Box::new(records.clone()),
    };
    let Store { archives, local, .. } = store;
    Ok(Store::assemble(records, archives, local))
}
