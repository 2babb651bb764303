//! What is held of a version of a module.

use std::sync::Arc;

use super::super::documents::KeptDocument;
use super::super::library::HeldArchive;
use super::super::{Mirror, unless_gone};
use super::seen::{self, Recalled};
use crate::address::ModulePackage;
use crate::error::Error;
use crate::store::{Key, StoreError};

impl Mirror {
    /// Whether upstream has deleted a version, as far as its held location tells.
    pub(in crate::mirror) fn location_is_gone(&self, package: &ModulePackage) -> bool {
        // What cannot be read cannot be known to be gone, and its archive can be fetched again.
        let record = self.store.records.get(&Key::ModuleLocation(package.clone())).ok().flatten();
        record.and_then(KeptDocument::read).is_some_and(|kept| kept.about.gone)
    }

    /// The archive of a version that is held now, if one is: of the tree that is pinned, and of no other.
    pub(in crate::mirror) async fn held_module(
        self: &Arc<Self>,
        key: &ModulePackage,
    ) -> Result<Option<HeldArchive>, Error> {
        let of = key.clone();
        self.on_disk(move |mirror| mirror.module_now(&of)).await
    }

    /// The same; asks the disk.
    pub(in crate::mirror) fn module_now(&self, key: &ModulePackage) -> Result<Option<HeldArchive>, StoreError> {
        let name = unless_gone(self.catalog.name(key))?;
        if name.archives.is_empty() {
            return Ok(None);
        }
        // A record that cannot be read, or be put down again, now hides nothing that is held.
        let seen = seen::known(self, key).ok().and_then(Recalled::seen);
        for held in name.archives.into_iter().rev() {
            let is_pinned = match (&seen, held.proof.how.tree()) {
                (Some(seen), Some(packed)) => seen.pinned.is_packed_as(packed),
                (None, _) | (_, None) => true,
            };
            if is_pinned && unless_gone(self.store.blobs.holds(&held.digest))? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }
}
