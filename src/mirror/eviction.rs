//! The size limit: what was used longest ago goes first, archives before documents, pages before other documents, and
//! nothing while offline. What upstream has deleted goes last, because nobody could bring it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::MutexGuard;

use super::Mirror;
use super::counters::{Because, Stored};
use super::modules::note_before_it_goes;
use super::names_by_digest::Named;
use crate::address::{Artifact, Package};
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{IndexedArchive, Key, StoreError};
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

/// Of a store, one part in this many at most is for pages.
const PAGES_SHARE: u64 = 8;

/// How often what is held is gone over, when some of it was used meanwhile.
const ROUNDS: usize = 3;

/// What came of going once over what is held.
#[derive(Debug, Default)]
struct Round {
    freed: u64,
    passed_over: usize,
}

impl Round {
    fn note(&mut self, evicted: Option<u64>) {
        match evicted {
            Some(bytes) => self.freed += bytes,
            None => self.passed_over += 1,
        }
    }
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
        let limit = self.store_bytes();
        if bytes > limit {
            return Err(StoreError::NoRoom { needed: bytes, limit, stays: 0 }.into());
        }
        if self.taken_up().saturating_add(more) > limit {
            let stays = self.on_disk(|mirror| mirror.staying_bytes()).await?;
            if bytes.saturating_add(stays) > limit {
                return Err(StoreError::NoRoom { needed: bytes, limit, stays }.into());
            }
        }
        self.reserved.fetch_add(more, Ordering::Relaxed);
        room.bytes = bytes;
        if self.is_over(limit) {
            self.on_disk(|mirror| mirror.evict_to_fit(Victims::Archives)).await?;
        }
        Ok(())
    }

    /// Removes a set, once what it proves is sure to be remembered.
    pub(super) fn remove_set(&self, package: &Package) -> Result<(), StoreError> {
        self.histories.record_before_removal(package)?;
        self.remove_document(&Key::ProofSet(package.clone()))
    }

    /// Evicts what is too much. That it cannot is no failure of whoever brought the last bytes.
    pub(super) fn keep_to_the_limit(&self) {
        if self.is_over(self.store_bytes())
            && let Err(error) = self.evict_to_fit(Victims::ArchivesThenDocuments)
        {
            tracing::error!(%error, "the store is over its size limit, and could not be evicted from");
        }
    }

    /// Evicts pages, least recently used first, where there are more than may be: whoever varies a query could fill
    /// the store with them, and a small store with a few.
    pub(super) fn keep_pages_to_their_limit(&self) {
        let limit = self.limits.page_bytes.min(self.store_bytes() / PAGES_SHARE);
        if self.store.index.totals().page_bytes <= limit || self.link() == Link::Offline {
            return;
        }
        let _one_by_one = self.evicting.lock();
        // A little more than must be, or every page would look at all of them again.
        let enough = limit / 100 * 98;
        if let Err(error) = self.evict_pages(|| self.store.index.totals().page_bytes <= enough) {
            tracing::error!(%error, "there are more pages than may be, and they could not be evicted");
        }
    }

    fn evict_pages(&self, enough: impl Fn() -> bool) -> Result<(), StoreError> {
        for (key, size_bytes) in self.store.index.pages_by_age()? {
            if enough() {
                break;
            }
            match self.remove_document(&key) {
                Ok(()) => self.counters.evicted(Stored::Document, Because::SizeLimit, size_bytes),
                Err(error) => tracing::error!(?key, %error, "a page could not be evicted; it stays"),
            }
        }
        Ok(())
    }

    /// What may be stored, in bytes.
    pub(super) fn store_bytes(&self) -> u64 {
        self.terms.load().store_bytes
    }

    fn is_over(&self, limit: u64) -> bool {
        self.taken_up() > limit
    }

    /// Whether so many more bytes fit without anything being evicted.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        self.taken_up().saturating_add(bytes) <= self.store_bytes()
    }

    /// What is held, and what is promised to fills.
    pub(super) fn taken_up(&self) -> u64 {
        self.store.index.totals().bytes().saturating_add(self.reserved.load(Ordering::Relaxed))
    }

    fn evict_to_fit(&self, victims: Victims) -> Result<(), StoreError> {
        // A little more than must be, or every small document would look at all names again.
        let enough = self.store_bytes() / 100 * 98;
        // Also while documents go: which of them are of what is pinned is looked up once.
        let one_by_one = self.evicting.lock();
        // Whatever the totals say afterwards, no more goes than was too much.
        let too_much = self.taken_up().saturating_sub(enough);
        self.evict_archives(&one_by_one, Because::SizeLimit, |freed| freed >= too_much || !self.is_over(enough))?;
        if victims == Victims::Archives || self.link() == Link::Offline {
            return Ok(());
        }
        // What is promised to fills is no reason to forget documents.
        let documents_alone_are_too_much = || self.store.index.totals().bytes() > enough;
        if !documents_alone_are_too_much() {
            return Ok(());
        }
        self.evict_pages(|| !documents_alone_are_too_much())?;
        if !documents_alone_are_too_much() {
            return Ok(());
        }
        let pinned = self.documents_of_what_is_pinned()?;
        for (key, size_bytes) in self.store.index.documents_by_age()? {
            if !documents_alone_are_too_much() {
                return Ok(());
            }
            if pinned.contains(&key) || self.staying.has_document(&key) {
                continue;
            }
            let evicted = match &key {
                Key::ProofSet(package) => self.remove_set(package),
                key => self.remove_document(key),
            };
            match evicted {
                Ok(()) => self.counters.evicted(Stored::Document, Because::SizeLimit, size_bytes),
                Err(error) => tracing::error!(?key, %error, "a document could not be evicted; it stays"),
            }
        }
        Ok(())
    }

    /// Makes room for `bytes` on a disk that is full, whatever the size limit says; evicts nothing for what
    /// would not fit all the same.
    pub(super) fn make_room_on_disk(&self, bytes: u64, full: &StoreError) -> Result<(), StoreError> {
        let free = self.free_on_disk(bytes, full)?;
        let (held, stays) = (self.store.index.totals().archive_bytes, self.staying_bytes()?);
        let limit = free.saturating_add(held);
        if bytes.saturating_add(stays) > limit {
            return Err(StoreError::NoRoom { needed: bytes, limit, stays });
        }
        let missing = bytes.saturating_sub(free);
        self.evict_archives(&self.evicting.lock(), Because::DiskFull, |freed| freed >= missing).map(drop)
    }

    /// What a disk that is full still takes. Where that is too little, what was set aside goes first.
    fn free_on_disk(&self, needed: u64, full: &StoreError) -> Result<u64, StoreError> {
        // What the disk has free says nothing of this user's share of it.
        let free = || if full.is_over_quota() { Ok(0) } else { self.store.free_bytes() };
        if free()? < needed {
            self.store.drop_what_was_set_aside()?;
        }
        free()
    }

    /// Makes room on a disk that is full where nobody knows how much it takes: this much is free then.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] where nothing is left that could go; `full` itself where it is no room that is missing.
    pub(super) fn make_some_room(&self, bytes: u64, full: &StoreError) -> Result<(), StoreError> {
        if full.is_too_large() {
            return Err(full.clone());
        }
        let free = self.free_on_disk(bytes, full)?;
        let missing = bytes.saturating_sub(free);
        if missing == 0 {
            return Ok(());
        }
        tracing::warn!(error = %full, "the disk is full in the middle of a fill; it is evicted from");
        match self.evict_archives(&self.evicting.lock(), Because::DiskFull, |freed| freed >= missing)? {
            0 => Err(StoreError::NoRoom { needed: free.saturating_add(1), limit: free, stays: self.staying_bytes()? }),
            _ => Ok(()),
        }
    }

    /// Evicts archives, least recently used first, until it is enough, and says how many bytes that freed. Whoever does
    /// holds `evicting`.
    fn evict_archives(
        &self,
        _one_by_one: &MutexGuard<'_, ()>,
        because: Because,
        enough: impl Fn(u64) -> bool,
    ) -> Result<u64, StoreError> {
        if self.link() == Link::Offline {
            return Ok(0);
        }
        let mut freed = 0;
        for _ in 0..ROUNDS {
            let round = self.evict_round(because, |of_round| enough(freed + of_round))?;
            freed += round.freed;
            if round.passed_over == 0 || enough(freed) {
                break;
            }
        }
        Ok(freed)
    }

    /// Goes once over what is held. What is used meanwhile is passed over.
    fn evict_round(&self, because: Because, enough: impl Fn(u64) -> bool) -> Result<Round, StoreError> {
        // The names after the archives: a name is written before its archive is in the index.
        let archives = self.store.index.archives_by_age()?;
        let names = self.names_by_digest()?;
        let mut round = Round::default();
        let mut gone_upstream = Vec::new();
        for archive in archives {
            if enough(round.freed) {
                return Ok(round);
            }
            let of = names.of(&archive.digest);
            if self.stays(&archive.digest, of) || (of.is_empty() && names.unreadable.is_some()) {
                continue;
            }
            if of.iter().any(|named| self.is_gone_upstream(&named.of)) {
                gone_upstream.push(archive);
                continue;
            }
            round.note(unless_full(self.evict(&archive, of, because))?);
        }
        for archive in gone_upstream {
            if enough(round.freed) {
                return Ok(round);
            }
            tracing::warn!(digest = %archive.digest, "evicting an archive that upstream has deleted: nobody can bring it back");
            round.note(unless_full(self.evict(&archive, names.of(&archive.digest), because))?);
        }
        Ok(round)
    }

    /// Evicts one archive, and says how many bytes that freed; unless it was used since the look at the index.
    fn evict(&self, archive: &IndexedArchive, of: &[Named], because: Because) -> Result<Option<u64>, StoreError> {
        let digest = &archive.digest;
        let _lock = self.catalog.digest_lock(digest).lock();
        if self.store.index.archive(digest)?.is_none_or(|now| now.last_use != archive.last_use) {
            return Ok(None);
        }
        for Named { of, .. } in of {
            if let Artifact::Module(package) = of {
                note_before_it_goes(self, package)?;
            }
            self.catalog.change_name(of, |name| name.archives.retain(|held| held.digest != *digest))?;
            self.artifact_changed(of);
            tracing::info!(package = %of, %digest, "evicted an archive");
        }
        self.store.blobs.remove(digest)?;
        self.store.index.archive_gone(digest);
        self.checked.lock().remove(digest);
        self.counters.evicted(Stored::Archive, because, archive.size_bytes);
        Ok(Some(archive.size_bytes))
    }

    fn is_gone_upstream(&self, of: &Artifact) -> bool {
        // What cannot be read cannot be known to be gone, and its archive can be fetched again.
        match of {
            Artifact::Provider(package) => self.read_set(package).ok().flatten().is_some_and(|held| held.kept.age.gone),
            Artifact::Module(package) => self.location_is_gone(package),
        }
    }

    /// Whether an archive is never evicted: it is pinned, or of the bundle that is being applied.
    fn stays(&self, digest: &Digest, of: &[Named]) -> bool {
        of.iter().any(|named| named.pinned) || self.staying.has_archive(digest)
    }

    /// How many bytes of archives are never evicted, as things stand.
    pub(super) fn staying_bytes(&self) -> Result<u64, StoreError> {
        let names = self.names_by_digest()?;
        let archives = self.store.index.archives_by_age()?;
        let staying = archives.iter().filter(|archive| self.stays(&archive.digest, names.of(&archive.digest)));
        Ok(staying.map(|archive| archive.size_bytes).sum())
    }
}

/// A name that lists other archives, too, must be written, which a full disk may refuse: that one is passed over until
/// others have made room.
fn unless_full(evicted: Result<Option<u64>, StoreError>) -> Result<Option<u64>, StoreError> {
    match evicted {
        Err(full) if full.is_full() => Ok(None),
        evicted => evicted,
    }
}
