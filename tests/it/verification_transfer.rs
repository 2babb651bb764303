//! Downloads that break, are reset, stall, are very slow or start again: larder resumes or abandons them, and never
//! takes one for complete that is not.

use std::time::Duration;

use crate::support::larder::Larder;
use crate::support::package_fixture::{LARGE_BYTES, PackageFixture, SMALL_BYTES};
use crate::support::rows::each_row;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// Promise 4: a broken download is resumed, and no byte is fetched twice. A chunked body without its last chunk counts
/// as broken. Without validators larder resumes by Range alone, because the digest verifies the complete archive.
#[tokio::test]
async fn a_download_that_breaks_is_resumed_where_it_broke() {
    type Cut = fn(usize) -> Fault;
    let rows: [(_, (_, _, Cut, _)); 6] = [
        ("a small archive", (SMALL_BYTES, 70_000, Fault::Truncated, true)),
        ("a large archive", (LARGE_BYTES, 1_500_000, Fault::Truncated, true)),
        ("a large archive without validators", (LARGE_BYTES, 1_500_000, Fault::Truncated, false)),
        ("a small archive without a length", (SMALL_BYTES, 70_000, Fault::NoLengthTruncated, true)),
        ("a large archive without a length, early", (LARGE_BYTES, 500_000, Fault::NoLengthTruncated, true)),
        ("a large archive without a length, late", (LARGE_BYTES, 2_500_000, Fault::NoLengthTruncated, true)),
    ];
    each_row(rows, async |(size, offset, cut, has_validators)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        if !has_validators {
            fixture.upstream.fault(Target::Archive, Fault::NoValidators);
        }
        fixture.upstream.fault_once(Target::Archive, cut(offset));
        fixture.assert_stored_and_served().await;
        let requests = fixture.archive_requests();
        assert_eq!(requests.len(), 2);
        assert_eq!((requests[0].header("range"), requests[0].header("if-range")), (None, None));
        assert_eq!(requests[1].header("range"), Some(format!("bytes={offset}-").as_str()));
        let has_tag = requests[1].header("if-range").is_some_and(|tag| tag.starts_with('"'));
        assert_eq!(has_tag, has_validators, "{requests:?}");
        assert_eq!(requests[1].status, Some(206));
        assert_eq!(requests.iter().map(|request| request.bytes_sent).sum::<u64>(), fixture.zip.len() as u64);
    })
    .await;
}

/// Promise 4: the URL of the archive expires during the download, so larder fetches the document again.
#[tokio::test]
async fn a_download_that_breaks_is_resumed_at_its_new_url() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let fixture = PackageFixture::from_upstream(upstream, Duration::from_secs(30)).await;
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(1_500_000));
    let gate = fixture.upstream.hold_after(Target::Archive, 1_000_000);
    let expire_urls = async {
        fixture.upstream.wait_for(Target::Archive, 1).await;
        fixture.upstream.expire_urls();
        gate.open();
    };
    tokio::join!(fixture.assert_stored_and_served(), expire_urls);
    let queries_and_statuses: Vec<_> =
        fixture.archive_requests().iter().map(|request| (request.query.clone(), request.status)).collect();
    let expected = [("sig=0", 200), ("sig=0", 403), ("sig=1", 206)];
    assert_eq!(queries_and_statuses, expected.map(|(query, status)| (query.to_owned(), Some(status))));
    assert_eq!(fixture.upstream.count_of(Target::Document), 2);
}

/// Promise 4: a download that broke after its very last byte has nothing left to resume.
#[tokio::test]
async fn a_download_that_breaks_at_its_very_end_is_complete() {
    each_row([("a small archive", SMALL_BYTES), ("a large archive", LARGE_BYTES)], async |size| {
        let fixture = PackageFixture::with_archive_size(size).await;
        fixture.upstream.fault_once(Target::Archive, Fault::NoLengthTruncated(fixture.zip.len()));
        fixture.assert_stored_and_served().await;
    })
    .await;
}

/// Promise 4: after a reset larder resumes. If upstream ignores Range, it sends all bytes again, and clients notice
/// nothing.
#[tokio::test]
async fn a_download_that_is_reset_or_starts_again_with_the_same_bytes_is_complete() {
    let rows = [
        ("a small archive, reset", (SMALL_BYTES, Fault::Reset(70_000), None, 206)),
        ("a large archive, reset", (LARGE_BYTES, Fault::Reset(1_500_000), None, 206)),
        ("a small archive, sent again", (SMALL_BYTES, Fault::Truncated(70_000), Some(Fault::RangeIgnored), 200)),
        ("a large archive, sent again", (LARGE_BYTES, Fault::Truncated(1_500_000), Some(Fault::RangeIgnored), 200)),
    ];
    each_row(rows, async |(size, first_fault, lasting_fault, status)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        if let Some(fault) = lasting_fault {
            fixture.upstream.fault(Target::Archive, fault);
        }
        fixture.upstream.fault_once(Target::Archive, first_fault);
        fixture.assert_stored_and_served().await;
        let requests = fixture.archive_requests();
        assert_eq!((requests.len(), requests[1].status), (2, Some(status)));
    })
    .await;
}

/// Promise 3: upstream truncates the archive each time. A large one is aborted before its tail, a small one is a 502.
#[tokio::test]
async fn an_archive_that_is_always_truncated_never_looks_complete() {
    type Offset = fn(usize) -> usize;
    let rows: [(_, (_, Offset, _)); 4] = [
        ("a small archive without a byte", (SMALL_BYTES, |_| 0, 502)),
        ("a part of a small archive", (SMALL_BYTES, |_| 70_000, 502)),
        ("a part of a large archive", (LARGE_BYTES, |_| 1_500_000, 200)),
        ("a large archive without its last byte", (LARGE_BYTES, |zip| zip - 1, 200)),
    ];
    each_row(rows, async |(size, offset, status)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        let offset = offset(fixture.zip.len());
        fixture.upstream.fault(Target::Archive, Fault::RangeIgnored);
        fixture.upstream.fault(Target::Archive, Fault::Truncated(offset));
        if status == 200 {
            fixture.assert_truncated(&fixture.larder.receive(&fixture.path).await);
        } else {
            fixture.larder.get(&fixture.path).await.expect(status);
        }
        assert!(fixture.folder().blobs().is_empty());
        fixture.assert_recovers().await;
        let resumed = (offset > 0).then(|| format!("bytes={offset}-"));
        assert_eq!(fixture.archive_requests().last().unwrap().header("range"), resumed.as_deref());
    })
    .await;
}

/// Promise 4: after a truncated response upstream sends other bytes. Every client that got some of the old ones is
/// aborted.
#[tokio::test]
async fn a_download_that_starts_again_with_other_bytes_is_aborted_for_every_client() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeOtherBytes);
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(1_500_000));
    let (first, second) = tokio::join!(fixture.larder.receive(&fixture.path), fixture.larder.receive(&fixture.path));
    fixture.assert_truncated(&first);
    fixture.assert_truncated(&second);
    assert!(fixture.folder().partial_downloads().is_empty());
    assert_eq!(fixture.archive_requests().len(), 2);
    fixture.assert_recovers().await;
    assert_eq!(fixture.archive_requests()[2].header("range"), None);

    let fixture = PackageFixture::with_archive_size(SMALL_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeOtherBytes);
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(70_000));
    fixture.larder.get(&fixture.path).await.expect(502);
    assert!(fixture.folder().blobs().is_empty());
    fixture.assert_recovers().await;
}

/// Larder abandons a download of which no byte arrives for the stall timeout.
#[tokio::test]
async fn an_archive_that_stalls_is_abandoned_and_resumed_by_the_next_request() {
    let fixture = PackageFixture::with_stall_timeout(LARGE_BYTES, Duration::from_millis(500)).await;
    fixture.upstream.fault_once(Target::Archive, Fault::Stalls(1_500_000));
    let received = fixture.larder.receive(&fixture.path).await;
    fixture.assert_truncated(&received);
    assert!(received.body.len() <= 1_500_000);
    fixture.assert_stored_and_served().await;
    let requests = fixture.archive_requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].header("range"), Some("bytes=1500000-"));
}

/// Promise 4: a broken fetch is resumed also after a restart.
#[tokio::test]
async fn an_archive_that_stalls_is_resumed_after_a_restart() {
    let fixture = PackageFixture::with_stall_timeout(LARGE_BYTES, Duration::from_millis(500)).await;
    fixture.upstream.fault_once(Target::Archive, Fault::Stalls(1_500_000));
    fixture.assert_truncated(&fixture.larder.receive(&fixture.path).await);
    let PackageFixture { upstream, larder, path, zip } = fixture;
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let fixture = PackageFixture { upstream, larder, path, zip };
    fixture.assert_stored_and_served().await;
    assert_eq!(fixture.archive_requests()[1].header("range"), Some("bytes=1500000-"));
}

/// Less than 1 KiB/s over the stall timeout counts as a stall.
#[tokio::test]
async fn a_very_slow_archive_is_abandoned() {
    let fixture = PackageFixture::with_stall_timeout(LARGE_BYTES, Duration::from_secs(1)).await;
    fixture.upstream.fault(Target::Archive, Fault::Drips(20, Duration::from_millis(100)));
    fixture.assert_truncated(&fixture.larder.receive(&fixture.path).await);
    fixture.assert_recovers().await;
}

/// The download stalls before larder has sent a status line.
#[tokio::test]
async fn an_archive_that_stalls_before_the_status_line_is_a_504() {
    let rows = [
        ("a small archive that stalls", (SMALL_BYTES, Fault::Stalls(70_000))),
        ("a small archive that never begins", (SMALL_BYTES, Fault::NeverAnswers)),
        ("a large archive that never begins", (LARGE_BYTES, Fault::NeverAnswers)),
    ];
    each_row(rows, async |(size, fault)| {
        let fixture = PackageFixture::with_stall_timeout(size, Duration::from_millis(500)).await;
        fixture.upstream.fault(Target::Archive, fault);
        fixture.larder.get(&fixture.path).await.expect(504);
        assert!(fixture.folder().blobs().is_empty());
        fixture.assert_recovers().await;
    })
    .await;
}

/// A failure at an archive has the same status as at a document, and no Retry-After is passed on.
#[tokio::test]
async fn an_archive_that_upstream_refuses_is_an_error_with_the_cause() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    let rows = [
        ("no content", (Fault::Status(204), 502)),
        ("a part that was not requested", (Fault::Status(206), 502)),
        ("unchanged", (Fault::Status(304), 502)),
        ("redirects without end", (Fault::RedirectLoop(302), 502)),
        ("unavailable for legal reasons", (Fault::Status(451), 502)),
        ("a server error", (Fault::Status(500), 502)),
        ("too many requests", (Fault::RetryAfter(429, 3600), 503)),
        ("a loop at upstream", (Fault::Status(508), 508)),
    ];
    each_row(rows, async |(fault, status)| {
        fixture.upstream.fault(Target::Archive, fault);
        let refused = fixture.larder.get(&fixture.path).await.expect(status);
        assert!(refused.headers.get("retry-after").is_none(), "{:?}", refused.headers);
        assert!(refused.text().contains("the archive of"), "{}", refused.text());
        fixture.upstream.clear_faults();
    })
    .await;
    assert!(fixture.folder().blobs().is_empty());
    fixture.assert_recovers().await;
}
