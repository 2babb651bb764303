//! `[[policy]]`: a rule about the versions that may be used, and the reader of its table.

use std::time::Duration;

use super::section::Section;
use super::{Upstream, values};
use crate::address::AddressPattern;
use crate::policy::{Action, Policy, Rule, VersionRange};

/// The most characters of a reason. Clients show at most 200 of a whole error.
const MAX_REASON_CHARS: usize = 150;

/// Reads one `[[policy]]`, with its line. `None` if it has no valid `match`, which is recorded as a problem.
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> (usize, Option<Rule>) {
    let addresses =
        section.text("match", "hashicorp/*", |text| AddressPattern::parse(text).map_err(|bad| bad.to_string()));
    let versions = section.text("versions", ">= 5.0", |text| VersionRange::parse(text).map_err(|bad| bad.to_string()));
    let action = section.text("action", "deny", action).unwrap_or(Action::Allow { minimum_age: Duration::ZERO });
    let reason = section.text("reason", "see https://wiki.corp.example/terraform", reason);
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

fn action(text: &str) -> Result<Action, String> {
    match text {
        "allow" => Ok(Action::Allow { minimum_age: Duration::ZERO }),
        "deny" => Ok(Action::Deny),
        other => Err(format!("{} is neither allow nor deny", values::quoted(other))),
    }
}

fn reason(text: &str) -> Result<String, String> {
    if text.chars().any(char::is_control) {
        return Err("a reason is one line, without control characters".to_owned());
    }
    match text.chars().count() {
        0 => Err("an empty reason says nothing; omit it".to_owned()),
        length if length > MAX_REASON_CHARS => Err(format!(
            "it has {length} characters; clients show at most {MAX_REASON_CHARS}, so write a short one with a link"
        )),
        _ => Ok(text.to_owned()),
    }
}
