//! The only outbound connector. It checks every hop against the egress policy, follows redirects itself, applies limits
//! on time, size and retries, and sends credentials to their origins only. Offline, it sends nothing.

mod documents;
mod files;
mod hops;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;
use url::Url;

pub(super) use self::hops::UpstreamResponse;
use super::Traffic;
use super::backoff::{BudgetPurpose, Rates, RevalidationPermit, UpstreamBackoff};
use super::breaker::Origin;
use super::clients::{Clients, ConnectorError};
use super::concurrency_limits::{ConcurrencyLimits, Permit};
use super::egress_policy::EgressPolicy;
use super::error::{Fault, UpstreamError};
use super::limits::{GitLimits, UpstreamLimits};
use super::memory_budget::DocumentMemory;
use super::request::{RequestPriority, UpstreamRequest};
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
    pub(super) guard: EgressPolicy,
    /// The setting of this configuration.
    link: Connectivity,
    /// The effective setting, shared with the connectors of earlier configurations (DESIGN, promise 12).
    sealed: Arc<AtomicBool>,
    own: OwnEntry,
    pub(super) traffic: Traffic,
    pub(super) backoff: UpstreamBackoff,
    pub(super) document_permits: ConcurrencyLimits,
    pub(super) archive_permits: ConcurrencyLimits,
    document_memory: DocumentMemory,
    give_up_after: Duration,
    /// Permits for git fetches.
    pub(super) git_permits: ConcurrencyLimits,
    /// Permits for git jobs that only resolve a name.
    pub(super) resolve_permits: ConcurrencyLimits,
    pub(super) git_limits: GitLimits,
}

impl Outbound {
    /// Builds the connector: trust, addresses, proxies from the environment.
    pub fn new(
        network: &config::Network,
        upstreams: &[config::Upstream],
        own: OwnEntry,
        traffic: Traffic,
        bounds: UpstreamLimits,
    ) -> Result<Self, ConnectorError> {
        upstreams.iter().for_each(|upstream| traffic.expect(&upstream.host));
        let restraint = UpstreamBackoff::new(Rates { revalidations: bounds.revalidation_rate, jobs: bounds.job_rate });
        let (clients, guard, link) = configured_parts(network, upstreams)?;
        Ok(Self {
            clients,
            guard,
            link,
            sealed: Arc::new(AtomicBool::new(link == Connectivity::Offline)),
            own,
            traffic,
            backoff: restraint,
            document_permits: ConcurrencyLimits::new(bounds.documents),
            archive_permits: ConcurrencyLimits::new(bounds.archives),
            document_memory: DocumentMemory::new(bounds.document_memory),
            give_up_after: bounds.give_up_after,
            git_permits: ConcurrencyLimits::new(bounds.git_jobs),
            resolve_permits: ConcurrencyLimits::new(bounds.git_resolves),
            git_limits: bounds.git,
        })
    }

    /// Makes a connector for another configuration, which shares limits and breakers with this one. The online or
    /// offline setting changes only when it [comes into force](Self::apply_connectivity).
    ///
    /// # Errors
    /// [`ConnectorError`].
    pub fn reconfigured(
        &self,
        network: &config::Network,
        upstreams: &[config::Upstream],
    ) -> Result<Self, ConnectorError> {
        let (clients, guard, link) = configured_parts(network, upstreams)?;
        upstreams.iter().for_each(|upstream| self.traffic.expect(&upstream.host));
        Ok(Self {
            clients,
            guard,
            link,
            sealed: Arc::clone(&self.sealed),
            own: self.own.clone(),
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
        self.sealed.store(self.link == Connectivity::Offline, Ordering::SeqCst);
    }

    /// Permission to revalidate at these origins; `None` while a breaker is open. `permit` is that of the enclosing
    /// work.
    pub fn revalidation_permit(
        &self,
        origins: &[Origin],
        permit: &RevalidationPermit,
        now: Timestamp,
    ) -> Option<RevalidationPermit> {
        self.backoff.revalidation_permit(origins, permit, now)
    }

    /// Takes requests from an upstream's rate limit. Takes none and returns false if too few are left.
    pub fn spend(&self, upstream: &Hostname, on: BudgetPurpose, requests: u32, now: Timestamp) -> bool {
        self.backoff.spend(upstream, on, requests, now)
    }

    /// The end of the longest Retry-After of these origins, or of any other origin that this upstream led to.
    pub fn retry_after_until(&self, upstream: &Hostname, origins: &[Origin], now: Timestamp) -> Option<Timestamp> {
        self.backoff.retry_after_until(upstream, origins, now)
    }

    /// Records that a client's `patience` with these origins ran out.
    pub fn out_of_patience(&self, upstream: &Hostname, origins: &[Origin], patience: Duration, now: Timestamp) {
        self.backoff.out_of_patience(upstream, origins, patience, now);
    }

    /// The upstreams and origins with an open breaker, and the end of each pause.
    pub fn open_breakers(&self, now: Timestamp) -> Vec<(Hostname, Origin, Timestamp)> {
        self.backoff.open_breakers(now)
    }

    /// The effective setting.
    pub fn connectivity(&self) -> Connectivity {
        if self.sealed.load(Ordering::SeqCst) { Connectivity::Offline } else { Connectivity::Online }
    }

    /// The proxy for a request to `url`, from the environment, without userinfo.
    pub fn proxy_for(&self, url: &Url) -> Option<String> {
        self.guard
            .proxy_for(url)
            .map(|proxy| format!("{}://{}", proxy.scheme_str().unwrap_or("http"), host_and_port(&proxy)))
    }

    /// Larder's own entry in CDN-Loop.
    pub fn own_entry(&self) -> &OwnEntry {
        &self.own
    }

    /// Time limit for an upstream's answer.
    pub fn give_up_after(&self) -> Duration {
        self.give_up_after
    }

    /// Time limit until the first byte from a repository.
    pub(super) fn first_byte_within(&self) -> Duration {
        self.give_up_after.min(self.git_limits.idle)
    }

    /// Applies the time limit to a request, including the wait for a permit.
    ///
    /// # Errors
    /// [`Fault::Slow`] after the limit, or the request's own error.
    async fn with_time_limit<T>(
        &self,
        ask: UpstreamRequest<'_>,
        request: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<T, UpstreamError> {
        let limit = self.give_up_after;
        let slow = || Fault::Slow(format!("no whole answer within {} s", limit.as_secs()));
        timeout(limit, request).await.unwrap_or_else(|_| Err(failure(ask, ask.url, slow())))
    }

    pub(super) async fn with_retries<T, F: Future<Output = Result<T, UpstreamError>>>(
        &self,
        ask: UpstreamRequest<'_>,
        once: impl FnMut() -> F,
    ) -> Result<T, UpstreamError> {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_times(ask.retries)
            .with_jitter();
        // A retry may help a waiting client at once. A job has time, and respects Retry-After.
        let may_help =
            |fault: &Fault| fault.is_temporary() && !(ask.priority == RequestPriority::Job && fault.has_retry_after());
        once.retry(pauses).when(|error| may_help(&error.fault)).await
    }

    /// Takes a permit, waiting at most as long as its limit allows.
    async fn permit(
        &self,
        permits: &ConcurrencyLimits,
        ask: UpstreamRequest<'_>,
        subject: &str,
    ) -> Result<Permit, UpstreamError> {
        let crowded = || {
            let reason = format!("as many {subject} are being fetched as may be at one time");
            failure(ask, ask.url, Fault::Crowded(reason))
        };
        permits.take(ask.upstream, ask.priority).await.ok_or_else(crowded)
    }
}

/// The parts that the configuration alone decides.
fn configured_parts(
    network: &config::Network,
    upstreams: &[config::Upstream],
) -> Result<(Clients, EgressPolicy, Connectivity), ConnectorError> {
    let guard = EgressPolicy::new(upstreams, &network.allow_private);
    let link = if network.offline { Connectivity::Offline } else { Connectivity::Online };
    Ok((Clients::new(network, upstreams, &guard)?, guard, link))
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

/// Makes the error of a request. It names the origin of `url` only.
pub(super) fn failure(ask: UpstreamRequest<'_>, url: &Url, fault: Fault) -> UpstreamError {
    UpstreamError { subject: ask.label.to_owned(), origin: origin(url), fault }
}

fn host_and_port(uri: &http::Uri) -> String {
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", uri.host().unwrap_or_default())
}

/// The origin of a URL: the part that may be shown.
pub fn origin(url: &Url) -> String {
    match url.origin() {
        url::Origin::Opaque(_) => format!("{}:", url.scheme()),
        origin => origin.ascii_serialization(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::cdn_loop::CdnLoop;
    use crate::upstream::CredentialScope;

    /// A server that sends `answer` to each client and then stays silent.
    async fn silent_after(answer: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut request_time = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
                request_time.push(stream);
            }
        });
        Url::parse(&format!("http://127.0.0.1:{port}/")).unwrap()
    }

    /// DESIGN, promise 11 and DESIGN 4: an upstream that does not finish its answer in time is given up, for every kind
    /// of request.
    #[tokio::test]
    async fn every_kind_of_request_has_a_time_limit() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let host = Hostname::parse("registry.example").unwrap();
        let begun = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx";
        for (answer, is_about_bodies) in [("", false), ("HTTP/1.1 200 OK\r\n", false), (begun, true)] {
            let url = silent_after(answer).await;
            let upstreams = [config::Upstream::at(host.clone(), url.clone())];
            let bounds = UpstreamLimits { give_up_after: Duration::from_millis(300), ..UpstreamLimits::default() };
            let (network, own) = (config::Config::default().network, OwnEntry::random().unwrap());
            let outbound = Outbound::new(&network, &upstreams, own, Traffic::default(), bounds).unwrap();
            let (via, credential_scope) = (CdnLoop::default(), CredentialScope::default());
            let (priority, now) = (RequestPriority::Client, Timestamp(1_700_000_000));
            let ask = UpstreamRequest {
                label: "x",
                url: &url,
                upstream: &host,
                credentials: &credential_scope,
                via: &via,
                retries: 2,
                priority,
                now,
            };
            let mut failed = vec![
                outbound.document(ask, None, 1000).await.map(drop),
                outbound.small_file(ask, None, 1000).await.map(drop),
            ];
            // The answer to HEAD has no body.
            if !is_about_bodies {
                failed.push(outbound.announced_length(ask).await.map(drop));
            }
            for failed in failed {
                assert!(matches!(&failed, Err(UpstreamError { fault: Fault::Slow(_), .. })), "{answer}: {failed:?}");
            }
        }
    }
}
