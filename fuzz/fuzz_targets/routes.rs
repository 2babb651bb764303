//! Request lines: what is a route prints as a URL that is the same route (law 8), with and without a mount.
//! The first line of the input is the Host, the rest the path.
#![no_main]

use std::sync::LazyLock;

use larder::address::Hostname;
use larder::cdn_loop::CdnLoop;
use larder::protocol::route::{Door, Form, Mount, Route};
use libfuzzer_sys::fuzz_target;
use url::Url;

static DOOR: LazyLock<Door> = LazyLock::new(|| {
    let hosts = ["registry.example", "registry.example:8443", "xn--bcher-kva.example"];
    Door { upstreams: hosts.iter().filter_map(|host| Hostname::parse(host).ok()).collect(), default_upstream: None }
});

static MOUNT: LazyLock<Mount> = LazyLock::new(|| Mount::new(Url::parse("https://mirror.example/tf/").ok().as_ref()));

fuzz_target!(|text: &str| {
    let (host, path) = text.split_once('\n').map_or((None, text), |(host, path)| (Some(host), path));
    let below = MOUNT.below(path);
    assert!(path.ends_with(below));
    match Route::parse(below, host, &DOOR) {
        Ok(route) => {
            let printed = route.path();
            assert!(printed.starts_with('/') && printed.is_ascii() && !printed.contains("//"), "{printed}");
            assert!(printed.len() < 9 * 3 * 130, "{printed}");
            assert_eq!(Route::parse(&printed, None, &DOOR), Ok(route.clone()), "{printed}");
            for form in [Form::PathAbsolute, Form::Public, MOUNT.form(&CdnLoop::default())] {
                let url = MOUNT.url(form, &printed);
                let url = Url::parse("https://mirror.example/x").and_then(|base| base.join(&url)).expect(&url);
                assert_eq!(url.host_str(), Some("mirror.example"));
                assert!(url.query().is_none() && url.fragment().is_none(), "{url}");
                assert_eq!(Route::parse(MOUNT.below(url.path()), None, &DOOR), Ok(route.clone()), "{url}");
            }
            assert!(route.provider().is_none_or(|provider| DOOR.upstreams.contains(&provider.host)));
        }
        Err(refused) => assert!(refused.to_string().len() < 2 * text.len() + 4_000),
    }
});
