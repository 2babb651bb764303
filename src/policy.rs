//! Which versions may be used, and how old they must be: the rules of an operator, judged by one function. Pure: no clock,
//! no disk, no network.

mod approvals;
mod judge;
#[cfg(test)]
mod tests;

use std::time::Duration;

use derive_more::Display;

pub use self::approvals::{Added, Approval, ApprovalDecision, ApprovalEntry, Approvals, MAX_DECISIONS};
pub use self::judge::{CLIENT, Candidate, ClientLimits, Ground, Judge, Refusal, Verdict};
use crate::address::{Address, AddressPattern, BadAddress, Constraint, ModuleConstraint, Version};

/// The rules of a larder, in their order. Without any, every version may be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy(pub Vec<Rule>);

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The addresses that it is about.
    pub addresses: AddressPattern,
    /// The versions that it is about; `None` for all.
    pub versions: Option<VersionRange>,
    /// The effect on them.
    pub action: Action,
    /// The reason, for the person who gets another version than the newest, or none.
    pub reason: Option<String>,
}

/// The effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The versions may be used once they have this age, and no others of these addresses.
    Allow {
        /// Zero for no limit.
        minimum_age: Duration,
    },
    /// The versions may not be used. The rules after this one decide about the others.
    Deny,
}

impl Default for Action {
    fn default() -> Self {
        Self::Allow { minimum_age: Duration::ZERO }
    }
}

impl Action {
    /// Parses `allow` or `deny`.
    ///
    /// # Errors
    /// The problem.
    pub fn parse(given: &str) -> Result<Self, String> {
        match given {
            "allow" => Ok(Self::default()),
            "deny" => Ok(Self::Deny),
            other => Err(format!("{:?} is neither allow nor deny", other.chars().take(32).collect::<String>())),
        }
    }
}

/// The most characters of a reason. Clients show at most 200 of a whole error.
const MAX_REASON_CHARS: usize = 150;

/// Parses the reason of a rule: one short line.
///
/// # Errors
/// The problem.
pub fn parse_reason(given: &str) -> Result<String, String> {
    if given.chars().any(char::is_control) {
        return Err("a reason is one line, without control characters".to_owned());
    }
    match given.chars().count() {
        0 => Err("an empty reason says nothing; omit it".to_owned()),
        length if length > MAX_REASON_CHARS => Err(format!(
            "it has {length} characters; clients show at most {MAX_REASON_CHARS}, so write a short one with a link"
        )),
        _ => Ok(given.to_owned()),
    }
}

/// The versions of a rule. Clients read the constraints of modules by other rules than those of providers; one of both must
/// be able to read it.
#[derive(Debug, Display, Clone, PartialEq, Eq)]
#[display("{given}")]
pub struct VersionRange {
    given: String,
    providers: Option<Constraint>,
    modules: Option<ModuleConstraint>,
}

impl VersionRange {
    /// Parses a constraint that clients accept for providers or for modules.
    ///
    /// # Errors
    /// [`BadAddress`], with the reason.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let (providers, modules) = match (Constraint::parse(given), ModuleConstraint::parse(given)) {
            (Err(bad), Err(_)) => return Err(bad),
            (providers, modules) => (providers.ok(), modules.ok()),
        };
        Ok(Self { given: given.to_owned(), providers, modules })
    }

    /// Returns true if a client with this constraint would accept the version: a pre-release only if it is named. A version
    /// that a `!=` names is excluded in every spelling.
    fn allows(&self, address: &Address, version: &Version) -> bool {
        let (providers, modules) = (self.providers.as_ref(), self.modules.as_ref());
        let is_of_providers = || providers.is_some_and(|range| range.allows(version) && !range.excludes(version));
        match address {
            Address::Provider(_) => is_of_providers(),
            // Clients of modules do not recognise a pre-release behind a space; a rule does.
            Address::Module(_) => {
                modules.is_some_and(|range| range.allows(version)) || (version.is_pre_release() && is_of_providers())
            }
        }
    }

    /// Returns true if the version lies in the range in whatever spelling, a pre-release too.
    fn spans(&self, address: &Address, version: &Version) -> bool {
        let is_of_providers = self.providers.as_ref().is_some_and(|range| range.spans(version));
        let is_of_modules = || self.modules.as_ref().is_some_and(|range| range.spans(version));
        is_of_providers || (matches!(address, Address::Module(_)) && is_of_modules())
    }
}

impl Policy {
    /// Returns true without any rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules that never decide, by their positions, each with the rule before it that always does.
    pub fn unreached(&self) -> Vec<(usize, usize)> {
        let rules = self.0.iter().enumerate();
        let behind = rules.filter_map(|(position, rule)| {
            let before = self.0.iter().take(position).position(|before| {
                let decides_about_all = before.versions.is_none() || before.action != Action::Deny;
                decides_about_all && before.addresses.covers(&rule.addresses)
            });
            before.map(|before| (position, before))
        });
        behind.collect()
    }
}

impl Rule {
    /// The effect on a version that the rule does not allow, for people.
    fn denial(&self) -> String {
        self.sentence(&match (&self.versions, self.action) {
            (None, _) => "denies every version".to_owned(),
            (Some(versions), Action::Deny) => format!("denies the versions {versions}"),
            (Some(versions), Action::Allow { .. }) => format!("allows only the versions {versions}"),
        })
    }

    /// Returns true if it decides about every version of its addresses. A deny rule about some leaves the others to the rules
    /// after it.
    fn decides_about_all(&self) -> bool {
        self.action != Action::Deny || self.versions.is_none()
    }

    fn sentence(&self, effect: &str) -> String {
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("the policy for {} {effect}{reason}", self.addresses)
    }

    /// Returns true if the version is among those that the rule is about. A deny rule is also about pre-releases within its
    /// range, and about every spelling of its versions.
    fn names(&self, address: &Address, version: &Version) -> bool {
        match (&self.versions, self.action) {
            (None, _) => true,
            (Some(range), Action::Deny) => range.spans(address, version),
            (Some(range), Action::Allow { .. }) => range.allows(address, version),
        }
    }
}
