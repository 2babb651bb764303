//! Listeners of the fake upstream: they keep their port reserved while stopped, serve connections with or without TLS,
//! and close them normally or with a reset.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::reply::ReplyBody;

/// Lets the body of a reply control the connection that it is sent on.
#[derive(Default)]
pub(super) struct ConnectionControl {
    flush: Notify,
    is_reset: AtomicBool,
}

impl ConnectionControl {
    /// Resolves when everything written so far has been handed to the kernel.
    pub(super) async fn flushed(&self) {
        self.flush.notified().await;
    }

    /// Makes the connection end with a reset (RST).
    pub(super) fn reset_on_close(&self) {
        self.is_reset.store(true, Ordering::Relaxed);
    }
}

/// An address and, while it listens, the task that serves it.
pub(super) struct Listener {
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    is_silent: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    /// A bound socket that never listens: it keeps the port reserved, and connections to it are refused.
    _reserved: TcpSocket,
    serving: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Listener {
    /// Reserves a port of 127.0.0.1.
    pub(super) fn reserve(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        Self::reserve_at(([127, 0, 0, 1], 0).into(), tls)
    }

    /// Reserves an address; port 0 stands for any free port.
    pub(super) fn reserve_at(address: SocketAddr, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let reserved = bound_socket(address);
        Self {
            address: reserved.local_addr().expect("a bound socket has an address"),
            tls: tls.map(TlsAcceptor::from),
            is_silent: Arc::default(),
            connections: Arc::default(),
            _reserved: reserved,
            serving: None,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn origin(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The number of accepted connections.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// If true, accepts connections and never sends a byte.
    pub(super) fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Listens, and answers each request with `handler`.
    pub(super) fn start<H, F>(&mut self, handler: H)
    where
        H: Fn(Request<Incoming>, Arc<ConnectionControl>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<ReplyBody>> + Send + 'static,
    {
        if self.serving.is_some() {
            return;
        }
        let listener = bound_socket(self.address).listen(1024).expect("the reserved port listens");
        let stop = CancellationToken::new();
        let (tls, is_silent) = (self.tls.clone(), Arc::clone(&self.is_silent));
        let connections = Arc::clone(&self.connections);
        let listener = CountingListener { listener, connections };
        let task = tokio::spawn(accept(listener, tls, is_silent, handler, stop.clone()));
        self.serving = Some((stop, task));
    }

    pub(super) async fn stop(&mut self) {
        if let Some((stop, task)) = self.serving.take() {
            stop.cancel();
            // An aborted or panicked task serves no more either.
            let _ = task.await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((_, task)) = self.serving.take() {
            task.abort();
        }
    }
}

fn bound_socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option every socket has");
    socket.set_reuseport(true).expect("an option every socket has");
    socket.bind(address).expect("a free port of the address");
    socket
}

/// A listener with a count of its connections.
struct CountingListener {
    listener: TcpListener,
    connections: Arc<AtomicUsize>,
}

impl CountingListener {
    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept().await?;
        // As registries and git servers do: a body in two writes must not wait 40 ms for the client's acknowledgement.
        stream.set_nodelay(true)?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }
}

async fn accept<H, F>(
    listener: CountingListener,
    tls: Option<TlsAcceptor>,
    is_silent: Arc<AtomicBool>,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(Request<Incoming>, Arc<ConnectionControl>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ReplyBody>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            Ok(stream) = listener.accept() => match is_silent.load(Ordering::Relaxed) {
                true => drop(connections.spawn(stay_silent(stream))),
                false => drop(connections.spawn(serve(stream, tls.clone(), handler.clone()))),
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Keeps a connection open and sends no byte.
async fn stay_silent(stream: TcpStream) {
    std::future::pending::<()>().await;
    drop(stream);
}

async fn serve<H, F>(stream: TcpStream, tls: Option<TlsAcceptor>, handler: H)
where
    H: Fn(Request<Incoming>, Arc<ConnectionControl>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ReplyBody>> + Send + 'static,
{
    let connection = Arc::new(ConnectionControl::default());
    let watched = WatchedStream { stream, connection: Arc::clone(&connection) };
    let service = service_fn(move |request| {
        let answer = handler(request, Arc::clone(&connection));
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    // Many tests break connections on purpose, so errors are not reported.
    match tls {
        None => drop(server.serve_connection(TokioIo::new(watched), service).await),
        Some(tls) => {
            if let Ok(stream) = tls.accept(watched).await {
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            }
        }
    }
}

/// The raw connection below TLS. Reports flushes, and closes as `ConnectionControl` demands.
struct WatchedStream {
    stream: TcpStream,
    connection: Arc<ConnectionControl>,
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        if self.connection.is_reset.load(Ordering::Relaxed) {
            // Fails only if the peer is already gone.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.connection.flush.notify_waiters();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
