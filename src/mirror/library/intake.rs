//! The commit order of a verified archive, and the `h1:` hashes that are computed afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use crate::address::{Artifact, ModulePackage, Package};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::library::damage::unless_damaged;
use crate::mirror::library::fill_progress::FillProgress;
use crate::mirror::library::module_history::{self, ComparisonPurpose, ModuleTree};
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::mirror::library::{PackageHashState, Reservation, StoredArchive, ZipOrigin};
use crate::store::{Durability, IndexEntry, IndexedName, Intake, Key, ResumeNote, Staged, StoreError};
use crate::verify::{PackageLimits, PackedTree, ProofBasis, Verified, package_hashes};

/// The most provider zips unpacked at a time for their `h1:`. An import adds one.
pub(super) const MAX_CONCURRENT_HASHING: usize = 2;

impl Library {
    /// Commits a verified archive, each step durable where the larder keeps it: the bytes, the record that proves them, the name. Before
    /// any lock is taken, the bytes are secured where the larder keeps them; if that place refuses them, a receipt of this machine
    /// stands for the name until they are sent.
    /// Only now is the archive committed, and the index is updated (promise 9). No other code has this order.
    ///
    /// `record_proof` writes the record that proves the archive. It returns false where a newer one is stored: then the
    /// archive gets no name, and the result is `None`.
    pub fn commit(
        &self,
        artifact: impl Into<Artifact>,
        archive: StoredArchive,
        bytes: ArchiveBytes,
        record_proof: impl FnOnce() -> Result<bool, StoreError>,
    ) -> Result<Option<StoredArchive>, StoreError> {
        let (digest, size_bytes, now) = (archive.digest, archive.size_bytes, archive.stored_at);
        let refusal = match self.secure(&digest, &bytes) {
            Ok(()) => None,
            Err(refusal @ StoreError::Bucket { .. }) if self.may_owe(&digest, size_bytes) => Some(refusal),
            Err(refusal @ StoreError::Bucket { .. }) => {
                // Nothing else would remove it before a day has passed, however many there are.
                bytes.discard()?;
                return Err(refusal);
            }
            Err(error) => return Err(error),
        };
        let _lock = self.catalog.digest_lock(&digest).lock();
        let is_new = match bytes {
            ArchiveBytes::Staged(verified) | ArchiveBytes::Arrived(verified, _) => {
                let is_copy = self.shared_archives().is_some() && refusal.is_none();
                self.publish(*verified, if is_copy { Durability::Copy } else { Durability::Synced })?;
                true
            }
            ArchiveBytes::Stored => false,
        };
        let named = self.name_proven(&artifact.into(), archive, record_proof, refusal);
        if is_new && !matches!(named, Ok(Some(_))) {
            // The blob is stored without a name. Eviction only finds it if it is in the index.
            self.store.local.index.archive_stored(&digest, size_bytes, now);
        }
        named
    }

    /// Secures the bytes of an archive where the larder keeps them. Where that is not this machine, the disk writes them meanwhile.
    fn secure(&self, digest: &Digest, bytes: &ArchiveBytes) -> Result<(), StoreError> {
        thread::scope(|threads| {
            if let (Some(_), ArchiveBytes::Arrived(staged, _) | ArchiveBytes::Staged(staged)) =
                (self.shared_archives(), bytes)
            {
                let sync = staged.value().sync();
                // Without a thread the bytes are synced when they are published, where a failure is reported, too.
                let _ = thread::Builder::new().name("write-back".into()).spawn_scoped(threads, move || sync.run());
            }
            match bytes {
                ArchiveBytes::Arrived(verified, intake) => intake.secure(&**verified),
                ArchiveBytes::Staged(verified) => self.intake(*digest).secure(&**verified),
                ArchiveBytes::Stored => self.secure_stored(digest),
            }
        })
    }

    /// Begins to keep an archive of this digest, while it arrives.
    pub fn intake(&self, digest: Digest) -> Arc<dyn Intake> {
        self.store.archives.intake(digest)
    }

    /// Names an archive once its proof is recorded, or writes its receipt where all replicas' place has refused it. The caller holds
    /// its digest lock.
    fn name_proven(
        &self,
        artifact: &Artifact,
        archive: StoredArchive,
        record_proof: impl FnOnce() -> Result<bool, StoreError>,
        refusal: Option<StoreError>,
    ) -> Result<Option<StoredArchive>, StoreError> {
        if !record_proof()? {
            return Ok(None);
        }
        if let Some(refusal) = refusal {
            return self.owe(artifact, archive, refusal);
        }
        // A replaced archive remains for clients that got its digest; it is no longer current.
        self.catalog.change_name_record(artifact, |name| name.put(archive.clone()))?;
        self.store.local.index.archive_stored(&archive.digest, archive.size_bytes, archive.stored_at);
        Ok(Some(archive))
    }

    /// Syncs the proof set of a package, and writes `stored_set` where none is stored.
    pub fn sync_set(&self, package: &Package, stored_set: &StoredProofSet, now: Timestamp) -> Result<(), StoreError> {
        let key = Key::ProofSet(package.clone());
        while !self.store.records.sync(&key)? {
            // Without evicting: this runs under a digest lock.
            self.store.records.change(&key, |step| {
                if step.read(&key)?.intact().is_none() {
                    step.put(&key, stored_set.write(), Durability::Synced, IndexEntry::Document(now));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Adopts an archive whose bytes are already stored: under another name, or from before a crash.
    pub async fn adopt(
        self: &Arc<Self>,
        package: &Package,
        stored_set: &Arc<StoredProofSet>,
        set: &Arc<ProofSet>,
        now: Timestamp,
    ) -> Result<Option<FillProgress>, Error> {
        let (package, stored_set, set) = (package.clone(), Arc::clone(stored_set), Arc::clone(set));
        self.on_disk(move |library| {
            let digest = set.document.shasum;
            // After the database forgot it, only a new upload gives it a name again.
            let refusal = match library.secure_stored(&digest) {
                Ok(()) => None,
                Err(refusal @ StoreError::Bucket { .. }) => Some(refusal),
                Err(error) => return Err(error),
            };
            let _lock = library.catalog.digest_lock(&digest).lock();
            let Some(blob) = library.store.local.archives.open(&digest)? else { return Ok(None) };
            let hashes = unless_damaged(blob.hashes())?;
            let Some((_, fast)) = hashes.filter(|(actual, _)| *actual == digest) else {
                library.store.local.archives.quarantine(&digest)?;
                library.forget_file(&digest);
                return Ok(None);
            };
            let size_bytes = blob.size_bytes();
            let mut archive = set.named_archive(fast, size_bytes, now);
            if archive.proof.how == ProofBasis::Imported {
                // It may have been imported as something else than a zip, so only its `h1:` is certain to be the
                // publisher's.
                archive.zip = ZipOrigin::PackedAnew;
            }
            let record_proof = || library.sync_set(&package, &stored_set, now).map(|()| true);
            Ok(Some(match library.name_proven(&(&package).into(), archive.clone(), record_proof, refusal) {
                Ok(_) => FillProgress::Committed { bytes: None, archive: Box::new(archive) },
                Err(reason) => FillProgress::NotStored { bytes: blob.bytes(), size_bytes, error: reason },
            }))
        })
        .await
    }

    /// Computes both `h1:` of a stored archive. After a failure, the next start tries again.
    pub async fn complete_hashes_of(self: &Arc<Self>, package: Package, digest: Digest) {
        if let Err(error) = self.compute_hashes_queued(&package, digest).await {
            tracing::error!(%package, %error, "the h1 hashes of an archive could not be computed");
        }
    }

    /// Computes both `h1:` of a stored archive once a permit is free, unless they are known by then.
    ///
    /// # Errors
    /// The store failed.
    async fn compute_hashes_queued(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<(), Error> {
        let (library, owned_package) = (Arc::clone(self), package.clone());
        let computed = self.work.hashing_limit.run(&self.runtime.tasks, move || {
            let is_known =
                |archive: &StoredArchive| archive.digest == digest && archive.hashes != PackageHashState::NotYet;
            if library.catalog.name_record(&owned_package)?.archives.iter().any(is_known) {
                return Ok(());
            }
            library.compute_hashes(&owned_package, &digest)
        });
        match computed.await {
            Some(computed) => Ok(computed?),
            None => Err(Error::Interrupted(format!("the h1 hashes of {package}"))),
        }
    }

    /// Computes both `h1:` of a stored archive without a permit: for imports, of which one runs at a time.
    pub fn compute_hashes(&self, package: &Package, digest: &Digest) -> Result<(), StoreError> {
        let Some(blob) = self.store.local.archives.open(digest)? else { return Ok(()) };
        let hashes = match package_hashes(blob.reader(), PackageLimits::default()) {
            Ok(hashes) => hashes.into(),
            Err(bad) => PackageHashState::Impossible { why: bad.to_string() },
        };
        if let PackageHashState::Impossible { why: reason } = &hashes {
            tracing::error!(%package, reason, "a verified archive is not a zip that a client could install; it has no h1");
        }
        self.change_archive(package, digest, |archive| archive.hashes.clone_from(&hashes))
    }

    /// Computes the `h1:` hashes that an earlier run did not complete, one archive at a time.
    pub async fn complete_hashes(self: &Arc<Self>) -> Result<(), Error> {
        let without = self.on_complete_index(|library| {
            let lacking = |artifact, name: IndexedName| match artifact {
                Artifact::Provider(package) => {
                    let digests = name.archives.into_iter().filter(|listed| listed.lacks_hashes);
                    let digests: Vec<Digest> = digests.map(|listed| listed.digest).collect();
                    (!digests.is_empty()).then_some((package, digests))
                }
                Artifact::Module(_) => None,
            };
            library.store.records.names(lacking)
        });
        for (package, digests) in without.await? {
            for digest in digests {
                self.complete_hashes_of(package.clone(), digest).await;
            }
        }
        for (package, digest) in self.catalog.owed.without_hashes() {
            self.complete_hashes_of(package, digest).await;
        }
        Ok(())
    }

    /// Commits a packed archive in this order, each step durable: first-seen record, blob, name. Only then the index is
    /// updated (promise 9).
    pub fn commit_module(
        &self,
        package: &ModulePackage,
        key: &ModulePackage,
        packed: PackedArchive,
        expectation: TreeExpectation,
        now: Timestamp,
    ) -> Result<Result<StoredArchive, Error>, StoreError> {
        let PackedArchive { staged, tree, origin } = packed;
        let command = format!("`larder accept {key}`");
        let judged = match expectation {
            TreeExpectation::FirstSeen => {
                let comparison = module_history::compare(self, key, &tree, ComparisonPurpose::Store)?;
                self.require_first_seen_tree(package, key, &tree, comparison, &command)
            }
            TreeExpectation::Decided(decided) if decided.is_same_module(&tree.packed) => {
                Ok(module_history::accept(self, key, &tree)?)
            }
            TreeExpectation::Decided(decided) => {
                let (now, decided) = (tree.packed.tree_digest, decided.tree_digest);
                let verdict = format!("its tree has digest {now} by now, and {decided} was accepted");
                Err(Error::Unaccepted { subject: format!("the archive of {package}"), verdict, command, instead: None })
            }
        };
        if let Err(refused) = judged {
            staged.discard()?;
            return Ok(Err(refused));
        }
        self.resolve_tree_alarms(key);
        let (digest, fast) = staged.hashes();
        let size_bytes = staged.written();
        let Ok(verified) = Verified::by_digest(staged, digest, digest) else {
            return Ok(Err(Error::Interrupted(format!("the archive of {package}"))));
        };
        let archive = StoredArchive::of_tree(tree.packed.clone(), digest, fast, size_bytes, origin, now)?;
        self.commit(key, archive.clone(), ArchiveBytes::Staged(Box::new(verified)), || Ok(true))?;
        self.enforce_size_limit();
        Ok(Ok(archive))
    }

    /// Reserves `bytes` in total and records the note for a resume. The inner result reports a lack of space.
    pub async fn reserve_staging_space(
        self: &Arc<Self>,
        reservation: &mut Reservation,
        mut staged: Staged,
        note: ResumeNote,
        bytes: u64,
    ) -> Result<(Staged, Result<(), StoreError>), Error> {
        match self.reserve(reservation, bytes).await {
            Ok(()) => {}
            Err(Error::Store(no_room)) => return Ok((staged, Err(no_room))),
            Err(error) => return Err(error),
        }
        self.on_disk(move |library| {
            let remembered = match staged.remember(note.clone(), bytes) {
                Err(full) if full.is_full() => {
                    let missing = bytes.saturating_sub(staged.written());
                    library.free_disk_space(missing, &full).and_then(|()| staged.remember(note, bytes))
                }
                remembered => remembered,
            };
            Ok((staged, remembered))
        })
        .await
    }

    /// Returns the `h1:` that a client computes of a stored zip; `None` if it is not a zip that has one.
    ///
    /// # Errors
    /// The disk failed, or neither the archive nor its hashes are there.
    pub async fn package_hash(self: &Arc<Self>, package: &Package, digest: Digest) -> Result<Option<String>, Error> {
        match self.package_hashes(package, digest).await? {
            PackageHashState::Known { zip, .. } => Ok(Some(zip)),
            PackageHashState::Impossible { .. } => Ok(None),
            PackageHashState::NotYet => Err(self.not_stored_error(&format!("the archive of {package}")).await),
        }
    }

    /// Returns both `h1:` hashes of an archive that is stored, or was once. Those of a stored archive are computed if they are
    /// not yet.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn package_hashes(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
    ) -> Result<PackageHashState, Error> {
        let stored = self.stored_archive(package, digest).await?;
        if stored.is_some_and(|archive| archive.hashes == PackageHashState::NotYet) {
            self.compute_hashes_queued(package, digest).await?;
        }
        let wanted = BTreeMap::from([(package.platform.clone(), digest)]);
        let mut known = self.known_archives(&package.provider, &package.version, wanted).await?;
        Ok(known.remove(&package.platform).map_or(PackageHashState::NotYet, |known| known.hashes))
    }
}

/// The bytes of an archive to commit.
pub enum ArchiveBytes {
    Staged(Box<Verified<Staged>>),
    /// As staged, and on their way to where the larder keeps them.
    Arrived(Box<Verified<Staged>>, Arc<dyn Intake>),
    /// They are in the store, under another name or since before a crash.
    Stored,
}

impl ArchiveBytes {
    /// Removes a staged file. Whoever has it open reads on.
    fn discard(self) -> Result<(), StoreError> {
        match self {
            Self::Staged(verified) | Self::Arrived(verified, _) => verified.into_inner().discard(),
            Self::Stored => Ok(()),
        }
    }
}

/// The tree that a fetched one is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeExpectation {
    /// The first-seen tree.
    FirstSeen,
    /// The one that an operator accepts.
    Decided(PackedTree),
}

/// A packed archive in staging, not published yet.
pub struct PackedArchive {
    pub staged: Staged,
    pub tree: ModuleTree,
    pub origin: String,
}
