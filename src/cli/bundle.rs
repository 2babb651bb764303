//! `larder bundle create`, `apply` and `keygen`: transfers stored packages across an air gap, and verifies them again
//! there. `keygen` creates the signing key, in a file that only this user can read; a running larder uses the keys of its
//! last reload, and the file may have changed since.

mod apply;
mod create;
mod files;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use secrecy::ExposeSecret;

use super::larder::{StoreNeed, parse, running_larder, with_larder};
use super::{CommonOptions, block_on, print_json, print_line};
use crate::bundle::{BundleKeyIds, KeyId, SigningKey};
use crate::config::Config;
use crate::protocol::admin::{INVENTORY, STATUS, StatusReport};

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
    Keygen(Keygen),
}

impl Bundle {
    pub(super) fn common(&self) -> &CommonOptions {
        match &self.command {
            BundleCommand::Create(create) => &create.common,
            BundleCommand::Apply(apply) => &apply.common,
            BundleCommand::Keygen(keygen) => &keygen.common,
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

#[derive(Debug, Args)]
struct Keygen {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// File for the private key. For an existing key, only the public key is printed
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Keygen {
    fn run(self) -> anyhow::Result<()> {
        let (key, is_new) = match files::read_secret(&self.file)? {
            Some(text) => (SigningKey::parse(&text).with_context(|| format!("{}", self.file.display()))?, false),
            None => (SigningKey::generate()?, true),
        };
        if is_new {
            files::write_secret(&self.file, key.text().expose_secret().as_bytes())?;
        }
        // The configuration resolves relative paths against another folder.
        let file = self.file.canonicalize().unwrap_or_else(|_| self.file.clone());
        let (public, file) = (key.public(), file.display().to_string());
        if self.common.json {
            let output = serde_json::json!({ "file": file, "public_key": public.to_string(), "key": public.id() });
            print_json(&output);
            return Ok(());
        }
        let note = if is_new {
            "keep it where bundles are made; larder's user must own it"
        } else {
            "it existed already, and is unchanged"
        };
        print_line(&format!("private key  {file} ({note})"));
        print_line(&format!("public key   {public}"));
        print_line(&format!("key id       {}", public.id()));
        print_line("");
        print_line("where bundles are made, under [bundle] in mirror.toml:");
        print_line(&format!("  signing_key = {{ file = {file:?} }}"));
        print_line("where they are applied, under [bundle] in mirror.toml:");
        print_line(&format!("  trusted_keys = [\"{public}\"]"));
        Ok(())
    }
}

const RELOAD: &str = "reload it first (systemctl reload larder, or kill -HUP)";

/// The keys of the running larder, else those of the configuration.
async fn active_keys(config: &Config) -> anyhow::Result<BundleKeyIds> {
    match running_larder(config).await? {
        Some(larder) => Ok(parse::<StatusReport>(&larder.get(STATUS).await?)?.bundle_keys),
        None => Ok(config.bundle.ids()),
    }
}

/// Fails where a bundle would be unsigned, or signed by another key than the configured one.
async fn require_signing_key(config: &Config) -> anyhow::Result<()> {
    match (active_keys(config).await?.signing, config.bundle.ids().signing) {
        (Some(key), Some(named)) if key != named => {
            bail!("the running larder signs with key {key}, but [bundle] signing_key is now key {named}; {RELOAD}")
        }
        (Some(_), _) => Ok(()),
        (None, Some(named)) => {
            bail!("the running larder has not read [bundle] signing_key (key {named}) yet; {RELOAD}")
        }
        (None, None) => bail!(
            "there is no key to sign the bundle with; create one (larder bundle keygen bundle.key) and name it in [bundle] \
             signing_key; or write an unsigned bundle (--unsigned)"
        ),
    }
}

/// Fails where the configuration trusts a bundle's key, but the running larder has not loaded that.
async fn require_loaded(config: &Config, key: &KeyId) -> anyhow::Result<()> {
    if config.bundle.ids().trusted.contains(key) && !active_keys(config).await?.trusted.contains(key) {
        bail!("[bundle] trusted_keys names key {key}, but the running larder has not read that yet; {RELOAD}");
    }
    Ok(())
}

/// `larder inventory`: prints a list of everything stored, small enough to carry out, for `larder bundle create --since`.
/// Always JSON on one line.
pub(super) fn print_inventory(common: &CommonOptions) -> anyhow::Result<()> {
    let (config, _) = common.load()?;
    let answer = with_larder(&config, StoreNeed::Existing, async |larder| Ok(larder.get_large(INVENTORY).await?));
    let inventory = block_on(answer)?;
    print_line(String::from_utf8_lossy(&inventory).trim_end());
    Ok(())
}
