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
use super::lockfile_targets::{LockFit, LockMismatch, all_have};
use super::running_job::RunningJob;
use super::warm::{WarmTarget, WarmUp};
use crate::address::{
    Artifact, ModuleAddress, ModulePackage, Package, PackageSelector, ProviderAddress, Selection, Version,
};
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{Mirror, PinChange, SMALL_ARCHIVE_BYTES, Urgency, WarmedArchive, WarmedDocument};

/// Final checks at a time.
const FINAL_CHECKS: usize = 8;

/// Runs a warm-up to its end and reports the result of each archive.
pub(super) async fn run(
    mirror: &Arc<Mirror>,
    clock: &Clock,
    turns: &JobLimits,
    job: &Arc<RunningJob>,
    warm_up: &WarmUp,
) {
    let run = WarmUpRun { mirror, clock, job, retry_policy: RetryPolicy::new(turns, clock) };
    let mut first = 0;
    let each = warm_up.wanted.iter().map(|wanted| {
        let items = first..first + wanted.len();
        first = items.end;
        run.warm(items, wanted)
    });
    let each = join_all(each.collect::<Vec<_>>());
    let found = async {
        if let Some(order) = &warm_up.configurations {
            run.configurations(order).await;
        }
    };
    join(each, found).await;
    run.check_again().await;
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
    async fn warm(&self, items: Range<usize>, wanted: &WarmTarget) {
        let warmed = match &wanted.what {
            PackageSelector::Provider(selection) => self.provider(items.clone(), selection, wanted).await,
            PackageSelector::Module(selection) => self.module(items.clone(), selection).await,
        };
        if let Err(error) = warmed {
            items.for_each(|item| self.failed(item, &error));
        }
    }

    async fn provider(
        &self,
        items: Range<usize>,
        selection: &Selection<ProviderAddress>,
        wanted: &WarmTarget,
    ) -> Result<(), Error> {
        let list =
            || -> BoxFuture<'_, _> { Box::pin(self.mirror.warm_list(&selection.of, Urgency::Job, self.clock.now())) };
        let list = self.list(items.clone().collect(), list).await?;
        let listed: Vec<&Version> = list.versions.iter().map(|listed| &listed.version).collect();
        let version = selection.choose(&listed).map_err(Error::NotFound)?.clone();
        join_all(items.zip(&wanted.platforms).map(|(item, platform)| {
            let package =
                Package { provider: selection.of.clone(), version: version.clone(), platform: platform.clone() };
            self.item(item, package, &wanted.locked)
        }))
        .await;
        Ok(())
    }

    async fn module(&self, items: Range<usize>, selection: &Selection<ModuleAddress>) -> Result<(), Error> {
        let list = || -> BoxFuture<'_, _> {
            Box::pin(self.mirror.warm_module_list(&selection.of, Urgency::Job, self.clock.now()))
        };
        let list = self.list(items.clone().collect(), list).await?;
        let listed: Vec<&Version> = list.versions.iter().map(|listed| &listed.version).collect();
        let version = selection.choose(&listed).map_err(Error::NotFound)?.clone();
        self.module_item(items.start, &ModulePackage { module: selection.of.clone(), version }).await
    }

    /// Warms the required versions of one provider. Its version list is fetched, however the versions were named.
    pub(super) async fn packages(&self, provider: &ProviderAddress, wanted: Vec<(usize, Package, Vec<Vec<String>>)>) {
        let list = || -> BoxFuture<'_, _> { Box::pin(self.mirror.warm_list(provider, Urgency::Job, self.clock.now())) };
        if let Err(error) = self.list(wanted.iter().map(|(item, ..)| *item).collect(), list).await {
            wanted.iter().for_each(|(item, ..)| self.failed(*item, &error));
            return;
        }
        join_all(wanted.iter().map(|(item, package, locked)| self.item(*item, package.clone(), locked))).await;
    }

    /// Warms a version of a module.
    ///
    /// # Errors
    /// The reason why it is unavailable; its item then waits.
    pub(super) async fn module_item(&self, item: usize, package: &ModulePackage) -> Result<(), Error> {
        self.job.set_subject(item, &Artifact::from(package));
        let waits = || self.job.is_now(item, ItemState::Waiting);
        let warmed = self.retry_policy.run_archive_step(|_| Box::pin(self.module_package(item, package)), waits);
        let (came, digest, size_bytes) = warmed.await?;
        self.job.mark_stored(item, came, digest, size_bytes);
        Ok(())
    }

    async fn module_package(
        &self,
        item: usize,
        package: &ModulePackage,
    ) -> Result<(WarmedArchive, Digest, u64), Error> {
        self.job.is_now(item, ItemState::Fetching);
        let WarmedDocument { value: (came, held), unconfirmed } =
            self.mirror.warm_module(package, Urgency::Job, self.clock.now()).await?;
        if let Some(reason) = unconfirmed {
            self.job.is_unconfirmed(item, reason);
        }
        self.pin_if_ordered(self.mirror.artifact_of(package)).await?;
        self.mirror.sync_module(package, held.digest).await?;
        Ok((came, held.digest, held.size_bytes))
    }

    async fn pin_if_ordered(&self, artifact: Artifact) -> Result<(), Error> {
        if !self.job.pins() {
            return Ok(());
        }
        let subject = format!("the archive of {artifact}");
        let pinned = self.mirror.pin_artifacts(vec![artifact], PinChange::Set).await?;
        if pinned.iter().all(|pinned| pinned.succeeded()) {
            Ok(())
        } else {
            Err(self.mirror.not_stored_error(&subject).await)
        }
    }

    /// The version list from which the versions of these items are chosen.
    pub(super) async fn list<'b, T>(
        &self,
        items: Vec<usize>,
        list: impl Fn() -> BoxFuture<'b, Result<WarmedDocument<T>, Error>>,
    ) -> Result<T, Error> {
        let each = |state: ItemState| items.iter().for_each(|item| self.job.is_now(*item, state.clone()));
        let list = self.retry_policy.run_step(
            || {
                each(ItemState::Resolving);
                list()
            },
            || each(ItemState::Waiting),
        );
        let WarmedDocument { value: list, unconfirmed } = list.await?;
        if let Some(reason) = unconfirmed {
            items.iter().for_each(|item| self.job.is_unconfirmed(*item, reason.clone()));
        }
        Ok(list)
    }

    async fn item(&self, item: usize, package: Package, locked: &[Vec<String>]) {
        match self.package(item, &package, locked).await {
            Ok((came, digest, size_bytes)) => self.job.mark_stored(item, came, digest, size_bytes),
            Err(error) => self.failed(item, &error),
        }
    }

    async fn package(
        &self,
        item: usize,
        package: &Package,
        locked: &[Vec<String>],
    ) -> Result<(WarmedArchive, Digest, u64), LockMismatch> {
        self.job.set_subject(item, &Artifact::from(package));
        let waits = || self.job.is_now(item, ItemState::Waiting);
        let set = self.retry_policy.run_step(|| Box::pin(self.set(item, package, locked)), waits).await?;
        waits();
        let known = Mutex::new(Some(set));
        let fetch = |turn| -> BoxFuture<'_, _> {
            let known = known.lock().take();
            Box::pin(async move {
                let digest = match known {
                    Some(digest) => digest,
                    // After a delay there may be a new list.
                    None => self.set(item, package, locked).await?,
                };
                self.archive(item, package, digest, turn).await
            })
        };
        let (came, digest, size_bytes) = self.retry_policy.run_archive_step(fetch, waits).await?;
        self.retry_policy.run_step(|| Box::pin(self.complete(package, digest, locked)), || {}).await?;
        Ok((came, digest, size_bytes))
    }

    /// The digest of the archive that an `init` would get.
    async fn set(&self, item: usize, package: &Package, locked: &[Vec<String>]) -> Result<Digest, LockMismatch> {
        self.job.is_now(item, ItemState::Resolving);
        let WarmedDocument { value: set, unconfirmed } =
            self.mirror.warm_set(package, Urgency::Job, self.clock.now()).await?;
        if let Some(reason) = unconfirmed {
            self.job.is_unconfirmed(item, reason);
        }
        let digest = set.document.shasum;
        // Before the fetch, where the digest is known.
        match LockFit::of_all(locked, digest) {
            LockFit::None => Err(LockMismatch::locked_to_another(package, &locked.concat(), digest.zh())),
            LockFit::Its | LockFit::ItsPackageHashTells => Ok(digest),
        }
    }

    async fn archive(
        &self,
        item: usize,
        package: &Package,
        digest: Digest,
        turn: Arc<ArchivePermit<'_>>,
    ) -> Result<(WarmedArchive, Digest, u64), LockMismatch> {
        self.job.is_now(item, ItemState::Fetching);
        let arriving = |bytes, length: Option<u64>| {
            if length.is_some_and(|length| length <= SMALL_ARCHIVE_BYTES) {
                turn.release_if_small();
            }
            self.job.arriving(item, bytes, length);
        };
        let (came, archive) = self.mirror.warm_archive(package, digest, self.clock.now(), arriving).await?;
        Ok((came, digest, archive.size_bytes))
    }

    /// Completes an item after its archive is stored.
    async fn complete(&self, package: &Package, digest: Digest, locked: &[Vec<String>]) -> Result<(), LockMismatch> {
        if LockFit::of_all(locked, digest) == LockFit::ItsPackageHashTells {
            match self.mirror.package_hash(package, digest).await? {
                Some(hash) if all_have(locked, digest, &hash) => {}
                hash => {
                    let proven = hash.unwrap_or_else(|| digest.zh());
                    return Err(LockMismatch::locked_to_another(package, &locked.concat(), proven));
                }
            }
        }
        self.pin_if_ordered(Artifact::from(package)).await?;
        Ok(self.mirror.sync_warmed(package, digest).await?)
    }

    pub(super) fn failed(&self, item: usize, error: &dyn Display) {
        self.job.has_failed(item, &error.to_string());
    }

    /// Early archives may have been evicted for later ones.
    async fn check_again(&self) {
        self.mirror.wait_for_eviction().await;
        let look = async |(item, artifact, digest)| {
            let holds = match &artifact {
                Artifact::Provider(package) => self.mirror.is_installable(package, digest).await,
                Artifact::Module(package) => self.mirror.is_module_installable(package, digest).await,
            };
            match holds {
                Ok(true) => {}
                Ok(false) => {
                    self.failed(item, &self.mirror.not_stored_error(&format!("the archive of {artifact}")).await)
                }
                Err(error) => self.failed(item, &error),
            }
        };
        stream::iter(self.job.stored_items()).for_each_concurrent(FINAL_CHECKS, look).await;
    }
}
