//! Findings that a person must resolve (DESIGN 3). They lie in the store, one record for each address, and survive a
//! restart until they are resolved.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::Link;
use super::resolving::{Event, Part, Subject};
use crate::address::{Address, Platform, Version};
use crate::clock::Timestamp;
use crate::store::{Durability, Key, Store, StoreError};

/// The most alarms of each kind that are kept of one address: what one upstream brings about hides no other's.
const MOST_ALARMS: usize = 1000;

/// A finding that a person must resolve; it stays until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// The kind of finding.
    pub kind: AlarmKind,
    /// `HOST/NAMESPACE/TYPE`, or `HOST/NAMESPACE/NAME/SYSTEM`
    pub address: String,
    /// The version that it came out with.
    pub version: String,
    /// The evidence: digests, files, and keys by their fingerprints.
    pub detail: String,
    /// When that came out, in seconds since 1970.
    pub since: Timestamp,
    /// The command that resolves it; none where only upstream can.
    pub resolve: Option<String>,
}

/// The kinds of finding about a version, or about its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// A provider's version was changed, and no key vouches for that which may: not served.
    WaitsForAccept,
    /// A provider's version was changed, and a key vouches for that which may: the new one is served.
    Republished,
    /// A module's version is another tree than at first: not served.
    Moved,
    /// A key that never signed for a provider signs for it now: served.
    NewKey,
    /// A provider that was signed is not any more: new sets are not served.
    SignatureLost,
    /// A stored version that upstream's list dropped: it stays listed.
    Dropped,
    /// A first-seen record is damaged, and nothing stored tells what it said: what upstream has is not served.
    DamagedRecord,
    /// Imported without signatures, and upstream has other bytes: those are served.
    ImportedDiffers,
}

impl AlarmKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::WaitsForAccept,
        Self::Republished,
        Self::Moved,
        Self::NewKey,
        Self::SignatureLost,
        Self::Dropped,
        Self::DamagedRecord,
        Self::ImportedDiffers,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::WaitsForAccept => "waits-for-accept",
            Self::Republished => "republished",
            Self::Moved => "moved",
            Self::NewKey => "new-key",
            Self::SignatureLost => "signature-lost",
            Self::Dropped => "dropped",
            Self::DamagedRecord => "damaged-record",
            Self::ImportedDiffers => "imported-differs",
        }
    }

    /// True where something is refused until `accept`.
    pub fn refuses(self) -> bool {
        match self {
            Self::WaitsForAccept | Self::Moved | Self::SignatureLost | Self::DamagedRecord => true,
            Self::Republished | Self::NewKey | Self::Dropped | Self::ImportedDiffers => false,
        }
    }

    /// True for a finding about the provider as a whole, whatever version it came out with.
    pub(in crate::mirror) fn is_of_the_provider(self) -> bool {
        matches!(self, Self::NewKey | Self::SignatureLost)
    }

    /// The command that resolves it: where nothing may be asked upstream, a bundle that is believed.
    fn resolve(self, address: &Address, version: &Version, link: Link) -> Option<String> {
        match self {
            Self::Dropped => None,
            _ if link == Link::Offline => Some(format!("larder bundle apply BUNDLE --accept {address}@{version}")),
            kind if kind.is_of_the_provider() => Some(format!("larder accept {address}")),
            _ => Some(format!("larder accept {address}@{version}")),
        }
    }
}

/// The alarms of a store: the last about each subject.
#[derive(Debug)]
pub(in crate::mirror) struct Alarms {
    store: Arc<Store>,
    raised: Mutex<BTreeMap<Address, OfAddress>>,
    /// Held while alarms of an address are changed and saved; `raised` never is while the disk is waited for.
    changing: [Mutex<()>; 16],
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct OfAddress {
    alarms: BTreeMap<Subject, Alarm>,
    /// What the record says that this version of larder cannot read. It is written again as it is.
    unread: Vec<Box<RawValue>>,
    /// True while the store would not take them: it is tried again with the next change.
    is_in_memory_alone: bool,
}

/// The record of one address.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::mirror) struct AlarmsRecord {
    alarms: Vec<Box<RawValue>>,
}

/// One alarm in a record. The platform and the key are not in those of older stores.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    alarm: Alarm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// The alarms of an address are in memory alone: a restart would forget them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) struct InMemoryAlone;

impl Entry {
    fn read(raw: &RawValue) -> Option<(Subject, Alarm)> {
        let Self { alarm, platform, key } = serde_json::from_str(raw.get()).ok()?;
        let version = Version::parse(&alarm.version).ok()?;
        let part = match (platform, key) {
            (Some(platform), _) => Part::Platform(platform),
            (None, Some(key)) => Part::Key(key),
            (None, None) => Part::Whole,
        };
        Some((Subject { kind: alarm.kind, version, part }, alarm))
    }

    fn written(subject: &Subject, alarm: &Alarm) -> Option<Box<RawValue>> {
        let (platform, key) = match &subject.part {
            Part::Whole => (None, None),
            Part::Platform(platform) => (Some(platform.clone()), None),
            Part::Key(key) => (None, Some(key.clone())),
        };
        serde_json::value::to_raw_value(&Self { alarm: alarm.clone(), platform, key }).ok()
    }
}

impl OfAddress {
    fn read(record: AlarmsRecord) -> Self {
        let mut read = Self::default();
        for raw in record.alarms {
            match Entry::read(&raw) {
                Some((subject, alarm)) => drop(read.alarms.insert(subject, alarm)),
                None => read.unread.push(raw),
            }
        }
        read
    }

    /// The record that says this; none where there is nothing to say.
    fn written(&self) -> Option<AlarmsRecord> {
        let entries = self.alarms.iter().filter_map(|(subject, alarm)| Entry::written(subject, alarm));
        let alarms: Vec<_> = entries.chain(self.unread.iter().cloned()).collect();
        (!alarms.is_empty()).then_some(AlarmsRecord { alarms })
    }

    /// Sets one, in place of what it says anew. Says whether that changes anything.
    fn set(&mut self, subject: Subject, alarm: Alarm) -> Raised {
        let kind = subject.kind;
        let of_the_provider = |raised: &Subject| kind == AlarmKind::SignatureLost && raised.kind == kind;
        if self.alarms.keys().any(|raised| of_the_provider(raised) && raised.version != subject.version) {
            return Raised::Stands;
        }
        if self.alarms.get(&subject).is_some_and(|before| before.detail == alarm.detail) {
            return Raised::Stands;
        }
        if !self.alarms.contains_key(&subject)
            && self.alarms.keys().filter(|raised| raised.kind == kind).count() >= MOST_ALARMS
        {
            return Raised::TooMany;
        }
        // One of an older store did not say what it is of.
        if kind != AlarmKind::NewKey {
            self.alarms.remove(&Subject { part: Part::Whole, ..subject.clone() });
        }
        self.alarms.insert(subject, alarm);
        Raised::New
    }
}

/// What came of raising an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) enum Raised {
    New,
    /// The same was raised before.
    Stands,
    /// There are as many of its kind about its address as there may be.
    TooMany,
}

impl Alarms {
    /// Those that the store holds.
    ///
    /// # Errors
    /// The store failed.
    pub(in crate::mirror) fn over(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut raised = BTreeMap::new();
        for address in store.records.addresses_with_alarms()? {
            let Some(record) = store.records.get(&Key::Alarms(address.clone()))? else { continue };
            let Ok(record) = serde_json::from_slice(&record) else {
                store.records.set_aside(&Key::Alarms(address))?;
                continue;
            };
            let read = OfAddress::read(record);
            if !read.unread.is_empty() {
                tracing::error!(%address, alarms = read.unread.len(), "alarms cannot be read, because they are damaged or of a newer larder: they are left as they are");
            }
            raised.insert(address, read);
        }
        let changing = std::array::from_fn(|_| Mutex::default());
        Ok(Self { store, raised: Mutex::new(raised), changing, hasher: RandomState::new() })
    }

    /// Raises an alarm. It is in the store when this returns, or in memory where the store would not take it.
    pub(in crate::mirror) fn raise(
        &self,
        subject: Subject,
        address: &Address,
        detail: String,
        at: Timestamp,
        link: Link,
    ) -> Raised {
        let Subject { kind, version, .. } = &subject;
        let alarm = Alarm {
            kind: *kind,
            address: address.to_string(),
            version: version.to_string(),
            detail,
            since: at,
            resolve: kind.resolve(address, version, link),
        };
        self.change(address, |of| {
            let raised = of.set(subject, alarm);
            (raised == Raised::New, raised)
        })
    }

    /// Resolves the alarms of an address that an event resolves; says which.
    pub(in crate::mirror) fn resolve(&self, address: &Address, event: &Event<'_>) -> Vec<Subject> {
        if !self.has(address) {
            return Vec::new();
        }
        self.change(address, |of| {
            let meant: Vec<Subject> = of.alarms.keys().filter(|subject| event.resolves(subject)).cloned().collect();
            for subject in &meant {
                of.alarms.remove(subject);
            }
            (!meant.is_empty(), meant)
        })
    }

    /// True while any alarm of an address stands.
    pub(in crate::mirror) fn has(&self, address: &Address) -> bool {
        self.raised.lock().get(address).is_some_and(|of| !of.alarms.is_empty())
    }

    /// Sees to it that no restart forgets the alarms of an address.
    ///
    /// # Errors
    /// The store would not take them.
    pub(in crate::mirror) fn are_saved(&self, address: &Address) -> Result<(), InMemoryAlone> {
        let is_behind = || self.raised.lock().get(address).is_some_and(|of| of.is_in_memory_alone);
        if is_behind() {
            self.change(address, |of| (of.is_in_memory_alone, ()));
        }
        if is_behind() { Err(InMemoryAlone) } else { Ok(()) }
    }

    /// What the alarms of an address are about that are meant.
    pub(in crate::mirror) fn subjects(&self, address: &Address, is_meant: impl Fn(&Subject) -> bool) -> Vec<Subject> {
        let raised = self.raised.lock();
        let subjects = raised.get(address).into_iter().flat_map(|of| of.alarms.keys());
        subjects.filter(|subject| is_meant(subject)).cloned().collect()
    }

    /// All of them, by address.
    pub(in crate::mirror) fn all(&self) -> Vec<Alarm> {
        self.raised.lock().values().flat_map(|of| of.alarms.values()).cloned().collect()
    }

    /// Changes the alarms of an address, and saves them where the change says so.
    fn change<T>(&self, address: &Address, change: impl FnOnce(&mut OfAddress) -> (bool, T)) -> T {
        let _changing = self.changing[self.hasher.hash_one(address) as usize % self.changing.len()].lock();
        let (record, said) = {
            let mut raised = self.raised.lock();
            let of = raised.entry(address.clone()).or_default();
            let (is_to_save, said) = change(of);
            if !is_to_save {
                return said;
            }
            (of.written(), said)
        };
        let is_saved = self.save(address, record.as_ref());
        let mut raised = self.raised.lock();
        if let Some(of) = raised.get_mut(address) {
            of.is_in_memory_alone = !is_saved;
        }
        if record.is_none() && is_saved {
            raised.remove(address);
        }
        said
    }

    fn save(&self, address: &Address, record: Option<&AlarmsRecord>) -> bool {
        let key = Key::Alarms(address.clone());
        let saved = match record {
            None => self.store.records.remove(&key, Durability::Synced),
            Some(record) => {
                let record = serde_json::to_vec(record).unwrap_or_default();
                self.store.records.put(&key, &record, Durability::Synced).map(drop)
            }
        };
        if let Err(error) = &saved {
            tracing::error!(%address, %error, to_do = error.to_do(), "an alarm could not be written down: it is in memory alone");
        }
        saved.is_ok()
    }
}
