//! Metrics: exact counts, a bounded number of names, and a format that any scraper reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::support::http::{client, get, send};
use crate::support::larder::{HOST, Larder};
use crate::support::openmetrics::{Exposition, parse};
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};
use crate::support::warm_fixture::WarmFixture;

const THREE_DAYS: Duration = Duration::from_secs(3 * 24 * 3600);

async fn scrape(larder: &Larder) -> Exposition {
    let answer = get(&format!("{}/metrics", larder.admin())).await.expect(200);
    assert_eq!(answer.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    parse(&answer.text())
}

/// This edition of acme/null 1.2.0.
fn edition(edition: u64) -> Provider {
    Provider::new("acme", "null").edition(edition)
}

fn counts(expected: &[(&str, f64)]) -> BTreeMap<String, f64> {
    expected.iter().map(|(series, value)| ((*series).to_owned(), *value)).collect()
}

fn series_of(grown: BTreeMap<String, f64>, name: &str) -> BTreeMap<String, f64> {
    grown.into_iter().filter(|(series, _)| series.split('{').next() == Some(name)).collect()
}

/// Each count exists from the start: a series that appears with its first request is invisible to `rate()`.
#[tokio::test]
async fn the_counts_of_upstream_requests_start_at_zero() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let previous = scrape(&larder).await;
    for status in ["200", "404", "429", "500", "502", "5xx", "none"] {
        assert_eq!(
            previous.value(&format!("larder_upstream_requests_total{{host=\"{HOST}\",status=\"{status}\"}}")),
            0.0
        );
    }
}

/// Requests are counted with every route and every outcome, and with no other label values.
#[tokio::test]
async fn requests_are_counted_by_route_and_outcome() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let previous = scrape(&larder).await;
    let registry = format!("/registry/{HOST}");
    let (list, mirror) = (format!("{registry}/v1/providers/acme/null/versions"), format!("/mirror/{HOST}/acme/null"));
    let discovery = format!("{registry}/.well-known/terraform.json");
    let archive = larder.archive_path("null", "1.2.0").await;
    let mut sent = larder.document("null", "1.2.0").await.expect(200).body.len();
    for (path, status, times) in [
        (archive.as_str(), 200, 2),
        (&discovery, 200, 1),
        (&list, 200, 2),
        (&format!("{mirror}/index.json"), 200, 1),
        (&format!("{mirror}/1.2.0.json"), 200, 1),
        ("/healthz", 200, 3),
        ("/nowhere", 404, 2),
        ("/registry/other.example/v1/providers/acme/null/versions", 421, 1),
        ("/mirror/x/%ff/y/index.json", 400, 1),
        (&format!("{registry}/v1/providers/acme/absent/versions"), 404, 1),
    ] {
        for _ in 0..times {
            let answer = larder.get(path).await.expect(status);
            // A hit comes from the store.
            sent += if answer.has_cache_status("larder; hit") { answer.body.len() } else { 0 };
        }
    }
    send(client().post(format!("{}{list}", larder.base()))).await.unwrap().expect(405);
    larder.clock.advance(THREE_DAYS);
    larder.get(&list).await.expect(200);
    upstream.stop().await;
    larder.clock.advance(THREE_DAYS);
    let stale = larder.get(&list).await.expect(200);
    assert!(stale.has_cache_status("detail=stale"), "{stale:?}");
    sent += stale.body.len();
    larder.versions("unheard-of").await.expect(502);

    let after = scrape(&larder).await;
    let grown = after.grown_since(&previous);
    let route =
        |route: &str, outcome: &str| format!("larder_requests_total{{outcome=\"{outcome}\",route=\"{route}\"}}");
    let expected = [
        (route("download", "miss"), 1.0),
        (route("download", "hit"), 1.0),
        (route("archive", "miss"), 1.0),
        (route("archive", "hit"), 1.0),
        // Larder fetched discovery, sums and signature for the document.
        (route("discovery", "hit"), 1.0),
        (route("versions", "hit"), 2.0),
        (route("mirror-index", "hit"), 1.0),
        (route("mirror-version", "hit"), 1.0),
        (route("health", "none"), 3.0),
        (route("none", "absent"), 2.0),
        (route("none", "refused"), 3.0),
        (route("versions", "absent"), 1.0),
        (route("versions", "revalidated"), 1.0),
        (route("versions", "stale"), 1.0),
        (route("versions", "error"), 1.0),
    ];
    assert_eq!(series_of(grown.clone(), "larder_requests_total"), expected.into_iter().collect());
    let refusals = counts(&[
        ("larder_refusals_total{reason=\"method\"}", 1.0),
        ("larder_refusals_total{reason=\"malformed\"}", 1.0),
        ("larder_refusals_total{reason=\"no-route\"}", 3.0),
    ]);
    assert_eq!(series_of(grown.clone(), "larder_refusals_total"), refusals);
    assert_eq!(grown["larder_sent_bytes_total{source=\"store\"}"], sent as f64);
    let value = |series: &str| after.value(series);
    assert_eq!(value("larder_hit_seconds_count{content=\"document\"}"), 6.0);
    assert_eq!(value("larder_hit_seconds_count{content=\"archive\"}"), 1.0);
    // Three hits that upstream had just confirmed, and one of a copy that is three days old.
    let count_up_to =
        |le: &str| value(&format!("larder_document_age_seconds_bucket{{le=\"{le}\",route=\"versions\"}}"));
    assert_eq!(
        (count_up_to("60.0"), count_up_to("86400.0"), count_up_to("172800.0"), count_up_to("604800.0")),
        (3.0, 3.0, 3.0, 4.0)
    );
}

#[tokio::test]
async fn refused_requests_are_counted_by_reason() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).network("offline = true").start().await;
    let previous = scrape(&larder).await;
    larder.versions("null").await.expect(503);
    let list = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    let five_larders = "larder;id=a, larder;id=b, larder;id=c, larder;id=d, larder;id=e";
    larder.get_with(&list, &[("cdn-loop", five_larders)]).await.expect(508);
    let admin = |path: &str| client().get(format!("{}{path}", larder.admin()));
    send(admin("/nothing")).await.unwrap().expect(404);
    send(admin("/metrics").header("origin", "null")).await.unwrap().expect(403);
    send(admin("/metrics").header("host", "evil.example")).await.unwrap().expect(403);
    send(client().post(format!("{}/admin/v1/verify", larder.admin()))).await.unwrap().expect(401);
    send(client().delete(format!("{}/metrics", larder.admin())).bearer_auth(larder.token())).await.unwrap().expect(405);
    let after = scrape(&larder).await;
    let reason = |reason: &str| format!("larder_refusals_total{{reason=\"{reason}\"}}");
    let grown = series_of(after.grown_since(&previous), "larder_refusals_total");

    let reasons = ["offline", "loop", "admin-path", "admin-page", "admin-host", "admin-token", "method"];
    assert_eq!(grown, reasons.into_iter().map(|name| (reason(name), 1.0)).collect());
    assert_eq!((after.value("larder_offline"), after.value("larder_missing")), (1.0, 1.0));

    let closed = Larder::mirroring(&upstream).server("clients = [\"192.0.2.0/24\"]").start().await;
    closed.versions("null").await.expect(421);
    assert_eq!(scrape(&closed).await.value(&reason("client")), 1.0);
}

/// Failed verifications by kind, and republished versions that need an operator.
#[tokio::test]
async fn failed_verifications_are_counted_by_kind_and_republished_versions_wait() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    let failures = async |kind: &str| {
        let series = format!("larder_verification_failures_total{{host=\"{HOST}\",kind=\"{kind}\"}}");
        scrape(&larder).await.value(&series)
    };
    for (fault, target, kind) in [
        (Fault::SignedByAnotherKey, Target::Signature, "signature"),
        (Fault::NoKeys, Target::Document, "no-keys"),
        (Fault::ArchiveNotInSums, Target::Sums, "not-listed"),
        (Fault::WrongShasum, Target::Document, "contradiction"),
        (Fault::WrongBytes, Target::Archive, "archive"),
    ] {
        assert_eq!(failures(kind).await, 0.0, "{kind}");
        // SHA256SUMS without the archive are signed too, so that only the missing line is wrong.
        upstream.fault(if kind == "not-listed" { Target::Everything } else { target }, fault);
        if kind == "archive" {
            let path = larder.archive_path("null", "1.2.0").await;
            larder.get(&path).await.expect(502);
        } else {
            larder.document("null", "1.2.0").await.expect(502);
        }
        upstream.clear_faults();
        assert!(failures(kind).await >= 1.0, "{kind}");
    }
    let previous = scrape(&larder).await;
    larder.document("null", "1.2.0").await.expect(200);
    let stranger = SigningKey::new_key();
    upstream.publish(edition(2).signed_by(&stranger));
    for _ in 0..3 {
        assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("stale"));
    }
    let waiting = scrape(&larder).await;
    let alarms = |kind: &str| format!("larder_alarms_total{{kind=\"{kind}\"}}");
    let grown = waiting.grown_since(&previous);
    assert_eq!(series_of(grown.clone(), "larder_alarms_total"), counts(&[(&alarms("waits-for-accept"), 1.0)]));
    let republished = format!("larder_verification_failures_total{{host=\"{HOST}\",kind=\"republished\"}}");
    assert_eq!(grown[&republished], 3.0);
    assert_eq!(waiting.value("larder_waiting_for_accept"), 1.0);
    let unresolved = |kind: &str| format!("larder_alarms_unresolved{{kind=\"{kind}\"}}");
    assert_eq!((waiting.value(&unresolved("waits-for-accept")), waiting.value(&unresolved("moved"))), (1.0, 0.0));

    larder.run_command("accept", "acme/null@1.2.0").await;
    let accepted = scrape(&larder).await;
    assert_eq!(accepted.value("larder_waiting_for_accept"), 0.0);
    assert_eq!(accepted.value(&unresolved("waits-for-accept")), 0.0);
    upstream.publish(edition(3).signed_by(&stranger));
    larder.document("null", "1.2.0").await.expect(200);
    let last = scrape(&larder).await;
    assert_eq!((last.value(&alarms("republished")), last.value("larder_waiting_for_accept")), (1.0, 0.0));
}

/// One alarm about a version does not end another: it stays until an operator decides or upstream reverts.
#[tokio::test]
async fn a_version_that_waits_for_accept_still_waits_when_upstream_drops_it() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    larder.versions("null").await.expect(200);
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("stale"));
    upstream.withdraw("acme", "null", "1.2.0");
    larder.versions("null").await.expect(200);
    let exposition = scrape(&larder).await;
    assert_eq!(exposition.value("larder_alarms_total{kind=\"dropped\"}"), 1.0);
    assert_eq!(exposition.value("larder_waiting_for_accept"), 1.0);
}

/// Received bytes stay counted after their upstream is removed from the configuration.
#[tokio::test]
async fn the_counter_of_received_bytes_never_shrinks() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    let received = async || {
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        status["since_start"]["upstream_bytes"].as_u64().unwrap()
    };
    let previous = received().await;
    assert!(previous > 0);
    let other = Larder::builder().upstream("r.example", &format!("{}/", upstream.origin()), "");
    larder.reload(other).await.unwrap();
    assert_eq!(received().await, previous);
}

#[tokio::test]
async fn bytes_of_a_broken_body_are_counted_by_their_true_source() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1).size(3_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::WrongLastByte);
    let previous = scrape(&larder).await;
    let received = larder.receive(&path).await;
    assert!(!received.is_complete && received.body.len() > 1_000_000);
    let error = "larder_requests_total{outcome=\"error\",route=\"archive\"}";
    crate::support::until("the request is counted", async || scrape(&larder).await.value(error) == 1.0).await;
    let grown = series_of(scrape(&larder).await.grown_since(&previous), "larder_sent_bytes_total");
    assert_eq!(grown.keys().collect::<Vec<_>>(), ["larder_sent_bytes_total{source=\"upstream\"}"]);
}

#[tokio::test]
async fn a_client_that_disconnects_before_its_response_is_counted() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let gate = upstream.hold_headers(Target::Versions);
    let url = format!("{}/registry/{HOST}/v1/providers/acme/null/versions", larder.base());
    let pending_request = tokio::spawn(send(client().get(url)));
    upstream.wait_for(Target::Versions, 1).await;
    pending_request.abort();
    let disconnected = "larder_requests_total{outcome=\"left\",route=\"versions\"}";
    crate::support::until("the request is counted", async || scrape(&larder).await.value(disconnected) == 1.0).await;
    gate.open();
    larder.versions("null").await.expect(200);
    assert_eq!(scrape(&larder).await.value(disconnected), 1.0);
}

/// Larder's metrics equal the counts of the fake upstream: requests and bytes, by status.
#[tokio::test]
async fn upstream_requests_and_bytes_are_counted_as_the_upstream_counts_them() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1).size(2_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    larder.versions("absent").await.expect(404);
    upstream.fault(Target::Versions, Fault::Status(418));
    larder.versions("teapot").await;
    upstream.fault(Target::Versions, Fault::Status(500));
    larder.versions("broken").await.expect(502);
    upstream.clear_faults();
    let redirect = Fault::RedirectTo(302, "http://192.168.7.7/".to_owned());
    upstream.fault(Target::Versions, redirect);
    larder.versions("elsewhere").await.expect(502);
    let requests = upstream.requests();
    let exposition = scrape(&larder).await;
    let counted = |status: &str| {
        exposition.value(&format!("larder_upstream_requests_total{{host=\"{HOST}\",status=\"{status}\"}}"))
    };
    for (label, status) in [("200", 200), ("404", 404), ("4xx", 418), ("500", 500), ("302", 302)] {
        let received = requests.iter().filter(|request| request.status == Some(status)).count();
        assert!(received > 0 && counted(label) == received as f64, "{label}: {received} and {}", counted(label));
    }
    let bytes: u64 = requests.iter().map(|request| request.bytes_sent).sum();
    assert_eq!(exposition.value(&format!("larder_upstream_bytes_total{{host=\"{HOST}\"}}")), bytes as f64);
    let refused = format!("larder_upstream_refusals_total{{host=\"{HOST}\",reason=\"plain-http\"}}");
    assert_eq!(exposition.value(&refused), 1.0);
}

/// The metrics of stored archives, evictions and damage are exact.
#[tokio::test]
async fn store_metrics_match_the_store_and_evictions_and_damage_are_counted() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two", "three", "four"] {
        upstream.publish(Provider::new("acme", name).size(300_000));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let mut paths = Vec::new();
    for name in ["one", "two", "three", "four"] {
        paths.push(larder.archive_path(name, "1.2.0").await);
        larder.get(paths.last().unwrap()).await.expect(200);
        larder.clock.advance(Duration::from_secs(120));
    }
    let exposition = scrape(&larder).await;
    let blobs = larder.folder.blobs();
    let on_disk: u64 = blobs.iter().map(|blob| blob.metadata().unwrap().len()).sum();
    let one = upstream.archive_bytes("acme", "one", "1.2.0", "linux_amd64").len();
    let evicted = "{kind=\"archive\",reason=\"size-limit\"}";
    for (series, value) in [
        ("larder_store_objects{kind=\"archive\"}", 3.0),
        ("larder_store_bytes{kind=\"archive\"}", on_disk as f64),
        ("larder_store_limit_bytes", f64::from(1 << 20)),
        ("larder_store_state{state=\"ready\"}", 1.0),
        ("larder_store_state{state=\"gone\"}", 0.0),
        (&format!("larder_evictions_total{evicted}"), 1.0),
        (&format!("larder_evicted_bytes_total{evicted}"), one as f64),
        ("larder_fills_under_way", 0.0),
        ("larder_fills_unattended", 0.0),
        ("larder_waiting_requests", 0.0),
    ] {
        assert_eq!(exposition.value(series), value, "{series}");
    }
    assert!(exposition.value("larder_index_bytes") > 0.0 && exposition.value("larder_store_free_bytes") > 0.0);
    let lists = larder.folder.size_of(&larder.folder.files("documents"));
    // The times of each of the four lists take a block of the disk.
    assert_eq!(exposition.value("larder_store_bytes{kind=\"document\"}"), (lists + 4 * 4096) as f64);

    let damaged = "larder_archives_damaged_total{found=\"damaged\"}";
    std::fs::write(&blobs[0], vec![7; one]).unwrap();
    for path in &paths[1..] {
        larder.get(path).await.expect(200);
    }
    assert_eq!(scrape(&larder).await.value(damaged), 1.0);
    std::fs::write(&larder.folder.blobs()[0], vec![7; one]).unwrap();
    let verify = client().post(format!("{}/admin/v1/verify", larder.admin())).bearer_auth(larder.token());
    send(verify.header("content-type", "application/json").body("{}")).await.unwrap().expect(200);
    let exposition = scrape(&larder).await;
    assert_eq!((exposition.value(damaged), exposition.value("larder_archives_checked_total")), (2.0, 3.0));

    let (store, moved_store) = (larder.folder.path().join("v1"), larder.folder.path().join("away"));
    std::fs::rename(&store, &moved_store).unwrap();
    let exposition = scrape(&larder).await;
    assert_eq!(exposition.value("larder_store_state{state=\"gone\"}"), 1.0);
    std::fs::rename(&moved_store, &store).unwrap();
}

/// Requests that wait for an upstream are visible while they wait.
#[tokio::test]
async fn waiting_requests_and_running_downloads_are_gauges() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1).size(2_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = upstream.hold_headers(Target::Archive);
    let gauges = async {
        upstream.wait_for(Target::Archive, 1).await;
        let exposition = scrape(&larder).await;
        gate.open();
        (exposition.value("larder_waiting_requests"), exposition.value("larder_fills_under_way"))
    };
    let (answer, gauges) = tokio::join!(larder.get(&path), gauges);
    answer.expect(200);
    assert_eq!(gauges, (1.0, 1.0));
    crate::support::until("the download has ended", async || {
        let exposition = scrape(&larder).await;
        (exposition.value("larder_waiting_requests"), exposition.value("larder_fills_under_way")) == (0.0, 0.0)
    })
    .await;
}

/// A warm-up that did not get everything is visible without looking at each job.
#[tokio::test]
async fn running_jobs_are_a_gauge_and_ended_ones_are_counted_by_state() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let order = |package: &str| serde_json::json!({ "what": [package], "platforms": ["linux_amd64"] });
    let jobs = async || {
        let exposition = scrape(&larder).await;
        let ended = |state: &str| exposition.value(&format!("larder_jobs_ended_total{{state=\"{state}\"}}"));
        (exposition.value("larder_jobs_running"), ended("done"), ended("failed"), ended("cancelled"))
    };
    assert_eq!(jobs().await, (0.0, 0.0, 0.0, 0.0));
    let gate = upstream.hold_headers(Target::Archive);
    let path = fixture.start_job(&order("acme/null")).await;
    upstream.wait_for(Target::Archive, 1).await;
    assert_eq!(jobs().await, (1.0, 0.0, 0.0, 0.0));
    let cancelled = fixture.start_job(&order("acme/null")).await;
    fixture.cancel(&cancelled).await;
    gate.open();
    fixture.finished_job(&path).await;
    fixture.finished_job(&cancelled).await;
    fixture.warm(&order("acme/absent")).await;
    assert_eq!(jobs().await, (0.0, 1.0, 1.0, 1.0));
}

/// A random malformed or hostile request.
fn hostile_request(
    random: &mut StdRng,
    client: &reqwest::Client,
    larder: &Larder,
    archive: &str,
) -> reqwest::RequestBuilder {
    const PARTS: [&str; 24] = [
        "registry",
        "mirror",
        "archive",
        "v1",
        "providers",
        "modules",
        "acme",
        "null",
        "versions",
        "download",
        "linux",
        "amd64",
        "1.2.0",
        ".well-known",
        "terraform.json",
        "index.json",
        "healthz",
        "..",
        "%2e%2e",
        "%00",
        "~sig",
        "larder_x{a=\"b\"}",
        "%ff",
        "admin",
    ];
    let noise = |random: &mut StdRng, max_length: usize| -> String {
        let length = random.gen_range(1..=max_length);
        (0..length).map(|_| *b"abcXYZ09._~-%\"{}=".choose(random).unwrap() as char).collect()
    };
    let parts: Vec<String> = (0..random.gen_range(1..9))
        .map(|_| match random.gen_range(0..8) {
            0 => noise(random, 20),
            1 => HOST.to_owned(),
            2 => format!("{}.example", noise(random, 8)),
            _ => (*PARTS.choose(random).unwrap()).to_owned(),
        })
        .collect();
    let path = match random.gen_range(0..8) {
        0 => format!("/registry/{HOST}/v1/providers/acme/{}/versions", noise(random, 12)),
        1 => archive.replace("null", &noise(random, 5)),
        2 => (*["/metrics", "/admin/v1/status", "/admin/v1/purge"].choose(random).unwrap()).to_owned(),
        _ => format!("/{}", parts.join("/")),
    };
    let base = if random.gen_bool(0.2) { larder.admin() } else { larder.base().to_owned() };
    let methods = ["GET", "GET", "GET", "HEAD", "POST", "DELETE", "PROPFIND", "X"];
    let method = methods.choose(random).unwrap().parse().unwrap();
    // Random bytes may be no valid URL; then the request is for the root.
    let url = reqwest::Url::parse(&format!("{base}{path}?{}", noise(random, 9)));
    let request = client.request(method, url.unwrap_or_else(|_| base.parse().unwrap()));
    match random.gen_range(0..7) {
        0 => request.header("host", noise(random, 9).replace(['%', '"', '{', '}', '='], "x")),
        1 => request.header("cdn-loop", format!("larder;id={}, x", noise(random, 30).replace('"', "'"))),
        2 => request.header("x-forwarded-for", noise(random, 9)),
        3 => request.header("origin", "https://evil.example"),
        4 => request.header("user-agent", noise(random, 30)).header("authorization", noise(random, 9)),
        5 => request.header("range", format!("bytes={}", noise(random, 9))),
        _ => request,
    }
}

/// Promise 11: nothing that a client sends becomes a label.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_hostile_requests_add_no_series() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = larder.archive_path("null", "1.2.0").await;
    larder.get(&archive).await.expect(200);
    larder.versions("absent").await.expect(404);
    let names = |exposition: &Exposition| exposition.samples.keys().cloned().collect::<BTreeSet<_>>();
    let previous = scrape(&larder).await;
    let (client, mut random) = (client(), StdRng::seed_from_u64(5));
    let requests: Vec<_> = (0..5000).map(|_| hostile_request(&mut random, &client, &larder, &archive)).collect();
    let mut answers = stream::iter(requests.into_iter().map(send)).buffer_unordered(32);
    let mut statuses = BTreeMap::<u16, usize>::new();
    while let Some(answer) = answers.next().await {
        *statuses.entry(answer.map_or(0, |answer| answer.status)).or_default() += 1;
    }
    println!("the statuses of 5000 hostile requests: {statuses:?}");
    assert!([400, 403, 404, 405].iter().all(|status| statuses.contains_key(status)), "{statuses:?}");
    let after = scrape(&larder).await;
    let new: Vec<String> = names(&after).difference(&names(&previous)).cloned().collect();
    assert!(new.is_empty(), "{new:#?}");
    assert_eq!(after.labels["host"], BTreeSet::from([HOST.to_owned()]));
    let counted = |exposition: &Exposition| -> f64 {
        exposition
            .samples
            .iter()
            .filter(|(name, _)| name.starts_with("larder_requests_total"))
            .map(|(_, value)| value)
            .sum()
    };
    assert!(counted(&after) - counted(&previous) > 3500.0, "the hostile requests were not counted");
}

/// The page on metrics lists every metric, and no other.
#[tokio::test]
async fn the_page_on_metrics_lists_exactly_the_metrics_that_exist() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("absent").await.expect(404);
    let exposition = scrape(&larder).await;
    let shown: BTreeSet<String> = exposition
        .families
        .iter()
        .map(|(name, kind)| match kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.clone(),
        })
        .collect();
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")).unwrap();
    let words = page.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    // Queries name the parts of a histogram (`_bucket`, `_sum`, `_count`).
    let metric_name = |word: &str| {
        ["_bucket", "_count", "_sum"]
            .iter()
            .fold(word.to_owned(), |word, part| word.strip_suffix(part).map(str::to_owned).unwrap_or(word))
    };
    let text: BTreeSet<String> = words.filter(|word| word.starts_with("larder_")).map(metric_name).collect();
    let missing: Vec<_> = shown.difference(&text).collect();
    let unknown: Vec<_> = text.difference(&shown).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not in docs/metrics.md: {missing:?}; only there: {unknown:?}");
}
