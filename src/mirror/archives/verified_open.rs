//! Opens stored archives and checks them before they are served (promise 10).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::address::Artifact;
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::mirror::archives::Archive;
use crate::mirror::archives::recall::MAX_RECALLS;
use crate::mirror::counters::DamageFinding;
use crate::mirror::effects::Effects;
use crate::mirror::library::damage::unless_damaged;
use crate::mirror::library::fill_progress::FillProgress;
use crate::mirror::library::{StoredArchive, default_if_store_unavailable};
use crate::mirror::runtime::TtlCache;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::{Library, RequestContext, Runtime, SMALL_ARCHIVE_BYTES};
use crate::store::{Blob, FileVersion, ReadBudget, ReadGrant};

/// Opens stored archives and checks them.
#[derive(Debug)]
pub struct VerifiedReader {
    pub runtime: Arc<Runtime>,
    pub library: Arc<Library>,
    check_flights: SingleFlights<(Digest, FileVersion), SharedResult<Result<bool, Error>>>,
    pub(super) recall_flights: SingleFlights<Digest, watch::Receiver<FillProgress>>,
    /// The archives that could not be had from where all replicas keep them, for a while.
    pub(super) not_recalled: TtlCache<Digest, ()>,
    /// The recalls at a time.
    pub(super) recall_permits: Arc<Semaphore>,
    recently_used: TtlCache<Digest, ()>,
    pub(super) small: SmallCopies,
}

impl VerifiedReader {
    pub fn new(runtime: Arc<Runtime>, library: Arc<Library>) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            library,
            check_flights: SingleFlights::default(),
            recall_flights: SingleFlights::default(),
            not_recalled: TtlCache::default(),
            recall_permits: Arc::new(Semaphore::new(MAX_RECALLS)),
            recently_used: TtlCache::default(),
            small: SmallCopies::default(),
        })
    }

    /// Records the use of an archive, at most once a minute.
    pub fn record_use(self: &Arc<Self>, digest: Digest, now: Timestamp) {
        if self.recently_used.get(&digest, now).is_some() {
            return;
        }
        self.recently_used.insert(Effects::Real, digest, (), Duration::from_secs(60), now);
        let reader = Arc::clone(self);
        self.runtime.tasks.spawn_blocking(move || reader.library.file_used(&digest, now));
    }

    /// Opens and checks a stored archive (promise 10). One that is missing or damaged here comes from where all replicas keep it. Else
    /// the inner error is for the caller, to fetch it again. A failure to record it is only logged.
    pub async fn open_stored(
        self: &Arc<Self>,
        artifact: impl Into<Artifact>,
        listed: &StoredArchive,
        call: &RequestContext,
    ) -> Result<Result<Archive, DamageFinding>, Error> {
        let artifact = artifact.into();
        let mut opened = self.open_here(listed, call.effects()).await?;
        if call.effects() == Effects::None {
            if let Err(DamageFinding::Missing) = opened
                && self.library.file_is_at_hand(listed.digest).await?
            {
                // Nobody reads it: a client would get the archive from where all replicas keep it.
                let (_, progress) = watch::channel(FillProgress::Waiting);
                opened = Ok(Archive::Arriving { progress, length: Some(listed.size_bytes) });
            }
            return Ok(opened);
        }
        if let Err(found) = opened {
            self.give_up_file(&artifact, listed, found).await;
            if let Some(recalled) = self.recalled(&artifact, listed, call).await? {
                opened = Ok(recalled);
            }
        }
        if opened.is_ok() {
            self.record_use(listed.digest, call.now);
        }
        Ok(opened)
    }

    /// Opens and checks an archive on this machine.
    pub(super) async fn open_here(
        self: &Arc<Self>,
        listed: &StoredArchive,
        effects: Effects,
    ) -> Result<Result<Archive, DamageFinding>, Error> {
        let digest = listed.digest;
        let open = move |library: &Library| default_if_store_unavailable(library.open_file(&digest));
        Ok(match self.library.on_disk(open).await? {
            Some(blob) => self.checked(blob, listed, effects).await?.ok_or(DamageFinding::Damaged),
            None => Err(DamageFinding::Missing),
        })
    }

    /// Checks an open archive; `None` if it is damaged.
    async fn checked(
        self: &Arc<Self>,
        blob: Blob,
        listed: &StoredArchive,
        effects: Effects,
    ) -> Result<Option<Archive>, Error> {
        let (digest, stored) = (listed.digest, listed.first_stored());
        if effects == Effects::Real
            && let Some(bytes) = self.small_copy(&blob, listed).await?
        {
            return Ok(Some(Archive::InMemory { bytes, digest, stored: Some(stored) }));
        }
        let is_right = self.is_right(&blob, listed, effects).await?;
        Ok(is_right.then_some(Archive::OnDisk { blob, digest, stored }))
    }

    /// Reads and checks a small archive, unless a checked copy is in memory. Readers share one copy, however slow they
    /// are. `None` for an archive that is large or damaged, or for which the memory budget has no room.
    async fn small_copy(self: &Arc<Self>, blob: &Blob, archive: &StoredArchive) -> Result<Option<Bytes>, Error> {
        if blob.size_bytes() > SMALL_ARCHIVE_BYTES {
            return Ok(None);
        }
        if let Some(bytes) = self.small.shared_copy(&archive.digest) {
            return Ok(Some(bytes));
        }
        let Some(grant) = self.small.reserve(blob.size_bytes()) else { return Ok(None) };
        let reading = blob.clone();
        let read = self.library.on_disk(move |_| unless_damaged(reading.read_all())).await?;
        let right = read.filter(|bytes| FastHash::of(bytes) == archive.fast);
        Ok(right.map(|bytes| self.small.share(archive.digest, bytes, grant)))
    }

    /// Checks an archive on disk: a large one before its first answer after a start, a small one each time. Concurrent
    /// requests share one check. Without effects, only the size of a large one is checked.
    async fn is_right(self: &Arc<Self>, blob: &Blob, archive: &StoredArchive, effects: Effects) -> Result<bool, Error> {
        if blob.size_bytes() != archive.size_bytes {
            return Ok(false);
        }
        let is_small = blob.size_bytes() <= SMALL_ARCHIVE_BYTES;
        // A request may have opened a damaged file before another one found that and a good one took its place.
        let (digest, file) = (archive.digest, blob.version());
        let is_checked = || self.library.catalog.checked_files.lock().get(&digest) == Some(&file);
        if !is_small && (effects == Effects::None || is_checked()) {
            return Ok(true);
        }
        let expected = archive.fast;
        let if_task_dies = Err(Error::Interrupted("the check of an archive".into()));
        let check =
            self.check_flights.join_or_spawn(effects, &self.runtime.tasks, (digest, file), if_task_dies, || {
                let (reader, blob) = (Arc::clone(self), blob.clone());
                async move {
                    let right =
                        reader.library.on_disk(move |_| unless_damaged(blob.fast_hash())).await? == Some(expected);
                    if right && !is_small {
                        reader.library.catalog.checked_files.lock().insert(digest, file);
                    }
                    Ok(right)
                }
            });
        check.await
    }

    /// Records that a file is missing or damaged. A failure is only logged, because the archive is fetched again or passed
    /// through anyway.
    async fn give_up_file(self: &Arc<Self>, artifact: &Artifact, archive: &StoredArchive, found: DamageFinding) {
        let (digest, fast) = (archive.digest, archive.fast);
        let give_up = move |library: &Library| library.give_up_file(&digest, fast, found);
        if let Err(error) = self.library.on_disk(give_up).await {
            tracing::error!(package = %artifact, %digest, %error, "an unusable file of an archive could not be set aside");
        }
    }
}

/// The memory budget of all copies, in bytes.
const ALL_BYTES: usize = 64 << 20;
/// The number of entries from which on those without readers are removed.
const MAX_LISTED: usize = 1000;

#[derive(Debug)]
pub struct SmallCopies {
    memory: ReadBudget,
    // Weak, because a list that owns the bytes would keep them in memory.
    shared: Mutex<HashMap<Digest, Weak<Bytes>>>,
}

/// A copy as the owner of a response body.
struct CopyOwner(Arc<Bytes>);

impl AsRef<[u8]> for CopyOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Default for SmallCopies {
    fn default() -> Self {
        Self { memory: ReadBudget::new(ALL_BYTES), shared: Mutex::default() }
    }
}

impl SmallCopies {
    /// The copy that is being sent to another client, if any.
    pub fn shared_copy(&self, digest: &Digest) -> Option<Bytes> {
        self.shared.lock().get(digest).and_then(Weak::upgrade).map(|copy| Bytes::from_owner(CopyOwner(copy)))
    }

    /// Reserves memory for an archive; `None` where the budget is used up.
    pub fn reserve(&self, bytes: u64) -> Option<ReadGrant> {
        usize::try_from(bytes).ok().and_then(|bytes| self.memory.try_grant(bytes))
    }

    /// Shares a new copy with other readers for as long as it has any.
    pub fn share(&self, digest: Digest, bytes: Vec<u8>, grant: ReadGrant) -> Bytes {
        let copy = Arc::new(grant.fill(bytes));
        let mut shared = self.shared.lock();
        if shared.len() >= MAX_LISTED {
            shared.retain(|_, copy| copy.strong_count() > 0);
        }
        shared.insert(digest, Arc::downgrade(&copy));
        drop(shared);
        Bytes::from_owner(CopyOwner(copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 11: an entry without a reader takes no memory, and all copies stay within the budget.
    #[test]
    fn a_copy_holds_its_memory_while_it_is_read() {
        let copies = SmallCopies::default();
        let digest = Digest::of(b"one");
        let all = vec![7; ALL_BYTES];
        let first = copies.share(digest, all, copies.reserve(ALL_BYTES as u64).unwrap());
        let part = copies.shared_copy(&digest).unwrap().slice(1..2);
        assert!(copies.reserve(1).is_none());
        drop(first);
        assert!(copies.reserve(1).is_none() && copies.shared_copy(&digest).is_some(), "a part of it is still read");
        drop(part);
        assert!(copies.reserve(1).is_some() && copies.shared_copy(&digest).is_none());
    }
}
