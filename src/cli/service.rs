//! Reports to the service manager (systemd's notify protocol): ready, reloading, stopping, and the watchdog. Does
//! nothing where the environment names no manager.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::RunningApp;

/// Timeout of the listener check without a watchdog interval.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of one message to the service manager.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Connection to the service manager, if there is one.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// The manager expects a watchdog message within this time.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the manager named by the environment.
    #[expect(clippy::disallowed_methods, reason = "the service manager passes its socket only in the environment")]
    pub(super) fn of_this_process() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(?name, %error, "could not connect to the service manager");
                None
            }
        });
        let watchdog = sd_notify::watchdog_enabled().filter(|interval| socket.is_some() && !interval.is_zero());
        Self { socket, watchdog }
    }

    /// Reports that larder serves, with a status line.
    pub(super) async fn ready(&self, status: &str) {
        self.notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]).await;
    }

    /// Reports the start of a reload; the manager then waits for [`Self::ready`].
    pub(super) async fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.notify(&[NotifyState::Reloading, now]).await,
            Err(error) => tracing::warn!(%error, "could not report the reload to the service manager"),
        }
    }

    /// Reports that larder stops.
    pub(super) async fn stopping(&self) {
        self.notify(&[NotifyState::Stopping, NotifyState::Status("stopping: running downloads may finish")]).await;
    }

    /// Reports ready once both listeners answer, then sends watchdog messages as long as they do.
    pub(super) async fn run_notifications(&self, running: &RunningApp, stop: &CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        let watchdog_period = self.watchdog.map(|timeout| timeout / 2);
        // Allows several attempts before the manager gives up.
        let liveness_timeout = watchdog_period.map_or(LIVENESS_TIMEOUT, |period| period / 4);
        let notifications = async {
            wait_until_live(running, liveness_timeout).await;
            self.ready(&running.summary_line().await).await;
            let Some(period) = watchdog_period else { return };
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                wait_until_live(running, liveness_timeout).await;
                self.notify(&[NotifyState::Watchdog]).await;
            }
        };
        stop.run_until_cancelled(notifications).await;
    }

    async fn notify(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        // A hanging manager must not block the shutdown.
        let sent = match timeout(NOTIFY_TIMEOUT, socket.send(message.as_bytes())).await {
            Ok(sent) => sent.map(drop),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = sent {
            tracing::warn!(%error, message = message.trim_end(), "could not notify the service manager");
        }
    }
}

async fn wait_until_live(running: &RunningApp, limit: Duration) {
    loop {
        match timeout(limit, running.check_liveness()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::error!(%error, "liveness check failed");
                tokio::time::sleep(limit).await;
            }
            Err(_) => tracing::error!(timeout = ?limit, "liveness check failed: timeout"),
        }
    }
}

/// systemd names a file, or with a leading @ an address in the abstract namespace.
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

/// A line break would end the field of the protocol.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
