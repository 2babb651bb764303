//! Git over ssh, with a real OpenSSH server on loopback; skipped if none is installed.

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
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(root.join(name)).status();
            assert!(made.unwrap().success());
        }
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap().trim().to_owned();
        let path = std::env::var("PATH").unwrap();
        let shown = root.display();
        write(
            root,
            "sshd_config",
            format!(
                "HostKey {shown}/host\nAuthorizedKeysFile {shown}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nAcceptEnv GIT_PROTOCOL\nSetEnv PATH={path}\n"
            ),
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let host_key = fs::read_to_string(root.join("host.pub")).unwrap();
        write(root, "known_hosts", format!("[127.0.0.1]:{port} {host_key}"));
        write(root, "no_hosts", "");
        let connections = Arc::new(AtomicUsize::new(0));
        let (config, counted) = (root.join("sshd_config"), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let stream = OwnedFd::from(stream.unwrap());
                let answer = stream.try_clone().unwrap();
                let mut sshd = Command::new(SSHD);
                sshd.arg("-i").arg("-f").arg(&config).stdin(stream).stdout(answer).stderr(Stdio::null());
                let mut child = sshd.spawn().unwrap();
                std::thread::spawn(move || child.wait());
            }
        });
        Some(Self { folder, port, connections, user })
    }

    fn setting(&self, key: &str, known_hosts: &str) -> GitTestSetting {
        let mut setting = GitTestSetting::of_registry(&Url::parse("https://registry.example/").unwrap());
        let root = self.folder.path();
        let files = SshFiles { key: root.join(key), known_hosts: root.join(known_hosts) };
        let host = Hostname::parse(&format!("127.0.0.1:{}", self.port)).unwrap();
        setting.credentials = vec![Credential { host, upstreams: vec![super::host()], access: Access::Ssh(files) }];
        setting
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
    let setting = server.setting("user", "known_hosts");
    let theirs = cloned(&forge.url("it's a repository"), "main").unwrap();
    let fetched = setting.fetch(&server.source(&r.join(".git"), "main")).await.unwrap();
    assert_same(&listed(&fetched.tree), &theirs);
    let source = server.source(&r.join(".git"), &first);
    assert_eq!(setting.fetch(&source).await.unwrap().commit, first);
    assert_eq!(setting.resolve(&server.source(&r.join(".git"), "main")).await.unwrap(), Some(fetched.commit));
}

/// DESIGN, promise 8, without prompts: an unknown host key and a refused user key are errors.
#[tokio::test]
async fn an_unknown_host_and_a_refused_key_are_errors() {
    let Some(server) = SshServer::start() else { return };
    let forge = Forge::new();
    let r = forge.repository("r");
    commit(&r);
    for (key, known_hosts, said) in
        [("user", "no_hosts", "Host key verification failed"), ("stranger", "known_hosts", "Permission denied")]
    {
        let error = server.setting(key, known_hosts).fetch(&server.source(&r, "main")).await.unwrap_err();
        let GitError::Upstream(error) = error else { panic!("{error}") };
        assert!(matches!(&error.fault, Fault::Untrusted(_)) && error.to_string().contains(said), "{error}");
        assert!(!error.to_string().contains(&*server.folder.path().to_string_lossy()), "{error}");
    }
    let setting = server.setting("user", "known_hosts");
    let error = setting.fetch(&server.source(Path::new("/no/such"), "main")).await.unwrap_err();
    assert!(error.to_string().contains("no repository"), "{error}");
}

#[tokio::test]
async fn an_ssh_server_without_a_configured_key_gets_no_connection() {
    let Some(server) = SshServer::start() else { return };
    let mut setting = server.setting("user", "known_hosts");
    setting.credentials[0].upstreams = vec![Hostname::parse("other.example").unwrap()];
    let refused = setting.fetch(&server.source(Path::new("/x"), "main")).await.unwrap_err().to_string();
    for part in
        ["[[credential]]", &format!("host = \"127.0.0.1:{}\"", server.port), "upstreams = [\"registry.example\"]"]
    {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

/// A silent server: the process is killed, and the caller gets an error.
#[tokio::test]
async fn a_silent_ssh_server_is_given_up_and_leaves_no_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "key", "x");
    write(folder.path(), "known_hosts", "");
    let mut setting = GitTestSetting::of_registry(&Url::parse("https://registry.example/").unwrap());
    let files = SshFiles { key: folder.path().join("key"), known_hosts: folder.path().join("known_hosts") };
    let host = Hostname::parse(&format!("127.0.0.1:{port}")).unwrap();
    setting.credentials = vec![Credential { host, upstreams: vec![super::host()], access: Access::Ssh(files) }];
    setting.bounds.git.idle = std::time::Duration::from_millis(300);
    let url = Url::parse(&format!("ssh://git@127.0.0.1:{port}/x")).unwrap();
    let error = setting.fetch(&GitSource { url, reference: None, depth: None }).await.unwrap_err();
    assert!(matches!(&error, GitError::Upstream(error) if matches!(error.fault, Fault::Slow(_))), "{error}");
    let (mut stream, _) = listener.accept().unwrap();
    // The client's end was closed after the greeting; a surviving process would keep it open.
    let mut greeting = Vec::new();
    let _ = stream.read_to_end(&mut greeting);
    assert!(greeting.starts_with(b"SSH-2.0"));
}

#[test]
fn a_key_is_for_the_ports_of_its_host_that_it_names() {
    let files = SshFiles { key: "/k".into(), known_hosts: "/h".into() };
    for (named, is_for) in [("git.example", [true, true, false]), ("git.example:2222", [false, false, true])] {
        let mut setting = GitTestSetting::of_registry(&Url::parse("https://registry.example/").unwrap());
        let host = Hostname::parse(named).unwrap();
        let access = Access::Ssh(files.clone());
        setting.credentials = vec![Credential { host, upstreams: vec![super::host()], access }];
        let credential_scope = setting.granted().credential_scope.clone();
        assert_eq!(
            [22, 443, 2222].map(|port| credential_scope.ssh_key_for("git.example", port).is_some()),
            is_for,
            "{named}"
        );
        assert!(credential_scope.ssh_key_for("other.example", 22).is_none());
    }
}
