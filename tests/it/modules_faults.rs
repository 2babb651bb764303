//! Faults of a module's archive host, its location, its clients, and of chained larders.

use std::time::Duration;

use crate::support::git_module_fixture::{ModuleLocation, download_module, download_module_archive, download_path};
use crate::support::http::{client, get, receive, send};
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, noise, tar_gz, unpack_tar_gz};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Module, RecordedRequest, Target, sha256_hex};

/// The URL path of an archive without a digest: larder serves the current archive there.
fn path_without_digest(name: &str) -> String {
    format!("/archive/{HOST}/modules/acme/{name}/test/1.0.0/module.tar.gz")
}

/// Promise 4: a client that disconnects cancels nothing.
#[tokio::test]
async fn a_client_that_disconnects_cancels_no_download() {
    let fixture = ModuleFixture::start().await;
    fixture.publish_archive("one", &tar_gz(&[("noise", &noise(1, 100_000))]));
    let larder = fixture.larder().start().await;
    let gate = fixture.archives.hold_after(Target::ModuleArchive, 10_000);
    let url = format!("{}{}", larder.base(), download_path("one"));
    let pending_request = tokio::spawn(async move { send(client().get(url)).await.is_ok() });
    fixture.archives.wait_for(Target::ModuleArchive, 1).await;
    pending_request.abort();
    assert!(pending_request.await.is_err());
    gate.open();
    until("the archive is stored", async || larder.folder.blobs().len() == 1).await;
    download_module(larder.base(), "one").await;
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 1);
}

/// Promise 4: a broken download is resumed if the server sends a validator, and restarted otherwise.
#[tokio::test]
async fn a_download_that_breaks_is_resumed_or_restarted() {
    for (faults, resumes) in [
        (vec![Fault::Truncated(60_000)], true),
        (vec![Fault::Reset(60_000)], true),
        (vec![Fault::Truncated(60_000), Fault::NoValidators], false),
        (vec![Fault::NoLengthTruncated(60_000)], true),
    ] {
        let fixture = ModuleFixture::start().await;
        fixture.publish_archive("one", &tar_gz(&[("noise", &noise(1, 100_000))]));
        let larder = fixture.larder().start().await;
        faults.iter().for_each(|fault| fixture.archives.fault_once(Target::ModuleArchive, fault.clone()));
        let (_, archive) = download_module(larder.base(), "one").await;
        assert!(unpack_tar_gz(&archive)["noise"] == noise(1, 100_000), "{faults:?}");
        let requests = fixture.archives.requests();
        let ranges: Vec<_> = requests.iter().map(|request| request.header("range").is_some()).collect();
        assert_eq!(ranges, [false, resumes], "{faults:?}");
        assert!(larder.folder.partial_downloads().is_empty());
    }
}

/// A resumed download whose content changed meanwhile is never appended to the old bytes.
#[tokio::test]
async fn a_download_that_changes_while_it_is_resumed_is_never_mixed() {
    let fixture = ModuleFixture::start().await;
    fixture.publish_archive("one", &tar_gz(&[("noise", &noise(1, 100_000))]));
    let larder = fixture.larder().start().await;
    fixture.archives.fault_once(Target::ModuleArchive, Fault::Truncated(60_000));
    let gate = fixture.archives.hold_after(Target::ModuleArchive, 30_000);
    let url = format!("{}{}", larder.base(), download_path("one"));
    let pending_request = tokio::spawn(async move { send(client().get(url)).await.unwrap().status });
    fixture.archives.wait_for(Target::ModuleArchive, 1).await;
    fixture.publish_archive("one", &tar_gz(&[("noise", &noise(2, 100_000))]));
    gate.open();
    // Whatever the answer, the stored archive is one of the two.
    let _ = pending_request.await.unwrap();
    let (_, archive) = download_module(larder.base(), "one").await;
    assert!(unpack_tar_gz(&archive)["noise"] == noise(2, 100_000));
}

/// Larder gives up an archive host that stops sending.
#[tokio::test]
async fn an_archive_that_stalls_is_given_up_and_the_next_request_tries_again() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().stall_timeout(Duration::from_millis(300)).start().await;
    for fault in [Fault::NeverAnswers, Fault::Stalls(20)] {
        fixture.archives.fault(Target::ModuleArchive, fault.clone());
        let message = larder.get(&download_path("one")).await.expect(504).text();
        assert!(message.contains("acme/one/test"), "{fault:?}: {message}");
        fixture.archives.clear_faults();
    }
    download_module(larder.base(), "one").await;
    assert!(larder.folder.partial_downloads().is_empty());
}

/// Promise 11: a location may need another document first: an HTML page whose `terraform-get` tag names the source, or
/// a list of checksums. Larder gives up a server that does not send it, and then fetches other documents.
#[tokio::test]
async fn a_page_or_checksum_list_that_never_arrives_is_given_up_and_delays_no_other_document() {
    let fixture = ModuleFixture::with_one_module().await;
    let origin = fixture.archives.origin();
    for path in ["/pages/one", "/sums"] {
        fixture.archives.serve_file(path, "text/plain", vec![b'x'; 1000]);
    }
    fixture.publish("page", &format!("{origin}/pages/one"));
    fixture.publish("list", &format!("{}?checksum=file:{origin}/sums", fixture.url("one.tar.gz")));
    let larder = fixture
        .larder()
        .upstream_timeout(Duration::from_millis(1500))
        // A document that is not given up would keep all others from being fetched.
        .upstream_limits(|limits| limits.documents.per_upstream = 1);
    let larder = larder.start().await;
    for fault in [Fault::NeverAnswers, Fault::Drips(1, Duration::from_millis(300))] {
        fixture.archives.fault(Target::Other, fault.clone());
        for name in ["page", "list"] {
            let message = larder.get(&download_path(name)).await.expect(504).text();
            assert!(message.contains(&origin) && message.contains("no whole answer"), "{name} {fault:?}: {message}");
        }
        fixture.archives.clear_faults();
    }
    download_module(larder.base(), "one").await;
}

/// A location may expire; it is fetched again once, and the failure is not cached.
#[tokio::test]
async fn a_refused_location_is_requested_once_more() {
    for status in [400, 401, 403, 404, 410] {
        let fixture = ModuleFixture::with_one_module().await;
        let larder = fixture.larder().start().await;
        let requests =
            || (fixture.registry.count_of(Target::Location), fixture.archives.count_of(Target::ModuleArchive));
        fixture.archives.fault_once(Target::ModuleArchive, Fault::Status(status));
        larder.get(&download_path("one")).await.expect(204);
        assert_eq!(requests(), (2, 2), "{status}");

        let second_larder = fixture.larder().start().await;
        fixture.archives.fault(Target::ModuleArchive, Fault::Status(status));
        let message = second_larder.get(&download_path("one")).await.expect(502).text();
        assert!(message.contains(&status.to_string()) && message.contains(&fixture.archives.origin()), "{message}");
        assert_eq!(requests(), (4, 4), "{status}");
        fixture.archives.clear_faults();
        download_module(second_larder.base(), "one").await;
    }
}

/// When a signed URL has expired, larder fetches the new one from the registry.
#[tokio::test]
async fn the_new_url_of_an_expired_location_is_fetched() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    download_module(larder.base(), "one").await;
    larder.run_command("purge", "acme/one/test@1.0.0").await;
    fixture.publish("one", &format!("{}?sig=old", fixture.url("one.tar.gz")));
    let gate = fixture.archives.hold_headers(Target::ModuleArchive);
    fixture.archives.fault_once(Target::ModuleArchive, Fault::Status(403));
    let url = format!("{}{}", larder.base(), download_path("one"));
    let pending_request = tokio::spawn(async move { get(&url).await });
    fixture.archives.wait_for(Target::ModuleArchive, 2).await;
    fixture.publish("one", &format!("{}?sig=new", fixture.url("one.tar.gz")));
    gate.open();
    pending_request.await.unwrap().expect(204);
    let queries: Vec<_> = fixture.archives.requests().into_iter().map(|request| request.query).collect();
    assert_eq!(queries, ["", "sig=old", "sig=new"]);
}

/// `?checksum=` is enforced; a registry that corrects its checksum is requested again.
#[tokio::test]
async fn a_checksum_mismatch_is_refused_with_both_digests() {
    let fixture = ModuleFixture::start().await;
    let bytes = tar_gz(&[("main.tf", b"# one\n")]);
    let url = fixture.file("one.tar.gz", &bytes);
    let (right, wrong) = (sha256_hex(&bytes), sha256_hex(b"another"));
    fixture.publish("one", &format!("{url}?checksum=sha256:{wrong}"));
    let larder = fixture.larder().start().await;
    let message = larder.get(&download_path("one")).await.expect(502).text();
    assert!(message.contains(&right) && message.contains(&wrong), "{message}");
    assert_eq!(fixture.registry.count_of(Target::Location), 2);
    assert!(larder.folder.blobs().is_empty() && larder.folder.files("staging").is_empty());
    fixture.publish("one", &format!("{url}?checksum=sha256:{right}"));
    download_module(larder.base(), "one").await;
    assert_eq!(fixture.registry.count_of(Target::Location), 3);
}

/// A client waits ten seconds for a document and without limit for an archive.
#[tokio::test]
async fn a_slow_cold_module_is_answered_without_its_digest_and_its_archive_waits() {
    let fixture = ModuleFixture::start().await;
    fixture.publish_archive("one", &tar_gz(&[("modules/x/main.tf", b"# x\n")]));
    fixture.publish("one", &format!("{}//modules/x?archive=tar.gz", fixture.url("one.tar.gz")));
    let larder = fixture.larder().answer_within(Duration::from_millis(300)).start().await;
    let gate = fixture.archives.hold_body(Target::ModuleArchive);
    let response = larder.get(&download_path("one")).await;
    let location = ModuleLocation::of(&response);
    let subdir = Some("modules/x".to_owned());
    assert_eq!(location, ModuleLocation { path: path_without_digest("one"), subdir: subdir.clone(), sha256: None });
    assert_eq!(response.header("cache-control"), "no-cache");
    let url = format!("{}{}", larder.base(), location.path);
    let waiting = tokio::spawn(receive(client().get(url)));
    // The second request arrives while the first one waits; neither gets the other's response.
    assert!(ModuleLocation::of(&larder.get(&download_path("one")).await) == location);
    assert!(!waiting.is_finished());
    gate.open();
    let got = waiting.await.unwrap();
    assert!(got.status == 200 && got.is_complete);
    let location_with_digest = ModuleLocation::of(&larder.get(&download_path("one")).await);
    assert_eq!((location_with_digest.sha256, location_with_digest.subdir), (Some(sha256_hex(&got.body)), subdir));
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 1);
}

/// An HTML page may name the source and a folder in it. Until larder has the page it does not know the folder, and
/// reports none.
#[tokio::test]
async fn a_submodule_folder_is_answered_before_its_archive_is_complete() {
    let fixture = ModuleFixture::with_one_module().await;
    let location = format!("{}//modules/x?archive=tar.gz", fixture.url("one.tar.gz"));
    fixture.archives.serve_terraform_get("/pages/one", &location);
    fixture.publish("one", &format!("{}/pages/one", fixture.archives.origin()));
    let larder = fixture.larder().answer_within(Duration::from_millis(300)).start().await;
    let (page_gate, archive_gate) =
        (fixture.archives.hold_body(Target::Other), fixture.archives.hold_body(Target::ModuleArchive));
    // The page itself is not fetched yet, so the folder is unknown.
    let message = larder.get(&download_path("one")).await.expect(504).text();
    assert!(message.contains("ask again"), "{message}");
    page_gate.open();
    fixture.archives.wait_for(Target::ModuleArchive, 1).await;
    let location = ModuleLocation::of(&larder.get(&download_path("one")).await);
    assert_eq!((location.path, location.subdir.as_deref()), (path_without_digest("one"), Some("modules/x")));
    archive_gate.open();
    let (location, _) = download_module(larder.base(), "one").await;
    assert_eq!(location.subdir.as_deref(), Some("modules/x"));
}

/// An archive URL whose digest is that of no known archive costs one upstream request and is 404.
#[tokio::test]
async fn an_archive_url_with_an_unknown_digest_costs_one_request_and_is_404() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    let unknown = path_without_digest("one").replace("/module.tar.gz", "/0123456789abcdef/module.tar.gz");
    larder.get(&unknown).await.expect(404);
    assert_eq!(larder.folder.blobs().len(), 1, "the request did not fetch the archive");
    let (location, archive) = download_module(larder.base(), "one").await;
    let requests = fixture.registry.count_of(Target::Location);
    larder.get(&unknown).await.expect(404);
    larder.get(&unknown.replace("0123", "4567")).await.expect(404);
    assert_eq!(fixture.registry.count_of(Target::Location), requests, "the second request was sent upstream");
    // The default of `not_found` is 30 s.
    larder.clock.advance(Duration::from_secs(31));
    larder.get(&unknown).await.expect(404);
    larder.get(&unknown).await.expect(404);
    assert_eq!(fixture.registry.count_of(Target::Location), requests + 1);
    assert!(larder.get(&location.path).await.expect(200).body == archive);
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 1);
}

/// A larder behind a larder serves the same archive. When the back larder has deleted that archive, the front larder
/// fetches the new one.
#[tokio::test]
async fn a_larder_behind_a_larder_serves_the_same_archive() {
    let fixture = ModuleFixture::with_one_module().await;
    fixture.publish("sub", &format!("{}//modules/x?archive=tar.gz", fixture.url("one.tar.gz")));
    let back_larder = fixture.larder().always_revalidate().start().await;
    let url = format!("{}/registry/{HOST}/", back_larder.base());
    let first_front_larder = Larder::builder().upstream(HOST, &url, "").allow_private(back_larder.base()).start().await;
    for name in ["one", "sub"] {
        let (location, archive) = download_module(first_front_larder.base(), name).await;
        let (back_location, back_archive) = download_module(back_larder.base(), name).await;
        assert!(archive == back_archive, "{name}");
        assert_eq!((location.sha256, location.subdir), (back_location.sha256, back_location.subdir));
    }
    // The back larder rechecks the module in the background after each response, because nothing stays fresh.
    let lacks_header = |header| move |request: &RecordedRequest| request.header(header).is_none();
    let (no_tag, no_date) = (lacks_header("if-none-match"), lacks_header("if-modified-since"));
    assert_eq!(fixture.archives.count_where(|request| no_tag(request) && no_date(request)), 2);

    // The front larder's cached location names an archive that the back larder has deleted.
    let front_larder = Larder::builder().upstream(HOST, &url, "").allow_private(back_larder.base()).start().await;
    download_module(front_larder.base(), "one").await;
    front_larder.run_command("purge", "acme/one/test@1.0.0").await;
    front_larder.get(&download_path("one")).await.expect(204);
    back_larder.run_command("purge", "acme/one/test").await;
    fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# republished\n")]));
    let accepted = back_larder.run_command("accept", "acme/one/test@1.0.0").await;
    assert!(accepted.ok, "{accepted}");
    let done = front_larder.run_command("accept", "acme/one/test@1.0.0").await;
    assert!(done.ok, "{done}");
    assert_eq!(
        unpack_tar_gz(&download_module_archive(front_larder.base(), "one").await)["main.tf"],
        b"# republished\n"
    );
}

/// A loop of larders is 508 at once, and no upstream is asked.
#[tokio::test]
async fn a_request_loop_is_refused_for_modules_too() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    // At most four larders may be in a chain.
    let five_larders = "larder;id=1, larder;id=2, larder;id=3, larder;id=4, larder;id=5";
    for path in [download_path("one"), path_without_digest("one")] {
        larder.get_with(&path, &[("cdn-loop", five_larders)]).await.expect(508);
    }
    assert!(fixture.registry.requests().is_empty() && fixture.archives.requests().is_empty());
    larder.get_with(&download_path("one"), &[("cdn-loop", "larder;id=77")]).await.expect(204);
    let all: Vec<_> = fixture.registry.requests().into_iter().chain(fixture.archives.requests()).collect();
    let chains = || all.iter().map(|request| request.header("cdn-loop").unwrap_or_default().to_owned());
    assert!(chains().all(|chain| chain.starts_with("larder;id=77, larder;id=")), "{:?}", chains().collect::<Vec<_>>());
    let own = chains().next().unwrap();
    for path in [download_path("one"), path_without_digest("one")] {
        larder.get_with(&path, &[("cdn-loop", &own)]).await.expect(508);
    }
}

/// Promise 4: fetches of different modules at the same time do not mix their archives.
#[tokio::test]
async fn fifty_uncached_modules_at_once_are_all_served() {
    let fixture = ModuleFixture::with_registry(FakeUpstream::start().await).await;
    for seed in 0..50 {
        let url = fixture.file(&format!("m{seed}.tar.gz"), &tar_gz(&[("noise", &noise(seed, 50_000))]));
        fixture.registry.publish_module(Module::new("acme", &format!("m{seed}"), "test").at(&url));
    }
    let larder = fixture.larder().start().await;
    let clients: Vec<_> = (0..50_u32)
        .map(|seed| {
            let base = larder.base().to_owned();
            tokio::spawn(async move { (seed, download_module_archive(&base, &format!("m{seed}")).await) })
        })
        .collect();
    for client in clients {
        let (seed, archive) = client.await.unwrap();
        assert!(unpack_tar_gz(&archive)["noise"] == noise(seed, 50_000));
    }
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 50);
    assert!(larder.folder.files("staging").is_empty());
}
