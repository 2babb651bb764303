//! `larder bundle create`, `apply` and `keygen`: transfers stored packages across an air gap, and verifies them again
//! there.

mod apply;
mod create;
mod files;
mod keygen;
mod keys;
mod target;

use clap::{Args, Subcommand};

use super::CommonOptions;

#[derive(Debug, Args)]
pub(super) struct Bundle {
    #[command(subcommand)]
    command: BundleCommand,
}

#[derive(Debug, Subcommand)]
enum BundleCommand {
    /// Fetch the packages that a configuration needs, and write them as a bundle: one tar, or parts
    Create(create::Create),
    /// Apply a bundle; every digest and every publisher's signature is verified again
    Apply(apply::Apply),
    /// Create the key that signs bundles, and print its public key
    Keygen(keygen::Keygen),
}

impl Bundle {
    pub(super) fn common(&self) -> &CommonOptions {
        match &self.command {
            BundleCommand::Create(create) => create.common(),
            BundleCommand::Apply(apply) => apply.common(),
            BundleCommand::Keygen(keygen) => keygen.common(),
        }
    }

    /// Runs the subcommand; returns true if it succeeded completely.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        match self.command {
            BundleCommand::Create(create) => create.run(),
            BundleCommand::Apply(apply) => apply.run(),
            BundleCommand::Keygen(keygen) => keygen.run().map(|()| true),
        }
    }
}
