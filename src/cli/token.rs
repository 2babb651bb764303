//! `larder token new`: makes a token for a client, and prints the lines for both sides. Nothing is stored.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};

use super::{CommonOptions, print_json, print_line};
use crate::app;
use crate::config::parse_client_name;
use crate::digest::Digest;
use crate::protocol::client_config::{ClientRoute, credentials_block, hosts_of_credentials};
use crate::requirements::cli_config::token_variable;

/// The beginning of every token that larder makes, by which scanners for secrets find one.
const PREFIX: &str = "larder_";

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token for a client, and print the lines for mirror.toml and for the client
    New(NewToken),
}

#[derive(Debug, Args)]
pub(super) struct NewToken {
    /// Name of the client in logs
    #[arg(long, value_name = "NAME", default_value = "ci", value_parser = parse_client_name)]
    name: String,
}

impl TokenCommand {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let Self::New(NewToken { name }) = self;
        let mut random = [0; 32];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| anyhow::anyhow!("the system's random generator failed"))?;
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let sha256 = Digest::of(token.as_bytes());
        // The lines for the client name the hosts of this configuration; a broken one does not keep a token back.
        let config = common.read().config;
        let registries = config.upstreams.iter().map(|upstream| &upstream.host);
        let base = app::base_url_of(&config, config.server.listen);
        let blocks = |route| -> String {
            let hosts = hosts_of_credentials(registries.clone(), &base, route);
            hosts.iter().map(|host| credentials_block(host, &token)).collect()
        };
        let server = format!("[[client]]\nname = {name:?}\ntoken = {{ sha256 = \"{sha256}\" }}\n");
        let client = blocks(ClientRoute::HostOverride);
        if common.json {
            print_json(&serde_json::json!({
                "token": token, "sha256": sha256, "mirror_toml": server, "client_config": client,
            }));
            return Ok(());
        }
        let variable =
            registries.clone().next().map(|host| token_variable(host.as_str())).context("no upstream is configured")?;
        print_line(&format!("token   {token}"));
        print_line(&format!("sha256  {sha256}"));
        print_line("\nin mirror.toml, then reload larder (it keeps the digest alone):");
        print_indented(&server);
        print_line("in the CLI configuration of the client, behind a host override:");
        print_indented(&client);
        print_line(&format!("or in its environment: {variable}={token}"));
        print_line("\nbehind a network mirror, or with larder's own host name:");
        print_indented(&blocks(ClientRoute::NetworkMirror));
        Ok(())
    }
}

fn print_indented(lines: &str) {
    lines.trim_end().lines().for_each(|line| print_line(&format!("  {line}")));
}
