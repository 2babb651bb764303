//! How the commands ask a running larder: one request at its admin listener, on this machine's own way.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What only tells something is answered at once.
const WITHIN: Duration = Duration::from_secs(10);
/// What asks upstreams takes as long as they do.
const COMMAND_WITHIN: Duration = Duration::from_secs(3600);
const LARGEST_ANSWER: usize = 16 << 20;
const LONGEST_LINE: usize = 1 << 20;

/// Why a running larder gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Nobody listens there.
    #[error("no larder listens on {0}")]
    NotRunning(SocketAddr),
    /// Somebody listens, and did not answer as larder does.
    #[error("the admin listener on {address} did not answer: {why}")]
    Failed {
        /// Where.
        address: SocketAddr,
        /// What happened.
        why: String,
    },
    /// It answered that it will not.
    #[error("the larder on {address} says: {said}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// Its words.
        said: String,
    },
}

/// What a request says besides its path.
enum Said {
    Nothing,
    Json(Bytes),
    Text(Bytes),
}

/// Asks the admin listener at `address` for `path`.
pub async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, NoAnswer> {
    let asking = async { whole(address, exchange(address, Method::GET, path, token, Said::Nothing).await?).await };
    within(address, WITHIN, asking).await
}

/// Ends what is at `path`.
pub async fn delete(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, NoAnswer> {
    let telling = async { whole(address, exchange(address, Method::DELETE, path, token, Said::Nothing).await?).await };
    within(address, WITHIN, telling).await
}

/// Tells the admin listener at `address` to do something.
pub async fn post(address: SocketAddr, path: &str, token: Option<&str>, body: Bytes) -> Result<Bytes, NoAnswer> {
    tell(address, path, token, Said::Json(body)).await
}

/// The same with a text, such as a user's file.
pub async fn post_text(address: SocketAddr, path: &str, token: Option<&str>, text: Bytes) -> Result<Bytes, NoAnswer> {
    tell(address, path, token, Said::Text(text)).await
}

async fn tell(address: SocketAddr, path: &str, token: Option<&str>, said: Said) -> Result<Bytes, NoAnswer> {
    let telling = async { whole(address, exchange(address, Method::POST, path, token, said).await?).await };
    within(address, COMMAND_WITHIN, telling).await
}

/// Tells it to do something that it reports line by line; `line` is called with each.
pub async fn post_lines(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    mut line: impl FnMut(&[u8]),
) -> Result<(), NoAnswer> {
    let failed = |why: String| NoAnswer::Failed { address, why };
    let telling = exchange(address, Method::POST, path, token, Said::Json(Bytes::from_static(b"{}")));
    let mut body = within(address, WITHIN, telling).await?.into_body();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| failed(format!("it broke off: {e}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            line(&rest.split_to(end + 1));
        }
        if rest.len() > LONGEST_LINE {
            return Err(failed("a line of its report has no end".to_owned()));
        }
    }
    Ok(())
}

async fn within<T>(
    address: SocketAddr,
    limit: Duration,
    asking: impl Future<Output = Result<T, NoAnswer>>,
) -> Result<T, NoAnswer> {
    match timeout(limit, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(NoAnswer::Failed { address, why: format!("nothing within {} s", limit.as_secs()) }),
    }
}

/// The response, if it is a good one.
async fn exchange(
    address: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
    said: Said,
) -> Result<Response<Incoming>, NoAnswer> {
    let failed = |why: &dyn std::fmt::Display| NoAnswer::Failed { address, why: why.to_string() };
    let stream = match TcpStream::connect(address).await {
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => return Err(NoAnswer::NotRunning(address)),
        stream => stream.map_err(|e| failed(&e))?,
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, address.to_string());
    let (kind, body) = match said {
        Said::Nothing => (None, Bytes::new()),
        Said::Json(body) => (Some("application/json"), body),
        Said::Text(body) => (Some("text/plain; charset=utf-8"), body),
    };
    if let Some(kind) = kind {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(body)).map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let body = whole(address, response).await?;
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<String>,
    }
    Err(match serde_json::from_slice::<Errors>(&body) {
        Ok(Errors { errors }) => NoAnswer::Refused { address, said: errors.join("; ") },
        Err(_) => failed(&format!("{status}: {}", String::from_utf8_lossy(&body))),
    })
}

async fn whole(address: SocketAddr, response: Response<Incoming>) -> Result<Bytes, NoAnswer> {
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await;
    body.map(|body| body.to_bytes()).map_err(|e| NoAnswer::Failed { address, why: e.to_string() })
}
