//! First-seen records of modules that are damaged, or recorded under another spelling: no client gets another tree
//! before an operator accepts it.

use serde_json::{Value, json};

use crate::support::git_module_fixture::{Place, download_path, fetch};
use crate::support::http::get;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, noise, tar_gz, unpacked};
use crate::support::reports::CommandItem;
use crate::support::verify_steps::verify;

const ONE: &str = "acme/one/test@1.0.0";

async fn alarms(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()["alarms"].clone()
}

/// An alarm says that acme/one/test 1.0.0 waits for `accept`.
async fn is_reported(larder: &Larder) -> bool {
    let resolve = format!("larder accept {HOST}/{ONE}");
    let alarms = alarms(larder).await;
    alarms
        .as_array()
        .unwrap()
        .iter()
        .any(|alarm| alarm["kind"] == "damaged-record" && alarm["resolve"] == resolve.as_str())
}

fn moved(fixture: &ModuleFixture) {
    fixture.file("one.tar.gz", &tar_gz(&[("main.tf", b"# moved\n")]));
}

/// The outcome of accepting this.
async fn accepted(larder: &Larder, subject: &str) -> CommandItem {
    larder.tell("accept", subject).await.items[0].clone()
}

/// A closed store with a first-seen record of acme/one/test 1.0.0 and without its archive.
async fn seen_and_purged(fixture: &ModuleFixture) -> Folder {
    let larder = fixture.larder().start().await;
    fetch(larder.base(), "one").await;
    larder.tell("purge", ONE).await;
    let folder = larder.stop().await;
    assert!(folder.blobs().is_empty() && folder.files("names").is_empty());
    folder
}

/// A damaged record still shows that one existed: the next tree is not recorded as the first, also after a restart.
#[tokio::test]
async fn a_module_with_a_damaged_first_seen_record_is_refused_until_it_is_accepted() {
    for damaged in [&b""[..], b"{}\n{}", b"\0\0\0\0\0\0\0\0"] {
        let fixture = ModuleFixture::of_one().await;
        let folder = seen_and_purged(&fixture).await;
        std::fs::write(&folder.files("seen")[0], damaged).unwrap();
        moved(&fixture);
        for _ in 0..2 {
            let larder = fixture.larder_on(&folder).start().await;
            for path in [download_path("one"), format!("/archive/{HOST}/modules/acme/one/test/1.0.0/module.tar.gz")] {
                let refused = larder.get(&path).await.expect(502).text();
                assert!(
                    refused.contains("damaged") && refused.contains(&format!("larder accept {HOST}/{ONE}")),
                    "{refused}"
                );
            }
            assert!(folder.blobs().is_empty() && folder.staged().is_empty());
            assert!(is_reported(&larder).await);
            larder.stop().await;
        }
        let larder = fixture.larder_on(&folder).start().await;
        // Of the whole module: the damaged record waits for it, too.
        let item = accepted(&larder, "acme/one/test").await;
        assert_eq!((item.outcome.as_deref(), &item.tree_before), (Some("accepted_tree"), &None), "{item:?}");
        let (_, archive) = fetch(larder.base(), "one").await;
        assert_eq!(unpacked(&archive)["main.tf"], b"# moved\n");
        assert_eq!(alarms(&larder).await, json!([]));
        assert_eq!(accepted(&larder, ONE).await.outcome.as_deref(), Some("nothing_to_accept"));
    }
}

/// An archive's tree is recorded before a purge or an eviction removes the archive.
#[tokio::test]
async fn a_modules_first_seen_record_is_written_before_its_archive_is_evicted() {
    for is_purged in [true, false] {
        let fixture = ModuleFixture::start().await;
        for (seed, name) in ["one", "two", "three"].into_iter().enumerate() {
            fixture.put(name, &tar_gz(&[("noise", &noise(seed as u32, 450_000))]));
        }
        let larder = fixture.larder().store("max_size = \"1MiB\"").start().await;
        let (first, _) = fetch(larder.base(), "one").await;
        std::fs::write(&larder.folder.files("seen")[0], "gone").unwrap();
        if is_purged {
            larder.tell("purge", ONE).await;
        } else {
            fetch(larder.base(), "two").await;
            fetch(larder.base(), "three").await;
            assert_eq!(larder.metric("larder_evictions_total").await, 1.0);
        }
        assert!(Place::of(&larder.get(&download_path("one")).await) == first, "purged: {is_purged}");
        larder.tell("purge", ONE).await;
        moved(&fixture);
        let refused = larder.get(&download_path("one")).await.expect(502).text();
        assert!(refused.contains("upstream has moved it"), "{refused}");
    }
}

/// `verify` reports the damage and does not treat the module as new.
#[tokio::test]
async fn verify_reports_a_damaged_first_seen_record_and_leaves_the_module_refused() {
    let fixture = ModuleFixture::of_one().await;
    let folder = seen_and_purged(&fixture).await;
    std::fs::write(&folder.files("seen")[0], "gone").unwrap();
    let larder = fixture.larder_on(&folder).start().await;
    for _ in 0..2 {
        let steps = verify(&larder).await;
        let text = steps.iter().find(|step| step["step"] == "unreadable").unwrap_or_else(|| panic!("{steps:?}"));
        assert!(text["error"].as_str().unwrap().contains("larder accept"), "{text}");
        assert!(is_reported(&larder).await);
    }
    larder.get(&download_path("one")).await.expect(502);
    accepted(&larder, ONE).await;
    assert!(verify(&larder).await.iter().all(|step| step["step"] != "unreadable"));
}

/// With an unreadable record, no client is sent to an external source before an operator accepts it.
#[tokio::test]
async fn a_module_with_a_damaged_first_seen_record_sends_no_client_to_its_source() {
    let fixture = ModuleFixture::of_one().await;
    let folder = seen_and_purged(&fixture).await;
    std::fs::write(&folder.files("seen")[0], "gone").unwrap();
    fixture.publish("one", "s3::https://s3.amazonaws.com/bucket/one.zip");
    let larder = fixture.larder_on(&folder).nothing_stays_fresh().start().await;
    let refused = larder.get(&download_path("one")).await.expect(502).text();
    assert!(refused.contains("larder accept"), "{refused}");
    let item = accepted(&larder, ONE).await;
    assert_eq!((item.outcome.as_deref(), &item.tree_before), (Some("accepted_elsewhere"), &None), "{item:?}");
    larder.get(&download_path("one")).await.expect(204);
}

fn other_spelling() -> String {
    format!("/registry/{HOST}/v1/modules/Acme/One/test/1.0.0/download")
}

/// acme/one/test and Acme/One/test, both at one place.
async fn two_spellings() -> ModuleFixture {
    let fixture = ModuleFixture::of_one().await;
    let offset = fixture.url("one.tar.gz");
    fixture.registry.publish_module(crate::support::upstream::Module::new("Acme", "One", "test").at(&offset));
    fixture
}

async fn folding(fixture: &ModuleFixture, folder: &Folder, folds: bool) -> Larder {
    fixture.larder_on(folder).with(&format!("fold_case = {folds}")).nothing_stays_fresh().start().await
}

/// A record of the time when spellings were folded applies to each of them, whichever is rechecked later.
#[tokio::test]
async fn a_recheck_of_one_spelling_forgets_nothing_of_another() {
    let (fixture, folder) = (two_spellings().await, Folder::new());
    let larder = folding(&fixture, &folder, true).await;
    larder.get(&other_spelling()).await.expect(204);
    larder.stop().await;
    let larder = folding(&fixture, &folder, false).await;
    fetch(larder.base(), "one").await;
    larder.tell("refresh", "acme/one/test").await;
    moved(&fixture);
    let refused = larder.get(&other_spelling()).await.expect(502).text();
    assert!(refused.contains("larder accept"), "{refused}");
}

/// A record of the time when spellings were distinct applies to the folded module that served it.
#[tokio::test]
async fn a_module_served_under_another_spelling_has_the_same_tree() {
    let (fixture, folder) = (two_spellings().await, Folder::new());
    let larder = folding(&fixture, &folder, false).await;
    fetch(larder.base(), "one").await;
    larder.stop().await;
    let larder = folding(&fixture, &folder, true).await;
    larder.get(&other_spelling()).await.expect(204);
    larder.stop().await;
    moved(&fixture);
    let larder = folding(&fixture, &folder, false).await;
    let refused = larder.get(&other_spelling()).await.expect(502).text();
    assert!(refused.contains("larder accept"), "{refused}");
}

/// A tree accepted between two switches stays accepted or is asked about again; the two trees are never mixed.
#[tokio::test]
async fn an_accept_between_two_switches_of_fold_case_mixes_nothing() {
    for first in [true, false] {
        let (fixture, folder) = (two_spellings().await, Folder::new());
        let larder = folding(&fixture, &folder, first).await;
        let seen_first = Place::of(&larder.get(&other_spelling()).await.expect(204));
        larder.stop().await;
        moved(&fixture);
        let larder = folding(&fixture, &folder, !first).await;
        larder.get(&other_spelling()).await.expect(502);
        assert_eq!(accepted(&larder, "Acme/One/test@1.0.0").await.outcome.as_deref(), Some("accepted_tree"));
        let then = Place::of(&larder.get(&other_spelling()).await.expect(204));
        assert!(then.sha256 != seen_first.sha256);
        larder.stop().await;
        let larder = folding(&fixture, &folder, first).await;
        // The first-seen archive is stored and stays served; the accepted tree needs a new decision.
        let back = Place::of(&larder.get(&other_spelling()).await.expect(204));
        assert!(back.sha256 == seen_first.sha256, "{first}");
        larder.tell("refresh", "Acme/One/test").await;
        assert_eq!(alarms(&larder).await[0]["kind"], "moved", "{first}");
        accepted(&larder, "Acme/One/test@1.0.0").await;
        assert!(Place::of(&larder.get(&other_spelling()).await).sha256 == then.sha256, "{first}");
        assert_eq!(alarms(&larder).await, json!([]), "{first}");
    }
}

/// A move to an external source is accepted once, whatever another spelling was while spellings were folded.
#[tokio::test]
async fn a_tree_accepted_under_another_spelling_is_not_asked_again_after_fold_case_changes() {
    let (fixture, folder) = (two_spellings().await, Folder::new());
    let larder = folding(&fixture, &folder, true).await;
    larder.get(&other_spelling()).await.expect(204);
    larder.stop().await;
    let elsewhere = "s3::https://s3.amazonaws.com/bucket/one.zip";
    fixture.registry.publish_module(crate::support::upstream::Module::new("Acme", "One", "test").at(elsewhere));
    let larder = folding(&fixture, &folder, false).await;
    larder.get(&other_spelling()).await.expect(502);
    assert_eq!(accepted(&larder, "Acme/One/test@1.0.0").await.outcome.as_deref(), Some("accepted_elsewhere"));
    for _ in 0..2 {
        let text = larder.get(&other_spelling()).await.expect(204);
        assert_eq!(text.header("x-terraform-get"), elsewhere);
    }
}
