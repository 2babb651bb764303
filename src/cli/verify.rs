//! `larder verify`: re-hashes everything stored, and shows progress.

use std::io::{IsTerminal, Write};

use bytesize::ByteSize;

use super::larder::{StoreNeed, with_larder};
use super::text::plural;
use super::{CommonOptions, block_on, print_error, print_json, print_line};
use crate::mirror::{DamageFinding, DamagedArchive, RepairOutcome, VerifyEvent};
use crate::protocol::admin::VERIFY;

/// Step between two progress lines without a terminal, in percent.
const PERCENT_PER_LINE: u64 = 10;

/// Verifies the store; returns true if nothing was wrong.
pub(super) fn run(common: &CommonOptions) -> anyhow::Result<bool> {
    let (config, _) = common.load()?;
    let mut report =
        VerifyReporter { json: common.json, is_terminal: std::io::stderr().is_terminal(), ..VerifyReporter::default() };
    block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
        Ok(larder.post_steps(VERIFY, |step| report.report(&step)).await?)
    }))?;
    report.finish()
}

/// Prints verify events as lines or JSON.
#[derive(Default)]
struct VerifyReporter {
    json: bool,
    is_terminal: bool,
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
        if !matches!(step, VerifyEvent::Checked { .. }) {
            self.clear_progress_line();
        }
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
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else if percent >= self.last_percent + PERCENT_PER_LINE {
            self.last_percent = percent;
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn clear_progress_line(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
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
