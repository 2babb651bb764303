//! What an operator should look at, and has not yet: kept in mind since the start, so that nobody must find it in a log.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::counters::Stored;
use crate::address::Version;
use crate::clock::Timestamp;
use crate::store::StoreError;

/// How many alarms of each kind are kept in mind.
const MOST_ALARMS: usize = 1000;

/// Something that an operator should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// `HOST/NAMESPACE/TYPE@VERSION`, or `HOST/NAMESPACE/NAME/SYSTEM@VERSION`
    pub what: String,
    /// What is the matter.
    pub kind: AlarmKind,
    /// The file whose digest is another than before; none where it is not about one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// When that came out, in seconds since 1970.
    pub since: Timestamp,
}

/// What is the matter with a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// Published anew, and no known key vouches for that; or a module of which nobody knows any more what it was: not
    /// served until it is accepted.
    WaitsForAccept,
    /// Published anew, signed by a key known for the provider: the new one is served.
    Republished,
    /// Dropped by upstream's list, and still held.
    Dropped,
    /// Imported without signatures, and upstream has other bytes: those are served now.
    ImportedDiffers,
}

impl AlarmKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::WaitsForAccept, Self::Republished, Self::Dropped, Self::ImportedDiffers];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::WaitsForAccept => "waits-for-accept",
            Self::Republished => "republished",
            Self::Dropped => "dropped",
            Self::ImportedDiffers => "imported-differs",
        }
    }
}

/// The alarms of this run: of each kind, the last for each version.
#[derive(Debug, Default)]
pub(super) struct Alarms(BTreeMap<(String, AlarmKind), Alarm>);

impl Alarms {
    fn of(&self, kind: AlarmKind) -> usize {
        self.0.values().filter(|alarm| alarm.kind == kind).count()
    }
}

/// That the store would not take something, the last time that one tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Why.
    pub why: String,
    /// What the operator can do about it.
    pub to_do: String,
}

/// What the store would not take, the last time that one tried: each kind for itself, or a small document would hide
/// that no archive finds room.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<Stored, Trouble>);

impl Mirror {
    /// Raises an alarm about a version; once, as long as it stays the same. What there is no room to keep in mind is not
    /// counted either: nobody could tell whether it was before.
    pub(super) fn alarm(
        &self,
        address: &impl fmt::Display,
        version: &Version,
        kind: AlarmKind,
        file: Option<&str>,
        now: Timestamp,
    ) {
        let key = (format!("{address}@{version}"), kind);
        let mut alarms = self.alarms.lock();
        let before = alarms.0.get(&key);
        if before.is_some_and(|before| before.file.as_deref() == file) {
            return;
        }
        if before.is_some() || alarms.of(kind) < MOST_ALARMS {
            self.counters.alarm(kind);
            let what = key.0.clone();
            alarms.0.insert(key, Alarm { what, kind, file: file.map(str::to_owned), since: now });
        }
    }

    /// What an alarm about a version was about is over.
    pub(super) fn settled(&self, address: &impl fmt::Display, version: &Version, kind: AlarmKind) {
        self.alarms.lock().0.remove(&(format!("{address}@{version}"), kind));
    }

    /// The alarms since the start, at most a thousand of each kind.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.lock().0.values().cloned().collect()
    }

    /// How many versions wait for `accept`.
    pub(super) fn waiting_for_accept(&self) -> usize {
        self.alarms.lock().of(AlarmKind::WaitsForAccept)
    }

    /// The store would not take something.
    pub(super) fn was_not_kept(&self, kind: Stored, why: &StoreError) {
        self.counters.not_kept(kind);
        let trouble = Trouble { why: why.to_string(), to_do: why.to_do().to_owned() };
        self.troubles.lock().0.insert(kind, trouble);
    }

    /// The store took something.
    pub(super) fn was_kept(&self, kind: Stored) {
        self.troubles.lock().0.remove(&kind);
    }

    /// Why the store would not take what it was last given of a kind; of archives, where it is neither.
    pub fn trouble(&self) -> Option<Trouble> {
        self.troubles.lock().0.values().next().cloned()
    }
}
