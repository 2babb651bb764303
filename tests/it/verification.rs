//! Wrong archives and wrong proof sets from an upstream: none of them is stored or served.

use crate::support::larder::{Folder, Larder};
use crate::support::package_fixture::{LARGE_BYTES, PackageFixture, SMALL_BYTES, TAIL_BYTES};
use crate::support::rows::each_row;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

fn null() -> Provider {
    Provider::new("acme", "null")
}

async fn upstream_with_null(size: usize) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().size(size));
    upstream
}

fn zip(upstream: &FakeUpstream) -> Vec<u8> {
    upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64")
}

/// The three URLs in the download document.
async fn urls(larder: &Larder) -> [String; 3] {
    let document = larder.document("null", "1.2.0").await.expect(200).json();
    ["download_url", "shasums_url", "shasums_signature_url"].map(|name| document[name].as_str().unwrap().to_owned())
}

fn assert_no_archive_stored(folder: &Folder) {
    assert_eq!(folder.blobs(), Vec::<std::path::PathBuf>::new());
    assert_eq!(folder.partial_downloads(), Vec::<std::path::PathBuf>::new());
}

async fn assert_recovers(upstream: &FakeUpstream, larder: &Larder, path: &str) {
    upstream.clear_faults();
    let recovered = larder.get(path).await.expect(200);
    assert!(recovered.body == zip(upstream));
    assert_eq!(larder.folder.blobs().len(), 1);
    assert!(larder.folder.partial_downloads().is_empty());
}

/// Promise 1: a small archive is verified before the status line. An HTML page (of a captive portal) is as small,
/// however large the archive is.
#[tokio::test]
async fn a_small_wrong_body_is_a_502_with_the_reason() {
    let rows = [
        ("a wrong byte in a small archive", (SMALL_BYTES, Fault::WrongBytes)),
        ("a wrong last byte in a small archive", (SMALL_BYTES, Fault::WrongLastByte)),
        ("an HTML page in place of a small archive", (SMALL_BYTES, Fault::Html)),
        ("an HTML page in place of a large archive", (LARGE_BYTES, Fault::Html)),
    ];
    each_row(rows, async |(size, fault)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        fixture.upstream.fault(Target::Archive, fault);
        let refused = fixture.larder.get(&fixture.path).await.expect(502).text();
        assert!(refused.contains("its verified SHA256SUMS say"), "{refused}");
        assert_no_archive_stored(fixture.folder());
        fixture.assert_recovers().await;
    })
    .await;
}

/// Promise 3: wrong bytes never look complete.
#[tokio::test]
async fn a_large_archive_with_wrong_bytes_is_aborted_before_its_tail() {
    let rows = [("a wrong byte in the middle", Fault::WrongBytes), ("a wrong last byte", Fault::WrongLastByte)];
    each_row(rows, async |fault| {
        let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
        fixture.upstream.fault(Target::Archive, fault);
        let received = fixture.larder.receive(&fixture.path).await;
        assert_eq!((received.status, received.is_complete), (200, false));
        assert!(received.body.len() <= fixture.zip.len() - TAIL_BYTES, "{}", received.body.len());
        assert_no_archive_stored(fixture.folder());
        fixture.assert_recovers().await;
        assert_eq!(fixture.upstream.count_of(Target::Archive), 2);
    })
    .await;
}

/// Faults with which a proof set does not verify: for each its name, the fault, and the reason that larder reports.
fn proof_faults() -> [(&'static str, (Fault, &'static str)); 6] {
    [
        ("sums without the archive", (Fault::ArchiveNotInSums, "has no SHA-256 for")),
        ("sums changed after they were signed", (Fault::SumsChangedAfterSigning, "does not match SHA256SUMS")),
        ("a signature by another key", (Fault::SignedByAnotherKey, "which the registry does not list")),
        ("no key", (Fault::NoKeys, "lists no signing key")),
        ("a key that cannot be parsed", (Fault::UnparsableKey, "cannot be used")),
        ("a shasum of something else", (Fault::WrongShasum, ", SHA256SUMS says ")),
    ]
}

/// Promise 2: neither document, sums, signature nor archive of an unverified proof set is served.
#[tokio::test]
async fn nothing_of_an_unverified_proof_set_is_served() {
    let upstream = upstream_with_null(SMALL_BYTES).await;
    let [archive, sums, signature] = urls(&Larder::mirroring(&upstream).start().await).await;
    each_row(proof_faults(), async |(fault, reason)| {
        let larder = Larder::mirroring(&upstream).start().await;
        upstream.fault(Target::Document, fault);
        let refused = larder.document("null", "1.2.0").await.expect(502).text();
        assert!(refused.contains(reason), "{refused}");
        for path in [&archive, &sums, &signature] {
            let refused = larder.get(path).await.expect(502).text();
            assert!(refused.contains(reason), "{path}: {refused}");
        }
        assert!(larder.folder.proof_sets().is_empty());
        assert_no_archive_stored(&larder.folder);
        upstream.clear_faults();
        assert_eq!(urls(&larder).await, [archive.clone(), sums.clone(), signature.clone()]);
        assert_eq!(larder.get(&sums).await.expect(200).body, upstream.sums_bytes("acme", "null", "1.2.0"));
        assert_eq!(larder.get(&signature).await.expect(200).body, upstream.signature_bytes("acme", "null", "1.2.0"));
        assert_recovers(&upstream, &larder, &archive).await;
    })
    .await;
}

/// Promise 6: a set that fails verification does not hide the verified one.
#[tokio::test]
async fn a_stored_set_stays_when_the_new_one_does_not_verify() {
    each_row(proof_faults(), async |(fault, _)| {
        let upstream = upstream_with_null(SMALL_BYTES).await;
        let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
        let before = larder.document("null", "1.2.0").await.expect(200);
        let [archive, sums, signature] = urls(&larder).await;
        larder.get(&archive).await.expect(200);
        upstream.fault(Target::Document, fault);
        let stale = larder.document("null", "1.2.0").await.expect(200);
        assert!(stale.has_cache_status("detail=stale"), "{}", stale.header("cache-status"));
        assert_eq!(stale.body, before.body);
        assert!(larder.get(&archive).await.expect(200).body == zip(&upstream));
        assert_eq!(larder.get(&sums).await.expect(200).body, upstream.sums_bytes("acme", "null", "1.2.0"));
        assert_eq!(larder.get(&signature).await.expect(200).body, upstream.signature_bytes("acme", "null", "1.2.0"));
        upstream.clear_faults();
        let recovered = larder.document("null", "1.2.0").await.expect(200);
        assert!(recovered.has_cache_status("fwd=stale; stored"), "{}", recovered.header("cache-status"));
        assert_eq!(recovered.body, before.body);
    })
    .await;
}

/// Promise 1: `verification` says which signatures are needed. With `signature-if-keys`, a signature is needed as soon as
/// the registry lists a key.
#[tokio::test]
async fn a_proof_set_without_a_listed_key_is_stored_only_if_the_policy_allows_it() {
    let no_key = null().size(SMALL_BYTES).without_keys();
    let other_key = null().size(SMALL_BYTES).listed_keys(&[SigningKey::new_key()]);
    let not_listed = Some("which the registry does not list");
    let rows = [
        ("no key under signature", (&no_key, "signature", Some("lists no signing key"))),
        ("no key under signature-if-keys", (&no_key, "signature-if-keys", None)),
        ("no key under checksum", (&no_key, "checksum", None)),
        ("another key under signature", (&other_key, "signature", not_listed)),
        ("another key under signature-if-keys", (&other_key, "signature-if-keys", not_listed)),
        ("another key under checksum", (&other_key, "checksum", None)),
    ];
    each_row(rows, async |(provider, policy, reason)| {
        let upstream = FakeUpstream::start().await;
        upstream.publish(provider.clone());
        let larder = Larder::mirroring(&upstream).upstream_lines(&format!("verification = \"{policy}\"")).start().await;
        if let Some(reason) = reason {
            let refused = larder.document("null", "1.2.0").await.expect(502).text();
            assert!(refused.contains(reason), "{refused}");
            assert!(larder.folder.proof_sets().is_empty());
        } else {
            let path = larder.archive_path("null", "1.2.0").await;
            assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
            assert_eq!(larder.folder.proof_sets().len(), 1);
        }
    })
    .await;
}

/// Promise 1: no policy accepts an archive whose digest SHA256SUMS does not name.
#[tokio::test]
async fn the_checksum_policy_still_refuses_wrong_bytes_and_wrong_sums() {
    let upstream = upstream_with_null(SMALL_BYTES).await;
    let larder = Larder::mirroring(&upstream).upstream_lines("verification = \"checksum\"").start().await;
    let rows = [("sums without the archive", Fault::ArchiveNotInSums), ("another shasum", Fault::WrongShasum)];
    each_row(rows, async |fault| {
        upstream.fault(Target::Document, fault);
        larder.document("null", "1.2.0").await.expect(502);
        upstream.clear_faults();
    })
    .await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::WrongBytes);
    larder.get(&path).await.expect(502);
    assert_no_archive_stored(&larder.folder);
    assert_recovers(&upstream, &larder, &path).await;
}

/// Promise 8: no upstream URL reaches a client, because its query may contain a secret (`sig=`). The signature is not
/// needed under the policy `checksum`.
#[tokio::test]
async fn a_document_without_a_signature_does_not_reveal_the_upstream_url_of_it() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(null().size(SMALL_BYTES));
    upstream.fault(Target::Signature, Fault::Status(404));
    let larder = Larder::mirroring(&upstream).upstream_lines("verification = \"checksum\"").start().await;
    let document = larder.document("null", "1.2.0").await.expect(200);
    assert!(!document.text().contains(&upstream.origin()), "{}", document.text());
    assert!(!document.text().contains("sig="), "{}", document.text());
    let signature = document.json()["shasums_signature_url"].as_str().unwrap().to_owned();
    larder.get(&signature).await.expect(404);
    let path = larder.archive_path("null", "1.2.0").await;
    assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
}

/// Promise 1: a weak digest proves nothing, and neither does a revoked key.
#[tokio::test]
async fn a_weak_digest_or_a_revoked_key_proves_nothing() {
    let rows = [
        ("a weak digest", (SigningKey::new_sha1_key(), "too weak")),
        ("a revoked key", (SigningKey::new_revoked_key(), "has been revoked")),
    ];
    each_row(rows, async |(key, reason)| {
        let upstream = FakeUpstream::start().await;
        upstream.publish(null().size(SMALL_BYTES).signed_by(&key));
        let larder = Larder::mirroring(&upstream).start().await;
        let refused = larder.document("null", "1.2.0").await.expect(502);
        assert!(refused.text().contains(reason), "{}", refused.text());
        assert!(larder.folder.proof_sets().is_empty());
        upstream.publish(null().size(SMALL_BYTES));
        let path = larder.archive_path("null", "1.2.0").await;
        assert_recovers(&upstream, &larder, &path).await;
    })
    .await;
}

#[tokio::test]
async fn a_weak_digest_or_a_revoked_key_does_not_replace_the_stored_set() {
    let rows = [("a weak digest", SigningKey::new_sha1_key()), ("a revoked key", SigningKey::new_revoked_key())];
    each_row(rows, async |key| {
        let upstream = upstream_with_null(SMALL_BYTES).await;
        let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
        let before = larder.document("null", "1.2.0").await.expect(200);
        let [archive, sums, signature] = urls(&larder).await;
        let old_archive = larder.get(&archive).await.expect(200).body;
        let old_files = [larder.get(&sums).await.expect(200).body, larder.get(&signature).await.expect(200).body];
        upstream.publish(null().size(SMALL_BYTES).edition(2).signed_by(&key));
        let stale = larder.document("null", "1.2.0").await.expect(200);
        assert!(
            stale.has_cache_status("detail=stale") && stale.body == before.body,
            "{}",
            stale.header("cache-status")
        );
        assert!(larder.get(&archive).await.expect(200).body == old_archive);
        let files = [larder.get(&sums).await.expect(200).body, larder.get(&signature).await.expect(200).body];
        assert_eq!(files, old_files);
        upstream.publish(null().size(SMALL_BYTES).edition(2));
        let path = larder.archive_path("null", "1.2.0").await;
        assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
    })
    .await;
}
