//! `larder refresh`, `purge`, `accept`, `pin` and `unpin`: of addresses.

use bytes::Bytes;
use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::larder::{StoreNeed, parse, with_larder};
use super::text::{escape_for_terminal, plural};
use super::{CommonOptions, block_on, print_error, print_json, print_line};
use crate::address::Hostname;
use crate::mirror::{AcceptOutcome, AcceptResult, PinOutcome, PinResult, PurgeResult, RefreshOutcome, RefreshResult};
use crate::protocol::admin::command::{Operation, OperationReport, OperationTarget};

#[derive(Debug, Args)]
pub(super) struct Addresses {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// `[HOST/]NAMESPACE/TYPE[@VERSION]`, such as hashicorp/aws@5.0.0 or 'hashicorp/aws@~> 5.0'; for a module
    /// `[HOST/]NAMESPACE/NAME/SYSTEM[@VERSION]`
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
}

impl Addresses {
    /// Runs the command; returns true if it succeeded for every address.
    pub(super) fn run(self, operation: Operation) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let (json, host) = (self.common.json, config.default_host());
        let body = Bytes::from(serde_json::to_vec(&OperationTarget { what: self.addresses })?);
        let answer = block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
            Ok(larder.post(&operation.path(), body).await?)
        }))?;
        match operation {
            Operation::Refresh => print_result(&answer, json, |items| refreshed_lines(items, &host)),
            Operation::Purge => print_result(&answer, json, |items| purged_lines(items, &host)),
            Operation::Accept => print_result(&answer, json, |items| accepted_lines(items, &host)),
            Operation::Pin | Operation::Unpin => print_result(&answer, json, |items| pinned_lines(items, &host)),
        }
    }
}

/// Prints the result; returns true if the command succeeded for every address.
fn print_result<T: Serialize + DeserializeOwned>(
    answer: &[u8],
    json: bool,
    lines_of: impl Fn(&[T]) -> Vec<String>,
) -> anyhow::Result<bool> {
    let report: OperationReport<T> = parse(answer)?;
    if json {
        print_json(&report);
        return Ok(report.ok);
    }
    // Without any item, the errors say everything.
    if !report.items.is_empty() || report.errors.is_empty() {
        lines_of(&report.items).iter().for_each(|line| print_line(line));
    }
    for error in &report.errors {
        print_error(error);
    }
    Ok(report.ok)
}

fn refreshed_lines(items: &[RefreshResult], host: &Hostname) -> Vec<String> {
    let subject_of = |item: &RefreshResult| item.package.without(host).to_string();
    let width = items.iter().map(|item| subject_of(item).chars().count()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for item in items {
        let (subject, outcome) = (subject_of(item), &item.news);
        let outcome_text = match outcome {
            RefreshOutcome::Unchanged => "unchanged",
            RefreshOutcome::New => "new",
            RefreshOutcome::Gone => "gone upstream; the stored copy stays",
            RefreshOutcome::Absent { .. } => "not found",
            RefreshOutcome::Failed { .. } => "failed; what is stored stays",
        };
        lines.push(format!("{subject:width$}  {outcome_text}"));
        if let RefreshOutcome::Absent { error } | RefreshOutcome::Failed { error } = outcome {
            lines.push(format!("  {error}"));
        }
    }
    lines
}

fn purged_lines(items: &[PurgeResult], host: &Hostname) -> Vec<String> {
    let mut lines = Vec::new();
    for item in items {
        let PurgeResult { archives, archive_bytes, shared, documents, document_bytes, .. } = item;
        let subject = item.package.without(host);
        if *archives == 0 && *documents == 0 && *shared == 0 && item.is_all() {
            lines.push(format!("{subject}: nothing was stored"));
            continue;
        }
        let archives = plural(*archives, "archive");
        let documents = plural(*documents, "document");
        let (archive_bytes, document_bytes) = (ByteSize(*archive_bytes), ByteSize(*document_bytes));
        lines.push(format!("{subject}: removed {archives} ({archive_bytes}) and {documents} ({document_bytes})"));
        if *shared > 0 {
            lines.push(format!("  {} not removed: another package uses the same bytes", plural(*shared, "archive")));
        }
        lines.extend(item.pinned.iter().map(|package| format!("  not removed: {package} is pinned")));
        lines.extend(item.left.iter().map(|reason| format!("  not removed: {reason}")));
        let unreadable_line =
            |subject| format!("  unreadable: {subject}; an archive listed only there may still be stored");
        lines.extend(item.unreadable.iter().map(unreadable_line));
    }
    if items.iter().any(|item| item.seen_is_kept && item.archives + item.documents > 0) {
        lines.push("first-seen records stay: a changed republication still raises an alarm".to_owned());
    }
    lines
}

fn pinned_lines(items: &[PinResult], host: &Hostname) -> Vec<String> {
    let outcome = |pinned: &PinResult| match pinned.outcome {
        PinOutcome::Pinned => "pinned: never evicted, and not purged",
        PinOutcome::Unpinned => "no longer pinned",
        PinOutcome::AsBefore => "unchanged",
        PinOutcome::WhenItComes => "will be pinned once its job has fetched it",
        PinOutcome::NotHeld => {
            "not stored, so there is nothing to pin or unpin; `larder warm --pin` fetches and pins it"
        }
    };
    items.iter().map(|pinned| format!("{}: {}", pinned.package.without(host), outcome(pinned))).collect()
}

fn accepted_lines(items: &[AcceptResult], host: &Hostname) -> Vec<String> {
    let mut lines = Vec::new();
    for AcceptResult { package, ruling: outcome } in items {
        let subject = package.without(host);
        match outcome {
            AcceptOutcome::NothingToAccept => lines.push(format!(
                "{subject}: nothing to accept: upstream's version is already served; its alarms are resolved"
            )),
            AcceptOutcome::Withdrawn { error } => {
                lines.push(format!(
                    "{subject}: gone upstream; nothing is accepted, and its alarms are resolved: {error}"
                ));
            }
            AcceptOutcome::Failed { error } => lines.push(format!("{subject}: not accepted: {error}")),
            AcceptOutcome::AcceptedTree { tree_before, tree, commit_before, commit } => {
                lines.push(format!("{subject}: accepted"));
                let commit_text = |commit: &Option<String>| match commit {
                    Some(commit) => format!(", commit {}", escape_for_terminal(commit)),
                    None => String::new(),
                };
                if let Some(previous) = tree_before {
                    lines.push(format!("  was tree {previous}{}", commit_text(commit_before)));
                }
                lines.push(format!("  is  tree {tree}{}", commit_text(commit)));
            }
            AcceptOutcome::AcceptedElsewhere { tree_before, source } => {
                lines.push(format!("{subject}: accepted"));
                lines.extend(tree_before.map(|previous| format!("  was tree {previous}")));
                lines.push(format!("  is  {source}: clients fetch it directly, and larder checks nothing"));
            }
            AcceptOutcome::Accepted { files, keys_before, key } => {
                lines.push(format!("{subject}: accepted"));
                let is_known_key = key.as_ref().is_some_and(|key| keys_before.contains(key));
                lines.push(match key {
                    Some(key) if is_known_key => format!("  signed by {key}, which signed other versions before"),
                    Some(key) => format!("  signed by {key}, new"),
                    None => "  unsigned".to_owned(),
                });
                if !is_known_key {
                    let previous_keys =
                        if keys_before.is_empty() { "no key".to_owned() } else { keys_before.join(", ") };
                    lines.push(format!("  before, signed by {previous_keys}"));
                }
                for changed in files {
                    lines.push(format!("  {}", escape_for_terminal(&changed.file)));
                    lines.extend(changed.before.iter().map(|digest| format!("    was {digest}")));
                    lines.push(format!("    is  {}", changed.now));
                }
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::text::is_plain;
    use super::*;
    use crate::address::PackageRef;
    use crate::mirror::ChangedFile;

    /// File names come from the publisher and are printed on the operator's terminal.
    #[test]
    fn a_file_name_from_upstream_cannot_control_the_terminal() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let now = crate::digest::Digest::of(b"zip");
        let file = "a\u{1b}[2Kb\u{202e}\u{61c}\u{9b}é.zip".to_owned();
        let files = vec![ChangedFile { file, before: vec![], now }];
        let outcome = AcceptOutcome::Accepted { files, keys_before: vec![], key: None };
        let lines =
            accepted_lines(&[AcceptResult { package: PackageRef::requested("acme/null"), ruling: outcome }], &host);
        assert!(lines.contains(&"  a\\u{1b}[2Kb\\u{202e}\\u{61c}\\u{9b}é.zip".to_owned()), "{lines:?}");
        assert!(!lines.concat().contains(|c: char| !is_plain(c)));
    }
}
