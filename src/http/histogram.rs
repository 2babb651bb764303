//! A lock-free histogram for the hot path: a few atomic additions per sample, no allocation.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Maximum number of bucket bounds of one histogram.
const MAX_BOUNDS: usize = 16;

/// The bucket bounds of a histogram, and the conversion of its integer samples to the unit of the metric.
#[derive(Debug)]
pub(super) struct BucketLayout {
    bounds: &'static [u64],
    samples_per_unit: f64,
}

impl BucketLayout {
    /// Creates a layout. `bounds` are the upper bounds of the buckets in the samples' unit, ascending.
    /// `samples_per_unit` is the size of the metric's unit in the samples' unit: 1e9 for nanoseconds that are exposed as
    /// seconds.
    pub(super) const fn new(bounds: &'static [u64], samples_per_unit: f64) -> Self {
        assert!(bounds.len() <= MAX_BOUNDS, "a histogram has at most MAX_BOUNDS bounds");
        Self { bounds, samples_per_unit }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Histogram(Arc<BucketCounts>);

#[derive(Debug)]
struct BucketCounts {
    layout: &'static BucketLayout,
    /// One bucket for each bound, and one above all bounds.
    buckets: [AtomicU64; MAX_BOUNDS + 1],
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(layout: &'static BucketLayout) -> Self {
        Self(Arc::new(BucketCounts { layout, buckets: array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }))
    }

    /// Adds a sample, in the unit of the bounds.
    pub(super) fn observe(&self, sample: u64) {
        let BucketCounts { layout, buckets, sum } = &*self.0;
        let index = layout.bounds.iter().position(|bound| sample <= *bound).unwrap_or(layout.bounds.len());
        if let Some(bucket) = buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        sum.fetch_add(sample, Ordering::Relaxed);
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let BucketCounts { layout, buckets, sum } = &*self.0;
        let in_units = |value: u64| value as f64 / layout.samples_per_unit;
        let bounds = layout.bounds.iter().map(|bound| in_units(*bound)).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.zip(buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect();
        // The total is computed from the buckets read above: a sample added meanwhile must not make it contradict them.
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(in_units(sum.load(Ordering::Relaxed)), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn a_sample_counts_in_its_bucket_and_every_higher_one() {
        static LAYOUT: BucketLayout = BucketLayout::new(&[10, 500, 2_000], 1000.0);
        let histogram = Histogram::new(&LAYOUT);
        [0, 10, 11, 2_000, 2_001].into_iter().for_each(|sample| histogram.observe(sample));
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_with_unit("x", "X", Unit::Seconds, histogram);
        encode(&mut text, &registry).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let bucket = |le: &str, count: u32| format!("x_seconds_bucket{{le=\"{le}\"}} {count}");
        let buckets = [bucket("0.01", 2), bucket("0.5", 3), bucket("2.0", 4), bucket("+Inf", 5)];
        assert_eq!(
            samples,
            [&["x_seconds_sum 4.022", "x_seconds_count 5"][..], &buckets.each_ref().map(String::as_str)].concat()
        );
    }
}
