//! Small records by key. All records of one address are read and changed in one step.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::key::{APPROVALS, DocumentKey, GroupRef, NAMES, OWED, RecordGroup};
use super::{Fleet, IndexedName, Key, NameCursor, StoreError, Striped};
use crate::address::{
    Address, AddressFilter, Artifact, Hostname, ModuleAddress, ModuleName, ModulePackage, Package, Platform,
    ProviderAddress, Version,
};
use crate::clock::Timestamp;
use crate::digest::Digest;

/// The folders of records, below the root of their paths.
pub(super) const KINDS: [&str; 8] = [NAMES, "documents", "seen", "alarms", APPROVALS, "jobs", "traffic", OWED];

/// Conflicts after which a step takes its turn: later ones of this process wait for it.
const MAX_CONFLICTS: usize = 3;
/// The rounds that a step may lose in all, and the time after which it has lost too long in its turn. Then the group is busy:
/// others write to it beside this process, or its own `decide` does.
const MAX_ROUNDS: usize = 50;
const MAX_LOST_TIME: Duration = Duration::from_millis(1500);
/// The longest that a step waits for its turn, or for that of another one.
const MAX_TURN_WAIT: Duration = Duration::from_secs(30);

/// Durability of a write: synced before the step ends, or left to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// May be lost in a power cut; upstream has it too.
    Lazy,
    /// The file and its folder entry are synced first.
    Synced,
    /// A copy of what all replicas keep elsewhere. A record does not wait for the disk, not even for a new folder; the bytes of an archive
    /// are synced, its place is not.
    Copy,
}

/// The outcome of reading a record: its bytes or its parsed form, `R`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ReadOutcome<R = Vec<u8>> {
    /// The record is complete, and its checksum matches.
    Intact(R),
    /// There is no record.
    #[default]
    Absent,
    /// The checksum did not match. The record is quarantined with the step that read it, unless its existence matters
    /// (`Key::matters_when_damaged`).
    Damaged,
}

impl<R> ReadOutcome<R> {
    /// The record if it is intact; `None` if it is absent or damaged.
    pub fn intact(self) -> Option<R> {
        if let Self::Intact(record) = self { Some(record) } else { None }
    }

    /// Calls `next` with an intact record.
    pub fn and_then_read<T>(self, next: impl FnOnce(R) -> ReadOutcome<T>) -> ReadOutcome<T> {
        match self {
            Self::Intact(record) => next(record),
            Self::Absent => ReadOutcome::Absent,
            Self::Damaged => ReadOutcome::Damaged,
        }
    }
}

impl ReadOutcome {
    /// Parses the record; one that cannot be parsed counts as damaged.
    pub fn parsed<T>(self, parse: impl FnOnce(Vec<u8>) -> Option<T>) -> ReadOutcome<T> {
        self.and_then_read(|record| parse(record).map_or(ReadOutcome::Damaged, ReadOutcome::Intact))
    }

    /// Parses the record as JSON.
    pub fn json<T: DeserializeOwned>(self) -> ReadOutcome<T> {
        self.parsed(|record| serde_json::from_slice(&record).ok())
    }
}

/// The state of the records of one group. It changes with every write to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(pub u64);

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// All changes are in the store.
    Written,
    /// The group changed since it was read, so nothing was written: read and decide again.
    Conflict,
}

/// The records to bring up to date.
#[derive(Debug, Clone, Copy)]
pub enum RecordScope<'a> {
    /// Those of one group.
    Group(&'a RecordGroup),
    /// Those of all groups.
    All,
}

/// A change to one record, and to its entry in the index.
#[derive(Debug, Clone)]
pub struct Change {
    /// The record.
    pub key: Key,
    /// The change to it.
    pub action: RecordAction,
    /// The change to its entry in the index. An implementation without an index ignores it.
    pub entry: IndexEntry,
}

/// The change to the file of a record. The change to its index entry is separate: [`IndexEntry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordAction {
    /// Writes the record, and replaces an older one.
    Put(Vec<u8>, Durability),
    /// Removes the record.
    Remove(Durability),
    /// Moves the record into the quarantine, because it is damaged.
    Quarantine,
    /// Leaves the record as it is: only its index entry changes.
    Keep,
}

/// The result of trimming the copy of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trimmed {
    /// It is no copy: the record is on this machine only, and stays.
    OnlyHere,
    /// It is removed. The record is read from where all replicas have it.
    Copy,
    /// It is a copy that stays: what must never be forgotten.
    Kept,
}

/// The change to a record's entry in the index.
#[derive(Debug, Clone)]
pub enum IndexEntry {
    /// No change: records of this kind have no entry.
    Unindexed,
    /// A document, used last at this time.
    Document(Timestamp),
    /// A document that was found, with its size in bytes and the time it was written.
    Found(u64, Timestamp),
    /// The archives of a name.
    Name(IndexedName),
    /// A name that cannot be read, for this reason. An existing entry stays.
    Unreadable(StoreError),
    /// Removed.
    Gone,
}

/// The records of a store. Those of one group are changed together, in one step that names the generation it read.
///
/// All functions block.
pub trait Records: fmt::Debug + Send + Sync {
    /// Reads a record as it is; distinguishes a damaged record from an absent one. Never writes.
    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError>;

    /// A record's stored size in bytes and the time it was written; `None` if it does not exist.
    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError>;

    /// Brings records up to date with what other replicas wrote. Does nothing where no replica has a copy of its own. Called
    /// before anything is said to be absent, and before upstream is asked. What changed has another [`Self::generation_now`].
    ///
    /// # Errors
    /// The shared records cannot be read: nothing may be said to be absent.
    fn refresh(&self, scope: RecordScope<'_>) -> Result<(), StoreError>;

    /// The generation of a group, to be read before its records. Waits for a write in progress.
    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError>;

    /// The generation of a group, for what was made of its records. Never waits: while a write is in progress, it is one
    /// that no later call returns.
    fn generation_now(&self, group: GroupRef<'_>) -> Generation;

    /// Makes changes to records of one group, in their order, if the group is still at `read_at`. Each change is
    /// complete or absent after a crash, and none is durable without those before it that are [`Durability::Synced`].
    ///
    /// # Errors
    /// A change failed. Those before it are in the store.
    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError>;

    /// The records that are on this machine: all of them, unless replicas share them.
    fn of_machine(&self) -> &dyn Records;

    /// Removes the copy of a record that other machines have, too.
    ///
    /// # Errors
    /// The disk failed.
    fn trim(&self, _: &Key) -> Result<Trimmed, StoreError> {
        Ok(Trimmed::OnlyHere)
    }

    /// The other replicas; `None` where no replica shares the records.
    fn fleet(&self) -> Option<&dyn Fleet> {
        None
    }

    /// The turns of the steps of this process.
    fn turns(&self) -> &Turns;

    /// Makes a record durable that was written lazily. Returns true if it exists.
    fn sync(&self, key: &Key) -> Result<bool, StoreError>;

    /// The keys of the records whose path begins with the components of `folder`, each with its stored size in bytes: at most
    /// `limit`, in the order of their paths, after the key `after`, which may be gone by now.
    ///
    /// # Errors
    /// The list would be partial. A caller may delete what a list does not contain.
    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError>;

    /// The next components of the paths below `folder`, sorted.
    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError>;

    /// The values that the last write of a name listed; `None` if there is no name.
    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError>;

    /// The records of many names, in the order of `artifacts`: `None` for one that is absent or damaged. What replicas share is asked for
    /// once for all.
    fn name_records(&self, artifacts: &[Artifact]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        artifacts.iter().map(|artifact| Ok(self.read(&Key::Name(artifact.clone()))?.intact())).collect()
    }

    /// Visits the names whose path begins with the components of `folder`, in the order of their cursors: those after
    /// `after`, until `visit` breaks.
    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Visits the names that a filter includes, in the order of their cursors: those after `after`, until `visit` breaks. Reads
    /// only the names of the same namespace and name, where the filter gives them.
    fn each_name_of(
        &self,
        filter: &AddressFilter,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        for folder in folders_of(self, filter)? {
            let mut flow = ControlFlow::Continue(());
            self.each_name(&folder, after, &mut |artifact, name| {
                if filter.includes(&artifact) {
                    flow = visit(artifact, name);
                }
                flow
            })?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The names that list an archive.
    fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        chosen_names(self, |artifact, name| name.lists(digest).then_some(artifact))
    }

    /// The pinned names.
    fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        chosen_names(self, |artifact, name| name.pinned.then_some(artifact))
    }

    /// The first of the names with an archive that was imported without signatures, in the order of cursors.
    fn imported_names(&self, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        let mut imported = chosen_names(self, |artifact, name| name.imported.then_some(artifact))?;
        imported.truncate(limit);
        Ok(imported)
    }

    /// The error for a name that cannot be read: it may list any archive.
    fn unreadable_name(&self) -> Option<StoreError> {
        None
    }

    /// The keys of the records whose path begins with the components of `folder`, each with its stored size in bytes.
    fn keys_below(&self, folder: &Path) -> Result<Vec<(Key, u64)>, StoreError> {
        let mut keys: Vec<(Key, u64)> = Vec::new();
        loop {
            let page = self.page(folder, keys.last().map(|(last, _)| last), PAGE_KEYS)?;
            let is_last = page.len() < PAGE_KEYS;
            keys.extend(page);
            if is_last {
                return Ok(keys);
            }
        }
    }

    /// The platforms of a version with proof sets.
    fn platforms_with_sets(&self, provider: &ProviderAddress, version: &Version) -> Result<Vec<Platform>, StoreError> {
        let names = self.names_in(&Key::sets_of(provider, version))?;
        Ok(names.iter().filter_map(|name| Platform::parse(name.strip_suffix(".set")?).ok()).collect())
    }

    /// The packages of a provider with proof sets.
    fn packages_with_sets(&self, provider: &ProviderAddress) -> Result<Vec<Package>, StoreError> {
        let package = |key| if let Key::ProofSet(package) = key { Some(package) } else { None };
        chosen_below(self, &Key::folder("documents", provider), package)
    }

    /// The packages of an address with a name record. A pinned name may list no archive.
    fn named(&self, address: &Address) -> Result<Vec<Artifact>, StoreError> {
        let artifact = |key| if let Key::Name(artifact) = key { Some(artifact) } else { None };
        chosen_below(self, &Key::folder(NAMES, address), artifact)
    }

    /// The proof sets or the locations of an address, each with its package.
    fn package_documents(&self, address: &Address) -> Result<Vec<(Artifact, Key)>, StoreError> {
        let with_package = |key| match key {
            Key::ProofSet(ref package) => Some((package.into(), key)),
            Key::Document(DocumentKey::Location(ref package)) => Some((package.into(), key)),
            _ => None,
        };
        chosen_below(self, &Key::folder("documents", address), with_package)
    }

    /// The documents about an address and none of its versions, such as its version list.
    fn address_documents(&self, address: &Address) -> Result<Vec<Key>, StoreError> {
        let folder = Key::folder("documents", address);
        chosen_below(self, &folder, |key| key.is_about_whole_address().then_some(key))
    }

    /// The versions of a module with first-seen records.
    fn module_packages_seen(&self, module: &ModuleAddress) -> Result<Vec<ModulePackage>, StoreError> {
        let package = |key| if let Key::ModuleFirstSeen(package) = key { Some(package) } else { None };
        chosen_below(self, &Key::folder("seen", module), package)
    }

    /// The addresses with alarm records.
    fn addresses_with_alarms(&self) -> Result<Vec<Address>, StoreError> {
        chosen_below(self, Path::new("alarms"), |key| if let Key::Alarms(address) = key { Some(address) } else { None })
    }

    /// The addresses with approvals.
    fn addresses_with_approvals(&self) -> Result<Vec<Address>, StoreError> {
        let address = |key| if let Key::Approvals(address) = key { Some(address) } else { None };
        chosen_below(self, Path::new(APPROVALS), address)
    }

    /// The addresses of a registry with a version list or a name record. `service` is `providers` or `modules`.
    fn addresses_of(&self, host: &Hostname, service: &str) -> Result<BTreeSet<Address>, StoreError> {
        let address = |key| match key {
            Key::Document(DocumentKey::Versions(address)) => Some(address),
            Key::Name(artifact) => Some((&artifact).into()),
            _ => None,
        };
        let mut addresses = BTreeSet::new();
        for kind in ["documents", NAMES] {
            addresses.extend(chosen_below(self, &Path::new(kind).join(host.as_str()).join(service), address)?);
        }
        Ok(addresses)
    }

    /// The other spellings of a module of which there are records of what was seen: those equal in lower case.
    fn spellings_seen(&self, module: &ModuleAddress) -> Result<Vec<ModuleAddress>, StoreError> {
        let (wanted, host_folder) = (module.folded(), Key::first_seen_of_modules(&module.host));
        let mut found = Vec::new();
        for namespace in self.names_in(&host_folder)? {
            if !namespace.eq_ignore_ascii_case(wanted.namespace.as_str()) {
                continue;
            }
            for name in self.names_in(&host_folder.join(&namespace))? {
                let parsed = ModuleName::parse(&namespace).ok().zip(ModuleName::parse(&name).ok());
                let Some((namespace, name)) = parsed else { continue };
                let spelling = ModuleAddress { namespace, name, ..module.clone() };
                if spelling != *module && spelling.folded() == wanted {
                    found.push(spelling);
                }
            }
        }
        Ok(found)
    }

    /// The recorded pages of a registry.
    fn pages_of(&self, host: &Hostname) -> Result<Vec<Key>, StoreError> {
        chosen_below(self, &Key::pages_of(host), Some)
    }

    /// Every artifact with a name record.
    fn all_named(&self) -> Result<Vec<Artifact>, StoreError> {
        chosen_below(self, Path::new(NAMES), |key| if let Key::Name(named) = key { Some(named) } else { None })
    }

    /// The ids of the recorded jobs.
    fn jobs(&self) -> Result<Vec<[u8; 8]>, StoreError> {
        chosen_below(self, Path::new("jobs"), |key| if let Key::Job(number) = key { Some(number) } else { None })
    }

    /// The archives with receipts of this machine.
    fn owed(&self) -> Result<Vec<Digest>, StoreError> {
        chosen_below(self, Path::new(OWED), |key| if let Key::Owed(digest) = key { Some(digest) } else { None })
    }

    /// The keys of all records.
    fn all(&self) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        for kind in KINDS {
            keys.extend(chosen_below(self, Path::new(kind), Some)?);
        }
        for key in [Key::Missing, Key::Usage, Key::LatestTime] {
            keys.extend(self.stat(&key)?.map(|_| key));
        }
        Ok(keys)
    }
}

/// The keys that are read at a time.
const PAGE_KEYS: usize = 4096;

/// The values that `choose` takes from the keys of the records below a folder.
fn chosen_below<T>(
    records: &(impl Records + ?Sized),
    folder: &Path,
    choose: impl Fn(Key) -> Option<T>,
) -> Result<Vec<T>, StoreError> {
    Ok(records.keys_below(folder)?.into_iter().filter_map(|(key, _)| choose(key)).collect())
}

/// The folders that together have all names that a filter includes, in the order of cursors.
fn folders_of(records: &(impl Records + ?Sized), filter: &AddressFilter) -> Result<Vec<PathBuf>, StoreError> {
    let all = Path::new(NAMES);
    let Some(host) = filter.host().map(|host| all.join(host.as_str())) else { return Ok(vec![all.to_owned()]) };
    let (mut of_modules, mut of_providers) = (vec![host.join("modules")], host.join("providers"));
    for name in filter.names() {
        of_providers.push(name.to_ascii_lowercase());
        let mut spelled = Vec::new();
        for folder in of_modules {
            let names = records.names_in(&folder)?.into_iter().filter(|stored| stored.eq_ignore_ascii_case(name));
            spelled.extend(names.map(|name| folder.join(name)));
        }
        of_modules = spelled;
    }
    Ok(of_modules.into_iter().chain([of_providers]).collect())
}

/// The values that `choose` takes from the names.
fn chosen_names<T>(
    records: &(impl Records + ?Sized),
    mut choose: impl FnMut(Artifact, IndexedName) -> Option<T>,
) -> Result<Vec<T>, StoreError> {
    let mut chosen = Vec::new();
    records.each_name(Path::new(NAMES), None, &mut |artifact, name| {
        chosen.extend(choose(artifact, name));
        ControlFlow::Continue(())
    })?;
    Ok(chosen)
}

/// The turns of the steps of one process. A step that lost a few times takes its turn, and those that read later wait for it:
/// so none is overtaken for ever.
#[derive(Debug, Default)]
pub struct Turns(Striped<Mutex<()>>);

impl Turns {
    /// Lets a step go first that has its turn.
    fn give_way(&self, group: &RecordGroup) {
        // A writer that waits in vain goes on: at worst both lose more rounds.
        drop(self.0.of(group).try_lock_for(MAX_TURN_WAIT));
    }

    /// Takes the turn, which ends on drop. Others give way before they read again.
    fn take(&self, group: &RecordGroup) -> Result<MutexGuard<'_, ()>, StoreError> {
        self.0.of(group).try_lock_for(MAX_TURN_WAIT).ok_or_else(|| StoreError::Busy(group.to_string()))
    }
}

/// One read-modify-write of the records of a group: it reads them, decides on changes, and writes all changes at the
/// end. If another thread wrote to the group meanwhile, nothing is written and the step is repeated from the first
/// read. A failed write may leave the first changes of a step in the store.
#[derive(Debug)]
pub struct RecordStep<'a> {
    /// The records as they are without this step.
    pub records: &'a dyn Records,
    changes: Vec<Change>,
    /// The damaged records that were read. They are quarantined with the changes, and before them.
    damaged: RefCell<BTreeSet<Key>>,
    /// The records that are made anew from others. The log has them once the step is written: one that lost may have read some records
    /// before, and some after another step.
    rebuilt: Vec<Key>,
}

impl<'a> RecordStep<'a> {
    fn of(records: &'a dyn Records) -> Self {
        Self { records, changes: Vec::new(), damaged: RefCell::default(), rebuilt: Vec::new() }
    }

    /// Reads a record as this step changes it. A damaged one is quarantined when the step is written, unless its existence
    /// matters.
    pub fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        self.read_as(key, Some)
    }

    /// Reads and parses a record like [`Self::read`]. One that cannot be parsed is damaged.
    pub fn read_as<T>(
        &self,
        key: &Key,
        parse: impl FnOnce(Vec<u8>) -> Option<T>,
    ) -> Result<ReadOutcome<T>, StoreError> {
        let changed =
            self.changes.iter().rev().find(|change| change.key == *key && change.action != RecordAction::Keep);
        let read = match changed.map(|change| &change.action) {
            Some(RecordAction::Put(record, _)) => ReadOutcome::Intact(record.clone()),
            Some(_) => ReadOutcome::Absent,
            None => self.records.read(key)?,
        };
        let parsed = read.parsed(parse);
        if matches!(parsed, ReadOutcome::Damaged) && changed.is_none() && !key.matters_when_damaged() {
            self.damaged.borrow_mut().insert(key.clone());
        }
        Ok(parsed)
    }

    /// The keys of the first-seen records of a provider's versions, as this step changes them.
    pub fn first_seen(&self, provider: &ProviderAddress) -> Result<BTreeSet<Key>, StoreError> {
        let is_wanted = |key: &Key| matches!(key, Key::FirstSeen(of, _) if of == provider);
        let folder = Key::folder("seen", provider);
        let mut keys = BTreeSet::from_iter(chosen_below(self.records, &folder, |key| is_wanted(&key).then_some(key))?);
        for Change { key, action, .. } in self.changes.iter().filter(|change| is_wanted(&change.key)) {
            match action {
                RecordAction::Put(..) => drop(keys.insert(key.clone())),
                RecordAction::Remove(_) | RecordAction::Quarantine => drop(keys.remove(key)),
                RecordAction::Keep => {}
            }
        }
        Ok(keys)
    }

    /// Replaces a record.
    pub fn put(&mut self, key: &Key, record: Vec<u8>, durability: Durability, entry: IndexEntry) {
        self.change(key, RecordAction::Put(record, durability), entry);
    }

    /// Replaces a record in JSON that has no entry in the index.
    pub fn put_json(&mut self, key: &Key, record: &impl Serialize, durability: Durability) {
        self.put(key, to_json(record), durability, IndexEntry::Unindexed);
    }

    /// Makes another change. It supersedes an earlier write of the record.
    pub fn change(&mut self, key: &Key, action: RecordAction, entry: IndexEntry) {
        if action != RecordAction::Keep {
            self.changes.retain(|change| change.key != *key || !matches!(change.action, RecordAction::Put(..)));
        }
        self.changes.push(Change { key: key.clone(), action, entry });
    }

    /// Makes the changes to a record after all others so far.
    pub fn postpone(&mut self, key: &Key) {
        self.changes.sort_by_key(|change| change.key == *key);
    }

    /// Makes the changes to a record before all others.
    pub fn make_first(&mut self, key: &Key) {
        self.changes.sort_by_key(|change| change.key != *key);
    }

    /// Notes that the change to a record makes it anew from others.
    pub fn is_rebuilt(&mut self, key: &Key) {
        self.rebuilt.push(key.clone());
    }

    /// Gives up all changes so far.
    pub fn abandon(&mut self) {
        self.changes.clear();
        self.rebuilt.clear();
    }

    /// All changes, in the order of the write.
    fn into_changes(self) -> Vec<Change> {
        let quarantine = |key| Change { key, action: RecordAction::Quarantine, entry: IndexEntry::Gone };
        self.damaged.into_inner().into_iter().map(quarantine).chain(self.changes).collect()
    }
}

/// A record in JSON.
pub fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("our own records are plain data, which always serialises")
}

impl dyn Records + '_ {
    /// Reads the group of `key`, decides, and writes the changes; again after a conflict. `decide` may run several
    /// times, and only its last result counts.
    ///
    /// # Errors
    /// `decide` or the write failed.
    pub fn change<T>(
        &self,
        key: &Key,
        decide: impl FnMut(&mut RecordStep<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (decided, written) = self.try_change(key, decide)?;
        written.map(|()| decided)
    }

    /// Does `change`, and returns the result of `decide` even if the write failed, together with the write's own
    /// result.
    ///
    /// # Errors
    /// `decide` failed, the group is busy, or the records that replicas share cannot be reached: then the decision may not
    /// hold.
    pub fn try_change<T>(
        &self,
        key: &Key,
        mut decide: impl FnMut(&mut RecordStep<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, Result<(), StoreError>), StoreError> {
        let group = key.group();
        let mut turn = None;
        for lost in 0..MAX_ROUNDS {
            if turn.is_none() {
                self.turns().give_way(&group);
            }
            let generation = self.generation(&group)?;
            let mut step = RecordStep::of(self);
            let decided = decide(&mut step)?;
            let rebuilt = std::mem::take(&mut step.rebuilt);
            match self.write(&group, generation, &step.into_changes()) {
                Ok(WriteOutcome::Conflict) => {}
                written => {
                    // Told also where the outcome is unknown.
                    for key in &rebuilt {
                        tracing::warn!(record = %key.path().display(), "a record was missing or damaged; it is rebuilt from the store");
                    }
                    return match written {
                        // Nobody knows whether the decision still holds.
                        Err(unreachable @ StoreError::Unreachable(_)) => Err(unreachable),
                        written => Ok((decided, written.map(drop))),
                    };
                }
            }
            match &turn {
                None if lost + 1 >= MAX_CONFLICTS => turn = Some((self.turns().take(&group)?, lost, Instant::now())),
                Some((_, first, since)) if lost > first + MAX_CONFLICTS && since.elapsed() > MAX_LOST_TIME => break,
                None | Some(_) => {}
            }
        }
        Err(StoreError::Busy(group.to_string()))
    }

    /// Reads a record. A damaged one is quarantined, logged, and treated as absent.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_as(key, Some).map(ReadOutcome::intact)
    }

    /// Reads and parses a record. A damaged one, or one that cannot be parsed, is quarantined in a step of its own, unless it
    /// is replaced meanwhile or its existence matters.
    pub fn read_as<T>(&self, key: &Key, parse: impl Fn(Vec<u8>) -> Option<T>) -> Result<ReadOutcome<T>, StoreError> {
        let read = self.read(key)?.parsed(&parse);
        if !matches!(read, ReadOutcome::Damaged) || key.matters_when_damaged() {
            return Ok(read);
        }
        let read = self.change(key, |step| step.read_as(key, &parse))?;
        // Another reader may have quarantined it. It is damaged all the same, and not a record that was removed.
        Ok(if matches!(read, ReadOutcome::Absent) { ReadOutcome::Damaged } else { read })
    }

    /// The values that `choose` takes from the names.
    pub fn names<T>(&self, choose: impl FnMut(Artifact, IndexedName) -> Option<T>) -> Result<Vec<T>, StoreError> {
        chosen_names(self, choose)
    }

    /// Replaces a record without an index entry, whatever it was.
    pub fn put(&self, key: &Key, record: &[u8], durability: Durability) -> Result<(), StoreError> {
        self.change_one(key, &RecordAction::Put(record.to_vec(), durability), &IndexEntry::Unindexed)
    }

    /// Removes a record, whatever it was.
    pub fn remove(&self, key: &Key, durability: Durability) -> Result<(), StoreError> {
        self.change_one(key, &RecordAction::Remove(durability), &IndexEntry::Gone)
    }

    /// Makes one change, whatever the record was.
    pub fn change_one(&self, key: &Key, action: &RecordAction, entry: &IndexEntry) -> Result<(), StoreError> {
        self.change(key, |step| {
            step.change(key, action.clone(), entry.clone());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::Store;

    fn seen(end: &str) -> Key {
        Key::from_path(&Path::new("seen/registry.example/providers/acme/null").join(end)).unwrap()
    }

    #[test]
    fn a_step_writes_each_record_once_and_lists_what_it_writes() {
        let folder = tempfile::tempdir().unwrap();
        let Store { records, .. } = Store::open(folder.path(), Clock::system().now()).unwrap();
        let [one, two, three] = ["1.0.0.json", "2.0.0.json", "3.0.0.json"].map(seen);
        let Key::FirstSeen(provider, _) = &one else { panic!("{one:?}") };
        let keys = Key::SigningKeyLog(provider.clone());
        records.put(&three, b"", Durability::Lazy).unwrap();
        let mut step = RecordStep::of(&*records);
        for (key, record) in [(&one, 1), (&keys, 1), (&two, 1), (&keys, 2), (&one, 2)] {
            step.put_json(key, &record, Durability::Lazy);
            step.postpone(&keys);
        }
        step.change(&three, RecordAction::Remove(Durability::Lazy), IndexEntry::Unindexed);
        assert_eq!(step.first_seen(provider).unwrap(), BTreeSet::from([one.clone(), two.clone()]));
        let changed: Vec<&Key> = step.changes.iter().map(|change| &change.key).collect();
        assert_eq!(changed, [&two, &one, &keys, &three]);
        assert_eq!(step.read(&keys).unwrap(), ReadOutcome::Intact(b"2".to_vec()));
    }
}
