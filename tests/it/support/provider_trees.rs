//! Exported provider trees and the site that exports them.

use std::path::{Path, PathBuf};

use super::command_setup::CommandSetup;
use super::larder::HOST;
use super::terraform::{Terraform, Workspace};
use super::upstream::{FakeUpstream, Provider};
use super::warm_fixture::both;

/// acme/null 1.2.0 and 1.3.0, acme/random 3.0.1 whose zips have entries for folders; for two platforms.
pub(crate) async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for version in ["1.2.0", "1.3.0"] {
        upstream.publish(both(Provider::new("acme", "null").version(version).size(200_000)));
    }
    upstream.publish(both(Provider::new("acme", "random").version("3.0.1").directory_entries().size(50_000)));
    upstream
}

/// A site whose larder runs nowhere, and a folder for a tree.
pub(crate) fn site(upstream: &FakeUpstream) -> (CommandSetup, PathBuf) {
    let setup = CommandSetup::new(upstream);
    let tree = setup.home.path().join("tree");
    (setup, tree)
}

/// Exports both providers for both platforms.
pub(crate) async fn export(setup: &CommandSetup, tree: &Path) -> String {
    let addresses = ["export", tree.to_str().unwrap(), "--for=acme/null@1.2.0", "--for=acme/random"];
    setup.out(&[&addresses[..], &["--platform", "linux_amd64", "--platform", "darwin_arm64"]].concat()).await
}

pub(crate) fn requiring(client: &Terraform) -> Workspace {
    let mut workspace = client.workspace();
    workspace.require("acme/null", "~> 1.2.0").require("acme/random", ">= 3.0.0");
    workspace
}

pub(crate) fn folder_of(tree: &Path, name: &str) -> PathBuf {
    tree.join(format!("{HOST}/acme/{name}"))
}
