//! Trees of unpacked packages, as in `.terraform/providers`: repacked, compared with known hashes, and served by their
//! `h1:`.

use std::io::Cursor;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder::clock::Timestamp;
use larder::store::{Durability, Key};
use serde_json::Value;

use crate::support::command_setup::CommandSetup;
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder, open_store};
use crate::support::process::{command, run};
use crate::support::programs::find;
use crate::support::provider_trees::{upstream, workspace_requiring};
use crate::support::terraform::{Terraform, network_mirror};
use crate::support::tls::TestCa;
use crate::support::tree_imports::{lock_of_upstream, sealed, states};
use crate::support::until;
use crate::support::upstream::FakeUpstream;

/// Unpacks an archive as the clients do, modes and all.
fn unpack(zip: &[u8], into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    let mut zip = zip::ZipArchive::new(Cursor::new(zip)).unwrap();
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).unwrap();
        let file = into.join(entry.enclosed_name().unwrap());
        if entry.is_dir() {
            std::fs::create_dir_all(file).unwrap();
            continue;
        }
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::io::copy(&mut entry, &mut std::fs::File::create(&file).unwrap()).unwrap();
        let mode = entry.unix_mode().unwrap() & 0o777;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn package_folder(tree: &Path, name: &str, version: &str) -> PathBuf {
    tree.join(format!("{HOST}/acme/{name}/{version}/linux_amd64"))
}

/// acme/null 1.2.0 and acme/random 3.0.1 for linux_amd64, unpacked.
fn unpacked_tree(upstream: &FakeUpstream, folder: &Path) -> PathBuf {
    let tree = folder.join("unpacked");
    for (name, version) in [("null", "1.2.0"), ("random", "3.0.1")] {
        let zip = upstream.archive_bytes("acme", name, version, "linux_amd64");
        unpack(&zip, &package_folder(&tree, name, version));
    }
    tree
}

/// The `h1:` hashes of a lock file, one a line.
fn h1_lines(lock: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        lock.lines().map(str::trim).filter(|line| line.starts_with("\"h1:")).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The refused files: path in the folder of the provider, and reason.
fn refused_files(out: &str) -> Vec<(String, String)> {
    let steps = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |step: &Value, key: &str| step[key].as_str().unwrap().to_owned();
    let refused_files = steps.filter(|step| step["state"] == "refused");
    let mut refused_files: Vec<_> = refused_files
        .map(|step| (text(&step, "file").splitn(4, '/').last().unwrap().to_owned(), text(&step, "why")))
        .collect();
    refused_files.sort();
    refused_files
}

#[tokio::test]
async fn an_unpacked_tree_installs_from_a_network_mirror_by_the_published_h1() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream().await;
    let published = lock_of_upstream(&client, &upstream).await;
    let home = Folder::new();
    let tree = unpacked_tree(&upstream, home.path());
    upstream.stop().await;
    let setup = sealed(&upstream);
    let tree_path = tree.to_str().unwrap();

    let output = setup.run(&["import", tree_path]).await;
    assert_eq!((output.code, setup.home.blobs().len()), (Some(1), 0), "{output:?}");
    assert!(
        output.out.contains("no signature covers unpacked files; --unsigned imports it on your word"),
        "{output:?}"
    );
    let output = setup.stdout_of(&["import", tree_path, "--unsigned"]).await;
    assert!(
        output.contains(", repacked") && output.contains("2 unpacked packages: you alone vouch for them"),
        "{output}"
    );
    assert!(output.contains("neither its signature nor its zh"), "{output}");
    assert!(setup.stdout_of(&["status"]).await.contains("2 archives without signatures"));
    // The same files give the same archive.
    let blobs_before = setup.home.blobs();
    let again = setup.stdout_of(&["import", tree_path, "--unsigned", "--json"]).await;
    assert_eq!(states(&again), ["linux_amd64 held", "linux_amd64 held"]);
    assert_eq!(setup.home.blobs(), blobs_before);

    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true").start().await;
    let listed = larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200).json();
    let hashes = listed["archives"]["linux_amd64"]["hashes"].as_array().unwrap().clone();
    assert!(hashes.len() == 1 && hashes[0].as_str().unwrap().starts_with("h1:"), "{listed}");
    larder.stop().await;
    let ca = TestCa::new();
    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true");
    let larder = larder.tls(&ca, &["127.0.0.1"]).start().await;
    let mut workspace = workspace_requiring(&client);
    workspace.trust(&ca.pem()).cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    workspace.init().await.expect_success();
    assert_eq!(h1_lines(&workspace.lock_file()), h1_lines(&published));
    assert!(!workspace.lock_file().contains("\"zh:"), "{}", workspace.lock_file());
    let plugin = format!(".terraform/providers/{HOST}/acme/null/1.2.0/linux_amd64/terraform-provider-null_v1.2.0");
    let mode = std::fs::metadata(workspace.path().join(plugin)).unwrap().permissions().mode();
    assert_ne!(mode & 0o100, 0, "{mode:o}");
}

/// A verified archive is not replaced by files that only look the same.
#[tokio::test]
async fn unpacked_files_are_compared_with_the_stored_archive_and_never_replace_a_verified_one() {
    let upstream = upstream().await;
    let home = Folder::new();
    let tree = unpacked_tree(&upstream, home.path());
    let tree_path = tree.to_str().unwrap();
    std::fs::remove_dir_all(package_folder(&tree, "random", "3.0.1")).unwrap();
    let mut setup = CommandSetup::new(&upstream);
    let refusals = refused_files(&setup.run(&["import", tree_path, "--unsigned", "--json"]).await.out);
    assert!(
        refusals.len() == 1 && refusals[0].1.contains("`larder warm registry.terraform.io/acme/null@1.2.0`"),
        "{refusals:?}"
    );

    setup.stdout_of(&["warm", "acme/null@1.2.0", "--platform", "linux_amd64"]).await;
    let output = setup.stdout_of(&["import", tree_path, "--json"]).await;
    assert_eq!(states(&output), ["linux_amd64 held"]);
    assert!(output.contains("its files equal those of the stored archive"), "{output}");
    let plugin = package_folder(&tree, "null", "1.2.0").join("terraform-provider-null_v1.2.0");
    let mut bytes = std::fs::read(&plugin).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&plugin, bytes).unwrap();
    let refusals = refused_files(&setup.run(&["import", tree_path, "--unsigned", "--json"]).await.out);
    assert!(refusals.len() == 1 && refusals[0].1.contains("but those of the stored archive have h1:"), "{refusals:?}");
    // Not even after its removal: the first-seen record keeps the verified hashes.
    setup.stdout_of(&["purge", "acme/null@1.2.0"]).await;
    setup.text.push_str("[network]\noffline = true\n");
    let refusals = refused_files(&setup.run(&["import", tree_path, "--unsigned", "--json"]).await.out);
    assert!(refusals.len() == 1 && refusals[0].1.contains("was verified here before"), "{refusals:?}");
}

#[tokio::test]
async fn an_archive_published_later_replaces_a_packed_one_without_an_alarm() {
    let upstream = upstream().await;
    let home = Folder::new();
    let tree = unpacked_tree(&upstream, home.path());
    let other = FakeUpstream::start().await;
    let setup = CommandSetup::new(&other);
    setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    let larder = Larder::mirroring(&other).always_revalidate().store_at(&setup.home).start().await;
    let document = larder.document("null", "1.2.0").await.expect(200).json();
    larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
    let null = crate::support::upstream::Provider::new("acme", "null").version("1.2.0").size(200_000);
    other.publish(crate::support::warm_fixture::both_platforms(null));
    let document = larder.document("null", "1.2.0").await.expect(200).json();
    assert!(document["signing_keys"]["gpg_public_keys"][0].is_object(), "{document}");
    let zip = larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
    assert_eq!(zip.body, other.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert_eq!(status["alarms"].as_array().map(Vec::len), Some(0), "{status}");
}

#[tokio::test]
async fn a_package_with_a_link_or_without_a_plugin_is_refused_as_a_whole() {
    let upstream = upstream().await;
    let home = Folder::new();
    let tree = unpacked_tree(&upstream, home.path());
    symlink("/etc/passwd", package_folder(&tree, "null", "1.2.0").join("notes")).unwrap();
    let empty_package = package_folder(&tree, "random", "3.0.2");
    std::fs::create_dir_all(&empty_package).unwrap();
    let without_plugin = package_folder(&tree, "random", "3.0.3");
    std::fs::create_dir_all(&without_plugin).unwrap();
    std::fs::write(without_plugin.join("README"), b"nothing to run").unwrap();
    symlink(
        package_folder(&tree, "random", "3.0.1"),
        package_folder(&tree, "random", "3.0.1").with_file_name("linux_arm64"),
    )
    .unwrap();
    let setup = sealed(&upstream);
    let output = setup.run(&["import", tree.to_str().unwrap(), "--unsigned", "--json"]).await;
    let refusals = refused_files(&output.out);
    let packages: Vec<&str> = refusals.iter().map(|(package, _)| package.as_str()).collect();
    assert_eq!(
        packages,
        ["1.2.0/linux_amd64", "3.0.1/linux_arm64", "3.0.2/linux_amd64", "3.0.3/linux_amd64"],
        "{refusals:?}"
    );
    let reasons = ["notes\": it is a link", "it is a link", "it contains no file", "no client could run it"];
    for ((_, found), reason) in refusals.iter().zip(reasons) {
        assert!(found.contains(reason), "{refusals:?}");
    }
    assert_eq!((states(&output.out).len(), setup.home.blobs().len()), (5, 1));
    assert!(setup.home.partial_downloads().is_empty(), "{:?}", setup.home.partial_downloads());
}

#[tokio::test]
async fn a_tar_of_unpacked_packages_is_checked_like_a_folder() {
    let upstream = upstream().await;
    let setup = sealed(&upstream);
    let larder = setup.serve();
    let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let mut add_entry = |path: &str, kind: tar::EntryType, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        tar.append(&header, bytes).unwrap();
    };
    let null = format!("{HOST}/acme/null");
    for version in ["1.0.0", "1.1.0", "1.2.0", "1.3.0"] {
        let plugin = format!("{null}/{version}/linux_amd64/terraform-provider-null");
        add_entry(&plugin, tar::EntryType::Regular, version.as_bytes());
        match version {
            "1.0.0" => add_entry(&format!("{null}/1.0.0/linux_amd64/link"), tar::EntryType::Symlink, b""),
            "1.1.0" => add_entry(&format!("{null}/1.1.0/linux_amd64/../../x"), tar::EntryType::Regular, b"x"),
            "1.2.0" => add_entry(&plugin, tar::EntryType::Regular, b"again"),
            _ => {}
        }
    }
    // A foreign entry between the files of the package may have displaced some of them.
    add_entry(&format!("{null}/1.4.0/linux_amd64/terraform-provider-null"), tar::EntryType::Regular, b"1.4.0");
    add_entry(&format!("{null}/1.3.0/linux_amd64/LICENSE"), tar::EntryType::Regular, b"late");
    let request = client().post(format!("{}/admin/v1/import?unsigned", larder.admin())).bearer_auth(&token);
    let request = request.header("content-type", "application/x-tar").body(tar.into_inner().unwrap());
    let answer = send(request).await.unwrap().expect(200).text();
    let refusals = refused_files(&answer);
    assert_eq!(refusals.len(), 5, "{refusals:?}");
    let expected = [
        ("1.0.0/linux_amd64", "it is a link"),
        ("1.1.0/linux_amd64", "segment"),
        ("1.2.0/linux_amd64", "another entry has the same name"),
        ("1.3.0/linux_amd64", "its files are in two places"),
        ("1.3.0/linux_amd64", "its files are in two places"),
    ];
    for ((package, found), (expected_package, reason)) in refusals.iter().zip(expected) {
        assert!(package == expected_package && found.contains(reason), "{refusals:?}");
    }
    assert_eq!(states(&answer).iter().filter(|state| state.ends_with(" packed_anew")).count(), 1, "{answer}");
    assert_eq!(setup.home.blobs().len(), 1);
}

/// The hashes that clients get for acme/null 1.2.0; none if the package is not stored.
async fn served_hashes(setup: &CommandSetup, upstream: &FakeUpstream) -> Vec<String> {
    let larder = Larder::mirroring(upstream).store_at(&setup.home).network("offline = true").start().await;
    let listed = larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await;
    larder.stop().await;
    if listed.status != 200 {
        return Vec::new();
    }
    let hashes = listed.json()["archives"]["linux_amd64"]["hashes"].as_array().unwrap().clone();
    hashes.into_iter().map(|hash| hash.as_str().unwrap().to_owned()).collect()
}

/// Imports a tree, and kills the import before it returns from a rename. Returns false if the import ended before that.
async fn import_killed_at_rename(strace: &Path, setup: &CommandSetup, tree: &Path, number: u32) -> bool {
    let config = setup.file();
    let import = ["import", tree.to_str().unwrap(), "--unsigned", "--config", config.to_str().unwrap()];
    let import = command(setup.home.path(), &import);
    let mut traced = std::process::Command::new(strace);
    traced.args(["-f", "-q", "-o", "/dev/null", "-e", "trace=rename,renameat,renameat2", "-e"]);
    traced.arg(format!("inject=rename,renameat,renameat2:signal=SIGKILL:when={number}"));
    traced.arg(import.get_program()).args(import.get_args());
    for (name, value) in import.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    run(traced).await.code != Some(0)
}

/// The tree of `unpacked_tree`, and the published zips of acme/null for two platforms without proof beside them.
fn tree_without_proofs(upstream: &FakeUpstream, folder: &Path) -> PathBuf {
    let tree = unpacked_tree(upstream, folder);
    for platform in ["linux_amd64", "darwin_arm64"] {
        let name = format!("terraform-provider-null_1.3.0_{platform}.zip");
        let zip = upstream.archive_bytes("acme", "null", "1.3.0", platform);
        std::fs::write(tree.join(format!("{HOST}/acme/null/{name}")), zip).unwrap();
    }
    tree
}

/// The packages in the store's names that a client of the network mirror does not get, as `NAME VERSION PLATFORM`.
async fn unlisted_packages(setup: &CommandSetup, upstream: &FakeUpstream) -> Vec<String> {
    let larder = Larder::mirroring(upstream).store_at(&setup.home).start().await;
    let names = setup.home.files("names");
    let mut packages: Vec<[String; 3]> = Vec::new();
    for path in names {
        let parts: Vec<&str> = path.iter().rev().take(3).map(|part| part.to_str().unwrap()).collect();
        packages.push([parts[2], parts[1], parts[0].strip_suffix(".json").unwrap()].map(str::to_owned));
    }
    let mut unlisted = Vec::new();
    for [name, version, platform] in &packages {
        let folder = format!("/mirror/{HOST}/acme/{name}");
        let is_listed = async || {
            let index = larder.get(&format!("{folder}/index.json")).await;
            let archives = larder.get(&format!("{folder}/{version}.json")).await;
            index.status == 200
                && index.json()["versions"][version].is_object()
                && archives.status == 200
                && archives.json()["archives"][platform].is_object()
        };
        let waiting = tokio::time::timeout(Duration::from_secs(5), until("it is listed", is_listed));
        if waiting.await.is_err() {
            unlisted.push(format!("{name} {version} {platform}"));
        }
    }
    larder.stop().await;
    unlisted
}

/// Promise 9: an import that was killed after its archives and before the documents that they share is completed by the next
/// start, and by the same command.
#[tokio::test]
async fn the_archives_of_a_killed_import_are_listed_by_the_next_start_and_by_the_same_command() {
    let upstream = upstream().await;
    let home = Folder::new();
    let tree = tree_without_proofs(&upstream, home.path());
    let other = FakeUpstream::start().await;
    for repeats in [false, true] {
        let setup = CommandSetup::new(&other);
        let import = ["import", tree.to_str().unwrap(), "--unsigned"];
        setup.stdout_of(&import).await;
        let lists = setup.home.files("documents").into_iter().filter(|file| file.ends_with("versions"));
        assert_eq!(lists.map(std::fs::remove_file).filter(Result::is_ok).count(), 2);
        if repeats {
            let output = setup.stdout_of(&import).await;
            assert!(!output.contains("you alone vouch"), "{output}");
            let lists = setup.home.files("documents").into_iter().filter(|file| file.ends_with("versions"));
            assert_eq!(lists.count(), 2, "the same command lists what is stored");
        }
        assert_eq!(unlisted_packages(&setup, &other).await, Vec::<String>::new(), "repeats: {repeats}");
        assert_eq!(setup.home.files("names").len(), 4);
    }
}

/// Promise 9, at each rename that a real kill can meet.
#[tokio::test]
async fn an_import_that_is_killed_at_any_rename_lists_what_it_stored_after_the_next_start() {
    let Some(strace) = find("strace") else { return };
    let upstream = upstream().await;
    let home = Folder::new();
    let tree = tree_without_proofs(&upstream, home.path());
    let other = FakeUpstream::start().await;
    let mut killed = 0;
    for number in 1.. {
        let setup = CommandSetup::new(&other);
        let was_killed = import_killed_at_rename(&strace, &setup, &tree, number).await;
        killed += usize::from(was_killed);
        let unlisted = unlisted_packages(&setup, &other).await;
        assert_eq!(unlisted, Vec::<String>::new(), "killed at rename {number}");
        if !was_killed {
            break;
        }
    }
    assert!(killed >= 1, "no rename was met");
}

/// Promises 1 and 9: a kill at any rename of an import leaves no unpublished `zh:`, and the same command continues.
#[tokio::test]
async fn an_import_that_is_killed_at_any_rename_reports_no_hash_of_its_own_packing() {
    let Some(strace) = find("strace") else { return };
    let mut upstream = upstream().await;
    let home = Folder::new();
    let tree = home.path().join("unpacked");
    unpack(&upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"), &package_folder(&tree, "null", "1.2.0"));
    upstream.stop().await;
    let mut killed = 0;
    for number in 1.. {
        let setup = sealed(&upstream);
        let was_killed = import_killed_at_rename(&strace, &setup, &tree, number).await;
        killed += usize::from(was_killed);
        let hashes = served_hashes(&setup, &upstream).await;
        assert!(hashes.iter().all(|hash| hash.starts_with("h1:")), "killed at rename {number}: {hashes:?}");
        setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
        assert_eq!(served_hashes(&setup, &upstream).await.len(), 1, "killed at rename {number}");
        if !was_killed {
            break;
        }
    }
    // strace counts the renames of each thread, so only the first is certain to be met.
    assert!(killed >= 1, "no rename was met");
}

/// The next import repairs a store in which an import was killed between two writes.
#[tokio::test]
async fn a_record_that_marks_a_repacked_archive_as_published_is_corrected_by_the_next_import() {
    let mut upstream = upstream().await;
    let home = Folder::new();
    let tree = home.path().join("unpacked");
    unpack(&upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"), &package_folder(&tree, "null", "1.2.0"));
    upstream.stop().await;
    let setup = sealed(&upstream);
    setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    {
        let store = open_store(setup.home.path(), Timestamp(1));
        let named = store.records.all_named().unwrap().remove(0);
        let key = Key::Name(named);
        let mut name: Value = serde_json::from_slice(&store.records.get(&key).unwrap().unwrap()).unwrap();
        let archive = name["archives"][0].as_object_mut().unwrap();
        assert_eq!(archive.remove("zip").unwrap(), "packed_anew");
        archive.insert("origin".to_owned(), "https://registry.terraform.io".into());
        store.records.put(&key, name.to_string().as_bytes(), Durability::Synced).unwrap();
        store.close().unwrap();
    }
    assert!(served_hashes(&setup, &upstream).await.iter().any(|hash| hash.starts_with("zh:")));
    setup.stdout_of(&["import", tree.to_str().unwrap(), "--unsigned"]).await;
    let hashes = served_hashes(&setup, &upstream).await;
    assert!(hashes.len() == 1 && hashes[0].starts_with("h1:"), "{hashes:?}");
    let name = std::fs::read_to_string(&setup.home.files("names")[0]).unwrap();
    assert!(name.contains("an import"), "{name}");

    // The lock file of the real client has hashes of the files that the operator trusts, and none of a repacked
    // archive.
    let Some(client) = Terraform::find() else { return };
    let ca = TestCa::new();
    let larder = Larder::mirroring(&upstream).store_at(&setup.home).network("offline = true");
    let larder = larder.tls(&ca, &["127.0.0.1"]).start().await;
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/acme/null"), "1.2.0").trust(&ca.pem());
    workspace.cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    workspace.init().await.expect_success();
    let lock = workspace.lock_file();
    assert!(lock.contains(hashes[0].as_str()) && !lock.contains("\"zh:"), "{lock}");
}
