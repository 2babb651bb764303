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

/// What may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    Archives,
    ArchivesThenDocuments,
}

struct Named {
    package: Package,
    pinned: bool,
}

/// Which packages list an archive; and whether every name could be read.
struct Names {
    by_digest: HashMap<Digest, Vec<Named>>,
    all_readable: bool,
}

impl Mirror {
    /// Promises no room yet.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation { bytes: 0, reserved: Arc::clone(&self.reserved) }
    }

    /// Raises a promise to `bytes`, evicting what must go.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] for what could never fit, before anything is evicted for it.
    pub(super) async fn reserve(self: &Arc<Self>, room: &mut Reservation, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(room.bytes);
        if more == 0 {
            return Ok(());
        }
        self.reserved.fetch_add(more, Ordering::Relaxed);
        room.bytes = bytes;
        if !self.is_over(self.limits.store_bytes) {
            return Ok(());
        }
        self.on_disk(move |mirror| {
            let pinned = mirror.pinned_bytes()?;
            let limit = mirror.limits.store_bytes;
            if bytes.saturating_add(pinned) > limit {
                return Err(StoreError::NoRoom { needed: bytes, limit, pinned });
            }
            mirror.evict_to_fit(Victims::Archives)
        })
        .await
    }

    /// Puts a document, notes its size, and keeps to the size limit.
    pub(super) fn put_document(
        &self,
        key: &Key,
        record: &[u8],
        now: Timestamp,
        durability: Durability,
    ) -> Result<(), StoreError> {
        self.write_document(key, record, now, durability)?;
        self.keep_to_the_limit();
        Ok(())
    }

    /// Puts a document and notes its size.
    pub(super) fn write_document(
        &self,
        key: &Key,
        record: &[u8],
        now: Timestamp,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let _lock = self.record_lock(key).lock();
        let size_bytes = self.store.records.put(key, record, durability)?;
        self.store.index.document_kept(key, size_bytes, now);
        Ok(())
    }

    /// Removes a document.
    pub(super) fn remove_document(&self, key: &Key) -> Result<(), StoreError> {
        let _lock = self.record_lock(key).lock();
        self.store.records.remove(key)?;
        self.store.index.document_gone(key);
        Ok(())
    }

    /// Evicts what is too much. That it cannot is no failure of whoever brought the last bytes.
    pub(super) fn keep_to_the_limit(&self) {
        if self.is_over(self.limits.store_bytes)
            && let Err(error) = self.evict_to_fit(Victims::ArchivesThenDocuments)
        {
            tracing::error!(%error, "the store is over its size limit, and could not be evicted from");
        }
    }

    fn is_over(&self, limit: u64) -> bool {
        let used = self.store.index.totals().bytes().saturating_add(self.reserved.load(Ordering::Relaxed));
        used > limit
    }

    fn evict_to_fit(&self, victims: Victims) -> Result<(), StoreError> {
        if self.link() == Link::Offline {
            return Ok(());
        }
        let _one_by_one = self.evicting.lock();
        // A little more than must be, or every small document would look at all names again.
        let enough = self.limits.store_bytes / 100 * 98;
        // The names after the archives: a name is written before its archive is in the index.
        let archives = self.store.index.archives_by_age()?;
        let names = self.names_by_digest()?;
        let none = Vec::new();
        let mut gone_upstream = Vec::new();
        for (digest, size_bytes) in archives {
            if !self.is_over(enough) {
                return Ok(());
            }
            let of = names.by_digest.get(&digest).unwrap_or(&none);
            if of.iter().any(|named| named.pinned) || (of.is_empty() && !names.all_readable) {
                continue;
            }
            if of.iter().any(|named| self.is_gone_upstream(&named.package)) {
                gone_upstream.push((digest, size_bytes));
                continue;
            }
            self.evict(&digest, of)?;
        }
        for (digest, size_bytes) in gone_upstream {
            if !self.is_over(enough) {
                return Ok(());
            }
            tracing::warn!(%digest, size_bytes, "evicted an archive that upstream has deleted: nobody can bring it back");
            self.evict(&digest, names.by_digest.get(&digest).unwrap_or(&none))?;
        }
        if victims == Victims::Archives {
            return Ok(());
        }
        for (key, _) in self.store.index.documents_by_age()? {
            if !self.is_over(enough) {
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
        self.store.index.archive_gone(digest);
        self.checked.lock().remove(digest);
        Ok(())
    }

    fn is_gone_upstream(&self, package: &Package) -> bool {
        // What cannot be read cannot be known to be gone, and its archive can be fetched again.
        self.read_set(package).ok().flatten().is_some_and(|held| held.kept.age.gone)
    }

    fn pinned_bytes(&self) -> Result<u64, StoreError> {
        let names = self.names_by_digest()?;
        let pinned =
            |digest: &Digest| names.by_digest.get(digest).is_some_and(|of| of.iter().any(|named| named.pinned));
        let archives = self.store.index.archives_by_age()?;
        Ok(archives.iter().filter(|(digest, _)| pinned(digest)).map(|(_, size_bytes)| size_bytes).sum())
    }

    fn names_by_digest(&self) -> Result<Names, StoreError> {
        let mut names = Names { by_digest: HashMap::new(), all_readable: true };
        for package in self.store.records.all_packages_with_names()? {
            match self.name(&package) {
                Ok(name) => {
                    for held in name.archives {
                        let named = Named { package: package.clone(), pinned: name.pinned };
                        names.by_digest.entry(held.digest).or_default().push(named);
                    }
                }
                Err(error) => {
                    tracing::error!(%package, %error, "a name cannot be read; nothing unnamed is evicted");
                    names.all_readable = false;
                }
            }
        }
        Ok(names)
    }
}
