//! Modules after `kill -9` and on a full disk.

use crate::support::eventually;
use crate::support::git_module_fixture::{download_module, download_path};
use crate::support::http::{client, get, send};
use crate::support::larder::{Builder, Folder};
use crate::support::module_fixture::{ModuleFixture, noise, tar_gz, unpack_tar_gz};
use crate::support::process::Process;
use crate::support::small_disk::SmallDisk;
use crate::support::upstream::{Fault, Target};

const LARGE_BYTES: usize = 3_000_000;
const HALF_BYTES: usize = LARGE_BYTES / 2;

async fn fixture_with_large_module() -> (ModuleFixture, Folder) {
    let fixture = ModuleFixture::start().await;
    fixture.publish_archive("one", &tar_gz(&[("noise", &noise(1, LARGE_BYTES))]));
    (fixture, Folder::new())
}

fn builder(fixture: &ModuleFixture, folder: &Folder) -> Builder {
    fixture.larder_on(folder)
}

fn start(fixture: &ModuleFixture, folder: &Folder) -> Process {
    Process::start(&builder(fixture, folder), folder.path())
}

/// Promise 4: after a restart, a download is resumed if the server sent a validator, and restarted otherwise.
#[tokio::test]
async fn a_download_of_a_module_is_resumed_after_a_kill() {
    for has_validators in [true, false] {
        let (fixture, folder) = fixture_with_large_module().await;
        if !has_validators {
            fixture.archives.fault(Target::ModuleArchive, Fault::NoValidators);
        }
        let gate = fixture.archives.hold_after(Target::ModuleArchive, HALF_BYTES);
        let larder = start(&fixture, &folder);
        let pending_request = tokio::spawn(send(client().get(format!("{}{}", larder.base(), download_path("one")))));
        eventually("half of the archive is downloaded", async || {
            let staged = folder.files("staging").into_iter().find(|file| file.extension().is_some_and(|e| e == "part"));
            (staged?.metadata().ok()?.len() == HALF_BYTES as u64).then_some(())
        })
        .await;
        larder.kill();
        assert!(pending_request.await.unwrap().is_err());
        assert!(folder.blobs().is_empty() && folder.first_seen().is_empty());
        gate.open();
        fixture.archives.forget_requests();
        let larder = start(&fixture, &folder);
        let (_, archive) = download_module(larder.base(), "one").await;
        assert!(unpack_tar_gz(&archive)["noise"] == noise(1, LARGE_BYTES));
        let requests = fixture.archives.requests();
        let range = format!("bytes={HALF_BYTES}-");
        assert_eq!(requests[0].header("range"), has_validators.then_some(range.as_str()));
        assert_eq!((requests.len(), folder.files("staging").len()), (1, 0));
    }
}

/// Promise 9: larder writes the first-seen record, then the archive, then the package record. After a kill between
/// these writes, the next request completes them.
#[tokio::test]
async fn a_commit_that_a_kill_interrupted_is_completed() {
    let (fixture, folder) = fixture_with_large_module().await;
    let larder = start(&fixture, &folder);
    let (location, archive) = download_module(larder.base(), "one").await;
    larder.kill();
    for lost_folders in [&["names"][..], &["names", "blobs"], &["names", "blobs", "seen"], &["seen"], &["blobs"]] {
        for file in lost_folders.iter().flat_map(|subfolder| folder.files(subfolder)) {
            std::fs::remove_file(file).unwrap();
        }
        let larder = start(&fixture, &folder);
        assert!(download_module(larder.base(), "one").await == (location.clone(), archive.clone()), "{lost_folders:?}");
        assert_eq!((folder.blobs().len(), folder.files("names").len()), (1, 1), "{lost_folders:?}");
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        assert_eq!((&status["archives"], &status["alarms"]), (&1.into(), &serde_json::json!([])), "{lost_folders:?}");
        larder.kill();
    }
}

/// Promise 9: an archive whose digest a client was given survives a kill.
#[tokio::test]
async fn a_served_module_survives_an_immediate_kill() {
    let (mut fixture, folder) = fixture_with_large_module().await;
    let larder = start(&fixture, &folder);
    let response = larder.get(&download_path("one")).await.expect(204);
    assert!(response.header("x-terraform-get").contains("checksum"));
    larder.kill();
    fixture.stop().await;
    let larder = start(&fixture, &folder);
    let (_, archive) = download_module(larder.base(), "one").await;
    assert!(unpack_tar_gz(&archive)["noise"] == noise(1, LARGE_BYTES));
}

/// A full disk evicts first; a module that still does not fit is an error, and no partial file stays.
#[tokio::test]
async fn a_full_disk_evicts_for_a_module_or_is_reported() {
    if !SmallDisk::is_possible() {
        return;
    }
    let (fixture, folder) = fixture_with_large_module().await;
    fixture.publish_archive("two", &tar_gz(&[("noise", &noise(2, LARGE_BYTES))]));
    let disk = SmallDisk::start(&builder(&fixture, &folder), &folder, 20 << 20, "true").unwrap();
    let larder = &disk.larder;
    download_module(larder.base(), "one").await;
    // There is space for the download, but not for its tree and its archive as well.
    disk.leave_free(5_000_000);
    download_module(larder.base(), "two").await;
    let metrics = get(&format!("{}/metrics", larder.admin())).await.expect(200).text();
    assert!(
        metrics.contains(
            "larder_evictions_total{kind=\"archive\",reason=\"disk-full\"} 1
"
        ),
        "{metrics}"
    );
    disk.leave_free(100_000);
    larder.get(&download_path("two")).await.expect(204);
    for _ in 0..2 {
        let message = larder.get(&download_path("one")).await.expect(503).text();
        assert!(message.contains("do not fit"), "{message}");
        let staged = std::fs::read_dir(disk.store().join("staging")).unwrap().count();
        assert_eq!(staged, 0);
    }
    disk.remove_ballast();
    let (_, archive) = download_module(larder.base(), "one").await;
    assert!(unpack_tar_gz(&archive)["noise"] == noise(1, LARGE_BYTES));
}

/// A module that can never fit is refused before it is unpacked.
#[tokio::test]
async fn a_module_that_is_larger_than_the_store_is_refused_with_the_reason() {
    let fixture = ModuleFixture::start().await;
    fixture.publish_archive("one", &tar_gz(&[("zeros", &vec![0; 5_000_000])]));
    let larder = fixture.larder().store("max_size = \"1MiB\"").start().await;
    let message = larder.get(&download_path("one")).await.expect(503).text();
    assert!(message.contains("do not fit") && message.contains("max_size"), "{message}");
    assert!(larder.folder.files("staging").is_empty() && larder.folder.blobs().is_empty());
}
