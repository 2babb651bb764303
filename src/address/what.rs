//! What an operator names: `[HOST/]NAMESPACE/TYPE[@CONSTRAINT]`.

use std::fmt;

use super::{BadAddress, Constraint, Hostname, Name, ProviderAddress, Version};

/// A provider, and which of its versions are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct What {
    /// The provider.
    pub provider: ProviderAddress,
    /// Which of its versions.
    pub versions: Versions,
}

/// Which versions of a provider are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Versions {
    /// The provider as a whole.
    All,
    /// This one.
    Exactly(Version),
    /// Those that meet these conditions.
    Matching(Constraint),
}

/// Text that names nothing an operator could mean.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWhat {
    /// It has too few parts, or too many.
    #[error(
        "{0:?} is no address: write NAMESPACE/TYPE or HOST/NAMESPACE/TYPE, and @VERSION or @CONSTRAINT after it where not all are meant"
    )]
    Shape(String),
    /// It has the parts of a module.
    #[error("{0:?} is a module, and modules are not mirrored yet (the host of a provider has a dot or a port)")]
    Module(String),
    /// One of its parts is not what stands there.
    #[error(transparent)]
    Part(#[from] BadAddress),
}

impl Versions {
    /// Whether a version is meant.
    pub fn include(&self, version: &Version) -> bool {
        match self {
            Self::All => true,
            Self::Exactly(exact) => exact == version,
            Self::Matching(constraint) => constraint.allows(version),
        }
    }
}

impl What {
    /// Parses an address; `default_host` is the registry of one that names none.
    pub fn parse(given: &str, default_host: &Hostname) -> Result<Self, BadWhat> {
        let shown = || given.chars().take(super::LONGEST_PART).collect::<String>();
        let (address, version) = match given.split_once('@') {
            Some((address, version)) => (address, Some(version)),
            None => (given, None),
        };
        let parts: Vec<&str> = address.split('/').collect();
        let names_a_host = parts.first().is_some_and(|first| first.contains(['.', ':']));
        let (host, namespace, type_) = match parts.as_slice() {
            [namespace, type_] if !names_a_host => (default_host.clone(), namespace, type_),
            [host, namespace, type_] if names_a_host => (Hostname::parse(host)?, namespace, type_),
            [_, _, _] | [_, _, _, _] if names_a_host || parts.len() == 3 => return Err(BadWhat::Module(shown())),
            _ => return Err(BadWhat::Shape(shown())),
        };
        let provider = ProviderAddress { host, namespace: Name::parse(namespace)?, type_: Name::parse(type_)? };
        let versions = match version {
            None => Versions::All,
            Some(version) if version.contains(['~', '>', '<', '=', '!', ',', '*', ' ']) => {
                let constraint = Constraint::parse(version)?;
                constraint.exactly().cloned().map_or(Versions::Matching(constraint), Versions::Exactly)
            }
            Some(version) => Versions::Exactly(Version::parse(version)?),
        };
        Ok(Self { provider, versions })
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.versions {
            Versions::All => self.provider.fmt(f),
            Versions::Exactly(version) => write!(f, "{}@{version}", self.provider),
            Versions::Matching(constraint) => write!(f, "{}@{constraint}", self.provider),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(given: &str) -> Result<What, BadWhat> {
        What::parse(given, &Hostname::parse("registry.example").unwrap())
    }

    #[test]
    fn an_address_names_a_provider_and_its_versions() {
        for (given, meant) in [
            ("acme/null", "registry.example/acme/null"),
            ("Acme/NULL@1.2", "registry.example/acme/null@1.2.0"),
            ("acme/null@~> 5.0", "registry.example/acme/null@~> 5.0"),
            ("acme/null@~>5", "registry.example/acme/null@~> 5.0"),
            ("acme/null@>=5,!=5.1", "registry.example/acme/null@>= 5.0.0, != 5.1.0"),
            ("acme/null@= 5.0.0", "registry.example/acme/null@5.0.0"),
            ("acme/null@1.2.0-rc.1+b", "registry.example/acme/null@1.2.0-rc.1+b"),
            ("other.example/acme/null", "other.example/acme/null"),
            ("localhost:5000/acme/null@01.2.0", "localhost:5000/acme/null@1.2.0"),
            ("Other.Example:443/acme/null", "other.example/acme/null"),
        ] {
            assert_eq!(parse(given).map(|what| what.to_string()), Ok(meant.to_owned()), "{given}");
        }
    }

    #[test]
    fn what_is_no_provider_is_refused_with_its_reason() {
        for (given, reason) in [
            ("", "is no address"),
            ("null", "is no address"),
            ("a/b/c/d", "is no address"),
            ("other.example/null", "is no address"),
            ("h.example/a/b/c/d", "is no address"),
            ("acme/vpc/aws", "modules are not mirrored yet"),
            ("other.example/acme/vpc/aws@1.0.0", "modules are not mirrored yet"),
            ("acme/null@=> 5.0", "its operators can be"),
            ("acme/null@>= 5,", "there is no version"),
            ("acme/null@5.*", "~> 5.0"),
            ("acme/null@v1.0.0", "\"v\" in front"),
            ("acme/null@", "is not a version"),
            ("acme/../null", "modules are not mirrored yet"),
            ("acme/", "is not a provider name"),
            ("a b/null", "is not a provider name"),
            ("a_b.example/acme/null", "is not a host name"),
        ] {
            let refused = parse(given).unwrap_err().to_string();
            assert!(refused.contains(reason), "{given}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_what_it_prints_or_refused(given in "[a-z.:@/~>0-9 -]{0,40}|acme/null@[~=!<>]{0,2} ?[0-9](\\.[0-9]){0,2},?[~=!<>]{0,2} ?[0-9](\\.[0-9]){0,2}|\\PC{0,40}") {
            if let Ok(what) = parse(&given) {
                prop_assert_eq!(parse(&what.to_string()), Ok(what.clone()));
            }
        }
    }
}
