//! `larder bundle create`, `apply` and `keygen`, and `larder inventory`: transfers stored packages across an air gap, and
//! verifies them again there. `create` warms an order and writes the stored packages into a bundle; `apply` imports a
//! bundle and prints the outcome of each entry. `keygen` creates the signing key, in a file that only this user can read;
//! a running larder uses the keys of its last reload, and the file may have changed since.

mod files;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use secrecy::ExposeSecret;
use serde_json::value::RawValue;

use self::files::{BundleDestination, BundleOutput, BundleSource, WrittenBundle};
use super::admin_service::{StoreNeed, config_to_ask, running_larder, with_larder};
use super::order::{OrderFor, platforms_text};
use super::terminal::{
    TerminalBar, TextPage, escape_for_terminal, format_seconds, format_timestamp, plural, shell_word, this_command,
    through_pipe, width_of_stdout,
};
use super::warm::{WarmOutput, warm_and};
use super::{CommonOptions, block_on, catch_file_size_signal, print_error, print_json, print_line, status};
use crate::address::{Hostname, PackageRef};
use crate::bundle::{
    ApplyEvent, ApplyOutcome, BundleEntry, BundleKeyIds, BundleReader, BundleTrust, EntryOutcome, Inventory, KeyId,
    MIN_PART_BYTES, Receipt, SignatureStatus, SigningKey,
};
use crate::clock::Clock;
use crate::config::Config;
use crate::http::admin_client::AdminClient;
use crate::jobs::job_report::{Job, JobState};
use crate::protocol::admin::bundle::{BundleRequest, TAR, apply_options, query_of};
use crate::protocol::admin::{APPLY, BUNDLE, INVENTORY, STATUS, StatusReport};

#[derive(Debug, Subcommand)]
pub(super) enum BundleCommand {
    /// Fetch the packages that a configuration needs, and write them as a bundle: one tar, or parts
    Create(Create),
    /// Apply a bundle; every digest and every publisher's signature is verified again
    Apply(Apply),
    /// Create the key that signs bundles, and print its public key
    Keygen(Keygen),
}

impl BundleCommand {
    /// Runs the subcommand; returns true if it succeeded completely.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        match self {
            Self::Create(create) => create.run(common),
            Self::Apply(apply) => apply.run(common),
            Self::Keygen(keygen) => keygen.run(common).map(|()| true),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Keygen {
    /// File for the private key. For an existing key, only the public key is printed
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Keygen {
    fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
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
        if common.json {
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

const RELOAD_ADVICE: &str = "reload it first (systemctl reload larder, or kill -HUP)";

/// The keys of the running larder, else those of the configuration.
async fn active_keys(config: &Config) -> anyhow::Result<BundleKeyIds> {
    match running_larder(config).await? {
        Some(larder) => Ok(larder.get::<StatusReport>(STATUS).await?.bundle_keys),
        None => Ok(config.bundle.ids()),
    }
}

/// Fails where a bundle would be unsigned, or signed by another key than the configured one.
async fn require_signing_key(config: &Config) -> anyhow::Result<()> {
    match (active_keys(config).await?.signing, config.bundle.ids().signing) {
        (Some(key), Some(named)) if key != named => {
            bail!(
                "the running larder signs with key {key}, but [bundle] signing_key is now key {named}; {RELOAD_ADVICE}"
            )
        }
        (Some(_), _) => Ok(()),
        (None, Some(named)) => {
            bail!("the running larder has not read [bundle] signing_key (key {named}) yet; {RELOAD_ADVICE}")
        }
        (None, None) => bail!(
            "there is no key to sign the bundle with; create one (larder bundle keygen bundle.key) and name it in [bundle] \
             signing_key; or write an unsigned bundle (--unsigned)"
        ),
    }
}

/// Fails where the configuration trusts a bundle's key, but the running larder has not loaded that.
async fn require_trusted_key_loaded(config: &Config, key: &KeyId) -> anyhow::Result<()> {
    if config.bundle.ids().trusted.contains(key) && !active_keys(config).await?.trusted.contains(key) {
        bail!("[bundle] trusted_keys names key {key}, but the running larder has not read that yet; {RELOAD_ADVICE}");
    }
    Ok(())
}

/// `larder inventory`: prints a list of everything stored, small enough to carry out, for `larder bundle create --since`.
/// Always JSON on one line.
pub(super) fn print_inventory(common: &CommonOptions) -> anyhow::Result<()> {
    let config = config_to_ask(common)?;
    let answer =
        with_larder(&config, StoreNeed::Existing, async |larder| Ok(larder.get_large_answer(INVENTORY).await?));
    let inventory: Box<RawValue> = block_on(answer)?;
    print_line(inventory.get());
    Ok(())
}

#[derive(Debug, Args)]
pub(super) struct Create {
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
    fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let (config, _) = common.load()?;
        let since = self.since.as_deref().map(|path| {
            let inventory = Inventory::read(&files::read(path)?);
            inventory.map_err(|bad| anyhow!("{}: {bad}", path.display()))
        });
        let since = since.transpose()?;
        let platforms = since.as_ref().map(Inventory::platforms).unwrap_or_default();
        let order = self.order.options.to_order(&self.order.names, &config.default_host(), &platforms)?;
        if !common.json {
            print_line(&format!("for {}", platforms_text(&order)));
        }
        // A bad destination is reported before anything is fetched.
        let out = BundleDestination::at(&self.out, self.part_size.map(|size| size.as_u64()))?;
        let output = if common.json { WarmOutput::Quiet } else { WarmOutput::Lines };
        block_on(async {
            if !self.unsigned {
                require_signing_key(&config).await?;
            }
            warm_and(&config, &order, output, async |larder, job| {
                self.write(larder, job, since, out, common.json).await
            })
            .await
        })
    }

    async fn write(
        &self,
        larder: &AdminClient,
        job: &Job,
        since: Option<Inventory>,
        out: BundleDestination,
        json: bool,
    ) -> anyhow::Result<bool> {
        if job.state != JobState::Done && !self.partial {
            bail!("no bundle was written: some packages are unavailable; --partial bundles the rest");
        }
        let (target, created) = BundleOutput::begin(out, Clock::system().now())?;
        let sizes = job.items.iter().filter_map(|item| item.size_bytes);
        // An estimate: the documents of the bundle add a little.
        let total = if since.is_some() { None } else { Some(sizes.fold(0, u64::saturating_add)) };
        let request = BundleRequest { job: job.id.clone(), since, partial: self.partial, created: Some(created) };
        // After a failure of the output, the receiving side has the cause.
        let send = async |output| Ok(larder.download(BUNDLE, &request, output).await?);
        let receive = move |reader| target.write_from(reader);
        let written = through_pipe("writing", total, send, receive, anyhow::Error::from).await?.end()?;
        self.print(&written, json)?;
        Ok(job.state == JobState::Done)
    }

    /// Reads the manifest back from the destination, and prints the contents.
    fn print(&self, written: &WrittenBundle, json: bool) -> anyhow::Result<()> {
        let WrittenBundle { source, reused, rewritten } = written;
        let opened =
            BundleReader::open(source.open()?, &BundleTrust::ANY).context("the written bundle cannot be read")?;
        let (manifest, bytes) = (&opened.manifest, source.bytes()?);
        let key = match &opened.signature_status {
            SignatureStatus::SignedBy(key) | SignatureStatus::UntrustedKey(key) => Some(key),
            SignatureStatus::Unsigned => None,
        };
        let (left_out, included): (Vec<_>, Vec<_>) =
            manifest.entries.iter().filter_map(BundleEntry::package_archive).partition(|(_, archive)| archive.left_out);
        let (archives, left_out) = (included.len() as u64, left_out.len() as u64);
        let parts = if let BundleSource::Parts(_, list) = source { Some(list.parts.len()) } else { None };
        if json {
            let output = serde_json::json!({
                "out": self.out.display().to_string(), "bytes": bytes, "manifest": opened.digest,
                "entries": manifest.entries.len(), "archives": archives, "archives_left_out": left_out,
                "since": manifest.since, "signed_by": key, "created": manifest.created.date_time(),
                "parts": parts, "bytes_there_already": reused,
                "written_again": rewritten,
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

#[derive(Debug, Args)]
pub(super) struct Apply {
    /// File of the bundle, or folder of its parts
    #[arg(value_name = "IN")]
    bundle: PathBuf,
    /// Accept a bundle that none of the configured `trusted_keys` signed; publishers' signatures are still checked
    #[arg(long)]
    unsigned: bool,
    /// Accept the bundle's copy of this version although it was published with different contents before; repeatable
    #[arg(long, value_name = "ADDRESS@VERSION")]
    accept: Vec<String>,
}

impl Apply {
    /// Applies the bundle; returns true if nothing was refused.
    fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let (config, _) = common.load()?;
        let query = query_of(self.unsigned, &self.accept);
        // A running larder parses the query in the same way, so mistakes are reported before anything is sent.
        let options_checked = apply_options(query.strip_prefix('?'), &config.bundle, &config.default_host());
        options_checked.map_err(|problems| anyhow!(problems.join("; ")))?;
        let source = BundleSource::at(&self.bundle)?;
        let bundle_name = self.bundle.display();
        // A stream can be read only once.
        let opened = match &source {
            BundleSource::File(path) if !path.is_file() => None,
            source => {
                let opened = BundleReader::open(source.open()?, &BundleTrust::ANY);
                Some(opened.with_context(|| escape_for_terminal(&bundle_name.to_string()))?)
            }
        };
        block_on(async {
            if let Some(SignatureStatus::UntrustedKey(key)) = opened.as_ref().map(|opened| &opened.signature_status)
                && !self.unsigned
            {
                require_trusted_key_loaded(&config, key).await?;
            }
            apply_source(&config, &source, &query, common).await
        })
    }
}

async fn apply_source(
    config: &Config,
    source: &BundleSource,
    query: &str,
    common: &CommonOptions,
) -> anyhow::Result<bool> {
    let _file_size_signal = catch_file_size_signal()?;
    let progress = TerminalBar::of_transfer("applying", Some(source.bytes()?));
    let commands = ApplyCommands { this: this_command(), options: common.as_given() };
    let (json, host, bar) = (common.json, config.default_host(), progress.0.clone());
    let mut report = ApplyReporter { json, host, commands, bar, receipt: None };
    let applied = with_larder(config, StoreNeed::Any, async |larder| {
        Ok(larder.upload(&format!("{APPLY}{query}"), TAR, source.open()?, |step| report.show(step)).await?)
    });
    let applied = applied.await;
    drop(progress);
    applied?;
    report.finish()
}

/// Prints apply events as lines or JSON.
struct ApplyReporter {
    json: bool,
    host: Hostname,
    commands: ApplyCommands,
    bar: ProgressBar,
    receipt: Option<Receipt>,
}

/// The commands that a receipt advises.
struct ApplyCommands {
    /// The one that runs.
    this: String,
    /// Its options that choose the larder.
    options: String,
}

impl ApplyReporter {
    fn show(&mut self, step: ApplyEvent) {
        if self.json {
            print_json(&step);
        }
        match step {
            ApplyEvent::Begun { entries, bytes } if !self.json => {
                print_line(&format!("applying {} ({})", plural(entries, "item"), ByteSize(bytes)));
            }
            ApplyEvent::Begun { .. } => {}
            ApplyEvent::Read { bytes } => self.bar.set_position(bytes),
            ApplyEvent::Entry(entry) if !self.json => print_line(&entry_line(&entry, &self.host, width_of_stdout())),
            ApplyEvent::Entry(_) => {}
            ApplyEvent::Done { receipt } => self.receipt = Some(receipt),
        }
    }

    fn finish(self) -> anyhow::Result<bool> {
        let receipt = self.receipt.ok_or_else(|| {
            anyhow!("larder stopped before the bundle was applied; applied items stay; apply it again for the rest")
        })?;
        if !self.json {
            print_line(&receipt_text(&receipt, &self.host, &self.commands, width_of_stdout()));
        }
        if let Some(ended) = &receipt.ended {
            print_error(ended);
        }
        Ok(receipt.ok)
    }
}

/// Renders the outcome of one entry.
fn entry_line(entry: &EntryOutcome, host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    let subject = escape_for_terminal(&entry.package.without(host).to_string());
    let (label, note) = match &entry.outcome {
        ApplyOutcome::Applied { note } => ("  applied  ", note.as_ref().map(|note| format!("note: {note}"))),
        ApplyOutcome::Held => ("  stored   ", None),
        ApplyOutcome::NotReached => ("  missed   ", None),
        ApplyOutcome::Refused { why, .. } => ("  REFUSED  ", Some(why.clone())),
    };
    page.outcome(label, &subject, &note);
    page.text()
}

/// Renders the receipt.
fn receipt_text(receipt: &Receipt, host: &Hostname, commands: &ApplyCommands, width: Option<usize>) -> String {
    let [applied, stored, refused, not_reached] = receipt.counts();
    let mut page = TextPage::of_width(width);
    let mut counts = vec![format!("{applied} applied"), format!("{stored} already stored")];
    counts.extend((refused > 0).then(|| format!("{refused} refused")));
    counts.extend((not_reached > 0).then(|| format!("{not_reached} not reached")));
    page.push_with_prefix("", &counts.join(", "));
    let signer_text = match (&receipt.signed_by, receipt.trusted) {
        (Some(key), true) => format!("signed by key {key}, which is trusted here"),
        (Some(key), false) => format!("claims to be signed by key {key}, which is not trusted here"),
        (None, _) => "unsigned".to_owned(),
    };
    page.push_with_prefix(
        "bundle   ",
        &format!("{signer_text}; made by larder {}", escape_for_terminal(&receipt.larder)),
    );
    page.push_with_prefix(
        "made     ",
        &format!(
            "{}, {} before it was applied",
            format_timestamp(receipt.created),
            format_seconds(receipt.age_seconds())
        ),
    );
    for waiting in &receipt.waiting {
        let version = format!("{}@{}", waiting.provider, waiting.version);
        let name = PackageRef::requested(&version).without(host);
        page.push_with_prefix("waits    ", &format!("{name}: {waiting}; until then no client gets it"));
    }
    for (index, approval) in receipt.approvals.iter().enumerate() {
        let address = PackageRef::requested(&approval.address).without(host);
        let text = format!("{address}@{}", status::approval_text(approval));
        page.push_with_prefix(if index == 0 { "approved " } else { "         " }, &text);
    }
    if let Some(receipt_path) = &receipt.kept {
        page.push_with_prefix("receipt  ", "in the store:");
        page.command(receipt_path);
        if !receipt.waiting.is_empty() {
            let name = receipt_path.rsplit('/').next().unwrap_or(receipt_path);
            page.push_with_prefix(
                "to do    ",
                "carry the receipt out, make a bundle of what it waits for, and carry that here:",
            );
            page.command(&format!("larder bundle create rest.tar --for {}", shell_word(name)));
            page.command(&format!("larder bundle apply rest.tar{}", commands.options));
        }
    }
    let accept: BTreeSet<&String> = receipt
        .entries
        .iter()
        .filter_map(|entry| match &entry.outcome {
            ApplyOutcome::Refused { accept, .. } => accept.as_ref(),
            _ => None,
        })
        .collect();
    if !accept.is_empty() {
        let options: String = accept.iter().map(|version| format!(" --accept {}", shell_word(version))).collect();
        page.push_with_prefix("to do    ", "if their publishers released what was refused:");
        page.command(&format!("{}{options}", commands.this));
    }
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PackageRef;
    use crate::clock::Timestamp;
    use crate::digest::Digest;

    #[test]
    fn apply_lines_fit_the_terminal_and_escape_foreign_text() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let package = PackageRef::requested("registry.example/hashicorp/a-provider-with-quite-a-long-name@1.2.0");
        let accept = "registry.example/hashicorp/x@1.2.0";
        let reason = "its archive was altered \u{1b}[2J".to_owned();
        let entry =
            EntryOutcome { package, outcome: ApplyOutcome::Refused { why: reason, accept: Some(accept.to_owned()) } };
        let lines = entry_line(&entry, &host, Some(80));
        assert!(lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
        assert!(lines.starts_with("  REFUSED  registry.example/hashicorp/a-provider-with-quite-a-long-name 1.2.0\n"));
        assert!(lines.ends_with("\n           its archive was altered \\u{1b}[2J"), "{lines}");
        let waiting = serde_json::json!({
            "address": "registry.terraform.io/hashicorp/null", "version": "3.2.2", "stored": ["linux_amd64"],
            "waits_for": ["darwin_arm64", "windows_amd64"],
        });
        let waiting = serde_json::from_value(waiting).unwrap();
        let receipt_path = format!("/srv/{}/receipts/one.json", "x".repeat(90));
        let receipt = Receipt {
            manifest: Digest::of(b"{}"),
            larder: "0.1.0".to_owned(),
            created: Timestamp(1),
            signed_by: Some("4c43fd2652085edb".to_owned()),
            trusted: true,
            applied: Timestamp(2),
            ok: false,
            ended: None,
            entries: vec![entry],
            sealed_platforms: Vec::new(),
            waiting: vec![waiting],
            approvals: Vec::new(),
            kept: Some(receipt_path.clone()),
        };
        let this = "larder bundle apply 'my bundle.tar' --unsigned".to_owned();
        let commands = ApplyCommands { this, options: " --config in.toml".to_owned() };
        let text = receipt_text(&receipt, &host, &commands, Some(80));
        assert!(text.starts_with("0 applied, 0 already stored, 1 refused\n"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let waits = "waits hashicorp/null 3.2.2: stored for linux_amd64, waits for darwin_arm64 and windows_amd64;";
        assert!(words.contains(waits), "{text}");
        // A path must stay on one line: people paste it.
        for line in [
            receipt_path.as_str(),
            "larder bundle create rest.tar --for one.json",
            "larder bundle apply rest.tar --config in.toml",
            "larder bundle apply 'my bundle.tar' --unsigned --accept registry.example/hashicorp/x@1.2.0",
        ] {
            assert!(text.contains(&format!("\n    {line}\n")) || text.ends_with(line), "{line}: {text}");
        }
    }
}
