//! Versions as the clients read them, and their order.

use std::cmp::Ordering;
use std::iter::repeat;

use derive_more::Display;
use serde::{Deserialize, Deserializer, Serialize};

use super::BadAddress;

/// The term for versions in error texts.
const KIND: &str = "version";
/// The longest version, in bytes, as given and in normal form: `VERSION.json` must fit into a path segment.
const MAX_VERSION_BYTES: usize = 96;

/// A version in the clients' normal form: `1.2` is `1.2.0`, `01.2.3` is `1.2.3` (provider registry protocol). Providers'
/// versions have three numbers, modules' any count from three on.
///
/// Ordered by SemVer precedence; further numbers count after the third, build metadata only breaks ties.
#[derive(Debug, Display, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[display("{normal}")]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    numbers: [u64; 3],
    /// The numbers after the third; only versions of modules have any.
    further_numbers: Box<[u64]>,
    pre: PreRelease,
    build: Box<str>,
    normal: Box<str>,
}

impl Version {
    /// Parses the version of a provider as the clients do: one to three numbers, then `-PRE` and `+BUILD`; no `v`.
    ///
    /// # Errors
    /// [`BadAddress`]: clients would refuse the version too, or it is longer than 96 bytes.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new(KIND, given, reason);
        if given.starts_with(['v', 'V']) {
            return Err(bad("remove the \"v\" in front of it"));
        }
        let (core_and_pre, build) = split_at_separator(given, '+');
        let (core, pre) = split_at_separator(core_and_pre, '-');
        let mut numbers = Vec::with_capacity(3);
        for component in core.split('.') {
            if numbers.len() == 3 {
                return Err(bad("it has more than three numbers"));
            }
            if component.is_empty() || !component.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad("it must begin with one to three numbers"));
            }
            numbers.push(component.parse().map_err(|_| bad("one of its numbers is too large"))?);
        }
        for label in [pre, build].into_iter().flatten() {
            if !is_label(label, |b| b.is_ascii_alphanumeric() || b == b'-') {
                return Err(bad("what follows - or + must be letters, digits and - between dots"));
            }
        }
        Self::of_parts(given, &numbers, pre.unwrap_or_default(), build.unwrap_or_default())
    }

    /// Parses the version of a module as the clients do: a `v` or none, any count of numbers, then `-PRE` or `PRE` and
    /// `+BUILD` (go-version, `NewVersion`). Every version of a provider is one of a module, too.
    ///
    /// # Errors
    /// [`BadAddress`]: clients would skip the version too, or it is longer than 96 bytes.
    pub fn parse_of_module(given: &str) -> Result<Self, BadAddress> {
        Self::parse_counted(given).map(|(version, _)| version)
    }

    /// Parses the version of a module, and counts the numbers that the text spells out: 2 for `1.2`.
    pub(super) fn parse_counted(given: &str) -> Result<(Self, usize), BadAddress> {
        let bad = |reason| BadAddress::new(KIND, given, reason);
        let text = given.strip_prefix('v').unwrap_or(given);
        let (core, suffix) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
        let (pre, build) = split_at_separator(suffix, '+');
        let mut numbers = Vec::new();
        for component in core.split('.') {
            if component.is_empty() {
                return Err(bad("it must begin with numbers between dots"));
            }
            // Clients read them as signed.
            let number = component.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
            numbers.push(number.ok_or_else(|| bad("one of its numbers is too large"))?);
        }
        let pre = match pre.strip_prefix('-') {
            // Only the hyphen is optional. Where nothing follows it, the hyphen itself is the label, as it is for clients.
            Some(label) if !label.is_empty() && !label.starts_with('.') => label,
            _ => pre,
        };
        let is_label = |label| is_label(label, |b| b.is_ascii_alphanumeric() || b == b'-' || b == b'~');
        if !(pre.is_empty() || is_label(pre)) || !build.is_none_or(is_label) {
            return Err(bad("what follows its numbers or a + must be letters, digits, - and ~ between dots"));
        }
        let written_count = numbers.len();
        Ok((Self::of_parts(given, &numbers, pre, build.unwrap_or_default())?, written_count))
    }

    /// Builds a version of these parts, of which `given` is the text. Numbers that are not written are 0.
    fn of_parts(given: &str, written: &[u64], pre: &str, build: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new(KIND, given, reason);
        if given.len() > MAX_VERSION_BYTES {
            return Err(bad("it is longer than 96 bytes"));
        }
        let number = |index: usize| written.get(index).copied().unwrap_or(0);
        let numbers = [number(0), number(1), number(2)];
        let further_numbers: Box<[u64]> = written.get(3..).unwrap_or_default().into();
        let mut normal = numbers.iter().chain(further_numbers.iter()).map(u64::to_string).collect::<Vec<_>>().join(".");
        for (separator, label) in [('-', pre), ('+', build)] {
            if !label.is_empty() {
                normal.push(separator);
                normal.push_str(label);
            }
        }
        if normal.len() > MAX_VERSION_BYTES {
            return Err(bad("it is longer than 96 bytes once all three numbers are written"));
        }
        let (pre, build) = (PreRelease::parse(pre), build.into());
        Ok(Self { numbers, further_numbers, pre, build, normal: normal.into() })
    }

    /// Deserializes the version of a provider, where a text that only a module could have is wrong.
    ///
    /// # Errors
    /// Those of [`Version::parse`].
    pub fn deserialize_of_provider<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }

    /// The normal form, which clients send and larder uses in URLs and file names.
    pub fn as_str(&self) -> &str {
        &self.normal
    }

    /// Returns true for a pre-release, which clients accept only where a constraint names it exactly.
    pub fn is_pre_release(&self) -> bool {
        self.pre != PreRelease::None
    }

    /// Major, minor and patch.
    pub(super) fn numbers(&self) -> [u64; 3] {
        self.numbers
    }

    /// All numbers: at least three.
    pub(super) fn all_numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.numbers.iter().chain(self.further_numbers.iter()).copied()
    }

    /// The count of all numbers.
    pub(super) fn count_of_numbers(&self) -> usize {
        self.numbers.len() + self.further_numbers.len()
    }

    /// SemVer precedence: build metadata is ignored. Numbers that one version lacks count as 0. If the counts of the
    /// numbers differ, pre-releases are ignored, too (go-version, `Compare`).
    pub(super) fn precedence(&self, other: &Self) -> Ordering {
        let count = self.count_of_numbers().max(other.count_of_numbers());
        let [own, others] = [self, other].map(|version| version.all_numbers().chain(repeat(0)).take(count));
        match own.cmp(others) {
            Ordering::Equal if self.count_of_numbers() == other.count_of_numbers() => self.pre.cmp(&other.pre),
            order => order,
        }
    }
}

/// Splits a text at the first separator, if it has one.
fn split_at_separator(text: &str, separator: char) -> (&str, Option<&str>) {
    text.split_once(separator).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// True if the text is identifiers of these bytes between dots.
fn is_label(text: &str, is_label_byte: impl Fn(u8) -> bool) -> bool {
    text.split('.').all(|identifier| !identifier.is_empty() && identifier.bytes().all(&is_label_byte))
}

/// The pre-release part of a version. Ordered by SemVer 2.0.0, section 11: a pre-release comes before its release; numbers
/// before words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PreRelease {
    Identifiers(Box<[Identifier]>),
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Identifier {
    Number(u64),
    Word(Box<str>),
}

impl PreRelease {
    fn parse(text: &str) -> Self {
        if text.is_empty() {
            return Self::None;
        }
        let identifier = |text: &str| text.parse().map_or_else(|_| Identifier::Word(text.into()), Identifier::Number);
        Self::Identifiers(text.split('.').map(identifier).collect())
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

    /// Versions of modules, as go-version 1.7.0 reads and orders them.
    #[test]
    fn versions_of_modules_are_read_and_ordered_as_the_clients_do() {
        let (mut read, mut ordered) = (0, 0);
        for line in include_str!("../../tests/fixtures/go-version.tsv").lines() {
            let parsed = |text| Version::parse_of_module(text).map(|version| version.to_string());
            match line.split('\t').collect::<Vec<_>>().as_slice() {
                [quoted, normal] => {
                    let given: String = serde_json::from_str(quoted).unwrap();
                    let expected = (*normal != "refused").then(|| (*normal).to_owned());
                    assert_eq!(parsed(&given).ok(), expected, "{given:?}");
                    read += 1;
                }
                [one, sign @ ("<" | "=" | ">"), other] => {
                    let [one, other] = [one, other].map(|text| Version::parse_of_module(text).unwrap());
                    let expected = ["<", "=", ">"].iter().position(|known| known == sign).unwrap();
                    assert_eq!(one.precedence(&other) as i8 + 1, expected as i8, "{line}");
                    assert!(one.precedence(&other).is_eq() || one.cmp(&other) == one.precedence(&other), "{line}");
                    ordered += 1;
                }
                _ => {}
            }
        }
        assert_eq!((read, ordered), (400, 300));
    }

    #[test]
    fn a_version_with_four_numbers_is_one_of_a_module_only() {
        for text in ["1.2.3.4", "v1.2.3", "1.2.3rc1", "1.2.3-rc~1"] {
            let json = serde_json::to_string(text).unwrap();
            let mut deserializer = serde_json::Deserializer::from_str(&json);
            assert!(Version::deserialize_of_provider(&mut deserializer).is_err(), "{text}");
            assert!(Version::parse(text).is_err() && Version::parse_of_module(text).is_ok(), "{text}");
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
        fn a_parsed_version_parses_to_itself(given in "v?[0-9.+a-c~-]{0,20}|[0-9](\\.[0-9]){0,2}[+-][0-9a-c-]{85,95}") {
            let provider = Version::parse(&given);
            let module = Version::parse_of_module(&given);
            prop_assert!(provider.is_err() || provider == module);
            if let Ok(parsed) = module {
                prop_assert_eq!(Version::parse_of_module(parsed.as_str()), Ok(parsed.clone()));
                prop_assert!(!parsed.as_str().contains(['/', '\\']) && parsed.as_str().is_ascii());
                prop_assert_eq!(parsed.cmp(&parsed), Ordering::Equal);
                let json = serde_json::to_string(&parsed).unwrap();
                prop_assert_eq!(serde_json::from_str::<Version>(&json).unwrap(), parsed);
            }
        }

        #[test]
        fn the_order_is_total(given in prop::array::uniform3("[0-2](\\.[01]){0,4}(-[0-2a-]{1,2}(\\.[0-2a-]{1,2})?)?(\\+[01]{1,2})?")) {
            let [a, b, c] = given.map(|given| Version::parse_of_module(&given).unwrap());
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&b) == Ordering::Equal, a == b);
            prop_assert!(!(a <= b && b <= c) || a <= c, "{} {} {}", a, b, c);
        }
    }
}
