//! `larder check`: every problem of a configuration at once.

use std::process::ExitCode;

use serde_json::json;

use super::{BAD_CONFIGURATION, Common, say, say_error};

pub(super) fn run(common: &Common) -> ExitCode {
    let loaded = common.load();
    let refusal = loaded.as_ref().ok().and_then(|(config, _)| config.refusal());
    let well = loaded.is_ok() && refusal.is_none();
    if common.json {
        let (source, warnings, problems): (_, Vec<String>, Vec<String>) = match &loaded {
            Ok((config, warnings)) => (
                config.source.clone(),
                warnings.iter().map(ToString::to_string).collect(),
                refusal.into_iter().collect(),
            ),
            Err(problems) => (None, vec![], problems.remarks().iter().map(ToString::to_string).collect()),
        };
        say(&json!({ "ok": well, "file": source, "warnings": warnings, "problems": problems }).to_string());
    } else {
        match &loaded {
            Err(problems) => say_error(&problems.to_string()),
            Ok((config, warnings)) => {
                for warning in warnings {
                    say_error(&warning.to_string());
                }
                if let Some(refusal) = &refusal {
                    say_error(refusal);
                } else {
                    match &config.source {
                        Some(file) => say(&format!("{} is good", file.display())),
                        None => say("no configuration file found: the defaults are used"),
                    }
                }
            }
        }
    }
    if well { ExitCode::SUCCESS } else { ExitCode::from(BAD_CONFIGURATION) }
}
