//! The traffic of the last day, as the status page shows it: by the minute, bounded, and kept over a restart.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder::clock::{Clock, Timestamp};
use larder::jobs::{Traffic, TrafficCount, TrafficHistory, TrafficSource};
use larder::store::{Durability, HourOfDay, Key, Store};

use crate::support::larder::{Folder, Larder, open_store};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Provider};

const MINUTE: Duration = Duration::from_secs(60);

/// Counters that a test sets.
#[derive(Debug, Clone, Default)]
struct Counters(Arc<Mutex<Traffic>>);

impl Counters {
    fn count(&self, count: TrafficCount, number: u64) {
        let mut totals = self.0.lock().unwrap();
        *totals = totals.with(count, number);
    }
}

impl TrafficSource for Counters {
    fn totals(&self) -> Traffic {
        *self.0.lock().unwrap()
    }
}

/// A history over the store in a folder, and its counters, which begin at zero.
struct Fixture {
    history: Arc<TrafficHistory>,
    counters: Counters,
    store: Arc<Store>,
}

impl Fixture {
    async fn open(folder: &Folder, clock: &Clock) -> Self {
        let store = Arc::new(open_store(folder.path(), clock.now()));
        let counters = Counters::default();
        let source = Box::new(counters.clone());
        let history = TrafficHistory::of_store(Arc::clone(&store), clock.clone(), source).await;
        Self { history, counters, store }
    }

    /// The hits of the last minutes, the oldest first.
    fn hits(&self, minutes: u64) -> Vec<u64> {
        let spans = self.history.spans(minutes, 1).into_iter();
        spans.map(|(_, traffic)| traffic.get(TrafficCount::Hit)).collect()
    }

    fn close(self) {
        self.store.close().unwrap();
    }
}

/// A frozen clock at the beginning of an hour.
fn clock_at_full_hour() -> Clock {
    let clock = Clock::frozen();
    clock.advance(Duration::from_secs(3600 - clock.now().0 % 3600));
    clock
}

#[tokio::test]
async fn each_minute_is_counted_apart_and_survives_a_restart() {
    let (folder, clock) = (Folder::new(), clock_at_full_hour());
    let fixture = Fixture::open(&folder, &clock).await;
    for hits in [1, 2, 0, 4] {
        fixture.counters.count(TrafficCount::Hit, hits);
        fixture.counters.count(TrafficCount::SavedBytes, 10 * hits);
        clock.advance(MINUTE);
        fixture.history.save().await;
    }
    assert_eq!(fixture.hits(5), [1, 2, 0, 4, 0]);
    fixture.close();
    // The counters of a new process begin at zero.
    let restarted = Fixture::open(&folder, &clock).await;
    restarted.counters.count(TrafficCount::Hit, 5);
    assert_eq!(restarted.hits(5), [1, 2, 0, 4, 5]);
    let (start, whole) = restarted.history.spans(1, 5)[0];
    assert_eq!((whole.get(TrafficCount::Hit), whole.get(TrafficCount::SavedBytes)), (12, 70));
    assert_eq!(start, Timestamp(clock.now().0 - 4 * 60));
}

/// Promise 11: the history has one day, in memory and on disk, however long larder runs.
#[tokio::test]
async fn the_history_is_one_day_long() {
    let (folder, clock) = (Folder::new(), clock_at_full_hour());
    let fixture = Fixture::open(&folder, &clock).await;
    // Three days, with something in every twentieth minute.
    for _ in 0..3 * 72 {
        fixture.counters.count(TrafficCount::Hit, 1);
        clock.advance(20 * MINUTE);
        fixture.history.save().await;
    }
    assert_eq!(folder.files("traffic").len(), 24);
    assert_eq!(fixture.hits(3 * 1440).iter().sum::<u64>(), 71);
    fixture.close();
    let restarted = Fixture::open(&folder, &clock).await;
    assert_eq!(restarted.hits(3 * 1440).iter().sum::<u64>(), 71);
    restarted.close();
    // After two days without larder nothing of it is left.
    clock.advance(2 * 1440 * MINUTE);
    assert_eq!(Fixture::open(&folder, &clock).await.hits(1440).iter().sum::<u64>(), 0);
}

/// Promise 9: a record that is not what was written is set aside, and its hour begins anew.
#[tokio::test]
async fn a_damaged_record_costs_one_hour() {
    type Damage = fn(Vec<u8>) -> Vec<u8>;
    let damages: [(&str, Damage); 3] = [
        ("bytes", |mut record| {
            let last = record.len() - 2;
            record[last] ^= 1;
            record
        }),
        ("cut short", |record| record[..record.len() / 2].to_vec()),
        ("empty", |_| Vec::new()),
    ];
    for (name, damage) in damages {
        let (folder, clock) = (Folder::new(), clock_at_full_hour());
        let fixture = Fixture::open(&folder, &clock).await;
        fixture.counters.count(TrafficCount::Hit, 1);
        fixture.history.save().await;
        let first_hour = folder.files("traffic").remove(0);
        clock.advance(60 * MINUTE);
        assert_eq!(fixture.hits(1), [0]);
        fixture.counters.count(TrafficCount::Hit, 2);
        fixture.history.save().await;
        fixture.close();
        assert_eq!(folder.files("traffic").len(), 2);
        std::fs::write(&first_hour, damage(std::fs::read(&first_hour).unwrap())).unwrap();
        let restarted = Fixture::open(&folder, &clock).await;
        assert_eq!(restarted.hits(61).iter().sum::<u64>(), 2, "{name}");
        assert!(folder.record(&first_hour).is_none() && !folder.files("aside").is_empty(), "{name}");
        restarted.counters.count(TrafficCount::Hit, 3);
        restarted.history.save().await;
        assert_eq!(restarted.hits(61).iter().sum::<u64>(), 5, "{name}");
    }
}

/// A record of an hour in the place of another, or with times that do not exist, shows nothing that never happened.
#[tokio::test]
async fn a_record_with_impossible_times_is_set_aside() {
    for record in [
        r#"{"hour":7,"minutes":{"0":{"hit":1}}}"#,
        r#"{"hour":18446744073709551615,"minutes":{"0":{"hit":1}}}"#,
        r#"{"hour":8,"minutes":{"60":{"hit":1}}}"#,
        r#"{"hour":8,"minutes":{"0":{"hit":-1}}}"#,
        "[]",
    ] {
        let (folder, clock) = (Folder::new(), clock_at_full_hour());
        let fixture = Fixture::open(&folder, &clock).await;
        let key = Key::Traffic(HourOfDay::of(8));
        fixture.store.records.put(&key, record.as_bytes(), Durability::Lazy).unwrap();
        fixture.close();
        let restarted = Fixture::open(&folder, &clock).await;
        assert_eq!(restarted.hits(1440).iter().sum::<u64>(), 0, "{record}");
        assert!(folder.files("traffic").is_empty(), "{record}");
    }
}

/// A larder that nobody asks writes nothing.
#[tokio::test]
async fn a_minute_without_traffic_is_not_written() {
    let (folder, clock) = (Folder::new(), Clock::frozen());
    let fixture = Fixture::open(&folder, &clock).await;
    fixture.history.save().await;
    clock.advance(MINUTE);
    fixture.history.save().await;
    assert!(folder.files("traffic").is_empty());
}

/// The running larder saves each minute, and once more when it stops.
#[tokio::test]
async fn the_traffic_is_saved_each_minute_and_at_a_stop() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let clock = Clock::frozen();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    larder.versions("null").await.expect(200);
    larder.versions("null").await.expect(200);
    larder.clock.advance(MINUTE);
    let folder = larder.folder.clone();
    until("the minute is saved", async || !folder.files("traffic").is_empty()).await;
    larder.versions("null").await.expect(200);
    let folder = larder.stop().await;
    let fixture = Fixture::open(&folder, &clock).await;
    let whole = fixture.history.spans(1, 1440)[0].1;
    assert_eq!((whole.get(TrafficCount::Hit), whole.get(TrafficCount::Miss)), (2, 1));
    assert_eq!(whole.hit_percent(), Some(66));
    assert!(whole.get(TrafficCount::UpstreamBytes) > 0 && whole.get(TrafficCount::SavedBytes) > 0, "{whole:?}");
    assert!(whole.get(TrafficCount::SentBytes) > whole.get(TrafficCount::SavedBytes), "{whole:?}");
}
