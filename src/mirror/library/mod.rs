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
pub(super) use self::alarms::{Alarms, AlarmsRecord, Raised};
pub(super) use self::catalog::Catalog;
pub(super) use self::evictor::{Evictor, Reservation};
pub(super) use self::first_seen::{
    AcceptedFor, Change, HistoryRefusal, HistoryVerdict, KeyLog, Observation, Readable, Signer, VersionHistory,
};
pub(super) use self::history::{FirstListed, ProviderHistories, Unrecorded, WholeRecord, observation};
pub(super) use self::names::NameRecord;
pub use self::names::{HeldArchive, PackageHashesKnown, Zip};
pub(super) use self::resolving::{AcceptedFinding, AlarmEvent, AlarmPart, Subject};
