//! A store that cannot be written although the disk has space: a size limit, a missing folder, a read-only folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use larder::clock::Clock;

use crate::support::http::{Answer, client, get};
use crate::support::larder::{Folder, Larder, open_store};
use crate::support::package_fixture::{LARGE_BYTES, PackageFixture, SMALL_BYTES, TAIL_BYTES};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

/// A part of the store, replaced by a file.
struct BlockedPath {
    part: PathBuf,
    moved: PathBuf,
}

impl BlockedPath {
    fn block(folder: &Folder, part: &str) -> Self {
        let (part, moved) = (folder.path().join("v1").join(part), folder.path().join("away"));
        std::fs::rename(&part, &moved).unwrap();
        std::fs::write(&part, "obstacle").unwrap();
        Self { part, moved }
    }

    fn restore(self) {
        std::fs::remove_file(&self.part).unwrap();
        std::fs::rename(&self.moved, &self.part).unwrap();
    }
}

fn archive(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

fn assert_passed_through(answer: &Answer, zip: &[u8]) {
    assert_eq!((answer.status, answer.header("cache-status")), (200, "larder; fwd=miss"));
    assert!(answer.body == zip);
}

/// Promise 9: an archive that no eviction could make space for is passed through, and nothing is evicted.
#[tokio::test]
async fn an_archive_larger_than_the_store_limit_is_passed_through() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "small").size(SMALL_BYTES));
    upstream.publish(Provider::new("acme", "large").size(LARGE_BYTES));
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let small = larder.archive_path("small", "1.2.0").await;
    larder.get(&small).await.expect(200);
    let large = larder.archive_path("large", "1.2.0").await;
    for passed in 1..=2 {
        assert_passed_through(&larder.get(&large).await, &archive(&upstream, "large"));
        assert_eq!(larder.metric("larder_passed_through_total").await, f64::from(passed));
    }
    assert!(larder.get(&small).await.expect(200).has_cache_status("larder; hit"));
    assert!(larder.folder.partial_downloads().is_empty());
}

/// Promise 9: HEAD and Range are answered as for any archive that is not stored, and HEAD fetches no body.
#[tokio::test]
async fn a_pass_through_ignores_ranges() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let zip = archive(&upstream, "null");
    let head = larder.head(&path).await.expect(200);
    assert_eq!(head.header("content-length"), zip.len().to_string());
    let answer = larder.get_with(&path, &[("range", "bytes=0-9")]).await;
    assert_passed_through(&answer, &zip);
    for name in ["accept-ranges", "content-range", "etag"] {
        assert_eq!(answer.header(name), "", "{name}");
    }
}

/// Promise 9: without a staging file, the response is served and the archive is not stored.
#[tokio::test]
async fn without_a_staging_folder_requests_are_served_and_nothing_is_stored() {
    for size in [SMALL_BYTES, LARGE_BYTES] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(size));
        let larder = Larder::mirroring(&upstream).start().await;
        let blocked_path = BlockedPath::block(&larder.folder, "staging");
        let path = larder.archive_path("null", "1.2.0").await;
        larder.versions("null").await.expect(200);
        for _ in 0..2 {
            assert_passed_through(&larder.get(&path).await, &archive(&upstream, "null"));
        }
        assert!(larder.folder.blobs().is_empty());
        blocked_path.restore();
        assert_eq!(larder.archive_path("null", "1.2.0").await, path);
        assert!(larder.get(&path).await.expect(200).has_cache_status("stored"));
        assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
    }
}

/// Promise 9: where the bytes are verified and only the commit fails, verification alone releases the tail, and the
/// bytes on disk are not fetched again.
#[tokio::test]
async fn an_archive_whose_commit_fails_is_served_once_it_is_verified() {
    // The commit fails before the rename, and after it.
    for part in ["blobs/sha256", "names"] {
        for size in [SMALL_BYTES, LARGE_BYTES] {
            let fixture = PackageFixture::with_archive_size(size).await;
            let gate = fixture.upstream.hold_after(Target::Archive, size / 2);
            let request_once = || async { get(&fixture.url()).await };
            let (first, ()) = tokio::join!(request_once(), async {
                fixture.upstream.wait_for(Target::Archive, 1).await;
                let blocked_path = BlockedPath::block(fixture.folder(), part);
                gate.open();
                // The first request and later ones are served while a file blocks the folder.
                let second = request_once().await;
                assert!(second.status == 200 && second.body == fixture.zip, "{part}");
                let third = request_once().await;
                assert_passed_through(&third, &fixture.zip);
                assert_eq!(third.header("content-length"), fixture.zip.len().to_string());
                assert!(fixture.folder().files("names").is_empty());
                blocked_path.restore();
            });
            assert!(first.status == 200 && first.body == fixture.zip, "{part}");
            assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("fwd=miss; stored"), "{part}");
            assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("larder; hit"), "{part}");
            assert_eq!(fixture.archive_requests().len(), 1, "{part} {size}");
            fixture.assert_stored_and_served().await;
        }
    }
}

/// Promise 10: a damaged archive is not served even where it cannot be quarantined.
#[tokio::test]
async fn a_damaged_archive_that_cannot_be_quarantined_is_passed_through() {
    for size in [SMALL_BYTES, LARGE_BYTES] {
        let fixture = PackageFixture::with_archive_size(size).await;
        fixture.larder.get(&fixture.path).await.expect(200);
        let blob = fixture.folder().blobs().remove(0);
        let file = std::fs::File::options().write(true).open(&blob).unwrap();
        file.set_len(size as u64 / 2).unwrap();
        let blocked_path = BlockedPath::block(fixture.folder(), "aside");
        assert_passed_through(&fixture.larder.get(&fixture.path).await, &fixture.zip);
        blocked_path.restore();
        assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("stored"));
        assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("larder; hit"));
    }
}

/// Promise 9: a read-only disk does not weaken what was verified before.
#[tokio::test]
async fn a_version_republished_with_an_unknown_key_is_refused_on_an_unwritable_store() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    let path_before = larder.archive_path("null", "1.2.0").await;
    for part in ["staging", "documents"] {
        let blocked_path = BlockedPath::block(&larder.folder, part);
        let stranger = SigningKey::new_key();
        upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&stranger));
        let answer = larder.document("null", "1.2.0").await;
        match part {
            // The old set can still be read.
            "staging" => assert_eq!(answer.expect(200).json()["download_url"], path_before.as_str()),
            _ => assert!(answer.expect(502).text().contains("it was published again")),
        }
        blocked_path.restore();
    }
}

/// The first-seen record could not be written, but the proof set was stored.
#[tokio::test]
async fn a_version_whose_record_could_not_be_written_is_known_by_its_proof_set() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").version("1.1.0"));
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    larder.document("null", "1.1.0").await.expect(200);
    let blocked_path = BlockedPath::block(&larder.folder, "seen");
    let path_before = larder.archive_path("null", "1.2.0").await;
    blocked_path.restore();
    upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&SigningKey::new_key()));
    assert_eq!(larder.archive_path("null", "1.2.0").await, path_before, "a proof set with an unknown key was accepted");
}

fn remove_store(v1: &Path) {
    std::fs::remove_dir_all(v1).unwrap();
}

/// Replaces the store by another larder's: complete, empty, with a lock of its own.
fn replace_by_other_store(v1: &Path) {
    remove_store(v1);
    drop(open_store(v1.parent().unwrap(), larder::clock::Timestamp(1)));
}

fn replace_by_empty_folder(v1: &Path) {
    remove_store(v1);
    std::fs::create_dir(v1).unwrap();
}

fn replace_by_file(v1: &Path) {
    remove_store(v1);
    std::fs::write(v1, "no store").unwrap();
}

/// Losses of a store under a running larder.
const LOSSES: [fn(&Path); 4] = [remove_store, replace_by_other_store, replace_by_empty_folder, replace_by_file];

/// A store other than the locked one is neither read nor written; every request is still answered.
#[tokio::test]
async fn a_store_that_is_lost_at_run_time_fails_no_request() {
    for (number, loss) in LOSSES.into_iter().enumerate() {
        for size in [SMALL_BYTES, LARGE_BYTES] {
            let fixture = PackageFixture::with_archive_size(size).await;
            fixture.larder.get(&fixture.path).await.expect(200);
            wait_for_hashes(&fixture.larder).await;
            let v1 = fixture.folder().path().join("v1");
            loss(&v1);
            let before = tree_paths(&v1);
            for listener in [fixture.larder.base().to_owned(), fixture.larder.admin()] {
                get(&format!("{listener}/readyz")).await.expect(503);
                get(&format!("{listener}/healthz")).await.expect(200);
            }
            for _ in 0..2 {
                assert_passed_through(&fixture.larder.get(&fixture.path).await, &fixture.zip);
            }
            assert_eq!(fixture.larder.archive_path("null", "1.2.0").await, fixture.path);
            fixture.larder.versions("null").await.expect(200);
            fixture.larder.document("absent", "1.2.0").await.expect(404);
            assert_eq!(tree_paths(&v1), before, "loss {number}: larder wrote to it");
            assert_eq!(v1.exists(), number > 0, "loss {number}: larder made a store");
        }
    }
}

/// Waits until no write is in progress, the `h1:` hashes included.
async fn wait_for_hashes(larder: &Larder) {
    let names = || larder.folder.files("names").into_iter().map(|name| std::fs::read_to_string(name).unwrap());
    until("the `h1:` hash is recorded", async || names().all(|name| name.contains("h1:"))).await;
}

fn tree_paths(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

/// A store that comes back is used again; larder did not treat its content as deleted in between.
#[tokio::test]
async fn a_store_that_comes_back_is_used_again() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two"] {
        upstream.publish(Provider::new("acme", name).size(LARGE_BYTES));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"5MiB\"").always_revalidate().start().await;
    let first_path = larder.archive_path("one", "1.2.0").await;
    larder.get(&first_path).await.expect(200);
    wait_for_hashes(&larder).await;
    let (v1, moved) = (larder.folder.path().join("v1"), larder.folder.path().join("away"));
    std::fs::rename(&v1, &moved).unwrap();
    // The second archive would need the space of the first one.
    let second_path = larder.archive_path("two", "1.2.0").await;
    assert_passed_through(&larder.get(&second_path).await, &archive(&upstream, "two"));
    std::fs::rename(&moved, &v1).unwrap();

    larder.get("/readyz").await.expect(200);
    assert!(larder.get(&first_path).await.expect(200).has_cache_status("larder; hit"));
    assert!(larder.get(&second_path).await.expect(200).has_cache_status("stored"));
    assert!(larder.get(&second_path).await.expect(200).has_cache_status("larder; hit"));
}

/// Promise 12: offline, the error names the lost store.
#[tokio::test]
async fn offline_errors_name_a_lost_store() {
    let fixture = PackageFixture::with_archive_size(SMALL_BYTES).await;
    fixture.larder.get(&fixture.path).await.expect(200);
    let (folder, path) = (fixture.larder.stop().await, fixture.path);
    let clock = Clock::system();
    let offline = Larder::mirroring(&fixture.upstream).network("offline = true").clock(&clock).store_at(&folder);
    let larder = offline.start().await;
    larder.get(&path).await.expect(200);
    remove_store(&folder.path().join("v1"));
    // The copy in memory was checked less than a minute ago.
    clock.advance(Duration::from_secs(61));
    for path in [path.as_str(), "/registry/registry.terraform.io/v1/providers/acme/null/versions"] {
        let text = larder.get(path).await.expect(503).text();
        assert!(text.contains("the store of this mirror is gone"), "{text}");
    }
}

/// Promise 4: a client gets the announced length or an abort, even if upstream changes the length.
#[tokio::test]
async fn a_resumed_response_with_another_length_is_aborted() {
    for difference in [-1_isize, 1] {
        let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
        let other_length = fixture.zip.len().checked_add_signed(difference).unwrap();
        let gate = fixture.upstream.hold_after(Target::Archive, LARGE_BYTES / 2 - 1);
        fixture.upstream.fault(Target::Archive, Fault::Truncated(LARGE_BYTES / 2));
        let pending_request = tokio::spawn(crate::support::http::receive(client().get(fixture.url())));
        fixture.upstream.wait_for(Target::Archive, 1).await;
        fixture.upstream.fault(Target::Archive, Fault::Announces(other_length));
        gate.open();
        fixture.assert_truncated(&pending_request.await.unwrap());
        assert!(fixture.folder().partial_downloads().is_empty(), "the partial file of another length was kept");
        fixture.assert_recovers().await;
    }
}

/// Promise 3: with a wrong announced length no body is complete: excess bytes are refused, and missing bytes are
/// awaited.
#[tokio::test]
async fn a_body_with_a_wrong_announced_length_is_never_complete() {
    for (size, difference) in [(LARGE_BYTES, -1_isize), (LARGE_BYTES, 1), (SMALL_BYTES, -1), (SMALL_BYTES, 1)] {
        let fixture = PackageFixture::with_archive_size(size).await;
        let announced = fixture.zip.len().checked_add_signed(difference).unwrap();
        fixture.upstream.fault(Target::Archive, Fault::Announces(announced));
        if size == LARGE_BYTES {
            let received = fixture.larder.receive(&fixture.path).await;
            assert_eq!((received.status, received.is_complete), (200, false), "{difference}");
            assert!(received.body.len() <= announced - TAIL_BYTES && fixture.zip.starts_with(&received.body));
            assert!(fixture.folder().blobs().is_empty());
        } else {
            fixture.larder.get(&fixture.path).await.expect(502);
        }
        fixture.assert_recovers().await;
    }
}
