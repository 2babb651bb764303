//! Cached content: documents, measured in requests per second, and archives, measured in bytes per second.

use std::collections::HashSet;
use std::time::Duration;

use crate::Bench;
use crate::clients::{self, CountedUnit, RequestLoad, wrk};
use crate::compared_server::{ClientProtocol, ComparedServer, Resource, ServerName};
use crate::larder::Log;
use crate::measure::{Sample, median, rounds};
use crate::report::{ResultTable, Target, cell};
use crate::servers::{ARCHIVES, ComparedServers};

/// One measured row.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) resource: Resource,
    pub(crate) gzip: bool,
    pub(crate) protocol: ClientProtocol,
    connections: usize,
    counted: CountedUnit,
    pub(crate) log: Log,
    /// Minimum ratios of larder's rate to the rate of another server.
    targets: Vec<(ServerName, f64)>,
}

impl Row {
    /// The hyper server writes no log. Varnish speaks no TLS, and keeps archives in memory.
    fn compares(&self, server: ServerName) -> bool {
        match server {
            ServerName::Hyper => self.log == Log::Off,
            ServerName::Varnish => {
                self.log == Log::Off && !self.protocol.is_tls() && self.counted == CountedUnit::Answers
            }
            _ => true,
        }
    }

    /// True for one row of each document: the number of connections makes no other answer.
    pub(crate) fn is_typical(&self) -> bool {
        self.connections == 64
    }
}

pub(crate) fn document_rows() -> Vec<Row> {
    let row = |name: &str, resource, gzip, connections, targets: &[(ServerName, f64)]| Row {
        name: format!("{name}, {connections} connection{}", if connections == 1 { "" } else { "s" }),
        resource,
        gzip,
        protocol: ClientProtocol::Http1,
        connections,
        counted: CountedUnit::Answers,
        log: Log::Off,
        targets: targets.to_vec(),
    };
    let mut rows = Vec::new();
    for connections in [1, 64, 256] {
        let targets = [(ServerName::Nginx, 1.15), (ServerName::Hyper, 0.95)];
        rows.push(row("version list, 2 KB gzip", Resource::VersionList, true, connections, &targets));
    }
    for connections in [1, 64, 256] {
        let targets = [(ServerName::Nginx, 1.0), (ServerName::Hyper, 0.95)];
        rows.push(row("version list, 32 KB plain", Resource::VersionList, false, connections, &targets));
    }
    let targets = [(ServerName::Nginx, 1.0), (ServerName::Hyper, 0.95)];
    rows.push(row("download document", Resource::DownloadDocument, false, 64, &targets));
    // Over TLS larder writes absolute URLs, whose base it takes from Host and certificate.
    let absolute = row("download document, absolute URLs, TLS", Resource::DownloadDocument, false, 64, &targets);
    rows.push(Row { protocol: ClientProtocol::Http1Tls, ..absolute });
    rows.push(row("VERSION.json", Resource::MirrorVersion, false, 64, &targets));
    let targets = [(ServerName::Nginx, 1.0)];
    let logged = row("version list, 2 KB gzip, logs on", Resource::VersionList, true, 64, &targets);
    rows.push(Row { log: Log::On, ..logged });
    rows
}

fn archive_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, size, bytes) in ARCHIVES {
        for protocol in ClientProtocol::ALL {
            let is_small = bytes < 1_000_000;
            // nginx sends a file without a copy where there is no TLS.
            let min_ratio = if protocol.is_tls() { 1.0 } else { 0.9 };
            rows.push(Row {
                name: format!("archive {size}, {}", protocol.text()),
                resource: Resource::Archive(name),
                gzip: false,
                protocol,
                connections: if is_small { 16 } else { 4 },
                counted: CountedUnit::Bytes,
                log: Log::Off,
                targets: vec![(ServerName::Nginx, min_ratio)],
            });
        }
    }
    rows
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    document_rows().into_iter().chain(archive_rows()).collect()
}

/// Measures the selected rows, with one table for each kind.
pub(crate) fn tables(bench: &Bench) -> anyhow::Result<Vec<ResultTable>> {
    let selected = |rows: Vec<Row>| -> Vec<Row> { rows.into_iter().filter(|row| bench.wants(&row.name)).collect() };
    let (documents, archives) = (selected(document_rows()), selected(archive_rows()));
    let mut compared_by_log = Vec::new();
    for log in [Log::Off, Log::On] {
        let rows = documents.iter().chain(&archives).filter(|row| row.log == log);
        let resources: HashSet<Resource> = rows.map(|row| row.resource).collect();
        compared_by_log.push(match resources.is_empty() {
            true => None,
            false => Some(ComparedServers::start(bench, &resources, log)?),
        });
    }
    let mut tables = Vec::new();
    let titles =
        ["Cached documents: answers per second; CPU: ms per 1,000", "Cached archives: GB per second; CPU: s per GB"];
    for (title, rows) in titles.into_iter().zip([documents, archives]) {
        let mut table = ResultTable::new(title, &COLUMNS);
        for row in rows {
            let compared = &compared_by_log[usize::from(row.log == Log::On)];
            let servers = compared.iter().flat_map(|compared| &compared.servers);
            let servers: Vec<&ComparedServer> = servers.filter(|server| row.compares(server.name)).collect();
            bench.progress(&row.name);
            let samples = rounds(&servers, bench.options.rounds(), |server| measure(bench, &row, server));
            let Some(samples) = bench.or_report(&row.name, samples)? else { continue };
            add_row(&mut table, &row, &servers.iter().map(|server| server.name).zip(samples).collect::<Vec<_>>());
        }
        tables.extend(Some(table).filter(|table| !table.is_empty()));
    }
    Ok(tables)
}

/// Samples one server for one round.
pub(crate) fn measure(bench: &Bench, row: &Row, server: &ComparedServer) -> anyhow::Result<Sample> {
    let path = server.path(row.resource)?;
    let seconds = bench.options.seconds;
    if let (Some(wrk), CountedUnit::Answers, false) = (&bench.wrk, row.counted, row.protocol.is_tls()) {
        return wrk::sample(wrk, server, path, row.gzip, row.connections, seconds);
    }
    let load = RequestLoad::new(server, row.protocol, path, &bench.certificate)?.gzip(row.gzip);
    clients::sample(server, load, row.connections, Duration::from_secs(seconds), row.counted)
}

const COLUMNS: [&str; 12] = [
    "",
    "larder",
    "nginx",
    "varnish",
    "hyper",
    "larder/nginx",
    "larder/varnish",
    "larder/hyper",
    "CPU larder",
    "CPU nginx",
    "CPU varnish",
    "CPU hyper",
];

fn add_row(table: &mut ResultTable, row: &Row, samples: &[(ServerName, Vec<Sample>)]) {
    let samples_of = |name: ServerName| samples.iter().find(|(server, _)| *server == name).map(|(_, samples)| samples);
    let rate = |name: ServerName| {
        let rate = median(samples_of(name)?.iter().map(Sample::rate));
        Some(match row.counted {
            CountedUnit::Answers => format!("{rate:.0}"),
            CountedUnit::Bytes => format!("{:.2}", rate / 1e9),
        })
    };
    let cost = |name: ServerName| {
        let cost = median(samples_of(name)?.iter().map(Sample::cost));
        Some(match row.counted {
            CountedUnit::Answers => format!("{:.1}", cost * 1e6),
            CountedUnit::Bytes => format!("{:.2}", cost * 1e9),
        })
    };
    // The ratio is taken within each round, because other load on the machine changes between rounds.
    let ratio = |other: ServerName| {
        let rounds = samples_of(ServerName::Larder)?.iter().zip(samples_of(other)?);
        Some(median(rounds.map(|(larder, other)| larder.rate() / other.rate())))
    };
    let names = [ServerName::Larder, ServerName::Nginx, ServerName::Varnish, ServerName::Hyper];
    let mut cells: Vec<String> = names.map(|name| cell(rate(name))).into();
    cells.extend(names.iter().skip(1).map(|other| cell(ratio(*other).map(|ratio| format!("{ratio:.2}")))));
    cells.extend(names.map(|name| cell(cost(name))));
    let targets = row.targets.iter().filter_map(|(other, min_ratio)| {
        let ratio = ratio(*other)?;
        Some(Target { met: ratio >= *min_ratio, text: format!("{min_ratio} x {}", other.text()) })
    });
    table.add_row(&row.name, cells, targets.collect());
}
