//! Hands the larder of one run on to another. A run whose larder others use gives each of them both listening sockets and the
//! key of the runs' ids, over a Unix socket in its private folder, and keeps that connection until it has released the store. Its end tells the others
//! to take over: they already have the sockets, so clients that connect meanwhile wait and are never refused.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::Sockets;
use crate::http::{Runs, local_socket};
use crate::protocol::run::{RunId, RunIds, RunReport};

/// The longest wait for a message of the other run.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for the files of a run, which may still have requests in flight.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Size limit of the files of a run, as they are sent.
const MAX_REPORT_BYTES: u64 = 8 * 1024 * 1024;
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Runs that use one larder at the same time.
const MAX_FOLLOWERS: usize = 256;

/// The sockets and the key with which a run continues the larder of another.
#[derive(Debug)]
pub(super) struct Continuation {
    pub(super) sockets: Sockets,
    /// The ids of the runs that use the larder.
    pub(super) ids: RunIds,
}

/// The connection of a run to the run whose larder it uses.
#[derive(Debug)]
pub(super) struct Following {
    connection: UnixStream,
    /// This run, as the larder knows it.
    pub(super) id: RunId,
}

impl Following {
    /// Connects to the run that has this Unix socket. Returns what its larder is continued with, too. `id` names this run, with
    /// those ids.
    pub(super) async fn connect(
        path: &Path,
        id: impl FnOnce(&RunIds) -> io::Result<RunId>,
    ) -> io::Result<(Self, Continuation)> {
        let exchange = async {
            let mut connection = local_socket::connect(path).await?;
            let continuation = connection.async_io(Interest::READABLE, || receive(&connection)).await?;
            let id = id(&continuation.ids)?;
            connection.write_all(id.to_string().as_bytes()).await?;
            Ok((Self { connection, id }, continuation))
        };
        timeout(MESSAGE_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Waits until the other run has released the store, or until `leave`. Also returns the files that it has sent this run:
    /// none where it was killed.
    pub(super) async fn until_end(mut self, leave: &CancellationToken) -> (FollowingEnd, RunReport) {
        let mut report = Vec::new();
        let end = {
            let (connection, mut leaving) = self.connection.split();
            let mut connection = connection.take(MAX_REPORT_BYTES);
            let mut reading = pin!(connection.read_to_end(&mut report));
            tokio::select! {
                _ = &mut reading => FollowingEnd::Released,
                () = leave.cancelled() => {
                    // The other run answers with the files, as it does at its own end.
                    let _ = leaving.shutdown().await;
                    let _ = timeout(REPORT_TIMEOUT, reading).await;
                    FollowingEnd::Left
                }
            }
        };
        (end, serde_json::from_slice(&report).unwrap_or_default())
    }
}

/// The end of following a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowingEnd {
    /// The other run has released the store.
    Released,
    /// This run has ended first.
    Left,
}

/// Gives the sockets to every run that connects, until `ended`. A run that leaves, and each run at the end, gets the list of
/// its files; then its connection ends.
pub(super) async fn serve(listener: UnixListener, sockets: Sockets, ids: RunIds, runs: Runs, ended: CancellationToken) {
    let mut followers = JoinSet::new();
    while let Some(accepted) = ended.run_until_cancelled(local_socket::accept(&listener)).await {
        while followers.try_join_next().is_some() {}
        match (accepted, sockets.duplicate()) {
            (Ok(connection), Ok(sockets)) if followers.len() < MAX_FOLLOWERS => {
                let continuation = Continuation { sockets, ids: ids.clone() };
                followers.spawn(give(connection, continuation, runs.clone(), ended.clone()));
            }
            (Ok(_), _) => {}
            // Too few file descriptors: an immediate retry would only spin.
            (Err(_), _) => sleep(ACCEPT_PAUSE).await,
        }
    }
    // Nobody may wait for sockets that nobody serves.
    drop((listener, sockets));
    while followers.join_next().await.is_some() {}
}

async fn give(
    mut connection: UnixStream,
    continuation: Continuation,
    runs: Runs,
    ended: CancellationToken,
) -> io::Result<()> {
    connection.async_io(Interest::WRITABLE, || send(&connection, &continuation)).await?;
    drop(continuation);
    let mut id = [0; 32];
    timeout(MESSAGE_TIMEOUT, connection.read_exact(&mut id)).await??;
    let id = std::str::from_utf8(&id).ok().and_then(RunId::parse).ok_or(io::ErrorKind::InvalidData)?;
    let mut end_of_other = [0; 1];
    tokio::select! {
        () = ended.cancelled() => {}
        // The other run leaves, or was killed.
        _ = connection.read(&mut end_of_other) => {}
    }
    let report = serde_json::to_vec(&runs.report(id).await).map_err(io::Error::other)?;
    timeout(MESSAGE_TIMEOUT, connection.write_all(&report)).await?
}

fn send(connection: &UnixStream, Continuation { sockets, ids }: &Continuation) -> io::Result<()> {
    let both = [sockets.main.as_fd(), sockets.admin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&both));
    match sendmsg(connection, &[IoSlice::new(ids.key())], &mut control, SendFlags::empty())? {
        RunIds::KEY_BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The client must not inherit the sockets, even if it starts at this moment.
#[cfg(target_os = "linux")]
const RECEIVE: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const RECEIVE: RecvFlags = RecvFlags::empty();

fn receive(connection: &UnixStream) -> io::Result<Continuation> {
    let mut key = [0; RunIds::KEY_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received_bytes = recvmsg(connection, &mut [IoSliceMut::new(&mut key)], &mut control, RECEIVE)?.bytes;
    let messages = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    let received: Vec<OwnedFd> = messages.flatten().collect();
    for socket in &received {
        fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    }
    let [main, admin] = <[OwnedFd; 2]>::try_from(received).map_err(|_| io::ErrorKind::InvalidData)?;
    if received_bytes != key.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let sockets = Sockets { main: TcpListener::from(main), admin: TcpListener::from(admin) };
    Ok(Continuation { sockets, ids: RunIds::with_key(key) })
}
