//! The stored state: names and their locks, first-seen records of providers, alarms, and eviction.

mod alarms;
mod catalog;
mod evictor;
mod first_seen;
mod history;
mod names;
mod reconcile;
mod resolving;

pub use self::alarms::{Alarm, AlarmKind};
pub(super) use self::alarms::{Alarms, AlarmsRecord, RaiseOutcome};
pub(super) use self::catalog::Catalog;
pub(super) use self::evictor::{Evictor, Reservation};
pub(super) use self::first_seen::{
    AcceptScope, HistoryChange, HistoryRefusal, HistoryVerdict, KeyLog, Observation, Recoverable, Signer,
    VersionHistory,
};
pub(super) use self::history::{FirstListed, ProviderHistories, ProviderRecordV0, UnrecordedSet, observation};
pub(super) use self::names::NameRecord;
pub use self::names::{PackageHashState, StoredArchive, ZipOrigin};
pub(super) use self::resolving::{AcceptedFinding, AlarmEvent, AlarmPart, AlarmSubject};
