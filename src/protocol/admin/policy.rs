//! Policies in the admin API: the rules that a plan tries, and the verdicts of `larder policy test`.

use serde::{Deserialize, Serialize};
use url::form_urlencoded::{Serializer, parse};

use super::routes::POLICY;
use super::{or_problem, short};
use crate::address::{AddressPattern, Hostname, PackageSelector};
use crate::clock::Timestamp;
use crate::mirror::JudgedVersion;
use crate::policy::{Action, Policy, Rule, VersionRange, parse_reason};

/// The most rules that a plan tries.
const MAX_RULES: usize = 1024;

/// A rule, as `[[policy]]` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleText {
    /// The addresses that it is about: `[HOST/]NAMESPACE/TYPE`, `[HOST/]NAMESPACE/NAME/SYSTEM`, or their beginning and a `*`.
    #[serde(rename = "match")]
    pub addresses: String,
    /// The versions that it is about, as a constraint; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<String>,
    /// `allow` (when absent) or `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The age that a version must have, as `7d`; only for `allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_age: Option<String>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<&Rule> for RuleText {
    fn from(Rule { addresses, versions, action, reason }: &Rule) -> Self {
        let (action, minimum_age) = match action {
            Action::Allow { minimum_age } => {
                let age = (!minimum_age.is_zero()).then(|| humantime::format_duration(*minimum_age).to_string());
                ("allow", age)
            }
            Action::Deny => ("deny", None),
        };
        Self {
            addresses: addresses.to_string(),
            versions: versions.as_ref().map(ToString::to_string),
            action: Some(action.to_owned()),
            minimum_age,
            reason: reason.clone(),
        }
    }
}

impl RuleText {
    fn parse(&self) -> Result<Rule, String> {
        let Self { addresses, versions, action, minimum_age, reason } = self;
        let action = action.as_deref().map_or(Ok(Action::default()), Action::parse)?;
        let minimum_age =
            minimum_age.as_deref().map(humantime::parse_duration).transpose().map_err(|e| e.to_string())?;
        let action = match (action, minimum_age) {
            (Action::Deny, Some(_)) => return Err("a rule that denies has no \"minimum_age\"".to_owned()),
            (Action::Allow { .. }, Some(minimum_age)) => Action::Allow { minimum_age },
            (action, None) => action,
        };
        let versions = versions.as_deref().map(VersionRange::parse).transpose();
        Ok(Rule {
            addresses: AddressPattern::parse(addresses).map_err(|bad| bad.to_string())?,
            versions: versions.map_err(|bad| bad.to_string())?,
            action,
            reason: reason.as_deref().map(parse_reason).transpose()?,
        })
    }
}

/// The rules of a policy.
pub fn rules_of(policy: &Policy) -> Vec<RuleText> {
    policy.0.iter().map(RuleText::from).collect()
}

/// Reads rules.
///
/// # Errors
/// Every problem, with the number of its rule.
pub fn policy_of(rules: &[RuleText]) -> Result<Policy, Vec<String>> {
    if rules.len() > MAX_RULES {
        return Err(vec![format!("\"policy\" has {} rules; at most {MAX_RULES} can be tried", rules.len())]);
    }
    let (mut parsed, mut problems) = (Vec::new(), Vec::new());
    for (number, rule) in (1..).zip(rules) {
        match rule.parse() {
            Ok(rule) => parsed.push(rule),
            Err(reason) => problems.push(format!("rule {number} of \"policy\": {reason}")),
        }
    }
    if problems.is_empty() { Ok(Policy(parsed)) } else { Err(problems) }
}

/// The verdicts about an address: the answer to `GET /admin/v1/policy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PolicyReport {
    /// The provider or module.
    pub address: String,
    /// Time of the verdicts.
    #[cfg_attr(test, schemars(with = "String"))]
    pub now: Timestamp,
    /// The number of rules in the configuration.
    pub rules: usize,
    /// The rule that denies every version, with its reason; null if some may be used.
    pub denied: Option<String>,
    /// The versions, the newest first.
    pub versions: Vec<JudgedVersion>,
    /// The reason why there is no list of versions; null where there is one.
    pub no_list: Option<String>,
}

/// The path and query of the verdicts about an address.
pub fn policy_path(what: &str) -> String {
    format!("{POLICY}?{}", Serializer::new(String::new()).append_pair("address", what).finish())
}

/// Parses the query of a request for verdicts.
///
/// # Errors
/// Every problem.
pub fn parse_query(query: Option<&str>, default_host: &Hostname) -> Result<PackageSelector, Vec<String>> {
    let (mut selector, mut problems) = (None, Vec::new());
    for (name, value) in parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "address" if selector.is_some() => problems.push("name one address".to_owned()),
            "address" => selector = or_problem(PackageSelector::parse(&value, default_host), &mut problems),
            _ => problems.push(format!("the query has no option {:?}: write ?address=", short(&name))),
        }
    }
    match selector {
        Some(selector) if problems.is_empty() => Ok(selector),
        None if problems.is_empty() => Err(vec!["name what to judge: ?address=".to_owned()]),
        _ => Err(problems),
    }
}
