//! The bridge between git's blocking code and the async connector. Requests go as messages to the future that runs the
//! fetch, and answers come back in chunks. So all traffic uses the connector, and no thread blocks on a socket. If the
//! future of the fetch is dropped, readers fail at once, as they do when the transfer is too slow or too large.

use std::io::{self, BufRead, Cursor, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use url::Url;

use super::repository::SshRepository;
use crate::upstream::error::Fault;
use crate::upstream::limits::GitLimits;

/// Queue length between the two sides, in chunks.
const MAX_QUEUED_CHUNKS: usize = 8;

/// The next bytes, or `None` at the end. A channel that closes without `None` is broken.
pub(super) type BridgeChunk = Option<Bytes>;

/// Messages to the connector.
pub(super) enum BridgeRequest {
    Http(HttpRequest),
    Ssh(SshRequest),
}

/// A connection of git's code to an ssh server.
pub(super) struct SshRequest {
    pub(super) repository: SshRepository,
    /// Output of the ssh server.
    pub(super) output: mpsc::Sender<BridgeChunk>,
    /// Input of the ssh server.
    pub(super) input: mpsc::Receiver<Bytes>,
    /// True while a reader waits for output. Silence of the server counts only then.
    pub(super) reader_waits: Arc<AtomicBool>,
}

/// An HTTP request of git's code.
pub(super) struct HttpRequest {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// The body of a POST; `None` for a GET.
    pub(super) post: Option<Bytes>,
    pub(super) head: oneshot::Sender<Head>,
    pub(super) body: mpsc::Sender<BridgeChunk>,
}

/// The head of an answer.
pub(super) struct Head {
    /// Final URL after redirects.
    pub(super) url: Url,
    pub(super) content_type: Vec<u8>,
}

/// The end of the bridge that git's code uses.
#[derive(Debug, Clone)]
pub(super) struct GitBridge {
    requests: mpsc::Sender<BridgeRequest>,
    pub(super) throughput: Arc<ThroughputGuard>,
}

impl GitBridge {
    /// Makes a bridge, and the receiver of its requests.
    pub(super) fn new(limits: GitLimits) -> (Self, mpsc::Receiver<BridgeRequest>) {
        let (requests, receiver) = mpsc::channel(1);
        (Self { requests, throughput: Arc::new(ThroughputGuard::new(limits)) }, receiver)
    }

    /// Makes an HTTP request that is not sent yet, and the receivers of its answer.
    fn http_request(&self, url: &str, headers: HeaderMap) -> gix_error::Result<PreparedRequest> {
        let url = Url::parse(url).map_err(|_| gix_io_error(io::Error::other("an invalid URL")))?;
        let (head, head_receiver) = oneshot::channel();
        let (body, reader) = self.chunk_channel();
        Ok((HttpRequest { url, headers, post: None, head, body }, head_receiver, reader))
    }

    fn send(&self, request: BridgeRequest) -> io::Result<()> {
        self.requests.blocking_send(request).map_err(|_| bridge_broken())
    }

    /// Connects to an ssh server.
    pub(super) fn connect_ssh(&self, repository: SshRepository) -> io::Result<(BridgeReader, SshInput)> {
        let (output, reader) = self.chunk_channel();
        let (input, input_receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let reader_waits = Arc::clone(&reader.reader_waits);
        self.send(BridgeRequest::Ssh(SshRequest { repository, output, input: input_receiver, reader_waits }))?;
        Ok((reader, SshInput(input)))
    }

    /// Makes a sender of chunks, and their reader.
    fn chunk_channel(&self) -> (mpsc::Sender<BridgeChunk>, BridgeReader) {
        let (sender, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let (reader_waits, throughput) = (Arc::default(), Arc::clone(&self.throughput));
        (sender, BridgeReader { chunks, current: Bytes::new(), has_ended: false, reader_waits, throughput })
    }
}

/// An HTTP request, and the receivers of the head and the body of its answer.
type PreparedRequest = (HttpRequest, oneshot::Receiver<Head>, BridgeReader);

/// The bridge closed early. The connector's own error has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the connection broke off")]
pub(super) struct BridgeBroken;

fn bridge_broken() -> io::Error {
    io::Error::other(BridgeBroken)
}

/// Reader of an answer, or of the output of an ssh server.
pub(super) struct BridgeReader {
    chunks: mpsc::Receiver<BridgeChunk>,
    current: Bytes,
    has_ended: bool,
    reader_waits: Arc<AtomicBool>,
    throughput: Arc<ThroughputGuard>,
}

impl BufRead for BridgeReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() && !self.has_ended {
            self.reader_waits.store(true, Ordering::Release);
            let started = Instant::now();
            let chunk = self.chunks.blocking_recv();
            self.reader_waits.store(false, Ordering::Release);
            match chunk {
                Some(Some(chunk)) => {
                    self.throughput.record(chunk.len(), started.elapsed()).map_err(io::Error::other)?;
                    self.current = chunk;
                }
                Some(None) => self.has_ended = true,
                None => return Err(bridge_broken()),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, read: usize) {
        self.current.advance(read.min(self.current.len()));
    }
}

impl Read for BridgeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

/// Writer of an ssh server's input.
pub(super) struct SshInput(mpsc::Sender<Bytes>);

impl Write for SshInput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(Bytes::copy_from_slice(bytes)).map_err(|_| bridge_broken())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The minimum throughput, the same as for archives. Slower transfers would keep permits that others wait for.
const MIN_BYTES_PER_SECOND: f64 = 1024.0;

/// The received bytes and waiting times of all connections that one fetch opens, one after the other.
#[derive(Debug)]
pub(super) struct ThroughputGuard {
    limits: GitLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// True within a pack. Before it arrive greetings, refs and progress messages.
    is_pack: bool,
    /// Bytes of this answer before the pack. They are in memory.
    before_pack: u64,
    /// Bytes since the fetch began.
    total: u64,
    /// Bytes since the last check.
    received: u64,
    /// Time spent waiting for those bytes.
    waited: Duration,
    /// Time spent waiting for the next pack. Servers need time to prepare one.
    waited_for_pack: Duration,
}

impl ThroughputGuard {
    pub(super) fn new(limits: GitLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Starts an answer: the first of a connection, or another one. The time to prepare a pack goes on.
    pub(super) fn expect_answer(&self) {
        let mut state = self.state.lock();
        (state.is_pack, state.before_pack) = (false, 0);
    }

    /// Marks the start of a pack.
    pub(super) fn expect_pack(&self) {
        let mut state = self.state.lock();
        *state = State { is_pack: true, total: state.total, ..State::default() };
    }

    /// Records bytes received after a wait.
    ///
    /// # Errors
    /// [`Fault::TooLarge`] for too much data in total or before the pack, [`Fault::Slow`] for a slow transfer.
    pub(super) fn record(&self, bytes: usize, waited: Duration) -> Result<(), Fault> {
        let mut state = self.state.lock();
        state.total += bytes as u64;
        if state.total > self.limits.received_bytes {
            return Err(Fault::TooLarge(self.limits.received_bytes));
        }
        if !state.is_pack {
            state.before_pack += bytes as u64;
            state.waited_for_pack += waited;
            let GitLimits { bytes_before_pack, preparing, .. } = self.limits;
            if state.before_pack > bytes_before_pack {
                return Err(Fault::TooLarge(bytes_before_pack));
            }
            if state.waited_for_pack > preparing {
                return Err(Fault::Slow(format!("no byte of a pack within {} s", preparing.as_secs())));
            }
            return Ok(());
        }
        state.received += bytes as u64;
        state.waited += waited;
        if state.waited < self.limits.idle {
            return Ok(());
        }
        let (received, waited) = (std::mem::take(&mut state.received), std::mem::take(&mut state.waited));
        if received as f64 >= MIN_BYTES_PER_SECOND * waited.as_secs_f64() {
            return Ok(());
        }
        Err(Fault::Slow(format!("less than 1 KiB/s over {} s", waited.as_secs())))
    }
}

/// gix's HTTP client for one repository.
pub(super) struct HttpTransport {
    bridge: GitBridge,
    /// URL of the repository after a redirect.
    redirected_url: Option<String>,
}

impl HttpTransport {
    pub(super) fn new(bridge: GitBridge) -> Self {
        Self { bridge, redirected_url: None }
    }
}

impl Http for HttpTransport {
    type Headers = HeadReader;
    type ResponseBody = BridgeReader;
    type PostBody = PostBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix_error::Result<GetResponse<HeadReader, BridgeReader>> {
        let (request, head, body) = self.bridge.http_request(url, header_map(headers))?;
        let requested_url = request.url.clone();
        self.bridge.send(BridgeRequest::Http(request)).map_err(gix_io_error)?;
        let head = head.blocking_recv().map_err(|_| gix_io_error(bridge_broken()))?;
        if head.url != requested_url {
            let path_below_base = url.strip_prefix(base_url).unwrap_or_default();
            let base = head.url.as_str().strip_suffix(path_below_base).filter(|_| !path_below_base.is_empty());
            let base =
                base.ok_or_else(|| gix_io_error(io::Error::other("a redirect to a URL that is not a git repository")))?;
            self.redirected_url = Some(base.to_owned());
        }
        Ok(GetResponse { headers: HeadReader { head: None, lines: header_lines(&head) }, body })
    }

    fn post(
        &mut self,
        url: &str,
        _base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix_error::Result<PostResponse<HeadReader, BridgeReader, PostBody>> {
        let (request, head, body) = self.bridge.http_request(url, header_map(headers))?;
        let post_body = PostBody { bridge: self.bridge.clone(), request: Some(request), bytes: Vec::new() };
        Ok(PostResponse { post_body, headers: HeadReader { head: Some(head), lines: Cursor::default() }, body })
    }

    fn configure(&mut self, _config: &dyn std::any::Any) -> gix_error::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.redirected_url.clone()
    }
}

/// Writer of the body of a POST. gix drops the writer when the body is complete, and that sends the request.
pub(super) struct PostBody {
    bridge: GitBridge,
    request: Option<HttpRequest>,
    bytes: Vec<u8>,
}

impl Write for PostBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PostBody {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let post = Some(Bytes::from(std::mem::take(&mut self.bytes)));
            // If the bridge is closed, so are the receivers of the answer, and their readers fail.
            let _ = self.bridge.send(BridgeRequest::Http(HttpRequest { post, ..request }));
        }
    }
}

/// Reader of the head of an answer, as header lines.
pub(super) struct HeadReader {
    /// The head, until it is received. The first read waits for it.
    head: Option<oneshot::Receiver<Head>>,
    lines: Cursor<Vec<u8>>,
}

impl BufRead for HeadReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Some(head) = self.head.take() {
            self.lines = header_lines(&head.blocking_recv().map_err(|_| bridge_broken())?);
        }
        self.lines.fill_buf()
    }

    fn consume(&mut self, read: usize) {
        self.lines.consume(read);
    }
}

impl Read for HeadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

fn header_lines(head: &Head) -> Cursor<Vec<u8>> {
    Cursor::new([b"Content-Type: ", &head.content_type[..], b"\n"].concat())
}

fn gix_io_error(error: io::Error) -> gix_error::Error {
    gix_error::Error::from_error(error)
}

fn header_map(lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
    let headers = lines.into_iter().filter_map(|line| {
        let (name, value) = line.as_ref().split_once(':')?;
        Some((HeaderName::try_from(name.trim()).ok()?, HeaderValue::try_from(value.trim()).ok()?))
    });
    headers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> ThroughputGuard {
        ThroughputGuard::new(GitLimits { bytes_before_pack: 100_000, ..GitLimits::default() })
    }

    const WAITED: Duration = Duration::from_secs(29);

    #[test]
    fn a_slow_pack_is_given_up_and_a_fast_pack_is_not() {
        let guard = guard();
        guard.expect_pack();
        assert_eq!(guard.record(1, WAITED), Ok(()));
        assert!(matches!(guard.record(1, WAITED), Err(Fault::Slow(_))));
        for _ in 0..100 {
            assert_eq!(guard.record(30 << 10, WAITED), Ok(()));
        }
    }

    #[test]
    fn the_time_to_prepare_a_pack_is_limited_whatever_arrives_before_the_pack() {
        for bytes in [5, 2000] {
            let guard = guard();
            for _ in 0..3 {
                let waits = (1..).find(|_| guard.record(bytes, Duration::from_secs(5)).is_err()).unwrap();
                assert_eq!(waits * 5, 125, "the first multiple of 5 s past the limit of 120 s");
                guard.expect_answer();
                assert!(guard.record(bytes, Duration::from_secs(5)).is_err(), "another answer does not reset the time");
                // Another pack resets the time.
                guard.expect_pack();
                guard.expect_answer();
            }
        }
    }

    #[test]
    fn data_before_a_pack_is_bounded_and_the_pack_is_not() {
        let guard = guard();
        assert_eq!(guard.record(60_000, Duration::ZERO), Ok(()));
        assert_eq!(guard.record(60_000, Duration::ZERO), Err(Fault::TooLarge(100_000)));
        guard.expect_pack();
        assert_eq!(guard.record(1 << 30, Duration::ZERO), Ok(()));
        guard.expect_answer();
        assert_eq!(guard.record(60_000, Duration::ZERO), Ok(()));
    }
}
