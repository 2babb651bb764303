//! Combinations of two features: slow readers and shared connections, moved upstreams and credentials, concurrency
//! limits and resumption, a full disk and the size limit.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::eventually;
use crate::support::http::{client, receive};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const DISCOVERY: &str = "/.well-known/terraform.json";

async fn upstream_publishing(sizes: &[(&str, usize)]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for (name, size) in sizes {
        upstream.publish(Provider::new("acme", name).size(*size));
    }
    upstream
}

/// Promise 4: slow readers of passed-through archives delay no other client, also where upstream multiplexes all
/// requests on one connection.
#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_of_a_pass_through_delay_no_other_client() {
    let ca = TestCa::new();
    let upstream = FakeUpstream::builder().tls_with(&ca).http2().start().await;
    for (name, size) in [("slow", 40_000_000), ("fast", 3_000_000), ("cold", 3_000_000)] {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    let stall = Duration::from_secs(4);
    let larder =
        Larder::mirroring(&upstream).trusting(&ca).stall_timeout(stall).store("max_size = \"1MiB\"").start().await;
    let (slow, fast) = (larder.archive_path("slow", "1.2.0").await, larder.archive_path("fast", "1.2.0").await);
    let mut readers = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(larder.address()).await.unwrap();
        let head = format!("GET {slow} HTTP/1.1\r\nHost: {}\r\n\r\n", larder.address());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.readable().await.unwrap();
        readers.push(stream);
    }
    let got = larder.receive(&fast).await;
    assert_eq!((got.status, got.is_complete), (200, true));
    assert!(got.body == upstream.archive_bytes("acme", "fast", "1.2.0", "linux_amd64"));
    larder.document("cold", "1.2.0").await.expect(200);
}

/// Promise 8: a discovery document of the registry's former address does not make larder send a credential there.
#[tokio::test]
async fn a_moved_upstreams_credential_does_not_go_to_its_former_address() {
    let former = upstream_publishing(&[("null", 20_000), ("random", 20_000)]).await;
    let current = upstream_publishing(&[("null", 20_000), ("random", 20_000)]).await;
    let larder_of_former = Larder::builder().upstream(HOST, &format!("{}/", former.origin()), "").start().await;
    larder_of_former.versions("null").await.expect(200);
    let folder = larder_of_former.stop().await;
    former.forget_requests();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "s3cret\n").unwrap();
    let token = format!("token = {{ file = \"{}\" }}", secret.display());
    let larder =
        Larder::builder().upstream(HOST, &format!("{}/", current.origin()), &token).store_at(&folder).start().await;
    larder.versions("random").await.expect(200);
    assert_eq!(former.count_where(|_| true), 0);
    assert_eq!(current.count_where(|request| request.header("authorization") == Some("Bearer s3cret")), 2);
}

/// A missing service is not cached: the next request fetches the discovery document again.
#[tokio::test]
async fn a_registry_without_the_service_is_requested_again_the_next_time() {
    let upstream = upstream_publishing(&[("null", 20_000)]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    upstream.serve_json(DISCOVERY, "{\"modules.v1\":\"/v1/modules/\"}");
    larder.versions("null").await.expect(502);
    upstream.fault(Target::Path("terraform.json".into()), Fault::RetryAfter(503, 3600));
    larder.versions("null").await;
    upstream.clear_faults();
    upstream.stop_serving(DISCOVERY);
    larder.versions("null").await.expect(200);
}

/// After a Retry-After of one second, a successful response resets the breaker.
#[tokio::test]
async fn a_short_retry_after_does_not_extend_the_breaker() {
    let upstream = upstream_publishing(&[("null", 20_000), ("random", 20_000)]).await;
    let larder =
        Larder::mirroring(&upstream).upstream_lines("fresh = { versions = \"0s\", discovery = \"10h\" }").start().await;
    larder.versions("null").await.expect(200);
    for fault in (0..8).map(|_| Fault::Status(501)).chain([Fault::RetryAfter(503, 1)]) {
        upstream.clear_faults();
        upstream.fault(Target::Versions, fault);
        larder.clock.advance(Duration::from_secs(400));
        assert!(larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
    }
    upstream.clear_faults();
    larder.clock.advance(Duration::from_secs(5));
    larder.versions("random").await.expect(200);
    assert!(!larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
}

/// Promises 4 and 11: a broken download is resumed before downloads that wait for a permit start.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_download_is_resumed_before_waiting_downloads_start() {
    let upstream = upstream_publishing(&[("null", 3_000_000), ("random", 3_000_000), ("tls", 3_000_000)]).await;
    let larder = Larder::mirroring(&upstream).upstream_limits(|limits| limits.archives.per_upstream = 1).start().await;
    let mut paths = Vec::new();
    for name in ["null", "random", "tls"] {
        paths.push(larder.archive_path(name, "1.2.0").await);
    }
    upstream.fault_once(Target::Archive.with_path_part("null"), Fault::Truncated(2_000_000));
    let gate = upstream.hold_after(Target::Archive.with_path_part("null"), 1_500_000);
    let pending_request: Vec<_> =
        paths.iter().map(|path| tokio::spawn(receive(client().get(format!("{}{path}", larder.base()))))).collect();
    upstream.wait_for(Target::Archive.with_path_part("null"), 1).await;
    gate.open();
    for pending_request in pending_request {
        let got = pending_request.await.unwrap();
        assert_eq!((got.status, got.is_complete), (200, true));
    }
}

/// Promise 11: a pass-through returns its permit before it resumes.
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_through_returns_its_permit_before_it_resumes() {
    let upstream = upstream_publishing(&[("null", 3_000_000)]).await;
    let larder = Larder::mirroring(&upstream)
        .upstream_limits(|limits| limits.archives.per_upstream = 1)
        .store("max_size = \"1MiB\"");
    let larder = larder.start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::Truncated(1_500_000));
    let got = larder.receive(&path).await;
    assert!(got.is_complete && got.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
}

/// Promise 9: after a disk refused writes for a moment, eviction counts the files on disk.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_full_disk_eviction_uses_the_actual_sizes() {
    let names: Vec<String> = (0..60).map(|number| format!("p{number}")).collect();
    let sizes: Vec<(&str, usize)> =
        names.iter().map(|name| (name.as_str(), 100_000)).chain([("new", 1_500_000)]).collect();
    let upstream = upstream_publishing(&sizes).await;
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store_at(&folder).store("max_size = \"7MiB\"");
    let larder = Process::start(&builder(), folder.path());
    let mut paths = Vec::new();
    for name in &names {
        let path = larder.archive_path(name).await;
        larder.get(&path).await.expect(200);
        paths.push(path);
    }
    let new = larder.archive_path("new").await;
    assert_eq!(larder.terminate().await, Some(0));
    let stored = folder.blobs().len();
    assert_eq!(stored, 60);

    // Larder records the first use of an archive after a start, and the disk refuses that write.
    let larder = Process::start(&builder(), folder.path());
    larder.limit_file_size(Some(0));
    let mut next = paths.iter();
    eventually("an index write failed", async || {
        larder.get(next.next().expect("another archive to use")).await.expect(200);
        larder.log().text().contains("the index cannot be written; it continues in memory").then_some(())
    })
    .await;
    larder.limit_file_size(None);
    larder.get(&new).await.expect(200);
    let remaining = folder.blobs().len();
    assert!((40..60).contains(&remaining), "{remaining} of {stored} are left");
    let again = larder.get(&new).await.expect(200);
    assert!(again.has_cache_status("larder; hit"), "{}: {}", again.header("cache-status"), larder.log().text());
}
