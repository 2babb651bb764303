//! The protocol of a service manager: a datagram socket plays systemd's part.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use larder::config::Config;
use parking_lot::Mutex;

use crate::support::http::get;
use crate::support::larder::{Folder, Larder};
use crate::support::process::Process;
use crate::support::programs::{find, skip};
use crate::support::upstream::FakeUpstream;
use crate::support::{eventually, until};

/// The time limit of a wait for a message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// systemd's side of the socket.
struct Manager(UnixDatagram);

impl Manager {
    /// A socket in the folder, and the value of NOTIFY_SOCKET.
    fn in_folder(folder: &Folder) -> (Self, String) {
        let path = folder.path().join("notify");
        (Self::with_socket(UnixDatagram::bind(&path).unwrap()), path.display().to_string())
    }

    /// A socket in the abstract namespace.
    fn in_abstract_namespace(name: &str) -> (Self, String) {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        (Self::with_socket(UnixDatagram::bind_addr(&address).unwrap()), format!("@{name}"))
    }

    fn with_socket(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(MESSAGE_TIMEOUT)).unwrap();
        Self(socket)
    }

    /// The next message, as lines.
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).expect("the service manager was told nothing");
        String::from_utf8(buffer[..length].to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    /// The next message that is not a watchdog message.
    fn next_but_watchdog(&self) -> Vec<String> {
        loop {
            let message = self.next();
            if message != ["WATCHDOG=1"] {
                return message;
            }
        }
    }

    /// All messages that have already arrived.
    fn arrived(&self) -> Vec<Vec<String>> {
        self.0.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        let mut messages = Vec::new();
        while let Ok(length) = self.0.recv(&mut buffer) {
            let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
            messages.push(text.lines().map(str::to_owned).collect());
        }
        self.0.set_nonblocking(false).unwrap();
        messages
    }
}

/// A larder that notifies this socket, after `adjust` has changed the command.
fn start_with_socket(
    upstream: &FakeUpstream,
    folder: &Folder,
    socket: &str,
    adjust: impl FnOnce(&mut Command),
) -> Process {
    let config = Larder::mirroring(upstream).store_at(folder).config_text();
    let larder = Process::serve_with(&config, folder.path(), |command| {
        command.env("NOTIFY_SOCKET", socket).env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
        adjust(command);
    });
    larder.unwrap_or_else(|error| panic!("{error:?}"))
}

#[tokio::test]
async fn the_service_manager_is_notified_when_larder_is_ready_reloads_and_stops() {
    let upstream = FakeUpstream::start().await;
    let name = format!("larder-test-{}", std::process::id());
    let folder = Folder::new();
    for (manager, socket) in [Manager::in_folder(&folder), Manager::in_abstract_namespace(&name)] {
        let folder = Folder::new();
        let file = folder.path().join("mirror.toml");
        let larder = start_with_socket(&upstream, &folder, &socket, |_| {});

        let ready = manager.next();
        assert_eq!(ready[0], "READY=1", "{ready:?}");
        let status =
            format!("STATUS={} mirrors registry.terraform.io; store {}", larder.base(), folder.path().display());
        assert_eq!(ready[1..], [status.as_str()]);
        get(&format!("{}/readyz", larder.base())).await.expect(200);
        get(&format!("{}/readyz", larder.admin())).await.expect(200);

        let valid_config = std::fs::read_to_string(&file).unwrap();
        for (text, outcome) in [
            (valid_config.clone(), ""),
            (
                format!("{valid_config}\nnonsense = 1\n"),
                "; its configuration has problems, the previous one is in force",
            ),
            (
                valid_config.replace("127.0.0.1:0", "127.0.0.1:1"),
                "; its configuration has problems, the previous one is in force",
            ),
            (valid_config.replacen("127.0.0.1:0", "127.0.0.1:1", 1), "; needs a restart: server.listen"),
        ] {
            std::fs::write(&file, text).unwrap();
            larder.send_sighup();
            let reloading = manager.next();
            assert_eq!(reloading[0], "RELOADING=1", "{reloading:?}");
            let since = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap();
            assert!(since.parse::<u64>().unwrap() > 0, "{reloading:?}");
            assert_eq!(manager.next(), ["READY=1".to_owned(), format!("{status}{outcome}")]);
        }
        larder.send_sigterm();
        assert_eq!(manager.next()[0], "STOPPING=1");
        assert_eq!(larder.terminate().await, Some(0));
        assert!(manager.arrived().is_empty(), "nobody asked for signs of life");
    }
}

/// A restart helps a larder that does not answer, but not an upstream or a store: only the first stops the watchdog.
#[tokio::test]
async fn watchdog_messages_are_sent_while_larder_answers_whatever_its_upstreams_and_its_store_do() {
    let mut upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let (manager, socket) = Manager::in_folder(&folder);
    let larder = start_with_socket(&upstream, &folder, &socket, |command| {
        command.env("WATCHDOG_USEC", "200000");
    });
    assert_eq!(manager.next()[0], "READY=1");
    upstream.stop().await;
    std::fs::rename(folder.path().join("v1"), folder.path().join("away")).unwrap();
    get(&format!("{}/readyz", larder.base())).await.expect(503);
    manager.arrived();
    for _ in 0..3 {
        assert_eq!(manager.next(), ["WATCHDOG=1"]);
    }

    // No file descriptor is left to accept a connection, so larder answers no client.
    larder.limit_open_files(Some(3));
    // A request that had begun may still be answered.
    for _ in 0..2 {
        larder.log().wait_for_another("liveness check failed").await;
    }
    manager.arrived();
    larder.log().wait_for_another("liveness check failed").await;
    assert!(manager.arrived().is_empty(), "a sign of life from a larder that answers nobody");
    larder.limit_open_files(None);
    assert_eq!(manager.next(), ["WATCHDOG=1"]);
    larder.send_sigterm();
    assert_eq!(manager.next_but_watchdog()[0], "STOPPING=1");
}

/// Promise 11: a larder whose blocking threads are all taken fails its own check until they are free; with a lost
/// store, a restart would not help, so the check passes.
#[tokio::test]
async fn a_larder_whose_blocking_threads_are_all_busy_fails_its_liveness_check() {
    // The number of blocking threads of a runtime.
    const THREADS: usize = 512;
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).pool_within(Duration::from_millis(50)).start().await;
    larder.check_liveness().await.unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let tasks: Vec<_> = (0..THREADS)
        .map(|_| {
            let released = Arc::clone(&released);
            tokio::task::spawn_blocking(move || released.lock().recv().is_ok())
        })
        .collect();
    let starved = eventually("the liveness check fails", async || larder.check_liveness().await.err()).await;
    assert!(starved.to_string().contains("no blocking task got a thread"), "{starved}");

    let (store, moved_store) = (larder.folder.path().join("v1"), larder.folder.path().join("away"));
    std::fs::rename(&store, &moved_store).unwrap();
    // A trial of the disk that began before the rename may still end well.
    let passes_twenty_times = async || {
        for _ in 0..20 {
            if larder.check_liveness().await.is_err() {
                return false;
            }
        }
        true
    };
    until("the liveness check covers the store", passes_twenty_times).await;
    std::fs::rename(&moved_store, &store).unwrap();
    eventually("the liveness check fails again", async || larder.check_liveness().await.err()).await;

    drop(release);
    for task in tasks {
        assert!(!task.await.unwrap());
    }
    until("the liveness check passes again", async || larder.check_liveness().await.is_ok()).await;
}

/// The watchdog variables belong to another process, or the socket is gone.
#[tokio::test]
async fn watchdog_variables_of_another_process_or_without_a_socket_are_ignored() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let (manager, socket) = Manager::in_folder(&folder);
    let larder = start_with_socket(&upstream, &folder, &socket, |command| {
        command.env("WATCHDOG_USEC", "2000").env("WATCHDOG_PID", "1");
    });
    assert_eq!(manager.next()[0], "READY=1");
    larder.send_sighup();
    assert_eq!(manager.next()[0], "RELOADING=1");
    assert_eq!(manager.next()[0], "READY=1");
    assert_eq!(larder.terminate().await, Some(0));

    let folder = Folder::new();
    let nowhere = folder.path().join("nowhere").display().to_string();
    let larder = start_with_socket(&upstream, &folder, &nowhere, |_| {});
    larder.log().line_with("could not connect to the service manager").await;
    get(&format!("{}/readyz", larder.base())).await.expect(200);
    assert_eq!(larder.terminate().await, Some(0));
}

/// systemd itself checks the service file and rates its security settings.
#[tokio::test]
async fn systemd_accepts_the_service_file_and_rates_its_restrictions_as_strict() {
    let Some(systemd_analyze) = find("systemd-analyze") else { return };
    let version = Command::new(&systemd_analyze).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    if version.split_whitespace().nth(1).and_then(|number| number.parse().ok()).is_none_or(|number: u32| number < 250) {
        return skip("systemd-analyze is older than 250");
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/larder.service");
    let folder = Folder::new();
    let copy = folder.path().join("larder.service");
    let service_file = std::fs::read_to_string(file).unwrap().replace("/usr/bin/larder", env!("CARGO_BIN_EXE_larder"));
    std::fs::write(&copy, service_file).unwrap();
    // Ignores warnings about other units of this machine.
    let verify = Command::new(&systemd_analyze).args(["verify", "--recursive-errors=no"]).arg(&copy).output().unwrap();
    let complaints = String::from_utf8_lossy(&verify.stderr).into_owned();
    assert!(verify.status.success() && !complaints.contains("larder.service"), "{verify:?}");
    let mut security = Command::new(&systemd_analyze);
    let security = security.args(["security", "--no-pager", "--offline=true", "--threshold=15"]).arg(&copy);
    let security = security.output().unwrap();
    assert!(security.status.success(), "{}", String::from_utf8_lossy(&security.stdout));
}

/// The configuration of the Debian package equals the one in the repository except for the store path.
#[tokio::test]
async fn the_packaged_configuration_differs_only_in_the_store_path() {
    let folder = Folder::new();
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir_all(folder.path().join("systemd")).unwrap();
    for file in ["mirror.toml", "systemd/package"] {
        std::fs::copy(repository.join(file), folder.path().join(file)).unwrap();
    }
    // A stand-in for cargo: only the files of the package matter here.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/true", bin.join("cargo")).unwrap();
    // And one for larder, of which the package takes pages and completions.
    let dist = folder.path().join("target/dist");
    std::fs::create_dir_all(&dist).unwrap();
    let page = "#!/bin/sh\nif [ \"$1\" = man ]; then mkdir -p \"$3\" && echo page >\"$3/larder.1\"; fi\n";
    std::fs::write(dist.join("larder"), page).unwrap();
    std::fs::set_permissions(dist.join("larder"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let packaging = Command::new(folder.path().join("systemd/package"))
        .env("PATH", path)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    assert!(packaging.status.success(), "{packaging:?}");

    let [repository_config, packaged] = ["mirror.toml", "target/package/mirror.toml"]
        .map(|file| std::fs::read_to_string(folder.path().join(file)).unwrap());
    let differing_lines: Vec<_> = repository_config
        .lines()
        .zip(packaged.lines())
        .filter(|(repository_config, packaged)| repository_config != packaged)
        .collect();
    assert_eq!(
        (differing_lines.len(), repository_config.lines().count()),
        (1, packaged.lines().count()),
        "{differing_lines:?}"
    );
    let empty_environment = |_: &str| None;
    let (config, warnings) =
        Config::parse(&packaged, std::path::Path::new("/etc/larder/mirror.toml"), &empty_environment).unwrap();
    assert_eq!((config.store.path.to_str(), warnings.len()), (Some("/var/lib/larder"), 0));
}
