//! Bodies of the admin listener. Request bodies are bounded. An order comes as JSON or, for curl, as a lock file or a tar
//! of configurations, with its options in the query. Answers are streamed as lines of JSON, changes of a job as
//! server-sent events.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{self, HeaderMap};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use url::form_urlencoded;

use super::super::body::{Body, PipeReceiver, pipe};
use super::super::response;
use super::{Answer, errors, refused};
use crate::address::{Hostname, Platform};
use crate::answer_json;
use crate::jobs::{JobEvent, JobSubscription};
use crate::mirror::Mirror;
use crate::policy::Policy;
use crate::protocol::admin::order::{NamedText, OrderBodyKind, OrderDraft, OrderRequest};
use crate::protocol::admin::policy::policy_of;
use crate::requirements::{self, Files, Order, lock_file};

/// Size limit of the body of a command.
pub(super) const MAX_COMMAND_BYTES: usize = 64 << 10;
/// Size limit of a form: a token, and the addresses that a page shows.
const MAX_FORM_BYTES: usize = 64 << 10;
/// Size limit of a lock file, which can be larger than the body of a command.
pub(super) const MAX_LOCK_FILE_BYTES: usize = lock_file::MAX_LOCK_FILE_BYTES;
/// Size limit of a JSON order: the files that one order may have, with JSON's escapes.
const MAX_ORDER_BYTES: usize = requirements::MAX_BYTES / 2 * 3;
/// Size limit of a tar, which also has headers, and files that no client reads.
const MAX_TAR_BYTES: usize = 2 * requirements::MAX_BYTES;
/// Deadline of the body of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of the body of an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest pause within a body that has no size limit.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for discarding the rest of a request body, so that the client reads the answer.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a JSON body of at most `max_bytes` bytes. The content type must be JSON: a web page can send other types to any
/// address without a CORS preflight.
pub(super) async fn read_json(request: Request<Incoming>, max_bytes: usize) -> Answer<Bytes> {
    if !has_content_type(request.headers(), "application/json") {
        return Err(unsupported("send the body as Content-Type: application/json"));
    }
    read_whole(request, max_bytes, if max_bytes > MAX_COMMAND_BYTES { ORDER_TIMEOUT } else { COMMAND_TIMEOUT }).await
}

/// Reads the fields of a form of the status page.
pub(super) async fn read_form(request: Request<Incoming>) -> Answer<Vec<(String, String)>> {
    if !has_content_type(request.headers(), "application/x-www-form-urlencoded") {
        discard(request);
        return Err(unsupported("send the form as Content-Type: application/x-www-form-urlencoded"));
    }
    let body = read_whole(request, MAX_FORM_BYTES, COMMAND_TIMEOUT).await?;
    Ok(form_urlencoded::parse(&body).into_owned().collect())
}

/// Returns a body of any size for a blocking reader. Refuses other content types than the given one. If the reader
/// stops early, the rest of the body is discarded for a while.
pub(super) async fn stream_body(request: Request<Incoming>, content_type: &str) -> Answer<PipeReceiver> {
    if !has_content_type(request.headers(), content_type) {
        discard(request);
        return Err(unsupported(&format!("send the body as Content-Type: {content_type}")));
    }
    let (sender, receiver) = pipe();
    let mut body = request.into_body();
    tokio::spawn(async move {
        let sent = sender.send_body(&mut body, IDLE_TIMEOUT, "the body", "no bytes of the body came for").await;
        if sent.is_ok() && !body.is_end_stream() {
            discard_frames(body).await;
        }
    });
    Ok(receiver)
}

/// Discards the rest of an answered request for a while: closing a connection while the client still sends can destroy
/// the answer.
pub(super) fn discard(request: Request<Incoming>) {
    let body = request.into_body();
    if !body.is_end_stream() {
        tokio::spawn(discard_frames(body));
    }
}

async fn discard_frames(mut body: Incoming) {
    let remaining = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that sends for longer than the timeout is not reading the answer.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, remaining).await;
}

fn unsupported(reason: &str) -> Box<Response<Body>> {
    errors(StatusCode::UNSUPPORTED_MEDIA_TYPE, vec![reason.to_owned()])
}

async fn read_whole(request: Request<Incoming>, max_bytes: usize, timeout: Duration) -> Answer<Bytes> {
    let refuse = |status, reason| Err(errors(status, vec![reason]));
    match tokio::time::timeout(timeout, Limited::new(request.into_body(), max_bytes).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let reason = format!("the body is larger than {} KiB", max_bytes >> 10);
            refuse(StatusCode::PAYLOAD_TOO_LARGE, reason)
        }
        Ok(Err(error)) => refuse(StatusCode::BAD_REQUEST, format!("the body broke off: {error}")),
        Err(_) => {
            let reason = format!("the body did not come within {} s", timeout.as_secs());
            refuse(StatusCode::REQUEST_TIMEOUT, reason)
        }
    }
}

fn has_content_type(headers: &HeaderMap, expected: &str) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|content_type| content_type.to_str().ok());
    content_type.is_some_and(|content_type| {
        content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(expected)
    })
}

/// Streams each step as one line of JSON.
pub(super) fn lines<T: Serialize + Send + 'static>(steps: Receiver<T>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(steps, |mut steps| async { steps.recv().await.map(|step| (line(&step), steps)) })
}

/// Formats one line of JSON.
pub(super) fn line<T: Serialize>(step: &T) -> io::Result<Bytes> {
    let mut line = answer_json::to_vec(step)?;
    line.push(b'\n');
    Ok(Bytes::from(line))
}

/// Limits the bodies in memory at a time. Further requests wait.
static BODY_PERMITS: Semaphore = Semaphore::const_new(4);
/// Limits parsing to one thread at a time.
static PARSER_PERMITS: Semaphore = Semaphore::const_new(1);

/// Parses the body and the query of a plan or warm-up request. The error lists the problems that
/// leave no readable order.
type OrderParser = fn(&[u8], Option<&str>) -> Result<OrderDraft, Vec<String>>;

/// The forms of an order: content type, size limit and deadline of the body, and its parser. A web page can send
/// `text/plain`, too; the token keeps it out.
const ORDER_FORMS: [(&str, usize, Duration, OrderParser); 3] = [
    ("application/json", MAX_ORDER_BYTES, ORDER_TIMEOUT, parse_json),
    ("text/plain", MAX_LOCK_FILE_BYTES, COMMAND_TIMEOUT, parse_lock_file),
    ("application/x-tar", MAX_TAR_BYTES, ORDER_TIMEOUT, parse_tar),
];

/// A parsed order.
pub(super) struct ReceivedOrder {
    pub(super) order: Order,
    /// Pin the packages that are warmed.
    pub(super) pin: bool,
    /// The policies that a plan tries in place of those of this larder.
    pub(super) trial: Option<Policy>,
    /// For a plan: the platforms that lock files should have, besides the order's.
    pub(super) lock_platforms: Vec<Platform>,
}

/// Reads an order.
///
/// # Errors
/// The error response, with every problem of the order.
pub(super) async fn read_order(
    request: Request<Incoming>,
    mirror: &Mirror,
    default_host: &Hostname,
) -> Answer<ReceivedOrder> {
    let query = request.uri().query().map(str::to_owned);
    // The semaphores are never closed.
    let memory_permit = BODY_PERMITS.acquire().await;
    let form = ORDER_FORMS.into_iter().find(|(content_type, ..)| has_content_type(request.headers(), content_type));
    let (_, max_bytes, timeout, parse) = form.ok_or_else(|| {
        unsupported(
            "send an order as Content-Type: application/json, a .terraform.lock.hcl as text/plain, or a tar of configurations as application/x-tar",
        )
    })?;
    let body = read_whole(request, max_bytes, timeout).await?;
    let parser_permit = PARSER_PERMITS.acquire().await;
    let host = default_host.clone();
    let parsing = mirror.runtime.spawn_blocking(move || {
        // The permits are released when the parsing ends, even if the client has disconnected.
        let _permits = (memory_permit, parser_permit);
        let OrderDraft { options, mut problems } = parse(&body, query.as_deref())?;
        let trial = options.policy.as_deref().map(policy_of).transpose();
        match (options.order(&host), trial, options.lock_platforms()) {
            (Ok(order), Ok(trial), Ok(lock_platforms)) if problems.is_empty() => {
                Ok(ReceivedOrder { order, pin: options.pin, trial, lock_platforms })
            }
            (order, trial, platforms) => {
                problems.extend(order.err().into_iter().chain(trial.err()).chain(platforms.err()).flatten());
                Err(problems)
            }
        }
    });
    let parsed = parsing.await.unwrap_or_else(|_| Err(vec!["parsing the order ended unexpectedly".to_owned()]));
    parsed.map_err(refused)
}

fn parse_json(body: &[u8], query: Option<&str>) -> Result<OrderDraft, Vec<String>> {
    if query.is_some() {
        return Err(vec!["an order in JSON takes no query: put the options into the body".to_owned()]);
    }
    let options = OrderRequest::read(body).map_err(|reason| vec![reason])?;
    Ok(OrderDraft { options, problems: Vec::new() })
}

fn parse_lock_file(body: &[u8], query: Option<&str>) -> Result<OrderDraft, Vec<String>> {
    let text = std::str::from_utf8(body)
        .map_err(|_| vec!["the body is not UTF-8 text, so it is not a lock file".to_owned()])?;
    let mut order = OrderDraft::read(query, OrderBodyKind::LockFile);
    order.options.lock_files = vec![NamedText { name: ".terraform.lock.hcl".to_owned(), text: text.to_owned() }];
    Ok(order)
}

fn parse_tar(body: &[u8], query: Option<&str>) -> Result<OrderDraft, Vec<String>> {
    let files = Files::from_users_tar(body).map_err(|error| vec![error.to_string()])?;
    if files.is_empty() {
        return Err(vec!["the tar holds no file that a client reads: .tf, .tofu, .tf.json, .tofu.json".to_owned()]);
    }
    let mut order = OrderDraft::read(query, OrderBodyKind::Tar);
    order.options.files = files.into();
    Ok(order)
}

/// Interval of comment lines while nothing changes: a proxy in between would close an idle connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Streams the changes of a job.
pub(super) fn job_events(subscription: JobSubscription, method: &Method) -> Response<Body> {
    // The next changes are collected only after the client has read the previous ones.
    let changes = stream::unfold(subscription, |mut subscription| async move {
        let chunk = next_chunk(subscription.next(), HEARTBEAT).await?;
        Some((chunk, subscription))
    });
    let body = if *method == Method::HEAD { Body::empty() } else { Body::stream(changes, None) };
    response::of_type(body, "text/event-stream")
}

/// Waits for the next changes and formats them; a heartbeat after `max_wait`, `None` at the end.
async fn next_chunk(
    next: impl Future<Output = Option<Vec<JobEvent>>>,
    max_wait: Duration,
) -> Option<io::Result<Bytes>> {
    match tokio::time::timeout(max_wait, next).await {
        Ok(events) => Some(format_events(&events?).map_err(io::Error::from)),
        Err(_) => Some(Ok(Bytes::from_static(b":\n\n"))),
    }
}

fn format_events(events: &[JobEvent]) -> serde_json::Result<Bytes> {
    let mut text = Vec::new();
    for event in events {
        match event {
            JobEvent::Job(job) => write_event(&mut text, "job", job)?,
            JobEvent::Item(item) => write_event(&mut text, "item", item)?,
            JobEvent::End(job) => write_event(&mut text, "end", job)?,
        }
    }
    Ok(text.into())
}

/// Writes one event. Larder's JSON has no line breaks, so the data is one line.
fn write_event(text: &mut Vec<u8>, name: &str, data: &impl Serialize) -> serde_json::Result<()> {
    text.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
    answer_json::to_writer(&mut *text, data)?;
    text.extend_from_slice(b"\n\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PackageRef;
    use crate::jobs::NumberedItem;
    use crate::jobs::job_report::{ItemState, JobItem};

    #[tokio::test]
    async fn a_heartbeat_line_is_sent_in_silence() {
        let never = std::future::pending();
        let chunk = next_chunk(never, Duration::from_millis(1)).await.unwrap().unwrap();
        assert_eq!(chunk, ":\n\n");
    }

    #[test]
    fn line_breaks_in_an_item_do_not_split_its_data_line() {
        let state = ItemState::Failed { error: "it said\nevent: end\r\ndata: {}\u{2028}".to_owned() };
        let item =
            JobItem { package: PackageRef::requested("a"), state, bytes: 0, size_bytes: None, unconfirmed: None };
        let text = format_events(&[JobEvent::Item(NumberedItem { number: 7, item })]).unwrap();
        let text = std::str::from_utf8(&text).unwrap();
        let [name, data, "", ""] = text.split('\n').collect::<Vec<_>>()[..] else { panic!("{text:?}") };
        assert_eq!(name, "event: item");
        assert!(data.starts_with(r#"data: {"number":7,"address":"a","state":"failed""#), "{data}");
        assert!(!data.contains('\r'));
    }
}
