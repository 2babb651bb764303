//! `kill -9` and the next start: the real binary, real signals, one store.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::support::eventually;
use crate::support::http::{Answer, client, get, send};
use crate::support::killed_downloads::{
    HALF_BYTES, LARGE_BYTES, bytes, kill_half_way, large, mirroring, partial_download, quarantined, start,
};
use crate::support::larder::{Folder, HOST};
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Provider, Target, sha256_hex};

/// Promise 9: a kill before the first byte of an archive leaves no partial download.
#[tokio::test]
async fn a_kill_before_the_first_byte_leaves_nothing_and_the_next_start_fetches() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    for is_before_headers in [true, false] {
        let gate = if is_before_headers {
            upstream.hold_headers(Target::Archive)
        } else {
            upstream.hold_body(Target::Archive)
        };
        upstream.forget_requests();
        let larder = start(&upstream, &folder);
        let path = larder.archive_path("null").await;
        let pending_request = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
        upstream.wait_for(Target::Archive, 1).await;
        larder.kill();
        assert!(pending_request.await.unwrap().is_err());
        assert_eq!(folder.blobs(), Vec::<PathBuf>::new());
        gate.open();
    }
    let larder = start(&upstream, &folder);
    let path = larder.archive_path("null").await;
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "null"));
}

/// The digest and the files of one edition, as its upstream has them.
#[derive(Clone)]
struct Edition {
    shasum: String,
    sums: Vec<u8>,
    signature: Vec<u8>,
}

fn edition_of(upstream: &FakeUpstream) -> Edition {
    Edition {
        shasum: sha256_hex(&bytes(upstream, "null")),
        sums: upstream.sums_bytes("acme", "null", "1.2.0"),
        signature: upstream.signature_bytes("acme", "null", "1.2.0"),
    }
}

/// Fetches the file that a document's URL names, and checks that the URL contains the file's digest.
async fn fetch_named_file(larder: &Process, document: &Value, field: &str) -> Answer {
    let path = document[field].as_str().unwrap();
    let answer = larder.get(path).await.expect(200);
    let digest = path.split('/').rev().nth(1).unwrap();
    assert!(sha256_hex(&answer.body).starts_with(digest), "{path} does not name its bytes");
    answer
}

/// Promises 2 and 9: document, sums and signature are of one edition, whenever the kill comes.
#[tokio::test]
async fn a_kill_while_a_proof_set_is_replaced_leaves_the_old_or_the_new_one() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    start(&upstream, &folder).document("null").await.expect(200);
    let mut old_edition = edition_of(&upstream);
    let mut replaced_count = 0;
    // The kill must come between the request and the response, however fast this machine is: its delay grows after a
    // round that was too early and shrinks after one that was too late.
    let mut kill_delay = Duration::ZERO;
    for round in 0..24 {
        upstream.publish(Provider::new("acme", "null").edition(2 + round));
        let new_edition = edition_of(&upstream);
        let larder = start(&upstream, &folder);
        let _ = timeout(kill_delay, larder.document("null")).await;
        larder.kill();

        upstream.stop().await;
        let larder = start(&upstream, &folder);
        let document = larder.document("null").await.expect(200).json();
        let served =
            [&old_edition, &new_edition].into_iter().find(|edition| document["shasum"] == edition.shasum.as_str());
        let served = served.expect("a document of neither edition").clone();
        assert!(fetch_named_file(&larder, &document, "shasums_url").await.body == served.sums);
        assert!(fetch_named_file(&larder, &document, "shasums_signature_url").await.body == served.signature);
        larder.kill();
        let was_replaced = served.shasum == new_edition.shasum;
        replaced_count += u32::from(was_replaced);
        kill_delay = if was_replaced { kill_delay * 3 / 4 } else { kill_delay * 5 / 4 + Duration::from_millis(1) };
        old_edition = served;
        upstream.restart().await;
    }
    assert!(
        (1..24).contains(&replaced_count),
        "{replaced_count} of 24 were replaced: the kill came always too early or always too late"
    );
}

/// Promise 9: no acknowledged archive is lost.
#[tokio::test]
async fn an_archive_whose_last_byte_was_sent_survives_a_kill() {
    let mut upstream = FakeUpstream::start().await;
    let sizes = [("small", 4096), ("medium", 900_000), ("large", LARGE_BYTES)];
    for (name, size) in sizes {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    for (name, _) in sizes {
        let folder = Folder::new();
        let larder = start(&upstream, &folder);
        let path = larder.archive_path(name).await;
        larder.get(&path).await.expect(200);
        larder.kill();

        upstream.stop().await;
        let larder = start(&upstream, &folder);
        assert_eq!(larder.archive_path(name).await, path);
        let answer = larder.get(&path).await.expect(200);
        assert!(answer.body == bytes(&upstream, name), "{name}");
        assert!(answer.has_cache_status("larder; hit"), "{name}");
        upstream.restart().await;
    }
}

/// The lock is taken before anything is read, deleted or moved.
#[tokio::test]
async fn a_second_larder_on_the_same_store_refuses_to_start_and_changes_nothing() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let config = mirroring(&upstream, &folder).config_text();
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let first = Process::serve(&config, folder.path()).unwrap_or_else(|error| panic!("{error:?}"));
    let path = first.archive_path("null").await;
    let pending_request = tokio::spawn(send(client().get(format!("{}{path}", first.base()))));
    eventually("a download is in progress", async || partial_download(&folder)).await;
    let partial_record = folder.path().join("v1/staging/record-999");
    std::fs::write(&partial_record, "half").unwrap();

    let second = Process::start_second(&config, folder.path());
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.err.contains(&folder.path().display().to_string()), "{}", second.err);
    assert!(
        second.err.contains("in use by another larder: stop it, or give this one a [store] path"),
        "{}",
        second.err
    );

    assert!(partial_record.exists(), "the second larder deleted a file in the staging folder of the first one");
    assert_eq!(quarantined(folder.path()), Vec::<String>::new());
    gate.open();
    assert!(pending_request.await.unwrap().unwrap().body == bytes(&upstream, "null"));
    assert!(first.get(&path).await.expect(200).has_cache_status("larder; hit"));
    get(&format!("{}/readyz", first.admin())).await.expect(200);
}

/// Promise 9: half-written records are deleted at the next start, downloads only after a day.
#[tokio::test]
async fn old_files_in_staging_are_deleted_at_the_start_and_recent_downloads_are_kept() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    kill_half_way(&upstream, &folder).await;
    let recent_download = partial_download(&folder).unwrap();
    let staging = recent_download.parent().unwrap().to_owned();
    std::fs::write(staging.join("record-7"), "half a record").unwrap();
    let old = std::fs::File::create(staging.join("old.part")).unwrap();
    old.set_modified(std::time::SystemTime::now() - Duration::from_secs(25 * 3600)).unwrap();

    start(&upstream, &folder).kill();
    assert!(recent_download.exists(), "a recent download was deleted");
    assert!(!staging.join("record-7").exists());
    assert!(!staging.join("old.part").exists());
}

/// Starts a larder that must refuse the store, and returns its error.
fn refusal_of_store(upstream: &FakeUpstream, folder: &Folder) -> String {
    let started = Process::serve(&mirroring(upstream, folder).config_text(), folder.path());
    let error = started.err().expect("larder started on a store of a newer format");
    assert_eq!(error.code, Some(1), "{error:?}");
    error.err
}

/// An older binary that meets a newer format says so, stops, and changes nothing.
#[tokio::test]
async fn a_store_that_a_newer_larder_wrote_to_is_refused_and_left_untouched() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let larder = start(&upstream, &folder);
    let path = larder.archive_path("null").await;
    larder.get(&path).await.expect(200);
    assert_eq!(larder.terminate().await, Some(0));
    let format_file = folder.path().join("v1/format");
    assert_eq!(std::fs::read_to_string(&format_file).unwrap(), "1\n");
    std::fs::write(&format_file, "2\n").unwrap();
    let leftover = folder.path().join("v1/staging/record-7");
    std::fs::write(&leftover, "half a record").unwrap();

    let output = refusal_of_store(&upstream, &folder);
    assert!(output.contains(&format!("{} has format 2", format_file.display())), "{output}");
    assert!(output.contains("this larder reads up to 1: run the newer larder that wrote it"), "{output}");
    assert_eq!(std::fs::read_to_string(&format_file).unwrap(), "2\n", "the format file was changed");
    assert!(leftover.exists(), "larder deleted files of a store that it must not touch");
    assert_eq!(quarantined(folder.path()), Vec::<String>::new());
}

/// A document of a newer format could be fetched again, but an older larder must not replace it.
#[tokio::test]
async fn a_document_of_a_newer_format_is_an_error_and_is_left_untouched() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let larder = start(&upstream, &folder);
    larder.document("null").await.expect(200);
    assert_eq!(larder.terminate().await, Some(0));
    let is_proof_set = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "set");
    let proof_set = folder.files("documents").into_iter().find(is_proof_set).unwrap();
    let mut newer = std::fs::read(&proof_set).unwrap();
    newer["{\"format\":".len()] = b'2';
    std::fs::write(&proof_set, &newer).unwrap();

    let larder = start(&upstream, &folder);
    let answer = larder.document("null").await.expect(500).text();
    assert!(!answer.contains(folder.path().to_str().unwrap()), "the response names a path of this machine: {answer}");
    larder.log().line_with("has format 2, and this larder reads up to 1").await;
    assert!(std::fs::read(&proof_set).unwrap() == newer, "the newer document was changed");
    assert_eq!(quarantined(folder.path()), Vec::<String>::new());
}

/// Package records without `h1:` are completed at the next start.
#[tokio::test]
async fn hashes_that_a_kill_prevented_are_computed_after_the_restart() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let larder = start(&upstream, &folder);
    let path = larder.archive_path("null").await;
    larder.get(&path).await.expect(200);
    larder.kill();

    upstream.stop().await;
    let larder = start(&upstream, &folder);
    eventually("the archive's h1", async || {
        let version = larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200);
        version.json()["archives"]["linux_amd64"]["hashes"].to_string().contains("h1:").then_some(())
    })
    .await;
}
