//! The bodies of the admin listener: what is told to it, within bounds, and what it tells step by step.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::header::{self, HeaderMap};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use crate::closure::lock_file;

const LARGEST: usize = 64 << 10;
/// A lock file of many providers is larger than any command.
const LARGEST_LOCK_FILE: usize = lock_file::LARGEST;
const WITHIN: Duration = Duration::from_secs(10);

/// A body that is not taken, and with which status.
pub(super) struct NotTaken {
    pub(super) status: StatusCode,
    pub(super) why: String,
}

/// Reads a JSON body. Only one that says it is JSON: a page in a browser can send any other to any address, without
/// asking first.
pub(super) async fn json_of(request: Request<Incoming>) -> Result<Bytes, NotTaken> {
    if !says(request.headers(), "application/json") {
        return Err(unsupported("send the body as Content-Type: application/json"));
    }
    whole(request, LARGEST).await
}

/// What is to be warmed.
pub(super) enum ToWarm {
    /// Addresses.
    Json(Bytes),
    /// A lock file.
    LockFile(Bytes),
}

/// Reads what is to be warmed. A page can send a text, too: the token is what keeps it out.
pub(super) async fn to_warm_of(request: Request<Incoming>) -> Result<ToWarm, NotTaken> {
    if says(request.headers(), "application/json") {
        return whole(request, LARGEST).await.map(ToWarm::Json);
    }
    if says(request.headers(), "text/plain") {
        return whole(request, LARGEST_LOCK_FILE).await.map(ToWarm::LockFile);
    }
    Err(unsupported("send addresses as Content-Type: application/json, or a .terraform.lock.hcl as text/plain"))
}

fn unsupported(why: &str) -> NotTaken {
    NotTaken { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, why: why.to_owned() }
}

async fn whole(request: Request<Incoming>, largest: usize) -> Result<Bytes, NotTaken> {
    let not_taken = |status, why: &str| NotTaken { status, why: why.to_owned() };
    match tokio::time::timeout(WITHIN, Limited::new(request.into_body(), largest).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let why = format!("the body is larger than {} KiB", largest >> 10);
            Err(not_taken(StatusCode::PAYLOAD_TOO_LARGE, &why))
        }
        Ok(Err(error)) => Err(not_taken(StatusCode::BAD_REQUEST, &format!("the body broke off: {error}"))),
        Err(_) => Err(not_taken(StatusCode::REQUEST_TIMEOUT, "the body did not come within 10 s")),
    }
}

fn says(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted))
}

/// One line of JSON for each step, as it comes.
pub(super) fn lines<T: Serialize + Send + 'static>(steps: Receiver<T>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let steps = stream::unfold(steps, |mut steps| async { steps.recv().await.map(|step| (step, steps)) });
    steps.map(|step| {
        let mut line = serde_json::to_vec(&step)?;
        line.push(b'\n');
        Ok(Bytes::from(line))
    })
}
