//! `larder bundle apply`: imports a bundle into the store, and prints the outcome of each entry.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use bytesize::ByteSize;
use clap::Args;

use super::super::larder::{StoreNeed, with_larder};
use super::super::progress::{ByteCounter, ProgressTask};
use super::super::text::{TextPage, escape_for_terminal, format_seconds, format_timestamp, plural, width_of_stdout};
use super::super::{CommonOptions, block_on, catch_file_size_signal, print_error, print_json, print_line};
use super::files::BundleSource;
use super::require_loaded;
use crate::address::Hostname;
use crate::bundle::{ApplyEvent, ApplyOutcome, BundleReader, BundleTrust, EntryOutcome, Receipt, SignatureStatus};
use crate::config::Config;
use crate::protocol::admin::APPLY;
use crate::protocol::admin::bundle::{TAR, apply_options, query_of};

#[derive(Debug, Args)]
pub(super) struct Apply {
    #[command(flatten)]
    pub(super) common: CommonOptions,
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
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let query = query_of(self.unsigned, &self.accept);
        // A running larder parses the query in the same way, so mistakes are reported before anything is sent.
        let options_checked = apply_options(query.strip_prefix('?'), &config.bundle, &config.default_host());
        options_checked.map_err(|problems| anyhow!(problems.join("; ")))?;
        let source = BundleSource::at(&self.bundle)?;
        let bundle_name = self.bundle.display();
        let any_signature = BundleTrust { keys: Vec::new(), allow_unsigned: true };
        // A stream can be read only once.
        let opened = match &source {
            BundleSource::File(path) if !path.is_file() => None,
            source => {
                let opened = BundleReader::open(source.open()?, &any_signature);
                Some(opened.with_context(|| escape_for_terminal(&bundle_name.to_string()))?)
            }
        };
        block_on(async {
            if let Some(SignatureStatus::UntrustedKey(key)) = opened.as_ref().map(|opened| &opened.signature_status)
                && !self.unsigned
            {
                require_loaded(&config, key).await?;
            }
            self.apply(&config, &source, &query).await
        })
    }

    async fn apply(&self, config: &Config, source: &BundleSource, query: &str) -> anyhow::Result<bool> {
        let _file_size_signal = catch_file_size_signal()?;
        let bytes = ByteCounter::default();
        let progress = ProgressTask::begin("applying", &bytes, Some(source.bytes()?));
        let mut report = ApplyReporter { json: self.common.json, host: config.default_host(), bytes, receipt: None };
        let applied = with_larder(config, StoreNeed::Any, async |larder| {
            Ok(larder.upload(&format!("{APPLY}{query}"), TAR, source.open()?, |step| report.show(step)).await?)
        });
        let applied = applied.await;
        progress.end().await;
        applied?;
        report.finish()
    }
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
            print_json(&step);
        }
        match step {
            ApplyEvent::Begun { entries, bytes } if !self.json => {
                print_line(&format!("applying {} ({})", plural(entries, "item"), ByteSize(bytes)));
            }
            ApplyEvent::Begun { .. } => {}
            ApplyEvent::Read { bytes } => self.bytes.set(bytes),
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
            print_line(&summary(&receipt, width_of_stdout()));
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
    match &entry.outcome {
        ApplyOutcome::Applied { note } => {
            page.push_with_prefix("  applied  ", &subject);
            note.iter().for_each(|note| page.push_with_prefix("           note: ", &escape_for_terminal(note)));
        }
        ApplyOutcome::Held => page.push_with_prefix("  stored   ", &subject),
        ApplyOutcome::NotReached => page.push_with_prefix("  missed   ", &subject),
        ApplyOutcome::Refused { why: reason } => {
            page.push_with_prefix("  REFUSED  ", &subject);
            page.push_with_prefix("           ", &escape_for_terminal(reason));
        }
    }
    page.text()
}

/// Renders the receipt.
fn summary(receipt: &Receipt, width: Option<usize>) -> String {
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
        &format!("{}, {} before the import", format_timestamp(receipt.created), format_seconds(receipt.age_seconds())),
    );
    if let Some(receipt_path) = &receipt.kept {
        page.push_with_prefix("receipt  ", "in the store:");
        page.command(receipt_path);
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
        let lines = entry_line(&entry, &host, Some(80));
        assert!(lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
        assert!(lines.starts_with("  REFUSED  registry.example/hashicorp/a-provider-with-quite-a-long-name 1.2.0\n"));
        assert!(lines.ends_with("\n           its archive was altered \\u{1b}[2J"), "{lines}");
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
            kept: Some(receipt_path.clone()),
        };
        let text = summary(&receipt, Some(80));
        assert!(text.starts_with("0 applied, 0 already stored, 1 refused\n"), "{text}");
        // A path must stay on one line: people paste it.
        assert!(text.ends_with(&format!("\n    {receipt_path}")), "{text}");
    }
}
