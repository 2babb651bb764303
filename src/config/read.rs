//! Reads the whole file: its sections, their keys, and the rules that concern several sections.

use std::collections::BTreeMap;
use std::path::Path;

use secrecy::ExposeSecret;
use toml::de::DeTable;

use crate::address::Hostname;
use crate::bundle::{BundleKeys, PublicKey, SigningKey};
use crate::store::SizeLimit;

use super::section::{ConfigReader, Section};
use super::{Admin, Config, Network, Server, Store, TlsFiles, Upstream, credential, upstream, values, warm};

/// Reads the whole text of one file, even if it has problems. The configuration is valid only if the reader has none.
pub(super) fn read<'a>(
    text: &str,
    file: &'a Path,
    env: &'a dyn Fn(&str) -> Option<String>,
) -> (Config, ConfigReader<'a>) {
    let mut reader = ConfigReader::new(text, file, env);
    let mut config = Config::defaults(env);
    config.source = Some(file.to_owned());

    let (root, errors) = DeTable::parse_recoverable(text);
    Section::root(&mut reader, root.get_ref(), |root| read_root(root, &mut config));

    let syntax_errors: BTreeMap<_, _> =
        errors.iter().map(|error| (reader.line(error.span().unwrap_or_default().start), error.message())).collect();
    // The parser guesses the value in a line with a syntax error. Lines after a broken header seem to belong to another
    // section.
    let mut lines = (1..).zip(text.lines());
    let broken_header =
        lines.find(|(line, text)| syntax_errors.contains_key(line) && text.trim_start().starts_with('['));
    let first_unreliable_line = broken_header.map_or(usize::MAX, |(line, _)| line);
    let is_reliable = |line: usize| line < first_unreliable_line && !syntax_errors.contains_key(&line);
    reader.problems.retain(|problem| problem.line.is_none_or(is_reliable));
    for (line, message) in syntax_errors {
        let remark = reader.remark(Some(line), String::new(), format!("this is not TOML: {message}"));
        reader.problems.push(remark);
    }
    (config, reader)
}

fn read_root(root: &mut Section<'_, '_, '_>, config: &mut Config) {
    let store_path = std::mem::take(&mut config.store.path);
    config.server = root.table_or_defaults("server", read_server);
    config.admin = root.table_or_defaults("admin", read_admin);
    config.store = root.table_or_defaults("store", |section| {
        let default = Store::in_folder(store_path);
        Store {
            path: section.path("path", "/var/lib/larder").unwrap_or(default.path),
            max_size: match section.text("max_size", "200GiB", values::capacity) {
                Some(size) => SizeLimit::Bytes(size.as_u64()),
                None => default.max_size,
            },
            memory: section.text("memory", "64MiB", values::size).unwrap_or(default.memory),
            scrub: section.text("scrub", "30d", values::scrub_interval).unwrap_or(default.scrub),
        }
    });
    config.network = root.table_or_defaults("network", read_network);
    config.bundle = root.table_or_defaults("bundle", read_bundle);
    let upstreams = root.tables("upstream", |section| (section.line_of("host"), upstream::read(section)));
    let credentials = root.tables("credential", |section| (section.line_of("upstreams"), credential::read(section)));

    config.warm = root.tables("warm", warm::read).unwrap_or_default().into_iter().flatten().collect();
    if config.network.offline && !config.warm.is_empty() {
        root.warning(
            "warm",
            "[network] offline is true: nothing is fetched, so recurring warm-ups only report missing packages"
                .to_owned(),
        );
    }

    check_listeners(root, config);
    let all_upstreams_valid = upstreams.iter().flatten().all(|(_, upstream)| upstream.is_some());
    if let Some(upstreams) = upstreams {
        config.upstreams = distinct_upstreams(root, upstreams);
    }
    let credentials = credentials.unwrap_or_default();
    // With an invalid upstream, a reference to it must not be reported as unknown too.
    if all_upstreams_valid {
        let referenced_hosts = credentials.iter().flat_map(|(line, (hosts, _))| hosts.iter().map(|host| (*line, host)));
        check_host_references(root, config, referenced_hosts);
    }
    config.credentials = credentials.into_iter().filter_map(|(_, (_, credential))| credential).collect();
}

fn read_server(section: &mut Section<'_, '_, '_>) -> Server {
    let default = Server::default();
    let server = Server {
        listen: section.text("listen", "127.0.0.1:8080", values::listening).unwrap_or(default.listen),
        public_url: section.text("public_url", "https://mirror.corp.example/", values::base_url),
        tls: section.optional_table("tls", r#"{ certificate = "cert.pem", key = "key.pem" }"#, read_tls).flatten(),
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
            .list("allow_private", r#"["10.0.0.0/8", "artifacts.corp.example"]"#, values::private_destination)
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

/// Reports two listeners with one address.
fn check_listeners(root: &mut Section<'_, '_, '_>, config: &Config) {
    let listen = config.admin.listen;
    if listen.port() != 0 && listen == config.server.listen {
        let text = format!("{listen} is also [server] listen; each needs its own");
        root.problem_in_subsection("admin", "listen", text);
    }
}

/// The valid upstreams. Reports a second upstream with the same host.
fn distinct_upstreams(root: &mut Section<'_, '_, '_>, upstreams: Vec<(usize, Option<Upstream>)>) -> Vec<Upstream> {
    if root.is_empty_list("upstream") {
        root.problem("upstream", "an empty list mirrors nothing; omit it for the two public registries".to_owned());
    }
    let mut lines_by_host = BTreeMap::new();
    let mut distinct = Vec::new();
    for (line, upstream) in upstreams {
        let Some(upstream) = upstream else { continue };
        match lines_by_host.get(&upstream.host) {
            Some(first_line) => {
                let text = format!("{} is an upstream already, on line {first_line}", upstream.host);
                root.problem_at(line, "upstream.host", text);
            }
            None => {
                lines_by_host.insert(upstream.host.clone(), line);
                distinct.push(upstream);
            }
        }
    }
    distinct
}

/// Reports references to hosts that are not upstreams.
fn check_host_references<'h>(
    root: &mut Section<'_, '_, '_>,
    config: &Config,
    credential_upstreams: impl Iterator<Item = (usize, &'h Hostname)>,
) {
    let hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
    let host_list = hosts.iter().map(|host| host.to_string()).collect::<Vec<_>>().join(", ");
    let unknown =
        |host: &Hostname| (!hosts.contains(&host)).then(|| format!("{host} is not one of the upstreams ({host_list})"));
    if let Some(text) = config.server.default_upstream.as_ref().and_then(unknown) {
        root.problem_in_subsection("server", "default_upstream", text);
    }
    for (line, host) in credential_upstreams {
        if let Some(text) = unknown(host) {
            root.problem_at(line, "credential.upstreams", text);
        }
    }
}
