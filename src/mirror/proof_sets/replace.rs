//! Reads and replaces the stored record of a proof set.

use crate::mirror::{Library, ProofSets};
use std::sync::Arc;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::counters::ObjectKind;
use crate::mirror::default_if_gone;
use crate::mirror::documents::revalidate::Aged;
use crate::mirror::freshness::Age;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet, UsableProofSet};
use crate::mirror::proof_sets::SetFlight;
use crate::store::{Durability, Key, StoreError};
use crate::verify::ProofBasis;

impl Library {
    /// Reads the stored set, however it was verified.
    pub(in crate::mirror) fn read_set(&self, package: &Package) -> Result<Option<UsableProofSet>, StoreError> {
        let key = Key::ProofSet(package.clone());
        let Some(record) = self.store.records.get(&key)? else { return Ok(None) };
        let Some(stored_set) = StoredProofSet::read(record, package) else {
            self.store.records.quarantine(&key)?;
            return Ok(None);
        };
        let fallback = self.only_predecessor_is_stored(&stored_set)?;
        Ok(Some(UsableProofSet { stored_set: Arc::new(stored_set), fallback }))
    }

    fn only_predecessor_is_stored(&self, stored_set: &StoredProofSet) -> Result<Option<Arc<ProofSet>>, StoreError> {
        let Some((predecessor, _)) = stored_set.predecessor.as_ref() else { return Ok(None) };
        let holds = |set: &ProofSet| self.store.blobs.is_stored(&set.document.shasum);
        Ok((!holds(&stored_set.current)? && holds(predecessor)?).then(|| Arc::clone(predecessor)))
    }
}

impl ProofSets {
    /// Replaces a package's set. The old set becomes the predecessor, unless it was imported without signatures.
    pub(in crate::mirror) async fn store_set(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        now: Timestamp,
    ) -> SetFlight {
        self.store_set_confirmed_at(package, set, now, now).await
    }

    /// Replaces a package's set by one that upstream confirmed at `checked`.
    pub(in crate::mirror) async fn store_set_confirmed_at(
        self: &Arc<Self>,
        package: &Package,
        set: ProofSet,
        checked: Timestamp,
        now: Timestamp,
    ) -> SetFlight {
        self.replace_imported_set(package, &set, now).await?;
        let current = Arc::new(set);
        self.change_set(package, move |library, stored| {
            let predecessor = match stored {
                None => None,
                Some(stored) if stored.current.proof().how == ProofBasis::Imported => None,
                Some(stored) if current.has_same_files(&stored.current) => stored.predecessor,
                // While only the older predecessor's archive is stored, that one stays the fallback.
                Some(stored) => match library.only_predecessor_is_stored(&stored)? {
                    Some(_) => stored.predecessor,
                    None => Some((stored.current, now)),
                },
            };
            Ok(StoredProofSet { predecessor, current, age: Age { checked, gone: false } })
        })
        .await
    }

    /// Makes the next request for a package's set revalidate it, unless it was replaced meanwhile.
    pub(in crate::mirror) async fn expire_set(self: &Arc<Self>, package: &Package, wrong: Digest) -> Result<(), Error> {
        let key = Key::ProofSet(package.clone());
        let owned_package = package.clone();
        self.library
            .on_disk(move |library| {
                let _lock = library.catalog.record_lock(&key).lock();
                let Some(UsableProofSet { stored_set, .. }) = library.read_set(&owned_package)? else { return Ok(()) };
                if stored_set.current.document.shasum != wrong {
                    return Ok(());
                }
                let age = Age { checked: Timestamp(0), ..stored_set.age };
                let expired = StoredProofSet { age, ..(*stored_set).clone() };
                let size_bytes = library.store.records.put(&key, &expired.write(), Durability::Lazy)?;
                library.store.index.document_stored(&key, size_bytes, expired.current.fetched());
                Ok(())
            })
            .await?;
        self.library.bump_revision(&package.provider);
        Ok(())
    }

    /// Replaces a package's set by the result of `change`. A stored set that was confirmed later stays. A failed write
    /// is logged, and the caller still gets the set.
    pub(in crate::mirror) async fn change_set(
        self: &Arc<Self>,
        package: &Package,
        change: impl FnOnce(&Library, Option<StoredProofSet>) -> Result<StoredProofSet, StoreError> + Send + 'static,
    ) -> SetFlight {
        let owned_package = package.clone();
        let changed = self.library.on_disk(move |library| {
            let key = Key::ProofSet(owned_package.clone());
            let lock = library.catalog.record_lock(&key).lock();
            let read = library.read_set(&owned_package);
            let is_gone = matches!(read, Err(StoreError::Gone));
            let stored = default_if_gone(read)?.map(|stored| Arc::unwrap_or_clone(stored.stored_set));
            let before = stored.clone();
            let changed = change(library, stored)?;
            if let Some(before) =
                before.filter(|before| before.age.is_confirmed_after(changed.age, changed.age.checked))
            {
                return Ok(before);
            }
            if is_gone {
                // Do not overwrite a set that was not read: the store may be back by now.
                return Ok(changed);
            }
            match library.store.records.put(&key, &changed.write(), Durability::Lazy) {
                Ok(size_bytes) => {
                    library.store.index.document_stored(&key, size_bytes, changed.age.checked);
                    library.record_stored(ObjectKind::Document);
                }
                Err(error) => {
                    tracing::error!(package = %owned_package, %error, "a proof set could not be stored");
                    library.record_not_stored(ObjectKind::Document, &error);
                }
            }
            drop(lock);
            library.enforce_size_limit();
            Ok(changed)
        });
        let changed = Arc::new(changed.await?);
        self.library.bump_revision(&package.provider);
        Ok(Aged { age: changed.age, value: changed })
    }
}
