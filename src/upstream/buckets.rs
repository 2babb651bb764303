//! The way out to the bucket of a fleet, and to what gives the key for it. Only the configuration and the platform name these
//! destinations, so they may have any address, also offline: what is there is larder's own. No redirect is followed.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::time::timeout;
use url::Url;

use super::clients::{Clients, ConnectorError};
use super::egress_policy::{EgressPolicy, HttpClientKind};
use super::error::{Fault, sanitized};
use super::request::{AcceptedCoding, fault_of_client_error};
use crate::config;
use crate::labels::labelled_enum;

/// The longest time in which neither the bucket takes a byte of the request nor an answer comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the completion of an upload.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(60);
/// The bytes of a request that are handed to the connection at a time.
const SENT_BYTES: usize = 64 * 1024;
/// The longest answer that is no object, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

labelled_enum! {
    /// The kinds of trouble with a bucket. Metrics, logs and messages use the same word.
    pub BucketTrouble {
        /// The key has no right to it, or is wrong. Never a sign that an object is absent.
        Denied "denied",
        /// A quota or a disk is full.
        Full "full",
        /// It asks for fewer requests.
        Slow "slow",
        /// It gives no answer in time.
        Silent "silent",
        /// No connection, or one that broke.
        Unreachable "unreachable",
        /// The clock of this machine or of the bucket is wrong, so that no signature counts.
        WrongClock "wrong-clock",
        /// The bytes that arrived are not those that were sent.
        WrongBytes "wrong-bytes",
        /// There is no such object.
        NoObject "no-object",
        /// There is no such bucket.
        NoBucket "no-bucket",
        /// Anything else.
        Broken "broken",
    }
}

impl BucketTrouble {
    /// The kind of an answer, by its status and the code in its body.
    fn of(status: StatusCode, code: &str) -> Self {
        match (status.as_u16(), code) {
            (_, "RequestTimeTooSkewed") => Self::WrongClock,
            (_, "QuotaExceeded" | "InsufficientCapacity" | "XMinioStorageFull") | (507, _) => Self::Full,
            (_, "NoSuchBucket" | "ContainerNotFound") => Self::NoBucket,
            (
                _,
                "BadDigest"
                | "InvalidDigest"
                | "XAmzContentSHA256Mismatch"
                | "XAmzContentChecksumMismatch"
                | "Md5Mismatch",
            ) => Self::WrongBytes,
            (401 | 403, _)
            | (
                _,
                "ExpiredToken"
                | "InvalidToken"
                | "AuthenticationFailed"
                | "AuthorizationFailure"
                | "AuthorizationPermissionMismatch"
                | "InsufficientAccountPermissions"
                | "invalid_grant"
                | "invalid_client"
                | "unauthorized_client",
            ) => Self::Denied,
            // An answer to HEAD has no body. A proxy before a bucket that is down answers 404, too.
            // 202: a removal, which Azure takes in a batch.
            (202 | 404, "NoSuchKey" | "BlobNotFound") | (404, "") => Self::NoObject,
            (429 | 503, _) | (_, "SlowDown" | "RequestTimeout" | "OperationTimedOut" | "ServerBusy") => Self::Slow,
            _ => Self::Broken,
        }
    }
}

impl fmt::Display for BucketTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// A request that the bucket did not fulfil.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{said}")]
pub struct BucketFault {
    /// The kind of trouble.
    pub trouble: BucketTrouble,
    /// The answer, in words.
    pub said: String,
}

impl BucketFault {
    /// No answer in time.
    pub fn silent(limit: Duration) -> Self {
        Self { trouble: BucketTrouble::Silent, said: format!("no answer within {} s", limit.as_secs()) }
    }

    fn of_client(error: &reqwest::Error) -> Self {
        let fault = fault_of_client_error(error);
        let trouble = if let Fault::Slow(_) = fault { BucketTrouble::Silent } else { BucketTrouble::Unreachable };
        let said = match fault {
            Fault::Unreachable(reason) | Fault::HostNotFound(reason) | Fault::Untrusted(reason) => reason,
            fault => fault.to_string(),
        };
        Self { trouble, said }
    }

    fn of_answer(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let said = SaidError::in_xml(&String::from_utf8_lossy(body)).or_else(|| SaidError::in_json(body));
        // One without a code is not that of a bucket.
        let said = said.filter(|said| !said.code.trim().is_empty());
        let SaidError { code, message } = said.unwrap_or_else(|| SaidError {
            // Azure says it in a header, too, which is all where there is no body.
            code: match headers.get("x-ms-error-code").and_then(|code| code.to_str().ok()) {
                Some(code) => code.to_owned(),
                None if body.trim_ascii().is_empty() => String::new(),
                None => "no answer of a bucket".to_owned(),
            },
            message: String::new(),
        });
        let quoted = sanitized(&format!("{code} {message}"));
        let said =
            if quoted.is_empty() { status.as_u16().to_string() } else { format!("{} {quoted}", status.as_u16()) };
        Self { trouble: BucketTrouble::of(status, &code), said }
    }
}

/// An error as an object store, or what gives the key for it, says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SaidError {
    code: String,
    message: String,
}

impl SaidError {
    /// The error of an object store: `<Error><Code>…</Code><Message>…</Message></Error>`.
    fn in_xml(body: &str) -> Option<Self> {
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            Some(rest.split_once('<')?.0.to_owned())
        };
        element("Code").map(|code| Self { code, message: element("Message").unwrap_or_default() })
    }

    /// The error of a service that gives keys, `{"error": "…", "error_description": "…"}` (RFC 6749, section 5.2); or of Google's interfaces,
    /// `{"error": {"status": "…", "message": "…"}}`.
    fn in_json(body: &[u8]) -> Option<Self> {
        let said: serde_json::Value = serde_json::from_slice(body).ok()?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        match &said["error"] {
            serde_json::Value::String(code) => {
                Some(Self { code: code.clone(), message: text(&said["error_description"]) })
            }
            error @ serde_json::Value::Object(_) => {
                Some(Self { code: text(&error["status"]), message: text(&error["message"]) })
            }
            _ => None,
        }
    }
}

/// A mark of requests whose answer is an object, of any length: it is read while it arrives.
#[derive(Debug, Clone, Copy)]
pub struct TakesObject;

/// A mark of requests whose body changes on the way, so that a bucket can show that it notices.
#[derive(Debug, Clone, Copy)]
pub struct SpoiltBody;

/// The connector to a bucket.
#[derive(Debug, Clone)]
pub struct BucketConnector {
    client: reqwest::Client,
}

impl BucketConnector {
    /// A connector that trusts the authorities of `network`, and uses the proxies of the environment.
    ///
    /// # Errors
    /// [`ConnectorError`] for unusable certificates.
    pub fn new(network: &config::Network) -> Result<Self, ConnectorError> {
        let clients = Clients::new(network, Vec::new(), &[], &EgressPolicy::new(&[]))?;
        Ok(Self { client: clients.client(HttpClientKind::Unrestricted, AcceptedCoding::Identity).clone() })
    }

    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, BucketFault> {
        let takes_object = request.extensions().get::<TakesObject>().is_some();
        let is_spoilt = request.extensions().get::<SpoiltBody>().is_some();
        let (parts, body) = request.into_parts();
        let broken = |said: String| BucketFault { trouble: BucketTrouble::Broken, said };
        let url = Url::parse(&parts.uri.to_string()).map_err(|bad| broken(format!("its URL cannot be used: {bad}")))?;
        // It may have to copy all parts.
        let completes = match (&parts.method, url.query().unwrap_or_default()) {
            (&Method::POST, query) => query.contains("uploadId="),
            (&Method::PUT, query) => query.contains("comp=blocklist"),
            _ => false,
        };
        let (is_write, taken) = (matches!(parts.method, Method::PUT | Method::POST), Arc::<AtomicU64>::default());
        let mut sent = self.client.request(parts.method, url).headers(parts.headers);
        if is_write {
            let left = body.content_length() as u64;
            sent = sent.body(reqwest::Body::wrap(SentBody {
                body,
                left,
                is_spoilt,
                piece: Bytes::new(),
                taken: Arc::clone(&taken),
            }));
        }
        let answered = async {
            let response = sent.send().await.map_err(|error| BucketFault::of_client(&error))?;
            let (parts, body) = Response::<reqwest::Body>::from(response).into_parts();
            if parts.status.is_success() && takes_object {
                let body = body.map_err(|error| as_http_error(BucketFault::of_client(&error)));
                return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
            }
            let read = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            let bytes = read.map_err(|_| broken("its answer broke off, or is too long".to_owned()))?.to_bytes();
            // An upload that is completed may fail with status 200.
            let has_failed = is_write && contains(&bytes, b"<Error");
            if !parts.status.is_success() || has_failed {
                return Err(BucketFault::of_answer(parts.status, &parts.headers, &bytes));
            }
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)))
        };
        let limit = if completes { COMPLETE_TIMEOUT } else { ANSWER_TIMEOUT };
        let (mut answered, mut before) = (pin!(answered), 0);
        loop {
            match timeout(limit, answered.as_mut()).await {
                Ok(answered) => return answered,
                Err(_) if taken.load(Ordering::Relaxed) > before => before = taken.load(Ordering::Relaxed),
                Err(_) => return Err(BucketFault::silent(limit)),
            }
        }
    }
}

/// The body of a request in small pieces, and a count of the bytes that the connection has taken.
struct SentBody {
    body: HttpRequestBody,
    piece: Bytes,
    left: u64,
    is_spoilt: bool,
    taken: Arc<AtomicU64>,
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = self.get_mut();
        if this.piece.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => this.piece = frame.into_data().unwrap_or_default(),
                ended => return Poll::Ready(ended),
            }
        }
        let piece = this.piece.split_to(this.piece.len().min(SENT_BYTES));
        this.left = this.left.saturating_sub(piece.len() as u64);
        this.taken.fetch_add(piece.len() as u64, Ordering::Relaxed);
        let piece = if this.is_spoilt { piece.iter().map(|byte| !byte).collect() } else { piece };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn contains(bytes: &Bytes, part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The fault as the library carries it, which never repeats a request of this kind.
fn as_http_error(fault: BucketFault) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, fault)
}

impl HttpConnector for BucketConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for BucketConnector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.answer(request).await.map_err(as_http_error)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// Amazon, Azure and Google each say it in their own way; a body of anybody else is never taken for "there is no such object".
    #[test]
    fn each_answer_has_its_trouble_and_its_words() {
        let xml =
            |code: &str| format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>why</Message></Error>");
        let oauth = r#"{"error": "invalid_grant", "error_description": "the account is gone"}"#;
        let google = r#"{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}"#;
        for (status, header, body, trouble, said) in [
            (404, None, xml("NoSuchKey"), BucketTrouble::NoObject, "404 NoSuchKey why"),
            (404, None, xml("BlobNotFound"), BucketTrouble::NoObject, "404 BlobNotFound why"),
            (404, Some("BlobNotFound"), String::new(), BucketTrouble::NoObject, "404 BlobNotFound"),
            (404, Some("ContainerNotFound"), String::new(), BucketTrouble::NoBucket, "404 ContainerNotFound"),
            (404, None, String::new(), BucketTrouble::NoObject, "404"),
            // The answer to a removal, in a batch of Azure.
            (202, None, xml("BlobNotFound"), BucketTrouble::NoObject, "202 BlobNotFound why"),
            (202, None, xml("AuthorizationFailure"), BucketTrouble::Denied, "202 AuthorizationFailure why"),
            (404, None, "<html>not here</html>".to_owned(), BucketTrouble::Broken, "404 no answer of a bucket"),
            (404, None, "{}".to_owned(), BucketTrouble::Broken, "404 no answer of a bucket"),
            (
                404,
                None,
                r#"{"error": {"code": 404, "message": "Not Found"}}"#.to_owned(),
                BucketTrouble::Broken,
                "404 no answer of a bucket",
            ),
            (404, None, r#"{"error": ""}"#.to_owned(), BucketTrouble::Broken, "404 no answer of a bucket"),
            (404, None, xml(" "), BucketTrouble::Broken, "404 no answer of a bucket"),
            (403, None, xml("AuthenticationFailed"), BucketTrouble::Denied, "403 AuthenticationFailed why"),
            (500, None, xml("NoSuchKey"), BucketTrouble::Broken, "500 NoSuchKey why"),
            (403, None, xml("NoSuchKey"), BucketTrouble::Denied, "403 NoSuchKey why"),
            (503, None, xml("ServerBusy"), BucketTrouble::Slow, "503 ServerBusy why"),
            (500, None, xml("OperationTimedOut"), BucketTrouble::Slow, "500 OperationTimedOut why"),
            (400, None, oauth.to_owned(), BucketTrouble::Denied, "400 invalid_grant the account is gone"),
            (403, None, google.to_owned(), BucketTrouble::Denied, "403 PERMISSION_DENIED no"),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(code) = header {
                headers.insert("x-ms-error-code", HeaderValue::from_static(code));
            }
            let fault = BucketFault::of_answer(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes());
            assert_eq!((fault.trouble, fault.said.trim()), (trouble, said), "{body}");
        }
    }
}
