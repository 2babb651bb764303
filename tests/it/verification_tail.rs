//! The part of an archive that a client gets before verification: with and without a length, whole and by Range.

use crate::support::http::{client, receive};
use crate::support::package_fixture::{LARGE_BYTES, PackageFixture, SMALL_BYTES, TAIL_BYTES};
use crate::support::rows::each_row;
use crate::support::upstream::{Fault, Target};

/// Promise 3: without a length, the first 1 MiB is withheld, then the body streams without a length.
#[tokio::test]
async fn an_archive_without_a_length_streams_after_its_first_mebibyte() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    let gate = fixture.upstream.hold_after(Target::Archive, (1 << 20) + 300_000);
    let mut response = client().get(fixture.url()).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.content_length()), (200, None));
    assert!(response.headers().get("accept-ranges").is_none());
    let mut body = response.chunk().await.unwrap().unwrap().to_vec();
    assert!(fixture.folder().blobs().is_empty());
    gate.open();
    while let Some(piece) = response.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    assert!(body == fixture.zip);
    fixture.assert_stored_and_served().await;
}

/// Promise 3: a small archive that upstream sends without a length is served with one.
#[tokio::test]
async fn a_small_archive_without_a_length_is_verified_before_the_status_line() {
    let fixture = PackageFixture::with_archive_size(SMALL_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    let answer = fixture.larder.get(&fixture.path).await.expect(200);
    assert_eq!(answer.header("content-length"), fixture.zip.len().to_string());
    fixture.assert_stored_and_served().await;
}

/// Promise 3: a small archive with wrong bytes is a 502. A large one is aborted; one without a length is
/// aborted before its last chunk, so that it never looks complete. A Range request has the same result.
#[tokio::test]
async fn wrong_bytes_never_look_complete() {
    let wrong = vec![Fault::WrongLastByte];
    let wrong_without_length = vec![Fault::NoLength, Fault::WrongLastByte];
    let rows = [
        ("a small archive without a length", (SMALL_BYTES, &wrong_without_length, None, 502)),
        ("a large archive without a length", (LARGE_BYTES, &wrong_without_length, None, 200)),
        ("a range of a small archive", (SMALL_BYTES, &wrong, Some("bytes=0-9"), 502)),
        ("a range of a large archive", (LARGE_BYTES, &wrong, Some("bytes=0-9"), 200)),
    ];
    each_row(rows, async |(size, faults, range, status)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        for fault in faults {
            fixture.upstream.fault(Target::Archive, fault.clone());
        }
        let request = client().get(fixture.url());
        let received = receive(range.into_iter().fold(request, |request, range| request.header("range", range))).await;
        if status == 200 {
            fixture.assert_truncated(&received);
        } else {
            assert_eq!((received.status, received.is_complete), (status, true));
            assert!(received.headers.get("retry-after").is_none(), "{:?}", received.headers);
        }
        assert!(fixture.folder().partial_downloads().is_empty());
        fixture.assert_recovers().await;
    })
    .await;
}

/// Promise 3: HTTP/1.0 cannot mark a truncated body of unknown length, so such clients wait for the complete archive.
#[tokio::test]
async fn a_client_of_http_1_0_waits_for_a_complete_archive_without_a_length() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    fixture.upstream.fault_once(Target::Archive, Fault::WrongLastByte);
    let request_once = || receive(client().get(fixture.url()).version(reqwest::Version::HTTP_10));
    assert_eq!(request_once().await.status, 502);
    let received = request_once().await;
    assert_eq!(
        (received.status, received.headers["content-length"].to_str().unwrap()),
        (200, fixture.zip.len().to_string().as_str())
    );
    assert!(received.is_complete && received.body == fixture.zip);
}

/// Promise 3: upstream truncates each response. Within the first 1 MiB that is a 502; after it, the response is
/// aborted.
#[tokio::test]
async fn a_download_without_a_length_that_is_always_truncated_never_looks_complete() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeIgnored);
    fixture.upstream.fault(Target::Archive, Fault::NoLengthTruncated(1_000_000));
    fixture.larder.get(&fixture.path).await.expect(502);
    fixture.assert_recovers().await;

    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeIgnored);
    fixture.upstream.fault(Target::Archive, Fault::NoLengthTruncated(fixture.zip.len() - 1));
    fixture.assert_truncated(&fixture.larder.receive(&fixture.path).await);
    fixture.assert_recovers().await;
}

/// Promise 3: Range is ignored until the archive is stored.
#[tokio::test]
async fn a_range_of_an_archive_that_is_not_stored_is_answered_with_the_complete_archive() {
    let rows = [("its first bytes", "bytes=0-9"), ("its last bytes", "bytes=-10"), ("its rest", "bytes=2999000-")];
    each_row(rows, async |range| {
        let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
        let gate = fixture.upstream.hold_after(Target::Archive, 2_000_000);
        let request = client().get(fixture.url()).header("range", range);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.content_length(), Some(fixture.zip.len() as u64));
        for name in ["accept-ranges", "content-range", "etag"] {
            assert!(response.headers().get(name).is_none(), "{name}");
        }
        gate.open();
        assert!(response.bytes().await.unwrap() == fixture.zip);
        let part = fixture.larder.get_with(&fixture.path, &[("range", "bytes=0-9")]).await.expect(206);
        assert_eq!((part.body.as_slice(), part.header("accept-ranges")), (&fixture.zip[..10], "bytes"));
    })
    .await;
}

/// Promise 3: bytes are sent as they arrive, and none of the last 64 KiB is sent before the archive is committed.
#[tokio::test]
async fn the_tail_is_sent_only_when_the_archive_is_committed() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    let gate = fixture.upstream.hold_after(Target::Archive, fixture.zip.len() - 1);
    let mut response = client().get(fixture.url()).send().await.unwrap();
    assert_eq!(response.content_length(), Some(fixture.zip.len() as u64));
    let mut body = Vec::new();
    while body.len() < fixture.zip.len() - TAIL_BYTES {
        body.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    assert_eq!(body.len(), fixture.zip.len() - TAIL_BYTES);
    assert!(fixture.folder().blobs().is_empty());
    gate.open();
    body.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    assert_eq!((fixture.folder().blobs().len(), fixture.folder().files("names").len()), (1, 1));
    while let Some(piece) = response.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    assert!(body == fixture.zip);
}

/// Promise 3: a client gets the bytes that have arrived, except the tail, and no others.
#[tokio::test]
async fn bytes_are_streamed_as_soon_as_they_arrive() {
    let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
    let gate = fixture.upstream.hold_after(Target::Archive, 1_000_000);
    let mut response = client().get(fixture.url()).send().await.unwrap();
    let mut body = Vec::new();
    while body.len() < 1_000_000 - TAIL_BYTES {
        body.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    assert!(body.len() <= 1_000_000);
    assert!(fixture.zip.starts_with(&body));
    gate.open();
    while let Some(piece) = response.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    assert!(body == fixture.zip);
}
