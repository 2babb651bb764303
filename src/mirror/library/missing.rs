//! The packages requested while offline and not stored: a bounded list, saved a moment later, so that it survives a
//! restart. A package is reported until it is stored. The replicas of a fleet have one list together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::address::{
    Address, Hostname, ModuleAddress, ModulePackage, Package, PackageRef, Platform, ProviderAddress, Version,
    WaitingVersion,
};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::request_context::ClientAddress;
use crate::mirror::runtime::ConfigGeneration;
use crate::mirror::{Library, RequestContext, Runtime, RuntimeConfig};
use crate::store::{Durability, IndexEntry, Key, Store, StoreError, to_json};

/// The delay before the record is saved. A kill loses what was recorded since the last save.
const SAVE_DELAY: Duration = Duration::from_secs(1);
/// The delay after a save that failed.
const SAVE_AGAIN: Duration = Duration::from_secs(30);

/// Maximum number of missing packages: as many as one warm-up accepts.
const MAX_MISSING: usize = 1000;
/// Maximum per provider or module, so that requests for versions that do not exist crowd out nothing else.
const MAX_MISSING_PER_ADDRESS: usize = 100;
/// Maximum number of missing non-packages, described in words.
const MAX_MISSING_TEXTS: usize = 100;

/// A package that would have been fetched had larder not been offline.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingPackage {
    /// A provider.
    Provider {
        /// Its address.
        of: ProviderAddress,
        /// The version; none if only the version list was requested.
        version: Option<Version>,
        /// The platform, if the request named one.
        platform: Option<Platform>,
    },
    /// A module.
    Module {
        /// Its address in the canonical spelling.
        of: ModuleAddress,
        /// The version; none if only the version list was requested.
        version: Option<Version>,
    },
}

impl MissingPackage {
    /// The version, if the request named one.
    pub fn version(&self) -> Option<&Version> {
        match self {
            Self::Provider { version, .. } | Self::Module { version, .. } => version.as_ref(),
        }
    }

    /// The registry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Provider { of: address, .. } => &address.host,
            Self::Module { of: address, .. } => &address.host,
        }
    }

    fn address(&self) -> Address {
        match self {
            Self::Provider { of: provider, .. } => provider.into(),
            Self::Module { of: module, .. } => module.into(),
        }
    }

    fn has_same_address(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl From<&MissingPackage> for PackageRef {
    fn from(missing: &MissingPackage) -> Self {
        let (version, platform) = match missing {
            MissingPackage::Provider { version, platform, .. } => (version, platform.as_ref()),
            MissingPackage::Module { version, .. } => (version, None),
        };
        let (address, version) = (missing.address().to_string(), version.as_ref().map(ToString::to_string));
        Self { address, version, ..Self::default() }.on(platform)
    }
}

impl From<&Address> for MissingPackage {
    fn from(address: &Address) -> Self {
        match address.clone() {
            Address::Provider(of) => Self::Provider { of, version: None, platform: None },
            Address::Module(of) => Self::Module { of, version: None },
        }
    }
}

impl From<&Package> for MissingPackage {
    fn from(package: &Package) -> Self {
        let Package { provider, version, platform } = package.clone();
        Self::Provider { of: provider, version: Some(version), platform: Some(platform) }
    }
}

impl From<&ModulePackage> for MissingPackage {
    fn from(package: &ModulePackage) -> Self {
        let ModulePackage { module, version } = package.clone();
        Self::Module { of: module, version: Some(version) }
    }
}

/// The state in which a lookup last failed: the generations of the provider or module and of the
/// configuration.
type LastMiss = (u64, ConfigGeneration);

/// A package that was requested while offline and is not stored, for people, or a description of anything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissingRequest {
    /// The package.
    #[serde(flatten)]
    pub package: PackageRef,
    /// Requests.
    pub times: u64,
    /// The last of them.
    pub last: Timestamp,
    /// The client of the last one; `None` where it was a job.
    #[serde(default)]
    pub client: Option<String>,
}

impl MissingRequest {
    fn of(package: PackageRef, count: RequestCount) -> Self {
        let RequestCount { times, last, client, .. } = count;
        Self { package, times, last, client: client.map(|client| client.to_string()) }
    }
}

/// The requests for a missing package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RequestCount {
    times: u64,
    last: Timestamp,
    /// The client of the last request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<ClientAddress>,
    /// The requests that are not in the record.
    #[serde(skip)]
    unsaved: u64,
    /// The last failed lookup; none if there was none since the last request.
    #[serde(skip)]
    last_miss: Option<LastMiss>,
}

impl RequestCount {
    /// The count with one more request.
    fn next(before: Option<&Self>, client: Option<ClientAddress>, now: Timestamp) -> Self {
        let (times, unsaved) = before.map_or((0, 0), |before| (before.times, before.unsaved));
        Self { times: times.saturating_add(1), last: now, client, unsaved: unsaved.saturating_add(1), last_miss: None }
    }

    /// The count with the requests that are not in the record added to those that another writer recorded.
    fn merged(self, recorded: Option<&Self>) -> Self {
        let Some(recorded) = recorded else { return self };
        let later = if recorded.last > self.last { *recorded } else { self };
        Self { times: recorded.times.saturating_add(self.unsaved), last: later.last, client: later.client, ..self }
    }
}

/// The newest change that is not in the record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsaved {
    /// None.
    #[default]
    Nothing,
    /// A count or a time. It is not worth a write while larder runs.
    Counts,
    /// A package.
    Packages,
}

#[derive(Debug, Clone)]
pub struct MissingRequests {
    packages: BTreeMap<MissingPackage, RequestCount>,
    texts: BTreeMap<String, RequestCount>,
    unsaved: Unsaved,
    /// The packages that were taken off the list since the record was saved; `None` for all of them.
    forgotten: Option<BTreeSet<MissingPackage>>,
}

#[derive(Serialize, Deserialize)]
struct MissingRecord {
    things: Vec<MissingLine>,
}

#[derive(Serialize, Deserialize)]
struct MissingLine {
    what: MissingPackage,
    #[serde(flatten)]
    count: RequestCount,
}

impl Default for MissingRequests {
    fn default() -> Self {
        let (packages, texts, unsaved) = Default::default();
        Self { packages, texts, unsaved, forgotten: Some(BTreeSet::new()) }
    }
}

impl MissingRequests {
    /// Reads the record of an earlier run. `None` if it is invalid. Applies the current limits.
    pub fn read(record: &[u8]) -> Option<Self> {
        let MissingRecord { things } = serde_json::from_slice(record).ok()?;
        let mut requests = Self::default();
        for MissingLine { what: package, count } in things {
            requests.evict_for(&package);
            requests.packages.insert(package, count);
        }
        Some(requests)
    }

    /// Serialises the record. Missing non-packages are kept only in memory.
    pub fn write(&self) -> Vec<u8> {
        let lines = self.packages.iter().map(|(package, count)| MissingLine { what: package.clone(), count: *count });
        to_json(&MissingRecord { things: lines.collect() })
    }

    /// Records a request. At the limit, the package with the fewest requests is dropped; among equals, the one
    /// requested longest ago.
    fn record(&mut self, missing: MissingPackage, client: Option<ClientAddress>, now: Timestamp) {
        let is_known = self.packages.contains_key(&missing);
        self.unsaved = self.unsaved.max(if is_known { Unsaved::Counts } else { Unsaved::Packages });
        self.evict_for(&missing);
        let count = RequestCount::next(self.packages.get(&missing), client, now);
        self.packages.insert(missing, count);
    }

    /// Records a missing non-package.
    fn record_text(&mut self, words: &str, client: Option<ClientAddress>, now: Timestamp) {
        let before = self.texts.get(words);
        if before.is_some() || self.texts.len() < MAX_MISSING_TEXTS {
            let count = RequestCount::next(before, client, now);
            self.texts.insert(words.to_owned(), count);
        }
    }

    fn evict_for(&mut self, missing: &MissingPackage) {
        if self.packages.contains_key(missing) {
            return;
        }
        let of_this_address = self.packages.keys().filter(|other| other.has_same_address(missing)).count();
        let may_be_dropped: &dyn Fn(&MissingPackage) -> bool = match () {
            () if of_this_address >= MAX_MISSING_PER_ADDRESS => &|other| other.has_same_address(missing),
            () if self.packages.len() >= MAX_MISSING => &|_| true,
            () => return,
        };
        let candidates = self.packages.iter().filter(|(other, _)| may_be_dropped(other));
        let least = candidates.min_by_key(|(_, count)| (count.times, count.last)).map(|(other, _)| other.clone());
        if let Some(least) = least {
            self.forget(&least);
        }
    }

    fn forget(&mut self, missing: &MissingPackage) {
        let Some(count) = self.packages.remove(missing) else { return };
        // Only what the record has must be taken off it. So the set is bounded, also while nothing can be saved.
        if count.times > count.unsaved
            && let Some(forgotten) = &mut self.forgotten
        {
            forgotten.insert(missing.clone());
        }
    }

    /// The list to save: what another writer recorded stays, unless it was taken off this list. A package that another one
    /// took off the record comes back only by a new request. Without a record, this list is it.
    fn merged_into(&self, recorded: Option<Self>) -> Self {
        let is_record_lost = recorded.is_none();
        let mut merged = match &self.forgotten {
            Some(forgotten) => {
                let mut recorded = recorded.unwrap_or_default();
                recorded.packages.retain(|missing, _| !forgotten.contains(missing));
                recorded
            }
            None => Self::default(),
        };
        for (missing, count) in &self.packages {
            let recorded = merged.packages.get(missing);
            if recorded.is_some() || is_record_lost || count.unsaved > 0 {
                let count = count.merged(recorded);
                merged.evict_for(missing);
                merged.packages.insert(missing.clone(), count);
            }
        }
        merged
    }

    /// Takes over what another writer recorded meanwhile. What is not saved stays so.
    fn take_recorded(&mut self, recorded: Self) {
        self.packages = self.merged_into(Some(recorded)).packages;
    }

    /// Takes over the list that was saved of an `earlier` state of this one.
    fn take_saved(&mut self, earlier: &Self, saved: Self) {
        let mut packages = saved.packages;
        for count in packages.values_mut() {
            count.unsaved = 0;
        }
        for (missing, count) in &self.packages {
            let before = earlier.packages.get(missing).map_or(0, |before| before.unsaved);
            let unsaved = count.unsaved.saturating_sub(before);
            match packages.get_mut(missing) {
                Some(taken) => {
                    *taken = RequestCount { unsaved, last_miss: count.last_miss, ..*count }.merged(Some(taken))
                }
                None if unsaved > 0 => drop(packages.insert(missing.clone(), RequestCount { unsaved, ..*count })),
                None => {}
            }
        }
        let is_forgotten_since = |missing: &&MissingPackage| {
            earlier.packages.contains_key(*missing) && !self.packages.contains_key(*missing)
        };
        let forgotten: BTreeSet<_> = packages.keys().filter(is_forgotten_since).cloned().collect();
        packages.retain(|missing, _| !forgotten.contains(missing));
        (self.packages, self.forgotten) = (packages, Some(forgotten));
    }

    /// Records the result of a lookup, unless the package was requested again meanwhile.
    fn record_lookup(&mut self, missing: &MissingPackage, seen: RequestCount, is_stored: bool, found: LastMiss) {
        let Some(count) = self.packages.get_mut(missing).filter(|count| **count == seen) else { return };
        if is_stored {
            self.forget(missing);
            self.unsaved = Unsaved::Packages;
        } else {
            count.last_miss = Some(found);
        }
    }
}

/// The packages requested while offline and not stored.
#[derive(Debug)]
pub struct MissingLog {
    requests: Mutex<MissingRequests>,
    /// Locked while the list is saved or cleared.
    saving: Mutex<()>,
    is_save_scheduled: AtomicBool,
}

impl MissingLog {
    /// Loads the record of an earlier run. An unreadable one is logged and ignored.
    pub fn load(store: &Store) -> Self {
        let read = store.records.read_as(&Key::Missing, |record| MissingRequests::read(&record));
        let read = read.inspect_err(|error| {
            tracing::error!(%error, "the missing list of an earlier run cannot be read; it starts empty");
        });
        let requests = read.unwrap_or_default().intact().unwrap_or_default();
        Self { requests: Mutex::new(requests), saving: Mutex::default(), is_save_scheduled: AtomicBool::new(false) }
    }
}

impl Library {
    /// Records a package as missing and returns the error for it (promise 12).
    pub async fn missing_error(
        self: &Arc<Self>,
        missing: impl Into<MissingPackage>,
        subject: String,
        call: &RequestContext,
    ) -> Error {
        let error = self.offline_error(subject).await;
        self.record_if_offline(&error, call, || missing.into());
        error
    }

    /// Records the platforms that a stored version waits for as missing.
    pub fn record_waiting(self: &Arc<Self>, waiting: &WaitingVersion, call: &RequestContext) {
        for platform in &waiting.waits_for {
            let (of, version) = (waiting.provider.clone(), Some(waiting.version.clone()));
            self.record_missing(MissingPackage::Provider { of, version, platform: Some(platform.clone()) }, call);
        }
    }

    /// The error for something not stored while offline. If the store itself is gone, the error says that instead.
    pub async fn offline_error(self: &Arc<Self>, subject: String) -> Error {
        match self.on_disk(|library| library.store.local.check()).await {
            Ok(()) => Error::Offline(subject),
            Err(gone) => gone,
        }
    }

    /// Records a request as missing if it failed because larder is offline.
    pub fn record_if_offline(
        self: &Arc<Self>,
        error: &Error,
        call: &RequestContext,
        missing: impl FnOnce() -> MissingPackage,
    ) {
        if let Error::Offline(_) = error {
            self.record_missing(missing(), call);
        }
    }

    /// Records a request for a non-package, in words, for this run only.
    pub fn record_text_if_offline(&self, error: &Error, call: &RequestContext) {
        if let (Error::Offline(subject), false) = (error, call.only_looks()) {
            self.missing.requests.lock().record_text(subject, call.client, call.now);
        }
    }

    /// Records a package as missing, unless the request only looks (a plan, a dry run): then no client was refused.
    pub fn record_missing(self: &Arc<Self>, missing: impl Into<MissingPackage>, call: &RequestContext) {
        if call.only_looks() {
            return;
        }
        self.missing.requests.lock().record(missing.into(), call.client, call.now);
        if self.missing.is_save_scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        // A weak reference: the pending save must not keep the mirror, and with it the store lock, alive.
        let library = Arc::downgrade(self);
        self.runtime.tasks.spawn(async move {
            let mut pause = SAVE_DELAY;
            loop {
                tokio::time::sleep(pause).await;
                let Some(library) = library.upgrade() else { return };
                library.missing.is_save_scheduled.store(false, Ordering::Release);
                let saved = library.on_disk(|library| library.save_missing(Unsaved::Packages)).await;
                let Err(error) = saved else { return };
                tracing::error!(%error, "the missing list could not be written; it is written again in half a minute");
                // The next entry may have scheduled another attempt.
                if library.missing.is_save_scheduled.swap(true, Ordering::AcqRel) {
                    return;
                }
                pause = SAVE_AGAIN;
            }
        });
    }

    /// Saves the record if such a change, or a greater one, is not in it. What others recorded meanwhile stays.
    pub fn save_missing(&self, at_least: Unsaved) -> Result<(), StoreError> {
        let _saving = self.missing.saving.lock();
        let earlier = {
            let mut requests = self.missing.requests.lock();
            if requests.unsaved < at_least {
                return Ok(());
            }
            requests.unsaved = Unsaved::Nothing;
            requests.clone()
        };
        let saved = self.store.records.change(&Key::Missing, |step| {
            let recorded = step.read_as(&Key::Missing, |record| MissingRequests::read(&record))?.intact();
            let merged = earlier.merged_into(recorded);
            step.put(&Key::Missing, merged.write(), Durability::Lazy, IndexEntry::Unindexed);
            Ok(merged)
        });
        let saved = saved.inspect_err(|_| self.mark_missing_unsaved())?;
        self.missing.requests.lock().take_saved(&earlier, saved);
        Ok(())
    }

    /// Marks the record as unsaved, because the file on disk is lost.
    pub fn mark_missing_unsaved(&self) {
        self.missing.requests.lock().unsaved = Unsaved::Packages;
    }

    /// The packages requested while offline and not stored, for configured upstreams only.
    ///
    /// # Errors
    /// The lookup was interrupted.
    pub async fn missing(self: &Arc<Self>) -> Result<Vec<MissingPackage>, Error> {
        self.on_disk(|library| Ok(library.missing_now().into_iter().map(|(package, _)| package).collect())).await
    }
}

impl Runtime {
    /// The platforms for which a provider is missing if its request named none: `[network] sealed_platforms`; empty if
    /// not configured.
    pub fn sealed_platforms(&self) -> Vec<Platform> {
        self.config.load().required_platforms.platforms().cloned().collect()
    }
}

impl Library {
    /// Forgets all missing packages.
    ///
    /// # Errors
    /// The record could not be saved.
    pub async fn forget_missing(self: &Arc<Self>) -> Result<(), Error> {
        self.on_disk(|library| {
            let before = {
                let _saving = library.missing.saving.lock();
                let forgotten = MissingRequests { unsaved: Unsaved::Packages, forgotten: None, ..Default::default() };
                std::mem::replace(&mut *library.missing.requests.lock(), forgotten)
            };
            // Otherwise a later save would clear what was recorded after this moment.
            library.save_missing(Unsaved::Packages).inspect_err(|_| *library.missing.requests.lock() = before)
        })
        .await
    }

    /// Takes over what other replicas have recorded. Without an answer of the database, this replica lists what it knows. Blocks.
    fn hear_of_missing(&self) {
        if self.fleet().is_none() {
            return;
        }
        let _saving = self.missing.saving.lock();
        match self.store.records.read_as(&Key::Missing, |record| MissingRequests::read(&record)) {
            Ok(recorded) => {
                if let Some(recorded) = recorded.intact() {
                    self.missing.requests.lock().take_recorded(recorded);
                }
            }
            Err(error) => tracing::debug!(%error, "what other replicas miss is not known"),
        }
    }

    /// Lists the missing packages and forgets those stored meanwhile. Blocks: reads the disk for packages that changed
    /// since the last lookup.
    fn missing_now(&self) -> Vec<(MissingPackage, RequestCount)> {
        self.hear_of_missing();
        let terms = self.runtime.config.load_full();
        let recorded = self.missing.requests.lock().packages.clone();
        let mut missing = Vec::new();
        for (package, count) in recorded {
            // No bundle brings a package of another registry, or one that a policy denies.
            if terms.upstreams.get(package.host()).is_none() || terms.denies(&package.address(), package.version()) {
                continue;
            }
            let found = (self.generation_of_address(&package.address()), terms.generation);
            if count.last_miss != Some(found) {
                match self.is_stored_now(&package, &terms) {
                    Ok(is_stored) => {
                        self.missing.requests.lock().record_lookup(&package, count, is_stored, found);
                        if is_stored {
                            continue;
                        }
                    }
                    // A failed lookup does not mean that the package is stored.
                    Err(error) => {
                        tracing::debug!(what = %PackageRef::from(&package), %error, "its state in the store cannot be read");
                    }
                }
            }
            missing.push((package, count));
        }
        missing
    }

    /// Lists the missing packages together with the missing non-packages.
    pub fn missing_in_words(&self) -> Vec<MissingRequest> {
        let packages = self.missing_now();
        let packages = packages.into_iter().map(|(package, count)| MissingRequest::of((&package).into(), count));
        let requests = self.missing.requests.lock();
        let others = requests.texts.iter();
        packages.chain(others.map(|(words, count)| MissingRequest::of(PackageRef::requested(words), *count))).collect()
    }

    fn is_stored_now(&self, missing: &MissingPackage, config: &RuntimeConfig) -> Result<bool, StoreError> {
        match missing {
            MissingPackage::Provider { of: provider, version: Some(version), platform } => {
                let Some(upstream) = config.upstreams.get(&provider.host) else { return Ok(false) };
                let platforms = match platform {
                    Some(platform) => vec![platform.clone()],
                    None => self.store.records.platforms_with_sets(provider, version)?,
                };
                for platform in platforms {
                    let package = Package { provider: provider.clone(), version: version.clone(), platform };
                    if self.holds_package(&package, upstream.settings.verification)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            MissingPackage::Module { of: module, version: Some(version) } => {
                let package = ModulePackage { module: config.key_of(module), version: version.clone() };
                Ok(self.current_module_archive(&package)?.is_some())
            }
            MissingPackage::Provider { .. } | MissingPackage::Module { .. } => {
                let address = config.canonical(&missing.address());
                let stored = self.read_stored_versions(&address, config)?;
                let mut shown = config.required_platforms.shown(&address, &stored);
                Ok(shown.any(|(version, _)| !config.denies(&address, Some(version))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::Name;

    fn provider(type_: &str) -> ProviderAddress {
        let host = Hostname::parse("registry.example").unwrap();
        ProviderAddress { host, namespace: Name::parse("acme").unwrap(), type_: Name::parse(type_).unwrap() }
    }

    fn any_version(address: &ProviderAddress) -> MissingPackage {
        (&Address::from(address)).into()
    }

    fn version(address: &ProviderAddress, number: usize) -> MissingPackage {
        let version = Some(Version::parse(&format!("1.{number}.0")).unwrap());
        MissingPackage::Provider { of: address.clone(), version, platform: None }
    }

    fn lines_of(requests: &MissingRequests) -> Vec<String> {
        requests.packages.keys().map(|missing| PackageRef::from(missing).to_string()).collect()
    }

    #[test]
    fn requests_for_nonexistent_versions_crowd_out_no_other_provider() {
        let mut requests = MissingRequests::default();
        let (real, other) = (provider("real"), provider("other"));
        requests.record(any_version(&other), None, Timestamp(1));
        requests.record(version(&real, 0), None, Timestamp(1));
        requests.record(version(&real, 0), None, Timestamp(2));
        for number in 1..5000 {
            requests.record(version(&real, number), None, Timestamp(3));
        }
        let lines = lines_of(&requests);
        assert_eq!(lines.len(), MAX_MISSING_PER_ADDRESS + 1);
        // The package requested twice stays, and so does the other provider.
        assert!(lines.contains(&"registry.example/acme/real 1.0.0".to_owned()), "{lines:?}");
        assert!(lines.contains(&"registry.example/acme/other".to_owned()), "{lines:?}");
    }

    #[test]
    fn at_the_limit_the_most_and_latest_requested_packages_stay() {
        let mut requests = MissingRequests::default();
        let often = any_version(&provider("often"));
        requests.record(often.clone(), None, Timestamp(1));
        requests.record(often, None, Timestamp(1));
        for number in 0..3 * MAX_MISSING as u64 {
            requests.record(any_version(&provider(&format!("p{number}"))), None, Timestamp(2 + number));
            requests.record_text(&format!("page {number}"), None, Timestamp(number));
        }
        let (lines, words) = (lines_of(&requests), requests.texts.len());
        assert_eq!((lines.len(), words), (MAX_MISSING, MAX_MISSING_TEXTS));
        let last = format!("registry.example/acme/p{}", 3 * MAX_MISSING - 1);
        assert!(lines.contains(&"registry.example/acme/often".to_owned()) && lines.contains(&last));
        assert!(!lines.contains(&"registry.example/acme/p0".to_owned()));
        assert!(requests.write().len() < 300 * MAX_MISSING);
    }

    #[test]
    fn a_stored_package_is_forgotten_unless_requested_again_meanwhile() {
        let mut requests = MissingRequests::default();
        let missing = any_version(&provider("null"));
        requests.record(missing.clone(), None, Timestamp(1));
        let seen = *requests.packages.iter().next().unwrap().1;
        requests.record(missing.clone(), None, Timestamp(2));
        let found = (7, ConfigGeneration::default());
        requests.record_lookup(&missing, seen, true, found);
        assert_eq!(lines_of(&requests).len(), 1);
        let seen = *requests.packages.iter().next().unwrap().1;
        requests.record_lookup(&missing, seen, false, found);
        assert_eq!(requests.packages.iter().next().unwrap().1.last_miss, Some(found));
        let seen = *requests.packages.iter().next().unwrap().1;
        requests.record_lookup(&missing, seen, true, found);
        assert!(lines_of(&requests).is_empty());
    }

    /// Two that write to one record lose no request of each other, and what one took off comes back by a new request only.
    #[test]
    fn what_another_writer_recorded_is_neither_lost_nor_brought_back() {
        let [a, b, c] = ["a", "b", "c"].map(|name| any_version(&provider(name)));
        let mut record = None;
        let mut save = |requests: &mut MissingRequests| {
            let earlier = requests.clone();
            let saved = earlier.merged_into(record.as_deref().and_then(MissingRequests::read));
            record = Some(saved.write());
            requests.take_saved(&earlier, saved);
        };
        let times = |requests: &MissingRequests| {
            requests.packages.iter().map(|(missing, count)| (missing.clone(), count.times)).collect::<Vec<_>>()
        };
        let (mut one, mut other) = (MissingRequests::default(), MissingRequests::default());
        one.record(a.clone(), None, Timestamp(1));
        save(&mut one);
        other.record(a.clone(), None, Timestamp(2));
        other.record(b.clone(), None, Timestamp(2));
        save(&mut other);
        assert_eq!(times(&other), [(a.clone(), 2), (b.clone(), 1)]);
        save(&mut one);
        assert_eq!(times(&one), times(&other));
        // `a` is stored by now; the other one adds `c`, and has `a` in memory.
        one.forget(&a);
        save(&mut one);
        other.record(c.clone(), None, Timestamp(3));
        save(&mut other);
        assert_eq!(times(&other), [(b.clone(), 1), (c.clone(), 1)]);
        other.record(a.clone(), None, Timestamp(4));
        save(&mut other);
        assert_eq!(times(&other), [(a.clone(), 1), (b.clone(), 1), (c.clone(), 1)]);
        // Cleared by one: the other one brings nothing back.
        one = MissingRequests { forgotten: None, ..MissingRequests::default() };
        save(&mut one);
        save(&mut other);
        assert_eq!((times(&one), times(&other)), (vec![], vec![]));
    }

    /// Requests that come while the list is saved count once.
    #[test]
    fn requests_during_a_save_are_saved_by_the_next() {
        let [a, b] = ["a", "b"].map(|name| any_version(&provider(name)));
        let mut requests = MissingRequests::default();
        requests.record(a.clone(), None, Timestamp(1));
        requests.record(b.clone(), None, Timestamp(1));
        let earlier = requests.clone();
        let saved = earlier.merged_into(None);
        requests.record(a.clone(), None, Timestamp(2));
        requests.forget(&b);
        let record = saved.write();
        requests.take_saved(&earlier, saved);
        let next = requests.merged_into(MissingRequests::read(&record));
        assert_eq!(
            next.packages.into_iter().map(|(missing, count)| (missing, count.times)).collect::<Vec<_>>(),
            [(a, 2)]
        );
    }

    proptest! {
        #[test]
        fn the_list_is_bounded_and_round_trips(
            noted in prop::collection::vec((0..30_u8, prop::option::of(0..200_usize), prop::bool::ANY, 0..5_u64), 0..400),
        ) {
            let mut requests = MissingRequests::default();
            for (type_, number, has_platform, now) in noted {
                let address = provider(&format!("p{type_}"));
                let missing = match number.map(|number| version(&address, number)) {
                    Some(MissingPackage::Provider { of, version, .. }) if has_platform => {
                        MissingPackage::Provider { of, version, platform: Some(Platform::parse("linux_amd64").unwrap()) }
                    }
                    Some(missing) => missing,
                    None => any_version(&address),
                };
                requests.record(missing, None, Timestamp(now));
            }
            prop_assert!(requests.packages.len() <= MAX_MISSING);
            let record = requests.write();
            let again = MissingRequests::read(&record).unwrap();
            prop_assert_eq!(&again.packages.keys().collect::<Vec<_>>(), &requests.packages.keys().collect::<Vec<_>>());
            prop_assert_eq!(again.write(), record);
        }

        #[test]
        fn an_invalid_record_is_none_and_never_a_panic(record in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(MissingRequests::read(&record).is_none());
        }
    }
}
