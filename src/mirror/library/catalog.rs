//! The names of stored archives, and the locks under which the store is changed.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::address::{Artifact, PackageRef};
use crate::digest::Digest;
use crate::mirror::library::name_record::NameRecord;
use crate::mirror::library::revisions::Revisions;
use crate::store::{Durability, IndexedName, Key, Recorded, Store, StoreError};

const MAX_IMPORTED_LISTED: usize = 1000;

/// The names of stored archives. Several keys share a lock, so a thread must not take two locks of one kind.
#[derive(Debug)]
pub(in crate::mirror) struct Catalog {
    pub(in crate::mirror) store: Arc<Store>,
    record_locks: [Mutex<()>; 64],
    digest_locks: [Mutex<()>; 64],
    hasher: RandomState,
    imported: Mutex<Option<Vec<PackageRef>>>,
    pub(in crate::mirror) revisions: Revisions,
    /// The archives that were compared with their digests since the start.
    pub(in crate::mirror) checked: Mutex<HashSet<Digest>>,
}

impl Catalog {
    pub(in crate::mirror) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            record_locks: std::array::from_fn(|_| Mutex::default()),
            digest_locks: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            imported: Mutex::default(),
            revisions: Revisions::default(),
            checked: Mutex::default(),
        }
    }

    /// The lock for reading and changing a record.
    pub(in crate::mirror) fn record_lock(&self, key: &Key) -> &Mutex<()> {
        &self.record_locks[self.hasher.hash_one(key) as usize % self.record_locks.len()]
    }

    /// The lock for storing or removing an archive. Taken before any record lock.
    pub(in crate::mirror) fn digest_lock(&self, digest: &Digest) -> &Mutex<()> {
        &self.digest_locks[self.hasher.hash_one(digest) as usize % self.digest_locks.len()]
    }

    /// Locks all digests, so that no archive is stored or removed meanwhile.
    pub(in crate::mirror) fn lock_all_digests(&self) -> Vec<MutexGuard<'_, ()>> {
        self.digest_locks.iter().map(|lock| lock.lock()).collect()
    }

    /// Reads a name. Returns an empty one if it is absent, or damaged and thus quarantined.
    pub(in crate::mirror) fn name(&self, artifact: impl Into<Artifact>) -> Result<NameRecord, StoreError> {
        let artifact = artifact.into();
        let key = Key::Name(artifact.clone());
        match self.store.records.read(&key)? {
            Recorded::Absent => return Ok(NameRecord::default()),
            Recorded::Whole(record) => {
                if let Ok(name) = serde_json::from_slice(&record) {
                    return Ok(name);
                }
                self.store.records.quarantine(&key)?;
            }
            Recorded::Damaged => {}
        }
        // The proof set and the blob survive and the next request finds them. A pin is recorded nowhere else.
        tracing::error!(package = %artifact, "a name record was damaged and quarantined; if it was pinned, pin it again");
        Ok(NameRecord::default())
    }

    /// Reads a name, changes it, and writes it back synced. An empty name is removed.
    pub(in crate::mirror) fn change_name(
        &self,
        artifact: impl Into<Artifact>,
        change: impl FnOnce(&mut NameRecord),
    ) -> Result<(), StoreError> {
        let artifact = artifact.into();
        let key = Key::Name(artifact.clone());
        let _lock = self.record_lock(&key).lock();
        let before = self.name(&artifact)?;
        let mut name = before.clone();
        change(&mut name);
        if name == before {
            // After a name was damaged, the index may still contain its old entries.
            self.store.index.name_changed(&artifact, &name.indexed());
            return Ok(());
        }
        if name.archives.is_empty() && !name.pinned {
            // A power cut may restore the name. It then lists an archive that is stored or can be fetched again.
            self.store.records.remove(&key, Durability::Lazy)?;
        } else {
            let record = serde_json::to_vec(&name)
                .map_err(|e| StoreError::Index(format!("a name record cannot be written: {e}")))?;
            self.store.records.put(&key, &record, Durability::Synced)?;
        }
        self.store.index.name_changed(&artifact, &name.indexed());
        if name.is_imported() || before.is_imported() {
            *self.imported.lock() = None;
        }
        Ok(())
    }

    /// Packages imported without signatures and not verified since, at most [`MAX_IMPORTED_LISTED`]. Cached until the
    /// next change.
    pub(in crate::mirror) fn imported(&self) -> Vec<PackageRef> {
        if let Some(known) = &*self.imported.lock() {
            return known.clone();
        }
        match self.all_imported() {
            Ok(imported) => {
                if self.store.index.is_complete() {
                    *self.imported.lock() = Some(imported.clone());
                }
                imported
            }
            Err(error) => {
                tracing::warn!(%error, "unsigned imports cannot be listed");
                Vec::new()
            }
        }
    }

    fn all_imported(&self) -> Result<Vec<PackageRef>, StoreError> {
        let imported = |artifact: Artifact, name: IndexedName| name.imported.then(|| PackageRef::from(&artifact));
        let mut imported = self.store.index.names(imported)?;
        imported.sort();
        imported.truncate(MAX_IMPORTED_LISTED);
        Ok(imported)
    }
}
