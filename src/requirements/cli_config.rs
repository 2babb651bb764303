//! A client's CLI configuration, as far as it decides where providers and modules come from (PROTOCOL, sections
//! 1.2 and 1.3).
//! Secrets, such as the tokens of `credentials` blocks, are dropped.

mod hcl1;
mod hcl1_ast;
pub mod installation_matching;
pub mod search_paths;

use std::collections::BTreeMap;

use self::hcl1_ast::Node;
use self::installation_matching::Pattern;
use super::hcl::BadHcl;
use crate::address::Hostname;

/// The merged configuration files of one client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CliConfig {
    /// The `host` blocks: the services of each host, which replace that host's discovery document.
    pub hosts: BTreeMap<Hostname, Services>,
    /// The installation methods in order; `None` without a `provider_installation` block, which means direct.
    pub installation: Option<Vec<Method>>,
    /// The hosts for which the client has a token.
    pub credentials: Vec<Hostname>,
    /// The plugin cache: a folder with packages for all configurations; as written in the file.
    pub plugin_cache_dir: Option<String>,
    /// The errors that the client prints before it continues without the setting.
    pub complaints: Vec<String>,
}

/// The complaint about a second `provider_installation` block.
const DUPLICATE_INSTALLATION: &str = "there is more than one provider_installation block: only the first counts";

/// A `host` block's services, by name.
pub type Services = BTreeMap<String, ServiceValue>;

/// The value of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceValue {
    /// A text, which may be an invalid URL.
    Url(String),
    /// Any other value, such as the object of `login.v1`.
    Other,
}

/// An installation method, and its providers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// The source.
    pub source: InstallationSource,
    /// The included providers; all if empty.
    pub include: Vec<Pattern>,
    /// The excluded providers.
    pub exclude: Vec<Pattern>,
}

/// The source of an installation method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstallationSource {
    /// The registry in the provider's address.
    Direct,
    /// A network mirror.
    NetworkMirror {
        /// The URL of the mirror, verbatim.
        url: String,
    },
    /// Another source, by the name of the method, such as `filesystem_mirror` or `oci_mirror`.
    Other(String),
}

impl CliConfig {
    /// Parses one file: HCL 1, or JSON if it starts with a brace.
    ///
    /// # Errors
    /// A syntax error, with its position. The client prints such an error and continues without the file.
    pub fn read(file: &[u8]) -> Result<Self, BadHcl> {
        Ok(Self::from_node(&Node::read(file)?))
    }

    /// Merges a later file; its settings win.
    pub fn merge(mut self, later: Self) -> Self {
        self.hosts.extend(later.hosts);
        self.credentials.extend(later.credentials);
        self.complaints.extend(later.complaints);
        if self.installation.is_some() && later.installation.is_some() {
            self.complaints.push(DUPLICATE_INSTALLATION.to_owned());
        }
        self.installation = self.installation.or(later.installation);
        self.plugin_cache_dir = self.plugin_cache_dir.or(later.plugin_cache_dir);
        self
    }

    fn from_node(root: &Node) -> Self {
        let mut config = Self::default();
        for (name, block) in root.labelled_blocks("host") {
            match Hostname::parse(name) {
                Ok(host) => {
                    config.hosts.entry(host).or_default().extend(services(block));
                }
                Err(bad) => config.complaints.push(format!("a host block: {bad}")),
            }
        }
        config.credentials =
            root.labelled_blocks("credentials").filter_map(|(name, _)| Hostname::parse(name).ok()).collect();
        config.plugin_cache_dir = root.all("plugin_cache_dir").find_map(Node::text).map(str::to_owned);
        for block in root.all("provider_installation") {
            if config.installation.is_some() {
                config.complaints.push(DUPLICATE_INSTALLATION.to_owned());
                continue;
            }
            config.installation = Some(methods(block, &mut config.complaints));
        }
        config
    }
}

fn services(block: &Node) -> Services {
    let members = block.all("services").flat_map(Node::members);
    let service = |value: &Node| value.text().map_or(ServiceValue::Other, |url| ServiceValue::Url(url.to_owned()));
    members.map(|(name, value)| (name.to_owned(), service(value))).collect()
}

fn methods(block: &Node, complaints: &mut Vec<String>) -> Vec<Method> {
    let mut methods = Vec::new();
    for (method, bodies) in block.members() {
        for body in bodies.items() {
            let text = |name| body.all(name).find_map(Node::text).filter(|text| !text.is_empty()).map(str::to_owned);
            let source = match method {
                "direct" => InstallationSource::Direct,
                "network_mirror" => match text("url") {
                    Some(url) => InstallationSource::NetworkMirror { url },
                    None => {
                        complaints.push("a network_mirror block has no url: the client ignores the block".to_owned());
                        continue;
                    }
                },
                // Development overrides take named providers from folders; nothing else changes.
                "dev_overrides" => continue,
                other => InstallationSource::Other(other.to_owned()),
            };
            let patterns = |name| body.all(name).filter_map(Node::text).map(Pattern::parse).collect();
            methods.push(Method { source, include: patterns("include"), exclude: patterns("exclude") });
        }
    }
    methods
}

#[cfg(test)]
mod tests;
