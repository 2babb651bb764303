//! Bundle keys on the command line: bundles are signed, a key that the running larder has not loaded is named, and
//! other files are not taken for bundles.

use std::path::Path;

use crate::support::bundle_commands::{larder_in, write_beside};
use crate::support::bundle_transfer::{BundleKey, sealed};
use crate::support::larder::{Builder, Folder, Larder};
use crate::support::process::{CommandOutput, Process};
use crate::support::upstream::{FakeUpstream, Provider, Target};

async fn publishing() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream
}

async fn create(work: &Path, folder: &Folder, out: &str, more: &[&str]) -> CommandOutput {
    let create = ["bundle", "create", "--platform", "linux_amd64", "--for", "acme/null", out];
    larder_in(work, folder, &[&create[..], more].concat()).await
}

/// Writes this configuration for the commands and for the next reload, with the running larder's admin address.
fn write_again(builder: &Builder, folder: &Folder, running: &Process) {
    let admin = running.said()["admin"].as_str().unwrap();
    let of_admin = "[admin]\nlisten = \"127.0.0.1:0\"";
    let text = builder.config_text();
    assert!(text.contains(of_admin), "{text}");
    let text = text.replace(of_admin, &format!("[admin]\nlisten = \"{admin}\""));
    std::fs::write(folder.path().join("mirror.toml"), text).unwrap();
}

/// DESIGN, promise 15: an unsigned bundle must be asked for explicitly, before anything is fetched for it.
#[tokio::test]
async fn an_unsigned_bundle_needs_the_unsigned_option() {
    let (upstream, folder, there) = (publishing().await, Folder::new(), Folder::new());
    let work = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mirror.toml"), Larder::mirroring(&upstream).on(&folder).config_text()).unwrap();
    let output = create(work.path(), &folder, "out.tar", &[]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    for remedy in ["larder bundle keygen", "[bundle] signing_key", "--unsigned"] {
        assert!(output.err.contains(remedy), "{remedy}: {output:?}");
    }
    assert!(upstream.requests().is_empty() && !work.path().join("out.tar").exists(), "{:?}", upstream.requests());

    let output = create(work.path(), &folder, "out.tar", &["--unsigned"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    std::fs::write(there.path().join("mirror.toml"), sealed().on(&there).config_text()).unwrap();
    let output = larder_in(work.path(), &there, &["bundle", "apply", "out.tar"]).await;
    assert!(output.code == Some(1) && output.err.contains("it is not signed"), "{output:?}");
    let output = larder_in(work.path(), &there, &["bundle", "apply", "out.tar", "--unsigned"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
}

/// DESIGN, promise 15: if the file names a key and the running larder still has the old configuration, the remedy is a
/// reload.
#[tokio::test]
async fn a_key_that_the_running_larder_has_not_read_yet_is_named_and_works_after_a_reload() {
    let (upstream, key, work) = (publishing().await, BundleKey::new(), tempfile::tempdir().unwrap());
    let (here, there) = (Folder::new(), Folder::new());
    let making = Process::start(&Larder::mirroring(&upstream).on(&here), here.path());
    write_again(&key.signs(Larder::mirroring(&upstream)).on(&here), &here, &making);
    let id = key.key.public().id().to_string();
    let output = create(work.path(), &here, "out.tar", &[]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("[bundle] signing_key") && output.err.contains("reload it"), "{output:?}");
    assert!(output.err.contains(&id) && upstream.count_of(Target::Versions) == 0, "{output:?}");
    making.hang_up();
    making.log().line_with("the configuration was reloaded").await;
    let output = create(work.path(), &here, "out.tar", &[]).await;
    assert!(output.code == Some(0) && output.out.contains(&format!("signed by key {id}")), "{output:?}");
    let other = BundleKey::new();
    write_again(&other.signs(Larder::mirroring(&upstream)).on(&here), &here, &making);
    let output = create(work.path(), &here, "other.tar", &[]).await;
    assert!(output.code == Some(1) && output.err.contains("reload it"), "{output:?}");

    let receiving = Process::start(&sealed().on(&there), there.path());
    write_again(&key.sealed().on(&there), &there, &receiving);
    let output = larder_in(work.path(), &there, &["bundle", "apply", "out.tar"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("[bundle] trusted_keys") && output.err.contains("reload it"), "{output:?}");
    receiving.hang_up();
    receiving.log().line_with("the configuration was reloaded").await;
    let output = larder_in(work.path(), &there, &["bundle", "apply", "out.tar"]).await;
    assert!(output.code == Some(0) && output.out.contains("which is trusted here"), "{output:?}");
    let output = larder_in(work.path(), &there, &["status"]).await;
    assert!(output.code == Some(0) && output.out.contains(&format!("bundles signed by key {id}")), "{output:?}");
}

/// DESIGN, promise 15: a file of another kind is distinguished from an altered bundle.
#[tokio::test]
async fn a_file_that_is_no_bundle_is_refused_before_anything_is_sent() {
    let (there, work) = (Folder::new(), tempfile::tempdir().unwrap());
    let receiving = Process::start(&sealed().on(&there), there.path());
    write_beside(&there, &receiving);
    let zip = [&b"PK\x03\x04"[..], &[7; 4000]].concat();
    for (name, bytes) in [("key", &b"ed25519-private:AAAA\n"[..]), ("null.zip", &zip), ("tar", &[0; 10_240])] {
        std::fs::write(work.path().join(name), bytes).unwrap();
        let output = larder_in(work.path(), &there, &["bundle", "apply", name]).await;
        assert_eq!(output.code, Some(1), "{name}: {output:?}");
        assert!(output.err.contains(&format!("larder: {name}: not a larder bundle")), "{name}: {output:?}");
    }
    // A possible beginning of a bundle is reported as truncated.
    std::fs::write(work.path().join("cut"), "larder-bun").unwrap();
    let output = larder_in(work.path(), &there, &["bundle", "apply", "cut"]).await;
    assert!(output.code == Some(1) && output.err.contains("truncated"), "{output:?}");
}
