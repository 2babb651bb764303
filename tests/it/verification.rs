//! Wrong bytes and wrong proofs: everything that upstream can send in place of the truth; none of it is stored or
//! served.

use crate::support::larder::{Folder, Larder};
use crate::support::package_fixture::{LARGE_BYTES, PackageFixture, SMALL_BYTES, TAIL_BYTES};
use crate::support::rows::each_row;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

fn null() -> Provider {
    Provider::new("acme", "null")
}

async fn publishing(size: usize) -> FakeUpstream {
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

fn no_archive_is_kept(folder: &Folder) {
    assert_eq!(folder.blobs(), Vec::<std::path::PathBuf>::new());
    assert_eq!(folder.partial_downloads(), Vec::<std::path::PathBuf>::new());
}

async fn it_heals(upstream: &FakeUpstream, larder: &Larder, path: &str) {
    upstream.clear_faults();
    let healed = larder.get(path).await.expect(200);
    assert!(healed.body == zip(upstream));
    assert_eq!(larder.folder.blobs().len(), 1);
    assert!(larder.folder.partial_downloads().is_empty());
}

/// Promise 1: a small archive is verified before the status line, and a page of a captive portal is not an archive,
/// however large the archive would have been.
#[tokio::test]
async fn wrong_bytes_that_are_found_before_the_status_line_are_a_502_with_the_verdict() {
    let rows = [
        ("a wrong byte in a small archive", (SMALL_BYTES, Fault::WrongBytes)),
        ("a wrong last byte in a small archive", (SMALL_BYTES, Fault::WrongLastByte)),
        ("a page in place of a small archive", (SMALL_BYTES, Fault::Html)),
        ("a page in place of a large archive", (LARGE_BYTES, Fault::Html)),
    ];
    each_row(rows, async |(size, fault)| {
        let fixture = PackageFixture::with_archive_size(size).await;
        fixture.upstream.fault(Target::Archive, fault);
        let refused = fixture.larder.get(&fixture.path).await.expect(502).text();
        assert!(refused.contains("its verified SHA256SUMS say"), "{refused}");
        no_archive_is_kept(fixture.folder());
        fixture.assert_recovers().await;
    })
    .await;
}

/// Promise 3: wrong bytes never look complete.
#[tokio::test]
async fn a_large_archive_with_wrong_bytes_is_broken_off_before_its_tail() {
    let rows = [("a wrong byte in the middle", Fault::WrongBytes), ("a wrong last byte", Fault::WrongLastByte)];
    each_row(rows, async |fault| {
        let fixture = PackageFixture::with_archive_size(LARGE_BYTES).await;
        fixture.upstream.fault(Target::Archive, fault);
        let received = fixture.larder.receive(&fixture.path).await;
        assert_eq!((received.status, received.is_complete), (200, false));
        assert!(received.body.len() <= fixture.zip.len() - TAIL_BYTES, "{}", received.body.len());
        no_archive_is_kept(fixture.folder());
        fixture.assert_recovers().await;
        assert_eq!(fixture.upstream.count_of(Target::Archive), 2);
    })
    .await;
}

/// Faults that leave a set unproven: the name of each, the fault, and the verdict.
fn unproven() -> [(&'static str, (Fault, &'static str)); 6] {
    [
        ("sums without the archive", (Fault::ArchiveNotInSums, "has no SHA-256 for")),
        ("sums changed after they were signed", (Fault::SumsChangedAfterSigning, "does not match SHA256SUMS")),
        ("a signature by another key", (Fault::SignedByAnotherKey, "which the registry does not list")),
        ("no key", (Fault::NoKeys, "lists no signing key")),
        ("a key that cannot be parsed", (Fault::UnparsableKey, "cannot be used")),
        ("a shasum of something else", (Fault::WrongShasum, "the download document as")),
    ]
}

/// Promise 2: nothing of an unproven set is answered.
#[tokio::test]
async fn without_a_stored_set_nothing_of_an_unverified_one_is_answered() {
    let upstream = publishing(SMALL_BYTES).await;
    let [archive, sums, signature] = urls(&Larder::mirroring(&upstream).start().await).await;
    each_row(unproven(), async |(fault, verdict)| {
        let larder = Larder::mirroring(&upstream).start().await;
        upstream.fault(Target::Document, fault);
        let refused = larder.document("null", "1.2.0").await.expect(502).text();
        assert!(refused.contains(verdict), "{refused}");
        for path in [&archive, &sums, &signature] {
            let refused = larder.get(path).await.expect(502).text();
            assert!(refused.contains(verdict), "{path}: {refused}");
        }
        assert!(larder.folder.proof_sets().is_empty());
        no_archive_is_kept(&larder.folder);
        upstream.clear_faults();
        assert_eq!(urls(&larder).await, [archive.clone(), sums.clone(), signature.clone()]);
        assert_eq!(larder.get(&sums).await.expect(200).body, upstream.sums_bytes("acme", "null", "1.2.0"));
        assert_eq!(larder.get(&signature).await.expect(200).body, upstream.signature_bytes("acme", "null", "1.2.0"));
        it_heals(&upstream, &larder, &archive).await;
    })
    .await;
}

/// Promise 6: a set that fails verification does not hide the verified one.
#[tokio::test]
async fn a_stored_set_stays_when_the_new_one_does_not_verify() {
    each_row(unproven(), async |(fault, _)| {
        let upstream = publishing(SMALL_BYTES).await;
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
        let healed = larder.document("null", "1.2.0").await.expect(200);
        assert!(healed.has_cache_status("fwd=stale; stored"), "{}", healed.header("cache-status"));
        assert_eq!(healed.body, before.body);
    })
    .await;
}

/// Promise 1: what `verification` lets in where the registry lists no key; one listed key makes the signature count.
#[tokio::test]
async fn a_set_that_no_listed_key_signed_is_kept_only_where_the_policy_says_so() {
    let no_key = null().size(SMALL_BYTES).without_keys();
    let another = null().size(SMALL_BYTES).listed_keys(&[SigningKey::new_key()]);
    let not_listed = Some("which the registry does not list");
    let rows = [
        ("no key under signature", (&no_key, "signature", Some("lists no signing key"))),
        ("no key under signature-if-keys", (&no_key, "signature-if-keys", None)),
        ("no key under checksum", (&no_key, "checksum", None)),
        ("another key under signature", (&another, "signature", not_listed)),
        ("another key under signature-if-keys", (&another, "signature-if-keys", not_listed)),
        ("another key under checksum", (&another, "checksum", None)),
    ];
    each_row(rows, async |(provider, policy, verdict)| {
        let upstream = FakeUpstream::start().await;
        upstream.publish(provider.clone());
        let larder = Larder::mirroring(&upstream).upstream_lines(&format!("verification = \"{policy}\"")).start().await;
        if let Some(verdict) = verdict {
            let refused = larder.document("null", "1.2.0").await.expect(502).text();
            assert!(refused.contains(verdict), "{refused}");
            assert!(larder.folder.proof_sets().is_empty());
        } else {
            let path = larder.archive_path("null", "1.2.0").await;
            assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
            assert_eq!(larder.folder.proof_sets().len(), 1);
        }
    })
    .await;
}

/// Promise 1: no policy lets other bytes in than SHA256SUMS names.
#[tokio::test]
async fn the_checksum_policy_still_refuses_wrong_bytes_and_wrong_sums() {
    let upstream = publishing(SMALL_BYTES).await;
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
    no_archive_is_kept(&larder.folder);
    it_heals(&upstream, &larder, &path).await;
}

/// Promise 8: an upstream URL (here: with what may be a secret in its query) reaches no client, not even that of a
/// signature that is not there and need not be.
#[tokio::test]
async fn a_missing_signature_is_no_reason_to_tell_where_it_should_have_been() {
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
    each_row(rows, async |(key, verdict)| {
        let upstream = FakeUpstream::start().await;
        upstream.publish(null().size(SMALL_BYTES).signed_by(&key));
        let larder = Larder::mirroring(&upstream).start().await;
        let refused = larder.document("null", "1.2.0").await.expect(502);
        assert!(refused.text().contains(verdict), "{}", refused.text());
        assert!(larder.folder.proof_sets().is_empty());
        upstream.publish(null().size(SMALL_BYTES));
        let path = larder.archive_path("null", "1.2.0").await;
        it_heals(&upstream, &larder, &path).await;
    })
    .await;
}

/// The table: neither replaces the stored set.
#[tokio::test]
async fn a_weak_digest_or_a_revoked_key_does_not_replace_the_stored_set() {
    let rows = [("a weak digest", SigningKey::new_sha1_key()), ("a revoked key", SigningKey::new_revoked_key())];
    each_row(rows, async |key| {
        let upstream = publishing(SMALL_BYTES).await;
        let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
        let before = larder.document("null", "1.2.0").await.expect(200);
        let [archive, sums, signature] = urls(&larder).await;
        let old = larder.get(&archive).await.expect(200).body;
        let old_files = [larder.get(&sums).await.expect(200).body, larder.get(&signature).await.expect(200).body];
        upstream.publish(null().size(SMALL_BYTES).edition(2).signed_by(&key));
        let stale = larder.document("null", "1.2.0").await.expect(200);
        assert!(
            stale.has_cache_status("detail=stale") && stale.body == before.body,
            "{}",
            stale.header("cache-status")
        );
        assert!(larder.get(&archive).await.expect(200).body == old);
        let files = [larder.get(&sums).await.expect(200).body, larder.get(&signature).await.expect(200).body];
        assert_eq!(files, old_files);
        upstream.publish(null().size(SMALL_BYTES).edition(2));
        let path = larder.archive_path("null", "1.2.0").await;
        assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
    })
    .await;
}
