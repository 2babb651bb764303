//! The text of `larder --help`: commands in groups, environment, exit codes.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};

use super::Arguments;
use super::terminal::shell_word;

/// Commands by group, in the order of the help text.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["run", "serve", "check", "status", "version"]),
    ("Client", &["client-config", "token", "doctor"]),
    (
        "Content",
        &[
            "list",
            "explain",
            "plan",
            "lock",
            "policy",
            "approve",
            "unapprove",
            "warm",
            "missing",
            "refresh",
            "accept",
            "pin",
            "unpin",
            "purge",
        ],
    ),
    ("Air gap", &["bundle", "inventory", "export", "import"]),
    ("Maintain", &["verify", "completions", "man"]),
];

const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n\
     Options of each command: --config FILE, --json, --admin-listen ADDRESS:PORT, --store FOLDER, --help, --version";

/// Command lines to begin with, and their purpose.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("larder run -- terraform init", "one init through larder; changes no configuration"),
    ("larder serve", "run the mirror; prints the client configuration"),
    ("larder plan .", "will `terraform init` work here offline?"),
    ("larder warm . --platform linux_amd64", "fetch what `init` will need"),
    ("larder bundle create carry.tar --for .", "take it across an air gap"),
];

/// Command lines with their purpose, in the order of the commands.
const EXAMPLES_OF_COMMANDS: &[(&str, &str)] = &[
    ("larder run -- terraform init", "uses the larder that runs here, else one that lasts as long as init"),
    ("larder run --offline -- tofu init -input=false", "from the store alone"),
    ("larder run -- ./ci/plan.sh", "every terraform, tofu and terragrunt that the script runs"),
    ("larder serve", "on 127.0.0.1:8080, for the two public registries"),
    ("larder serve --listen 127.0.0.1:9080 --admin-listen 127.0.0.1:9081", "where the usual ports are taken"),
    ("larder check -c /etc/larder/mirror.toml", "before a reload"),
    ("larder status --json", "for scripts: alarms, what is stored, requests"),
    ("larder list", "everything that is stored"),
    (
        "larder list hashicorp/aws",
        "the versions of one provider; a host, a namespace or an address with @VERSION will do too",
    ),
    ("larder list --json", "for scripts: digests, proofs, times"),
    ("larder explain hashicorp/aws@5.1.0", "one version, for this machine's platform"),
    ("larder explain hashicorp/aws --json", "the provider as a whole, for scripts"),
    ("larder explain hashicorp/aws@5.1.0 --platform darwin_arm64", "for another platform"),
    (
        "larder explain /mirror/registry.terraform.io/hashicorp/aws/index.json",
        "one of larder's URLs, from an error or a log",
    ),
    ("larder version", ""),
    ("larder client-config >> ~/.terraformrc", "host overrides: for every terraform command; sources stay as they are"),
    ("larder client-config --mirror", "a network mirror: providers only, over https"),
    ("larder client-config --age 7d", "for clients that see only versions of at least seven days"),
    ("larder client-config --as-of 2026-08-01", "for clients that see what was listed until the end of that day"),
    ("larder client-config --own-name", "source addresses with larder's own host name, over https"),
    ("larder token new --name ci", "prints the token once, and the lines for both sides"),
    ("larder doctor", "when init does not behave as expected"),
    ("larder plan . --platform linux_amd64", "exit status 3 if anything is missing"),
    ("larder lock --platform linux_amd64 --platform darwin_arm64", "the lock file of this folder"),
    ("larder lock --check envs", "for CI: exit status 3 if a lock file below envs lacks a hash"),
    ("larder lock --upgrade", "the newest versions that the constraints allow, as `init -upgrade`"),
    ("larder plan 'hashicorp/aws@~> 5.0'", "one provider, quoted for the shell"),
    ("larder plan . --policy new.toml", "what would these policies break?"),
    ("larder policy test hashicorp/aws", "which of its versions may be used; the rule about each of the others"),
    ("larder policy test hashicorp/aws@5.31.0", "one version; exit status 3 if it may not be used"),
    ("larder warm ./prod ./dev --platform linux_amd64 --platform darwin_arm64", "folders, for two platforms"),
    ("larder warm terraform-aws-modules/vpc/aws@5.1.0 --pin", "a module, never evicted"),
    ("larder missing --json > missing.json", "input for the next bundle"),
    ("larder refresh hashicorp/aws", "after a release that is not listed yet"),
    ("larder accept hashicorp/aws@5.1.0", "after the publisher confirmed the change"),
    (
        "larder approve hashicorp/aws@6.2.1 --reason 'fixes CVE-2026-1234' --by Ada --until 2026-12-31",
        "a release that cannot wait",
    ),
    ("larder unapprove hashicorp/aws@6.2.1", ""),
    ("larder pin hashicorp/aws@5.1.0", ""),
    ("larder unpin hashicorp/aws@5.1.0", ""),
    ("larder purge 'hashicorp/aws@< 4.0'", "old versions, all platforms"),
    ("larder bundle keygen bundle.key", "once; prints the lines for both sides' mirror.toml"),
    ("larder bundle create carry.tar --for ./prod --for ./dev --platform linux_amd64", "for two folders"),
    ("larder bundle create delta.tar --for ./prod --since their-inventory.json", "only what the other side lacks"),
    ("larder bundle create parts --for ./prod --part-size 2GiB", "for small media"),
    ("larder bundle apply carry.tar", "on the other side; verifies everything again"),
    ("larder inventory > their-inventory.json", "carry it out for the next delta"),
    ("larder export ./tree --for ./prod --platform linux_amd64", "for filesystem_mirror"),
    ("larder import ./tree", "a tree from `terraform providers mirror ./tree`"),
    ("larder verify", "exit status 3 if anything was damaged"),
    ("larder completions bash > ~/.local/share/bash-completion/completions/larder", "for one user; new shells read it"),
    ("larder man --out ~/.local/share/man/man1", "then `man larder`, `man larder-plan`"),
];

/// Environment variables and their effect.
pub(super) const ENVIRONMENT: &[(&str, &str)] = &[
    ("LARDER_CONFIG", "the configuration file, unless --config is given"),
    ("LARDER_LOG", "error, warn, info, debug, or module=level,..."),
    ("LARDER_LOG_FORMAT", "text or json"),
    ("NO_COLOR", "no colours"),
    ("HTTPS_PROXY", "the proxy to upstreams; HTTP_PROXY, ALL_PROXY, NO_PROXY too"),
];

/// Exit codes and their meaning.
pub(super) const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "failed"),
    ("2", "wrong usage"),
    ("3", "not ready: plan or verify found something"),
    ("78", "wrong configuration"),
    ("130", "interrupted"),
    ("run", "the code of its client; 127 where there is none, 128 + N after signal N"),
];

/// Builds the clap command with the extended help.
pub(super) fn command_with_help() -> clap::Command {
    let command = with_examples(Arguments::command(), "larder");
    let groups = groups(&command);
    command.help_template(TEMPLATE).after_help(groups.clone()).after_long_help(format!(
        "{groups}\n\n{}\n\n{}\n\n{}",
        table("Examples", EXAMPLES, 38),
        table("Environment", ENVIRONMENT, 18),
        table("Exit codes", EXIT_CODES, 4),
    ))
}

/// Two columns below a title.
fn table(title: &str, rows: &[(&str, &str)], width: usize) -> String {
    let lines = rows.iter().map(|(term, explanation)| format!("\n  {term:width$}  {explanation}"));
    format!("{title}:{}", lines.collect::<String>())
}

/// The examples of a command, such as `larder bundle create`: command lines and their purpose.
pub(super) fn examples_of(path: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let start = format!("{path} ");
    EXAMPLES_OF_COMMANDS.iter().copied().filter(move |(line, _)| line.starts_with(&start) || *line == start.trim_end())
}

/// Adds the examples of each subcommand below its long help.
fn with_examples(command: clap::Command, path: &str) -> clap::Command {
    command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        let lines: Vec<String> = examples_of(&path)
            .map(|(line, purpose)| format!("  {line}\n      {purpose}").trim_end().to_owned())
            .collect();
        let title = if lines.len() == 1 { "Example" } else { "Examples" };
        with_examples(subcommand, &path).after_long_help(format!("{title}:\n{}", lines.join("\n")))
    })
}

fn groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = write!(text, "{}{group}:", if text.is_empty() { "" } else { "\n\n" });
        for name in names {
            let description = command.find_subcommand(name).and_then(clap::Command::get_about);
            let description = description.map(ToString::to_string).unwrap_or_default();
            let _ = write!(text, "\n  {name:<14} {description}");
        }
    }
    text
}

/// The programs that `larder run` is for.
const CLIENTS: [&str; 3] = ["terraform", "tofu", "terragrunt"];
/// Commands of theirs that larder has none like.
const CLIENT_COMMANDS: [&str; 3] = ["init", "get", "providers"];
/// Options of every command with a value.
const OPTIONS_WITH_VALUE: [&str; 4] = ["--config", "-c", "--admin-listen", "--store"];

/// Gives a usage error the tip that a person needs: a client is run by `larder run`, and a similar command begins alike.
/// `words` is the command line after the program.
pub(super) fn with_tip(mut error: clap::Error, words: &[String]) -> clap::Error {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let (options, rest) = words.split_at(command_position(words));
    let client = match rest.first().map(String::as_str) {
        Some(program) if program == given && CLIENTS.contains(&program) => Some(""),
        Some(command) if command == given && CLIENT_COMMANDS.contains(&command) => Some(" terraform"),
        _ => None,
    };
    let tip = client.map(|client| {
        let line = |words: &[String]| words.iter().map(|word| format!(" {}", shell_word(word))).collect::<String>();
        let (options, rest) = (line(options), line(rest));
        StyledStr::from(format!("to run a client through larder: larder{options} run --{client}{rest}"))
    });
    let begins_alike = |similar: &String| similar.chars().next() == given.chars().next();
    let is_similar = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(similar)) => begins_alike(similar),
        Some(ContextValue::Strings(similar)) => similar.iter().any(begins_alike),
        _ => false,
    };
    if tip.is_some() || !is_similar {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Suggested);
    }
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// The position of the command: the first word that is neither an option nor the value of one.
fn command_position(words: &[String]) -> usize {
    let mut position = 0;
    while let Some(word) = words.get(position).filter(|word| word.starts_with('-')) {
        position += if OPTIONS_WITH_VALUE.contains(&word.as_str()) { 2 } else { 1 };
    }
    position.min(words.len())
}
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every command is listed in exactly one group, and each listed command exists (promise 15).
    #[test]
    fn every_command_is_in_one_group() {
        let command = Arguments::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let paths: BTreeSet<&str> = shown.map(clap::Command::get_name).collect();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!((listed.iter().copied().collect::<BTreeSet<_>>(), listed.len()), (paths.clone(), paths.len()));
        command_with_help().debug_assert();
    }

    #[test]
    fn the_list_of_commands_fits_80_columns() {
        let text = groups(&Arguments::command());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let long = command_with_help().try_get_matches_from(["larder", "--help"]).unwrap_err().to_string();
        let short = command_with_help().try_get_matches_from(["larder", "-h"]).unwrap_err().to_string();
        for part in ["Examples:", "Environment:", "Exit codes:"] {
            assert!(long.contains(part) && !short.contains(part), "{part}: {long}");
        }
    }

    /// Every command has examples in its long help, and they parse: people paste them.
    #[test]
    fn every_command_has_examples_that_parse() {
        let mut commands: Vec<(String, clap::Command)> = vec![("larder".to_owned(), command_with_help())];
        while let Some((path, command)) = commands.pop() {
            let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
            let subcommands = shown.filter(|command| command.get_name() != "help");
            commands.extend(subcommands.map(|command| (format!("{path} {}", command.get_name()), command.clone())));
            if path != "larder" {
                let help = |flag: &str| {
                    let words = path.split(' ').chain([flag]);
                    command_with_help().try_get_matches_from(words).unwrap_err().to_string()
                };
                let (short, long) = (help("-h"), help("--help"));
                assert!(!short.contains("Example") && long.contains(&format!("\n  {path}")), "{path}: {long}");
            }
        }
        for (line, _) in EXAMPLES_OF_COMMANDS {
            let line = line.split(" > ").next().unwrap().split(" >> ").next().unwrap();
            let mut words = Vec::new();
            for (index, part) in line.split('\'').enumerate() {
                match index % 2 {
                    0 => words.extend(part.split_whitespace().map(str::to_owned)),
                    _ => words.push(part.to_owned()),
                }
            }
            command_with_help().try_get_matches_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
