//! The only outbound connector. It checks every hop against the egress policy, follows redirects itself, applies limits
//! on time, size and retries, and sends credentials to their origins only. Offline, it sends nothing.

mod bodies;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::RequestBuilder;
use tokio::time::timeout;
use url::Url;

use super::Traffic;
use super::backoff::{BudgetPurpose, Rates, RequestObserver, RequestTime, RevalidationPermit, UpstreamBackoff};
use super::breaker::Origin;
use super::clients::{AcceptedCoding, Clients, ConnectorError};
use super::concurrency_limits::{ConcurrencyLimits, Permit};
use super::egress_policy::{EgressPolicy, EgressRefusal, HttpClientKind};
use super::error::{Fault, UpstreamError};
use super::limits::{GitLimits, UpstreamLimits};
use super::memory_budget::DocumentMemory;
use super::request::{RequestPriority, UpstreamRequest, fault_of_client_error};
use crate::address::Hostname;
use crate::cdn_loop::OwnEntry;
use crate::clock::Timestamp;
use crate::config;

const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Online or offline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connectivity {
    /// Outbound requests are allowed.
    Online,
    /// Sealed: no outbound traffic at all.
    Offline,
}

/// The connector of one configuration.
#[derive(Debug)]
pub struct Outbound {
    pub(super) clients: Clients,
    pub(super) egress_policy: EgressPolicy,
    /// Online or offline, as this configuration says.
    configured_connectivity: Connectivity,
    /// True if larder is offline now. Shared with the connectors of earlier configurations (DESIGN, promise 12).
    is_offline: Arc<AtomicBool>,
    own_entry: OwnEntry,
    pub(super) traffic: Traffic,
    pub(super) backoff: UpstreamBackoff,
    pub(super) document_permits: ConcurrencyLimits,
    pub(super) archive_permits: ConcurrencyLimits,
    document_memory: DocumentMemory,
    give_up_after: Duration,
    /// Permits for git fetches.
    pub(super) git_permits: ConcurrencyLimits,
    /// Permits for git fetches that only resolve a name.
    pub(super) resolve_permits: ConcurrencyLimits,
    pub(super) git_limits: GitLimits,
}

impl Outbound {
    /// Builds the connector. Reads the trusted certificates, and the proxies of the environment.
    pub fn new(
        network: &config::Network,
        upstreams: &[config::Upstream],
        own_entry: OwnEntry,
        traffic: Traffic,
        limits: UpstreamLimits,
    ) -> Result<Self, ConnectorError> {
        upstreams.iter().for_each(|upstream| traffic.create_counters(&upstream.host));
        let backoff = UpstreamBackoff::new(Rates { revalidations: limits.revalidation_rate, jobs: limits.job_rate });
        let (clients, egress_policy, configured_connectivity) = configured_parts(network, upstreams)?;
        Ok(Self {
            clients,
            egress_policy,
            configured_connectivity,
            is_offline: Arc::new(AtomicBool::new(configured_connectivity == Connectivity::Offline)),
            own_entry,
            traffic,
            backoff,
            document_permits: ConcurrencyLimits::new(limits.documents),
            archive_permits: ConcurrencyLimits::new(limits.archives),
            document_memory: DocumentMemory::new(limits.document_memory),
            give_up_after: limits.give_up_after,
            git_permits: ConcurrencyLimits::new(limits.git_fetches),
            resolve_permits: ConcurrencyLimits::new(limits.git_resolves),
            git_limits: limits.git,
        })
    }

    /// Makes a connector for another configuration, which shares limits and breakers with this connector. The online or
    /// offline setting changes only with [`apply_connectivity`](Self::apply_connectivity).
    ///
    /// # Errors
    /// [`ConnectorError`] for unusable certificates.
    pub fn reconfigured(
        &self,
        network: &config::Network,
        upstreams: &[config::Upstream],
    ) -> Result<Self, ConnectorError> {
        let (clients, egress_policy, configured_connectivity) = configured_parts(network, upstreams)?;
        upstreams.iter().for_each(|upstream| self.traffic.create_counters(&upstream.host));
        Ok(Self {
            clients,
            egress_policy,
            configured_connectivity,
            is_offline: Arc::clone(&self.is_offline),
            own_entry: self.own_entry.clone(),
            traffic: self.traffic.clone(),
            backoff: self.backoff.clone(),
            document_permits: self.document_permits.clone(),
            archive_permits: self.archive_permits.clone(),
            document_memory: self.document_memory.clone(),
            give_up_after: self.give_up_after,
            git_permits: self.git_permits.clone(),
            resolve_permits: self.resolve_permits.clone(),
            git_limits: self.git_limits,
        })
    }

    /// Applies this configuration's online or offline setting to all connectors, including those of earlier
    /// configurations that running work still uses.
    pub fn apply_connectivity(&self) {
        self.is_offline.store(self.configured_connectivity == Connectivity::Offline, Ordering::SeqCst);
    }

    /// Returns a permit to revalidate at these origins; `None` while a breaker is open. `enclosing` is that of the
    /// enclosing work.
    pub fn revalidation_permit(
        &self,
        origins: &[Origin],
        enclosing: &RevalidationPermit,
        now: Timestamp,
    ) -> Option<RevalidationPermit> {
        self.backoff.revalidation_permit(origins, enclosing, now)
    }

    /// Takes requests from an upstream's rate limit. Takes none and returns false if too few are left.
    pub fn spend(&self, upstream: &Hostname, purpose: BudgetPurpose, requests: u32, now: Timestamp) -> bool {
        self.backoff.spend(upstream, purpose, requests, now)
    }

    /// The end of the longest Retry-After of these origins, or of any other origin that this upstream led to.
    pub fn retry_after_until(&self, upstream: &Hostname, origins: &[Origin], now: Timestamp) -> Option<Timestamp> {
        self.backoff.retry_after_until(upstream, origins, now)
    }

    /// Records that a client waited `patience` for these origins, and got the cached copy instead of an answer.
    pub fn record_client_timeout(&self, upstream: &Hostname, origins: &[Origin], patience: Duration, now: Timestamp) {
        self.backoff.record_client_timeout(upstream, origins, patience, now);
    }

    /// The upstreams and origins with an open breaker, and the end of each pause.
    pub fn open_breakers(&self, now: Timestamp) -> Vec<(Hostname, Origin, Timestamp)> {
        self.backoff.open_breakers(now)
    }

    /// Online or offline now.
    pub fn connectivity(&self) -> Connectivity {
        if self.is_offline.load(Ordering::SeqCst) { Connectivity::Offline } else { Connectivity::Online }
    }

    /// The proxy for a request to `url`, from the environment, without userinfo.
    pub fn proxy_for(&self, url: &Url) -> Option<String> {
        self.egress_policy
            .proxy_for(url)
            .map(|proxy| format!("{}://{}", proxy.scheme_str().unwrap_or("http"), host_and_port(&proxy)))
    }

    /// Larder's entry in CDN-Loop.
    pub fn own_entry(&self) -> &OwnEntry {
        &self.own_entry
    }

    /// Time limit for an upstream's answer.
    pub fn give_up_after(&self) -> Duration {
        self.give_up_after
    }

    /// Time limit until the first byte from a git repository.
    pub(super) fn first_byte_timeout(&self) -> Duration {
        self.give_up_after.min(self.git_limits.idle)
    }

    /// Applies the time limit to a request, including the wait for a permit.
    ///
    /// # Errors
    /// [`Fault::Slow`] after the limit, or the error of the request.
    async fn with_time_limit<T>(
        &self,
        request: UpstreamRequest<'_>,
        answer: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        let limit = self.give_up_after;
        let slow = || Fault::Slow(format!("no whole answer within {} s", limit.as_secs()));
        timeout(limit, answer).await.unwrap_or_else(|_| Err(failure(request, request.url, slow())))
    }

    /// Runs `attempt`, and repeats it after a temporary failure.
    pub(super) async fn with_retries<T, F: Future<Output = Result<T, UpstreamError>>>(
        &self,
        request: UpstreamRequest<'_>,
        attempt: impl FnMut() -> F,
    ) -> Result<T, UpstreamError> {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_times(request.retries)
            .with_jitter();
        // A retry may help a waiting client at once. A job has time, and respects Retry-After.
        let is_worth_a_retry = |fault: &Fault| {
            fault.is_temporary() && !(request.priority == RequestPriority::Job && fault.has_retry_after())
        };
        attempt.retry(pauses).when(|error| is_worth_a_retry(&error.fault)).await
    }

    /// Takes a permit, waiting as long as its limit allows. `subject` is the plural of the fetched kind: "documents".
    async fn permit(
        &self,
        permits: &ConcurrencyLimits,
        request: UpstreamRequest<'_>,
        subject: &str,
    ) -> Result<Permit, UpstreamError> {
        let limit_reached = || {
            let reason = format!("as many {subject} are being fetched as may be at one time");
            failure(request, request.url, Fault::LocalLimit(reason))
        };
        permits.take(request.upstream, request.priority).await.ok_or_else(limit_reached)
    }
}

/// Builds the parts of a connector that follow from the configuration alone.
fn configured_parts(
    network: &config::Network,
    upstreams: &[config::Upstream],
) -> Result<(Clients, EgressPolicy, Connectivity), ConnectorError> {
    let egress_policy = EgressPolicy::new(upstreams, &network.allow_private);
    let connectivity = if network.offline { Connectivity::Offline } else { Connectivity::Online };
    Ok((Clients::new(network, upstreams, &egress_policy)?, egress_policy, connectivity))
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

/// Makes the error of a request. The error names the origin of `url` only.
pub(super) fn failure(request: UpstreamRequest<'_>, url: &Url, fault: Fault) -> UpstreamError {
    UpstreamError { subject: request.label.to_owned(), origin: origin(url), fault }
}

fn host_and_port(uri: &http::Uri) -> String {
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", uri.host().unwrap_or_default())
}

/// The origin of a URL. Errors and logs show no other part, because the rest may contain secrets.
pub fn origin(url: &Url) -> String {
    match url.origin() {
        url::Origin::Opaque(_) => format!("{}:", url.scheme()),
        origin => origin.ascii_serialization(),
    }
}

const MAX_HOPS: usize = 10;

/// The answer after redirects, with its body unread.
pub(in crate::upstream) struct UpstreamResponse {
    pub(in crate::upstream) response: reqwest::Response,
    /// Final URL after redirects.
    pub(in crate::upstream) url: Url,
    /// The requested origins, in the order of the redirects.
    pub(in crate::upstream) origins: Vec<Origin>,
    /// Observes the last hop until its body is complete. `None` if the status of that hop was not a success.
    pub(in crate::upstream) observer: Option<RequestObserver>,
}

impl Outbound {
    /// Sends a GET request and follows its redirects.
    pub(in crate::upstream) async fn follow(
        &self,
        coding: AcceptedCoding,
        request: UpstreamRequest<'_>,
        conditions: &HeaderMap,
        request_time: RequestTime,
    ) -> Result<UpstreamResponse, UpstreamError> {
        self.follow_with_method(Method::GET, coding, request, conditions, request_time).await
    }

    /// Like [`follow`](Self::follow), with another safe method.
    pub(in crate::upstream) async fn follow_with_method(
        &self,
        method: Method,
        coding: AcceptedCoding,
        request: UpstreamRequest<'_>,
        conditions: &HeaderMap,
        request_time: RequestTime,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let mut url = request.url.clone();
        let mut origins = Vec::new();
        for _ in 0..=MAX_HOPS {
            origins.push(Origin::of(&url));
            let build = |builder: RequestBuilder| builder.headers(conditions.clone());
            let (response, observer) = self.hop(coding, method.clone(), request, &url, build, request_time).await?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(UpstreamResponse { response, url, origins, observer });
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let target_url = location.and_then(|location| url.join(location).ok());
            url = target_url
                .ok_or_else(|| failure(request, &url, Fault::Unusable("a redirect without a valid Location".into())))?;
        }
        Err(failure(request, &url, Fault::Unusable(format!("more than {MAX_HOPS} redirects"))))
    }

    /// Sends one request to one origin, with the credential for that origin. A redirect is returned as an answer.
    pub(in crate::upstream) async fn hop(
        &self,
        coding: AcceptedCoding,
        method: Method,
        request: UpstreamRequest<'_>,
        url: &Url,
        build: impl FnOnce(RequestBuilder) -> RequestBuilder,
        request_time: RequestTime,
    ) -> Result<(reqwest::Response, Option<RequestObserver>), UpstreamError> {
        let client = match self.checked_client(url, request) {
            Ok(kind) => self.clients.client(kind, coding),
            Err(refusal) => return Err(self.refusal_error(request, url, refusal)),
        };
        let mut builder =
            build(client.request(method, url.clone())).header(CDN_LOOP, request.via.with(&self.own_entry));
        if let Some((name, value)) = request.credentials.header_for(url) {
            builder = builder.header(name, value);
        }
        let observer = self.backoff.observe(request.upstream, url, request_time);
        let response = match builder.send().await.map_err(|e| fault_of_client_error(&e)) {
            Ok(response) => response,
            Err(Fault::Refused(refusal)) => return Err(self.refusal_error(request, url, refusal)),
            Err(fault) => {
                self.traffic.count_request(request.upstream, None);
                observer.record_failure(&fault.to_string());
                return Err(failure(request, url, fault));
            }
        };
        self.traffic.count_request(request.upstream, Some(response.status().as_u16()));
        let observer = observer.record_head(response.status(), response.headers());
        Ok((response, observer))
    }

    fn checked_client(&self, url: &Url, request: UpstreamRequest<'_>) -> Result<HttpClientKind, EgressRefusal> {
        match self.connectivity() {
            Connectivity::Online => self.egress_policy.check(url, request.credentials),
            Connectivity::Offline => Err(EgressRefusal::Offline),
        }
    }

    /// Counts a refusal and makes its error.
    pub(in crate::upstream) fn refusal_error(
        &self,
        request: UpstreamRequest<'_>,
        url: &Url,
        refusal: EgressRefusal,
    ) -> UpstreamError {
        self.traffic.count_refusal(request.upstream, &refusal);
        failure(request, url, Fault::Refused(refusal))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::cdn_loop::CdnLoop;
    use crate::upstream::CredentialScope;

    /// Starts a server that sends `answer` to each client and then stays silent. Returns its URL.
    async fn start_silent_server(answer: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut open_streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
                open_streams.push(stream);
            }
        });
        Url::parse(&format!("http://127.0.0.1:{port}/")).unwrap()
    }

    /// Every kind of request fails if upstream does not finish its answer in time (DESIGN, promise 11; DESIGN, section
    /// 4).
    #[tokio::test]
    async fn every_kind_of_request_has_a_time_limit() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let host = Hostname::parse("registry.example").unwrap();
        let partial_body = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx";
        for (answer, stops_in_body) in [("", false), ("HTTP/1.1 200 OK\r\n", false), (partial_body, true)] {
            let url = start_silent_server(answer).await;
            let upstreams = [config::Upstream::at(host.clone(), url.clone())];
            let limits = UpstreamLimits { give_up_after: Duration::from_millis(300), ..UpstreamLimits::default() };
            let (network, own_entry) = (config::Config::default().network, OwnEntry::random().unwrap());
            let outbound = Outbound::new(&network, &upstreams, own_entry, Traffic::default(), limits).unwrap();
            let (via, credential_scope) = (CdnLoop::default(), CredentialScope::default());
            let (priority, now) = (RequestPriority::Client, Timestamp(1_700_000_000));
            let request = UpstreamRequest {
                label: "x",
                url: &url,
                upstream: &host,
                credentials: &credential_scope,
                via: &via,
                retries: 2,
                priority,
                now,
            };
            let mut results = vec![
                outbound.document(request, None, 1000).await.map(drop),
                outbound.small_file(request, None, 1000).await.map(drop),
            ];
            // The answer to HEAD has no body.
            if !stops_in_body {
                results.push(outbound.announced_length(request).await.map(drop));
            }
            for result in results {
                assert!(matches!(&result, Err(UpstreamError { fault: Fault::Slow(_), .. })), "{answer}: {result:?}");
            }
        }
    }
}
