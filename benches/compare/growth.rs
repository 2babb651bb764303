//! The costs of larder with a growing store: a thousand archives, ten thousand, and so on, each filled through larder. Runs only
//! where its rows are asked for: the last step takes half an hour.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::Bench;
use crate::catalog;
use crate::clients::{Repeated, RequestLoad};
use crate::interrupt;
use crate::larder::{self, Home, Larder, Log};
use crate::measure::median;
use crate::process::anonymous_memory;
use crate::report::{ResultTable, Target, cell};
use crate::scale::{self, ARCHIVES_OF_A_PROVIDER, Limit, PLATFORMS, PreviousStop};
use crate::support::larder::HOST;

/// The name in rows, by which they are asked for.
const ROW: &str = "growth";

/// The documents, and the archives, that are asked for: as many of each store.
const HITS: usize = 1_000;
/// The most that a figure with 100,000 archives may be of that with 1,000.
const MAX_GROWTH: f64 = 1.2;
/// Below this, a difference between commands or starts is that of the scheduler.
const NOISE: Duration = Duration::from_millis(5);
/// The same for one request.
const NOISE_OF_REQUESTS: Duration = Duration::from_micros(20);

/// The measurements of one store.
#[derive(Clone, Copy, Debug)]
struct Figures {
    ready: Duration,
    stop: Duration,
    /// The median and the 99th percentile of documents that nobody asked for since the start.
    first_hit: [Duration; 2],
    hit: [Duration; 2],
    archive: [Duration; 2],
    list: Duration,
    status: Duration,
    fill_at_limit: Duration,
    memory_bytes: u64,
}

/// Measures the sizes that `--rows` selects: by `growth` up to 100,000 archives, by `growth 1000000` that one.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let sizes: &[usize] = if bench.options.quick { &[100, 300] } else { &[1_000, 10_000, 100_000, 1_000_000] };
    let is_asked_for = |size: usize| {
        let name = format!("{ROW} {size}");
        bench.options.rows.iter().any(|row| (row == ROW && size < 1_000_000) || *row == name)
    };
    let columns = [
        "",
        "ready",
        "stop",
        "document, p50 / p99",
        "again",
        "archive",
        "list",
        "status",
        "fill at the limit",
        "memory",
    ];
    let title = "A growing store (after a start; document and archive: 1,000 of them, each asked for once; list: of one \
                 provider; fill: with an eviction for each)";
    let mut table = ResultTable::new(title, &columns);
    let mut first: Option<Figures> = None;
    for size in sizes.iter().copied().filter(|size| is_asked_for(*size)) {
        let name = format!("{ROW} {size} archives");
        bench.progress(&name);
        let Some(figures) = bench.or_report(&name, measure(bench, size))? else { continue };
        let base = *first.get_or_insert(figures);
        table.add_row(&name, figures.cells(), figures.targets(&base));
    }
    Ok(Some(table).filter(|table| !table.is_empty()))
}

impl Figures {
    fn cells(&self) -> Vec<String> {
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let micros = |[p50, p99]: [Duration; 2]| format!("{} / {} \u{b5}s", p50.as_micros(), p99.as_micros());
        let memory = format!("{:.1} MiB", self.memory_bytes as f64 / 1_048_576.0);
        let cells = [
            ms(self.ready),
            ms(self.stop),
            micros(self.first_hit),
            micros(self.hit),
            micros(self.archive),
            ms(self.list),
            ms(self.status),
            ms(self.fill_at_limit),
            memory,
        ];
        cells.map(|text| cell(Some(text))).into()
    }

    fn targets(&self, base: &Self) -> Vec<Target> {
        let flat = |text: &str, noise: Duration, value: fn(&Self) -> Duration| {
            let (now, before) = (value(self), value(base));
            let met = now <= before.mul_f64(MAX_GROWTH) || now.saturating_sub(before) < noise;
            Target { met, text: format!("{text} {MAX_GROWTH} x") }
        };
        vec![
            flat("ready", NOISE, |figures| figures.ready),
            flat("stop", NOISE, |figures| figures.stop),
            flat("document p50", NOISE_OF_REQUESTS, |figures| figures.first_hit[0]),
            flat("document p99", NOISE_OF_REQUESTS, |figures| figures.first_hit[1]),
            flat("again p50", NOISE_OF_REQUESTS, |figures| figures.hit[0]),
            flat("archive p50", NOISE_OF_REQUESTS, |figures| figures.archive[0]),
            flat("archive p99", NOISE_OF_REQUESTS, |figures| figures.archive[1]),
            flat("list", NOISE, |figures| figures.list),
            flat("status", NOISE, |figures| figures.status),
            flat("fill", NOISE_OF_REQUESTS, |figures| figures.fill_at_limit),
        ]
    }
}

fn measure(bench: &Bench, archives: usize) -> anyhow::Result<Figures> {
    let providers = archives.div_ceil(ARCHIVES_OF_A_PROVIDER);
    let (larder, _) = scale::start(bench, Home::new(bench, None, Log::Off)?)?;
    bench.block_on(scale::fill_store(bench, &larder, providers))?;
    let home = larder.stop()?;
    let (home, times) = scale::measure_restarts(bench, home, PreviousStop::Clean)?;
    let middle = |times: &[Duration]| Duration::from_secs_f64(median(times.iter().map(Duration::as_secs_f64)));
    let (larder, _) = scale::start(bench, home)?;
    // All of them different: of each provider one, then of each another one.
    let document = |number: usize| {
        let (provider, of_it) = (number % providers, number / providers);
        let (version, platform) = (of_it / PLATFORMS.len(), PLATFORMS[of_it % PLATFORMS.len()]);
        catalog::document_path(&format!("many{provider}"), &format!("1.{version}.0"), platform)
    };
    let documents: Vec<String> = (0..HITS.min(providers * ARCHIVES_OF_A_PROVIDER)).map(document).collect();
    let at_larder: Vec<String> = documents.iter().map(|document| larder::larder_path(document)).collect();
    let first_hit = percentiles(&larder, &at_larder)?;
    let hit = percentiles(&larder, &at_larder)?;
    let paths = bench.block_on(scale::archive_paths(bench, &larder, documents))?;
    let archive = percentiles(&larder, &paths)?;
    let list = time_command(bench, &larder, &["list", &format!("{HOST}/acme/many0")])?;
    let status = time_command(bench, &larder, &["status"])?;
    let memory_bytes = anonymous_memory(&larder.processes());
    let (_, fill_at_limit) = scale::measure_fill(bench, larder.stop()?, Limit::Reached, "at_the_limit")?;
    let (ready, stop) = (middle(&times.ready), middle(&times.stop));
    Ok(Figures { ready, stop, first_hit, hit, archive, list, status, fill_at_limit, memory_bytes })
}

/// The median and the 99th percentile of the times of these requests, one after the other.
pub(crate) fn percentiles(larder: &Larder, paths: &[String]) -> anyhow::Result<[Duration; 2]> {
    let load = RequestLoad::to(larder.address, "/");
    let mut connection = Repeated::connect(&load)?;
    let mut times = Vec::with_capacity(paths.len());
    for path in paths {
        interrupt::check()?;
        let began = Instant::now();
        connection.request_path(path)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().context("no request was timed");
    Ok([at(0.5)?, at(0.99)?])
}

/// The median time of a command that asks the running larder.
fn time_command(bench: &Bench, larder: &Larder, arguments: &[&str]) -> anyhow::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..bench.options.rounds() {
        let mut command: Command = larder.home.command(arguments);
        let began = Instant::now();
        let output = command.output()?;
        times.push(began.elapsed().as_secs_f64());
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Duration::from_secs_f64(median(times)))
}
