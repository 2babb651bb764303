//! What is done over the mirror without a client that waits: on a schedule, or because an operator said so.

mod id;
mod list;
mod locked;
mod news;
mod outlook;
mod patience;
mod plan;
mod record;
mod recurring;
mod registries;
pub mod report;
mod resolving;
mod told;
mod under;
mod warm;
mod warming;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::mirror::Mirror;

pub use self::id::JobId;
pub use self::list::{Jobs, NotStarted, ToPin};
pub use self::news::{JobEvent, News, NumberedItem};
pub use self::plan::{Installs, NotPlanned, Plan, PlanState, Planned, Sums, plan};
pub use self::recurring::{LastRun, Recurring, RecurringState};
pub use self::warm::WarmUp;

const EVERY: Duration = Duration::from_secs(3600);
/// How long the scrub waits at most before it looks at what is due.
const LOOKS_AGAIN: Duration = Duration::from_secs(24 * 3600);

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

/// Holds every archive against its digest once in `every`, one after the other and slowly; goes on after a restart
/// with what is due then. Ends when it is dropped.
pub async fn scrub(mirror: Arc<Mirror>, clock: Clock, every: Duration) {
    loop {
        let call = mirror.job(clock.now());
        let next = match mirror.scrub(every, &call).await {
            Ok(next) => next,
            Err(error) => {
                tracing::error!(%error, "the scrub could not read everything that is due; it tries again in an hour");
                clock.now().after(EVERY)
            }
        };
        // The clock may be set meanwhile, and then nothing is due when it was.
        let _ = tokio::time::timeout(LOOKS_AGAIN, clock.until(next)).await;
    }
}
