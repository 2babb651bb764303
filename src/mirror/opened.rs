//! Held archives, checked before they are served (promise 10): what is damaged or missing is taken off its name.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::archives::Archive;
use super::check::Found;
use super::library::HeldArchive;
use super::{Call, Mirror, SMALL_ARCHIVE_BYTES, unless_gone};
use crate::address::Artifact;
use crate::digest::FastHash;
use crate::error::Error;
use crate::store::{Blob, StoreError};

/// From this many copies of small archives on, those that nobody reads any more are forgotten.
const MOST_SHARED: usize = 1000;

impl Mirror {
    /// Opens a held archive and checks it (promise 10). One that is gone or damaged is taken off its name, and
    /// can be fetched again.
    pub(super) async fn open_held(
        self: &Arc<Self>,
        of: impl Into<Artifact>,
        held: &HeldArchive,
        call: &Call,
    ) -> Result<Opened, Error> {
        let (of, digest) = (of.into(), held.digest);
        let Some(blob) = self.on_disk(move |mirror| unless_gone(mirror.store.blobs.get(&digest))).await? else {
            tracing::warn!(package = %of, %digest, "the archive a name lists is not there; it is fetched again");
            self.try_to_take_off(&of, held, Found::Missing).await;
            return Ok(Opened::Missing);
        };
        let small = blob.size_bytes() <= SMALL_ARCHIVE_BYTES;
        let archive = if small {
            let right = self.read_once(&blob, held).await?;
            right.map(|bytes| Archive::InMemory { bytes: Bytes::from_owner(bytes), digest })
        } else {
            let right = self.check_once(&blob, held).await?;
            right.then_some(Archive::Held { blob, digest })
        };
        let Some(archive) = archive else {
            self.try_to_take_off(&of, held, Found::Damaged).await;
            return Ok(Opened::Damaged);
        };
        self.used(digest, call.now);
        Ok(Opened::Checked(archive))
    }

    /// Reads and checks a small archive, unless a copy that was is being sent just now: readers share one, however
    /// slow they are.
    async fn read_once(self: &Arc<Self>, blob: &Blob, held: &HeldArchive) -> Result<Option<Arc<[u8]>>, Error> {
        if let Some(shared) = self.small.lock().get(&held.digest).and_then(Weak::upgrade) {
            return Ok(Some(shared));
        }
        let reading = blob.clone();
        let read = self.on_disk(move |_| unless_damaged(reading.read_all())).await?;
        let right = read.filter(|bytes| FastHash::of(bytes) == held.fast).map(Arc::<[u8]>::from);
        if let Some(bytes) = &right {
            let mut small = self.small.lock();
            if small.len() >= MOST_SHARED {
                small.retain(|_, copy| copy.strong_count() > 0);
            }
            small.insert(held.digest, Arc::downgrade(bytes));
        }
        Ok(right)
    }

    /// Checks a large archive before its first answer after a start; the answer is shared.
    async fn check_once(self: &Arc<Self>, blob: &Blob, held: &HeldArchive) -> Result<bool, Error> {
        if blob.size_bytes() != held.size_bytes {
            return Ok(false);
        }
        if self.checked.lock().contains(&held.digest) {
            return Ok(true);
        }
        let (digest, expected) = (held.digest, held.fast);
        let lost = Err(Error::Interrupted("the check of an archive".into()));
        let check = self.checks.share(&self.tasks, digest, lost, || {
            let (mirror, blob) = (Arc::clone(self), blob.clone());
            async move {
                let right = mirror.on_disk(move |_| unless_damaged(blob.fast_hash())).await? == Some(expected);
                if right {
                    mirror.checked.lock().insert(digest);
                }
                Ok(right)
            }
        });
        check.await
    }

    /// That it cannot be taken off costs nobody the answer: it is fetched again, or passed through.
    async fn try_to_take_off(self: &Arc<Self>, of: &Artifact, held: &HeldArchive, because: Found) {
        if let Err(error) = self.take_off(of, held, because).await {
            tracing::error!(package = %of, digest = %held.digest, %error, "an archive that cannot be served could not be taken off its name");
        }
    }

    async fn take_off(self: &Arc<Self>, of: &Artifact, held: &HeldArchive, because: Found) -> Result<(), Error> {
        let (of, digest, fast) = (of.clone(), held.digest, held.fast);
        self.on_disk(move |mirror| {
            let _lock = mirror.catalog.digest_lock(&digest).lock();
            // Somebody may have put it right since it was looked at.
            match (because, mirror.store.blobs.get(&digest)?) {
                (Found::Missing, Some(_)) => return Ok(()),
                (Found::Damaged, Some(blob)) if unless_damaged(blob.fast_hash())? == Some(fast) => return Ok(()),
                (Found::Damaged, Some(_)) => mirror.store.blobs.set_aside(&digest)?,
                (_, None) => {}
            }
            mirror.checked.lock().remove(&digest);
            mirror.catalog.change_name(&of, |name| name.archives.retain(|held| held.digest != digest))?;
            mirror.store.index.archive_gone(&digest);
            mirror.counters.damaged(because);
            mirror.artifact_changed(&of);
            Ok(())
        })
        .await
    }
}

/// What came of opening an archive that a name lists.
pub(super) enum Opened {
    Checked(Archive),
    Missing,
    Damaged,
}

/// What was read; `None` where what lies there is damaged for good.
pub(super) fn unless_damaged<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.is_damage() => {
            tracing::error!(%error, "a held archive cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
