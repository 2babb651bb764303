//! Version constraints of modules and of `required_version`. Clients parse them with another library than those of
//! providers, and with other rules: `~> 1` matches anything from 1 on, a `v` may precede a version, and a pre-release
//! must be written without a space. Each rule was observed with Terraform 1.11.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::constraint::split_conditions;
use super::version::compare_pre;
use super::{BadAddress, Version};

/// The term used in error texts.
const KIND: &str = "version constraint of a module";
/// The maximum number of components in the version of a condition.
const MAX_COMPONENTS: usize = 16;

/// Conditions on a module version, all of which must hold. Without any, every release matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModuleConstraint {
    conditions: Vec<Condition>,
    /// The pre-release that the constraint asks for, if it is written in the one form that clients accept.
    pre_release: Option<Version>,
    given: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Condition {
    operator: Operator,
    limit: PartialVersion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    /// `~>`: the last written component may grow.
    Pessimistic,
}

/// A version in a condition: any number of components.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PartialVersion {
    /// The components, padded with zeros to at least three.
    numbers: Vec<u64>,
    /// The number of components that the text spells out.
    written_count: usize,
    pre: String,
}

impl ModuleConstraint {
    /// Parses conditions separated by commas. A version without an operator is exact.
    ///
    /// # Errors
    /// [`BadAddress`]: clients would refuse the constraint too, or it is too long.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let texts = split_conditions(KIND, given)?;
        let conditions: Option<Vec<Condition>> = texts.iter().map(|text| Condition::parse(text)).collect();
        let conditions = conditions.ok_or_else(|| {
            let reason =
                "write conditions like 1.2.3, >= 1.2, < 2.0, != 1.5.0 and ~> 1.2 between commas, and nothing else";
            BadAddress::new(KIND, given, reason)
        })?;
        let pre_release = match texts.as_slice() {
            // Clients do not recognise a pre-release if a space or a `v` precedes it, or if there is a second
            // condition.
            [text] => Version::parse(text.trim_ascii().trim_start_matches('=')).ok().filter(Version::is_pre_release),
            _ => None,
        };
        Ok(Self { conditions, pre_release, given: given.split_ascii_whitespace().collect::<Vec<_>>().join(" ") })
    }

    /// Returns true if clients would accept the version.
    pub fn allows(&self, version: &Version) -> bool {
        if version.is_pre_release() && self.pre_release.as_ref() != Some(version) {
            return false;
        }
        self.conditions.iter().all(|condition| condition.allows(version))
    }

    /// The version that clients choose from a list. Of two versions that differ in build metadata only, clients choose
    /// the one that is listed first.
    pub fn newest<'a>(&self, listed: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
        let allowed = listed.into_iter().filter(|version| self.allows(version));
        allowed.fold(None, |best: Option<&Version>, version| match best {
            Some(best) if version.precedence(best).is_le() => Some(best),
            _ => Some(version),
        })
    }
}

impl fmt::Display for ModuleConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

impl Condition {
    fn parse(given: &str) -> Option<Self> {
        let given = given.trim_ascii();
        let (operator, version) = [
            ("!=", Operator::NotEqual),
            (">=", Operator::GreaterOrEqual),
            ("<=", Operator::LessOrEqual),
            ("~>", Operator::Pessimistic),
            ("=", Operator::Equal),
            (">", Operator::Greater),
            ("<", Operator::Less),
        ]
        .into_iter()
        .find_map(|(symbol, operator)| given.strip_prefix(symbol).map(|version| (operator, version)))
        .unwrap_or((Operator::Equal, given));
        Some(Self { operator, limit: PartialVersion::parse(version.trim_ascii_start())? })
    }

    fn allows(&self, version: &Version) -> bool {
        let limit = &self.limit;
        let version_to_limit = limit.precedence(version).reverse();
        match self.operator {
            Operator::Equal => version_to_limit.is_eq(),
            Operator::NotEqual => version_to_limit.is_ne(),
            Operator::Greater => limit.can_be_compared_with(version) && version_to_limit.is_gt(),
            Operator::GreaterOrEqual => limit.can_be_compared_with(version) && version_to_limit.is_ge(),
            Operator::Less => limit.can_be_compared_with(version) && version_to_limit.is_lt(),
            Operator::LessOrEqual => limit.can_be_compared_with(version) && version_to_limit.is_le(),
            Operator::Pessimistic => {
                limit.can_be_compared_with(version) && version_to_limit.is_ge() && limit.is_prefix_of(version)
            }
        }
    }
}

impl PartialVersion {
    /// Parses `v1.2.3.4-pre+build`. The `v`, the hyphen, the pre-release and the build are optional.
    fn parse(given: &str) -> Option<Self> {
        let given = given.strip_prefix('v').unwrap_or(given);
        let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
        let (core, suffix) = given.split_at(end);
        let numbers = core.split('.').map(|number| number.parse::<i64>().ok()?.try_into().ok());
        let mut numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
        let written_count = numbers.len();
        if written_count > MAX_COMPONENTS {
            return None;
        }
        numbers.resize(written_count.max(3), 0);
        let (pre, build) = suffix.split_once('+').map_or((suffix, None), |(pre, build)| (pre, Some(build)));
        let is_label = |label: &str| {
            let is_label_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '~';
            label.split('.').all(|identifier| !identifier.is_empty() && identifier.chars().all(is_label_char))
        };
        let pre = match pre.strip_prefix('-') {
            Some("") => "-",
            Some(pre) => pre,
            None => pre,
        };
        let is_valid = (pre.is_empty() || is_label(pre)) && build.is_none_or(is_label);
        is_valid.then(|| Self { numbers, written_count, pre: pre.to_owned() })
    }

    /// Compares this limit with a version. Components that one of them lacks count as 0.
    fn precedence(&self, version: &Version) -> Ordering {
        let version_numbers = version.numbers();
        let version_number = |index: usize| version_numbers.get(index).copied().unwrap_or(0);
        let orders = self.numbers.iter().enumerate().map(|(index, number)| number.cmp(&version_number(index)));
        match orders.fold(Ordering::Equal, Ordering::then) {
            // With a fourth component, pre-releases are ignored.
            Ordering::Equal if self.numbers.len() == 3 => compare_pre(&self.pre, version.pre()),
            order => order,
        }
    }

    /// Returns true if clients compare the version with this limit at all. A pre-release is compared only with a limit
    /// that is a pre-release of the same numbers.
    fn can_be_compared_with(&self, version: &Version) -> bool {
        match (self.pre.is_empty(), version.is_pre_release()) {
            (_, false) => true,
            (true, true) => false,
            (false, true) => self.numbers == version.numbers(),
        }
    }

    /// Returns true if all written components but the last equal those of the version, as `~>` requires.
    fn is_prefix_of(&self, version: &Version) -> bool {
        let version_numbers = version.numbers();
        let fixed_count = self.written_count.saturating_sub(1);
        let is_pre_release_limit_of_release = !self.pre.is_empty() && !version.is_pre_release();
        self.numbers.len() == version_numbers.len()
            && !is_pre_release_limit_of_release
            && self.numbers[..fixed_count] == version_numbers[..fixed_count]
            && self.numbers[2] <= version_numbers[2]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VERSIONS: [&str; 12] = [
        "0.9.0",
        "1.0.0-beta.1",
        "1.0.0",
        "1.0.1",
        "1.2.0",
        "1.2.3",
        "1.3.0",
        "2.0.0-rc.1",
        "2.0.0",
        "3.1.0-alpha",
        "3.1.0",
        "3.1.1-beta2",
    ];

    fn newest(constraint: &str) -> Option<String> {
        let listed: Vec<Version> = VERSIONS.iter().map(|version| Version::parse(version).unwrap()).collect();
        let constraint = ModuleConstraint::parse(constraint).unwrap();
        constraint.newest(&listed).map(ToString::to_string)
    }

    /// Each line is the choice of Terraform 1.11.4 from `VERSIONS`; empty where Terraform found no match.
    #[test]
    fn the_newest_version_is_the_one_that_terraform_chooses() {
        for (constraint, chosen) in [
            ("~> 1", "3.1.0"),
            ("~>1", "3.1.0"),
            ("~> 1.2", "1.3.0"),
            ("~> 1.2.0", "1.2.3"),
            ("~> 1.2.1", "1.2.3"),
            ("~> 0", "3.1.0"),
            ("~> 0.9", "0.9.0"),
            ("~> v1.0", "1.3.0"),
            ("~> 1.0, ~> 1.2.0", "1.2.3"),
            ("~> 1.2.3.0", ""),
            ("1.2", "1.2.0"),
            ("=1.2.0", "1.2.0"),
            ("= 1.2", "1.2.0"),
            ("v1.2.0", "1.2.0"),
            ("01.02.0", "1.2.0"),
            ("1.2.3.0", "1.2.3"),
            ("1.0.0+b", "1.0.0"),
            ("!= 3.1.0", "2.0.0"),
            ("!=3.1.0,!= 2.0.0", "1.3.0"),
            ("> 1.2.3", "3.1.0"),
            (">= 1.2.3, < 2", "1.3.0"),
            (">= 1, <= 2, != 2.0.0", "1.3.0"),
            ("\t>=\t1.0\t", "3.1.0"),
            (">= 1.2.3.1", "3.1.0"),
            ("<= 1.0", "1.0.0"),
            ("<1", "0.9.0"),
            (">0", "3.1.0"),
            ("1.0.0-beta.1", "1.0.0-beta.1"),
            ("=1.0.0-beta.1", "1.0.0-beta.1"),
            (" 1.0.0-beta.1 ", "1.0.0-beta.1"),
            ("=1.0.0-beta.1 ", "1.0.0-beta.1"),
            ("1.0-beta.1", "1.0.0-beta.1"),
            ("3.1-alpha", "3.1.0-alpha"),
            ("3.1.1-beta2", "3.1.1-beta2"),
            ("= 1.0.0-beta.1", ""),
            ("v1.0.0-beta.1", ""),
            ("=v1.0.0-beta.1", ""),
            ("1.0.0-beta.1, 1.0.0-beta.1", ""),
            ("1.0.0-beta.1,< 2", ""),
            ("~> 1.0.0-beta.1", ""),
            ("~> 2.0.0-rc", ""),
            (">= 1.0.0-beta.1, < 1.0.0", ""),
            ("1.0.0beta1", ""),
            ("3.1.1beta2", ""),
            ("1.0.0-", ""),
            ("1-beta", ""),
            (">= 1.0.0-beta.1", "3.1.0"),
            (">=1.0.0-beta.1", "3.1.0"),
            (">3.0.0-a", "3.1.0"),
            ("> 3.1.0-alpha", "3.1.0"),
            ("<=2.0.0-rc.1", "1.3.0"),
            ("<2-beta", "1.3.0"),
            ("!= 1.0.0-beta.1", "3.1.0"),
        ] {
            assert_eq!(newest(constraint).unwrap_or_default(), chosen, "{constraint}");
        }
        let listed: Vec<Version> = VERSIONS.iter().map(|version| Version::parse(version).unwrap()).collect();
        let anything = ModuleConstraint::default();
        assert_eq!(anything.newest(&listed).map(ToString::to_string).as_deref(), Some("3.1.0"));
    }

    #[test]
    fn constraints_that_terraform_refuses_are_refused() {
        for given in [
            "",
            " ",
            ">=",
            "=> 1",
            "== 1",
            "1.*",
            "1.x",
            "^1.0",
            "~1.0",
            ">= 1.0 < 2",
            ">=1.0.0 <2",
            ">= 1.0 ,, < 2",
            ">= 1.0,",
            "2.0.0-rc.1 || 1.0",
            "99999999999999999999",
            "latest",
            "*",
            "1..2",
            &"1".repeat(513),
            &["1"; 17].join(","),
        ] {
            assert!(ModuleConstraint::parse(given).is_err(), "{given:?}");
        }
    }

    #[test]
    fn of_two_builds_of_one_version_the_first_listed_is_chosen() {
        let listed = ["1.0.0+b", "1.0.0+a", "0.1.0"].map(|version| Version::parse(version).unwrap());
        assert_eq!(ModuleConstraint::default().newest(&listed), Some(&listed[0]));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused_without_a_panic(
            given in "(([=!<>~]{0,2} ?v?[0-9](\\.[0-9]){0,4}([+-][a-c0-9.~]{1,3}){0,2} ?),?){1,3}|\\PC{0,40}",
            version in "[0-3](\\.[0-3]){0,2}(-[ab]\\.[0-2])?(\\+[ab])?",
        ) {
            if let Ok(constraint) = ModuleConstraint::parse(&given) {
                let version = Version::parse(&version).unwrap();
                prop_assert_eq!(constraint.newest([&version]).is_some(), constraint.allows(&version));
                prop_assert!(!constraint.to_string().contains(char::is_control));
            }
        }
    }
}
