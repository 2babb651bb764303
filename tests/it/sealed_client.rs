//! The real client with an offline larder: constraints resolve to stored versions, and errors name what is missing.

use crate::support::git_module_fixture::override_through;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::sealed::{store_archive, upstream_with_four_versions};
use crate::support::terraform::{Terraform, Workspace, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Module};

/// The client's output, without its line breaks.
fn in_one_line(output: &str) -> String {
    output.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

fn locked_version(workspace: &Workspace) -> String {
    let lock = workspace.lock_file();
    let line = lock.lines().find(|line| line.trim_start().starts_with("version")).unwrap_or_else(|| panic!("{lock}"));
    line.split('"').nth(1).unwrap().to_owned()
}

fn workspace_requiring(client: &Terraform, constraint: &str) -> Workspace {
    let mut workspace = client.workspace();
    workspace.require("acme/null", constraint);
    workspace
}

/// A store of acme/null: 1.1.0 for the client's platform, 1.2.0 for another platform only, and 1.3.0 only in the list.
async fn store_with_some_archives(upstream: &FakeUpstream) -> crate::support::larder::Folder {
    let larder = Larder::mirroring(upstream).start().await;
    store_archive(&larder, "1.0.0", "linux_amd64").await;
    store_archive(&larder, "1.1.0", "linux_amd64").await;
    store_archive(&larder, "1.2.0", "darwin_arm64").await;
    larder.versions("null").await.expect(200);
    larder.stop().await
}

/// `~>` resolves to the newest stored version, and the lock file of that version is accepted, in both protocols.
#[tokio::test]
async fn a_constraint_resolves_to_the_newest_stored_version() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    upstream.stop().await;
    let ca = TestCa::new();
    let sealed = |platforms: &str| {
        let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder);
        larder.network(&format!("sealed_platforms = {platforms}")).tls(&ca, &["127.0.0.1"])
    };
    let larder = sealed("[\"linux_amd64\"]").start().await;
    let mut locked = None;
    for config in [override_through(larder.base()), network_mirror(&format!("{}/mirror/", larder.base()))] {
        let mut workspace = workspace_requiring(&client, "~> 1.0");
        workspace.trust(&ca.pem());
        workspace.cli_config(&config);
        workspace.init().await.expect_success();
        assert_eq!(locked_version(&workspace), "1.1.0", "{config}");
        workspace.remove_installed();
        workspace.init().await.expect_success();
        locked.get_or_insert(workspace.lock_file());
    }
    // The network mirror accepts the lock file that the registry protocol produced.
    let mut workspace = workspace_requiring(&client, "~> 1.0");
    workspace.trust(&ca.pem());
    workspace.cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    workspace.file(".terraform.lock.hcl", &locked.unwrap());
    workspace.init().await.expect_success();
    assert_eq!(locked_version(&workspace), "1.1.0");
    larder.stop().await;

    // Without platforms, the newest version for any platform is listed; a client on another platform gets an error that
    // says so.
    let larder = sealed("[]").start().await;
    for config in [override_through(larder.base()), network_mirror(&format!("{}/mirror/", larder.base()))] {
        let mut workspace = workspace_requiring(&client, "~> 1.0");
        workspace.trust(&ca.pem());
        workspace.cli_config(&config);
        let output = in_one_line(&workspace.init().await.expect_failure().text);
        assert!(output.contains("v1.2.0 does not have a package available for your current platform"), "{output}");
    }
}

/// The error that a user sees when a package is not stored.
#[tokio::test]
async fn an_offline_refusal_does_not_claim_that_the_package_does_not_exist() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream_with_four_versions().await;
    let folder = store_with_some_archives(&upstream).await;
    upstream.stop().await;
    let ca = TestCa::new();
    let sealed = Larder::mirroring(&upstream).network("offline = true").store_at(&folder);
    let larder = sealed.tls(&ca, &["127.0.0.1"]).start().await;
    let overridden = override_through(larder.base());
    let mirror = network_mirror(&format!("{}/mirror/", larder.base()));
    for (source, constraint, config, words) in [
        ("acme/null", "~> 2.0", &overridden, "no available releases match the given constraints ~> 2.0"),
        ("acme/null", "1.3.0", &overridden, "no available releases match the given constraints 1.3.0"),
        ("acme/null", "1.3.0", &mirror, "no available releases match the given constraints 1.3.0"),
        (
            "acme/absent",
            "1.0.0",
            &overridden,
            "503 larder: this mirror is offline and has not stored it (`larder missing` on larder's machine lists",
        ),
        (
            "acme/absent",
            "1.0.0",
            &mirror,
            "503 larder: this mirror is offline and has not stored it (`larder missing` on larder's machine lists",
        ),
    ] {
        let mut workspace = client.workspace();
        workspace.require(source, constraint).trust(&ca.pem());
        workspace.cli_config(config);
        let output = workspace.init().await.expect_failure().text;
        let output = in_one_line(&output);
        assert!(output.contains(words), "{source} {constraint}: {output}");
        assert!(!output.contains("does not have a provider named") && !output.contains("was not found"), "{output}");
    }
}

/// A module constraint resolves to the newest stored version too.
#[tokio::test]
async fn a_module_constraint_resolves_to_the_newest_stored_version() {
    let Some(client) = Terraform::find() else { return };
    let mut fixture = ModuleFixture::start().await;
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        let url =
            fixture.file(&format!("{version}.tar.gz"), &tar_gz(&[("main.tf", format!("# {version}\n").as_bytes())]));
        fixture.registry.publish_module(Module::new("acme", "one", "test").version(version).at(&url));
    }
    let larder = fixture.larder().start().await;
    for version in ["1.0.0", "1.1.0"] {
        let path = format!("/registry/{HOST}/v1/modules/acme/one/test/{version}/download");
        larder.get(&path).await.expect(204);
    }
    let folder = larder.stop().await;
    fixture.stop().await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    let workspace_calling = |constraint: &str| {
        let mut workspace = client.workspace();
        let call = format!("module \"one\" {{\n  source  = \"acme/one/test\"\n  version = \"{constraint}\"\n}}\n");
        workspace.file("main.tf", &call).cli_config(&override_through(larder.base()));
        workspace
    };
    let workspace = workspace_calling("~> 1.0");
    workspace.init().await.expect_success();
    let main = std::fs::read_to_string(workspace.path().join(".terraform/modules/one/main.tf")).unwrap();
    assert_eq!(main, "# 1.1.0\n");
    let output = workspace_calling("1.2.0").init().await.expect_failure().text;
    assert!(output.contains("There is no available version of module"), "{output}");
}
