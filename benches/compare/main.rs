//! Larder compared with nginx with `proxy_cache`, which people would use instead, and with a minimal server on hyper:
//! all in front of one registry, on loopback, in turns. Prints medians and ratios. Speed is never an assertion: a
//! missed target is no failure.
//!
//! `cargo bench --bench compare -- --rows archive --rounds 3`
#![expect(clippy::disallowed_methods, reason = "the limits on calls are for the modules of larder itself")]

mod access;
mod cached;
mod catalog;
mod clients;
mod cold;
mod compared_server;
mod fleet;
mod fleet_names;
mod growth;
mod hyper_server;
mod idle;
mod init;
mod instructions;
mod interrupt;
mod larder;
mod links;
mod machine;
mod measure;
mod memory;
mod modules;
mod nginx;
mod outage;
mod process;
mod report;
mod scale;
mod servers;
mod tls;
mod turns;
mod upstream;
mod varnish;
mod warm;

#[path = "../../tests/it/support/mod.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the tests use the rest of it, and may fail")]
mod support;

use std::cell::Cell;
use std::path::PathBuf;

use clap::Parser;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::catalog::Release;
use crate::report::ResultTable;
use crate::tls::Certificate;
use crate::upstream::Upstream;

#[derive(Debug, Parser)]
struct Options {
    /// Only rows with this in their name; may be given more than once
    #[arg(long, value_name = "TEXT")]
    rows: Vec<String>,
    /// Another larder binary: both take turns for cached content, and every other table is measured with each
    #[arg(long, value_name = "BINARY")]
    beside: Option<PathBuf>,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each measurement of cached content
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Seconds of the outage, and of the same without one
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    outage_seconds: u64,
    /// One round of small sizes, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Count the instructions of cached documents instead, and compare them with those of this file; it is written if it is
    /// not there
    #[arg(long, value_name = "FILE")]
    instructions: Option<PathBuf>,
    /// Parameters of the hyper server; set by this program itself
    #[arg(long = hyper_server::ARGUMENT, hide = true)]
    hyper_server: Option<String>,
    /// Set by `cargo bench`; without it nothing runs
    #[arg(long, hide = true)]
    bench: bool,
    /// Set by `cargo test`
    #[arg(long, hide = true)]
    test: bool,
}

impl Options {
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.into() }
    }
}

/// The state shared by all rows.
pub(crate) struct Bench {
    options: Options,
    runtime: Runtime,
    /// The larder binary under measurement.
    binary: PathBuf,
    upstream: Upstream,
    certificate: Certificate,
    client: reqwest::Client,
    nginx: Option<PathBuf>,
    varnish: Option<PathBuf>,
    wrk: Option<PathBuf>,
    terraform: Option<PathBuf>,
    /// The number of parts that failed.
    failed: Cell<usize>,
    _folder: TempDir,
}

impl Bench {
    fn new(options: Options) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let upstream = runtime.block_on(async {
            interrupt::listen()?;
            Upstream::start().await
        })?;
        let folder = tempfile::Builder::new().prefix("compare-").tempdir()?;
        Ok(Self {
            options,
            runtime,
            binary: PathBuf::from(env!("CARGO_BIN_EXE_larder")),
            upstream,
            certificate: Certificate::new(folder.path())?,
            client: compared_server::client()?,
            nginx: process::find("nginx"),
            varnish: process::find("varnishd"),
            wrk: process::find("wrk"),
            terraform: process::find("terraform"),
            failed: Cell::new(0),
            _folder: folder,
        })
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    fn publish(&self, release: &Release<'_>) -> anyhow::Result<()> {
        release.served_files()?.into_iter().for_each(|(path, file)| self.upstream.publish(path, file));
        Ok(())
    }

    /// True if the command line selects this row.
    fn wants(&self, row: &str) -> bool {
        let (selected, row) = (&self.options.rows, row.to_lowercase());
        selected.is_empty() || selected.iter().any(|part| row.contains(&part.to_lowercase()))
    }

    /// Returns the measurement, or `None` after reporting a failure, so that the rest continues. An error once it is
    /// interrupted.
    fn or_report<T>(&self, subject: &str, measured: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        interrupt::check()?;
        if let Err(error) = &measured {
            self.progress(&format!("{subject} could not be measured: {error:#}"));
            self.failed.set(self.failed.get() + 1);
        }
        Ok(measured.ok())
    }

    #[expect(clippy::print_stderr, reason = "progress for the person who runs it")]
    fn progress(&self, text: &str) {
        eprintln!("  {text}");
    }
}

/// Measures the selected rows of a part.
type Measure = fn(&Bench) -> anyhow::Result<Vec<ResultTable>>;

/// All parts with their names.
const PARTS: [(&str, Measure); 13] = [
    ("cached content", cached::tables),
    ("tokens and rules", |bench| Ok(access::table(bench)?.into_iter().collect())),
    ("cold archives", |bench| Ok(cold::table(bench)?.into_iter().collect())),
    ("memory", |bench| Ok(memory::table(bench)?.into_iter().collect())),
    ("idle connections", |bench| Ok(idle::table(bench)?.into_iter().collect())),
    ("an outage", |bench| Ok(outage::table(bench)?.into_iter().collect())),
    ("many archives", |bench| Ok(scale::table(bench)?.into_iter().collect())),
    ("growth", |bench| Ok(growth::table(bench)?.into_iter().collect())),
    ("init", |bench| Ok(init::table(bench)?.into_iter().collect())),
    ("parallel runs", |bench| Ok(links::table(bench)?.into_iter().collect())),
    ("init of modules", |bench| Ok(modules::table(bench)?.into_iter().collect())),
    ("a replica", fleet::tables),
    ("warm-up", |bench| Ok(warm::table(bench)?.into_iter().collect())),
];

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if let Some(text) = &options.hyper_server {
        return hyper_server::serve_until_killed(text);
    }
    if !options.bench || options.test {
        return Ok(());
    }
    let mut bench = Bench::new(options)?;
    if let Some(file) = bench.options.instructions.clone() {
        let (table, grown) = instructions::table(&bench, &file)?;
        report::print(&[table], &machine::circumstances([].into_iter(), &bench.options)?);
        anyhow::ensure!(grown.is_empty(), "these take more instructions than before: {}", grown.join("; "));
        return Ok(());
    }
    for (program, found, without) in [
        ("nginx", bench.nginx.is_some(), "its columns are omitted"),
        ("varnish", bench.varnish.is_some(), "its columns are omitted"),
        ("terraform", bench.terraform.is_some(), "the rows of init are omitted"),
        ("wrk", bench.wrk.is_some(), "the bench's own clients request the documents, which costs more processor time"),
    ] {
        if !found {
            bench.progress(&format!("{program} is not installed: {without}"));
        }
    }
    let mut tables = Vec::new();
    let own_binary = bench.binary.clone();
    if let Some(other) = bench.options.beside.clone() {
        let turns = turns::table(&mut bench, &other);
        tables.extend(bench.or_report("both binaries in turns", turns)?.filter(|table| !table.is_empty()));
    }
    // Where two binaries are compared, they have taken turns for the cached content.
    let parts = if bench.options.beside.is_some() { &PARTS[1..] } else { &PARTS[..] };
    for (subject, measure) in parts {
        tables.extend(bench.or_report(subject, measure(&bench))?.into_iter().flatten());
        if let Some(other) = bench.options.beside.clone() {
            bench.binary.clone_from(&other);
            let beside = bench.or_report(subject, measure(&bench))?.into_iter().flatten();
            tables.extend(beside.map(|table| table.labelled(&other.display().to_string())));
            bench.binary.clone_from(&own_binary);
        }
    }
    let programs =
        [&bench.nginx, &bench.varnish, &bench.terraform, &bench.wrk].into_iter().flatten().map(PathBuf::as_path);
    let circumstances = machine::circumstances(programs, &bench.options)?;
    report::print(&tables, &circumstances);
    let failed = bench.failed.get();
    anyhow::ensure!(failed == 0, "{failed} could not be measured: see above");
    Ok(())
}
