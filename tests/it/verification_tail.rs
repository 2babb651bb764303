//! The part of an archive that a client gets before verification: with and without a length, whole and by Range.

use crate::support::http::{client, receive};
use crate::support::package_fixture::{LARGE, PackageFixture, SMALL, TAIL};
use crate::support::upstream::{Fault, Target};

/// DESIGN, promise 3: without a length, the first 1 MiB is withheld, then the body streams without a length.
#[tokio::test]
async fn an_archive_without_a_length_streams_after_its_first_mebibyte() {
    let fixture = PackageFixture::with(LARGE).await;
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
    fixture.arrives_whole().await;
}

/// DESIGN, promise 3: a small one without a length is answered with one.
#[tokio::test]
async fn a_small_archive_without_a_length_is_verified_before_the_status_line() {
    let fixture = PackageFixture::with(SMALL).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    let answer = fixture.larder.get(&fixture.path).await.expect(200);
    assert_eq!(answer.header("content-length"), fixture.zip.len().to_string());
    fixture.arrives_whole().await;
}

/// DESIGN, promise 3: wrong bytes without a length: refused where they are few, else broken off without the last chunk.
#[tokio::test]
async fn wrong_bytes_without_a_length_never_look_complete() {
    let fixture = PackageFixture::with(SMALL).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    fixture.upstream.fault(Target::Archive, Fault::WrongLastByte);
    fixture.larder.get(&fixture.path).await.expect(502);
    fixture.heals().await;

    let fixture = PackageFixture::with(LARGE).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    fixture.upstream.fault(Target::Archive, Fault::WrongLastByte);
    fixture.broke_off(&fixture.larder.receive(&fixture.path).await);
    assert!(fixture.folder().staged().is_empty());
    fixture.heals().await;
}

/// DESIGN, promise 3: HTTP/1.0 cannot mark a truncated body of unknown length, so such clients wait for the whole.
#[tokio::test]
async fn an_old_client_waits_for_an_archive_without_a_length() {
    let fixture = PackageFixture::with(LARGE).await;
    fixture.upstream.fault(Target::Archive, Fault::NoLength);
    fixture.upstream.fault_once(Target::Archive, Fault::WrongLastByte);
    let ask = || receive(client().get(fixture.url()).version(reqwest::Version::HTTP_10));
    assert_eq!(ask().await.status, 502);
    let received = ask().await;
    assert_eq!(
        (received.status, received.headers["content-length"].to_str().unwrap()),
        (200, fixture.zip.len().to_string().as_str())
    );
    assert!(received.is_whole && received.body == fixture.zip);
}

/// DESIGN, promise 3: and where it is cut each time: a 502 up to 1 MiB, an abort above.
#[tokio::test]
async fn a_download_without_a_length_that_is_always_cut_never_looks_complete() {
    let fixture = PackageFixture::with(LARGE).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeIgnored);
    fixture.upstream.fault(Target::Archive, Fault::NoLengthTruncated(1_000_000));
    fixture.larder.get(&fixture.path).await.expect(502);
    fixture.heals().await;

    let fixture = PackageFixture::with(LARGE).await;
    fixture.upstream.fault(Target::Archive, Fault::RangeIgnored);
    fixture.upstream.fault(Target::Archive, Fault::NoLengthTruncated(fixture.zip.len() - 1));
    fixture.broke_off(&fixture.larder.receive(&fixture.path).await);
    fixture.heals().await;
}

/// DESIGN, promise 3: Range is ignored until the archive is stored.
#[tokio::test]
async fn a_range_of_a_cold_archive_is_answered_with_the_whole() {
    for range in ["bytes=0-9", "bytes=-10", "bytes=2999000-"] {
        let fixture = PackageFixture::with(LARGE).await;
        let gate = fixture.upstream.hold_after(Target::Archive, 2_000_000);
        let request = client().get(fixture.url()).header("range", range);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{range}");
        assert_eq!(response.content_length(), Some(fixture.zip.len() as u64));
        for name in ["accept-ranges", "content-range", "etag"] {
            assert!(response.headers().get(name).is_none(), "{name}");
        }
        gate.open();
        assert!(response.bytes().await.unwrap() == fixture.zip);
        let part = fixture.larder.get_with(&fixture.path, &[("range", "bytes=0-9")]).await.expect(206);
        assert_eq!((part.body.as_slice(), part.header("accept-ranges")), (&fixture.zip[..10], "bytes"));
    }
}

/// DESIGN, promise 3: an unproven part never looks complete.
#[tokio::test]
async fn a_range_of_a_cold_archive_with_wrong_bytes_gets_no_answer_that_looks_complete() {
    let fixture = PackageFixture::with(LARGE).await;
    fixture.upstream.fault(Target::Archive, Fault::WrongLastByte);
    let received = receive(client().get(fixture.url()).header("range", "bytes=0-9")).await;
    fixture.broke_off(&received);
    fixture.heals().await;

    let fixture = PackageFixture::with(SMALL).await;
    fixture.upstream.fault(Target::Archive, Fault::WrongLastByte);
    fixture.larder.get_with(&fixture.path, &[("range", "bytes=0-9")]).await.expect(502);
    fixture.heals().await;
}

/// DESIGN, promise 3: bytes stream as they arrive, and none of the last 64 KiB leaves before the archive is committed.
#[tokio::test]
async fn the_tail_is_sent_only_when_the_archive_is_committed() {
    let fixture = PackageFixture::with(LARGE).await;
    let gate = fixture.upstream.hold_after(Target::Archive, fixture.zip.len() - 1);
    let mut response = client().get(fixture.url()).send().await.unwrap();
    assert_eq!(response.content_length(), Some(fixture.zip.len() as u64));
    let mut body = Vec::new();
    while body.len() < fixture.zip.len() - TAIL {
        body.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    assert_eq!(body.len(), fixture.zip.len() - TAIL);
    assert!(fixture.folder().blobs().is_empty());
    gate.open();
    body.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    assert_eq!((fixture.folder().blobs().len(), fixture.folder().files("names").len()), (1, 1));
    while let Some(piece) = response.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    assert!(body == fixture.zip);
}

/// DESIGN, promise 3: no client gets bytes that did not arrive.
#[tokio::test]
async fn bytes_are_streamed_as_soon_as_they_arrive() {
    let fixture = PackageFixture::with(LARGE).await;
    let gate = fixture.upstream.hold_after(Target::Archive, 1_000_000);
    let mut response = client().get(fixture.url()).send().await.unwrap();
    let mut body = Vec::new();
    while body.len() < 1_000_000 - TAIL {
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
