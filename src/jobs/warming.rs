//! Runs one warm-up: fetches everything that an `init` asks for. Constraints are resolved against version lists as a
//! client does it. Each archive succeeds or fails by itself, and clients have priority.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join, join_all};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::job_limits::{ArchivePermit, JobLimits, RetryPolicy};
use super::job_report::ItemState;
use super::running_job::RunningJob;
use super::warm::{LockFit, LockMismatch, WarmTarget, WarmUp, all_lists_accept};
use crate::address::{
    Artifact, ModuleAddress, ModulePackage, Package, PackageSelector, ProviderAddress, Selection, Version,
};
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{Mirror, PinChange, SMALL_ARCHIVE_BYTES, Urgency, WarmedArchive, WarmedDocument};

/// Concurrent checks at the end of a job.
const MAX_FINAL_CHECKS: usize = 8;

/// Runs a warm-up to its end and reports the result of each archive.
pub(super) async fn run(
    mirror: &Arc<Mirror>,
    clock: &Clock,
    limits: &JobLimits,
    job: &Arc<RunningJob>,
    warm_up: &WarmUp,
) {
    let run = WarmUpRun { mirror, clock, job, retry_policy: RetryPolicy::new(limits, clock) };
    let mut first = 0;
    let targets = warm_up.wanted.iter().map(|target| {
        let items = first..first + target.len();
        first = items.end;
        run.warm(items, target)
    });
    let targets = join_all(targets.collect::<Vec<_>>());
    let configurations = async {
        if let Some(order) = &warm_up.configurations {
            run.warm_configurations(order).await;
        }
    };
    join(targets, configurations).await;
    run.recheck_stored_items().await;
}

/// A running warm-up.
pub(super) struct WarmUpRun<'a> {
    pub(super) mirror: &'a Arc<Mirror>,
    pub(super) clock: &'a Clock,
    pub(super) job: &'a Arc<RunningJob>,
    pub(super) retry_policy: RetryPolicy<'a>,
}

impl WarmUpRun<'_> {
    /// Chooses the versions and warms them: of a provider, for each platform.
    async fn warm(&self, items: Range<usize>, target: &WarmTarget) {
        let warmed = match &target.what {
            PackageSelector::Provider(selection) => self.warm_provider(items.clone(), selection, target).await,
            PackageSelector::Module(selection) => self.warm_module(items.clone(), selection).await,
        };
        if let Err(error) = warmed {
            items.for_each(|item| self.mark_failed(item, &error));
        }
    }

    async fn warm_provider(
        &self,
        items: Range<usize>,
        selection: &Selection<ProviderAddress>,
        target: &WarmTarget,
    ) -> Result<(), Error> {
        let fetch = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.operations.warm_list(&selection.of, Urgency::Job, self.clock.now()))
        };
        let list = self.version_list(items.clone().collect(), fetch).await?;
        let listed: Vec<&Version> = list.versions.iter().map(|listed| &listed.version).collect();
        let version = selection.choose(&listed).map_err(Error::NotFound)?.clone();
        join_all(items.zip(&target.platforms).map(|(item, platform)| {
            let package =
                Package { provider: selection.of.clone(), version: version.clone(), platform: platform.clone() };
            self.warm_package(item, package, &target.locked)
        }))
        .await;
        Ok(())
    }

    async fn warm_module(&self, items: Range<usize>, selection: &Selection<ModuleAddress>) -> Result<(), Error> {
        let fetch = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.operations.warm_module_list(&selection.of, Urgency::Job, self.clock.now()))
        };
        let list = self.version_list(items.clone().collect(), fetch).await?;
        let listed: Vec<&Version> = list.versions.iter().map(|listed| &listed.version).collect();
        let version = selection.choose(&listed).map_err(Error::NotFound)?.clone();
        self.warm_module_item(items.start, &ModulePackage { module: selection.of.clone(), version }).await
    }

    /// Warms the required versions of one provider. Its version list is fetched, even for exact versions.
    pub(super) async fn warm_packages(
        &self,
        provider: &ProviderAddress,
        packages: Vec<(usize, Package, Vec<Vec<String>>)>,
    ) {
        let fetch = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.operations.warm_list(provider, Urgency::Job, self.clock.now()))
        };
        if let Err(error) = self.version_list(packages.iter().map(|(item, ..)| *item).collect(), fetch).await {
            packages.iter().for_each(|(item, ..)| self.mark_failed(*item, &error));
            return;
        }
        join_all(packages.iter().map(|(item, package, locked)| self.warm_package(*item, package.clone(), locked)))
            .await;
    }

    /// Warms a version of a module.
    ///
    /// # Errors
    /// The reason why it is unavailable; its item then waits.
    pub(super) async fn warm_module_item(&self, item: usize, package: &ModulePackage) -> Result<(), Error> {
        self.job.set_subject(item, &Artifact::from(package));
        let set_waiting = || self.job.set_item_state(item, ItemState::Waiting);
        let warmed = self.retry_policy.run_archive_step(|_| Box::pin(self.try_warm_module(item, package)), set_waiting);
        let (outcome, digest, size_bytes) = warmed.await?;
        self.job.mark_stored(item, outcome, digest, size_bytes);
        Ok(())
    }

    async fn try_warm_module(
        &self,
        item: usize,
        package: &ModulePackage,
    ) -> Result<(WarmedArchive, Digest, u64), Error> {
        self.job.set_item_state(item, ItemState::Fetching);
        let WarmedDocument { value: (outcome, stored), unconfirmed } =
            self.mirror.operations.warm_module(package, Urgency::Job, self.clock.now()).await?;
        if let Some(reason) = unconfirmed {
            self.job.mark_unconfirmed(item, reason);
        }
        self.pin_if_ordered(self.mirror.runtime.artifact_of(package)).await?;
        self.mirror.library.sync_warmed(package, stored.digest).await?;
        Ok((outcome, stored.digest, stored.size_bytes))
    }

    async fn pin_if_ordered(&self, artifact: Artifact) -> Result<(), Error> {
        if !self.job.pins() {
            return Ok(());
        }
        let subject = format!("the archive of {artifact}");
        let pinned = self.mirror.operations.pin_artifacts(vec![artifact], PinChange::Set).await?;
        if pinned.iter().all(|pinned| pinned.succeeded()) {
            Ok(())
        } else {
            Err(self.mirror.library.not_stored_error(&subject).await)
        }
    }

    /// The version list from which the versions of these items are chosen.
    pub(super) async fn version_list<'b, T>(
        &self,
        items: Vec<usize>,
        fetch: impl Fn() -> BoxFuture<'b, Result<WarmedDocument<T>, Error>>,
    ) -> Result<T, Error> {
        let set_all = |state: ItemState| items.iter().for_each(|item| self.job.set_item_state(*item, state.clone()));
        let fetched = self.retry_policy.run_step(
            || {
                set_all(ItemState::Resolving);
                fetch()
            },
            || set_all(ItemState::Waiting),
        );
        let WarmedDocument { value: list, unconfirmed } = fetched.await?;
        if let Some(reason) = unconfirmed {
            items.iter().for_each(|item| self.job.mark_unconfirmed(*item, reason.clone()));
        }
        Ok(list)
    }

    async fn warm_package(&self, item: usize, package: Package, locked: &[Vec<String>]) {
        match self.try_warm_package(item, &package, locked).await {
            Ok((outcome, digest, size_bytes)) => self.job.mark_stored(item, outcome, digest, size_bytes),
            Err(error) => self.mark_failed(item, &error),
        }
    }

    async fn try_warm_package(
        &self,
        item: usize,
        package: &Package,
        locked: &[Vec<String>],
    ) -> Result<(WarmedArchive, Digest, u64), LockMismatch> {
        self.job.set_subject(item, &Artifact::from(package));
        let set_waiting = || self.job.set_item_state(item, ItemState::Waiting);
        let first_digest =
            self.retry_policy.run_step(|| Box::pin(self.resolve_digest(item, package, locked)), set_waiting).await?;
        set_waiting();
        let resolved = Mutex::new(Some(first_digest));
        let fetch = |permit| -> BoxFuture<'_, _> {
            let resolved = resolved.lock().take();
            Box::pin(async move {
                let digest = match resolved {
                    Some(digest) => digest,
                    // After a delay there may be a new proof set.
                    None => self.resolve_digest(item, package, locked).await?,
                };
                self.fetch_archive(item, package, digest, permit).await
            })
        };
        let (outcome, digest, size_bytes) = self.retry_policy.run_archive_step(fetch, set_waiting).await?;
        self.retry_policy.run_step(|| Box::pin(self.finish_package(package, digest, locked)), || {}).await?;
        Ok((outcome, digest, size_bytes))
    }

    /// The digest of the archive that an `init` would get.
    async fn resolve_digest(
        &self,
        item: usize,
        package: &Package,
        locked: &[Vec<String>],
    ) -> Result<Digest, LockMismatch> {
        self.job.set_item_state(item, ItemState::Resolving);
        let WarmedDocument { value: proof_set, unconfirmed } =
            self.mirror.operations.warm_set(package, Urgency::Job, self.clock.now()).await?;
        if let Some(reason) = unconfirmed {
            self.job.mark_unconfirmed(item, reason);
        }
        let digest = proof_set.document.shasum;
        // The digest is known before the fetch: a mismatch costs no download.
        match LockFit::of_all(locked, digest) {
            LockFit::Mismatch => Err(LockMismatch::hash_mismatch(package, &locked.concat(), digest.zh())),
            LockFit::Matches | LockFit::NeedsPackageHash => Ok(digest),
        }
    }

    async fn fetch_archive(
        &self,
        item: usize,
        package: &Package,
        digest: Digest,
        permit: Arc<ArchivePermit<'_>>,
    ) -> Result<(WarmedArchive, Digest, u64), LockMismatch> {
        self.job.set_item_state(item, ItemState::Fetching);
        let on_progress = |bytes, length: Option<u64>| {
            if length.is_some_and(|length| length <= SMALL_ARCHIVE_BYTES) {
                permit.release_if_small();
            }
            self.job.update_progress(item, bytes, length);
        };
        let (outcome, archive) =
            self.mirror.operations.warm_archive(package, digest, self.clock.now(), on_progress).await?;
        Ok((outcome, digest, archive.size_bytes))
    }

    /// Checks the package hash where the lock file needs it, pins the package if ordered, and syncs it to disk.
    async fn finish_package(
        &self,
        package: &Package,
        digest: Digest,
        locked: &[Vec<String>],
    ) -> Result<(), LockMismatch> {
        if LockFit::of_all(locked, digest) == LockFit::NeedsPackageHash {
            match self.mirror.library.package_hash(package, digest).await? {
                Some(hash) if all_lists_accept(locked, digest, &hash) => {}
                hash => {
                    let archive_hash = hash.unwrap_or_else(|| digest.zh());
                    return Err(LockMismatch::hash_mismatch(package, &locked.concat(), archive_hash));
                }
            }
        }
        self.pin_if_ordered(Artifact::from(package)).await?;
        Ok(self.mirror.library.sync_warmed(package, digest).await?)
    }

    pub(super) fn mark_failed(&self, item: usize, error: &dyn Display) {
        self.job.mark_failed(item, &error.to_string());
    }

    /// Checks that every stored item is still installable: archives fetched early may have been evicted for later ones.
    async fn recheck_stored_items(&self) {
        self.mirror.library.wait_for_eviction().await;
        let check = async |(item, artifact, digest)| {
            let installable = self.mirror.library.is_installable(&artifact, digest).await;
            match installable {
                Ok(true) => {}
                Ok(false) => self.mark_failed(
                    item,
                    &self.mirror.library.not_stored_error(&format!("the archive of {artifact}")).await,
                ),
                Err(error) => self.mark_failed(item, &error),
            }
        };
        stream::iter(self.job.stored_items()).for_each_concurrent(MAX_FINAL_CHECKS, check).await;
    }
}
