//! The operator's commands for modules: warm, pin, purge, refresh, accept, verify, and their reports.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::command_setup::CommandSetup;
use crate::support::git_module_fixture::{download_module, download_module_archive, download_path};
use crate::support::http::get;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz, unpack_tar_gz};
use crate::support::upstream::{FakeUpstream, Fault, ListedItem, Module, Provider, Target};
use crate::support::warm_fixture::WarmFixture;

const ONE: &str = "acme/one/test@1.0.0";

async fn status(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()
}

fn module_address(name: &str) -> String {
    format!("{HOST}/acme/{name}/test@1.0.0")
}

fn publish_changed_module(fixture: &ModuleFixture) {
    fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# moved\n")]));
}

/// After a warm-up, everything that `init` requests is stored, and another warm-up fetches nothing.
#[tokio::test]
async fn warmed_modules_are_served_with_upstream_gone() {
    let mut fixture = ModuleFixture::with_one_module().await;
    for version in ["1.1.0", "1.2.0", "2.0.0"] {
        fixture
            .registry
            .publish_module(Module::new("acme", "one", "test").version(version).at(&fixture.url("one.tar.gz")));
    }
    fixture.publish("sub", &format!("{}//modules/x?archive=tar.gz", fixture.url("one.tar.gz")));
    fixture.registry.publish(Provider::new("acme", "null"));
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::for_larder(&larder);
    let request = json!({
        "what": ["acme/one/test@~> 1.0", "acme/sub/test", "acme/null"], "platforms": ["linux_amd64"], "pin": true
    });
    let job = warm_fixture.warm(&request).await;
    assert_eq!((job.states(), &*job.state), (vec!["fetched"; 3], "done"), "{job}");
    assert_eq!(job.items[0].name(), format!("{HOST}/acme/one/test@1.2.0"));
    assert_eq!(job.items[0].package.platform, None, "{job}");
    assert_eq!(job.items[2].package.platform.as_deref(), Some("linux_amd64"));
    let request_counts = (fixture.registry.requests().len(), fixture.archives.requests().len());
    let again = warm_fixture.warm(&request).await;
    assert_eq!(again.states(), ["held"; 3], "{again}");
    assert_eq!((fixture.registry.requests().len(), fixture.archives.requests().len()), request_counts);

    fixture.stop().await;
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    for name in ["one", "sub"] {
        larder.get(&format!("/registry/{HOST}/v1/modules/acme/{name}/test/versions")).await.expect(200);
    }
    let (location, _) = download_module(larder.base(), "sub").await;
    assert_eq!(location.subdir.as_deref(), Some("modules/x"));
    let path = download_path("one").replace("1.0.0", "1.2.0");
    assert!(larder.get(&path).await.expect(204).header("x-terraform-get").contains("checksum=sha256:"));
    // The module is pinned, so it cannot be purged.
    let purged = larder.run_command("purge", "acme/one/test@1.2.0").await;
    assert_eq!(purged.items[0].pinned, Some(vec![format!("{HOST}/acme/one/test@1.2.0").into()]), "{purged}");
    larder.run_command("unpin", "acme/one/test@1.2.0").await;
    larder.run_command("purge", "acme/one/test@1.2.0").await;
    larder.get(&path).await.expect(502);
}

/// Each item fails by itself, with its reason.
#[tokio::test]
async fn an_item_that_cannot_be_warmed_has_a_reason() {
    let fixture = ModuleFixture::with_one_module().await;
    fixture.publish("bucket", "s3::https://s3.amazonaws.com/acme/net.zip");
    fixture.publish("broken", &fixture.url("absent.tar.gz"));
    let larder = fixture.larder().start().await;
    let addresses = ["acme/bucket/test", "acme/broken/test", "acme/absent/test", "acme/one/test@> 9", "acme/one/test"];
    let job = WarmFixture::for_larder(&larder).warm(&json!({ "what": addresses, "platforms": ["linux_amd64"] })).await;
    assert_eq!(job.states(), ["failed", "failed", "failed", "failed", "fetched"], "{job}");
    for (item, words) in ["S3", "404", "acme/absent/test", "> 9"].into_iter().enumerate() {
        assert!(job.error(item).contains(words), "{item}: {job}");
    }
}

/// `refresh` finds a republished version and `accept` stores it; until then the stored archive is served.
#[tokio::test]
async fn refresh_finds_a_republished_module_and_accept_stores_it() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    let (location, archive) = download_module(larder.base(), "one").await;
    let same = larder.run_command("refresh", "acme/one/test").await;
    assert!(same.ok, "{same}");
    assert_eq!(status(&larder).await["alarms"], json!([]));
    publish_changed_module(&fixture);
    larder.run_command("refresh", "acme/one/test").await;
    let alarms = status(&larder).await["alarms"].clone();
    let resolve = format!("larder accept {}", module_address("one"));
    assert_eq!((&alarms[0]["kind"], &alarms[0]["resolve"]), (&"moved".into(), &resolve.into()), "{alarms}");
    assert!(larder.metric("larder_verification_failures_total").await >= 1.0);
    assert!(download_module(larder.base(), "one").await == (location.clone(), archive.clone()));

    let done = larder.run_command("accept", "acme/one/test").await;
    let item = &done.items[0];
    assert_eq!((item.name(), item.outcome.as_deref()), (module_address("one"), Some("accepted_tree")), "{done}");
    assert!(item.tree_before.is_some() && item.tree.is_some() && item.tree != item.tree_before);
    let (current_location, new) = download_module(larder.base(), "one").await;
    assert_eq!(unpack_tar_gz(&new)["main.tf"], b"# moved\n");
    assert_eq!(status(&larder).await["alarms"], json!([]));
    // A client with the old digest still gets the old archive; new locations name the new one.
    assert!(larder.get(&location.path).await.expect(200).body == archive);
    let report = larder.run_command("accept", ONE).await;
    assert_eq!(report.items[0].outcome.as_deref(), Some("nothing_to_accept"), "{report}");

    // When the accepted archive is lost, the old one is not served in its place.
    let blob = larder.folder.blobs().into_iter().find(|path| path.ends_with(current_location.sha256.clone().unwrap()));
    std::fs::remove_file(blob.unwrap()).unwrap();
    fixture.archives.forget_requests();
    assert!(download_module(larder.base(), "one").await == (current_location, new));
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 1);
}

/// Simultaneous fetches of a version by an accept and by a client do not write to the same file.
#[tokio::test]
async fn two_simultaneous_fetches_of_one_archive_do_not_share_a_file() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    download_module(larder.base(), "one").await;
    let noise = crate::support::module_fixture::noise(7, 500_000);
    fixture.publish_archive("one", &tar_gz(&[("noise", &noise)]));
    larder.run_command("purge", ONE).await;
    let gate = fixture.archives.hold_after(Target::ModuleArchive, 100_000);
    let accept = larder.run_command("accept", ONE);
    let client_request = async {
        fixture.archives.wait_for(Target::ModuleArchive, 2).await;
        let path = download_path("one");
        let pending_request = larder.get(&path);
        let open = async {
            fixture.archives.wait_for(Target::ModuleArchive, 3).await;
            let staged = larder.folder.files("staging").into_iter();
            assert_eq!(staged.filter(|file| file.extension().is_some_and(|kind| kind == "part")).count(), 2);
            gate.open();
        };
        tokio::join!(pending_request, open).0
    };
    let (accepted, _) = tokio::join!(accept, client_request);
    assert_eq!(accepted.items[0].outcome.as_deref(), Some("accepted_tree"), "{accepted}");
    assert!(unpack_tar_gz(&download_module_archive(larder.base(), "one").await)["noise"] == noise);
    assert!(larder.folder.files("staging").is_empty());
}

/// The output of the commands, as text and as JSON.
#[tokio::test]
async fn the_commands_print_modules_as_text_and_as_json() {
    let fixture = ModuleFixture::with_one_module().await;
    fixture.publish("bucket", "s3::https://s3.amazonaws.com/acme/net.zip");
    let mut setup = CommandSetup::new(&fixture.registry);
    let ca = setup.home.path().join("ca.pem");
    std::fs::write(&ca, fixture.ca.pem()).unwrap();
    let network = format!("[network]\nca_file = \"{}\"\nallow_private = [\"127.0.0.1\"]\n[[upstream]]", ca.display());
    setup.text = setup.text.replace("[[upstream]]", &network);
    let larder = setup.serve();
    let warmed = setup.stdout_of(&["warm", "acme/one/test@1.0.0"]).await;
    assert!(warmed.starts_with("fetched   acme/one/test 1.0.0  "), "{warmed}");
    assert!(warmed.contains("1 archive: 1 fetched"), "{warmed}");
    setup.stdout_of(&["pin", "acme/one/test@1.0.0"]).await;
    let status = setup.stdout_of(&["status"]).await;
    assert!(status.contains("archives   1 (") && !status.contains("alarms"), "{status}");
    setup.stdout_of(&["unpin", "acme/one/test@1.0.0"]).await;
    publish_changed_module(&fixture);
    setup.stdout_of(&["refresh", "acme/one/test"]).await;
    let status = setup.stdout_of(&["status"]).await;
    let output = "moved upstream, the new tree is not served";
    assert!(
        status.contains(output) && status.contains(&format!("larder accept {HOST}/acme/one/test@1.0.0")),
        "{status}"
    );
    let accepted = setup.accept("acme/one/test").await;
    assert!(accepted.contains("acme/one/test 1.0.0") && accepted.contains("tree"), "{accepted}");
    setup.stdout_of(&["purge", "acme/one/test"]).await;
    setup.stdout_of(&["verify"]).await;
    let failed = setup.run(&["warm", "acme/bucket/test"]).await;
    assert_eq!(failed.code, Some(1));
    assert!(failed.out.contains("FAILED") && failed.out.contains("S3 bucket at s3.amazonaws.com"), "{failed:?}");
    drop(larder);
}

/// The status counts modules and their rechecks.
#[tokio::test]
async fn status_counts_modules() {
    let fixture = ModuleFixture::with_one_module().await;
    fixture.publish("bucket", "s3::https://s3.amazonaws.com/acme/net.zip");
    fixture.publish_archive("bad", b"no archive");
    let larder = fixture.larder().always_revalidate().start().await;
    download_module(larder.base(), "one").await;
    larder.get(&download_path("bucket")).await.expect(204);
    larder.get(&download_path("bad")).await.expect(502);
    publish_changed_module(&fixture);
    larder.run_command("purge", ONE).await;
    larder.clock.advance(Duration::from_secs(1));
    larder.get(&download_path("one")).await.expect(502);
    let text = get(&format!("{}/metrics", larder.admin())).await.expect(200).text();
    let line = |start: &str, part: &str| {
        let found = text.lines().find(|line| line.starts_with(start) && line.contains(part));
        found.unwrap_or_else(|| panic!("no {start} {part}")).rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(line("larder_modules_elsewhere_total", ""), "1");
    assert_eq!(line("larder_verification_failures_total", "\"tree\""), "1");
    assert_eq!(line("larder_verification_failures_total", "\"republished\""), "1");
    let alarms: Vec<_> = text.lines().filter(|line| line.starts_with("larder_alarms")).collect();
    assert!(alarms.iter().any(|line| line.ends_with(" 1")), "{alarms:?}");
}

/// After a purge every spelling is fetched again at once; other documents stay.
#[tokio::test]
async fn purge_removes_cached_detail_pages() {
    let upstream = FakeUpstream::start().await;
    let modules =
        [ListedItem::new("Acme/vpc/aws", &["1.0.0", "v1.1.0"]), ListedItem::new("Acme/vpc/google", &["1.0.0"])];
    upstream.list(&modules, &[ListedItem::new("acme/null", &["1.0.0"]), ListedItem::new("acme/other", &["1.0.0"])]);
    let larder = Larder::mirroring(&upstream).start().await;
    let about = |address: &str| match address {
        "Acme/vpc/aws" => {
            ["modules/Acme/vpc/aws", "modules/acme/VPC/aws/1.0.0", "modules/Acme/vpc/aws/v1.1.0"].to_vec()
        }
        _ => ["providers/acme/null", "providers/acme/null/1.0.0"].to_vec(),
    };
    let others = ["modules/Acme/vpc", "modules/Acme/vpc/google", "providers/acme/other", "modules/search?q=vpc"];
    for address in ["Acme/vpc/aws", "acme/null"] {
        let all: Vec<_> = about(address).into_iter().chain(others).collect();
        for page in &all {
            larder.get(&format!("/registry/{HOST}/v1/{page}")).await.expect(200);
        }
        let done = larder.run_command("purge", address).await;
        assert_eq!(done.items[0].documents, Some(about(address).len() as u64), "{done}");
        upstream.forget_requests();
        for page in &all {
            larder.get(&format!("/registry/{HOST}/v1/{page}")).await.expect(200);
        }
        let request_counts =
            upstream.requests().iter().filter(|request_counts| request_counts.path.starts_with("/v1/")).count();
        assert_eq!(request_counts, about(address).len(), "{address}: {:?}", upstream.requests());
    }

    let done = larder.run_command("purge", "Acme/vpc/aws@1.0.0").await;
    assert_eq!(done.items[0].documents, Some(2), "its own page, and that of the module: {done}");
}

/// Promise 15: a version that the registry moved and then withdrew leaves nothing to accept and no lasting alarm; its
/// stored archive is dropped.
#[tokio::test]
async fn accept_of_a_module_that_upstream_has_withdrawn_resolves_its_alarms() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().always_revalidate().start().await;
    let list = format!("/registry/{HOST}/v1/modules/acme/one/test/versions");
    larder.get(&list).await.expect(200);
    let gate = download_module(larder.base(), "one").await;
    publish_changed_module(&fixture);
    larder.run_command("refresh", "acme/one/test").await;
    let kinds = async || -> Vec<String> { larder.alarms().await.into_iter().map(|(kind, ..)| kind).collect() };
    assert_eq!(kinds().await, ["moved"]);
    fixture.registry.fault(Target::Location, Fault::Status(404));
    fixture.registry.fault(Target::ModuleVersions, Fault::Status(404));
    assert!(larder.get(&list).await.expect(200).has_cache_status("detail=gone"));
    assert_eq!(kinds().await, ["moved", "dropped"]);
    let done = larder.run_command("accept", ONE).await;
    assert_eq!((done.items[0].outcome.as_deref(), done.ok), (Some("withdrawn"), true), "{done}");
    assert_eq!(kinds().await, ["dropped"]);
    assert!(download_module(larder.base(), "one").await == gate);
    larder.run_command("purge", ONE).await;
    assert_eq!(kinds().await, [""; 0]);
}
