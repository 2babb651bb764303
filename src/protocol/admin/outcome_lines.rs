//! The results of operations in words: as the commands print them, and as the status page shows them. Each is a line, and
//! what belongs to the line before it is indented. An address is without its host, if that is the default one.

use bytesize::ByteSize;

use crate::address::Hostname;
use crate::mirror::{AcceptOutcome, AcceptResult, PinOutcome, PinResult, PurgeResult, RefreshOutcome, RefreshResult};
use crate::wording::{escape_invisible, plural};

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

/// Describes the results of `accept`.
pub(crate) fn accepted_lines(items: &[AcceptResult], host: &Hostname) -> Vec<String> {
    let mut lines = Vec::new();
    for AcceptResult { package, outcome } in items {
        let subject = package.without(host);
        match outcome {
            AcceptOutcome::NothingToAccept => lines.push(format!(
                "{subject}: nothing to accept: upstream's version is already served, and no alarm about it is left"
            )),
            AcceptOutcome::Withdrawn { error } => {
                lines.push(format!(
                    "{subject}: gone upstream; nothing is accepted, and no alarm about it is left: {error}"
                ));
            }
            AcceptOutcome::Failed { error } => lines.push(format!("{subject}: not accepted: {error}")),
            AcceptOutcome::AcceptedTree { tree_before, tree, commit_before, commit } => {
                lines.push(format!("{subject}: accepted"));
                let commit_text = |commit: &Option<String>| match commit {
                    Some(commit) => format!(", commit {}", escape_invisible(commit)),
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
                    lines.push(format!("  {}", escape_invisible(&changed.file)));
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
    use super::*;
    use crate::address::PackageRef;
    use crate::digest::Digest;
    use crate::mirror::ChangedFile;
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
