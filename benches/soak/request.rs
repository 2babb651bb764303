//! One request of one client: how it reads the body, how the body ended, and whether that breaks a promise.

use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::clients::Client;
use crate::ledger::{BrokenPromise, RequestKind};
use crate::process::LarderProcess;

/// larder answers a document within 8 s; the rest allows for a busy machine.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// larder gives up a silent upstream after 30 s, and retries.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// The way a body is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyReading {
    Complete,
    /// With this pause after each piece.
    Slowly(Duration),
    /// The client disconnects after this many bytes.
    DisconnectAfter(usize),
    /// Over HTTP/1.0, on its own connection.
    Http10,
}

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct SoakRequest<'a> {
    pub(crate) kind: RequestKind,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) reading: BodyReading,
}

impl<'a> SoakRequest<'a> {
    pub(crate) fn complete(kind: RequestKind, path: &'a str) -> Self {
        Self { kind, path, headers: &[], reading: BodyReading::Complete }
    }
}

/// The end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// The client regards the body as complete.
    Complete,
    /// The body was truncated.
    Truncated,
    /// The client closed the connection.
    Disconnected,
}

/// The received answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) ended: BodyEnd,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> String {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    }

    pub(crate) fn is_complete(&self, status: u16) -> bool {
        self.ended == BodyEnd::Complete && self.status == status
    }
}

impl Client {
    /// Sends a request, counts its outcome, and records broken promises; returns the answer, if there was one.
    pub(crate) async fn send(&mut self, request: SoakRequest<'_>) -> Option<Answer> {
        let SoakRequest { kind, path, .. } = request;
        let is_stored = self.setup.checks_acknowledged && self.setup.ledger.is_acknowledged(path);
        let process = self.setup.processes.wait_until_running().await;
        let began = Instant::now();
        let limit = if kind.is_archive() { ARCHIVE_TIMEOUT } else { DOCUMENT_TIMEOUT };
        let exchange = async {
            match request.reading {
                BodyReading::Http10 => self.over_http10(&process, request, began).await,
                _ => self.over_http(&process, request, began).await,
            }
        };
        let answer = timeout(limit, exchange).await;
        let ledger = &self.setup.ledger;
        let describe = |event: &str| {
            format!(
                "{path}: {event} after {:.1?} in process {} [{}]",
                began.elapsed(),
                process.number,
                self.setup.active_faults()
            )
        };
        if !self.setup.processes.is_running(&process)
            && !matches!(&answer, Ok(Some(answer)) if answer.ended == BodyEnd::Complete)
        {
            ledger.count(kind, "killed");
            return None;
        }
        let Ok(answer) = answer else {
            ledger.record_broken(BrokenPromise::NoAnswer, describe("no end"));
            return None;
        };
        let Some(answer) = answer else {
            ledger.record_broken(BrokenPromise::NoAnswer, describe("the connection broke before an answer"));
            return None;
        };
        ledger.count_bytes(answer.body.len());
        let text = || String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]).into_owned();
        match (answer.ended, answer.status) {
            (BodyEnd::Disconnected, _) => ledger.count(kind, "disconnected"),
            (BodyEnd::Truncated, _) => {
                ledger.count(kind, "truncated");
                if is_stored {
                    ledger.record_broken(BrokenPromise::StoredTruncated, describe("truncated"));
                }
            }
            (BodyEnd::Complete, status @ (200 | 204 | 206 | 304)) => ledger.count(kind, &status.to_string()),
            (BodyEnd::Complete, status) => {
                ledger.count(kind, &status.to_string());
                if is_stored {
                    ledger.record_broken(BrokenPromise::StoredRefused, describe(&format!("{status} {}", text())));
                // Upstream's 400 and 422 are passed on where nothing is cached.
                } else if !matches!(status, 400 | 404 | 421 | 422 | 502 | 503 | 504) {
                    ledger.record_broken(BrokenPromise::UnexpectedStatus, describe(&format!("{status} {}", text())));
                }
            }
        }
        Some(answer)
    }

    async fn over_http(&self, process: &LarderProcess, request: SoakRequest<'_>, began: Instant) -> Option<Answer> {
        let builder = self.http.get(format!("{}{}", process.base, request.path));
        let builder = request.headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, value));
        let mut response = builder.send().await.ok()?;
        self.record_latency(request.kind, began);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::new();
        let ended = loop {
            match response.chunk().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break BodyEnd::Complete,
                Err(_) => break BodyEnd::Truncated,
            }
            match request.reading {
                BodyReading::DisconnectAfter(bytes) if body.len() >= bytes => break BodyEnd::Disconnected,
                BodyReading::Slowly(pause) => sleep(pause).await,
                _ => {}
            }
        };
        Some(Answer { status, headers, body, ended })
    }

    async fn over_http10(&self, process: &LarderProcess, request: SoakRequest<'_>, began: Instant) -> Option<Answer> {
        let address = process.base.strip_prefix("http://")?;
        let mut stream = TcpStream::connect(address).await.ok()?;
        let headers: String = request.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("GET {} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n", request.path);
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut received = Vec::new();
        // A reset may follow a complete answer; its length decides.
        let _ = stream.read_to_end(&mut received).await;
        self.record_latency(request.kind, began);
        let head = received.windows(4).position(|window| window == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(&received[..head]).to_ascii_lowercase();
        let mut lines = text.lines();
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        let body = received.split_off(head + 4);
        let ended = match header("content-length:").map(|length| length == body.len().to_string()) {
            Some(false) if status != 304 => BodyEnd::Truncated,
            // Without a length the end of the connection is the end of the body.
            _ => BodyEnd::Complete,
        };
        Some(Answer { status, headers: HeaderMap::new(), body, ended })
    }
}
