//! Bundle keys on the command line: bundles are signed, messages name a key that the running larder has not loaded, and
//! files of other formats are refused.

use std::path::Path;

use crate::support::bundle_transfer::{BundleKey, sealed};
use crate::support::larder::{Builder, Folder, Larder};
use crate::support::larder_commands::{run_larder_in, write_config_of_running};
use crate::support::process::{CommandOutput, Process};
use crate::support::upstream::{FakeUpstream, Provider, Target};

async fn upstream_publishing_null() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream
}

async fn create_bundle(work: &Path, folder: &Folder, out: &str, extra: &[&str]) -> CommandOutput {
    let create = ["bundle", "create", "--platform", "linux_amd64", "--for", "acme/null", out];
    run_larder_in(work, folder, &[&create[..], extra].concat()).await
}

/// Writes this configuration for the commands and for the next reload, with the running larder's admin address.
fn write_new_config(builder: &Builder, folder: &Folder, running: &Process) {
    let admin = running.announcement()["admin"].as_str().unwrap();
    let random_port = "[admin]\nlisten = \"127.0.0.1:0\"";
    let text = builder.config_text();
    assert!(text.contains(random_port), "{text}");
    let text = text.replace(random_port, &format!("[admin]\nlisten = \"{admin}\""));
    std::fs::write(folder.path().join("mirror.toml"), text).unwrap();
}

/// Promise 15: an unsigned bundle must be asked for explicitly, before anything is fetched for it.
#[tokio::test]
async fn an_unsigned_bundle_needs_the_unsigned_option() {
    let (upstream, folder, import_folder) = (upstream_publishing_null().await, Folder::new(), Folder::new());
    let work = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mirror.toml"), Larder::mirroring(&upstream).store_at(&folder).config_text())
        .unwrap();
    let output = create_bundle(work.path(), &folder, "out.tar", &[]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    for remedy in ["larder bundle keygen", "[bundle] signing_key", "--unsigned"] {
        assert!(output.err.contains(remedy), "{remedy}: {output:?}");
    }
    assert!(upstream.requests().is_empty() && !work.path().join("out.tar").exists(), "{:?}", upstream.requests());

    let output = create_bundle(work.path(), &folder, "out.tar", &["--unsigned"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    std::fs::write(import_folder.path().join("mirror.toml"), sealed().store_at(&import_folder).config_text()).unwrap();
    let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", "out.tar"]).await;
    assert!(output.code == Some(1) && output.err.contains("it is not signed"), "{output:?}");
    let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", "out.tar", "--unsigned"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
}

/// Promise 15: if the file names a key and the running larder still has the old configuration, the remedy is a reload.
#[tokio::test]
async fn a_key_that_the_running_larder_has_not_read_yet_is_named_and_works_after_a_reload() {
    let (upstream, key, work) = (upstream_publishing_null().await, BundleKey::new(), tempfile::tempdir().unwrap());
    let (export_folder, import_folder) = (Folder::new(), Folder::new());
    let exporter = Process::start(&Larder::mirroring(&upstream).store_at(&export_folder), export_folder.path());
    write_new_config(
        &key.with_signing_key(Larder::mirroring(&upstream)).store_at(&export_folder),
        &export_folder,
        &exporter,
    );
    let id = key.key.public().id().to_string();
    let output = create_bundle(work.path(), &export_folder, "out.tar", &[]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("[bundle] signing_key") && output.err.contains("reload it"), "{output:?}");
    assert!(output.err.contains(&id) && upstream.count_of(Target::Versions) == 0, "{output:?}");
    exporter.send_sighup();
    exporter.log().line_with("the configuration was reloaded").await;
    let output = create_bundle(work.path(), &export_folder, "out.tar", &[]).await;
    assert!(output.code == Some(0) && output.out.contains(&format!("signed by key {id}")), "{output:?}");
    let other = BundleKey::new();
    write_new_config(
        &other.with_signing_key(Larder::mirroring(&upstream)).store_at(&export_folder),
        &export_folder,
        &exporter,
    );
    let output = create_bundle(work.path(), &export_folder, "other.tar", &[]).await;
    assert!(output.code == Some(1) && output.err.contains("reload it"), "{output:?}");

    let importer = Process::start(&sealed().store_at(&import_folder), import_folder.path());
    write_new_config(&key.sealed().store_at(&import_folder), &import_folder, &importer);
    let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", "out.tar"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("[bundle] trusted_keys") && output.err.contains("reload it"), "{output:?}");
    importer.send_sighup();
    importer.log().line_with("the configuration was reloaded").await;
    let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", "out.tar"]).await;
    assert!(output.code == Some(0) && output.out.contains("which is trusted here"), "{output:?}");
    let output = run_larder_in(work.path(), &import_folder, &["status"]).await;
    assert!(output.code == Some(0) && output.out.contains(&format!("bundles signed by key {id}")), "{output:?}");
}

/// Promise 15: a file of another kind is distinguished from an altered bundle.
#[tokio::test]
async fn a_file_that_is_no_bundle_is_refused_before_anything_is_sent() {
    let (import_folder, work) = (Folder::new(), tempfile::tempdir().unwrap());
    let importer = Process::start(&sealed().store_at(&import_folder), import_folder.path());
    write_config_of_running(&import_folder, &importer);
    let zip = [&b"PK\x03\x04"[..], &[7; 4000]].concat();
    for (name, bytes) in [("key", &b"ed25519-private:AAAA\n"[..]), ("null.zip", &zip), ("tar", &[0; 10_240])] {
        std::fs::write(work.path().join(name), bytes).unwrap();
        let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", name]).await;
        assert_eq!(output.code, Some(1), "{name}: {output:?}");
        assert!(output.err.contains(&format!("larder: {name}: not a larder bundle")), "{name}: {output:?}");
    }
    // A file that could be the start of a bundle is reported as truncated.
    std::fs::write(work.path().join("cut"), "larder-bun").unwrap();
    let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", "cut"]).await;
    assert!(output.code == Some(1) && output.err.contains("truncated"), "{output:?}");
}
