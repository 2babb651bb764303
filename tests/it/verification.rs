//! Wrong bytes and wrong proofs: everything that upstream can send in place of the truth; none of it is stored or
//! served.

use crate::support::larder::{Folder, Larder};
use crate::support::package_fixture::{LARGE, SMALL, TAIL};
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
    assert_eq!(folder.staged(), Vec::<std::path::PathBuf>::new());
}

async fn it_heals(upstream: &FakeUpstream, larder: &Larder, path: &str) {
    upstream.heal();
    let healed = larder.get(path).await.expect(200);
    assert!(healed.body == zip(upstream));
    assert_eq!(larder.folder.blobs().len(), 1);
    assert!(larder.folder.staged().is_empty());
}

/// DESIGN, promise 1: a small archive is verified before the status line.
#[tokio::test]
async fn a_small_archive_with_wrong_bytes_is_a_502_with_the_verdict() {
    for fault in [Fault::WrongBytes, Fault::WrongLastByte, Fault::Html] {
        let upstream = publishing(SMALL).await;
        let larder = Larder::mirroring(&upstream).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        upstream.fault(Target::Archive, fault.clone());
        let refused = larder.get(&path).await.expect(502);
        assert!(refused.text().contains("its verified SHA256SUMS say"), "{fault:?}: {}", refused.text());
        no_archive_is_kept(&larder.folder);
        it_heals(&upstream, &larder, &path).await;
    }
}

/// DESIGN, promise 3: wrong bytes never look complete.
#[tokio::test]
async fn a_large_archive_with_wrong_bytes_is_broken_off_before_its_tail() {
    for fault in [Fault::WrongBytes, Fault::WrongLastByte] {
        let upstream = publishing(LARGE).await;
        let larder = Larder::mirroring(&upstream).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        upstream.fault(Target::Archive, fault.clone());
        let received = larder.receive(&path).await;
        assert_eq!((received.status, received.is_whole), (200, false), "{fault:?}");
        assert!(received.body.len() <= zip(&upstream).len() - TAIL, "{fault:?}: {}", received.body.len());
        no_archive_is_kept(&larder.folder);
        it_heals(&upstream, &larder, &path).await;
        assert_eq!(upstream.count_of(Target::Archive), 2);
    }
}

/// DESIGN, promise 1: a page of a captive portal is not an archive, however large the archive would have been.
#[tokio::test]
async fn a_page_in_place_of_a_large_archive_is_a_502() {
    let upstream = publishing(LARGE).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::Html);
    larder.get(&path).await.expect(502);
    no_archive_is_kept(&larder.folder);
    it_heals(&upstream, &larder, &path).await;
}

fn unproven() -> [(Fault, &'static str); 6] {
    [
        (Fault::ArchiveNotInSums, "has no SHA-256 for"),
        (Fault::SumsChangedAfterSigning, "does not match SHA256SUMS"),
        (Fault::SignedByAnotherKey, "which the registry does not list"),
        (Fault::NoKeys, "lists no signing key"),
        (Fault::UnparsableKey, "cannot be used"),
        (Fault::WrongShasum, "the download document as"),
    ]
}

/// DESIGN, promise 2: nothing of an unproven set is answered.
#[tokio::test]
async fn without_a_stored_set_nothing_of_an_unverified_one_is_answered() {
    let upstream = publishing(SMALL).await;
    let [archive, sums, signature] = urls(&Larder::mirroring(&upstream).start().await).await;
    for (fault, verdict) in unproven() {
        let larder = Larder::mirroring(&upstream).start().await;
        upstream.fault(Target::Document, fault.clone());
        let refused = larder.document("null", "1.2.0").await.expect(502);
        assert!(refused.text().contains(verdict), "{fault:?}: {}", refused.text());
        for path in [&archive, &sums, &signature] {
            let refused = larder.get(path).await.expect(502);
            assert!(refused.text().contains(verdict), "{fault:?} {path}: {}", refused.text());
        }
        assert!(larder.folder.sets().is_empty(), "{fault:?}");
        no_archive_is_kept(&larder.folder);
        upstream.heal();
        assert_eq!(urls(&larder).await, [archive.clone(), sums.clone(), signature.clone()]);
        assert_eq!(larder.get(&sums).await.expect(200).body, upstream.sums_bytes("acme", "null", "1.2.0"));
        assert_eq!(larder.get(&signature).await.expect(200).body, upstream.signature_bytes("acme", "null", "1.2.0"));
        it_heals(&upstream, &larder, &archive).await;
    }
}

/// DESIGN, promise 6: a set that fails verification does not hide the verified one.
#[tokio::test]
async fn a_stored_set_stays_when_the_new_one_does_not_verify() {
    for (fault, _) in unproven() {
        let upstream = publishing(SMALL).await;
        let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
        let before = larder.document("null", "1.2.0").await.expect(200);
        let [archive, sums, signature] = urls(&larder).await;
        larder.get(&archive).await.expect(200);
        upstream.fault(Target::Document, fault.clone());
        let stale = larder.document("null", "1.2.0").await.expect(200);
        assert!(stale.has_cache_status("detail=stale"), "{fault:?}: {}", stale.header("cache-status"));
        assert_eq!(stale.body, before.body, "{fault:?}");
        assert!(larder.get(&archive).await.expect(200).body == zip(&upstream));
        assert_eq!(larder.get(&sums).await.expect(200).body, upstream.sums_bytes("acme", "null", "1.2.0"));
        assert_eq!(larder.get(&signature).await.expect(200).body, upstream.signature_bytes("acme", "null", "1.2.0"));
        upstream.heal();
        let healed = larder.document("null", "1.2.0").await.expect(200);
        assert!(healed.has_cache_status("fwd=stale; stored"), "{fault:?}: {}", healed.header("cache-status"));
        assert_eq!(healed.body, before.body);
    }
}

/// DESIGN, promise 1: what `verification` lets in where the registry lists no key.
#[tokio::test]
async fn a_set_without_keys_is_kept_only_where_the_policy_says_so() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().size(SMALL).without_keys());
    let strict = Larder::mirroring(&upstream).with("verification = \"signature\"").start().await;
    let refused = strict.document("null", "1.2.0").await.expect(502);
    assert!(refused.text().contains("lists no signing key"), "{}", refused.text());
    assert!(strict.folder.sets().is_empty());
    for policy in ["signature-if-keys", "checksum"] {
        let larder = Larder::mirroring(&upstream).with(&format!("verification = \"{policy}\"")).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        assert!(larder.get(&path).await.expect(200).body == zip(&upstream), "{policy}");
    }
}

/// DESIGN, promise 1: one listed key makes the signature count.
#[tokio::test]
async fn a_wrong_signature_is_let_in_by_the_checksum_policy_alone() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(null().size(SMALL).listed_keys(&[SigningKey::another()]));
    for (policy, status) in [("signature", 502), ("signature-if-keys", 502), ("checksum", 200)] {
        let larder = Larder::mirroring(&upstream).with(&format!("verification = \"{policy}\"")).start().await;
        larder.document("null", "1.2.0").await.expect(status);
        assert_eq!(larder.folder.sets().len(), usize::from(status == 200), "{policy}");
    }
}

/// DESIGN, promise 1: no policy lets other bytes in than SHA256SUMS names.
#[tokio::test]
async fn the_checksum_policy_still_refuses_wrong_bytes_and_wrong_sums() {
    let upstream = publishing(SMALL).await;
    let larder = Larder::mirroring(&upstream).with("verification = \"checksum\"").start().await;
    for fault in [Fault::ArchiveNotInSums, Fault::WrongShasum] {
        upstream.fault(Target::Document, fault);
        larder.document("null", "1.2.0").await.expect(502);
        upstream.heal();
    }
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::WrongBytes);
    larder.get(&path).await.expect(502);
    no_archive_is_kept(&larder.folder);
    it_heals(&upstream, &larder, &path).await;
}

/// DESIGN, promise 8: an upstream URL (here: with what may be a secret in its query) reaches no client, not even that
/// of a signature that is not there and need not be.
#[tokio::test]
async fn a_missing_signature_is_no_reason_to_tell_where_it_should_have_been() {
    let upstream = FakeUpstream::builder().signed_urls().start().await;
    upstream.publish(null().size(SMALL));
    upstream.fault(Target::Signature, Fault::Status(404));
    let larder = Larder::mirroring(&upstream).with("verification = \"checksum\"").start().await;
    let document = larder.document("null", "1.2.0").await.expect(200);
    assert!(!document.text().contains(&upstream.origin()), "{}", document.text());
    assert!(!document.text().contains("sig="), "{}", document.text());
    let signature = document.json()["shasums_signature_url"].as_str().unwrap().to_owned();
    larder.get(&signature).await.expect(404);
    let path = larder.archive_path("null", "1.2.0").await;
    assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
}

/// DESIGN, promise 1: a weak digest proves nothing, and neither does a revoked key.
#[tokio::test]
async fn a_weak_digest_or_a_revoked_key_proves_nothing() {
    for (key, verdict) in [(SigningKey::weak(), "too weak"), (SigningKey::revoked(), "has been revoked")] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(null().size(SMALL).signed_by(&key));
        let larder = Larder::mirroring(&upstream).start().await;
        let refused = larder.document("null", "1.2.0").await.expect(502);
        assert!(refused.text().contains(verdict), "{}", refused.text());
        assert!(larder.folder.sets().is_empty());
        upstream.publish(null().size(SMALL));
        let path = larder.archive_path("null", "1.2.0").await;
        it_heals(&upstream, &larder, &path).await;
    }
}

/// The table: neither replaces the stored set.
#[tokio::test]
async fn a_weak_digest_or_a_revoked_key_does_not_replace_the_stored_set() {
    for key in [SigningKey::weak(), SigningKey::revoked()] {
        let upstream = publishing(SMALL).await;
        let larder = Larder::mirroring(&upstream).nothing_stays_fresh().start().await;
        let before = larder.document("null", "1.2.0").await.expect(200);
        let [archive, sums, signature] = urls(&larder).await;
        let old = larder.get(&archive).await.expect(200).body;
        let old_files = [larder.get(&sums).await.expect(200).body, larder.get(&signature).await.expect(200).body];
        upstream.publish(null().size(SMALL).edition(2).signed_by(&key));
        let stale = larder.document("null", "1.2.0").await.expect(200);
        assert!(
            stale.has_cache_status("detail=stale") && stale.body == before.body,
            "{}",
            stale.header("cache-status")
        );
        assert!(larder.get(&archive).await.expect(200).body == old);
        let files = [larder.get(&sums).await.expect(200).body, larder.get(&signature).await.expect(200).body];
        assert_eq!(files, old_files);
        upstream.publish(null().size(SMALL).edition(2));
        let path = larder.archive_path("null", "1.2.0").await;
        assert!(larder.get(&path).await.expect(200).body == zip(&upstream));
    }
}
