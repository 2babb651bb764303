//! A mount namespace where the names of public forges resolve to servers of the test. The test runs itself again, as
//! root, in a namespace with another `/etc/hosts` and a user `git`. There it listens at ports 443 and 22 of an unused
//! loopback address.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::programs::{find, skip};

/// The host names that resolve to the servers of the test in that namespace.
pub(crate) const FORGE_NAMES: [&str; 4] = ["github.com", "bitbucket.org", "api.bitbucket.org", "git.acme.test"];

/// The environment variable that gives the inner test run the address of the forges.
const ADDRESS_VARIABLE: &str = "LARDER_TEST_FORGES_AT";
/// The exit code of the script in the namespace when it cannot mount.
const MOUNT_FAILED: i32 = 9;
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// The place of the test: inside the namespace of the fake forges, or outside.
pub(crate) enum Forges {
    /// Inside the namespace, where the names resolve to this address.
    Inside(Ipv4Addr),
    /// Outside; the test ran inside a namespace and succeeded.
    Succeeded,
    /// Outside; a namespace is impossible on this machine, and a note was printed.
    Impossible,
}

/// Called by a test with its own name. Outside a namespace, runs that test again inside one; inside, returns the
/// address of the forges.
pub(crate) async fn forges(test: &str) -> Forges {
    if let Ok(address) = std::env::var(ADDRESS_VARIABLE) {
        return Forges::Inside(address.parse().expect("an address"));
    }
    if !rustix::process::geteuid().is_root() {
        skip("only root can give the names of public forges an address of its own");
        return Forges::Impossible;
    }
    let Some(unshare) = find("unshare") else { return Forges::Impossible };
    // Derived from the process id, so that other tests of this kind can run at the same time.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 77, high, low.clamp(1, 254));
    // A server of this machine that listens at all addresses would answer in place of the test's servers.
    if let Some(port) = [22, 443].into_iter().find(|port| TcpListener::bind((address, *port)).is_err()) {
        skip(&format!("port {port} of {address} is taken"));
        return Forges::Impossible;
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let lines = FORGE_NAMES.iter().map(|name| format!("{address} {name}\n"));
    fs::write(&hosts, format!("127.0.0.1 localhost\n{}", lines.collect::<String>())).unwrap();
    // Terraform accepts the scp-like form of an ssh address only with the user `git`.
    let users = folder.path().join("passwd");
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let other_users = passwd.lines().filter(|line| !line.starts_with("git:")).map(|line| format!("{line}\n"));
    fs::write(&users, format!("{}git:x:0:0::/:/bin/sh\n", other_users.collect::<String>())).unwrap();
    let mut command = Command::new(unshare);
    command.args(["--mount", "--propagation", "private", "--kill-child", "--fork", "sh", "-c"]);
    let script = format!(
        "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/passwd || exit {MOUNT_FAILED}; shift 2; exec \"$@\""
    );
    command.arg(script).arg("sh").arg(&hosts).arg(&users);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    command
        .env("LC_ALL", "C")
        .env(ADDRESS_VARIABLE, address.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    let result = tokio::time::timeout(TIME_LIMIT, running).await;
    let output = result.unwrap_or_else(|_| panic!("{test} took more than {TIME_LIMIT:?} in its namespace")).unwrap();
    let (status, text) = (output.status, [output.stdout, output.stderr].concat());
    let text = String::from_utf8_lossy(&text);
    if status.code() == Some(MOUNT_FAILED) || text.contains("unshare failed") {
        skip(&format!("no mount namespace: {text}"));
        return Forges::Impossible;
    }
    assert!(status.success() && text.contains("1 passed"), "{test}, inside a namespace: {status}\n{text}");
    Forges::Succeeded
}
