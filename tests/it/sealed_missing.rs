//! Requests for packages that an offline larder has not stored. It records them over restarts and kills, limits their
//! number, and reports them in a form that `warm` of a connected larder accepts.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git_module_fixture::{download_module, download_path, override_through};
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::{Process, command, run};
use crate::support::sealed::{store_archive, upstream_with_four_versions};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Provider};
use crate::support::warm_fixture::WarmFixture;

async fn missing(admin: &str) -> Value {
    get(&format!("{admin}/admin/v1/missing")).await.expect(200).json()
}

/// The `missing` report for these packages: address below `acme/`, and platforms.
fn warm_up_request(packages: &[(&str, &[&str])]) -> Value {
    let item = |(package, platforms): &(&str, &[&str])| {
        let address = format!("{HOST}/acme/{package}");
        if platforms.is_empty() {
            json!({ "address": address })
        } else {
            json!({ "address": address, "platforms": platforms })
        }
    };
    if packages.is_empty() { json!({}) } else { json!({ "what": packages.iter().map(item).collect::<Vec<_>>() }) }
}

fn document_path(name: &str, version: &str, platform: &str) -> String {
    let (os, arch) = platform.split_once('_').unwrap();
    format!("/registry/{HOST}/v1/providers/acme/{name}/{version}/download/{os}/{arch}")
}

/// A registry and its archive host: acme/null, acme/other, and the modules acme/one/test and acme/two/test.
async fn registry_with_packages() -> ModuleFixture {
    let fixture = ModuleFixture::with_registry(upstream_with_four_versions().await).await;
    fixture.registry.publish(Provider::new("acme", "other").version("2.0.0").platform("linux_amd64").size(2_000_000));
    for name in ["one", "two"] {
        fixture.publish_archive(name, &tar_gz(&[("main.tf", format!("# {name}\n").as_bytes())]));
    }
    fixture
}

/// A store with acme/null 1.0.0 for linux_amd64, the version list of acme/null, and acme/one/test.
async fn store_with_two_packages(fixture: &ModuleFixture) -> Folder {
    let larder = fixture.larder().start().await;
    store_archive(&larder, "1.0.0", "linux_amd64").await;
    larder.versions("null").await.expect(200);
    download_module(larder.base(), "one").await;
    larder.stop().await
}

/// `missing` lists exactly the requests that failed; a connected larder fetches all of them from that list, and
/// imported packages are no longer missing.
#[tokio::test]
async fn a_connected_larder_fetches_everything_that_the_missing_report_lists() {
    let Some(client) = Terraform::find() else { return };
    let fixture = registry_with_packages().await;
    let folder = store_with_two_packages(&fixture).await;
    let sealed = fixture.larder_on(&folder).network("offline = true").start().await;
    let cli_config = override_through(sealed.base());
    let modules = |names: &[&str]| -> String {
        let call = |name: &&str| {
            format!("module \"{name}\" {{\n  source  = \"acme/{name}/test\"\n  version = \"1.0.0\"\n}}\n")
        };
        names.iter().map(call).collect()
    };
    let mut stored_only = client.workspace();
    stored_only.require("acme/null", "~> 1.0").file("modules.tf", &modules(&["one"])).cli_config(&cli_config);
    stored_only.init().await.expect_success();
    assert_eq!(missing(&sealed.admin()).await, warm_up_request(&[]), "every requested package is stored");

    let mut unstored_provider = client.workspace();
    unstored_provider.require("acme/null", "~> 1.0").require("acme/other", "2.0.0").cli_config(&cli_config);
    unstored_provider.init().await.expect_failure();
    let mut unstored_module = client.workspace();
    unstored_module.file("main.tf", &modules(&["one", "two"])).cli_config(&cli_config);
    unstored_module.init().await.expect_failure();
    // `providers lock` requests another platform.
    stored_only.run(&["providers", "lock", "-platform=darwin_arm64"]).await.expect_failure();
    let report = missing(&sealed.admin()).await;
    assert_eq!(report, warm_up_request(&[("null@1.0.0", &["darwin_arm64"]), ("other", &[]), ("two/test", &[])]));

    // A connected larder with another store fetches the reported packages.
    let connected = fixture.larder().start().await;
    let job = WarmFixture::for_larder(&connected).warm(&report).await;
    let is_stored = |state: &&str| ["fetched", "held"].contains(state);
    assert_eq!((&*job.state, job.states().iter().filter(|state| is_stored(state)).count()), ("done", 3), "{job}");
    // With that store, an offline larder serves the packages that the first one could not.
    let folder = connected.stop().await;
    let second_sealed = fixture.larder_on(&folder).network("offline = true").start().await;
    let mut served = client.workspace();
    served
        .require("acme/other", "2.0.0")
        .file("modules.tf", &modules(&["two"]))
        .cli_config(&override_through(second_sealed.base()));
    served.init().await.expect_success();
    let plan = WarmFixture::for_larder(&second_sealed).post("/admin/v1/plan", &report).await.expect(200).json();
    assert_eq!((&plan["ready"], &plan["sums"]["have"]), (&json!(true), &json!(3)), "{plan}");
    assert_eq!(missing(&second_sealed.admin()).await, warm_up_request(&[]));
}

/// A package that is stored later is no longer listed, however it was stored.
#[tokio::test]
async fn a_package_that_is_stored_later_is_no_longer_missing() {
    let fixture = registry_with_packages().await;
    let folder = store_with_two_packages(&fixture).await;
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
    let requested = [
        ("null@1.1.0", &["linux_amd64"][..]),
        ("null@1.2.0", &["darwin_arm64", "linux_amd64"]),
        ("other", &[]),
        ("two/test", &[]),
        ("two/test@1.0.0", &[]),
    ];
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&requested));
    assert_eq!(larder.metric("larder_missing").await, 6.0);

    larder.reload(fixture.larder_on(&folder)).await.unwrap();
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&requested), "going online alone fetches nothing");
    store_archive(&larder, "1.2.0", "linux_amd64").await;
    download_module(larder.base(), "two").await;
    let remaining = [("null@1.1.0", &["linux_amd64"][..]), ("null@1.2.0", &["darwin_arm64"]), ("other", &[])];
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&remaining));
    let path = larder.archive_path("other", "2.0.0").await;
    larder.get(&path).await.expect(200);
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&remaining[..2]));
    // A purge does not count as a request; the next request does.
    larder.reload(fixture.larder_on(&folder).network("offline = true")).await.unwrap();
    larder.run_command("purge", "acme/other").await;
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&remaining[..2]));
    larder.versions("other").await.expect(503);
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&remaining));
}

/// A request without a platform is reported for the `sealed_platforms` of the configuration.
#[tokio::test]
async fn requests_without_a_platform_are_reported_for_the_sealed_platforms() {
    let fixture = registry_with_packages().await;
    let folder = store_with_two_packages(&fixture).await;
    let sealed = fixture.larder_on(&folder).network("offline = true");
    let larder = sealed.network("sealed_platforms = [\"linux_amd64\", \"darwin_arm64\"]").start().await;
    larder.versions("null").await.expect(503);
    larder.versions("other").await.expect(503);
    // One is stored for a platform already, so only the other platform is missing.
    let platforms = &["darwin_arm64", "linux_amd64"][..];
    let expected = warm_up_request(&[("null@1.0.0", &["darwin_arm64"]), ("other", platforms)]);
    assert_eq!(missing(&larder.admin()).await, expected);
}

/// The list survives SIGTERM and kill -9; only a request with the admin token clears it.
#[tokio::test]
async fn the_missing_list_survives_a_restart_and_a_kill_until_it_is_cleared() {
    let fixture = registry_with_packages().await;
    let folder = store_with_two_packages(&fixture).await;
    let builder = || fixture.larder_on(&folder).network("offline = true");
    let larder = Process::start(&builder(), folder.path());
    larder.get(&document_path("null", "1.1.0", "linux_amd64")).await.expect(404);
    let one_request = warm_up_request(&[("null@1.1.0", &["linux_amd64"])]);
    assert_eq!(larder.terminate().await, Some(0));

    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, one_request);
    larder.get(&download_path("two")).await.expect(503);
    let two_requests = warm_up_request(&[("null@1.1.0", &["linux_amd64"]), ("two/test@1.0.0", &[])]);
    let file = folder.at("missing.json");
    eventually("the second request is stored", async || folder.record(&file).unwrap().contains("two").then_some(()))
        .await;
    larder.kill();
    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, two_requests);
    for _ in 0..2 {
        larder.get(&document_path("null", "1.1.0", "linux_amd64")).await.expect(404);
    }
    let page = get(&larder.admin()).await.expect(200).text();
    assert!(page.contains("3 requests, the last for 127.0.0.1"), "{page}");
    assert_eq!(larder.terminate().await, Some(0));

    // While no larder runs, the command reads the store itself.
    let config = folder.path().join("mirror.toml");
    let print_missing = async |options: &[&str]| {
        let mut arguments = vec!["missing", "--config", config.to_str().unwrap()];
        arguments.extend(options);
        let output = run(command(folder.path(), &arguments)).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        output.out
    };
    assert_eq!(serde_json::from_str::<Value>(&print_missing(&["--json"]).await).unwrap(), two_requests);
    let output = print_missing(&[]).await;
    for part in [
        "2 items",
        "  acme/null\n",
        "1.1.0  linux_amd64\n      3 requests, the last for 127.0.0.1 at 20",
        "acme/two/test\n    1.0.0\n      1 request, the last for 127.0.0.1 at 20",
        "--for missing.json",
        "--for plan.json",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }

    // A damaged file is quarantined: its list is lost, and larder works on.
    folder.damage(&file);
    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&[]));
    larder.log().line_with("quarantined").await;
    larder.get(&download_path("two")).await.expect(503);
    let url = format!("{}/admin/v1/missing", larder.admin());
    send(client().delete(&url)).await.unwrap().expect(401);
    send(client().post(&url)).await.unwrap().expect(401);
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&[("two/test@1.0.0", &[])]));
    let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
    send(client().delete(&url).bearer_auth(&token)).await.unwrap().expect(200);
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&[]));
    larder.kill();
    let larder = Process::start(&builder(), folder.path());
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&[]), "the list came back after a kill");
    larder.get(&download_path("two")).await.expect(503);
    drop(larder);
    assert!(print_missing(&["--forget"]).await.contains("cleared"));
    assert!(print_missing(&[]).await.contains("nothing"));
}

/// Promise 11: requests for nonsense or nonexistent versions fill a bounded table and displace no package that is
/// requested repeatedly.
#[tokio::test]
async fn requests_for_nonexistent_packages_fill_a_bounded_table() {
    let fixture = registry_with_packages().await;
    let folder = store_with_two_packages(&fixture).await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    for _ in 0..2 {
        larder.versions("other").await.expect(503);
        larder.document("null", "1.1.0").await.expect(404);
    }
    // Requests for an unknown upstream or with an invalid name or version are not recorded.
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
    let report = missing(&larder.admin()).await;
    let items = report["what"].as_array().unwrap();
    let of_null = items.iter().filter(|item| item["address"].as_str().unwrap().contains("acme/null@")).count();
    assert!(items.len() <= 1000 && of_null <= 100, "{} {of_null}", items.len());
    for (package, platforms) in [("other", json!(null)), ("null@1.1.0", json!(["linux_amd64"]))] {
        let address = json!(format!("{HOST}/acme/{package}"));
        let item = items.iter().find(|item| item["address"] == address);
        assert_eq!(item.map(|item| item["platforms"].clone()), Some(platforms), "{package}");
    }
    assert!(larder.metric("larder_missing").await <= 1100.0);
    let folder = larder.stop().await;
    assert!(folder.bytes(&folder.at("missing.json")).len() < 300_000);
}

/// An offline larder as the upstream of another larder: it records what the other one requests.
#[tokio::test]
async fn a_sealed_larder_records_requests_of_a_larder_behind_it() {
    let fixture = registry_with_packages().await;
    let folder = store_with_two_packages(&fixture).await;
    let inner = fixture.larder_on(&folder).network("offline = true").start().await;
    let inner_url = format!("http://{}/registry/{HOST}/", inner.address());
    let outer = Larder::builder().upstream(HOST, &inner_url, "").start().await;
    assert_eq!(outer.versions("null").await.expect(200).json()["versions"].as_array().unwrap().len(), 1);
    store_archive(&outer, "1.0.0", "linux_amd64").await;
    outer.document("null", "1.1.0").await.expect(404);
    outer.versions("other").await.expect(503);
    // The list of the inner larder does not have version 1.1.0, so the outer one did not request it.
    assert_eq!(missing(&inner.admin()).await, warm_up_request(&[("other", &[])]));
}

/// A recorded request for an upstream that was removed from the configuration is hidden, not deleted.
#[tokio::test]
async fn only_registries_that_are_mirrored_are_reported() {
    let (upstream, other) = (upstream_with_four_versions().await, FakeUpstream::start().await);
    let both_upstreams = || {
        let other_url = format!("{}/", other.origin());
        Larder::mirroring(&upstream).network("offline = true").upstream("registry.other.example", &other_url, "")
    };
    let larder = both_upstreams().start().await;
    larder.get("/registry/registry.other.example/v1/providers/acme/x/versions").await.expect(503);
    let report = missing(&larder.admin()).await;
    assert_eq!(report, json!({ "what": [{ "address": "registry.other.example/acme/x" }] }));
    larder.reload(Larder::mirroring(&upstream).network("offline = true")).await.unwrap();
    assert_eq!(missing(&larder.admin()).await, warm_up_request(&[]));
    larder.reload(both_upstreams()).await.unwrap();
    assert_eq!(missing(&larder.admin()).await, report);
}
