//! Access rules of the admin listener: a web page in a browser on the same machine must not be able to
//! purge.

use crate::support::command_setup::CommandSetup;
use crate::support::http::{Answer, client, get, send};
use crate::support::larder::Larder;
use crate::support::upstream::{FakeUpstream, Provider};

const PATHS: [&str; 8] = [
    "/admin/v1/refresh",
    "/admin/v1/purge",
    "/admin/v1/accept",
    "/admin/v1/pin",
    "/admin/v1/unpin",
    "/admin/v1/approve",
    "/admin/v1/unapprove",
    "/admin/v1/verify",
];
const JSON: (&str, &str) = ("content-type", "application/json");

/// A larder with a stored archive, and the number of requests that its upstream has received.
struct AdminFixture {
    upstream: FakeUpstream,
    larder: Larder,
    path: String,
    upstream_requests: usize,
}

impl AdminFixture {
    async fn new() -> Self {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null"));
        let larder = Larder::mirroring(&upstream).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        larder.get(&path).await.expect(200);
        larder.versions("null").await.expect(200);
        let upstream_requests = upstream.requests().len();
        Self { upstream, larder, path, upstream_requests }
    }

    /// The body of a valid request to this path.
    fn body(path: &str) -> &'static str {
        if path.ends_with("verify") { "{}" } else { r#"{"what":["acme/null"]}"# }
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
        let request = client().post(format!("{}{path}", self.larder.admin())).body(body);
        send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await.unwrap()
    }

    /// Asserts that nothing was purged and that upstream got no request.
    async fn assert_unchanged(&self) {
        assert_eq!(self.upstream.requests().len(), self.upstream_requests);
        assert!(self.larder.get(&self.path).await.expect(200).has_cache_status("larder; hit"));
        assert!(self.larder.document("null", "1.2.0").await.expect(200).has_cache_status("larder; hit"));
        assert!(self.larder.versions("null").await.expect(200).has_cache_status("larder; hit"));
    }
}

/// Requests that change something always need the bearer token, on loopback too.
#[tokio::test]
async fn a_command_without_the_token_is_refused() {
    let fixture = AdminFixture::new().await;
    let token = fixture.larder.token();
    for path in PATHS {
        fixture.post(path, &[JSON], AdminFixture::body(path)).await.expect(401);
        for wrong in ["Bearer", "Bearer x", &format!("Bearer {}", &token[1..]), &format!("Basic {token}"), &token] {
            fixture.post(path, &[JSON, ("authorization", wrong)], AdminFixture::body(path)).await.expect(401);
        }
    }
    fixture.assert_unchanged().await;
}

/// Requests with an `Origin`, or on loopback with a foreign `Host`, are refused even with the token.
#[tokio::test]
async fn a_web_page_in_a_browser_cannot_run_commands() {
    let fixture = AdminFixture::new().await;
    let bearer = format!("Bearer {}", fixture.larder.token());
    let admin_url = fixture.larder.admin();
    let port = admin_url.rsplit_once(':').unwrap().1;
    let foreign_hosts =
        [format!("evil.example:{port}"), "evil.example".to_owned(), "10.0.0.1".to_owned(), "".to_owned()];
    for path in PATHS {
        let valid_headers = [JSON, ("authorization", bearer.as_str())];
        for origin in ["null", "https://evil.example", "http://localhost", &admin_url] {
            let page = [valid_headers[0], valid_headers[1], ("origin", origin)];
            let refused = fixture.post(path, &page, AdminFixture::body(path)).await.expect(403);
            assert!(refused.header("access-control-allow-origin").is_empty());
        }
        for host in &foreign_hosts {
            fixture
                .post(path, &[valid_headers[0], valid_headers[1], ("host", host)], AdminFixture::body(path))
                .await
                .expect(403);
        }
        // A browser's preflight request, before it would send the token.
        let preflight = client().request(reqwest::Method::OPTIONS, format!("{admin_url}{path}"));
        let preflight =
            preflight.header("origin", "https://evil.example").header("access-control-request-method", "POST");
        let refused = send(preflight).await.unwrap().expect(403);
        assert!(
            refused.headers.keys().all(|name| !name.as_str().starts_with("access-control")),
            "{:?}",
            refused.headers
        );
    }
    fixture.assert_unchanged().await;
}

/// A page of another site is refused, even if the browser sends no `Origin`, as for embedded resources. An address that
/// the user types and larder's own page are allowed.
#[tokio::test]
async fn a_page_of_another_site_reads_nothing() {
    let fixture = AdminFixture::new().await;
    let bearer = format!("Bearer {}", fixture.larder.token());
    let request_once = async |path: &str, fetch_site: &str| {
        let request = client().get(format!("{}{path}", fixture.larder.admin()));
        send(request.header("authorization", &bearer).header("sec-fetch-site", fetch_site)).await.unwrap()
    };
    for path in ["/admin/v1/status", "/metrics", "/admin/v1/inventory"] {
        for fetch_site in ["cross-site", "same-site", "unheard-of"] {
            assert!(
                request_once(path, fetch_site).await.expect(403).text().contains("web pages"),
                "{path} {fetch_site}"
            );
        }
        for fetch_site in ["same-origin", "none"] {
            request_once(path, fetch_site).await.expect(200);
        }
    }
    for path in PATHS {
        let page = [JSON, ("authorization", bearer.as_str()), ("sec-fetch-site", "cross-site")];
        fixture.post(path, &page, AdminFixture::body(path)).await.expect(403);
    }
    fixture.assert_unchanged().await;
}

/// Browsers must not guess a content type, and no cache may store a response.
#[tokio::test]
async fn no_answer_of_the_admin_listener_is_sniffed_or_stored() {
    let fixture = AdminFixture::new().await;
    let assert_safe = |answer: &Answer, path: &str| {
        let headers = ["x-content-type-options", "cache-control"].map(|name| answer.header(name).to_owned());
        assert_eq!(headers, ["nosniff", "no-store"], "{path}");
    };
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/admin/v1/status",
        "/admin/v1/jobs",
        "/admin/v1/missing",
        "/admin/v1/inventory",
        "/admin/v1/client-config",
        "/admin/v1/verify",
        "/nothing",
    ] {
        assert_safe(&get(&format!("{}{path}", fixture.larder.admin())).await, path);
    }
    assert_safe(
        &fixture.post("/admin/v1/purge", &[JSON], AdminFixture::body("/admin/v1/purge")).await.expect(401),
        "purge",
    );
}

/// A form can send these content types without a preflight request.
#[tokio::test]
async fn a_web_form_cannot_run_commands() {
    let fixture = AdminFixture::new().await;
    let bearer = format!("Bearer {}", fixture.larder.token());
    let authorization = ("authorization", bearer.as_str());
    for path in PATHS {
        for content_type in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"]
        {
            fixture
                .post(path, &[authorization, ("content-type", content_type)], AdminFixture::body(path))
                .await
                .expect(415);
        }
        fixture.post(path, &[authorization], AdminFixture::body(path)).await.expect(415);
        fixture.post(path, &[("content-type", "text/plain")], AdminFixture::body(path)).await.expect(401);
    }
    fixture.assert_unchanged().await;
}

#[tokio::test]
async fn a_command_that_cannot_be_read_is_refused_with_the_reason() {
    let fixture = AdminFixture::new().await;
    let bearer = format!("Bearer {}", fixture.larder.token());
    let valid_headers = [JSON, ("authorization", bearer.as_str())];
    for path in PATHS {
        for body in ["nothing", "[]", r#"{"what":["acme/null"],"all":true}"#, r#"{"what":"#] {
            let refused = fixture.post(path, &valid_headers, body).await.expect(400).json();
            assert_eq!(refused["errors"].as_array().unwrap().len(), 1, "{path} {body}");
        }
        fixture.post(path, &valid_headers, " ".repeat((64 << 10) + 1)).await.expect(413);
    }
    for (subject, reason) in [
        (r#"["acme/vpc/AWS"]"#, "is not a module system"),
        (r#"["acme/null@=> 1.0"]"#, "its operators can be"),
        (r#"["acme/null","nonsense"]"#, "is not an address"),
        ("[]", "1 to 256"),
    ] {
        let refused =
            fixture.post("/admin/v1/purge", &valid_headers, format!("{{\"what\":{subject}}}")).await.expect(400);
        assert!(refused.text().contains(reason), "{subject}: {}", refused.text());
    }
    fixture.assert_unchanged().await;
}

#[tokio::test]
async fn commands_are_posts_on_the_admin_listener_and_nowhere_else() {
    let fixture = AdminFixture::new().await;
    let bearer = format!("Bearer {}", fixture.larder.token());
    let valid_headers = [JSON, ("authorization", bearer.as_str())];
    for path in PATHS {
        assert_eq!(get(&format!("{}{path}", fixture.larder.admin())).await.expect(405).header("allow"), "POST");
        let put = client().put(format!("{}{path}", fixture.larder.admin())).bearer_auth(fixture.larder.token());
        assert_eq!(send(put).await.unwrap().expect(405).header("allow"), "POST");
        fixture.larder.get(path).await.expect(404);
        let on_main_listener =
            client().post(format!("{}{path}", fixture.larder.base())).bearer_auth(fixture.larder.token());
        send(on_main_listener.header(JSON.0, JSON.1).body(AdminFixture::body(path))).await.unwrap().expect(405);
    }
    for path in ["/admin/v1/status", "/metrics", "/healthz"] {
        let refused = fixture.post(path, &valid_headers, "{}").await.expect(405);
        assert_eq!(refused.header("allow"), "GET, HEAD", "{path}");
    }
    fixture.post("/admin/v1/everything", &valid_headers, "{}").await.expect(404);
    fixture.assert_unchanged().await;
}

/// If nothing has locked the store, no larder is running, so another program on its port gets no token and the commands
/// open the store themselves.
#[tokio::test]
async fn the_token_is_not_sent_to_another_program_on_larders_port() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let free_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free_port.local_addr().unwrap().port();
    drop(free_port);
    let setup = CommandSetup::with_admin_port(&upstream, port);
    let larder = setup.serve();
    let path = larder.archive_path("null").await;
    larder.get(&path).await.expect(200);
    assert_eq!(larder.terminate().await, Some(0));

    let impostor = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    impostor.set_nonblocking(true).unwrap();
    for arguments in [&["status"][..], &["verify"], &["purge", "acme/null"]] {
        let output = setup.run(arguments).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {}{}", output.out, output.err);
        assert!(impostor.accept().is_err(), "{arguments:?} connected to the impostor");
    }
    assert!(setup.home.blobs().is_empty());
}
