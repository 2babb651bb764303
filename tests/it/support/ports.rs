//! Reserved ports: for configurations that must name one, and programs that take no port 0.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port of a range below the ephemeral ports, so that no socket on port 0 gets one of these.
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 12_000;

/// A free port of 127.0.0.1; each port is returned once.
pub(crate) fn free_port() -> u16 {
    static RESERVED_COUNT: AtomicU16 = AtomicU16::new(0);
    // Test runs at the same time start at different ports: neighbouring process ids are 97 ports apart.
    let start = std::process::id().wrapping_mul(97) % u32::from(PORT_COUNT);
    loop {
        let offset = (start + u32::from(RESERVED_COUNT.fetch_add(1, Ordering::Relaxed))) % u32::from(PORT_COUNT);
        let port = FIRST_PORT + offset as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
