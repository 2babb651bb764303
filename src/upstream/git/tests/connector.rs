//! Tests that all traffic of git fetches goes through the outbound connector, which checks every hop.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use secrecy::SecretString;

use super::server::ServerBehaviour;
use super::*;
use crate::config::{Access, CredentialKind, SshFiles};
use crate::upstream::error::Fault;

/// Makes the repository `r` with one commit.
fn make_repository(forge: &Forge) {
    let r = forge.repository("r");
    write(&r, "main.tf", "x\n");
    commit(&r);
}

/// A redirect to `target_url`.
fn redirect(target_url: impl std::fmt::Display) -> ServerBehaviour {
    ServerBehaviour::RawResponse(format!(
        "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {target_url}\r\n\r\n"
    ))
}

#[tokio::test]
async fn a_repository_that_has_moved_is_fetched_at_its_new_url() {
    let forge = Forge::new();
    make_repository(&forge);
    let port = forge.server.port;
    forge.server.set_behaviour(move |request| match request.target.strip_prefix("/old/") {
        Some(path) => redirect(format!("http://127.0.0.1:{port}/r/{path}")),
        None => ServerBehaviour::Normal,
    });
    let config = GitTestConfig::allowing(&forge.url("r"));
    let fetched = config.fetch(&forge.source("old", "main")).await.unwrap();
    assert!(tree_listing(&fetched.tree).contains_key(&b"main.tf"[..]));
    let requests = forge.server.requests();
    let posts: Vec<_> =
        requests.iter().filter(|request| request.method == "POST").map(|request| request.target.as_str()).collect();
    assert_eq!(posts, ["/r/.git/git-upload-pack"; 2]);
    assert!(requests.iter().all(|request| request.header("cdn-loop").is_some_and(|list| list.contains("larder;id="))));
}

/// The egress policy applies to every hop (promise 7).
#[tokio::test]
async fn a_redirect_against_the_egress_policy_is_refused() {
    let forge = Forge::new();
    make_repository(&forge);
    let config = GitTestConfig::allowing(&forge.url("r"));
    let other_forge = Forge::new();
    let targets = ["https://127.0.0.1:1/".to_owned(), "https://10.1.2.3/".to_owned(), other_forge.url("r").to_string()];
    for (target, allow_entry) in targets.into_iter().zip(["\"127.0.0.1\"", "\"10.1.2.3\"", "\"http://127.0.0.1:"]) {
        forge.server.set_behaviour(move |request| redirect(format!("{target}{}", request.target)));
        let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
        let GitError::Upstream(error) = &refused else { panic!("{refused}") };
        assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
        assert!(error.to_string().contains(allow_entry), "{error}");
    }
    assert_eq!(other_forge.server.requests().len(), 0);
}

#[tokio::test]
async fn a_redirect_of_a_post_is_not_followed() {
    let forge = Forge::new();
    make_repository(&forge);
    forge.server.set_behaviour(|request| {
        if request.method == "POST" { redirect("/r/.git/git-upload-pack") } else { ServerBehaviour::Normal }
    });
    let refused = GitTestConfig::allowing(&forge.url("r")).fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("not sent twice"), "{refused}");
    assert_eq!(forge.server.requests().len(), 2);
}

/// A credential is sent to its host, and not to another host after a redirect (promise 8).
#[tokio::test]
async fn a_credential_is_sent_to_its_host_only() {
    let (private, public) = (Forge::new(), Forge::new());
    make_repository(&private);
    make_repository(&public);
    let token = SecretString::from("s3cret");
    let host = Hostname::parse(&format!("127.0.0.1:{}", private.server.port)).unwrap();
    let access = Access::Http(CredentialKind::Bearer(token));
    let credential = Credential { host, upstreams: vec![super::host()], access };
    let mut config = GitTestConfig::allowing(&public.url("r"));
    config.credentials = vec![credential];
    let port = private.server.port;
    config.allow_private = vec![PrivateDestination::PlainHttp { host: "127.0.0.1".into(), port }];
    config.fetch(&private.source("r", "main")).await.unwrap();
    let count_authorized = |forge: &Forge| {
        forge.server.requests().iter().filter(|request| request.header("authorization").is_some()).count()
    };
    assert_eq!(count_authorized(&private), private.server.requests().len());
    let public_url = public.url("r");
    private.server.set_behaviour(move |request| {
        let path = request.target.split_once("/.git").map(|(_, path)| path.to_owned()).unwrap();
        redirect(format!("{public_url}{path}"))
    });
    config.fetch(&private.source("r", "main")).await.unwrap();
    assert_eq!((count_authorized(&public), public.server.requests().len()), (0, 3));
    // The credential is not for the modules of another upstream.
    config.credentials[0].upstreams = vec![Hostname::parse("other.example").unwrap()];
    private.server.set_behaviour(|_| ServerBehaviour::Normal);
    let authorized_before = count_authorized(&private);
    config.fetch(&private.source("r", "main")).await.unwrap();
    assert_eq!(count_authorized(&private), authorized_before);
}

#[tokio::test]
async fn an_http_error_of_a_forge_is_reported_as_such() {
    let forge = Forge::new();
    let config = GitTestConfig::allowing(&forge.url("r"));
    for (status, message) in [
        ("401 Unauthorized", "refused larder's request"),
        ("500 Oops", "answered 500"),
        ("200 OK", "unusable"),
        ("400 Bad Request", "unusable: status 400"),
        ("405 Method Not Allowed", "unusable: status 405"),
        ("409 Conflict", "unusable: status 409"),
        ("422 Unprocessable Content", "unusable: status 422"),
    ] {
        forge.server.set_behaviour(move |_| {
            ServerBehaviour::RawResponse(format!(
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
            ))
        });
        let error = config.fetch(&forge.source("r", "main")).await.unwrap_err();
        assert!(error.to_string().contains(message), "{status}: {error}");
        assert!(matches!(error, GitError::Upstream(_)), "{status}: {error}");
    }
}

/// Offline, nothing is sent (promise 12).
#[tokio::test]
async fn offline_no_request_is_sent_and_no_ssh_process_started() {
    let forge = Forge::new();
    make_repository(&forge);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.network.offline = true;
    for url in [forge.url("r"), Url::parse("ssh://git@127.0.0.1/x").unwrap()] {
        let source = GitSource { url, reference: None, depth: None };
        let error = config.fetch(&source).await.unwrap_err();
        assert!(error.to_string().contains("larder is offline"), "{error}");
    }
    assert_eq!(forge.server.requests().len(), 0);
}

#[tokio::test]
async fn a_cancelled_job_ends_and_releases_its_permit() {
    let forge = Forge::new();
    make_repository(&forge);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git_fetches.per_upstream = 1;
    config.upstream_limits.git_fetches.all = 1;
    let outbound = Arc::new(config.outbound());
    let (started_sender, started) = std::sync::mpsc::channel();
    forge.server.set_behaviour(move |_| {
        let _ = started_sender.send(());
        ServerBehaviour::NoAnswer
    });
    let source = forge.source("r", "main");
    let running_job = {
        let (outbound, source) = (Arc::clone(&outbound), source.clone());
        let config =
            GitTestConfig { upstream_limits: config.upstream_limits, ..GitTestConfig::allowing(&forge.url("r")) };
        tokio::spawn(async move { config.fetch_with(&outbound, &source).await.map(|fetched| fetched.commit) })
    };
    tokio::task::spawn_blocking(move || started.recv().unwrap()).await.unwrap();
    running_job.abort();
    assert!(running_job.await.unwrap_err().is_cancelled());
    forge.server.set_behaviour(|_| ServerBehaviour::Normal);
    config.fetch_with(&outbound, &source).await.unwrap();
}

/// A secret that a server quotes is not shown (promise 8).
#[tokio::test]
async fn a_text_that_quotes_a_credential_is_not_shown() {
    let forge = Forge::new();
    make_repository(&forge);
    let host = Hostname::parse(&format!("127.0.0.1:{}", forge.server.port)).unwrap();
    let access = Access::Http(CredentialKind::Bearer(SecretString::from("s3cret")));
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.credentials = vec![Credential { host, upstreams: vec![super::host()], access }];
    for text in ["ERR who is s3cret", "ERR who is there"] {
        let packet_line = format!("{:04x}{text}", text.len() + 4);
        let head =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n";
        let answer = format!("{head}001e# service=git-upload-pack\n0000{packet_line}");
        forge.server.set_behaviour(move |_| ServerBehaviour::RawResponse(answer.clone()));
        let error = config.fetch(&forge.source("r", "main")).await.unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
        assert_eq!(error.contains("not shown"), text.contains("s3cret"), "{error}");
        assert_eq!(error.contains("who is there"), text.contains("there"), "{error}");
    }
}

const SSHD: &str = "/usr/sbin/sshd";

struct SshServer {
    folder: TempDir,
    port: u16,
    connections: Arc<AtomicUsize>,
    user: String,
}

impl SshServer {
    /// Starts a server with a fresh user key and host key. Each connection has its own process.
    fn start() -> Option<Self> {
        if !Path::new(SSHD).exists() {
            let missing = format!("there is no {SSHD}: some tests were not run");
            assert!(std::env::var("LARDER_REQUIRE_CLIENT").as_deref() != Ok("1"), "{missing}");
            let _ = writeln!(std::io::stderr(), "\n*** {missing} ***\n");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let _ = fs::create_dir_all("/run/sshd");
        let root = folder.path();
        for name in ["host", "user", "stranger"] {
            let status =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(root.join(name)).status();
            assert!(status.unwrap().success());
        }
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap().trim().to_owned();
        let path = std::env::var("PATH").unwrap();
        let root_path = root.display();
        write(
            root,
            "sshd_config",
            format!(
                "HostKey {root_path}/host\nAuthorizedKeysFile {root_path}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nAcceptEnv GIT_PROTOCOL\nSetEnv PATH={path}\n"
            ),
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let host_key = fs::read_to_string(root.join("host.pub")).unwrap();
        write(root, "known_hosts", format!("[127.0.0.1]:{port} {host_key}"));
        write(root, "no_hosts", "");
        let connections = Arc::new(AtomicUsize::new(0));
        let (sshd_config, connection_count) = (root.join("sshd_config"), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                connection_count.fetch_add(1, Ordering::SeqCst);
                let stream = OwnedFd::from(stream.unwrap());
                let stdout = stream.try_clone().unwrap();
                let mut sshd = Command::new(SSHD);
                sshd.arg("-i").arg("-f").arg(&sshd_config).stdin(stream).stdout(stdout).stderr(Stdio::null());
                let mut child = sshd.spawn().unwrap();
                std::thread::spawn(move || child.wait());
            }
        });
        Some(Self { folder, port, connections, user })
    }

    /// A configuration with the server's keys.
    fn config(&self, key: &str, known_hosts: &str) -> GitTestConfig {
        let mut config = GitTestConfig::allowing(&Url::parse("https://registry.example/").unwrap());
        let root = self.folder.path();
        let files = SshFiles { key: root.join(key), known_hosts: root.join(known_hosts) };
        let host = Hostname::parse(&format!("127.0.0.1:{}", self.port)).unwrap();
        config.credentials = vec![Credential { host, upstreams: vec![super::host()], access: Access::Ssh(files) }];
        config
    }

    fn source(&self, path: &Path, reference: &str) -> GitSource {
        let url = format!("ssh://{}@127.0.0.1:{}{}", self.user, self.port, path.display());
        GitSource { url: Url::parse(&url).unwrap(), reference: Some(reference.to_owned()), depth: None }
    }
}

#[tokio::test]
async fn a_repository_is_fetched_over_ssh_with_the_configured_key() {
    let Some(server) = SshServer::start() else { return };
    let forge = Forge::new();
    let inner = forge.repository("inner");
    write(&inner, "inner.tf", "inner\n");
    commit(&inner);
    let r = forge.repository("it's a repository");
    write(&r, "main.tf", vec![b'x'; 300_000]);
    let first = commit(&r);
    git(&r, &["submodule", "--quiet", "add", "../../inner/.git", "inner"]);
    commit(&r);
    let config = server.config("user", "known_hosts");
    let expected = clone_listing(&forge.url("it's a repository"), "main").unwrap();
    let fetched = config.fetch(&server.source(&r.join(".git"), "main")).await.unwrap();
    assert_same_listing(&tree_listing(&fetched.tree), &expected);
    let source = server.source(&r.join(".git"), &first);
    assert_eq!(config.fetch(&source).await.unwrap().commit, first);
    assert_eq!(config.resolve(&server.source(&r.join(".git"), "main")).await.unwrap(), Some(fetched.commit));
}

/// An unknown host key and a refused user key are errors, without a prompt (promise 8).
#[tokio::test]
async fn an_unknown_host_and_a_refused_key_are_errors() {
    let Some(server) = SshServer::start() else { return };
    let forge = Forge::new();
    let r = forge.repository("r");
    commit(&r);
    for (key, known_hosts, message) in
        [("user", "no_hosts", "Host key verification failed"), ("stranger", "known_hosts", "Permission denied")]
    {
        let error = server.config(key, known_hosts).fetch(&server.source(&r, "main")).await.unwrap_err();
        let GitError::Upstream(error) = error else { panic!("{error}") };
        assert!(matches!(&error.fault, Fault::Untrusted(_)) && error.to_string().contains(message), "{error}");
        assert!(!error.to_string().contains(&*server.folder.path().to_string_lossy()), "{error}");
    }
    let config = server.config("user", "known_hosts");
    let error = config.fetch(&server.source(Path::new("/no/such"), "main")).await.unwrap_err();
    assert!(error.to_string().contains("no repository"), "{error}");
}

#[tokio::test]
async fn an_ssh_server_without_a_configured_key_gets_no_connection() {
    let Some(server) = SshServer::start() else { return };
    let mut config = server.config("user", "known_hosts");
    config.credentials[0].upstreams = vec![Hostname::parse("other.example").unwrap()];
    let refused = config.fetch(&server.source(Path::new("/x"), "main")).await.unwrap_err().to_string();
    for expected in
        ["[[credential]]", &format!("host = \"127.0.0.1:{}\"", server.port), "upstreams = [\"registry.example\"]"]
    {
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_silent_ssh_server_is_given_up_and_leaves_no_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "key", "x");
    write(folder.path(), "known_hosts", "");
    let mut config = GitTestConfig::allowing(&Url::parse("https://registry.example/").unwrap());
    let files = SshFiles { key: folder.path().join("key"), known_hosts: folder.path().join("known_hosts") };
    let host = Hostname::parse(&format!("127.0.0.1:{port}")).unwrap();
    config.credentials = vec![Credential { host, upstreams: vec![super::host()], access: Access::Ssh(files) }];
    config.upstream_limits.git.idle = std::time::Duration::from_millis(300);
    let url = Url::parse(&format!("ssh://git@127.0.0.1:{port}/x")).unwrap();
    let error = config.fetch(&GitSource { url, reference: None, depth: None }).await.unwrap_err();
    assert!(matches!(&error, GitError::Upstream(error) if matches!(error.fault, Fault::Slow(_))), "{error}");
    let (mut stream, _) = listener.accept().unwrap();
    // The connection was closed after the greeting of the client. A surviving process would keep it open.
    let mut greeting = Vec::new();
    let _ = stream.read_to_end(&mut greeting);
    assert!(greeting.starts_with(b"SSH-2.0"));
}

#[test]
fn a_key_without_a_port_is_for_ports_22_and_443_and_a_key_with_a_port_only_for_that_port() {
    let files = SshFiles { key: "/k".into(), known_hosts: "/h".into() };
    for (section_host, expected) in [("git.example", [true, true, false]), ("git.example:2222", [false, false, true])] {
        let mut config = GitTestConfig::allowing(&Url::parse("https://registry.example/").unwrap());
        let host = Hostname::parse(section_host).unwrap();
        let access = Access::Ssh(files.clone());
        config.credentials = vec![Credential { host, upstreams: vec![super::host()], access }];
        let credential_scope = config.upstream().credential_scope.clone();
        assert_eq!(
            [22, 443, 2222].map(|port| credential_scope.ssh_key_for("git.example", port).is_some()),
            expected,
            "{section_host}"
        );
        assert!(credential_scope.ssh_key_for("other.example", 22).is_none());
    }
}
