//! Fetches one commit of a git repository with its submodules, as a tree (DESIGN, section 6). gix implements the protocol
//! and reads the objects. All traffic goes through the outbound connector. Only packs are written to disk.

mod attributes;
mod blocking_bridge;
mod checkout;
mod connection;
mod delta_memory;
mod error;
mod fetch;
mod http;
mod pack_scanner;
mod refs;
mod repository;
mod ssh;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::{HeaderMap, Method, header};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use url::Url;

use self::blocking_bridge::{BridgeChunk, BridgeRequest, GitBridge, Head, HttpRequest};
use self::error::GitCodeError;
pub use self::error::GitError;
use self::fetch::GitFetch;
use self::repository::Repository;
use super::CredentialScope;
use super::backoff::{RequestObserver, RequestTime};
use super::clients::AcceptedCoding;
use super::concurrency_limits::Permit;
use super::error::{Fault, UpstreamError};
use super::outbound::{Outbound, UpstreamResponse, failure, origin};
use super::request::{RequestPriority, UpstreamRequest, fault_of_client_error};
use super::source::GitSource;
use crate::address::Hostname;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::packaging::Tree;

/// A git request: like [`UpstreamRequest`], for several HTTP requests or an ssh connection.
#[derive(Debug, Clone, Copy)]
pub struct GitRequest<'a> {
    /// Label for people.
    pub subject: &'a str,
    /// The repository and the reference.
    pub source: &'a GitSource,
    /// The upstream that the request is for.
    pub upstream: &'a Hostname,
    /// The credentials that may be sent, by origin.
    pub credential_scope: &'a CredentialScope,
    /// The proxies that the client's request has passed (CDN-Loop).
    pub via: &'a CdnLoop,
    /// Retries of a GET after a temporary failure.
    pub retries: usize,
    /// Priority of the request.
    pub priority: RequestPriority,
    /// Time of the request.
    pub now: Timestamp,
}

/// A fetched tree.
#[derive(Debug)]
pub struct GitTree {
    /// The files of a checkout with submodules, without `.git`.
    pub tree: Tree,
    /// The id of the commit, in hex.
    pub commit: String,
    /// Notes for the log, such as Git LFS pointers that stay pointers.
    pub notes: Vec<String>,
    /// The permit of the git fetch. A caller that holds the permit until the tree is packed limits the
    /// number of trees in memory.
    pub permit: Option<GitPermit>,
}

/// A permit to run one git fetch, released on drop.
#[derive(Debug)]
pub struct GitPermit(#[expect(dead_code, reason = "held only for its Drop")] Permit);

impl<'a> GitRequest<'a> {
    /// The HTTP request of this fetch to `url`.
    fn to_url(self, url: &'a Url) -> UpstreamRequest<'a> {
        let Self { subject, upstream, credential_scope, via, retries, priority, now, .. } = self;
        UpstreamRequest { label: subject, url, upstream, credentials: credential_scope, via, retries, priority, now }
    }

    fn failed(&self, origin: String, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.subject.to_owned(), origin, fault }
    }

    fn repository(&self) -> Result<Repository, GitError> {
        Repository::of(&self.source.url).map_err(|bad| {
            let origin = super::outbound::origin(&self.source.url);
            self.failed(origin, Fault::Unusable(format!("a source that is not fetched: {bad}"))).into()
        })
    }
}

impl Outbound {
    /// Fetches the commit that a source names, and lays it out in the empty `tree`. `scratch` is a private folder.
    ///
    /// # Errors
    /// [`GitError`], separately for upstream failures, refused trees and disk errors.
    pub async fn git(&self, request: GitRequest<'_>, scratch: &Path, tree: Tree) -> Result<GitTree, GitError> {
        let repository = request.repository()?;
        let permit = self.take_git_permit(&request, &repository).await?;
        let fetch = GitFetch::new(request.source, repository, scratch, self.git_limits);
        let fetched = self.run_blocking(request, self.git_limits.total, move |bridge, stop| {
            fetch.fetch(bridge, stop, tree).map(|fetched| GitTree { permit: Some(GitPermit(permit)), ..fetched })
        });
        let fetched = fetched.await?;
        let notes = fetched
            .notes
            .iter()
            .map(|note| request.credential_scope.text_without_credentials(note).to_owned())
            .collect();
        Ok(GitTree { notes, ..fetched })
    }

    /// Resolves a source to a commit id by the refs of the repository. `None` for an abbreviated id, which only a fetch can
    /// resolve. A full id is returned without a request.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub async fn git_commit(&self, request: GitRequest<'_>) -> Result<Option<String>, GitError> {
        let repository = request.repository()?;
        let origin = repository.origin_text();
        let fetch = GitFetch::new(request.source, repository, Path::new(""), self.git_limits);
        if let Some(id) = fetch.full_id() {
            return Ok(Some(id));
        }
        let permit = self.resolve_permits.take(request.upstream, request.priority).await;
        let limit_reached = || Fault::LocalLimit("the limit of concurrent git ref lookups is reached".to_owned());
        let permit = permit.ok_or_else(|| request.failed(origin, limit_reached()))?;
        self.run_blocking(request, self.git_limits.resolve_time, move |bridge, _stop| {
            let _permit = permit;
            fetch.resolve_by_refs(bridge)
        })
        .await
    }

    /// Runs git's blocking code next to the future that executes its requests. If one ends, the other is stopped.
    async fn run_blocking<T: Send + 'static>(
        &self,
        request: GitRequest<'_>,
        limit: Duration,
        work: impl FnOnce(GitBridge, &AtomicBool) -> Result<T, GitCodeError> + Send + 'static,
    ) -> Result<T, GitError> {
        let stop = CancelOnDrop(Arc::default());
        let stop_flag = Arc::clone(&stop.0);
        let (bridge, bridge_requests) = GitBridge::new(self.git_limits);
        let mut worker = tokio::task::spawn_blocking(move || work(bridge, &stop_flag));
        let executed = timeout(limit, self.execute_git(request, bridge_requests)).await;
        let origin = || super::outbound::origin(&request.source.url);
        let connector_error = match executed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => {
                let reason = format!("not complete within {} s", limit.as_secs());
                Some(request.failed(origin(), Fault::Slow(reason)))
            }
        };
        if connector_error.is_some() {
            stop.cancel();
        }
        // The blocking code checks `stop` while it computes, and its reads fail. If the code still runs after `stop_time`,
        // that is a bug: the thread keeps its permit and is abandoned.
        let result = timeout(self.git_limits.stop_time, &mut worker).await;
        if result.is_err() {
            stop.cancel();
            tracing::error!(
                subject = request.subject,
                origin = origin(),
                "the git worker thread did not stop; it keeps its permit until it does"
            );
        }
        match (connector_error, result) {
            (Some(error), _) => Err(error.into()),
            (None, Err(_)) => {
                let reason = format!(
                    "the response was not processed within {} s after it was received",
                    self.git_limits.stop_time.as_secs()
                );
                Err(request.failed(origin(), Fault::Slow(reason)).into())
            }
            (None, Ok(Ok(result))) => result.map_err(|error| error.into_git_error(&request)),
            (None, Ok(Err(_))) => {
                Err(request.failed(origin(), Fault::Unusable("data that made the git parser panic".into())).into())
            }
        }
    }

    /// Takes a permit for a git fetch. A fetch needs no archive permit as well, because few git fetches run at a time.
    async fn take_git_permit(&self, request: &GitRequest<'_>, repository: &Repository) -> Result<Permit, GitError> {
        let limit_reached = || Fault::LocalLimit("the limit of concurrent git fetches is reached".to_owned());
        let permit = self.git_permits.take(request.upstream, request.priority).await;
        permit.ok_or_else(|| request.failed(repository.origin_text(), limit_reached()).into())
    }
}

/// Cancels a fetch; dropping it cancels too.
struct CancelOnDrop(Arc<AtomicBool>);

impl CancelOnDrop {
    fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The bytes that a fetch has received, and their limit.
struct ReceivedBytes {
    bytes: u64,
    limit: u64,
}

impl ReceivedBytes {
    /// Counts a received chunk.
    ///
    /// # Errors
    /// [`Fault::TooLarge`] past the limit.
    fn add(&mut self, chunk: &Bytes) -> Result<(), Fault> {
        self.bytes += chunk.len() as u64;
        if self.bytes > self.limit { Err(Fault::TooLarge(self.limit)) } else { Ok(()) }
    }
}

impl Outbound {
    /// Executes requests until the bridge closes. The first failure ends the fetch.
    async fn execute_git(
        &self,
        request: GitRequest<'_>,
        mut bridge_requests: mpsc::Receiver<BridgeRequest>,
    ) -> Result<(), UpstreamError> {
        let mut received = ReceivedBytes { bytes: 0, limit: self.git_limits.received_bytes };
        while let Some(bridge_request) = bridge_requests.recv().await {
            match bridge_request {
                BridgeRequest::Http(http_request) => self.execute_http(request, http_request, &mut received).await?,
                BridgeRequest::Ssh { repository, output, input, reader_waits } => {
                    self.execute_ssh(request, &repository, output, input, &reader_waits, &mut received).await?;
                }
            }
        }
        Ok(())
    }

    async fn execute_http(
        &self,
        request: GitRequest<'_>,
        http_request: HttpRequest,
        received: &mut ReceivedBytes,
    ) -> Result<(), UpstreamError> {
        let HttpRequest { url, headers, post, head, body } = http_request;
        let (first_byte_timeout, idle_timeout) = (self.first_byte_timeout(), self.git_limits.idle);
        let slow = |limit: Duration| Fault::Slow(format!("no byte within {} s", limit.as_secs()));
        let answer = timeout(first_byte_timeout, self.git_answer(request, &url, &headers, post)).await;
        let answer = answer.map_err(|_| request.failed(origin(&url), slow(first_byte_timeout)))?;
        let UpstreamResponse { mut response, url, observer, .. } = answer.map_err(as_repository_fault)?;
        // The head has arrived. The body has its own limits on time and size, below.
        observer.into_iter().for_each(RequestObserver::record_success);
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| value.as_bytes().to_vec()).unwrap_or_default();
        if head.send(Head { url: url.clone(), content_type }).is_err() {
            return Ok(());
        }
        let failed = |fault| request.failed(origin(&url), fault);
        let bytes_counter = self.traffic.bytes_counter(request.upstream);
        loop {
            let chunk = tokio::select! {
                chunk = timeout(idle_timeout, response.chunk()) => chunk.map_err(|_| failed(slow(idle_timeout)))?,
                () = body.closed() => return Ok(()),
            };
            let chunk: BridgeChunk = chunk.map_err(|e| failed(fault_of_client_error(&e)))?;
            let is_end = chunk.is_none();
            if let Some(chunk) = &chunk {
                bytes_counter.inc_by(chunk.len() as u64);
                received.add(chunk).map_err(failed)?;
            }
            // If the channel is closed, the reader has stopped, and goes on with another request.
            if body.send(chunk).await.is_err() || is_end {
                return Ok(());
            }
        }
    }

    /// Returns the head of a successful answer. A GET follows redirects. A POST does not, so that it is never sent
    /// twice.
    async fn git_answer(
        &self,
        request: GitRequest<'_>,
        url: &url::Url,
        headers: &HeaderMap,
        post: Option<Bytes>,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let request = request.to_url(url);
        let request_time = RequestTime::new(request.now);
        let Some(post) = post else {
            let attempt = || async {
                let answer = self.follow(AcceptedCoding::Identity, request, headers, request_time).await?;
                let response = self.check_status(answer.response, request, &answer.url, request_time).await?;
                Ok(UpstreamResponse { response, ..answer })
            };
            return self.with_retries(request, attempt).await;
        };
        let build = |builder: reqwest::RequestBuilder| builder.headers(headers.clone()).body(post);
        let (response, observer) =
            self.hop(AcceptedCoding::Identity, Method::POST, request, url, build, request_time).await?;
        if response.status().is_redirection() {
            let reason = "a redirect of a request that is not sent twice".to_owned();
            return Err(failure(request, url, Fault::Unusable(reason)));
        }
        let response = self.check_status(response, request, url, request_time).await?;
        Ok(UpstreamResponse { response, url: url.clone(), origins: Vec::new(), observer })
    }
}

/// Converts a 4xx to an unusable answer. A missing repository is an upstream failure, because the registry named it.
fn as_repository_fault(error: UpstreamError) -> UpstreamError {
    let fault = match error.fault {
        Fault::Absent(status) => {
            Fault::Unusable(format!("status {status}: there is no such repository, or larder may not see it"))
        }
        Fault::Rejected { status, .. } => Fault::Unusable(format!(
            "status {status} for the request of a repository, which it does not take for a git request"
        )),
        fault => fault,
    };
    UpstreamError { fault, ..error }
}
