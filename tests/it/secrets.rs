//! Secrets stay home (promise 8): one run with credentials of every kind, through every success and failure; then logs,
//! store and outgoing requests are searched for them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{Folder, Larder};
use crate::support::ports::free_port;
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, RecordedRequest, Target};

const TOKEN: &str = "tok+en/S3cret=1";
const PASSWORD: &str = "pass+word/S3cret=2";
const HEADER_VALUE: &str = "header+value/S3cret=3";
const GIT_TOKEN: &str = "git+token/S3cret=4";
const ADMIN_TOKEN: &str = "admin+token/S3cret=5-0123456789abcdef";
/// The secret in URLs that upstreams name.
const QUERY_SECRET: &str = "qu3ryS3cret6";
const USERINFO_SECRET: &str = "us3rinfoS3cret7";
/// A client's own secret.
const CLIENT_SECRET: &str = "cl1entS3cret8";

/// Larder's secrets, and the environment variables that contain them.
const CREDENTIALS: [(&str, &str); 5] = [
    ("LARDER_TEST_TOKEN", TOKEN),
    ("LARDER_TEST_PASSWORD", PASSWORD),
    ("LARDER_TEST_HEADER", HEADER_VALUE),
    ("LARDER_TEST_GIT", GIT_TOKEN),
    ("LARDER_TEST_ADMIN", ADMIN_TOKEN),
];

/// A secret in all the spellings that it could leave in.
fn spellings(secret: &str) -> Vec<String> {
    let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let encoded = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
    vec![secret.to_owned(), encoded, base64(secret), base64(&format!("larder:{secret}"))]
}

/// True if the bytes contain the secret, in any encoding.
fn contains_secret(bytes: &[u8], secret: &str) -> bool {
    let text = String::from_utf8_lossy(bytes);
    spellings(secret).iter().any(|spelling| text.contains(spelling.as_str()))
}

/// Every output, with its source.
#[derive(Default)]
struct CollectedOutput(Vec<(String, Vec<u8>)>);

impl CollectedOutput {
    fn add_answer(&mut self, subject: &str, answer: &Answer) {
        self.0.push((format!("the headers of {subject}"), format!("{:?}", answer.headers).into_bytes()));
        self.0.push((format!("the body of {subject}"), answer.body.clone()));
    }

    fn add_command(&mut self, subject: &str, output: &CommandOutput) {
        self.0.push((format!("what {subject} printed"), output.out.clone().into_bytes()));
        self.0.push((format!("what {subject} complained of"), output.err.clone().into_bytes()));
    }

    /// Reports all secrets, not only the first one.
    fn assert_no_secret(&self) {
        let mut leaks = std::collections::BTreeSet::new();
        for secret in
            CREDENTIALS.map(|(_, secret)| secret).into_iter().chain([QUERY_SECRET, USERINFO_SECRET, CLIENT_SECRET])
        {
            for (source, bytes) in self.0.iter().filter(|(_, bytes)| contains_secret(bytes, secret)) {
                let text = String::from_utf8_lossy(bytes);
                let lines = text.lines().filter(|line| contains_secret(line.as_bytes(), secret)).take(3);
                leaks.extend(lines.map(|line| format!("{secret} is in {source}: {line:.600}")));
            }
        }
        assert!(leaks.is_empty(), "{} leaks: {leaks:#?}", leaks.len());
    }
}

/// Upstreams of every kind, and the configuration of a larder with a credential for each.
struct SecretsFixture {
    /// The upstream that requires a bearer token; its files are at another origin.
    token: FakeUpstream,
    /// The upstream that gets user and password; its service is at another origin.
    basic: FakeUpstream,
    service: FakeUpstream,
    /// The upstream that gets a header; its files are at a host in its `credentials_for`.
    header: FakeUpstream,
    files: FakeUpstream,
    /// The target of documents and redirects of all upstreams; no credential is for it.
    elsewhere: FakeUpstream,
    folder: Folder,
    config: String,
}

const HOSTS: [&str; 3] = ["token.example", "basic.example", "header.example"];
/// Providers that install: as published, with URLs at another origin, with a redirect of the archive to another origin.
const INSTALLABLE: [&str; 3] = ["good", "urls-elsewhere", "redirected"];
/// Providers that do not: 403, a reset connection, wrong bytes, userinfo in the URLs, URLs at a closed port, and the query
/// of a signed URL in the file name, in the keys and in the digest.
const UNINSTALLABLE: [&str; 8] =
    ["denied", "reset", "wrong-bytes", "userinfo", "closed-port", "query-in-name", "query-in-keys", "query-in-digest"];

fn path(name: &str) -> String {
    format!("/v1/providers/acme/{name}/1.2.0/download/linux/amd64")
}

impl SecretsFixture {
    async fn new() -> Self {
        let ca = TestCa::new();
        let fixture = Self {
            token: FakeUpstream::builder().token(TOKEN).releases_elsewhere().signed_urls().start().await,
            basic: FakeUpstream::start().await,
            service: FakeUpstream::builder().releases_elsewhere().start().await,
            header: FakeUpstream::start().await,
            files: FakeUpstream::builder().tls_with(&ca).start().await,
            elsewhere: FakeUpstream::start().await,
            folder: Folder::new(),
            config: String::new(),
        };
        let Self { token, basic, service, header, files, elsewhere, folder, .. } = &fixture;
        for upstream in [token, service, header, files, elsewhere] {
            for name in INSTALLABLE.iter().chain(&UNINSTALLABLE) {
                upstream.publish(Provider::new("acme", name).size(40_000));
            }
        }
        let odd = format!("http://u:{USERINFO_SECRET}@h.example/?{QUERY_SECRET}");
        let services = format!("{{\"providers.v1\":\"{}\",\"odd.v1\":\"{odd}\"}}", service.providers_url());
        basic.serve_json("/.well-known/terraform.json", &services);
        let origins = [token, basic, service, header, elsewhere].into_iter();
        let origins = origins.flat_map(|upstream| [upstream.origin(), upstream.releases_origin()]);
        let allowed = origins.chain([CLOSED_PORT.to_owned(), "127.0.0.1".to_owned()]);
        let url = |upstream: &FakeUpstream| format!("{}/", upstream.origin());
        let secret = |number: usize| format!("{{ env = \"{}\" }}", CREDENTIALS[number].0);
        let header_secret = format!("header = {{ name = \"X-Registry-Key\", value = {} }}", secret(2));
        let larder = allowed.fold(Larder::builder(), |larder, entry| larder.allow_private(&entry));
        let config = larder
            .store_at(folder)
            .trusting(&ca)
            .upstream(HOSTS[0], &url(token), &format!("token = {}", secret(0)))
            .upstream(HOSTS[1], &url(basic), &format!("basic = {{ user = \"larder\", password = {} }}", secret(1)))
            .upstream(HOSTS[2], &url(header), &header_secret)
            .upstream_lines(&format!("credentials_for = [\"{}\"]", files.host()))
            .upstream_lines(&format!("[[credential]]\nhost = \"git.example\"\ntoken = {}", secret(3)))
            .config_text();
        let admin = format!("[admin]\nlisten = \"127.0.0.1:{}\"\ntoken = {}", free_port(), secret(4));
        Self { config: config.replace("[admin]\nlisten = \"127.0.0.1:0\"", &admin), ..fixture }
    }

    /// Each registry: its host, the upstream that answers for it, and the upstream that has its files.
    fn registries(&self) -> [(&str, &FakeUpstream, &FakeUpstream); 3] {
        let Self { token, service, header, files, .. } = self;
        [(HOSTS[0], token, token), (HOSTS[1], service, service), (HOSTS[2], header, files)]
    }

    /// Makes each registry's documents lead to other origins, with secrets in their URLs, and gives its files faults.
    async fn publish_documents_and_faults(&self) {
        for (number, (_, registry, files)) in self.registries().into_iter().enumerate() {
            for name in INSTALLABLE.iter().chain(&UNINSTALLABLE) {
                self.publish_document(registry, files, name).await;
            }
            self.publish_faults(registry, files);
            publish_errors_with_secrets(registry, CREDENTIALS[number].1);
        }
    }

    /// Replaces the download document of one provider by one whose URLs have secrets and, by the provider's name, a flaw.
    async fn publish_document(&self, registry: &FakeUpstream, files: &FakeUpstream, name: &str) {
        let true_document = client().get(format!("{}{}", registry.origin(), path(name))).bearer_auth(TOKEN);
        let mut text = send(true_document).await.unwrap().expect(200).text();
        let (true_origin, files_origin) = (registry.releases_origin(), files.releases_origin());
        let with_userinfo = files_origin.replace("://", &format!("://larder:{USERINFO_SECRET}@"));
        let query = format!("X-Amz-Signature={QUERY_SECRET}");
        if name == "query-in-name" {
            text = text.replace("64.zip\",", &format!("64.zip?{query}\","));
        } else {
            text = sign_archive_url(&text, &query);
        }
        for end in ["_SHA256SUMS", ".sig"] {
            text = text.replace(&format!("{end}\""), &format!("{end}?{query}\""));
        }
        text = text.replace("sig=0\"", &format!("sig=0&{query}\""));
        let (from, to) = match name {
            "urls-elsewhere" => (true_origin, self.elsewhere.origin()),
            "userinfo" => (true_origin, with_userinfo),
            "closed-port" => (true_origin, CLOSED_PORT.to_owned()),
            "query-in-keys" => {
                let keys = format!("\"signing_keys\":\"{with_userinfo}/?{QUERY_SECRET}\",\"x\":{{");
                ("\"signing_keys\":{".to_owned(), keys)
            }
            "query-in-digest" => ("\"shasum\":\"".to_owned(), format!("\"shasum\":\"?{QUERY_SECRET}")),
            "query-in-name" => return registry.serve_json(&path(name), &text),
            _ => (true_origin, files_origin),
        };
        registry.serve_json(&path(name), &text.replace(&from, &to));
    }

    /// Faults of archives, and version lists that lead to a URL with userinfo and a query.
    fn publish_faults(&self, registry: &FakeUpstream, files: &FakeUpstream) {
        let zip = |name: &str| Target::Path(format!("terraform-provider-{name}_1.2.0_linux_amd64.zip"));
        let base_url = format!("{}/releases/acme/terraform-provider-redirected/1.2.0/", self.elsewhere.origin());
        let archive_url =
            format!("{base_url}terraform-provider-redirected_1.2.0_linux_amd64.zip?X-Amz-Signature={QUERY_SECRET}");
        files.fault(zip("redirected"), Fault::RedirectTo(302, archive_url));
        files.fault(zip("denied"), Fault::Status(403));
        files.fault(zip("reset"), Fault::Reset(0));
        files.fault(zip("wrong-bytes"), Fault::WrongBytes);
        let secret_url = url_with_secrets();
        registry.fault(Target::Path("/redirected-list/versions".into()), Fault::RedirectTo(302, secret_url.clone()));
        registry.serve_json("/v1/providers/acme/list/versions", &format!("{{\"versions\":\"{secret_url}\"}}"));
        let versions = format!("{{\"versions\":[{{\"version\":\"{secret_url}\",\"platforms\":\"{secret_url}\"}}]}}");
        registry.serve_json("/v1/providers/acme/listed/versions", &versions);
    }

    fn serve(&self) -> Process {
        let larder = Process::serve_with(&self.config, self.folder.path(), |command| {
            command.envs(CREDENTIALS).env("LARDER_LOG", "trace");
        });
        larder.unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// Runs a command for the running larder.
    async fn run(&self, arguments: &[&str], config: &str) -> CommandOutput {
        let file = self.folder.path().join("command.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(self.folder.path(), arguments);
        command.arg("--config").arg(&file).envs(CREDENTIALS).env("LARDER_LOG", "trace");
        run(command).await
    }
}

const STATUSES: [u16; 9] = [400, 401, 403, 404, 422, 429, 451, 500, 503];

const CLOSED_PORT: &str = "http://127.0.0.1:9";

fn url_with_secrets() -> String {
    format!("http://larder:{USERINFO_SECRET}@127.0.0.1:9/?{QUERY_SECRET}")
}

/// An upstream whose error texts repeat the credential that it got, in every spelling.
fn publish_errors_with_secrets(registry: &FakeUpstream, secret: &'static str) {
    let mut sent = spellings(secret);
    // The last spelling, base64 of a user name and the secret, exists for the password only.
    sent.truncate(if secret == PASSWORD { 4 } else { 3 });
    let texts: Vec<String> =
        sent.iter().cloned().chain([sent.join(" "), format!("see {}", url_with_secrets())]).collect();
    let errors = serde_json::json!({ "errors": texts });
    let errors: &'static str = Box::leak(errors.to_string().into_boxed_str());
    for status in STATUSES {
        registry.fault(Target::Path(format!("/echo-{status}/")), Fault::StatusBody(status, errors));
    }
}

/// Adds a query to the archive's URL. The document has the archive's name in another field, too, which stays.
fn sign_archive_url(text: &str, query: &str) -> String {
    let (before, url) = text.split_once("\"download_url\":").unwrap();
    format!("{before}\"download_url\":{}", url.replacen("64.zip\"", &format!("64.zip?{query}\""), 1))
}

/// Sends a request with the client's own secrets.
async fn request_once(larder: &Process, path: &str, collected: &mut CollectedOutput) -> Answer {
    let request = client().get(format!("{}{path}?token={CLIENT_SECRET}", larder.base())).bearer_auth(CLIENT_SECRET);
    let answer = send(request.header("cookie", CLIENT_SECRET)).await.unwrap();
    collected.add_answer(path, &answer);
    answer
}

/// Every request that these registries answer, successful or not.
async fn send_every_request(larder: &Process, collected: &mut CollectedOutput) {
    for host in HOSTS {
        let registry = format!("/registry/{host}");
        request_once(larder, &format!("{registry}/.well-known/terraform.json"), collected).await.expect(200);
        for name in INSTALLABLE.iter().chain(&UNINSTALLABLE) {
            request_once(larder, &format!("{registry}/v1/providers/acme/{name}/versions"), collected).await.expect(200);
            request_once(larder, &format!("/mirror/{host}/acme/{name}/index.json"), collected).await.expect(200);
            request_once(larder, &format!("/mirror/{host}/acme/{name}/1.2.0.json"), collected).await;
            let document = request_once(larder, &format!("{registry}{}", path(name)), collected).await;
            let mut has_succeeded = document.status == 200;
            for file in
                ["shasums_url", "shasums_signature_url", "download_url"].into_iter().filter(|_| document.status == 200)
            {
                has_succeeded &=
                    request_once(larder, document.json()[file].as_str().unwrap(), collected).await.status == 200;
            }
            assert_eq!(has_succeeded, INSTALLABLE.contains(name), "{host} {name}: {}", document.text());
        }
        let echoes = STATUSES.map(|status| format!("echo-{status}"));
        for name in ["redirected-list", "list", "listed"].into_iter().chain(echoes.iter().map(String::as_str)) {
            let list = request_once(larder, &format!("{registry}/v1/providers/acme/{name}/versions"), collected).await;
            assert!(list.status >= 400, "{name}: {}", list.text());
        }
    }
    request_once(larder, "/nothing", collected).await.expect(404);
}

/// Promise 8: a credential goes to the origin of its `url`, to the services that its discovery names, and to the hosts in its
/// `credentials_for`; never to another origin, by redirect or document.
#[tokio::test]
async fn each_credential_is_sent_to_exactly_its_own_origins() {
    let fixture = SecretsFixture::new().await;
    fixture.publish_documents_and_faults().await;
    for upstream in [&fixture.token, &fixture.service, &fixture.header] {
        upstream.forget_requests();
    }
    send_every_request(&fixture.serve(), &mut CollectedOutput::default()).await;
    let SecretsFixture { token, basic, service, header, files, elsewhere, .. } = &fixture;
    let mut reached = BTreeMap::new();
    for upstream in [token, basic, service, header, files, elsewhere] {
        for request in upstream.requests() {
            let host = request.header("host").unwrap().to_owned();
            reached.entry(host).or_insert_with(Vec::new).push(request);
        }
    }
    let host_of = |origin: String| origin.split_once("://").unwrap().1.to_owned();
    let no_secret: &[&str] = &[];
    let expected: [(&str, String, &[&str]); 8] = [
        ("the url of the first", token.host(), &[TOKEN]),
        ("its files", host_of(token.releases_origin()), no_secret),
        ("the url of the second", basic.host(), &[PASSWORD]),
        ("its service", service.host(), &[PASSWORD]),
        ("its files", host_of(service.releases_origin()), no_secret),
        ("the url of the third", header.host(), &[HEADER_VALUE]),
        ("its credentials_for", files.host(), &[HEADER_VALUE]),
        ("where all lead to", elsewhere.host(), no_secret),
    ];
    assert_eq!(reached.len(), expected.len(), "{:?}", reached.keys());
    for (subject, host, secrets) in expected {
        for request in &reached[&host] {
            let received: Vec<&str> =
                CREDENTIALS.iter().map(|(_, secret)| *secret).filter(|secret| carries(request, secret)).collect();
            assert_eq!(received, secrets, "{subject}: {} {}", request.path, request.query);
            assert!(!contains_anywhere(request, CLIENT_SECRET), "{subject}: {request:?}");
        }
    }
}

fn carries(request: &RecordedRequest, secret: &str) -> bool {
    request.headers.values().any(|value| contains_secret(value.as_bytes(), secret))
        || contains_secret(request.query.as_bytes(), secret)
}

/// True if the request has the secret anywhere, the path included.
fn contains_anywhere(request: &RecordedRequest, secret: &str) -> bool {
    carries(request, secret) || request.path.contains(secret)
}

/// Configurations of a user who wrote a secret where a variable's name belongs.
fn configurations_with_misplaced_secrets() -> Vec<String> {
    let upstream = "[[upstream]]\nhost = \"r.example\"\n";
    let mut all = vec![
        format!("[admin]\ntoken = \"{ADMIN_TOKEN}\""),
        format!("[admin]\ntoken = \"{ADMIN_TOKEN}"),
        format!("[admin]\ntoken = {{ env = \"{ADMIN_TOKEN}\" }}"),
        format!("[admin]\ntoken = {{ value = \"{ADMIN_TOKEN}\" }}"),
        format!("[server]\npublic_url = \"https://larder:{PASSWORD}@m.example/\""),
        format!("{upstream}url = \"https://larder:{USERINFO_SECRET}@r.example/\""),
        format!("{upstream}url = \"https://r.example/?token={QUERY_SECRET}\""),
        format!("[[upstream]]\nhost = \"larder:{USERINFO_SECRET}@r.example\""),
        format!(
            "[[credential]]\nhost = \"https://larder:{USERINFO_SECRET}@git.example\"\ntoken = {{ env = \"LARDER_TEST_GIT\" }}"
        ),
        format!("[network]\nallow_private = [\"http://larder:{USERINFO_SECRET}@a.example\"]"),
    ];
    for wrong in [
        format!("token = \"{TOKEN}\""),
        format!("token = {TOKEN}"),
        format!("token = [\"{TOKEN}\"]"),
        format!("password = \"{PASSWORD}\""),
        format!("basic = \"larder:{PASSWORD}\""),
        format!("basic = {{ user = \"larder\", password = \"{PASSWORD}\" }}"),
        format!("basic = {{ user = \"larder:{PASSWORD}\", password = {{ env = \"LARDER_TEST_PASSWORD\" }} }}"),
        format!("header = \"X-Registry-Key: {HEADER_VALUE}\""),
        format!("header = {{ name = \"X-Registry-Key: {HEADER_VALUE}\", value = {{ env = \"LARDER_TEST_HEADER\" }} }}"),
        format!("header = {{ name = \"X-Registry-Key\", value = \"{HEADER_VALUE}\" }}"),
    ] {
        all.push(format!("{upstream}{wrong}\n"));
    }
    all
}

/// Promise 8: no secret, userinfo or query of an upstream URL reaches a log, an error, a key or a client.
#[tokio::test]
async fn no_secret_appears_in_any_output_of_a_whole_run() {
    let fixture = SecretsFixture::new().await;
    fixture.publish_documents_and_faults().await;
    let mut collected = CollectedOutput::default();
    let larder = fixture.serve();
    send_every_request(&larder, &mut collected).await;
    fixture.token.expire_urls();
    repeat_requests(&larder, &mut collected).await;
    for path in
        ["/metrics", "/admin/v1/status", "/admin/v1/client-config", "/admin/v1/client-config?mirror", "/nothing"]
    {
        let url = format!("{}{path}", larder.admin());
        collected.add_answer(path, &get(&url).await);
        let request =
            client().get(format!("{url}?token={CLIENT_SECRET}")).bearer_auth(format!("{ADMIN_TOKEN}{CLIENT_SECRET}"));
        collected.add_answer(path, &send(request.header("origin", format!("http://{CLIENT_SECRET}"))).await.unwrap());
    }
    collected.0.push(("what it said first".into(), larder.announcement().to_string().into_bytes()));
    for arguments in [&["check"][..], &["check", "--json"], &["status"], &["status", "--json"], &["client-config"]] {
        let output = fixture.run(arguments, &fixture.config).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        collected.add_command(&arguments.join(" "), &output);
    }
    for config in configurations_with_misplaced_secrets() {
        for command in ["check", "serve"] {
            let output = fixture.run(&[command], &config).await;
            assert_ne!(output.code, Some(0), "{config}");
            collected.add_command(&format!("{command} with {}", config.len()), &output);
        }
    }
    let log = larder.log().clone();
    assert_eq!(larder.terminate().await, Some(0));
    assert!(log.text().contains("TRACE"), "the log level is not `trace`");
    collected.0.push(("the log".into(), log.text().into_bytes()));
    collected.assert_no_secret();
    assert_no_secret_outside_documents(&fixture.folder);
}

/// Requests for stored packages, and for packages whose fetch failed.
async fn repeat_requests(larder: &Process, collected: &mut CollectedOutput) {
    for host in HOSTS {
        for name in INSTALLABLE.iter().chain(&UNINSTALLABLE) {
            let document = request_once(larder, &format!("/registry/{host}{}", path(name)), collected).await;
            if document.status == 200 {
                request_once(larder, document.json()["download_url"].as_str().unwrap(), collected).await;
            }
        }
    }
}

/// Documents are stored as upstream sent them, with their secrets. No other file contains one, and no file name does.
fn assert_no_secret_outside_documents(folder: &Folder) {
    let mut documents_with_queries = 0;
    let mut files: Vec<PathBuf> = folder.files("");
    files.push(folder.path().join("v1"));
    assert!(files.len() > 40, "{files:?}");
    for file in files {
        let (name, bytes) = (file.display().to_string(), std::fs::read(&file).unwrap_or_default());
        for secret in
            CREDENTIALS.map(|(_, secret)| secret).into_iter().chain([CLIENT_SECRET, QUERY_SECRET, USERINFO_SECRET])
        {
            assert!(!contains_secret(name.as_bytes(), secret), "{name}");
            if name.contains("/v1/documents/") && [QUERY_SECRET, USERINFO_SECRET].contains(&secret) {
                documents_with_queries += usize::from(contains_secret(&bytes, secret));
            } else {
                assert!(!contains_secret(&bytes, secret), "{secret} is kept in {name}");
            }
        }
    }
    assert!(documents_with_queries > 0, "no document with a secret query was ever kept: the test tests nothing");
}
