//! A table of all documents and all faults: the client gets the right error in time, nothing wrong is cached, stored
//! copies are served, and requests succeed after the fault.

use std::time::Duration;

use futures_util::future::join_all;
use larder::app::StartSettings;

use crate::support::http::Answer;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// The time that clients wait for a document before they give up (provider registry protocol).
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than a busy machine needs to read a body that is too large; `ANSWER_WITHIN` is longer still.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(12);
const ANSWER_WITHIN: Duration = Duration::from_secs(24);
/// Nothing stays fresh, and a stored copy is served after a short `patience`.
const SHORT_PATIENCE: &str =
    "patience = \"500ms\"\nfresh = { discovery = \"0s\", versions = \"0s\", download = \"0s\" }";

/// The faults, each with the status of the response where nothing is stored.
fn faults_of(kind: &Target) -> Vec<(Fault, u16)> {
    // SHA256SUMS and signatures are never decompressed: for them gzip is just a body that is too large.
    let is_unpacked = !matches!(kind, Target::Sums | Target::Signature);
    vec![
        (Fault::Status(401), 502),
        (Fault::Status(403), 502),
        (Fault::RetryAfter(429, 3600), 503),
        (Fault::Status(451), 502),
        (Fault::Status(500), 502),
        (Fault::RetryAfter(503, 3600), 503),
        (Fault::Status(508), 508),
        (Fault::Html, 502),
        (Fault::InvalidJson, 502),
        (Fault::DeepJson, 502),
        (Fault::Truncated(10), 502),
        (Fault::Reset(10), 502),
        (Fault::NoLengthTruncated(10), 502),
        (Fault::NeverAnswers, 504),
        (Fault::Stalls(10), 504),
        (Fault::Drips(1, Duration::from_secs(1)), 504),
        (Fault::RedirectLoop(302), 502),
        (Fault::HugeHeader, 502),
        (Fault::Endless, 502),
        (Fault::GzipBomb, 502),
        (Fault::GzipWithoutEnd, 502),
        (Fault::GzipOfNothing, if is_unpacked { 504 } else { 502 }),
    ]
}

/// One fault of one kind of file, with a provider for this case only.
struct Case {
    kind: Target,
    fault: Fault,
    status: u16,
    name: String,
}

fn cases() -> Vec<Case> {
    let kinds = [Target::Versions, Target::Document, Target::Sums, Target::Signature];
    let of_kind = |kind: Target| faults_of(&kind).into_iter().map(move |(fault, status)| (kind.clone(), fault, status));
    let all = kinds.into_iter().flat_map(of_kind).enumerate();
    all.map(|(number, (kind, fault, status))| Case { kind, fault, status, name: name(number) }).collect()
}

fn name(number: usize) -> String {
    format!("trouble{number:02}")
}

async fn request_once(larder: &Larder, case: &Case) -> Answer {
    match case.kind {
        Target::Versions => larder.versions(&case.name).await,
        _ => larder.document(&case.name, "1.2.0").await,
    }
}

async fn request_all(larder: &Larder, cases: &[Case]) -> Vec<Answer> {
    join_all(cases.iter().map(|case| request_once(larder, case))).await
}

fn set_faults(upstream: &FakeUpstream, cases: &[Case]) {
    cases.iter().for_each(|case| upstream.fault(case.kind.with_path_part(&case.name), case.fault.clone()));
}

async fn upstream_publishing(names: impl IntoIterator<Item = String>) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    names.into_iter().for_each(|name| upstream.publish(Provider::new("acme", &name)));
    upstream
}

fn always_revalidating(upstream: &FakeUpstream) -> Builder {
    let builder = Larder::mirroring(upstream).upstream_timeout(UPSTREAM_TIMEOUT).answer_within(ANSWER_WITHIN);
    let builder = builder.upstream_lines("patience = \"500ms\"");
    builder.upstream_lines("fresh = { versions = \"0s\", download = \"0s\" }")
}

/// Asserts that the error names the package and one of these URLs or hosts, in the format of registries, without a
/// Retry-After.
fn assert_error_names(answer: &Answer, subject: &str, sources: &[&str]) {
    let errors = answer.json()["errors"].as_array().unwrap_or_else(|| panic!("{}", answer.text())).clone();
    let output = errors.iter().map(|error| error.as_str().unwrap()).collect::<Vec<_>>().join("\n");
    assert!(output.contains(subject), "{subject} is not named: {output}");
    assert!(sources.iter().any(|source| output.contains(source)), "none of {sources:?} is named: {output}");
    assert!(answer.headers.get("retry-after").is_none());
}

fn is_cached(larder: &Larder, case: &Case) -> bool {
    let file = if case.kind == Target::Versions { "versions" } else { "1.2.0/linux_amd64.set" };
    let ending = format!("/acme/{}/{file}", case.name);
    larder.folder.files("documents").iter().any(|path| path.to_str().unwrap().ends_with(&ending))
}

/// No fault of a version list, download document, SHA256SUMS or signature is cached.
#[tokio::test]
async fn no_broken_document_is_cached() {
    let cases = cases();
    let upstream = upstream_publishing(cases.iter().map(|case| case.name.clone())).await;
    set_faults(&upstream, &cases);
    // A fault that needs no time limit must end without one, so those cases run with limits of an hour.
    let hour = Duration::from_secs(3600);
    let patient = Larder::mirroring(&upstream).answer_within(hour).upstream_timeout(hour).start().await;
    let always_revalidating = always_revalidating(&upstream).start().await;
    let (ended_by_a_limit, ended_by_themselves): (Vec<Case>, Vec<Case>) =
        cases.into_iter().partition(|case| case.status == 504);
    let larders_and_cases = [(&always_revalidating, &ended_by_a_limit), (&patient, &ended_by_themselves)];
    for (larder, cases) in larders_and_cases {
        for (refused, case) in request_all(larder, cases).await.iter().zip(cases) {
            let Case { kind, fault, status, name } = case;
            assert_eq!(refused.status, *status, "{kind:?} {fault:?}: {}", refused.text());
            assert_error_names(refused, &format!("acme/{name}"), &[&upstream.origin(), HOST]);
            assert!(!is_cached(larder, case), "{kind:?} {fault:?}");
        }
    }
    upstream.clear_faults();
    for (larder, cases) in larders_and_cases {
        for (recovered, case) in request_all(larder, cases).await.iter().zip(cases) {
            let Case { kind, fault, .. } = case;
            assert_eq!(recovered.status, 200, "{kind:?} after {fault:?}: {}", recovered.text());
            assert!(is_cached(larder, case), "{kind:?} after {fault:?}");
        }
    }
}

/// Promise 6: stored copies are served unchanged.
#[tokio::test]
async fn no_document_failure_hides_stored_packages() {
    let cases = cases();
    let upstream = upstream_publishing(cases.iter().map(|case| case.name.clone())).await;
    // Without validators, so that upstream cannot just answer 304.
    upstream.fault(Target::Everything, Fault::NoValidators);
    let larder = always_revalidating(&upstream).start().await;
    let responses_before = request_all(&larder, &cases).await;
    set_faults(&upstream, &cases);
    for ((stored, responses_before), case) in
        request_all(&larder, &cases).await.iter().zip(&responses_before).zip(&cases)
    {
        let Case { kind, fault, .. } = case;
        assert_eq!(
            (stored.status, &stored.body),
            (200, &responses_before.body),
            "{kind:?} {fault:?}: {}",
            stored.text()
        );
        assert!(stored.has_cache_status("detail=stale"), "{kind:?} {fault:?}: {}", stored.header("cache-status"));
    }
    upstream.clear_faults();
    for (recovered, responses_before) in request_all(&larder, &cases).await.iter().zip(&responses_before) {
        assert_eq!((recovered.status, &recovered.body), (200, &responses_before.body));
    }
}

/// A failed discovery is never reported as "no such provider". The two larders have one upstream for each fault; only
/// one larder has stored documents.
#[tokio::test]
async fn no_discovery_failure_is_cached_or_hides_stored_packages() {
    let mut discovery_faults = faults_of(&Target::Discovery);
    discovery_faults.extend([
        (Fault::HugeJson, 502),
        (Fault::Status(404), 502),
        (Fault::Status(410), 502),
        (Fault::ContentType("text/plain"), 502),
    ]);
    let upstream = upstream_publishing([name(0)]).await;
    let host = |number| format!("{}.example", name(number));
    let registries = |builder: Builder| {
        (0..discovery_faults.len()).fold(builder, |builder, number| {
            builder.upstream(&host(number), &format!("{}/{}/", upstream.origin(), name(number)), SHORT_PATIENCE)
        })
    };
    let builder = || registries(Larder::builder()).upstream_timeout(UPSTREAM_TIMEOUT).answer_within(ANSWER_WITHIN);
    let (empty_larder, full_larder) = (builder().start().await, builder().start().await);
    for number in 0..discovery_faults.len() {
        let path = format!("/{}/.well-known/terraform.json", name(number));
        // The document is long enough to exceed the time limit when it arrives in small pieces.
        upstream.serve_json(&path, &format!("{{\"providers.v1\":\"/v1/providers/\"{}}}", " ".repeat(1000)));
    }
    let paths = |number| {
        let registry = format!("/registry/{}", host(number));
        [
            format!("{registry}/.well-known/terraform.json"),
            format!("{registry}/v1/providers/acme/{}/versions", name(0)),
            format!("{registry}/v1/providers/acme/{}/1.2.0/download/linux/amd64", name(0)),
        ]
    };
    let paths: Vec<String> = (0..discovery_faults.len()).flat_map(paths).collect();
    let request_all = async |larder: &Larder| join_all(paths.iter().map(|path| larder.get(path))).await;
    let responses_before = request_all(&full_larder).await;
    assert!(responses_before.iter().all(|answer| answer.status == 200));

    upstream.fault(Target::Everything, Fault::NoValidators);
    for (number, (fault, _)) in discovery_faults.iter().enumerate() {
        upstream.fault(Target::Path(format!("/{}/.well-known", name(number))), fault.clone());
    }
    let (refused, stored) = tokio::join!(request_all(&empty_larder), request_all(&full_larder));
    for (offset, path) in paths.iter().enumerate() {
        let (fault, status) = &discovery_faults[offset / 3];
        let case = format!("{fault:?} {path}");
        assert_eq!(refused[offset].status, *status, "{case}: {}", refused[offset].text());
        assert_error_names(&refused[offset], &host(offset / 3), &[&upstream.origin(), &host(offset / 3)]);
        assert_eq!(
            (stored[offset].status, &stored[offset].body),
            (200, &responses_before[offset].body),
            "{case}: {}",
            stored[offset].text()
        );
        assert!(stored[offset].has_cache_status("detail=stale"), "{case}: {}", stored[offset].header("cache-status"));
    }
    assert!(empty_larder.folder.files("documents").is_empty(), "{:?}", empty_larder.folder.files("documents"));

    upstream.clear_faults();
    for larder in [&empty_larder, &full_larder] {
        for (answer, responses_before) in request_all(larder).await.iter().zip(&responses_before) {
            assert_eq!((answer.status, &answer.body), (200, &responses_before.body), "{}", answer.text());
        }
    }
}

/// Upstream does not even answer the TLS handshake: the error arrives in time, and stored packages are served.
#[tokio::test]
async fn an_upstream_that_accepts_connections_silently_is_a_504_and_hides_no_stored_package() {
    for is_tls in [false, true] {
        let builder = FakeUpstream::builder();
        let upstream = if is_tls { builder.tls() } else { builder }.start().await;
        upstream.publish(Provider::new("acme", "null"));
        let start = async |builder: Builder| {
            let builder = builder.upstream_timeout(Duration::from_secs(1)).upstream_lines(SHORT_PATIENCE);
            if is_tls { builder.trusting(upstream.ca()) } else { builder }.start().await
        };
        let full_larder = start(Larder::mirroring(&upstream)).await;
        let path = full_larder.archive_path("null", "1.2.0").await;
        full_larder.get(&path).await.expect(200);
        let responses_before = full_larder.document("null", "1.2.0").await.expect(200);
        // New larders have no open connections; those would continue to work.
        let (empty_larder, full_larder) = (start(Larder::mirroring(&upstream)).await, full_larder.stop().await);
        let full_larder = start(Larder::mirroring(&upstream).store_at(&full_larder)).await;
        upstream.fall_silent();
        let refused = empty_larder.document("null", "1.2.0").await.expect(504);
        // The discovery document is the one that never arrives.
        assert_error_names(&refused, HOST, &[&upstream.origin(), "discovery"]);
        let stored = full_larder.document("null", "1.2.0").await.expect(200);
        assert!(
            stored.has_cache_status("detail=stale") && stored.body == responses_before.body,
            "{}",
            stored.header("cache-status")
        );
        assert!(full_larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
        assert!(empty_larder.folder.files("documents").is_empty());

        upstream.end_silence();
        assert_eq!(empty_larder.document("null", "1.2.0").await.expect(200).body, responses_before.body);
        assert_eq!(full_larder.document("null", "1.2.0").await.expect(200).body, responses_before.body);
    }
}

/// Promise 11: endless responses do not delay requests to other upstreams.
#[tokio::test]
async fn upstreams_that_never_end_delay_no_other_upstream() {
    let upstream = upstream_publishing((0..8).map(name)).await;
    // With limits of an hour, the other requests can only be served at the same time, not afterwards.
    let hour = Duration::from_secs(3600);
    let patient = Larder::mirroring(&upstream).answer_within(hour).upstream_timeout(hour).start().await;
    let always_revalidating = always_revalidating(&upstream).start().await;
    patient.document("trouble07", "1.2.0").await.expect(200);
    for number in 0..6 {
        upstream.fault(Target::Versions.with_path_part(&name(number)), Fault::GzipOfNothing);
    }
    let endless_requests = |larder: &Larder| {
        let urls = (0..6).map(|number| format!("{}acme/{}/versions", larder.providers_url(HOST), name(number)));
        tokio::spawn(join_all(urls.map(|url| async move { crate::support::http::get(&url).await.status })))
    };
    upstream.forget_requests();
    let endless = endless_requests(&patient);
    upstream.wait_for(Target::Versions, 6).await;
    patient.document("trouble07", "1.2.0").await.expect(200);
    patient.versions("trouble06").await.expect(200);
    assert!(!endless.is_finished());
    endless.abort();
    assert_eq!(endless_requests(&always_revalidating).await.unwrap(), [504; 6]);
}

/// Clients are answered before they give up, whatever upstream does.
#[test]
fn larder_gives_up_before_its_clients_do() {
    assert!(StartSettings::default().limits.answer_within < CLIENT_TIMEOUT);
}
