//! Tests of git over ssh, with a real OpenSSH server on loopback. They are skipped if no server is installed.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::config::{Access, SshFiles};
use crate::upstream::error::Fault;

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
        let mut config = GitTestConfig::for_registry(&Url::parse("https://registry.example/").unwrap());
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

/// An unknown host key and a refused user key are errors, without a prompt (DESIGN, promise 8).
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
    let mut config = GitTestConfig::for_registry(&Url::parse("https://registry.example/").unwrap());
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
        let mut config = GitTestConfig::for_registry(&Url::parse("https://registry.example/").unwrap());
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
