//! The accept loop: TLS, HTTP/1.1 and HTTP/2 on one socket, one task per connection, every wait bounded, and a drain at
//! the end. What a request means is left to the handler it is given.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    idle::{Activity, BoxError, Counted, Protocol, Verdict, Watched, panic_message},
    tls::Tls,
};

/// The least that hyper accepts as the bound of an HTTP/1 head.
const LEAST_HEADER_BYTES: usize = 8192;

/// What one HTTP/2 answer may have waiting in memory.
const SEND_BUFFER_BYTES: usize = 512 * 1024;

/// How much of a request's body may be under way; requests hardly have one.
const REQUEST_WINDOW_BYTES: u32 = 256 * 1024;

const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// How long a task may take to notice that it has been cut.
const CUT_WITHIN: Duration = Duration::from_secs(1);

/// The longest pause after a failed accept.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What one listener allows its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time; who comes when all are taken waits in the system's queue.
    pub connections: usize,
    /// The size of a request's head; at least 8 KiB.
    pub header_bytes: usize,
    /// How long an HTTP/1 request's head may take, from its first byte (the first one: from the connection's start).
    pub header_time: Duration,
    /// How long a connection may have no request in flight, and how long a client may take nothing of its answers.
    pub idle: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// Requests at one time in one HTTP/2 connection.
    pub streams: u32,
    /// How long running answers may go on once the listener stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            header_bytes: 64 * 1024,
            header_time: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            handshake: Duration::from_secs(10),
            streams: 256,
            drain: Duration::from_secs(20),
        }
    }
}

/// Whether a listener has as many connections as it may have, so that new ones wait.
#[derive(Debug, Clone, Default)]
pub struct Crowded(Arc<AtomicBool>);

impl Crowded {
    /// Whether new connections wait for others to end.
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Whether the connection is TLS.
    pub secure: bool,
}

/// Answers what comes in on `listener` with `handler`, until `stop`; then refuses new connections, lets running answers
/// end within `limits.drain`, cuts the rest and returns. Dropping the future cuts everything at once.
pub async fn serve<H, F, B>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    limits: Limits,
    crowded: Crowded,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let cut = CancellationToken::new();
    let _cut_when_dropped = cut.clone().drop_guard();
    let connections = TaskTracker::new();
    let drain = limits.drain;
    let mut door = Door::new(listener, limits.connections, crowded);
    let site = Arc::new(Site { tls, limits, handler, stop: stop.clone() });

    while let Some((socket, address, permit)) = stop.run_until_cancelled(door.next()).await {
        let site = Arc::clone(&site);
        let cut = cut.clone();
        connections.spawn(async move {
            let attended = AssertUnwindSafe(cut.run_until_cancelled(site.attend(socket, address))).catch_unwind();
            if let Err(panic) = attended.await {
                tracing::error!(%address, panic = panic_message(&*panic), "a connection panicked");
            }
            drop(permit);
        });
    }

    drop(door);
    connections.close();
    if timeout(drain, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), ?drain, "cutting the connections that did not end in time");
        cut.cancel();
        if timeout(CUT_WITHIN, connections.wait()).await.is_err() {
            tracing::error!(connections = connections.len(), "connections are stuck in their handler");
        }
    }
}

/// Where connections come in, no more than there are permits.
struct Door {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    crowded: Crowded,
    said_full: Option<Instant>,
    failures: u32,
}

impl Door {
    fn new(listener: TcpListener, connections: usize, crowded: Crowded) -> Self {
        let permits = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { listener, permits, crowded, said_full: None, failures: 0 }
    }

    async fn next(&mut self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        let permit = self.permit().await;
        loop {
            match self.listener.accept().await {
                Ok((socket, address)) => {
                    self.failures = 0;
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%address, %error, "cannot switch off Nagle's algorithm");
                    }
                    return (socket, address, permit);
                }
                Err(error) if is_of_one_connection(&error) => {
                    tracing::debug!(%error, "a connection ended before it was accepted");
                }
                Err(error) => self.pause_after(&error).await,
            }
        }
    }

    async fn permit(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return permit;
            }
            self.crowded.0.store(true, Ordering::Relaxed);
            if self.said_full.is_none_or(|said| said.elapsed() > Duration::from_secs(10)) {
                self.said_full = Some(Instant::now());
                tracing::warn!("all connections are taken, new ones wait until one ends");
            }
            // Fails only once the semaphore is closed, which nobody does.
            if let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
                self.crowded.0.store(false, Ordering::Relaxed);
                return permit;
            }
        }
    }

    /// Out of file descriptors or memory: trying again at once would only spin.
    async fn pause_after(&mut self, error: &io::Error) {
        if self.failures == 0 {
            tracing::error!(%error, "cannot accept connections, trying again");
        }
        let pause = Duration::from_millis(10 << self.failures.min(7)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(pause).await;
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// What all connections of one listener share.
struct Site<H> {
    tls: Option<Arc<Tls>>,
    limits: Limits,
    handler: H,
    stop: CancellationToken,
}

impl<H> Site<H> {
    async fn attend<F, B>(&self, socket: TcpStream, address: SocketAddr)
    where
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let activity = Activity::new(self.limits.idle, self.limits.header_time);
        let socket = Watched::new(socket, Arc::clone(&activity));
        let Some(tls) = &self.tls else {
            activity.begin(Protocol::Undecided(0));
            return self.converse(socket, address, self.http(), &activity).await;
        };
        let handshake = timeout(self.limits.handshake, tls.acceptor().accept(socket));
        let stream = match self.stop.run_until_cancelled(handshake).await {
            Some(Ok(Ok(stream))) => stream,
            Some(Ok(Err(error))) => return tracing::debug!(%address, %error, "TLS handshake failed"),
            Some(Err(_)) => return tracing::debug!(%address, "TLS handshake took too long"),
            None => return,
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            activity.begin(Protocol::Http2);
            self.converse(stream, address, self.http().http2_only(), &activity).await;
        } else {
            activity.begin(Protocol::Http1);
            self.converse(stream, address, self.http().http1_only(), &activity).await;
        }
    }

    async fn converse<S, F, B>(
        &self,
        stream: S,
        address: SocketAddr,
        http: auto::Builder<Streams>,
        activity: &Arc<Activity>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let peer = Peer { address, secure: self.tls.is_some() };
        let service = service_fn(|request: Request<Incoming>| {
            let in_flight = activity.request();
            let handler = self.handler.clone();
            answer(handler, request, peer)
                .map(|answer| answer.map(|response| response.map(|body| Counted::new(body, in_flight))))
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let ending = tokio::select! {
            ended = connection.as_mut() => return log_end(address, ended),
            () = self.stop.cancelled() => None,
            verdict = activity.verdict() => Some(verdict),
        };
        tracing::debug!(%address, ?ending, "ending a connection");
        connection.as_mut().graceful_shutdown();
        match ending {
            // The drain bounds it from outside.
            None => log_end(address, connection.await),
            Some(Verdict::Idle) => match timeout(self.limits.header_time, connection).await {
                Ok(ended) => log_end(address, ended),
                Err(_) => tracing::debug!(%address, "an idle connection did not close, cut"),
            },
            Some(Verdict::SlowHead | Verdict::Stalled) => {}
        }
    }

    fn http(&self) -> auto::Builder<Streams> {
        let limits = &self.limits;
        let mut http = auto::Builder::new(Streams::default());
        http.http1()
            .timer(TokioTimer::new())
            // Hyper's limit also runs while a connection idles between requests; `Activity` tells the two apart.
            .header_read_timeout(None)
            .max_buf_size(limits.header_bytes.max(LEAST_HEADER_BYTES));
        // The bounds on reset streams, of peer and ourselves, stay at what h2 sets.
        http.http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(limits.streams)
            .initial_stream_window_size(REQUEST_WINDOW_BYTES)
            .initial_connection_window_size(4 * REQUEST_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PONG_WITHIN);
        http
    }
}

/// The handler has panicked; its connection (HTTP/1) or stream (HTTP/2) ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the handler panicked")]
struct HandlerPanicked;

async fn answer<H, F, B>(handler: H, request: Request<Incoming>, peer: Peer) -> Result<Response<B>, HandlerPanicked>
where
    H: Fn(Request<Incoming>, Peer) -> F,
    F: Future<Output = Response<B>>,
{
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let answer = async move { handler(request, peer).await };
    AssertUnwindSafe(answer).catch_unwind().await.map_err(|panic| {
        tracing::error!(%method, path = uri.path(), panic = panic_message(&*panic), "a request's handler panicked");
        HandlerPanicked
    })
}

fn log_end(address: SocketAddr, ended: Result<(), BoxError>) {
    if let Err(error) = ended {
        let cause = error.source().map(ToString::to_string);
        tracing::debug!(%address, %error, cause, "a connection ended with an error");
    }
}

/// Runs the HTTP/2 streams of one connection, each in its task, and ends them with it.
#[derive(Clone)]
struct Streams {
    ended: CancellationToken,
    _end: Arc<DropGuard>,
}

impl Default for Streams {
    fn default() -> Self {
        let ended = CancellationToken::new();
        Self { _end: Arc::new(ended.clone().drop_guard()), ended }
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let ended = self.ended.clone();
        tokio::spawn(async move { ended.run_until_cancelled(stream).await });
    }
}

#[cfg(test)]
mod tests;
