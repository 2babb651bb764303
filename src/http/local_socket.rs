//! Unix sockets for processes of one user on one machine: made in a private folder, and checked for the user at the other
//! end. The admin service listens at one in the store's folder, and so needs no token from the commands of its own user.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::{AtFlags, Mode, OFlags, chmodat, fstat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::Body;

/// Commands that are answered at the same time. Further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// Deadline for a request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The open folder of a Unix socket. The path of a socket has 107 bytes at most on Linux: a path through the descriptor of
/// the folder is short, and leads to the same folder whatever happens to its name.
struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder of `path`; also returns the name in it.
    fn of(path: &Path) -> io::Result<(Self, &Path)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path.parent().unwrap_or(path), flags, Mode::empty())?;
        Ok((Self(folder), Path::new(name)))
    }

    /// Opens a socket in the folder, so that nothing else can take its name before it is connected to.
    #[cfg(target_os = "linux")]
    fn socket(&self, name: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        if rustix::fs::FileType::from_raw_mode(fstat(&socket)?.st_mode) != rustix::fs::FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a socket"));
        }
        Ok(socket)
    }

    /// Elsewhere a socket cannot be opened; [`path_through`] then names its path.
    #[cfg(not(target_os = "linux"))]
    fn socket(&self, _: &Path) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?)
    }
}

/// A path through an open file. Elsewhere than on Linux a path that is too long is an error.
fn path_through(file: BorrowedFd<'_>, otherwise: &Path) -> PathBuf {
    if cfg!(target_os = "linux") {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    } else {
        otherwise.to_owned()
    }
}

/// Makes a Unix socket that only this user can connect to (0600). Its folder must be private. What a killed process left
/// at the path is removed.
///
/// # Errors
/// The folder cannot be written, or its file system has no sockets.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let (folder, name) = Folder::of(path)?;
    match unlinkat(&folder.0, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let parent = path.parent().unwrap_or(path);
    let listener = UnixListener::bind(path_through(folder.0.as_fd(), parent).join(name))?;
    chmodat(&folder.0, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
    Ok(listener)
}

/// Removes the socket that [`listen`] made.
pub fn remove(path: &Path) {
    let removed = Folder::of(path).and_then(|(folder, name)| Ok(unlinkat(&folder.0, name, AtFlags::empty())?));
    if let Err(error) = removed {
        tracing::debug!(%error, path = %path.display(), "a socket could not be removed");
    }
}

/// Connects to a Unix socket of this user or of root; for root, to one of the owner of its folder. On Linux, links are not followed.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] for a socket of another user, and the system's error where nobody listens.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (folder, name) = Folder::of(path)?;
    let owner = fstat(&folder.0)?.st_uid;
    let socket = folder.socket(name)?;
    let connection = UnixStream::connect(path_through(socket.as_fd(), path)).await?;
    let peer = connection.peer_cred()?.uid();
    let own = geteuid();
    if is_trusted(peer) || own.is_root() && peer == owner {
        return Ok(connection);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {peer} listens there, and not {}", own.as_raw())))
}

/// Accepts a connection of this user or of root.
///
/// # Errors
/// The system's error, or [`io::ErrorKind::PermissionDenied`] for a process of another user: the folder of the socket is
/// private, and a system may not honour that for sockets.
pub async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let (connection, _) = listener.accept().await?;
    if is_trusted(connection.peer_cred()?.uid()) { Ok(connection) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn is_trusted(user: u32) -> bool {
    user == geteuid().as_raw() || user == 0
}

/// Answers the requests at a Unix socket until `stop`, then lets running answers end within `drain`.
pub async fn serve<H>(listener: UnixListener, handler: H, drain: Duration, stop: CancellationToken)
where
    H: Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Clone + Send + 'static,
{
    let (connections, slots) = (TaskTracker::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    let cut = CancellationToken::new();
    let _cut_when_dropped = cut.clone().drop_guard();
    let next = async || {
        let slot = Arc::clone(&slots).acquire_owned().await;
        (slot, accept(&listener).await)
    };
    while let Some((slot, accepted)) = stop.run_until_cancelled(next()).await {
        match accepted {
            Ok(connection) => {
                let serving = serve_connection(connection, handler.clone(), stop.clone());
                let cut = cut.clone();
                connections.spawn(async move {
                    cut.run_until_cancelled(serving).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a command could not connect");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if timeout(drain, connections.wait()).await.is_err() {
        tracing::warn!(commands = connections.len(), "cutting off the commands that did not end in time");
    }
}

async fn serve_connection<H>(connection: UnixStream, handler: H, stop: CancellationToken)
where
    H: Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>>,
{
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(connection), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the connection of a command ended with an error");
    }
}
