//! Executes the requests of git's code through the connector: egress policy, credentials, counters and limits apply as
//! for any other request.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::GitRequest;
use super::blocking_bridge::{BridgeRequest, Head, Request, WirePiece};
use crate::upstream::backoff::{RequestObserver, RequestTime};
use crate::upstream::clients::AcceptedCoding;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Outbound, UpstreamResponse, failure, origin};
use crate::upstream::request::fault_of_client_error;

pub(super) struct ReceivedBytes {
    pub(super) bytes: u64,
    pub(super) limit: u64,
}

impl ReceivedBytes {
    /// Counts a received piece.
    ///
    /// # Errors
    /// [`Fault::TooLarge`] past the limit.
    pub(super) fn add(&mut self, piece: &Bytes) -> Result<(), Fault> {
        self.bytes += piece.len() as u64;
        if self.bytes > self.limit { Err(Fault::TooLarge(self.limit)) } else { Ok(()) }
    }
}

impl Outbound {
    /// Executes requests until the bridge closes. The first failure ends the job.
    pub(super) async fn execute_git(
        &self,
        ask: GitRequest<'_>,
        mut orders: mpsc::Receiver<BridgeRequest>,
    ) -> Result<(), UpstreamError> {
        let mut received = ReceivedBytes { bytes: 0, limit: self.git_limits.received_bytes };
        while let Some(order) = orders.recv().await {
            match order {
                BridgeRequest::Request(request) => self.execute_request(ask, request, &mut received).await?,
                BridgeRequest::Ssh { repository, output, input, awaited } => {
                    self.execute_ssh(ask, &repository, output, input, &awaited, &mut received).await?;
                }
            }
        }
        Ok(())
    }

    async fn execute_request(
        &self,
        ask: GitRequest<'_>,
        request: Request,
        received: &mut ReceivedBytes,
    ) -> Result<(), UpstreamError> {
        let Request { url, headers, post, head, body } = request;
        let (first, idle) = (self.first_byte_within(), self.git_limits.idle);
        let slow = |limit: Duration| Fault::Slow(format!("no byte within {} s", limit.as_secs()));
        let answer = timeout(first, self.git_answer(ask, &url, &headers, post)).await;
        let answer = answer.map_err(|_| ask.failed(origin(&url), slow(first)))?;
        let UpstreamResponse { mut response, url, watch, .. } = answer.map_err(as_repository_fault)?;
        // The head has arrived. The body has its own limits on time and size, below.
        watch.into_iter().for_each(RequestObserver::record_success);
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| value.as_bytes().to_vec()).unwrap_or_default();
        if head.send(Head { url: url.clone(), content_type }).is_err() {
            return Ok(());
        }
        let failed = |fault| ask.failed(origin(&url), fault);
        let brought = self.traffic.bytes_counter(ask.upstream);
        loop {
            let piece = tokio::select! {
                piece = timeout(idle, response.chunk()) => piece.map_err(|_| failed(slow(idle)))?,
                () = body.closed() => return Ok(()),
            };
            let piece: WirePiece = piece.map_err(|e| failed(fault_of_client_error(&e)))?;
            let is_the_end = piece.is_none();
            if let Some(piece) = &piece {
                brought.inc_by(piece.len() as u64);
                received.add(piece).map_err(failed)?;
            }
            // The reader stopped. Any further read is another request.
            if body.send(piece).await.is_err() || is_the_end {
                return Ok(());
            }
        }
    }

    /// Returns the head of a successful answer. A GET follows redirects. A POST does not, so that it is never sent
    /// twice.
    async fn git_answer(
        &self,
        ask: GitRequest<'_>,
        url: &url::Url,
        headers: &HeaderMap,
        post: Option<Bytes>,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let ask = ask.to_url(url);
        let request_time = RequestTime::new(ask.now);
        let Some(post) = post else {
            let once = || async {
                let arrived = self.follow(AcceptedCoding::Identity, ask, headers, request_time).await?;
                let response = self.successful(arrived.response, ask, &arrived.url, request_time).await?;
                Ok(UpstreamResponse { response, ..arrived })
            };
            return self.with_retries(ask, once).await;
        };
        let build = |request: reqwest::RequestBuilder| request.headers(headers.clone()).body(post);
        let (response, watch) =
            self.hop(AcceptedCoding::Identity, http::Method::POST, ask, url, build, request_time).await?;
        if response.status().is_redirection() {
            let reason = "a redirect of a request that is not sent twice".to_owned();
            return Err(failure(ask, url, Fault::Unusable(reason)));
        }
        let response = self.successful(response, ask, url, request_time).await?;
        Ok(UpstreamResponse { response, url: url.clone(), origins: Vec::new(), watch })
    }
}

/// A missing repository is an upstream failure: the registry named it.
fn as_repository_fault(error: UpstreamError) -> UpstreamError {
    let fault = match error.fault {
        Fault::Absent(status) => {
            Fault::Unusable(format!("status {status}: there is no such repository, or it is not shown to larder"))
        }
        Fault::Rejected { status, .. } => Fault::Unusable(format!(
            "status {status} where a repository was asked for: it takes larder's request for none"
        )),
        fault => fault,
    };
    UpstreamError { fault, ..error }
}
