//! `larder export`: a tree for `filesystem_mirror`, or for a plain web server as `network_mirror`, with the proof of
//! each archive beside it.

use std::path::Path;

use serde_json::Value;

use crate::support::nginx::Nginx;
use crate::support::programs::find;
use crate::support::provider_trees::{export, exporter_and_tree, folder_of, upstream, workspace_requiring};
use crate::support::terraform::{Terraform, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{Module, Target, sha256_hex};

fn file_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn filesystem_mirror_config(tree: &Path) -> String {
    format!("provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n", tree.display())
}

#[tokio::test]
async fn an_exported_tree_works_as_a_filesystem_mirror_and_under_nginx_as_a_network_mirror() {
    let (Some(client), Some(nginx_program)) = (Terraform::find(), find("nginx")) else { return };
    let upstream = upstream().await;
    let (setup, tree) = exporter_and_tree(&upstream);
    export(&setup, &tree).await;

    let from_filesystem = workspace_requiring(&client);
    from_filesystem.cli_config(&filesystem_mirror_config(&tree));
    from_filesystem.init().await.expect_success();
    let lock = from_filesystem.lock_file();
    assert!(lock.contains("version     = \"1.2.0\"") && lock.contains("version     = \"3.0.1\""), "{lock}");

    let ca = TestCa::new();
    let nginx = Nginx::serve(&nginx_program, &tree, &ca).await;
    let mut from_nginx = workspace_requiring(&client);
    from_nginx.trust(&ca.pem()).cli_config(&network_mirror(&format!("{}/", nginx.origin())));
    let output = from_nginx.init().await.expect_success();
    assert!(output.text.contains("verified checksum"), "{}", output.text);
    assert_eq!(from_nginx.lock_file(), lock);
    // Installs again by that lock file alone, also the zip with entries for folders.
    from_nginx
        .run(&["providers", "lock", "-net-mirror", &format!("{}/", nginx.origin()), "-platform=darwin_arm64"])
        .await
        .expect_success();
}

#[tokio::test]
async fn an_exported_tree_has_sums_and_signatures_byte_for_byte_beside_each_archive() {
    let upstream = upstream().await;
    let (setup, tree) = exporter_and_tree(&upstream);
    let output = export(&setup, &tree).await;
    assert!(output.contains("4 archives written"), "{output}");
    let null = folder_of(&tree, "null");
    assert_eq!(
        file_names(&null),
        [
            "1.2.0.json",
            "index.json",
            "terraform-provider-null_1.2.0_SHA256SUMS",
            "terraform-provider-null_1.2.0_SHA256SUMS.sig",
            "terraform-provider-null_1.2.0_darwin_arm64.json",
            "terraform-provider-null_1.2.0_darwin_arm64.zip",
            "terraform-provider-null_1.2.0_linux_amd64.json",
            "terraform-provider-null_1.2.0_linux_amd64.zip",
        ]
    );
    let read_file = |name: &str| std::fs::read(null.join(name)).unwrap();
    assert_eq!(read_file("terraform-provider-null_1.2.0_SHA256SUMS"), upstream.sums_bytes("acme", "null", "1.2.0"));
    assert_eq!(
        read_file("terraform-provider-null_1.2.0_SHA256SUMS.sig"),
        upstream.signature_bytes("acme", "null", "1.2.0")
    );
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    assert_eq!(read_file("terraform-provider-null_1.2.0_linux_amd64.zip"), zip);
    let document = json(&null.join("terraform-provider-null_1.2.0_linux_amd64.json"));
    assert_eq!(document["download_url"], "terraform-provider-null_1.2.0_linux_amd64.zip");
    assert_eq!(document["shasums_signature_url"], "terraform-provider-null_1.2.0_SHA256SUMS.sig");
    let key = document["signing_keys"]["gpg_public_keys"][0]["ascii_armor"].as_str().unwrap();
    assert!(key.contains("BEGIN PGP PUBLIC KEY BLOCK"));
    let listed = &json(&null.join("1.2.0.json"))["archives"]["linux_amd64"];
    assert_eq!(listed["url"], "terraform-provider-null_1.2.0_linux_amd64.zip");
    assert_eq!(listed["hashes"][0], format!("zh:{}", sha256_hex(&zip)));
    assert!(listed["hashes"][1].as_str().unwrap().starts_with("h1:"));
    assert_eq!(json(&null.join("index.json")), serde_json::json!({ "versions": { "1.2.0": {} } }));
}

#[tokio::test]
async fn an_export_into_an_existing_tree_neither_fetches_nor_rewrites_existing_files() {
    let upstream = upstream().await;
    let (setup, tree) = exporter_and_tree(&upstream);
    export(&setup, &tree).await;
    let zip = folder_of(&tree, "null").join("terraform-provider-null_1.2.0_linux_amd64.zip");
    let before = std::fs::metadata(&zip).unwrap();
    // The tree contains a leftover of an interrupted run, and a foreign zip.
    let leftover = folder_of(&tree, "null").join(".larder-terraform-provider-null_1.2.0_linux_amd64.zip");
    std::fs::write(&leftover, b"half").unwrap();
    let foreign_zip = folder_of(&tree, "null").join("terraform-provider-null_1.3.0_linux_amd64.zip");
    std::fs::write(&foreign_zip, upstream.archive_bytes("acme", "null", "1.3.0", "linux_amd64")).unwrap();
    upstream.forget_requests();

    let larder = setup.serve();
    let output = export(&setup, &tree).await;
    assert!(output.contains("0 archives written") && output.contains("4 already there"), "{output}");
    assert_eq!(upstream.count_of(Target::Archive), 0);
    let after = std::fs::metadata(&zip).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    assert!(!leftover.exists());
    let index = json(&folder_of(&tree, "null").join("index.json"));
    assert_eq!(index, serde_json::json!({ "versions": { "1.2.0": {}, "1.3.0": {} } }));
    let listed = json(&folder_of(&tree, "null").join("1.3.0.json"));
    assert!(listed["archives"]["linux_amd64"]["hashes"][1].as_str().unwrap().starts_with("h1:"), "{listed}");

    // A damaged file is written again.
    std::fs::write(&zip, b"damaged").unwrap();
    let output = export(&setup, &tree).await;
    assert!(output.contains("1 archive written") && output.contains("3 already there"), "{output}");
    assert_eq!(std::fs::read(&zip).unwrap(), upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    drop(larder);
}

#[tokio::test]
async fn an_export_reports_omitted_modules_and_is_incomplete_only_with_partial() {
    let upstream = upstream().await;
    upstream.publish_module(Module::new("acme", "one", "test").at("https://127.0.0.1:9/gone.tar.gz"));
    let (setup, tree) = exporter_and_tree(&upstream);
    let tree_path = tree.to_str().unwrap();
    let addresses = ["export", tree_path, "--platform", "linux_amd64", "--for=acme/null@1.2.0", "--for=acme/one/test"];
    let output = setup.run(&addresses).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("nothing was exported"), "{output:?}");
    assert!(file_names(&tree).is_empty());
    let output = setup.run(&[&addresses[..], &["--partial"]].concat()).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.out.contains("1 module omitted: no client reads modules"), "{output:?}");
    assert!(folder_of(&tree, "null").join("index.json").exists());
}
