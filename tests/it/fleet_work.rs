//! The common work of the replicas of a fleet: one list of what was missing, and recurring warm-ups that one of them runs for all.

use std::time::Duration;

use larder::clock::Clock;
use serde_json::Value;

use crate::fleet_archives::Shared;
use crate::support::http::{client, get, send};
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::reports::seconds;
use crate::support::upstream::{FakeUpstream, Gate, Provider, Target};
use crate::support::{eventually, until};

const ONE: &str = "http://one.test:8082/";
const OTHER: &str = "http://other.test:8082/";

const HOUR: Duration = Duration::from_secs(3600);

async fn status(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()
}

/// The recurring warm-up, as a replica tells it.
async fn warm_up(larder: &Larder) -> Value {
    status(larder).await["warm_ups"][0].clone()
}

/// The times at which the jobs of these replicas began.
async fn beginnings(larders: &[&Larder]) -> Vec<u64> {
    let mut beginnings = Vec::new();
    for larder in larders {
        let listed = get(&format!("{}/admin/v1/jobs", larder.admin())).await.expect(200).json();
        beginnings.extend(listed["jobs"].as_array().unwrap().iter().map(|job| seconds(&job["started"])));
    }
    beginnings
}

fn recurring(upstream: &FakeUpstream, clock: &Clock) -> Builder {
    let lines = "[[warm]]\nwhat = [\"acme/null\"]\nplatforms = [\"linux_amd64\"]\nevery = \"1d\"";
    Larder::mirroring(upstream).upstream_lines(lines).clock(clock)
}

/// Two replicas, of which one runs the recurring warm-up, until the gate opens.
struct Held {
    shared: Shared,
    upstream: FakeUpstream,
    gate: Gate,
    one: Larder,
    other: Larder,
}

impl Held {
    async fn start() -> Option<Self> {
        let (shared, upstream, clock) = (Shared::start()?, FakeUpstream::start().await, Clock::system());
        upstream.publish(Provider::new("acme", "null"));
        let gate = upstream.hold_headers(Target::Archive);
        let one = shared.replica(ONE, recurring(&upstream, &clock)).await;
        eventually("one replica runs it", async || warm_up(&one).await["running"].as_str().map(str::to_owned)).await;
        let other = shared.replica(OTHER, recurring(&upstream, &clock)).await;
        Some(Self { shared, upstream, gate, one, other })
    }
}

/// While one replica runs it, the others say so; when that one ends, another begins it.
#[tokio::test(flavor = "multi_thread")]
async fn a_recurring_warm_up_goes_on_when_its_replica_ends() {
    let Some(Held { shared: _shared, upstream: _upstream, gate, one, other }) = Held::start().await else { return };
    let told = eventually("the other one says who runs it", async || {
        let told = warm_up(&other).await;
        (!told["running_on"].is_null()).then_some(told)
    });
    let told = told.await;
    assert_eq!((&told["running_on"], &told["running"], &told["next"]), (&ONE.into(), &Value::Null, &Value::Null));
    one.stop().await;
    eventually("the other one runs it", async || warm_up(&other).await["running"].as_str().map(str::to_owned)).await;
    gate.open();
    let last =
        eventually("it has run", async || Some(warm_up(&other).await["last"].clone()).filter(|last| !last.is_null()));
    let last = last.await;
    assert_eq!((&last["state"], &last["items"]["fetched"]), (&"done".into(), &1.into()), "{last}");
}

/// A replica whose configuration drops it ends the run that it began, and leaves the warm-up to the others then.
#[tokio::test(flavor = "multi_thread")]
async fn a_recurring_warm_up_that_a_reload_drops_is_left_to_the_others() {
    let Some(Held { shared, upstream, gate, one, other }) = Held::start().await else { return };
    one.reload(Larder::mirroring(&upstream)).await.unwrap();
    let claims = "select count(*) from larder.claim where until > now()";
    assert_eq!((shared.sql(claims), &warm_up(&other).await["last"]), ("1".to_owned(), &Value::Null));
    gate.open();
    let last = eventually("the other one runs it", async || {
        Some(warm_up(&other).await["last"].clone()).filter(|last| !last.is_null())
    });
    assert_eq!(last.await["state"], "done");
    until("nobody claims it", async || shared.sql(claims) == "0").await;
}

/// A run of one replica counts for all, at the start and at each interval.
#[tokio::test(flavor = "multi_thread")]
async fn one_replica_runs_a_recurring_warm_up_for_all() {
    let Some(shared) = Shared::start() else { return };
    let (upstream, clock) = (FakeUpstream::start().await, Clock::system());
    upstream.publish(Provider::new("acme", "null"));
    let one = shared.replica(ONE, recurring(&upstream, &clock)).await;
    let has_run = async |larder: &Larder, before: &Value| {
        let run = eventually("it has run", async || {
            let told = warm_up(larder).await;
            let is_over = told["running"].is_null() && told["running_on"].is_null();
            Some(told["last"].clone()).filter(|last| is_over && !last.is_null() && last != before)
        });
        run.await
    };
    let first = has_run(&one, &Value::Null).await;
    let other = shared.replica(OTHER, recurring(&upstream, &clock)).await;
    assert_eq!(has_run(&other, &Value::Null).await, first);
    assert_eq!(warm_up(&other).await["next"], warm_up(&one).await["next"]);
    assert_eq!(beginnings(&[&one, &other]).await.len(), 1);
    // More than the interval and its maximal jitter.
    clock.advance(26 * HOUR);
    let due = clock.now().0 - 1;
    let second = has_run(&one, &first).await;
    assert_eq!(has_run(&other, &first).await, second);
    let begun = beginnings(&[&one, &other]).await.into_iter().filter(|began| *began >= due).count();
    assert_eq!(begun, 1);
}

/// A package that was missing on one replica is missing for all of them, and a list that a person clears on one is cleared.
#[tokio::test(flavor = "multi_thread")]
async fn the_replicas_have_one_list_of_what_was_missing() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    let offline = || Larder::mirroring(&upstream).network("offline = true");
    let (one, other) = (shared.replica(ONE, offline()).await, shared.replica(OTHER, offline()).await);
    one.document("null", "1.2.0").await.expect(503);
    other.document("null", "1.2.0").await.expect(503);
    other.document("random", "3.0.0").await.expect(503);
    for replica in [&one, &other] {
        let listed = eventually("all of it is listed", async || {
            let listed = status(replica).await["missing"].as_array().unwrap().clone();
            let listed =
                listed.iter().map(|line| (line["address"].as_str().unwrap().to_owned(), line["times"].as_u64()));
            let mut listed: Vec<_> = listed.collect();
            listed.sort();
            (listed == [(format!("{HOST}/acme/null"), Some(2)), (format!("{HOST}/acme/random"), Some(1))]).then_some(())
        });
        listed.await;
    }
    send(client().delete(format!("{}/admin/v1/missing", other.admin())).bearer_auth(other.token()))
        .await
        .unwrap()
        .expect(200);
    eventually("nothing is listed", async || {
        status(&one).await["missing"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
}
