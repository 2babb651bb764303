//! Completes the hashes of documents: fetches the archives in `complete_hashes` whose hashes larder does not know, for versions
//! that clients asked for, one archive at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::address::Package;
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::{Connectivity, Mirror, PackageHashState, RETRY_HASHES_AFTER, Urgency};

/// The longest work for one archive.
const MAX_ARCHIVE_TIME: Duration = Duration::from_secs(1800);

/// Completes hashes until it is dropped.
pub async fn complete_hashes(mirror: Arc<Mirror>, clock: Clock) {
    loop {
        let package = mirror.wanted_hashes.next().await;
        if mirror.runtime.connectivity() == Connectivity::Offline {
            continue;
        }
        let failure = match timeout(MAX_ARCHIVE_TIME, complete(&mirror, &clock, &package)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it took more than {} minutes", MAX_ARCHIVE_TIME.as_secs() / 60),
        };
        let retry_minutes = RETRY_HASHES_AFTER.as_secs() / 60;
        tracing::warn!(
            %package, failure, retry_minutes,
            "an archive in complete_hashes could not be had: clients install as before, without its h1 in documents"
        );
    }
}

/// Fetches an archive whose hashes are unknown, and computes them. It waits for no upstream that asks for a delay: others
/// would wait behind it.
async fn complete(mirror: &Arc<Mirror>, clock: &Clock, package: &Package) -> Result<(), Error> {
    let call = mirror.runtime.step_context(Urgency::Job, clock.now());
    let digest = mirror.operations.warm_set(package, &call).await?.value.document.shasum;
    if mirror.library.package_hashes(package, digest).await? == PackageHashState::NotYet {
        mirror.operations.warm_archive(package, digest, clock.now(), |_, _| {}).await?;
        mirror.library.package_hashes(package, digest).await?;
    }
    Ok(())
}
