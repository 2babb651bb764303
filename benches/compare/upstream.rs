//! The registry behind all compared servers: answers from memory, compresses documents for clients that accept gzip,
//! counts requests, and limits the rate of large answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, VARY,
};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsAcceptor;

use crate::catalog;
use crate::tls::{self, Certificate};

/// The size of a piece of a rate-limited answer.
const PIECE_BYTES: usize = 64 * 1024;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A document or a file that is served at a path.
#[derive(Clone)]
pub(crate) struct ServedFile {
    content_type: &'static str,
    body: Bytes,
    gzip: Option<Bytes>,
    /// The limit of the speed; `None` for no limit.
    bytes_per_second: Option<u64>,
}

impl ServedFile {
    /// A document.
    pub(crate) fn json(text: String) -> anyhow::Result<Self> {
        let gzip = Some(catalog::gzip(text.as_bytes())?);
        Ok(Self { content_type: "application/json", body: text.into(), gzip, bytes_per_second: None })
    }

    /// A file.
    pub(crate) fn file(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { content_type, body: body.into(), gzip: None, bytes_per_second: None }
    }

    /// Limits the speed to this many bytes per second.
    pub(crate) fn limited_to(self, bytes_per_second: u64) -> Self {
        Self { bytes_per_second: Some(bytes_per_second), ..self }
    }

    /// Sizes of the body: plain, and gzip.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.body.len(), self.gzip.as_ref().map_or(0, Bytes::len))
    }

    pub(crate) fn body(&self) -> &Bytes {
        &self.body
    }

    pub(crate) fn is_archive(&self) -> bool {
        self.content_type == "application/zip"
    }
}

/// A running registry. Stops with the runtime.
#[derive(Clone)]
pub(crate) struct Upstream {
    address: SocketAddr,
    content: Arc<Mutex<Content>>,
}

#[derive(Default)]
struct Content {
    files: HashMap<String, ServedFile>,
    request_counts: HashMap<String, u64>,
    latency: Duration,
}

impl Upstream {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let upstream = Self { address: listener.local_addr()?, content: Arc::default() };
        upstream.publish("/.well-known/terraform.json".into(), catalog::discovery()?);
        tokio::spawn(upstream.clone().serve(listener, None));
        Ok(upstream)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn publish(&self, path: String, file: ServedFile) {
        self.content.lock().files.insert(path, file);
    }

    /// The number of requests for this path.
    pub(crate) fn request_count(&self, path: &str) -> u64 {
        self.content.lock().request_counts.get(path).copied().unwrap_or(0)
    }

    /// Delays the beginning of each further answer by this time.
    pub(crate) fn answer_after(&self, latency: Duration) {
        self.content.lock().latency = latency;
    }

    /// Listens with TLS, too; returns the address.
    pub(crate) async fn listen_with_tls(&self, certificate: &Certificate) -> anyhow::Result<SocketAddr> {
        let config = tls::server_config(&certificate.certificate_file, &certificate.key_file)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(self.clone().serve(listener, Some(TlsAcceptor::from(config))));
        Ok(address)
    }

    async fn serve(self, listener: TcpListener, tls: Option<TlsAcceptor>) {
        while let Ok((stream, _)) = listener.accept().await {
            let (upstream, tls) = (self.clone(), tls.clone());
            let service = service_fn(move |request| {
                let (answer, latency) = (upstream.answer(&request), upstream.content.lock().latency);
                async move {
                    if !latency.is_zero() {
                        sleep(latency).await;
                    }
                    Ok::<_, Infallible>(answer)
                }
            });
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                // A client may close its connection.
                match tls {
                    None => drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await),
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            let http = auto::Builder::new(TokioExecutor::new());
                            drop(http.serve_connection(TokioIo::new(stream), service).await);
                        }
                    }
                }
            });
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        let file = {
            let mut content = self.content.lock();
            *content.request_counts.entry(path.to_owned()).or_default() += 1;
            content.files.get(path).cloned()
        };
        let Some(file) = file else {
            let mut not_found = Response::new(unlimited(Bytes::from_static(b"{\"errors\":[\"Not Found\"]}")));
            *not_found.status_mut() = StatusCode::NOT_FOUND;
            return not_found;
        };
        let gzip = file.gzip.as_ref().filter(|_| accepts_gzip(request.headers()));
        let body = gzip.unwrap_or(&file.body).clone();
        let mut response = Response::new(Body::default());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
        headers.insert(CONTENT_LENGTH, body.len().into());
        // The tag only has to be unique among the files.
        let tag = format!("\"{:x}-{}\"", body.len(), path.len());
        headers.extend(tag.parse().map(|tag: HeaderValue| (ETAG, tag)));
        if file.gzip.is_some() {
            headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if gzip.is_some() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        *response.body_mut() = match file.bytes_per_second {
            Some(bytes_per_second) => rate_limited(body, bytes_per_second),
            None => unlimited(body),
        };
        response
    }
}

/// True if an answer may be gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT_ENCODING).is_some_and(|value| value.to_str().is_ok_and(|value| value.contains("gzip")))
}

fn unlimited(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

/// A body with an average speed: a client that reads slowly for a moment may catch up.
fn rate_limited(body: Bytes, bytes_per_second: u64) -> Body {
    let began = Instant::now();
    let pieces = stream::unfold((body, 0_u64), move |(mut rest, sent)| async move {
        if rest.is_empty() {
            return None;
        }
        sleep_until(began + Duration::from_secs_f64(sent as f64 / bytes_per_second as f64)).await;
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        let sent = sent + piece.len() as u64;
        Some((Ok(Frame::data(piece)), (rest, sent)))
    });
    StreamBody::new(pieces).boxed_unsync()
}
