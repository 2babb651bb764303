//! Bundles that are refused: the signer is not trusted, the contents do not verify, or the disk space is too small.

use std::time::Duration;

use larder::address::{Hostname, PackageSelector, Platform, Version};
use larder::bundle::{BundleEntry, BundleWriter, Inventory, Manifest, ModuleEntry, ProviderEntry, SigningKey};
use larder::clock::Clock;
use larder::digest::Digest;
use serde_json::{Value, json};

use crate::support::bundle_transfer::{
    BundleKey, SealedStore, bundle, bundle_made_at, bundle_of, contents, outcomes, refusal, sealed, warm_up,
};
use crate::support::git::{Format, pack};
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::{Process, command, run};
use crate::support::published_module::publish_net_module;
use crate::support::upstream::{FakeUpstream, Module, Provider, SigningKey as PublisherKey};

async fn null_bundle(key: &BundleKey, provider: Provider) -> Vec<u8> {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider);
    bundle(&upstream, key, &["acme/null"], &["linux_amd64"]).await
}

/// A bundle with acme/net/test, a module of this text.
async fn net_bundle(key: &BundleKey, text: &str) -> Vec<u8> {
    let (upstream, folder) = (FakeUpstream::start().await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("main.tf"), text).unwrap();
    upstream.serve_file("/files/net.tar.gz", "application/gzip", pack(Format::TarGz, folder.path(), ""));
    upstream.publish_module(Module::new("acme", "net", "test").at("/files/net.tar.gz"));
    bundle(&upstream, key, &["acme/net/test"], &[]).await
}

/// The files that an import of archives adds to a store: package records and archives.
fn records_and_archives(folder: &Folder) -> Vec<String> {
    contents(folder).into_keys().filter(|name| name.starts_with("blobs/") || name.starts_with("names/")).collect()
}

fn null() -> Provider {
    Provider::new("acme", "null")
}

const NULL: &str = "registry.terraform.io/acme/null 1.2.0 (linux_amd64)";

/// The manifest of a bundle, and its files by name.
fn unpack_bundle(bundle: &[u8]) -> (Manifest, Vec<(String, Vec<u8>)>) {
    let mut archive = tar::Archive::new(bundle);
    let mut files = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        files.push((entry.path().unwrap().display().to_string(), bytes));
    }
    (Manifest::read(&files[0].1).unwrap(), files)
}

/// The bundle's files under a changed but consistent manifest, signed with this key if there is one.
fn with_changed_entries(bundle: &[u8], key: Option<&SigningKey>, change: impl Fn(&mut BundleEntry)) -> Vec<u8> {
    let (manifest, files) = unpack_bundle(bundle);
    let mut entries = manifest.entries;
    entries.iter_mut().for_each(change);
    let manifest = Manifest::new(manifest.created, None, entries, Vec::new());
    let mut writer = BundleWriter::begin(Vec::new(), &manifest, key).unwrap();
    for (_, file) in manifest.files() {
        let name = format!("sha256/{}", file.file.sha256);
        let bytes = &files.iter().find(|(found, _)| *found == name).unwrap().1;
        writer.file(&file, &bytes[..]).unwrap();
    }
    writer.end().unwrap()
}

#[tokio::test]
async fn an_untrusted_bundle_is_refused_before_anything_changes() {
    let (key, foreign) = (BundleKey::new(), BundleKey::new());
    let upstream = FakeUpstream::start().await;
    upstream.publish(null());
    let signed = bundle(&upstream, &foreign, &["acme/null"], &["linux_amd64"]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let unsigned = bundle_of(&larder, &job, None).await;
    let importer = SealedStore::new(key.sealed());
    for (name, bytes, reason) in
        [("another key", &signed, "not in [bundle] trusted_keys"), ("no key", &unsigned, "it is not signed")]
    {
        let error = importer.apply(bytes.clone(), &key.trust()).await.unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("--unsigned"), "{name}: {error}");
        assert!(contents(&importer.folder).is_empty() && importer.folder.files("receipts").is_empty(), "{name}");
    }
    let with_unsigned = key.trust_or_unsigned();
    for (name, bytes) in [("another key", signed), ("no key", unsigned)] {
        let receipt = importer.apply(bytes, &with_unsigned).await.unwrap();
        assert!(receipt.ok && !receipt.trusted, "{name}: {receipt:#?}");
    }
}

/// A lie about each provider or each module of a bundle.
enum Lie {
    Provider(fn(&mut ProviderEntry)),
    Module(fn(&mut ModuleEntry)),
}

impl Lie {
    fn apply_to(&self, entry: &mut BundleEntry) {
        match (self, entry) {
            (Self::Provider(change), BundleEntry::Provider(entry)) => change(entry),
            (Self::Module(change), BundleEntry::Module(entry)) => change(entry),
            _ => {}
        }
    }
}

/// `--unsigned` skips the check of the bundle's signer only: the publishers' signatures are verified as always.
#[tokio::test]
async fn a_false_statement_of_a_manifest_is_refuted_by_the_files_of_the_bundle() {
    let key = BundleKey::new();
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().platform("linux_amd64").platform("darwin_arm64"));
    publish_net_module(&upstream);
    let bytes = bundle(&upstream, &key, &["acme/null", "acme/net/test"], &["linux_amd64"]).await;
    let with_unsigned = key.trust_or_unsigned();
    let lies = [
        (
            "another platform",
            Lie::Provider(|entry| entry.platform = Platform::parse("darwin_arm64").unwrap()),
            "download document",
        ),
        (
            "another version",
            Lie::Provider(|entry| entry.version = Version::parse("9.9.9").unwrap()),
            "which is not that of",
        ),
        ("another signer", Lie::Provider(|entry| entry.signed_by = Some("F00D".to_owned())), "names key F00D"),
        ("another tree", Lie::Module(|entry| entry.tree = Digest::of(b"another")), "its tree has digest"),
        ("no such folder", Lie::Module(|entry| entry.subdir = Some("not/there".to_owned())), "has no folder not/there"),
        ("a folder outside", Lie::Module(|entry| entry.subdir = Some("../..".to_owned())), "its subdir is not a path"),
        // Clients unpack archives with their own code and may read another tree from another packer's output.
        ("another packer", Lie::Module(|entry| entry.packer += 1), "made by another packer"),
    ];
    for (name, lie, reason) in lies {
        let change = |entry: &mut BundleEntry| lie.apply_to(entry);
        let importer = SealedStore::new(key.sealed());
        let receipt = importer.apply(with_changed_entries(&bytes, None, change), &with_unsigned).await.unwrap();
        assert!(!receipt.ok, "{name}");
        let (_, refusal_reason) = refusal(&receipt);
        assert!(refusal_reason.contains(reason), "{name}: {refusal_reason}");
        // A refused entry leaves nothing that could be served.
        let stored = contents(&importer.folder);
        assert_eq!(stored.keys().filter(|file| file.starts_with("names/")).count(), 1, "{name}: {:?}", stored.keys());
        assert_eq!(importer.folder.blobs().len(), 1, "{name}");
        // A trusted signature does not make a false entry acceptable.
        let signed = with_changed_entries(&bytes, Some(&key.key), change);
        let receipt = SealedStore::new(key.sealed()).apply(signed, &key.trust()).await.unwrap();
        assert!(refusal(&receipt).1.contains(reason), "{name}");
        let receipt = importer.apply(bytes.clone(), &key.trust()).await.unwrap();
        assert!(receipt.ok, "{name}, then the truth: {receipt:#?}");
    }
}

/// Promise 1: the bundle's signature is not a substitute for the publisher's.
#[tokio::test]
async fn a_signed_bundle_does_not_replace_the_publishers_signature() {
    let key = BundleKey::new();
    let provider = null().signed_by(&PublisherKey::new_key());
    let provider = provider.listed_keys(&[PublisherKey::new_key()]);
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider);
    let exporter =
        key.with_signing_key(Larder::mirroring(&upstream).upstream_lines("verification = \"checksum\"")).start().await;
    let job = warm_up(&exporter, &["acme/null"], &["linux_amd64"]).await;
    let bytes = bundle_of(&exporter, &job, None).await;
    let importer = SealedStore::new(key.sealed());
    let receipt = importer.apply(bytes.clone(), &key.trust()).await.unwrap();
    let (subject, reason) = refusal(&receipt);
    assert_eq!(subject, NULL);
    assert!(reason.contains("verification failed"), "{reason}");
    assert!(importer.folder.blobs().is_empty() && importer.folder.partial_downloads().is_empty());
    let checksum_importer =
        SealedStore::new(key.with_trusted_key(sealed().upstream_lines("verification = \"checksum\"")));
    assert!(checksum_importer.apply(bytes, &key.trust()).await.unwrap().ok);
}

/// A republished version gets the same verdict from a bundle as from an upstream: with a foreign key or another tree it
/// waits for `accept`, with an alarm. `larder accept` would ask upstream, which an offline larder cannot.
#[tokio::test]
async fn a_version_that_is_not_the_first_seen_one_is_refused_until_it_is_accepted() {
    let key = BundleKey::new();
    let stranger = null().edition(2).signed_by(&PublisherKey::new_key());
    let module = format!("{HOST}/acme/net/test");
    let rows = [
        (
            "a provider that a stranger republished",
            [null_bundle(&key, null()).await, null_bundle(&key, stranger).await],
            (NULL, "published again"),
            (format!("{HOST}/acme/null@1.2.0"), "acme/null@1.2.0"),
        ),
        (
            "a module with another tree",
            [
                net_bundle(&key, "output \"a\" {\n  value = 1\n}\n").await,
                net_bundle(&key, "output \"b\" {\n  value = 2\n}\n").await,
            ],
            (&*format!("{module} 1.0.0"), "the first-seen one"),
            (format!("{module}@1.0.0"), "acme/net/test"),
        ),
    ];
    for (name, [first, other], (subject, reason), (proposed, selector)) in rows {
        let importer = SealedStore::new(key.sealed());
        assert!(importer.apply(first, &key.trust()).await.unwrap().ok, "{name}");
        let before = records_and_archives(&importer.folder);
        let receipt = importer.apply(other.clone(), &key.trust()).await.unwrap();
        let (refused, why) = refusal(&receipt);
        assert_eq!(refused, subject, "{name}");
        assert!(why.contains(reason) && why.contains(&format!("--accept {proposed}")), "{name}: {why}");
        assert!(!why.contains("larder accept"), "{name}: {why}");
        assert_eq!(records_and_archives(&importer.folder), before, "{name}");
        let alarms = importer.mirror.library.alarms();
        assert_eq!(alarms.len(), 1, "{name}: {alarms:?}");
        assert_eq!(alarms[0].resolve, Some(format!("larder bundle apply BUNDLE --accept {proposed}")), "{name}");
        let mut accepting = key.trust();
        accepting.accept = vec![PackageSelector::parse(selector, &Hostname::parse(HOST).unwrap()).unwrap()];
        let receipt = importer.apply(other, &accepting).await.unwrap();
        assert!(receipt.ok, "{name}: {receipt:#?}");
        assert_eq!((importer.folder.blobs().len(), importer.mirror.library.alarms().len()), (2, 0), "{name}");
    }
}

/// A version without a first-seen record has no digests to compare: only its signing key can be checked.
#[tokio::test]
async fn an_unknown_signing_key_is_accepted_only_from_a_trusted_bundle() {
    let (key, foreign) = (BundleKey::new(), BundleKey::new());
    let next = || null().version("1.3.0").signed_by(&PublisherKey::new_key());
    let importer = SealedStore::new(key.sealed());
    assert!(importer.apply(null_bundle(&key, null()).await, &key.trust()).await.unwrap().ok);
    let before = importer.folder.blobs();
    let with_unsigned = key.trust_or_unsigned();
    for _ in 0..2 {
        // A refused entry leaves no record, so the second attempt is refused too.
        let receipt = importer.apply(null_bundle(&foreign, next()).await, &with_unsigned).await.unwrap();
        let (subject, reason) = refusal(&receipt);
        assert_eq!(subject, NULL.replace("1.2.0", "1.3.0"));
        assert!(reason.contains("is not known for this provider"), "{reason}");
        assert_eq!(importer.folder.blobs(), before);
    }
    assert!(importer.apply(null_bundle(&key, next()).await, &key.trust()).await.unwrap().ok);
}

/// Promise 14: a key from an untrusted bundle is not recorded as a key of the provider.
#[tokio::test]
async fn an_unsigned_bundle_makes_no_key_known_for_a_provider() {
    let (key, foreign, stranger) = (BundleKey::new(), BundleKey::new(), PublisherKey::new_key());
    let importer = SealedStore::new(key.sealed());
    let with_unsigned = key.trust_or_unsigned();
    let strangers_bundle = null_bundle(&foreign, null().signed_by(&stranger)).await;
    assert!(importer.apply(strangers_bundle, &with_unsigned).await.unwrap().ok);
    let folder = importer.folder.clone();
    importer.mirror.library.close().await.unwrap();
    drop(importer);

    let upstream = FakeUpstream::start().await;
    upstream.publish(null().version("1.3.0"));
    let larder = Larder::mirroring(&upstream).store_at(&folder).always_revalidate().start().await;
    larder.document("null", "1.3.0").await.expect(200);
    let new_keys = async || {
        let raised = larder.alarms().await.into_iter().filter(|(kind, ..)| kind == "new-key");
        raised.map(|(_, _, version, _)| version).collect::<Vec<_>>()
    };
    assert_eq!(new_keys().await, Vec::<String>::new(), "the publisher is a stranger to what the bundle brought");
    upstream.publish(null().version("1.4.0").signed_by(&stranger));
    larder.document("null", "1.4.0").await.expect(200);
    assert_eq!(new_keys().await, ["1.4.0"]);
}

#[tokio::test]
async fn a_new_edition_by_the_same_publisher_is_imported_with_an_alarm() {
    let key = BundleKey::new();
    let (first, second) = (null_bundle(&key, null()).await, null_bundle(&key, null().edition(2)).await);
    let importer = SealedStore::new(key.sealed());
    assert!(importer.apply(first, &key.trust()).await.unwrap().ok);
    let receipt = importer.apply(second, &key.trust()).await.unwrap();
    assert!(receipt.ok);
    let entries = serde_json::to_value(&receipt.entries).unwrap();
    let notes: Vec<&str> = entries.as_array().unwrap().iter().filter_map(|entry| entry["note"].as_str()).collect();
    let [note] = notes[..] else { panic!("{entries:#}") };
    assert!(note.contains("published again") && note.contains("lock files"), "{note}");
    let alarms = serde_json::to_value(importer.mirror.library.alarms()).unwrap();
    assert_eq!(alarms[0]["kind"], "republished");
}

/// Offline nothing is evicted, so a bundle that does not fit is refused before the import starts.
#[tokio::test]
async fn a_bundle_that_does_not_fit_is_refused_before_anything_is_stored() {
    let key = BundleKey::new();
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().size(200_000));
    upstream.publish(Provider::new("acme", "large").size(2_000_000));
    let small = bundle(&upstream, &key, &["acme/null"], &["linux_amd64"]).await;
    let both = bundle(&upstream, &key, &["acme/null", "acme/large"], &["linux_amd64"]).await;
    let importer = SealedStore::new(key.with_trusted_key(sealed().store("max_size = \"1MiB\"")));
    assert!(importer.apply(small, &key.trust()).await.unwrap().ok);
    let before = contents(&importer.folder);
    let error = importer.apply(both.clone(), &key.trust()).await.unwrap_err().to_string();
    assert!(error.contains("offline nothing is evicted"), "{error}");
    assert!(contents(&importer.folder) == before && importer.folder.partial_downloads().is_empty());
    let larger_importer = SealedStore::new(key.with_trusted_key(sealed().store("max_size = \"4MiB\"")));
    assert!(larger_importer.apply(both, &key.trust()).await.unwrap().ok);
}

#[tokio::test]
async fn entries_of_a_registry_that_is_no_upstream_are_refused_by_name() {
    let key = BundleKey::new();
    let bytes = null_bundle(&key, null()).await;
    let elsewhere = Larder::builder().upstream("registry.example", "http://127.0.0.1:9/", "").network("offline = true");
    let importer = SealedStore::new(key.with_trusted_key(elsewhere));
    let error = importer.apply(bytes, &key.trust()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("the bundle is of {HOST}")) && error.contains("[[upstream]]"), "{error}");
    assert!(contents(&importer.folder).is_empty());
}

#[tokio::test]
async fn the_admin_listener_refuses_before_it_reads_a_body() {
    let key = BundleKey::new();
    let bytes = null_bundle(&key, null().size(2_000_000)).await;
    let folder = Folder::new();
    let store = "max_size = \"1MiB\"";
    let running = Process::start(&key.with_trusted_key(sealed().store(store)).store_at(&folder), folder.path());
    let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
    let apply = async |body: Vec<u8>| {
        let request = client().post(format!("{}/admin/v1/bundle/apply", running.admin())).bearer_auth(&token);
        send(request.header("content-type", "application/x-tar").body(body)).await.unwrap()
    };
    let output = apply(bytes.clone()).await.expect(507).json();
    assert!(output["errors"][0].as_str().unwrap().contains("are available"), "{output}");
    let unsigned = with_changed_entries(&bytes, None, |_| {});
    let output = apply(unsigned).await.expect(400).json();
    assert!(output["errors"][0].as_str().unwrap().contains("not signed"), "{output}");
    assert!(contents(&folder).is_empty());
    let inventory = get(&format!("{}/admin/v1/inventory", running.admin())).await.expect(200);
    assert!(Inventory::read(&inventory.body).unwrap().is_empty());
}

#[tokio::test]
async fn a_command_prints_the_reason_of_a_refused_bundle() {
    let key = BundleKey::new();
    let bytes = null_bundle(&key, null()).await;
    let folder = Folder::new();
    let (config, file) = (folder.path().join("mirror.toml"), folder.path().join("gap.tar"));
    std::fs::write(&config, sealed().store_at(&folder).config_text()).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    let apply = async |more: &[&str]| {
        let arguments = ["bundle", "apply", file.to_str().unwrap(), "--config", config.to_str().unwrap()];
        run(command(folder.path(), &[&arguments[..], more].concat())).await
    };
    let output = apply(&[]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("not in [bundle] trusted_keys"), "{output:?}");
    let output = apply(&["--unsigned"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("which is not trusted here"), "{output:?}");
    let mut altered = bytes.clone();
    // A byte of the last file: a tar ends with 1024 bytes of zeros.
    let offset = altered.len() - 1024 - 700;
    altered[offset] ^= 1;
    std::fs::write(&file, &altered).unwrap();
    let output = apply(&["--unsigned", "--json"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    let last: Value = serde_json::from_str(output.out.lines().last().unwrap()).unwrap();
    assert_eq!((last["step"].clone(), last["receipt"]["ok"].clone()), (json!("done"), json!(false)));
}

/// The refusal must not be lost with the connection while the command still sends the bundle.
#[tokio::test]
async fn the_reason_of_a_refusal_arrives_while_a_large_bundle_is_still_sent() {
    let bytes = null_bundle(&BundleKey::new(), null().size(8_000_000)).await;
    let folder = Folder::new();
    // It trusts another key than the one of the bundle.
    let running = Process::start(&BundleKey::new().sealed().store_at(&folder), folder.path());
    let [file, config] = ["gap.tar", "command.toml"].map(|name| folder.path().join(name));
    std::fs::write(&file, &bytes).unwrap();
    let (admin, store) = (running.announcement()["admin"].as_str().unwrap(), folder.path());
    std::fs::write(&config, format!("[store]\npath = {store:?}\n[admin]\nlisten = \"{admin}\"\n")).unwrap();
    let apply = async |more: &[&str]| {
        let arguments = ["bundle", "apply", file.to_str().unwrap(), "--config", config.to_str().unwrap()];
        run(command(folder.path(), &[&arguments[..], more].concat())).await
    };
    for _ in 0..8 {
        let output = apply(&[]).await;
        assert!(output.code == Some(1) && output.err.contains("answered: "), "{output:?}");
        assert!(output.err.contains("not in [bundle] trusted_keys"), "{output:?}");
    }
    assert!(contents(&folder).is_empty());
    let output = run(command(folder.path(), &["bundle", "apply", "-", "--config", config.to_str().unwrap()])).await;
    assert!(output.code == Some(1) && output.err.contains("standard input"), "{output:?}");
}

#[tokio::test]
async fn a_refused_entry_does_not_block_the_others() {
    let key = BundleKey::new();
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two", "three"] {
        upstream.publish(Provider::new("acme", name));
    }
    let mut bytes = bundle(&upstream, &key, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let zip = upstream.archive_bytes("acme", "three", "1.2.0", "linux_amd64");
    let offset = bytes.windows(zip.len()).position(|window| window == zip).unwrap();
    bytes[offset + 99] ^= 0x20;
    let importer = SealedStore::new(key.sealed());
    let receipt = importer.apply(bytes, &key.trust()).await.unwrap();
    let (subject, reason) = refusal(&receipt);
    assert_eq!(subject, format!("{HOST}/acme/three 1.2.0 (linux_amd64)"));
    assert!(reason.contains("its archive was altered"), "{reason}");
    let applied = outcomes(&receipt).into_iter().filter(|(_, word)| word == "applied").count();
    assert_eq!((applied, importer.folder.blobs().len()), (receipt.entries.len() - 1, 2));
}

/// A signature does not prove that a bundle is recent. A replayed one, from before a version was withdrawn, shows only
/// by its age: `[bundle] max_age` refuses it.
#[tokio::test]
async fn a_replayed_bundle_reports_its_age_and_is_refused_beyond_max_age() {
    let key = BundleKey::new();
    let upstream = FakeUpstream::start().await;
    upstream.publish(null());
    let larder = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let old = bundle_made_at(&larder, &job, None, 1_000_000_000).await;
    let importer = SealedStore::new(key.sealed());
    assert!(importer.mirror.operations.status(Clock::system().now()).last_bundle.is_none());
    let mut bounded = key.trust();
    bounded.max_age = Some(Duration::from_secs(30 * 24 * 3600));
    let refused = importer.apply(old.clone(), &bounded).await.unwrap_err().to_string();
    assert!(refused.contains("2001-09-09") && refused.contains("max_age (30days)"), "{refused}");
    assert!(contents(&importer.folder).is_empty() && importer.folder.files("receipts").is_empty());

    let receipt = importer.apply(old, &key.trust()).await.unwrap();
    assert!(receipt.ok && receipt.age_seconds() > 20 * 365 * 24 * 3600, "{receipt:#?}");
    let last = importer.mirror.operations.status(Clock::system().now()).last_bundle.unwrap();
    assert_eq!((last.created.0, last.applied), (1_000_000_000, receipt.applied));
}
