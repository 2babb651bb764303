//! Archives that are verified and on this machine, while the place that all replicas share refuses them. Such an archive gets no name;
//! a receipt of this machine stands for it. It is served from here, and named when it has been sent, also after a restart.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::address::{Address, Artifact};
use crate::digest::Digest;
use crate::mirror::Library;
use crate::mirror::library::damage::unless_damaged;
use crate::mirror::library::module_history;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::library::usage::FileAmount;
use crate::mirror::library::{Catalog, NameRecord, StoredArchive};
use crate::store::{Durability, IndexEntry, Key, ReadOutcome, RecordAction, RecordScope, Store, StoreError, to_json};
use crate::verify::Verified;

/// Owed archives may take one part in this many of the size limit: they cannot be evicted.
const OWED_SHARE: u64 = 4;
/// The refusals after which a pass ends.
const MAX_REFUSALS: usize = 3;
/// The pause between two passes; it doubles while the archives are refused.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
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
    named: BTreeMap<Artifact, StoredArchive>,
    /// The last refusal of this process.
    refusal: Option<StoreError>,
}

impl Owed {
    fn insert(&mut self, artifact: Artifact, archive: StoredArchive) {
        let (digest, size_bytes) = (archive.digest, archive.size_bytes);
        self.by_name.entry(artifact.clone()).or_default().insert(digest);
        let entry = self.archives.entry(digest);
        if let Entry::Vacant(_) = &entry {
            self.bytes = self.bytes.saturating_add(size_bytes);
        }
        entry.or_default().named.insert(artifact, archive);
    }

    fn remove(&mut self, digest: &Digest, artifact: &Artifact) {
        let Some(owed) = self.archives.get_mut(digest) else { return };
        let Some(archive) = owed.named.remove(artifact) else { return };
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

    /// The archives owed.
    pub fn totals(&self) -> FileAmount {
        let owed = self.owed.lock();
        FileAmount { count: owed.archives.len() as u64, bytes: owed.bytes }
    }

    /// True if an archive is owed.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.owed.lock().archives.contains_key(digest)
    }

    /// The last refusal of an archive that is owed; `None` for another archive.
    pub fn refusal(&self, digest: &Digest) -> Option<StoreError> {
        let not_sent = || StoreError::Bucket {
            trouble: "not-sent",
            said: "it is not sent yet".to_owned(),
            remedy: "larder sends it when the bucket takes it",
        };
        self.owed.lock().archives.get(digest).map(|owed| owed.refusal.clone().unwrap_or_else(not_sent))
    }

    /// Every archive that is owed.
    pub fn digests(&self) -> BTreeSet<Digest> {
        self.owed.lock().archives.keys().copied().collect()
    }

    /// The archives owed to a name.
    fn of_name(&self, artifact: &Artifact) -> Vec<StoredArchive> {
        let owed = self.owed.lock();
        let digests = owed.by_name.get(artifact).into_iter().flatten();
        digests.filter_map(|digest| owed.archives.get(digest)?.named.get(artifact).cloned()).collect()
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
    fn note(&self, artifact: &Artifact, archive: &StoredArchive, refusal: StoreError) -> Result<(), StoreError> {
        let digest = archive.digest;
        self.owed.lock().insert(artifact.clone(), archive.clone());
        self.refused(&digest, refusal);
        self.write(&digest).inspect_err(|_| self.owed.lock().remove(&digest, artifact))
    }

    fn refused(&self, digest: &Digest, refusal: StoreError) {
        if let Some(owed) = self.owed.lock().archives.get_mut(digest) {
            owed.refusal = Some(refusal);
        }
    }

    /// Changes what the receipts of an archive say of it. Returns false for an archive without receipts.
    pub fn change(&self, digest: &Digest, change: impl FnMut(&mut StoredArchive)) -> Result<bool, StoreError> {
        match self.owed.lock().archives.get_mut(digest) {
            Some(owed) => owed.named.values_mut().for_each(change),
            None => return Ok(false),
        }
        self.write(digest).map(|()| true)
    }

    /// Ends the receipts of a name: nothing is owed to it.
    pub fn forget_name(&self, artifact: &Artifact) -> Result<(), StoreError> {
        let digests: Vec<Digest> = self.of_name(artifact).iter().map(|archive| archive.digest).collect();
        digests.iter().try_for_each(|digest| self.forget(digest, artifact))
    }

    /// Ends all receipts of an archive.
    pub fn forget_archive(&self, digest: &Digest) -> Result<(), StoreError> {
        self.names_of(digest).iter().try_for_each(|artifact| self.forget(digest, artifact))
    }

    fn forget(&self, digest: &Digest, artifact: &Artifact) -> Result<(), StoreError> {
        self.owed.lock().remove(digest, artifact);
        self.write(digest)
    }

    /// Writes the receipts of an archive as they are, or removes their record.
    fn write(&self, digest: &Digest) -> Result<(), StoreError> {
        let key = Key::Owed(*digest);
        let receipts = || {
            let receipt = |(artifact, archive): (&Artifact, &StoredArchive)| Receipt {
                name: Key::Name(artifact.clone()).path().to_string_lossy().into_owned(),
                archive: archive.clone(),
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
    pub fn add_to(&self, artifact: &Artifact, name: &mut NameRecord) -> Result<(), StoreError> {
        for archive in self.of_name(artifact) {
            match is_wanted(artifact, &archive, |key| self.store.records.read(key)) {
                // Where nobody says that it was purged, it was not.
                Ok(true) | Err(StoreError::Unreachable(_)) => name.put_by_age(archive),
                wanted => drop(wanted?),
            }
        }
        Ok(())
    }
}

/// True while what proves an archive is stored. A purge removes that on all replicas, and receipts are here.
fn is_wanted(
    artifact: &Artifact,
    archive: &StoredArchive,
    read: impl Fn(&Key) -> Result<ReadOutcome, StoreError>,
) -> Result<bool, StoreError> {
    Ok(match artifact {
        Artifact::Provider(package) => {
            let set = read(&Key::ProofSet(package.clone()))?.parsed(|record| StoredProofSet::read(record, package));
            set.intact().is_some_and(|set| set.sets().any(|set| set.document.shasum == archive.digest))
        }
        Artifact::Module(package) => read(&Key::location(package))?.intact().is_some(),
    })
}

impl Catalog {
    /// Gives an archive that was owed its name, unless it was purged since.
    fn name_owed(&self, artifact: &Artifact, archive: &StoredArchive) -> Result<(), StoreError> {
        let key = Key::Name(artifact.clone());
        self.store.records.change(&key, |step| {
            if is_wanted(artifact, archive, |key| step.read(key))? {
                let mut name = Self::name_record_in(step, artifact.clone())?;
                name.put_by_age(archive.clone());
                step.change(
                    &key,
                    RecordAction::Put(to_json(&name), Durability::Synced),
                    IndexEntry::Name(name.indexed()),
                );
            }
            Ok(())
        })
    }
}

impl Library {
    /// The bytes that are owed, and may not be evicted, never fill the store.
    pub(super) fn may_owe(&self, digest: &Digest, size_bytes: u64) -> bool {
        let owed = &self.catalog.owed;
        owed.contains(digest) || owed.totals().bytes.saturating_add(size_bytes) <= self.size_limit_bytes() / OWED_SHARE
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
        self.catalog.owed.note(artifact, &archive, refusal)?;
        self.store.local.index.archive_stored(&digest, archive.size_bytes, archive.stored_at);
        self.presence_changed(&digest);
        Ok(Some(archive))
    }

    /// Refuses to call an archive stored while it is owed: if this machine is lost, so is the archive.
    ///
    /// # Errors
    /// It is owed; the text has the refusal.
    pub fn require_kept(&self, digest: &Digest) -> Result<(), StoreError> {
        let Some(refusal) = self.catalog.owed.refusal(digest) else { return Ok(()) };
        Err(match refusal {
            StoreError::Bucket { trouble, said, remedy } => StoreError::Bucket {
                trouble,
                said: format!(
                    "it is verified, and this replica serves it, but the bucket does not have it yet: {said}"
                ),
                remedy,
            },
            other => other,
        })
    }

    /// The archives that are owed.
    pub fn owed_totals(&self) -> FileAmount {
        self.catalog.owed.totals()
    }

    /// Sends what is owed, again and again, for as long as larder runs. Ends at once for a larder that shares no archives.
    pub async fn send_what_is_owed(self: Arc<Self>) {
        let (mut pause, mut last) = (FIRST_PAUSE, None);
        while self.shared_archives().is_some() {
            tokio::time::sleep(pause).await;
            if self.owed_totals().count == 0 {
                pause = FIRST_PAUSE;
                continue;
            }
            let sent = self.on_disk(move |library| library.send_owed(last)).await;
            (pause, last) = match sent {
                Ok(None) => (FIRST_PAUSE, None),
                Ok(refused_last) => ((pause * 2).min(MAX_PAUSE), refused_last),
                Err(error) => {
                    tracing::error!(%error, "what is owed to the bucket could not be sent");
                    ((pause * 2).min(MAX_PAUSE), None)
                }
            };
        }
    }

    /// Sends the archives that are owed, those after `last` first. Returns the last one that was refused, if the pass ended with
    /// refusals. Blocks.
    fn send_owed(&self, last: Option<Digest>) -> Result<Option<Digest>, StoreError> {
        let (mut refused, mut refusals) = (None, 0);
        for digest in self.owed_in_turn(last) {
            if self.runtime.tasks.is_stopping() {
                break;
            }
            if let Err(refusal) = self.send_archive(&digest) {
                tracing::debug!(%digest, error = %refusal, "an archive is still owed to the bucket");
                self.catalog.owed.refused(&digest, refusal);
                (refused, refusals) = (Some(digest), refusals + 1);
            }
            if refusals == MAX_REFUSALS {
                break;
            }
        }
        Ok(refused)
    }

    fn owed_in_turn(&self, last: Option<Digest>) -> Vec<Digest> {
        let digests = self.catalog.owed.digests();
        let Some(last) = last else { return digests.into_iter().collect() };
        let after = digests.range((Bound::Excluded(last), Bound::Unbounded));
        after.chain(digests.range(..=last)).copied().collect()
    }

    /// Sends one archive, and gives it the names that are owed to it.
    fn send_archive(&self, digest: &Digest) -> Result<(), StoreError> {
        let owed = &self.catalog.owed;
        for artifact in owed.names_of(digest) {
            let archive = owed.of_name(&artifact).into_iter().find(|archive| archive.digest == *digest);
            // Also what other replicas have purged or accepted since.
            self.store.records.refresh(RecordScope::Group(&Key::Name(artifact.clone()).group()))?;
            match archive {
                Some(archive) if self.may_be_named(&artifact, &archive)? => {}
                _ => owed.forget(digest, &artifact)?,
            }
        }
        if !owed.contains(digest) {
            let _lock = self.catalog.digest_lock(digest).lock();
            return self.remove_file(digest).map(drop);
        }
        let Some(blob) = self.open_file(digest)? else { return owed.forget_archive(digest) };
        let (opened, actual) = (blob.clone(), unless_damaged(blob.hashes())?);
        let whole = actual.and_then(|(actual, _)| Verified::by_digest(blob, actual, *digest).ok());
        // The next request fetches a damaged one again.
        let Some(whole) = whole else { return self.set_aside(digest, &opened) };
        self.intake(*digest).secure(&whole)?;
        let _lock = self.catalog.digest_lock(digest).lock();
        for artifact in owed.names_of(digest) {
            for archive in owed.of_name(&artifact).into_iter().filter(|archive| archive.digest == *digest) {
                self.catalog.name_owed(&artifact, &archive)?;
            }
            owed.forget(digest, &artifact)?;
            tracing::info!(package = %artifact, %digest, "an archive that was owed is in the bucket");
        }
        Ok(())
    }

    /// True if an archive may still get its name: a module that was accepted with another tree since keeps that one.
    fn may_be_named(&self, artifact: &Artifact, archive: &StoredArchive) -> Result<bool, StoreError> {
        if !is_wanted(artifact, archive, |key| self.store.records.read(key))? {
            return Ok(false);
        }
        let (Artifact::Module(package), Some(packed)) = (artifact, archive.proof.how.tree()) else { return Ok(true) };
        Ok(match module_history::read_first_seen(self, package)? {
            ReadOutcome::Intact(seen) => seen.tree.packed.is_same_module(packed),
            ReadOutcome::Absent | ReadOutcome::Damaged => false,
        })
    }
}
