//! Checks each upstream over larder's own outbound connector, step by step: name, connection, TLS, discovery, one
//! version list.

use std::path::Path;

use tokio::time::{Instant, timeout};
use url::{Host, Url};

use super::{Check, Findings, PROBE_TIMEOUT, machine};
use crate::address::{Hostname, Name, ProviderAddress};
use crate::cdn_loop::CdnLoop;
use crate::clock::{Clock, Timestamp};
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

/// Public registries that have the provider hashicorp/null.
const PUBLIC_REGISTRIES: [&str; 2] = ["registry.terraform.io", "registry.opentofu.org"];

/// Runs the checks of one upstream up to the first that fails.
pub(super) async fn check_upstream(upstream: &Upstream, outbound: &Outbound, store: &Path, now: Timestamp) -> Findings {
    let checks_of_upstream = UpstreamCheck { upstream, outbound, host: &upstream.settings.host, now };
    let Ok(url) = upstream.settings.url.join(".well-known/terraform.json") else { return Findings::default() };
    let started = Instant::now();
    let answer = checks_of_upstream
        .fetch("its discovery document", &url, &upstream.credential_scope, discovery::MAX_DOCUMENT_BYTES)
        .await;
    let (document, mut checks) = match answer {
        Ok(document) => (document, checks_of_upstream.passed_steps(&url)),
        Err(failure) => return checks_of_upstream.failed_steps(&url, &failure).into(),
    };
    let local_time = Clock::system().now();
    let time_source =
        document.date.map(|time| machine::TimeSource { source: checks_of_upstream.host.to_string(), time, local_time });
    let elapsed_ms = started.elapsed().as_millis();
    match checks_of_upstream.check_discovery(document, elapsed_ms) {
        (check, Some((base, credential_scope))) => {
            checks.push(check);
            checks.push(checks_of_upstream.check_list(&base, &credential_scope, store).await);
        }
        (check, None) => checks.push(check),
    }
    Findings { checks, announced_times: time_source.into_iter().collect() }
}

/// Text of a fault; a refused request gets the configuration line that allows it.
fn fault_text(fault: &Fault) -> String {
    match fault {
        Fault::Refused(refusal) => {
            refusal.remedy().map_or_else(|| fault.to_string(), |line| format!("{fault}; {line}"))
        }
        fault => fault.to_string(),
    }
}

/// Reason for a missing document.
enum FetchFailure {
    /// The request failed.
    Failed(UpstreamError),
    /// No answer in time.
    Slow,
}

/// The inputs of the checks of one upstream.
struct UpstreamCheck<'a> {
    upstream: &'a Upstream,
    outbound: &'a Outbound,
    host: &'a Hostname,
    now: Timestamp,
}

impl UpstreamCheck<'_> {
    async fn fetch(
        &self,
        subject: &str,
        url: &Url,
        credential_scope: &CredentialScope,
        limit: u64,
    ) -> Result<Document, FetchFailure> {
        let via = CdnLoop::default();
        let (upstream, now) = (self.host, self.now);
        let request = UpstreamRequest {
            label: subject,
            url,
            upstream,
            credentials: credential_scope,
            via: &via,
            retries: 0,
            priority: RequestPriority::Job,
            time: RequestTime::new(now),
        };
        match timeout(PROBE_TIMEOUT, self.outbound.document(AcceptedCoding::Any, request, None, limit)).await {
            Err(_) => Err(FetchFailure::Slow),
            Ok(Err(error)) => Err(FetchFailure::Failed(error)),
            Ok(Ok(Fetched::New(document))) => Ok(document),
            Ok(Ok(Fetched::Unchanged)) => Err(FetchFailure::Failed(UpstreamError {
                subject: subject.to_owned(),
                origin: origin(url),
                fault: Fault::Unusable("304 to an unconditional request".to_owned()),
            })),
        }
    }

    fn ok(&self, id: &'static str, found: impl Into<String>) -> Check {
        Check::ok(id, found).of(self.host)
    }

    fn fail(&self, id: &'static str, found: impl Into<String>) -> Check {
        Check::fail(id, found).of(self.host)
    }

    /// The passed checks before an answer: name, connection, TLS.
    fn passed_steps(&self, url: &Url) -> Vec<Check> {
        let mut steps = vec![self.name_check(url), self.ok(CONNECTION, format!("connected to {}", origin(url)))];
        if url.scheme() == "https" {
            steps.push(self.ok(TLS, "the certificate is trusted"));
        }
        steps
    }

    /// The passed check of the upstream's name.
    fn name_check(&self, url: &Url) -> Check {
        let name = url.host_str().unwrap_or_default();
        if let Some(proxy) = self.outbound.proxy_for(url) {
            return self.ok(NAME, format!("{name} is resolved by the proxy {proxy}"));
        }
        let addresses = &self.upstream.settings.addresses;
        if !addresses.is_empty() {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            return self.ok(NAME, format!("{name} is not resolved: addresses = {}", addresses.join(", ")));
        }
        match url.host() {
            Some(Host::Domain(_)) | None => self.ok(NAME, format!("{name} resolves")),
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => self.ok(NAME, format!("{name} is an IP address")),
        }
    }

    /// The passed checks, then the failed one.
    fn failed_steps(&self, url: &Url, failure: &FetchFailure) -> Vec<Check> {
        let (origin, slow) =
            (origin(url), format!("no answer from {} within {} s", origin(url), PROBE_TIMEOUT.as_secs()));
        let error = match failure {
            FetchFailure::Failed(error) => error,
            FetchFailure::Slow => {
                return vec![self.name_check(url), self.fail(CONNECTION, slow).advise(NO_ANSWER_ADVICE)];
            }
        };
        let steps = self.passed_steps(url);
        let (passed, check) = match &error.fault {
            // A redirect led to another origin, so all checks of this origin passed.
            fault if error.origin != origin => {
                let found = format!("a redirect led to {}, which {}", error.origin, fault_text(fault));
                (steps.len(), self.fail(DISCOVERY, found).advise(REDIRECTED_ADVICE))
            }
            Fault::NoSuchName(reason) => {
                let reason = reason.rsplit(": ").next().unwrap_or_default();
                let name = url.host_str().unwrap_or_default();
                let name_text =
                    if name == self.host.as_str() { "its name".to_owned() } else { format!("the name {name}") };
                let found = format!("{name_text} does not resolve: {reason}");
                (0, self.fail(NAME, found).advise(NO_SUCH_NAME_ADVICE))
            }
            Fault::Unreachable(reason) => {
                let found = format!("{origin} cannot be reached: {}", strip_client_prefix(reason));
                (1, self.fail(CONNECTION, found).advise(self.connection_advice(url)))
            }
            Fault::Slow(_) => (1, self.fail(CONNECTION, slow).advise(self.connection_advice(url))),
            Fault::Untrusted(reason) => {
                let found = format!("{origin} is not trusted: {}", strip_client_prefix(reason));
                (2, self.fail(TLS, found).advise(UNTRUSTED_ADVICE))
            }
            fault => (
                steps.len(),
                self.fail(DISCOVERY, format!("{origin} {}", fault_text(fault))).advise(response_advice(fault)),
            ),
        };
        steps.into_iter().take(passed).chain([check]).collect()
    }

    fn connection_advice(&self, url: &Url) -> String {
        let host = url.host_str().unwrap_or_default();
        match self.outbound.proxy_for(url) {
            Some(proxy) => {
                format!("requests go through the proxy {proxy}; check that it runs, or add {host} to NO_PROXY")
            }
            None => REFUSED_ADVICE.to_owned(),
        }
    }

    /// Checks the discovery document; returns the base URL of providers.v1 with its credential scope.
    fn check_discovery(&self, document: Document, elapsed_ms: u128) -> (Check, Option<(Url, CredentialScope)>) {
        let bad = |reason: String| (self.fail(DISCOVERY, reason).advise(NO_REGISTRY_ADVICE), None);
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
                (
                    self.ok(DISCOVERY, format!("names {}, in {elapsed_ms} ms", offered.join(" and "))),
                    Some((base, credential_scope)),
                )
            }
            None if offered.is_empty() => {
                bad("its discovery document names neither providers.v1 nor modules.v1".to_owned())
            }
            None => {
                let check = Check::warn(DISCOVERY, "names modules.v1, but not providers.v1").of(self.host);
                (check.advise("larder cannot fetch providers from it; ignore this if it has none"), None)
            }
        }
    }

    /// Requests the version list of a provider that is stored, or of a well-known one.
    async fn check_list(&self, base: &Url, credential_scope: &CredentialScope, store: &Path) -> Check {
        let (folder, host) = (store.to_owned(), self.host.clone());
        let task = tokio::task::spawn_blocking(move || Store::any_cached_provider(&folder, &host));
        let stored = timeout(PROBE_TIMEOUT, task).await.ok().and_then(Result::ok).flatten();
        let Some(address) = stored.or_else(|| well_known(self.host)) else {
            return self.ok(LIST, "no list was requested: no provider of this upstream is stored yet");
        };
        let subject = format!("the version list of {}/{}", address.namespace, address.type_);
        let Ok(url) = versions_url(base, &address) else { return self.fail(LIST, "providers.v1 is not a base URL") };
        let started = Instant::now();
        match self.fetch(&subject, &url, credential_scope, MAX_LIST_BYTES).await {
            Ok(document) => match VersionList::parse(&document.body) {
                Ok(list) => {
                    let elapsed_ms = started.elapsed().as_millis();
                    self.ok(
                        LIST,
                        format!(
                            "{subject} has {} version{}, in {elapsed_ms} ms",
                            list.versions.len(),
                            if list.versions.len() == 1 { "" } else { "s" }
                        ),
                    )
                }
                Err(reason) => self.fail(LIST, format!("{subject} is invalid: {reason}")).advise(NO_REGISTRY_ADVICE),
            },
            Err(FetchFailure::Slow) => {
                let found = format!("{subject} did not arrive within {} s", PROBE_TIMEOUT.as_secs());
                self.fail(LIST, found)
                    .advise("clients wait 10 s for it, and get a stored copy after the upstream's patience")
            }
            // The provider existed when it was stored, and other lists may still exist. A 404 is therefore only a
            // warning.
            Err(FetchFailure::Failed(UpstreamError { fault: Fault::Absent(status), origin, .. })) => {
                Check::warn(LIST, format!("{origin} does not have {subject} ({status})"))
                    .of(self.host)
                    .advise("it may have been deleted there; otherwise check providers.v1 in its discovery document")
            }
            Err(FetchFailure::Failed(error)) => {
                self.fail(LIST, error.to_string()).advise(response_advice(&error.fault))
            }
        }
    }
}

/// A provider that a public registry certainly has.
fn well_known(host: &Hostname) -> Option<ProviderAddress> {
    let is_public = PUBLIC_REGISTRIES.contains(&host.as_str());
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
