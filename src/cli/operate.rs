//! Commands of an operator: `larder refresh`, `purge`, `accept`, `pin` and `unpin` of addresses; `larder verify`, which
//! re-hashes everything stored and shows progress; `larder missing`, which lists what was requested while offline and is
//! not stored.

use std::io::Write;

use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;

use super::admin_service::{StoreNeed, ask, with_larder};
use super::terminal::{TerminalLines, TextPage, escape_for_terminal, plural, width_of_stdout};
use super::{CommonOptions, block_on, print_error, print_json, print_line};
use crate::address::{Hostname, PackageRef};
use crate::http::admin_client::AdminClient;
use crate::mirror::{
    AcceptOutcome, AcceptResult, DamageFinding, DamagedArchive, PinOutcome, PinResult, PurgeResult, RefreshOutcome,
    RefreshResult, RepairOutcome, VerifyEvent,
};
use crate::protocol::admin::operation::{Operation, OperationReport, TargetAddresses};
use crate::protocol::admin::order::{AddressFor, AddressRequest, OrderRequest};
use crate::protocol::admin::{MISSING, VERIFY};

#[derive(Debug, Args)]
pub(super) struct Addresses {
    /// `[HOST/]NAMESPACE/TYPE[@VERSION]`, such as hashicorp/aws@5.0.0 or 'hashicorp/aws@~> 5.0'; for a module
    /// `[HOST/]NAMESPACE/NAME/SYSTEM[@VERSION]`
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
}

impl Addresses {
    /// Runs the command; returns true if it succeeded for every address.
    pub(super) fn run(self, operation: Operation, common: &CommonOptions) -> anyhow::Result<bool> {
        let (config, _) = common.load()?;
        let (json, host) = (common.json, config.default_host());
        let (path, target) = (operation.path(), TargetAddresses { what: self.addresses });
        let report = async |larder: &AdminClient| larder.post(path, &target).await;
        match operation {
            Operation::Refresh => print_result(ask(&config, report)?, json, |items| refreshed_lines(items, &host)),
            Operation::Purge => print_result(ask(&config, report)?, json, |items| purged_lines(items, &host)),
            Operation::Accept => print_result(ask(&config, report)?, json, |items| accepted_lines(items, &host)),
            Operation::Pin | Operation::Unpin => {
                print_result(ask(&config, report)?, json, |items| pinned_lines(items, &host))
            }
        }
    }
}

/// Prints the result; returns true if the command succeeded for every address.
fn print_result<T: Serialize>(
    report: OperationReport<T>,
    json: bool,
    lines_of: impl Fn(&[T]) -> Vec<String>,
) -> anyhow::Result<bool> {
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

fn purged_lines(items: &[PurgeResult], host: &Hostname) -> Vec<String> {
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

fn pinned_lines(items: &[PinResult], host: &Hostname) -> Vec<String> {
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

fn accepted_lines(items: &[AcceptResult], host: &Hostname) -> Vec<String> {
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

/// Step between two progress lines without a terminal, in percent.
const PERCENT_PER_LINE: u64 = 10;

/// Verifies the store; returns true if nothing was wrong.
pub(super) fn verify(common: &CommonOptions) -> anyhow::Result<bool> {
    let (config, _) = common.load()?;
    let lines = TerminalLines::of_messages();
    let mut report = VerifyReporter { json: common.json, lines, totals: (0, 0), last_percent: 0, last_step: None };
    block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
        Ok(larder.post_steps(VERIFY, |step| report.report(&step)).await?)
    }))?;
    report.finish()
}

/// Prints verify events as lines or JSON.
struct VerifyReporter {
    json: bool,
    lines: TerminalLines,
    /// Number of archives in the store, and their bytes.
    totals: (u64, u64),
    last_percent: u64,
    last_step: Option<VerifyEvent>,
}

impl VerifyReporter {
    fn report(&mut self, step: &VerifyEvent) {
        if self.json {
            print_json(step);
        } else {
            self.show(step);
        }
        if matches!(step, VerifyEvent::Done { .. } | VerifyEvent::Stopped { .. }) {
            self.last_step = Some(step.clone());
        }
    }

    fn show(&mut self, step: &VerifyEvent) {
        match step {
            VerifyEvent::Begun { records, archives, bytes } => {
                self.totals = (*archives, *bytes);
                let (archives, bytes) = (plural(*archives, "archive"), ByteSize(*bytes));
                print_line(&format!("verifying {} and {archives} ({bytes})", plural(*records, "record")));
            }
            VerifyEvent::Checked { archives, bytes } => self.progress(*archives, *bytes),
            VerifyEvent::WrongRecord { record } => print_line(&format!("damaged: {record}")),
            VerifyEvent::WrongArchive(wrong) => print_line(&damage_text(wrong)),
            VerifyEvent::Unreadable { what: subject, error } => print_line(&format!("unreadable: {subject}: {error}")),
            VerifyEvent::Imported { archives } => {
                let archives = plural(*archives, "archive");
                print_line(&format!(
                    "{archives} as imported, without signatures: only their digests could be verified"
                ));
            }
            VerifyEvent::Done { wrong, .. } => print_line(&match wrong {
                0 => "everything is intact".to_owned(),
                count => format!("{} failed verification", plural(*count, "item")),
            }),
            VerifyEvent::Stopped { error } => print_error(&format!("verifying ended early: {error}")),
        }
    }

    fn progress(&mut self, archives: u64, bytes: u64) {
        let percent = bytes.saturating_mul(100).checked_div(self.totals.1).unwrap_or(100);
        let line = format!("{percent:>3} %  {archives} of {} ({})", plural(self.totals.0, "archive"), ByteSize(bytes));
        if !self.lines.bar.is_hidden() {
            self.lines.bar.set_message(line);
        } else if percent >= self.last_percent + PERCENT_PER_LINE {
            self.last_percent = percent;
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn finish(self) -> anyhow::Result<bool> {
        match self.last_step {
            Some(VerifyEvent::Done { wrong, .. }) => Ok(wrong == 0),
            Some(_) => Ok(false),
            None => Err(anyhow::anyhow!("larder stopped before everything was verified")),
        }
    }
}

fn damage_text(wrong: &DamagedArchive) -> String {
    let DamagedArchive { digest, of: packages, found, healed } = wrong;
    let packages = if packages.is_empty() { "no package".to_owned() } else { packages.join(", ") };
    let found = match found {
        DamageFinding::Damaged => "damaged",
        DamageFinding::Missing => "missing",
    };
    let repair = match healed {
        RepairOutcome::FetchedAgain => "fetched again".to_owned(),
        RepairOutcome::NobodyNeedsIt => "no package needs this archive".to_owned(),
        RepairOutcome::Offline => {
            "not fetched again, because larder is offline; `larder missing` lists the package".to_owned()
        }
        RepairOutcome::NotNow { error } => format!("not fetched again yet: {error}"),
    };
    format!("{found}: the archive of {packages} (SHA-256 {digest}); {repair}")
}

#[derive(Debug, Args)]
pub(super) struct MissingCommand {
    /// Clear the list instead of printing it
    #[arg(long)]
    forget: bool,
}

impl MissingCommand {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let (config, _) = common.load()?;
        let order: OrderRequest =
            ask(
                &config,
                async |larder| {
                    if self.forget { larder.delete(MISSING).await } else { larder.get(MISSING).await }
                },
            )?;
        match (common.json, self.forget) {
            (true, _) => print_json(&order),
            (false, true) => print_line("cleared: requests from now on are recorded again"),
            (false, false) => print_line(&missing_page(&order, &config.default_host(), width_of_stdout())),
        }
        Ok(())
    }
}

/// Renders each provider and module once, with its versions and their platforms, for a terminal of this width.
fn missing_page(order: &OrderRequest, host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    if order.what.is_empty() {
        page.group("missing", "nothing: everything requested while offline is stored");
        return page.text();
    }
    let number = plural(order.what.len() as u64, "item");
    page.group("missing", &format!("{number} requested while offline and not stored"));
    let (mut last_address, mut lacks_platforms) = ("", false);
    for request in &order.what {
        let (selector, platforms) = match request {
            AddressRequest::Text(address) => (address, &[][..]),
            AddressRequest::For(AddressFor { address, platforms }) => (address, platforms.as_slice()),
        };
        let (address, version) =
            selector.split_once('@').map_or((selector.as_str(), None), |(address, version)| (address, Some(version)));
        // A request for a version list names no platform. A provider address has three segments, a module address four.
        lacks_platforms |= platforms.is_empty() && address.split('/').count() == 3;
        if address != last_address {
            page.item(&PackageRef::requested(address).without(host).to_string(), None);
            last_address = address;
        }
        let platforms = if platforms.is_empty() { String::new() } else { format!("  {}", platforms.join(", ")) };
        page.push_with_prefix("    ", &format!("{}{platforms}", version.unwrap_or("any version")));
    }
    let (runners, platform) = match lacks_platforms {
        true => (", for the platforms of your runners", " --platform linux_amd64"),
        false => ("", ""),
    };
    page.group("to do", &format!("with upstream access, fetch these{runners}, and carry the bundle here:"));
    page.command("larder missing --json > missing.json");
    page.command(&format!("larder bundle create missing.tar --for missing.json{platform}"));
    page.text()
}

#[cfg(test)]
mod tests {
    use super::super::terminal::is_plain;
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
        let lines = accepted_lines(&[AcceptResult { package: PackageRef::requested("acme/null"), outcome }], &host);
        assert!(lines.contains(&"  a\\u{1b}[2Kb\\u{202e}\\u{61c}\\u{9b}é.zip".to_owned()), "{lines:?}");
        assert!(!lines.concat().contains(|c: char| !is_plain(c)));
    }

    fn host() -> Hostname {
        Hostname::parse("registry.terraform.io").unwrap()
    }

    fn order() -> OrderRequest {
        let request = |address: &str, platforms: &[&str]| {
            let platforms = platforms.iter().map(|name| (*name).to_owned()).collect();
            AddressRequest::For(AddressFor { address: address.to_owned(), platforms })
        };
        let addresses = vec![
            request("registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name", &[]),
            request(
                "registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name@12.34.56",
                &["darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64", "windows_amd64"],
            ),
            request("registry.terraform.io/acme/vpc/aws@5.1.0", &[]),
        ];
        OrderRequest { what: addresses, ..OrderRequest::default() }
    }

    #[test]
    fn the_list_is_grouped_and_fits_80_and_160_columns() {
        let text = missing_page(&order(), &host(), None);
        for expected in ["3 items", "    any version", "    12.34.56  darwin_amd64, ", "  acme/vpc/aws\n    5.1.0"] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        assert_eq!(text.matches("a-provider-with-a-long-name").count(), 1, "{text}");
        for width in [80, 160] {
            let text = missing_page(&order(), &host(), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
        assert!(missing_page(&OrderRequest::default(), &host(), Some(80)).contains("nothing"));
    }
}
