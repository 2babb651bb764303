//! Every spelling, every refusal, and the round trip.

use proptest::prelude::*;

use super::*;

fn door() -> Door {
    let hosts = ["registry.example", "registry.example:8443", "xn--bcher-kva.example"];
    let upstreams = hosts.iter().map(|host| Hostname::parse(host).unwrap()).collect();
    Door { upstreams, default_upstream: None }
}

fn parse(path: &str) -> Result<Route, NoRoute> {
    Route::parse(path, None, &door())
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
    assert!(matches!(parse("/registry/registry.example./v1/providers/a/b/versions"), Err(NoRoute::Malformed(_))));
    assert!(matches!(parse("/registry/other.example/v1/providers/a/b/versions"), Err(NoRoute::Unknown(_))));
}

#[test]
fn what_no_name_can_be_is_malformed_and_what_is_not_there_is_unknown() {
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
        "no-slash",
    ] {
        assert!(matches!(parse(path), Err(NoRoute::Malformed(_))), "{path}: {:?}", parse(path));
    }
    for path in [
        "/",
        "//",
        "/v2/",
        "/git/x",
        "/archive/~abc/x",
        "/registry/registry.example/v1/providers/acme",
        "/mirror/registry.example/acme/null/index.html",
        "/v1/providers/acme/null/versions",
        "/.well-known/terraform.json",
        "/admin/v1/status",
        "/metrics",
    ] {
        assert!(matches!(parse(path), Err(NoRoute::Unknown(_))), "{path}: {:?}", parse(path));
    }
}

#[test]
fn a_taken_over_name_is_its_upstream_whatever_the_port() {
    for host in ["registry.example", "Registry.example:8080", "registry.example:443"] {
        let route = Route::parse("/.well-known/terraform.json", Some(host), &door());
        assert_eq!(route, Ok(Route::Discovery(Hostname::parse("registry.example").unwrap())), "{host}");
        let route = Route::parse("/v1/providers/acme/null/versions", Some(host), &door());
        assert!(matches!(route, Ok(Route::ProviderVersions(_))), "{host}");
    }
    let other_port = Route::parse("/.well-known/terraform.json", Some("registry.example:8443"), &door());
    assert_eq!(other_port, Ok(Route::Discovery(Hostname::parse("registry.example:8443").unwrap())));
    let own = Door { default_upstream: Some(Hostname::parse("registry.example").unwrap()), ..door() };
    assert!(Route::parse("/.well-known/terraform.json", Some("mirror.corp"), &own).is_ok());
    assert!(Route::parse("/.well-known/terraform.json", None, &own).is_ok());
}

#[test]
fn urls_carry_the_public_name_and_requests_parse_with_and_without_its_prefix() {
    let mount = Mount::new(Some(&Url::parse("https://mirror.example/tf/").unwrap()));
    assert_eq!(mount.url(Form::Public, "/healthz"), "https://mirror.example/tf/healthz");
    assert_eq!(mount.url(Form::PathAbsolute, "/healthz"), "/tf/healthz");
    assert_eq!(
        (mount.below("/tf/healthz"), mount.below("/healthz"), mount.below("/tfx/y")),
        ("/healthz", "/healthz", "/tfx/y")
    );
    assert_eq!(mount.form(&CdnLoop::default()), Form::Public);
    assert_eq!(mount.form(&CdnLoop::received(["larder;id=1"].into_iter())), Form::PathAbsolute);
    assert_eq!(Mount::new(None).url(Mount::new(None).form(&CdnLoop::default()), "/healthz"), "/healthz");
}

prop_compose! {
    fn any_route()(
        which in 0..6usize,
        host in prop::sample::select(vec!["registry.example", "registry.example:8443", "xn--bcher-kva.example"]),
        namespace in "[a-z0-9][a-z0-9_-]{0,20}",
        type_ in "[a-z0-9][a-z0-9_-]{0,20}",
        version in "[0-9]{1,3}(\\.[0-9]{1,3}){0,2}(-[a-zA-Z0-9]{1,5}(\\.[a-z0-9]{1,3})?)?(\\+[a-z0-9]{1,5})?",
        os in "[a-z0-9]{1,8}",
        arch in "[a-z0-9]{1,8}",
        digest in "[0-9a-f]{16}",
        filename in "[^\\s/\\\\\\pC]{1,20}|([%a-z+]|%[2-5][0-9a-f]){1,8}",
    ) -> Option<Route> {
        let address = ProviderAddress {
            host: Hostname::parse(host).ok()?,
            namespace: Name::parse(&namespace).ok()?,
            type_: Name::parse(&type_).ok()?,
        };
        let version = Version::parse(&version).ok()?;
        let package = Package { provider: address.clone(), version: version.clone(), platform: Platform::new(&os, &arch).ok()? };
        Some(match which {
            0 => Route::Discovery(address.host),
            1 => Route::ProviderVersions(address),
            2 => Route::ProviderDownload(package),
            3 => Route::MirrorIndex(address),
            4 => Route::MirrorVersion(address, version),
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
    /// Law 8: every URL we print parses back to the same route.
    #[test]
    fn every_printed_route_parses_back(route in any_route()) {
        if let Some(route) = route {
            prop_assert_eq!(parse(&route.path()), Ok(route.clone()), "{}", route.path());
            let url = Url::parse("http://127.0.0.1:8080/x").unwrap().join(&route.path()).unwrap();
            prop_assert_eq!(parse(url.path()), Ok(route));
        }
    }

    /// Law 8, from the other side: whatever parses is one route, however it was spelled.
    #[test]
    fn every_route_that_is_asked_for_prints_as_itself(path in any_path(), host in prop::option::of("(registry\\.example|bücher\\.example)(:[0-9]{1,5})?")) {
        if let Ok(route) = Route::parse(&path, host.as_deref(), &door()) {
            prop_assert_eq!(parse(&route.path()), Ok(route.clone()), "{}", path);
        }
    }

    #[test]
    fn no_request_line_panics(path in "\\PC{0,200}", host in proptest::option::of("\\PC{0,40}")) {
        let _ = Route::parse(&path, host.as_deref(), &door());
        let _ = Route::parse(&format!("/{path}"), host.as_deref(), &door());
    }
}
