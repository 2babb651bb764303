//! URLs in larder's responses: absolute where larder knows its address as the client sees it, else path-absolute.
//! Terraform and OpenTofu follow both; Checkov, Trivy and Renovate only absolute ones.

use crate::support::http::{self, Answer, client, client_trusting, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::process::Process;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, ListedItem, Provider, Target};

const NULL_DOCUMENT: &str = "/v1/providers/acme/null/1.2.0/download/linux/amd64";

/// A registry with a provider, a module, and a module list of two pages.
async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let modules = [("acme/vpc/aws", &["1.0.0"][..]), ("acme/dns/aws", &["1.0.0"])];
    upstream.list(&modules.map(|(names, versions)| ListedItem::new(names, versions)), &[]);
    upstream.serve_file("/files/m.tar.gz", "application/gzip", tar_gz(&[("main.tf", b"# m\n")]));
    upstream.serve_json("/v1/modules/acme/vpc/aws/1.0.0/download", r#"{"location":"/files/m.tar.gz"}"#);
    upstream
}

/// A client, the base URL it uses, and the headers it sends.
struct LinkClient<'a> {
    client: &'a reqwest::Client,
    base: String,
    headers: &'a [(&'a str, &'a str)],
}

impl LinkClient<'_> {
    async fn get(&self, path: &str) -> Answer {
        let request = self.client.get(format!("{}{path}", self.base));
        send(self.headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
    }

    /// Every URL of larder itself in the responses.
    async fn links(&self) -> Vec<String> {
        let base = format!("/registry/{HOST}");
        let services = self.get(&format!("{base}/.well-known/terraform.json")).await.expect(200).json();
        let document = self.get(&format!("{base}{NULL_DOCUMENT}")).await.expect(200).json();
        let archives = self.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200).json();
        let page = self.get(&format!("{base}/v1/modules?limit=1")).await.expect(200).json();
        let latest = self.get(&format!("{base}/v1/modules/acme/vpc/aws/download")).await.expect(302);
        let module = self.get(&format!("{base}/v1/modules/acme/vpc/aws/1.0.0/download")).await.expect(204);
        let from_bodies = [
            &services["providers.v1"],
            &services["modules.v1"],
            &document["download_url"],
            &document["shasums_url"],
            &document["shasums_signature_url"],
            &archives["archives"]["linux_amd64"]["url"],
            &page["meta"]["next_url"],
        ];
        let from_headers = [latest.header("location"), module.header("x-terraform-get")].map(str::to_owned);
        from_bodies.into_iter().map(|link| link.as_str().unwrap().to_owned()).chain(from_headers).collect()
    }

    async fn expect_links_at(&self, origin: &str) {
        for link in self.links().await {
            let Some(path) = link.strip_prefix(origin) else { panic!("{:?}: {link}, not {origin}", self.headers) };
            assert!(path.starts_with(['/']) && !path.starts_with("//"), "{link}");
        }
    }
}

/// The names in the certificate are larder's own; under take-over the Host is an upstream's name.
#[tokio::test]
async fn over_tls_urls_are_absolute_under_larders_own_names() {
    let (upstream, ca) = (registry().await, TestCa::new());
    let names = ["127.0.0.1", "mirror.example", "*.corp.example"];
    let larder = Larder::mirroring(&upstream).tls(&ca, &names).start().await;
    let client = client_trusting(&ca);
    let base = larder.base().to_owned();
    for (headers, origin) in [
        (&[][..], base.as_str()),
        (&[("host", "mirror.example")], "https://mirror.example"),
        (&[("host", "Mirror.Example:443")], "https://mirror.example"),
        (&[("host", "mirror.example:8443")], "https://mirror.example:8443"),
        (&[("host", "tf.corp.example")], "https://tf.corp.example"),
        (&[("host", HOST)], "https://registry.terraform.io"),
        (&[("host", "mirror.example"), ("cdn-loop", "fastly")], "https://mirror.example"),
        // These host names are not larder's own.
        (&[("host", "evil.example")], ""),
        (&[("host", "a.b.corp.example")], ""),
        (&[("host", "mirror.example.")], ""),
        (&[("host", "10.0.0.1")], ""),
        // Behind a proxy, the Host may be the proxy's name for larder.
        (&[("host", "mirror.example"), ("x-forwarded-for", "10.0.0.1")], ""),
        (&[("host", "mirror.example"), ("x-forwarded-host", "evil.example"), ("x-forwarded-proto", "https")], ""),
        (&[("host", "mirror.example"), ("via", "1.1 proxy")], ""),
        (&[("host", "mirror.example"), ("forwarded", "for=10.0.0.1")], ""),
        // Another larder resolves paths against the URL that it requested.
        (&[("host", "mirror.example"), ("cdn-loop", "larder;id=1")], ""),
    ] {
        let link_client = LinkClient { client: &client, base: base.clone(), headers };
        link_client.expect_links_at(origin).await;
    }
    for link in (LinkClient { client: &client, base: base.clone(), headers: &[] }).links().await {
        let status = send(client.get(&link)).await.unwrap().status;
        assert!(matches!(status, 200 | 204 | 404), "{link}: {status}");
    }
}

/// Over plain http the Host proves nothing: behind a bare `proxy_pass` it is an internal name.
#[tokio::test]
async fn over_http_urls_are_absolute_only_with_a_trusted_proxy_or_public_url() {
    let upstream = registry().await;
    let client = client();
    let forwarded = [("x-forwarded-host", "mirror.example"), ("x-forwarded-proto", "https")];
    for (server, public, via_proxy) in [
        ("", "", ""),
        ("trusted_proxies = [\"10.0.0.1\"]", "", ""),
        ("trusted_proxies = [\"127.0.0.1\"]", "", "https://mirror.example"),
        (
            "trusted_proxies = [\"127.0.0.1\"]\npublic_url = \"https://public.example/\"",
            "https://public.example",
            "https://public.example",
        ),
    ] {
        let larder = Larder::mirroring(&upstream).server(server).start().await;
        for (headers, origin) in [
            (&[][..], public),
            (&[("host", "mirror.example")], public),
            (&forwarded, via_proxy),
            (&[forwarded[0]], public),
            (&[forwarded[0], ("x-forwarded-proto", "https, http")], public),
        ] {
            LinkClient { client: &client, base: format!("http://{}", larder.address()), headers }
                .expect_links_at(origin)
                .await;
        }
    }
}

/// An answer of a shared cache is never another client's: of two requests for one URL with different answers, either the
/// answers are private, or Vary names a header in which the requests differ.
#[tokio::test]
async fn answers_that_depend_on_host_or_proxies_say_so_to_caches() {
    let (upstream, other, ca) = (registry().await, FakeUpstream::start().await, TestCa::new());
    let client = client_trusting(&ca);
    let requests: [&[(&str, &str)]; 10] = [
        &[("host", "mirror.example")],
        &[("host", "tf.corp.example")],
        &[("host", HOST)],
        &[("host", "other.example")],
        &[("host", "mirror.example"), ("x-forwarded-host", "a.example"), ("x-forwarded-proto", "https")],
        &[("host", "mirror.example"), ("x-forwarded-host", "a.example"), ("x-forwarded-proto", "http")],
        &[("host", "mirror.example"), ("x-forwarded-for", "10.0.0.1")],
        &[("host", "mirror.example"), ("via", "1.1 proxy")],
        &[("host", "mirror.example"), ("forwarded", "for=10.0.0.1")],
        &[("host", "mirror.example"), ("cdn-loop", "larder;id=1")],
    ];
    let with_prefix =
        [NULL_DOCUMENT, "/v1/modules?limit=1", "/v1/modules/acme/vpc/aws/download", "/.well-known/terraform.json"];
    let mut paths = vec![
        format!("/mirror/{HOST}/acme/null/1.2.0.json"),
        format!("/mirror/{HOST}/acme/null/index.json"),
        format!("/registry/{HOST}/v1/modules/acme/vpc/aws/1.0.0/download"),
    ];
    for path in with_prefix.iter().chain(&["/v1/providers/acme/null/versions"]) {
        paths.extend([format!("/registry/{HOST}{path}"), (*path).to_owned()]);
    }
    for server in [
        "trusted_proxies = [\"127.0.0.1\"]",
        "trusted_proxies = [\"10.0.0.1\"]",
        "trusted_proxies = [\"127.0.0.1\"]\npublic_url = \"https://public.example/\"",
    ] {
        let server = format!("{server}\ndefault_upstream = \"{HOST}\"");
        let larder = Larder::mirroring(&upstream)
            .upstream("other.example", &other.origin(), "")
            .server(&server)
            .tls(&ca, &["127.0.0.1", "mirror.example", "*.corp.example"])
            .start()
            .await;
        let base = format!("https://{}", larder.address());
        let mut differing = 0;
        for path in &paths {
            let mut answers = Vec::new();
            for headers in requests {
                let link_client = LinkClient { client: &client, base: base.clone(), headers };
                answers.push((headers, link_client.get(path).await));
            }
            for (headers, answer) in &answers {
                for (other_headers, other_answer) in &answers {
                    let content = |answer: &Answer| {
                        let links = ["location", "x-terraform-get"].map(|name| answer.header(name).to_owned());
                        (answer.status, answer.body.clone(), links)
                    };
                    let may_be_shared =
                        !["private", "no-store"].iter().any(|word| answer.header("cache-control").contains(word));
                    if content(answer) == content(other_answer) || !may_be_shared {
                        continue;
                    }
                    differing += 1;
                    let value = |headers: &[(&str, &str)], name: &str| {
                        headers.iter().find(|(header, _)| *header == name).map(|(_, value)| (*value).to_owned())
                    };
                    let vary = answer.header("vary").to_lowercase();
                    let tells_apart = vary.split(", ").any(|name| value(headers, name) != value(other_headers, name));
                    assert!(tells_apart, "{path} with {headers:?} and {other_headers:?}: Vary: {vary}");
                }
            }
        }
        assert!(differing > 0, "{server}");
        // A list has no URLs of larder, and may be shared by all.
        let link_client = LinkClient { client: &client, base, headers: &[] };
        let list = link_client.get(&format!("/registry/{HOST}/v1/providers/acme/null/versions")).await.expect(200);
        assert_eq!((list.header("vary"), list.header("cache-control")), ("", "no-cache"));
    }
}

/// Responses with URLs are rendered once per base; fetched documents do not depend on the base.
#[tokio::test]
async fn each_base_url_has_its_own_rendered_response_from_one_upstream_request() {
    let upstream = registry().await;
    let larder = Larder::mirroring(&upstream).server("trusted_proxies = [\"127.0.0.1\"]").start().await;
    let client = client();
    for round in 0..2 {
        for name in ["a.example", "b.example:8443"] {
            let headers = [("x-forwarded-host", name), ("x-forwarded-proto", "https")];
            let link_client = LinkClient { client: &client, base: larder.base().to_owned(), headers: &headers };
            link_client.expect_links_at(&format!("https://{name}")).await;
            let document = link_client.get(&format!("/registry/{HOST}{NULL_DOCUMENT}")).await.expect(200);
            assert_eq!(document.header("cache-status"), "larder; hit", "{round} {name}");
        }
    }
    for target in [Target::Discovery, Target::Versions, Target::Document, Target::Sums, Target::Signature] {
        assert_eq!(upstream.count_of(target.clone()), 1, "{target:?}");
    }
}

/// `default_upstream` also serves tools that skip discovery; the name of an upstream selects that upstream.
#[tokio::test]
async fn larders_own_name_has_the_registry_at_its_root_without_discovery() {
    let upstream = registry().await;
    let with_default = Larder::mirroring(&upstream).server(&format!("default_upstream = \"{HOST}\"")).start().await;
    let without_default = Larder::mirroring(&upstream).start().await;
    let paths = [
        "/v1/providers/acme/null/versions",
        NULL_DOCUMENT,
        "/v1/modules/acme/vpc/aws/versions",
        "/v1/modules?limit=1",
        "/.well-known/terraform.json",
    ];
    for path in paths {
        let under_registry = with_default.get(&format!("/registry/{HOST}{path}")).await.expect(200);
        for host in [HOST, "mirror.corp.example", "127.0.0.1:8080"] {
            let at_root = with_default.get_with(path, &[("host", host)]).await.expect(200);
            assert_eq!(at_root.text(), under_registry.text(), "{host}{path}");
        }
        let refused = without_default.get(path).await.expect(421).text();
        assert!(refused.contains("default_upstream") && refused.contains("/registry/HOST/v1/"), "{refused}");
    }
    let module = with_default.get("/v1/modules/acme/vpc/aws/1.0.0/download").await.expect(204);
    assert!(module.header("x-terraform-get").starts_with(&format!("/archive/{HOST}/modules/acme/vpc/aws/1.0.0/")));
}

/// Common mistakes of clients, proxies and people have an error that names the mistake.
#[tokio::test]
async fn errors_name_a_final_dot_a_final_slash_and_v2() {
    let upstream = registry().await;
    let larder = Larder::mirroring(&upstream).start().await;
    for (path, host, status, message) in [
        (
            format!("/registry/{HOST}./v1/providers/acme/null/versions"),
            "a.example",
            421,
            "registry.terraform.io. has a dot at its end; ask for registry.terraform.io",
        ),
        (
            "/v1/providers/acme/null/versions".into(),
            "registry.terraform.io.",
            421,
            "registry.terraform.io. has a dot at its end",
        ),
        ("/.well-known/terraform.json".into(), "registry.terraform.io.:443", 421, "has a dot at its end"),
        (format!("/mirror/{HOST}./acme/null/index.json"), "a.example", 503, "has a dot at its end"),
        (format!("/registry/{HOST}/v1/providers/acme/null/versions/"), "a.example", 421, "a slash after \"versions\""),
        (format!("/registry/{HOST}/v1/modules/acme/vpc/aws/versions/"), "a.example", 421, "a slash after \"versions\""),
        ("/v2/providers/acme/null?include=x".into(), HOST, 404, "larder mirrors v1 of registry.terraform.io"),
        ("/v2/providers/acme/null".into(), "a.example", 404, "there is nothing at /v2/"),
    ] {
        let answer = larder.get_with(&path, &[("host", host)]).await.expect(status);
        assert!(answer.text().contains(&message.replace('"', "\\\"")), "{path}: {}", answer.text());
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// The log names the client that a trusted proxy forwards, or the peer itself without a valid one.
#[tokio::test]
async fn behind_a_proxy_the_log_names_the_client_that_the_proxy_vouches_for() {
    for (trusted, forwarded, client) in [
        ("127.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("127.0.0.1", "198.51.100.1, 2001:db8::7, 127.0.0.1", "2001:db8::7"),
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("10.0.0.1", "203.0.113.7", "127.0.0.1"),
    ] {
        let folder = Folder::new();
        let server = format!("trusted_proxies = [\"{trusted}\"]");
        let larder = Process::start(
            &Larder::builder().store_at(&folder).server(&server).upstream(HOST, "http://127.0.0.1:9/", ""),
            folder.path(),
        );
        let url = format!("{}/registry/{HOST}/v1/nothing", larder.base());
        send(http::client().get(url).header("x-forwarded-for", forwarded)).await.unwrap().expect(404);
        let line = larder.log().line_with("GET /registry/").await;
        assert!(line.contains(&format!("client={client} ")), "{trusted} {forwarded}: {line}");
    }
}
