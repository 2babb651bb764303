//! `larder status`: what is stored and what was done, from the running larder, or from the store alone.

use anyhow::{Context, anyhow};
use bytesize::ByteSize;
use comfy_table::{Table, presets};

use super::{Common, ask_running, runtime, say};
use crate::app::{self, Settings};
use crate::http::admin_client::{self, NoAnswer};
use crate::protocol::admin::Report;
use crate::store::Store;

/// How many missing things the table shows.
const SHOWN_MISSING: usize = 20;

pub(super) fn run(common: &Common) -> anyhow::Result<()> {
    let (config, _) = common.load()?;
    let report = runtime()?.block_on(async {
        let asked = ask_running(&config, async |at, token| admin_client::get(at, "/admin/v1/status", token).await);
        match asked.await {
            Ok(answer) => serde_json::from_slice::<Report>(&answer).context("the running larder is of another version"),
            Err(NoAnswer::NotRunning(_)) if !Store::exists(&config.store.path)? => {
                let path = config.store.path.display();
                Err(anyhow!("no larder runs here, and there is no store in {path} yet: `larder serve` makes it"))
            }
            Err(NoAnswer::NotRunning(_)) => {
                let (mirror, _, _) = app::mirror(&config, &Settings::default())?;
                let report = Report { mirror: mirror.status(), since_start: None };
                mirror.close().await?;
                Ok(report)
            }
            Err(error) => Err(error).context("the running larder gave no status"),
        }
    })?;
    if common.json {
        say(&serde_json::to_string(&report)?);
    } else {
        say(&table(&report));
    }
    Ok(())
}

fn table(report: &Report) -> String {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let mirror = &report.mirror;
    let running = if report.since_start.is_some() { "running" } else { "not running" };
    let mut rows = vec![
        [
            "larder".to_owned(),
            format!("{} ({running}{})", mirror.version, if mirror.offline { ", offline" } else { "" }),
        ],
        ["upstreams".to_owned(), mirror.upstreams.join(", ")],
        ["store".to_owned(), mirror.store.clone()],
        ["archives".to_owned(), format!("{} ({})", mirror.archives, size(mirror.archive_bytes))],
        ["documents".to_owned(), format!("{} ({})", mirror.documents, size(mirror.document_bytes))],
        ["limit".to_owned(), size(mirror.max_size_bytes)],
    ];
    if !mirror.missing.is_empty() {
        let more = mirror.missing.len().saturating_sub(SHOWN_MISSING);
        let mut shown: Vec<&str> = mirror.missing.iter().take(SHOWN_MISSING).map(String::as_str).collect();
        let rest = format!("… and {more} more (--json lists them)");
        shown.extend((more > 0).then_some(rest.as_str()));
        rows.push(["missing".to_owned(), shown.join("\n")]);
    }
    if let Some(since) = &report.since_start {
        let requests: Vec<String> =
            since.requests.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        let requests = if requests.is_empty() { "none yet".to_owned() } else { requests.join(", ") };
        rows.push(["requests".to_owned(), requests]);
        rows.push(["served".to_owned(), size(since.sent_bytes)]);
        rows.push(["from upstream".to_owned(), size(since.upstream_bytes)]);
        rows.push(["saved".to_owned(), size(since.sent_bytes.saturating_sub(since.upstream_bytes))]);
        rows.push(["filling".to_owned(), since.fills_under_way.to_string()]);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    table.to_string()
}
