//! Requests of the commands to the admin listener of a running larder on this machine.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::admin::SERVER;
use super::body::{Body, pipe};

/// Deadline of requests that wait for no upstream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of requests that wait for upstreams.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3600);
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Size limit of an answer that lists the whole store.
const MAX_LARGE_ANSWER_BYTES: usize = 64 << 20;
/// Size limit of a line of an answer: the receipt of a bundle is one line, with a text for each entry.
const MAX_LINE_BYTES: usize = 64 << 20;
/// The longest pause within a downloaded answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Failures of a request to the admin listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// Connection refused.
    #[error("no larder listens on {0}")]
    NotRunning(SocketAddr),
    /// The store is in use, and nothing listens at the admin address.
    #[error(
        "{store} is in use by another process, and no larder listens on {address}: name the admin listener of the larder \
         that uses the store (--admin-listen, or its --config), or wait for the command that uses the store",
        store = .store.display()
    )]
    StoreInUse {
        /// The folder of the store.
        store: PathBuf,
        /// The address tried.
        address: SocketAddr,
    },
    /// Another program answers at the address.
    #[error("something else answers on {address}, and not larder ({status})")]
    NotLarder {
        /// The address tried.
        address: SocketAddr,
        /// The status of its answer.
        status: StatusCode,
    },
    /// The connection failed, or the answer was invalid, incomplete or late.
    #[error("the request to the admin listener on {address} failed: {reason}")]
    Failed {
        /// The address tried.
        address: SocketAddr,
        /// The failure.
        reason: String,
    },
    /// Larder refused the request.
    #[error("the larder on {address} answered: {message}")]
    Refused {
        /// The address tried.
        address: SocketAddr,
        /// Larder's error text.
        message: String,
    },
    /// Larder requires the admin token, and this user may not read the token file.
    #[error(
        "the larder on {address} requires its admin token, and this user may not read that ({reason}): run the command as larder's user (sudo -u larder larder ...)"
    )]
    TokenUnreadable {
        /// The address tried.
        address: SocketAddr,
        /// The file and the system's error.
        reason: String,
    },
    /// A local file could not be read or written.
    #[error("{0}")]
    LocalIo(io::Error),
}

/// The body of a request.
enum RequestBody {
    Empty,
    Json(Bytes),
    Stream { content_type: &'static str, stream: Body },
}

/// Gets `path` from the admin listener at `address`.
pub async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    request(address, Method::GET, path, token, RequestBody::Empty, REQUEST_TIMEOUT).await
}

/// Gets an answer that lists the whole store, with larger limits of size and time.
pub async fn get_large(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    let request = async {
        let response = exchange(address, Method::GET, path, token, RequestBody::Empty).await?;
        read_at_most(address, response, MAX_LARGE_ANSWER_BYTES).await
    };
    within(address, COMMAND_TIMEOUT, request).await
}

/// Sends DELETE to `path`.
pub async fn delete(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    request(address, Method::DELETE, path, token, RequestBody::Empty, REQUEST_TIMEOUT).await
}

/// Posts a command to the admin listener at `address`.
pub async fn post(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Bytes,
) -> Result<Bytes, AdminClientError> {
    request(address, Method::POST, path, token, RequestBody::Json(body), COMMAND_TIMEOUT).await
}

async fn request(
    address: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    request_body: RequestBody,
    limit: Duration,
) -> Result<Bytes, AdminClientError> {
    let request = async { read_body(address, exchange(address, method, path, token, request_body).await?).await };
    within(address, limit, request).await
}

/// Posts a command that reports its progress; calls `on_line` with each line of the answer.
pub async fn post_lines(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    on_line: impl FnMut(&[u8]),
) -> Result<(), AdminClientError> {
    let request = exchange(address, Method::POST, path, token, RequestBody::Json(Bytes::from_static(b"{}")));
    read_lines(address, within(address, REQUEST_TIMEOUT, request).await?.into_body(), on_line).await
}

/// Uploads everything that `source` yields. Calls `on_line` with each line of the answer, even during the upload.
///
/// # Errors
/// [`AdminClientError::LocalIo`] if `source` fails: the server then sees a broken request.
pub async fn upload(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    content_type: &'static str,
    mut source: impl Read + Send + 'static,
    on_line: impl FnMut(&[u8]),
) -> Result<(), AdminClientError> {
    // Connects first: without a server nothing is read.
    let stream = connect(address).await?;
    let (sender, receiver) = pipe();
    let reader_task = spawn_blocking(move || {
        let mut writer = sender.writer();
        match io::copy(&mut source, &mut writer) {
            Ok(_) => writer.end(Ok(())),
            // The server has stopped reading.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
            Err(e) => {
                writer.end(Err(io::Error::from(e.kind())));
                return Err(AdminClientError::LocalIo(e));
            }
        }
        Ok(())
    });
    let request_body = RequestBody::Stream { content_type, stream: Body::stream(receiver.stream(), None) };
    let result = match exchange_over(stream, address, Method::POST, path, token, request_body).await {
        Ok(response) => read_lines(address, response.into_body(), on_line).await,
        Err(error) => Err(error),
    };
    match result {
        // A failed source is the cause of the missing answer.
        Err(failed @ AdminClientError::Failed { .. }) => {
            Err(reader_task.await.ok().and_then(Result::err).unwrap_or(failed))
        }
        result => result,
    }
}

/// Posts JSON and writes the answer to `output` as it arrives. Returns the number of bytes and `output`.
///
/// # Errors
/// [`AdminClientError::Failed`] if the answer broke off: `output` is incomplete then. [`AdminClientError::LocalIo`]
/// if `output` fails.
pub async fn download<W: Write + Send + 'static>(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Bytes,
    mut output: W,
) -> Result<(u64, W), AdminClientError> {
    let failed = |reason: String| AdminClientError::Failed { address, reason };
    let response =
        within(address, COMMAND_TIMEOUT, exchange(address, Method::POST, path, token, RequestBody::Json(body)));
    let mut body = response.await?.into_body();
    let (sender, mut receiver) = pipe();
    let writer_task = spawn_blocking(move || {
        let bytes = io::copy(&mut receiver, &mut output)?;
        output.flush().map(|()| (bytes, output))
    });
    let received = loop {
        match timeout(IDLE_TIMEOUT, body.frame()).await {
            Err(_) => break Err(format!("nothing more of the answer came within {} s", IDLE_TIMEOUT.as_secs())),
            Ok(None) => break Ok(()),
            Ok(Some(Err(e))) => break Err(format!("the answer broke off: {e}")),
            Ok(Some(Ok(frame))) => {
                // A frame of trailers has no data. The reader skips an empty piece.
                let piece = frame.into_data().unwrap_or_default();
                if !sender.put(piece).await {
                    break Ok(());
                }
            }
        }
    };
    match &received {
        Ok(()) => sender.end().await,
        Err(reason) => sender.broken(io::Error::other(reason.clone())).await,
    }
    let written = writer_task.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    match (received, written) {
        (Err(reason), _) => Err(failed(reason)),
        (Ok(()), Ok(written)) => Ok(written),
        (Ok(()), Err(e)) => Err(AdminClientError::LocalIo(e)),
    }
}

/// Calls `on_line` with each line of a body.
async fn read_lines(
    address: SocketAddr,
    mut body: Incoming,
    mut on_line: impl FnMut(&[u8]),
) -> Result<(), AdminClientError> {
    let failed = |reason: String| AdminClientError::Failed { address, reason };
    let mut unread = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| failed(format!("the answer broke off: {e}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        // The bytes received before this piece contain no line end.
        let mut searched = unread.len();
        unread.extend_from_slice(&piece);
        while let Some(end) = unread.iter().skip(searched).position(|byte| *byte == b'\n') {
            on_line(&unread.split_to(searched + end + 1));
            searched = 0;
        }
        if unread.len() > MAX_LINE_BYTES {
            return Err(failed(format!("a line of the answer is larger than {} MiB", MAX_LINE_BYTES >> 20)));
        }
    }
    if !unread.is_empty() {
        on_line(&unread);
    }
    Ok(())
}

async fn within<T>(
    address: SocketAddr,
    limit: Duration,
    request: impl Future<Output = Result<T, AdminClientError>>,
) -> Result<T, AdminClientError> {
    match timeout(limit, request).await {
        Ok(answer) => answer,
        Err(_) => Err(AdminClientError::Failed { address, reason: format!("no answer within {} s", limit.as_secs()) }),
    }
}

/// Sends a request over a new connection.
///
/// # Errors
/// The server is not larder, or answers with an error status.
async fn exchange(
    address: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    request_body: RequestBody,
) -> Result<Response<Incoming>, AdminClientError> {
    exchange_over(connect(address).await?, address, method, path, token, request_body).await
}

async fn connect(address: SocketAddr) -> Result<TcpStream, AdminClientError> {
    TcpStream::connect(address).await.map_err(|e| match e.kind() {
        io::ErrorKind::ConnectionRefused => AdminClientError::NotRunning(address),
        _ => AdminClientError::Failed { address, reason: e.to_string() },
    })
}

async fn exchange_over(
    stream: TcpStream,
    address: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    request_body: RequestBody,
) -> Result<Response<Incoming>, AdminClientError> {
    let failed = |reason: &dyn std::fmt::Display| AdminClientError::Failed { address, reason: reason.to_string() };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, address.to_string());
    let (content_type, body) = match request_body {
        RequestBody::Empty => (None, Body::empty()),
        RequestBody::Json(body) => (Some("application/json"), Body::full(body)),
        RequestBody::Stream { content_type, stream } => (Some(content_type), stream),
    };
    if let Some(content_type) = content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(body).map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    if response.headers().get(header::SERVER) != Some(&SERVER) {
        return Err(AdminClientError::NotLarder { address, status: response.status() });
    }
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let body = read_body(address, response).await?;
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<String>,
    }
    Err(match serde_json::from_slice::<Errors>(&body) {
        Ok(Errors { errors }) => AdminClientError::Refused { address, message: errors.join("; ") },
        Err(_) => failed(&format!("{status}: {}", String::from_utf8_lossy(&body))),
    })
}

async fn read_body(address: SocketAddr, response: Response<Incoming>) -> Result<Bytes, AdminClientError> {
    read_at_most(address, response, MAX_ANSWER_BYTES).await
}

async fn read_at_most(
    address: SocketAddr,
    response: Response<Incoming>,
    max_bytes: usize,
) -> Result<Bytes, AdminClientError> {
    let body = Limited::new(response.into_body(), max_bytes).collect().await;
    body.map(|body| body.to_bytes()).map_err(|e| AdminClientError::Failed { address, reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper::service::service_fn;
    use tokio::net::TcpListener;

    use super::*;

    /// An admin listener that answers every request with these pieces.
    async fn listener(pieces: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = service_fn(move |_| async move {
            let frame = |piece: &&'static str| Ok(Frame::data(Bytes::from_static(piece.as_bytes())));
            let frames: Vec<io::Result<Frame<Bytes>>> = pieces.iter().map(frame).collect();
            let body = StreamBody::new(futures_util::stream::iter(frames));
            Response::builder().header(header::SERVER, SERVER).body(body)
        });
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await
        });
        address
    }

    #[tokio::test]
    async fn every_line_of_an_answer_is_reported_even_a_last_one_without_line_end() {
        for (pieces, expected) in [
            (&["a\nb\n"][..], &["a\n", "b\n"][..]),
            (&["a", "b\nc", "\n"], &["ab\n", "c\n"]),
            (&["a\n", "b"], &["a\n", "b"]),
            (&[], &[]),
        ] {
            let mut lines = Vec::new();
            let on_line = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
            post_lines(listener(pieces).await, "/", None, on_line).await.unwrap();
            assert_eq!(lines, expected);
        }
    }
}
