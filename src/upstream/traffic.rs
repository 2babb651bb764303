//! Traffic counters by configured upstream. Labels are configured hosts only.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::egress_policy::EgressRefusal;
use crate::address::Hostname;

/// Counters of outbound requests and inbound bytes, by configured upstream.
#[derive(Debug, Clone, Default)]
pub struct Traffic {
    requests: Family<Answered, Counter>,
    bytes: Family<From, Counter>,
    refusals: Family<Refused, Counter>,
    /// All upstreams since the start, including removed ones.
    upstreams: Arc<Mutex<BTreeSet<Hostname>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    host: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    host: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct From {
    host: String,
}

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

    /// Creates the counters of an upstream at zero, so that they are visible before its first request.
    pub(super) fn expect(&self, upstream: &Hostname) {
        self.upstreams.lock().insert(upstream.clone());
        self.bytes.get_or_create_owned(&from(upstream));
        for status in status_labels() {
            self.requests.get_or_create_owned(&Answered { host: upstream.to_string(), status });
        }
        for reason in EgressRefusal::all_labels() {
            self.refusals.get_or_create_owned(&Refused { host: upstream.to_string(), reason });
        }
    }

    /// Body bytes received since the start, from all upstreams.
    pub fn all_bytes(&self) -> u64 {
        self.upstreams.lock().iter().map(|host| self.bytes_of(host)).sum()
    }

    fn bytes_of(&self, host: &Hostname) -> u64 {
        self.bytes.get(&from(host)).map_or(0, |bytes| bytes.get())
    }

    /// The counters of one upstream since the start.
    pub fn of(&self, host: &Hostname) -> UpstreamTraffic {
        // `get`, because reading must not create label sets.
        let requests =
            |status| self.requests.get(&Answered { host: host.to_string(), status }).map_or(0, |count| count.get());
        let statuses = status_labels();
        let is_failure = |status: &&str| *status == NO_STATUS || *status == "429" || status.starts_with('5');
        let refused =
            |reason| self.refusals.get(&Refused { host: host.to_string(), reason }).map_or(0, |count| count.get());
        UpstreamTraffic {
            requests: statuses.iter().map(|status| requests(status)).sum(),
            failed: statuses.iter().copied().filter(is_failure).map(requests).sum(),
            bytes: self.bytes_of(host),
            refused: EgressRefusal::all_labels().map(refused).sum(),
        }
    }

    pub(super) fn count_request(&self, upstream: &Hostname, status: Option<u16>) {
        let status = status.map_or(NO_STATUS, status_label);
        self.requests.get_or_create(&Answered { host: upstream.to_string(), status }).inc();
    }

    pub(super) fn refused(&self, upstream: &Hostname, refusal: &EgressRefusal) {
        let labels = Refused { host: upstream.to_string(), reason: refusal.metrics_label() };
        self.refusals.get_or_create(&labels).inc();
    }

    /// The byte counter of an upstream; looked up once for each answer.
    pub(super) fn bytes_counter(&self, upstream: &Hostname) -> Counter {
        self.bytes.get_or_create_owned(&from(upstream))
    }
}

const NO_STATUS: &str = "none";

/// All status labels.
fn status_labels() -> BTreeSet<&'static str> {
    (0..=600).map(status_label).chain([NO_STATUS]).collect()
}

fn from(host: &Hostname) -> From {
    From { host: host.to_string() }
}

/// The label of a status. An upstream may send any number, so only statuses that matter to an operator have their own
/// label. Others share that of their class.
fn status_label(status: u16) -> &'static str {
    macro_rules! word_of {
        ($($told:literal)*) => {
            match status {
                $($told => stringify!($told),)*
                100..200 => "1xx",
                200..300 => "2xx",
                300..400 => "3xx",
                400..500 => "4xx",
                500..600 => "5xx",
                _ => "other",
            }
        };
    }
    word_of!(200 206 301 302 303 304 307 308 400 401 403 404 407 408 410 416 429 451 500 502 503 504 507 508)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_status_has_one_of_a_few_labels() {
        let words: BTreeSet<&str> = (0..=u16::MAX).map(status_label).chain([NO_STATUS]).collect();
        assert_eq!((words.len(), &words), (31, &status_labels()));
        assert_eq!(
            [200, 299, 418, 508, 599, 600, 99].map(status_label),
            ["200", "2xx", "4xx", "508", "5xx", "other", "other"]
        );
    }
}
