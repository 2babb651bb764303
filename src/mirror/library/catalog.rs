//! The names of stored archives, and the locks under which the store is changed.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::address::{Artifact, PackageRef};
use crate::digest::Digest;
use crate::mirror::library::name_record::NameRecord;
use crate::mirror::library::revisions::Revisions;
use crate::store::{Action, Durability, IndexEntry, IndexedName, Key, Recorded, Store, StoreError, Striped, to_json};

const MAX_IMPORTED_LISTED: usize = 1000;

/// The names of stored archives.
#[derive(Debug)]
pub(in crate::mirror) struct Catalog {
    pub(in crate::mirror) store: Arc<Store>,
    digest_locks: Striped<Mutex<()>>,
    imported: Mutex<Option<Vec<PackageRef>>>,
    pub(in crate::mirror) revisions: Revisions,
    /// The archives that were compared with their digests since the start.
    pub(in crate::mirror) checked: Mutex<HashSet<Digest>>,
}

impl Catalog {
    pub(in crate::mirror) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            digest_locks: Striped::default(),
            imported: Mutex::default(),
            revisions: Revisions::default(),
            checked: Mutex::default(),
        }
    }

    /// The lock for storing or removing an archive.
    pub(in crate::mirror) fn digest_lock(&self, digest: &Digest) -> &Mutex<()> {
        self.digest_locks.of(digest)
    }

    /// Locks all digests, so that no archive is stored or removed meanwhile.
    pub(in crate::mirror) fn lock_all_digests(&self) -> Vec<MutexGuard<'_, ()>> {
        self.digest_locks.stripes.iter().map(|lock| lock.lock()).collect()
    }

    /// Reads a name. Returns an empty one if it is absent, or damaged and thus quarantined.
    pub(in crate::mirror) fn name(&self, artifact: impl Into<Artifact>) -> Result<NameRecord, StoreError> {
        let artifact = artifact.into();
        let key = Key::Name(artifact.clone());
        let read = self.store.records.read(&key)?;
        let is_whole = matches!(read, Recorded::Whole(_));
        match read.json() {
            Recorded::Absent => return Ok(NameRecord::default()),
            Recorded::Whole(name) => return Ok(name),
            Recorded::Damaged if is_whole => self.store.records.quarantine(&key)?,
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
        mut change: impl FnMut(&mut NameRecord),
    ) -> Result<(), StoreError> {
        let artifact = artifact.into();
        let key = Key::Name(artifact.clone());
        let is_import_changed = self.store.records.change(&key, |step| {
            let before = self.name(&artifact)?;
            let mut name = before.clone();
            change(&mut name);
            let action = if name == before {
                // After a name was damaged, the index may still contain its old entries.
                Action::Keep
            } else if name.archives.is_empty() && !name.pinned {
                // A power cut may restore the name. It then lists an archive that is stored or can be fetched again.
                Action::Remove(Durability::Lazy)
            } else {
                Action::Put(to_json(&name), Durability::Synced)
            };
            step.change(&key, action, IndexEntry::Name(name.indexed()));
            Ok(name != before && (name.is_imported() || before.is_imported()))
        })?;
        if is_import_changed {
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
