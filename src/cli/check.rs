//! `larder check`: every problem of a configuration at once.

use std::process::ExitCode;

use serde_json::json;

use super::{BAD_CONFIGURATION, Common, say, say_error};
use crate::app;

pub(super) fn run(common: &Common) -> ExitCode {
    let (file, warnings, problems) = match common.load() {
        Ok((config, warnings)) => {
            let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            (config.source.clone(), warnings, app::what_would_not_start(&config))
        }
        Err(problems) => {
            let problems = problems.remarks().iter().map(ToString::to_string).collect();
            (common.config.clone(), Vec::new(), problems)
        }
    };
    if common.json {
        say(&json!({ "ok": problems.is_empty(), "file": file, "warnings": warnings, "problems": problems }).to_string());
    } else {
        for remark in warnings.iter().chain(&problems) {
            say_error(remark);
        }
        match (&file, problems.len()) {
            (Some(file), 0) => say(&format!("{} is good", file.display())),
            (None, 0) => say("no configuration file found: the defaults are used"),
            (_, number) => say_error(&format!("{number} problem{}", if number == 1 { "" } else { "s" })),
        }
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BAD_CONFIGURATION) }
}
