//! A store that takes nothing although the disk has space: a size limit, a missing folder, a folder that cannot be
//! written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use larder::clock::Clock;

use crate::support::http::{Answer, client, get};
use crate::support::larder::{Folder, Larder};
use crate::support::package_fixture::{LARGE, PackageFixture, SMALL, TAIL};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

/// A part of the store, replaced by a file.
struct InTheWay {
    part: PathBuf,
    away: PathBuf,
}

impl InTheWay {
    fn of(folder: &Folder, part: &str) -> Self {
        let (part, away) = (folder.path().join("v1").join(part), folder.path().join("away"));
        std::fs::rename(&part, &away).unwrap();
        std::fs::write(&part, "in the way").unwrap();
        Self { part, away }
    }

    fn goes(self) {
        std::fs::remove_file(&self.part).unwrap();
        std::fs::rename(&self.away, &self.part).unwrap();
    }
}

fn archive(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

fn is_passed(answer: &Answer, zip: &[u8]) {
    assert_eq!((answer.status, answer.header("cache-status")), (200, "larder; fwd=miss"));
    assert!(answer.body == zip);
}

/// DESIGN, promise 9: an archive that no eviction could make space for is passed through, and nothing is evicted.
#[tokio::test]
async fn an_archive_larger_than_the_store_may_be_is_passed_through() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "small").size(SMALL));
    upstream.publish(Provider::new("acme", "large").size(LARGE));
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let small = larder.archive_path("small", "1.2.0").await;
    larder.get(&small).await.expect(200);
    let large = larder.archive_path("large", "1.2.0").await;
    for passed in 1..=2 {
        is_passed(&larder.get(&large).await, &archive(&upstream, "large"));
        assert_eq!(larder.metric("larder_passed_through_total").await, f64::from(passed));
    }
    assert!(larder.get(&small).await.expect(200).has_cache_status("larder; hit"));
    assert!(larder.folder.staged().is_empty());
}

/// DESIGN, promise 9: HEAD and Range are answered as for any archive that is not stored, and HEAD fetches no body.
#[tokio::test]
async fn a_pass_through_ignores_ranges() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE));
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let zip = archive(&upstream, "null");
    let head = larder.head(&path).await.expect(200);
    assert_eq!(head.header("content-length"), zip.len().to_string());
    let answer = larder.get_with(&path, &[("range", "bytes=0-9")]).await;
    is_passed(&answer, &zip);
    for name in ["accept-ranges", "content-range", "etag"] {
        assert_eq!(answer.header(name), "", "{name}");
    }
}

/// DESIGN, promise 9: a stage that cannot be made costs the keeping, not the answer.
#[tokio::test]
async fn without_a_place_to_stage_everything_is_answered_and_nothing_is_kept() {
    for size in [SMALL, LARGE] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(size));
        let larder = Larder::mirroring(&upstream).start().await;
        let in_the_way = InTheWay::of(&larder.folder, "staging");
        let path = larder.archive_path("null", "1.2.0").await;
        larder.versions("null").await.expect(200);
        for _ in 0..2 {
            is_passed(&larder.get(&path).await, &archive(&upstream, "null"));
        }
        assert!(larder.folder.blobs().is_empty());
        in_the_way.goes();
        assert_eq!(larder.archive_path("null", "1.2.0").await, path);
        assert!(larder.get(&path).await.expect(200).has_cache_status("stored"));
        assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
    }
}

/// DESIGN, promise 9: where the bytes are verified and only the commit fails, verification alone releases the tail, and
/// the bytes on disk are not fetched again.
#[tokio::test]
async fn an_archive_whose_commit_fails_is_released_by_its_proof() {
    // Before the rename, and after it.
    for part in ["blobs/sha256", "names"] {
        for size in [SMALL, LARGE] {
            let fixture = PackageFixture::with(size).await;
            let gate = fixture.upstream.hold_after(Target::Archive, size / 2);
            let ask = || async { get(&fixture.url()).await };
            let (first, ()) = tokio::join!(ask(), async {
                fixture.upstream.wait_for(Target::Archive, 1).await;
                let in_the_way = InTheWay::of(fixture.folder(), part);
                gate.open();
                // The first request and later ones are answered while the file is in the way.
                let second = ask().await;
                assert!(second.status == 200 && second.body == fixture.zip, "{part}");
                let third = ask().await;
                is_passed(&third, &fixture.zip);
                assert_eq!(third.header("content-length"), fixture.zip.len().to_string());
                assert!(fixture.folder().files("names").is_empty());
                in_the_way.goes();
            });
            assert!(first.status == 200 && first.body == fixture.zip, "{part}");
            assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("fwd=miss; stored"), "{part}");
            assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("larder; hit"), "{part}");
            assert_eq!(fixture.archive_requests().len(), 1, "{part} {size}");
            fixture.arrives_whole().await;
        }
    }
}

/// DESIGN, promise 10: a damaged archive is not served even where it cannot be quarantined.
#[tokio::test]
async fn a_damaged_archive_that_cannot_be_quarantined_is_passed_through() {
    for size in [SMALL, LARGE] {
        let fixture = PackageFixture::with(size).await;
        fixture.larder.get(&fixture.path).await.expect(200);
        let blob = fixture.folder().blobs().remove(0);
        let file = std::fs::File::options().write(true).open(&blob).unwrap();
        file.set_len(size as u64 / 2).unwrap();
        let in_the_way = InTheWay::of(fixture.folder(), "aside");
        is_passed(&fixture.larder.get(&fixture.path).await, &fixture.zip);
        in_the_way.goes();
        assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("stored"));
        assert!(fixture.larder.get(&fixture.path).await.expect(200).has_cache_status("larder; hit"));
    }
}

/// DESIGN, promise 9, and the table of DESIGN 4: a read-only disk does not weaken what was verified before.
#[tokio::test]
async fn a_version_republished_by_a_stranger_is_refused_although_nothing_can_be_written() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
    let before = larder.archive_path("null", "1.2.0").await;
    for part in ["staging", "documents"] {
        let in_the_way = InTheWay::of(&larder.folder, part);
        let stranger = SigningKey::another();
        upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&stranger));
        let answer = larder.document("null", "1.2.0").await;
        match part {
            // The old set can still be read.
            "staging" => assert_eq!(answer.expect(200).json()["download_url"], before.as_str()),
            _ => assert!(answer.expect(502).text().contains("it was published again")),
        }
        in_the_way.goes();
    }
}

/// The first-seen record could not be written, but the proof set was stored.
#[tokio::test]
async fn a_version_whose_record_could_not_be_written_is_known_by_its_proof_set() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").version("1.1.0"));
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
    larder.document("null", "1.1.0").await.expect(200);
    let in_the_way = InTheWay::of(&larder.folder, "seen");
    let before = larder.archive_path("null", "1.2.0").await;
    in_the_way.goes();
    upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&SigningKey::another()));
    assert_eq!(larder.archive_path("null", "1.2.0").await, before, "a stranger's set was let in");
}

fn vanish(v1: &Path) {
    std::fs::remove_dir_all(v1).unwrap();
}

/// Replaces the store by another larder's: complete, empty, with a lock of its own.
fn is_replaced(v1: &Path) {
    vanish(v1);
    drop(larder::store::Store::open(v1.parent().unwrap(), larder::clock::Timestamp(1)).unwrap());
}

fn is_made_anew_empty(v1: &Path) {
    vanish(v1);
    std::fs::create_dir(v1).unwrap();
}

fn is_a_file(v1: &Path) {
    vanish(v1);
    std::fs::write(v1, "no store").unwrap();
}

/// Losses of a store under a running larder.
const LOSSES: [fn(&Path); 4] = [vanish, is_replaced, is_made_anew_empty, is_a_file];

/// DESIGN 5: a store other than the locked one is neither read nor written; every request is still answered.
#[tokio::test]
async fn a_store_lost_at_run_time_does_not_stop_answers() {
    for (number, loss) in LOSSES.into_iter().enumerate() {
        for size in [SMALL, LARGE] {
            let fixture = PackageFixture::with(size).await;
            fixture.larder.get(&fixture.path).await.expect(200);
            is_complete(&fixture.larder).await;
            let v1 = fixture.folder().path().join("v1");
            loss(&v1);
            let before = tree(&v1);
            for listener in [fixture.larder.base().to_owned(), fixture.larder.admin()] {
                get(&format!("{listener}/readyz")).await.expect(503);
                get(&format!("{listener}/healthz")).await.expect(200);
            }
            for _ in 0..2 {
                is_passed(&fixture.larder.get(&fixture.path).await, &fixture.zip);
            }
            assert_eq!(fixture.larder.archive_path("null", "1.2.0").await, fixture.path);
            fixture.larder.versions("null").await.expect(200);
            fixture.larder.document("absent", "1.2.0").await.expect(404);
            assert_eq!(tree(&v1), before, "loss {number}: it was written to");
            assert_eq!(v1.exists(), number > 0, "loss {number}: it was made");
        }
    }
}

/// Waits until no write is in progress, the `h1:` hashes included.
async fn is_complete(larder: &Larder) {
    let names = || larder.folder.files("names").into_iter().map(|name| std::fs::read_to_string(name).unwrap());
    until("the h1 is computed", async || names().all(|name| name.contains("h1:"))).await;
}

fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// DESIGN 5: one that comes back is used again, as it was: nothing of it was taken for gone meanwhile.
#[tokio::test]
async fn a_store_that_comes_back_is_used_again() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two"] {
        upstream.publish(Provider::new("acme", name).size(LARGE));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"5MiB\"").nothing_stays_fresh().start().await;
    let one = larder.archive_path("one", "1.2.0").await;
    larder.get(&one).await.expect(200);
    is_complete(&larder).await;
    let (v1, away) = (larder.folder.path().join("v1"), larder.folder.path().join("away"));
    std::fs::rename(&v1, &away).unwrap();
    // It would need the first one's space.
    let two = larder.archive_path("two", "1.2.0").await;
    is_passed(&larder.get(&two).await, &archive(&upstream, "two"));
    std::fs::rename(&away, &v1).unwrap();

    larder.get("/readyz").await.expect(200);
    assert!(larder.get(&one).await.expect(200).has_cache_status("larder; hit"));
    assert!(larder.get(&two).await.expect(200).has_cache_status("stored"));
    assert!(larder.get(&two).await.expect(200).has_cache_status("larder; hit"));
}

/// DESIGN, promise 12: offline there is no upstream, and the answer names the lost store.
#[tokio::test]
async fn offline_a_store_that_is_lost_is_said() {
    let fixture = PackageFixture::with(SMALL).await;
    fixture.larder.get(&fixture.path).await.expect(200);
    let (folder, path) = (fixture.larder.stop().await, fixture.path);
    let clock = Clock::system();
    let offline = Larder::mirroring(&fixture.upstream).network("offline = true").clock(&clock).on(&folder);
    let larder = offline.start().await;
    larder.get(&path).await.expect(200);
    vanish(&folder.path().join("v1"));
    // The copy in memory was checked less than a minute ago.
    clock.advance(Duration::from_secs(61));
    for path in [path.as_str(), "/registry/registry.terraform.io/v1/providers/acme/null/versions"] {
        let text = larder.get(path).await.expect(503).text();
        assert!(text.contains("the store of this mirror is gone"), "{text}");
    }
}

/// DESIGN, promise 4: clients that were given one length get that length or an abort, however upstream changes it.
#[tokio::test]
async fn an_upstream_that_announces_another_length_when_it_resumes_is_not_believed() {
    for more in [-1_isize, 1] {
        let fixture = PackageFixture::with(LARGE).await;
        let other = fixture.zip.len().checked_add_signed(more).unwrap();
        let gate = fixture.upstream.hold_after(Target::Archive, LARGE / 2 - 1);
        fixture.upstream.fault(Target::Archive, Fault::Truncated(LARGE / 2));
        let asking = tokio::spawn(crate::support::http::receive(client().get(fixture.url())));
        fixture.upstream.wait_for(Target::Archive, 1).await;
        fixture.upstream.fault(Target::Archive, Fault::Announces(other));
        gate.open();
        fixture.broke_off(&asking.await.unwrap());
        assert!(fixture.folder().staged().is_empty(), "what it contradicts was built on");
        fixture.heals().await;
    }
}

/// DESIGN, promise 3: a length that is wrong from the start makes no whole body: too many bytes are refused, too few
/// awaited.
#[tokio::test]
async fn an_upstream_that_announces_a_wrong_length_is_not_believed() {
    for (size, more) in [(LARGE, -1_isize), (LARGE, 1), (SMALL, -1), (SMALL, 1)] {
        let fixture = PackageFixture::with(size).await;
        let announced = fixture.zip.len().checked_add_signed(more).unwrap();
        fixture.upstream.fault(Target::Archive, Fault::Announces(announced));
        if size == LARGE {
            let received = fixture.larder.receive(&fixture.path).await;
            assert_eq!((received.status, received.is_whole), (200, false), "{more}");
            assert!(received.body.len() <= announced - TAIL && fixture.zip.starts_with(&received.body));
            assert!(fixture.folder().blobs().is_empty());
        } else {
            fixture.larder.get(&fixture.path).await.expect(502);
        }
        fixture.heals().await;
    }
}
