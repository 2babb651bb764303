//! Stored packages stay available: after upstream withdraws or replaces them, offline, and after a restart. Two
//! registries never mix.

use std::time::Duration;

use larder::clock::Clock;

use crate::support::http::get;
use crate::support::larder::{HOST, Larder};
use crate::support::reports::name;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const DAY: Duration = Duration::from_secs(24 * 3600);
const VERSION_JSON: &str = "/mirror/registry.terraform.io/acme/null/1.2.0.json";

fn null() -> Provider {
    Provider::new("acme", "null")
}

async fn upstream_with_two_platforms() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().platform("linux_amd64").platform("darwin_arm64"));
    upstream
}

/// Fetches an archive by its download document and returns its path.
async fn install(larder: &Larder, name: &str) -> String {
    let path = larder.archive_path(name, "1.2.0").await;
    larder.get(&path).await.expect(200);
    path
}

/// Promise 6: a version that upstream dropped stays listed and installable, with `detail=gone`.
#[tokio::test]
async fn a_version_that_upstream_withdrew_stays_while_it_is_stored() {
    let upstream = upstream_with_two_platforms().await;
    upstream.publish(null().version("1.1.0"));
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    let archive = install(&larder, "null").await;
    let document = larder.document("null", "1.2.0").await.expect(200).body;
    upstream.withdraw("acme", "null", "1.2.0");
    upstream.withdraw("acme", "null", "1.1.0");

    let listed = larder.versions("null").await.expect(200).json();
    let listed: Vec<_> = listed["versions"].as_array().unwrap().iter().map(|entry| &entry["version"]).collect();
    assert_eq!(listed, ["1.2.0"], "what was not held is gone, what was is not");
    let response = larder.document("null", "1.2.0").await.expect(200);
    assert_eq!((response.header("cache-status"), &response.body), ("larder; hit; detail=gone", &document));
    assert_eq!(larder.get(&archive).await.expect(200).header("cache-status"), "larder; hit");
    let version = larder.get(VERSION_JSON).await.expect(200);
    assert_eq!(version.header("cache-status"), "larder; hit; detail=gone");
    assert!(version.json()["archives"]["linux_amd64"]["url"].is_string());
}

/// The whole provider is withdrawn, with 404 or with 410.
#[tokio::test]
async fn a_provider_that_upstream_withdrew_stays_while_it_is_stored() {
    for status in [404, 410] {
        let upstream = upstream_with_two_platforms().await;
        let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
        let archive = install(&larder, "null").await;
        let list = larder.versions("null").await.expect(200).body;
        upstream.fault(Target::Path("/v1/providers/".into()), Fault::Status(status));
        upstream.fault(Target::Archive, Fault::Status(status));
        for _ in 0..2 {
            let response = larder.versions("null").await.expect(200);
            assert_eq!((response.header("cache-status"), &response.body), ("larder; hit; detail=gone", &list));
            assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("detail=gone"));
            larder.get(&archive).await.expect(200);
        }
        upstream.clear_faults();
        assert!(larder.versions("null").await.expect(200).has_cache_status("fwd=stale; stored"));
        assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("fwd=stale; stored"));
    }
}

/// Without `keep_gone` larder follows upstream's deletions.
#[tokio::test]
async fn without_keep_gone_packages_that_upstream_deletes_disappear() {
    let upstream = upstream_with_two_platforms().await;
    let larder = Larder::mirroring(&upstream).upstream_lines("keep_gone = false").always_revalidate().start().await;
    install(&larder, "null").await;
    upstream.withdraw("acme", "null", "1.2.0");
    assert_eq!(larder.versions("null").await.expect(200).json()["versions"], serde_json::json!([]));
    larder.document("null", "1.2.0").await.expect(404);
    assert_eq!(larder.get(VERSION_JSON).await.expect(200).body, b"{\"archives\":{}}");

    upstream.fault(Target::Versions, Fault::Status(404));
    larder.versions("null").await.expect(404);
    upstream.clear_faults();
    upstream.fault(Target::Versions, Fault::Status(500));
    larder.versions("null").await.expect(502);
}

/// A 404 for VERSION.json would end an `init`, so a listed version without packages is 200 with no archives.
#[tokio::test]
async fn a_listed_version_whose_packages_are_gone_has_no_archives() {
    let upstream = upstream_with_two_platforms().await;
    let fresh = "keep_gone = false\nfresh = { download = \"0s\" }";
    let larder = Larder::mirroring(&upstream).upstream_lines(fresh).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    upstream.fault(Target::Path("/download/linux/amd64".into()), Fault::Status(404));
    let archives = larder.get(VERSION_JSON).await.expect(200).json()["archives"].clone();
    assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["darwin_arm64", "linux_amd64"]);
    upstream.fault(Target::Document, Fault::Status(404));
    assert_eq!(larder.get(VERSION_JSON).await.expect(200).body, b"{\"archives\":{}}");
}

/// Freshness: a cached 404 expires after its own lifetime, also where it is part of a longer-lived response.
#[tokio::test]
async fn an_absent_platform_appears_once_its_cached_404_has_expired() {
    let upstream = FakeUpstream::start().await;
    // Without the conventional file name, each platform needs its own download document.
    let odd = null().platform("linux_amd64").platform("darwin_arm64").filename("odd-{platform}.zip");
    upstream.publish(odd);
    upstream.fault(Target::Path("/download/darwin/arm64".into()), Fault::Status(404));
    let larder = Larder::mirroring(&upstream).start().await;
    let platforms = async || {
        let archives = larder.get(VERSION_JSON).await.expect(200).json()["archives"].clone();
        archives.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(platforms().await, ["linux_amd64"]);
    }
    upstream.clear_faults();
    larder.clock.advance(Duration::from_secs(30));
    assert_eq!(platforms().await, ["darwin_arm64", "linux_amd64"]);
}

/// `keep_gone = false` also unlists versions that were preserved before it was set.
#[tokio::test]
async fn dropped_versions_disappear_when_keep_gone_is_switched_off() {
    let upstream = upstream_with_two_platforms().await;
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    install(&larder, "null").await;
    upstream.withdraw("acme", "null", "1.2.0");
    assert!(larder.versions("null").await.expect(200).text().contains("1.2.0"));
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).upstream_lines("keep_gone = false").always_revalidate().store_at(&folder);
    let larder = larder.start().await;
    assert_eq!(larder.versions("null").await.expect(200).json()["versions"], serde_json::json!([]));
}

/// Promise 12: offline, stored packages are served however old, nothing is sent upstream, and errors name the missing
/// package.
#[tokio::test]
async fn an_offline_larder_serves_stored_packages_without_upstream_requests() {
    let upstream = upstream_with_two_platforms().await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let archive = install(&larder, "null").await;
    let (list, document) = (larder.versions("null").await.body, larder.document("null", "1.2.0").await.body);
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).network("offline = true").clock(&clock).store_at(&folder).start().await;
    for status in ["larder; hit", "larder; hit; detail=stale"] {
        let stored = larder.versions("null").await.expect(200);
        assert_eq!((stored.header("cache-status"), &stored.body), (status, &list));
        let stored = larder.document("null", "1.2.0").await.expect(200);
        assert_eq!((stored.header("cache-status"), &stored.body), (status, &document));
        assert_eq!(larder.get(&archive).await.expect(200).header("cache-status"), "larder; hit");
        let archives = larder.get(VERSION_JSON).await.expect(200).json()["archives"].clone();
        assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["linux_amd64"]);
        clock.advance(DAY * 400);
    }
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(404);
    let absent = "/registry/registry.terraform.io/v1/providers/acme/absent";
    let zip = "/archive/registry.terraform.io/providers/acme/absent/1.0.0/linux_amd64/0123456789abcdef/a.zip";
    for missing in [format!("{absent}/versions"), format!("{absent}/1.0.0/download/linux/amd64"), zip.into()] {
        let text = larder.get(&missing).await.expect(503).json()["errors"][0].as_str().unwrap().to_owned();
        assert!(text.contains("acme/absent") && text.contains("offline"), "{text}");
    }
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    let missing: Vec<_> = status["missing"].as_array().unwrap().iter().map(name).collect();
    assert_eq!(
        missing,
        [
            "registry.terraform.io/acme/absent",
            "registry.terraform.io/acme/absent@1.0.0",
            "registry.terraform.io/acme/null@1.2.0",
        ]
    );
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// Offline, a listed version of which nothing is stored has no archives.
#[tokio::test]
async fn offline_a_listed_version_without_archives_has_none() {
    let upstream = upstream_with_two_platforms().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    assert_eq!(larder.get(VERSION_JSON).await.expect(200).body, b"{\"archives\":{}}");
}

/// Promise 13: the other registry has other bytes for the same version.
#[tokio::test]
async fn packages_of_two_registries_are_never_mixed() {
    let (terraform, opentofu) = (FakeUpstream::start().await, FakeUpstream::start().await);
    terraform.publish(null().size(2_000_000));
    opentofu.publish(null().size(2_000_000).edition(2));
    let larder =
        Larder::mirroring(&terraform).upstream("registry.opentofu.org", &format!("{}/", opentofu.origin()), "");
    let larder = larder.start().await;
    for _ in 0..2 {
        for (host, upstream) in [(HOST, &terraform), ("registry.opentofu.org", &opentofu)] {
            let document = format!("/registry/{host}/v1/providers/acme/null/1.2.0/download/linux/amd64");
            let document = larder.get(&document).await.expect(200).json();
            let zip = larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
            assert!(zip.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"), "{host}");
            let sums = larder.get(document["shasums_url"].as_str().unwrap()).await.expect(200);
            assert_eq!(sums.body, upstream.sums_bytes("acme", "null", "1.2.0"), "{host}");
        }
    }
    let elsewhere = larder.archive_path("null", "1.2.0").await.replace(HOST, "registry.opentofu.org");
    larder.get(&elsewhere).await.expect(404);
    assert_eq!((terraform.count_of(Target::Archive), opentofu.count_of(Target::Archive)), (1, 1));
}

/// Promise 4: a restart loses nothing: documents, archives, SHA256SUMS and its signature, the h1 hash.
#[tokio::test]
async fn a_restart_keeps_everything() {
    let upstream = upstream_with_two_platforms().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = install(&larder, "null").await;
    until("the `h1:` hash is recorded", async || larder.get(VERSION_JSON).await.text().contains("h1:")).await;
    let document = larder.document("null", "1.2.0").await.json();
    let discovery = format!("/registry/{HOST}/.well-known/terraform.json");
    let list = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    let of_document = |name: &str| document[name].as_str().unwrap().to_owned();
    let paths = [of_document("shasums_url"), of_document("shasums_signature_url"), archive, list, discovery];
    let mut before = Vec::new();
    for path in paths.into_iter().chain([VERSION_JSON.to_owned()]) {
        before.push((path.clone(), larder.get(&path).await.expect(200).body));
    }
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    for (path, body) in before {
        let after = larder.get(&path).await.expect(200);
        assert_eq!((after.header("cache-status"), &after.body), ("larder; hit", &body), "{path}");
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// A rendered response is renewed when its contents change, with any size of the memory cache.
#[tokio::test]
async fn the_h1_hash_appears_in_a_response_that_was_rendered_earlier() {
    for memory in ["64MiB", "1KiB", "0B"] {
        let upstream = upstream_with_two_platforms().await;
        let larder = Larder::mirroring(&upstream).store(&format!("memory = \"{memory}\"")).start().await;
        for _ in 0..3 {
            let hashes = larder.get(VERSION_JSON).await.expect(200).json()["archives"]["linux_amd64"]["hashes"].clone();
            assert_eq!(hashes.as_array().unwrap().len(), 1, "{hashes}");
        }
        install(&larder, "null").await;
        until("the `h1:` hash is recorded", async || larder.get(VERSION_JSON).await.text().contains("h1:")).await;
        let archives = larder.get(VERSION_JSON).await.expect(200).json()["archives"].clone();
        assert_eq!(archives["linux_amd64"]["hashes"].as_array().unwrap().len(), 2);
        assert_eq!(archives["darwin_arm64"]["hashes"].as_array().unwrap().len(), 1);
        assert_eq!(upstream.count_of(Target::Versions), 1);
    }
}

/// Freshness: a timestamp in the future counts as stale. The stored copy is revalidated, and served if that fails.
#[tokio::test]
async fn a_document_from_the_future_of_the_clock_is_stale() {
    let mut upstream = upstream_with_two_platforms().await;
    let ahead = Clock::default();
    ahead.advance(DAY * 1000);
    let larder = Larder::mirroring(&upstream).clock(&ahead).start().await;
    let archive = install(&larder, "null").await;
    let folder = larder.stop().await;
    upstream.publish(null().version("1.3.0"));
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    assert!(larder.versions("null").await.expect(200).text().contains("1.3.0"));
    assert_eq!(larder.versions("null").await.expect(200).header("cache-status"), "larder; hit");
    upstream.stop().await;
    assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("detail=stale"));
    larder.get(&archive).await.expect(200);
}

/// Promise 2: while only the archive of the previous proof set is stored, all files of that set are served, also after
/// its 24 h.
#[tokio::test]
async fn the_previous_proof_set_is_served_completely_while_upstream_is_down_if_only_its_archive_is_stored() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(null());
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = install(&larder, "null").await;
    let before = larder.document("null", "1.2.0").await.expect(200);
    upstream.publish(null().edition(2));
    larder.clock.advance(DAY);
    assert_ne!(larder.document("null", "1.2.0").await.expect(200).body, before.body);
    upstream.stop().await;
    larder.clock.advance(DAY * 2);
    let after = larder.document("null", "1.2.0").await.expect(200);
    assert_eq!((after.header("cache-status"), &after.body), ("larder; hit; detail=stale", &before.body));
    larder.get(&archive).await.expect(200);
    for file in ["shasums_url", "shasums_signature_url"] {
        larder.get(before.json()[file].as_str().unwrap()).await.expect(200);
    }
}

/// Promise 6: a platform that was never fetched, with an unconventional file name, does not hide a stored one.
#[tokio::test]
async fn an_unknown_platform_hides_no_known_one_when_the_upstream_is_gone() {
    let mut upstream = FakeUpstream::start().await;
    let odd = null().filename("odd-{platform}.zip");
    upstream.publish(odd.platform("linux_amd64").platform("darwin_arm64"));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder, "null").await;
    let folder = larder.stop().await;
    upstream.stop().await;
    let larder = Larder::mirroring(&upstream).always_revalidate().store_at(&folder).start().await;
    let archives = larder.get(VERSION_JSON).await.expect(200).json()["archives"].clone();
    assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["linux_amd64"]);
}

/// Promise 12: offline, one damaged package record does not hide a platform whose archive is stored.
#[tokio::test]
async fn a_damaged_package_record_hides_no_other_stored_platform() {
    let upstream = upstream_with_two_platforms().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = install(&larder, "null").await;
    let folder = larder.stop().await;
    folder.damage(&folder.files("names")[0]);
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    let archives = larder.get(VERSION_JSON).await.expect(200).json()["archives"].clone();
    assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["linux_amd64"]);
    larder.get(&archive).await.expect(200);
}
