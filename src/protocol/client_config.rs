//! The CLI configuration that makes a client come here: to paste (PROTOCOL 1.2, 3.1).

use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;

use super::discovery::services;
use super::route::{MIRROR_BASE, modules_base, providers_base};
use crate::address::Hostname;
use crate::error::Error;
use crate::mirror::Mirror;

/// Which way a client shall come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A `host` override: complete lock files, every command.
    HostOverride,
    /// A `network_mirror`: https only.
    NetworkMirror,
}

/// The text to paste. `base` is how clients reach larder: `http://127.0.0.1:8080`, no slash at its end.
pub async fn text(mirror: &Arc<Mirror>, base: &str, way: Way) -> Result<String, Error> {
    let hosts = mirror.hosts();
    let hosts: Vec<&Hostname> = hosts.iter().collect();
    match way {
        Way::HostOverride => overrides(&hosts, Some(mirror), base).await,
        Way::NetworkMirror => Ok(network_mirror(&hosts, base)),
    }
}

/// The text to paste where nothing is held yet.
pub async fn text_of_nothing_held(hosts: &[&Hostname], base: &str, way: Way) -> Result<String, Error> {
    match way {
        Way::HostOverride => overrides(hosts, None, base).await,
        Way::NetworkMirror => Ok(network_mirror(hosts, base)),
    }
}

async fn overrides(hosts: &[&Hostname], mirror: Option<&Arc<Mirror>>, base: &str) -> Result<String, Error> {
    let mut text = String::new();
    for host in hosts {
        let held = match mirror {
            Some(mirror) => mirror.held_discovery(host).await?,
            None => None,
        };
        let discovery = held.and_then(|held| held.discovery_for_clients().ok());
        let known = discovery.map(|discovery| services(discovery, host, |path| format!("{base}{path}")));
        line(&mut text, format_args!("host \"{}\" {{", host.to_unicode()));
        line(&mut text, format_args!("  services = {{"));
        match known {
            Some(services) => {
                for (name, value) in &services {
                    // A number that no client could hold is no service of theirs.
                    if let Ok(value) = serde_json::from_str::<Value>(value.get()) {
                        line(&mut text, format_args!("    {} = {}", Value::from(name.as_str()), hcl(&value, "    ")));
                    }
                }
            }
            None => {
                line(&mut text, format_args!("    # its discovery is not held yet; these two are assumed"));
                line(&mut text, format_args!("    \"providers.v1\" = \"{base}{}\"", providers_base(host)));
                line(&mut text, format_args!("    \"modules.v1\" = \"{base}{}\"", modules_base(host)));
            }
        }
        line(&mut text, format_args!("  }}"));
        line(&mut text, format_args!("}}"));
    }
    Ok(text)
}

fn network_mirror(hosts: &[&Hostname], base: &str) -> String {
    let mut text = String::new();
    if !base.starts_with("https://") {
        line(
            &mut text,
            format_args!(
                "# clients take a network mirror over https only: give larder [server] tls, or a public_url that is https"
            ),
        );
    }
    let patterns: Vec<String> = hosts.iter().map(|host| format!("\"{}/*/*\"", host.to_unicode())).collect();
    let patterns = patterns.join(", ");
    line(&mut text, format_args!("provider_installation {{"));
    line(&mut text, format_args!("  network_mirror {{"));
    line(&mut text, format_args!("    url     = \"{base}{MIRROR_BASE}\""));
    line(&mut text, format_args!("    include = [{patterns}]"));
    line(&mut text, format_args!("  }}"));
    line(&mut text, format_args!("  direct {{"));
    line(&mut text, format_args!("    exclude = [{patterns}]"));
    line(&mut text, format_args!("  }}"));
    line(&mut text, format_args!("}}"));
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{line}");
}

/// A value in HCL. JSON strings are HCL strings but for its templates, which are escaped by doubling.
fn hcl(value: &Value, indent: &str) -> String {
    match value {
        Value::String(text) => Value::from(text.replace("${", "$${").replace("%{", "%%{")).to_string(),
        Value::Array(all) => format!("[{}]", all.iter().map(|value| hcl(value, indent)).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let inner = format!("{indent}  ");
            let members = members
                .iter()
                .map(|(name, value)| format!("{inner}{} = {}\n", Value::from(name.as_str()), hcl(value, &inner)));
            format!("{{\n{}{indent}}}", members.collect::<String>())
        }
        other => other.to_string(),
    }
}
