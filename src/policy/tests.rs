//! A table of cases, and what holds for every policy.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::address::{Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System};
use crate::clock::Timestamp;

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
