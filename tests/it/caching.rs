//! When larder sends requests upstream: documents that are fresh, stale or missing; upstreams that are slow or failing.

use std::time::{Duration, Instant};

use http::Response;
use larder::clock::Clock;

use crate::support::larder::{HOST, Larder};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const LIST: &str = "/registry/registry.terraform.io/v1/providers/acme/null/versions";
const DOCUMENT: &str = "/registry/registry.terraform.io/v1/providers/acme/null/1.2.0/download/linux_amd64";
const DISCOVERY: &str = "/registry/registry.terraform.io/.well-known/terraform.json";
const INDEX: &str = "/mirror/registry.terraform.io/acme/null/index.json";
const VERSION_JSON: &str = "/mirror/registry.terraform.io/acme/null/1.2.0.json";

/// Each kind of document: its path, the upstream's counter, and its freshness lifetime in seconds.
const KINDS: [(&str, Target, u64); 3] =
    [(LIST, Target::Versions, 300), (DOCUMENT, Target::Document, 24 * 3600), (DISCOVERY, Target::Discovery, 3600)];
/// A margin in seconds, because the machine's clock continues during a test.
const MARGIN_SECONDS: u64 = 20;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The request path: in DOCUMENT, the platform `linux_amd64` stands for the two segments of the real URL.
fn path(name: &str) -> String {
    name.replace("linux_amd64", "linux/amd64")
}

async fn upstream_with_null() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream
}

async fn cache_all_documents(larder: &Larder) {
    for name in [LIST, DOCUMENT, DISCOVERY, INDEX, VERSION_JSON] {
        larder.get(&path(name)).await.expect(200);
    }
}

/// Freshness: no request upstream within the freshness lifetime, with the rendered response in memory or without.
#[tokio::test]
async fn a_fresh_document_is_a_hit_and_the_first_request_after_its_lifetime_revalidates_once() {
    for memory in ["64MiB", "0B"] {
        for (name, target, fresh) in KINDS {
            let upstream = upstream_with_null().await;
            let larder = Larder::mirroring(&upstream).store(&format!("memory = \"{memory}\"")).start().await;
            let first = larder.get(&path(name)).await.expect(200);
            assert_eq!(first.header("cache-status"), "larder; fwd=miss; stored", "{name}");

            upstream.forget_requests();
            larder.clock.advance(seconds(fresh - MARGIN_SECONDS));
            let hit = larder.get(&path(name)).await.expect(200);
            assert_eq!((hit.header("cache-status"), &hit.body), ("larder; hit", &first.body), "{name}");
            assert_eq!(upstream.count_of(Target::Everything), 0, "{name}");

            larder.clock.advance(seconds(MARGIN_SECONDS));
            let revalidated = larder.get(&path(name)).await.expect(200);
            assert_eq!(
                (revalidated.header("cache-status"), &revalidated.body),
                ("larder; fwd=stale; stored", &first.body),
                "{name}"
            );
            assert_eq!(upstream.count_of(target), 1, "{name}");
        }
    }
}

/// Freshness: revalidation is conditional; a 304 renews the age and leaves the bytes.
#[tokio::test]
async fn a_304_renews_the_age_and_keeps_the_bytes() {
    for (name, target, fresh) in KINDS {
        let upstream = upstream_with_null().await;
        let larder = Larder::mirroring(&upstream).start().await;
        let first = larder.get(&path(name)).await.expect(200);
        larder.clock.advance(seconds(fresh));
        upstream.forget_requests();
        assert_eq!(larder.get(&path(name)).await.expect(200).body, first.body);
        let requests: Vec<_> = upstream.requests().into_iter().filter(|request| request.target == target).collect();
        assert_eq!(requests.len(), 1, "{name}");
        assert_eq!(requests[0].status, Some(304), "{name}: {:?}", requests[0].headers);
        assert!(requests[0].header("if-none-match").is_some() && requests[0].header("if-modified-since").is_some());

        upstream.forget_requests();
        larder.clock.advance(seconds(fresh - MARGIN_SECONDS));
        let hit = larder.get(&path(name)).await.expect(200);
        assert_eq!((hit.header("cache-status"), &hit.body), ("larder; hit", &first.body), "{name}");
        assert_eq!(upstream.count_of(Target::Everything), 0, "{name}");
    }
}

/// Freshness: the configuration decides, not upstream's Cache-Control and Expires.
#[tokio::test]
async fn caching_headers_of_upstream_are_ignored() {
    for cache_control in ["no-store, no-cache, max-age=0", "public, max-age=31536000, immutable"] {
        let upstream = upstream_with_null().await;
        let response =
            Response::builder().header("content-type", "application/json").header("cache-control", cache_control);
        let response = response.header("expires", "Thu, 01 Jan 1970 00:00:00 GMT").header("pragma", "no-cache");
        upstream.serve("/v1/providers/acme/null/versions", response.body("{\"versions\":[]}".into()).unwrap());
        let larder = Larder::mirroring(&upstream).start().await;
        assert_eq!(larder.versions("null").await.expect(200).header("cache-control"), "no-cache");
        larder.clock.advance(seconds(300 - MARGIN_SECONDS));
        larder.versions("null").await.expect(200);
        assert_eq!(upstream.count_of(Target::Versions), 1, "{cache_control}");
        larder.clock.advance(seconds(MARGIN_SECONDS));
        larder.versions("null").await.expect(200);
        assert_eq!(upstream.count_of(Target::Versions), 2, "{cache_control}");
    }
}

/// Freshness: a new version appears in the registry protocol and in the network mirror protocol.
#[tokio::test]
async fn a_new_version_appears_once_the_list_is_stale() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).start().await;
    cache_all_documents(&larder).await;
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    for name in [LIST, INDEX] {
        assert!(!larder.get(name).await.expect(200).text().contains("1.3.0"), "{name}");
    }
    larder.clock.advance(seconds(300));
    for name in [LIST, INDEX] {
        assert!(larder.get(name).await.expect(200).text().contains("1.3.0"), "{name}");
    }
    assert_eq!(upstream.count_of(Target::Versions), 2);
    larder.document("null", "1.3.0").await.expect(200);
}

/// Patience: the client waits for a revalidation no longer than `patience`; the revalidation continues in the
/// background.
#[tokio::test]
async fn a_silent_upstream_delays_a_request_by_patience_and_its_late_answer_is_used() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).upstream_lines("patience = \"100ms\"").start().await;
    cache_all_documents(&larder).await;
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    upstream.forget_requests();
    let gate = upstream.hold_headers(Target::Versions);
    larder.clock.advance(seconds(300));
    let start = Instant::now();
    let stale = larder.versions("null").await.expect(200);
    assert!(start.elapsed() >= Duration::from_millis(100), "the request did not wait for `patience`");
    assert_eq!(stale.header("cache-status"), "larder; hit; detail=stale");
    assert!(!stale.text().contains("1.3.0"));

    gate.open();
    until("the late answer is served", async || larder.versions("null").await.text().contains("1.3.0")).await;
    assert_eq!(upstream.count_of(Target::Versions), 1, "a second revalidation was sent");
}

/// Patience: a request waits for `patience` once, however many documents its response needs.
#[tokio::test]
async fn a_response_made_of_several_documents_waits_for_patience_once() {
    let upstream = FakeUpstream::start().await;
    let platforms = ["linux_amd64", "linux_arm64", "darwin_arm64"];
    upstream.publish(
        platforms.iter().fold(Provider::new("acme", "null"), |provider, platform| provider.platform(platform)),
    );
    let larder =
        Larder::mirroring(&upstream).upstream_lines("patience = \"4s\"").answer_within(seconds(60)).start().await;
    for platform in platforms {
        larder.document_for("null", "1.2.0", platform).await.expect(200);
    }
    let first = larder.get(VERSION_JSON).await.expect(200);
    larder.clock.advance(seconds(24 * 3600));
    let _gate = upstream.hold_headers(Target::Everything);
    let timed_get = async |path: &str| {
        let start = Instant::now();
        (larder.get(path).await.expect(200), start.elapsed())
    };
    // Compared with a simultaneous request for one document, so that a slow machine slows both.
    let list_path = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    let ((stale, several_time), (_, one_time)) = tokio::join!(timed_get(VERSION_JSON), timed_get(&list_path));
    assert_eq!((stale.header("cache-status"), &stale.body), ("larder; hit; detail=stale", &first.body));
    assert!(several_time >= Duration::from_secs(4), "{several_time:?}");
    assert!(several_time < one_time * 3 / 2, "{several_time:?}, and one document {one_time:?}");
}

/// Promise 6: whatever goes wrong upstream, the stale copy is served and marked as stale.
#[tokio::test]
async fn a_failed_revalidation_serves_the_cached_copy_at_once() {
    let faults = [
        Fault::Status(500),
        Fault::Status(401),
        Fault::Status(403),
        Fault::Status(418),
        Fault::Status(451),
        Fault::Status(508),
        Fault::RetryAfter(429, 3600),
        Fault::RetryAfter(503, 3600),
        Fault::Html,
        Fault::InvalidJson,
        Fault::Truncated(5),
        Fault::Reset(0),
        Fault::RedirectLoop(302),
        Fault::RedirectTo(302, "http://192.0.2.1/".into()),
    ];
    for fault in faults {
        let upstream = upstream_with_null().await;
        // The maximum of `patience`, so that it never ends the wait.
        let larder = Larder::mirroring(&upstream).upstream_lines("patience = \"8s\"").start().await;
        for (name, target, fresh) in KINDS {
            let first = larder.get(&path(name)).await.expect(200);
            larder.clock.advance(seconds(fresh));
            upstream.forget_requests();
            upstream.fault(target.clone(), fault.clone());
            // Upstream sends no validators, because a 304 has no body that the fault could change.
            upstream.fault(target.clone(), Fault::NoValidators);
            let stale = larder.get(&path(name)).await.expect(200);
            assert_eq!(stale.header("cache-status"), "larder; hit; detail=stale", "{fault:?} {name}");
            assert_eq!(stale.body, first.body, "{fault:?} {name}");
            assert_eq!(stale.header("retry-after"), "", "{fault:?} {name}");
            assert!(upstream.count_of(target) >= 1, "{fault:?} {name}");
            upstream.clear_faults();
        }
    }
}

/// Promise 6: without upstream, every earlier response is served again.
#[tokio::test]
async fn every_kind_of_response_is_served_without_upstream() {
    let mut upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    cache_all_documents(&larder).await;
    let document = larder.document("null", "1.2.0").await.json();
    let files = ["download_url", "shasums_url", "shasums_signature_url"].map(|name| document[name].as_str().unwrap());
    let mut files_before = Vec::new();
    for file in files {
        files_before.push(larder.get(file).await.expect(200).body);
    }
    // The h1 hash is computed after the archive is stored.
    until("the `h1:` hash is recorded", async || larder.get(VERSION_JSON).await.text().contains("h1:")).await;
    let mut documents_before = Vec::new();
    for name in [LIST, DOCUMENT, DISCOVERY, INDEX, VERSION_JSON] {
        documents_before.push((path(name), larder.get(&path(name)).await.expect(200).body));
    }
    upstream.stop().await;
    for (request_path, body) in documents_before {
        let stale = larder.get(&request_path).await.expect(200);
        assert_eq!((stale.header("cache-status"), &stale.body), ("larder; hit; detail=stale", &body), "{request_path}");
    }
    for (file, body) in files.iter().zip(files_before) {
        let stored = larder.get(file).await.expect(200);
        assert_eq!((stored.header("cache-status"), &stored.body), ("larder; hit", &body), "{file}");
    }
}

/// Freshness: a 404 is cached for `not_found`.
#[tokio::test]
async fn a_404_is_cached_for_not_found() {
    for status in [404, 410] {
        let upstream = upstream_with_null().await;
        upstream.fault(Target::Path("/absent/".into()), Fault::Status(status));
        let larder = Larder::mirroring(&upstream).upstream_lines("fresh = { not_found = \"60s\" }").start().await;
        let document = "/registry/registry.terraform.io/v1/providers/acme/null/1.2.0/download/plan9/arm";
        let list = LIST.replace("/null/", "/absent/");
        for (name, target) in [(list.as_str(), Target::Versions), (document, Target::Document)] {
            let count = |upstream: &FakeUpstream| {
                let upstream_path = name.replace(&format!("/registry/{HOST}"), "");
                assert!(upstream.count_of(target.clone()) >= upstream.count(&upstream_path));
                upstream.count(&upstream_path)
            };
            larder.get(name).await.expect(404);
            larder.clock.advance(seconds(60 - MARGIN_SECONDS));
            let again = larder.get(name).await.expect(404);
            assert!(!again.json()["errors"][0].as_str().unwrap().is_empty());
            assert_eq!(count(&upstream), 1, "{name}");
            larder.clock.advance(seconds(MARGIN_SECONDS));
            larder.get(name).await.expect(404);
            assert_eq!(count(&upstream), 2, "{name}");
        }
    }
}

#[tokio::test]
async fn a_404_is_forgotten_when_a_list_newly_names_the_version() {
    let upstream = upstream_with_null().await;
    let fresh = "fresh = { versions = \"60s\", not_found = \"6h\" }";
    let larder = Larder::mirroring(&upstream).upstream_lines(fresh).start().await;
    larder.versions("null").await.expect(200);
    larder.document("null", "1.3.0").await.expect(404);
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    larder.document("null", "1.3.0").await.expect(404);
    larder.clock.advance(seconds(60));
    assert!(larder.versions("null").await.text().contains("1.3.0"));
    larder.document("null", "1.3.0").await.expect(200);
}

/// A missing object is always requested; of all failures only a 404 is cached.
#[tokio::test]
async fn no_failure_but_a_404_is_cached() {
    for (fault, status) in [
        (Fault::Status(403), 502),
        (Fault::Status(418), 418),
        (Fault::Status(501), 502),
        (Fault::RetryAfter(429, 3600), 503),
        (Fault::Status(508), 508),
        (Fault::Html, 502),
        (Fault::InvalidJson, 502),
    ] {
        for (name, target, _) in KINDS {
            let upstream = upstream_with_null().await;
            let larder = Larder::mirroring(&upstream).start().await;
            upstream.fault(target.clone(), fault.clone());
            for attempt in [1, 2] {
                let failed = larder.get(&path(name)).await;
                assert!(failed.status == status, "{fault:?} {name}: {} {}", failed.status, failed.text());
                assert_eq!(failed.header("retry-after"), "");
                assert_eq!(upstream.count_of(target.clone()), attempt, "{fault:?} {name}");
            }
            upstream.clear_faults();
            larder.get(&path(name)).await.expect(200);
        }
    }
}

/// An archive URL that no document lists costs one upstream request, and none for `not_found` after it.
#[tokio::test]
async fn an_unlisted_archive_url_costs_one_upstream_request() {
    for (version, target) in [("1.2.0", Target::Document), ("9.9.9", Target::Versions)] {
        let upstream = upstream_with_null().await;
        let larder = Larder::mirroring(&upstream).clock(&Clock::frozen()).start().await;
        let file = format!("terraform-provider-null_{version}_linux_amd64.zip");
        let url = format!("/archive/{HOST}/providers/acme/null/{version}/linux_amd64/0123456789abcdef/{file}");
        for _ in 0..3 {
            larder.get(&url).await.expect(404);
        }
        assert_eq!(upstream.count_of(target.clone()), 1, "{version}");
        // The default of `not_found` is 30 s.
        larder.clock.advance(seconds(31));
        larder.get(&url).await.expect(404);
        assert_eq!(upstream.count_of(target), 2, "{version}");
    }
}
