//! The event stream of a job: first the whole job, then each changed item, then the end. Readers never delay the job.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::http::{client, send};
use crate::support::larder::Larder;
use crate::support::upstream::{FakeUpstream, Provider, Target};
use crate::support::warm_fixture::WarmFixture;
use crate::support::{TEST_TIMEOUT, eventually};

/// Half the size of each archive.
const HALF_BYTES: usize = 1_500_000;

/// The event stream of a job.
struct JobEventStream {
    response: Response,
    buffer: String,
}

impl JobEventStream {
    async fn open(larder: &Larder, path: &str) -> Self {
        let response = client().get(format!("{}{path}/events", larder.admin())).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, buffer: String::new() }
    }

    /// The name and the data of the next event; `None` once the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, remaining)) = self.buffer.split_once("\n\n") {
                let (event, remaining) = (event.to_owned(), remaining.to_owned());
                self.buffer = remaining;
                let Some((name, data)) = event.split_once('\n') else { continue };
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                return Some((name.strip_prefix("event: ").unwrap().to_owned(), data));
            }
            let piece = timeout(TEST_TIMEOUT, self.response.chunk()).await.expect("an event in time").unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
}

async fn upstream_of(names: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    names.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(2 * HALF_BYTES)));
    upstream
}

fn job_request(names: &[&str]) -> Value {
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    json!({ "what": addresses, "platforms": ["linux_amd64"] })
}

#[tokio::test]
async fn job_events_are_the_whole_job_then_changed_items_then_the_end() {
    let upstream = upstream_of(&["one", "two", "three"]).await;
    let gate = upstream.hold_after(Target::Archive.with_path_part("-two_"), HALF_BYTES);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_job(&job_request(&["one", "two", "three", "never"])).await;
    let mut events = JobEventStream::open(&larder, &path).await;
    let (name, mut job) = events.next().await.unwrap();
    let id = path.rsplit('/').next().unwrap();
    assert_eq!((name.as_str(), &job["id"], job["items"].as_array().unwrap().len()), ("job", &json!(id), 4));
    let mut is_half_reported = false;
    let end = loop {
        let (name, data) = events.next().await.expect("an event before the end");
        match name.as_str() {
            "item" => {
                is_half_reported |= data["number"] == 1 && data["state"] == "fetching" && data["bytes"] == HALF_BYTES;
                let mut item = data.clone();
                let number = item.as_object_mut().unwrap().remove("number").unwrap().as_u64().unwrap() as usize;
                job["items"][number] = item;
            }
            "job" => job = data,
            "end" => break data,
            other => panic!("{other}: {data}"),
        }
        if is_half_reported {
            gate.open();
        }
    };
    assert!(is_half_reported, "no event reported the progress of the archive");
    assert_eq!(events.next().await, None, "an event follows the end");
    let final_report = fixture.get(&path).await.expect(200).json();
    assert_eq!(job["items"], final_report["items"], "the events do not add up to the final report");
    assert_eq!(
        (&end["state"], &end["ended"], &end["items"]["fetched"]),
        (&json!("failed"), &final_report["ended"], &json!(3))
    );

    // A finished job sends everything at once; HEAD gets the headers only.
    let mut events_afterwards = JobEventStream::open(&larder, &path).await;
    assert_eq!(events_afterwards.next().await.unwrap(), ("job".to_owned(), final_report));
    assert_eq!(events_afterwards.next().await.unwrap(), ("end".to_owned(), end));
    assert_eq!(events_afterwards.next().await, None);
    let head = send(client().head(format!("{}{path}/events", larder.admin()))).await.unwrap().expect(200);
    assert_eq!((head.header("content-type"), head.body.len()), ("text/event-stream", 0));
}

/// Promise 11: the events that one reader has not read are bounded by the size of the job, however long it runs.
#[tokio::test]
async fn a_client_that_does_not_read_job_events_delays_neither_the_job_nor_other_clients() {
    let upstream = upstream_of(&["one", "two"]).await;
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_job(&job_request(&["one", "two"])).await;
    let unread_stream = JobEventStream::open(&larder, &path).await;
    let mut followers = Vec::new();
    for _ in 0..20 {
        followers.push(JobEventStream::open(&larder, &path).await);
    }
    gate.open();
    assert_eq!(fixture.finished_job(&path).await.state, "done");
    for mut follower in followers {
        let mut items = BTreeMap::new();
        let end = loop {
            match follower.next().await.expect("an event before the end") {
                (name, data) if name == "item" => drop(items.insert(data["number"].as_u64(), data)),
                (name, data) if name == "end" => break data,
                _ => {}
            }
        };
        assert_eq!(end["items"]["fetched"], 2);
        assert!(items.values().all(|item| item["state"] == "fetched"), "{items:?}");
    }
    drop(unread_stream);
}

#[tokio::test]
async fn a_cancelled_job_reports_its_end_and_a_stopping_larder_ends_event_streams_at_once() {
    let upstream = upstream_of(&["one", "two"]).await;
    let _gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let larder = Larder::mirroring(&upstream).drain(Duration::from_secs(3600)).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_job(&job_request(&["one"])).await;
    let mut events = JobEventStream::open(&larder, &path).await;
    upstream.wait_for(Target::Archive, 1).await;
    fixture.send("DELETE", &path, "application/json", "").await.expect(200);
    let end = loop {
        match events.next().await.expect("an event before the end") {
            (name, data) if name == "end" => break data,
            _ => {}
        }
    };
    assert_eq!((&end["state"], &end["items"]["cancelled"]), (&json!("cancelled"), &json!(1)));

    let path = fixture.start_job(&job_request(&["two"])).await;
    let mut events = JobEventStream::open(&larder, &path).await;
    assert_eq!(events.next().await.unwrap().0, "job");
    let folder = timeout(TEST_TIMEOUT, larder.stop()).await.expect("an open event stream delays the stop");
    let stream_end = async || events.next().await.is_none().then_some(());
    eventually("the stream ends", stream_end).await;

    // After a restart the job continues and can be followed again.
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let mut events = JobEventStream::open(&larder, &path).await;
    assert_eq!(events.next().await.unwrap().1["state"], "running");
}
