//! Bundles: packages warmed on one side of an air gap install on the other, and only verified ones are imported.

use http::Method;
use serde_json::{Value, json};

use crate::support::bundle_transfer::{BundleKey, SealedStore, bundle, bundle_of, contents, outcomes, sealed, warm_up};
use crate::support::estate_fixture::{EstateFixture, PLATFORMS, ROOTS};
use crate::support::git_module_fixture::{GitModuleFixture, ModuleCase, override_through};
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::larder_commands::{run_larder_in, write_config_of_running};
use crate::support::process::{CommandOutput, Process};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, LocationReply, Provider};

/// The arguments that select every configuration and platform of the estate.
fn estate_arguments() -> Vec<String> {
    let platforms = PLATFORMS.map(|platform| format!("--platform={platform}"));
    [vec!["--for=prod".to_owned(), "--for=dev".to_owned()], platforms.to_vec()].concat()
}

async fn create_bundle(estate: &EstateFixture, folder: &Folder, out: &str, extra: &[&str]) -> CommandOutput {
    let selection = estate_arguments();
    let selection: Vec<&str> = selection.iter().map(String::as_str).collect();
    let output =
        run_larder_in(&estate.folder(), folder, &[&["bundle", "create", out], &selection[..], extra].concat()).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    output
}

/// Export and import by running larders: the importing one serves the packages without a restart.
#[tokio::test]
async fn a_bundle_applied_to_a_sealed_larder_installs_in_every_folder() {
    let Some(client) = Terraform::find() else { return };
    let (mut estate, key) = (EstateFixture::new(&client).await, BundleKey::new());
    let (export_folder, import_folder) = (Folder::new(), Folder::new());
    let exporter = Process::start(
        &key.with_signing_key(Larder::mirroring(&estate.upstream).store_at(&export_folder)),
        export_folder.path(),
    );
    write_config_of_running(&export_folder, &exporter);
    let output = create_bundle(&estate, &export_folder, "gap.tar", &[]).await;
    assert!(output.out.contains(&format!("signed by key {}", key.key.public().id())), "{output:?}");
    drop(exporter);
    estate.upstream.stop().await;

    let importer = Process::start(&key.sealed().store_at(&import_folder), import_folder.path());
    write_config_of_running(&import_folder, &importer);
    estate.workspace.cli_config(&override_through(importer.base()));
    estate.init("prod").await.expect_failure();
    let output = run_larder_in(&estate.folder(), &import_folder, &["bundle", "apply", "gap.tar"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("which is trusted here") && !output.out.contains("REFUSED"), "{output:?}");
    for root in ROOTS {
        estate.init(root).await.expect_success();
        estate.lock(root).await.expect_success();
    }
    let lock = std::fs::read_to_string(estate.folder().join("dev/.terraform.lock.hcl")).unwrap();
    assert!(lock.contains("\"h1:") && lock.contains("\"zh:"), "{lock}");
    assert_eq!(import_folder.files("receipts").len(), 1);

    let again = run_larder_in(&estate.folder(), &import_folder, &["bundle", "apply", "gap.tar", "--json"]).await;
    let receipt: Value = serde_json::from_str(again.out.lines().last().unwrap()).unwrap();
    let receipt = &receipt["receipt"];
    assert_eq!((again.code, receipt["ok"].clone()), (Some(0), json!(true)), "{again:?}");
    let entries = receipt["entries"].as_array().unwrap();
    assert!(entries.iter().all(|entry| entry["outcome"] == "held"), "{receipt:#}");
}

/// Export and import without running larders: the commands open the stores themselves.
#[tokio::test]
async fn a_bundle_applied_to_an_unserved_store_installs_once_larder_serves_it() {
    let Some(client) = Terraform::find() else { return };
    let (mut estate, key) = (EstateFixture::new(&client).await, BundleKey::new());
    let (export_folder, import_folder) = (Folder::new(), Folder::new());
    let export_config =
        key.with_signing_key(Larder::mirroring(&estate.upstream)).store_at(&export_folder).config_text();
    std::fs::write(export_folder.path().join("mirror.toml"), export_config).unwrap();
    std::fs::write(import_folder.path().join("mirror.toml"), key.sealed().store_at(&import_folder).config_text())
        .unwrap();
    create_bundle(&estate, &export_folder, "gap.tar", &["--json"]).await;
    estate.upstream.stop().await;
    let output = run_larder_in(&estate.folder(), &import_folder, &["bundle", "apply", "gap.tar"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let importer = Process::start(&key.sealed().store_at(&import_folder), import_folder.path());
    estate.workspace.cli_config(&override_through(importer.base()));
    for root in ROOTS {
        estate.init(root).await.expect_success();
    }
}

/// The output of `larder missing` is a valid input of `bundle create`.
#[tokio::test]
async fn the_missing_list_of_a_sealed_larder_makes_the_next_bundle() {
    let Some(client) = Terraform::find() else { return };
    let (estate, key) = (EstateFixture::new(&client).await, BundleKey::new());
    let (export_folder, import_folder) = (Folder::new(), Folder::new());
    let exporter = Process::start(
        &key.with_signing_key(Larder::mirroring(&estate.upstream).store_at(&export_folder)),
        export_folder.path(),
    );
    write_config_of_running(&export_folder, &exporter);
    let importer = Process::start(&key.sealed().store_at(&import_folder), import_folder.path());
    write_config_of_running(&import_folder, &importer);
    let mut workspace = client.workspace();
    workspace.require("acme/text", ">= 1.0.0").cli_config(&override_through(importer.base()));
    workspace.init().await.expect_failure();
    let work = estate.folder();
    let missing = run_larder_in(&work, &import_folder, &["missing", "--json"]).await;
    assert!(missing.code == Some(0) && missing.out.contains("acme/text"), "{missing:?}");
    std::fs::write(work.join("missing.json"), &missing.out).unwrap();

    let output = run_larder_in(&work, &export_folder, &["bundle", "create", "more.tar", "--for", "missing.json"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let output = run_larder_in(&work, &import_folder, &["bundle", "apply", "more.tar"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    workspace.init().await.expect_success();
    assert!(workspace.lock_file().contains("2.0.0"), "{}", workspace.lock_file());
    let missing = run_larder_in(&work, &import_folder, &["missing", "--json"]).await;
    assert!(!missing.out.contains("acme/text"), "{missing:?}");
}

/// A delta contains the new packages, the documents that clients need to find them, and nothing else.
#[tokio::test]
async fn a_delta_contains_only_the_new_packages() {
    const OLD_BYTES: usize = 3_000_000;
    const NEW_BYTES: usize = 500_000;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    for name in ["one", "two", "three"] {
        upstream.publish(Provider::new("acme", name).size(OLD_BYTES));
    }
    let larder = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let job = warm_up(&larder, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let full_bundle = bundle_of(&larder, &job, None).await;
    assert!(full_bundle.len() > 3 * OLD_BYTES);
    let importer = SealedStore::new(key.sealed());
    assert!(importer.apply(full_bundle.clone(), &key.trust()).await.unwrap().ok);
    let inventory =
        serde_json::to_value(importer.mirror.transfers.inventory(larder::clock::Timestamp(1)).unwrap()).unwrap();

    upstream.publish(Provider::new("acme", "two").version("1.3.0").size(NEW_BYTES));
    larder.run_command("refresh", "acme/two").await;
    let job = warm_up(&larder, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let delta = bundle_of(&larder, &job, Some(inventory)).await;
    // The rest of a delta, such as its manifest and its documents, needs less than 40 kB.
    assert!((NEW_BYTES..NEW_BYTES + 40_000).contains(&delta.len()), "{} bytes", delta.len());
    let receipt = importer.apply(delta, &key.trust()).await.unwrap();
    assert!(receipt.ok, "{receipt:#?}");
    let outcomes: Vec<String> = outcomes(&receipt).into_iter().map(|(subject, _)| subject).collect();
    assert_eq!(
        outcomes,
        [
            format!("the discovery document of {HOST}"),
            format!("the version list of {HOST}/acme/two"),
            format!("{HOST}/acme/two 1.3.0 (linux_amd64)"),
        ]
    );
    let folder = importer.close().await;
    let importer = key.sealed().store_at(&folder).start().await;
    let version_list = importer.versions("two").await.expect(200).text();
    assert!(version_list.contains("1.2.0") && version_list.contains("1.3.0"), "{version_list}");
    let path = importer.archive_path("two", "1.3.0").await;
    assert!(
        importer.get(&path).await.expect(200).body == upstream.archive_bytes("acme", "two", "1.3.0", "linux_amd64")
    );

    // A delta to a complete inventory contains no packages.
    let inventory = get(&format!("{}/admin/v1/inventory", larder.admin())).await.expect(200).json();
    let empty_delta = bundle_of(&larder, &job, Some(inventory)).await;
    assert!(empty_delta.len() < 4096, "{}", empty_delta.len());
}

/// A delta with a new proof set omits the unchanged archive.
#[tokio::test]
async fn a_delta_with_a_new_proof_set_omits_the_stored_archive() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null").size(900_000));
    let larder = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let importer = SealedStore::new(key.sealed());
    let full_bundle = bundle_of(&larder, &job, None).await;
    assert!(importer.apply(full_bundle, &key.trust()).await.unwrap().ok);
    let inventory = importer.mirror.transfers.inventory(larder::clock::Timestamp(1)).unwrap();
    upstream.publish(Provider::new("acme", "null").size(900_000).unknown_fields());
    larder.run_command("refresh", "acme/null").await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let delta = bundle_of(&larder, &job, Some(serde_json::to_value(inventory).unwrap())).await;
    assert!(delta.len() < 60_000, "{}", delta.len());
    let receipt = importer.apply(delta.clone(), &key.trust()).await.unwrap();
    assert!(receipt.ok, "{receipt:#?}");
    // A store without the archives of that inventory refuses the delta's entry.
    let receipt = SealedStore::new(key.sealed()).apply(delta, &key.trust()).await.unwrap();
    let (subject, reason) = crate::support::bundle_transfer::refusal(&receipt);
    assert_eq!(subject, format!("{HOST}/acme/null 1.2.0 (linux_amd64)"));
    assert!(reason.contains("a delta for an inventory of another store"), "{reason}");
}

/// Equal contents and time give equal bytes, in an ordinary tar.
#[tokio::test]
async fn a_bundle_made_twice_is_the_same_and_opens_as_any_tar() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    let provider = Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64");
    upstream.publish(provider);
    upstream.publish(Provider::new("acme", "other"));
    let larder = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let first = warm_up(&larder, &["acme/null", "acme/other"], &["linux_amd64"]).await;
    let second = warm_up(&larder, &["acme/other", "acme/null"], &["linux_amd64"]).await;
    let first = bundle_of(&larder, &first, None).await;
    assert!(first == bundle_of(&larder, &second, None).await);
    let mut archive = tar::Archive::new(&first[..]);
    let names: Vec<String> =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    assert_eq!(names[..2], ["larder-bundle.json", "larder-bundle.sig"]);
    assert!(names[2..].iter().all(|name| name.starts_with("sha256/")));
    let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
}

/// The manifest records commit and tree of a git module; the import digests the tree again.
#[tokio::test]
async fn a_git_module_is_bundled_with_its_commit_and_installs() {
    let Some(client) = Terraform::find() else { return };
    let Some(mut fixture) = GitModuleFixture::start(None).await else { return };
    let key = BundleKey::new();
    let location = fixture.git_https_source("?ref=v1.0.0");
    let case = ModuleCase {
        name: "net".to_owned(),
        subdir_suffix: "",
        location,
        location_reply: LocationReply::NoContent,
        expected_tag: None,
    };
    fixture.publish(&case);
    let larder = key.with_signing_key(fixture.larder()).start().await;
    let job = warm_up(&larder, &["acme/net/test@1.0.0"], &[]).await;
    let bundle = bundle_of(&larder, &job, None).await;
    // The manifest follows the first tar header, which has 512 bytes.
    let manifest = String::from_utf8_lossy(&bundle[512..8192]).into_owned();
    assert!(manifest.contains(r#""kind":"module","module":"registry.terraform.io/acme/net/test""#), "{manifest}");
    assert!(manifest.contains(r#""commit":""#) && manifest.contains(r#""tree":""#), "{manifest}");
    fixture.stop().await;
    let importer = SealedStore::new(key.sealed());
    let receipt = importer.apply(bundle, &key.trust()).await.unwrap();
    assert!(receipt.ok, "{receipt:#?}");
    let folder = importer.close().await;
    let importer = key.sealed().store_at(&folder).start().await;
    let mut workspace = client.workspace();
    workspace
        .file("main.tf", &crate::support::git_module_fixture::module_calls(&[case]))
        .cli_config(&override_through(importer.base()));
    workspace.init().await.expect_success();
}

/// A bundle exported from the importing store is identical to the first one.
#[tokio::test]
async fn applied_packages_can_be_bundled_again() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null"));
    let first = bundle(&upstream, &key, &["acme/null"], &["linux_amd64"]).await;
    let importer = SealedStore::new(key.sealed());
    assert!(importer.apply(first.clone(), &key.trust()).await.unwrap().ok);
    let folder = importer.close().await;
    let exporter = key.with_signing_key(sealed()).store_at(&folder).start().await;
    let job = warm_up(&exporter, &["acme/null"], &["linux_amd64"]).await;
    assert!(bundle_of(&exporter, &job, None).await == first);
}

#[tokio::test]
async fn the_admin_listener_reports_why_it_makes_no_bundle() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null"));
    let larder = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let request = async |method: Method, path: &str, content_type: &str, body: String| {
        let request = client().request(method, format!("{}{path}", larder.admin())).bearer_auth(larder.token());
        send(request.header("content-type", content_type).body(body)).await.unwrap()
    };
    let (create, apply) = ("/admin/v1/bundle", "/admin/v1/bundle/apply");
    let (json, tar) = ("application/json", "application/x-tar");
    for (body, status, reason) in [
        ("{}", 400, "missing field"),
        (r#"{"job":"0011223344556677"}"#, 404, "no job"),
        (r#"{"job":"x"}"#, 400, "not a job id"),
    ] {
        let answer = request(Method::POST, create, json, body.to_owned()).await.expect(status);
        assert!(answer.text().contains(reason), "{body}: {}", answer.text());
    }
    request(Method::GET, create, json, String::new()).await.expect(405);
    request(Method::POST, apply, json, String::new()).await.expect(415);
    let answer = request(Method::POST, apply, tar, "x".repeat(2000)).await.expect(400);
    assert!(answer.text().contains("not a larder bundle"), "{}", answer.text());
    let answer = request(Method::POST, apply, tar, String::new()).await.expect(400);
    assert!(answer.text().contains("truncated"), "{}", answer.text());
    let answer = request(Method::POST, &format!("{apply}?trusted"), tar, String::new()).await.expect(400);
    assert!(answer.text().contains("?unsigned"), "{}", answer.text());
    let request = client().post(format!("{}{apply}", larder.admin())).header("content-type", tar).body("");
    send(request).await.unwrap().expect(401);
}

#[tokio::test]
async fn an_older_bundle_replaces_nothing_newer() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null"));
    let older = bundle(&upstream, &key, &["acme/null"], &["linux_amd64"]).await;
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    let larder = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    // Times have a resolution of one second: only a later second makes the list newer.
    larder.clock.advance(std::time::Duration::from_secs(5));
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let newer = bundle_of(&larder, &job, None).await;
    let importer = SealedStore::new(key.sealed());
    assert!(importer.apply(newer, &key.trust()).await.unwrap().ok);
    let contents_before = contents(&importer.folder);
    let receipt = importer.apply(older, &key.trust()).await.unwrap();
    assert!(receipt.ok);
    let contents_after = contents(&importer.folder);
    for (name, file) in contents_before {
        if !name.starts_with("seen/") {
            assert!(contents_after[&name] == file, "{name}");
        }
    }
    let version_list = format!("documents/{HOST}/providers/acme/null/versions");
    assert!(String::from_utf8_lossy(&contents_after[&version_list]).contains("1.3.0"));
}
