//! `larder export`: warms an order, then writes its providers as a tree for `filesystem_mirror` or a plain web server.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::order::OrderFor;
use super::progress::through_pipe;
use super::text::{TextPage, escape_for_terminal, plural, width_of_stdout};
use super::warm::{WarmOutput, warm_and};
use super::{CommonOptions, block_on, print_error, print_json, print_line};
use crate::address::{Package, PackageRef, Platform, Version};
use crate::digest::Digest;
use crate::filesystem_mirror::folder::MirrorFolder;
use crate::filesystem_mirror::layout;
use crate::filesystem_mirror::receive::{self, ReceiveSummary};
use crate::http::admin_client::AdminClient;
use crate::jobs::job_report::{Job, JobItem, JobState};
use crate::protocol::admin::EXPORT;
use crate::protocol::admin::bundle::ExportRequest;

#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// Folder of the tree; an existing tree is extended
    #[arg(value_name = "DIR")]
    tree: PathBuf,
    #[command(flatten)]
    order: OrderFor,
    /// Export the available packages where some are unavailable
    #[arg(long)]
    partial: bool,
}

impl Export {
    /// Exports the tree; returns true if the whole order is in it.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let order = self.order.to_order(&config.default_host())?;
        // A bad folder is reported before anything is fetched.
        let folder = Arc::new(MirrorFolder::open_or_create(&self.tree)?);
        let output = if self.common.json { WarmOutput::Quiet } else { WarmOutput::Lines };
        let partial = self.partial;
        let (exported, is_complete) = block_on(warm_and(&config, &order, output, async |larder, job| {
            let is_complete = job.state == JobState::Done;
            let exported =
                if is_complete || partial { Some(export(larder, job, partial, &folder).await?) } else { None };
            Ok((exported, is_complete))
        }))?;
        let Some(exported) = exported else {
            print_error("nothing was exported: some packages are unavailable; --partial exports the rest");
            return Ok(false);
        };
        if self.common.json {
            print_json(&exported);
        } else {
            print_line(&summary(&exported, &folder, width_of_stdout()));
        }
        Ok(is_complete)
    }
}

/// Result of an export.
#[derive(Debug, Serialize)]
struct Exported {
    #[serde(flatten)]
    received: ReceiveSummary,
    /// Modules in the order; omitted, because no client reads modules from a tree.
    modules: Vec<PackageRef>,
}

async fn export(
    larder: &AdminClient,
    job: &Job,
    partial: bool,
    folder: &Arc<MirrorFolder>,
) -> anyhow::Result<Exported> {
    let packages: Vec<Package> = job.items.iter().filter_map(package).collect();
    let modules =
        job.items.iter().map(|item| &item.package).filter(|package| package.platform.is_none()).cloned().collect();
    let shared_folder = Arc::clone(folder);
    let existing: HashSet<Digest> =
        spawn_blocking(move || receive::existing_archive_digests(&shared_folder, &packages))
            .await??
            .into_iter()
            .collect();
    // Archives that exist in the tree are not sent, and their sizes are not reported. The total is then unavailable.
    let total_bytes = job
        .items
        .iter()
        .filter(|item| item.package.platform.is_some())
        .map(|item| item.size_bytes)
        .sum::<Option<u64>>()
        .filter(|_| existing.is_empty());
    let request = ExportRequest { job: job.id.clone(), partial, have: existing };
    let shared_folder = Arc::clone(folder);
    let body = Bytes::from(serde_json::to_vec(&request)?);
    let send = async |out| Ok(larder.download(EXPORT, body, out).await?);
    let incomplete = |error| anyhow::Error::from(error).context("the tree is incomplete; the same command continues");
    let receive = move |tar| receive::receive(tar, &shared_folder);
    let received = through_pipe("exporting", total_bytes, send, receive, incomplete).await?;
    Ok(Exported { received, modules })
}

/// The provider package of a job item; `None` for a module.
fn package(item: &JobItem) -> Option<Package> {
    let PackageRef { address, version, platform, .. } = &item.package;
    let mut parts = address.split('/');
    let provider = layout::provider(parts.next()?, parts.next()?, parts.next()?).ok()?;
    let platform = Platform::parse(platform.as_ref()?).ok()?;
    Some(Package { provider, version: Version::parse(version.as_ref()?).ok()?, platform })
}

fn summary(exported: &Exported, folder: &MirrorFolder, width: Option<usize>) -> String {
    let Exported { received, modules } = exported;
    let mut page = TextPage::of_width(width);
    let written = format!("{} written, {}", plural(received.written, "archive"), ByteSize(received.written_bytes));
    let path = escape_for_terminal(&folder.path().display().to_string());
    page.group("exported", &format!("{written}; {} already there; into {path}", received.there));
    if received.unsigned > 0 {
        let archives = plural(received.unsigned, "archive");
        page.group("unsigned", &format!("{archives}, imported without signatures: the tree has no proof of them"));
    }
    if !received.with_port.is_empty() {
        let hosts: Vec<&str> = received.with_port.iter().map(|host| host.as_str()).collect();
        page.group(
            "ports",
            &format!("{}: clients can use them in a filesystem_mirror, but not in a network_mirror", hosts.join(", ")),
        );
    }
    if !modules.is_empty() {
        let modules = plural(modules.len() as u64, "module");
        page.group(
            "modules",
            &format!("{modules} omitted: no client reads modules from such a tree; `larder bundle` carries them"),
        );
    }
    if !received.notes.is_empty() {
        page.group("notes", "on files that existed before");
        received.notes.iter().for_each(|note| page.item(&escape_for_terminal(note), None));
    }
    page.text()
}
