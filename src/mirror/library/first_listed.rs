//! The times at which the versions of a provider or module were first listed: one time for the first list, and one for each
//! version that it did not name, with the time at which the list before was last read, and the time of its withdrawal. The stored list says what the first one
//! named, so both change in one step, and the times go with the list unless a version was verified.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address::{Address, ModuleAddress, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::mirror::library::Library;
use crate::mirror::library::stored_document::{DocumentMetadata, StoredDocument};
use crate::store::{
    DocumentKey, Durability, IndexEntry, Key, ReadOutcome, RecordAction, RecordStep, StoreError, to_json,
};
use crate::upstream::discovery::Service;
use crate::upstream::providers::{MAX_VERSIONS, VersionList};

/// The longest time in which a first list that is not stored is asked for again. After a longer one, nobody knows what the lost
/// list named, so its versions count as listed now.
const FIRST_LIST_GRACE: Duration = Duration::from_secs(600);
/// The most versions in the record of a provider whose list is not stored: it is not evicted.
const MAX_WITHOUT_LIST: usize = 2_000;

/// The record of one provider or module. A version of the stored list that is not among `others` was on the first list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FirstListedLayouts")]
pub struct FirstListed {
    /// The time of the first list; `None` before there was one.
    first_list: Option<Timestamp>,
    /// Versions that were listed later, were imported, or are not on the stored list; at most [`MAX_VERSIONS`].
    others: BTreeMap<Version, Timestamp>,
    /// Of those of `others` that a later list named anew: the last confirmation of the list before, which did not name it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    before: BTreeMap<Version, Timestamp>,
    /// Of those of `others` that are stored, and that upstream has dropped: the time of the first list without them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    withdrawn: BTreeMap<Version, Timestamp>,
}

/// The first listing of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstListing {
    /// The first list of its provider or module named it.
    OnFirstList(Timestamp),
    /// A later list named it, or it was imported.
    Later {
        /// The time of that list.
        listed: Timestamp,
        /// The last confirmation of the list before, where one was stored.
        before: Option<Timestamp>,
    },
}

/// The layouts of the record. An older larder wrote the time of every version.
#[derive(Deserialize)]
struct FirstListedLayouts {
    #[serde(default)]
    first_list: Option<Timestamp>,
    #[serde(default)]
    others: BTreeMap<Version, Timestamp>,
    #[serde(default)]
    before: BTreeMap<Version, Timestamp>,
    #[serde(default)]
    withdrawn: BTreeMap<Version, Timestamp>,
    #[serde(default)]
    versions: BTreeMap<Version, Timestamp>,
}

impl From<FirstListedLayouts> for FirstListed {
    fn from(layouts: FirstListedLayouts) -> Self {
        let FirstListedLayouts { first_list, others, before, withdrawn, versions } = layouts;
        if versions.is_empty() { Self { first_list, others, before, withdrawn } } else { Self::of_all(versions) }
    }
}

impl FirstListed {
    /// The record of a provider whose versions all have a time: the earliest is that of the first list.
    pub(super) fn of_all(versions: BTreeMap<Version, Timestamp>) -> Self {
        let first_list = versions.values().min().copied();
        Self { first_list, others: versions, ..Self::default() }.within(MAX_VERSIONS)
    }

    /// The record after `list` replaces the stored list; `None` where none was stored. A list that names nothing is no first
    /// list.
    fn with_list(self, stored: Option<(&ListedVersions, Timestamp)>, list: &ListedVersions, now: Timestamp) -> Self {
        let (stored, confirmed) = stored.unzip();
        let confirmed = confirmed.filter(|confirmed| *confirmed > Timestamp(0));
        let is_first = match (self.first_list, stored) {
            (None, _) => true,
            // larder was killed before it wrote the first list.
            (Some(first_list), None) => self.others.is_empty() && now.since(first_list) < FIRST_LIST_GRACE,
            (Some(_), Some(_)) => false,
        };
        // A version of the time of the first list counts as one that it named.
        let now = self.first_list.filter(|_| !is_first).map_or(now, |first_list| now.max(Timestamp(first_list.0 + 1)));
        let first_list = self.first_list.or((!list.upstream.is_empty()).then_some(now));
        let mut times = Self { first_list, ..self };
        times = times.without_list(if is_first { Some(list) } else { stored });
        for version in list.upstream.iter().chain(&list.kept) {
            if let Entry::Vacant(vacant) = times.others.entry(version.clone()) {
                vacant.insert(now);
                times.before.extend(confirmed.map(|confirmed| (version.clone(), confirmed)));
            }
        }
        times.withdrawn.retain(|version, _| !list.upstream.contains(version));
        for version in &list.kept {
            times.withdrawn.entry(version.clone()).or_insert(now);
        }
        times.others.retain(|version, time| Some(*time) != first_list || !list.upstream.contains(version));
        if times.others.len() > MAX_VERSIONS {
            times.others.retain(|version, _| list.upstream.contains(version));
        }
        times.within(MAX_VERSIONS)
    }

    /// The record after the stored list is removed: it names every version by itself.
    fn without_list(mut self, stored: Option<&ListedVersions>) -> Self {
        if let (Some(first_list), Some(stored)) = (self.first_list, stored) {
            for version in &stored.upstream {
                self.others.entry(version.clone()).or_insert(first_list);
            }
        }
        self
    }

    /// The record after the import of a version that the stored list may not name.
    fn with_imported(mut self, stored: Option<&ListedVersions>, version: &Version, now: Timestamp) -> Self {
        if stored.is_none_or(|stored| !stored.upstream.contains(version)) {
            self.others.entry(version.clone()).or_insert(now);
        }
        self.within(MAX_VERSIONS)
    }

    /// The record after another larder, which is trusted, said from when the ages of versions count. An earlier time counts.
    fn with_told(
        mut self,
        stored: Option<&ListedVersions>,
        told: &BTreeMap<Version, Timestamp>,
        now: Timestamp,
    ) -> Self {
        for (version, time) in told {
            let mut time = (*time).min(now);
            let is_listed = stored.is_some_and(|stored| stored.upstream.contains(version));
            let of_first_list = self.first_list.filter(|_| is_listed);
            if self.others.get(version).copied().or(of_first_list).is_some_and(|known| known <= time) {
                continue;
            }
            // The time of the first list stands for what that list named.
            if Some(time) == self.first_list {
                time = Timestamp(time.0.saturating_sub(1));
            }
            self.others.insert(version.clone(), time);
            self.before.remove(version);
        }
        self.within(MAX_VERSIONS)
    }

    /// Drops the oldest versions beyond a number.
    fn within(mut self, most: usize) -> Self {
        while self.others.len() > most {
            self.others.pop_first();
        }
        self.before.retain(|version, _| self.others.contains_key(version));
        self.withdrawn.retain(|version, _| self.others.contains_key(version));
        self
    }

    /// The time of the first list.
    pub fn first_list(&self) -> Option<Timestamp> {
        self.first_list
    }

    /// The time of the first list without a version that upstream has dropped.
    pub fn withdrawal_of(&self, version: &Version) -> Option<Timestamp> {
        self.withdrawn.get(version).copied()
    }

    /// The first listing of a version, while the stored list names these versions. `None` for one that was never listed.
    pub fn listing_of(&self, version: &Version, is_on_stored_list: bool) -> Option<FirstListing> {
        match self.others.get(version) {
            // The first list named it, and it is not on the stored list.
            Some(listed) if Some(*listed) == self.first_list => Some(FirstListing::OnFirstList(*listed)),
            Some(listed) => Some(FirstListing::Later { listed: *listed, before: self.before.get(version).copied() }),
            None => self.first_list.filter(|_| is_on_stored_list).map(FirstListing::OnFirstList),
        }
    }

    /// The record before a change; `None` if it is damaged. A list that was stored before larder recorded times is a first
    /// list.
    fn before_change(
        recorded: ReadOutcome<Self>,
        stored: Option<(&ListedVersions, &DocumentMetadata)>,
    ) -> Option<Self> {
        match recorded {
            ReadOutcome::Intact(recorded) => Some(recorded),
            ReadOutcome::Absent => {
                // A list that upstream never sent has no time of a check.
                let sent = stored.filter(|(list, of)| !list.upstream.is_empty() && of.checked > Timestamp(0));
                Some(sent.map_or_else(Self::default, |(_, of)| Self::of_stored_list(of.fetched)))
            }
            ReadOutcome::Damaged => None,
        }
    }

    /// The record of a list when nobody knows the times of its versions: all count from now, and none as one of the first list.
    fn of_lost_times(list: ListedVersions, now: Timestamp) -> Self {
        let withdrawn = list.kept.iter().map(|version| (version.clone(), now)).collect();
        let others = list.upstream.into_iter().chain(list.kept).map(|version| (version, now)).collect();
        Self { first_list: Some(Timestamp(now.0.saturating_sub(1))), others, withdrawn, before: BTreeMap::new() }
    }

    /// The record of a list that was stored before larder recorded times.
    pub fn of_stored_list(list: Timestamp) -> Self {
        Self { first_list: Some(list), ..Self::default() }
    }
}

/// The versions that a list names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ListedVersions {
    /// As upstream lists them.
    upstream: BTreeSet<Version>,
    /// Those that are listed because they are stored.
    kept: BTreeSet<Version>,
}

impl ListedVersions {
    /// Reads a list. One that cannot be read names nothing.
    fn of(list: &StoredDocument, service: Service) -> Self {
        let kept = list.dropped_versions(service).into_iter().map(|listed| listed.version).collect();
        Self { upstream: VersionList::named(service, &list.body).unwrap_or_default(), kept }
    }
}

/// The provider or module of a version list; `None` for another record.
pub(super) fn address_of_list(list: &Key) -> Option<&Address> {
    match list {
        Key::Document(DocumentKey::Versions(address)) => Some(address),
        _ => None,
    }
}

/// Records the times of versions when `list` replaces the stored one. Does nothing for another document.
pub fn record_times(
    step: &mut RecordStep<'_>,
    key: &Key,
    stored: Option<&StoredDocument>,
    list: &StoredDocument,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(address) = address_of_list(key) else { return Ok(()) };
    let (times, service) = (Key::FirstListed(address.clone()), Service::from(address));
    let recorded = match stored {
        // The record has no times of what that list named anew.
        Some(stored) if stored.metadata.without_times => ReadOutcome::Damaged,
        _ => step.read(&times)?.json::<FirstListed>(),
    };
    if matches!(recorded, ReadOutcome::Intact(_)) && stored.is_some_and(|stored| stored.has_same_content(list)) {
        return Ok(());
    }
    let named = ListedVersions::of(list, service);
    // A registry may take every spelling of a module's name: a new one must not make its versions look as old as a first list.
    if let (ReadOutcome::Absent, None, Address::Module(module)) = (&recorded, stored, address)
        && let Some((before, stored)) = first_spelling(step, module)?
    {
        let stored = stored.as_ref().map(|stored| (ListedVersions::of(stored, service), stored.metadata.checked));
        let after = before.with_list(stored.as_ref().map(|(named, checked)| (named, *checked)), &named, now);
        step.put(&times, to_json(&after), Durability::Synced, IndexEntry::Document(now));
        return Ok(());
    }
    let stored = stored.map(|stored| (ListedVersions::of(stored, service), &stored.metadata));
    let after = match FirstListed::before_change(recorded.clone(), stored.as_ref().map(|(named, of)| (named, *of))) {
        Some(before) => before.with_list(stored.as_ref().map(|(named, of)| (named, of.checked)), &named, now),
        None => {
            tracing::error!(%address, "the listing times of its versions are lost: their record is damaged, or could not be written; all count from now");
            FirstListed::of_lost_times(named, now)
        }
    };
    // Before the list, and synced: a version that is listed without a time counts as one of the first list.
    if recorded != ReadOutcome::Intact(after.clone()) {
        step.put(&times, to_json(&after), Durability::Synced, IndexEntry::Document(now));
    }
    Ok(())
}

/// The times of a module under the spelling of its name that was listed first, with the stored list. `None` where no other spelling
/// was listed.
fn first_spelling(
    step: &RecordStep<'_>,
    module: &ModuleAddress,
) -> Result<Option<(FirstListed, Option<StoredDocument>)>, StoreError> {
    let mut first: Option<(FirstListed, Address)> = None;
    for spelling in step.records.spellings_seen(module)? {
        let address = Address::Module(spelling);
        let times = step.read(&Key::FirstListed(address.clone()))?.json::<FirstListed>().intact();
        let Some(times) = times.filter(|times| times.first_list.is_some()) else { continue };
        if first.as_ref().is_none_or(|(first, _)| times.first_list < first.first_list) {
            first = Some((times, address));
        }
    }
    let Some((times, address)) = first else { return Ok(None) };
    let list = step.read(&Key::version_list(&address))?.intact().and_then(StoredDocument::read);
    Ok(Some((times, list)))
}

impl Library {
    /// Removes a document. The times of versions go with their list, unless a version was verified.
    pub fn remove_document(&self, key: &Key, durability: Durability) -> Result<(), StoreError> {
        let records = &self.store.records;
        let Some(address) = address_of_list(key) else { return records.remove(key, durability) };
        let removed = records.change(key, |step| {
            let times = Key::FirstListed(address.clone());
            if is_verified(step, address)? {
                if let ReadOutcome::Intact(recorded) = step.read(&times)?.json::<FirstListed>() {
                    let stored = step.read(key)?.intact().and_then(StoredDocument::read);
                    let checked = stored.as_ref().map_or(Timestamp(0), |list| list.metadata.checked);
                    let left = recorded
                        .without_list(stored.map(|stored| ListedVersions::of(&stored, address.into())).as_ref());
                    let left = to_json(&left.within(MAX_WITHOUT_LIST));
                    step.put(&times, left, durability, IndexEntry::Document(checked));
                }
            } else {
                step.change(&times, RecordAction::Remove(durability), IndexEntry::Gone);
            }
            step.change(key, RecordAction::Remove(durability), IndexEntry::Gone);
            Ok(())
        });
        match removed {
            // Times that say less than they did would make a version look older than it is.
            Err(full) if full.is_full() => records.change(key, |step| {
                for key in [&Key::FirstListed(address.clone()), key] {
                    step.change(key, RecordAction::Remove(durability), IndexEntry::Gone);
                }
                Ok(())
            }),
            removed => removed,
        }
    }

    /// Removes the times of an address without a list and without a verified version. Returns false if they stay.
    pub(super) fn remove_unused_times(&self, address: &Address) -> Result<bool, StoreError> {
        let (times, list) = (Key::FirstListed(address.clone()), Key::version_list(address));
        self.store.records.change(&times, |step| {
            let is_used = self.store.records.stat(&list)?.is_some() || is_verified(step, address)?;
            if !is_used {
                step.change(&times, RecordAction::Remove(Durability::Lazy), IndexEntry::Gone);
            }
            Ok(!is_used)
        })
    }

    /// Records the time of a version that was imported without signatures. Its digest is only the operator's word.
    pub fn record_import(
        &self,
        provider: &ProviderAddress,
        version: &Version,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let now = self.latest_time.at(now);
        self.change_times(&provider.into(), now, |before, stored| before.with_imported(stored, version, now))
    }

    /// Records from when the ages of versions count, as another larder says, which is trusted. `address` has its canonical
    /// spelling.
    pub fn record_told_times(
        &self,
        address: &Address,
        told: &BTreeMap<Version, Timestamp>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.change_times(address, now, |before, stored| before.with_told(stored, told, now))
    }

    /// Changes the record of an address. A damaged one stays: the next list writes it anew.
    fn change_times(
        &self,
        address: &Address,
        now: Timestamp,
        mut change: impl FnMut(FirstListed, Option<&ListedVersions>) -> FirstListed,
    ) -> Result<(), StoreError> {
        let times = Key::FirstListed(address.clone());
        self.store.records.change(&times, |step| {
            let recorded = step.read(&times)?.json::<FirstListed>();
            let stored = step.read(&Key::version_list(address.clone()))?.intact().and_then(StoredDocument::read);
            let stored = stored.map(|stored| (ListedVersions::of(&stored, address.into()), stored.metadata));
            let before = FirstListed::before_change(recorded.clone(), stored.as_ref().map(|(named, of)| (named, of)));
            let Some(before) = before else { return Ok(()) };
            let after = change(before, stored.as_ref().map(|(named, _)| named));
            if recorded != ReadOutcome::Intact(after.clone()) {
                step.put(&times, to_json(&after), Durability::Synced, IndexEntry::Document(now));
            }
            Ok(())
        })
    }
}

/// True if any version of the provider or module was verified.
fn is_verified(step: &RecordStep<'_>, address: &Address) -> Result<bool, StoreError> {
    match address {
        Address::Provider(provider) => {
            let of_provider = step.read(&Key::FirstSeenV0(provider.clone()))?;
            Ok(of_provider != ReadOutcome::Absent || !step.first_seen(provider)?.is_empty())
        }
        Address::Module(module) => Ok(!step.records.module_packages_seen(module)?.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl FirstListed {
        /// The time of a version, while the stored list is `stored`.
        fn time_of(&self, version: &Version, stored: Option<&ListedVersions>) -> Option<Timestamp> {
            let is_listed = stored.is_some_and(|stored| stored.upstream.contains(version));
            self.listing_of(version, is_listed).map(|listing| match listing {
                FirstListing::OnFirstList(listed) | FirstListing::Later { listed, .. } => listed,
            })
        }
    }

    fn version(number: u8) -> Version {
        Version::parse(&format!("1.0.{number}")).unwrap()
    }

    fn versions(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<Version> {
        numbers.into_iter().map(version).collect()
    }

    fn list(numbers: impl IntoIterator<Item = u8>) -> ListedVersions {
        ListedVersions { upstream: versions(numbers), kept: BTreeSet::new() }
    }

    #[derive(Debug, Clone)]
    enum Event {
        List(ListedVersions),
        ListIsRemoved,
        Import(Version),
        /// Another larder knows the version for so many seconds.
        Told(Version, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let numbers = || prop::collection::btree_set(0..8u8, 0..8);
        prop_oneof![
            4 => (numbers(), numbers()).prop_map(|(upstream, kept)| {
                let kept = kept.difference(&upstream).copied().collect::<Vec<_>>();
                Event::List(ListedVersions { upstream: versions(upstream), kept: versions(kept) })
            }),
            1 => Just(Event::ListIsRemoved),
            1 => (0..8u8).prop_map(|number| Event::Import(version(number))),
            1 => (0..8u8, 0..50u64).prop_map(|(number, seconds)| Event::Told(version(number), seconds)),
        ]
    }

    proptest! {
        /// Each version has the time at which it was first listed or imported, whatever became of the list since.
        #[test]
        fn a_version_keeps_the_time_of_its_first_listing(events in prop::collection::vec((event(), 1..3u64), 0..12)) {
            let (mut record, mut stored) = (FirstListed::default(), None);
            let (mut expected, mut has_list, mut now) = (BTreeMap::new(), false, 100);
            for (event, seconds) in events {
                now += seconds;
                match event {
                    Event::List(list) => {
                        for version in list.upstream.iter().chain(&list.kept) {
                            expected.entry(version.clone()).or_insert(Timestamp(now));
                        }
                        let before = stored.as_ref().map(|stored| (stored, Timestamp(now - 1)));
                        record = record.with_list(before, &list, Timestamp(now));
                        has_list |= !list.upstream.is_empty();
                        stored = Some(list);
                    }
                    Event::ListIsRemoved => {
                        record = record.without_list(stored.as_ref());
                        stored = None;
                    }
                    Event::Told(version, seconds) => {
                        let told = Timestamp(now - seconds);
                        record = record.with_told(stored.as_ref(), &BTreeMap::from([(version.clone(), told)]), Timestamp(now));
                        // The time of the first list stands for what that list named.
                        let is_of_first_list = Some(told) == record.first_list;
                        let told = if is_of_first_list { Timestamp(told.0 - 1) } else { told };
                        match expected.get_mut(&version) {
                            Some(known) if *known <= told || (is_of_first_list && known.0 == told.0 + 1) => {}
                            Some(known) => *known = told,
                            None => drop(expected.insert(version, told)),
                        }
                    }
                    Event::Import(version) => {
                        record = record.with_imported(stored.as_ref(), &version, Timestamp(now));
                        expected.entry(version).or_insert(Timestamp(now));
                    }
                }
                for (version, time) in &expected {
                    prop_assert_eq!(record.time_of(version, stored.as_ref()), Some(*time));
                }
                prop_assert_eq!(record.first_list.is_some(), has_list);
                let read: FirstListed = serde_json::from_slice(&to_json(&record)).unwrap();
                prop_assert_eq!(&read, &record);
            }
        }
    }

    #[test]
    fn the_first_list_is_one_entry_however_long_it_is() {
        let (first, later) = (list(0..=200), list(0..=202));
        let record = FirstListed::default().with_list(None, &first, Timestamp(5));
        assert_eq!(String::from_utf8(to_json(&record)).unwrap(), r#"{"first_list":5,"others":{}}"#);
        // larder was killed before it wrote the list.
        assert_eq!(record.clone().with_list(None, &first, Timestamp(6)), record);
        // The list was lost later.
        let lost = record.clone().with_list(None, &first, Timestamp(5_000));
        assert!(lost.before.is_empty(), "nobody knows what the lost list named");
        assert!(lost.others.len() == 201 && lost.others.values().all(|time| *time == Timestamp(5_000)));
        let record = record.with_list(Some((&first, Timestamp(6))), &later, Timestamp(7));
        assert!(record.before.values().all(|time| *time == Timestamp(6)) && record.before.len() == 2);
        assert_eq!(record.others, BTreeMap::from([201, 202].map(|number| (version(number), Timestamp(7)))));
    }

    /// An import makes a list that upstream never sent.
    #[test]
    fn a_list_of_imported_versions_is_no_first_list() {
        let imported = ListedVersions { upstream: BTreeSet::new(), kept: versions([1, 2]) };
        let record = FirstListed::default().with_imported(None, &version(1), Timestamp(5));
        let record = record.with_list(None, &imported, Timestamp(6));
        let record = record.with_list(Some((&imported, Timestamp(6))), &list(0..9), Timestamp(7));
        let others = [(1, 5), (2, 6)].map(|(number, time)| (version(number), Timestamp(time)));
        assert_eq!((record.first_list, record.others), (Some(Timestamp(7)), others.into()));
    }

    #[test]
    fn the_times_of_an_older_larder_shrink_at_the_next_list() {
        let older = br#"{"versions":{"1.0.0":5,"1.0.1":5,"1.0.2":6,"1.0.3":5}}"#;
        let record: FirstListed = serde_json::from_slice(older).unwrap();
        let record = record.with_list(Some((&list([0, 1, 2]), Timestamp(7))), &list([0, 1, 2, 4]), Timestamp(8));
        // 1.0.3 is no longer listed.
        let others = [(2, 6), (3, 5), (4, 8)].map(|(number, time)| (version(number), Timestamp(time)));
        assert_eq!((record.first_list, record.others), (Some(Timestamp(5)), others.into()));
    }

    #[test]
    fn a_record_has_a_limit_and_keeps_the_versions_that_are_listed() {
        let number = |number: usize| Version::parse(&format!("2.{number}.0")).unwrap();
        let withdrawn: BTreeMap<_, _> = (0..MAX_VERSIONS).map(|patch| (number(patch), Timestamp(3))).collect();
        let record = FirstListed { first_list: Some(Timestamp(1)), others: withdrawn, ..FirstListed::default() };
        let record = record.with_list(Some((&list([]), Timestamp(8))), &list(0..3), Timestamp(9));
        let listed = versions(0..3).into_iter().map(|version| (version, Timestamp(9)));
        assert_eq!(record.others, listed.collect());
        let many = ListedVersions { upstream: (0..=MAX_VERSIONS).map(number).collect(), kept: BTreeSet::new() };
        let record = FirstListed::of_stored_list(Timestamp(1));
        let record = record.without_list(Some(&many)).within(MAX_WITHOUT_LIST);
        assert_eq!(record.others.len(), MAX_WITHOUT_LIST);
        assert!(record.others.contains_key(&number(MAX_VERSIONS)), "the newest versions stay");
    }
}
