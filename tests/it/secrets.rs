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
const QUERY: &str = "qu3ryS3cret6";
const USERINFO: &str = "us3rinfoS3cret7";
/// A client's own secret.
const CLIENT: &str = "cl1entS3cret8";

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
fn holds(bytes: &[u8], secret: &str) -> bool {
    let text = String::from_utf8_lossy(bytes);
    spellings(secret).iter().any(|spelling| text.contains(spelling.as_str()))
}

/// Every output, with its source.
#[derive(Default)]
struct Heard(Vec<(String, Vec<u8>)>);

impl Heard {
    fn answer(&mut self, subject: &str, answer: &Answer) {
        self.0.push((format!("the headers of {subject}"), format!("{:?}", answer.headers).into_bytes()));
        self.0.push((format!("the body of {subject}"), answer.body.clone()));
    }

    fn said(&mut self, subject: &str, output: &CommandOutput) {
        self.0.push((format!("what {subject} printed"), output.out.clone().into_bytes()));
        self.0.push((format!("what {subject} complained of"), output.err.clone().into_bytes()));
    }

    /// Reports all secrets, not only the first one.
    fn no_secret(&self) {
        let mut leaks = std::collections::BTreeSet::new();
        for secret in CREDENTIALS.map(|(_, secret)| secret).into_iter().chain([QUERY, USERINFO, CLIENT]) {
            for (source, bytes) in self.0.iter().filter(|(_, bytes)| holds(bytes, secret)) {
                let text = String::from_utf8_lossy(bytes);
                let lines = text.lines().filter(|line| holds(line.as_bytes(), secret)).take(3);
                leaks.extend(lines.map(|line| format!("{secret} is in {source}: {line:.600}")));
            }
        }
        assert!(leaks.is_empty(), "{} leaks: {leaks:#?}", leaks.len());
    }
}

/// Upstreams of every kind, and a larder before them with a credential for each.
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
const FINE: [&str; 3] = ["good", "urls-elsewhere", "redirected"];
/// Providers that do not: 403, a reset connection, wrong bytes, userinfo in the URLs, URLs at a closed port, and the query
/// of a signed URL in the file name, in the keys and in the digest.
const BAD: [&str; 8] =
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
            for name in FINE.iter().chain(&BAD) {
                upstream.publish(Provider::new("acme", name).size(40_000));
            }
        }
        let odd = format!("http://u:{USERINFO}@h.example/?{QUERY}");
        let services = format!("{{\"providers.v1\":\"{}\",\"odd.v1\":\"{odd}\"}}", service.providers_url());
        basic.serve_json("/.well-known/terraform.json", &services);
        let origins = [token, basic, service, header, elsewhere].into_iter();
        let origins = origins.flat_map(|upstream| [upstream.origin(), upstream.releases_origin()]);
        let nowhere = "http://127.0.0.1:9".to_owned();
        let allowed = origins.chain([nowhere, "127.0.0.1".to_owned()]);
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

    /// Each registry: its host, who answers for it, and who has its files.
    fn registries(&self) -> [(&str, &FakeUpstream, &FakeUpstream); 3] {
        let Self { token, service, header, files, .. } = self;
        [(HOSTS[0], token, token), (HOSTS[1], service, service), (HOSTS[2], header, files)]
    }

    /// Replaces each registry's documents so that they lead to other origins, and gives files faults.
    async fn redirect_documents_and_break_files(&self) {
        let elsewhere = self.elsewhere.origin();
        for (number, (_, registry, files)) in self.registries().into_iter().enumerate() {
            let files_origin = files.releases_origin();
            let with_user = files_origin.replace("://", &format!("://larder:{USERINFO}@"));
            let signed = |end: &str| (format!("{end}\""), format!("{end}?X-Amz-Signature={QUERY}\""));
            for name in FINE.iter().chain(&BAD) {
                let true_document = client().get(format!("{}{}", registry.origin(), path(name))).bearer_auth(TOKEN);
                let mut text = send(true_document).await.unwrap().expect(200).text();
                let odd_keys = format!("\"signing_keys\":\"{with_user}/?{QUERY}\",\"x\":{{");
                let replaced = match *name {
                    "urls-elsewhere" => vec![(registry.releases_origin(), elsewhere.clone())],
                    "userinfo" => vec![(registry.releases_origin(), with_user.clone())],
                    "closed-port" => vec![(registry.releases_origin(), "http://127.0.0.1:9".to_owned())],
                    "query-in-keys" => vec![("\"signing_keys\":{".to_owned(), odd_keys)],
                    "query-in-digest" => vec![("\"shasum\":\"".to_owned(), format!("\"shasum\":\"?{QUERY}"))],
                    "query-in-name" => vec![("64.zip\",".to_owned(), format!("64.zip?X-Amz-Signature={QUERY}\","))],
                    _ => vec![(registry.releases_origin(), files_origin.clone())],
                };
                let signed = [signed("64.zip"), signed("_SHA256SUMS"), signed(".sig")];
                let also = [("sig=0\"".to_owned(), format!("sig=0&X-Amz-Signature={QUERY}\""))];
                for (from, to) in replaced.into_iter().chain(signed).chain(also) {
                    let replaces_everywhere =
                        !from.starts_with("64.zip\"") || !to.contains("Signature") || *name == "query-in-name";
                    text = if replaces_everywhere {
                        text.replace(&from, &to)
                    } else {
                        sign_archive_url(&text, &from, &to)
                    };
                }
                registry.serve_json(&path(name), &text);
            }
            let zip = |name: &str| Target::Path(format!("terraform-provider-{name}_1.2.0_linux_amd64.zip"));
            let base_url = format!("{elsewhere}/releases/acme/terraform-provider-redirected/1.2.0/");
            let sent = format!("{base_url}terraform-provider-redirected_1.2.0_linux_amd64.zip?X-Amz-Signature={QUERY}");
            files.fault(zip("redirected"), Fault::RedirectTo(302, sent));
            files.fault(zip("denied"), Fault::Status(403));
            files.fault(zip("reset"), Fault::Reset(0));
            files.fault(zip("wrong-bytes"), Fault::WrongBytes);
            let hop = format!("http://larder:{USERINFO}@127.0.0.1:9/?{QUERY}");
            registry.fault(Target::Path("/hop/versions".into()), Fault::RedirectTo(302, hop.clone()));
            registry.serve_json("/v1/providers/acme/list/versions", &format!("{{\"versions\":\"{hop}\"}}"));
            let listed = format!("{{\"versions\":[{{\"version\":\"{hop}\",\"platforms\":\"{hop}\"}}]}}");
            registry.serve_json("/v1/providers/acme/listed/versions", &listed);
            let mut echo = spellings(CREDENTIALS[number].1);
            // The last spelling, base64 of a user name and the secret, exists for the password only.
            echo.truncate(if number == 1 { 4 } else { 3 });
            let errors: Vec<String> = echo.iter().cloned().chain([echo.join(" "), format!("see {hop}")]).collect();
            let errors = serde_json::json!({ "errors": errors });
            let errors: &'static str = Box::leak(errors.to_string().into_boxed_str());
            for status in STATUSES {
                registry.fault(Target::Path(format!("/echo-{status}/")), Fault::StatusBody(status, errors));
            }
        }
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

/// The file's name stands in the document twice: by itself, and at the end of its URL.
fn sign_archive_url(text: &str, from: &str, to: &str) -> String {
    let (before, url) = text.split_once("\"download_url\":").unwrap();
    format!("{before}\"download_url\":{}", url.replacen(from, to, 1))
}

/// Sends a request with the client's own secrets.
async fn request_once(larder: &Process, path: &str, heard: &mut Heard) -> Answer {
    let request = client().get(format!("{}{path}?token={CLIENT}", larder.base())).bearer_auth(CLIENT);
    let answer = send(request.header("cookie", CLIENT)).await.unwrap();
    heard.answer(path, &answer);
    answer
}

/// Every request that these registries answer, successful or not.
async fn ask_for_everything(larder: &Process, heard: &mut Heard) {
    for host in HOSTS {
        let registry = format!("/registry/{host}");
        request_once(larder, &format!("{registry}/.well-known/terraform.json"), heard).await.expect(200);
        for name in FINE.iter().chain(&BAD) {
            request_once(larder, &format!("{registry}/v1/providers/acme/{name}/versions"), heard).await.expect(200);
            request_once(larder, &format!("/mirror/{host}/acme/{name}/index.json"), heard).await.expect(200);
            request_once(larder, &format!("/mirror/{host}/acme/{name}/1.2.0.json"), heard).await;
            let document = request_once(larder, &format!("{registry}{}", path(name)), heard).await;
            let mut has_succeeded = document.status == 200;
            for file in
                ["shasums_url", "shasums_signature_url", "download_url"].into_iter().filter(|_| document.status == 200)
            {
                has_succeeded &=
                    request_once(larder, document.json()[file].as_str().unwrap(), heard).await.status == 200;
            }
            assert_eq!(has_succeeded, FINE.contains(name), "{host} {name}: {}", document.text());
        }
        let echoes = STATUSES.map(|status| format!("echo-{status}"));
        for name in ["hop", "list", "listed"].into_iter().chain(echoes.iter().map(String::as_str)) {
            let list = request_once(larder, &format!("{registry}/v1/providers/acme/{name}/versions"), heard).await;
            assert!(list.status >= 400, "{name}: {}", list.text());
        }
    }
    request_once(larder, "/nothing", heard).await.expect(404);
}

/// Promise 8: a credential goes to the origin of its `url`, to the services that its discovery names, and to the hosts in its
/// `credentials_for`; never to another origin, by redirect or document.
#[tokio::test]
async fn each_credential_is_sent_to_exactly_its_own_origins() {
    let fixture = SecretsFixture::new().await;
    fixture.redirect_documents_and_break_files().await;
    for upstream in [&fixture.token, &fixture.service, &fixture.header] {
        upstream.forget_requests();
    }
    ask_for_everything(&fixture.serve(), &mut Heard::default()).await;
    let SecretsFixture { token, basic, service, header, files, elsewhere, .. } = &fixture;
    let mut reached = BTreeMap::new();
    for upstream in [token, basic, service, header, files, elsewhere] {
        for request in upstream.requests() {
            let host = request.header("host").unwrap().to_owned();
            reached.entry(host).or_insert_with(Vec::new).push(request);
        }
    }
    let plain = |origin: String| origin.split_once("://").unwrap().1.to_owned();
    let none: &[&str] = &[];
    let expected: [(&str, String, &[&str]); 8] = [
        ("the url of the first", token.host(), &[TOKEN]),
        ("its files", plain(token.releases_origin()), none),
        ("the url of the second", basic.host(), &[PASSWORD]),
        ("its service", service.host(), &[PASSWORD]),
        ("its files", plain(service.releases_origin()), none),
        ("the url of the third", header.host(), &[HEADER_VALUE]),
        ("its credentials_for", files.host(), &[HEADER_VALUE]),
        ("where all lead to", elsewhere.host(), none),
    ];
    assert_eq!(reached.len(), expected.len(), "{:?}", reached.keys());
    for (subject, host, secrets) in expected {
        for request in &reached[&host] {
            let shown: Vec<&str> =
                CREDENTIALS.iter().map(|(_, secret)| *secret).filter(|secret| shows(request, secret)).collect();
            assert_eq!(shown, secrets, "{subject}: {} {}", request.path, request.query);
            assert!(!shows_anywhere(request, CLIENT), "{subject}: {request:?}");
        }
    }
}

fn shows(request: &RecordedRequest, secret: &str) -> bool {
    request.headers.values().any(|value| holds(value.as_bytes(), secret)) || holds(request.query.as_bytes(), secret)
}

/// Returns true if the request has the secret anywhere, the path included.
fn shows_anywhere(request: &RecordedRequest, secret: &str) -> bool {
    shows(request, secret) || request.path.contains(secret)
}

/// Configurations of a user who wrote a secret where a variable's name belongs.
fn wrong_configurations() -> Vec<String> {
    let upstream = "[[upstream]]\nhost = \"r.example\"\n";
    let mut all = vec![
        format!("[admin]\ntoken = \"{ADMIN_TOKEN}\""),
        format!("[admin]\ntoken = \"{ADMIN_TOKEN}"),
        format!("[admin]\ntoken = {{ env = \"{ADMIN_TOKEN}\" }}"),
        format!("[admin]\ntoken = {{ value = \"{ADMIN_TOKEN}\" }}"),
        format!("[server]\npublic_url = \"https://larder:{PASSWORD}@m.example/\""),
        format!("{upstream}url = \"https://larder:{USERINFO}@r.example/\""),
        format!("{upstream}url = \"https://r.example/?token={QUERY}\""),
        format!("[[upstream]]\nhost = \"larder:{USERINFO}@r.example\""),
        format!(
            "[[credential]]\nhost = \"https://larder:{USERINFO}@git.example\"\ntoken = {{ env = \"LARDER_TEST_GIT\" }}"
        ),
        format!("[network]\nallow_private = [\"http://larder:{USERINFO}@a.example\"]"),
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
    fixture.redirect_documents_and_break_files().await;
    let mut heard = Heard::default();
    let larder = fixture.serve();
    ask_for_everything(&larder, &mut heard).await;
    fixture.token.expire_urls();
    ask_again(&larder, &mut heard).await;
    for page in
        ["/metrics", "/admin/v1/status", "/admin/v1/client-config", "/admin/v1/client-config?mirror", "/nothing"]
    {
        let url = format!("{}{page}", larder.admin());
        heard.answer(page, &get(&url).await);
        let shown = client().get(format!("{url}?token={CLIENT}")).bearer_auth(format!("{ADMIN_TOKEN}{CLIENT}"));
        heard.answer(page, &send(shown.header("origin", format!("http://{CLIENT}"))).await.unwrap());
    }
    heard.0.push(("what it said first".into(), larder.announcement().to_string().into_bytes()));
    for arguments in [&["check"][..], &["check", "--json"], &["status"], &["status", "--json"], &["client-config"]] {
        let output = fixture.run(arguments, &fixture.config).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        heard.said(&arguments.join(" "), &output);
    }
    for config in wrong_configurations() {
        for command in ["check", "serve"] {
            let output = fixture.run(&[command], &config).await;
            assert_ne!(output.code, Some(0), "{config}");
            heard.said(&format!("{command} with {}", config.len()), &output);
        }
    }
    let log = larder.log().clone();
    assert_eq!(larder.terminate().await, Some(0));
    assert!(log.text().contains("TRACE"), "the log level is not `trace`");
    heard.0.push(("the log".into(), log.text().into_bytes()));
    heard.no_secret();
    no_secret_is_stored_outside_documents(&fixture.folder);
}

/// Requests for stored packages, and for packages whose fetch failed.
async fn ask_again(larder: &Process, heard: &mut Heard) {
    for host in HOSTS {
        for name in FINE.iter().chain(&BAD) {
            let document = request_once(larder, &format!("/registry/{host}{}", path(name)), heard).await;
            if document.status == 200 {
                request_once(larder, document.json()["download_url"].as_str().unwrap(), heard).await;
            }
        }
    }
}

/// Documents are stored as upstream sent them, with their secrets. No other file contains one, and no file name does.
fn no_secret_is_stored_outside_documents(folder: &Folder) {
    let mut documents_with_queries = 0;
    let mut files: Vec<PathBuf> = folder.files("");
    files.push(folder.path().join("v1"));
    assert!(files.len() > 40, "{files:?}");
    for file in files {
        let (name, bytes) = (file.display().to_string(), std::fs::read(&file).unwrap_or_default());
        for secret in CREDENTIALS.map(|(_, secret)| secret).into_iter().chain([CLIENT, QUERY, USERINFO]) {
            assert!(!holds(name.as_bytes(), secret), "{name}");
            if name.contains("/v1/documents/") && [QUERY, USERINFO].contains(&secret) {
                documents_with_queries += usize::from(holds(&bytes, secret));
            } else {
                assert!(!holds(&bytes, secret), "{secret} is kept in {name}");
            }
        }
    }
    assert!(documents_with_queries > 0, "no document with a secret query was ever kept: the test tests nothing");
}
