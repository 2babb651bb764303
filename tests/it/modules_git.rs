//! Git servers that disconnect, stop sending, are slow, do not support `filter`, or require a credential.

use std::time::Duration;

use crate::support::git_module_fixture::{
    GitModuleFixture, ModuleCase, ModuleLocation, download_module, download_path,
};
use crate::support::http::get;
use crate::support::larder::HOST;
use crate::support::upstream::{Fault, LocationReply, Target};

/// The stall timeout of these tests: longer than a busy machine needs to begin a session.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Publishes the module `acme/one` at this location.
fn publish(fixture: &GitModuleFixture, location: String) {
    fixture.publish(&ModuleCase {
        name: "one".to_owned(),
        subdir_suffix: "",
        location,
        location_reply: LocationReply::NoContent,
        expected_tag: None,
    });
}

/// A failure is reported, and not cached.
#[tokio::test]
async fn an_ssh_server_that_stalls_or_disconnects_is_given_up_and_requested_again() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    publish(&fixture, format!("git::{}?ref=v1.0.0", fixture.ssh.url("acme/net")));
    let larder = fixture.larder().upstream_limits(|limits| limits.git.idle = STALL_TIMEOUT).start().await;
    fixture.ssh.hang();
    let answer = larder.get(&download_path("one")).await;
    assert!(matches!(answer.status, 502 | 504), "{}", answer.text());
    fixture.ssh.clear_faults();
    // Disconnects at once, within git's capabilities, within its refs, and within the pack.
    for bytes in [0, 10, 250, 2_000] {
        fixture.ssh.truncate(bytes);
        // A disconnect that larder took for a stall would be a 504.
        let answer = larder.get(&download_path("one")).await;
        assert_eq!(answer.status, 502, "{bytes}: {}", answer.text());
        assert!(larder.folder.blobs().is_empty() && larder.folder.files("staging").is_empty(), "{bytes}");
        fixture.ssh.clear_faults();
    }
    larder.get(&download_path("one")).await.expect(204);
}

/// The failures of the ssh test, over https.
#[tokio::test]
async fn a_git_server_that_disconnects_stalls_or_answers_garbage_is_given_up_and_requested_again() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    publish(&fixture, fixture.git_https_source("?ref=v1.0.0"));
    let larder = fixture.larder().upstream_limits(|limits| limits.git.idle = STALL_TIMEOUT).start().await;
    let faults = [
        Fault::Truncated(40),
        Fault::Reset(40),
        Fault::Stalls(40),
        Fault::NeverAnswers,
        Fault::Html,
        // The length of git's first line, which every git version sends; a later byte may be one that only some
        // versions send.
        Fault::WrongFirstByte,
        Fault::Status(503),
    ];
    let cases = ["/info/refs", "/git-upload-pack"].map(|path| faults.clone().map(|fault| (path, fault)));
    for (path, fault) in cases.into_iter().flatten().chain([("/git-upload-pack", Fault::WrongPack)]) {
        fixture.git.fault(Target::Path(path.into()), fault.clone());
        let answer = larder.get(&download_path("one")).await;
        assert!(matches!(answer.status, 502..=504), "{path} {fault:?}: {}", answer.text());
        assert!(larder.folder.blobs().is_empty() && larder.folder.files("staging").is_empty(), "{path} {fault:?}");
        fixture.git.clear_faults();
    }
    larder.get(&download_path("one")).await.expect(204);
}

/// The client gives up after ten seconds; before that it gets a location that waits for the archive.
#[tokio::test]
async fn with_a_slow_git_server_the_location_lacks_a_checksum_and_the_module_is_served() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    publish(&fixture, fixture.git_https_source("?ref=v1.0.0"));
    fixture.git.fault(Target::Git, Fault::Late(Duration::from_millis(300)));
    let larder = fixture.larder().answer_within(Duration::from_millis(500)).start().await;
    let response = larder.get(&download_path("one")).await.expect(204);
    assert_eq!(response.header("cache-status"), "larder; fwd=miss", "the module was already stored");
    let response = ModuleLocation::of(&response);
    assert_eq!(response.sha256, None);
    assert_eq!(response.path, format!("/archive/{HOST}/modules/acme/one/test/1.0.0/module.tar.gz"));
    let archive = get(&format!("{}{}", larder.base(), response.path)).await.expect(200).body;
    let (location, again) = download_module(larder.base(), "one").await;
    assert!(location.sha256.is_some() && again == archive);
}

/// Self-hosted git servers may lack `filter`; a commit id still means the same tree.
#[tokio::test]
async fn a_commit_id_is_fetched_from_a_server_without_filter_too() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    let commit = fixture.net.id("v1.0.0");
    publish(&fixture, fixture.git_https_source(&format!("?ref={commit}")));
    let with_filter = fixture.larder().start().await;
    fixture.net.without_filter();
    let larder_without_filter = fixture.larder().start().await;
    let without_filter = download_module(larder_without_filter.base(), "one").await;
    fixture.net.git(&["config", "uploadpack.allowFilter", "true"]);
    assert!(download_module(with_filter.base(), "one").await == without_filter);
}

/// Promise 8: larder uses a `[[credential]]` for the upstreams that it lists and for no other.
#[tokio::test]
async fn a_git_server_gets_the_credential_that_is_configured_for_it() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    publish(&fixture, fixture.git_https_source("?ref=v1.0.0"));
    // larder:hunter2
    fixture.git.require_git_authorization("Basic bGFyZGVyOmh1bnRlcjI=");
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "hunter2").unwrap();
    for upstreams in ["[]".to_owned(), format!("[{HOST:?}]")] {
        let credential = format!(
            "[[credential]]\nhost = \"127.0.0.1:{}\"\nupstreams = {upstreams}\n\
             basic = {{ user = \"larder\", password = {{ file = {:?} }} }}",
            fixture.git.port(),
            secret.path()
        );
        let larder = fixture.larder().upstream_lines(&credential).start().await;
        let answer = larder.get(&download_path("one")).await;
        assert!(!answer.text().contains("hunter2") && !answer.text().contains("bGFyZGVy"));
        assert_eq!(answer.status, if upstreams == "[]" { 502 } else { 204 }, "{}", answer.text());
    }
}
