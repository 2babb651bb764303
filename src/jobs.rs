//! What is done without being asked: small functions over the mirror, on a schedule.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::mirror::Mirror;

const EVERY: Duration = Duration::from_secs(3600);

/// Completes what an earlier run did not come to, then sweeps leftovers every hour. Ends when it is dropped.
pub async fn keep_house(mirror: Arc<Mirror>, clock: Clock) {
    if let Err(error) = mirror.complete_hashes().await {
        tracing::error!(%error, "the h1 hashes of an earlier run could not be completed");
    }
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = mirror.sweep(clock.now()).await {
            tracing::error!(%error, "leftovers could not be swept");
        }
    }
}
