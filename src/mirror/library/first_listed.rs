//! The times at which a provider's versions were first listed: one time for the first list, and one for each version
//! that it did not name. The stored list says what the first one named, so both change in one step, and the times go
//! with the list unless a version of the provider was verified.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::address::{Address, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::mirror::library::Library;
use crate::mirror::library::stored_document::StoredDocument;
use crate::store::{
    DocumentKey, Durability, IndexEntry, Key, ReadOutcome, RecordAction, RecordStep, StoreError, to_json,
};
use crate::upstream::discovery::Service;
use crate::upstream::providers::MAX_VERSIONS;

/// The record of one provider. A version of the stored list that is not among `others` was on the first list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FirstListedLayouts")]
pub(in crate::mirror) struct FirstListed {
    /// The time of the first list; `None` before there was one.
    first_list: Option<Timestamp>,
    /// Versions that were listed later, were imported, or are not on the stored list; at most [`MAX_VERSIONS`].
    others: BTreeMap<Version, Timestamp>,
}

/// The layouts of the record. An older larder wrote the time of every version.
#[derive(Deserialize)]
struct FirstListedLayouts {
    #[serde(default)]
    first_list: Option<Timestamp>,
    #[serde(default)]
    others: BTreeMap<Version, Timestamp>,
    #[serde(default)]
    versions: BTreeMap<Version, Timestamp>,
}

impl From<FirstListedLayouts> for FirstListed {
    fn from(FirstListedLayouts { first_list, others, versions }: FirstListedLayouts) -> Self {
        if versions.is_empty() { Self { first_list, others } } else { Self::of_all(versions) }
    }
}

impl FirstListed {
    /// The record of a provider whose versions all have a time: the earliest is that of the first list.
    pub(super) fn of_all(versions: BTreeMap<Version, Timestamp>) -> Self {
        let first_list = versions.values().min().copied();
        Self { first_list, others: versions.into_iter().take(MAX_VERSIONS).collect() }
    }

    /// The record after a list that names `listed` replaces the one that names `stored`.
    fn with_list(self, stored: &BTreeSet<Version>, listed: &BTreeSet<Version>, now: Timestamp) -> Self {
        let (first_list, named_before) = match self.first_list {
            Some(first_list) => (first_list, stored),
            None => (now, listed),
        };
        let mut times = Self { first_list: Some(first_list), ..self }.without_list(named_before);
        for version in listed {
            times.others.entry(version.clone()).or_insert(now);
        }
        times.others.retain(|version, time| *time != first_list || !listed.contains(version));
        if times.others.len() > MAX_VERSIONS {
            times.others.retain(|version, _| listed.contains(version));
        }
        times.within_limit()
    }

    /// The record after the list that names `stored` is removed: it names every version by itself.
    fn without_list(mut self, stored: &BTreeSet<Version>) -> Self {
        if let Some(first_list) = self.first_list {
            for version in stored {
                self.others.entry(version.clone()).or_insert(first_list);
            }
        }
        self
    }

    /// The record after a version is imported that the stored list, which names `stored`, may not name.
    fn with_imported(mut self, stored: &BTreeSet<Version>, version: &Version, now: Timestamp) -> Self {
        if !stored.contains(version) {
            self.others.entry(version.clone()).or_insert(now);
        }
        self.within_limit()
    }

    fn within_limit(mut self) -> Self {
        while self.others.len() > MAX_VERSIONS {
            self.others.pop_last();
        }
        self
    }
}

/// The provider of a version list; `None` for another record.
pub(super) fn provider_of_list(list: &Key) -> Option<&ProviderAddress> {
    match list {
        Key::Document(DocumentKey::Versions(Address::Provider(provider))) => Some(provider),
        _ => None,
    }
}

/// The versions that a stored list names. A list that cannot be read names none.
fn versions_of(list: Option<&StoredDocument>) -> BTreeSet<Version> {
    let list = list.and_then(|list| list.as_versions(Service::Providers).ok());
    list.into_iter().flat_map(|list| list.versions).map(|listed| listed.version).collect()
}

/// Replaces a document. With the version list of a provider, the times of its versions change.
pub(in crate::mirror) fn put_document(
    step: &mut RecordStep<'_>,
    key: &Key,
    stored: Option<&StoredDocument>,
    document: &StoredDocument,
    durability: Durability,
) -> Result<(), StoreError> {
    let checked = document.metadata.checked;
    if let Some(provider) = provider_of_list(key) {
        let times = Key::FirstListed(provider.clone());
        let recorded = step.read(&times)?.json::<FirstListed>().intact();
        let is_the_same = stored.is_some_and(|stored| stored.has_same_content(document));
        if !(is_the_same && recorded.is_some()) {
            let before = recorded.clone().unwrap_or_default();
            let now = before.with_list(&versions_of(stored), &versions_of(Some(document)), checked);
            // Before the list: a version that is listed without a time counts as one of the first list.
            if recorded.as_ref() != Some(&now) {
                step.put(&times, to_json(&now), durability, IndexEntry::Document(checked));
            }
        }
    }
    step.put(key, document.write(), durability, IndexEntry::Document(checked));
    Ok(())
}

impl Library {
    /// Removes a document. The times of a provider's versions go with its list, unless a version was verified.
    pub(in crate::mirror) fn remove_document(&self, key: &Key, durability: Durability) -> Result<(), StoreError> {
        let Some(provider) = provider_of_list(key) else { return self.store.records.remove(key, durability) };
        self.store.records.change(key, |step| {
            let times = Key::FirstListed(provider.clone());
            if is_verified(step, provider)? {
                if let ReadOutcome::Intact(recorded) = step.read(&times)?.json::<FirstListed>() {
                    let stored = step.read(key)?.intact().and_then(StoredDocument::read);
                    let checked = stored.as_ref().map_or(Timestamp(0), |list| list.metadata.checked);
                    let left = recorded.without_list(&versions_of(stored.as_ref())).within_limit();
                    step.put(&times, to_json(&left), durability, IndexEntry::Document(checked));
                }
            } else {
                step.change(&times, RecordAction::Remove(durability), IndexEntry::Gone);
            }
            step.change(key, RecordAction::Remove(durability), IndexEntry::Gone);
            Ok(())
        })
    }

    /// Removes the times of a provider without a list and without a verified version. Returns false if they stay.
    pub(super) fn remove_unused_times(&self, provider: &ProviderAddress) -> Result<bool, StoreError> {
        let (times, list) = (Key::FirstListed(provider.clone()), Key::version_list(provider));
        self.store.records.change(&times, |step| {
            let is_used = self.store.records.stat(&list)?.is_some() || is_verified(step, provider)?;
            if !is_used {
                step.change(&times, RecordAction::Remove(Durability::Lazy), IndexEntry::Gone);
            }
            Ok(!is_used)
        })
    }

    /// Records the time of a version that was imported without signatures. Its digest is only the operator's word.
    pub(in crate::mirror) fn record_import(
        &self,
        provider: &ProviderAddress,
        version: &Version,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let times = Key::FirstListed(provider.clone());
        self.store.records.change(&times, |step| {
            let recorded = step.read(&times)?.json::<FirstListed>().intact().unwrap_or_default();
            let stored = step.read(&Key::version_list(provider))?.intact().and_then(StoredDocument::read);
            let with_import = recorded.clone().with_imported(&versions_of(stored.as_ref()), version, now);
            if with_import != recorded {
                step.put(&times, to_json(&with_import), Durability::Lazy, IndexEntry::Document(now));
            }
            Ok(())
        })
    }
}

/// True if any version of the provider was verified.
fn is_verified(step: &RecordStep<'_>, provider: &ProviderAddress) -> Result<bool, StoreError> {
    let of_provider = step.read(&Key::FirstSeenV0(provider.clone()))?;
    Ok(of_provider != ReadOutcome::Absent || !step.first_seen(provider)?.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl FirstListed {
        /// The time of a version, while the stored list names `stored`.
        fn time_of(&self, version: &Version, stored: &BTreeSet<Version>) -> Option<Timestamp> {
            let of_first_list = || self.first_list.filter(|_| stored.contains(version));
            self.others.get(version).copied().or_else(of_first_list)
        }
    }

    fn version(number: u8) -> Version {
        Version::parse(&format!("1.0.{number}")).unwrap()
    }

    fn versions(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<Version> {
        numbers.into_iter().map(version).collect()
    }

    #[derive(Debug, Clone)]
    enum Event {
        List(BTreeSet<Version>),
        ListIsRemoved,
        Import(Version),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => prop::collection::btree_set(0..8u8, 0..8).prop_map(|numbers| Event::List(versions(numbers))),
            1 => Just(Event::ListIsRemoved),
            1 => (0..8u8).prop_map(|number| Event::Import(version(number))),
        ]
    }

    proptest! {
        /// Each version has the time at which it was first listed or imported, whatever became of the list since.
        #[test]
        fn a_version_keeps_the_time_of_its_first_listing(events in prop::collection::vec((event(), 0..3u64), 0..12)) {
            let (mut record, mut stored) = (FirstListed::default(), BTreeSet::new());
            let (mut expected, mut has_list, mut now) = (BTreeMap::new(), false, 100);
            for (event, seconds) in events {
                now += seconds;
                match event {
                    Event::List(listed) => {
                        for version in &listed {
                            expected.entry(version.clone()).or_insert(Timestamp(now));
                        }
                        record = record.with_list(&stored, &listed, Timestamp(now));
                        (stored, has_list) = (listed, true);
                    }
                    Event::ListIsRemoved => {
                        record = record.without_list(&stored);
                        stored = BTreeSet::new();
                    }
                    Event::Import(version) => {
                        record = record.with_imported(&stored, &version, Timestamp(now));
                        expected.entry(version).or_insert(Timestamp(now));
                    }
                }
                for (version, time) in &expected {
                    prop_assert_eq!(record.time_of(version, &stored), Some(*time));
                }
                prop_assert_eq!(record.first_list.is_some(), has_list);
                let read: FirstListed = serde_json::from_slice(&to_json(&record)).unwrap();
                prop_assert_eq!(&read, &record);
            }
        }
    }

    #[test]
    fn the_first_list_is_one_entry_however_long_it_is() {
        let (first, later) = (versions(0..=200), versions(0..=202));
        let record = FirstListed::default().with_list(&BTreeSet::new(), &first, Timestamp(5));
        assert_eq!(String::from_utf8(to_json(&record)).unwrap(), r#"{"first_list":5,"others":{}}"#);
        let record = record.with_list(&first, &later, Timestamp(7));
        assert_eq!(record.others, BTreeMap::from([201, 202].map(|number| (version(number), Timestamp(7)))));
    }

    #[test]
    fn the_times_of_an_older_larder_shrink_at_the_next_list() {
        let older = br#"{"versions":{"1.0.0":5,"1.0.1":5,"1.0.2":6,"1.0.3":5}}"#;
        let record: FirstListed = serde_json::from_slice(older).unwrap();
        let listed = versions([0, 1, 2, 4]);
        let record = record.with_list(&versions([0, 1, 2]), &listed, Timestamp(8));
        // 1.0.3 is no longer listed.
        let others = [(2, 6), (3, 5), (4, 8)].map(|(number, time)| (version(number), Timestamp(time)));
        assert_eq!(record, FirstListed { first_list: Some(Timestamp(5)), others: others.into() });
    }

    #[test]
    fn a_record_has_a_limit_and_keeps_the_versions_that_are_listed() {
        let number = |number: usize| Version::parse(&format!("2.{number}.0")).unwrap();
        let withdrawn: BTreeMap<_, _> = (0..MAX_VERSIONS).map(|patch| (number(patch), Timestamp(3))).collect();
        let record = FirstListed { first_list: Some(Timestamp(1)), others: withdrawn };
        let listed = versions(0..3);
        let record = record.with_list(&BTreeSet::new(), &listed, Timestamp(9));
        assert_eq!(
            record.others.into_iter().collect::<Vec<_>>(),
            listed.iter().map(|version| (version.clone(), Timestamp(9))).collect::<Vec<_>>()
        );
        let many: BTreeSet<_> = (0..=MAX_VERSIONS).map(number).collect();
        let record = FirstListed { first_list: Some(Timestamp(1)), others: BTreeMap::new() };
        assert_eq!(record.without_list(&many).within_limit().others.len(), MAX_VERSIONS);
    }
}
