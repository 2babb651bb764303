//! Reads the whole file: its sections, their keys, and the rules that concern several sections.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use secrecy::ExposeSecret;
use toml::de::DeTable;

use crate::address::{Hostname, Platform, TERRAFORM_REGISTRY};
use crate::bundle::{BundleKeys, NotesPolicy, PublicKey, SigningKey};
use crate::store::SizeLimit;

use super::section::{ConfigReader, Section};
use super::{
    Admin, AuditTarget, Config, Network, Server, Store, StoreNaming, TlsFiles, Upstream, client, credential, fleet, os,
    policy, upstream, values, warm,
};

/// Reads the whole text of one file, even if it has problems. The configuration is valid only if the reader has none.
pub(super) fn read<'a>(
    text: &str,
    file: &'a Path,
    env: &'a dyn Fn(&str) -> Option<String>,
) -> (Config, ConfigReader<'a>) {
    let mut reader = ConfigReader::new(text, file, env);
    let (root, errors) = DeTable::parse_recoverable(text);
    let config = Section::read_table(&mut reader, String::new(), 0, Some(root.get_ref()), read_root);
    let config = Config { source: Some(file.to_owned()), ..config };

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
        let diagnostic = reader.diagnostic(Some(line), String::new(), format!("this is not TOML: {message}"));
        reader.problems.push(diagnostic);
    }
    (config, reader)
}

fn read_root(root: &mut Section<'_, '_, '_>) -> Config {
    let (server, default_upstream_line) =
        root.table_or_defaults("server", |section| (read_server(section), section.line_of("default_upstream")));
    let (admin, admin_line) =
        root.table_or_defaults("admin", |section| (read_admin(section), section.line_of("listen")));
    let store = root.table_or_defaults("store", read_store);
    let network = root.table_or_defaults("network", read_network);
    let bundle = root.table_or_defaults("bundle", read_bundle);
    let audit = root.optional_table("audit", AUDIT_EXAMPLE, read_audit).flatten();
    let lock_platforms = root.table_or_defaults("lock", read_lock);
    let read_fleet = |section: &mut Section<'_, '_, '_>| fleet::read(section, admin.token.as_ref());
    let fleet = root.optional_table("fleet", fleet::EXAMPLE, read_fleet).flatten();
    let upstreams = root.tables("upstream", |section| (section.line_of("host"), upstream::read(section)));
    let credentials = root.tables("credential", |section| (section.line_of("upstreams"), credential::read(section)));
    let credentials = credentials.unwrap_or_default();
    let rules = root.tables("policy", policy::read).unwrap_or_default();
    let clients = root.tables("client", client::read).unwrap_or_default();
    if root.is_empty_list("client") {
        root.problem("client", "an empty list asks nobody for a token; omit it to allow every client".to_owned());
    }
    let warm: Vec<_> = root.tables("warm", warm::read).unwrap_or_default().into_iter().flatten().collect();
    if network.offline && !warm.is_empty() {
        root.warning(
            "warm",
            "[network] offline is true: nothing is fetched, so recurring warm-ups only report missing packages"
                .to_owned(),
        );
    }
    if admin.listen.port() != 0 && admin.listen == server.listen {
        let text = format!("{} is also [server] listen; each needs its own", admin.listen);
        root.problem_at(admin_line, "admin.listen", text);
    }
    let all_upstreams_valid = upstreams.iter().flatten().all(|(_, upstream)| upstream.is_some());
    let upstreams = upstreams.map_or_else(Upstream::public_registries, |upstreams| distinct_upstreams(root, upstreams));
    // With an invalid upstream, a reference to it must not be reported as unknown too.
    if all_upstreams_valid {
        let default_upstream =
            server.default_upstream.iter().map(|host| (default_upstream_line, "server.default_upstream", host));
        let of_credentials = credentials
            .iter()
            .flat_map(|(line, (hosts, _))| hosts.iter().map(|host| (*line, "credential.upstreams", host)));
        check_host_references(root, &upstreams, default_upstream.chain(of_credentials));
    }
    let policy = Arc::new(policy::policy(root, rules, &upstreams));
    let clients = client::distinct(root, clients, &upstreams);
    let credentials = credentials.into_iter().filter_map(|(_, (_, credential))| credential).collect();
    Config {
        source: None,
        server,
        admin,
        store,
        network,
        upstreams,
        credentials,
        policy,
        clients,
        bundle,
        audit,
        lock_platforms,
        warm,
        fleet,
    }
}

fn on_loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn read_server(section: &mut Section<'_, '_, '_>) -> Server {
    let server = Server {
        listen: section.text("listen", "127.0.0.1:8080", values::listening).unwrap_or(on_loopback(8080)),
        public_url: section.text("public_url", "https://mirror.corp.example/", values::base_url),
        tls: section.optional_table("tls", r#"{ certificate = "cert.pem", key = "key.pem" }"#, read_tls).flatten(),
        default_upstream: section.text("default_upstream", TERRAFORM_REGISTRY, values::hostname),
        clients: section.list("clients", r#"["10.0.0.0/8"]"#, values::network),
        open: section.flag("open").unwrap_or(false),
        trusted_proxies: section.list("trusted_proxies", r#"["10.0.0.5"]"#, values::network).unwrap_or_default(),
    };
    if section.is_empty_list("clients") {
        section.problem("clients", "an empty list allows no client; omit it to allow every client".to_owned());
    }
    server
}

fn read_tls(section: &mut Section<'_, '_, '_>) -> Option<TlsFiles> {
    section.require(&["certificate", "key"]);
    let certificate = section.file("certificate", "cert.pem");
    let key = section.file("key", "key.pem");
    Some(TlsFiles { certificate: certificate?, key: key? })
}

fn read_admin(section: &mut Section<'_, '_, '_>) -> Admin {
    Admin {
        listen: section.text("listen", "127.0.0.1:8081", values::listening).unwrap_or(on_loopback(8081)),
        token: section.secret("token", r#"{ env = "LARDER_ADMIN_TOKEN" }"#),
        asked: None,
    }
}

const AUDIT_EXAMPLE: &str = r#"{ path = "/var/log/larder/audit.jsonl" }"#;

fn read_lock(section: &mut Section<'_, '_, '_>) -> Vec<Platform> {
    section.list("platforms", r#"["linux_amd64", "darwin_arm64"]"#, values::platform).unwrap_or_default()
}

/// `"journal"` is the journal; a file of that name is `"./journal"`.
fn read_audit(section: &mut Section<'_, '_, '_>) -> Option<AuditTarget> {
    section.require(&["path"]);
    let path = section.path("path", "/var/log/larder/audit.jsonl")?;
    Some(if section.has_text("path", "journal") { AuditTarget::Journal } else { AuditTarget::File(path) })
}

fn read_store(section: &mut Section<'_, '_, '_>) -> Store {
    let default_path = os::store_folder(&|name| section.variable(name));
    let max_size = section.text("max_size", "200GiB", values::capacity);
    // Disks lose bits over months, and reading a full store takes only hours.
    let monthly = Some(Duration::from_secs(30 * 24 * 3600));
    Store {
        path: section.path("path", "/var/lib/larder").unwrap_or(default_path),
        named_by: StoreNaming::Configuration,
        max_size: max_size.map_or(SizeLimit::ShareOfDisk, |size| SizeLimit::Bytes(size.as_u64())),
        max_module_file: section.text("max_module_file", "32MiB", values::capacity).unwrap_or(ByteSize::mib(32)),
        memory: section.text("memory", "64MiB", values::size).unwrap_or(ByteSize::mib(64)),
        scrub: section.text("scrub", "30d", values::scrub_interval).unwrap_or(monthly),
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
    let max_age = section.text("max_age", "30d", values::duration);
    let notes = if section.flag("approvals").unwrap_or(true) { NotesPolicy::Take } else { NotesPolicy::Ignore };
    BundleKeys { signing, trusted, max_age, notes }
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

/// Reports references to hosts that are not upstreams; each has its line and key.
fn check_host_references<'h>(
    root: &mut Section<'_, '_, '_>,
    upstreams: &[Upstream],
    references: impl Iterator<Item = (usize, &'static str, &'h Hostname)>,
) {
    let hosts: Vec<_> = upstreams.iter().map(|upstream| &upstream.host).collect();
    let host_list = hosts.iter().map(|host| host.to_string()).collect::<Vec<_>>().join(", ");
    for (line, key, host) in references.filter(|(.., host)| !hosts.contains(host)) {
        root.problem_at(line, key, format!("{host} is not one of the upstreams ({host_list})"));
    }
}
