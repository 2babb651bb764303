//! A client's CLI configuration, as far as it decides where providers and modules come from (PROTOCOL 1.2, 1.3).
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
    /// `host` blocks: services by host, replacing that host's discovery.
    pub hosts: BTreeMap<Hostname, Services>,
    /// Installation methods in order; `None` without such a block, which means direct.
    pub installation: Option<Vec<Method>>,
    /// Hosts with a token.
    pub credentials: Vec<Hostname>,
    /// A folder where packages are shared between configurations, as it is written.
    pub plugin_cache_dir: Option<String>,
    /// Errors that the client prints before it continues without the setting.
    pub complaints: Vec<String>,
}

/// A `host` block's services, by name.
pub type Services = BTreeMap<String, ServiceValue>;

/// The value of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceValue {
    /// Text: a URL, or an invalid one.
    Url(String),
    /// Anything else, such as the object of `login.v1`.
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
        /// Its URL, verbatim.
        url: String,
    },
    /// Another source, by its name: a folder, or an OCI registry.
    Elsewhere(String),
}

impl CliConfig {
    /// Parses one file: HCL 1, or JSON if it starts with a brace.
    ///
    /// # Errors
    /// The position of a syntax error. The client prints an error then, and continues without the file.
    pub fn read(file: &[u8]) -> Result<Self, BadHcl> {
        Ok(Self::of(&Node::read(file)?))
    }

    /// Merges a later file; its settings win.
    pub fn merge(mut self, later: Self) -> Self {
        self.hosts.extend(later.hosts);
        self.credentials.extend(later.credentials);
        self.complaints.extend(later.complaints);
        if self.installation.is_some() && later.installation.is_some() {
            self.complaints
                .push("there is more than one provider_installation block: only the first counts".to_owned());
        }
        self.installation = self.installation.or(later.installation);
        self.plugin_cache_dir = self.plugin_cache_dir.or(later.plugin_cache_dir);
        self
    }

    fn of(root: &Node) -> Self {
        let mut config = Self::default();
        for (name, block) in root.items_named("host") {
            match Hostname::parse(name) {
                Ok(host) => {
                    config.hosts.entry(host).or_default().extend(services(block));
                }
                Err(bad) => config.complaints.push(format!("a host block: {bad}")),
            }
        }
        config.credentials =
            root.items_named("credentials").filter_map(|(name, _)| Hostname::parse(name).ok()).collect();
        config.plugin_cache_dir = root.all("plugin_cache_dir").find_map(Node::text).map(str::to_owned);
        for block in root.all("provider_installation") {
            if config.installation.is_some() {
                let more = "there is more than one provider_installation block: only the first counts";
                config.complaints.push(more.to_owned());
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
    for (kind, body) in block.members() {
        for body in body.items() {
            let text = |name| body.all(name).find_map(Node::text).filter(|text| !text.is_empty()).map(str::to_owned);
            let source = match kind {
                "direct" => InstallationSource::Direct,
                "network_mirror" => match text("url") {
                    Some(url) => InstallationSource::NetworkMirror { url },
                    None => {
                        complaints.push("a network_mirror block has no url: the client leaves it out".to_owned());
                        continue;
                    }
                },
                // Development overrides take named providers from folders; nothing else changes.
                "dev_overrides" => continue,
                other => InstallationSource::Elsewhere(other.to_owned()),
            };
            let patterns = |name| {
                let patterns = body.all(name).filter_map(Node::text).map(Pattern::parse);
                patterns.collect()
            };
            methods.push(Method { source, include: patterns("include"), exclude: patterns("exclude") });
        }
    }
    methods
}

#[cfg(test)]
mod tests;
