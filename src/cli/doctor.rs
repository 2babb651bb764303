//! `larder check`, `larder doctor` and `larder client-config`: report the problems of the configuration, all at once, and
//! those of everything else, one line per check with advice below; print the CLI configuration to paste.

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use clap::Args;

use super::admin_service::{StoreNeed, running_larder, with_larder};
use super::terminal::{TextPage, escape_for_terminal, plural, width_of_stderr, width_of_stdout};
use super::{BAD_CONFIGURATION, CommonOptions, block_on, print_error, print_json, print_line};
use crate::doctor::{self, Check, CheckResult};
use crate::protocol::admin::CLIENT_CONFIG;
use crate::protocol::client_config::{ClientRoute, default_text, own_host_name};
use crate::store::Store;
use crate::{app, config};

/// Runs every check; returns true if none failed.
pub(super) fn run(common: &CommonOptions) -> anyhow::Result<bool> {
    // Checks report the failures, so log lines would repeat them.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || examine(common))
}

fn examine(common: &CommonOptions) -> anyhow::Result<bool> {
    let page = CheckPage::of_the_terminal();
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
        print_json(&serde_json::json!({ "ok": wrong == 0, "checks": checks }));
    } else {
        print_line(&page.summary_line(wrong, warnings));
    }
    Ok(wrong == 0)
}

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
struct CheckPage {
    /// Number of columns; `usize::MAX` disables wrapping.
    width: usize,
    has_colour: bool,
}

impl CheckPage {
    /// Wraps and colours on a terminal; does neither elsewhere. `NO_COLOR` and `TERM=dumb` disable colours.
    fn of_the_terminal() -> Self {
        let Some(columns) = width_of_stdout() else {
            return Self { width: usize::MAX, has_colour: false };
        };
        let width = if columns < MIN_WRAP_WIDTH { usize::MAX } else { columns.min(MAX_WIDTH) };
        let environment = config::environment();
        let is_set = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
        let is_dumb = environment.get("TERM").is_some_and(|term| term == "dumb");
        Self { width, has_colour: !is_set("NO_COLOR") && !is_dumb }
    }

    /// Renders a check, with its advice below.
    fn check(&self, check: &Check) -> String {
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
    fn summary_line(&self, wrong: u64, warnings: u64) -> String {
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

/// Width of the prefix that `print_error` writes.
const PREFIX_WIDTH: usize = "larder: ".len();

/// Wraps a message to the terminal, with its further lines indented.
fn wrap_message(message: &str, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width.map(|width| width.saturating_sub(PREFIX_WIDTH)));
    page.push_with_prefix("", message);
    page.text().replace('\n', &format!("\n{:PREFIX_WIDTH$}", ""))
}

/// Reports every problem of a configuration at once.
pub(super) fn check(common: &CommonOptions) -> ExitCode {
    let (file, warnings, problems) = match common.load() {
        Ok((config, warnings)) => {
            let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            (config.source.clone(), warnings, app::start_problems(&config))
        }
        Err(problems) => {
            let file = problems.diagnostics().first().map(|problem| problem.file.clone());
            (file, Vec::new(), problems.diagnostics().iter().map(ToString::to_string).collect())
        }
    };
    if common.json {
        print_json(
            &serde_json::json!({ "ok": problems.is_empty(), "file": file, "warnings": warnings, "problems": problems }),
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

#[derive(Debug, Args)]
pub(super) struct ClientConfig {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// For a network mirror (https only, providers only) instead of a host override
    #[arg(long)]
    mirror: bool,
    /// For source addresses with larder's own host name (https only) instead of a host override
    #[arg(long, conflicts_with = "mirror")]
    own_name: bool,
}

impl ClientConfig {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (config, _) = self.common.load()?;
        if self.own_name {
            let server = &config.server;
            let paste = own_host_name(server.public_url.as_ref(), server.default_upstream.as_ref());
            self.print(&paste.map_err(anyhow::Error::msg)?);
            return Ok(());
        }
        let client_route = if self.mirror { ClientRoute::NetworkMirror } else { ClientRoute::HostOverride };
        let base = app::base_url_of(&config, config.server.listen);
        anyhow::ensure!(
            !self.mirror || base.starts_with("https:"),
            "clients accept a network mirror over https only, and this larder is at {base}; set [server] tls, or public_url \
             where a proxy ends TLS; or use a host override (larder client-config)"
        );
        let path = if self.mirror { "/admin/v1/client-config?mirror" } else { CLIENT_CONFIG };
        let paste = block_on(async {
            let has_store = Store::exists(&config.store.path).unwrap_or(true);
            if !has_store && running_larder(&config).await?.is_none() {
                let hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
                return anyhow::Ok(default_text(&hosts, &base, client_route).await?);
            }
            let answer = with_larder(&config, StoreNeed::Existing, async |larder| Ok(larder.get(path).await?)).await?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        })?;
        self.print(&paste);
        Ok(())
    }

    fn print(&self, paste: &str) {
        if self.common.json {
            print_json(&serde_json::json!({ "client_config": paste }));
        } else {
            print_line(paste.trim_end());
        }
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
