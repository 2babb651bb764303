//! The registries behind us: what they are, how they are asked, what their documents say.
//! Knows neither the store nor our own URLs.

pub mod ask;
pub mod bounds;
pub mod breaker;
pub mod budget;
pub mod clients;
pub mod content_range;
pub mod discovery;
pub mod error;
mod grant;
pub mod guard;
pub mod outbound;
pub mod permits;
pub mod providers;
pub mod restraint;
mod retry_after;
pub mod room;
pub mod special;

use std::collections::HashMap;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use self::grant::Grant;
use self::guard::Refusal;
use crate::address::Hostname;
use crate::config;

/// One configured registry.
#[derive(Debug)]
pub struct Upstream {
    /// Its section of the configuration.
    pub settings: config::Upstream,
    /// Who may see its credential, before its discovery says more.
    pub grant: Grant,
}

/// The configured registries, by the host they stand for.
#[derive(Debug, Default)]
pub struct Upstreams(HashMap<Hostname, Arc<Upstream>>);

impl Upstreams {
    /// Takes the `[[upstream]]` sections, and what others grant them.
    pub fn new(
        sections: &[config::Upstream],
        credentials: &[config::Credential],
        allow_private: &[config::Private],
    ) -> Self {
        let upstream = |settings: &config::Upstream| Upstream {
            grant: Grant::of(settings, credentials, allow_private),
            settings: settings.clone(),
        };
        Self(sections.iter().map(|section| (section.host.clone(), Arc::new(upstream(section)))).collect())
    }

    /// The upstream that `host` names, if it is configured.
    pub fn get(&self, host: &Hostname) -> Option<&Arc<Upstream>> {
        self.0.get(host)
    }

    /// Every configured host, sorted.
    pub fn hosts(&self) -> Vec<&Hostname> {
        let mut hosts: Vec<_> = self.0.keys().collect();
        hosts.sort();
        hosts
    }
}

/// Counters of what goes out and what comes in, by configured upstream.
#[derive(Debug, Clone, Default)]
pub struct Traffic {
    requests: Family<Answered, Counter>,
    bytes: Family<From, Counter>,
    refusals: Family<Refused, Counter>,
    left_alone: Family<From, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    host: String,
    status: String,
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

impl Traffic {
    /// Registers the counters under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "larder_upstream_requests",
            "Requests sent upstream, by upstream and status",
            self.requests.clone(),
        );
        registry.register(
            "larder_upstream_bytes",
            "Body bytes received from upstream, by upstream",
            self.bytes.clone(),
        );
        registry.register(
            "larder_upstream_refusals",
            "Requests that larder refused to make, by the upstream that led there and reason",
            self.refusals.clone(),
        );
        registry.register(
            "larder_breaker_open",
            "Origins that are left alone after failures, by the upstream that led there",
            self.left_alone.clone(),
        );
    }

    /// Body bytes received since the start, from all upstreams.
    pub fn bytes(&self, hosts: &[&Hostname]) -> u64 {
        let of = |host: &&Hostname| self.bytes.get(&From { host: host.to_string() }).map_or(0, |bytes| bytes.get());
        hosts.iter().map(of).sum()
    }

    /// Counts an origin as left alone for as long as this lives.
    fn left_alone(&self, upstream: &Hostname) -> LeftAlone {
        let gauge = self.left_alone.get_or_create(&From { host: upstream.to_string() }).clone();
        gauge.inc();
        LeftAlone(gauge)
    }

    fn asked(&self, upstream: &Hostname, status: Option<u16>) {
        let status = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        self.requests.get_or_create(&Answered { host: upstream.to_string(), status }).inc();
    }

    fn refused(&self, upstream: &Hostname, refusal: &Refusal) {
        let labels = Refused { host: upstream.to_string(), reason: refusal.word() };
        self.refusals.get_or_create(&labels).inc();
    }

    fn brought(&self, upstream: &Hostname, bytes: usize) {
        self.bytes.get_or_create(&From { host: upstream.to_string() }).inc_by(bytes as u64);
    }
}

/// An origin that is left alone, as it is counted.
#[derive(Debug)]
struct LeftAlone(Gauge);

impl Drop for LeftAlone {
    fn drop(&mut self) {
        self.0.dec();
    }
}
