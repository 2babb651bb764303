//! The content of a warm-up: named packages, with the lock-file hashes that their archives must match, and
//! configurations still to be resolved.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::job_limits::AsError;
use super::job_report::JobItem;
use super::job_state::waiting_item;
use crate::address::{Package, PackageRef, PackageSelector, Platform, Selection, Versions};
use crate::digest::Digest;
use crate::error::Error;
use crate::requirements::lock_file::LockedProvider;
use crate::requirements::{Configurations, Order, OrderEntry};

/// The maximum number of folders listed of an order without explicit roots.
const MAX_LISTED_FOLDERS: usize = 16;

/// The maximum number of archives in one job.
pub(super) const MAX_ITEMS: usize = 8192;

/// A warm-up order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmUp {
    pub(super) wanted: Vec<WarmTarget>,
    /// Configurations, whose requirements are resolved first.
    pub(super) configurations: Option<Order>,
    pub(super) platforms: Vec<Platform>,
    pub(super) pin: bool,
}

/// One exact version, or one address with a constraint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WarmTarget {
    pub(super) what: PackageSelector,
    /// Empty for a module, which has no platforms.
    pub(super) platforms: Vec<Platform>,
    /// The accepted hashes of each lock file that names the package. The archive must match each list.
    pub(super) locked: Vec<Vec<String>>,
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
                    wanted.push(WarmTarget::of(selector, platforms, Vec::new()));
                }
                OrderEntry::LockFile { locked, .. } => {
                    for LockedProvider { provider, version, hashes, .. } in locked {
                        let index = *indexes.entry((provider.clone(), version.clone())).or_insert(wanted.len());
                        match wanted.get_mut(index) {
                            Some(target) => target.locked.push(hashes),
                            None => {
                                let selection = Selection { of: provider, versions: Versions::Exactly(version) };
                                wanted.push(WarmTarget::of(
                                    PackageSelector::Provider(selection),
                                    platforms.clone(),
                                    vec![hashes],
                                ));
                            }
                        }
                    }
                }
                OrderEntry::Configurations(_) => configurations.push(entry),
            }
        }
        let configurations =
            (!configurations.is_empty()).then(|| Order { given: configurations, platforms: platforms.clone() });
        let items = wanted.iter().map(WarmTarget::len).fold(0, usize::saturating_add);
        if items > MAX_ITEMS {
            return Err(vec![format!("the order has about {items} archives; the limit of one job is {MAX_ITEMS}")]);
        }
        Ok(Self { wanted, configurations, platforms, pin })
    }

    /// An item for each known archive.
    pub(super) fn items(&self) -> Vec<JobItem> {
        let items_of = |target: &WarmTarget| {
            let item = |platform| waiting_item(PackageRef::from(&target.what).on(platform));
            match target.what {
                PackageSelector::Provider(_) => target.platforms.iter().map(|platform| item(Some(platform))).collect(),
                PackageSelector::Module(_) => vec![item(None)],
            }
        };
        self.wanted.iter().flat_map(items_of).collect()
    }

    /// The order, as text for people.
    pub(super) fn names(&self) -> Vec<String> {
        let named = self.wanted.iter().map(|target| target.what.to_string());
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
    fn of(selector: PackageSelector, mut platforms: Vec<Platform>, locked: Vec<Vec<String>>) -> Self {
        if let PackageSelector::Module(_) = selector {
            platforms.clear();
        }
        Self { what: selector, platforms, locked }
    }

    pub(super) fn len(&self) -> usize {
        match self.what {
            PackageSelector::Provider(_) => self.platforms.len(),
            PackageSelector::Module(_) => 1,
        }
    }
}

/// The error of an archive that matches no lock file.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockMismatch {
    #[error(transparent)]
    Mirror(#[from] Error),
    #[error(
        "{package}: none of the {locked} hashes in the lock file matches the verified archive ({archive_hash}), so a client would refuse the archive: run `terraform providers lock -platform={}` again, or find out why the hashes differ", .package.platform
    )]
    HashMismatch { package: Package, locked: usize, archive_hash: String },
}

/// Result of comparing an archive with a lock file's hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub(super) fn of(locked: &[String], digest: Digest) -> Self {
        let is_package_hash = |hash: &&String| hash.starts_with("h1:");
        if !locked.iter().any(|hash| hash.starts_with("zh:") || hash.starts_with("h1:"))
            || locked.contains(&digest.zh())
        {
            Self::Matches
        } else if locked.iter().any(|hash| is_package_hash(&hash)) {
            Self::NeedsPackageHash
        } else {
            Self::Mismatch
        }
    }

    /// Compares several lock files: an archive must match each of them.
    pub(super) fn of_all(lists: &[Vec<String>], digest: Digest) -> Self {
        let each = || lists.iter().map(|locked| Self::of(locked, digest));
        if each().any(|fit| fit == Self::Mismatch) {
            Self::Mismatch
        } else if each().any(|fit| fit == Self::NeedsPackageHash) {
            Self::NeedsPackageHash
        } else {
            Self::Matches
        }
    }
}

/// Returns true if each list accepts the archive: by its `zh:`, or else by this `h1:`.
pub(super) fn all_lists_accept(lists: &[Vec<String>], digest: Digest, package_hash: &String) -> bool {
    lists.iter().all(|locked| LockFit::of(locked, digest) == LockFit::Matches || locked.contains(package_hash))
}

impl LockMismatch {
    pub(super) fn hash_mismatch(package: &Package, locked: &[String], archive_hash: String) -> Self {
        Self::HashMismatch { package: package.clone(), locked: locked.len(), archive_hash }
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
