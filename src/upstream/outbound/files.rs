//! Fetches files: passed on as they arrive, and resumable.

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
    /// Requests a file from byte `from`, on condition that the stored validators still match.
    ///
    /// The server may start over instead: see [`IncomingFile::from`].
    pub async fn file(
        &self,
        ask: UpstreamRequest<'_>,
        from: u64,
        validators: &Validators,
    ) -> Result<IncomingFile, UpstreamError> {
        let mut conditions = HeaderMap::new();
        if from > 0 {
            insert(&mut conditions, header::RANGE, Some(&format!("bytes={from}-")));
            insert(&mut conditions, header::IF_RANGE, validators.for_range());
        }
        let request_time = RequestTime::new(ask.now);
        let once = || async {
            let midway = from > 0 && ask.priority == RequestPriority::Client;
            let turn = if midway { UpstreamRequest { priority: RequestPriority::ClientMidway, ..ask } } else { ask };
            let permit = self.permit(&self.archive_permits, turn, "archives").await?;
            let mut arrived = self.follow(AcceptedCoding::Identity, ask, &conditions, request_time).await?;
            let mut from = from;
            if arrived.response.status() == http::StatusCode::RANGE_NOT_SATISFIABLE && from > 0 {
                arrived = self.follow(AcceptedCoding::Identity, ask, &HeaderMap::new(), request_time).await?;
                from = 0;
            }
            // The head has arrived. The body has its own time limits, and the caller resumes a broken one.
            arrived.watch.into_iter().for_each(RequestObserver::record_success);
            let response = self.successful(arrived.response, ask, &arrived.url, request_time).await?;
            self.incoming(response, ask, &arrived.url, from, permit)
        };
        self.with_retries(ask, once).await
    }

    /// The length of a file by HEAD; `None` if the server does not announce it.
    pub async fn announced_length(&self, ask: UpstreamRequest<'_>) -> Result<Option<u64>, UpstreamError> {
        let request_time = RequestTime::new(ask.now);
        let asking = async {
            let _permit = self.permit(&self.document_permits, ask, "documents").await?;
            let arrived =
                self.follow_by(Method::HEAD, AcceptedCoding::Identity, ask, &HeaderMap::new(), request_time).await?;
            arrived.watch.into_iter().for_each(RequestObserver::record_success);
            let response = self.successful(arrived.response, ask, &arrived.url, request_time).await?;
            let length = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            Ok(length.and_then(|length| length.parse().ok()))
        };
        self.with_time_limit(ask, asking).await
    }

    fn incoming(
        &self,
        response: reqwest::Response,
        ask: UpstreamRequest<'_>,
        url: &Url,
        asked_from: u64,
        permit: Permit,
    ) -> Result<IncomingFile, UpstreamError> {
        let failed = |reason: &str| failure(ask, url, Fault::Unusable(reason.to_owned()));
        let announced = response.headers().get(header::CONTENT_LENGTH).map(|value| {
            value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or_else(|| failed("a Content-Length that is not a number"))
        });
        let announced = announced.transpose()?;
        let (from, length) = match response.status().as_u16() {
            206 => {
                let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let (start, total) =
                    range.and_then(content_range).ok_or_else(|| failed("a 206 without a usable Content-Range"))?;
                if start != asked_from {
                    return Err(failed("another range than the one asked for"));
                }
                (start, total.or(announced.and_then(|rest| start.checked_add(rest))))
            }
            _ => (0, announced),
        };
        let validators = Validators::of(response.headers());
        Ok(IncomingFile {
            response,
            from,
            length,
            validators,
            subject: ask.label.to_owned(),
            origin: origin(url),
            bytes_counter: self.traffic.bytes_counter(ask.upstream),
            _permit: permit,
        })
    }
}
