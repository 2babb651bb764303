//! `larder import`: trees of the real `terraform providers mirror` and of larder, with every kind of evidence.

use std::path::{Path, PathBuf};

use crate::support::command_setup::CommandSetup;
use crate::support::eventually;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::{Process, command, spawn_captured};
use crate::support::provider_trees::{export, exporter_and_tree, folder_of, upstream, workspace_requiring};
use crate::support::terraform::{Terraform, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::tree_imports::{lock_of_upstream, sealed, states};
use crate::support::upstream::{FakeUpstream, Provider, Target};

/// A tree that the real client makes, through a larder.
async fn tree_made_by_terraform(client: &Terraform, upstream: &FakeUpstream, folder: &Path) -> PathBuf {
    let larder = Larder::mirroring(upstream).start().await;
    let workspace = workspace_requiring(client);
    workspace.cli_config(&host_override(HOST, &larder.providers_url(HOST), "http://127.0.0.1:9/v1/modules/"));
    let tree = folder.join("tree");
    let platforms = ["-platform=linux_amd64", "-platform=darwin_arm64"];
    let arguments = [&["providers", "mirror"], &platforms[..], &[tree.to_str().unwrap()]].concat();
    workspace.run(&arguments).await.expect_success();
    tree
}

fn archive_count(folder: &Folder) -> usize {
    folder.blobs().len()
}

/// The report names what the layout does not contain, and everything else works.
#[tokio::test]
async fn a_tree_of_terraform_is_imported_unsigned_into_a_sealed_mirror_and_served() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream().await;
    let home = Folder::new();
    let tree = tree_made_by_terraform(&client, &upstream, home.path()).await;
    upstream.stop().await;
    let setup = sealed(&upstream);
    let tree_path = tree.to_str().unwrap();

    let refused = setup.run(&["import", tree_path]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.out.contains("it is not verified: this mirror is offline"), "{refused:?}");
    assert!(refused.out.contains("--unsigned imports it on your word"), "{refused:?}");
    assert_eq!(archive_count(&setup.home), 0);

    let output = setup.stdout_of(&["import", tree_path, "--unsigned"]).await;
    assert!(output.contains("4 archives: you alone vouch for them"), "{output}");
    assert!(output.contains("authentication signature from unknown issuer"), "{output}");
    assert!(setup.stdout_of(&["status"]).await.contains("4 archives without signatures"));
    assert!(setup.stdout_of(&["verify"]).await.contains("4 archives as imported"));
    // The plan names the complete platforms, and the export names the missing ones.
    let plan = setup.run(&["plan", "acme/null@1.2.0", "acme/random", "--platform", "linux_amd64"]).await;
    assert_eq!(plan.code, Some(3), "{plan:?}");
    let words: Vec<&str> = plan.out.split_whitespace().collect();
    assert_eq!(words.join(" ").matches("through the network mirror only").count(), 3, "{plan:?}");
    assert!(!plan.out.contains("`init` will work offline"), "{plan:?}");
    let exported = home.path().join("again");
    let output = setup
        .stdout_of(&["export", exported.to_str().unwrap(), "--for", "acme/null", "--platform", "linux_amd64"])
        .await;
    assert!(output.contains("the tree has no proof of them"), "{output}");
    let again = setup.stdout_of(&["import", tree_path, "--unsigned", "--json"]).await;
    assert!(states(&again).iter().all(|state| state.ends_with(" held")), "{again}");

    let ca = TestCa::new();
    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true");
    let larder = larder.tls(&ca, &["127.0.0.1"]).start().await;
    let mut by_mirror = workspace_requiring(&client);
    by_mirror.trust(&ca.pem()).cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    let output = by_mirror.init().await.expect_success();
    assert!(output.text.contains("verified checksum"), "{}", output.text);
    assert_eq!(by_mirror.lock_file().matches("\"h1:").count(), 2);

    // The import's warning about the registry protocol equals the client's error.
    let mut by_registry = workspace_requiring(&client);
    by_registry.trust(&ca.pem());
    by_registry.cli_config(&host_override(HOST, &larder.providers_url(HOST), "https://127.0.0.1:9/v1/modules/"));
    let output = by_registry.init().await.expect_failure();
    let words: Vec<&str> = output.text.split_whitespace().collect();
    assert!(words.join(" ").contains("authentication signature from unknown issuer"), "{}", output.text);
    larder.stop().await;
    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true").start().await;
    let document = larder.document("null", "1.2.0").await.expect(200).json();
    let sums = larder.get(document["shasums_url"].as_str().unwrap()).await.expect(200).text();
    assert_eq!(sums.lines().count(), 2, "both platforms: {sums}");
    larder.get(document["shasums_signature_url"].as_str().unwrap()).await.expect(200);
}

/// Only documents are fetched; the imported packages are served like downloaded ones.
#[tokio::test]
async fn a_connected_mirror_verifies_a_tree_with_documents_of_upstream_only() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream().await;
    let expected = lock_of_upstream(&client, &upstream).await;
    let home = Folder::new();
    let tree = tree_made_by_terraform(&client, &upstream, home.path()).await;
    let setup = CommandSetup::new(&upstream);
    let running = setup.serve();
    upstream.forget_requests();

    let output = setup.stdout_of(&["import", tree.to_str().unwrap()]).await;
    assert!(output.contains("4 archives") && output.contains("by upstream's documents"), "{output}");
    assert_eq!(upstream.count_of(Target::Archive), 0, "an archive was fetched");
    assert_eq!(archive_count(&setup.home), 4);
    running.terminate().await;

    upstream.stop().await;
    let ca = TestCa::new();
    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true");
    let larder = larder.tls(&ca, &["127.0.0.1"]).start().await;
    let mut by_registry = workspace_requiring(&client);
    by_registry.trust(&ca.pem());
    by_registry.cli_config(&host_override(HOST, &larder.providers_url(HOST), "https://127.0.0.1:9/v1/modules/"));
    by_registry.init().await.expect_success();
    assert_eq!(by_registry.lock_file(), expected, "a complete lock file");
    let mut by_mirror = workspace_requiring(&client);
    by_mirror.trust(&ca.pem()).cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    by_mirror.init().await.expect_success();
}

/// Promise 1: the maker of a tree may also have made the key that signs it.
#[tokio::test]
async fn an_exported_tree_is_verified_by_a_known_key_or_one_that_the_operator_trusts() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream().await;
    let expected = lock_of_upstream(&client, &upstream).await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    upstream.stop().await;

    let setup = sealed(&upstream);
    let refused = setup.run(&["import", tree.to_str().unwrap()]).await;
    assert_eq!((refused.code, archive_count(&setup.home)), (Some(1), 0), "{refused:?}");
    assert!(refused.out.contains("signed by a key from the tree that never signed"), "{refused:?}");
    let output = setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned", "--json"]).await;
    assert!(states(&output).iter().all(|state| state.ends_with(" proven")), "{output}");
    assert!(output.contains("signed by a key from the tree that never signed"), "{output}");
    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true").start().await;
    let by_registry = workspace_requiring(&client);
    by_registry.cli_config(&host_override(HOST, &larder.providers_url(HOST), "http://127.0.0.1:9/v1/modules/"));
    by_registry.init().await.expect_success();
    assert_eq!(by_registry.lock_file(), expected);
    let document = larder.document_for("random", "3.0.1", "darwin_arm64").await.expect(200).json();
    let signature = larder.get(document["shasums_signature_url"].as_str().unwrap()).await.expect(200);
    assert_eq!(signature.body, upstream.signature_bytes("acme", "random", "3.0.1"));
    let zip = larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
    assert_eq!(zip.body, upstream.archive_bytes("acme", "random", "3.0.1", "darwin_arm64"));
    larder.stop().await;
    // A verified tree is known by its key the next time.
    let output = setup.stdout_of(&["import", tree.to_str().unwrap()]).await;
    assert!(output.contains("4 archives already") && !output.contains("never signed"), "{output}");
}

/// The version is listed to clients, and is verified as soon as upstream has it.
#[tokio::test]
async fn a_package_that_upstream_does_not_know_is_imported_with_an_explicit_option_and_listed() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    let other = FakeUpstream::start().await;
    let setup = CommandSetup::new(&other);
    for name in ["null", "random"] {
        for entry in std::fs::read_dir(folder_of(&tree, name)).unwrap() {
            let path = entry.unwrap().path();
            let is_proof = path.to_string_lossy().contains("SHA256SUMS");
            if is_proof {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
    let refused = setup.run(&["import", tree.to_str().unwrap()]).await;
    assert!(refused.code == Some(1) && refused.out.contains("registry.terraform.io does not know it"), "{refused:?}");
    setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    let larder = Larder::mirroring(&other).always_revalidate().store_at(&setup.home).start().await;
    let listed = larder.get(&format!("/mirror/{HOST}/acme/null/index.json")).await.expect(200).json();
    assert_eq!(listed, serde_json::json!({ "versions": { "1.2.0": {} } }));
    let archives = larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200).json();
    assert_eq!(archives["archives"].as_object().unwrap().len(), 2, "{archives}");

    // As soon as upstream has the package, the same bytes are verified with its proof set.
    other.publish(crate::support::warm_fixture::both_platforms(
        Provider::new("acme", "null").version("1.2.0").size(200_000),
    ));
    let document = larder.document("null", "1.2.0").await.expect(200).json();
    assert!(document["signing_keys"]["gpg_public_keys"][0].is_object(), "{document}");
    other.forget_requests();
    let zip = larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
    assert_eq!(zip.body, other.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    assert_eq!(other.count_of(Target::Archive), 0, "a stored archive was fetched");
    // Other bytes raise an alarm and are not imported silently.
    other.publish(crate::support::warm_fixture::both_platforms(
        Provider::new("acme", "random").version("3.0.1").edition(2),
    ));
    let document = larder.document("random", "3.0.1").await.expect(200).json();
    let zip = larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
    assert_eq!(zip.body, other.archive_bytes("acme", "random", "3.0.1", "linux_amd64"));
    let status = crate::support::http::get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert_eq!(status["alarms"][0]["kind"], "imported-differs", "{status}");
}

/// Promise 14: a lost record of a verified version is no reason to import it unsigned.
#[tokio::test]
async fn no_unsigned_archive_is_imported_with_a_damaged_first_seen_record() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    let setup = sealed(&upstream);
    let earlier_upstream = FakeUpstream::start().await;
    earlier_upstream.publish(crate::support::warm_fixture::both_platforms(
        Provider::new("acme", "null").version("1.2.0").edition(7),
    ));
    let larder = Larder::mirroring(&earlier_upstream).store_at(&setup.home).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    larder.stop().await;
    setup.home.lose_all("documents");
    let is_of_version = |file: &&PathBuf| file.ends_with("1.2.0.json");
    let seen = setup.home.files("seen");
    setup.home.damage(seen.iter().find(is_of_version).unwrap());
    for entry in std::fs::read_dir(folder_of(&tree, "null")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("SHA256SUMS") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let output = setup.run(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    assert!(output.code == Some(1) && output.out.contains("first-seen record is damaged"), "{output:?}");
    assert!(output.out.contains(&format!("larder accept {HOST}/acme/null@1.2.0")), "{output:?}");
    assert!(setup.home.files("names").iter().all(|name| !name.to_string_lossy().contains("/null/")));
}

#[tokio::test]
async fn an_import_that_was_killed_leaves_a_consistent_store_and_the_same_command_continues() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two", "three", "four", "five", "six"] {
        upstream.publish(Provider::new("acme", name).size(3_000_000));
    }
    let (exporter, tree) = exporter_and_tree(&upstream);
    let options = ["one", "two", "three", "four", "five", "six"].map(|name| format!("--for=acme/{name}"));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let arguments = [&["export", tree.to_str().unwrap(), "--platform", "linux_amd64"], &options[..]].concat();
    exporter.stdout_of(&arguments).await;
    let setup = sealed(&upstream);
    let file = setup.file();
    let import = ["import", tree.to_str().unwrap(), "--unsigned", "--json", "--config", file.to_str().unwrap()];
    for reported_count in [1, 3] {
        let (import_process, out, _) = spawn_captured(command(setup.home.path(), &import));
        eventually("the import reports this many files", async || {
            (out.text().matches("\"file\"").count() >= reported_count).then_some(())
        })
        .await;
        drop(import_process);
        let reported_states = states(&out.text()[..out.text().rfind('\n').map_or(0, |end| end + 1)]);
        let imported_count = reported_states.iter().filter(|state| !state.ends_with(" refused")).count();
        assert!(archive_count(&setup.home) >= imported_count, "a reported archive is not stored");
        let verified = setup.stdout_of(&["verify"]).await;
        assert!(verified.contains("everything is intact"), "{verified}");
    }
    setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    assert_eq!(archive_count(&setup.home), 6);
    assert!(setup.home.partial_downloads().is_empty(), "{:?}", setup.home.partial_downloads());
    let larder = Process::serve(&setup.text, setup.home.path()).unwrap_or_else(|error| panic!("{error:?}"));
    larder.get(&larder.archive_path("six").await).await.expect(200);
}
