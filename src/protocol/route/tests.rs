//! Tests of routes: spellings, refusals, and the round trip between paths and routes.

use proptest::prelude::*;
use url::Url;

use super::*;
use crate::cdn_loop::CdnLoop;

fn context() -> RouteContext {
    let hosts = ["registry.example", "registry.example:8443", "xn--bcher-kva.example"];
    let upstreams = hosts.iter().map(|host| Hostname::parse(host).unwrap()).collect();
    RouteContext { upstreams, default_upstream: None }
}

fn parse(url: &str) -> Result<Route, RouteError> {
    parse_at(url, None)
}

fn parse_at(url: &str, host: Option<&str>) -> Result<Route, RouteError> {
    let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    Route::parse(path, query, host, &context())
}

#[test]
fn every_spelling_of_a_host_reaches_the_same_route() {
    for (given, key) in [
        ("registry.example", "registry.example"),
        ("REGISTRY.Example", "registry.example"),
        ("registry%2Eexample", "registry.example"),
        ("registry.example:443", "registry.example"),
        ("registry.example%3A8443", "registry.example:8443"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("b%C3%BCcher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.EXAMPLE", "xn--bcher-kva.example"),
    ] {
        let route = parse(&format!("/registry/{given}/v1/providers/acme/null/versions")).unwrap();
        assert_eq!(route.path(), format!("/registry/{key}/v1/providers/acme/null/versions"));
    }
    assert!(matches!(parse("/registry/other.example/v1/providers/a/b/versions"), Err(RouteError::UnknownHost(_))));
}

#[test]
fn invalid_names_are_malformed_and_unmatched_paths_are_unknown() {
    let long = "a".repeat(129);
    for path in [
        "/mirror/registry.example/acme/null/v1.0.0.json",
        "/mirror/registry.example/acme/%00/1.0.0.json",
        "/mirror/registry.example/a%2Fb/null/index.json",
        "/mirror/registry.example/../null/index.json",
        "/mirror/registry.example/%FF/null/index.json",
        &format!("/mirror/registry.example/acme/{long}/index.json"),
        "/registry/registry.example/v1/providers/acme/null/1.0.0/download/linux/AMD64",
        "/archive/registry.example/providers/acme/null/1.0.0/linux_amd64/xyz/f.zip",
        "/registry/registry.example/v1/modules?limit=x",
        "/registry/registry.example/v1/modules/a/b/AWS",
        "/registry/registry.example/v1/modules/a/b/aws/x",
        "/registry/registry.example/v1/modules/a.b",
        "no-slash",
    ] {
        assert!(matches!(parse(path), Err(RouteError::Malformed(_))), "{path}: {:?}", parse(path));
    }
    for path in [
        "//",
        "/v2/",
        "/git/x",
        "/archive/~abc/x",
        "/registry/registry.example/v1/providers/a/b/1.0.0/c",
        "/registry/registry.example/v1/modules/a/b/aws/1.0.0/c",
        "/mirror/registry.example/acme/null/index.html",
        "/registry/registry.example/v1/acme/null/nothing",
        "/other.example/acme/null/index.json",
        "/admin/v1/status",
        "/metrics",
    ] {
        assert!(matches!(parse(path), Err(RouteError::Unknown(_))), "{path}: {:?}", parse(path));
    }
}

/// Larder's page is at its root, also below the prefix of `public_url`.
#[test]
fn the_root_is_the_page_for_browsers() {
    assert_eq!(parse("/"), Ok(Route::Home));
    assert_eq!(Route::Home.path(), "/");
    let mount = Mount::new(Some(&Url::parse("https://mirror.example/tf/").unwrap()));
    assert_eq!(parse(mount.without_prefix("/tf/")), Ok(Route::Home));
    // Where `public_url` says nothing, people are told the listener's own address.
    let listening = Mount::new(None).listening_at("http://127.0.0.1:8080".to_owned());
    assert_eq!(listening.url_to_paste(""), "http://127.0.0.1:8080");
    assert_eq!(listening.url_to_paste("http://mirror.corp"), "http://mirror.corp");
    assert_eq!(mount.url_to_paste("https://mirror.example"), "https://mirror.example/tf");
    assert!(mount.is_configured() && !listening.is_configured());
}

/// Promise 15: mistakes in a client's configuration are answered with the line to write.
#[test]
fn common_configuration_mistakes_are_explained() {
    for (path, api, cause) in [
        ("/v1/modules?limit=2", Api::Registry, "this host name"),
        ("/v1/providers/acme/null/versions", Api::Registry, "this host name"),
        ("/.well-known/terraform.json", Api::Registry, "this host name"),
        ("/registry/registry.example/v1/acme/null/versions", Api::Registry, "providers.v1"),
        ("/registry/registry.example/v1/acme/null/1.0.0/download/linux/amd64", Api::Registry, "providers.v1"),
        ("/registry.example/acme/null/index.json", Api::NetworkMirror, "network_mirror"),
        ("/registry.example/acme/null/1.0.0.json", Api::NetworkMirror, "network_mirror"),
        ("/registry/registry.example./v1/providers/a/b/versions", Api::Registry, "registry.example. has a dot"),
        ("/registry/other.example./.well-known/terraform.json", Api::Registry, "other.example. has a dot"),
        ("/mirror/registry.example./acme/null/index.json", Api::NetworkMirror, "registry.example. has a dot"),
        ("/archive/registry.example./x", Api::Archive, "registry.example. has a dot"),
        ("/registry/registry.example/v1/providers/acme/null/versions/", Api::Registry, "a slash after \"versions\""),
        ("/registry/registry.example/v1/modules/acme/vpc/aws/versions/", Api::Registry, "a slash after \"versions\""),
        (
            "/registry/registry.example/v1/modules/acme/vpc/aws/1.0.0/download/",
            Api::Registry,
            "a slash after \"download\"",
        ),
    ] {
        let Err(RouteError::Misdirected { api: found_api, explanation }) = parse(path) else {
            panic!("{path}: {:?}", parse(path))
        };
        assert!(
            found_api == api && explanation.cause.contains(cause) && explanation.remedy.is_some(),
            "{path}: {found_api:?} {explanation}"
        );
    }
}

/// The module protocol's own examples: base paths with and without a slash, and `search` in the place of a namespace.
#[test]
fn every_spelling_of_a_page_url_becomes_one_url() {
    let base = "/registry/registry.example/v1";
    for (given, url) in [
        ("/modules", "/modules"),
        ("/modules/", "/modules"),
        ("/modules?", "/modules"),
        ("/modules/?offset=0&utm_x=y&limit=2", "/modules?limit=2"),
        ("/modules/search/?q=a%20b&q=c", "/modules/search?q=a+b"),
        ("/modules/Search", "/modules/Search"),
        ("/modules/search/vpc?utm_x=y", "/modules/search/vpc"),
        ("/modules/A/b/aws/v1.0?utm_x=y", "/modules/A/b/aws/v1.0"),
        ("/modules/A/b/aws/download?x", "/modules/A/b/aws/download"),
        ("/providers?verified=true", "/providers?verified=true"),
        ("/providers/Acme/null/1.0.0+b/", "/providers/acme/null/1.0.0+b"),
    ] {
        let route = parse(&format!("{base}{given}"));
        assert_eq!(route.map(|route| route.path()), Ok(format!("{base}{url}")), "{given}");
    }
    assert!(matches!(parse_at("/v1/modules?limit=2", Some("registry.example")), Ok(Route::Page(_))));
    assert!(matches!(parse_at("/v1/providers/", Some("registry.example")), Ok(Route::Page(_))));
}

#[test]
fn a_host_that_names_an_upstream_stands_for_it_on_any_port() {
    for host in ["registry.example", "Registry.example:8080", "registry.example:443"] {
        let route = parse_at("/.well-known/terraform.json", Some(host));
        assert_eq!(route, Ok(Route::Discovery(Hostname::parse("registry.example").unwrap())), "{host}");
        let route = parse_at("/v1/providers/acme/null/versions", Some(host));
        assert!(matches!(route, Ok(Route::Versions(_))), "{host}");
    }
    let other_port = parse_at("/.well-known/terraform.json", Some("registry.example:8443"));
    assert_eq!(other_port, Ok(Route::Discovery(Hostname::parse("registry.example:8443").unwrap())));
    let own = RouteContext { default_upstream: Some(Hostname::parse("registry.example").unwrap()), ..context() };
    for host in [Some("mirror.corp"), Some("mirror.corp:8443"), Some("[::1]:8080"), None] {
        let path_of = |path: &str| Route::parse(path, None, host, &own).map(|route| route.path());
        let base = "/registry/registry.example";
        assert_eq!(
            path_of("/.well-known/terraform.json"),
            Ok(format!("{base}/.well-known/terraform.json")),
            "{host:?}"
        );
        for path in ["/v1/providers/acme/null/versions", "/v1/modules/acme/vpc/aws/versions", "/v1/modules"] {
            assert_eq!(path_of(path), Ok(format!("{base}{path}")), "{host:?}");
        }
    }
    // An upstream's name stands for that upstream.
    let taken_over = Route::parse("/v1/providers/a/b/versions", None, Some("registry.example:8443"), &own);
    let expected = "/registry/registry.example:8443/v1/providers/a/b/versions";
    assert_eq!(taken_over.map(|route| route.path()).as_deref(), Ok(expected));
    for host in ["registry.example.", "Registry.Example.:443", "mirror.corp."] {
        let Err(RouteError::Misdirected { api: Api::Registry, explanation }) =
            Route::parse("/v1/providers/a/b/versions", None, Some(host), &own)
        else {
            panic!("{host}");
        };
        assert!(explanation.cause.contains("has a dot at its end"), "{explanation}");
    }
    for (host, context, expected_reason) in [
        ("registry.example", context(), "v1 of registry.example"),
        ("mirror.corp", own, "v1 of registry.example"),
        ("mirror.corp", context(), "/v2/providers/x"),
    ] {
        let Err(RouteError::Unknown(reason)) = Route::parse("/v2/providers/x", None, Some(host), &context) else {
            panic!("{host}")
        };
        assert!(reason.contains(expected_reason), "{reason}");
    }
}

#[test]
fn urls_carry_the_public_name_and_requests_parse_with_and_without_its_prefix() {
    let mount = Mount::new(Some(&Url::parse("https://mirror.example/tf/").unwrap()));
    let base = |via: &str, origin| mount.base(&CdnLoop::received([via].into_iter()), origin);
    assert_eq!(mount.url(base("", None), "/healthz"), "https://mirror.example/tf/healthz");
    assert_eq!(mount.url(base("", Some("https://other.example")), "/healthz"), "https://mirror.example/tf/healthz");
    assert_eq!(mount.url(base("larder;id=1", Some("https://other.example")), "/healthz"), "/tf/healthz");
    assert_eq!(
        (mount.without_prefix("/tf/healthz"), mount.without_prefix("/healthz"), mount.without_prefix("/tfx/y")),
        ("/healthz", "/healthz", "/tfx/y")
    );
    let nowhere = Mount::new(None);
    let url_at = |origin| nowhere.url(nowhere.base(&CdnLoop::default(), origin), "/healthz");
    assert_eq!(url_at(None), "/healthz");
    assert_eq!(url_at(Some("http://10.0.0.1:8080")), "http://10.0.0.1:8080/healthz");
}

prop_compose! {
    fn any_route()(
        variant in 0..13usize,
        host in prop::sample::select(vec!["registry.example", "registry.example:8443", "xn--bcher-kva.example"]),
        namespace in "[a-z0-9][a-z0-9_-]{0,20}",
        type_ in "[a-z0-9][a-z0-9_-]{0,20}",
        version in "[0-9]{1,3}(\\.[0-9]{1,3}){0,2}(-[a-zA-Z0-9]{1,5}(\\.[a-z0-9]{1,3})?)?(\\+[a-z0-9]{1,5})?",
        os in "[a-z0-9]{1,8}",
        arch in "[a-z0-9]{1,8}",
        digest in "[0-9a-f]{16}",
        filename in "[^\\s/\\\\\\pC]{1,20}|([%a-z+]|%[2-5][0-9a-f]){1,8}",
        query in "((limit|offset|q|verified|namespace|provider)=[a-zA-Z0-9%+&é]{0,9}&?){0,4}",
    ) -> Option<Route> {
        let address = ProviderAddress {
            host: Hostname::parse(host).ok()?,
            namespace: Name::parse(&namespace).ok()?,
            type_: Name::parse(&type_).ok()?,
        };
        let version = Version::parse(&version).ok()?;
        let package = Package { provider: address.clone(), version: version.clone(), platform: Platform::new(&os, &arch).ok()? };
        Some(match variant {
            0 => Route::Discovery(address.host),
            1 => Route::Versions((&address).into()),
            2 => Route::ProviderDownload(package),
            3 => Route::MirrorIndex(address),
            4 => Route::MirrorVersion(address, version),
            5..11 => {
                let name = |name: &str| ModuleName::parse(name).ok();
                let (namespace, name, system) = (name(&namespace)?, name(&type_)?, System::parse(&os).ok()?);
                let spelled = SpelledVersion::parse(version.as_str()).ok()?;
                let host = address.host.clone();
                let module = ModuleAddress { host: host.clone(), namespace: namespace.clone(), name: name.clone(), system: system.clone() };
                let path = match variant {
                    5 => PagePath::Modules(None),
                    6 => PagePath::Search,
                    // `search` as a namespace is the search route.
                    7 if namespace.as_str() != "search" => PagePath::Modules(Some(namespace)),
                    8 => PagePath::Module(namespace, name, system, Some(spelled)),
                    9 => PagePath::Provider(address.namespace, address.type_, Some(spelled)),
                    _ => return Some(Route::ModuleLatest(module)),
                };
                let query = PageQuery::parse(&query, path.parameters()).ok()?;
                Route::Page(PageRef { host, path, query })
            }
            11 => Route::ProofFile(ProofFileRef {
                provider: address,
                version,
                digest: DigestPrefix::parse(&digest).ok()?,
                file: if os < arch { ProofFile::Sums } else { ProofFile::Signature },
            }),
            _ => Route::ProviderFile(ArchiveRef {
                package,
                digest: DigestPrefix::parse(&digest).ok()?,
                filename: FileName::parse(&filename).ok()?,
            }),
        })
    }
}

/// Paths of the right shape, whose parts may be anything.
fn any_path() -> impl Strategy<Value = String> {
    let part = "[a-zA-Z0-9%_.+:~-]{1,12}|[0-9]{1,3}(\\.[0-9]){0,2}[+-][a-z0-9.]{85,94}|\\PC{1,3}";
    let shapes = [
        "/registry/registry.example/v1/providers/A/B/versions",
        "/registry/REGISTRY.example:443/v1/providers/A/B/C/download/linux/D",
        "/v1/providers/A/B/versions",
        "/mirror/bücher.example/A/B/index.json",
        "/mirror/registry.example%3A8443/A/B/C.json",
        "/archive/registry.example/providers/A/B/C/linux_D/0123456789abcdef/D",
        "/archive/registry.example/providers/A/B/C/0123456789abcdef/SHA256SUMS",
        "/registry/registry.example/v1/modules?limit=A&q=B&offset=C",
        "/registry/registry.example/v1/modules/A/?q=B&provider=C",
        "/registry/registry.example/v1/modules/search?q=B&namespace=C&x=D",
        "/registry/registry.example/v1/modules/A/B/aws/C",
        "/registry/registry.example/v1/providers/A/B/C/",
    ];
    (prop::sample::select(shapes.to_vec()), prop::array::uniform4(part)).prop_map(|(shape, parts)| {
        let named = ["A", "B", "C", "D"].into_iter().zip(parts);
        // Digests are lower-case, and upper-case hosts have none of these letters alone.
        let segment = |segment: &str| {
            named
                .clone()
                .find(|(name, _)| segment.trim_start_matches("linux_").trim_end_matches(".json") == *name)
                .map_or(segment.to_owned(), |(name, part)| segment.replace(name, &part))
        };
        shape.split('/').map(segment).collect::<Vec<_>>().join("/")
    })
}

proptest! {
    /// Law 8 of ARCHITECTURE.md: every URL we print parses back to the same route.
    #[test]
    fn every_printed_route_parses_back(route in any_route()) {
        if let Some(route) = route {
            prop_assert_eq!(parse(&route.path()), Ok(route.clone()), "{}", route.path());
            let url = Url::parse("http://127.0.0.1:8080/x").unwrap().join(&route.path()).unwrap();
            let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
            prop_assert_eq!(parse(&format!("{}{query}", url.path())), Ok(route));
        }
    }

    /// Law 8 of ARCHITECTURE.md, from requests: every path that parses prints as a path of the same route.
    #[test]
    fn every_parsed_route_prints_as_a_path_that_parses_back(path in any_path(), host in prop::option::of("(registry\\.example|bücher\\.example)(:[0-9]{1,5})?")) {
        if let Ok(route) = parse_at(&path, host.as_deref()) {
            prop_assert_eq!(parse(&route.path()), Ok(route.clone()), "{}", path);
        }
    }

    #[test]
    fn no_request_line_panics(path in "\\PC{0,200}", host in proptest::option::of("\\PC{0,40}")) {
        let _ = parse_at(&path, host.as_deref());
        let _ = parse_at(&format!("/{path}"), host.as_deref());
    }
}
