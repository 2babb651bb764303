//! A store of many archives, filled through larder: the time of a start and a stop, and the cost of a fill at the size
//! limit.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::Bench;
use crate::catalog::{self, Release};
use crate::compared_server::archive_path;
use crate::interrupt;
use crate::larder::{self, Home, Larder, Log};
use crate::measure::{median, rounds};
use crate::report::{ResultTable, Target, cell};

const MAX_READY_TIME: Duration = Duration::from_secs(1);
const MAX_STOP_TIME: Duration = Duration::from_secs(2);
/// Maximum ratio of the time of a fill at the size limit to that of a fill below it.
const MAX_FILL_RATIO: f64 = 1.2;

/// Ten platforms; each provider also has ten versions.
pub(crate) const PLATFORMS: [&str; 10] = [
    "darwin_amd64",
    "darwin_arm64",
    "freebsd_amd64",
    "linux_386",
    "linux_amd64",
    "linux_arm",
    "linux_arm64",
    "openbsd_amd64",
    "windows_386",
    "windows_amd64",
];
const VERSIONS: usize = 10;
/// The archives of one provider.
pub(crate) const ARCHIVES_OF_A_PROVIDER: usize = VERSIONS * PLATFORMS.len();

const ARCHIVE_BYTES: usize = 1_000;

/// Parallel downloads while filling the store.
const PARALLEL_DOWNLOADS: usize = 32;

/// Providers downloaded in one round, one archive after the other: with 100,000 archives, more than one eviction pass
/// removes.
const PROVIDERS_IN_A_ROUND: usize = 25;

/// The time limit of each step.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The size limit of a store, compared with the space that its archives use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No fill needs an eviction.
    Distant,
    /// Each fill needs an eviction.
    Reached,
}

/// The times of all rounds.
#[derive(Default)]
pub(crate) struct RestartTimes {
    pub(crate) ready: Vec<Duration>,
    index_rebuilt: Vec<Duration>,
    pub(crate) stop: Vec<Duration>,
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let providers = if bench.options.quick { 3 } else { 1000 };
    let archives = providers * ARCHIVES_OF_A_PROVIDER;
    let clean = format!("ready with {archives} archives, after a clean stop");
    let killed = format!("ready with {archives} archives, after kill -9");
    let index = format!("index of {archives} archives rebuilt, after kill -9");
    let stop = format!("clean stop with {archives} archives");
    let fill = format!("fill at the size limit / below it, with {archives} archives");
    let empty = "ready with an empty store".to_owned();
    if ![&clean, &killed, &index, &stop, &fill, &empty].into_iter().any(|row| bench.wants(row)) {
        return Ok(None);
    }
    let title = "A store of many archives (ready: from exec to 200 at /readyz, page cache warm)";
    let mut table = ResultTable::new(title, &["", "larder"]);
    let mut add_row = |name: &str, times: &[Duration], target: Option<Duration>| {
        let median = Duration::from_secs_f64(median(times.iter().map(Duration::as_secs_f64)));
        let targets = target.map(|most| Target { met: median <= most, text: format!("{} s", most.as_secs_f64()) });
        let figure = format!("{:.0} ms", median.as_secs_f64() * 1e3);
        table.add_row(name, vec![cell(Some(figure))], targets.into_iter().collect());
    };

    bench.progress(&empty);
    let home = Home::new(bench, None, Log::Off)?;
    let (home, times) = measure_restarts(bench, home, PreviousStop::Clean)?;
    add_row(&empty, &times.ready, None);

    bench.progress(&format!("a store of {archives} archives"));
    let (larder, _) = start(bench, home)?;
    let began = Instant::now();
    bench.block_on(fill_store(bench, &larder, providers))?;
    bench.progress(&format!("filled in {:.0} s", began.elapsed().as_secs_f64()));
    let home = larder.stop()?;
    ensure!(home.archive_count() == archives, "the store has {} archives, not {archives}", home.archive_count());

    bench.progress(&clean);
    let (home, times) = measure_restarts(bench, home, PreviousStop::Clean)?;
    add_row(&clean, &times.ready, Some(MAX_READY_TIME));
    add_row(&stop, &times.stop, Some(MAX_STOP_TIME));
    bench.progress(&killed);
    let (home, times) = measure_restarts(bench, home, PreviousStop::Killed)?;
    add_row(&killed, &times.ready, Some(MAX_READY_TIME));
    add_row(&index, &times.index_rebuilt, None);

    bench.progress(&fill);
    if let Some([below_limit, at_limit]) = bench.or_report(&fill, measure_fills(bench, home))? {
        let ratio = at_limit / below_limit;
        let figure = format!("{ratio:.2} ({:.2} ms / {:.2} ms)", at_limit * 1e3, below_limit * 1e3);
        let target = Target { met: ratio <= MAX_FILL_RATIO, text: MAX_FILL_RATIO.to_string() };
        table.add_row(&fill, vec![cell(Some(figure))], vec![target]);
    }
    Ok(Some(table))
}

/// The end of the larder that ran before the measured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreviousStop {
    Clean,
    Killed,
}

/// Starts and stops larder once per round, and measures both.
pub(crate) fn measure_restarts(
    bench: &Bench,
    mut home: Home,
    previous: PreviousStop,
) -> anyhow::Result<(Home, RestartTimes)> {
    let mut times = RestartTimes::default();
    for _ in 0..bench.options.rounds() {
        if previous == PreviousStop::Killed {
            home = start(bench, home)?.0.kill();
        }
        let began = Instant::now();
        let (larder, took) = start(bench, home)?;
        times.ready.push(took);
        while metric(bench, &larder, "larder_index_whole")? < 1.0 {
            ensure!(began.elapsed() < TIME_LIMIT, "the index is not rebuilt");
            interrupt::pause(Duration::from_millis(10))?;
        }
        times.index_rebuilt.push(began.elapsed());
        let began = Instant::now();
        home = larder.stop()?;
        times.stop.push(began.elapsed());
    }
    Ok((home, times))
}

/// Starts larder, and polls until it is ready.
pub(crate) fn start(bench: &Bench, home: Home) -> anyhow::Result<(Larder, Duration)> {
    interrupt::check()?;
    let began = Instant::now();
    let larder = home.start()?;
    let url = format!("http://{}/readyz", larder.address);
    bench.block_on(async {
        while !bench.client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
            ensure!(began.elapsed() < TIME_LIMIT, "larder does not become ready");
        }
        Ok(())
    })?;
    Ok((larder, began.elapsed()))
}

/// The sum of all series of a metric.
fn metric(bench: &Bench, larder: &Larder, name: &str) -> anyhow::Result<f64> {
    let url = format!("http://{}/metrics", larder.admin);
    let metrics = bench.block_on(async { bench.client.get(&url).send().await?.error_for_status()?.text().await })?;
    let is_of_metric = |series: &str| series == name || series.starts_with(&format!("{name}{{"));
    let mut values =
        metrics.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(series, _)| is_of_metric(series));
    values.try_fold(0.0, |sum, (_, value)| Ok(sum + value.parse::<f64>()?))
}

/// Seconds of one fill below the size limit and at it.
fn measure_fills(bench: &Bench, home: Home) -> anyhow::Result<[f64; 2]> {
    let mut home = Some(home);
    let mut round = 0;
    let seconds = rounds(&[Limit::Distant, Limit::Reached], bench.options.rounds(), |limit| {
        round += 1;
        let previous = home.take().context("an earlier round failed")?;
        let (next, took) = measure_fill(bench, previous, *limit, &format!("round{round}"))?;
        home = Some(next);
        Ok(took.as_secs_f64())
    })?;
    let medians: Vec<f64> = seconds.into_iter().map(median).collect();
    medians.try_into().ok().context("two were measured")
}

/// The time of one fill, of many new archives whose names begin with `name`.
pub(crate) fn measure_fill(bench: &Bench, home: Home, limit: Limit, name: &str) -> anyhow::Result<(Home, Duration)> {
    let names: Vec<String> = (0..PROVIDERS_IN_A_ROUND).map(|number| format!("{name}x{number}")).collect();
    // Only archives are measured: their documents are cached beforehand, and the limit is the space used then.
    let (larder, _) = start(bench, home.store("max_size = \"1TiB\"")?)?;
    let paths = bench.block_on(archive_paths(bench, &larder, publish(bench, &names)?))?;
    let stored = metric(bench, &larder, "larder_store_bytes")?;
    let with_documents = larder.stop()?;
    let max_size = if limit == Limit::Distant { stored * 10.0 } else { stored };
    let (larder, _) = start(bench, with_documents.store(&format!("max_size = \"{max_size:.0}B\""))?)?;
    let began = Instant::now();
    bench.block_on(download_sequentially(bench, &larder, &paths))?;
    let took = began.elapsed();
    let evicted = metric(bench, &larder, "larder_evictions_total")?;
    ensure!((evicted > 0.0) == (limit == Limit::Reached), "{limit:?}: {evicted} evicted");
    Ok((larder.stop()?, took / u32::try_from(paths.len())?))
}

/// The paths at larder of the archives of these documents.
pub(crate) async fn archive_paths(
    bench: &Bench,
    larder: &Larder,
    documents: Vec<String>,
) -> anyhow::Result<Vec<String>> {
    let base = format!("http://{}", larder.address);
    let paths = stream::iter(documents).map(|document| {
        let url = format!("{base}{}", larder::larder_path(&document));
        async move { archive_path(&bench.client, &url).await }
    });
    paths.buffered(PARALLEL_DOWNLOADS).try_collect().await
}

/// Downloads archives one after the other.
async fn download_sequentially(bench: &Bench, larder: &Larder, paths: &[String]) -> anyhow::Result<()> {
    for path in paths {
        interrupt::check()?;
        download(bench, &format!("http://{}{path}", larder.address)).await?;
    }
    Ok(())
}

/// Publishes small signed providers; returns the paths of their download documents.
fn publish(bench: &Bench, names: &[String]) -> anyhow::Result<Vec<String>> {
    let versions: Vec<String> = (0..VERSIONS).map(|number| format!("1.{number}.0")).collect();
    let mut documents = Vec::new();
    for name in names {
        for version in &versions {
            bench.publish(&Release { name, version, platforms: &PLATFORMS, archive_bytes: ARCHIVE_BYTES })?;
            documents.extend(PLATFORMS.map(|platform| catalog::document_path(name, version, platform)));
        }
    }
    Ok(documents)
}

/// Downloads each archive of many providers through larder.
pub(crate) async fn fill_store(bench: &Bench, larder: &Larder, providers: usize) -> anyhow::Result<()> {
    let names: Vec<String> = (0..providers).map(|number| format!("many{number}")).collect();
    let documents = publish(bench, &names)?;
    let base = format!("http://{}", larder.address);
    stream::iter(documents.iter().map(anyhow::Ok))
        .try_for_each_concurrent(PARALLEL_DOWNLOADS, async |document| {
            interrupt::check()?;
            let path = archive_path(&bench.client, &format!("{base}{}", larder::larder_path(document))).await?;
            download(bench, &format!("{base}{path}")).await
        })
        .await
}

async fn download(bench: &Bench, url: &str) -> anyhow::Result<()> {
    let answer = bench.client.get(url).send().await?.error_for_status();
    answer.with_context(|| url.to_owned())?.bytes().await?;
    Ok(())
}
