//! The packages requested while offline and not stored: a bounded list, and the record that survives a restart.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::address::{Hostname, ModuleAddress, ModulePackage, Package, PackageRef, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::mirror::runtime::ConfigGeneration;

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
    /// The registry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Provider { of: address, .. } => &address.host,
            Self::Module { of: address, .. } => &address.host,
        }
    }

    fn has_same_address(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Provider { of: address, .. }, Self::Provider { of: other, .. }) => address == other,
            (Self::Module { of: address, .. }, Self::Module { of: other, .. }) => address == other,
            (Self::Provider { .. }, Self::Module { .. }) | (Self::Module { .. }, Self::Provider { .. }) => false,
        }
    }
}

impl From<&MissingPackage> for PackageRef {
    fn from(missing: &MissingPackage) -> Self {
        let line = |address: String, version: &Option<Version>| Self {
            address,
            version: version.as_ref().map(ToString::to_string),
            ..Self::default()
        };
        match missing {
            MissingPackage::Provider { of: provider, version, platform } => {
                line(provider.to_string(), version).on(platform.as_ref())
            }
            MissingPackage::Module { of: module, version } => line(module.to_string(), version),
        }
    }
}

impl From<&ProviderAddress> for MissingPackage {
    fn from(address: &ProviderAddress) -> Self {
        Self::Provider { of: address.clone(), version: None, platform: None }
    }
}

impl From<(&ProviderAddress, &Version)> for MissingPackage {
    fn from((of, version): (&ProviderAddress, &Version)) -> Self {
        Self::Provider { of: of.clone(), version: Some(version.clone()), platform: None }
    }
}

impl From<&Package> for MissingPackage {
    fn from(package: &Package) -> Self {
        let Package { provider, version, platform } = package.clone();
        Self::Provider { of: provider, version: Some(version), platform: Some(platform) }
    }
}

impl From<&ModuleAddress> for MissingPackage {
    fn from(address: &ModuleAddress) -> Self {
        Self::Module { of: address.clone(), version: None }
    }
}

impl From<&ModulePackage> for MissingPackage {
    fn from(package: &ModulePackage) -> Self {
        let ModulePackage { module, version } = package.clone();
        Self::Module { of: module, version: Some(version) }
    }
}

/// The state in which a lookup last failed: the revision of the provider or module, and the generation of the
/// configuration.
pub(in crate::mirror) type LastMiss = (u64, ConfigGeneration);

/// The requests for a missing package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) struct RequestCount {
    times: u64,
    last: Timestamp,
    /// The last failed lookup; none if there was none since the last request.
    pub(in crate::mirror) last_miss: Option<LastMiss>,
}

#[derive(Debug, Default)]
pub(in crate::mirror) struct MissingRequests {
    packages: BTreeMap<MissingPackage, RequestCount>,
    texts: BTreeSet<String>,
    /// True if the record on disk is outdated.
    is_changed: bool,
}

#[derive(Serialize, Deserialize)]
struct MissingRecord {
    things: Vec<MissingLine>,
}

#[derive(Serialize, Deserialize)]
struct MissingLine {
    what: MissingPackage,
    times: u64,
    last: Timestamp,
}

impl MissingRequests {
    /// Reads the record of an earlier run. `None` if it is invalid. Applies the current limits.
    pub(in crate::mirror) fn read(record: &[u8]) -> Option<Self> {
        let MissingRecord { things } = serde_json::from_slice(record).ok()?;
        let mut wants = Self::default();
        for MissingLine { what: package, times, last } in things {
            wants.evict_for(&package);
            wants.packages.insert(package, RequestCount { times, last, last_miss: None });
        }
        Some(wants)
    }

    /// Serialises the record. Missing non-packages are kept only in memory.
    pub(in crate::mirror) fn write(&self) -> Vec<u8> {
        let line = |(package, count): (&MissingPackage, &RequestCount)| MissingLine {
            what: package.clone(),
            times: count.times,
            last: count.last,
        };
        // Names, numbers and texts always serialise.
        serde_json::to_vec(&MissingRecord { things: self.packages.iter().map(line).collect() }).unwrap_or_default()
    }

    /// Records a request. At the limit, the package with the fewest requests is dropped; among equals, the one
    /// requested longest ago.
    pub(in crate::mirror) fn note(&mut self, missing: MissingPackage, now: Timestamp) {
        if let Some(count) = self.packages.get_mut(&missing) {
            // A changed count is not worth a write.
            *count = RequestCount { times: count.times.saturating_add(1), last: now, last_miss: None };
            return;
        }
        self.is_changed = true;
        self.evict_for(&missing);
        self.packages.insert(missing, RequestCount { times: 1, last: now, last_miss: None });
    }

    /// Records a missing non-package.
    pub(in crate::mirror) fn note_words(&mut self, words: &str) {
        if self.texts.len() < MAX_MISSING_TEXTS {
            self.texts.insert(words.to_owned());
        }
    }

    fn evict_for(&mut self, missing: &MissingPackage) {
        if self.packages.contains_key(missing) {
            return;
        }
        let of_the_same = self.packages.keys().filter(|other| other.has_same_address(missing)).count();
        let may_go: &dyn Fn(&MissingPackage) -> bool = match () {
            () if of_the_same >= MAX_MISSING_PER_ADDRESS => &|other| other.has_same_address(missing),
            () if self.packages.len() >= MAX_MISSING => &|_| true,
            () => return,
        };
        let candidates = self.packages.iter().filter(|(other, _)| may_go(other));
        let least = candidates.min_by_key(|(_, count)| (count.times, count.last)).map(|(other, _)| other.clone());
        if let Some(least) = least {
            self.packages.remove(&least);
        }
    }

    pub(in crate::mirror) fn things(&self) -> impl Iterator<Item = (&MissingPackage, &RequestCount)> {
        self.packages.iter()
    }

    pub(in crate::mirror) fn words(&self) -> impl Iterator<Item = &String> {
        self.texts.iter()
    }

    /// Records the result of a lookup, unless the package was requested again meanwhile.
    pub(in crate::mirror) fn record_lookup(
        &mut self,
        missing: &MissingPackage,
        seen: RequestCount,
        is_held: bool,
        found: LastMiss,
    ) {
        let Some(count) = self.packages.get_mut(missing).filter(|count| **count == seen) else { return };
        if is_held {
            self.packages.remove(missing);
            self.is_changed = true;
        } else {
            count.last_miss = Some(found);
        }
    }

    pub(in crate::mirror) fn forget(&mut self) {
        *self = Self { is_changed: true, ..Self::default() };
    }

    /// Returns true if the record must be saved, and resets the flag: the caller saves it now.
    pub(in crate::mirror) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Sets the flag again after a failed save.
    pub(in crate::mirror) fn mark_unsaved(&mut self) {
        self.is_changed = true;
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

    fn version(address: &ProviderAddress, number: usize) -> MissingPackage {
        (address, &Version::parse(&format!("1.{number}.0")).unwrap()).into()
    }

    fn lines_of(wants: &MissingRequests) -> Vec<String> {
        wants.things().map(|(missing, _)| PackageRef::from(missing).to_string()).collect()
    }

    #[test]
    fn requests_for_nonexistent_versions_crowd_out_no_other_provider() {
        let mut wants = MissingRequests::default();
        let (real, other) = (provider("real"), provider("other"));
        wants.note((&other).into(), Timestamp(1));
        wants.note(version(&real, 0), Timestamp(1));
        wants.note(version(&real, 0), Timestamp(2));
        for number in 1..5000 {
            wants.note(version(&real, number), Timestamp(3));
        }
        let lines = lines_of(&wants);
        assert_eq!(lines.len(), MAX_MISSING_PER_ADDRESS + 1);
        // The package requested twice stays, and so does the other provider.
        assert!(lines.contains(&"registry.example/acme/real 1.0.0".to_owned()), "{lines:?}");
        assert!(lines.contains(&"registry.example/acme/other".to_owned()), "{lines:?}");
    }

    #[test]
    fn at_the_limit_the_most_and_latest_requested_packages_stay() {
        let mut wants = MissingRequests::default();
        let often = MissingPackage::from(&provider("often"));
        wants.note(often.clone(), Timestamp(1));
        wants.note(often, Timestamp(1));
        for number in 0..3 * MAX_MISSING as u64 {
            wants.note((&provider(&format!("p{number}"))).into(), Timestamp(2 + number));
            wants.note_words(&format!("page {number}"));
        }
        let (lines, words) = (lines_of(&wants), wants.words().count());
        assert_eq!((lines.len(), words), (MAX_MISSING, MAX_MISSING_TEXTS));
        let last = format!("registry.example/acme/p{}", 3 * MAX_MISSING - 1);
        assert!(lines.contains(&"registry.example/acme/often".to_owned()) && lines.contains(&last));
        assert!(!lines.contains(&"registry.example/acme/p0".to_owned()));
        assert!(wants.write().len() < 300 * MAX_MISSING);
    }

    #[test]
    fn a_stored_package_is_forgotten_unless_requested_again_meanwhile() {
        let mut wants = MissingRequests::default();
        let missing = MissingPackage::from(&provider("null"));
        wants.note(missing.clone(), Timestamp(1));
        let seen = *wants.things().next().unwrap().1;
        wants.note(missing.clone(), Timestamp(2));
        let found = (7, ConfigGeneration::default());
        wants.record_lookup(&missing, seen, true, found);
        assert_eq!(lines_of(&wants).len(), 1);
        let seen = *wants.things().next().unwrap().1;
        wants.record_lookup(&missing, seen, false, found);
        assert_eq!(wants.things().next().unwrap().1.last_miss, Some(found));
        let seen = *wants.things().next().unwrap().1;
        wants.record_lookup(&missing, seen, true, found);
        assert!(lines_of(&wants).is_empty());
    }

    proptest! {
        #[test]
        fn the_list_is_bounded_and_round_trips(
            noted in prop::collection::vec((0..30_u8, prop::option::of(0..200_usize), prop::bool::ANY, 0..5_u64), 0..400),
        ) {
            let mut wants = MissingRequests::default();
            for (type_, number, has_platform, now) in noted {
                let address = provider(&format!("p{type_}"));
                let missing = match number.map(|number| version(&address, number)) {
                    Some(MissingPackage::Provider { of, version, .. }) if has_platform => {
                        MissingPackage::Provider { of, version, platform: Some(Platform::parse("linux_amd64").unwrap()) }
                    }
                    Some(missing) => missing,
                    None => (&address).into(),
                };
                wants.note(missing, Timestamp(now));
            }
            prop_assert!(wants.packages.len() <= MAX_MISSING);
            let record = wants.write();
            let again = MissingRequests::read(&record).unwrap();
            prop_assert_eq!(&again.packages.keys().collect::<Vec<_>>(), &wants.packages.keys().collect::<Vec<_>>());
            prop_assert_eq!(again.write(), record);
        }

        #[test]
        fn an_invalid_record_is_none_and_never_a_panic(record in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(MissingRequests::read(&record).is_none());
        }
    }
}
