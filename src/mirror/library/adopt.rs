//! Takes over the records and archives of a larder that ran alone, for a fleet. Where the fleet knows nothing of an address, its records
//! are taken as they are; where it does, what it saw first counts, and a first that differs is an alarm.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::address::{Address, Artifact, Package};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::Library;
use crate::mirror::alarm_kind::AlarmKind;
use crate::mirror::library::Catalog;
use crate::mirror::library::alarms::{AlarmFinding, NewAlarm};
use crate::mirror::library::module_history::ModuleFirstSeenRecord;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::library::{NameRecord, StoredArchive, VersionHistory};
use crate::store::{
    DocumentKey, Durability, IndexEntry, Key, ReadOutcome, RecordAction, RecordGroup, RecordStep, StoreError, to_json,
};

/// The result of taking over a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// The addresses and registries with records.
    pub groups: u64,
    /// The records that the fleet did not have.
    pub records: u64,
    /// The archives that got a name.
    pub archives: u64,
    /// Their bytes.
    pub archive_bytes: u64,
    /// Records that differ from the first ones of the fleet, which keeps its own, and raises an alarm.
    pub differing: Vec<String>,
    /// Records and archives that could not be taken over, each with the reason.
    pub left: Vec<String>,
}

/// The most bytes and records of one step: the database takes them within its time limit.
const STEP_BYTES: usize = 512 << 10;
const STEP_RECORDS: usize = 200;

/// A group of records of the store that is taken over.
type Group = BTreeMap<Key, Vec<u8>>;

impl Library {
    /// Takes over everything of `other`. It may be repeated: what is taken over stays, and counts once. `report` gets each address before its archives
    /// are sent. Blocks.
    ///
    /// # Errors
    /// The store, the database or the bucket failed. What was taken over stays.
    pub fn take_over(&self, other: &Self, now: Timestamp, mut report: impl FnMut(&str)) -> Result<Adopted, StoreError> {
        let mut adopted = Adopted::default();
        for (group, keys) in other.keys_to_adopt()?.into_values() {
            report(&group.to_string());
            let mut records = Group::new();
            for key in keys {
                match other.store.records.read(&key)? {
                    ReadOutcome::Intact(record) => drop(records.insert(key, record)),
                    ReadOutcome::Absent => {}
                    ReadOutcome::Damaged => adopted.left.push(format!("{key}: it is damaged")),
                }
            }
            let archives = self.send_archives(other, &records, &mut adopted)?;
            self.adopt_group(&records, &archives, now, &mut adopted)?;
            adopted.groups += 1;
        }
        Ok(adopted)
    }

    /// The keys of the records about addresses and registries, by their groups. Records of an older layout are split first.
    fn keys_to_adopt(&self) -> Result<BTreeMap<String, (RecordGroup, BTreeSet<Key>)>, StoreError> {
        for key in self.store.records.all()? {
            if let Key::FirstSeenV0(provider) = &key {
                self.histories.split_by_version(provider);
            }
        }
        let mut groups: BTreeMap<String, (RecordGroup, BTreeSet<Key>)> = BTreeMap::new();
        for key in self.store.records.all()? {
            let group = key.group();
            if !matches!(group, RecordGroup::Alone(_)) {
                groups.entry(group.name()).or_insert_with(|| (group, BTreeSet::new())).1.insert(key);
            }
        }
        Ok(groups)
    }

    /// Sends the archives of the names of a group to where the fleet keeps them. Returns those that are there.
    fn send_archives(
        &self,
        other: &Self,
        records: &Group,
        adopted: &mut Adopted,
    ) -> Result<BTreeSet<Digest>, StoreError> {
        let mut sent = BTreeSet::new();
        for (key, record) in records {
            let (Key::Name(artifact), Some(name)) = (key, NameRecord::parse(record.clone())) else { continue };
            for StoredArchive { digest, .. } in name.archives {
                let Some(blob) = other.open_file(&digest)? else {
                    adopted.left.push(format!("an archive of {artifact}: its file is not there"));
                    continue;
                };
                if self.secure_file(blob, digest)? {
                    sent.insert(digest);
                } else {
                    adopted.left.push(format!("an archive of {artifact}: its file is damaged"));
                }
            }
        }
        Ok(sent)
    }

    /// Takes over the records of one group: its history first, each step of a size that the database takes at once.
    fn adopt_group(
        &self,
        records: &Group,
        archives: &BTreeSet<Digest>,
        now: Timestamp,
        adopted: &mut Adopted,
    ) -> Result<(), StoreError> {
        let (mut history, others): (Vec<_>, Vec<_>) = records.iter().partition(|(key, _)| key.is_history());
        // Of an address that the fleet has never seen, the history is taken as it is, keys and all. A list alone says nothing of it.
        let mut is_known = false;
        if let Some(address) = records.keys().find_map(Key::address) {
            let ours = self.store.records.keys_below(&Key::history_of(&address))?;
            for (key, _) in ours.iter().filter(|(key, _)| !matches!(key, Key::FirstListed(_))) {
                is_known |= match self.store.records.read(key)? {
                    ReadOutcome::Absent => false,
                    // An earlier run has taken it over.
                    ReadOutcome::Intact(ours) => records.get(key) != Some(&ours),
                    ReadOutcome::Damaged => true,
                };
            }
        }
        // A run that ends early must leave no version without the keys that may vouch for it, and no list without its times.
        let (lists, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(key, _)| matches!(key, Key::Document(DocumentKey::Versions(_))));
        history.extend(lists);
        history.sort_by_key(|(key, _)| match key {
            Key::SigningKeyLog(_) => 0,
            Key::FirstListed(_) | Key::Document(_) => 1,
            _ => 2,
        });
        let (mut refused, theirs) = (BTreeSet::new(), records);
        for step in steps_of(&history).into_iter().chain(steps_of(&others)) {
            let Some((first, _)) = step.first() else { continue };
            let decide = |records: &mut RecordStep<'_>, alarms: &mut Vec<NewAlarm>| {
                let (found, newly_refused) = Default::default();
                let mut judge = Judge {
                    step: records,
                    theirs,
                    archives,
                    is_known,
                    refused: &refused,
                    now,
                    alarms,
                    found,
                    newly_refused,
                };
                step.iter().try_for_each(|(key, record)| judge.adopt(key, record))?;
                Ok((judge.found, judge.newly_refused))
            };
            let (found, newly_refused) = match first.address() {
                Some(address) => {
                    let (found, written) = self.change_with_alarms(&address, first, decide)?;
                    written.map(|()| found)?
                }
                None => self.store.records.change(first, |step| decide(step, &mut Vec::new()))?,
            };
            refused.extend(newly_refused);
            adopted.records += found.records;
            adopted.archives += found.archives;
            adopted.archive_bytes += found.archive_bytes;
            adopted.differing.extend(found.differing);
            adopted.left.extend(found.left);
        }
        Ok(())
    }
}

/// The records in steps of at most [`STEP_BYTES`] and [`STEP_RECORDS`].
fn steps_of<'a>(records: &[(&'a Key, &'a Vec<u8>)]) -> Vec<Vec<(&'a Key, &'a Vec<u8>)>> {
    let (mut steps, mut bytes) = (Vec::<Vec<_>>::new(), 0);
    for (key, record) in records {
        // Alarms are those of one spelling of a module.
        let is_of_another =
            |step: &Vec<(&Key, &Vec<u8>)>| step.first().is_some_and(|(first, _)| first.address() != key.address());
        let is_full =
            |step: &Vec<_>| bytes + record.len() > STEP_BYTES || step.len() >= STEP_RECORDS || is_of_another(step);
        if steps.last().is_none_or(is_full) {
            steps.push(Vec::new());
            bytes = 0;
        }
        bytes += record.len();
        steps.last_mut().into_iter().for_each(|step| step.push((*key, *record)));
    }
    steps
}

/// Decides about the records of one step.
struct Judge<'a, 'b> {
    step: &'a mut RecordStep<'b>,
    /// All records of the group in the other store.
    theirs: &'a Group,
    archives: &'a BTreeSet<Digest>,
    /// True if the fleet has seen the address.
    is_known: bool,
    /// The history that the fleet has otherwise.
    refused: &'a BTreeSet<Key>,
    now: Timestamp,
    alarms: &'a mut Vec<NewAlarm>,
    found: Adopted,
    newly_refused: Vec<Key>,
}

impl Judge<'_, '_> {
    fn adopt(&mut self, key: &Key, record: &[u8]) -> Result<(), StoreError> {
        match key {
            Key::FirstSeenV0(_) => {
                self.found.left.push(format!("{key}: it could not be split by version"));
                Ok(())
            }
            key if key.is_history() => self.adopt_history(key, record),
            key if depends_on(key, self.refused) => Ok(()),
            Key::Name(artifact) => self.adopt_name(artifact, record),
            // Times of a list are those of its versions.
            Key::Document(DocumentKey::Versions(address)) if self.lists_otherwise(address)? => Ok(()),
            Key::ProofSet(package) if !self.is_proven(package, record)? => {
                self.found.left.push(format!("{key}: the fleet has verified other files of this version, or none"));
                Ok(())
            }
            key => {
                if matches!(self.step.read(key)?, ReadOutcome::Absent) {
                    self.put(key, record.to_vec());
                }
                Ok(())
            }
        }
    }

    /// True if the fleet has other times of the versions of an address.
    fn lists_otherwise(&self, address: &Address) -> Result<bool, StoreError> {
        let times = Key::FirstListed(address.clone());
        Ok(match self.step.read(&times)? {
            ReadOutcome::Intact(ours) => self.theirs.get(&times) != Some(&ours),
            ReadOutcome::Absent => false,
            ReadOutcome::Damaged => true,
        })
    }

    /// True if a set may be taken over: the history of the fleet has its archive, or the fleet has never seen the provider.
    fn is_proven(&self, package: &Package, record: &[u8]) -> Result<bool, StoreError> {
        let Some(set) = StoredProofSet::read(record.to_vec(), package) else { return Ok(false) };
        let verified = self.verified_digests(package)?;
        Ok(verified.is_none_or(|verified| set.sets().all(|set| verified.contains(&set.document.shasum))))
    }

    /// The digests that the fleet has verified for a package; `None` if it has never seen the provider.
    fn verified_digests(&self, package: &Package) -> Result<Option<Vec<Digest>>, StoreError> {
        if !self.is_known {
            return Ok(None);
        }
        let key = Key::FirstSeen(package.provider.clone(), package.version.clone());
        let history = self.step.read(&key)?.json::<VersionHistory>().intact().unwrap_or_default();
        Ok(Some(history.digests_of(&package.platform)))
    }

    /// Takes over a record of history, unless the fleet has seen something else first: then that counts.
    fn adopt_history(&mut self, key: &Key, record: &[u8]) -> Result<(), StoreError> {
        let differs = match self.step.read(key)? {
            // The keys that one larder trusts are not those of another.
            ReadOutcome::Absent if self.is_known && matches!(key, Key::SigningKeyLog(_)) => None,
            ReadOutcome::Absent => {
                let strict = || match key {
                    Key::FirstSeen(..) if self.is_known => {
                        let history = serde_json::from_slice::<VersionHistory>(record).ok()?;
                        Some(to_json(&history.vouched_for_by_nobody()))
                    }
                    _ => None,
                };
                let record = strict().unwrap_or_else(|| record.to_vec());
                self.put(key, record);
                None
            }
            // Nobody knows what was first: nothing is added to it.
            ReadOutcome::Damaged => Some("the record of the fleet is damaged".to_owned()),
            ReadOutcome::Intact(ours) => difference(key, &ours, record),
        };
        let Some(differs) = differs else { return Ok(()) };
        let (kind, version) = match key {
            Key::FirstSeen(_, version) => (AlarmKind::WaitsForAccept, version),
            Key::ModuleFirstSeen(package) => (AlarmKind::Moved, &package.version),
            _ => return Ok(()),
        };
        let detail = format!("the store that was taken over saw something else first: {differs}");
        self.found.differing.push(format!("{key}: {differs}"));
        self.alarms.push(NewAlarm { subject: kind.of(version), finding: AlarmFinding::from(detail), time: self.now });
        self.newly_refused.push(key.clone());
        Ok(())
    }

    /// Adds the archives of a name that are where the fleet keeps them, and its pin.
    fn adopt_name(&mut self, artifact: &Artifact, record: &[u8]) -> Result<(), StoreError> {
        let (Some(theirs), key) = (NameRecord::parse(record.to_vec()), Key::Name(artifact.clone())) else {
            return Ok(());
        };
        let before = Catalog::name_record_in(self.step, artifact.clone())?;
        let mut name = before.clone();
        let verified = match artifact {
            Artifact::Provider(package) => self.verified_digests(package)?,
            Artifact::Module(_) => None,
        };
        let is_verified = |digest: &Digest| verified.as_ref().is_none_or(|verified| verified.contains(digest));
        let sent = |archive: &StoredArchive| self.archives.contains(&archive.digest) && is_verified(&archive.digest);
        for archive in theirs.archives.into_iter().filter(sent) {
            if name.get(&archive.digest).is_none() {
                self.found.archives += 1;
                self.found.archive_bytes += archive.size_bytes;
            }
            name.put_by_age(archive);
        }
        name.pinned |= theirs.pinned && !name.archives.is_empty();
        if name != before {
            self.found.records += u64::from(before == NameRecord::default());
            let action = RecordAction::Put(to_json(&name), Durability::Synced);
            self.step.change(&key, action, IndexEntry::Name(name.indexed()));
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, record: Vec<u8>) {
        self.found.records += 1;
        let is_used = matches!(key, Key::Document(_) | Key::ProofSet(_));
        let entry = if is_used { IndexEntry::Document(self.now) } else { IndexEntry::Unindexed };
        self.step.put(key, record, Durability::Synced, entry);
    }
}

/// True for a record of a version whose history the fleet has otherwise.
fn depends_on(key: &Key, refused: &BTreeSet<Key>) -> bool {
    let history = match key {
        Key::ProofSet(package) | Key::Name(Artifact::Provider(package)) => {
            Key::FirstSeen(package.provider.clone(), package.version.clone())
        }
        Key::Name(Artifact::Module(package)) => Key::ModuleFirstSeen(package.clone()),
        Key::Document(DocumentKey::Location(package)) => Key::ModuleFirstSeen(package.clone()),
        _ => return false,
    };
    refused.contains(&history)
}

/// The difference between two records of the same version, if they contradict each other.
fn difference(key: &Key, ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    match key {
        Key::FirstSeen(..) => {
            let [ours, theirs] = [ours, theirs].map(|record| serde_json::from_slice::<VersionHistory>(record).ok());
            let (Some(ours), Some(theirs)) = (ours, theirs) else { return Some("a record cannot be read".to_owned()) };
            theirs.contradiction_of(&ours)
        }
        Key::ModuleFirstSeen(_) => {
            let [ours, theirs] =
                [ours, theirs].map(|record| serde_json::from_slice::<ModuleFirstSeenRecord>(record).ok());
            match (ours, theirs) {
                (Some(ModuleFirstSeenRecord::Seen(ours)), Some(ModuleFirstSeenRecord::Seen(theirs))) => {
                    let (ours, theirs) = (&ours.tree.packed, &theirs.tree.packed);
                    (!ours.is_same_module(theirs))
                        .then(|| format!("the tree {}, and the fleet {}", theirs.tree_digest, ours.tree_digest))
                }
                // A decision of the fleet's operator stays.
                _ => Some("the fleet has forgotten it, or has another record".to_owned()),
            }
        }
        _ => None,
    }
}
