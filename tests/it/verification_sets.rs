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

/// The current files of acme/null 1.2.0 at upstream.
struct UpstreamFiles {
    zip: Vec<u8>,
    sums: Vec<u8>,
    signature: Vec<u8>,
}

fn upstream_files(upstream: &FakeUpstream) -> UpstreamFiles {
    UpstreamFiles {
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
async fn assert_files_match(larder: &Larder, document: &Answer, files: &UpstreamFiles) {
    assert_eq!(document.json()["shasum"].as_str().unwrap(), sha256_hex(&files.zip));
    let [archive, sums, signature] = urls(document);
    assert!(larder.get(&archive).await.expect(200).body == files.zip);
    assert_eq!(larder.get(&sums).await.expect(200).body, files.sums);
    assert_eq!(larder.get(&signature).await.expect(200).body, files.signature);
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

/// Promise 2: a proof set is stored as one file, which is written when sums and signature are both here.
#[tokio::test]
async fn sums_and_signature_are_requested_together_and_stored_in_one_file() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let (sums_gate, signature_gate) = (upstream.hold_headers(Target::Sums), upstream.hold_headers(Target::Signature));
    let answer_both = async {
        upstream.wait_for(Target::Sums, 1).await;
        upstream.wait_for(Target::Signature, 1).await;
        assert!(larder.folder.proof_sets().is_empty());
        sums_gate.open();
        signature_gate.open();
    };
    let (answer, ()) = tokio::join!(document(&larder), answer_both);
    assert_files_match(&larder, &answer, &upstream_files(&upstream)).await;
    assert_eq!(larder.folder.proof_sets().len(), 1);
    let requests = [Target::Document, Target::Sums, Target::Signature].map(|target| upstream.count_of(target));
    assert_eq!(requests, [1, 1, 1]);
}

/// Promise 2: while upstream has published half of a new proof set, a client gets the old set, or 502 if none is
/// stored; afterwards it gets the new one.
#[tokio::test]
async fn a_half_published_proof_set_is_refused_until_it_is_complete() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let before = document(&larder).await;
    let old = upstream_files(&upstream);
    assert_files_match(&larder, &before, &old).await;
    upstream.publish(edition(2));
    upstream.fault(Target::Document, Fault::OldSums);

    let stale = document(&larder).await;
    assert!(stale.has_cache_status("detail=stale"), "{}", stale.header("cache-status"));
    assert_eq!(stale.body, before.body);
    assert_files_match(&larder, &stale, &old).await;
    let empty_larder = Larder::mirroring(&upstream).start().await;
    let refused = empty_larder.document("null", "1.2.0").await.expect(502).text();
    assert!(refused.contains("acme/null") && refused.contains(", SHA256SUMS says "), "{refused}");
    assert!(empty_larder.folder.proof_sets().is_empty());

    upstream.clear_faults();
    for larder in [&larder, &empty_larder] {
        assert_files_match(larder, &document(larder).await, &upstream_files(&upstream)).await;
    }
    assert_eq!((larder.folder.proof_sets().len(), larder.folder.blobs().len()), (1, 2));
}

/// Promise 2: upstream answers 304 for the document, and has new sums.
#[tokio::test]
async fn new_sums_under_an_unchanged_document_replace_the_old_ones() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let before = document(&larder).await;
    let old = upstream_files(&upstream);
    upstream.publish(edition(1).platform("linux_amd64").platform("darwin_arm64"));
    upstream.forget_requests();
    let after = document(&larder).await;
    assert_eq!(upstream.count_where(|request| request.target == Target::Document && request.status == Some(304)), 1);
    assert_files_match(&larder, &after, &upstream_files(&upstream)).await;
    assert_ne!(urls(&after)[1], urls(&before)[1]);
    assert_files_match(&larder, &before, &old).await;
}

/// Promise 2: the revalidation of a current proof set takes three conditional requests, and upstream sends no body.
#[tokio::test]
async fn an_unchanged_proof_set_is_revalidated_without_a_body() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let before = document(&larder).await;
    upstream.forget_requests();
    let after = document(&larder).await;
    assert_eq!((after.body, upstream.bytes_sent()), (before.body, 0));
    assert_eq!(upstream.count_of(Target::Sums) + upstream.count_of(Target::Signature), 2);
}

/// Promise 2: the URLs of a replaced proof set are served for another 24 h.
#[tokio::test]
async fn urls_of_a_replaced_proof_set_are_served_for_a_day() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let [_, old_sums, old_signature] = urls(&document(&larder).await);
    let old = upstream_files(&upstream);
    upstream.publish(edition(2));
    clock.advance(25 * HOUR);
    assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;

    clock.advance(23 * HOUR);
    assert_eq!(larder.get(&old_sums).await.expect(200).body, old.sums);
    assert_eq!(larder.get(&old_signature).await.expect(200).body, old.signature);
    clock.advance(2 * HOUR);
    larder.get(&old_sums).await.expect(404);
    larder.get(&old_signature).await.expect(404);
}

/// Promise 2: only the archive of the replaced proof set is stored. While upstream is down, its set is served, however
/// old it is.
#[tokio::test]
async fn the_proof_set_of_the_only_stored_archive_is_served_while_upstream_is_down() {
    let mut upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let old = upstream_files(&upstream);
    assert_files_match(&larder, &document(&larder).await, &old).await;
    upstream.publish(edition(2));
    clock.advance(25 * HOUR);
    let new = document(&larder).await;
    assert_eq!(new.json()["shasum"].as_str().unwrap(), sha256_hex(&upstream_files(&upstream).zip));

    upstream.stop().await;
    for _ in 0..2 {
        let answer = document(&larder).await;
        assert!(answer.has_cache_status("detail=stale"), "{}", answer.header("cache-status"));
        assert_files_match(&larder, &answer, &old).await;
        clock.advance(25 * HOUR);
    }
    upstream.restart().await;
    assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;
    upstream.stop().await;
    assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;
}

/// Promise 2: only the archive of the replaced proof set is stored. The host of the files is down; then larder is
/// offline.
#[tokio::test]
async fn the_proof_set_of_the_only_stored_archive_is_served_while_the_host_of_the_files_is_down_and_offline() {
    let mut upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    upstream.publish(edition(1));
    let larder = always_revalidating(&upstream).start().await;
    let old = upstream_files(&upstream);
    assert_files_match(&larder, &document(&larder).await, &old).await;
    upstream.publish(edition(2));
    document(&larder).await;
    upstream.stop_releases().await;
    let answer = document(&larder).await;
    assert!(answer.has_cache_status("detail=stale"), "{}", answer.header("cache-status"));
    assert_files_match(&larder, &answer, &old).await;

    let folder = larder.stop().await;
    let offline_larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    assert_files_match(&offline_larder, &document(&offline_larder).await, &old).await;
}

/// Promise 6: a newer set whose archive was never fetched does not hide a version that upstream has deleted.
#[tokio::test]
async fn the_proof_set_of_the_only_stored_archive_is_served_for_a_deleted_version() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let old = upstream_files(&upstream);
    assert_files_match(&larder, &document(&larder).await, &old).await;
    upstream.publish(edition(2));
    document(&larder).await;
    upstream.withdraw("acme", "null", "1.2.0");
    let answer = document(&larder).await;
    assert!(answer.has_cache_status("detail=gone"), "{}", answer.header("cache-status"));
    assert_files_match(&larder, &answer, &old).await;
}

/// A key of which larder has seen a signature for this provider signs the version again.
#[tokio::test]
async fn a_version_republished_by_its_known_key_is_served_and_the_old_archive_is_kept() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let (before, old) = (document(&larder).await, upstream_files(&upstream));
    assert_files_match(&larder, &before, &old).await;
    upstream.publish(edition(2));
    assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;
    assert_files_match(&larder, &before, &old).await;
    assert_eq!(larder.folder.blobs().len(), 2);
}

/// The version is signed again by another key, which the document lists, or has no signature.
#[tokio::test]
async fn a_version_republished_without_a_known_signature_does_not_replace_the_stored_set() {
    let rows = [
        ("by a stranger", ("signature", edition(1), edition(2).signed_by(&SigningKey::new_key()))),
        ("unsigned", ("signature-if-keys", edition(1).without_keys(), edition(2).without_keys())),
    ];
    each_row(rows, async |(policy, provider, republished)| {
        let upstream = upstream_with(provider.clone()).await;
        let larder =
            always_revalidating(&upstream).upstream_lines(&format!("verification = \"{policy}\"")).start().await;
        let (before, old) = (document(&larder).await, upstream_files(&upstream));
        assert_files_match(&larder, &before, &old).await;
        upstream.publish(republished);
        for _ in 0..2 {
            let stale = document(&larder).await;
            assert!(stale.has_cache_status("detail=stale"), "{}", stale.header("cache-status"));
            assert_eq!(stale.body, before.body);
        }
        assert_files_match(&larder, &before, &old).await;
        assert_eq!((larder.folder.proof_sets().len(), larder.folder.blobs().len()), (1, 1));
        upstream.publish(provider);
        let recovered = document(&larder).await;
        assert!(recovered.has_cache_status("fwd=stale; stored"), "{}", recovered.header("cache-status"));
        assert_files_match(&larder, &recovered, &upstream_files(&upstream)).await;
    })
    .await;
}

/// Stops larder, and deletes all stored content except the first-seen records.
async fn stop_and_delete_content(larder: Larder) -> Folder {
    let folder = larder.stop().await;
    for file in ["documents", "names", "blobs"].iter().flat_map(|part| folder.files(part)) {
        folder.lose(&file);
    }
    assert!(folder.files("seen").iter().any(|file| file.ends_with("null/1.2.0.json")));
    folder
}

/// The first-seen records in `seen` are never evicted.
#[tokio::test]
async fn a_verified_version_is_remembered_when_nothing_of_it_is_stored() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;
    let folder = stop_and_delete_content(larder).await;

    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.text().contains("it was published again"), "{}", refused.text());
    assert!(folder.proof_sets().is_empty() && folder.blobs().is_empty());

    upstream.publish(edition(3));
    assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;
}

/// Registries may sign the URLs in their documents, and such URLs expire: larder fetches the document again.
#[tokio::test]
async fn an_expired_archive_url_is_renewed_once() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(edition(1));
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = document(&larder).await;
    upstream.expire_urls();
    upstream.forget_requests();
    assert_files_match(&larder, &answer, &upstream_files(&upstream)).await;
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 2));
}

/// Larder needs the document for a new URL. The error is not remembered.
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
    assert_files_match(&larder, &answer, &upstream_files(&upstream)).await;
}

/// Upstream refuses the archive at the URL in its document, also after a new document. The error is not remembered.
#[tokio::test]
async fn an_archive_that_is_missing_at_the_url_in_its_document_is_a_502() {
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
        assert_files_match(&larder, &answer, &upstream_files(&upstream)).await;
    })
    .await;
}

/// Upstream refuses the sums or the signature at the URL in the document. The error is not remembered.
#[tokio::test]
async fn sums_or_a_signature_missing_at_the_url_in_the_document_are_a_502() {
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
        assert_files_match(&larder, &document(&larder).await, &upstream_files(&upstream)).await;
    })
    .await;
}

/// Larder requests the document or the list once, and again only after the time of `not_found` (30 s by default).
#[tokio::test]
async fn an_archive_url_of_no_document_costs_one_upstream_request() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = Larder::mirroring(&upstream).clock(&clock).start().await;
    let rows = [
        ("another digest", ("1.2.0", Target::Document)),
        ("a version that is not listed", ("7.7.7", Target::Versions)),
    ];
    each_row(rows, async |(version, target)| {
        let path = format!("/archive/{HOST}/providers/acme/null/{version}/linux_amd64/0123456789abcdef/SHA256SUMS");
        upstream.forget_requests();
        for _ in 0..3 {
            larder.get(&path).await.expect(404);
        }
        assert_eq!(upstream.count_of(target.clone()), 1);
        clock.advance(Duration::from_secs(31));
        larder.get(&path).await.expect(404);
        assert_eq!(upstream.count_of(target), 2);
    })
    .await;
}
