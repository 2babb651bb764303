//! `complete_hashes`: download documents with the hashes of every platform where upstream sends none, in the form that
//! OpenTofu 1.12 reads.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::larder::{HOST, Larder};
use crate::support::programs::find;
use crate::support::terraform::{Terraform, host_override};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target, sha256_hex};

const PLATFORMS: [&str; 4] = ["linux_amd64", "darwin_arm64", "windows_amd64", "freebsd_386"];
/// The platforms whose archives are fetched for their hashes.
const COMPLETED: &str = r#"complete_hashes = ["linux_amd64", "darwin_arm64"]"#;
const TOFU: &str = "registry.opentofu.org";

fn provider(name: &str) -> Provider {
    PLATFORMS.iter().fold(Provider::new("acme", name).size(1000), |provider, platform| provider.platform(platform))
}

/// The `packages` of a document, once it has as many `h1:` as this.
async fn packages(larder: &Larder, name: &str, h1_count: usize) -> Value {
    eventually("the hashes of every platform", async || {
        let packages = larder.document(name, "1.2.0").await.expect(200).json()["packages"].clone();
        (packages.to_string().matches("\"h1:").count() == h1_count).then_some(packages)
    })
    .await
}

/// A list and a document, as a client asks for them, and the archive.
async fn install(larder: &Larder, name: &str) {
    larder.versions(name).await.expect(200);
    larder.get(&larder.archive_path(name, "1.2.0").await).await.expect(200);
}

#[tokio::test]
async fn a_document_gets_the_hashes_of_every_platform_and_its_archives_are_fetched_once() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null"));
    let larder = Larder::mirroring(&upstream).upstream_lines(COMPLETED).start().await;
    larder.versions("null").await.expect(200);
    // Nothing is stored yet, so the size that clients compare is unknown.
    assert_eq!(larder.document("null", "1.2.0").await.expect(200).json()["packages"], Value::Null);
    install(&larder, "null").await;
    let packages = packages(&larder, "null", 2).await;
    for platform in PLATFORMS {
        let archive = upstream.archive_bytes("acme", "null", "1.2.0", platform);
        let package = &packages[platform];
        assert_eq!(package["hashes"][0], format!("zh:{}", sha256_hex(&archive)), "{packages:#}");
        let (count, size) = match platform {
            "linux_amd64" | "darwin_arm64" => (2, json!(archive.len())),
            _ => (1, Value::Null),
        };
        assert_eq!(
            (package["hashes"].as_array().unwrap().len(), &package["package_size"]),
            (count, &size),
            "{packages:#}"
        );
    }
    assert_eq!(packages.as_object().unwrap().len(), PLATFORMS.len());
    assert_eq!(upstream.count_of(Target::Archive), 2);
    // The other document says the same, and nothing is fetched again.
    let other = larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200).json();
    assert_eq!(other["packages"], packages);
    assert_eq!(upstream.count_of(Target::Archive), 2);
}

/// Promise 5: what upstream sends is relayed as it is.
#[tokio::test]
async fn packages_of_upstream_are_relayed_and_without_the_option_none_are_added() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("own").packages_member());
    upstream.publish(provider("none"));
    let [with, without] = [COMPLETED, ""].map(|line| Larder::mirroring(&upstream).upstream_lines(line).start());
    let (with, without) = (with.await, without.await);
    for larder in [&with, &without] {
        install(larder, "own").await;
        install(larder, "none").await;
    }
    packages(&with, "none", 2).await;
    let relayed = with.document("own", "1.2.0").await.expect(200);
    assert_eq!(relayed.body, without.document("own", "1.2.0").await.expect(200).body);
    assert_eq!(relayed.json()["packages"].as_object().unwrap().len(), PLATFORMS.len());
    assert_eq!(without.document("none", "1.2.0").await.expect(200).json()["packages"], Value::Null);
}

/// Both flavours of the `h1:`, where a zip has folder entries: a client checks a zip by one and a folder by the other.
#[tokio::test]
async fn both_flavours_of_the_package_hash_are_listed_where_they_differ() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null").directory_entries());
    let larder = Larder::mirroring(&upstream).upstream_lines(COMPLETED).start().await;
    install(&larder, "null").await;
    let packages = packages(&larder, "null", 4).await;
    assert_eq!(packages["linux_amd64"]["hashes"].as_array().unwrap().len(), 3, "{packages:#}");
}

/// Promise 1: without a signature, only of archives that larder verified itself.
#[tokio::test]
async fn of_an_unsigned_set_only_verified_archives_are_listed() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null").without_keys());
    let lines = "verification = \"checksum\"\ncomplete_hashes = [\"linux_amd64\", \"darwin_arm64\", \"windows_amd64\"]";
    let larder = Larder::mirroring(&upstream).upstream_lines(lines).start().await;
    install(&larder, "null").await;
    eventually("three archives", async || (larder.folder.blobs().len() == 3).then_some(())).await;
    // One platform has no hash, and a reader of the member would read no other list.
    eventually("the hashes", async || larder.folder.has_all_hashes().then_some(())).await;
    assert_eq!(larder.document("null", "1.2.0").await.expect(200).json()["packages"], Value::Null);
    larder
        .get(larder.document_for("null", "1.2.0", "freebsd_386").await.json()["download_url"].as_str().unwrap())
        .await;
    let packages = packages(&larder, "null", 4).await;
    assert_eq!(packages.as_object().unwrap().len(), PLATFORMS.len());
    for platform in PLATFORMS {
        let archive = upstream.archive_bytes("acme", "null", "1.2.0", platform);
        assert_eq!(packages[platform]["hashes"][0], format!("zh:{}", sha256_hex(&archive)));
    }
}

/// Archives under names that say nothing of their platform have no hash for the others.
#[tokio::test]
async fn a_document_without_a_hash_for_each_platform_stays_as_it_is() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null").filename("renamed-{platform}.zip"));
    let larder = Larder::mirroring(&upstream).upstream_lines(COMPLETED).start().await;
    install(&larder, "null").await;
    eventually("the hashes", async || larder.folder.has_all_hashes().then_some(())).await;
    assert_eq!(larder.document("null", "1.2.0").await.expect(200).json()["packages"], Value::Null);
}

/// After its eviction an archive is not fetched again for its hashes, and VERSION.json has them, too.
#[tokio::test]
async fn hashes_stay_after_an_eviction() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two", "three", "four"] {
        upstream.publish(provider(name).size(300_000));
    }
    let line = r#"complete_hashes = ["linux_amd64"]"#;
    let larder = Larder::mirroring(&upstream).upstream_lines(line).store("max_size = \"1MiB\"").start().await;
    install(&larder, "one").await;
    let before = packages(&larder, "one", 1).await;
    for name in ["two", "three", "four"] {
        larder.clock.advance(Duration::from_secs(120));
        install(&larder, name).await;
        packages(&larder, name, 1).await;
    }
    let one = upstream.archive_bytes("acme", "one", "1.2.0", "linux_amd64");
    assert!(
        !larder.folder.blobs().iter().any(|path| std::fs::read(path).unwrap() == one),
        "the archive is still stored"
    );
    upstream.forget_requests();
    assert_eq!(packages(&larder, "one", 1).await, before);
    let mirror = larder.get(&format!("/mirror/{HOST}/acme/one/1.2.0.json")).await.expect(200).json();
    let hashes = mirror["archives"]["linux_amd64"]["hashes"].to_string();
    assert!(hashes.contains("h1:") && hashes.contains("zh:"), "{mirror:#}");
    assert_eq!(upstream.count_of(Target::Archive), 0);
}

/// With OpenTofu's default registry, one `init` locks every platform and downloads its own archive. Terraform and older
/// OpenTofu ignore the member: their lock file is the one without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_init_locks_every_platform_where_the_client_reads_them() {
    let Some(client) = Terraform::find_since(1, 10) else { return };
    let reads_packages = client.workspace().run(&["version"]).await.text.contains("OpenTofu v1.12");
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null"));
    let url = format!("{}/", upstream.origin());
    let larder = Larder::builder().upstream(TOFU, &url, COMPLETED).start().await;
    let service = |name: &str| format!("{}/registry/{TOFU}/v1/{name}/", larder.base());
    let init = async || {
        let mut workspace = client.workspace();
        workspace.cli_config(&host_override(TOFU, &service("providers"), &service("modules")));
        workspace.require(&format!("{TOFU}/acme/null"), "1.2.0").init().await.expect_success();
        workspace.lock_file()
    };
    let counts = |lock_file: &str| ["\"h1:", "\"zh:"].map(|scheme| lock_file.matches(scheme).count());
    assert_eq!(counts(&init().await), [1, 5]);
    let document = format!("/registry/{TOFU}/v1/providers/acme/null/1.2.0/download/linux/amd64");
    eventually("the hashes of every platform", async || {
        let document = larder.get(&document).await.expect(200).json();
        (document["packages"].to_string().matches("\"h1:").count() == 2).then_some(())
    })
    .await;
    upstream.forget_requests();
    let lock_file = init().await;
    assert_eq!(counts(&lock_file), if reads_packages { [2, 5] } else { [1, 5] }, "{lock_file}");
    assert_eq!(upstream.count_of(Target::Archive), 0);
}

/// Terragrunt's cache server reads the member of any registry, and locks for the client behind it. `LARDER_TERRAGRUNT_CACHE`
/// names a Terragrunt of at least 1.1 (`tests/clients/run terragrunt`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terragrunts_cache_server_locks_every_platform() {
    let Some(program) = std::env::var("LARDER_TERRAGRUNT_CACHE").ok() else { return };
    let (terragrunt, client) = (Terraform::find_named(&program).unwrap(), Terraform::find().unwrap());
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null"));
    let larder = Larder::mirroring(&upstream).upstream_lines(COMPLETED).start().await;
    install(&larder, "null").await;
    packages(&larder, "null", 2).await;
    upstream.forget_requests();
    let mut workspace = client.workspace();
    workspace.cli_config(larder.client_config());
    workspace.file("terragrunt.hcl", "").require("acme/null", "1.2.0");
    let terraform = find("terraform").unwrap();
    let arguments = ["run", "--provider-cache", "--provider-cache-registry-names", HOST, "--tf-path"];
    let init = [terraform.to_str().unwrap(), "--", "init", "-no-color", "-input=false"];
    workspace.run_with(&terragrunt, &[&arguments[..], &init].concat()).await.expect_success();
    let lock_file = workspace.lock_file();
    let counts = ["\"h1:", "\"zh:"].map(|scheme| lock_file.matches(scheme).count());
    assert_eq!(counts, [2, 4], "{lock_file}");
    assert_eq!(upstream.count_of(Target::Archive), 0);
}

/// An archive that upstream refuses is not asked for again with each document.
#[tokio::test]
async fn an_archive_that_cannot_be_had_is_tried_once() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null"));
    upstream.publish(provider("other"));
    let darwin = Target::Archive.with_path_part("null_1.2.0_darwin");
    upstream.fault(darwin.clone(), Fault::Status(403));
    let larder = Larder::mirroring(&upstream).upstream_lines(COMPLETED).start().await;
    install(&larder, "null").await;
    upstream.wait_for(darwin.clone(), 1).await;
    // The worker has gone on to the next one.
    install(&larder, "other").await;
    packages(&larder, "other", 2).await;
    upstream.forget_requests();
    for _ in 0..20 {
        let packages = larder.document("null", "1.2.0").await.expect(200).json()["packages"].clone();
        assert_eq!(packages["darwin_arm64"]["hashes"].as_array().map(Vec::len), Some(1), "{packages:#}");
    }
    assert_eq!(upstream.count_of(darwin), 0);
}

/// The member is an addition: without the store the document is there all the same.
#[tokio::test]
async fn without_the_store_a_document_comes_without_the_hashes() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("null"));
    let larder = Larder::mirroring(&upstream).upstream_lines(COMPLETED).start().await;
    larder.versions("null").await.expect(200);
    let (store, away) = (larder.folder.path().join("v1"), larder.folder.path().join("away"));
    std::fs::rename(&store, &away).unwrap();
    assert_eq!(larder.document("null", "1.2.0").await.expect(200).json()["packages"], Value::Null);
    larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200);
    std::fs::rename(&away, &store).unwrap();
}
