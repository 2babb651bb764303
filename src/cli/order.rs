//! Arguments that form an order: addresses, lock files, folders, tars, and the JSON of `larder missing`.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueHint};

use super::print_error;
use crate::address::{Hostname, Platform};
use crate::protocol::admin::order::{AddressRequest, NamedText, OrderRequest};
use crate::requirements::{self, ArgumentKind, ClientKind, CommandLineValues, disk};

#[derive(Debug, Args)]
pub(super) struct OrderArgs {
    /// Address with a constraint (hashicorp/aws@~> 5.0, terraform-aws-modules/vpc/aws@5.1.0), .terraform.lock.hcl,
    /// folder in which init runs, .tar of such folders, or .json printed by `larder missing`
    #[arg(required = true, value_name = "WHAT", value_hint = ValueHint::AnyPath)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) options: OrderOptions,
}

/// An order as `--for`, for commands whose argument is a destination.
#[derive(Debug, Args)]
pub(super) struct OrderFor {
    /// Address with a constraint, .terraform.lock.hcl, folder in which init runs, .tar of such folders, or .json
    /// printed by `larder missing`; repeatable
    #[arg(long = "for", value_name = "WHAT", required = true, value_hint = ValueHint::AnyPath)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) options: OrderOptions,
}

/// Options of an order that apply to all its packages.
#[derive(Debug, Args)]
pub(super) struct OrderOptions {
    /// Platform of the clients, such as linux_amd64; repeatable [default: this machine's]
    #[arg(long = "platform", value_name = "OS_ARCH", value_parser = parse_platform)]
    platforms: Vec<Platform>,
    /// Client whose rules apply to folders [default: detected from each folder's files]
    #[arg(long, value_enum)]
    client: Option<ClientKind>,
    /// Value for a variable of the folders, as in `terraform init -var`; needed only if it decides which modules are
    /// called; repeatable. Not for a .tar
    #[arg(long = "var", value_name = "NAME=VALUE")]
    values: Vec<String>,
    /// File of variable values; repeatable; not for a .tar. --var overrides it, and both override the files in the
    /// folders
    #[arg(long = "var-file", value_name = "FILE")]
    value_files: Vec<PathBuf>,
}

fn parse_platform(text: &str) -> Result<Platform, String> {
    Platform::parse(text).map_err(|bad| bad.to_string())
}

impl OrderOptions {
    fn variable_values(&self) -> anyhow::Result<CommandLineValues> {
        let mut values = CommandLineValues::default();
        for path in &self.value_files {
            let name = path.display().to_string();
            let bytes = disk::read(path).with_context(|| format!("{name} cannot be read"))?;
            let text = String::from_utf8(bytes).map_err(|_| anyhow!("{name} is not UTF-8 text"))?;
            values.add_file(&name, &text).map_err(|reason| anyhow!("{name}: {reason}"))?;
        }
        for assignment in &self.values {
            values.add(assignment).map_err(|reason| anyhow!("--var {reason}"))?;
        }
        Ok(values)
    }

    /// Builds the order of these names, in the form that the admin API accepts.
    pub(super) fn to_order(&self, names: &[String], default_host: &Hostname) -> anyhow::Result<OrderRequest> {
        let mut order = OrderRequest {
            platforms: self.platforms.iter().map(ToString::to_string).collect(),
            client: self.client,
            ..OrderRequest::default()
        };
        let mut folders = Vec::new();
        let mut tar: Option<&str> = None;
        for argument in names {
            let path = PathBuf::from(argument);
            match ArgumentKind::of(argument, &path, default_host).map_err(anyhow::Error::msg)? {
                ArgumentKind::Address => order.what.push(AddressRequest::Text(argument.clone())),
                ArgumentKind::LockFile => {
                    let text = disk::read_lock_file(&path).map_err(anyhow::Error::msg)?;
                    order.lock_files.push(NamedText { name: argument.clone(), text });
                }
                ArgumentKind::OrderJson => {
                    let bytes = disk::read_up_to(&path, requirements::MAX_BYTES)
                        .with_context(|| format!("{argument} cannot be read"))?;
                    let listed = OrderRequest::read(&bytes).map_err(|reason| anyhow!("{argument}: {reason}"))?;
                    order.add(listed).map_err(|reason| anyhow!("{argument}: {reason}"))?;
                }
                ArgumentKind::Folder => folders.push(path),
                ArgumentKind::Tar => {
                    if let Some(first) = tar.replace(argument) {
                        bail!("{first} and {argument} are both tars; name one, with all the folders in it");
                    }
                    let files = disk::read_tar(&path).map_err(anyhow::Error::msg)?;
                    order.add_files(files.into(), Vec::new()).map_err(|reason| anyhow!("{argument}: {reason}"))?;
                }
            }
        }
        if folders.is_empty() && !(self.values.is_empty() && self.value_files.is_empty()) {
            bail!("--var and --var-file are for folders, and no folder is named");
        }
        if !folders.is_empty() {
            let collected =
                requirements::collect(&folders, &self.variable_values()?).map_err(|bad| anyhow!("{bad}"))?;
            for skipped in &collected.passed_over {
                print_error(&format!("skipped: {skipped}"));
            }
            order.add_files(collected.files.into(), collected.roots).map_err(|reason| anyhow!(reason))?;
        }
        Ok(order)
    }
}
