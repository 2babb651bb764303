//! The judgement of a version: the first rule about it, then the limits of the client.

use std::sync::Arc;
use std::time::Duration;

use super::{Action, Policy, Rule};
use crate::address::{Address, AddressPattern, Version};
use crate::clock::Timestamp;
use crate::wording::{format_timestamp, plural};

/// The limits of a client beside the rules of larder, which they never loosen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ClientLimits {
    /// The addresses that it may use; `None` for all.
    pub addresses: Option<Vec<AddressPattern>>,
    /// The age that it asks for.
    pub minimum_age: Duration,
    /// The moment whose versions it asks for.
    pub as_of: Option<Timestamp>,
}

/// A version to judge.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The version.
    pub version: &'a Version,
    /// The moment from which its age counts; `None` where no record tells it.
    pub since: Option<Timestamp>,
    /// The moments between which it was listed, for a client that asks for the versions of a moment; the second is that of its
    /// withdrawal. `None` where no record tells it.
    pub listed: Option<(Timestamp, Option<Timestamp>)>,
    /// The end of an approval, which lifts the age that a rule demands; the last moment of all for one without an end.
    pub approved_until: Option<Timestamp>,
}

/// The judgement of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'p> {
    /// It may be used.
    Allowed,
    /// It is too young.
    Held {
        /// The ground; of several, the one that holds it longest.
        by: Ground<'p>,
        /// The moment from which it may be used; `None` if its age is unknown, or lies after the moment that the client asks
        /// for.
        until: Option<Timestamp>,
    },
    /// It may not be used.
    Denied(Ground<'p>),
}

/// The refusal of a version, or of a whole provider or module, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The rule, and its reason.
    pub cause: String,
    /// The remedy, unless the reason says what to do.
    pub remedy: Option<&'static str>,
    /// The rules, as [`Verdict::rule_name`] names them, for machines.
    pub rules: Vec<String>,
}

impl Refusal {
    /// The refusal of a list of which rules leave nothing.
    pub fn of_all(causes: &[&str], rules: Vec<String>) -> Self {
        Self { cause: causes.join("; "), remedy: Some(ASK_OPERATOR), rules }
    }
}

/// The name of the limits of the client, where others have a rule. No pattern of addresses is one word.
pub const CLIENT: &str = "client";
/// The remedy where a rule has no reason.
const ASK_OPERATOR: &str = "ask the operator of this mirror";

/// The ground of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground<'p> {
    /// A rule.
    Rule(&'p Rule),
    /// The limits of the client.
    Client,
}

/// The rules and the limits of a client about one address.
#[derive(Debug, Clone)]
pub struct Judge {
    policy: Arc<Policy>,
    address: Address,
    /// The positions of the rules about the address, in their order.
    rules: Vec<usize>,
    client: ClientLimits,
    is_open_to_client: bool,
}

impl ClientLimits {
    /// No limits.
    pub const NONE: Self = Self { addresses: None, minimum_age: Duration::ZERO, as_of: None };
}

impl Policy {
    /// The judge of an address: finds the rules about it once, for all its versions.
    pub fn judge_of(self: &Arc<Self>, address: Address, client: ClientLimits) -> Judge {
        let rules = self.0.iter().enumerate().filter(|(_, rule)| rule.addresses.matches(&address));
        let rules = rules.map(|(position, _)| position).collect();
        let is_open = |patterns: &Vec<AddressPattern>| patterns.iter().any(|pattern| pattern.matches(&address));
        let is_open_to_client = client.addresses.as_ref().is_none_or(is_open);
        Judge { policy: Arc::clone(self), address, rules, client, is_open_to_client }
    }
}

impl Verdict<'_> {
    /// The refusal of the version, for the person who asked for it by number. `None` if it may be used. Clients show little of
    /// an error, so a reason of the operator takes the place of the versions and of the remedy.
    pub fn refusal(&self) -> Option<Refusal> {
        let cause = match self {
            Self::Denied(Ground::Rule(rule)) if rule.reason.is_some() => rule.sentence(match rule.action {
                Action::Deny => "denies it",
                Action::Allow { .. } => "does not allow it",
            }),
            verdict => verdict.explanation()?,
        };
        let has_reason = matches!(self, Self::Denied(Ground::Rule(rule)) | Self::Held { by: Ground::Rule(rule), .. } if rule.reason.is_some());
        let rules = self.rule_name().into_iter().collect();
        Some(Refusal { cause, remedy: (!has_reason).then_some(ASK_OPERATOR), rules })
    }

    /// The rule by its addresses, as the configuration writes them, or [`CLIENT`]. `None` for a version that may be used.
    pub fn rule_name(&self) -> Option<String> {
        match self {
            Self::Allowed => None,
            Self::Denied(Ground::Rule(rule)) | Self::Held { by: Ground::Rule(rule), .. } => {
                Some(rule.addresses.to_string())
            }
            Self::Denied(Ground::Client) | Self::Held { by: Ground::Client, .. } => Some(CLIENT.to_owned()),
        }
    }

    /// Returns true if one rule is the ground of both, with the same effect.
    pub fn is_of_same_rule(&self, other: &Self) -> bool {
        let is_same = |one: &Ground<'_>, other: &Ground<'_>| match (one, other) {
            (Ground::Rule(one), Ground::Rule(other)) => std::ptr::eq(*one, *other),
            (Ground::Client, Ground::Client) => true,
            (Ground::Rule(_), Ground::Client) | (Ground::Client, Ground::Rule(_)) => false,
        };
        match (self, other) {
            (Self::Allowed, Self::Allowed) => true,
            (Self::Held { by: one, until }, Self::Held { by: other, until: of_other }) => {
                is_same(one, other) && until.is_none() == of_other.is_none()
            }
            (Self::Denied(one), Self::Denied(other)) => is_same(one, other),
            (Self::Allowed | Self::Held { .. } | Self::Denied(_), _) => false,
        }
    }

    /// The reason why the version may not be used, with all that the rule says. `None` if it may be used.
    pub fn explanation(&self) -> Option<String> {
        Some(match self {
            Self::Allowed => return None,
            Self::Denied(Ground::Rule(rule)) => rule.denial(),
            Self::Denied(Ground::Client) => "it is not among the addresses that this client may use".to_owned(),
            Self::Held { by: Ground::Rule(rule), until } => rule.sentence(&until_text(*until)),
            Self::Held { by: Ground::Client, until: Some(until) } => {
                format!("the age that this client asks for {}", until_text(Some(*until)))
            }
            Self::Held { by: Ground::Client, until: None } => {
                "it was not listed then, or its age is not known".to_owned()
            }
        })
    }

    /// The reason for several versions that one rule hides, whatever the end is for each.
    pub fn rule_text(&self) -> Option<String> {
        match self {
            Self::Held { by: Ground::Rule(rule), until: None } => {
                Some(rule.sentence("holds versions back, because their age is not known"))
            }
            Self::Held { by: Ground::Rule(rule), .. } => Some(rule.sentence(&match rule.action {
                Action::Allow { minimum_age } => format!("holds versions back for {}", age_text(minimum_age)),
                Action::Deny => "holds versions back".to_owned(),
            })),
            Self::Held { by: Ground::Client, .. } => Some("this client asks for older versions".to_owned()),
            verdict => verdict.explanation(),
        }
    }

    /// The moment from which a version that is held may be used, where it is known.
    pub fn until(&self) -> Option<Timestamp> {
        if let Self::Held { until, .. } = self { *until } else { None }
    }
}

impl Judge {
    /// The provider or module.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns true if a verdict depends on the age of the version.
    pub fn needs_age(&self) -> bool {
        let has_age = |rule: &Rule| matches!(rule.action, Action::Allow { minimum_age } if !minimum_age.is_zero());
        // A rule behind one about every version never decides.
        let deciding = self.rules().position(Rule::decides_about_all).map_or(usize::MAX, |position| position + 1);
        self.rules().take(deciding).any(has_age) || !self.client.minimum_age.is_zero() || self.client.as_of.is_some()
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter_map(|position| self.policy.0.get(*position))
    }

    /// The ground on which every version is denied, whatever it is.
    pub fn denial_of_all(&self) -> Option<Ground<'_>> {
        if !self.is_open_to_client {
            return Some(Ground::Client);
        }
        let deciding = self.rules().find(|rule| rule.decides_about_all())?;
        (deciding.action == Action::Deny).then_some(Ground::Rule(deciding))
    }

    /// Judges a version at the time `now`. The first rule about its address and version decides; an allow rule about its
    /// address also decides about the versions that it does not name. Then the limits of the client count.
    pub fn judge(&self, candidate: Candidate<'_>, now: Timestamp) -> Verdict<'_> {
        let Candidate { version, since, listed, approved_until } = candidate;
        if !self.is_open_to_client {
            return Verdict::Denied(Ground::Client);
        }
        let deciding = self.rules().find(|rule| rule.action != Action::Deny || rule.names(&self.address, version));
        let by_rule = match deciding {
            Some(rule @ Rule { action: Action::Deny, .. }) => return Verdict::Denied(Ground::Rule(rule)),
            Some(rule) if !rule.names(&self.address, version) => return Verdict::Denied(Ground::Rule(rule)),
            Some(Rule { action: Action::Allow { .. }, .. }) if approved_until.is_some_and(|end| now < end) => None,
            Some(rule @ Rule { action: Action::Allow { minimum_age }, .. }) => {
                held(Ground::Rule(rule), since, *minimum_age, now)
            }
            None => None,
        };
        let client = &self.client;
        let by_age = held(Ground::Client, since, client.minimum_age, now);
        let was_listed = |moment: Timestamp| {
            listed.is_some_and(|(from, until)| from <= moment && until.is_none_or(|until| until > moment))
        };
        let not_listed = Verdict::Held { by: Ground::Client, until: None };
        let by_moment = client.as_of.filter(|moment| !was_listed(*moment)).map(|_| not_listed);
        // One without an end holds longest.
        let end = |held: &Verdict<'_>| match held {
            Verdict::Held { until: Some(until), .. } => *until,
            _ => Timestamp(u64::MAX),
        };
        [by_moment, by_age, by_rule].into_iter().flatten().max_by_key(end).unwrap_or(Verdict::Allowed)
    }
}

fn until_text(until: Option<Timestamp>) -> String {
    match until {
        Some(until) => format!("holds it back until {}", format_timestamp(until)),
        None => "holds it back, because its age is not known".to_owned(),
    }
}

/// An age as people write it: `7 days`, `36 hours`, `12h 30m`.
fn age_text(age: Duration) -> String {
    match age.as_secs() {
        seconds if seconds % 86_400 == 0 => plural(seconds / 86_400, "day"),
        seconds if seconds % 3_600 == 0 => plural(seconds / 3_600, "hour"),
        _ => humantime::format_duration(age).to_string(),
    }
}

fn held(by: Ground<'_>, since: Option<Timestamp>, minimum_age: Duration, now: Timestamp) -> Option<Verdict<'_>> {
    if minimum_age.is_zero() {
        return None;
    }
    let until = since.map(|since| since.after(minimum_age));
    until.is_none_or(|until| now < until).then_some(Verdict::Held { by, until })
}
