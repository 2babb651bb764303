//! Several larders that share records, each with a copy of its own that lags behind: nothing that one of them knows is absent for
//! another, and nothing is recorded twice.

use crate::explain::explain;
use crate::support::http::Answer;
use crate::support::lagging_records::LaggingRecords;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::store_kind;
use crate::support::upstream::{FakeUpstream, Provider, SigningKey, Target};
use serde_json::json;

/// Two replicas, and the records of each.
struct Replicas {
    upstream: FakeUpstream,
    one: Larder,
    other: Larder,
    records: [LaggingRecords; 2],
}

impl Replicas {
    async fn start() -> Self {
        let (upstream, folders) = (FakeUpstream::start().await, [Folder::new(), Folder::new()]);
        let records = store_kind::share(folders.each_ref().map(Folder::path));
        let [one, other] = folders.map(|folder| Larder::mirroring(&upstream).store_at(&folder));
        Self { one: one.start().await, other: other.start().await, upstream, records }
    }

    fn publish(&self, edition: u64) {
        self.upstream.publish(null_edition(edition));
    }
}

fn null_edition(edition: u64) -> Provider {
    Provider::new("acme", "null").version("1.2.0").edition(edition)
}

fn text_of(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test]
async fn what_one_replica_has_fetched_another_does_not_ask_for() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    let list = replicas.one.versions("null").await.expect(200);
    let document = replicas.one.document("null", "1.2.0").await.expect(200);
    let asked = replicas.upstream.requests().len();
    assert_eq!(replicas.other.versions("null").await.expect(200).body, list.body);
    let other = replicas.other.document("null", "1.2.0").await.expect(200);
    assert_eq!(other.json()["shasum"], document.json()["shasum"]);
    assert_eq!(replicas.upstream.requests().len(), asked, "the other replica asked upstream");
}

/// A copy that is stored and no longer fresh is not revalidated where another replica has just done so.
#[tokio::test]
async fn what_one_replica_has_revalidated_another_does_not_ask_for() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    replicas.one.versions("null").await.expect(200);
    replicas.other.versions("null").await.expect(200);
    let later = std::time::Duration::from_secs(3600);
    [&replicas.one, &replicas.other].into_iter().for_each(|replica| replica.clock.advance(later));
    replicas.one.versions("null").await.expect(200);
    let asked = replicas.upstream.count("/v1/providers/acme/null/versions");
    assert_eq!(asked, 2);
    replicas.other.versions("null").await.expect(200);
    assert_eq!(replicas.upstream.count("/v1/providers/acme/null/versions"), asked);
}

/// A 404 that one replica remembers does not hide what another has stored since.
#[tokio::test]
async fn a_remembered_404_ends_when_another_replica_has_the_document() {
    let mut replicas = Replicas::start().await;
    replicas.other.versions("null").await.expect(404);
    replicas.publish(1);
    replicas.one.versions("null").await.expect(200);
    let document = replicas.one.document("null", "1.2.0").await.expect(200);
    replicas.upstream.stop().await;
    replicas.other.versions("null").await.expect(200);
    let other = replicas.other.document("null", "1.2.0").await.expect(200);
    assert_eq!(other.json()["shasum"], document.json()["shasum"]);
}

/// Offline, an archive that is here has its records from another replica.
#[tokio::test]
async fn offline_nothing_that_another_replica_recorded_is_missing() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    let folder = Folder::new();
    let records = store_kind::join(folder.path(), &replicas.records[0]);
    let offline = Larder::mirroring(&replicas.upstream).store_at(&folder).network("offline = true").start().await;
    offline.versions("null").await.expect(503);
    let archive = replicas.one.archive_path("null", "1.2.0").await;
    replicas.one.get(&archive).await.expect(200);
    replicas.one.versions("null").await.expect(200);
    for blob in replicas.one.folder.blobs() {
        let below = blob.strip_prefix(replicas.one.folder.path()).unwrap();
        std::fs::create_dir_all(folder.path().join(below).parent().unwrap()).unwrap();
        std::fs::copy(&blob, folder.path().join(below)).unwrap();
    }
    let mirror = format!("/mirror/{HOST}/acme/null");
    assert_eq!(
        offline.get(&format!("{mirror}/index.json")).await.expect(200).json()["versions"]["1.2.0"],
        serde_json::json!({})
    );
    records.forget();
    offline.get(&format!("{mirror}/1.2.0.json")).await.expect(200);
    records.forget();
    offline.versions("null").await.expect(200);
    records.forget();
    offline.document("null", "1.2.0").await.expect(200);
    records.forget();
    offline.get(&archive).await.expect(200);
}

/// The first bytes of a version are those that any replica recorded first, also where another one was fetching at that time.
#[tokio::test]
async fn a_version_that_another_replica_recorded_is_not_taken_with_other_bytes() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    let folder = Folder::new();
    store_kind::join(folder.path(), &replicas.records[0]);
    let elsewhere = FakeUpstream::start().await;
    elsewhere.publish(null_edition(2).signed_by(&SigningKey::new_key()));
    let late = Larder::mirroring(&elsewhere).store_at(&folder).start().await;
    let gate = elsewhere.hold_headers(Target::Sums);
    let (first, refused) = tokio::join!(
        async {
            elsewhere.wait_for(Target::Sums, 1).await;
            replicas.one.document("null", "1.2.0").await.expect(200);
            let first = replicas.records[0].shared("seen");
            gate.open();
            first
        },
        late.document("null", "1.2.0"),
    );
    let refused = text_of(&refused.expect(502));
    assert!(refused.contains("larder accept"), "{refused}");
    assert_eq!(late.alarms().await.len(), 1);
    let seen = replicas.records[0].shared("seen/registry.terraform.io/providers/acme/null/1.2.0.json");
    assert!(!seen.is_empty() && seen.iter().all(|(path, record)| first.get(path) == Some(record)));
    assert_eq!(replicas.records[0].shared("alarms").len(), 1);
}

/// Without the shared records nothing can be judged; what is here is served.
#[tokio::test]
async fn without_the_shared_records_what_is_here_is_served_and_nothing_is_recorded() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    let list = replicas.other.versions("null").await.expect(200);
    let document = replicas.other.document("null", "1.2.0").await.expect(200);
    let before = replicas.records[1].shared("");
    replicas.records[1].cut(true);
    replicas.other.clock.advance(std::time::Duration::from_secs(3600));
    assert_eq!(replicas.other.versions("null").await.expect(200).body, list.body);
    assert_eq!(replicas.other.document("null", "1.2.0").await.expect(200).json()["shasum"], document.json()["shasum"]);
    replicas.upstream.publish(Provider::new("acme", "random"));
    let refused = replicas.other.versions("random").await.expect(503);
    assert!(
        text_of(&refused).contains("the records of the fleet cannot be reached: the connection is cut"),
        "{}",
        text_of(&refused)
    );
    replicas.other.document("random", "1.2.0").await.expect(503);
    assert_eq!(replicas.records[1].shared(""), before);
    replicas.records[1].cut(false);
    replicas.other.versions("random").await.expect(200);
    replicas.other.document("random", "1.2.0").await.expect(200);
}

/// Where the records go while upstream answers, the answer is not judged by the old copy.
#[tokio::test]
async fn a_set_that_cannot_be_recorded_is_not_served() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    replicas.other.versions("null").await.expect(200);
    let gate = replicas.upstream.hold_headers(Target::Sums);
    let ((), refused) = tokio::join!(
        async {
            replicas.upstream.wait_for(Target::Sums, 1).await;
            replicas.records[1].cut(true);
            gate.open();
        },
        replicas.other.document("null", "1.2.0"),
    );
    assert!(text_of(&refused.expect(503)).contains("the records of the fleet cannot be reached"));
    assert!(replicas.records[1].shared("seen/registry.terraform.io/providers/acme/null/1.2.0.json").is_empty());
}

#[tokio::test]
async fn explain_knows_what_another_replica_stored() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    assert_eq!(explain(&replicas.other, "address", "acme/null").await["verdict"], "asks-upstream");
    replicas.one.versions("null").await.expect(200);
    replicas.one.document("null", "1.2.0").await.expect(200);
    let explained = explain(&replicas.other, "address", "acme/null").await;
    assert_eq!((&explained["version"], &explained["decided_by"]), (&json!("1.2.0"), &json!(3)), "{explained}");
}

/// A command of one replica finds what another stored, and its effect is everybody's.
#[tokio::test]
async fn a_purge_finds_what_another_replica_stored() {
    let replicas = Replicas::start().await;
    replicas.publish(1);
    replicas.one.versions("null").await.expect(200);
    replicas.one.document("null", "1.2.0").await.expect(200);
    assert!(!replicas.records[0].shared("documents/registry.terraform.io/providers").is_empty());
    assert!(replicas.other.run_command("purge", "acme/null").await.ok);
    assert!(replicas.records[0].shared("documents/registry.terraform.io/providers").is_empty());
}
