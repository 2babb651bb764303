//! `larder completions`: prints the script that completes larder's commands and options in a shell.

use anyhow::Context;
use clap::{Args, ValueEnum};
use clap_complete::aot;

use super::help::command_with_help;
use super::{CommonOptions, print_json, print_line};

/// A shell that larder writes completions for.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    /// larder completions bash > ~/.local/share/bash-completion/completions/larder
    Bash,
    /// larder completions zsh > _larder, in a folder of $fpath
    Zsh,
    /// larder completions fish > ~/.config/fish/completions/larder.fish
    Fish,
    /// larder completions powershell >> $PROFILE
    Powershell,
}

impl Shell {
    /// The generator of this shell's scripts.
    fn generator(self) -> aot::Shell {
        match self {
            Self::Bash => aot::Shell::Bash,
            Self::Zsh => aot::Shell::Zsh,
            Self::Fish => aot::Shell::Fish,
            Self::Powershell => aot::Shell::PowerShell,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell to complete larder's commands and options in
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let (shell, mut script) = (self.shell.generator(), Vec::new());
        aot::generate(shell, &mut command_with_help(), "larder", &mut script);
        let script = String::from_utf8(script).context("the completions are not UTF-8 text")?;
        let script = script.trim_end();
        if common.json {
            print_json(&serde_json::json!({ "shell": shell.to_string(), "script": format!("{script}\n") }));
        } else {
            print_line(script);
        }
        Ok(())
    }
}
