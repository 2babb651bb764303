//! Following a job's events: first the whole job, then each changed item, then the end. Readers never delay the job.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::http::{client, send};
use crate::support::larder::Larder;
use crate::support::upstream::{FakeUpstream, Provider, Target};
use crate::support::warm_fixture::WarmFixture;
use crate::support::{HANGS_AFTER, eventually};

const HALF: usize = 1_500_000;

/// The event stream of a job.
struct JobEventStream {
    response: Response,
    text: String,
}

impl JobEventStream {
    async fn of(larder: &Larder, path: &str) -> Self {
        let response = client().get(format!("{}{path}/events", larder.admin())).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The next event and its data; none once the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let Some((name, data)) = event.split_once('\n') else { continue };
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                return Some((name.strip_prefix("event: ").unwrap().to_owned(), data));
            }
            let piece = timeout(HANGS_AFTER, self.response.chunk()).await.expect("an event").unwrap()?;
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
}

async fn upstream_of(names: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    names.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(2 * HALF)));
    upstream
}

fn job_request(names: &[&str]) -> Value {
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    json!({ "what": addresses, "platforms": ["linux_amd64"] })
}

#[tokio::test]
async fn job_events_are_the_whole_job_then_changes_then_the_end() {
    let upstream = upstream_of(&["one", "two", "three"]).await;
    let gate = upstream.hold_after(Target::Archive.of("-two_"), HALF);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::of(&larder);
    let path = fixture.begin(&job_request(&["one", "two", "three", "never"])).await;
    let mut following = JobEventStream::of(&larder, &path).await;
    let (name, mut job) = following.next().await.unwrap();
    let id = path.rsplit('/').next().unwrap();
    assert_eq!((name.as_str(), &job["id"], job["items"].as_array().unwrap().len()), ("job", &json!(id), 4));
    let mut seen_half = false;
    let end = loop {
        let (name, data) = following.next().await.expect("an end");
        match name.as_str() {
            "item" => {
                seen_half |= data["number"] == 1 && data["state"] == "fetching" && data["bytes"] == HALF;
                let mut item = data.clone();
                let number = item.as_object_mut().unwrap().remove("number").unwrap().as_u64().unwrap() as usize;
                job["items"][number] = item;
            }
            "job" => job = data,
            "end" => break data,
            other => panic!("{other}: {data}"),
        }
        if seen_half {
            gate.open();
        }
    };
    assert!(seen_half, "the progress of an archive was not told");
    assert_eq!(following.next().await, None, "something follows the end");
    let last = fixture.get(&path).await.expect(200).json();
    assert_eq!(job["items"], last["items"], "what was told does not come to what is");
    assert_eq!((&end["state"], &end["ended"], &end["items"]["fetched"]), (&json!("failed"), &last["ended"], &json!(3)));

    // A finished job sends everything at once; HEAD gets the headers only.
    let mut later = JobEventStream::of(&larder, &path).await;
    assert_eq!(later.next().await.unwrap(), ("job".to_owned(), last));
    assert_eq!(later.next().await.unwrap(), ("end".to_owned(), end));
    assert_eq!(later.next().await, None);
    let head = send(client().head(format!("{}{path}/events", larder.admin()))).await.unwrap().expect(200);
    assert_eq!((head.header("content-type"), head.body.len()), ("text/event-stream", 0));
}

/// DESIGN, promise 11: the events that one reader has not read are bounded by the size of the job, however long it
/// runs.
#[tokio::test]
async fn many_clients_may_follow_a_job_and_one_that_reads_nothing_delays_no_other() {
    let upstream = upstream_of(&["one", "two"]).await;
    let gate = upstream.hold_after(Target::Archive, HALF);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::of(&larder);
    let path = fixture.begin(&job_request(&["one", "two"])).await;
    let idle = JobEventStream::of(&larder, &path).await;
    let mut followers = Vec::new();
    for _ in 0..20 {
        followers.push(JobEventStream::of(&larder, &path).await);
    }
    gate.open();
    assert_eq!(fixture.ended(&path).await.state, "done");
    for mut follower in followers {
        let mut items = BTreeMap::new();
        let end = loop {
            match follower.next().await.expect("an end") {
                (name, data) if name == "item" => drop(items.insert(data["number"].as_u64(), data)),
                (name, data) if name == "end" => break data,
                _ => {}
            }
        };
        assert_eq!(end["items"]["fetched"], 2);
        assert!(items.values().all(|item| item["state"] == "fetched"), "{items:?}");
    }
    drop(idle);
}

#[tokio::test]
async fn a_job_that_is_cancelled_reports_its_end_and_a_larder_that_stops_ends_the_stream_at_once() {
    let upstream = upstream_of(&["one", "two"]).await;
    let _gate = upstream.hold_after(Target::Archive, HALF);
    let larder = Larder::mirroring(&upstream).drain(Duration::from_secs(3600)).start().await;
    let fixture = WarmFixture::of(&larder);
    let path = fixture.begin(&job_request(&["one"])).await;
    let mut following = JobEventStream::of(&larder, &path).await;
    upstream.wait_for(Target::Archive, 1).await;
    fixture.send("DELETE", &path, "application/json", "").await.expect(200);
    let end = loop {
        match following.next().await.expect("an end") {
            (name, data) if name == "end" => break data,
            _ => {}
        }
    };
    assert_eq!((&end["state"], &end["items"]["cancelled"]), (&json!("cancelled"), &json!(1)));

    let path = fixture.begin(&job_request(&["two"])).await;
    let mut following = JobEventStream::of(&larder, &path).await;
    assert_eq!(following.next().await.unwrap().0, "job");
    let folder = timeout(HANGS_AFTER, larder.stop()).await.expect("a reader holds up the stop");
    let rest = async || following.next().await.is_none().then_some(());
    eventually("the stream ends", rest).await;

    // After a restart the job continues and can be followed again.
    let larder = Larder::mirroring(&upstream).on(&folder).start().await;
    let mut following = JobEventStream::of(&larder, &path).await;
    assert_eq!(following.next().await.unwrap().1["state"], "running");
}
