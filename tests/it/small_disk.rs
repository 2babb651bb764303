//! A real disk, full to the last byte or read-only: eviction, pass-through, and start.

use crate::support::eventually;
use crate::support::http::get;
use crate::support::larder::{Builder, Folder, Larder};
use crate::support::package_fixture::LARGE_BYTES;
use crate::support::process::Process;
use crate::support::small_disk::SmallDisk;
use crate::support::upstream::{FakeUpstream, Provider};

const DISK_BYTES: usize = 10 << 20;
const HUGE_BYTES: usize = 9_000_000;

async fn upstream_and_folder() -> (FakeUpstream, Folder) {
    let upstream = FakeUpstream::start().await;
    for (name, size) in [("one", LARGE_BYTES), ("two", LARGE_BYTES), ("huge", HUGE_BYTES)] {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    (upstream, Folder::new())
}

fn mirroring(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).store_at(folder)
}

/// Fetches an archive, asserts its bytes, and returns its cache status.
async fn fetch_and_cache_status(larder: &Process, upstream: &FakeUpstream, name: &str) -> String {
    let path = larder.archive_path(name).await;
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64"), "{name}");
    answer.header("cache-status").to_owned()
}

async fn wait_for_h1(disk: &SmallDisk) {
    let name = disk.store().join("names/registry.terraform.io");
    let text = async || {
        let mut folders = vec![name.clone()];
        let mut all = String::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { all += &std::fs::read_to_string(path).ok()? }
            }
        }
        all.contains("h1:").then_some(())
    };
    eventually("the `h1:` hash is recorded", text).await;
}

const READ_ONLY: &str = "mount -o remount,bind,ro \"$V1\"";
/// A store of an older larder, without a folder for alarms.
const OLD_AND_READ_ONLY: &str = "rmdir \"$V1/alarms\" && mount -o remount,bind,ro \"$V1\"";
const STORED: &str = "larder; fwd=miss; stored";
const PASSED_THROUGH: &str = "larder; fwd=miss";
const HIT: &str = "larder; hit";

/// Promise 9: a full disk evicts first; nothing is evicted for an archive that would not fit even then.
#[tokio::test]
async fn a_full_disk_evicts_first_and_passes_through_archives_that_can_never_fit() {
    if !SmallDisk::is_possible() {
        return;
    }
    let (upstream, folder) = upstream_and_folder().await;
    let disk = SmallDisk::start(&mirroring(&upstream, &folder), &folder, DISK_BYTES, "true").unwrap();
    let larder = &disk.larder;
    assert_eq!(fetch_and_cache_status(larder, &upstream, "one").await, STORED);
    wait_for_h1(&disk).await;
    disk.leave_free(1_500_000);
    assert_eq!(fetch_and_cache_status(larder, &upstream, "huge").await, PASSED_THROUGH);
    assert_eq!(
        fetch_and_cache_status(larder, &upstream, "one").await,
        HIT,
        "an archive was evicted for one that cannot fit"
    );
    assert_eq!(fetch_and_cache_status(larder, &upstream, "two").await, STORED);
    assert_eq!(std::fs::read_dir(disk.store().join("blobs/sha256")).unwrap().count(), 2);
    assert_eq!(larder.metric("larder_passed_through_total").await, 1.0);
    assert_eq!(fetch_and_cache_status(larder, &upstream, "two").await, HIT);
    disk.remove_ballast();
    assert_eq!(fetch_and_cache_status(larder, &upstream, "one").await, STORED);
}

/// Promise 9: damaged files make space before any intact one.
#[tokio::test]
async fn a_full_disk_empties_the_quarantine_before_it_evicts() {
    if !SmallDisk::is_possible() {
        return;
    }
    let (upstream, folder) = upstream_and_folder().await;
    let disk = SmallDisk::start(&mirroring(&upstream, &folder), &folder, DISK_BYTES, "true").unwrap();
    let larder = &disk.larder;
    assert_eq!(fetch_and_cache_status(larder, &upstream, "one").await, STORED);
    wait_for_h1(&disk).await;
    let quarantine = disk.store().join("aside");
    std::fs::write(quarantine.join("0123abcd.0"), vec![7; LARGE_BYTES + (1 << 20)]).unwrap();
    disk.leave_free(1_500_000);
    assert_eq!(fetch_and_cache_status(larder, &upstream, "two").await, STORED);
    assert_eq!(
        fetch_and_cache_status(larder, &upstream, "one").await,
        HIT,
        "an archive was evicted before the quarantine was emptied"
    );
    assert_eq!(std::fs::read_dir(quarantine).unwrap().count(), 0);
}

/// Promise 9: requests are served while the disk has no free byte.
#[tokio::test]
async fn a_disk_that_is_full_to_the_last_byte_fails_no_request() {
    if !SmallDisk::is_possible() {
        return;
    }
    let (upstream, folder) = upstream_and_folder().await;
    let disk = SmallDisk::start(&mirroring(&upstream, &folder), &folder, DISK_BYTES, "true").unwrap();
    let larder = &disk.larder;
    disk.leave_free(0);
    for name in ["one", "huge", "one"] {
        assert_eq!(fetch_and_cache_status(larder, &upstream, name).await, PASSED_THROUGH, "{name}");
    }
    let log = larder.log().line_with("it is passed through").await;
    assert!(log.contains("free space on the store's disk"), "{log}");
    disk.remove_ballast();
    assert_eq!(fetch_and_cache_status(larder, &upstream, "one").await, STORED);
    assert_eq!(fetch_and_cache_status(larder, &upstream, "one").await, HIT);
}

/// Promise 9: larder starts on a store that cannot be written, and serves stored archives.
#[tokio::test]
async fn a_larder_starts_on_a_disk_that_is_full_or_read_only() {
    if !SmallDisk::is_possible() {
        return;
    }
    let full = "{ dd if=/dev/zero of=\"$V1/ballast\" bs=4096 2>/dev/null || true; }";
    for preparation in [full, READ_ONLY, OLD_AND_READ_ONLY] {
        let (upstream, folder) = upstream_and_folder().await;
        let larder = Process::start(&mirroring(&upstream, &folder), folder.path());
        assert_eq!(fetch_and_cache_status(&larder, &upstream, "one").await, STORED);
        assert_eq!(larder.terminate().await, Some(0));
        let disk = SmallDisk::start(&mirroring(&upstream, &folder), &folder, DISK_BYTES, preparation);
        let disk = disk.unwrap_or_else(|error| panic!("{preparation}: {error:?}"));
        assert_eq!(fetch_and_cache_status(&disk.larder, &upstream, "one").await, HIT);
        // Nothing could be evicted for this archive.
        assert_eq!(fetch_and_cache_status(&disk.larder, &upstream, "huge").await, PASSED_THROUGH);
        disk.larder.get("/readyz").await.expect(200);
        let status = get(&format!("{}/admin/v1/status", disk.larder.admin())).await.expect(200).json();
        assert_eq!(status["archives"], 1);
        match preparation {
            READ_ONLY | OLD_AND_READ_ONLY => disk.remount("rw"),
            _ => disk.remove_ballast(),
        }
        assert_eq!(fetch_and_cache_status(&disk.larder, &upstream, "two").await, STORED);
        assert_eq!(fetch_and_cache_status(&disk.larder, &upstream, "two").await, HIT);
        assert!(!disk.store().join("index").exists(), "an index that was left behind would be trusted");
        assert_eq!(disk.larder.terminate().await, Some(0));
    }
}

/// A new store cannot be created on a read-only disk, and the error names the path.
#[tokio::test]
async fn a_new_store_on_a_read_only_disk_is_refused_with_its_path() {
    if !SmallDisk::is_possible() {
        return;
    }
    let (upstream, folder) = upstream_and_folder().await;
    let started = SmallDisk::start(&mirroring(&upstream, &folder), &folder, DISK_BYTES, READ_ONLY);
    let error = started.err().expect("larder started without a store");
    assert_eq!(error.code, Some(1), "{error:?}");
    assert!(error.err.contains(&folder.path().join("v1/lock").display().to_string()), "{error:?}");
    assert!(error.err.contains("Read-only file system"), "{error:?}");
}
