//! Module sources as the clients read them: a path, or the address of a registry. Anything else bypasses registries.

use super::super::request::ClientKind;
use super::provider::default_host;
use crate::address::{Hostname, ModuleAddress, ModuleName, System};

/// Hosts that are not registries, although sources look like registry addresses.
const NO_REGISTRIES: [&str; 2] = ["github.com", "bitbucket.org"];
/// The longest accepted source, in bytes.
const LONGEST: usize = 2048;
/// Shown length of a source, in characters.
const SHOWN: usize = 200;

/// The source of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ModuleSource {
    /// A folder relative to the caller: it begins with `./` or `../`.
    Local(String),
    /// A registry.
    Registry {
        /// The module.
        module: ModuleAddress,
        /// The folder below the registry's own; empty for that one.
        subdir: String,
    },
}

impl ModuleSource {
    /// Parses a source. With a version beside it, even an empty one, only a registry address is accepted.
    ///
    /// # Errors
    /// The reason why no registry provides it, and the remedy.
    pub(super) fn parse(given: &str, has_version: bool, client: ClientKind) -> Result<Self, String> {
        if given.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        let is_local = ["./", "../", ".\\", "..\\"].iter().any(|start| given.starts_with(start));
        match (is_local, has_version) {
            (true, false) => return Ok(Self::Local(given.replace('\\', "/"))),
            (true, true) => {
                return Err("a path has no version, and clients refuse it: take the version away".to_owned());
            }
            (false, _) => {}
        }
        match (registry(given, client), has_version) {
            (Ok(source), _) => Ok(source),
            // The detail could show a secret.
            (Err(_), true) if without_secrets(given) != given => {
                Err(format!("with a version, it has to be the address of a registry: {}", elsewhere(given)))
            }
            (Err(reason), true) => Err(format!("with a version, it has to be the address of a registry: {reason}")),
            (Err(_), false) => Err(elsewhere(given)),
        }
    }
}

/// Makes a source safe to show: without userinfo except `git@`, without a fragment, and of the query only `ref`. Where
/// secrets cannot be recognised, more is dropped.
pub(in super::super) fn without_secrets(given: &str) -> String {
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
    let (mut start, mut rest) = (String::new(), given);
    while let Some((getter, after)) = rest.split_once("::").filter(|(getter, _)| is_word(getter)) {
        start += &format!("{getter}::");
        rest = after;
    }
    let scheme = rest.split_once("://").filter(|(scheme, _)| is_word(scheme));
    if let Some((scheme, after)) = scheme {
        start += &format!("{scheme}://");
        rest = after;
    }
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    // A password may contain such a sign, or the rest an @: they cannot be distinguished.
    if rest[end..].contains('@') {
        return format!("{}…", start.chars().take(SHOWN).collect::<String>());
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
    let shown = format!("{start}{address}{}", reference.unwrap_or_default());
    shown.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(SHOWN).collect()
}

/// The remedy for a source that no registry answers.
fn elsewhere(given: &str) -> String {
    if given.starts_with('/') || given.split("::").last().is_some_and(|url| url.starts_with("file:")) {
        return "it is an absolute path, and its files were not sent: write a relative path, with ./ or ../ before it"
            .to_owned();
    }
    if !given.contains([':', '?']) && given.split('/').next().is_none_or(|first| !first.contains('.')) {
        return format!(
            "it is neither a path nor the address of a module in a registry: write \"./{}\" if it is a folder, or NAMESPACE/NAME/SYSTEM",
            without_secrets(given)
        );
    }
    "it bypasses registries: the client fetches it itself, so it is not there without the network. Publish it in a registry, or copy it beside the configuration and call it by its path".to_owned()
}

fn registry(given: &str, client: ClientKind) -> Result<ModuleSource, String> {
    if given.contains('?') {
        return Err("the address of a module has no query".to_owned());
    }
    let (address, subdir) = given.split_once("//").unwrap_or((given, ""));
    let subdir = clean(subdir).ok_or_else(|| format!("{subdir:?} leads out of the module"))?;
    let parts: Vec<&str> = address.split('/').collect();
    let (host, [namespace, name, system]) = match parts.as_slice() {
        [namespace, name, system] => (default_host(client), [*namespace, *name, *system]),
        [host, namespace, name, system] => (*host, [*namespace, *name, *system]),
        _ => return Err("that is [HOST/]NAMESPACE/NAME/SYSTEM".to_owned()),
    };
    let is_punycode = host.split('.').any(|label| label.to_ascii_lowercase().starts_with("xn--"));
    if is_punycode {
        return Err(format!("clients take {host:?} in its own letters only, not in punycode"));
    }
    let host = Hostname::parse(host).map_err(|bad| bad.to_string())?;
    if !host.name().contains('.') {
        return Err(format!("{host} has no dot, as the host of a module must"));
    }
    if NO_REGISTRIES.contains(&host.as_str()) {
        return Err(format!("{host} is not a registry to the clients"));
    }
    let module_name = |given: &str| {
        let is_well = given.len() <= 64 && given.ends_with(|c: char| c.is_ascii_alphanumeric());
        match ModuleName::parse(given) {
            Ok(name) if is_well => Ok(name),
            Ok(_) => Err(format!("{given:?} is longer than 64 bytes, or does not end in a letter or a digit")),
            Err(bad) => Err(bad.to_string()),
        }
    };
    let (namespace, name) = (module_name(namespace)?, module_name(name)?);
    let system = System::parse(system).map_err(|bad| bad.to_string())?;
    Ok(ModuleSource::Registry { module: ModuleAddress { host, namespace, name, system }, subdir })
}

/// A path without `.`, `..` and empty segments; `None` where it leads out.
fn clean(path: &str) -> Option<String> {
    super::super::path::join("", path)
}
