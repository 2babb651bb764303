//! Two larder binaries in turns, for cached content: the ratios of each round, their median and its interval. Other load on
//! the machine meets both.

use std::collections::HashSet;
use std::mem;
use std::path::Path;

use crate::Bench;
use crate::cached::{self, Row};
use crate::compared_server::{ComparedServer, Resource, ServerName};
use crate::larder::Log;
use crate::measure::{Sample, median, median_interval, rounds};
use crate::report::ResultTable;
use crate::servers;

/// Measures the selected rows with the binary under measurement and with another one.
pub(crate) fn table(bench: &mut Bench, other: &Path) -> anyhow::Result<ResultTable> {
    let title =
        "Cached content: this binary / the other one, in turns; medians of the rounds, with their 90 % intervals";
    let mut table = ResultTable::new(title, &["", "rate", "of rounds", "CPU", "of rounds"]);
    let rows: Vec<Row> = cached::rows().into_iter().filter(|row| bench.wants(&row.name)).collect();
    for log in [Log::Off, Log::On] {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.log == log).collect();
        let resources: HashSet<Resource> = rows.iter().map(|row| row.resource).collect();
        if rows.is_empty() {
            continue;
        }
        let (_larders, own_server) = servers::start_larders(bench, &resources, log)?;
        let own = mem::replace(&mut bench.binary, other.to_owned());
        let started = servers::start_larders(bench, &resources, log);
        bench.binary = own;
        let (_other_larders, other_server) = started?;
        let servers = [own_server, ComparedServer { name: ServerName::Beside, ..other_server }];
        for row in rows {
            bench.progress(&row.name);
            let samples = rounds(&servers, bench.options.rounds(), |server| cached::measure(bench, row, server));
            let Some(samples) = bench.or_report(&row.name, samples)? else { continue };
            let ratios = |of: fn(&Sample) -> f64| -> Vec<f64> {
                samples[0].iter().zip(&samples[1]).map(|(own, other)| of(own) / of(other)).collect()
            };
            let cells = [ratios(Sample::rate), ratios(Sample::cost)].into_iter().flat_map(|ratios| {
                let (low, high) = median_interval(&ratios);
                [format!("{:.3}", median(ratios)), format!("{low:.3} to {high:.3}")]
            });
            table.add_row(&row.name, cells.collect(), Vec::new());
        }
    }
    Ok(table)
}
