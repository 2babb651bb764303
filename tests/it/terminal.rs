//! Promise 15: the cause and the remedy of every failure that the client shows, as a person sees it in the terminal.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::http::get;
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::small_disk::SmallDisk;
use crate::support::terraform::{Terraform, Workspace, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

const WELL_KNOWN: &str = "/.well-known/terraform.json";
/// These tests use no modules.
const NO_MODULES: &str = "http://127.0.0.1:9/v1/modules/";

/// A kind of failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    UpstreamDown,
    UnknownKey,
    PrivateAddress,
    Offline,
    NotAClient,
    NotAnUpstream,
    MissingSlash,
    DocumentTooLarge,
}

impl Failure {
    const ALL: [Self; 8] = [
        Self::UpstreamDown,
        Self::UnknownKey,
        Self::PrivateAddress,
        Self::Offline,
        Self::NotAClient,
        Self::NotAnUpstream,
        Self::MissingSlash,
        Self::DocumentTooLarge,
    ];

    /// The status, the cause and the remedy that the terminal shows.
    fn expected_texts(self) -> [&'static str; 3] {
        match self {
            Self::UpstreamDown => {
                ["502 larder: ", "connection refused", "`larder doctor` on larder's machine says more"]
            }
            Self::UnknownKey => ["502 larder: ", "which the registry does not list", "not stored, not served"],
            Self::PrivateAddress => [
                "502 larder: ",
                "it is a private address",
                "to allow it, add \"10.1.2.3\" to allow_private in [network]",
            ],
            Self::Offline => [
                "503 larder: ",
                "this mirror is offline and has not stored it",
                "`larder missing` on larder's machine lists what to bring",
            ],
            Self::NotAClient => [
                "421 larder: ",
                "127.0.0.1 is not among the clients of this mirror",
                "its operator can add it to [server] clients",
            ],
            Self::NotAnUpstream => [
                "421 larder: ",
                "registry.other.example is not an upstream of this mirror",
                "its operator can add it as an [[upstream]]",
            ],
            Self::MissingSlash => [
                "421 larder: ",
                "providers.v1 in the client's host block has no slash at its end",
                "write \"providers.v1\"",
            ],
            Self::DocumentTooLarge => {
                ["502 larder: ", "sent more than 1000 bytes", "tell the operator of that registry"]
            }
        }
    }

    /// An upstream and a larder in which this failure happens.
    async fn upstream_and_builder(self) -> (FakeUpstream, Builder) {
        let mut upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(20_000));
        let builder = Larder::mirroring(&upstream);
        let builder = match self {
            Self::UpstreamDown => {
                upstream.stop().await;
                builder
            }
            Self::UnknownKey => {
                upstream.fault(Target::Signature, Fault::SignedByAnotherKey);
                builder
            }
            Self::PrivateAddress => {
                upstream.serve_json(WELL_KNOWN, r#"{"providers.v1":"https://10.1.2.3/v1/providers/"}"#);
                builder
            }
            Self::Offline => builder.network("offline = true"),
            Self::NotAClient => builder.server("clients = [\"192.0.2.0/24\"]"),
            Self::NotAnUpstream | Self::MissingSlash => builder,
            Self::DocumentTooLarge => {
                let list = format!("{{\"versions\":[],\"padding\":\"{}\"}}", "x".repeat(2000));
                upstream.serve_json("/v1/providers/acme/null/versions", &list);
                builder.document_bytes(1000)
            }
        };
        (upstream, builder)
    }

    fn host(self) -> &'static str {
        if self == Self::NotAnUpstream { "registry.other.example" } else { HOST }
    }

    fn workspace(self, client: &Terraform) -> Workspace {
        let mut workspace = client.workspace();
        workspace.require(&format!("{}/acme/null", self.host()), ">= 1.0.0");
        workspace
    }
}

fn assert_terminal_shows(failure: Failure, transport: &str, text: &str) {
    for part in failure.expected_texts() {
        assert!(text.contains(part), "{failure:?} over {transport}: {part:?} is not in: {text}");
    }
    assert!(!text.contains("requires authentication credentials"), "{text}");
    assert!(!text.contains("does not have a provider named"), "{text}");
}

/// Every failure that a person can cause or meet, through a host override over plain HTTP and over TLS.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_shows_the_cause_and_the_remedy_of_every_failure() {
    let Some(client) = Terraform::find() else { return };
    let ca = TestCa::new();
    for failure in Failure::ALL {
        for transport in ["http", "TLS"] {
            let (_upstream, builder) = failure.upstream_and_builder().await;
            let builder = if transport == "TLS" { builder.tls(&ca, &["127.0.0.1"]) } else { builder };
            let larder = builder.start().await;
            let mut workspace = failure.workspace(&client);
            workspace.trust(&ca.pem());
            let url = larder.providers_url(failure.host());
            let url = if failure == Failure::MissingSlash { url.trim_end_matches('/') } else { &url };
            workspace.cli_config(&host_override(failure.host(), url, NO_MODULES));
            let error = workspace.init().await.expect_failure().one_line();
            println!("{failure:?} over {transport}: {error}");
            assert_terminal_shows(failure, transport, &error);
        }
    }
}

/// The client of a network mirror needs TLS, and hides the reason of every 4xx.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_shows_the_failures_of_a_network_mirror() {
    let Some(client) = Terraform::find() else { return };
    let ca = TestCa::new();
    for failure in Failure::ALL {
        let (_upstream, builder) = failure.upstream_and_builder().await;
        let larder = builder.tls(&ca, &["127.0.0.1"]).start().await;
        let mut workspace = failure.workspace(&client);
        workspace.trust(&ca.pem());
        let url = if failure == Failure::MissingSlash { "/mirror" } else { "/mirror/" };
        workspace.cli_config(&network_mirror(&format!("{}{url}", larder.base())));
        let error = workspace.init().await.expect_failure().one_line();
        println!("{failure:?} by the mirror: {error}");
        match failure {
            // The client continues with its other installation methods and reports that none has it.
            Failure::NotAnUpstream => assert!(error.contains("registry.other.example/acme/null"), "{error}"),
            Failure::MissingSlash => {
                assert!(
                    error.contains("503 larder: ") && error.contains("url of the client's network_mirror"),
                    "{error}"
                );
            }
            Failure::NotAClient => {
                assert!(error.contains("503 larder: 127.0.0.1 is not among the clients"), "{error}");
            }
            failure => assert_terminal_shows(failure, "the mirror", &error),
        }
    }
}

/// For a module the client requests the version list and the location.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_shows_the_failures_of_modules() {
    let Some(client) = Terraform::find() else { return };
    for failure in [Failure::UpstreamDown, Failure::Offline, Failure::NotAClient, Failure::NotAnUpstream] {
        let (_upstream, builder) = failure.upstream_and_builder().await;
        let larder = builder.start().await;
        let mut workspace = client.workspace();
        let host = failure.host();
        workspace.file("main.tf", &format!("module \"m\" {{\n  source = \"{host}/acme/one/test\"\n}}\n"));
        let modules = format!("{}/registry/{host}/v1/modules/", larder.base());
        workspace.cli_config(&host_override(host, &larder.providers_url(host), &modules));
        let error = workspace.init().await.expect_failure().one_line();
        println!("{failure:?} of a module: {error}");
        assert_terminal_shows(failure, "a module", &error);
    }
}

/// Promise 14: the error for a version that waits for `accept` names the command, in the terminal too.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_shows_the_accept_command_for_a_refused_version() {
    let Some(client) = Terraform::find() else { return };
    let (ca, upstream) = (TestCa::new(), FakeUpstream::start().await);
    upstream.publish(Provider::new("acme", "null").size(20_000));
    let folder = Folder::new();
    let verifying = Larder::mirroring(&upstream).store_at(&folder).start().await;
    get(&format!("{}{}", verifying.base(), verifying.archive_path("null", "1.2.0").await)).await.expect(200);
    verifying.run_command("purge", "acme/null").await;
    verifying.stop().await;
    upstream.publish(Provider::new("acme", "null").size(20_001).signed_by(&SigningKey::new_key()));
    for transport in ["http", "TLS", "the mirror"] {
        let builder = Larder::mirroring(&upstream).store_at(&folder);
        let builder = if transport == "http" { builder } else { builder.tls(&ca, &["127.0.0.1"]) };
        let larder = builder.start().await;
        let mut workspace = client.workspace();
        workspace.require(&format!("{HOST}/acme/null"), "1.2.0").trust(&ca.pem());
        workspace.cli_config(&match transport {
            "the mirror" => network_mirror(&format!("{}/mirror/", larder.base())),
            _ => host_override(HOST, &larder.providers_url(HOST), NO_MODULES),
        });
        let error = workspace.init().await.expect_failure().one_line();
        println!("waiting for accept over {transport}: {error}");
        let command = format!("if that is right: `larder accept {HOST}/acme/null@1.2.0`");
        assert!(error.contains("502 larder: ") && error.contains(&command), "{transport}: {error}");
    }
}

/// Promise 9: on a full disk `init` still works; the log names the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn init_works_on_a_full_disk_and_the_log_reports_it() {
    let Some(client) = Terraform::find() else { return };
    if !SmallDisk::is_possible() {
        return;
    }
    let (upstream, folder) = (FakeUpstream::start().await, Folder::new());
    upstream.publish(Provider::new("acme", "null").size(3_000_000));
    let disk = SmallDisk::start(&Larder::mirroring(&upstream).store_at(&folder), &folder, 10 << 20, "true").unwrap();
    disk.leave_free(0);
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/acme/null"), "1.2.0");
    let url = format!("{}/registry/{HOST}/v1/providers/", disk.larder.base());
    workspace.cli_config(&host_override(HOST, &url, NO_MODULES));
    workspace.init().await.expect_success();
    let line = disk.larder.log().line_with("it is passed through").await;
    assert!(line.contains("free space on the store's disk"), "{line}");
    assert!(include_str!("../../docs/errors.md").contains("A full or read-only disk fails no download"));
}

/// If only the archive fails, the client shows a bare status: the body and the status line have the cause.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_is_too_large_is_reported_in_the_body_and_in_the_status_line() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(30_000));
    let larder = Larder::mirroring(&upstream).archive_bytes(20_000).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let mut stream = TcpStream::connect(larder.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", larder.address());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (status_line, rest) = answer.split_once("\r\n").unwrap();
    assert!(status_line.starts_with("HTTP/1.1 502 larder: http://127.0.0.1:"), "{status_line}");
    assert!(status_line.contains("sent more than 20000 bytes (larder takes no more"), "{status_line}");
    let body = rest.split_once("\r\n\r\n").unwrap().1;
    assert!(body.contains("the archive of registry.terraform.io/acme/null 1.2.0 (linux_amd64): "), "{body}");
}

/// The page on errors has a row for each failure.
#[test]
fn the_page_on_errors_has_a_row_for_each_failure() {
    let page = include_str!("../../docs/errors.md");
    for failure in Failure::ALL {
        let [status, cause, _] = failure.expected_texts();
        let cause =
            cause.replace("127.0.0.1", "ADDRESS").replace("registry.other.example", "HOST").replace("1000", "N");
        assert!(page.contains(status.trim_end()) && page.contains(&cause), "{failure:?}: {cause}");
    }
}
