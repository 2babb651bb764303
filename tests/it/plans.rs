//! The items of a plan: have, need, cannot and unknown, each item once; for an offline larder also the items that a
//! bundle can import.

use serde_json::{Value, json};

use crate::support::command_setup::CommandSetup;
use crate::support::git_module_fixture::{download_module, override_through};
use crate::support::http::get;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::reports::name;
use crate::support::sealed::{store_archive, upstream_with_four_versions};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Fault, Module, Target};
use crate::support::warm_fixture::WarmFixture;

async fn plan(larder: &Larder, request: &Value) -> Value {
    WarmFixture::for_larder(larder).post("/admin/v1/plan", request).await.expect(200).json()
}

/// Each item as `WHAT STATE`, without the host.
fn item_lines(plan: &Value) -> Vec<String> {
    let items = plan["items"].as_array().unwrap().iter();
    let line = |item: &Value| format!("{} {}", name(item), item["state"].as_str().unwrap());
    items.map(|item| line(item).replace(&format!("{HOST}/"), "")).collect()
}

fn folder_request(constraint: &str) -> Value {
    let text = format!(
        "terraform {{\n  required_providers {{\n    null = {{ source = \"acme/null\", version = \"{constraint}\" }}\n  }}\n}}\n"
    );
    json!({ "files": { "main.tf": text }, "platforms": ["linux_amd64"] })
}

fn lock_file_request(version: &str) -> Value {
    let text = format!("provider \"{HOST}/acme/null\" {{\n  version = \"{version}\"\n}}\n");
    json!({ "lock_files": [{ "name": "lock", "text": text }], "platforms": ["linux_amd64"] })
}

fn locked_folder_request(version: &str) -> Value {
    let mut request = folder_request(">= 1.0.0");
    let text = format!("provider \"{HOST}/acme/null\" {{\n  version = \"{version}\"\n}}\n");
    request["files"][".terraform.lock.hcl"] = json!(text);
    request
}

fn address_request(address: &str) -> Value {
    json!({ "what": [address], "platforms": ["linux_amd64"] })
}

#[tokio::test]
async fn a_sealed_plan_separates_listed_versions_to_import_from_unlisted_ones() {
    let fixture = ModuleFixture::with_registry(upstream_with_four_versions().await).await;
    for version in ["1.0.0", "2.0.0"] {
        let archive_url = fixture.file("one.tar.gz", &tar_gz(&[("main.tf", b"# one\n")]));
        fixture.registry.publish_module(Module::new("acme", "one", "test").version(version).at(&archive_url));
    }
    let larder = fixture.larder().start().await;
    store_archive(&larder, "1.2.0", "linux_amd64").await;
    larder.versions("null").await.expect(200);
    larder.get(&format!("/registry/{HOST}/v1/modules/acme/one/test/versions")).await.expect(200);
    download_module(larder.base(), "one").await;
    let sealed = fixture.larder_on(&larder.stop().await).network("offline = true").start().await;

    for request in [
        address_request("acme/null@1.0.0"),
        lock_file_request("1.0.0"),
        folder_request("1.0.0"),
        locked_folder_request("1.0.0"),
    ] {
        let plan = plan(&sealed, &request).await;
        assert_eq!(item_lines(&plan), ["acme/null@1.0.0 need"], "{request}: {plan:#}");
        let note = plan["items"][0]["note"].as_str().unwrap();
        assert_eq!(note, "this mirror is offline: a bundle must bring it", "{plan:#}");
        assert_eq!(plan["ready"], false);
    }
    let call = "module \"one\" {\n  source  = \"acme/one/test\"\n  version = \"2.0.0\"\n}\n";
    for request in [address_request("acme/one/test@2.0.0"), json!({ "files": { "main.tf": call } })] {
        let plan = plan(&sealed, &request).await;
        assert_eq!(item_lines(&plan), ["acme/one/test@2.0.0 need"], "{request}: {plan:#}");
    }
    for request in [
        address_request("acme/null@9.0.0"),
        lock_file_request("9.0.0"),
        folder_request("9.0.0"),
        locked_folder_request("9.0.0"),
    ] {
        let plan = plan(&sealed, &request).await;
        assert_eq!(plan["sums"]["cannot"], 1, "{request}: {plan:#}");
        assert!(plan["items"][0]["why"].as_str().unwrap().contains("4 versions"), "{plan:#}");
    }
    assert_eq!(item_lines(&plan(&sealed, &folder_request("~> 1.0")).await), ["acme/null@1.2.0 have"]);
}

#[tokio::test]
async fn without_a_version_list_a_sealed_plan_says_that_the_package_must_be_imported() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).start().await;
    store_archive(&larder, "1.2.0", "linux_amd64").await;
    let sealed = Larder::mirroring(&upstream).network("offline = true").store_at(&larder.stop().await).start().await;
    for request in [address_request("acme/null@1.0.0"), lock_file_request("1.0.0"), folder_request("1.0.0")] {
        let plan = plan(&sealed, &request).await;
        assert_eq!((&plan["sums"]["need"], &plan["sums"]["cannot"]), (&json!(1), &json!(0)), "{request}: {plan:#}");
    }
}

/// A version that is stored for one of the runners' platforms is not listed, so the plan needs the other platform.
#[tokio::test]
async fn with_several_sealed_platforms_a_version_that_lacks_one_is_unavailable() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).start().await;
    for (version, platform) in [("1.0.0", "linux_amd64"), ("1.2.0", "linux_amd64"), ("1.2.0", "darwin_arm64")] {
        store_archive(&larder, version, platform).await;
    }
    larder.versions("null").await.expect(200);
    let folder_of_store = larder.stop().await;
    let sealed = Larder::mirroring(&upstream).store_at(&folder_of_store).network("offline = true");
    let sealed = sealed.network(r#"sealed_platforms = ["linux_amd64", "darwin_arm64"]"#).start().await;
    let plan = plan(&sealed, &folder_request("1.0.0")).await;
    assert_eq!((&plan["ready"], &plan["sums"]["need"]), (&json!(false), &json!(1)), "{plan:#}");
    let needed = plan["items"].as_array().unwrap().iter().find(|item| item["state"] == "need").unwrap();
    assert_eq!(needed["platform"], "darwin_arm64");
}

#[tokio::test]
async fn a_plan_records_no_missing_packages() {
    let upstream = upstream_with_four_versions().await;
    let larder = Larder::mirroring(&upstream).start().await;
    store_archive(&larder, "1.2.0", "linux_amd64").await;
    larder.versions("null").await.expect(200);
    let sealed = Larder::mirroring(&upstream).network("offline = true").store_at(&larder.stop().await).start().await;
    for request in [
        address_request("acme/nope"),
        address_request("acme/nope/test"),
        lock_file_request("1.0.0"),
        folder_request("1.0.0"),
    ] {
        plan(&sealed, &request).await;
    }
    let missing = async || get(&format!("{}/admin/v1/missing", sealed.admin())).await.expect(200).json();
    assert_eq!(missing().await, json!({}));
    sealed.versions("nope").await;
    assert_ne!(missing().await, json!({}), "a client was refused");
}

#[tokio::test]
async fn an_item_without_an_upstream_answer_is_unknown_and_not_unavailable() {
    for fault in [Fault::Status(500), Fault::Html, Fault::Truncated(10), Fault::RetryAfter(429, 3600)] {
        let upstream = upstream_with_four_versions().await;
        let larder = Larder::mirroring(&upstream).start().await;
        upstream.fault(Target::Versions, fault.clone());
        for _ in 0..2 {
            let plan = plan(&larder, &folder_request("~> 1.0")).await;
            let item = &plan["items"][0];
            assert_eq!((&plan["ready"], &plan["sums"]["unknown"]), (&json!(false), &json!(1)), "{fault:?}: {plan:#}");
            assert_eq!(
                (&plan["sums"]["cannot"], &item["state"]),
                (&json!(0), &json!("unknown")),
                "{fault:?}: {plan:#}"
            );
        }
    }
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let plan = plan(&larder, &address_request("acme/nope")).await;
    assert_eq!(item_lines(&plan), ["acme/nope cannot"], "upstream answered that the provider does not exist: {plan:#}");
}

#[tokio::test]
async fn a_module_that_cannot_be_fetched_is_one_item_of_the_plan() {
    let fixture = ModuleFixture::start().await;
    fixture.publish("s3", "s3::https://s3.amazonaws.com/bucket/x.zip");
    fixture.publish_archive("broken", b"no archive");
    let larder = fixture.larder().start().await;
    for name in ["s3", "broken"] {
        let call = format!("module \"it\" {{\n  source = \"acme/{name}/test\"\n}}\n");
        let plan = plan(&larder, &json!({ "files": { "main.tf": call } })).await;
        assert_eq!(item_lines(&plan), [format!("acme/{name}/test@1.0.0 cannot")], "{plan:#}");
        assert_eq!(plan["items"][0]["by"], json!(["main.tf:2"]), "{plan:#}");
    }
}

/// A local module without a file is a module for the client, so it is one for a plan: in a folder, in a tar and in what gzip
/// made of it. A folder that does not exist is refused by both.
#[tokio::test]
async fn a_local_module_without_a_file_is_an_empty_module_for_plan_and_client() {
    let upstream = upstream_with_four_versions().await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    larder.get(&larder.archive_path("null").await).await.expect(200);
    let Some(terraform) = Terraform::find() else { return };
    let mut workspace = terraform.workspace();
    std::fs::create_dir_all(workspace.path().join("modules/empty")).unwrap();
    workspace
        .require("acme/null", "1.2.0")
        .file("modules/empty/README.md", "nothing yet\n")
        .file("call.tf", "module \"empty\" {\n  source = \"./modules/empty\"\n}\n")
        .cli_config(&override_through(&setup.base()));
    let folder = workspace.path();
    let tar = setup.home.path().join("tars");
    std::fs::create_dir(&tar).unwrap();
    let pack = |name: &str, compress: &str| {
        let archive = tar.join(name);
        let mut command = std::process::Command::new("tar");
        command.arg(compress).arg(&archive).arg("-C").arg(&folder).args(["call.tf", "main.tf", "modules"]);
        assert!(command.status().unwrap().success());
        archive.to_str().unwrap().to_owned()
    };
    let orders =
        [folder.to_str().unwrap().to_owned(), pack("x.tar", "-cf"), pack("x.tar.gz", "-czf"), pack("x.tgz", "-czf")];
    for order in &orders {
        let plan = setup.run(&["plan", order, "--platform", "linux_amd64"]).await;
        assert!(plan.code == Some(0) && plan.out.contains("`init` will work offline"), "{order}: {plan:?}");
    }
    workspace.init().await.expect_success();

    std::fs::remove_dir_all(folder.join("modules")).unwrap();
    let plan = setup.run(&["plan", &orders[0], "--platform", "linux_amd64"]).await;
    assert!(plan.code == Some(3) && plan.out.contains("does not exist"), "{plan:?}");
    workspace.remove_lock_and_installed();
    workspace.init().await.expect_failure();
    larder.terminate_promptly().await;
}

/// A lock file that names both public registries is for either client: the plan says whose rules it took.
#[tokio::test]
async fn a_lock_file_of_both_registries_is_read_as_the_plan_says() {
    let upstream = upstream_with_four_versions().await;
    let setup = CommandSetup::new(&upstream);
    let folder = setup.home.path().join("both");
    std::fs::create_dir(&folder).unwrap();
    let block = |host: &str| format!("provider \"{host}/acme/null\" {{\n  version = \"1.2.0\"\n}}\n");
    let requires = "terraform {\n  required_providers {\n    null = { source = \"acme/null\" }\n  }\n}\n";
    std::fs::write(folder.join("main.tf"), requires).unwrap();
    let lock = folder.join(".terraform.lock.hcl");
    std::fs::write(&lock, format!("{}{}", block("registry.opentofu.org"), block(HOST))).unwrap();
    let note = ".terraform.lock.hcl names the registries of both clients; addresses without a host are of \
                registry.opentofu.org, as for opentofu (--client terraform for the other)";
    let argument = folder.to_str().unwrap();
    let larder = setup.serve();
    let plan = setup.run(&["plan", argument, "--platform", "linux_amd64"]).await;
    assert!(plan.out.contains(note), "{plan:?}");
    let named = setup.run(&["plan", argument, "--platform", "linux_amd64", "--client", "terraform"]).await;
    assert!(!named.out.contains("both clients"), "{named:?}");
    std::fs::write(&lock, block(HOST)).unwrap();
    let one = setup.run(&["plan", argument, "--platform", "linux_amd64"]).await;
    assert!(!one.out.contains("both clients"), "{one:?}");
    larder.terminate_promptly().await;
}
