//! Judges the archives of an imported tree, and stores or refuses them. Proof is looked for in this order: stored sets,
//! upstream, files beside the archive in the tree. The tree comes last because its author controls both.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::address::{Artifact, Package, PackageRef};
use crate::clock::Timestamp;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::filesystem_mirror::MirrorPath;
use crate::filesystem_mirror::index::ArchiveHashes;
use crate::mirror::library::damage::unless_damaged;
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet, UsableProofSet};
use crate::mirror::library::provider_history::Admission;
use crate::mirror::library::{PackageHashState, Recoverable, Reservation, Signer, StoredArchive, ZipOrigin};
use crate::mirror::request_context::JobRequest;
use crate::mirror::transfer::tree::import::{ImportAbort, StagedTreeArchive, TreeImport};
use crate::mirror::transfer::tree::local_sets::{SidecarProof, sums_of, unsigned_set};
use crate::mirror::transfer::tree::{FileVerdict, ImportedFile, ProvenBy, UnsignedPolicy};
use crate::mirror::{Connectivity, Library, RequestContext, Urgency, proof_sets};
use crate::store::StoreError;
use crate::upstream::backoff::Origin;
use crate::verify::{PackageLimits, ProofBasis, package_hashes};

/// Interval between two checks of an upstream's rate limit.
const RATE_LIMIT_POLL: Duration = Duration::from_millis(500);
/// Maximum wait for an upstream's rate limit.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(30);
/// The recorded origin of an archive that no upstream sent.
const IMPORT_ORIGIN: &str = "an import";
/// The note on a stored archive that was damaged.
const REPLACED_DAMAGED_NOTE: &str = "the stored archive was damaged: quarantined and replaced by this one";
/// The note on a key that only the tree vouches for.
const UNKNOWN_KEY_NOTE: &str = "signed by a key from the tree that never signed for this provider before";

enum ArchiveEvidence {
    /// The archive is stored already.
    AlreadyStored,
    /// A proof set names it.
    Proven(ArchiveProof),
    /// No proof exists, for this reason.
    NoProof(String),
    /// A proof set names other bytes, or the proof is invalid or could not be fetched.
    Contradicted(String),
}

/// The proof set that names an archive: `set`, as it is stored in `stored_set`.
struct ArchiveProof {
    proven_by: ProvenBy,
    stored_set: Arc<StoredProofSet>,
    set: Arc<ProofSet>,
}

/// Upstream's answer about a proof set.
enum UpstreamSet {
    Known(UsableProofSet),
    /// It was not asked, or has none, for this reason.
    None(String),
    Failed(Error),
}

/// The state of the stored archive with a given digest.
enum StoredState {
    Nothing,
    Whole,
    Damaged,
}

impl TreeImport {
    /// Judges a staged archive, then commits or discards it, and reports the verdict.
    pub(super) async fn judge_archive(&mut self, arrived: StagedTreeArchive) -> Result<(), ImportAbort> {
        let (file, package, size_bytes) =
            (arrived.file.clone(), PackageRef::from(&arrived.package), arrived.stage.written());
        let artifact = Artifact::from(&arrived.package);
        self.affected_providers.insert(arrived.package.provider.clone());
        let mut notes = Vec::new();
        // Boxed, as are its parts: together they are too large for the stack of a worker.
        let judged = match Box::pin(self.judge(arrived, &mut notes)).await {
            Ok(verdict @ FileVerdict::Refused { .. }) => verdict,
            Ok(verdict) => match self.transfers.library.require_kept(&artifact) {
                Ok(()) => verdict,
                Err(owed) => FileVerdict::Refused { why: owed.to_string() },
            },
            Err(Error::Store(error)) => return Err(ImportAbort::store_failed_at(&file)(error)),
            Err(error) => FileVerdict::Refused { why: error.to_string() },
        };
        self.report(ImportedFile { file, package: Some(package), size_bytes, judged, notes }).await
    }

    async fn judge(&mut self, arrived: StagedTreeArchive, notes: &mut Vec<String>) -> Result<FileVerdict, Error> {
        let (package, digest) = (arrived.package.clone(), arrived.digest);
        let call = self.transfers.runtime.step_context(Urgency::Job, self.call.present());
        let documents = &self.transfers.proof_sets.documents;
        documents.access_to(&(&package.provider).into(), &call).await?.permit_to_store(&package.version)?;
        let evidence = match &arrived.repacked_h1 {
            Some(h1) => Box::pin(self.find_unpacked_evidence(&package, h1, notes, &call)).await?,
            None if self.proven.get(&package).is_some_and(|proven| *proven != digest) => {
                let reason = "another file in the tree is verified for this package, with other bytes";
                ArchiveEvidence::Contradicted(reason.to_owned())
            }
            None => Box::pin(self.find_evidence(&package, digest, notes, &call)).await?,
        };
        match evidence {
            ArchiveEvidence::Contradicted(reason) => Ok(FileVerdict::Refused { why: reason }),
            ArchiveEvidence::AlreadyStored => self.already_stored(&arrived).await,
            ArchiveEvidence::Proven(proof) => Box::pin(self.store_proven(arrived, proof, notes, &call)).await,
            ArchiveEvidence::NoProof(reason) => Box::pin(self.store_vouched(arrived, &reason, notes, &call)).await,
        }
    }

    /// Finds the evidence for an archive of the tree.
    async fn find_evidence(
        &mut self,
        package: &Package,
        digest: Digest,
        notes: &mut Vec<String>,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let stored = self.transfers.proof_sets.usable_set(package, call).await?.filter(is_proven);
        if let Some(stored) = &stored {
            if let Some(proof) = proof_in(stored, digest, ProvenBy::HeldSet) {
                return Ok(ArchiveEvidence::Proven(proof));
            }
            if self.transfers.runtime.connectivity() == Connectivity::Offline {
                return Ok(contradicting_set(digest, stored, "the stored"));
            }
        }
        let unproven = match self.upstream_set(package, call).await? {
            UpstreamSet::Known(set) => {
                let proof = proof_in(&set, digest, ProvenBy::Upstream).map(ArchiveEvidence::Proven);
                return Ok(proof.unwrap_or_else(|| contradicting_set(digest, &set, "upstream's")));
            }
            UpstreamSet::Failed(error @ (Error::Unverified { .. } | Error::Unaccepted { .. })) => {
                return Ok(ArchiveEvidence::Contradicted(error.to_string()));
            }
            UpstreamSet::Failed(error) => Err(error),
            UpstreamSet::None(reason) => Ok(reason),
        };
        Ok(match (self.evidence_in_tree(package, digest, notes, call).await?, unproven) {
            (ArchiveEvidence::NoProof(_), Err(error)) => ArchiveEvidence::Contradicted(upstream_unavailable(&error)),
            (ArchiveEvidence::NoProof(tree_reason), Ok(reason)) => {
                ArchiveEvidence::NoProof(format!("{reason}, and {tree_reason}"))
            }
            (evidence, _) => evidence,
        })
    }

    /// Finds the evidence about an unpacked package with this `h1:`. If a proven archive exists here or upstream, the
    /// unpacked files are refused: storing them would bypass its proof.
    async fn find_unpacked_evidence(
        &mut self,
        package: &Package,
        h1: &str,
        notes: &mut Vec<String>,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let library = &self.transfers.library;
        let owned_package = package.clone();
        let hashes = library.on_disk(move |library| library.intact_package_hashes(&owned_package)).await?;
        if hashes.iter().any(|stored| stored == h1) {
            notes.push("its files equal those of the stored archive".to_owned());
            return Ok(ArchiveEvidence::AlreadyStored);
        }
        let contradicted = |reason: String| Ok(ArchiveEvidence::Contradicted(reason));
        if let Some(other) = hashes.first() {
            return contradicted(format!("its files have {h1}, but those of the stored archive have {other}"));
        }
        let warm_command = format!("run `larder warm {}@{}`", package.provider, package.version);
        if self.transfers.proof_sets.usable_set(package, call).await?.is_some_and(|stored| is_proven(&stored)) {
            let reason = "a stored proof set covers its published archive, not unpacked files";
            return contradicted(format!("{reason}; import that archive, or {warm_command}"));
        }
        let unproven = match self.upstream_set(package, call).await? {
            UpstreamSet::Known(_) => {
                let reason = "upstream's proof set covers the published archive, not unpacked files";
                return contradicted(format!("{reason}; {warm_command}"));
            }
            UpstreamSet::Failed(error) => return contradicted(upstream_unavailable(&error)),
            UpstreamSet::None(reason) => reason,
        };
        let owned_package = package.clone();
        let proven = library.on_disk(move |library| library.histories.digests_of(&owned_package)).await?;
        if matches!(proven, Recoverable::Lost(_)) {
            return contradicted(record_lost(package));
        }
        if let Some(proven) = proven.into_value().first() {
            let reason =
                format!("its archive was verified here before, with SHA-256 {proven}, but is no longer stored");
            return contradicted(format!("{reason}; import that archive, or {warm_command}"));
        }
        Ok(ArchiveEvidence::NoProof(format!("{unproven}, and no signature covers unpacked files")))
    }

    /// Fetches the proof set from upstream.
    async fn upstream_set(&self, package: &Package, call: &RequestContext) -> Result<UpstreamSet, Error> {
        if self.transfers.runtime.connectivity() == Connectivity::Offline {
            return Ok(UpstreamSet::None("this mirror is offline, so upstream cannot be asked".to_owned()));
        }
        match Box::pin(self.fetch_upstream_set(package, call)).await {
            Ok(Some(set)) => Ok(UpstreamSet::Known(set)),
            Ok(None) | Err(Error::NotFound(_)) => {
                Ok(UpstreamSet::None(format!("{} does not know it", package.provider.host)))
            }
            Err(Error::Store(error)) => Err(error.into()),
            Err(error) => Ok(UpstreamSet::Failed(error)),
        }
    }

    async fn fetch_upstream_set(
        &self,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Option<UsableProofSet>, Error> {
        let (runtime, proof_sets) = (&self.transfers.runtime, &self.transfers.proof_sets);
        let (host, subject) = (&package.provider.host, proof_sets::describe_set(package));
        let origins = [Origin::of(&call.upstream(host)?.settings.url)];
        let request = JobRequest { runtime, subject: &subject, host, origins: &origins, call };
        let give_up = Instant::now() + MAX_RATE_LIMIT_WAIT;
        loop {
            match request.charge(proof_sets::REQUESTS_PER_SET) {
                Ok(()) => break,
                Err(Error::RevalidationSkipped(_)) if Instant::now() < give_up => sleep(RATE_LIMIT_POLL).await,
                // An operator waits for the verdict. A backoff of upstream may last minutes, so it is an error.
                Err(error) => return Err(error),
            }
        }
        let call = runtime.step_context(Urgency::Job, call.present());
        proof_sets.proof_set(package, &call).await?;
        Ok(proof_sets.usable_set(package, &call).await?.filter(is_proven))
    }

    /// The evidence of the files in the tree and of the first-seen record.
    async fn evidence_in_tree(
        &mut self,
        package: &Package,
        digest: Digest,
        notes: &mut Vec<String>,
        call: &RequestContext,
    ) -> Result<ArchiveEvidence, Error> {
        let contradicted = |reason: String| Ok(ArchiveEvidence::Contradicted(reason));
        let no_proof = |reason: String| Ok(ArchiveEvidence::NoProof(reason));
        let library = &self.transfers.library;
        let set = match self.sidecars.find_proof(package, call.upstream(&package.provider.host)?, call.now) {
            SidecarProof::Signed(set) => set,
            SidecarProof::Bad(reason) => {
                return contradicted(format!("the proof files next to it do not verify: {reason}"));
            }
            SidecarProof::None => {
                let owned_package = package.clone();
                match library.on_disk(move |library| library.histories.digests_of(&owned_package)).await? {
                    Recoverable::Lost(_) => return contradicted(record_lost(package)),
                    Recoverable::Available(proven) if !proven.is_empty() && !proven.contains(&digest) => {
                        return contradicted(format!(
                            "its SHA-256 is {digest}, but verified sums of this version list {}",
                            proven[0]
                        ));
                    }
                    Recoverable::Available(_) | Recoverable::Absent => {}
                }
                return match self.sidecars.listed_digest(package, &MirrorPath::archive(package).name_of_file()) {
                    Some(listed) if listed != digest => {
                        contradicted(format!("its SHA-256 is {digest}, but the SHA256SUMS beside it says {listed}"))
                    }
                    _ => no_proof("no signed proof set is beside it".to_owned()),
                };
            }
        };
        if set.document.shasum != digest {
            let proven = set.document.shasum;
            return contradicted(format!("its SHA-256 is {digest}, but the signed proof set next to it says {proven}"));
        }
        // The author of the tree may have made the key too. A key counts only if it is in the provider's log, or if the
        // operator vouches for it.
        let Some(key) = set.proof().how.fingerprint().map(str::to_owned) else {
            return no_proof("the sums next to it are unsigned".to_owned());
        };
        let provider = package.provider.clone();
        let known = library.on_disk(move |library| library.histories.keys_of(&provider)).await?;
        let mut more_notes = set.proof().warnings.clone();
        let signer = match self.unsigned {
            _ if known.is_some_and(|log| log.contains(&key)) => Signer::Key(key),
            UnsignedPolicy::Refused => return no_proof(format!("it is {UNKNOWN_KEY_NOTE}: {key}")),
            UnsignedPolicy::Allowed => {
                more_notes.push(format!("{UNKNOWN_KEY_NOTE}: {key}"));
                // Stored on the operator's word. The key is not added to the provider's log.
                Signer::NotChecked
            }
        };
        match library.admit(package, &set, signer, call.now).await? {
            Ok(Admission::Consistent | Admission::Changed(_)) => {}
            Ok(Admission::HistoryUnavailable) => return Err(StoreError::Unavailable.into()),
            Err(refusal) => return contradicted(refusal.error(package, &set, refusal.to_string(), None).to_string()),
        }
        notes.append(&mut more_notes);
        // Stale at once, because upstream did not confirm it.
        let stored = self.transfers.proof_sets.store_set(package, *set, Timestamp(0), call.now).await?;
        let set = Arc::clone(&stored.value.current);
        Ok(ArchiveEvidence::Proven(ArchiveProof { proven_by: ProvenBy::Tree, stored_set: stored.value, set }))
    }

    /// Stores an archive that a proof set names, unless it is stored.
    async fn store_proven(
        &mut self,
        arrived: StagedTreeArchive,
        proof: ArchiveProof,
        notes: &mut Vec<String>,
        call: &RequestContext,
    ) -> Result<FileVerdict, Error> {
        match self.stored_state(&arrived).await? {
            StoredState::Whole => return self.already_stored(&arrived).await,
            StoredState::Damaged => notes.push(REPLACED_DAMAGED_NOTE.to_owned()),
            StoredState::Nothing => {}
        }
        let hashes = self.hashes_of(&arrived).await?;
        notes.extend(
            self.index_contradiction(&arrived, &hashes).map(|reason| format!("{reason}; it is verified nevertheless")),
        );
        let reservation = self.reserve_bytes(arrived.stage.written()).await?;
        let (package, proven_by) = (arrived.package.clone(), proof.proven_by);
        tracing::info!(%package, ?proven_by, "an archive of a tree is verified and stored");
        self.proven.insert(package, arrived.digest);
        self.commit_archive(proof, arrived, hashes, reservation, call.now).await?;
        Ok(FileVerdict::Proven { by: proven_by })
    }

    /// Stores an archive without proof, if the operator vouches for it. `reason` says why it has none.
    async fn store_vouched(
        &mut self,
        arrived: StagedTreeArchive,
        reason: &str,
        notes: &mut Vec<String>,
        call: &RequestContext,
    ) -> Result<FileVerdict, Error> {
        let refused = |reason: String| Ok(FileVerdict::Refused { why: reason });
        let (package, digest) = (arrived.package.clone(), arrived.digest);
        if self.unsigned == UnsignedPolicy::Refused {
            return refused(format!("it is not verified: {reason}; --unsigned imports it on your word"));
        }
        // Readers of a tree disagree on which of the two files counts.
        let is_conflicting = |waiting: &StagedTreeArchive| {
            waiting.repacked_h1.is_none() && waiting.package == package && waiting.digest != digest
        };
        if self.waiting.iter().any(is_conflicting) {
            self.disputed.insert(package.clone());
        }
        if self.disputed.contains(&package) {
            let reason = "another file in the tree has other bytes for this package, and neither is verified";
            return refused(reason.to_owned());
        }
        let hashes = self.hashes_of(&arrived).await?;
        if let Some(reason) = self.index_contradiction(&arrived, &hashes) {
            return refused(reason);
        }
        if let PackageHashState::Impossible { why: reason } = &hashes {
            return refused(format!("no client could install it: {reason}"));
        }
        let transfers = Arc::clone(&self.transfers);
        let before = transfers.proof_sets.usable_set(&package, call).await?;
        match before.map(|stored| stored.stored_set.current.document.shasum) {
            Some(before) if before != digest => {
                return refused(format!("its SHA-256 is {digest}, but {before} was imported before; purge that first"));
            }
            Some(_) => match self.stored_state(&arrived).await? {
                StoredState::Whole => {
                    self.vouch_for(&package);
                    return Ok(FileVerdict::Held);
                }
                StoredState::Damaged => notes.push(REPLACED_DAMAGED_NOTE.to_owned()),
                StoredState::Nothing => {}
            },
            None => {}
        }
        let reservation = self.reserve_bytes(arrived.stage.written()).await?;
        let upstream = self.call.upstream(&package.provider.host)?;
        let set = unsigned_set(&package, digest, sums_of([(&package, digest)]), upstream, call.now)?;
        let stored_set = transfers.proof_sets.keep_unsigned(&package, set, call).await?;
        let set = Arc::clone(&stored_set.current);
        if set.document.shasum != digest {
            let stored = set.document.shasum;
            return refused(format!("its SHA-256 is {digest}, but a proof set stored meanwhile says {stored}"));
        }
        tracing::warn!(%package, %digest, "imported without signatures: the operator vouches for it");
        let is_unsigned = set.proof().how == ProofBasis::Imported;
        let verdict = match arrived.zip_origin() {
            _ if !is_unsigned => FileVerdict::Proven { by: ProvenBy::HeldSet },
            ZipOrigin::Published => FileVerdict::Unsigned,
            ZipOrigin::PackedAnew => FileVerdict::PackedAnew,
        };
        if is_unsigned {
            self.vouch_for(&package);
        }
        let now = call.now;
        let record_version = move |library: &Library| library.record_import(&package.provider, &package.version, now);
        transfers.library.on_disk(record_version).await?;
        let proof = ArchiveProof { proven_by: ProvenBy::HeldSet, stored_set, set };
        self.commit_archive(proof, arrived, hashes, reservation, call.now).await?;
        Ok(verdict)
    }

    fn vouch_for(&mut self, package: &Package) {
        self.vouched_for.entry(package.provider.clone()).or_default().insert(package.version.clone());
    }

    /// Reports an archive as stored, after its record is corrected: an older larder wrote the record of an import twice,
    /// and may have been killed in between. The documents of an import that was killed are completed at the end.
    async fn already_stored(&mut self, arrived: &StagedTreeArchive) -> Result<FileVerdict, Error> {
        let (package, digest, zip) = (arrived.package.clone(), arrived.digest, arrived.zip_origin());
        if self.transfers.library.was_imported(&package).await? {
            self.vouch_for(&package);
        }
        let correcting = self.transfers.library.on_disk(move |library| {
            library.change_archive(&package, &digest, |archive| {
                if archive.proof.how == ProofBasis::Imported && zip == ZipOrigin::PackedAnew {
                    (archive.zip, archive.origin) = (zip, IMPORT_ORIGIN.to_owned());
                }
            })
        });
        correcting.await?;
        Ok(FileVerdict::Held)
    }

    /// The reason that `VERSION.json` beside the archive contradicts it, if it does.
    fn index_contradiction(&self, arrived: &StagedTreeArchive, hashes: &PackageHashState) -> Option<String> {
        let Package { version, platform, .. } = &arrived.package;
        let name = format!("{version}.json");
        let index = match self.sidecars.version_index(version)? {
            Ok(index) => index,
            Err(reason) => return Some(format!("{name} beside it cannot be read: {reason}")),
        };
        let is_accepted = match (&arrived.repacked_h1, hashes) {
            (Some(h1), _) => index.accepts_h1(platform, h1),
            (None, PackageHashState::Known { zip, .. }) => {
                index.accepts(platform, &ArchiveHashes { digest: arrived.digest, h1: Some(zip.clone()) })
            }
            (None, _) => index.accepts(platform, &ArchiveHashes { digest: arrived.digest, h1: None }),
        };
        (!is_accepted)
            .then(|| format!("{name} beside it lists other hashes: one of the two was changed since they were made"))
    }

    /// Both `h1:` hashes of an archive, if it has any.
    async fn hashes_of(&self, arrived: &StagedTreeArchive) -> Result<PackageHashState, Error> {
        if let Some(h1) = &arrived.repacked_h1 {
            return Ok(PackageHashState::Known { zip: h1.clone(), directory: h1.clone() });
        }
        let file = arrived.stage.file()?;
        let hashing = self.transfers.library.on_disk(move |_| Ok(package_hashes(file, PackageLimits::default())));
        Ok(match hashing.await? {
            Ok(hashes) => PackageHashState::Known { zip: hashes.zip, directory: hashes.directory },
            Err(bad) => PackageHashState::Impossible { why: bad.to_string() },
        })
    }

    async fn stored_state(&self, arrived: &StagedTreeArchive) -> Result<StoredState, Error> {
        let (package, digest, fast) = (arrived.package.clone(), arrived.digest, arrived.fast);
        self.transfers.library.on_disk(move |library| library.stored_state(&package, digest, fast)).await
    }

    /// Reserves disk space for an archive. Others are evicted for it, unless larder is offline.
    async fn reserve_bytes(&self, bytes: u64) -> Result<Reservation, Error> {
        let library = &self.transfers.library;
        if self.transfers.runtime.connectivity() == Connectivity::Offline {
            let check_room = move |library: &Library| {
                let (limit, unevictable) = (library.refresh_size_limit(), library.totals().bytes());
                let no_room = StoreError::NoRoom { needed: bytes, limit, unevictable };
                library.has_room_for(bytes).then_some(()).ok_or(no_room)
            };
            library.on_disk(check_room).await?;
        }
        let mut reservation = library.reservation();
        library.reserve(&mut reservation, bytes).await?;
        Ok(reservation)
    }

    async fn commit_archive(
        &self,
        ArchiveProof { stored_set, set, .. }: ArchiveProof,
        arrived: StagedTreeArchive,
        hashes: PackageHashState,
        reservation: Reservation,
        now: Timestamp,
    ) -> Result<(), Error> {
        let zip = arrived.zip_origin();
        let StagedTreeArchive { package, stage, fast, .. } = arrived;
        let size_bytes = stage.written();
        let bytes = stage.verify(set.document.shasum).map_err(|verdict| Error::Unverified {
            subject: format!("the archive of {package}"),
            verdict: verdict.to_string(),
            instead: None,
        })?;
        // Written once. A kill between two writes would leave a `zh:` that was never published.
        let archive =
            StoredArchive { hashes, zip, origin: IMPORT_ORIGIN.to_owned(), ..set.named_archive(fast, size_bytes, now) };
        let committing = self.transfers.library.on_disk(move |library| {
            let record_proof = || library.sync_set(&package, &stored_set, now).map(|()| true);
            library.commit(&package, archive, bytes, record_proof)?;
            drop(reservation);
            library.enforce_size_limit();
            Ok(())
        });
        committing.await
    }
}

impl Library {
    /// The state of a stored archive, re-read from disk: an operator may import an archive because the stored one is
    /// damaged. A damaged one is quarantined.
    fn stored_state(&self, package: &Package, digest: Digest, fast: FastHash) -> Result<StoredState, StoreError> {
        if !self.is_stored(package, &digest)? {
            return Ok(StoredState::Nothing);
        }
        let Some(blob) = default_if_store_unavailable(self.open_file(&digest))? else {
            return Ok(StoredState::Nothing);
        };
        if unless_damaged(blob.fast_hash())? == Some(fast) {
            return Ok(StoredState::Whole);
        }
        self.set_aside(&digest, &blob)?;
        Ok(StoredState::Damaged)
    }

    /// The directory `h1:` of each stored archive of a package that is not damaged.
    fn intact_package_hashes(&self, package: &Package) -> Result<Vec<String>, StoreError> {
        let mut known = Vec::new();
        for archive in self.catalog.name_record(package)?.archives {
            let Some(blob) = default_if_store_unavailable(self.open_file(&archive.digest))? else { continue };
            if unless_damaged(blob.fast_hash())? != Some(archive.fast) {
                continue;
            }
            if archive.hashes == PackageHashState::NotYet {
                self.compute_hashes(package, &archive.digest)?;
            }
            let now = self.catalog.name_record(package)?.get(&archive.digest).map(|archive| archive.hashes.clone());
            if let Some(PackageHashState::Known { directory, .. }) = now {
                known.push(directory);
            }
        }
        Ok(known)
    }
}

fn is_proven(stored: &UsableProofSet) -> bool {
    stored.stored_set.current.proof().how != ProofBasis::Imported
}

/// Proof may have existed, so a lost record must not make the archive acceptable as unproven.
fn record_lost(package: &Package) -> String {
    let Package { provider, version, .. } = package;
    format!(
        "its first-seen record is damaged, so its verified digests are unknown; `larder accept {provider}@{version}` accepts upstream's version"
    )
}

/// A failed request to upstream must not make the archive acceptable as unproven.
fn upstream_unavailable(error: &Error) -> String {
    let when = match error {
        Error::HeldBack { until, .. } => format!("try again after {}", until.date_time()),
        _ => "try again".to_owned(),
    };
    format!("upstream could not be asked: {error}; {when}, or import it into an offline larder")
}

/// The stored set that names this archive.
fn proof_in(stored: &UsableProofSet, digest: Digest, proven_by: ProvenBy) -> Option<ArchiveProof> {
    let sets = [Some(&stored.stored_set.current), stored.fallback.as_ref()];
    let set = sets.into_iter().flatten().find(|set| set.document.shasum == digest)?;
    Some(ArchiveProof { proven_by, stored_set: Arc::clone(&stored.stored_set), set: Arc::clone(set) })
}

fn contradicting_set(digest: Digest, stored: &UsableProofSet, owner: &str) -> ArchiveEvidence {
    let proven = stored.stored_set.current.document.shasum;
    ArchiveEvidence::Contradicted(format!("its SHA-256 is {digest}, but {owner} proof set says {proven}"))
}
