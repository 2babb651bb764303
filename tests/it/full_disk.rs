//! A full disk: documents that fit are stored, archives are passed through, and only a verified one gets its last
//! chunk.
//!
//! A file size limit of the process makes the disk full, which works on any machine and for any user. `small_disk` uses
//! a real one.

use std::path::PathBuf;

use crate::support::eventually;
use crate::support::http::{Answer, Received, client, get, receive, receive_body};
use crate::support::larder::{Folder, Larder};
use crate::support::package_fixture::{LARGE_BYTES, SMALL_BYTES, TAIL_BYTES};
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Fault, Provider, RecordedRequest, Target, sha256_hex};

/// acme/null 1.2.0, a larder that has stored its proof set only, and a disk that takes at most half of the archive.
struct FullDisk {
    upstream: FakeUpstream,
    folder: Folder,
    larder: Process,
    path: String,
    zip: Vec<u8>,
}

impl FullDisk {
    async fn with_archive_size(size: usize) -> Self {
        Self::with_upstream(FakeUpstream::start().await, size).await
    }

    async fn with_upstream(upstream: FakeUpstream, size: usize) -> Self {
        upstream.publish(Provider::new("acme", "null").size(size));
        let folder = Folder::new();
        let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
        let path = larder.archive_path("null").await;
        let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
        let fixture = Self { upstream, folder, larder, path, zip };
        fixture.fill_the_disk();
        fixture
    }

    fn fill_the_disk(&self) {
        self.larder.limit_file_size(Some(self.zip.len() as u64 / 2));
    }

    fn free_disk_space(&self) {
        self.larder.limit_file_size(None);
    }

    fn url(&self) -> String {
        format!("{}{}", self.larder.base(), self.path)
    }

    async fn receive(&self) -> Received {
        receive(client().get(self.url())).await
    }

    fn archive_requests(&self) -> Vec<RecordedRequest> {
        self.upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
    }

    /// Asserts that the archive arrived completely and nothing was stored.
    fn assert_passed_through(&self, answer: &Answer) {
        assert_eq!((answer.status, answer.header("cache-status")), (200, "larder; fwd=miss"));
        assert_eq!(answer.header("accept-ranges"), "");
        assert!(answer.body == self.zip);
        self.assert_nothing_stored();
    }

    fn assert_nothing_stored(&self) {
        assert_eq!((self.folder.blobs(), self.folder.partial_downloads()), (Vec::<PathBuf>::new(), Vec::new()));
    }

    /// Frees disk space and asserts that the next request stores the archive.
    async fn assert_recovery(&self) {
        self.upstream.clear_faults();
        self.free_disk_space();
        let filled = self.larder.get(&self.path).await.expect(200);
        assert_eq!((filled.header("cache-status"), filled.body == self.zip), ("larder; fwd=miss; stored", true));
        assert_eq!((self.folder.blobs().len(), self.folder.partial_downloads().len()), (1, 0));
        assert!(self.larder.get(&self.path).await.expect(200).has_cache_status("larder; hit"));
    }
}

/// Promise 9: an archive that does not fit is passed through, and stored by the next request once there is space.
#[tokio::test]
async fn an_archive_that_does_not_fit_is_passed_through_until_it_does() {
    for size in [SMALL_BYTES, LARGE_BYTES] {
        let fixture = FullDisk::with_archive_size(size).await;
        for _ in 0..2 {
            fixture.assert_passed_through(&fixture.larder.get(&fixture.path).await);
        }
        assert_eq!(fixture.larder.metric("larder_passed_through_total").await, 2.0);
        let log = fixture.larder.log().line_with("it is passed through").await;
        assert!(log.contains(fixture.folder.path().to_str().unwrap()) && log.contains("LimitFSIZE="), "{log}");
        fixture.assert_recovery().await;
        assert_eq!(fixture.larder.metric("larder_passed_through_total").await, 2.0);
    }
}

/// Promises 3 and 9: a small archive is verified in memory, so its length is sent even if upstream sends none.
#[tokio::test]
async fn a_small_archive_without_a_length_is_passed_through_whole() {
    let fixture = FullDisk::with_archive_size(SMALL_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    for _ in 0..2 {
        let answer = fixture.larder.get(&fixture.path).await;
        assert_eq!(answer.header("content-length"), fixture.zip.len().to_string());
        fixture.assert_passed_through(&answer);
    }
    fixture.assert_recovery().await;
}

/// Promise 9: without a length no disk space can be reserved. Clients of the failed fill are aborted; the next request
/// is passed through.
#[tokio::test]
async fn a_disk_that_fills_during_a_download_aborts_its_clients_and_the_next_request_passes_through() {
    let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    // The disk fills after the answer has begun: before, the client would get the archive straight from upstream.
    let gate = fixture.upstream.hold_after(Target::Archive, LARGE_BYTES * 2 / 5);
    let answer = client().get(fixture.url()).send().await.unwrap();
    gate.open();
    let received = receive_body(answer).await;
    assert_eq!((received.status, received.is_complete), (200, false));
    assert!(
        fixture.zip.starts_with(&received.body) && received.body.len() <= fixture.zip.len() / 2,
        "{}",
        received.body.len()
    );
    eventually("the partial download is deleted", async || fixture.folder.partial_downloads().is_empty().then_some(()))
        .await;
    for _ in 0..2 {
        let answer = fixture.larder.get(&fixture.path).await;
        assert_eq!(answer.header("content-length"), "");
        fixture.assert_passed_through(&answer);
    }
    fixture.assert_recovery().await;
}

/// Promise 3: a pass-through withholds its last chunk until the archive is verified, too.
#[tokio::test]
async fn the_tail_of_a_pass_through_waits_for_the_last_byte() {
    let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
    let gate = fixture.upstream.hold_after(Target::Archive, fixture.zip.len() - 1);
    let mut response = client().get(fixture.url()).send().await.unwrap();
    assert_eq!(response.content_length(), Some(fixture.zip.len() as u64));
    let mut body = Vec::new();
    while body.len() < fixture.zip.len() - TAIL_BYTES {
        body.extend_from_slice(&response.chunk().await.unwrap().unwrap());
        assert!(body.len() <= fixture.zip.len() - TAIL_BYTES, "{}", body.len());
    }
    gate.open();
    while let Some(piece) = response.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    assert!(body == fixture.zip);
    fixture.assert_nothing_stored();
}

/// Promises 1 and 3: wrong bytes never look complete, and the next request succeeds.
#[tokio::test]
async fn a_pass_through_of_wrong_bytes_never_looks_complete() {
    for length_fault in [None, Some(Fault::NoLength)] {
        for wrong_bytes in [Fault::WrongBytes, Fault::WrongLastByte] {
            let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
            // Without a length the first request starts a fill that is aborted; the second one is passed through.
            length_fault.iter().for_each(|fault| fixture.upstream.fault(Target::Archive, fault.clone()));
            // On a busy machine it is aborted before its head is sent.
            if let Ok(response) = client().get(fixture.url()).send().await {
                receive_body(response).await;
            }
            fixture.upstream.fault(Target::Archive, wrong_bytes.clone());
            let received = fixture.receive().await;
            assert_eq!((received.status, received.is_complete), (200, false), "{wrong_bytes:?} {length_fault:?}");
            assert!(received.body.len() <= fixture.zip.len() - TAIL_BYTES, "{wrong_bytes:?}: {}", received.body.len());
            fixture.assert_nothing_stored();
            fixture.assert_recovery().await;

            let fixture = FullDisk::with_archive_size(SMALL_BYTES).await;
            length_fault.iter().for_each(|fault| fixture.upstream.fault(Target::Archive, fault.clone()));
            fixture.upstream.fault(Target::Archive, wrong_bytes.clone());
            let text = fixture.larder.get(&fixture.path).await.expect(502).text();
            assert!(text.contains("its verified SHA256SUMS say"), "{text}");
            fixture.assert_recovery().await;
        }
    }
}

/// Promise 4: a broken pass-through is resumed with If-Range, each time at the byte where it broke.
#[tokio::test]
async fn a_broken_download_that_is_passed_through_is_resumed() {
    for size in [SMALL_BYTES, LARGE_BYTES] {
        let fixture = FullDisk::with_archive_size(size).await;
        // The fill that fails first reads no body.
        let half = fixture.zip.len() / 2;
        fixture.upstream.fault(Target::Archive, Fault::Truncated(half));
        fixture.assert_passed_through(&fixture.larder.get(&fixture.path).await);
        let resumed: Vec<_> =
            fixture.archive_requests().into_iter().filter(|request| request.header("range").is_some()).collect();
        let range = format!("bytes={half}-");
        let if_range = format!("\"{}\"", &sha256_hex(&fixture.zip)[..20]);
        assert_eq!(resumed[0].header("range"), Some(range.as_str()));
        assert!(resumed.iter().all(|request| request.header("if-range") == Some(if_range.as_str())));
        fixture.assert_recovery().await;
    }
}

/// Promise 4: passed-through bytes are not stored, so the bytes of a restarted response cannot be compared and the
/// client is aborted, unless no client has received any.
#[tokio::test]
async fn an_upstream_that_starts_over_aborts_a_pass_through() {
    for fault in [Fault::RangeIgnored, Fault::RangeOtherBytes] {
        let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
        fixture.upstream.fault(Target::Archive, fault);
        fixture.upstream.fault(Target::Archive, Fault::Truncated(LARGE_BYTES / 2));
        let received = fixture.receive().await;
        assert_eq!((received.status, received.is_complete), (200, false));
        assert!(fixture.zip.starts_with(&received.body));
        fixture.assert_recovery().await;
    }

    let fixture = FullDisk::with_archive_size(SMALL_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeIgnored);
    // One truncated response is for the fill, which stops for lack of disk space, and one for the pass-through.
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(SMALL_BYTES / 2));
    let gate = fixture.upstream.hold_headers(Target::Archive);
    let pending_request = tokio::spawn(receive(client().get(fixture.url())));
    fixture.upstream.wait_for(Target::Archive, 1).await;
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(SMALL_BYTES / 2));
    gate.open();
    let received = pending_request.await.unwrap();
    assert!(received.is_complete && received.body == fixture.zip);
    assert_eq!(fixture.archive_requests().len(), 3);
}

/// Promise 4: the client receives the announced length or an abort.
#[tokio::test]
async fn an_upstream_that_resumes_with_another_length_aborts_a_pass_through() {
    for difference in [-1_i64, 1] {
        let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
        let other_length = fixture.zip.len().checked_add_signed(difference as isize).unwrap();
        let gate = fixture.upstream.hold_after(Target::Archive, LARGE_BYTES / 2 - 1);
        fixture.upstream.fault(Target::Archive, Fault::Truncated(LARGE_BYTES / 2));
        let pending_request = tokio::spawn(receive(client().get(fixture.url())));
        fixture.upstream.wait_for(Target::Archive, 2).await;
        fixture.upstream.fault(Target::Archive, Fault::Announces(other_length));
        gate.open();
        let received = pending_request.await.unwrap();
        assert_eq!((received.status, received.is_complete), (200, false));
        assert!(fixture.zip.starts_with(&received.body));
        fixture.assert_recovery().await;
    }
}

/// Signed URLs expire, so the download document is fetched again once, in a pass-through too.
#[tokio::test]
async fn an_expired_url_is_refreshed_in_a_pass_through() {
    let fixture = FullDisk::with_upstream(FakeUpstream::builder().signed_urls().start().await, LARGE_BYTES).await;
    fixture.upstream.expire_urls();
    fixture.assert_passed_through(&fixture.larder.get(&fixture.path).await);
    fixture.assert_recovery().await;
}

/// Promise 11: each pass-through is an upstream stream; beyond the limit the response is 503.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_sixteen_pass_throughs_run_at_one_time() {
    let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
    let gate = fixture.upstream.hold_after(Target::Archive, LARGE_BYTES / 2);
    let mut responses = Vec::new();
    for _ in 0..16 {
        let response = client().get(fixture.url()).send().await.unwrap();
        assert_eq!(response.status(), 200);
        responses.push(response);
    }
    let text = fixture.larder.get(&fixture.path).await.expect(503).text();
    assert!(text.contains("cannot store it") && text.contains("ask again in a moment"), "{text}");
    assert!(!text.contains(fixture.folder.path().to_str().unwrap()), "{text}");
    // The pass-through of a client that disconnects ends, and makes way for another.
    drop(responses.pop());
    let next = eventually("another pass-through may start", async || {
        let response = client().get(fixture.url()).send().await.unwrap();
        (response.status() == 200).then_some(response)
    });
    responses.push(next.await);
    gate.open();
    for response in responses {
        assert!(response.bytes().await.unwrap() == fixture.zip);
    }
    fixture.assert_recovery().await;
}

/// Promise 3: without a length, an HTTP/1.0 client cannot tell a part from the whole.
#[tokio::test]
async fn an_http_1_0_client_is_refused_a_pass_through_without_a_length() {
    let fixture = FullDisk::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    let request_once = || receive(client().get(fixture.url()).version(reqwest::Version::HTTP_10));
    for _ in 0..2 {
        let received = request_once().await;
        assert_eq!(received.status, 503);
        assert!(String::from_utf8_lossy(&received.body).contains("HTTP/1.0"));
    }
    fixture.free_disk_space();
    let received = request_once().await;
    assert!(received.status == 200 && received.body == fixture.zip);
}

/// Promise 9: documents and archives are served although neither they nor first-seen records can be written.
#[tokio::test]
async fn a_full_disk_fails_no_document_request() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    larder.limit_file_size(Some(0));
    for _ in 0..2 {
        let path = larder.archive_path("null").await;
        let answer = larder.get(&path).await.expect(200);
        assert_eq!(answer.header("cache-status"), "larder; fwd=miss");
        assert!(answer.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    }
    larder.log().line_with("a verified set could not be recorded").await;
    larder.limit_file_size(None);
    let path = larder.archive_path("null").await;
    assert!(larder.get(&path).await.expect(200).has_cache_status("stored"));
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
    assert_eq!(larder.terminate().await, Some(0));
}

/// The state must show that archives are not stored, even while small documents still fit.
#[tokio::test]
async fn the_status_reports_a_store_that_has_space_for_documents_only() {
    let fixture = FullDisk::with_archive_size(SMALL_BYTES).await;
    fixture.upstream.publish(Provider::new("acme", "random").size(SMALL_BYTES));
    let has_store_state = async |state: &str| {
        let text = get(&format!("{}/metrics", fixture.larder.admin())).await.expect(200).text();
        text.contains(&format!("larder_store_state{{state=\"{state}\"}} 1"))
    };
    assert!(has_store_state("ready").await);
    assert!(fixture.receive().await.body == fixture.zip);
    assert!(has_store_state("not-keeping").await);
    assert!(fixture.larder.document("random").await.expect(200).has_cache_status("stored"));
    assert!(has_store_state("not-keeping").await);
    fixture.free_disk_space();
    assert!(fixture.receive().await.body == fixture.zip);
    assert!(has_store_state("ready").await);
}

/// Promise 9: larder starts and serves what is stored while nothing can be written, also after a kill.
#[tokio::test]
async fn a_larder_starts_although_nothing_can_be_written() {
    for is_killed in [true, false] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
        let folder = Folder::new();
        let builder = Larder::mirroring(&upstream).store_at(&folder);
        let larder = Process::start(&builder, folder.path());
        let path = larder.archive_path("null").await;
        larder.get(&path).await.expect(200);
        eventually("the `h1:` hash is recorded", async || folder.has_all_hashes().then_some(())).await;
        if is_killed {
            larder.kill()
        } else {
            assert_eq!(larder.terminate().await, Some(0))
        }

        let larder = Process::serve_after("ulimit -f 0", &builder, folder.path());
        let larder = larder.unwrap_or_else(|error| panic!("killed {is_killed}: {error:?}"));
        assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
        larder.get("/readyz").await.expect(200);
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        assert_eq!(status["archives"], 1);
        upstream.publish(Provider::new("acme", "other").size(LARGE_BYTES));
        let other = larder.archive_path("other").await;
        assert_eq!(larder.get(&other).await.expect(200).header("cache-status"), "larder; fwd=miss");
        assert_eq!(larder.terminate().await, Some(0));

        let larder = Process::start(&builder, folder.path());
        let other = larder.archive_path("other").await;
        assert!(larder.get(&other).await.expect(200).has_cache_status("stored"));
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        assert_eq!(status["archives"], 2, "the index does not count both archives");
    }
}
