//! Records about what is stored: the first-seen records of providers, and the alarms.

mod alarms;
mod first_seen;
mod history;

pub use self::alarms::{Alarm, AlarmKind};
pub(super) use self::alarms::{Alarms, AlarmsRecord};
pub(super) use self::first_seen::{AcceptedFor, Change, KeyLog, Refusal, Verdict, VersionHistory};
pub(super) use self::history::{FirstListed, ProviderHistories, Unrecorded, WholeRecord, observation};
