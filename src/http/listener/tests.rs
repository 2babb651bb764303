//! The listener as clients see it, over real sockets.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn;
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::super::RequestMetrics;
use super::super::connection_threads::ConnectionThreads;
use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener on a free port, with a handler that answers by path.
struct TestListener {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Pieces of the body of `/fed`.
    feed: mpsc::UnboundedSender<io::Result<Bytes>>,
    /// Number of answers started.
    requests: Arc<AtomicUsize>,
}

impl TestListener {
    async fn start(limits: Limits) -> Self {
        Self::start_with(limits, None).await
    }

    async fn start_with(limits: Limits, tls: Option<Arc<Tls>>) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (feed, pieces) = mpsc::unbounded_channel();
        let pieces = Arc::new(parking_lot::Mutex::new(Some(pieces)));
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let handler: Handler = Arc::new(move |request, peer| {
            counted.fetch_add(1, Ordering::SeqCst);
            let pieces = Arc::clone(&pieces);
            let pieces = move || pieces.lock().take().expect("/fed is asked for once");
            Box::pin(async move { respond(request.uri().path(), peer, pieces) })
        });
        let slots = ConnectionSlots::new(&limits, RequestMetrics::default());
        let transport = tls.map_or(Transport::Plain, Transport::Tls);
        let threads = ConnectionThreads::one_for_each_core().unwrap();
        let listener = Listener { socket, transport, limits, slots, threads };
        let task = tokio::spawn(serve(listener, |_| PeerClass::Client, handler, stop.clone()));
        Self { address, stop, task, feed, requests }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn feed(&self, bytes: &'static [u8]) {
        self.feed.send(Ok(Bytes::from_static(bytes))).unwrap();
    }

    async fn wait_for_end(self) {
        within_test_timeout(self.task).await.unwrap();
    }
}

fn respond(
    path: &str,
    peer: Arc<Peer>,
    pieces: impl FnOnce() -> mpsc::UnboundedReceiver<io::Result<Bytes>>,
) -> Response<Body> {
    let with_length = |length: u32, body| Response::builder().header("content-length", length).body(body).unwrap();
    let broken = || {
        let pieces = [Ok(Bytes::from_static(b"some")), Err(io::Error::other("upstream lied"))];
        Body::stream(stream::iter(pieces), None)
    };
    match path {
        "/fed" => {
            let mut pieces = pieces();
            Response::new(Body::stream(stream::poll_fn(move |cx| pieces.poll_recv(cx)), None))
        }
        "/endless" => Response::new(Body::stream(stream::repeat_with(|| Ok(Bytes::from_static(&[7; 65536]))), None)),
        "/panic" => panic!("asked to"),
        "/panic-in-body" => Response::new(Body::stream(stream::poll_fn(|_| panic!("asked to, in the body")), None)),
        "/broken-length" => with_length(100, broken()),
        "/broken-chunked" => Response::new(broken()),
        "/short" => with_length(100, Body::stream(stream::iter([Ok(Bytes::from_static(b"short"))]), None)),
        "/head-length" => with_length(1234, Body::empty()),
        "/head-none" => Response::new(Body::empty()),
        _ => Response::new(Body::full(Bytes::from(format!("secure={}", peer.tls.is_some())))),
    }
}

async fn within_test_timeout<F: Future>(future: F) -> F::Output {
    timeout(TEST_TIMEOUT, future).await.expect("the test timed out")
}

/// Reads until the other side closes.
async fn read_to_end(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let _reset_or_end = within_test_timeout(socket.read_to_end(&mut read)).await;
    String::from_utf8_lossy(&read).into_owned()
}

async fn read_until(socket: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(end) {
        read.push(within_test_timeout(socket.read_u8()).await.unwrap());
    }
    String::from_utf8(read).unwrap()
}

async fn send_http1(socket: &mut (impl AsyncWrite + Unpin), method_and_path: &str) {
    socket.write_all(format!("{method_and_path} HTTP/1.1\r\nhost: larder\r\n\r\n").as_bytes()).await.unwrap();
}

/// Sends a request over a connection of its own.
async fn send<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    path: &str,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().uri(path).header("host", "larder").body(Empty::<Bytes>::new()).unwrap();
    within_test_timeout(sender.send_request(request)).await
}

async fn body_text(response: Response<Incoming>) -> String {
    String::from_utf8(within_test_timeout(response.into_body().collect()).await.unwrap().to_bytes().to_vec()).unwrap()
}

struct Pki {
    folder: TempDir,
    der: CertificateDer<'static>,
}

impl Pki {
    fn new() -> Self {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("cert.pem"), generated.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), generated.signing_key.serialize_pem()).unwrap();
        Self { folder, der: CertificateDer::from_pem_slice(generated.cert.pem().as_bytes()).unwrap() }
    }

    fn tls(&self) -> Arc<Tls> {
        Arc::new(Tls::load(&self.folder.path().join("cert.pem"), &self.folder.path().join("key.pem")).unwrap())
    }

    async fn connect(&self, listener: &TestListener, protocols: &[&str]) -> TlsStream<TcpStream> {
        self.shake_hands(listener.connect().await, protocols).await
    }

    async fn shake_hands(&self, socket: TcpStream, protocols: &[&str]) -> TlsStream<TcpStream> {
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
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }
}

/// Promise 15: HTTP/2 has no reason phrase, and clients choose it wherever it is offered.
#[tokio::test]
async fn http2_is_neither_offered_nor_answered() {
    let pki = Pki::new();
    let plain = TestListener::start(Limits::default()).await;
    let mut socket = plain.connect().await;
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let answer = read_to_end(&mut socket).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let secure = TestListener::start_with(Limits::default(), Some(pki.tls())).await;
    let socket = pki.connect(&secure, &["h2", "http/1.1"]).await;
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!((plain.requests.load(Ordering::SeqCst), secure.requests.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(body_text(send(socket, "/").await.unwrap()).await, "secure=true");
}

#[tokio::test]
async fn a_silent_handshake_is_cut_and_does_not_delay_other_connections() {
    let pki = Pki::new();
    let limits = Limits { handshake: Duration::from_millis(300), ..Limits::default() };
    let listener = TestListener::start_with(limits, Some(pki.tls())).await;
    let mut silent = listener.connect().await;
    let answer = send(pki.connect(&listener, &["http/1.1"]).await, "/").await.unwrap();
    assert_eq!(body_text(answer).await, "secure=true");
    assert_eq!(read_to_end(&mut silent).await, "");
}

#[tokio::test]
async fn a_drain_lets_a_running_download_finish_and_refuses_new_connections() {
    let listener = TestListener::start(Limits::default()).await;
    let mut idle = listener.connect().await;
    send_http1(&mut idle, "GET /").await;
    read_until(&mut idle, "secure=false").await;
    let mut socket = listener.connect().await;
    send_http1(&mut socket, "GET /fed").await;
    listener.feed(b"first");
    read_until(&mut socket, "first").await;
    listener.stop.cancel();
    assert_eq!(read_to_end(&mut idle).await, "");
    let refused = async { while TcpStream::connect(listener.address).await.is_ok() {} };
    within_test_timeout(refused).await;
    assert!(!listener.task.is_finished());
    listener.feed(b"last");
    let TestListener { feed, task, .. } = listener;
    drop(feed);
    assert!(read_to_end(&mut socket).await.ends_with("last\r\n0\r\n\r\n"));
    within_test_timeout(task).await.unwrap();
}

/// Promise 15: a client whose connection was accepted may have sent its request, and it tries no other connection. One that sends
/// nothing delays the end by a moment.
#[tokio::test]
async fn a_new_connection_may_send_its_first_request_after_a_stop() {
    let pki = Pki::new();
    for is_secure in [false, true] {
        let listener = TestListener::start_with(Limits::default(), is_secure.then(|| pki.tls())).await;
        let mut first = listener.connect().await;
        let silent = listener.connect().await;
        // All three are accepted: the listener accepts in turn.
        let last = match is_secure {
            false => send(listener.connect().await, "/").await.unwrap(),
            true => send(pki.connect(&listener, &["http/1.1"]).await, "/").await.unwrap(),
        };
        assert_eq!(body_text(last).await, format!("secure={is_secure}"));
        listener.stop.cancel();
        let refused = async { while TcpStream::connect(listener.address).await.is_ok() {} };
        within_test_timeout(refused).await;
        let answer = match is_secure {
            false => {
                send_http1(&mut first, "GET /").await;
                read_to_end(&mut first).await
            }
            true => {
                let mut first = pki.shake_hands(first, &["http/1.1"]).await;
                send_http1(&mut first, "GET /").await;
                let answer = read_until(&mut first, "secure=true").await;
                // It closes as any connection after its answer.
                assert_eq!(within_test_timeout(first.read_u8()).await.map_err(|_| ()), Err(()));
                answer
            }
        };
        // It ends after its answer, which may have been on its way before the connection heard of the stop.
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("secure="), "{answer}");
        listener.wait_for_end().await;
        drop(silent);
    }
}

#[tokio::test]
async fn a_drain_cuts_answers_that_do_not_end_within_its_limit() {
    let listener = TestListener::start(Limits { drain: Duration::from_millis(200), ..Limits::default() }).await;
    let mut socket = listener.connect().await;
    send_http1(&mut socket, "GET /fed").await;
    listener.feed(b"first");
    read_until(&mut socket, "first").await;
    let endless = send(listener.connect().await, "/endless").await.unwrap();
    listener.stop.cancel();
    assert!(!read_to_end(&mut socket).await.contains("0\r\n\r\n"));
    assert!(within_test_timeout(endless.into_body().collect()).await.is_err());
    listener.wait_for_end().await;
}

#[tokio::test]
async fn slow_headers_are_cut_on_new_and_reused_connections() {
    let listener = TestListener::start(Limits { header_time: Duration::from_millis(300), ..Limits::default() }).await;
    let mut fresh = listener.connect().await;
    fresh.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    assert_eq!(read_to_end(&mut fresh).await, "");
    let mut idle_connection = listener.connect().await;
    send_http1(&mut idle_connection, "GET /").await;
    read_until(&mut idle_connection, "secure=false").await;
    idle_connection.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    assert_eq!(read_to_end(&mut idle_connection).await, "");
    assert_eq!(listener.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_reused_connection_may_be_idle_for_longer_than_the_header_limit() {
    let limits = Limits { header_time: Duration::from_millis(200), idle: Duration::from_secs(60), ..Limits::default() };
    let listener = TestListener::start(limits).await;
    let mut socket = listener.connect().await;
    send_http1(&mut socket, "GET /").await;
    read_until(&mut socket, "secure=false").await;
    // A later connection without a request is closed after the limit, which the other has outlived by then.
    assert_eq!(read_to_end(&mut listener.connect().await).await, "");
    send_http1(&mut socket, "GET /").await;
    read_until(&mut socket, "secure=false").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_waiting_download_is_not() {
    let listener = TestListener::start(Limits { idle: Duration::from_millis(300), ..Limits::default() }).await;
    let response = send(listener.connect().await, "/fed").await.unwrap();
    let mut idle = listener.connect().await;
    send_http1(&mut idle, "GET /").await;
    read_until(&mut idle, "secure=false").await;
    assert_eq!(read_to_end(&mut idle).await, "");
    // It began to idle after the download, so that has waited for longer than the limit.
    listener.feed(b"late");
    let TestListener { feed, .. } = listener;
    drop(feed);
    assert_eq!(body_text(response).await, "late");
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected() {
    let listener = TestListener::start(Limits { idle: Duration::from_millis(400), ..Limits::default() }).await;
    let mut socket = listener.connect().await;
    send_http1(&mut socket, "GET /endless").await;
    // The drain is longer than the limit.
    listener.stop.cancel();
    within_test_timeout(listener.task).await.unwrap();
    drop(socket);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let listener = TestListener::start(Limits { header_bytes: 8192, ..Limits::default() }).await;
    let mut socket = listener.connect().await;
    let large = format!("GET / HTTP/1.1\r\nhost: larder\r\nx: {}\r\n", "x".repeat(8192));
    socket.write_all(&large.as_bytes()[..8192]).await.unwrap();
    assert!(read_to_end(&mut socket).await.starts_with("HTTP/1.1 431 "));
    assert_eq!(listener.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_panic_ends_only_its_own_request() {
    let listener = TestListener::start(Limits::default()).await;
    for path in ["/panic", "/panic-in-body"] {
        let mut socket = listener.connect().await;
        send_http1(&mut socket, &format!("GET {path}")).await;
        assert!(!read_to_end(&mut socket).await.contains("0\r\n\r\n"));
    }
    assert_eq!(body_text(send(listener.connect().await, "/").await.unwrap()).await, "secure=false");
}

#[tokio::test]
async fn a_broken_or_short_body_never_looks_complete_to_the_client() {
    let listener = TestListener::start(Limits::default()).await;
    for path in ["/broken-length", "/broken-chunked", "/short"] {
        // Hyper may close before it has flushed the head.
        if let Ok(response) = send(listener.connect().await, path).await {
            assert!(within_test_timeout(response.into_body().collect()).await.is_err(), "{path}");
        }
        let mut socket = listener.connect().await;
        send_http1(&mut socket, &format!("GET {path}")).await;
        assert!(!read_to_end(&mut socket).await.ends_with("0\r\n\r\n"), "{path}");
    }
}

#[tokio::test]
async fn a_head_response_has_the_content_length_of_its_handler_or_none() {
    let listener = TestListener::start(Limits::default()).await;
    for (path, length) in [("/head-length", Some("1234")), ("/head-none", None), ("/", Some("12"))] {
        let mut socket = listener.connect().await;
        send_http1(&mut socket, &format!("HEAD {path}")).await;
        let head = read_until(&mut socket, "\r\n\r\n").await;
        let announced = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(announced, length, "{path}");
    }
}

/// A handshake that takes its time is no idle connection.
#[tokio::test]
async fn a_connection_does_not_give_way_during_its_handshake() {
    let pki = Pki::new();
    let limits = Limits { connections: 1, slot_wait: Duration::from_millis(200), ..Limits::default() };
    let listener = TestListener::start_with(limits, Some(pki.tls())).await;
    let first = listener.connect().await;
    let mut second = pki.connect(&listener, &[]).await;
    send_http1(&mut second, "GET /").await;
    read_until(&mut second, "HTTP/1.1 503 ").await;
    let mut first = pki.shake_hands(first, &[]).await;
    send_http1(&mut first, "GET /").await;
    read_until(&mut first, "secure=true").await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_for_another_to_end() {
    let listener = TestListener::start(Limits { connections: 1, ..Limits::default() }).await;
    // It asks for nothing yet, so it is not idle.
    let first = listener.connect().await;
    let mut second = listener.connect().await;
    send_http1(&mut second, "GET /").await;
    assert!(timeout(Duration::from_millis(200), second.readable()).await.is_err());
    drop(first);
    read_until(&mut second, "secure=false").await;
}
