//! The accept loop: TLS and HTTP/1.1 on one socket, one task per connection, a limit on every wait, and a drain
//! at the end. Requests go to the given handler.

use std::{
    error::Error,
    future, io,
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, CatchUnwind},
    stream::FuturesUnordered,
};
use http::{
    Method, Request, Response, StatusCode, Uri,
    header::{self, HeaderValue},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    admin_tls::TLS_RECORD,
    body::Body,
    connection_slots::{ConnectionSlot, ConnectionSlots, PeerClass},
    connection_threads::{ConnectionThreads, in_context_of},
    idle::{Activity, CloseReason, InFlight, WatchedSocket},
    response,
    tls::Tls,
};
use crate::protocol::run::RunId;
use crate::store::{ReadBudget, ReadShare};
use crate::supervisor::panic_message;

/// Hyper's minimum for the limit of an HTTP/1 head, in bytes.
const MIN_HEADER_BYTES: usize = 8192;

/// The time for a request head of a connection that begins with a spare slot.
const SPARE_TIME: Duration = Duration::from_secs(2);

/// The time for a connection without a request to send its first one after the listener stops: its client may have sent it
/// already, and would get no answer.
const FIRST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// Deadline for a connection task to stop after its connection was cut.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest pause after a failed accept.
const MAX_ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Limits of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Simultaneous connections. Further ones get a spare slot.
    pub connections: usize,
    /// Spare slots. A connection with one may ask for the health; any other request waits for a slot or is 503. While these are
    /// taken, too, connections wait in the kernel's accept queue, and those of an address beyond its limits are closed at once.
    pub spare: usize,
    /// The longest wait of a request with a spare slot while all others are taken.
    pub slot_wait: Duration,
    /// Simultaneous connections from one address. Trusted proxies are exempt.
    pub each_address: usize,
    /// Simultaneous connections from all addresses outside `clients` together. Further ones are closed at once.
    pub outsiders: usize,
    /// Deadline for an outsider to send its one request, and another for it to read the answer.
    pub outsider_time: Duration,
    /// Size limit of a request head; at least 8 KiB.
    pub header_bytes: usize,
    /// Deadline for a request head, from its first byte (for the first request: from the start of the
    /// connection).
    pub header_time: Duration,
    /// Limit of the time without a request in flight, and of the time without progress of a client that reads an
    /// answer.
    pub idle: Duration,
    /// Deadline for a TLS handshake.
    pub handshake: Duration,
    /// Memory budget for archive bytes that are being sent. Beyond it, each connection has 16 KiB.
    pub memory_bytes: usize,
    /// Deadline for running answers after the listener stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            spare: 64,
            slot_wait: Duration::from_secs(5),
            each_address: 1024,
            outsiders: 1024,
            outsider_time: Duration::from_secs(10),
            header_bytes: 64 * 1024,
            header_time: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            handshake: Duration::from_secs(10),
            memory_bytes: 64 * 1024 * 1024,
            drain: Duration::from_secs(20),
        }
    }
}

/// The peer of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The address of the other end.
    pub address: SocketAddr,
    /// Larder's TLS; `None` on a plain connection.
    pub tls: Option<Arc<Tls>>,
    /// The connection's share of the memory budget for archive bytes.
    pub memory: ReadShare,
}

/// The layer below HTTP on a listener.
#[derive(Clone)]
pub enum Transport {
    /// Nothing.
    Plain,
    /// TLS with a certificate.
    Tls(Arc<Tls>),
    /// Nothing, or TLS as of [`super::admin_tls`], by the first byte of each connection. The function returns the acceptor of
    /// the current settings.
    PlainOrAdminTls(Arc<dyn Fn() -> TlsAcceptor + Send + Sync>),
}

/// A bound socket, and what its connections get.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// The layer below HTTP.
    pub transport: Transport,
    /// The limits of its connections.
    pub limits: Limits,
    /// The slots of its connections.
    pub slots: ConnectionSlots,
    /// The threads that its connections run on.
    pub threads: ConnectionThreads,
}

/// Answers the requests of a listener.
pub type Handler = Arc<dyn Fn(Request<Incoming>, Arc<Peer>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Accepts connections on `listener` until `stop`, and answers their requests with `handler`. The slots limit the
/// connections by the class that `classify` gives to their address.
///
/// After `stop`, refuses new connections, lets running answers end within `limits.drain`, cuts the rest and returns. Connections
/// that were accepted and have sent no request yet have a moment for one. Dropping the future cuts all connections at once.
pub async fn serve(
    listener: Listener,
    classify: impl Fn(IpAddr) -> PeerClass,
    handler: Handler,
    stop: CancellationToken,
) {
    let Listener { socket, transport, limits, slots, threads } = listener;
    let runtime = Handle::current();
    let cut = CancellationToken::new();
    let _cut_when_dropped = cut.clone().drop_guard();
    let connections = TaskTracker::new();
    let drain = limits.drain;
    let (full_log, closed_log) = (LogRateLimit::default(), LogRateLimit::default());
    let mut acceptor = Acceptor { socket, slots: slots.clone(), classify, full_log, closed_log, failures: 0 };
    let memory = ReadBudget::new(limits.memory_bytes);
    let state = Arc::new(ListenerState { transport, limits, slots, memory, handler, stop: stop.clone() });

    while let Some((socket, address, slot)) = stop.run_until_cancelled(acceptor.next()).await {
        let state = Arc::clone(&state);
        let cut = cut.clone();
        let runtime = runtime.clone();
        let (thread, counted) = threads.next();
        let serving = async move {
            let _counted = counted;
            // In the context of the thread that this runs on, which drives the socket.
            let socket = match TcpStream::from_std(socket) {
                Ok(socket) => socket,
                Err(error) => return tracing::warn!(%address, %error, "a connection could not be served"),
            };
            let serving = until_cut(state.serve_connection(socket, address, slot), &cut);
            if let Err(panic) = AssertUnwindSafe(in_context_of(runtime, serving)).catch_unwind().await {
                tracing::error!(%address, panic = panic_message(&*panic), "a connection panicked");
            }
        };
        connections.spawn_on(serving, thread);
    }

    drop(acceptor);
    connections.close();
    if timeout(drain, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), drain = %humantime::format_duration(drain), "cutting the connections that did not end in time");
        cut.cancel();
        if timeout(CUT_TIMEOUT, connections.wait()).await.is_err() {
            tracing::error!(connections = connections.len(), "connections are stuck in their handler");
        }
    }
}

/// Serves a connection until it ends or is cut.
async fn until_cut(serving: impl Future<Output = ()>, cut: &CancellationToken) {
    tokio::select! {
        biased;
        () = when_woken(cut.cancelled()) => {}
        () = serving => {}
    }
}

/// A future that is polled only when it was woken itself, and not with every request of its connection.
async fn when_woken<F: Future>(future: F) -> F::Output {
    let mut futures: FuturesUnordered<F> = std::iter::once(future).collect();
    match futures.next().await {
        Some(output) => output,
        None => std::future::pending().await,
    }
}

/// Accepts connections while there are free slots.
struct Acceptor<S> {
    socket: TcpListener,
    slots: ConnectionSlots,
    classify: S,
    full_log: LogRateLimit,
    closed_log: LogRateLimit,
    failures: u32,
}

impl<S: Fn(IpAddr) -> PeerClass> Acceptor<S> {
    /// Waits for a connection and its slot.
    async fn next(&mut self) -> (std::net::TcpStream, SocketAddr, ConnectionSlot) {
        let when_full = || {
            if self.full_log.is_due() {
                tracing::warn!("all connections are taken, new ones wait until one ends");
            }
        };
        let mut unassigned = self.slots.reserve(when_full).await;
        loop {
            match self.socket.accept().await {
                Ok((socket, address)) => {
                    self.failures = 0;
                    let ip = address.ip().to_canonical();
                    let slot = match self.slots.assign(unassigned, ip, (self.classify)(ip)) {
                        Ok(slot) => slot,
                        Err((unused, reason)) => {
                            unassigned = unused;
                            if self.closed_log.is_due() {
                                let reason = reason.label();
                                tracing::warn!(%address, reason, "a connection was closed at once: too many of its kind");
                            }
                            continue;
                        }
                    };
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%address, %error, "cannot switch off Nagle's algorithm");
                    }
                    // Its own thread takes it up again.
                    match socket.into_std() {
                        Ok(socket) => return (socket, address, slot),
                        Err(error) => {
                            tracing::warn!(%address, %error, "a connection could not be served");
                            drop(slot);
                            unassigned = self.slots.reserve(|| ()).await;
                        }
                    }
                }
                Err(error) if is_connection_error(&error) => {
                    tracing::debug!(%error, "a connection ended before it was accepted");
                }
                Err(error) => self.pause_after(&error).await,
            }
        }
    }

    /// Pauses after an error such as too few file descriptors: an immediate retry would only spin.
    async fn pause_after(&mut self, error: &io::Error) {
        if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
            self.slots.record_no_open_file();
        }
        if self.failures == 0 {
            tracing::error!(%error, "cannot accept connections, trying again");
        }
        let pause = Duration::from_millis(10 << self.failures.min(7)).min(MAX_ACCEPT_PAUSE);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(pause).await;
    }
}

/// Limits a log line to one every ten seconds.
#[derive(Default)]
struct LogRateLimit(Option<Instant>);

impl LogRateLimit {
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.0.is_none_or(|last| now - last > Duration::from_secs(10));
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// State shared by all connections of a listener.
struct ListenerState {
    transport: Transport,
    limits: Limits,
    slots: ConnectionSlots,
    memory: ReadBudget,
    handler: Handler,
    stop: CancellationToken,
}

impl ListenerState {
    async fn serve_connection(&self, socket: TcpStream, address: SocketAddr, slot: ConnectionSlot) {
        let (memory, peer_class) = (self.memory.share(), slot.peer_class);
        let Limits { idle, mut header_time, handshake, outsider_time, .. } = self.limits;
        if slot.is_spare() {
            // Others wait for it.
            header_time = header_time.min(SPARE_TIME);
        }
        let outsider_time = (peer_class == PeerClass::Outsider).then_some(outsider_time);
        let outsider_deadline = outsider_time.map(|time| Instant::now() + time);
        let activity = Activity::new(idle, header_time, outsider_deadline);
        let tls = match &self.transport {
            Transport::Tls(tls) => Some(Arc::clone(tls)),
            _ => None,
        };
        let handshake_time = outsider_time.map_or(handshake, |time| handshake.min(time));
        let acceptor = match &self.transport {
            Transport::Plain => None,
            Transport::Tls(tls) => Some(tls.acceptor()),
            Transport::PlainOrAdminTls(acceptor) => {
                let mut first = [0];
                match self.unless_stopped(timeout(header_time, socket.peek(&mut first))).await {
                    Some(Ok(Ok(1))) => (first == [TLS_RECORD]).then(|| acceptor()),
                    _ => return tracing::debug!(%address, "a connection sent nothing"),
                }
            }
        };
        let socket = WatchedSocket::new(socket, Arc::clone(&activity));
        let peer = Peer { address, tls, memory };
        let Some(acceptor) = acceptor else {
            return self.run_http(socket, peer, slot, &activity).await;
        };
        let accepting = timeout(handshake_time, acceptor.accept(socket));
        let stream = match self.unless_stopped(accepting).await {
            Some(Ok(Ok(stream))) => stream,
            Some(Ok(Err(error))) => return tracing::debug!(%address, %error, "TLS handshake failed"),
            Some(Err(_)) => {
                if outsider_time.is_some() {
                    self.slots.record_slow_outsider();
                }
                return tracing::debug!(%address, "TLS handshake took too long");
            }
            None => return,
        };
        self.run_http(stream, peer, slot, &activity).await;
    }

    /// Waits for a step before the first request of a connection. `None` if it takes a moment longer than the listener.
    async fn unless_stopped<F: Future>(&self, step: F) -> Option<F::Output> {
        tokio::select! {
            output = step => Some(output),
            () = self.stopped_a_moment_ago() => None,
        }
    }

    async fn stopped_a_moment_ago(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(FIRST_REQUEST_TIME).await;
    }

    async fn run_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        peer: Peer,
        slot: ConnectionSlot,
        activity: &Arc<Activity>,
    ) {
        activity.begin();
        // Not before: a handshake is no idle connection.
        slot.watch(activity);
        let (address, peer) = (peer.address, Arc::new(peer));
        let service = service_fn(|request: Request<Incoming>| {
            Answering::begin(&self.handler, request, &peer, &slot, activity.request())
        });
        let mut http = http1::Builder::new();
        // Hyper's limit of the time for a head also runs while a connection is idle between requests; `Activity`
        // distinguishes them.
        http.header_read_timeout(None).max_buf_size(self.limits.header_bytes.max(MIN_HEADER_BYTES));
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let closing = async {
            tokio::select! {
                () = self.stop.cancelled() => None,
                reason = activity.close_reason() => Some(reason),
            }
        };
        let close_reason = tokio::select! {
            biased;
            ended = connection.as_mut() => return log_end(address, ended),
            close_reason = when_woken(closing) => close_reason,
        };
        let close_reason = match close_reason {
            Some(reason) => reason,
            None => {
                activity.end_after_next_request();
                // Hyper would close a connection that waits for its first one.
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => return log_end(address, ended),
                    () = future::poll_fn(|_| if activity.has_begun() { Poll::Ready(()) } else { Poll::Pending }) => {}
                    () = tokio::time::sleep(FIRST_REQUEST_TIME) => {}
                }
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => return log_end(address, ended),
                    reason = activity.close_reason() => reason,
                }
            }
        };
        tracing::debug!(%address, ?close_reason, "ending a connection");
        connection.as_mut().graceful_shutdown();
        let limit = match close_reason {
            CloseReason::Idle | CloseReason::GivesWay => self.limits.header_time,
            CloseReason::OutsiderServed => self.limits.outsider_time,
            CloseReason::SlowOutsider => return self.slots.record_slow_outsider(),
            CloseReason::SlowHead | CloseReason::SlowReader => return,
        };
        match timeout(limit, connection).await {
            Ok(ended) => log_end(address, ended),
            Err(_) => tracing::debug!(%address, "a connection did not close in time, cut"),
        }
    }
}

/// The handler has panicked; its connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the handler panicked")]
struct HandlerPanicked;

/// The answer to a request. Its first step runs as soon as the request is there: an answer from memory needs no other, and
/// the request is gone before hyper looks for the next one, for which it would otherwise take a new buffer.
struct Answering<'a> {
    step: AnswerStep<'a>,
    slot: &'a ConnectionSlot,
    in_flight: Option<InFlight>,
}

enum AnswerStep<'a> {
    Handling { handling: CatchUnwind<AssertUnwindSafe<BoxFuture<'a, Response<Body>>>>, method: Method, uri: Uri },
    Handled(Option<Result<Response<Body>, HandlerPanicked>>),
}

impl<'a> Answering<'a> {
    fn begin(
        handler: &'a Handler,
        request: Request<Incoming>,
        peer: &Arc<Peer>,
        slot: &'a ConnectionSlot,
        in_flight: InFlight,
    ) -> Self {
        let (method, uri, peer) = (request.method().clone(), request.uri().clone(), Arc::clone(peer));
        // Below any prefix that a proxy leaves in place.
        let is_probe = ["/healthz", "/readyz"].iter().any(|probe| request.uri().path().ends_with(probe));
        let handling = if is_probe || !slot.is_spare() {
            handler(request, peer)
        } else {
            Box::pin(async move {
                match slot.require_own().await {
                    Ok(()) => handler(request, peer).await,
                    Err(reason) => response::errors(StatusCode::SERVICE_UNAVAILABLE, vec![reason]),
                }
            })
        };
        let handling = AssertUnwindSafe(handling).catch_unwind();
        let mut answering =
            Self { step: AnswerStep::Handling { handling, method, uri }, slot, in_flight: Some(in_flight) };
        // Hyper polls it right after this, with a waker.
        answering.advance(&mut Context::from_waker(Waker::noop()));
        answering
    }

    fn advance(&mut self, cx: &mut Context<'_>) {
        let AnswerStep::Handling { handling, method, uri } = &mut self.step else { return };
        let Poll::Ready(handled) = handling.poll_unpin(cx) else { return };
        let handled = handled.map_err(|panic| {
            tracing::error!(%method, path = RunId::without_id(uri.path()), panic = panic_message(&*panic), "a request's handler panicked");
            HandlerPanicked
        });
        let in_flight = self.in_flight.take();
        let is_last = self.slot.is_spare() || in_flight.as_ref().is_some_and(|request| request.is_last);
        self.step = AnswerStep::Handled(Some(handled.map(|mut response| {
            if is_last {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response.map(|body| body.of_request(in_flight))
        })));
    }
}

impl Future for Answering<'_> {
    type Output = Result<Response<Body>, HandlerPanicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.advance(cx);
        match &mut self.step {
            AnswerStep::Handled(handled) => handled.take().map_or(Poll::Pending, Poll::Ready),
            AnswerStep::Handling { .. } => Poll::Pending,
        }
    }
}

fn log_end(address: SocketAddr, ended: hyper::Result<()>) {
    if let Err(error) = ended {
        let cause = error.source().map(ToString::to_string);
        tracing::debug!(%address, %error, cause, "a connection ended with an error");
    }
}

#[cfg(test)]
mod tests;
