//! Support for the tests: a fake upstream that signs real archives, a larder on port 0, the real client.

pub(crate) mod admin;
pub(crate) mod another_user;
pub(crate) mod bundle_commands;
pub(crate) mod bundle_transfer;
pub(crate) mod command_setup;
pub(crate) mod configurations;
pub(crate) mod doctor_setup;
pub(crate) mod estate_fixture;
pub(crate) mod forms;
pub(crate) mod git;
pub(crate) mod git_module_fixture;
pub(crate) mod http;
pub(crate) mod http2_frames;
pub(crate) mod killed_downloads;
pub(crate) mod larder;
pub(crate) mod module_fixture;
pub(crate) mod nginx;
pub(crate) mod null_provider;
pub(crate) mod openmetrics;
pub(crate) mod package_fixture;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod provider_trees;
pub(crate) mod published_module;
pub(crate) mod reports;
pub(crate) mod rows;
pub(crate) mod sealed;
pub(crate) mod small_disk;
pub(crate) mod terraform;
pub(crate) mod tls;
pub(crate) mod tree_imports;
pub(crate) mod upstream;
pub(crate) mod verify_steps;
pub(crate) mod warm_fixture;

use std::time::Duration;

/// The limit of every wait: far longer than the slowest machine needs, so that a hang fails with a name and a slow run
/// does not.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Looks again every few milliseconds until there is something; for what larder does behind its answers.
pub(crate) async fn eventually<T>(subject: &str, mut there: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(found) = there().await {
                return found;
            }
            // With a pause: a test that spins takes the processor from the work it waits for.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    };
    let in_time = tokio::time::timeout(HANGS_AFTER, looking).await;
    in_time.unwrap_or_else(|_| panic!("still not so after {HANGS_AFTER:?}: {subject}"))
}

/// Looks again every few milliseconds until it is so.
pub(crate) async fn until(subject: &str, is_so: impl AsyncFn() -> bool) {
    eventually(subject, async || is_so().await.then_some(())).await;
}
