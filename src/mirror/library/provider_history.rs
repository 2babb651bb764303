//! The first-seen records of providers in the store: one record per version and one signing-key log per provider. Never
//! evicted, never purged. A verified set is compared with them by the rules of `first_seen`, raises and resolves
//! alarms, and is recorded (promise 14).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Package, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::alarm_kind::AlarmKind;
use crate::mirror::counters::{REPUBLISHED, SEEN_DAMAGED, SIGNATURE_LOST};
use crate::mirror::library::alarms::{AlarmEvent, AlarmFinding, AlarmPart, AlarmSubject, NewAlarm};
use crate::mirror::library::first_listed::FirstListed;
use crate::mirror::library::first_seen::{
    AcceptScope, DroppedArchive, HistoryChange, HistoryRecords, HistoryRefusal, HistoryUpdate, HistoryVerdict,
    Judgement, Observation, Recoverable, Signer, SigningKeyLog, Undecided, VersionHistory,
};
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::store::{Durability, IndexEntry, Key, ReadOutcome, RecordAction, RecordStep, Store, StoreError, to_json};
use crate::upstream::outbound::origin;
use crate::upstream::providers::MAX_VERSIONS;
use crate::verify::Checksums;

#[derive(Debug)]
pub struct ProviderHistories {
    store: Arc<Store>,
}

/// The first record layout of store format 1: all versions and keys of a provider in one file. Split by version at the
/// next read or change of the provider's records.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProviderRecordV0 {
    #[serde(default)]
    keys: BTreeMap<String, Timestamp>,
    #[serde(default)]
    versions: BTreeMap<Version, ProviderRecordVersionV0>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ProviderRecordVersionV0 {
    first_seen: Timestamp,
    #[serde(default)]
    digests: BTreeMap<String, Vec<Digest>>,
}

impl ProviderRecordV0 {
    /// The keys of the record. It does not tell which key signed which version first, so each of them goes on to vouch for
    /// all.
    fn key_log(&self) -> SigningKeyLog {
        SigningKeyLog::of_keys(0, self.keys.iter().map(|(key, time)| (*time, key.clone())).collect(), true)
    }

    /// The history of one version. The record does not name its signer, so every key of the record may vouch for it.
    fn version(&self, version: &Version) -> Option<VersionHistory> {
        let ProviderRecordVersionV0 { first_seen, digests } = self.versions.get(version)?;
        let known_keys = self.keys.len();
        (!digests.is_empty()).then(|| VersionHistory::from_provider_record(*first_seen, digests.clone(), known_keys))
    }
}

impl ProviderHistories {
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    /// Splits a record of the whole provider, which an older larder wrote, by version. If that fails, the record is read
    /// as it is.
    pub(super) fn split_by_version(&self, provider: &ProviderAddress) {
        let (records, old_key) = (&self.store.records, Key::FirstSeenV0(provider.clone()));
        if let Ok(ReadOutcome::Intact(_)) = records.read(&old_key) {
            let split = records.change(&old_key, |step| HistoryStep { step, provider }.split_by_version());
            if let Err(error) = split {
                tracing::error!(%provider, %error, to_do = error.remedy(), "the first-seen record could not be split by version; it is read as it is");
            }
        }
    }

    /// Reads and changes the records of a provider in one step. Returns the result of `decide`, and the result of the
    /// write: unlike after `records.change`, an admission or a value that was read is still of use if only the write
    /// failed. A record of the whole provider is split first, in a step of its own, because that writes many records.
    fn try_change<T>(
        &self,
        provider: &ProviderAddress,
        mut decide: impl FnMut(&mut HistoryStep<'_, '_>) -> Result<T, StoreError>,
    ) -> Result<(T, Result<(), StoreError>), StoreError> {
        self.split_by_version(provider);
        self.store
            .records
            .try_change(&Key::SigningKeyLog(provider.clone()), |step| decide(&mut HistoryStep { step, provider }))
    }

    /// Reads the records of a provider. What is rebuilt is also written; a failed write does not fail the request,
    /// because it is rebuilt again next time.
    fn read<T>(
        &self,
        provider: &ProviderAddress,
        mut read: impl FnMut(&mut HistoryStep<'_, '_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (read, rebuilt) = self.try_change(provider, |step| read(step))?;
        if let Err(error) = rebuilt {
            tracing::error!(%provider, %error, to_do = error.remedy(), "a first-seen record could not be rebuilt");
        }
        Ok(read)
    }

    /// Records sets that an operator accepts. Returns the changes of each, compared with the history before any of
    /// these sets was recorded; `None`, and records nothing, if `is_undecided` of one, by the history of this moment.
    pub fn accept(
        &self,
        provider: &ProviderAddress,
        sets: &[Observation<'_>],
        scope: AcceptScope,
        is_undecided: impl Fn(&Observation<'_>, HistoryRecords) -> bool,
    ) -> Result<Option<AcceptedSets>, StoreError> {
        let (accepted, recorded) = self.try_change(provider, |step| {
            let keys_before = step.keys()?.map(|log| log.keys()).unwrap_or_default();
            let mut before: BTreeMap<&Version, HistoryRecords> = BTreeMap::new();
            for seen in sets {
                let version = &seen.package.version;
                if !before.contains_key(version) {
                    before.insert(version, step.history(version)?);
                }
                if before.get(version).cloned().is_some_and(|history| is_undecided(seen, history)) {
                    return Ok(None);
                }
            }
            let mut changes = Vec::new();
            for seen in sets {
                let version = &seen.package.version;
                let history = before.get(version).cloned().unwrap_or_default();
                changes.push(history.accept(seen, scope).0);
                let now = step.history(version)?;
                step.write(version, now.accept(seen, scope).1);
            }
            if scope == AcceptScope::Provider && !sets.is_empty() {
                let old_key = Key::FirstSeenV0(provider.clone());
                if matches!(step.provider_record()?, ReadOutcome::Damaged) {
                    step.step.change(&old_key, RecordAction::Quarantine, IndexEntry::Unindexed);
                }
            }
            Ok(Some(AcceptedSets { changes, keys_before }))
        })?;
        recorded.map(|()| accepted)
    }

    /// The decisions about each of these sets that an operator owes before they are accepted.
    pub fn undecided(
        &self,
        provider: &ProviderAddress,
        sets: &[Observation<'_>],
        scope: AcceptScope,
        alarms: &[AlarmSubject],
    ) -> Result<Vec<Undecided>, StoreError> {
        self.read(provider, |step| {
            let undecided = sets.iter().map(|seen| {
                let has_alarm = alarms.iter().any(|alarm| alarm.is_about(seen.package, seen.signer.key(), scope));
                Ok(step.history(&seen.package.version)?.undecided(seen, scope, has_alarm))
            });
            undecided.collect()
        })
    }

    /// The keys of a provider's log in its order, each with the number of versions that it signed.
    pub fn known_keys(&self, provider: &ProviderAddress) -> Result<Vec<(String, usize)>, StoreError> {
        self.read(provider, |step| {
            let (versions, keys) = (step.versions()?, step.keys()?.unwrap_or_default().keys());
            let signed = |key: &str| versions.iter().filter(|version| version.signers().contains(key)).count();
            Ok(keys.iter().map(|key| (key.clone(), signed(key))).collect())
        })
    }

    /// Every digest that a verified set ever named for the archive of a package. [`Recoverable::Lost`], without
    /// any digest, if the record is lost.
    pub fn digests_of(&self, package: &Package) -> Result<Recoverable<Vec<Digest>>, StoreError> {
        let history = self.read(&package.provider, |step| step.history(&package.version))?;
        Ok(match history.version {
            Recoverable::Available(version) => Recoverable::Available(version.digests_of(&package.platform)),
            Recoverable::Absent => Recoverable::Absent,
            Recoverable::Lost(_) => Recoverable::Lost(Vec::new()),
        })
    }

    /// The history of a version; an empty one if it is absent or lost.
    pub(super) fn of_version(
        &self,
        provider: &ProviderAddress,
        version: &Version,
    ) -> Result<VersionHistory, StoreError> {
        Ok(self.read(provider, |step| step.history(version))?.version.into_value())
    }

    /// Keeps what is known of an archive of which the version's record knows.
    pub(super) fn keep_dropped(
        &self,
        package: &Package,
        digest: Digest,
        archive: &DroppedArchive,
    ) -> Result<(), StoreError> {
        let Package { provider, version, .. } = package;
        let ((), written) = self.try_change(provider, |step| {
            if let Recoverable::Available(mut history) = step.history(version)?.version
                && history.keep_dropped(digest, archive.clone())
            {
                step.put(&Key::FirstSeen(provider.clone(), version.clone()), &history);
            }
            Ok(())
        })?;
        written
    }

    /// The signing-key log of a provider; `None` if it is lost.
    pub fn keys_of(&self, provider: &ProviderAddress) -> Result<Option<SigningKeyLog>, StoreError> {
        self.read(provider, |step| step.keys())
    }

    /// Records the facts of all stored sets of a provider before any set is removed. Returns the sets that cannot be
    /// read, each with its error. They must not be removed, because nothing else records what they prove.
    ///
    /// # Errors
    /// The history could not be read or written. Then no set may be removed.
    pub fn record_stored(&self, provider: &ProviderAddress) -> Result<Vec<(Package, StoreError)>, StoreError> {
        let mut unrecorded = Vec::new();
        for package in self.store.records.packages_with_sets(provider)? {
            unrecorded.extend(self.record_set(&package)?.map(|unreadable| (package, unreadable)));
        }
        Ok(unrecorded)
    }

    /// Records the facts of a stored set before it is removed.
    ///
    /// # Errors
    /// They could not be recorded. Then the set must not be removed.
    pub(super) fn record_before_removal(&self, package: &Package) -> Result<(), StoreError> {
        self.record_set(package)?.map_or(Ok(()), Err)
    }

    /// Records the facts of a stored set of a version without a record. Returns the error if the set cannot be read: it
    /// must not be removed then, because other bytes would pass as the first.
    fn record_set(&self, package: &Package) -> Result<Option<StoreError>, StoreError> {
        let Package { provider, version, .. } = package;
        let key = Key::FirstSeen(provider.clone(), version.clone());
        let is_recorded = |found: ReadOutcome| matches!(found.json::<VersionHistory>(), ReadOutcome::Intact(_));
        if is_recorded(self.store.records.read(&key)?) {
            return Ok(None);
        }
        let recorded = self.try_change(provider, |step| {
            match step.history(version)?.version {
                Recoverable::Available(history) if !is_recorded(step.step.read(&key)?) => step.put(&key, &history),
                Recoverable::Available(_) => {}
                // Nothing to record, unless the set exists and cannot be read: that is the error to return.
                Recoverable::Absent | Recoverable::Lost(_) => drop(step.stored_sets(package)?),
            }
            Ok(())
        });
        match recorded {
            Ok(((), written)) => written.map(|()| None),
            Err(StoreError::Unavailable) => Err(StoreError::Unavailable),
            Err(unreadable) => Ok(Some(unreadable)),
        }
    }

    /// Rebuilds a damaged record of a version or a provider's signing-key log from stored sets. Returns true if it is
    /// readable again.
    pub fn restore(&self, key: &Key) -> Result<bool, StoreError> {
        match key {
            Key::FirstSeen(provider, version) => {
                let history = self.read(provider, |step| step.history(version))?;
                Ok(matches!(history.version, Recoverable::Available(_)))
            }
            Key::SigningKeyLog(provider) => Ok(self.keys_of(provider)?.is_some()),
            Key::FirstSeenV0(provider) => {
                self.record_stored(provider)?;
                Ok(false)
            }
            _ => Ok(true),
        }
    }
}

/// One step on the records of a provider.
struct HistoryStep<'a, 'b> {
    step: &'a mut RecordStep<'b>,
    provider: &'a ProviderAddress,
}

impl HistoryStep<'_, '_> {
    /// Reads the records of a version and of its provider's keys. A missing or damaged record is rebuilt from stored
    /// sets. A damaged record that no stored set can rebuild is lost.
    fn history(&mut self, version: &Version) -> Result<HistoryRecords, StoreError> {
        let old_record = self.provider_record()?;
        let key = Key::FirstSeen(self.provider.clone(), version.clone());
        let recorded = match self.step.read(&key)?.json() {
            ReadOutcome::Absent => old_record.clone().and_then_read(|old_record| {
                old_record.version(version).map_or(ReadOutcome::Absent, ReadOutcome::Intact)
            }),
            recorded => recorded,
        };
        let is_lost = matches!(recorded, ReadOutcome::Damaged);
        let version = match recorded {
            ReadOutcome::Intact(history) => Recoverable::Available(history),
            ReadOutcome::Damaged | ReadOutcome::Absent => match self.history_of_stored_sets(version)? {
                stored if !stored.is_empty() => Recoverable::Available(self.put_rebuilt(&key, stored)),
                _ if is_lost => Recoverable::Lost(VersionHistory::default()),
                _ => Recoverable::Absent,
            },
        };
        // The key log is read last: if it is lost, it is rebuilt from the records of all versions, also from one that
        // was just rebuilt.
        let keys = self.key_log(&old_record)?;
        Ok(HistoryRecords { version, keys })
    }

    fn keys(&mut self) -> Result<Option<SigningKeyLog>, StoreError> {
        let old_record = self.provider_record()?;
        Ok(match self.key_log(&old_record)? {
            Recoverable::Available(log) => Some(log),
            Recoverable::Absent => Some(SigningKeyLog::default()),
            Recoverable::Lost(_) => None,
        })
    }

    /// The histories of all versions that can be read.
    fn versions(&self) -> Result<Vec<VersionHistory>, StoreError> {
        let read = |key| Ok(self.step.read(&key)?.json().intact());
        self.step.first_seen(self.provider)?.into_iter().map(read).filter_map(Result::transpose).collect()
    }

    fn put_rebuilt<T: Serialize>(&mut self, key: &Key, record: T) -> T {
        self.put(key, &record);
        self.step.is_rebuilt(key);
        record
    }

    fn key_log(
        &mut self,
        old_record: &ReadOutcome<ProviderRecordV0>,
    ) -> Result<Recoverable<SigningKeyLog>, StoreError> {
        let keys = Key::SigningKeyLog(self.provider.clone());
        let recorded = match self.step.read(&keys)?.json() {
            ReadOutcome::Absent => {
                old_record.clone().and_then_read(|old_record| ReadOutcome::Intact(old_record.key_log()))
            }
            recorded => recorded,
        };
        let is_lost = match recorded {
            ReadOutcome::Intact(log) => return Ok(Recoverable::Available(log)),
            ReadOutcome::Damaged => true,
            ReadOutcome::Absent => false,
        };
        let log = SigningKeyLog::of_versions(&self.versions()?);
        Ok(match log.keys().is_empty() {
            false => Recoverable::Available(self.put_rebuilt(&keys, log)),
            true if is_lost => Recoverable::Lost(log),
            true => Recoverable::Absent,
        })
    }

    /// Reads the record of the whole provider, in the layout before records of versions.
    fn provider_record(&self) -> Result<ReadOutcome<ProviderRecordV0>, StoreError> {
        Ok(self.step.read(&Key::FirstSeenV0(self.provider.clone()))?.json())
    }

    /// Splits the record of the whole provider by version.
    fn split_by_version(&mut self) -> Result<(), StoreError> {
        let ReadOutcome::Intact(old_record) = self.provider_record()? else { return Ok(()) };
        for version in old_record.versions.keys() {
            let key = Key::FirstSeen(self.provider.clone(), version.clone());
            if let Some(history) = old_record.version(version)
                && !matches!(self.step.read(&key)?.json::<VersionHistory>(), ReadOutcome::Intact(_))
            {
                self.put(&key, &history);
            }
        }
        let keys = Key::SigningKeyLog(self.provider.clone());
        if !matches!(self.step.read(&keys)?.json::<SigningKeyLog>(), ReadOutcome::Intact(_)) {
            self.put(&keys, &old_record.key_log());
        }
        let versions = old_record.versions.iter().map(|(version, seen)| (version.clone(), seen.first_seen));
        let listed = to_json(&FirstListed::of_all(versions.collect()));
        let (times, written) = (Key::FirstListed(self.provider.into()), IndexEntry::Document(Timestamp(0)));
        self.step.put(&times, listed, Durability::Synced, written);
        // Last: a crash before leaves the record to be split again.
        let old_key = Key::FirstSeenV0(self.provider.clone());
        self.step.change(&old_key, RecordAction::Remove(Durability::Synced), IndexEntry::Unindexed);
        Ok(())
    }

    fn history_of_stored_sets(&self, version: &Version) -> Result<VersionHistory, StoreError> {
        let mut sets = Vec::new();
        for platform in self.step.records.platforms_with_sets(self.provider, version)? {
            let package = Package { provider: self.provider.clone(), version: version.clone(), platform };
            for set in self.stored_sets(&package)? {
                sets.extend(set.checksums().map(|sums| (package.clone(), set, sums)));
            }
        }
        let observations: Vec<_> = sets.iter().map(|(package, set, sums)| observation(package, set, sums)).collect();
        Ok(VersionHistory::from_stored_sets(&observations))
    }

    /// The stored sets of a package, the previous set first. Sets imported without signatures prove nothing and are
    /// left out.
    fn stored_sets(&self, package: &Package) -> Result<Vec<Arc<ProofSet>>, StoreError> {
        let record = self.step.read(&Key::ProofSet(package.clone()))?.intact();
        let Some(record_set) = record.and_then(|record| StoredProofSet::read(record, package)) else {
            return Ok(Vec::new());
        };
        Ok(record_set.sets().rev().filter(|set| !set.was_imported()).cloned().collect())
    }

    fn write(&mut self, version: &Version, to_write: HistoryUpdate) {
        if let Some(history) = to_write.version {
            self.put(&Key::FirstSeen(self.provider.clone(), version.clone()), &history);
        }
        let key = Key::SigningKeyLog(self.provider.clone());
        if let Some(keys) = to_write.keys {
            self.put(&key, &keys);
        }
        // The key log is written last, because a crash must not leave a key in it without a version that it signed.
        self.step.postpone(&key);
    }

    fn put(&mut self, key: &Key, record: &impl Serialize) {
        self.step.put_json(key, record, Durability::Synced);
    }
}

pub struct AcceptedSets {
    /// The changes that each set makes.
    pub changes: Vec<Vec<HistoryChange>>,
    /// The keys in the provider's log before the accept.
    pub keys_before: Vec<String>,
}

pub fn observation<'a>(package: &'a Package, set: &ProofSet, sums: &'a Checksums) -> Observation<'a> {
    let signer = Signer::of(&set.proof().how);
    Observation { package, archive: set.document.shasum, sums, signer, observed: set.fetched() }
}

impl Library {
    /// Admits a verified set, unless it contradicts an earlier one without the right to (promise 14): then the inner error.
    pub async fn admit(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        signer: Signer,
        now: Timestamp,
    ) -> Result<Result<Admission, HistoryRefusal>, Error> {
        let Some(sums) = set.checksums() else { return Ok(Ok(Admission::HistoryUnavailable)) };
        let (owned_package, verified) = (package.clone(), set.clone());
        let admitted = self.on_disk(move |library| {
            let seen = Observation { signer, ..observation(&owned_package, &verified, &sums) };
            library.admit_blocking(&seen, now)
        });
        admitted.await
    }

    /// Compares a verified set with the history of its version, raises alarms and records it in one step, and
    /// resolves alarms. A failed write does not fail the request.
    ///
    /// # Errors
    /// The store failed. The set must not be trusted then.
    pub fn admit_blocking(
        &self,
        seen: &Observation<'_>,
        now: Timestamp,
    ) -> Result<Result<Admission, HistoryRefusal>, StoreError> {
        let package = seen.package;
        let Package { provider, version, .. } = package;
        let address = Address::from(provider);
        self.histories.split_by_version(provider);
        let (judged, recorded) =
            self.change_with_alarms(&address, &Key::SigningKeyLog(provider.clone()), |step, alarms| {
                let mut step = HistoryStep { step, provider };
                let history = match step.history(version) {
                    Err(StoreError::Unavailable) => return Ok(None),
                    read => read?,
                };
                let is_first = matches!(history.version, Recoverable::Absent);
                let (mut judgement, mut to_write) = history.decide(seen);
                // The number of recorded versions has the same limit as a version list.
                if is_first && to_write.version.is_some() && step.step.first_seen(provider)?.len() >= MAX_VERSIONS {
                    judgement.verdict = HistoryVerdict::Refused(HistoryRefusal::Full);
                    to_write = HistoryUpdate::default();
                }
                alarms.extend(alarms_of(seen, &judgement, now));
                step.write(version, to_write);
                Ok(Some(judgement))
            })?;
        if let Err(error) = recorded {
            tracing::error!(%package, %error, to_do = error.remedy(), "a verified set could not be recorded");
        }
        let Some(judgement) = judged else {
            tracing::error!(%provider, "ALARM: the store is unavailable, so republished versions cannot be detected; whatever upstream sends is served");
            return Ok(Ok(Admission::HistoryUnavailable));
        };
        log_alarms_of(seen, &judgement);
        let Judgement { verdict, .. } = judgement;
        let admission = match verdict {
            HistoryVerdict::Refused(refusal) => {
                self.runtime.counters.count_unverified(&provider.host, refusal.alarm().1);
                return Ok(Err(refusal));
            }
            HistoryVerdict::Republished(change) => Admission::Changed(change),
            HistoryVerdict::Consistent => Admission::Consistent,
        };
        let admitted = AlarmEvent::Admitted { package, is_signed: seen.signer.key().is_some() };
        self.alarms.resolve(&address, &admitted);
        Ok(Ok(admission))
    }
}

/// The alarms that a judgement raises.
fn alarms_of(seen: &Observation<'_>, judgement: &Judgement, time: Timestamp) -> Vec<NewAlarm> {
    let package = seen.package;
    let alarm = |kind: AlarmKind, part: AlarmPart, detail: String| {
        let subject = AlarmSubject { kind, version: package.version.clone(), part };
        let signer = judgement.signer_is_untrusted.then(|| seen.signer_fact());
        let facts = seen.facts().into_iter().chain(signer).collect();
        NewAlarm { subject, finding: AlarmFinding { detail, facts }, time }
    };
    let (signer, known) = (signed_by(seen), known_keys(judgement));
    let mut alarms = Vec::new();
    if let Some((key, known)) = new_key(seen, judgement) {
        let detail = format!("signed by key {key}; the keys known for this provider are {known}");
        alarms.push(alarm(AlarmKind::NewKey, AlarmPart::Key(key.to_owned()), detail));
    }
    match &judgement.verdict {
        HistoryVerdict::Consistent => {}
        HistoryVerdict::Republished(change) => {
            let detail = format!("its proof set {change}; {signer}");
            alarms.push(alarm(AlarmKind::Republished, AlarmPart::Version, detail));
        }
        HistoryVerdict::Refused(refusal) => {
            let known = known.map(|known| format!("; the keys known for this provider are {known}"));
            let part = match refusal {
                HistoryRefusal::SignatureLost => AlarmPart::Version,
                _ => AlarmPart::Platform(package.platform.clone()),
            };
            let detail = format!("{}; {signer}{}", refusal.describe_for(package), known.unwrap_or_default());
            alarms.push(alarm(refusal.alarm().0, part, detail));
        }
    }
    alarms
}

/// Logs the alarms that a judgement raises, each time.
fn log_alarms_of(seen: &Observation<'_>, judgement: &Judgement) {
    let (package, signer) = (seen.package, signed_by(seen));
    if let Some((key, known)) = new_key(seen, judgement) {
        tracing::error!(%package, key, known, "ALARM: a key that never signed for this provider signs for it now; it may sign new versions, and vouches for no other bytes of versions that were verified before");
    }
    match &judgement.verdict {
        HistoryVerdict::Consistent => {}
        HistoryVerdict::Republished(change) => {
            let change = change.to_string();
            tracing::error!(%package, change, signer, "ALARM: upstream has changed a version that was verified before; a key that may vouch for it did; the new set is served");
        }
        HistoryVerdict::Refused(refusal) => {
            let words = refusal.describe_for(package);
            tracing::error!(%package, words, signer, "ALARM: a proof set is refused until it is accepted");
        }
    }
}

/// A key that signs for a provider for the first time, with the keys known before; `None` where its set is refused.
fn new_key<'a>(seen: &'a Observation<'_>, judgement: &Judgement) -> Option<(&'a str, String)> {
    match judgement.verdict {
        HistoryVerdict::Refused(_) => None,
        HistoryVerdict::Consistent | HistoryVerdict::Republished(_) => seen.signer.key().zip(known_keys(judgement)),
    }
}

fn known_keys(judgement: &Judgement) -> Option<String> {
    judgement.known_keys_if_signer_is_new.as_ref().map(|known| list_keys(known))
}

fn signed_by(seen: &Observation<'_>) -> String {
    seen.signer.key().map_or_else(|| "unsigned".to_owned(), |key| format!("signed by key {key}"))
}

/// The reason for admitting a verified set.
pub enum Admission {
    /// Consistent with everything verified before.
    Consistent,
    /// It changes the version, and its key may vouch for that.
    Changed(HistoryChange),
    /// The store is unavailable, so the history is unknown: the set is served but not stored.
    HistoryUnavailable,
}

impl HistoryRefusal {
    /// The kind of its alarm, and its label in the counters. The label REPUBLISHED counts refused sets;
    /// `AlarmKind::Republished` is the alarm of a change that is served.
    fn alarm(&self) -> (AlarmKind, &'static str) {
        match self {
            Self::ChangedByUntrustedKey { .. } | Self::Full => (AlarmKind::WaitsForAccept, REPUBLISHED),
            Self::SignatureLost => (AlarmKind::SignatureLost, SIGNATURE_LOST),
            Self::RecordLost => (AlarmKind::DamagedRecord, SEEN_DAMAGED),
        }
    }

    /// The reason, for an alarm about the set of a package.
    fn describe_for(&self, package: &Package) -> String {
        match self {
            Self::ChangedByUntrustedKey { first, .. } => format!("its proof set for {} {first}", package.platform),
            refusal => refusal.to_string(),
        }
    }

    /// The digests of the set's own archive, before and now, if that is the change.
    pub fn changed_archive(&self, set: &ProofSet) -> Option<(Digest, Digest)> {
        let Self::ChangedByUntrustedKey { first, of_archive } = self else { return None };
        match of_archive.as_ref().unwrap_or(first) {
            HistoryChange::OtherBytes { before, now, .. } => {
                before.first().map(|before| (*before, *now)).filter(|_| *now == set.document.shasum)
            }
            HistoryChange::DropsEveryLine | HistoryChange::Added { .. } => None,
        }
    }

    /// The error of a request for the refused set, told as `verdict`.
    pub fn error(&self, package: &Package, set: &ProofSet, verdict: String, instead: Option<Box<Version>>) -> Error {
        let subject = format!("the proof set of {package} from {}", origin(&set.metadata.url));
        Error::Unaccepted { subject, verdict, command: self.command(package), instead }
    }

    /// The command that accepts the refused set.
    fn command(&self, Package { provider, version, .. }: &Package) -> String {
        match self {
            Self::SignatureLost => format!("`larder accept {provider}`"),
            _ => format!("`larder accept {provider}@{version}`"),
        }
    }
}

/// Lists keys for people: the first few, and the number of the others.
fn list_keys(keys: &[String]) -> String {
    let (shown, more) = keys.split_at(keys.len().min(KEYS_SHOWN));
    match more.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The most known keys that an alarm names.
const KEYS_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::address::{Hostname, Name, Platform};
    use crate::mirror::freshness::Confirmation;

    const ARCHIVE: &[u8] = b"zip";

    fn package(version: &str) -> Package {
        let [namespace, type_] = ["acme", "null"].map(|name| Name::parse(name).unwrap());
        let provider = ProviderAddress { host: Hostname::parse("registry.example").unwrap(), namespace, type_ };
        let platform = Platform::parse("linux_amd64").unwrap();
        Package { provider, version: Version::parse(version).unwrap(), platform }
    }

    fn sums() -> Bytes {
        format!("{}  f.zip\n", Digest::of(ARCHIVE)).into()
    }

    fn accept(histories: &ProviderHistories, package: &Package, key: &str) -> Result<AcceptedSets, StoreError> {
        let sums = Checksums::parse(&sums()).unwrap();
        let (archive, signer) = (Digest::of(ARCHIVE), Signer::Key(key.to_owned()));
        let seen = Observation { package, archive, sums: &sums, signer, observed: Timestamp(9) };
        histories.accept(&package.provider, &[seen], AcceptScope::Provider, |_, _| false).map(Option::unwrap)
    }

    fn stored_set(package: &Package, key: &str) -> Vec<u8> {
        let metadata = serde_json::json!({
            "asked": "https://registry.example/d", "url": "https://registry.example/d", "validators": {},
            "sums_validators": {}, "signature_validators": {}, "fetched": 3,
            "proof": { "how": { "signature": { "fingerprint": key } }, "warnings": [] },
        });
        let body = serde_json::json!({
            "os": "linux", "arch": "amd64", "filename": "f.zip", "shasum": Digest::of(ARCHIVE),
            "download_url": "f.zip", "shasums_url": "s",
        });
        let (metadata, body) = (serde_json::from_value(metadata).unwrap(), body.to_string().into());
        let current = Arc::new(ProofSet::new(metadata, body, sums(), Bytes::new(), package).unwrap());
        StoredProofSet { current, predecessor: None, confirmed: Confirmation { checked: Timestamp(3), gone: false } }
            .write()
    }

    #[test]
    fn an_accept_keeps_the_keys_of_the_stored_sets_whose_records_are_lost() {
        let folder = tempfile::tempdir().unwrap();
        let histories = ProviderHistories::new(Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap()));
        let package = package("1.0.0");
        let set = stored_set(&package, "K1");
        histories.store.records.put(&Key::ProofSet(package.clone()), &set, Durability::Lazy).unwrap();
        accept(&histories, &package, "K2").unwrap();
        assert_eq!(histories.keys_of(&package.provider).unwrap().unwrap().keys(), ["K1", "K2"]);
    }

    #[test]
    fn an_old_record_that_cannot_be_split_stops_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let histories = ProviderHistories::new(Arc::new(Store::open(folder.path(), Timestamp(1)).unwrap()));
        let (store, package) = (&histories.store, package("2.0.0"));
        let provider = &package.provider;
        let record = br#"{"keys":{"K1":1},"versions":{"1.0.0":{"first_seen":1,"digests":{"f.zip":[]}}}}"#;
        store.records.put(&Key::FirstSeenV0(provider.clone()), record, Durability::Lazy).unwrap();
        // A folder where the split needs a file.
        let obstacle = store.local.root().join(Key::FirstListed(provider.into()).path());
        std::fs::create_dir(obstacle.parent().unwrap()).unwrap();
        std::fs::create_dir(&obstacle).unwrap();
        accept(&histories, &package, "K2").unwrap();
        assert_eq!(histories.keys_of(provider).unwrap().unwrap().keys(), ["K1", "K2"]);
        assert!(histories.digests_of(&package).unwrap() == Recoverable::Available(vec![Digest::of(ARCHIVE)]));
        assert!(store.records.get(&Key::FirstSeenV0(provider.clone())).unwrap().is_some());
        std::fs::remove_dir(&obstacle).unwrap();
        assert_eq!(histories.keys_of(provider).unwrap().unwrap().keys(), ["K1", "K2"]);
        assert!(store.records.get(&Key::FirstSeenV0(provider.clone())).unwrap().is_none());
    }
}
