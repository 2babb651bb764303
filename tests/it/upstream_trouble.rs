//! The table "What upstream says, what the client gets", row by row: with nothing cached, with the answer cached, and
//! with no failure remembered.

use std::time::Duration;

use crate::support::http::Answer;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

async fn published() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    upstream
}

fn impatient(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).nothing_stays_fresh()
}

async fn ask(larder: &Larder, target: &Target) -> Answer {
    match target {
        Target::Versions => larder.versions("null").await,
        _ => larder.document("null", "1.2.0").await,
    }
}

/// As long as an upstream in trouble is ever left alone.
const LEFT_ALONE: Duration = Duration::from_secs(3600);

const DOCUMENTS: [Target; 2] = [Target::Versions, Target::Document];

/// An error that names the subject and carries no Retry-After.
fn is_told(answer: &Answer) {
    let errors = answer.json()["errors"].as_array().unwrap().clone();
    assert!(errors.iter().any(|error| error.as_str().unwrap().contains("acme/null")), "{}", answer.text());
    assert!(answer.headers.get("retry-after").is_none());
}

async fn with_nothing_held(builder: impl Fn(&FakeUpstream) -> Builder, fault: Fault, status: u16) {
    let upstream = published().await;
    let larder = builder(&upstream).start().await;
    for target in DOCUMENTS {
        upstream.fault(target.clone(), fault.clone());
        let refused = ask(&larder, &target).await;
        assert_eq!(refused.status, status, "{target:?} {fault:?}: {}", refused.text());
        is_told(&refused);
        upstream.heal();
        ask(&larder, &target).await.expect(200);
    }
}

async fn with_all_held(builder: impl Fn(&FakeUpstream) -> Builder, fault: Fault, detail: &str) {
    let upstream = published().await;
    let larder = builder(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    for target in DOCUMENTS {
        let before = ask(&larder, &target).await.expect(200);
        upstream.fault(target.clone(), fault.clone());
        let stored = ask(&larder, &target).await.expect(200);
        assert!(stored.has_cache_status(detail), "{target:?} {fault:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, before.body, "{target:?} {fault:?}");
        assert!(stored.headers.get("retry-after").is_none());
        let zip = larder.get(&path).await.expect(200).body;
        assert!(zip == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
        upstream.heal();
        larder.clock.advance(LEFT_ALONE);
        let healed = ask(&larder, &target).await.expect(200);
        assert!(
            healed.has_cache_status("larder; fwd=stale; stored"),
            "{target:?} {fault:?}: {}",
            healed.header("cache-status")
        );
        assert_eq!(healed.body, before.body);
    }
}

/// The table: 404, 410.
#[tokio::test]
async fn an_unknown_package_is_404_and_a_deleted_one_stays_served() {
    for status in [404, 410] {
        with_nothing_held(impatient, Fault::Status(status), 404).await;
        with_all_held(impatient, Fault::Status(status), "detail=gone").await;
    }
}

/// The table: with `keep_gone = false`, versions that upstream deleted disappear.
#[tokio::test]
async fn versions_that_upstream_deleted_disappear_where_keep_gone_is_off() {
    let upstream = published().await;
    let larder = impatient(&upstream).with("keep_gone = false").start().await;
    for target in DOCUMENTS {
        ask(&larder, &target).await.expect(200);
        upstream.fault(target.clone(), Fault::Status(404));
        ask(&larder, &target).await.expect(404);
        upstream.heal();
        ask(&larder, &target).await.expect(200);
    }
}

/// The table: 401, 403, 451. It is our credential or their policy, never the client's token.
#[tokio::test]
async fn a_refusal_of_larder_itself_never_looks_like_one_of_the_client() {
    for status in [401, 403, 451] {
        with_nothing_held(impatient, Fault::Status(status), 502).await;
        with_all_held(impatient, Fault::Status(status), "detail=stale").await;
    }
}

/// The table: other 4xx have the same status and upstream's errors.
#[tokio::test]
async fn a_rejected_request_is_handed_on_with_upstreams_errors() {
    let fault = Fault::StatusBody(422, "{\"errors\":[\"no such thing as that\"]}");
    with_nothing_held(impatient, fault.clone(), 422).await;
    with_all_held(impatient, fault.clone(), "detail=stale").await;
    let upstream = published().await;
    upstream.fault(Target::Versions, fault);
    let refused = impatient(&upstream).start().await.versions("null").await.expect(422);
    assert!(refused.text().contains("no such thing as that"), "{}", refused.text());
}

/// The table: 429 and 5xx; Retry-After is never handed on, because clients obey it without a cap.
#[tokio::test]
async fn an_upstream_in_trouble_is_reported_and_hides_nothing() {
    for (fault, status) in
        [(Fault::RetryAfter(429, 3600), 503), (Fault::Status(500), 502), (Fault::RetryAfter(503, 3600), 503)]
    {
        with_nothing_held(impatient, fault.clone(), status).await;
        with_all_held(impatient, fault, "detail=stale").await;
    }
}

/// The table: 508 stays 508, and is not tried again.
#[tokio::test]
async fn a_loop_is_reported_as_it_is_and_not_tried_again() {
    with_nothing_held(impatient, Fault::Status(508), 508).await;
    with_all_held(impatient, Fault::Status(508), "detail=stale").await;
    let upstream = published().await;
    upstream.fault(Target::Versions, Fault::Status(508));
    impatient(&upstream).start().await.versions("null").await.expect(508);
    assert_eq!(upstream.count_of(Target::Versions), 1);
}

/// The table: reset, and whatever else ends a document early.
#[tokio::test]
async fn a_document_that_breaks_off_is_reported_and_hides_nothing() {
    for fault in [Fault::Reset(10), Fault::Truncated(10), Fault::NoLengthTruncated(10)] {
        with_nothing_held(impatient, fault.clone(), 502).await;

        let upstream = published().await;
        // The cached copy has no validators, so upstream cannot answer 304.
        upstream.fault(Target::Everything, Fault::NoValidators);
        let larder = impatient(&upstream).start().await;
        for target in DOCUMENTS {
            let before = ask(&larder, &target).await.expect(200);
            upstream.fault(target.clone(), fault.clone());
            let stored = ask(&larder, &target).await.expect(200);
            assert!(stored.has_cache_status("detail=stale"), "{target:?} {fault:?}: {}", stored.header("cache-status"));
            assert_eq!(stored.body, before.body);
            upstream.heal();
            upstream.fault(Target::Everything, Fault::NoValidators);
            larder.clock.advance(LEFT_ALONE);
            assert!(
                ask(&larder, &target).await.expect(200).has_cache_status("fwd=stale; stored"),
                "{target:?} {fault:?}"
            );
        }
    }
}

/// The table, for sums and signature: a fault of one of them is a fault of the proof set.
#[tokio::test]
async fn trouble_with_sums_or_signature_is_trouble_with_the_document() {
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
            // A large document takes its time to be refused.
            let give_up_after = if status == 504 { Duration::from_millis(1500) } else { Duration::from_secs(6) };
            let impatient = || impatient(&upstream).give_up_after(give_up_after);
            let (empty, full) = (impatient().start().await, impatient().start().await);
            let before = full.document("null", "1.2.0").await.expect(200);
            upstream.fault(target.clone(), fault.clone());
            let refused = empty.document("null", "1.2.0").await;
            assert_eq!(refused.status, status, "{target:?} {fault:?}: {}", refused.text());
            is_told(&refused);
            assert!(empty.folder.sets().is_empty());
            let stored = full.document("null", "1.2.0").await.expect(200);
            assert!(stored.has_cache_status("detail=stale"), "{target:?} {fault:?}: {}", stored.header("cache-status"));
            assert_eq!(stored.body, before.body);
            upstream.heal();
            for larder in [&empty, &full] {
                assert_eq!(larder.document("null", "1.2.0").await.expect(200).body, before.body);
            }
        }
    }
}

/// The table: bad JSON, wrong type, nested without end.
#[tokio::test]
async fn an_answer_that_is_no_document_is_refused() {
    for fault in [Fault::InvalidJson, Fault::Html, Fault::DeepJson] {
        with_nothing_held(impatient, fault.clone(), 502).await;
        with_all_held(impatient, fault, "detail=stale").await;
    }
}

/// DESIGN, promise 11, and the table: too large, by default and by a limit of our own.
#[tokio::test]
async fn a_document_larger_than_the_limit_is_not_taken() {
    with_nothing_held(impatient, Fault::HugeJson, 502).await;
    with_all_held(impatient, Fault::HugeJson, "detail=stale").await;
    let upstream = published().await;
    let larder = impatient(&upstream).document_bytes(60).start().await;
    for target in DOCUMENTS {
        let refused = ask(&larder, &target).await.expect(502);
        assert!(refused.text().contains("more than 60 bytes"), "{}", refused.text());
    }
    assert!(larder.folder.sets().is_empty());
}

/// The table: refused.
#[tokio::test]
async fn an_upstream_that_is_not_there_is_reported_and_hides_nothing() {
    let mut upstream = published().await;
    let (empty, full) = (impatient(&upstream).start().await, impatient(&upstream).start().await);
    let before = [ask(&full, &DOCUMENTS[0]).await.expect(200), ask(&full, &DOCUMENTS[1]).await.expect(200)];
    upstream.stop().await;
    for (target, before) in DOCUMENTS.iter().zip(before) {
        ask(&empty, target).await.expect(502);
        let stored = ask(&full, target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{}", stored.header("cache-status"));
        assert_eq!(stored.body, before.body);
    }
    upstream.restart().await;
    for target in DOCUMENTS {
        ask(&empty, &target).await.expect(200);
        ask(&full, &target).await.expect(200);
    }
}

/// The table: too slow. An upstream that does not answer is given up, and the next request starts afresh.
#[tokio::test]
async fn an_upstream_that_never_answers_is_a_504_and_hides_nothing() {
    let builder = |upstream: &FakeUpstream| impatient(upstream).give_up_after(Duration::from_millis(1500));
    with_nothing_held(builder, Fault::NeverAnswers, 504).await;
    with_all_held(builder, Fault::NeverAnswers, "detail=stale").await;
}

/// Every document is answered in time: then 504 with the cause, and the fill continues in the background.
#[tokio::test]
async fn a_fill_continues_behind_an_answer_that_came_in_time() {
    for target in [Target::Versions, Target::Document, Target::Sums] {
        let upstream = published().await;
        let larder = Larder::mirroring(&upstream).answer_within(Duration::from_millis(700)).start().await;
        let requests = if target == Target::Versions { Target::Versions } else { Target::Document };
        let gate = upstream.hold_silent(target.clone());
        let refused = ask(&larder, &requests).await.expect(504);
        is_told(&refused);
        gate.open();
        ask(&larder, &requests).await.expect(200);
        assert_eq!(upstream.count_of(target.clone()), 1, "{target:?}");
    }
}

/// The table: a slow revalidation costs `patience` and continues in the background.
#[tokio::test]
async fn a_slow_upstream_does_not_delay_stored_documents() {
    let upstream = published().await;
    let larder = impatient(&upstream).start().await;
    for target in DOCUMENTS {
        let before = ask(&larder, &target).await.expect(200);
        let gate = upstream.hold_silent(target.clone());
        let stored = ask(&larder, &target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{target:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, before.body);
        gate.open();
        let healed = ask(&larder, &target).await.expect(200);
        assert!(healed.has_cache_status("fwd=stale; stored"), "{target:?}: {}", healed.header("cache-status"));
    }
}

/// The table: no discovery, no registry; and that is never "the provider does not exist".
#[tokio::test]
async fn a_registry_without_usable_discovery_is_a_502_and_hides_nothing() {
    let path = format!("/registry/{HOST}/.well-known/terraform.json");
    for fault in
        [Fault::Status(404), Fault::Status(410), Fault::Html, Fault::ContentType("text/plain"), Fault::InvalidJson]
    {
        let upstream = published().await;
        let (empty, full) = (impatient(&upstream).start().await, impatient(&upstream).start().await);
        let before = full.get(&path).await.expect(200);
        full.document("null", "1.2.0").await.expect(200);
        upstream.fault(Target::Discovery, fault.clone());
        empty.get(&path).await.expect(502);
        for target in DOCUMENTS {
            ask(&empty, &target).await.expect(502);
            ask(&full, &target).await.expect(200);
        }
        let stored = full.get(&path).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{fault:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, before.body, "{fault:?}");
        upstream.heal();
        for target in DOCUMENTS {
            ask(&empty, &target).await.expect(200);
        }
    }
}

/// The table: discovery lacks the service.
#[tokio::test]
async fn a_registry_without_providers_is_a_502_and_hides_nothing() {
    let upstream = published().await;
    let (empty, full) = (impatient(&upstream).start().await, impatient(&upstream).start().await);
    let before = [ask(&full, &DOCUMENTS[0]).await.expect(200), ask(&full, &DOCUMENTS[1]).await.expect(200)];
    upstream.serve_json("/.well-known/terraform.json", "{\"modules.v1\":\"/v1/modules/\"}");
    for (target, before) in DOCUMENTS.iter().zip(before) {
        ask(&empty, target).await.expect(502);
        let stored = ask(&full, target).await.expect(200);
        assert!(stored.has_cache_status("detail=stale"), "{target:?}: {}", stored.header("cache-status"));
        assert_eq!(stored.body, before.body);
    }
    upstream.serve_json("/.well-known/terraform.json", "{\"providers.v1\":\"/v1/providers/\"}");
    for target in DOCUMENTS {
        ask(&empty, &target).await.expect(200);
        assert!(ask(&full, &target).await.expect(200).has_cache_status("fwd=stale; stored"));
    }
}

/// The table: bad TLS.
#[tokio::test]
async fn an_upstream_whose_certificate_is_not_trusted_is_a_502() {
    let upstream = FakeUpstream::builder().tls().start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    let larder = impatient(&upstream).start().await;
    for target in DOCUMENTS {
        ask(&larder, &target).await.expect(502);
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
    let larder = impatient(&upstream).trusting(upstream.ca()).start().await;
    for target in DOCUMENTS {
        ask(&larder, &target).await.expect(200);
    }
}

/// The table: an unexpected status.
#[tokio::test]
async fn a_status_that_means_nothing_here_is_a_502() {
    for fault in [204, 206, 300, 304].map(Fault::Status).into_iter().chain([Fault::RedirectLoop(302)]) {
        with_nothing_held(impatient, fault, 502).await;
    }
}

/// PROTOCOL 2.2, 2.3: clients ignore the media type of these documents, and so does larder.
#[tokio::test]
async fn a_document_of_any_media_type_is_taken() {
    let upstream = published().await;
    upstream.fault(Target::Versions, Fault::ContentType("text/plain"));
    upstream.fault(Target::Document, Fault::ContentType("application/octet-stream"));
    let larder = Larder::mirroring(&upstream).start().await;
    for target in DOCUMENTS {
        ask(&larder, &target).await.expect(200);
    }
}

/// The table: a stored version that the list has dropped stays listed; one that is not stored disappears.
#[tokio::test]
async fn a_stored_version_that_the_list_has_dropped_stays_listed() {
    let upstream = published().await;
    for version in ["1.3.0", "1.4.0"] {
        upstream.publish(Provider::new("acme", "null").version(version));
    }
    let larder = impatient(&upstream).start().await;
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
async fn an_absent_version_is_asked_for_once_until_a_list_names_it() {
    let upstream = published().await;
    let larder = Larder::mirroring(&upstream).with("fresh = { versions = \"0s\" }").start().await;
    for _ in 0..2 {
        larder.document_for("null", "1.2.0", "plan9_arm").await.expect(404);
        larder.document("null", "1.3.0").await.expect(404);
    }
    assert_eq!(upstream.count_of(Target::Document), 1);
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    larder.versions("null").await.expect(200);
    larder.document("null", "1.3.0").await.expect(200);
}
