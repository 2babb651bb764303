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

const LARGEST: usize = 64 << 10;
const WITHIN: Duration = Duration::from_secs(10);

/// A body that is not taken, and with which status.
pub(super) struct NotTaken {
    pub(super) status: StatusCode,
    pub(super) why: String,
}

/// Reads a JSON body. Only one that says it is JSON: a page in a browser can send any other to any address, without
/// asking first.
pub(super) async fn json_of(request: Request<Incoming>) -> Result<Bytes, NotTaken> {
    let not_taken = |status, why: &str| NotTaken { status, why: why.to_owned() };
    if !says_json(request.headers()) {
        let why = "send the body as Content-Type: application/json";
        return Err(not_taken(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    match tokio::time::timeout(WITHIN, Limited::new(request.into_body(), LARGEST).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(not_taken(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 64 KiB"))
        }
        Ok(Err(error)) => Err(not_taken(StatusCode::BAD_REQUEST, &format!("the body broke off: {error}"))),
        Err(_) => Err(not_taken(StatusCode::REQUEST_TIMEOUT, "the body did not come within 10 s")),
    }
}

fn says_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json"))
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
