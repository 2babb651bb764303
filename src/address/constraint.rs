//! Version constraints as the clients read them: `>= 1.2, < 2.0`, `~> 5.0`, `!= 5.1.3`. Clients parse those of modules and
//! of `required_version` with another library than those of providers. The grammar is almost the same, the rules are not.

use std::cmp::Ordering;
use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use super::{BadAddress, Version};

/// The longest constraint, in bytes.
const MAX_CONSTRAINT_BYTES: usize = 512;
/// The most conditions of a constraint.
const MAX_CONDITIONS: usize = 16;

/// The operator of a condition, in the order of lock files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Operator {
    Greater,
    GreaterOrEqual,
    Equal,
    /// `~>`: the last written component may grow.
    Pessimistic,
    LessOrEqual,
    Less,
    NotEqual,
}

/// The operators as written. Of two that begin in the same way, the longer comes first.
const OPERATORS: [(&str, Operator); 7] = [
    ("!=", Operator::NotEqual),
    (">=", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
    ("~>", Operator::Pessimistic),
    ("=", Operator::Equal),
    (">", Operator::Greater),
    ("<", Operator::Less),
];

impl Operator {
    /// True if the order of a version and the version in the condition meets the comparison. The upper limit of `~>` is
    /// left to the caller.
    fn is_met_by(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual | Self::Pessimistic => order.is_ge(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
        }
    }
}

/// Splits a constraint into its conditions.
///
/// # Errors
/// [`BadAddress`]: the constraint exceeds a limit.
fn split_conditions<'a>(kind: &'static str, given: &'a str) -> Result<Vec<&'a str>, BadAddress> {
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

/// The term for constraints of providers in error texts.
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
    /// 2 for `~> 1.2` and `~> 1`, which allow larger minor and patch numbers: `>= 1.2, < 2`; otherwise 3. `~> 1.2.3`
    /// allows larger patch numbers: `>= 1.2.3, < 1.3`.
    components: usize,
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
            [Condition { operator: Operator::Equal, version, .. }] => Some(version),
            _ => None,
        }
    }

    /// The form that clients write into a lock file: each condition once, sorted by version, without `=`.
    pub fn lock_file_text(&self) -> String {
        let mut conditions: Vec<&Condition> = self.0.iter().collect();
        let rank = |condition: &Condition| (condition.operator, std::cmp::Reverse(condition.components));
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

    /// Returns true if the version lies in the range, in the order of versions: a pre-release too, and one that differs from
    /// an exact version in build metadata only. For rules that forbid, which must not be passed by another spelling.
    pub fn spans(&self, version: &Version) -> bool {
        self.0.iter().all(|condition| match condition.operator {
            Operator::Equal => version.precedence(&condition.version).is_eq(),
            _ => condition.allows(version),
        })
    }
}

impl Constraint {
    /// Returns true if a `!=` names the version, in whatever build metadata. Clients take `5.31.0+build` for another version
    /// than `5.31.0`; a rule must not.
    pub fn excludes(&self, version: &Version) -> bool {
        let excluded = self.0.iter().filter(|condition| condition.operator == Operator::NotEqual);
        excluded.into_iter().any(|condition| version.precedence(&condition.version).is_eq())
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
        let operator = match OPERATORS.iter().find(|(symbol, _)| *symbol == operator_symbol) {
            Some((_, operator)) => *operator,
            None if operator_symbol.is_empty() => Operator::Equal,
            None => return Err(bad("its operators can be =, !=, >, >=, <, <= and ~>")),
        };
        let is_shortened = operator == Operator::Pessimistic && component_count(text) != 3;
        Ok(Self { operator, version, components: if is_shortened { 2 } else { 3 } })
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
            Operator::Pessimistic => {
                let limit = if self.components == 3 {
                    [major, minor.saturating_add(1), 0]
                } else {
                    [major.saturating_add(1), 0, 0]
                };
                order.is_ge() && precedes_release(limit)
            }
            operator => operator.is_met_by(order),
        }
    }
}

/// The number of components that the text spells out: 2 for `1.2`.
fn component_count(version: &str) -> usize {
    version.split(['-', '+']).next().unwrap_or_default().split('.').count()
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&conditions.join(", "))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let symbol = OPERATORS.iter().find(|(_, operator)| *operator == self.operator).map_or("", |(symbol, _)| symbol);
        let version = self.version.as_str();
        let (core, suffix) = version.split_at(version.find(['-', '+']).unwrap_or(version.len()));
        let without_patch = core.rsplit_once('.').filter(|_| self.components == 2);
        let core = without_patch.map_or(core, |(major_minor, _)| major_minor);
        write!(f, "{symbol} {core}{suffix}")
    }
}

/// The term for constraints of modules in error texts.
const MODULE_KIND: &str = "version constraint of a module";

/// Conditions on the version of a module or of the client, all of which must hold. Without any, every release matches.
///
/// `~> 1` matches anything from 1 on, a `v` may precede a version, and a pre-release must be written without a space. Each
/// rule was observed with Terraform 1.11.
#[derive(Debug, Display, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[display("{given}")]
#[serde(try_from = "String", into = "String")]
pub struct ModuleConstraint {
    conditions: Vec<ModuleCondition>,
    /// The pre-release that the constraint asks for, if it is written in the one form that clients accept.
    pre_release: Option<Version>,
    given: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ModuleCondition {
    operator: Operator,
    limit: Version,
    /// The count of numbers that the text of the limit spells out.
    written_count: usize,
}

impl ModuleConstraint {
    /// Parses conditions separated by commas. A version without an operator is exact.
    ///
    /// # Errors
    /// [`BadAddress`]: clients would refuse the constraint too, or it is too long.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let texts = split_conditions(MODULE_KIND, given)?;
        let conditions: Option<Vec<ModuleCondition>> = texts.iter().map(|text| ModuleCondition::parse(text)).collect();
        let conditions = conditions.ok_or_else(|| {
            let reason =
                "write conditions like 1.2.3, >= 1.2, < 2.0, != 1.5.0 and ~> 1.2 between commas, and nothing else";
            BadAddress::new(MODULE_KIND, given, reason)
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

    /// Returns true if the version lies in the range, in the order of versions: a pre-release too. For rules that forbid.
    pub fn spans(&self, version: &Version) -> bool {
        self.conditions.iter().all(|condition| condition.spans(version))
    }

    /// The version that clients choose from a list. Of two versions that differ in build metadata only, clients choose
    /// the one that is listed first.
    pub fn newest<'a>(&self, listed: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
        let allowed = listed.into_iter().filter(|version| self.allows(version));
        allowed.reduce(|best, version| if version.precedence(best).is_gt() { version } else { best })
    }
}

impl ModuleCondition {
    fn parse(given: &str) -> Option<Self> {
        let given = given.trim_ascii();
        let written = OPERATORS.iter().find_map(|(symbol, operator)| Some((*operator, given.strip_prefix(symbol)?)));
        let (operator, version) = written.unwrap_or((Operator::Equal, given));
        let (limit, written_count) = Version::parse_counted(version.trim_ascii_start()).ok()?;
        Some(Self { operator, limit, written_count })
    }

    fn allows(&self, version: &Version) -> bool {
        let is_comparable = match self.operator {
            Operator::Equal | Operator::NotEqual => true,
            Operator::Pessimistic => self.can_be_compared_with(version) && self.is_prefix_of(version),
            _ => self.can_be_compared_with(version),
        };
        is_comparable && self.operator.is_met_by(version.precedence(&self.limit))
    }

    fn spans(&self, version: &Version) -> bool {
        let fixed_count = self.written_count.saturating_sub(1);
        let has_prefix = || self.limit.all_numbers().take(fixed_count).eq(version.all_numbers().take(fixed_count));
        (self.operator != Operator::Pessimistic || has_prefix())
            && self.operator.is_met_by(version.precedence(&self.limit))
    }

    /// Returns true if clients compare the version with the limit at all. A pre-release is compared only with a
    /// pre-release of the same numbers.
    fn can_be_compared_with(&self, version: &Version) -> bool {
        match (self.limit.is_pre_release(), version.is_pre_release()) {
            (_, false) => true,
            (false, true) => false,
            (true, true) => self.limit.all_numbers().eq(version.all_numbers()),
        }
    }

    /// Returns true if all written numbers of the limit but the last equal those of the version, as `~>` requires.
    fn is_prefix_of(&self, version: &Version) -> bool {
        let Self { limit, written_count, .. } = self;
        let is_release_compared_with_pre_release = limit.is_pre_release() && !version.is_pre_release();
        let (last, fixed_count) = (limit.count_of_numbers() - 1, written_count.saturating_sub(1));
        let last_number_of_version = version.all_numbers().nth(last);
        !is_release_compared_with_pre_release
            && last_number_of_version.is_some_and(|number| limit.all_numbers().nth(last) <= Some(number))
            && limit.all_numbers().take(fixed_count).eq(version.all_numbers().take(fixed_count))
    }
}

#[cfg(test)]
mod provider_tests {
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

#[cfg(test)]
mod module_tests {
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

    /// Constraints of modules, as go-version 1.7.0 reads them.
    #[test]
    fn constraints_allow_the_releases_that_clients_accept() {
        let mut count = 0;
        for line in include_str!("../../tests/fixtures/go-version.tsv").lines() {
            if let [constraint, verdict @ ("allows" | "refuses"), version] = line.split('\t').collect::<Vec<_>>()[..] {
                let constraint = ModuleConstraint::parse(constraint).unwrap();
                let is_allowed = constraint.allows(&Version::parse_of_module(version).unwrap());
                assert_eq!(is_allowed, verdict == "allows", "{line}");
                count += 1;
            }
        }
        assert_eq!(count, 600);
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
            version in "[0-3](\\.[0-3]){0,4}(-[ab]\\.[0-2])?(\\+[ab])?",
        ) {
            if let Ok(constraint) = ModuleConstraint::parse(&given) {
                let version = Version::parse_of_module(&version).unwrap();
                prop_assert_eq!(constraint.newest([&version]).is_some(), constraint.allows(&version));
                prop_assert!(!constraint.to_string().contains(char::is_control));
            }
        }
    }
}
