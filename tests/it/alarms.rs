//! Alarms (DESIGN 3): each one stays until its cause is resolved, and none hides another.

use larder::address::{Address, Hostname, Name, ProviderAddress};
use larder::clock::Timestamp;
use larder::store::{Durability, Key, Store};
use serde_json::{Value, json};

use crate::support::http::{client, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::null_provider::{NULL, NULL_120, PACKAGE, edition, impatient, install, upstream_with, zip};
use crate::support::upstream::{FakeUpstream, Fault, SigningKey, Target};

const PACKAGE_130: &str = "registry.terraform.io/acme/null 1.3.0 (linux_amd64)";

/// The open alarms, each with its kind and version.
async fn open_alarms(larder: &Larder) -> Vec<(String, String)> {
    larder.alarms().await.into_iter().map(|(kind, _, version, _)| (kind, version)).collect()
}

fn alarms(expected: &[(&str, &str)]) -> Vec<(String, String)> {
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
fn write_alarm_record(folder: &Folder, name: &str, alarms: &[Value]) {
    let store = Store::open(folder.path(), Timestamp(1)).unwrap();
    let record = json!({ "alarms": alarms }).to_string();
    store.records.put(&alarms_of(name), record.as_bytes(), Durability::Synced).unwrap();
    store.close().unwrap();
}

fn alarm(kind: &str, name: &str, version: &str) -> Value {
    let address = provider(name).to_string();
    json!({
        "kind": kind, "address": address, "version": version, "detail": "as an older larder wrote it", "since": 1,
        "resolve": format!("larder accept {address}"),
    })
}

/// A new version, signed by a key that never signed before.
fn version_with_new_key(stranger: &SigningKey) -> crate::support::upstream::Provider {
    edition(1).version("1.3.0").signed_by(stranger)
}

async fn larder_with_new_key_alarm(upstream: &FakeUpstream, stranger: &SigningKey) -> Larder {
    let larder = impatient(upstream).start().await;
    install(&larder).await;
    upstream.publish(version_with_new_key(stranger));
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0")]));
    larder
}

/// DESIGN, promise 14: only an accept that succeeded resolves an alarm.
#[tokio::test]
async fn an_accept_that_fails_resolves_no_alarm() {
    let upstream = upstream_with(edition(1)).await;
    let larder = larder_with_new_key_alarm(&upstream, &SigningKey::another()).await;
    upstream.fault(Target::Document, Fault::Status(503));
    let done = larder.tell("accept", NULL).await;
    assert_eq!(done.outcomes(), [(PACKAGE, "failed"), (PACKAGE_130, "failed")], "{done}");
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0")]));
    upstream.heal();
    assert!(larder.tell("accept", NULL).await.ok);
    assert_eq!(open_alarms(&larder).await, alarms(&[]));
}

/// DESIGN, promise 14: the accepted key is the one that signs now, and no other.
#[tokio::test]
async fn accepting_one_new_key_does_not_resolve_the_alarm_of_another() {
    let upstream = upstream_with(edition(1)).await;
    let (first, second) = (SigningKey::another(), SigningKey::another());
    let larder = larder_with_new_key_alarm(&upstream, &first).await;
    upstream.publish(version_with_new_key(&second));
    assert!(larder.tell("accept", NULL).await.ok);
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0")]));
    assert!(larder.alarms().await[0].3["detail"].as_str().unwrap().contains(&first.fingerprint()));
}

/// DESIGN, promise 15: widening the trust in a key to all versions is reported, although no file changes.
#[tokio::test]
async fn accepting_a_new_key_for_the_provider_is_reported() {
    let upstream = upstream_with(edition(1)).await;
    let stranger = SigningKey::another();
    let larder = larder_with_new_key_alarm(&upstream, &stranger).await;
    let done = larder.tell("accept", NULL).await;
    assert_eq!(done.outcomes(), [(PACKAGE, "nothing_to_accept"), (PACKAGE_130, "accepted")], "{done}");
    assert_eq!(done.items[1].key, Some(stranger.fingerprint()), "{done}");
    let again = larder.tell("accept", NULL).await;
    assert_eq!(again.outcomes(), [(PACKAGE, "nothing_to_accept"), (PACKAGE_130, "nothing_to_accept")], "{again}");
    upstream.publish(edition(2).signed_by(&stranger));
    assert!(install(&larder).await.2 == zip(&upstream));
}

/// DESIGN, promise 14: two keys that sign one version raise two alarms.
#[tokio::test]
async fn a_second_new_key_of_a_version_does_not_hide_the_first() {
    let upstream = upstream_with(edition(1)).await;
    let (first, second) = (SigningKey::another(), SigningKey::another());
    let larder = larder_with_new_key_alarm(&upstream, &first).await;
    upstream.publish(version_with_new_key(&second));
    larder.document("null", "1.3.0").await.expect(200);
    let folder = larder.stop().await;
    let larder = impatient(&upstream).on(&folder).start().await;
    let raised = larder.alarms().await;
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0"), ("new-key", "1.3.0")]));
    for key in [first, second] {
        let signed = format!("signed by key {}", key.fingerprint());
        assert!(raised.iter().any(|(.., alarm)| alarm["detail"].as_str().unwrap().contains(&signed)), "{raised:?}");
    }
}

/// DESIGN, promise 14: an unchanged set of another platform does not resolve a refusal.
#[tokio::test]
async fn the_set_of_another_platform_does_not_resolve_a_refusal() {
    let both = |provider: crate::support::upstream::Provider| provider.platform("linux_amd64").platform("darwin_arm64");
    let upstream = upstream_with(both(edition(1))).await;
    let larder = impatient(&upstream).start().await;
    for platform in ["linux_amd64", "darwin_arm64"] {
        larder.document_for("null", "1.2.0", platform).await.expect(200);
    }
    // A registry that lies to one platform only.
    let stranger = SigningKey::another();
    for _ in 0..2 {
        upstream.publish(both(edition(2)).signed_by(&stranger));
        larder.document("null", "1.2.0").await.expect(200);
        upstream.publish(both(edition(1)));
        larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
        assert_eq!(open_alarms(&larder).await, alarms(&[("waits-for-accept", "1.2.0")]));
    }
    assert_eq!(larder.metric("larder_alarms_total").await, 1.0);
    // The old set resolves the alarm on the platform where the new one was refused.
    larder.document("null", "1.2.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[]));
}

/// DESIGN, promise 15: after upstream withdraws a re-release, there is nothing to accept, and its alarm must not stay
/// forever.
#[tokio::test]
async fn accept_of_a_withdrawn_version_resolves_its_alarms() {
    for is_held in [true, false] {
        let upstream = upstream_with(edition(1)).await;
        upstream.publish(edition(1).version("1.1.0"));
        let larder = impatient(&upstream).start().await;
        let (_, _, old) = install(&larder).await;
        if !is_held {
            larder.tell("purge", NULL).await;
        }
        upstream.publish(edition(2).signed_by(&SigningKey::another()));
        larder.document("null", "1.2.0").await.expect(if is_held { 200 } else { 502 });
        assert_eq!(open_alarms(&larder).await, alarms(&[("waits-for-accept", "1.2.0")]));
        upstream.withdraw("acme", "null", "1.2.0");
        // While upstream does not answer, the alarm stays.
        upstream.fault(Target::Document, Fault::Status(503));
        upstream.fault(Target::Versions, Fault::Status(503));
        larder.tell("accept", NULL_120).await;
        assert!(open_alarms(&larder).await.contains(&alarms(&[("waits-for-accept", "1.2.0")])[0]), "{is_held}");
        upstream.heal();

        let done = larder.tell("accept", NULL_120).await;
        assert_eq!((done.outcomes(), done.ok), (vec![(PACKAGE, "withdrawn")], true), "{is_held}: {done}");
        assert!(!open_alarms(&larder).await.contains(&alarms(&[("waits-for-accept", "1.2.0")])[0]), "{is_held}");
        // The accept recorded nothing: the re-release is refused again.
        upstream.publish(edition(2).signed_by(&SigningKey::another()));
        let now = larder.document("null", "1.2.0").await;
        if is_held {
            assert!(install(&larder).await.2 == old)
        } else {
            now.expect(502);
        }
    }
}

#[tokio::test]
async fn purge_of_a_dropped_version_resolves_its_alarm() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(1).version("1.3.0"));
    upstream.publish(edition(1).version("1.4.0"));
    let larder = impatient(&upstream).start().await;
    for version in ["1.2.0", "1.3.0"] {
        let path = larder.archive_path("null", version).await;
        larder.get(&path).await.expect(200);
        upstream.withdraw("acme", "null", version);
    }
    larder.versions("null").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[("dropped", "1.2.0"), ("dropped", "1.3.0")]));
    larder.tell("purge", NULL_120).await;
    assert_eq!(open_alarms(&larder).await, alarms(&[("dropped", "1.3.0")]));
}

/// A registry that is not an upstream any more cannot be asked, so `accept` is impossible: `purge` resolves its alarms.
#[tokio::test]
async fn purge_resolves_the_alarms_of_a_registry_that_is_no_upstream_any_more() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2).signed_by(&SigningKey::another()));
    install(&larder).await;
    larder.tell("purge", NULL).await;
    assert_eq!(open_alarms(&larder).await, alarms(&[("waits-for-accept", "1.2.0")]), "it can still be accepted");
    let folder = larder.stop().await;
    let other = Larder::builder().upstream("registry.example", &upstream.origin(), "").on(&folder).start().await;
    assert_eq!(open_alarms(&other).await, alarms(&[("waits-for-accept", "1.2.0")]));
    let done = other.tell("purge", "registry.terraform.io/acme/null").await;
    assert_eq!(open_alarms(&other).await, alarms(&[]), "{done}");
}

/// DESIGN 4: a version list that is 404 has dropped every stored version.
#[tokio::test]
async fn a_version_list_that_is_gone_has_dropped_all_that_is_stored() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    larder.versions("null").await.expect(200);
    install(&larder).await;
    upstream.fault(Target::Versions, Fault::Status(404));
    for _ in 0..2 {
        assert!(larder.versions("null").await.expect(200).has_cache_status("gone"));
        assert_eq!(open_alarms(&larder).await, alarms(&[("dropped", "1.2.0")]));
    }
    assert_eq!(larder.metric("larder_alarms_total").await, 1.0);
    upstream.heal();
    larder.versions("null").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[]));
}

/// DESIGN, promise 14: alarms are limited per provider, so those of one provider never suppress those of another.
#[tokio::test]
async fn the_alarms_of_one_provider_leave_room_for_those_of_another() {
    let upstream = upstream_with(edition(1)).await;
    let folder = Folder::new();
    let many: Vec<Value> = (0..1000).map(|patch| alarm("new-key", "hostile", &format!("1.0.{patch}"))).collect();
    write_alarm_record(&folder, "hostile", &many);
    let larder = impatient(&upstream).on(&folder).start().await;
    install(&larder).await;
    upstream.publish(version_with_new_key(&SigningKey::another()));
    larder.document("null", "1.3.0").await.expect(200);
    let raised = larder.alarms().await;
    let ours = provider("null").to_string();
    assert_eq!(raised.iter().filter(|(_, address, ..)| *address == ours).count(), 1);
    assert_eq!(raised.len(), 1001);
}

/// DESIGN, promise 10: an unreadable alarm is skipped without affecting others. An alarm of an unknown kind stays in
/// the record for a newer larder.
#[tokio::test]
async fn an_alarm_that_cannot_be_read_takes_no_other_with_it() {
    let upstream = upstream_with(edition(1)).await;
    let folder = Folder::new();
    let unknown = alarm("of-a-later-larder", "null", "1.1.0");
    write_alarm_record(&folder, "null", &[unknown.clone(), json!(7), alarm("new-key", "null", "1.0.0")]);
    let larder = impatient(&upstream).on(&folder).start().await;
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.0.0")]));
    install(&larder).await;
    upstream.publish(version_with_new_key(&SigningKey::another()));
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.0.0"), ("new-key", "1.3.0")]));
    let folder = larder.stop().await;
    let store = Store::open(folder.path(), Timestamp(1)).unwrap();
    let written: Value = serde_json::from_slice(&store.records.get(&alarms_of("null")).unwrap().unwrap()).unwrap();
    store.close().unwrap();
    let written = written["alarms"].as_array().unwrap();
    assert!(written.len() == 4 && written.contains(&unknown), "{written:?}");
}

/// DESIGN, promise 14: the alarm is written before the first-seen record; otherwise a restart would lose it.
#[tokio::test]
async fn an_alarm_that_could_not_be_written_is_raised_again_after_a_restart() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    install(&larder).await;
    let in_the_way = larder.folder.path().join("v1/alarms").join(HOST).join("providers/acme/null.json");
    std::fs::create_dir_all(in_the_way.join("something")).unwrap();
    upstream.publish(version_with_new_key(&SigningKey::another()));
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0")]));
    let folder = larder.stop().await;
    std::fs::remove_dir_all(&in_the_way).unwrap();
    let larder = impatient(&upstream).on(&folder).start().await;
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0")]));
}

/// DESIGN, promise 14: once the alarm can be written, first-seen records are written again.
#[tokio::test]
async fn an_alarm_that_could_not_be_written_is_written_later() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    install(&larder).await;
    let in_the_way = larder.folder.path().join("v1/alarms").join(HOST).join("providers/acme/null.json");
    std::fs::create_dir_all(in_the_way.join("something")).unwrap();
    upstream.publish(version_with_new_key(&SigningKey::another()));
    larder.document("null", "1.3.0").await.expect(200);
    std::fs::remove_dir_all(&in_the_way).unwrap();
    upstream.publish(edition(1).version("1.4.0"));
    larder.document("null", "1.4.0").await.expect(200);
    let seen = larder.folder.files("seen");
    assert!(seen.iter().any(|file| file.ends_with("1.4.0.json")), "{seen:?}");
    let folder = larder.stop().await;
    let larder = impatient(&upstream).on(&folder).start().await;
    assert_eq!(open_alarms(&larder).await, alarms(&[("new-key", "1.3.0")]));
}

/// DESIGN 3: an alarm of `verify` has the kind and address that `accept` resolves.
#[tokio::test]
async fn verify_raises_an_alarm_for_a_first_seen_record_that_cannot_be_rebuilt() {
    let upstream = upstream_with(edition(1)).await;
    let larder = impatient(&upstream).start().await;
    let (_, _, old) = install(&larder).await;
    let folder = larder.stop().await;
    for file in ["documents", "names", "blobs"].iter().flat_map(|below| folder.files(below)) {
        std::fs::remove_file(file).unwrap();
    }
    let seen = folder.files("seen").into_iter().find(|file| file.ends_with("1.2.0.json")).unwrap();
    let bytes = std::fs::read(&seen).unwrap();
    std::fs::write(&seen, &bytes[..bytes.len() - 3]).unwrap();
    let larder = impatient(&upstream).on(&folder).start().await;
    let url = format!("{}/admin/v1/verify", larder.admin());
    let text = client().post(&url).bearer_auth(larder.token()).header("content-type", "application/json").body("{}");
    let text = send(text).await.unwrap().expect(200).text();
    assert!(text.contains("larder accept registry.terraform.io/acme/null"), "{text}");
    assert_eq!(open_alarms(&larder).await, alarms(&[("damaged-record", "1.2.0")]));
    let done = larder.tell("accept", NULL).await;
    assert_eq!(done.outcomes(), [(PACKAGE, "accepted")], "{done}");
    assert_eq!(open_alarms(&larder).await, alarms(&[]));
    assert!(install(&larder).await.2 == old);
}
