//! `larder verify`: re-hashes everything stored, and shows progress.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use bytesize::ByteSize;

use super::command::must_have_a_store;
use super::text::counted;
use super::{Common, ask_running, runtime, say, say_error};
use crate::app::{self, Settings};
use crate::config::Config;
use crate::http::admin_client::{self, NoAnswer};
use crate::mirror::{DamageFinding, Healed, Step, Wrong};

/// Step between two progress lines without a terminal, in percent.
const PERCENT_A_LINE: u64 = 10;

/// Verifies the store; returns true if nothing was wrong.
pub(super) fn run(common: &Common) -> anyhow::Result<bool> {
    let (config, _) = common.load()?;
    let mut report = Report { json: common.json, watched: std::io::stderr().is_terminal(), ..Report::default() };
    runtime()?.block_on(walk(&config, &mut report))?;
    report.ended()
}

async fn walk(config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut unread = None;
    let told = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(step) => report.tell(&step),
        Err(error) => unread = Some(error),
    };
    let reading =
        ask_running(config, async |at, token| admin_client::post_lines(at, "/admin/v1/verify", token, told).await);
    match reading.await {
        Ok(()) => {}
        Err(NoAnswer::NotRunning(_)) => {
            must_have_a_store(config)?;
            let settings = Settings::default();
            let (mirror, _, _) = app::mirror(config, &settings)?;
            let mut steps = mirror.verify(&mirror.job(settings.clock.now()))?;
            while let Some(step) = steps.recv().await {
                report.tell(&step);
            }
            mirror.close().await?;
        }
        Err(error) => return Err(error.into()),
    }
    unread.map_or(Ok(()), |error| Err(error).context("the running larder is of another version"))
}

/// Prints verify events as lines or JSON.
#[derive(Default)]
struct Report {
    json: bool,
    watched: bool,
    /// Number of archives in the store, and their bytes.
    all: (u64, u64),
    percent_told: u64,
    ending: Option<Step>,
}

impl Report {
    fn tell(&mut self, step: &Step) {
        if self.json {
            match serde_json::to_string(step) {
                Ok(line) => say(&line),
                Err(error) => say_error(&error.to_string()),
            }
        } else {
            self.show(step);
        }
        if matches!(step, Step::Done { .. } | Step::Stopped { .. }) {
            self.ending = Some(step.clone());
        }
    }

    fn show(&mut self, step: &Step) {
        if !matches!(step, Step::Checked { .. }) {
            self.wipe();
        }
        match step {
            Step::Begun { records, archives, bytes } => {
                self.all = (*archives, *bytes);
                let (archives, bytes) = (counted(*archives, "archive"), ByteSize(*bytes));
                say(&format!("verifying {} and {archives} ({bytes})", counted(*records, "record")));
            }
            Step::Checked { archives, bytes } => self.progress(*archives, *bytes),
            Step::WrongRecord { record } => say(&format!("damaged: {record}")),
            Step::WrongArchive(wrong) => say(&told(wrong)),
            Step::Unreadable { what, error } => say(&format!("unreadable: {what}: {error}")),
            Step::Imported { archives } => {
                let archives = counted(*archives, "archive");
                say(&format!("{archives} as imported, without signatures: only their digests could be verified"));
            }
            Step::Done { wrong, .. } => say(&match wrong {
                0 => "all is well".to_owned(),
                wrong => format!("{} wrong", counted(*wrong, "thing")),
            }),
            Step::Stopped { error } => say_error(&format!("verifying ended early: {error}")),
        }
    }

    fn progress(&mut self, archives: u64, bytes: u64) {
        let percent = bytes.saturating_mul(100).checked_div(self.all.1).unwrap_or(100);
        let line = format!("{percent:>3} %  {archives} of {} ({})", counted(self.all.0, "archive"), ByteSize(bytes));
        if self.watched {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else if percent >= self.percent_told + PERCENT_A_LINE {
            self.percent_told = percent;
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// Clears the progress line.
    fn wipe(&self) {
        if self.watched {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn ended(self) -> anyhow::Result<bool> {
        match self.ending {
            Some(Step::Done { wrong, .. }) => Ok(wrong == 0),
            Some(_) => Ok(false),
            None => Err(anyhow::anyhow!("larder stopped before everything was verified")),
        }
    }
}

fn told(wrong: &Wrong) -> String {
    let Wrong { digest, of, found, healed } = wrong;
    let of = if of.is_empty() { "no package".to_owned() } else { of.join(", ") };
    let found = match found {
        DamageFinding::Damaged => "damaged",
        DamageFinding::Missing => "missing",
    };
    let healed = match healed {
        Healed::FetchedAgain => "fetched again".to_owned(),
        Healed::NobodyNeedsIt => "nobody needs it".to_owned(),
        Healed::Offline => "offline, so it is not fetched again; `larder missing` lists it".to_owned(),
        Healed::NotNow { error } => format!("not fetched again yet: {error}"),
    };
    format!("{found}: the archive of {of} (SHA-256 {digest}); {healed}")
}
