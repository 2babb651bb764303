//! The first-seen records of providers in the store: one record per version and one key log per provider. Never
//! evicted, never purged. The rules are in `first_seen`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::address::{Package, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::library::alarms::AlarmNotSaved;
use crate::mirror::library::first_seen::{
    AcceptScope, HistoryChange, HistoryRecords, HistoryRefusal, HistoryUpdate, HistoryVerdict, Judgement, KeyLog,
    Observation, Recoverable, Signer, VersionHistory,
};
use crate::mirror::library::proof_set::{ProofSet, StoredProofSet};
use crate::store::{Durability, Key, Recorded, Store, StoreError};
use crate::upstream::providers::MAX_VERSIONS;
use crate::verify::{Checksums, ProofBasis};

#[derive(Debug)]
pub(in crate::mirror) struct ProviderHistories {
    store: Arc<Store>,
    locks: [Mutex<()>; 64],
    hasher: RandomState,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::mirror) struct FirstListed {
    versions: BTreeMap<Version, Timestamp>,
}

/// The first record layout of store format 1: all versions and keys of a provider in one file. Split by version when
/// the provider is next judged.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::mirror) struct ProviderRecordV0 {
    #[serde(default)]
    keys: BTreeMap<String, Timestamp>,
    #[serde(default)]
    versions: BTreeMap<Version, WholeRecordVersion>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WholeRecordVersion {
    first_seen: Timestamp,
    #[serde(default)]
    digests: BTreeMap<String, Vec<Digest>>,
}

impl ProviderRecordV0 {
    fn key_log(&self) -> KeyLog {
        let mut keys: Vec<(Timestamp, &String)> = self.keys.iter().map(|(key, time)| (*time, key)).collect();
        keys.sort();
        KeyLog::of_keys(keys.into_iter().map(|(time, key)| (key.clone(), time)))
    }

    /// The history of one version. The record does not name its signer, so every key of the record may vouch for it.
    fn version(&self, version: &Version) -> Option<VersionHistory> {
        let WholeRecordVersion { first_seen, digests } = self.versions.get(version)?;
        let known_keys = self.keys.len();
        (!digests.is_empty()).then(|| VersionHistory::from_provider_record(*first_seen, digests.clone(), known_keys))
    }
}

/// A stored proof set that cannot be read, of a version without a record. It must not be removed: other bytes would
/// then pass as the first.
#[derive(Debug)]
pub(in crate::mirror) struct UnrecordedSet {
    pub(in crate::mirror) package: Package,
    pub(in crate::mirror) error: StoreError,
}

impl ProviderHistories {
    pub(in crate::mirror) fn new(store: Arc<Store>) -> Self {
        Self { store, locks: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }

    fn lock_provider(&self, provider: &ProviderAddress) -> MutexGuard<'_, ()> {
        self.locks[self.hasher.hash_one(provider) as usize % self.locks.len()].lock()
    }

    /// Judges a verified set and records its new facts. `before_recording` gets the verdict first and saves its alarm.
    /// If the alarm could not be saved, nothing is recorded, so a crash cannot lose the alarm. A failed write of the
    /// record does not fail the request. `None` if the store is gone.
    ///
    /// # Errors
    /// The store failed. The set must not be trusted then.
    pub(in crate::mirror) fn decide(
        &self,
        seen: &Observation<'_>,
        before_recording: impl FnOnce(&Judgement) -> Result<(), AlarmNotSaved>,
    ) -> Result<Option<Judgement>, StoreError> {
        let provider = &seen.package.provider;
        let _lock = self.lock_provider(provider);
        let history = match self.history(provider, &seen.package.version) {
            Err(StoreError::Gone) => {
                tracing::error!(%provider, "ALARM: the store is gone, so republished versions cannot be detected; upstream's are served");
                return Ok(None);
            }
            read => read?,
        };
        let is_first = matches!(history.version, Recoverable::Absent);
        let (mut judgement, mut to_write) = history.decide(seen);
        if is_first && to_write.version.is_some() && self.is_full(provider)? {
            judgement.verdict = HistoryVerdict::Refused(HistoryRefusal::Full);
            to_write = HistoryUpdate::default();
        }
        if before_recording(&judgement) == Err(AlarmNotSaved) {
            tracing::error!(package = %seen.package, "a verified set is not recorded, because its alarm could not be written");
            return Ok(Some(judgement));
        }
        if let Err(error) = self.write(seen.package, to_write) {
            tracing::error!(package = %seen.package, %error, to_do = error.remedy(), "a verified set could not be recorded");
        }
        Ok(Some(judgement))
    }

    /// The number of recorded versions has the same limit as a version list.
    fn is_full(&self, provider: &ProviderAddress) -> Result<bool, StoreError> {
        Ok(self.store.records.versions_first_seen(provider)?.len() >= MAX_VERSIONS)
    }

    /// Records sets that an operator accepts. Returns the changes of each, compared with the history before the first
    /// of them.
    pub(in crate::mirror) fn accept(
        &self,
        provider: &ProviderAddress,
        sets: &[Observation<'_>],
        scope: AcceptScope,
    ) -> Result<AcceptedSets, StoreError> {
        let _lock = self.lock_provider(provider);
        let keys_before = self.keys(provider)?.map(|log| log.keys()).unwrap_or_default();
        let mut before: BTreeMap<&Version, HistoryRecords> = BTreeMap::new();
        for seen in sets {
            let version = &seen.package.version;
            if !before.contains_key(version) {
                before.insert(version, self.history(provider, version)?);
            }
        }
        let mut changes = Vec::new();
        for seen in sets {
            let history = before.get(&seen.package.version).cloned().unwrap_or_default();
            changes.push(history.accept(seen, scope).0);
            let now = self.history(provider, &seen.package.version)?;
            self.write(seen.package, now.accept(seen, scope).1)?;
        }
        if scope == AcceptScope::Provider && !sets.is_empty() {
            let whole = Key::Seen(provider.clone());
            if matches!(self.read::<ProviderRecordV0>(&whole)?, Recorded::Damaged) {
                self.store.records.quarantine(&whole)?;
            }
        }
        Ok(AcceptedSets { changes, keys_before })
    }

    /// Every digest that a verified set ever named for the archive of a package. [`Recoverable::Lost`] if the record is
    /// lost.
    pub(in crate::mirror) fn digests_of(&self, package: &Package) -> Result<Recoverable<Vec<Digest>>, StoreError> {
        let _lock = self.lock_provider(&package.provider);
        let history = self.history(&package.provider, &package.version)?;
        Ok(match history.version {
            Recoverable::Whole(version) => Recoverable::Whole(version.digests_of(&package.platform)),
            Recoverable::Absent => Recoverable::Absent,
            Recoverable::Lost(_) => Recoverable::Lost(Vec::new()),
        })
    }

    /// The key log of a provider; `None` if it is lost.
    pub(in crate::mirror) fn keys_of(&self, provider: &ProviderAddress) -> Result<Option<KeyLog>, StoreError> {
        let _lock = self.lock_provider(provider);
        self.keys(provider)
    }

    fn keys(&self, provider: &ProviderAddress) -> Result<Option<KeyLog>, StoreError> {
        Ok(match self.key_log(provider, &self.split_by_version(provider)?)? {
            Recoverable::Whole(log) => Some(log),
            Recoverable::Absent => Some(KeyLog::default()),
            Recoverable::Lost(_) => None,
        })
    }

    /// Records the facts of all stored sets of a provider before any set is removed. The sets returned must not be
    /// removed.
    ///
    /// # Errors
    /// The history could not be read or written. Then no set may be removed.
    pub(in crate::mirror) fn record_stored(
        &self,
        provider: &ProviderAddress,
    ) -> Result<Vec<UnrecordedSet>, StoreError> {
        let _lock = self.lock_provider(provider);
        let mut unrecorded = Vec::new();
        for package in self.store.records.packages_with_sets(provider)? {
            unrecorded.extend(self.record_set(&package)?);
        }
        Ok(unrecorded)
    }

    /// Records the facts of a stored set before it is removed.
    ///
    /// # Errors
    /// They could not be recorded. Then the set must not be removed.
    pub(in crate::mirror) fn record_before_removal(&self, package: &Package) -> Result<(), StoreError> {
        let _lock = self.lock_provider(&package.provider);
        match self.record_set(package)? {
            Some(UnrecordedSet { error: why, .. }) => Err(why),
            None => Ok(()),
        }
    }

    fn record_set(&self, package: &Package) -> Result<Option<UnrecordedSet>, StoreError> {
        let Package { provider, version, .. } = package;
        let key = Key::FirstSeen(provider.clone(), version.clone());
        if matches!(self.read::<VersionHistory>(&key)?, Recorded::Whole(_)) {
            return Ok(None);
        }
        match self.history(provider, version) {
            Ok(HistoryRecords { version: Recoverable::Whole(history), .. }) => {
                // If the rebuilt record could not be written, this write fails and reports it.
                if !matches!(self.read::<VersionHistory>(&key)?, Recorded::Whole(_)) {
                    self.put(&key, &history)?;
                }
                Ok(None)
            }
            Ok(_) => match self.stored_sets(package) {
                Ok(_) => Ok(None),
                Err(reason) => Ok(Some(UnrecordedSet { package: package.clone(), error: reason })),
            },
            Err(StoreError::Gone) => Err(StoreError::Gone),
            Err(reason) => Ok(Some(UnrecordedSet { package: package.clone(), error: reason })),
        }
    }

    /// Rebuilds a damaged record of a version or a provider's key log from stored sets. Returns true if it is readable
    /// again.
    pub(in crate::mirror) fn restore(&self, key: &Key) -> Result<bool, StoreError> {
        match key {
            Key::FirstSeen(provider, version) => {
                let _lock = self.lock_provider(provider);
                Ok(matches!(self.history(provider, version)?.version, Recoverable::Whole(_)))
            }
            Key::KeyLog(provider) => {
                let _lock = self.lock_provider(provider);
                Ok(self.keys(provider)?.is_some())
            }
            Key::Seen(provider) => {
                self.record_stored(provider)?;
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// Records when versions were first listed, up to [`MAX_VERSIONS`]. At the limit, versions that are no longer
    /// listed are dropped first.
    pub(in crate::mirror) fn record_listed(
        &self,
        provider: &ProviderAddress,
        versions: &[Version],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let key = Key::FirstListed(provider.clone());
        let _lock = self.lock_provider(provider);
        self.split_by_version(provider)?;
        let mut listed: FirstListed = self.read(&key)?.whole().unwrap_or_default();
        let new: Vec<&Version> = versions.iter().filter(|version| !listed.versions.contains_key(version)).collect();
        if new.is_empty() {
            return Ok(());
        }
        if listed.versions.len() + new.len() > MAX_VERSIONS {
            let now: std::collections::BTreeSet<&Version> = versions.iter().collect();
            listed.versions.retain(|version, _| now.contains(version));
        }
        let free_records = MAX_VERSIONS.saturating_sub(listed.versions.len());
        listed.versions.extend(new.into_iter().take(free_records).map(|version| (version.clone(), now)));
        self.put_with(&key, &listed, Durability::Lazy)
    }

    /// Reads the records of a version and of its provider's keys. A missing or damaged record is rebuilt from stored
    /// sets. A damaged record that no stored set can rebuild is lost.
    fn history(&self, provider: &ProviderAddress, version: &Version) -> Result<HistoryRecords, StoreError> {
        let whole = self.split_by_version(provider)?;
        let keys = self.key_log(provider, &whole)?;
        let recorded = self.read(&Key::FirstSeen(provider.clone(), version.clone()))?;
        let is_lost = match recorded {
            Recorded::Whole(history) => return Ok(HistoryRecords { version: Recoverable::Whole(history), keys }),
            Recorded::Damaged => true,
            Recorded::Absent => match &whole {
                Recorded::Whole(whole) => match whole.version(version) {
                    Some(history) => return Ok(HistoryRecords { version: Recoverable::Whole(history), keys }),
                    None => false,
                },
                Recorded::Damaged => true,
                Recorded::Absent => false,
            },
        };
        let stored = self.history_of_stored_sets(provider, version)?;
        let key = Key::FirstSeen(provider.clone(), version.clone());
        let version = match stored {
            _ if !stored.is_empty() => Recoverable::Whole(self.write_rebuilt(&key, stored)),
            _ if is_lost => Recoverable::Lost(VersionHistory::default()),
            _ => Recoverable::Absent,
        };
        Ok(HistoryRecords { version, keys })
    }

    /// Writes a rebuilt record. A failed write does not fail the request: the record is rebuilt again next time.
    fn write_rebuilt<T: Serialize>(&self, key: &Key, record: T) -> T {
        tracing::warn!(record = %key.path().display(), "a first-seen record was missing or damaged; it is rebuilt from the store");
        if let Err(error) = self.put(key, &record) {
            tracing::error!(%error, to_do = error.remedy(), "a first-seen record could not be rebuilt");
        }
        record
    }

    fn key_log(
        &self,
        provider: &ProviderAddress,
        whole: &Recorded<ProviderRecordV0>,
    ) -> Result<Recoverable<KeyLog>, StoreError> {
        let is_lost = match (self.read(&Key::KeyLog(provider.clone()))?, whole) {
            (Recorded::Whole(log), _) => return Ok(Recoverable::Whole(log)),
            (Recorded::Absent, Recorded::Whole(whole)) => return Ok(Recoverable::Whole(whole.key_log())),
            (Recorded::Damaged, _) | (_, Recorded::Damaged) => true,
            (Recorded::Absent, Recorded::Absent) => false,
        };
        let mut versions = Vec::new();
        for version in self.store.records.versions_first_seen(provider)? {
            let key = Key::FirstSeen(provider.clone(), version);
            versions.extend(self.read::<VersionHistory>(&key)?.whole());
        }
        let log = KeyLog::of_versions(&versions);
        Ok(match log.keys().is_empty() {
            false => Recoverable::Whole(self.write_rebuilt(&Key::KeyLog(provider.clone()), log)),
            true if is_lost => Recoverable::Lost(log),
            true => Recoverable::Absent,
        })
    }

    /// Splits a whole-provider record by version, once. Returns the record if that failed and it is still in the store.
    fn split_by_version(&self, provider: &ProviderAddress) -> Result<Recorded<ProviderRecordV0>, StoreError> {
        let key = Key::Seen(provider.clone());
        let whole: ProviderRecordV0 = match self.read(&key)? {
            Recorded::Whole(whole) => whole,
            other => return Ok(other),
        };
        match self.write_split(provider, &whole) {
            Ok(()) => Ok(Recorded::Absent),
            Err(error) => {
                tracing::error!(%provider, %error, to_do = error.remedy(), "the first-seen record could not be split by version; it is read as it is");
                Ok(Recorded::Whole(whole))
            }
        }
    }

    fn write_split(&self, provider: &ProviderAddress, whole: &ProviderRecordV0) -> Result<(), StoreError> {
        for version in whole.versions.keys() {
            let key = Key::FirstSeen(provider.clone(), version.clone());
            if let Some(history) = whole.version(version)
                && !matches!(self.read::<VersionHistory>(&key)?, Recorded::Whole(_))
            {
                self.put(&key, &history)?;
            }
        }
        let keys = Key::KeyLog(provider.clone());
        if !matches!(self.read::<KeyLog>(&keys)?, Recorded::Whole(_)) {
            self.put(&keys, &whole.key_log())?;
        }
        let versions = whole.versions.iter().map(|(version, seen)| (version.clone(), seen.first_seen));
        let listed = FirstListed { versions: versions.take(MAX_VERSIONS).collect() };
        self.put(&Key::FirstListed(provider.clone()), &listed)?;
        self.store.records.remove(&Key::Seen(provider.clone()), Durability::Synced)
    }

    fn history_of_stored_sets(
        &self,
        provider: &ProviderAddress,
        version: &Version,
    ) -> Result<VersionHistory, StoreError> {
        let mut sets = Vec::new();
        for platform in self.store.records.platforms_with_sets(provider, version)? {
            let package = Package { provider: provider.clone(), version: version.clone(), platform };
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
        let Some(record) = self.store.records.get(&Key::ProofSet(package.clone()))? else { return Ok(Vec::new()) };
        let Some(record_set) = StoredProofSet::read(record, package) else { return Ok(Vec::new()) };
        let sets = record_set.predecessor.map(|(set, _)| set).into_iter().chain([record_set.current]);
        Ok(sets.filter(|set| set.proof().how != ProofBasis::Imported).collect())
    }

    fn write(&self, package: &Package, to_write: HistoryUpdate) -> Result<(), StoreError> {
        if let Some(version) = to_write.version {
            self.put(&Key::FirstSeen(package.provider.clone(), package.version.clone()), &version)?;
        }
        if let Some(keys) = to_write.keys {
            self.put(&Key::KeyLog(package.provider.clone()), &keys)?;
        }
        Ok(())
    }

    fn read<T: DeserializeOwned>(&self, key: &Key) -> Result<Recorded<T>, StoreError> {
        Ok(match self.store.records.read(key)? {
            Recorded::Whole(record) => serde_json::from_slice(&record).map_or(Recorded::Damaged, Recorded::Whole),
            Recorded::Absent => Recorded::Absent,
            Recorded::Damaged => Recorded::Damaged,
        })
    }

    fn put(&self, key: &Key, record: &impl Serialize) -> Result<(), StoreError> {
        self.put_with(key, record, Durability::Synced)
    }

    fn put_with(&self, key: &Key, record: &impl Serialize, durability: Durability) -> Result<(), StoreError> {
        let record = serde_json::to_vec(record)
            .map_err(|e| StoreError::Index(format!("a first-seen record cannot be written: {e}")))?;
        self.store.records.put(key, &record, durability).map(drop)
    }
}

pub(in crate::mirror) struct AcceptedSets {
    /// The changes that each set makes.
    pub(in crate::mirror) changes: Vec<Vec<HistoryChange>>,
    /// The keys in the provider's log before the accept.
    pub(in crate::mirror) keys_before: Vec<String>,
}

pub(in crate::mirror) fn observation<'a>(package: &'a Package, set: &ProofSet, sums: &'a Checksums) -> Observation<'a> {
    let signer = Signer::of(&set.proof().how);
    Observation { package, archive: set.document.shasum, sums, signer, observed: set.fetched() }
}
