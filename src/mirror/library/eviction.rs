//! Enforces the size limit by evicting what was least recently used: archives before documents, pages before other
//! documents, and archives that upstream has deleted last, because they cannot be fetched again. Offline, nothing is
//! evicted.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use crate::address::{Artifact, Hostname, Package};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::counters::{EvictionReason, ObjectKind};
use crate::mirror::library::first_seen::DroppedArchive;
use crate::mirror::library::installable::required_records;
use crate::mirror::library::module_history::read_first_seen;
use crate::mirror::library::space::{EvictionProgress, Evictor, MAX_CANDIDATES};
use crate::mirror::library::{PackageHashState, StoredArchive, ZipOrigin};
use crate::store::{Durability, IndexedArchive, Key, StoreError, Trimmed};
use crate::upstream::outbound::Connectivity;

/// The most times that one pass lists the candidates again because some were used meanwhile.
const MAX_INDEX_SCANS: usize = 3;
/// The most archives that a pass evicts ahead of need, so that fills rarely wait and a pass stays short.
const MAX_EVICTED_AHEAD: usize = 64;

/// Documents evicted in one batch; pinning waits until the batch is done.
const DOCUMENT_BATCH: usize = 256;

/// The result of evicting one archive.
#[derive(Debug, Clone, Copy)]
enum EvictionResult {
    /// Evicted; the bytes that it freed.
    Freed(u64),
    /// Used meanwhile, or the disk is too full to rewrite its names.
    Skipped,
    /// Exempt from eviction, or impossible to read or change.
    Exempt,
}

/// The progress of one eviction pass.
#[derive(Debug, Clone, Copy, Default)]
struct EvictionTotals {
    bytes: u64,
    archives: usize,
    skipped: usize,
}

impl EvictionTotals {
    fn note(&mut self, evicted: EvictionResult) {
        match evicted {
            EvictionResult::Freed(bytes) => {
                self.bytes += bytes;
                self.archives += 1;
            }
            EvictionResult::Skipped => self.skipped += 1,
            EvictionResult::Exempt => {}
        }
    }
}

impl Library {
    /// Runs an eviction pass for each request, until the mirror is dropped.
    pub(super) async fn run_evictor(library: Weak<Self>, evictor: Arc<Evictor>) {
        loop {
            let request = evictor.next_request().await;
            let Some(library) = library.upgrade() else { return };
            let owned_library = Arc::clone(&library);
            // Before that, an archive without an indexed name would seem unused. If this fails, the pass reports it.
            let _ = library.store.local.index.until_complete().await;
            let passed = library.runtime.tasks.spawn_blocking(move || owned_library.evict_to_limits()).await;
            let failed = match &passed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => {
                    tracing::error!(%error, "the store is over its size limit, and eviction failed");
                    Some(error.clone())
                }
                Err(_) => Some(StoreError::NotEvicted("eviction panicked")),
            };
            // Before the panic is resumed: the waiting fills must go on.
            evictor.passes.send_replace(EvictionProgress { ended: request, failed });
            if let Err(panicked) = passed
                && let Ok(panic) = panicked.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Removes a proof set, after recording its digests and keys in the first-seen record.
    pub fn remove_set(&self, package: &Package) -> Result<(), StoreError> {
        self.histories.record_before_removal(package)?;
        self.store.records.remove(&Key::ProofSet(package.clone()), Durability::Lazy)
    }

    fn evict_to_limits(&self) -> Result<(), StoreError> {
        if self.keeps_all_while_offline() {
            return Ok(());
        }
        self.evict_surplus_pages()?;
        self.evict_to_fit()
    }

    /// Evicts the least recently used pages of each upstream with too many of them, and of all while they exceed their
    /// share. A client that varies a query could otherwise fill the store with pages.
    fn evict_surplus_pages(&self) -> Result<(), StoreError> {
        // Frees slightly more than necessary, or every new page would start another scan.
        let (most, enough) = (self.runtime.limits.pages, self.runtime.limits.pages / 8 * 7);
        let enough_bytes = self.most_page_bytes() / 100 * 98;
        let pages = self.store.local.index.pages_by_age()?;
        let mut surplus: HashMap<&Hostname, usize> = HashMap::new();
        for host in pages.iter().filter_map(|(key, _)| key.host_of_page()) {
            *surplus.entry(host).or_default() += 1;
        }
        surplus.retain(|_, pages| *pages > most);
        surplus.values_mut().for_each(|pages| *pages -= enough);
        let is_surplus = |(key, _): &&(Key, u64)| {
            let left = key.host_of_page().and_then(|host| surplus.get_mut(host)).filter(|left| **left > 0);
            left.map(|left| *left -= 1).is_some()
        };
        let oldest: Vec<_> = pages.iter().filter(is_surplus).cloned().collect();
        self.evict_documents(&oldest, || false)?;
        if self.pages_are_over() {
            self.evict_documents(&pages, || self.store.local.index.totals().page_bytes <= enough_bytes)?;
        }
        Ok(())
    }

    fn was_evicted(&self, kind: ObjectKind, reason: EvictionReason, size_bytes: u64) {
        self.runtime.counters.evicted(kind, reason, size_bytes);
        // Wakes the waiting writers.
        self.evictor.passes.send_modify(|_| ());
    }

    fn evict_to_fit(&self) -> Result<(), StoreError> {
        let limit = self.refresh_size_limit();
        // Frees slightly more than necessary, or every new document would start another scan. Where the limit equals
        // the stored bytes, because the disk is full, only the excess is evicted.
        let is_floor = limit == self.store.local.index.totals().bytes();
        let enough = if is_floor { limit } else { limit / 100 * 98 };
        if self.is_over(limit) {
            // Even if the totals lag behind, a pass evicts no more than the excess.
            let too_much = self.used_bytes().saturating_sub(enough);
            self.evict_archives(EvictionReason::SizeLimit, |freed| {
                let is_ahead = freed.archives >= MAX_EVICTED_AHEAD && !self.is_over(limit);
                is_ahead || freed.bytes >= too_much || !self.is_over(enough)
            })?;
        }
        // Reservations of fills are no reason to evict documents.
        let stored = || self.store.local.index.totals().bytes();
        if stored() <= limit {
            return Ok(());
        }
        let index = &self.store.local.index;
        self.evict_documents(&index.pages_by_age()?, || stored() <= enough)?;
        self.evict_documents(&index.documents_by_age()?, || stored() <= enough)
    }

    /// Evicts documents in their order, unless they are exempt. Pages never are.
    fn evict_documents(&self, documents: &[(Key, u64)], enough: impl Fn() -> bool) -> Result<(), StoreError> {
        for batch in documents.chunks(DOCUMENT_BATCH) {
            if enough() || self.runtime.tasks.is_stopping() {
                break;
            }
            // The pinned documents are looked up once a batch: the lock keeps out new pins meanwhile.
            let _no_eviction = self.evictor.block_evictions();
            let pinned = match batch {
                [(key, _), ..] if key.is_page() => BTreeSet::new(),
                // Pinned documents stay in the fleet.
                _ if self.shared_archives().is_some() => BTreeSet::new(),
                _ => self.pinned_documents()?,
            };
            for (key, size_bytes) in batch {
                if enough() {
                    break;
                }
                if pinned.contains(key) || self.evictor.holds.lock().documents.contains(key) {
                    continue;
                }
                // Pages are removed everywhere, unless they cannot be fetched again: clients that vary a query make any number of them.
                let is_surplus = key.is_page() && self.runtime.connectivity() == Connectivity::Online;
                let trimmed = if is_surplus { Ok(Trimmed::OnlyHere) } else { self.store.records.trim(key) };
                let evicted = trimmed.and_then(|trimmed| match (trimmed, key) {
                    (Trimmed::Copy, _) => Ok(true),
                    (Trimmed::Kept, _) => Ok(false),
                    (Trimmed::OnlyHere, Key::ProofSet(package)) => self.remove_set(package).map(|()| true),
                    (Trimmed::OnlyHere, Key::FirstListed(address)) => self.remove_unused_times(address),
                    (Trimmed::OnlyHere, key) => self.remove_document(key, Durability::Lazy).map(|()| true),
                });
                match evicted {
                    Ok(false) => {}
                    Ok(true) => self.was_evicted(ObjectKind::Document, EvictionReason::SizeLimit, *size_bytes),
                    Err(error) => tracing::error!(%key, %error, "a document could not be evicted; it stays"),
                }
            }
        }
        Ok(())
    }

    /// Frees space for `bytes` on a full disk, regardless of the size limit. Evicts nothing if they would not fit
    /// anyway.
    pub fn free_disk_space(&self, bytes: u64, full: &StoreError) -> Result<(), StoreError> {
        let free = self.free_on_disk(bytes, full)?;
        let (archive_bytes, exempt) = (self.store.local.index.totals().archive_bytes, self.exempt_bytes()?);
        let limit = free.saturating_add(archive_bytes);
        if bytes.saturating_add(exempt) > limit {
            return Err(StoreError::NoRoom { needed: bytes, limit, unevictable: exempt });
        }
        let missing = bytes.saturating_sub(free);
        self.evict_archives(EvictionReason::DiskFull, |freed| freed.bytes >= missing).map(drop)
    }

    /// Returns the free bytes of a full disk. If they are too few, deletes the quarantined files first.
    fn free_on_disk(&self, needed: u64, full: &StoreError) -> Result<u64, StoreError> {
        // With a user quota, the free bytes of the disk say nothing.
        let free = || if full.is_over_quota() { Ok(0) } else { self.disk_space().map(|space| space.free_bytes) };
        if free()? < needed {
            self.store.local.empty_quarantine()?;
        }
        free()
    }

    /// Frees `bytes` on a full disk when the size of the whole archive is unknown.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] where nothing is left to evict; `full` itself where the file exceeds the file size limit.
    pub fn free_more_disk_space(&self, bytes: u64, full: &StoreError) -> Result<(), StoreError> {
        if full.is_too_large() {
            return Err(full.clone());
        }
        let free = self.free_on_disk(bytes, full)?;
        let missing = bytes.saturating_sub(free);
        if missing == 0 {
            return Ok(());
        }
        tracing::warn!(error = %full, "the disk is full in the middle of a fill; it is evicted from");
        match self.evict_archives(EvictionReason::DiskFull, |freed| freed.bytes >= missing)? {
            0 => Err(StoreError::NoRoom {
                needed: free.saturating_add(1),
                limit: free,
                unevictable: self.exempt_bytes()?,
            }),
            _ => Ok(()),
        }
    }

    /// Evicts archives, least recently used first, until `enough`; returns the bytes freed. Archives that upstream has
    /// deleted are evicted last.
    fn evict_archives(
        &self,
        reason: EvictionReason,
        enough: impl Fn(EvictionTotals) -> bool,
    ) -> Result<u64, StoreError> {
        if self.keeps_all_while_offline() {
            return Ok(0);
        }
        self.store.local.index.require_complete()?;
        let (mut freed, mut gone_upstream) = (EvictionTotals::default(), Vec::new());
        let (mut scans, mut all_are_seen) = (0, false);
        let is_over = |freed| enough(freed) || self.runtime.tasks.is_stopping();
        while !is_over(freed) {
            let Some(archive) = self.evictor.candidates.lock().pop_front() else {
                if scans == MAX_INDEX_SCANS || (all_are_seen && freed.skipped == 0) {
                    break;
                }
                let mut oldest = self.store.local.index.archives_by_age()?;
                all_are_seen = scans > 0 || oldest.len() <= MAX_CANDIDATES;
                if !all_are_seen {
                    oldest.truncate(MAX_CANDIDATES);
                }
                *self.evictor.candidates.lock() = oldest.into();
                (scans, freed.skipped) = (scans + 1, 0);
                continue;
            };
            let names = self.names_that_eviction_changes(&archive.digest)?;
            if self.is_exempt(&archive.digest, &names)? {
                continue;
            }
            if names.iter().any(|names| self.is_gone_upstream(names)) {
                gone_upstream.push(archive);
                continue;
            }
            freed.note(self.evict(&archive, reason)?);
        }
        for archive in gone_upstream {
            if is_over(freed) {
                break;
            }
            let evicted = self.evict(&archive, reason)?;
            if let EvictionResult::Freed(_) = evicted {
                tracing::warn!(digest = %archive.digest, "evicted an archive that upstream has deleted: it cannot be fetched again");
            }
            freed.note(evicted);
        }
        Ok(freed.bytes)
    }

    /// Evicts one archive. Its errors do not block the eviction of others. Rewriting a name that lists other archives too
    /// may fail on a full disk: such an archive is retried after others have freed space.
    fn evict(&self, archive: &IndexedArchive, reason: EvictionReason) -> Result<EvictionResult, StoreError> {
        match self.evict_unless_used(archive, reason) {
            Err(error) if error.is_full() || matches!(error, StoreError::Busy(_)) => Ok(EvictionResult::Skipped),
            Err(error @ (StoreError::Io { .. } | StoreError::Newer { .. })) => {
                tracing::error!(digest = %archive.digest, %error, to_do = error.remedy(), "an archive could not be evicted; it stays");
                Ok(EvictionResult::Exempt)
            }
            evicted => evicted,
        }
    }

    /// Evicts one archive, unless it is exempt or was used since the candidates were listed.
    fn evict_unless_used(
        &self,
        archive: &IndexedArchive,
        reason: EvictionReason,
    ) -> Result<EvictionResult, StoreError> {
        let digest = &archive.digest;
        let _no_eviction = self.evictor.block_evictions();
        let _lock = self.catalog.digest_lock(digest).lock();
        let index = &self.store.local.index;
        index.require_complete()?;
        if index.archive(digest)?.is_none_or(|now| now.last_use != archive.last_use) {
            return Ok(EvictionResult::Skipped);
        }
        let names = self.names_that_eviction_changes(digest)?;
        let may_be_named = names.is_empty() && self.store.records.unreadable_name().is_some();
        if self.is_exempt(digest, &names)? || (may_be_named && self.shared_archives().is_none()) {
            return Ok(EvictionResult::Exempt);
        }
        if !self.drop_archive(digest, &names)? {
            return Ok(EvictionResult::Exempt);
        }
        self.trim(digest, Durability::Lazy)?;
        self.was_evicted(ObjectKind::Archive, reason, archive.size_bytes);
        Ok(EvictionResult::Freed(archive.size_bytes))
    }

    /// True where nothing is evicted, because it could not be fetched again.
    fn keeps_all_while_offline(&self) -> bool {
        self.runtime.connectivity() == Connectivity::Offline && self.shared_archives().is_none()
    }

    /// The names that list an archive, and lose it with its file. None where all replicas keep it: a file here is a copy, which no name
    /// and no pin needs, and which goes also while the database does not answer.
    fn names_that_eviction_changes(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        match self.shared_archives() {
            Some(_) => Ok(Vec::new()),
            None => self.store.records.names_of(digest),
        }
    }

    /// Takes an archive off its names: this larder has it no more. Returns false if one of them is pinned.
    fn drop_archive(&self, digest: &Digest, names: &[Artifact]) -> Result<bool, StoreError> {
        for artifact in names {
            if let Artifact::Module(package) = artifact {
                // Rebuilds a lost record from the archive, which may be the last evidence.
                read_first_seen(self, package)?;
            }
            if let Artifact::Provider(package) = artifact
                && let Some(archive) = self.catalog.name_record(package)?.get(digest)
            {
                self.keep_dropped(package, archive);
            }
            let mut is_pinned = false;
            self.catalog.change_name_record(artifact, |name| {
                // The record is authoritative: the index may have lost a pin.
                is_pinned = name.pinned;
                if !is_pinned {
                    name.archives.retain(|listed| listed.digest != *digest);
                }
            })?;
            if is_pinned {
                return Ok(false);
            }
            tracing::info!(package = %artifact, %digest, "evicted an archive");
        }
        Ok(true)
    }

    /// Keeps the hashes of an archive that is dropped in the record of its version. On a full disk they are lost: then they
    /// are computed anew once the archive is fetched again.
    fn keep_dropped(&self, package: &Package, archive: &StoredArchive) {
        if archive.hashes == PackageHashState::NotYet || archive.zip != ZipOrigin::Published {
            return;
        }
        let dropped = DroppedArchive { size_bytes: archive.size_bytes, hashes: archive.hashes.clone() };
        if let Err(error) = self.histories.keep_dropped(package, archive.digest, &dropped) {
            tracing::warn!(%package, %error, "the h1 hashes of an evicted archive could not be recorded");
        }
    }

    fn is_gone_upstream(&self, artifact: &Artifact) -> bool {
        // If this cannot be read, treat the archive as still upstream: it can be fetched again.
        match artifact {
            Artifact::Provider(package) => {
                self.read_set(package).ok().flatten().is_some_and(|stored| stored.stored_set.confirmed.gone)
            }
            Artifact::Module(package) => {
                let location = self.read_document(&Key::location(package));
                location.ok().flatten().is_some_and(|location| location.metadata.gone)
            }
        }
    }

    /// Returns true if an archive is exempt from eviction: pinned, listed by a bundle that is being imported, or on no other machine.
    fn is_exempt(&self, digest: &Digest, names: &[Artifact]) -> Result<bool, StoreError> {
        for artifact in names {
            if self.store.records.name(artifact)?.is_some_and(|name| name.pinned) {
                return Ok(true);
            }
        }
        Ok(self.catalog.owed.contains(digest) || self.evictor.holds.lock().archives.contains(digest))
    }

    /// Evicts what exceeds the size limit.
    pub async fn make_room(self: &Arc<Self>) -> Result<(), Error> {
        self.on_disk(|library| {
            library.refresh_size_limit();
            library.enforce_size_limit();
            Ok::<_, StoreError>(())
        })
        .await
    }

    /// The documents that pinned packages need to be installed. They are not evicted either.
    fn pinned_documents(&self) -> Result<BTreeSet<Key>, StoreError> {
        let mut keys = BTreeSet::new();
        self.store.local.index.require_complete()?;
        for artifact in self.store.records.pinned_names()? {
            keys.extend(required_records(&artifact, Connectivity::Online));
        }
        Ok(keys)
    }
}
