//! Alarms about a fleet: conditions that end by themselves, and events that are told for a day.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Timestamp};

/// The time for which an event is told, in seconds.
const TOLD_SECONDS: u64 = 24 * 3600;
/// The most events of each kind.
const MAX_EVENTS: usize = 100;

/// A kind of alarm about a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FleetAlarmKind {
    /// This replica has heard nothing of the database for a minute: others may have changed what it serves.
    Behind,
    /// The database was restored, or a standby took over: it may have forgotten what it acknowledged.
    DatabaseForgot,
    /// The bucket has other bytes than those that were sent to it, or none.
    BucketContradicts,
    /// Replicas have other settings, where all must have the same.
    SettingsDiffer,
}

impl FleetAlarmKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Behind, Self::DatabaseForgot, Self::BucketContradicts, Self::SettingsDiffer];

    /// The name of the kind in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Behind => "behind",
            Self::DatabaseForgot => "database-forgot",
            Self::BucketContradicts => "bucket-contradicts",
            Self::SettingsDiffer => "settings-differ",
        }
    }

    /// The remedy.
    pub fn to_do(self) -> &'static str {
        match self {
            Self::Behind => {
                "bring the database back; until then pins, purges and accepted versions of other replicas do not count here"
            }
            Self::DatabaseForgot => {
                "find out which backup or standby this is: what was first seen after it is forgotten, and the next answer of a registry is the first again"
            }
            Self::BucketContradicts => {
                "find out who writes to the bucket, and which of its rules remove objects; larder has asked upstream, and writes the object anew"
            }
            Self::SettingsDiffer => {
                "give all replicas the same [[upstream]]; the stricter verification counts until then"
            }
        }
    }
}

/// An alarm about a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FleetAlarm {
    /// The kind.
    pub kind: FleetAlarmKind,
    /// The finding, in words.
    pub detail: String,
    /// When it began, or was found last.
    pub since: Timestamp,
    /// The remedy.
    pub to_do: String,
}

impl FleetAlarm {
    /// An alarm of a kind.
    pub fn new(kind: FleetAlarmKind, detail: String, since: Timestamp) -> Self {
        Self { kind, detail, since, to_do: kind.to_do().to_owned() }
    }
}

/// The events of the last day, as one replica met them.
#[derive(Debug)]
pub struct FleetEvents {
    clock: Clock,
    events: Mutex<Vec<FleetAlarm>>,
    /// The settings in which another replica differs now.
    differing: Mutex<Vec<FleetAlarm>>,
}

impl FleetEvents {
    /// No events yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, events: Mutex::default(), differing: Mutex::default() }
    }

    /// Notes an event. The same one is told once, with its last time.
    pub fn note(&self, kind: FleetAlarmKind, detail: String) {
        let mut events = self.events.lock();
        events.retain(|event| event.kind != kind || event.detail != detail);
        if events.iter().filter(|event| event.kind == kind).count() >= MAX_EVENTS
            && let Some(first) = events.iter().position(|event| event.kind == kind)
        {
            events.remove(first);
        }
        events.push(FleetAlarm::new(kind, detail, self.clock.now()));
    }

    /// Replaces the settings in which replicas differ. Returns true if they have changed.
    pub fn set_differing(&self, found: Vec<String>) -> bool {
        let mut differing = self.differing.lock();
        if differing.iter().map(|alarm| &alarm.detail).eq(&found) {
            return false;
        }
        let alarm = |detail| FleetAlarm::new(FleetAlarmKind::SettingsDiffer, detail, self.clock.now());
        *differing = found.into_iter().map(alarm).collect();
        true
    }

    /// The conditions that last, and the events of the last day, the oldest first.
    pub fn told(&self) -> Vec<FleetAlarm> {
        let now = self.clock.now();
        let mut events = self.events.lock();
        events.retain(|event| now.since(event.since).as_secs() < TOLD_SECONDS);
        self.differing.lock().iter().chain(events.iter()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once_and_for_a_day() {
        let clock = Clock::frozen();
        let events = FleetEvents::new(clock.clone());
        for number in 0..2 * MAX_EVENTS {
            events.note(FleetAlarmKind::BucketContradicts, format!("object {number}"));
            events.note(FleetAlarmKind::DatabaseForgot, "the same".to_owned());
        }
        let told = events.told();
        assert_eq!(told.len(), MAX_EVENTS + 1);
        assert!(told.iter().any(|event| event.detail == format!("object {}", 2 * MAX_EVENTS - 1)));
        clock.advance(std::time::Duration::from_secs(TOLD_SECONDS));
        assert_eq!(events.told(), []);
    }
}
