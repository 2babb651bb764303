//! Completes a lock file: the entries that `init` would write, with the hashes of every platform, and the differences from
//! the file as it is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::LockedProvider;
use crate::address::{PackageRef, ProviderAddress, Version};

/// A provider as a lock file should have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderToLock {
    /// The provider.
    pub provider: ProviderAddress,
    /// The version.
    pub version: Version,
    /// The constraints as a lock file has them; empty for none.
    pub constraints: String,
    /// The `zh:` of every line of the signed SHA256SUMS; empty where no key signed them.
    pub signed: BTreeSet<String>,
    /// The hashes of the archives that larder verified itself.
    pub own: BTreeSet<String>,
    /// The `zh:` of every line of SHA256SUMS, signed or not.
    pub published: BTreeSet<String>,
    /// The `zh:` of the archives of the platforms asked for.
    pub archives: BTreeSet<String>,
}

impl ProviderToLock {
    /// A provider of which no hash is known yet.
    pub fn of(provider: ProviderAddress, version: Version, constraints: String) -> Self {
        let [signed, own, published, archives] = [(); 4].map(|()| BTreeSet::new());
        Self { provider, version, constraints, signed, own, published, archives }
    }

    /// The contradiction of a locked version with what is published now: the file lists archives that SHA256SUMS does not,
    /// and lacks one that it does. To add that would undo what the file is for.
    fn contradiction(&self, locked: &[String]) -> Option<String> {
        let locked: BTreeSet<&String> = locked.iter().filter(|hash| hash.starts_with("zh:")).collect();
        let is_gone = locked.iter().any(|hash| !self.published.contains(*hash));
        let is_other = is_gone && self.archives.iter().any(|archive| !locked.contains(archive));
        is_other.then(|| {
            "the lock file has zh: hashes of this version that its SHA256SUMS does not list, and lacks an archive that it lists: \
             the version was published again, or the file is wrong. If the published archives are the right ones, remove the \
             provider's block from the lock file"
                .to_owned()
        })
    }
}

/// The entries of a completed lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletedLockFile {
    /// Every entry, by address.
    pub entries: Vec<LockedProvider>,
    /// The differences from the file before.
    pub changes: Vec<LockChange>,
    /// The entries that contradict what is published, with the reason and the remedy. With any, the file must stay as it is.
    pub contradictions: Vec<(ProviderAddress, String)>,
}

/// The difference of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockChange {
    /// The provider with its version.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The version that the file has; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_before: Option<String>,
    /// The constraints, where the file has others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<String>,
    /// The hashes that the file lacks.
    pub added: Vec<String>,
}

/// Completes the entries of a lock file. Hashes of a version that stays are kept, and so are the entries of providers that are
/// not required (`terraform providers lock`).
pub fn complete(locked: &[LockedProvider], required: &[ProviderToLock]) -> CompletedLockFile {
    let mut entries: BTreeMap<ProviderAddress, LockedProvider> =
        locked.iter().map(|locked| (locked.provider.clone(), locked.clone())).collect();
    let mut completed = CompletedLockFile::default();
    for to_lock in required {
        let ProviderToLock { provider, version, constraints, signed, own, .. } = to_lock;
        let before = entries.get(provider);
        let kept = before.filter(|before| before.version == *version);
        if let Some(reason) = kept.and_then(|kept| to_lock.contradiction(&kept.hashes)) {
            completed.contradictions.push((provider.clone(), reason));
            continue;
        }
        let kept: BTreeSet<&String> = kept.into_iter().flat_map(|kept| &kept.hashes).collect();
        let hashes: BTreeSet<&String> = kept.iter().copied().chain(signed).chain(own).collect();
        let added: Vec<String> = hashes.difference(&kept).map(|hash| (*hash).clone()).collect();
        let version_before = before.map(|before| before.version.to_string());
        let constraints_before = before.and_then(|before| before.constraints.clone()).unwrap_or_default();
        let is_other = before.is_some() && constraints_before != *constraints;
        if !added.is_empty() || is_other || version_before.as_deref() != Some(version.as_str()) {
            completed.changes.push(LockChange {
                package: PackageRef::requested(&format!("{provider}@{version}")),
                version_before,
                constraints: is_other.then(|| constraints.clone()),
                added,
            });
        }
        let entry = LockedProvider {
            provider: provider.clone(),
            version: version.clone(),
            constraints: (!constraints.is_empty()).then(|| constraints.clone()),
            hashes: hashes.into_iter().cloned().collect(),
        };
        entries.insert(provider.clone(), entry);
    }
    completed.entries = entries.into_values().collect();
    completed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{parse, write};
    use super::*;
    use crate::requirements::ClientKind;

    const LOCKED: &str = r#"
provider "r.example/acme/null" {
  version     = "1.0.0"
  constraints = "~> 1.0"
  hashes = [
    "h1:old",
    "x9:unknown",
    "zh:a",
  ]
}

provider "r.example/acme/other" {
  version = "9.0.0"
}
"#;

    fn required(version: &str, signed: &[&str], own: &[&str]) -> ProviderToLock {
        let [locked, _] = &parse(LOCKED.as_bytes()).unwrap()[..] else { panic!("two entries") };
        let set = |hashes: &[&str]| hashes.iter().map(|hash| (*hash).to_owned()).collect();
        let version = Version::parse(version).unwrap();
        ProviderToLock {
            signed: set(signed),
            own: set(own),
            published: set(signed),
            archives: set(signed.last().as_slice().iter().map(|hash| **hash).collect::<Vec<_>>().as_slice()),
            ..ProviderToLock::of(locked.provider.clone(), version, "~> 1.0".to_owned())
        }
    }

    fn completed(required: &ProviderToLock) -> CompletedLockFile {
        complete(&parse(LOCKED.as_bytes()).unwrap(), std::slice::from_ref(required))
    }

    #[test]
    fn hashes_of_the_same_version_are_kept_and_those_of_another_are_replaced() {
        let same = completed(&required("1.0.0", &["zh:a", "zh:b"], &["h1:new"]));
        assert_eq!(same.entries[0].hashes, ["h1:new", "h1:old", "x9:unknown", "zh:a", "zh:b"]);
        assert_eq!(same.changes[0].added, ["h1:new", "zh:b"]);
        assert_eq!(same.changes[0].constraints, None);
        let newer = completed(&required("1.1.0", &["zh:c"], &["h1:new"]));
        assert_eq!(newer.entries[0].hashes, ["h1:new", "zh:c"]);
        assert_eq!(newer.changes[0].version_before.as_deref(), Some("1.0.0"));
        assert_eq!(newer.entries[1].version.as_str(), "9.0.0");
    }

    #[test]
    fn a_complete_file_has_no_changes_and_other_constraints_are_one() {
        let complete = required("1.0.0", &["zh:a"], &["h1:old"]);
        assert_eq!(completed(&complete).changes, []);
        let other = completed(&ProviderToLock { constraints: String::new(), ..complete });
        assert_eq!(other.changes[0].constraints.as_deref(), Some(""));
        assert_eq!(other.entries[0].constraints, None);
    }

    #[test]
    fn hashes_that_contradict_the_signed_sums_stay_as_they_are() {
        let contradicted = completed(&required("1.0.0", &["zh:b"], &["h1:new"]));
        assert!(contradicted.contradictions[0].1.contains("remove the provider's block"));
        assert_eq!(contradicted.entries[0].hashes, ["h1:old", "x9:unknown", "zh:a"]);
        // A manifest that stayed the same makes no difference, nor does it that nobody signs.
        let locked = ["zh:a", "zh:manifest"].map(str::to_owned);
        let again = required("1.0.0", &["zh:manifest", "zh:b"], &[]);
        assert!(again.contradiction(&locked).is_some());
        assert!(ProviderToLock { signed: BTreeSet::new(), ..again }.contradiction(&locked).is_some());
        // A file that has the archives asked for, or fewer lines than there are, contradicts nothing.
        assert_eq!(required("1.0.0", &["zh:c", "zh:manifest"], &[]).contradiction(&["zh:manifest".to_owned()]), None);
        assert_eq!(required("1.0.0", &["zh:b", "zh:a"], &[]).contradiction(&locked), None);
        assert_eq!(completed(&required("2.0.0", &["zh:b"], &[])).contradictions, []);
    }

    proptest! {
        /// A written file is read back, and every hash of it was in the file, signed, or computed here.
        #[test]
        fn a_completed_file_has_no_hash_from_anywhere_else(
            locked in prop::collection::btree_set("(h1|zh|x9):[ -~é]{1,6}", 0..5),
            signed in prop::collection::btree_set("zh:[0-9a-f]{4}", 0..4),
            own in prop::collection::btree_set("h1:[A-Za-z0-9+/=]{4}", 0..3),
            version in "[12]\\.0\\.0",
        ) {
            let ProviderToLock { provider, constraints, .. } = required(&version, &[], &[]);
            let before = LockedProvider {
                provider: provider.clone(),
                version: Version::parse("1.0.0").unwrap(),
                constraints: None,
                hashes: locked.iter().cloned().collect(),
            };
            let version = Version::parse(&version).unwrap();
            let of = ProviderToLock::of(provider, version, constraints);
            let to_lock = ProviderToLock { signed: signed.clone(), own: own.clone(), ..of };
            let completed = complete(&[before], &[to_lock]);
            let text = write(&completed.entries, ClientKind::Terraform);
            let read = parse(text.as_bytes()).unwrap();
            prop_assert_eq!(&read, &completed.entries);
            let known: BTreeSet<&String> = locked.iter().chain(&signed).chain(&own).collect();
            prop_assert!(read[0].hashes.iter().all(|hash| known.contains(hash)));
        }
    }
}
