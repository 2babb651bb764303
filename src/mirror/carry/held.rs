//! What a bundle brings that is held already, or of which something newer is.

use super::super::documents::KeptDocument;
use super::super::freshness::Age;
use super::super::proof_set::ProofSet;
use super::super::{Mirror, unless_gone};
use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::{Key, StoreError};

impl Mirror {
    /// Whether a set that can be installed is held which is this one, or is newer.
    pub(super) fn holds_as_new(
        &self,
        package: &Package,
        set: &ProofSet,
        age: Age,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(held) = self.read_set(package)? else { return Ok(false) };
        let current = &held.kept.current;
        let is_it = current.names_the_same_files_as(set) && current.body == set.body;
        Ok((is_it || held.kept.age.outlasts(age, now)) && self.is_named(package, current.document.shasum)?)
    }

    /// Whether an archive is held under this name.
    fn is_named(&self, package: &Package, digest: Digest) -> Result<bool, StoreError> {
        Ok(self.catalog.name(package)?.get(&digest).is_some() && unless_gone(self.store.blobs.holds(&digest))?)
    }

    /// Whether a document is held which is this one, or is newer.
    pub(in crate::mirror) fn held_as_new(
        &self,
        key: &Key,
        coming: &KeptDocument,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let Some(held) = self.store.records.get(key)?.and_then(KeptDocument::read) else { return Ok(false) };
        if held.age().outlasts(coming.age(), now) {
            return Ok(true);
        }
        let made = self.with_what_is_held(key, Some(&held), coming.clone())?;
        Ok(held.says_the_same_as(&made) && held.age() == made.age())
    }
}
