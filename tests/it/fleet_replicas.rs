//! Larders that share records in PostgreSQL, each with its own copy: when a command returns, all of them have its effect, and a
//! replica that cannot know says so.

use std::sync::Arc;
use std::time::Duration;

use larder::clock::Clock;

use crate::support::bucket::TestBucket;
use crate::support::http::get;
use crate::support::larder::{Folder, Larder};
use crate::support::larder_commands::run_larder_in;
use crate::support::postgres::{OTHER_ROLE, RUN_ROLE, TestDatabase};
use crate::support::process::CommandOutput;
use crate::support::store_kind::{Replica, join_fleet};
use crate::support::upstream::{FakeUpstream, Provider, SigningKey};
use crate::support::{repetitions, until};

const ONE: &str = "http://one.test:8082/";
const OTHER: &str = "http://other.test:8082/";

/// Two replicas.
struct Fleet {
    upstream: FakeUpstream,
    database: Arc<TestDatabase>,
    /// The clock by which the replicas note when they heard of others.
    clock: Clock,
    one: Larder,
    other: Larder,
}

impl Fleet {
    /// The second replica serves nothing after this silence.
    async fn start(serve_behind: Option<Duration>) -> Option<Self> {
        // Roles are of a whole server.
        let database = Arc::new(TestDatabase::on_its_own_server()?);
        let (upstream, clock) = (FakeUpstream::start().await, Clock::system());
        let bucket = Arc::new(TestBucket::start());
        let start = async |url, role, serve_behind| {
            let folder = Folder::new();
            let (database, bucket, clock) = (Arc::clone(&database), Arc::clone(&bucket), clock.clone());
            let replica = Replica { database, bucket, role, url, serve_behind, clock };
            join_fleet(folder.path(), &replica);
            Larder::mirroring(&upstream).store_at(&folder).start().await
        };
        let (one, other) = (start(ONE, RUN_ROLE, None).await, start(OTHER, OTHER_ROLE, serve_behind).await);
        Some(Self { upstream, database, clock, one, other })
    }

    fn publish(&self, edition: u64) {
        self.upstream.publish(Provider::new("acme", "null").version("1.2.0").edition(edition));
    }

    async fn until_both_are_heard(&self) {
        let heard = "select count(*) from larder.replica where applied <> '' and left_at is null";
        until("both replicas are heard", async || self.database.sql(heard) == "2").await;
    }
}

/// A command for a replica.
async fn command(replica: &Larder, arguments: &[&str]) -> CommandOutput {
    let (admin, folder) = (replica.admin(), &replica.folder);
    let admin = admin.strip_prefix("http://").unwrap();
    let text = format!("[admin]\nlisten = \"{admin}\"\n[store]\npath = {:?}\n", folder.path());
    std::fs::write(folder.path().join("mirror.toml"), text).unwrap();
    run_larder_in(folder.path(), folder, arguments).await
}

/// Promise 16: after a command on one replica has returned, the next answer of the other has its effect.
#[tokio::test]
async fn a_command_returns_when_every_replica_has_its_effect() {
    let Some(fleet) = Fleet::start(None).await else { return };
    fleet.publish(1);
    fleet.until_both_are_heard().await;
    for round in 0..repetitions(8, 1000) {
        fleet.one.document("null", "1.2.0").await.expect(200);
        // From memory, of its copy.
        for _ in 0..2 {
            fleet.other.document("null", "1.2.0").await.expect(200);
        }
        let purged = command(&fleet.one, &["purge", "acme/null"]).await;
        assert_eq!(purged.code, Some(0), "{purged:?}");
        let asked = fleet.upstream.count("/v1/providers/acme/null/1.2.0/download/linux/amd64");
        let answer = fleet.other.document("null", "1.2.0").await.expect(200);
        assert_eq!(answer.header("cache-status"), "larder; fwd=miss; stored", "round {round}");
        assert_eq!(fleet.upstream.count("/v1/providers/acme/null/1.2.0/download/linux/amd64"), asked + 1);
    }
}

/// Promise 16: an acceptance, a pin and its end on one replica hold on the other when the command returns.
#[tokio::test]
async fn an_acceptance_and_a_pin_hold_on_every_replica_when_the_command_returns() {
    let Some(fleet) = Fleet::start(None).await else { return };
    fleet.publish(1);
    fleet.other.document("null", "1.2.0").await.expect(200);
    fleet.until_both_are_heard().await;
    let done = async |arguments: &[&str]| {
        let done = command(&fleet.one, arguments).await;
        assert_eq!(done.code, Some(0), "{done:?}");
    };
    let is_pinned = async || {
        let listed = get(&format!("{}/admin/v1/list", fleet.other.admin())).await.expect(200).json();
        listed["packages"][0]["pinned"].as_bool().unwrap()
    };
    for round in 0..repetitions(2, 250) {
        done(&["purge", "acme/null"]).await;
        let published = Provider::new("acme", "null").version("1.2.0").edition(round as u64 + 2);
        fleet.upstream.publish(published.signed_by(&SigningKey::new_key()));
        fleet.other.document("null", "1.2.0").await.expect(502);
        let shown = command(&fleet.one, &["accept", "acme/null@1.2.0"]).await;
        let evidence = shown.err.split("--evidence ").nth(1).unwrap().trim();
        done(&["accept", "acme/null@1.2.0", "--evidence", evidence]).await;
        let document = fleet.other.document("null", "1.2.0").await.expect(200).json();
        fleet.other.get(document["download_url"].as_str().unwrap()).await.expect(200);
        assert!(!is_pinned().await, "round {round}");
        done(&["pin", "acme/null@1.2.0"]).await;
        assert!(is_pinned().await, "round {round}");
        done(&["unpin", "acme/null@1.2.0"]).await;
        assert!(!is_pinned().await, "round {round}");
    }
}

/// Promise 16: a replica whose connections are cut is named by the command, and says itself that it is behind. It serves what it has, says of
/// nothing that it is absent, and goes on by itself.
#[tokio::test]
async fn a_replica_that_hears_nothing_is_named_and_says_that_it_is_behind() {
    let Some(fleet) = Fleet::start(None).await else { return };
    fleet.publish(1);
    fleet.other.document("null", "1.2.0").await.expect(200);
    fleet.until_both_are_heard().await;
    fleet.database.cut(OTHER_ROLE);
    // However slow this machine is, it was heard a moment ago.
    fleet.database.sql("update larder.replica set seen = now()");
    let named = command(&fleet.one, &["refresh", "acme/null"]).await;
    assert_eq!(named.code, Some(1), "{named:?}");
    assert!(named.err.contains(&format!("{OTHER} has not heard of this yet")) && !named.err.contains(ONE), "{named:?}");
    let status = async || fleet.other.document("null", "1.2.0").await.expect(200).header("cache-status").to_owned();
    until("the other replica is behind", async || status().await == "larder; hit; detail=behind").await;
    let unknown = fleet.other.document("nothing", "1.2.0").await.expect(503).text();
    assert!(unknown.contains("no connection to the database"), "{unknown}");
    // It may be gone for good, which no command waits for.
    fleet.database.sql("update larder.replica set seen = now() - interval '2 minutes' where url like '%other%'");
    let silent = command(&fleet.one, &["refresh", "acme/null"]).await;
    assert_eq!(silent.code, Some(0), "{silent:?}");
    assert!(silent.err.contains(&format!("{OTHER} is silent: it reached the database 2m")), "{silent:?}");
    fleet.database.mend(OTHER_ROLE);
    until("the other replica hears again", async || status().await == "larder; hit").await;
    let refreshed = command(&fleet.one, &["refresh", "acme/null"]).await;
    assert_eq!((refreshed.code, refreshed.err.as_str()), (Some(0), ""));
}

/// Promise 16: a replica that was behind for too long serves nothing, but its health.
#[tokio::test]
async fn a_replica_serves_nothing_that_may_be_too_old() {
    let Some(fleet) = Fleet::start(Some(Duration::from_secs(6))).await else { return };
    fleet.publish(1);
    fleet.other.document("null", "1.2.0").await.expect(200);
    fleet.until_both_are_heard().await;
    fleet.database.cut(OTHER_ROLE);
    until("it serves nothing", async || fleet.other.document("null", "1.2.0").await.status == 503).await;
    let refused = fleet.other.document("null", "1.2.0").await.expect(503).text();
    assert!(refused.contains("s, longer than serve_behind allows"), "{refused}");
    fleet.other.get("/healthz").await.expect(200);
    fleet.other.get("/readyz").await.expect(503);
    fleet.database.mend(OTHER_ROLE);
    until("it serves again", async || fleet.other.document("null", "1.2.0").await.status == 200).await;
}

/// Fills of one provider change records of one group. They queue for their turns here, and not by questions to the database; hits ask it
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn many_fills_of_one_provider_ask_the_database_a_few_times_each() {
    const FILLS: u64 = 32;
    let Some(fleet) = Fleet::start(None).await else { return };
    let versions: Vec<String> = (0..FILLS).map(|number| format!("1.{number}.0")).collect();
    for version in &versions {
        fleet.upstream.publish(Provider::new("acme", "null").version(version));
    }
    let questions = async || fleet.one.metric("larder_database_questions_total").await as u64;
    let before = questions().await;
    let fills = versions.iter().map(async |version| {
        let path = fleet.one.archive_path("null", version).await;
        fleet.one.get(&path).await.expect(200);
        path
    });
    let paths = futures_util::future::join_all(fills).await;
    let of_a_fill = (questions().await - before) / FILLS;
    assert!(of_a_fill <= 30, "{of_a_fill}");

    // The hashes of the archives are still computed and recorded.
    until("hits ask nothing", async || {
        let before = questions().await;
        for path in &paths {
            assert!(fleet.one.get(path).await.expect(200).has_cache_status("larder; hit"));
        }
        questions().await == before
    })
    .await;
}

/// A replica that stops says so: nobody waits for it.
#[tokio::test]
async fn a_replica_that_stops_is_not_waited_for() {
    let Some(fleet) = Fleet::start(None).await else { return };
    fleet.publish(1);
    fleet.until_both_are_heard().await;
    let Fleet { database, one, other, upstream: _upstream, .. } = fleet;
    other.stop().await;
    assert_eq!(database.sql("select url from larder.replica where left_at is not null"), OTHER);
    let refreshed = command(&one, &["refresh", "acme/null"]).await;
    assert_eq!((refreshed.code, refreshed.err.as_str()), (Some(0), ""));
}

/// Promise 16: a restart makes nothing newer. A replica that starts without the database is behind from the first answer on, and counts
/// the time before.
#[tokio::test]
async fn a_restart_ends_no_silence() {
    for (later, status, cache_status) in
        [(Duration::from_secs(60), 200, "larder; hit; detail=behind"), (Duration::from_secs(7200), 503, "larder")]
    {
        let Some(fleet) = Fleet::start(Some(Duration::from_secs(3600))).await else { return };
        fleet.publish(1);
        fleet.other.document("null", "1.2.0").await.expect(200);
        fleet.until_both_are_heard().await;
        let Fleet { upstream, database, clock, other, .. } = fleet;
        let folder = other.stop().await;
        database.cut(OTHER_ROLE);
        clock.advance(later);
        let other = Larder::mirroring(&upstream).store_at(&folder).start().await;
        let answer = other.document("null", "1.2.0").await.expect(status);
        assert_eq!(answer.header("cache-status"), cache_status);
        let alarms = other.fleet_alarms().await;
        let [(kind, detail)] = &alarms[..] else { panic!("{alarms:?}") };
        assert!(kind == "behind" && detail.starts_with("the database has not answered for "), "{alarms:?}");
    }
}
