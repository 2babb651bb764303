//! Commands of an operator: `larder refresh`, `purge`, `accept`, `pin` and `unpin` of addresses; `larder verify`, which
//! re-hashes everything stored and shows progress; `larder missing`, which lists what was requested while offline and is
//! not stored.

use std::io::{IsTerminal as _, Write};

use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::admin_service::{StoreNeed, ask, config_to_ask, parse, with_larder};
use super::terminal::{TerminalLines, TextPage, format_timestamp, plural, width_of_stdout};
use super::{CommonOptions, block_on, print_error, print_json, print_line};
use crate::address::{Hostname, PackageRef};
use crate::http::admin_client::AdminClient;
use crate::mirror::{
    AcceptOutcome, AcceptResult, DamageFinding, DamagedArchive, EvidenceName, MissingRequest, RepairOutcome,
    VerifyEvent,
};
use crate::protocol::admin::operation::{AcceptRequest, Operation, OperationReport, TargetAddresses};
use crate::protocol::admin::order::{AddressFor, AddressRequest, OrderRequest};
use crate::protocol::admin::outcome_lines::{accepted_lines, pinned_lines, purged_lines, refreshed_lines};
use crate::protocol::admin::{MISSING, STATUS, StatusReport, VERIFY};

#[derive(Debug, Args)]
pub(super) struct Addresses {
    /// `[HOST/]NAMESPACE/TYPE[@VERSION]`, such as hashicorp/aws@5.0.0 or 'hashicorp/aws@~> 5.0'; for a module
    /// `[HOST/]NAMESPACE/NAME/SYSTEM[@VERSION]`
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
}

impl Addresses {
    /// Asks upstream again; returns true if it succeeded for every address.
    pub(super) fn refresh(&self, common: &CommonOptions) -> anyhow::Result<bool> {
        self.run(Operation::Refresh, common, refreshed_lines)
    }

    /// Removes from the store; returns true if it succeeded for every address.
    pub(super) fn purge(&self, common: &CommonOptions) -> anyhow::Result<bool> {
        self.run(Operation::Purge, common, purged_lines)
    }

    /// Pins; returns true if it succeeded for every address.
    pub(super) fn pin(&self, common: &CommonOptions) -> anyhow::Result<bool> {
        self.run(Operation::Pin, common, pinned_lines)
    }

    /// Unpins; returns true if it succeeded for every address.
    pub(super) fn unpin(&self, common: &CommonOptions) -> anyhow::Result<bool> {
        self.run(Operation::Unpin, common, pinned_lines)
    }

    fn run<T: Serialize + DeserializeOwned>(
        &self,
        operation: Operation,
        common: &CommonOptions,
        lines_of: impl Fn(&[T], &Hostname) -> Vec<String>,
    ) -> anyhow::Result<bool> {
        let config = config_to_ask(common)?;
        let target = TargetAddresses { what: self.addresses.clone() };
        let report = ask(&config, async |larder: &AdminClient| larder.post(operation.path(), &target).await)?;
        let host = config.default_host();
        print_result(&report, common.json, |items| lines_of(items, &host))
    }
}

#[derive(Debug, Args)]
pub(super) struct Accept {
    #[command(flatten)]
    target: Addresses,
    /// The evidence that you decided about, as `larder status` and `larder explain` print it. Without it, a terminal shows
    /// the evidence and asks
    #[arg(long, value_name = "EVIDENCE", value_parser = EvidenceName::parse)]
    evidence: Vec<EvidenceName>,
}

/// The result of an `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Everything was accepted.
    Accepted,
    /// Something failed.
    Failed,
    /// Nobody has decided yet.
    Open,
}

impl Accept {
    /// Accepts what the named evidence says. Where there is none, or upstream has something else, shows the evidence, and asks
    /// on a terminal.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<Decision> {
        let config = config_to_ask(common)?;
        let host = config.default_host();
        let is_asked = !common.json && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let mut request = AcceptRequest { what: self.target.addresses, evidence: self.evidence };
        block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
            loop {
                let answer = larder.post(Operation::Accept.path(), &request).await?;
                let report: OperationReport<AcceptResult> = parse(&answer)?;
                let is_accepted = print_result(&report, common.json, |items| accepted_lines(items, &host))?;
                let undecided: Vec<EvidenceName> = undecided_evidence(&report).cloned().collect();
                if undecided.is_empty() {
                    return Ok(if is_accepted { Decision::Accepted } else { Decision::Failed });
                }
                if !is_asked {
                    if !common.json {
                        print_error(&format!(
                            "nothing was accepted: compare the evidence with the publisher's release notes, and then run{}",
                            command_with(&request.what, &undecided)
                        ));
                    }
                    return Ok(Decision::Open);
                }
                if !tokio::task::spawn_blocking(|| confirm("Accept this? [y/N] ")).await?? {
                    print_line("nothing was accepted");
                    return Ok(Decision::Open);
                }
                request.evidence = undecided;
            }
        }))
    }
}

/// The evidence in a report that nobody has decided about.
fn undecided_evidence(report: &OperationReport<AcceptResult>) -> impl Iterator<Item = &EvidenceName> {
    report.items.iter().filter_map(|item| match &item.outcome {
        AcceptOutcome::Undecided(undecided) => Some(&undecided.evidence),
        _ => None,
    })
}

/// The command that accepts this evidence, on a line of its own.
fn command_with(what: &[String], evidence: &[EvidenceName]) -> String {
    let quoted = |word: &String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/@.:_-+".contains(c);
        if word.chars().all(is_plain) { word.clone() } else { format!("'{word}'") }
    };
    let what: Vec<String> = what.iter().map(quoted).collect();
    let evidence: String = evidence.iter().map(|evidence| format!(" --evidence {evidence}")).collect();
    format!("\n  larder accept {}{evidence}", what.join(" "))
}

/// Asks a person; anything but a clear yes is a no.
fn confirm(question: &str) -> std::io::Result<bool> {
    let mut out = std::io::stdout();
    out.write_all(question.as_bytes())?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Prints the result; returns true if the command succeeded for every address.
fn print_result<T: Serialize>(
    report: &OperationReport<T>,
    json: bool,
    lines_of: impl Fn(&[T]) -> Vec<String>,
) -> anyhow::Result<bool> {
    if json {
        print_json(report);
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

/// Step between two progress lines without a terminal, in percent.
const PERCENT_PER_LINE: u64 = 10;

/// Verifies the store; returns true if nothing was wrong.
pub(super) fn verify(common: &CommonOptions) -> anyhow::Result<bool> {
    let config = config_to_ask(common)?;
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
        let config = config_to_ask(common)?;
        let (order, requests) = block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
            let answer = if self.forget { larder.delete(MISSING).await } else { larder.get(MISSING).await };
            let order: OrderRequest = parse(&answer?)?;
            // The order goes outside, so it names no clients.
            let status: StatusReport = parse(&larder.get(STATUS).await?)?;
            Ok((order, status.mirror.missing))
        }))?;
        match (common.json, self.forget) {
            (true, _) => print_json(&order),
            (false, true) => print_line("cleared: requests from now on are recorded again"),
            (false, false) => print_line(&missing_page(&order, &requests, &config.default_host(), width_of_stdout())),
        }
        Ok(())
    }
}

/// Renders each provider and module once, with its versions, their platforms and the requests for them, for a terminal of this
/// width.
fn missing_page(order: &OrderRequest, requests: &[MissingRequest], host: &Hostname, width: Option<usize>) -> String {
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
        let is_for = |request: &&MissingRequest| {
            request.package.address == address && request.package.version.as_deref() == version
        };
        if let Some(text) = requests_text(requests.iter().filter(is_for)) {
            page.push_with_prefix("      ", &text);
        }
    }
    let (runners, platform) = match lacks_platforms {
        true => (", for the platforms of your runners", " --platform linux_amd64"),
        false => ("", ""),
    };
    page.group("to do", &format!("with upstream access, fetch these{runners}, and carry the bundle here:"));
    page.command("larder missing --json > missing.json");
    page.command(&format!("larder bundle create missing.tar --for missing.json{platform}"));
    page.command("larder bundle apply missing.tar");
    page.item(
        "`init` stops at the first packages that it lacks. A plan is an order, too, with all that a folder needs:",
        None,
    );
    page.command("larder plan FOLDER --json > plan.json");
    page.command(&format!("larder bundle create missing.tar --for plan.json{platform}"));
    page.text()
}

/// The count of requests, and the last of them: `3 requests, the last for 10.0.0.7 at 2026-11-28 09:12:04 UTC`.
fn requests_text<'a>(requests: impl Iterator<Item = &'a MissingRequest> + Clone) -> Option<String> {
    let times = requests.clone().fold(0, |sum: u64, request| sum.saturating_add(request.times));
    let MissingRequest { last, client, .. } = requests.max_by_key(|request| request.last)?;
    let client = client.as_deref().unwrap_or("a job");
    Some(format!("{}, the last for {client} at {}", plural(times, "request"), format_timestamp(*last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Platform;
    use crate::clock::Timestamp;

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

    fn requests() -> Vec<MissingRequest> {
        let request = |package: PackageRef, times, last: u64, client: Option<&str>| MissingRequest {
            package,
            times,
            last: Timestamp(1_795_293_000 + last),
            client: client.map(str::to_owned),
        };
        let long = PackageRef::requested(
            "registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name@12.34.56",
        );
        let [linux, darwin] = ["linux_amd64", "darwin_arm64"].map(|name| Platform::parse(name).unwrap());
        vec![
            request(long.clone().on(Some(&linux)), 4, 2, Some("10.0.0.9")),
            request(long.on(Some(&darwin)), 3, 1, Some("10.0.0.7")),
            request(PackageRef::requested("registry.terraform.io/acme/vpc/aws@5.1.0"), 5, 1, None),
        ]
    }

    #[test]
    fn the_list_is_grouped_and_fits_80_and_160_columns() {
        let text = missing_page(&order(), &requests(), &host(), None);
        for expected in [
            "3 items",
            "    any version",
            "    12.34.56  darwin_amd64, ",
            "  acme/vpc/aws\n    5.1.0\n      5 requests, the last for a job at 2026-11-21 20:30:01 UTC\n",
            "      7 requests, the last for 10.0.0.9 at 2026-11-21 20:30:02 UTC\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        assert_eq!(text.matches("a-provider-with-a-long-name").count(), 1, "{text}");
        for width in [80, 160] {
            let text = missing_page(&order(), &requests(), &host(), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
        assert!(missing_page(&OrderRequest::default(), &[], &host(), Some(80)).contains("nothing"));
    }
}
