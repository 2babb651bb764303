//! Judges the archives of an imported tree and stores or refuses them. Disk space is reserved only for archives that
//! are to be stored.

use std::sync::Arc;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::filesystem_mirror::index::ArchiveHashes;
use crate::mirror::archives::verified_open::unless_damaged;
use crate::mirror::library::intake::ArchiveBytes;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::mirror::library::{PackageHashState, Reservation, StoredArchive, ZipOrigin};
use crate::mirror::operate::rehash::DamageFinding;
use crate::mirror::transfer::tree::evidence::ArchiveEvidence;
use crate::mirror::transfer::tree::progress::{ImportAbort, TreeImport};
use crate::mirror::transfer::tree::staging::{ArchiveOrigin, StagedTreeArchive};
use crate::mirror::transfer::tree::unsigned::{sums_of, unsigned_set};
use crate::mirror::transfer::tree::{FileVerdict, ProvenBy, UnsignedPolicy};
use crate::mirror::{Connectivity, default_if_gone};
use crate::store::StoreError;
use crate::verify::{PackageLimits, ProofBasis, Verified, package_hashes};

/// The recorded origin of an archive that no upstream sent.
const IMPORT_ORIGIN: &str = "an import";
/// The note on a stored archive that was damaged.
const REPLACED_DAMAGED_NOTE: &str = "the stored archive was damaged: quarantined and replaced by this one";

enum ArchiveVerdict {
    /// Stored: a proof set names it.
    Proven {
        proven_by: ProvenBy,
        stored_set: Arc<StoredProofSet>,
        set: Arc<ProofSet>,
        hashes: PackageHashState,
    },
    /// Stored: the operator vouches for it.
    VouchedFor(PackageHashState),
    AlreadyStored,
    Refused(String),
}

/// The state of the stored archive with a given digest.
enum StoredState {
    Nothing,
    Whole,
    Damaged,
}

impl TreeImport {
    /// Judges a staged archive, then commits or discards it.
    pub(in crate::mirror) fn judge_archive(&mut self, arrived: StagedTreeArchive) -> Result<(), ImportAbort> {
        let (file, package, size_bytes) = (arrived.file.clone(), arrived.package.clone(), arrived.staged.written());
        let now = self.call.now.after(self.call.started.elapsed());
        let mut notes = Vec::new();
        let verdict = match self.verdict(&arrived, now, &mut notes) {
            Ok(verdict) => self.apply_verdict(verdict, arrived, now, &mut notes),
            Err(error) => {
                arrived.discard();
                Err(error)
            }
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(Error::Store(error)) => return Err(ImportAbort::store_failed_at(&file)(error)),
            Err(error) => FileVerdict::Refused { why: error.to_string() },
        };
        self.report(file, Some(&package), size_bytes, verdict, notes)
    }

    fn verdict(
        &mut self,
        arrived: &StagedTreeArchive,
        now: Timestamp,
        notes: &mut Vec<String>,
    ) -> Result<ArchiveVerdict, Error> {
        let StagedTreeArchive { package, digest, .. } = arrived;
        self.affected_providers.insert(package.provider.clone());
        let call = self.transfers.runtime.step_context(now);
        let reason = match &arrived.origin {
            ArchiveOrigin::FromTree => {
                if self.proven.get(package).is_some_and(|proven| proven != digest) {
                    let reason = "another file in the tree is verified for this package, with other bytes";
                    return Ok(ArchiveVerdict::Refused(reason.to_owned()));
                }
                let evidence = self.transfers.find_evidence(package, *digest, &self.sidecars, self.unsigned, &call);
                match self.runtime.block_on(evidence)? {
                    ArchiveEvidence::Against(reason) => return Ok(ArchiveVerdict::Refused(reason)),
                    ArchiveEvidence::Proven { proven_by, stored_set, set, notes: more_notes } => {
                        notes.extend(more_notes);
                        return self.proven(arrived, proven_by, stored_set, set, notes);
                    }
                    ArchiveEvidence::AlreadyStored => return Ok(ArchiveVerdict::AlreadyStored),
                    ArchiveEvidence::NoProof(reason) => reason,
                }
            }
            ArchiveOrigin::Repacked { h1 } => {
                match self.runtime.block_on(self.transfers.find_unpacked_evidence(package, h1, &call))? {
                    ArchiveEvidence::Against(reason) => return Ok(ArchiveVerdict::Refused(reason)),
                    ArchiveEvidence::AlreadyStored | ArchiveEvidence::Proven { .. } => {
                        notes.push("its files equal those of the stored archive".to_owned());
                        return Ok(ArchiveVerdict::AlreadyStored);
                    }
                    ArchiveEvidence::NoProof(reason) => reason,
                }
            }
        };
        self.unproven(arrived, &reason)
    }

    fn proven(
        &self,
        arrived: &StagedTreeArchive,
        proven_by: ProvenBy,
        stored_set: Arc<StoredProofSet>,
        set: Arc<ProofSet>,
        notes: &mut Vec<String>,
    ) -> Result<ArchiveVerdict, Error> {
        match self.stored_state(arrived)? {
            StoredState::Whole => return Ok(ArchiveVerdict::AlreadyStored),
            StoredState::Damaged => notes.push(REPLACED_DAMAGED_NOTE.to_owned()),
            StoredState::Nothing => {}
        }
        let hashes = hashes_of(arrived)?;
        notes.extend(
            self.index_contradiction(arrived, &hashes).map(|reason| format!("{reason}; it is verified nevertheless")),
        );
        Ok(ArchiveVerdict::Proven { proven_by, stored_set, set, hashes })
    }

    fn unproven(&mut self, arrived: &StagedTreeArchive, reason: &str) -> Result<ArchiveVerdict, Error> {
        if self.unsigned == UnsignedPolicy::Refused {
            return Ok(ArchiveVerdict::Refused(format!(
                "it is not verified: {reason}; --unsigned imports it on your word"
            )));
        }
        // Readers of a tree disagree on which of the two files counts.
        if self.waiting.has_conflicting(arrived) {
            self.disputed.insert(arrived.package.clone());
        }
        if self.disputed.contains(&arrived.package) {
            let reason = "another file in the tree has other bytes for this package, and neither is verified";
            return Ok(ArchiveVerdict::Refused(reason.to_owned()));
        }
        let hashes = hashes_of(arrived)?;
        if let Some(reason) = self.index_contradiction(arrived, &hashes) {
            return Ok(ArchiveVerdict::Refused(reason));
        }
        Ok(match hashes {
            PackageHashState::Impossible { why: reason } => {
                ArchiveVerdict::Refused(format!("no client could install it: {reason}"))
            }
            hashes => ArchiveVerdict::VouchedFor(hashes),
        })
    }

    /// The reason that `VERSION.json` beside the archive contradicts it, if it does.
    fn index_contradiction(&self, arrived: &StagedTreeArchive, hashes: &PackageHashState) -> Option<String> {
        let Package { version, platform, .. } = &arrived.package;
        let name = format!("{version}.json");
        let index = match self.sidecars.version_index(version)? {
            Ok(index) => index,
            Err(reason) => return Some(format!("{name} beside it cannot be read: {reason}")),
        };
        let takes = match (&arrived.origin, hashes) {
            (ArchiveOrigin::Repacked { h1 }, _) => index.accepts_h1(platform, h1),
            (ArchiveOrigin::FromTree, PackageHashState::Known { zip, .. }) => {
                index.accepts(platform, &ArchiveHashes { digest: arrived.digest, h1: Some(zip.clone()) })
            }
            (ArchiveOrigin::FromTree, PackageHashState::NotYet | PackageHashState::Impossible { .. }) => {
                index.accepts(platform, &ArchiveHashes { digest: arrived.digest, h1: None })
            }
        };
        (!takes)
            .then(|| format!("{name} beside it lists other hashes: one of the two was changed since they were made"))
    }

    fn apply_verdict(
        &mut self,
        verdict: ArchiveVerdict,
        arrived: StagedTreeArchive,
        now: Timestamp,
        notes: &mut Vec<String>,
    ) -> Result<FileVerdict, Error> {
        let package = arrived.package.clone();
        match verdict {
            ArchiveVerdict::Refused(reason) => {
                arrived.discard();
                Ok(FileVerdict::Refused { why: reason })
            }
            ArchiveVerdict::AlreadyStored => {
                self.correct_record(&arrived)?;
                arrived.discard();
                Ok(FileVerdict::Held)
            }
            ArchiveVerdict::Proven { proven_by, stored_set, set, hashes } => {
                let reservation = match self.reserve_space(arrived.staged.written()) {
                    Ok(reservation) => reservation,
                    Err(error) => {
                        arrived.discard();
                        return Err(error);
                    }
                };
                tracing::info!(%package, ?proven_by, "an archive of a tree is verified and stored");
                self.proven.insert(package, arrived.digest);
                self.commit_archive(&stored_set, &set, arrived, hashes, reservation, now)?;
                Ok(FileVerdict::Proven { by: proven_by })
            }
            ArchiveVerdict::VouchedFor(hashes) => self.store_vouched(arrived, hashes, now, notes),
        }
    }

    /// Corrects the packer and origin recorded for an imported archive. An older larder wrote the record twice, and may
    /// have been killed in between.
    fn correct_record(&self, arrived: &StagedTreeArchive) -> Result<(), Error> {
        let zip = arrived.origin.zip_origin();
        self.transfers.library.catalog.change_name(&arrived.package, |name| {
            let archive = name.archives.iter_mut().find(|archive| archive.digest == arrived.digest);
            if let Some(archive) =
                archive.filter(|archive| archive.proof.how == ProofBasis::Imported && zip == ZipOrigin::PackedAnew)
            {
                (archive.zip, archive.origin) = (zip, IMPORT_ORIGIN.to_owned());
            }
        })?;
        Ok(())
    }

    /// Stores an archive without proof, because the operator vouches for it.
    fn store_vouched(
        &mut self,
        arrived: StagedTreeArchive,
        hashes: PackageHashState,
        now: Timestamp,
        notes: &mut Vec<String>,
    ) -> Result<FileVerdict, Error> {
        let (package, digest) = (arrived.package.clone(), arrived.digest);
        let version = (package.provider.clone(), package.version.clone());
        let call = self.transfers.runtime.step_context(now);
        let archive = self.runtime.block_on(self.transfers.proof_sets.usable_set(&package, &call))?;
        let before = archive.map(|stored| stored.stored_set.current.document.shasum);
        if let Some(before) = before.filter(|before| *before != digest) {
            arrived.discard();
            let reason = format!("its SHA-256 is {digest}, but {before} was imported before; purge that first");
            return Ok(FileVerdict::Refused { why: reason });
        }
        if before == Some(digest) {
            match self.stored_state(&arrived)? {
                StoredState::Whole => {
                    arrived.discard();
                    self.vouched_for.insert(version);
                    return Ok(FileVerdict::Held);
                }
                StoredState::Damaged => notes.push(REPLACED_DAMAGED_NOTE.to_owned()),
                StoredState::Nothing => {}
            }
        }
        let reservation = match self.reserve_space(arrived.staged.written()) {
            Ok(reservation) => reservation,
            Err(error) => {
                arrived.discard();
                return Err(error);
            }
        };
        let upstream = Arc::clone(self.call.upstream(&package.provider.host)?);
        let set = unsigned_set(&package, digest, sums_of([(&package, digest)]), &upstream, now);
        let set = set.map_err(|reason| Error::Interrupted(format!("the proof set of {package}: {reason}")))?;
        let stored_set = self.runtime.block_on(self.transfers.proof_sets.keep_unsigned(&package, set, &call))?;
        let set = Arc::clone(&stored_set.current);
        if set.document.shasum != digest {
            arrived.discard();
            let reason =
                format!("its SHA-256 is {digest}, but a proof set stored meanwhile says {}", set.document.shasum);
            return Ok(FileVerdict::Refused { why: reason });
        }
        tracing::warn!(%package, %digest, "imported without signatures: the operator vouches for it");
        let is_unsigned = set.proof().how == ProofBasis::Imported;
        let verdict = match &arrived.origin {
            _ if !is_unsigned => FileVerdict::Proven { by: ProvenBy::HeldSet },
            ArchiveOrigin::FromTree => FileVerdict::Unsigned,
            ArchiveOrigin::Repacked { .. } => FileVerdict::PackedAnew,
        };
        // Only the existence of the version is recorded. Its digest is only the operator's word.
        self.transfers.library.histories.record_listed(
            &package.provider,
            std::slice::from_ref(&package.version),
            now,
        )?;
        self.commit_archive(&stored_set, &set, arrived, hashes, reservation, now)?;
        if is_unsigned {
            self.vouched_for.insert(version);
        }
        Ok(verdict)
    }

    /// The state of the stored archive, re-read from disk: an operator may import an archive because the stored one is
    /// damaged. A damaged one is quarantined.
    fn stored_state(&self, arrived: &StagedTreeArchive) -> Result<StoredState, Error> {
        let (transfers, digest) = (&self.transfers, &arrived.digest);
        if transfers.library.catalog.name(&arrived.package)?.get(digest).is_none() {
            return Ok(StoredState::Nothing);
        }
        let Some(blob) = default_if_gone(transfers.library.store.blobs.open(digest))? else {
            return Ok(StoredState::Nothing);
        };
        if unless_damaged(blob.fast_hash())? == Some(arrived.fast) {
            return Ok(StoredState::Whole);
        }
        let _lock = transfers.library.catalog.digest_lock(digest).lock();
        if transfers.library.store.blobs.quarantine_unless_replaced(digest, &blob)? {
            transfers.library.catalog.checked.lock().remove(digest);
            transfers.library.store.index.archive_gone(digest);
            transfers.runtime.counters.damaged(DamageFinding::Damaged);
        }
        Ok(StoredState::Damaged)
    }

    /// Reserves disk space for an archive. Others are evicted for it, unless larder is offline.
    fn reserve_space(&self, bytes: u64) -> Result<Reservation, Error> {
        let transfers = &self.transfers;
        if transfers.runtime.connectivity() == Connectivity::Offline {
            let (limit, stays) =
                (transfers.library.refresh_size_limit(), transfers.library.store.index.totals().bytes());
            if !transfers.library.has_room_for(bytes) {
                return Err(StoreError::NoRoom { needed: bytes, limit, unevictable: stays }.into());
            }
        }
        let mut reservation = transfers.library.reservation();
        self.runtime.block_on(transfers.library.reserve(&mut reservation, bytes))?;
        Ok(reservation)
    }

    fn commit_archive(
        &self,
        stored_set: &StoredProofSet,
        set: &ProofSet,
        arrived: StagedTreeArchive,
        hashes: PackageHashState,
        reservation: Reservation,
        now: Timestamp,
    ) -> Result<(), Error> {
        let StagedTreeArchive { package, staged, digest, fast, origin: made, .. } = arrived;
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, digest, set.document.shasum).map_err(|verdict| {
            Error::Unverified { subject: format!("the archive of {package}"), verdict: verdict.to_string() }
        })?;
        // Written once. A kill between two writes would leave a `zh:` that was never published.
        let archive = StoredArchive {
            hashes,
            zip: made.zip_origin(),
            origin: IMPORT_ORIGIN.to_owned(),
            ..StoredArchive::of_set(set, fast, size_bytes, now)
        };
        let library = &self.transfers.library;
        let record_proof = || library.sync_set(&package, stored_set, now).map(|()| true);
        library.commit(&package, archive, ArchiveBytes::Staged(Box::new(verified)), record_proof)?;
        drop(reservation);
        self.transfers.library.enforce_size_limit();
        Ok(())
    }

    /// Judges all waiting archives: at the end of a folder, or if disk space is short.
    pub(in crate::mirror) fn judge_waiting(&mut self) -> Result<(), ImportAbort> {
        while let Some(arrived) = self.waiting.pop_oldest() {
            self.judge_archive(arrived)?;
        }
        Ok(())
    }

    /// Queues an archive whose proof may follow. If too many wait, the oldest is judged.
    pub(in crate::mirror) fn enqueue(&mut self, arrived: StagedTreeArchive) -> Result<(), ImportAbort> {
        self.waiting.push(arrived);
        while let Some(arrived) = self.waiting.pop_excess() {
            self.judge_archive(arrived)?;
        }
        Ok(())
    }
}

/// Both `h1:` hashes of an archive, if it has any.
fn hashes_of(arrived: &StagedTreeArchive) -> Result<PackageHashState, StoreError> {
    if let ArchiveOrigin::Repacked { h1 } = &arrived.origin {
        return Ok(PackageHashState::Known { zip: h1.clone(), directory: h1.clone() });
    }
    Ok(match package_hashes(arrived.staged.file()?, PackageLimits::default()) {
        Ok(hashes) => PackageHashState::Known { zip: hashes.zip, directory: hashes.directory },
        Err(bad) => PackageHashState::Impossible { why: bad.to_string() },
    })
}
