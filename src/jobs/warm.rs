//! Warm-ups: named packages, with the lock-file hashes that their archives must match, and configurations still to be
//! resolved. A warm-up fetches everything that an `init` asks for. Constraints are resolved against version lists as a
//! client does it. Each archive succeeds or fails by itself, and clients have priority.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::job_limits::{ArchivePermit, AsError, JobLimits, StepRunner};
use super::job_report::{ItemState, JobItem};
use super::running_job::{RunningJob, waiting_item};
use crate::address::{
    Address, Artifact, ModulePackage, Package, PackageRef, PackageSelector, Platform, Selection, Version, Versions,
};
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{Mirror, PinChange, SMALL_ARCHIVE_BYTES, Urgency, WarmedArchive, WarmedDocument};
use crate::requirements::lock_file::LockedProvider;
use crate::requirements::{Configurations, Order, OrderEntry};

/// Concurrent checks at the end of a job.
const MAX_FINAL_CHECKS: usize = 8;

/// The maximum number of folders listed of an order without explicit roots.
const MAX_LISTED_FOLDERS: usize = 16;

/// The maximum number of archives in one job.
pub(super) const MAX_ITEMS: usize = 8192;

/// A warm-up order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmUp {
    wanted: Vec<WarmTarget>,
    /// Configurations, whose requirements are resolved first.
    pub(super) configurations: Option<Order>,
    pub(super) platforms: Vec<Platform>,
    pub(super) pin: bool,
}

/// One exact version, or one address with a constraint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WarmTarget {
    #[serde(rename = "what")]
    selector: PackageSelector,
    /// Empty for a module, which has no platforms.
    platforms: Vec<Platform>,
    /// The accepted hashes of each lock file that names the package. The archive must match each list.
    locked: Vec<Vec<String>>,
}

impl WarmUp {
    /// Builds a warm-up from an order.
    ///
    /// # Errors
    /// The order exceeds the limit of archives.
    pub fn of_order(order: Order, pin: bool) -> Result<Self, Vec<String>> {
        let Order { given, platforms } = order;
        let mut wanted: Vec<WarmTarget> = Vec::new();
        let mut configurations = Vec::new();
        // A version in several lock files is one target.
        let mut indexes = HashMap::new();
        for entry in given {
            match entry {
                OrderEntry::Address { what: selector, platforms: own_platforms } => {
                    let platforms = if own_platforms.is_empty() { platforms.clone() } else { sorted(own_platforms) };
                    wanted.push(WarmTarget::of(selector, platforms));
                }
                OrderEntry::LockFile { locked, .. } => {
                    for LockedProvider { provider, version, hashes, .. } in locked {
                        let index = *indexes.entry((provider.clone(), version.clone())).or_insert(wanted.len());
                        if index == wanted.len() {
                            let selection = Selection { of: provider, versions: Versions::Exactly(version) };
                            let selector = PackageSelector::Provider(selection);
                            wanted.push(WarmTarget::of(selector, platforms.clone()));
                        }
                        wanted[index].locked.push(hashes);
                    }
                }
                OrderEntry::Configurations(_) => configurations.push(entry),
            }
        }
        let configurations =
            (!configurations.is_empty()).then(|| Order { given: configurations, platforms: platforms.clone() });
        let items = wanted.iter().map(|target| target.item_platforms().len()).fold(0, usize::saturating_add);
        if items > MAX_ITEMS {
            return Err(vec![format!("the order has about {items} archives; the limit of one job is {MAX_ITEMS}")]);
        }
        Ok(Self { wanted, configurations, platforms, pin })
    }

    /// An item for each known archive.
    pub(super) fn items(&self) -> Vec<JobItem> {
        let items = self.wanted.iter().flat_map(|target| {
            let package = PackageRef::from(&target.selector);
            target.item_platforms().into_iter().map(move |platform| waiting_item(package.clone().on(platform)))
        });
        items.collect()
    }

    /// The order, as text for people.
    pub(super) fn names(&self) -> Vec<String> {
        let named = self.wanted.iter().map(|target| target.selector.to_string());
        let entries = self.configurations.iter().flat_map(|order| &order.given);
        let folders = entries.filter_map(|entry| {
            if let OrderEntry::Configurations(configurations) = entry { Some(configurations) } else { None }
        });
        named.chain(folders.flat_map(folders_of)).collect()
    }
}

/// The folders in which `init` runs; without explicit roots, every folder with files.
fn folders_of(Configurations { files, roots, .. }: &Configurations) -> Vec<String> {
    let display_name = |folder: &str| if folder.is_empty() { ".".to_owned() } else { format!("./{folder}") };
    match roots.is_empty() {
        true => files.folders().into_iter().take(MAX_LISTED_FOLDERS).map(display_name).collect(),
        false => roots.iter().map(|root| display_name(root)).collect(),
    }
}

fn sorted(mut platforms: Vec<Platform>) -> Vec<Platform> {
    platforms.sort();
    platforms.dedup();
    platforms
}

impl WarmTarget {
    fn of(selector: PackageSelector, mut platforms: Vec<Platform>) -> Self {
        if let PackageSelector::Module(_) = selector {
            platforms.clear();
        }
        Self { selector, platforms, locked: Vec::new() }
    }

    /// The platform of each item. A module has one item, which is for all of them.
    fn item_platforms(&self) -> Vec<Option<&Platform>> {
        match self.selector {
            PackageSelector::Provider(_) => self.platforms.iter().map(Some).collect(),
            PackageSelector::Module(_) => vec![None],
        }
    }
}

/// The error of an archive that matches no lock file.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockMismatch {
    #[error(transparent)]
    Mirror(#[from] Error),
    #[error(
        "{package}: none of the {locked} hashes in the lock file matches the verified archive ({archive_hash}), so a client would refuse the archive: run `larder lock --platform {}`, or find out why the hashes differ", .package.platform
    )]
    HashMismatch { package: Box<Package>, locked: usize, archive_hash: String },
}

/// Result of comparing an archive with the hashes of lock files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LockFit {
    /// One of the hashes matches, or the lock file has no hashes.
    Matches,
    /// No `zh:` hash matches. The archive's `h1:`, which is not computed yet, may match one.
    NeedsPackageHash,
    /// No hash can match.
    Mismatch,
}

impl LockFit {
    /// Compares the hashes of one lock file with an archive of this digest.
    fn of_list(locked: &[String], digest: Digest) -> Self {
        let has = |scheme| locked.iter().any(|hash| hash.starts_with(scheme));
        match (has("h1:"), has("zh:")) {
            (false, false) => Self::Matches,
            _ if locked.contains(&digest.zh()) => Self::Matches,
            (true, _) => Self::NeedsPackageHash,
            (false, true) => Self::Mismatch,
        }
    }

    /// Compares the hashes of several lock files with the archive of a package: it must match each list.
    ///
    /// # Errors
    /// [`LockMismatch::HashMismatch`] if no hash of a list can match.
    pub(super) fn check(package: &Package, lists: &[Vec<String>], digest: Digest) -> Result<Self, LockMismatch> {
        match lists.iter().map(|locked| Self::of_list(locked, digest)).max() {
            Some(Self::Mismatch) => Err(LockMismatch::hash_mismatch(package, lists, digest.zh())),
            fit => Ok(fit.unwrap_or(Self::Matches)),
        }
    }
}

impl LockMismatch {
    fn hash_mismatch(package: &Package, lists: &[Vec<String>], archive_hash: String) -> Self {
        let locked = lists.iter().map(Vec::len).sum();
        Self::HashMismatch { package: Box::new(package.clone()), locked, archive_hash }
    }
}

impl StepRunner<'_> {
    /// Checks the package hash of a stored archive where the lock files need it.
    pub(super) async fn check_package_hash(
        &self,
        package: &Package,
        digest: Digest,
        lists: &[Vec<String>],
    ) -> Result<(), LockMismatch> {
        if LockFit::check(package, lists, digest)? == LockFit::Matches {
            return Ok(());
        }
        let hash = self.mirror.library.package_hash(package, digest).await?;
        let accepts = |locked: &Vec<String>| {
            LockFit::of_list(locked, digest) == LockFit::Matches
                || hash.as_ref().is_some_and(|hash| locked.contains(hash))
        };
        match lists.iter().all(accepts) {
            true => Ok(()),
            false => Err(LockMismatch::hash_mismatch(package, lists, hash.unwrap_or_else(|| digest.zh()))),
        }
    }
}

impl AsError for LockMismatch {
    fn as_error(&self) -> Option<&Error> {
        match self {
            Self::Mirror(error) => Some(error),
            Self::HashMismatch { .. } => None,
        }
    }
}

/// Runs a warm-up to its end and reports the result of each archive.
pub(super) async fn run(
    mirror: &Arc<Mirror>,
    clock: &Clock,
    limits: &JobLimits,
    job: &Arc<RunningJob>,
    warm_up: &WarmUp,
) {
    let run = WarmUpRun { steps: StepRunner::new(mirror, clock, limits, Urgency::Job), job };
    let mut first = 0;
    let targets = warm_up.wanted.iter().map(|target| {
        let items = first..first + target.item_platforms().len();
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
    pub(super) steps: StepRunner<'a>,
    pub(super) job: &'a Arc<RunningJob>,
}

/// The outcome, digest and size of a warmed archive.
type Warmed = (WarmedArchive, Digest, u64);

impl WarmUpRun<'_> {
    /// Chooses the versions and warms them: of a provider, for each platform.
    async fn warm(&self, items: Range<usize>, target: &WarmTarget) {
        if let Err(error) = self.try_warm(items.clone(), target).await {
            items.for_each(|item| self.mark_failed(item, &error));
        }
    }

    async fn try_warm(&self, items: Range<usize>, target: &WarmTarget) -> Result<(), Error> {
        let listed = self.versions(&items.clone().collect::<Vec<_>>(), &target.selector.address()).await?;
        let listed: Vec<&Version> = listed.iter().collect();
        let version = match target.selector.choose(&listed) {
            Ok(version) => version.clone(),
            // In a box: an order has thousands of these futures, and few need it.
            Err(reason) => return Err(Box::pin(self.no_match(&target.selector, reason)).await),
        };
        match &target.selector {
            PackageSelector::Provider(selection) => {
                let warmed = items.zip(&target.platforms).map(|(item, platform)| {
                    let (provider, version, platform) = (selection.of.clone(), version.clone(), platform.clone());
                    self.warm_package(item, Package { provider, version, platform }, &target.locked)
                });
                join_all(warmed.collect::<Vec<_>>()).await;
                Ok(())
            }
            PackageSelector::Module(selection) => {
                self.warm_module(items.start, &ModulePackage { module: selection.of.clone(), version }).await
            }
        }
    }

    /// The error of a selector that matches no version for clients: that of the policy that hides the version, else the
    /// given reason.
    async fn no_match(&self, selector: &PackageSelector, reason: String) -> Error {
        let (mirror, call, address) = (self.steps.mirror, self.steps.context(), selector.address());
        let upstream = mirror.offline.upstream_versions(&address, &call).await;
        let hidden = upstream.ok().flatten().map(|upstream| upstream.hidden).unwrap_or_default();
        let refused = match selector.choose(&hidden.iter().collect::<Vec<_>>()) {
            Ok(version) => mirror.documents.permit(&address, version, &call).await.err(),
            Err(_) => None,
        };
        if let Some(refused) = refused {
            return refused;
        }
        let late = match selector.versions() {
            Versions::Exactly(version) => mirror.documents.late_version(&address, version, &call).await,
            _ => None,
        };
        Error::NotFound(late.map_or(reason, |late| late.to_string()))
    }

    /// Warms a version of a module.
    ///
    /// # Errors
    /// The reason why it is unavailable; its item then waits.
    pub(super) async fn warm_module(&self, item: usize, package: &ModulePackage) -> Result<(), Error> {
        self.job.set_subject(item, &Artifact::from(package));
        let set_waiting = || self.job.set_item_state(item, ItemState::Waiting);
        let warmed = self.steps.run_module_step(|| self.try_warm_module(item, package), set_waiting).await?;
        self.job.mark_stored(item, warmed);
        Ok(())
    }

    async fn try_warm_module(&self, item: usize, package: &ModulePackage) -> Result<Warmed, Error> {
        let mirror = self.steps.mirror;
        self.job.set_item_state(item, ItemState::Fetching);
        let WarmedDocument { value: (outcome, stored), unconfirmed } =
            mirror.operations.warm_module(package, &self.steps.context()).await?;
        self.job.mark_unconfirmed(item, unconfirmed);
        self.pin_if_ordered(mirror.runtime.artifact_of(package)).await?;
        mirror.library.sync_warmed(package, stored.digest).await?;
        Ok((outcome, stored.digest, stored.size_bytes))
    }

    async fn pin_if_ordered(&self, artifact: Artifact) -> Result<(), Error> {
        if !self.job.pins() {
            return Ok(());
        }
        // A name without archives cannot be pinned: the cause is the bucket's.
        self.steps.mirror.library.require_kept(&artifact)?;
        let subject = format!("the archive of {artifact}");
        let pinned = self.steps.mirror.operations.pin_artifacts(vec![artifact], PinChange::Set).await?;
        if pinned.iter().all(|pinned| pinned.succeeded()) {
            Ok(())
        } else {
            Err(self.steps.mirror.library.not_stored_error(&subject).await)
        }
    }

    /// The versions from which those of these items are chosen. `init` reads the list even for exact versions.
    pub(super) async fn versions(&self, items: &[usize], address: &Address) -> Result<Vec<Version>, Error> {
        let set_all = |state: ItemState| items.iter().for_each(|item| self.job.set_item_state(*item, state.clone()));
        let (on_start, on_wait) = (|| set_all(ItemState::Resolving), || set_all(ItemState::Waiting));
        let WarmedDocument { value, unconfirmed } = self.steps.versions(address, on_start, on_wait).await?;
        items.iter().for_each(|item| self.job.mark_unconfirmed(*item, unconfirmed.clone()));
        Ok(value)
    }

    /// Warms a package, whose archive must match these lists of hashes.
    pub(super) async fn warm_package(&self, item: usize, package: Package, locked: &[Vec<String>]) {
        match self.try_warm_package(item, &package, locked).await {
            Ok(warmed) => self.job.mark_stored(item, warmed),
            Err(error) => self.mark_failed(item, &error),
        }
    }

    async fn try_warm_package(
        &self,
        item: usize,
        package: &Package,
        locked: &[Vec<String>],
    ) -> Result<Warmed, LockMismatch> {
        self.job.set_subject(item, &Artifact::from(package));
        let set_waiting = || self.job.set_item_state(item, ItemState::Waiting);
        let first_digest = self.steps.run_step(|| self.resolve_digest(item, package, locked), set_waiting).await?;
        set_waiting();
        let resolved = Mutex::new(Some(first_digest));
        let fetch = |permit| {
            let resolved = resolved.lock().take();
            async move {
                let digest = match resolved {
                    Some(digest) => digest,
                    // After a delay there may be a new proof set.
                    None => self.resolve_digest(item, package, locked).await?,
                };
                self.fetch_archive(item, package, digest, permit).await
            }
        };
        let warmed = self.steps.run_archive_step(fetch, set_waiting).await?;
        self.steps.run_last_step(|| self.finish_package(package, warmed.1, locked)).await?;
        Ok(warmed)
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
            self.steps.mirror.operations.warm_set(package, &self.steps.context()).await?;
        self.job.mark_unconfirmed(item, unconfirmed);
        let digest = proof_set.document.shasum;
        // The digest is known before the fetch: a mismatch costs no download.
        LockFit::check(package, locked, digest)?;
        Ok(digest)
    }

    async fn fetch_archive(
        &self,
        item: usize,
        package: &Package,
        digest: Digest,
        permit: Arc<ArchivePermit<'_>>,
    ) -> Result<Warmed, LockMismatch> {
        self.job.set_item_state(item, ItemState::Fetching);
        let on_progress = |bytes, length: Option<u64>| {
            if length.is_some_and(|length| length <= SMALL_ARCHIVE_BYTES) {
                permit.release_if_small();
            }
            self.job.update_progress(item, bytes, length);
        };
        let StepRunner { mirror, clock, .. } = &self.steps;
        let (outcome, archive) = mirror.operations.warm_archive(package, digest, clock.now(), on_progress).await?;
        Ok((outcome, digest, archive.size_bytes))
    }

    /// Checks the package hash where the lock file needs it, pins the package if ordered, and syncs it to disk.
    async fn finish_package(
        &self,
        package: &Package,
        digest: Digest,
        locked: &[Vec<String>],
    ) -> Result<(), LockMismatch> {
        self.steps.check_package_hash(package, digest, locked).await?;
        self.pin_if_ordered(Artifact::from(package)).await?;
        Ok(self.steps.mirror.library.sync_warmed(package, digest).await?)
    }

    pub(super) fn mark_failed(&self, item: usize, error: &dyn Display) {
        self.job.mark_failed(item, &error.to_string());
    }

    /// Checks that every stored item is still installable: archives fetched early may have been evicted for later ones.
    async fn recheck_stored_items(&self) {
        let library = &self.steps.mirror.library;
        library.wait_for_eviction().await;
        let check = async |(item, artifact, digest)| match library.is_installable(&artifact, digest).await {
            Ok(true) => {}
            Ok(false) => {
                self.mark_failed(item, &library.not_stored_error(&format!("the archive of {artifact}")).await);
            }
            Err(error) => self.mark_failed(item, &error),
        };
        stream::iter(self.job.stored_items()).for_each_concurrent(MAX_FINAL_CHECKS, check).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Hostname, Name, ProviderAddress, Version};

    fn locked(hash: &str) -> LockedProvider {
        let host = Hostname::parse("registry.example").unwrap();
        let [namespace, type_] = ["acme", "null"].map(|name| Name::parse(name).unwrap());
        LockedProvider {
            provider: ProviderAddress { host, namespace, type_ },
            version: Version::parse("1.2.0").unwrap(),
            constraints: None,
            hashes: vec![hash.to_owned()],
        }
    }

    #[test]
    fn a_version_in_several_lock_files_is_one_target_with_the_hashes_of_each() {
        let file = |name: &str, hash| OrderEntry::LockFile { name: name.to_owned(), locked: vec![locked(hash)] };
        let platforms = vec![Platform::parse("linux_amd64").unwrap()];
        let order = Order { given: vec![file("a", "zh:1"), file("b", "zh:2")], platforms };
        let warm_up = WarmUp::of_order(order, false).unwrap();
        assert_eq!(warm_up.items().len(), 1);
        assert_eq!(warm_up.wanted[0].locked, [["zh:1"], ["zh:2"]]);
    }

    #[test]
    fn a_module_is_one_item_and_an_address_may_have_its_own_platforms() {
        let host = Hostname::parse("registry.example").unwrap();
        let platforms = |names: &[&str]| names.iter().map(|name| Platform::parse(name).unwrap()).collect::<Vec<_>>();
        let given = |address: &str, own: &[&str]| OrderEntry::Address {
            what: PackageSelector::parse(address, &host).unwrap(),
            platforms: platforms(own),
        };
        let given = vec![given("acme/null", &[]), given("acme/own", &["darwin_arm64"]), given("acme/vpc/aws", &[])];
        let order = Order { given, platforms: platforms(&["linux_amd64", "linux_arm64"]) };
        let warm_up = WarmUp::of_order(order, true).unwrap();
        let names: Vec<String> = warm_up.items().iter().map(|item| item.package.to_string()).collect();
        assert_eq!(
            names,
            [
                "registry.example/acme/null (linux_amd64)",
                "registry.example/acme/null (linux_arm64)",
                "registry.example/acme/own (darwin_arm64)",
                "registry.example/acme/vpc/aws",
            ]
        );
        // The order is recorded unchanged.
        let written = serde_json::to_string(&warm_up).unwrap();
        assert_eq!(serde_json::from_str::<WarmUp>(&written).unwrap(), warm_up);
    }
}
