//! A replica of a fleet with many names beside a larder that runs alone with the same: how long a start, `status` and `list` take. Runs
//! only where its rows are asked for: to fill both takes some minutes.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::Bench;
use crate::larder::{Home, Larder, Log};
use crate::measure::median;
use crate::report::{ResultTable, Target, cell};
use crate::scale::{self, ARCHIVES_OF_A_PROVIDER};
use crate::support::fleet_setup::FleetSetup;
use crate::support::larder::HOST;

/// The allowed ratio of each time.
const MAX_RATIO: f64 = 1.3;

/// The names of each store.
fn providers(bench: &Bench) -> usize {
    if bench.options.quick { 3 } else { 1_000 }
}

fn row(bench: &Bench, what: &str) -> String {
    format!("replica, {} names, {what}", providers(bench) * ARCHIVES_OF_A_PROVIDER)
}

/// The measurements, each with its command; the start has none.
fn measured() -> [(&'static str, Vec<String>); 4] {
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    [
        ("start", Vec::new()),
        ("status", command(&["status"])),
        ("list of one provider", command(&["list", &format!("{HOST}/acme/many0")])),
        ("list", command(&["list"])),
    ]
}

/// True if a row of these is selected.
pub(crate) fn is_wanted(bench: &Bench) -> bool {
    !bench.options.rows.is_empty() && measured().iter().any(|(what, _)| bench.wants(&row(bench, what)))
}

/// Measures all of them, in turns.
pub(crate) fn table(bench: &Bench, setup: &FleetSetup) -> anyhow::Result<ResultTable> {
    let title = "A fleet of many names (medians; start: from exec to 200 at /readyz, page cache warm; each command for the second time)";
    let mut table = ResultTable::new(title, &["", "alone", "replica", "replica/alone"]);
    if !is_wanted(bench) {
        return Ok(table);
    }
    let mut homes = Vec::new();
    for (who, home) in [("alone", Home::new(bench, None, Log::Off)?), ("replica", replica(bench, setup)?)] {
        bench.progress(&format!("{who}: a store of {} names", providers(bench) * ARCHIVES_OF_A_PROVIDER));
        let (larder, _) = scale::start(bench, home)?;
        bench.block_on(scale::fill_store(bench, &larder, providers(bench)))?;
        homes.push(larder.stop()?);
    }
    let mut times = measured().map(|_| [Vec::new(), Vec::new()]);
    for round in 0..bench.options.rounds() {
        bench.progress(&format!("round {}", round + 1));
        let mut next = Vec::new();
        for turn in 0..2 {
            // The one that was second is first.
            let who = (turn + round) % 2;
            let (larder, took) = scale::start(bench, homes.remove(usize::from(homes.len() > 1 && who == 1)))?;
            for ((_, command), times) in measured().iter().zip(&mut times) {
                let took = if command.is_empty() {
                    took
                } else {
                    // People ask a larder that has run for a while, and has its connections.
                    time_command(&larder, command)?;
                    time_command(&larder, command)?
                };
                times[who].push(took.as_secs_f64());
            }
            next.push((who, larder.stop()?));
        }
        next.sort_by_key(|(who, _)| *who);
        homes = next.into_iter().map(|(_, home)| home).collect();
    }
    for ((what, _), [alone, replica]) in measured().iter().zip(&times) {
        let ratio = median(replica.iter().zip(alone).map(|(replica, alone)| replica / alone));
        let text = |times: &[f64]| cell(Some(format!("{:.1} ms", median(times.iter().copied()) * 1e3)));
        let cells = vec![text(alone), text(replica), cell(Some(format!("{ratio:.2}")))];
        table.add_row(&row(bench, what), cells, vec![Target { met: ratio <= MAX_RATIO, text: MAX_RATIO.to_string() }]);
    }
    Ok(table)
}

fn replica(bench: &Bench, setup: &FleetSetup) -> anyhow::Result<Home> {
    Home::new(bench, None, Log::Off)?.replica(setup)
}

fn time_command(larder: &Larder, arguments: &[String]) -> anyhow::Result<Duration> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = larder.home.command(&arguments);
    let began = Instant::now();
    let output = command.output()?;
    let took = began.elapsed();
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(took)
}
