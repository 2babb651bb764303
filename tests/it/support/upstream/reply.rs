//! One answer: content, then faults, then validators and ranges, then the steps that send the body. `registry` maps
//! URLs to content.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, LOCATION, RANGE, RETRY_AFTER,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::sync::watch;

use super::connection::ConnectionControl;
use super::faults::{ActiveFaults, Fault, HoldPoint};
use super::hostile_gzip;
use super::package::sha256_hex;
use super::requests::AnswerProgress;

/// The body of every answer.
pub(super) type ReplyBody = UnsyncBoxBody<Bytes, io::Error>;

const CHUNK_BYTES: usize = 64 * 1024;

/// A gate that stops answers until a test opens it. An open gate does not close again.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    is_open: Arc<watch::Sender<bool>>,
}

impl Gate {
    pub(super) fn closed() -> Self {
        Self { is_open: Arc::new(watch::Sender::new(false)) }
    }

    /// Lets all waiting and later answers pass.
    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(super) fn is_open(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Waits until the gate is open.
    pub(super) async fn opened(&self) {
        let mut is_open = self.is_open.subscribe();
        // The sender lives in `self`, so the wait can only end by the gate being open.
        let _ = is_open.wait_for(|is_open| *is_open).await;
    }
}

/// The steps that send a body, in order.
enum Step {
    Send(Bytes),
    /// Sends the same bytes again and again, with this pause between.
    Repeat(Bytes, Duration),
    /// Waits until the gate is open.
    Wait(Gate),
    Pause(Duration),
    /// Ends the body early: the connection closes.
    Close,
    /// Ends the body early: the connection is reset.
    Reset,
    /// Sends nothing more, and leaves the connection open.
    Stall,
}

/// An answer before it is sent.
#[derive(Clone)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) last_modified: Option<String>,
    pub(super) supports_ranges: bool,
}

impl Reply {
    pub(super) fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self {
            status: StatusCode::from_u16(status).expect("a status between 100 and 999"),
            headers,
            body: body.into(),
            last_modified: None,
            supports_ranges: false,
        }
    }

    pub(super) fn not_found() -> Self {
        Self::new(404, "application/json", "{\"errors\":[\"Not Found\"]}")
    }

    pub(super) fn redirect(status: u16, location: &str) -> Self {
        Self::new(status, "text/plain", "").with_header(LOCATION.as_str(), location)
    }

    pub(super) fn with_header(mut self, name: &str, value: &str) -> Self {
        let name: http::HeaderName = name.parse().expect("a header name");
        self.headers.insert(name, value.parse().expect("a header value"));
        self
    }

    /// Applies the faults of the content, then the validators and the range of the request.
    pub(super) fn finish(mut self, path: &str, query: &str, headers: &HeaderMap, faults: &[Fault]) -> Self {
        // The ETag belongs to the content without faults. But an answer with a fault must not become a 304.
        let intact = (self.body.clone(), self.headers.get(CONTENT_TYPE).cloned());
        let etag = format!("\"{}\"", &sha256_hex(&self.body)[..20]);
        for fault in faults {
            self.apply_fault(fault, path, query);
        }
        if self.status != StatusCode::OK {
            return self;
        }
        let is_intact = intact == (self.body.clone(), self.headers.get(CONTENT_TYPE).cloned());
        let has_fault = |is_wanted: fn(&Fault) -> bool| faults.iter().any(is_wanted);
        if let (Some(last_modified), false) =
            (&self.last_modified, has_fault(|fault| matches!(fault, Fault::NoValidators)))
        {
            let is_not_modified = match headers.get(IF_NONE_MATCH) {
                Some(tags) => {
                    tags.to_str().is_ok_and(|tags| tags == "*" || tags.split(',').any(|tag| tag.trim() == etag))
                }
                None => headers.get(IF_MODIFIED_SINCE).is_some_and(|date| *date == *last_modified),
            };
            self.headers.insert(ETAG, etag.parse().expect("hexadecimal digits"));
            self.headers.insert(LAST_MODIFIED, last_modified.parse().expect("a date"));
            if is_not_modified && is_intact {
                self.status = StatusCode::NOT_MODIFIED;
                self.body = Bytes::new();
                return self;
            }
        }
        if !self.supports_ranges || has_fault(|fault| matches!(fault, Fault::RangeIgnored)) {
            return self;
        }
        self.headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        let Some(range) = headers.get(RANGE).and_then(|range| range.to_str().ok()) else {
            return self;
        };
        if has_fault(|fault| matches!(fault, Fault::RangeOtherBytes)) {
            self.body = self.body.iter().map(|byte| byte ^ 0x55).collect();
            return self;
        }
        let is_still_valid = headers.get(IF_RANGE).is_none_or(|validator| {
            [self.headers.get(ETAG), self.headers.get(LAST_MODIFIED)].contains(&Some(validator))
        });
        if is_still_valid {
            let announced = faults.iter().find_map(|fault| match fault {
                Fault::Announces(bytes) => Some(*bytes),
                _ => None,
            });
            self.keep_range(range, announced.unwrap_or(self.body.len()));
        }
        self
    }

    /// Cuts the body to a range of it. `announced` is the size of the whole body that Content-Range states.
    fn keep_range(&mut self, range: &str, announced: usize) {
        let total = self.body.len();
        let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
            return;
        };
        let (first, end) = match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => (first, last.saturating_add(1).min(total)),
            (Ok(first), Err(_)) => (first, total),
            (Err(_), Ok(tail)) => (total.saturating_sub(tail), total),
            (Err(_), Err(_)) => return,
        };
        let content_range = if first < end {
            self.status = StatusCode::PARTIAL_CONTENT;
            self.body = self.body.slice(first..end);
            // The false length must be consistent: a Content-Range that contradicts itself would be ignored.
            let end = if end == total { announced } else { end };
            format!("bytes {first}-{}/{announced}", end - 1)
        } else {
            self.status = StatusCode::RANGE_NOT_SATISFIABLE;
            self.body = Bytes::new();
            format!("bytes */{total}")
        };
        self.headers.insert(CONTENT_RANGE, content_range.parse().expect("digits"));
    }

    fn apply_fault(&mut self, fault: &Fault, path: &str, query: &str) {
        match fault {
            Fault::WrongBytes => self.flip_byte(self.body.len() / 2, 1),
            Fault::WrongLastByte => self.flip_byte(self.body.len().saturating_sub(1), 1),
            Fault::WrongFirstByte => self.flip_byte(0, 0xff),
            Fault::WrongPack => {
                // `PACK`, its version and its count are twelve bytes; then comes the first object.
                if let Some(offset) = self.body.windows(4).position(|four| four == b"PACK") {
                    self.flip_byte(offset + 13, 1);
                }
            }
            Fault::Html => {
                *self = Self::new(
                    200,
                    "text/html; charset=utf-8",
                    "<!DOCTYPE html><title>Sign in</title><p>Welcome to the airport.\n",
                );
            }
            Fault::InvalidJson => self.body = "{\"versions\": [{\"version\": \"1.".into(),
            Fault::HugeJson => {
                let mut huge = b"{\"padding\":\"".to_vec();
                huge.resize(64 << 20, b'a');
                huge.extend_from_slice(b"\",\"true\":");
                huge.extend_from_slice(&self.body);
                huge.push(b'}');
                self.body = huge.into();
            }
            Fault::DeepJson => self.body = ["[".repeat(100_000), "]".repeat(100_000)].concat().into(),
            Fault::ContentType(value) => {
                self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            }
            Fault::ClockOff(seconds) => {
                let now = std::time::SystemTime::now();
                let offset = Duration::from_secs(seconds.unsigned_abs());
                let wrong_time = if *seconds < 0 { now - offset } else { now + offset };
                let date = httpdate::fmt_http_date(wrong_time).parse().expect("a date");
                self.headers.insert(http::header::DATE, date);
            }
            Fault::HugeHeader => {
                let value = HeaderValue::from_bytes(&vec![b'a'; 1 << 20]);
                self.headers.insert("x-huge", value.expect("a header value"));
            }
            Fault::GzipBomb => self.set_gzip_body(hostile_gzip::bomb()),
            Fault::GzipWithoutEnd | Fault::GzipOfNothing => self.set_gzip_body(hostile_gzip::gzip_header()),
            Fault::Endless => self.body = Bytes::new(),
            Fault::Status(status) => *self = Self::new(*status, "text/plain", "the fake upstream was told to fail\n"),
            Fault::RetryAfter(status, seconds) => {
                *self = Self::new(*status, "text/plain", "come back later\n")
                    .with_header(RETRY_AFTER.as_str(), &seconds.to_string());
            }
            Fault::StatusBody(status, body) => *self = Self::new(*status, "application/json", *body),
            Fault::Redirect(status) if !query.contains("hop=1") => {
                let separator = if query.is_empty() { "" } else { "&" };
                *self = Self::redirect(*status, &format!("{path}?{query}{separator}hop=1"));
            }
            Fault::RedirectLoop(status) => *self = Self::redirect(*status, path),
            Fault::RedirectTo(status, location) => *self = Self::redirect(*status, location),
            // `registry` and `documents` apply the faults of proof sets; `finish` and `send` those of ranges and
            // connections.
            _ => {}
        }
    }

    fn set_gzip_body(&mut self, body: Bytes) {
        self.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        self.body = body;
    }

    fn flip_byte(&mut self, offset: usize, bits: u8) {
        let mut bytes = self.body.to_vec();
        if let Some(byte) = bytes.get_mut(offset) {
            *byte ^= bits;
        }
        self.body = bytes.into();
    }

    /// Waits at gates and delays, then makes the response with the steps that send its body.
    pub(super) async fn send(
        mut self,
        method: &Method,
        active: ActiveFaults,
        progress: AnswerProgress,
        connection: Arc<ConnectionControl>,
    ) -> Response<ReplyBody> {
        let mut ending = None;
        let mut has_length = true;
        let mut drip = None;
        let mut announced = None;
        for fault in &active.matching {
            match fault {
                Fault::NeverAnswers => std::future::pending().await,
                Fault::Late(pause) => tokio::time::sleep(*pause).await,
                Fault::Truncated(offset) => ending = Some((*offset, Step::Close)),
                Fault::Reset(offset) => ending = Some((*offset, Step::Reset)),
                Fault::Stalls(offset) => ending = Some((*offset, Step::Stall)),
                Fault::Announces(bytes) => announced = Some(*bytes),
                Fault::NoLength => has_length = false,
                Fault::NoLengthTruncated(offset) => {
                    has_length = false;
                    ending = Some((*offset, Step::Close));
                }
                Fault::Drips(bytes, pause) => drip = Some((*bytes, *pause)),
                Fault::Endless | Fault::GzipWithoutEnd | Fault::GzipOfNothing => {
                    has_length = false;
                    let block = match fault {
                        Fault::GzipWithoutEnd => hostile_gzip::nonfinal_blocks(),
                        Fault::GzipOfNothing => hostile_gzip::empty_blocks(),
                        _ => Bytes::from_static(&[0; CHUNK_BYTES]),
                    };
                    let pause = Duration::from_millis(u64::from(matches!(fault, Fault::GzipOfNothing)));
                    ending = Some((usize::MAX, Step::Repeat(block, pause)));
                }
                _ => {}
            }
        }
        let mut gates = Vec::new();
        for (point, gate) in active.holds {
            match point {
                HoldPoint::BeforeHeaders => gate.opened().await,
                HoldPoint::AfterBodyBytes(offset) => gates.push((offset, gate)),
            }
        }
        let has_no_body = *method == Method::HEAD || self.status == StatusCode::NOT_MODIFIED;
        if has_length && self.status != StatusCode::NOT_MODIFIED {
            let announced = announced.filter(|_| self.status == StatusCode::OK);
            self.headers.insert(CONTENT_LENGTH, announced.unwrap_or(self.body.len()).into());
        }
        if has_no_body {
            self.body = Bytes::new();
            gates.clear();
            ending = None;
        }
        progress.set_status(self.status);
        let steps = steps(self.body, ending, drip, gates);
        let body = StreamBody::new(futures_util::stream::unfold((steps, progress, connection), next_frame));
        let mut response = Response::new(BodyExt::boxed_unsync(body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// The steps that send a body up to `ending`, in pieces, with a pause after each piece (`drip`), waiting at the gates.
fn steps(
    body: Bytes,
    ending: Option<(usize, Step)>,
    drip: Option<(usize, Duration)>,
    mut gates: Vec<(usize, Gate)>,
) -> VecDeque<Step> {
    let end = ending.as_ref().map_or(body.len(), |(offset, _)| (*offset).min(body.len()));
    let piece_bytes = drip.map_or(CHUNK_BYTES, |(bytes, _)| bytes.max(1));
    gates.sort_by_key(|(offset, _)| *offset);
    let mut gates = gates.into_iter().map(|(offset, gate)| (offset.min(end), gate)).peekable();
    let mut steps = VecDeque::new();
    let mut sent = 0;
    loop {
        while let Some((_, gate)) = gates.next_if(|(offset, _)| *offset <= sent) {
            steps.push_back(Step::Wait(gate));
        }
        if sent == end {
            break;
        }
        let stop = gates.peek().map_or(end, |(offset, _)| *offset).min(sent + piece_bytes);
        steps.push_back(Step::Send(body.slice(sent..stop)));
        if let Some((_, pause)) = drip {
            steps.push_back(Step::Pause(pause));
        }
        sent = stop;
    }
    steps.extend(ending.map(|(_, step)| step));
    steps
}

/// The rest of a body that is being sent.
type BodyState = (VecDeque<Step>, AnswerProgress, Arc<ConnectionControl>);

async fn next_frame((mut steps, progress, connection): BodyState) -> Option<(io::Result<Frame<Bytes>>, BodyState)> {
    loop {
        match steps.pop_front()? {
            Step::Send(bytes) => {
                progress.add_sent_bytes(bytes.len());
                return Some((Ok(Frame::data(bytes)), (steps, progress, connection)));
            }
            Step::Repeat(bytes, pause) => {
                progress.add_sent_bytes(bytes.len());
                steps.push_front(Step::Repeat(bytes.clone(), pause));
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                return Some((Ok(Frame::data(bytes)), (steps, progress, connection)));
            }
            Step::Wait(gate) => gate.opened().await,
            Step::Pause(pause) => tokio::time::sleep(pause).await,
            Step::Stall => std::future::pending().await,
            ending @ (Step::Close | Step::Reset) => {
                // Waits until the earlier bytes are sent: hyper drops its buffer when a body fails.
                connection.flushed().await;
                if matches!(ending, Step::Reset) {
                    connection.reset_on_close();
                }
                let broken = io::Error::other("the fake upstream ends this body early");
                return Some((Err(broken), (steps, progress, connection)));
            }
        }
    }
}
