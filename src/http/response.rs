//! Responses from replies and failures: headers, conditional and range requests, and the one mapping from errors to
//! statuses and JSON.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use serde::Serialize;

use super::body::Body;
use super::range::{RequestedRange, requested_range};
use super::reason_phrase;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::{Explanation, Kind, public_text};
use crate::mirror::{Archive, Outcome};
use crate::protocol::rendered::RenderedDocument;
use crate::protocol::route::{Api, Route, RouteError};
use crate::protocol::{Reply, ReplyContent, RequestFailure};
use crate::store::ReadShare;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const IMMUTABLE: HeaderValue = HeaderValue::from_static("max-age=31536000, immutable");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");
/// Larder's name in Cache-Status (RFC 9211).
pub const NAME: &str = "larder";

const X_TERRAFORM_GET: header::HeaderName = header::HeaderName::from_static("x-terraform-get");
const CACHE_STATUS: header::HeaderName = header::HeaderName::from_static("cache-status");

/// Read size for HTTP/2, in bytes: each stream may buffer one unread piece. HTTP/1 has one answer at a time and uses
/// larger pieces, which are cheaper.
const HTTP2_PIECE_BYTES: usize = 32 * 1024;

/// Builds the response for a reply; archive bytes stay in `memory` until the client has read them.
pub fn reply<B>(reply: Reply, route: &Route, request: &Request<B>, memory: &ReadShare) -> Response<Body> {
    let is_http2 = request.version() >= Version::HTTP_2;
    let memory = if is_http2 { memory.in_pieces_of(HTTP2_PIECE_BYTES) } else { memory.clone() };
    // An archive that was not stored at the time of the request has no ranges (DESIGN, promise 3).
    let allows_ranges = !matches!(reply.outcome, Some(Outcome::Miss | Outcome::PassedThrough));
    let conditions =
        RequestConditions { headers: request.headers(), allows_ranges, is_get: request.method() == Method::GET };
    let mut response = match reply.content {
        ReplyContent::Document(rendered) => document(&rendered, conditions.headers),
        ReplyContent::File(archive) => file(archive, route, conditions, memory),
        ReplyContent::Location(location) => no_content(&location),
        ReplyContent::Redirect(url) => redirect(&url),
        ReplyContent::Word { is_ready, text } => {
            plain_text(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
        }
    };
    if let Some(outcome) = reply.outcome {
        response.headers_mut().insert(CACHE_STATUS, HeaderValue::from_static(cache_status(outcome)));
    }
    response
}

/// Value of Cache-Status (RFC 9211).
fn cache_status(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Hit => "larder; hit",
        Outcome::Miss => "larder; fwd=miss; stored",
        Outcome::Pending | Outcome::PassedThrough => "larder; fwd=miss",
        Outcome::Revalidated => "larder; fwd=stale; stored",
        Outcome::Stale => "larder; hit; detail=stale",
        Outcome::Gone => "larder; hit; detail=gone",
    }
}

fn content_type(route: &Route) -> HeaderValue {
    let name = match route {
        Route::ProviderFile(target) => target.filename.as_str(),
        Route::ProofFile(target) => target.file.name(),
        Route::ModuleArchive(_) => return HeaderValue::from_static("application/gzip"),
        _ => "",
    };
    HeaderValue::from_static(match name {
        name if name.ends_with(".zip") => "application/zip",
        "SHA256SUMS" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    })
}

/// Cache-Control of a file: immutable where its URL contains its digest.
fn cache_control(route: &Route) -> HeaderValue {
    match route {
        Route::ModuleArchive(target) if target.digest.is_none() => NO_CACHE,
        _ => IMMUTABLE,
    }
}

/// Responds to a module download with 204 and the location in a header, which every client reads (PROTOCOL, section
/// 4.3).
fn no_content(location: &str) -> Response<Body> {
    let mut response = status(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    match HeaderValue::from_str(location) {
        Ok(location) => headers.insert(X_TERRAFORM_GET, location),
        Err(_) => {
            let reason = "the location of this module has characters that no HTTP header can carry".to_owned();
            return errors(StatusCode::BAD_GATEWAY, vec![reason]);
        }
    };
    headers.insert(header::CACHE_CONTROL, NO_CACHE);
    response
}

/// Redirects to the download of the latest version (seed 002). Temporary, so clients ask again each time.
fn redirect(url: &str) -> Response<Body> {
    let mut response = status(StatusCode::FOUND);
    insert(response.headers_mut(), header::LOCATION, url);
    response.headers_mut().insert(header::CACHE_CONTROL, NO_CACHE);
    response
}

fn document(rendered: &RenderedDocument, request_headers: &HeaderMap) -> Response<Body> {
    let gzip = rendered.gzip.as_ref().filter(|_| accepts_gzip(request_headers));
    let both_tags = [&rendered.tag, &rendered.gzip_tag];
    let tag = if gzip.is_some() { &rendered.gzip_tag } else { &rendered.tag };
    let mut response = match precondition(request_headers, |given| both_tags.iter().any(|tag| *tag == given), None) {
        Precondition::Failed => return precondition_failed(),
        Precondition::NotModified => status(StatusCode::NOT_MODIFIED),
        Precondition::Met => {
            let mut response = Response::new(Body::full(gzip.unwrap_or(&rendered.body).clone()));
            response.headers_mut().insert(header::CONTENT_TYPE, JSON);
            if gzip.is_some() {
                response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_maybe_shared(tag.clone()) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, NO_CACHE);
    if rendered.gzip.is_some() {
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// Result of the preconditions of a GET or HEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precondition {
    /// All preconditions hold, or there are none.
    Met,
    /// The client has this version of the content already: 304.
    NotModified,
    /// The client requires another version of the content: 412.
    Failed,
}

/// Evaluates the preconditions of a request in the order of RFC 9110 13.2.2. `is_tag` compares an entity tag, quotes
/// included, with that of the answer.
fn precondition(headers: &HeaderMap, is_tag: impl Fn(&str) -> bool, modified: Option<Timestamp>) -> Precondition {
    let date = |name| Some(Timestamp::of(httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()?));
    let not_after = |date: Option<Timestamp>| modified.zip(date).map(|(modified, date)| modified <= date);
    // A weak tag never matches here (RFC 9110 8.8.3.2).
    let matches = any_tag(headers, header::IF_MATCH, |given| is_tag(given));
    let is_met = matches.or_else(|| not_after(date(header::IF_UNMODIFIED_SINCE))).unwrap_or(true);
    if !is_met {
        return Precondition::Failed;
    }
    let is_cached_by_client = any_tag(headers, header::IF_NONE_MATCH, |given| is_tag(given.trim_start_matches("W/")));
    match is_cached_by_client.or_else(|| not_after(date(header::IF_MODIFIED_SINCE))) {
        Some(true) => Precondition::NotModified,
        Some(false) | None => Precondition::Met,
    }
}

/// Returns true if an entity tag in the header `matches`, or the header is `*`; `None` without the header.
fn any_tag(headers: &HeaderMap, name: header::HeaderName, matches: impl Fn(&str) -> bool) -> Option<bool> {
    let mut values = headers.get_all(name).into_iter().peekable();
    values.peek()?;
    let mut tags = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim);
    Some(tags.any(|given| given == "*" || matches(given)))
}

fn precondition_failed() -> Response<Body> {
    let reason = "the content is not the version that If-Match or If-Unmodified-Since requires: repeat the request without that header";
    errors(StatusCode::PRECONDITION_FAILED, vec![reason.into()])
}

/// Request headers, and the facts that decide whether a range is served: only a GET of a stored archive has ranges
/// (RFC 9110 14.2).
#[derive(Clone, Copy)]
struct RequestConditions<'a> {
    headers: &'a HeaderMap,
    allows_ranges: bool,
    is_get: bool,
}

fn file(archive: Archive, route: &Route, conditions: RequestConditions<'_>, memory: ReadShare) -> Response<Body> {
    let mut response = match archive {
        // Not verified yet: no range and no tag, so that an incomplete file cannot look complete.
        Archive::Arriving { .. } | Archive::PassedThrough { .. } if expects_other_digest(route, conditions.headers) => {
            return precondition_failed();
        }
        Archive::Arriving { follow, length } => Response::new(Body::stream(follow.stream(memory), length)),
        Archive::PassedThrough { passing, length } => Response::new(Body::stream(passing.stream(), length)),
        Archive::InMemory { bytes, digest, stored } => {
            let size_bytes = bytes.len() as u64;
            stored_archive_response(Validators::of(digest, stored), size_bytes, conditions, |start, end| {
                // The range lies within the bytes, whose length fits a usize.
                Body::full(bytes.slice(start as usize..end as usize))
            })
        }
        Archive::OnDisk { blob, digest, stored } => {
            let size_bytes = blob.size_bytes();
            stored_archive_response(Validators::of(digest, Some(stored)), size_bytes, conditions, |start, end| {
                Body::stream(blob.stream(start..end, memory), Some(end - start))
            })
        }
    };
    let has_content = response.status() != StatusCode::NOT_MODIFIED;
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(cache_control(route));
    if has_content && !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, content_type(route));
    }
    response
}

/// Returns true if If-Match names another digest than the URL, which has the first digits of the digest.
fn expects_other_digest(route: &Route, headers: &HeaderMap) -> bool {
    let digest = match route {
        Route::ProviderFile(target) => Some(&target.digest),
        Route::ModuleArchive(target) => target.digest.as_ref(),
        _ => None,
    };
    let is_tag = |given: &str| digest.is_some_and(|digest| given.trim_matches('"').starts_with(&digest.to_string()));
    any_tag(headers, header::IF_MATCH, is_tag) == Some(false)
}

/// Validators of a file (RFC 9110 8.8).
struct Validators {
    tag: String,
    modified: Option<Timestamp>,
}

impl Validators {
    fn of(digest: Digest, modified: Option<Timestamp>) -> Self {
        Self { tag: format!("\"{digest}\""), modified }
    }

    fn last_modified(&self) -> Option<String> {
        self.modified.map(Timestamp::http_date)
    }

    /// Evaluates If-Range (RFC 9110 13.1.5).
    fn is_if_range(&self, given: &HeaderValue) -> bool {
        let given = given.as_bytes();
        given == self.tag.as_bytes() || self.last_modified().is_some_and(|modified| given == modified.as_bytes())
    }
}

/// Answers conditional and range requests (RFC 9110 13, 14), for stored and verified content only.
fn stored_archive_response(
    validators: Validators,
    size_bytes: u64,
    conditions: RequestConditions<'_>,
    body: impl FnOnce(u64, u64) -> Body,
) -> Response<Body> {
    let mut response = match precondition(conditions.headers, |given| given == validators.tag, validators.modified) {
        Precondition::Failed => return precondition_failed(),
        Precondition::NotModified => status(StatusCode::NOT_MODIFIED),
        Precondition::Met => {
            let if_range = conditions.headers.get(header::IF_RANGE);
            let applies = conditions.allows_ranges
                && conditions.is_get
                && if_range.is_none_or(|given| validators.is_if_range(given));
            let range = conditions.headers.get(header::RANGE).filter(|_| applies).and_then(|range| range.to_str().ok());
            match range.map_or(RequestedRange::Whole, |range| requested_range(range, size_bytes)) {
                RequestedRange::Whole => Response::new(body(0, size_bytes)),
                RequestedRange::Part(start, end) => {
                    let mut response = Response::new(body(start, end));
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                    insert(
                        response.headers_mut(),
                        header::CONTENT_RANGE,
                        &format!("bytes {start}-{}/{size_bytes}", end - 1),
                    );
                    response
                }
                RequestedRange::Beyond => {
                    let reason = format!("the range lies beyond the file, which has {size_bytes} bytes");
                    let mut response = errors(StatusCode::RANGE_NOT_SATISFIABLE, vec![reason]);
                    insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size_bytes}"));
                    response
                }
            }
        }
    };
    let headers = response.headers_mut();
    insert(headers, header::ETAG, &validators.tag);
    if let Some(modified) = validators.last_modified() {
        insert(headers, header::LAST_MODIFIED, &modified);
    }
    if conditions.allows_ranges {
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    response
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameter) = coding.split_once(';').unwrap_or((coding, ""));
        let is_refused =
            parameter.trim().strip_prefix("q=").is_some_and(|q| q.trim().parse::<f32>().is_ok_and(|q| q == 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

/// The one mapping from failures to statuses. The statuses are chosen so that clients show the reason phrase where they
/// can (PROTOCOL, section 10).
pub(super) fn failure_status(failure: &RequestFailure, api: Api) -> StatusCode {
    let error = match failure {
        RequestFailure::NoRoute(RouteError::Malformed(_)) => return StatusCode::BAD_REQUEST,
        RequestFailure::NoRoute(RouteError::Unknown(_)) => return StatusCode::NOT_FOUND,
        RequestFailure::NoRoute(RouteError::UnknownHost(_)) => return unknown_host_status(api),
        RequestFailure::NoRoute(RouteError::Misdirected { api, .. }) => return refusal_status(*api),
        RequestFailure::Mirror(error) => error,
    };
    match error.kind() {
        Kind::NotAnUpstream => unknown_host_status(api),
        Kind::NotFound => StatusCode::NOT_FOUND,
        // Never 401 or 403: clients would blame their own token.
        Kind::BadUpstream => StatusCode::BAD_GATEWAY,
        Kind::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Slow => StatusCode::GATEWAY_TIMEOUT,
        Kind::Rejected(status) => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
        Kind::Looped => StatusCode::LOOP_DETECTED,
        Kind::OurFault => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn unknown_host_status(api: Api) -> StatusCode {
    match api {
        Api::Registry => refusal_status(api),
        // With 404 the client goes on to its other installation methods.
        Api::NetworkMirror | Api::Archive | Api::Other => StatusCode::NOT_FOUND,
    }
}

/// The status of a permanent refusal.
pub(super) fn refusal_status(api: Api) -> StatusCode {
    match api {
        // Clients show the text of 421 after one attempt. They replace the texts of 401, 403 and 404 by their own.
        Api::Registry => StatusCode::MISDIRECTED_REQUEST,
        // On the network mirror, clients show the text of 5xx only.
        Api::NetworkMirror => StatusCode::SERVICE_UNAVAILABLE,
        Api::Archive | Api::Other => StatusCode::FORBIDDEN,
    }
}

/// Responds to a failure.
pub(super) fn failure(failure: &RequestFailure, api: Api) -> Response<Body> {
    explained(failure_status(failure, api), &failure.explain())
}

/// The text of a failure for the log, without secrets. It may contain paths of this machine.
pub(super) fn log_text(failure: &RequestFailure) -> String {
    public_text(&failure.to_string())
}

/// Responds with an error: the body has subject, cause and remedy, the reason phrase cause and remedy.
pub(super) fn explained(status_code: StatusCode, reason: &Explanation) -> Response<Body> {
    let mut response = errors(status_code, vec![reason.to_string()]);
    if let Some(phrase) = reason_phrase::phrase(reason) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// Responds with errors in the registries' JSON form. The reason phrase has the first.
pub(super) fn errors(status_code: StatusCode, errors: Vec<String>) -> Response<Body> {
    #[derive(Serialize)]
    struct ErrorBody {
        errors: Vec<String>,
    }
    let errors: Vec<String> = errors.iter().map(|error| public_text(error)).collect();
    let phrase = errors.first().and_then(|first| reason_phrase::phrase(&Explanation::of(first)));
    let mut response = json(status_code, &ErrorBody { errors });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The header marks the error as larder's own, not upstream's.
    response.headers_mut().insert(CACHE_STATUS, HeaderValue::from_static(NAME));
    if let Some(phrase) = phrase {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// A successful answer with a body of this type.
pub(super) fn of_type(body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Responds with a value as JSON.
pub(super) fn json(status_code: StatusCode, value: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(value).unwrap_or_else(|_| b"{\"errors\":[]}".to_vec());
    let mut response = Response::new(Body::full(Bytes::from(body)));
    *response.status_mut() = status_code;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// Responds with a short text.
pub(super) fn plain_text(status_code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::full(text.into()));
    *response.status_mut() = status_code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn status(status_code: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status_code;
    response
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
