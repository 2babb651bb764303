//! What the tests stand on: a fake upstream that signs real archives, a larder on port 0, the real client.

pub(crate) mod admin;
pub(crate) mod configurations;
pub(crate) mod estate;
pub(crate) mod forms;
pub(crate) mod gap;
pub(crate) mod git;
pub(crate) mod http;
pub(crate) mod larder;
pub(crate) mod module_scene;
pub(crate) mod nginx;
pub(crate) mod openmetrics;
pub(crate) mod process;
pub(crate) mod scene;
pub(crate) mod shelf;
pub(crate) mod small_disk;
pub(crate) mod terraform;
pub(crate) mod tls;
pub(crate) mod upstream;

/// Asks again and again until it is so; for what larder does behind its answers. Gives up after ten seconds.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(std::time::Duration::from_secs(10), asking).await;
    in_time.unwrap_or_else(|_| panic!("still not so after ten seconds: {what}"));
}
