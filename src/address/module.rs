//! Module addresses: `HOST/NAMESPACE/NAME/SYSTEM`. Upper and lower case are preserved (PROTOCOL, section 4.1).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BadAddress, Hostname, Version, checked_name};

/// A namespace or the name of a module: letters in their original case, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModuleName(String);

impl ModuleName {
    /// Parses a name; clients send it as the user typed it.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        Ok(Self(checked_name("module name", given)?.to_owned()))
    }

    /// The name in its original case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The remote system that a module is for: lower-case letters and digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct System(String);

impl System {
    /// Parses a system, which clients send in lower case only (PROTOCOL, section 4.1).
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new("module system", given, reason);
        if given.is_empty() || given.len() > 64 {
            return Err(bad("it is empty, or longer than 64 bytes"));
        }
        if !given.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(bad("it may contain only a to z and 0 to 9"));
        }
        Ok(Self(given.to_owned()))
    }

    /// The system in URLs and file names.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A module: `HOST/NAMESPACE/NAME/SYSTEM`. Two registries never mix, so the host is always part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModuleAddress {
    /// The registry.
    pub host: Hostname,
    /// Namespace of the publisher.
    pub namespace: ModuleName,
    /// Module name.
    pub name: ModuleName,
    /// Target system.
    pub system: System,
}

impl ModuleAddress {
    /// The address in lower case: the one key of all its spellings, for registries that ignore case (`fold_case`).
    pub fn folded(&self) -> Self {
        let fold = |name: &ModuleName| ModuleName(name.0.to_ascii_lowercase());
        Self { namespace: fold(&self.namespace), name: fold(&self.name), ..self.clone() }
    }
}

impl fmt::Display for ModuleAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.host, self.namespace, self.name, self.system)
    }
}

/// One version of a module: the contents of one archive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModulePackage {
    /// The module.
    pub module: ModuleAddress,
    /// Its version.
    pub version: Version,
}

impl ModulePackage {
    /// The same version with the module's address in lower case.
    pub fn folded(&self) -> Self {
        Self { module: self.module.folded(), version: self.version.clone() }
    }
}

impl fmt::Display for ModulePackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.module, self.version)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::MAX_PART;
    use super::*;

    #[test]
    fn a_module_keeps_its_case_and_folds_to_one_key() {
        let module = |namespace: &str, name: &str| ModuleAddress {
            host: Hostname::parse("registry.example").unwrap(),
            namespace: ModuleName::parse(namespace).unwrap(),
            name: ModuleName::parse(name).unwrap(),
            system: System::parse("aws").unwrap(),
        };
        let as_typed = module("Acme-Corp", "VPC_x");
        assert_eq!(as_typed.to_string(), "registry.example/Acme-Corp/VPC_x/aws");
        assert_ne!(as_typed, module("acme-corp", "vpc_x"));
        assert_eq!(as_typed.folded(), module("acme-corp", "vpc_x"));
        for bad in ["AWS", "", "a-b", "a_b", "a/b", "é"] {
            assert!(System::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", ".", "..", "a.b", "a/b", "-a", "_a", "é", &"a".repeat(129)] {
            assert!(ModuleName::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_module_name_is_one_path_segment_and_stays_as_given(text in "\\PC{0,20}|[a-zA-Z0-9_.-]{0,140}") {
            if let Ok(name) = ModuleName::parse(&text) {
                prop_assert_eq!(name.as_str(), &text);
                prop_assert!(!text.contains(['/', '.', '\\']) && text.len() <= MAX_PART);
            }
        }
    }
}
