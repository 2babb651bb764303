//! Liveness of this process for the service manager: requests to its own listeners over their sockets, and a check of
//! the pool of blocking threads. Upstreams and the store do not count: a restart repairs neither.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::admin_client;
use super::connection_slots::{ConnectionSlots, PeerClass};

/// No request in any protocol that larder speaks, with TLS or without: refused before it reaches a handler, a log or a
/// counter.
const LIVENESS_BYTES: &[u8] = b"larder?\r\n\r\n";

/// The longest wait for a blocking thread: longer than any burst of work.
pub const POOL_WITHIN: Duration = Duration::from_secs(60);

/// The time within which a working disk responds.
const DISK_WITHIN: Duration = Duration::from_secs(1);

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
    Admin(#[from] admin_client::AdminClientError),
}

/// Checks the pool of blocking threads with a task that does nothing.
///
/// Threads that all wait for a disk are no reason to restart: the next process would wait for the same disk. So while
/// the task gets no thread, the disk is tested on a thread outside the pool. The pool counts as starved only while the
/// disk works.
#[derive(Debug)]
pub struct BlockingPoolCheck {
    limit: Duration,
    /// The empty task and its start time.
    waiting: Mutex<Option<(JoinHandle<()>, Instant)>>,
    disk: Arc<DiskCheck>,
}

/// Result of the last disk test.
#[derive(Debug, Default)]
struct DiskCheck {
    is_being_tried: AtomicBool,
    worked: AtomicBool,
}

impl BlockingPoolCheck {
    /// Checks the pool of this runtime; `within` is the longest wait for a thread.
    pub fn new(limit: Duration) -> Self {
        Self { limit, waiting: Mutex::default(), disk: Arc::default() }
    }

    /// Reports the state since the last call; `disk` writes to the disk and returns true on success. Does not block.
    ///
    /// # Errors
    /// [`LivenessError::Pool`] if no task got a thread in time although the disk worked at its last test.
    pub fn check(&self, disk: impl FnOnce() -> bool + Send + 'static) -> Result<(), LivenessError> {
        let mut waiting = self.waiting.lock();
        let Some((_, since)) = waiting.as_ref().filter(|(task, _)| !task.is_finished()) else {
            *waiting = Some((spawn_blocking(|| ()), Instant::now()));
            self.disk.worked.store(false, Ordering::Release);
            return Ok(());
        };
        let waited = since.elapsed();
        if waited < self.limit {
            return Ok(());
        }
        if DiskCheck::take_result_and_retest(&self.disk, disk) { Err(LivenessError::Pool(waited)) } else { Ok(()) }
    }
}

impl DiskCheck {
    /// Returns the result of the last disk test, and starts another unless one hangs.
    fn take_result_and_retest(disk: &Arc<Self>, attempt: impl FnOnce() -> bool + Send + 'static) -> bool {
        if disk.is_being_tried.swap(true, Ordering::AcqRel) {
            return false;
        }
        let worked = disk.worked.swap(false, Ordering::AcqRel);
        let tried = Arc::clone(disk);
        let trying = std::thread::Builder::new().name("disk".to_owned()).spawn(move || {
            let began = Instant::now();
            let works = attempt() && began.elapsed() < DISK_WITHIN;
            tried.worked.store(works, Ordering::Release);
            tried.is_being_tried.store(false, Ordering::Release);
        });
        if let Err(error) = trying {
            tracing::warn!(%error, "the disk could not be tried: no thread for it");
            disk.is_being_tried.store(false, Ordering::Release);
        }
        worked
    }
}

/// One of our listeners.
#[derive(Debug, Clone, Copy)]
pub struct ListenerCheck<'a> {
    /// The address.
    pub address: SocketAddr,
    /// The connection slots.
    pub slots: &'a ConnectionSlots,
    /// The peer class of this machine at this listener.
    pub peer_class: PeerClass,
}

/// Asks both listeners. The caller sets the deadline.
///
/// A listener without a free slot is not asked, because it lets new connections wait or closes them. Being busy is no
/// sign of death, and the caller runs on the same runtime.
pub async fn check_listeners(main: ListenerCheck<'_>, admin: ListenerCheck<'_>) -> Result<(), LivenessError> {
    if admin.is_reachable().await {
        admin_client::get(admin.address, "/healthz", None).await?;
    }
    if main.is_reachable().await {
        send_liveness_bytes(main.address).await.map_err(|error| LivenessError::Main(main.address, error))?;
    }
    Ok(())
}

impl ListenerCheck<'_> {
    async fn is_reachable(self) -> bool {
        // A connection to our own address comes from that address.
        !self.slots.is_full_for(self.address.ip().to_canonical(), self.peer_class)
            && is_of_this_machine(self.address).await
    }
}

/// Returns true if the address belongs to this machine now. A shared or leased address may have moved to another
/// machine, whose silence says nothing about this process. Sends nothing: the system only reports its source address
/// for that destination.
async fn is_of_this_machine(address: SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let anywhere = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Without a free file descriptor clients are not answered either: the check should fail then, so it goes on.
    let Ok(socket) = UdpSocket::bind((anywhere, 0)).await else { return true };
    let from = match socket.connect(address).await {
        Ok(()) => socket.local_addr(),
        Err(unreachable) => Err(unreachable),
    };
    from.is_ok_and(|from| from.ip() == address.ip())
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

    use http::{Request, Response};
    use hyper::body::Incoming;
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    use super::super::admin::SERVER;
    use super::super::listener::{Limits, Peer, serve};
    use super::super::{Body, RequestMetrics, response};
    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(3600);

    /// A listener on loopback that counts this machine among its clients.
    struct Listener {
        address: SocketAddr,
        slots: ConnectionSlots,
    }

    impl Listener {
        /// Starts a listener with these limits, which closes no idle connection.
        async fn with_limits(limits: Limits) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let handler = |_: Request<Incoming>, _: Peer| async { healthy() };
            let limits = Limits { header_time: LONG, idle: LONG, ..limits };
            let places = ConnectionSlots::new(&limits, RequestMetrics::default());
            let classify = |_| PeerClass::Client;
            tokio::spawn(serve(listener, None, limits, places.clone(), classify, handler, CancellationToken::new()));
            Self { address, slots: places }
        }

        fn listener_check(&self) -> ListenerCheck<'_> {
            self.asked_at(self.address)
        }

        /// Checks another address with the slots of this listener.
        fn asked_at(&self, address: SocketAddr) -> ListenerCheck<'_> {
            ListenerCheck { address, slots: &self.slots, peer_class: PeerClass::Client }
        }
    }

    fn healthy() -> Response<Body> {
        let mut response = response::plain_text(http::StatusCode::OK, "ok");
        response.headers_mut().insert(http::header::SERVER, SERVER);
        response
    }

    #[tokio::test]
    async fn two_listeners_that_answer_are_alive_and_one_that_is_silent_is_not() {
        let [main, admin] =
            [Listener::with_limits(Limits::default()).await, Listener::with_limits(Limits::default()).await];
        timeout(WITHIN, check_listeners(main.listener_check(), admin.listener_check())).await.unwrap().unwrap();

        // The kernel accepts the connection; no program does.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().map(|address| (silent, address)).unwrap();
        for (of_main, of_admin) in [(silent.1, admin.address), (main.address, silent.1)] {
            let answered = check_listeners(main.asked_at(of_main), admin.asked_at(of_admin));
            let answered = timeout(Duration::from_millis(300), answered).await;
            assert!(!matches!(answered, Ok(Ok(()))), "{answered:?}");
        }
        drop(silent.0);
        let answered = check_listeners(main.asked_at(silent.1), admin.listener_check());
        let error = timeout(WITHIN, answered).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(&format!("the main listener on {}", silent.1)), "{error}");
    }

    /// A restart would cut all connections in use.
    #[tokio::test]
    async fn a_full_listener_is_alive() {
        let all_taken = Limits { connections: 1, ..Limits::default() };
        let all_of_this_machine_taken = Limits { each_address: 1, ..Limits::default() };
        for limits in [all_taken, all_of_this_machine_taken] {
            let [full, other] = [Listener::with_limits(limits).await, Listener::with_limits(Limits::default()).await];
            let keeps_out = async |so: bool| {
                while full.slots.is_full_for(full.address.ip(), PeerClass::Client) != so {
                    tokio::task::yield_now().await;
                }
            };
            for (main, admin) in [(&full, &other), (&other, &full)] {
                let served = TcpStream::connect(full.address).await.unwrap();
                timeout(WITHIN, keeps_out(true)).await.unwrap();
                timeout(WITHIN, check_listeners(main.listener_check(), admin.listener_check())).await.unwrap().unwrap();
                drop(served);
                timeout(WITHIN, keeps_out(false)).await.unwrap();
                timeout(WITHIN, check_listeners(main.listener_check(), admin.listener_check())).await.unwrap().unwrap();
                // The probe has disconnected, too.
                timeout(WITHIN, keeps_out(false)).await.unwrap();
            }
        }
    }

    /// Documentation addresses belong to no machine.
    #[tokio::test]
    async fn a_listener_whose_address_is_another_machines_is_not_asked() {
        let listener = Listener::with_limits(Limits::default()).await;
        for elsewhere in ["203.0.113.1:8080", "[2001:db8::1]:8080"] {
            let gone = listener.asked_at(elsewhere.parse().unwrap());
            timeout(WITHIN, check_listeners(gone, gone)).await.unwrap().unwrap();
        }
    }

    /// DESIGN, promise 11: threads blocked forever by larder's own work are noticed; threads blocked by a disk are not.
    #[test]
    fn a_starved_pool_counts_only_while_the_disk_works() {
        let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let pool = BlockingPoolCheck::new(Duration::from_millis(20));
            let a_while = || tokio::time::sleep(Duration::from_millis(20));
            let until = async |is_starved: bool| {
                while pool.check(|| true).is_err() != is_starved {
                    a_while().await;
                }
            };
            for _ in 0..2 {
                timeout(WITHIN, until(false)).await.expect("nothing holds the threads");
                let blocked: Vec<_> = (0..2).map(|_| std::sync::mpsc::channel::<()>()).collect();
                let (ends, holding): (Vec<_>, Vec<_>) = blocked.into_iter().unzip();
                let tasks: Vec<_> = holding.into_iter().map(|end| spawn_blocking(move || end.recv())).collect();
                for _ in 0..10 {
                    a_while().await;
                    pool.check(|| false).expect("the disk fails");
                }
                timeout(WITHIN, until(true)).await.expect("the disk works");
                drop(ends);
                for task in tasks {
                    assert!(task.await.unwrap().is_err());
                }
            }
            timeout(WITHIN, until(false)).await.expect("it is over");
            let (end, blocked) = std::sync::mpsc::channel::<()>();
            let blocked = Arc::new(Mutex::new(blocked));
            let hold = || {
                let blocked = Arc::clone(&blocked);
                move || blocked.lock().recv().is_ok()
            };
            let tasks: Vec<_> = (0..2).map(|_| spawn_blocking(hold())).collect();
            for _ in 0..10 {
                a_while().await;
                pool.check(hold()).expect("the disk hangs");
            }
            drop(end);
            for task in tasks {
                assert!(!task.await.unwrap());
            }
        });
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
            let handler = |_: Request<Incoming>, _: Peer| async { panic!("it is not a request") as Response<Body> };
            let limits = Limits::default();
            let places = ConnectionSlots::new(&limits, RequestMetrics::default());
            let (classify, stop) = (|_| PeerClass::Client, CancellationToken::new());
            tokio::spawn(serve(listener, tls, limits, places, classify, handler, stop));
            timeout(WITHIN, send_liveness_bytes(address)).await.unwrap().unwrap();
        }
    }
}
