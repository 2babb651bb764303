//! What a sealed mirror shows and what it notes (promise 12): lists name only what can be installed from what is held,
//! and what is asked for and is not held is written down, for whoever can fetch it elsewhere.
//!
//! Clients choose a version by the list alone, whatever platforms it names (PROTOCOL 2.2, 3.2, 4.2): so a constraint
//! comes to what exists only where the list names nothing else. What is stored stays as it is; back online, all of it
//! is listed again.

mod held;
mod lists;
mod missing;
mod noted;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;

pub(super) use self::held::HeldVersions;
pub use self::missing::Missing;
pub(super) use self::missing::Wants;
use super::single_flight::{Awaited, Flights};
use super::terms::Generation;
use crate::address::{ModuleAddress, Platform, ProviderAddress, Version};
use crate::error::Error;
use crate::store::Store;

/// For how long an answer that is made of what is stored is given out again as it is, where nothing is known to have
/// changed.
pub(super) const STORED_IS_FRESH: Duration = Duration::from_secs(5);

/// For which platforms a version of a provider must be held to be listed while sealed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SealedFor {
    /// For any.
    #[default]
    AnyPlatform,
    /// For all of these (`[network] sealed_platforms`).
    AllOf(BTreeSet<Platform>),
}

impl From<&[Platform]> for SealedFor {
    fn from(platforms: &[Platform]) -> Self {
        if platforms.is_empty() { Self::AnyPlatform } else { Self::AllOf(platforms.iter().cloned().collect()) }
    }
}

impl SealedFor {
    /// Whether a version that is held for these is listed.
    pub(super) fn shows(&self, held: &BTreeSet<Platform>) -> bool {
        match self {
            Self::AnyPlatform => !held.is_empty(),
            Self::AllOf(platforms) => platforms.is_subset(held),
        }
    }

    /// The versions of a provider that are listed.
    pub(super) fn shown<'a>(
        &'a self,
        held: &'a HeldVersions,
    ) -> impl Iterator<Item = (&'a Version, &'a BTreeSet<Platform>)> {
        held.iter().filter(|(_, for_)| self.shows(for_))
    }

    /// The platforms that are named; none where any will do.
    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        let named = match self {
            Self::AnyPlatform => None,
            Self::AllOf(platforms) => Some(platforms),
        };
        named.into_iter().flatten()
    }
}

type Looked<T> = Awaited<Result<Arc<T>, Error>>;

/// What a mirror keeps in mind of being sealed.
#[derive(Debug)]
pub(super) struct Sealed {
    /// Looks at what is held. Whoever asks after something changed starts another: so each has its revision.
    providers: Flights<(ProviderAddress, u64, Generation), Looked<HeldVersions>>,
    modules: Flights<(ModuleAddress, u64), Looked<BTreeSet<Version>>>,
    wants: Mutex<Wants>,
    will_be_saved: AtomicBool,
}

impl Sealed {
    /// With what an earlier run was asked for.
    pub(super) fn over(store: &Store) -> Self {
        Self {
            providers: Flights::default(),
            modules: Flights::default(),
            wants: Mutex::new(noted::wants_in(store)),
            will_be_saved: AtomicBool::new(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_shown_for_any_platform_or_for_all_that_are_named() {
        let platforms =
            |names: &[&str]| -> Vec<Platform> { names.iter().map(|name| Platform::parse(name).unwrap()).collect() };
        for (named, held, shown) in [
            (&[][..], &["linux_amd64"][..], true),
            (&[], &[], false),
            (&["linux_amd64"], &["darwin_arm64"], false),
            (&["linux_amd64"], &["darwin_arm64", "linux_amd64"], true),
            (&["linux_amd64", "darwin_arm64"], &["linux_amd64"], false),
            (&["linux_amd64", "darwin_arm64"], &["linux_amd64", "darwin_arm64", "linux_arm64"], true),
        ] {
            let sealed_for = SealedFor::from(platforms(named).as_slice());
            assert_eq!(sealed_for.shows(&platforms(held).into_iter().collect()), shown, "{named:?} of {held:?}");
            assert_eq!(sealed_for.platforms().count(), named.len());
        }
    }
}
