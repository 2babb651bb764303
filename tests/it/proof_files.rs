//! SHA256SUMS and its signature: one URL for each file of a version, whatever the platform. Renovate writes one `zh:`
//! line for each URL.

use std::collections::BTreeSet;
use std::time::Duration;

use larder::clock::Clock;

use crate::support::http::{Answer, get};
use crate::support::larder::{HOST, Larder};
use crate::support::upstream::{FakeUpstream, Provider, Target, sha256_hex};

const PLATFORMS: [&str; 3] = ["linux_amd64", "darwin_arm64", "windows_amd64"];
const HOUR: Duration = Duration::from_secs(3600);

fn null(edition: u64) -> Provider {
    PLATFORMS.into_iter().fold(Provider::new("acme", "null").edition(edition), Provider::platform)
}

/// The URLs of the archive, SHA256SUMS and the signature.
fn urls(document: &Answer) -> [String; 3] {
    let document = document.json();
    ["download_url", "shasums_url", "shasums_signature_url"].map(|name| document[name].as_str().unwrap().to_owned())
}

async fn urls_for(larder: &Larder, platform: &str) -> [String; 3] {
    urls(&larder.document_for("null", "1.2.0", platform).await.expect(200))
}

/// SHA256SUMS and the signature, as upstream has them now.
fn files(upstream: &FakeUpstream) -> [Vec<u8>; 2] {
    [upstream.sums_bytes("acme", "null", "1.2.0"), upstream.signature_bytes("acme", "null", "1.2.0")]
}

/// Promises 2 and 5: all platforms of a version share one URL for each file, with identical bytes.
#[tokio::test]
async fn all_platforms_of_a_version_share_the_urls_of_sums_and_signature() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let mut urls_of_file = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for platform in PLATFORMS {
        let urls = urls_for(&larder, platform).await;
        for (urls_of_file, url) in urls_of_file.iter_mut().zip(urls) {
            urls_of_file.insert(url);
        }
    }
    assert_eq!(urls_of_file.each_ref().map(BTreeSet::len), [PLATFORMS.len(), 1, 1], "{urls_of_file:?}");
    upstream.forget_requests();
    for (url, file) in urls_of_file[1].iter().chain(&urls_of_file[2]).zip(files(&upstream)) {
        assert!(url.contains(&sha256_hex(&file)[..16]) && !url.contains("_amd64"), "{url}");
        for _ in 0..2 {
            let answer = larder.get(url).await.expect(200);
            assert!(answer.body == file && answer.has_cache_status("larder; hit"), "{url}");
            assert!(answer.header("cache-control").contains("immutable"), "{url}");
        }
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// Lock files, caches and CI logs contain old URLs.
#[tokio::test]
async fn older_urls_with_a_platform_still_work() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null(1));
    let larder = Larder::mirroring(&upstream).start().await;
    for platform in PLATFORMS {
        let [archive, sums, signature] = urls_for(&larder, platform).await;
        for (url, file) in [sums, signature].into_iter().zip(files(&upstream)) {
            let older_url = url.replace("/1.2.0/", &format!("/1.2.0/{platform}/"));
            assert!(larder.get(&older_url).await.expect(200).body == file, "{older_url}");
        }
        // The digest under the name of another file is 404.
        let [zip, sums] = [archive, urls_for(&larder, platform).await[1].clone()];
        let digest = |url: &str| url.rsplit('/').nth(1).unwrap().to_owned();
        larder.get(&zip.replace(&digest(&zip), &digest(&sums))).await.expect(404);
        larder.get(&sums.replace("SHA256SUMS", "SHA256SUMS.sig")).await.expect(404);
        larder.get(&sums.replace("SHA256SUMS", "other")).await.expect(404);
    }
}

/// Promise 2: the files of a proof set are served while it is the current one of any platform, and for a day as the
/// previous one.
#[tokio::test]
async fn sums_are_served_from_any_current_or_previous_proof_set_with_the_digest() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null(1));
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let (old_urls, old) = (urls_for(&larder, "linux_amd64").await, files(&upstream));
    urls_for(&larder, "darwin_arm64").await;
    upstream.publish(null(2));
    clock.advance(25 * HOUR);
    let (new_urls, new) = (urls_for(&larder, "linux_amd64").await, files(&upstream));
    assert!(old_urls[1] != new_urls[1] && old[0] != new[0]);
    let assert_statuses = async |expected: [u16; 2]| {
        for (urls, files, status) in [(&old_urls, &old, expected[0]), (&new_urls, &new, expected[1])] {
            for (url, file) in urls[1..].iter().zip(files) {
                let answer = larder.get(url).await.expect(status);
                assert!(status != 200 || answer.body == *file, "{url}");
            }
        }
    };
    assert_statuses([200, 200]).await;
    clock.advance(25 * HOUR);
    // darwin_arm64 was not requested since, so its proof set is still the old one.
    assert_statuses([200, 200]).await;
    urls_for(&larder, "darwin_arm64").await;
    assert_statuses([200, 200]).await;
    clock.advance(25 * HOUR);
    assert_statuses([404, 200]).await;
}

/// A file that a document names and that is no longer stored is fetched again, and an error is never taken for absence.
#[tokio::test]
async fn a_digest_in_no_stored_proof_set_is_requested_from_upstream() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(null(1));
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let [_, sums, signature] = urls_for(&larder, "windows_amd64").await;
    for url in [&sums, &signature] {
        larder.run_command("purge", "acme/null").await;
        assert!(larder.folder.proof_sets().is_empty());
        assert_eq!(larder.get(url).await.expect(200).body, files(&upstream)[usize::from(url.ends_with(".sig"))]);
    }
    let absent = sums.replace(sums.rsplit('/').nth(1).unwrap(), "0123456789abcdef");
    upstream.forget_requests();
    for _ in 0..3 {
        let text = larder.get(&absent).await.expect(404).text();
        assert!(text.contains("SHA256SUMS") && text.contains("0123456789abcdef"), "{text}");
    }
    assert!(upstream.count_of(Target::Document) <= PLATFORMS.len(), "asked {}", upstream.count_of(Target::Document));
    let unlisted = absent.replace("/1.2.0/", "/9.9.9/");
    larder.get(&unlisted).await.expect(404);

    larder.run_command("purge", "acme/null").await;
    upstream.stop().await;
    clock.advance(HOUR);
    let text = larder.get(&sums).await.expect(502).text();
    assert!(text.contains(&upstream.origin()) && text.contains("acme/null"), "{text}");
}

/// Promise 12: an offline larder serves stored files and records requests for others.
#[tokio::test]
async fn offline_stored_sums_are_served_and_others_are_recorded_as_missing() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let [archive, sums, _] = urls_for(&larder, "linux_amd64").await;
    larder.get(&archive).await.expect(200);
    let folder = larder.stop().await;
    let sealed = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    assert_eq!(sealed.get(&sums).await.expect(200).body, files(&upstream)[0]);
    let other = format!("/archive/{HOST}/providers/acme/other/1.0.0/0123456789abcdef/SHA256SUMS");
    let text = sealed.get(&other).await.expect(503).text();
    assert!(text.contains("offline"), "{text}");
    let missing = get(&format!("{}/admin/v1/missing", sealed.admin())).await.expect(200).text();
    assert!(missing.contains("acme/other"), "{missing}");
}
