//! Offline sites that import provider trees.

use serde_json::Value;

use super::command_setup::CommandSetup;
use super::larder::HOST;
use super::provider_trees::workspace_requiring;
use super::terraform::{Terraform, host_override};
use super::upstream::FakeUpstream;

/// The setup of an offline larder.
pub(crate) fn sealed(upstream: &FakeUpstream) -> CommandSetup {
    let mut setup = CommandSetup::new(upstream);
    setup.text.push_str("[network]\noffline = true\n");
    setup
}

/// The lock file of a client that ran `init` with the upstream itself.
pub(crate) async fn lock_of_upstream(client: &Terraform, upstream: &FakeUpstream) -> String {
    let direct = workspace_requiring(client);
    direct.cli_config(&host_override(HOST, &upstream.providers_url(), &upstream.modules_url()));
    direct.init().await.expect_success();
    direct.lock_file()
}

/// The state of each imported file, as `FILE STATE`, from the JSON output of an import.
pub(crate) fn states(output: &str) -> Vec<String> {
    let steps = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let files = steps.filter(|step| step["step"] == "file");
    let mut states: Vec<String> = files
        .map(|step| {
            let name = step["file"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            format!("{name} {}", step["state"].as_str().unwrap())
        })
        .collect();
    states.sort();
    states
}
