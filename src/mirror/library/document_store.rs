//! Stored documents as the library has them: read once for all that want one, stored, replaced and removed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::address::{Address, Artifact, Hostname};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::counters::ObjectKind;
use crate::mirror::freshness::Confirmed;
use crate::mirror::library::catalog::Names;
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::first_listed::{address_of_list, record_times};
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::store::{Durability, Generation, IndexEntry, Key, Store, StoreError, Striped};
use crate::upstream::providers::LateVersion;

/// The stored copy of a document, with its confirmation; `None` if it is absent.
type StoredCopy = Option<Confirmed<Arc<StoredDocument>>>;

impl Library {
    /// The stored copy of a document, as far as this replica knows.
    pub(in crate::mirror) async fn stored_document(self: &Arc<Self>, key: &Key) -> Result<StoredCopy, Error> {
        self.document(key, |library, key| library.confirmed_document(key)).await
    }

    /// The stored copy of a document that is usable, of any replica.
    pub(in crate::mirror) async fn find_document(
        self: &Arc<Self>,
        key: &Key,
        is_usable: impl Fn(&StoredDocument) -> bool + Send + 'static,
    ) -> Result<StoredCopy, Error> {
        let look = move |library: &Self, key: &Key| {
            Ok(library.confirmed_document(key)?.filter(|stored| is_usable(&stored.value)))
        };
        self.document(key, move |library, key| library.find(&key.group(), || look(library, key))).await
    }

    async fn document(
        self: &Arc<Self>,
        key: &Key,
        look: impl FnOnce(&Self, &Key) -> Result<StoredCopy, StoreError> + Send + 'static,
    ) -> Result<StoredCopy, Error> {
        let wanted = key.clone();
        // Held while a document is read. A request that waits for it takes no thread.
        let _reading = self.work.documents_in_use.reading.of(key).lock().await;
        self.on_disk(move |library| look(library, &wanted)).await
    }

    fn confirmed_document(&self, key: &Key) -> Result<StoredCopy, StoreError> {
        let document = default_if_store_unavailable(self.work.documents_in_use.read(&self.store, key))?;
        Ok(document.map(|document| Confirmed { confirmed: document.confirmation(), value: document }))
    }
}

/// The documents that requests use at this moment. A large list is read once for all that want it at the same time.
#[derive(Debug, Default)]
pub struct DocumentsInUse {
    documents: Mutex<HashMap<Key, (Generation, Weak<StoredDocument>)>>,
    reading: Striped<tokio::sync::Mutex<()>>,
}

/// Entries of documents out of use that are dropped together.
const MAX_OUT_OF_USE: usize = 64;

impl DocumentsInUse {
    /// The stored document: the one in use, unless its group has changed since, or the one on the disk.
    fn read(&self, store: &Store, key: &Key) -> Result<Option<Arc<StoredDocument>>, StoreError> {
        // Before the read: a document of a later generation may be read again, and never an earlier one be used.
        let generation = store.records.generation(&key.group())?;
        let in_use = self.documents.lock().get(key).filter(|(read_at, _)| *read_at == generation).cloned();
        if let Some(document) = in_use.and_then(|(_, document)| document.upgrade()) {
            store.local.check()?;
            return Ok(Some(document));
        }
        let Some(document) = store.records.read_as(key, StoredDocument::read)?.intact() else { return Ok(None) };
        let document = Arc::new(document);
        let mut documents = self.documents.lock();
        if documents.len() >= MAX_OUT_OF_USE && documents.len().is_multiple_of(MAX_OUT_OF_USE) {
            documents.retain(|_, (_, document)| document.strong_count() > 0);
        }
        documents.insert(key.clone(), (generation, Arc::downgrade(&document)));
        Ok(Some(document))
    }
}

impl Library {
    /// Stores a document that was just fetched, and enforces the size limit. If the stored copy was confirmed later than
    /// this document, it stays, and is returned if it was requested at the same URL. Otherwise this document is
    /// returned. A failed write is only logged.
    pub async fn store_document(self: &Arc<Self>, key: Key, document: StoredDocument) -> DocumentFlightResult {
        let coming = document.clone();
        let put = self.on_disk(move |library| {
            let now = coming.metadata.checked;
            let mut late = Vec::new();
            let kept = library.replace_document(&key, coming, now, Durability::Lazy, |_, stored, coming| {
                // A search may have found some while this document was fetched.
                late = stored.map(|stored| stored.metadata.late.clone()).unwrap_or_default();
                Ok(StoredDocument { metadata: coming.metadata.with_late(late.clone()), ..coming })
            })?;
            library.enforce_size_limit();
            library.enforce_page_limit(&key);
            Ok((kept, late))
        });
        let document = match put.await {
            Ok((kept, late)) => {
                self.count_stored(ObjectKind::Document);
                let document = StoredDocument { metadata: document.metadata.with_late(late), ..document };
                kept.filter(|kept| kept.metadata.asked == document.metadata.asked).unwrap_or(document)
            }
            Err(error) => {
                tracing::error!(%error, "a document could not be stored");
                if let Error::Store(reason) = &error {
                    self.count_not_stored(ObjectKind::Document, reason);
                }
                document
            }
        };
        Ok(Confirmed { confirmed: document.confirmation(), value: Arc::new(document) })
    }

    /// Stores the document that `build` makes of the old and the new one. Returns the old one if it stays, because it was
    /// confirmed later.
    pub fn replace_document(
        &self,
        key: &Key,
        coming: StoredDocument,
        now: Timestamp,
        durability: Durability,
        mut build: impl FnMut(Names<'_>, Option<&StoredDocument>, StoredDocument) -> Result<StoredDocument, StoreError>,
    ) -> Result<Option<StoredDocument>, StoreError> {
        let address = address_of_list(key);
        if let Some(Address::Provider(provider)) = address {
            // An older record has the times of the versions.
            self.histories.split_by_version(provider);
        }
        // The sender of a bundle says when it read the list; only this larder's own clock decides how old a version is here.
        let listed = match coming.metadata.from_bundle {
            true => now,
            // A list that upstream never sent has no time of a check.
            false => coming.metadata.checked.max(coming.metadata.fetched),
        };
        let mut replace = |times: VersionTimes| {
            let mut kept = None;
            let replaced = self.change_document(key, durability, times, |names, stored| {
                let confirmed = coming.confirmation();
                kept = stored.filter(|stored| stored.confirmation().is_confirmed_after(confirmed, now)).cloned();
                if kept.is_some() { Ok(None) } else { Ok(Some((build(names, stored, coming.clone())?, listed))) }
            });
            replaced.map(|()| kept)
        };
        match (replace(VersionTimes::Known), address) {
            (Err(error @ StoreError::Io { .. }), Some(_)) if !error.is_full() => {
                tracing::error!(%key, %error, to_do = error.remedy(), "the list could not be stored with the times of its versions");
                replace(VersionTimes::Unknown)
            }
            (replaced, _) => replaced,
        }
    }

    /// Replaces a document by the one that `decide` makes of the stored one, in one step; `None` leaves it. The time is
    /// that at which the versions are listed that a provider's list names anew.
    pub fn change_document(
        &self,
        key: &Key,
        durability: Durability,
        times: VersionTimes,
        mut decide: impl FnMut(
            Names<'_>,
            Option<&StoredDocument>,
        ) -> Result<Option<(StoredDocument, Timestamp)>, StoreError>,
    ) -> Result<(), StoreError> {
        let mut noted = None;
        let changed = self.store.records.change(key, |step| {
            let stored = default_if_store_unavailable(step.read(key))?.intact().and_then(StoredDocument::read);
            let Some((mut document, listed)) = decide(Names::InStep(step), stored.as_ref())? else { return Ok(()) };
            document.metadata.without_times = times == VersionTimes::Unknown;
            if times == VersionTimes::Known {
                record_times(step, key, stored.as_ref(), &document, self.latest_time.at(listed))?;
                noted = address_of_list(key).map(|_| listed);
            }
            step.put(key, document.write(), durability, IndexEntry::Document(document.metadata.checked));
            Ok(())
        });
        noted.into_iter().for_each(|time| self.note_time(time));
        changed
    }

    /// Replaces what is known of the late versions of a list, unless its text is another one now. Blocks.
    pub fn change_late_versions(
        &self,
        key: &Key,
        text: &Bytes,
        change: impl Fn(&[LateVersion]) -> Vec<LateVersion>,
    ) -> Result<(), StoreError> {
        self.change_document(key, Durability::Lazy, VersionTimes::Known, |_, stored| {
            let Some(list) = stored.filter(|list| list.body == *text) else { return Ok(None) };
            let late = change(&list.metadata.late);
            let is_new = late != list.metadata.late;
            let listed = list.metadata.checked.max(list.metadata.fetched);
            Ok(is_new.then(|| (StoredDocument { metadata: list.metadata.with_late(late), ..list.clone() }, listed)))
        })
    }

    /// Reads a stored document. Blocks.
    pub fn read_document(&self, key: &Key) -> Result<Option<StoredDocument>, StoreError> {
        Ok(self.store.records.get(key)?.and_then(StoredDocument::read))
    }

    /// True if there is a record of this key that can be read. Blocks.
    pub fn has_record(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(self.store.records.get(key)?.is_some())
    }

    /// Makes a record durable that was written without a sync. Returns true if it exists. Blocks.
    pub fn sync_record(&self, key: &Key) -> Result<bool, StoreError> {
        self.store.records.sync(key)
    }

    /// Records the use of a document.
    pub fn document_used(&self, key: &Key, now: Timestamp) {
        self.store.local.index.document_used(key, now);
    }

    /// The size of a document in bytes; zero if there is none.
    pub fn document_bytes(&self, key: &Key) -> Result<u64, StoreError> {
        self.store.local.index.document_bytes(key)
    }

    /// The proof sets or the locations of an address, each with its package. Blocks.
    pub fn package_documents(&self, address: &Address) -> Result<Vec<(Artifact, Key)>, StoreError> {
        self.store.records.package_documents(address)
    }

    /// The documents about an address and none of its versions. Blocks.
    pub fn address_documents(&self, address: &Address) -> Result<Vec<Key>, StoreError> {
        self.store.records.address_documents(address)
    }

    /// The stored pages of a registry. Blocks.
    pub fn pages_of(&self, host: &Hostname) -> Result<Vec<Key>, StoreError> {
        self.store.records.pages_of(host)
    }
}

/// The times at which the versions of a list were first listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionTimes {
    /// They are recorded with the list.
    Known,
    /// They cannot be recorded.
    Unknown,
}
