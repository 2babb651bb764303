//! Disk space and memory of bundles: a full disk tears nothing, and memory does not grow with a bundle's size.

use larder::bundle::{ApplyOutcome, Receipt};
use serde_json::Value;

use crate::support::bundle_commands::{larder_in, write_beside};
use crate::support::bundle_transfer::{BundleKey, Giving, Sealed, bundle, receipt_in, settled_contents};
use crate::support::eventually;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::small_disk::SmallDisk;
use crate::support::upstream::{FakeUpstream, Provider};

const SIZE: usize = 1_500_000;
const NAMES: [&str; 3] = ["one", "three", "two"];

/// A bundle of three archives of 1.5 MB each.
async fn bundle_of_three(key: &BundleKey) -> Vec<u8> {
    let upstream = FakeUpstream::start().await;
    for name in NAMES {
        upstream.publish(Provider::new("acme", name).size(SIZE));
    }
    bundle(&upstream, key, &NAMES.map(|name| ["acme/", name].concat()).each_ref().map(|name| &**name), &["linux_amd64"])
        .await
}

fn refusals(receipt: &Receipt) -> Vec<(&str, &str)> {
    let refused = receipt.entries.iter().filter_map(|entry| match &entry.outcome {
        ApplyOutcome::Refused { why: reason } => Some((&*entry.package.to_string().leak(), reason.as_str())),
        _ => None,
    });
    refused.collect()
}

fn entry_name(name: &str) -> String {
    format!("{HOST}/acme/{name} 1.2.0 (linux_amd64)")
}

/// Sends the whole bundle and returns the receipt.
async fn send_bundle(larder: &Process, folder: &Folder, bytes: &[u8]) -> Receipt {
    let giving = Giving::to(larder, folder);
    giving.more(bytes).await;
    receipt_in(&giving.ends().await.expect(200))
}

/// DESIGN, promise 9, on any machine: entries that the disk refuses are reported with the reason, and the next import
/// stores them.
#[tokio::test]
async fn an_entry_that_the_disk_refuses_is_reported_and_stored_by_the_next_apply() {
    let key = BundleKey::new();
    let bytes = bundle_of_three(&key).await;
    let folder = Folder::new();
    let larder = Process::start(&key.sealed().on(&folder), folder.path());
    larder.let_files_grow_to(Some(SIZE as u64 / 2));
    let receipt = send_bundle(&larder, &folder, &bytes).await;
    let refused = refusals(&receipt);
    assert_eq!(refused.iter().map(|(what, _)| *what).collect::<Vec<_>>(), NAMES.map(entry_name), "{receipt:#?}");
    assert!(refused.iter().all(|(_, why)| why.contains("LimitFSIZE=")), "{receipt:#?}");
    assert!(!receipt.ok && folder.blobs().is_empty() && folder.staged().is_empty());
    larder.let_files_grow_to(None);
    let receipt = send_bundle(&larder, &folder, &bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    assert_eq!(larder.terminate().await, Some(0));
    assert_complete_import(&key, &folder, bytes).await;
}

/// Checks that the store equals one that imported the bundle without interruption.
async fn assert_complete_import(key: &BundleKey, folder: &Folder, bytes: Vec<u8>) {
    let clean = Sealed::new(key.sealed());
    assert!(clean.apply(bytes, &key.trust()).await.unwrap().ok);
    let clean = settled_contents(key.sealed(), &clean.close().await).await;
    assert!(settled_contents(key.sealed(), folder).await == clean);
}

const DISK: usize = 10 << 20;

/// DESIGN, promise 9, with a real disk that fills to its last byte during an import.
#[tokio::test]
async fn a_disk_that_fills_during_an_import_tears_nothing_and_is_reported() {
    if !SmallDisk::is_possible() {
        return;
    }
    let key = BundleKey::new();
    let bytes = bundle_of_three(&key).await;
    let folder = Folder::new();
    let disk = SmallDisk::start(&key.sealed().on(&folder), &folder, DISK, "true").unwrap();
    let blobs = disk.store().join("blobs/sha256");
    let stored = || std::fs::read_dir(&blobs).map_or(0, Iterator::count);

    let giving = Giving::to(&disk.larder, &folder);
    giving.more(&bytes[..SIZE + SIZE / 2]).await;
    eventually("the first is there", async || (stored() == 1).then_some(())).await;
    disk.leave_free(0);
    giving.more(&bytes[SIZE + SIZE / 2..]).await;
    let receipt = receipt_in(&giving.ends().await.expect(200));
    let refused = refusals(&receipt);
    assert!(!receipt.ok, "{receipt:#?}");
    assert!(refused.iter().any(|(what, _)| *what == entry_name("two")), "{receipt:#?}");
    assert!(refused.iter().all(|(_, why)| why.contains("free space on the store's disk")), "{receipt:#?}");
    // The stored archive is served whole.
    let path = disk.larder.archive_path("one").await;
    assert!(disk.larder.get(&path).await.expect(200).body.len() >= SIZE);

    // The rest does not fit, which is reported before any of it is stored.
    let giving = Giving::to(&disk.larder, &folder);
    giving.more(&bytes).await;
    let text = giving.ends().await.expect(507).text();
    assert!(text.contains("the disk of the store is full"), "{text}");

    disk.make_room();
    let receipt = send_bundle(&disk.larder, &folder, &bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    assert_eq!(stored(), NAMES.len());
    for name in NAMES {
        let path = disk.larder.archive_path(name).await;
        assert!(disk.larder.get(&path).await.expect(200).body.len() >= SIZE);
    }
}

/// DESIGN, promise 11: archives pass through bundles in pieces.
#[tokio::test]
async fn memory_does_not_grow_with_the_archives_of_a_bundle() {
    const BYTES: usize = 100_000_000;
    const MOST: u64 = 48 << 20;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "small").size(SIZE));
    upstream.publish(Provider::new("acme", "large").size(BYTES));
    let (here, there, work) = (Folder::new(), Folder::new(), tempfile::tempdir().unwrap());
    let making = Process::start(&key.signs(Larder::mirroring(&upstream)).on(&here), here.path());
    write_beside(&here, &making);
    let receiving = Process::start(&key.sealed().on(&there), there.path());
    write_beside(&there, &receiving);
    let mut before = (0, 0);
    for name in ["small", "large"] {
        let (out, subject) = (format!("{name}.tar"), format!("acme/{name}"));
        let create = ["bundle", "create", &out, "--for", &subject, "--platform", "linux_amd64"];
        let output = larder_in(work.path(), &here, &create).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let output = larder_in(work.path(), &there, &["bundle", "apply", &out, "--json"]).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let last: Value = serde_json::from_str(output.out.lines().last().unwrap()).unwrap();
        assert_eq!(last["receipt"]["ok"], true, "{last:#}");
        if name == "small" {
            before = (making.most_resident_bytes(), receiving.most_resident_bytes());
        }
    }
    let made = making.most_resident_bytes() - before.0;
    let received = receiving.most_resident_bytes() - before.1;
    assert!(made < MOST && received < MOST, "{made} bytes of memory for the making, {received} for the taking in");
    let path = receiving.archive_path("large").await;
    assert!(
        receiving.get(&path).await.expect(200).body == upstream.archive_bytes("acme", "large", "1.2.0", "linux_amd64")
    );
}
