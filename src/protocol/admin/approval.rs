//! Approvals in the admin API: the words of a person about versions, and the list of what is held back.

use serde::{Deserialize, Serialize};
use url::form_urlencoded::{Serializer, parse};

use super::operation::TargetAddresses;
use super::routes::{APPROVE, HELD, UNAPPROVE};
use super::{object_of, or_problem, short};
use crate::address::{Address, Hostname, PackageSelector};
use crate::clock::Timestamp;
use crate::mirror::{ApprovalWords, DecidedVersion};
use crate::policy::{ApprovalDecision, parse_reason};

/// The most characters of a name.
const MAX_NAME_CHARS: usize = 100;

/// A decision about versions: the body of `approve` and of `unapprove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// `[HOST/]NAMESPACE/TYPE@VERSION` or `[HOST/]NAMESPACE/NAME/SYSTEM@VERSION`, each.
    #[cfg_attr(test, schemars(length(min = 1, max = 256)))]
    pub what: Vec<String>,
    /// The reason, one line of at most 150 characters. `approve` needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The name of the person who decides. It is recorded as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Only for `approve`: the last day (`2026-12-31`, until its end in UTC) or the last moment (`2026-12-31T12:00:00Z`) for
    /// which it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl ApprovalRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        object_of(body, r#"{"what":["NAMESPACE/TYPE@VERSION"],"reason":"…"}"#)
    }

    /// The versions and the words of the person.
    ///
    /// # Errors
    /// Every problem.
    pub fn parsed(
        self,
        decision: ApprovalDecision,
        default_host: &Hostname,
        now: Timestamp,
    ) -> Result<(Vec<DecidedVersion>, ApprovalWords), Vec<String>> {
        let Self { what, reason, by, until } = self;
        let mut problems = Vec::new();
        let selectors = TargetAddresses { what }.addresses(default_host).unwrap_or_else(|bad| {
            problems.extend(bad);
            Vec::new()
        });
        let versions: Vec<DecidedVersion> = selectors
            .into_iter()
            .filter_map(|selector| or_problem(DecidedVersion::of(selector), &mut problems))
            .collect();
        let reason = match (reason.as_deref().map(str::trim), decision) {
            (None | Some(""), ApprovalDecision::Approved) => {
                problems.push("give a reason: those who read it later want to know why".to_owned());
                None
            }
            (None, ApprovalDecision::TakenBack) => None,
            (Some(reason), _) => or_problem(parse_reason(reason), &mut problems),
        };
        let by = by.and_then(|name| or_problem(parse_name(name.trim()), &mut problems));
        let until = match (until, decision) {
            (Some(_), ApprovalDecision::TakenBack) => {
                problems.push("\"until\" is for an approval: one that is taken back ends now".to_owned());
                None
            }
            (until, _) => until.and_then(|until| or_problem(parse_until(until.trim(), now), &mut problems)),
        };
        if problems.is_empty() { Ok((versions, ApprovalWords { reason, by, until })) } else { Err(problems) }
    }
}

fn parse_name(name: &str) -> Result<String, String> {
    let is_name = !name.is_empty() && name.chars().count() <= MAX_NAME_CHARS && !name.contains(char::is_control);
    if is_name { Ok(name.to_owned()) } else { Err(format!("a name has 1 to {MAX_NAME_CHARS} characters, on one line")) }
}

/// Parses the last day or the last moment of an approval.
fn parse_until(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let moment = || humantime::parse_rfc3339(text).ok().map(Timestamp::of);
    match Timestamp::of_day(text).map(Timestamp::end_of_day).or_else(moment) {
        Some(until) if until < now => Err(format!("{} has passed", short(text))),
        Some(until) => Ok(until),
        None => Err(format!(
            "{:?} is neither a day, such as 2026-12-31, nor a time, such as 2026-12-31T12:00:00Z",
            short(text)
        )),
    }
}

/// The path of a decision.
pub fn decision_path(decision: ApprovalDecision) -> &'static str {
    match decision {
        ApprovalDecision::Approved => APPROVE,
        ApprovalDecision::TakenBack => UNAPPROVE,
    }
}

/// The query of the page of what is held back after an address: `?after=…`.
pub fn held_query(after: &str) -> String {
    format!("?{}", Serializer::new(String::new()).append_pair("after", after).finish())
}

/// The path and query of a page of what is held back, after an address.
pub fn held_path(after: Option<&str>) -> String {
    format!("{HELD}{}", after.map(held_query).unwrap_or_default())
}

/// Parses the query of a page of what is held back: the address after which it begins.
///
/// # Errors
/// Every problem.
pub fn parse_held_query(query: Option<&str>, default_host: &Hostname) -> Result<Option<Address>, Vec<String>> {
    let (mut after, mut problems) = (None, Vec::new());
    for (name, value) in parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "after" => {
                after = or_problem(PackageSelector::parse(&value, default_host), &mut problems);
            }
            _ => problems.push(format!("the query has no option {:?}: write ?after=ADDRESS", short(&name))),
        }
    }
    if problems.is_empty() { Ok(after.map(|selector| selector.address())) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_795_900_000); // 2026-11-28

    fn parsed(body: &str, decision: ApprovalDecision) -> Result<ApprovalWords, Vec<String>> {
        let host = Hostname::parse("registry.example").unwrap();
        let request = ApprovalRequest::read(body.as_bytes()).map_err(|bad| vec![bad])?;
        request.parsed(decision, &host, NOW).map(|(_, words)| words)
    }

    #[test]
    fn an_approval_needs_a_version_a_reason_and_a_time_to_come() {
        let of = |more: &str| format!(r#"{{"what":["acme/null@1.0.0"],{more}}}"#);
        let words =
            parsed(&of(r#""reason":" CVE fix ","by":"Ada","until":"2026-12-31""#), ApprovalDecision::Approved).unwrap();
        assert_eq!(words.reason.as_deref(), Some("CVE fix"));
        assert_eq!(words.until.unwrap().date_time(), "2026-12-31T23:59:59Z");
        for (body, problem) in [
            (of(r#""by":"Ada""#), "give a reason"),
            (of(r#""reason":" ""#), "give a reason"),
            (of(r#""reason":"a\nb""#), "one line"),
            (of(r#""reason":"a","by":"a\u0007b""#), "a name has"),
            (of(r#""reason":"a","until":"2026-11-27""#), "has passed"),
            (of(r#""reason":"a","until":"tomorrow""#), "neither a day"),
            (of(r#""reason":"a","until":"2026-02-31""#), "neither a day"),
            (of(r#""reason":"a","who":"b""#), "unknown field"),
            (r#"{"what":["acme/null"],"reason":"a"}"#.to_owned(), "is not one version"),
            (r#"{"what":["acme/null@~> 1.0"],"reason":"a"}"#.to_owned(), "is not one version"),
            (r#"{"what":[],"reason":"a"}"#.to_owned(), "1 to 256"),
        ] {
            let problems = parsed(&body, ApprovalDecision::Approved).unwrap_err();
            assert!(problems[0].contains(problem), "{body}: {problems:?}");
        }
        assert_eq!(parsed(&of(r#""by":"Ada""#), ApprovalDecision::TakenBack).unwrap().reason, None);
        let ends = parsed(&of(r#""until":"2026-12-31""#), ApprovalDecision::TakenBack).unwrap_err();
        assert!(ends[0].contains("ends now"), "{ends:?}");
    }
}
