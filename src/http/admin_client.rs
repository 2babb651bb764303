//! How the commands ask a running larder: one GET at its admin listener, on this machine's own way.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(10);
const LARGEST_ANSWER: usize = 16 << 20;

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
}

/// Asks the admin listener at `address` for `path`.
pub async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, NoAnswer> {
    let failed = |why: String| NoAnswer::Failed { address, why };
    match timeout(WITHIN, exchange(address, path, token)).await {
        Ok(answer) => answer,
        Err(_) => Err(failed(format!("nothing within {} s", WITHIN.as_secs()))),
    }
}

async fn exchange(address: SocketAddr, path: &str, token: Option<&str>) -> Result<Bytes, NoAnswer> {
    let failed = |why: &dyn std::fmt::Display| NoAnswer::Failed { address, why: why.to_string() };
    let stream = match TcpStream::connect(address).await {
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => return Err(NoAnswer::NotRunning(address)),
        stream => stream.map_err(|e| failed(&e))?,
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let mut request = Request::get(path).header(header::HOST, address.to_string());
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await.map_err(|e| failed(&e))?.to_bytes();
    if status == StatusCode::OK {
        Ok(body)
    } else {
        Err(failed(&format!("{status}: {}", String::from_utf8_lossy(&body))))
    }
}
