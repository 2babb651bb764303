//! Checks if an entry of a bundle, or a newer version of it, is stored already.

use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::Library;
use crate::mirror::default_if_gone;
use crate::mirror::freshness::Age;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::{Key, StoreError};

impl Library {
    /// True if this set or a newer one is stored, with its archive.
    pub(in crate::mirror) fn has_set_or_newer(
        &self,
        package: &Package,
        set: &ProofSet,
        age: Age,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.read_set(package)? else { return Ok(false) };
        let current = &stored.stored_set.current;
        let is_it = current.has_same_files(set) && current.body == set.body;
        Ok((is_it || stored.stored_set.age.is_confirmed_after(age, now))
            && self.is_stored_under(package, current.document.shasum)?)
    }

    /// True if an archive is stored under this name.
    fn is_stored_under(&self, package: &Package, digest: Digest) -> Result<bool, StoreError> {
        Ok(self.catalog.name(package)?.get(&digest).is_some() && default_if_gone(self.store.blobs.is_stored(&digest))?)
    }

    /// True if this document or a newer one is stored.
    pub(in crate::mirror) fn has_document_or_newer(
        &self,
        key: &Key,
        coming: &StoredDocument,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(stored) = self.store.records.get(key)?.and_then(StoredDocument::read) else { return Ok(false) };
        if stored.age().is_confirmed_after(coming.age(), now) {
            return Ok(true);
        }
        let made = self.merge_stored_entries(key, Some(&stored), coming.clone())?;
        Ok(stored.has_same_content(&made) && stored.age() == made.age())
    }
}
