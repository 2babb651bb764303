//! Discovery: in the rewritten document every service has the URL that upstream gave, except those that larder serves.
#![no_main]

use std::sync::LazyLock;

use larder::address::Hostname;
use larder::protocol::registry::services;
use larder::upstream::discovery::Discovery;
use libfuzzer_sys::fuzz_target;
use url::Url;

static UPSTREAM_URL: LazyLock<Url> =
    LazyLock::new(|| Url::parse("https://registry.example/.well-known/terraform.json").expect("a URL"));
static LARDER_URL: LazyLock<Url> = LazyLock::new(|| Url::parse("http://127.0.0.1:8080/registry/x/y").expect("a URL"));

fuzz_target!(|body: &[u8]| {
    let Ok(discovery) = Discovery::parse(body, UPSTREAM_URL.clone()) else { return };
    let host = Hostname::parse("registry.example").expect("a host");
    let entries = services(discovery.clone(), &host, str::to_owned);
    // Only a service whose URL has userinfo is omitted, which takes an `@`, plain or escaped.
    for (name, value) in &discovery.entries {
        assert!(entries.contains_key(name) || value.get().contains(['@', '\\']), "{name}");
    }
    for value in entries.values() {
        let Ok(reference) = serde_json::from_str::<String>(value.get()) else { continue };
        assert!(!Url::parse(&reference).is_ok_and(|url| !url.username().is_empty() || url.password().is_some()));
    }

    let sent = serde_json::to_vec(&entries).expect("what was JSON stays JSON");
    // A URL grows by its base and by percent-encoding, nothing else grows.
    assert!(sent.len() <= 9 * body.len() + 100 * entries.len() + 100);
    let read = Discovery::parse(&sent, LARDER_URL.clone()).expect("what goes out is a discovery document");
    for name in entries.keys().take(50) {
        let upstream_url = discovery.service(name);
        if let Some(url) = &upstream_url {
            assert!(matches!(url.scheme(), "http" | "https") && url.username().is_empty(), "{url}");
            assert!(url.password().is_none() && url.fragment().is_none(), "{url}");
        }
        let folder = match name.as_str() {
            "providers.v1" => Some("providers"),
            "modules.v1" => Some("modules"),
            _ => None,
        };
        if let Some(folder) = folder.filter(|_| upstream_url.is_some()) {
            let larder_url = LARDER_URL.join(&format!("/registry/registry.example/v1/{folder}/")).ok();
            assert_eq!(read.service(name), larder_url);
            continue;
        }
        let is_relative_to_document = serde_json::from_str::<String>(discovery.entries[name].get())
            .is_ok_and(|reference| reference.is_empty() || reference.starts_with('#'));
        if is_relative_to_document || upstream_url.is_none() {
            assert!(read.service(name).is_none() || entries[name].get() == discovery.entries[name].get());
        } else {
            assert_eq!(read.service(name), upstream_url, "{name}");
        }
    }
});
