//! Liveness of this process for the service manager: requests to its own listeners over their sockets, and a check of
//! the pool of blocking threads. Upstreams and the store do not count: a restart repairs neither.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use parking_lot::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::admin_client::{AdminClient, AdminClientError};
use super::connection_slots::{ConnectionSlots, PeerClass};

/// Bytes that are no request in any protocol that larder speaks, with TLS or without. They are refused before a handler,
/// a log or a counter sees them.
const LIVENESS_BYTES: &[u8] = b"larder?\r\n\r\n";

/// The longest wait for a blocking thread: longer than any burst of work.
pub const POOL_TIMEOUT: Duration = Duration::from_secs(60);

/// The time within which a working disk responds.
const DISK_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of this process that did not answer.
#[derive(Debug, thiserror::Error)]
pub enum LivenessError {
    /// The pool of blocking threads.
    #[error(
        "no blocking task got a thread for {} s, although the disk works: larder's own work holds all threads", .0.as_secs()
    )]
    Pool(Duration),
    /// The main listener.
    #[error("the main listener on {0} does not answer: {1}")]
    Main(SocketAddr, std::io::Error),
    /// The admin listener.
    #[error(transparent)]
    Admin(#[from] AdminClientError),
}

/// Checks the pool of blocking threads with a task that does nothing.
///
/// Threads that all wait for a disk are no reason to restart: the next process would wait for the same disk. So while
/// the task gets no thread, the disk is tested on a thread outside the pool. The pool counts as starved only while the
/// disk works.
#[derive(Debug)]
pub struct BlockingPoolCheck {
    limit: Duration,
    last: Mutex<LastTests>,
}

/// The last test of the pool, and of the disk.
#[derive(Debug, Default)]
struct LastTests {
    /// The empty task, and the time at which it was queued.
    empty_task: Option<(JoinHandle<()>, Instant)>,
    /// Returns true if the disk works.
    disk_test: Option<std::thread::JoinHandle<bool>>,
}

impl BlockingPoolCheck {
    /// Checks the pool of this runtime; `limit` is the longest wait for a thread.
    pub fn new(limit: Duration) -> Self {
        Self { limit, last: Mutex::default() }
    }

    /// Checks the empty task, and queues the next one after it ran. `write_to_disk` returns true on success. Does not
    /// block.
    ///
    /// # Errors
    /// [`LivenessError::Pool`] if no task got a thread in time although the disk worked at its last test.
    pub fn check(&self, write_to_disk: impl FnOnce() -> bool + Send + 'static) -> Result<(), LivenessError> {
        let LastTests { empty_task, disk_test } = &mut *self.last.lock();
        let finished_test = disk_test.take_if(|test| test.is_finished());
        let Some((_, queued_at)) = empty_task.as_ref().filter(|(task, _)| !task.is_finished()) else {
            // The finished test is dropped: it says nothing about a later starvation.
            *empty_task = Some((spawn_blocking(|| ()), Instant::now()));
            return Ok(());
        };
        let waited = queued_at.elapsed();
        // While a test still runs, the disk counts as hanging.
        if waited < self.limit || disk_test.is_some() {
            *disk_test = disk_test.take().or(finished_test);
            return Ok(());
        }
        let test = std::thread::Builder::new().name("disk".to_owned()).spawn(move || {
            let began = Instant::now();
            write_to_disk() && began.elapsed() < DISK_TIMEOUT
        });
        *disk_test = test
            .inspect_err(|error| tracing::warn!(%error, "the disk could not be tested: no thread could be started"))
            .ok();
        match finished_test.map(std::thread::JoinHandle::join) {
            Some(Ok(true)) => Err(LivenessError::Pool(waited)),
            _ => Ok(()),
        }
    }
}

/// A listener to check.
#[derive(Debug, Clone, Copy)]
pub struct ListenerTarget<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its connections.
    pub slots: &'a ConnectionSlots,
    /// The class in which this listener counts a connection from this machine.
    pub peer_class: PeerClass,
}

/// Sends a request to both listeners. The caller sets the deadline.
///
/// A listener without a free slot is not checked, because it lets new connections wait or closes them. Being busy is no
/// sign of death. A runtime that hangs is noticed by the caller, which runs on it and would hang too.
pub async fn check_listeners(main: ListenerTarget<'_>, admin: ListenerTarget<'_>) -> Result<(), LivenessError> {
    if admin.can_be_checked().await {
        AdminClient::unproven(admin.address).get_text("/healthz").await?;
    }
    if main.can_be_checked().await {
        send_liveness_bytes(main.address).await.map_err(|error| LivenessError::Main(main.address, error))?;
    }
    Ok(())
}

impl ListenerTarget<'_> {
    async fn can_be_checked(self) -> bool {
        // A connection to our own address comes from that address.
        !self.slots.is_full_for(self.address.ip().to_canonical(), self.peer_class) && is_own_address(self.address).await
    }
}

/// Returns true if the address belongs to this machine now. A shared or leased address may have moved to another
/// machine, whose silence says nothing about this process. Sends nothing: the system only reports its source address
/// for that destination.
async fn is_own_address(address: SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let unspecified = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Without a free file descriptor clients are not answered either: the check should fail then, so it goes on.
    let Ok(socket) = UdpSocket::bind((unspecified, 0)).await else { return true };
    let source = socket.connect(address).await.and_then(|()| socket.local_addr());
    source.is_ok_and(|source| source.ip() == address.ip())
}

/// Sends [`LIVENESS_BYTES`]. Any reaction shows that the listener accepts and serves connections.
async fn send_liveness_bytes(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(LIVENESS_BYTES).await?;
    socket.read_u8().await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::Response;
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    use super::super::admin::SERVER;
    use super::super::connection_threads::ConnectionThreads;
    use super::super::listener::{Handler, Limits, Listener as ServedListener, Transport, serve};
    use super::super::{Body, RequestMetrics, response};
    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);
    const ONE_HOUR: Duration = Duration::from_secs(3600);

    /// A listener on loopback that counts this machine among its clients.
    struct Listener {
        address: SocketAddr,
        slots: ConnectionSlots,
    }

    impl Listener {
        /// Starts a listener with these limits, which closes no idle connection.
        async fn with_limits(limits: Limits) -> Self {
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            let handler: Handler = Arc::new(|_, _| Box::pin(async { healthy() }));
            let limits = Limits { header_time: ONE_HOUR, idle: ONE_HOUR, ..limits };
            let slots = ConnectionSlots::new(&limits, RequestMetrics::default());
            let threads = ConnectionThreads::of_this_runtime();
            let listener =
                ServedListener { socket, transport: Transport::Plain, limits, slots: slots.clone(), threads };
            tokio::spawn(serve(listener, |_| PeerClass::Client, handler, CancellationToken::new()));
            Self { address, slots }
        }

        fn listener_check(&self) -> ListenerTarget<'_> {
            self.check_at(self.address)
        }

        /// Checks another address with the slots of this listener.
        fn check_at(&self, address: SocketAddr) -> ListenerTarget<'_> {
            ListenerTarget { address, slots: &self.slots, peer_class: PeerClass::Client }
        }
    }

    fn healthy() -> Response<Body> {
        let mut response = response::plain_text(http::StatusCode::OK, "ok");
        response.headers_mut().insert(http::header::SERVER, SERVER);
        response
    }

    #[tokio::test]
    async fn the_check_fails_if_one_of_two_listeners_is_silent() {
        let [main, admin] =
            [Listener::with_limits(Limits::default()).await, Listener::with_limits(Limits::default()).await];
        timeout(TEST_TIMEOUT, check_listeners(main.listener_check(), admin.listener_check())).await.unwrap().unwrap();

        // The kernel accepts the connection; no program does.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().map(|address| (silent, address)).unwrap();
        for (main_address, admin_address) in [(silent.1, admin.address), (main.address, silent.1)] {
            let answered = check_listeners(main.check_at(main_address), admin.check_at(admin_address));
            let answered = timeout(Duration::from_millis(300), answered).await;
            assert!(!matches!(answered, Ok(Ok(()))), "{answered:?}");
        }
        drop(silent.0);
        let answered = check_listeners(main.check_at(silent.1), admin.listener_check());
        let error = timeout(TEST_TIMEOUT, answered).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(&format!("the main listener on {}", silent.1)), "{error}");
    }

    /// A restart would cut all connections in use.
    #[tokio::test]
    async fn a_full_listener_is_alive() {
        let all_taken = Limits { connections: 1, ..Limits::default() };
        let all_of_this_machine_taken = Limits { each_address: 1, ..Limits::default() };
        for limits in [all_taken, all_of_this_machine_taken] {
            let [full, other] = [Listener::with_limits(limits).await, Listener::with_limits(Limits::default()).await];
            let wait_until_full_is = async |is_full: bool| {
                while full.slots.is_full_for(full.address.ip(), PeerClass::Client) != is_full {
                    tokio::task::yield_now().await;
                }
            };
            for (main, admin) in [(&full, &other), (&other, &full)] {
                let served = TcpStream::connect(full.address).await.unwrap();
                timeout(TEST_TIMEOUT, wait_until_full_is(true)).await.unwrap();
                timeout(TEST_TIMEOUT, check_listeners(main.listener_check(), admin.listener_check()))
                    .await
                    .unwrap()
                    .unwrap();
                drop(served);
                timeout(TEST_TIMEOUT, wait_until_full_is(false)).await.unwrap();
                timeout(TEST_TIMEOUT, check_listeners(main.listener_check(), admin.listener_check()))
                    .await
                    .unwrap()
                    .unwrap();
                // The probe has disconnected, too.
                timeout(TEST_TIMEOUT, wait_until_full_is(false)).await.unwrap();
            }
        }
    }

    /// Documentation addresses belong to no machine.
    #[tokio::test]
    async fn a_listener_address_that_moved_to_another_machine_is_not_checked() {
        let listener = Listener::with_limits(Limits::default()).await;
        for foreign_address in ["203.0.113.1:8080", "[2001:db8::1]:8080"] {
            let moved = listener.check_at(foreign_address.parse().unwrap());
            timeout(TEST_TIMEOUT, check_listeners(moved, moved)).await.unwrap().unwrap();
        }
    }

    /// Promise 11: threads blocked forever by larder's own work are noticed; threads blocked by a disk are not.
    #[test]
    fn a_starved_pool_counts_only_while_the_disk_works() {
        let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let pool = BlockingPoolCheck::new(Duration::from_millis(20));
            let short_pause = || tokio::time::sleep(Duration::from_millis(20));
            let wait_until_starved_is = async |is_starved: bool| {
                // A disk test of before, which succeeded, must not be left over for the checks with a failing disk.
                while pool.check(move || is_starved).is_err() != is_starved {
                    short_pause().await;
                }
            };
            for _ in 0..2 {
                timeout(TEST_TIMEOUT, wait_until_starved_is(false)).await.expect("nothing holds the threads");
                let blocked: Vec<_> = (0..2).map(|_| std::sync::mpsc::channel::<()>()).collect();
                let (senders, receivers): (Vec<_>, Vec<_>) = blocked.into_iter().unzip();
                let tasks: Vec<_> = receivers.into_iter().map(|end| spawn_blocking(move || end.recv())).collect();
                for _ in 0..10 {
                    short_pause().await;
                    pool.check(|| false).expect("the disk fails");
                }
                timeout(TEST_TIMEOUT, wait_until_starved_is(true)).await.expect("the disk works");
                drop(senders);
                for task in tasks {
                    assert!(task.await.unwrap().is_err());
                }
            }
            timeout(TEST_TIMEOUT, wait_until_starved_is(false)).await.expect("the threads are free again");
            let (end, blocked) = std::sync::mpsc::channel::<()>();
            let blocked = Arc::new(Mutex::new(blocked));
            let block = || {
                let blocked = Arc::clone(&blocked);
                move || blocked.lock().recv().is_ok()
            };
            let tasks: Vec<_> = (0..2).map(|_| spawn_blocking(block())).collect();
            for _ in 0..10 {
                short_pause().await;
                pool.check(block()).expect("the disk hangs");
            }
            drop(end);
            for task in tasks {
                assert!(!task.await.unwrap());
            }
        });
    }

    #[tokio::test]
    async fn liveness_bytes_are_answered_with_tls_and_without() {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        #[expect(clippy::disallowed_methods, reason = "tests make their own files")]
        for (path, pem) in [(&certificate, generated.cert.pem()), (&key, generated.signing_key.serialize_pem())] {
            std::fs::write(path, pem).unwrap();
        }
        let tls = Arc::new(super::super::tls::Tls::load(&certificate, &key).unwrap());
        for transport in [Transport::Plain, Transport::Tls(tls)] {
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            let handler: Handler = Arc::new(|_, _| Box::pin(async { panic!("the liveness bytes are not a request") }));
            let limits = Limits::default();
            let slots = ConnectionSlots::new(&limits, RequestMetrics::default());
            let threads = ConnectionThreads::of_this_runtime();
            let listener = ServedListener { socket, transport, limits, slots, threads };
            tokio::spawn(serve(listener, |_| PeerClass::Client, handler, CancellationToken::new()));
            timeout(TEST_TIMEOUT, send_liveness_bytes(address)).await.unwrap().unwrap();
        }
    }
}
