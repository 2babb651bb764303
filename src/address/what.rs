//! What an operator names: `[HOST/]NAMESPACE/TYPE[@CONSTRAINT]`, or `[HOST/]NAMESPACE/NAME/SYSTEM[@CONSTRAINT]`.

use std::fmt;

use super::{BadAddress, Constraint, Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System, Version};

/// A provider or a module, and which of its versions are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum What {
    /// A provider.
    Provider(Meant<ProviderAddress>),
    /// A module.
    Module(Meant<ModuleAddress>),
}

/// Which versions of something are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Meant<A> {
    /// The provider or the module.
    pub of: A,
    /// Which of its versions.
    pub versions: Versions,
}

/// Which versions are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Versions {
    /// The provider or the module as a whole.
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
        "{0:?} is no address: write NAMESPACE/TYPE or NAMESPACE/NAME/SYSTEM, HOST/ before it where it is of another registry (a host has a dot or a port), and @VERSION or @CONSTRAINT after it where not all are meant"
    )]
    Shape(String),
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
        let (host, parts) = match parts.as_slice() {
            [host, rest @ ..] if names_a_host => (Hostname::parse(host)?, rest),
            parts => (default_host.clone(), parts),
        };
        let versions = match version {
            None => Versions::All,
            Some(version) if version.contains(['~', '>', '<', '=', '!', ',', '*', ' ']) => {
                let constraint = Constraint::parse(version)?;
                constraint.exactly().cloned().map_or(Versions::Matching(constraint), Versions::Exactly)
            }
            Some(version) => Versions::Exactly(Version::parse(version)?),
        };
        match parts {
            [namespace, type_] => {
                let of = ProviderAddress { host, namespace: Name::parse(namespace)?, type_: Name::parse(type_)? };
                Ok(Self::Provider(Meant { of, versions }))
            }
            [namespace, name, system] => {
                let [namespace, name] = [ModuleName::parse(namespace)?, ModuleName::parse(name)?];
                let of = ModuleAddress { host, namespace, name, system: System::parse(system)? };
                Ok(Self::Module(Meant { of, versions }))
            }
            _ => Err(BadWhat::Shape(shown())),
        }
    }

    /// The registry it is of.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Provider(meant) => &meant.of.host,
            Self::Module(meant) => &meant.of.host,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(meant) => meant.fmt(f),
            Self::Module(meant) => meant.fmt(f),
        }
    }
}

impl<A: fmt::Display> fmt::Display for Meant<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.versions {
            Versions::All => self.of.fmt(f),
            Versions::Exactly(version) => write!(f, "{}@{version}", self.of),
            Versions::Matching(constraint) => write!(f, "{}@{constraint}", self.of),
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
    fn an_address_names_a_provider_or_a_module_and_its_versions() {
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
            ("Acme/VPC/aws", "registry.example/Acme/VPC/aws"),
            ("acme/vpc/aws@~>5", "registry.example/acme/vpc/aws@~> 5.0"),
            ("Other.example/acme/vpc/aws@1.0", "other.example/acme/vpc/aws@1.0.0"),
        ] {
            assert_eq!(parse(given).map(|what| what.to_string()), Ok(meant.to_owned()), "{given}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_reason() {
        for (given, reason) in [
            ("", "is no address"),
            ("null", "is no address"),
            ("a/b/c/d", "is no address"),
            ("other.example/null", "is no address"),
            ("h.example/a/b/c/d", "is no address"),
            ("acme/vpc/AWS", "is not a module system"),
            ("acme/null@=> 5.0", "its operators can be"),
            ("acme/null@>= 5,", "there is no version"),
            ("acme/null@5.*", "~> 5.0"),
            ("acme/null@v1.0.0", "\"v\" in front"),
            ("acme/null@", "is not a version"),
            ("acme/../null", "is not a module name"),
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
