//! Findings that a person must resolve (DESIGN 3). They lie in the store, one record for each address, and survive a
//! restart until they are resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::store::{Durability, Key, Store, StoreError};

/// The most alarms of each kind that are kept.
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

    /// The command that resolves it.
    fn resolve(self, address: &Address, version: &Version) -> Option<String> {
        match self {
            Self::Dropped => None,
            kind if kind.is_of_the_provider() => Some(format!("larder accept {address}")),
            _ => Some(format!("larder accept {address}@{version}")),
        }
    }
}

/// The alarms of a store: of each kind, the last for each version.
#[derive(Debug)]
pub(in crate::mirror) struct Alarms {
    store: Arc<Store>,
    raised: Mutex<BTreeMap<Address, OfAddress>>,
}

type OfAddress = BTreeMap<(AlarmKind, Version), Alarm>;

/// The record of one address.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::mirror) struct AlarmsRecord {
    alarms: Vec<Alarm>,
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
            let Ok(AlarmsRecord { alarms }) = serde_json::from_slice(&record) else {
                store.records.set_aside(&Key::Alarms(address))?;
                continue;
            };
            let keyed = alarms.into_iter().filter_map(|alarm| {
                let version = Version::parse(&alarm.version).ok()?;
                Some(((alarm.kind, version), alarm))
            });
            raised.insert(address, keyed.collect());
        }
        Ok(Self { store, raised: Mutex::new(raised) })
    }

    /// Raises an alarm; says whether it is a new one. It is in the store when this returns, or in memory where the store
    /// would not take it. Beyond a thousand of a kind none is raised.
    pub(in crate::mirror) fn raise(
        &self,
        kind: AlarmKind,
        address: Address,
        version: &Version,
        detail: String,
        at: Timestamp,
    ) -> bool {
        let mut raised = self.raised.lock();
        let of_kind = raised.values().flat_map(BTreeMap::keys).filter(|(raised, _)| *raised == kind).count();
        let alarms = raised.entry(address.clone()).or_default();
        let stands = |(raised, of): &&(AlarmKind, Version)| {
            *raised == kind && (of == version || kind == AlarmKind::SignatureLost)
        };
        let before = alarms.keys().find(stands).cloned();
        let is_as_before = before.as_ref().is_some_and(|key| key.1 != *version || alarms[key].detail == detail);
        if is_as_before || (before.is_none() && of_kind >= MOST_ALARMS) {
            return false;
        }
        let resolve = kind.resolve(&address, version);
        let alarm =
            Alarm { kind, address: address.to_string(), version: version.to_string(), detail, since: at, resolve };
        alarms.insert((kind, version.clone()), alarm);
        self.save(&address, alarms);
        true
    }

    /// Resolves the alarms of an address that are meant.
    pub(in crate::mirror) fn resolve(&self, address: &Address, is_meant: impl Fn(AlarmKind, &Version) -> bool) {
        let mut raised = self.raised.lock();
        let Some(alarms) = raised.get_mut(address) else { return };
        let before = alarms.len();
        alarms.retain(|(kind, version), _| !is_meant(*kind, version));
        if alarms.len() < before {
            self.save(address, alarms);
        }
        if alarms.is_empty() {
            raised.remove(address);
        }
    }

    /// True while any alarm of an address stands.
    pub(in crate::mirror) fn has(&self, address: &Address) -> bool {
        self.raised.lock().contains_key(address)
    }

    /// The versions of an address with alarms of these kinds.
    pub(in crate::mirror) fn versions(&self, address: &Address, is_meant: impl Fn(AlarmKind) -> bool) -> Vec<Version> {
        let raised = self.raised.lock();
        let keys = raised.get(address).into_iter().flat_map(BTreeMap::keys);
        let mut versions: Vec<Version> =
            keys.filter(|(kind, _)| is_meant(*kind)).map(|(_, version)| version.clone()).collect();
        versions.sort();
        versions.dedup();
        versions
    }

    /// All of them, by address.
    pub(in crate::mirror) fn all(&self) -> Vec<Alarm> {
        self.raised.lock().values().flat_map(BTreeMap::values).cloned().collect()
    }

    fn save(&self, address: &Address, alarms: &OfAddress) {
        let key = Key::Alarms(address.clone());
        let saved = if alarms.is_empty() {
            self.store.records.remove(&key, Durability::Synced)
        } else {
            let record = AlarmsRecord { alarms: alarms.values().cloned().collect() };
            let record = serde_json::to_vec(&record).unwrap_or_default();
            self.store.records.put(&key, &record, Durability::Synced).map(drop)
        };
        if let Err(error) = saved {
            tracing::error!(%address, %error, to_do = error.to_do(), "an alarm could not be written down: it is in memory alone");
        }
    }
}
