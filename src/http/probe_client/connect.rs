//! Connects to the first address of a name that answers. An address that drops packets must not use up the deadline of
//! the others, so the next one is tried after 300 ms, as in the clients.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

const HEAD_START: Duration = Duration::from_millis(300);

/// Tries the addresses in order, each with a head start. Returns the first connection, or the last error.
pub(super) async fn first<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut waiting = addresses.iter().copied();
    let mut tried = FuturesUnordered::new();
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    tried.extend(waiting.next().map(&connect));
    loop {
        tokio::select! {
            Some(connected) = tried.next() => match connected {
                Ok(connected) => return Ok(connected),
                Err(error) => failed = error,
            },
            () = sleep(HEAD_START), if waiting.len() > 0 => {}
            else => return Err(failed),
        }
        tried.extend(waiting.next().map(&connect));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn addresses(last: &[u8]) -> Vec<SocketAddr> {
        last.iter().map(|last| SocketAddr::from(([127, 0, 0, *last], 1))).collect()
    }

    /// Port 1 answers, 2 refuses, 3 accepts without answering.
    async fn connect(address: SocketAddr) -> io::Result<SocketAddr> {
        match address.to_string().as_str() {
            "127.0.0.1:1" => Ok(address),
            "127.0.0.2:1" => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => pending().await,
        }
    }

    #[tokio::test]
    async fn a_silent_address_does_not_delay_the_others() {
        for order in [&[1][..], &[3, 1], &[2, 1], &[3, 2, 1], &[3, 3, 3, 1], &[1, 3]] {
            let connected = first(&addresses(order), connect).await.map_err(|error| error.kind());
            assert_eq!(connected, Ok(addresses(&[1])[0]), "{order:?}");
        }
        let refused = first(&addresses(&[2, 2]), connect).await.map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
        assert!(first(&[], connect).await.is_err());
    }
}
