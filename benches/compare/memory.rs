//! Anonymous memory of a server: just after the start, and while many clients download.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::Bench;
use crate::clients::{self, RequestLoad};
use crate::compared_server::{ClientProtocol, ComparedServer, Resource, ServerName};
use crate::interrupt;
use crate::larder::Log;
use crate::nginx::Nginx;
use crate::process::anonymous_memory;
use crate::report::{ResultTable, Target, cell};
use crate::servers::ComparedServers;

const CLIENTS: usize = 64;
const ARCHIVE_BYTES: u64 = 150_000_000;

const MAX_IDLE_MIB: f64 = 32.0;
const MAX_LOADED_MIB: f64 = 96.0;

/// The limit for all downloads.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The time a new process has to become idle.
const SETTLE_TIME: Duration = Duration::from_millis(500);

const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let idle_row = "memory before the first request";
    let protocols = ClientProtocol::ALL;
    let loaded_row = |protocol: ClientProtocol| format!("memory, {CLIENTS} clients x 150 MB, {}", protocol.text());
    let protocols: Vec<ClientProtocol> =
        protocols.into_iter().filter(|protocol| bench.wants(&loaded_row(*protocol))).collect();
    if protocols.is_empty() && !bench.wants(idle_row) {
        return Ok(None);
    }
    let mut table =
        ResultTable::new("Anonymous memory (RssAnon) in MiB; with clients, its peak", &["", "larder", "nginx"]);
    let resource = Resource::Archive("large");
    let mut compared = ComparedServers::start(bench, &HashSet::from([resource]), Log::Off)?;
    if bench.wants(idle_row) {
        bench.progress(idle_row);
        compared.restart_larder()?;
        let nginx = bench.nginx.as_ref();
        let nginx =
            nginx.map(|program| Nginx::start(program, &bench.upstream, &bench.certificate, Log::Off)).transpose()?;
        interrupt::pause(SETTLE_TIME)?;
        let larder = compared.servers.iter().find(|server| server.name == ServerName::Larder);
        let larder = larder.map(|server| (server.name, anonymous_memory(server.processes(ClientProtocol::Http1))));
        let nginx = nginx.map(|nginx| (ServerName::Nginx, anonymous_memory(&nginx.processes())));
        add_row(&mut table, idle_row, larder.into_iter().chain(nginx).collect(), MAX_IDLE_MIB);
    }
    for protocol in protocols {
        bench.progress(&loaded_row(protocol));
        // A restart, so that the peak of one measurement is not the start of the next.
        compared.restart_larder()?;
        let mut peaks = Vec::new();
        for server in compared.servers.iter().filter(|server| server.name != ServerName::Hyper) {
            interrupt::check()?;
            peaks.push((server.name, peak_memory(bench, server, protocol, server.path(resource)?)?));
        }
        add_row(&mut table, &loaded_row(protocol), peaks, MAX_LOADED_MIB);
    }
    Ok(Some(table))
}

/// The largest anonymous memory of a server while all clients download.
fn peak_memory(bench: &Bench, server: &ComparedServer, protocol: ClientProtocol, path: &str) -> anyhow::Result<u64> {
    let load = RequestLoad::new(server, protocol, path, &bench.certificate)?;
    let processes = server.processes(protocol);
    clients::run(load, CLIENTS, |throughput| {
        let began = Instant::now();
        let mut peak = 0;
        while throughput().bytes < CLIENTS as u64 * ARCHIVE_BYTES {
            ensure!(began.elapsed() < TIME_LIMIT, "{CLIENTS} downloads take more than {TIME_LIMIT:?}");
            peak = peak.max(anonymous_memory(processes));
            interrupt::pause(SAMPLE_INTERVAL)?;
        }
        Ok(peak)
    })
}

fn add_row(table: &mut ResultTable, name: &str, bytes: Vec<(ServerName, u64)>, max_mib: f64) {
    let mib_of = |wanted: ServerName| {
        bytes.iter().find(|(name, _)| *name == wanted).map(|(_, bytes)| *bytes as f64 / 1_048_576.0)
    };
    let cells = [ServerName::Larder, ServerName::Nginx].map(|name| cell(mib_of(name).map(|mib| format!("{mib:.1}"))));
    let met = mib_of(ServerName::Larder).is_some_and(|mib| mib <= max_mib);
    table.add_row(name, cells.into(), vec![Target { met, text: format!("{max_mib} MiB") }]);
}
