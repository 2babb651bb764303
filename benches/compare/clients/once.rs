//! One answer, with the times of its first and last byte.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use rustls::ClientConfig;

use super::http1::{self, Connection};

/// The times of an answer; both begin before the client connects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTiming {
    /// Time until the first byte of the body.
    pub(crate) first_byte: Duration,
    /// Time until the last byte of the body.
    pub(crate) last_byte: Duration,
    pub(crate) bytes: usize,
}

/// Sends one request without TLS over its own connection.
pub(crate) fn time_one(address: SocketAddr, path: &str) -> anyhow::Result<AnswerTiming> {
    time_one_over(address, None, path)
}

/// Sends one request over its own connection, with this TLS if any.
pub(crate) fn time_one_over(
    address: SocketAddr,
    tls: Option<&Arc<ClientConfig>>,
    path: &str,
) -> anyhow::Result<AnswerTiming> {
    let began = Instant::now();
    let mut connection = Connection::new(address, tls)?;
    let mut first_byte = None;
    let mut bytes = 0;
    connection.request(&http1::request_text(address, path, false, None), |received| {
        if received > 0 {
            first_byte.get_or_insert(began.elapsed());
        }
        bytes += received;
        true
    })?;
    let last_byte = began.elapsed();
    Ok(AnswerTiming { first_byte: first_byte.unwrap_or(last_byte), last_byte, bytes })
}

/// Sends the same request from this many clients at once.
pub(crate) fn time_together(address: SocketAddr, path: &str, clients: usize) -> anyhow::Result<Vec<AnswerTiming>> {
    let ready = Barrier::new(clients);
    thread::scope(|scope| {
        let client = || {
            ready.wait();
            time_one(address, path)
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let timings = threads.into_iter().map(|thread| match thread.join() {
            Ok(timing) => timing,
            Err(_) => bail!("a client panicked"),
        });
        timings.collect()
    })
}
