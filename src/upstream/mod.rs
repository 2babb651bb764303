//! The upstream registries: requests to them, limits, and the documents that they send. This module knows neither the
//! store nor larder's own URLs.

pub mod backoff;
#[cfg(feature = "fleet")]
pub mod buckets;
mod client_json;
pub mod clients;
mod credential_scope;
pub mod dates;
pub mod discovery;
pub mod egress_policy;
pub mod error;
pub mod git;
pub mod issuers;
pub mod limits;
pub mod modules;
pub mod outbound;
pub mod pages;
pub mod providers;
pub mod request;
pub mod source;
mod traffic;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::credential_scope::CredentialScope;
pub use self::traffic::{Traffic, UpstreamTraffic};
use crate::address::Hostname;
use crate::config;

/// One configured registry.
#[derive(Debug)]
pub struct Upstream {
    /// The `[[upstream]]` section of the configuration.
    pub settings: config::Upstream,
    /// The credential scope of its own `url`. Discovery adds the origins of its services.
    pub credential_scope: CredentialScope,
}

/// The configured registries, by host.
#[derive(Debug, Default)]
pub struct Upstreams(BTreeMap<Hostname, Arc<Upstream>>);

impl Upstreams {
    /// Builds the upstreams from their sections, each with its credentials, and with the private addresses that it may lead to.
    pub fn new(
        sections: &[config::Upstream],
        credentials: &[config::Credential],
        allow_private: &[config::PrivateDestination],
    ) -> Self {
        let upstream = |settings: &config::Upstream| Upstream {
            credential_scope: CredentialScope::of(settings, credentials, allow_private),
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
        self.0.keys().collect()
    }
}
