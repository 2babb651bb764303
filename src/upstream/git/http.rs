//! gix's HTTP transport, over the bridge to the connector.

use std::cell::RefCell;
use std::io::{self, BufRead, Cursor, Read, Write};
use std::rc::Rc;

use bytes::Bytes;
use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::blocking_bridge::{GitBridge, Head, WireReader};

pub(super) struct HttpTransport {
    wire: GitBridge,
    /// URL of the repository after a redirect.
    moved: Option<String>,
}

impl HttpTransport {
    pub(super) fn new(wire: GitBridge) -> Self {
        Self { wire, moved: None }
    }
}

impl Http for HttpTransport {
    type Headers = Headers;
    type ResponseBody = ExchangeBody;
    type PostBody = PostedBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix_error::Result<GetResponse<Headers, ExchangeBody>> {
        let parsed_url = parsed(url)?;
        let (head, pieces) = self.wire.exchange(parsed_url.clone(), header_map(headers), None).map_err(failed)?;
        if head.url != parsed_url {
            let tail = url.strip_prefix(base_url).unwrap_or_default();
            let base = head.url.as_str().strip_suffix(tail).filter(|_| !tail.is_empty());
            let base =
                base.ok_or_else(|| failed(io::Error::other("a redirect to a URL that is not a git repository")))?;
            self.moved = Some(base.to_owned());
        }
        let exchange = Rc::new(RefCell::new(Exchange::Answered(pieces)));
        Ok(GetResponse { headers: Headers::of(&head), body: ExchangeBody::of(exchange) })
    }

    fn post(
        &mut self,
        url: &str,
        _base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix_error::Result<PostResponse<Headers, ExchangeBody, PostedBody>> {
        let exchange = Exchange::Collecting {
            wire: self.wire.clone(),
            url: parsed(url)?,
            headers: header_map(headers),
            body: Vec::new(),
        };
        let exchange = Rc::new(RefCell::new(exchange));
        Ok(PostResponse {
            post_body: PostedBody(Rc::clone(&exchange)),
            headers: Headers { lines: None, exchange: Some(Rc::clone(&exchange)) },
            body: ExchangeBody::of(exchange),
        })
    }

    fn configure(&mut self, _config: &dyn std::any::Any) -> gix_error::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.moved.clone()
    }
}

/// A request, followed by its answer.
enum Exchange {
    /// The request body is incomplete.
    Collecting { wire: GitBridge, url: Url, headers: HeaderMap, body: Vec<u8> },
    /// The answer is arriving.
    Answered(WireReader),
    /// The request failed, or a reader has taken the answer.
    Over,
}

impl Exchange {
    /// Sends the collected body, unless it was sent already.
    fn send(&mut self) -> io::Result<Option<Head>> {
        match std::mem::replace(self, Self::Over) {
            Self::Collecting { wire, url, headers, body } => {
                let (head, pieces) = wire.exchange(url, headers, Some(Bytes::from(body)))?;
                *self = Self::Answered(pieces);
                Ok(Some(head))
            }
            other => {
                *self = other;
                Ok(None)
            }
        }
    }
}

/// Writer of the request body. The request is sent when its answer is first read.
pub(super) struct PostedBody(Rc<RefCell<Exchange>>);

impl Write for PostedBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.borrow_mut() {
            Exchange::Collecting { body, .. } => body.extend_from_slice(bytes),
            Exchange::Answered(_) | Exchange::Over => return Err(io::Error::other("the request was sent already")),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reader of an answer's headers, as lines.
pub(super) struct Headers {
    lines: Option<Cursor<Vec<u8>>>,
    exchange: Option<Rc<RefCell<Exchange>>>,
}

impl Headers {
    fn of(head: &Head) -> Self {
        Self { lines: Some(lines(head)), exchange: None }
    }

    fn lines(&mut self) -> io::Result<&mut Cursor<Vec<u8>>> {
        if let Some(exchange) = self.exchange.take() {
            self.lines = exchange.borrow_mut().send()?.as_ref().map(lines);
        }
        Ok(self.lines.get_or_insert_default())
    }
}

impl Read for Headers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.lines()?.read(buffer)
    }
}

impl BufRead for Headers {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.lines()?.fill_buf()
    }

    fn consume(&mut self, read: usize) {
        if let Some(lines) = &mut self.lines {
            lines.consume(read);
        }
    }
}

/// Reader of an answer's body.
pub(super) struct ExchangeBody {
    exchange: Rc<RefCell<Exchange>>,
    pieces: Option<WireReader>,
}

impl ExchangeBody {
    fn of(exchange: Rc<RefCell<Exchange>>) -> Self {
        Self { exchange, pieces: None }
    }

    fn pieces(&mut self) -> io::Result<&mut WireReader> {
        if self.pieces.is_none() {
            let mut exchange = self.exchange.borrow_mut();
            exchange.send()?;
            match std::mem::replace(&mut *exchange, Exchange::Over) {
                Exchange::Answered(pieces) => self.pieces = Some(pieces),
                Exchange::Collecting { .. } | Exchange::Over => {}
            }
        }
        self.pieces.as_mut().ok_or_else(|| io::Error::other("the request failed"))
    }
}

impl Read for ExchangeBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.pieces()?.read(buffer)
    }
}

impl BufRead for ExchangeBody {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.pieces()?.fill_buf()
    }

    fn consume(&mut self, read: usize) {
        if let Some(pieces) = &mut self.pieces {
            pieces.consume(read);
        }
    }
}

fn lines(head: &Head) -> Cursor<Vec<u8>> {
    Cursor::new([b"Content-Type: ", &head.content_type[..], b"\n"].concat())
}

fn parsed(url: &str) -> gix_error::Result<Url> {
    Url::parse(url).map_err(|_| failed(io::Error::other("a URL that is none")))
}

fn failed(error: io::Error) -> gix_error::Error {
    gix_error::Error::from_error(error)
}

fn header_map(lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some((name, value)) = line.as_ref().split_once(':') else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.trim()), HeaderValue::try_from(value.trim())) {
            headers.insert(name, value);
        }
    }
    headers
}
