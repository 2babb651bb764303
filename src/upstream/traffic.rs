//! Traffic counters by upstream. Only configured hosts become labels.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::egress_policy::EgressRefusal;
use crate::address::Hostname;

/// Counters of outbound requests and inbound bytes, by configured upstream.
#[derive(Debug, Clone, Default)]
pub struct Traffic {
    requests: Family<Labels, Counter>,
    bytes: Family<Labels, Counter>,
    refusals: Family<Labels, Counter>,
    /// All upstreams since the start, including removed ones.
    upstreams: Arc<Mutex<BTreeSet<Hostname>>>,
}

/// Names of labels and their values.
type Labels = Vec<(&'static str, String)>;

/// Counters of one upstream since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpstreamTraffic {
    /// Requests sent.
    pub requests: u64,
    /// Requests without an answer, or with 429 or 5xx.
    pub failed: u64,
    /// Body bytes received.
    pub bytes: u64,
    /// Requests that larder refused to make.
    pub refused: u64,
}

impl Traffic {
    /// Registers the counters under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "larder_upstream_requests",
            "Requests sent upstream, by upstream and status; none where no answer came",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "larder_upstream",
            "Body bytes received from upstream, by upstream",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register(
            "larder_upstream_refusals",
            "Requests that larder refused to make, by the upstream that led there and reason",
            self.refusals.clone(),
        );
    }

    /// Creates the counters of an upstream at zero, so that metrics show them before the first request.
    pub(super) fn create_counters(&self, upstream: &Hostname) {
        self.upstreams.lock().insert(upstream.clone());
        self.bytes_counter(upstream);
        for status in status_labels() {
            self.requests.get_or_create_owned(&labels(upstream, Some(("status", status))));
        }
        for reason in EgressRefusal::all_labels() {
            self.refusals.get_or_create_owned(&labels(upstream, Some(("reason", reason))));
        }
    }

    /// Body bytes received since the start, from all upstreams.
    pub fn all_bytes(&self) -> u64 {
        self.upstreams.lock().iter().map(|host| self.bytes_of(host)).sum()
    }

    fn bytes_of(&self, host: &Hostname) -> u64 {
        count_of(&self.bytes, &labels(host, None))
    }

    /// The counters of one upstream since the start.
    pub fn of(&self, host: &Hostname) -> UpstreamTraffic {
        let requests = |status| count_of(&self.requests, &labels(host, Some(("status", status))));
        let statuses = status_labels();
        let is_failure = |status: &&str| *status == NO_STATUS || *status == "429" || status.starts_with('5');
        let refusals = |reason| count_of(&self.refusals, &labels(host, Some(("reason", reason))));
        UpstreamTraffic {
            requests: statuses.iter().map(|status| requests(status)).sum(),
            failed: statuses.iter().copied().filter(is_failure).map(requests).sum(),
            bytes: self.bytes_of(host),
            refused: EgressRefusal::all_labels().map(refusals).sum(),
        }
    }

    /// Counts a request; `status` is `None` if no answer came.
    pub(super) fn count_request(&self, upstream: &Hostname, status: Option<u16>) {
        let status = status.map_or(NO_STATUS, status_label);
        self.requests.get_or_create(&labels(upstream, Some(("status", status)))).inc();
    }

    pub(super) fn count_refusal(&self, upstream: &Hostname, refusal: &EgressRefusal) {
        self.refusals.get_or_create(&labels(upstream, Some(("reason", refusal.metrics_label())))).inc();
    }

    /// The counter of received bytes. Callers look it up once for each answer.
    pub(super) fn bytes_counter(&self, upstream: &Hostname) -> Counter {
        self.bytes.get_or_create_owned(&labels(upstream, None))
    }
}

const NO_STATUS: &str = "none";

/// All status labels.
fn status_labels() -> BTreeSet<&'static str> {
    (0..=600).map(status_label).chain([NO_STATUS]).collect()
}

fn labels(host: &Hostname, other: Option<(&'static str, &str)>) -> Labels {
    [("host", host.as_str())].into_iter().chain(other).map(|(name, value)| (name, value.to_owned())).collect()
}

/// The count for these labels. Reading does not create them.
fn count_of(family: &Family<Labels, Counter>, labels: &Labels) -> u64 {
    family.get(labels).map_or(0, |count| count.get())
}

/// The label of a status. An upstream may send any number, so only statuses that matter to an operator have their own
/// label. All others share the label of their class.
fn status_label(status: u16) -> &'static str {
    macro_rules! label_of {
        ($($status:literal)*) => {
            match status {
                $($status => stringify!($status),)*
                100..200 => "1xx",
                200..300 => "2xx",
                300..400 => "3xx",
                400..500 => "4xx",
                500..600 => "5xx",
                _ => "other",
            }
        };
    }
    label_of!(200 206 301 302 303 304 307 308 400 401 403 404 407 408 410 416 429 451 500 502 503 504 507 508)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_one_of_a_few_labels() {
        let labels: BTreeSet<&str> = (0..=u16::MAX).map(status_label).chain([NO_STATUS]).collect();
        assert_eq!((labels.len(), &labels), (31, &status_labels()));
        assert_eq!(
            [200, 299, 418, 508, 599, 600, 99].map(status_label),
            ["200", "2xx", "4xx", "508", "5xx", "other", "other"]
        );
    }
}
