//! The archive of a bundle entry: staged while it is read, or found in the store, then committed with its entry.

use std::sync::Arc;

use super::super::Mirror;
use super::super::modules::CarriedModule;
use super::intake::{EntryVerdict, store_failed};
use super::sets::CarriedSet;
use crate::bundle::{ApplyOutcome, BundledFile};
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash};
use crate::store::{Blob, Staged, StagedNote, StoreError};
use crate::verify::Verified;

enum For {
    Provider(Box<CarriedSet>),
    Module(Box<CarriedModule>),
}

pub(super) enum Incoming {
    /// The entry is stored already.
    Held,
    Staged(Box<Arriving>),
}

pub(super) struct Arriving {
    of: For,
    staged: Staged,
    file: BundledFile,
}

pub(in crate::mirror) enum ArchiveBytesSource {
    Staged(Box<Verified<Staged>>),
    Held(Blob),
}

pub(in crate::mirror) struct StagedBundleArchive {
    pub(in crate::mirror) source: ArchiveBytesSource,
    pub(in crate::mirror) fast: FastHash,
    pub(in crate::mirror) size_bytes: u64,
}

impl EntryVerdict {
    /// Prepares staging for the archive, which follows next in the bundle.
    pub(super) fn incoming(self, mirror: &Arc<Mirror>, file: &BundledFile) -> Result<Incoming, String> {
        let of = match self {
            Self::Held => return Ok(Incoming::Held),
            Self::Document(_) => return Err("it has an archive, and is a document".to_owned()),
            Self::Provider(set) => For::Provider(set),
            Self::Module(module) => For::Module(module),
        };
        let name = format!("carried~{}", file.sha256);
        let staged = || {
            // Leftovers of an earlier run are discarded: reading the bundle again takes only a moment.
            mirror.store.blobs.stage(&name)?.discard()?;
            let mut staged = mirror.store.blobs.stage(&name)?;
            let note = StagedNote { length: Some(file.bytes), ..StagedNote::default() };
            let remembered = match staged.remember(note.clone(), file.bytes) {
                Err(full) if full.is_full() => {
                    mirror.make_room_on_disk(file.bytes, &full).and_then(|()| staged.remember(note, file.bytes))
                }
                remembered => remembered,
            };
            match remembered {
                Ok(()) => Ok(staged),
                Err(error) => {
                    staged.discard()?;
                    Err(error)
                }
            }
        };
        let staged = staged().map_err(store_failed)?;
        Ok(Incoming::Staged(Box::new(Arriving { of, staged, file: *file })))
    }

    /// Commits an entry that has no archive.
    pub(super) fn without_archive(self, mirror: &Mirror, now: Timestamp) -> Result<ApplyOutcome, String> {
        match self {
            Self::Held => Ok(ApplyOutcome::Held),
            Self::Document(document) => document.taken(mirror, now),
            Self::Provider(_) | Self::Module(_) => Err("its manifest names no archive of it".to_owned()),
        }
    }

    /// Commits an entry whose archive is in the store, under another name or since before a crash. `missing` explains
    /// an absent archive.
    pub(super) fn with_what_is_stored(
        self,
        mirror: &Mirror,
        missing: impl FnOnce() -> String,
        now: Timestamp,
    ) -> Result<ApplyOutcome, String> {
        let (of, digest) = match self {
            Self::Held => return Ok(ApplyOutcome::Held),
            Self::Document(_) => return Err("it has an archive, and is a document".to_owned()),
            Self::Provider(set) => {
                let digest = set.digest();
                (For::Provider(set), digest)
            }
            Self::Module(module) => {
                let digest = module.digest();
                (For::Module(module), digest)
            }
        };
        let Some(blob) = mirror.store.blobs.get(&digest).map_err(store_failed)? else {
            return Err(missing());
        };
        let (actual, fast) = blob.hashes().map_err(store_failed)?;
        if actual != digest {
            return Err(format!(
                "its archive is held, and damaged: its SHA-256 is {actual}, and should be {digest}; `larder verify` sets it aside"
            ));
        }
        let size_bytes = blob.size_bytes();
        of.taken(mirror, StagedBundleArchive { source: ArchiveBytesSource::Held(blob), fast, size_bytes }, now)
    }
}

impl Arriving {
    pub(super) fn append(&mut self, piece: &[u8]) -> Result<(), String> {
        self.staged.append(piece).map_err(store_failed)
    }

    pub(super) fn discard(self) {
        if let Err(error) = self.staged.discard() {
            tracing::warn!(%error, "what was staged of a bundle could not be removed; it is swept in a day");
        }
    }
}

impl Incoming {
    /// Verifies the staged archive and commits its entry.
    pub(super) fn taken(self, mirror: &Mirror, now: Timestamp) -> Result<ApplyOutcome, String> {
        let Self::Staged(arriving) = self else { return Ok(ApplyOutcome::Held) };
        let Arriving { of, staged, file } = *arriving;
        let (actual, fast) = staged.hashes();
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, actual, file.sha256).map_err(|verdict| verdict.to_string())?;
        of.taken(
            mirror,
            StagedBundleArchive { source: ArchiveBytesSource::Staged(Box::new(verified)), fast, size_bytes },
            now,
        )
    }
}

impl For {
    fn taken(self, mirror: &Mirror, arrived: StagedBundleArchive, now: Timestamp) -> Result<ApplyOutcome, String> {
        match self {
            Self::Provider(set) => set.taken(mirror, arrived, now),
            Self::Module(module) => module.taken(mirror, arrived, now),
        }
    }
}

impl StagedBundleArchive {
    /// Discards the staged bytes and returns the reason.
    pub(in crate::mirror) fn refused(self, why: String) -> String {
        if let ArchiveBytesSource::Staged(staged) = self.source
            && let Err(error) = staged.into_inner().discard()
        {
            tracing::warn!(%error, "what was staged of a bundle could not be removed; it is swept in a day");
        }
        why
    }

    /// Publishes a staged archive. The caller holds its digest lock.
    pub(in crate::mirror) fn publish(self, mirror: &Mirror, digest: Digest, now: Timestamp) -> Result<(), StoreError> {
        if let ArchiveBytesSource::Staged(verified) = self.source {
            mirror.store.blobs.publish(*verified)?;
            mirror.checked.lock().insert(digest);
            // Indexed before it is named: eviction can only remove archives that are in the index.
            mirror.store.index.archive_kept(&digest, self.size_bytes, now);
        }
        Ok(())
    }
}
