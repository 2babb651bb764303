//! Bodies of the admin listener: bounded request bodies, and answers streamed as lines.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::header::{self, HeaderMap};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use super::super::sync_bridge::{PipeReceiver, pipe};
use crate::requirements::{self, lock_file};

const LARGEST: usize = 64 << 10;
/// A lock file of many providers is larger than any command.
const MAX_LOCK_FILE: usize = lock_file::MAX_LOCK_FILE_BYTES;
/// Limit of a JSON order: the files that one order may have, with JSON's escapes.
const MAX_ORDER: usize = requirements::MAX_BYTES / 2 * 3;
/// Limit of a tar. It also holds headers, and files that no client reads.
const MAX_TAR: usize = 2 * requirements::MAX_BYTES;
const WITHIN: Duration = Duration::from_secs(10);
const ORDER_WITHIN: Duration = Duration::from_secs(60);
/// The longest silence of a body without a size limit.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// Time for discarding the rest of a request body, so that its sender reads the answer.
const DISCARD_FOR: Duration = Duration::from_secs(30);

/// A refused body, and the status of the answer.
pub(super) struct BodyRefused {
    pub(super) status: StatusCode,
    pub(super) reason: String,
}

/// Reads a JSON body. Its content type must be JSON: other types may come from a web page, which can send them to any
/// address without a CORS preflight.
pub(super) async fn json_of(request: Request<Incoming>) -> Result<Bytes, BodyRefused> {
    large_json_of(request, LARGEST).await
}

/// Reads a JSON body of at most `largest` bytes.
pub(super) async fn large_json_of(request: Request<Incoming>, largest: usize) -> Result<Bytes, BodyRefused> {
    if !has_content_type(request.headers(), "application/json") {
        return Err(unsupported("send the body as Content-Type: application/json"));
    }
    read_whole(request, largest, if largest > LARGEST { ORDER_WITHIN } else { WITHIN }).await
}

/// The body of a plan or warm-up request.
pub(super) enum OrderBody {
    /// A complete order.
    Json(Bytes),
    /// A lock file.
    LockFile(Bytes),
    /// Configurations.
    Tar(Bytes),
}

/// Reads the body of a plan or warm-up request. A web page can send `text/plain`, too; the token keeps it out.
pub(super) async fn order_of(request: Request<Incoming>) -> Result<OrderBody, BodyRefused> {
    if has_content_type(request.headers(), "application/json") {
        return read_whole(request, MAX_ORDER, ORDER_WITHIN).await.map(OrderBody::Json);
    }
    if has_content_type(request.headers(), "text/plain") {
        return read_whole(request, MAX_LOCK_FILE, WITHIN).await.map(OrderBody::LockFile);
    }
    if has_content_type(request.headers(), "application/x-tar") {
        return read_whole(request, MAX_TAR, ORDER_WITHIN).await.map(OrderBody::Tar);
    }
    Err(unsupported(
        "send an order as Content-Type: application/json, a .terraform.lock.hcl as text/plain, or a tar of configurations as application/x-tar",
    ))
}

/// Returns a body of any size and the given type, for a blocking reader. If the reader stops early, the rest is
/// discarded for a while.
pub(super) fn reader_of(request: Request<Incoming>, kind: &str) -> Result<PipeReceiver, BodyRefused> {
    if !has_content_type(request.headers(), kind) {
        discard(request);
        return Err(unsupported(&format!("send the body as Content-Type: {kind}")));
    }
    let (entry, exit) = pipe();
    let mut body = request.into_body();
    tokio::spawn(async move {
        loop {
            match tokio::time::timeout(SILENT_FOR, body.frame()).await {
                Ok(None) => return entry.end().await,
                Ok(Some(Ok(frame))) => {
                    if !entry.put(frame.into_data().unwrap_or_default()).await {
                        break;
                    }
                }
                Ok(Some(Err(e))) => return entry.broken(io::Error::other(format!("the body broke off: {e}"))).await,
                Err(_) => {
                    let reason = format!("nothing came of the body for {} s", SILENT_FOR.as_secs());
                    return entry.broken(io::Error::new(io::ErrorKind::TimedOut, reason)).await;
                }
            }
        }
        discard_rest(body).await;
    });
    Ok(exit)
}

/// Discards the rest of an answered request for a while: closing a connection while the client still sends can destroy
/// the answer.
pub(super) fn discard(request: Request<Incoming>) {
    let body = request.into_body();
    if !body.is_end_stream() {
        tokio::spawn(discard_rest(body));
    }
}

async fn discard_rest(mut body: Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that still sends after that is not reading the answer.
    let _ = tokio::time::timeout(DISCARD_FOR, rest).await;
}

fn unsupported(reason: &str) -> BodyRefused {
    BodyRefused { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, reason: reason.to_owned() }
}

async fn read_whole(request: Request<Incoming>, largest: usize, within: Duration) -> Result<Bytes, BodyRefused> {
    let not_taken = |status, reason: &str| BodyRefused { status, reason: reason.to_owned() };
    match tokio::time::timeout(within, Limited::new(request.into_body(), largest).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let reason = format!("the body is larger than {} KiB", largest >> 10);
            Err(not_taken(StatusCode::PAYLOAD_TOO_LARGE, &reason))
        }
        Ok(Err(error)) => Err(not_taken(StatusCode::BAD_REQUEST, &format!("the body broke off: {error}"))),
        Err(_) => {
            let reason = format!("the body did not come within {} s", within.as_secs());
            Err(not_taken(StatusCode::REQUEST_TIMEOUT, &reason))
        }
    }
}

fn has_content_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted))
}

/// Streams each step as one line of JSON.
pub(super) fn lines<T: Serialize + Send + 'static>(steps: Receiver<T>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let steps = stream::unfold(steps, |mut steps| async { steps.recv().await.map(|step| (step, steps)) });
    steps.map(|step| line(&step))
}

/// Formats one line of JSON.
pub(super) fn line<T: Serialize>(step: &T) -> io::Result<Bytes> {
    let mut line = serde_json::to_vec(step)?;
    line.push(b'\n');
    Ok(Bytes::from(line))
}
