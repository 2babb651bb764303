//! Connects to the first address of a name that answers. An address that drops packets must not use up the deadline of
//! the others, so the next one is tried after 300 ms, as in the clients.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

/// Time between the starts of two attempts.
const ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// Tries the addresses in order. Each next attempt starts when one fails, or after
/// [`ATTEMPT_DELAY`]. Returns the first connection, or the last error.
pub(super) async fn first<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut untried = addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    attempts.extend(untried.next().map(&connect));
    loop {
        tokio::select! {
            Some(connected) = attempts.next() => match connected {
                Ok(connected) => return Ok(connected),
                Err(error) => last_error = error,
            },
            () = sleep(ATTEMPT_DELAY), if untried.len() > 0 => {}
            else => return Err(last_error),
        }
        attempts.extend(untried.next().map(&connect));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn addresses(last_octets: &[u8]) -> Vec<SocketAddr> {
        last_octets.iter().map(|octet| SocketAddr::from(([127, 0, 0, *octet], 1))).collect()
    }

    /// 127.0.0.1 connects, 127.0.0.2 refuses, every other address never reacts.
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
