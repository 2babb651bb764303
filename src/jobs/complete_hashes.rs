//! Completes the hashes of versions that clients asked for: fetches the archives of the platforms in `complete_hashes` whose
//! hashes larder does not know, each once, one at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::job_limits::{JobLimits, StepRunner};
use crate::address::{Address, Package};
use crate::clock::Clock;
use crate::error::Error;
use crate::mirror::{Connectivity, Mirror, PackageHashState, Urgency};

/// The longest work for one archive. The next client of the version asks for it again.
const MAX_ARCHIVE_TIME: Duration = Duration::from_secs(1800);

/// Completes hashes until it is dropped.
pub async fn complete_hashes(mirror: Arc<Mirror>, clock: Clock) {
    let limits = JobLimits::default();
    loop {
        let (provider, version) = mirror.wanted_hashes.next().await;
        if mirror.runtime.connectivity() == Connectivity::Offline {
            continue;
        }
        // The upstream may be gone since a reload.
        let call = mirror.runtime.job_context(clock.now());
        let Ok(platforms) = call.complete_hashes(&provider.host) else { continue };
        let listed = mirror.library.stored_version_list(&Address::from(&provider)).await.ok().flatten();
        let listed = listed.and_then(|list| Some(list.get(&version)?.platforms())).unwrap_or_default();
        for platform in platforms.iter().filter(|platform| listed.contains(platform)) {
            let package = Package { provider: provider.clone(), version: version.clone(), platform: platform.clone() };
            let steps = StepRunner::new(&mirror, &clock, &limits, Urgency::Job);
            match timeout(MAX_ARCHIVE_TIME, steps.complete_hashes_of(&package)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%package, %error, "the hashes of an archive could not be completed"),
                Err(_) => tracing::warn!(%package, "the hashes of an archive could not be completed in time"),
            }
        }
    }
}

impl StepRunner<'_> {
    /// Fetches an archive whose hashes are unknown, and computes them.
    async fn complete_hashes_of(&self, package: &Package) -> Result<(), Error> {
        let (operations, library) = (&self.mirror.operations, &self.mirror.library);
        let resolve = || async { operations.warm_set(package, &self.context()).await };
        let digest = self.run_step(resolve, || {}).await?.value.document.shasum;
        if library.package_hashes(package, digest).await? != PackageHashState::NotYet {
            return Ok(());
        }
        let fetch = |_| async { operations.warm_archive(package, digest, self.clock.now(), |_, _| {}).await };
        self.run_archive_step(fetch, || {}).await?;
        library.package_hashes(package, digest).await.map(drop)
    }
}
