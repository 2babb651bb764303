//! A reader over HTTP/1.1 that does as little as can be done: blocking reads into one buffer, and a count.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::Shared;

const BUFFER_BYTES: usize = 256 * 1024;

/// Asks until it is over.
pub(super) fn ask(shared: &Shared) -> anyhow::Result<()> {
    let asking = &shared.asking;
    let connected = connect(shared);
    // Also where it failed: the others wait.
    shared.ready.wait();
    let mut stream = connected?;
    let coding = if asking.gzip { "Accept-Encoding: gzip\r\n" } else { "" };
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n{coding}\r\n", asking.path, asking.address);
    let mut buffer = vec![0; BUFFER_BYTES];
    while !shared.is_over() {
        stream.write_all(request.as_bytes())?;
        let mut filled = 0;
        let head = loop {
            let read = stream.read(&mut buffer[filled..])?;
            if read == 0 {
                bail!("the server closed before an answer");
            }
            filled += read;
            if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let mut left = length(&buffer[..head])?;
        let mut came = filled - head;
        loop {
            shared.took(came);
            left = left.checked_sub(came).context("more came than was announced")?;
            if left == 0 {
                break;
            }
            if shared.is_over() {
                return Ok(());
            }
            came = stream.read(&mut buffer)?;
            if came == 0 {
                bail!("the server closed in the middle of an answer");
            }
        }
        shared.answered();
    }
    Ok(())
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

fn connect(shared: &Shared) -> anyhow::Result<Box<dyn Stream>> {
    let asking = &shared.asking;
    let mut stream = TcpStream::connect(asking.address)?;
    stream.set_nodelay(true)?;
    let Some(tls) = &asking.tls else { return Ok(Box::new(stream)) };
    let mut tls = ClientConnection::new(Arc::clone(tls), ServerName::from(asking.address.ip()))?;
    while tls.is_handshaking() {
        tls.complete_io(&mut stream)?;
    }
    Ok(Box::new(StreamOwned::new(tls, stream)))
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
