//! Requests to upstreams, and how their answers arrive.

use bytes::Bytes;
use http::header::{self, HeaderMap};
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use url::Url;

use super::CredentialScope;
use super::breaker::Origin;
use super::concurrency_limits::Permit;
use super::egress_policy::EgressRefusal;
use super::error::{Fault, UpstreamError};
use super::memory_budget::MemoryGrant;
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
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED) }
    }

    /// The value for If-Range: a strong ETag, else the date (RFC 9110, section 13.1.5).
    pub(super) fn for_range(&self) -> Option<&str> {
        let strong = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        strong.or(self.last_modified.as_deref())
    }
}

/// Priority of a request. Free permits go to clients first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPriority {
    /// A client waits.
    Client,
    /// A client waits in the middle of a file. These requests go first.
    ClientMidway,
    /// No client waits.
    Job,
}

/// One upstream request, with its credentials and conditions.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamRequest<'a> {
    /// Label for people: "the version list of HOST/NS/TYPE".
    pub label: &'a str,
    /// The URL to request.
    pub url: &'a Url,
    /// The upstream that the request is for.
    pub upstream: &'a Hostname,
    /// The credentials that may be sent, by origin.
    pub credentials: &'a CredentialScope,
    /// The proxies that the client's request has passed (CDN-Loop).
    pub via: &'a CdnLoop,
    /// Retries after a temporary failure.
    pub retries: usize,
    /// Priority of the request.
    pub priority: RequestPriority,
    /// Time of the request.
    pub now: Timestamp,
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
    /// The `X-Terraform-Get` header, which may arrive without a body (PROTOCOL, section 4.3).
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
    pub(super) response: reqwest::Response,
    /// Offset of the first byte of the body: 0, or the start of the requested range.
    pub from: u64,
    /// Length of the whole file, if it is announced.
    pub length: Option<u64>,
    /// Validators for resuming.
    pub validators: Validators,
    pub(super) subject: String,
    pub(super) origin: String,
    pub(super) bytes_counter: Counter,
    pub(super) _permit: Permit,
}

impl IncomingFile {
    /// Reads the next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        match self.response.chunk().await {
            Ok(chunk) => {
                self.bytes_counter.inc_by(chunk.as_ref().map_or(0, Bytes::len) as u64);
                Ok(chunk)
            }
            Err(e) => Err(self.failed(fault_of_client_error(&e))),
        }
    }

    /// Makes the error of this download from a fault.
    pub fn failed(&self, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.subject.clone(), origin: self.origin.clone(), fault }
    }
}

/// Text of a failed name lookup in the HTTP client, whose error type is private.
const NO_SUCH_NAME: &str = "dns error";

/// Converts a client error to a fault. The text has the causes but not the URL, whose query may be a secret.
pub(super) fn fault_of_client_error(error: &reqwest::Error) -> Fault {
    let mut causes = Vec::new();
    let mut connection_fault: fn(String) -> Fault = Fault::Unreachable;
    let mut next_cause = std::error::Error::source(error);
    while let Some(cause) = next_cause {
        if let Some(refusal) = cause.downcast_ref::<EgressRefusal>() {
            return Fault::Refused(refusal.clone());
        }
        let text = cause.to_string();
        if is_tls_error(cause) {
            connection_fault = Fault::Untrusted;
        } else if text == NO_SUCH_NAME {
            connection_fault = Fault::NoSuchName;
        }
        if causes.last() != Some(&text) && !text.contains("://") {
            causes.push(text);
        }
        next_cause = cause.source();
    }
    let reason = if causes.is_empty() { "the connection broke".to_owned() } else { causes.join(": ") };
    tracing::debug!(reason, "a request to an upstream failed");
    if error.is_timeout() {
        Fault::Slow("no answer in time".to_owned())
    } else if error.is_decode() {
        Fault::Unusable(reason)
    } else {
        connection_fault(plain_cause(error).unwrap_or(reason))
    }
}

/// A short text for the innermost cause that larder recognises.
fn plain_cause(error: &reqwest::Error) -> Option<String> {
    let mut next_cause = std::error::Error::source(error);
    let mut text = None;
    while let Some(cause) = next_cause {
        text = tls_cause(cause).or_else(|| io_cause(cause)).or(text);
        if cause.to_string() == NO_SUCH_NAME {
            text = Some("name not found".to_owned());
            break;
        }
        next_cause = cause.source();
    }
    text
}

fn io_cause(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    use std::io::ErrorKind;
    let error = cause.downcast_ref::<std::io::Error>()?;
    if let Some(text) = error.get_ref().and_then(|inner| tls_cause(inner).or_else(|| io_cause(inner))) {
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

fn tls_cause(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer,
    };
    let text = match cause.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => {
            "no authority that larder trusts has signed its certificate"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => "its certificate has expired",
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "its certificate is for another name"
        }
        rustls::Error::InvalidMessage(_) => "it does not speak TLS",
        _ => return Some(format!("TLS failed: {cause}")),
    };
    Some(text.to_owned())
}

/// Returns true for a TLS error, also inside an I/O error, which does not report its inner error as its source.
fn is_tls_error(cause: &(dyn std::error::Error + 'static)) -> bool {
    match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(inner) => is_tls_error(inner),
        None => cause.is::<rustls::Error>(),
    }
}
