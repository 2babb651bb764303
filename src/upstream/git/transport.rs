//! Executes the requests of git's code through the connector: egress policy, credentials, counters and limits apply as
//! for any other request.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::GitRequest;
use super::blocking_bridge::{BridgeChunk, BridgeRequest, Head, HttpRequest};
use crate::upstream::backoff::{RequestObserver, RequestTime};
use crate::upstream::clients::AcceptedCoding;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Outbound, UpstreamResponse, failure, origin};
use crate::upstream::request::fault_of_client_error;

/// The bytes that a job has received, and their limit.
pub(super) struct ReceivedBytes {
    pub(super) bytes: u64,
    pub(super) limit: u64,
}

impl ReceivedBytes {
    /// Counts a received chunk.
    ///
    /// # Errors
    /// [`Fault::TooLarge`] past the limit.
    pub(super) fn add(&mut self, chunk: &Bytes) -> Result<(), Fault> {
        self.bytes += chunk.len() as u64;
        if self.bytes > self.limit { Err(Fault::TooLarge(self.limit)) } else { Ok(()) }
    }
}

impl Outbound {
    /// Executes requests until the bridge closes. The first failure ends the job.
    pub(super) async fn execute_git(
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
            self.hop(AcceptedCoding::Identity, http::Method::POST, request, url, build, request_time).await?;
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
