//! The inventory of a store: a small list of its archives, which an operator sends to the larder that creates bundles.
//! The next bundle of that larder leaves the listed archives out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use crate::address::{Artifact, ModulePackage, Package, Platform};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};

const FORMAT: u32 = 1;
/// The size limit in bytes, enough for some half a million archives.
const MAX_INVENTORY_BYTES: usize = 64 << 20;

/// Digest pairs by version or, for a provider version, by platform.
type DigestPairs = BTreeMap<String, String>;

/// The archives that a store has. Each is listed by the first 16 hex digits of its SHA-256 and of the digest of its
/// proof set or module location. As JSON that takes about 60 bytes per archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    #[serde(rename = "larder_inventory")]
    format: u32,
    /// The creation time in epoch seconds.
    #[cfg_attr(test, schemars(with = "u64"))]
    pub made: Timestamp,
    /// The sealed platforms of the store's larder (`[network] sealed_platforms`); none where any will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sealed_platforms: Vec<Platform>,
    /// `ARCHIVE.PROOFSET` digest prefixes by provider, version and platform.
    #[serde(default)]
    providers: BTreeMap<String, BTreeMap<String, DigestPairs>>,
    /// `ARCHIVE.LOCATION` digest prefixes by module and version.
    #[serde(default)]
    modules: BTreeMap<String, DigestPairs>,
}

/// Why an inventory is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadInventory {
    /// The inventory exceeds the size limit.
    #[error("it is larger than {} MiB", MAX_INVENTORY_BYTES >> 20)]
    TooLarge,
    /// The inventory is malformed.
    #[error("it is not an inventory from `larder inventory`: {0}")]
    Unreadable(String),
    /// A newer larder wrote it.
    #[error("it has format {0}, but this larder reads {FORMAT}")]
    Newer(u32),
}

impl Inventory {
    /// Creates an empty inventory.
    pub fn new(made: Timestamp) -> Self {
        let (sealed_platforms, providers, modules) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { format: FORMAT, made, sealed_platforms, providers, modules }
    }

    /// The same inventory, of a larder with these sealed platforms.
    #[must_use]
    pub fn sealed_for(self, sealed_platforms: Vec<Platform>) -> Self {
        Self { sealed_platforms, ..self }
    }

    /// The platforms of the clients there: the sealed ones, else those of the listed archives.
    pub fn platforms(&self) -> Vec<Platform> {
        if !self.sealed_platforms.is_empty() {
            return self.sealed_platforms.clone();
        }
        let names = self.providers.values().flat_map(BTreeMap::values).flat_map(BTreeMap::keys);
        let platforms: BTreeSet<Platform> = names.filter_map(|name| Platform::parse(name).ok()).collect();
        platforms.into_iter().collect()
    }

    /// Parses and checks an inventory.
    ///
    /// # Errors
    /// [`BadInventory`].
    pub fn read(bytes: &[u8]) -> Result<Self, BadInventory> {
        if bytes.len() > MAX_INVENTORY_BYTES {
            return Err(BadInventory::TooLarge);
        }
        let inventory: Self = serde_json::from_slice(bytes).map_err(|e| BadInventory::Unreadable(e.to_string()))?;
        inventory.check()?;
        Ok(inventory)
    }

    /// Checks the format of an inventory that was deserialised as part of a request.
    ///
    /// # Errors
    /// [`BadInventory::Newer`].
    pub fn check(&self) -> Result<(), BadInventory> {
        if self.format > FORMAT { Err(BadInventory::Newer(self.format)) } else { Ok(()) }
    }

    /// Serialises the inventory as JSON on one line.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and digests always serialise")
    }

    /// The digest that the manifest of a delta refers to.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    /// The number of archives listed.
    pub fn len(&self) -> usize {
        self.pairs().count()
    }

    /// True if no archive is listed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an archive and the digest of its proof set or module location.
    pub fn add(&mut self, artifact: &Artifact, archive: Digest, proof: Digest) {
        let (pairs, key) = match artifact {
            Artifact::Provider(Package { provider, version, platform }) => {
                let versions = self.providers.entry(provider.to_string()).or_default();
                (versions.entry(version.to_string()).or_default(), platform.to_string())
            }
            Artifact::Module(ModulePackage { module, version }) => {
                (self.modules.entry(module.to_string()).or_default(), version.to_string())
            }
        };
        pairs.insert(key, digest_pair(archive, proof));
    }

    /// True if the inventory lists the archive with the same proof set or module location.
    pub fn has(&self, artifact: &Artifact, archive: Digest, proof: Digest) -> bool {
        let (pairs, key) = match artifact {
            Artifact::Provider(Package { provider, version, platform }) => {
                let versions = self.providers.get(&provider.to_string());
                (versions.and_then(|versions| versions.get(version.as_str())), platform.to_string())
            }
            Artifact::Module(ModulePackage { module, version }) => {
                (self.modules.get(&module.to_string()), version.to_string())
            }
        };
        pairs.and_then(|pairs| pairs.get(&key)).is_some_and(|pair| *pair == digest_pair(archive, proof))
    }

    /// The digest prefixes of all listed archives.
    pub fn archives(&self) -> HashSet<DigestPrefix> {
        self.pairs().filter_map(|pair| DigestPrefix::parse(pair.split_once('.')?.0).ok()).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = &String> {
        let provider_pairs = self.providers.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        provider_pairs.chain(self.modules.values().flat_map(BTreeMap::values))
    }
}

/// `ARCHIVE.PROOF`: the prefixes of both digests.
fn digest_pair(archive: Digest, proof: Digest) -> String {
    format!("{}.{}", archive.prefix(), proof.prefix())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Hostname, ModuleAddress, ModuleName, Platform};
    use crate::address::{Name, ProviderAddress, System, Version};

    fn provider(type_: &str, version: &str, platform: &str) -> Artifact {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let [namespace, type_] = ["hashicorp", type_].map(|name| Name::parse(name).unwrap());
        let provider = ProviderAddress { host, namespace, type_ };
        let (version, platform) = (Version::parse(version).unwrap(), Platform::parse(platform).unwrap());
        Artifact::Provider(Package { provider, version, platform })
    }

    fn module(name: &str) -> Artifact {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let [namespace, name] = ["acme", name].map(|name| ModuleName::parse(name).unwrap());
        let module = ModuleAddress { host, namespace, name, system: System::parse("aws").unwrap() };
        Artifact::Module(ModulePackage { module, version: Version::parse("1.0.0").unwrap() })
    }

    #[test]
    fn an_inventory_contains_exactly_the_archives_added_with_the_same_proof() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let mut inventory = Inventory::new(Timestamp(7));
        for artifact in [provider("aws", "1.0.0", "linux_amd64"), module("vpc")] {
            inventory.add(&artifact, a, b);
        }
        let inventory = Inventory::read(&inventory.to_bytes()).unwrap();
        assert_eq!((inventory.len(), inventory.archives().len()), (2, 1));
        for artifact in [provider("aws", "1.0.0", "linux_amd64"), module("vpc")] {
            assert!(
                inventory.has(&artifact, a, b) && !inventory.has(&artifact, a, a) && !inventory.has(&artifact, b, b)
            );
        }
        assert!(!inventory.has(&provider("aws", "1.0.0", "linux_arm64"), a, b));
        assert!(!inventory.has(&module("dns"), a, b));
    }

    /// An inventory crosses an air gap, perhaps by hand, so it has to stay small.
    #[test]
    fn ten_thousand_archives_take_less_than_a_megabyte() {
        let mut inventory = Inventory::new(Timestamp(1_795_293_761));
        for number in 0..5_000 {
            for platform in ["linux_amd64", "darwin_arm64"] {
                let artifact =
                    provider(&format!("provider-{}", number / 10), &format!("5.{}.0", number % 10), platform);
                let digest = |salt: &str| Digest::of(format!("{salt}{number}{platform}").as_bytes());
                inventory.add(&artifact, digest("a"), digest("s"));
            }
        }
        assert_eq!(inventory.len(), 10_000);
        let bytes = inventory.to_bytes().len();
        assert!(bytes < 1_000_000, "{bytes}");
    }

    #[test]
    fn a_malformed_inventory_is_refused_with_the_reason() {
        assert!(matches!(Inventory::read(b"[]"), Err(BadInventory::Unreadable(_))));
        assert_eq!(Inventory::read(br#"{"larder_inventory":2,"made":1}"#), Err(BadInventory::Newer(2)));
        assert!(matches!(
            Inventory::read(br#"{"larder_inventory":1,"made":1,"x":1}"#),
            Err(BadInventory::Unreadable(_))
        ));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(text in "\\PC{0,200}", pair in "[0-9a-f.]{0,40}") {
            let _ = Inventory::read(text.as_bytes());
            let written = format!(r#"{{"larder_inventory":1,"made":1,"modules":{{"x":{{"1.0.0":"{pair}"}}}}}}"#);
            prop_assert!(Inventory::read(written.as_bytes()).unwrap().archives().len() <= 1);
        }
    }
}
