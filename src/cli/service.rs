//! What the service manager is told (systemd's notify protocol): ready, reloading, stopping, and that larder is alive.
//! Without a manager nothing is told to anybody.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::Running;

/// How long a listener may take to answer where nobody says how often that is looked at.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The longest that telling it something may take.
const TELLING_TAKES: Duration = Duration::from_secs(1);

/// The way to the service manager, where there is one.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Within what it wants to hear that larder is alive.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names.
    #[expect(clippy::disallowed_methods, reason = "who started this process says so in the environment, and only so")]
    pub(super) fn of_this_process() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(?name, %error, "the service manager cannot be told anything");
                None
            }
        });
        let watchdog = sd_notify::watchdog_enabled().filter(|within| socket.is_some() && !within.is_zero());
        Self { socket, watchdog }
    }

    /// Tells that larder serves, and what.
    pub(super) async fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]).await;
    }

    /// Tells that the configuration is read again; whoever is told waits for [`Self::ready`].
    pub(super) async fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]).await,
            Err(error) => tracing::warn!(%error, "the service manager cannot be told of the reload"),
        }
    }

    /// Tells that larder stops.
    pub(super) async fn stopping(&self) {
        self.tell(&[NotifyState::Stopping, NotifyState::Status("stopping: running downloads may finish")]).await;
    }

    /// Tells that larder serves once both listeners answer, and goes on to tell that they do for as long as it is so.
    pub(super) async fn attend(&self, running: &Running, stop: &CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        let every = self.watchdog.map(|within| within / 2);
        // In what is left until the manager gives up, a few are tried.
        let within = every.map_or(ANSWERS_WITHIN, |every| every / 4);
        let telling = async {
            until_it_answers(running, within).await;
            self.ready(&running.at_work().await).await;
            let Some(every) = every else { return };
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                until_it_answers(running, within).await;
                self.tell(&[NotifyState::Watchdog]).await;
            }
        };
        stop.run_until_cancelled(telling).await;
    }

    async fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        // One that takes nothing in keeps nobody from stopping.
        let told = match timeout(TELLING_TAKES, socket.send(message.as_bytes())).await {
            Ok(sent) => sent.map(drop),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = told {
            tracing::warn!(%error, message = message.trim_end(), "the service manager could not be told");
        }
    }
}

async fn until_it_answers(running: &Running, within: Duration) {
    loop {
        match timeout(within, running.answers()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::error!(%error, "larder does not answer itself");
                tokio::time::sleep(within).await;
            }
            Err(_) => tracing::error!(?within, "larder does not answer itself in time"),
        }
    }
}

/// systemd names a file, or with an @ an address in the abstract namespace.
fn connect(name: &OsString) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => abstract_address(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &[u8]) -> io::Result<SocketAddr> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// A line of the protocol ends where a line ends.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
