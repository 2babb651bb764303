//! Providers in configurations.

use super::super::request::ClientKind;
use crate::address::{Hostname, Name, ProviderAddress};

/// Result of parsing a provider source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProviderReference {
    /// A registry's provider.
    Provider(ProviderAddress),
    /// The built-in provider.
    BuiltIn,
}

/// Namespace of a source that has only a type.
const DEFAULT_NAMESPACE: &str = "hashicorp";
/// Address of the built-in provider.
const BUILT_IN: (&str, &str, &str) = ("terraform.io", "builtin", "terraform");

/// The registry of an address without a host.
pub(in super::super) fn default_host(client: ClientKind) -> &'static str {
    match client {
        ClientKind::Terraform => "registry.terraform.io",
        ClientKind::Opentofu => "registry.opentofu.org",
    }
}

/// Parses `source`: `[HOST/]NAMESPACE/TYPE`, or a type alone.
///
/// # Errors
/// The reason why clients refuse it.
pub(super) fn parse_source(source: &str, client: ClientKind) -> Result<ProviderReference, String> {
    let parts: Vec<&str> = source.split('/').collect();
    let (host, namespace, type_) = match parts.as_slice() {
        [type_] => (default_host(client), DEFAULT_NAMESPACE, *type_),
        [namespace, type_] => (default_host(client), *namespace, *type_),
        [host, namespace, type_] => (*host, *namespace, *type_),
        _ => return Err("a provider's source is [HOST/]NAMESPACE/TYPE".to_owned()),
    };
    if type_.starts_with("terraform-") {
        return Err(format!(
            "a provider's type does not begin with \"terraform-\": it is {:?}",
            type_.trim_start_matches("terraform-provider-")
        ));
    }
    for name in [namespace, type_] {
        check_name(name)?;
    }
    let address = |host: &str| {
        Ok(ProviderAddress {
            host: Hostname::parse(host)?,
            namespace: Name::parse(namespace)?,
            type_: Name::parse(type_)?,
        })
    };
    let address = address(host).map_err(|bad: crate::address::BadAddress| bad.to_string())?;
    let names = (address.host.as_str(), address.namespace.as_str(), address.type_.as_str());
    match names {
        names if names == BUILT_IN => Ok(ProviderReference::BuiltIn),
        (host, namespace, type_) if (host, namespace) == (BUILT_IN.0, BUILT_IN.1) => {
            Err(format!("no client has a built-in provider named {type_:?}"))
        }
        _ => Ok(ProviderReference::Provider(address)),
    }
}

/// The provider of a local name that has no entry in `required_providers`.
///
/// # Errors
/// The reason why clients refuse it.
pub(super) fn from_local_name(name: &str, client: ClientKind) -> Result<ProviderReference, String> {
    match name {
        "terraform" => Ok(ProviderReference::BuiltIn),
        // A name with a slash would be parsed as an address.
        name if name.contains('/') => Err(format!("{name:?} is not a provider name")),
        name => parse_source(name, client),
    }
}

/// Checks a namespace, a type or a local name for characters that clients accept nowhere.
///
/// # Errors
/// The reason why clients refuse it.
pub(in super::super) fn check_name(name: &str) -> Result<(), String> {
    if name.contains('_') || name.contains("--") || name.starts_with('-') || name.ends_with('-') {
        return Err(format!("{name:?} is not a provider name: a name has letters, digits, and single - between them"));
    }
    Ok(())
}

/// Checks a local name in `required_providers` and in `provider` blocks.
///
/// # Errors
/// The reason why clients refuse it.
pub(super) fn check_local_name(name: &str) -> Result<(), String> {
    if name.chars().any(char::is_uppercase) {
        return Err(format!("clients accept {name:?} in lower case only"));
    }
    check_name(name)
}

/// The local name implied by a resource type: the part before its first underscore.
pub(super) fn implied_by(resource_type: &str) -> &str {
    resource_type.split('_').next().unwrap_or(resource_type)
}
