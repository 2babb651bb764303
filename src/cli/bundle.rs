//! `larder bundle create`, `apply` and `keygen`: what is held here, carried across a gap and proven there.

mod apply;
mod create;
mod files;
mod keygen;
mod keys;
mod target;

use clap::{Args, Subcommand};

use super::Common;

#[derive(Debug, Args)]
pub(super) struct Bundle {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a bundle of what an init needs: warms it first, then writes it as a tar, or in parts
    Create(create::Create),
    /// Take a bundle in: every digest and every publisher's signature in it is checked again
    Apply(apply::Apply),
    /// Make the key that bundles are signed with, and print the public one
    Keygen(keygen::Keygen),
}

impl Bundle {
    pub(super) fn common(&self) -> &Common {
        match &self.command {
            Command::Create(create) => create.common(),
            Command::Apply(apply) => apply.common(),
            Command::Keygen(keygen) => keygen.common(),
        }
    }

    /// Runs it; says whether all of it could be done.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.command {
            Command::Create(create) => create.run(),
            Command::Apply(apply) => apply.run(),
            Command::Keygen(keygen) => keygen.run().map(|()| true),
        }
    }
}
