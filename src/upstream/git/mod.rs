//! Fetches one commit of a git repository with its submodules, as a tree. gix implements the protocol and reads the
//! objects. All traffic goes through the outbound connector. Only packs are written to disk.

mod attributes;
mod blocking_bridge;
mod checkout;
mod connection;
mod error;
mod fetch;
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

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use reqwest::{RequestBuilder, Response};
use tokio::sync::mpsc;
use tokio::time::timeout;
use url::Url;

use self::blocking_bridge::{BridgeChunk, BridgeRequest, GitBridge, Head, HttpRequest};
pub use self::error::GitError;
use self::error::RepositoryError;
use self::fetch::GitFetch;
use self::pack_scanner::{COPIES_IN_MEMORY, MAX_HISTORY_BLOB_BYTES};
use super::error::{Fault, UpstreamError};
use super::limits::Permit;
use super::outbound::{Outbound, origin};
use super::request::{AcceptedCoding, UpstreamRequest, fault_of_client_error};
use super::source::GitSource;
use crate::packaging::Tree;

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
    pub permit: Permit,
}

impl Outbound {
    /// Fetches the commit that a source names, and lays it out in the empty `tree`. `scratch` is a private folder.
    ///
    /// # Errors
    /// [`GitError`], separately for upstream failures, refused trees and disk errors.
    pub async fn git(
        &self,
        request: UpstreamRequest<'_>,
        source: &GitSource,
        scratch: &Path,
        tree: Tree,
    ) -> Result<GitTree, GitError> {
        let fetch = GitFetch::new(request, source, scratch, self.limits.git)?;
        let limit_reached = "the limit of concurrent git fetches is reached";
        let permit = self.permit(&self.git_permits, request, || fetch.repository_origin(), limit_reached).await?;
        let largest_object = tree.limits().file_bytes.max(MAX_HISTORY_BLOB_BYTES as u64);
        let memory = self.git_memory.start(request.upstream, largest_object.saturating_mul(COPIES_IN_MEMORY as u64));
        let work = move |bridge: GitBridge, stop: &AtomicBool| fetch.fetch(&bridge, stop, tree, memory, permit);
        let mut fetched = self.run_blocking(request, self.limits.git.total, work).await?;
        for note in &mut fetched.notes {
            *note = request.credentials.text_without_credentials(note).to_owned();
        }
        Ok(fetched)
    }

    /// Resolves a source to a commit id by the refs of the repository. `None` for an abbreviated id, which only a fetch can
    /// resolve. A full id is returned without a request.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub async fn git_commit(
        &self,
        request: UpstreamRequest<'_>,
        source: &GitSource,
    ) -> Result<Option<String>, GitError> {
        let fetch = GitFetch::new(request, source, Path::new(""), self.limits.git)?;
        if let Some(id) = fetch.full_id() {
            return Ok(Some(id));
        }
        let limit_reached = "the limit of concurrent git ref lookups is reached";
        let permit = self.permit(&self.resolve_permits, request, || fetch.repository_origin(), limit_reached).await?;
        let work = move |bridge: GitBridge, _: &AtomicBool| {
            let _permit = permit;
            fetch.resolve_by_refs(&bridge)
        };
        self.run_blocking(request, self.limits.git.resolve_time, work).await
    }

    /// Runs git's blocking code next to the future that executes its requests. If one ends, the other is stopped.
    async fn run_blocking<T: Send + 'static>(
        &self,
        request: UpstreamRequest<'_>,
        limit: Duration,
        work: impl FnOnce(GitBridge, &AtomicBool) -> Result<T, RepositoryError> + Send + 'static,
    ) -> Result<T, GitError> {
        let stop = CancelOnDrop(Arc::default());
        let stop_flag = Arc::clone(&stop.0);
        let (bridge, bridge_requests) = GitBridge::new(self.limits.git);
        let mut worker = tokio::task::spawn_blocking(move || work(bridge, &stop_flag));
        let executed = timeout(limit, self.execute_git(request, bridge_requests)).await;
        let connector_error = match executed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => {
                Some(request.failed_at(request.url, Fault::Slow(format!("not complete within {} s", limit.as_secs()))))
            }
        };
        if connector_error.is_some() {
            drop(stop);
        }
        // The blocking code checks `stop` while it computes, and its reads fail. If the code still runs after `stop_time`,
        // that is a bug: the thread keeps its permit and is abandoned.
        let result = timeout(self.limits.git.stop_time, &mut worker).await;
        if result.is_err() {
            tracing::error!(
                subject = request.subject,
                origin = origin(request.url),
                "the git worker thread did not stop; it keeps its permit until it does"
            );
        }
        match (connector_error, result) {
            (Some(error), _) => Err(error.into()),
            (None, Err(_)) => {
                let reason = format!(
                    "the response was not processed within {} s after it was received",
                    self.limits.git.stop_time.as_secs()
                );
                Err(request.failed_at(request.url, Fault::Slow(reason)).into())
            }
            (None, Ok(Ok(result))) => {
                result.map_err(|error| error.into_git_error(&request, self.limits.git.object_bytes))
            }
            (None, Ok(Err(_))) => Err(request.unusable(request.url, "data that made the git parser panic").into()),
        }
    }
}

/// Cancels a fetch when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Outbound {
    /// Executes requests until the bridge closes. The first failure ends the fetch.
    async fn execute_git(
        &self,
        request: UpstreamRequest<'_>,
        mut bridge_requests: mpsc::Receiver<BridgeRequest>,
    ) -> Result<(), UpstreamError> {
        while let Some(bridge_request) = bridge_requests.recv().await {
            match bridge_request {
                BridgeRequest::Http(http_request) => self.execute_http(request, http_request).await?,
                BridgeRequest::Ssh(ssh_request) => self.execute_ssh(request, ssh_request).await?,
            }
        }
        Ok(())
    }

    async fn execute_http(&self, request: UpstreamRequest<'_>, http_request: HttpRequest) -> Result<(), UpstreamError> {
        let HttpRequest { url, headers, post, head, body } = http_request;
        let (first_byte_timeout, idle_timeout) = (self.first_byte_timeout(), self.limits.git.idle);
        let slow = |limit: Duration| Fault::Slow(format!("no byte within {} s", limit.as_secs()));
        let answer =
            timeout(first_byte_timeout, self.git_answer(UpstreamRequest { url: &url, ..request }, &headers, post));
        let answer = answer.await.map_err(|_| request.failed_at(&url, slow(first_byte_timeout)))?;
        let (mut response, url) = answer.map_err(as_repository_fault)?;
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| value.as_bytes().to_vec()).unwrap_or_default();
        if head.send(Head { url: url.clone(), content_type }).is_err() {
            return Ok(());
        }
        let failed = |fault| request.failed_at(&url, fault);
        let bytes_counter = self.traffic.bytes_counter(request.upstream);
        loop {
            let chunk = tokio::select! {
                chunk = timeout(idle_timeout, response.chunk()) => chunk.map_err(|_| failed(slow(idle_timeout)))?,
                () = body.closed() => return Ok(()),
            };
            let chunk: BridgeChunk = chunk.map_err(|e| failed(fault_of_client_error(&e)))?;
            let is_end = chunk.is_none();
            bytes_counter.inc_by(chunk.as_ref().map_or(0, Bytes::len) as u64);
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
        request: UpstreamRequest<'_>,
        headers: &HeaderMap,
        post: Option<Bytes>,
    ) -> Result<(Response, Url), UpstreamError> {
        let Some(post) = post else {
            let attempt = || async {
                let answer = self.follow(Method::GET, AcceptedCoding::Identity, request, headers).await?;
                let response = self.checked_head(request, &answer.url, answer.response, answer.observer).await?;
                Ok((response, answer.url))
            };
            return self.with_retries(request, attempt).await;
        };
        let url = request.url;
        let build = |builder: RequestBuilder| builder.headers(headers.clone()).body(post);
        let (response, observer) = self.hop(AcceptedCoding::Identity, Method::POST, request, url, build).await?;
        if response.status().is_redirection() {
            return Err(request.unusable(url, "a redirect of a request that is not sent twice"));
        }
        Ok((self.checked_head(request, url, response, observer).await?, url.clone()))
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
