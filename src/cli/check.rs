//! `larder check`: reports every problem of a configuration at once.

use std::process::ExitCode;

use serde_json::json;

use super::text::{TextPage, plural, width_of_stderr};
use super::{BAD_CONFIGURATION, CommonOptions, print_error, print_line};
use crate::app;

/// Width of the prefix that `print_error` writes.
const PREFIX_WIDTH: usize = "larder: ".len();

/// Wraps a message to the terminal, with its further lines indented.
fn wrap_message(message: &str, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width.map(|width| width.saturating_sub(PREFIX_WIDTH)));
    page.push_with_prefix("", message);
    page.text().replace('\n', &format!("\n{:PREFIX_WIDTH$}", ""))
}

pub(super) fn run(common: &CommonOptions) -> ExitCode {
    let (file, warnings, problems) = match common.load() {
        Ok((config, warnings)) => {
            let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            (config.source.clone(), warnings, app::start_problems(&config))
        }
        Err(problems) => {
            let file = problems.remarks().first().map(|problem| problem.file.clone());
            (file, Vec::new(), problems.remarks().iter().map(ToString::to_string).collect())
        }
    };
    if common.json {
        print_line(
            &json!({ "ok": problems.is_empty(), "file": file, "warnings": warnings, "problems": problems }).to_string(),
        );
    } else {
        for message in warnings.iter().chain(&problems) {
            print_error(&wrap_message(message, width_of_stderr()));
        }
        match (&file, problems.len() as u64) {
            (Some(file), 0) => print_line(&format!("{} is valid", file.display())),
            (None, 0) => print_line("no configuration file found: the defaults are used"),
            (_, count) => print_error(&plural(count, "problem")),
        }
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BAD_CONFIGURATION) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_wrapped_to_the_terminal_with_an_indent() {
        let message =
            "mirror.toml:2: server.listen: \"8080\" is not an address; write for example listen = \"127.0.0.1:8080\"";
        let shown = format!("larder: {}", wrap_message(message, Some(60)));
        assert!(shown.lines().count() > 1 && shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
        assert!(shown.lines().skip(1).all(|line| line.starts_with("        ")), "{shown}");
        assert_eq!(wrap_message(message, None), message);
    }
}
