//! The size limit: what was used longest ago goes first, archives before documents, pages before other documents, and
//! nothing while offline. What upstream has deleted goes last, because nobody could bring it back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Mirror;
use super::counters::{Because, Stored};
use super::library::{Evictor, Reservation};
use super::modules::record_module_before_removal;
use crate::address::{Artifact, Package};
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Durability, IndexedArchive, Key, SizeLimit, StoreError};
use crate::upstream::outbound::Link;

/// Of a store, one part in this many at most is for pages.
const PAGES_SHARE: u64 = 8;

/// How often the index is gone over in one eviction, when some of it was used meanwhile.
const MOST_LOOKS: usize = 3;
/// How many archives a pass evicts beyond what must go, at most: so that fills rarely wait, and a pass is short.
const AHEAD: usize = 64;

/// How long a fill waits for an index that is being made.
const INDEX_WITHIN: Duration = Duration::from_secs(5);
/// How long it waits for its room.
const ROOM_WITHIN: Duration = Duration::from_secs(60);

/// How many documents are evicted before somebody may pin again.
const DOCUMENTS_AT_ONCE: usize = 256;

/// What became of one archive.
#[derive(Debug, Clone, Copy)]
enum Evicted {
    /// It is gone, with so many bytes.
    Freed(u64),
    /// It was used meanwhile, or the disk is too full to change its names.
    PassedOver,
    /// It is never evicted.
    Stays,
}

/// What an eviction came to so far.
#[derive(Debug, Clone, Copy, Default)]
struct Freed {
    bytes: u64,
    archives: usize,
    passed_over: usize,
}

impl Freed {
    fn note(&mut self, evicted: Evicted) {
        match evicted {
            Evicted::Freed(bytes) => {
                self.bytes += bytes;
                self.archives += 1;
            }
            Evicted::PassedOver => self.passed_over += 1,
            Evicted::Stays => {}
        }
    }
}

impl Mirror {
    /// Promises no room yet.
    pub(super) fn reservation(&self) -> Reservation {
        self.evictor.reservation()
    }

    /// Raises a promise to `bytes`, and waits until what must go for it is evicted.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] for what could never fit, before anything is evicted for it.
    pub(super) async fn reserve(self: &Arc<Self>, room: &mut Reservation, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(room.bytes());
        if more == 0 {
            return Ok(());
        }
        let mut limit = self.store_bytes();
        if self.taken_up().saturating_add(more) > limit {
            limit = self.on_disk(|mirror| Ok::<_, StoreError>(mirror.store_bytes_now())).await?;
        }
        if bytes > limit {
            return Err(StoreError::NoRoom { needed: bytes, limit, stays: 0 }.into());
        }
        if self.taken_up().saturating_add(more) > limit {
            // A fill waits for its room, and not for all files of the store: it is passed through where that takes long.
            let whole = tokio::time::timeout(INDEX_WITHIN, self.store.index.until_whole()).await;
            whole.unwrap_or_else(|_| self.store.index.needs_to_be_whole())?;
            let stays = self.on_disk(Self::staying_bytes).await?;
            if bytes.saturating_add(stays) > limit {
                return Err(StoreError::NoRoom { needed: bytes, limit, stays }.into());
            }
        }
        room.add(more);
        if self.is_over(limit) {
            let room = tokio::time::timeout(ROOM_WITHIN, self.evictor.make_room(|| !self.is_over(limit))).await;
            room.unwrap_or_else(|_| Err(StoreError::Index("nothing was evicted in time".to_owned())))?;
        }
        Ok(())
    }

    /// Waits until what must go for everything that is stored by now is evicted, for a minute at most.
    pub async fn eviction_is_at_rest(&self) {
        // Whoever looks then sees what is stored, and that is all that it promises.
        let _ = tokio::time::timeout(ROOM_WITHIN, self.evictor.wait_idle()).await;
    }

    /// Evicts whenever that is asked for, until the mirror is gone.
    pub(super) async fn evict_when_asked(mirror: Weak<Self>, evictor: Arc<Evictor>) {
        loop {
            let asked = evictor.next_request().await;
            let Some(mirror) = mirror.upgrade() else { return };
            let of = Arc::clone(&mirror);
            // Until then what has no name yet would seem to be nobody's. Where it fails, the pass says so.
            let _ = mirror.store.index.until_whole().await;
            let passed = mirror.tasks.spawn_blocking(move || of.keep_all_limits()).await;
            let failed = match &passed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => {
                    tracing::error!(%error, "the store is over its size limit, and could not be evicted from");
                    Some(error.clone())
                }
                Err(_) => Some(StoreError::Index("eviction panicked".to_owned())),
            };
            // Before it panics itself: those who wait go on.
            evictor.finish_pass(asked, failed);
            if let Err(panicked) = passed
                && let Ok(panic) = panicked.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Removes a set, once what it proves is sure to be remembered.
    pub(super) fn remove_set(&self, package: &Package) -> Result<(), StoreError> {
        self.histories.record_before_removal(package)?;
        self.remove_document(&Key::ProofSet(package.clone()), Durability::Lazy)
    }

    /// Has what is too much evicted, after whoever brought the last bytes.
    pub(super) fn keep_to_the_limit(&self) {
        if self.is_over(self.store_bytes()) || self.pages_are_over() {
            self.evictor.request_pass();
        }
    }

    fn keep_all_limits(&self) -> Result<(), StoreError> {
        if self.link() == Link::Offline {
            return Ok(());
        }
        self.evict_surplus_pages()?;
        self.evict_to_fit()
    }

    fn most_page_bytes(&self) -> u64 {
        self.limits.page_bytes.min(self.store_bytes() / PAGES_SHARE)
    }

    fn pages_are_over(&self) -> bool {
        self.store.index.totals().page_bytes > self.most_page_bytes()
    }

    /// Evicts pages, least recently used first, where there are more than may be: whoever varies a query could fill
    /// the store with them, and a small store with a few.
    fn evict_surplus_pages(&self) -> Result<(), StoreError> {
        if !self.pages_are_over() {
            return Ok(());
        }
        // A little more than must be, or every page would look at all of them again.
        let enough = self.most_page_bytes() / 100 * 98;
        self.evict_pages(|| self.store.index.totals().page_bytes <= enough)
    }

    fn evict_pages(&self, enough: impl Fn() -> bool) -> Result<(), StoreError> {
        for (key, size_bytes) in self.store.index.pages_by_age()? {
            if enough() || self.tasks.are_stopped() {
                break;
            }
            let _alone = self.evictor.block_evictions();
            match self.remove_document(&key, Durability::Lazy) {
                Ok(()) => self.was_evicted(Stored::Document, Because::SizeLimit, size_bytes),
                Err(error) => tracing::error!(?key, %error, "a page could not be evicted; it stays"),
            }
        }
        Ok(())
    }

    fn was_evicted(&self, what: Stored, because: Because, size_bytes: u64) {
        self.counters.evicted(what, because, size_bytes);
        self.evictor.wake_waiters();
    }

    /// What may be stored, in bytes; of a share of the disk, as it was reckoned last.
    pub(super) fn store_bytes(&self) -> u64 {
        match self.terms.load().size_limit {
            SizeLimit::Bytes(bytes) => bytes,
            SizeLimit::ShareOfDisk => self.share_of_disk.load(Ordering::Relaxed),
        }
    }

    /// The same for a share of the disk as it is now; asks the disk.
    pub(super) fn store_bytes_now(&self) -> u64 {
        let share = self.terms.load().size_limit;
        // Until the index is whole it does not say what is stored.
        if share == SizeLimit::ShareOfDisk
            && self.store.index.is_whole()
            && let Ok(free) = self.store.free_bytes()
        {
            let bytes = share.bytes(self.store.index.totals().bytes(), free);
            self.share_of_disk.store(bytes, Ordering::Relaxed);
        }
        self.store_bytes()
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
        self.store.index.totals().bytes().saturating_add(self.evictor.reserved())
    }

    fn evict_to_fit(&self) -> Result<(), StoreError> {
        let limit = self.store_bytes_now();
        // A little more than must be, or every document would have all of them looked at again.
        // What is stored already is no reason to evict where it alone is the limit.
        let is_floor = limit == self.store.index.totals().bytes();
        let enough = if is_floor { limit } else { limit / 100 * 98 };
        if self.is_over(limit) {
            // Whatever the totals say afterwards, no more goes than was too much.
            let too_much = self.taken_up().saturating_sub(enough);
            self.evict_archives(Because::SizeLimit, |freed| {
                let is_ahead = freed.archives >= AHEAD && !self.is_over(limit);
                is_ahead || freed.bytes >= too_much || !self.is_over(enough)
            })?;
        }
        // What is promised to fills is no reason to forget documents.
        let stored = || self.store.index.totals().bytes();
        if stored() <= limit {
            return Ok(());
        }
        self.evict_pages(|| stored() <= enough)?;
        self.evict_documents(|| stored() <= enough)
    }

    fn evict_documents(&self, enough: impl Fn() -> bool) -> Result<(), StoreError> {
        for some in self.store.index.documents_by_age()?.chunks(DOCUMENTS_AT_ONCE) {
            if enough() || self.tasks.are_stopped() {
                break;
            }
            // Which documents are of what is pinned is looked up once for all of these: nothing is pinned meanwhile.
            let _alone = self.evictor.block_evictions();
            let pinned = self.documents_of_what_is_pinned()?;
            for (key, size_bytes) in some {
                if enough() {
                    break;
                }
                if pinned.contains(key) || self.staying.has_document(key) {
                    continue;
                }
                let evicted = match key {
                    Key::ProofSet(package) => self.remove_set(package),
                    key => self.remove_document(key, Durability::Lazy),
                };
                match evicted {
                    Ok(()) => self.was_evicted(Stored::Document, Because::SizeLimit, *size_bytes),
                    Err(error) => tracing::error!(?key, %error, "a document could not be evicted; it stays"),
                }
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
        self.evict_archives(Because::DiskFull, |freed| freed.bytes >= missing).map(drop)
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
        match self.evict_archives(Because::DiskFull, |freed| freed.bytes >= missing)? {
            0 => Err(StoreError::NoRoom { needed: free.saturating_add(1), limit: free, stays: self.staying_bytes()? }),
            _ => Ok(()),
        }
    }

    /// Evicts archives, least recently used first, until it is enough, and says how many bytes that freed. Those that upstream
    /// has deleted go last.
    fn evict_archives(&self, because: Because, enough: impl Fn(Freed) -> bool) -> Result<u64, StoreError> {
        if self.link() == Link::Offline {
            return Ok(0);
        }
        self.store.index.needs_to_be_whole()?;
        let (mut freed, mut gone_upstream) = (Freed::default(), Vec::new());
        let (mut looks, mut all_are_seen) = (0, false);
        let is_over = |freed| enough(freed) || self.tasks.are_stopped();
        while !is_over(freed) {
            let Some(archive) = self.evictor.next_candidate() else {
                if looks == MOST_LOOKS || (all_are_seen && freed.passed_over == 0) {
                    break;
                }
                let oldest = self.store.index.archives_by_age()?;
                all_are_seen = self.evictor.set_candidates(oldest, looks == 0);
                (looks, freed.passed_over) = (looks + 1, 0);
                continue;
            };
            let of = self.store.index.names_of(&archive.digest)?;
            if self.stays(&archive.digest, &of)? {
                continue;
            }
            if of.iter().any(|of| self.is_gone_upstream(of)) {
                gone_upstream.push(archive);
                continue;
            }
            freed.note(unless_it_must_stay(&archive, self.evict(&archive, because))?);
        }
        for archive in gone_upstream {
            if is_over(freed) {
                break;
            }
            let evicted = unless_it_must_stay(&archive, self.evict(&archive, because))?;
            if let Evicted::Freed(_) = evicted {
                tracing::warn!(digest = %archive.digest, "evicted an archive that upstream has deleted: nobody can bring it back");
            }
            freed.note(evicted);
        }
        Ok(freed.bytes)
    }

    /// Evicts one archive, unless it stays, or was used since the look at the index.
    fn evict(&self, archive: &IndexedArchive, because: Because) -> Result<Evicted, StoreError> {
        let digest = &archive.digest;
        let _alone = self.evictor.block_evictions();
        let _lock = self.catalog.digest_lock(digest).lock();
        let index = &self.store.index;
        index.needs_to_be_whole()?;
        if index.archive(digest)?.is_none_or(|now| now.last_use != archive.last_use) {
            return Ok(Evicted::PassedOver);
        }
        let of = index.names_of(digest)?;
        if self.stays(digest, &of)? || (of.is_empty() && index.unreadable_name().is_some()) {
            return Ok(Evicted::Stays);
        }
        for of in &of {
            // The record has the last word: a note in the index may have been lost.
            if self.catalog.name(of.clone())?.pinned {
                return Ok(Evicted::Stays);
            }
            if let Artifact::Module(package) = of {
                record_module_before_removal(self, package)?;
            }
            self.catalog.change_name(of, |name| name.archives.retain(|held| held.digest != *digest))?;
            self.artifact_changed(of);
            tracing::info!(package = %of, %digest, "evicted an archive");
        }
        self.store.blobs.remove(digest, Durability::Lazy)?;
        index.archive_gone(digest);
        self.checked.lock().remove(digest);
        self.was_evicted(Stored::Archive, because, archive.size_bytes);
        Ok(Evicted::Freed(archive.size_bytes))
    }

    fn is_gone_upstream(&self, of: &Artifact) -> bool {
        // What cannot be read cannot be known to be gone, and its archive can be fetched again.
        match of {
            Artifact::Provider(package) => self.read_set(package).ok().flatten().is_some_and(|held| held.kept.age.gone),
            Artifact::Module(package) => self.location_is_gone(package),
        }
    }

    /// Whether an archive is never evicted: it is pinned, or of the bundle that is being applied.
    fn stays(&self, digest: &Digest, of: &[Artifact]) -> Result<bool, StoreError> {
        for of in of {
            if self.store.index.name(of)?.is_some_and(|name| name.pinned) {
                return Ok(true);
            }
        }
        Ok(self.staying.has_archive(digest))
    }

    /// How many bytes of archives are never evicted, as things stand.
    pub(super) fn staying_bytes(&self) -> Result<u64, StoreError> {
        let index = &self.store.index;
        index.needs_to_be_whole()?;
        let mut staying = self.staying.archives();
        for name in index.pinned_names()? {
            staying.extend(index.name(&name)?.into_iter().flat_map(|name| name.archives).map(|listed| listed.digest));
        }
        let mut bytes = 0u64;
        for digest in staying {
            bytes = bytes.saturating_add(index.archive(&digest)?.map_or(0, |archive| archive.size_bytes));
        }
        Ok(bytes)
    }
}

/// What cannot be read, or not be changed, stays, and holds up the eviction of nothing else. A name that lists other archives,
/// too, must be written, which a full disk may refuse: that one is passed over until others have made room.
fn unless_it_must_stay(archive: &IndexedArchive, evicted: Result<Evicted, StoreError>) -> Result<Evicted, StoreError> {
    match evicted {
        Err(full) if full.is_full() => Ok(Evicted::PassedOver),
        Err(error @ StoreError::Io { .. } | error @ StoreError::Newer { .. }) => {
            tracing::error!(digest = %archive.digest, %error, to_do = error.to_do(), "an archive could not be evicted; it stays");
            Ok(Evicted::Stays)
        }
        evicted => evicted,
    }
}
