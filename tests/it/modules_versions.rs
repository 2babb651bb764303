//! Version lists of modules through larder: their content, the spelling of upstream requests, and freshness.

use std::time::Duration;

use serde_json::json;

use crate::support::bundle_transfer::{BundleKey, applied_receipt, bundle_of, warm_up};
use crate::support::git_module_fixture::override_through;
use crate::support::http::get;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::Process;
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Fault, ListedItem, Module, Target};

const VPC: &str = "/v1/modules/Acme/vpc/aws/versions";
const FIVE_MINUTES: Duration = Duration::from_secs(300);

fn list_path(names: &str) -> String {
    format!("/registry/{HOST}/v1/modules/{names}/versions")
}

async fn upstream_listing(versions: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.list(&[ListedItem::new("Acme/vpc/aws", versions)], &[]);
    upstream
}

fn version_lists() -> Target {
    Target::Path("/versions".to_owned())
}

/// Promise 5: entries that larder cannot read reach the client, which skips each with a warning. Entries without a
/// version, of which clients refuse the whole list, do not. Everything else stays as upstream wrote it.
#[tokio::test]
async fn a_list_relays_versions_that_cannot_be_read_and_unknown_fields() {
    let upstream = upstream_listing(&["1.0.0"]).await;
    let list = r#"{"x":1e400, "modules":[{"source":"a","versions":[{"version":"v1.0", "root":{"x":1.50}},{"version":"1.0.0"},{"version":"one"},7,{"version":"2.0.0-rc.1"}],"y":[ ]},{"source":"b","versions":[{"version":"9.0.0"}]}]}"#;
    upstream.serve_json(VPC, list);
    let larder = Larder::mirroring(&upstream).start().await;
    let text = larder.get(&list_path("Acme/vpc/aws")).await.expect(200).text();
    let expected = r#"{"modules":[{"source":"a","y":[ ],"versions":[{"version":"v1.0", "root":{"x":1.50}},{"version":"2.0.0-rc.1"},{"version":"one"}]}],"x":1e400}"#;
    assert_eq!(text, expected);
    for broken in ["{}", r#"{"modules":[]}"#, r#"{"modules":[{"versions":[{"version":"one"}]}]}"#, "[]", "nothing"] {
        upstream.serve_json(VPC, broken);
        let cold = Larder::mirroring(&upstream).start().await;
        assert!(cold.get(&list_path("Acme/vpc/aws")).await.expect(502).text().contains("unusable"), "{broken}");
        larder.clock.advance(FIVE_MINUTES);
        assert_eq!(larder.get(&list_path("Acme/vpc/aws")).await.expect(200).text(), expected, "{broken}");
    }
}

/// Versions of modules have any count of numbers. The newest is the same in lists, plans, explanations, pages and bundles,
/// and the real client installs it, online and from a bundle.
#[tokio::test]
async fn the_newest_version_of_a_module_may_have_four_numbers() {
    let fixture = ModuleFixture::start().await;
    for version in ["1.2.3", "1.2.4.1", "latest", "1.2.4"] {
        let main = format!("output \"version\" {{\n  value = \"{version}\"\n}}\n");
        let url = fixture.file(&format!("{version}.tar.gz"), &tar_gz(&[("main.tf", main.as_bytes())]));
        fixture.registry.publish_module(Module::new("acme", "vpc", "test").version(version).at(&url));
    }
    let key = BundleKey::new();
    let larder = key.with_signing_key(fixture.larder()).start().await;
    let address = format!("{HOST}/acme/vpc/test");
    let listed = |list: serde_json::Value| -> Vec<String> {
        let entries = list["modules"][0]["versions"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["version"].as_str().unwrap().to_owned()).collect()
    };
    let list = larder.get(&list_path("acme/vpc/test")).await.expect(200).json();
    assert_eq!(listed(list), ["1.2.3", "1.2.4.1", "1.2.4", "latest"]);
    let download = |version: &str| format!("/registry/{HOST}/v1/modules/acme/vpc/test/{version}/download");
    larder.get(&download("1.2.4.2")).await.expect(404);

    let explained = get(&format!("{}/admin/v1/explain?address={address}", larder.admin())).await.expect(200).json();
    assert_eq!(explained["versions"]["newest"], "1.2.4.1", "{explained:#}");
    assert_eq!(explained["versions"]["unreadable"], json!(["latest"]), "{explained:#}");

    let job = warm_up(&larder, &[&address], &[]).await;
    let bundle = bundle_of(&larder, &job, None).await;
    let sealed = key.sealed().start().await;
    let receipt = applied_receipt(&sealed, bundle).await;
    assert!(serde_json::to_string(&receipt).unwrap().contains("1.2.4.1"), "{receipt:?}");
    assert_eq!(listed(sealed.get(&list_path("acme/vpc/test")).await.expect(200).json()), ["1.2.4.1"]);
    let page = sealed.get(&format!("/registry/{HOST}/v1/modules/acme/vpc/test")).await;
    assert!(page.status != 200 || page.json()["version"] == "1.2.4.1", "{}", page.text());

    let Some(client) = Terraform::find() else { return };
    for larder in [&larder, &sealed] {
        for constraint in ["", "version = \"~> 1.2.4\"", "version = \"1.2.4.1\"", "version = \"> 1.2.4, < 1.2.5\""] {
            let mut workspace = client.workspace();
            workspace
                .file("main.tf", &format!("module \"vpc\" {{\n  source = \"acme/vpc/test\"\n  {constraint}\n}}\n"));
            workspace.cli_config(&override_through(larder.base()));
            let output = workspace.init().await.expect_success().text;
            let manifest = std::fs::read_to_string(workspace.path().join(".terraform/modules/modules.json")).unwrap();
            assert!(manifest.contains("\"Version\":\"1.2.4.1\""), "{constraint}: {manifest}\n{output}");
        }
    }
}

/// Promise 5: older clients refuse a provider's whole list for one version that they cannot read.
#[tokio::test]
async fn a_list_of_a_provider_drops_what_clients_cannot_read_and_explain_shows_it() {
    let upstream = FakeUpstream::start().await;
    let list = r#"{"versions":[{"version":"1.0.0"},{"version":"1.0.0.1"},{"version":"v2.0.0"},{"version":"nightly"}]}"#;
    upstream.serve_json("/v1/providers/acme/null/versions", list);
    let larder = Larder::mirroring(&upstream).start().await;
    let text = larder.versions("null").await.expect(200).text();
    assert_eq!(text, r#"{"versions":[{"version":"1.0.0"}]}"#);
    let index = larder.get(&format!("/mirror/{HOST}/acme/null/index.json")).await.expect(200).json();
    assert_eq!(index["versions"], json!({"1.0.0": {}}));
    let explained = get(&format!("{}/admin/v1/explain?address=acme/null", larder.admin())).await.expect(200).json();
    assert_eq!(explained["versions"]["unreadable"], json!(["1.0.0.1", "v2.0.0", "nightly"]), "{explained:#}");
}

/// The log names what cannot be read once, and not again with each list that has the same.
#[tokio::test]
async fn the_log_names_versions_that_cannot_be_read_once() {
    let upstream = FakeUpstream::start().await;
    let serve = |more: &str| {
        let list = format!(r#"{{"versions":[{{"version":"1.0.0"}},{{"version":"nightly"}}{more}]}}"#);
        upstream.serve_json("/v1/providers/acme/null/versions", &list);
    };
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).always_revalidate().store_at(&folder), folder.path());
    let path = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    for more in ["", r#",{"version":"1.1.0"}"#, r#",{"version":"1.2.0"}"#] {
        serve(more);
        larder.get(&path).await.expect(200);
    }
    serve(r#",{"version":"newest"}"#);
    larder.get(&path).await.expect(200);
    larder.log().line_with("newest").await;
    let log = larder.log().text();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("larder cannot read versions")).collect();
    assert!(lines.len() == 2 && lines[0].contains("nightly") && lines[0].contains("acme/null"), "{log}");
}

/// Upstream requests use the spelling of the client; spellings share one list only with `fold_case`.
#[tokio::test]
async fn spellings_of_a_name_share_a_list_only_with_fold_case() {
    for (fold_case, requests) in [(true, vec!["ACME/Vpc"]), (false, vec!["ACME/Vpc", "Acme/vpc"])] {
        let upstream = upstream_listing(&["1.0.0"]).await;
        let larder = Larder::mirroring(&upstream).upstream_lines(&format!("fold_case = {fold_case}")).start().await;
        for names in ["ACME/Vpc", "Acme/vpc", "ACME/Vpc"] {
            larder.get(&list_path(&format!("{names}/aws"))).await.expect(200);
        }
        let seen: Vec<String> = upstream
            .requests()
            .into_iter()
            .map(|request| request.path)
            .filter(|path| path.ends_with("/versions"))
            .collect();
        let expected: Vec<String> = requests.iter().map(|names| format!("/v1/modules/{names}/aws/versions")).collect();
        assert_eq!(seen, expected, "fold_case = {fold_case}");
    }
}

/// A new version appears once the list is stale, by a conditional request.
#[tokio::test]
async fn a_module_list_is_fresh_for_five_minutes_and_then_revalidated() {
    let upstream = upstream_listing(&["1.0.0"]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let first = larder.get(&list_path("Acme/vpc/aws")).await.expect(200);
    assert_eq!(first.header("cache-status"), "larder; fwd=miss; stored");
    // The machine's clock continues too, and further the busier the machine is.
    let margin = Duration::from_secs(60);
    larder.clock.advance(FIVE_MINUTES - margin);
    assert_eq!(larder.get(&list_path("Acme/vpc/aws")).await.expect(200).header("cache-status"), "larder; hit");
    larder.clock.advance(margin);
    let again = larder.get(&list_path("Acme/vpc/aws")).await.expect(200);
    assert_eq!((again.header("cache-status"), &again.body), ("larder; fwd=stale; stored", &first.body));
    assert_eq!(upstream.requests().last().unwrap().status, Some(304));
    upstream.list(&[ListedItem::new("Acme/vpc/aws", &["1.0.0", "1.1.0"])], &[]);
    larder.clock.advance(FIVE_MINUTES);
    let new = larder.get(&list_path("Acme/vpc/aws")).await.expect(200).json();
    assert_eq!(new["modules"][0]["versions"][1]["version"], "1.1.0");
}

/// Promise 6: cached lists are served while upstream fails, is gone, or larder is offline; others are errors.
#[tokio::test]
async fn a_cached_module_list_is_served_while_upstream_fails() {
    for (fault, status) in
        [(Fault::Status(404), 404), (Fault::Status(500), 502), (Fault::Html, 502), (Fault::Status(401), 502)]
    {
        let upstream = upstream_listing(&["1.0.0"]).await;
        let larder = Larder::mirroring(&upstream).start().await;
        upstream.fault(version_lists(), fault.clone());
        assert_eq!(larder.get(&list_path("Acme/vpc/aws")).await.status, status, "{fault:?}");
        upstream.clear_faults();
        larder.clock.advance(Duration::from_secs(30));
        let stored = larder.get(&list_path("Acme/vpc/aws")).await.expect(200);
        larder.clock.advance(FIVE_MINUTES);
        upstream.fault(version_lists(), fault.clone());
        let served = larder.get(&list_path("Acme/vpc/aws")).await.expect(200);
        assert_eq!(served.body, stored.body);
        assert!(
            served.has_cache_status(if status == 404 { "detail=gone" } else { "detail=stale" }),
            "{fault:?}: {:?}",
            served.headers
        );
        let folder = larder.stop().await;
        let sealed = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
        // A client cannot install anything by the list alone.
        let text = sealed.get(&list_path("Acme/vpc/aws")).await.expect(503).text();
        assert!(text.contains("any version of") && text.contains("offline"), "{text}");
        assert!(sealed.get(&list_path("Acme/other/aws")).await.expect(503).text().contains("offline"));
    }
}

/// A 404 is cached for half a minute, and with `keep_gone = false` lists that upstream deleted disappear.
#[tokio::test]
async fn an_unknown_module_is_404_and_requested_again_after_not_found() {
    let upstream = upstream_listing(&["1.0.0"]).await;
    let larder = Larder::mirroring(&upstream).upstream_lines("keep_gone = false").start().await;
    for _ in 0..2 {
        larder.get(&list_path("Acme/none/aws")).await.expect(404);
    }
    assert_eq!(upstream.count("/v1/modules/Acme/none/aws/versions"), 1);
    larder.clock.advance(Duration::from_secs(30));
    larder.get(&list_path("Acme/none/aws")).await.expect(404);
    assert_eq!(upstream.count("/v1/modules/Acme/none/aws/versions"), 2);
    larder.get(&list_path("Acme/vpc/aws")).await.expect(200);
    upstream.list(&[ListedItem::new("Acme/other/aws", &["1.0.0"])], &[]);
    larder.clock.advance(FIVE_MINUTES);
    larder.get(&list_path("Acme/vpc/aws")).await.expect(404);
}

/// Promise 4: simultaneous clients cause one upstream request, in whatever spelling.
#[tokio::test]
async fn many_clients_of_an_uncached_list_cause_one_request() {
    let upstream = upstream_listing(&["1.0.0"]).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let gate = upstream.hold_headers(version_lists());
    let pending_request = futures_util::future::join_all((0..20).map(|number| {
        let names = if number % 2 == 0 { "Acme/vpc/aws" } else { "acme/VPC/aws" };
        let path = list_path(names);
        let larder = &larder;
        async move { larder.get(&path).await.expect(200) }
    }));
    let opening = async {
        upstream.wait_for(version_lists(), 1).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(pending_request, opening);
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    assert_eq!(upstream.count_of(version_lists()), 1);
}

/// A list of thousands of versions is parsed off the request threads, and is complete.
#[tokio::test]
async fn a_large_module_list_is_served_completely() {
    let versions: Vec<String> = (0..5000).map(|number| format!("1.{number}.0")).collect();
    let upstream = upstream_listing(&versions.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let list = larder.get(&list_path("Acme/vpc/aws")).await.expect(200).json();
    assert_eq!(list["modules"][0]["versions"].as_array().unwrap().len(), 5000);
}

/// A registry without providers works.
#[tokio::test]
async fn a_registry_of_modules_alone_works() {
    let upstream = upstream_listing(&["1.0.0"]).await;
    upstream.serve_json("/.well-known/terraform.json", r#"{"modules.v1":"/v1/modules"}"#);
    let larder = Larder::mirroring(&upstream).start().await;
    let services = larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200).json();
    assert_eq!(services, serde_json::json!({ "modules.v1": format!("/registry/{HOST}/v1/modules/") }));
    larder.get(&list_path("Acme/vpc/aws")).await.expect(200);
    larder.get(&format!("/registry/{HOST}/v1/modules")).await.expect(200);
    let refused = larder.get(&format!("/registry/{HOST}/v1/providers")).await.expect(502);
    assert!(refused.text().contains("providers.v1"), "{}", refused.text());
}
