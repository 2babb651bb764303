//! How old the versions of a provider or module are. A date of the registry counts only where larder's own lists do not
//! contradict it: a publisher chooses it.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::config::FirstList;
use crate::mirror::RuntimeConfig;
use crate::mirror::library::first_listed::FirstListing;
use crate::mirror::library::{FirstListed, Library};
use crate::store::{DocumentKey, Key, ReadOutcome, StoreError};
use crate::upstream::dates::dates_of_record;

/// The times of the versions of one provider or module.
#[derive(Debug, Clone, Default)]
pub struct VersionAges {
    /// The record of listing times; `None` if it is damaged.
    recorded: Option<FirstListed>,
    /// The versions of the stored list.
    listed: BTreeSet<Version>,
    /// The dates that the registry tells.
    published: BTreeMap<Version, Timestamp>,
    /// The age of a version of the first list without a date.
    first_list: FirstList,
    /// The approved versions, each with the first moment at which it no longer is.
    approved: BTreeMap<Version, Timestamp>,
}

impl VersionAges {
    /// The moment from which the age of a version counts. `None` where no record tells it.
    ///
    /// * On the first list of its address: its date. Without one the time of that list where the registry tells dates, else what
    ///   `first_list` says.
    /// * On a later list: its date if that lies after the list before, which did not name it; otherwise the time of that list.
    ///
    /// A date in the future counts as now.
    pub fn since(&self, version: &Version, now: Timestamp) -> Option<Timestamp> {
        let published = self.published.get(version).map(|date| (*date).min(now));
        match self.recorded.as_ref()?.listing_of(version, self.listed.contains(version))? {
            FirstListing::OnFirstList(list) => Some(published.unwrap_or(match self.first_list {
                FirstList::Old => Timestamp(0),
                FirstList::New => list,
            })),
            FirstListing::Later { listed, before } => {
                let is_after_list_before = |date: &Timestamp| before.is_some_and(|before| *date > before);
                Some(published.filter(is_after_list_before).unwrap_or(listed))
            }
        }
    }

    /// The moment from which the age of a version counts, if a date or a list proves it: not for one that was on the first list
    /// and has no date.
    pub fn proven_since(&self, version: &Version, now: Timestamp) -> Option<Timestamp> {
        let recorded = self.recorded.as_ref()?;
        match recorded.listing_of(version, self.listed.contains(version))? {
            FirstListing::OnFirstList(_) => self.published.get(version).map(|date| (*date).min(now)),
            FirstListing::Later { .. } => self.since(version, now),
        }
    }

    /// The moments between which a version was listed; the second is that of its withdrawal. `None` where no record tells it.
    pub fn listed(&self, version: &Version, now: Timestamp) -> Option<(Timestamp, Option<Timestamp>)> {
        let recorded = self.recorded.as_ref()?;
        let from = match recorded.listing_of(version, self.listed.contains(version))? {
            FirstListing::OnFirstList(list) => self.published.get(version).map_or(list, |date| (*date).min(list)),
            FirstListing::Later { .. } => self.since(version, now)?,
        };
        Some((from, recorded.withdrawal_of(version)))
    }

    /// The time of the first list, if it lies after a moment, and not all that it named has a date.
    pub fn first_known_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let recorded = self.recorded.as_ref()?;
        let is_without_date = |version: &&Version| {
            let listing = recorded.listing_of(version, true);
            matches!(listing, Some(FirstListing::OnFirstList(_))) && !self.published.contains_key(*version)
        };
        let first_list = recorded.first_list().filter(|first_list| *first_list > moment)?;
        self.listed.iter().any(|version| is_without_date(&version)).then_some(first_list)
    }

    /// The first moment at which the approval of a version no longer counts. `None` without one.
    pub fn approved_until(&self, version: &Version) -> Option<Timestamp> {
        self.approved.get(version).copied()
    }

    /// The first moment at which one of the approvals no longer counts.
    pub fn first_end_of_approval(&self) -> Option<Timestamp> {
        self.approved.values().min().copied()
    }

    /// True if a version of the stored list has no date.
    pub fn lacks_a_date(&self) -> bool {
        !self.listed.iter().all(|version| self.published.contains_key(version))
    }
}

impl Library {
    /// Reads the times of the versions of an address, in its canonical spelling, and which are approved now. Blocks.
    pub fn read_ages(
        &self,
        address: &Address,
        config: &RuntimeConfig,
        now: Timestamp,
    ) -> Result<VersionAges, StoreError> {
        let records = &self.store.records;
        let list = self.read_document(&Key::version_list(address))?;
        let recorded = match records.read(&Key::FirstListed(address.clone()))?.json::<FirstListed>() {
            _ if list.as_ref().is_some_and(|list| list.metadata.without_times) => None,
            ReadOutcome::Intact(recorded) => Some(recorded),
            // A list that was stored before larder recorded times is a first list.
            ReadOutcome::Absent => list.as_ref().map(|list| FirstListed::of_stored_list(list.metadata.fetched)),
            ReadOutcome::Damaged => None,
        };
        let listed = list.map(|list| list.named_versions(address.into())).unwrap_or_default();
        let dates = self.read_document(&Key::Document(DocumentKey::Dates(address.clone())))?;
        let published = dates.as_ref().map(|dates| dates_of_record(&dates.body));
        let settings = config.upstreams.get(address.host()).map(|upstream| &upstream.settings);
        let is_told = match &published {
            Some(published) => !published.is_empty(),
            // The registry was not asked yet, or did not answer; nor is it asked while offline.
            None => settings.is_some_and(|settings| settings.tells_dates()),
        };
        let first_list = match settings {
            // A registry that tells dates has none of the newest versions for a while.
            _ if is_told => FirstList::New,
            settings => settings.map(|settings| settings.first_list).unwrap_or_default(),
        };
        // A clock that is set back must not revive an approval.
        let approved = self.read_approvals(address)?.ends(self.latest_time.at(now));
        Ok(VersionAges { recorded, listed, published: published.unwrap_or_default(), first_list, approved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    /// The ages of 1.0.0 on the first list, read at 100, and of 1.1.0 on a list of 500, with the list before read at 400.
    fn ages(dates: &[(&str, u64)], first_list: FirstList) -> VersionAges {
        let record = br#"{"first_list":100,"others":{"1.1.0":500,"1.2.0":600},"before":{"1.1.0":400}}"#;
        VersionAges {
            recorded: Some(serde_json::from_slice(record).unwrap()),
            listed: ["1.0.0", "1.1.0", "1.2.0"].map(version).into(),
            published: dates.iter().map(|(text, date)| (version(text), Timestamp(*date))).collect(),
            first_list,
            approved: BTreeMap::new(),
        }
    }

    #[test]
    fn a_date_counts_where_the_lists_do_not_contradict_it() {
        for (of, dates, first_list, since) in [
            // The first list: the date, else as the operator says.
            ("1.0.0", &[("1.0.0", 50)][..], FirstList::Old, Some(50)),
            ("1.0.0", &[("1.0.0", 99)], FirstList::New, Some(99)),
            ("1.0.0", &[], FirstList::Old, Some(0)),
            ("1.0.0", &[], FirstList::New, Some(100)),
            // A later list: a date after the list before.
            ("1.1.0", &[("1.1.0", 450)], FirstList::Old, Some(450)),
            ("1.1.0", &[("1.1.0", 401)], FirstList::Old, Some(401)),
            // The list of 400 did not name it, so it was not there.
            ("1.1.0", &[("1.1.0", 400)], FirstList::Old, Some(500)),
            ("1.1.0", &[("1.1.0", 7)], FirstList::Old, Some(500)),
            ("1.1.0", &[], FirstList::Old, Some(500)),
            // Nobody knows when the list before was read, as after an import.
            ("1.2.0", &[("1.2.0", 550)], FirstList::Old, Some(600)),
            // The future counts as now.
            ("1.0.0", &[("1.0.0", 9_999)], FirstList::Old, Some(NOW.0)),
            ("1.1.0", &[("1.1.0", 9_999)], FirstList::Old, Some(NOW.0)),
            // Never listed.
            ("9.0.0", &[("9.0.0", 50)], FirstList::Old, None),
        ] {
            let found = ages(dates, first_list).since(&version(of), NOW);
            assert_eq!(found, since.map(Timestamp), "{of} {dates:?} {first_list:?}");
        }
        let damaged = VersionAges { recorded: None, ..ages(&[("1.0.0", 50)], FirstList::Old) };
        assert_eq!(damaged.since(&version("1.0.0"), NOW), None);
        assert!(ages(&[("1.0.0", 50)], FirstList::Old).lacks_a_date());
    }
}
