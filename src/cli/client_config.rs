//! `larder client-config`: prints the CLI configuration to paste.

use clap::Args;

use super::larder::{StoreNeed, running_larder, with_larder};
use super::{CommonOptions, block_on, print_json, print_line};
use crate::app;
use crate::protocol::admin::CLIENT_CONFIG;
use crate::protocol::client_config::{ClientRoute, default_text, own_host_name};
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
        let path = if self.mirror { "/admin/v1/client-config?mirror" } else { CLIENT_CONFIG };
        let paste = block_on(async {
            let has_store = Store::exists(&config.store.path).unwrap_or(true);
            if !has_store && running_larder(&config).await?.is_none() {
                let hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
                return anyhow::Ok(default_text(&hosts, &base, client_route).await?);
            }
            let answer = with_larder(&config, StoreNeed::Existing, async |larder| Ok(larder.get(path).await?)).await?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
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
