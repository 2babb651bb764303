//! A client's CLI configuration, as far as it decides where providers and modules come from: where the client looks for
//! it, and what it says (`host` blocks, CLI configuration). Tokens are never printed; other secrets are dropped, except from a
//! [`CliConfigCopy`], which is for the client alone.

mod copy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};

pub use self::copy::CliConfigCopy;
use super::ClientKind;
use super::hcl::{BadHcl, Hcl1Node};
use crate::address::Hostname;

/// The merged configuration files of one client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CliConfig {
    /// The `host` blocks: the services of each host, which replace that host's discovery document.
    pub hosts: BTreeMap<Hostname, Services>,
    /// The installation methods in order; `None` without a `provider_installation` block, which means direct.
    pub installation: Option<Vec<Method>>,
    /// The tokens of the client, by the host that it sends them to.
    pub tokens: BTreeMap<Hostname, ClientToken>,
    /// The plugin cache: a folder with packages for all configurations; as written in the file.
    pub plugin_cache_dir: Option<String>,
    /// The errors that the client prints before it continues without the setting.
    pub complaints: Vec<String>,
}

/// The token of a client for one host. `Debug` does not print it.
#[derive(Debug, Clone)]
pub struct ClientToken(SecretString);

impl ClientToken {
    /// The token.
    pub fn secret(&self) -> &SecretString {
        &self.0
    }
}

impl From<&str> for ClientToken {
    fn from(token: &str) -> Self {
        Self(SecretString::from(token.to_owned()))
    }
}

impl PartialEq for ClientToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl Eq for ClientToken {}

/// The environment variable in which clients look for the token of a host: a dot is `_`, a hyphen `__`.
pub fn token_variable(host: &str) -> String {
    format!("TF_TOKEN_{}", host.replace('-', "__").replace(['.', ':'], "_"))
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
    /// Patterns of the included providers, such as `registry.example/*/*` or `hashicorp/*`; all if empty.
    pub include: Vec<String>,
    /// Patterns of the excluded providers.
    pub exclude: Vec<String>,
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
        let root = Hcl1Node::read(file)?;
        let mut config = Self::default();
        for (name, block) in root.labelled_blocks("host") {
            match Hostname::parse(name) {
                Ok(host) => {
                    config.hosts.entry(host).or_default().extend(services(block));
                }
                Err(bad) => config.complaints.push(format!("a host block: {bad}")),
            }
        }
        let tokens = root.labelled_blocks("credentials").filter_map(|(name, block)| {
            let token = block.all("token").find_map(Hcl1Node::text).unwrap_or_default();
            Some((Hostname::parse(name).ok()?, ClientToken::from(token)))
        });
        config.tokens = tokens.collect();
        config.plugin_cache_dir = root.all("plugin_cache_dir").find_map(Hcl1Node::text).map(str::to_owned);
        for block in root.all("provider_installation") {
            if config.installation.is_some() {
                config.complaints.push(DUPLICATE_INSTALLATION.to_owned());
                continue;
            }
            config.installation = Some(methods(block, &mut config.complaints));
        }
        Ok(config)
    }

    /// Merges a later file. Of two blocks about a host the later counts, of two settings the earlier.
    pub fn merge(mut self, later: Self) -> Self {
        self.hosts.extend(later.hosts);
        self.tokens.extend(later.tokens);
        self.complaints.extend(later.complaints);
        if self.installation.is_some() && later.installation.is_some() {
            self.complaints.push(DUPLICATE_INSTALLATION.to_owned());
        }
        self.installation = self.installation.or(later.installation);
        self.plugin_cache_dir = self.plugin_cache_dir.or(later.plugin_cache_dir);
        self
    }
}

fn services(block: &Hcl1Node) -> Services {
    let members = block.all("services").flat_map(Hcl1Node::members);
    let service = |value: &Hcl1Node| value.text().map_or(ServiceValue::Other, |url| ServiceValue::Url(url.to_owned()));
    members.map(|(name, value)| (name.to_owned(), service(value))).collect()
}

fn methods(block: &Hcl1Node, complaints: &mut Vec<String>) -> Vec<Method> {
    let mut methods = Vec::new();
    for (method, bodies) in block.members() {
        for body in bodies.items() {
            let text =
                |name| body.all(name).find_map(Hcl1Node::text).filter(|text| !text.is_empty()).map(str::to_owned);
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
            let patterns = |name| body.all(name).filter_map(Hcl1Node::text).map(str::to_owned).collect();
            methods.push(Method { source, include: patterns("include"), exclude: patterns("exclude") });
        }
    }
    methods
}

/// The extent to which a method covers a registry's providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// No providers.
    None,
    /// Some providers.
    Some,
    /// All providers.
    All,
}

impl Coverage {
    /// The extent to which a pattern covers the providers of `host`; an invalid pattern covers none.
    fn of_pattern(pattern: &str, host: &Hostname, default_host: &str) -> Self {
        let parts: Vec<&str> = pattern.split('/').collect();
        let (pattern_host, namespace, type_) = match parts.as_slice() {
            [pattern_host, namespace, type_] => (*pattern_host, *namespace, *type_),
            [namespace, type_] => (default_host, *namespace, *type_),
            _ => return Self::None,
        };
        if pattern_host != "*" && Hostname::parse(pattern_host).as_ref() != Ok(host) {
            return Self::None;
        }
        if (namespace, type_) == ("*", "*") { Self::All } else { Self::Some }
    }
}

impl Method {
    /// The extent to which this method covers the providers of `host`.
    pub fn coverage(&self, host: &Hostname, default_host: &str) -> Coverage {
        let max_coverage = |patterns: &[String]| {
            patterns.iter().map(|pattern| Coverage::of_pattern(pattern, host, default_host)).max()
        };
        let included = max_coverage(&self.include).unwrap_or(Coverage::All);
        match max_coverage(&self.exclude).unwrap_or(Coverage::None) {
            Coverage::All => Coverage::None,
            Coverage::Some => included.min(Coverage::Some),
            Coverage::None => included,
        }
    }
}

/// The environment variables of a client.
pub type Environment = BTreeMap<String, String>;

/// The search paths of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchPaths {
    /// The path of the main file, which may not exist.
    pub file: Option<PathBuf>,
    /// The environment variable that names the file. With it, the file must exist, and no other file is read.
    pub named_by: Option<&'static str>,
    /// The folder of further `*.tfrc` and `*.tfrc.json` files.
    pub folder: Option<PathBuf>,
}

impl SearchPaths {
    /// The search paths of `client` in this environment; `exists` checks the disk.
    pub fn of(client: ClientKind, environment: &Environment, exists: &dyn Fn(&Path) -> bool) -> Self {
        let value_of = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        for name in ["TF_CLI_CONFIG_FILE", "TERRAFORM_CONFIG"] {
            if let Some(file) = value_of(name) {
                return Self { file: Some(PathBuf::from(file)), named_by: Some(name), folder: None };
            }
        }
        let Some(home) = value_of("HOME").map(PathBuf::from) else {
            return Self { file: None, named_by: None, folder: None };
        };
        let (file, folder) = (home.join(".terraformrc"), home.join(".terraform.d"));
        let (file, folder) = match client {
            ClientKind::Terraform => (file, folder),
            ClientKind::Opentofu => {
                let tofurc = home.join(".tofurc");
                let xdg = value_of("XDG_CONFIG_HOME").map(|folder| Path::new(folder).join("opentofu"));
                let file = match &xdg {
                    _ if exists(&tofurc) => tofurc,
                    _ if exists(&file) => file,
                    Some(xdg) => xdg.join("tofurc"),
                    None => tofurc,
                };
                (file, xdg.filter(|_| !exists(&folder)).unwrap_or(folder))
            }
        };
        Self { file: Some(file), named_by: None, folder: Some(folder) }
    }

    /// The files that the client tries to read, in its order: the main file, which may not exist, and those of the folder.
    pub fn files(&self) -> Vec<PathBuf> {
        let entries = self.folder.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
        let is_read = |name: &str| name.ends_with(".tfrc") || name.ends_with(".tfrc.json");
        let read = entries.filter_map(Result::ok).filter(|entry| entry.file_name().to_str().is_some_and(is_read));
        let mut in_folder: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
        in_folder.sort_unstable();
        self.file.iter().cloned().chain(in_folder).collect()
    }
}
