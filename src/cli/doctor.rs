//! `larder doctor`: prints one line per check, with advice below where something is wrong.

mod table;

use anyhow::Context;
use serde_json::json;

use super::{CommonOptions, print_line};
use crate::doctor::{self, Check, CheckResult};

/// Runs every check; returns true if none failed.
pub(super) fn run(common: &CommonOptions) -> anyhow::Result<bool> {
    // Checks report the failures, so log lines would repeat them.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || examine(common))
}

fn examine(common: &CommonOptions) -> anyhow::Result<bool> {
    let page = table::CheckPage::of_the_terminal();
    let mut checks: Vec<Check> = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the runtime would not start")?;
    runtime.block_on(doctor::examine(common.load(), |check| {
        if !common.json {
            print_line(&page.check(&check));
        }
        checks.push(check);
    }));
    // Blocking work on a hanging disk or name service is abandoned.
    runtime.shutdown_background();
    let number = |verdict| checks.iter().filter(|check| check.verdict == verdict).count() as u64;
    let (wrong, warnings) = (number(CheckResult::Fail), number(CheckResult::Warn));
    if common.json {
        print_line(&json!({ "ok": wrong == 0, "checks": checks }).to_string());
    } else {
        print_line(&page.summary_line(wrong, warnings));
    }
    Ok(wrong == 0)
}
