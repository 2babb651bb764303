//! `larder bundle keygen`: the key that bundles are signed with, in a file that only this user can read.

use std::path::PathBuf;

use clap::Args;
use secrecy::ExposeSecret;

use super::super::{Common, say};
use super::files;
use crate::bundle::SigningKey;

#[derive(Debug, Args)]
pub(super) struct Keygen {
    #[command(flatten)]
    common: Common,
    /// Where the private key goes; a file that is there is never replaced
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Keygen {
    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    pub(super) fn run(self) -> anyhow::Result<()> {
        let key = SigningKey::generate()?;
        files::write_secret(&self.file, key.text().expose_secret().as_bytes())?;
        let (public, file) = (key.public(), self.file.display().to_string());
        if self.common.json {
            let told = serde_json::json!({ "file": file, "public_key": public.to_string(), "key": public.id() });
            say(&told.to_string());
            return Ok(());
        }
        say(&format!("private key  {file} (keep it where bundles are made)"));
        say(&format!("public key   {public}"));
        say(&format!("key id       {}", public.id()));
        say("");
        say("where bundles are made, in mirror.toml:");
        say(&format!("  [bundle]\n  signing_key = {{ file = {file:?} }}"));
        say("where they are applied:");
        say(&format!("  [bundle]\n  trusted_keys = [\"{public}\"]"));
        Ok(())
    }
}
