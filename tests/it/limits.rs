//! Promise 11: concurrent work has limits, each with a clear error, and no kind of work starves another.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::http::{Answer, client, client_trusting, get, receive, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::tls::TestCa;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(60);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_millis(50);

async fn upstream_with_providers(names: &[&str], size: usize) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in names {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    upstream
}

fn assert_busy(answer: Answer, reason: &str) {
    let answer = answer.expect(503);
    assert!(answer.text().contains(reason), "{}", answer.text());
    assert!(answer.text().contains("ask again in a moment"), "{}", answer.text());
    assert!(answer.headers.get("retry-after").is_none());
}

fn version_list_target(name: &str) -> Target {
    Target::Path(format!("acme/{name}/versions"))
}

/// Archives in flight do not delay version lists; archives beyond the concurrency limit queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_downloads_do_not_delay_version_lists() {
    let names: Vec<String> = (0..100).map(|number| format!("p{number}")).collect();
    let upstream = upstream_with_providers(&names.iter().map(String::as_str).collect::<Vec<_>>(), 20_000).await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).upstream_limits(|limits| limits.archives.wait = LONG).start().await;
    let mut urls = Vec::new();
    for name in &names {
        urls.push(format!("{}{}", larder.base(), larder.archive_path(name, "1.2.0").await));
    }
    let gate = upstream.hold_body(Target::Archive);
    let client = client();
    let downloads: Vec<_> = urls.iter().map(|url| tokio::spawn(send(client.get(url)))).collect();
    upstream.wait_for(Target::Archive, 64).await;
    until("all downloads are in progress", async || larder.metric("larder_fills_under_way").await == 100.0).await;
    larder.versions("null").await.expect(200);
    larder.document("null", "1.2.0").await.expect(200);
    assert_eq!(upstream.count_of(Target::Archive), 64);
    gate.open();
    for (name, download) in names.iter().zip(join_all(downloads).await) {
        let bytes = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
        assert!(download.unwrap().unwrap().expect(200).body == bytes, "{name}");
    }
    assert_eq!(upstream.count_of(Target::Archive), 100);
}

#[tokio::test]
async fn an_archive_that_finds_no_permit_in_time_is_a_503() {
    let upstream = upstream_with_providers(&["null", "random"], 20_000).await;
    let limits = |limits: &mut larder::upstream::limits::UpstreamLimits| {
        (limits.archives.per_upstream, limits.archives.wait) = (1, SHORT);
    };
    let larder = Larder::mirroring(&upstream).upstream_limits(limits).start().await;
    let (first, second) = (larder.archive_path("null", "1.2.0").await, larder.archive_path("random", "1.2.0").await);
    let gate = upstream.hold_body(Target::Archive);
    let (got, ()) = tokio::join!(larder.get(&first), async {
        upstream.wait_for(Target::Archive, 1).await;
        assert_busy(larder.get(&second).await, "the limit of simultaneous archive fetches is reached");
        assert_eq!(upstream.count_of(Target::Archive), 1);
        gate.open();
    });
    got.expect(200);
    larder.get(&second).await.expect(200);
}

/// Stored documents are served without a permit. One permit is enough for every kind of fetch, because nothing waits
/// for a permit while it owns one.
#[tokio::test]
async fn a_document_that_finds_no_permit_in_time_is_a_503_unless_it_is_stored() {
    let upstream = FakeUpstream::builder().redirected_urls(302).start().await;
    for name in ["null", "random", "tls"] {
        upstream.publish(Provider::new("acme", name).size(20_000));
    }
    let limits = |limits: &mut larder::upstream::limits::UpstreamLimits| {
        (limits.documents.per_upstream, limits.documents.wait) = (1, Duration::from_secs(1));
        limits.archives.per_upstream = 1;
    };
    let larder = Larder::mirroring(&upstream)
        .upstream_lines("fresh = { versions = \"0s\" }")
        .upstream_limits(limits)
        .start()
        .await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.expire_urls();
    larder.get(&path).await.expect(200);
    let gate = upstream.hold_headers(version_list_target("random"));
    let (got, ()) = tokio::join!(larder.versions("random"), async {
        upstream.wait_for(version_list_target("random"), 1).await;
        assert_busy(larder.versions("tls").await, "the limit of simultaneous document fetches is reached");
        assert!(larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
        assert_eq!(upstream.count_of(version_list_target("tls")), 0);
        gate.open();
    });
    got.expect(200);
    larder.versions("tls").await.expect(200);
    assert!(larder.versions("null").await.expect(200).has_cache_status("fwd=stale; stored"));
}

/// Document bodies share one memory budget, with and without a Content-Length.
#[tokio::test]
async fn documents_that_do_not_fit_in_memory_together_are_a_503() {
    let upstream = upstream_with_providers(&[], 0).await;
    let list = format!("{{\"versions\":[],\"padding\":\"{}\"}}", "x".repeat(60_000));
    for name in ["null", "random"] {
        upstream.serve_json(&format!("/v1/providers/acme/{name}/versions"), &list);
    }
    for has_length in [true, false] {
        let larder = Larder::mirroring(&upstream).upstream_lines("fresh = { versions = \"0s\" }");
        let larder = larder.upstream_limits(|limits| limits.document_memory.all_kib = 100).start().await;
        if !has_length {
            upstream.fault(Target::Versions, Fault::NoLength);
        }
        let gate = upstream.hold_after(version_list_target("null"), 50_000);
        let (got, ()) = tokio::join!(larder.versions("null"), async {
            upstream.wait_for(version_list_target("null"), 1).await;
            until("most of the document arrived", async || {
                larder.metric("larder_upstream_bytes_total").await > 50_000.0
            })
            .await;
            assert_busy(larder.versions("random").await, "the documents that are in memory have reached their limit");
            gate.open();
        });
        got.expect(200);
        for name in ["random", "null", "random", "null"] {
            larder.versions(name).await.expect(200);
        }
        upstream.forget_requests();
    }
}

/// Promise 11: large and slow documents of one upstream leave memory budget for other upstreams.
#[tokio::test]
async fn documents_of_one_upstream_leave_memory_budget_for_other_upstreams() {
    const SLOW: [&str; 3] = ["null", "random", "tls"];
    const OTHER: &str = "registry.example";
    let (slow, other) = (upstream_with_providers(&[], 0).await, upstream_with_providers(&["null"], 1000).await);
    let list = format!("{{\"versions\":[],\"padding\":\"{}\"}}", "x".repeat(60_000));
    for name in SLOW {
        slow.serve_json(&format!("/v1/providers/acme/{name}/versions"), &list);
    }
    other.serve_json("/v1/providers/acme/null/versions", &list);
    let larder = Larder::mirroring(&slow).upstream(OTHER, &format!("{}/", other.origin()), "");
    let limits = |limits: &mut larder::upstream::limits::UpstreamLimits| {
        (limits.document_memory.each_kib, limits.document_memory.all_kib) = (100, 200);
    };
    let larder = larder.upstream_limits(limits).start().await;
    let gate = slow.hold_after(Target::Versions, 50_000);
    let url = |name| format!("{}/registry/{HOST}/v1/providers/acme/{name}/versions", larder.base());
    let requests = SLOW.map(|name| tokio::spawn(send(client().get(url(name)))));
    until("each document reserves memory or is refused", async || {
        let unfinished = requests.iter().filter(|answer| !answer.is_finished()).count();
        larder.metric("larder_upstream_bytes_total").await >= 50_000.0 * unfinished as f64
    })
    .await;
    let list_of_other = format!("/registry/{OTHER}/v1/providers/acme/null/versions");
    larder.get(&list_of_other).await.expect(200);
    gate.open();
    let answers = join_all(requests).await.into_iter().map(|answer| answer.unwrap().unwrap());
    let (whole, refused): (Vec<_>, Vec<_>) = answers.partition(|answer| answer.status == 200);
    assert_eq!(whole.len(), 1);
    for answer in refused {
        assert_busy(answer, "the documents of this upstream that are in memory have reached their limit");
    }
    for name in SLOW {
        larder.versions(name).await.expect(200);
    }
}

/// Beyond the limit of waiting requests, stored documents are still served.
#[tokio::test]
async fn the_number_of_requests_that_wait_for_upstreams_is_limited() {
    let upstream = upstream_with_providers(&["held", "null", "random", "tls", "time"], 20_000).await;
    let larder = Larder::mirroring(&upstream).waiting(3).start().await;
    larder.versions("held").await.expect(200);
    let path = larder.archive_path("held", "1.2.0").await;
    let gate = upstream.hold_headers(Target::Versions);
    let client = client();
    let url = |name| format!("{}/registry/{HOST}/v1/providers/acme/{name}/versions", larder.base());
    let waiting = ["null", "tls", "time"].map(|name| tokio::spawn(send(client.get(url(name)))));
    upstream.wait_for(Target::Versions, 1 + waiting.len()).await;
    assert_busy(larder.versions("random").await, "the limit of requests that wait for upstreams is reached");
    assert_busy(larder.get(&path).await, "the limit of requests that wait for upstreams is reached");
    larder.versions("held").await.expect(200);
    // A stale copy is served without revalidation.
    larder.clock.advance(Duration::from_secs(1000));
    assert!(larder.versions("held").await.expect(200).has_cache_status("detail=stale"));
    gate.open();
    for answer in waiting {
        answer.await.unwrap().unwrap().expect(200);
    }
    larder.versions("random").await.expect(200);
    larder.get(&path).await.expect(200);
}

/// A download without a length reserves disk space as it grows, and evicts step by step.
#[tokio::test]
async fn a_download_without_a_length_reserves_disk_space_as_it_grows() {
    let upstream = upstream_with_providers(&["null", "random"], 3_000_000).await;
    let larder = Larder::mirroring(&upstream).store("max_size = \"4MiB\"").start().await;
    larder.get(&larder.archive_path("random", "1.2.0").await).await.expect(200);
    assert_eq!(larder.folder.blobs().len(), 1);
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::NoLength);
    let gate = upstream.hold_after(Target::Archive, 2_500_000);
    let (got, ()) = tokio::join!(larder.get(&path), async {
        until("the other archive is evicted", async || larder.folder.blobs().is_empty()).await;
        gate.open();
    });
    assert!(got.expect(200).body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
}

/// A download that can never fit ends as soon as that is certain, not at the end of the body.
#[tokio::test]
async fn a_download_without_a_length_that_does_not_fit_ends_early() {
    let upstream = upstream_with_providers(&["null"], 3_000_000).await;
    let larder = Larder::mirroring(&upstream).store("max_size = \"2MiB\"").start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::NoLength);
    let _gate = upstream.hold_after(Target::Archive, 2_500_000);
    let received = receive(client().get(format!("{}{path}", larder.base()))).await;
    assert!(!received.is_complete || received.status == 503, "{}", received.status);
    until("the partial download is deleted", async || larder.folder.partial_downloads().is_empty()).await;
    assert!(larder.folder.blobs().is_empty());
}

/// Promise 11: memory does not grow with the number of clients that wait for one large list.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_list_is_fetched_and_rendered_once_for_all_waiting_clients() {
    const CLIENTS: usize = 30;
    let platforms = r#""protocols":["5.0"],"platforms":[{"os":"linux","arch":"amd64"},{"os":"darwin","arch":"arm64"}]"#;
    let padding = "x".repeat(160);
    let entry = |number| format!(r#"{{"version":"1.{number}.0",{platforms},"padding":"{padding}"}}"#);
    let entries: Vec<String> = (0..15_000).map(entry).collect();
    let list = format!(r#"{{"versions":[{}]}}"#, entries.join(","));
    assert!(list.len() > 4 << 20, "{}", list.len());
    let upstream = upstream_with_providers(&["null"], 1000).await;
    upstream.serve_json("/v1/providers/acme/null/versions", &list);
    let folder = tempfile::tempdir().unwrap();
    let larder = Process::start(&Larder::mirroring(&upstream), folder.path());
    let gate = upstream.hold_headers(Target::Versions);
    let url = format!("{}/registry/{HOST}/v1/providers/acme/null/versions", larder.base());
    let waiting: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(send(client().get(&url)))).collect();
    let all = CLIENTS as f64;
    until("all clients wait for the list", async || larder.metric("larder_waiting_requests").await == all).await;
    let memory_before = larder.peak_resident_bytes();
    gate.open();
    for answer in waiting {
        assert!(answer.await.unwrap().unwrap().expect(200).body == list.as_bytes(), "another list");
    }
    let grown = larder.peak_resident_bytes().saturating_sub(memory_before);
    assert!(grown < 128 << 20, "{CLIENTS} clients of a list of {} bytes took {grown} bytes of memory", list.len());
}

/// Promises 4 and 11: clients that read nothing take no memory, delay no other client, and receive everything in the
/// end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_read_nothing_take_no_memory_and_delay_no_other_client() {
    const BYTES: usize = 48_000_000;
    const SLOW: usize = 24;
    let upstream = upstream_with_providers(&["null"], BYTES).await;
    upstream.publish(Provider::new("acme", "random").size(2_000_000));
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    let folder = tempfile::tempdir().unwrap();
    let builder = Larder::mirroring(&upstream);
    let larder = Process::start(&builder, folder.path());
    larder.get(&larder.archive_path("random").await).await.expect(200);
    let path = larder.archive_path("null").await;
    let memory_before = larder.peak_resident_bytes();

    let gate = upstream.hold_after(Target::Archive, BYTES / 2);
    let address = larder.base().strip_prefix("http://").unwrap().to_owned();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        // The response has begun, but the client reads nothing of it.
        stream.readable().await.unwrap();
        slow.push(stream);
    }
    gate.open();
    assert!(larder.get(&path).await.expect(200).body == zip, "held back, or other bytes");
    let grown = larder.peak_resident_bytes().saturating_sub(memory_before);
    assert!(grown < 96 << 20, "{SLOW} clients that read nothing took {grown} bytes of memory");
    for mut stream in slow {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(&zip), "a slow client got other bytes");
    }
    assert_eq!(upstream.count_of(Target::Archive), 2);
    let requests: HashSet<String> = upstream.requests().into_iter().map(|request| request.path).collect();
    // Discovery, and for each of the two providers the version list, document, SHA256SUMS, signature and archive.
    assert_eq!(requests.len(), 1 + 2 * 5);
}

/// Promises 10 and 11: small archives are freed from memory once sent. Unread ones take bounded memory, and a client
/// that reads is served even when that memory is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn small_archives_take_bounded_memory_however_many_are_sent() {
    const BYTES: usize = 1_000_000;
    const COUNT: u32 = 120;
    let names: Vec<String> = (0..COUNT).map(|number| format!("p{number}")).collect();
    let upstream = upstream_with_providers(&names.iter().map(String::as_str).collect::<Vec<_>>(), BYTES).await;
    let folder = tempfile::tempdir().unwrap();
    // The builder owns the store's folder and must outlive the process.
    let builder = Larder::mirroring(&upstream);
    let larder = Process::start(&builder, folder.path());
    let mut paths = Vec::new();
    for name in &names {
        paths.push(larder.archive_path(name).await);
    }
    let memory_before = larder.anonymous_bytes();
    let assert_all_are_served = async || {
        for (name, path) in names.iter().zip(&paths) {
            let zip = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
            assert!(larder.get(path).await.expect(200).body == zip, "{name}");
        }
    };
    assert_all_are_served().await;
    assert_all_are_served().await;
    let grown = larder.anonymous_bytes().saturating_sub(memory_before);
    assert!(grown < 80 << 20, "{COUNT} archives that were sent left {grown} bytes in memory");

    let mut stalled = Vec::new();
    let address: SocketAddr = larder.base().strip_prefix("http://").unwrap().parse().unwrap();
    for path in &paths {
        let socket = TcpSocket::new_v4().unwrap();
        // The kernel would take all of an archive for a client that reads nothing.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    until("all archives are sent", async || {
        let text = get(&format!("{}/metrics", larder.admin())).await.expect(200).text();
        let hits = text.lines().find_map(|line| line.strip_prefix("larder_hit_seconds_count{content=\"archive\"} "));
        hits.map_or(0, |hits| hits.parse().unwrap()) >= 2 * COUNT
    })
    .await;
    assert_all_are_served().await;
    let grown = larder.anonymous_bytes().saturating_sub(memory_before);
    assert!(grown < 120 << 20, "{COUNT} small archives that nobody reads took {grown} bytes of memory");
    drop(stalled);
}

/// A dozen pipelines request a plan at the same time: all are answered, and those beyond the concurrency limit queue.
#[tokio::test]
async fn plans_beyond_the_concurrency_limit_queue() {
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    let upstream = upstream_with_providers(&names.iter().map(String::as_str).collect::<Vec<_>>(), 20_000).await;
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
    let gate = upstream.hold_body(Target::Versions);
    let plans = names.iter().map(|name| {
        let body = serde_json::json!({ "what": [format!("acme/{name}")], "platforms": ["linux_amd64"] }).to_string();
        let request = client().post(format!("{}/admin/v1/plan", larder.admin())).bearer_auth(&token);
        tokio::spawn(send(request.header("content-type", "application/json").body(body)))
    });
    let plans: Vec<_> = plans.collect();
    upstream.wait_for(Target::Versions, 4).await;
    gate.open();
    for plan in join_all(plans).await {
        let plan = plan.unwrap().unwrap().expect(200).json();
        assert_eq!(plan["sums"]["need"], 1, "{plan}");
    }
}

/// Promise 11: a large list that is stale is rendered once, and clients that do not read it share its bytes; with an upstream
/// that is down and with one that refuses each revalidation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_a_stale_list_share_its_bytes() {
    const CLIENTS: usize = 150;
    let mut upstream = upstream_with_providers(&["null"], 1000).await;
    let platforms: Vec<String> = (0..14).map(|n| format!("{{\"os\":\"linux\",\"arch\":\"arch{n}\"}}")).collect();
    let version = |n: usize| format!("{{\"version\":\"1.{n}.0\",\"platforms\":[{}]}}", platforms.join(","));
    let versions: Vec<String> = (0..6000).map(version).collect();
    let list = format!("{{\"versions\":[{}]}}", versions.join(","));
    assert!(list.len() > 2_000_000);
    upstream.serve_json("/v1/providers/acme/null/versions", &list);
    let folder = tempfile::tempdir().unwrap();
    // The builder owns the store's folder and must outlive the process.
    let builder = Larder::mirroring(&upstream).always_revalidate();
    let larder = Process::start(&builder, folder.path());
    let path = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    for path in [path.clone(), format!("/mirror/{HOST}/acme/null/index.json")] {
        larder.get(&path).await.expect(200);
    }
    upstream.stop().await;
    larder.get(&path).await.expect(200);
    let memory_before = larder.anonymous_bytes();
    let mut idle = Vec::new();
    for number in 0..CLIENTS {
        let mut client = TcpStream::connect(larder.base().strip_prefix("http://").unwrap()).await.unwrap();
        let accept = if number % 2 == 0 { "Accept-Encoding: gzip\r\n" } else { "" };
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n").as_bytes()).await.unwrap();
        idle.push(client);
    }
    for client in &mut idle {
        let mut start = [0; 12];
        client.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
    }
    let grown = larder.anonymous_bytes().saturating_sub(memory_before);
    assert!(grown < 60 << 20, "{CLIENTS} clients that read nothing took {grown} bytes");
}

/// Promise 11: clients that ask for one stored list at the same moment take no thread each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_one_stale_list_take_no_thread_each() {
    const CLIENTS: usize = 300;
    let mut upstream = upstream_with_providers(&["null"], 1000).await;
    let folder = tempfile::tempdir().unwrap();
    // The builder owns the store's folder and must outlive the process.
    let builder = Larder::mirroring(&upstream).always_revalidate();
    let larder = Process::start(&builder, folder.path());
    let path = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    larder.get(&path).await.expect(200);
    upstream.stop().await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(TcpStream::connect(larder.base().strip_prefix("http://").unwrap()).await.unwrap());
    }
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answers = clients.into_iter().map(async |mut client| {
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
    join_all(answers).await;
    // Threads without work stay for a while.
    let threads = std::fs::read_dir(format!("/proc/{}/task", larder.id())).unwrap().count();
    println!("{threads} threads");
    // Twenty and some on an idle machine, and twice that on a busy one.
    assert!(threads < CLIENTS / 3, "{CLIENTS} clients of one list took {threads} threads");
}

/// Promise 11: two hundred clients over TLS that wait for one list share its bytes, the first list and the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_clients_that_wait_for_a_list_take_bounded_memory() {
    const CLIENTS: usize = 200;
    let upstream = upstream_with_providers(&["null"], 1000).await;
    let version =
        |n: usize| format!("{{\"version\":\"1.{n}.0\",\"platforms\":[{{\"os\":\"linux\",\"arch\":\"{n:0>60}\"}}]}}");
    let ca = TestCa::new();
    let folder = tempfile::tempdir().unwrap();
    // The builder owns the store's folder and must outlive the process.
    let builder = Larder::mirroring(&upstream).tls(&ca, &["localhost"]).always_revalidate();
    let larder = Process::start(&builder, folder.path());
    let port = larder.base().rsplit(':').next().unwrap().to_owned();
    let url = format!("https://localhost:{port}/registry/{HOST}/v1/providers/acme/null/versions");
    let memory_before = larder.peak_resident_bytes();
    for round in 0..2usize {
        let versions: Vec<String> = (0..2800 + round).map(version).collect();
        let list = format!("{{\"versions\":[{}]}}", versions.join(","));
        upstream.serve_json("/v1/providers/acme/null/versions", &list);
        let gate = upstream.hold_headers(Target::Versions);
        let waiting: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(send(client_trusting(&ca).get(&url)))).collect();
        upstream.wait_for(Target::Versions, round + 1).await;
        until("all clients wait", async || larder.metric("larder_waiting_requests").await >= CLIENTS as f64).await;
        gate.open();
        for answer in join_all(waiting).await {
            assert!(answer.unwrap().unwrap().expect(200).body.len() > 330_000);
        }
    }
    let grown = larder.peak_resident_bytes().saturating_sub(memory_before);
    assert!(grown < 60 << 20, "{CLIENTS} clients took {grown} bytes");
}
