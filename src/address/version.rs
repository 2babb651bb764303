//! Versions as the clients read them, and their order.

use std::cmp::Ordering;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use super::BadAddress;

/// The longest version, in bytes, as given and in normal form: `VERSION.json` must fit into a path segment.
const MAX_VERSION_BYTES: usize = 96;

/// A version in the clients' normal form: `1.2` is `1.2.0`, `01.2.3` is `1.2.3` (provider registry protocol).
///
/// Ordered by SemVer precedence; build metadata only breaks ties.
#[derive(Debug, Display, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{normal}")]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    numbers: [u64; 3],
    pre: PreRelease,
    build: String,
    normal: String,
}

impl Version {
    /// Parses a version as the clients do: one to three numbers, then `-PRE` and `+BUILD`; no `v`.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new("version", given, reason);
        if given.len() > MAX_VERSION_BYTES {
            return Err(bad("it is longer than 96 bytes"));
        }
        if given.starts_with(['v', 'V']) {
            return Err(bad("remove the \"v\" in front of it"));
        }
        let (core_and_pre, build) = match given.split_once('+') {
            Some((core_and_pre, build)) => (core_and_pre, Some(build)),
            None => (given, None),
        };
        let (core, pre) = match core_and_pre.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (core_and_pre, None),
        };
        let mut numbers = [0u64; 3];
        let mut components = core.split('.');
        for (index, number) in numbers.iter_mut().enumerate() {
            match components.next() {
                Some(component) if !component.is_empty() && component.bytes().all(|b| b.is_ascii_digit()) => {
                    *number = component.parse().map_err(|_| bad("one of its numbers is too large"))?;
                }
                None if index > 0 => {}
                _ => return Err(bad("it must begin with one to three numbers")),
            }
        }
        if components.next().is_some() {
            return Err(bad("it has more than three numbers"));
        }
        for label in [pre, build].into_iter().flatten() {
            let is_identifier = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            if !label.split('.').all(is_identifier) {
                return Err(bad("what follows - or + must be letters, digits and - between dots"));
            }
        }
        let (pre, build) = (pre.unwrap_or_default().to_owned(), build.unwrap_or_default().to_owned());
        let mut normal = format!("{}.{}.{}", numbers[0], numbers[1], numbers[2]);
        for (separator, label) in [('-', &pre), ('+', &build)] {
            if !label.is_empty() {
                normal.push(separator);
                normal.push_str(label);
            }
        }
        if normal.len() > MAX_VERSION_BYTES {
            return Err(bad("it is longer than 96 bytes once all three numbers are written"));
        }
        Ok(Self { numbers, pre: PreRelease(pre), build, normal })
    }

    /// Parses a module version as the clients do: with or without a `v` in front (module registry protocol).
    pub fn parse_lenient(given: &str) -> Result<Self, BadAddress> {
        Self::parse(given.strip_prefix('v').unwrap_or(given))
    }

    /// The normal form, which clients send and larder uses in URLs and file names.
    pub fn as_str(&self) -> &str {
        &self.normal
    }

    /// Returns true for a pre-release, which clients accept only where a constraint names it exactly.
    pub fn is_pre_release(&self) -> bool {
        !self.pre.is_empty()
    }

    /// The pre-release part; empty for a release.
    pub(super) fn pre(&self) -> &PreRelease {
        &self.pre
    }

    /// Major, minor and patch.
    pub(super) fn numbers(&self) -> [u64; 3] {
        self.numbers
    }

    /// SemVer precedence: build metadata is ignored.
    pub(super) fn precedence(&self, other: &Self) -> Ordering {
        (self.numbers, &self.pre).cmp(&(other.numbers, &other.pre))
    }
}

/// The pre-release part of a version; empty for a release. Ordered by SemVer 2.0.0, section 11: a pre-release comes before
/// its release; numbers before words.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PreRelease(pub(super) String);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identifier<'a> {
    Number(u64),
    Word(&'a str),
}

impl PreRelease {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn identifiers(&self) -> impl Iterator<Item = Identifier<'_>> {
        self.0.split('.').map(|identifier| identifier.parse().map_or(Identifier::Word(identifier), Identifier::Number))
    }
}

impl Ord for PreRelease {
    fn cmp(&self, other: &Self) -> Ordering {
        self.is_empty().cmp(&other.is_empty()).then_with(|| self.identifiers().cmp(other.identifiers()))
    }
}

impl PartialOrd for PreRelease {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn the_size_limit_applies_to_the_normal_form_too() {
        let label = "a".repeat(90);
        for core in ["1.2.3", "1.2", "1"] {
            assert_eq!(Version::parse(&format!("{core}-{label}")).map(|version| version.as_str().len()), Ok(96));
            assert!(Version::parse(&format!("{core}-{label}b")).is_err(), "{core}");
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

    proptest! {
        #[test]
        fn a_parsed_version_parses_to_itself(given in "[0-9v.+a-c-]{0,20}|[0-9](\\.[0-9]){0,2}[+-][0-9a-c-]{85,95}") {
            if let Ok(parsed) = Version::parse(&given) {
                prop_assert_eq!(Version::parse(parsed.as_str()), Ok(parsed.clone()));
                prop_assert_eq!(parsed.cmp(&parsed), Ordering::Equal);
                let json = serde_json::to_string(&parsed).unwrap();
                prop_assert_eq!(serde_json::from_str::<Version>(&json).unwrap(), parsed);
            }
        }

        #[test]
        fn the_order_is_total(given in prop::array::uniform3("[0-2](\\.[01]){0,2}(-[0-2a-]{1,2}(\\.[0-2a-]{1,2})?)?(\\+[01]{1,2})?")) {
            let [a, b, c] = given.map(|given| Version::parse(&given).unwrap());
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&b) == Ordering::Equal, a == b);
            prop_assert!(!(a <= b && b <= c) || a <= c, "{} {} {}", a, b, c);
        }
    }
}
