//! The archive of a bundle entry: staged while it is read, or found in the store, then committed with its entry.

use std::sync::Arc;

use crate::bundle::{ApplyOutcome, BundledFile};
use crate::clock::Timestamp;
use crate::digest::FastHash;
use crate::mirror::Library;
use crate::mirror::library::intake::ArchiveBytes;
use crate::mirror::modules::BundledModule;
use crate::mirror::transfer::bundle::entry::{EntryVerdict, store_failed};
use crate::mirror::transfer::bundle::sets::BundledSet;
use crate::store::{Blob, Staged, StagedNote};
use crate::verify::Verified;

enum EntryToCommit {
    Provider(Box<BundledSet>),
    Module(Box<BundledModule>),
}

pub(in crate::mirror) enum IncomingArchive {
    /// The entry is stored already.
    AlreadyStored,
    Staged(Box<StagingArchive>),
}

pub(in crate::mirror) struct StagingArchive {
    entry: EntryToCommit,
    staged: Staged,
    file: BundledFile,
}

pub(in crate::mirror) enum ArchiveBytesSource {
    Staged(Box<Verified<Staged>>),
    Stored(Blob),
}

impl From<ArchiveBytesSource> for ArchiveBytes {
    fn from(source: ArchiveBytesSource) -> Self {
        match source {
            ArchiveBytesSource::Staged(verified) => Self::Staged(verified),
            ArchiveBytesSource::Stored(_) => Self::Stored,
        }
    }
}

pub(in crate::mirror) struct StagedBundleArchive {
    pub(in crate::mirror) source: ArchiveBytesSource,
    pub(in crate::mirror) fast: FastHash,
    pub(in crate::mirror) size_bytes: u64,
}

impl EntryVerdict {
    /// Prepares staging for the archive, which follows next in the bundle.
    pub(in crate::mirror) fn into_incoming(
        self,
        library: &Arc<Library>,
        file: &BundledFile,
    ) -> Result<IncomingArchive, String> {
        let artifact = match self {
            Self::AlreadyStored => return Ok(IncomingArchive::AlreadyStored),
            Self::Document(_) => return Err("it is a document, but has an archive".to_owned()),
            Self::Provider(set) => EntryToCommit::Provider(set),
            Self::Module(module) => EntryToCommit::Module(module),
        };
        let name = format!("carried~{}", file.sha256);
        let staged = || {
            // Leftovers of an earlier run are discarded: reading the bundle again takes only a moment.
            library.store.blobs.stage(&name)?.discard()?;
            let mut staged = library.store.blobs.stage(&name)?;
            let note = StagedNote { length: Some(file.bytes), ..StagedNote::default() };
            let remembered = match staged.remember(note.clone(), file.bytes) {
                Err(full) if full.is_full() => {
                    library.free_disk_space(file.bytes, &full).and_then(|()| staged.remember(note, file.bytes))
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
        Ok(IncomingArchive::Staged(Box::new(StagingArchive { entry: artifact, staged, file: *file })))
    }

    /// Commits an entry that has no archive.
    pub(in crate::mirror) fn commit_without_archive(
        self,
        library: &Library,
        now: Timestamp,
    ) -> Result<ApplyOutcome, String> {
        match self {
            Self::AlreadyStored => Ok(ApplyOutcome::Held),
            Self::Document(document) => document.commit(library, now),
            Self::Provider(_) | Self::Module(_) => Err("its manifest names no archive".to_owned()),
        }
    }

    /// Commits an entry whose archive is in the store, under another name or since before a crash. `missing` explains
    /// an absent archive.
    pub(in crate::mirror) fn commit_with_stored_archive(
        self,
        library: &Library,
        missing: impl FnOnce() -> String,
        now: Timestamp,
    ) -> Result<ApplyOutcome, String> {
        let (artifact, digest) = match self {
            Self::AlreadyStored => return Ok(ApplyOutcome::Held),
            Self::Document(_) => return Err("it is a document, but has an archive".to_owned()),
            Self::Provider(set) => {
                let digest = set.digest();
                (EntryToCommit::Provider(set), digest)
            }
            Self::Module(module) => {
                let digest = module.digest();
                (EntryToCommit::Module(module), digest)
            }
        };
        let Some(blob) = library.store.blobs.open(&digest).map_err(store_failed)? else {
            return Err(missing());
        };
        let (actual, fast) = blob.hashes().map_err(store_failed)?;
        if actual != digest {
            return Err(format!(
                "its stored archive is damaged: its SHA-256 is {actual}, and should be {digest}; `larder verify` quarantines it"
            ));
        }
        let size_bytes = blob.size_bytes();
        artifact.commit(
            library,
            StagedBundleArchive { source: ArchiveBytesSource::Stored(blob), fast, size_bytes },
            now,
        )
    }
}

impl StagingArchive {
    pub(in crate::mirror) fn append(&mut self, piece: &[u8]) -> Result<(), String> {
        self.staged.append(piece).map_err(store_failed)
    }

    pub(in crate::mirror) fn discard(self) {
        if let Err(error) = self.staged.discard() {
            tracing::warn!(%error, "a staging file of a bundle could not be removed; it is removed within a day");
        }
    }
}

impl IncomingArchive {
    /// Verifies the staged archive and commits its entry.
    pub(in crate::mirror) fn commit(self, library: &Library, now: Timestamp) -> Result<ApplyOutcome, String> {
        let Self::Staged(arriving) = self else { return Ok(ApplyOutcome::Held) };
        let StagingArchive { entry, staged, file } = *arriving;
        let (actual, fast) = staged.hashes();
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, actual, file.sha256).map_err(|verdict| verdict.to_string())?;
        entry.commit(
            library,
            StagedBundleArchive { source: ArchiveBytesSource::Staged(Box::new(verified)), fast, size_bytes },
            now,
        )
    }
}

impl EntryToCommit {
    fn commit(self, library: &Library, arrived: StagedBundleArchive, now: Timestamp) -> Result<ApplyOutcome, String> {
        match self {
            Self::Provider(set) => set.commit(library, arrived, now),
            Self::Module(module) => module.commit(library, arrived, now),
        }
    }
}

impl StagedBundleArchive {
    /// Discards the staged bytes and returns the reason.
    pub(in crate::mirror) fn discard_with(self, reason: String) -> String {
        if let ArchiveBytesSource::Staged(staged) = self.source
            && let Err(error) = staged.into_inner().discard()
        {
            tracing::warn!(%error, "a staging file of a bundle could not be removed; it is removed within a day");
        }
        reason
    }
}
