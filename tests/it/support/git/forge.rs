//! A namespace where names of public forges lead to the test's own servers: the test runs itself again, as root, in a
//! mount namespace with another `/etc/hosts` and a user git, and may listen at 443 and 22 of an unused loopback
//! address.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::programs::{cannot, find};

/// Names that lead to the test's own address there.
pub(crate) const NAMES: [&str; 4] = ["github.com", "bitbucket.org", "api.bitbucket.org", "git.acme.test"];

const ADDRESS: &str = "LARDER_TEST_FORGES_AT";
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// The namespace's state.
pub(crate) enum Forges {
    /// It is, and the names lead to this address.
    Here(Ipv4Addr),
    /// It was: it ran within, to its end, and succeeded.
    Done,
    /// Impossible on this machine; a note was printed.
    Nowhere,
}

/// Runs the test of this name, which asks, within; or says to the one that is within where the forges are.
pub(crate) async fn forges(test: &str) -> Forges {
    if let Ok(address) = std::env::var(ADDRESS) {
        return Forges::Here(address.parse().expect("an address"));
    }
    if !rustix::process::geteuid().is_root() {
        cannot("only root can give the names of public forges an address of its own");
        return Forges::Nowhere;
    }
    let Some(unshare) = find("unshare") else { return Forges::Nowhere };
    // Of this process alone among all that run now: other tests of this kind may run beside it.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 77, high, low.clamp(1, 254));
    // A server of this machine may listen there at every address, and would be taken for the test's own.
    if let Some(port) = [22, 443].into_iter().find(|port| TcpListener::bind((address, *port)).is_err()) {
        cannot(&format!("port {port} of {address} is taken"));
        return Forges::Nowhere;
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let lines = NAMES.iter().map(|name| format!("{address} {name}\n"));
    fs::write(&hosts, format!("127.0.0.1 localhost\n{}", lines.collect::<String>())).unwrap();
    // Terraform takes the scp-like form of an ssh address with the user git alone.
    let users = folder.path().join("passwd");
    let all = fs::read_to_string("/etc/passwd").unwrap();
    let all = all.lines().filter(|line| !line.starts_with("git:")).map(|line| format!("{line}\n"));
    fs::write(&users, format!("{}git:x:0:0::/:/bin/sh\n", all.collect::<String>())).unwrap();
    let mut command = Command::new(unshare);
    command.args(["--mount", "--propagation", "private", "--kill-child", "--fork", "sh", "-c"]);
    let script = "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/passwd || exit 9; shift 2; exec \"$@\"";
    command.arg(script).arg("sh").arg(&hosts).arg(&users);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    command
        .env("LC_ALL", "C")
        .env(ADDRESS, address.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    let ended = tokio::time::timeout(TIME_LIMIT, ended).await;
    let output = ended.unwrap_or_else(|_| panic!("{test} took more than {TIME_LIMIT:?} in its namespace")).unwrap();
    let (status, text) = (output.status, [output.stdout, output.stderr].concat());
    let text = String::from_utf8_lossy(&text);
    if status.code() == Some(9) || text.contains("unshare failed") {
        cannot(&format!("no mount namespace: {text}"));
        return Forges::Nowhere;
    }
    assert!(status.success() && text.contains("1 passed"), "{test}, within a namespace: {status}\n{text}");
    Forges::Done
}
