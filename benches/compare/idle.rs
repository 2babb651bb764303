//! Ten thousand clients that asked once and keep their connections: what they cost, and what the next client notices.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::Bench;
use crate::growth::percentiles;
use crate::larder::{Home, Log, larder_path};
use crate::process::{anonymous_memory, raise_file_limit};
use crate::report::{ResultTable, Target, cell};
use crate::scale;
use crate::upstream::ServedFile;

const CLIENTS: usize = 10_000;
/// One address may not have as many connections.
const ADDRESSES: usize = 100;
/// The clients that connect at one time.
const PARALLEL: usize = 32;
/// The requests of the next client.
const REQUESTS: usize = 2_000;
/// The most that the median of the next client may be of that of a client alone.
const MAX_RATIO: f64 = 1.2;
/// Below this, a difference is that of the scheduler.
const NOISE: Duration = Duration::from_micros(5);

const PATH: &str = "/v1/providers/acme/idle/versions";

/// Measures the row, where it is selected.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let clients = if bench.options.quick { CLIENTS / 20 } else { CLIENTS };
    let row = format!("{clients} idle connections");
    if !bench.wants(&row) {
        return Ok(None);
    }
    bench.progress(&row);
    raise_file_limit(clients)?;
    bench.upstream.publish(PATH.into(), ServedFile::json("{\"versions\":[]}".to_owned())?);
    let (larder, _) = scale::start(bench, Home::new(bench, None, Log::Off)?)?;
    let path = larder_path(PATH);
    let paths = vec![path.clone(); REQUESTS];
    let alone = percentiles(&larder, &paths)?;
    let memory_before = anonymous_memory(&larder.processes());
    let connections: Vec<TcpStream> = bench.block_on(
        stream::iter(0..clients)
            .map(|number| ask_and_stay(number, larder.address, &path))
            .buffer_unordered(PARALLEL)
            .try_collect(),
    )?;
    let memory = anonymous_memory(&larder.processes());
    let beside = percentiles(&larder, &paths)?;
    let micros = |[p50, p99]: [Duration; 2]| format!("{} / {} \u{b5}s", p50.as_micros(), p99.as_micros());
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
    let columns = ["", "document alone, p50 / p99", "beside them", "memory before", "memory"];
    let mut table =
        ResultTable::new("Clients that keep their connections (each asked once, and none was refused)", &columns);
    let cells = [micros(alone), micros(beside), mib(memory_before), mib(memory)].map(|text| cell(Some(text)));
    let met = beside[0] <= alone[0].mul_f64(MAX_RATIO) + NOISE;
    table.add_row(&row, cells.into(), vec![Target { met, text: format!("p50 {MAX_RATIO} x") }]);
    drop(connections);
    Ok(Some(table))
}

/// Asks once, and keeps the connection.
async fn ask_and_stay(number: usize, address: SocketAddr, path: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 2, (number % ADDRESSES) as u8 + 1), 0).into())?;
    let mut connection = socket.connect(address).await?;
    connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"{\"versions\":[]}") {
        let read = connection.read_buf(&mut answer).await?;
        ensure!(read > 0, "client {number}: {}", String::from_utf8_lossy(&answer));
    }
    let status = answer.get(..12).context("an answer has a status")?;
    ensure!(status == b"HTTP/1.1 200", "client {number}: {}", String::from_utf8_lossy(&answer));
    Ok(connection)
}
