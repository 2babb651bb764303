//! Archives that turn out to be damaged or gone: set aside, and taken off their names.

use crate::address::Artifact;
use crate::digest::{Digest, FastHash};
use crate::mirror::Library;
use crate::mirror::counters::DamageFinding;
use crate::mirror::library::{NameRecord, StoredArchive};
use crate::store::{Blob, Key, ReadOutcome, StoreError};

/// Returns the value, or `None` where the data on disk is damaged for good.
pub fn unless_damaged<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_damage() => {
            tracing::error!(%error, "a stored archive cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Library {
    /// The keys of all records. Blocks.
    pub(in crate::mirror) fn all_records(&self) -> Result<Vec<Key>, StoreError> {
        self.store.records.all()
    }

    /// True if a record is damaged. It is quarantined then, unless its existence matters. Blocks.
    pub(in crate::mirror) fn is_record_damaged(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(matches!(self.store.records.read(key)?, ReadOutcome::Damaged))
    }

    /// Takes an archive that cannot be used off one name, and sets it aside if it is damaged. Does nothing if it was
    /// repaired meanwhile. Blocks.
    pub(in crate::mirror) fn take_off_name(
        &self,
        artifact: &Artifact,
        digest: &Digest,
        fast: FastHash,
        found: DamageFinding,
    ) -> Result<(), StoreError> {
        let _lock = self.catalog.digest_lock(digest).lock();
        match (found, self.store.blobs.open(digest)?) {
            (DamageFinding::Missing, Some(_)) => return Ok(()),
            (DamageFinding::Damaged, Some(blob)) if unless_damaged(blob.fast_hash())? == Some(fast) => return Ok(()),
            (DamageFinding::Damaged, Some(_)) => self.store.blobs.quarantine(digest)?,
            (_, None) => {}
        }
        self.catalog.verified_since_start.lock().remove(digest);
        let take_off = |name: &mut NameRecord| name.archives.retain(|archive| archive.digest != *digest);
        self.catalog.change_name_record(artifact, take_off)?;
        self.store.index.archive_gone(digest);
        self.runtime.counters.damaged(found);
        self.increment_revision(artifact);
        Ok(())
    }

    /// Sets a damaged archive aside, which stays on its names: a caller has another copy. Does nothing if it was replaced
    /// since it was opened. Blocks.
    pub(in crate::mirror) fn set_aside(&self, digest: &Digest, opened: &Blob) -> Result<(), StoreError> {
        let _lock = self.catalog.digest_lock(digest).lock();
        if self.store.blobs.quarantine_unless_replaced(digest, opened)? {
            self.catalog.verified_since_start.lock().remove(digest);
            self.store.index.archive_gone(digest);
            self.runtime.counters.damaged(DamageFinding::Damaged);
        }
        Ok(())
    }

    /// Quarantines a wrong archive and takes it off every name. `None` where it was replaced or removed since it was
    /// opened.
    pub(in crate::mirror) fn take_off_all_names(
        &self,
        digest: Digest,
        opened: Option<&Blob>,
    ) -> Result<Option<Vec<(Artifact, StoredArchive)>>, StoreError> {
        self.store.index.require_complete()?;
        let _lock = self.catalog.digest_lock(&digest).lock();
        match opened {
            Some(opened) if !self.store.blobs.quarantine_unless_replaced(&digest, opened)? => return Ok(None),
            None if self.store.blobs.is_stored(&digest)? => return Ok(None),
            Some(_) | None => {}
        }
        self.catalog.verified_since_start.lock().remove(&digest);
        self.store.index.archive_gone(&digest);
        let mut taken_off = Vec::new();
        for artifact in self.store.index.names_of(&digest)? {
            let mut taken = None;
            self.catalog.change_name_record(&artifact, |name| {
                taken = name.get(&digest).cloned();
                name.archives.retain(|archive| archive.digest != digest);
            })?;
            self.increment_revision(&artifact);
            taken_off.extend(taken.map(|archive| (artifact, archive)));
        }
        Ok((opened.is_some() || !taken_off.is_empty()).then_some(taken_off))
    }
}
