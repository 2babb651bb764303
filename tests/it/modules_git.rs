//! Git servers as they are: ones that break off, fall silent, are slow, know no filter, or want to know who asks.

use std::time::Duration;

use crate::support::git_module_fixture::{Form, ModuleScene, Place, download_path, fetch};
use crate::support::http::get;
use crate::support::larder::HOST;
use crate::support::upstream::{Fault, Target, Telling};

/// Silence allowed to these servers: longer than a busy machine needs to begin a session.
const SILENCE: Duration = Duration::from_secs(2);

/// A scene whose module `acme/one` is here.
fn publish(fixture: &ModuleScene, location: String) {
    fixture.publish(&Form {
        name: "one".to_owned(),
        called: "",
        location,
        telling: Telling::NoContent,
        instead_of_direct: None,
    });
}

/// DESIGN 4: a failure is reported, and not cached.
#[tokio::test]
async fn an_ssh_server_that_falls_silent_or_breaks_off_is_given_up_and_asked_again() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    publish(&fixture, format!("git::{}?ref=v1.0.0", fixture.ssh.url("acme/net")));
    let larder = fixture.larder().bounds(|bounds| bounds.git.idle = SILENCE).start().await;
    fixture.ssh.hang();
    let answer = larder.get(&download_path("one")).await;
    assert!(matches!(answer.status, 502 | 504), "{}", answer.text());
    fixture.ssh.heal();
    // At once, in what git says of itself, in its refs, in the pack.
    for bytes in [0, 10, 250, 2_000] {
        fixture.ssh.break_off(bytes);
        // A break that larder took for silence would be a 504.
        let answer = larder.get(&download_path("one")).await;
        assert_eq!(answer.status, 502, "{bytes}: {}", answer.text());
        assert!(larder.folder.blobs().is_empty() && larder.folder.files("staging").is_empty(), "{bytes}");
        fixture.ssh.heal();
    }
    larder.get(&download_path("one")).await.expect(204);
}

/// The same failures over https.
#[tokio::test]
async fn a_git_server_that_breaks_off_falls_silent_or_answers_nonsense_is_given_up_and_asked_again() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    publish(&fixture, fixture.over_https("?ref=v1.0.0"));
    let larder = fixture.larder().bounds(|bounds| bounds.git.idle = SILENCE).start().await;
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
        fixture.git.heal();
    }
    larder.get(&download_path("one")).await.expect(204);
}

/// The client gives up after ten seconds; before that it gets a location that waits for the archive.
#[tokio::test]
async fn a_slow_git_server_costs_the_checksum_and_not_the_module() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    publish(&fixture, fixture.over_https("?ref=v1.0.0"));
    fixture.git.fault(Target::Git, Fault::Late(Duration::from_millis(300)));
    let larder = fixture.larder().answer_within(Duration::from_millis(500)).start().await;
    let text = larder.get(&download_path("one")).await.expect(204);
    assert_eq!(text.header("cache-status"), "larder; fwd=miss", "nothing of it is stored yet");
    let text = Place::of(&text);
    assert_eq!(text.sha256, None);
    assert_eq!(text.path, format!("/archive/{HOST}/modules/acme/one/test/1.0.0/module.tar.gz"));
    let archive = get(&format!("{}{}", larder.base(), text.path)).await.expect(200).body;
    let (known, again) = fetch(larder.base(), "one").await;
    assert!(known.sha256.is_some() && again == archive);
}

/// Self-hosted git servers may lack `filter`; a commit id still means the same tree.
#[tokio::test]
async fn a_commit_id_is_fetched_from_a_server_without_filter_too() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    let commit = fixture.net.id("v1.0.0");
    publish(&fixture, fixture.over_https(&format!("?ref={commit}")));
    let with_filter = fixture.larder().start().await;
    fixture.net.without_filter();
    let without = fixture.larder().start().await;
    let here = fetch(without.base(), "one").await;
    fixture.net.git(&["config", "uploadpack.allowFilter", "true"]);
    assert!(fetch(with_filter.base(), "one").await == here);
}

/// DESIGN, promise 8: a `[[credential]]` for the upstreams that it lists, and for no other.
#[tokio::test]
async fn a_git_server_that_wants_a_credential_gets_the_one_that_is_for_it() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    publish(&fixture, fixture.over_https("?ref=v1.0.0"));
    // larder:hunter2
    fixture.git.demand_of_git("Basic bGFyZGVyOmh1bnRlcjI=");
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "hunter2").unwrap();
    for upstreams in ["[]".to_owned(), format!("[{HOST:?}]")] {
        let credential = format!(
            "[[credential]]\nhost = \"127.0.0.1:{}\"\nupstreams = {upstreams}\n\
             basic = {{ user = \"larder\", password = {{ file = {:?} }} }}",
            fixture.git.port(),
            secret.path()
        );
        let larder = fixture.larder().with(&credential).start().await;
        let answer = larder.get(&download_path("one")).await;
        assert!(!answer.text().contains("hunter2") && !answer.text().contains("bGFyZGVy"));
        assert_eq!(answer.status, if upstreams == "[]" { 502 } else { 204 }, "{}", answer.text());
    }
}
