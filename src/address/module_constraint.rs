//! Version constraints of modules and of `required_version`. Clients parse them with another library than those of
//! providers, and with other rules: `~> 1` matches anything from 1 on, a `v` may precede a version, and a pre-release
//! must be written without a space. Pure. Each rule was observed with Terraform 1.11.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::version::compare_pre;
use super::{BadAddress, Version, constraint_syntax};

/// The term used in error texts.
const KIND: &str = "version constraint of a module";
/// The maximum number of components in the version of a condition.
const MAX_NUMBERS: usize = 16;

/// Conditions on a module version, all of which must hold. Without any, every release matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModuleConstraint {
    conditions: Vec<Condition>,
    /// The single pre-release named in the form that clients require.
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
    Pessimistic,
}

/// A version in a condition: any number of components.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PartialVersion {
    /// At least three.
    numbers: Vec<u64>,
    /// The number of written components.
    written: usize,
    pre: String,
}

impl ModuleConstraint {
    /// Parses conditions separated by commas. A version without an operator is exact.
    ///
    /// # Errors
    /// [`BadAddress`]: clients would refuse it too, or it is too long.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let texts = constraint_syntax::of(KIND, given)?;
        let conditions: Option<Vec<Condition>> = texts.iter().map(|text| Condition::parse(text)).collect();
        let conditions = conditions.ok_or_else(|| {
            let reason =
                "between commas stand conditions like 1.2.3, >= 1.2, < 2.0, != 1.5.0 and ~> 1.2, and nothing else";
            BadAddress::new(KIND, given, reason)
        })?;
        let pre_release = match texts.as_slice() {
            // Clients do not recognise the pre-release after a space behind the operator, a `v`, or beside a second
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

    /// Returns true if a condition contains a pre-release.
    pub fn names_a_pre_release(&self) -> bool {
        self.conditions.iter().any(|condition| !condition.limit.pre.is_empty())
    }

    /// Returns true if a release, no older than this one, could meet all constraints.
    pub fn could_all_be_met_from(oldest: &Version, all: &[Self]) -> bool {
        let limits = all.iter().flat_map(|one| &one.conditions).map(|condition| &condition.limit.numbers);
        // Candidates: each limit, the next version after it, and the oldest version.
        let starts = limits.flat_map(|numbers| {
            [[numbers[0], numbers[1], numbers[2]], [numbers[0], numbers[1], numbers[2].saturating_add(1)]]
        });
        let starts = std::iter::once(oldest.numbers()).chain(starts).filter(|numbers| *numbers >= oldest.numbers());
        let mut starts =
            starts.filter_map(|[major, minor, patch]| Version::parse(&format!("{major}.{minor}.{patch}")).ok());
        starts.any(|version| all.iter().all(|one| one.allows(&version)))
    }

    /// The version that clients choose from a list. Of two that differ in build metadata only, the first.
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
        let (operator, rest) = [
            ("!=", Operator::NotEqual),
            (">=", Operator::GreaterOrEqual),
            ("<=", Operator::LessOrEqual),
            ("~>", Operator::Pessimistic),
            ("=", Operator::Equal),
            (">", Operator::Greater),
            ("<", Operator::Less),
        ]
        .into_iter()
        .find_map(|(sign, operator)| given.strip_prefix(sign).map(|rest| (operator, rest)))
        .unwrap_or((Operator::Equal, given));
        Some(Self { operator, limit: PartialVersion::parse(rest.trim_ascii_start())? })
    }

    fn allows(&self, version: &Version) -> bool {
        let limit = &self.limit;
        let order = limit.precedence(version).reverse();
        match self.operator {
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Greater => limit.can_be_beside(version) && order.is_gt(),
            Operator::GreaterOrEqual => limit.can_be_beside(version) && order.is_ge(),
            Operator::Less => limit.can_be_beside(version) && order.is_lt(),
            Operator::LessOrEqual => limit.can_be_beside(version) && order.is_le(),
            Operator::Pessimistic => limit.can_be_beside(version) && order.is_ge() && limit.is_prefix_of(version),
        }
    }
}

impl PartialVersion {
    /// `v1.2.3.4-pre+build`: a `v` or none, numbers, and a pre-release with or without its hyphen.
    fn parse(given: &str) -> Option<Self> {
        let given = given.strip_prefix('v').unwrap_or(given);
        let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
        let (core, rest) = given.split_at(end);
        let numbers = core.split('.').map(|number| number.parse::<i64>().ok()?.try_into().ok());
        let mut numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
        let written = numbers.len();
        if written > MAX_NUMBERS {
            return None;
        }
        numbers.resize(written.max(3), 0);
        let (pre, build) = rest.split_once('+').map_or((rest, None), |(pre, build)| (pre, Some(build)));
        let is_label = |label: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '~';
            label.split('.').all(|part| !part.is_empty() && part.chars().all(known))
        };
        let pre = match pre.strip_prefix('-') {
            Some("") => "-",
            Some(pre) => pre,
            None => pre,
        };
        let is_well = (pre.is_empty() || is_label(pre)) && build.is_none_or(is_label);
        is_well.then(|| Self { numbers, written, pre: pre.to_owned() })
    }

    /// Compares with a version; missing components are 0.
    fn precedence(&self, version: &Version) -> Ordering {
        let theirs = version.numbers();
        let theirs = |place: usize| theirs.get(place).copied().unwrap_or(0);
        let numbers = self.numbers.iter().enumerate().map(|(place, number)| number.cmp(&theirs(place)));
        let numbers = numbers.fold(Ordering::Equal, Ordering::then);
        match numbers {
            // With a fourth component, pre-releases are ignored.
            Ordering::Equal if self.numbers.len() == 3 => compare_pre(&self.pre, version.pre()),
            numbers => numbers,
        }
    }

    /// Pre-releases are only compared with those of the same version, and with releases.
    fn can_be_beside(&self, version: &Version) -> bool {
        match (self.pre.is_empty(), version.is_pre_release()) {
            (_, false) => true,
            (true, true) => false,
            (false, true) => self.numbers == version.numbers(),
        }
    }

    /// Returns true if all written components but the last equal those of the version.
    fn is_prefix_of(&self, version: &Version) -> bool {
        let theirs = version.numbers();
        let only_pre_releases = !self.pre.is_empty() && !version.is_pre_release();
        self.numbers.len() == theirs.len()
            && !only_pre_releases
            && self.numbers[..self.written.saturating_sub(1)] == theirs[..self.written.saturating_sub(1)]
            && self.numbers[2] <= theirs[2]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [&str; 12] = [
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
        let listed: Vec<Version> = ALL.iter().map(|version| Version::parse(version).unwrap()).collect();
        let constraint = ModuleConstraint::parse(constraint).unwrap();
        constraint.newest(&listed).map(ToString::to_string)
    }

    /// Each line is the choice of Terraform 1.11.4 from this list; empty where it found no match.
    #[test]
    fn the_version_is_the_one_that_terraform_takes() {
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
        let listed: Vec<Version> = ALL.iter().map(|version| Version::parse(version).unwrap()).collect();
        let anything = ModuleConstraint::default();
        assert_eq!(anything.newest(&listed).map(ToString::to_string).as_deref(), Some("3.1.0"));
    }

    #[test]
    fn what_terraform_refuses_is_refused() {
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
    fn whether_a_release_could_meet_them_all_is_known() {
        let oldest = Version::parse("0.13.0").unwrap();
        let met = |given: &[&str]| {
            let all: Vec<_> = given.iter().map(|given| ModuleConstraint::parse(given).unwrap()).collect();
            ModuleConstraint::could_all_be_met_from(&oldest, &all)
        };
        for given in [
            &[][..],
            &[">= 1.3", "< 2"],
            &["> 1.5.7", "!= 1.5.8"],
            &["~> 1.0"],
            &["!= 0.13.0"],
            &[">= 99"],
            &["~> 0.12"],
            &["0.13"],
        ] {
            assert!(met(given), "{given:?}");
        }
        for given in [
            &["~> 0.11.0"][..],
            &["< 0.12"],
            &["= 0.12.31"],
            &[">= 1.3", "< 1.3"],
            &["~> 1.2.0", "> 1.3"],
            &["<= 0.12.99"],
        ] {
            assert!(!met(given), "{given:?}");
        }
        assert!(ModuleConstraint::parse(">= 1, < 2.0.0-beta").unwrap().names_a_pre_release());
    }

    #[test]
    fn of_two_builds_of_one_version_the_first_that_is_listed_is_taken() {
        let listed = ["1.0.0+b", "1.0.0+a", "0.1.0"].map(|version| Version::parse(version).unwrap());
        assert_eq!(ModuleConstraint::default().newest(&listed), Some(&listed[0]));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
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
