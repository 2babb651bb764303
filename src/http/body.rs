//! The type of all response bodies: empty, bytes, or a stream; it counts the bytes sent, and keeps its request in flight.
//! And the pipe that makes a stream of what a blocking thread writes, or lets it read one.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, stream};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::idle::InFlight;
use super::request_log::RequestLog;
use crate::supervisor::panic_message;

type BodyPieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A response body.
pub struct Body {
    content: Content,
    request: Option<InFlight>,
    log: Option<Box<RequestLog>>,
    sent: u64,
    is_truncated: bool,
}

enum Content {
    Full(Option<Bytes>),
    Stream { pieces: BodyPieces, remaining_bytes: Option<u64> },
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// A body of these bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self::of(Content::Full(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    /// A stream of bytes, with its length where known. A stream that ends early is an error.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static, length: Option<u64>) -> Self {
        Self::of(Content::Stream { pieces: Box::pin(pieces), remaining_bytes: length })
    }

    fn of(content: Content) -> Self {
        Self { content, request: None, log: None, sent: 0, is_truncated: false }
    }

    /// Ends the record of the request when the body is dropped, sent or not.
    pub(super) fn logged_in(mut self, log: Box<RequestLog>) -> Self {
        self.log = Some(log);
        self
    }

    /// Keeps the request in flight until the body is dropped.
    pub(super) fn of_request(mut self, request: Option<InFlight>) -> Self {
        self.request = request;
        self
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let (pieces, remaining_bytes) = match &mut self.content {
            Content::Full(bytes) => return Poll::Ready(bytes.take().map(Ok)),
            Content::Stream { pieces, remaining_bytes } => (pieces, remaining_bytes),
        };
        let next = ready!(pieces.as_mut().poll_next(cx));
        match (&next, remaining_bytes) {
            (Some(Ok(piece)), Some(remaining)) => *remaining = remaining.saturating_sub(piece.len() as u64),
            (None, Some(1..)) => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            _ => {}
        }
        Poll::Ready(next)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(log) = &mut self.log {
            log.sent = (self.sent, self.is_truncated);
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = &mut *self;
        let next = match catch_unwind(AssertUnwindSafe(|| body.poll_content(cx))) {
            Ok(polled) => ready!(polled),
            Err(panic) => {
                tracing::error!(panic = panic_message(&*panic), "the body of an answer panicked");
                Some(Err(io::Error::other("the body of an answer panicked")))
            }
        };
        match &next {
            Some(Ok(piece)) => body.sent += piece.len() as u64,
            Some(Err(_)) => body.is_truncated = true,
            None => {}
        }
        Poll::Ready(next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Full(bytes) => bytes.is_none(),
            Content::Stream { remaining_bytes, .. } => *remaining_bytes == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::Stream { remaining_bytes, .. } => remaining_bytes.map(SizeHint::with_exact).unwrap_or_default(),
        }
    }
}

/// Queue length, in pieces.
const QUEUED_PIECES: usize = 4;
/// Size of a piece written by blocking code, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// A message in the queue: bytes, the end (`None`), or the reason why the bytes so far are incomplete.
type PipeMessage = io::Result<Option<Bytes>>;

/// Creates a pipe.
pub(super) fn pipe() -> (PipeSender, PipeReceiver) {
    let (sender, queue) = channel(QUEUED_PIECES);
    (PipeSender(sender), PipeReceiver { queue, piece: Bytes::new(), has_ended: false })
}

/// The input of the pipe, for async code. If dropped without an end, the pipe is broken.
#[derive(Debug)]
pub(super) struct PipeSender(Sender<PipeMessage>);

impl PipeSender {
    /// Sends the pieces of a body, and then its end. If the body breaks off, or pauses for longer than `max_pause`, so does
    /// the pipe. `name` and `late` are the texts of these errors. Stops early if the reader has stopped.
    ///
    /// # Errors
    /// The error that broke the pipe.
    pub(super) async fn send_body(
        self,
        body: &mut Incoming,
        max_pause: Duration,
        name: &str,
        late: &str,
    ) -> Result<(), String> {
        let reason = loop {
            match timeout(max_pause, body.frame()).await {
                Ok(None) => {
                    // The reader may have stopped.
                    let _ = self.0.send(Ok(None)).await;
                    return Ok(());
                }
                Ok(Some(Ok(frame))) => {
                    // A frame of trailers has no data. The reader skips an empty piece.
                    let piece = frame.into_data().unwrap_or_default();
                    if self.0.send(Ok(Some(piece))).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(Some(Err(e))) => break format!("{name} broke off: {e}"),
                Err(_) => break format!("{late} {} s", max_pause.as_secs()),
            }
        };
        let _ = self.0.send(Err(io::Error::other(reason.clone()))).await;
        Err(reason)
    }

    /// Converts to a blocking writer, which must not be used in an async task.
    pub(super) fn writer(self) -> PipeWriter {
        PipeWriter { sender: self.0, piece: BytesMut::new() }
    }
}

/// The input of the pipe, for blocking code.
#[derive(Debug)]
pub(super) struct PipeWriter {
    sender: Sender<PipeMessage>,
    piece: BytesMut,
}

impl PipeWriter {
    /// Ends the pipe: complete, or broken with the error.
    pub(super) fn end(mut self, ended: io::Result<()>) {
        let ended = ended.and_then(|()| self.flush());
        // The reader may have stopped.
        let _ = self.sender.blocking_send(ended.map(|()| None));
    }

    fn send(&mut self) -> io::Result<()> {
        let sent = self.sender.blocking_send(Ok(Some(self.piece.split().freeze())));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the reader has stopped"))
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.reserve(PIECE_BYTES.saturating_sub(self.piece.len()));
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.send() }
    }
}

/// The output of the pipe, read in blocking code or as a stream.
#[derive(Debug)]
pub(super) struct PipeReceiver {
    queue: Receiver<PipeMessage>,
    piece: Bytes,
    has_ended: bool,
}

impl PipeReceiver {
    /// Converts to a stream, which ends in an error if the pipe broke.
    pub(super) fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(self.queue, |mut queue| async move {
            let piece = queue.recv().await.unwrap_or_else(writer_stopped)?;
            Ok(piece.map(|piece| (piece, queue)))
        })
    }
}

/// Reading blocks, so it must not happen in an async task.
impl Read for PipeReceiver {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.has_ended {
            let piece = self.queue.blocking_recv().unwrap_or_else(writer_stopped)?;
            self.has_ended = piece.is_none();
            self.piece = piece.unwrap_or_default();
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

fn writer_stopped() -> PipeMessage {
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the writer stopped before the end"))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn bytes_and_the_end_pass_through_the_pipe() {
        let (sender, receiver) = pipe();
        let written: Vec<u8> = (0..3 * PIECE_BYTES + 7).map(|index| (index % 251) as u8).collect();
        let bytes = written.clone();
        let writer_task = tokio::task::spawn_blocking(move || {
            let mut writer = sender.writer();
            let result = writer.write_all(&bytes);
            writer.end(result);
        });
        let pieces: Vec<_> = receiver.stream().map(|piece| piece.unwrap()).collect().await;
        writer_task.await.unwrap();
        assert_eq!(pieces.concat(), written);
        assert!(pieces.len() <= 4, "{}", pieces.len());
    }

    #[tokio::test]
    async fn a_broken_pipe_is_never_read_as_complete() {
        for reason in [None, Some(io::Error::other("the disk failed"))] {
            let (sender, mut receiver) = pipe();
            let message = reason.as_ref().map_or("the writer stopped before the end".to_owned(), ToString::to_string);
            sender.0.send(Ok(Some(Bytes::from_static(b"half")))).await.unwrap();
            match reason {
                None => drop(sender),
                Some(reason) => sender.0.send(Err(reason)).await.unwrap(),
            }
            let reader_task = tokio::task::spawn_blocking(move || {
                let mut read = Vec::new();
                (receiver.read_to_end(&mut read).unwrap_err().to_string(), read)
            });
            assert_eq!(reader_task.await.unwrap(), (message, b"half".to_vec()));
        }
    }

    #[tokio::test]
    async fn a_writer_fails_when_the_reader_has_stopped() {
        let (sender, receiver) = pipe();
        drop(receiver);
        let writer_task = tokio::task::spawn_blocking(move || sender.writer().write_all(&vec![0; 2 * PIECE_BYTES]));
        assert_eq!(writer_task.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
