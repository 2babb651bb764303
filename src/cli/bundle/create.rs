//! `larder bundle create`: warms an order, then writes the stored packages into a bundle.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use bytesize::ByteSize;
use clap::Args;

use super::super::order::OrderFor;
use super::super::progress::through_pipe;
use super::super::text::{escape_for_terminal, plural};
use super::super::warm::{WarmOutput, warm_and};
use super::super::{CommonOptions, block_on, print_error, print_json, print_line};
use super::files::{self, BundleDestination, BundleOutput, BundleSource, WrittenBundle};
use super::require_signing_key;
use crate::bundle::{BundleEntry, BundleReader, BundleTrust, Inventory, MIN_PART_BYTES, Manifest, SignatureStatus};
use crate::clock::Clock;
use crate::http::admin_client::AdminClient;
use crate::jobs::job_report::{Job, JobState};
use crate::protocol::admin::BUNDLE;
use crate::protocol::admin::bundle::BundleRequest;

#[derive(Debug, Args)]
pub(super) struct Create {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// File of the bundle; with --part-size, the folder for its parts
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[command(flatten)]
    order: OrderFor,
    /// Omit the archives listed in this inventory, which `larder inventory` printed at the destination
    #[arg(long, value_name = "INVENTORY")]
    since: Option<PathBuf>,
    /// Write parts of this size, such as 2GiB. A second run keeps intact parts and rewrites only lost or damaged ones
    #[arg(long, value_name = "SIZE", value_parser = part_size)]
    part_size: Option<ByteSize>,
    /// Write a bundle of the rest where something is unavailable
    #[arg(long)]
    partial: bool,
    /// Write the bundle even without a signing key; `apply` then needs --unsigned
    #[arg(long)]
    unsigned: bool,
}

fn part_size(text: &str) -> Result<ByteSize, String> {
    let size = ByteSize::from_str(text).map_err(|_| format!("{text:?} is not a size; write 2GiB, 650MiB, …"))?;
    if size.as_u64() < MIN_PART_BYTES {
        return Err(format!("a part needs at least {}", ByteSize(MIN_PART_BYTES)));
    }
    Ok(size)
}

impl Create {
    /// Writes the bundle; returns true if it holds the whole order.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let order = self.order.to_order(&config.default_host())?;
        let since = self.since.as_deref().map(|path| {
            let inventory = Inventory::read(&files::read(path)?);
            inventory.map_err(|bad| anyhow!("{}: {bad}", path.display()))
        });
        let since = since.transpose()?;
        // A bad destination is reported before anything is fetched.
        let out = BundleDestination::at(&self.out, self.part_size.map(|size| size.as_u64()))?;
        let output = if self.common.json { WarmOutput::Quiet } else { WarmOutput::Lines };
        block_on(async {
            if !self.unsigned {
                require_signing_key(&config).await?;
            }
            warm_and(&config, &order, output, async |larder, job| self.write(larder, job, since, out).await).await
        })
    }

    async fn write(
        &self,
        larder: &AdminClient,
        job: &Job,
        since: Option<Inventory>,
        out: BundleDestination,
    ) -> anyhow::Result<bool> {
        if job.state != JobState::Done && !self.partial {
            bail!("no bundle was written: some packages are unavailable; --partial bundles the rest");
        }
        let (target, created) = BundleOutput::begin(out, Clock::system().now())?;
        let _temp_file_guard = target.temp_file_guard();
        let sizes = job.items.iter().filter_map(|item| item.size_bytes);
        // An estimate: the documents of the bundle add a little.
        let total = if since.is_some() { None } else { Some(sizes.fold(0, u64::saturating_add)) };
        let request = BundleRequest { job: job.id.clone(), since, partial: self.partial, created: Some(created) };
        let body = Bytes::from(serde_json::to_vec(&request)?);
        // After a failure of the output, the receiving side has the cause.
        let send = async |output| Ok(larder.download(BUNDLE, body, output).await?);
        let receive = move |reader| target.write_from(reader);
        let written = through_pipe("writing", total, send, receive, anyhow::Error::from).await?.end()?;
        self.print(&written)?;
        Ok(job.state == JobState::Done)
    }

    /// Reads the manifest back from the destination, and prints the contents.
    fn print(&self, written: &WrittenBundle) -> anyhow::Result<()> {
        let WrittenBundle { source, reused, rewritten } = written;
        let trust = BundleTrust { keys: Vec::new(), allow_unsigned: true };
        let opened = BundleReader::open(source.open()?, &trust).context("the written bundle cannot be read")?;
        let (manifest, bytes) = (&opened.manifest, source.bytes()?);
        let key = match &opened.signature_status {
            SignatureStatus::SignedBy(key) | SignatureStatus::UntrustedKey(key) => Some(key),
            SignatureStatus::Unsigned => None,
        };
        let BundleSummary { archives, left_out } = BundleSummary::of(manifest);
        let parts = if let BundleSource::Parts(_, list) = source { Some(list.parts.len()) } else { None };
        if self.common.json {
            let output = serde_json::json!({
                "out": self.out.display().to_string(), "bytes": bytes, "manifest": opened.digest,
                "entries": manifest.entries.len(), "archives": archives, "archives_left_out": left_out,
                "since": manifest.since, "signed_by": key, "created": manifest.created, "parts": parts,
                "bytes_there_already": reused, "written_again": rewritten,
            });
            print_json(&output);
            return Ok(());
        }
        let (out, size) = (escape_for_terminal(&self.out.display().to_string()), ByteSize(bytes));
        let parts = parts.map_or_else(String::new, |parts| format!(" in {}", plural(parts as u64, "part")));
        print_line(&format!("wrote {out}: {size}{parts}, {}", plural(archives, "archive")));
        if *reused > 0 {
            print_line(&format!("  {} of it were already there", ByteSize(*reused)));
        }
        for part in rewritten {
            print_line(&format!("  {part} was lost or damaged, and was rewritten"));
        }
        if manifest.since.is_some() {
            print_line(&match (archives, left_out) {
                (0, 0) => "  a delta: the inventory lists everything".to_owned(),
                (_, 0) => "  a delta: without the archives in the inventory".to_owned(),
                (_, count) => format!(
                    "  a delta: without the archives in the inventory; {} with new documents only",
                    plural(count, "archive")
                ),
            });
        }
        match key {
            Some(key) => print_line(&format!("  signed by key {key}")),
            None => print_error("the bundle is unsigned; it can be applied with --unsigned only"),
        }
        Ok(())
    }
}

/// Numbers of archives in a bundle, and of those left out for an inventory.
struct BundleSummary {
    archives: u64,
    left_out: u64,
}

impl BundleSummary {
    fn of(manifest: &Manifest) -> Self {
        let archives = || manifest.entries.iter().filter_map(BundleEntry::archive);
        let included = archives().filter(|archive| !archive.left_out).count() as u64;
        Self { archives: included, left_out: archives().count() as u64 - included }
    }
}
