//! Proof sets as units: replaced together, kept with their predecessors, and compared with first-seen records.

use std::time::Duration;

use larder::clock::Clock;

use crate::support::http::Answer;
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::rows::each_row;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target, sha256_hex};

fn edition(edition: u64) -> Provider {
    Provider::new("acme", "null").size(200_000).edition(edition)
}

/// Upstream's current content.
struct Truth {
    zip: Vec<u8>,
    sums: Vec<u8>,
    signature: Vec<u8>,
}

fn truth(upstream: &FakeUpstream) -> Truth {
    Truth {
        zip: upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"),
        sums: upstream.sums_bytes("acme", "null", "1.2.0"),
        signature: upstream.signature_bytes("acme", "null", "1.2.0"),
    }
}

async fn document(larder: &Larder) -> Answer {
    larder.document("null", "1.2.0").await.expect(200)
}

/// The three URLs of a download document.
fn urls(document: &Answer) -> [String; 3] {
    let document = document.json();
    ["download_url", "shasums_url", "shasums_signature_url"].map(|name| document[name].as_str().unwrap().to_owned())
}

/// Promise 5: every file that a document names has upstream's bytes.
async fn leads_to(larder: &Larder, document: &Answer, truth: &Truth) {
    assert_eq!(document.json()["shasum"].as_str().unwrap(), sha256_hex(&truth.zip));
    let [archive, sums, signature] = urls(document);
    assert!(larder.get(&archive).await.expect(200).body == truth.zip);
    assert_eq!(larder.get(&sums).await.expect(200).body, truth.sums);
    assert_eq!(larder.get(&signature).await.expect(200).body, truth.signature);
}

async fn upstream_with(provider: Provider) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider);
    upstream
}

fn always_revalidating(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).always_revalidate()
}

const HOUR: Duration = Duration::from_secs(3600);

/// Promise 2: one file, sums and signature asked for side by side.
#[tokio::test]
async fn a_set_is_one_file_and_its_sums_and_signature_are_asked_for_together() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let (sums, signature) = (upstream.stall(Target::Sums), upstream.stall(Target::Signature));
    let both_are_asked = async {
        upstream.wait_for(Target::Sums, 1).await;
        upstream.wait_for(Target::Signature, 1).await;
        assert!(larder.folder.proof_sets().is_empty());
        sums.open();
        signature.open();
    };
    let (answer, ()) = tokio::join!(document(&larder), both_are_asked);
    leads_to(&larder, &answer, &truth(&upstream)).await;
    assert_eq!(larder.folder.proof_sets().len(), 1);
    let requests = [Target::Document, Target::Sums, Target::Signature].map(|target| upstream.count_of(target));
    assert_eq!(requests, [1, 1, 1]);
}

/// Promise 2: while upstream shows half of a new set, the old one is answered, or 502 where none is stored, and the new
/// one once it is whole.
#[tokio::test]
async fn a_half_published_set_is_not_taken_until_it_is_whole() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let before = document(&larder).await;
    let old = truth(&upstream);
    leads_to(&larder, &before, &old).await;
    upstream.publish(edition(2));
    upstream.fault(Target::Document, Fault::OldSums);

    let stale = document(&larder).await;
    assert!(stale.has_cache_status("detail=stale"), "{}", stale.header("cache-status"));
    assert_eq!(stale.body, before.body);
    leads_to(&larder, &stale, &old).await;
    let empty = Larder::mirroring(&upstream).start().await;
    let refused = empty.document("null", "1.2.0").await.expect(502).text();
    assert!(refused.contains("acme/null") && refused.contains("the download document as"), "{refused}");
    assert!(empty.folder.proof_sets().is_empty());

    upstream.clear_faults();
    for larder in [&larder, &empty] {
        leads_to(larder, &document(larder).await, &truth(&upstream)).await;
    }
    assert_eq!((larder.folder.proof_sets().len(), larder.folder.blobs().len()), (1, 2));
}

/// Promise 2: the sums are new, the document says 304.
#[tokio::test]
async fn new_sums_under_an_unchanged_document_replace_the_old_ones() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let before = document(&larder).await;
    let old = truth(&upstream);
    upstream.publish(edition(1).platform("linux_amd64").platform("darwin_arm64"));
    upstream.forget_requests();
    let after = document(&larder).await;
    assert_eq!(upstream.count_where(|asked| asked.target == Target::Document && asked.status == Some(304)), 1);
    leads_to(&larder, &after, &truth(&upstream)).await;
    assert_ne!(urls(&after)[1], urls(&before)[1]);
    leads_to(&larder, &before, &old).await;
}

/// Promise 2: a set that is current costs three conditional requests and no byte.
#[tokio::test]
async fn an_unchanged_set_is_confirmed_without_a_byte() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let before = document(&larder).await;
    upstream.forget_requests();
    let after = document(&larder).await;
    assert_eq!((after.body, upstream.bytes_sent()), (before.body, 0));
    assert_eq!(upstream.count_of(Target::Sums) + upstream.count_of(Target::Signature), 2);
}

/// Promise 2: the digests of a set that was replaced answer for another 24 h.
#[tokio::test]
async fn urls_of_a_replaced_set_answer_for_a_day() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let [_, old_sums, old_signature] = urls(&document(&larder).await);
    let old = truth(&upstream);
    upstream.publish(edition(2));
    clock.advance(25 * HOUR);
    leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;

    clock.advance(23 * HOUR);
    assert_eq!(larder.get(&old_sums).await.expect(200).body, old.sums);
    assert_eq!(larder.get(&old_signature).await.expect(200).body, old.signature);
    clock.advance(2 * HOUR);
    larder.get(&old_sums).await.expect(404);
    larder.get(&old_signature).await.expect(404);
}

/// Promise 2: while upstream is down, the set of the stored archive answers, however old it is.
#[tokio::test]
async fn while_only_the_predecessors_archive_is_stored_its_set_answers_for_an_upstream_that_is_down() {
    let mut upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let old = truth(&upstream);
    leads_to(&larder, &document(&larder).await, &old).await;
    upstream.publish(edition(2));
    clock.advance(25 * HOUR);
    let new = document(&larder).await;
    assert_eq!(new.json()["shasum"].as_str().unwrap(), sha256_hex(&truth(&upstream).zip));

    upstream.stop().await;
    for _ in 0..2 {
        let answer = document(&larder).await;
        assert!(answer.has_cache_status("detail=stale"), "{}", answer.header("cache-status"));
        leads_to(&larder, &answer, &old).await;
        clock.advance(25 * HOUR);
    }
    upstream.restart().await;
    leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;
    upstream.stop().await;
    leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;
}

/// Promise 2: the same where only the files' origin is down, and where larder is sealed.
#[tokio::test]
async fn while_only_the_predecessors_archive_is_stored_its_set_answers_for_files_that_are_down_and_offline() {
    let mut upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    upstream.publish(edition(1));
    let larder = always_revalidating(&upstream).start().await;
    let old = truth(&upstream);
    leads_to(&larder, &document(&larder).await, &old).await;
    upstream.publish(edition(2));
    document(&larder).await;
    upstream.stop_releases().await;
    let answer = document(&larder).await;
    assert!(answer.has_cache_status("detail=stale"), "{}", answer.header("cache-status"));
    leads_to(&larder, &answer, &old).await;

    let folder = larder.stop().await;
    let sealed = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    leads_to(&sealed, &document(&sealed).await, &old).await;
}

/// Promise 6: a newer set whose archive was never fetched does not hide a version that upstream has deleted.
#[tokio::test]
async fn while_only_the_predecessors_archive_is_stored_its_set_answers_for_a_deleted_version() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let old = truth(&upstream);
    leads_to(&larder, &document(&larder).await, &old).await;
    upstream.publish(edition(2));
    document(&larder).await;
    upstream.withdraw("acme", "null", "1.2.0");
    let answer = document(&larder).await;
    assert!(answer.has_cache_status("detail=gone"), "{}", answer.header("cache-status"));
    leads_to(&larder, &answer, &old).await;
}

/// The table: a version republished under a key already seen for that provider.
#[tokio::test]
async fn a_version_republished_by_its_known_key_is_served_and_the_old_archive_is_kept() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let (before, old) = (document(&larder).await, truth(&upstream));
    leads_to(&larder, &before, &old).await;
    upstream.publish(edition(2));
    leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;
    leads_to(&larder, &before, &old).await;
    assert_eq!(larder.folder.blobs().len(), 2);
}

/// The table: a version republished under another key, although the document lists that key, or without a signature.
#[tokio::test]
async fn a_version_republished_without_a_known_signature_does_not_replace_the_stored_set() {
    let rows = [
        ("by a stranger", ("signature", edition(1), edition(2).signed_by(&SigningKey::new_key()))),
        ("unsigned", ("signature-if-keys", edition(1).without_keys(), edition(2).without_keys())),
    ];
    each_row(rows, async |(policy, first, again)| {
        let upstream = upstream_with(first.clone()).await;
        let larder =
            always_revalidating(&upstream).upstream_lines(&format!("verification = \"{policy}\"")).start().await;
        let (before, old) = (document(&larder).await, truth(&upstream));
        leads_to(&larder, &before, &old).await;
        upstream.publish(again);
        for _ in 0..2 {
            let stale = document(&larder).await;
            assert!(stale.has_cache_status("detail=stale"), "{}", stale.header("cache-status"));
            assert_eq!(stale.body, before.body);
        }
        leads_to(&larder, &before, &old).await;
        assert_eq!((larder.folder.proof_sets().len(), larder.folder.blobs().len()), (1, 1));
        upstream.publish(first);
        let healed = document(&larder).await;
        assert!(healed.has_cache_status("fwd=stale; stored"), "{}", healed.header("cache-status"));
        leads_to(&larder, &healed, &truth(&upstream)).await;
    })
    .await;
}

/// Removes everything stored and keeps the first-seen records.
async fn forgetful(larder: Larder) -> Folder {
    let folder = larder.stop().await;
    for file in ["documents", "names", "blobs"].iter().flat_map(|below| folder.files(below)) {
        std::fs::remove_file(file).unwrap();
    }
    assert!(folder.files("seen").iter().any(|file| file.ends_with("null/1.2.0.json")));
    folder
}

/// The table: `seen` keeps every line, also past eviction.
#[tokio::test]
async fn a_verified_version_is_remembered_when_nothing_of_it_is_stored() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;
    let folder = forgetful(larder).await;

    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.text().contains("it was published again"), "{}", refused.text());
    assert!(folder.proof_sets().is_empty() && folder.blobs().is_empty());

    upstream.publish(edition(3));
    leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;
}

/// The table: registries sign the URLs in their documents, and those expire.
#[tokio::test]
async fn an_expired_archive_url_is_asked_for_again_once() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = document(&larder).await;
    upstream.expire_urls();
    upstream.forget_requests();
    leads_to(&larder, &answer, &truth(&upstream)).await;
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 2));
}

/// The table: without its document, an archive is an error that is reported and not cached.
#[tokio::test]
async fn an_expired_archive_url_is_reported_while_its_document_is_down() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = document(&larder).await;
    upstream.expire_urls();
    upstream.fault(Target::Document, Fault::Status(500));
    let refused = larder.get(&urls(&answer)[0]).await.expect(502).text();
    assert!(refused.contains("acme/null") && refused.contains(&upstream.origin()), "{refused}");
    assert!(!refused.contains("sig="), "{refused}");
    assert!(larder.folder.blobs().is_empty());
    upstream.clear_faults();
    leads_to(&larder, &answer, &truth(&upstream)).await;
}

/// The table: then 502, not remembered.
#[tokio::test]
async fn an_archive_that_its_own_document_does_not_lead_to_is_a_502() {
    each_row([400, 401, 403, 404, 410].map(|status| (format!("status {status}"), status)), async |status| {
        let upstream = upstream_with(edition(1)).await;
        let larder = Larder::mirroring(&upstream).start().await;
        let answer = document(&larder).await;
        upstream.fault(Target::Archive, Fault::Status(status));
        upstream.forget_requests();
        larder.get(&urls(&answer)[0]).await.expect(502);
        assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 2));
        assert!(larder.folder.blobs().is_empty());
        upstream.clear_faults();
        leads_to(&larder, &answer, &truth(&upstream)).await;
    })
    .await;
}

/// The table: the same for the files beside the archive.
#[tokio::test]
async fn sums_that_their_own_document_does_not_lead_to_are_a_502() {
    let rows = [
        ("sums, a bad request", (Target::Sums, 400)),
        ("sums, not found", (Target::Sums, 404)),
        ("a signature, forbidden", (Target::Signature, 403)),
        ("a signature, gone", (Target::Signature, 410)),
    ];
    each_row(rows, async |(target, status)| {
        let upstream = upstream_with(edition(1)).await;
        let larder = Larder::mirroring(&upstream).start().await;
        upstream.fault(target.clone(), Fault::Status(status));
        larder.document("null", "1.2.0").await.expect(502);
        assert_eq!((upstream.count_of(Target::Document), upstream.count_of(target)), (2, 2));
        assert!(larder.folder.proof_sets().is_empty());
        upstream.clear_faults();
        leads_to(&larder, &document(&larder).await, &truth(&upstream)).await;
    })
    .await;
}

/// The table, "nothing": the set is fetched again once, and not again within `not_found`.
#[tokio::test]
async fn an_archive_url_that_nothing_lists_is_asked_for_once() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let rows = [
        ("another digest", ("1.2.0", Target::Document)),
        ("a version that is not listed", ("7.7.7", Target::Versions)),
    ];
    each_row(rows, async |(version, requests)| {
        let path = format!("/archive/{HOST}/providers/acme/null/{version}/linux_amd64/0123456789abcdef/SHA256SUMS");
        upstream.forget_requests();
        for _ in 0..3 {
            larder.get(&path).await.expect(404);
        }
        assert_eq!(upstream.count_of(requests.clone()), 1);
        clock.advance(Duration::from_secs(31));
        larder.get(&path).await.expect(404);
        assert_eq!(upstream.count_of(requests), 2);
    })
    .await;
}
