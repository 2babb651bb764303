//! How long larder takes from its start until it is ready, with a store that has been filled through it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::{TryStreamExt as _, stream};

use crate::Bench;
use crate::catalog::{self, Release};
use crate::interrupt;
use crate::larder::{self, Home, Larder, Log};
use crate::measure::median;
use crate::peer::archive_path;
use crate::report::{Section, Target, cell};

const AT_MOST: Duration = Duration::from_secs(1);

/// Ten of each: providers, versions, platforms have their share.
const PLATFORMS: [&str; 10] = [
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

/// How many are downloaded at a time to fill the store.
const AT_A_TIME: usize = 32;

/// Measures what is wanted of it.
pub(crate) fn section(bench: &Bench) -> anyhow::Result<Option<Section>> {
    let providers = if bench.options.quick { 3 } else { 100 };
    let archives = providers * VERSIONS * PLATFORMS.len();
    let clean = format!("ready with {archives} archives, after a clean stop");
    let killed = format!("ready with {archives} archives, after kill -9");
    let empty = "ready with an empty store";
    if ![clean.as_str(), killed.as_str(), empty].iter().any(|row| bench.wants(row)) {
        return Ok(None);
    }
    let mut section =
        Section::new("Start-up of larder (from exec to 200 at /readyz, page cache warm)", &["", "larder"]);
    let rounds = bench.options.rounds();
    let mut add = |name: &str, ready: Vec<Duration>, target: Option<Duration>| {
        let ready = Duration::from_secs_f64(median(ready.iter().map(Duration::as_secs_f64)));
        let targets = target.map(|most| Target { met: ready <= most, text: format!("{} s", most.as_secs_f64()) });
        section.add(
            name,
            vec![cell(Some(format!("{:.0} ms", ready.as_secs_f64() * 1e3)))],
            targets.into_iter().collect(),
        );
    };

    bench.progress(empty);
    let mut home = Home::new(bench, None, Log::Off)?;
    let mut ready = Vec::new();
    for _ in 0..rounds {
        let (larder, took) = start(bench, home)?;
        ready.push(took);
        home = larder.stop()?;
    }
    add(empty, ready, None);

    bench.progress(&format!("a store of {archives} archives"));
    let (larder, _) = start(bench, home)?;
    let began = Instant::now();
    bench.block_on(fill(bench, &larder, providers))?;
    bench.progress(&format!("filled in {:.0} s", began.elapsed().as_secs_f64()));
    home = larder.stop()?;
    for (name, target, is_clean) in [(clean, Some(AT_MOST), true), (killed, None, false)] {
        bench.progress(&name);
        let mut ready = Vec::new();
        for _ in 0..rounds {
            if !is_clean {
                home = start(bench, home)?.0.kill();
            }
            let (larder, took) = start(bench, home)?;
            ready.push(took);
            home = larder.stop()?;
        }
        add(&name, ready, target);
    }
    ensure!(home.archives() == archives, "the store has {} archives, not {archives}", home.archives());
    Ok(Some(section))
}

/// Starts it, and asks until it says that it is ready.
fn start(bench: &Bench, home: Home) -> anyhow::Result<(Larder, Duration)> {
    interrupt::check()?;
    let began = Instant::now();
    let larder = home.start()?;
    let url = format!("http://{}/readyz", larder.address);
    bench.block_on(async {
        while !bench.client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
            ensure!(began.elapsed() < Duration::from_secs(60), "larder does not get ready");
        }
        Ok(())
    })?;
    Ok((larder, began.elapsed()))
}

/// Publishes small providers, signed as all are, and downloads each archive of them through larder.
async fn fill(bench: &Bench, larder: &Larder, providers: usize) -> anyhow::Result<()> {
    let names: Vec<String> = (0..providers).map(|number| format!("many{number}")).collect();
    let versions: Vec<String> = (0..VERSIONS).map(|number| format!("1.{number}.0")).collect();
    let mut documents = Vec::new();
    for name in &names {
        for version in &versions {
            bench.publish(&Release { name, version, platforms: &PLATFORMS, archive_bytes: 1_000 })?;
            documents.extend(PLATFORMS.map(|platform| catalog::document_path(name, version, platform)));
        }
    }
    let base = format!("http://{}", larder.address);
    stream::iter(documents.iter().map(anyhow::Ok))
        .try_for_each_concurrent(AT_A_TIME, async |document| {
            interrupt::check()?;
            let path = archive_path(&bench.client, &format!("{base}{}", larder::under(document))).await?;
            let answer = bench.client.get(format!("{base}{path}")).send().await?.error_for_status();
            answer.with_context(|| path.clone())?.bytes().await?;
            Ok(())
        })
        .await
}
