//! The operator command `accept`, for versions that upstream republished with a foreign key or unsigned.

use std::time::Duration;

use larder::clock::Clock;

use crate::support::larder::Larder;
use crate::support::null_provider::{
    NULL, NULL_120, PACKAGE, always_revalidating, edition, install, upstream_with, zip,
};
use crate::support::upstream::{Fault, SigningKey, Target, sha256_hex};

/// Until `accept`, a version that an unknown key republished is 502, or its old proof set is served.
#[tokio::test]
async fn accept_stores_a_version_that_an_unknown_key_republished() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = always_revalidating(&upstream).clock(&clock).start().await;
    let (_, old_path, old_zip) = install(&larder).await;
    let file = "terraform-provider-null_1.2.0_linux_amd64.zip";
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    assert!(install(&larder).await.2 == old_zip);

    let report = larder.run_command("accept", NULL_120).await;
    assert_eq!((report.outcomes(), report.ok), (vec![(PACKAGE, "accepted")], true), "{report}");
    let item = &report.items[0];
    let changed =
        serde_json::json!({"file": file, "before": [sha256_hex(&old_zip)], "now": sha256_hex(&zip(&upstream))});
    assert!(item.files.as_ref().unwrap().contains(&changed), "{report}");
    let keys_before = item.keys_before.as_ref().unwrap();
    assert!(keys_before.len() == 1 && !keys_before.contains(item.key.as_ref().unwrap()), "{report}");

    let (document, _, new_zip) = install(&larder).await;
    assert!(document.has_cache_status("fwd=stale; stored") && new_zip == zip(&upstream));
    clock.advance(Duration::from_secs(23 * 3600));
    assert!(larder.get(&old_path).await.expect(200).body == old_zip);
    assert_eq!(larder.run_command("accept", NULL_120).await.outcomes(), [(PACKAGE, "nothing_to_accept")]);
}

/// The accepted key may republish the version again without another accept.
#[tokio::test]
async fn an_accepted_key_needs_no_second_accept() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let key = SigningKey::new_key();
    upstream.publish(edition(2).signed_by(&key));
    larder.run_command("accept", NULL_120).await;
    upstream.publish(edition(3).signed_by(&key));
    assert!(install(&larder).await.2 == zip(&upstream));
    upstream.publish(edition(4).signed_by(&SigningKey::new_key()));
    assert!(install(&larder).await.2 != zip(&upstream));
}

/// The version is 502 where nothing is stored. Its platforms are then found in the version list only.
#[tokio::test]
async fn accept_stores_a_version_that_was_not_stored() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.run_command("purge", NULL).await;
    upstream.publish(edition(2).platform("linux_amd64").platform("darwin_arm64").signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(502);

    let report = larder.run_command("accept", "acme/null@< 1.0").await;
    assert_eq!(report.items, []);
    let report = larder.run_command("accept", NULL_120).await;
    let other_platform = "registry.terraform.io/acme/null 1.2.0 (darwin_arm64)";
    assert_eq!(report.outcomes(), [(other_platform, "accepted"), (PACKAGE, "accepted")], "{report}");
    upstream.forget_requests();
    assert!(install(&larder).await.2 == zip(&upstream));
    assert_eq!(upstream.count_of(Target::Document), 0, "the accepted proof set was fetched again");
    let unlisted = larder.run_command("accept", "acme/null@9.9.9").await;
    assert!(unlisted.errors[0].contains("lists no registry.terraform.io/acme/null@9.9.9"));
}

/// A stored platform may be gone upstream, and a listed one may never have been stored: neither stops the other.
#[tokio::test]
async fn accept_of_a_version_fetches_stored_and_listed_platforms() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2).platform("darwin_arm64").signed_by(&SigningKey::new_key()));
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(502);
    let report = larder.run_command("accept", NULL_120).await;
    let other_platform = "registry.terraform.io/acme/null 1.2.0 (darwin_arm64)";
    assert_eq!(report.outcomes(), [(other_platform, "accepted"), (PACKAGE, "failed")], "{report}");
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
}

/// `accept` applies to unsigned sets too.
#[tokio::test]
async fn accept_stores_an_unsigned_version_where_checksums_suffice() {
    let upstream = upstream_with(edition(1).without_keys()).await;
    let larder = always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
    let (_, _, old_zip) = install(&larder).await;
    upstream.publish(edition(2).without_keys());
    assert!(install(&larder).await.2 == old_zip);
    let report = larder.run_command("accept", NULL).await;
    assert_eq!((report.outcomes(), &report.items[0].key), (vec![(PACKAGE, "accepted")], &None));
    assert!(install(&larder).await.2 == zip(&upstream));
}

/// Promise 1: a set that does not verify cannot be accepted.
#[tokio::test]
async fn accept_refuses_a_proof_set_that_does_not_verify() {
    for fault in
        [Fault::SumsChangedAfterSigning, Fault::SignedByAnotherKey, Fault::ArchiveNotInSums, Fault::Status(503)]
    {
        let upstream = upstream_with(edition(1)).await;
        let larder = always_revalidating(&upstream).start().await;
        let (_, _, old_zip) = install(&larder).await;
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        upstream.fault(Target::Document, fault.clone());
        let report = larder.run_command("accept", NULL_120).await;
        assert_eq!((report.outcomes(), report.ok), (vec![(PACKAGE, "failed")], false), "{fault:?}: {report}");
        upstream.clear_faults();
        assert!(install(&larder).await.2 == old_zip, "{fault:?}");
    }
}
