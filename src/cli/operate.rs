//! Commands of an operator: `larder refresh`, `purge`, `accept`, `pin` and `unpin` of addresses; `larder verify`, which
//! re-hashes everything stored and shows progress.

use std::io::{IsTerminal as _, Write};

use anyhow::Context as _;
use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::admin_service::{StoreNeed, ask, config_to_ask, with_larder};
use super::terminal::{TerminalBar, has_bars, plural};
use super::{CommonOptions, block_on, print_error, print_json, print_line};
use crate::address::Hostname;
use crate::http::admin_client::AdminClient;
use crate::mirror::{AcceptOutcome, AcceptResult, EvidenceName, VerifyEvent};
use crate::protocol::admin::VERIFY;
use crate::protocol::admin::operation::{AcceptRequest, Operation, OperationReport, TargetAddresses};
use crate::protocol::admin::outcome_lines::{accepted_lines, unreached_lines};

#[derive(Debug, Args)]
pub(super) struct Addresses {
    /// `[HOST/]NAMESPACE/TYPE[@VERSION]`, such as hashicorp/aws@5.0.0 or 'hashicorp/aws@~> 5.0'; for a module
    /// `[HOST/]NAMESPACE/NAME/SYSTEM[@VERSION]`
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<String>,
}

impl Addresses {
    /// Sends the addresses to an operation, and prints its result; returns true if it succeeded for every address.
    pub(super) fn run<T: Serialize + DeserializeOwned>(
        self,
        operation: Operation,
        common: &CommonOptions,
        lines_of: impl Fn(&[T], &Hostname) -> Vec<String>,
    ) -> anyhow::Result<bool> {
        let config = config_to_ask(common)?;
        let target = TargetAddresses { what: self.addresses };
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
                let report: OperationReport<AcceptResult> = larder.post(Operation::Accept.path(), &request).await?;
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
pub(super) fn print_result<T: Serialize>(
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
    unreached_lines(&report.unreached).for_each(|line| print_error(&line));
    Ok(report.ok)
}

/// Step between two progress lines without a terminal, in percent.
const PERCENT_PER_LINE: u64 = 10;

/// Verifies the store; returns true if nothing was wrong.
pub(super) fn verify(common: &CommonOptions) -> anyhow::Result<bool> {
    let config = config_to_ask(common)?;
    let line = TerminalBar::of_template("{wide_msg}", None);
    let mut report = VerifyReporter { json: common.json, line, totals: (0, 0), last_percent: 0, is_intact: None };
    block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
        Ok(larder.post_steps(VERIFY, |step| report.report(&step)).await?)
    }))?;
    report.is_intact.context("larder stopped before everything was verified")
}

/// Prints verify events as lines or JSON.
struct VerifyReporter {
    json: bool,
    line: TerminalBar,
    /// Number of archives in the store, and their bytes.
    totals: (u64, u64),
    last_percent: u64,
    /// The result; `None` until the last event.
    is_intact: Option<bool>,
}

impl VerifyReporter {
    fn report(&mut self, step: &VerifyEvent) {
        if self.json {
            print_json(step);
        } else {
            self.show(step);
        }
        match step {
            VerifyEvent::Done { wrong, .. } => self.is_intact = Some(*wrong == 0),
            VerifyEvent::Stopped { .. } => self.is_intact = Some(false),
            _ => {}
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
            VerifyEvent::WrongArchive(wrong) => print_line(&wrong.to_string()),
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
        if has_bars() {
            self.line.0.set_message(line);
        } else if percent >= self.last_percent + PERCENT_PER_LINE {
            self.last_percent = percent;
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}
