//! A reader over HTTP/1.1 that does as little as can be done: blocking reads into one buffer, and a count.

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
pub(super) fn ask(shared: &Shared) -> anyhow::Result<()> {
    let load = &shared.load;
    let connection = Connection::new(load.address, load.tls.as_ref());
    // The barrier is released even after a failed connection: the other clients wait for it.
    shared.ready.wait();
    let mut connection = connection?;
    let request = request(load.address, &load.path, load.gzip);
    while !shared.is_over() {
        let is_whole = connection.ask(&request, |bytes| {
            shared.add_bytes(bytes);
            !shared.is_over()
        })?;
        if !is_whole {
            break;
        }
        shared.add_answer();
    }
    Ok(())
}

/// The request for a path.
pub(super) fn request(address: SocketAddr, path: &str, gzip: bool) -> String {
    let coding = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{coding}\r\n")
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

    /// Sends a request and passes the size of each piece of the body. Returns true if all of it arrived, false if
    /// `goes_on` stopped it.
    pub(super) fn ask(&mut self, request: &str, mut goes_on: impl FnMut(usize) -> bool) -> anyhow::Result<bool> {
        let Self { stream, buffer } = self;
        stream.write_all(request.as_bytes())?;
        let mut filled = 0;
        let head = loop {
            let read = stream.read(&mut buffer[filled..])?;
            if read == 0 {
                bail!("the server closed before an answer");
            }
            filled += read;
            if let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let mut remaining = length(&buffer[..head])?;
        let mut received = filled - head;
        loop {
            let goes_on = goes_on(received);
            remaining = remaining.checked_sub(received).context("the body is longer than its Content-Length")?;
            if remaining == 0 || !goes_on {
                return Ok(remaining == 0);
            }
            received = stream.read(buffer)?;
            if received == 0 {
                bail!("the server closed in the middle of an answer");
            }
        }
    }
}

/// The length a head announces.
fn length(head: &[u8]) -> anyhow::Result<usize> {
    let text = String::from_utf8_lossy(head);
    if !text.starts_with("HTTP/1.1 200") {
        bail!("not 200: {text}");
    }
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length.with_context(|| format!("an answer without a length: {text}"))?;
    Ok(length.trim().parse()?)
}
