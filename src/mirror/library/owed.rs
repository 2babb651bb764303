//! Archives that are verified and on this machine, while the place that all replicas share refuses them. Such an archive gets no name;
//! a receipt of this machine stands for it. It is served from here, and named when it has been sent, also after a restart.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::address::{Address, Artifact, Package};
use crate::digest::Digest;
use crate::mirror::Library;
use crate::mirror::library::damage::unless_damaged;
use crate::mirror::library::module_history::ModuleFirstSeenRecord;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::library::{Catalog, NameRecord, PackageHashState, StoredArchive};
use crate::store::{Blob, Durability, IndexEntry, Key, ReadOutcome, RecordAction, Store, StoreError, to_json};
use crate::verify::Verified;

/// Owed archives may take one part in this many of the size limit: they cannot be evicted.
const OWED_SHARE: u64 = 4;
/// The time between two looks at what is owed, and between two attempts at first; that doubles while they are refused.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The receipts of one archive, as they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipts(Vec<Receipt>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    /// The path of the name that the archive is to have.
    name: String,
    archive: StoredArchive,
}

/// The archives that this machine owes.
#[derive(Debug)]
pub struct OwedArchives {
    store: Arc<Store>,
    owed: Mutex<Owed>,
}

#[derive(Debug, Default)]
struct Owed {
    archives: BTreeMap<Digest, OwedArchive>,
    by_name: HashMap<Artifact, BTreeSet<Digest>>,
    bytes: u64,
}

/// An archive that is owed, by the names that it is to have.
#[derive(Debug, Default)]
struct OwedArchive {
    named: BTreeMap<Artifact, Owing>,
    /// The last refusal of this process.
    refusal: Option<StoreError>,
}

/// One name to which an archive is owed.
#[derive(Debug)]
struct Owing {
    archive: StoredArchive,
    /// The generation of the records by which it was last found to be wanted.
    judged: Option<u64>,
}

/// The amount that is owed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwedAmount {
    /// The number of archives.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The answer of the bucket to the last attempt; `None` before the first one of this process.
    pub refusal: Option<String>,
}

impl Owed {
    fn insert(&mut self, artifact: Artifact, archive: StoredArchive) {
        let (digest, size_bytes) = (archive.digest, archive.size_bytes);
        self.by_name.entry(artifact.clone()).or_default().insert(digest);
        let entry = self.archives.entry(digest);
        if let Entry::Vacant(_) = &entry {
            self.bytes = self.bytes.saturating_add(size_bytes);
        }
        entry.or_default().named.insert(artifact, Owing { archive, judged: None });
    }

    fn remove(&mut self, digest: &Digest, artifact: &Artifact) {
        let Some(owed) = self.archives.get_mut(digest) else { return };
        let Some(Owing { archive, .. }) = owed.named.remove(artifact) else { return };
        if owed.named.is_empty() {
            self.archives.remove(digest);
            self.bytes = self.bytes.saturating_sub(archive.size_bytes);
        }
        if let Some(digests) = self.by_name.get_mut(artifact) {
            digests.remove(digest);
            if digests.is_empty() {
                self.by_name.remove(artifact);
            }
        }
    }
}

impl OwedArchives {
    /// The receipts in a store.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn load(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut owed = Owed::default();
        for digest in store.records.of_machine().owed()? {
            let parse = |record: Vec<u8>| serde_json::from_slice::<Receipts>(&record).ok();
            // Without its receipt the archive is fetched again.
            let Some(Receipts(receipts)) = store.records.read_as(&Key::Owed(digest), parse)?.intact() else { continue };
            for Receipt { name, archive } in receipts.into_iter().filter(|receipt| receipt.archive.digest == digest) {
                if let Some(Key::Name(artifact)) = Key::from_path(name.as_ref()) {
                    owed.insert(artifact, archive);
                }
            }
        }
        Ok(Self { store, owed: Mutex::new(owed) })
    }

    /// The sum of all receipts.
    pub fn totals(&self) -> OwedAmount {
        let owed = self.owed.lock();
        let refusal = owed.archives.values().find_map(|archive| archive.refusal.as_ref());
        let refusal = refusal.map(ToString::to_string);
        OwedAmount { count: owed.archives.len() as u64, bytes: owed.bytes, refusal }
    }

    /// The number of archives.
    fn count(&self) -> usize {
        self.owed.lock().archives.len()
    }

    /// True if `size_bytes` more stay within `most_bytes`.
    fn has_room(&self, size_bytes: u64, most_bytes: u64) -> bool {
        self.owed.lock().bytes.saturating_add(size_bytes) <= most_bytes
    }

    /// True if an archive is owed.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.owed.lock().archives.contains_key(digest)
    }

    /// The last refusal of something that is owed to a name; `None` if nothing is.
    fn refusal_of(&self, artifact: &Artifact) -> Option<StoreError> {
        let not_sent = || StoreError::Bucket {
            trouble: "not-sent",
            said: "it is not sent yet".to_owned(),
            remedy: "larder sends it when the bucket takes it",
        };
        let owed = self.owed.lock();
        let archive = owed.archives.get(owed.by_name.get(artifact)?.first()?)?;
        Some(archive.refusal.clone().unwrap_or_else(not_sent))
    }

    /// The packages to which providers are owed whose `h1:` are not computed yet.
    pub fn without_hashes(&self) -> Vec<(Package, Digest)> {
        let owed = self.owed.lock();
        let receipts =
            owed.archives.iter().flat_map(|(digest, owed)| owed.named.iter().map(move |named| (digest, named)));
        let lacking = receipts.filter_map(|(digest, (artifact, owing))| match artifact {
            Artifact::Provider(package) if owing.archive.hashes == PackageHashState::NotYet => {
                Some((package.clone(), *digest))
            }
            Artifact::Provider(_) | Artifact::Module(_) => None,
        });
        lacking.collect()
    }

    /// Every archive that is owed.
    pub fn digests(&self) -> BTreeSet<Digest> {
        self.owed.lock().archives.keys().copied().collect()
    }

    /// The archives owed to a name.
    pub(super) fn of_name(&self, artifact: &Artifact) -> Vec<StoredArchive> {
        let owed = self.owed.lock();
        let digests = owed.by_name.get(artifact).into_iter().flatten();
        let archive = |digest| Some(owed.archives.get(digest)?.named.get(artifact)?.archive.clone());
        digests.filter_map(archive).collect()
    }

    /// An archive that is owed to a name.
    fn get(&self, digest: &Digest, artifact: &Artifact) -> Option<StoredArchive> {
        Some(self.owed.lock().archives.get(digest)?.named.get(artifact)?.archive.clone())
    }

    /// The receipts to judge again, because records have changed since, each with the present generation of its records.
    fn unjudged(&self, generation: impl Fn(&Artifact) -> u64) -> Vec<(StoredArchive, Artifact, u64)> {
        let owed = self.owed.lock();
        let named = owed.archives.values().flat_map(|archive| &archive.named);
        let unjudged = named.filter_map(|(artifact, owing)| {
            let now = generation(artifact);
            (owing.judged != Some(now)).then(|| (owing.archive.clone(), artifact.clone(), now))
        });
        unjudged.collect()
    }

    /// Notes that an archive is wanted by the records of this generation.
    fn was_judged(&self, digest: &Digest, artifact: &Artifact, generation: u64) {
        let mut owed = self.owed.lock();
        if let Some(owing) = owed.archives.get_mut(digest).and_then(|archive| archive.named.get_mut(artifact)) {
            owing.judged = Some(generation);
        }
    }

    /// The names to which an archive is owed.
    pub fn names_of(&self, digest: &Digest) -> Vec<Artifact> {
        self.owed.lock().archives.get(digest).into_iter().flat_map(|owed| owed.named.keys().cloned()).collect()
    }

    /// The names of an address to which archives are owed.
    pub fn named(&self, address: &Address) -> Vec<Artifact> {
        let owed = self.owed.lock();
        owed.by_name.keys().filter(|artifact| Address::from(*artifact) == *address).cloned().collect()
    }

    /// Writes a receipt.
    ///
    /// # Errors
    /// The refusal itself, if more than `most_bytes` would be owed; or the disk failed.
    fn note(
        &self,
        artifact: &Artifact,
        archive: &StoredArchive,
        refusal: StoreError,
        most_bytes: u64,
    ) -> Result<(), StoreError> {
        let digest = archive.digest;
        {
            let mut owed = self.owed.lock();
            // Others may have come between since there was room.
            if !owed.archives.contains_key(&digest) && owed.bytes.saturating_add(archive.size_bytes) > most_bytes {
                return Err(refusal);
            }
            owed.insert(artifact.clone(), archive.clone());
        }
        self.refused(&digest, refusal);
        self.write(&digest).inspect_err(|_| self.owed.lock().remove(&digest, artifact))
    }

    fn refused(&self, digest: &Digest, refusal: StoreError) {
        if let Some(owed) = self.owed.lock().archives.get_mut(digest) {
            owed.refusal = Some(refusal);
        }
    }

    /// Changes what a receipt says of an archive. Returns false if there is none.
    pub fn change(
        &self,
        digest: &Digest,
        artifact: &Artifact,
        change: impl FnOnce(&mut StoredArchive),
    ) -> Result<bool, StoreError> {
        match self.owed.lock().archives.get_mut(digest).and_then(|archive| archive.named.get_mut(artifact)) {
            Some(owing) => change(&mut owing.archive),
            None => return Ok(false),
        }
        self.write(digest).map(|()| true)
    }

    /// Ends the receipts of a name: nothing is owed to it.
    pub fn forget_name(&self, artifact: &Artifact) -> Result<(), StoreError> {
        let digests: Vec<Digest> = self.of_name(artifact).iter().map(|archive| archive.digest).collect();
        digests.iter().try_for_each(|digest| self.forget(digest, artifact))
    }

    /// Ends one receipt.
    pub fn forget(&self, digest: &Digest, artifact: &Artifact) -> Result<(), StoreError> {
        self.owed.lock().remove(digest, artifact);
        self.write(digest)
    }

    /// Writes the receipts of an archive as they are, or removes their record.
    fn write(&self, digest: &Digest) -> Result<(), StoreError> {
        let key = Key::Owed(*digest);
        let receipts = || {
            let receipt = |(artifact, owing): (&Artifact, &Owing)| Receipt {
                name: Key::Name(artifact.clone()).path().to_string_lossy().into_owned(),
                archive: owing.archive.clone(),
            };
            let owed = self.owed.lock();
            owed.archives.get(digest).map(|owed| Receipts(owed.named.iter().map(receipt).collect()))
        };
        // Within the step: the last writer writes what is in memory then.
        self.store.records.change(&key, |step| {
            match receipts() {
                Some(receipts) => step.put_json(&key, &receipts, Durability::Synced),
                None => step.change(&key, RecordAction::Remove(Durability::Lazy), IndexEntry::Unindexed),
            }
            Ok(())
        })
    }

    /// Adds to a name what is owed to it, unless it was purged or replaced since.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) fn add_to(
        &self,
        artifact: &Artifact,
        name: &mut NameRecord,
        owed: Vec<StoredArchive>,
    ) -> Result<(), StoreError> {
        for archive in owed {
            match is_wanted(artifact, &archive, |key| self.store.records.read(key)) {
                // Where nobody says that it was purged, it was not.
                Ok(true) | Err(StoreError::Unreachable(_)) => name.put_by_age(archive),
                wanted => drop(wanted?),
            }
        }
        Ok(())
    }
}

/// True while the records prove an archive. A purge removes what does on all replicas, and an accepted module has another tree; the
/// receipts are here.
fn is_wanted(
    artifact: &Artifact,
    archive: &StoredArchive,
    read: impl Fn(&Key) -> Result<ReadOutcome, StoreError>,
) -> Result<bool, StoreError> {
    match (artifact, archive.proof.how.tree()) {
        (Artifact::Provider(package), _) => {
            let set = read(&Key::ProofSet(package.clone()))?.parsed(|record| StoredProofSet::read(record, package));
            Ok(set.intact().is_some_and(|set| set.sets().any(|set| set.document.shasum == archive.digest)))
        }
        (Artifact::Module(package), Some(packed)) => {
            let seen = read(&Key::ModuleFirstSeen(package.clone()))?.json::<ModuleFirstSeenRecord>().intact();
            let is_first_seen = |seen| match seen {
                ModuleFirstSeenRecord::Seen(seen) => seen.tree.packed.is_same_module(packed),
                ModuleFirstSeenRecord::Forgotten { .. } => false,
            };
            Ok(seen.is_some_and(is_first_seen) && read(&Key::location(package))?.intact().is_some())
        }
        (Artifact::Module(_), None) => Ok(false),
    }
}

impl Catalog {
    /// Gives an archive that was owed its name, unless that is not wanted any more.
    fn name_owed(&self, digest: &Digest, artifact: &Artifact) -> Result<(), StoreError> {
        let key = Key::Name(artifact.clone());
        self.store.records.change(&key, |step| {
            if let Some(archive) = self.owed.get(digest, artifact)
                && is_wanted(artifact, &archive, |key| step.read(key))?
            {
                let mut name = Self::name_record_in(step, artifact.clone())?;
                name.put_by_age(archive);
                let record = RecordAction::Put(to_json(&name), Durability::Synced);
                step.change(&key, record, IndexEntry::Name(name.indexed()));
            }
            Ok(())
        })
    }
}

impl Library {
    /// The bytes that may be owed: they cannot be evicted, so they never fill the store.
    fn most_owed_bytes(&self) -> u64 {
        self.size_limit_bytes() / OWED_SHARE
    }

    /// True if the archive may be owed.
    pub(super) fn may_owe(&self, digest: &Digest, size_bytes: u64) -> bool {
        let owed = &self.catalog.owed;
        owed.contains(digest) || owed.has_room(size_bytes, self.most_owed_bytes())
    }

    /// Writes the receipt of an archive, which is published here, instead of a name. The caller holds its digest lock.
    pub(super) fn owe(
        &self,
        artifact: &Artifact,
        archive: StoredArchive,
        refusal: StoreError,
    ) -> Result<Option<StoredArchive>, StoreError> {
        let digest = archive.digest;
        tracing::warn!(package = %artifact, %digest, error = %refusal, to_do = refusal.remedy(),
            "an archive is served from here, and owed to the bucket");
        // It may have been published as a copy, and is the only one now.
        self.store.local.archives.sync(&digest)?;
        self.catalog.owed.note(artifact, &archive, refusal, self.most_owed_bytes())?;
        self.store.local.index.archive_stored(&digest, archive.size_bytes, archive.stored_at);
        self.show_anew(artifact);
        Ok(Some(archive))
    }

    /// Refuses to call a package stored while an archive of it is owed: if this machine is lost, so is the archive.
    ///
    /// # Errors
    /// It is owed; the text has the refusal.
    pub fn require_kept(&self, artifact: &Artifact) -> Result<(), StoreError> {
        let Some(refusal) = self.catalog.owed.refusal_of(artifact) else { return Ok(()) };
        Err(match refusal {
            StoreError::Bucket { trouble, said, remedy } => StoreError::Bucket {
                trouble,
                said: format!("this replica has it and serves it, but the bucket does not have it yet: {said}"),
                remedy,
            },
            other => other,
        })
    }

    /// The sum of all receipts.
    pub fn owed_totals(&self) -> OwedAmount {
        self.catalog.owed.totals()
    }

    /// Sends what is owed, again and again, for as long as larder runs. Ends at once for a larder that shares no archives.
    pub async fn send_what_is_owed(self: Arc<Self>) {
        let (mut pause, mut waited, mut last, mut told) = (LOOK_INTERVAL, Duration::ZERO, None, None);
        while self.shared_archives().is_some() {
            tokio::time::sleep(LOOK_INTERVAL).await;
            waited += LOOK_INTERVAL;
            let count = self.catalog.owed.count();
            if count == 0 {
                (pause, told) = (LOOK_INTERVAL, None);
                continue;
            }
            let is_due = waited >= pause;
            let passed = self.on_disk(move |library| {
                library.forget_what_nobody_wants()?;
                if is_due { library.send_owed(last) } else { Ok(None) }
            });
            match passed.await {
                Ok(None) if is_due => (pause, waited, last) = (LOOK_INTERVAL, Duration::ZERO, None),
                Ok(None) => {}
                Ok(Some((digest, refusal))) => {
                    (pause, waited, last) = ((pause * 2).min(MAX_PAUSE), Duration::ZERO, Some(digest));
                    // Once for each trouble, not once for each attempt.
                    let kind = refusal.without_paths();
                    if told.replace(kind.clone()) != Some(kind) {
                        tracing::warn!(owed = count, error = %refusal, to_do = refusal.remedy(), "the bucket does not take what is owed to it");
                    }
                }
                Err(error) => tracing::warn!(%error, "what is owed to the bucket could not be judged"),
            }
        }
    }

    /// Ends the receipts of what was purged, or accepted otherwise, since they were last judged. The files go when their space is needed.
    /// Blocks.
    fn forget_what_nobody_wants(&self) -> Result<(), StoreError> {
        let owed = &self.catalog.owed;
        let generation = |artifact: &Artifact| self.generation_of_address(&artifact.into());
        let mut failed = None;
        for (archive, artifact, now) in owed.unjudged(generation) {
            let _lock = self.catalog.digest_lock(&archive.digest).lock();
            let judged = is_wanted(&artifact, &archive, |key| self.store.records.read(key)).and_then(|is_wanted| {
                if is_wanted {
                    owed.was_judged(&archive.digest, &artifact, now);
                    return Ok(());
                }
                tracing::info!(package = %artifact, digest = %archive.digest, "an archive is owed no more: it was purged or replaced");
                owed.forget(&archive.digest, &artifact)?;
                self.show_anew(&artifact);
                Ok(())
            });
            // A record that cannot be read says nothing about the others.
            failed = failed.or(judged.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sends the archives that are owed, those after `last` first, until one is refused: then returns that one with the refusal. Blocks.
    fn send_owed(&self, last: Option<Digest>) -> Result<Option<(Digest, StoreError)>, StoreError> {
        for digest in self.owed_in_turn(last) {
            if self.runtime.tasks.is_stopping() {
                break;
            }
            if let Err(refusal) = self.send_archive(&digest) {
                self.catalog.owed.refused(&digest, refusal.clone());
                return Ok(Some((digest, refusal)));
            }
        }
        Ok(None)
    }

    fn owed_in_turn(&self, last: Option<Digest>) -> Vec<Digest> {
        let digests = self.catalog.owed.digests();
        let Some(last) = last else { return digests.into_iter().collect() };
        let after = digests.range((Bound::Excluded(last), Bound::Unbounded));
        after.chain(digests.range(..=last)).copied().collect()
    }

    /// Sends one archive, and gives it the names that are owed to it.
    fn send_archive(&self, digest: &Digest) -> Result<(), StoreError> {
        self.secure_stored(digest)?;
        let owed = &self.catalog.owed;
        let lock = self.catalog.digest_lock(digest).lock();
        let mut named = Vec::new();
        for artifact in owed.names_of(digest) {
            // A file that was lost or damaged meanwhile is fetched again.
            if self.is_here(digest)? {
                self.catalog.name_owed(digest, &artifact)?;
                tracing::info!(package = %artifact, %digest, "an archive that was owed is in the bucket");
            }
            let hashes = owed.get(digest, &artifact).map(|archive| archive.hashes);
            owed.forget(digest, &artifact)?;
            self.show_anew(&artifact);
            if let (Artifact::Provider(package), Some(PackageHashState::NotYet)) = (artifact, hashes) {
                named.push(package);
            }
        }
        drop(lock);
        named.iter().try_for_each(|package| self.compute_hashes(package, digest))
    }

    /// Keeps an archive whose file is on this machine where the larder keeps archives, if it is not there. Does nothing for one that is
    /// not here; a damaged file is set aside. May take minutes. Blocks.
    ///
    /// # Errors
    /// It is not kept there.
    pub(super) fn secure_stored(&self, digest: &Digest) -> Result<(), StoreError> {
        let Some(shared) = self.shared_archives() else { return Ok(()) };
        let Some(blob) = self.open_file(digest)? else { return Ok(()) };
        // Before the file is read: most often it is known.
        if shared.object_now(digest)?.is_some() {
            return Ok(());
        }
        if self.secure_file(blob.clone(), *digest)? { Ok(()) } else { self.set_aside(digest, &blob) }
    }

    /// Keeps the file of an archive where the larder keeps archives. Returns false for one with other bytes. May take minutes. Blocks.
    ///
    /// # Errors
    /// It is not kept there.
    pub(super) fn secure_file(&self, file: Blob, digest: Digest) -> Result<bool, StoreError> {
        let actual = unless_damaged(file.hashes())?;
        match actual.and_then(|(actual, _)| Verified::by_digest(file, actual, digest).ok()) {
            Some(whole) => self.intake(digest).secure(&whole).map(|()| true),
            None => Ok(false),
        }
    }
}
