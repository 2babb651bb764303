//! Every kind of document and every kind of trouble with it, as one table: what the client is told, in time, that nothing
//! wrong is kept, that what is held is served, and that all is well afterwards.

use std::time::Duration;

use futures_util::future::join_all;
use larder::app::StartSettings;

use crate::support::http::Answer;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// What the clients wait for a document before they give up (PROTOCOL 2.2).
const PATIENCE_OF_CLIENTS: Duration = Duration::from_secs(10);
/// Longer than a busy machine takes to read whatever is too large; the answer comes after it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(12);
const ANSWER_WITHIN: Duration = Duration::from_secs(24);
/// Nothing stays fresh, and what is held waits for nobody for long.
const SERVES_SOON: &str = "patience = \"500ms\"\nfresh = { discovery = \"0s\", versions = \"0s\", download = \"0s\" }";

/// What goes wrong, and the status a client gets where nothing is held.
fn troubles(kind: &Target) -> Vec<(Fault, u16)> {
    // Files whose exact bytes count are never unpacked: there, gzip is only something that is too large.
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

/// One trouble with one kind of file of one provider.
struct Case {
    kind: Target,
    fault: Fault,
    status: u16,
    name: String,
}

/// Every trouble with every kind of file: a provider for each.
fn cases() -> Vec<Case> {
    let kinds = [Target::Versions, Target::Document, Target::Sums, Target::Signature];
    let of_kind = |kind: Target| troubles(&kind).into_iter().map(move |(fault, status)| (kind.clone(), fault, status));
    let all = kinds.into_iter().flat_map(of_kind).enumerate();
    all.map(|(number, (kind, fault, status))| Case { kind, fault, status, name: name(number) }).collect()
}

fn name(number: usize) -> String {
    format!("trouble{number:02}")
}

async fn ask(larder: &Larder, case: &Case) -> Answer {
    match case.kind {
        Target::Versions => larder.versions(&case.name).await,
        _ => larder.document(&case.name, "1.2.0").await,
    }
}

async fn ask_all(larder: &Larder, cases: &[Case]) -> Vec<Answer> {
    join_all(cases.iter().map(|case| ask(larder, case))).await
}

fn break_all(upstream: &FakeUpstream, cases: &[Case]) {
    cases.iter().for_each(|case| upstream.fault(case.kind.of(&case.name), case.fault.clone()));
}

async fn publishing(names: impl IntoIterator<Item = String>) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    names.into_iter().for_each(|name| upstream.publish(Provider::new("acme", &name)));
    upstream
}

fn impatient(upstream: &FakeUpstream) -> Builder {
    let builder = Larder::mirroring(upstream).give_up_after(GIVE_UP_AFTER).answer_within(ANSWER_WITHIN);
    let builder = builder.with("patience = \"500ms\"");
    builder.with("fresh = { versions = \"0s\", download = \"0s\" }")
}

/// Says what was asked for and where, in the shape of registries, and hands no Retry-After on.
fn is_told(answer: &Answer, what: &str, places: &[&str]) {
    let errors = answer.json()["errors"].as_array().unwrap_or_else(|| panic!("{}", answer.text())).clone();
    let said = errors.iter().map(|error| error.as_str().unwrap()).collect::<Vec<_>>().join("\n");
    assert!(said.contains(what), "{what} is not named: {said}");
    assert!(places.iter().any(|place| said.contains(place)), "none of {places:?} is named: {said}");
    assert!(answer.headers.get("retry-after").is_none());
}

fn is_kept(larder: &Larder, case: &Case) -> bool {
    let file = if case.kind == Target::Versions { "versions" } else { "1.2.0/linux_amd64.set" };
    let ending = format!("/acme/{}/{file}", case.name);
    larder.folder.files("documents").iter().any(|path| path.to_str().unwrap().ends_with(&ending))
}

/// DESIGN 4, the table, for the version list, the download document, and the two files that belong to its set.
#[tokio::test]
async fn no_broken_document_is_cached() {
    let cases = cases();
    let upstream = publishing(cases.iter().map(|case| case.name.clone())).await;
    break_all(&upstream, &cases);
    // What no limit ends ends by itself: so where no limit ends anything, it is told all the same.
    let hour = Duration::from_secs(3600);
    let patient = Larder::mirroring(&upstream).answer_within(hour).give_up_after(hour).start().await;
    let impatient = impatient(&upstream).start().await;
    let (by_a_limit, by_itself): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.status == 504);
    let parts = [(&impatient, &by_a_limit), (&patient, &by_itself)];
    for (larder, cases) in parts {
        for (refused, case) in ask_all(larder, cases).await.iter().zip(cases) {
            let Case { kind, fault, status, name } = case;
            assert_eq!(refused.status, *status, "{kind:?} {fault:?}: {}", refused.text());
            is_told(refused, &format!("acme/{name}"), &[&upstream.origin(), HOST]);
            assert!(!is_kept(larder, case), "{kind:?} {fault:?}");
        }
    }
    upstream.heal();
    for (larder, cases) in parts {
        for (healed, case) in ask_all(larder, cases).await.iter().zip(cases) {
            let Case { kind, fault, .. } = case;
            assert_eq!(healed.status, 200, "{kind:?} after {fault:?}: {}", healed.text());
            assert!(is_kept(larder, case), "{kind:?} after {fault:?}");
        }
    }
}

/// Promise 6, and the same table: what is held is served, as it was.
#[tokio::test]
async fn no_document_failure_hides_stored_packages() {
    let cases = cases();
    let upstream = publishing(cases.iter().map(|case| case.name.clone())).await;
    // What is held has nothing to be asked by, so upstream cannot just say 304.
    upstream.fault(Target::Everything, Fault::NoValidators);
    let larder = impatient(&upstream).start().await;
    let before = ask_all(&larder, &cases).await;
    break_all(&upstream, &cases);
    for ((held, before), case) in ask_all(&larder, &cases).await.iter().zip(&before).zip(&cases) {
        let Case { kind, fault, .. } = case;
        assert_eq!((held.status, &held.body), (200, &before.body), "{kind:?} {fault:?}: {}", held.text());
        assert!(held.is("detail=stale"), "{kind:?} {fault:?}: {}", held.header("cache-status"));
    }
    upstream.heal();
    for (healed, before) in ask_all(&larder, &cases).await.iter().zip(&before) {
        assert_eq!((healed.status, &healed.body), (200, &before.body));
    }
}

/// DESIGN 4, the table, for discovery: a registry that cannot be found is never "no such provider". One upstream for
/// each trouble, so that one larder meets them all.
#[tokio::test]
async fn no_discovery_failure_is_cached_or_hides_stored_packages() {
    let mut troubles = troubles(&Target::Discovery);
    troubles.extend([
        (Fault::HugeJson, 502),
        (Fault::Status(404), 502),
        (Fault::Status(410), 502),
        (Fault::ContentType("text/plain"), 502),
    ]);
    let upstream = publishing([name(0)]).await;
    let host = |number| format!("{}.example", name(number));
    let registries = |builder: Builder| {
        (0..troubles.len()).fold(builder, |builder, number| {
            builder.upstream(&host(number), &format!("{}/{}/", upstream.origin(), name(number)), SERVES_SOON)
        })
    };
    let builder = || registries(Larder::builder()).give_up_after(GIVE_UP_AFTER).answer_within(ANSWER_WITHIN);
    let (empty, full) = (builder().start().await, builder().start().await);
    for number in 0..troubles.len() {
        let path = format!("/{}/.well-known/terraform.json", name(number));
        // Long enough not to be over in time when it drips.
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
    let paths: Vec<String> = (0..troubles.len()).flat_map(paths).collect();
    let ask_all = async |larder: &Larder| join_all(paths.iter().map(|path| larder.get(path))).await;
    let before = ask_all(&full).await;
    assert!(before.iter().all(|answer| answer.status == 200));

    upstream.fault(Target::Everything, Fault::NoValidators);
    for (number, (fault, _)) in troubles.iter().enumerate() {
        upstream.fault(Target::Path(format!("/{}/.well-known", name(number))), fault.clone());
    }
    let (refused, held) = tokio::join!(ask_all(&empty), ask_all(&full));
    for (at, path) in paths.iter().enumerate() {
        let (fault, status) = &troubles[at / 3];
        let case = format!("{fault:?} {path}");
        assert_eq!(refused[at].status, *status, "{case}: {}", refused[at].text());
        is_told(&refused[at], &host(at / 3), &[&upstream.origin(), &host(at / 3)]);
        assert_eq!((held[at].status, &held[at].body), (200, &before[at].body), "{case}: {}", held[at].text());
        assert!(held[at].is("detail=stale"), "{case}: {}", held[at].header("cache-status"));
    }
    assert!(empty.folder.files("documents").is_empty(), "{:?}", empty.folder.files("documents"));

    upstream.heal();
    for larder in [&empty, &full] {
        for (answer, before) in ask_all(larder).await.iter().zip(&before) {
            assert_eq!((answer.status, &answer.body), (200, &before.body), "{}", answer.text());
        }
    }
}

/// An upstream that accepts and never answers, not even the TLS handshake: told in time, and nothing held is hidden.
#[tokio::test]
async fn an_upstream_that_accepts_and_says_nothing_is_a_504_and_hides_nothing() {
    for is_tls in [false, true] {
        let builder = FakeUpstream::builder();
        let upstream = if is_tls { builder.tls() } else { builder }.start().await;
        upstream.publish(Provider::new("acme", "null"));
        let start = async |builder: Builder| {
            let builder = builder.give_up_after(Duration::from_secs(1)).with(SERVES_SOON);
            if is_tls { builder.trusting(upstream.ca()) } else { builder }.start().await
        };
        let full = start(Larder::mirroring(&upstream)).await;
        let path = full.archive_path("null", "1.2.0").await;
        full.get(&path).await.expect(200);
        let before = full.document("null", "1.2.0").await.expect(200);
        // A larder that has no connection yet: kept ones would go on.
        let (empty, full) = (start(Larder::mirroring(&upstream)).await, full.stop().await);
        let full = start(Larder::mirroring(&upstream).on(&full)).await;
        upstream.fall_silent();
        let refused = empty.document("null", "1.2.0").await.expect(504);
        // It is the discovery document that does not come.
        is_told(&refused, HOST, &[&upstream.origin(), "discovery"]);
        let held = full.document("null", "1.2.0").await.expect(200);
        assert!(held.is("detail=stale") && held.body == before.body, "{}", held.header("cache-status"));
        assert!(full.get(&path).await.expect(200).is("larder; hit"));
        assert!(empty.folder.files("documents").is_empty());

        upstream.speak_again();
        assert_eq!(empty.document("null", "1.2.0").await.expect(200).body, before.body);
        assert_eq!(full.document("null", "1.2.0").await.expect(200).body, before.body);
    }
}

/// Promise 11: however much an upstream sends, larder goes on answering everybody else meanwhile.
#[tokio::test]
async fn upstreams_that_never_end_delay_no_other_upstream() {
    let upstream = publishing((0..8).map(name)).await;
    // It would wait for an hour: who is served, is served meanwhile.
    let hour = Duration::from_secs(3600);
    let patient = Larder::mirroring(&upstream).answer_within(hour).give_up_after(hour).start().await;
    let impatient = impatient(&upstream).start().await;
    patient.document("trouble07", "1.2.0").await.expect(200);
    for number in 0..6 {
        upstream.fault(Target::Versions.of(&name(number)), Fault::GzipOfNothing);
    }
    let drowning = |larder: &Larder| {
        let urls = (0..6).map(|number| format!("{}acme/{}/versions", larder.providers_url(HOST), name(number)));
        tokio::spawn(join_all(urls.map(|url| async move { crate::support::http::get(&url).await.status })))
    };
    upstream.forget_requests();
    let endless = drowning(&patient);
    upstream.wait_for(Target::Versions, 6).await;
    patient.document("trouble07", "1.2.0").await.expect(200);
    patient.versions("trouble06").await.expect(200);
    assert!(!endless.is_finished());
    endless.abort();
    assert_eq!(drowning(&impatient).await.unwrap(), [504; 6]);
}

/// Section 4: clients are answered before they give up, whatever upstream does.
#[test]
fn larder_gives_up_before_its_clients_do() {
    assert!(StartSettings::default().limits.answer_within < PATIENCE_OF_CLIENTS);
}
