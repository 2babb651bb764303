//! The kind of store of the larders that run in this process: files, which larder runs with, or records in memory, where
//! `LARDER_TEST_RECORDS` is `memory`. `tests/long/run memory` runs every test with the latter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::support::memory_records::MemoryRecords;
use larder::clock::Timestamp;
use larder::store::{Store, StoreError};

/// The records of each folder, which outlive the larders that use it.
static RECORDS: Mutex<BTreeMap<PathBuf, MemoryRecords>> = Mutex::new(BTreeMap::new());

/// True where records are in memory.
fn is_memory() -> bool {
    std::env::var("LARDER_TEST_RECORDS").is_ok_and(|kind| kind == "memory")
}

/// The records in memory of a folder; `None` where they are files, as are those of a larder in a process of its own.
pub(crate) fn records_in_memory(folder: &Path) -> Option<MemoryRecords> {
    RECORDS.lock().unwrap().get(folder).cloned()
}

/// Opens the store in a folder.
pub(crate) fn open(folder: &Path, now: Timestamp) -> Result<Store, StoreError> {
    let store = Store::open(folder, now)?;
    if !is_memory() {
        return Ok(store);
    }
    let records = RECORDS.lock().unwrap().entry(folder.to_owned()).or_default().clone();
    let Store { archives, local, .. } = store;
    Ok(Store::assemble(Box::new(records), archives, local))
}
