//! Offline, lists name only installable packages (promise 12), in every protocol, however a package was stored or
//! removed.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::git_module_fixture::download_module;
use crate::support::http::{Answer, get};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::{Process, command};
use crate::support::sealed::{store_archive, upstream_with_four_versions};
use crate::support::upstream::{FakeUpstream, Module, Provider, Target};

/// A store with the version list, 1.0.0 for both platforms, 1.1.0 for linux_amd64, 1.2.0 for darwin_arm64, and the
/// proof set of 1.3.0 without its archive.
async fn store_with_some_archives(upstream: &FakeUpstream) -> Folder {
    let larder = Larder::mirroring(upstream).start().await;
    for (version, platform) in
        [("1.0.0", "linux_amd64"), ("1.0.0", "darwin_arm64"), ("1.1.0", "linux_amd64"), ("1.2.0", "darwin_arm64")]
    {
        store_archive(&larder, version, platform).await;
    }
    larder.document("null", "1.3.0").await.expect(200);
    larder.versions("null").await.expect(200);
    larder.stop().await
}

fn sealed(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).network("offline = true").store_at(folder)
}

fn versions_in(list: &Answer) -> Vec<String> {
    let list = list.json()["versions"].clone();
    list.as_array().unwrap().iter().map(|entry| entry["version"].as_str().unwrap().to_owned()).collect()
}

async fn index(larder: &Larder) -> Vec<String> {
    let index = larder.get(&format!("/mirror/{HOST}/acme/null/index.json")).await.expect(200).json();
    index["versions"].as_object().unwrap().keys().cloned().collect()
}

async fn archives(larder: &Larder, version: &str) -> Vec<String> {
    let page = larder.get(&format!("/mirror/{HOST}/acme/null/{version}.json")).await.expect(200).json();
    page["archives"].as_object().unwrap().keys().cloned().collect()
}

/// The versions that both protocols list.
async fn listed(larder: &Larder) -> Vec<String> {
    let listed = versions_in(&larder.versions("null").await.expect(200));
    assert_eq!(index(larder).await, listed);
    listed
}

async fn module_list(larder: &Larder, name: &str) -> Answer {
    larder.get(&format!("/registry/{HOST}/v1/modules/acme/{name}/test/versions")).await
}

fn module_versions(list: &Answer) -> Vec<String> {
    let listed = list.json()["modules"][0]["versions"].clone();
    listed.as_array().unwrap().iter().map(|entry| entry["version"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_offline_list_names_versions_stored_for_any_platform_and_keeps_upstreams_fields() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    upstream.forget_requests();
    let larder = sealed(&upstream, &folder).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
    let entries = larder.versions("null").await.json()["versions"].clone();
    let direct = get(&format!("{}acme/null/versions", upstream.providers_url())).await.json()["versions"].clone();
    assert_eq!(entries.as_array().unwrap()[..], direct.as_array().unwrap()[..3]);
    upstream.forget_requests();
    for (version, platforms) in [
        ("1.0.0", &["darwin_arm64", "linux_amd64"][..]),
        ("1.1.0", &["linux_amd64"]),
        ("1.2.0", &["darwin_arm64"]),
        // The proof set alone does not make 1.3.0 installable.
        ("1.3.0", &[]),
    ] {
        assert_eq!(archives(&larder, version).await, platforms, "{version}");
    }
    // Nothing stored was lost: online, all versions are listed again.
    larder.reload(Larder::mirroring(&upstream)).await.unwrap();
    assert_eq!(listed(&larder).await.len(), 4);
    assert_eq!(upstream.count_of(Target::Versions), 0, "a fresh list was requested again");
    larder.reload(Larder::mirroring(&upstream).network("offline = true")).await.unwrap();
    assert_eq!(listed(&larder).await.len(), 3);
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn with_sealed_platforms_a_list_names_versions_stored_for_all_of_them() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    let larder_for = |platforms: &str| sealed(&upstream, &folder).network(&format!("sealed_platforms = {platforms}"));
    let larder = larder_for("[\"linux_amd64\"]").start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    // An unlisted version is still served to a client that asks for it.
    assert_eq!(archives(&larder, "1.2.0").await, ["darwin_arm64"]);
    // A reload changes the list at once.
    let both = Larder::mirroring(&upstream).network("offline = true");
    larder.reload(both.network("sealed_platforms = [\"linux_amd64\", \"darwin_arm64\"]")).await.unwrap();
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    let none = Larder::mirroring(&upstream).network("offline = true");
    larder.reload(none.network("sealed_platforms = [\"windows_amd64\"]")).await.unwrap();
    for path in
        [format!("/registry/{HOST}/v1/providers/acme/null/versions"), format!("/mirror/{HOST}/acme/null/index.json")]
    {
        let text = larder.get(&path).await.expect(503).text();
        // The newest version that is stored at all.
        let waits = "acme/null 1.2.0: stored for darwin_arm64, waits for windows_amd64 ([network] sealed_platforms);";
        assert!(text.contains(waits), "{text}");
        assert!(text.contains("`larder missing` on larder's machine lists"), "{text}");
    }
}

/// An empty list means "no such provider" to a client; the request is recorded as missing.
#[tokio::test]
async fn a_provider_of_which_only_the_list_is_stored_is_refused_with_the_reason() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("null").await.expect(200);
    let folder = larder.stop().await;
    let larder = sealed(&upstream, &folder).start().await;
    larder.versions("null").await.expect(503);
    larder.get(&format!("/mirror/{HOST}/acme/null/index.json")).await.expect(503);
    assert_eq!(archives(&larder, "1.0.0").await, Vec::<String>::new());
    larder.document("null", "1.0.0").await.expect(404);
    larder.document("null", "7.0.0").await.expect(503);
    larder.get(&format!("/mirror/{HOST}/acme/other/1.0.0.json")).await.expect(503);
}

/// A proof set without its archive is not installable: 404 lets the client look at other platforms.
#[tokio::test]
async fn a_platform_of_which_only_the_proof_set_is_stored_is_404_and_missing() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    let larder = sealed(&upstream, &folder).start().await;
    let text = larder.document("null", "1.3.0").await.expect(404).text();
    assert!(text.contains("offline"), "{text}");
    let missing = get(&format!("{}/admin/v1/missing", larder.admin())).await.expect(200).json();
    let address = format!("{HOST}/acme/null@1.3.0");
    assert_eq!(missing, json!({ "what": [{ "address": address, "platforms": ["linux_amd64"] }] }));
}

/// The list may be older than the stored archives, or absent, when a bundle imported the archives.
#[tokio::test]
async fn stored_versions_are_listed_although_no_list_names_them() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    let list = folder.at(&format!("documents/{HOST}/providers/acme/null/versions"));
    folder.lose(&list);
    folder.lose(&folder.at(&format!("documents/{HOST}/discovery")));
    let larder = sealed(&upstream, &folder).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
    let entry = larder.versions("null").await.json()["versions"][0].clone();
    let platforms = json!([{ "os": "darwin", "arch": "arm64" }, { "os": "linux", "arch": "amd64" }]);
    assert_eq!(entry, json!({ "version": "1.0.0", "platforms": platforms }));
    assert_eq!(archives(&larder, "1.1.0").await, ["linux_amd64"]);
    larder.document("null", "1.1.0").await.expect(200);
    let folder = larder.stop().await;

    // The list is unreadable; below, it lacks a stored version.
    folder.damage(&list);
    let larder = sealed(&upstream, &folder).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
    let folder = larder.stop().await;
    upstream.withdraw("acme", "null", "1.1.0");
    let online = Larder::mirroring(&upstream).upstream_lines("keep_gone = false").store_at(&folder).start().await;
    assert_eq!(listed(&online).await, ["1.0.0", "1.2.0", "1.3.0"]);
    let folder = online.stop().await;
    let larder = sealed(&upstream, &folder).start().await;
    let mut listed = versions_in(&larder.versions("null").await.expect(200));
    listed.sort();
    assert_eq!(listed, ["1.0.0", "1.1.0", "1.2.0"]);
}

/// A rendered answer is replaced as soon as it is outdated.
#[tokio::test]
async fn an_offline_list_follows_fills_and_removals() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    let larder = sealed(&upstream, &folder).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
    larder.run_command("purge", "acme/null@1.2.0").await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    assert_eq!(archives(&larder, "1.2.0").await, Vec::<String>::new());
    // A request finds the damage.
    let path = larder.archive_path("null", "1.1.0").await;
    let digest = crate::support::upstream::sha256_hex(&larder.get(&path).await.expect(200).body);
    std::fs::write(larder.folder.at(&format!("blobs/sha256/{}/{digest}", &digest[..2])), "damaged").unwrap();
    larder.clock.advance(Duration::from_secs(61));
    larder.get(&path).await.expect(503);
    assert_eq!(listed(&larder).await, ["1.0.0"]);

    // Larder is online for a moment.
    larder.reload(Larder::mirroring(&upstream)).await.unwrap();
    store_archive(&larder, "1.3.0", "linux_amd64").await;
    larder.reload(Larder::mirroring(&upstream).network("offline = true")).await.unwrap();
    assert_eq!(listed(&larder).await, ["1.0.0", "1.3.0"]);
}

/// Promise 1: an archive verified under a weaker policy does not count as stored, and is not listed.
#[tokio::test]
async fn versions_below_the_required_verification_are_not_listed() {
    let upstream = upstream_with_four_versions().await;
    let unsigned = Provider::new("acme", "null").version("1.4.0").without_keys();
    upstream.publish(unsigned.platform("linux_amd64"));
    let larder = Larder::mirroring(&upstream).upstream_lines("verification = \"checksum\"").start().await;
    store_archive(&larder, "1.4.0", "linux_amd64").await;
    let folder = larder.stop().await;
    let larder = sealed(&upstream, &folder).upstream_lines("verification = \"checksum\"").start().await;
    assert_eq!(listed(&larder).await, ["1.4.0"]);
    let folder = larder.stop().await;
    let larder = sealed(&upstream, &folder).start().await;
    larder.versions("null").await.expect(503);
}

/// A hit stays a lookup in memory: while nothing changes, the disk is not read.
#[tokio::test]
async fn a_cached_response_is_unchanged_and_says_that_it_is_stale() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    let larder = sealed(&upstream, &folder).start().await;
    larder.clock.advance(Duration::from_secs(3600));
    let list = larder.versions("null").await.expect(200);
    assert!(list.has_cache_status("detail=stale"), "{}", list.header("cache-status"));
    let set_file = folder.at(&format!("documents/{HOST}/providers/acme/null/1.1.0/linux_amd64.set"));
    let set = folder.bytes(&set_file);
    folder.lose(&set_file);
    let again = larder.versions("null").await.expect(200);
    assert!(again.body == list.body && again.has_cache_status("detail=stale"), "{}", again.header("cache-status"));
    larder.clock.advance(Duration::from_secs(5));
    assert_eq!(listed(&larder).await, ["1.0.0", "1.2.0"]);
    folder.put_back(&set_file, &set);
    larder.clock.advance(Duration::from_secs(5));
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
}

#[tokio::test]
async fn offline_module_lists_and_latest_come_from_stored_versions() {
    let fixture = ModuleFixture::start().await;
    for version in ["1.0.0", "v1.1", "2.0.0"] {
        let url = fixture.file(&format!("{version}.tar.gz"), &tar_gz(&[("main.tf", version.as_bytes())]));
        fixture.registry.publish_module(Module::new("acme", "one", "test").version(version).at(&url));
        fixture.registry.publish_module(Module::new("acme", "two", "test").version(version).at(&url));
    }
    let larder = fixture.larder().start().await;
    module_list(&larder, "two").await.expect(200);
    let (location, archive) = download_module(larder.base(), "one").await;
    let download = |version: &str| format!("/registry/{HOST}/v1/modules/acme/one/test/{version}/download");
    let answer = larder.get(&download("1.1.0")).await.expect(204);
    larder.get(answer.header("x-terraform-get").split('?').next().unwrap()).await.expect(200);
    assert_eq!(module_versions(&module_list(&larder, "one").await.expect(200)).len(), 3);
    let folder = larder.stop().await;

    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    // The version has upstream's own spelling.
    let mut listed = module_versions(&module_list(&larder, "one").await.expect(200));
    listed.sort();
    assert_eq!(listed, ["1.0.0", "v1.1"]);
    let latest = larder.get(&format!("/registry/{HOST}/v1/modules/acme/one/test/download")).await.expect(302);
    assert_eq!(latest.header("location"), download("1.1.0"));
    let text = module_list(&larder, "two").await.expect(503).text();
    assert!(
        text.contains(&format!("any version of {HOST}/acme/two/test: this mirror is offline and has not stored it")),
        "{text}"
    );
    larder.run_command("purge", "acme/one/test@1.1.0").await;
    assert_eq!(module_versions(&module_list(&larder, "one").await.expect(200)), ["1.0.0"]);

    // The archive was imported without its list and without its upstream's discovery document.
    let folder = larder.stop().await;
    folder.lose_all("documents");
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    assert_eq!(module_versions(&module_list(&larder, "one").await.expect(200)), ["1.0.0"]);
    assert!(download_module(larder.base(), "one").await == (location, archive));
    let missing = get(&format!("{}/admin/v1/missing", larder.admin())).await.expect(200).json();
    // The requests to the earlier offline larder. This one missed nothing.
    let addresses: Vec<&Value> = missing["what"].as_array().unwrap().iter().map(|entry| &entry["address"]).collect();
    assert_eq!(addresses, [&json!(format!("{HOST}/acme/two/test"))]);
}

/// A cached details page names installable versions and is otherwise unchanged.
#[tokio::test]
async fn a_details_page_names_stored_versions() {
    let upstream = upstream_with_four_versions().await;
    let page = "{ \"id\":\"acme/null/1.3.0\",  \"versions\": [\"1.0.0\",\"v1.1.0\", \"1.3.0\"], \"tag\":\"v1\" }";
    upstream.serve_json("/v1/providers/acme/null", page);
    let path = format!("/registry/{HOST}/v1/providers/acme/null");
    let larder = Larder::mirroring(&upstream).start().await;
    assert_eq!(larder.get(&path).await.expect(200).text(), page);
    let folder = larder.stop().await;
    let folder = {
        let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
        store_archive(&larder, "1.0.0", "linux_amd64").await;
        store_archive(&larder, "1.1.0", "linux_amd64").await;
        larder.stop().await
    };
    let larder = sealed(&upstream, &folder).start().await;
    let shown = "{ \"id\":\"acme/null/1.3.0\",  \"versions\": [\"1.0.0\",\"v1.1.0\"], \"tag\":\"v1\" }";
    assert_eq!(larder.get(&path).await.expect(200).text(), shown);
}

/// `serve --offline` has the same effect as the configuration option.
#[tokio::test]
async fn serve_offline_lists_stored_packages_too() {
    let upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    let file = folder.path().join("mirror.toml");
    std::fs::write(&file, Larder::mirroring(&upstream).store_at(&folder).config_text()).unwrap();
    let mut serve = command(folder.path(), &["serve", "--json", "--offline", "--config"]);
    serve.arg(&file);
    let larder = Process::spawn(serve).unwrap_or_else(|error| panic!("{error:?}"));
    let list = larder.get(&format!("/registry/{HOST}/v1/providers/acme/null/versions")).await.expect(200);
    assert_eq!(versions_in(&list), ["1.0.0", "1.1.0", "1.2.0"]);
}
