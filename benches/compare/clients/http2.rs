//! A client over HTTP/2: hyper's client, one stream at a time, with the flow-control windows of Go's client.

use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use http::Request;
use http::header::ACCEPT_ENCODING;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Shared;

/// The flow-control windows of Go's client.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Sends requests until the measurement is over.
pub(super) fn send_requests(shared: &Shared) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection = connect(shared).await;
        // The barrier is released even after a failed connection: the other clients wait for it.
        shared.ready.wait();
        let mut sender = connection?;
        let load = &shared.load;
        let scheme = if load.protocol.is_tls() { "https" } else { "http" };
        while !shared.is_over() {
            let mut request = Request::get(format!("{scheme}://{}{}", load.address, load.path));
            if load.gzip {
                request = request.header(ACCEPT_ENCODING, "gzip");
            }
            sender.ready().await?;
            let answer = sender.send_request(request.body(Empty::new())?).await?;
            ensure!(answer.status() == 200, "{}", answer.status());
            let mut body = answer.into_body();
            while let Some(frame) = body.frame().await {
                shared.add_bytes(frame?.data_ref().map_or(0, Bytes::len));
                if shared.is_over() {
                    return Ok(());
                }
            }
            shared.add_answer();
        }
        Ok(())
    })
}

async fn connect(shared: &Shared) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let load = &shared.load;
    let stream = TcpStream::connect(load.address).await?;
    stream.set_nodelay(true)?;
    match &load.tls {
        None => handshake(stream).await,
        Some(tls) => {
            let tls = TlsConnector::from(Arc::clone(tls));
            handshake(tls.connect(ServerName::from(load.address.ip()), stream).await?).await
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
