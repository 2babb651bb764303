//! Re-hashes stored archives at a limited rate. A wrong one is quarantined, taken off its names, and fetched again
//! (DESIGN, promise 10).

use crate::mirror::{Archives, Library, Operations};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::address::Artifact;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::verified_open::unless_damaged;
use crate::mirror::library::StoredArchive;
use crate::mirror::{Archive, ArchiveRef, RequestContext};
use crate::store::{Blob, StoreError};
use crate::upstream::outbound::Connectivity;

/// The pieces read and hashed in one blocking call: 1 MiB in all.
const PIECES_AT_ONCE: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) struct ReadRate {
    bytes_per_second: u64,
    free_at: Option<Instant>,
}

impl ReadRate {
    pub(in crate::mirror) const fn of(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, free_at: None }
    }

    /// Returns the time of the next read, after `bytes` were read from `began` on. Pauses are not made up for.
    fn next(&mut self, began: Instant, bytes: u64) -> Instant {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64);
        let free_at = self.free_at.map_or(began, |free_at| free_at.max(began)) + takes;
        self.free_at = Some(free_at);
        free_at
    }
}

/// The result of re-hashing an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mirror) enum RehashOutcome {
    /// It matches its digest.
    Right,
    /// It is not stored, and no name lists it: it was removed meanwhile.
    Gone,
    Wrong(DamagedArchive),
}

/// An archive that does not match its digest, or is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedArchive {
    /// The expected digest.
    pub digest: Digest,
    /// The packages that listed it.
    pub of: Vec<String>,
    /// The kind of damage.
    pub found: DamageFinding,
    /// The outcome of the repair.
    #[serde(flatten)]
    pub healed: RepairOutcome,
}

/// The kind of damage to an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DamageFinding {
    /// Its bytes are wrong. They were quarantined.
    Damaged,
    /// A name listed it, but it was not stored.
    Missing,
}

impl DamageFinding {
    /// The name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Missing => "missing",
        }
    }
}

/// The outcome of repairing an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "healed", rename_all = "snake_case")]
pub enum RepairOutcome {
    /// It was fetched again and verified.
    FetchedAgain,
    /// No name lists it, so it is not needed.
    NobodyNeedsIt,
    /// Larder is offline. The archive is listed as missing.
    Offline,
    /// It could not be fetched now. The next client request tries again.
    NotNow {
        /// The cause.
        error: String,
    },
}

impl Operations {
    /// Re-hashes an archive at the rate of `pace`, and repairs it if it is wrong.
    pub(in crate::mirror) async fn rehash(
        self: &Arc<Self>,
        digest: Digest,
        pace: &mut ReadRate,
        call: &RequestContext,
    ) -> Result<RehashOutcome, Error> {
        let opened = self.library.on_disk(move |library| library.store.blobs.open(&digest)).await?;
        if let Some(blob) = &opened
            && self.is_right(blob, digest, pace).await?
        {
            let now = self.runtime.flight_context(call).now;
            self.library
                .on_disk(move |library| {
                    library.store.index.archive_checked(&digest, now);
                    Ok(())
                })
                .await?;
            self.runtime.counters.checked();
            return Ok(RehashOutcome::Right);
        }
        let found = if opened.is_some() { DamageFinding::Damaged } else { DamageFinding::Missing };
        match self
            .library
            .on_complete_index(move |library| library.remove_from_all_names(digest, opened.as_ref()))
            .await?
        {
            None => Ok(RehashOutcome::Gone),
            Some(names) => {
                self.runtime.counters.checked();
                self.runtime.counters.damaged(found);
                let packages = names.iter().map(|(packages, _)| packages.to_string()).collect();
                // Use the present configuration: the one at the start of a long run may be gone.
                let healed =
                    self.fetch_again(names, &self.runtime.job_context(self.runtime.flight_context(call).now)).await;
                tracing::error!(%digest, ?found, ?packages, ?healed, "a stored archive does not match its digest");
                Ok(RehashOutcome::Wrong(DamagedArchive { digest, of: packages, found, healed }))
            }
        }
    }

    async fn is_right(self: &Arc<Self>, blob: &Blob, digest: Digest, pace: &mut ReadRate) -> Result<bool, Error> {
        let mut reading = blob.read_again();
        loop {
            let began = Instant::now();
            let (returned, read) = self
                .library
                .on_disk(move |_| {
                    let mut read = 0;
                    for _ in 0..PIECES_AT_ONCE {
                        match unless_damaged(reading.read_next())? {
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
}

impl Library {
    /// Quarantines a wrong archive and takes it off every name. `None` where it was replaced or removed since it was
    /// opened.
    fn remove_from_all_names(
        &self,
        digest: Digest,
        opened: Option<&Blob>,
    ) -> Result<Option<Vec<(Artifact, StoredArchive)>>, StoreError> {
        self.store.index.needs_to_be_whole()?;
        let _lock = self.catalog.digest_lock(&digest).lock();
        match opened {
            Some(opened) if !self.store.blobs.quarantine_unless_replaced(&digest, opened)? => return Ok(None),
            None if self.store.blobs.is_stored(&digest)? => return Ok(None),
            Some(_) | None => {}
        }
        self.catalog.checked.lock().remove(&digest);
        self.store.index.archive_gone(&digest);
        let mut taken_off = Vec::new();
        for artifact in self.store.index.names_of(&digest)? {
            let mut taken = None;
            self.catalog.change_name(&artifact, |name| {
                taken = name.get(&digest).cloned();
                name.archives.retain(|archive| archive.digest != digest);
            })?;
            self.bump_revision(&artifact);
            taken_off.extend(taken.map(|archive| (artifact, archive)));
        }
        Ok((opened.is_some() || !taken_off.is_empty()).then_some(taken_off))
    }
}

impl Operations {
    /// Fetches an archive again for every package that named it, as a job does.
    async fn fetch_again(
        self: &Arc<Self>,
        names: Vec<(Artifact, StoredArchive)>,
        call: &RequestContext,
    ) -> RepairOutcome {
        let mut healed = RepairOutcome::NobodyNeedsIt;
        for (artifact, archive) in names {
            let brought = match artifact {
                Artifact::Provider(package) => {
                    let wanted = ArchiveRef { package, digest: archive.digest.prefix(), filename: archive.filename };
                    self.archives.ensure_archive_stored(&wanted, &self.runtime.flight_context(call)).await
                }
                Artifact::Module(package) => {
                    self.modules.ensure_module_stored(&package, &self.runtime.flight_context(call)).await.map(drop)
                }
            };
            healed = match brought {
                Ok(()) if matches!(healed, RepairOutcome::NobodyNeedsIt | RepairOutcome::FetchedAgain) => {
                    RepairOutcome::FetchedAgain
                }
                Ok(()) => healed,
                Err(_) if self.runtime.connectivity() == Connectivity::Offline => RepairOutcome::Offline,
                Err(error) => RepairOutcome::NotNow { error: error.to_string() },
            };
        }
        healed
    }
}

impl Archives {
    /// Ensures that an archive is stored.
    ///
    /// # Errors
    /// The fetch failed, or the disk could not store it.
    pub(in crate::mirror) async fn ensure_archive_stored(
        self: &Arc<Self>,
        wanted: &ArchiveRef,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let subject = format!("the archive of {}", wanted.package);
        // The context of a flight: an archive that cannot be stored is not passed through for it.
        if let Archive::Arriving { follow, .. } = self.archive(wanted, &self.runtime.flight_context(call)).await?.value
        {
            follow.until_stored(&subject).await?;
        }
        match self.library.stored_archive_of_url(wanted).await? {
            Some(archive) if self.library.has_archive(archive.digest).await? => Ok(()),
            Some(_) | None => Err(Error::Interrupted(subject)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN, promise 11: re-hashing everything leaves disk bandwidth to others.
    #[test]
    fn the_read_rate_is_limited_and_pauses_are_not_made_up_for() {
        let mut pace = ReadRate::of(1000);
        let began = Instant::now();
        let after = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(pace.next(began, 500), after(500));
        assert_eq!(pace.next(after(100), 500), after(1000));
        assert_eq!(pace.next(after(9000), 250), after(9250));
        assert_eq!(pace.next(after(9250), 1000), after(10_250));
    }
}
