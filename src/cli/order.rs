//! What a command is told to be about: addresses, lock files, folders, tars, and what a sealed larder said is missing.
//! All of it is one order.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};

use super::say_error;
use crate::address::{Hostname, Platform};
use crate::closure::{self, Client, GivenValues, Named, file};
use crate::protocol::admin::order::{NamedText, ToldAddress, ToldOrder};

/// What a command is about.
#[derive(Debug, Args)]
pub(super) struct OrderArgs {
    /// An address with its constraint (hashicorp/aws@~> 5.0, terraform-aws-modules/vpc/aws@5.1.0), a .terraform.lock.hcl,
    /// a folder in which init is run, a .tar of such folders, or a .json of what `larder missing` printed
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    #[command(flatten)]
    also: Also,
}

/// What else is to be known of it.
#[derive(Debug, Args)]
pub(super) struct Also {
    /// A platform that it is for, such as linux_amd64; repeatable. Without it: this machine's
    #[arg(long = "platform", value_name = "OS_ARCH", value_parser = platform)]
    platforms: Vec<Platform>,
    /// Whose rules count for folders; otherwise each folder's own files tell
    #[arg(long, value_enum)]
    client: Option<Whose>,
    /// A value for a variable of the folders, as `terraform init -var` takes it, where it decides which modules are called;
    /// repeatable
    #[arg(long = "var", value_name = "NAME=VALUE")]
    values: Vec<String>,
    /// A file of such values; repeatable. --var wins over it, and both win over the files in the folders
    #[arg(long = "var-file", value_name = "FILE")]
    value_files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Whose {
    Terraform,
    Opentofu,
}

fn platform(given: &str) -> Result<Platform, String> {
    Platform::parse(given).map_err(|bad| bad.to_string())
}

impl OrderArgs {
    /// Reads what is meant, as the running larder is told it.
    pub(super) fn told(&self, default_host: &Hostname) -> anyhow::Result<ToldOrder> {
        self.also.told(&self.what, default_host)
    }
}

impl Also {
    fn given_values(&self) -> anyhow::Result<GivenValues> {
        let mut values = GivenValues::default();
        for path in &self.value_files {
            let name = path.display().to_string();
            let bytes = file::read(path).with_context(|| format!("{name} cannot be read"))?;
            let text = String::from_utf8(bytes).map_err(|_| anyhow!("{name} is no UTF-8 text"))?;
            values.add_file(&name, &text).map_err(|why| anyhow!("{name}: {why}"))?;
        }
        for given in &self.values {
            values.add(given).map_err(|why| anyhow!("--var {why}"))?;
        }
        Ok(values)
    }

    /// Reads what is meant by these words.
    pub(super) fn told(&self, what: &[String], default_host: &Hostname) -> anyhow::Result<ToldOrder> {
        let mut told = ToldOrder {
            platforms: self.platforms.iter().map(ToString::to_string).collect(),
            client: self.client.map(|whose| match whose {
                Whose::Terraform => Client::Terraform,
                Whose::Opentofu => Client::Opentofu,
            }),
            ..ToldOrder::default()
        };
        let mut folders = Vec::new();
        let mut tar: Option<&str> = None;
        for given in what {
            let path = PathBuf::from(given);
            match Named::of(given, &path, default_host).map_err(anyhow::Error::msg)? {
                Named::Address => told.what.push(ToldAddress::Text(given.clone())),
                Named::LockFile => {
                    let text = file::read_lock_file(&path).map_err(anyhow::Error::msg)?;
                    told.lock_files.push(NamedText { name: given.clone(), text });
                }
                Named::Told => {
                    let bytes = file::read_up_to(&path, closure::MOST_BYTES)
                        .with_context(|| format!("{given} cannot be read"))?;
                    let more = ToldOrder::read(&bytes).map_err(|why| anyhow!("{given}: {why}"))?;
                    told.add(more).map_err(|why| anyhow!("{given}: {why}"))?;
                }
                Named::Folder => folders.push(path),
                Named::Tar => {
                    if let Some(other) = tar.replace(given) {
                        bail!("{other} and {given} are both a tar: name one, with all the folders in it");
                    }
                    let files = file::read_tar(&path).map_err(anyhow::Error::msg)?;
                    told.add_files(files.into(), Vec::new()).map_err(|why| anyhow!("{given}: {why}"))?;
                }
            }
        }
        if folders.is_empty() && !(self.values.is_empty() && self.value_files.is_empty()) {
            bail!("--var and --var-file are for folders, and none is named");
        }
        if !folders.is_empty() {
            let collected = closure::collect(&folders, &self.given_values()?).map_err(|bad| anyhow!("{bad}"))?;
            for passed_over in &collected.passed_over {
                say_error(&format!("passed over: {passed_over}"));
            }
            told.add_files(collected.files.into(), collected.roots).map_err(|why| anyhow!(why))?;
        }
        Ok(told)
    }
}
