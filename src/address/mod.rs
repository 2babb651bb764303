//! Addresses: hosts, providers, modules, versions and platforms. All spellings of one address are one value. Every
//! other part of larder may use this module, which uses none of them. It contains no URLs and no paths.

mod constraint;
mod filter;
mod pattern;
mod selector;
mod version;
mod waiting;

use std::borrow::Borrow;

use derive_more::Display;
use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use serde::{Deserialize, Serialize};

pub use self::constraint::{Constraint, ModuleConstraint};
pub use self::filter::AddressFilter;
pub use self::pattern::AddressPattern;
pub use self::selector::{BadSelector, PackageRef, PackageSelector, Selection, Versions};
pub use self::version::Version;
pub use self::waiting::WaitingVersion;

/// The longest accepted name, version or platform, in bytes.
pub const MAX_PART: usize = 128;

/// Invalid text for a host, name, version or platform: the expected kind, and the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {reason}")]
pub struct BadAddress {
    kind: &'static str,
    text: String,
    reason: &'static str,
}

impl BadAddress {
    fn new(kind: &'static str, given: &str, reason: &'static str) -> Self {
        let text = given.chars().take(MAX_PART).collect();
        Self { kind, text, reason }
    }
}

/// Checks a name: up to 128 letters, digits, `-` and `_`. Returns the name in its original case.
fn checked_name<'a>(kind: &'static str, given: &'a str) -> Result<&'a str, BadAddress> {
    let bad = |reason| BadAddress::new(kind, given, reason);
    if given.is_empty() || given.len() > MAX_PART {
        return Err(bad("it is empty, or longer than 128 bytes"));
    }
    if !given.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        return Err(bad("it may contain only letters, digits, - and _"));
    }
    if !given.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(bad("it must begin with a letter or a digit"));
    }
    Ok(given)
}

/// A namespace or a provider type: lower-case letters, digits, `-` and `_`.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Parses a name in any case; clients send lower case (provider registry protocol).
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        Ok(Self(checked_name("provider name", given)?.to_ascii_lowercase()))
    }

    /// The name in URLs and file names.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A provider: `HOST/NAMESPACE/TYPE`. Two registries never mix, so the host is always part of it.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{host}/{namespace}/{type_}")]
pub struct ProviderAddress {
    /// The registry.
    pub host: Hostname,
    /// Namespace of the publisher.
    pub namespace: Name,
    /// Provider type.
    pub type_: Name,
}

/// Serialises the address of a provider as `HOST/NAMESPACE/TYPE`.
pub mod provider_as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{Address, ProviderAddress};

    /// Writes the text.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<S: Serializer>(address: &ProviderAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    /// Reads the text.
    ///
    /// # Errors
    /// It is no address of a provider.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProviderAddress, D::Error> {
        match Address::deserialize(deserializer)? {
            Address::Provider(provider) => Ok(provider),
            Address::Module(_) => Err(D::Error::custom("not a provider address")),
        }
    }
}

/// A platform: `OS_ARCH`.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{os}_{arch}")]
#[serde(try_from = "String", into = "String")]
pub struct Platform {
    /// The operating system, as Go names it.
    pub os: String,
    /// The processor architecture, as Go names it.
    pub arch: String,
}

impl Platform {
    /// Parses `linux_amd64`.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let (os, arch) =
            given.split_once('_').ok_or_else(|| BadAddress::new("platform", given, "write it as OS_ARCH"))?;
        Self::new(os, arch)
    }

    /// Joins the operating system and the architecture.
    pub fn new(os: &str, arch: &str) -> Result<Self, BadAddress> {
        for name in [os, arch] {
            let is_valid = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if name.is_empty() || name.len() > 32 || !is_valid {
                return Err(BadAddress::new("platform part", name, "it may contain only a to z and 0 to 9"));
            }
        }
        Ok(Self { os: os.to_owned(), arch: arch.to_owned() })
    }

    /// The platforms that most clients run on, the most used first.
    pub fn common() -> impl Iterator<Item = Self> {
        let platforms = [("linux", "amd64"), ("darwin", "arm64"), ("linux", "arm64"), ("windows", "amd64")];
        platforms.into_iter().map(|(os, arch)| Self { os: os.to_owned(), arch: arch.to_owned() })
    }

    /// The platform of this machine.
    pub fn of_this_machine() -> Self {
        let os = match std::env::consts::OS {
            "macos" => "darwin",
            os => os,
        };
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            arch => arch,
        };
        Self { os: os.to_owned(), arch: arch.to_owned() }
    }
}

/// A provider version for one platform: the contents of one archive.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{provider} {version} ({platform})")]
pub struct Package {
    /// The provider.
    pub provider: ProviderAddress,
    /// The version, in normal form.
    #[serde(deserialize_with = "Version::deserialize_of_provider")]
    pub version: Version,
    /// The platform.
    pub platform: Platform,
}

/// A namespace or the name of a module: letters in their original case, digits, `-` and `_`.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct System(String);

impl System {
    /// Parses a system, which clients send in lower case only (module addresses).
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
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{host}/{namespace}/{name}/{system}")]
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

/// One version of a module: the contents of one archive.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{module}@{version}")]
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

/// A provider or a module, which has versions. In records and files it is a text, with its host.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// A provider.
    Provider(ProviderAddress),
    /// A module. In a key it has its canonical spelling.
    Module(ModuleAddress),
}

impl TryFrom<String> for Address {
    type Error = BadAddress;

    /// Parses `HOST/NAMESPACE/TYPE` or `HOST/NAMESPACE/NAME/SYSTEM`.
    fn try_from(text: String) -> Result<Self, BadAddress> {
        let segments: Vec<&str> = text.split('/').collect();
        match segments.as_slice() {
            [host, namespace, type_] => Ok(Self::Provider(ProviderAddress {
                host: Hostname::parse(host)?,
                namespace: Name::parse(namespace)?,
                type_: Name::parse(type_)?,
            })),
            [host, namespace, name, system] => Ok(Self::Module(ModuleAddress {
                host: Hostname::parse(host)?,
                namespace: ModuleName::parse(namespace)?,
                name: ModuleName::parse(name)?,
                system: System::parse(system)?,
            })),
            _ => Err(BadAddress::new("address", &text, "it has neither three nor four parts")),
        }
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl Address {
    /// The registry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Provider(address) => &address.host,
            Self::Module(address) => &address.host,
        }
    }

    /// The path within the registry: `NAMESPACE/TYPE` or `NAMESPACE/NAME/SYSTEM`.
    pub fn path(&self) -> String {
        match self {
            Self::Provider(ProviderAddress { namespace, type_, .. }) => format!("{namespace}/{type_}"),
            Self::Module(ModuleAddress { namespace, name, system, .. }) => format!("{namespace}/{name}/{system}"),
        }
    }
}

impl From<&ProviderAddress> for Address {
    fn from(address: &ProviderAddress) -> Self {
        Self::Provider(address.clone())
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

impl From<&ModuleAddress> for Address {
    fn from(address: &ModuleAddress) -> Self {
        Self::Module(address.clone())
    }
}

impl From<&Artifact> for Address {
    fn from(artifact: &Artifact) -> Self {
        match artifact {
            Artifact::Provider(package) => Self::from(&package.provider),
            Artifact::Module(package) => Self::from(&package.module),
        }
    }
}

/// The package that a stored archive contains.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Artifact {
    /// A version of a provider for one platform.
    Provider(Package),
    /// A module version under its canonical spelling.
    Module(ModulePackage),
}

impl Artifact {
    /// The version.
    pub fn version(&self) -> &Version {
        match self {
            Self::Provider(package) => &package.version,
            Self::Module(package) => &package.version,
        }
    }

    /// The registry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Provider(package) => &package.provider.host,
            Self::Module(package) => &package.module.host,
        }
    }
}

impl From<&Package> for Artifact {
    fn from(package: &Package) -> Self {
        Self::Provider(package.clone())
    }
}

impl From<&ModulePackage> for Artifact {
    fn from(package: &ModulePackage) -> Self {
        Self::Module(package.clone())
    }
}

impl From<&Artifact> for Artifact {
    fn from(artifact: &Artifact) -> Self {
        artifact.clone()
    }
}

/// The name of a file in a download document: one path segment without characters that a terminal, a path or a
/// SHA256SUMS line would misread.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

impl FileName {
    /// Parses a file name of at most 128 bytes.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new("file name", given, reason);
        if given.is_empty() || given.len() > MAX_PART {
            return Err(bad("it is empty, or longer than 128 bytes"));
        }
        if given == "."
            || given == ".."
            || given.chars().any(|c| c.is_control() || c.is_whitespace() || "/\\".contains(c))
        {
            return Err(bad("it must not contain slashes, spaces or control characters"));
        }
        Ok(Self(given.to_owned()))
    }

    /// The name as the document spells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Makes a type serialise as its text and deserialise with `parse`, or with the named function.
macro_rules! serialise_as_text {
    ($($kind:ident),*) => {$(serialise_as_text!($kind = parse);)*};
    ($kind:ident = $parse:ident) => {
        impl TryFrom<String> for $kind {
            type Error = BadAddress;
            fn try_from(given: String) -> Result<Self, BadAddress> {
                Self::$parse(&given)
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> String {
                value.to_string()
            }
        }
    };
}

serialise_as_text!(Hostname, Name, ModuleName, System, Platform, Constraint, ModuleConstraint, FileName);
serialise_as_text!(Version = parse_of_module);

/// The host name of a registry in normal form: lower-case ASCII (punycode), without `:443`, with any other port.
///
/// Accepts the spellings of terraform-svchost (service discovery): Unicode or punycode, any case, no trailing dot, no
/// underscore.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hostname(String);

/// The public registry of Terraform.
pub const TERRAFORM_REGISTRY: &str = "registry.terraform.io";
/// The public registry of OpenTofu.
pub const OPENTOFU_REGISTRY: &str = "registry.opentofu.org";

impl Hostname {
    /// Parses `registry.example`, `Bücher.example:8443`, `xn--bcher-kva.example`.
    pub fn parse(text: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new("host name", text, reason);
        let (name, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((name, port)) => {
                let is_number = !port.is_empty() && port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
                let port = port.parse::<u16>().ok().filter(|port| is_number && *port != 0);
                (name, Some(port.ok_or_else(|| bad("its port is not a number from 1 to 65535"))?))
            }
        };
        let ascii = to_ascii(name).ok_or_else(|| bad("it is not a domain name"))?;
        // Users write the Unicode spelling, so that must parse to the same name. UTS 46 decodes labels like `xn--xn--…`
        // to other names.
        if ascii.contains("xn--") && to_ascii(&idna::domain_to_unicode(&ascii).0).as_ref() != Some(&ascii) {
            return Err(bad("it has no spelling in Unicode that is a domain name"));
        }
        if ascii.len() > MAX_PART - ":65535".len() {
            return Err(bad("it is longer than 122 bytes"));
        }
        Ok(match port {
            None | Some(443) => Self(ascii),
            Some(port) => Self(format!("{ascii}:{port}")),
        })
    }

    /// The other of the two public registries; `None` for any other host.
    pub fn other_public_registry(&self) -> Option<Self> {
        match self.as_str() {
            TERRAFORM_REGISTRY => Some(Self(OPENTOFU_REGISTRY.to_owned())),
            OPENTOFU_REGISTRY => Some(Self(TERRAFORM_REGISTRY.to_owned())),
            _ => None,
        }
    }

    /// The host name in normal form, as in larder's URLs, file names and logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name without its port.
    pub fn name(&self) -> &str {
        self.0.split_once(':').map_or(self.0.as_str(), |(name, _)| name)
    }

    /// The port, where it is not 443.
    pub fn port(&self) -> Option<u16> {
        self.0.split_once(':').and_then(|(_, port)| port.parse().ok())
    }

    /// The spelling that users write: clients refuse labels beginning `xn--` in their configuration.
    pub fn to_unicode(&self) -> String {
        let (unicode, _) = idna::domain_to_unicode(self.name());
        match self.port() {
            Some(port) => format!("{unicode}:{port}"),
            None => unicode,
        }
    }
}

/// Converts a domain name to lower-case ASCII; `None` if it is not a domain name.
fn to_ascii(name: &str) -> Option<String> {
    let ascii = Uts46::new().to_ascii(name.as_bytes(), AsciiDenyList::STD3, Hyphens::Allow, DnsLength::Verify);
    ascii.ok().map(|ascii| ascii.into_owned())
}

/// Allows lookups in maps by a text that is in normal form.
impl Borrow<str> for Hostname {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_names_and_platforms_are_refused() {
        for given in ["", "a/b", "..", ".", "a b", "-a", "é", &"a".repeat(129)] {
            assert!(Name::parse(given).is_err(), "{given}");
        }
        assert_eq!(Name::parse("HashiCorp").map(|n| n.to_string()), Ok("hashicorp".to_owned()));
        for given in ["linux", "linux_", "_amd64", "Linux_amd64", "linux_amd64_v2", "linux_../x"] {
            assert!(Platform::parse(given).is_err(), "{given}");
        }
    }

    fn assert_round_trips<T: Serialize + serde::de::DeserializeOwned + PartialEq + Debug>(value: &T) {
        let json = serde_json::to_string(value).unwrap();
        assert_eq!(&serde_json::from_str::<T>(&json).unwrap(), value);
    }

    proptest! {
        #[test]
        fn a_name_a_platform_or_a_file_name_is_one_path_segment_and_round_trips(
            text in "\\PC{0,40}|[a-zA-Z0-9_.-]{0,140}|[a-z0-9]{1,33}_[a-z0-9]{1,33}|[a-z.]{0,9}[/\\\\\n\r\t\0\x1b\u{85} ][a-z.]{0,3}",
        ) {
            let parsed = [
                Name::parse(&text).inspect(assert_round_trips).map(|name| name.to_string()),
                Platform::parse(&text).inspect(assert_round_trips).map(|platform| platform.to_string()),
                FileName::parse(&text).inspect(assert_round_trips).map(|name| name.to_string()),
            ];
            for segment in parsed.into_iter().flatten() {
                prop_assert!(segment == text || segment == text.to_ascii_lowercase());
                prop_assert!(!segment.is_empty() && segment.len() <= MAX_PART && segment != "." && segment != "..");
                prop_assert!(!segment.contains(['/', '\\', ' ']) && !segment.contains(char::is_control), "{segment:?}");
            }
        }
    }

    fn host(given: &str) -> String {
        Hostname::parse(given).map_or_else(|_| "refused".to_owned(), |host| host.to_string())
    }

    #[test]
    fn every_spelling_of_a_host_is_one_key() {
        for (given, key) in [
            ("registry.terraform.io", "registry.terraform.io"),
            ("Registry.Terraform.IO", "registry.terraform.io"),
            ("registry.terraform.io:443", "registry.terraform.io"),
            ("registry.terraform.io:8443", "registry.terraform.io:8443"),
            ("registry.terraform.io:08443", "registry.terraform.io:8443"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example:443", "xn--bcher-kva.example"),
            ("localhost:5000", "localhost:5000"),
            ("127.0.0.1:8443", "127.0.0.1:8443"),
            ("registry.terraform.io.", "refused"),
            ("", "refused"),
            (":443", "refused"),
            ("a b", "refused"),
            ("a/b", "refused"),
            ("..", "refused"),
            ("a..b", "refused"),
            ("host:", "refused"),
            ("host:0", "refused"),
            ("host:65536", "refused"),
            ("host:+80", "refused"),
            ("user@host", "refused"),
            ("under_score.example", "refused"),
            ("[::1]:80", "refused"),
            ("xn--zzzzzz--.example", "refused"),
            ("xn--xn--bcher-n--bcher-kva.example", "refused"),
        ] {
            assert_eq!(host(given), key, "{given}");
        }
        assert_eq!(Hostname::parse("xn--bcher-kva.example:81").map(|h| h.to_unicode()), Ok("bücher.example:81".into()));
    }

    proptest! {
        #[test]
        fn a_parsed_host_parses_to_itself(given in "\\PC{0,40}|[a-zA-Zé.-]{1,20}(:[0-9]{1,5})?|(xn--)?[a-z0-9-]{1,20}") {
            if let Ok(parsed) = Hostname::parse(&given) {
                prop_assert_eq!(Hostname::parse(parsed.as_str()), Ok(parsed.clone()));
                prop_assert!(!parsed.as_str().contains('/'));
                prop_assert_eq!(Hostname::parse(&parsed.to_unicode()), Ok(parsed));
            }
        }
    }

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
