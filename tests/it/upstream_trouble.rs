//! The table of upstream failures and client responses, row by row: with nothing cached, with the document cached; and
//! no failure is cached.

use std::time::Duration;

use crate::support::http::Answer;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

async fn published() -> FakeUpstream {
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
const LEFT_ALONE: Duration = Duration::from_secs(3600);

const DOCUMENTS: [Target; 2] = [Target::Versions, Target::Document];

/// Asserts that an error names the package and has no Retry-After.
fn assert_reported(answer: &Answer) {
    let errors = answer.json()["errors"].as_array().unwrap().clone();
    assert!(errors.iter().any(|error| error.as_str().unwrap().contains("acme/null")), "{}", answer.text());
    assert!(answer.headers.get("retry-after").is_none());
}

async fn assert_without_cache(builder: impl Fn(&FakeUpstream) -> Builder, fault: Fault, status: u16) {
    let upstream = published().await;
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

async fn assert_with_cache(builder: impl Fn(&FakeUpstream) -> Builder, fault: Fault, detail: &str) {
    let upstream = published().await;
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
        larder.clock.advance(LEFT_ALONE);
        let healed = request_once(&larder, &target).await.expect(200);
        assert!(
            healed.has_cache_status("larder; fwd=stale; stored"),
            "{target:?} {fault:?}: {}",
            healed.header("cache-status")
        );
        assert_eq!(healed.body, cached.body);
    }
}

/// The table: 404, 410.
#[tokio::test]
async fn an_unknown_package_is_404_and_a_deleted_one_stays_served() {
    for status in [404, 410] {
        assert_without_cache(always_revalidating, Fault::Status(status), 404).await;
        assert_with_cache(always_revalidating, Fault::Status(status), "detail=gone").await;
    }
}

/// The table: with `keep_gone = false`, versions that upstream deleted disappear.
#[tokio::test]
async fn versions_that_upstream_deleted_disappear_where_keep_gone_is_off() {
    let upstream = published().await;
    let larder = always_revalidating(&upstream).upstream_lines("keep_gone = false").start().await;
    for target in DOCUMENTS {
        request_once(&larder, &target).await.expect(200);
        upstream.fault(target.clone(), Fault::Status(404));
        request_once(&larder, &target).await.expect(404);
        upstream.clear_faults();
        request_once(&larder, &target).await.expect(200);
    }
}

/// The table: 401, 403, 451. The cause is larder's credential or the registry's policy, never the client's token.
#[tokio::test]
async fn a_refusal_of_larder_itself_never_looks_like_one_of_the_client() {
    for status in [401, 403, 451] {
        assert_without_cache(always_revalidating, Fault::Status(status), 502).await;
        assert_with_cache(always_revalidating, Fault::Status(status), "detail=stale").await;
    }
}

/// The table: other 4xx have the same status and upstream's errors.
#[tokio::test]
async fn a_request_that_upstream_rejects_has_upstreams_status_and_errors() {
    let fault = Fault::StatusBody(422, "{\"errors\":[\"no such thing as that\"]}");
    assert_without_cache(always_revalidating, fault.clone(), 422).await;
    assert_with_cache(always_revalidating, fault.clone(), "detail=stale").await;
    let upstream = published().await;
    upstream.fault(Target::Versions, fault);
    let refused = always_revalidating(&upstream).start().await.versions("null").await.expect(422);
    assert!(refused.text().contains("no such thing as that"), "{}", refused.text());
}

/// The table: 429 and 5xx. Retry-After is never passed on, because clients obey it without a limit.
#[tokio::test]
async fn a_failing_upstream_is_reported_and_hides_no_stored_package() {
    for (fault, status) in
        [(Fault::RetryAfter(429, 3600), 503), (Fault::Status(500), 502), (Fault::RetryAfter(503, 3600), 503)]
    {
        assert_without_cache(always_revalidating, fault.clone(), status).await;
        assert_with_cache(always_revalidating, fault, "detail=stale").await;
    }
}

/// The table: 508 is passed on as 508 and not retried.
#[tokio::test]
async fn a_508_of_upstream_is_passed_on_and_not_retried() {
    assert_without_cache(always_revalidating, Fault::Status(508), 508).await;
    assert_with_cache(always_revalidating, Fault::Status(508), "detail=stale").await;
    let upstream = published().await;
    upstream.fault(Target::Versions, Fault::Status(508));
    always_revalidating(&upstream).start().await.versions("null").await.expect(508);
    assert_eq!(upstream.count_of(Target::Versions), 1);
}

/// The table: a reset, and other faults that end a document early.
#[tokio::test]
async fn a_truncated_document_is_reported_and_hides_no_stored_package() {
    for fault in [Fault::Reset(10), Fault::Truncated(10), Fault::NoLengthTruncated(10)] {
        assert_without_cache(always_revalidating, fault.clone(), 502).await;

        let upstream = published().await;
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
            larder.clock.advance(LEFT_ALONE);
            assert!(
                request_once(&larder, &target).await.expect(200).has_cache_status("fwd=stale; stored"),
                "{target:?} {fault:?}"
            );
        }
    }
}

/// The table, for sums and signature: a fault of one of them is a fault of the proof set.
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
            let upstream = published().await;
            // It takes some time until a large document is refused.
            let give_up_after = if status == 504 { Duration::from_millis(1500) } else { Duration::from_secs(6) };
            let always_revalidating = || always_revalidating(&upstream).upstream_timeout(give_up_after);
            let (empty, full) = (always_revalidating().start().await, always_revalidating().start().await);
            let cached = full.document("null", "1.2.0").await.expect(200);
            upstream.fault(target.clone(), fault.clone());
            let refused = empty.document("null", "1.2.0").await;
            assert_eq!(refused.status, status, "{target:?} {fault:?}: {}", refused.text());
            assert_reported(&refused);
            assert!(empty.folder.proof_sets().is_empty());
            let stored = full.document("null", "1.2.0").await.expect(200);
            assert!(stored.has_cache_status("detail=stale"), "{target:?} {fault:?}: {}", stored.header("cache-status"));
            assert_eq!(stored.body, cached.body);
            upstream.clear_faults();
            for larder in [&empty, &full] {
                assert_eq!(larder.document("null", "1.2.0").await.expect(200).body, cached.body);
            }
        }
    }
}

/// The table: bad JSON, wrong type, nested without end.
#[tokio::test]
async fn a_response_that_is_not_a_document_is_refused() {
    for fault in [Fault::InvalidJson, Fault::Html, Fault::DeepJson] {
        assert_without_cache(always_revalidating, fault.clone(), 502).await;
        assert_with_cache(always_revalidating, fault, "detail=stale").await;
    }
}

/// Promise 11, and the table: a document is too large for the default limit, and for a limit of the test.
#[tokio::test]
async fn a_document_larger_than_the_limit_is_refused() {
    assert_without_cache(always_revalidating, Fault::HugeJson, 502).await;
    assert_with_cache(always_revalidating, Fault::HugeJson, "detail=stale").await;
    let upstream = published().await;
    let larder = always_revalidating(&upstream).document_bytes(60).start().await;
    for target in DOCUMENTS {
        let refused = request_once(&larder, &target).await.expect(502);
        assert!(refused.text().contains("more than 60 bytes"), "{}", refused.text());
    }
    assert!(larder.folder.proof_sets().is_empty());
}

/// The table: the connection is refused.
#[tokio::test]
async fn an_unreachable_upstream_is_reported_and_hides_no_stored_package() {
    let mut upstream = published().await;
    let (empty, full) = (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
    let cached =
        [request_once(&full, &DOCUMENTS[0]).await.expect(200), request_once(&full, &DOCUMENTS[1]).await.expect(200)];
    upstream.stop().await;
    for (target, cached) in DOCUMENTS.iter().zip(cached) {
        request_once(&empty, target).await.expect(502);
        let stored = request_once(&full, target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body);
    }
    upstream.restart().await;
    for target in DOCUMENTS {
        request_once(&empty, &target).await.expect(200);
        request_once(&full, &target).await.expect(200);
    }
}

/// The table: larder gives up an upstream that does not answer, and the next request starts again.
#[tokio::test]
async fn an_upstream_that_never_answers_is_a_504_and_hides_no_stored_package() {
    let builder = |upstream: &FakeUpstream| always_revalidating(upstream).upstream_timeout(Duration::from_millis(1500));
    assert_without_cache(builder, Fault::NeverAnswers, 504).await;
    assert_with_cache(builder, Fault::NeverAnswers, "detail=stale").await;
}

/// Every document is answered in time: then 504 with the cause, and the fill continues in the background.
#[tokio::test]
async fn a_fill_continues_in_the_background_after_a_504() {
    for target in [Target::Versions, Target::Document, Target::Sums] {
        let upstream = published().await;
        let larder = Larder::mirroring(&upstream).answer_within(Duration::from_millis(700)).start().await;
        let requests = if target == Target::Versions { Target::Versions } else { Target::Document };
        let gate = upstream.stall(target.clone());
        let refused = request_once(&larder, &requests).await.expect(504);
        assert_reported(&refused);
        gate.open();
        request_once(&larder, &requests).await.expect(200);
        assert_eq!(upstream.count_of(target.clone()), 1, "{target:?}");
    }
}

/// The table: a slow revalidation costs `patience` and continues in the background.
#[tokio::test]
async fn a_slow_upstream_does_not_delay_stored_documents() {
    let upstream = published().await;
    let larder = always_revalidating(&upstream).start().await;
    for target in DOCUMENTS {
        let cached = request_once(&larder, &target).await.expect(200);
        let gate = upstream.stall(target.clone());
        let stored = request_once(&larder, &target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{target:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body);
        gate.open();
        let healed = request_once(&larder, &target).await.expect(200);
        assert!(healed.has_cache_status("fwd=stale; stored"), "{target:?}: {}", healed.header("cache-status"));
    }
}

/// The table: without discovery there is no registry, which is never reported as "the provider does not exist".
#[tokio::test]
async fn a_registry_without_usable_discovery_is_a_502_and_hides_no_stored_package() {
    let path = format!("/registry/{HOST}/.well-known/terraform.json");
    for fault in
        [Fault::Status(404), Fault::Status(410), Fault::Html, Fault::ContentType("text/plain"), Fault::InvalidJson]
    {
        let upstream = published().await;
        let (empty, full) =
            (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
        let cached = full.get(&path).await.expect(200);
        full.document("null", "1.2.0").await.expect(200);
        upstream.fault(Target::Discovery, fault.clone());
        empty.get(&path).await.expect(502);
        for target in DOCUMENTS {
            request_once(&empty, &target).await.expect(502);
            request_once(&full, &target).await.expect(200);
        }
        let stored = full.get(&path).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{fault:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body, "{fault:?}");
        upstream.clear_faults();
        for target in DOCUMENTS {
            request_once(&empty, &target).await.expect(200);
        }
    }
}

/// The table: discovery lacks the service.
#[tokio::test]
async fn a_registry_without_providers_is_a_502_and_hides_nothing() {
    let upstream = published().await;
    let (empty, full) = (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
    let cached =
        [request_once(&full, &DOCUMENTS[0]).await.expect(200), request_once(&full, &DOCUMENTS[1]).await.expect(200)];
    upstream.serve_json("/.well-known/terraform.json", "{\"modules.v1\":\"/v1/modules/\"}");
    for (target, cached) in DOCUMENTS.iter().zip(cached) {
        request_once(&empty, target).await.expect(502);
        let stored = request_once(&full, target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{target:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, cached.body);
    }
    upstream.serve_json("/.well-known/terraform.json", "{\"providers.v1\":\"/v1/providers/\"}");
    for target in DOCUMENTS {
        request_once(&empty, &target).await.expect(200);
        assert!(request_once(&full, &target).await.expect(200).has_cache_status("fwd=stale; stored"));
    }
}

/// The table: bad TLS.
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

/// The table: an unexpected status.
#[tokio::test]
async fn an_unexpected_status_is_a_502() {
    for fault in [204, 206, 300, 304].map(Fault::Status).into_iter().chain([Fault::RedirectLoop(302)]) {
        assert_without_cache(always_revalidating, fault, 502).await;
    }
}

/// Clients ignore the media type of these documents, and so does larder.
#[tokio::test]
async fn a_document_of_any_media_type_is_accepted() {
    let upstream = published().await;
    upstream.fault(Target::Versions, Fault::ContentType("text/plain"));
    upstream.fault(Target::Document, Fault::ContentType("application/octet-stream"));
    let larder = Larder::mirroring(&upstream).start().await;
    for target in DOCUMENTS {
        request_once(&larder, &target).await.expect(200);
    }
}

/// The table: a stored version that the list has dropped stays listed; one that is not stored disappears.
#[tokio::test]
async fn a_stored_version_that_the_list_has_dropped_stays_listed() {
    let upstream = published().await;
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

/// Freshness: a 404 is believed for `not_found`, and forgotten at once when a list newly names the version.
#[tokio::test]
async fn an_absent_version_costs_one_request_until_a_list_names_it() {
    let upstream = published().await;
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
