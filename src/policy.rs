//! Which versions may be used, and how old they must be: the rules of an operator, judged by one function. Pure: no clock,
//! no disk, no network.

use std::sync::Arc;
use std::time::Duration;

use derive_more::Display;

use crate::address::{Address, AddressPattern, BadAddress, Constraint, ModuleConstraint, Version};
use crate::clock::Timestamp;
use crate::wording::{format_timestamp, plural};

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
}

impl Refusal {
    /// The refusal of a list of which rules leave nothing.
    pub fn of_all(causes: &[&str]) -> Self {
        Self { cause: causes.join("; "), remedy: Some(ASK_OPERATOR) }
    }
}

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
    /// Returns true without any rule.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The judge of an address: finds the rules about it once, for all its versions.
    pub fn judge_of(self: &Arc<Self>, address: Address, client: ClientLimits) -> Judge {
        let rules = self.0.iter().enumerate().filter(|(_, rule)| rule.addresses.matches(&address));
        let rules = rules.map(|(position, _)| position).collect();
        let is_open = |patterns: &Vec<AddressPattern>| patterns.iter().any(|pattern| pattern.matches(&address));
        let is_open_to_client = client.addresses.as_ref().is_none_or(is_open);
        Judge { policy: Arc::clone(self), address, rules, client, is_open_to_client }
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
        Some(Refusal { cause, remedy: (!has_reason).then_some(ASK_OPERATOR) })
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

fn until_text(until: Option<Timestamp>) -> String {
    match until {
        Some(until) => format!("holds it back until {}", format_timestamp(until)),
        None => "holds it back, because its age is not known".to_owned(),
    }
}

/// An age as people write it: `7 days`, `12h 30m`.
fn age_text(age: Duration) -> String {
    match age.as_secs() {
        seconds if seconds % 86_400 == 0 => plural(seconds / 86_400, "day"),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System};

    const DAY: u64 = 24 * 3600;
    const NOW: Timestamp = Timestamp(100 * DAY);

    fn provider(namespace: &str, type_: &str) -> Address {
        let [namespace, type_] = [namespace, type_].map(|name| Name::parse(name).unwrap());
        Address::Provider(ProviderAddress { host: Hostname::parse("registry.example").unwrap(), namespace, type_ })
    }

    fn module(namespace: &str, name: &str) -> Address {
        let [namespace, name] = [namespace, name].map(|name| ModuleName::parse(name).unwrap());
        let system = System::parse("aws").unwrap();
        Address::Module(ModuleAddress { host: Hostname::parse("registry.example").unwrap(), namespace, name, system })
    }

    fn rule(addresses: &str, versions: &str, action: Action) -> Rule {
        let versions = (!versions.is_empty()).then(|| VersionRange::parse(versions).unwrap());
        Rule { addresses: AddressPattern::parse(addresses).unwrap(), versions, action, reason: None }
    }

    const fn allow(days: u64) -> Action {
        Action::Allow { minimum_age: Duration::from_secs(days * DAY) }
    }

    /// The verdict in a word: the position of the rule that holds or denies, or `client`.
    fn word(policy: &Arc<Policy>, verdict: Verdict<'_>) -> String {
        let ground = |ground: Ground<'_>| match ground {
            Ground::Rule(rule) => policy.0.iter().position(|other| std::ptr::eq(other, rule)).unwrap().to_string(),
            Ground::Client => "client".to_owned(),
        };
        match verdict {
            Verdict::Allowed => "allowed".to_owned(),
            Verdict::Held { by, until: Some(until) } => format!("{} until day {}", ground(by), until.0 / DAY),
            Verdict::Held { by, until: None } => format!("{} holds it", ground(by)),
            Verdict::Denied(by) => format!("{} denies", ground(by)),
        }
    }

    /// The rules of a company: exceptions first, then a quarantine for a publisher, then an allow list.
    fn company() -> Arc<Policy> {
        Arc::new(Policy(vec![
            rule("hashicorp/aws", "= 5.31.0, != 4.0.0", Action::Deny),
            rule("hashicorp/*", ">= 2.0, < 6.0", Action::Deny),
            rule("registry.corp.example/*", "", allow(0)),
            rule("hashicorp/*", ">= 1.0", allow(7)),
            rule("acme/vpc/aws", "~> 1.0", allow(0)),
            rule("*", "", Action::Deny),
        ]))
    }

    #[test]
    fn the_first_rule_about_an_address_and_its_version_decides() {
        let policy = company();
        let (aws, consul, vpc) = (provider("hashicorp", "aws"), module("HashiCorp", "consul"), module("acme", "vpc"));
        let other = provider("evil", "aws");
        for (address, version, day, expected) in [
            (&aws, "5.31.0", 1, "0 denies"),
            // Another spelling of the version, and a pre-release within the range.
            (&aws, "5.31.0+build.7", 1, "0 denies"),
            (&aws, "3.0.0-rc.1", 1, "1 denies"),
            (&aws, "2.0.0", 1, "1 denies"),
            // A deny rule leaves the versions beside its range to the rules after it.
            (&aws, "6.0.0", 1, "allowed"),
            (&aws, "6.0.0", 93, "allowed"),
            (&aws, "6.0.0", 94, "3 until day 101"),
            // The future counts as any other day: what it means is decided before.
            (&aws, "6.0.0", 120, "3 until day 127"),
            // An allow rule hides what it does not name, pre-releases too.
            (&aws, "0.9.0", 1, "3 denies"),
            (&aws, "7.0.0-rc.1", 1, "3 denies"),
            (&consul, "6.1.0", 96, "3 until day 103"),
            (&consul, "4.9.9", 1, "1 denies"),
            (&vpc, "1.9.0", 99, "allowed"),
            (&vpc, "2.0.0", 1, "4 denies"),
            (&other, "1.0.0", 1, "5 denies"),
        ] {
            let (version, since) = (Version::parse(version).unwrap(), Some(Timestamp(day * DAY)));
            let candidate = Candidate { version: &version, since, listed: None, approved_until: None };
            let judge = policy.judge_of(address.clone(), ClientLimits::NONE);
            assert_eq!(word(&policy, judge.judge(candidate, NOW)), expected, "{address} {version} of day {day}");
        }
        let none = Arc::new(Policy::default());
        assert_eq!(none.judge_of(aws, ClientLimits::NONE).judge(known(), NOW), Verdict::Allowed);
    }

    static VERSION: std::sync::LazyLock<Version> = std::sync::LazyLock::new(|| Version::parse("6.0.0").unwrap());

    fn known() -> Candidate<'static> {
        let since = Some(Timestamp(97 * DAY));
        Candidate { version: &VERSION, since, listed: since.map(|since| (since, None)), approved_until: None }
    }

    #[test]
    fn approvals_and_limits_of_clients_count_beside_the_rules() {
        let policy = company();
        let aws = provider("hashicorp", "aws");
        let patterns = |texts: &[&str]| Some(texts.iter().map(|text| AddressPattern::parse(text).unwrap()).collect());
        let whole = ClientLimits::default();
        let days = |days| ClientLimits { minimum_age: Duration::from_secs(days * DAY), ..ClientLimits::default() };
        let as_of = |day| ClientLimits { as_of: Some(Timestamp(day * DAY)), ..ClientLimits::default() };
        let of_others = ClientLimits { addresses: patterns(&["acme/*"]), ..ClientLimits::default() };
        let of_these = ClientLimits { addresses: patterns(&["acme/*", "hashicorp/aws"]), ..ClientLimits::default() };
        let (approved, expired) = (Some(Timestamp(101 * DAY)), Some(NOW));
        let known = known();
        let unknown = Candidate { since: None, listed: None, ..known };
        let withdrawn = Candidate { listed: Some((Timestamp(90 * DAY), Some(Timestamp(95 * DAY)))), ..known };
        for (candidate, client, expected) in [
            (known, &whole, "3 until day 104"),
            (Candidate { approved_until: approved, ..known }, &whole, "allowed"),
            (Candidate { approved_until: expired, ..known }, &whole, "3 until day 104"),
            // Without a record of its age it is held, unless a person approved it.
            (unknown, &whole, "3 holds it"),
            (Candidate { approved_until: approved, ..unknown }, &whole, "allowed"),
            // The limits of a client loosen nothing, and no approval lifts them.
            (known, &days(1), "3 until day 104"),
            // The date is that of the ground that holds longest.
            (known, &days(30), "client until day 127"),
            (known, &as_of(96), "client holds it"),
            (Candidate { approved_until: approved, ..known }, &days(2), "allowed"),
            (Candidate { approved_until: approved, ..known }, &days(4), "client until day 101"),
            (Candidate { approved_until: approved, ..known }, &as_of(97), "allowed"),
            (Candidate { approved_until: approved, ..known }, &as_of(96), "client holds it"),
            (Candidate { approved_until: approved, ..unknown }, &as_of(99), "client holds it"),
            // A withdrawn version counts until then.
            (Candidate { approved_until: approved, ..withdrawn }, &as_of(94), "allowed"),
            (Candidate { approved_until: approved, ..withdrawn }, &as_of(95), "client holds it"),
            (Candidate { approved_until: approved, ..withdrawn }, &as_of(89), "client holds it"),
            (Candidate { approved_until: approved, ..known }, &of_others, "client denies"),
            (Candidate { approved_until: approved, ..known }, &of_these, "allowed"),
        ] {
            assert_eq!(
                word(&policy, policy.judge_of(aws.clone(), client.clone()).judge(candidate, NOW)),
                expected,
                "{candidate:?} {client:?}"
            );
        }
    }

    #[test]
    fn an_address_without_a_version_to_use_is_known_at_once() {
        let policy = company();
        let patterns = |texts: &[&str]| Some(texts.iter().map(|text| AddressPattern::parse(text).unwrap()).collect());
        let whole = ClientLimits::default();
        let of_acme = ClientLimits { addresses: patterns(&["acme/*"]), ..ClientLimits::default() };
        for (address, client, expected) in [
            (provider("evil", "aws"), &whole, Some("the policy for * denies every version")),
            (provider("hashicorp", "aws"), &whole, None),
            (module("acme", "vpc"), &of_acme, None),
            (module("acme", "other"), &of_acme, Some("the policy for * denies every version")),
            (provider("hashicorp", "aws"), &of_acme, Some("it is not among the addresses that this client may use")),
        ] {
            let judge = policy.judge_of(address.clone(), client.clone());
            let denial = judge.denial_of_all();
            let refusal = denial.and_then(|ground| Verdict::Denied(ground).refusal());
            assert_eq!(refusal.map(|refusal| refusal.cause).as_deref(), expected, "{address}");
        }
    }

    #[test]
    fn a_refusal_names_the_rule_its_reason_and_the_end() {
        let mut rules = company().0.clone();
        rules[0].reason = Some("it loses state, see https://wiki.example/aws".to_owned());
        let policy = Arc::new(Policy(rules));
        let aws = provider("hashicorp", "aws");
        for (version, expected, whole) in [
            (
                "5.31.0",
                "the policy for hashicorp/aws denies it: it loses state, see https://wiki.example/aws",
                "the policy for hashicorp/aws denies the versions = 5.31.0, != 4.0.0: it loses state, see https://wiki.example/aws",
            ),
            (
                "0.9.0",
                "the policy for hashicorp/* allows only the versions >= 1.0",
                "the policy for hashicorp/* allows only the versions >= 1.0",
            ),
            (
                "6.0.0",
                "the policy for hashicorp/* holds it back until 1970-04-15 00:00:00 UTC",
                "the policy for hashicorp/* holds it back until 1970-04-15 00:00:00 UTC",
            ),
        ] {
            let version = Version::parse(version).unwrap();
            let candidate = Candidate { version: &version, ..known() };
            let judge = policy.judge_of(aws.clone(), ClientLimits::NONE);
            let verdict = judge.judge(candidate, NOW);
            assert_eq!(verdict.refusal().unwrap().cause, expected);
            assert_eq!(verdict.explanation().as_deref(), Some(whole));
        }
    }

    #[test]
    fn a_range_cannot_be_passed_by_another_spelling() {
        let module_of = module("acme", "vpc");
        let provider_of = provider("hashicorp", "aws");
        for (address, versions, action, version, is_named) in [
            (&provider_of, ">= 5.0, != 5.31.0", allow(0), "5.31.0+build.7", false),
            (&provider_of, ">= 5.0, != 5.31.0", allow(0), "5.31.1", true),
            (&provider_of, "= 5.31.0", Action::Deny, "5.31.0+build.7", true),
            (&provider_of, ">= 2.0", Action::Deny, "3.0.0-rc.1", true),
            // A pre-release of the limit lies below it.
            (&provider_of, ">= 2.0", Action::Deny, "2.0.0-rc.1", false),
            (&module_of, "~> 1", Action::Deny, "3.0.0-rc.1", true),
            (&module_of, "~> 1.2", Action::Deny, "1.3.0-rc.1", true),
            (&module_of, "~> 1.2", Action::Deny, "2.0.0-rc.1", true),
            (&module_of, "= 1.0.0-beta.1", allow(0), "1.0.0-beta.1", true),
            (&module_of, "=1.0.0-beta.1", allow(0), "1.0.0-beta.2", false),
            // Only versions of modules have four numbers.
            (&module_of, "= 1.2.3.4", allow(0), "1.2.3.4", true),
            (&module_of, "= 1.2.3.4", Action::Deny, "1.2.3.4", true),
            (&provider_of, "= 1.2.3.4", Action::Deny, "1.2.3", false),
        ] {
            let rule = rule("*", versions, action);
            let parsed = Version::parse_of_module(version).unwrap();
            assert_eq!(rule.names(address, &parsed), is_named, "{address} {version} {versions} {action:?}");
        }
    }

    #[test]
    fn a_rule_behind_one_that_always_decides_is_found() {
        let policy = Policy(vec![
            rule("hashicorp/aws", "5.31.0", Action::Deny),
            rule("hashicorp/aws", "> 5.0", allow(0)),
            rule("hashicorp/aws", "5.31.0", Action::Deny),
            rule("registry.example/hashicorp/aws", "", allow(7)),
            rule("hashicorp/*", "", allow(7)),
            rule("acme/*", "", allow(7)),
            rule("hashicorp/null", "", allow(0)),
        ]);
        assert_eq!(policy.unreached(), [(2, 1), (3, 1), (6, 4)]);
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let addresses = prop::sample::select(&["*", "a/*", "b/*", "a/x", "b/x", "a/x/aws", "registry.example/*"][..]);
        let versions = prop::sample::select(&["", "1.0.0", ">= 1.0", "< 2.0", "!= 1.0.0", "~> 1.0", "2.0.0-rc.1"][..]);
        let action = prop_oneof![Just(Action::Deny), (0..9_u64).prop_map(allow)];
        (addresses, versions, action).prop_map(|(addresses, versions, action)| rule(addresses, versions, action))
    }

    fn every_candidate<'a>(addresses: &'a [Address], versions: &'a [Version]) -> Vec<(&'a Address, Candidate<'a>)> {
        let mut all = Vec::new();
        for (address, version) in
            addresses.iter().flat_map(|address| versions.iter().map(move |version| (address, version)))
        {
            for since in [None, Some(Timestamp(90 * DAY)), Some(Timestamp(97 * DAY)), Some(NOW)] {
                let listed = since.map(|since| (since, None));
                all.push((address, Candidate { version, since, listed, approved_until: None }));
            }
        }
        all
    }

    proptest! {
        /// Adding a deny rule anywhere, raising an age and removing an approval never allow more.
        #[test]
        fn a_stricter_policy_allows_no_more(
            rules in prop::collection::vec(any_rule(), 0..5),
            added in any_rule(),
            position in any::<prop::sample::Index>(),
            more_days in 0..9_u64,
        ) {
            let addresses = [provider("a", "x"), provider("b", "x"), provider("c", "y"), module("a", "x")];
            let versions = ["1.0.0", "1.0.0+b", "1.5.0", "2.0.0-rc.1", "2.0.0"].map(|text| Version::parse(text).unwrap());
            let policy = Policy(rules.clone());
            let mut with_deny = rules.clone();
            with_deny.insert(position.index(rules.len() + 1), Rule { action: Action::Deny, ..added });
            let mut older = rules.clone();
            if !older.is_empty() {
                let rule = &mut older[position.index(rules.len())];
                if let Action::Allow { minimum_age } = &mut rule.action {
                    *minimum_age += Duration::from_secs(more_days * DAY);
                }
            }
            let client = ClientLimits::default();
            for (address, candidate) in every_candidate(&addresses, &versions) {
                let allows = |policy: &Policy, candidate, client: &ClientLimits| {
                    let judge = Arc::new(policy.clone()).judge_of(address.clone(), client.clone());
                    judge.judge(candidate, NOW) == Verdict::Allowed
                };
                let before = allows(&policy, candidate, &client);
                let is_denied = Arc::new(policy.clone()).judge_of(address.clone(), client.clone()).denial_of_all().is_some();
                prop_assert!(!(before && is_denied), "{address} {candidate:?}");
                for stricter in [&with_deny, &older] {
                    prop_assert!(before || !allows(&Policy(stricter.clone()), candidate, &client), "{candidate:?} {stricter:?}");
                }
                let approved = Candidate { approved_until: Some(Timestamp(u64::MAX)), ..candidate };
                prop_assert!(allows(&policy, approved, &client) || !before);
                for limits in [
                    ClientLimits { minimum_age: Duration::from_secs(more_days * DAY), ..client.clone() },
                    ClientLimits { as_of: Some(Timestamp(95 * DAY)), ..client.clone() },
                    ClientLimits { addresses: Some(vec![AddressPattern::parse("a/*").unwrap()]), ..client.clone() },
                ] {
                    prop_assert!(before || !allows(&policy, candidate, &limits));
                }
            }
        }

        /// A rule that is never reached changes no verdict.
        #[test]
        fn a_rule_that_is_never_reached_can_go(rules in prop::collection::vec(any_rule(), 1..6)) {
            let addresses = [provider("a", "x"), provider("b", "x"), provider("c", "y"), module("a", "x")];
            let versions = ["1.0.0", "1.5.0", "2.0.0-rc.1", "2.0.0"].map(|text| Version::parse(text).unwrap());
            let policy = Policy(rules);
            let Some((position, _)) = policy.unreached().first().copied() else { return Ok(()) };
            let mut without = policy.clone();
            without.0.remove(position);
            for (address, candidate) in every_candidate(&addresses, &versions) {
                let [with, without] = [&policy, &without].map(|policy| {
                    let judge = Arc::new(policy.clone()).judge_of(address.clone(), ClientLimits::NONE);
                    let verdict = judge.judge(candidate, NOW);
                    (verdict == Verdict::Allowed, matches!(verdict, Verdict::Denied(_)))
                });
                prop_assert_eq!(with, without);
            }
        }
    }
}
