//! Clients that ask for cached content and read nothing: their memory is bounded, and they delay no other client.

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

/// Number of idle clients.
pub(crate) const IDLERS: u64 = 64;

/// The number of answers that were asked for and never read.
#[derive(Default)]
pub(crate) struct UnreadAnswers(AtomicU64);

impl UnreadAnswers {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Asks, reads nothing for a while, and repeats this until the end.
pub(crate) async fn idle(setup: Arc<SoakSetup>, number: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(500 + number));
    while !setup.is_over() {
        let process = setup.processes.wait_until_running().await;
        let Some(path) = large_archive_path(&setup, &mut rng) else {
            sleep(Duration::from_millis(200)).await;
            continue;
        };
        let until = Instant::now() + Duration::from_millis(rng.gen_range(2000..45_000));
        if let Ok(Ok(_stream)) = timeout(Duration::from_secs(10), ask(&process, &path)).await {
            setup.unread_answers.0.fetch_add(1, Ordering::Relaxed);
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

async fn ask(process: &LarderProcess, path: &str) -> std::io::Result<TcpStream> {
    let address = process.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}
