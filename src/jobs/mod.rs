//! Work that no client waits for: on a schedule, or started by an operator.

mod complete_hashes;
mod job_limits;
pub mod job_report;
mod list;
mod lock;
mod lock_file_gaps;
mod plan;
mod recurring;
mod resolve;
mod running_job;
mod traffic;
mod warm;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::mirror::Mirror;
use crate::store::{Store, StoreError};

pub use self::complete_hashes::complete_hashes;
pub use self::job_report::{JobId, JobList};
pub use self::list::{JobStartError, Jobs, ToPin};
pub use self::lock::{LockFileReport, LockFileState, LockReport};
pub use self::lock_file_gaps::LockFileGap;
pub use self::plan::{Installs, Plan, PlanCounts, PlanError, PlanState, PlannedItem};
pub use self::recurring::{LastRun, Recurring, RecurringState};
pub use self::running_job::{JobEvent, JobSubscription, NumberedItem, RunningJob};
pub use self::traffic::{Traffic, TrafficCount, TrafficHistory, TrafficSource};
pub use self::warm::WarmUp;

const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(3600);
const SCRUB_RETRY_PAUSE: Duration = Duration::from_secs(3600);
const MAX_SCRUB_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Completes the imports and the `h1` hashes that an earlier run did not finish, then removes leftover files and notes the time
/// every hour. Stops when dropped.
pub async fn run_housekeeping(mirror: Arc<Mirror>, clock: Clock) {
    if let Err(error) = mirror.transfers.complete_imports(clock.now()).await {
        tracing::error!(%error, "the imports of an earlier run could not be completed");
    }
    if let Err(error) = mirror.library.complete_hashes().await {
        tracing::error!(%error, "the h1 hashes of an earlier run could not be completed");
    }
    loop {
        tokio::time::sleep(HOUSEKEEPING_INTERVAL).await;
        mirror.library.note_hour(clock.now()).await;
        if let Err(error) = mirror.library.sweep(clock.now()).await {
            tracing::error!(%error, "leftovers could not be swept");
        }
    }
}

/// Compares every archive with its digest once in `every`, one at a time and slowly. After a restart it continues with
/// those that are due. Stops when dropped.
pub async fn scrub(mirror: Arc<Mirror>, clock: Clock, every: Duration) {
    loop {
        let call = mirror.runtime.job_context(clock.now());
        let next = match mirror.operations.scrub(every, &call).await {
            Ok(next) => next,
            Err(error) => {
                tracing::error!(%error, "the scrub could not read every archive that is due; the next attempt is in an hour");
                clock.now().after(SCRUB_RETRY_PAUSE)
            }
        };
        // After a change of the clock, the due time may have moved.
        let _ = tokio::time::timeout(MAX_SCRUB_PAUSE, clock.sleep_until(next)).await;
    }
}

/// Works with the store on a thread that may block.
async fn on_disk<T: Send + 'static>(
    store: &Arc<Store>,
    work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, String> {
    let store = Arc::clone(store);
    let result = tokio::task::spawn_blocking(move || work(&store)).await;
    result.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
