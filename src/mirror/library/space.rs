//! The request side of the background eviction task: writers ask it for disk space and wait only as long as they need.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::bundle::{BundleEntry, Manifest};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Library;
use crate::store::{IndexedArchive, Key, SizeLimit, StoreError};

/// The state that writers share with the eviction task.
#[derive(Debug, Default)]
pub struct Evictor {
    /// Locked while one archive or document is evicted, and by pin and purge.
    eviction_lock: Mutex<()>,
    last_request: AtomicU64,
    requested: Notify,
    pub(super) passes: watch::Sender<EvictionProgress>,
    reserved: Arc<AtomicU64>,
    pub(super) candidates: Mutex<VecDeque<IndexedArchive>>,
    /// The contents of the bundle that is being applied; empty if there is none.
    pub(super) holds: Mutex<HeldNames>,
    /// The size limit as a share of the disk, as last computed.
    disk_share_bytes: AtomicU64,
}

/// Maximum number of candidates from one scan of the index. A full scan is slow, and anything stored or used later is
/// younger than all candidates.
pub(super) const MAX_CANDIDATES: usize = 10_000;

/// The progress of eviction passes.
#[derive(Debug, Default)]
pub(super) struct EvictionProgress {
    /// The number of the last request that a finished pass answered.
    pub(super) ended: u64,
    pub(super) failed: Option<StoreError>,
}

/// Disk space reserved for a fill in progress, in bytes. Released on drop.
#[derive(Debug)]
pub struct Reservation {
    bytes: u64,
    reserved: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Evictor {
    pub(super) fn new() -> Self {
        Self { disk_share_bytes: AtomicU64::new(SizeLimit::MAX_SHARE), ..Self::default() }
    }

    /// Blocks eviction. Taken before any digest or record lock.
    pub fn block_evictions(&self) -> MutexGuard<'_, ()> {
        self.eviction_lock.lock()
    }

    /// Requests a pass, without waiting. Returns the number of the request.
    pub(super) fn request_pass(&self) -> u64 {
        let request = self.last_request.fetch_add(1, Ordering::SeqCst) + 1;
        self.requested.notify_one();
        request
    }

    /// Requests a pass, and waits until there is `enough` space or a pass that began after the request has ended.
    ///
    /// # Errors
    /// The error of that pass.
    async fn make_room(&self, enough: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut passes = self.passes.subscribe();
        let (request, mut is_enough) = (self.request_pass(), false);
        let has_ended = |passes: &EvictionProgress| {
            is_enough = enough();
            is_enough || passes.ended >= request
        };
        match passes.wait_for(has_ended).await {
            Ok(passes) if !is_enough => passes.failed.clone().map_or(Ok(()), Err),
            // The sender lives in `self`, so this cannot fail.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Waits until every pass requested so far has ended.
    async fn wait_idle(&self) {
        let request = self.last_request.load(Ordering::SeqCst);
        // The sender lives in `self`, so this cannot fail.
        let _ = self.passes.subscribe().wait_for(|passes| passes.ended >= request).await;
    }

    /// Waits for a request, and returns its number. One pass answers all requests up to it.
    pub(super) async fn next_request(&self) -> u64 {
        loop {
            let request = self.last_request.load(Ordering::SeqCst);
            if request > self.passes.borrow().ended {
                return request;
            }
            self.requested.notified().await;
        }
    }
}

impl Library {
    pub(in crate::mirror) fn reservation(&self) -> Reservation {
        Reservation { bytes: 0, reserved: Arc::clone(&self.evictor.reserved) }
    }

    /// Raises a reservation to `bytes`, and waits until enough is evicted for it.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`] where it could never fit; then nothing is evicted for it.
    pub async fn reserve(self: &Arc<Self>, reservation: &mut Reservation, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(reservation.bytes);
        if more == 0 {
            return Ok(());
        }
        let mut limit = self.size_limit_bytes();
        if self.used_bytes().saturating_add(more) > limit {
            limit = self.on_disk(|library| Ok::<_, StoreError>(library.refresh_size_limit())).await?;
        }
        if bytes > limit {
            return Err(StoreError::NoRoom { needed: bytes, limit, unevictable: 0 }.into());
        }
        if self.used_bytes().saturating_add(more) > limit {
            // A fill waits for its space, but not for the whole index: it is passed through where that takes long.
            let whole = tokio::time::timeout(INDEX_TIMEOUT, self.store.local.index.until_complete()).await;
            whole.unwrap_or_else(|_| self.store.local.index.require_complete())?;
            let exempt = self.on_disk(Self::exempt_bytes).await?;
            if bytes.saturating_add(exempt) > limit {
                return Err(StoreError::NoRoom { needed: bytes, limit, unevictable: exempt }.into());
            }
        }
        reservation.reserved.fetch_add(more, Ordering::Relaxed);
        reservation.bytes = bytes;
        if self.is_over(limit) {
            let freed = tokio::time::timeout(EVICTION_TIMEOUT, self.evictor.make_room(|| !self.is_over(limit))).await;
            freed.unwrap_or(Err(StoreError::NotEvicted("nothing was evicted in time")))?;
        }
        Ok(())
    }

    /// Waits until eviction is idle, for a minute at most.
    pub async fn wait_for_eviction(&self) {
        // On a timeout the caller reads the sizes as they are then.
        let _ = tokio::time::timeout(EVICTION_TIMEOUT, self.evictor.wait_idle()).await;
    }

    /// Requests an eviction pass if a limit is exceeded.
    pub fn enforce_size_limit(&self) {
        if self.is_over(self.size_limit_bytes()) || self.pages_are_over() {
            self.evictor.request_pass();
        }
    }

    /// Requests an eviction pass if the upstream of a page has too many of them.
    pub fn enforce_page_limit(&self, key: &Key) {
        let is_within =
            |host| self.store.local.index.page_count(host).is_ok_and(|count| count <= self.runtime.limits.pages);
        // Pages that cannot be counted count as too many: the pass reports the reason.
        if key.host_of_page().is_some_and(|host| !is_within(host)) {
            self.evictor.request_pass();
        }
    }

    pub(super) fn most_page_bytes(&self) -> u64 {
        self.runtime.limits.page_bytes.min(self.size_limit_bytes() / PAGES_SHARE)
    }

    pub(super) fn pages_are_over(&self) -> bool {
        self.store.local.index.totals().page_bytes > self.most_page_bytes()
    }

    /// The size limit in bytes. A share of the disk is as last computed.
    pub fn size_limit_bytes(&self) -> u64 {
        match self.runtime.config.load().size_limit {
            SizeLimit::Bytes(bytes) => bytes,
            SizeLimit::ShareOfDisk => self.evictor.disk_share_bytes.load(Ordering::Relaxed),
        }
    }

    /// Recomputes the size limit; for a share of the disk this reads the free disk space.
    pub fn refresh_size_limit(&self) -> u64 {
        let share = self.runtime.config.load().size_limit;
        // Until the index is whole, its totals are too low.
        if share == SizeLimit::ShareOfDisk
            && self.store.local.index.is_complete()
            && let Ok(space) = self.disk_space()
        {
            let bytes = share.bytes(self.store.local.index.totals().bytes(), space.free_bytes);
            self.evictor.disk_share_bytes.store(bytes, Ordering::Relaxed);
        }
        self.size_limit_bytes()
    }

    pub(super) fn is_over(&self, limit: u64) -> bool {
        self.used_bytes() > limit
    }

    /// Returns true if `bytes` more fit without an eviction.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.used_bytes().saturating_add(bytes) <= self.size_limit_bytes()
    }

    /// The stored bytes and the bytes reserved for fills.
    pub fn used_bytes(&self) -> u64 {
        self.store.local.index.totals().bytes().saturating_add(self.evictor.reserved.load(Ordering::Relaxed))
    }

    /// The total bytes of archives that are exempt from eviction.
    pub fn exempt_bytes(&self) -> Result<u64, StoreError> {
        let index = &self.store.local.index;
        index.require_complete()?;
        let mut exempt = self.evictor.holds.lock().archives.clone();
        exempt.extend(self.catalog.owed.digests());
        let pinned = match self.shared_archives() {
            // A file here is a copy.
            Some(_) => Vec::new(),
            None => self.store.records.pinned_names()?,
        };
        for name in pinned {
            exempt.extend(
                self.store.records.name(&name)?.into_iter().flat_map(|name| name.archives).map(|listed| listed.digest),
            );
        }
        let mut bytes = 0u64;
        for digest in exempt {
            bytes = bytes.saturating_add(index.archive(&digest)?.map_or(0, |archive| archive.size_bytes));
        }
        Ok(bytes)
    }
}

/// Pages may take at most one part in this many of the size limit.
const PAGES_SHARE: u64 = 8;

/// The longest that a fill waits for the index to be rebuilt.
const INDEX_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that a fill waits for eviction to free its space.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct HeldNames {
    pub(super) archives: HashSet<Digest>,
    pub(super) documents: HashSet<Key>,
}

/// Ends the exemption on drop.
#[derive(Debug)]
pub struct EvictionHoldGuard(Arc<Evictor>);

impl Drop for EvictionHoldGuard {
    fn drop(&mut self) {
        *self.0.holds.lock() = HeldNames::default();
    }
}

impl Library {
    /// Exempts the contents of a bundle from eviction until the guard is dropped.
    pub fn hold_entries(&self, manifest: &Manifest) -> EvictionHoldGuard {
        let archives = manifest.entries.iter().filter_map(BundleEntry::package_archive);
        let named = HeldNames {
            archives: archives.map(|(_, archive)| archive.sha256).collect(),
            documents: manifest.entries.iter().map(|entry| self.entry_key(entry)).collect(),
        };
        let _nothing_is_evicted = self.evictor.block_evictions();
        *self.evictor.holds.lock() = named;
        EvictionHoldGuard(Arc::clone(&self.evictor))
    }

    /// The store key of the document, proof set or location of an entry.
    pub fn entry_key(&self, entry: &BundleEntry) -> Key {
        match entry {
            BundleEntry::Discovery { host, .. } => Key::discovery(host),
            BundleEntry::ProviderVersions { provider, .. } => Key::version_list(provider),
            BundleEntry::ModuleVersions { module, .. } => Key::version_list(&self.runtime.config().key_of(module)),
            BundleEntry::Provider(entry) => Key::ProofSet(entry.package()),
            BundleEntry::Module(entry) => Key::location(&self.runtime.config().key_of_package(&entry.package())),
        }
    }
}
