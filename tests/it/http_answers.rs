//! HTTP semantics of larder's responses: lengths, ranges, conditional requests, content codings, cache headers, HTTP
//! versions, errors.

use std::io::Read;
use std::time::Duration;

use flate2::read::GzDecoder;
use larder::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::http::{Answer, client, send};
use crate::support::larder::{HOST, Larder};
use crate::support::rows::each_row;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target, sha256_hex};

/// Small enough to be verified before the status line.
const SMALL_BYTES: usize = 300_000;
/// Large enough to be streamed while it arrives.
const LARGE_BYTES: usize = 3_000_000;

/// Rows of a table: an archive of each size.
const SIZES: [(&str, usize); 2] = [("a small archive", SMALL_BYTES), ("a large archive", LARGE_BYTES)];

/// An upstream with acme/null 1.2.0 of about this size, a larder that mirrors it, the archive's path and its bytes.
async fn larder_with_archive(size_bytes: usize) -> (FakeUpstream, Larder, String, Vec<u8>) {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(size_bytes));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let bytes = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    (upstream, larder, path, bytes)
}

fn versions_path() -> String {
    format!("/registry/{HOST}/v1/providers/acme/null/versions")
}

fn document_path() -> String {
    format!("/registry/{HOST}/v1/providers/acme/null/1.2.0/download/linux/amd64")
}

async fn head_with(larder: &Larder, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = client().head(format!("{}{path}", larder.base()));
    send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
}

/// The whole answer to an HTTP/1.0 client, head and body.
async fn http_1_0_answer(larder: &Larder, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(larder.address()).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: mirror.example\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

/// The joined texts of an error, after checking that the body has the shape that registries use.
fn error_text(answer: &Answer) -> String {
    assert_eq!(answer.header("content-type"), "application/json", "{}", answer.text());
    let json = answer.json();
    assert_eq!(json.as_object().unwrap().len(), 1, "{json}");
    let errors = json["errors"].as_array().expect("errors are a list").clone();
    assert!(!errors.is_empty());
    errors.iter().map(|error| error.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Ranges are offered, so HEAD must have the true length.
#[tokio::test]
async fn head_on_a_stored_archive_has_its_true_length_and_offers_ranges() {
    each_row(SIZES, async |size| {
        let (upstream, larder, path, bytes) = larder_with_archive(size).await;
        larder.get(&path).await.expect(200);
        let head = larder.head(&path).await.expect(200);
        let get = larder.get(&path).await.expect(200);
        assert!(head.body.is_empty());
        assert_eq!(head.header("content-length"), bytes.len().to_string());
        assert_eq!(head.header("accept-ranges"), "bytes");
        for name in ["content-length", "content-type", "accept-ranges", "etag", "cache-control", "cache-status"] {
            assert_eq!(head.header(name), get.header(name), "{name}");
        }
        assert_eq!(upstream.count_of(Target::Archive), 1);
    })
    .await;
}

/// Promises 3 and 4: HEAD on a missing archive has the true length, offers no ranges, and shares one fill with GET.
#[tokio::test]
async fn head_on_a_cold_archive_starts_the_one_fill_that_the_get_joins() {
    let (upstream, larder, path, bytes) = larder_with_archive(LARGE_BYTES).await;
    let gate = upstream.hold_after(Target::Archive, 100_000);
    let head = larder.head(&path).await.expect(200);
    assert_eq!(head.header("content-length"), bytes.len().to_string());
    assert_eq!(head.header("accept-ranges"), "");
    assert!(head.has_cache_status("fwd=miss"), "{}", head.header("cache-status"));
    upstream.wait_for(Target::Archive, 1).await;
    let (got, ()) = tokio::join!(larder.get(&path), async { gate.open() });
    assert!(got.expect(200).body == bytes);
    assert_eq!(upstream.count_of(Target::Archive), 1);
    assert!(upstream.requests().iter().all(|request| request.method == "GET"), "upstream was asked with HEAD");
}

#[tokio::test]
async fn head_on_a_cold_small_archive_has_its_true_length_and_no_ranges() {
    let (upstream, larder, path, bytes) = larder_with_archive(SMALL_BYTES).await;
    let head = larder.head(&path).await.expect(200);
    assert_eq!(head.header("content-length"), bytes.len().to_string());
    assert_eq!(head.header("accept-ranges"), "");
    assert!(larder.get(&path).await.expect(200).body == bytes);
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

#[tokio::test]
async fn head_on_documents_sums_and_errors_has_the_length_of_the_get() {
    let (_upstream, larder, _path, _bytes) = larder_with_archive(SMALL_BYTES).await;
    let sums = larder.document("null", "1.2.0").await.json()["shasums_url"].as_str().unwrap().to_owned();
    for path in [versions_path(), document_path(), sums, "/nowhere".into(), "/healthz".into()] {
        let (head, get) = (larder.head(&path).await, larder.get(&path).await);
        assert_eq!(head.status, get.status, "{path}");
        assert!(head.body.is_empty() && !get.body.is_empty(), "{path}");
        assert_eq!(head.header("content-length"), get.body.len().to_string(), "{path}");
    }
}

#[tokio::test]
async fn ranges_of_a_stored_archive_are_answered() {
    each_row(SIZES, async |size| {
        let (_upstream, larder, path, bytes) = larder_with_archive(size).await;
        larder.get(&path).await.expect(200);
        let total = bytes.len();
        let last = total - 1;
        for (range, start, end) in [
            ("bytes=0-99".to_owned(), 0, 100),
            ("bytes=100-".to_owned(), 100, total),
            ("bytes=-300".to_owned(), total - 300, total),
            (format!("bytes={last}-{}", total * 2), last, total),
            (format!("bytes=0-{last}"), 0, total),
        ] {
            let part = larder.get_with(&path, &[("range", &range)]).await.expect(206);
            assert_eq!(part.header("content-range"), format!("bytes {start}-{}/{total}", end - 1), "{range}");
            assert_eq!(part.header("content-length"), (end - start).to_string(), "{range}");
            assert!(part.body == bytes[start..end], "{range}");
        }
        for range in ["bytes=0-1,5-6", "bytes=9-3", "lines=1-2", "bytes=x", "bytes=-"] {
            let whole = larder.get_with(&path, &[("range", range)]).await.expect(200);
            assert_eq!(whole.header("content-range"), "", "{range}");
            assert!(whole.body == bytes, "{range}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_range_beyond_the_end_is_416_and_is_not_immutable() {
    let (_upstream, larder, path, bytes) = larder_with_archive(SMALL_BYTES).await;
    larder.get(&path).await.expect(200);
    for range in [format!("bytes={}-", bytes.len()), "bytes=-0".to_owned(), "bytes=999999999-".to_owned()] {
        let answer = larder.get_with(&path, &[("range", &range)]).await.expect(416);
        assert_eq!(answer.header("content-range"), format!("bytes */{}", bytes.len()), "{range}");
        assert!(error_text(&answer).contains(&bytes.len().to_string()), "{range}");
        assert!(!answer.header("cache-control").contains("immutable"), "{range}");
    }
}

#[tokio::test]
async fn if_range_decides_between_the_part_and_the_whole() {
    let (_upstream, larder, path, bytes) = larder_with_archive(LARGE_BYTES).await;
    larder.get(&path).await.expect(200);
    let tag = larder.head(&path).await.header("etag").to_owned();
    let range = ("range", "bytes=5-9");
    let part = larder.get_with(&path, &[range, ("if-range", &tag)]).await.expect(206);
    assert_eq!(part.body, bytes[5..10]);
    let weak = format!("W/{tag}");
    for other in ["\"other\"", weak.as_str(), "Mon, 01 Jan 2024 00:00:00 GMT"] {
        let whole = larder.get_with(&path, &[range, ("if-range", other)]).await.expect(200);
        assert!(whole.body == bytes, "{other}");
    }
}

/// RFC 9110 14.2: ranges are defined for GET only.
#[tokio::test]
async fn head_ignores_a_range() {
    let (_upstream, larder, path, bytes) = larder_with_archive(SMALL_BYTES).await;
    larder.get(&path).await.expect(200);
    let head = head_with(&larder, &path, &[("range", "bytes=0-4")]).await.expect(200);
    assert_eq!(head.header("content-length"), bytes.len().to_string());
    assert_eq!(head.header("content-range"), "");
}

/// Promise 3: until an archive is stored, an unverified part must not look complete.
#[tokio::test]
async fn a_range_of_a_cold_archive_is_ignored() {
    let rows = [
        ("a small archive", (SMALL_BYTES, "bytes=0-99", true)),
        ("a small archive without a length", (SMALL_BYTES, "bytes=0-99", false)),
        ("a large archive", (LARGE_BYTES, "bytes=0-99", true)),
        ("a large archive without a length", (LARGE_BYTES, "bytes=0-99", false)),
        ("beyond the end of a small archive", (SMALL_BYTES, "bytes=999999999-", true)),
    ];
    each_row(rows, async |(size, range, has_length)| {
        let (upstream, larder, path, bytes) = larder_with_archive(size).await;
        if !has_length {
            upstream.fault(Target::Archive, Fault::NoLength);
        }
        let whole = larder.get_with(&path, &[("range", range)]).await.expect(200);
        assert_eq!((whole.header("accept-ranges"), whole.header("content-range")), ("", ""));
        assert!(whole.body == bytes);
        larder.get_with(&path, &[("range", "bytes=0-99")]).await.expect(206);
    })
    .await;
}

#[tokio::test]
async fn archives_have_an_etag_and_an_unchanged_one_answers_304() {
    each_row(SIZES, async |size| {
        let (_upstream, larder, path, _bytes) = larder_with_archive(size).await;
        larder.get(&path).await.expect(200);
        let tag = larder.get(&path).await.expect(200).header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() > 20, "{tag}");
        for given in [tag.clone(), format!("\"x\", {tag}"), format!("W/{tag}"), "*".into()] {
            let answer = larder.get_with(&path, &[("if-none-match", &given)]).await.expect(304);
            assert!(answer.body.is_empty());
            assert_eq!(answer.header("etag"), tag, "{given}");
            assert!(answer.header("cache-control").contains("immutable"), "{given}");
            let head = head_with(&larder, &path, &[("if-none-match", &given)]).await.expect(304);
            // RFC 9110 8.6: a 304 may only carry the length that the 200 would have.
            assert_ne!(head.header("content-length"), "0", "{given}");
        }
        larder.get_with(&path, &[("if-none-match", "\"other\"")]).await.expect(200);
        // If-None-Match takes precedence over Range.
        larder.get_with(&path, &[("if-none-match", &tag), ("range", "bytes=0-4")]).await.expect(304);
    })
    .await;
}

/// RFC 9110 13.1.1, 13.1.4: a precondition that does not hold is 412.
#[tokio::test]
async fn if_match_and_if_unmodified_since_are_412_where_they_do_not_hold() {
    each_row(SIZES, async |size| {
        let (_upstream, larder, path, bytes) = larder_with_archive(size).await;
        let digest = sha256_hex(&bytes);
        let tag = format!("\"{digest}\"");
        let others = ["\"other\"".to_owned(), format!("W/{tag}")];
        for when in ["cold", "stored"] {
            for other in &others {
                let refused = larder.get_with(&path, &[("if-match", other)]).await.expect(412);
                assert!(refused.text().contains("If-Match") && refused.header("etag").is_empty(), "{when} {other}");
            }
            for given in [tag.clone(), format!("\"other\", {tag}"), "*".into()] {
                let answer = larder.get_with(&path, &[("if-match", &given)]).await.expect(200);
                assert!(answer.body == bytes, "{when} {given}");
            }
        }
        let modified = larder.head(&path).await.header("last-modified").to_owned();
        let (long_ago, since_modified) =
            (("if-unmodified-since", "Mon, 01 Jan 2001 00:00:00 GMT"), ("if-unmodified-since", &*modified));
        let (other, this, not_this) = (("if-match", "\"other\""), ("if-match", &*tag), ("if-none-match", &*tag));
        for (name, headers, status) in [
            ("If-Unmodified-Since that holds", &[since_modified][..], 200),
            ("If-Unmodified-Since that does not hold", &[long_ago], 412),
            ("If-Match that holds, before If-Unmodified-Since", &[long_ago, this], 200),
            ("If-Match that holds, then If-None-Match", &[this, not_this], 304),
            ("If-Match that does not hold, before If-None-Match", &[other, not_this], 412),
        ] {
            let answer = larder.get_with(&path, headers).await;
            assert_eq!(answer.status, status, "{name}: {}", answer.text());
        }
    })
    .await;
    let (_upstream, larder, _path, _bytes) = larder_with_archive(SMALL_BYTES).await;
    let tag = larder.get(&document_path()).await.expect(200).header("etag").to_owned();
    larder.get_with(&document_path(), &[("if-match", &tag)]).await.expect(200);
    larder.get_with(&document_path(), &[("if-match", "\"other\"")]).await.expect(412);
}

/// `wget -N` and file mirrors compare Last-Modified, which survives restarts.
#[tokio::test]
async fn the_last_modified_time_of_an_archive_is_that_of_its_first_commit() {
    each_row(SIZES, async |size| {
        let (upstream, larder, path, bytes) = larder_with_archive(size).await;
        let first = larder.get(&path).await.expect(200);
        assert_eq!(
            first.header("last-modified").is_empty(),
            size == LARGE_BYTES,
            "a large archive is not stored yet when its answer begins"
        );
        let stored = larder.get(&path).await.expect(200).header("last-modified").to_owned();
        let stored_at = httpdate::parse_http_date(&stored).unwrap();
        assert!(stored_at.elapsed().unwrap() < Duration::from_secs(600), "{stored}");
        assert_eq!(larder.get_with(&path, &[("range", "bytes=0-4")]).await.expect(206).header("last-modified"), stored);

        let unchanged = larder.get_with(&path, &[("if-modified-since", &stored)]).await.expect(304);
        assert_eq!((unchanged.header("last-modified"), unchanged.header("content-type")), (stored.as_str(), ""));
        assert_eq!(head_with(&larder, &path, &[("if-modified-since", &stored)]).await.status, 304);
        let before = httpdate::fmt_http_date(stored_at - Duration::from_secs(1));
        assert!(larder.get_with(&path, &[("if-modified-since", &before)]).await.expect(200).body == bytes);
        // If-None-Match takes precedence over If-Modified-Since; an invalid date is ignored.
        let headers = [("if-modified-since", stored.as_str()), ("if-none-match", "\"other\"")];
        larder.get_with(&path, &headers).await.expect(200);
        larder.get_with(&path, &[("if-modified-since", "yesterday")]).await.expect(200);
        let range = ("range", "bytes=0-4");
        larder.get_with(&path, &[range, ("if-range", &stored)]).await.expect(206);
        larder.get_with(&path, &[range, ("if-range", &before)]).await.expect(200);

        let clock = Clock::default();
        clock.advance(Duration::from_secs(100_000));
        let folder = larder.stop().await;
        let larder = Larder::mirroring(&upstream).store_at(&folder).clock(&clock).start().await;
        assert_eq!(larder.get(&path).await.expect(200).header("last-modified"), stored);
    })
    .await;
}

/// RFC 9110 15.4.5: a 304 does not repeat metadata that the client already has.
#[tokio::test]
async fn a_304_has_no_content_type() {
    let (_upstream, larder, path, _bytes) = larder_with_archive(SMALL_BYTES).await;
    larder.get(&path).await.expect(200);
    for path in [path, document_path(), versions_path()] {
        let tag = larder.get(&path).await.expect(200).header("etag").to_owned();
        let answer = larder.get_with(&path, &[("if-none-match", &tag)]).await.expect(304);
        assert_eq!((answer.header("content-type"), answer.header("etag")), ("", tag.as_str()), "{path}");
    }
}

#[tokio::test]
async fn the_gzip_form_of_a_document_has_its_own_tag_and_either_tag_matches() {
    let (_upstream, larder, _path, _bytes) = larder_with_archive(SMALL_BYTES).await;
    let plain = larder.get(&document_path()).await.expect(200);
    let gzip = larder.get_with(&document_path(), &[("accept-encoding", "br, gzip;q=0.5")]).await.expect(200);
    assert_eq!((plain.header("content-encoding"), gzip.header("content-encoding")), ("", "gzip"));
    assert_eq!((plain.header("vary"), gzip.header("vary")), ("Accept-Encoding", "Accept-Encoding"));
    assert_eq!(gzip.header("content-length"), gzip.body.len().to_string());
    let mut unpacked = Vec::new();
    GzDecoder::new(&gzip.body[..]).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain.body);
    let (plain_tag, gzip_tag) = (plain.header("etag"), gzip.header("etag"));
    assert_ne!(plain_tag, gzip_tag);
    for coding in ["identity", "gzip"] {
        for tag in [plain_tag, gzip_tag] {
            let headers = [("accept-encoding", coding), ("if-none-match", tag)];
            let answer = larder.get_with(&document_path(), &headers).await.expect(304);
            assert!(answer.body.is_empty());
            assert_eq!(answer.header("etag"), if coding == "gzip" { gzip_tag } else { plain_tag });
            assert_eq!(answer.header("vary"), "Accept-Encoding");
        }
        let headers = [("accept-encoding", coding), ("if-none-match", "\"other\"")];
        larder.get_with(&document_path(), &headers).await.expect(200);
    }
    let refused = larder.get_with(&document_path(), &[("accept-encoding", "gzip;q=0")]).await.expect(200);
    assert_eq!(refused.header("content-encoding"), "");
}

#[tokio::test]
async fn nothing_but_documents_is_offered_in_gzip() {
    let (_upstream, larder, path, bytes) = larder_with_archive(SMALL_BYTES).await;
    let sums = larder.document("null", "1.2.0").await.json()["shasums_url"].as_str().unwrap().to_owned();
    let rows = [("a cold archive", &path), ("a stored archive", &path), ("sums", &sums)];
    each_row(rows, async |path| {
        let answer = larder.get_with(path, &[("accept-encoding", "gzip")]).await.expect(200);
        assert_eq!((answer.header("content-encoding"), answer.header("vary")), ("", ""));
    })
    .await;
    assert!(larder.get_with(&path, &[("accept-encoding", "gzip")]).await.body == bytes);
}

#[tokio::test]
async fn a_documents_tag_changes_with_the_document() {
    let (upstream, larder, _path, _bytes) = larder_with_archive(SMALL_BYTES).await;
    let before = larder.versions("null").await.expect(200).header("etag").to_owned();
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    // Longer than the freshness lifetime of version lists.
    larder.clock.advance(std::time::Duration::from_secs(301));
    let answer = larder.get_with(&versions_path(), &[("if-none-match", &before)]).await.expect(200);
    assert!(answer.text().contains("1.3.0"));
    assert_ne!(answer.header("etag"), before);
}

#[tokio::test]
async fn documents_are_no_cache_and_digest_named_files_immutable() {
    let (_upstream, larder, path, _bytes) = larder_with_archive(SMALL_BYTES).await;
    let document = larder.document("null", "1.2.0").await.json();
    let file = |name: &str| document[name].as_str().unwrap().to_owned();
    for (path, expected, content_type) in [
        (versions_path(), "no-cache", "application/json"),
        (document_path(), "no-cache", "application/json"),
        (format!("/mirror/{HOST}/acme/null/index.json"), "no-cache", "application/json"),
        (format!("/mirror/{HOST}/acme/null/1.2.0.json"), "no-cache", "application/json"),
        (format!("/registry/{HOST}/.well-known/terraform.json"), "no-cache", "application/json"),
        (path, "immutable", "application/zip"),
        (file("shasums_url"), "immutable", "text/plain; charset=utf-8"),
        (file("shasums_signature_url"), "immutable", "application/octet-stream"),
    ] {
        let answer = larder.get(&path).await.expect(200);
        assert!(answer.header("cache-control").contains(expected), "{path}: {}", answer.header("cache-control"));
        assert_eq!(answer.header("content-type"), content_type, "{path}");
    }
}

#[tokio::test]
async fn cache_status_names_the_cache_outcome_of_each_answer() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = larder.archive_path("null", "1.2.0").await;
    assert_eq!(larder.get(&archive).await.expect(200).header("cache-status"), "larder; fwd=miss; stored");
    for path in [versions_path(), document_path(), archive.clone()] {
        assert_eq!(larder.get(&path).await.expect(200).header("cache-status"), "larder; hit", "{path}");
    }
    larder.clock.advance(std::time::Duration::from_secs(25 * 3600));
    assert_eq!(larder.versions("null").await.expect(200).header("cache-status"), "larder; fwd=stale; stored");
    larder.clock.advance(std::time::Duration::from_secs(25 * 3600));
    upstream.stop().await;
    for path in [versions_path(), document_path()] {
        assert_eq!(larder.get(&path).await.expect(200).header("cache-status"), "larder; hit; detail=stale", "{path}");
    }
    assert_eq!(larder.get(&archive).await.expect(200).header("cache-status"), "larder; hit");
    upstream.restart().await;
    upstream.withdraw("acme", "null", "1.2.0");
    // Longer than the backoff after a failed request.
    larder.clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(larder.document("null", "1.2.0").await.expect(200).header("cache-status"), "larder; hit; detail=gone");
}

#[tokio::test]
async fn the_first_answer_to_anything_is_a_miss() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    for path in [versions_path(), document_path(), format!("/registry/{HOST}/.well-known/terraform.json")] {
        let larder = Larder::mirroring(&upstream).start().await;
        assert_eq!(larder.get(&path).await.expect(200).header("cache-status"), "larder; fwd=miss; stored", "{path}");
    }
}

#[tokio::test]
async fn an_archive_that_upstream_sends_without_a_length_is_served_whole() {
    each_row(SIZES, async |size| {
        let (upstream, larder, path, bytes) = larder_with_archive(size).await;
        upstream.fault(Target::Archive, Fault::NoLength);
        let cold = larder.get(&path).await.expect(200);
        assert!(cold.body == bytes);
        let expected = if size == SMALL_BYTES { bytes.len().to_string() } else { String::new() };
        assert_eq!(cold.header("content-length"), expected, "the length that upstream did not send");
        let stored = larder.get(&path).await.expect(200);
        assert!(stored.body == bytes);
        assert_eq!(stored.header("content-length"), bytes.len().to_string());
        assert_eq!(upstream.count_of(Target::Archive), 1);
    })
    .await;
}

/// Promise 3: to an HTTP/1.0 client the end of the connection is the end of the body, so it waits for the whole
/// archive.
#[tokio::test]
async fn an_http_1_0_client_gets_the_whole_with_its_length() {
    let (upstream, larder, path, bytes) = larder_with_archive(LARGE_BYTES).await;
    upstream.fault(Target::Archive, Fault::NoLength);
    let answer = http_1_0_answer(&larder, &path).await;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("the end of the head") + 4;
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.0 200 ") || head.starts_with("http/1.1 200 "), "{head}");
    assert!(head.contains(&format!("content-length: {}\r\n", bytes.len())), "{head}");
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert!(answer[end..] == bytes);
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// Promise 3: without a length nothing of a wrong archive is sent to an HTTP/1.0 client.
#[tokio::test]
async fn an_http_1_0_client_gets_nothing_of_wrong_bytes_without_a_length() {
    let (upstream, larder, path, _bytes) = larder_with_archive(LARGE_BYTES).await;
    upstream.fault(Target::Archive, Fault::NoLength);
    upstream.fault(Target::Archive, Fault::WrongLastByte);
    let answer = http_1_0_answer(&larder, &path).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.lines().next().unwrap().contains(" 502 "), "{}", &text[..text.len().min(300)]);
    assert!(larder.folder.blobs().is_empty());
}

#[tokio::test]
async fn errors_are_json_and_name_the_package_the_upstream_and_the_cause() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    for (fault, status, cause) in [
        (Fault::Status(401), 502, "401"),
        (Fault::Status(403), 502, "403"),
        (Fault::Status(451), 502, "451"),
        (Fault::Status(501), 502, "501"),
        (Fault::RetryAfter(429, 3600), 503, "429"),
        (Fault::StatusBody(418, r#"{"errors":["I am a teapot"]}"#), 418, "I am a teapot"),
        (Fault::Html, 502, "JSON"),
        (Fault::InvalidJson, 502, "EOF"),
    ] {
        upstream.fault(Target::Versions, fault.clone());
        let answer = larder.versions("null").await;
        assert_eq!(answer.status, status, "{fault:?}: {}", answer.text());
        let error = error_text(&answer);
        assert!(error.contains(cause), "{fault:?}: {error}");
        assert!(
            error.contains(&format!("{HOST}/acme/null")) && error.contains(&upstream.origin()),
            "{fault:?}: {error}"
        );
        // Clients obey Retry-After without a cap (when they retry).
        assert_eq!(answer.header("retry-after"), "", "{fault:?}");
        upstream.clear_faults();
    }
    larder.versions("null").await.expect(200);
}

/// Promise 8: no query, path or userinfo of an upstream URL reaches a client.
#[tokio::test]
async fn no_path_or_query_of_an_upstream_url_is_in_an_error() {
    let mut upstream = FakeUpstream::builder().releases_elsewhere().signed_urls().start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let assert_names_no_secret = |answer: Answer, case: String| {
        assert!(answer.status >= 400, "{case}: {}", answer.status);
        let error = error_text(&answer);
        for secret in ["sig=", "/releases/", "/v1/providers", ".well-known", "hunter2", "s3cret", "?"] {
            assert!(!error.contains(secret), "{case}: {error}");
        }
    };
    let userinfo = "http://jane:hunter2@127.0.0.1:1/s3cret-path?token=s3cret";
    let query = "http://127.0.0.1:1/s3cret-path?token=s3cret";
    let faults = [
        Fault::Status(501),
        Fault::Status(403),
        Fault::Status(404),
        Fault::Status(418),
        Fault::RedirectLoop(302),
        Fault::RedirectTo(302, userinfo.into()),
        Fault::RedirectTo(302, query.into()),
        Fault::RedirectTo(302, "ftp://127.0.0.1/s3cret-path".into()),
    ];
    for target in [Target::Discovery, Target::Versions, Target::Document, Target::Sums, Target::Signature] {
        for fault in &faults {
            upstream.fault(target.clone(), fault.clone());
            let answer = if matches!(target, Target::Discovery | Target::Versions) {
                larder.versions("null").await
            } else {
                larder.document("null", "1.2.0").await
            };
            assert_names_no_secret(answer, format!("{target:?} {fault:?}"));
            upstream.clear_faults();
        }
    }
    larder.clock.advance(std::time::Duration::from_secs(3600));
    let path = larder.archive_path("null", "1.2.0").await;
    for fault in faults {
        upstream.fault(Target::Archive, fault.clone());
        assert_names_no_secret(larder.get(&path).await, format!("archive {fault:?}"));
        upstream.clear_faults();
    }
    upstream.stop_releases().await;
    assert_names_no_secret(larder.get(&path).await, "archive refused".into());
}

/// Promise 8: a client that is not allowed is refused with the reason; the health probes answer everyone.
#[tokio::test]
async fn only_the_configured_clients_are_answered() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream)
        .server("clients = [\"10.0.0.0/8\"]")
        .server("trusted_proxies = [\"127.0.0.1\", \"10.9.9.9\"]")
        .start()
        .await;
    for (forwarded, named) in [
        ("192.0.2.1", "192.0.2.1"),
        ("10.1.2.3, 192.0.2.1", "192.0.2.1"),
        ("10.1.2.3, 192.0.2.1, 10.9.9.9", "192.0.2.1"),
        ("nonsense", "nonsense"),
    ] {
        for path in [versions_path(), "/nowhere".to_owned(), "/registry/no.example/v1/providers/a/b/versions".into()] {
            let answer = larder.get_with(&path, &[("x-forwarded-for", forwarded)]).await;
            let status = if path == "/nowhere" { 403 } else { 421 };
            assert_eq!(answer.status, status, "{forwarded} {path}: {}", answer.text());
            let error = error_text(&answer);
            assert!(error.contains(named) && error.contains("[server] clients"), "{forwarded} {path}: {error}");
        }
    }
    larder.get(&versions_path()).await.expect(421);
    assert_eq!(upstream.count_of(Target::Everything), 0);
    for forwarded in ["10.1.2.3", "192.0.2.1, 10.1.2.3", "10.1.2.3, 10.9.9.9"] {
        let answer = larder.get_with(&versions_path(), &[("x-forwarded-for", forwarded)]).await;
        assert_eq!(answer.status, 200, "{forwarded}: {}", answer.text());
    }
    for probe in ["/healthz", "/readyz"] {
        larder.get(probe).await.expect(200);
    }
}

#[tokio::test]
async fn forwarded_headers_of_an_untrusted_peer_are_ignored() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).server("clients = [\"10.0.0.0/8\"]").start().await;
    let answer = larder.get_with(&versions_path(), &[("x-forwarded-for", "10.1.2.3")]).await.expect(421);
    assert!(error_text(&answer).contains("127.0.0.1"));
}
