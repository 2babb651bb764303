//! Request lines: a parsed route prints as a URL that parses to the same route, with and without a mount (the path
//! prefix of `public_url`). The first line of the input is the Host, the rest the path and the query.
#![no_main]

use std::sync::LazyLock;

use larder::address::Hostname;
use larder::cdn_loop::CdnLoop;
use larder::protocol::route::{Mount, Route, RouteContext, RouteSubject, parse_origin};
use libfuzzer_sys::fuzz_target;
use url::Url;

static CONTEXT: LazyLock<RouteContext> = LazyLock::new(|| {
    let hosts = ["registry.example", "registry.example:8443", "xn--bcher-kva.example"];
    RouteContext {
        upstreams: hosts.iter().filter_map(|host| Hostname::parse(host).ok()).collect(),
        default_upstream: None,
    }
});

static MOUNT: LazyLock<Mount> = LazyLock::new(|| Mount::new(Url::parse("https://mirror.example/tf/").ok().as_ref()));

fuzz_target!(|text: &str| {
    let (host, target) = text.split_once('\n').map_or((None, text), |(host, target)| (Some(host), target));
    let (path, query) = split_query(target);
    let route_path = MOUNT.without_prefix(path);
    assert!(path.ends_with(route_path));
    match Route::parse(route_path, query, host, &CONTEXT) {
        Ok(route) => {
            let printed = route.path();
            assert!(printed.starts_with('/') && printed.is_ascii() && !printed.contains("//"), "{printed}");
            let (printed_path, printed_query) = split_query(&printed);
            // Only parameters of the protocol remain, each of a limited length.
            assert!(
                printed_query.is_none_or(|query| query.len() < 2_200 && matches!(route, Route::Page(_))),
                "{printed}"
            );
            assert!(printed_path.len() < 9 * 3 * 130, "{printed}");
            assert_eq!(Route::parse(printed_path, printed_query, None, &CONTEXT), Ok(route.clone()), "{printed}");
            let public = MOUNT.base(&CdnLoop::default(), None);
            for base in ["", public] {
                let url = MOUNT.url(base, &printed);
                let url = Url::parse("https://mirror.example/x").and_then(|base| base.join(&url)).expect(&url);
                assert_eq!(url.host_str(), Some("mirror.example"));
                assert!(url.query() == printed_query && url.fragment().is_none(), "{url}");
                assert_eq!(
                    Route::parse(MOUNT.without_prefix(url.path()), url.query(), None, &CONTEXT),
                    Ok(route.clone()),
                    "{url}"
                );
            }
            // Absolute URLs for any valid Host have no userinfo, and lead to the same route.
            if let Some(origin) = host.and_then(|host| parse_origin("https", host)) {
                let url = Mount::default().url(&origin, &printed);
                if let Ok(url) = Url::parse(&url) {
                    assert!(url.username().is_empty() && url.fragment().is_none(), "{url}");
                    assert_eq!(Route::parse(url.path(), url.query(), None, &CONTEXT), Ok(route.clone()), "{url}");
                }
            }
            let host = route.subject().map(|subject| match subject {
                RouteSubject::Provider(address) => &address.host,
                RouteSubject::Module(address) => &address.host,
                RouteSubject::Pages(host) => host,
            });
            assert!(host.is_none_or(|host| CONTEXT.upstreams.contains(host)));
        }
        Err(refused) => assert!(refused.to_string().len() < 2 * text.len() + 4_000),
    }
});

fn split_query(target: &str) -> (&str, Option<&str>) {
    target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
}
