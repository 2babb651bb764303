//! Repeated `kill -9` at random moments, while archives are filled, evicted and republished: stored archives are always
//! whole, acknowledged ones are never lost, and every start recovers.

use std::time::Duration;

use futures_util::future::join_all;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, timeout};

use crate::support::http::{client, receive};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Provider, Target, sha256_hex};

const NAMES: [&str; 6] = ["one", "two", "three", "four", "five", "six"];
const SIZES: [usize; 6] = [300_000, 1_500_000, 4096, 2_500_000, 700_000, 1_100_000];

fn publish(upstream: &FakeUpstream, edition: u64) {
    for (name, size) in NAMES.iter().zip(SIZES) {
        upstream.publish(Provider::new("acme", name).size(size).edition(edition));
    }
}

fn bytes(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

/// Every visible archive has the digest of its name.
fn assert_blobs_match_names(folder: &Folder) {
    for blob in folder.blobs() {
        let named = blob.file_name().unwrap().to_str().unwrap().to_owned();
        match std::fs::read(&blob) {
            Ok(bytes) => assert_eq!(sha256_hex(&bytes), named, "a torn archive is visible"),
            Err(error) => assert_eq!(
                error.kind(),
                std::io::ErrorKind::NotFound,
                "the archive may only be missing because it was evicted"
            ),
        }
    }
}

/// Requests every archive by its download document; returns the paths of those that arrived completely.
async fn install_all(larder: &Process, folder: &Folder) -> Vec<String> {
    let installing = NAMES.map(|name| async move {
        let document = larder.try_get(&document_path(name)).await.ok().filter(|answer| answer.status == 200)?.json();
        let path = document["download_url"].as_str().unwrap().to_owned();
        let request = client().get(format!("{}{path}", larder.base()));
        let received = timeout(Duration::from_secs(20), async { request.send().await.ok()?.bytes().await.ok() });
        let body = received.await.ok()??;
        assert_eq!(sha256_hex(&body), document["shasum"].as_str().unwrap(), "a body that was whole and wrong");
        Some(path)
    });
    let arrived = join_all(installing).await.into_iter().flatten().collect();
    assert_blobs_match_names(folder);
    arrived
}

fn document_path(name: &str) -> String {
    format!("/registry/{HOST}/v1/providers/acme/{name}/1.2.0/download/linux/amd64")
}

/// Kills larder at random moments, `rounds` times. After each kill and restart, `check_store` gets the
/// restarted larder and the paths acknowledged before the kill. `prepare_round` runs before each start. A fixed seed
/// makes the moments repeatable.
async fn kill_at_random_moments(
    builder: impl Fn() -> Builder,
    folder: &Folder,
    rounds: u64,
    mut prepare_round: impl FnMut(u64),
    mut check_store: impl AsyncFnMut(&Process, &[String]),
) {
    let mut random = rand::rngs::StdRng::seed_from_u64(4);
    // The kill must come between the first byte and the last, however fast this machine is: the delay shrinks after a
    // round in which everything arrived and grows after one in which nothing did.
    prepare_round(0);
    let began = Instant::now();
    let larder = Process::start(&builder(), folder.path());
    let started = began.elapsed();
    install_all(&larder, folder).await;
    let mut longest_delay = began.elapsed() - started;
    larder.kill();
    for round in 1..=rounds {
        prepare_round(round);
        let larder = Process::start(&builder(), folder.path());
        let mut acknowledged = Vec::new();
        let working = async {
            loop {
                for path in install_all(&larder, folder).await {
                    if !acknowledged.contains(&path) {
                        acknowledged.push(path);
                    }
                }
            }
        };
        let delay = longest_delay.mul_f64(random.gen_range(0.2..1.0));
        let _: Result<(), _> = timeout(delay, working).await;
        larder.kill();
        match acknowledged.len() {
            0 => longest_delay = longest_delay * 3 / 2,
            count if count == NAMES.len() => longest_delay = longest_delay * 3 / 5,
            _ => {}
        }
        assert_blobs_match_names(folder);

        let larder = Process::start(&builder(), folder.path());
        check_store(&larder, &acknowledged).await;
        let log = larder.log().text();
        assert!(!log.contains("panicked at"), "{log}");
        larder.kill();
    }
}

/// Promise 9: a kill during fills and replacements loses no acknowledged archive and mixes no proof sets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_moments_lose_no_acknowledged_archive_and_leave_no_mixed_proof_set() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).always_revalidate().store_at(&folder);
    let publish_anew = |round| publish(&upstream, 1 + round);
    let mut acknowledged_in_all = 0;
    kill_at_random_moments(builder, &folder, 10, publish_anew, async |larder: &Process, acknowledged: &[String]| {
        acknowledged_in_all += acknowledged.len();
        upstream.fault(Target::Everything, crate::support::upstream::Fault::Status(500));
        for path in acknowledged {
            let answer = larder.get(path).await.expect(200);
            assert!(answer.has_cache_status("larder; hit"), "{path}: {}", answer.header("cache-status"));
            let digest = path.split('/').rev().nth(1).unwrap();
            assert!(sha256_hex(&answer.body).starts_with(digest), "{path} does not name its bytes");
        }
        // All files of a stored proof set belong to one edition.
        for name in NAMES {
            let document = larder.get(&document_path(name)).await;
            if document.status != 200 {
                continue;
            }
            let document = document.json();
            let sums = larder.get(document["shasums_url"].as_str().unwrap()).await.expect(200).text();
            assert!(sums.contains(document["shasum"].as_str().unwrap()), "{name}: a set of two editions");
        }
        upstream.clear_faults();
        assert_eq!(
            install_all(larder, &folder).await.len(),
            NAMES.len(),
            "not all archives are served after the restart"
        );
    })
    .await;
    assert!((1..10 * NAMES.len()).contains(&acknowledged_in_all), "the moments did not vary: {acknowledged_in_all}");
}

/// Promise 9: after a kill during an eviction, no record names a missing archive, nothing is left over, and the store
/// still observes its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_observes_its_limit_after_kills_at_random_moments_of_evictions() {
    const LIMIT: u64 = 3 << 20;
    let upstream = FakeUpstream::start().await;
    publish(&upstream, 1);
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store("max_size = \"3MiB\"").store_at(&folder);
    let total = || folder.blobs().iter().map(|blob| blob.metadata().map_or(0, |metadata| metadata.len())).sum::<u64>();
    let mut evicted = 0;
    kill_at_random_moments(
        builder,
        &folder,
        10,
        |_| {},
        async |larder: &Process, _: &[String]| {
            for name in NAMES {
                let path = larder.archive_path(name).await;
                let received = receive(client().get(format!("{}{path}", larder.base()))).await;
                assert!(received.is_complete && received.body == bytes(&upstream, name), "{name}");
            }
            until("the store observes its limit", async || total() <= LIMIT).await;
            assert_blobs_match_names(&folder);
            // An archive without a record would never be found again; a record without its archive would be wrong.
            until("the index has the actual size", async || {
                let url = format!("{}/admin/v1/status", larder.admin());
                let status = crate::support::http::get(&url).await.expect(200).json();
                status["archives"] == folder.blobs().len()
            })
            .await;
            let log = larder.log().text();
            evicted += log.matches("evicted an archive").count();
        },
    )
    .await;
    assert!(evicted > 0, "nothing was ever evicted");
}
