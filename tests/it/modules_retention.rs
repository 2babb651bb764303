//! Stored modules outlive an upstream that is down or gone, offline mode, restarts, eviction and damage; and two
//! registries side by side.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::git_module_fixture::{ModuleLocation, download_module, download_path};
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, noise, tar_gz, unpack_tar_gz};
use crate::support::upstream::{FakeUpstream, Fault, Module, Target};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn status(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()
}

fn list_path(name: &str) -> String {
    format!("/registry/{HOST}/v1/modules/acme/{name}/test/versions")
}

/// Promise 6: a stored module is served while the registry, the archive host or both are down, also after a restart.
#[tokio::test]
async fn a_stored_module_is_served_while_every_upstream_is_down() {
    let mut fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().always_revalidate().start().await;
    let list = larder.get(&list_path("one")).await.expect(200).body;
    let (location, archive) = download_module(larder.base(), "one").await;
    fixture.archives.stop().await;
    assert!(download_module(larder.base(), "one").await == (location.clone(), archive.clone()));
    fixture.registry.stop().await;
    let response = larder.get(&download_path("one")).await.expect(204);
    assert!(response.has_cache_status("detail=stale"), "{}", response.header("cache-status"));
    let folder = larder.stop().await;
    let larder = fixture.larder_on(&folder).always_revalidate().start().await;
    assert!(download_module(larder.base(), "one").await == (location, archive));
    assert!(larder.get(&list_path("one")).await.expect(200).body == list);
}

/// An upstream failure is reported with its cause and not cached.
#[tokio::test]
async fn an_uncached_module_fails_with_the_cause_and_is_served_once_upstream_recovers() {
    let mut fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    let path = download_path("one");
    for (fault, status, words) in [
        (Fault::Status(500), 502, "500"),
        (Fault::Status(503), 503, "503"),
        (Fault::Status(401), 502, "401"),
        (Fault::Status(403), 502, "403"),
        (Fault::Html, 502, "neither X-Terraform-Get"),
    ] {
        // This page names no source, neither in a header nor in its body.
        if matches!(fault, Fault::Html) {
            fixture.registry.serve_json("/v1/modules/acme/one/test/1.0.0/download", "{}");
        } else {
            fixture.registry.fault(Target::Location, fault.clone());
        }
        let message = larder.get(&path).await.expect(status).text();
        assert!(message.contains(words) && message.contains("acme/one/test"), "{fault:?}: {message}");
        fixture.registry.clear_faults();
        fixture.registry.stop_serving("/v1/modules/acme/one/test/1.0.0/download");
    }
    fixture.archives.stop().await;
    let message = larder.get(&path).await.expect(502).text();
    assert!(message.contains(&fixture.archives.origin()), "{message}");
    fixture.archives.restart().await;
    download_module(larder.base(), "one").await;
    assert_eq!((larder.folder.blobs().len(), larder.folder.partial_downloads().len()), (1, 0));
}

/// With `keep_gone`, a stored module is served although upstream answers 404 or 410.
#[tokio::test]
async fn a_module_that_upstream_deleted_is_kept_with_keep_gone() {
    for status in [404, 410] {
        let fixture = ModuleFixture::with_one_module().await;
        let larder = fixture.larder().always_revalidate().start().await;
        let (location, archive) = download_module(larder.base(), "one").await;
        fixture.registry.fault(Target::Location, Fault::Status(status));
        fixture.registry.fault(Target::ModuleVersions, Fault::Status(status));
        let response = larder.get(&download_path("one")).await.expect(204);
        assert!(response.has_cache_status("detail=gone"), "{}", response.header("cache-status"));
        assert!(ModuleLocation::of(&response) == location);
        assert!(larder.get(&list_path("one")).await.expect(200).has_cache_status("detail=gone"));
        assert!(larder.get(&location.path).await.expect(200).body == archive);

        let other = fixture.larder().upstream_lines("keep_gone = false").always_revalidate().start().await;
        other.get(&download_path("one")).await.expect(404);
        fixture.registry.clear_faults();
        download_module(other.base(), "one").await;
        fixture.registry.fault(Target::Location, Fault::Status(status));
        other.get(&download_path("one")).await.expect(404);
    }
}

/// A stored version that the list has dropped stays listed, with an alarm.
#[tokio::test]
async fn a_version_of_a_module_that_upstream_dropped_stays_listed() {
    let fixture = ModuleFixture::with_one_module().await;
    fixture.registry.publish_module(Module::new("acme", "one", "test").version("2.0.0").at(&fixture.url("one.tar.gz")));
    let larder = fixture.larder().always_revalidate().start().await;
    let (location, _) = download_module(larder.base(), "one").await;
    fixture.registry.withdraw_module("acme", "one", "test", "1.0.0");
    let list = larder.get(&list_path("one")).await.expect(200).json();
    let listed: Vec<_> = list["modules"][0]["versions"].as_array().unwrap().iter().map(|v| &v["version"]).collect();
    assert_eq!(listed, ["2.0.0", "1.0.0"]);
    let response = larder.get(&download_path("one")).await.expect(204);
    assert!(response.has_cache_status("detail=gone") && ModuleLocation::of(&response) == location);
    assert_eq!(status(&larder).await["alarms"][0]["kind"], "dropped");
}

/// Promise 12: offline, nothing is sent upstream.
#[tokio::test]
async fn offline_stored_modules_are_served_at_any_age_and_errors_name_the_missing_ones() {
    let fixture = ModuleFixture::with_one_module().await;
    fixture.publish_archive("two", &tar_gz(&[("main.tf", b"# two\n")]));
    let larder = fixture.larder().start().await;
    let (location, archive) = download_module(larder.base(), "one").await;
    let (other, _) = download_module(larder.base(), "two").await;
    larder.run_command("purge", "acme/two/test@1.0.0").await;
    // The location is cached; the archive is not stored.
    fixture.archives.fault(Target::ModuleArchive, Fault::Status(500));
    larder.get(&download_path("two")).await.expect(502);
    fixture.archives.clear_faults();
    let folder = larder.stop().await;
    fixture.registry.forget_requests();
    fixture.archives.forget_requests();
    let connections = fixture.registry.connections();
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    for cache_status in ["larder; hit", "larder; hit; detail=stale"] {
        let answer = larder.get(&download_path("one")).await.expect(204);
        assert_eq!(answer.header("cache-status"), cache_status);
        assert!(ModuleLocation::of(&answer) == location);
        assert!(larder.get(&location.path).await.expect(200).body == archive);
        larder.clock.advance(DAY * 400);
    }
    let plain = format!("/archive/{HOST}/modules/acme/two/test/1.0.0/module.tar.gz");
    for path in [download_path("two"), other.path.clone(), plain, download_path("absent"), list_path("absent")] {
        let message = larder.get(&path).await.expect(503).text();
        assert!(message.contains("offline") && message.contains("larder missing"), "{path}: {message}");
    }
    let missing: Vec<String> =
        status(&larder).await["missing"].as_array().unwrap().iter().map(crate::support::reports::name).collect();
    assert_eq!(
        missing,
        [
            format!("{HOST}/acme/absent/test"),
            format!("{HOST}/acme/absent/test@1.0.0"),
            format!("{HOST}/acme/two/test@1.0.0"),
        ]
    );
    assert_eq!((fixture.registry.connections(), fixture.archives.requests().len()), (connections, 0));
    assert_eq!(fixture.registry.requests().len(), 0);
}

/// An evicted module is packed again into the same bytes; a pinned one is not evicted.
#[tokio::test]
async fn an_evicted_module_comes_back_with_the_same_digest_and_a_pinned_one_stays() {
    let fixture = ModuleFixture::start().await;
    for (seed, name) in ["one", "two", "three"].into_iter().enumerate() {
        fixture.publish_archive(name, &tar_gz(&[("noise", &noise(seed as u32, 450_000))]));
    }
    let larder = fixture.larder().store("max_size = \"1MiB\"").start().await;
    let (first, archive) = download_module(larder.base(), "one").await;
    larder.run_command("pin", "acme/one/test@1.0.0").await;
    let (second, _) = download_module(larder.base(), "two").await;
    download_module(larder.base(), "three").await;
    assert_eq!(larder.folder.blobs().len(), 2, "two had to go");
    assert!(larder.get(&first.path).await.expect(200).body == archive);
    let response = ModuleLocation::of(&larder.get(&download_path("one")).await);
    assert!(response == first, "{response:?}");
    larder.run_command("unpin", "acme/one/test@1.0.0").await;
    let (again, _) = download_module(larder.base(), "two").await;
    assert!(again == second, "{again:?}");
    assert_eq!(larder.metric("larder_evictions_total").await, 2.0);
}

/// Promise 13: two registries may have the same module coordinates.
#[tokio::test]
async fn the_same_module_of_two_registries_is_never_mixed() {
    let (fixture, other_registry) = (ModuleFixture::with_one_module().await, FakeUpstream::start().await);
    let url = fixture.file("other.tar.gz", &tar_gz(&[("main.tf", b"# the other one\n")]));
    other_registry.publish_module(Module::new("acme", "one", "test").at(&url));
    let larder =
        fixture.larder().upstream("registry.opentofu.org", &format!("{}/", other_registry.origin()), "").start().await;
    let (location, archive) = download_module(larder.base(), "one").await;
    let path = download_path("one").replace(HOST, "registry.opentofu.org");
    let other_location = ModuleLocation::of(&larder.get(&path).await);
    let other = larder.get(&other_location.path).await.expect(200).body;
    assert_eq!(unpack_tar_gz(&archive)["main.tf"], b"# one\n");
    assert_eq!(unpack_tar_gz(&other)["main.tf"], b"# the other one\n");
    larder.get(&location.path.replace(HOST, "registry.opentofu.org")).await.expect(404);
    larder.run_command("purge", "registry.opentofu.org/acme/one/test").await;
    assert!(ModuleLocation::of(&larder.get(&download_path("one")).await) == location);
}

/// Without `fold_case`, the first-seen record of one spelling does not apply to another.
#[tokio::test]
async fn modules_that_differ_in_case_only_have_separate_first_seen_records() {
    let fixture = ModuleFixture::with_one_module().await;
    let other = fixture.file("other.tar.gz", &tar_gz(&[("main.tf", b"# the other one\n")]));
    fixture.registry.publish_module(Module::new("Acme", "one", "test").at(&other));
    let larder = fixture.larder().upstream_lines("fold_case = false").start().await;
    let (_, archive) = download_module(larder.base(), "one").await;
    assert_eq!(unpack_tar_gz(&archive)["main.tf"], b"# one\n");
    let path = download_path("one").replace("/acme/", "/Acme/");
    let location = ModuleLocation::of(&larder.get(&path).await);
    assert_eq!(unpack_tar_gz(&larder.get(&location.path).await.expect(200).body)["main.tf"], b"# the other one\n");
    assert_eq!(status(&larder).await["alarms"], json!([]));
}

/// First-seen records survive a change of `fold_case`, so a moved version stays refused.
#[tokio::test]
async fn first_seen_records_apply_after_a_change_of_fold_case() {
    for (before, after) in [(false, true), (true, false)] {
        let fixture = ModuleFixture::with_one_module().await;
        let url = fixture.url("one.tar.gz");
        fixture.registry.publish_module(Module::new("Acme", "One", "test").at(&url));
        let path = format!("/registry/{HOST}/v1/modules/Acme/One/test/1.0.0/download");
        let larder = fixture.larder().upstream_lines(&format!("fold_case = {before}")).start().await;
        larder.get(&path).await.expect(204);
        let folder = larder.stop().await;
        fixture.file("one.tar.gz", &tar_gz(&[("main.tf", b"# moved\n")]));
        let larder = fixture.larder_on(&folder).upstream_lines(&format!("fold_case = {after}")).start().await;
        let refused = larder.get(&path).await.expect(502).text();
        assert!(refused.contains("larder accept"), "{after}: {refused}");
    }
}

/// With `fold_case`, all spellings of a module share one archive; without, each has its own.
#[tokio::test]
async fn a_module_in_another_case_is_the_same_module_with_fold_case() {
    for (fold_case, fetches) in [(true, 1), (false, 2)] {
        let fixture = ModuleFixture::with_one_module().await;
        fixture.registry.publish_module(Module::new("Acme", "One", "test").at(&fixture.url("one.tar.gz")));
        let larder = fixture.larder().upstream_lines(&format!("fold_case = {fold_case}")).start().await;
        let (location, archive) = download_module(larder.base(), "one").await;
        let path = format!("/registry/{HOST}/v1/modules/Acme/One/test/1.0.0/download");
        let other = ModuleLocation::of(&larder.get(&path).await);
        assert_eq!(other.sha256, location.sha256);
        assert!(larder.get(&other.path).await.expect(200).body == archive);
        assert_eq!(fixture.archives.count_of(Target::ModuleArchive), fetches, "fold_case = {fold_case}");
        assert_eq!(larder.folder.files("names").len(), fetches);
    }
}

fn flip(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Promise 10: damage is repaired for archives of any size, whether a request or `verify` finds it.
#[tokio::test]
async fn a_damaged_module_archive_is_quarantined_and_fetched_again() {
    for size in [1000, 2_000_000] {
        for found_by_verify in [true, false] {
            let fixture = ModuleFixture::start().await;
            fixture.publish_archive("one", &tar_gz(&[("noise", &noise(1, size))]));
            let larder = fixture.larder().start().await;
            let (location, archive) = download_module(larder.base(), "one").await;
            let folder = larder.stop().await;
            flip(&folder.blobs()[0]);
            let larder = fixture.larder_on(&folder).start().await;
            if found_by_verify {
                let request = client().post(format!("{}/admin/v1/verify", larder.admin())).bearer_auth(larder.token());
                let request = request.header("content-type", "application/json").body("{}");
                let message = send(request).await.unwrap().expect(200).text();
                assert!(message.contains("acme/one/test@1.0.0"), "{message}");
            }
            let again = larder.get(&location.path).await.expect(200);
            assert!(again.body == archive, "{size} {found_by_verify}");
            assert_eq!(folder.files("aside").len(), 1);
            assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 2);
            assert!(ModuleLocation::of(&larder.get(&download_path("one")).await) == location);
        }
    }
}

/// Promise 10: a damaged package record or first-seen record costs at most one fetch; the first tree stays the only
/// accepted one.
#[tokio::test]
async fn a_damaged_package_or_first_seen_record_is_rewritten_and_the_first_tree_stays() {
    for subfolder in ["names", "seen"] {
        let fixture = ModuleFixture::with_one_module().await;
        let folder = Folder::new();
        let larder = fixture.larder_on(&folder).always_revalidate().start().await;
        let (location, archive) = download_module(larder.base(), "one").await;
        larder.stop().await;
        folder.damage(&folder.files(subfolder)[0]);
        let larder = fixture.larder_on(&folder).always_revalidate().start().await;
        assert!(download_module(larder.base(), "one").await == (location.clone(), archive.clone()), "{subfolder}");
        // The new archive is compared with the record.
        fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# moved\n")]));
        larder.run_command("refresh", "acme/one/test").await;
        assert_eq!(status(&larder).await["alarms"][0]["kind"], "moved", "{subfolder}");
        assert!(download_module(larder.base(), "one").await == (location, archive), "{subfolder}");
    }
}

/// Ranges and conditions work as for any stored archive; the location has no body.
#[tokio::test]
async fn a_stored_module_archive_answers_ranges_conditions_and_heads() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    let (location, archive) = download_module(larder.base(), "one").await;
    let plain = format!("/archive/{HOST}/modules/acme/one/test/1.0.0/module.tar.gz");
    for path in [&location.path, &plain] {
        let whole = larder.get(path).await.expect(200);
        assert_eq!(whole.header("content-length"), archive.len().to_string());
        assert_eq!(whole.header("accept-ranges"), "bytes");
        // The URL without a digest serves the current archive.
        let cache_control = if path == &location.path { "max-age=31536000, immutable" } else { "no-cache" };
        assert_eq!(whole.header("cache-control"), cache_control, "{path}");
        let head = larder.head(path).await.expect(200);
        assert_eq!((head.header("content-length"), head.body.len()), (whole.header("content-length"), 0));
        let part = larder.get_with(path, &[("range", "bytes=10-19")]).await.expect(206);
        assert!(part.body == archive[10..20]);
        let etag = whole.header("etag");
        let unchanged = larder.get_with(path, &[("if-none-match", etag)]).await.expect(304);
        assert_eq!((unchanged.header("cache-control"), unchanged.header("etag")), (cache_control, etag));
        let changed = larder.get_with(path, &[("range", "bytes=10-19"), ("if-range", "\"another\"")]).await.expect(200);
        assert!(changed.body == archive);
        larder.get_with(path, &[("range", "bytes=999999999-")]).await.expect(416);
    }
    for answer in [larder.get(&download_path("one")).await, larder.head(&download_path("one")).await] {
        assert_eq!((answer.status, answer.header("content-length"), answer.body.len()), (204, "", 0));
        assert!(answer.header("x-terraform-get").contains("?checksum=sha256:"));
        assert_eq!(answer.header("transfer-encoding"), "");
    }
}
