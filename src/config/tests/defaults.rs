//! Tests of the defaults, and of the sample file `mirror.toml`, which documents them.
#![expect(clippy::disallowed_methods, reason = "tests make their own files")]

use super::*;

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
        Some((secret, "env" | "file")) => format!("{secret}.source"),
        _ => key.clone(),
    };
    keys.iter().map(source).collect()
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
    for name in
        ["cert.pem", "key.pem", "corporate-ca.pem", "registry-token", "archive-key", "id_ed25519", "known_hosts"]
    {
        std::fs::write(folder.path().join(name), "x").unwrap();
    }
    let key = crate::bundle::SigningKey::generate().unwrap().text();
    std::fs::write(folder.path().join("bundle.key"), key.expose_secret()).unwrap();
    let text = uncommented();
    let outcome = read::read(&text, &folder.path().join("mirror.toml"), &env);
    assert!(outcome.problems.is_empty(), "{}", Problems::new(outcome.problems));
    assert_eq!(outcome.config.upstreams.len(), 5);
    assert_eq!(outcome.config.credentials.len(), 4);

    let mut shown = BTreeSet::new();
    collect_keys(DeTable::parse(&text).unwrap().get_ref(), "", &mut shown);
    assert_eq!(one_source(&shown), one_source(&outcome.known_keys));
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
    assert_eq!(
        outside::default_locations(&xdg),
        [Path::new("/x/larder/mirror.toml"), Path::new("/etc/larder/mirror.toml")]
    );
    assert_eq!(
        outside::default_locations(&env),
        [Path::new("/home/me/.config/larder/mirror.toml"), Path::new("/etc/larder/mirror.toml")]
    );
    let relative = |_: &str| Some(".".to_owned());
    assert_eq!(outside::default_locations(&relative), [Path::new("/etc/larder/mirror.toml")]);
}
