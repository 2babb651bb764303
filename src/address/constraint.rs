//! Version constraints as the clients read them for providers: `>= 1.2, < 2.0`, `~> 5.0`, `!= 5.1.3`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BadAddress, Version};

/// The term used in error texts.
const KIND: &str = "version constraint";

/// Version conditions that must all be met.
///
/// A pre-release matches only where a `=` names it. Build metadata matters to `=` and `!=` only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Constraint(Vec<Condition>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Condition {
    operator: Operator,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    /// `~> 1.2.3` allows larger patch numbers: `>= 1.2.3, < 1.3`.
    SameMinor,
    /// `~> 1.2` and `~> 1` allow larger minor and patch numbers: `>= 1.2, < 2`.
    SameMajor,
}

impl Constraint {
    /// Parses conditions separated by commas. A version without an operator is exact.
    ///
    /// # Errors
    /// [`BadAddress`]: clients would refuse the constraint too, or it is too long.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let conditions = split_conditions(KIND, given)?;
        conditions.into_iter().map(|condition| Condition::parse(condition, given)).collect::<Result<_, _>>().map(Self)
    }

    /// Combines constraints into one that all their conditions must meet. No constraints at all match every release. A
    /// pre-release matches if one constraint names it with `=` and every other condition allows it.
    pub fn all<'a>(constraints: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(constraints.into_iter().flat_map(|constraint| constraint.0.iter().cloned()).collect())
    }

    /// The number of conditions.
    pub fn number_of_conditions(&self) -> usize {
        self.0.len()
    }

    /// The exact version, if the constraint is a single `=`.
    pub fn exact_version(&self) -> Option<&Version> {
        match self.0.as_slice() {
            [Condition { operator: Operator::Equal, version }] => Some(version),
            _ => None,
        }
    }

    /// The form that clients write into a lock file: each condition once, sorted by version, without `=`.
    pub fn lock_file_text(&self) -> String {
        let mut conditions: Vec<&Condition> = self.0.iter().collect();
        let rank = |condition: &Condition| match condition.operator {
            Operator::Greater => 0,
            Operator::GreaterOrEqual => 1,
            Operator::Equal => 2,
            Operator::SameMinor => 3,
            Operator::SameMajor => 4,
            Operator::LessOrEqual => 5,
            Operator::Less => 6,
            Operator::NotEqual => 7,
        };
        conditions.sort_by(|a, b| a.version.cmp(&b.version).then(rank(a).cmp(&rank(b))));
        conditions.dedup();
        let texts = conditions.into_iter().map(ToString::to_string);
        texts.map(|text| text.trim_start_matches("= ").to_owned()).collect::<Vec<_>>().join(", ")
    }

    /// Returns true if clients would accept the version.
    pub fn allows(&self, version: &Version) -> bool {
        let is_exactly_requested =
            || self.0.iter().any(|condition| condition.operator == Operator::Equal && condition.version == *version);
        (!version.is_pre_release() || is_exactly_requested())
            && self.0.iter().all(|condition| condition.allows(version))
    }
}

impl Condition {
    fn parse(given: &str, constraint: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new(KIND, constraint, reason);
        let given = given.trim_matches(' ');
        let end = given.find(|c: char| !"=!<>~".contains(c)).unwrap_or(given.len());
        let (operator_symbol, text) = given.split_at(end);
        let text = text.strip_prefix(' ').unwrap_or(text);
        if text.starts_with(' ') {
            return Err(bad("clients take one space at most between an operator and its version"));
        }
        if text.is_empty() {
            return Err(bad("one of its conditions has no version"));
        }
        if text.contains('*') {
            return Err(bad("wildcards are not supported; write ~> 5.0 instead of 5.*"));
        }
        let version = Version::parse(text)?;
        let operator = match operator_symbol {
            "" | "=" => Operator::Equal,
            "!=" => Operator::NotEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            "~>" if component_count(text) == 3 => Operator::SameMinor,
            "~>" => Operator::SameMajor,
            _ => return Err(bad("its operators can be =, !=, >, >=, <, <= and ~>")),
        };
        Ok(Self { operator, version })
    }

    fn allows(&self, version: &Version) -> bool {
        let order = version.precedence(&self.version);
        // The upper limit of `~>` is a release. A pre-release of that very release precedes it, so it is allowed:
        // 2.0.0-rc.1 matches `~> 1.0` if another condition names it.
        let precedes_release = |limit: [u64; 3]| (version.numbers(), !version.is_pre_release()) < (limit, true);
        let [major, minor, _] = self.version.numbers();
        match self.operator {
            Operator::Equal => *version == self.version,
            Operator::NotEqual => *version != self.version,
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::SameMinor => order.is_ge() && precedes_release([major, minor.saturating_add(1), 0]),
            Operator::SameMajor => order.is_ge() && precedes_release([major.saturating_add(1), 0, 0]),
        }
    }
}

/// The number of components that the text spells out: 2 for `1.2`.
fn component_count(version: &str) -> usize {
    version.split(['-', '+']).next().unwrap_or_default().split('.').count()
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, condition) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{condition}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operator, version } = self;
        match operator {
            Operator::Equal => write!(f, "= {version}"),
            Operator::NotEqual => write!(f, "!= {version}"),
            Operator::Greater => write!(f, "> {version}"),
            Operator::GreaterOrEqual => write!(f, ">= {version}"),
            Operator::Less => write!(f, "< {version}"),
            Operator::LessOrEqual => write!(f, "<= {version}"),
            Operator::SameMinor => write!(f, "~> {version}"),
            Operator::SameMajor => match version.as_str().split_once(['-', '+']) {
                // Two components are enough for `SameMajor`. A pre-release or build suffix follows them.
                Some((core, _)) => write!(f, "~> {}{}", major_minor(core), &version.as_str()[core.len()..]),
                None => write!(f, "~> {}", major_minor(version.as_str())),
            },
        }
    }
}

/// Cuts `1.2.3` to `1.2`.
fn major_minor(core: &str) -> &str {
    core.rsplit_once('.').map_or(core, |(major_minor, _)| major_minor)
}

/// The longest accepted constraint, in bytes.
const MAX_CONSTRAINT_BYTES: usize = 512;
/// The most conditions in one constraint.
const MAX_CONDITIONS: usize = 16;

/// Splits a constraint into its conditions.
///
/// # Errors
/// [`BadAddress`]: the constraint exceeds a limit.
pub(super) fn split_conditions<'a>(kind: &'static str, given: &'a str) -> Result<Vec<&'a str>, BadAddress> {
    let bad = |reason| BadAddress::new(kind, given, reason);
    if given.len() > MAX_CONSTRAINT_BYTES {
        return Err(bad("it is longer than 512 bytes"));
    }
    let conditions: Vec<&str> = given.split(',').collect();
    if conditions.len() > MAX_CONDITIONS {
        return Err(bad("it has more than 16 conditions"));
    }
    Ok(conditions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allowed<'a>(constraint: &str, versions: &[&'a str]) -> Vec<&'a str> {
        let constraint = Constraint::parse(constraint).unwrap();
        let allows = |version: &&&str| constraint.allows(&Version::parse(version).unwrap());
        versions.iter().filter(allows).copied().collect()
    }

    #[test]
    fn constraints_allow_the_versions_that_clients_accept() {
        const VERSIONS: [&str; 10] =
            ["0.9.9", "1.0.0-beta.1", "1.0.0", "1.0.1", "1.2.0", "1.2.3", "1.3.0", "2.0.0-rc.1", "2.0.0", "10.0.0"];
        for (constraint, versions) in [
            ("1.2", &["1.2.0"][..]),
            ("= 1.2.0", &["1.2.0"]),
            ("=1.2.0", &["1.2.0"]),
            ("!= 1.0.0, < 1.2", &["0.9.9", "1.0.1"]),
            ("> 1.2.3", &["1.3.0", "2.0.0", "10.0.0"]),
            (">= 1.2.3,<2", &["1.2.3", "1.3.0"]),
            ("<= 1.0", &["0.9.9", "1.0.0"]),
            ("~> 1", &["1.0.0", "1.0.1", "1.2.0", "1.2.3", "1.3.0"]),
            ("~> 1.2", &["1.2.0", "1.2.3", "1.3.0"]),
            ("~> 1.2.0", &["1.2.0", "1.2.3"]),
            ("~> 1.2.1", &["1.2.3"]),
            ("~> 1.0.0-beta.1", &["1.0.0", "1.0.1"]),
            ("~> 1.0-beta.1", &["1.0.0", "1.0.1", "1.2.0", "1.2.3", "1.3.0"]),
            // Pre-releases match an exact condition only.
            ("1.0.0-beta.1", &["1.0.0-beta.1"]),
            (">= 1.0.0-beta.1, < 1.0.1", &["1.0.0"]),
            ("= 1.0.0-beta.1, < 2.0.0", &["1.0.0-beta.1"]),
            ("= 2.0.0-rc.1, ~> 1.0", &["2.0.0-rc.1"]),
            ("= 2.0.0-rc.1, ~> 1.2.0", &[]),
            ("= 1.0.0-beta.1, ~> 0.9.0", &[]),
            ("= 1.0.0-beta.1, ~> 0.9", &["1.0.0-beta.1"]),
            ("!= 2.0.0-rc.1, >= 2.0.0-rc.1", &["2.0.0", "10.0.0"]),
            ("= 1.0.0, = 1.0.1", &[]),
            ("  >= 1.2.3  ,  <2  ", &["1.2.3", "1.3.0"]),
        ] {
            assert_eq!(allowed(constraint, &VERSIONS), versions, "{constraint}");
        }
    }

    #[test]
    fn build_metadata_matters_to_equal_and_not_equal_only() {
        const BUILDS: [&str; 3] = ["1.0.0", "1.0.0+a", "1.0.0+b"];
        for (constraint, versions) in [
            ("1.0.0", &["1.0.0"][..]),
            ("= 1.0.0+a", &["1.0.0+a"]),
            ("!= 1.0.0", &["1.0.0+a", "1.0.0+b"]),
            (">= 1.0.0+b", &BUILDS),
            ("<= 1.0.0", &BUILDS),
            ("> 1.0.0", &[]),
            ("~> 1.0+b", &BUILDS),
        ] {
            assert_eq!(allowed(constraint, &BUILDS), versions, "{constraint}");
        }
    }

    /// The form that Terraform 1.11.4 expects in a lock file.
    #[test]
    fn the_lock_file_form_is_that_of_terraform() {
        for (given, locked) in [
            (
                "3.0.0, < 3.0.0, <= 3.0.0, != 3.0.0, ~> 3.0, ~> 3.0.0, > 3.0.0, >= 3.0.0, < 2, >= 3.0.1, ~> 3.1",
                "< 2.0.0, > 3.0.0, >= 3.0.0, 3.0.0, ~> 3.0.0, ~> 3.0, <= 3.0.0, < 3.0.0, != 3.0.0, >= 3.0.1, ~> 3.1",
            ),
            (
                "~> 3.0.0-beta, >= 3.0.0, 3.0.0-beta, >= 3.0.0+b, >= 3.0.0+a",
                "3.0.0-beta, ~> 3.0.0-beta, >= 3.0.0, >= 3.0.0+a, >= 3.0.0+b",
            ),
            ("~> 3, ~> 3.0", "~> 3.0"),
            ("= 3.2.2", "3.2.2"),
        ] {
            assert_eq!(Constraint::parse(given).unwrap().lock_file_text(), locked);
        }
    }

    #[test]
    fn invalid_constraints_are_refused() {
        for (given, reason) in [
            ("", "has no version"),
            (">=", "has no version"),
            (">= 1.0,", "has no version"),
            (",1.0", "has no version"),
            ("=> 1.0", "its operators can be"),
            ("== 1.0", "its operators can be"),
            ("~ 1.0", "its operators can be"),
            ("^1.0", "is not a version"),
            ("1.0 2.0", "is not a version"),
            (">= v1.0", "\"v\" in front"),
            ("5.*", "wildcards"),
            (">=  1.0", "one space"),
            (">= 1.0, ~>   1.2", "one space"),
            ("~> 1.2.3.4", "more than three"),
            (&"1".repeat(513), "longer than"),
            (&["1"; 17].join(","), "more than 16"),
        ] {
            let refused = Constraint::parse(given).unwrap_err().to_string();
            assert!(refused.contains(reason), "{given}: {refused}");
        }
    }

    #[test]
    fn the_exact_version_of_a_single_equal() {
        let exact_version = |given| Constraint::parse(given).unwrap().exact_version().map(ToString::to_string);
        assert_eq!(exact_version("= 1.2"), Some("1.2.0".to_owned()));
        assert_eq!(exact_version("1.2.0-rc.1"), Some("1.2.0-rc.1".to_owned()));
        assert_eq!((exact_version(">= 1.2"), exact_version("1.2, 1.2")), (None, None));
    }

    /// Observed with Terraform 1.11: a module with `>= 1.0`, and its caller with the pre-release.
    #[test]
    fn combined_constraints_allow_what_each_of_them_allows() {
        let combined = |given: &[&str]| {
            let constraints: Vec<Constraint> = given.iter().map(|given| Constraint::parse(given).unwrap()).collect();
            Constraint::all(&constraints)
        };
        let allows = |given: &[&str], version| combined(given).allows(&Version::parse(version).unwrap());
        assert!(allows(&["~> 1.0", "!= 1.2.0"], "1.1.0") && !allows(&["~> 1.0", "!= 1.2.0"], "1.2.0"));
        assert!(allows(&[">= 1.0", "2.0.0-rc.1"], "2.0.0-rc.1"));
        assert!(!allows(&[">= 1.0", "2.0.0-rc.1"], "2.0.0") && !allows(&["< 2.0.0-rc", "2.0.0-rc.1"], "2.0.0-rc.1"));
        assert!(allows(&[], "1.0.0") && !allows(&[], "1.0.0-rc.1"));
    }

    proptest! {
        #[test]
        fn display_round_trips(
            given in "(([=!<>~]{0,2} ?[0-9](\\.[0-9]){0,3}([+-][a-c0-9.]{1,3}){0,2} ?),?){1,3}|\\PC{0,40}",
            version in "[0-3](\\.[0-3]){0,2}(-[ab]\\.[0-2])?(\\+[ab])?",
        ) {
            if let Ok(constraint) = Constraint::parse(&given) {
                let printed = Constraint::parse(&constraint.to_string());
                prop_assert_eq!(printed.as_ref(), Ok(&constraint));
                let version = Version::parse(&version).unwrap();
                prop_assert_eq!(printed.unwrap().allows(&version), constraint.allows(&version));
            }
        }

        #[test]
        fn operators_agree_with_each_other(pair in prop::array::uniform2("[0-2]\\.[0-2]\\.[0-2](\\+[ab])?")) {
            let [limit, version] = pair;
            let version = Version::parse(&version).unwrap();
            let allows = |operator: &str| Constraint::parse(&format!("{operator} {limit}")).unwrap().allows(&version);
            prop_assert_eq!(allows("<"), !allows(">="));
            prop_assert_eq!(allows(">"), !allows("<="));
            prop_assert_eq!(allows("="), !allows("!="));
            prop_assert!(!allows("~>") || allows(">="));
        }
    }
}
