//! `larder serve`: starts larder, prints its addresses and the CLI configuration to paste, and runs until stopped.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use clap::Args;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::service::ServiceManager;
use super::{CommonOptions, catch_file_size_signal, print_json, print_line, runtime};
use crate::app::{App, Reloaded, RunningApp, StartSettings};
use crate::config::{self, Config, Problems};
use crate::protocol::client_config::ClientRoute;

#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// Contact no upstream; serve what is stored
    #[arg(long)]
    offline: bool,
    /// Address of the main listener; overrides `listen` in `[server]`
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = config::listening)]
    listen: Option<SocketAddr>,
}

impl Serve {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let config = self.load_config(self.common.config.as_deref())?;
        let runtime = runtime().context("the runtime would not start")?;
        let result = runtime.block_on(self.serve(config));
        // A background read or hash may still run; the next start repeats it.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }

    /// Loads the configuration and applies the overrides of the command line.
    fn load_config(&self, file: Option<&Path>) -> Result<Config, Problems> {
        let (mut config, warnings) = self.common.load_from(file)?;
        config.network.offline |= self.offline;
        config.server.listen = self.listen.unwrap_or(config.server.listen);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    async fn serve(self, config: Config) -> anyhow::Result<()> {
        let stop = CancellationToken::new();
        let manager = Arc::new(ServiceManager::of_this_process());
        tokio::spawn(stop_on_signals(stop.clone(), Arc::clone(&manager))?);
        let hangups = signal(SignalKind::hangup()).context("SIGHUP cannot be caught")?;
        let _file_size_signal = catch_file_size_signal()?;
        let app = App::start(&config, StartSettings::default()).await.context("larder did not start")?;
        print_startup(&app, &config, &self.common).await?;
        if !config.network.offline {
            tokio::spawn(warn_unreachable_upstreams(app.running(), stop.clone()));
        }
        let tasks = Arc::new(ServeTasks { running: app.running(), serve: self, manager, source: config.source });
        tokio::spawn(Arc::clone(&tasks).notify_manager(stop.clone()));
        tokio::spawn(tasks.reload_on(hangups, stop.clone()));
        app.serve(stop).await.context("the store would not close")?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// State for the tasks that run beside the listeners: notifications of the service manager, and reloads.
struct ServeTasks {
    running: Arc<RunningApp>,
    serve: Serve,
    manager: Arc<ServiceManager>,
    /// File of the first start. Without it, a reload fails instead of using the defaults.
    source: Option<PathBuf>,
}

impl ServeTasks {
    async fn notify_manager(self: Arc<Self>, stop: CancellationToken) {
        self.manager.run_notifications(&self.running, &stop).await;
    }

    /// Reloads the configuration on each SIGHUP. Stops instead if the terminal is gone.
    async fn reload_on(self: Arc<Self>, mut hangups: Signals, stop: CancellationToken) {
        let had_terminal = std::io::stdin().is_terminal();
        while let Some(Some(())) = stop.run_until_cancelled(hangups.recv()).await {
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
        let reading = tokio::task::spawn_blocking(move || tasks.serve.load_config(tasks.source.as_deref()));
        let config = reading.await.map_err(|error| error.to_string())?.map_err(|problems| problems.to_string())?;
        self.running.reload(config).await.map_err(|problems| problems.to_string())
    }
}

async fn print_startup(app: &App, config: &Config, common: &CommonOptions) -> anyhow::Result<()> {
    let source = config.source.as_ref().map(|file| file.display().to_string());
    let paste = app.client_config(ClientRoute::HostOverride).await?;
    if common.json {
        let startup = serde_json::json!({
            "listen": app.address(), "admin": app.admin_address(), "base": app.base(), "store": config.store.path,
            "config": source, "offline": config.network.offline, "client_config": paste,
        });
        print_json(&startup);
        return Ok(());
    }
    let version = env!("CARGO_PKG_VERSION");
    if config.server.public_url.is_some() {
        print_line(&format!("larder {version} listens on {}; clients reach it at {}", app.address(), app.base()));
    } else {
        print_line(&format!("larder {version} listens on {}", app.base()));
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
    print_line("\nPaste into ~/.terraformrc or ~/.tofurc (no source line changes):\n");
    print_line(&paste);
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
fn stop_on_signals(stop: CancellationToken, manager: Arc<ServiceManager>) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: no new connections; running downloads may finish");
        manager.stopping().await;
        stop.cancel();
    })
}
