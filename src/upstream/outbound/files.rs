//! Fetches files. Their bytes are passed on as they arrive, and a broken download can be resumed.

use http::Method;
use http::header::{self, HeaderMap};
use url::Url;

use super::{Outbound, failure, insert, origin};
use crate::upstream::backoff::{RequestObserver, RequestTime};
use crate::upstream::clients::AcceptedCoding;
use crate::upstream::concurrency_limits::Permit;
use crate::upstream::content_range::content_range;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::{IncomingFile, RequestPriority, UpstreamRequest, Validators};

impl Outbound {
    /// Requests a file from byte `start`, on condition that the stored validators still match.
    ///
    /// The server may send the file from its first byte instead: see [`IncomingFile::from`].
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
        let request_time = RequestTime::new(request.now);
        let attempt = || async {
            let is_resumed = start > 0 && request.priority == RequestPriority::Client;
            let permit_request = if is_resumed {
                UpstreamRequest { priority: RequestPriority::ClientMidway, ..request }
            } else {
                request
            };
            let permit = self.permit(&self.archive_permits, permit_request, "archives").await?;
            let mut answer = self.follow(AcceptedCoding::Identity, request, &conditions, request_time).await?;
            let mut start = start;
            if answer.response.status() == http::StatusCode::RANGE_NOT_SATISFIABLE && start > 0 {
                answer = self.follow(AcceptedCoding::Identity, request, &HeaderMap::new(), request_time).await?;
                start = 0;
            }
            // The head has answer. The body has its own time limits, and the caller resumes a broken body.
            answer.observer.into_iter().for_each(RequestObserver::record_success);
            let response = self.check_status(answer.response, request, &answer.url, request_time).await?;
            self.incoming(response, request, &answer.url, start, permit)
        };
        self.with_retries(request, attempt).await
    }

    /// The length of a file by HEAD; `None` if the server does not announce it.
    pub async fn announced_length(&self, request: UpstreamRequest<'_>) -> Result<Option<u64>, UpstreamError> {
        let request_time = RequestTime::new(request.now);
        let fetch_length = async {
            let _permit = self.permit(&self.document_permits, request, "documents").await?;
            let answer = self
                .follow_with_method(Method::HEAD, AcceptedCoding::Identity, request, &HeaderMap::new(), request_time)
                .await?;
            answer.observer.into_iter().for_each(RequestObserver::record_success);
            let response = self.check_status(answer.response, request, &answer.url, request_time).await?;
            let length = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            Ok(length.and_then(|length| length.parse().ok()))
        };
        self.with_time_limit(request, fetch_length).await
    }

    fn incoming(
        &self,
        response: reqwest::Response,
        request: UpstreamRequest<'_>,
        url: &Url,
        requested_start: u64,
        permit: Permit,
    ) -> Result<IncomingFile, UpstreamError> {
        let unusable = |reason: &str| failure(request, url, Fault::Unusable(reason.to_owned()));
        let announced_length = response.headers().get(header::CONTENT_LENGTH).map(|value| {
            value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or_else(|| unusable("a Content-Length that is not a number"))
        });
        let announced_length = announced_length.transpose()?;
        let (from, length) = match response.status().as_u16() {
            206 => {
                let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let (start, total) =
                    range.and_then(content_range).ok_or_else(|| unusable("a 206 without a usable Content-Range"))?;
                if start != requested_start {
                    return Err(unusable("another range than the requested one"));
                }
                (start, total.or(announced_length.and_then(|remaining| start.checked_add(remaining))))
            }
            _ => (0, announced_length),
        };
        let validators = Validators::of(response.headers());
        Ok(IncomingFile {
            response,
            from,
            length,
            validators,
            subject: request.label.to_owned(),
            origin: origin(url),
            bytes_counter: self.traffic.bytes_counter(request.upstream),
            _permit: permit,
        })
    }
}
