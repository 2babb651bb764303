//! Findings that a person must resolve, and the one decision which of them an event resolves. Stored as one record per
//! address, they survive a restart until they are resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
use crate::store::{Durability, IndexEntry, Key, RecordAction, RecordStep, Store, StoreError, Striped};

/// Maximum number of alarms per address and kind, so that one upstream cannot crowd out the alarms of another.
const MAX_ALARMS_PER_KIND: usize = 1000;

/// A finding that a person must resolve. It stays in `status` until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Alarm {
    /// The kind of finding.
    pub kind: AlarmKind,
    /// `HOST/NAMESPACE/TYPE`, or `HOST/NAMESPACE/NAME/SYSTEM`
    pub address: String,
    /// The version it was found with.
    pub version: String,
    /// The evidence: digests, files, and keys by their fingerprints.
    pub detail: String,
    /// The time it was found.
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

/// An alarm to raise.
#[derive(Debug, Clone)]
pub struct NewAlarm {
    pub subject: AlarmSubject,
    pub finding: AlarmFinding,
    pub time: Timestamp,
}

/// An alarm with the facts of its evidence.
#[derive(Debug, Clone)]
struct RaisedAlarm {
    alarm: Alarm,
    facts: BTreeSet<EvidenceFact>,
    /// False for one that could not be written: people see it all the same, and the next change of its address writes it.
    is_written: bool,
}

impl RaisedAlarm {
    /// An alarm that is not written yet.
    fn of(address: &Address, NewAlarm { subject, finding, time }: NewAlarm) -> (AlarmSubject, Self) {
        let AlarmFinding { detail, facts } = finding;
        let alarm = Alarm {
            kind: subject.kind,
            address: address.to_string(),
            version: subject.version.to_string(),
            detail,
            since: time,
            resolve: None,
            evidence: None,
        };
        (subject, Self { alarm, facts, is_written: false })
    }

    fn is_same_finding(&self, other: &Self) -> bool {
        self.alarm.detail == other.alarm.detail && self.facts == other.facts
    }
}

impl AlarmKind {
    /// The subject of an alarm of this kind about a version as a whole.
    pub fn of(self, version: &Version) -> AlarmSubject {
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

/// The alarms of all addresses. The records are the truth: each change reads the record of its address, and writes it in the
/// step of what raised the alarm.
#[derive(Debug)]
pub struct Alarms {
    store: Arc<Store>,
    /// A cache of the records, and the alarms that could not be written. Never locked during disk I/O.
    known: Mutex<BTreeMap<Address, AlarmsOfAddress>>,
    /// Locked while a record is read for the cache, so that no older reading replaces a newer one.
    reading: Striped<Mutex<()>>,
}

#[derive(Debug, Clone, Default)]
struct AlarmsOfAddress {
    alarms: BTreeMap<AlarmSubject, RaisedAlarm>,
    /// Entries that this version of larder cannot read. They are written back unchanged.
    unreadable: Vec<Box<RawValue>>,
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
        Some((AlarmSubject { kind: alarm.kind, version, part }, RaisedAlarm { alarm, facts, is_written: true }))
    }

    fn written(subject: &AlarmSubject, RaisedAlarm { alarm, facts, .. }: &RaisedAlarm) -> Option<Box<RawValue>> {
        let (platform, key) = match &subject.part {
            AlarmPart::Version => (None, None),
            AlarmPart::Platform(platform) => (Some(platform.clone()), None),
            AlarmPart::Key(key) => (None, Some(key.clone())),
        };
        serde_json::value::to_raw_value(&Self { alarm: alarm.clone(), platform, key, facts: facts.clone() }).ok()
    }
}

impl AlarmsOfAddress {
    fn read(record: Option<AlarmsRecord>) -> Self {
        let mut read = Self::default();
        for raw in record.map(|record| record.alarms).unwrap_or_default() {
            match AlarmEntry::read(&raw) {
                Some((subject, alarm)) => drop(read.alarms.insert(subject, alarm)),
                None => read.unreadable.push(raw),
            }
        }
        read
    }

    /// Takes over the alarms that could not be written, but for those that the record has meanwhile, or a newer one of.
    fn take_unwritten(&mut self, known: Option<&Self>) {
        let unwritten = known.into_iter().flat_map(|known| &known.alarms).filter(|(_, alarm)| !alarm.is_written);
        for (subject, alarm) in unwritten {
            let is_newer = |written: &RaisedAlarm| written.alarm.since >= alarm.alarm.since;
            if !self.alarms.get(subject).is_some_and(|written| is_newer(written) || written.is_same_finding(alarm)) {
                self.alarms.insert(subject.clone(), alarm.clone());
            }
        }
    }

    fn are_all_written(&self) -> bool {
        self.alarms.values().all(|alarm| alarm.is_written)
    }

    /// Replaces the record by these alarms; removes it if there are none.
    fn put_in(&self, step: &mut RecordStep<'_>, address: &Address) {
        let key = Key::Alarms(address.clone());
        let entries = self.alarms.iter().filter_map(|(subject, alarm)| AlarmEntry::written(subject, alarm));
        let alarms: Vec<_> = entries.chain(self.unreadable.iter().cloned()).collect();
        match alarms.is_empty() {
            true => step.change(&key, RecordAction::Remove(Durability::Synced), IndexEntry::Unindexed),
            false => step.put_json(&key, &AlarmsRecord { alarms }, Durability::Synced),
        }
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
            Some(before) if before.is_same_finding(&raised) => return RaiseOutcome::Unchanged,
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

/// The outcome of raising an alarm.
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
        let addresses = match store.records.addresses_with_alarms() {
            // A replica that starts without the database shows those that it knows.
            Err(StoreError::Unreachable(_)) => store.records.of_machine().addresses_with_alarms()?,
            addresses => addresses?,
        };
        let alarms = Self { store, known: Mutex::default(), reading: Striped::default() };
        for address in addresses {
            alarms.read_again(&address)?;
        }
        Ok(alarms)
    }

    /// Reads the record of an address for the cache.
    fn read_again(&self, address: &Address) -> Result<(), StoreError> {
        let _reading = self.reading.of(address).lock();
        let record = self.store.records.read_as(&Key::Alarms(address.clone()), parse)?.intact();
        let mut read = AlarmsOfAddress::read(record);
        if !read.unreadable.is_empty() {
            tracing::error!(%address, alarms = read.unreadable.len(), "alarms cannot be read (damaged, or written by a newer larder); they are left unchanged");
        }
        let mut known = self.known.lock();
        read.take_unwritten(known.get(address));
        if read.alarms.is_empty() {
            known.remove(address)
        } else {
            known.insert(address.clone(), read)
        };
        Ok(())
    }

    /// Adds alarms to a step, before its other changes: a crash may leave an alarm without the record of its cause, and never
    /// the other way round. Returns the outcome of each.
    fn raise_in(
        &self,
        step: &mut RecordStep<'_>,
        address: &Address,
        new: &[(AlarmSubject, RaisedAlarm)],
    ) -> Result<Vec<RaiseOutcome>, StoreError> {
        if new.is_empty() && self.are_all_written(address) {
            return Ok(Vec::new());
        }
        let mut alarms = self.read_in(step, address)?;
        let are_all_written = alarms.are_all_written();
        let outcomes: Vec<_> =
            new.iter().map(|(subject, raised)| alarms.set(subject.clone(), raised.clone())).collect();
        if !are_all_written || outcomes.contains(&RaiseOutcome::New) {
            alarms.put_in(step, address);
            step.make_first(&Key::Alarms(address.clone()));
        }
        Ok(outcomes)
    }

    /// The alarms of an address as a step reads them, with those that could not be written before.
    fn read_in(&self, step: &RecordStep<'_>, address: &Address) -> Result<AlarmsOfAddress, StoreError> {
        let mut alarms = AlarmsOfAddress::read(step.read_as(&Key::Alarms(address.clone()), parse)?.intact());
        alarms.take_unwritten(self.known.lock().get(address));
        Ok(alarms)
    }

    fn are_all_written(&self, address: &Address) -> bool {
        self.known.lock().get(address).is_none_or(AlarmsOfAddress::are_all_written)
    }

    /// Resolves the alarms that an event resolves, and returns their subjects. Where the record cannot be written, they stay.
    pub fn resolve(&self, address: &Address, event: &AlarmEvent<'_>) -> Vec<AlarmSubject> {
        let is_resolved = |subject: &AlarmSubject| event.resolves(subject);
        // The memory may lag behind the record of an alarm that is being raised.
        if self.subjects(address, is_resolved).is_empty()
            && matches!(self.store.records.stat(&Key::Alarms(address.clone())), Ok(None))
        {
            return Vec::new();
        }
        let resolved = self.store.records.change(&Key::Alarms(address.clone()), |step| {
            let mut alarms = self.read_in(step, address)?;
            let resolved: Vec<AlarmSubject> = alarms.alarms.keys().filter(|of| is_resolved(of)).cloned().collect();
            if !resolved.is_empty() {
                alarms.alarms.retain(|subject, _| !is_resolved(subject));
                alarms.put_in(step, address);
            }
            Ok(resolved)
        });
        match resolved {
            Ok(resolved) => {
                if let Some(known) = self.known.lock().get_mut(address) {
                    known.alarms.retain(|subject, _| !is_resolved(subject));
                }
                self.are_written(address);
                resolved
            }
            Err(error) => {
                tracing::error!(%address, %error, to_do = error.remedy(), "resolved alarms could not be removed: they stay listed");
                Vec::new()
            }
        }
    }

    /// Reads the record of an address again after a step wrote it.
    fn are_written(&self, address: &Address) {
        if let Err(error) = self.read_again(address) {
            tracing::error!(%address, %error, to_do = error.remedy(), "the alarms of an address could not be read back");
        }
    }

    /// The subjects of the alarms of an address that match.
    pub fn subjects(&self, address: &Address, is_meant: impl Fn(&AlarmSubject) -> bool) -> Vec<AlarmSubject> {
        let known = self.known.lock();
        let subjects = known.get(address).into_iter().flat_map(|known| known.alarms.keys());
        subjects.filter(|subject| is_meant(subject)).cloned().collect()
    }

    /// All alarms, each with the command that resolves it while larder has this connectivity. A finding for several
    /// platforms of a version is one alarm: one event, and one decision.
    pub fn all(&self, link: Connectivity) -> Vec<Alarm> {
        let known = self.known.lock().clone();
        let mut all = Vec::new();
        for (address, entry) in &known {
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
}

fn parse(record: Vec<u8>) -> Option<AlarmsRecord> {
    serde_json::from_slice(&record).ok()
}

impl Library {
    /// Raises an alarm, once for the same finding. When this returns, it is in the store, or in memory only if it could not
    /// be written.
    pub fn raise_alarm(
        &self,
        address: impl Into<Address>,
        subject: AlarmSubject,
        finding: impl Into<AlarmFinding>,
        time: Timestamp,
    ) {
        self.raise_alarms(&address.into(), vec![NewAlarm { subject, finding: finding.into(), time }]);
    }

    fn raise_alarms(&self, address: &Address, new: Vec<NewAlarm>) {
        let raised = self.change_with_alarms(address, &Key::Alarms(address.clone()), |_, alarms| {
            alarms.extend_from_slice(&new);
            Ok(())
        });
        if let Err(error) = raised {
            let new = new.into_iter().map(|alarm| RaisedAlarm::of(address, alarm)).collect();
            self.are_raised(address, new, &[], Err(&error));
        }
    }

    /// Runs a step on the records of an address. The alarms that `decide` raises are written with its changes and before
    /// them, or are in memory only where the write failed. Returns the result of the write beside that of `decide`.
    ///
    /// # Errors
    /// `decide` failed, or the records are busy. No alarm is raised then.
    pub(super) fn change_with_alarms<T>(
        &self,
        address: &Address,
        key: &Key,
        mut decide: impl FnMut(&mut RecordStep<'_>, &mut Vec<NewAlarm>) -> Result<T, StoreError>,
    ) -> Result<(T, Result<(), StoreError>), StoreError> {
        let ((decided, new, raised), written) = self.store.records.try_change(key, |step| {
            let mut new = Vec::new();
            let decided = decide(step, &mut new)?;
            let new: Vec<_> = new.into_iter().map(|alarm| RaisedAlarm::of(address, alarm)).collect();
            let raised = self.alarms.raise_in(step, address, &new);
            if raised.is_err() {
                // Nothing is recorded whose alarm cannot be.
                step.abandon();
            }
            Ok((decided, new, raised))
        })?;
        let (outcomes, written) = match raised {
            Ok(outcomes) => (outcomes, written),
            Err(error) => (Vec::new(), Err(error)),
        };
        self.are_raised(address, new, &outcomes, written.as_ref().copied());
        Ok((decided, written))
    }

    /// Counts alarms that were raised. They are in the store, or in memory only where the step failed. An alarm without an
    /// outcome is new: its record could not be read.
    fn are_raised(
        &self,
        address: &Address,
        new: Vec<(AlarmSubject, RaisedAlarm)>,
        outcomes: &[RaiseOutcome],
        written: Result<(), &StoreError>,
    ) {
        let has_new = !new.is_empty();
        let outcomes = outcomes.iter().copied().chain(std::iter::repeat(RaiseOutcome::New));
        let mut unwritten = Vec::new();
        for ((subject, raised), outcome) in new.into_iter().zip(outcomes) {
            let AlarmSubject { kind, version, .. } = &subject;
            match outcome {
                RaiseOutcome::New => {
                    self.runtime.counters.alarm(*kind);
                    unwritten.push((subject, raised));
                }
                RaiseOutcome::Unchanged => {}
                RaiseOutcome::TooMany => {
                    tracing::error!(%address, %version, kind = kind.name(), "there are too many alarms of this kind about it: this one is only logged");
                }
            }
        }
        match written {
            Ok(()) if has_new || !self.alarms.are_all_written(address) => self.alarms.are_written(address),
            Err(error) if !unwritten.is_empty() => {
                tracing::error!(%address, %error, to_do = error.remedy(), "an alarm could not be written: it is in memory only");
                self.alarms.known.lock().entry(address.clone()).or_default().alarms.extend(unwritten);
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Resolves the alarms about the tree of a module version, because it is the first-seen one now. Returns their
    /// number. Writes to disk if there are any.
    pub fn resolve_tree_alarms(&self, ModulePackage { module, version }: &ModulePackage) -> usize {
        self.alarms.resolve(&module.into(), &AlarmEvent::TreeMatches { version }).len()
    }

    /// Resolves alarms like [`Self::resolve_tree_alarms`], for async code.
    pub async fn resolve_tree_alarms_async(self: &Arc<Self>, package: &ModulePackage) -> Result<usize, Error> {
        let package = package.clone();
        self.on_disk(move |library| Ok(library.resolve_tree_alarms(&package))).await
    }

    /// Resolves the alarms that only a purge of these versions resolves. Writes to disk.
    pub fn resolve_alarms_of_purged(&self, address: impl Into<Address>, versions: &Versions, left: &BTreeSet<Version>) {
        let address = address.into();
        let is_configured = self.runtime.config().upstream(address.host()).is_ok();
        self.alarms.resolve(&address, &AlarmEvent::Purged { versions, left, is_configured });
    }

    /// Raises an alarm for each stored version that upstream's list has dropped, and resolves those of all others.
    pub async fn update_dropped_alarms(
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
            let new = dropped.iter().map(|version| NewAlarm {
                subject: AlarmKind::Dropped.of(version),
                finding: "upstream lists it no more; it is stored, and stays listed here (keep_gone)".into(),
                time,
            });
            library.raise_alarms(&address, new.collect());
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
    use super::*;
    use crate::address::{Hostname, Name, ProviderAddress};

    fn address() -> Address {
        let [namespace, type_] = ["acme", "null"].map(|name| Name::parse(name).unwrap());
        Address::Provider(ProviderAddress { host: Hostname::parse("registry.example").unwrap(), namespace, type_ })
    }

    fn alarm(version: &str) -> NewAlarm {
        let subject = AlarmKind::WaitsForAccept.of(&Version::parse(version).unwrap());
        NewAlarm { subject, finding: "changed".into(), time: Timestamp(1) }
    }

    fn raise(alarms: &Alarms, version: &str) -> Result<(), StoreError> {
        let key = Key::Alarms(address());
        let new = [RaisedAlarm::of(&address(), alarm(version))];
        alarms.store.records.change(&key, |step| alarms.raise_in(step, &address(), &new))?;
        alarms.are_written(&address());
        Ok(())
    }

    fn versions(alarms: &Alarms) -> Vec<String> {
        alarms.all(Connectivity::Online).into_iter().map(|alarm| alarm.version).collect()
    }

    /// Two that write to one store lose no alarm of each other, and resolve what the other one raised.
    #[test]
    fn an_alarm_of_another_writer_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap());
        let [one, other] = [(); 2].map(|()| Alarms::load(Arc::clone(&store)).unwrap());
        raise(&one, "1.0.0").unwrap();
        raise(&other, "2.0.0").unwrap();
        raise(&one, "3.0.0").unwrap();
        assert_eq!(versions(&one), ["1.0.0", "2.0.0", "3.0.0"]);
        assert_eq!(versions(&Alarms::load(Arc::clone(&store)).unwrap()), ["1.0.0", "2.0.0", "3.0.0"]);
        let first = [(Version::parse("1.0.0").unwrap(), AcceptedFinding { is_unlisted: true, ..Default::default() })];
        let accepted = AlarmEvent::Accepted { scope: AcceptScope::Version, findings: &first.into_iter().collect() };
        assert_eq!(one.resolve(&address(), &accepted).len(), 1);
        raise(&other, "2.0.0").unwrap();
        assert_eq!(versions(&other), ["2.0.0", "3.0.0"]);
    }

    /// An alarm that could not be written is seen all the same, and is written with the next one.
    #[test]
    fn an_alarm_that_could_not_be_written_is_written_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap());
        let alarms = Alarms::load(Arc::clone(&store)).unwrap();
        let unwritten = RaisedAlarm::of(&address(), alarm("1.0.0"));
        alarms.known.lock().entry(address()).or_default().alarms.extend([unwritten]);
        assert_eq!(versions(&alarms), ["1.0.0"]);
        raise(&alarms, "1.0.0").unwrap();
        assert!(alarms.are_all_written(&address()));
        assert_eq!(versions(&Alarms::load(store).unwrap()), ["1.0.0"]);
    }

    /// A newer finding that is written takes the place of an older one that could not be written.
    #[test]
    fn a_written_alarm_replaces_an_older_one_that_could_not_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap());
        let alarms = Alarms::load(Arc::clone(&store)).unwrap();
        alarms.known.lock().entry(address()).or_default().alarms.extend([RaisedAlarm::of(&address(), alarm("1.0.0"))]);
        let newer = NewAlarm { finding: "changed again".into(), time: Timestamp(2), ..alarm("1.0.0") };
        let new = [RaisedAlarm::of(&address(), newer)];
        store.records.change(&Key::Alarms(address()), |step| alarms.raise_in(step, &address(), &new)).unwrap();
        alarms.are_written(&address());
        for shown in [&alarms, &Alarms::load(store).unwrap()] {
            let details: Vec<_> = shown.all(Connectivity::Online).into_iter().map(|alarm| alarm.detail).collect();
            assert_eq!(details, ["changed again"]);
        }
    }

    /// The record of the cause comes after the alarm about it.
    #[test]
    fn a_crash_leaves_the_alarm_without_its_record_and_not_the_other_way_round() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap());
        let alarms = Alarms::load(Arc::clone(&store)).unwrap();
        let (Address::Provider(provider), key) = (address(), Key::Alarms(address())) else { panic!() };
        let cause = Key::SigningKeyLog(provider);
        // A folder where the record of the cause needs a file, as a crash between the two changes.
        store.records.put(&cause, b"{}", Durability::Lazy).unwrap();
        store.records.remove(&cause, Durability::Lazy).unwrap();
        for obstacle in [cause.path(), cause.path().join("obstacle")] {
            std::fs::create_dir(store.local.root().join(obstacle)).unwrap();
        }
        let changed = store.records.change(&key, |step| {
            step.put_json(&cause, &1, Durability::Synced);
            alarms.raise_in(step, &address(), &[RaisedAlarm::of(&address(), alarm("1.0.0"))])
        });
        assert!(changed.is_err());
        assert_eq!(versions(&Alarms::load(store).unwrap()), ["1.0.0"]);
    }
}
