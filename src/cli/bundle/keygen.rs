//! `larder bundle keygen`: creates the signing key of bundles, in a file that only this user can read.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use secrecy::ExposeSecret;

use super::super::{CommonOptions, print_line};
use super::files;
use crate::bundle::SigningKey;

#[derive(Debug, Args)]
pub(super) struct Keygen {
    #[command(flatten)]
    common: CommonOptions,
    /// File for the private key. For an existing key, only the public key is printed
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Keygen {
    pub(super) fn common(&self) -> &CommonOptions {
        &self.common
    }

    pub(super) fn run(self) -> anyhow::Result<()> {
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
            print_line(&output.to_string());
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
