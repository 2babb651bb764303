//! Tests of the configuration: accepted options, the text of every mistake, and robustness against hostile files.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

mod mistakes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proptest::prelude::*;
use secrecy::ExposeSecret as _;
use toml::de::{DeTable, DeValue};

use super::*;
use crate::policy::Action;
use crate::store::SizeLimit;

const SAMPLE: &str = include_str!("../../mirror.toml");

/// An environment without variables.
fn no_env(_: &str) -> Option<String> {
    None
}

/// An environment in which almost every variable is set to a secret.
fn env(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/me".to_owned()),
        "EMPTY" => Some("\n".to_owned()),
        "BROKEN" => Some("hunter2\nX-Evil: 1".to_owned()),
        name if name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            && !name.starts_with("XDG_")
            && name != "STATE_DIRECTORY" =>
        {
            Some("hunter2\n".to_owned())
        }
        _ => None,
    }
}

fn parse(text: &str) -> Result<(Config, Vec<Diagnostic>), Problems> {
    Config::parse(text, Path::new("mirror.toml"), &env)
}

fn config_of(text: &str) -> Config {
    match parse(text) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{text}\n{problems}"),
    }
}

fn problems_of(text: &str) -> String {
    match parse(text) {
        Ok((config, _)) => panic!("{text}\n{config:?}"),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn every_option_is_read() {
    let config = config_of(
        r#"
        [server]
        listen = "[::]:8443"
        public_url = "https://corp.example/larder"
        default_upstream = "Registry.Corp.Example:443"
        clients = ["10.1.2.3/8", "192.0.2.1"]
        open = true
        trusted_proxies = ["10.0.0.5", "fd00::/8"]
        [admin]
        listen = "127.0.0.1:0"
        token = { env = "TOKEN" }
        [store]
        path = "store"
        max_size = "1.5TiB"
        max_module_file = "100MiB"
        memory = "0B"
        scrub = "never"
        [network]
        offline = true
        sealed_platforms = ["linux_amd64", "darwin_arm64"]
        allow_private = ["10.0.0.0/8", "192.0.2.9", "Artifacts.Corp.Example", "http://Plain.corp.example:80", "http://[::1]:3000/"]
        [[upstream]]
        host = "registry.corp.example"
        url = "http://127.0.0.1:9000/base"
        addresses = ["192.0.2.7:9000"]
        basic = { user = "me", password = { env = "PASSWORD" } }
        credentials_for = ["artifacts.corp.example:8443"]
        verification = "checksum"
        fresh = { versions = "0s", not_found = "1h 30m" }
        patience = "500ms"
        keep_gone = false
        fold_case = true
        dates = "none"
        first_list = "new"
        [[credential]]
        host = "git.corp.example"
        upstreams = ["registry.corp.example"]
        header = { name = "Private-Token", value = { env = "TOKEN" } }
        "#,
    );
    assert_eq!(config.source.as_deref(), Some(Path::new("mirror.toml")));
    assert_eq!(config.server.listen.to_string(), "[::]:8443");
    assert_eq!(config.server.public_url.map(String::from).as_deref(), Some("https://corp.example/larder/"));
    assert_eq!(config.server.default_upstream.map(|host| host.to_string()).as_deref(), Some("registry.corp.example"));
    assert_eq!(format!("{:?}", config.server.clients), "Some([10.0.0.0/8, 192.0.2.1/32])");
    assert_eq!(format!("{:?}", config.server.trusted_proxies), "[10.0.0.5/32, fd00::/8]");
    assert_eq!(config.admin.token.as_ref().map(|token| token.expose_secret()), Some("hunter2"));
    assert_eq!(config.store.path, Path::new("store"));
    assert_eq!(config.store.max_size, SizeLimit::Bytes(1536 << 30));
    assert_eq!(config.store.max_module_file, ByteSize::mib(100));
    assert_eq!(config.store.memory, ByteSize::b(0));
    assert_eq!(config.store.scrub, None);
    assert!(config.network.offline);
    assert_eq!(config.network.sealed_platforms.len(), 2);
    assert_eq!(
        config.network.allow_private,
        [
            PrivateDestination::Network("10.0.0.0/8".parse().unwrap()),
            PrivateDestination::Network("192.0.2.9/32".parse().unwrap()),
            PrivateDestination::Name("artifacts.corp.example".to_owned()),
            PrivateDestination::PlainHttp { host: "plain.corp.example".to_owned(), port: 80 },
            PrivateDestination::PlainHttp { host: "[::1]".to_owned(), port: 3000 },
        ]
    );
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.url.as_str(), "http://127.0.0.1:9000/base/");
    assert_eq!(upstream.addresses[0].port(), 9000);
    assert!(matches!(&upstream.credential, Some(CredentialKind::Basic { user, password })
        if user == "me" && password.expose_secret() == "hunter2"));
    assert_eq!(upstream.credentials_for[0].to_string(), "artifacts.corp.example:8443");
    assert_eq!(upstream.fresh.versions.as_secs(), 0);
    assert_eq!(upstream.fresh.not_found.as_secs(), 5400);
    assert_eq!(upstream.fresh.discovery, FreshnessLifetimes::default().discovery);
    assert_eq!(upstream.patience.as_millis(), 500);
    assert!(!upstream.keep_gone && upstream.fold_case);
    assert_eq!((upstream.dates, upstream.first_list), (Dates::None, FirstList::New));
    assert!(
        matches!(&config.credentials[0].access, Access::Http(CredentialKind::Header { name, .. }) if name == "private-token")
    );
}

#[test]
fn policies_are_read_in_their_order_and_an_unreached_one_is_a_warning() {
    let text = "[[policy]]\nmatch = 'hashicorp/aws'\nversions = '= 5.31.0'\naction = 'deny'\nreason = 'it loses state'\n\
                [[policy]]\nmatch = 'hashicorp/*'\nminimum_age = '7d'\n[[policy]]\nmatch = 'hashicorp/null'\naction = 'deny'\n\
                [[policy]]\nmatch = 'registry.corp.example/*'\n";
    let (config, warnings) = parse(text).unwrap();
    let rules: Vec<_> = config.policy.0.iter().map(|rule| (rule.addresses.to_string(), rule.action)).collect();
    let allow = Action::Allow { minimum_age: Duration::ZERO };
    let expected = [
        ("hashicorp/aws", Action::Deny),
        ("hashicorp/*", Action::Allow { minimum_age: Duration::from_secs(7 * 24 * 3600) }),
        ("hashicorp/null", Action::Deny),
        ("registry.corp.example/*", allow),
    ];
    assert_eq!(rules, expected.map(|(addresses, action)| (addresses.to_owned(), action)));
    assert_eq!(config.policy.0[0].reason.as_deref(), Some("it loses state"));
    assert_eq!(
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "mirror.toml:12: policy.match: registry.corp.example is not one of the upstreams, so this rule is about nothing",
            "mirror.toml:9: policy: this rule never decides, because the one for hashicorp/* on line 6 stands before it; move exceptions before the general rule",
        ]
    );
}

#[test]
fn an_upstream_that_names_only_its_host_has_that_hosts_defaults() {
    let config =
        config_of("[[upstream]]\nhost = 'registry.corp.example:8443'\n[[upstream]]\nhost = 'registry.opentofu.org'");
    let urls: Vec<_> = config.upstreams.iter().map(|upstream| upstream.url.as_str()).collect();
    assert_eq!(urls, ["https://registry.corp.example:8443/", "https://registry.opentofu.org/"]);
    assert!(matches!(config.upstreams[0].verification, crate::verify::VerificationPolicy::Signature));
    assert!(matches!(config.upstreams[1].verification, crate::verify::VerificationPolicy::SignatureIfKeys));
    assert!(!config.upstreams[0].fold_case && config.upstreams[1].fold_case);
}

#[test]
fn paths_are_relative_to_the_configuration_and_the_final_newline_of_a_secret_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["cert.pem", "key.pem", "ca.pem", "known_hosts"] {
        std::fs::write(folder.path().join(name), "x").unwrap();
    }
    let token = folder.path().join("token");
    std::fs::write(&token, "hunter2\r\n").unwrap();
    std::fs::set_permissions(&token, Permissions::from_mode(0o640)).unwrap();
    let file = folder.path().join("mirror.toml");
    std::fs::write(
        &file,
        "server.tls = { certificate = 'cert.pem', key = 'key.pem' }\nnetwork.ca_file = 'ca.pem'\nstore.path = 'store'\n\
         admin.token = { file = 'token' }\n[[credential]]\nhost = 'git.example'\n\
         ssh = { key = 'key.pem', known_hosts = 'known_hosts' }\n",
    )
    .unwrap();
    let (config, warnings) = Config::load(Some(&file)).unwrap();
    assert_eq!(config.server.tls.unwrap().key, folder.path().join("key.pem"));
    assert_eq!(config.network.ca_file.unwrap(), folder.path().join("ca.pem"));
    assert_eq!(config.store.path, folder.path().join("store"));
    assert_eq!(config.admin.token.unwrap().expose_secret(), "hunter2");
    assert!(matches!(&config.credentials[0].access, Access::Ssh(files) if files.key == folder.path().join("key.pem")));
    assert!(warnings.is_empty(), "{warnings:?}");
    std::fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    let (_, warnings) = Config::load(Some(&file)).unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].to_string().contains("every user of this machine may read"),
        "{warnings:?}"
    );
}

/// No secret appears in a message or in debug output (promise 8).
#[test]
fn debug_output_and_messages_contain_no_secret() {
    let text = "[admin]\ntoken = { env = 'A' }\n[[upstream]]\nhost = 'a.example'\ntoken = { env = 'A' }\n[[upstream]]\n\
                host = 'b.example'\nbasic = { user = 'u', password = { env = 'A' } }\n[[credential]]\nhost = 'c.example'\n\
                header = { name = 'x-key', value = { env = 'A' } }\n";
    assert!(!format!("{:?}", config_of(text)).contains("hunter2"));
    for text in [
        "admin.token = 'hunter2'",
        "admin.token = { env = 'hunter2!' }",
        "admin.token = { value = 'hunter2' }",
        "admin.token = { env = 'BROKEN', file = 'hunter' }",
        "admin.token = ['hunter2']",
        "admin.token = hunter2",
        "[[upstream]]\nhost = 'a.example'\ntoken = { env = 'BROKEN' }",
        "[[upstream]]\nhost = 'a.example'\nurl = 'https://me:hunter2@a.example/'",
        "[[upstream]]\nhost = 'me:hunter2@a.example'",
        "[[upstream]]\nhost = 'a.example'\nurl = 'https://a.example/?token=hunter2'",
        "[[upstream]]\nhost = 'a.example'\nheader = { name = 'x-key', value = 'hunter2' }",
        "[[upstream]]\nhost = 'a.example'\nheader = 'x-key: hunter2'",
    ] {
        let message = problems_of(text);
        assert!(!message.contains("hunter2"), "{message}");
    }
}

/// A larder with a credential that other machines can reach starts only with a list of allowed clients (promise 8).
#[test]
fn a_reachable_larder_with_credentials_does_not_start_without_allowed_clients() {
    let upstream = "[[upstream]]\nhost = 'r.example'\ntoken = { env = 'TOKEN' }\n";
    let credential = "[[credential]]\nhost = 'git.example'\ntoken = { env = 'TOKEN' }\n";
    let no_credential = "[[upstream]]\nhost = 'r.example'\n";
    for (is_refused, server, credentials) in [
        (false, "", upstream),
        (false, "listen = '[::1]:80'", upstream),
        (false, "listen = '[::ffff:127.0.0.1]:80'", upstream),
        (false, "listen = '127.9.9.9:80'", credential),
        (false, "listen = '0.0.0.0:80'", no_credential),
        (false, "listen = '0.0.0.0:80'\nopen = true", upstream),
        (false, "listen = '0.0.0.0:80'\nclients = ['10.0.0.0/8']", credential),
        (true, "listen = '0.0.0.0:80'", upstream),
        (true, "listen = '[::]:80'", credential),
        (true, "listen = '10.0.0.1:80'\nopen = false", upstream),
        (true, "public_url = 'https://m.example/'", upstream),
        (true, "trusted_proxies = ['127.0.0.1']", credential),
    ] {
        let config = config_of(&format!("[server]\n{server}\n{credentials}"));
        let refusal = config.refusal();
        assert_eq!(refusal.is_some(), is_refused, "{server} {credentials} {refusal:?}");
        assert!(refusal.is_none_or(|message| message.contains("clients =")
            && message.contains("open = true")
            && message.contains(".example")));
    }
    let admin_only = config_of("[admin]\nlisten = '0.0.0.0:8081'\ntoken = { env = 'TOKEN' }");
    assert_eq!(admin_only.refusal(), None);
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _ = Config::parse(&text, Path::new("mirror.toml"), &no_env);
    }

    #[test]
    fn arbitrary_lines_of_toml_never_panic(text in "([a-z_]{0,9}|\\[\\[?(server|admin|upstream|credential|network)\\]?\\]|[\\[\\]{}=\".,\n0-9 'é]|token|listen|host|url){0,40}") {
        let _ = Config::parse(&text, Path::new("mirror.toml"), &no_env);
    }

    #[test]
    fn mutations_of_the_sample_never_panic(edits in prop::collection::vec((0..SAMPLE.len(), 0..40_usize, "\\PC{0,12}|[\\[\\]{}=\".,\n#]{0,4}"), 1..8)) {
        let mut bytes = SAMPLE.replace("\n# ", "\n").into_bytes();
        for (index, length, replacement) in edits {
            let index = index.min(bytes.len());
            let end = (index + length).min(bytes.len());
            bytes.splice(index..end, replacement.into_bytes());
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(problems) = Config::parse(&text, Path::new("mirror.toml"), &env) {
            prop_assert!(!problems.to_string().contains("hunter2"));
        }
    }
}

#[test]
fn deep_nesting_is_reported_and_does_not_crash() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{a=".repeat(100_000)),
        format!("{}a = 1", "a.".repeat(100_000)),
        format!("[{}a]", "a.".repeat(100_000)),
    ] {
        assert!(parse(&text).is_err());
    }
}

/// The sample with every option uncommented.
fn uncommented() -> String {
    let is_option = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        line.starts_with('[') || line.contains(" = ") && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let line = |line: &'static str| line.strip_prefix("# ").filter(|line| is_option(line)).unwrap_or(line);
    SAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Collects the dotted names of all keys.
fn collect_keys(table: &DeTable<'_>, path: &str, found: &mut BTreeSet<String>) {
    for (key, value) in table.iter() {
        let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
        match value.get_ref() {
            DeValue::Table(table) => collect_keys(table, &path, found),
            DeValue::Array(items) => {
                for table in items.iter().filter_map(|item| item.get_ref().as_table()) {
                    collect_keys(table, &path, found);
                }
            }
            _ => {}
        }
        found.insert(path);
    }
}

/// A secret has two possible sources; the sample shows one of them.
fn one_source(keys: &BTreeSet<String>) -> BTreeSet<String> {
    let source = |key: &String| match key.rsplit_once('.') {
        Some((secret, "env" | "file" | "sha256")) => format!("{secret}.source"),
        _ => key.clone(),
    };
    keys.iter().map(source).collect()
}

/// The key of RFC 8037, appendix A.2.
const ISSUER_KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

#[test]
fn the_jobs_of_a_ci_system_belong_to_one_client() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ci.jwks"), ISSUER_KEYS).unwrap();
    let client = |name: &str, rest: &str, claims: &str| {
        format!(
            "[[client]]\nname = \"{name}\"\n{rest}oidc = {{ issuer = \"https://ci.example\", audience = \"larder\", \
             claims = {{ {claims} }}, jwks = {{ file = \"ci.jwks\" }} }}\n"
        )
    };
    let problems = |second: &str| {
        let text = client("one", "", "ref = \"main\", sub = \"a\"") + second;
        let file = folder.path().join("mirror.toml");
        let (_, reader) = read::read(&text, &file, &env);
        Problems::new(reader.problems).to_string()
    };
    let same = problems(&client("two", "allow = [\"acme/*\"]\n", "sub = \"a\", ref = \"main\""));
    assert!(same.contains("client.oidc: these jobs are those of the client on line 1, too"), "{same}");
    let asked = client("two", "", "sub = \"b\"").replace("jwks = { file = \"ci.jwks\" }", "ca = \"ca.pem\"");
    let other_source = problems(&asked);
    assert!(other_source.contains("line 1 has the keys of this issuer from elsewhere"), "{other_source}");
    let both = problems(&client("two", "", "sub = \"b\"").replace("jwks =", "ca = \"ca.pem\", jwks ="));
    assert!(both.contains("only one of jwks, ca is allowed"), "{both}");
    for other in [
        client("two", "", "sub = \"a\""),
        client("two", "networks = [\"10.0.0.0/8\"]\n", "ref = \"main\", sub = \"a\""),
    ] {
        assert!(!problems(&other).contains("these jobs"), "{other}");
    }
}

#[test]
fn the_sample_file_as_it_is_gives_the_defaults() {
    let (mut config, warnings) = parse(SAMPLE).unwrap();
    assert_eq!(config.source.take().as_deref(), Some(Path::new("mirror.toml")));
    assert_eq!(format!("{config:?}"), format!("{:?}", Config::defaults(&env)));
    assert_eq!(warnings, []);
}

#[test]
fn the_sample_file_shows_every_option() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "cert.pem",
        "key.pem",
        "corporate-ca.pem",
        "database-ca.pem",
        "registry-token",
        "archive-key",
        "id_ed25519",
        "known_hosts",
    ] {
        std::fs::write(folder.path().join(name), "x").unwrap();
    }
    std::fs::write(folder.path().join("ci.token"), "a-token-that-is-long-enough\n").unwrap();
    std::fs::write(folder.path().join("cluster.jwks"), ISSUER_KEYS).unwrap();
    std::fs::write(folder.path().join("database-url"), "postgresql://larder:hunter2@db.example/larder\n").unwrap();
    std::fs::write(folder.path().join("fleet-secret"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let key = crate::bundle::SigningKey::generate().unwrap().text();
    std::fs::write(folder.path().join("bundle.key"), key.expose_secret()).unwrap();
    let text = uncommented();
    let file = folder.path().join("mirror.toml");
    let (config, reader) = read::read(&text, &file, &env);
    assert!(reader.problems.is_empty(), "{}", Problems::new(reader.problems));
    assert_eq!(config.upstreams.len(), 5);
    assert_eq!(config.credentials.len(), 4);
    assert_eq!(config.clients[0].tokens, [crate::digest::Digest::of(b"a-token-that-is-long-enough")]);

    let mut shown = BTreeSet::new();
    collect_keys(DeTable::parse(&text).unwrap().get_ref(), "", &mut shown);
    assert_eq!(one_source(&shown), one_source(&reader.known_keys));
}

#[test]
fn every_option_in_the_sample_file_has_a_comment() {
    for line in uncommented().lines().filter(|line| line.contains(" = ") && !line.starts_with('#')) {
        let key = line.split(" = ").next().unwrap();
        let explained =
            SAMPLE.lines().any(|line| line.trim_start_matches("# ").starts_with(key) && line.contains(" # "));
        assert!(explained, "{line}");
    }
}

#[test]
fn an_empty_file_gives_the_defaults() {
    assert_eq!(format!("{:?}", config_of("").server), format!("{:?}", Config::default().server));
    assert_eq!(config_of("").upstreams.len(), 2);
    assert_eq!(config_of("[server]\n[store]\n").store, config_of("").store);
}

#[test]
fn the_store_is_in_the_state_folder_then_the_cache_folder_then_the_home_folder() {
    let store_path = |set: &'static [(&str, &str)]| {
        let env = move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Config::defaults(&env).store.path
    };
    let all_set = &[("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/home/me")];
    assert_eq!(store_path(all_set), Path::new("/var/lib/a"));
    assert_eq!(store_path(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/home/me")]), Path::new("/c/larder"));
    assert_eq!(store_path(&[("XDG_CACHE_HOME", "c"), ("HOME", "/home/me")]), Path::new("/home/me/.cache/larder"));
    assert_eq!(store_path(&[]), Path::new("/var/lib/larder"));
}

#[test]
fn the_working_directory_is_never_searched() {
    let xdg = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "/x".to_owned());
    assert_eq!(os::default_locations(&xdg), [Path::new("/x/larder/mirror.toml"), Path::new("/etc/larder/mirror.toml")]);
    assert_eq!(
        os::default_locations(&env),
        [Path::new("/home/me/.config/larder/mirror.toml"), Path::new("/etc/larder/mirror.toml")]
    );
    let relative = |_: &str| Some(".".to_owned());
    assert_eq!(os::default_locations(&relative), [Path::new("/etc/larder/mirror.toml")]);
}

/// The environment of a replica.
fn replica_env(name: &str) -> Option<String> {
    let value = match name {
        "DATABASE" => "postgresql://larder:hunter2@db.example:5432/larder",
        "OVER_SOCKET" => "postgresql:///larder?host=/var/run/postgresql&sslmode=disable",
        "MYSQL" => "mysql://larder:hunter2@db.example/larder",
        "SEVERAL" => "postgresql://larder:hunter2@db-1.example:5432,db-2.example:5433,[fd00::1]/larder",
        "ONE_OF_SEVERAL" => "postgresql://larder:hunter2@db-1.example:5432,db-2.example:port/larder",
        "IN_THE_CLEAR" => "postgresql://larder:hunter2@db.example/larder?sslmode=disable",
        "NOWHERE" => "postgresql:///larder",
        "NO_URL" => "hunter2",
        "SECRET" => "hunter2-0123456789abcdef-0123456789",
        "OLD_SECRET" => "hunter2-abcdef0123456789-0123456789",
        "SHORT" => "hunter2-0123456789abcdef",
        "POD_IP" => "10.1.2.3",
        "POD_IP6" => "fd00::7",
        "LOOPBACK" => "127.0.0.1",
        _ => return None,
    };
    Some(value.to_owned())
}

/// A fleet with some lines in place of others: those with the same key.
fn fleet_with(lines: &[&str]) -> Result<Config, Problems> {
    let mut all = BTreeMap::from(
        [
            r#"database = { env = "DATABASE" }"#,
            r#"bucket = "s3://larder""#,
            r#"secret = [{ env = "SECRET" }]"#,
            r#"listen = "0.0.0.0:8082""#,
            r#"advertise = { env = "POD_IP" }"#,
        ]
        .map(|line| (line.split(" = ").next().unwrap(), line)),
    );
    all.extend(lines.iter().map(|line| (line.split(" = ").next().unwrap(), *line)));
    let lines = all.into_values().filter(|line| line.contains(" = ")).map(|line| format!("{line}\n"));
    let text = format!("[fleet]\n{}", lines.collect::<String>());
    Config::parse(&text, Path::new("mirror.toml"), &replica_env).map(|(config, _)| config)
}

#[test]
fn a_secret_of_the_fleet_is_not_the_admin_token() {
    let text = "[admin]\ntoken = { env = \"SECRET\" }\n[fleet]\nsecret = [{ env = \"SECRET\" }]\n";
    let problems = Config::parse(text, Path::new("mirror.toml"), &replica_env).unwrap_err().to_string();
    assert!(problems.contains("mirror.toml:4: fleet.secret: this secret is that of [admin] token, too"), "{problems}");
}

/// A reload changes the role of the database and its password, and never which database it is.
#[test]
fn only_another_place_of_the_database_needs_a_restart() {
    let with = |url: &str| Fleet { database: url.into(), ..fleet_with(&[]).unwrap().fleet.unwrap() };
    for (one, other, expected) in [
        ("postgresql://a:1@db/larder", "postgresql://b:2@db/larder", true),
        ("postgresql://a:1@db,db2/larder", "postgresql://b@db,db2/larder", true),
        ("postgresql://db/larder?user=a&password=1", "postgresql://db/larder?user=b", true),
        ("postgresql:///larder?host=/run/pg&user=a", "postgresql:///larder?host=/run/pg&user=b", true),
        ("postgresql://a:1@db/larder", "postgresql://a:1@other/larder", false),
        ("postgresql://a:1@db,db2/larder", "postgresql://a:1@db,db3/larder", false),
        ("postgresql://a:1@db/larder", "postgresql://a:1@db/other", false),
        ("postgresql:///larder?host=/run/pg", "postgresql:///larder?host=/run/other", false),
        ("postgresql://a:1@db", "postgresql://b:2@db", false),
        ("postgresql://a:1@db", "postgresql://a:2@db/", true),
    ] {
        assert_eq!(with(one).differs_in_secrets_only(&with(other)), expected, "{one} {other}");
    }
}

#[test]
fn a_fleet_is_read() {
    let config = fleet_with(&[]).unwrap();
    assert_eq!(config.refusal(), None);
    let Some(fleet) = config.fleet else { panic!("no fleet") };
    assert_eq!((fleet.bucket.service, &*fleet.bucket.name, &*fleet.bucket.prefix), (BucketService::S3, "larder", ""));
    assert_eq!((fleet.advertise.as_str(), fleet.secrets.len()), ("http://10.1.2.3:8082/", 1));
    assert_eq!(fleet.serve_behind, Some(Duration::from_secs(24 * 3600)));
    assert!(!format!("{fleet:?}").contains("hunter2"));

    let other = fleet_with(&[
        r#"database = { env = "OVER_SOCKET" }"#,
        r#"bucket = "gs://larder/team-a/mirror/""#,
        r#"secret = [{ env = "SECRET" }, { env = "OLD_SECRET" }]"#,
        r#"advertise = { env = "POD_IP6" }"#,
        r#"serve_behind = "unlimited""#,
    ]);
    let Some(fleet) = other.unwrap().fleet else { panic!("no fleet") };
    assert_eq!((fleet.bucket.to_string(), fleet.secrets.len()), ("gs://larder/team-a/mirror/".to_owned(), 2));
    assert_eq!((fleet.advertise.as_str(), fleet.serve_behind), ("http://[fd00::7]:8082/", None));
    fleet_with(&[r#"database = { env = "SEVERAL" }"#]).unwrap();
    // On one machine, as for a test.
    fleet_with(&[r#"listen = "127.0.0.1:8082""#, r#"advertise = "http://127.0.0.1:8082""#]).unwrap();
}
