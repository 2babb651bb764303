//! The platforms whose archives a lock file does not accept.

use std::collections::BTreeSet;

use crate::address::Platform;

/// The hashes of the archive of one platform, as far as they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformArchive {
    /// The platform.
    pub platform: Platform,
    /// Its `zh:` hash.
    pub zh: String,
    /// Its `h1:` hashes, of both flavours; empty while they are unknown.
    pub h1: Vec<String>,
}

/// The platforms of these archives that a locked provider has no hash for. `archives` are all of the provider's version of
/// which anything is known.
///
/// An `h1:` says nothing of its platform. One that is of none of the archives whose `h1:` is known may be of any other, so
/// these platforms are not lacking for certain, and left out.
pub fn lacking_platforms<'a>(locked: &[String], archives: &'a [PlatformArchive]) -> Vec<&'a Platform> {
    let known: BTreeSet<&String> = archives.iter().flat_map(|archive| &archive.h1).collect();
    let has_unknown_h1 = locked.iter().any(|hash| hash.starts_with("h1:") && !known.contains(hash));
    let lacks = |PlatformArchive { zh, h1, .. }: &&PlatformArchive| {
        let may_be_locked = h1.is_empty() && has_unknown_h1;
        !locked.contains(zh) && !h1.iter().any(|h1| locked.contains(h1)) && !may_be_locked
    };
    archives.iter().filter(lacks).map(|archive| &archive.platform).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_lacks_where_neither_its_zh_nor_its_h1_is_locked_for_certain() {
        let archive = |name: &str, h1: &[&str]| PlatformArchive {
            platform: Platform::parse(name).unwrap(),
            zh: format!("zh:{name}"),
            h1: h1.iter().map(|hash| (*hash).to_owned()).collect(),
        };
        let archives = [archive("linux_amd64", &["h1:zip", "h1:folder"]), archive("darwin_arm64", &[])];
        let lacking = |locked: &[&str]| {
            let locked: Vec<String> = locked.iter().map(|hash| (*hash).to_owned()).collect();
            lacking_platforms(&locked, &archives).into_iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(lacking(&["zh:linux_amd64", "zh:darwin_arm64"]), [""; 0]);
        // As a network mirror leaves it: its own h1 alone.
        assert_eq!(lacking(&["h1:folder"]), ["darwin_arm64"]);
        assert_eq!(lacking(&["h1:zip", "zh:darwin_arm64"]), [""; 0]);
        // One of these may be of darwin_arm64.
        assert_eq!(lacking(&["h1:folder", "h1:other"]), [""; 0]);
        assert_eq!(lacking(&["h1:other"]), ["linux_amd64"]);
        assert_eq!(lacking(&[]), ["linux_amd64", "darwin_arm64"]);
    }
}
