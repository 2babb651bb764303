//! Sources of modules and providers as the clients read them. A module's is a path, or the address of a registry; anything
//! else bypasses registries.

use super::super::ClientKind;
use super::super::files::resolve_path;
use crate::address::{Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System};

/// Hosts that are not registries, although sources on them look like registry addresses.
const NOT_REGISTRIES: [&str; 2] = ["github.com", "bitbucket.org"];
/// The longest accepted source, in bytes.
const MAX_SOURCE_BYTES: usize = 2048;
/// The maximum length of a source in messages, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// The source of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ModuleSource {
    /// A folder relative to the caller: it begins with `./` or `../`.
    Local(String),
    /// A module of a registry.
    Registry {
        /// The module.
        module: ModuleAddress,
        /// The folder of the module, below the one that the registry names; empty for that folder itself.
        subdir: String,
    },
}

impl ModuleSource {
    /// Parses a source. With a version beside it, even an empty one, only a registry address is accepted.
    ///
    /// # Errors
    /// The reason why no registry provides it, and the remedy.
    pub(super) fn parse(source: &str, has_version: bool, client: ClientKind) -> Result<Self, String> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(format!("the source is longer than {MAX_SOURCE_BYTES} bytes"));
        }
        let is_local = ["./", "../", ".\\", "..\\"].iter().any(|start| source.starts_with(start));
        match (is_local, has_version) {
            (true, false) => return Ok(Self::Local(source.replace('\\', "/"))),
            (true, true) => {
                return Err("a path has no version, and clients refuse it: remove the version".to_owned());
            }
            (false, _) => {}
        }
        let reason = match parse_registry_address(source, client) {
            Ok(registry_source) => return Ok(registry_source),
            // The detail could show a secret.
            Err(detail) if has_version && without_secrets(source) == source => detail,
            Err(_) => not_a_registry_reason(source),
        };
        let rule = "with a version, the source has to be the address of a module in a registry";
        Err(if has_version { format!("{rule}: {reason}") } else { reason })
    }
}

/// Makes a source safe to show: without userinfo except `git@`, without a fragment, and of the query only `ref`. Where
/// secrets cannot be recognised, more is dropped.
pub(in super::super) fn without_secrets(source: &str) -> String {
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
    let (mut prefix, mut rest) = (String::new(), source);
    while let Some((getter, after)) = rest.split_once("::").filter(|(getter, _)| is_word(getter)) {
        prefix += &format!("{getter}::");
        rest = after;
    }
    let scheme = rest.split_once("://").filter(|(scheme, _)| is_word(scheme));
    if let Some((scheme, after)) = scheme {
        prefix += &format!("{scheme}://");
        rest = after;
    }
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    // The password may contain `?` or `#`, or the query an `@`: they cannot be distinguished.
    if rest[end..].contains('@') {
        return format!("{}…", prefix.chars().take(MAX_SHOWN_CHARS).collect::<String>());
    }
    rest = rest.split('#').next().unwrap_or_default();
    if let Some((user, after)) = rest.rsplit_once('@') {
        let is_secret = scheme.is_some() || user.contains(':') || !user.contains('/');
        match user {
            "git" => {}
            _ if is_secret => rest = after,
            _ => {}
        }
    }
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let reference = query.split('&').find(|part| part.starts_with("ref=")).map(|part| format!("?{part}"));
    let shown = format!("{prefix}{address}{}", reference.unwrap_or_default());
    shown.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(MAX_SHOWN_CHARS).collect()
}

/// Why no registry provides a source, and the remedy.
fn not_a_registry_reason(source: &str) -> String {
    if source.starts_with('/') || source.split("::").last().is_some_and(|url| url.starts_with("file:")) {
        return "the source is an absolute path, whose files larder was not given: write a relative path, with ./ or ../ in front"
            .to_owned();
    }
    if !source.contains([':', '?']) && source.split('/').next().is_none_or(|first| !first.contains('.')) {
        return format!(
            "the source is neither a path nor the address of a module in a registry: write \"./{}\" for a folder, or NAMESPACE/NAME/SYSTEM",
            without_secrets(source)
        );
    }
    "the source bypasses registries: clients fetch the module themselves, so it is unavailable without the network. Publish the module in a registry, or copy it beside the configuration and call it by its path".to_owned()
}

/// Parses `[HOST/]NAMESPACE/NAME/SYSTEM[//SUBDIR]`.
fn parse_registry_address(source: &str, client: ClientKind) -> Result<ModuleSource, String> {
    if source.contains('?') {
        return Err("the address of a module has no query".to_owned());
    }
    let (address, subdir) = source.split_once("//").unwrap_or((source, ""));
    let subdir = resolve_path("", subdir).ok_or_else(|| format!("{subdir:?} leads out of the module"))?;
    let parts: Vec<&str> = address.split('/').collect();
    let (host, [namespace, name, system]) = match parts.as_slice() {
        [namespace, name, system] => (client.default_host(), [*namespace, *name, *system]),
        [host, namespace, name, system] => (*host, [*namespace, *name, *system]),
        _ => return Err("the address of a module is [HOST/]NAMESPACE/NAME/SYSTEM".to_owned()),
    };
    let is_punycode = host.split('.').any(|label| label.to_ascii_lowercase().starts_with("xn--"));
    if is_punycode {
        return Err(format!("clients accept {host:?} in its own letters only, not in punycode"));
    }
    let host = Hostname::parse(host).map_err(|bad| bad.to_string())?;
    if !host.name().contains('.') {
        return Err(format!("{host} has no dot, as the host of a module must"));
    }
    if NOT_REGISTRIES.contains(&host.as_str()) {
        return Err(format!("{host} is not a registry to the clients"));
    }
    let module_name = |text: &str| {
        let is_accepted = text.len() <= 64 && text.ends_with(|c: char| c.is_ascii_alphanumeric());
        match ModuleName::parse(text) {
            Ok(name) if is_accepted => Ok(name),
            Ok(_) => Err(format!("{text:?} is longer than 64 bytes, or does not end in a letter or a digit")),
            Err(bad) => Err(bad.to_string()),
        }
    };
    let (namespace, name) = (module_name(namespace)?, module_name(name)?);
    let system = System::parse(system).map_err(|bad| bad.to_string())?;
    Ok(ModuleSource::Registry { module: ModuleAddress { host, namespace, name, system }, subdir })
}

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

/// Parses `source`: `[HOST/]NAMESPACE/TYPE`, or a type alone.
///
/// # Errors
/// The reason why clients refuse it.
pub(super) fn parse_source(source: &str, client: ClientKind) -> Result<ProviderReference, String> {
    let parts: Vec<&str> = source.split('/').collect();
    let (host, namespace, type_) = match parts.as_slice() {
        [type_] => (client.default_host(), DEFAULT_NAMESPACE, *type_),
        [namespace, type_] => (client.default_host(), *namespace, *type_),
        [host, namespace, type_] => (*host, *namespace, *type_),
        _ => return Err("a provider's source is [HOST/]NAMESPACE/TYPE".to_owned()),
    };
    if type_.starts_with("terraform-") {
        return Err(format!(
            "a provider's type does not begin with \"terraform-\": it is {:?}",
            type_.trim_start_matches("terraform-provider-")
        ));
    }
    if client == ClientKind::Opentofu && namespace.contains('_') {
        return Err(format!("OpenTofu accepts no underscore in a namespace, as in {namespace:?}"));
    }
    let address = parse_address([host, namespace, type_])?;
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

/// Parses the host, the namespace and the type of a provider, in a source and in a lock file.
///
/// # Errors
/// The reason why every client refuses it.
pub(in super::super) fn parse_address([host, namespace, type_]: [&str; 3]) -> Result<ProviderAddress, String> {
    let (namespace, type_) = (parse_namespace(namespace)?, parse_type(type_)?);
    let host = Hostname::parse(host).map_err(|bad| bad.to_string())?;
    Ok(ProviderAddress { host, namespace, type_ })
}

/// Parses the namespace of a provider. Clients differ in underscores:
///
/// | client | underscores | read from |
/// | --- | --- | --- |
/// | Terraform before 1.16 | none | terraform-registry-address 0.4, `ParseProviderPart` |
/// | Terraform from 1.16 on | between other characters | terraform-registry-address 0.5.1, `ParseProviderNamespace` |
/// | OpenTofu | none | opentofu/registry-address, `ParseProviderPart` |
///
/// A configuration does not tell which Terraform reads it, so the newest one's rule holds; an older one refuses such an
/// address itself.
fn parse_namespace(namespace: &str) -> Result<Name, String> {
    if namespace.starts_with('_') || namespace.ends_with('_') {
        return Err(format!("{namespace:?} is not a provider's namespace: it begins or ends with an underscore"));
    }
    check_dashes(namespace)?;
    Name::parse(namespace).map_err(|bad| bad.to_string())
}

/// Parses the type of a provider, in which no client accepts an underscore: types of resources begin with it.
fn parse_type(type_: &str) -> Result<Name, String> {
    check_name(type_)?;
    Name::parse(type_).map_err(|bad| bad.to_string())
}

/// Checks a type or a local name for characters that clients accept nowhere.
fn check_name(name: &str) -> Result<(), String> {
    if name.contains('_') {
        return Err(format!("{name:?} is not a provider name: clients accept no underscore in it"));
    }
    check_dashes(name)
}

fn check_dashes(name: &str) -> Result<(), String> {
    if name.contains("--") || name.starts_with('-') || name.ends_with('-') {
        return Err(format!(
            "{name:?} is not a provider name: a name has only single dashes, between other characters"
        ));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of providers, as the library of Terraform 1.16 reads them.
    #[test]
    fn namespaces_and_types_are_read_as_terraform_reads_them() {
        let mut with_underscore = 0;
        for line in include_str!("../../../tests/fixtures/provider-names.tsv").lines() {
            let [given, namespace, type_] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let given: String = serde_json::from_str(given).unwrap();
            let text =
                |parsed: Result<Name, String>| parsed.map_or_else(|_| "refused".to_owned(), |name| name.to_string());
            let larder = (text(parse_namespace(&given)), text(parse_type(&given)));
            assert_eq!(larder, (namespace.to_owned(), type_.to_owned()), "{given:?}");
            with_underscore += usize::from(namespace.contains('_'));
        }
        assert!(with_underscore > 30, "{with_underscore}");
    }
}
