//! Downloads cut short by a crash or a stop: the partial file is resumed and never mixed with other bytes.

use crate::support::eventually;
use crate::support::http::{client, send};
use crate::support::killed_downloads::{HALF_BYTES, bytes, kill_half_way, large, partial_download, start};
use crate::support::larder::Folder;
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Fault, RecordedRequest, Target, sha256_hex};

fn archive_requests(upstream: &FakeUpstream) -> Vec<RecordedRequest> {
    upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
}

/// Promises 4 and 9: after a kill, a download continues at the partial file.
#[tokio::test]
async fn a_download_that_a_kill_cut_short_is_resumed_after_the_restart() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let path = kill_half_way(&upstream, &folder).await;

    let larder = start(&upstream, &folder);
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == bytes(&upstream, "null"));
    let requests = archive_requests(&upstream);
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("range"), Some(format!("bytes={HALF_BYTES}-").as_str()));
    assert_eq!(requests[0].header("if-range"), Some(format!("\"{}\"", &sha256_hex(&answer.body)[..20]).as_str()));
    assert_eq!((requests[0].status, requests[0].bytes_sent), (Some(206), (answer.body.len() - HALF_BYTES) as u64));
    assert_eq!(partial_download(&folder), None, "the partial file remains");
}

/// Promise 4: if upstream ignores the range, the partial file is compared with the new body.
#[tokio::test]
async fn a_full_response_after_the_restart_is_compared_with_the_partial_file() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let path = kill_half_way(&upstream, &folder).await;

    upstream.fault(Target::Archive, Fault::RangeIgnored);
    let larder = start(&upstream, &folder);
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "null"));
    assert_eq!(archive_requests(&upstream).len(), 1);
}

/// Promise 4: without a length or a validator, larder compares the bytes with the partial file.
#[tokio::test]
async fn a_download_without_length_or_validators_is_served_correctly_after_the_restart() {
    for fault in [Fault::NoValidators, Fault::NoLength] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(large());
        upstream.fault(Target::Archive, fault.clone());
        let folder = Folder::new();
        let path = kill_half_way(&upstream, &folder).await;
        let larder = start(&upstream, &folder);
        assert_recovers(&larder, &path, &bytes(&upstream, "null")).await;
        assert_eq!(archive_requests(&upstream).len(), 1, "{fault:?}");
    }
}

/// Promises 4 and 9: a partial file that a crash damaged is replaced.
#[tokio::test]
async fn a_partial_file_that_a_crash_damaged_is_replaced() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let zip = bytes(&upstream, "null");
    let longer = [&zip[..], b"and more"].concat();
    let half_with_zeros = [&zip[..HALF_BYTES - 100_000], &[0; 100_000]].concat();
    let longer_zeros = vec![0; zip.len() + 1];
    let zeros = vec![0; zip.len()];
    for (description, staged) in [
        ("all of it", &zip),
        ("more than all of it", &longer),
        ("zeros at the end", &half_with_zeros),
        ("zeros", &zeros),
        ("more zeros", &longer_zeros),
    ] {
        for validators in [None, Some("{\"etag\":"), Some("")] {
            let folder = Folder::new();
            let path = kill_half_way(&upstream, &folder).await;
            let partial_file = partial_download(&folder).unwrap();
            std::fs::write(&partial_file, staged).unwrap();
            if let Some(validators) = validators {
                std::fs::write(partial_file.with_extension("json"), validators).unwrap();
            }
            let larder = start(&upstream, &folder);
            println!("{description}, validators {validators:?}");
            assert_recovers(&larder, &path, &zip).await;
        }
    }
}

/// Promise 4: a client that disconnects cancels nothing, and an orderly stop keeps the partial file.
#[tokio::test]
async fn sigterm_does_not_wait_for_a_download_without_clients_and_it_is_resumed() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let larder = start(&upstream, &folder);
    let path = larder.archive_path("null").await;
    let pending_request = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
    eventually("half of the archive is downloaded", async || {
        (partial_download(&folder)?.metadata().ok()?.len() == HALF_BYTES as u64).then_some(())
    })
    .await;
    pending_request.abort();
    larder.terminate_promptly().await;
    gate.open();
    upstream.forget_requests();

    let larder = start(&upstream, &folder);
    assert!(larder.get(&path).await.expect(200).body == bytes(&upstream, "null"));
    assert_eq!(archive_requests(&upstream)[0].header("range"), Some(format!("bytes={HALF_BYTES}-").as_str()));
}

/// Requests the archive repeatedly until the right bytes arrive; asserts that no earlier response looks complete.
async fn assert_recovers(larder: &Process, path: &str, zip: &[u8]) {
    for _ in 0..3 {
        match larder.try_get(path).await {
            Ok(answer) if answer.status == 200 => return assert!(answer.body == zip, "a mix was served"),
            Ok(answer) => assert!(answer.status >= 500, "{}", answer.text()),
            // A broken body: no client can take it for a complete one.
            Err(_) => {}
        }
    }
    panic!("three requests did not get the whole archive");
}

/// Promise 4: an archive never has bytes of two different downloads.
#[tokio::test]
async fn a_partial_file_is_never_mixed_with_bytes_of_another_download() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let path = kill_half_way(&upstream, &folder).await;

    upstream.fault_once(Target::Archive, Fault::RangeOtherBytes);
    let larder = start(&upstream, &folder);
    assert_recovers(&larder, &path, &bytes(&upstream, "null")).await;
}

/// Promises 2 and 4: a partial file of the earlier content is not part of the new one.
#[tokio::test]
async fn a_version_republished_after_the_kill_is_served_completely() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(large());
    let folder = Folder::new();
    let old_path = kill_half_way(&upstream, &folder).await;

    upstream.publish(large().edition(2));
    let larder = start(&upstream, &folder);
    let old = larder.try_get(&old_path).await;
    assert!(old.is_err() || old.is_ok_and(|answer| answer.status != 200), "the replaced edition is served");
    let path = larder.archive_path("null").await;
    assert_ne!(path, old_path);
    assert_recovers(&larder, &path, &bytes(&upstream, "null")).await;
}
