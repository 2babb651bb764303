//! Offline sites that import provider trees.

use serde_json::Value;

use super::command_setup::CommandSetup;
use super::larder::HOST;
use super::provider_trees::requiring;
use super::terraform::{Terraform, host_override};
use super::upstream::FakeUpstream;

/// An offline setup.
pub(crate) fn sealed(upstream: &FakeUpstream) -> CommandSetup {
    let mut setup = CommandSetup::new(upstream);
    setup.text.push_str("[network]\noffline = true\n");
    setup
}

/// The lock file of an `init` at the upstream itself.
pub(crate) async fn lock_of_upstream(client: &Terraform, upstream: &FakeUpstream) -> String {
    let direct = requiring(client);
    direct.cli_config(&host_override(HOST, &upstream.providers_url(), &upstream.modules_url()));
    direct.init().await.expect_success();
    direct.lock_file()
}

/// The state of each file, as `FILE STATE`.
pub(crate) fn states(out: &str) -> Vec<String> {
    let steps = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
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
