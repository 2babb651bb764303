//! The type of all response bodies: empty, bytes, or a stream. It counts the bytes sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Frame, SizeHint};

type BodyPieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A response body.
pub struct Body {
    content: Content,
    when_done: Option<OnDrop>,
    sent: u64,
    is_truncated: bool,
}

enum Content {
    Full(Option<Bytes>),
    Stream { pieces: BodyPieces, remaining_bytes: Option<u64> },
}

/// Called once with the number of bytes sent, and true if larder truncated the body itself.
type OnDrop = Box<dyn FnOnce(u64, bool) + Send>;

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// A body of these bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self {
            content: Content::Full(Some(bytes).filter(|bytes| !bytes.is_empty())),
            when_done: None,
            sent: 0,
            is_truncated: false,
        }
    }

    /// A stream of bytes, with its length where known. A stream that ends early is an error.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static, length: Option<u64>) -> Self {
        Self {
            content: Content::Stream { pieces: Box::pin(pieces), remaining_bytes: length },
            when_done: None,
            sent: 0,
            is_truncated: false,
        }
    }

    /// Calls `on_drop` when the body is dropped, sent or not.
    pub(super) fn when_done(mut self, on_drop: impl FnOnce(u64, bool) + Send + 'static) -> Self {
        self.when_done = Some(Box::new(on_drop));
        self
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(on_drop) = self.when_done.take() {
            on_drop(self.sent, self.is_truncated);
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = &mut *self;
        let next = match &mut body.content {
            Content::Full(bytes) => bytes.take().map(Ok),
            Content::Stream { pieces, remaining_bytes } => match std::task::ready!(pieces.as_mut().poll_next(cx)) {
                Some(Ok(piece)) => {
                    if let Some(remaining_bytes) = remaining_bytes {
                        *remaining_bytes = remaining_bytes.saturating_sub(piece.len() as u64);
                    }
                    Some(Ok(piece))
                }
                Some(Err(error)) => Some(Err(error)),
                None if remaining_bytes.is_some_and(|remaining_bytes| remaining_bytes > 0) => {
                    Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof)))
                }
                None => None,
            },
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
            Content::Stream { remaining_bytes: Some(remaining_bytes), .. } => SizeHint::with_exact(*remaining_bytes),
            Content::Stream { remaining_bytes: None, .. } => SizeHint::default(),
        }
    }
}
