//! The bridge between git's blocking code and the async connector: requests go as messages to the future that runs the
//! job, and answers come back in pieces. So all traffic uses the connector, and no thread blocks on a socket. If that
//! future is dropped, readers fail at once.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use tokio::sync::{mpsc, oneshot};
use url::Url;

use super::repository::SshRepository;
use super::throughput_guard::ThroughputGuard;
use crate::upstream::limits::GitLimits;

/// Queue length between the two sides, in pieces.
const WAITING_PIECES: usize = 8;

/// Some bytes, or `None` at the end. A channel that closes without `None` is broken.
pub(super) type WirePiece = Option<Bytes>;

/// Messages to the connector.
pub(super) enum BridgeRequest {
    Request(Request),
    Ssh {
        repository: SshRepository,
        /// Output of the ssh server.
        output: mpsc::Sender<WirePiece>,
        /// Input of the ssh server.
        input: mpsc::Receiver<Bytes>,
        /// True while a reader waits; silence counts only then.
        awaited: Arc<AtomicBool>,
    },
}

/// An HTTP request of git's code.
pub(super) struct Request {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// The body of a POST; `None` for a GET.
    pub(super) post: Option<Bytes>,
    pub(super) head: oneshot::Sender<Head>,
    pub(super) body: mpsc::Sender<WirePiece>,
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
    orders: mpsc::Sender<BridgeRequest>,
    pub(super) pace: Arc<ThroughputGuard>,
}

impl GitBridge {
    /// Makes a bridge, and the receiver of its requests.
    pub(super) fn new(limits: GitLimits) -> (Self, mpsc::Receiver<BridgeRequest>) {
        let (orders, taken) = mpsc::channel(1);
        (Self { orders, pace: Arc::new(ThroughputGuard::new(limits)) }, taken)
    }

    /// Sends an HTTP request and waits for the head of its answer.
    pub(super) fn exchange(&self, url: Url, headers: HeaderMap, post: Option<Bytes>) -> io::Result<(Head, WireReader)> {
        let (head, receiver) = oneshot::channel();
        let (body, pieces) = mpsc::channel(WAITING_PIECES);
        let request = Request { url, headers, post, head, body };
        self.orders.blocking_send(BridgeRequest::Request(request)).map_err(|_| broken())?;
        let head = receiver.blocking_recv().map_err(|_| broken())?;
        Ok((head, WireReader::new(pieces, Arc::default(), Arc::clone(&self.pace))))
    }

    pub(super) fn connect(&self, repository: SshRepository) -> io::Result<(WireReader, SshInput)> {
        let (output, pieces) = mpsc::channel(WAITING_PIECES);
        let (input, to_say) = mpsc::channel(WAITING_PIECES);
        let awaited = Arc::new(AtomicBool::new(false));
        let order = BridgeRequest::Ssh { repository, output, input: to_say, awaited: Arc::clone(&awaited) };
        self.orders.blocking_send(order).map_err(|_| broken())?;
        Ok((WireReader::new(pieces, awaited, Arc::clone(&self.pace)), SshInput(input)))
    }
}

/// The bridge closed early. The connector's own error has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the connection broke off")]
pub(super) struct BridgeBroken;

fn broken() -> io::Error {
    io::Error::other(BridgeBroken)
}

/// Reader of an answer, or of the output of an ssh server.
pub(super) struct WireReader {
    pieces: mpsc::Receiver<WirePiece>,
    current: Bytes,
    has_ended: bool,
    awaited: Arc<AtomicBool>,
    pace: Arc<ThroughputGuard>,
}

impl WireReader {
    fn new(pieces: mpsc::Receiver<WirePiece>, awaited: Arc<AtomicBool>, pace: Arc<ThroughputGuard>) -> Self {
        Self { pieces, current: Bytes::new(), has_ended: false, awaited, pace }
    }
}

impl BufRead for WireReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() && !self.has_ended {
            self.awaited.store(true, Ordering::Release);
            let since = Instant::now();
            let piece = self.pieces.blocking_recv();
            self.awaited.store(false, Ordering::Release);
            match piece {
                Some(Some(piece)) => {
                    self.pace.record(piece.len(), since.elapsed()).map_err(io::Error::other)?;
                    self.current = piece;
                }
                Some(None) => self.has_ended = true,
                None => return Err(broken()),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, read: usize) {
        self.current.advance(read.min(self.current.len()));
    }
}

impl Read for WireReader {
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
        self.0.blocking_send(Bytes::copy_from_slice(bytes)).map_err(|_| broken())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
