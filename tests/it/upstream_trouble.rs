//! Failures of an upstream and what a client then gets: with nothing stored, and with the document stored. No failure
//! is stored.

use std::time::Duration;

use crate::support::http::Answer;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

async fn upstream_with_null() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    upstream
}

fn always_revalidating(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).always_revalidate()
}

async fn request_once(larder: &Larder, target: &Target) -> Answer {
    match target {
        Target::Versions => larder.versions("null").await,
        _ => larder.document("null", "1.2.0").await,
    }
}

/// The longest time that the breaker of an upstream stays open.
const LONGEST_BREAK: Duration = Duration::from_secs(3600);

const DOCUMENTS: [Target; 2] = [Target::Versions, Target::Document];

/// Asserts that an error names the package and has no Retry-After.
fn assert_reported(answer: &Answer) {
    let errors = answer.json()["errors"].as_array().unwrap().clone();
    assert!(errors.iter().any(|error| error.as_str().unwrap().contains("acme/null")), "{}", answer.text());
    assert!(answer.headers.get("retry-after").is_none());
}

async fn assert_with_empty_store(builder: impl Fn(&FakeUpstream) -> Builder, fault: Fault, status: u16) {
    let upstream = upstream_with_null().await;
    let larder = builder(&upstream).start().await;
    for target in DOCUMENTS {
        upstream.fault(target.clone(), fault.clone());
        let refused = request_once(&larder, &target).await;
        assert_eq!(refused.status, status, "{target:?} {fault:?}: {}", refused.text());
        assert_reported(&refused);
        upstream.clear_faults();
        request_once(&larder, &target).await.expect(200);
    }
}

async fn assert_with_stored_document(builder: impl Fn(&FakeUpstream) -> Builder, fault: Fault, detail: &str) {
    let upstream = upstream_with_null().await;
    let larder = builder(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    for target in DOCUMENTS {
        let cached = request_once(&larder, &target).await.expect(200);
        upstream.fault(target.clone(), fault.clone());
        let stored = request_once(&larder, &target).await.expect(200);
        assert!(stored.has_cache_status(detail), "{target:?} {fault:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body, "{target:?} {fault:?}");
        assert!(stored.headers.get("retry-after").is_none());
        let zip = larder.get(&path).await.expect(200).body;
        assert!(zip == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
        upstream.clear_faults();
        larder.clock.advance(LONGEST_BREAK);
        let recovered = request_once(&larder, &target).await.expect(200);
        assert!(
            recovered.has_cache_status("larder; fwd=stale; stored"),
            "{target:?} {fault:?}: {}",
            recovered.header("cache-status")
        );
        assert_eq!(recovered.body, cached.body);
    }
}

/// Upstream answers 404 or 410.
#[tokio::test]
async fn an_unknown_package_is_404_and_a_deleted_one_stays_served() {
    for status in [404, 410] {
        assert_with_empty_store(always_revalidating, Fault::Status(status), 404).await;
        assert_with_stored_document(always_revalidating, Fault::Status(status), "detail=gone").await;
    }
}

#[tokio::test]
async fn versions_that_upstream_deleted_disappear_where_keep_gone_is_off() {
    let upstream = upstream_with_null().await;
    let larder = always_revalidating(&upstream).upstream_lines("keep_gone = false").start().await;
    for target in DOCUMENTS {
        request_once(&larder, &target).await.expect(200);
        upstream.fault(target.clone(), Fault::Status(404));
        request_once(&larder, &target).await.expect(404);
        upstream.clear_faults();
        request_once(&larder, &target).await.expect(200);
    }
}

/// Upstream answers 401, 403 or 451. The cause is larder's credential or the registry's policy, never the client's
/// token.
#[tokio::test]
async fn a_refusal_of_larder_itself_never_looks_like_one_of_the_client() {
    for status in [401, 403, 451] {
        assert_with_empty_store(always_revalidating, Fault::Status(status), 502).await;
        assert_with_stored_document(always_revalidating, Fault::Status(status), "detail=stale").await;
    }
}

/// Upstream answers another 4xx, here 422.
#[tokio::test]
async fn a_request_that_upstream_rejects_has_upstreams_status_and_errors() {
    let fault = Fault::StatusBody(422, "{\"errors\":[\"no such thing as that\"]}");
    assert_with_empty_store(always_revalidating, fault.clone(), 422).await;
    assert_with_stored_document(always_revalidating, fault.clone(), "detail=stale").await;
    let upstream = upstream_with_null().await;
    upstream.fault(Target::Versions, fault);
    let refused = always_revalidating(&upstream).start().await.versions("null").await.expect(422);
    assert!(refused.text().contains("no such thing as that"), "{}", refused.text());
}

/// Upstream answers 429 or 5xx. Retry-After is never passed on, because clients obey it without a limit.
#[tokio::test]
async fn a_failing_upstream_is_reported_and_hides_no_stored_package() {
    for (fault, status) in
        [(Fault::RetryAfter(429, 3600), 503), (Fault::Status(500), 502), (Fault::RetryAfter(503, 3600), 503)]
    {
        assert_with_empty_store(always_revalidating, fault.clone(), status).await;
        assert_with_stored_document(always_revalidating, fault, "detail=stale").await;
    }
}

#[tokio::test]
async fn a_508_of_upstream_is_passed_on_and_not_retried() {
    assert_with_empty_store(always_revalidating, Fault::Status(508), 508).await;
    assert_with_stored_document(always_revalidating, Fault::Status(508), "detail=stale").await;
    let upstream = upstream_with_null().await;
    upstream.fault(Target::Versions, Fault::Status(508));
    always_revalidating(&upstream).start().await.versions("null").await.expect(508);
    assert_eq!(upstream.count_of(Target::Versions), 1);
}

/// Upstream resets or closes the connection within a document.
#[tokio::test]
async fn a_truncated_document_is_reported_and_hides_no_stored_package() {
    for fault in [Fault::Reset(10), Fault::Truncated(10), Fault::NoLengthTruncated(10)] {
        assert_with_empty_store(always_revalidating, fault.clone(), 502).await;

        let upstream = upstream_with_null().await;
        // The cached copy has no validators, so upstream cannot answer 304.
        upstream.fault(Target::Everything, Fault::NoValidators);
        let larder = always_revalidating(&upstream).start().await;
        for target in DOCUMENTS {
            let cached = request_once(&larder, &target).await.expect(200);
            upstream.fault(target.clone(), fault.clone());
            let stored = request_once(&larder, &target).await.expect(200);
            assert!(stored.has_cache_status("detail=stale"), "{target:?} {fault:?}: {}", stored.header("cache-status"));
            assert_eq!(stored.body, cached.body);
            upstream.clear_faults();
            upstream.fault(Target::Everything, Fault::NoValidators);
            larder.clock.advance(LONGEST_BREAK);
            assert!(
                request_once(&larder, &target).await.expect(200).has_cache_status("fwd=stale; stored"),
                "{target:?} {fault:?}"
            );
        }
    }
}

/// Sums and signature are parts of the proof set, so their faults have the responses of a document's faults.
#[tokio::test]
async fn a_fault_of_sums_or_signature_fails_the_download_document() {
    for target in [Target::Sums, Target::Signature] {
        for (fault, status) in [
            (Fault::Status(451), 502),
            (Fault::Status(500), 502),
            (Fault::RetryAfter(429, 3600), 503),
            (Fault::Status(508), 508),
            (Fault::Html, 502),
            (Fault::HugeJson, 502),
            (Fault::NeverAnswers, 504),
        ] {
            let upstream = upstream_with_null().await;
            // It takes some time until a large document is refused.
            let give_up_after = if status == 504 { Duration::from_millis(1500) } else { Duration::from_secs(6) };
            let always_revalidating = || always_revalidating(&upstream).upstream_timeout(give_up_after);
            let (empty_larder, larder) = (always_revalidating().start().await, always_revalidating().start().await);
            let cached = larder.document("null", "1.2.0").await.expect(200);
            upstream.fault(target.clone(), fault.clone());
            let refused = empty_larder.document("null", "1.2.0").await;
            assert_eq!(refused.status, status, "{target:?} {fault:?}: {}", refused.text());
            assert_reported(&refused);
            assert!(empty_larder.folder.proof_sets().is_empty());
            let stored = larder.document("null", "1.2.0").await.expect(200);
            assert!(stored.has_cache_status("detail=stale"), "{target:?} {fault:?}: {}", stored.header("cache-status"));
            assert_eq!(stored.body, cached.body);
            upstream.clear_faults();
            for larder in [&empty_larder, &larder] {
                assert_eq!(larder.document("null", "1.2.0").await.expect(200).body, cached.body);
            }
        }
    }
}

/// Upstream sends invalid JSON, HTML, or JSON that is nested very deep.
#[tokio::test]
async fn a_response_that_is_not_a_document_is_refused() {
    for fault in [Fault::InvalidJson, Fault::Html, Fault::DeepJson] {
        assert_with_empty_store(always_revalidating, fault.clone(), 502).await;
        assert_with_stored_document(always_revalidating, fault, "detail=stale").await;
    }
}

/// Promise 11: the document is larger than the default limit, or than a limit of 60 bytes.
#[tokio::test]
async fn a_document_larger_than_the_limit_is_refused() {
    assert_with_empty_store(always_revalidating, Fault::HugeJson, 502).await;
    assert_with_stored_document(always_revalidating, Fault::HugeJson, "detail=stale").await;
    let upstream = upstream_with_null().await;
    let larder = always_revalidating(&upstream).document_bytes(60).start().await;
    for target in DOCUMENTS {
        let refused = request_once(&larder, &target).await.expect(502);
        assert!(refused.text().contains("more than 60 bytes"), "{}", refused.text());
    }
    assert!(larder.folder.proof_sets().is_empty());
}

/// The upstream refuses connections.
#[tokio::test]
async fn an_unreachable_upstream_is_reported_and_hides_no_stored_package() {
    let mut upstream = upstream_with_null().await;
    let (empty_larder, larder) =
        (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
    let cached = [
        request_once(&larder, &DOCUMENTS[0]).await.expect(200),
        request_once(&larder, &DOCUMENTS[1]).await.expect(200),
    ];
    upstream.stop().await;
    for (target, cached) in DOCUMENTS.iter().zip(cached) {
        request_once(&empty_larder, target).await.expect(502);
        let stored = request_once(&larder, target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body);
    }
    upstream.restart().await;
    for target in DOCUMENTS {
        request_once(&empty_larder, &target).await.expect(200);
        request_once(&larder, &target).await.expect(200);
    }
}

/// Larder stops waiting after its timeout, and the next request starts again.
#[tokio::test]
async fn an_upstream_that_never_answers_is_a_504_and_hides_no_stored_package() {
    let builder = |upstream: &FakeUpstream| always_revalidating(upstream).upstream_timeout(Duration::from_millis(1500));
    assert_with_empty_store(builder, Fault::NeverAnswers, 504).await;
    assert_with_stored_document(builder, Fault::NeverAnswers, "detail=stale").await;
}

/// A client gets its answer in time: a 504 that names the cause, while the fill continues.
#[tokio::test]
async fn a_fill_continues_in_the_background_after_a_504() {
    for target in [Target::Versions, Target::Document, Target::Sums] {
        let upstream = upstream_with_null().await;
        let larder = Larder::mirroring(&upstream).answer_within(Duration::from_millis(700)).start().await;
        let requested = if target == Target::Versions { Target::Versions } else { Target::Document };
        let gate = upstream.hold_headers(target.clone());
        let refused = request_once(&larder, &requested).await.expect(504);
        assert_reported(&refused);
        gate.open();
        request_once(&larder, &requested).await.expect(200);
        assert_eq!(upstream.count_of(target.clone()), 1, "{target:?}");
    }
}

/// A client waits for a revalidation no longer than `patience`; the revalidation continues in the background.
#[tokio::test]
async fn a_slow_upstream_does_not_delay_stored_documents() {
    let upstream = upstream_with_null().await;
    let larder = always_revalidating(&upstream).start().await;
    for target in DOCUMENTS {
        let cached = request_once(&larder, &target).await.expect(200);
        let gate = upstream.hold_headers(target.clone());
        let stored = request_once(&larder, &target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{target:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body);
        gate.open();
        let recovered = request_once(&larder, &target).await.expect(200);
        assert!(recovered.has_cache_status("fwd=stale; stored"), "{target:?}: {}", recovered.header("cache-status"));
    }
}

/// Without discovery there is no registry; that is never reported as a provider that does not exist.
#[tokio::test]
async fn a_registry_without_usable_discovery_is_a_502_and_hides_no_stored_package() {
    let path = format!("/registry/{HOST}/.well-known/terraform.json");
    for fault in
        [Fault::Status(404), Fault::Status(410), Fault::Html, Fault::ContentType("text/plain"), Fault::InvalidJson]
    {
        let upstream = upstream_with_null().await;
        let (empty_larder, larder) =
            (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
        let cached = larder.get(&path).await.expect(200);
        larder.document("null", "1.2.0").await.expect(200);
        upstream.fault(Target::Discovery, fault.clone());
        empty_larder.get(&path).await.expect(502);
        for target in DOCUMENTS {
            request_once(&empty_larder, &target).await.expect(502);
            request_once(&larder, &target).await.expect(200);
        }
        let stored = larder.get(&path).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{fault:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body, "{fault:?}");
        upstream.clear_faults();
        for target in DOCUMENTS {
            request_once(&empty_larder, &target).await.expect(200);
        }
    }
}

/// The discovery document lacks `providers.v1`.
#[tokio::test]
async fn a_registry_without_providers_is_a_502_and_hides_nothing() {
    let upstream = upstream_with_null().await;
    let (empty_larder, larder) =
        (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
    let cached = [
        request_once(&larder, &DOCUMENTS[0]).await.expect(200),
        request_once(&larder, &DOCUMENTS[1]).await.expect(200),
    ];
    upstream.serve_json("/.well-known/terraform.json", "{\"modules.v1\":\"/v1/modules/\"}");
    for (target, cached) in DOCUMENTS.iter().zip(cached) {
        request_once(&empty_larder, target).await.expect(502);
        let stored = request_once(&larder, target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{target:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body);
    }
    upstream.serve_json("/.well-known/terraform.json", "{\"providers.v1\":\"/v1/providers/\"}");
    for target in DOCUMENTS {
        request_once(&empty_larder, &target).await.expect(200);
        assert!(request_once(&larder, &target).await.expect(200).has_cache_status("fwd=stale; stored"));
    }
}

#[tokio::test]
async fn an_upstream_whose_certificate_is_not_trusted_is_a_502() {
    let upstream = FakeUpstream::builder().tls().start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    let larder = always_revalidating(&upstream).start().await;
    for target in DOCUMENTS {
        request_once(&larder, &target).await.expect(502);
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
    let larder = always_revalidating(&upstream).trusting(upstream.ca()).start().await;
    for target in DOCUMENTS {
        request_once(&larder, &target).await.expect(200);
    }
}

/// Upstream answers a status that no registry should send, or redirects to itself without end.
#[tokio::test]
async fn an_unexpected_status_is_a_502() {
    for fault in [204, 206, 300, 304].map(Fault::Status).into_iter().chain([Fault::RedirectLoop(302)]) {
        assert_with_empty_store(always_revalidating, fault, 502).await;
    }
}

/// Clients ignore the media type of these documents, and so does larder.
#[tokio::test]
async fn a_document_of_any_media_type_is_accepted() {
    let upstream = upstream_with_null().await;
    upstream.fault(Target::Versions, Fault::ContentType("text/plain"));
    upstream.fault(Target::Document, Fault::ContentType("application/octet-stream"));
    let larder = Larder::mirroring(&upstream).start().await;
    for target in DOCUMENTS {
        request_once(&larder, &target).await.expect(200);
    }
}

/// A version that the list has dropped and that is not stored disappears.
#[tokio::test]
async fn a_stored_version_that_the_list_has_dropped_stays_listed() {
    let upstream = upstream_with_null().await;
    for version in ["1.3.0", "1.4.0"] {
        upstream.publish(Provider::new("acme", "null").version(version));
    }
    let larder = always_revalidating(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let zip = larder.get(&path).await.expect(200).body;
    upstream.withdraw("acme", "null", "1.2.0");
    upstream.withdraw("acme", "null", "1.3.0");
    for _ in 0..2 {
        let list = larder.versions("null").await.expect(200).json();
        let listed: Vec<_> =
            list["versions"].as_array().unwrap().iter().map(|entry| entry["version"].clone()).collect();
        assert_eq!(listed, ["1.4.0", "1.2.0"]);
        let document = larder.document("null", "1.2.0").await.expect(200);
        assert!(document.has_cache_status("detail=gone"), "{}", document.header("cache-status"));
        assert!(larder.get(&path).await.expect(200).body == zip);
    }
    larder.document("null", "1.3.0").await.expect(404);
}

/// Larder remembers a 404 for the time of `not_found`, and forgets it at once when a new list names the version.
#[tokio::test]
async fn an_absent_version_costs_one_request_until_a_list_names_it() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).upstream_lines("fresh = { versions = \"0s\" }").start().await;
    for _ in 0..2 {
        larder.document_for("null", "1.2.0", "plan9_arm").await.expect(404);
        larder.document("null", "1.3.0").await.expect(404);
    }
    assert_eq!(upstream.count_of(Target::Document), 1);
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    larder.versions("null").await.expect(200);
    larder.document("null", "1.3.0").await.expect(200);
}
