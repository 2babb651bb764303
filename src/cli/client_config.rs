//! `larder client-config`: prints the CLI configuration to paste, from the running larder, or from the store where none
//! runs.

use clap::Args;

use super::larder::{ask_if_running, on_store};
use super::{CommonOptions, print_json, print_line, runtime};
use crate::app;
use crate::http::admin_client;
use crate::protocol::client_config::{ClientRoute, default_text, own_host_name, text};
use crate::store::Store;

#[derive(Debug, Args)]
pub(super) struct ClientConfig {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// For a network mirror (https only, providers only) instead of a host override
    #[arg(long)]
    mirror: bool,
    /// For source addresses with larder's own host name (https only) instead of a host override
    #[arg(long, conflicts_with = "mirror")]
    own_name: bool,
}

impl ClientConfig {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (config, _) = self.common.load()?;
        if self.own_name {
            let server = &config.server;
            let paste = own_host_name(server.public_url.as_ref(), server.default_upstream.as_ref());
            self.print(&paste.map_err(anyhow::Error::msg)?);
            return Ok(());
        }
        let client_route = if self.mirror { ClientRoute::NetworkMirror } else { ClientRoute::HostOverride };
        let base = app::base_url_of(&config, config.server.listen);
        anyhow::ensure!(
            !self.mirror || base.starts_with("https:"),
            "clients accept a network mirror over https only, and this larder is at {base}; set [server] tls, or public_url \
             where a proxy ends TLS; or use a host override (larder client-config)"
        );
        let path = if self.mirror { "/admin/v1/client-config?mirror" } else { "/admin/v1/client-config" };
        let paste = runtime()?.block_on(async {
            let answer = ask_if_running(&config, async |address, token| admin_client::get(address, path, token).await);
            match answer.await? {
                Some(body) => anyhow::Ok(String::from_utf8_lossy(&body).into_owned()),
                None if !Store::exists(&config.store.path)? => {
                    let hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
                    Ok(default_text(&hosts, &base, client_route).await?)
                }
                None => on_store(&config, async |larder| Ok(text(&larder.mirror, &base, client_route).await?)).await,
            }
        })?;
        self.print(&paste);
        Ok(())
    }

    fn print(&self, paste: &str) {
        if self.common.json {
            print_json(&serde_json::json!({ "client_config": paste }));
        } else {
            print_line(paste.trim_end());
        }
    }
}
