//! mirror.toml: every problem is one line, an accepted configuration is consistent, and no secret is ever shown,
//! whether the file names it or contains it.
#![no_main]

use std::path::Path;

use larder::config::{Config, Problems, Diagnostic};
use libfuzzer_sys::fuzz_target;

const SECRET: &str = "hunter2-s3cret";

fuzz_target!(|text: &str| {
    // The parser opens every file that the configuration names; reading a terminal device would block.
    if text.contains(SECRET) || text.contains("/dev") || text.contains("/proc") {
        return;
    }
    let result = parse(text);
    assert_shows_no_secret(&result);
    match result {
        Ok((config, _)) => assert_consistent(&config),
        Err(problems) => {
            let diagnostics = problems.diagnostics();
            assert!(!diagnostics.is_empty() && diagnostics.is_sorted_by_key(|diagnostic| diagnostic.line));
            for diagnostic in diagnostics {
                assert!(diagnostic.line.is_none_or(|line| line >= 1 && line <= text.lines().count() + 1), "{diagnostic}");
                assert!(!diagnostic.to_string().chars().any(char::is_control), "{:?}", diagnostic.to_string());
            }
            assert!(problems.to_string().len() < 200_000, "{problems}");
        }
    }
    let Some(line) = text.lines().next().filter(|line| !line.contains('\'')) else { return };
    for file in [
        format!("[admin]\ntoken = '{SECRET}{line}'"),
        format!("[admin]\ntoken = {{ env = '{line}{SECRET}' }}"),
        format!("[[upstream]]\nhost = 'a.example'\nbasic = {{ user = 'u', password = '{SECRET}{line}' }}"),
        format!("[[upstream]]\nhost = 'a.example'\nheader = {{ name = 'x-key', value = ['{line}{SECRET}'] }}"),
        format!("[[upstream]]\nhost = 'a.example'\nurl = 'https://u:{SECRET}@a.example/{line}'"),
        format!("[[upstream]]\nhost = 'a.example'\nurl = 'https://a.example/{line}?token={SECRET}'"),
        format!("[[upstream]]\nhost = 'u:{SECRET}@a.example{line}'"),
        format!("[network]\nallow_private = ['http://u:{SECRET}@a.example{line}']"),
        format!("[server]\npublic_url = 'https://{SECRET}@a.example{line}'"),
    ] {
        assert_shows_no_secret(&parse(&file));
    }
});

type ParseResult = Result<(Config, Vec<Diagnostic>), Problems>;

fn parse(text: &str) -> ParseResult {
    let env = |name: &str| match name {
        "HOME" => Some("/home/me".to_owned()),
        "XDG_CONFIG_HOME" | "XDG_CACHE_HOME" | "STATE_DIRECTORY" => None,
        // A value that is not valid in a header.
        "BROKEN" => Some(format!("{SECRET}\nx")),
        _ => Some(format!("{SECRET}\n")),
    };
    Config::parse(text, Path::new("/nowhere/mirror.toml"), &env)
}

/// No printed form of the result contains the secret (promise 8).
fn assert_shows_no_secret(result: &ParseResult) {
    let printed = match result {
        Ok((config, warnings)) => {
            let warnings: String = warnings.iter().map(ToString::to_string).collect();
            format!("{config:?} {warnings} {:?}", config.refusal())
        }
        Err(problems) => format!("{problems} {problems:?}"),
    };
    assert!(!printed.contains(SECRET), "{printed}");
}

fn assert_consistent(config: &Config) {
    assert!(!config.upstreams.is_empty());
    let mut hosts: Vec<_> = config.upstreams.iter().map(|upstream| &upstream.host).collect();
    assert!(config.server.default_upstream.as_ref().is_none_or(|host| hosts.contains(&host)));
    for credential in &config.credentials {
        assert!(credential.upstreams.iter().all(|host| hosts.contains(&host)));
    }
    hosts.sort();
    hosts.dedup();
    assert_eq!(hosts.len(), config.upstreams.len());
    for url in config.upstreams.iter().map(|upstream| &upstream.url).chain(&config.server.public_url) {
        assert!(url.as_str().ends_with('/') && url.has_host(), "{url}");
        assert!(matches!(url.scheme(), "http" | "https"), "{url}");
        assert!(url.username().is_empty() && url.password().is_none(), "{url}");
    }
    assert!(config.server.clients.as_ref().is_none_or(|clients| !clients.is_empty()));
    assert!(config.server.listen != config.admin.listen || config.admin.listen.port() == 0);
}
