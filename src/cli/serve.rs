//! `larder serve`: start, say where it listens and what to paste, run until told to stop.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Common, runtime, say};
use crate::app::{App, Settings};
use crate::config::Config;
use crate::protocol::client_config::Way;

#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    common: Common,
    /// Let nothing out: serve what is held
    #[arg(long)]
    offline: bool,
}

impl Serve {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (mut config, warnings) = self.common.load()?;
        config.network.offline |= self.offline;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let runtime = runtime().context("the runtime would not start")?;
        let served = runtime.block_on(serve(config, self.common.json));
        // What still reads or hashes a file is not worth waiting for: it is done again after the next start.
        runtime.shutdown_timeout(Duration::from_secs(1));
        served
    }
}

async fn serve(config: Config, json: bool) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signals(stop.clone())?);
    // A file that may not grow larger is an error for whoever writes it, and not the end of the process.
    let _too_large = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).context("SIGXFSZ cannot be caught")?;
    let app = App::start(&config, Settings::default()).await.context("larder did not start")?;
    introduce(&app, &config, json).await?;
    app.serve(stop).await.context("the store would not close")?;
    tracing::info!("stopped");
    Ok(())
}

async fn introduce(app: &App, config: &Config, json: bool) -> anyhow::Result<()> {
    let source = config.source.as_ref().map(|file| file.display().to_string());
    let paste = app.client_config(Way::HostOverride).await?;
    if json {
        let listening = serde_json::json!({
            "listen": app.address(), "admin": app.admin_address(), "base": app.base(), "store": config.store.path,
            "config": source, "offline": config.network.offline, "client_config": paste,
        });
        say(&listening.to_string());
        return Ok(());
    }
    say(&format!("larder {} listens on {}", env!("CARGO_PKG_VERSION"), app.base()));
    if app.address().ip().is_unspecified() {
        say(&format!(
            "           on every address of this machine ({}): others need its name in the lines below,",
            app.address()
        ));
        say("           which [server] public_url puts there");
    }
    say(&format!("  admin    http://{}", app.admin_address()));
    say(&format!("  store    {} (up to {})", config.store.path.display(), config.store.max_size));
    say(&format!("  config   {}", source.as_deref().unwrap_or("none found: the defaults")));
    if config.network.offline {
        say("  offline  nothing goes out; what is held is served");
    }
    say("\nPaste into ~/.terraformrc or ~/.tofurc (no source line changes):\n");
    say(&paste);
    Ok(())
}

/// Stops on SIGTERM and on Ctrl-C; running downloads then have their time to finish.
fn stop_on_signals(stop: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: no new connections; running downloads may finish");
        stop.cancel();
    })
}
