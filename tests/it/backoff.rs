//! Upstreams are spared: breaker, `Retry-After` and a rate limit for revalidations. Packages that are not stored are
//! always tried.

use std::time::{Duration, SystemTime};

use larder::clock::Clock;
use larder::upstream::rate_budget::Rate;

use crate::support::larder::{Builder, Larder};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// Past the fresh time of lists, and not of discovery.
const STALE: Duration = Duration::from_secs(400);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn list_of(name: &str) -> Target {
    Target::Path(format!("acme/{name}/versions"))
}

async fn publishing(names: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in names {
        upstream.publish(Provider::new("acme", name).size(10_000));
    }
    upstream
}

/// A larder with stale cached lists of these providers.
async fn holding(builder: Builder, upstream: &FakeUpstream, names: &[&str]) -> Larder {
    let larder = builder.clock(&Clock::frozen()).start().await;
    for name in names {
        larder.versions(name).await.expect(200);
    }
    larder.clock.advance(STALE);
    upstream.forget_requests();
    larder
}

async fn is_stale(larder: &Larder, name: &str) {
    let answer = larder.versions(name).await.expect(200);
    assert!(answer.has_cache_status("detail=stale"), "{name}: {}", answer.header("cache-status"));
}

async fn is_revalidated(larder: &Larder, name: &str) {
    let answer = larder.versions(name).await.expect(200);
    assert!(answer.has_cache_status("fwd=stale; stored"), "{name}: {}", answer.header("cache-status"));
}

/// DESIGN 4, DESIGN, promise 11: a failure costs one request, then the origin is left alone for a short, growing while.
#[tokio::test]
async fn a_failing_upstream_opens_the_breaker_for_growing_times() {
    let upstream = publishing(&["null", "random"]).await;
    let larder = holding(Larder::mirroring(&upstream), &upstream, &["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::Status(500));
    let ask_all = async |times: usize| {
        for _ in 0..times {
            is_stale(&larder, "null").await;
            is_stale(&larder, "random").await;
        }
        upstream.count_of(Target::Everything)
    };
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
    assert_eq!(ask_all(5).await, 1);
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
    // 5 s, then 10 s, then 20 s, each a quarter more or less.
    for (not_yet, over, requests) in [(3, 4, 2), (7, 6, 3), (14, 12, 4)] {
        larder.clock.advance(seconds(not_yet));
        assert_eq!(ask_all(3).await, requests - 1, "after {not_yet} s");
        larder.clock.advance(seconds(over));
        assert_eq!(ask_all(3).await, requests, "after {over} s more");
    }
    upstream.heal();
    assert_eq!(ask_all(3).await, 4);
    larder.clock.advance(seconds(60));
    is_revalidated(&larder, "null").await;
    is_revalidated(&larder, "random").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
}

/// `status` shows the open breakers of this moment, also without new requests.
#[tokio::test]
async fn an_expired_breaker_is_no_longer_reported() {
    let upstream = publishing(&["null"]).await;
    let larder = holding(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    upstream.fault(Target::Versions, Fault::Status(500));
    is_stale(&larder, "null").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
    larder.clock.advance(seconds(7));
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
    is_stale(&larder, "null").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
    // A removed upstream is not asked, and so never answers.
    let elsewhere = format!("{}/", upstream.origin());
    larder.reload(Larder::builder().upstream("r.example", &elsewhere, "")).await.unwrap();
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
}

/// DESIGN 4: a package that is not stored is always tried, and no failed fill is cached; one success closes the
/// breaker.
#[tokio::test]
async fn a_package_that_is_not_stored_is_fetched_however_often_upstream_failed() {
    let upstream = publishing(&["null", "random"]).await;
    let larder = holding(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    upstream.fault(Target::Versions, Fault::Status(501));
    is_stale(&larder, "null").await;
    for tries in 1..4 {
        larder.versions("random").await.expect(502);
        assert_eq!(upstream.count_of(list_of("random")), tries);
    }
    is_stale(&larder, "null").await;
    assert_eq!(upstream.count_of(list_of("null")), 1);
    upstream.heal();
    larder.versions("random").await.expect(200);
    is_revalidated(&larder, "null").await;
}

/// DESIGN, promise 11: no connection at all is a failure like another.
#[tokio::test]
async fn an_upstream_that_is_down_is_not_asked_for_each_request() {
    let mut upstream = publishing(&["null"]).await;
    let larder = holding(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    upstream.stop().await;
    is_stale(&larder, "null").await;
    let knocked = larder.metric("larder_upstream_requests_total").await;
    assert!(knocked > 0.0);
    for _ in 0..5 {
        is_stale(&larder, "null").await;
    }
    assert_eq!(larder.metric("larder_upstream_requests_total").await, knocked);
    upstream.restart().await;
    larder.clock.advance(seconds(10));
    is_revalidated(&larder, "null").await;
}

/// A broken body is a failure, too, although its status was none.
#[tokio::test]
async fn an_upstream_that_breaks_off_opens_the_breaker() {
    let upstream = publishing(&["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::NoValidators);
    let larder = holding(Larder::mirroring(&upstream), &upstream, &["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::Truncated(10));
    is_stale(&larder, "null").await;
    is_stale(&larder, "random").await;
    assert_eq!(upstream.count_of(Target::Everything), 1);
}

/// DESIGN 4: a silent upstream costs `patience` once, not once for each stale list; the request that goes on in the
/// background closes the breaker.
#[tokio::test]
async fn a_silent_upstream_costs_the_patience_once() {
    let names = ["null", "random", "tls"];
    let upstream = publishing(&names).await;
    let builder = Larder::mirroring(&upstream).with("patience = \"400ms\"");
    let larder = holding(builder, &upstream, &names).await;
    let gate = upstream.hold_silent(Target::Versions);
    for name in names {
        is_stale(&larder, name).await;
    }
    assert_eq!(upstream.count_of(Target::Everything), 1);
    gate.open();
    until("it is back", async || larder.metric("larder_breaker_open").await == 0.0).await;
    is_revalidated(&larder, "random").await;
}

/// A request that is given up counts against the origin it waited for.
#[tokio::test]
async fn an_abandoned_request_counts_as_a_failure_of_its_origin() {
    let upstream = publishing(&["null", "random"]).await;
    let builder = Larder::mirroring(&upstream).with("patience = \"0s\"").give_up_after(Duration::from_millis(1200));
    let larder = holding(builder, &upstream, &["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::NeverAnswers);
    is_stale(&larder, "null").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
    until("it is given up", async || larder.metric("larder_breaker_open").await == 1.0).await;
    is_stale(&larder, "random").await;
    assert_eq!(upstream.count_of(list_of("random")), 0);
}

/// DESIGN 4: when the while is over one revalidation finds out, and the others do not wait for it.
#[tokio::test]
async fn one_revalidation_probes_the_origin_and_others_do_not_wait_for_it() {
    let upstream = publishing(&["null", "random"]).await;
    let builder = Larder::mirroring(&upstream).with("patience = \"7s\"");
    let larder = holding(builder, &upstream, &["null", "random"]).await;
    upstream.fault_once(Target::Versions, Fault::Status(502));
    is_stale(&larder, "null").await;
    larder.clock.advance(seconds(10));
    let gate = upstream.hold_silent(Target::Versions);
    let (found_out, ()) = tokio::join!(larder.versions("null"), async {
        upstream.wait_for(Target::Versions, 2).await;
        for _ in 0..3 {
            is_stale(&larder, "null").await;
            is_stale(&larder, "random").await;
        }
        assert_eq!(upstream.count_of(Target::Versions), 2);
        gate.open();
    });
    assert!(found_out.expect(200).has_cache_status("fwd=stale; stored"));
    is_revalidated(&larder, "random").await;
}

/// Per origin: files that live elsewhere may fail without the registry being left alone.
#[tokio::test]
async fn the_breaker_opens_for_the_failing_origin_only() {
    let upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    upstream.publish(Provider::new("acme", "null").size(10_000));
    let larder = Larder::mirroring(&upstream).allow_private("127.0.0.1");
    let larder = larder.with("fresh = { versions = \"0s\", download = \"0s\" }").start().await;
    larder.document("null", "1.2.0").await.expect(200);
    upstream.fault(Target::Sums, Fault::Status(500));
    upstream.forget_requests();
    for _ in 0..4 {
        assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("detail=stale"));
    }
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Sums)), (1, 1));
    for _ in 0..3 {
        is_revalidated(&larder, "null").await;
    }
    upstream.heal();
    larder.clock.advance(seconds(10));
    assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("fwd=stale; stored"));
}

/// A revalidation whose discovery fails first leaves the probe to the next request.
#[tokio::test]
async fn an_unused_breaker_probe_is_returned() {
    let (named, upstream) = (FakeUpstream::start().await, publishing(&["null"]).await);
    let services = format!("{{\"providers.v1\":\"{}\"}}", upstream.providers_url());
    named.serve_json("/.well-known/terraform.json", &services);
    let builder = Larder::mirroring(&named).allow_private("127.0.0.1");
    let larder = holding(builder, &upstream, &["null"]).await;
    upstream.fault_once(Target::Versions, Fault::Status(500));
    is_stale(&larder, "null").await;
    larder.clock.advance(seconds(4000));
    named.fault_once(Target::Discovery, Fault::Status(500));
    named.forget_requests();
    is_stale(&larder, "null").await;
    assert_eq!((named.count_of(Target::Discovery), upstream.count_of(Target::Versions)), (1, 1));
    larder.clock.advance(seconds(10));
    is_revalidated(&larder, "null").await;
}

/// DESIGN 4: `Retry-After` delays revalidations, for an hour at most, and nothing else. Larder never sends it to
/// clients: `Larder::get` checks every answer.
#[tokio::test]
async fn retry_after_delays_revalidations_only() {
    for status in [429, 503] {
        let upstream = publishing(&["null", "random"]).await;
        let builder = Larder::mirroring(&upstream).with("fresh = { versions = \"0s\", discovery = \"10h\" }");
        let larder = holding(builder, &upstream, &["null"]).await;
        upstream.fault(Target::Versions, Fault::RetryAfter(status, 100_000));
        is_stale(&larder, "null").await;
        larder.versions("random").await.expect(503);
        upstream.heal();
        larder.versions("random").await.expect(200);
        larder.clock.advance(seconds(3500));
        is_stale(&larder, "null").await;
        is_stale(&larder, "random").await;
        assert_eq!(upstream.count_of(list_of("null")), 1);
        larder.clock.advance(seconds(150));
        is_revalidated(&larder, "null").await;
        is_revalidated(&larder, "random").await;
    }
}

/// A date counts from the server's own clock, which may differ from larder's.
#[tokio::test]
async fn retry_after_may_be_a_date() {
    let upstream = publishing(&["null"]).await;
    let larder = holding(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    let until = httpdate::fmt_http_date(SystemTime::now() + seconds(600));
    let page = http::Response::builder().status(429).header("retry-after", until);
    upstream.serve("/v1/providers/acme/null/versions", page.body(String::new()).unwrap());
    is_stale(&larder, "null").await;
    larder.clock.advance(seconds(560));
    is_stale(&larder, "null").await;
    assert_eq!(upstream.count_of(Target::Everything), 1);
    larder.clock.advance(seconds(60));
    is_stale(&larder, "null").await;
    assert_eq!(upstream.count_of(Target::Everything), 2);
}

/// DESIGN, promise 11: revalidations of one upstream have a rate limit; packages that are not stored do not count.
#[tokio::test]
async fn revalidations_of_stored_documents_have_a_rate_limit() {
    let upstream = publishing(&["null", "random"]).await;
    let builder = Larder::mirroring(&upstream).with("fresh = { versions = \"0s\" }");
    let larder = builder.bounds(|bounds| bounds.revalidation_rate = Rate { burst: 4, per_second: 0 }).start().await;
    larder.versions("null").await.expect(200);
    for _ in 0..4 {
        is_revalidated(&larder, "null").await;
    }
    larder.clock.advance(seconds(1000));
    for _ in 0..5 {
        is_stale(&larder, "null").await;
    }
    larder.versions("random").await.expect(200);
    larder.document("random", "1.2.0").await.expect(200);
    assert_eq!((upstream.count_of(list_of("null")), upstream.count_of(list_of("random"))), (5, 1));
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
}
