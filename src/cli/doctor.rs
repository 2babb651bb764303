//! `larder check`, `larder doctor` and `larder client-config`: report the problems of the configuration, all at once, and
//! those of everything else, one line per check with advice below; print the CLI configuration to paste.

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use clap::Args;

use super::admin_service::{StoreNeed, running_larder, with_larder};
use super::terminal::{
    TextPage, escape_for_terminal, plural, stdout_has_colour, styled, width_of_stderr, width_of_stdout,
};
use super::{BAD_CONFIGURATION, CommonOptions, block_on, print_error, print_json, print_line};
use crate::app;
use crate::app::running_larder::NotReached;
use crate::doctor::{self, Check, CheckResult};
use crate::protocol::client_config::{
    self, ClientConfigRequest, ClientRoute, credentials_block, hosts_of_credentials, own_host_name,
};
use crate::protocol::view::View;
use crate::store::Store;

/// Runs every check; returns true if none failed.
pub(super) fn run(common: &CommonOptions) -> anyhow::Result<bool> {
    // Checks report the failures, so log lines would repeat them.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || examine(common))
}

fn examine(common: &CommonOptions) -> anyhow::Result<bool> {
    let (width, has_colour) = (width_of_stdout().map(|columns| columns.min(MAX_WIDTH)), stdout_has_colour());
    let mut checks: Vec<Check> = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the runtime would not start")?;
    runtime.block_on(doctor::examine(common.read(), |check| {
        if !common.json {
            print_line(&check_text(&check, width, has_colour));
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
        let warned = if warnings > 0 { format!(", {}", plural(warnings, "warning")) } else { String::new() };
        let problems = if wrong == 0 { "no problems".to_owned() } else { plural(wrong, "problem") };
        print_line(&format!("\n{problems}{warned}"));
    }
    Ok(wrong == 0)
}

/// Longer lines are hard to read on any terminal.
const MAX_WIDTH: usize = 120;

/// Renders a check, with its advice below.
fn check_text(check: &Check, width: Option<usize>, has_colour: bool) -> String {
    let (result_text, style) = match check.verdict {
        CheckResult::Ok => ("ok  ", Style::new().fg_color(Some(AnsiColor::Green.into()))),
        CheckResult::Warn => ("warn", Style::new().fg_color(Some(AnsiColor::Yellow.into())).bold()),
        CheckResult::Fail => ("FAIL", Style::new().fg_color(Some(AnsiColor::Red.into())).bold()),
    };
    let mut page = TextPage::with_whole_words(width);
    let subject = check.subject.as_ref().map(|subject| format!("{subject}: ")).unwrap_or_default();
    let finding = format!("{subject}{}", escape_for_terminal(&check.finding));
    page.push_with_prefix(&format!("{result_text}  {:22}", check.id), &finding);
    check.advice.iter().for_each(|advice| page.push_with_prefix("      -> ", &escape_for_terminal(advice)));
    let paste = check.paste.iter().flat_map(|paste| paste.trim_end().lines());
    paste.for_each(|line| page.push(format!("         {}", escape_for_terminal(line))));
    let text = page.text();
    if has_colour { styled(&text, result_text, style) } else { text }
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
    /// For a network mirror (https only, providers only) instead of a host override
    #[arg(long)]
    mirror: bool,
    /// For source addresses with larder's own host name (https only) instead of a host override
    #[arg(long, conflicts_with_all = ["mirror", "age", "as_of"])]
    own_name: bool,
    /// Show this client only versions that are at least so many days old, such as `7d`
    #[arg(long, value_name = "DAYS", value_parser = View::age, conflicts_with = "as_of")]
    age: Option<View>,
    /// Show this client only what was listed until the end of a day (UTC), such as `2026-08-01`
    #[arg(long, value_name = "DATE", value_parser = View::as_of)]
    as_of: Option<View>,
}

impl ClientConfig {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let (config, _) = common.load()?;
        if self.own_name {
            let server = &config.server;
            let paste = own_host_name(server.public_url.as_ref(), server.default_upstream.as_ref());
            let mut paste = paste.map_err(anyhow::Error::msg)?;
            if !config.clients.is_empty() {
                let base = app::base_url_of(&config, config.server.listen);
                let hosts = hosts_of_credentials(&[], &base, ClientRoute::NetworkMirror);
                paste.push_str("# In the CLI configuration (~/.terraformrc), with the token of this client:\n");
                paste.extend(
                    hosts.iter().map(|host| {
                        format!("# {}\n", credentials_block(host, "TOKEN").trim_end().replace('\n', "\n# "))
                    }),
                );
            }
            match common.json {
                true => print_json(&serde_json::json!({ "client_config": paste })),
                false => print_line(paste.trim_end()),
            }
            return Ok(());
        }
        let client_route = if self.mirror { ClientRoute::NetworkMirror } else { ClientRoute::HostOverride };
        let asked = ClientConfigRequest { client_route, view: self.age.or(self.as_of) };
        let base = app::base_url_of(&config, config.server.listen);
        anyhow::ensure!(
            !self.mirror || base.starts_with("https:"),
            "clients accept a network mirror over https only, and this larder is at {base}; set [server] tls, or public_url \
             where a proxy ends TLS; or use a host override (larder client-config)"
        );
        let paste = block_on(async {
            let is_known = match running_larder(&config).await {
                Ok(larder) => larder.is_some() || Store::exists(&config.store.path).unwrap_or(true),
                // Nobody can be asked: the configuration says what the main listener is.
                Err(NotReached::InUse { .. } | NotReached::NoToken { .. }) if config.admin.asked.is_none() => false,
                Err(error) => return Err(error.into()),
            };
            if !is_known {
                let hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
                let paste = client_config::ClientConfig::for_hosts(&hosts, &asked.base(&base), client_route).await?;
                if config.clients.is_empty() {
                    return anyhow::Ok(paste);
                }
                return Ok(paste.with_credentials(&hosts_of_credentials(hosts, &base, client_route)));
            }
            let answer =
                with_larder(&config, StoreNeed::Existing, async |larder| Ok(larder.get_text(&asked.path()).await?))
                    .await?;
            Ok(client_config::ClientConfig::read(&answer))
        })?;
        print_paste(common, &paste);
        Ok(())
    }
}

fn print_paste(common: &CommonOptions, paste: &client_config::ClientConfig) {
    let client_config::ClientConfig { remarks, lines } = paste;
    if common.json {
        print_json(&serde_json::json!({ "client_config": lines, "remarks": remarks }));
    } else {
        remarks.iter().for_each(|remark| print_error(remark));
        print_line(lines.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_to_the_terminal_and_words_stay_whole() {
        let long = "https://mirror.example/registry/registry.terraform.io/v1/providers/";
        let text = format!("a few words, more of them, and then {long} and more");
        let check = Check {
            id: "client.path",
            verdict: CheckResult::Warn,
            subject: None,
            finding: text.clone(),
            advice: vec![],
            paste: None,
        };
        let wrapped = check_text(&check, Some(60), false);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 60 || line.contains(long)), "{wrapped}");
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with(&" ".repeat(28))), "{wrapped}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&wrapped)[2..], words(&text));
        assert_eq!(check_text(&check, None, false).lines().count(), 1);
        assert!(check_text(&check, Some(60), true).contains("\u{1b}[0m  client.path"));
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
