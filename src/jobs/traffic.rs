//! The traffic of each minute of the last day, for people: in memory, and saved each minute so that it survives a restart.
//! One record holds one hour of the clock, so that a minute costs one small write, and none where nothing happened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::on_disk;
use crate::clock::{Clock, Timestamp};
use crate::labels::labelled_enum;
use crate::store::{Durability, HourOfDay, Key, Store, StoreError};

const MINUTES_PER_HOUR: u64 = 60;
/// The length of the history, in minutes.
const MAX_MINUTES: u64 = 24 * MINUTES_PER_HOUR;
const SECONDS_PER_MINUTE: u64 = 60;

labelled_enum! {
    /// The counted events. The labels are the members of the stored records.
    pub TrafficCount {
        /// Requests served fresh from the store.
        Hit "hit",
        /// Requests served from the store after upstream confirmed or replaced the document.
        Revalidated "revalidated",
        /// Requests for which upstream was asked.
        Miss "miss",
        /// Requests served from the store although upstream did not answer, or no longer has it.
        Stale "stale",
        /// Requests for what does not exist.
        Absent "absent",
        /// Requests that a rule refused.
        Refused "refused",
        /// Requests that failed.
        Failed "failed",
        /// Requests whose client disconnected before the answer.
        Left "left",
        /// Body bytes sent from the store without asking upstream: the traffic saved.
        SavedBytes "saved_bytes",
        /// Body bytes sent to clients.
        SentBytes "sent_bytes",
        /// Body bytes received from upstreams.
        UpstreamBytes "upstream_bytes",
    }
}

/// Counts of requests and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic([u64; TrafficCount::ALL.len()]);

impl Traffic {
    /// One count.
    pub fn get(&self, count: TrafficCount) -> u64 {
        self.0[count as usize]
    }

    /// The same counts with `number` more of one kind.
    #[must_use]
    pub fn with(mut self, count: TrafficCount, number: u64) -> Self {
        self.0[count as usize] = self.get(count).saturating_add(number);
        self
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        TrafficCount::ALL.into_iter().fold(self, |sum, count| sum.with(count, other.get(count)))
    }

    fn add(&mut self, more: &Self) {
        *self = self.plus(more);
    }

    /// The counts after `earlier`.
    fn since(&self, earlier: &Self) -> Self {
        let more = |count| self.get(count).saturating_sub(earlier.get(count));
        TrafficCount::ALL.into_iter().fold(Self::default(), |counted, count| counted.with(count, more(count)))
    }

    /// The share of answers that needed no upstream, in percent, rounded down; `None` without an answer.
    pub fn hit_percent(&self) -> Option<u64> {
        use TrafficCount::{Hit, Miss, Revalidated, Stale};
        let stored = self.get(Hit).saturating_add(self.get(Stale));
        let all = stored.saturating_add(self.get(Miss)).saturating_add(self.get(Revalidated));
        stored.saturating_mul(100).checked_div(all)
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        use TrafficCount::{SavedBytes, SentBytes, UpstreamBytes};
        let is_request = |count: &TrafficCount| !matches!(count, SavedBytes | SentBytes | UpstreamBytes);
        TrafficCount::ALL
            .iter()
            .filter(|count| is_request(count))
            .fold(0, |sum, count| sum.saturating_add(self.get(*count)))
    }

    /// Returns true if nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The counters of a larder.
pub trait TrafficSource: fmt::Debug + Send + Sync {
    /// Everything counted since the start.
    fn totals(&self) -> Traffic;
}

/// The traffic of the last day.
#[derive(Debug)]
pub struct TrafficHistory {
    source: Box<dyn TrafficSource>,
    clock: Clock,
    store: Arc<Store>,
    recorded: Mutex<Recorded>,
    /// Locked while the records are written.
    write_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Recorded {
    /// The minutes in which something happened, by their number since 1970.
    minutes: BTreeMap<u64, Traffic>,
    /// The totals at the last look, and its time.
    totals: Traffic,
    looked_at: Timestamp,
    /// The counts that are not saved, by their minute.
    unsaved: BTreeMap<u64, Traffic>,
    /// True after a save failed, which is logged once.
    is_failing: bool,
}

/// The stored record of one hour. A later hour with the same place on the clock replaces it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HourRecord {
    /// The hour, since 1970.
    hour: u64,
    /// Counts by the minute of the hour and the label. Those that are zero are left out.
    minutes: BTreeMap<u64, BTreeMap<String, u64>>,
}

impl HourRecord {
    fn of(hour: u64, recorded: &BTreeMap<u64, Traffic>) -> Self {
        let first = hour * MINUTES_PER_HOUR;
        let counts = |traffic: &Traffic| {
            let counts = TrafficCount::ALL.into_iter().map(|count| (count.label().to_owned(), traffic.get(count)));
            counts.filter(|(_, number)| *number > 0).collect()
        };
        let minutes = recorded.range(first..first + MINUTES_PER_HOUR);
        Self { hour, minutes: minutes.map(|(minute, traffic)| (minute - first, counts(traffic))).collect() }
    }

    /// Reads the record of an hour with this place on the clock; `None` if it is none.
    fn read(record: &[u8], place: HourOfDay) -> Option<Self> {
        let read: Self = serde_json::from_slice(record).ok()?;
        // Such a time has a year of at most 9999, so no arithmetic overflows.
        let is_time = read.hour < LAST_HOUR && read.minutes.keys().all(|minute| *minute < MINUTES_PER_HOUR);
        (is_time && HourOfDay::of(read.hour) == place).then_some(read)
    }

    /// The minutes, by their number since 1970. Unknown labels, of a newer larder, are left out.
    fn into_minutes(self) -> impl Iterator<Item = (u64, Traffic)> {
        let traffic = |counts: &BTreeMap<String, u64>| {
            let known = TrafficCount::ALL.into_iter().filter_map(|count| Some((count, *counts.get(count.label())?)));
            known.fold(Traffic::default(), |traffic, (count, number)| traffic.with(count, number))
        };
        self.minutes.into_iter().map(move |(minute, counts)| (self.hour * MINUTES_PER_HOUR + minute, traffic(&counts)))
    }
}

/// The hours before the year 10000.
const LAST_HOUR: u64 = 253_402_300_800 / 3600;

impl TrafficHistory {
    /// Loads the history of earlier runs. A damaged record is quarantined and logged, and its hour begins anew.
    pub async fn of_store(store: Arc<Store>, clock: Clock, source: Box<dyn TrafficSource>) -> Arc<Self> {
        let read = on_disk(&store, |store| Ok(read_minutes(store))).await;
        let mut recorded = Recorded {
            minutes: read.unwrap_or_default(),
            totals: Traffic::default(),
            looked_at: clock.now(),
            unsaved: BTreeMap::new(),
            is_failing: false,
        };
        recorded.forget_old(clock.now());
        Arc::new(Self {
            source,
            clock,
            store,
            recorded: Mutex::new(recorded),
            write_lock: tokio::sync::Mutex::default(),
        })
    }

    /// Records and saves each minute, until dropped.
    pub async fn run(self: Arc<Self>) {
        loop {
            let began = self.clock.now();
            let next_minute = Timestamp((began.0 / SECONDS_PER_MINUTE + 1) * SECONDS_PER_MINUTE);
            // A clock that was set back must not stop the recording until it has caught up.
            self.clock.until_due(|now| if now < began { now } else { next_minute }).await;
            self.save().await;
        }
    }

    /// Records what happened since the last look, and adds it to the records of its hours.
    pub async fn save(&self) {
        let _write_lock = self.write_lock.lock().await;
        let mut unsaved = {
            let mut recorded = self.recorded.lock();
            self.look(&mut recorded);
            std::mem::take(&mut recorded.unsaved)
        };
        while let Some((minute, _)) = unsaved.first_key_value() {
            let hour = minute / MINUTES_PER_HOUR;
            let later = unsaved.split_off(&((hour + 1) * MINUTES_PER_HOUR));
            let counted = std::mem::replace(&mut unsaved, later);
            let writing = counted.clone();
            let written = on_disk(&self.store, move |store| add_to_hour(store, hour, &writing)).await;
            let mut recorded = self.recorded.lock();
            if let Err(error) = &written {
                for (minute, counted) in counted {
                    recorded.unsaved.entry(minute).or_default().add(&counted);
                }
                if !recorded.is_failing {
                    tracing::warn!(%error, "the traffic of the last minute could not be saved; it is saved with a later one");
                }
            }
            recorded.is_failing = written.is_err();
        }
    }

    /// The traffic of the last `number` spans of `minutes_each`, the oldest first, each with its start. The last one ends
    /// now.
    pub fn spans(&self, number: u64, minutes_each: u64) -> Vec<(Timestamp, Traffic)> {
        let mut recorded = self.recorded.lock();
        self.look(&mut recorded);
        let end = recorded.looked_at.0 / SECONDS_PER_MINUTE + 1;
        let span = |index: u64| {
            let start = end.saturating_sub((number - index) * minutes_each);
            let minutes = recorded.minutes.range(start..start + minutes_each).map(|(_, traffic)| traffic);
            (Timestamp(start * SECONDS_PER_MINUTE), minutes.fold(Traffic::default(), Traffic::plus))
        };
        (0..number).map(span).collect()
    }

    /// Adds what happened since the last look to the minute of that look.
    fn look(&self, recorded: &mut Recorded) {
        let (now, totals) = (self.clock.now(), self.source.totals());
        let counted = totals.since(&recorded.totals);
        // A clock that was set back counts from its new time on.
        let minute = recorded.looked_at.min(now).0 / SECONDS_PER_MINUTE;
        recorded.totals = totals;
        recorded.looked_at = now;
        if !counted.is_empty() {
            recorded.minutes.entry(minute).or_default().add(&counted);
            recorded.unsaved.entry(minute).or_default().add(&counted);
        }
        recorded.forget_old(now);
    }
}

impl Recorded {
    /// Forgets minutes that are older than the history, or in the future of a clock that was set back.
    fn forget_old(&mut self, now: Timestamp) {
        let this_minute = now.0 / SECONDS_PER_MINUTE;
        let is_of_last_day = |minute: &u64| *minute <= this_minute && this_minute - minute < MAX_MINUTES;
        self.minutes.retain(|minute, _| is_of_last_day(minute));
        self.unsaved.retain(|minute, _| is_of_last_day(minute));
    }
}

fn read_minutes(store: &Store) -> BTreeMap<u64, Traffic> {
    let mut minutes = BTreeMap::new();
    for place in HourOfDay::all() {
        let read = store.records.read_as(&Key::Traffic(place), |record| HourRecord::read(&record, place));
        match read {
            Ok(record) => minutes.extend(record.intact().into_iter().flat_map(HourRecord::into_minutes)),
            Err(error) => {
                tracing::error!(%error, "the traffic of an hour before the start cannot be read; it is not shown");
            }
        }
    }
    minutes
}

/// Adds counts to the record of their hour. The record of an earlier day is replaced.
fn add_to_hour(store: &Store, hour: u64, counted: &BTreeMap<u64, Traffic>) -> Result<(), StoreError> {
    let place = HourOfDay::of(hour);
    let key = Key::Traffic(place);
    store.records.change(&key, |step| {
        let recorded = step.read_as(&key, |record| HourRecord::read(&record, place))?.intact();
        let mut minutes: BTreeMap<u64, Traffic> =
            recorded.filter(|recorded| recorded.hour == hour).into_iter().flat_map(HourRecord::into_minutes).collect();
        for (minute, counted) in counted {
            minutes.entry(*minute).or_default().add(counted);
        }
        step.put_json(&key, &HourRecord::of(hour, &minutes), Durability::Lazy);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug)]
    struct OneMoreHitEachTime(Mutex<Traffic>);

    impl TrafficSource for OneMoreHitEachTime {
        fn totals(&self) -> Traffic {
            let mut totals = self.0.lock();
            *totals = totals.with(TrafficCount::Hit, 1);
            *totals
        }
    }

    /// Two that count for one store add to each other's counts.
    #[tokio::test]
    async fn the_counts_of_another_writer_stay() {
        let (folder, clock) = (tempfile::TempDir::new().unwrap(), Clock::frozen());
        let store = Arc::new(Store::open(folder.path(), clock.now()).unwrap());
        let history = async || {
            let source = Box::new(OneMoreHitEachTime(Mutex::default()));
            TrafficHistory::of_store(Arc::clone(&store), clock.clone(), source).await
        };
        let (one, other) = (history().await, history().await);
        one.save().await;
        other.save().await;
        one.save().await;
        let saved = read_minutes(&store).into_values().fold(Traffic::default(), |sum, counted| sum.plus(&counted));
        assert_eq!(saved.get(TrafficCount::Hit), 3);
    }

    /// An operator may set the machine's clock back: what is in the future then is forgotten, and the recording goes on.
    #[tokio::test]
    async fn a_clock_that_is_set_back_stops_no_recording() {
        let (folder, clock) = (tempfile::TempDir::new().unwrap(), Clock::frozen());
        clock.advance(Duration::from_secs(86_400));
        let store = Arc::new(Store::open(folder.path(), clock.now()).unwrap());
        let source = Box::new(OneMoreHitEachTime(Mutex::default()));
        let history = TrafficHistory::of_store(store, clock.clone(), source).await;
        let hits = || history.spans(1, 1440)[0].1.get(TrafficCount::Hit);
        assert_eq!((hits(), hits()), (1, 2));
        clock.set_back(Duration::from_secs(7200));
        assert_eq!((hits(), hits()), (1, 2));
    }
}
