//! What things are called: hosts, providers, versions and platforms, parsed at the door into one key
//! for every spelling. The leaf that every other room may use; it knows no URL and no file.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use serde::{Deserialize, Serialize};

/// The longest name, version or platform that is taken from anybody, in bytes.
pub const LONGEST_PART: usize = 128;

/// Text that is no host, name, version or platform. Says which it was to be, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a {kind}: {why}")]
pub struct BadAddress {
    kind: &'static str,
    given: String,
    why: &'static str,
}

impl BadAddress {
    fn new(kind: &'static str, given: &str, why: &'static str) -> Self {
        let given = given.chars().take(LONGEST_PART).collect();
        Self { kind, given, why }
    }
}

/// A registry's host name as one key: lower-case ASCII (punycode), `:443` dropped, any other port kept.
///
/// The spellings it accepts are those of terraform-svchost (PROTOCOL 1.1): Unicode or punycode, any
/// case, no trailing dot, no underscore.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hostname(String);

impl Hostname {
    /// Parses `registry.example`, `Bücher.example:8443`, `xn--bcher-kva.example`.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress::new("host name", given, why);
        let (name, port) = match given.rsplit_once(':') {
            None => (given, None),
            Some((name, port)) => {
                let digits = !port.is_empty() && port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
                let port = port.parse::<u16>().ok().filter(|port| digits && *port != 0);
                (name, Some(port.ok_or_else(|| bad("its port is not a number from 1 to 65535"))?))
            }
        };
        let ascii = Uts46::new()
            .to_ascii(name.as_bytes(), AsciiDenyList::STD3, Hyphens::Allow, DnsLength::Verify)
            .map_err(|_| bad("it is not a domain name"))?;
        Ok(match port {
            None | Some(443) => Self(ascii.into_owned()),
            Some(port) => Self(format!("{ascii}:{port}")),
        })
    }

    /// The key: what stands in our URLs, our file names and our logs.
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

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Hostname {
    type Error = BadAddress;
    fn try_from(given: String) -> Result<Self, BadAddress> {
        Self::parse(&given)
    }
}

impl From<Hostname> for String {
    fn from(host: Hostname) -> String {
        host.0
    }
}

/// A namespace or a provider type: lower-case letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Parses a name in any case; clients send lower case (PROTOCOL 2.1).
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress::new("provider name", given, why);
        if given.is_empty() || given.len() > LONGEST_PART {
            return Err(bad("it has no letters, or more than 128"));
        }
        if !given.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            return Err(bad("it may hold letters, digits, - and _"));
        }
        if !given.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(bad("it must begin with a letter or a digit"));
        }
        Ok(Self(given.to_ascii_lowercase()))
    }

    /// The name as it stands in URLs and file names.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = BadAddress;
    fn try_from(given: String) -> Result<Self, BadAddress> {
        Self::parse(&given)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

/// A provider: `HOST/NAMESPACE/TYPE`. Two registries never mix, so the host is always part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProviderAddress {
    /// The registry.
    pub host: Hostname,
    /// Who publishes it.
    pub namespace: Name,
    /// What it is called.
    pub type_: Name,
}

impl fmt::Display for ProviderAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.host, self.namespace, self.type_)
    }
}

/// What a provider is released for: `OS_ARCH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

    /// Joins the two parts that URLs and documents name apart.
    pub fn new(os: &str, arch: &str) -> Result<Self, BadAddress> {
        for part in [os, arch] {
            let known = part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if part.is_empty() || part.len() > 32 || !known {
                return Err(BadAddress::new("platform part", part, "it may hold a to z and 0 to 9"));
            }
        }
        Ok(Self { os: os.to_owned(), arch: arch.to_owned() })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.os, self.arch)
    }
}

impl TryFrom<String> for Platform {
    type Error = BadAddress;
    fn try_from(given: String) -> Result<Self, BadAddress> {
        Self::parse(&given)
    }
}

impl From<Platform> for String {
    fn from(platform: Platform) -> String {
        platform.to_string()
    }
}

/// A version in the clients' own normal form: `1.2` is `1.2.0`, `01.2.3` is `1.2.3` (PROTOCOL 2.2).
///
/// Ordered by SemVer precedence; build metadata only tells equals apart.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    numbers: [u64; 3],
    pre: String,
    build: String,
    normal: String,
}

impl Version {
    /// Parses a version as the clients do: one to three numbers, then `-PRE` and `+BUILD`; no `v`.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress::new("version", given, why);
        if given.len() > LONGEST_PART {
            return Err(bad("it is longer than 128 bytes"));
        }
        if given.starts_with(['v', 'V']) {
            return Err(bad("a \"v\" in front does not belong to it"));
        }
        let (rest, build) = match given.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (given, None),
        };
        let (core, pre) = match rest.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (rest, None),
        };
        let mut numbers = [0u64; 3];
        let mut parts = core.split('.');
        for (place, number) in numbers.iter_mut().enumerate() {
            match parts.next() {
                Some(part) if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) => {
                    *number = part.parse().map_err(|_| bad("one of its numbers is too large"))?;
                }
                None if place > 0 => {}
                _ => return Err(bad("it must begin with one to three numbers")),
            }
        }
        if parts.next().is_some() {
            return Err(bad("it has more than three numbers"));
        }
        for label in [pre, build].into_iter().flatten() {
            let known = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            if !label.split('.').all(known) {
                return Err(bad("what follows - or + must be letters, digits and - between dots"));
            }
        }
        let (pre, build) = (pre.unwrap_or_default().to_owned(), build.unwrap_or_default().to_owned());
        let mut normal = format!("{}.{}.{}", numbers[0], numbers[1], numbers[2]);
        for (mark, label) in [('-', &pre), ('+', &build)] {
            if !label.is_empty() {
                normal.push(mark);
                normal.push_str(label);
            }
        }
        Ok(Self { numbers, pre, build, normal })
    }

    /// The normal form: what clients send, and what stands in our URLs and file names.
    pub fn as_str(&self) -> &str {
        &self.normal
    }
}

/// SemVer 2.0.0, section 11: a pre-release comes before its release; numbers before words.
fn compare_pre(a: &str, b: &str) -> Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) => match (x.parse::<u64>(), y.parse::<u64>()) {
                (Ok(x), Ok(y)) => x.cmp(&y),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => x.cmp(y),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers
            .cmp(&other.numbers)
            .then_with(|| compare_pre(&self.pre, &other.pre))
            .then_with(|| self.build.cmp(&other.build))
            .then_with(|| self.normal.cmp(&other.normal))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.normal == other.normal
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.normal.hash(state);
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.normal)
    }
}

impl TryFrom<String> for Version {
    type Error = BadAddress;
    fn try_from(given: String) -> Result<Self, BadAddress> {
        Self::parse(&given)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> String {
        version.normal
    }
}

/// What one archive is released as: a version of a provider for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Package {
    /// The provider.
    pub provider: ProviderAddress,
    /// The version, in normal form.
    pub version: Version,
    /// The platform.
    pub platform: Platform,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} for {}", self.provider, self.version, self.platform)
    }
}

/// The name of a file that a download document names: one path segment, nothing that a terminal, a
/// path or a SHA256SUMS line could take for something else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

impl FileName {
    /// Parses a file name of at most 128 bytes.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress::new("file name", given, why);
        if given.is_empty() || given.len() > LONGEST_PART {
            return Err(bad("it is empty, or longer than 128 bytes"));
        }
        if given == "."
            || given == ".."
            || given.chars().any(|c| c.is_control() || c.is_whitespace() || "/\\".contains(c))
        {
            return Err(bad("it may hold no slash, no space and no control character"));
        }
        Ok(Self(given.to_owned()))
    }

    /// The name as the document spells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for FileName {
    type Error = BadAddress;
    fn try_from(given: String) -> Result<Self, BadAddress> {
        Self::parse(&given)
    }
}

impl From<FileName> for String {
    fn from(name: FileName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        ] {
            assert_eq!(host(given), key, "{given}");
        }
        assert_eq!(Hostname::parse("xn--bcher-kva.example:81").map(|h| h.to_unicode()), Ok("bücher.example:81".into()));
    }

    #[test]
    fn versions_are_read_as_the_clients_read_them() {
        for (given, normal) in [
            ("1.2.3", "1.2.3"),
            ("1.2", "1.2.0"),
            ("1", "1.0.0"),
            ("01.2.3", "1.2.3"),
            ("1.0.0-beta.1+build.5", "1.0.0-beta.1+build.5"),
            ("1.0.0+20130313144700", "1.0.0+20130313144700"),
            ("1.0-rc1", "1.0.0-rc1"),
        ] {
            assert_eq!(Version::parse(given).map(|v| v.to_string()), Ok(normal.to_owned()));
        }
        for given in [
            "v1.2.3",
            "",
            "1.",
            ".1",
            "1..2",
            "1.2.3.4",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-a..b",
            "a",
            "1.2.3 ",
            "-1",
            "1.2.3/..",
            "99999999999999999999.0.0",
        ] {
            assert!(Version::parse(given).is_err(), "{given}");
        }
    }

    #[test]
    fn versions_order_by_precedence() {
        let sorted = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.0+b",
            "1.2.0",
            "1.10.0",
        ];
        for pair in sorted.windows(2) {
            assert!(Version::parse(pair[0]).unwrap() < Version::parse(pair[1]).unwrap(), "{pair:?}");
        }
    }

    #[test]
    fn names_and_platforms_that_cannot_be_are_refused() {
        for given in ["", "a/b", "..", ".", "a b", "-a", "é", &"a".repeat(129)] {
            assert!(Name::parse(given).is_err(), "{given}");
        }
        assert_eq!(Name::parse("HashiCorp").map(|n| n.to_string()), Ok("hashicorp".to_owned()));
        for given in ["linux", "linux_", "_amd64", "Linux_amd64", "linux_amd64_v2", "linux_../x"] {
            assert!(Platform::parse(given).is_err(), "{given}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_host_parses_to_itself(given in "\\PC{0,40}") {
            if let Ok(parsed) = Hostname::parse(&given) {
                prop_assert_eq!(Hostname::parse(parsed.as_str()), Ok(parsed.clone()));
                prop_assert!(!parsed.as_str().contains('/'));
            }
        }

        #[test]
        fn a_parsed_version_parses_to_itself(given in "[0-9v.+a-c-]{0,20}") {
            if let Ok(parsed) = Version::parse(&given) {
                prop_assert_eq!(Version::parse(parsed.as_str()), Ok(parsed.clone()));
                prop_assert_eq!(parsed.cmp(&parsed), Ordering::Equal);
            }
        }
    }
}
