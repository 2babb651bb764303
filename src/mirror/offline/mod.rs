//! Offline mode (DESIGN, promise 12): lists name only versions that can be installed from the store, and requests for
//! anything else are recorded as missing.
//!
//! Clients choose a version by the list alone, whatever platforms it names (PROTOCOL 2.2, 3.2, 4.2). So the list must
//! name nothing else for a constraint to select a stored version. Stored documents stay unchanged: back online, the
//! full list is served again.

pub(in crate::mirror) mod lists;
pub(in crate::mirror) mod stored_pages;

use crate::mirror::offline::stored_pages::PageFromStore;
use crate::mirror::{Documents, Library, Runtime};
use crate::upstream::pages::PageRef;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{ModuleAddress, Platform, ProviderAddress, Version};
use crate::error::Error;
pub(in crate::mirror) use crate::mirror::library::installable::StoredVersions;
pub use crate::mirror::library::missing::MissingPackage;
pub(in crate::mirror) use crate::mirror::library::missing::MissingRequests;
use crate::mirror::runtime::ConfigGeneration;
use crate::mirror::single_flight::{SharedResult, SingleFlights};

/// The freshness lifetime of an answer computed from the store, unless a change of the store is noticed.
pub(in crate::mirror) const STORED_ANSWER_LIFETIME: Duration = Duration::from_secs(5);

/// The platforms that a provider version must be stored for to be listed while offline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RequiredPlatforms {
    /// Any platform.
    #[default]
    AnyPlatform,
    /// All of these (`[network] sealed_platforms`).
    AllOf(BTreeSet<Platform>),
}

impl From<&[Platform]> for RequiredPlatforms {
    fn from(platforms: &[Platform]) -> Self {
        if platforms.is_empty() { Self::AnyPlatform } else { Self::AllOf(platforms.iter().cloned().collect()) }
    }
}

impl RequiredPlatforms {
    /// True if a version stored for these platforms is listed.
    pub(in crate::mirror) fn shows(&self, stored: &BTreeSet<Platform>) -> bool {
        match self {
            Self::AnyPlatform => !stored.is_empty(),
            Self::AllOf(platforms) => platforms.is_subset(stored),
        }
    }

    /// The versions of a provider that are listed.
    pub(in crate::mirror) fn shown<'a>(
        &'a self,
        stored: &'a StoredVersions,
    ) -> impl Iterator<Item = (&'a Version, &'a BTreeSet<Platform>)> {
        stored.iter().filter(|(_, for_)| self.shows(for_))
    }

    /// The required platforms; empty if any will do.
    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        let named = match self {
            Self::AnyPlatform => None,
            Self::AllOf(platforms) => Some(platforms),
        };
        named.into_iter().flatten()
    }
}

type SharedLookup<T> = SharedResult<Result<Arc<T>, Error>>;

/// The answers to clients while larder is offline.
#[derive(Debug)]
pub struct Offline {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    /// Lookups of stored versions in progress. The key contains the revision, so a request after a change starts a new
    /// lookup.
    provider_lookups: SingleFlights<(ProviderAddress, u64, ConfigGeneration), SharedLookup<StoredVersions>>,
    module_lookups: SingleFlights<(ModuleAddress, u64), SharedLookup<BTreeSet<Version>>>,
    stored_pages: SingleFlights<PageRef, SharedResult<Result<Option<PageFromStore>, Error>>>,
}

impl Offline {
    pub(in crate::mirror) fn new(documents: Arc<Documents>) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&documents.runtime),
            library: Arc::clone(&documents.library),
            documents,
            provider_lookups: SingleFlights::default(),
            module_lookups: SingleFlights::default(),
            stored_pages: SingleFlights::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_listed_for_any_platform_or_for_all_required_ones() {
        let platforms =
            |names: &[&str]| -> Vec<Platform> { names.iter().map(|name| Platform::parse(name).unwrap()).collect() };
        for (named, stored, shown) in [
            (&[][..], &["linux_amd64"][..], true),
            (&[], &[], false),
            (&["linux_amd64"], &["darwin_arm64"], false),
            (&["linux_amd64"], &["darwin_arm64", "linux_amd64"], true),
            (&["linux_amd64", "darwin_arm64"], &["linux_amd64"], false),
            (&["linux_amd64", "darwin_arm64"], &["linux_amd64", "darwin_arm64", "linux_arm64"], true),
        ] {
            let sealed_for = RequiredPlatforms::from(platforms(named).as_slice());
            assert_eq!(sealed_for.shows(&platforms(stored).into_iter().collect()), shown, "{named:?} of {stored:?}");
            assert_eq!(sealed_for.platforms().count(), named.len());
        }
    }
}
