//! First-seen records of module versions. Never evicted: nothing else shows that a tag was moved.

use serde::{Deserialize, Serialize};

use crate::address::{Address, ModuleAddress, ModulePackage, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::counters::{REPUBLISHED, SEEN_DAMAGED};
use crate::mirror::library::Catalog;
use crate::mirror::library::alarms::{AlarmFinding, NewAlarm};
use crate::mirror::library::evidence::EvidenceFact;
use crate::mirror::{AlarmKind, Library};
use crate::store::{Durability, Key, ReadOutcome, RecordStep, StoreError, to_json};
use crate::upstream::request::Validators;
use crate::upstream::source::Unsupported;
use crate::verify::PackedTree;

/// The first-seen record of a module version, and the differences found since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleFirstSeen {
    pub first_seen: Timestamp,
    /// The first-seen tree: the one seen first, or the one that an operator accepted since. No other is served.
    #[serde(rename = "pinned")]
    pub tree: ModuleTree,
    /// A different tree that upstream served since, not accepted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<ModuleTree>,
    /// The time at which upstream last confirmed the location whose tree was compared last.
    #[serde(rename = "looked")]
    pub location_checked: Timestamp,
    /// True if `fold_case` was on when this was recorded. The record then covers every spelling of the module.
    #[serde(default)]
    pub folded: bool,
    /// The kind of source that upstream has moved the version to, if larder cannot fetch that.
    #[serde(rename = "elsewhere", default, skip_serializing_if = "Option::is_none")]
    pub unsupported_source: Option<String>,
}

/// A tree of a module version: fetched from its location, found unchanged there, or named by a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleTree {
    /// The tree, as the proof of an archive packed from it. Of the location, only a digest is recorded, because the
    /// location itself may hold secrets.
    #[serde(flatten)]
    pub packed: PackedTree,
    /// The validators of an archive's server, for conditional requests.
    #[serde(default)]
    pub validators: Validators,
    /// The time of the fetch.
    pub at: Timestamp,
}

impl ModuleTree {
    pub fn has_validators(&self) -> bool {
        self.validators != Validators::default()
    }
}

impl PackedTree {
    /// The fact that this tree is to be that of the version.
    pub fn fact(&self, version: &Version) -> EvidenceFact {
        let (digest, subdir) = (self.tree_digest, self.subdir.clone());
        EvidenceFact::Tree { version: version.clone(), digest, subdir }
    }

    /// True if both are the same module, whatever packed them. Another folder of the same tree is another module.
    pub fn is_same_module(&self, other: &Self) -> bool {
        self.tree_digest == other.tree_digest && self.subdir == other.subdir
    }
}

impl ModuleFirstSeen {
    fn of(first_seen: Timestamp, tree: ModuleTree, location_checked: Timestamp) -> Self {
        Self { first_seen, tree, moved: None, location_checked, folded: false, unsupported_source: None }
    }

    /// True if upstream serves something else now, not accepted yet.
    pub fn has_moved(&self) -> bool {
        self.moved.is_some() || self.unsupported_source.is_some()
    }
}

/// The stored record of a version.
#[expect(clippy::large_enum_variant, reason = "short-lived: it is read or written at once")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ModuleFirstSeenRecord {
    Seen(ModuleFirstSeen),
    /// An operator accepted that larder cannot fetch the version any more. Archives and other spellings do not restore
    /// the record.
    Forgotten {
        forgotten: Timestamp,
    },
}

/// The result of comparing a tree with the first-seen record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeComparison {
    /// It is the first-seen tree.
    Consistent,
    /// It differs from the first-seen tree.
    Moved {
        /// The digest of the first-seen tree.
        first_seen: Digest,
    },
    /// The record is lost, so the tree cannot be compared.
    Lost,
}

/// Reads the first-seen record of a version, and restores it where possible. A forgotten record is absent: the next tree
/// is the first. No tree matches a damaged record that nothing can restore.
///
/// # Errors
/// The disk failed. The next tree must not be taken for the first then.
pub fn read_first_seen(library: &Library, package: &ModulePackage) -> Result<ReadOutcome<ModuleFirstSeen>, StoreError> {
    update_record(library, package, |_, recorded| Ok(recorded))
}

/// Reads the record of a version, and writes the record that `update` puts, synced.
fn update_record<T>(
    library: &Library,
    package: &ModulePackage,
    update: impl Fn(&mut FirstSeenStep<'_, '_>, ReadOutcome<ModuleFirstSeen>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let (address, key) = (Address::from(&package.module), Key::ModuleFirstSeen(package.clone()));
    let (updated, written) = library.change_with_alarms(&address, &key, |step, alarms| {
        let mut step = FirstSeenStep { library, package, step, alarms };
        let recorded = step.read()?;
        update(&mut step, recorded)
    })?;
    written.map(|()| updated)
}

/// One read-modify-write of the record of a version.
struct FirstSeenStep<'a, 'b> {
    library: &'a Library,
    package: &'a ModulePackage,
    step: &'a mut RecordStep<'b>,
    /// The alarms to raise with it.
    alarms: &'a mut Vec<NewAlarm>,
}

impl FirstSeenStep<'_, '_> {
    /// Reads the record. Restores it from a stored archive if it is damaged, and from other spellings after a change of
    /// `fold_case`.
    fn read(&mut self) -> Result<ReadOutcome<ModuleFirstSeen>, StoreError> {
        let (folds, package) = (self.folds(), self.package);
        let mut is_lost = match self.read_spelling(package)? {
            // Marks the record as covering every spelling, so that it still does after `fold_case` changes again.
            ReadOutcome::Intact(ModuleFirstSeenRecord::Seen(seen)) if folds && !seen.folded => {
                return Ok(self.put(seen));
            }
            ReadOutcome::Intact(ModuleFirstSeenRecord::Seen(seen)) => return Ok(ReadOutcome::Intact(seen)),
            ReadOutcome::Intact(ModuleFirstSeenRecord::Forgotten { .. }) => return Ok(ReadOutcome::Absent),
            ReadOutcome::Absent => false,
            ReadOutcome::Damaged => true,
        };
        // The name record before other spellings: it also reflects a later `accept`.
        if let Some(seen) = rebuild_from_name_record(self.step, package)? {
            tracing::error!(%package, "the first-seen record of a module version was lost; it is rebuilt from its archive");
            return Ok(self.put(seen));
        }
        let others = match package.folded() {
            _ if folds => {
                let spellings = self.library.store.records.spellings_seen(&package.module)?.into_iter();
                spellings.map(|module| ModulePackage { module, version: package.version.clone() }).collect()
            }
            // Without `fold_case` two spellings are two modules. The folded spelling has a record of this module only
            // if `fold_case` was on when it was written.
            folded if folded != *package => vec![folded],
            _ => vec![],
        };
        for other in others {
            match self.read_spelling(&other)? {
                ReadOutcome::Intact(ModuleFirstSeenRecord::Seen(seen)) if folds || seen.folded => {
                    tracing::info!(%package, as = %other, "the first-seen record of a module version was found under another spelling");
                    return Ok(self.put(seen));
                }
                ReadOutcome::Damaged => is_lost = true,
                ReadOutcome::Intact(_) | ReadOutcome::Absent => {}
            }
        }
        Ok(if is_lost { ReadOutcome::Damaged } else { ReadOutcome::Absent })
    }

    /// The record under one spelling. A damaged record is left in place: it proves that a tree was seen, until a new
    /// record replaces it.
    fn read_spelling(&self, package: &ModulePackage) -> Result<ReadOutcome<ModuleFirstSeenRecord>, StoreError> {
        Ok(self.step.read(&Key::ModuleFirstSeen(package.clone()))?.json())
    }

    /// True if the upstream treats all spellings of a module as one (`fold_case`).
    fn folds(&self) -> bool {
        let config = self.library.runtime.config();
        config.upstreams.get(&self.package.module.host).is_some_and(|upstream| upstream.settings.fold_case)
    }

    fn put(&mut self, mut seen: ModuleFirstSeen) -> ReadOutcome<ModuleFirstSeen> {
        seen.folded |= self.folds();
        let record = ModuleFirstSeenRecord::Seen(seen.clone());
        self.step.put_json(&Key::ModuleFirstSeen(self.package.clone()), &record, Durability::Synced);
        ReadOutcome::Intact(seen)
    }

    fn raise(&mut self, kind: AlarmKind, detail: String, fact: EvidenceFact, time: Timestamp) {
        let (subject, facts) = (kind.of(&self.package.version), [fact].into());
        self.alarms.push(NewAlarm { subject, finding: AlarmFinding { detail, facts }, time });
    }
}

/// Rebuilds the record from the name record, which lists the stored archives.
fn rebuild_from_name_record(
    step: &RecordStep<'_>,
    package: &ModulePackage,
) -> Result<Option<ModuleFirstSeen>, StoreError> {
    let name_record = Catalog::name_record_in(step, package)?;
    let last_stored =
        name_record.archives.iter().rev().find_map(|archive| archive.proof.how.tree().zip(Some(archive.stored_at)));
    Ok(last_stored.map(|(packed, stored_at)| {
        let tree = ModuleTree { packed: packed.clone(), validators: Validators::default(), at: stored_at };
        ModuleFirstSeen::of(stored_at, tree, Timestamp(0))
    }))
}

/// The reason for comparing a tree with the first-seen record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonPurpose {
    /// An archive of the tree is about to be stored. The first tree of a version creates the record.
    Store,
    /// Only the comparison. It never creates a record.
    Recheck {
        /// The time at which upstream last confirmed the location that led to the tree.
        location_checked: Timestamp,
    },
}

/// Compares a tree with the record and updates the record, synced before the archive is visible. A tree that is not the
/// first-seen one raises an alarm, in the same step.
///
/// # Errors
/// The record could not be written. Then the archive must not be stored.
pub fn compare(
    library: &Library,
    package: &ModulePackage,
    tree: &ModuleTree,
    purpose: ComparisonPurpose,
) -> Result<TreeComparison, StoreError> {
    let fact = || tree.packed.fact(&package.version);
    update_record(library, package, |step, recorded| {
        let mut seen = match recorded {
            ReadOutcome::Intact(seen) => seen,
            ReadOutcome::Damaged => {
                step.raise(AlarmKind::DamagedRecord, DAMAGED_RECORD_DETAIL.to_owned(), fact(), tree.at);
                return Ok(TreeComparison::Lost);
            }
            ReadOutcome::Absent => {
                if purpose == ComparisonPurpose::Store {
                    step.put(ModuleFirstSeen::of(tree.at, tree.clone(), tree.at));
                }
                return Ok(TreeComparison::Consistent);
            }
        };
        seen.location_checked = match purpose {
            ComparisonPurpose::Store => tree.at,
            ComparisonPurpose::Recheck { location_checked } => location_checked,
        };
        seen.unsupported_source = None;
        let comparison = if seen.tree.packed.is_same_module(&tree.packed) {
            seen.tree = tree.clone();
            seen.moved = None;
            TreeComparison::Consistent
        } else {
            let first_seen = seen.tree.packed.tree_digest;
            let PackedTree { tree_digest, commit, .. } = &tree.packed;
            let (commit, folder_note) = (commit.as_deref().unwrap_or("none"), folder_note(tree, first_seen));
            let detail =
                format!("its tree is {tree_digest} (commit {commit}); it was {first_seen} at first{folder_note}");
            step.raise(AlarmKind::Moved, detail, fact(), tree.at);
            seen.moved = Some(tree.clone());
            TreeComparison::Moved { first_seen }
        };
        step.put(seen);
        Ok(comparison)
    })
}

/// Makes a tree the first-seen one, because an operator accepts it.
pub fn accept(library: &Library, package: &ModulePackage, tree: &ModuleTree) -> Result<(), StoreError> {
    update_record(library, package, |step, recorded| {
        let (first_seen, folded) = recorded.intact().map_or((tree.at, false), |seen| (seen.first_seen, seen.folded));
        step.put(ModuleFirstSeen { folded, ..ModuleFirstSeen::of(first_seen, tree.clone(), tree.at) });
        Ok(())
    })
}

/// Forgets the record of a version, because an operator accepts that larder cannot fetch it any more.
pub fn forget(library: &Library, package: &ModulePackage, now: Timestamp) -> Result<(), StoreError> {
    let key = Key::ModuleFirstSeen(package.clone());
    let record = to_json(&ModuleFirstSeenRecord::Forgotten { forgotten: now });
    library.store.records.put(&key, &record, Durability::Synced)
}

/// Records that upstream moved a version to a source that larder cannot fetch, with an alarm in the same step. Returns what
/// was seen before; `None` if no tree of the version was ever recorded.
pub fn record_external_move(
    library: &Library,
    package: &ModulePackage,
    source: &Unsupported,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let (kind, source) = (source.kind_name(), source.describe().to_string());
    update_record(library, package, |step, recorded| {
        let Some(before) = describe_seen(&recorded) else { return Ok(None) };
        if let ReadOutcome::Intact(mut seen) = recorded
            && seen.unsupported_source.as_deref() != Some(kind)
        {
            seen.unsupported_source = Some(kind.to_owned());
            step.put(seen);
        }
        let fact = EvidenceFact::Source { version: package.version.clone(), source: source.clone() };
        step.raise(AlarmKind::Moved, format!("upstream has it at {source}; {before}"), fact, now);
        Ok(Some(before))
    })
}

/// Describes for people how a version was seen first; `None` without a record.
pub fn describe_seen(recorded: &ReadOutcome<ModuleFirstSeen>) -> Option<String> {
    match recorded {
        ReadOutcome::Absent => None,
        ReadOutcome::Intact(seen) => Some(format!("the first-seen tree has digest {}", seen.tree.packed.tree_digest)),
        ReadOutcome::Damaged => Some("the first-seen record is damaged".to_owned()),
    }
}

const DAMAGED_RECORD_DETAIL: &str = "its first-seen record is damaged, and no stored archive can rebuild it";

/// Restores the first-seen record of a version if anything stored allows it. Returns false, and raises an alarm, if it
/// stays lost until `accept`.
pub fn restore_first_seen(library: &Library, package: &ModulePackage, now: Timestamp) -> Result<bool, StoreError> {
    let is_lost = read_first_seen(library, package)? == ReadOutcome::Damaged;
    if is_lost {
        library.raise_alarm(&package.module, AlarmKind::DamagedRecord.of(&package.version), DAMAGED_RECORD_DETAIL, now);
    }
    Ok(!is_lost)
}

impl Library {
    /// The versions of a module with first-seen records. Blocks.
    pub fn module_packages_seen(&self, module: &ModuleAddress) -> Result<Vec<ModulePackage>, StoreError> {
        self.store.records.module_packages_seen(module)
    }

    /// Refuses a tree that was found to differ from the first-seen one, or whose record is lost. `package` is
    /// spelled as it was requested, `canonical` as it is stored. `accept_command` is the command that accepts the tree.
    ///
    /// # Errors
    /// [`Error::Unaccepted`] unless the tree is the first-seen one.
    pub fn require_first_seen_tree(
        &self,
        package: &ModulePackage,
        canonical: &ModulePackage,
        module_tree: &ModuleTree,
        comparison: TreeComparison,
        accept_command: &str,
    ) -> Result<(), Error> {
        let PackedTree { tree_digest: tree, commit, .. } = &module_tree.packed;
        let commit = commit.as_deref().unwrap_or("none");
        let verdict = match comparison {
            TreeComparison::Consistent => return Ok(()),
            TreeComparison::Moved { first_seen } => {
                tracing::error!(%package, %tree, %first_seen, commit, "ALARM: upstream has published a module version again, with a tree other than the first-seen one; it is not served until it is accepted");
                self.runtime.counters.count_unverified(&canonical.module.host, REPUBLISHED);
                let folder_note = folder_note(module_tree, first_seen);
                format!(
                    "its tree has digest {tree}, but the first-seen one has {first_seen}{folder_note}: upstream has moved it"
                )
            }
            TreeComparison::Lost => {
                tracing::error!(%package, %tree, commit, "ALARM: the first-seen record of a module version is damaged, and no stored archive can rebuild it; it is not served until it is accepted");
                self.runtime.counters.count_unverified(&canonical.module.host, SEEN_DAMAGED);
                format!(
                    "its tree has digest {tree}, and its first-seen record is damaged, so a move by upstream cannot be detected"
                )
            }
        };
        let (subject, command) = (format!("the archive of {package}"), accept_command.to_owned());
        Err(Error::Unaccepted { subject, verdict, command, instead: None })
    }
}

/// The part of a message about a tree with the digest of the first-seen one, which is another module all the same.
fn folder_note(tree: &ModuleTree, first_seen: Digest) -> &'static str {
    if tree.packed.tree_digest == first_seen { ", with the module in another folder" } else { "" }
}
