//! `larder serve`: starts larder, prints its addresses and the CLI configuration to paste, and runs until stopped. Reports to
//! the service manager (systemd's notify protocol): ready, reloading, stopping, and the watchdog; nothing where the
//! environment names no manager.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use clap::Args;
use rustix::process::Signal;
use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::terminal::format_seconds;
use super::{CaughtSignals, CommonOptions, VERSION, block_on, catch_file_size_signal, print_json, print_line};
use crate::address::Hostname;
use crate::app::{App, Reloaded, RunningApp, StartSettings, open_files};
use crate::config::{self, Config, Problems};
use crate::protocol::client_config::{ClientConfig, ClientRoute, hosts_of_credentials};

#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Contact no upstream; serve what is stored
    #[arg(long)]
    offline: bool,
    /// Address of the main listener; overrides `listen` in `[server]`
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = config::listening)]
    listen: Option<SocketAddr>,
}

impl Serve {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let config = self.load_config(common)?;
        block_on(self.serve(config, common.clone()))
    }

    /// Loads the configuration and applies the overrides of the command line.
    fn load_config(&self, common: &CommonOptions) -> Result<Config, Problems> {
        let (mut config, warnings) = common.load()?;
        config.network.offline |= self.offline;
        config.server.listen = self.listen.unwrap_or(config.server.listen);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    async fn serve(self, config: Config, common: CommonOptions) -> anyhow::Result<()> {
        open_files::raise_limit();
        let stop = CancellationToken::new();
        let manager = Arc::new(ServiceManager::of_this_process());
        tokio::spawn(stop_on_signals(CaughtSignals::catch_stop()?, stop.clone(), Arc::clone(&manager)));
        let hangups = CaughtSignals::catch([(Signal::HUP, "SIGHUP")])?;
        let _file_size_signal = catch_file_size_signal()?;
        let app = App::start(&config, StartSettings::default()).await.context("larder did not start")?;
        print_startup(&app, &config, &common).await?;
        tokio::spawn(Arc::clone(&manager).run_notifications(app.running(), stop.clone()));
        if !config.network.offline {
            tokio::spawn(warn_unreachable_upstreams(app.running(), stop.clone()));
        }
        let common = CommonOptions { config: config.source, ..common };
        let tasks = Arc::new(ServeTasks { running: app.running(), serve: self, common, manager });
        tokio::spawn(tasks.reload_on(hangups, stop.clone()));
        let in_memory = app.running();
        app.serve(stop).await.context("the store would not close")?;
        tracing::info!("stopped");
        // The process ends. With a large store, freeing the pages of its index one by one would take most of the stop.
        std::mem::forget(in_memory);
        Ok(())
    }
}

/// State for the tasks that run beside the listeners: notifications of the service manager, and reloads.
struct ServeTasks {
    running: Arc<RunningApp>,
    serve: Serve,
    /// These name the file of the first start. Without it, a reload fails instead of using the defaults.
    common: CommonOptions,
    manager: Arc<ServiceManager>,
}

impl ServeTasks {
    /// Reloads the configuration on each SIGHUP. Stops instead if the terminal is gone.
    async fn reload_on(self: Arc<Self>, mut hangups: CaughtSignals, stop: CancellationToken) {
        let had_terminal = std::io::stdin().is_terminal();
        while stop.run_until_cancelled(hangups.next()).await.is_some() {
            if had_terminal && !std::io::stdin().is_terminal() {
                tracing::info!("stopping: the terminal is gone");
                return stop.cancel();
            }
            self.manager.reloading().await;
            let Some(reloaded) = stop.run_until_cancelled(Arc::clone(&self).reload()).await else { return };
            let outcome = match reloaded {
                Ok(reloaded) if reloaded.need_restart.is_empty() => {
                    tracing::info!("the configuration was reloaded");
                    String::new()
                }
                Ok(Reloaded { need_restart }) => {
                    let options = need_restart.join(", ");
                    tracing::warn!(%options, "the configuration was reloaded; some options need a restart");
                    format!("; needs a restart: {options}")
                }
                Err(problems) => {
                    tracing::error!("the configuration was not reloaded, the previous one stays in force: {problems}");
                    "; its configuration has problems, the previous one is in force".to_owned()
                }
            };
            self.manager.ready(&format!("{}{outcome}", self.running.summary_line().await)).await;
        }
    }

    async fn reload(self: Arc<Self>) -> Result<Reloaded, String> {
        let tasks = Arc::clone(&self);
        // Reading the files may block for long.
        let load = move || tasks.serve.load_config(&tasks.common);
        let reading = tokio::task::spawn_blocking(load);
        let config = reading.await.map_err(|error| error.to_string())?.map_err(|problems| problems.to_string())?;
        self.running.reload(config).await.map_err(|problems| problems.to_string())
    }
}

async fn print_startup(app: &App, config: &Config, common: &CommonOptions) -> anyhow::Result<()> {
    let source = config.source.as_ref().map(|file| file.display().to_string());
    let mut paste = match app.client_config().await {
        Ok(paste) => paste,
        // The printed lines are a convenience; the start is not.
        Err(error) => {
            tracing::warn!(%error, "stored discovery documents cannot be read; the CLI configuration has the usual services");
            let hosts: Vec<&Hostname> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
            ClientConfig::for_hosts(&hosts, app.base(), ClientRoute::HostOverride).await?
        }
    };
    let clients_authenticate = !config.clients.is_empty();
    if clients_authenticate {
        let registries = config.upstreams.iter().map(|upstream| &upstream.host);
        paste = paste.with_credentials(&hosts_of_credentials(registries, app.base(), ClientRoute::HostOverride));
    }
    if common.json {
        let startup = serde_json::json!({
            "listen": app.address(), "admin": app.admin_address(), "base": app.base(), "store": config.store.path,
            "config": source, "offline": config.network.offline, "client_config": paste.lines,
        });
        print_json(&startup);
        return Ok(());
    }
    if config.server.public_url.is_some() {
        print_line(&format!("larder {VERSION} listens on {}; clients reach it at {}", app.address(), app.base()));
    } else {
        print_line(&format!("larder {VERSION} listens on {}", app.base()));
    }
    if config.server.public_url.is_none() && app.address().ip().is_unspecified() {
        print_line(&format!(
            "           on every address of this machine ({}): clients elsewhere need its name in the lines",
            app.address()
        ));
        print_line("           below; set [server] public_url");
    }
    print_line(&format!("  admin    http://{}", app.admin_address()));
    print_line(&format!("  store    {} (up to {})", config.store.path.display(), ByteSize(app.size_limit().await)));
    print_line(&format!("  config   {}", source.as_deref().unwrap_or("none found: the defaults")));
    let connection_options = common.connection_options(app.admin_address());
    if !connection_options.is_empty() {
        print_line(&format!("  commands reach this larder with{connection_options}"));
    }
    if config.network.offline {
        print_line("  offline  no outbound traffic; stored copies are served");
    }
    let token = if clients_authenticate { ", with the client's token in place of TOKEN" } else { "" };
    print_line(&format!("\nPaste into ~/.terraformrc or ~/.tofurc{token} (no source line changes):\n"));
    print_line(&paste.lines);
    Ok(())
}

/// Logs the unreachable upstreams, so that the operator sees them at the start and not at the first failed init.
async fn warn_unreachable_upstreams(running: Arc<RunningApp>, stop: CancellationToken) {
    let Some(unreachable) = stop.run_until_cancelled(running.unreachable_upstreams()).await else { return };
    for reason in unreachable {
        tracing::warn!("{reason}; stored copies are served; see `larder doctor`");
    }
}

/// Stops on SIGTERM and Ctrl-C; running downloads may finish.
async fn stop_on_signals(mut signals: CaughtSignals, stop: CancellationToken, manager: Arc<ServiceManager>) {
    signals.next().await;
    tracing::info!("stopping: no new connections; running downloads may finish");
    manager.stopping().await;
    stop.cancel();
}

/// Timeout of the listener check without a watchdog interval.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of one message to the service manager.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Connection to the service manager, if there is one.
#[derive(Debug)]
struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// The manager expects a watchdog message within this time.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the manager named by the environment.
    #[expect(clippy::disallowed_methods, reason = "the service manager passes its socket only in the environment")]
    fn of_this_process() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(name = %name.display(), %error, "could not connect to the service manager");
                None
            }
        });
        let watchdog = sd_notify::watchdog_enabled().filter(|interval| socket.is_some() && !interval.is_zero());
        Self { socket, watchdog }
    }

    /// Reports that larder serves, with a status line.
    async fn ready(&self, status: &str) {
        self.notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]).await;
    }

    /// Reports the start of a reload; the manager then waits for [`Self::ready`].
    async fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.notify(&[NotifyState::Reloading, now]).await,
            Err(error) => tracing::warn!(%error, "could not report the reload to the service manager"),
        }
    }

    /// Reports that larder stops.
    async fn stopping(&self) {
        self.notify(&[NotifyState::Stopping, NotifyState::Status("stopping: running downloads may finish")]).await;
    }

    /// Reports ready once both listeners answer, then sends watchdog messages as long as they do.
    async fn run_notifications(self: Arc<Self>, running: Arc<RunningApp>, stop: CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        let watchdog_period = self.watchdog.map(|timeout| timeout / 2);
        // Allows several attempts before the manager gives up.
        let liveness_timeout = watchdog_period.map_or(LIVENESS_TIMEOUT, |period| period / 4);
        let notifications = async {
            wait_until_live(&running, liveness_timeout).await;
            self.ready(&running.summary_line().await).await;
            let Some(period) = watchdog_period else { return };
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                wait_until_live(&running, liveness_timeout).await;
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
            Err(_) => tracing::error!("the liveness check did not end within {}", format_seconds(limit.as_secs())),
        }
    }
}

/// systemd names a file, or with a leading @ an address in the abstract namespace.
fn connect(name: &OsString) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => abstract_address(rest)?,
        _ => UnixAddress::from_pathname(name)?,
    };
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<UnixAddress> {
    use std::os::linux::net::SocketAddrExt;
    UnixAddress::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &[u8]) -> io::Result<UnixAddress> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// A line break would end the field of the protocol.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
