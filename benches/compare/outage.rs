//! A long version list for many clients while its registry is down: the memory and the processor time of each answer, beside
//! those of the same list while it is fresh.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::Bench;
use crate::compared_server::warm;
use crate::interrupt;
use crate::larder::{Home, Log, larder_path};
use crate::process::{anonymous_memory, processor_time, raise_file_limit};
use crate::report::{ResultTable, Target};
use crate::upstream::{ServedFile, Upstream};

const CLIENTS: usize = 2000;
/// The addresses of the clients.
const ADDRESSES: usize = 8;
const LIST_BYTES: usize = 2_400_000;
/// The most that an outage may cost, as a multiple of the same list while it is fresh.
const MAX_RATIO: f64 = 1.2;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const PATH: &str = "/v1/providers/acme/outage/versions";

/// The state of the registry behind larder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registry {
    Up,
    Down,
}

/// The measurement of one state.
struct Cost {
    answers: u64,
    /// Processor time of one answer, in seconds.
    processor_seconds: f64,
    /// The largest anonymous memory, in bytes.
    peak_memory: u64,
}

/// Measures the row, if it is selected.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let row = format!("list of 2.4 MB, {CLIENTS} clients, registry down");
    if !bench.wants(&row) {
        return Ok(None);
    }
    raise_file_limit(CLIENTS)?;
    let span = Duration::from_secs(if bench.options.quick { 2 } else { bench.options.outage_seconds });
    let fresh = measure(bench, Registry::Up, span)?;
    let down = measure(bench, Registry::Down, span)?;
    let columns = ["", "answers", "CPU ms, fresh", "CPU ms, down", "ratio", "MiB, fresh", "MiB, down", "ratio"];
    let title = format!("An outage of {} s: CPU of each answer, peak of the anonymous memory", span.as_secs());
    let mut table = ResultTable::new(&title, &columns);
    let processor_ratio = down.processor_seconds / fresh.processor_seconds;
    let memory_ratio = down.peak_memory as f64 / fresh.peak_memory as f64;
    let cells = [
        format!("{} / {}", fresh.answers, down.answers),
        format!("{:.2}", fresh.processor_seconds * 1e3),
        format!("{:.2}", down.processor_seconds * 1e3),
        format!("{processor_ratio:.2}"),
        format!("{:.1}", fresh.peak_memory as f64 / 1_048_576.0),
        format!("{:.1}", down.peak_memory as f64 / 1_048_576.0),
        format!("{memory_ratio:.2}"),
    ];
    let targets = [("CPU", processor_ratio), ("memory", memory_ratio)]
        .map(|(name, ratio)| Target { met: ratio <= MAX_RATIO, text: format!("{name} {MAX_RATIO} x fresh") });
    table.add_row(&row, cells.into(), targets.into());
    Ok(Some(table))
}

fn version_list() -> anyhow::Result<ServedFile> {
    let platforms: Vec<String> =
        (0..14).map(|number| format!("{{\"os\":\"linux\",\"arch\":\"arch{number}\"}}")).collect();
    let entry = |number: usize| format!("{{\"version\":\"1.{number}.0\",\"platforms\":[{}]}}", platforms.join(","));
    let mut entries = vec![entry(0)];
    while entries.iter().map(String::len).sum::<usize>() < LIST_BYTES {
        entries.push(entry(entries.len()));
    }
    ServedFile::json(format!("{{\"versions\":[{}]}}", entries.join(",")))
}

fn measure(bench: &Bench, registry: Registry, span: Duration) -> anyhow::Result<Cost> {
    bench.progress(&format!("the registry is {registry:?}"));
    // A runtime of its own: the registry goes with it.
    let runtime = Runtime::new()?;
    let upstream = runtime.block_on(Upstream::start())?;
    upstream.publish(PATH.into(), version_list()?);
    let home = Home::in_front_of(bench, &format!("http://{}/", upstream.address()), None, Log::Off)?;
    let home = if registry == Registry::Down { home.versions_fresh_for("1s")? } else { home };
    let larder = home.start()?;
    let path = larder_path(PATH);
    bench.block_on(warm(&bench.client, &format!("http://{}{path}", larder.address)))?;
    let _registry = match registry {
        Registry::Up => Some(runtime),
        Registry::Down => {
            runtime.shutdown_background();
            interrupt::pause(Duration::from_secs(2))?;
            None
        }
    };
    let (is_over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            // One address may not have as many connections.
            let from = Ipv4Addr::new(127, 0, 1, (number % ADDRESSES) as u8 + 1);
            let client = send_requests(from, larder.address, path.clone(), Arc::clone(&is_over), Arc::clone(&answers));
            bench.runtime.spawn(client)
        })
        .collect();
    let processes = larder.processes();
    let (began, processor_before) = (Instant::now(), processor_time(&processes));
    let mut peak_memory = 0;
    while began.elapsed() < span {
        interrupt::pause(SAMPLE_INTERVAL)?;
        peak_memory = peak_memory.max(anonymous_memory(&processes));
    }
    let processor = processor_time(&processes).saturating_sub(processor_before);
    let answers = answers.load(Ordering::Relaxed);
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        bench.block_on(client).context("a client panicked")??;
    }
    ensure!(answers > 0, "no answer in {span:?}");
    Ok(Cost { answers, processor_seconds: processor.as_secs_f64() / answers as f64, peak_memory })
}

/// Reads the list again and again on one connection, until the measurement is over.
async fn send_requests(
    from: Ipv4Addr,
    address: SocketAddr,
    path: String,
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(address).await?;
    let mut buffer = vec![0; 64 * 1024];
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(request.as_bytes()).await?;
        let mut filled = 0;
        let head = loop {
            let read = stream.read(&mut buffer[filled..]).await?;
            ensure!(read > 0, "larder closed before an answer");
            filled += read;
            if let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = String::from_utf8_lossy(&buffer[..head]).to_lowercase();
        ensure!(text.starts_with("http/1.1 200"), "not 200: {text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let Some(mut left) = length.and_then(|length| length.parse::<usize>().ok()) else { bail!("no length: {text}") };
        left = left.saturating_sub(filled - head);
        while left > 0 {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            let read = stream.read(&mut buffer).await?;
            ensure!(read > 0, "larder closed in the middle of an answer");
            left = left.saturating_sub(read);
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
