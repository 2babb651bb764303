//! Damaged or hostile trees: bad files are refused by name, the others are imported.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::support::command_setup::CommandSetup;
use crate::support::http::{client, send};
use crate::support::larder::HOST;
use crate::support::provider_trees::{export, folder_of, site, upstream};
use crate::support::upstream::FakeUpstream;

const LINUX: &str = "terraform-provider-null_1.2.0_linux_amd64.zip";
const DARWIN: &str = "terraform-provider-null_1.2.0_darwin_arm64.zip";

fn sealed(upstream: &FakeUpstream) -> CommandSetup {
    let mut setup = CommandSetup::new(upstream);
    setup.text.push_str("[network]\noffline = true\n");
    setup
}

/// Every refused file with its reason.
async fn refused(setup: &CommandSetup, tree: &Path, more: &[&str]) -> Vec<(String, String)> {
    let output = setup.run(&[&["import", tree.to_str().unwrap(), "--json"], more].concat()).await;
    let steps: Vec<Value> = output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.last().unwrap()["step"], "done", "{output:?}");
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let refused: Vec<_> = steps.iter().filter(|step| step["state"] == "refused").collect();
    assert_eq!(output.code, Some(i32::from(!refused.is_empty())), "{output:?}");
    let name = |step: &Value| text(step, "file").rsplit('/').next().unwrap().to_owned();
    refused.into_iter().map(|step| (name(step), text(step, "why"))).collect()
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
    let (outside, tree) = site(&upstream);
    export(&outside, &tree).await;
    let zip = folder_of(&tree, "null").join(LINUX);
    let mut bytes = std::fs::read(&zip).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&zip, bytes).unwrap();

    // Verified by the files beside it, by VERSION.json where there is nothing else, or by upstream.
    let offline = sealed(&upstream);
    let text = refused(&offline, &tree, &["--unsigned"]).await;
    assert!(text.len() == 1 && text[0].0 == LINUX && text[0].1.contains("the signed proof set next to it"), "{text:?}");
    assert_eq!(offline.home.blobs().len(), 3);
    let online = CommandSetup::new(&upstream);
    let text = refused(&online, &tree, &["--unsigned"]).await;
    assert!(text.len() == 1 && text[0].0 == LINUX && text[0].1.contains("upstream's proof set says"), "{text:?}");
    remove_proof(&folder_of(&tree, "null"));
    let alone = sealed(&upstream);
    let text = refused(&alone, &tree, &["--unsigned"]).await;
    assert!(
        text.len() == 1 && text[0].0 == LINUX && text[0].1.contains("1.2.0.json beside it lists other"),
        "{text:?}"
    );
    // The version's verified digest is remembered.
    let text = refused(&offline, &tree, &["--unsigned"]).await;
    assert!(text.len() == 1 && text[0].1.contains("verified sums of this version list"), "{text:?}");
}

#[tokio::test]
async fn links_pipes_wrong_names_and_what_is_no_zip_stay_out_and_nothing_outside_is_read() {
    let upstream = upstream().await;
    let (outside, tree) = site(&upstream);
    export(&outside, &tree).await;
    let null = folder_of(&tree, "null");
    remove_proof(&null);
    for name in ["1.2.0.json", "index.json"] {
        std::fs::remove_file(null.join(name)).unwrap();
    }
    let secret = outside.home.path().join("secret.zip");
    std::fs::rename(null.join(DARWIN), &secret).unwrap();
    symlink(&secret, null.join(DARWIN)).unwrap();
    symlink(outside.home.path(), tree.join("linked.example")).unwrap();
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

    let offline = sealed(&upstream);
    let mut text = refused(&offline, &tree, &["--unsigned"]).await;
    text.sort();
    let names: Vec<&str> = text.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "Terraform-Provider-Null_1.7.0_LINUX_AMD64.zip",
            "linked.example",
            DARWIN,
            "terraform-provider-null_1.4.0_linux_amd64.zip",
            "terraform-provider-null_1.7.0_linux_amd64.zip",
            "terraform-provider-other_1.2.0_linux_amd64.zip",
        ],
        "{text:?}"
    );
    for (name, reason) in
        [(0, "neither is verified"), (1, "link"), (2, "link"), (3, "not a readable zip"), (4, "either")]
    {
        assert!(text[name].1.contains(reason), "{text:?}");
    }
    // acme/random for two platforms; of acme/null the remaining archive and the unpacked one.
    assert_eq!(offline.home.blobs().len(), 4);
}

#[tokio::test]
async fn a_tar_that_is_posted_is_read_as_strictly() {
    let upstream = upstream().await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let url = format!("{}/admin/v1/import", larder.admin());
    let post = async |url: &str, kind: &str, tar: Vec<u8>| {
        let request = client().post(url).bearer_auth(&token).header("content-type", kind);
        send(request.body(tar)).await.unwrap()
    };
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |path: &str, kind: tar::EntryType, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        tar.append(&header, bytes).unwrap();
    };
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    add("../../etc/cron.d/x", tar::EntryType::Regular, b"x");
    add(&format!("{HOST}/acme/null/link.zip"), tar::EntryType::Symlink, b"");
    add(&format!("./{HOST}/acme/null/{LINUX}"), tar::EntryType::Regular, &zip);
    add(&format!("{HOST}/acme/null/Terraform-Provider-Null_1.2.0_linux_amd64.zip"), tar::EntryType::Regular, b"other");
    add(&format!("elsewhere.example/acme/null/{LINUX}"), tar::EntryType::Regular, &zip);
    let tar = tar.into_inner().unwrap();

    let answer = post(&url, "application/x-tar", tar.clone()).await.expect(200).text();
    let steps: Vec<Value> = answer.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let states: Vec<&str> = steps.iter().map(|step| step["state"].as_str().unwrap_or("-")).collect();
    assert_eq!(states, ["refused", "refused", "proven", "refused", "refused", "-"], "{answer}");
    assert!(
        steps[3]["why"].as_str().unwrap().contains("another file in the tree is verified for this package"),
        "{answer}"
    );
    assert!(steps[4]["why"].as_str().unwrap().contains("is not an upstream of this mirror"), "{answer}");
    assert_eq!(steps[5]["step"], "done");

    // Truncated: complete files stay, and the report says so.
    let answer = post(&url, "application/x-tar", tar[..tar.len() / 2].to_vec()).await.expect(200).text();
    assert!(answer.contains("\"stopped\""), "{answer}");
    post(&url, "application/json", tar.clone()).await.expect(415);
    post(&format!("{url}?everything"), "application/x-tar", tar.clone()).await.expect(400);
    let request = client().post(&url).header("content-type", "application/x-tar").body(tar);
    send(request).await.unwrap().expect(401);
}

/// The other direction: requests for a tree.
#[tokio::test]
async fn a_tree_is_only_sent_of_a_job_that_has_all_of_it() {
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
    // Present files are left out.
    let digest = crate::support::upstream::sha256_hex(&upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    let text = format!(r#"{{"job":"{id}","partial":true,"have":["{digest}"]}}"#);
    assert!(post("export", &text).await.expect(200).body.len() < 100_000);
}

/// A tree's own sums prove nothing without a signature, even where an upstream's sums would suffice.
#[tokio::test]
async fn unsigned_sums_prove_nothing_even_where_checksums_suffice() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(crate::support::upstream::Provider::new("acme", "null").without_keys());
    let (mut outside, tree) = site(&upstream);
    outside.text.push_str("verification = \"checksum\"\n");
    outside.out(&["export", tree.to_str().unwrap(), "--platform", "linux_amd64", "--for", "acme/null"]).await;
    let mut offline = CommandSetup::new(&upstream);
    offline.text.push_str("verification = \"checksum\"\n[network]\noffline = true\n");
    let text = refused(&offline, &tree, &[]).await;
    assert!(text.len() == 1 && text[0].1.contains("no signed proof set is beside it"), "{text:?}");
    assert!(refused(&offline, &tree, &["--unsigned"]).await.is_empty());
}
