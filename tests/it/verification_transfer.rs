//! Downloads that break, reset, stall, drip or start over: resumed where that is right, given up where it is not, and
//! never mistaken for complete.

use std::time::Duration;

use crate::support::larder::Larder;
use crate::support::package_fixture::{LARGE_BYTES, PackageFixture, SMALL_BYTES};
use crate::support::rows::each_row;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// Promise 4: a broken download is resumed, and no byte is fetched twice. A chunked body without its last chunk is a
/// broken one. Without validators the resumption is by Range alone; the digest verifies the whole.
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
        fixture.assert_complete().await;
        let requests = fixture.archive_requests();
        assert_eq!(requests.len(), 2);
        assert_eq!((requests[0].header("range"), requests[0].header("if-range")), (None, None));
        assert_eq!(requests[1].header("range"), Some(format!("bytes={offset}-").as_str()));
        let has_tag = requests[1].header("if-range").is_some_and(|tag| tag.starts_with('"'));
        assert_eq!(has_tag, has_validators, "{requests:?}");
        assert_eq!(requests[1].status, Some(206));
        assert_eq!(requests.iter().map(|asked| asked.bytes_sent).sum::<u64>(), fixture.zip.len() as u64);
    })
    .await;
}

/// Promise 4, and the table: also where the archive's URL has expired meanwhile.
#[tokio::test]
async fn a_download_that_breaks_is_resumed_at_its_new_url() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let fixture = PackageFixture::from_upstream(upstream, Duration::from_secs(30)).await;
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(1_500_000));
    let gate = fixture.upstream.hold_after(Target::Archive, 1_000_000);
    let meanwhile = async {
        fixture.upstream.wait_for(Target::Archive, 1).await;
        fixture.upstream.expire_urls();
        gate.open();
    };
    tokio::join!(fixture.assert_complete(), meanwhile);
    let request: Vec<_> =
        fixture.archive_requests().iter().map(|request| (request.query.clone(), request.status)).collect();
    let expected = [("sig=0", 200), ("sig=0", 403), ("sig=1", 206)];
    assert_eq!(request, expected.map(|(query, status)| (query.to_owned(), Some(status))));
    assert_eq!(fixture.upstream.count_of(Target::Document), 2);
}

/// Promise 4: a download that broke after its very last byte has nothing left to resume.
#[tokio::test]
async fn a_download_that_breaks_at_its_very_end_is_complete() {
    each_row([("a small archive", SMALL_BYTES), ("a large archive", LARGE_BYTES)], async |size| {
        let fixture = PackageFixture::with_archive_size(size).await;
        fixture.upstream.fault_once(Target::Archive, Fault::NoLengthTruncated(fixture.zip.len()));
        fixture.assert_complete().await;
    })
    .await;
}

/// Promise 4: a reset is resumed as well, an upstream that cannot resume starts over, and clients notice nothing.
#[tokio::test]
async fn a_download_that_is_reset_or_starts_over_with_the_same_bytes_is_complete() {
    let rows = [
        ("a small archive, reset", (SMALL_BYTES, Fault::Reset(70_000), None, 206)),
        ("a large archive, reset", (LARGE_BYTES, Fault::Reset(1_500_000), None, 206)),
        ("a small archive, over again", (SMALL_BYTES, Fault::Truncated(70_000), Some(Fault::RangeIgnored), 200)),
        ("a large archive, over again", (LARGE_BYTES, Fault::Truncated(1_500_000), Some(Fault::RangeIgnored), 200)),
    ];
    each_row(rows, async |(size, once, lasting, status)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        if let Some(fault) = lasting {
            fixture.upstream.fault(Target::Archive, fault);
        }
        fixture.upstream.fault_once(Target::Archive, once);
        fixture.assert_complete().await;
        let requests = fixture.archive_requests();
        assert_eq!((requests.len(), requests[1].status), (2, Some(status)));
    })
    .await;
}

/// Promise 3: a truncated archive never looks complete: a large one is broken off before its tail, a small one is
/// refused before the status line.
#[tokio::test]
async fn an_archive_that_never_comes_whole_never_looks_complete() {
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

/// Promise 4: where it starts over with other bytes, every client that got some is aborted.
#[tokio::test]
async fn a_download_that_starts_over_with_other_bytes_breaks_off_all_who_follow_it() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeOtherBytes);
    fixture.upstream.fault_once(Target::Archive, Fault::Truncated(1_500_000));
    let (one, other) = tokio::join!(fixture.larder.receive(&fixture.path), fixture.larder.receive(&fixture.path));
    fixture.assert_truncated(&one);
    fixture.assert_truncated(&other);
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

/// The table: an archive that receives no byte for the stall time is given up, and the next request resumes it.
#[tokio::test]
async fn an_archive_that_stalls_is_given_up_and_resumed_by_the_next_request() {
    let fixture = PackageFixture::with_stall_timeout(LARGE_BYTES, Duration::from_millis(500)).await;
    fixture.upstream.fault_once(Target::Archive, Fault::Stalls(1_500_000));
    let received = fixture.larder.receive(&fixture.path).await;
    fixture.assert_truncated(&received);
    assert!(received.body.len() <= 1_500_000);
    fixture.assert_complete().await;
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
    fixture.assert_complete().await;
    assert_eq!(fixture.archive_requests()[1].header("range"), Some("bytes=1500000-"));
}

/// The table: less than 1 KiB/s over the stall time is as good as nothing.
#[tokio::test]
async fn an_archive_that_drips_is_given_up() {
    let fixture = PackageFixture::with_stall_timeout(LARGE_BYTES, Duration::from_secs(1)).await;
    fixture.upstream.fault(Target::Archive, Fault::Drips(20, Duration::from_millis(100)));
    fixture.assert_truncated(&fixture.larder.receive(&fixture.path).await);
    fixture.assert_recovers().await;
}

/// The table: too slow before the body has begun is a 504.
#[tokio::test]
async fn an_archive_that_is_too_slow_to_begin_is_a_504() {
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

/// The table: trouble with an archive has the status of trouble with a document, and no Retry-After is handed on.
#[tokio::test]
async fn an_archive_that_upstream_will_not_give_is_refused_with_the_cause() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    let rows = [
        ("no content", (Fault::Status(204), 502)),
        ("a part that was not asked for", (Fault::Status(206), 502)),
        ("unchanged", (Fault::Status(304), 502)),
        ("redirects without end", (Fault::RedirectLoop(302), 502)),
        ("legal reasons", (Fault::Status(451), 502)),
        ("a server error", (Fault::Status(500), 502)),
        ("too many requests", (Fault::RetryAfter(429, 3600), 503)),
        ("a loop at the server", (Fault::Status(508), 508)),
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
