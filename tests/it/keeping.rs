//! What stays: withdrawn upstream, sealed, restarted, replaced; and two registries side by side.

use std::time::Duration;

use larder::clock::Clock;

use crate::support::http::get;
use crate::support::larder::{HOST, Larder};
use crate::support::reports::name;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const DAY: Duration = Duration::from_secs(24 * 3600);
const VERSION: &str = "/mirror/registry.terraform.io/acme/null/1.2.0.json";

fn null() -> Provider {
    Provider::new("acme", "null")
}

async fn publishing() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().platform("linux_amd64").platform("darwin_arm64"));
    upstream
}

/// Fetches an archive by its document, and says where it was.
async fn install(larder: &Larder, name: &str) -> String {
    let path = larder.archive_path(name, "1.2.0").await;
    larder.get(&path).await.expect(200);
    path
}

/// Promise 6 and section 4: a version that upstream has dropped stays listed and installable, and says so.
#[tokio::test]
async fn a_version_that_upstream_withdrew_stays_while_it_is_stored() {
    let upstream = publishing().await;
    upstream.publish(null().version("1.1.0"));
    let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
    let archive = install(&larder, "null").await;
    let document = larder.document("null", "1.2.0").await.expect(200).body;
    upstream.withdraw("acme", "null", "1.2.0");
    upstream.withdraw("acme", "null", "1.1.0");

    let listed = larder.versions("null").await.expect(200).json();
    let listed: Vec<_> = listed["versions"].as_array().unwrap().iter().map(|entry| &entry["version"]).collect();
    assert_eq!(listed, ["1.2.0"], "what was not held is gone, what was is not");
    let gone = larder.document("null", "1.2.0").await.expect(200);
    assert_eq!((gone.header("cache-status"), &gone.body), ("larder; hit; detail=gone", &document));
    assert_eq!(larder.get(&archive).await.expect(200).header("cache-status"), "larder; hit");
    let version = larder.get(VERSION).await.expect(200);
    assert_eq!(version.header("cache-status"), "larder; hit; detail=gone");
    assert!(version.json()["archives"]["linux_amd64"]["url"].is_string());
}

/// Section 4: the same for a provider that is gone altogether, whether upstream says 404 or 410.
#[tokio::test]
async fn a_provider_that_upstream_withdrew_stays_while_it_is_stored() {
    for status in [404, 410] {
        let upstream = publishing().await;
        let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
        let archive = install(&larder, "null").await;
        let list = larder.versions("null").await.expect(200).body;
        upstream.fault(Target::Path("/v1/providers/".into()), Fault::Status(status));
        upstream.fault(Target::Archive, Fault::Status(status));
        for _ in 0..2 {
            let gone = larder.versions("null").await.expect(200);
            assert_eq!((gone.header("cache-status"), &gone.body), ("larder; hit; detail=gone", &list));
            assert!(larder.document("null", "1.2.0").await.expect(200).is("detail=gone"));
            larder.get(&archive).await.expect(200);
        }
        upstream.heal();
        assert!(larder.versions("null").await.expect(200).is("fwd=stale; stored"));
        assert!(larder.document("null", "1.2.0").await.expect(200).is("fwd=stale; stored"));
    }
}

/// Section 4: without `keep_gone` what upstream has deleted is deleted here.
#[tokio::test]
async fn without_keep_gone_what_upstream_deletes_is_gone() {
    let upstream = publishing().await;
    let larder = Larder::mirroring(&upstream).with("keep_gone = false").nothing_stays_fresh().start().await;
    install(&larder, "null").await;
    upstream.withdraw("acme", "null", "1.2.0");
    assert_eq!(larder.versions("null").await.expect(200).json()["versions"], serde_json::json!([]));
    larder.document("null", "1.2.0").await.expect(404);
    assert_eq!(larder.get(VERSION).await.expect(200).body, b"{\"archives\":{}}");

    upstream.fault(Target::Versions, Fault::Status(404));
    larder.versions("null").await.expect(404);
    upstream.heal();
    upstream.fault(Target::Versions, Fault::Status(500));
    larder.versions("null").await.expect(502);
}

/// PROTOCOL 3.4: a 404 to VERSION.json ends an `init`; a version that is listed and has no package left has no archives.
#[tokio::test]
async fn a_listed_version_whose_packages_are_gone_has_no_archives() {
    let upstream = publishing().await;
    let fresh = "keep_gone = false\nfresh = { download = \"0s\" }";
    let larder = Larder::mirroring(&upstream).with(fresh).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    upstream.fault(Target::Path("/download/linux/amd64".into()), Fault::Status(404));
    let archives = larder.get(VERSION).await.expect(200).json()["archives"].clone();
    assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["darwin_arm64", "linux_amd64"]);
    upstream.fault(Target::Document, Fault::Status(404));
    assert_eq!(larder.get(VERSION).await.expect(200).body, b"{\"archives\":{}}");
}

/// Freshness: a 404 is believed for its own time only, also where it is a part of a longer-lived answer.
#[tokio::test]
async fn a_platform_that_was_absent_appears_once_its_404_is_no_longer_believed() {
    let upstream = FakeUpstream::start().await;
    // Without the conventional file name, a platform costs its own document.
    let odd = null().platform("linux_amd64").platform("darwin_arm64").filename("odd-{platform}.zip");
    upstream.publish(odd);
    upstream.fault(Target::Path("/download/darwin/arm64".into()), Fault::Status(404));
    let larder = Larder::mirroring(&upstream).start().await;
    let platforms = async || {
        let archives = larder.get(VERSION).await.expect(200).json()["archives"].clone();
        archives.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(platforms().await, ["linux_amd64"]);
    }
    upstream.heal();
    larder.clock.advance(Duration::from_secs(30));
    assert_eq!(platforms().await, ["darwin_arm64", "linux_amd64"]);
}

/// Section 3: `keep_gone = false` also lets go of what was kept listed before it was set.
#[tokio::test]
async fn dropped_versions_disappear_when_keep_gone_is_switched_off() {
    let upstream = publishing().await;
    let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
    install(&larder, "null").await;
    upstream.withdraw("acme", "null", "1.2.0");
    assert!(larder.versions("null").await.expect(200).text().contains("1.2.0"));
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).with("keep_gone = false").nothing_stays_fresh().on(&folder);
    let larder = larder.start().await;
    assert_eq!(larder.versions("null").await.expect(200).json()["versions"], serde_json::json!([]));
}

/// Promise 12: sealed, what is held is served however old, nothing goes out, and what is missing says why.
#[tokio::test]
async fn offline_serves_stored_packages_and_asks_no_upstream() {
    let upstream = publishing().await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let archive = install(&larder, "null").await;
    let (list, document) = (larder.versions("null").await.body, larder.document("null", "1.2.0").await.body);
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).network("offline = true").clock(&clock).on(&folder).start().await;
    for status in ["larder; hit", "larder; hit; detail=stale"] {
        let held = larder.versions("null").await.expect(200);
        assert_eq!((held.header("cache-status"), &held.body), (status, &list));
        let held = larder.document("null", "1.2.0").await.expect(200);
        assert_eq!((held.header("cache-status"), &held.body), (status, &document));
        assert_eq!(larder.get(&archive).await.expect(200).header("cache-status"), "larder; hit");
        let archives = larder.get(VERSION).await.expect(200).json()["archives"].clone();
        assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["linux_amd64"]);
        clock.advance(DAY * 400);
    }
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(404);
    let absent = "/registry/registry.terraform.io/v1/providers/acme/absent";
    let zip = "/archive/registry.terraform.io/providers/acme/absent/1.0.0/linux_amd64/0123456789abcdef/a.zip";
    for missing in [format!("{absent}/versions"), format!("{absent}/1.0.0/download/linux/amd64"), zip.into()] {
        let said = larder.get(&missing).await.expect(503).json()["errors"][0].as_str().unwrap().to_owned();
        assert!(said.contains("acme/absent") && said.contains("offline"), "{said}");
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

/// Section 4: offline, a known version of which nothing is held has no archives.
#[tokio::test]
async fn offline_a_listed_version_without_archives_has_none() {
    let upstream = publishing().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).network("offline = true").on(&folder).start().await;
    assert_eq!(larder.get(VERSION).await.expect(200).body, b"{\"archives\":{}}");
}

/// Promise 13: the same version of the same provider has other bytes in another registry.
#[tokio::test]
async fn two_registries_never_mix() {
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

/// Promise 4: a restart forgets nothing that was held: documents, archives, both files beside them, the h1.
#[tokio::test]
async fn a_restart_keeps_everything() {
    let upstream = publishing().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = install(&larder, "null").await;
    until("the h1 is there", async || larder.get(VERSION).await.text().contains("h1:")).await;
    let document = larder.document("null", "1.2.0").await.json();
    let discovery = format!("/registry/{HOST}/.well-known/terraform.json");
    let list = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    let of_document = |name: &str| document[name].as_str().unwrap().to_owned();
    let paths = [of_document("shasums_url"), of_document("shasums_signature_url"), archive, list, discovery];
    let mut before = Vec::new();
    for path in paths.into_iter().chain([VERSION.to_owned()]) {
        before.push((path.clone(), larder.get(&path).await.expect(200).body));
    }
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).on(&folder).start().await;
    for (path, body) in before {
        let after = larder.get(&path).await.expect(200);
        assert_eq!((after.header("cache-status"), &after.body), ("larder; hit", &body), "{path}");
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// Section 4: rendered answers are made again when what they tell of has changed.
#[tokio::test]
async fn the_h1_appears_in_an_answer_that_was_rendered_before() {
    for memory in ["64MiB", "1KiB", "0B"] {
        let upstream = publishing().await;
        let larder = Larder::mirroring(&upstream).store(&format!("memory = \"{memory}\"")).start().await;
        for _ in 0..3 {
            let hashes = larder.get(VERSION).await.expect(200).json()["archives"]["linux_amd64"]["hashes"].clone();
            assert_eq!(hashes.as_array().unwrap().len(), 1, "{hashes}");
        }
        install(&larder, "null").await;
        until("the h1 is there", async || larder.get(VERSION).await.text().contains("h1:")).await;
        let archives = larder.get(VERSION).await.expect(200).json()["archives"].clone();
        assert_eq!(archives["linux_amd64"]["hashes"].as_array().unwrap().len(), 2);
        assert_eq!(archives["darwin_arm64"]["hashes"].as_array().unwrap().len(), 1);
        assert_eq!(upstream.count_of(Target::Versions), 1);
    }
}

/// Freshness: an age that lies in the future means nothing; what is held is asked about again, and served meanwhile.
#[tokio::test]
async fn a_clock_that_was_set_back_makes_nothing_fresh_for_ever() {
    let mut upstream = publishing().await;
    let ahead = Clock::default();
    ahead.advance(DAY * 1000);
    let larder = Larder::mirroring(&upstream).clock(&ahead).start().await;
    let archive = install(&larder, "null").await;
    let folder = larder.stop().await;
    upstream.publish(null().version("1.3.0"));
    let larder = Larder::mirroring(&upstream).on(&folder).start().await;
    assert!(larder.versions("null").await.expect(200).text().contains("1.3.0"));
    assert_eq!(larder.versions("null").await.expect(200).header("cache-status"), "larder; hit");
    upstream.stop().await;
    assert!(larder.document("null", "1.2.0").await.expect(200).is("detail=stale"));
    larder.get(&archive).await.expect(200);
}

/// Promise 2: while only the predecessor's archive is held, its whole set answers, also after its 24 h.
#[tokio::test]
async fn a_replaced_set_whose_archive_alone_is_stored_answers_whole_while_upstream_is_down() {
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

/// Promise 6: a platform that was never fetched, and whose file name nobody can guess, hides none that is held.
#[tokio::test]
async fn an_unknown_platform_hides_no_known_one_when_the_upstream_is_gone() {
    let mut upstream = FakeUpstream::start().await;
    let odd = null().filename("odd-{platform}.zip");
    upstream.publish(odd.platform("linux_amd64").platform("darwin_arm64"));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder, "null").await;
    let folder = larder.stop().await;
    upstream.stop().await;
    let larder = Larder::mirroring(&upstream).nothing_stays_fresh().on(&folder).start().await;
    let archives = larder.get(VERSION).await.expect(200).json()["archives"].clone();
    assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["linux_amd64"]);
}

/// Promise 12: in a sealed network, one damaged name takes no platform away whose archive is held.
#[tokio::test]
async fn a_damaged_name_hides_nothing_that_is_stored() {
    let upstream = publishing().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = install(&larder, "null").await;
    let folder = larder.stop().await;
    std::fs::write(folder.files("names").remove(0), "ruined").unwrap();
    let larder = Larder::mirroring(&upstream).network("offline = true").on(&folder).start().await;
    let archives = larder.get(VERSION).await.expect(200).json()["archives"].clone();
    assert_eq!(archives.as_object().unwrap().keys().collect::<Vec<_>>(), ["linux_amd64"]);
    larder.get(&archive).await.expect(200);
}
