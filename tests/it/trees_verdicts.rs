//! An import's verdict on each archive is independent of the order of files, of stored archives, and of space.

use std::path::Path;

use serde_json::Value;

use crate::support::command_setup::CommandSetup;
use crate::support::http::{client, send};
use crate::support::larder::HOST;
use crate::support::provider_trees::{export, exporter_and_tree, folder_of, upstream};
use crate::support::tree_imports::{sealed, states};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const LINUX: &str = "terraform-provider-null_1.2.0_linux_amd64.zip";

/// A tree as a tar; `reorder` orders the files of each provider.
fn tar_of(tree: &Path, reorder: impl Fn(&mut Vec<(String, Vec<u8>)>)) -> Vec<u8> {
    let mut files = Vec::new();
    for name in ["null", "random"] {
        let mut provider_files = Vec::new();
        for entry in std::fs::read_dir(folder_of(tree, name)).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{HOST}/acme/{name}/{}", path.file_name().unwrap().to_str().unwrap());
            provider_files.push((name, std::fs::read(path).unwrap()));
        }
        provider_files.sort();
        reorder(&mut provider_files);
        files.extend(provider_files);
    }
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

fn flip_middle_bit(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

/// The files come in the order in which `tar` writes larder's export, and reversed.
#[tokio::test]
async fn sidecar_files_may_come_before_or_after_their_archive() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    for is_reversed in [false, true] {
        let setup = sealed(&upstream);
        let larder = setup.serve();
        let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
        let tar = tar_of(&tree, |files| {
            if is_reversed {
                files.reverse();
            }
        });
        let request = client().post(format!("{}/admin/v1/import?unsigned", larder.admin())).bearer_auth(&token);
        let request = request.header("content-type", "application/x-tar").body(tar);
        let answer = send(request).await.unwrap().expect(200).text();
        let states = states(&answer);
        assert_eq!(states.len(), 4, "{answer}");
        assert!(states.iter().all(|state| state.ends_with(".zip proven")), "{answer}");
    }
}

#[tokio::test]
async fn a_refused_file_does_not_affect_other_files_of_the_package() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    let null = folder_of(&tree, "null");
    std::fs::copy(null.join(LINUX), null.join("Terraform-Provider-Null_1.2.0_linux_amd64.zip")).unwrap();
    flip_middle_bit(&null.join("Terraform-Provider-Null_1.2.0_linux_amd64.zip"));
    let setup = sealed(&upstream);
    let output = setup.run(&["import", tree.to_str().unwrap(), "--unsigned", "--json"]).await;
    let states = states(&output.out);
    assert!(states.contains(&format!("{LINUX} proven")), "{states:?}");
    assert!(states.contains(&"Terraform-Provider-Null_1.2.0_linux_amd64.zip refused".to_owned()), "{states:?}");
    assert_eq!((states.len(), setup.home.blobs().len(), output.code), (5, 4, Some(1)));
}

/// Promise 10: an import replaces a damaged stored archive.
#[tokio::test]
async fn a_damaged_stored_archive_is_replaced_by_an_import() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    for options in [&["--unsigned"][..], &[]] {
        let uses_upstream_proof = options.is_empty();
        let setup = if uses_upstream_proof { CommandSetup::new(&upstream) } else { sealed(&upstream) };
        let import = [&["import", tree.to_str().unwrap()][..], options].concat();
        setup.stdout_of(&import).await;
        let blobs = setup.home.blobs();
        flip_middle_bit(&blobs[0]);
        std::fs::remove_file(&blobs[1]).unwrap();
        let output = setup.stdout_of(&import).await;
        assert!(output.contains("2 archives already") && output.contains("2 archives\n"), "{output}");
        assert!(output.contains("the stored archive was damaged"), "{output}");
        let verified = setup.stdout_of(&["verify"]).await;
        assert!(verified.contains("everything is intact"), "{verified}");
        assert_eq!(setup.home.blobs(), blobs);
    }
}

/// The report names the full disk as the cause, not a file of the tree.
#[tokio::test]
async fn a_full_disk_ends_an_import_and_is_reported_as_the_cause() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(3_000_000));
    let (exporter, tree) = exporter_and_tree(&upstream);
    exporter.stdout_of(&["export", tree.to_str().unwrap(), "--platform", "linux_amd64", "--for", "acme/null"]).await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    larder.limit_file_size(Some(1_500_000));
    let output = setup.run(&["import", tree.to_str().unwrap()]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(!output.out.contains("REFUSED") && !output.out.contains("refused"), "{output:?}");
    assert!(output.err.contains("importing ended early") && output.err.contains("the store failed"), "{output:?}");
    assert!(output.err.contains("raise the limit on the size of a file"), "{output:?}");
    assert!(
        setup.home.blobs().is_empty() && setup.home.partial_downloads().is_empty(),
        "{:?}",
        setup.home.partial_downloads()
    );
    larder.limit_file_size(None);
    let output = setup.stdout_of(&["import", tree.to_str().unwrap()]).await;
    assert!(output.contains("by upstream's documents"), "{output}");
}

#[tokio::test]
async fn refused_files_evict_nothing_and_a_file_that_does_not_fit_offline_ends_the_import() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(crate::support::warm_fixture::both_platforms(Provider::new("acme", "null").size(700_000)));
    let (exporter, tree) = exporter_and_tree(&upstream);
    exporter.stdout_of(&["export", tree.to_str().unwrap(), "--platform", "linux_amd64", "--for", "acme/null"]).await;
    let zip = folder_of(&tree, "null").join(LINUX);
    flip_middle_bit(&zip);
    let mut setup = CommandSetup::new(&upstream);
    setup.text = setup.text.replacen("[store]\n", "[store]\nmax_size = \"1MiB\"\n", 1);
    setup.stdout_of(&["warm", "acme/null@1.2.0", "--platform", "darwin_arm64"]).await;
    let stored = setup.home.blobs();
    let small_tree = setup.home.path().join("small-tree");
    let provider_folder = small_tree.join(format!("{HOST}/acme/null"));
    std::fs::create_dir_all(&provider_folder).unwrap();
    std::fs::copy(&zip, provider_folder.join(LINUX)).unwrap();
    let output = setup.run(&["import", small_tree.to_str().unwrap(), "--json"]).await;
    assert_eq!(states(&output.out), [format!("{LINUX} refused")]);
    assert_eq!(setup.home.blobs(), stored);

    // Correct bytes: online they replace the damaged ones, offline the report says so.
    std::fs::write(provider_folder.join(LINUX), upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"))
        .unwrap();
    setup.text.push_str("[network]\noffline = true\n");
    let output = setup.run(&["import", small_tree.to_str().unwrap(), "--unsigned"]).await;
    assert!(output.code == Some(1) && output.err.contains("bytes do not fit"), "{output:?}");
    assert_eq!(setup.home.blobs(), stored);
    setup.text = setup.text.replace("[network]\noffline = true\n", "");
    setup.stdout_of(&["import", small_tree.to_str().unwrap()]).await;
    assert!(setup.home.blobs().len() == 1 && setup.home.blobs() != stored);
}

/// An upstream may send a Retry-After of minutes; an import, whose result an operator awaits, does not wait for it.
#[tokio::test]
async fn an_import_sends_one_request_to_a_rate_limiting_upstream_and_does_not_wait() {
    let upstream = upstream().await;
    let (exporter, tree) = exporter_and_tree(&upstream);
    export(&exporter, &tree).await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    upstream.forget_requests();
    upstream.fault(Target::Document, Fault::RetryAfter(429, 3600));
    let output = setup.run(&["import", tree.to_str().unwrap(), "--json"]).await;
    let steps: Vec<Value> = output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reasons: Vec<&str> = steps.iter().filter_map(|step| step["why"].as_str()).collect();
    assert_eq!(reasons.len(), 4, "{output:?}");
    assert!(reasons[1..].iter().all(|why| why.contains("(Retry-After); try again after ")), "{reasons:?}");
    assert_eq!(upstream.count_of(Target::Document), 1);
}
