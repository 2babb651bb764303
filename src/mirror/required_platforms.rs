//! The platforms for which a sealed larder lists a version.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::{Address, Platform, Version, WaitingVersion};

/// The versions of a provider with a stored set and archive, and their platforms; or those of a module with a stored
/// archive, without platforms.
pub type StoredVersions = BTreeMap<Version, BTreeSet<Platform>>;

/// The platforms that a provider version must be stored for to be listed while offline (`[network] sealed_platforms`);
/// empty if any will do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequiredPlatforms(BTreeSet<Platform>);

impl From<&[Platform]> for RequiredPlatforms {
    fn from(platforms: &[Platform]) -> Self {
        Self(platforms.iter().cloned().collect())
    }
}

impl RequiredPlatforms {
    /// True if a version stored for these platforms is listed.
    pub fn shows(&self, stored: &BTreeSet<Platform>) -> bool {
        !stored.is_empty() && self.0.is_subset(stored)
    }

    /// The stored versions of an address that are listed: of a module, all.
    pub fn shown<'a>(
        &'a self,
        address: &'a Address,
        stored: &'a StoredVersions,
    ) -> impl Iterator<Item = (&'a Version, &'a BTreeSet<Platform>)> {
        let is_shown = |platforms| matches!(address, Address::Module(_)) || self.shows(platforms);
        stored.iter().filter(move |(_, platforms)| is_shown(platforms))
    }

    /// The stored versions of a provider that wait for required platforms, the newest first. Of a module, none.
    pub fn waiting<'a>(
        &'a self,
        address: &'a Address,
        stored: &'a StoredVersions,
    ) -> impl Iterator<Item = WaitingVersion> + 'a {
        let waiting = move |(version, platforms): (&Version, &BTreeSet<Platform>)| match address {
            Address::Provider(provider) if !platforms.is_empty() && !self.shows(platforms) => Some(WaitingVersion {
                provider: provider.clone(),
                version: version.clone(),
                stored: platforms.clone(),
                waits_for: self.0.difference(platforms).cloned().collect(),
            }),
            Address::Provider(_) | Address::Module(_) => None,
        };
        stored.iter().rev().filter_map(waiting)
    }

    /// The required platforms; empty if any will do.
    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        self.0.iter()
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
