//! Numbers that every request adds to. The threads of each core add to cells of their own, so that no two cores wait for one
//! cache line; a reader adds the cells up.

use std::array;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Atomic;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Cells of one number at most: more cores share them.
const MAX_CELLS: usize = 16;

/// A number alone on its cache lines (two, because processors fetch them in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedNumber(AtomicU64);

/// A sum of the numbers of all cores.
#[derive(Debug)]
pub(super) struct PerCore(Box<[PaddedNumber]>);

impl Default for PerCore {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self((0..cores.next_power_of_two().min(MAX_CELLS)).map(|_| PaddedNumber::default()).collect())
    }
}

impl PerCore {
    fn add(&self, number: u64) -> (u64, usize) {
        // The number of cells is a power of two.
        let cell = number_of_this_thread() & (self.0.len() - 1);
        (self.0[cell].0.fetch_add(number, Ordering::Relaxed), cell)
    }

    /// A number that no other call returns, from 1. Those of one thread grow.
    pub(super) fn next_unique(&self) -> u64 {
        let (before, cell) = self.add(1);
        before * self.0.len() as u64 + cell as u64 + 1
    }
}

impl Atomic<u64> for PerCore {
    /// Returns what this core had added before.
    fn inc(&self) -> u64 {
        self.inc_by(1)
    }

    fn inc_by(&self, number: u64) -> u64 {
        self.add(number).0
    }

    fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// Threads are numbered in the order of their first call, so that those of a small machine have cells of their own.
fn number_of_this_thread() -> usize {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            let new = STARTED.fetch_add(1, Ordering::Relaxed);
            number.set(Some(new));
            new
        })
    })
}

/// The unit in which a histogram sums: small enough for its durations, and large enough for many years of counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SumUnit {
    /// For times that an answer takes.
    Nanoseconds,
    /// For ages of days.
    Seconds,
}

/// A histogram of durations with these upper bounds; clones share it.
#[derive(Debug, Clone)]
pub(super) struct DurationHistogram<const N: usize>(Arc<Buckets<N>>);

#[derive(Debug)]
struct Buckets<const N: usize> {
    bounds: [Duration; N],
    counts: [PerCore; N],
    /// Durations beyond the last bound.
    beyond: PerCore,
    sum: PerCore,
    unit: SumUnit,
}

impl<const N: usize> DurationHistogram<N> {
    /// An empty one. The bounds grow.
    pub(super) fn new(bounds: [Duration; N], unit: SumUnit) -> Self {
        Self(Arc::new(Buckets {
            bounds,
            counts: array::from_fn(|_| PerCore::default()),
            beyond: PerCore::default(),
            sum: PerCore::default(),
            unit,
        }))
    }

    /// Adds a duration, which lies in the bucket of the first bound that it does not exceed.
    pub(super) fn observe(&self, duration: Duration) {
        let Buckets { bounds, counts, beyond, sum, unit } = &*self.0;
        let bucket = bounds.iter().position(|bound| duration <= *bound);
        bucket.map_or(beyond, |bucket| &counts[bucket]).inc();
        sum.inc_by(match unit {
            SumUnit::Nanoseconds => u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            SumUnit::Seconds => duration.as_secs(),
        });
    }
}

impl<const N: usize> TypedMetric for DurationHistogram<N> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl<const N: usize> EncodeMetric for DurationHistogram<N> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Buckets { bounds, counts, beyond, sum, unit } = &*self.0;
        let within = bounds.iter().zip(counts).map(|(bound, count)| (bound.as_secs_f64(), count.get()));
        let buckets: Vec<(f64, u64)> = within.chain([(f64::INFINITY, beyond.get())]).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = match unit {
            SumUnit::Nanoseconds => Duration::from_nanos(sum.get()).as_secs_f64(),
            SumUnit::Seconds => sum.get() as f64,
        };
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn what_many_threads_add_is_counted_once() {
        let (sum, names) = (PerCore::default(), PerCore::default());
        let unique: Vec<u64> = std::thread::scope(|scope| {
            let add = || {
                (0..1_000)
                    .map(|_| {
                        sum.inc_by(3);
                        names.next_unique()
                    })
                    .collect::<Vec<u64>>()
            };
            let threads: Vec<_> = (0..2 * MAX_CELLS).map(|_| scope.spawn(add)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(sum.get(), 3 * unique.len() as u64);
        assert_eq!(unique.iter().collect::<HashSet<_>>().len(), unique.len());
        assert!(!unique.contains(&0));
    }

    /// A month of age with every answer, at ten thousand in a second, for years.
    #[test]
    fn the_sum_of_ages_does_not_wrap() {
        let ages = DurationHistogram::new([Duration::from_secs(60)], SumUnit::Seconds);
        let month = Duration::from_secs(30 * 24 * 3600);
        let answers = u64::MAX / month.as_secs();
        assert!(answers / 10_000 / 3600 / 24 / 365 > 10);
        (0..8_000).for_each(|_| ages.observe(month));
        let mut registry = Registry::default();
        registry.register("age", "Help", ages);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("age_sum 20736000000.0"), "{text}");
    }

    #[test]
    fn a_duration_is_counted_under_every_bound_that_it_does_not_exceed() {
        let histogram =
            DurationHistogram::new([Duration::from_millis(1), Duration::from_secs(1)], SumUnit::Nanoseconds);
        for millis in [0, 1, 2, 1_000, 5_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut registry = Registry::default();
        registry.register("time", "Help", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "time_sum 6.003",
            "time_count 5",
            "time_bucket{le=\"0.001\"} 2",
            "time_bucket{le=\"1.0\"} 4",
            "time_bucket{le=\"+Inf\"} 5",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in {text}");
        }
    }
}
