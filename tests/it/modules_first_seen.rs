//! Damaged first-seen records of modules, and records under another spelling of the address: no client gets another
//! tree before an operator accepts it.

use serde_json::{Value, json};

use crate::support::git_module_fixture::{ModuleLocation, download_module, download_path};
use crate::support::http::get;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, noise, tar_gz, unpack_tar_gz};
use crate::support::reports::CommandItem;
use crate::support::verify_steps::verify;

const MODULE: &str = "acme/one/test@1.0.0";

async fn alarms(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()["alarms"].clone()
}

/// True if an alarm reports that the record of acme/one/test 1.0.0 is damaged.
async fn is_reported(larder: &Larder) -> bool {
    let resolve = format!("larder accept {HOST}/{MODULE}");
    let alarms = alarms(larder).await;
    alarms
        .as_array()
        .unwrap()
        .iter()
        .any(|alarm| alarm["kind"] == "damaged-record" && alarm["resolve"] == resolve.as_str())
}

/// Publishes another tree of acme/one/test 1.0.0 at the same URL.
fn publish_changed_module(fixture: &ModuleFixture) {
    fixture.file("one.tar.gz", &tar_gz(&[("main.tf", b"# changed\n")]));
}

/// Accepts a module; returns the item of the report.
async fn accept(larder: &Larder, subject: &str) -> CommandItem {
    larder.run_command("accept", subject).await.items[0].clone()
}

/// A closed store with a first-seen record of acme/one/test 1.0.0 and without its archive.
async fn store_with_record_only(fixture: &ModuleFixture) -> Folder {
    let larder = fixture.larder().start().await;
    download_module(larder.base(), "one").await;
    larder.run_command("purge", MODULE).await;
    let folder = larder.stop().await;
    assert!(folder.blobs().is_empty() && folder.files("names").is_empty());
    folder
}

/// A damaged record still shows that the module was seen before: even after a restart, larder does not record the next
/// tree as the first one.
#[tokio::test]
async fn a_module_with_a_damaged_first_seen_record_is_refused_until_it_is_accepted() {
    for damaged in [&b""[..], b"{}\n{}", b"\0\0\0\0\0\0\0\0"] {
        let fixture = ModuleFixture::with_one_module().await;
        let folder = store_with_record_only(&fixture).await;
        std::fs::write(&folder.files("seen")[0], damaged).unwrap();
        publish_changed_module(&fixture);
        for _ in 0..2 {
            let larder = fixture.larder_on(&folder).start().await;
            for path in [download_path("one"), format!("/archive/{HOST}/modules/acme/one/test/1.0.0/module.tar.gz")] {
                let refused = larder.get(&path).await.expect(502).text();
                assert!(
                    refused.contains("damaged") && refused.contains(&format!("larder accept {HOST}/{MODULE}")),
                    "{refused}"
                );
            }
            assert!(folder.blobs().is_empty() && folder.partial_downloads().is_empty());
            assert!(is_reported(&larder).await);
            larder.stop().await;
        }
        let larder = fixture.larder_on(&folder).start().await;
        // An accept of the module without a version also resolves the damaged record.
        let item = accept(&larder, "acme/one/test").await;
        assert_eq!((item.outcome.as_deref(), &item.tree_before), (Some("accepted_tree"), &None), "{item:?}");
        let (_, archive) = download_module(larder.base(), "one").await;
        assert_eq!(unpack_tar_gz(&archive)["main.tf"], b"# changed\n");
        assert_eq!(alarms(&larder).await, json!([]));
        assert_eq!(accept(&larder, MODULE).await.outcome.as_deref(), Some("nothing_to_accept"));
    }
}

/// An archive's tree is recorded before a purge or an eviction removes the archive.
#[tokio::test]
async fn a_modules_first_seen_record_is_written_before_its_archive_is_evicted() {
    for is_purged in [true, false] {
        let fixture = ModuleFixture::start().await;
        for (seed, name) in ["one", "two", "three"].into_iter().enumerate() {
            fixture.publish_archive(name, &tar_gz(&[("noise", &noise(seed as u32, 450_000))]));
        }
        let larder = fixture.larder().store("max_size = \"1MiB\"").start().await;
        let (first, _) = download_module(larder.base(), "one").await;
        larder.folder.damage(&larder.folder.files("seen")[0]);
        if is_purged {
            larder.run_command("purge", MODULE).await;
        } else {
            download_module(larder.base(), "two").await;
            download_module(larder.base(), "three").await;
            assert_eq!(larder.metric("larder_evictions_total").await, 1.0);
        }
        assert!(ModuleLocation::of(&larder.get(&download_path("one")).await) == first, "purged: {is_purged}");
        larder.run_command("purge", MODULE).await;
        publish_changed_module(&fixture);
        let refused = larder.get(&download_path("one")).await.expect(502).text();
        assert!(refused.contains("upstream has moved it"), "{refused}");
    }
}

/// `verify` reports the damage and does not treat the module as new.
#[tokio::test]
async fn verify_reports_a_damaged_first_seen_record_and_leaves_the_module_refused() {
    let fixture = ModuleFixture::with_one_module().await;
    let folder = store_with_record_only(&fixture).await;
    folder.damage(&folder.files("seen")[0]);
    let larder = fixture.larder_on(&folder).start().await;
    for _ in 0..2 {
        let steps = verify(&larder).await;
        let step = steps.iter().find(|step| step["step"] == "unreadable").unwrap_or_else(|| panic!("{steps:?}"));
        assert!(step["error"].as_str().unwrap().contains("larder accept"), "{step}");
        assert!(is_reported(&larder).await);
    }
    larder.get(&download_path("one")).await.expect(502);
    accept(&larder, MODULE).await;
    assert!(verify(&larder).await.iter().all(|step| step["step"] != "unreadable"));
}

/// With an unreadable record, no client is sent to an external source before an operator accepts it.
#[tokio::test]
async fn a_module_with_a_damaged_first_seen_record_is_not_redirected_to_an_external_source() {
    let fixture = ModuleFixture::with_one_module().await;
    let folder = store_with_record_only(&fixture).await;
    folder.damage(&folder.files("seen")[0]);
    fixture.publish("one", "s3::https://s3.amazonaws.com/bucket/one.zip");
    let larder = fixture.larder_on(&folder).always_revalidate().start().await;
    let refused = larder.get(&download_path("one")).await.expect(502).text();
    assert!(refused.contains("larder accept"), "{refused}");
    let item = accept(&larder, MODULE).await;
    assert_eq!((item.outcome.as_deref(), &item.tree_before), (Some("accepted_elsewhere"), &None), "{item:?}");
    larder.get(&download_path("one")).await.expect(204);
}

fn other_spelling() -> String {
    format!("/registry/{HOST}/v1/modules/Acme/One/test/1.0.0/download")
}

/// Publishes acme/one/test and Acme/One/test at the same URL.
async fn two_spellings() -> ModuleFixture {
    let fixture = ModuleFixture::with_one_module().await;
    let archive_url = fixture.url("one.tar.gz");
    fixture.registry.publish_module(crate::support::upstream::Module::new("Acme", "One", "test").at(&archive_url));
    fixture
}

async fn larder_with_fold_case(fixture: &ModuleFixture, folder: &Folder, fold_case: bool) -> Larder {
    fixture.larder_on(folder).upstream_lines(&format!("fold_case = {fold_case}")).always_revalidate().start().await
}

/// A record that was written under `fold_case = true` applies to every spelling, also after a recheck of one of them.
#[tokio::test]
async fn a_recheck_of_one_spelling_keeps_the_record_for_other_spellings() {
    let (fixture, folder) = (two_spellings().await, Folder::new());
    let larder = larder_with_fold_case(&fixture, &folder, true).await;
    larder.get(&other_spelling()).await.expect(204);
    larder.stop().await;
    let larder = larder_with_fold_case(&fixture, &folder, false).await;
    download_module(larder.base(), "one").await;
    larder.run_command("refresh", "acme/one/test").await;
    publish_changed_module(&fixture);
    let refused = larder.get(&other_spelling()).await.expect(502).text();
    assert!(refused.contains("larder accept"), "{refused}");
}

/// A record that was written under `fold_case = false` applies to the folded module.
#[tokio::test]
async fn a_module_served_under_another_spelling_has_the_same_tree() {
    let (fixture, folder) = (two_spellings().await, Folder::new());
    let larder = larder_with_fold_case(&fixture, &folder, false).await;
    download_module(larder.base(), "one").await;
    larder.stop().await;
    let larder = larder_with_fold_case(&fixture, &folder, true).await;
    larder.get(&other_spelling()).await.expect(204);
    larder.stop().await;
    publish_changed_module(&fixture);
    let larder = larder_with_fold_case(&fixture, &folder, false).await;
    let refused = larder.get(&other_spelling()).await.expect(502).text();
    assert!(refused.contains("larder accept"), "{refused}");
}

/// After two changes of `fold_case`, a tree that was accepted in between is served or needs a new accept; the two trees
/// are never mixed.
#[tokio::test]
async fn an_accept_between_two_changes_of_fold_case_mixes_no_trees() {
    for fold_case in [true, false] {
        let (fixture, folder) = (two_spellings().await, Folder::new());
        let larder = larder_with_fold_case(&fixture, &folder, fold_case).await;
        let first_location = ModuleLocation::of(&larder.get(&other_spelling()).await.expect(204));
        larder.stop().await;
        publish_changed_module(&fixture);
        let larder = larder_with_fold_case(&fixture, &folder, !fold_case).await;
        larder.get(&other_spelling()).await.expect(502);
        assert_eq!(accept(&larder, "Acme/One/test@1.0.0").await.outcome.as_deref(), Some("accepted_tree"));
        let accepted_location = ModuleLocation::of(&larder.get(&other_spelling()).await.expect(204));
        assert!(accepted_location.sha256 != first_location.sha256);
        larder.stop().await;
        let larder = larder_with_fold_case(&fixture, &folder, fold_case).await;
        // The first-seen archive is stored and stays served; the accepted tree needs a new decision.
        let location_after_change = ModuleLocation::of(&larder.get(&other_spelling()).await.expect(204));
        assert!(location_after_change.sha256 == first_location.sha256, "{fold_case}");
        larder.run_command("refresh", "Acme/One/test").await;
        assert_eq!(alarms(&larder).await[0]["kind"], "moved", "{fold_case}");
        accept(&larder, "Acme/One/test@1.0.0").await;
        assert!(
            ModuleLocation::of(&larder.get(&other_spelling()).await).sha256 == accepted_location.sha256,
            "{fold_case}"
        );
        assert_eq!(alarms(&larder).await, json!([]), "{fold_case}");
    }
}

/// A move to an external source is accepted once, although a record from the time of `fold_case = true` has another
/// tree.
#[tokio::test]
async fn an_accepted_move_stays_accepted_after_fold_case_changes() {
    let (fixture, folder) = (two_spellings().await, Folder::new());
    let larder = larder_with_fold_case(&fixture, &folder, true).await;
    larder.get(&other_spelling()).await.expect(204);
    larder.stop().await;
    let elsewhere = "s3::https://s3.amazonaws.com/bucket/one.zip";
    fixture.registry.publish_module(crate::support::upstream::Module::new("Acme", "One", "test").at(elsewhere));
    let larder = larder_with_fold_case(&fixture, &folder, false).await;
    larder.get(&other_spelling()).await.expect(502);
    assert_eq!(accept(&larder, "Acme/One/test@1.0.0").await.outcome.as_deref(), Some("accepted_elsewhere"));
    for _ in 0..2 {
        let response = larder.get(&other_spelling()).await.expect(204);
        assert_eq!(response.header("x-terraform-get"), elsewhere);
    }
}
