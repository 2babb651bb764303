//! Disk space and memory of bundles: a full disk leaves no partial files, and memory does not grow with a bundle's
//! size.

use larder::bundle::{ApplyOutcome, Receipt};
use serde_json::Value;

use crate::support::bundle_transfer::{BundleKey, BundleUpload, SealedStore, bundle, receipt_in, settled_contents};
use crate::support::eventually;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::larder_commands::{run_larder_in, write_config_of_running};
use crate::support::process::Process;
use crate::support::small_disk::SmallDisk;
use crate::support::upstream::{FakeUpstream, Provider};

const ARCHIVE_BYTES: usize = 1_500_000;
const NAMES: [&str; 3] = ["one", "three", "two"];

/// A bundle of three archives of 1.5 MB each.
async fn bundle_of_three(key: &BundleKey) -> Vec<u8> {
    let upstream = FakeUpstream::start().await;
    for name in NAMES {
        upstream.publish(Provider::new("acme", name).size(ARCHIVE_BYTES));
    }
    bundle(&upstream, key, &NAMES.map(|name| ["acme/", name].concat()).each_ref().map(|name| &**name), &["linux_amd64"])
        .await
}

fn refusals(receipt: &Receipt) -> Vec<(&str, &str)> {
    let refused = receipt.entries.iter().filter_map(|entry| match &entry.outcome {
        ApplyOutcome::Refused { why: reason, .. } => Some((&*entry.package.to_string().leak(), reason.as_str())),
        _ => None,
    });
    refused.collect()
}

fn entry_name(name: &str) -> String {
    format!("{HOST}/acme/{name} 1.2.0 (linux_amd64)")
}

/// Sends the whole bundle and returns the receipt.
async fn send_bundle(larder: &Process, folder: &Folder, bytes: &[u8]) -> Receipt {
    let upload = BundleUpload::start(larder, folder);
    upload.send_piece(bytes).await;
    receipt_in(&upload.finish().await.expect(200))
}

/// Promise 9, on any machine: entries that the disk refuses are reported with the reason, and the next import stores
/// them.
#[tokio::test]
async fn an_entry_that_the_disk_refuses_is_reported_and_stored_by_the_next_apply() {
    let key = BundleKey::new();
    let bytes = bundle_of_three(&key).await;
    let folder = Folder::new();
    let larder = Process::start(&key.sealed().store_at(&folder), folder.path());
    larder.limit_file_size(Some(ARCHIVE_BYTES as u64 / 2));
    let receipt = send_bundle(&larder, &folder, &bytes).await;
    let refused = refusals(&receipt);
    assert_eq!(refused.iter().map(|(entry, _)| *entry).collect::<Vec<_>>(), NAMES.map(entry_name), "{receipt:#?}");
    assert!(refused.iter().all(|(_, reason)| reason.contains("LimitFSIZE=")), "{receipt:#?}");
    assert!(!receipt.ok && folder.blobs().is_empty() && folder.partial_downloads().is_empty());
    larder.limit_file_size(None);
    let receipt = send_bundle(&larder, &folder, &bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    assert_eq!(larder.terminate().await, Some(0));
    assert_complete_import(&key, &folder, bytes).await;
}

/// Asserts that the store equals one that imported the bundle without interruption.
async fn assert_complete_import(key: &BundleKey, folder: &Folder, bytes: Vec<u8>) {
    let uninterrupted = SealedStore::new(key.sealed());
    assert!(uninterrupted.apply(bytes, &key.trust()).await.unwrap().ok);
    let expected = settled_contents(key.sealed(), &uninterrupted.close().await).await;
    assert!(settled_contents(key.sealed(), folder).await == expected);
}

const DISK_BYTES: usize = 10 << 20;

/// Promise 9, with a real disk that fills to its last byte during an import.
#[tokio::test]
async fn a_disk_that_fills_during_an_import_leaves_no_partial_archive_and_is_reported() {
    if !SmallDisk::is_possible() {
        return;
    }
    let key = BundleKey::new();
    let bytes = bundle_of_three(&key).await;
    let folder = Folder::new();
    let disk = SmallDisk::start(&key.sealed().store_at(&folder), &folder, DISK_BYTES, "true").unwrap();
    let blobs = disk.store().join("blobs/sha256");
    let stored = || std::fs::read_dir(&blobs).map_or(0, Iterator::count);

    let upload = BundleUpload::start(&disk.larder, &folder);
    upload.send_piece(&bytes[..ARCHIVE_BYTES + ARCHIVE_BYTES / 2]).await;
    eventually("the first archive is stored", async || (stored() == 1).then_some(())).await;
    disk.leave_free(0);
    upload.send_piece(&bytes[ARCHIVE_BYTES + ARCHIVE_BYTES / 2..]).await;
    let receipt = receipt_in(&upload.finish().await.expect(200));
    let refused = refusals(&receipt);
    assert!(!receipt.ok, "{receipt:#?}");
    assert!(refused.iter().any(|(entry, _)| *entry == entry_name("two")), "{receipt:#?}");
    assert!(refused.iter().all(|(_, reason)| reason.contains("free space on the store's disk")), "{receipt:#?}");
    // The stored archive is served whole.
    let path = disk.larder.archive_path("one").await;
    assert!(disk.larder.get(&path).await.expect(200).body.len() >= ARCHIVE_BYTES);

    // The other archives do not fit, which larder reports before it stores any of them.
    let upload = BundleUpload::start(&disk.larder, &folder);
    upload.send_piece(&bytes).await;
    let text = upload.finish().await.expect(507).text();
    assert!(text.contains("the disk of the store is full"), "{text}");

    disk.remove_ballast();
    let receipt = send_bundle(&disk.larder, &folder, &bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    assert_eq!(stored(), NAMES.len());
    for name in NAMES {
        let path = disk.larder.archive_path(name).await;
        assert!(disk.larder.get(&path).await.expect(200).body.len() >= ARCHIVE_BYTES);
    }
}

/// Promise 11: archives pass through bundles in pieces.
#[tokio::test]
async fn memory_does_not_grow_with_the_archives_of_a_bundle() {
    const LARGE_ARCHIVE_BYTES: usize = 100_000_000;
    const MAX_GROWTH_BYTES: u64 = 48 << 20;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "small").size(ARCHIVE_BYTES));
    upstream.publish(Provider::new("acme", "large").size(LARGE_ARCHIVE_BYTES));
    let (export_folder, import_folder, work) = (Folder::new(), Folder::new(), tempfile::tempdir().unwrap());
    let exporter = Process::start(
        &key.with_signing_key(Larder::mirroring(&upstream)).store_at(&export_folder),
        export_folder.path(),
    );
    write_config_of_running(&export_folder, &exporter);
    let importer = Process::start(&key.sealed().store_at(&import_folder), import_folder.path());
    write_config_of_running(&import_folder, &importer);
    let mut memory_before = (0, 0);
    for name in ["small", "large"] {
        let (out, subject) = (format!("{name}.tar"), format!("acme/{name}"));
        let create = ["bundle", "create", &out, "--for", &subject, "--platform", "linux_amd64"];
        let output = run_larder_in(work.path(), &export_folder, &create).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let output = run_larder_in(work.path(), &import_folder, &["bundle", "apply", &out, "--json"]).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let last: Value = serde_json::from_str(output.out.lines().last().unwrap()).unwrap();
        assert_eq!(last["receipt"]["ok"], true, "{last:#}");
        if name == "small" {
            memory_before = (exporter.peak_resident_bytes(), importer.peak_resident_bytes());
        }
    }
    let export_growth = exporter.peak_resident_bytes() - memory_before.0;
    let import_growth = importer.peak_resident_bytes() - memory_before.1;
    assert!(
        export_growth < MAX_GROWTH_BYTES && import_growth < MAX_GROWTH_BYTES,
        "memory grew by {export_growth} bytes during the export, by {import_growth} during the import"
    );
    let path = importer.archive_path("large").await;
    assert!(
        importer.get(&path).await.expect(200).body == upstream.archive_bytes("acme", "large", "1.2.0", "linux_amd64")
    );
}
