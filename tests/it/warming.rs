//! Warming by list: everything that an `init` requests is stored beforehand, and each archive succeeds or fails by
//! itself.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::client;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::reports::{JobItemReport, JobReport};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::warm_fixture::{PLATFORMS, WarmFixture, both_platforms, items};

async fn upstream_with_versions(versions: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for version in versions {
        upstream.publish(both_platforms(Provider::new("acme", "null").version(version)));
    }
    upstream
}

fn warm_up_request(subject: &str) -> Value {
    json!({ "what": [subject], "platforms": ["linux_amd64"] })
}

/// Sends every request of a client, by host override and by network mirror.
async fn assert_everything_stored(larder: &Larder, name: &str, version: &str) {
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    larder.versions(name).await.expect(200);
    for platform in PLATFORMS {
        let document = larder.document_for(name, version, platform).await.expect(200).json();
        for file in ["shasums_url", "shasums_signature_url", "download_url"] {
            larder.get(document[file].as_str().unwrap()).await.expect(200);
        }
    }
    let listed = larder.get(&format!("/mirror/{HOST}/acme/{name}/index.json")).await.expect(200).json();
    assert!(listed["versions"][version].is_object(), "{listed}");
    let archives = larder.get(&format!("/mirror/{HOST}/acme/{name}/{version}.json")).await.expect(200).json();
    for platform in PLATFORMS {
        larder.get(archives["archives"][platform]["url"].as_str().unwrap()).await.expect(200);
    }
}

#[tokio::test]
async fn warmed_packages_are_served_without_upstream() {
    let mut upstream = upstream_with_versions(&["1.2.0"]).await;
    upstream.publish(both_platforms(Provider::new("acme", "large").size(3_000_000)));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let job = fixture.warm(&json!({ "what": ["acme/null", "acme/large@~> 1.0"], "platforms": PLATFORMS })).await;
    assert_eq!(
        items(&job),
        [
            "null@1.2.0 darwin_arm64 fetched",
            "null@1.2.0 linux_amd64 fetched",
            "large@1.2.0 darwin_arm64 fetched",
            "large@1.2.0 linux_amd64 fetched"
        ],
    );
    assert_eq!((&*job.state, &*job.what[1]), ("done", "registry.terraform.io/acme/large@~> 1.0"));
    let size = upstream.archive_bytes("acme", "large", "1.2.0", "linux_amd64").len() as u64;
    assert_eq!((job.items[3].bytes, job.items[3].size_bytes), (size, Some(size)));
    assert!(job.ended.unwrap() >= job.started);
    assert_eq!(larder.metric("larder_passed_through_total").await, 0.0);

    upstream.stop().await;
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).always_revalidate().store_at(&folder).start().await;
    assert_everything_stored(&larder, "null", "1.2.0").await;
    assert_everything_stored(&larder, "large", "1.2.0").await;
    let job = WarmFixture::for_larder(&larder)
        .warm(&json!({ "what": ["acme/null", "acme/large"], "platforms": PLATFORMS }))
        .await;
    assert_eq!((job.states(), &*job.state), (vec!["held"; 4], "done"), "{job}");
}

#[tokio::test]
async fn a_second_warm_up_fetches_nothing() {
    let upstream = upstream_with_versions(&["1.2.0"]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let all = json!({ "what": ["acme/null@1.2.0"], "platforms": PLATFORMS });
    fixture.warm(&all).await;
    upstream.forget_requests();
    assert_eq!(fixture.warm(&all).await.states(), ["held"; 2]);
    assert_eq!(upstream.requests().len(), 0);
    // A day later it revalidates stale documents, and fetches no archive.
    larder.clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(fixture.warm(&all).await.states(), ["held"; 2]);
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (2, 0));
}

#[tokio::test]
async fn the_newest_matching_version_is_warmed() {
    let upstream = upstream_with_versions(&["1.1.0", "1.2.0", "1.3.0-beta.1", "2.0.0", "2.1.0-rc.1"]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    for (subject, chosen) in [
        ("acme/null", "2.0.0"),
        ("acme/null@~> 1.1", "1.2.0"),
        ("acme/null@< 2, != 1.2.0", "1.1.0"),
        ("acme/null@1.3.0-beta.1", "1.3.0-beta.1"),
        ("acme/null@= 2.1.0-rc.1, > 1", "2.1.0-rc.1"),
        ("acme/null@1.1", "1.1.0"),
    ] {
        let job = fixture.warm(&warm_up_request(subject)).await;
        assert_eq!(job.items[0].name(), format!("{HOST}/acme/null@{chosen}"), "{subject}: {job}");
        assert_eq!(job.state, "done", "{job}");
    }
    for (subject, reason) in [
        ("acme/null@> 2.0.0", "none of the 5 listed versions matches"),
        ("acme/null@1.0.0", "no client would ask for it"),
        ("acme/never", "404"),
        ("elsewhere.example/acme/null", "is not an upstream of this mirror"),
    ] {
        let job = fixture.warm(&warm_up_request(subject)).await;
        assert_eq!(job.state, "failed", "{job}");
        assert!(job.error(0).contains(reason), "{job}");
    }
}

#[tokio::test]
async fn a_failing_archive_is_reported_and_stops_no_other() {
    let upstream = upstream_with_versions(&["1.2.0"]).await;
    for name in ["one", "two", "three"] {
        upstream.publish(Provider::new("acme", name));
    }
    upstream.fault(Target::Archive.with_path_part("-two_"), Fault::WrongBytes);
    upstream.fault(Target::Signature.with_path_part("-three_"), Fault::Status(404));
    let larder = Larder::mirroring(&upstream).start().await;
    let addresses = ["acme/two", "acme/null", "acme/three", "acme/one"];
    let job = WarmFixture::for_larder(&larder).warm(&json!({ "what": addresses, "platforms": PLATFORMS })).await;
    assert_eq!(
        items(&job),
        [
            "two@1.2.0 darwin_arm64 failed",
            "two@1.2.0 linux_amd64 failed",
            "null@1.2.0 darwin_arm64 fetched",
            "null@1.2.0 linux_amd64 fetched",
            "three@1.2.0 darwin_arm64 failed",
            "three@1.2.0 linux_amd64 failed",
            "one@1.2.0 darwin_arm64 failed",
            "one@1.2.0 linux_amd64 fetched",
        ]
    );
    assert_eq!(job.state, "failed");
    for (item, reason) in [(0, "404"), (1, "its bytes have SHA-256"), (5, "signature"), (6, "404")] {
        assert!(job.error(item).contains(reason), "{item}: {job}");
    }
    assert_eq!(larder.folder.blobs().len(), 3);
}

#[tokio::test]
async fn a_job_reports_the_progress_of_each_archive_and_fetches_eight_at_a_time() {
    const HALF_BYTES: usize = 1_500_000;
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(2 * HALF_BYTES));
    }
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let path = fixture.start_job(&json!({ "what": addresses, "platforms": ["linux_amd64"] })).await;
    let size = upstream.archive_bytes("acme", "p0", "1.2.0", "linux_amd64").len() as u64;
    let is_half_fetched = |item: &&JobItemReport| {
        item.state == "fetching" && item.bytes == HALF_BYTES as u64 && item.size_bytes == Some(size)
    };
    let eight_are_half_fetched = |job: &JobReport| job.items.iter().filter(is_half_fetched).count() == 8;
    let job = fixture.wait_for_job(&path, eight_are_half_fetched).await;
    assert_eq!((job.states().iter().filter(|state| **state == "waiting").count(), &*job.state), (2, "running"));
    assert_eq!(upstream.count_of(Target::Archive), 8);
    let listed = fixture.get("/admin/v1/jobs").await.expect(200).json();
    assert_eq!(
        (&listed["jobs"][0]["id"], &listed["jobs"][0]["items"]["all"]),
        (&json!(job.id), &json!(10)),
        "{listed}"
    );

    gate.open();
    let job = fixture.finished_job(&path).await;
    assert_eq!((job.states(), &*job.state), (vec!["fetched"; 10], "done"));
    let listed = fixture.get("/admin/v1/jobs").await.expect(200).json();
    assert_eq!((&listed["jobs"][0]["state"], &listed["jobs"][0]["items"]["fetched"]), (&json!("done"), &json!(10)));
}

/// Promise 11: a job of any size leaves an upstream's documents and archives to clients, too.
#[tokio::test]
async fn a_job_asks_for_sixteen_lists_at_a_time() {
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name));
    }
    let gate = upstream.hold_headers(Target::Versions);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let path = fixture.start_job(&json!({ "what": addresses, "platforms": ["linux_amd64"] })).await;
    upstream.wait_for(Target::Versions, 16).await;
    let job = fixture.job(&path).await;
    assert_eq!(job.states().iter().filter(|state| **state == "waiting").count(), 4, "{job}");
    gate.open();
    assert_eq!(fixture.finished_job(&path).await.states(), vec!["fetched"; 20]);
}

/// Promise 11: modules have places of their own.
#[tokio::test]
async fn a_job_fetches_eight_modules_at_a_time() {
    let modules = ModuleFixture::start().await;
    let names: Vec<String> = (0..10).map(|number| format!("m{number}")).collect();
    for name in &names {
        modules.publish_archive(name, &tar_gz(&[("main.tf", name.as_bytes())]));
    }
    let gate = modules.archives.hold_headers(Target::ModuleArchive);
    let larder = modules.larder().start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}/test")).collect();
    let path = fixture.start_job(&json!({ "what": addresses })).await;
    modules.archives.wait_for(Target::ModuleArchive, 8).await;
    // Each list is read by now, or its item waits for its turn.
    let is_settled = |job: &JobReport| job.states().iter().all(|state| matches!(*state, "waiting" | "fetching"));
    let job = fixture.wait_for_job(&path, is_settled).await;
    assert_eq!(job.states().iter().filter(|state| **state == "fetching").count(), 8, "{job}");
    gate.open();
    assert_eq!(fixture.finished_job(&path).await.states(), vec!["fetched"; 10]);
}

/// Promise 11: an archive that has arrived waits behind no document and no module of another job.
#[tokio::test]
async fn an_archive_ends_while_lists_and_modules_take_all_their_places() {
    let modules = ModuleFixture::start().await;
    let upstream = &modules.registry;
    let providers: Vec<String> = (0..17).map(|number| format!("p{number}")).collect();
    providers.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(3_000_000)));
    for number in 0..8 {
        modules.publish_archive(&format!("m{number}"), &tar_gz(&[("main.tf", b"# one\n")]));
    }
    let larder = modules.larder().start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let module_gate = modules.archives.hold_headers(Target::ModuleArchive);
    let module_addresses: Vec<String> = (0..8).map(|number| format!("acme/m{number}/test")).collect();
    let of_modules = fixture.start_job(&json!({ "what": module_addresses })).await;
    modules.archives.wait_for(Target::ModuleArchive, 8).await;
    let archive_gate = upstream.hold_after(Target::Archive, 1_000_000);
    let of_archive = fixture.start_job(&warm_up_request("acme/p0")).await;
    upstream.wait_for(Target::Archive, 1).await;
    let list_gate = upstream.hold_headers(Target::Versions);
    let addresses: Vec<String> = providers[1..].iter().map(|name| format!("acme/{name}")).collect();
    let of_lists = fixture.start_job(&json!({ "what": addresses, "platforms": ["linux_amd64"] })).await;
    upstream.wait_for(Target::Versions, 17).await;

    archive_gate.open();
    assert_eq!(fixture.finished_job(&of_archive).await.states(), ["fetched"]);
    list_gate.open();
    module_gate.open();
    assert_eq!(fixture.finished_job(&of_lists).await.states(), vec!["fetched"; 16]);
    assert_eq!(fixture.finished_job(&of_modules).await.states(), vec!["fetched"; 8]);
}

#[tokio::test]
async fn a_cancelled_job_fetches_no_more_and_keeps_stored_archives() {
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(3_000_000));
    }
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    fixture.warm(&warm_up_request("acme/p0")).await;
    let gate = upstream.hold_after(Target::Archive, 1_000_000);
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let all = json!({ "what": addresses, "platforms": ["linux_amd64"] });
    let path = fixture.start_job(&all).await;
    // Three more wait for their turn.
    upstream.wait_for(Target::Archive, 9).await;
    fixture.wait_for_job(&path, |job| job.items[0].state == "held").await;
    let ended = fixture.cancel(&path).await;
    assert_eq!(ended.state, "cancelled");
    assert_eq!(ended.states(), [vec!["held"], vec!["cancelled"; 11]].concat());
    assert!(ended.ended.is_some());
    assert_eq!(fixture.job(&path).await, ended);
    // Cancelling a finished job changes nothing.
    assert_eq!(fixture.cancel(&path).await, ended);

    gate.open();
    let job = fixture.warm(&all).await;
    assert_eq!(job.state, "done", "{job}");
    assert_eq!(upstream.count_of(Target::Archive), 12, "something was fetched twice");
    assert_eq!(fixture.job(&path).await, ended);
}

/// An upstream's Retry-After delays jobs, but not clients.
#[tokio::test]
async fn a_job_waits_for_retry_after() {
    let upstream = upstream_with_versions(&["1.2.0"]).await;
    upstream.publish(Provider::new("acme", "other"));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    upstream.fault_once(Target::Archive, Fault::RetryAfter(429, 600));
    let path = fixture.start_job(&warm_up_request("acme/null")).await;
    fixture.wait_for_job(&path, |job| job.items[0].state == "waiting" && upstream.count_of(Target::Archive) >= 1).await;
    let requests = upstream.requests().len();
    // Another job at this upstream waits too.
    let other = fixture.start_job(&warm_up_request("acme/other")).await;
    larder.versions("null").await.expect(200);
    fixture.wait_for_job(&other, |job| job.items[0].state == "waiting").await;
    assert_eq!(upstream.requests().len(), requests);
    let document = larder.document("other", "1.2.0").await;
    assert_eq!(document.status, 200, "a client was delayed");

    larder.clock.advance(Duration::from_secs(601));
    for path in [path, other] {
        let job = fixture.finished_job(&path).await;
        assert_eq!(job.state, "done", "{job}");
    }
}

#[tokio::test]
async fn an_archive_that_does_not_fit_into_the_store_is_not_reported_as_warm() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "large").size(3_000_000));
    let names: Vec<String> = (0..8).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(300_000));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let job = fixture.warm(&warm_up_request("acme/large")).await;
    assert!(job.error(0).contains("do not fit: the limit of the store is 1048576"), "{job}");
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let job = fixture.warm(&json!({ "what": addresses, "platforms": ["linux_amd64"] })).await;
    assert_eq!(job.state, "failed", "{job}");
    let fetched: Vec<usize> = (0..8).filter(|item| job.items[*item].state == "fetched").collect();
    // At the end as many archives are stored as fit; each may have evicted an earlier one.
    assert!(fetched.len() <= 3, "{job}");
    let failed = (0..8).find(|item| !fetched.contains(item)).unwrap();
    assert!(job.error(failed).contains("was downloaded and is not stored"), "{job}");
    upstream.forget_requests();
    for item in fetched {
        let path = larder.archive_path(&format!("p{item}"), "1.2.0").await;
        assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
    }
    assert_eq!(upstream.count_of(Target::Archive), 0, "an archive that was reported as fetched is not stored");
}

/// Promise 12: an offline larder sends nothing for a warm-up.
#[tokio::test]
async fn offline_a_warm_up_of_stored_packages_succeeds_without_requests() {
    let upstream = upstream_with_versions(&["1.1.0", "1.2.0"]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    WarmFixture::for_larder(&larder).warm(&warm_up_request("acme/null@1.1.0")).await;
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    let job = WarmFixture::for_larder(&larder)
        .warm(&json!({ "what": ["acme/null@1.1.0", "acme/null@1.2.0", "acme/other"], "platforms": ["linux_amd64"] }))
        .await;
    assert_eq!((job.states(), upstream.requests().len()), (vec!["held", "failed", "failed"], 0), "{job}");
    // Clients get the stored versions.
    assert!(job.error(1).contains("1.2.0 is none of the 1 versions that are listed"), "{job}");
    assert!(job.error(2).contains("this mirror is offline"), "{job}");
}

/// The client joins the download of the job, which continues after the job is cancelled.
#[tokio::test]
async fn a_client_and_a_job_share_one_download() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(3_000_000));
    let gate = upstream.hold_after(Target::Archive, 1_000_000);
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_job(&warm_up_request("acme/null")).await;
    upstream.wait_for(Target::Archive, 1).await;
    let archive = larder.archive_path("null", "1.2.0").await;
    let url = format!("{}{archive}", larder.base());
    let mut pending_request = client().get(&url).send().await.unwrap();
    let mut body = pending_request.chunk().await.unwrap().unwrap().to_vec();
    fixture.send("DELETE", &path, "application/json", "").await.expect(200);
    gate.open();
    while let Some(piece) = pending_request.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    assert!(body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    assert_eq!(upstream.count_of(Target::Archive), 1);
}
