//! Filters for lists of stored packages: by host, namespace, name and version.

use derive_more::Display;

use super::selector::{Selection, split_host};
use super::{Artifact, BadSelector, Hostname, ModuleName, PackageSelector};

/// The packages that a list shows.
#[derive(Debug, Display, Clone, Default, PartialEq, Eq)]
pub enum AddressFilter {
    /// Every package.
    #[default]
    #[display("any address")]
    All,
    /// The packages of one registry.
    Host(Hostname),
    /// The providers and modules of one namespace.
    #[display("{_0}/{_1}")]
    Namespace(Hostname, ModuleName),
    /// The provider of this namespace and name, and the modules of the same names for every system.
    #[display("{_0}/{_1}/{_2}")]
    Named(Hostname, ModuleName, ModuleName),
    /// One provider or module, and some of its versions.
    Selected(PackageSelector),
}

impl AddressFilter {
    /// Parses the beginning of an address: `HOST`, `[HOST/]NAMESPACE`, `[HOST/]NAMESPACE/NAME`, or a whole address with an
    /// optional `@VERSION` or `@CONSTRAINT`. A text without a host is about `default_host`, as in every command.
    ///
    /// # Errors
    /// [`BadSelector`], with the reason.
    pub fn parse(given: &str, default_host: &Hostname) -> Result<Self, BadSelector> {
        if given.contains('@') {
            return PackageSelector::parse(given, default_host).map(Self::Selected);
        }
        let given = given.strip_suffix('/').unwrap_or(given);
        let (host, names) = split_host(given, default_host)?;
        match names.as_slice() {
            [] => Ok(Self::Host(host)),
            [namespace] => Ok(Self::Namespace(host, ModuleName::parse(namespace)?)),
            [namespace, name] => Ok(Self::Named(host, ModuleName::parse(namespace)?, ModuleName::parse(name)?)),
            _ => PackageSelector::parse(given, default_host).map(Self::Selected),
        }
    }

    /// The registry whose packages are shown; `None` for those of every registry.
    pub fn host(&self) -> Option<&Hostname> {
        match self {
            Self::All => None,
            Self::Host(host) | Self::Namespace(host, _) | Self::Named(host, ..) => Some(host),
            Self::Selected(selector) => Some(selector.host()),
        }
    }

    /// The names that the addresses of all shown packages begin with, after the host: none, a namespace, or a namespace and
    /// a name. Those of modules may differ in case.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::All | Self::Host(_) => Vec::new(),
            Self::Namespace(_, namespace) => vec![namespace.as_str()],
            Self::Named(_, namespace, name) => vec![namespace.as_str(), name.as_str()],
            Self::Selected(PackageSelector::Provider(Selection { of, .. })) => {
                vec![of.namespace.as_str(), of.type_.as_str()]
            }
            Self::Selected(PackageSelector::Module(Selection { of, .. })) => {
                vec![of.namespace.as_str(), of.name.as_str()]
            }
        }
    }

    /// Returns true for a package that is shown. The case of a module's names does not matter.
    pub fn includes(&self, artifact: &Artifact) -> bool {
        let names = match artifact {
            Artifact::Provider(package) => [package.provider.namespace.as_str(), package.provider.type_.as_str()],
            Artifact::Module(package) => [package.module.namespace.as_str(), package.module.name.as_str()],
        };
        let is_below = self.names().iter().zip(names).all(|(wanted, name)| wanted.eq_ignore_ascii_case(name));
        if !is_below || self.host().is_some_and(|host| host != artifact.host()) {
            return false;
        }
        match (self, artifact) {
            (Self::All | Self::Host(_) | Self::Namespace(..) | Self::Named(..), _) => true,
            (Self::Selected(PackageSelector::Provider(selection)), Artifact::Provider(package)) => {
                selection.of == package.provider && selection.versions.include(&package.version)
            }
            (Self::Selected(PackageSelector::Module(selection)), Artifact::Module(package)) => {
                selection.of.folded() == package.module.folded() && selection.versions.include(&package.version)
            }
            (Self::Selected(_), _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ModuleAddress, ModulePackage, Package, Platform, ProviderAddress, Version};
    use super::*;
    use crate::address::{Name, System};

    fn host(name: &str) -> Hostname {
        Hostname::parse(name).unwrap()
    }

    fn provider(host_name: &str, version: &str) -> Artifact {
        Artifact::Provider(Package {
            provider: ProviderAddress {
                host: host(host_name),
                namespace: Name::parse("acme").unwrap(),
                type_: Name::parse("vpc").unwrap(),
            },
            version: Version::parse(version).unwrap(),
            platform: Platform::parse("linux_amd64").unwrap(),
        })
    }

    fn module(host_name: &str, version: &str) -> Artifact {
        Artifact::Module(ModulePackage {
            module: ModuleAddress {
                host: host(host_name),
                namespace: ModuleName::parse("Acme").unwrap(),
                name: ModuleName::parse("VPC").unwrap(),
                system: System::parse("aws").unwrap(),
            },
            version: Version::parse(version).unwrap(),
        })
    }

    #[test]
    fn a_filter_names_the_beginning_of_an_address() {
        let stored = [
            provider("a.example", "1.0.0"),
            provider("a.example", "2.0.0"),
            module("a.example", "1.0.0"),
            provider("b.example", "1.0.0"),
        ];
        for (filter, included) in [
            ("a.example", [true, true, true, false]),
            ("a.example/", [true, true, true, false]),
            ("b.example", [false, false, false, true]),
            ("acme", [true, true, true, false]),
            ("ACME/", [true, true, true, false]),
            ("other", [false; 4]),
            ("b.example/acme", [false, false, false, true]),
            ("acme/vpc", [true, true, true, false]),
            ("acme/null", [false; 4]),
            ("b.example/acme/vpc", [false, false, false, true]),
            ("acme/vpc@1", [true, false, false, false]),
            ("acme/vpc@> 1", [false, true, false, false]),
            ("acme/vpc/aws", [false, false, true, false]),
            ("a.example/acme/vpc/aws@1.0.0", [false, false, true, false]),
            ("acme/vpc/aws@~> 2.0", [false; 4]),
        ] {
            let parsed = AddressFilter::parse(filter, &host("a.example")).unwrap();
            let found: Vec<bool> = stored.iter().map(|artifact| parsed.includes(artifact)).collect();
            assert_eq!(found, included, "{filter}");
            assert_eq!(AddressFilter::parse(&parsed.to_string(), &host("other.example")).unwrap(), parsed, "{filter}");
        }
        assert!(stored.iter().all(|artifact| AddressFilter::All.includes(artifact)));
    }

    #[test]
    fn a_text_that_begins_no_address_is_refused() {
        for given in ["", "/", "a b", "acme//vpc", "acme/vpc/AWS", "a/b/c/d", "acme@1.0", "acme/vpc@~", "a_b.example"] {
            assert!(AddressFilter::parse(given, &host("a.example")).is_err(), "{given}");
        }
    }
}
