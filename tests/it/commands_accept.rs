//! The operator command `accept`, for versions that upstream republished with a foreign key or unsigned (section 4).

use std::time::Duration;

use larder::clock::Clock;

use crate::support::larder::Larder;
use crate::support::null_provider::{NULL, NULL_120, PACKAGE, edition, impatient, install, upstream_with, zip};
use crate::support::upstream::{Fault, SigningKey, Target, sha256_hex};

/// DESIGN 4: such a version is 502, or the old set is served, until `accept`.
#[tokio::test]
async fn accept_stores_a_version_that_a_stranger_republished() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = impatient(&upstream).clock(&clock).start().await;
    let (_, old_path, old) = install(&larder).await;
    let file = "terraform-provider-null_1.2.0_linux_amd64.zip";
    upstream.publish(edition(2).signed_by(&SigningKey::another()));
    assert!(install(&larder).await.2 == old);

    let done = larder.tell("accept", NULL_120).await;
    assert_eq!((done.outcomes(), done.ok), (vec![(PACKAGE, "accepted")], true), "{done}");
    let item = &done.items[0];
    let changed = serde_json::json!({"file": file, "before": [sha256_hex(&old)], "now": sha256_hex(&zip(&upstream))});
    assert!(item.files.as_ref().unwrap().contains(&changed), "{done}");
    let before = item.keys_before.as_ref().unwrap();
    assert!(before.len() == 1 && !before.contains(item.key.as_ref().unwrap()), "{done}");

    let (document, _, new) = install(&larder).await;
    assert!(document.has_cache_status("fwd=stale; stored") && new == zip(&upstream));
    clock.advance(Duration::from_secs(23 * 3600));
    assert!(larder.get(&old_path).await.expect(200).body == old);
    assert_eq!(larder.tell("accept", NULL_120).await.outcomes(), [(PACKAGE, "nothing_to_accept")]);
}

/// The accepted key may republish the version again without another accept.
#[tokio::test]
async fn the_key_that_was_accepted_is_known_afterwards() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    install(&larder).await;
    let key = SigningKey::another();
    upstream.publish(edition(2).signed_by(&key));
    larder.tell("accept", NULL_120).await;
    upstream.publish(edition(3).signed_by(&key));
    assert!(install(&larder).await.2 == zip(&upstream));
    upstream.publish(edition(4).signed_by(&SigningKey::another()));
    assert!(install(&larder).await.2 != zip(&upstream));
}

/// DESIGN 4: the version is 502 where nothing is stored. Its platforms are then found in the version list only.
#[tokio::test]
async fn accept_stores_a_version_that_was_not_stored() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.tell("purge", NULL).await;
    upstream.publish(edition(2).platform("linux_amd64").platform("darwin_arm64").signed_by(&SigningKey::another()));
    larder.document("null", "1.2.0").await.expect(502);

    let done = larder.tell("accept", "acme/null@< 1.0").await;
    assert_eq!(done.items, []);
    let done = larder.tell("accept", NULL_120).await;
    let other = "registry.terraform.io/acme/null 1.2.0 (darwin_arm64)";
    assert_eq!(done.outcomes(), [(other, "accepted"), (PACKAGE, "accepted")], "{done}");
    upstream.forget_requests();
    assert!(install(&larder).await.2 == zip(&upstream));
    assert_eq!(upstream.count_of(Target::Document), 0, "what was accepted was not kept");
    let unlisted = larder.tell("accept", "acme/null@9.9.9").await;
    assert!(unlisted.errors[0].contains("lists no registry.terraform.io/acme/null@9.9.9"));
}

/// A stored platform may be gone upstream, and a listed one may never have been stored: neither stops the other.
#[tokio::test]
async fn accept_of_a_version_fetches_stored_and_listed_platforms() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2).platform("darwin_arm64").signed_by(&SigningKey::another()));
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(502);
    let done = larder.tell("accept", NULL_120).await;
    let other = "registry.terraform.io/acme/null 1.2.0 (darwin_arm64)";
    assert_eq!(done.outcomes(), [(other, "accepted"), (PACKAGE, "failed")], "{done}");
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
}

/// DESIGN 4: `accept` applies to unsigned sets too.
#[tokio::test]
async fn accept_stores_an_unsigned_version_where_checksums_suffice() {
    let upstream = upstream_with(edition(1).without_keys()).await;
    let larder = impatient(&upstream).with("verification = \"signature-if-keys\"").start().await;
    let (_, _, old) = install(&larder).await;
    upstream.publish(edition(2).without_keys());
    assert!(install(&larder).await.2 == old);
    let done = larder.tell("accept", NULL).await;
    assert_eq!((done.outcomes(), &done.items[0].key), (vec![(PACKAGE, "accepted")], &None));
    assert!(install(&larder).await.2 == zip(&upstream));
}

/// DESIGN, promise 1: a set that does not verify cannot be accepted.
#[tokio::test]
async fn accept_takes_nothing_that_does_not_verify() {
    for fault in
        [Fault::SumsChangedAfterSigning, Fault::SignedByAnotherKey, Fault::ArchiveNotInSums, Fault::Status(503)]
    {
        let upstream = upstream_with(edition(1)).await;
        let larder = impatient(&upstream).start().await;
        let (_, _, old) = install(&larder).await;
        upstream.publish(edition(2).signed_by(&SigningKey::another()));
        upstream.fault(Target::Document, fault.clone());
        let done = larder.tell("accept", NULL_120).await;
        assert_eq!((done.outcomes(), done.ok), (vec![(PACKAGE, "failed")], false), "{fault:?}: {done}");
        upstream.heal();
        assert!(install(&larder).await.2 == old, "{fault:?}");
    }
}
