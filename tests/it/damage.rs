//! Damage on disk: flipped bits, missing files, a damaged index. None of it is served, and larder recovers by itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use larder::clock::{Clock, Timestamp};
use larder::digest::Digest;

use crate::support::http::get;
use crate::support::killed_downloads::quarantined;
use crate::support::larder::{Builder, Folder, HOST, Larder, open_store};
use crate::support::process::Process;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::verify_steps::verify;

/// Small archives are checked in memory on every read, large ones in the file before their first response.
const SIZES: [(&str, usize); 2] = [("small", 4096), ("large", 3_000_000)];

fn mirroring(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).always_revalidate().store_at(folder)
}

async fn upstream_with_small_and_large() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for (name, size) in SIZES {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    upstream
}

fn bytes(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

/// A closed store with the archive of acme/NAME, and the archive's path.
async fn closed_store_with_archive(upstream: &FakeUpstream, name: &str) -> (Folder, String) {
    let larder = mirroring(upstream, &Folder::new()).start().await;
    let path = larder.archive_path(name, "1.2.0").await;
    larder.get(&path).await.expect(200);
    larder.versions(name).await.expect(200);
    (larder.stop().await, path)
}

/// Flips one bit and keeps the modification time, as a failing disk does.
fn flip(file: &Path, offset: usize) {
    let changed = file.metadata().unwrap().modified().unwrap();
    let mut content = std::fs::read(file).unwrap();
    content[offset] ^= 1;
    std::fs::write(file, content).unwrap();
    std::fs::File::options().write(true).open(file).unwrap().set_modified(changed).unwrap();
}

fn flip_the_middle(file: &Path) {
    flip(file, file.metadata().unwrap().len() as usize / 2);
}

#[tokio::test]
async fn a_damaged_archive_is_quarantined_and_fetched_again() {
    let upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        let (folder, path) = closed_store_with_archive(&upstream, name).await;
        flip_the_middle(&folder.blobs()[0]);
        upstream.forget_requests();

        let larder = mirroring(&upstream, &folder).start().await;
        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{name}");
        assert_eq!(upstream.count_of(Target::Archive), 1, "{name}");
        assert_eq!(quarantined(folder.path()).len(), 1, "{name}");
        assert_eq!(folder.blobs().len(), 1, "{name}");
        assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"), "{name}");
    }
}

/// Promise 10: a damaged archive is not served even while it cannot be fetched again.
#[tokio::test]
async fn a_damaged_archive_is_an_error_while_the_upstream_is_gone() {
    let mut upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        let (folder, path) = closed_store_with_archive(&upstream, name).await;
        let damaged = folder.blobs().remove(0);
        flip_the_middle(&damaged);
        let damaged_bytes = std::fs::read(&damaged).unwrap();
        upstream.stop().await;

        let larder = mirroring(&upstream, &folder).start().await;
        for _ in 0..2 {
            larder.get(&path).await.expect(502);
        }
        let quarantined_files = folder.files("aside");
        assert_eq!(quarantined_files.len(), 1, "{name}");
        assert!(std::fs::read(&quarantined_files[0]).unwrap() == damaged_bytes, "{name}: the damaged file is gone");
        assert_eq!(folder.blobs(), Vec::<PathBuf>::new());

        upstream.restart().await;
        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{name}");
    }
}

/// Promise 10: archives up to 1 MiB are checked on every read.
#[tokio::test]
async fn a_small_archive_that_is_damaged_after_it_was_served_is_not_served_again() {
    let upstream = upstream_with_small_and_large().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("small", "1.2.0").await;
    larder.get(&path).await.expect(200);
    flip(&larder.folder.blobs()[0], 0);
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "small"));
    assert_eq!(larder.folder.files("aside").len(), 1);
}

/// A larder with the small archive in its memory cache, and the archive's path.
async fn larder_with_memory_copy(upstream: &FakeUpstream, clock: &Clock) -> (Larder, String) {
    let first = Larder::mirroring(upstream).start().await;
    let path = first.archive_path("small", "1.2.0").await;
    first.get(&path).await.expect(200);
    // Recording the h1 hash changes the package's record, which would drop the memory copy: wait for it first.
    let listed = format!("/mirror/{HOST}/acme/small/1.2.0.json");
    until("the `h1:` hash is recorded", async || first.get(&listed).await.text().contains("h1:")).await;
    let folder = first.stop().await;
    let larder = Larder::mirroring(upstream).clock(clock).store_at(&folder).start().await;
    larder.get(&path).await.expect(200);
    (larder, path)
}

/// Promise 10: a checked memory copy is served for a minute without reading the file.
#[tokio::test]
async fn a_small_archive_is_served_from_memory_for_a_minute() {
    let upstream = upstream_with_small_and_large().await;
    let clock = Clock::system();
    let (larder, path) = larder_with_memory_copy(&upstream, &clock).await;
    flip(&larder.folder.blobs()[0], 0);
    let from_memory = larder.get(&path).await.expect(200);
    assert!(from_memory.has_cache_status("larder; hit") && from_memory.body == bytes(&upstream, "small"));
    assert_eq!(larder.folder.files("aside").len(), 0);

    clock.advance(Duration::from_secs(61));
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "small"));
    assert_eq!(larder.folder.files("aside").len(), 1, "the file was not read again");
}

/// Promise 10: a purge or a quarantine drops the memory copy too.
#[tokio::test]
async fn purge_and_quarantine_drop_the_memory_copy() {
    let mut upstream = upstream_with_small_and_large().await;
    let (larder, path) = larder_with_memory_copy(&upstream, &Clock::system()).await;
    flip(&larder.folder.blobs()[0], 0);
    assert_eq!(verify(&larder).await.last().unwrap()["wrong"], 1);
    upstream.forget_requests();
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "small"));

    upstream.stop().await;
    larder.run_command("purge", "acme/small").await;
    larder.get(&path).await.expect(502);
}

#[tokio::test]
async fn an_archive_of_another_length_is_not_served() {
    let upstream = upstream_with_small_and_large().await;
    for (name, size) in SIZES {
        for length in [0, 100, size as u64 / 2, 2 << 20, 5_000_000] {
            let (folder, path) = closed_store_with_archive(&upstream, name).await;
            let file = std::fs::File::options().write(true).open(&folder.blobs()[0]).unwrap();
            file.set_len(length).unwrap();
            let larder = mirroring(&upstream, &folder).start().await;
            assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{name} {length}");
            assert_eq!(folder.files("aside").len(), 1, "{name} {length}");
        }
    }
}

/// Promises 4 and 10: requests that find the damage at the same time share one fetch, and none quarantines the repaired
/// archive.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_that_find_a_damaged_archive_share_one_fetch() {
    let upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        let (folder, path) = closed_store_with_archive(&upstream, name).await;
        let larder = mirroring(&upstream, &folder).start().await;
        flip_the_middle(&folder.blobs()[0]);
        upstream.forget_requests();
        let responses = futures_util::future::join_all((0..64).map(|_| larder.get(&path))).await;
        assert!(responses.into_iter().all(|answer| answer.expect(200).body == bytes(&upstream, name)), "{name}");
        assert_eq!(upstream.count_of(Target::Archive), 1, "{name}");
        assert_eq!(folder.files("aside").len(), 1, "{name}");
    }
}

/// Promise 10: that a file was checked says nothing of another one in its place, and nothing of what was written to it since.
#[tokio::test]
async fn a_damaged_file_in_the_place_of_a_checked_one_is_not_served() {
    let upstream = upstream_with_small_and_large().await;
    for is_moved in [true, false] {
        let (folder, path) = closed_store_with_archive(&upstream, "large").await;
        let larder = mirroring(&upstream, &folder).start().await;
        larder.get(&path).await.expect(200);
        let (stored, restored) = (folder.blobs().remove(0), folder.path().join("restored"));
        std::fs::copy(&stored, &restored).unwrap();
        flip_the_middle(&restored);
        if is_moved {
            std::fs::rename(&restored, &stored).unwrap();
        } else {
            std::fs::copy(&restored, &stored).unwrap();
        }

        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "large"), "moved: {is_moved}");
        assert_eq!(folder.files("aside").len(), 1, "moved: {is_moved}");
    }
}

/// Promise 10: a quarantined file is preserved for a week from then on, however old the archive was.
#[tokio::test]
async fn a_damaged_archive_stays_in_quarantine_for_inspection() {
    let upstream = upstream_with_small_and_large().await;
    let (folder, path) = closed_store_with_archive(&upstream, "small").await;
    let blob = folder.blobs().remove(0);
    let month_ago = SystemTime::now() - Duration::from_secs(30 * 24 * 3600);
    std::fs::File::options().write(true).open(&blob).unwrap().set_modified(month_ago).unwrap();
    flip_the_middle(&blob);
    let larder = mirroring(&upstream, &folder).start().await;
    larder.get(&path).await.expect(200);
    assert_eq!(folder.files("aside").len(), 1);
    larder.stop().await;

    let larder = mirroring(&upstream, &folder).start().await;
    assert_eq!(folder.files("aside").len(), 1, "the next start deleted the quarantined file");
    larder.get(&path).await.expect(200);
}

/// The only record whose path ends like this.
fn only_record(folder: &Folder, ending: &str) -> PathBuf {
    let records = ["documents", "names", "seen"].into_iter().flat_map(|subfolder| folder.files(subfolder));
    let matching: Vec<PathBuf> = records.filter(|file| file.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(matching.len(), 1, "{ending}: {matching:?}");
    matching[0].clone()
}

/// The paths of one record of each kind: package record, proof set, version list, discovery document, first-seen
/// record, and log of keys.
const RECORDS: [&str; 6] =
    ["linux_amd64.json", "linux_amd64.set", "/versions", "/discovery", "small/1.2.0.json", "small/keys.json"];

/// Promise 10, for records: each has its own checksum.
#[tokio::test]
async fn a_damaged_record_is_quarantined_and_rewritten() {
    let mut upstream = upstream_with_small_and_large().await;
    for ending in RECORDS {
        for is_near_end in [false, true] {
            let (folder, path) = closed_store_with_archive(&upstream, "small").await;
            let damaged = only_record(&folder, ending);
            let length = damaged.metadata().unwrap().len() as usize;
            flip(&damaged, if is_near_end { length - 2 } else { 3 });

            let larder = mirroring(&upstream, &folder).start().await;
            larder.versions("small").await.expect(200);
            assert_eq!(larder.archive_path("small", "1.2.0").await, path, "{ending}");
            assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "small"), "{ending}");
            // A damaged first-seen record stays until it is rewritten: its existence rules out trust on first use.
            let quarantined_count = usize::from(!damaged.starts_with(folder.path().join("v1/seen")));
            assert_eq!(folder.files("aside").len(), quarantined_count, "{ending}");
            larder.stop().await;

            upstream.stop().await;
            let larder = mirroring(&upstream, &folder).start().await;
            assert_eq!(only_record(&folder, ending), damaged, "the record was not written again");
            larder.versions("small").await.expect(200);
            assert_eq!(larder.archive_path("small", "1.2.0").await, path, "{ending}");
            larder.get(&path).await.expect(200);
            assert_eq!(folder.files("aside").len(), quarantined_count, "{ending}: the rewritten record is damaged too");
            upstream.restart().await;
        }
    }
}

/// The package record is rebuilt from its proof set, and the archive is adopted.
#[tokio::test]
async fn an_archive_without_a_package_record_is_adopted_without_a_fetch() {
    let mut upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        for is_damaged in [true, false] {
            let (folder, path) = closed_store_with_archive(&upstream, name).await;
            let record = only_record(&folder, "linux_amd64.json");
            if is_damaged {
                folder.damage(&record)
            } else {
                folder.lose(&record)
            }
            upstream.stop().await;
            let larder = mirroring(&upstream, &folder).start().await;
            assert_eq!(larder.archive_path(name, "1.2.0").await, path);
            assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{name}");
            assert!(folder.record(&record).is_some(), "{name}: the package record was not rebuilt");
            assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"), "{name}");
            upstream.restart().await;
        }
    }
}

/// Bytes without a package record and a proof set are verified again, not fetched again.
#[tokio::test]
async fn an_archive_without_package_record_and_proof_set_is_adopted_once_its_proof_set_is_verified() {
    let upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        let (folder, path) = closed_store_with_archive(&upstream, name).await;
        ["names", "documents"].iter().for_each(|subfolder| folder.lose_all(subfolder));
        upstream.forget_requests();
        let larder = mirroring(&upstream, &folder).start().await;
        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{name}");
        assert_eq!(upstream.count_of(Target::Archive), 0, "{name}");
    }
}

/// Promise 2: while only the previous set's archive is stored, all of that set is served, however long upstream is
/// down.
#[tokio::test]
async fn the_previous_edition_is_served_completely_for_days_without_upstream_while_only_its_archive_is_stored() {
    let mut upstream = upstream_with_small_and_large().await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).always_revalidate().clock(&clock).start().await;
    let path = larder.archive_path("small", "1.2.0").await;
    let old_zip = bytes(&upstream, "small");
    larder.get(&path).await.expect(200);
    upstream.publish(Provider::new("acme", "small").edition(2));
    assert_ne!(larder.archive_path("small", "1.2.0").await, path, "the new edition is not served");

    upstream.stop().await;
    clock.advance(Duration::from_secs(3 * 24 * 3600));
    let document = larder.document("small", "1.2.0").await.expect(200).json();
    assert_eq!(document["download_url"], path.as_str());
    assert!(larder.get(&path).await.expect(200).body == old_zip);
    for field in ["shasums_url", "shasums_signature_url"] {
        larder.get(document[field].as_str().unwrap()).await.expect(200);
    }
}

/// Promise 9: a crash may leave the archive without its record, and a person may delete the archive of a record.
#[tokio::test]
async fn a_missing_archive_with_a_package_record_is_fetched_again() {
    let upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        let (folder, path) = closed_store_with_archive(&upstream, name).await;
        std::fs::remove_file(&folder.blobs()[0]).unwrap();
        upstream.forget_requests();
        let larder = mirroring(&upstream, &folder).start().await;
        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{name}");
        assert_eq!(upstream.count_of(Target::Archive), 1);
        assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"), "{name}");
    }
}

/// A name says what this larder has. A file that is missing on this machine makes a fetch, and never a change of the
/// record: the archive was first stored when it was.
#[tokio::test]
async fn a_file_that_is_missing_or_damaged_changes_no_record() {
    let mut upstream = upstream_with_small_and_large().await;
    let (name, clock) = ("large", Clock::system());
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let path = larder.archive_path(name, "1.2.0").await;
    larder.get(&path).await.expect(200);
    let first_stored = larder.get(&path).await.header("last-modified").to_owned();
    let listed = format!("/mirror/{HOST}/acme/{name}/1.2.0.json");
    until("the `h1:` hash is recorded", async || larder.get(&listed).await.text().contains("h1:")).await;
    let record = || larder.folder.record(&larder.folder.files("names")[0]).unwrap();

    clock.advance(Duration::from_secs(3600));
    let damages: [fn(&Path); 2] = [|file| std::fs::remove_file(file).unwrap(), |file| flip_the_middle(file)];
    for damage in damages {
        let before = record();
        damage(&larder.folder.blobs()[0]);
        upstream.stop().await;
        let verified = verify(&larder).await;
        assert_eq!(verified.last().unwrap()["wrong"], 1, "{verified:?}");
        larder.get(&path).await.expect(502);
        assert_eq!((record(), larder.folder.blobs().len()), (before, 0));

        upstream.restart().await;
        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name));
        assert_eq!(larder.get(&path).await.header("last-modified"), first_stored);
        until("the `h1:` hash is recorded", async || record().contains("h1:")).await;
    }
}

/// A version that upstream dropped is listed because its archive is stored. Once that is lost here and deleted there,
/// a client must not choose the version.
#[tokio::test]
async fn a_version_whose_archive_is_lost_here_and_upstream_is_listed_no_more() {
    let upstream = upstream_with_small_and_large().await;
    upstream.publish(Provider::new("acme", "large").version("1.1.0"));
    let (folder, path) = closed_store_with_archive(&upstream, "large").await;
    let larder = mirroring(&upstream, &folder).start().await;
    upstream.withdraw("acme", "large", "1.2.0");
    upstream.fault(Target::Archive, Fault::Status(404));
    let versions = async || larder.versions("large").await.expect(200).text();
    std::fs::remove_file(&folder.blobs()[0]).unwrap();
    assert!(versions().await.contains("1.2.0"), "nobody knows yet that it is lost");

    larder.get(&path).await.expect(502);
    let listed = versions().await;
    assert!(!listed.contains("1.2.0") && listed.contains("1.1.0"), "{listed}");
}

/// A way to damage the index in this folder.
type IndexDamage = fn(&Path);

fn for_each_file(index: &Path, damage: impl Fn(&Path)) {
    let mut folders = vec![index.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { damage(&path) }
        }
    }
}

const INDEX_DAMAGES: [(&str, IndexDamage); 7] = [
    ("garbled", |index| {
        for_each_file(index, |file| {
            let content = std::fs::read(file).unwrap();
            std::fs::write(file, content.iter().map(|byte| byte ^ 0xa5).collect::<Vec<u8>>()).unwrap();
        });
    }),
    ("some flipped bits", |index| {
        for_each_file(index, |file| {
            let mut content = std::fs::read(file).unwrap();
            // One bit in every 97 bytes, but for the first 40.
            content.iter_mut().skip(40).step_by(97).for_each(|byte| *byte ^= 1);
            std::fs::write(file, content).unwrap();
        });
    }),
    ("replaced by noise", |index| for_each_file(index, |file| std::fs::write(file, [7; 5000]).unwrap())),
    ("empty files", |index| for_each_file(index, |file| std::fs::write(file, "").unwrap())),
    ("cut in half", |index| {
        for_each_file(index, |file| {
            let length = file.metadata().unwrap().len();
            std::fs::File::options().write(true).open(file).unwrap().set_len(length / 2).unwrap();
        });
    }),
    ("a file", |index| {
        std::fs::remove_dir_all(index).unwrap();
        std::fs::write(index, "no folder").unwrap();
    }),
    ("removed", |index| std::fs::remove_dir_all(index).unwrap()),
];

/// Promise 9: an index that does not open is quarantined and rebuilt from the files.
#[tokio::test]
async fn a_ruined_index_is_rebuilt_and_everything_stored_is_still_served() {
    let mut upstream = upstream_with_small_and_large().await;
    for killed in [true, false] {
        for (description, damage) in INDEX_DAMAGES {
            let folder = Folder::new();
            let larder = Process::start(&mirroring(&upstream, &folder), folder.path());
            let paths = [larder.archive_path("small").await, larder.archive_path("large").await];
            for path in &paths {
                larder.get(path).await.expect(200);
            }
            let totals = async |larder: &Process| {
                let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
                (status["archives"].clone(), status["archive_bytes"].clone(), status["documents"].clone())
            };
            let totals_before = totals(&larder).await;
            if killed {
                larder.kill()
            } else {
                assert_eq!(larder.terminate().await, Some(0))
            }
            damage(&folder.path().join("v1/index"));

            upstream.stop().await;
            let larder = Process::try_start(&mirroring(&upstream, &folder), folder.path());
            let larder = larder.unwrap_or_else(|error| panic!("{description}, killed {killed}: {error}"));
            // The rebuild runs in the background.
            until(&format!("{description}, killed {killed}: the index is complete"), async || {
                totals(&larder).await == totals_before
            })
            .await;
            for (path, name) in paths.iter().zip(["small", "large"]) {
                assert_eq!(larder.archive_path(name).await, *path);
                assert!(larder.get(path).await.expect(200).body == bytes(&upstream, name), "{description} {name}");
            }
            let log = larder.log().text();
            assert!(!log.contains("panicked at"), "{description}, killed {killed}: {log}");
            assert_eq!(larder.terminate().await, Some(0), "{description}, killed {killed}");
            upstream.restart().await;
        }
    }
}

/// Promise 10: damage inside an index that opens is found in the background after the start, and the index is rebuilt
/// from the files.
#[tokio::test]
async fn an_index_with_damaged_content_is_rebuilt() {
    let upstream = FakeUpstream::start().await;
    let mut rebuilt_count = 0;
    for section in 0..8 {
        let folder = Folder::new();
        let store = open_store(folder.path(), Timestamp(1));
        for number in 0..5000u32 {
            store.local.index.archive_stored(&Digest::of(&number.to_be_bytes()), 1, Timestamp(1));
        }
        store.local.index.completed(Ok(()));
        store.close().unwrap();
        drop(store);
        let file = folder.path().join("v1/index/db");
        let mut content = std::fs::read(&file).unwrap();
        let (length, offset) = (content.len() / 8, section * (content.len() / 8));
        content[offset..offset + length].fill(0xa5);
        std::fs::write(&file, content).unwrap();
        let store = open_store(folder.path(), Timestamp(2));
        let is_behind = store.local.index.begin_completion(&|| false);
        if !is_behind {
            assert_eq!(store.local.index.totals().archives, 5000, "section {section}");
            continue;
        }
        drop(store);
        // These archives have no files, so an index rebuilt from the files lists none of them.
        let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
        until("the index is complete", async || larder.metric("larder_index_whole").await == 1.0).await;
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        assert_eq!(status["archives"], 0, "section {section}");
        rebuilt_count += 1;
    }
    assert!(rebuilt_count > 0, "larder found no damage");
}

/// Promise 10: a file that cannot be read at all is an error for one request at most, and is replaced like any other
/// damage.
#[tokio::test]
async fn unreadable_files_are_quarantined_and_fetched_again() {
    let upstream = upstream_with_small_and_large().await;
    for (name, _) in SIZES {
        let (folder, path) = closed_store_with_archive(&upstream, name).await;
        let files = [folder.blobs().remove(0), only_record(&folder, ".set"), only_record(&folder, "linux_amd64.json")];
        for file in files {
            // A folder in its place fails to read, like a bad sector.
            std::fs::remove_file(&file).unwrap();
            std::fs::create_dir(&file).unwrap();
            let larder = mirroring(&upstream, &folder).start().await;
            larder.document(name, "1.2.0").await.expect(200);
            assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name), "{}", file.display());
            assert!(file.is_file(), "{} was not replaced", file.display());
            larder.stop().await;
        }
    }
}

#[tokio::test]
async fn a_removed_staging_folder_is_created_again() {
    let upstream = upstream_with_small_and_large().await;
    let larder = mirroring(&upstream, &Folder::new()).start().await;
    std::fs::remove_dir_all(larder.folder.path().join("v1/staging")).unwrap();
    for (name, _) in SIZES {
        let path = larder.archive_path(name, "1.2.0").await;
        assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, name));
    }
}

/// An index that another process has open is in use, not damaged: it is not quarantined.
#[tokio::test]
async fn an_index_locked_by_another_process_is_reported_and_left_untouched() {
    let upstream = upstream_with_small_and_large().await;
    let (folder, path) = closed_store_with_archive(&upstream, "small").await;
    let index = folder.path().join("v1/index");
    let index_file = std::fs::File::options().read(true).write(true).open(index.join("db")).unwrap();
    index_file.lock().unwrap();
    let output = Process::start_second(&mirroring(&upstream, &folder).config_text(), folder.path()).err;
    assert!(output.contains(&index.display().to_string()) && output.contains("in use by another larder"), "{output}");
    assert_eq!(crate::support::killed_downloads::quarantined(folder.path()), Vec::<String>::new());
    assert!(index.join("db").exists());

    drop(index_file);
    let larder = Process::start(&mirroring(&upstream, &folder), folder.path());
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
}
