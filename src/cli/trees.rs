//! `larder export` and `larder import`: provider trees for `filesystem_mirror` or a plain web server. Export warms an order,
//! then writes its providers; import prints a line for each package.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use clap::{Args, ValueHint};
use indicatif::ProgressBar;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::admin_service::{StoreNeed, config_to_ask, with_larder};
use super::order::OrderFor;
use super::terminal::{TerminalBar, TextPage, escape_for_terminal, plural, through_pipe, width_of_stdout};
use super::warm::{WarmOutput, warm_and};
use super::{CommonOptions, block_on, catch_file_size_signal, print_error, print_json, print_line};
use crate::address::{Hostname, Package, PackageRef, Platform, Version};
use crate::digest::Digest;
use crate::filesystem_mirror::folder::MirrorFolder;
use crate::filesystem_mirror::layout;
use crate::filesystem_mirror::receive::{self, ReceiveSummary};
use crate::filesystem_mirror::send::{self, SendPlan};
use crate::http::admin_client::AdminClient;
use crate::jobs::job_report::{Job, JobItem, JobState};
use crate::mirror::{FileVerdict, ImportCounts, ImportStep, ImportedFile, ProvenBy, UnsignedPolicy};
use crate::protocol::admin::EXPORT;
use crate::protocol::admin::bundle::{ExportRequest, TAR, import_path};

#[derive(Debug, Args)]
pub(super) struct Export {
    /// Folder of the tree; an existing tree is extended
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    tree: PathBuf,
    #[command(flatten)]
    order: OrderFor,
    /// Export the available packages where some are unavailable
    #[arg(long)]
    partial: bool,
}

impl Export {
    /// Exports the tree; returns true if the whole order is in it.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let config = config_to_ask(common)?;
        let order = self.order.options.to_order(&self.order.names, &config.default_host(), &[])?;
        // A bad folder is reported before anything is fetched.
        let folder = Arc::new(MirrorFolder::open_or_create(&self.tree)?);
        let output = if common.json { WarmOutput::Quiet } else { WarmOutput::Lines };
        let partial = self.partial;
        let (exported, is_complete) = block_on(warm_and(&config, &order, output, async |larder, job| {
            let is_complete = job.state == JobState::Done;
            let exported =
                if is_complete || partial { Some(export_tree(larder, job, partial, &folder).await?) } else { None };
            Ok((exported, is_complete))
        }))?;
        let Some(exported) = exported else {
            print_error("nothing was exported: some packages are unavailable; --partial exports the rest");
            return Ok(false);
        };
        if common.json {
            print_json(&exported);
        } else {
            print_line(&export_summary(&exported, &folder, width_of_stdout()));
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

async fn export_tree(
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
    let send = async |out| Ok(larder.download(EXPORT, &request, out).await?);
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

fn export_summary(exported: &Exported, folder: &MirrorFolder, width: Option<usize>) -> String {
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

#[derive(Debug, Args)]
pub(super) struct ImportCommand {
    /// Tree made by `terraform providers mirror` or `larder export`; packages may be unpacked, as in
    /// `.terraform/providers`
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    tree: PathBuf,
    /// Accept archives without proof, and keys from the tree that larder has never seen: you vouch for them
    #[arg(long)]
    unsigned: bool,
}

impl ImportCommand {
    /// Imports the tree; returns true if nothing was refused.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let config = config_to_ask(common)?;
        let folder = Arc::new(MirrorFolder::open(&self.tree)?);
        let send_plan = send::plan_send(&folder)?;
        let mut report = ImportReporter {
            json: common.json,
            host: config.default_host(),
            counts: ImportCounts::default(),
            trusted_tree_key: false,
            last_step: None,
        };
        for (file, reason) in &send_plan.refused {
            report.show(ImportStep::File(refused_locally(file, reason)));
        }
        if send_plan.packages == 0 && send_plan.refused.is_empty() {
            anyhow::bail!(
                "{} has no archives; expected HOST/NAMESPACE/TYPE/terraform-provider-TYPE_VERSION_OS_ARCH.zip, or unpacked packages in HOST/NAMESPACE/TYPE/VERSION/OS_ARCH",
                self.tree.display()
            );
        }
        let send_plan = Arc::new(send_plan);
        let unsigned = if self.unsigned { UnsignedPolicy::Allowed } else { UnsignedPolicy::Refused };
        block_on(async {
            let _file_size_signal = catch_file_size_signal()?;
            let progress = TerminalBar::of_transfer("importing", Some(send_plan.bytes));
            let imported = with_larder(&config, StoreNeed::Any, async |larder| {
                let tar = send_tree(folder, send_plan, progress.0.clone())?;
                Ok(larder.upload(&import_path(unsigned), TAR, tar, |step| report.show(step)).await?)
            });
            let imported = imported.await;
            drop(progress);
            imported
        })?;
        Ok(report.finish())
    }
}

fn refused_locally(file: &str, reason: &str) -> ImportedFile {
    let verdict = FileVerdict::Refused { why: reason.to_owned() };
    ImportedFile { file: file.to_owned(), package: None, size_bytes: 0, judged: verdict, notes: Vec::new() }
}

/// Streams a tree as a tar; `sent` counts its bytes.
fn send_tree(
    folder: Arc<MirrorFolder>,
    send_plan: Arc<SendPlan>,
    sent: ProgressBar,
) -> io::Result<impl Read + Send + 'static> {
    let (reader, writer) = io::pipe()?;
    // The receiver sees a failure as a truncated tar; the reason is printed here.
    std::thread::Builder::new().name("tree".into()).spawn(move || {
        match send::send(&folder, &send_plan, sent.wrap_write(writer)) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => print_error(&error.to_string()),
            _ => {}
        }
    })?;
    Ok(reader)
}

/// Prints import events as lines or JSON, and counts them.
struct ImportReporter {
    json: bool,
    host: Hostname,
    counts: ImportCounts,
    /// True once a key was accepted on the word of the tree alone.
    trusted_tree_key: bool,
    last_step: Option<ImportStep>,
}

impl ImportReporter {
    fn show(&mut self, step: ImportStep) {
        let step = match step {
            // The sender's counts include files refused before sending.
            ImportStep::Done(_) => ImportStep::Done(self.counts),
            step => step,
        };
        if self.json {
            print_json(&step);
        }
        match step {
            ImportStep::File(file) => {
                self.counts.count(&file.judged);
                self.trusted_tree_key |=
                    file.judged == FileVerdict::Proven { by: ProvenBy::Tree } && !file.notes.is_empty();
                if !self.json {
                    print_line(&file_line(&file, &self.host, width_of_stdout()));
                }
            }
            step => self.last_step = Some(step),
        }
    }

    /// Prints the summary; returns true if nothing was refused.
    fn finish(self) -> bool {
        if !self.json {
            let gap = if self.counts == ImportCounts::default() { "" } else { "\n" };
            print_line(&format!("{gap}{}", import_summary(self.counts, self.trusted_tree_key, width_of_stdout())));
        }
        match &self.last_step {
            Some(ImportStep::Done(_)) => self.counts.refused == 0,
            Some(ImportStep::Stopped { error }) => {
                let error = escape_for_terminal(error);
                print_error(&format!(
                    "importing ended early: {error}; imported archives stay, and the same command continues"
                ));
                false
            }
            _ => {
                print_error("larder stopped before the whole tree was imported; the same command continues");
                false
            }
        }
    }
}

/// Renders the outcome of one file.
fn file_line(file: &ImportedFile, host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    let subject = match &file.package {
        Some(package) => escape_for_terminal(&package.without(host).to_string()),
        None => escape_for_terminal(&file.file),
    };
    let with_size = format!("{subject}, {}", ByteSize(file.size_bytes));
    let (label, text, reason) = match &file.judged {
        FileVerdict::Proven { by } => {
            let proven_by = match by {
                ProvenBy::HeldSet => "by the stored proof set",
                ProvenBy::Upstream => "by upstream's documents",
                ProvenBy::Tree => "by files beside it",
            };
            ("  verified  ", format!("{with_size}, {proven_by}"), None)
        }
        FileVerdict::Unsigned => ("  unsigned  ", with_size, None),
        FileVerdict::PackedAnew => ("  unsigned  ", format!("{with_size}, repacked"), None),
        FileVerdict::Held => ("  stored    ", subject, None),
        FileVerdict::Refused { why: reason } => ("  REFUSED   ", escape_for_terminal(&file.file), Some(reason)),
    };
    page.outcome(label, &text, reason.into_iter().chain(&file.notes));
    page.text()
}

/// Renders the summary of an import.
fn import_summary(counts: ImportCounts, trusted_tree_key: bool, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    let ImportCounts { proven, unsigned, packed_anew, held: stored, refused } = counts;
    if proven > 0 {
        page.group("verified", &plural(proven, "archive"));
        if trusted_tree_key {
            page.item(TREE_KEYS_NOTE, None);
        }
    }
    if unsigned > 0 {
        page.group("unsigned", &format!("{}: you alone vouch for them", plural(unsigned, "archive")));
        page.item(NO_SIGNATURES_NOTE, None);
    }
    if packed_anew > 0 {
        let packages = plural(packed_anew, "unpacked package");
        page.group("repacked", &format!("{packages}: you alone vouch for them"));
        page.item(REPACKED_NOTE, None);
        if unsigned == 0 {
            page.item(NO_SIGNATURES_NOTE, None);
        }
    }
    if stored > 0 {
        page.group("stored", &format!("{} already", plural(stored, "archive")));
    }
    if refused > 0 {
        page.group("refused", &plural(refused, "file"));
    }
    if counts == ImportCounts::default() {
        page.group("imported", "nothing");
    }
    page.text()
}

/// Shown where a key of the tree has no other source.
const TREE_KEYS_NOTE: &str = "The maker of the tree chose these keys: compare their fingerprints with the publishers' own, or import while upstream is reachable.";

/// Shown for archives without a signature: clients treat them differently by protocol.
const NO_SIGNATURES_NOTE: &str = "No signatures: they are served as a network mirror. By the registry protocol (a host override) Terraform refuses them (\"authentication signature from unknown issuer\"), and so does OpenTofu, except for providers of registry.opentofu.org.";

/// Shown for packages that were unpacked in the tree.
const REPACKED_NOTE: &str = "larder made the zip: it has the publisher's h1, which lock files record and clients check, but neither its signature nor its zh. A lock file with zh lines alone refuses it.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PackageRef;

    #[test]
    fn an_import_summary_fits_the_terminal_and_names_unsigned_archives() {
        let file = |verdict, notes| ImportedFile {
            file: "registry.terraform.io/hashicorp/a-provider-with-quite-a-long-name/1.2.0/linux_amd64".to_owned(),
            package: Some(PackageRef {
                platform: Some("linux_amd64".to_owned()),
                ..PackageRef::requested("registry.terraform.io/hashicorp/a-provider-with-quite-a-long-name@1.2.0")
            }),
            size_bytes: 12 << 20,
            judged: verdict,
            notes,
        };
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let packed = file_line(&file(FileVerdict::PackedAnew, Vec::new()), &host, Some(80));
        assert!(packed.starts_with("  unsigned  hashicorp/a-provider"), "{packed}");
        assert!(packed.ends_with("12.0 MiB, repacked"), "{packed}");
        let refused = file_line(
            &file(FileVerdict::Refused { why: "it is a link \u{1b}[2J".to_owned() }, Vec::new()),
            &host,
            Some(80),
        );
        assert!(refused.ends_with("\n            it is a link \\u{1b}[2J"), "{refused}");
        let counts = ImportCounts { proven: 1, unsigned: 0, packed_anew: 2, held: 3, refused: 1 };
        let summary_text = import_summary(counts, false, Some(80));
        for text in [&packed, &refused, &summary_text] {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        let unwrapped = summary_text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            unwrapped.contains("repacked 2 unpacked packages: you alone vouch for them larder made the zip"),
            "{unwrapped}"
        );
        assert!(
            unwrapped.contains("neither its signature nor its zh") && unwrapped.contains("No signatures:"),
            "{unwrapped}"
        );
    }
}
