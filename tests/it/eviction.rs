//! The size limit: the order of eviction, and archives that are evicted while in use.

use std::time::Duration;

use crate::support::http::client;
use crate::support::larder::Larder;
use crate::support::upstream::{FakeUpstream, Provider, Target};

/// The time between two uses of archives. Eviction compares the seconds of their last uses, so each use needs a later
/// second than the one before.
const BETWEEN_USES: Duration = Duration::from_secs(120);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Fetches an archive by its download document and returns its path.
async fn install(larder: &Larder, name: &str) -> String {
    let path = larder.archive_path(name, "1.2.0").await;
    larder.get(&path).await.expect(200);
    path
}

const FIRST_THREE: [&str; 3] = ["one", "two", "three"];

async fn upstream_with_four_providers() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in FIRST_THREE.iter().chain(&["four"]) {
        upstream.publish(Provider::new("acme", name).size(300_000));
    }
    upstream
}

/// The least recently used archive is evicted first, and fetched again on request.
#[tokio::test]
async fn the_least_recently_used_archive_is_evicted_and_fetched_again_on_request() {
    let upstream = upstream_with_four_providers().await;
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let mut paths = Vec::new();
    for name in FIRST_THREE {
        paths.push(install(&larder, name).await);
        larder.clock.advance(BETWEEN_USES);
    }
    assert_eq!(larder.folder.blobs().len(), 3);
    larder.get(&paths[0]).await.expect(200);
    larder.clock.advance(BETWEEN_USES);
    install(&larder, "four").await;
    let two = upstream.archive_bytes("acme", "two", "1.2.0", "linux_amd64");
    let is_two = |path: &std::path::PathBuf| std::fs::read(path).unwrap() == two;
    assert_eq!(larder.folder.blobs().len(), 3);
    assert!(!larder.folder.blobs().iter().any(is_two), "the least recently used archive is still stored");

    upstream.forget_requests();
    let again = larder.get(&paths[1]).await.expect(200);
    assert_eq!((again.header("cache-status"), again.body == two), ("larder; fwd=miss; stored", true));
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// Archives that upstream deleted are evicted last, because they cannot be fetched again.
#[tokio::test]
async fn archives_that_upstream_deleted_are_evicted_last() {
    let upstream = upstream_with_four_providers().await;
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let mut paths = Vec::new();
    for name in FIRST_THREE {
        paths.push(install(&larder, name).await);
        larder.clock.advance(BETWEEN_USES);
    }
    upstream.withdraw("acme", "one", "1.2.0");
    larder.clock.advance(DAY);
    assert!(larder.document("one", "1.2.0").await.expect(200).has_cache_status("detail=gone"));
    install(&larder, "four").await;
    assert_eq!(larder.get(&paths[0]).await.expect(200).header("cache-status"), "larder; hit");
}

/// A version that upstream dropped is listed only while it is stored.
#[tokio::test]
async fn a_dropped_version_is_no_longer_listed_after_its_eviction() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "one").size(700_000));
    upstream.publish(Provider::new("acme", "two").size(700_000));
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").always_revalidate().start().await;
    install(&larder, "one").await;
    larder.clock.advance(BETWEEN_USES);
    install(&larder, "two").await;
    upstream.withdraw("acme", "one", "1.2.0");
    assert_eq!(larder.versions("one").await.expect(200).json()["versions"], serde_json::json!([]));
}

/// Eviction does not affect a response in progress.
#[tokio::test]
async fn an_archive_that_is_evicted_during_a_response_is_sent_completely() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two"] {
        upstream.publish(Provider::new("acme", name).size(16_000_000));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"20MiB\"").start().await;
    let path = install(&larder, "one").await;
    let response = client().get(format!("{}{path}", larder.base())).send().await.unwrap();
    larder.clock.advance(BETWEEN_USES);
    install(&larder, "two").await;
    assert_eq!(larder.folder.blobs().len(), 1);
    let zip = upstream.archive_bytes("acme", "one", "1.2.0", "linux_amd64");
    assert!(response.bytes().await.unwrap() == zip, "the body is truncated or mixed");
}

/// Promise 12: an offline larder evicts nothing, even if the limit was lowered below the stored size.
#[tokio::test]
async fn nothing_is_evicted_while_offline() {
    let upstream = upstream_with_four_providers().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let mut paths = Vec::new();
    for name in ["one", "two", "three", "four"] {
        paths.push(install(&larder, name).await);
    }
    let folder = larder.stop().await;
    let offline = Larder::mirroring(&upstream).network("offline = true").store("max_size = \"1MiB\"");
    let larder = offline.store_at(&folder).start().await;
    for path in &paths {
        larder.get(path).await.expect(200);
    }
    assert_eq!(larder.folder.blobs().len(), 4);
}
