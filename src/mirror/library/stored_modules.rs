//! Lookups of stored module versions.

use crate::mirror::Library;
use std::sync::Arc;

use crate::address::ModulePackage;
use crate::error::Error;
use crate::mirror::default_if_gone;
use crate::mirror::library::StoredArchive;
use crate::mirror::library::module_history::{self, FirstSeenLookup};
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::{Key, StoreError};

impl Library {
    /// True if the cached location says that upstream has deleted the version.
    pub(in crate::mirror) fn location_is_gone(&self, package: &ModulePackage) -> bool {
        // An unreadable location counts as not deleted: the archive can be fetched again.
        let record = self.store.records.get(&Key::ModuleLocation(package.clone())).ok().flatten();
        record.and_then(StoredDocument::read).is_some_and(|document| document.metadata.gone)
    }

    /// The current archive of a version, if one with the pinned tree is stored.
    pub(in crate::mirror) async fn stored_module(
        self: &Arc<Self>,
        key: &ModulePackage,
    ) -> Result<Option<StoredArchive>, Error> {
        let owned_key = key.clone();
        self.on_disk(move |library| library.current_module_archive(&owned_key)).await
    }

    /// Reads the current archive of a version. Blocks.
    pub(in crate::mirror) fn current_module_archive(
        &self,
        key: &ModulePackage,
    ) -> Result<Option<StoredArchive>, StoreError> {
        let name = default_if_gone(self.catalog.name(key))?;
        if name.archives.is_empty() {
            return Ok(None);
        }
        // An unreadable record does not hide a stored archive.
        let seen = module_history::read_first_seen(self, key).ok().and_then(FirstSeenLookup::first_seen);
        for archive in name.archives.into_iter().rev() {
            let is_pinned = match (&seen, archive.proof.how.tree()) {
                (Some(seen), Some(packed)) => seen.pinned.matches_archive(packed),
                (None, _) | (_, None) => true,
            };
            if is_pinned && default_if_gone(self.store.blobs.is_stored(&archive.digest))? {
                return Ok(Some(archive));
            }
        }
        Ok(None)
    }
}
