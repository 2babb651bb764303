//! Downloads cut short by a crash or a stop: the partial file is resumed and never mixed with other bytes.

use crate::support::eventually;
use crate::support::http::{client, send};
use crate::support::killed_downloads::{HALF, bytes, killed_half_way, large, stage, start};
use crate::support::larder::Folder;
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Fault, RecordedRequest, Target, sha256_hex};

fn archive_requests(upstream: &FakeUpstream) -> Vec<RecordedRequest> {
    upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
}

/// DESIGN, promises 4 and 9.
#[tokio::test]
async fn a_download_that_a_kill_cut_short_is_resumed_after_the_restart() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let path = killed_half_way(&upstream, &folder).await;

    let larder = start(&upstream, &folder);
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == bytes(&upstream, "null"));
    let requests = archive_requests(&upstream);
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("range"), Some(format!("bytes={HALF}-").as_str()));
    assert_eq!(requests[0].header("if-range"), Some(format!("\"{}\"", &sha256_hex(&answer.body)[..20]).as_str()));
    assert_eq!((requests[0].status, requests[0].bytes_sent), (Some(206), (answer.body.len() - HALF) as u64));
    assert_eq!(stage(&folder), None, "what was staged is still there");
}

/// DESIGN, promise 4: if upstream ignores the range, the partial file is compared with the new body.
#[tokio::test]
async fn an_upstream_that_starts_over_after_the_restart_is_taken_at_its_bytes() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let path = killed_half_way(&upstream, &folder).await;

    upstream.fault(Target::Archive, Fault::RangeIgnored);
    let larder = start(&upstream, &folder);
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "null"));
    assert_eq!(archive_requests(&upstream).len(), 1);
}

/// DESIGN, promise 4: without a length or a validator to go by, the bytes themselves decide.
#[tokio::test]
async fn a_download_without_length_or_validators_is_served_right_after_the_restart() {
    for fault in [Fault::NoValidators, Fault::NoLength] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(large());
        upstream.fault(Target::Archive, fault.clone());
        let folder = Folder::new();
        let path = killed_half_way(&upstream, &folder).await;
        let larder = start(&upstream, &folder);
        heals(&larder, &path, &bytes(&upstream, "null")).await;
        assert_eq!(archive_requests(&upstream).len(), 1, "{fault:?}");
    }
}

/// DESIGN, promises 4 and 9: a partial file that a crash damaged is replaced.
#[tokio::test]
async fn a_stage_that_a_crash_has_spoilt_heals() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let right = bytes(&upstream, "null");
    let longer = [&right[..], b"and more"].concat();
    let half_with_zeros = [&right[..HALF - 100_000], &[0; 100_000]].concat();
    let longer_zeros = vec![0; right.len() + 1];
    let zeros = vec![0; right.len()];
    for (how, staged) in [
        ("all of it", &right),
        ("more than all of it", &longer),
        ("zeros at the end", &half_with_zeros),
        ("zeros", &zeros),
        ("more zeros", &longer_zeros),
    ] {
        for note in [None, Some("{\"etag\":"), Some("")] {
            let folder = Folder::new();
            let path = killed_half_way(&upstream, &folder).await;
            let part = stage(&folder).unwrap();
            std::fs::write(&part, staged).unwrap();
            if let Some(note) = note {
                std::fs::write(part.with_extension("json"), note).unwrap();
            }
            let larder = start(&upstream, &folder);
            println!("{how}, note {note:?}");
            heals(&larder, &path, &right).await;
        }
    }
}

/// DESIGN, promise 4: a client that leaves cancels nothing, and an orderly stop keeps the partial file.
#[tokio::test]
async fn sigterm_does_not_wait_for_a_download_nobody_follows_and_it_is_resumed() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let stored = upstream.hold_after(Target::Archive, HALF);
    let larder = start(&upstream, &folder);
    let path = larder.archive_path("null").await;
    let asking = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
    eventually("half of it is staged", async || (stage(&folder)?.metadata().ok()?.len() == HALF as u64).then_some(()))
        .await;
    asking.abort();
    larder.terminate_at_once().await;
    stored.open();
    upstream.forget_requests();

    let larder = start(&upstream, &folder);
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "null"));
    assert_eq!(archive_requests(&upstream)[0].header("range"), Some(format!("bytes={HALF}-").as_str()));
}

/// Asks again and again until the right bytes come; whatever comes before them must be no success.
async fn heals(larder: &Process, path: &str, right: &[u8]) {
    for _ in 0..3 {
        match larder.try_get(path).await {
            Ok(answer) if answer.status == 200 => return assert!(answer.body == right, "a mix was served"),
            Ok(answer) => assert!(answer.status >= 500, "{}", answer.text()),
            // A broken body: no client can take it for a complete one.
            Err(_) => {}
        }
    }
    panic!("three requests did not heal it");
}

/// DESIGN, promise 4: never a mix of two downloads.
#[tokio::test]
async fn bytes_of_another_download_are_never_mixed_with_what_a_kill_left() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let path = killed_half_way(&upstream, &folder).await;

    upstream.fault_once(Target::Archive, Fault::RangeOtherBytes);
    let larder = start(&upstream, &folder);
    heals(&larder, &path, &bytes(&upstream, "null")).await;
}

/// DESIGN, promises 2 and 4: a partial file of the earlier content is not part of the new one.
#[tokio::test]
async fn a_version_republished_after_the_kill_is_served_whole() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let old_path = killed_half_way(&upstream, &folder).await;

    upstream.publish(large().edition(2));
    let larder = start(&upstream, &folder);
    let old = larder.try_get(&old_path).await;
    assert!(old.is_err() || old.is_ok_and(|answer| answer.status != 200), "the old edition is nowhere any more");
    let path = larder.archive_path("null").await;
    assert_ne!(path, old_path);
    heals(&larder, &path, &bytes(&upstream, "null")).await;
}
