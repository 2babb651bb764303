//! The size limit: what was used longest ago goes first, archives before documents, and nothing while
//! offline. What upstream has deleted goes last, because nobody could bring it back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Mirror;
use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Durability, Key, StoreError};
use crate::upstream::outbound::Link;

/// Room that is promised to a fill under way; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    bytes: u64,
    reserved: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Mirror {
    /// Promises room for `bytes`, evicting what must go.
    pub(super) async fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Error> {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let reservation = Reservation { bytes, reserved: Arc::clone(&self.reserved) };
        if self.is_over_the_limit() {
            self.on_disk(|mirror| mirror.evict_to_fit()).await?;
        }
        Ok(reservation)
    }

    /// Puts a document, notes its size, and keeps to the size limit.
    pub(super) fn put_document(
        &self,
        key: &Key,
        record: &[u8],
        now: Timestamp,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let size_bytes = self.store.records.put(key, record, durability)?;
        self.store.index.document_used(key, size_bytes, now)?;
        if self.is_over_the_limit() { self.evict_to_fit() } else { Ok(()) }
    }

    /// Removes a document.
    pub(super) fn remove_document(&self, key: &Key) -> Result<(), StoreError> {
        self.store.records.remove(key)?;
        self.store.index.document_gone(key)
    }

    fn is_over_the_limit(&self) -> bool {
        let used = self.store.index.totals().bytes().saturating_add(self.reserved.load(Ordering::Relaxed));
        used > self.limits.store_bytes
    }

    fn evict_to_fit(&self) -> Result<(), StoreError> {
        if self.link() == Link::Offline {
            return Ok(());
        }
        let Some(_only_one) = self.evicting.try_lock() else { return Ok(()) };
        let named = self.packages_by_digest()?;
        let none = Vec::new();
        let mut gone_upstream = Vec::new();
        for (digest, size_bytes) in self.store.index.archives_by_age()? {
            if !self.is_over_the_limit() {
                return Ok(());
            }
            let of = named.get(&digest).unwrap_or(&none);
            if of.iter().any(|named| named.pinned) {
                continue;
            }
            if of.iter().any(|named| self.is_gone_upstream(&named.package)) {
                gone_upstream.push((digest, size_bytes));
                continue;
            }
            self.evict(&digest, of)?;
        }
        for (digest, size_bytes) in gone_upstream {
            if !self.is_over_the_limit() {
                return Ok(());
            }
            tracing::warn!(%digest, size_bytes, "evicted an archive that upstream has deleted: nobody can bring it back");
            self.evict(&digest, named.get(&digest).unwrap_or(&none))?;
        }
        for (key, _) in self.store.index.documents_by_age()? {
            if !self.is_over_the_limit() {
                return Ok(());
            }
            self.remove_document(&key)?;
        }
        Ok(())
    }

    fn evict(&self, digest: &Digest, of: &[Named]) -> Result<(), StoreError> {
        let _lock = self.digest_lock(digest).lock();
        for Named { package, .. } in of {
            self.change_name(package, |name| name.archives.retain(|held| held.digest != *digest))?;
            self.changed(&package.provider);
            tracing::info!(%package, %digest, "evicted an archive");
        }
        self.store.blobs.remove(digest)?;
        self.store.index.archive_gone(digest)?;
        self.checked.lock().remove(digest);
        Ok(())
    }

    fn is_gone_upstream(&self, package: &Package) -> bool {
        // What cannot be read cannot be known to be gone, and its archive can be fetched again.
        self.read_set(package).ok().flatten().is_some_and(|kept| kept.is_gone())
    }

    fn packages_by_digest(&self) -> Result<HashMap<Digest, Vec<Named>>, StoreError> {
        let mut named: HashMap<Digest, Vec<Named>> = HashMap::new();
        for (key, _, _) in self.store.records.all("names")? {
            let Key::Name(package) = key else { continue };
            let name = self.name(&package)?;
            for held in name.archives {
                named.entry(held.digest).or_default().push(Named { package: package.clone(), pinned: name.pinned });
            }
        }
        Ok(named)
    }
}

struct Named {
    package: Package,
    pinned: bool,
}
