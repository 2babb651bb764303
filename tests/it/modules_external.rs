//! Modules at sources that larder cannot fetch: larder passes the location on, unless the location may hold a secret or
//! larder is offline.

use crate::support::git_module_fixture::{ModuleLocation, download_module, download_path};
use crate::support::larder::{Folder, HOST};
use crate::support::module_fixture::ModuleFixture;
use crate::support::process::Process;
use crate::support::upstream::{LocationReply, Module};

/// Sources that larder passes on to the client.
const PASSED_ON: [&str; 7] = [
    "s3::https://s3-eu-west-1.amazonaws.com/acme-modules/net.zip",
    "s3::https://s3.amazonaws.com/acme/net.zip//modules/x?version=3",
    "gcs::https://www.googleapis.com/storage/v1/acme/net.zip?archive=zip",
    "hg::https://hg.acme.example/net?ref=v1.0.0",
    "hg::http://hg.acme.example/net",
    "oci://ghcr.io/acme/net?tag=1.0.0",
    "oci://ghcr.io/acme/net?digest=sha256:0123456789abcdef",
];

/// Sources that larder refuses because they may hold a secret: each with the secret, and the host that the error names.
const REFUSED: [(&str, &str, &str); 5] = [
    (
        "s3::https://s3.amazonaws.com/b/n.zip?aws_access_key_id=AKIA&aws_access_key_secret=S3CRET",
        "S3CRET",
        "s3.amazonaws.com",
    ),
    ("hg::https://larder:S3CRET@hg.acme.example/net", "S3CRET", "hg.acme.example"),
    ("gcs::https://www.googleapis.com/storage/v1/b/n.zip?token=S3CRET", "S3CRET", "www.googleapis.com"),
    ("oci://ghcr.io/acme/net?tag=1.0.0&auth=S3CRET", "S3CRET", "ghcr.io"),
    ("s3::https://S3CRET@s3.amazonaws.com/b/n.zip", "S3CRET", "s3.amazonaws.com"),
];

/// A location that larder cannot fetch is passed on as upstream wrote it, counted and logged.
#[tokio::test]
async fn a_source_that_larder_cannot_fetch_is_passed_on_byte_for_byte() {
    let fixture = ModuleFixture::start().await;
    let folder = Folder::new();
    let larder = Process::start(&fixture.larder_on(&folder), folder.path());
    for (number, location) in PASSED_ON.into_iter().enumerate() {
        for (location_reply, name) in [(LocationReply::NoContent, "header"), (LocationReply::Json, "json")] {
            let name = format!("{name}{number}");
            fixture
                .registry
                .publish_module(Module::new("acme", &name, "test").at(location).location_reply(location_reply));
            for _ in 0..2 {
                let response = larder.get(&download_path(&name)).await.expect(204);
                assert_eq!((response.header("x-terraform-get"), response.body.len()), (location, 0));
            }
        }
    }
    assert!(larder.metric("larder_modules_elsewhere_total").await >= 14.0);
    let line = larder.log().line_with("cannot fetch").await;
    assert!(line.contains("acme/header0/test@1.0.0") && line.contains("amazonaws.com"), "{line}");
    assert!(!larder.log().text().contains("acme-modules"), "paths are nobody's business");
    assert!(folder.blobs().is_empty());
    let archive = format!("/archive/{HOST}/modules/acme/header0/test/1.0.0/module.tar.gz");
    let message = larder.get(&archive).await.expect(502).text();
    assert!(message.contains("amazonaws.com") && message.contains("cannot fetch"), "{message}");
}

/// Promise 8: text that may be a secret appears in no response and in no log.
#[tokio::test]
async fn a_source_address_that_may_hold_a_secret_is_in_no_error_and_no_log() {
    let fixture = ModuleFixture::start().await;
    let folder = Folder::new();
    let larder = Process::start(&fixture.larder_on(&folder), folder.path());
    for (number, (location, secret, host)) in REFUSED.into_iter().enumerate() {
        let name = format!("n{number}");
        fixture.publish(&name, location);
        let answer = larder.get(&download_path(&name)).await.expect(502);
        let message = format!("{:?} {}", answer.headers, answer.text());
        assert!(message.contains(host) && !message.contains(secret), "{message}");
    }
    assert_eq!(larder.metric("larder_modules_elsewhere_total").await, 0.0);
    let log = larder.log().text();
    assert!(!log.contains("S3CRET"), "{log}");
}

/// An unusable location is not cached: once upstream names a source that larder can fetch, the module is served.
#[tokio::test]
async fn a_refused_source_is_requested_again() {
    let fixture = ModuleFixture::start().await;
    let larder = fixture.larder().start().await;
    fixture.publish("one", REFUSED[0].0);
    for _ in 0..2 {
        larder.get(&download_path("one")).await.expect(502);
    }
    fixture.publish_archive("one", &crate::support::module_fixture::tar_gz(&[("main.tf", b"# here\n")]));
    download_module(larder.base(), "one").await;
}

/// Promise 12: an offline larder does not send clients to external sources.
#[tokio::test]
async fn a_sealed_larder_sends_no_client_to_an_external_source() {
    let fixture = ModuleFixture::start().await;
    fixture.publish("one", PASSED_ON[0]);
    let larder = fixture.larder().start().await;
    larder.get(&download_path("one")).await.expect(204);
    let folder = larder.stop().await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    let answer = larder.get(&download_path("one")).await.expect(502);
    assert_eq!(answer.header("x-terraform-get"), "");
    let message = answer.text();
    assert!(message.contains("s3-eu-west-1.amazonaws.com") && message.contains("offline"), "{message}");
}

/// Promise 6: a version whose new location larder cannot fetch stays served from the store.
#[tokio::test]
async fn a_stored_archive_is_served_although_upstream_moved_it() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().always_revalidate().start().await;
    let (location, archive) = download_module(larder.base(), "one").await;
    for new_source in [PASSED_ON[0], REFUSED[0].0] {
        fixture.publish("one", new_source);
        let response = larder.get(&download_path("one")).await.expect(204);
        assert!(ModuleLocation::of(&response) == location, "{}", response.header("x-terraform-get"));
        assert!(larder.get(&location.path).await.expect(200).body == archive);
    }
    let folder = larder.stop().await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    assert!(download_module(larder.base(), "one").await == (location, archive));
}
