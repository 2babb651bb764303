//! The page for browsers at the root of the main listener: what a person pastes to use larder. Nothing else of larder's
//! configuration is in it.

use std::sync::Arc;

use super::client_config::{ClientConfig, ClientRoute};
use super::{Links, Reply, ReplyContent};
use crate::error::Error;
use crate::mirror::Mirror;

/// The CLI configuration to paste.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeConfig {
    /// The text, as `larder client-config` prints it for this address. `None` where clients authenticate: it names the registries.
    pub text: Option<String>,
    /// True if `public_url` says where clients find larder. Otherwise its URLs begin with what the browser asked.
    pub is_address_configured: bool,
}

/// Answers with the configuration for the address at which the browser sees larder. Contacts no upstream.
pub(super) async fn reply(mirror: &Arc<Mirror>, links: Links<'_>, asks_for_tokens: bool) -> Result<Reply, Error> {
    let url = links.mount.url_to_paste(links.base);
    let text = match asks_for_tokens {
        true => None,
        false => Some(ClientConfig::of(mirror, &url, ClientRoute::HostOverride).await?.lines),
    };
    let config = HomeConfig { text, is_address_configured: links.mount.is_configured() };
    Ok(Reply { content: ReplyContent::Home(config), outcome: None, age: None })
}
