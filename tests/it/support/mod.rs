//! Support for the tests: a fake upstream that signs real archives, a larder on port 0, the real client.

pub(crate) mod admin;
pub(crate) mod another_user;
pub(crate) mod bucket;
pub(crate) mod bundle_transfer;
pub(crate) mod ci_tokens;
pub(crate) mod command_setup;
pub(crate) mod configurations;
pub(crate) mod doctor_setup;
pub(crate) mod estate_fixture;
pub(crate) mod fleet_setup;
pub(crate) mod git;
pub(crate) mod git_module_fixture;
pub(crate) mod handwritten_configurations;
pub(crate) mod http;
pub(crate) mod killed_downloads;
pub(crate) mod lagging_records;
pub(crate) mod larder;
pub(crate) mod larder_commands;
pub(crate) mod markdown;
pub(crate) mod memory_records;
pub(crate) mod module_fixture;
pub(crate) mod nginx;
pub(crate) mod null_provider;
pub(crate) mod openapi;
pub(crate) mod openmetrics;
pub(crate) mod package_fixture;
pub(crate) mod pages;
pub(crate) mod ports;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod provider_trees;
pub(crate) mod published_module;
pub(crate) mod reports;
pub(crate) mod rows;
pub(crate) mod run_setup;
pub(crate) mod sealed;
pub(crate) mod small_disk;
pub(crate) mod store_kind;
pub(crate) mod terraform;
pub(crate) mod tls;
pub(crate) mod tree_imports;
pub(crate) mod turns;
pub(crate) mod upstream;
pub(crate) mod verify_steps;
pub(crate) mod warm_fixture;

use std::time::Duration;

/// The time limit of every wait: far longer than the slowest machine needs, so that only a real hang fails, with a
/// message.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The number of times that a test repeats a random draw: `many` in `tests/long/run repetitions`.
pub(crate) fn repetitions(few: usize, many: usize) -> usize {
    if std::env::var("LARDER_TEST_REPETITIONS").as_deref() == Ok("many") { many } else { few }
}

/// Polls every few milliseconds until `probe` returns a value: for what larder does in the background. `awaited` names
/// the value in the message of a time-out.
pub(crate) async fn eventually<T>(awaited: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        let mut interval = Duration::from_millis(1);
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            // Sleeps between polls: a spinning test would take the processor from the work that it waits for.
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(Duration::from_millis(20));
        }
    };
    let result = tokio::time::timeout(TEST_TIMEOUT, polling).await;
    result.unwrap_or_else(|_| panic!("still waiting after {TEST_TIMEOUT:?}: {awaited}"))
}

/// Polls every few milliseconds until the condition holds.
pub(crate) async fn until(awaited: &str, condition: impl AsyncFn() -> bool) {
    eventually(awaited, async || condition().await.then_some(())).await;
}
