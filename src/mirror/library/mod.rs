//! The stored state: names and their locks, first-seen records of providers, alarms, and eviction.

pub(in crate::mirror) mod alarm_resolution;
pub(in crate::mirror) mod alarms;
pub(in crate::mirror) mod catalog;
pub(in crate::mirror) mod eviction;
pub(in crate::mirror) mod eviction_hold;
pub(in crate::mirror) mod first_seen;
pub(in crate::mirror) mod installable;
pub(in crate::mirror) mod intake;
pub(in crate::mirror) mod missing;
pub(in crate::mirror) mod module_history;
pub(in crate::mirror) mod name_record;
pub(in crate::mirror) mod proof_set;
pub(in crate::mirror) mod provider_history;
pub(in crate::mirror) mod raise;
pub(in crate::mirror) mod reconcile;
pub mod record;
pub(in crate::mirror) mod record_format;
pub(in crate::mirror) mod request_log;
pub(in crate::mirror) mod space;
pub(in crate::mirror) mod store_errors;
pub(in crate::mirror) mod stored_modules;
pub(in crate::mirror) mod whole_index;

pub(in crate::mirror) use crate::mirror::library::alarm_resolution::{
    AcceptedFinding, AlarmEvent, AlarmPart, AlarmSubject,
};
pub use crate::mirror::library::alarms::{Alarm, AlarmKind};
pub(in crate::mirror) use crate::mirror::library::alarms::{Alarms, AlarmsRecord, RaiseOutcome};
pub(in crate::mirror) use crate::mirror::library::catalog::Catalog;
pub(in crate::mirror) use crate::mirror::library::first_seen::{
    AcceptScope, HistoryChange, HistoryRefusal, HistoryVerdict, KeyLog, Observation, Recoverable, Signer,
    VersionHistory,
};
pub(in crate::mirror) use crate::mirror::library::name_record::NameRecord;
pub use crate::mirror::library::name_record::{PackageHashState, StoredArchive, ZipOrigin};
pub(in crate::mirror) use crate::mirror::library::provider_history::{
    FirstListed, ProviderHistories, ProviderRecordV0, UnrecordedSet, observation,
};
pub(in crate::mirror) use crate::mirror::library::space::{Evictor, Reservation};
