//! A client over HTTP/1.1 that does as little as possible: blocking reads into one buffer, and a count.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::Shared;

const BUFFER_BYTES: usize = 256 * 1024;

/// Read timeout; a cold archive may wait for its whole fill.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends requests until the measurement is over.
pub(super) fn send_requests(shared: &Shared) -> anyhow::Result<()> {
    let load = &shared.load;
    let connection = Connection::new(load.address, load.tls.as_ref());
    // The barrier is released even after a failed connection: the other clients wait for it.
    shared.ready.wait();
    let mut connection = connection?;
    let request_text = request_text(load.address, &load.path, load.gzip, load.token.as_deref());
    while !shared.is_over() {
        let is_complete = connection.request(&request_text, |bytes| {
            shared.add_bytes(bytes);
            !shared.is_over()
        })?;
        if !is_complete {
            break;
        }
        shared.add_answer();
    }
    Ok(())
}

/// The text of a request for a path.
pub(super) fn request_text(address: SocketAddr, path: &str, gzip: bool, token: Option<&str>) -> String {
    let coding = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{coding}{token}\r\n")
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A persistent connection.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn new(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        let buffer = vec![0; BUFFER_BYTES];
        let Some(tls) = tls else { return Ok(Self { stream: Box::new(stream), buffer }) };
        let mut tls = ClientConnection::new(Arc::clone(tls), ServerName::from(address.ip()))?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Self { stream: Box::new(StreamOwned::new(tls, stream)), buffer })
    }

    /// Sends a request, and calls `continue_after` with the size of each piece of the body. Returns true if the body is
    /// complete, false if `continue_after` stopped the reading.
    pub(super) fn request(
        &mut self,
        request: &str,
        mut continue_after: impl FnMut(usize) -> bool,
    ) -> anyhow::Result<bool> {
        let Self { stream, buffer } = self;
        stream.write_all(request.as_bytes())?;
        let mut filled = 0;
        let head_end = loop {
            let read = stream.read(&mut buffer[filled..])?;
            if read == 0 {
                bail!("the server closed before an answer");
            }
            filled += read;
            if let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let mut remaining = content_length(&buffer[..head_end])?;
        let mut received = filled - head_end;
        loop {
            let continues = continue_after(received);
            remaining = remaining.checked_sub(received).context("the body is longer than its Content-Length")?;
            if remaining == 0 || !continues {
                return Ok(remaining == 0);
            }
            received = stream.read(buffer)?;
            if received == 0 {
                bail!("the server closed in the middle of an answer");
            }
        }
    }
}

/// The Content-Length of a response head.
fn content_length(head: &[u8]) -> anyhow::Result<usize> {
    let text = String::from_utf8_lossy(head);
    if !text.starts_with("HTTP/1.1 200") {
        bail!("not 200: {text}");
    }
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length.with_context(|| format!("an answer without a length: {text}"))?;
    Ok(length.trim().parse()?)
}
