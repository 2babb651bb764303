//! One request of one client: how it is read, how it ended, and whether that may be.

use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::clients::Client;
use crate::ledger::{BrokenPromise, Kind};
use crate::life::LarderProcess;

/// A document comes within 8 s; this much is for a machine that does much else at the same time.
const DOCUMENT_WITHIN: Duration = Duration::from_secs(30);
/// A silent upstream is given up after 30 s, and asked again.
const ARCHIVE_WITHIN: Duration = Duration::from_secs(120);

/// The way a body is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyReading {
    Whole,
    /// With this pause after each piece.
    Slowly(Duration),
    /// Until this many bytes are there.
    LeaveAfter(usize),
    /// Over HTTP/1.0, on its own connection.
    Http10,
}

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct SoakRequest<'a> {
    pub(crate) kind: Kind,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) reading: BodyReading,
}

impl<'a> SoakRequest<'a> {
    pub(crate) fn whole(kind: Kind, path: &'a str) -> Self {
        Self { kind, path, headers: &[], reading: BodyReading::Whole }
    }
}

/// The end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// As a client takes for complete.
    Complete,
    /// BrokenPromise off.
    CutOff,
    /// The client left.
    Left,
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
    /// Asks, counts how it ended, and judges that; the answer, if there was one.
    pub(crate) async fn ask(&mut self, ask: SoakRequest<'_>) -> Option<Answer> {
        let SoakRequest { kind, path, .. } = ask;
        let stored = self.site.checks_acknowledged && self.site.ledger.is_acknowledged(path);
        let process = self.site.processes.up().await;
        let began = Instant::now();
        let limit = if kind.is_archive() { ARCHIVE_WITHIN } else { DOCUMENT_WITHIN };
        let requests = async {
            match ask.reading {
                BodyReading::Http10 => self.over_http10(&process, ask, began).await,
                _ => self.over_http(&process, ask, began).await,
            }
        };
        let answer = timeout(limit, requests).await;
        let ledger = &self.site.ledger;
        let order = |subject: &str| {
            format!(
                "{path}: {subject} after {:.1?} in process {} [{}]",
                began.elapsed(),
                process.number,
                self.site.weather()
            )
        };
        if !self.site.processes.is_running(&process)
            && !matches!(&answer, Ok(Some(answer)) if answer.ended == BodyEnd::Complete)
        {
            ledger.count(kind, "killed");
            return None;
        }
        let Ok(answer) = answer else {
            ledger.broken(BrokenPromise::NoAnswer, order("no end"));
            return None;
        };
        let Some(answer) = answer else {
            ledger.broken(BrokenPromise::NoAnswer, order("the connection broke before an answer"));
            return None;
        };
        ledger.received(answer.body.len());
        let text = || String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]).into_owned();
        match (answer.ended, answer.status) {
            (BodyEnd::Left, _) => ledger.count(kind, "left"),
            (BodyEnd::CutOff, _) => {
                ledger.count(kind, "cut off");
                if stored {
                    ledger.broken(BrokenPromise::HeldCutOff, order("cut off"));
                }
            }
            (BodyEnd::Complete, status @ (200 | 204 | 206 | 304)) => ledger.count(kind, &status.to_string()),
            (BodyEnd::Complete, status) => {
                ledger.count(kind, &status.to_string());
                if stored {
                    ledger.broken(BrokenPromise::HeldRefused, order(&format!("{status} {}", text())));
                // Upstream's 400 and 422 are passed on where nothing is cached.
                } else if !matches!(status, 400 | 404 | 421 | 422 | 502 | 503 | 504) {
                    ledger.broken(BrokenPromise::UnexpectedStatus, order(&format!("{status} {}", text())));
                }
            }
        }
        Some(answer)
    }

    async fn over_http(&self, process: &LarderProcess, ask: SoakRequest<'_>, began: Instant) -> Option<Answer> {
        let request = self.http.get(format!("{}{}", process.base, ask.path));
        let request = ask.headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let mut response = request.send().await.ok()?;
        self.record_latency(ask.kind, began);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::new();
        let ended = loop {
            match response.chunk().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break BodyEnd::Complete,
                Err(_) => break BodyEnd::CutOff,
            }
            match ask.reading {
                BodyReading::LeaveAfter(bytes) if body.len() >= bytes => break BodyEnd::Left,
                BodyReading::Slowly(pause) => sleep(pause).await,
                _ => {}
            }
        };
        Some(Answer { status, headers, body, ended })
    }

    async fn over_http10(&self, process: &LarderProcess, ask: SoakRequest<'_>, began: Instant) -> Option<Answer> {
        let address = process.base.strip_prefix("http://")?;
        let mut stream = TcpStream::connect(address).await.ok()?;
        let headers: String = ask.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!("GET {} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n", ask.path);
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut all = Vec::new();
        // A reset may come after all of it has: what arrived is judged by its length.
        let _ = stream.read_to_end(&mut all).await;
        self.record_latency(ask.kind, began);
        let head = all.windows(4).position(|four| four == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(&all[..head]).to_ascii_lowercase();
        let mut lines = text.lines();
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        let body = all.split_off(head + 4);
        let ended = match header("content-length:").map(|length| length == body.len().to_string()) {
            Some(false) if status != 304 => BodyEnd::CutOff,
            // Without a length the end of the connection is the end of the body.
            _ => BodyEnd::Complete,
        };
        Some(Answer { status, headers: HeaderMap::new(), body, ended })
    }
}
