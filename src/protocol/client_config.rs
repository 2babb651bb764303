//! The CLI configuration that points a client to larder, to paste (`host` blocks, provider network mirror protocol).

use std::sync::Arc;

use derive_more::Display;
use serde_json::Value;
use url::Url;
use url::form_urlencoded::parse;

use super::admin::{CLIENT_CONFIG, short};
use super::registry::services;
use super::route::{MIRROR_BASE, modules_base, providers_base};
use super::view::{AGE, AS_OF, View};
use crate::address::{Hostname, TERRAFORM_REGISTRY};
use crate::error::Error;
use crate::mirror::Mirror;
use crate::requirements::hcl::quoted;
use crate::upstream::providers::RawObject;

/// The route by which clients reach larder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRoute {
    /// A `host` override: complete lock files, every command.
    HostOverride,
    /// A `network_mirror`: https only.
    NetworkMirror,
}

/// A request for a CLI configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientConfigRequest {
    /// The route by which the client is to reach larder.
    pub client_route: ClientRoute,
    /// The view that the client is to have.
    pub view: Option<View>,
}

impl ClientConfigRequest {
    /// Parses the query of a request: `mirror` for a network mirror, and `age=7d` or `as-of=2026-08-01` for a view.
    ///
    /// # Errors
    /// Every problem of the query.
    pub fn parse(query: Option<&str>) -> Result<Self, Vec<String>> {
        let mut request = Self { client_route: ClientRoute::HostOverride, view: None };
        let mut problems = Vec::new();
        for (name, value) in parse(query.unwrap_or_default().as_bytes()) {
            let view = match &*name {
                "mirror" if value.is_empty() => {
                    request.client_route = ClientRoute::NetworkMirror;
                    continue;
                }
                AGE | AS_OF if request.view.is_some() => {
                    Err("a client has one view: give age or as-of, once".to_owned())
                }
                AGE => View::age(&value),
                AS_OF => View::as_of(&value),
                _ => Err(format!("{:?} is not known here: give mirror, age=7d or as-of=2026-08-01", short(&name))),
            };
            match view {
                Ok(view) => request.view = Some(view),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(request) } else { Err(problems) }
    }

    /// The path of this request in the admin API.
    pub fn path(self) -> String {
        let mirror = (self.client_route == ClientRoute::NetworkMirror).then(|| "mirror".to_owned());
        let parameters: Vec<String> = mirror.into_iter().chain(self.view.map(View::query)).collect();
        match parameters.is_empty() {
            true => CLIENT_CONFIG.to_owned(),
            false => format!("{CLIENT_CONFIG}?{}", parameters.join("&")),
        }
    }

    /// The URL at which the client reaches larder, if this is its URL without a view.
    pub fn base(self, base: &str) -> String {
        self.view.map_or_else(|| base.to_owned(), |view| format!("{base}{view}"))
    }
}

/// A CLI configuration to paste. As one text, the remarks are comments above the lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Display)]
#[display("{}{lines}", remarks.iter().map(|remark| format!("# {remark}\n")).collect::<String>())]
pub struct ClientConfig {
    /// Remarks for the reader, each one line.
    pub remarks: Vec<String>,
    /// The lines for the file.
    pub lines: String,
}

impl ClientConfig {
    /// The configuration for the upstreams of a larder. `base` is the URL at which clients reach it, without a final slash:
    /// `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// A stored discovery document could not be read.
    pub async fn of(mirror: &Arc<Mirror>, base: &str, client_route: ClientRoute) -> Result<Self, Error> {
        let hosts = mirror.runtime.upstream_hosts();
        client_config(hosts.iter().collect(), Some(mirror), base, client_route).await
    }

    /// The configuration for these upstreams when no discovery document is stored.
    ///
    /// # Errors
    /// None without a store.
    pub async fn for_hosts(hosts: &[&Hostname], base: &str, client_route: ClientRoute) -> Result<Self, Error> {
        client_config(hosts.to_vec(), None, base, client_route).await
    }

    /// Adds a block for the token of the client at each of these hosts, which names the place of the token.
    #[must_use]
    pub fn with_credentials(mut self, hosts: &[String]) -> Self {
        self.remarks
            .push("larder asks its clients for a token: write that of this client in place of TOKEN".to_owned());
        self.lines.extend(hosts.iter().map(|host| credentials_block(host, TOKEN_PLACE)));
        self
    }

    /// Reads the text of another larder.
    pub fn read(text: &str) -> Self {
        let (mut remarks, mut lines) = (Vec::new(), text);
        while let Some((remark, rest)) = lines.strip_prefix("# ").and_then(|rest| rest.split_once('\n')) {
            remarks.push(remark.to_owned());
            lines = rest;
        }
        Self { remarks, lines: lines.to_owned() }
    }
}

/// Stands for the token of a client.
const TOKEN_PLACE: &str = "TOKEN";

/// The block of a CLI configuration with the token for a host.
pub fn credentials_block(host: &str, token: &str) -> String {
    format!("credentials {} {{\n  token = {}\n}}\n", quoted(host), quoted(token))
}

/// The hosts whose credentials clients send to larder: by an override those of the registries, by a network mirror that of
/// larder's URL.
pub fn hosts_of_credentials<'a>(
    registries: impl IntoIterator<Item = &'a Hostname>,
    base: &str,
    client_route: ClientRoute,
) -> Vec<String> {
    match client_route {
        ClientRoute::HostOverride => {
            registries.into_iter().map(Hostname::to_unicode).map(|host| host.to_string()).collect()
        }
        ClientRoute::NetworkMirror => {
            let authority = base.split_once("://").map_or(base, |(_, rest)| rest).split('/').next();
            authority.into_iter().map(str::to_owned).collect()
        }
    }
}

/// The source addresses for clients that use larder's own host name, which stands for `registry`. They need no CLI
/// configuration.
///
/// # Errors
/// The reason why clients cannot use the host name (ways to use a mirror, service discovery: discovery is https, at the
/// root of the host).
pub fn own_host_name(public_url: Option<&Url>, registry: Option<&Hostname>) -> Result<String, String> {
    let url = public_url
        .ok_or("clients need larder's own host name: set [server] public_url, such as https://mirror.corp.example/")?;
    if url.scheme() != "https" || url.path() != "/" {
        return Err(format!(
            "clients look for a host name over https, at its root, and [server] public_url is {url}; a host override works \
             as it is (larder client-config)"
        ));
    }
    let registry = registry.ok_or(
        "no registry is set for larder's own host name: set [server] default_upstream, such as registry.terraform.io",
    )?;
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    Ok(format!(
        r#"# {host} stands for {registry}. No CLI configuration is needed; to the client these are other
# providers than those of {registry}, also in the lock file.
terraform {{
  required_providers {{
    aws = {{
      source = "{host}/hashicorp/aws"
    }}
  }}
}}
module "vpc" {{
  source = "{host}/terraform-aws-modules/vpc/aws"
}}
"#
    ))
}

async fn client_config(
    mut hosts: Vec<&Hostname>,
    mirror: Option<&Arc<Mirror>>,
    base: &str,
    client_route: ClientRoute,
) -> Result<ClientConfig, Error> {
    // registry.terraform.io is listed first, because most readers look for it.
    hosts.sort_by_key(|host| (host.as_str() != TERRAFORM_REGISTRY, *host));
    if client_route == ClientRoute::NetworkMirror {
        return Ok(network_mirror(&hosts, base));
    }
    let mut config = ClientConfig::default();
    for host in hosts {
        let stored = match mirror {
            Some(mirror) => mirror.documents.stored_discovery(host).await?,
            None => None,
        };
        let discovery = stored.and_then(|stored| stored.discovery_for_clients().ok());
        let services = discovery.map(|discovery| services(discovery, host, |path| format!("{base}{path}")));
        if services.is_none() {
            let host = host.to_unicode();
            config.remarks.push(format!(
                "{host}: its own list of services is not stored here; if it has others than these, `larder client-config` prints \
                 them once it is"
            ));
        }
        config.lines.push_str(&host_block(host, services.as_ref(), base));
    }
    Ok(config)
}

/// The `host` block of one upstream, with every service that its discovery names.
fn host_block(host: &Hostname, services: Option<&RawObject>, base: &str) -> String {
    let services = match services {
        Some(services) => {
            let lines = services.iter().filter_map(|(name, value)| {
                // A client cannot represent such a number, so it is not a service.
                let value: Value = serde_json::from_str(value.get()).ok()?;
                Some(format!("    {} = {}\n", quoted(name), hcl(&value, "    ")?))
            });
            lines.collect::<String>()
        }
        None => format!(
            r#"    "providers.v1" = "{base}{}"
    "modules.v1" = "{base}{}"
"#,
            providers_base(host),
            modules_base(host)
        ),
    };
    format!("host \"{}\" {{\n  services = {{\n{services}  }}\n}}\n", host.to_unicode())
}

fn network_mirror(hosts: &[&Hostname], base: &str) -> ClientConfig {
    let https_only =
        "clients take a network mirror over https only: give larder [server] tls, or a public_url that is https";
    let remarks = (!base.starts_with("https://")).then(|| https_only.to_owned()).into_iter().collect();
    let patterns: Vec<String> = hosts.iter().map(|host| format!("\"{}/*/*\"", host.to_unicode())).collect();
    let patterns = patterns.join(", ");
    let lines = format!(
        r#"provider_installation {{
  network_mirror {{
    url     = "{base}{MIRROR_BASE}"
    include = [{patterns}]
  }}
  direct {{
    exclude = [{patterns}]
  }}
}}
"#
    );
    ClientConfig { remarks, lines }
}

/// Formats a value in HCL 1, the syntax of the clients' CLI configuration. A null, or a number that a client cannot
/// represent, is left out: it would invalidate the whole file.
fn hcl(value: &Value, indent: &str) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(_) => Some(value.to_string()),
        Value::Number(number) => (number.is_i64() || number.is_f64()).then(|| number.to_string()),
        Value::String(text) => Some(quoted(text)),
        Value::Array(elements) => {
            Some(format!("[{}]", elements.iter().filter_map(|value| hcl(value, indent)).collect::<Vec<_>>().join(", ")))
        }
        Value::Object(members) => {
            let inner = format!("{indent}  ");
            let members = members
                .iter()
                .filter_map(|(name, value)| Some(format!("{inner}{} = {}\n", quoted(name), hcl(value, &inner)?)));
            Some(format!("{{\n{}{indent}}}", members.collect::<String>()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::requirements::cli_config::{CliConfig, ServiceValue};

    fn read_back(services: &str) -> Vec<(String, Option<String>)> {
        let host = Hostname::parse("registry.example").unwrap();
        let services: RawObject = serde_json::from_str(services).unwrap();
        let text = host_block(&host, Some(&services), "http://127.0.0.1:8080");
        let read = CliConfig::read(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
        let url = |service: &ServiceValue| if let ServiceValue::Url(url) = service { Some(url.clone()) } else { None };
        read.hosts[&host].iter().map(|(name, service)| (name.clone(), url(service))).collect()
    }

    /// A value that clients cannot parse invalidates their whole file.
    #[test]
    fn values_that_hcl_1_cannot_express_are_left_out() {
        let read = read_back(
            r#"{"a.v1":null,"b.v1":"https://b.example/${x}","c.v1":{"d":null,"e":[1,null,{"f":true}]},"g.v1":18446744073709551615}"#,
        );
        assert_eq!(read, [("b.v1".to_owned(), Some("https://b.example/${x}".to_owned())), ("c.v1".to_owned(), None)]);
    }

    proptest! {
        #[test]
        fn services_are_read_as_they_were_written(
            services in prop::collection::btree_map("[a-z]{1,5}\\.v1|\\PC{1,5}", "\\PC{0,20}|([a\"\\\\${}%n\t\n\u{7f}\u{e123}é]){0,9}", 0..4),
        ) {
            let expected: Vec<_> = services.clone().into_iter().map(|(name, url)| (name, Some(url))).collect();
            prop_assert_eq!(read_back(&serde_json::to_string(&services).unwrap()), expected);
        }
    }
}
