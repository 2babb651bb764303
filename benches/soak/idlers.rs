//! Clients that open streams on cached content and read nothing, over HTTP/1.1 and HTTP/2: their memory is bounded, and
//! they delay no other client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::SoakSetup;
use crate::process::LarderProcess;
use crate::support::http2_frames::{get_request_frame, open_windows, preface};

/// HTTP/1.1 clients, with one stream each.
const HTTP1_CLIENTS: u64 = 24;
/// HTTP/2 clients.
const HTTP2_CLIENTS: u64 = 8;
/// Streams of each HTTP/2 client: as many as larder accepts.
const STREAMS: u32 = 64;
/// Number of idle clients.
pub(crate) const IDLERS: u64 = HTTP1_CLIENTS + HTTP2_CLIENTS;

/// The number of streams that were opened and never read.
#[derive(Default)]
pub(crate) struct UnreadStreams(AtomicU64);

impl UnreadStreams {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Opens streams, reads nothing for a while, and repeats this until the end.
pub(crate) async fn idle(setup: Arc<SoakSetup>, number: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(500 + number));
    while !setup.is_over() {
        let process = setup.processes.wait_until_running().await;
        let Some(path) = large_archive_path(&setup, &mut rng) else {
            sleep(Duration::from_millis(200)).await;
            continue;
        };
        let opens_windows = rng.gen_bool(0.5);
        let opened = async {
            match number < HTTP1_CLIENTS {
                true => over_http1(&process, &path).await.map(|stream| (stream, 1)),
                false => over_http2(&process, &path, opens_windows).await.map(|stream| (stream, u64::from(STREAMS))),
            }
        };
        let until = Instant::now() + Duration::from_millis(rng.gen_range(2000..45_000));
        if let Ok(Ok((_stream, streams))) = timeout(Duration::from_secs(10), opened).await {
            setup.unread_streams.0.fetch_add(streams, Ordering::Relaxed);
            while Instant::now() < until && !setup.is_over() && setup.processes.is_running(&process) {
                sleep(Duration::from_millis(100)).await;
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// A random archive that is much larger than a socket buffer.
fn large_archive_path(setup: &SoakSetup, rng: &mut StdRng) -> Option<String> {
    let mut large = setup.ledger.archives();
    large.retain(|(_, archive)| ["fifth", "sixth"].contains(&archive.package.name.as_str()));
    large.sort_by(|(left, _), (right, _)| left.cmp(right));
    let index = rng.gen_range(0..large.len().max(1));
    large.into_iter().nth(index).map(|(path, _)| path)
}

async fn connect(process: &LarderProcess) -> std::io::Result<TcpStream> {
    TcpStream::connect(process.base.trim_start_matches("http://")).await
}

async fn over_http1(process: &LarderProcess, path: &str) -> std::io::Result<TcpStream> {
    let mut stream = connect(process).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", process.base.trim_start_matches("http://"));
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

async fn over_http2(process: &LarderProcess, path: &str, opens_windows: bool) -> std::io::Result<TcpStream> {
    let mut stream = connect(process).await?;
    stream.write_all(&preface()).await?;
    if opens_windows {
        stream.write_all(&open_windows()).await?;
    }
    // `get_request_frame` writes the length of a path in the form for 127 bytes and more.
    let path = format!("{path}?{}", "a".repeat(100));
    for id in 0..STREAMS {
        stream.write_all(&get_request_frame(2 * id + 1, &path)).await?;
    }
    Ok(stream)
}
