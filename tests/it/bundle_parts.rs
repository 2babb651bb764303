//! Bundles in parts, output files and keys of the bundle commands.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::bundle_transfer::{BundleKey, SealedStore, settled_contents};
use crate::support::larder::{Folder, Larder};
use crate::support::larder_commands::write_config_of_running;
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::upstream::{FakeUpstream, Provider};

/// A larder configuration with a signing key, and an upstream with three providers of 1.5 MB.
struct BundleSite {
    folder: Folder,
    key: BundleKey,
    upstream: FakeUpstream,
}

impl BundleSite {
    async fn new() -> Self {
        let (upstream, key, folder) = (FakeUpstream::start().await, BundleKey::new(), Folder::new());
        for name in ["one", "two", "three"] {
            upstream.publish(Provider::new("acme", name).size(1_500_000));
        }
        let config = key.with_signing_key(Larder::mirroring(&upstream)).store_at(&folder).config_text();
        std::fs::write(folder.path().join("mirror.toml"), config).unwrap();
        Self { folder, key, upstream }
    }

    async fn create(&self, out: &Path, extra: &[&str]) -> CommandOutput {
        let config = self.folder.path().join("mirror.toml");
        let arguments =
            ["bundle", "create", out.to_str().unwrap(), "--for=acme/one", "--for=acme/two", "--for=acme/three"];
        let platform = ["--platform", "linux_amd64", "--json", "--config", config.to_str().unwrap()];
        run(command(self.folder.path(), &[&arguments[..], &platform, extra].concat())).await
    }

    /// Imports this file or folder into a new store; returns the output and the store's contents.
    async fn apply(&self, bundle: &Path) -> (CommandOutput, std::collections::BTreeMap<String, Vec<u8>>) {
        let store = Folder::new();
        let config = store.path().join("mirror.toml");
        std::fs::write(&config, self.key.sealed().store_at(&store).config_text()).unwrap();
        let arguments = ["bundle", "apply", bundle.to_str().unwrap(), "--config", config.to_str().unwrap()];
        let output = run(command(store.path(), &arguments)).await;
        (output, settled_contents(self.key.sealed(), &store).await)
    }
}

/// The last line of an output, as JSON; panics unless the command succeeded.
fn json_output(output: &CommandOutput) -> Value {
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(output.out.lines().last().unwrap()).unwrap()
}

#[tokio::test]
async fn parts_are_applied_as_one_and_a_part_that_is_missing_or_wrong_is_named() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let (whole, parts) = (work.path().join("gap.tar"), work.path().join("parts"));
    json_output(&site.create(&whole, &[]).await);
    let report = json_output(&site.create(&parts, &["--part-size", "2MiB"]).await);
    assert_eq!(report["parts"], 3, "{report}");
    let sizes: Vec<u64> =
        (1..=3).map(|number| std::fs::metadata(parts.join(format!("part-0000{number}"))).unwrap().len()).collect();
    assert_eq!(sizes[..2], [2 << 20, 2 << 20]);
    let (output, contents_from_parts) = site.apply(&parts).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(site.apply(&whole).await.1 == contents_from_parts);

    let second = parts.join("part-00002");
    let bytes = std::fs::read(&second).unwrap();
    let mut altered = bytes.clone();
    altered[1_000_000] ^= 1;
    std::fs::write(&second, &altered).unwrap();
    let (output, _) = site.apply(&parts).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("part-00002 has changed"), "{output:?}");
    std::fs::remove_file(&second).unwrap();
    let (output, contents) = site.apply(&parts).await;
    assert_eq!(output.code, Some(1));
    assert!(output.err.contains("part-00002 is missing") && contents.is_empty(), "{output:?}");
    let (output, _) = site.apply(work.path()).await;
    assert!(output.err.contains("a folder without larder-bundle.parts.json"), "{output:?}");
}

#[tokio::test]
async fn parts_of_an_interrupted_run_are_reused_by_the_next() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let parts = work.path().join("parts");
    json_output(&site.create(&parts, &["--part-size", "1MiB"]).await);
    let read_part = |name: &str| std::fs::read(parts.join(name)).unwrap();
    let before: Vec<Vec<u8>> = (1..=4).map(|number| read_part(&format!("part-0000{number}"))).collect();
    // An interruption leaves an incomplete list, a half-written part, and no last part.
    let list = parts.join("larder-bundle.parts.json");
    let mut part_list: Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
    (part_list["complete"], part_list["parts"]) = (false.into(), serde_json::json!([]));
    std::fs::write(&list, part_list.to_string()).unwrap();
    std::fs::write(parts.join("part-00003"), &before[2][..600_000]).unwrap();
    std::fs::remove_file(parts.join("part-00004")).unwrap();
    let (output, _) = site.apply(&parts).await;
    assert!(output.err.contains("lists an incomplete bundle"), "{output:?}");
    let report = json_output(&site.create(&parts, &["--part-size", "1MiB"]).await);
    assert!(report["bytes_there_already"].as_u64().unwrap() >= (2 << 20) + 600_000, "{report}");
    let after: Vec<Vec<u8>> = (1..=4).map(|number| read_part(&format!("part-0000{number}"))).collect();
    assert!(before == after);
    assert_eq!(site.apply(&parts).await.0.code, Some(0));
    let again = site.create(&parts, &["--part-size", "2MiB"]).await;
    assert!(again.code == Some(1) && again.out.contains("already has a bundle in"), "{again:?}");
}

/// Lost parts can be written again long after the bundle was made, when upstream lists other versions.
#[tokio::test]
async fn only_lost_or_damaged_parts_are_written_again() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let parts = work.path().join("parts");
    let size = ["--part-size", "1MiB"];
    json_output(&site.create(&parts, &size).await);
    let names = ["part-00001", "part-00002", "part-00003", "part-00004", "part-00005"];
    let read = || names.map(|name| std::fs::read(parts.join(name)).unwrap());
    let modified_times =
        || [names[2], names[4]].map(|name| std::fs::metadata(parts.join(name)).unwrap().modified().unwrap());
    let before = read();
    let report = json_output(&site.create(&parts, &size).await);
    assert_eq!(report["written_again"], serde_json::json!([]), "{report}");

    for name in ["one", "two", "three"] {
        site.upstream.publish(Provider::new("acme", name).version("0.9.0"));
    }
    let config = site.folder.path().join("mirror.toml");
    let refresh = ["refresh", "acme/one", "acme/two", "acme/three", "--config", config.to_str().unwrap()];
    let output = run(command(site.folder.path(), &refresh)).await;
    assert_eq!(output.code, Some(0), "{output:?}");

    std::fs::remove_file(parts.join(names[0])).unwrap();
    let mut altered = before[1].clone();
    altered[1_000_000] ^= 1;
    std::fs::write(parts.join(names[1]), altered).unwrap();
    std::fs::write(parts.join(names[3]), &before[3][..9]).unwrap();
    let untouched = modified_times();
    let report = json_output(&site.create(&parts, &size).await);
    assert_eq!(report["written_again"], serde_json::json!([names[0], names[1], names[3]]), "{report}");
    assert!(read() == before);
    assert_eq!(modified_times(), untouched);
    assert_eq!(site.apply(&parts).await.0.code, Some(0));

    site.upstream.publish(Provider::new("acme", "four"));
    std::fs::remove_file(parts.join(names[1])).unwrap();
    let other = site.create(&parts, &[&size[..], &["--for", "acme/four"]].concat()).await;
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.out.contains("there is another bundle") && other.out.contains("acme/four"), "{other:?}");
    assert!(!parts.join(names[1]).exists() && std::fs::read(parts.join(names[0])).unwrap() == before[0]);
}

#[tokio::test]
async fn an_output_path_that_is_no_plain_file_is_left_alone_and_nothing_is_fetched() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let [fifo, socket, file] = ["fifo", "socket", "file"].map(|name| work.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::write(&file, "mine").unwrap();
    let file_types = || [&fifo, &socket, &file].map(|path| std::fs::symlink_metadata(path).unwrap().file_type());
    let types_before = file_types();
    let size = ["--part-size", "1MiB"];
    let cases: [(&Path, &[&str], &str); 4] = [
        (&fifo, &[], "is a FIFO"),
        (&socket, &[], "is a socket"),
        (&file, &size, "is not a folder"),
        (Path::new("-"), &[], "standard output"),
    ];
    for (out, extra, reason) in cases {
        let output = site.create(out, extra).await;
        assert!(output.code == Some(1) && output.out.contains(reason), "{out:?}: {output:?}");
    }
    assert_eq!(file_types(), types_before);
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 3);
    assert!(site.upstream.requests().is_empty() && site.folder.blobs().is_empty());
    let output = run(command(work.path(), &["bundle", "keygen", "-"])).await;
    assert!(output.code == Some(1) && output.err.contains("standard output"), "{output:?}");
}

#[tokio::test]
async fn a_symlinked_file_is_written_through_its_link() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let elsewhere = work.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("old.tar"), "old").unwrap();
    for name in ["old.tar", "new.tar"] {
        let link = work.path().join(name);
        std::os::unix::fs::symlink(Path::new("elsewhere").join(name), &link).unwrap();
        json_output(&site.create(&link, &[]).await);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(site.apply(&elsewhere.join(name)).await.0.code, Some(0));
    }
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 2);
}

/// A file size limit acts like a full disk.
#[tokio::test]
async fn a_bundle_that_does_not_fit_on_the_disk_is_named_and_leaves_no_file() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let running = Process::start(
        &site.key.with_signing_key(Larder::mirroring(&site.upstream)).store_at(&site.folder),
        site.folder.path(),
    );
    write_config_of_running(&site.folder, &running);
    let (config, out) = (site.folder.path().join("mirror.toml"), work.path().join("gap.tar"));
    let arguments = ["bundle", "create", out.to_str().unwrap(), "--for", "acme/one", "--platform", "linux_amd64"];
    let larder = command(work.path(), &[&arguments[..], &["--config", config.to_str().unwrap()]].concat());
    let mut limited = std::process::Command::new("/bin/sh");
    // 100 blocks of 512 bytes.
    limited.args(["-c", "ulimit -f 100 && exec \"$@\"", "sh"]).arg(larder.get_program()).args(larder.get_args());
    limited.env("HOME", work.path()).stdin(std::process::Stdio::null());
    let output = run(limited).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("gap.tar cannot be written: "), "{output:?}");
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn keygen_makes_a_private_key_once_and_prints_its_public_key() {
    let folder = Folder::new();
    let file = folder.path().join("bundle.key");
    let make = async || {
        run(command(folder.path(), &["bundle", "keygen", file.to_str().unwrap(), "--json", "--config", "mirror.toml"]))
            .await
    };
    let report = json_output(&make().await);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = std::fs::read_to_string(&file).unwrap();
    let key = larder::bundle::SigningKey::parse(&secret).unwrap();
    assert_eq!(report["public_key"], key.public().to_string());
    assert!(!report.to_string().contains(secret.trim()));
    // A lost public key can be printed again; the key stays the same.
    let again = json_output(&make().await);
    assert_eq!(
        (again["public_key"].clone(), std::fs::read_to_string(&file).unwrap()),
        (report["public_key"].clone(), secret)
    );
    assert_eq!(report["file"], file.canonicalize().unwrap().to_str().unwrap());
    std::fs::write(&file, "no key").unwrap();
    let refused = make().await;
    assert!(refused.code == Some(1) && std::fs::read_to_string(&file).unwrap() == "no key", "{refused:?}");
}

/// Only `--partial` writes an incomplete bundle.
#[tokio::test]
async fn a_bundle_that_cannot_be_made_leaves_no_file_of_its_name() {
    let (site, work) = (BundleSite::new().await, tempfile::tempdir().unwrap());
    let out = work.path().join("gap.tar");
    let output = site.create(&out, &["--for", "acme/nobody"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.out.contains("--partial") && !out.exists(), "{output:?}");
    let output = site.create(&out, &["--partial", "--for", "acme/nobody"]).await;
    assert!(output.code == Some(1) && out.exists(), "{output:?}");
    let importer = SealedStore::new(site.key.sealed());
    assert!(importer.apply(std::fs::read(&out).unwrap(), &site.key.trust()).await.unwrap().ok);
}
