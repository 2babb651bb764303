//! Range and conditional headers: a range response has exactly the requested bytes, and only a stored archive offers
//! ranges (promise 3). Lines of the input are headers; the line `HEAD` sets the method, the line `miss` sets the cache
//! outcome.
#![no_main]

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use larder::clock::Timestamp;
use larder::digest::Digest;
use larder::http::Body;
use larder::http::response::reply;
use larder::mirror::{Archive, Outcome};
use larder::protocol::rendered::RenderedDocument;
use larder::protocol::route::Route;
use larder::protocol::{Reply, ReplyContent};
use larder::store::ReadBudget;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().build().expect("a runtime"));
static BYTES: LazyLock<Bytes> = LazyLock::new(|| (0..=255).cycle().take(300).collect::<Vec<u8>>().into());
static DOCUMENT: LazyLock<Arc<RenderedDocument>> =
    LazyLock::new(|| Arc::new(RenderedDocument::new(br#"{"versions":[{"version":"1.0.0"}]}"#.repeat(60))));

fuzz_target!(|input: &[u8]| {
    let mut request = Request::new(());
    let mut outcome = Outcome::Hit;
    for line in input.split(|byte| *byte == b'\n').take(16) {
        match line {
            b"HEAD" => *request.method_mut() = Method::HEAD,
            b"miss" => outcome = Outcome::Miss,
            _ => add(request.headers_mut(), line),
        }
    }
    check_archive(&request, outcome);
    check_document(&request, outcome);
});

/// When the archive was stored.
const STORED: Timestamp = Timestamp(1000);

fn check_archive(request: &Request<()>, outcome: Outcome) {
    let digest = Digest::of(&BYTES);
    let content = ReplyContent::File(Archive::InMemory { bytes: BYTES.clone(), digest, stored: Some(STORED) });
    let (parts, body) = respond(content, outcome, request);
    let text = |name| parts.headers.get(name).map(|value: &HeaderValue| value.to_str().expect("our own text"));
    let offers_ranges = outcome != Outcome::Miss;
    if parts.status == StatusCode::PRECONDITION_FAILED {
        let conditions = [header::IF_MATCH, header::IF_UNMODIFIED_SINCE];
        assert!(conditions.iter().any(|name| request.headers().contains_key(name)) && text(header::ETAG).is_none());
        return;
    }
    assert_eq!(text(header::LAST_MODIFIED), Some("Thu, 01 Jan 1970 00:16:40 GMT"));
    assert_eq!(text(header::ETAG), Some(format!("\"{digest}\"").as_str()));
    assert_eq!(text(header::ACCEPT_RANGES).is_some(), offers_ranges);
    match parts.status {
        StatusCode::OK => assert!(body == *BYTES),
        StatusCode::NOT_MODIFIED => {
            let conditions = [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];
            assert!(body.is_empty() && conditions.iter().any(|name| request.headers().contains_key(name)));
            assert!(text(header::CONTENT_TYPE).is_none());
        }
        StatusCode::PARTIAL_CONTENT => {
            assert!(offers_ranges && request.method() == Method::GET && request.headers().contains_key(header::RANGE));
            let range = text(header::CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes ")).expect("a range");
            let (first, last) = range.strip_suffix("/300").and_then(|range| range.split_once('-')).expect("of 300");
            let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
            assert!(first <= last && last < 300, "{range}");
            assert!(body == BYTES.slice(first..=last), "{range}");
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            assert!(offers_ranges && request.method() == Method::GET);
            assert_eq!(text(header::CONTENT_RANGE), Some("bytes */300"));
        }
        other => panic!("{other}"),
    }
}

fn check_document(request: &Request<()>, outcome: Outcome) {
    let (parts, body) = respond(ReplyContent::Document(Arc::clone(&DOCUMENT)), outcome, request);
    let is_gzip = parts.headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "gzip");
    let full_body = if is_gzip { DOCUMENT.gzip.clone().expect("there is a gzip form") } else { DOCUMENT.body.clone() };
    if parts.status == StatusCode::PRECONDITION_FAILED {
        return assert!(request.headers().contains_key(header::IF_MATCH));
    }
    assert!(parts.headers.contains_key(header::ETAG));
    match parts.status {
        StatusCode::OK => assert!(body == full_body),
        StatusCode::NOT_MODIFIED => {
            assert!(body.is_empty() && request.headers().contains_key(header::IF_NONE_MATCH));
        }
        other => panic!("{other}"),
    }
    assert!(!is_gzip || request.headers().contains_key(header::ACCEPT_ENCODING));
}

fn respond(content: ReplyContent, outcome: Outcome, request: &Request<()>) -> (http::response::Parts, Bytes) {
    let (content_reply, memory) =
        (Reply { content, outcome: Some(outcome), age: None }, ReadBudget::new(1 << 20).share());
    let response: Response<Body> = reply(content_reply, &Route::Health, request, &memory);
    let (parts, body) = response.into_parts();
    let announced = http_body::Body::size_hint(&body).exact();
    let body = RUNTIME.block_on(body.collect()).expect("bytes at hand").to_bytes();
    assert_eq!(announced, Some(body.len() as u64));
    (parts, body)
}

fn add(headers: &mut HeaderMap, line: &[u8]) {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
        headers.append(name, value);
    }
}
