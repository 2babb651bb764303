//! The clients: wrk for documents where it is installed, the bench's own clients for everything else.

mod http1;
pub(crate) mod once;
pub(crate) mod wrk;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustls::ClientConfig;

use crate::compared_server::{ClientProtocol, ComparedServer};
use crate::interrupt;
use crate::measure::Sample;
use crate::tls::Certificate;

/// The request that each client of a measurement repeats.
#[derive(Clone, Debug)]
pub(crate) struct RequestLoad {
    address: SocketAddr,
    protocol: ClientProtocol,
    path: String,
    gzip: bool,
    token: Option<String>,
    tls: Option<Arc<ClientConfig>>,
}

impl RequestLoad {
    pub(crate) fn new(
        server: &ComparedServer,
        protocol: ClientProtocol,
        path: &str,
        certificate: &Certificate,
    ) -> anyhow::Result<Self> {
        let tls = match protocol {
            ClientProtocol::Http1Tls => Some(certificate.client_config(b"http/1.1")?),
            ClientProtocol::Http1 => None,
        };
        Ok(Self { address: server.address(protocol), protocol, path: path.to_owned(), gzip: false, token: None, tls })
    }

    /// A load for a path at an address without TLS.
    pub(crate) fn to(address: SocketAddr, path: &str) -> Self {
        let protocol = ClientProtocol::Http1;
        Self { address, protocol, path: path.to_owned(), gzip: false, token: None, tls: None }
    }

    /// Sets whether the clients accept gzip.
    pub(crate) fn gzip(self, gzip: bool) -> Self {
        Self { gzip, ..self }
    }

    /// Sets the token that the clients send.
    pub(crate) fn token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }
}

/// One client whose requests are counted by their number.
pub(crate) struct Repeated {
    address: SocketAddr,
    connection: http1::Connection,
    request: String,
}

impl Repeated {
    pub(crate) fn connect(load: &RequestLoad) -> anyhow::Result<Self> {
        let request = http1::request_text(load.address, &load.path, load.gzip, load.token.as_deref());
        let connection = http1::Connection::new(load.address, load.tls.as_ref())?;
        Ok(Self { address: load.address, connection, request })
    }

    /// Sends one request for another path.
    pub(crate) fn request_path(&mut self, path: &str) -> anyhow::Result<()> {
        let request = http1::request_text(self.address, path, false, None);
        self.connection.request(&request, |_| true).map(drop)
    }

    /// Sends so many requests, one after the other.
    pub(crate) fn request(&mut self, times: usize) -> anyhow::Result<()> {
        (0..times).try_for_each(|_| self.connection.request(&self.request, |_| true).map(drop))
    }
}

/// The state shared by the clients of one measurement.
struct Shared {
    load: RequestLoad,
    /// Released when all clients are connected.
    ready: Barrier,
    is_over: AtomicBool,
    bytes: AtomicU64,
    answers: AtomicU64,
}

impl Shared {
    fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn add_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// The bytes and answers that the clients have received so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throughput {
    pub(crate) bytes: u64,
    pub(crate) answers: u64,
}

/// Runs this many clients, each with its own thread and connection. Calls `watch` when all are connected, and stops
/// them when it returns.
pub(crate) fn run<T>(
    load: RequestLoad,
    connections: usize,
    watch: impl FnOnce(&dyn Fn() -> Throughput) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let shared = Arc::new(Shared {
        load,
        ready: Barrier::new(connections + 1),
        is_over: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        answers: AtomicU64::new(0),
    });
    let client = |_| {
        let shared = Arc::clone(&shared);
        thread::Builder::new().name("client".into()).spawn(move || http1::send_requests(&shared))
    };
    let threads: Vec<_> = (0..connections).map(client).collect::<Result<_, _>>()?;
    shared.ready.wait();
    let result = watch(&|| Throughput {
        bytes: shared.bytes.load(Ordering::Relaxed),
        answers: shared.answers.load(Ordering::Relaxed),
    });
    shared.is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        match thread.join() {
            Ok(ended) => ended.with_context(|| format!("{:?}", shared.load))?,
            Err(_) => bail!("a client panicked"),
        }
    }
    result
}

/// The unit that a measurement counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedUnit {
    Bytes,
    Answers,
}

/// Runs this many clients for this time; returns their counts and the server's resources.
pub(crate) fn sample(
    server: &ComparedServer,
    load: RequestLoad,
    connections: usize,
    span: Duration,
    counted: CountedUnit,
) -> anyhow::Result<Sample> {
    let protocol = load.protocol;
    run(load, connections, |throughput| {
        let amount = |counts: Throughput| match counted {
            CountedUnit::Bytes => counts.bytes,
            CountedUnit::Answers => counts.answers,
        };
        let (began, amount_before, processor_before) =
            (Instant::now(), amount(throughput()), server.processor_seconds(protocol));
        interrupt::pause(span)?;
        let (elapsed, amount_after) = (began.elapsed(), amount(throughput()));
        Ok(Sample {
            amount: (amount_after - amount_before) as f64,
            seconds: elapsed.as_secs_f64(),
            processor_seconds: server.processor_seconds(protocol) - processor_before,
        })
    })
}
