//! A replica of a fleet beside a larder that runs alone: the processor time of hits, the time of an archive that is not stored, and
//! that of one which the bucket has. PostgreSQL, the bucket and the registry are on loopback.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::TryStreamExt as _;
use larder::fleet::bucket::Bucket;

use crate::Bench;
use crate::cached::{self, Row};
use crate::clients::once;
use crate::cold;
use crate::compared_server::{Addresses, ComparedServer, Processes, Resource, ServerName, archive_path};
use crate::fleet_names;
use crate::larder::{Home, Larder, Log};
use crate::measure::{Sample, median, median_interval, rounds};
use crate::report::{ResultTable, Target, cell};
use crate::servers;
use crate::support::bucket::{BucketFault, Verb};
use crate::support::fleet_setup::FleetSetup;

/// The allowed ratio of the processor time of a hit.
const MAX_HIT_RATIO: f64 = 1.03;
/// The archives that are not stored: label, size, speed of the registry, that of the bucket if it is limited, allowed ratio of the time.
type Cold = (&'static str, usize, u64, Option<u32>, f64);
const COLD: [Cold; 3] = [
    ("100 MB", 100_000_000, 50_000_000, None, 1.15),
    ("100 MB, bucket at 100 MB/s", 100_000_000, 50_000_000, Some(100_000_000), 1.15),
    ("64 KB", 64_000, 500_000_000, None, 1.5),
];
/// The allowed ratio of the time of an archive from the bucket to that of a plain request to it.
const MAX_MISS_RATIO: f64 = 1.1;

/// Measures the selected rows.
pub(crate) fn tables(bench: &Bench) -> anyhow::Result<Vec<ResultTable>> {
    let hits: Vec<Row> = cached::rows().into_iter().filter(|row| is_compared(bench, row)).collect();
    let cold: Vec<_> = COLD.into_iter().filter(|(size, ..)| bench.wants(&cold_name(size))).collect();
    if hits.is_empty() && cold.is_empty() && !fleet_names::is_wanted(bench) {
        return Ok(Vec::new());
    }
    let Some(setup) = bench.block_on(FleetSetup::created()) else {
        bench.progress("PostgreSQL is not installed: the rows of a replica are omitted");
        return Ok(Vec::new());
    };
    let tables =
        [hit_table(bench, &setup, &hits)?, cold_table(bench, &setup, &cold)?, fleet_names::table(bench, &setup)?];
    Ok(tables.into_iter().filter(|table| !table.is_empty()).collect())
}

fn is_compared(bench: &Bench, row: &Row) -> bool {
    let is_one = row.is_typical() && row.gzip || matches!(row.resource, Resource::Archive("small" | "large"));
    is_one && row.log == Log::Off && !row.protocol.is_tls() && bench.wants(&format!("replica, {}", row.name))
}

fn cold_name(size: &str) -> String {
    format!("replica, cold {size}")
}

/// The processor time of hits, and what the database is asked meanwhile.
fn hit_table(bench: &Bench, setup: &FleetSetup, rows: &[Row]) -> anyhow::Result<ResultTable> {
    let title =
        "Hits of a replica / of a larder that runs alone, in turns; medians of the rounds, with their 90 % intervals";
    let mut table = ResultTable::new(
        title,
        &["", "CPU", "of rounds", "rate", "of rounds", "transactions a second", "without load"],
    );
    if rows.is_empty() {
        return Ok(table);
    }
    let resources: HashSet<Resource> = rows.iter().map(|row| row.resource).collect();
    servers::publish(bench, &resources)?;
    let replica = Home::new(bench, None, Log::Off)?.replica(setup)?.start()?;
    let alone = Home::new(bench, None, Log::Off)?.start()?;
    let servers = [
        compared(bench, &replica, ServerName::Larder, &resources)?,
        compared(bench, &alone, ServerName::Beside, &resources)?,
    ];
    // The questions of this function count in both columns.
    let idle = (0..bench.options.rounds()).map(|_| {
        transactions_within(setup, || {
            std::thread::sleep(Duration::from_secs(bench.options.seconds));
            Ok(())
        })
    });
    let idle = median(idle.collect::<anyhow::Result<Vec<f64>>>()?);
    for row in rows {
        bench.progress(&format!("replica, {}", row.name));
        let mut loaded = Vec::new();
        let samples = rounds(&servers, bench.options.rounds(), |server| {
            let mut sample = None;
            // Also for the other one: the questions of this function cost both the same.
            let transactions = transactions_within(setup, || {
                sample = Some(cached::measure(bench, row, server)?);
                Ok(())
            })?;
            if server.name == ServerName::Larder {
                loaded.push(transactions);
            }
            sample.context("a round has a sample")
        });
        let Some(samples) = bench.or_report(&row.name, samples)? else { continue };
        let ratios = |of: fn(&Sample) -> f64| -> Vec<f64> {
            samples[0].iter().zip(&samples[1]).map(|(replica, alone)| of(replica) / of(alone)).collect()
        };
        let (costs, rates) = (ratios(Sample::cost), ratios(Sample::rate));
        let (low, high) = median_interval(&costs);
        let cost = median(costs.iter().copied());
        let met = cost <= MAX_HIT_RATIO || (low <= 1.0 && high >= 1.0);
        let (low_rate, high_rate) = median_interval(&rates);
        let cells = vec![
            format!("{cost:.3}"),
            format!("{low:.3} to {high:.3}"),
            format!("{:.3}", median(rates)),
            format!("{low_rate:.3} to {high_rate:.3}"),
            format!("{:.1}", median(loaded)),
            format!("{idle:.1}"),
        ];
        table.add_row(&row.name, cells, vec![Target { met, text: format!("{MAX_HIT_RATIO} x alone") }]);
    }
    Ok(table)
}

/// The transactions of the database a second while `work` runs, and those of this function itself.
fn transactions_within(setup: &FleetSetup, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let count = || -> anyhow::Result<f64> {
        let ask = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
        Ok(setup.database.sql(ask).trim().parse()?)
    };
    let (before, began) = (count()?, Instant::now());
    work()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok((count()? - before) / seconds)
}

fn compared(
    bench: &Bench,
    larder: &Larder,
    name: ServerName,
    resources: &HashSet<Resource>,
) -> anyhow::Result<ComparedServer> {
    let paths = bench.block_on(servers::larder_paths(bench, &format!("http://{}", larder.address), resources))?;
    let addresses = Addresses { plain: larder.address, tls: larder.address };
    Ok(ComparedServer { name, addresses, paths, processes: Processes::both(larder.processes()) })
}

/// The ways of an archive to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A larder that runs alone, from upstream.
    Alone,
    /// A replica, from upstream into the bucket.
    Replica,
    /// Another replica, from the bucket.
    Bucket,
    /// A plain request to the bucket.
    Plain,
}

/// The time of archives that are not on the machine.
fn cold_table(bench: &Bench, setup: &FleetSetup, rows: &[Cold]) -> anyhow::Result<ResultTable> {
    let title = "Archives that a replica does not have (medians of the time to the last byte)";
    let columns = ["", "alone", "replica", "replica/alone", "plain from the bucket", "by a replica", "replica/plain"];
    let mut table = ResultTable::new(title, &columns);
    for (size, bytes, speed, limit, max_ratio) in rows {
        let row = cold_name(size);
        setup.bucket.heal();
        limit.iter().for_each(|rate| setup.bucket.fail(Verb::Get, BucketFault::Limited(*rate)));
        bench.progress(&row);
        let (mut alone, mut replica, mut plain, mut missed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..bench.options.rounds() {
            // A new archive in each round: the bucket has none of it.
            let name = format!("cold-{}-{round}", size.replace([' ', ',', '/'], "").to_lowercase());
            cold::publish(bench, &name, *bytes, *speed)?;
            cold::publish(bench, &before(&name), 1_000, *speed)?;
            let mut ways = [Way::Alone, Way::Replica];
            if round % 2 == 1 {
                ways.reverse();
            }
            let mut times = [0.0; 2];
            for way in ways {
                let home = Home::new(bench, None, Log::Off)?;
                let home = if way == Way::Replica { home.replica(setup)? } else { home };
                times[usize::from(way == Way::Replica)] = time_of(bench, home, &name, *bytes)?;
            }
            alone.push(times[0]);
            replica.push(times[1]);
            let mut ways = [Way::Plain, Way::Bucket];
            if round % 2 == 1 {
                ways.reverse();
            }
            for way in ways {
                match way {
                    Way::Plain => plain.push(time_of_plain(bench, setup, *bytes)?),
                    _ => missed.push(time_of(bench, Home::new(bench, None, Log::Off)?.replica(setup)?, &name, *bytes)?),
                }
            }
        }
        let ratio = |one: &[f64], other: &[f64]| median(one.iter().zip(other).map(|(one, other)| one / other));
        let (cold, miss) = (ratio(&replica, &alone), ratio(&missed, &plain));
        let text = |times: &[f64]| cell(Some(format!("{:.1} ms", median(times.iter().copied()) * 1e3)));
        let of = |ratio: f64| cell(Some(format!("{ratio:.2}")));
        let cells = vec![text(&alone), text(&replica), of(cold), text(&plain), text(&missed), of(miss)];
        let targets = vec![
            Target { met: cold <= *max_ratio, text: format!("{max_ratio} x alone") },
            Target { met: miss <= MAX_MISS_RATIO, text: format!("{MAX_MISS_RATIO} x plain") },
        ];
        table.add_row(&row, cells, targets);
    }
    Ok(table)
}

/// The time of an archive through a new larder. Its documents are fetched before, and another archive, so that the connections to the
/// database and the bucket are open, as they are while a replica serves.
fn time_of(bench: &Bench, home: Home, name: &str, bytes: usize) -> anyhow::Result<f64> {
    let larder = home.start()?;
    let time_one = |name: &str| {
        let document = crate::catalog::document_path(name, "1.0.0", crate::catalog::PLATFORM);
        let document = format!("http://{}{}", larder.address, crate::larder::larder_path(&document));
        let path = bench.block_on(archive_path(&bench.client, &document))?;
        once::time_one(larder.address, &path)
    };
    time_one(&before(name))?;
    let timing = time_one(name)?;
    ensure!(timing.bytes >= bytes, "it sent {} bytes", timing.bytes);
    Ok(timing.last_byte.as_secs_f64())
}

/// The archive that a larder fetches before this one.
fn before(name: &str) -> String {
    format!("{name}-before")
}

/// The time of the archive that the bucket got last, by a plain request of a client that has no connection yet.
fn time_of_plain(bench: &Bench, setup: &FleetSetup, bytes: usize) -> anyhow::Result<f64> {
    let object = setup
        .database
        .sql(&format!("select object from larder.blob where size >= {bytes} order by touched desc limit 1"))
        .trim()
        .parse()?;
    let (fleet, network) = setup.bucket.settings();
    let bucket = Bucket::new(&fleet, &network)?;
    let began = Instant::now();
    let read = bench.block_on(async {
        let arriving = bucket.get(&object, 0).await?;
        arriving.bytes.try_fold(0, |read, piece| async move { Ok(read + piece.len()) }).await
    })?;
    ensure!(read >= bytes, "the bucket sent {read} bytes");
    Ok(began.elapsed().as_secs_f64())
}
