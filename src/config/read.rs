//! Reads the whole file: its sections, their keys, and the rules between them.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;
use std::path::Path;

use secrecy::ExposeSecret;
use toml::de::DeTable;

use crate::address::Hostname;
use crate::bundle::{BundleKeys, PublicKey, SigningKey};
use crate::store::SizeLimit;

use super::problem::{Remark, Warning};
use super::reading::ConfigReader;
use super::section::Section;
use super::{Admin, Config, Network, Server, Store, TlsFiles, Upstream, credential, upstream, values, warm};

/// Result of reading one file. The configuration is valid only without problems.
pub(super) struct ReadOutcome {
    pub(super) config: Config,
    pub(super) problems: Vec<Remark>,
    pub(super) warnings: Vec<Warning>,
    /// Every key that was asked for, with its section.
    #[cfg(test)]
    pub(super) known_keys: BTreeSet<String>,
}

/// Reads the text of one file to its end, despite any problems.
pub(super) fn read(text: &str, file: &Path, env: &dyn Fn(&str) -> Option<String>) -> ReadOutcome {
    let mut reading = ConfigReader::new(text, file, env);
    let mut config = Config::defaults(env);
    config.source = Some(file.to_owned());

    let (root, errors) = DeTable::parse_recoverable(text);
    Section::root(&mut reading, root.get_ref(), |root| read_root(root, &mut config));

    let broken: BTreeMap<_, _> =
        errors.iter().map(|error| (reading.line(error.span().unwrap_or_default().start), error.message())).collect();
    // The parser guesses the value of a broken line. Lines after a broken header seem to belong to another section.
    let mut lines = (1..).zip(text.lines());
    let header = lines.find(|(line, text)| broken.contains_key(line) && text.trim_start().starts_with('['));
    let lost = header.map_or(usize::MAX, |(line, _)| line);
    let counts = |line: usize| line < lost && !broken.contains_key(&line);
    reading.problems.retain(|problem| problem.line.is_none_or(counts));
    for (line, message) in broken {
        let remark = reading.remark(Some(line), String::new(), format!("this is not TOML: {message}"));
        reading.problems.push(remark);
    }
    ReadOutcome {
        config,
        problems: reading.problems,
        warnings: reading.warnings,
        #[cfg(test)]
        known_keys: reading.known_keys,
    }
}

fn read_root(root: &mut Section<'_, '_, '_>, config: &mut Config) {
    let store_path = std::mem::take(&mut config.store.path);
    config.server = root.part("server", read_server);
    config.admin = root.part("admin", read_admin);
    config.store = root.part("store", |section| {
        let default = Store::in_folder(store_path);
        Store {
            path: section.path("path", "/var/lib/larder").unwrap_or(default.path),
            max_size: match section.text("max_size", "200GiB", values::capacity) {
                Some(size) => SizeLimit::Bytes(size.as_u64()),
                None => default.max_size,
            },
            memory: section.text("memory", "64MiB", values::size).unwrap_or(default.memory),
            scrub: section.text("scrub", "30d", values::interval).unwrap_or(default.scrub),
        }
    });
    config.network = root.part("network", read_network);
    config.bundle = root.part("bundle", read_bundle);
    let upstreams = root.tables("upstream", |section| (section.line_of("host"), upstream::read(section)));
    let credentials = root.tables("credential", |section| (section.line_of("upstreams"), credential::read(section)));

    config.warm = root.tables("warm", warm::read).unwrap_or_default().into_iter().flatten().collect();
    if config.network.offline && !config.warm.is_empty() {
        root.warning(
            "warm",
            "[network] offline is true: nothing is fetched, so these only report missing packages".to_owned(),
        );
    }

    check_listeners(root, config);
    let all_known = upstreams.iter().flatten().all(|(_, upstream)| upstream.is_some());
    if let Some(upstreams) = upstreams {
        config.upstreams = distinct(root, upstreams);
    }
    let credentials = credentials.unwrap_or_default();
    // With an invalid upstream, a reference to it must not be reported as unknown too.
    if all_known {
        let named = credentials.iter().flat_map(|(line, (hosts, _))| hosts.iter().map(|host| (*line, host)));
        check_hosts(root, config, named);
    }
    config.credentials = credentials.into_iter().filter_map(|(_, (_, credential))| credential).collect();
}

fn read_server(section: &mut Section<'_, '_, '_>) -> Server {
    let default = Server::default();
    let server = Server {
        listen: section.text("listen", "127.0.0.1:8080", values::listening).unwrap_or(default.listen),
        public_url: section.text("public_url", "https://mirror.corp.example/", values::base_url),
        tls: section.table("tls", r#"{ certificate = "cert.pem", key = "key.pem" }"#, read_tls).flatten(),
        http2: section.flag("http2").unwrap_or(default.http2),
        default_upstream: section.text("default_upstream", "registry.terraform.io", values::hostname),
        clients: section.list("clients", r#"["10.0.0.0/8"]"#, values::network),
        open: section.flag("open").unwrap_or(default.open),
        trusted_proxies: section.list("trusted_proxies", r#"["10.0.0.5"]"#, values::network).unwrap_or_default(),
    };
    if section.is_empty_list("clients") {
        section.problem("clients", "an empty list allows no client; omit it to allow every client".to_owned());
    }
    server
}

fn read_tls(section: &mut Section<'_, '_, '_>) -> Option<TlsFiles> {
    let certificate = section.required_file("certificate", "cert.pem");
    let key = section.required_file("key", "key.pem");
    Some(TlsFiles { certificate: certificate?, key: key? })
}

fn read_admin(section: &mut Section<'_, '_, '_>) -> Admin {
    let default = Admin::default();
    Admin {
        listen: section.text("listen", "127.0.0.1:8081", values::listening).unwrap_or(default.listen),
        token: section.secret("token", r#"{ env = "LARDER_ADMIN_TOKEN" }"#),
    }
}

fn read_network(section: &mut Section<'_, '_, '_>) -> Network {
    Network {
        offline: section.flag("offline").unwrap_or(false),
        sealed_platforms: section.list("sealed_platforms", r#"["linux_amd64"]"#, values::platform).unwrap_or_default(),
        ca_file: section.file("ca_file", "corporate-ca.pem"),
        allow_private: section
            .list("allow_private", r#"["10.0.0.0/8", "artifacts.corp.example"]"#, values::private)
            .unwrap_or_default(),
    }
}

fn read_bundle(section: &mut Section<'_, '_, '_>) -> BundleKeys {
    let secret = section.secret("signing_key", r#"{ file = "bundle.key" }"#);
    let signing = secret.and_then(|text| {
        let key = SigningKey::parse(text.expose_secret());
        key.map_err(|bad| section.problem("signing_key", bad.to_string())).ok()
    });
    let key = |text: &str| PublicKey::parse(text).map_err(|bad| bad.to_string());
    let trusted = section.list("trusted_keys", r#"["ed25519:…"]"#, key).unwrap_or_default();
    BundleKeys { signing, trusted, max_age: section.text("max_age", "30d", values::duration) }
}

fn check_listeners(root: &mut Section<'_, '_, '_>, config: &Config) {
    let listen = config.admin.listen;
    if listen.port() != 0 && listen == config.server.listen {
        let text = format!("{listen} is also [server] listen; each needs its own");
        root.problem_within("admin", "listen", text);
    }
}

fn distinct(root: &mut Section<'_, '_, '_>, upstreams: Vec<(usize, Option<Upstream>)>) -> Vec<Upstream> {
    if root.is_empty_list("upstream") {
        root.problem("upstream", "an empty list mirrors nothing; omit it for the two public registries".to_owned());
    }
    let mut seen = BTreeMap::new();
    let mut kept = Vec::new();
    for (line, upstream) in upstreams {
        let Some(upstream) = upstream else { continue };
        match seen.get(&upstream.host) {
            Some(first) => {
                let text = format!("{} is an upstream already, on line {first}", upstream.host);
                root.problem_at(line, "upstream.host", text);
            }
            None => {
                seen.insert(upstream.host.clone(), line);
                kept.push(upstream);
            }
        }
    }
    kept
}

fn check_hosts<'h>(
    root: &mut Section<'_, '_, '_>,
    config: &Config,
    of_credentials: impl Iterator<Item = (usize, &'h Hostname)>,
) {
    let hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
    let listed = hosts.iter().map(|host| host.to_string()).collect::<Vec<_>>().join(", ");
    let unknown =
        |host: &Hostname| (!hosts.contains(&host)).then(|| format!("{host} is not one of the upstreams ({listed})"));
    if let Some(text) = config.server.default_upstream.as_ref().and_then(unknown) {
        root.problem_within("server", "default_upstream", text);
    }
    for (line, host) in of_credentials {
        if let Some(text) = unknown(host) {
            root.problem_at(line, "credential.upstreams", text);
        }
    }
}
