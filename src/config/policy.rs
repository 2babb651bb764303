//! `[[policy]]`: a rule about the versions that may be used, and the reader of its table.

use super::section::Section;
use super::{Upstream, values};
use crate::address::AddressPattern;
use crate::explanation::safe_text;
use crate::policy::{Action, Policy, Rule, VersionRange, parse_reason};

/// Reads one `[[policy]]`, with its line. `None` if it has no valid `match`, which is recorded as a problem.
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> (usize, Option<Rule>) {
    let addresses =
        section.text("match", "hashicorp/*", |text| AddressPattern::parse(text).map_err(|bad| bad.to_string()));
    let versions = section.text("versions", ">= 5.0", |text| VersionRange::parse(text).map_err(|bad| bad.to_string()));
    let action = section.text("action", "deny", Action::parse).unwrap_or_default();
    let minimum_age = section.text("minimum_age", "7d", values::duration);
    let action = match (action, minimum_age) {
        (Action::Allow { .. }, Some(minimum_age)) => Action::Allow { minimum_age },
        (Action::Deny, Some(_)) => {
            section
                .problem("minimum_age", "a rule that denies has no age; only one that allows waits for it".to_owned());
            action
        }
        (action, None) => action,
    };
    let reason = section.text("reason", "see https://wiki.corp.example/terraform", parse_reason);
    if reason.as_ref().is_some_and(|reason| safe_text(reason) != *reason) {
        section.warning("reason", "errors show its links without what follows a ? or #".to_owned());
    }
    section.require(&["match"]);
    let rule = addresses.map(|addresses| Rule { addresses, versions, action, reason });
    (section.line_of(""), rule)
}

/// The policy of rules that were read in their order. Warns about a rule that never decides, and about one for the addresses
/// of no upstream.
pub(super) fn policy(
    root: &mut Section<'_, '_, '_>,
    rules: Vec<(usize, Option<Rule>)>,
    upstreams: &[Upstream],
) -> Policy {
    let (lines, rules): (Vec<usize>, Vec<Rule>) =
        rules.into_iter().filter_map(|(line, rule)| Some((line, rule?))).unzip();
    for (line, rule) in lines.iter().zip(&rules) {
        if let Some(upstream) =
            upstreams.iter().find(|upstream| rule.addresses.begins_with_name(upstream.host.as_str()))
        {
            let text = format!(
                "a name without a dot is a namespace; write \"{}:443/...\" for the registry {}",
                upstream.host, upstream.host
            );
            root.warning_at(*line, "policy.match", text);
        }
        if let Some(host) = rule.addresses.host()
            && !upstreams.iter().any(|upstream| upstream.host == *host)
        {
            let text = format!("{host} is not one of the upstreams, so this rule is about nothing");
            root.warning_at(*line, "policy.match", text);
        }
    }
    let policy = Policy(rules);
    for (position, before) in policy.unreached() {
        if let (Some(line), Some(before_line), Some(before)) =
            (lines.get(position), lines.get(before), policy.0.get(before))
        {
            let text = format!(
                "this rule never decides, because the one for {} on line {before_line} stands before it; move exceptions before the general rule",
                before.addresses
            );
            root.warning_at(*line, "policy", text);
        }
    }
    policy
}
