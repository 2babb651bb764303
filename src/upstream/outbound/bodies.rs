//! Fetches the bodies of answers: whole documents into memory, within limits on size, time and memory; and files whose
//! bytes are passed on as they arrive, so that a broken download can be resumed.

use bytes::{Bytes, BytesMut};
use http::Method;
use http::header::{self, HeaderMap, HeaderName};
use serde::Deserialize;
use url::Url;

use super::{Outbound, UpstreamResponse, failure, insert, origin};
use crate::upstream::backoff::{RequestObserver, RequestTime};
use crate::upstream::clients::AcceptedCoding;
use crate::upstream::concurrency_limits::Permit;
use crate::upstream::error::{Fault, UpstreamError, sanitized};
use crate::upstream::memory_budget::{MemoryGrant, MemoryLimitReached};
use crate::upstream::request::{
    Document, Fetched, IncomingFile, RequestPriority, UpstreamRequest, Validators, fault_of_client_error,
};
use crate::upstream::response_headers::{content_range, retry_after, server_time};

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

const MAX_ERROR_BODY_BYTES: u64 = 64 * 1024;
/// Number of upstream's error texts that an error quotes.
const MAX_ERRORS: usize = 8;
const X_TERRAFORM_GET: HeaderName = HeaderName::from_static("x-terraform-get");

impl Outbound {
    /// Fetches a document of at most `limit` bytes, conditionally if `validators` are given. Fails if the document is
    /// incomplete after the time limit.
    pub async fn document(
        &self,
        request: UpstreamRequest<'_>,
        validators: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        self.read_body(AcceptedCoding::Any, request, validators, limit).await
    }

    /// Fetches a small file whose exact bytes are verified, such as SHA256SUMS or a signature. Like
    /// [`document`](Self::document), but without content coding.
    pub async fn small_file(
        &self,
        request: UpstreamRequest<'_>,
        validators: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        self.read_body(AcceptedCoding::Identity, request, validators, limit).await
    }

    async fn read_body(
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
        let request_time = RequestTime::new(request.now);
        let attempt = || async {
            let _permit = self.permit(&self.document_permits, request, "documents").await?;
            let UpstreamResponse { response, url, origins, observer } =
                self.follow(coding, request, &conditions, request_time).await?;
            if response.status() == http::StatusCode::NOT_MODIFIED && !conditions.is_empty() {
                return Ok(Fetched::Unchanged);
            }
            let response = self.check_status(response, request, &url, request_time).await?;
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let validators = Validators::of(response.headers());
            let server_time = server_time(response.headers());
            let x_terraform_get = response.headers().get(X_TERRAFORM_GET).and_then(|value| value.to_str().ok());
            let x_terraform_get = x_terraform_get.map(str::to_owned);
            let body = self.body(response, request, &url, limit).await;
            match (observer, &body) {
                (
                    Some(observer),
                    Ok(_) | Err(UpstreamError { fault: Fault::TooLarge(_) | Fault::LocalLimit(_), .. }),
                ) => {
                    // A limit of larder says nothing about the origin.
                    observer.record_success();
                }
                (Some(observer), Err(error)) => observer.record_failure(&error.fault.to_string()),
                (None, _) => {}
            }
            let (body, memory) = body?;
            Ok(Fetched::New(Document {
                body,
                content_type,
                validators,
                url,
                origins,
                location: x_terraform_get,
                date: server_time,
                memory,
            }))
        };
        self.with_time_limit(request, self.with_retries(request, attempt)).await
    }

    /// Returns the response if its status is a success. Otherwise makes the error, with the `errors` of its body.
    pub(in crate::upstream) async fn check_status(
        &self,
        response: reqwest::Response,
        request: UpstreamRequest<'_>,
        url: &Url,
        request_time: RequestTime,
    ) -> Result<reqwest::Response, UpstreamError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), request_time.now());
        // Upstream's error texts are optional. A failure to read them must not replace the status.
        let (body, _memory) = self.body(response, request, url, MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
        let errors = serde_json::from_slice::<UpstreamErrorBody>(&body).map(|body| body.errors).unwrap_or_default();
        let errors = errors
            .iter()
            .take(MAX_ERRORS)
            .map(|text| sanitized(request.credentials.text_without_credentials(text)))
            .collect();
        let fault = Fault::of_status(status.as_u16(), retry_after, errors);
        Err(failure(request, url, fault))
    }

    async fn body(
        &self,
        mut response: reqwest::Response,
        request: UpstreamRequest<'_>,
        url: &Url,
        limit: u64,
    ) -> Result<(Bytes, MemoryGrant), UpstreamError> {
        let memory_limit_reached =
            |limit: MemoryLimitReached| failure(request, url, Fault::LocalLimit(limit.to_string()));
        let too_large = || failure(request, url, Fault::TooLarge(limit));
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        let mut memory = self.document_memory.start_body(request.upstream);
        memory.grow_to(response.content_length().unwrap_or_default()).map_err(memory_limit_reached)?;
        let received_bytes = self.traffic.bytes_counter(request.upstream);
        while let Some(chunk) = response.chunk().await.map_err(|e| failure(request, url, fault_of_client_error(&e)))? {
            received_bytes.inc_by(chunk.len() as u64);
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_large());
            }
            memory.grow_to((body.len() + chunk.len()) as u64).map_err(memory_limit_reached)?;
            body.extend_from_slice(&chunk);
        }
        Ok((body.freeze(), memory.into_grant()))
    }
}

#[derive(Deserialize)]
struct UpstreamErrorBody {
    errors: Vec<String>,
}
