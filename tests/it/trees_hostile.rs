//! Damaged or hostile trees: bad files are refused by name, the others are imported.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use tar::EntryType::{Regular, Symlink};

use crate::support::command_setup::CommandSetup;
use crate::support::http::{client, send};
use crate::support::larder::HOST;
use crate::support::provider_trees::{export, exporter_and_tree, folder_of, upstream};
use crate::support::upstream::FakeUpstream;

const LINUX: &str = "terraform-provider-null_1.2.0_linux_amd64.zip";
const DARWIN: &str = "terraform-provider-null_1.2.0_darwin_arm64.zip";

fn offline_setup(upstream: &FakeUpstream) -> CommandSetup {
    let mut setup = CommandSetup::new(upstream);
    setup.text.push_str("[network]\noffline = true\n");
    setup
}

/// Imports the tree: each refused file with the reason.
async fn import_refusals(setup: &CommandSetup, tree: &Path, options: &[&str]) -> Vec<(String, String)> {
    let output = setup.run(&[&["import", tree.to_str().unwrap(), "--json"], options].concat()).await;
    let steps: Vec<Value> = output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.last().unwrap()["step"], "done", "{output:?}");
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let refused: Vec<_> = steps.iter().filter(|step| step["state"] == "refused").collect();
    assert_eq!(output.code, Some(i32::from(!refused.is_empty())), "{output:?}");
    let file_name = |step: &Value| text(step, "file").rsplit('/').next().unwrap().to_owned();
    refused.into_iter().map(|step| (file_name(step), text(step, "why"))).collect()
}

fn remove_proof(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.contains("SHA256SUMS") || (name.starts_with("terraform-provider") && name.ends_with(".json")) {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[tokio::test]
async fn a_tampered_archive_is_refused_by_name_whatever_proves_the_rest() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    let zip = folder_of(&tree, "null").join(LINUX);
    let mut bytes = std::fs::read(&zip).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&zip, bytes).unwrap();

    let (offline, online, offline_without_proof) =
        (offline_setup(&upstream), CommandSetup::new(&upstream), offline_setup(&upstream));
    for (name, setup, has_proof, reason) in [
        ("proved by the files beside it", &offline, true, "the signed proof set next to it"),
        ("proved by upstream", &online, true, "upstream's proof set says"),
        (
            "listed by VERSION.json, with nothing else",
            &offline_without_proof,
            false,
            "1.2.0.json beside it lists other",
        ),
        ("verified before", &offline, false, "verified sums of this version list"),
    ] {
        if !has_proof {
            remove_proof(&folder_of(&tree, "null"));
        }
        let refusals = import_refusals(setup, &tree, &["--unsigned"]).await;
        assert!(
            refusals.len() == 1 && refusals[0].0 == LINUX && refusals[0].1.contains(reason),
            "{name}: {refusals:?}"
        );
        assert_eq!(setup.home.blobs().len(), 3, "{name}");
    }
}

#[tokio::test]
async fn links_wrong_names_and_files_that_are_no_zip_are_refused_and_no_link_is_followed() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    let null = folder_of(&tree, "null");
    remove_proof(&null);
    for name in ["1.2.0.json", "index.json"] {
        std::fs::remove_file(null.join(name)).unwrap();
    }
    let secret = exporter.home.path().join("secret.zip");
    std::fs::rename(null.join(DARWIN), &secret).unwrap();
    symlink(&secret, null.join(DARWIN)).unwrap();
    symlink(exporter.home.path(), tree.join("linked.example")).unwrap();
    std::fs::write(null.join("terraform-provider-null_1.4.0_linux_amd64.zip"), b"no zip at all").unwrap();
    std::fs::write(null.join("terraform-provider-other_1.2.0_linux_amd64.zip"), b"x").unwrap();
    std::fs::copy(null.join(LINUX), null.join("terraform-provider-null_1.5.0_linux_amd64.zip")).unwrap();
    std::fs::copy(null.join(LINUX), null.join("Terraform-Provider-Null_1.5.0_LINUX_AMD64.zip")).unwrap();
    // Two identical copies are one; of two that differ, neither is trusted.
    std::fs::copy(null.join(LINUX), null.join("terraform-provider-null_1.7.0_linux_amd64.zip")).unwrap();
    let other = upstream.archive_bytes("acme", "null", "1.3.0", "linux_amd64");
    std::fs::write(null.join("Terraform-Provider-Null_1.7.0_LINUX_AMD64.zip"), other).unwrap();
    std::fs::create_dir_all(null.join("1.6.0/linux_amd64")).unwrap();
    std::fs::write(null.join("1.6.0/linux_amd64/terraform-provider-null_v1.6.0"), b"#!/bin/sh\n").unwrap();
    std::fs::write(null.join("README.md"), b"nobody's business").unwrap();

    let offline = offline_setup(&upstream);
    let mut refusals = import_refusals(&offline, &tree, &["--unsigned"]).await;
    refusals.sort();
    let expected = [
        ("Terraform-Provider-Null_1.7.0_LINUX_AMD64.zip", "neither is verified"),
        ("linked.example", "link"),
        (DARWIN, "link"),
        ("terraform-provider-null_1.4.0_linux_amd64.zip", "not a readable zip"),
        ("terraform-provider-null_1.7.0_linux_amd64.zip", "either"),
        ("terraform-provider-other_1.2.0_linux_amd64.zip", "does not begin with terraform-provider-null_"),
    ];
    let names = refusals.iter().map(|(name, _)| name.as_str());
    assert!(names.eq(expected.map(|(name, _)| name)), "{refusals:?}");
    for ((name, why), (_, reason)) in refusals.iter().zip(expected) {
        assert!(why.contains(reason), "{name}: {why}");
    }
    // acme/random for two platforms; of acme/null the remaining archive and the unpacked one.
    assert_eq!(offline.home.blobs().len(), 4);
}

#[tokio::test]
async fn a_posted_tar_is_checked_as_strictly_as_a_folder() {
    let upstream = upstream().await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let url = format!("{}/admin/v1/import", larder.admin());
    let post = async |url: &str, content_type: &str, tar: Vec<u8>| {
        let request = client().post(url).bearer_auth(&token).header("content-type", content_type);
        send(request.body(tar)).await.unwrap()
    };
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    let null = format!("{HOST}/acme/null");
    let other_case = format!("{null}/Terraform-Provider-Null_1.2.0_linux_amd64.zip");
    let elsewhere = format!("elsewhere.example/acme/null/{LINUX}");
    let rows = [
        ("../../etc/cron.d/x".to_owned(), Regular, &b"x"[..], "refused", "a segment that is empty, . or .."),
        (format!("{null}/link.zip"), Symlink, b"", "refused", "it is a link, and no link is followed"),
        (format!("./{null}/{LINUX}"), Regular, &zip, "proven", ""),
        (other_case, Regular, b"other", "refused", "another file in the tree is verified for this package"),
        (elsewhere, Regular, &zip, "refused", "is not an upstream of this mirror"),
    ];
    let mut tar = tar::Builder::new(Vec::new());
    for (path, kind, bytes, ..) in &rows {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(bytes.len() as u64);
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    let tar = tar.into_inner().unwrap();

    let answer = post(&url, "application/x-tar", tar.clone()).await.expect(200).text();
    let steps: Vec<Value> = answer.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), rows.len() + 1, "{answer}");
    for ((path, .., state, reason), step) in rows.iter().zip(&steps) {
        assert_eq!(step["state"], *state, "{path}: {step}");
        assert!(step["why"].as_str().unwrap_or_default().contains(reason), "{path}: {step}");
    }
    let last = steps.last().unwrap();
    assert!(last["step"] == "done" && last["state"].is_null(), "{last}");

    // Truncated: complete files stay, and the report says so.
    let answer = post(&url, "application/x-tar", tar[..tar.len() / 2].to_vec()).await.expect(200).text();
    assert!(answer.contains("\"stopped\""), "{answer}");
    post(&url, "application/json", tar.clone()).await.expect(415);
    post(&format!("{url}?everything"), "application/x-tar", tar.clone()).await.expect(400);
    let request = client().post(&url).header("content-type", "application/x-tar").body(tar);
    send(request).await.unwrap().expect(401);
}

/// An export through the admin listener, as a tar.
#[tokio::test]
async fn a_job_of_which_something_is_missing_is_exported_only_as_partial() {
    let upstream = upstream().await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let post = async |path: &str, body: &str| {
        let request = client().post(format!("{}/admin/v1/{path}", larder.admin())).bearer_auth(&token);
        send(request.header("content-type", "application/json").body(body.to_owned())).await.unwrap()
    };
    post("export", "{}").await.expect(400);
    post("export", r#"{"job":"0123456789abcdef"}"#).await.expect(404);
    let job = post("warm", r#"{"what":["acme/null@1.2.0","acme/none"],"platforms":["linux_amd64"]}"#).await.expect(202);
    let id = job.json()["id"].as_str().unwrap().to_owned();
    crate::support::eventually("the job ends", async || {
        let request = client().get(format!("{}/admin/v1/jobs/{id}", larder.admin()));
        (send(request).await.unwrap().json()["state"] != "running").then_some(())
    })
    .await;
    let refused = post("export", &format!(r#"{{"job":"{id}"}}"#)).await.expect(409).text();
    assert!(refused.contains("not everything of job"), "{refused}");
    let tar = post("export", &format!(r#"{{"job":"{id}","partial":true}}"#)).await.expect(200);
    let mut archive = tar::Archive::new(&tar.body[..]);
    let paths: Vec<String> =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    assert!(paths.is_sorted() && paths.contains(&format!("{HOST}/acme/null/{LINUX}")), "{paths:?}");
    // Files that the receiver has are left out.
    let digest = crate::support::upstream::sha256_hex(&upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    let text = format!(r#"{{"job":"{id}","partial":true,"have":["{digest}"]}}"#);
    assert!(post("export", &text).await.expect(200).body.len() < 100_000);
}

/// A tree's own sums prove nothing without a signature, even where an upstream's sums would suffice.
#[tokio::test]
async fn unsigned_sums_prove_nothing_even_where_checksums_suffice() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(crate::support::upstream::Provider::new("acme", "null").without_keys());
    let (mut exporter, tree) = exporter_and_tree(&upstream);
    exporter.text.push_str("verification = \"checksum\"\n");
    exporter.stdout_of(&["export", tree.to_str().unwrap(), "--platform", "linux_amd64", "--for", "acme/null"]).await;
    let mut offline = CommandSetup::new(&upstream);
    offline.text.push_str("verification = \"checksum\"\n[network]\noffline = true\n");
    let refusals = import_refusals(&offline, &tree, &[]).await;
    assert!(refusals.len() == 1 && refusals[0].1.contains("no signed proof set is beside it"), "{refusals:?}");
    assert!(import_refusals(&offline, &tree, &["--unsigned"]).await.is_empty());
}
