//! Exported provider trees, and the larder that exports them.

use std::path::{Path, PathBuf};

use super::command_setup::CommandSetup;
use super::larder::HOST;
use super::terraform::{Terraform, Workspace};
use super::upstream::{FakeUpstream, Provider};
use super::warm_fixture::both_platforms;

/// Publishes acme/null 1.2.0 and 1.3.0, and acme/random 3.0.1 whose zips have entries for folders; all for two
/// platforms.
pub(crate) async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for version in ["1.2.0", "1.3.0"] {
        upstream.publish(both_platforms(Provider::new("acme", "null").version(version).size(200_000)));
    }
    upstream.publish(both_platforms(Provider::new("acme", "random").version("3.0.1").directory_entries().size(50_000)));
    upstream
}

/// The setup of a larder that is not started, and the path of a tree.
pub(crate) fn exporter_and_tree(upstream: &FakeUpstream) -> (CommandSetup, PathBuf) {
    let setup = CommandSetup::new(upstream);
    let tree = setup.home.path().join("tree");
    (setup, tree)
}

/// Exports both providers for both platforms.
pub(crate) async fn export(setup: &CommandSetup, tree: &Path) -> String {
    let arguments = ["export", tree.to_str().unwrap(), "--for=acme/null@1.2.0", "--for=acme/random"];
    setup.stdout_of(&[&arguments[..], &["--platform", "linux_amd64", "--platform", "darwin_arm64"]].concat()).await
}

/// A client workspace that requires both providers.
pub(crate) fn workspace_requiring(client: &Terraform) -> Workspace {
    let mut workspace = client.workspace();
    workspace.require("acme/null", "~> 1.2.0").require("acme/random", ">= 3.0.0");
    workspace
}

/// The folder of acme/NAME in a tree.
pub(crate) fn folder_of(tree: &Path, name: &str) -> PathBuf {
    tree.join(format!("{HOST}/acme/{name}"))
}
