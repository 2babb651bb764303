//! The listener as clients see it, over real sockets.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

use std::{
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
};

use futures_util::stream;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Frame, client::conn};
use hyper_util::rt::TokioExecutor;
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::super::RequestMetrics;
use super::*;

type TestBody = BoxBody<Bytes, io::Error>;

const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener on a free port, with a handler that answers by path.
struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<()>,
    /// Frames for `/fed`.
    feed: mpsc::UnboundedSender<Result<Frame<Bytes>, io::Error>>,
    /// Number of answers started.
    requests: Arc<AtomicUsize>,
}

impl Served {
    async fn start(limits: Limits) -> Self {
        Self::start_with(limits, None).await
    }

    async fn start_with(limits: Limits, tls: Option<Arc<Tls>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (feed, fed) = mpsc::unbounded_channel();
        let fed = Arc::new(parking_lot::Mutex::new(Some(fed)));
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let handler = move |request: Request<Incoming>, peer: Peer| {
            counted.fetch_add(1, Ordering::SeqCst);
            let fed = Arc::clone(&fed);
            async move { respond(request.uri().path(), peer, || fed.lock().take().expect("/fed is asked for once")) }
        };
        let slots = ConnectionSlots::new(&limits, RequestMetrics::default());
        let running = tokio::spawn(serve(listener, tls, limits, slots, |_| PeerClass::Client, handler, stop.clone()));
        Self { address, stop, running, feed, requests }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn feed(&self, bytes: &'static [u8]) {
        self.feed.send(Ok(Frame::data(Bytes::from_static(bytes)))).unwrap();
    }

    async fn wait_for_end(self) {
        in_time(self.running).await.unwrap();
    }
}

fn respond(
    path: &str,
    peer: Peer,
    fed: impl FnOnce() -> mpsc::UnboundedReceiver<Result<Frame<Bytes>, io::Error>>,
) -> Response<TestBody> {
    let whole = |text: String| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
    let broken = || {
        let frames = [Ok(Frame::data(Bytes::from_static(b"some"))), Err(io::Error::other("upstream lied"))];
        StreamBody::new(stream::iter(frames)).boxed()
    };
    match path {
        "/fed" => {
            let mut fed = fed();
            Response::new(BodyExt::boxed(StreamBody::new(stream::poll_fn(move |cx| fed.poll_recv(cx)))))
        }
        "/endless" => Response::new(BodyExt::boxed(Endless)),
        "/panic" => panic!("asked to"),
        "/panic-in-body" => Response::new(BodyExt::boxed(Panicking)),
        "/broken-length" => Response::builder().header("content-length", 100).body(broken()).unwrap(),
        "/broken-chunked" => Response::new(broken()),
        "/short" => {
            let frames = stream::iter([Ok(Frame::data(Bytes::from_static(b"short")))]);
            Response::builder().header("content-length", 100).body(StreamBody::new(frames).boxed()).unwrap()
        }
        "/head-length" => Response::builder()
            .header("content-length", 1234)
            .body(Empty::new().map_err(|never| match never {}).boxed())
            .unwrap(),
        "/head-none" => Response::new(Empty::new().map_err(|never| match never {}).boxed()),
        _ => Response::new(whole(format!("secure={}", peer.tls.is_some()))),
    }
}

struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; 65536])))))
    }
}

struct Panicking;

impl Body for Panicking {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        panic!("asked to, in the body")
    }
}

async fn in_time<F: Future>(future: F) -> F::Output {
    timeout(TEST_TIMEOUT, future).await.expect("it takes too long")
}

/// Reads until the other side closes.
async fn read_to_end(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let _reset_or_end = in_time(socket.read_to_end(&mut read)).await;
    String::from_utf8_lossy(&read).into_owned()
}

async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(end) {
        read.push(in_time(socket.read_u8()).await.unwrap());
    }
    String::from_utf8(read).unwrap()
}

async fn h1_ask(socket: &mut TcpStream, line: &str) {
    socket.write_all(format!("{line} HTTP/1.1\r\nhost: larder\r\n\r\n").as_bytes()).await.unwrap();
}

type H2 = conn::http2::SendRequest<Empty<Bytes>>;

async fn h2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(socket: S) -> (H2, JoinHandle<hyper::Result<()>>) {
    let (sender, connection) = conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    (sender, tokio::spawn(connection))
}

async fn h2_ask(sender: &mut H2, method: &str, path: &str) -> hyper::Result<Response<Incoming>> {
    let request = Request::builder().method(method).uri(format!("http://larder{path}")).body(Empty::new()).unwrap();
    in_time(sender.send_request(request)).await
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(in_time(response.into_body().collect()).await.unwrap().to_bytes().to_vec()).unwrap()
}

struct Pki {
    folder: TempDir,
    der: CertificateDer<'static>,
}

impl Pki {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self { folder, der: CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap() }
    }

    fn tls(&self) -> Arc<Tls> {
        Arc::new(Tls::load(&self.folder.path().join("cert.pem"), &self.folder.path().join("key.pem")).unwrap())
    }

    async fn connect(&self, served: &Served, protocol: &str) -> TlsStream<TcpStream> {
        self.connect_offering(served, &[protocol]).await
    }

    async fn connect_offering(&self, served: &Served, protocols: &[&str]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, served.connect().await).await.unwrap()
    }
}

/// Limits that allow both HTTP versions.
fn both() -> Limits {
    Limits { http2: true, ..Limits::default() }
}

/// DESIGN, promise 15: HTTP/2 has no reason phrase, and clients choose it wherever it is offered.
#[tokio::test]
async fn http2_is_neither_offered_nor_taken_unless_it_is_allowed() {
    let pki = Pki::new();
    let plain = Served::start(Limits::default()).await;
    let (mut sender, _) = h2(plain.connect().await).await;
    assert!(h2_ask(&mut sender, "GET", "/").await.is_err());
    let secure = Served::start_with(Limits::default(), Some(pki.tls())).await;
    let socket = pki.connect_offering(&secure, &["h2", "http/1.1"]).await;
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!((plain.requests.load(Ordering::SeqCst), secure.requests.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn http1_and_http2_are_answered_on_a_plain_socket() {
    let served = Served::start(both()).await;
    let mut socket = served.connect().await;
    h1_ask(&mut socket, "GET /").await;
    assert!(read_until(&mut socket, "secure=false").await.starts_with("HTTP/1.1 200 OK"));
    let (mut sender, _) = h2(served.connect().await).await;
    assert_eq!(text(h2_ask(&mut sender, "GET", "/").await.unwrap()).await, "secure=false");
}

#[tokio::test]
async fn http1_and_http2_are_answered_over_tls_as_agreed_by_alpn() {
    let pki = Pki::new();
    let served = Served::start_with(both(), Some(pki.tls())).await;
    let socket = pki.connect(&served, "h2").await;
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, _) = h2(socket).await;
    assert_eq!(text(h2_ask(&mut sender, "GET", "/").await.unwrap()).await, "secure=true");
    let socket = pki.connect(&served, "http/1.1").await;
    let (mut sender, connection) = conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().uri("/").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(text(in_time(sender.send_request(request)).await.unwrap()).await, "secure=true");
}

#[tokio::test]
async fn a_silent_handshake_is_cut_and_holds_up_nobody() {
    let pki = Pki::new();
    let limits = Limits { handshake: Duration::from_millis(300), ..both() };
    let served = Served::start_with(limits, Some(pki.tls())).await;
    let mut silent = served.connect().await;
    let (mut sender, _) = h2(pki.connect(&served, "h2").await).await;
    assert_eq!(text(h2_ask(&mut sender, "GET", "/").await.unwrap()).await, "secure=true");
    assert_eq!(read_to_end(&mut silent).await, "");
}

#[tokio::test]
async fn a_drain_lets_a_running_download_finish_and_refuses_new_connections() {
    let served = Served::start(both()).await;
    let mut idle = served.connect().await;
    h1_ask(&mut idle, "GET /").await;
    read_until(&mut idle, "secure=false").await;
    let mut socket = served.connect().await;
    h1_ask(&mut socket, "GET /fed").await;
    served.feed(b"first");
    read_until(&mut socket, "first").await;
    served.stop.cancel();
    assert_eq!(read_to_end(&mut idle).await, "");
    let refused = async { while TcpStream::connect(served.address).await.is_ok() {} };
    in_time(refused).await;
    assert!(!served.running.is_finished());
    served.feed(b"last");
    let Served { feed, running, .. } = served;
    drop(feed);
    assert!(read_to_end(&mut socket).await.ends_with("last\r\n0\r\n\r\n"));
    in_time(running).await.unwrap();
}

#[tokio::test]
async fn a_drain_lets_an_http2_download_finish() {
    let served = Served::start(both()).await;
    let (mut sender, connection) = h2(served.connect().await).await;
    let response = h2_ask(&mut sender, "GET", "/fed").await.unwrap();
    served.stop.cancel();
    served.feed(b"whole");
    let Served { feed, running, .. } = served;
    drop(feed);
    assert_eq!(text(response).await, "whole");
    in_time(running).await.unwrap();
    in_time(connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_drain_cuts_what_does_not_end_within_its_limit() {
    let served = Served::start(Limits { drain: Duration::from_millis(200), ..both() }).await;
    let mut socket = served.connect().await;
    h1_ask(&mut socket, "GET /fed").await;
    served.feed(b"first");
    read_until(&mut socket, "first").await;
    let (mut sender, _) = h2(served.connect().await).await;
    let endless = h2_ask(&mut sender, "GET", "/endless").await.unwrap();
    served.stop.cancel();
    assert!(!read_to_end(&mut socket).await.contains("0\r\n\r\n"));
    assert!(in_time(endless.into_body().collect()).await.is_err());
    served.wait_for_end().await;
}

#[tokio::test]
async fn slow_headers_are_cut_on_a_fresh_and_on_a_kept_connection() {
    let served = Served::start(Limits { header_time: Duration::from_millis(300), ..both() }).await;
    let mut fresh = served.connect().await;
    fresh.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    assert_eq!(read_to_end(&mut fresh).await, "");
    let mut idle_connection = served.connect().await;
    h1_ask(&mut idle_connection, "GET /").await;
    read_until(&mut idle_connection, "secure=false").await;
    idle_connection.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    assert_eq!(read_to_end(&mut idle_connection).await, "");
    assert_eq!(served.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_kept_connection_may_idle_longer_than_a_head_may_take() {
    let limits = Limits { header_time: Duration::from_millis(200), idle: Duration::from_secs(60), ..both() };
    let served = Served::start(limits).await;
    let mut socket = served.connect().await;
    h1_ask(&mut socket, "GET /").await;
    read_until(&mut socket, "secure=false").await;
    let (mut sender, _) = h2(served.connect().await).await;
    text(h2_ask(&mut sender, "GET", "/").await.unwrap()).await;
    // The test shows that nothing happens, so there is no event to wait for.
    tokio::time::sleep(Duration::from_millis(600)).await;
    h1_ask(&mut socket, "GET /").await;
    read_until(&mut socket, "secure=false").await;
    text(h2_ask(&mut sender, "GET", "/").await.unwrap()).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_waiting_download_is_not() {
    let served = Served::start(Limits { idle: Duration::from_millis(300), ..both() }).await;
    let (mut sender, _busy) = h2(served.connect().await).await;
    let response = h2_ask(&mut sender, "GET", "/fed").await.unwrap();
    let (mut idle_sender, idle_h2) = h2(served.connect().await).await;
    text(h2_ask(&mut idle_sender, "GET", "/").await.unwrap()).await;
    let mut idle = served.connect().await;
    h1_ask(&mut idle, "GET /").await;
    read_until(&mut idle, "secure=false").await;
    assert_eq!(read_to_end(&mut idle).await, "");
    in_time(idle_h2).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    served.feed(b"late");
    let Served { feed, .. } = served;
    drop(feed);
    assert_eq!(text(response).await, "late");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_dropped() {
    let served = Served::start(Limits { idle: Duration::from_millis(400), ..both() }).await;
    let mut http1 = served.connect().await;
    h1_ask(&mut http1, "GET /endless").await;
    let (mut sender, http2) = h2(served.connect().await).await;
    let _unread = h2_ask(&mut sender, "GET", "/endless").await.unwrap();
    // The HTTP/2 client reads its socket but opens no window; the HTTP/1 one does not even read.
    let _error_or_end = in_time(http2).await.unwrap();
    served.stop.cancel();
    in_time(served.running).await.unwrap();
    drop(http1);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let served = Served::start(Limits { header_bytes: 8192, ..both() }).await;
    let mut socket = served.connect().await;
    let large = format!("GET / HTTP/1.1\r\nhost: larder\r\nx: {}\r\n", "x".repeat(8192));
    socket.write_all(&large.as_bytes()[..8192]).await.unwrap();
    assert!(read_to_end(&mut socket).await.starts_with("HTTP/1.1 431 "));
    let (mut sender, _) = h2(served.connect().await).await;
    let request = Request::builder().uri("http://larder/").header("x", "x".repeat(9000)).body(Empty::new()).unwrap();
    assert_eq!(in_time(sender.send_request(request)).await.unwrap().status(), 431);
    assert_eq!(served.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_panic_ends_its_request_and_nothing_else() {
    let served = Served::start(both()).await;
    for path in ["/panic", "/panic-in-body"] {
        let mut socket = served.connect().await;
        h1_ask(&mut socket, &format!("GET {path}")).await;
        assert!(!read_to_end(&mut socket).await.contains("0\r\n\r\n"));
    }
    let (mut sender, _) = h2(served.connect().await).await;
    assert!(h2_ask(&mut sender, "GET", "/panic").await.is_err());
    // The reset may overtake the head.
    if let Ok(response) = h2_ask(&mut sender, "GET", "/panic-in-body").await {
        assert!(in_time(response.into_body().collect()).await.is_err());
    }
    assert_eq!(text(h2_ask(&mut sender, "GET", "/").await.unwrap()).await, "secure=false");
}

#[tokio::test]
async fn a_body_that_fails_or_falls_short_is_never_complete_for_the_client() {
    let served = Served::start(both()).await;
    for path in ["/broken-length", "/broken-chunked", "/short"] {
        let (mut sender, connection) = conn::http1::handshake(TokioIo::new(served.connect().await)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().uri(path).header("host", "larder").body(Empty::<Bytes>::new()).unwrap();
        // Hyper may close before it has flushed the head.
        if let Ok(response) = in_time(sender.send_request(request)).await {
            assert!(in_time(response.into_body().collect()).await.is_err(), "{path}");
        }
        let mut socket = served.connect().await;
        h1_ask(&mut socket, &format!("GET {path}")).await;
        assert!(!read_to_end(&mut socket).await.ends_with("0\r\n\r\n"), "{path}");
        let (mut sender, _) = h2(served.connect().await).await;
        // The reset may overtake the head.
        if let Ok(response) = h2_ask(&mut sender, "GET", path).await {
            assert!(in_time(response.into_body().collect()).await.is_err(), "{path}");
        }
    }
}

#[tokio::test]
async fn a_head_answer_keeps_the_length_it_was_given_and_gets_no_zero() {
    let served = Served::start(both()).await;
    for (path, length) in [("/head-length", Some("1234")), ("/head-none", None), ("/", Some("12"))] {
        let mut socket = served.connect().await;
        h1_ask(&mut socket, &format!("HEAD {path}")).await;
        let head = read_until(&mut socket, "\r\n\r\n").await;
        let announced = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(announced, length, "{path}");
        let (mut sender, _) = h2(served.connect().await).await;
        let response = h2_ask(&mut sender, "HEAD", path).await.unwrap();
        let announced = response.headers().get("content-length").map(|value| value.to_str().unwrap());
        assert_eq!(announced, length, "{path}");
    }
}

#[tokio::test]
async fn who_comes_when_all_connections_are_taken_waits_for_one_to_end() {
    let served = Served::start(Limits { connections: 1, ..both() }).await;
    let mut first = served.connect().await;
    h1_ask(&mut first, "GET /").await;
    read_until(&mut first, "secure=false").await;
    let mut second = served.connect().await;
    h1_ask(&mut second, "GET /").await;
    assert!(timeout(Duration::from_millis(200), second.readable()).await.is_err());
    drop(first);
    read_until(&mut second, "secure=false").await;
}
