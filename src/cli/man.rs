//! `larder man`: the manual pages (section 1) of larder and of each command, in roff. Name, synopsis, options and commands
//! come from the definition of the command line; examples, environment and exit codes from the texts of `--help`.
#![expect(clippy::disallowed_methods, reason = "manual pages are a user's own files")]

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command, ValueHint};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use serde::Serialize;

use super::help::{ENVIRONMENT, EXAMPLES, EXIT_CODES, command_with_help, examples_of};
use super::{CommonOptions, VERSION, print_json, print_line};

/// The manual section of user commands.
const SECTION: &str = "1";

/// Definition of an apostrophe, with which the generator begins each section; a page needs it once.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// The description of larder on its own page.
const DESCRIPTION: [&str; 2] = [
    "larder presents itself as a registry to Terraform and OpenTofu. It stores what passes through once that is verified, \
     and keeps serving when the registry or the network does not.",
    "`larder serve` runs the mirror. The other commands ask the running larder, over its admin listener. Where none runs, those \
     that need the store open it themselves.",
];

/// Files and folders with their purpose, in the order in which larder looks for them.
const FILES: &[(&str, &str)] = &[
    ("~/.config/larder/mirror.toml", "the configuration of one user; $XDG_CONFIG_HOME replaces ~/.config"),
    ("/etc/larder/mirror.toml", "the configuration of the machine; every option has a default"),
    ("/var/lib/larder", "the store of the service"),
    ("~/.cache/larder", "the store of one user; $XDG_CACHE_HOME replaces ~/.cache"),
];

#[derive(Debug, Args)]
pub(super) struct ManCommand {
    /// Folder for the pages of larder and of each command; without it, larder's own page is printed
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

impl ManCommand {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let pages = pages().context("the manual pages could not be rendered")?;
        let Some(folder) = self.out else {
            match pages.first() {
                _ if common.json => print_json(&serde_json::json!({ "pages": pages })),
                Some(page) => print_line(page.text.trim_end()),
                None => {}
            }
            return Ok(());
        };
        std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        let files = pages.iter().map(|page| page.write_to(&folder)).collect::<anyhow::Result<Vec<PathBuf>>>()?;
        if common.json {
            print_json(&serde_json::json!({ "files": files }));
        } else {
            let number = files.len();
            print_line(&format!("{number} pages written to {}", folder.display()));
            files.first().into_iter().for_each(|file| print_line(&format!("to read one: man -l {}", file.display())));
        }
        Ok(())
    }
}

/// A manual page in roff.
#[derive(Debug, Serialize)]
struct ManualPage {
    /// Name of its file, such as `larder-bundle-create.1`.
    file: String,
    text: String,
}

impl ManualPage {
    fn write_to(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(&self.file);
        std::fs::write(&path, &self.text).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    }
}

/// Renders the page of larder, then one page for each command and each of its subcommands.
fn pages() -> io::Result<Vec<ManualPage>> {
    let mut command = with_command_sections(command_with_help().disable_help_subcommand(true));
    command.build();
    let mut pages = Vec::new();
    let mut waiting = vec![&command];
    while let Some(command) = waiting.pop() {
        pages.push(page(command)?);
        waiting.extend(command.get_subcommands().filter(|command| !command.is_hide_set()));
    }
    Ok(pages)
}

/// Names the section of subcommands.
fn with_command_sections(command: Command) -> Command {
    command.mut_subcommands(with_command_sections).subcommand_help_heading("COMMANDS")
}

fn page(command: &Command) -> io::Result<ManualPage> {
    let path = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let name = path.replace(' ', "-");
    let is_main = name == path;
    let man = Man::new(command.clone());
    let mut generated = Vec::new();
    man.render_name_section(&mut generated)?;
    generated.extend_from_slice(synopsis(command, path).to_roff().as_bytes());
    if is_main {
        generated.extend_from_slice(description().to_roff().as_bytes());
    } else {
        man.render_description_section(&mut generated)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut generated)?;
    }
    man.render_options_section(&mut generated)?;
    let generated = String::from_utf8(generated).map_err(io::Error::other)?.replace(APOSTROPHE, "");
    let mut rest = Roff::new();
    if is_main {
        entries(&mut rest, "EXAMPLES", EXAMPLES);
        entries(&mut rest, "ENVIRONMENT", ENVIRONMENT);
        entries(&mut rest, "FILES", FILES);
        entries(&mut rest, "EXIT STATUS", EXIT_CODES);
        rest.control("SH", ["SEE ALSO"]);
        rest.text([roman("/usr/share/doc/larder has the documentation where larder is a Debian package.")]);
    } else {
        entries(&mut rest, "EXAMPLES", &examples_of(path).collect::<Vec<_>>());
        let parents = path.match_indices(' ').map(|(end, _)| path[..end].replace(' ', "-"));
        let parents: Vec<String> = parents.map(|parent| format!("{parent}({SECTION})")).collect();
        rest.control("SH", ["SEE ALSO"]).text([roman(parents.join(", "))]);
    }
    // No date: the same source makes the same page. The generator would leave out the empty argument.
    let title = format!(".TH {name} {SECTION} \"\" \"larder {VERSION}\" \"User Commands\"\n");
    Ok(ManualPage {
        file: format!("{name}.{SECTION}"),
        text: [APOSTROPHE, &title, &generated, &rest.to_roff()].concat(),
    })
}

/// The usage line of `--help`, which is shorter than a list of all options.
fn synopsis(command: &Command, path: &str) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let arguments = usage.split_once(path).map_or("", |(_, arguments)| arguments).trim();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text([bold(path), roman(format!(" {arguments}"))]);
    roff
}

fn description() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        roff.control("PP", []).text([roman(paragraph)]);
    }
    roff
}

/// Adds a section of terms with their explanations; nothing without any.
fn entries(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    if entries.is_empty() {
        return;
    }
    roff.control("SH", [title]);
    for (term, explanation) in entries {
        let layout = if explanation.is_empty() { "PP" } else { "TP" };
        roff.control(layout, []).text([bold(*term)]);
        if !explanation.is_empty() {
            roff.text([roman(*explanation)]);
        }
    }
}
