//! `larder run`: runs a client through larder, without touching the client's configuration. Uses the larder that has the
//! store, else one within this process, and leaves no file and no process behind.

mod client;
mod client_files;
mod handover;
mod larder;
mod linked;
mod own_larder;
mod temp_folder;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use clap::Args;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use self::client_files::ClientFiles;
use self::larder::LarderOfRun;
use self::linked::{LinkSummary, Linking, Project};
use self::temp_folder::TempFolder;
use super::terminal::plural;
use super::{
    CaughtSignals, CommonOptions, Interrupted, block_on, catch_file_size_signal, print_error, print_error_json,
};
use crate::config::{self, Config};
use crate::mirror::{FileAmount, PackageAmounts};
use crate::protocol::linked_providers::LinkAnswer;
use crate::protocol::run::{RunReport, RunSources, RunSummary};

pub(super) use self::client::NotStarted;

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Contact no upstream; serve what is stored
    #[arg(long)]
    offline: bool,
    /// Let `init` unpack copies of providers instead of linking to larder's
    #[arg(long)]
    copy: bool,
    /// The client and its arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Runs the client; returns its exit code.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<u8> {
        let (config, warnings) = common.load()?;
        for warning in warnings {
            print_error(&warning.to_string());
        }
        block_on(self.run_through_larder(&config, common))
    }

    async fn run_through_larder(&self, config: &Config, common: &CommonOptions) -> anyhow::Result<u8> {
        let began = Instant::now();
        let mut signals = client::catch_signals()?;
        let _file_size_signal = catch_file_size_signal()?;
        let folder = Arc::new(TempFolder::new()?);
        let starting = LarderOfRun::find_or_start(config, self.offline, &folder);
        let larder = tokio::select! {
            started = starting => started?,
            _ = signals.next() => return Err(stopped_before_client()),
        };
        let ran = self.run_client(config, &larder, &folder, &mut signals).await;
        let (report, own) = tokio::select! {
            left = larder.leave() => left,
            _ = signals.next() => (None, None),
        };
        let took = began.elapsed();
        if let Some(own) = own {
            let closing = own.close();
            tokio::select! {
                closed = closing => if let Err(error) = closed {
                    print_error(&format!("{error:#}"));
                },
                // Only other runs are served by now.
                _ = signals.next() => {}
            }
        }
        let ClientRun { exit, linking } = ran?;
        let linked = match linking {
            Some(linking) => spawn_blocking(move || linking.summary()).await.unwrap_or_default(),
            None => LinkSummary::default(),
        };
        print_summary(report.as_ref(), &linked, took, common);
        Ok(exit)
    }

    /// Runs the client with a copy of the user's configuration, which leads to larder.
    async fn run_client(
        &self,
        config: &Config,
        larder: &LarderOfRun,
        folder: &Arc<TempFolder>,
        signals: &mut CaughtSignals,
    ) -> anyhow::Result<ClientRun> {
        let (notes, linking) = tokio::select! {
            written = self.write_client_config(config, larder, folder) => written?,
            _ = signals.next() => return Err(stopped_before_client()),
        };
        for note in notes.iter().chain(&larder.note) {
            print_error(note);
        }
        let exit = client::run(&self.command, &folder.file(CLIENT_CONFIG_FILE), signals).await;
        // It holds tokens, and this process may serve other runs for a while.
        folder.remove_file(CLIENT_CONFIG_FILE);
        Ok(ClientRun { exit: exit?, linking })
    }

    /// Writes the client's configuration; returns what the user should know about it, and what the client may link.
    async fn write_client_config(
        &self,
        config: &Config,
        larder: &LarderOfRun,
        folder: &Arc<TempFolder>,
    ) -> anyhow::Result<(Vec<String>, Option<Linking>)> {
        let host_blocks = larder.host_blocks().await?;
        let (command, copy) = (self.command.clone(), self.copy);
        // The home folder may be a slow network disk, and so may that of the project.
        let reading = spawn_blocking(move || {
            let environment = config::environment();
            let files = ClientFiles::read(&command.first().cloned().unwrap_or_default(), &environment);
            let may_link = files.may_link() && !copy;
            let project = match std::env::current_dir() {
                Ok(working) => Project::of_init(&command, &environment, &working, may_link),
                Err(_) => None,
            };
            let request = project.as_ref().and_then(Project::request);
            (files, project, request)
        });
        let (files, project, request) = reading.await.context(NOT_READ)?;
        let answer = match &request {
            Some(request) => told_if_slow(larder.linked_providers(request)).await,
            None => LinkAnswer::default(),
        };
        let link_note = answer.note.clone();
        let linking = match project {
            Some(project) => Some(spawn_blocking(move || project.apply(answer)).await.context(NOT_READ)?),
            None => None,
        };
        let installation = linking.as_ref().map(Linking::installation).unwrap_or_default();
        let (mut text, mut notes) = files.with_hosts(&host_blocks, config)?;
        text.push_str(&installation);
        notes.extend(link_note);
        let folder = Arc::clone(folder);
        spawn_blocking(move || folder.write(CLIENT_CONFIG_FILE, &text)).await.context(NOT_READ)??;
        Ok((notes, linking))
    }
}

/// The end of a client.
struct ClientRun {
    exit: u8,
    linking: Option<Linking>,
}

/// The error of a task that reads or writes the client's files.
const NOT_READ: &str = "the client's configuration was not read";
/// The wait for unpacked providers after which a person is told about it.
const QUIET_WAIT: Duration = Duration::from_secs(2);

/// Tells the person what is going on, if it takes long.
async fn told_if_slow<T>(work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    match timeout(QUIET_WAIT, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            print_error("fetching and unpacking the providers of the lock file, before the client begins");
            work.await
        }
    }
}

fn stopped_before_client() -> anyhow::Error {
    Interrupted::with_text("stopped before the client began")
}

/// The name of the client's configuration in the folder of the run.
const CLIENT_CONFIG_FILE: &str = "cli.tfrc";

/// Prints one line: what came from where, and how long it took.
fn print_summary(report: Option<&RunReport>, linked: &LinkSummary, took: Duration, common: &CommonOptions) {
    let seconds = took.as_secs_f64();
    if common.json {
        return print_error_json(
            &json!({ "run": report.map(RunReport::summary), "linked": linked, "seconds": (seconds * 1000.0).round() / 1000.0 }),
        );
    }
    let failures = report.map(|report| report.summary().failures).unwrap_or_default();
    failures.iter().for_each(|reason| print_error(&format!("failed: {reason}")));
    let counts = report.map_or_else(|| "done, not counted".to_owned(), |report| summary(&report.summary(), linked));
    print_error(&format!("{counts}; {seconds:.1} s"));
}

fn summary(summary: &RunSummary, linked: &LinkSummary) -> String {
    let RunSummary { packages, documents, stale, failed, .. } = summary;
    let LinkSummary { providers, upstream } = linked;
    let linked = (*providers > 0).then(|| format!("{} linked", plural(*providers, "provider")));
    let mut text = match (total(packages), total(documents), linked) {
        (0, _, Some(linked)) => linked,
        (_, _, Some(linked)) => format!("{linked}, {}", package_sources(packages)),
        (0, 0, None) if *failed == 0 => "the client asked for nothing".to_owned(),
        (0, _, None) => "no packages".to_owned(),
        _ => package_sources(packages),
    };
    for (registry, count) in upstream {
        let _ = write!(text, ", {} fetched or confirmed at {registry}", plural(*count, "locked provider"));
    }
    let has_packages = !packages.upstream.is_empty() || !upstream.is_empty();
    if !has_packages && total(documents) + total(packages) > 0 && *failed == 0 {
        text.push_str(&document_sources(documents));
    }
    if !stale.is_empty() {
        let registries: Vec<&str> = stale.iter().map(String::as_str).collect();
        let _ = write!(text, "; {} did not answer, stored documents were used", registries.join(" and "));
    }
    if *failed > 0 {
        let _ = write!(text, "; {} failed", plural(*failed, "request"));
    }
    text
}

fn total(sources: &RunSources) -> u64 {
    let PackageAmounts { store, upstream } = sources.amounts();
    store.plus(upstream).count
}

/// `3 packages from the store (392.9 MiB), 1 from registry.terraform.io (85.8 MiB)`.
fn package_sources(packages: &RunSources) -> String {
    let store = Some(("the store", &packages.store)).filter(|(_, amount)| amount.count > 0);
    let upstream = packages.upstream.iter().map(|(registry, amount)| (registry.as_str(), amount));
    let parts = store.into_iter().chain(upstream).enumerate().map(|(index, (source, FileAmount { count, bytes }))| {
        let subject = if index == 0 { plural(*count, "package") } else { count.to_string() };
        format!("{subject} from {source} ({})", ByteSize(*bytes))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// The rest of a line that names no package from upstream.
fn document_sources(documents: &RunSources) -> String {
    if documents.upstream.is_empty() {
        return ", nothing from upstream".to_owned();
    }
    let parts = documents
        .upstream
        .iter()
        .map(|(registry, amount)| format!(", {} from {registry}", plural(amount.count, "document")));
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(store: (u64, u64), upstream: &[(&str, u64, u64)]) -> RunSources {
        let amount = |count, bytes| FileAmount { count, bytes };
        RunSources {
            store: amount(store.0, store.1),
            upstream: upstream
                .iter()
                .map(|(host, count, bytes)| ((*host).to_owned(), amount(*count, *bytes)))
                .collect(),
        }
    }

    #[test]
    fn the_summary_names_the_source_of_every_package() {
        let registry = "registry.terraform.io";
        for (packages, documents, expected) in [
            (
                sources((3, 412_000_000), &[(registry, 1, 90_000_000)]),
                sources((4, 100), &[(registry, 8, 100)]),
                "3 packages from the store (392.9 MiB), 1 from registry.terraform.io (85.8 MiB)",
            ),
            (
                sources((0, 0), &[("a.example", 1, 1_000), (registry, 2, 5_000_000)]),
                sources((0, 0), &[(registry, 8, 100)]),
                "1 package from a.example (1000 B), 2 from registry.terraform.io (4.8 MiB)",
            ),
            (
                sources((1, 90_000_000), &[]),
                sources((4, 100), &[]),
                "1 package from the store (85.8 MiB), nothing from upstream",
            ),
            (
                sources((1, 90_000_000), &[]),
                sources((4, 100), &[(registry, 1, 100)]),
                "1 package from the store (85.8 MiB), 1 document from registry.terraform.io",
            ),
            (sources((0, 0), &[]), sources((4, 100), &[]), "no packages, nothing from upstream"),
            (sources((0, 0), &[]), sources((0, 0), &[]), "the client asked for nothing"),
        ] {
            let report = RunSummary { packages, documents, ..RunSummary::default() };
            assert_eq!(summary(&report, &LinkSummary::default()), expected);
        }
        let report = RunSummary {
            documents: sources((1, 10), &[]),
            stale: ["a.example".to_owned()].into(),
            failed: 2,
            ..RunSummary::default()
        };
        assert_eq!(
            summary(&report, &LinkSummary::default()),
            "no packages; a.example did not answer, stored documents were used; 2 requests failed"
        );
        let failed = RunSummary { failed: 1, ..RunSummary::default() };
        assert_eq!(summary(&failed, &LinkSummary::default()), "no packages; 1 request failed");
    }
}
