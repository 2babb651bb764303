//! Findings that a person must resolve, and the one decision which of them an event resolves. Stored as one record per
//! address, they survive a restart until they are resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::address::{Address, ModulePackage, Package, Platform, Version, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::alarm_kind::AlarmKind;
use crate::mirror::library::evidence::{Evidence, EvidenceFact, EvidenceName};
use crate::mirror::library::first_seen::AcceptScope;
use crate::mirror::{Connectivity, Library};
use crate::store::{Durability, IndexEntry, Key, RecordAction, Store, StoreError};

/// Maximum number of alarms per address and kind, so that one upstream cannot crowd out the alarms of another.
const MAX_ALARMS_PER_KIND: usize = 1000;

/// A finding that a person must resolve. It stays in `status` until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// The kind of finding.
    pub kind: AlarmKind,
    /// `HOST/NAMESPACE/TYPE`, or `HOST/NAMESPACE/NAME/SYSTEM`
    pub address: String,
    /// The version it was found with.
    pub version: String,
    /// The evidence: digests, files, and keys by their fingerprints.
    pub detail: String,
    /// The time it was found, in seconds since 1970.
    pub since: Timestamp,
    /// The command that resolves it; none if only upstream can. It depends on whether larder is offline, so it is written
    /// when the alarm is read, and a stored one counts for nothing.
    pub resolve: Option<String>,
    /// The evidence that an `accept` by that command decides about; none if it needs none, or is a bundle's. Written when the
    /// alarm is read, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceName>,
}

/// The finding that raises an alarm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlarmFinding {
    /// The text for people.
    pub detail: String,
    /// The facts that a person decides about.
    pub facts: BTreeSet<EvidenceFact>,
}

impl From<String> for AlarmFinding {
    fn from(detail: String) -> Self {
        Self { detail, facts: BTreeSet::new() }
    }
}

impl From<&str> for AlarmFinding {
    fn from(detail: &str) -> Self {
        detail.to_owned().into()
    }
}

/// An alarm in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RaisedAlarm {
    alarm: Alarm,
    facts: BTreeSet<EvidenceFact>,
}

impl AlarmKind {
    /// The subject of an alarm of this kind about a version as a whole.
    pub(in crate::mirror) fn of(self, version: &Version) -> AlarmSubject {
        AlarmSubject { kind: self, version: version.clone(), part: AlarmPart::Version }
    }

    /// The command that resolves it. Offline, that is a bundle applied with `--accept`.
    fn resolve_command(self, address: &Address, version: &str, link: Connectivity) -> Option<String> {
        match self {
            Self::Dropped => None,
            _ if link == Connectivity::Offline => {
                Some(format!("larder bundle apply BUNDLE --accept {address}@{version}"))
            }
            kind if kind.concerns_provider() => Some(format!("larder accept {address}")),
            _ => Some(format!("larder accept {address}@{version}")),
        }
    }
}

#[derive(Debug)]
pub struct Alarms {
    store: Arc<Store>,
    /// Never locked during disk I/O.
    raised: Mutex<BTreeMap<Address, AlarmsOfAddress>>,
    /// The number of changes to any of them.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct AlarmsOfAddress {
    alarms: BTreeMap<AlarmSubject, RaisedAlarm>,
    /// Entries that this version of larder cannot read. They are written back unchanged.
    unreadable: Vec<Box<RawValue>>,
    /// The number of the last change, and of the last that is saved. After a failed save, the next change saves again.
    changed: u64,
    saved: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct AlarmsRecord {
    alarms: Vec<Box<RawValue>>,
}

/// One alarm in a record. Records of older stores lack `platform`, `key` and `facts`.
#[derive(Debug, Serialize, Deserialize)]
struct AlarmEntry {
    #[serde(flatten)]
    alarm: Alarm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    facts: BTreeSet<EvidenceFact>,
}

impl AlarmEntry {
    fn read(raw: &RawValue) -> Option<(AlarmSubject, RaisedAlarm)> {
        let Self { alarm, platform, key, facts } = serde_json::from_str(raw.get()).ok()?;
        let version = Version::parse_of_module(&alarm.version).ok()?;
        let part = match (platform, key) {
            (Some(platform), _) => AlarmPart::Platform(platform),
            (None, Some(key)) => AlarmPart::Key(key),
            (None, None) => AlarmPart::Version,
        };
        Some((AlarmSubject { kind: alarm.kind, version, part }, RaisedAlarm { alarm, facts }))
    }

    fn written(subject: &AlarmSubject, RaisedAlarm { alarm, facts }: &RaisedAlarm) -> Option<Box<RawValue>> {
        let (platform, key) = match &subject.part {
            AlarmPart::Version => (None, None),
            AlarmPart::Platform(platform) => (Some(platform.clone()), None),
            AlarmPart::Key(key) => (None, Some(key.clone())),
        };
        serde_json::value::to_raw_value(&Self { alarm: alarm.clone(), platform, key, facts: facts.clone() }).ok()
    }
}

impl AlarmsOfAddress {
    fn read(record: AlarmsRecord) -> Self {
        let mut read = Self::default();
        for raw in record.alarms {
            match AlarmEntry::read(&raw) {
                Some((subject, alarm)) => drop(read.alarms.insert(subject, alarm)),
                None => read.unreadable.push(raw),
            }
        }
        read
    }

    /// The record to save; `None` if there are no alarms.
    fn written(&self) -> Option<AlarmsRecord> {
        let entries = self.alarms.iter().filter_map(|(subject, alarm)| AlarmEntry::written(subject, alarm));
        let alarms: Vec<_> = entries.chain(self.unreadable.iter().cloned()).collect();
        (!alarms.is_empty()).then_some(AlarmsRecord { alarms })
    }

    /// The evidence that the command of an alarm decides about: that of all alarms which the command ends.
    fn evidence_of(&self, address: &Address, subject: &AlarmSubject) -> Option<EvidenceName> {
        if subject.kind == AlarmKind::Dropped {
            return None;
        }
        let scope = if subject.kind.concerns_provider() { AcceptScope::Provider } else { AcceptScope::Version };
        let ended = self.alarms.iter().filter(|(other, _)| {
            other.kind != AlarmKind::Dropped && (scope == AcceptScope::Provider || other.version == subject.version)
        });
        let facts = ended.flat_map(|(other, raised)| {
            let counts = |fact: &&EvidenceFact| fact.counts(scope, other.kind.concerns_provider());
            raised.facts.iter().filter(counts).cloned()
        });
        let evidence = Evidence(facts.collect());
        (!evidence.is_empty()).then(|| evidence.name(address))
    }

    /// Adds or updates an alarm.
    fn set(&mut self, subject: AlarmSubject, raised: RaisedAlarm) -> RaiseOutcome {
        let kind = subject.kind;
        let mut of_this_kind = self.alarms.keys().filter(|raised| raised.kind == kind);
        match self.alarms.get(&subject) {
            Some(before) if before.alarm.detail == raised.alarm.detail && before.facts == raised.facts => {
                return RaiseOutcome::Unchanged;
            }
            // One is enough for the provider, whatever the version.
            _ if kind == AlarmKind::SignatureLost
                && of_this_kind.clone().any(|raised| raised.version != subject.version) =>
            {
                return RaiseOutcome::Unchanged;
            }
            None if of_this_kind.nth(MAX_ALARMS_PER_KIND - 1).is_some() => return RaiseOutcome::TooMany,
            Some(_) | None => {}
        }
        // Replaces the alarm of an older store, which did not name its platform.
        if kind != AlarmKind::NewKey {
            self.alarms.remove(&AlarmSubject { part: AlarmPart::Version, ..subject.clone() });
        }
        self.alarms.insert(subject, raised);
        RaiseOutcome::New
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RaiseOutcome {
    New,
    /// An equal alarm was raised before.
    Unchanged,
    /// The limit of alarms of this kind and address is reached.
    TooMany,
}

impl Alarms {
    /// Loads the stored alarms.
    ///
    /// # Errors
    /// The store failed.
    pub fn load(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut raised = BTreeMap::new();
        for address in store.records.addresses_with_alarms()? {
            let parse = |record: Vec<u8>| serde_json::from_slice(&record).ok();
            let Some(record) = store.records.read_as(&Key::Alarms(address.clone()), parse)?.intact() else { continue };
            let read = AlarmsOfAddress::read(record);
            if !read.unreadable.is_empty() {
                tracing::error!(%address, alarms = read.unreadable.len(), "alarms cannot be read (damaged, or written by a newer larder); they are left unchanged");
            }
            raised.insert(address, read);
        }
        Ok(Self { store, raised: Mutex::new(raised), changes: AtomicU64::default() })
    }

    /// Resolves the alarms that an event resolves, and returns their subjects.
    pub fn resolve(&self, address: &Address, event: &AlarmEvent<'_>) -> Vec<AlarmSubject> {
        if !self.has(address) {
            return Vec::new();
        }
        self.change(address, |entry| {
            let resolved: Vec<AlarmSubject> =
                entry.alarms.keys().filter(|subject| event.resolves(subject)).cloned().collect();
            for subject in &resolved {
                entry.alarms.remove(subject);
            }
            (!resolved.is_empty(), resolved)
        })
    }

    fn has(&self, address: &Address) -> bool {
        self.raised.lock().get(address).is_some_and(|entry| !entry.alarms.is_empty())
    }

    /// Retries a failed save of the alarms of an address. Returns true if all changes until now are saved.
    pub(super) fn are_saved(&self, address: &Address) -> bool {
        let wanted = self.raised.lock().get(address).map_or(0, |entry| entry.changed);
        // Others may make changes meanwhile, and save them.
        let are_saved = || self.raised.lock().get(address).is_none_or(|entry| entry.saved >= wanted);
        are_saved() || {
            self.save(address);
            are_saved()
        }
    }

    /// The subjects of the alarms of an address that match.
    pub fn subjects(&self, address: &Address, is_meant: impl Fn(&AlarmSubject) -> bool) -> Vec<AlarmSubject> {
        let raised = self.raised.lock();
        let subjects = raised.get(address).into_iter().flat_map(|entry| entry.alarms.keys());
        subjects.filter(|subject| is_meant(subject)).cloned().collect()
    }

    /// All alarms, each with the command that resolves it while larder has this connectivity. A finding for several
    /// platforms of a version is one alarm: one event, and one decision.
    pub fn all(&self, link: Connectivity) -> Vec<Alarm> {
        let raised = self.raised.lock();
        let mut all = Vec::new();
        for (address, entry) in &*raised {
            let alarms: Vec<(&AlarmSubject, &Alarm)> =
                entry.alarms.iter().map(|(subject, raised)| (subject, &raised.alarm)).collect();
            for event in alarms.chunk_by(|(one, _), (other, _)| one.is_same_event(other)) {
                let [(subject, alarm), ..] = event else { continue };
                all.push(Alarm {
                    detail: detail_of(event),
                    since: event.iter().map(|(_, alarm)| alarm.since).min().unwrap_or(alarm.since),
                    resolve: alarm.kind.resolve_command(address, &alarm.version, link),
                    evidence: entry.evidence_of(address, subject).filter(|_| link != Connectivity::Offline),
                    ..(*alarm).clone()
                });
            }
        }
        all
    }

    /// Changes the alarms of an address and saves them if `change` returns true.
    fn change<T>(&self, address: &Address, change: impl FnOnce(&mut AlarmsOfAddress) -> (bool, T)) -> T {
        let returned = {
            let mut raised = self.raised.lock();
            let entry = raised.entry(address.clone()).or_default();
            let (is_to_save, returned) = change(entry);
            if !is_to_save {
                return returned;
            }
            entry.changed = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
            returned
        };
        self.save(address);
        returned
    }

    /// Saves the alarms of an address. A failure is logged.
    fn save(&self, address: &Address) {
        let key = Key::Alarms(address.clone());
        // Another change of the address may be saved with this one.
        let saved = self.store.records.change(&key, |step| {
            let (changed, record) = {
                let raised = self.raised.lock();
                let entry = raised.get(address);
                (entry.map_or(0, |entry| entry.changed), entry.and_then(AlarmsOfAddress::written))
            };
            match record {
                Some(record) => step.put_json(&key, &record, Durability::Synced),
                None => step.change(&key, RecordAction::Remove(Durability::Synced), IndexEntry::Unindexed),
            }
            Ok(changed)
        });
        match saved {
            Ok(changed) => {
                let mut raised = self.raised.lock();
                if let Some(entry) = raised.get_mut(address) {
                    entry.saved = entry.saved.max(changed);
                    if entry.saved == entry.changed && entry.written().is_none() {
                        raised.remove(address);
                    }
                }
            }
            Err(error) => {
                tracing::error!(%address, %error, to_do = error.remedy(), "an alarm could not be written: it is in memory only");
            }
        }
    }
}

impl Library {
    /// Raises an alarm, once for the same finding. When this returns, it is in the store, or in memory only if it could not
    /// be saved.
    pub(in crate::mirror) fn raise_alarm(
        &self,
        address: impl Into<Address>,
        subject: AlarmSubject,
        finding: impl Into<AlarmFinding>,
        time: Timestamp,
    ) {
        let AlarmFinding { detail, facts } = finding.into();
        let (address, kind, version) = (address.into(), subject.kind, subject.version.clone());
        let raised = self.alarms.change(&address, |entry| {
            let alarm = Alarm {
                kind,
                address: address.to_string(),
                version: version.to_string(),
                detail,
                since: time,
                resolve: None,
                evidence: None,
            };
            let raised = entry.set(subject, RaisedAlarm { alarm, facts });
            (raised == RaiseOutcome::New, raised)
        });
        match raised {
            RaiseOutcome::New => self.runtime.counters.alarm(kind),
            // Another thread may be about to save it.
            RaiseOutcome::Unchanged => drop(self.alarms.are_saved(&address)),
            RaiseOutcome::TooMany => {
                tracing::error!(%address, %version, kind = kind.name(), "there are too many alarms of this kind about it: this one is only logged");
            }
        }
    }

    /// Resolves the alarms about the tree of a module version, because it is the first-seen one now. Returns their
    /// number. Writes to disk if there are any.
    pub(in crate::mirror) fn resolve_tree_alarms(&self, ModulePackage { module, version }: &ModulePackage) -> usize {
        self.alarms.resolve(&module.into(), &AlarmEvent::TreeMatches { version }).len()
    }

    /// Resolves alarms like [`Self::resolve_tree_alarms`], for async code.
    pub(in crate::mirror) async fn resolve_tree_alarms_async(
        self: &Arc<Self>,
        package: &ModulePackage,
    ) -> Result<usize, Error> {
        let package = package.clone();
        self.on_disk(move |library| Ok(library.resolve_tree_alarms(&package))).await
    }

    /// Resolves the alarms that only a purge of these versions resolves. Writes to disk.
    pub(in crate::mirror) fn resolve_alarms_of_purged(
        &self,
        address: impl Into<Address>,
        versions: &Versions,
        left: &BTreeSet<Version>,
    ) {
        let address = address.into();
        let is_configured = self.runtime.config().upstream(address.host()).is_ok();
        self.alarms.resolve(&address, &AlarmEvent::Purged { versions, left, is_configured });
    }

    /// Raises an alarm for each stored version that upstream's list has dropped, and resolves those of all others.
    pub(in crate::mirror) async fn update_dropped_alarms(
        self: &Arc<Self>,
        address: impl Into<Address>,
        dropped: Vec<Version>,
        time: Timestamp,
    ) -> Result<(), Error> {
        let address = address.into();
        let before = self.alarms.subjects(&address, |subject| subject.kind == AlarmKind::Dropped);
        let before: Vec<Version> = before.into_iter().map(|subject| subject.version).collect();
        if before == dropped {
            return Ok(());
        }
        self.on_disk(move |library| {
            library.alarms.resolve(&address, &AlarmEvent::ListRead { dropped: &dropped });
            for version in &dropped {
                let detail = "upstream lists it no more; it is stored, and stays listed here (keep_gone)";
                library.raise_alarm(&address, AlarmKind::Dropped.of(version), detail, time);
            }
            Ok(())
        })
        .await
    }

    /// The unresolved alarms, at most a thousand of each kind about each address.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.all(self.runtime.connectivity())
    }
}

/// The identity of an alarm within its address. A new alarm replaces only one with the same subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AlarmSubject {
    pub kind: AlarmKind,
    pub version: Version,
    pub part: AlarmPart,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmPart {
    /// The version as a whole.
    Version,
    /// The proof set of this platform.
    Platform(Platform),
    /// The key with this fingerprint.
    Key(String),
}

/// The detail of an event. Further platforms are named where their findings are the same, and have their own text where
/// they differ.
fn detail_of(event: &[(&AlarmSubject, &Alarm)]) -> String {
    // The platform is named once, before the file and the digests.
    let without_platform = |(subject, alarm): &(&AlarmSubject, &Alarm)| match &subject.part {
        AlarmPart::Platform(platform) => alarm.detail.replacen(&platform.to_string(), "", 1),
        AlarmPart::Version | AlarmPart::Key(_) => alarm.detail.clone(),
    };
    let [first, others @ ..] = event else { return String::new() };
    let (same, different): (Vec<_>, Vec<_>) =
        others.iter().partition(|other| without_platform(other) == without_platform(first));
    let mut detail = first.1.detail.clone();
    let platforms: Vec<String> = same
        .iter()
        .filter_map(|(subject, _)| match &subject.part {
            AlarmPart::Platform(platform) => Some(platform.to_string()),
            AlarmPart::Version | AlarmPart::Key(_) => None,
        })
        .collect();
    if !platforms.is_empty() {
        detail.push_str(&format!("; the same for {}", platforms.join(", ")));
    }
    different.iter().for_each(|(_, alarm)| detail.push_str(&format!("; {}", alarm.detail)));
    detail
}

impl AlarmSubject {
    /// True if the alarms are about one finding for two platforms of a version.
    fn is_same_event(&self, other: &Self) -> bool {
        let is_of_platform = |subject: &Self| matches!(subject.part, AlarmPart::Platform(_));
        self.kind == other.kind && self.version == other.version && is_of_platform(self) && is_of_platform(other)
    }

    /// True if an `accept` of this scope that ends the alarm decides about the set of this package and signer.
    pub fn is_about(&self, package: &Package, key: Option<&str>, scope: AcceptScope) -> bool {
        if self.version != package.version || (scope == AcceptScope::Provider && self.kind.concerns_provider()) {
            return false;
        }
        match &self.part {
            AlarmPart::Version => true,
            AlarmPart::Platform(platform) => *platform == package.platform,
            AlarmPart::Key(signer) => key == Some(signer),
        }
    }

    /// True for an alarm that `accept` of a provider may resolve.
    pub fn is_resolved_by_accept(&self) -> bool {
        !matches!(self.kind, AlarmKind::Moved | AlarmKind::Dropped)
    }
}

/// The findings of an `accept` for one version.
#[derive(Debug, Default)]
pub struct AcceptedFinding {
    /// The platforms whose sets were accepted, each with the fingerprint of its signer.
    pub accepted: BTreeMap<Platform, Option<String>>,
    /// The platforms that upstream has deleted.
    pub gone: BTreeSet<Platform>,
    /// The platforms that could not be fetched.
    pub failed: BTreeSet<Platform>,
    pub is_unlisted: bool,
}

impl AcceptedFinding {
    pub fn one(platform: Platform, signer: Option<String>) -> Self {
        Self { accepted: [(platform, signer)].into(), ..Self::default() }
    }

    /// True if upstream has deleted the version.
    pub fn is_withdrawn(&self) -> bool {
        self.accepted.is_empty() && self.failed.is_empty() && (self.is_unlisted || !self.gone.is_empty())
    }

    fn is_signed_by(&self, key: &str) -> bool {
        self.accepted.values().flatten().any(|signer| signer == key)
    }
}

/// An event that may resolve alarms of an address.
#[derive(Debug)]
pub enum AlarmEvent<'a> {
    /// A verified set was admitted.
    Admitted { package: &'a Package, is_signed: bool },
    /// An operator accepted the current state of upstream.
    Accepted { scope: AcceptScope, findings: &'a BTreeMap<Version, AcceptedFinding> },
    /// The tree of a module version is the first-seen one, perhaps because an operator accepted it.
    TreeMatches { version: &'a Version },
    /// A version list was read. `dropped` are all stored versions that it does not name.
    ListRead { dropped: &'a [Version] },
    /// An operator purged these versions. `left` are those of which an archive remains.
    Purged { versions: &'a Versions, left: &'a BTreeSet<Version>, is_configured: bool },
}

impl AlarmEvent<'_> {
    pub fn resolves(&self, subject: &AlarmSubject) -> bool {
        let AlarmSubject { kind, version, part } = subject;
        match self {
            Self::Admitted { package, is_signed } => match kind {
                // The set of another platform says nothing about the one that was refused.
                AlarmKind::WaitsForAccept | AlarmKind::DamagedRecord => {
                    *version == package.version
                        && match part {
                            AlarmPart::Platform(platform) => *platform == package.platform,
                            AlarmPart::Version | AlarmPart::Key(_) => true,
                        }
                }
                AlarmKind::SignatureLost => *is_signed && *version == package.version,
                _ => false,
            },
            Self::Accepted { scope, findings } => {
                subject.is_resolved_by_accept() && accepted(subject, *scope, findings)
            }
            Self::TreeMatches { version: matching } => {
                matches!(kind, AlarmKind::Moved | AlarmKind::DamagedRecord) && version == *matching
            }
            Self::ListRead { dropped } => *kind == AlarmKind::Dropped && !dropped.contains(version),
            Self::Purged { versions, left, is_configured } => {
                // A removed upstream is never asked again, so only a purge can resolve its alarms.
                versions.include(version) && !left.contains(version) && (*kind == AlarmKind::Dropped || !is_configured)
            }
        }
    }
}

fn accepted(subject: &AlarmSubject, scope: AcceptScope, found: &BTreeMap<Version, AcceptedFinding>) -> bool {
    let AlarmSubject { kind, version, part } = subject;
    let here = found.get(version);
    if here.is_some_and(AcceptedFinding::is_withdrawn) {
        return true;
    }
    let mut accepted = match scope {
        AcceptScope::Provider if kind.concerns_provider() => found.values().collect::<Vec<_>>(),
        _ => here.into_iter().collect(),
    }
    .into_iter();
    match part {
        AlarmPart::Platform(platform) => {
            accepted.any(|found| found.accepted.contains_key(platform) || found.gone.contains(platform))
        }
        AlarmPart::Key(key) => accepted.any(|found| found.is_signed_by(key)),
        AlarmPart::Version => accepted.any(|found| !found.accepted.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::address::{Hostname, Name, ProviderAddress};

    #[test]
    fn the_alarms_until_now_are_saved_although_others_are_raised_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let alarms = Alarms::load(Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap())).unwrap();
        let [namespace, type_] = ["acme", "null"].map(|name| Name::parse(name).unwrap());
        let host = Hostname::parse("registry.example").unwrap();
        let address = Address::Provider(ProviderAddress { host, namespace, type_ });
        alarms
            .change(&address, |entry| (false, entry.unreadable.push(RawValue::from_string("{}".to_owned()).unwrap())));
        let is_over = AtomicBool::new(false);
        let saved = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        alarms.change(&address, |_| (true, ()));
                    }
                });
            }
            let raised_and_saved = |_: &i32| {
                alarms.change(&address, |_| (true, ()));
                alarms.are_saved(&address)
            };
            let saved = (0..50).filter(raised_and_saved).count();
            is_over.store(true, Ordering::Relaxed);
            saved
        });
        assert_eq!(saved, 50);
    }
}
