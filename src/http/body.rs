//! The one response body: empty, bytes, or a stream; counts the bytes sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Frame, SizeHint};

type BodyPieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A response body.
pub struct Body {
    kind: Kind,
    when_done: Option<Done>,
    sent: u64,
    broke_off: bool,
}

enum Kind {
    Full(Option<Bytes>),
    Stream { pieces: BodyPieces, left: Option<u64> },
}

/// Called once with the bytes sent, and true if larder broke off the body itself.
type Done = Box<dyn FnOnce(u64, bool) + Send>;

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// A body of these bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Full(Some(bytes).filter(|bytes| !bytes.is_empty())),
            when_done: None,
            sent: 0,
            broke_off: false,
        }
    }

    /// A stream of bytes, with its length where known. A stream that ends early is an error.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static, length: Option<u64>) -> Self {
        Self {
            kind: Kind::Stream { pieces: Box::pin(pieces), left: length },
            when_done: None,
            sent: 0,
            broke_off: false,
        }
    }

    /// Calls `done` when the body is dropped, sent or not.
    pub(super) fn when_done(mut self, done: impl FnOnce(u64, bool) + Send + 'static) -> Self {
        self.when_done = Some(Box::new(done));
        self
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(done) = self.when_done.take() {
            done(self.sent, self.broke_off);
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = &mut *self;
        let next = match &mut body.kind {
            Kind::Full(bytes) => bytes.take().map(Ok),
            Kind::Stream { pieces, left } => match std::task::ready!(pieces.as_mut().poll_next(cx)) {
                Some(Ok(piece)) => {
                    if let Some(left) = left {
                        *left = left.saturating_sub(piece.len() as u64);
                    }
                    Some(Ok(piece))
                }
                Some(Err(error)) => Some(Err(error)),
                None if left.is_some_and(|left| left > 0) => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
                None => None,
            },
        };
        match &next {
            Some(Ok(piece)) => body.sent += piece.len() as u64,
            Some(Err(_)) => body.broke_off = true,
            None => {}
        }
        Poll::Ready(next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Stream { left, .. } => *left == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Stream { left: Some(left), .. } => SizeHint::with_exact(*left),
            Kind::Stream { left: None, .. } => SizeHint::default(),
        }
    }
}
