//! The evidence of an `accept`: the facts that a person decides about. It is named by a digest, so that a decision is about
//! what was shown, and not about what upstream has at the moment of the decision. Pure.

use std::collections::BTreeSet;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::address::{Address, Platform, Version};
use crate::digest::Digest;
use crate::mirror::library::first_seen::AcceptScope;

/// Hex digits of the name of evidence.
const NAME_DIGITS: usize = 32;

/// A fact that an operator decides about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum EvidenceFact {
    /// This key, or its absence, is to vouch for every version of the provider.
    Signer {
        /// The fingerprint.
        key: Option<String>,
    },
    /// These checksums are to be those of a version.
    Checksums {
        version: Version,
        /// The fingerprint of the key that signed them.
        key: Option<String>,
        /// The digest of all lines.
        lines: Digest,
    },
    /// This archive is to be that of a platform. The checksums do not say so: its name does not state the platform.
    Archive { version: Version, platform: Platform, digest: Digest },
    /// This tree is to be that of a module version.
    Tree { version: Version, digest: Digest, subdir: Option<String> },
    /// Clients of a module version are to fetch it from a source that larder cannot fetch.
    Source {
        version: Version,
        /// The source, for people: without secrets, and without what changes each time.
        source: String,
    },
}

impl EvidenceFact {
    fn is_signer(&self) -> bool {
        matches!(self, Self::Signer { .. })
    }

    /// True if an accept of this scope decides about the fact. `concerns_provider`: the alarm that states it does.
    pub fn counts(&self, scope: AcceptScope, concerns_provider: bool) -> bool {
        match scope {
            AcceptScope::Provider => self.is_signer() || !concerns_provider,
            AcceptScope::Version => !self.is_signer(),
        }
    }
}

/// All facts of one decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence(pub BTreeSet<EvidenceFact>);

impl Evidence {
    /// True if nothing is to be decided.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of the evidence about an address: the same facts about another one are another decision.
    pub fn name(&self, address: &Address) -> EvidenceName {
        // The order of the set is that of its values, and JSON of the same value is the same.
        let json = serde_json::to_vec(&(address.to_string(), &self.0)).unwrap_or_default();
        let digest = Digest::of(&json).to_string();
        EvidenceName(digest.chars().take(NAME_DIGITS).collect())
    }
}

/// The name of evidence: the first hex digits of the digest of its facts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Display)]
pub struct EvidenceName(String);

impl EvidenceName {
    /// Parses a name as a person may type it: spaces around it and capitals do not matter.
    ///
    /// # Errors
    /// The form of a name, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase();
        match name.len() == NAME_DIGITS && name.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            true => Ok(Self(name)),
            false => {
                Err(format!("evidence is {NAME_DIGITS} hex digits, as `larder status` and `larder explain` print them"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Hostname, Name, ProviderAddress};

    #[test]
    fn the_name_of_evidence_changes_with_every_fact() {
        let version = Version::parse("1.2.0").unwrap();
        let checksums = |key: Option<&str>, lines: &[u8]| EvidenceFact::Checksums {
            version: version.clone(),
            key: key.map(str::to_owned),
            lines: Digest::of(lines),
        };
        let facts = [
            checksums(Some("K2"), b"a"),
            checksums(Some("K3"), b"a"),
            checksums(Some("K2"), b"b"),
            checksums(None, b"a"),
            EvidenceFact::Signer { key: Some("K2".to_owned()) },
            EvidenceFact::Signer { key: None },
        ];
        let address = |type_: &str| {
            let [namespace, type_] = ["acme", type_].map(|name| Name::parse(name).unwrap());
            Address::Provider(ProviderAddress { host: Hostname::parse("registry.example").unwrap(), namespace, type_ })
        };
        let null = address("null");
        let names: BTreeSet<_> = facts.iter().map(|fact| Evidence([fact.clone()].into()).name(&null)).collect();
        assert_eq!(names.len(), facts.len());
        let (one, other) = (facts[0].clone(), facts[4].clone());
        let [both, reversed] =
            [[one.clone(), other.clone()], [other, one]].map(|facts| Evidence(facts.into()).name(&null));
        assert_eq!(both, reversed);
        let elsewhere = Evidence([facts[5].clone()].into()).name(&address("random"));
        assert!(!names.contains(&elsewhere), "the same facts about another provider");
        assert_eq!(EvidenceName::parse(&both.to_string()).unwrap(), both);
        assert!(EvidenceName::parse("12").is_err() && EvidenceName::parse(&"g".repeat(NAME_DIGITS)).is_err());
    }
}
