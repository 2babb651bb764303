//! Requests for packages that an offline larder has not stored: recorded, kept over restarts and kills, bounded, and
//! usable as an order for a connected larder.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git_module_fixture::{download_path, fetch, through};
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::{Process, command, run};
use crate::support::sealed::{hold, upstream_of_four};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Provider};
use crate::support::warm_fixture::WarmFixture;

async fn missing(admin: &str) -> Value {
    get(&format!("{admin}/admin/v1/missing")).await.expect(200).json()
}

fn order(things: &[(&str, &[&str])]) -> Value {
    let thing = |(subject, platforms): &(&str, &[&str])| {
        let address = format!("{HOST}/acme/{subject}");
        if platforms.is_empty() {
            json!({ "address": address })
        } else {
            json!({ "address": address, "platforms": platforms })
        }
    };
    if things.is_empty() { json!({}) } else { json!({ "what": things.iter().map(thing).collect::<Vec<_>>() }) }
}

fn document_path(name: &str, version: &str, platform: &str) -> String {
    let (os, arch) = platform.split_once('_').unwrap();
    format!("/registry/{HOST}/v1/providers/acme/{name}/{version}/download/{os}/{arch}")
}

/// A registry and its archive host: acme/null, acme/other, and the modules acme/one/test and acme/two/test.
async fn shelf() -> ModuleFixture {
    let fixture = ModuleFixture::with_registry(upstream_of_four().await).await;
    fixture.registry.publish(Provider::new("acme", "other").version("2.0.0").platform("linux_amd64").size(2_000_000));
    for name in ["one", "two"] {
        fixture.put(name, &tar_gz(&[("main.tf", format!("# {name}\n").as_bytes())]));
    }
    fixture
}

/// Of acme/null 1.0.0 for linux_amd64, and the list; and acme/one/test.
async fn filled(fixture: &ModuleFixture) -> Folder {
    let larder = fixture.larder().start().await;
    hold(&larder, "1.0.0", "linux_amd64").await;
    larder.versions("null").await.expect(200);
    fetch(larder.base(), "one").await;
    larder.stop().await
}

/// `missing` lists exactly the requests that failed; a connected larder fetches all of them from that list, and
/// imported packages are no longer missing.
#[tokio::test]
async fn missing_fed_to_a_connected_larder_is_all_that_was_missing() {
    let Some(client) = Terraform::find() else { return };
    let fixture = shelf().await;
    let folder = filled(&fixture).await;
    let sealed = fixture.larder_on(&folder).network("offline = true").start().await;
    let overridden = through(sealed.base());
    let modules = |names: &[&str]| -> String {
        let call = |name: &&str| {
            format!("module \"{name}\" {{\n  source  = \"acme/{name}/test\"\n  version = \"1.0.0\"\n}}\n")
        };
        names.iter().map(call).collect()
    };
    let mut stored = client.workspace();
    stored.require("acme/null", "~> 1.0").file("modules.tf", &modules(&["one"])).cli_config(&overridden);
    stored.init().await.expect_success();
    assert_eq!(missing(&sealed.admin()).await, order(&[]), "everything was held");

    let mut lacking = client.workspace();
    lacking.require("acme/null", "~> 1.0").require("acme/other", "2.0.0").cli_config(&overridden);
    lacking.init().await.expect_failure();
    let mut module = client.workspace();
    module.file("main.tf", &modules(&["one", "two"])).cli_config(&overridden);
    module.init().await.expect_failure();
    // `providers lock` asks for other platforms.
    stored.run(&["providers", "lock", "-platform=darwin_arm64"]).await.expect_failure();
    let text = missing(&sealed.admin()).await;
    assert_eq!(text, order(&[("null@1.0.0", &["darwin_arm64"]), ("other", &[]), ("two/test", &[])]));

    // Another store, at the cable.
    let connected = fixture.larder().start().await;
    let job = WarmFixture::of(&connected).warm(&text).await;
    let is_there = |state: &&str| ["fetched", "held"].contains(state);
    assert_eq!((&*job.state, job.states().iter().filter(|state| is_there(state)).count()), ("done", 3), "{job}");
    // Which is all that was lacking: sealed itself, it serves who was refused.
    let folder = connected.stop().await;
    let carried = fixture.larder_on(&folder).network("offline = true").start().await;
    let mut served = client.workspace();
    served.require("acme/other", "2.0.0").file("modules.tf", &modules(&["two"])).cli_config(&through(carried.base()));
    served.init().await.expect_success();
    let plan = WarmFixture::of(&carried).post("/admin/v1/plan", &text).await.expect(200).json();
    assert_eq!((&plan["ready"], &plan["sums"]["have"]), (&json!(true), &json!(3)), "{plan}");
    assert_eq!(missing(&carried.admin()).await, order(&[]));
}

/// A package that is stored later is no longer listed, however it was stored.
#[tokio::test]
async fn a_package_that_is_stored_later_is_no_longer_missing() {
    let fixture = shelf().await;
    let folder = filled(&fixture).await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    for path in [
        document_path("null", "1.1.0", "linux_amd64"),
        document_path("null", "1.2.0", "linux_amd64"),
        document_path("null", "1.2.0", "darwin_arm64"),
        format!("/registry/{HOST}/v1/providers/acme/other/versions"),
        format!("/registry/{HOST}/v1/modules/acme/two/test/versions"),
        download_path("two"),
    ] {
        assert!(matches!(larder.get(&path).await.status, 404 | 503), "{path}");
    }
    let all = [
        ("null@1.1.0", &["linux_amd64"][..]),
        ("null@1.2.0", &["darwin_arm64", "linux_amd64"]),
        ("other", &[]),
        ("two/test", &[]),
        ("two/test@1.0.0", &[]),
    ];
    assert_eq!(missing(&larder.admin()).await, order(&all));
    assert_eq!(larder.metric("larder_missing").await, 6.0);

    larder.reload(fixture.larder_on(&folder)).await.unwrap();
    assert_eq!(missing(&larder.admin()).await, order(&all), "that it is at the cable again brings nothing yet");
    hold(&larder, "1.2.0", "linux_amd64").await;
    fetch(larder.base(), "two").await;
    let left = [("null@1.1.0", &["linux_amd64"][..]), ("null@1.2.0", &["darwin_arm64"]), ("other", &[])];
    assert_eq!(missing(&larder.admin()).await, order(&left));
    let path = larder.archive_path("other", "2.0.0").await;
    larder.get(&path).await.expect(200);
    assert_eq!(missing(&larder.admin()).await, order(&left[..2]));
    // An eviction is not a request.
    larder.reload(fixture.larder_on(&folder).network("offline = true")).await.unwrap();
    larder.tell("purge", "acme/other").await;
    assert_eq!(missing(&larder.admin()).await, order(&left[..2]));
    larder.versions("other").await.expect(503);
    assert_eq!(missing(&larder.admin()).await, order(&left));
}

/// A request without a platform means the platforms of the configuration.
#[tokio::test]
async fn sealed_platforms_are_those_that_are_brought() {
    let fixture = shelf().await;
    let folder = filled(&fixture).await;
    let sealed = fixture.larder_on(&folder).network("offline = true");
    let larder = sealed.network("sealed_platforms = [\"linux_amd64\", \"darwin_arm64\"]").start().await;
    larder.versions("null").await.expect(503);
    larder.versions("other").await.expect(503);
    let both = &["darwin_arm64", "linux_amd64"][..];
    assert_eq!(missing(&larder.admin()).await, order(&[("null", both), ("other", both)]));
}

/// DESIGN 3: only who has the token forgets it, and it survives SIGTERM, kill -9 and damage.
#[tokio::test]
async fn the_missing_list_survives_a_restart_and_a_kill_until_it_is_cleared() {
    let fixture = shelf().await;
    let folder = filled(&fixture).await;
    let builder = || fixture.larder_on(&folder).network("offline = true");
    let larder = Process::start(&builder(), folder.path());
    larder.get(&document_path("null", "1.1.0", "linux_amd64")).await.expect(404);
    let first = order(&[("null@1.1.0", &["linux_amd64"])]);
    assert_eq!(larder.terminate().await, Some(0));

    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, first);
    larder.get(&download_path("two")).await.expect(503);
    let both = order(&[("null@1.1.0", &["linux_amd64"]), ("two/test@1.0.0", &[])]);
    let file = folder.path().join("v1/missing.json");
    eventually("it is written down", async || std::fs::read_to_string(&file).unwrap().contains("two").then_some(()))
        .await;
    larder.kill();
    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, both);
    assert_eq!(larder.terminate().await, Some(0));

    // Where none runs, the commands look themselves.
    let config = folder.path().join("mirror.toml");
    let printed = async |more: &[&str]| {
        let mut words = vec!["missing", "--config", config.to_str().unwrap()];
        words.extend(more);
        let output = run(command(folder.path(), &words)).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        output.out
    };
    assert_eq!(serde_json::from_str::<Value>(&printed(&["--json"]).await).unwrap(), both);
    let page = printed(&[]).await;
    for part in ["2 items", "  acme/null\n", "1.1.0  linux_amd64", "acme/two/test", "--for missing.json"] {
        assert!(page.contains(part), "{part}: {page}");
    }

    // A damaged record loses its own content and nothing else.
    std::fs::write(&file, "ruined").unwrap();
    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, order(&[]));
    larder.log().line_with("quarantined").await;
    larder.get(&download_path("two")).await.expect(503);
    let url = format!("{}/admin/v1/missing", larder.admin());
    send(client().delete(&url)).await.unwrap().expect(401);
    send(client().post(&url)).await.unwrap().expect(401);
    assert_eq!(missing(&larder.admin()).await, order(&[("two/test@1.0.0", &[])]));
    let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
    send(client().delete(&url).bearer_auth(&token)).await.unwrap().expect(200);
    assert_eq!(missing(&larder.admin()).await, order(&[]));
    larder.kill();
    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, order(&[]), "it was forgotten for good");
    larder.get(&download_path("two")).await.expect(503);
    drop(larder);
    assert!(printed(&["--forget"]).await.contains("cleared"));
    assert!(printed(&[]).await.contains("nothing"));
}

/// DESIGN, promise 11: requests for nonsense or nonexistent versions fill a bounded table and displace no package that
/// is requested repeatedly.
#[tokio::test]
async fn requests_for_garbage_fill_no_more_memory_than_allowed() {
    let fixture = shelf().await;
    let folder = filled(&fixture).await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    for _ in 0..2 {
        larder.versions("other").await.expect(503);
        larder.document("null", "1.1.0").await.expect(404);
    }
    // No upstream of ours, and nothing that could have a name.
    for path in [
        "/registry/evil.example/v1/providers/acme/null/versions".to_owned(),
        format!("/registry/{HOST}/v1/providers/acme/nu%00ll/versions"),
        format!("/registry/{HOST}/v1/providers/acme/{}/versions", "x".repeat(129)),
        format!("/mirror/{HOST}/acme/null/not-a-version.json"),
    ] {
        assert!(matches!(larder.get(&path).await.status, 400 | 404 | 421), "{path}");
    }
    let requests: Vec<String> = (0..150)
        .map(|number| document_path("null", &format!("9.{number}.0"), "linux_amd64"))
        .chain((0..1200).map(|number| format!("/registry/{HOST}/v1/providers/acme/p{number}/versions")))
        .chain((0..150).map(|number| format!("/registry/{HOST}/v1/modules/search?q=x{number}")))
        .chain((0..150).map(|number| format!("/registry/{HOST}/v1/modules/acme/m{number}/test")))
        .collect();
    for path in requests {
        larder.get(&path).await;
    }
    let text = missing(&larder.admin()).await;
    let things = text["what"].as_array().unwrap();
    let of_null = things.iter().filter(|thing| thing["address"].as_str().unwrap().contains("acme/null@")).count();
    assert!(things.len() <= 1000 && of_null <= 100, "{} {of_null}", things.len());
    for (kept, platforms) in [("other", json!(null)), ("null@1.1.0", json!(["linux_amd64"]))] {
        let address = json!(format!("{HOST}/acme/{kept}"));
        let thing = things.iter().find(|thing| thing["address"] == address);
        assert_eq!(thing.map(|thing| thing["platforms"].clone()), Some(platforms), "{kept}");
    }
    assert!(larder.metric("larder_missing").await <= 1100.0);
    let folder = larder.stop().await;
    assert!(std::fs::metadata(folder.path().join("v1/missing.json")).unwrap().len() < 300_000);
}

/// A larder behind an offline larder: the inner one records the requests of the outer one.
#[tokio::test]
async fn a_sealed_larder_is_an_upstream_like_any_other() {
    let fixture = shelf().await;
    let folder = filled(&fixture).await;
    let inner = fixture.larder_on(&folder).network("offline = true").start().await;
    let offset = format!("http://{}/registry/{HOST}/", inner.address());
    let outer = Larder::builder().upstream(HOST, &offset, "").start().await;
    assert_eq!(outer.versions("null").await.expect(200).json()["versions"].as_array().unwrap().len(), 1);
    hold(&outer, "1.0.0", "linux_amd64").await;
    outer.document("null", "1.1.0").await.expect(404);
    outer.versions("other").await.expect(503);
    // The version is on no list of the inner, so it is not asked for it.
    assert_eq!(missing(&inner.admin()).await, order(&[("other", &[])]));
}

/// A request for an upstream that is not configured any more is not reported, and is kept.
#[tokio::test]
async fn only_registries_that_are_mirrored_are_reported() {
    let (upstream, other) = (upstream_of_four().await, FakeUpstream::start().await);
    let both = || {
        let second = format!("{}/", other.origin());
        Larder::mirroring(&upstream).network("offline = true").upstream("registry.other.example", &second, "")
    };
    let larder = both().start().await;
    larder.get("/registry/registry.other.example/v1/providers/acme/x/versions").await.expect(503);
    let text = missing(&larder.admin()).await;
    assert_eq!(text, json!({ "what": [{ "address": "registry.other.example/acme/x" }] }));
    larder.reload(Larder::mirroring(&upstream).network("offline = true")).await.unwrap();
    assert_eq!(missing(&larder.admin()).await, order(&[]));
    larder.reload(both()).await.unwrap();
    assert_eq!(missing(&larder.admin()).await, text);
}
