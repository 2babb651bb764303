//! Activity of one connection, and its limits. The watched socket and the bodies of answers report to `Activity`;
//! `listener` asks `Activity` when to close.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::Instant,
};

/// Activity of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    close_is_due: Notify,
    idle_timeout: Duration,
    head_timeout: Duration,
}

/// Reasons for closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// No request was in flight for too long.
    Idle,
    /// No request is in flight, and another connection needs the slot.
    GivesWay,
    /// A request head took too long.
    SlowHead,
    /// The client read nothing of an answer for too long.
    SlowReader,
    /// An outsider sent no request in time.
    SlowOutsider,
    /// An outsider sent its one request, which is answered before the connection closes.
    OutsiderServed,
}

#[derive(Debug)]
struct State {
    /// True from the first request on.
    has_begun: bool,
    /// True once no request is taken after the next one.
    is_ending: bool,
    in_flight: usize,
    idle_since: Instant,
    head_since: Option<Instant>,
    /// Set while the client takes no more bytes.
    write_waits_since: Option<Instant>,
    /// True once another connection was given its slot.
    gives_way: bool,
    /// Deadline for the one request of an outsider (a peer outside `clients`); `None` once it came.
    outsider_deadline: Option<Instant>,
}

impl Activity {
    /// Activity of a newly accepted connection. `head_timeout` is the limit for receiving a request head. With
    /// `outsider_deadline` the connection is an outsider's, which must send its only request by then.
    pub(super) fn new(idle_timeout: Duration, head_timeout: Duration, outsider_deadline: Option<Instant>) -> Arc<Self> {
        let idle_since = Instant::now();
        let state = State {
            has_begun: false,
            is_ending: false,
            in_flight: 0,
            idle_since,
            head_since: None,
            write_waits_since: None,
            gives_way: false,
            outsider_deadline,
        };
        Arc::new(Self { state: Mutex::new(state), close_is_due: Notify::new(), idle_timeout, head_timeout })
    }

    /// Starts HTTP: the first request head is expected now.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        state.idle_since = Instant::now();
        state.head_since = Some(state.idle_since);
    }

    /// Counts a request as in flight until the returned value is dropped.
    pub(super) fn request(self: &Arc<Self>) -> InFlight {
        let mut state = self.state.lock();
        state.has_begun = true;
        state.in_flight += 1;
        state.head_since = None;
        let is_outsider_request = state.outsider_deadline.take().is_some();
        if is_outsider_request {
            self.close_is_due.notify_one();
        }
        let is_last = is_outsider_request || state.is_ending;
        InFlight { activity: Arc::clone(self), is_last }
    }

    /// Makes the next request the last.
    pub(super) fn end_after_next_request(&self) {
        self.state.lock().is_ending = true;
    }

    /// True from the first request on.
    pub(super) fn has_begun(&self) -> bool {
        self.state.lock().has_begun
    }

    /// The time since which its client waits for nothing and has begun no request; `None` if it does, or before the first
    /// request.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.is_idle().then_some(state.idle_since)
    }

    /// Closes the connection, if it is still idle. Returns true if it closes.
    pub(super) fn give_way(&self) -> bool {
        let mut state = self.state.lock();
        state.gives_way = state.is_idle();
        if state.gives_way {
            self.close_is_due.notify_one();
        }
        state.gives_way
    }

    /// Waits until the connection should close.
    ///
    /// Checks so often that no limit can start and expire between two checks, so no request and no frame needs a timer.
    pub(super) async fn close_reason(&self) -> CloseReason {
        let check_interval = self.head_timeout.min(self.idle_timeout / 4);
        loop {
            let now = Instant::now();
            let next = match self.next_deadline() {
                Some((deadline, reason)) if deadline <= now => return reason,
                Some((deadline, _)) => deadline.min(now + check_interval),
                None => now + check_interval,
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.close_is_due.notified() => {
                    let gives_way = self.state.lock().gives_way;
                    return if gives_way { CloseReason::GivesWay } else { CloseReason::OutsiderServed };
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<(Instant, CloseReason)> {
        let state = self.state.lock();
        let reader = state.write_waits_since.map(|since| (since + self.idle_timeout, CloseReason::SlowReader));
        if state.in_flight > 0 {
            return reader;
        }
        let idle = (state.idle_since + self.idle_timeout, CloseReason::Idle);
        let head = state.head_since.map(|since| (since + self.head_timeout, CloseReason::SlowHead));
        let outsider = state.outsider_deadline.map(|deadline| (deadline, CloseReason::SlowOutsider));
        [Some(idle), head, outsider, reader].into_iter().flatten().min_by_key(|(deadline, _)| *deadline)
    }

    fn received(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if state.in_flight == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
    }

    fn sent(&self, since: Instant) {
        let mut state = self.state.lock();
        // Buffers may still hold the end of the last answer.
        state.idle_since = since;
        state.write_waits_since = None;
    }

    fn write_waits(&self) {
        self.state.lock().write_waits_since.get_or_insert_with(Instant::now);
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.head_since.is_none() && self.write_waits_since.is_none() && !self.gives_way
    }
}

/// One request in flight, from its head to the end of the answer's body.
#[derive(Debug)]
pub(super) struct InFlight {
    activity: Arc<Activity>,
    /// True for one after which the connection closes.
    pub(super) is_last: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        state.in_flight -= 1;
        if state.in_flight == 0 {
            state.idle_since = Instant::now();
        }
    }
}

/// A socket that reports to its `Activity`.
#[derive(Debug)]
pub(super) struct WatchedSocket<S> {
    socket: S,
    activity: Arc<Activity>,
}

impl<S: Unpin> WatchedSocket<S> {
    pub(super) fn new(socket: S, activity: Arc<Activity>) -> Self {
        Self { socket, activity }
    }

    fn write(
        mut self: Pin<&mut Self>,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        // The time before the write: afterwards the client may have read it, and used another connection since.
        let since = Instant::now();
        let written = write(Pin::new(&mut self.socket));
        match &written {
            Poll::Ready(Ok(_)) => self.activity.sent(since),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.write_waits(),
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let filled_before = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        self.activity.received(buf.filled().get(filled_before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedSocket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
