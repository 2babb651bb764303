//! The latest time that this larder has seen, written hourly. While the clock is behind it, new versions count from that time: a
//! clock that was set back must not make them look older than they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::{CLOCK_SLACK, Timestamp};
use crate::mirror::Library;
use crate::store::{Durability, IndexEntry, Key, ReadOutcome, Store, StoreError, to_json};

/// Seconds between two writes.
const WRITTEN_EVERY: u64 = 3600;

/// The latest time.
#[derive(Debug)]
pub struct LatestTime {
    seen: AtomicU64,
    written: AtomicU64,
    /// True once the log says that the clock is behind.
    is_told: AtomicBool,
}

impl LatestTime {
    /// Reads the record.
    ///
    /// # Errors
    /// The disk failed.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let recorded = match store.records.read(&Key::LatestTime)?.json::<Timestamp>() {
            ReadOutcome::Intact(recorded) => recorded,
            ReadOutcome::Absent => Timestamp(0),
            ReadOutcome::Damaged => {
                tracing::error!(
                    "the record of the latest time is damaged; until it is written anew, only the clock counts"
                );
                Timestamp(0)
            }
        };
        Ok(Self { seen: recorded.0.into(), written: recorded.0.into(), is_told: AtomicBool::new(false) })
    }

    /// The latest time: `now`, unless the clock is behind.
    pub fn at(&self, now: Timestamp) -> Timestamp {
        let latest = Timestamp(self.seen.load(Ordering::Relaxed).max(now.0));
        if now.after(CLOCK_SLACK) < latest && !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::error!(
                now = now.date_time(),
                latest = latest.date_time(),
                "the clock is behind the latest time that this larder has seen; new versions count from that time. If that time was \
                 wrong, stop larder and remove v1/{} from its store",
                Key::LatestTime.path().display()
            );
        }
        latest
    }
}

impl Library {
    /// Notes the time of an hour in which perhaps nothing else did.
    pub async fn note_hour(self: &Arc<Self>, now: Timestamp) {
        let noting = self.on_disk(move |library| {
            library.note_time(now);
            Ok(())
        });
        if let Err(error) = noting.await {
            tracing::warn!(%error, "the latest time could not be noted");
        }
    }

    /// Notes a time, and writes it if the written one is an hour older. A failed write is only logged.
    pub fn note_time(&self, now: Timestamp) {
        let LatestTime { seen, written, .. } = &self.latest_time;
        let latest = seen.fetch_max(now.0, Ordering::Relaxed).max(now.0);
        let before = written.load(Ordering::Relaxed);
        if latest < before.saturating_add(WRITTEN_EVERY)
            || written.compare_exchange(before, latest, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let record = to_json(&Timestamp(latest));
        let put = self.store.records.change(&Key::LatestTime, |step| {
            step.put(&Key::LatestTime, record.clone(), Durability::Lazy, IndexEntry::Unindexed);
            Ok(())
        });
        if let Err(error) = put {
            tracing::warn!(%error, "the latest time could not be written");
        }
    }
}
