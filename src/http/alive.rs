//! Whether the listeners of this very process answer: asked over their own sockets, as anybody would. Says nothing of
//! upstreams or the store: no restart mends those.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::admin_client;
use super::listener::Crowded;

/// No request in any protocol that is spoken here: refused before it reaches a handler, a log or a counter, with TLS
/// and without.
const KNOCK: &[u8] = b"larder?\r\n\r\n";

/// A listener that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Silent {
    /// The main one.
    #[error("the main listener on {0} does not answer: {1}")]
    Main(SocketAddr, std::io::Error),
    /// The admin one.
    #[error(transparent)]
    Admin(#[from] admin_client::NoAnswer),
}

/// A listener of ours.
#[derive(Debug, Clone, Copy)]
pub struct Listening<'a> {
    /// Where.
    pub at: SocketAddr,
    /// Whether it lets anybody else in.
    pub crowded: &'a Crowded,
}

/// Asks both. Waits for as long as the caller does.
///
/// A listener that has all the connections it may have lets new ones wait: that it is busy is no sign of death, and who
/// asks turns on the same runtime.
pub async fn listeners_answer(main: Listening<'_>, admin: Listening<'_>) -> Result<(), Silent> {
    if admin.can_be_asked().await {
        admin_client::get(admin.at, "/healthz", None).await?;
    }
    if main.can_be_asked().await {
        knock(main.at).await.map_err(|error| Silent::Main(main.at, error))?;
    }
    Ok(())
}

impl Listening<'_> {
    async fn can_be_asked(self) -> bool {
        !self.crowded.is_so() && is_of_this_machine(self.at).await
    }
}

/// Whether the address is this machine's now. One that a standby shares, or that was leased, may be another's: what that
/// answers, or nobody does, says nothing of this process. Nothing is sent: the system only says which address of its own
/// it would send from, and that is the very same one if it is here.
async fn is_of_this_machine(address: SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let anywhere = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Without a descriptor left nobody is answered either: then it is asked, and found silent.
    let Ok(socket) = UdpSocket::bind((anywhere, 0)).await else { return true };
    let from = match socket.connect(address).await {
        Ok(()) => socket.local_addr(),
        Err(unreachable) => Err(unreachable),
    };
    from.is_ok_and(|from| from.ip() == address.ip())
}

/// Whatever comes back shows that a connection was accepted and is attended to.
async fn knock(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(KNOCK).await?;
    socket.read_u8().await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::{Request, Response};
    use hyper::body::Incoming;
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    use super::super::listener::{Limits, Peer, serve};
    use super::super::{Body, respond};
    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(3600);

    /// A listener that lets this many in.
    async fn listening(connections: usize, crowded: &Crowded) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = |_: Request<Incoming>, _: Peer| async { healthy() };
        // Who is in stays in.
        let limits = Limits { connections, header_time: LONG, idle: LONG, ..Limits::default() };
        tokio::spawn(serve(listener, None, limits, crowded.clone(), handler, CancellationToken::new()));
        address
    }

    fn healthy() -> Response<Body> {
        respond::word(http::StatusCode::OK, "ok")
    }

    #[tokio::test]
    async fn two_listeners_that_answer_are_alive_and_one_that_is_silent_is_not() {
        let at_ease = Crowded::default();
        let ask = |main, admin| async move {
            let crowded = &Crowded::default();
            listeners_answer(Listening { at: main, crowded }, Listening { at: admin, crowded }).await
        };
        let [main, admin] = [listening(4, &at_ease).await, listening(4, &at_ease).await];
        timeout(WITHIN, ask(main, admin)).await.unwrap().unwrap();

        // It is accepted by the system, and by nobody else.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().map(|at| (silent, at)).unwrap();
        for (main, admin) in [(silent.1, admin), (main, silent.1)] {
            let asked = timeout(Duration::from_millis(300), ask(main, admin)).await;
            assert!(!matches!(asked, Ok(Ok(()))), "{asked:?}");
        }
        drop(silent.0);
        let error = timeout(WITHIN, ask(silent.1, admin)).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(&format!("the main listener on {}", silent.1)), "{error}");
    }

    /// A restart would cut all who are served.
    #[tokio::test]
    async fn a_listener_that_serves_as_many_as_it_may_is_alive() {
        let (crowded, at_ease) = (Crowded::default(), Crowded::default());
        let [full, other] = [listening(1, &crowded).await, listening(4, &at_ease).await];
        let [full, other] = [Listening { at: full, crowded: &crowded }, Listening { at: other, crowded: &at_ease }];
        let is_so = async |so: bool| {
            while crowded.is_so() != so {
                tokio::task::yield_now().await;
            }
        };
        for (main, admin) in [(full, other), (other, full)] {
            let served = TcpStream::connect(full.at).await.unwrap();
            timeout(WITHIN, is_so(true)).await.unwrap();
            timeout(WITHIN, listeners_answer(main, admin)).await.unwrap().unwrap();
            drop(served);
            timeout(WITHIN, is_so(false)).await.unwrap();
            timeout(WITHIN, listeners_answer(main, admin)).await.unwrap().unwrap();
        }
    }

    /// Addresses for documentation, which nobody has; and nobody answers at them.
    #[tokio::test]
    async fn a_listener_whose_address_is_another_machines_is_not_asked() {
        let crowded = &Crowded::default();
        for elsewhere in ["203.0.113.1:8080", "[2001:db8::1]:8080"] {
            let gone = Listening { at: elsewhere.parse().unwrap(), crowded };
            timeout(WITHIN, listeners_answer(gone, gone)).await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_knock_is_answered_with_tls_and_without() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        #[expect(clippy::disallowed_methods, reason = "tests make their own files")]
        for (path, pem) in [(&certificate, made.cert.pem()), (&key, made.signing_key.serialize_pem())] {
            std::fs::write(path, pem).unwrap();
        }
        let tls = Arc::new(super::super::tls::Tls::load(&certificate, &key).unwrap());
        for tls in [None, Some(tls)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let handler = |_: Request<Incoming>, _: Peer| async { panic!("it is no request") as Response<Body> };
            tokio::spawn(serve(
                listener,
                tls,
                Limits::default(),
                Crowded::default(),
                handler,
                CancellationToken::new(),
            ));
            timeout(WITHIN, knock(address)).await.unwrap().unwrap();
        }
    }
}
