//! Implements gix's HTTP transport over the bridge to the connector.

use std::cell::RefCell;
use std::io::{self, BufRead, Cursor, Read, Write};
use std::rc::Rc;

use bytes::Bytes;
use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::blocking_bridge::{BridgeReader, GitBridge, Head};

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
    type Headers = Lazy<Cursor<Vec<u8>>>;
    type ResponseBody = Lazy<BridgeReader>;
    type PostBody = RequestBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix_error::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        let parsed_url = parse_url(url)?;
        let (head, reader) =
            self.bridge.exchange(parsed_url.clone(), header_map(headers), None).map_err(to_gix_error)?;
        if head.url != parsed_url {
            let path_below_base = url.strip_prefix(base_url).unwrap_or_default();
            let base = head.url.as_str().strip_suffix(path_below_base).filter(|_| !path_below_base.is_empty());
            let base =
                base.ok_or_else(|| to_gix_error(io::Error::other("a redirect to a URL that is not a git repository")))?;
            self.redirected_url = Some(base.to_owned());
        }
        Ok(GetResponse { headers: Lazy::opened(header_lines(&head)), body: Lazy::opened(reader) })
    }

    fn post(
        &mut self,
        url: &str,
        _base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix_error::Result<PostResponse<Self::Headers, Self::ResponseBody, RequestBody>> {
        let exchange = Exchange::Collecting {
            bridge: self.bridge.clone(),
            url: parse_url(url)?,
            headers: header_map(headers),
            body: Vec::new(),
        };
        let exchange = Rc::new(RefCell::new(exchange));
        Ok(PostResponse {
            post_body: RequestBody(Rc::clone(&exchange)),
            headers: Lazy::new({
                let exchange = Rc::clone(&exchange);
                move || Ok(exchange.borrow_mut().send()?.as_ref().map(header_lines).unwrap_or_default())
            }),
            body: Lazy::new(move || exchange.borrow_mut().take_answer()),
        })
    }

    fn configure(&mut self, _config: &dyn std::any::Any) -> gix_error::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.redirected_url.clone()
    }
}

/// A request, followed by its answer.
enum Exchange {
    /// The request body is incomplete.
    Collecting { bridge: GitBridge, url: Url, headers: HeaderMap, body: Vec<u8> },
    /// The answer is arriving.
    Answering(BridgeReader),
    /// The request failed, or a reader has taken the answer.
    Finished,
}

impl Exchange {
    /// Sends the request with the collected body, unless the request was sent already.
    fn send(&mut self) -> io::Result<Option<Head>> {
        match std::mem::replace(self, Self::Finished) {
            Self::Collecting { bridge, url, headers, body } => {
                let (head, reader) = bridge.exchange(url, headers, Some(Bytes::from(body)))?;
                *self = Self::Answering(reader);
                Ok(Some(head))
            }
            unchanged => {
                *self = unchanged;
                Ok(None)
            }
        }
    }

    /// The body of the answer, sending the request if that was not done.
    fn take_answer(&mut self) -> io::Result<BridgeReader> {
        self.send()?;
        match std::mem::replace(self, Self::Finished) {
            Self::Answering(reader) => Ok(reader),
            Self::Collecting { .. } | Self::Finished => Err(request_failed()),
        }
    }
}

/// Writer of the request body. The request is sent when its answer is first read.
pub(super) struct RequestBody(Rc<RefCell<Exchange>>);

impl Write for RequestBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.borrow_mut() {
            Exchange::Collecting { body, .. } => body.extend_from_slice(bytes),
            Exchange::Answering(_) | Exchange::Finished => {
                return Err(io::Error::other("the request was sent already"));
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader that is opened when something is read.
pub(super) struct Lazy<R> {
    open: Option<Box<dyn FnOnce() -> io::Result<R>>>,
    reader: Option<R>,
}

impl<R> Lazy<R> {
    fn new(open: impl FnOnce() -> io::Result<R> + 'static) -> Self {
        Self { open: Some(Box::new(open)), reader: None }
    }

    fn opened(reader: R) -> Self {
        Self { open: None, reader: Some(reader) }
    }

    fn reader(&mut self) -> io::Result<&mut R> {
        if let Some(open) = self.open.take() {
            self.reader = Some(open()?);
        }
        self.reader.as_mut().ok_or_else(request_failed)
    }
}

impl<R: Read> Read for Lazy<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader()?.read(buffer)
    }
}

impl<R: BufRead> BufRead for Lazy<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader()?.fill_buf()
    }

    fn consume(&mut self, read: usize) {
        if let Some(reader) = &mut self.reader {
            reader.consume(read);
        }
    }
}

fn request_failed() -> io::Error {
    io::Error::other("the request failed")
}

fn header_lines(head: &Head) -> Cursor<Vec<u8>> {
    Cursor::new([b"Content-Type: ", &head.content_type[..], b"\n"].concat())
}

fn parse_url(url: &str) -> gix_error::Result<Url> {
    Url::parse(url).map_err(|_| to_gix_error(io::Error::other("an invalid URL")))
}

fn to_gix_error(error: io::Error) -> gix_error::Error {
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
