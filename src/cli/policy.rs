//! `larder policy test`: which versions of a provider or module may be used, and the rule about each of the others.

use clap::{Args, Subcommand};

use super::admin_service::{ask, config_to_ask};
use super::terminal::{Column, TextPage, escape_for_terminal, format_timestamp, plural, width_of_stdout};
use super::{CommonOptions, print_json, print_line};
use crate::address::Hostname;
use crate::mirror::{JudgedVersion, VerdictKind};
use crate::protocol::admin::policy::{PolicyReport, policy_path};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Show which versions may be used, and the rule about each of the others
    Test(PolicyTest),
}

#[derive(Debug, Args)]
pub(super) struct PolicyTest {
    /// `[HOST/]NAMESPACE/TYPE[@VERSION]`, or for a module `[HOST/]NAMESPACE/NAME/SYSTEM[@VERSION]`; a constraint selects
    /// several versions
    #[arg(value_name = "ADDRESS")]
    address: String,
}

impl PolicyCommand {
    /// Prints the verdicts; returns true if a version may be used.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let Self::Test(PolicyTest { address }) = self;
        let config = config_to_ask(common)?;
        let report: PolicyReport = ask(&config, async |larder| larder.get(&policy_path(&address)).await)?;
        if common.json {
            print_json(&report);
        } else {
            print_line(&page(&report, &config.default_host(), width_of_stdout()));
        }
        Ok(report.versions.iter().any(|judged| judged.verdict == VerdictKind::Allowed))
    }
}

fn page(report: &PolicyReport, host: &Hostname, width: Option<usize>) -> String {
    let PolicyReport { address, rules, denied, versions, no_list, .. } = report;
    let mut page = TextPage::with_whole_words(width);
    let default = format!("{host}/");
    let address = escape_for_terminal(address.strip_prefix(&default).unwrap_or(address));
    let allowed = versions.iter().filter(|judged| judged.verdict == VerdictKind::Allowed).count();
    let verdict = match (denied, versions.len()) {
        (Some(reason), _) => format!("NONE of its versions may be used: {}", escape_for_terminal(reason)),
        (None, 0) => "no version is known".to_owned(),
        (None, 1) if allowed == 1 => "this version may be used".to_owned(),
        (None, 1) => "this version may NOT be used".to_owned(),
        (None, all) => format!("{allowed} of {all} versions may be used"),
    };
    let rules = match rules {
        0 => ", without any [[policy]]".to_owned(),
        rules => format!(" ({} in the configuration)", plural(*rules as u64, "rule")),
    };
    page.push_with_prefix("", &format!("{address}: {verdict}{rules}"));
    if let Some(reason) = no_list {
        page.push_with_prefix("", &format!("its list is not known: {}", escape_for_terminal(reason)));
    }
    let row = |judged: &JudgedVersion| {
        let verdict = match judged.verdict {
            VerdictKind::Allowed if judged.approved => "approved".to_owned(),
            VerdictKind::Allowed => "allowed".to_owned(),
            VerdictKind::Held => {
                judged.until.map_or("held".to_owned(), |until| format!("held until {}", format_timestamp(until)))
            }
            VerdictKind::Denied => "denied".to_owned(),
        };
        let unlisted = if judged.listed { "" } else { "upstream does not list it; " };
        let reason = judged.reason.as_deref().filter(|_| denied.is_none()).unwrap_or_default();
        let note = format!("{unlisted}{}", escape_for_terminal(reason));
        ([judged.version.to_string(), verdict], note.trim_end_matches("; ").to_owned())
    };
    let rows: Vec<_> = versions.iter().map(row).collect();
    if !rows.is_empty() {
        page.columns([Column::Left(""), Column::Left("")], &rows);
    }
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Version;
    use crate::clock::Timestamp;

    #[test]
    fn each_version_has_its_verdict_and_the_default_host_is_left_out() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let judged = |version: &str, verdict, reason: Option<&str>| JudgedVersion {
            version: Version::parse(version).unwrap(),
            verdict,
            until: None,
            reason: reason.map(str::to_owned),
            approved: false,
            listed: true,
        };
        let denied = "the policy for hashicorp/aws denies the versions = 6.1.0: it loses state";
        let mut report = PolicyReport {
            address: "registry.terraform.io/hashicorp/aws".to_owned(),
            now: Timestamp(0),
            rules: 2,
            denied: None,
            versions: vec![
                judged("6.1.0", VerdictKind::Denied, Some(denied)),
                judged("6.0.0", VerdictKind::Allowed, None),
            ],
            no_list: None,
        };
        assert_eq!(
            page(&report, &host, None),
            format!(
                "hashicorp/aws: 1 of 2 versions may be used (2 rules in the configuration)\n  6.1.0  denied   {denied}\n  6.0.0  allowed"
            )
        );
        report.versions.truncate(1);
        report.versions[0].listed = false;
        let text = page(&report, &host, Some(80));
        assert!(text.contains("may NOT be used") && text.contains("upstream does not list it; the policy"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
