//! Commands in a store with unreadable or lost records: neither `purge` nor eviction ever loses first-seen information.

use std::path::{Path, PathBuf};

use crate::support::eventually;
use crate::support::larder::{Folder, Larder};
use crate::support::null_provider::{LIST, NULL, NULL_120, PACKAGE, edition, install, upstream_with};
use crate::support::until;
use crate::support::upstream::{Provider, SigningKey, Target};

/// The path below the store, which an error names whatever keeps the record.
fn below(record: &Path) -> String {
    record.display().to_string().rsplit_once("/v1/").unwrap().1.to_owned()
}

fn file_containing<'a>(files: &'a [PathBuf], part: &str) -> &'a PathBuf {
    files.iter().find(|file| file.to_string_lossy().contains(part)).unwrap()
}

/// A version that another signing key republished is never served, even if its first-seen record was lost before the
/// purge.
#[tokio::test]
async fn purge_writes_first_seen_records_before_it_removes_proof_sets() {
    for lost in ["removed", "damaged"] {
        // Each edition of acme/null 1.2.0 has other bytes.
        let upstream = upstream_with(edition(1)).await;
        let larder = Larder::mirroring(&upstream).start().await;
        install(&larder).await;
        let seen = larder.folder.files("seen").remove(0);
        match lost {
            "removed" => larder.folder.lose(&seen),
            _ => larder.folder.damage(&seen),
        }
        let report = larder.run_command("purge", NULL).await;
        assert_eq!((report.items[0].seen_is_kept, report.ok), (Some(true), true), "{lost}: {report}");
        assert!(larder.folder.proof_sets().is_empty() && larder.folder.blobs().is_empty(), "{lost}");
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        let refused = larder.document("null", "1.2.0").await.expect(502);
        assert!(refused.text().contains("larder accept"), "{lost}: {}", refused.text());
    }
}

/// Eviction removes a proof set only after its first-seen record is written.
#[tokio::test]
async fn eviction_writes_the_first_seen_record_before_it_removes_a_proof_set() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(Provider::new("acme", "other").edition(7));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let folder = larder.stop().await;
    folder.lose(&folder.files("seen")[0]);
    // A document that fills the store and is evicted last: the index is rebuilt with the times of the files, and this
    // file is the newest.
    let documents = folder.path().join("v1/documents");
    let large = documents.join("registry.terraform.io/providers/acme/large/versions");
    std::fs::create_dir_all(large.parent().unwrap()).unwrap();
    std::fs::write(&large, vec![b'x'; 2 << 20]).unwrap();
    let last = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&large).unwrap().set_modified(last).unwrap();
    folder.lose_index();
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").store_at(&folder).start().await;
    larder.document("other", "1.2.0").await.expect(200);
    let is_stored = || folder.proof_sets().iter().any(|set| set.to_string_lossy().contains("/null/"));
    eventually("the proof set is evicted after the index is rebuilt", async || (!is_stored()).then_some(())).await;
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(502);
}

/// The first-seen record is also written first when upstream deleted the version.
#[tokio::test]
async fn a_deleted_versions_first_seen_record_is_written_before_it_is_evicted() {
    let upstream = upstream_with(edition(1)).await;
    let always_revalidate = "keep_gone = false\nfresh = { download = \"0s\", not_found = \"0s\" }";
    let larder = Larder::mirroring(&upstream).upstream_lines(always_revalidate).start().await;
    install(&larder).await;
    larder.folder.lose(&larder.folder.files("seen")[0]);
    upstream.withdraw("acme", "null", "1.2.0");
    larder.document("null", "1.2.0").await.expect(404);
    assert!(larder.folder.proof_sets().is_empty());
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(502);
}

/// The first-seen record of acme/null 1.2.0.
fn first_seen_record(folder: &Folder) -> PathBuf {
    folder.files("seen").into_iter().find(|file| file.ends_with("null/1.2.0.json")).unwrap()
}

#[tokio::test]
async fn purge_removes_nothing_where_a_first_seen_record_cannot_be_read() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let seen = first_seen_record(&larder.folder);
    let original = larder.folder.replace_with_newer(&seen);
    let report = larder.run_command("purge", NULL).await;
    let error = &report.errors[0];
    assert!(!report.ok && error.contains(&below(&seen)), "{report}");
    let folder = &larder.folder;
    assert_eq!((folder.proof_sets().len(), folder.blobs().len(), folder.files("names").len()), (1, 1, 1));
    folder.put_back(&seen, &original);
    assert!(larder.run_command("purge", NULL).await.ok);
    assert!(folder.proof_sets().is_empty());
}

/// Promise 10: `verify` rebuilds a damaged record from the stored proof sets, before they can be evicted.
#[tokio::test]
async fn verify_rewrites_a_first_seen_record_at_once() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let seen = first_seen_record(&larder.folder);
    larder.folder.damage(&seen);
    let output = crate::support::verify_steps::verify(&larder).await;
    assert_eq!(output[1]["record"], "the first-seen record of registry.terraform.io/acme/null 1.2.0", "{output:?}");
    assert_eq!(output.last().unwrap()["wrong"], 1, "{output:?}");
    assert!(larder.folder.record(&seen).unwrap().contains("terraform-provider-null_1.2.0_linux_amd64.zip"));
    assert_eq!(crate::support::verify_steps::verify(&larder).await.last().unwrap()["wrong"], 0);
}

/// An unreadable name record may list any archive, so nothing is changed, and the error names the record.
#[tokio::test]
async fn purge_changes_nothing_while_a_name_record_cannot_be_read() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(Provider::new("acme", "other").edition(7));
    let larder = Larder::mirroring(&upstream).start().await;
    let (_, path, _) = install(&larder).await;
    larder.get(&larder.archive_path("other", "1.2.0").await).await.expect(200);
    let names = larder.folder.files("names");
    until("the name records are complete", async || larder.folder.has_all_hashes()).await;
    let other = file_containing(&names, "/other/");
    // An index rebuilt from the files cannot know which archive an unreadable record lists.
    let folder = larder.stop().await;
    let original = folder.replace_with_newer(other);
    folder.lose_index();
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let report = larder.run_command("purge", NULL).await;
    let error = &report.errors[0];
    assert!(!report.ok && error.contains(&below(other)), "{report}");
    assert_eq!((folder.proof_sets().len(), folder.blobs().len(), folder.files("names").len()), (2, 2, 2));
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
    folder.put_back(other, &original);
    larder.stop().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    assert_eq!(larder.run_command("purge", NULL).await.items[0].archives, Some(1));
}

/// An unreadable set is removed like the others, and the response lists it.
#[tokio::test]
async fn purge_removes_and_reports_an_unreadable_proof_set() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(5).version("1.3.0"));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.document("null", "1.3.0").await.expect(200);
    let sets = larder.folder.proof_sets();
    larder.folder.replace_with_newer(file_containing(&sets, "1.2.0"));
    let report = larder.run_command("purge", NULL).await;
    let item = &report.items[0];
    assert_eq!((item.archives, item.seen_is_kept, report.ok), (Some(1), Some(true), false));
    let unreadable = item.unreadable.as_ref().unwrap();
    assert!(unreadable.len() == 1 && unreadable[0].as_str().unwrap().contains("1.2.0 (linux_amd64)"), "{report}");
    assert!(larder.folder.proof_sets().is_empty() && larder.folder.blobs().is_empty());
    upstream.forget_requests();
    install(&larder).await;
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 1));
}

/// Without a first-seen record, the proof set is the only evidence of the verified digests. It stays stored, and the
/// response lists it.
#[tokio::test]
async fn purge_leaves_an_unreadable_proof_set_that_is_the_only_record_of_its_digests() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let set = larder.folder.proof_sets().remove(0);
    larder.folder.lose(&larder.folder.files("seen")[0]);
    let original = larder.folder.replace_with_newer(&set);
    let report = larder.run_command("purge", NULL_120).await;
    assert!(!report.ok && report.items[0].left.as_ref().unwrap().len() == 1, "{report}");
    assert_eq!((larder.folder.proof_sets().len(), larder.folder.blobs().len()), (1, 1));
    larder.folder.put_back(&set, &original);
    assert!(larder.run_command("purge", NULL_120).await.ok);
    assert!(larder.folder.proof_sets().is_empty() && larder.folder.blobs().is_empty());
}

#[tokio::test]
async fn refresh_continues_past_an_unreadable_proof_set() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(5).version("1.3.0"));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.document("null", "1.3.0").await.expect(200);
    let sets = larder.folder.proof_sets();
    let unreadable = file_containing(&sets, "1.2.0");
    larder.folder.replace_with_newer(unreadable);
    upstream.publish(edition(6).version("1.3.0"));
    let report = larder.run_command("refresh", NULL).await;
    let other_version = "registry.terraform.io/acme/null 1.3.0 (linux_amd64)";
    let expected = vec![(LIST, "unchanged"), (PACKAGE, "failed"), (other_version, "new")];
    assert_eq!((report.outcomes(), report.ok), (expected, false), "{report}");
    assert!(report.items[1].error.as_deref().unwrap().contains(unreadable.to_str().unwrap()), "{report}");
}
