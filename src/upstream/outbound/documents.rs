//! Fetches documents: whole, into memory, within limits.

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName};
use serde::Deserialize;
use url::Url;

use super::hops::UpstreamResponse;
use super::{Outbound, failure, insert};
use crate::upstream::backoff::RequestTime;
use crate::upstream::clients::AcceptedCoding;
use crate::upstream::error::{Fault, UpstreamError, sanitized};
use crate::upstream::memory_budget::{MemoryGrant, MemoryLimitReached};
use crate::upstream::request::{Document, Fetched, UpstreamRequest, Validators, fault_of_client_error};
use crate::upstream::retry_after::{date, retry_after};

const MAX_ERROR_BODY: u64 = 64 * 1024;
const X_TERRAFORM_GET: HeaderName = HeaderName::from_static("x-terraform-get");

impl Outbound {
    /// Fetches a document of at most `limit` bytes, conditionally if `validators` are given. Fails if the document is
    /// incomplete after the time limit.
    pub async fn document(
        &self,
        ask: UpstreamRequest<'_>,
        validators: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        self.read_body(AcceptedCoding::Any, ask, validators, limit).await
    }

    /// Fetches a small file like a document, but without content coding, because its exact bytes count.
    pub async fn small_file(
        &self,
        ask: UpstreamRequest<'_>,
        validators: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        self.read_body(AcceptedCoding::Identity, ask, validators, limit).await
    }

    async fn read_body(
        &self,
        coding: AcceptedCoding,
        ask: UpstreamRequest<'_>,
        validators: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        let mut conditions = HeaderMap::new();
        if let Some(stored) = validators {
            insert(&mut conditions, header::IF_NONE_MATCH, stored.etag.as_deref());
            insert(&mut conditions, header::IF_MODIFIED_SINCE, stored.last_modified.as_deref());
        }
        let request_time = RequestTime::new(ask.now);
        let once = || async {
            let _permit = self.permit(&self.document_permits, ask, "documents").await?;
            let UpstreamResponse { response, url, origins, watch } =
                self.follow(coding, ask, &conditions, request_time).await?;
            if response.status() == http::StatusCode::NOT_MODIFIED && !conditions.is_empty() {
                return Ok(Fetched::Unchanged);
            }
            let response = self.successful(response, ask, &url, request_time).await?;
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let validators = Validators::of(response.headers());
            let date = date(response.headers());
            let location = response.headers().get(X_TERRAFORM_GET).and_then(|value| value.to_str().ok());
            let location = location.map(str::to_owned);
            let body = self.body(response, ask, &url, limit).await;
            match (watch, &body) {
                (Some(watch), Ok(_) | Err(UpstreamError { fault: Fault::TooLarge(_) | Fault::Crowded(_), .. })) => {
                    watch.record_success();
                }
                (Some(watch), Err(broken)) => watch.record_failure(&broken.fault.to_string()),
                (None, _) => {}
            }
            let (body, memory) = body?;
            Ok(Fetched::New(Document { body, content_type, validators, url, origins, location, date, memory }))
        };
        self.with_time_limit(ask, self.with_retries(ask, once)).await
    }

    pub(in crate::upstream) async fn successful(
        &self,
        response: reqwest::Response,
        ask: UpstreamRequest<'_>,
        url: &Url,
        request_time: RequestTime,
    ) -> Result<reqwest::Response, UpstreamError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), request_time.now());
        // Upstream's error texts are optional. A failure to read them must not replace the status.
        let (body, _room) = self.body(response, ask, url, MAX_ERROR_BODY).await.unwrap_or_default();
        let errors = serde_json::from_slice::<UpstreamErrorBody>(&body).map(|body| body.errors).unwrap_or_default();
        let errors =
            errors.iter().take(8).map(|text| sanitized(ask.credentials.text_without_credentials(text))).collect();
        let fault = Fault::of_status(status.as_u16(), retry_after, errors);
        Err(failure(ask, url, fault))
    }

    async fn body(
        &self,
        mut response: reqwest::Response,
        ask: UpstreamRequest<'_>,
        url: &Url,
        limit: u64,
    ) -> Result<(Bytes, MemoryGrant), UpstreamError> {
        let crowded = |bound: MemoryLimitReached| failure(ask, url, Fault::Crowded(bound.to_string()));
        let too_large = || failure(ask, url, Fault::TooLarge(limit));
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        let mut memory = self.document_memory.start_body(ask.upstream);
        memory.grow_to(response.content_length().unwrap_or_default()).map_err(crowded)?;
        let brought = self.traffic.bytes_counter(ask.upstream);
        while let Some(piece) = response.chunk().await.map_err(|e| failure(ask, url, fault_of_client_error(&e)))? {
            brought.inc_by(piece.len() as u64);
            if (body.len() + piece.len()) as u64 > limit {
                return Err(too_large());
            }
            memory.grow_to((body.len() + piece.len()) as u64).map_err(crowded)?;
            body.extend_from_slice(&piece);
        }
        Ok((body.freeze(), memory.into_grant()))
    }
}

#[derive(Deserialize)]
struct UpstreamErrorBody {
    errors: Vec<String>,
}
