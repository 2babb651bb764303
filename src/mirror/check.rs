//! Holding an archive against its digest again, all of it and at a bounded rate. What is wrong is set aside, taken
//! off its names, and fetched again (promise 10).

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::library::StoredArchive;
use super::opened::unless_damaged;
use super::{Archive, ArchiveRef, Mirror, RequestContext};
use crate::address::Artifact;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{Blob, StoreError};
use crate::upstream::outbound::Link;

/// How many pieces are read and hashed in one go on a thread that may block: 1 MiB.
const PIECES_AT_ONCE: usize = 4;

/// How many bytes may be read in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadRate {
    bytes_per_second: u64,
    free_at: Option<Instant>,
}

impl ReadRate {
    /// At most this many bytes in a second.
    pub(super) const fn of(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, free_at: None }
    }

    /// When the next bytes may be read, after these were, which was begun at `began`. Pauses are not made up for.
    fn next(&mut self, began: Instant, bytes: u64) -> Instant {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64);
        let free_at = self.free_at.map_or(began, |free_at| free_at.max(began)) + takes;
        self.free_at = Some(free_at);
        free_at
    }
}

/// What came of holding an archive against its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Checked {
    /// It is what its digest says.
    Right,
    /// It is not held, and nothing names it: it was removed meanwhile.
    Gone,
    /// It is not, or not there.
    Wrong(Wrong),
}

/// An archive that was not what its digest says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// The digest it should have.
    pub digest: Digest,
    /// The packages that named it.
    pub of: Vec<String>,
    /// How it was wrong.
    pub found: DamageFinding,
    /// What was done for it.
    #[serde(flatten)]
    pub healed: Healed,
}

/// How an archive was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DamageFinding {
    /// Its bytes are others; they were set aside.
    Damaged,
    /// A name listed it, and it was not there.
    Missing,
}

impl DamageFinding {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Missing => "missing",
        }
    }
}

/// What was done for an archive that was wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "healed", rename_all = "snake_case")]
pub enum Healed {
    /// It was fetched again, and proven.
    FetchedAgain,
    /// Nothing named it, so nobody needs it.
    NobodyNeedsIt,
    /// Nobody can be asked for it; it is listed as missing.
    Offline,
    /// It could not be fetched now; it is, as soon as a client asks for it.
    NotNow {
        /// Why.
        error: String,
    },
}

impl Mirror {
    /// Reads all of an archive and holds it against its digest.
    pub(super) async fn check(
        self: &Arc<Self>,
        digest: Digest,
        pace: &mut ReadRate,
        call: &RequestContext,
    ) -> Result<Checked, Error> {
        let opened = self.on_disk(move |mirror| mirror.store.blobs.get(&digest)).await?;
        if let Some(blob) = &opened
            && self.is_right(blob, digest, pace).await?
        {
            let now = self.inner(call).now;
            self.on_disk(move |mirror| {
                mirror.store.index.archive_checked(&digest, now);
                Ok(())
            })
            .await?;
            self.counters.checked();
            return Ok(Checked::Right);
        }
        let found = if opened.is_some() { DamageFinding::Damaged } else { DamageFinding::Missing };
        match self.on_whole_index(move |mirror| mirror.take_off_all_names(digest, opened.as_ref())).await? {
            None => Ok(Checked::Gone),
            Some(names) => {
                self.counters.checked();
                self.counters.damaged(found);
                let of = names.iter().map(|(of, _)| of.to_string()).collect();
                // On the terms of now: those that a walk of hours began on may be gone since.
                let healed = self.fetch_again(names, &self.job(self.inner(call).now)).await;
                tracing::error!(%digest, ?found, ?of, ?healed, "a held archive was not what its digest says");
                Ok(Checked::Wrong(Wrong { digest, of, found, healed }))
            }
        }
    }

    async fn is_right(self: &Arc<Self>, blob: &Blob, digest: Digest, pace: &mut ReadRate) -> Result<bool, Error> {
        let mut reading = blob.read_again();
        loop {
            let began = Instant::now();
            let (returned, read) = self
                .on_disk(move |_| {
                    let mut read = 0;
                    for _ in 0..PIECES_AT_ONCE {
                        match unless_damaged(reading.go_on())? {
                            None => return Ok((None, 0)),
                            Some(0) => break,
                            Some(piece) => read += piece,
                        }
                    }
                    Ok((Some(reading), read))
                })
                .await?;
            let Some(returned) = returned else { return Ok(false) };
            if read == 0 {
                return Ok(returned.digest() == digest);
            }
            reading = returned;
            tokio::time::sleep_until(pace.next(began, read)).await;
        }
    }

    /// Sets aside an archive that is wrong, and takes it off every name. `None` where it was replaced or removed
    /// since it was opened.
    fn take_off_all_names(
        &self,
        digest: Digest,
        opened: Option<&Blob>,
    ) -> Result<Option<Vec<(Artifact, StoredArchive)>>, StoreError> {
        self.store.index.needs_to_be_whole()?;
        let _lock = self.catalog.digest_lock(&digest).lock();
        match opened {
            Some(opened) if !self.store.blobs.set_aside_unless_replaced(&digest, opened)? => return Ok(None),
            None if self.store.blobs.holds(&digest)? => return Ok(None),
            Some(_) | None => {}
        }
        self.checked.lock().remove(&digest);
        self.store.index.archive_gone(&digest);
        let mut taken_off = Vec::new();
        for of in self.store.index.names_of(&digest)? {
            let mut taken = None;
            self.catalog.change_name(&of, |name| {
                taken = name.get(&digest).cloned();
                name.archives.retain(|held| held.digest != digest);
            })?;
            self.artifact_changed(&of);
            taken_off.extend(taken.map(|held| (of, held)));
        }
        Ok((opened.is_some() || !taken_off.is_empty()).then_some(taken_off))
    }

    /// Fetches an archive for everybody who named it, as a request that nobody waits for would.
    async fn fetch_again(self: &Arc<Self>, names: Vec<(Artifact, StoredArchive)>, call: &RequestContext) -> Healed {
        let mut healed = Healed::NobodyNeedsIt;
        for (of, held) in names {
            let brought = match of {
                Artifact::Provider(package) => {
                    let wanted = ArchiveRef { package, digest: held.digest.prefix(), filename: held.filename };
                    self.bring(&wanted, &self.inner(call)).await
                }
                Artifact::Module(package) => self.ensure_module_stored(&package, &self.inner(call)).await.map(drop),
            };
            healed = match brought {
                Ok(()) if matches!(healed, Healed::NobodyNeedsIt | Healed::FetchedAgain) => Healed::FetchedAgain,
                Ok(()) => healed,
                Err(_) if self.link() == Link::Offline => Healed::Offline,
                Err(error) => Healed::NotNow { error: error.to_string() },
            };
        }
        healed
    }

    /// Sees to it that an archive is held.
    ///
    /// # Errors
    /// Why it is not: it could not be had, or the disk would not keep it.
    pub(super) async fn bring(self: &Arc<Self>, wanted: &ArchiveRef, call: &RequestContext) -> Result<(), Error> {
        let what = format!("the archive of {}", wanted.package);
        // A call that nobody waits for: what cannot be kept is not fetched for it.
        if let Archive::Arriving { follow, .. } = self.archive(wanted, &self.inner(call)).await?.value {
            follow.until_kept(&what).await?;
        }
        match self.held(wanted).await? {
            Some(held) if self.holds(held.digest).await? => Ok(()),
            Some(_) | None => Err(Error::Interrupted(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 11: what reads everything leaves the disk to others.
    #[test]
    fn what_was_read_is_waited_for_and_a_pause_is_not_made_up_for() {
        let mut pace = ReadRate::of(1000);
        let began = Instant::now();
        let after = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(pace.next(began, 500), after(500));
        assert_eq!(pace.next(after(100), 500), after(1000));
        assert_eq!(pace.next(after(9000), 250), after(9250));
        assert_eq!(pace.next(after(9250), 1000), after(10_250));
    }
}
