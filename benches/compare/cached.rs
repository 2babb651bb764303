//! Cached content: documents, measured in requests per second, and archives, measured in bytes per second.

use std::collections::HashSet;
use std::time::Duration;

use crate::Bench;
use crate::clients::{self, CountedUnit, RequestLoad, wrk};
use crate::larder::Log;
use crate::measure::{Sample, median, rounds};
use crate::peer::{ClientProtocol, Peer, ServerName, Subject};
use crate::report::{Section, Target, cell};
use crate::servers::{ARCHIVES, ComparedServers};

/// One measured row.
struct Row {
    name: String,
    subject: Subject,
    gzip: bool,
    protocol: ClientProtocol,
    connections: usize,
    counted: CountedUnit,
    log: Log,
    /// Minimum ratios of larder's rate to the rate of another server.
    targets: Vec<(ServerName, f64)>,
}

fn documents() -> Vec<Row> {
    let row = |name: &str, subject, gzip, connections, targets: &[(ServerName, f64)]| Row {
        name: format!("{name}, {connections} connection{}", if connections == 1 { "" } else { "s" }),
        subject,
        gzip,
        protocol: ClientProtocol::Http1,
        connections,
        counted: CountedUnit::Answers,
        log: Log::Off,
        targets: targets.to_vec(),
    };
    let mut rows = Vec::new();
    for connections in [1, 64, 256] {
        let targets = [(ServerName::Nginx, 1.0), (ServerName::Bare, 0.95)];
        rows.push(row("version list, 2 KB gzip", Subject::List, true, connections, &targets));
    }
    for connections in [1, 64, 256] {
        let targets = [(ServerName::Nginx, 0.9), (ServerName::Bare, 0.95)];
        rows.push(row("version list, 32 KB plain", Subject::List, false, connections, &targets));
    }
    rows.push(row("download document", Subject::Document, false, 64, &[(ServerName::Bare, 0.95)]));
    // The base of its URLs depends on Host and certificate.
    let absolute =
        row("download document, absolute URLs, TLS", Subject::Document, false, 64, &[(ServerName::Bare, 0.9)]);
    rows.push(Row { protocol: ClientProtocol::Http1Tls, ..absolute });
    rows.push(row("VERSION.json", Subject::MirrorVersion, false, 64, &[(ServerName::Bare, 0.95)]));
    let logged = row("version list, 2 KB gzip, logs on", Subject::List, true, 64, &[]);
    rows.push(Row { log: Log::On, ..logged });
    rows
}

fn archives() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, size, bytes) in ARCHIVES {
        for protocol in ClientProtocol::ALL {
            let is_small = bytes < 1_000_000;
            let min_ratio = match (is_small, protocol.is_tls()) {
                (true, _) => 0.9,
                (false, true) => 1.0,
                (false, false) => 0.65,
            };
            rows.push(Row {
                name: format!("archive {size}, {}", protocol.text()),
                subject: Subject::Archive(name),
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

/// Measures the selected rows, with one section for each kind.
pub(crate) fn sections(bench: &Bench) -> anyhow::Result<Vec<Section>> {
    let selected = |rows: Vec<Row>| -> Vec<Row> { rows.into_iter().filter(|row| bench.wants(&row.name)).collect() };
    let (documents, archives) = (selected(documents()), selected(archives()));
    let mut servers_by_log = Vec::new();
    for log in [Log::Off, Log::On] {
        let rows = documents.iter().chain(&archives).filter(|row| row.log == log);
        let subjects: HashSet<Subject> = rows.map(|row| row.subject).collect();
        servers_by_log.push(match subjects.is_empty() {
            true => None,
            false => Some(ComparedServers::start(bench, &subjects, log)?),
        });
    }
    let mut sections = Vec::new();
    let titles =
        ["Cached documents: answers a second; CPU: ms for 1,000", "Cached archives: GB a second; CPU: s for a GB"];
    for (title, rows) in titles.into_iter().zip([documents, archives]) {
        let mut section = Section::new(title, &HEAD);
        for row in rows {
            let servers = &servers_by_log[usize::from(row.log == Log::On)];
            let peers = servers.iter().flat_map(|servers| &servers.peers);
            // The bare server writes no log, so it is left out where logs are compared.
            let peers: Vec<&Peer> = peers.filter(|peer| row.log == Log::Off || peer.name != ServerName::Bare).collect();
            bench.progress(&row.name);
            let samples = rounds(&peers, bench.options.rounds(), |peer| measure(bench, &row, peer));
            let Some(samples) = bench.or_report(&row.name, samples)? else { continue };
            add(&mut section, &row, &peers.iter().map(|peer| peer.name).zip(samples).collect::<Vec<_>>());
        }
        sections.extend(Some(section).filter(|section| !section.is_empty()));
    }
    Ok(sections)
}

fn measure(bench: &Bench, row: &Row, peer: &Peer) -> anyhow::Result<Sample> {
    let path = peer.path(row.subject)?;
    let seconds = bench.options.seconds;
    if let (Some(wrk), CountedUnit::Answers, false) = (&bench.wrk, row.counted, row.protocol.is_tls()) {
        return wrk::sample(wrk, peer, path, row.gzip, row.connections, seconds);
    }
    let load = RequestLoad::new(peer, row.protocol, path, &bench.certificate)?.gzip(row.gzip);
    clients::sample(peer, load, row.connections, Duration::from_secs(seconds), row.counted)
}

const HEAD: [&str; 9] = ["", "larder", "nginx", "bare", "larder/nginx", "larder/bare", "CPU larder", "nginx", "bare"];

fn add(section: &mut Section, row: &Row, samples: &[(ServerName, Vec<Sample>)]) {
    let select = |name: ServerName| samples.iter().find(|(server, _)| *server == name).map(|(_, samples)| samples);
    let rate = |name: ServerName| {
        let rate = median(select(name)?.iter().map(Sample::rate));
        Some(match row.counted {
            CountedUnit::Answers => format!("{rate:.0}"),
            CountedUnit::Bytes => format!("{:.2}", rate / 1e9),
        })
    };
    let cost = |name: ServerName| {
        let cost = median(select(name)?.iter().map(Sample::cost));
        Some(match row.counted {
            CountedUnit::Answers => format!("{:.1}", cost * 1e6),
            CountedUnit::Bytes => format!("{:.2}", cost * 1e9),
        })
    };
    // The ratio is taken within each round, because other load on the machine changes between rounds.
    let ratio = |other: ServerName| {
        let rounds = select(ServerName::Larder)?.iter().zip(select(other)?);
        Some(median(rounds.map(|(larder, other)| larder.rate() / other.rate())))
    };
    let names = [ServerName::Larder, ServerName::Nginx, ServerName::Bare];
    let mut cells: Vec<String> = names.map(|name| cell(rate(name))).into();
    cells.extend(
        [ServerName::Nginx, ServerName::Bare].map(|other| cell(ratio(other).map(|ratio| format!("{ratio:.2}")))),
    );
    cells.extend(names.map(|name| cell(cost(name))));
    let targets = row.targets.iter().filter_map(|(other, min_ratio)| {
        let ratio = ratio(*other)?;
        Some(Target { met: ratio >= *min_ratio, text: format!("{min_ratio} x {}", other.text()) })
    });
    section.add(&row.name, cells, targets.collect());
}
