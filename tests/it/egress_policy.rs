//! Promise 7 through the running server: the egress policy checks every hop and every address of documents and
//! redirects. Also tests `[[credential]]` (promise 8).

use crate::support::http::{Answer, get};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

const DISCOVERY: &str = "/.well-known/terraform.json";
const DOCUMENT: &str = "/v1/providers/acme/null/1.2.0/download/linux/amd64";

/// The kinds of documents and redirects by which an upstream can send larder to another URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hop {
    DiscoveryRedirect,
    Service,
    VersionsRedirect,
    DocumentRedirect,
    SumsUrl,
    SumsRedirect,
    SignatureUrl,
    SignatureRedirect,
    ArchiveUrl,
    ArchiveRedirect,
}

const HOPS: [Hop; 10] = [
    Hop::DiscoveryRedirect,
    Hop::Service,
    Hop::VersionsRedirect,
    Hop::DocumentRedirect,
    Hop::SumsUrl,
    Hop::SumsRedirect,
    Hop::SignatureUrl,
    Hop::SignatureRedirect,
    Hop::ArchiveUrl,
    Hop::ArchiveRedirect,
];

impl Hop {
    /// Makes `upstream` send larder to `url` by this hop.
    async fn send_elsewhere(self, upstream: &FakeUpstream, url: &str) {
        let redirect = |target| upstream.fault(target, Fault::RedirectTo(302, url.to_owned()));
        match self {
            Self::DiscoveryRedirect => redirect(Target::Discovery),
            Self::Service => upstream.serve_json(DISCOVERY, &format!("{{\"providers.v1\":\"{url}/\"}}")),
            Self::VersionsRedirect => redirect(Target::Versions),
            Self::DocumentRedirect => redirect(Target::Document),
            Self::SumsUrl => document_with(upstream, "shasums_url", url).await,
            Self::SumsRedirect => redirect(Target::Sums),
            Self::SignatureUrl => document_with(upstream, "shasums_signature_url", url).await,
            Self::SignatureRedirect => redirect(Target::Signature),
            Self::ArchiveUrl => document_with(upstream, "download_url", url).await,
            Self::ArchiveRedirect => redirect(Target::Archive),
        }
    }

    /// Requests something from larder for which larder must follow this hop.
    async fn request(self, larder: &Larder) -> Answer {
        match self {
            Self::DiscoveryRedirect => larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await,
            Self::Service | Self::VersionsRedirect => larder.versions("null").await,
            Self::ArchiveUrl | Self::ArchiveRedirect => {
                let path = larder.archive_path("null", "1.2.0").await;
                larder.get(&path).await
            }
            _ => larder.document("null", "1.2.0").await,
        }
    }
}

/// Serves the download document with another URL in one field.
async fn document_with(upstream: &FakeUpstream, key: &str, url: &str) {
    let mut document = get(&format!("{}{DOCUMENT}", upstream.origin())).await.expect(200).json();
    document[key] = url.into();
    upstream.serve_json(DOCUMENT, &document.to_string());
}

async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(50_000));
    upstream
}

/// A server that must never be reached, with a certificate that larder would trust.
async fn forbidden_server(ca: &TestCa) -> FakeUpstream {
    FakeUpstream::builder().tls_with(ca).certificate_name("taken.example").certificate_name("localhost").start().await
}

async fn refusal_count(larder: &Larder, reason: &str) -> f64 {
    let text = get(&format!("{}/metrics", larder.admin())).await.expect(200).text();
    let lines = text.lines().filter(|line| line.starts_with("larder_upstream_refusals_total"));
    let lines = lines.filter(|line| line.contains(&format!("reason=\"{reason}\"")));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Promise 7: on every hop, each class of addresses that are not public, in every spelling, is refused, counted and
/// never connected to. The error names the host and the line that would allow it.
#[tokio::test]
async fn every_hop_to_an_address_that_is_not_public_is_refused() {
    let ca = TestCa::new();
    let trap = forbidden_server(&ca).await;
    let port = trap.port();
    let classes = [
        (format!("https://127.0.0.1:{port}"), "loopback", "127.0.0.1"),
        (format!("https://2130706433:{port}"), "loopback", "127.0.0.1"),
        (format!("https://localhost:{port}"), "loopback", "localhost"),
        (format!("https://[::1]:{port}"), "loopback", "::1"),
        (format!("https://[::ffff:127.0.0.1]:{port}"), "loopback", "::ffff:127.0.0.1"),
        (format!("https://[64:ff9b::127.0.0.1]:{port}"), "loopback", "64:ff9b::7f00:1"),
        // A take-over upstream: its `addresses` permit its own origin only, not another port.
        (format!("https://taken.example:{port}"), "loopback", "taken.example"),
        (format!("https://0.0.0.0:{port}"), "unspecified", "0.0.0.0"),
        (format!("https://[::]:{port}"), "unspecified", "::"),
        ("https://10.1.2.3".to_owned(), "private", "10.1.2.3"),
        ("https://172.20.0.1".to_owned(), "private", "172.20.0.1"),
        ("https://192.168.0.1".to_owned(), "private", "192.168.0.1"),
        ("https://100.64.0.1".to_owned(), "private", "100.64.0.1"),
        ("https://[fd12::1]".to_owned(), "private", "fd12::1"),
        ("https://[::ffff:10.1.2.3]".to_owned(), "private", "::ffff:10.1.2.3"),
        ("https://[64:ff9b::10.1.2.3]".to_owned(), "private", "64:ff9b::a01:203"),
        ("https://169.254.169.254".to_owned(), "link-local", "169.254.169.254"),
        ("https://[fe80::1]".to_owned(), "link-local", "fe80::1"),
        ("https://224.0.0.251".to_owned(), "multicast", "224.0.0.251"),
        ("https://[ff02::1]".to_owned(), "multicast", "ff02::1"),
        ("https://240.0.0.1".to_owned(), "reserved", "240.0.0.1"),
        ("https://[2001:db8::1]".to_owned(), "reserved", "2001:db8::1"),
        ("http://169.254.169.254".to_owned(), "plain-http", "http://169.254.169.254:80"),
        (format!("http://127.0.0.1:{port}"), "plain-http", &format!("http://127.0.0.1:{port}")),
        ("http://files.example".to_owned(), "plain-http", "http://files.example:80"),
    ]
    .map(|(url, reason, line)| (url, reason, line.to_owned()));
    for hop in HOPS {
        let upstream = registry().await;
        let take_over_config = format!("addresses = [\"127.0.0.1:{port}\"]");
        let larder = Larder::mirroring(&upstream)
            .always_revalidate()
            .upstream("taken.example", "https://taken.example/", &take_over_config)
            .trusting(&ca)
            .start()
            .await;
        for (origin, reason, line) in &classes {
            // Services may be under the upstream's own host.
            if hop == Hop::Service && line.trim_start_matches("http://").starts_with("127.0.0.1") {
                continue;
            }
            let case = format!("{hop:?} to {origin}");
            let refusals_before = refusal_count(&larder, reason).await;
            hop.send_elsewhere(&upstream, &format!("{origin}/s3cret/path?sig=s3cret")).await;
            let answer = hop.request(&larder).await;
            assert_eq!(answer.status, 502, "{case}: {}", answer.text());
            let text = answer.text();
            assert!(text.contains("may not be asked"), "{case}: {text}");
            assert!(text.contains(&format!("add \\\"{line}\\\" to allow_private in [network]")), "{case}: {text}");
            assert!(!text.contains("s3cret"), "{case}: {text}");
            assert!(refusal_count(&larder, reason).await > refusals_before, "{case}");
            upstream.clear_faults();
        }
        assert!(larder.folder.blobs().is_empty(), "{hop:?}");
        // With the upstream's own URLs the request succeeds again.
        hop.restore(&upstream);
        hop.request(&larder).await.expect(200);
    }
    assert_eq!(trap.count_where(|_| true), 0);
}

/// Promise 7: the private origin of an upstream is permitted for that upstream alone. Another registry leads larder there
/// by no hop, neither to its `url` nor to its host.
#[tokio::test]
async fn every_hop_to_the_private_origin_of_another_upstream_is_refused() {
    let ca = TestCa::new();
    let private = FakeUpstream::start().await;
    private.publish(Provider::new("acme", "private").size(50_000));
    let secure = forbidden_server(&ca).await;
    let taken = format!("taken.example:{}", secure.port());
    for hop in HOPS {
        let upstream = registry().await;
        let larder = Larder::mirroring(&upstream)
            .always_revalidate()
            .upstream("private.example", &private.origin(), "")
            .upstream(&taken, &format!("https://{taken}/"), &format!("addresses = [\"127.0.0.1:{}\"]", secure.port()))
            .trusting(&ca)
            .start()
            .await;
        for (origin, reason) in [(private.origin(), "plain-http"), (format!("https://{taken}"), "loopback")] {
            // Services may be under the upstream's own host.
            if hop == Hop::Service && origin == private.origin() {
                continue;
            }
            private.forget_requests();
            hop.send_elsewhere(&upstream, &format!("{origin}/path")).await;
            let answer = hop.request(&larder).await;
            assert_eq!(answer.status, 502, "{hop:?} to {origin}: {}", answer.text());
            assert!(answer.text().contains("may not be asked"), "{hop:?} to {origin}: {}", answer.text());
            assert!(refusal_count(&larder, reason).await >= 1.0, "{hop:?} to {origin}");
            assert_eq!(private.count_where(|_| true), 0, "{hop:?} to {origin}");
            upstream.clear_faults();
            hop.restore(&upstream);
        }
        larder.get("/registry/private.example/v1/providers/acme/private/versions").await.expect(200);
    }
    assert_eq!(secure.count_where(|_| true), 0);
}

impl Hop {
    /// Removes the responses that `send_elsewhere` served.
    fn restore(self, upstream: &FakeUpstream) {
        match self {
            Self::Service => upstream.serve_json(DISCOVERY, r#"{"providers.v1":"/v1/providers/"}"#),
            Self::SumsUrl | Self::SignatureUrl | Self::ArchiveUrl => upstream.stop_serving(DOCUMENT),
            _ => {}
        }
    }
}

/// A URL with a user, a password or another scheme is never requested, whatever `allow_private` says.
#[tokio::test]
async fn every_hop_to_a_url_with_userinfo_or_another_scheme_is_refused() {
    for hop in HOPS {
        let upstream = registry().await;
        let own = upstream.host();
        let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
        for (url, reason) in [
            (format!("http://me@{own}/x"), "userinfo"),
            (format!("http://:s3cret@{own}/x"), "userinfo"),
            (format!("http://me:s3cret@{own}/x"), "userinfo"),
            ("ftp://files.example/x".to_owned(), "scheme"),
            ("file:///etc/passwd".to_owned(), "scheme"),
        ] {
            hop.send_elsewhere(&upstream, &url).await;
            let answer = hop.request(&larder).await;
            assert_eq!(answer.status, 502, "{hop:?} to {url}: {}", answer.text());
            assert!(!answer.text().contains("s3cret") && !answer.text().contains("passwd"), "{}", answer.text());
            // A service or document with such a URL is unusable before any request, so no refusal is counted.
            if !matches!(hop, Hop::Service | Hop::SumsUrl | Hop::SignatureUrl | Hop::ArchiveUrl) {
                assert!(refusal_count(&larder, reason).await >= 1.0, "{hop:?} to {url}");
            }
            upstream.clear_faults();
        }
    }
}

/// Promise 7: a refusal prints the line to add, and that line allows the request.
#[tokio::test]
async fn the_line_that_a_refusal_prints_is_the_line_that_allows_it() {
    let ca = TestCa::new();
    let plain = FakeUpstream::start().await;
    let secure = forbidden_server(&ca).await;
    for elsewhere in [
        plain.origin(),
        format!("http://localhost:{}", plain.port()),
        format!("https://127.0.0.1:{}", secure.port()),
        format!("https://localhost:{}", secure.port()),
    ] {
        let upstream = registry().await;
        let larder = |allowed: &str| {
            let larder = Larder::mirroring(&upstream).always_revalidate().trusting(&ca);
            if allowed.is_empty() { larder } else { larder.allow_private(allowed) }
        };
        for files in [&plain, &secure] {
            files.publish(Provider::new("acme", "null").size(50_000));
        }
        upstream.fault(
            Target::Archive,
            Fault::RedirectTo(307, format!("{elsewhere}{}", zip_path(&upstream, "null").await)),
        );
        let strict_larder = larder("").start().await;
        let path = strict_larder.archive_path("null", "1.2.0").await;
        let text = strict_larder.get(&path).await.expect(502).text();
        let line = text.split("add \\\"").nth(1).and_then(|rest| rest.split("\\\"").next()).unwrap();
        let permissive_larder = larder(line).start().await;
        permissive_larder.archive_path("null", "1.2.0").await;
        let zip = permissive_larder.get(&path).await.expect(200);
        assert!(zip.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"), "{elsewhere}");
    }
}

async fn zip_path(upstream: &FakeUpstream, name: &str) -> String {
    let document = get(&format!("{}{}", upstream.origin(), DOCUMENT.replace("null", name))).await.expect(200).json();
    document["download_url"].as_str().unwrap().strip_prefix(&upstream.origin()).unwrap().to_owned()
}

/// A network permits its addresses, also in their mapped form, but no other network and no plain http.
#[tokio::test]
async fn a_network_in_allow_private_allows_its_addresses_over_https_only() {
    let ca = TestCa::new();
    let files = FakeUpstream::builder().tls_with(&ca).start().await;
    files.publish(Provider::new("acme", "null").size(50_000));
    let upstream = registry().await;
    for (origin, allowed, status) in [
        (files.origin(), "127.0.0.0/8", 200),
        (format!("https://localhost:{}", files.port()), "127.0.0.0/8", 200),
        (files.origin(), "10.0.0.0/8", 502),
        (files.origin().replace("https", "http"), "127.0.0.0/8", 502),
        (files.origin().replace("https", "http"), "127.0.0.1", 502),
        (format!("http://localhost:{}", files.port()), "localhost", 502),
    ] {
        upstream.clear_faults();
        upstream
            .fault(Target::Archive, Fault::RedirectTo(302, format!("{origin}{}", zip_path(&upstream, "null").await)));
        let larder = Larder::mirroring(&upstream).trusting(&ca).allow_private(allowed).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        let answer = larder.get(&path).await;
        assert_eq!(answer.status, status, "{origin} with {allowed}: {}", answer.text());
    }
}

/// Promise 7: services that discovery names under the upstream's own host are permitted at any port, over plain http
/// only if the upstream's `url` is plain http.
#[tokio::test]
async fn services_under_the_upstreams_own_host_are_permitted() {
    let service = registry().await;
    let upstream = FakeUpstream::start().await;
    upstream.serve_json(DISCOVERY, &format!("{{\"providers.v1\":\"{}\"}}", service.providers_url()));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);

    let ca = TestCa::new();
    let secure = FakeUpstream::builder().tls_with(&ca).start().await;
    secure.serve_json(DISCOVERY, &format!("{{\"providers.v1\":\"{}\"}}", service.providers_url()));
    let larder = Larder::mirroring(&secure).trusting(&ca).start().await;
    let text = larder.versions("null").await.expect(502).text();
    assert!(text.contains("without TLS"), "{text}");
}

/// Promise 7: a proxy from the environment resolves names itself and may be anywhere. Literal private addresses, and
/// names that only exist in private networks, are still refused unless the configuration permits them.
#[tokio::test]
async fn behind_a_proxy_private_addresses_and_names_of_private_networks_are_still_refused() {
    let proxy = FakeUpstream::start().await;
    let upstream = registry().await;
    let folder = Folder::new();
    let config = Larder::mirroring(&upstream).always_revalidate().allow_private("git.corp.internal");
    let config = config.store_at(&folder).config_text();
    let larder = Process::serve_with(&config, folder.path(), |command| {
        command.env("HTTPS_PROXY", proxy.origin()).env("https_proxy", proxy.origin());
        command.env("NO_PROXY", "direct.invalid").env("no_proxy", "direct.invalid");
    });
    let larder = larder.unwrap_or_else(|error| panic!("{error:?}"));
    for (origin, reaches_proxy, reason) in [
        ("https://10.1.2.3", false, "it is a private address"),
        ("https://[fd00::1]", false, "it is a private address"),
        ("https://localhost", false, "add \\\"localhost\\\" to allow_private"),
        ("https://LOCALHOST.:8443", false, "add \\\"localhost\\\" to allow_private"),
        ("https://admin.localhost", false, "add \\\"admin.localhost\\\" to allow_private"),
        ("https://metadata.google.internal", false, "add \\\"metadata.google.internal\\\" to allow_private"),
        ("https://printer.local", false, "add \\\"printer.local\\\" to allow_private"),
        ("https://intranet", false, "add \\\"intranet\\\" to allow_private"),
        ("https://intranet.", false, "add \\\"intranet\\\" to allow_private"),
        ("https://git.corp.internal", true, ""),
        ("https://local.files.invalid", true, ""),
        ("https://files.invalid", true, ""),
        ("https://direct.invalid", false, ""),
    ] {
        proxy.forget_requests();
        upstream.fault(Target::Document, Fault::RedirectTo(302, format!("{origin}/x")));
        let answer = larder.document("null").await.expect(502).text();
        assert!(answer.contains(reason), "{answer}");
        assert_eq!(proxy.count_where(|_| true) > 0, reaches_proxy, "{origin}: {answer}");
        upstream.clear_faults();
    }
}

/// Two upstreams whose archives are at a third host, over TLS. A `[[credential]]` for that host lists one of the
/// upstreams at most, and never the other.
struct CredentialHosts {
    archive_host: FakeUpstream,
    permitted_upstream: FakeUpstream,
    other_upstream: FakeUpstream,
    ca: TestCa,
}

const OTHER: &str = "other.example";

impl CredentialHosts {
    async fn start() -> Self {
        let ca = TestCa::new();
        let files = FakeUpstream::builder().tls_with(&ca).start().await;
        files.publish(Provider::new("acme", "null").size(50_000));
        let (permitted, other) = (registry().await, FakeUpstream::start().await);
        // Identical bytes would be shared by digest, and the second archive would not be fetched.
        for upstream in [&files, &other] {
            upstream.publish(Provider::new("acme", "other").size(60_000));
        }
        for (upstream, name) in [(&permitted, "null"), (&other, "other")] {
            let at_files = format!("{}{}", files.origin(), zip_path(upstream, name).await);
            upstream.fault(Target::Archive, Fault::RedirectTo(302, at_files));
        }
        Self { archive_host: files, permitted_upstream: permitted, other_upstream: other, ca }
    }

    fn larder(&self, section: &str, folder: &Folder) -> Builder {
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "g1t-t0ken\n").unwrap();
        let section = section.replace("SECRET", &format!("{{ file = \"{}\" }}", secret.display()));
        let host = self.archive_host.host();
        Larder::mirroring(&self.permitted_upstream)
            .upstream(OTHER, &format!("{}/", self.other_upstream.origin()), "")
            .upstream_lines(&format!("[[credential]]\nhost = \"{host}\"\n{section}"))
            .store_at(folder)
            .trusting(&self.ca)
    }

    /// The status of each upstream's archive, and the value of this header that the third host received.
    async fn fetch_both_archives(&self, larder: &Larder, header: &str) -> [(u16, Option<String>); 2] {
        let mut results = Vec::new();
        for (host, name) in [(HOST, "null"), (OTHER, "other")] {
            self.archive_host.forget_requests();
            let document = format!("/registry/{host}{}", DOCUMENT.replace("null", name));
            let path = larder.get(&document).await.expect(200).json()["download_url"].as_str().unwrap().to_owned();
            let status = larder.get(&path).await.status;
            let header_value =
                self.archive_host.requests().first().and_then(|request| request.header(header).map(str::to_owned));
            results.push((status, header_value));
        }
        results.try_into().unwrap()
    }
}

/// Promises 7 and 8: a `[[credential]]` host is permitted to the upstreams that it lists, and only their requests carry
/// its credential.
#[tokio::test]
async fn a_credential_is_used_for_the_upstreams_it_lists_and_for_no_other() {
    let hosts = CredentialHosts::start().await;
    let basic = "Basic bWU6ZzF0LXQwa2Vu".to_owned();
    for (access, header, expected) in [
        ("token = SECRET", "authorization", "Bearer g1t-t0ken".to_owned()),
        ("basic = { user = \"me\", password = SECRET }", "authorization", basic),
        ("header = { name = \"x-key\", value = SECRET }", "x-key", "g1t-t0ken".to_owned()),
    ] {
        let section = format!("upstreams = [\"{HOST}\"]\n{access}");
        let larder = hosts.larder(&section, &Folder::new()).start().await;
        assert_eq!(hosts.fetch_both_archives(&larder, header).await, [(200, Some(expected)), (502, None)]);
    }
    for upstream in [&hosts.permitted_upstream, &hosts.other_upstream] {
        let request_count = upstream
            .count_where(|request| request.header("authorization").is_some() || request.header("x-key").is_some());
        assert_eq!(request_count, 0, "a registry was shown a credential that is not for it");
    }
}

/// With `allow_private` for the same host, the other upstream may name it, but gets no credential there.
#[tokio::test]
async fn allow_private_grants_no_credential() {
    let hosts = CredentialHosts::start().await;
    for (upstreams, is_sent) in [(format!("[\"{HOST}\"]"), true), ("[]".to_owned(), false)] {
        let section = format!("upstreams = {upstreams}\ntoken = SECRET");
        let larder = hosts.larder(&section, &Folder::new()).allow_private("127.0.0.1").start().await;
        let token = is_sent.then(|| "Bearer g1t-t0ken".to_owned());
        assert_eq!(hosts.fetch_both_archives(&larder, "authorization").await, [(200, token), (200, None)]);
    }
}

/// Promise 7: an upstream that leads back to larder, by address, by name or through another larder, is 508 at once,
/// without repeated requests.
#[tokio::test]
async fn an_upstream_that_leads_back_to_larder_is_508_at_once() {
    let port = free_port();
    for name in ["127.0.0.1", "localhost"] {
        let url = format!("http://{name}:{port}/registry/{HOST}/");
        let larder = Larder::builder().server(&format!("listen = \"127.0.0.1:{port}\"")).upstream(HOST, &url, "");
        let larder = larder.start().await;
        let text = larder.versions("null").await.expect(508).text();
        assert!(text.contains("ring") || text.contains("508"), "{text}");
        assert_eq!(larder.metric("larder_requests_total").await, 2.0, "the one asked, and the one that came back");
        larder.stop().await;
    }
    let [first, second] = [free_port(), free_port()];
    let mut ring = Vec::new();
    for (own, next) in [(first, second), (second, first)] {
        let url = format!("http://127.0.0.1:{next}/registry/{HOST}/");
        let larder = Larder::builder().server(&format!("listen = \"127.0.0.1:{own}\"")).upstream(HOST, &url, "");
        ring.push(larder.start().await);
    }
    ring[0].versions("null").await.expect(508);
    ring[1].document("null", "1.2.0").await.expect(508);
}
