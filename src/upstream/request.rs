//! Requests to upstreams, and how their answers arrive: their headers, and the failures of the HTTP client.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use http::header::{self, HeaderMap, HeaderName};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use url::Url;

use super::CredentialScope;
use super::backoff::{Origin, RequestTime};
use super::egress_policy::EgressRefusal;
use super::error::{Fault, UpstreamError};
use super::limits::{MemoryGrant, Permit};
use super::outbound::origin;
use crate::address::Hostname;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;

/// Validators of a response, for conditional requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// The ETag, as sent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub etag: Option<String>,
    /// The Last-Modified date, as sent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_modified: Option<String>,
}

impl Validators {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let text = |name| header_text(headers, name).map(str::to_owned);
        Self { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED) }
    }

    /// The value for If-Range: a strong ETag, else the date (RFC 9110, section 13.1.5).
    pub fn for_range(&self) -> Option<&str> {
        let strong = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        strong.or(self.last_modified.as_deref())
    }
}

/// Priority of a request, in the order in which requests get free permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestPriority {
    /// A client waits for the rest of a file. A download that has begun goes before new ones.
    ClientResumption,
    /// A client waits.
    Client,
    /// No client waits.
    Job,
}

/// One upstream request, with its credentials and conditions.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamRequest<'a> {
    /// The requested item, for messages: "the version list of HOST/NS/TYPE".
    pub subject: &'a str,
    /// The URL to request.
    pub url: &'a Url,
    /// The upstream that the request is for.
    pub upstream: &'a Hostname,
    /// The credentials that may be sent, by origin.
    pub credentials: &'a CredentialScope,
    /// The proxies that the client's request has passed (CDN-Loop).
    pub cdn_loop: &'a CdnLoop,
    /// Retries after a temporary failure.
    pub retries: usize,
    /// Priority of the request.
    pub priority: RequestPriority,
    /// The start of the request.
    pub request_time: RequestTime,
}

impl UpstreamRequest<'_> {
    pub(super) fn failed(&self, origin: String, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.subject.to_owned(), origin, fault }
    }

    /// Makes the error of this request. The error names the origin of `url` only.
    pub(super) fn failed_at(&self, url: &Url, fault: Fault) -> UpstreamError {
        self.failed(origin(url), fault)
    }

    pub(super) fn unusable(&self, url: &Url, reason: impl Into<String>) -> UpstreamError {
        self.failed_at(url, Fault::Unusable(reason.into()))
    }
}

/// Content codings that a request accepts.
#[derive(Debug, Clone, Copy)]
pub enum AcceptedCoding {
    /// gzip, which is decoded on arrival, or no coding.
    Any,
    /// No coding, because the exact bytes count: those of an archive, of SHA256SUMS or of a signature.
    Identity,
}

/// A complete document.
#[derive(Debug, Clone)]
pub struct Document {
    /// The decoded bytes.
    pub body: Bytes,
    /// The media type, as sent.
    pub content_type: Option<String>,
    /// Validators for the next conditional request.
    pub validators: Validators,
    /// Final URL after redirects; relative URLs in the document resolve against it.
    pub url: Url,
    /// The requested origins, in the order of the redirects.
    pub origins: Vec<Origin>,
    /// The `X-Terraform-Get` header, which may arrive without a body (module registry protocol).
    pub location: Option<String>,
    /// The time at the server, from `Date` and `Age`.
    pub date: Option<Timestamp>,
    /// The body's share of the memory budget.
    pub memory: MemoryGrant,
}

impl Document {
    /// Returns true if no redirect led to another origin.
    pub fn is_from_asked_origin(&self) -> bool {
        self.origins.iter().all(|origin| *origin == Origin::of(&self.url))
    }
}

/// Result of a conditional request.
#[expect(clippy::large_enum_variant, reason = "a short-lived value")]
#[derive(Debug, Clone)]
pub enum Fetched {
    /// A new document.
    New(Document),
    /// 304: the cached copy is still valid.
    Unchanged,
}

/// A file whose body is still arriving.
#[derive(Debug)]
pub struct IncomingFile {
    pub(super) body: IncomingBody,
    /// Offset of the first byte of the body: 0, or the start of the requested range.
    pub body_offset: u64,
    /// Length of the whole file, if it is announced.
    pub length: Option<u64>,
    /// Validators for resuming.
    pub validators: Validators,
    pub(super) subject: String,
    pub(super) origin: String,
    pub(super) bytes_counter: Counter,
    /// The place among the fetches of an upstream.
    pub(super) _permit: Option<Permit>,
}

/// The bytes of a file that arrives.
pub(super) enum IncomingBody {
    /// An upstream's answer.
    Response(reqwest::Response),
    /// Bytes of a place of larder's own. The lock is never taken: it makes the type one that threads may share.
    Stream(Mutex<BoxStream<'static, Result<Bytes, Fault>>>),
}

impl fmt::Debug for IncomingBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if let Self::Response(_) = self { "Response" } else { "Stream" })
    }
}

impl IncomingFile {
    /// A file that comes from a place of larder's own, `origin`, from byte `body_offset` on, and has `length` bytes.
    pub fn of_stream(
        subject: String,
        origin: String,
        (body_offset, length): (u64, u64),
        bytes: BoxStream<'static, Result<Bytes, Fault>>,
    ) -> Self {
        let (body, length, validators) = (IncomingBody::Stream(Mutex::new(bytes)), Some(length), Validators::default());
        let bytes_counter = Counter::default();
        Self { body, body_offset, length, validators, subject, origin, bytes_counter, _permit: None }
    }

    /// Reads the next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let read = match &mut self.body {
            IncomingBody::Response(response) => response.chunk().await.map_err(|e| fault_of_client_error(&e)),
            IncomingBody::Stream(bytes) => bytes.get_mut().try_next().await,
        };
        let chunk = read.map_err(|fault| self.upstream_error(fault))?;
        self.bytes_counter.inc_by(chunk.as_ref().map_or(0, Bytes::len) as u64);
        Ok(chunk)
    }

    /// Makes the error of this download from a fault.
    pub fn upstream_error(&self, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.subject.clone(), origin: self.origin.clone(), fault }
    }
}

/// Text of a failed name lookup in the HTTP client, whose error type is private.
const NO_SUCH_NAME: &str = "dns error";

/// Converts a client error to a fault. The text has the causes but not the URL, whose query may be a secret.
pub(super) fn fault_of_client_error(error: &reqwest::Error) -> Fault {
    let source = std::error::Error::source(error);
    let causes: Vec<_> = std::iter::successors(source, |cause| cause.source()).collect();
    if let Some(refusal) = causes.iter().find_map(|cause| cause.downcast_ref::<EgressRefusal>()) {
        return Fault::Refused(refusal.clone());
    }
    let mut texts: Vec<_> = causes.iter().map(ToString::to_string).filter(|text| !text.contains("://")).collect();
    texts.dedup();
    let reason = if texts.is_empty() { "the connection broke".to_owned() } else { texts.join(": ") };
    tracing::debug!(reason, "a request to an upstream failed");
    if error.is_timeout() {
        return Fault::Slow("no answer in time".to_owned());
    }
    if error.is_decode() {
        return Fault::Unusable(reason);
    }
    if texts.iter().any(|text| text == NO_SUCH_NAME) {
        return Fault::HostNotFound("name not found".to_owned());
    }
    // The innermost cause that larder recognises is the plainest.
    let plain_cause = causes.iter().rev().find_map(|cause| plain_cause(*cause));
    let is_untrusted = causes.iter().any(|cause| innermost(*cause).is::<rustls::Error>());
    let fault = if is_untrusted { Fault::Untrusted } else { Fault::Unreachable };
    fault(plain_cause.unwrap_or(reason))
}

/// The error inside an I/O error, which does not report it as its source; otherwise the error itself.
fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(inner) => innermost(inner),
        None => error,
    }
}

/// The text of a cause that larder recognises.
fn plain_cause(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    use std::io::ErrorKind;
    if let Some(error) = cause.downcast_ref::<rustls::Error>() {
        return Some(tls_cause(error));
    }
    let error = cause.downcast_ref::<std::io::Error>()?;
    if let Some(text) = error.get_ref().and_then(|inner| plain_cause(inner)) {
        return Some(text);
    }
    let text = match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused",
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => "connection reset",
        ErrorKind::UnexpectedEof => "connection closed early",
        ErrorKind::TimedOut => "connection timed out",
        ErrorKind::NetworkUnreachable => "network unreachable",
        ErrorKind::HostUnreachable => "no route to it",
        _ => return None,
    };
    Some(text.to_owned())
}

fn tls_cause(error: &rustls::Error) -> String {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer,
    };
    let text = match error {
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => {
            "no authority that larder trusts has signed its certificate"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => "its certificate has expired",
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "its certificate is for another name"
        }
        rustls::Error::InvalidMessage(_) => "it does not speak TLS",
        _ => return format!("TLS failed: {error}"),
    };
    text.to_owned()
}

/// The value of a header; `None` if it is absent or not ASCII.
pub(super) fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The largest `Age` that is accepted (RFC 9111, section 1.2.2).
const MAX_AGE_SECONDS: u64 = 1 << 31;

/// The time at the origin: its `Date`, plus the `Age` that a cache adds.
pub fn server_time(headers: &HeaderMap) -> Option<Timestamp> {
    let text = |name| header_text(headers, name).map(str::trim);
    let date = httpdate::parse_http_date(text(header::DATE)?).ok().map(Timestamp::of)?;
    let age = text(header::AGE).and_then(|age| age.parse().ok()).unwrap_or(0).min(MAX_AGE_SECONDS);
    Some(Timestamp(date.0.saturating_add(age)))
}

/// The Retry-After of an answer that was received at `now`. The header has seconds, or a date, which is compared with
/// the server's own time.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = header_text(headers, header::RETRY_AFTER)?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that overflows still means a long time; callers limit it.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(text).ok().map(Timestamp::of)?;
    Some(until.since(server_time(headers).unwrap_or(now)))
}

/// Parses `bytes 5-9/10` to (5, Some(10)). `None` for a value that contradicts itself (RFC 9110, section 14.4).
pub fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    // `parse` alone would accept a sign.
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last) = (number(start)?, number(last)?);
    let total = if total == "*" { None } else { Some(number(total)?) };
    (start <= last && total.is_none_or(|total| last < total)).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp(784_111_777);

    fn retry_after_seconds(value: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        if let Some(date) = date {
            headers.insert(header::DATE, date.parse().unwrap());
        }
        retry_after(&headers, NOW).map(|time| time.as_secs())
    }

    #[test]
    fn seconds_and_dates_are_parsed_and_other_values_are_ignored() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (value, server_date, expected) in [
            ("120", None, Some(120)),
            (" 0 ", None, Some(0)),
            ("99999999999999999999999", None, Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", None, Some(60)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None, Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("soon"), Some(60)),
            (date, None, Some(0)),
            ("-1", None, None),
            ("1.5", None, None),
            ("soon", None, None),
            ("", None, None),
        ] {
            assert_eq!(retry_after_seconds(value, server_date), expected, "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), NOW), None);
    }

    /// A shared cache may answer with an old response, whose `Age` says how old.
    #[test]
    fn the_age_of_an_answer_is_added_to_its_date() {
        for (age, expected) in
            [("", 0), ("86400", 86_400), (" 5 ", 5), ("-5", 0), ("soon", 0), ("99999999999", 1 << 31)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
            headers.insert(header::AGE, age.parse().unwrap());
            assert_eq!(server_time(&headers), Some(Timestamp(NOW.0 + expected)), "{age:?}");
        }
    }

    proptest! {
        #[test]
        fn any_header_values_are_parsed_or_ignored(value in "[ -~]{0,40}", date in "[ -~]{0,40}") {
            let _ = retry_after_seconds(&value, Some(&date));
        }
    }

    /// A Content-Range that contradicts itself is invalid (RFC 9110, section 14.4).
    #[test]
    fn a_contradictory_content_range_is_invalid() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for invalid in [
            "bytes 5-4/10",
            "bytes 5-9/2",
            "bytes 5-9/9",
            "bytes 5-9/x",
            "bytes 5-9/",
            "bytes 5-9",
            "bytes 5-/10",
            "bytes 5-x/10",
            "bytes +5-9/10",
            "bytes 5-9/+10",
            "bytes */10",
            "items 5-9/10",
        ] {
            assert_eq!(content_range(invalid), None, "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn any_header_value_is_parsed_or_refused(value in "[ -~]{0,40}") {
            let _ = content_range(&value);
        }

        #[test]
        fn a_printed_content_range_parses_to_the_same_values(start in any::<u64>(), length in 1..u64::MAX, after_range in prop::option::of(any::<u64>())) {
            let last = start.saturating_add(length - 1);
            let total = after_range.map(|after_range| last.saturating_add(after_range)).filter(|total| *total > last);
            let printed = total.map_or("*".to_owned(), |total| total.to_string());
            prop_assert_eq!(content_range(&format!("bytes {start}-{last}/{printed}")), Some((start, total)));
        }
    }
}
