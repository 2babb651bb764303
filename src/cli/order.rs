//! Arguments that form an order: addresses, lock files, folders, tars, and the JSON of `larder missing`, `larder plan` and
//! receipts of bundles.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueHint};
use serde_json::{Map, Value};

use super::print_error;
use super::terminal::escape_for_terminal;
use crate::address::{Hostname, PackageRef, PackageSelector, Platform, WaitingVersion};
use crate::bundle::Receipt;
use crate::jobs::{Plan, PlanState, PlannedItem};
use crate::protocol::admin::order::{AddressFor, AddressRequest, NamedText, OrderRequest};
use crate::requirements::{self, ArgumentKind, ClientKind, CommandLineValues, disk};

#[derive(Debug, Args)]
pub(super) struct OrderArgs {
    /// Address with a constraint (hashicorp/aws@~> 5.0, terraform-aws-modules/vpc/aws@5.1.0), .terraform.lock.hcl,
    /// folder in which init runs, .tar of such folders, or .json of `larder missing`, `larder plan` or a receipt
    #[arg(required = true, value_name = "WHAT", value_hint = ValueHint::AnyPath)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) options: OrderOptions,
}

/// An order as `--for`, for commands whose argument is a destination.
#[derive(Debug, Args)]
pub(super) struct OrderFor {
    /// Address with a constraint, .terraform.lock.hcl, folder in which init runs, .tar of such folders, or .json of
    /// `larder missing`, `larder plan` or a receipt; repeatable
    #[arg(long = "for", value_name = "WHAT", required = true, value_hint = ValueHint::AnyPath)]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) options: OrderOptions,
}

/// Options of an order that apply to all its packages.
#[derive(Debug, Args)]
pub(super) struct OrderOptions {
    /// Platform of the clients, such as linux_amd64; repeatable [default: this machine's]
    #[arg(long = "platform", value_name = "OS_ARCH", value_parser = Platform::parse)]
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

    /// Builds the order of these names, in the form that the admin API accepts. Its platforms are those of the options,
    /// else those that a file of the order names, else `default_platforms`.
    pub(super) fn to_order(
        &self,
        names: &[String],
        default_host: &Hostname,
        default_platforms: &[Platform],
    ) -> anyhow::Result<OrderRequest> {
        let mut order = OrderRequest { client: self.client, ..OrderRequest::default() };
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
                    let listed = order_in_file(&bytes).map_err(|reason| anyhow!("{argument}: {reason}"))?;
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
            self.add_folders(&mut order, &folders)?;
        }
        self.set_platforms(&mut order, default_platforms);
        Ok(order)
    }

    /// Builds the order of these folders. Also returns the folder that the paths of its files are relative to.
    pub(super) fn order_of_folders(
        &self,
        folders: &[PathBuf],
        default_platforms: &[Platform],
    ) -> anyhow::Result<(OrderRequest, PathBuf)> {
        let mut order = OrderRequest { client: self.client, ..OrderRequest::default() };
        let top = self.add_folders(&mut order, folders)?;
        self.set_platforms(&mut order, default_platforms);
        Ok((order, top))
    }

    /// Adds the files of folders. Returns the folder that their paths are relative to.
    fn add_folders(&self, order: &mut OrderRequest, folders: &[PathBuf]) -> anyhow::Result<PathBuf> {
        let collected = requirements::collect(folders, &self.variable_values()?).map_err(|bad| anyhow!("{bad}"))?;
        for skipped in &collected.passed_over {
            print_error(&format!("skipped: {skipped}"));
        }
        order.add_files(collected.files.into(), collected.roots).map_err(|reason| anyhow!(reason))?;
        Ok(collected.top)
    }

    fn set_platforms(&self, order: &mut OrderRequest, default_platforms: &[Platform]) {
        let texts = |platforms: &[Platform]| platforms.iter().map(ToString::to_string).collect();
        if !self.platforms.is_empty() {
            order.platforms = texts(&self.platforms);
            for request in &mut order.what {
                if let AddressRequest::For(AddressFor { platforms, .. }) = request {
                    platforms.clear();
                }
            }
        } else if order.platforms.is_empty() {
            order.platforms = texts(default_platforms);
        }
    }
}

/// The platforms that an order is for, for people. Not told before, a person learns only inside that theirs is not there.
pub(super) fn platforms_text(order: &OrderRequest) -> String {
    let own = |request: &AddressRequest| match request {
        AddressRequest::For(AddressFor { platforms, .. }) => platforms.clone(),
        AddressRequest::Text(_) => Vec::new(),
    };
    let all_have_own = order.lock_files.is_empty()
        && order.files.is_empty()
        && order.what.iter().all(|request| !own(request).is_empty());
    let mut platforms: BTreeSet<String> = order.what.iter().flat_map(own).collect();
    let mut note = "";
    if !all_have_own && order.platforms.is_empty() {
        platforms.insert(Platform::of_this_machine().to_string());
        note = ": this machine's, as no other is named (--platform)";
    } else if !all_have_own {
        platforms.extend(order.platforms.iter().cloned());
    }
    let platforms: Vec<String> = platforms.into_iter().collect();
    // The platforms of a file are a stranger's text.
    escape_for_terminal(&format!("{}{note}", platforms.join(", ")))
}

/// The order in a JSON file that larder printed: `larder missing --json`, `larder plan --json`, or a receipt of `larder
/// bundle apply`.
fn order_in_file(bytes: &[u8]) -> Result<OrderRequest, String> {
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(bytes) else { return OrderRequest::read(bytes) };
    let has = |names: [&str; 2]| names.iter().all(|name| object.contains_key(*name));
    if has(["ready", "items"]) {
        let plan: Plan = serde_json::from_value(Value::Object(object)).map_err(|bad| format!("a bad plan: {bad}"))?;
        let order = order_of_plan(&plan);
        return match order.what.is_empty() {
            true => Err("this plan lacks nothing that a larder could fetch".to_owned()),
            false => Ok(order),
        };
    }
    if has(["manifest", "entries"]) {
        let receipt = serde_json::from_value(Value::Object(object)).map_err(|bad| format!("a bad receipt: {bad}"))?;
        return Ok(order_of_receipt(&receipt));
    }
    OrderRequest::read(bytes)
}

/// The packages of a plan that can be had. Of an offline larder, those that are not stored there.
pub(super) fn order_of_plan(plan: &Plan) -> OrderRequest {
    let is_ordered = |item: &&PlannedItem| match item.state {
        PlanState::Stored { .. } => !plan.offline,
        PlanState::ToFetch { .. } | PlanState::Unknown { .. } => true,
        // A newer list may name it.
        PlanState::Unavailable { .. } => plan.offline && is_address(&item.package),
    };
    let request = |item: &PlannedItem| address_request(&item.package);
    let platforms = plan.platforms.iter().map(ToString::to_string).collect();
    OrderRequest { platforms, ..OrderRequest::of_addresses(plan.items.iter().filter(is_ordered).map(request)) }
}

/// The address of a package in an order, and its platform.
pub(super) fn address_request(package: &PackageRef) -> (String, Vec<String>) {
    let address = match &package.version {
        Some(version) => format!("{}@{version}", package.address),
        None => package.address.clone(),
    };
    (address, package.platform.iter().cloned().collect())
}

/// True for the address of a provider or a module with a version or a constraint.
fn is_address(package: &PackageRef) -> bool {
    let host = Hostname::parse(ClientKind::Terraform.default_host());
    let text = package.version.as_ref().map(|version| format!("{}@{version}", package.address));
    host.ok().zip(text).is_some_and(|(host, text)| PackageSelector::parse(&text, &host).is_ok())
}

/// The versions of a receipt that wait for platforms. Whatever else is ordered is for the receipt's platforms.
fn order_of_receipt(receipt: &Receipt) -> OrderRequest {
    let request = |waiting: &WaitingVersion| {
        let platforms = waiting.waits_for.iter().map(ToString::to_string).collect();
        (format!("{}@{}", waiting.provider, waiting.version), platforms)
    };
    let platforms = receipt.sealed_platforms.iter().map(ToString::to_string).collect();
    OrderRequest { platforms, ..OrderRequest::of_addresses(receipt.waiting.iter().map(request)) }
}
