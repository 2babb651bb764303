//! A warm-up of many small providers with their documents and proof sets, compared with a plain downloader that fetches
//! the same files and syncs each of them.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::{TryStreamExt as _, stream};
use serde_json::{Value, json};

use crate::Bench;
use crate::catalog::{self, PLATFORM, Release};
use crate::interrupt;
use crate::larder::{Larder, Log};
use crate::measure::{median, rounds};
use crate::report::{ResultTable, Target, cell};

/// The time after which the registry answers each request.
const LATENCY: Duration = Duration::from_millis(20);
/// Parallel providers of the downloader.
const PARALLEL_PROVIDERS: usize = 16;
/// The target ratio of warm-up throughput to the downloader's.
const MIN_THROUGHPUT_RATIO: f64 = 1.0;
/// The sizes of archives, in turn.
const ARCHIVE_SIZES: [usize; 5] = [20_000, 40_000, 60_000, 80_000, 100_000];

/// The measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetcher {
    Downloader,
    Larder,
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let count = if bench.options.quick { 100 } else { 1000 };
    let name = format!("warm {count} small items");
    if !bench.wants(&name) {
        return Ok(None);
    }
    bench.progress(&name);
    let names: Vec<String> = (0..count).map(|number| format!("warm{number}")).collect();
    for (name, size) in names.iter().zip(ARCHIVE_SIZES.iter().cycle()) {
        bench.upstream.publish(catalog::list_path(name), catalog::list("1.0.0")?);
        bench.publish(&Release::new(name, *size))?;
    }
    bench.upstream.answer_after(LATENCY);
    let seconds =
        rounds(&[Fetcher::Downloader, Fetcher::Larder], bench.options.rounds().min(3), |fetcher| match fetcher {
            Fetcher::Downloader => bench.block_on(download(bench, &names)),
            Fetcher::Larder => warm(bench, &names),
        });
    bench.upstream.answer_after(Duration::ZERO);
    let seconds = seconds?;
    let [direct, larder] = [0, 1].map(|index: usize| median(seconds.get(index).into_iter().flatten().copied()));
    let title = format!(
        "Warm-up, the registry {} ms away for each request (the downloader fetches {PARALLEL_PROVIDERS} at a time, and syncs each file)",
        LATENCY.as_millis()
    );
    let mut table = ResultTable::new(&title, &["", "downloader", "larder", "larder's throughput"]);
    let ratio = direct / larder;
    let time_and_rate = |seconds: f64| cell(Some(format!("{seconds:.2} s ({:.0}/s)", count as f64 / seconds)));
    let target = Target { met: ratio >= MIN_THROUGHPUT_RATIO, text: format!("{MIN_THROUGHPUT_RATIO} x downloader") };
    table.add_row(&name, vec![time_and_rate(direct), time_and_rate(larder), format!("{ratio:.2}")], vec![target]);
    Ok(Some(table))
}

/// Seconds of a warm-up with an empty store, from the order to the end of its job.
fn warm(bench: &Bench, names: &[String]) -> anyhow::Result<f64> {
    let larder = Larder::start(bench, None, Log::Off)?;
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let order = json!({ "what": addresses, "platforms": [PLATFORM] }).to_string();
    let admin = format!("http://{}/admin/v1", larder.admin);
    let token = larder.home.token()?;
    let took = bench.block_on(async {
        let began = Instant::now();
        let request = bench.client.post(format!("{admin}/warm")).bearer_auth(token.trim()).body(order);
        let job = request.header("content-type", "application/json").send().await?.error_for_status()?.text().await?;
        let job: Value = serde_json::from_str(&job)?;
        let id = job["id"].as_str().context("a job has an id")?;
        let end = last_event(bench, &format!("{admin}/jobs/{id}/events")).await?;
        ensure!(end["state"] == "done", "the job ended as {end}");
        Ok(began.elapsed().as_secs_f64())
    })?;
    ensure!(larder.home.archive_count() == names.len(), "{} archives are stored", larder.home.archive_count());
    larder.stop()?;
    Ok(took)
}

/// The last event of a job.
async fn last_event(bench: &Bench, events: &str) -> anyhow::Result<Value> {
    let mut answer = bench.client.get(events).send().await?.error_for_status()?;
    let mut text = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        interrupt::check()?;
        text.extend_from_slice(&piece);
        // Only the last event is needed.
        let surplus = text.len().saturating_sub(64 << 10);
        text.drain(..surplus);
    }
    let text = String::from_utf8_lossy(&text);
    let Some((_, end)) = text.rsplit_once("event: end\ndata: ") else {
        bail!("the event stream of the job ended early")
    };
    Ok(serde_json::from_str(end.trim())?)
}

/// Seconds of a plain downloader for the same files: the providers in parallel, the files of each one
/// after the other.
async fn download(bench: &Bench, names: &[String]) -> anyhow::Result<f64> {
    let folder = tempfile::Builder::new().prefix("compare-downloads-").tempdir()?;
    let began = Instant::now();
    stream::iter(names.iter().map(anyhow::Ok))
        .try_for_each_concurrent(PARALLEL_PROVIDERS, async |name| {
            interrupt::check()?;
            let fetch = async |path: &str, file: String| {
                let url = format!("http://{}{path}", bench.upstream.address());
                let bytes = bench.client.get(url).send().await?.error_for_status()?.bytes().await?;
                let path = folder.path().join(file);
                let contents = bytes.clone();
                tokio::task::spawn_blocking(move || write_synced(&path, &contents)).await??;
                anyhow::Ok(bytes)
            };
            fetch(&catalog::list_path(name), format!("{name}.versions")).await?;
            let document = fetch(&catalog::document_path(name, "1.0.0", PLATFORM), format!("{name}.json")).await?;
            let document: Value = serde_json::from_slice(&document)?;
            for (key, ending) in [("shasums_url", "sums"), ("shasums_signature_url", "sig"), ("download_url", "zip")] {
                fetch(document[key].as_str().context("a document names its files")?, format!("{name}.{ending}"))
                    .await?;
            }
            Ok(())
        })
        .await?;
    Ok(began.elapsed().as_secs_f64())
}

fn write_synced(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}
