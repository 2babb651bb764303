//! A lock-free histogram for the hot path: a few atomic additions per sample, no allocation.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The most bounds of a scale.
const MAX_BOUNDS: usize = 16;

/// The bounds of the buckets, and the conversion from measured steps to the base unit.
#[derive(Debug)]
pub(super) struct Scale {
    /// Upper bounds in steps, ascending.
    pub(super) bounds: &'static [u64],
    /// Steps in one base unit.
    pub(super) steps_per_unit: f64,
}

#[derive(Debug, Clone)]
pub(super) struct Histogram(Arc<BucketCounts>);

#[derive(Debug)]
struct BucketCounts {
    scale: &'static Scale,
    /// One bucket for each bound, and one above all bounds.
    buckets: [AtomicU64; MAX_BOUNDS + 1],
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(scale: &'static Scale) -> Self {
        Self(Arc::new(BucketCounts { scale, buckets: array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }))
    }

    /// Adds a sample of this many steps.
    pub(super) fn observe(&self, steps: u64) {
        let BucketCounts { scale, buckets, sum } = &*self.0;
        let index = scale.bounds.iter().position(|bound| steps <= *bound).unwrap_or(scale.bounds.len());
        if let Some(bucket) = buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        sum.fetch_add(steps, Ordering::Relaxed);
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let BucketCounts { scale, buckets, sum } = &*self.0;
        let in_units = |steps: u64| steps as f64 / scale.steps_per_unit;
        let bounds = scale.bounds.iter().map(|bound| in_units(*bound)).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.zip(buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect();
        // Computed from these buckets: samples counted meanwhile must not make the two contradict each other.
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
    fn a_sample_counts_in_its_bucket_and_all_above() {
        static SCALE: Scale = Scale { bounds: &[10, 500, 2_000], steps_per_unit: 1000.0 };
        let histogram = Histogram::new(&SCALE);
        [0, 10, 11, 2_000, 2_001].into_iter().for_each(|steps| histogram.observe(steps));
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
