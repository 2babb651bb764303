//! How larder limits requests to upstreams: circuit breaker, `Retry-After` and a rate limit for revalidations. Packages
//! that are not stored are always requested.

use std::time::{Duration, SystemTime};

use larder::clock::Clock;
use larder::upstream::backoff::Rate;

use crate::support::larder::{Builder, Larder};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// Longer than the freshness lifetime of version lists, and shorter than that of discovery documents.
const LIST_LIFETIME_EXCEEDED: Duration = Duration::from_secs(400);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn list_of(name: &str) -> Target {
    Target::Path(format!("acme/{name}/versions"))
}

async fn upstream_publishing(names: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in names {
        upstream.publish(Provider::new("acme", name).size(10_000));
    }
    upstream
}

/// A larder with stale cached lists of these providers.
async fn larder_with_stale_lists(builder: Builder, upstream: &FakeUpstream, names: &[&str]) -> Larder {
    let larder = builder.clock(&Clock::frozen()).start().await;
    for name in names {
        larder.versions(name).await.expect(200);
    }
    larder.clock.advance(LIST_LIFETIME_EXCEEDED);
    upstream.forget_requests();
    larder
}

async fn assert_stale(larder: &Larder, name: &str) {
    let answer = larder.versions(name).await.expect(200);
    assert!(answer.has_cache_status("detail=stale"), "{name}: {}", answer.header("cache-status"));
}

async fn assert_revalidated(larder: &Larder, name: &str) {
    let answer = larder.versions(name).await.expect(200);
    assert!(answer.has_cache_status("fwd=stale; stored"), "{name}: {}", answer.header("cache-status"));
}

/// A failure costs one request; then larder sends the origin no request for a short time, which grows.
#[tokio::test]
async fn a_failing_upstream_opens_the_breaker_for_growing_times() {
    let upstream = upstream_publishing(&["null", "random"]).await;
    let larder = larder_with_stale_lists(Larder::mirroring(&upstream), &upstream, &["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::Status(500));
    let request_both = async |times: usize| {
        for _ in 0..times {
            assert_stale(&larder, "null").await;
            assert_stale(&larder, "random").await;
        }
        upstream.count_of(Target::Everything)
    };
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
    assert_eq!(request_both(5).await, 1);
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
    // The breaker stays open for 5 s, then 10 s, then 20 s, each with a jitter of a quarter.
    for (seconds_open, seconds_more, requests) in [(3, 4, 2), (7, 6, 3), (14, 12, 4)] {
        larder.clock.advance(seconds(seconds_open));
        assert_eq!(request_both(3).await, requests - 1, "after {seconds_open} s");
        larder.clock.advance(seconds(seconds_more));
        assert_eq!(request_both(3).await, requests, "after {seconds_more} s more");
    }
    upstream.clear_faults();
    assert_eq!(request_both(3).await, 4);
    larder.clock.advance(seconds(60));
    assert_revalidated(&larder, "null").await;
    assert_revalidated(&larder, "random").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
}

/// The metric shows the open breakers of this moment, also without new requests.
#[tokio::test]
async fn an_expired_breaker_is_no_longer_reported() {
    let upstream = upstream_publishing(&["null"]).await;
    let larder = larder_with_stale_lists(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    upstream.fault(Target::Versions, Fault::Status(500));
    assert_stale(&larder, "null").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
    larder.clock.advance(seconds(7));
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
    assert_stale(&larder, "null").await;
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
    // The same server, configured under another host name: the breaker of the removed upstream is no longer reported.
    let same_server = format!("{}/", upstream.origin());
    larder.reload(Larder::builder().upstream("r.example", &same_server, "")).await.unwrap();
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
}

/// A package that is not stored is always tried, and no failed fill is cached; one success closes the breaker.
#[tokio::test]
async fn a_package_that_is_not_stored_is_fetched_however_often_upstream_failed() {
    let upstream = upstream_publishing(&["null", "random"]).await;
    let larder = larder_with_stale_lists(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    upstream.fault(Target::Versions, Fault::Status(501));
    assert_stale(&larder, "null").await;
    for tries in 1..4 {
        larder.versions("random").await.expect(502);
        assert_eq!(upstream.count_of(list_of("random")), tries);
    }
    assert_stale(&larder, "null").await;
    assert_eq!(upstream.count_of(list_of("null")), 1);
    upstream.clear_faults();
    larder.versions("random").await.expect(200);
    assert_revalidated(&larder, "null").await;
}

/// Promise 11: a refused connection opens the breaker like any other failure.
#[tokio::test]
async fn an_upstream_that_is_down_does_not_get_a_connection_per_request() {
    let mut upstream = upstream_publishing(&["null"]).await;
    let larder = larder_with_stale_lists(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    upstream.stop().await;
    assert_stale(&larder, "null").await;
    let attempts = larder.metric("larder_upstream_requests_total").await;
    assert!(attempts > 0.0);
    for _ in 0..5 {
        assert_stale(&larder, "null").await;
    }
    assert_eq!(larder.metric("larder_upstream_requests_total").await, attempts);
    upstream.restart().await;
    larder.clock.advance(seconds(10));
    assert_revalidated(&larder, "null").await;
}

/// A truncated body counts as a failure although the status was 200.
#[tokio::test]
async fn a_truncated_body_opens_the_breaker() {
    let upstream = upstream_publishing(&["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::NoValidators);
    let larder = larder_with_stale_lists(Larder::mirroring(&upstream), &upstream, &["null", "random"]).await;
    upstream.fault(Target::Versions, Fault::Truncated(10));
    assert_stale(&larder, "null").await;
    assert_stale(&larder, "random").await;
    assert_eq!(upstream.count_of(Target::Everything), 1);
}

/// A client waits for a revalidation for `patience` and then gets the stale list. A silent upstream costs that time
/// once, not once for each list; the request that goes on in the background
/// closes the breaker.
#[tokio::test]
async fn a_silent_upstream_costs_the_patience_once() {
    let names = ["null", "random", "tls"];
    let upstream = upstream_publishing(&names).await;
    let builder = Larder::mirroring(&upstream).upstream_lines("patience = \"400ms\"");
    let larder = larder_with_stale_lists(builder, &upstream, &names).await;
    let gate = upstream.hold_headers(Target::Versions);
    for name in names {
        assert_stale(&larder, name).await;
    }
    assert_eq!(upstream.count_of(Target::Everything), 1);
    gate.open();
    until("the breaker closes", async || larder.metric("larder_breaker_open").await == 0.0).await;
    assert_revalidated(&larder, "random").await;
}

/// A request that exceeds its time limit counts as a failure of its origin, with or without the head of an answer.
#[tokio::test]
async fn a_document_that_exceeds_its_time_limit_opens_the_breaker() {
    for fault in [Fault::NeverAnswers, Fault::Stalls(10)] {
        let upstream = upstream_publishing(&["null", "random"]).await;
        upstream.fault(Target::Versions, Fault::NoValidators);
        let builder = Larder::mirroring(&upstream)
            .upstream_lines("patience = \"0s\"")
            .upstream_timeout(Duration::from_millis(1200));
        let larder = larder_with_stale_lists(builder, &upstream, &["null", "random"]).await;
        upstream.fault(Target::Versions, fault);
        assert_stale(&larder, "null").await;
        assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
        until("the request exceeds its time limit", async || larder.metric("larder_breaker_open").await == 1.0).await;
        assert_stale(&larder, "random").await;
        assert_eq!(upstream.count_of(list_of("random")), 0);
    }
}

/// Once the breaker's open time is over, one revalidation probes the origin, and the others do not wait for it.
#[tokio::test]
async fn one_revalidation_probes_the_origin_and_others_do_not_wait_for_it() {
    let upstream = upstream_publishing(&["null", "random"]).await;
    let builder = Larder::mirroring(&upstream).upstream_lines("patience = \"7s\"");
    let larder = larder_with_stale_lists(builder, &upstream, &["null", "random"]).await;
    upstream.fault_once(Target::Versions, Fault::Status(502));
    assert_stale(&larder, "null").await;
    larder.clock.advance(seconds(10));
    let gate = upstream.hold_headers(Target::Versions);
    let (probe, ()) = tokio::join!(larder.versions("null"), async {
        upstream.wait_for(Target::Versions, 2).await;
        for _ in 0..3 {
            assert_stale(&larder, "null").await;
            assert_stale(&larder, "random").await;
        }
        assert_eq!(upstream.count_of(Target::Versions), 2);
        gate.open();
    });
    assert!(probe.expect(200).has_cache_status("fwd=stale; stored"));
    assert_revalidated(&larder, "random").await;
}

/// Breakers are per origin: failures of the file host do not stop requests to the registry.
#[tokio::test]
async fn the_breaker_opens_for_the_failing_origin_only() {
    let upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    upstream.publish(Provider::new("acme", "null").size(10_000));
    let larder = Larder::mirroring(&upstream).allow_private("127.0.0.1");
    let larder = larder.upstream_lines("fresh = { versions = \"0s\", download = \"0s\" }").start().await;
    larder.document("null", "1.2.0").await.expect(200);
    upstream.fault(Target::Sums, Fault::Status(500));
    upstream.forget_requests();
    for _ in 0..4 {
        assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("detail=stale"));
    }
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Sums)), (1, 1));
    for _ in 0..3 {
        assert_revalidated(&larder, "null").await;
    }
    upstream.clear_faults();
    larder.clock.advance(seconds(10));
    assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("fwd=stale; stored"));
}

/// A revalidation whose discovery fails first leaves the probe to the next request.
#[tokio::test]
async fn an_unused_breaker_probe_is_returned() {
    let (discovery_host, upstream) = (FakeUpstream::start().await, upstream_publishing(&["null"]).await);
    let services = format!("{{\"providers.v1\":\"{}\"}}", upstream.providers_url());
    discovery_host.serve_json("/.well-known/terraform.json", &services);
    let builder = Larder::mirroring(&discovery_host).allow_private("127.0.0.1");
    let larder = larder_with_stale_lists(builder, &upstream, &["null"]).await;
    upstream.fault_once(Target::Versions, Fault::Status(500));
    assert_stale(&larder, "null").await;
    larder.clock.advance(seconds(4000));
    discovery_host.fault_once(Target::Discovery, Fault::Status(500));
    discovery_host.forget_requests();
    assert_stale(&larder, "null").await;
    assert_eq!((discovery_host.count_of(Target::Discovery), upstream.count_of(Target::Versions)), (1, 1));
    larder.clock.advance(seconds(10));
    assert_revalidated(&larder, "null").await;
}

/// `Retry-After` delays revalidations, for an hour at most, and nothing else. Larder never sends it to clients:
/// `Larder::get` checks every answer.
#[tokio::test]
async fn retry_after_delays_revalidations_only() {
    for status in [429, 503] {
        let upstream = upstream_publishing(&["null", "random"]).await;
        let builder = Larder::mirroring(&upstream).upstream_lines("fresh = { versions = \"0s\", discovery = \"10h\" }");
        let larder = larder_with_stale_lists(builder, &upstream, &["null"]).await;
        upstream.fault(Target::Versions, Fault::RetryAfter(status, 100_000));
        assert_stale(&larder, "null").await;
        larder.versions("random").await.expect(503);
        upstream.clear_faults();
        larder.versions("random").await.expect(200);
        larder.clock.advance(seconds(3500));
        assert_stale(&larder, "null").await;
        assert_stale(&larder, "random").await;
        assert_eq!(upstream.count_of(list_of("null")), 1);
        larder.clock.advance(seconds(150));
        assert_revalidated(&larder, "null").await;
        assert_revalidated(&larder, "random").await;
    }
}

/// A date in `Retry-After` is relative to the server's clock, which may differ from larder's.
#[tokio::test]
async fn retry_after_may_be_a_date() {
    let upstream = upstream_publishing(&["null"]).await;
    let larder = larder_with_stale_lists(Larder::mirroring(&upstream), &upstream, &["null"]).await;
    let retry_date = httpdate::fmt_http_date(SystemTime::now() + seconds(600));
    let response = http::Response::builder().status(429).header("retry-after", retry_date);
    upstream.serve("/v1/providers/acme/null/versions", response.body(String::new()).unwrap());
    assert_stale(&larder, "null").await;
    larder.clock.advance(seconds(560));
    assert_stale(&larder, "null").await;
    assert_eq!(upstream.count_of(Target::Everything), 1);
    larder.clock.advance(seconds(60));
    assert_stale(&larder, "null").await;
    assert_eq!(upstream.count_of(Target::Everything), 2);
}

/// Promise 11: revalidations of one upstream have a rate limit; packages that are not stored do not count.
#[tokio::test]
async fn revalidations_of_stored_documents_have_a_rate_limit() {
    let upstream = upstream_publishing(&["null", "random"]).await;
    let builder = Larder::mirroring(&upstream).upstream_lines("fresh = { versions = \"0s\" }");
    let larder =
        builder.upstream_limits(|limits| limits.revalidation_rate = Rate { burst: 4, per_second: 0 }).start().await;
    larder.versions("null").await.expect(200);
    for _ in 0..4 {
        assert_revalidated(&larder, "null").await;
    }
    larder.clock.advance(seconds(1000));
    for _ in 0..5 {
        assert_stale(&larder, "null").await;
    }
    larder.versions("random").await.expect(200);
    larder.document("random", "1.2.0").await.expect(200);
    assert_eq!((upstream.count_of(list_of("null")), upstream.count_of(list_of("random"))), (5, 1));
    assert_eq!(larder.metric("larder_breaker_open").await, 0.0);
}
