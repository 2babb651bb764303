//! Opens stored archives and checks them before they are served (DESIGN, promise 10).

use std::sync::Arc;

use bytes::Bytes;

use crate::address::Artifact;
use crate::digest::FastHash;
use crate::error::Error;
use crate::mirror::archives::Archive;
use crate::mirror::library::StoredArchive;
use crate::mirror::operate::rehash::DamageFinding;
use crate::mirror::{Mirror, RequestContext, SMALL_ARCHIVE_BYTES, default_if_gone};
use crate::store::{Blob, StoreError};

impl Mirror {
    /// Opens and checks a stored archive (DESIGN, promise 10). A missing or damaged one is taken off its name, so that
    /// it is fetched again.
    pub(in crate::mirror) async fn open_stored(
        self: &Arc<Self>,
        artifact: impl Into<Artifact>,
        listed: &StoredArchive,
        call: &RequestContext,
    ) -> Result<OpenOutcome, Error> {
        let (artifact, digest, stored) = (artifact.into(), listed.digest, listed.first_stored());
        let Some(blob) = self.on_disk(move |mirror| default_if_gone(mirror.store.blobs.get(&digest))).await? else {
            tracing::warn!(package = %artifact, %digest, "the archive a name lists is not there; it is fetched again");
            self.try_remove_from_name(&artifact, listed, DamageFinding::Missing).await;
            return Ok(OpenOutcome::Missing);
        };
        let read = match blob.size_bytes() <= SMALL_ARCHIVE_BYTES {
            true => self.read_once(&blob, listed).await?,
            false => SmallArchiveRead::NoRoom,
        };
        let archive = match read {
            SmallArchiveRead::Right(bytes) => Some(Archive::InMemory { bytes, digest, stored: Some(stored) }),
            SmallArchiveRead::Damaged => None,
            SmallArchiveRead::NoRoom => {
                self.check_once(&blob, listed).await?.then_some(Archive::OnDisk { blob, digest, stored })
            }
        };
        let Some(archive) = archive else {
            self.try_remove_from_name(&artifact, listed, DamageFinding::Damaged).await;
            return Ok(OpenOutcome::Damaged);
        };
        self.record_use(digest, call.now);
        Ok(OpenOutcome::Checked(archive))
    }

    /// Reads and checks a small archive, unless a checked copy is in memory. Readers share one copy, however slow they
    /// are.
    async fn read_once(self: &Arc<Self>, blob: &Blob, archive: &StoredArchive) -> Result<SmallArchiveRead, Error> {
        if let Some(bytes) = self.small.shared(&archive.digest) {
            return Ok(SmallArchiveRead::Right(bytes));
        }
        let Some(reservation) = self.small.reserve(blob.size_bytes()) else { return Ok(SmallArchiveRead::NoRoom) };
        let reading = blob.clone();
        let read = self.on_disk(move |_| unless_damaged(reading.read_all())).await?;
        let right = read.filter(|bytes| FastHash::of(bytes) == archive.fast);
        Ok(right.map_or(SmallArchiveRead::Damaged, |bytes| {
            SmallArchiveRead::Right(self.small.share(archive.digest, bytes, reservation))
        }))
    }

    /// Checks an archive on disk: a large one before its first answer after a start, a small one each time. Concurrent
    /// requests share one check.
    async fn check_once(self: &Arc<Self>, blob: &Blob, archive: &StoredArchive) -> Result<bool, Error> {
        if blob.size_bytes() != archive.size_bytes {
            return Ok(false);
        }
        let is_small = blob.size_bytes() <= SMALL_ARCHIVE_BYTES;
        if !is_small && self.checked_archives.lock().contains(&archive.digest) {
            return Ok(true);
        }
        let (digest, expected) = (archive.digest, archive.fast);
        let lost = Err(Error::Interrupted("the check of an archive".into()));
        let check = self.check_flights.join_or_spawn(&self.tasks, digest, lost, || {
            let (mirror, blob) = (Arc::clone(self), blob.clone());
            async move {
                let right = mirror.on_disk(move |_| unless_damaged(blob.fast_hash())).await? == Some(expected);
                if right && !is_small {
                    mirror.checked_archives.lock().insert(digest);
                }
                Ok(right)
            }
        });
        check.await
    }

    /// A failure is only logged, because the archive is fetched again or passed through anyway.
    async fn try_remove_from_name(
        self: &Arc<Self>,
        artifact: &Artifact,
        archive: &StoredArchive,
        because: DamageFinding,
    ) {
        if let Err(error) = self.remove_from_name(artifact, archive, because).await {
            tracing::error!(package = %artifact, digest = %archive.digest, %error, "an unusable archive could not be removed from its name record");
        }
    }

    async fn remove_from_name(
        self: &Arc<Self>,
        artifact: &Artifact,
        archive: &StoredArchive,
        because: DamageFinding,
    ) -> Result<(), Error> {
        let (artifact, digest, fast) = (artifact.clone(), archive.digest, archive.fast);
        self.on_disk(move |mirror| {
            let _lock = mirror.catalog.digest_lock(&digest).lock();
            // It may have been repaired since it was opened.
            match (because, mirror.store.blobs.get(&digest)?) {
                (DamageFinding::Missing, Some(_)) => return Ok(()),
                (DamageFinding::Damaged, Some(blob)) if unless_damaged(blob.fast_hash())? == Some(fast) => {
                    return Ok(());
                }
                (DamageFinding::Damaged, Some(_)) => mirror.store.blobs.quarantine(&digest)?,
                (_, None) => {}
            }
            mirror.checked_archives.lock().remove(&digest);
            mirror.catalog.change_name(&artifact, |name| name.archives.retain(|archive| archive.digest != digest))?;
            mirror.store.index.archive_gone(&digest);
            mirror.counters.damaged(because);
            mirror.bump_artifact_revision(&artifact);
            Ok(())
        })
        .await
    }
}

pub(in crate::mirror) enum OpenOutcome {
    Checked(Archive),
    Missing,
    Damaged,
}

/// The result of reading a small archive into memory.
enum SmallArchiveRead {
    Right(Bytes),
    Damaged,
    /// The memory budget is used up: the archive is checked and sent from disk, like a large one.
    NoRoom,
}

/// Returns the value, or `None` where the data on disk is damaged for good.
pub(in crate::mirror) fn unless_damaged<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_damage() => {
            tracing::error!(%error, "a stored archive cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
