//! Many clients at once share one fetch; none of them can cancel or delay it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{HOST, Larder};
use crate::support::terraform::{Terraform, host_override};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const CLIENTS: usize = 100;
const ARCHIVE_BYTES: usize = 8_000_000;
const HALF_BYTES: usize = 4_000_000;

async fn upstream_and_archive(size: usize) -> (FakeUpstream, Arc<Vec<u8>>) {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(size));
    let bytes = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    (upstream, Arc::new(bytes))
}

/// Reads a body to its end and compares it piece by piece, so that a hundred bodies take no memory.
fn expect_body(mut response: reqwest::Response, expected: &Arc<Vec<u8>>) -> JoinHandle<()> {
    let expected = Arc::clone(expected);
    tokio::spawn(async move {
        assert_eq!(response.status(), 200);
        let mut offset = 0;
        while let Some(piece) = response.chunk().await.unwrap() {
            assert!(expected[offset..].starts_with(&piece), "other bytes at {offset}");
            offset += piece.len();
        }
        assert_eq!(offset, expected.len());
    })
}

/// Sends `number` requests for one path; returns the responses with their bodies unread.
async fn started_responses(larder: &Larder, path: &str, number: usize) -> Vec<reqwest::Response> {
    let (client, url) = (client(), format!("{}{path}", larder.base()));
    let requests = (0..number).map(|_| tokio::spawn(client.get(&url).send()));
    join_all(requests).await.into_iter().map(|response| response.unwrap().unwrap()).collect()
}

async fn simultaneous_responses(larder: &Larder, path: &str) -> Vec<Answer> {
    let (client, url) = (client(), format!("{}{path}", larder.base()));
    let requests = (0..CLIENTS).map(|_| tokio::spawn(send(client.get(&url))));
    join_all(requests).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect()
}

async fn read_at_least(response: &mut reqwest::Response, bytes: usize) {
    let mut read = 0;
    while read < bytes {
        read += response.chunk().await.unwrap().expect("more of the body").len();
    }
}

async fn wait_for_fills(larder: &Larder) {
    until("no download is in progress", async || larder.metric("larder_fills_under_way").await == 0.0).await;
}

/// Promise 4: clients that connect before, during and after a download share it from its first byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_clients_of_a_cold_archive_cause_one_download() {
    let (upstream, bytes) = upstream_and_archive(ARCHIVE_BYTES).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let early = started_responses(&larder, &path, 33).await;
    let mut first = started_responses(&larder, &path, 1).await;
    read_at_least(&mut first[0], HALF_BYTES).await;
    let in_the_middle = started_responses(&larder, &path, 33).await;
    for response in early.iter().chain(&in_the_middle) {
        assert_eq!(response.headers()["content-length"], bytes.len().to_string().as_str());
    }
    let reading: Vec<_> =
        early.into_iter().chain(in_the_middle).map(|response| expect_body(response, &bytes)).collect();
    gate.open();
    let late = started_responses(&larder, &path, 33).await;
    let reading = reading.into_iter().chain(late.into_iter().map(|response| expect_body(response, &bytes)));
    for read in join_all(reading).await {
        read.unwrap();
    }
    assert_eq!(upstream.count_of(Target::Archive), 1);
    assert_eq!(larder.folder.blobs().len(), 1);
}

/// Promise 4: the same holds for small archives and every document, however the requests overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_clients_of_anything_cold_cause_one_request() {
    for _ in 0..5 {
        let (upstream, bytes) = upstream_and_archive(100_000).await;
        let larder = Larder::mirroring(&upstream).start().await;
        let base = format!("/registry/{HOST}/v1/providers/acme/null");
        for answer in simultaneous_responses(&larder, &format!("{base}/versions")).await {
            answer.expect(200);
        }
        for answer in simultaneous_responses(&larder, &format!("{base}/1.2.0/download/linux/amd64")).await {
            answer.expect(200);
        }
        for answer in simultaneous_responses(&larder, &larder.archive_path("null", "1.2.0").await).await {
            assert!(answer.expect(200).body == *bytes);
        }
        let targets = [Target::Discovery, Target::Versions, Target::Document, Target::Sums, Target::Signature];
        assert_eq!(targets.map(|target| upstream.count_of(target)), [1; 5]);
        assert_eq!(upstream.count_of(Target::Archive), 1);
    }
}

/// Promise 4: all clients that wait for a slow response share one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_clients_of_a_slow_or_absent_list_cause_one_request() {
    let (upstream, _) = upstream_and_archive(10).await;
    let larder = Larder::mirroring(&upstream).start().await;
    for (name, status) in [("null", 200), ("absent", 404)] {
        let path = format!("/registry/{HOST}/v1/providers/acme/{name}/versions");
        let gate = upstream.hold_headers(Target::Versions);
        upstream.forget_requests();
        let ((), answers) = tokio::join!(
            async {
                upstream.wait_for(Target::Versions, 1).await;
                gate.open();
            },
            simultaneous_responses(&larder, &path)
        );
        for answer in answers {
            answer.expect(status);
        }
        assert_eq!(upstream.count_of(Target::Versions), 1, "{name}");
    }
}

/// Promise 4: simultaneous requests for a stale document cause one revalidation.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_clients_of_a_stale_list_cause_one_revalidation() {
    let (upstream, _) = upstream_and_archive(10).await;
    let larder = Larder::mirroring(&upstream).start().await;
    for _ in 0..5 {
        larder.document("null", "1.2.0").await.expect(200);
        larder.clock.advance(std::time::Duration::from_secs(24 * 3600));
        upstream.forget_requests();
        for path in ["versions", "1.2.0/download/linux/amd64"] {
            for answer in
                simultaneous_responses(&larder, &format!("/registry/{HOST}/v1/providers/acme/null/{path}")).await
            {
                answer.expect(200);
            }
        }
        let targets = [Target::Discovery, Target::Versions, Target::Document, Target::Sums, Target::Signature];
        assert_eq!(targets.map(|target| upstream.count_of(target)), [1; 5]);
    }
}

/// Promise 4: a client that disconnects cancels nothing, even if it is the only client.
#[tokio::test]
async fn a_client_that_disconnects_cancels_no_download() {
    let (upstream, bytes) = upstream_and_archive(ARCHIVE_BYTES).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let mut only_client = started_responses(&larder, &path, 1).await;
    read_at_least(&mut only_client[0], HALF_BYTES / 2).await;
    drop(only_client);
    gate.open();
    wait_for_fills(&larder).await;
    assert_eq!(larder.folder.blobs().len(), 1, "the download ended with its client");
    upstream.fault(Target::Everything, Fault::Status(500));
    assert!(larder.get(&path).await.expect(200).body == *bytes);
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// Promise 4: the same holds before the first byte has arrived, and for documents.
#[tokio::test]
async fn a_client_that_disconnects_before_the_first_byte_cancels_no_fetch() {
    let (upstream, bytes) = upstream_and_archive(100_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let gate = upstream.hold_headers(Target::Everything);
    let document = format!("/registry/{HOST}/v1/providers/acme/null/1.2.0/download/linux/amd64");
    let pending_request = tokio::spawn(start_request(larder.base(), &document));
    upstream.wait_for(Target::Discovery, 1).await;
    pending_request.abort();
    gate.open();
    upstream.wait_for(Target::Signature, 1).await;
    let path = larder.archive_path("null", "1.2.0").await;
    assert_eq!(upstream.count_of(Target::Document), 1);

    let gate = upstream.hold_headers(Target::Archive);
    let pending_request = tokio::spawn(start_request(larder.base(), &path));
    upstream.wait_for(Target::Archive, 1).await;
    pending_request.abort();
    gate.open();
    wait_for_fills(&larder).await;
    let answer = larder.get(&path).await.expect(200);
    assert_eq!(answer.header("cache-status"), "larder; hit");
    assert!(answer.body == *bytes);
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

fn start_request(base: &str, path: &str) -> impl Future<Output = Result<reqwest::Response, reqwest::Error>> + use<> {
    client().get(format!("{base}{path}")).send()
}

/// Promise 4: a slow client delays no other and receives everything in the end.
#[tokio::test]
async fn a_client_that_reads_nothing_delays_no_other_client() {
    let (upstream, bytes) = upstream_and_archive(16_000_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, bytes.len() / 4);
    let mut slow = TcpStream::connect(larder.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", larder.address());
    slow.write_all(request.as_bytes()).await.unwrap();
    upstream.wait_for(Target::Archive, 1).await;
    let others = started_responses(&larder, &path, 10).await;
    gate.open();
    for read in join_all(others.into_iter().map(|response| expect_body(response, &bytes))).await {
        read.unwrap();
    }
    assert_eq!(larder.folder.blobs().len(), 1);
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).await.unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer[head..] == bytes[..], "the slow client got other bytes");
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// Promise 4: HEAD and GET of an archive that is not stored share one fetch, and HEAD reports the true length, which
/// clients need for a retry.
#[tokio::test]
async fn head_and_get_share_one_fetch() {
    for size in [100_000, ARCHIVE_BYTES] {
        let (upstream, bytes) = upstream_and_archive(size).await;
        let larder = Larder::mirroring(&upstream).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        let gate = upstream.hold_body(Target::Archive);
        let (head, got, ()) = tokio::join!(larder.head(&path), larder.get(&path), async {
            upstream.wait_for(Target::Archive, 1).await;
            gate.open();
        });
        assert!(got.expect(200).body == *bytes);
        assert_eq!(head.expect(200).header("content-length"), bytes.len().to_string());
        assert_eq!(upstream.count_of(Target::Archive), 1, "{size}");
    }
}

/// Promise 4: a HEAD alone fetches, so that the GET after it finds the archive.
#[tokio::test]
async fn a_head_request_fetches_the_archive_for_a_later_get() {
    let (upstream, bytes) = upstream_and_archive(ARCHIVE_BYTES).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let head = larder.head(&path).await.expect(200);
    assert_eq!((head.header("content-length"), head.body.len()), (bytes.len().to_string().as_str(), 0));
    assert!(larder.get(&path).await.expect(200).body == *bytes);
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// Promise 4: a finished fetch is never repeated, also after a restart.
#[tokio::test]
async fn a_finished_fetch_is_never_repeated() {
    let (upstream, bytes) = upstream_and_archive(ARCHIVE_BYTES).await;
    let mut folder = None;
    for _ in 0..3 {
        let mut builder = Larder::mirroring(&upstream);
        if let Some(folder) = &folder {
            builder = builder.store_at(folder);
        }
        let larder = builder.start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        for response in started_responses(&larder, &path, 5).await {
            expect_body(response, &bytes).await.unwrap();
        }
        folder = Some(larder.stop().await);
    }
    let targets = [Target::Discovery, Target::Versions, Target::Document, Target::Archive];
    assert_eq!(targets.map(|target| upstream.count_of(target)), [1; 4]);
}

/// Promise 4: fills that evict each other from a small store still serve their waiting clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fills_that_evict_each_other_serve_everybody() {
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(500_000));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let mut paths = Vec::new();
    for name in &names {
        let bytes = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
        paths.push((larder.archive_path(name, "1.2.0").await, Arc::new(bytes)));
    }
    for _ in 0..5 {
        let client = client();
        let clients = paths.iter().flat_map(|path| std::iter::repeat_n(path, 4)).map(|(path, bytes)| {
            let request = client.get(format!("{}{path}", larder.base()));
            async move { assert!(send(request).await.unwrap().expect(200).body == **bytes, "{path}") }
        });
        join_all(clients).await;
    }
    wait_for_fills(&larder).await;
    let stored = || larder.folder.blobs().len() as u64;
    until("a store of 1 MiB has at most two archives of 500 kB", async || stored() <= 2).await;
    assert!(stored() >= 1);
    until("the index counts the archives that are stored", async || {
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        status["archives"] == stored()
    })
    .await;
}

/// Promise 4: a dozen real clients on a cold store fetch every file once, and write the same lock file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dozen_inits_at_once_fetch_every_file_once() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    for name in ["null", "random"] {
        upstream.publish(Provider::new("acme", name).platform("linux_amd64").platform("darwin_arm64").size(3_000_000));
    }
    let larder = Larder::mirroring(&upstream).start().await;
    let workspaces = (0..12).map(|_| {
        let mut workspace = client.workspace();
        workspace.require("acme/null", "~> 1.0").require("acme/random", "1.2.0");
        let modules = "http://127.0.0.1:9/v1/modules/";
        workspace.cli_config(&host_override(HOST, &larder.providers_url(HOST), modules));
        workspace
    });
    let workspaces: Vec<_> = workspaces.collect();
    for output in join_all(workspaces.iter().map(|workspace| workspace.init())).await {
        output.expect_success();
    }
    for workspace in &workspaces {
        assert_eq!(workspace.lock_file(), workspaces[0].lock_file());
    }
    let mut requests = BTreeMap::new();
    for request in upstream.requests() {
        *requests.entry(request.path).or_insert(0) += 1;
    }
    // Discovery, and for each of the two providers the version list, document, SHA256SUMS, signature and archive.
    assert_eq!(requests.len(), 1 + 2 * 5, "{requests:?}");
    assert!(requests.values().all(|times| *times == 1), "{requests:?}");
}

/// Promise 4: `VERSION.json` names the archive of another platform by convention, from the SHA256SUMS that is already
/// there. The proof set of that platform is fetched once for all clients.
#[tokio::test]
async fn a_hundred_clients_of_a_mirror_archive_cause_one_proof_set_fetch() {
    let upstream = FakeUpstream::start().await;
    let provider = Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64");
    upstream.publish(provider);
    let larder = Larder::mirroring(&upstream).start().await;
    let version = larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200).json();
    let path = version["archives"]["darwin_arm64"]["url"].as_str().unwrap();
    upstream.forget_requests();
    let bytes = upstream.archive_bytes("acme", "null", "1.2.0", "darwin_arm64");
    assert!(simultaneous_responses(&larder, path).await.into_iter().all(|answer| answer.expect(200).body == bytes));
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 1));
}

/// Promise 1: two packages may have the same archive; wrong bytes sent for one never become the bytes of the other.
#[tokio::test]
async fn two_packages_with_the_same_archive_are_fetched_separately() {
    let upstream = FakeUpstream::start().await;
    for namespace in ["acme", "evil"] {
        upstream.publish(Provider::new(namespace, "null").size(ARCHIVE_BYTES));
    }
    let bytes = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    assert!(upstream.archive_bytes("evil", "null", "1.2.0", "linux_amd64") == bytes, "the archives are not the same");
    let larder = Larder::mirroring(&upstream).start().await;
    let path = async |namespace: &str| {
        let document = format!("/registry/{HOST}/v1/providers/{namespace}/null/1.2.0/download/linux/amd64");
        larder.get(&document).await.expect(200).json()["download_url"].as_str().unwrap().to_owned()
    };
    let (acme, evil) = (path("acme").await, path("evil").await);
    upstream.fault(Target::Path("evil".into()), Fault::WrongBytes);
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let client = client();
    let (acme_request, other_request) =
        (client.get(format!("{}{acme}", larder.base())), client.get(format!("{}{evil}", larder.base())));
    let (acme_request, other_request) = (tokio::spawn(send(acme_request)), tokio::spawn(send(other_request)));
    upstream.wait_for(Target::Archive, 2).await;
    gate.open();
    assert!(acme_request.await.unwrap().unwrap().expect(200).body == bytes);
    if let Ok(answer) = other_request.await.unwrap() {
        // The request may have come late enough to find the other package's verified archive.
        assert!(answer.status != 200 || answer.body == bytes);
    }
    assert!(get(&format!("{}{acme}", larder.base())).await.expect(200).body == bytes);
}
