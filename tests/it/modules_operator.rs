//! The operator's commands for modules: warm, pin, purge, refresh, accept, verify, and their reports.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::command_setup::CommandSetup;
use crate::support::git_module_fixture::{download_path, fetch};
use crate::support::http::get;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz, unpacked};
use crate::support::upstream::{FakeUpstream, Fault, Listed, Module, Provider, Target};
use crate::support::warm_fixture::WarmFixture;

const ONE: &str = "acme/one/test@1.0.0";

async fn status(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()
}

fn what(name: &str) -> String {
    format!("{HOST}/acme/{name}/test@1.0.0")
}

fn moved(fixture: &ModuleFixture) {
    fixture.put("one", &tar_gz(&[("main.tf", b"# moved\n")]));
}

/// Everything that an `init` asks for is there afterwards, and warming again fetches nothing.
#[tokio::test]
async fn warmed_modules_are_served_with_upstream_gone() {
    let mut fixture = ModuleFixture::of_one().await;
    for version in ["1.1.0", "1.2.0", "2.0.0"] {
        fixture
            .registry
            .publish_module(Module::new("acme", "one", "test").version(version).at(&fixture.url("one.tar.gz")));
    }
    fixture.publish("sub", &format!("{}//modules/x?archive=tar.gz", fixture.url("one.tar.gz")));
    fixture.registry.publish(Provider::new("acme", "null"));
    let larder = fixture.larder().start().await;
    let warm_fixture = WarmFixture::of(&larder);
    let told = json!({
        "what": ["acme/one/test@~> 1.0", "acme/sub/test", "acme/null"], "platforms": ["linux_amd64"], "pin": true
    });
    let job = warm_fixture.warm(&told).await;
    assert_eq!((job.states(), &*job.state), (vec!["fetched"; 3], "done"), "{job}");
    assert_eq!(job.items[0].name(), format!("{HOST}/acme/one/test@1.2.0"));
    assert_eq!(job.items[0].package.platform, None, "{job}");
    assert_eq!(job.items[2].package.platform.as_deref(), Some("linux_amd64"));
    let asked = (fixture.registry.requests().len(), fixture.archives.requests().len());
    let again = warm_fixture.warm(&told).await;
    assert_eq!(again.states(), ["held"; 3], "{again}");
    assert_eq!((fixture.registry.requests().len(), fixture.archives.requests().len()), asked);

    fixture.stop().await;
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    for name in ["one", "sub"] {
        larder.get(&format!("/registry/{HOST}/v1/modules/acme/{name}/test/versions")).await.expect(200);
    }
    let (place, _) = fetch(larder.base(), "sub").await;
    assert_eq!(place.subdir.as_deref(), Some("modules/x"));
    let path = download_path("one").replace("1.0.0", "1.2.0");
    assert!(larder.get(&path).await.expect(204).header("x-terraform-get").contains("checksum=sha256:"));
    // It is pinned, so it cannot be purged.
    let purged = larder.tell("purge", "acme/one/test@1.2.0").await;
    assert_eq!(purged.items[0].pinned, Some(vec![format!("{HOST}/acme/one/test@1.2.0").into()]), "{purged}");
    larder.tell("unpin", "acme/one/test@1.2.0").await;
    larder.tell("purge", "acme/one/test@1.2.0").await;
    larder.get(&path).await.expect(502);
}

/// Each item fails by itself, with its reason.
#[tokio::test]
async fn an_item_that_cannot_be_warmed_says_why() {
    let fixture = ModuleFixture::of_one().await;
    fixture.publish("bucket", "s3::https://s3.amazonaws.com/acme/net.zip");
    fixture.publish("broken", &fixture.url("absent.tar.gz"));
    let larder = fixture.larder().start().await;
    let things = ["acme/bucket/test", "acme/broken/test", "acme/absent/test", "acme/one/test@> 9", "acme/one/test"];
    let job = WarmFixture::of(&larder).warm(&json!({ "what": things, "platforms": ["linux_amd64"] })).await;
    assert_eq!(job.states(), ["failed", "failed", "failed", "failed", "fetched"], "{job}");
    for (item, words) in ["S3", "404", "acme/absent/test", "> 9"].into_iter().enumerate() {
        assert!(job.error(item).contains(words), "{item}: {job}");
    }
}

/// `refresh` finds a republished version, `accept` takes it; until then the stored archive is served.
#[tokio::test]
async fn refresh_finds_a_module_that_was_republished_and_accept_takes_it() {
    let fixture = ModuleFixture::of_one().await;
    let larder = fixture.larder().start().await;
    let (place, archive) = fetch(larder.base(), "one").await;
    let same = larder.tell("refresh", "acme/one/test").await;
    assert!(same.ok, "{same}");
    assert_eq!(status(&larder).await["alarms"], json!([]));
    moved(&fixture);
    larder.tell("refresh", "acme/one/test").await;
    let alarms = status(&larder).await["alarms"].clone();
    let resolve = format!("larder accept {}", what("one"));
    assert_eq!((&alarms[0]["kind"], &alarms[0]["resolve"]), (&"moved".into(), &resolve.into()), "{alarms}");
    assert!(larder.metric("larder_verification_failures_total").await >= 1.0);
    assert!(fetch(larder.base(), "one").await == (place.clone(), archive.clone()));

    let done = larder.tell("accept", "acme/one/test").await;
    let item = &done.items[0];
    assert_eq!((item.name(), item.outcome.as_deref()), (what("one"), Some("accepted_tree")), "{done}");
    assert!(item.tree_before.is_some() && item.tree.is_some() && item.tree != item.tree_before);
    let (now, new) = fetch(larder.base(), "one").await;
    assert_eq!(unpacked(&new)["main.tf"], b"# moved\n");
    assert_eq!(status(&larder).await["alarms"], json!([]));
    // A client that was given the old digest a moment ago gets that archive; new answers name the new one.
    assert!(larder.get(&place.path).await.expect(200).body == archive);
    let nothing = larder.tell("accept", ONE).await;
    assert_eq!(nothing.items[0].outcome.as_deref(), Some("nothing_to_accept"), "{nothing}");

    // Where the accepted one is lost, the old one does not take its place.
    let blob = larder.folder.blobs().into_iter().find(|path| path.ends_with(now.sha256.clone().unwrap()));
    std::fs::remove_file(blob.unwrap()).unwrap();
    fixture.archives.forget_requests();
    assert!(fetch(larder.base(), "one").await == (now, new));
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive), 1);
}

/// A version that is fetched by an operator and by a client at one time is not mixed up in one file.
#[tokio::test]
async fn two_fetches_of_one_archive_at_one_time_do_not_meet() {
    let fixture = ModuleFixture::of_one().await;
    let larder = fixture.larder().start().await;
    fetch(larder.base(), "one").await;
    let noise = crate::support::module_fixture::noise(7, 500_000);
    fixture.put("one", &tar_gz(&[("noise", &noise)]));
    larder.tell("purge", ONE).await;
    let held = fixture.archives.hold_after(Target::ModuleArchive, 100_000);
    let accept = larder.tell("accept", ONE);
    let ask = async {
        fixture.archives.wait_for(Target::ModuleArchive, 2).await;
        let path = download_path("one");
        let asking = larder.get(&path);
        let open = async {
            fixture.archives.wait_for(Target::ModuleArchive, 3).await;
            let staged = larder.folder.files("staging").into_iter();
            assert_eq!(staged.filter(|file| file.extension().is_some_and(|kind| kind == "part")).count(), 2);
            held.open();
        };
        tokio::join!(asking, open).0
    };
    let (accepted, _) = tokio::join!(accept, ask);
    assert_eq!(accepted.items[0].outcome.as_deref(), Some("accepted_tree"), "{accepted}");
    assert!(unpacked(&fetch(larder.base(), "one").await.1)["noise"] == noise);
    assert!(larder.folder.files("staging").is_empty());
}

/// The commands, as people read them.
#[tokio::test]
async fn the_commands_print_modules_for_people_and_for_machines() {
    let fixture = ModuleFixture::of_one().await;
    fixture.publish("bucket", "s3::https://s3.amazonaws.com/acme/net.zip");
    let mut setup = CommandSetup::new(&fixture.registry);
    let ca = setup.home.path().join("ca.pem");
    std::fs::write(&ca, fixture.ca.pem()).unwrap();
    let network = format!("[network]\nca_file = \"{}\"\nallow_private = [\"127.0.0.1\"]\n[[upstream]]", ca.display());
    setup.text = setup.text.replace("[[upstream]]", &network);
    let larder = setup.serve();
    let warmed = setup.out(&["warm", "acme/one/test@1.0.0"]).await;
    assert!(warmed.starts_with("fetched   acme/one/test 1.0.0  "), "{warmed}");
    assert!(warmed.contains("1 archive: 1 fetched"), "{warmed}");
    setup.out(&["pin", "acme/one/test@1.0.0"]).await;
    let status = setup.out(&["status"]).await;
    assert!(status.contains("archives   1 (") && !status.contains("alarms"), "{status}");
    setup.out(&["unpin", "acme/one/test@1.0.0"]).await;
    moved(&fixture);
    setup.out(&["refresh", "acme/one/test"]).await;
    let status = setup.out(&["status"]).await;
    let output = "moved upstream, the new tree is not served";
    assert!(
        status.contains(output) && status.contains(&format!("larder accept {HOST}/acme/one/test@1.0.0")),
        "{status}"
    );
    let accepted = setup.out(&["accept", "acme/one/test"]).await;
    assert!(accepted.contains("acme/one/test 1.0.0") && accepted.contains("tree"), "{accepted}");
    setup.out(&["purge", "acme/one/test"]).await;
    setup.out(&["verify"]).await;
    let failed = setup.run(&["warm", "acme/bucket/test"]).await;
    assert_eq!(failed.code, Some(1));
    assert!(failed.out.contains("FAILED") && failed.out.contains("S3 bucket at s3.amazonaws.com"), "{failed:?}");
    drop(larder);
}

/// Rechecks are counted.
#[tokio::test]
async fn status_counts_modules() {
    let fixture = ModuleFixture::of_one().await;
    fixture.publish("bucket", "s3::https://s3.amazonaws.com/acme/net.zip");
    fixture.put("bad", b"no archive");
    let larder = fixture.larder().nothing_stays_fresh().start().await;
    fetch(larder.base(), "one").await;
    larder.get(&download_path("bucket")).await.expect(204);
    larder.get(&download_path("bad")).await.expect(502);
    moved(&fixture);
    larder.tell("purge", ONE).await;
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
    let modules = [Listed::new("Acme/vpc/aws", &["1.0.0", "v1.1.0"]), Listed::new("Acme/vpc/google", &["1.0.0"])];
    upstream.list(&modules, &[Listed::new("acme/null", &["1.0.0"]), Listed::new("acme/other", &["1.0.0"])]);
    let larder = Larder::mirroring(&upstream).start().await;
    let about = |what: &str| match what {
        "Acme/vpc/aws" => {
            ["modules/Acme/vpc/aws", "modules/acme/VPC/aws/1.0.0", "modules/Acme/vpc/aws/v1.1.0"].to_vec()
        }
        _ => ["providers/acme/null", "providers/acme/null/1.0.0"].to_vec(),
    };
    let others = ["modules/Acme/vpc", "modules/Acme/vpc/google", "providers/acme/other", "modules/search?q=vpc"];
    for what in ["Acme/vpc/aws", "acme/null"] {
        let all: Vec<_> = about(what).into_iter().chain(others).collect();
        for page in &all {
            larder.get(&format!("/registry/{HOST}/v1/{page}")).await.expect(200);
        }
        let done = larder.tell("purge", what).await;
        assert_eq!(done.items[0].documents, Some(about(what).len() as u64), "{done}");
        upstream.forget_requests();
        for page in &all {
            larder.get(&format!("/registry/{HOST}/v1/{page}")).await.expect(200);
        }
        let asked = upstream.requests().iter().filter(|asked| asked.path.starts_with("/v1/")).count();
        assert_eq!(asked, about(what).len(), "{what}: {:?}", upstream.requests());
    }

    let done = larder.tell("purge", "Acme/vpc/aws@1.0.0").await;
    assert_eq!(done.items[0].documents, Some(2), "its own page, and that of the module: {done}");
}

/// DESIGN, promise 15: a version that the registry moved and then withdrew leaves nothing to accept and no lasting
/// alarm; its stored archive is dropped.
#[tokio::test]
async fn accept_of_a_module_that_upstream_has_withdrawn_resolves_its_alarms() {
    let fixture = ModuleFixture::of_one().await;
    let larder = fixture.larder().nothing_stays_fresh().start().await;
    let list = format!("/registry/{HOST}/v1/modules/acme/one/test/versions");
    larder.get(&list).await.expect(200);
    let held = fetch(larder.base(), "one").await;
    moved(&fixture);
    larder.tell("refresh", "acme/one/test").await;
    let kinds = async || -> Vec<String> { larder.alarms().await.into_iter().map(|(kind, ..)| kind).collect() };
    assert_eq!(kinds().await, ["moved"]);
    fixture.registry.fault(Target::Location, Fault::Status(404));
    fixture.registry.fault(Target::ModuleVersions, Fault::Status(404));
    assert!(larder.get(&list).await.expect(200).has_cache_status("detail=gone"));
    assert_eq!(kinds().await, ["moved", "dropped"]);
    let done = larder.tell("accept", ONE).await;
    assert_eq!((done.items[0].outcome.as_deref(), done.ok), (Some("withdrawn"), true), "{done}");
    assert_eq!(kinds().await, ["dropped"]);
    assert!(fetch(larder.base(), "one").await == held);
    larder.tell("purge", ONE).await;
    assert_eq!(kinds().await, [""; 0]);
}
