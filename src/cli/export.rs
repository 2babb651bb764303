//! `larder export`: warms an order, then writes its providers as a tree for `filesystem_mirror` or a plain web server.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes as Body;
use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::larder::JobRunner;
use super::order::OrderOptions;
use super::progress::{ByteCounter, CountingIo, ProgressTask};
use super::text::{TextPage, escape_for_terminal, plural, width_of_stdout};
use super::warm::{WarmOutput, warm_and};
use super::{CommonOptions, print_error, print_line, runtime};
use crate::address::{Artifact, Package, PackageRef, Platform, Version};
use crate::digest::Digest;
use crate::filesystem_mirror::folder::MirrorFolder;
use crate::filesystem_mirror::layout;
use crate::filesystem_mirror::receive::{self, ReceiveSummary};
use crate::http::admin_client::{self, AdminClientError};
use crate::jobs::JobId;
use crate::jobs::job_report::{Job, JobItem, JobState};
use crate::protocol::admin::bundle::{EXPORT, ExportRequest};

#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    common: CommonOptions,
    /// Folder of the tree; an existing tree is extended
    #[arg(value_name = "DIR")]
    tree: PathBuf,
    /// Address with a constraint, .terraform.lock.hcl, folder in which init runs, .tar of such folders, or .json
    /// printed by `larder missing`; repeatable
    #[arg(long = "for", required = true, value_name = "WHAT")]
    order_args: Vec<String>,
    #[command(flatten)]
    options: OrderOptions,
    /// Export the available packages where some are unavailable
    #[arg(long)]
    partial: bool,
}

impl Export {
    pub(super) fn common(&self) -> &CommonOptions {
        &self.common
    }

    /// Exports the tree; returns true if the whole order is in it.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let order = self.options.to_order(&self.order_args, &config.default_host())?;
        // A bad folder is reported before anything is fetched.
        let folder = Arc::new(MirrorFolder::open_or_create(&self.tree)?);
        let runtime = runtime()?;
        let output = if self.common.json { WarmOutput::Quiet } else { WarmOutput::Lines };
        let partial = self.partial;
        let exported = runtime.block_on(warm_and(&config, &order, output, async |runner, job| {
            let is_complete = job.state == JobState::Done;
            let exported =
                if is_complete || partial { Some(export(runner, job, partial, &folder).await?) } else { None };
            Ok((exported, is_complete))
        }));
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        let (exported, is_complete) = exported?;
        let Some(exported) = exported else {
            print_error("nothing was exported: some packages are unavailable; --partial exports the rest");
            return Ok(false);
        };
        if self.common.json {
            print_line(&serde_json::to_string(&exported)?);
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

async fn export(runner: &JobRunner, job: &Job, partial: bool, folder: &Arc<MirrorFolder>) -> anyhow::Result<Exported> {
    let packages: Vec<Package> = job.items.iter().filter_map(package).collect();
    let modules =
        job.items.iter().map(|item| &item.package).filter(|package| package.platform.is_none()).cloned().collect();
    let shared_folder = Arc::clone(folder);
    let existing: HashSet<Digest> =
        spawn_blocking(move || receive::existing_archive_digests(&shared_folder, &packages))
            .await??
            .into_iter()
            .collect();
    let (tar, out) = io::pipe()?;
    let bytes = ByteCounter::default();
    // Archives that exist in the tree are not sent, and their sizes are not reported. The total is then unavailable.
    let total_bytes = job
        .items
        .iter()
        .filter(|item| item.package.platform.is_some())
        .map(|item| item.size_bytes)
        .sum::<Option<u64>>();
    let progress = ProgressTask::begin("exporting", &bytes, total_bytes.filter(|_| existing.is_empty()));
    let (shared_folder, tar) = (Arc::clone(folder), CountingIo { inner: tar, bytes });
    let receiving = spawn_blocking(move || receive::receive(tar, &shared_folder));
    let sent = match runner {
        JobRunner::Running { address, token } => {
            let request = ExportRequest { job: job.id.clone(), partial, have: existing };
            let body = Body::from(serde_json::to_vec(&request)?);
            let sent = admin_client::download(*address, EXPORT, token.as_deref(), body, out).await;
            sent.map(drop).map_err(|error| match error {
                // The receiving side has the cause.
                AdminClientError::LocalIo(error) => anyhow::Error::from(error),
                error => error.into(),
            })
        }
        JobRunner::InProcess { mirror, jobs, .. } => {
            let stored =
                JobId::parse(&job.id).and_then(|id| jobs.stored_archives(id)).context("the job no longer exists")?;
            let packages = stored.into_iter().filter_map(|(artifact, digest)| match artifact {
                Artifact::Provider(package) => Some((package, digest)),
                Artifact::Module(_) => None,
            });
            let call = mirror.runtime.job_context(job.started);
            let export = mirror.transfers.export(packages.collect(), &existing, &call).await?;
            if let Some(missing) = export.missing.first().filter(|_| !partial) {
                anyhow::bail!("{}: {}", missing.package, missing.reason);
            }
            export.write(&mirror.transfers, out).await.map(drop).map_err(anyhow::Error::from)
        }
    };
    let received = receiving.await;
    progress.end().await;
    let received = received?;
    match (sent, received) {
        (Ok(()), Ok(received)) => Ok(Exported { received, modules }),
        // A broken transfer truncates the tar; the sender's error is the cause.
        (Err(sent), Err(received)) if received.kind() == io::ErrorKind::UnexpectedEof => Err(sent),
        (_, Err(received)) => {
            Err(anyhow::Error::from(received).context("the tree is incomplete; the same command continues"))
        }
        (Err(sent), Ok(_)) => Err(sent),
    }
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
