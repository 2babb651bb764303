//! Checks each upstream over larder's own outbound connector, step by step: name, connection, TLS, discovery, one
//! version list.

use std::path::Path;

use tokio::time::{Instant, timeout};
use url::{Host, Url};

use super::machine::AnnouncedTimes;
use super::{Check, PROBE_TIMEOUT, in_time};
use crate::address::{Hostname, Name, ProviderAddress};
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::store::Store;
use crate::upstream::backoff::RequestTime;
use crate::upstream::discovery::{self, Discovery};
use crate::upstream::egress_policy::EgressRefusal;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Outbound, origin};
use crate::upstream::providers::{VersionList, versions_url};
use crate::upstream::request::{AcceptedCoding, Document, Fetched, RequestPriority, UpstreamRequest};
use crate::upstream::{CredentialScope, Upstream};

const NAME: &str = "upstream.name";
const CONNECTION: &str = "upstream.connection";
const TLS: &str = "upstream.tls";
const DISCOVERY: &str = "upstream.discovery";
const LIST: &str = "upstream.list";
const MAX_LIST_BYTES: u64 = 16 << 20;

const NO_SUCH_NAME_ADVICE: &str = "check the spelling in [[upstream]] host or url, and DNS on this machine (/etc/resolv.conf); if only a \
     proxy resolves names, set HTTPS_PROXY for larder";
const REFUSED_ADVICE: &str = "the upstream is down, or something in between refuses; try curl -v from this machine; stored \
     copies are served meanwhile";
const NO_ANSWER_ADVICE: &str = "a firewall drops packets, or the upstream hangs; try curl -v from this machine; stored copies are \
     served meanwhile";
const UNTRUSTED_ADVICE: &str = "if the certificate is from your own authority, name that authority's PEM file in [network] \
     ca_file; if it has expired or is not valid yet, check this machine's clock first";
const REDIRECTED_ADVICE: &str = "check where the upstream redirects; [[upstream]] url may name the target directly";
const NO_DISCOVERY_ADVICE: &str =
    "check that [[upstream]] url is a registry: .well-known/terraform.json must be below it";
const NO_REGISTRY_ADVICE: &str = "check that [[upstream]] url is a registry: its documents must be JSON, and discovery \
     must name providers.v1; a sign-in page in between looks like this";

/// Text of a fault; a refused request gets the configuration line that allows it.
pub(super) fn fault_text(fault: &Fault) -> String {
    match fault {
        Fault::Refused(refusal) => {
            refusal.remedy().map_or_else(|| fault.to_string(), |line| format!("{fault}; {line}"))
        }
        fault => fault.to_string(),
    }
}

/// The inputs of the checks of one upstream.
pub(super) struct UpstreamCheck<'a> {
    pub(super) upstream: &'a Upstream,
    pub(super) outbound: &'a Outbound,
    pub(super) host: &'a Hostname,
    pub(super) now: Timestamp,
}

impl UpstreamCheck<'_> {
    /// Runs the checks up to the first that fails.
    pub(super) async fn run(&self, store: &Path, times: &AnnouncedTimes) -> Vec<Check> {
        let Ok(url) = self.upstream.settings.url.join(".well-known/terraform.json") else { return Vec::new() };
        let started = Instant::now();
        let credential_scope = &self.upstream.credential_scope;
        let answer = self.fetch("its discovery document", &url, credential_scope, discovery::MAX_DOCUMENT_BYTES).await;
        let document = match answer {
            Ok(document) => document,
            Err(error) => return self.failed_steps(&url, &error),
        };
        times.record(self.host, document.date);
        let mut checks = self.passed_steps(&url);
        let (check, service) = self.check_discovery(document, started.elapsed().as_millis());
        checks.push(check);
        if let Some((base, credential_scope)) = service {
            checks.push(self.check_list(&base, &credential_scope, store).await);
        }
        checks
    }

    pub(super) async fn fetch(
        &self,
        subject: &str,
        url: &Url,
        credential_scope: &CredentialScope,
        limit: u64,
    ) -> Result<Document, UpstreamError> {
        let request = UpstreamRequest {
            subject,
            url,
            upstream: self.host,
            credentials: credential_scope,
            cdn_loop: &CdnLoop::default(),
            retries: 0,
            priority: RequestPriority::Job,
            request_time: RequestTime::new(self.now),
        };
        let fault =
            match timeout(PROBE_TIMEOUT, self.outbound.document(AcceptedCoding::Any, request, None, limit)).await {
                Ok(Ok(Fetched::New(document))) => return Ok(document),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Fetched::Unchanged)) => Fault::Unusable("304 to an unconditional request".to_owned()),
                Err(_) => Fault::Slow(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
            };
        Err(UpstreamError { subject: subject.to_owned(), origin: origin(url), fault })
    }

    /// The passed checks before an answer: name, connection, TLS.
    fn passed_steps(&self, url: &Url) -> Vec<Check> {
        let mut steps = vec![self.name_check(url), Check::passed(CONNECTION, format!("connected to {}", origin(url)))];
        if url.scheme() == "https" {
            steps.push(Check::passed(TLS, "the certificate is trusted"));
        }
        steps
    }

    /// The passed check of the upstream's name.
    fn name_check(&self, url: &Url) -> Check {
        let name = url.host_str().unwrap_or_default();
        if let Some(proxy) = self.outbound.proxy_for(url) {
            return Check::passed(NAME, format!("{name} is resolved by the proxy {proxy}"));
        }
        let addresses = &self.upstream.settings.addresses;
        if !addresses.is_empty() {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            return Check::passed(NAME, format!("{name} is not resolved: addresses = {}", addresses.join(", ")));
        }
        match url.host() {
            Some(Host::Domain(_)) | None => Check::passed(NAME, format!("{name} resolves")),
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => Check::passed(NAME, format!("{name} is an IP address")),
        }
    }

    /// The passed checks, then the failed one.
    fn failed_steps(&self, url: &Url, error: &UpstreamError) -> Vec<Check> {
        let origin = origin(url);
        let steps = self.passed_steps(url);
        let (passed, check) = match &error.fault {
            // A redirect led to another origin, so all checks of this origin passed.
            fault if error.origin != origin => {
                let finding = format!("a redirect led to {}, which {}", error.origin, fault_text(fault));
                (steps.len(), Check::fail(DISCOVERY, finding).advise(REDIRECTED_ADVICE))
            }
            Fault::HostNotFound(reason) => {
                let reason = reason.rsplit(": ").next().unwrap_or_default();
                let name = match url.host_str().unwrap_or_default() {
                    name if name == self.host.as_str() => "its name".to_owned(),
                    name => format!("the name {name}"),
                };
                let finding = format!("{name} does not resolve: {reason}");
                (0, Check::fail(NAME, finding).advise(NO_SUCH_NAME_ADVICE))
            }
            Fault::Unreachable(reason) => {
                let finding = format!("{origin} cannot be reached: {}", strip_client_prefix(reason));
                (1, Check::fail(CONNECTION, finding).advise(self.connection_advice(url, REFUSED_ADVICE)))
            }
            Fault::Slow(_) => {
                let finding = format!("no answer from {origin} within {} s", PROBE_TIMEOUT.as_secs());
                (1, Check::fail(CONNECTION, finding).advise(self.connection_advice(url, NO_ANSWER_ADVICE)))
            }
            Fault::Untrusted(reason) => {
                let finding = format!("{origin} is not trusted: {}", strip_client_prefix(reason));
                (2, Check::fail(TLS, finding).advise(UNTRUSTED_ADVICE))
            }
            fault => (
                steps.len(),
                Check::fail(DISCOVERY, format!("{origin} {}", fault_text(fault))).advise(response_advice(fault)),
            ),
        };
        steps.into_iter().take(passed).chain([check]).collect()
    }

    fn connection_advice(&self, url: &Url, without_proxy: &str) -> String {
        let host = url.host_str().unwrap_or_default();
        match self.outbound.proxy_for(url) {
            Some(proxy) => {
                format!("requests go through the proxy {proxy}; check that it runs, or add {host} to NO_PROXY")
            }
            None => without_proxy.to_owned(),
        }
    }

    /// Checks the discovery document; returns the base URL of providers.v1 with its credential scope.
    fn check_discovery(&self, document: Document, elapsed_ms: u128) -> (Check, Option<(Url, CredentialScope)>) {
        let bad = |reason: String| (Check::fail(DISCOVERY, reason).advise(NO_REGISTRY_ADVICE), None);
        if !Discovery::accepts(document.content_type.as_deref()) {
            let content_type = document.content_type.unwrap_or_else(|| "no media type".to_owned());
            return bad(format!("its discovery document is not JSON: expected application/json, got {content_type}"));
        }
        let discovery = match Discovery::parse(&document.body, document.url.clone()) {
            Ok(discovery) => discovery,
            Err(reason) => return bad(reason),
        };
        let is_offered = |name: &&str| discovery.service(name).is_some();
        let offered: Vec<&str> = ["providers.v1", "modules.v1"].into_iter().filter(is_offered).collect();
        match discovery.service("providers.v1") {
            Some(base) => {
                let credential_scope = self.upstream.credential_scope.clone();
                let credential_scope = if document.is_from_asked_origin() {
                    credential_scope.with_service(&base)
                } else {
                    credential_scope.with_permitted_service(&base)
                };
                let finding = format!("names {}, in {elapsed_ms} ms", offered.join(" and "));
                (Check::passed(DISCOVERY, finding), Some((base, credential_scope)))
            }
            None if offered.is_empty() => {
                bad("its discovery document names neither providers.v1 nor modules.v1".to_owned())
            }
            None => {
                let check = Check::warn(DISCOVERY, "names modules.v1, but not providers.v1");
                (check.advise("larder cannot fetch providers from it; ignore this if it has none"), None)
            }
        }
    }

    /// Requests the version list of a provider that is stored, or of a well-known one.
    async fn check_list(&self, base: &Url, credential_scope: &CredentialScope, store: &Path) -> Check {
        let (folder, host) = (store.to_owned(), self.host.clone());
        let stored = in_time(move || Store::any_cached_provider(&folder, &host)).await.flatten();
        let Some(address) = stored.or_else(|| well_known(self.host)) else {
            return Check::passed(LIST, "no list was requested: no provider of this upstream is stored yet");
        };
        let subject = format!("the version list of {}/{}", address.namespace, address.type_);
        let Ok(url) = versions_url(base, &address) else { return Check::fail(LIST, "providers.v1 is not a base URL") };
        let started = Instant::now();
        match self.fetch(&subject, &url, credential_scope, MAX_LIST_BYTES).await {
            Ok(document) => match VersionList::parse(&document.body) {
                Ok(list) => {
                    let (count, elapsed_ms) = (list.versions.len(), started.elapsed().as_millis());
                    let plural = if count == 1 { "" } else { "s" };
                    Check::passed(LIST, format!("{subject} has {count} version{plural}, in {elapsed_ms} ms"))
                }
                Err(reason) => Check::fail(LIST, format!("{subject} is invalid: {reason}")).advise(NO_REGISTRY_ADVICE),
            },
            Err(UpstreamError { fault: Fault::Slow(_), .. }) => {
                let finding = format!("{subject} did not arrive within {} s", PROBE_TIMEOUT.as_secs());
                Check::fail(LIST, finding)
                    .advise("clients wait 10 s for it, and get a stored copy after the upstream's patience")
            }
            // The provider existed when it was stored, and other lists may still exist. A 404 is therefore only a
            // warning.
            Err(UpstreamError { fault: Fault::Absent(status), origin, .. }) => {
                Check::warn(LIST, format!("{origin} does not have {subject} ({status})"))
                    .advise("it may have been deleted there; otherwise check providers.v1 in its discovery document")
            }
            Err(error) => Check::fail(LIST, error.to_string()).advise(response_advice(&error.fault)),
        }
    }
}

/// A provider that a public registry certainly has.
fn well_known(host: &Hostname) -> Option<ProviderAddress> {
    let is_public = host.other_public_registry().is_some();
    let (namespace, type_) = (Name::parse("hashicorp").ok()?, Name::parse("null").ok()?);
    is_public.then(|| ProviderAddress { host: host.clone(), namespace, type_ })
}

/// Removes the HTTP client's prefix from an error text.
fn strip_client_prefix(reason: &str) -> &str {
    reason.strip_prefix("client error (Connect): ").unwrap_or(reason)
}

/// The advice for a fault of an answer.
fn response_advice(fault: &Fault) -> &'static str {
    match fault {
        Fault::Absent(_) => NO_DISCOVERY_ADVICE,
        Fault::Denied(_) => "give larder a valid credential for it ([[upstream]] token, basic or header)",
        Fault::Trouble { .. } => "wait: the upstream itself has a problem; stored copies are served meanwhile",
        Fault::Looped => "set [[upstream]] url to a registry, not back to a larder",
        Fault::Refused(
            EgressRefusal::PlainHttp { .. } | EgressRefusal::Address { .. } | EgressRefusal::PrivateName { .. },
        ) => "add that line if you trust the destination; otherwise check where the upstream leads",
        _ => NO_REGISTRY_ADVICE,
    }
}
