//! `larder bundle apply`: sends a bundle to the running larder, or imports it into the store where none runs. Prints
//! the outcome of each entry.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytesize::ByteSize;
use clap::Args;

use super::super::progress::{ByteCounter, ProgressTask};
use super::super::text::{TextPage, escape_for_terminal, format_seconds, format_timestamp, plural, width_of_stdout};
use super::super::{CommonOptions, ask_running, catch_file_size_signal, print_error, print_line, runtime};
use super::files::BundleSource;
use super::keys;
use crate::address::Hostname;
use crate::app::{self, StartSettings};
use crate::bundle::{ApplyEvent, ApplyOutcome, BundleReader, BundleTrust, EntryOutcome, Receipt, SignatureStatus};
use crate::config::Config;
use crate::http::admin_client::{self, AdminClientError};
use crate::mirror::ApplyOptions;
use crate::protocol::admin::bundle::{APPLY, TAR, apply_options, query_of};

#[derive(Debug, Args)]
pub(super) struct Apply {
    #[command(flatten)]
    common: CommonOptions,
    /// File of the bundle, or folder of its parts
    #[arg(value_name = "IN")]
    from: PathBuf,
    /// Accept a bundle that none of the configured `trusted_keys` signed; publishers' signatures are still checked
    #[arg(long)]
    unsigned: bool,
    /// Accept the bundle's copy of this version although it was published with different contents before; repeatable
    #[arg(long, value_name = "ADDRESS@VERSION")]
    accept: Vec<String>,
}

impl Apply {
    pub(super) fn common(&self) -> &CommonOptions {
        &self.common
    }

    /// Applies the bundle; returns true if nothing was refused.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let query = query_of(self.unsigned, &self.accept);
        // A running larder parses the query in the same way, so mistakes are reported before anything is sent.
        let taking = apply_options(query.strip_prefix('?'), &config.bundle, &config.default_host());
        let taking = taking.map_err(|problems| anyhow!(problems.join("; ")))?;
        let source = BundleSource::at(&self.from)?;
        let from = self.from.display();
        let anybody = BundleTrust { keys: Vec::new(), allow_unsigned: true };
        // A stream can be read only once.
        let opened = match &source {
            BundleSource::File(path) if !path.is_file() => None,
            source => {
                let opened = BundleReader::open(source.open()?, &anybody);
                Some(opened.with_context(|| escape_for_terminal(&from.to_string()))?)
            }
        };
        let runtime = runtime()?;
        let applied = runtime.block_on(async {
            if let Some(SignatureStatus::UntrustedKey(key)) = opened.as_ref().map(|opened| &opened.signature_status)
                && !self.unsigned
            {
                keys::require_loaded(&config, key).await?;
            }
            self.apply(&config, &source, &query, taking).await
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        applied
    }

    async fn apply(
        &self,
        config: &Config,
        source: &BundleSource,
        query: &str,
        taking: ApplyOptions,
    ) -> anyhow::Result<bool> {
        let _too_large = catch_file_size_signal()?;
        let bytes = ByteCounter::default();
        let drawing = ProgressTask::begin("applying", &bytes, Some(source.bytes()?));
        let mut report = ApplyReporter { json: self.common.json, host: config.default_host(), bytes, receipt: None };
        let applied = applied(config, source, query, taking, &mut report).await;
        drawing.end().await;
        applied?;
        report.ended()
    }
}

async fn applied(
    config: &Config,
    source: &BundleSource,
    query: &str,
    taking: ApplyOptions,
    report: &mut ApplyReporter,
) -> anyhow::Result<()> {
    let (path, from, mut unread) = (format!("{APPLY}{query}"), source.open()?, None);
    let read_line = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(step) => report.show(step),
        Err(error) => unread = Some(error),
    };
    let asking = ask_running(config, async |address, token| {
        admin_client::upload(address, &path, token, TAR, from, read_line).await
    });
    match asking.await {
        Ok(()) => {}
        Err(AdminClientError::NotRunning(_)) => return applied_here(config, source, taking, report).await,
        Err(error) => return Err(error.into()),
    }
    unread.map_or(Ok(()), |error| Err(error).context("the running larder is of another version"))
}

async fn applied_here(
    config: &Config,
    source: &BundleSource,
    taking: ApplyOptions,
    report: &mut ApplyReporter,
) -> anyhow::Result<()> {
    let settings = StartSettings::default();
    // Applying a bundle may create the store.
    let (mirror, _, _) = app::mirror(config, &settings)?;
    let (mut steps, applied) = mirror.spawn_apply(source.open()?, taking, settings.clock);
    while let Some(step) = steps.recv().await {
        report.show(step);
    }
    let applied = applied.await.context("applying the bundle ended unexpectedly")?;
    mirror.close().await.context("the store would not close")?;
    applied?;
    Ok(())
}

/// Prints apply events as lines or JSON.
struct ApplyReporter {
    json: bool,
    host: Hostname,
    bytes: ByteCounter,
    receipt: Option<Receipt>,
}

impl ApplyReporter {
    fn show(&mut self, step: ApplyEvent) {
        if self.json {
            match serde_json::to_string(&step) {
                Ok(line) => print_line(&line),
                Err(error) => print_error(&error.to_string()),
            }
        }
        match step {
            ApplyEvent::Begun { entries, bytes } if !self.json => {
                print_line(&format!("applying {} ({})", plural(entries, "item"), ByteSize(bytes)));
            }
            ApplyEvent::Begun { .. } => {}
            ApplyEvent::Read { bytes } => self.bytes.set(bytes),
            ApplyEvent::Entry(entry) if !self.json => print_line(&line(&entry, &self.host, width_of_stdout())),
            ApplyEvent::Entry(_) => {}
            ApplyEvent::Done { receipt } => self.receipt = Some(receipt),
        }
    }

    fn ended(self) -> anyhow::Result<bool> {
        let receipt = self.receipt.ok_or_else(|| {
            anyhow!("larder stopped before the bundle was applied; applied items stay; apply it again for the rest")
        })?;
        if !self.json {
            print_line(&summary(&receipt, width_of_stdout()));
        }
        if let Some(ended) = &receipt.ended {
            print_error(ended);
        }
        Ok(receipt.ok)
    }
}

/// Renders the outcome of one entry.
fn line(entry: &EntryOutcome, host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    let subject = escape_for_terminal(&entry.package.without(host).to_string());
    match &entry.outcome {
        ApplyOutcome::Applied { note } => {
            page.push_hanging("  applied  ", &subject);
            note.iter().for_each(|note| page.push_hanging("           note: ", &escape_for_terminal(note)));
        }
        ApplyOutcome::Held => page.push_hanging("  stored   ", &subject),
        ApplyOutcome::NotReached => page.push_hanging("  missed   ", &subject),
        ApplyOutcome::Refused { why: reason } => {
            page.push_hanging("  REFUSED  ", &subject);
            page.push_hanging("           ", &escape_for_terminal(reason));
        }
    }
    page.text()
}

/// Renders the receipt.
fn summary(receipt: &Receipt, width: Option<usize>) -> String {
    let [applied, already, refused, not_reached] = receipt.counts();
    let mut page = TextPage::of_width(width);
    let mut parts = vec![format!("{applied} applied"), format!("{already} already stored")];
    parts.extend((refused > 0).then(|| format!("{refused} refused")));
    parts.extend((not_reached > 0).then(|| format!("{not_reached} not reached")));
    page.push_hanging("", &parts.join(", "));
    let signer_text = match (&receipt.signed_by, receipt.trusted) {
        (Some(key), true) => format!("signed by key {key}, which is trusted here"),
        (Some(key), false) => format!("claims to be signed by key {key}, which is not trusted here"),
        (None, _) => "unsigned".to_owned(),
    };
    page.push_hanging("bundle   ", &format!("{signer_text}; made by larder {}", escape_for_terminal(&receipt.larder)));
    page.push_hanging(
        "made     ",
        &format!(
            "{}, {} before it was applied",
            format_timestamp(receipt.created),
            format_seconds(receipt.age_seconds())
        ),
    );
    if let Some(kept_path) = &receipt.kept {
        page.push_hanging("receipt  ", "in the store:");
        page.command(kept_path);
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
        let reason = "its archive was altered \u{1b}[2J".to_owned();
        let entry = EntryOutcome { package, outcome: ApplyOutcome::Refused { why: reason } };
        let lines = line(&entry, &host, Some(80));
        assert!(lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
        assert!(lines.starts_with("  REFUSED  registry.example/hashicorp/a-provider-with-quite-a-long-name 1.2.0\n"));
        assert!(lines.ends_with("\n           its archive was altered \\u{1b}[2J"), "{lines}");
        let kept_path = format!("/srv/{}/receipts/one.json", "x".repeat(90));
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
            kept: Some(kept_path.clone()),
        };
        let parts = summary(&receipt, Some(80));
        assert!(parts.starts_with("0 applied, 0 already stored, 1 refused\n"), "{parts}");
        // A path must stay on one line: people paste it.
        assert!(parts.ends_with(&format!("\n    {kept_path}")), "{parts}");
    }
}
