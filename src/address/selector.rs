//! The names of packages in commands, reports and messages: a selector is `[HOST/]NAMESPACE/TYPE[@CONSTRAINT]`, or
//! `[HOST/]NAMESPACE/NAME/SYSTEM[@CONSTRAINT]`; a reference is `{"address":…,"version":…,"platform":…}` in JSON,
//! `ADDRESS VERSION (PLATFORM)` as text.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use super::{
    Address, Artifact, BadAddress, Constraint, Hostname, ModuleAddress, ModuleConstraint, ModuleName, ModulePackage,
    Name, Package, Platform, ProviderAddress, System, Version,
};

/// A provider or module, and a selection of its versions.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageSelector {
    /// A provider.
    Provider(Selection<ProviderAddress>),
    /// A module.
    Module(Selection<ModuleAddress>),
}

/// An address with selected versions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Selection<A> {
    /// The provider or the module.
    pub of: A,
    /// The selected versions.
    pub versions: Versions,
}

/// Selected versions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Versions {
    /// All versions.
    All,
    /// One exact version.
    Exactly(Version),
    /// The provider versions that meet these conditions.
    Matching(Constraint),
    /// The module versions that meet these conditions, by the clients' rules for modules.
    MatchingModule(ModuleConstraint),
}

/// Text that is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSelector {
    /// The address has too few parts or too many.
    #[error(
        "{0:?} is not an address: write [HOST/]NAMESPACE/TYPE for a provider or [HOST/]NAMESPACE/NAME/SYSTEM for a module, optionally with @VERSION or @CONSTRAINT after it; HOST has a dot or a port"
    )]
    Shape(String),
    /// A constraint truncated by a shell, which takes `>` for a redirection and expands `~` and `!`.
    #[error(
        "{0:?} has no version after its @, perhaps because the shell took a part of it: quote the constraint, as in '{1}@~> 5.0'"
    )]
    Unquoted(String, String),
    /// The host, a name or the version is invalid.
    #[error(transparent)]
    Part(#[from] BadAddress),
}

impl Versions {
    /// Returns true if the version is selected.
    pub fn include(&self, version: &Version) -> bool {
        match self {
            Self::All => true,
            Self::Exactly(exact) => exact == version,
            Self::Matching(constraint) => constraint.allows(version),
            Self::MatchingModule(constraint) => constraint.allows(version),
        }
    }

    /// Parses the part after the `@` of a provider's address.
    fn of_provider(given: &str) -> Result<Self, BadAddress> {
        if !given.contains(['~', '>', '<', '=', '!', ',', '*', ' ']) {
            return Ok(Self::Exactly(Version::parse(given)?));
        }
        let constraint = Constraint::parse(given)?;
        Ok(constraint.exact_version().cloned().map_or(Self::Matching(constraint), Self::Exactly))
    }

    /// Parses the part after the `@` of a module's address.
    fn of_module(given: &str) -> Result<Self, BadAddress> {
        let given = given.trim();
        if let Ok(version) = Version::parse_of_module(given.strip_prefix('=').map_or(given, str::trim_start))
            && (given == version.as_str() || !version.as_str().contains(['-', '+']))
        {
            return Ok(Self::Exactly(version));
        }
        ModuleConstraint::parse(given).map(Self::MatchingModule)
    }
}

impl Selection<ProviderAddress> {
    /// Chooses from the listed versions like a client: the newest selected one. A pre-release is
    /// chosen only where the selector gives its exact version.
    ///
    /// # Errors
    /// The reason why no listed version matches.
    pub fn choose<'a>(&self, listed: &[&'a Version]) -> Result<&'a Version, String> {
        let is_selected = |version: &&Version| match &self.versions {
            Versions::All => !version.is_pre_release(),
            versions => versions.include(version),
        };
        listed.iter().copied().filter(is_selected).max().ok_or_else(|| self.no_match(listed.len()))
    }
}

impl Selection<ModuleAddress> {
    /// Chooses from the listed versions like a client. Of two versions that differ in build metadata only, clients
    /// choose the one that is listed first.
    ///
    /// # Errors
    /// The reason why no listed version matches.
    pub fn choose<'a>(&self, listed: &[&'a Version]) -> Result<&'a Version, String> {
        let mut versions = listed.iter().copied();
        let chosen = match &self.versions {
            Versions::All => ModuleConstraint::default().newest(versions),
            Versions::MatchingModule(constraint) => constraint.newest(versions),
            Versions::Exactly(exact) => {
                let listed = versions.clone().find(|version| *version == exact);
                // A client that is told `1.2.3` takes `1.2.3+build`, and `1.2.3.0`.
                let equal = || ModuleConstraint::parse(exact.as_str()).ok()?.newest(versions);
                listed.or_else(equal)
            }
            selected @ Versions::Matching(_) => versions.find(|version| selected.include(version)),
        };
        chosen.ok_or_else(|| self.no_match(listed.len()))
    }
}

impl<A: fmt::Display> Selection<A> {
    fn no_match(&self, listed_count: usize) -> String {
        match &self.versions {
            Versions::All => format!("none of the {listed_count} versions that {} lists is a release", self.of),
            Versions::Exactly(_) => {
                format!("{self} is none of the {listed_count} versions that are listed, so no client would ask for it")
            }
            Versions::Matching(_) | Versions::MatchingModule(_) if listed_count == 1 => {
                format!("the one listed version does not match {self}")
            }
            Versions::Matching(_) | Versions::MatchingModule(_) => {
                format!("none of the {listed_count} listed versions matches {self}")
            }
        }
    }
}

impl PackageSelector {
    /// Parses an address. `default_host` is the registry of an address without a host.
    pub fn parse(given: &str, default_host: &Hostname) -> Result<Self, BadSelector> {
        let shortened = || given.chars().take(super::MAX_PART).collect::<String>();
        let (address, version) = match given.split_once('@') {
            Some((address, version)) => (address, Some(version)),
            None => (given, None),
        };
        if version.is_some_and(|version| version.trim_matches(|c: char| "~<>=! ".contains(c)).is_empty()) {
            let address = address.chars().take(super::MAX_PART).collect();
            return Err(BadSelector::Unquoted(shortened(), address));
        }
        let (host, names) = split_host(address, default_host)?;
        let versions = |parse: fn(&str) -> Result<Versions, BadAddress>| version.map_or(Ok(Versions::All), parse);
        match names.as_slice() {
            [namespace, type_] => {
                let provider = ProviderAddress { host, namespace: Name::parse(namespace)?, type_: Name::parse(type_)? };
                Ok(Self::Provider(Selection { of: provider, versions: versions(Versions::of_provider)? }))
            }
            [namespace, name, system] => {
                let [namespace, name] = [ModuleName::parse(namespace)?, ModuleName::parse(name)?];
                let module = ModuleAddress { host, namespace, name, system: System::parse(system)? };
                Ok(Self::Module(Selection { of: module, versions: versions(Versions::of_module)? }))
            }
            _ => Err(BadSelector::Shape(shortened())),
        }
    }
    /// Chooses from the listed versions like a client.
    ///
    /// # Errors
    /// The reason why no listed version matches.
    pub fn choose<'a>(&self, listed: &[&'a Version]) -> Result<&'a Version, String> {
        match self {
            Self::Provider(selection) => selection.choose(listed),
            Self::Module(selection) => selection.choose(listed),
        }
    }

    /// The provider or the module.
    pub fn address(&self) -> Address {
        match self {
            Self::Provider(selection) => (&selection.of).into(),
            Self::Module(selection) => (&selection.of).into(),
        }
    }

    /// The selected versions.
    pub fn versions(&self) -> &Versions {
        match self {
            Self::Provider(Selection { versions, .. }) | Self::Module(Selection { versions, .. }) => versions,
        }
    }

    /// The registry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Provider(selection) => &selection.of.host,
            Self::Module(selection) => &selection.of.host,
        }
    }
}

impl<A: fmt::Display> fmt::Display for Selection<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.versions {
            Versions::All => self.of.fmt(f),
            Versions::Exactly(version) => write!(f, "{}@{version}", self.of),
            Versions::Matching(constraint) => write!(f, "{}@{constraint}", self.of),
            Versions::MatchingModule(constraint) => write!(f, "{}@{constraint}", self.of),
        }
    }
}

/// The host and the names of an address. An address without a host is about the default one.
pub(super) fn split_host<'a>(given: &'a str, default_host: &Hostname) -> Result<(Hostname, Vec<&'a str>), BadAddress> {
    let mut segments: Vec<&str> = given.split('/').collect();
    let has_host = segments[0].contains(['.', ':']);
    let host = if has_host { Hostname::parse(segments.remove(0))? } else { default_host.clone() };
    Ok((host, segments))
}

/// A provider, a module or a document, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PackageRef {
    /// `HOST/NAMESPACE/TYPE` or `HOST/NAMESPACE/NAME/SYSTEM`; `HOST` of a discovery document; otherwise the requested
    /// text. Older records call it `what`, and include the version.
    #[serde(alias = "what")]
    pub address: String,
    /// The version; the constraint as long as no version is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `OS_ARCH`; `None` for a module, which is the same for all platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The kind of document, if the report is about a document: `version list` or `discovery document`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
}

impl PackageRef {
    /// A requested item: an address with its version or constraint, or any other text.
    pub fn requested(text: &str) -> Self {
        let is_address = |address: &str| {
            let host = address.split('/').next().unwrap_or_default();
            host.contains(['.', ':']) && (3..=4).contains(&address.split('/').count()) && !address.contains("//")
        };
        match text.split_once('@') {
            Some((address, version)) if is_address(address) => {
                Self { address: address.to_owned(), version: Some(version.to_owned()), ..Self::default() }
            }
            _ => Self { address: text.to_owned(), ..Self::default() },
        }
    }

    /// The version list of a provider or a module.
    pub fn version_list(address: &impl fmt::Display) -> Self {
        Self { address: address.to_string(), document: Some("version list".to_owned()), ..Self::default() }
    }

    /// The discovery document of a registry.
    pub fn discovery(host: &Hostname) -> Self {
        Self { address: host.to_string(), document: Some("discovery document".to_owned()), ..Self::default() }
    }

    /// A copy for one platform.
    #[must_use]
    pub fn on(self, platform: Option<&Platform>) -> Self {
        Self { platform: platform.map(ToString::to_string), ..self }
    }

    /// A copy without the host, if it is `default_host`.
    #[must_use]
    pub fn without(&self, default_host: &Hostname) -> Self {
        let path = self.address.strip_prefix(default_host.as_str()).and_then(|path| path.strip_prefix('/'));
        Self { address: path.unwrap_or(&self.address).to_owned(), ..self.clone() }
    }
}

impl fmt::Display for PackageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(document) = &self.document {
            write!(f, "the {document} of ")?;
        }
        f.write_str(&self.address)?;
        self.version.iter().try_for_each(|version| write!(f, " {version}"))?;
        self.platform.iter().try_for_each(|platform| write!(f, " ({platform})"))
    }
}

impl From<&Package> for PackageRef {
    fn from(package: &Package) -> Self {
        let (address, version) = (package.provider.to_string(), Some(package.version.to_string()));
        Self { address, version, ..Self::default() }.on(Some(&package.platform))
    }
}

impl From<&ModulePackage> for PackageRef {
    fn from(package: &ModulePackage) -> Self {
        Self { address: package.module.to_string(), version: Some(package.version.to_string()), ..Self::default() }
    }
}

impl From<&Artifact> for PackageRef {
    fn from(artifact: &Artifact) -> Self {
        match artifact {
            Artifact::Provider(package) => package.into(),
            Artifact::Module(package) => package.into(),
        }
    }
}

impl From<&PackageSelector> for PackageRef {
    fn from(selector: &PackageSelector) -> Self {
        Self::requested(&selector.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(given: &str) -> Result<PackageSelector, BadSelector> {
        PackageSelector::parse(given, &Hostname::parse("registry.example").unwrap())
    }

    /// These texts are what a shell leaves of `hashicorp/aws@~> 5.0` and others if they are not quoted.
    #[test]
    fn a_constraint_cut_off_by_the_shell_is_refused_with_the_advice_to_quote_it() {
        for given in ["hashicorp/aws@~", "hashicorp/aws@", "hashicorp/aws@~>", "a.example/hashicorp/aws@!"] {
            let bad = parse(given).unwrap_err();
            assert!(matches!(bad, BadSelector::Unquoted(..)), "{given}: {bad}");
            let address = given.split('@').next().unwrap();
            assert!(bad.to_string().contains("quote the constraint"), "{bad}");
            assert!(bad.to_string().contains(&format!("'{address}@~> 5.0'")), "{bad}");
        }
    }

    #[test]
    fn an_address_is_parsed_as_a_provider_or_module_and_its_versions() {
        for (given, selection) in [
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
            ("acme/vpc/aws@~>5", "registry.example/acme/vpc/aws@~>5"),
            ("acme/vpc/aws@ = 5.0 ", "registry.example/acme/vpc/aws@5.0.0"),
            ("acme/vpc/aws@1.0.0-rc.1", "registry.example/acme/vpc/aws@1.0.0-rc.1"),
            ("acme/vpc/aws@= 1.0.0-rc.1", "registry.example/acme/vpc/aws@= 1.0.0-rc.1"),
            ("acme/vpc/aws@v1.0", "registry.example/acme/vpc/aws@1.0.0"),
            ("acme/vpc/aws@1.2.3.4", "registry.example/acme/vpc/aws@1.2.3.4"),
            ("acme/vpc/aws@v1.0.0-rc.1", "registry.example/acme/vpc/aws@v1.0.0-rc.1"),
            ("Other.example/acme/vpc/aws@1.0", "other.example/acme/vpc/aws@1.0.0"),
        ] {
            assert_eq!(parse(given).map(|selector| selector.to_string()), Ok(selection.to_owned()), "{given}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        for (given, reason) in [
            ("", "is not an address"),
            ("null", "is not an address"),
            ("a/b/c/d", "is not an address"),
            ("other.example/null", "is not an address"),
            ("h.example/a/b/c/d", "is not an address"),
            ("acme/vpc/AWS", "is not a module system"),
            ("acme/null@=> 5.0", "its operators can be"),
            ("acme/vpc/aws@=> 5.0", "of a module"),
            ("acme/null@>= 5,", "has no version"),
            ("acme/null@5.*", "~> 5.0"),
            ("acme/null@v1.0.0", "\"v\" in front"),
            ("acme/../null", "is not a module name"),
            ("acme/", "is not a provider name"),
            ("a b/null", "is not a provider name"),
            ("a_b.example/acme/null", "is not a host name"),
        ] {
            let refused = parse(given).unwrap_err().to_string();
            assert!(refused.contains(reason), "{given}: {refused}");
        }
    }

    /// Observed with Terraform 1.11.4, for a provider and for a module.
    #[test]
    fn module_constraints_follow_other_rules_than_provider_constraints() {
        let listed = ["1.0.0", "5.4.0", "6.1.0", "7.0.0-rc.1"].map(|version| Version::parse(version).unwrap());
        let listed: Vec<&Version> = listed.iter().collect();
        let chosen = |given: &str| parse(given).unwrap().choose(&listed).map(Version::to_string);
        assert_eq!(chosen("acme/test@~> 5").unwrap(), "5.4.0");
        for (given, version) in [
            ("acme/two/test@~> 5", "6.1.0"),
            ("acme/two/test@~> 5.0", "5.4.0"),
            ("acme/two/test@v1.0.0", "1.0.0"),
            ("acme/two/test@7.0.0-rc.1", "7.0.0-rc.1"),
            ("acme/two/test", "6.1.0"),
        ] {
            assert_eq!(chosen(given).unwrap(), version, "{given}");
        }
        for given in ["acme/test@> 7", "acme/two/test@> 7", "acme/two/test@= 7.0.0-rc.1", "acme/two/test@2.0.0"] {
            assert!(chosen(given).unwrap_err().contains("none of the 4 "), "{given}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_selector_prints_a_text_that_parses_to_it(given in "[a-z.:@/~>0-9 -]{0,40}|acme/(null|vpc/aws)@ ?[~=!<>]{0,2} ?[0-9](\\.[0-9]){0,2},?[~=!<>]{0,2} ?[0-9](\\.[0-9]){0,2}|\\PC{0,40}") {
            if let Ok(selector) = parse(&given) {
                prop_assert_eq!(parse(&selector.to_string()), Ok(selector.clone()));
            }
        }
    }

    /// An address in JSON always names its host; text leaves out the default host.
    #[test]
    fn a_reference_names_the_default_host_in_json_and_not_in_text() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let package = PackageRef::requested("registry.terraform.io/hashicorp/aws@5.1.0");
        let package = package.on(Some(&Platform::parse("linux_amd64").unwrap()));
        assert_eq!(
            serde_json::to_string(&package).unwrap(),
            r#"{"address":"registry.terraform.io/hashicorp/aws","version":"5.1.0","platform":"linux_amd64"}"#
        );
        assert_eq!(package.without(&host).to_string(), "hashicorp/aws 5.1.0 (linux_amd64)");
        assert_eq!(package.to_string(), "registry.terraform.io/hashicorp/aws 5.1.0 (linux_amd64)");
        let longer_host = PackageRef::requested("registry.terraform.io.example/hashicorp/aws@~> 5.0").without(&host);
        assert_eq!(longer_host.to_string(), "registry.terraform.io.example/hashicorp/aws ~> 5.0");
        assert_eq!(PackageRef::version_list(&"a.example/b/c").to_string(), "the version list of a.example/b/c");
        for text in ["git::https://git@x.example/y.git", "./prod", "./a@b/c.tf", "acme/null@1.0.0"] {
            assert_eq!(
                (PackageRef::requested(text).address.as_str(), PackageRef::requested(text).version),
                (text, None)
            );
        }
    }

    /// Older larders wrote the address as `what`.
    #[test]
    fn a_record_of_an_older_larder_is_readable() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Record {
            #[serde(flatten)]
            package: PackageRef,
            bytes: u64,
        }
        let record: Record =
            serde_json::from_str(r#"{"what":"a.example/b/c@1.0.0","platform":"linux_amd64","bytes":7}"#).unwrap();
        assert_eq!(record.package.address, "a.example/b/c@1.0.0");
        assert_eq!(record.package.platform.as_deref(), Some("linux_amd64"));
    }
}
