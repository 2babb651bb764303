//! The only outbound connector. It checks every hop against the egress policy, follows redirects itself, applies limits
//! on time, size and retries, and sends credentials to their origins only. Offline, it sends nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Response};
use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use tokio::time::timeout;
use url::Url;

use super::Traffic;
use super::backoff::{Origin, RequestObserver, UpstreamBackoff};
use super::clients::{Clients, ConnectorError};
use super::egress_policy::{EgressPolicy, EgressRefusal, HttpClientKind};
use super::error::{Fault, UpstreamError, sanitized};
use super::limits::{ConcurrencyLimits, DocumentMemory, MemoryGrant, Permit, UpstreamLimits};
use super::request::{
    AcceptedCoding, Document, Fetched, IncomingBody, IncomingFile, RequestPriority, UpstreamRequest, Validators,
    content_range, fault_of_client_error, header_text, retry_after, server_time,
};
use crate::cdn_loop::OwnEntry;
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
#[derive(Debug, Clone)]
pub struct Outbound {
    pub(super) clients: Clients,
    egress_policy: Arc<EgressPolicy>,
    /// True if this configuration says that larder is offline.
    is_configured_offline: bool,
    /// True if larder is offline now. Shared with the connectors of earlier configurations (promise 12).
    is_offline: Arc<AtomicBool>,
    own_entry: OwnEntry,
    pub(super) traffic: Traffic,
    /// The circuit breakers and rate limits.
    pub backoff: UpstreamBackoff,
    document_permits: ConcurrencyLimits,
    archive_permits: ConcurrencyLimits,
    document_memory: Arc<DocumentMemory>,
    /// The memory of the largest git objects: apart, so that a slow repository leaves the documents theirs.
    pub(super) git_memory: Arc<DocumentMemory>,
    /// Permits for git fetches.
    pub(super) git_permits: ConcurrencyLimits,
    /// Permits for git requests that only resolve a ref to a commit.
    pub(super) resolve_permits: ConcurrencyLimits,
    pub(super) limits: UpstreamLimits,
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
        let egress_policy = Arc::new(EgressPolicy::new(&network.allow_private));
        Ok(Self {
            clients: Clients::new(network, Vec::new(), upstreams, &egress_policy)?,
            egress_policy,
            is_configured_offline: network.offline,
            is_offline: Arc::new(AtomicBool::new(network.offline)),
            own_entry,
            traffic,
            backoff: UpstreamBackoff::new(limits.revalidation_rate, limits.job_rate),
            document_permits: ConcurrencyLimits::new(limits.documents),
            archive_permits: ConcurrencyLimits::new(limits.archives),
            document_memory: DocumentMemory::new(limits.document_memory),
            git_memory: DocumentMemory::new(limits.document_memory),
            git_permits: ConcurrencyLimits::new(limits.git_fetches),
            resolve_permits: ConcurrencyLimits::new(limits.git_resolves),
            limits,
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
        let egress_policy = Arc::new(EgressPolicy::new(&network.allow_private));
        let clients = Clients::new(network, Vec::new(), upstreams, &egress_policy)?;
        upstreams.iter().for_each(|upstream| self.traffic.create_counters(&upstream.host));
        Ok(Self { clients, egress_policy, is_configured_offline: network.offline, ..self.clone() })
    }

    /// Makes a connector that also trusts certificates by these authorities, and shares all else with this one.
    ///
    /// # Errors
    /// [`ConnectorError`] for unusable certificates.
    pub fn trusting(
        &self,
        config: &config::Config,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, ConnectorError> {
        let clients = Clients::new(&config.network, authorities, &config.upstreams, &self.egress_policy)?;
        Ok(Self { clients, ..self.clone() })
    }

    /// Applies this configuration's online or offline setting to all connectors, including those of earlier
    /// configurations that running work still uses.
    pub fn apply_connectivity(&self) {
        self.is_offline.store(self.is_configured_offline, Ordering::SeqCst);
    }

    /// Online or offline now.
    pub fn connectivity(&self) -> Connectivity {
        if self.is_offline.load(Ordering::SeqCst) { Connectivity::Offline } else { Connectivity::Online }
    }

    /// The proxy for a request to `url`, from the environment, without userinfo.
    pub fn proxy_for(&self, url: &Url) -> Option<String> {
        let proxy = self.egress_policy.proxy_for(url)?;
        let authority = proxy.authority()?.as_str();
        let (_, host_and_port) = authority.rsplit_once('@').unwrap_or(("", authority));
        Some(format!("{}://{host_and_port}", proxy.scheme_str().unwrap_or("http")))
    }

    /// Larder's entry in CDN-Loop.
    pub fn own_entry(&self) -> &OwnEntry {
        &self.own_entry
    }

    /// Time limit for an upstream's answer.
    pub fn give_up_after(&self) -> Duration {
        self.limits.give_up_after
    }

    /// Time limit until the first byte from a git repository.
    pub(super) fn first_byte_timeout(&self) -> Duration {
        self.limits.give_up_after.min(self.limits.git.idle)
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
        let limit = self.limits.give_up_after;
        let slow = || Fault::Slow(format!("no whole answer within {} s", limit.as_secs()));
        timeout(limit, answer).await.unwrap_or_else(|_| Err(request.failed_at(request.url, slow())))
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

    /// Takes a permit. Fails after the longest wait that `permits` allows. `origin` and `reason` are for the error.
    pub(super) async fn permit(
        &self,
        permits: &ConcurrencyLimits,
        request: UpstreamRequest<'_>,
        origin: impl FnOnce() -> String,
        reason: &str,
    ) -> Result<Permit, UpstreamError> {
        let permit = permits.take(request.upstream, request.priority).await;
        permit.ok_or_else(|| request.failed(origin(), Fault::LocalLimit(reason.to_owned())))
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
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
pub(super) struct UpstreamResponse {
    pub(super) response: Response,
    /// Final URL after redirects.
    pub(super) url: Url,
    /// The requested origins, in the order of the redirects.
    origins: Vec<Origin>,
    /// Observes the last hop until its body is complete. `None` if the status of that hop was not a success.
    pub(super) observer: Option<RequestObserver>,
}

impl Outbound {
    /// Sends a request with a safe method and follows its redirects.
    pub(super) async fn follow(
        &self,
        method: Method,
        coding: AcceptedCoding,
        request: UpstreamRequest<'_>,
        headers: &HeaderMap,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let mut url = request.url.clone();
        let mut origins = Vec::new();
        for _ in 0..=MAX_HOPS {
            origins.push(Origin::of(&url));
            let build = |builder: RequestBuilder| builder.headers(headers.clone());
            let (response, observer) = self.hop(coding, method.clone(), request, &url, build).await?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(UpstreamResponse { response, url, origins, observer });
            }
            let target_url =
                header_text(response.headers(), header::LOCATION).and_then(|location| url.join(location).ok());
            url = target_url.ok_or_else(|| request.unusable(&url, "a redirect without a valid Location"))?;
        }
        Err(request.unusable(&url, format!("more than {MAX_HOPS} redirects")))
    }

    /// Returns the response, its body unread, if its status is a success. The success is recorded now, because the body
    /// has time limits of its own.
    pub(super) async fn checked_head(
        &self,
        request: UpstreamRequest<'_>,
        url: &Url,
        response: Response,
        observer: Option<RequestObserver>,
    ) -> Result<Response, UpstreamError> {
        observer.into_iter().for_each(RequestObserver::record_success);
        self.check_status(response, request, url).await
    }

    /// Sends one request to one origin, with the credential for that origin. A redirect is returned as an answer.
    pub(super) async fn hop(
        &self,
        coding: AcceptedCoding,
        method: Method,
        request: UpstreamRequest<'_>,
        url: &Url,
        build: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<(Response, Option<RequestObserver>), UpstreamError> {
        let client = match self.checked_client(url, request) {
            Ok(kind) => self.clients.client(kind, coding),
            Err(refusal) => return Err(self.refusal_error(request, url, refusal)),
        };
        let mut builder =
            build(client.request(method, url.clone())).header(CDN_LOOP, request.cdn_loop.with(&self.own_entry));
        if let Some((name, value)) = request.credentials.header_for(url) {
            builder = builder.header(name, value);
        }
        let observer = self.backoff.observe(request.upstream, url, request.request_time);
        let response = match builder.send().await.map_err(|e| fault_of_client_error(&e)) {
            Ok(response) => response,
            Err(Fault::Refused(refusal)) => return Err(self.refusal_error(request, url, refusal)),
            Err(fault) => {
                self.traffic.count_request(request.upstream, None);
                observer.record_failure(&fault.to_string());
                return Err(request.failed_at(url, fault));
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
    pub(super) fn refusal_error(
        &self,
        request: UpstreamRequest<'_>,
        url: &Url,
        refusal: EgressRefusal,
    ) -> UpstreamError {
        self.traffic.count_refusal(request.upstream, &refusal);
        request.failed_at(url, Fault::Refused(refusal))
    }
}

impl Outbound {
    /// Requests a file from byte `start`, on condition that the stored validators still match.
    ///
    /// The server may send the file from its first byte instead: see [`IncomingFile::body_offset`].
    pub async fn file(
        &self,
        request: UpstreamRequest<'_>,
        start: u64,
        validators: &Validators,
    ) -> Result<IncomingFile, UpstreamError> {
        let mut conditions = HeaderMap::new();
        if start > 0 {
            insert(&mut conditions, header::RANGE, Some(&format!("bytes={start}-")));
            insert(&mut conditions, header::IF_RANGE, validators.for_range());
        }
        let attempt = || async {
            let mut permit_request = request;
            if start > 0 && request.priority == RequestPriority::Client {
                permit_request.priority = RequestPriority::ClientResumption;
            }
            let (permits, origin) = (&self.archive_permits, || origin(request.url));
            let permit = self.permit(permits, permit_request, origin, ALL_ARCHIVE_PERMITS_TAKEN).await?;
            let follow = |conditions| self.follow(Method::GET, AcceptedCoding::Identity, request, conditions);
            let mut answer = follow(&conditions).await?;
            let mut start = start;
            if answer.response.status() == StatusCode::RANGE_NOT_SATISFIABLE && start > 0 {
                answer = follow(&HeaderMap::new()).await?;
                start = 0;
            }
            // The caller resumes a broken body.
            let response = self.checked_head(request, &answer.url, answer.response, answer.observer).await?;
            self.incoming(response, request, &answer.url, start, permit)
        };
        self.with_retries(request, attempt).await
    }

    /// The length of a file by HEAD; `None` if the server does not announce it.
    pub async fn announced_length(&self, request: UpstreamRequest<'_>) -> Result<Option<u64>, UpstreamError> {
        let fetch_length = async {
            let _permit = self.document_permit(request).await?;
            let answer = self.follow(Method::HEAD, AcceptedCoding::Identity, request, &HeaderMap::new()).await?;
            let response = self.checked_head(request, &answer.url, answer.response, answer.observer).await?;
            Ok(header_text(response.headers(), header::CONTENT_LENGTH).and_then(|length| length.parse().ok()))
        };
        self.with_time_limit(request, fetch_length).await
    }

    async fn document_permit(&self, request: UpstreamRequest<'_>) -> Result<Permit, UpstreamError> {
        self.permit(&self.document_permits, request, || origin(request.url), ALL_DOCUMENT_PERMITS_TAKEN).await
    }

    fn incoming(
        &self,
        response: Response,
        request: UpstreamRequest<'_>,
        url: &Url,
        requested_start: u64,
        permit: Permit,
    ) -> Result<IncomingFile, UpstreamError> {
        let unusable = |reason: &str| request.unusable(url, reason);
        let announced_length = response.content_length();
        let (body_offset, length) = match response.status().as_u16() {
            206 => {
                let range = header_text(response.headers(), header::CONTENT_RANGE).and_then(content_range);
                let (start, total) = range.ok_or_else(|| unusable("a 206 without a usable Content-Range"))?;
                if start != requested_start {
                    return Err(unusable("another range than the requested one"));
                }
                (start, total.or(announced_length.and_then(|remaining| start.checked_add(remaining))))
            }
            _ => (0, announced_length),
        };
        let validators = Validators::of(response.headers());
        Ok(IncomingFile {
            body: IncomingBody::Response(response),
            body_offset,
            length,
            validators,
            subject: request.subject.to_owned(),
            origin: origin(url),
            bytes_counter: self.traffic.bytes_counter(request.upstream),
            _permit: Some(permit),
        })
    }
}

const ALL_ARCHIVE_PERMITS_TAKEN: &str = "the limit of simultaneous archive fetches is reached";
const ALL_DOCUMENT_PERMITS_TAKEN: &str = "the limit of simultaneous document fetches is reached";
const MAX_ERROR_BODY_BYTES: u64 = 64 * 1024;
/// Number of upstream's error texts that an error quotes.
const MAX_ERRORS: usize = 8;
const X_TERRAFORM_GET: HeaderName = HeaderName::from_static("x-terraform-get");

impl Outbound {
    /// Fetches a document of at most `limit` bytes, conditionally if `validators` are given. Fails if the document is
    /// incomplete after the time limit.
    pub async fn document(
        &self,
        coding: AcceptedCoding,
        request: UpstreamRequest<'_>,
        validators: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        let mut conditions = HeaderMap::new();
        if let Some(stored) = validators {
            insert(&mut conditions, header::IF_NONE_MATCH, stored.etag.as_deref());
            insert(&mut conditions, header::IF_MODIFIED_SINCE, stored.last_modified.as_deref());
        }
        let attempt = || async {
            let _permit = self.document_permit(request).await?;
            let UpstreamResponse { response, url, origins, observer } =
                self.follow(Method::GET, coding, request, &conditions).await?;
            if response.status() == StatusCode::NOT_MODIFIED && !conditions.is_empty() {
                return Ok(Fetched::Unchanged);
            }
            let response = self.check_status(response, request, &url).await?;
            let headers = response.headers();
            let text = |name| header_text(headers, name).map(str::to_owned);
            let (content_type, location) = (text(header::CONTENT_TYPE), text(X_TERRAFORM_GET));
            let (validators, date) = (Validators::of(headers), server_time(headers));
            // A time limit of the caller drops the observer with the body.
            let observer = observer.map(RequestObserver::awaiting_body);
            let body = self.body(response, request, &url, limit).await;
            // A limit of larder says nothing about the origin.
            let is_own_limit =
                |error: &&UpstreamError| matches!(error.fault, Fault::TooLarge(_) | Fault::LocalLimit(_));
            if let Some(observer) = observer {
                match body.as_ref().err().filter(|error| !is_own_limit(error)) {
                    None => observer.record_success(),
                    Some(error) => observer.record_failure(&error.fault.to_string()),
                }
            }
            let (body, memory) = body?;
            Ok(Fetched::New(Document { body, content_type, validators, url, origins, location, date, memory }))
        };
        self.with_time_limit(request, self.with_retries(request, attempt)).await
    }

    /// Returns the response if its status is a success. Otherwise makes the error, with the `errors` of its body.
    async fn check_status(
        &self,
        response: Response,
        request: UpstreamRequest<'_>,
        url: &Url,
    ) -> Result<Response, UpstreamError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), request.request_time.now());
        // Upstream's error texts are optional. A failure to read them must not replace the status.
        let (body, _memory) = self.body(response, request, url, MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
        let errors = serde_json::from_slice::<UpstreamErrorBody>(&body).map(|body| body.errors).unwrap_or_default();
        let shown = |text: &String| sanitized(request.credentials.text_without_credentials(text));
        let errors = errors.iter().take(MAX_ERRORS).map(shown).collect();
        Err(request.failed_at(url, Fault::of_status(status.as_u16(), retry_after, errors)))
    }

    async fn body(
        &self,
        mut response: Response,
        request: UpstreamRequest<'_>,
        url: &Url,
        limit: u64,
    ) -> Result<(Bytes, MemoryGrant), UpstreamError> {
        let mut body = BytesMut::new();
        let mut memory = self.document_memory.start(request.upstream, 0);
        let mut grow_to = |length: u64| {
            if length > limit {
                return Err(request.failed_at(url, Fault::TooLarge(limit)));
            }
            memory.grow_to(length).map_err(|reached| request.failed_at(url, Fault::LocalLimit(reached.to_string())))
        };
        grow_to(response.content_length().unwrap_or_default())?;
        let received_bytes = self.traffic.bytes_counter(request.upstream);
        while let Some(chunk) = response.chunk().await.map_err(|e| request.failed_at(url, fault_of_client_error(&e)))? {
            received_bytes.inc_by(chunk.len() as u64);
            grow_to((body.len() + chunk.len()) as u64)?;
            body.extend_from_slice(&chunk);
        }
        Ok((body.freeze(), memory.into_grant()))
    }
}

#[derive(Deserialize)]
struct UpstreamErrorBody {
    errors: Vec<String>,
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::address::Hostname;
    use crate::cdn_loop::CdnLoop;
    use crate::clock::Timestamp;
    use crate::upstream::CredentialScope;
    use crate::upstream::backoff::RequestTime;

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

    /// Every kind of request fails if upstream does not finish its answer in time (promise 11).
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
            let (cdn_loop, credential_scope) = (CdnLoop::default(), CredentialScope::of(&upstreams[0], &[], &[]));
            let (priority, now) = (RequestPriority::Client, Timestamp(1_700_000_000));
            let request = UpstreamRequest {
                subject: "x",
                url: &url,
                upstream: &host,
                credentials: &credential_scope,
                cdn_loop: &cdn_loop,
                retries: 2,
                priority,
                request_time: RequestTime::new(now),
            };
            let mut results = vec![
                outbound.document(AcceptedCoding::Any, request, None, 1000).await.map(drop),
                outbound.document(AcceptedCoding::Identity, request, None, 1000).await.map(drop),
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
