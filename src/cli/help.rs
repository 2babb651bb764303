//! `larder --help`: the commands in groups, the environment and the exit codes.

use std::fmt::Write as _;

use clap::CommandFactory as _;

use super::Arguments;

/// Each command in the group in which a reader looks for it.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["serve", "check", "status", "version"]),
    ("Client", &["client-config", "doctor"]),
    ("Content", &["plan", "warm", "missing", "refresh", "accept", "pin", "unpin", "purge"]),
    ("Air gap", &["bundle", "inventory", "export", "import"]),
    ("Maintain", &["verify"]),
];

const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}";

const EXAMPLES: &str = "Examples:
  larder serve                            run the mirror, and print what to paste
  larder plan .                           will `terraform init` work here offline?
  larder warm . --platform linux_amd64    fetch what is missing for that
  larder bundle create carry.tar --for .  take it across an air gap";

const ENVIRONMENT: &str = "Environment:
  LARDER_CONFIG       the configuration file, where --config names none
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

/// The command line's own description, for parsing and for help.
pub(super) fn described() -> clap::Command {
    let command = Arguments::command();
    let groups = groups(&command);
    command
        .help_template(TEMPLATE)
        .after_help(groups.clone())
        .after_long_help(format!("{groups}\n\n{EXAMPLES}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}"))
}

fn groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = write!(text, "{}{group}:", if text.is_empty() { "" } else { "\n\n" });
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = write!(text, "\n  {name:<14} {about}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Promise 15: no command is hidden from whoever asks for help, and none is listed that is not there.
    #[test]
    fn every_command_is_in_one_group() {
        let command = Arguments::command();
        let there: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!((listed.iter().copied().collect::<BTreeSet<_>>(), listed.len()), (there.clone(), there.len()));
        described().debug_assert();
    }
}
