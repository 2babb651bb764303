//! The text of `larder --help`: commands in groups, environment, exit codes.

use std::fmt::Write as _;

use clap::CommandFactory as _;

use super::Arguments;

/// Commands by group, in the order of the help text.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["serve", "check", "status", "version"]),
    ("Client", &["client-config", "doctor"]),
    ("Content", &["plan", "warm", "missing", "refresh", "accept", "pin", "unpin", "purge"]),
    ("Air gap", &["bundle", "inventory", "export", "import"]),
    ("Maintain", &["verify"]),
];

const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}";

const EXAMPLES: &str = "Examples:
  larder serve                            run the mirror; prints the client configuration
  larder plan .                           will `terraform init` work here offline?
  larder warm . --platform linux_amd64    fetch what `init` will need
  larder bundle create carry.tar --for .  take it across an air gap";

/// A command line, and its purpose.
type Example = (&'static str, &'static str);

/// Examples of each command, by its path of subcommands.
const EXAMPLES_OF: [(&[&str], &[Example]); 22] = [
    (
        &["serve"],
        &[
            ("larder serve", "on 127.0.0.1:8080, for the two public registries"),
            ("larder serve --listen 127.0.0.1:9080 --admin-listen 127.0.0.1:9081", "where the usual ports are taken"),
        ],
    ),
    (&["check"], &[("larder check -c /etc/larder/mirror.toml", "before a reload")]),
    (&["status"], &[("larder status --json", "for scripts: alarms, what is stored, requests")]),
    (&["version"], &[("larder version", "")]),
    (
        &["client-config"],
        &[
            (
                "larder client-config >> ~/.terraformrc",
                "host overrides: for every terraform command; sources stay as they are",
            ),
            ("larder client-config --mirror", "a network mirror: providers only, over https"),
            ("larder client-config --own-name", "source addresses with larder's own host name, over https"),
        ],
    ),
    (&["doctor"], &[("larder doctor", "when init does not behave as expected")]),
    (
        &["plan"],
        &[
            ("larder plan . --platform linux_amd64", "exit status 3 if anything is missing"),
            ("larder plan 'hashicorp/aws@~> 5.0'", "one provider, quoted for the shell"),
        ],
    ),
    (
        &["warm"],
        &[
            ("larder warm ./prod ./dev --platform linux_amd64 --platform darwin_arm64", "folders, for two platforms"),
            ("larder warm terraform-aws-modules/vpc/aws@5.1.0 --pin", "a module, never evicted"),
        ],
    ),
    (&["missing"], &[("larder missing --json > missing.json", "input for the next bundle")]),
    (&["refresh"], &[("larder refresh hashicorp/aws", "after a release that is not listed yet")]),
    (&["accept"], &[("larder accept hashicorp/aws@5.1.0", "after the publisher confirmed the change")]),
    (&["pin"], &[("larder pin hashicorp/aws@5.1.0", "")]),
    (&["unpin"], &[("larder unpin hashicorp/aws@5.1.0", "")]),
    (&["purge"], &[("larder purge 'hashicorp/aws@< 4.0'", "old versions, all platforms")]),
    (&["bundle"], &[("larder bundle create carry.tar --for .", "more examples: larder bundle create --help")]),
    (
        &["bundle", "keygen"],
        &[("larder bundle keygen bundle.key", "once; prints the lines for both sides' mirror.toml")],
    ),
    (
        &["bundle", "create"],
        &[
            ("larder bundle create carry.tar --for ./prod --for ./dev --platform linux_amd64", "for two folders"),
            (
                "larder bundle create delta.tar --for ./prod --since their-inventory.json",
                "only what the other side lacks",
            ),
            ("larder bundle create parts --for ./prod --part-size 2GiB", "for small media"),
        ],
    ),
    (&["bundle", "apply"], &[("larder bundle apply carry.tar", "on the other side; verifies everything again")]),
    (&["inventory"], &[("larder inventory > their-inventory.json", "carry it out for the next delta")]),
    (&["export"], &[("larder export ./tree --for ./prod --platform linux_amd64", "for filesystem_mirror")]),
    (&["import"], &[("larder import ./tree", "a tree from `terraform providers mirror ./tree`")]),
    (&["verify"], &[("larder verify", "exit status 3 if anything was damaged")]),
];

const ENVIRONMENT: &str = "Environment:
  LARDER_CONFIG       the configuration file, unless --config is given
  LARDER_LOG          error, warn, info, debug, or module=level,...
  LARDER_LOG_FORMAT   text or json
  NO_COLOR            no colours
  HTTPS_PROXY         the proxy to upstreams; HTTP_PROXY, ALL_PROXY, NO_PROXY too";

const EXIT_CODES: &str = "Exit codes:
  0     done
  1     failed
  2     wrong usage
  3     not ready: plan or verify found something
  78    wrong configuration
  130   interrupted";

/// Builds the clap command with the extended help.
pub(super) fn command_with_help() -> clap::Command {
    let command = Arguments::command();
    let groups = groups(&command);
    let command = EXAMPLES_OF.iter().fold(command, |command, (path, examples)| with_examples(command, path, examples));
    command
        .help_template(TEMPLATE)
        .after_help(groups.clone())
        .after_long_help(format!("{groups}\n\n{EXAMPLES}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}"))
}

/// Adds examples below the long help of the subcommand at `path`.
fn with_examples(command: clap::Command, path: &[&str], examples: &[Example]) -> clap::Command {
    match path {
        [] => {
            let lines = examples
                .iter()
                .map(|(line, description)| format!("  {line}\n      {description}").trim_end().to_owned());
            let title = if examples.len() == 1 { "Example" } else { "Examples" };
            command.after_long_help(format!("{title}:\n{}", lines.collect::<Vec<_>>().join("\n")))
        }
        [name, rest @ ..] => command.mut_subcommand(*name, |command| with_examples(command, rest, examples)),
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every command is listed in exactly one group, and each listed command exists (promise 15).
    #[test]
    fn every_command_is_in_one_group() {
        let command = Arguments::command();
        let paths: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
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

    /// Every command has examples, and they parse: people paste them.
    #[test]
    fn every_command_has_examples_that_parse() {
        fn paths(command: &clap::Command, parent: &[String], found: &mut BTreeSet<Vec<String>>) {
            for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
                let path = [parent, &[command.get_name().to_owned()]].concat();
                paths(command, &path, found);
                found.insert(path);
            }
        }
        let mut all = BTreeSet::new();
        paths(&Arguments::command(), &[], &mut all);
        let words = |path: &[&str]| path.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(EXAMPLES_OF.iter().map(|(path, _)| words(path)).collect::<BTreeSet<_>>(), all);
        for (path, examples) in EXAMPLES_OF {
            for (line, _) in examples {
                let line = line.split(" > ").next().unwrap().split(" >> ").next().unwrap();
                let mut words = Vec::new();
                for (index, part) in line.split('\'').enumerate() {
                    match index % 2 {
                        0 => words.extend(part.split_whitespace().map(str::to_owned)),
                        _ => words.push(part.to_owned()),
                    }
                }
                assert_eq!(words[1..=path.len()], *path, "{line}");
                match command_with_help().try_get_matches_from(&words) {
                    Ok(_) => {}
                    Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {}
                    Err(error) => panic!("{line}: {error}"),
                }
            }
            let help = |flag: &str| {
                let words = [&["larder"], path, &[flag]].concat();
                command_with_help().try_get_matches_from(words).unwrap_err().to_string()
            };
            let (short, long) = (help("-h"), help("--help"));
            assert!(!short.contains("Example") && long.contains(examples[0].0), "{path:?}: {long}");
        }
    }
}
