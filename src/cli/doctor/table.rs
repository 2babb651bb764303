//! Layout of checks: a column of verdicts, a column of names, and text wrapped to the width of the terminal.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

use super::super::text::{escape_for_terminal, plural};
use crate::config;
use crate::doctor::{Check, CheckResult};

/// Column where the text starts, after the verdict and the longest name.
const TEXT_COLUMN: usize = 28;
const NAME_COLUMN: usize = 6;
/// Column where advice starts, after its arrow.
const ADVICE_COLUMN: usize = NAME_COLUMN + 3;
/// Text for a narrower terminal is not wrapped.
const MIN_WRAP_WIDTH: usize = 50;
/// Longer lines are hard to read on any terminal.
const MAX_WIDTH: usize = 120;

#[derive(Debug, Clone, Copy)]
pub(super) struct CheckPage {
    /// Number of columns; `usize::MAX` disables wrapping.
    width: usize,
    has_colour: bool,
}

impl CheckPage {
    /// Wraps and colours on a terminal; does neither elsewhere. `NO_COLOR` and `TERM=dumb` disable colours.
    pub(super) fn of_the_terminal() -> Self {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return Self { width: usize::MAX, has_colour: false };
        }
        let columns = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
        let width = if columns < MIN_WRAP_WIDTH { usize::MAX } else { columns.min(MAX_WIDTH) };
        let environment = config::environment();
        let is_set = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
        let is_dumb = environment.get("TERM").is_some_and(|term| term == "dumb");
        Self { width, has_colour: !is_set("NO_COLOR") && !is_dumb }
    }

    /// Renders a check, with its advice below.
    pub(super) fn check(&self, check: &Check) -> String {
        let (result_text, style) = match check.verdict {
            CheckResult::Ok => ("ok  ", Style::new().fg_color(Some(AnsiColor::Green.into()))),
            CheckResult::Warn => ("warn", Style::new().fg_color(Some(AnsiColor::Yellow.into())).bold()),
            CheckResult::Fail => ("FAIL", Style::new().fg_color(Some(AnsiColor::Red.into())).bold()),
        };
        let subject = check.of.as_ref().map(|subject| format!("{subject}: ")).unwrap_or_default();
        let found = self.wrapped(&format!("{subject}{}", escape_for_terminal(&check.found)), TEXT_COLUMN);
        let name = format!("{:width$}", check.id, width = TEXT_COLUMN - NAME_COLUMN);
        let mut text = format!("{}  {name}{found}", self.coloured(result_text, style));
        let indent = " ".repeat(NAME_COLUMN);
        for to_do in &check.to_do {
            text += &format!("\n{indent}-> {}", self.wrapped(&escape_for_terminal(to_do), ADVICE_COLUMN));
        }
        for line in check.paste.iter().flat_map(|paste| paste.trim_end().lines()) {
            text += &format!("\n{indent}   {}", escape_for_terminal(line));
        }
        text
    }

    /// Renders the last line.
    pub(super) fn summary_line(&self, wrong: u64, warnings: u64) -> String {
        let warned = if warnings > 0 { format!(", {}", plural(warnings, "warning")) } else { String::new() };
        let problems = match wrong {
            0 => "no problems".to_owned(),
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        };
        format!("\n{problems}{warned}")
    }

    fn coloured(&self, text: &str, style: Style) -> String {
        if self.has_colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// Wraps a text that starts at column `indent`, and indents its further lines to it. Words are never split, so that
    /// they can be copied; a word too long for a line starts further left.
    fn wrapped(&self, text: &str, indent: usize) -> String {
        let width = self.width.saturating_sub(indent);
        let mut wrapped = String::new();
        let mut line_length = 0;
        for word in text.split(' ') {
            let length = word.chars().count();
            if wrapped.is_empty() {
                line_length = length;
            } else if line_length + 1 + length <= width {
                wrapped.push(' ');
                line_length += 1 + length;
            } else {
                let start_column = if length > width { indent.min(ADVICE_COLUMN) } else { indent };
                wrapped += &format!("\n{}", " ".repeat(start_column));
                // After such a word, the next one starts a line again.
                line_length = if start_column < indent { width } else { length };
            }
            wrapped.push_str(word);
        }
        wrapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_to_the_terminal_and_words_stay_whole() {
        let page = CheckPage { width: 40, has_colour: false };
        let long = "https://mirror.example/registry/registry.terraform.io/v1/providers/";
        let text = format!("a few words and then {long} and more");
        let wrapped = page.wrapped(&text, 10);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 40 || line.contains(long)), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().collect::<Vec<_>>(), text.split(' ').collect::<Vec<_>>());
        let continuation = "\n          ";
        assert!(
            wrapped
                .lines()
                .skip(1)
                .all(|line| line.starts_with(continuation.trim_start_matches('\n')) || line.contains(long))
        );
        assert!(wrapped.contains(&format!("\n         {long}{continuation}and more")), "{wrapped}");
        assert_eq!(CheckPage { width: usize::MAX, has_colour: false }.wrapped(&text, 10), text);
    }
}
