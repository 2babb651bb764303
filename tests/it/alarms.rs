//! Alarms: each one stays until its cause is resolved, and none hides another.

use larder::address::{Address, Hostname, Name, ProviderAddress};
use larder::clock::Timestamp;
use larder::store::{Durability, Key};
use serde_json::{Value, json};

use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder, open_store};
use crate::support::null_provider::{
    NULL, NULL_120, PACKAGE, always_revalidating, edition, install, upstream_with, zip,
};
use crate::support::upstream::{FakeUpstream, Fault, SigningKey, Target};

const PACKAGE_130: &str = "registry.terraform.io/acme/null 1.3.0 (linux_amd64)";

/// The open alarms, each with its kind and version.
async fn open_alarms(larder: &Larder) -> Vec<(String, String)> {
    larder.alarms().await.into_iter().map(|(kind, _, version, _)| (kind, version)).collect()
}

fn expected_alarms(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(kind, version)| ((*kind).to_owned(), (*version).to_owned())).collect()
}

fn provider(name: &str) -> ProviderAddress {
    ProviderAddress {
        host: Hostname::parse(HOST).unwrap(),
        namespace: Name::parse("acme").unwrap(),
        type_: Name::parse(name).unwrap(),
    }
}

fn alarms_of(name: &str) -> Key {
    Key::Alarms(Address::Provider(provider(name)))
}

/// Writes a record of alarms into a closed store.
pub(crate) fn write_alarm_record(folder: &Folder, name: &str, alarms: &[Value]) {
    let store = open_store(folder.path(), Timestamp(1));
    let record = json!({ "alarms": alarms }).to_string();
    store.records.put(&alarms_of(name), record.as_bytes(), Durability::Synced).unwrap();
    store.close().unwrap();
}

pub(crate) fn alarm(kind: &str, name: &str, version: &str) -> Value {
    let address = provider(name).to_string();
    json!({
        "kind": kind, "address": address, "version": version, "detail": "as an older larder wrote it", "since": 1,
        "resolve": format!("larder accept {address}"),
    })
}

/// A new version, signed by a key that never signed before.
fn version_with_new_key(unknown_key: &SigningKey) -> crate::support::upstream::Provider {
    edition(1).version("1.3.0").signed_by(unknown_key)
}

async fn larder_with_new_key_alarm(upstream: &FakeUpstream, unknown_key: &SigningKey) -> Larder {
    let larder = always_revalidating(upstream).start().await;
    install(&larder).await;
    upstream.publish(version_with_new_key(unknown_key));
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0")]));
    larder
}

/// Promise 14: only an accept that succeeded resolves an alarm.
#[tokio::test]
async fn an_accept_that_fails_resolves_no_alarm() {
    let upstream = upstream_with(edition(1)).await;
    let larder = larder_with_new_key_alarm(&upstream, &SigningKey::new_key()).await;
    upstream.fault(Target::Document, Fault::Status(503));
    let done = larder.run_command("accept", NULL).await;
    assert_eq!(done.outcomes(), [(PACKAGE, "failed"), (PACKAGE_130, "failed")], "{done}");
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0")]));
    upstream.clear_faults();
    assert!(larder.run_command("accept", NULL).await.ok);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[]));
}

/// Promise 14: the accepted key is the one that signs now, and no other.
#[tokio::test]
async fn accepting_one_new_key_does_not_resolve_the_alarm_of_another() {
    let upstream = upstream_with(edition(1)).await;
    let (first, second) = (SigningKey::new_key(), SigningKey::new_key());
    let larder = larder_with_new_key_alarm(&upstream, &first).await;
    upstream.publish(version_with_new_key(&second));
    assert!(larder.run_command("accept", NULL).await.ok);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0")]));
    assert!(larder.alarms().await[0].3["detail"].as_str().unwrap().contains(&first.fingerprint()));
}

/// Promise 15: widening the trust in a key to all versions is reported, although no file changes.
#[tokio::test]
async fn accepting_a_new_key_for_the_provider_is_reported() {
    let upstream = upstream_with(edition(1)).await;
    let unknown_key = SigningKey::new_key();
    let larder = larder_with_new_key_alarm(&upstream, &unknown_key).await;
    let done = larder.run_command("accept", NULL).await;
    assert_eq!(done.outcomes(), [(PACKAGE, "nothing_to_accept"), (PACKAGE_130, "accepted")], "{done}");
    assert_eq!(done.items[1].key, Some(unknown_key.fingerprint()), "{done}");
    let again = larder.run_command("accept", NULL).await;
    assert_eq!(again.outcomes(), [(PACKAGE, "nothing_to_accept"), (PACKAGE_130, "nothing_to_accept")], "{again}");
    upstream.publish(edition(2).signed_by(&unknown_key));
    assert!(install(&larder).await.2 == zip(&upstream));
}

/// Promise 14: two keys that sign one version raise two alarms.
#[tokio::test]
async fn a_second_new_key_of_a_version_does_not_hide_the_first() {
    let upstream = upstream_with(edition(1)).await;
    let (first, second) = (SigningKey::new_key(), SigningKey::new_key());
    let larder = larder_with_new_key_alarm(&upstream, &first).await;
    upstream.publish(version_with_new_key(&second));
    larder.document("null", "1.3.0").await.expect(200);
    let folder = larder.stop().await;
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    let raised = larder.alarms().await;
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0"), ("new-key", "1.3.0")]));
    for key in [first, second] {
        let signed = format!("signed by key {}", key.fingerprint());
        assert!(raised.iter().any(|(.., alarm)| alarm["detail"].as_str().unwrap().contains(&signed)), "{raised:?}");
    }
}

/// Promise 14: an unchanged set of another platform does not resolve a refusal.
#[tokio::test]
async fn the_set_of_another_platform_does_not_resolve_a_refusal() {
    let both_platforms =
        |provider: crate::support::upstream::Provider| provider.platform("linux_amd64").platform("darwin_arm64");
    let upstream = upstream_with(both_platforms(edition(1))).await;
    let larder = always_revalidating(&upstream).start().await;
    for platform in ["linux_amd64", "darwin_arm64"] {
        larder.document_for("null", "1.2.0", platform).await.expect(200);
    }
    // A registry that sends changed files for one platform only.
    let unknown_key = SigningKey::new_key();
    for _ in 0..2 {
        upstream.publish(both_platforms(edition(2)).signed_by(&unknown_key));
        larder.document("null", "1.2.0").await.expect(200);
        upstream.publish(both_platforms(edition(1)));
        larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
        assert_eq!(open_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]));
    }
    assert_eq!(larder.metric("larder_alarms_total").await, 1.0);
    // The old set resolves the alarm on the platform where the new one was refused.
    larder.document("null", "1.2.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[]));
}

/// Promise 15: after upstream withdraws a re-release, there is nothing to accept, and its alarm must not stay forever.
#[tokio::test]
async fn accept_of_a_withdrawn_version_resolves_its_alarms() {
    for is_stored in [true, false] {
        let upstream = upstream_with(edition(1)).await;
        upstream.publish(edition(1).version("1.1.0"));
        let larder = always_revalidating(&upstream).start().await;
        let (_, _, original_zip) = install(&larder).await;
        if !is_stored {
            larder.run_command("purge", NULL).await;
        }
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        larder.document("null", "1.2.0").await.expect(if is_stored { 200 } else { 502 });
        assert_eq!(open_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]));
        upstream.withdraw("acme", "null", "1.2.0");
        // While upstream does not answer, the alarm stays.
        upstream.fault(Target::Document, Fault::Status(503));
        upstream.fault(Target::Versions, Fault::Status(503));
        larder.run_command("accept", NULL_120).await;
        assert!(
            open_alarms(&larder).await.contains(&expected_alarms(&[("waits-for-accept", "1.2.0")])[0]),
            "{is_stored}"
        );
        upstream.clear_faults();

        let done = larder.run_command("accept", NULL_120).await;
        assert_eq!((done.outcomes(), done.ok), (vec![(PACKAGE, "withdrawn")], true), "{is_stored}: {done}");
        assert!(
            !open_alarms(&larder).await.contains(&expected_alarms(&[("waits-for-accept", "1.2.0")])[0]),
            "{is_stored}"
        );
        // The accept recorded nothing: the re-release is refused again.
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        let response = larder.document("null", "1.2.0").await;
        if is_stored {
            assert!(install(&larder).await.2 == original_zip)
        } else {
            response.expect(502);
        }
    }
}

#[tokio::test]
async fn purge_of_a_dropped_version_resolves_its_alarm() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(1).version("1.3.0"));
    upstream.publish(edition(1).version("1.4.0"));
    let larder = always_revalidating(&upstream).start().await;
    for version in ["1.2.0", "1.3.0"] {
        let path = larder.archive_path("null", version).await;
        larder.get(&path).await.expect(200);
        upstream.withdraw("acme", "null", version);
    }
    larder.versions("null").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("dropped", "1.2.0"), ("dropped", "1.3.0")]));
    larder.run_command("purge", NULL_120).await;
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("dropped", "1.3.0")]));
}

/// `accept` must fetch from the upstream. For a registry that is no longer an upstream, only `purge` resolves alarms.
#[tokio::test]
async fn purge_resolves_the_alarms_of_a_registry_that_is_no_upstream_any_more() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    install(&larder).await;
    larder.run_command("purge", NULL).await;
    assert_eq!(
        open_alarms(&larder).await,
        expected_alarms(&[("waits-for-accept", "1.2.0")]),
        "`accept` can still resolve the alarm"
    );
    let folder = larder.stop().await;
    let larder = Larder::builder().upstream("registry.example", &upstream.origin(), "").store_at(&folder).start().await;
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]));
    let done = larder.run_command("purge", "registry.terraform.io/acme/null").await;
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[]), "{done}");
}

/// A version list that upstream answers with 404 counts as one without versions.
#[tokio::test]
async fn a_404_for_the_version_list_raises_an_alarm_for_each_stored_version() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    larder.versions("null").await.expect(200);
    install(&larder).await;
    upstream.fault(Target::Versions, Fault::Status(404));
    for _ in 0..2 {
        assert!(larder.versions("null").await.expect(200).has_cache_status("gone"));
        assert_eq!(open_alarms(&larder).await, expected_alarms(&[("dropped", "1.2.0")]));
    }
    assert_eq!(larder.metric("larder_alarms_total").await, 1.0);
    upstream.clear_faults();
    larder.versions("null").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[]));
}

/// Promise 14: alarms are limited per provider, so those of one provider never suppress those of another.
#[tokio::test]
async fn the_alarms_of_one_provider_do_not_suppress_those_of_another() {
    let upstream = upstream_with(edition(1)).await;
    let folder = Folder::new();
    let many: Vec<Value> = (0..1000).map(|patch| alarm("new-key", "hostile", &format!("1.0.{patch}"))).collect();
    write_alarm_record(&folder, "hostile", &many);
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    install(&larder).await;
    upstream.publish(version_with_new_key(&SigningKey::new_key()));
    larder.document("null", "1.3.0").await.expect(200);
    let raised = larder.alarms().await;
    let address_of_null = provider("null").to_string();
    assert_eq!(raised.iter().filter(|(_, address, ..)| *address == address_of_null).count(), 1);
    assert_eq!(raised.len(), 1001);
}

/// Promise 10: an unreadable alarm is skipped without affecting others. An alarm of an unknown kind stays in the record
/// for a newer larder.
#[tokio::test]
async fn an_unreadable_alarm_does_not_affect_other_alarms() {
    let upstream = upstream_with(edition(1)).await;
    let folder = Folder::new();
    let unknown = alarm("of-a-later-larder", "null", "1.1.0");
    write_alarm_record(&folder, "null", &[unknown.clone(), json!(7), alarm("new-key", "null", "1.0.0")]);
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.0.0")]));
    install(&larder).await;
    upstream.publish(version_with_new_key(&SigningKey::new_key()));
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.0.0"), ("new-key", "1.3.0")]));
    let folder = larder.stop().await;
    let store = open_store(folder.path(), Timestamp(1));
    let written: Value = serde_json::from_slice(&store.records.get(&alarms_of("null")).unwrap().unwrap()).unwrap();
    store.close().unwrap();
    let written = written["alarms"].as_array().unwrap();
    assert!(written.len() == 4 && written.contains(&unknown), "{written:?}");
}

/// A file where the records of alarms need a folder.
fn obstacle_to_alarms(larder: &Larder) -> std::path::PathBuf {
    let obstacle = larder.folder.at("alarms").join(HOST);
    std::fs::write(&obstacle, "in the way").unwrap();
    obstacle
}

/// Promise 14: the alarm is written before the first-seen record; otherwise a restart would lose it.
#[tokio::test]
async fn an_alarm_that_could_not_be_written_is_raised_again_after_a_restart() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let obstacle = obstacle_to_alarms(&larder);
    upstream.publish(version_with_new_key(&SigningKey::new_key()));
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0")]));
    let folder = larder.stop().await;
    std::fs::remove_file(&obstacle).unwrap();
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0")]));
}

/// Promise 14: once the alarm can be written, first-seen records are written again.
#[tokio::test]
async fn an_alarm_that_could_not_be_written_is_written_later() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let obstacle = obstacle_to_alarms(&larder);
    upstream.publish(version_with_new_key(&SigningKey::new_key()));
    larder.document("null", "1.3.0").await.expect(200);
    std::fs::remove_file(&obstacle).unwrap();
    upstream.publish(edition(1).version("1.4.0"));
    larder.document("null", "1.4.0").await.expect(200);
    let seen = larder.folder.files("seen");
    assert!(seen.iter().any(|file| file.ends_with("1.4.0.json")), "{seen:?}");
    let folder = larder.stop().await;
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("new-key", "1.3.0")]));
}

/// An alarm of `verify` has the kind and address that `accept` resolves.
#[tokio::test]
async fn verify_raises_an_alarm_for_a_first_seen_record_that_cannot_be_rebuilt() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let (_, _, original_zip) = install(&larder).await;
    let folder = larder.stop().await;
    for file in ["documents", "names", "blobs"].iter().flat_map(|subfolder| folder.files(subfolder)) {
        folder.lose(&file);
    }
    let seen = folder.files("seen").into_iter().find(|file| file.ends_with("1.2.0.json")).unwrap();
    folder.damage(&seen);
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    let url = format!("{}/admin/v1/verify", larder.admin());
    let request = client().post(&url).bearer_auth(larder.token()).header("content-type", "application/json").body("{}");
    let text = send(request).await.unwrap().expect(200).text();
    assert!(text.contains("larder accept registry.terraform.io/acme/null"), "{text}");
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[("damaged-record", "1.2.0")]));
    let done = larder.run_command("accept", NULL).await;
    assert_eq!(done.outcomes(), [(PACKAGE, "accepted")], "{done}");
    assert_eq!(open_alarms(&larder).await, expected_alarms(&[]));
    assert!(install(&larder).await.2 == original_zip);
}

/// The command of an alarm is one that works now, whatever larder was when the alarm was raised.
#[tokio::test]
async fn the_command_of_an_alarm_follows_a_restart_in_the_other_mode() {
    let upstream = upstream_with(edition(1)).await;
    let larder = larder_with_new_key_alarm(&upstream, &SigningKey::new_key()).await;
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(200);
    let online = [format!("larder accept {HOST}/{NULL}"), format!("larder accept {HOST}/{NULL_120}")];
    let offline =
        ["1.3.0", "1.2.0"].map(|version| format!("larder bundle apply BUNDLE --accept {HOST}/{NULL}@{version}"));
    let mut folder = larder.stop().await;
    for (is_offline, expected) in [(true, offline), (false, online)] {
        let network = format!("offline = {is_offline}");
        let larder = Larder::mirroring(&upstream).store_at(&folder).network(&network).start().await;
        let alarms = larder.alarms().await;
        for (alarm, command) in [("new-key", &expected[0]), ("waits-for-accept", &expected[1])] {
            let (.., raised) = alarms.iter().find(|(kind, ..)| kind == alarm).unwrap();
            assert_eq!(raised["resolve"], **command, "offline: {is_offline}");
        }
        let page = get(&format!("{}/", larder.admin())).await.expect(200).text();
        assert_eq!(page.contains(">Accept acme/null"), !is_offline, "offline: {is_offline}");
        folder = larder.stop().await;
    }
}
