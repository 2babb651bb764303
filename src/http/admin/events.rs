//! Changes of a job as server-sent events (WHATWG HTML 9.2): `job`, then each changed `item`, then `end`.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{Method, Response};
use serde::Serialize;

use super::super::body::Body;
use super::super::response;
use crate::jobs::{JobEvent, JobSubscription};

/// Interval of comment lines while nothing changes: a proxy in between would close an idle connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Streams the changes of a job.
pub(super) fn answer(subscription: JobSubscription, method: &Method) -> Response<Body> {
    let body = if *method == Method::HEAD { Body::empty() } else { Body::stream(event_stream(subscription), None) };
    response::of_type(body, "text/event-stream")
}

/// Streams the changes. Collects the next ones only after the client has read the previous ones.
fn event_stream(subscription: JobSubscription) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(subscription, |mut subscription| async move {
        let chunk = next_chunk(subscription.next(), HEARTBEAT).await?;
        Some((chunk, subscription))
    })
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
    serde_json::to_writer(&mut *text, data)?;
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
