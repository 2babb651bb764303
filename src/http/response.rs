//! Responses from replies and failures: headers, conditional and range requests, and the JSON and reason phrases of
//! errors, with a status that suits the client protocol.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::ext::ReasonPhrase;
use serde::Serialize;

use super::body::Body;
use super::page;
use crate::answer_json;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::explanation::{Explanation, safe_text};
use crate::mirror::{Archive, Outcome, tail_stream};
use crate::protocol::explain::HttpAnswers;
use crate::protocol::rendered::{CACHE_STATUS, HIT, NO_CACHE, RenderedDocument};
use crate::protocol::route::{Api, Route, RouteError};
use crate::protocol::{Reply, ReplyContent, RequestFailure, VariesBy};
use crate::store::ReadShare;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const IMMUTABLE: HeaderValue = HeaderValue::from_static("max-age=31536000, immutable");
const PRIVATE_IMMUTABLE: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const PRIVATE: HeaderValue = HeaderValue::from_static("private, no-cache");
/// Larder's name in Cache-Status (RFC 9211).
pub const NAME: &str = "larder";

const X_TERRAFORM_GET: header::HeaderName = header::HeaderName::from_static("x-terraform-get");

/// Builds the response for a reply; archive bytes stay in `read_memory`, a share of the
/// memory for reads, until the client has read them.
pub fn reply<B>(reply: Reply, route: &Route, request: &Request<B>, read_memory: &ReadShare) -> Response<Body> {
    // An archive that was not stored at the time of the request has no ranges (promise 3).
    let allows_ranges = !matches!(reply.outcome, Some(Outcome::Miss | Outcome::PassedThrough));
    let conditions =
        RequestConditions { headers: request.headers(), allows_ranges, is_get: request.method() == Method::GET };
    let mut response = match reply.content {
        ReplyContent::Document(rendered) => document(&rendered, conditions.headers),
        ReplyContent::File(archive) => file(archive, route, conditions, read_memory.clone()),
        ReplyContent::Location(location) => no_content(&location),
        ReplyContent::Redirect(url) => redirect(&url),
        ReplyContent::Home(config) => page::home(&config),
        ReplyContent::Health { is_ready, text } => {
            plain_text(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
        }
    };
    let is_rendered = response.headers().contains_key(CACHE_STATUS);
    if let Some(outcome) = reply.outcome.filter(|outcome| !(is_rendered && *outcome == Outcome::Hit)) {
        response.headers_mut().insert(CACHE_STATUS, HeaderValue::from_static(cache_status(outcome)));
    }
    response
}

/// Tells shared caches which requests get this answer (RFC 9110 12.5.5, RFC 9111 5.2.2.7).
pub(super) fn set_vary(headers: &mut HeaderMap, varies_by: VariesBy) {
    let offers_gzip = headers.contains_key(header::VARY);
    let names = match (varies_by, offers_gzip) {
        (VariesBy::Nothing, _) => return,
        (VariesBy::Client, _) => {
            let of_all = headers.get(header::CACHE_CONTROL);
            let of_one = if of_all == Some(&IMMUTABLE) { PRIVATE_IMMUTABLE } else { PRIVATE };
            headers.insert(header::CACHE_CONTROL, of_one);
            return;
        }
        // Any header that a proxy adds may count, so no list of names is complete.
        (VariesBy::Origin, _) => {
            if headers.get(header::CACHE_CONTROL) == Some(&NO_CACHE) {
                headers.insert(header::CACHE_CONTROL, PRIVATE);
            }
            return;
        }
        (VariesBy::Host, false) => "Host",
        (VariesBy::Host, true) => "Accept-Encoding, Host",
        (VariesBy::Proxies, false) => "CDN-Loop",
        (VariesBy::Proxies, true) => "Accept-Encoding, CDN-Loop",
    };
    headers.insert(header::VARY, HeaderValue::from_static(names));
}

/// Says of what is stored that others may have changed it.
pub(super) fn note_behind(headers: &mut HeaderMap) {
    if headers.get(CACHE_STATUS).is_some_and(|status| status.as_bytes().starts_with(HIT.as_bytes())) {
        headers.insert(CACHE_STATUS, HeaderValue::from_static("larder; hit; detail=behind"));
    }
}

/// Value of Cache-Status (RFC 9211).
fn cache_status(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Hit => HIT,
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

/// Responds to a module download with 204 and the location in a header, which every client reads (module registry
/// protocol).
fn no_content(location: &str) -> Response<Body> {
    let Ok(location) = HeaderValue::from_str(location) else {
        let reason = "the location of this module has characters that no HTTP header can carry".to_owned();
        return errors(StatusCode::BAD_GATEWAY, vec![reason]);
    };
    let headers = [(X_TERRAFORM_GET, location), (header::CACHE_CONTROL, NO_CACHE)];
    with_headers(StatusCode::NO_CONTENT, Body::empty(), headers)
}

/// Redirects to the download of the latest version, as the registry's HTTP API does. Temporary, so clients ask again each time.
fn redirect(url: &str) -> Response<Body> {
    let mut response = with_headers(StatusCode::FOUND, Body::empty(), [(header::CACHE_CONTROL, NO_CACHE)]);
    insert(response.headers_mut(), header::LOCATION, url);
    response
}

fn document(rendered: &RenderedDocument, request_headers: &HeaderMap) -> Response<Body> {
    let gzip = rendered.gzip.as_ref();
    let form = gzip.filter(|_| accepts_gzip(request_headers)).unwrap_or(&rendered.plain);
    // A client may have either form.
    let is_tag = |given: &str| rendered.plain.tag == given || gzip.is_some_and(|gzip| gzip.tag == given);
    let response = |status, body, headers| {
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    };
    match precondition(request_headers, is_tag, None) {
        Precondition::Failed => precondition_failed(),
        Precondition::NotModified => {
            let mut headers = form.headers.clone();
            [header::CONTENT_TYPE, header::CONTENT_ENCODING].into_iter().for_each(|name| drop(headers.remove(name)));
            response(StatusCode::NOT_MODIFIED, Body::empty(), headers)
        }
        Precondition::Met => response(StatusCode::OK, Body::full(form.body.clone()), form.headers.clone()),
    }
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

/// The headers with preconditions (RFC 9110 13.1).
const CONDITIONS: [header::HeaderName; 4] =
    [header::IF_MATCH, header::IF_UNMODIFIED_SINCE, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];

/// Evaluates the preconditions of a request in the order of RFC 9110 13.2.2. `is_tag` compares an entity tag, quotes
/// included, with that of the answer.
fn precondition(headers: &HeaderMap, is_tag: impl Fn(&str) -> bool, modified: Option<Timestamp>) -> Precondition {
    // Most requests have none, and one look at the names is faster than four searches.
    if !headers.keys().any(|name| CONDITIONS.contains(name)) {
        return Precondition::Met;
    }
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
        Archive::Arriving { progress, length } => {
            Response::new(Body::stream(tail_stream(progress, length, memory), length))
        }
        Archive::PassedThrough { passing, length } => Response::new(Body::stream(passing.stream(), length)),
        Archive::InMemory { bytes, digest, stored } => {
            let size_bytes = bytes.len() as u64;
            stored_archive_response(digest, stored, size_bytes, conditions, |start, end| {
                // The range lies within the bytes, whose length fits a usize.
                Body::full(bytes.slice(start as usize..end as usize))
            })
        }
        Archive::OnDisk { blob, digest, stored } => {
            let size_bytes = blob.size_bytes();
            stored_archive_response(digest, Some(stored), size_bytes, conditions, |start, end| {
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

/// Answers conditional and range requests (RFC 9110 13, 14) with the validators of a file (RFC 9110 8.8), for stored and verified content only.
fn stored_archive_response(
    digest: Digest,
    modified: Option<Timestamp>,
    size_bytes: u64,
    conditions: RequestConditions<'_>,
    body: impl FnOnce(u64, u64) -> Body,
) -> Response<Body> {
    let (tag, last_modified) = (format!("\"{digest}\""), modified.map(Timestamp::http_date));
    let mut response = match precondition(conditions.headers, |given| given == tag, modified) {
        Precondition::Failed => return precondition_failed(),
        Precondition::NotModified => with_headers(StatusCode::NOT_MODIFIED, Body::empty(), []),
        Precondition::Met => {
            let if_range = conditions.headers.get(header::IF_RANGE);
            let is_validator =
                |given: &HeaderValue| *given == tag || last_modified.as_ref().is_some_and(|date| given == date);
            let applies = conditions.allows_ranges && conditions.is_get && if_range.is_none_or(is_validator);
            let range = conditions.headers.get(header::RANGE).filter(|_| applies).and_then(|range| range.to_str().ok());
            match range.map_or(RequestedRange::Whole, |range| requested_range(range, size_bytes)) {
                RequestedRange::Whole => Response::new(body(0, size_bytes)),
                RequestedRange::Part(start, end) => {
                    let mut response = with_headers(StatusCode::PARTIAL_CONTENT, body(start, end), []);
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
    insert(headers, header::ETAG, &tag);
    if let Some(date) = last_modified {
        insert(headers, header::LAST_MODIFIED, &date);
    }
    if conditions.allows_ranges {
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    response
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    // Terraform and OpenTofu send exactly this.
    if headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value == "gzip") {
        return true;
    }
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameter) = coding.split_once(';').unwrap_or((coding, ""));
        let is_refused =
            parameter.trim().strip_prefix("q=").is_some_and(|q| q.trim().parse::<f32>().is_ok_and(|q| q == 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

/// The status of a failure. The statuses are chosen so that clients show the reason phrase where they can (client
/// behaviour).
pub(super) fn failure_status(failure: &RequestFailure, api: Api) -> StatusCode {
    match failure {
        RequestFailure::NoRoute(RouteError::Malformed(_)) => StatusCode::BAD_REQUEST,
        RequestFailure::NoRoute(RouteError::Unknown(_)) => StatusCode::NOT_FOUND,
        RequestFailure::NoRoute(RouteError::UnknownHost(_)) | RequestFailure::Mirror(Error::UnknownHost(_)) => {
            unknown_host_status(api)
        }
        RequestFailure::NoRoute(RouteError::Misdirected { api, .. }) => refusal_status(*api),
        RequestFailure::Mirror(Error::Refused { .. }) => refusal_status(api),
        RequestFailure::Mirror(error) => error.status(),
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

/// Responds to a failure: the body has subject, cause and remedy, the reason phrase cause and remedy.
pub(super) fn failure(failure: &RequestFailure, api: Api) -> Response<Body> {
    let reason = failure.explain();
    error_response(failure_status(failure, api), vec![safe_text(&reason.to_string())], Some(&reason))
}

/// The answer of this file, for explanations.
pub(super) const HTTP_ANSWERS: HttpAnswers = HttpAnswers {
    failure: |failure, api| (failure_status(failure, api).as_u16(), phrase_text(&failure.explain())),
    cache_status,
};

/// The text of a failure for the log, without secrets. It may contain paths of this machine.
pub(super) fn log_text(failure: &RequestFailure) -> String {
    safe_text(&failure.to_string())
}

/// Responds with errors in the registries' JSON form. The reason phrase has the first.
pub(super) fn errors(status_code: StatusCode, errors: Vec<String>) -> Response<Body> {
    let errors: Vec<String> = errors.iter().map(|error| safe_text(error)).collect();
    let first = errors.first().map(Explanation::of);
    error_response(status_code, errors, first.as_ref())
}

fn error_response(status_code: StatusCode, errors: Vec<String>, reason: Option<&Explanation>) -> Response<Body> {
    let mut response = json(status_code, &BTreeMap::from([("errors", errors)]));
    response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    // The header marks the error as larder's own, not upstream's.
    response.headers_mut().insert(CACHE_STATUS, HeaderValue::from_static(NAME));
    if let Some(Ok(phrase)) = reason.map(|reason| ReasonPhrase::try_from(phrase_text(reason).into_bytes())) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// A successful answer with a body of this type.
pub(super) fn of_type(body: Body, content_type: &'static str) -> Response<Body> {
    with_headers(StatusCode::OK, body, [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))])
}

/// Responds with a value as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let body = answer_json::to_vec(value).unwrap_or_else(|_| b"{\"errors\":[]}".to_vec());
    with_headers(status, Body::full(Bytes::from(body)), [(header::CONTENT_TYPE, JSON)])
}

/// Responds with a short text.
pub(super) fn plain_text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, NO_STORE)];
    with_headers(status, Body::full(text.into()), headers)
}

fn with_headers<const N: usize>(
    status: StatusCode,
    body: Body,
    headers: [(header::HeaderName, HeaderValue); N],
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().extend(headers);
    response
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// A parsed Range header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestedRange {
    /// The whole file; also for an invalid header, or one with several ranges.
    Whole,
    /// The bytes from the first offset up to, but not including, the second.
    Part(u64, u64),
    /// Beyond the end of the file.
    Beyond,
}

/// Reads a Range header for a file of `size` bytes.
fn requested_range(header: &str, size: u64) -> RequestedRange {
    let Some(range) = header.trim().strip_prefix("bytes=") else { return RequestedRange::Whole };
    let Some((first, last)) = range.split_once('-') else { return RequestedRange::Whole };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = (first.trim(), last.trim());
    let (start, end) = match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => (size - suffix.min(size), size),
        (Some(first), _) if last.is_empty() => (first, size),
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        _ => return RequestedRange::Whole,
    };
    if start < end { RequestedRange::Part(start, end) } else { RequestedRange::Beyond }
}

/// Length limit in bytes. A longer phrase would bury the rest of the client's output.
const MAX_PHRASE_BYTES: usize = 200;
const PREFIX: &str = "larder: ";
const ELLIPSIS: &str = "...";

/// Returns the reason phrase of an error in printable ASCII: `larder: CAUSE (REMEDY)`. A client's own sentence goes on after it.
/// Cuts the cause if the phrase is too long, so that the remedy stays.
fn phrase_text(reason: &Explanation) -> String {
    // `https://` is the usual scheme and carries no information.
    let mut cause = printable(&reason.cause).replace("https://", "");
    let remedy = reason.remedy.as_deref().map(|remedy| format!(" ({})", printable(remedy))).unwrap_or_default();
    let width = MAX_PHRASE_BYTES - PREFIX.len();
    // A remedy that leaves no space for the cause is dropped.
    let remedy = if remedy.len() <= width / 2 || cause.len() + remedy.len() <= width { remedy } else { String::new() };
    if cause.len() > width - remedy.len() {
        cause.truncate(width - remedy.len() - ELLIPSIS.len());
        cause.push_str(ELLIPSIS);
    }
    format!("{PREFIX}{cause}{remedy}")
}

fn printable(text: &str) -> String {
    let text = safe_text(text);
    let character = |character: char| match character {
        '\u{2026}' => ELLIPSIS.to_owned(),
        character if character.is_ascii_graphic() => character.to_string(),
        character if character.is_whitespace() || character.is_control() => " ".to_owned(),
        _ => "?".to_owned(),
    };
    let characters: String = text.chars().map(character).collect();
    characters.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::address::Hostname;
    use crate::error::Error;
    use crate::store::StoreError;
    use crate::upstream::egress_policy::EgressRefusal;
    use crate::upstream::error::{Fault, UpstreamError};

    #[test]
    fn ranges_are_parsed_as_in_rfc_9110() {
        for (header, range) in [
            ("bytes=0-4", RequestedRange::Part(0, 5)),
            ("bytes=5-", RequestedRange::Part(5, 10)),
            ("bytes=-3", RequestedRange::Part(7, 10)),
            ("bytes=-30", RequestedRange::Part(0, 10)),
            ("bytes=9-100", RequestedRange::Part(9, 10)),
            ("bytes=10-", RequestedRange::Beyond),
            ("bytes=10-20", RequestedRange::Beyond),
            ("bytes=-0", RequestedRange::Beyond),
            ("bytes=5-4", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("items=0-1", RequestedRange::Whole),
            ("bytes=", RequestedRange::Whole),
            ("bytes=-", RequestedRange::Whole),
            ("bytes=0-18446744073709551615", RequestedRange::Part(0, 10)),
            ("bytes=99999999999999999999-", RequestedRange::Whole),
        ] {
            assert_eq!(requested_range(header, 10), range, "{header}");
        }
        assert_eq!(requested_range("bytes=0-", 0), RequestedRange::Beyond);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_lies_within_the_file(
            header in "[ -~]{0,20}|bytes=[ +]?[0-9]{0,20}-[ -]?[0-9]{0,20}",
            size in prop_oneof![0..30_u64, any::<u64>()],
        ) {
            if let RequestedRange::Part(start, end) = requested_range(&header, size) {
                prop_assert!(start < end && end <= size, "{start} {end}");
            }
        }

        #[test]
        fn every_part_of_a_file_can_be_requested(first in 0..100_u64, last in 0..100_u64, size in 0..100_u64) {
            let range = match (first <= last, first < size) {
                (false, _) => RequestedRange::Whole,
                (true, false) => RequestedRange::Beyond,
                (true, true) => RequestedRange::Part(first, size.min(last + 1)),
            };
            prop_assert_eq!(requested_range(&format!("bytes={first}-{last}"), size), range);
        }
    }

    fn explanation(cause: &str, remedy: &str) -> Explanation {
        let reason = Explanation::of(cause);
        if remedy.is_empty() { reason } else { reason.remedied_by(remedy) }
    }

    /// Promise 15: cause first, remedy second, no subject.
    #[test]
    fn a_phrase_has_cause_and_remedy_but_no_subject() {
        let reason = explanation("https://registry.example: name not found", "check larder's DNS")
            .about("the list of acme/null");
        assert_eq!(phrase_text(&reason), "larder: registry.example: name not found (check larder's DNS)");
        let long = explanation(&"c".repeat(300), "run `larder accept hashicorp/null@1.0.0`");
        assert!(phrase_text(&long).ends_with("ccc... (run `larder accept hashicorp/null@1.0.0`)"));
        assert_eq!(phrase_text(&long).len(), MAX_PHRASE_BYTES);
        assert_eq!(phrase_text(&explanation("cause", &"r".repeat(300))), "larder: cause");
        assert_eq!(phrase_text(&explanation("a\r\nb\t\u{2026}\u{e9}\0", "")), "larder: a b ...?");
    }

    const SECRET: &str = "S3CRET";
    const PRIVATE_PATH: &str = "/srv/private-path/v1";

    /// A text from another server: it has a secret in a URL, and terminal control characters.
    fn foreign_text() -> impl Strategy<Value = String> {
        let url = prop_oneof![
            Just("https://user:S3CRET@h.example/p"),
            Just("https://h.example/p?token=S3CRET&x=1"),
            Just("git::ssh://S3CRET@h.example/r?ref=v1"),
        ];
        ("(\\PC|[\\n\\r\\t\u{1b}\u{9b}\u{7f}]){0,30}", url, "[\\n\u{1b}]?( \\PC{0,30})?")
            .prop_map(|(prefix, url, suffix)| format!("{prefix} {url}{suffix}"))
    }

    fn refusal() -> impl Strategy<Value = EgressRefusal> {
        prop_oneof![
            Just(EgressRefusal::Offline),
            Just(EgressRefusal::Scheme),
            Just(EgressRefusal::Userinfo),
            Just(EgressRefusal::PlainHttp { host: "h.example".to_owned(), port: 80 }),
            Just(EgressRefusal::NoSshKey { host: "h.example".to_owned(), upstream: "r.example".to_owned() }),
            Just(EgressRefusal::PrivateName { host: "h.lan".to_owned() }),
        ]
    }

    fn fault() -> impl Strategy<Value = Fault> {
        let errors = || prop::collection::vec(foreign_text(), 0..3);
        prop_oneof![
            (400u16..500).prop_map(Fault::Absent),
            (400u16..500).prop_map(Fault::Denied),
            (400u16..500, errors()).prop_map(|(status, errors)| Fault::Rejected { status, errors }),
            (500u16..600, errors()).prop_map(|(status, errors)| Fault::Trouble { status, errors, retry_after: None }),
            Just(Fault::Looped),
            foreign_text().prop_map(Fault::Unreachable),
            foreign_text().prop_map(Fault::HostNotFound),
            foreign_text().prop_map(Fault::Untrusted),
            foreign_text().prop_map(Fault::Slow),
            foreign_text().prop_map(Fault::Unusable),
            any::<u64>().prop_map(Fault::TooLarge),
            foreign_text().prop_map(Fault::LocalLimit),
            refusal().prop_map(Fault::Refused),
        ]
    }

    fn store_error() -> impl Strategy<Value = StoreError> {
        let path = || PathBuf::from(format!("{PRIVATE_PATH}/staging/x"));
        let kinds = prop_oneof![
            Just(io::ErrorKind::StorageFull),
            Just(io::ErrorKind::PermissionDenied),
            Just(io::ErrorKind::Other),
        ];
        prop_oneof![
            kinds.prop_map(move |kind| {
                let source = Arc::new(io::Error::new(kind, format!("{PRIVATE_PATH}/staging/x refused it")));
                StoreError::Io { doing: "write", path: path(), source }
            }),
            Just(StoreError::Locked(path())),
            Just(StoreError::Newer { path: path(), found: 9 }),
            Just(StoreError::Unavailable),
            Just(StoreError::Unreachable("connection refused".to_owned())),
            Just(StoreError::Index(format!("{PRIVATE_PATH}/index is damaged"))),
            any::<[u64; 3]>().prop_map(|[needed, limit, unevictable]| StoreError::NoRoom {
                needed,
                limit,
                unevictable
            }),
        ]
    }

    /// Every error that an answer may contain.
    fn failure() -> impl Strategy<Value = RequestFailure> {
        let host = || Hostname::parse("h.example").unwrap();
        let upstream = (foreign_text(), fault()).prop_map(|(subject, fault)| UpstreamError {
            subject,
            origin: "https://r.example".to_owned(),
            fault,
        });
        let mirror = prop_oneof![
            Just(Error::UnknownHost(host())),
            foreign_text().prop_map(Error::NotFound),
            upstream.prop_map(Error::from),
            [foreign_text(), foreign_text()].prop_map(|[subject, verdict]| Error::Unverified {
                subject,
                verdict,
                instead: None
            }),
            [foreign_text(), foreign_text()].prop_map(|[subject, verdict]| {
                let command = "`larder accept h.example/acme/null@1.2.0`".to_owned();
                Error::Unaccepted { subject, verdict, command, instead: None }
            }),
            foreign_text().prop_map(Error::Slow),
            foreign_text().prop_map(Error::Offline),
            foreign_text().prop_map(Error::Sealed),
            [foreign_text(), foreign_text()].prop_map(|[subject, reason]| Error::Busy { subject, reason }),
            foreign_text().prop_map(|subject| Error::TooManyUnattendedFills { subject, running: 16 }),
            foreign_text().prop_map(Error::RevalidationSkipped),
            foreign_text().prop_map(|subject| Error::HeldBack { subject, until: Timestamp(0) }),
            foreign_text().prop_map(Error::NotStored),
            [foreign_text(), foreign_text()].prop_map(|[subject, reason]| Error::Unreadable { subject, reason }),
            Just(Error::Looped),
            store_error().prop_map(Error::Store),
            foreign_text().prop_map(Error::Interrupted),
        ];
        let no_route = prop_oneof![
            foreign_text().prop_map(RouteError::Malformed),
            foreign_text().prop_map(RouteError::Unknown),
            Just(RouteError::UnknownHost(host())),
            foreign_text().prop_map(|reason| RouteError::Misdirected {
                api: Api::Registry,
                explanation: Explanation::of(reason)
            }),
        ];
        prop_oneof![4 => mirror.prop_map(RequestFailure::from), 1 => no_route.prop_map(RequestFailure::from)]
    }

    fn body_of(response: http::Response<super::super::body::Body>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(response.into_body().collect()).unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        body["errors"][0].as_str().unwrap().to_owned()
    }

    proptest! {
        /// Promises 8 and 15, for any failure with any foreign text.
        #[test]
        fn phrases_bodies_and_log_lines_have_no_secrets_or_control_characters_and_clients_see_no_private_path(failure in failure()) {
            let phrase = phrase_text(&failure.explain());
            let body = body_of(super::failure(&failure, Api::Registry));
            let line = log_text(&failure);
            for text in [&phrase, &body, &line] {
                prop_assert!(!text.contains(SECRET) && !text.contains(char::is_control), "{text:?}");
            }
            prop_assert!(!phrase.contains(PRIVATE_PATH) && !body.contains(PRIVATE_PATH), "{phrase:?} {body:?}");
            prop_assert!(phrase.len() <= MAX_PHRASE_BYTES && phrase.is_ascii());
        }
    }

    proptest! {
        /// Promise 15: no error text breaks the status line, or makes it long.
        #[test]
        fn every_phrase_is_short_printable_ascii(cause in "(?s).{0,300}", remedy in "(?s).{0,300}") {
            let text = phrase_text(&explanation(&cause, &remedy));
            prop_assert!(text.len() <= MAX_PHRASE_BYTES && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
            prop_assert!(ReasonPhrase::try_from(text.into_bytes()).is_ok());
        }
    }
}
