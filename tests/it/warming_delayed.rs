//! Warming from an upstream that is slow, down or rate-limiting: a job waits for fresh answers, and reports where it
//! used stale ones.

use std::time::Duration;

use larder::upstream::backoff::Rate;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::larder::Larder;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::warm_fixture::{WarmFixture, both_platforms, items};

const MORE_THAN_A_DAY: Duration = Duration::from_secs(25 * 3600);

fn warm_up_request() -> Value {
    json!({ "what": ["acme/null"], "platforms": ["linux_amd64"] })
}

/// A larder that warmed 1.2.0 yesterday, and an upstream that has published 1.3.0 since.
async fn warmed_yesterday() -> (FakeUpstream, Larder, WarmFixture) {
    let upstream = FakeUpstream::start().await;
    upstream.publish(both_platforms(Provider::new("acme", "null")));
    let larder = Larder::mirroring(&upstream).upstream_lines("patience = \"100ms\"").start().await;
    let fixture = WarmFixture::for_larder(&larder);
    assert_eq!(items(&fixture.warm(&warm_up_request()).await), ["null@1.2.0 linux_amd64 fetched"]);
    upstream.publish(both_platforms(Provider::new("acme", "null").version("1.3.0")));
    larder.clock.advance(MORE_THAN_A_DAY);
    upstream.forget_requests();
    (upstream, larder, fixture)
}

#[tokio::test]
async fn a_job_waits_longer_for_a_list_than_a_client() {
    let (mut upstream, larder, fixture) = warmed_yesterday().await;
    let gate = upstream.hold_body(Target::Versions);
    let path = fixture.start_job(&warm_up_request()).await;
    upstream.wait_for(Target::Versions, 1).await;
    assert!(
        larder.versions("null").await.expect(200).has_cache_status("larder; hit; detail=stale"),
        "the client waited"
    );
    assert_eq!(fixture.job(&path).await.state, "running", "the job used a stale list");
    gate.open();
    let job = fixture.finished_job(&path).await;
    assert_eq!(items(&job), ["null@1.3.0 linux_amd64 fetched"], "{job}");
    assert_eq!(job.items[0].unconfirmed, None, "{job}");
    upstream.stop().await;
    let path = larder.archive_path("null", "1.3.0").await;
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
}

#[tokio::test]
async fn a_version_chosen_from_an_unconfirmed_list_is_reported_as_unconfirmed() {
    let (mut upstream, _larder, fixture) = warmed_yesterday().await;
    upstream.stop().await;
    let job = fixture.warm(&warm_up_request()).await;
    assert_eq!(items(&job), ["null@1.2.0 linux_amd64 held"], "{job}");
    let output = job.items[0].unconfirmed.as_deref().unwrap();
    assert!(
        output.contains("could not be asked about the version list of registry.terraform.io/acme/null"),
        "{output}"
    );
}

#[tokio::test]
async fn a_list_is_requested_again_after_retry_after() {
    let (upstream, larder, fixture) = warmed_yesterday().await;
    upstream.fault_once(Target::Versions, Fault::RetryAfter(429, 600));
    let path = fixture.start_job(&warm_up_request()).await;
    upstream.wait_for(Target::Versions, 1).await;
    let job = fixture.wait_for_job(&path, |job| job.items[0].state != "resolving").await;
    assert_eq!(job.states(), ["waiting"], "{job}");
    larder.clock.advance(Duration::from_secs(601));
    assert_eq!(items(&fixture.finished_job(&path).await), ["null@1.3.0 linux_amd64 fetched"]);
}

/// A large job at a rate limiter is delayed many times.
#[tokio::test]
async fn many_delays_by_retry_after_are_no_failure() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    upstream.fault(Target::Archive, Fault::RetryAfter(429, 60));
    let path = fixture.start_job(&warm_up_request()).await;
    for count in 1..=15 {
        upstream.wait_for(Target::Archive, count).await;
        fixture.wait_for_job(&path, |job| job.items[0].state != "fetching").await;
        larder.clock.advance(Duration::from_secs(61));
    }
    upstream.clear_faults();
    larder.clock.advance(Duration::from_secs(61));
    let job = fixture.finished_job(&path).await;
    assert_eq!((job.states(), &*job.state), (vec!["fetched"], "done"), "{job}");
}

/// The number of delays is limited.
#[tokio::test]
async fn a_job_without_progress_ends() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    upstream.fault(Target::Archive, Fault::RetryAfter(429, 60));
    let path = fixture.start_job(&warm_up_request()).await;
    upstream.wait_for(Target::Archive, 1).await;
    fixture.wait_for_job(&path, |job| job.items[0].state == "waiting").await;
    larder.clock.advance(Duration::from_secs(7 * 3600));
    let job = fixture.finished_job(&path).await;
    assert!(job.error(0).contains("asks for a pause"), "{job}");
}

/// The delay may come from the target of a redirect, and not from the registry or a host that a document names.
#[tokio::test]
async fn a_job_waits_for_the_target_of_a_redirect() {
    let redirect_target = FakeUpstream::start().await;
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).allow_private(&redirect_target.origin()).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    upstream.fault(Target::Archive, Fault::RedirectTo(302, format!("{}/x.zip", redirect_target.origin())));
    redirect_target.fault(Target::Everything, Fault::RetryAfter(503, 600));
    let path = fixture.start_job(&warm_up_request()).await;
    redirect_target.wait_for(Target::Other, 1).await;
    let job = fixture.wait_for_job(&path, |job| job.items[0].state != "fetching").await;
    assert_eq!(job.states(), ["waiting"], "{job}");
    assert_eq!(redirect_target.requests().len(), 1, "it was requested again before its Retry-After had passed");
    upstream.clear_faults();
    larder.clock.advance(Duration::from_secs(601));
    assert_eq!(fixture.finished_job(&path).await.states(), ["fetched"]);
}

#[tokio::test]
async fn waiting_for_a_local_limit_ends_in_a_failure() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let builder = Larder::mirroring(&upstream);
    let larder = builder.upstream_limits(|limits| limits.job_rate = Rate { burst: 0, per_second: 0 }).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_job(&warm_up_request()).await;
    let job = eventually("the job gives up", async || {
        larder.clock.advance(Duration::from_secs(7 * 3600));
        Some(fixture.job(&path).await).filter(|job| job.state != "running")
    })
    .await;
    assert_eq!(job.state, "failed", "{job}");
    assert!(job.error(0).contains("has been asked often enough for now"), "{job}");
}
