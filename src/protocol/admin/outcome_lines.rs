//! The results of operations in words: as the commands print them, and as the status page shows them. Each is a line, and
//! what belongs to the line before it is indented. An address is without its host, if that is the default one.

use std::time::Duration;

use bytesize::ByteSize;

use crate::address::{Hostname, PackageRef};
use crate::mirror::{
    AcceptOutcome, AcceptResult, ApprovalOutcome, ApprovalResult, ChangedFile, KnownKey, PinOutcome, PinResult,
    PurgeResult, RefreshOutcome, RefreshResult, UndecidedEvidence, UndecidedVersion,
};
use crate::store::Unreached;
use crate::wording::{escape_invisible, format_timestamp, plural};

/// Describes the replicas that may still serve what was changed.
pub(crate) fn unreached_lines(replicas: &[Unreached]) -> impl Iterator<Item = String> {
    replicas.iter().map(|Unreached { url, silent_seconds, is_heard }| {
        let silence = humantime::format_duration(Duration::from_secs(*silent_seconds));
        if *is_heard {
            format!(
                "{url} has not heard of this yet: it reached the database {silence} ago; try again, or look at its log"
            )
        } else {
            format!(
                "{url} is silent: it reached the database {silence} ago, and serves what it had then if it still runs"
            )
        }
    })
}

/// Describes the results of `refresh`.
pub(crate) fn refreshed_lines(items: &[RefreshResult], host: &Hostname) -> Vec<String> {
    let subject_of = |item: &RefreshResult| item.package.without(host).to_string();
    let width = items.iter().map(|item| subject_of(item).chars().count()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for item in items {
        let (subject, outcome) = (subject_of(item), &item.outcome);
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

/// Describes the results of `purge`.
pub(crate) fn purged_lines(items: &[PurgeResult], host: &Hostname) -> Vec<String> {
    let mut lines = Vec::new();
    for item in items {
        let PurgeResult { archives, archive_bytes, shared, documents, document_bytes, .. } = item;
        let subject = item.package.without(host);
        if *archives == 0 && *documents == 0 && *shared == 0 && item.removed_everything() {
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

/// Describes the results of `pin` and `unpin`.
pub(crate) fn pinned_lines(items: &[PinResult], host: &Hostname) -> Vec<String> {
    let outcome = |pinned: &PinResult| match pinned.outcome {
        PinOutcome::Pinned => "pinned: never evicted, and not purged",
        PinOutcome::Unpinned => "no longer pinned",
        PinOutcome::AsBefore => "unchanged",
        PinOutcome::WhenItComes => "will be pinned once its job has fetched it",
        PinOutcome::NotStored => {
            "not stored, so there is nothing to pin or unpin; `larder warm --pin` fetches and pins it"
        }
    };
    items.iter().map(|pinned| format!("{}: {}", pinned.package.without(host), outcome(pinned))).collect()
}

/// Describes the results of `approve` and `unapprove`.
pub(crate) fn decided_lines(items: &[ApprovalResult], host: &Hostname) -> Vec<String> {
    let mut lines = Vec::new();
    for ApprovalResult { package, outcome } in items {
        let subject = package.without(host);
        match outcome {
            ApprovalOutcome::Approved { until, lifted, unlisted } => {
                let until = until.map(|until| format!(" until {}", format_timestamp(until))).unwrap_or_default();
                lines.push(format!("{subject}: approved{until}"));
                lines.push(match lifted {
                    Some(rule) => format!("  although {}", escape_invisible(rule)),
                    None => "  no rule holds it back now, so this changes nothing yet".to_owned(),
                });
                if *unlisted {
                    lines.push("  upstream's list does not name this version: is it spelled right?".to_owned());
                }
            }
            ApprovalOutcome::Unlisted => {
                lines.push(format!("{subject}: NOT approved: upstream's list does not name this version"));
                lines.push(
                    "  is it spelled right? With an end (--until) it can be approved before it is listed".to_owned(),
                );
            }
            ApprovalOutcome::Denied { reason } => {
                lines.push(format!("{subject}: NOT approved: {}", escape_invisible(reason)));
                lines.push("  an approval lifts only the age that a rule demands".to_owned());
            }
            ApprovalOutcome::TakenBack { held, until } => {
                lines.push(format!("{subject}: no longer approved"));
                let until = until.map(|until| format!(" (until {})", format_timestamp(until))).unwrap_or_default();
                lines.push(match held {
                    Some(rule) => format!("  {}{until}", escape_invisible(rule)),
                    None => "  it may still be used: no rule holds it back now".to_owned(),
                });
            }
            ApprovalOutcome::NotApproved => lines.push(format!("{subject}: it was not approved; nothing changed")),
        }
    }
    lines
}

/// The most changed files that are named of one package. The others are counted.
const MAX_FILES: usize = 5;

/// Describes the results of `accept`: the platforms of a version that have the same result once.
pub(crate) fn accepted_lines(items: &[AcceptResult], host: &Hostname) -> Vec<String> {
    let is_same = |one: &AcceptResult, other: &AcceptResult| {
        (&one.package.address, &one.package.version, &one.outcome)
            == (&other.package.address, &other.package.version, &other.outcome)
    };
    items.chunk_by(is_same).flat_map(|same| accepted_lines_of(same, host)).collect()
}

/// Describes one result, which all of these packages have.
fn accepted_lines_of(items: &[AcceptResult], host: &Hostname) -> Vec<String> {
    let Some(AcceptResult { package, outcome }) = items.first() else { return Vec::new() };
    let platforms: Vec<String> =
        items.iter().filter_map(|item| item.package.platform.as_ref()).map(ToString::to_string).collect();
    let whole = PackageRef { platform: None, ..package.clone() };
    let subject = match platforms.len() {
        0 | 1 => package.without(host).to_string(),
        _ => format!("{} ({})", whole.without(host), platforms.join(", ")),
    };
    let mut lines = Vec::new();
    match outcome {
        AcceptOutcome::Undecided(undecided) => {
            lines.push(format!("{subject}: nothing is accepted yet. You decide about this:"));
            lines.extend(undecided_lines(undecided));
        }
        AcceptOutcome::NothingToAccept => lines.push(format!(
            "{subject}: nothing to accept: upstream's version is already served, and no alarm about it is left"
        )),
        AcceptOutcome::Withdrawn { error } => {
            lines
                .push(format!("{subject}: gone upstream; nothing is accepted, and no alarm about it is left: {error}"));
        }
        AcceptOutcome::Failed { error } => lines.push(format!("{subject}: not accepted: {error}")),
        AcceptOutcome::AcceptedTree { tree_before, tree, commit_before, commit } => {
            lines.push(format!("{subject}: accepted"));
            let was_line = |previous| format!("  was tree {previous}{}", commit_text(commit_before.as_ref()));
            lines.extend(tree_before.as_ref().map(was_line));
            lines.push(format!("  is  tree {tree}{}", commit_text(commit.as_ref())));
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
                let previous_keys = if keys_before.is_empty() { "no key".to_owned() } else { keys_before.join(", ") };
                lines.push(format!("  before, signed by {previous_keys}"));
            }
            lines.extend(files.iter().take(MAX_FILES).flat_map(|file| file_lines(file, "  ")));
            if let more @ 1.. = files.len().saturating_sub(MAX_FILES) {
                lines.push(format!("  and {} more", plural(more as u64, "file")));
            }
        }
    }
    lines
}

fn commit_text(commit: Option<&String>) -> String {
    commit.map(|commit| format!(", commit {}", escape_invisible(commit))).unwrap_or_default()
}

fn file_lines(ChangedFile { file, before, now }: &ChangedFile, margin: &str) -> Vec<String> {
    let mut lines = vec![format!("{margin}{}", escape_invisible(file))];
    lines.extend(before.iter().map(|digest| format!("{margin}  was {digest}")));
    lines.push(format!("{margin}  is  {now}"));
    lines
}

/// Describes what a person decides about, as the card of an alarm on the status page does.
fn undecided_lines(undecided: &UndecidedEvidence) -> Vec<String> {
    let UndecidedEvidence { evidence, known_keys, new_signers, versions } = undecided;
    let mut lines = Vec::new();
    for version in versions {
        match version {
            UndecidedVersion::Provider { version, key, changed, added, file } => {
                let known = key.as_ref().and_then(|key| known_keys.iter().find(|known| known.key == *key));
                let signer = match (key, known) {
                    (None, _) => "unsigned".to_owned(),
                    (Some(key), None) => format!("signed by {key}, which never signed for this provider"),
                    (Some(key), Some(known)) => {
                        format!("signed by {key}, which signed {}", plural(known.versions as u64, "version"))
                    }
                };
                lines.push(format!("  {version}  {signer}"));
                let counts = [(*changed, "changed"), (*added, "new")];
                let counts: Vec<String> = counts
                    .iter()
                    .filter(|(count, _)| *count > 0)
                    .map(|(count, text)| format!("{} {text}", plural(*count as u64, "file")))
                    .collect();
                if !counts.is_empty() {
                    lines.push(format!("    {}, such as", counts.join(", ")));
                }
                lines.extend(file.iter().flat_map(|file| file_lines(file, "    ")));
            }
            UndecidedVersion::Module { version, tree_before, commit_before, tree, commit, source } => {
                lines.push(format!("  {version}"));
                let first = match tree_before {
                    Some(tree) => format!("tree {tree}{}", commit_text(commit_before.as_ref())),
                    None => "not known: the record of the first tree is damaged".to_owned(),
                };
                lines.push(format!("    was {first}"));
                lines.extend(tree.map(|tree| format!("    is  tree {tree}{}", commit_text(commit.as_ref()))));
                let elsewhere = |source: &String| {
                    format!(
                        "    is  at {}: clients fetch it directly, and larder checks nothing",
                        escape_invisible(source)
                    )
                };
                lines.extend(source.as_ref().map(elsewhere));
            }
        }
    }
    for signer in new_signers {
        lines.push(match signer {
            Some(key) => format!("  from then on {key} vouches for every version"),
            None => "  from then on unsigned versions are taken".to_owned(),
        });
    }
    if !known_keys.is_empty() {
        let keys = known_keys
            .iter()
            .map(|KnownKey { key, versions }| format!("{key} ({})", plural(*versions as u64, "version")));
        lines.push(format!("  keys known so far: {}", keys.collect::<Vec<_>>().join(", ")));
    }
    lines.push(format!("  evidence {evidence}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::wording::is_plain;

    /// File names come from the publisher and are printed on the operator's terminal.
    #[test]
    fn a_file_name_from_upstream_cannot_control_the_terminal() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let now = Digest::of(b"zip");
        let file = "a\u{1b}[2Kb\u{202e}\u{61c}\u{9b}é.zip".to_owned();
        let files = vec![ChangedFile { file, before: vec![], now }];
        let outcome = AcceptOutcome::Accepted { files, keys_before: vec![], key: None };
        let lines = accepted_lines(&[AcceptResult { package: PackageRef::requested("acme/null"), outcome }], &host);
        assert!(lines.contains(&"  a\\u{1b}[2Kb\\u{202e}\\u{61c}\\u{9b}é.zip".to_owned()), "{lines:?}");
        assert!(!lines.concat().contains(|c: char| !is_plain(c)));
    }
}
