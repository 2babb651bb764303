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
use super::body::Body;
use super::sync_bridge::pipe;

/// Deadline of requests that only read.
const WITHIN: Duration = Duration::from_secs(10);
/// Deadline of requests that ask upstreams.
const COMMAND_WITHIN: Duration = Duration::from_secs(3600);
const MAX_ANSWER: usize = 16 << 20;
const MAX_OF_ALL: usize = 64 << 20;
/// Limit of an answer line: the receipt of a bundle has a text for each entry.
const MAX_LINE: usize = 64 << 20;
/// The longest silence within an answer.
const SILENT_FOR: Duration = Duration::from_secs(300);

/// Failures of a request to the admin listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// Connection refused.
    #[error("no larder listens on {0}")]
    NotRunning(SocketAddr),
    /// The store is in use, and nothing listens at the admin address.
    #[error(
        "{store} is in use, and no larder listens on {address}: name the admin listener of the larder that has it \
         (--admin-listen, or its --config), or wait for the command that has it",
        store = .store.display()
    )]
    Elsewhere {
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
    /// The listener gave no valid answer.
    #[error("the admin listener on {address} did not answer: {reason}")]
    Failed {
        /// The address tried.
        address: SocketAddr,
        /// The failure.
        reason: String,
    },
    /// Larder refused the request.
    #[error("the larder on {address} says: {message}")]
    Refused {
        /// The address tried.
        address: SocketAddr,
        /// Larder's error text.
        message: String,
    },
    /// Larder asks for its token, and this user may not read it.
    #[error(
        "the larder on {address} asks for its token, and this user may not read it ({reason}): run the command as larder's user (sudo -u larder larder ...)"
    )]
    TokenIsPrivate {
        /// The address tried.
        address: SocketAddr,
        /// The file and the system's error.
        reason: String,
    },
    /// A local file could not be read or written.
    #[error("{0}")]
    LocalIo(io::Error),
}

/// Token and body of a request.
enum RequestDetails {
    Nothing,
    Json(Bytes),
    Text(Bytes),
    /// A streamed body and its content type.
    Stream(&'static str, Body),
}

/// Gets `path` from the admin listener at `address`.
pub async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    let asking =
        async { read_body(address, exchange(address, Method::GET, path, token, RequestDetails::Nothing).await?).await };
    with_deadline(address, WITHIN, asking).await
}

/// Gets a large answer, with a longer deadline.
pub async fn get_large(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    let asking = async {
        let response = exchange(address, Method::GET, path, token, RequestDetails::Nothing).await?;
        whole_of(address, response, MAX_OF_ALL).await
    };
    with_deadline(address, COMMAND_WITHIN, asking).await
}

/// Sends DELETE to `path`.
pub async fn delete(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, AdminClientError> {
    let exchange_and_read = async {
        read_body(address, exchange(address, Method::DELETE, path, token, RequestDetails::Nothing).await?).await
    };
    with_deadline(address, WITHIN, exchange_and_read).await
}

/// Posts a command to the admin listener at `address`.
pub async fn post(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Bytes,
) -> Result<Bytes, AdminClientError> {
    post_json(address, path, token, RequestDetails::Json(body)).await
}

/// Posts a text, such as a user's file.
pub async fn post_text(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    text: Bytes,
) -> Result<Bytes, AdminClientError> {
    post_json(address, path, token, RequestDetails::Text(text)).await
}

async fn post_json(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    details: RequestDetails,
) -> Result<Bytes, AdminClientError> {
    let exchange_and_read =
        async { read_body(address, exchange(address, Method::POST, path, token, details).await?).await };
    with_deadline(address, COMMAND_WITHIN, exchange_and_read).await
}

/// Posts a command that reports its progress; calls `line` with each line.
pub async fn post_lines(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    line: impl FnMut(&[u8]),
) -> Result<(), AdminClientError> {
    let exchange_and_read =
        exchange(address, Method::POST, path, token, RequestDetails::Json(Bytes::from_static(b"{}")));
    lines(address, with_deadline(address, WITHIN, exchange_and_read).await?.into_body(), line).await
}

/// Uploads everything that `source` writes. Calls `line` with each line of the answer, even during the upload.
///
/// # Errors
/// [`AdminClientError::LocalIo`] if `source` fails: the server then sees a broken request.
pub async fn upload(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    kind: &'static str,
    mut source: impl Read + Send + 'static,
    line: impl FnMut(&[u8]),
) -> Result<(), AdminClientError> {
    // Connects first: without a server nothing is read.
    let stream = connect(address).await?;
    let (entry, exit) = pipe();
    let reading = spawn_blocking(move || {
        let mut writer = entry.writer();
        match io::copy(&mut source, &mut writer) {
            Ok(_) => writer.end(Ok(())),
            // The server has stopped reading.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
            Err(e) => {
                let kind = e.kind();
                writer.end(Err(io::Error::from(kind)));
                return Err(AdminClientError::LocalIo(e));
            }
        }
        Ok(())
    });
    let details = RequestDetails::Stream(kind, Body::stream(exit.stream(), None));
    let answered = match exchange_over(stream, address, Method::POST, path, token, details).await {
        Ok(response) => lines(address, response.into_body(), line).await,
        Err(error) => Err(error),
    };
    match answered {
        // A failed source is the cause of the missing answer.
        Err(failed @ AdminClientError::Failed { .. }) => {
            Err(reading.await.ok().and_then(Result::err).unwrap_or(failed))
        }
        answered => answered,
    }
}

/// Posts JSON and writes the answer to `to` as it arrives. Returns the number of bytes and the writer.
///
/// # Errors
/// [`AdminClientError::Failed`] if the answer broke off: the output is incomplete. [`AdminClientError::LocalIo`] if `to`
/// fails.
pub async fn download<W: Write + Send + 'static>(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    body: Bytes,
    mut to: W,
) -> Result<(u64, W), AdminClientError> {
    let failed = |reason: String| AdminClientError::Failed { address, reason };
    let response = with_deadline(
        address,
        COMMAND_WITHIN,
        exchange(address, Method::POST, path, token, RequestDetails::Json(body)),
    );
    let mut body = response.await?.into_body();
    let (entry, mut exit) = pipe();
    let writing = spawn_blocking(move || {
        let written = io::copy(&mut exit, &mut to)?;
        to.flush().map(|()| (written, to))
    });
    let arrived = loop {
        match timeout(SILENT_FOR, body.frame()).await {
            Err(_) => break Err(format!("nothing more within {} s", SILENT_FOR.as_secs())),
            Ok(None) => break Ok(()),
            Ok(Some(Err(e))) => break Err(format!("it broke off: {e}")),
            Ok(Some(Ok(frame))) => {
                let piece = frame.into_data().unwrap_or_default();
                if !entry.put(piece).await {
                    break Ok(());
                }
            }
        }
    };
    match &arrived {
        Ok(()) => entry.end().await,
        Err(reason) => entry.broken(io::Error::other(reason.clone())).await,
    }
    let written = writing.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    match (arrived, written) {
        (Err(reason), _) => Err(failed(reason)),
        (Ok(()), Ok(written)) => Ok(written),
        (Ok(()), Err(e)) => Err(AdminClientError::LocalIo(e)),
    }
}

/// Calls `line` with each line of a body.
async fn lines(address: SocketAddr, mut body: Incoming, mut line: impl FnMut(&[u8])) -> Result<(), AdminClientError> {
    let failed = |reason: String| AdminClientError::Failed { address, reason };
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| failed(format!("it broke off: {e}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        // The earlier bytes contain no line end.
        let mut looked_at = rest.len();
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().skip(looked_at).position(|byte| *byte == b'\n') {
            line(&rest.split_to(looked_at + end + 1));
            looked_at = 0;
        }
        if rest.len() > MAX_LINE {
            return Err(failed("a line of its report has no end".to_owned()));
        }
    }
    Ok(())
}

async fn with_deadline<T>(
    address: SocketAddr,
    limit: Duration,
    asking: impl Future<Output = Result<T, AdminClientError>>,
) -> Result<T, AdminClientError> {
    match timeout(limit, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(AdminClientError::Failed { address, reason: format!("nothing within {} s", limit.as_secs()) }),
    }
}

/// Sends a request and returns its response, if that is a success from a larder.
async fn exchange(
    address: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    details: RequestDetails,
) -> Result<Response<Incoming>, AdminClientError> {
    exchange_over(connect(address).await?, address, method, path, token, details).await
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
    details: RequestDetails,
) -> Result<Response<Incoming>, AdminClientError> {
    let failed = |reason: &dyn std::fmt::Display| AdminClientError::Failed { address, reason: reason.to_string() };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, address.to_string());
    let (kind, body) = match details {
        RequestDetails::Nothing => (None, Body::empty()),
        RequestDetails::Json(body) => (Some("application/json"), Body::full(body)),
        RequestDetails::Text(body) => (Some("text/plain; charset=utf-8"), Body::full(body)),
        RequestDetails::Stream(kind, body) => (Some(kind), body),
    };
    if let Some(kind) = kind {
        request = request.header(header::CONTENT_TYPE, kind);
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
    whole_of(address, response, MAX_ANSWER).await
}

async fn whole_of(
    address: SocketAddr,
    response: Response<Incoming>,
    largest: usize,
) -> Result<Bytes, AdminClientError> {
    let body = Limited::new(response.into_body(), largest).collect().await;
    body.map(|body| body.to_bytes()).map_err(|e| AdminClientError::Failed { address, reason: e.to_string() })
}
