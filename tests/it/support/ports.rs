//! Reserved ports: for configurations that must name one, and programs that take no port 0.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that systems give away for port 0 and for connections, so that no other test is given one of these.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A free port of 127.0.0.1; each is given out once.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Two runs of the tests at one time begin at different places.
    let begin = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    loop {
        let place = (begin + u32::from(GIVEN.fetch_add(1, Ordering::Relaxed))) % u32::from(COUNT);
        let port = FIRST + place as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
