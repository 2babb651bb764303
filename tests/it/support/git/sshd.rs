//! A real `sshd` on a port of 127.0.0.1, with throwaway keys, run as the tests' user. It allows `git-upload-pack` on
//! one folder only; it can stop answering, or close the connection in the middle.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::TEST_TIMEOUT;
use crate::support::ports::free_port;
use crate::support::programs::{find, skip};

/// A running `sshd`. Stopped when dropped.
pub(crate) struct Sshd {
    folder: TempDir,
    program: PathBuf,
    address: SocketAddr,
    user: String,
    child: Option<Child>,
}

impl Sshd {
    /// Serves a folder of repositories. Prints a note and returns `None` where sshd cannot run.
    pub(crate) async fn start(root: &Path) -> Option<Self> {
        Self::start_at(root, SocketAddr::from(([127, 0, 0, 1], free_port()))).await
    }

    /// Serves at this address. In a namespace of its own (`git::forge`) a test may use port 22.
    pub(crate) async fn start_at(root: &Path, address: SocketAddr) -> Option<Self> {
        let program = find("sshd")?;
        let keygen = find("ssh-keygen")?;
        let git = find("git")?;
        let folder = tempfile::Builder::new().prefix("larder-sshd-").tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        for name in ["host", "user"] {
            let file = path_of(name);
            let status =
                Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(file).status();
            assert!(status.unwrap().success());
        }
        fs::copy(path_of("user.pub"), path_of("authorized_keys")).unwrap();
        let known = known_hosts_line(address, &fs::read_to_string(path_of("host.pub")).unwrap());
        fs::write(path_of("known_hosts"), known).unwrap();
        let script = path_of("command");
        fs::write(&script, command(&git, root, folder.path())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path_of("sshd_config"), configuration(folder.path(), address)).unwrap();
        if rustix::process::geteuid().is_root() {
            // The folder that sshd needs for privilege separation; otherwise the service of its package makes it.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let user = String::from_utf8(user).unwrap().trim().to_owned();
        let mut sshd = Self { folder, program, address, user, child: None };
        sshd.restart().await.map_err(|reason| skip(&reason)).ok()?;
        Some(sshd)
    }

    /// Listens again, at the same port.
    pub(crate) async fn restart(&mut self) -> Result<(), String> {
        let log = self.folder.path().join("log");
        let mut command = Command::new(&self.program);
        command.args(["-D", "-f"]).arg(self.folder.path().join("sshd_config")).arg("-E").arg(&log);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = self.child.insert(child.map_err(|e| format!("sshd does not start: {e}"))?);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while TcpStream::connect(self.address).is_err() {
            let ended = child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("sshd does not listen at {} ({ended:?}): {log}", self.address));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// `ssh://USER@127.0.0.1:PORT/acme/net.git`.
    pub(crate) fn url(&self, repository: &str) -> String {
        format!("ssh://{}@{}/{repository}.git", self.user, self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The private key that the server accepts.
    pub(crate) fn key(&self) -> PathBuf {
        self.folder.path().join("user")
    }

    /// The known_hosts file for this server.
    pub(crate) fn known_hosts(&self) -> PathBuf {
        self.folder.path().join("known_hosts")
    }

    /// Adds another name of this server to the known_hosts file.
    pub(crate) fn known_as(&self, name: &str) {
        let key = fs::read_to_string(self.folder.path().join("host.pub")).unwrap();
        let known_hosts = fs::read_to_string(self.known_hosts()).unwrap();
        fs::write(self.known_hosts(), format!("{known_hosts}{name} {key}")).unwrap();
    }

    /// `GIT_SSH_COMMAND` of a client that the server accepts; it ignores the user's ssh configuration.
    pub(crate) fn client_command(&self) -> String {
        format!(
            "ssh -F /dev/null -i {} -o UserKnownHostsFile={} -o GlobalKnownHostsFile=/dev/null \
             -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes",
            self.key().display(),
            self.known_hosts().display()
        )
    }

    /// The commands that clients ran, in order.
    pub(crate) fn commands(&self) -> Vec<String> {
        let commands = fs::read_to_string(self.folder.path().join("commands")).unwrap_or_default();
        commands.lines().map(str::to_owned).collect()
    }

    /// From now on, clients are authenticated and then get no byte.
    pub(crate) fn hang(&self) {
        fs::write(self.folder.path().join("hang"), "").unwrap();
    }

    /// From now on, clients get this many bytes and then the connection ends.
    pub(crate) fn truncate(&self, after: usize) {
        fs::write(self.folder.path().join("break"), after.to_string()).unwrap();
    }

    /// Ends all faults.
    pub(crate) fn clear_faults(&self) {
        for fault in ["hang", "break"] {
            let _ = fs::remove_file(self.folder.path().join(fault));
        }
    }

    /// Stops listening; open sessions end with their clients.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

fn known_hosts_line(address: SocketAddr, key: &str) -> String {
    match address.port() {
        22 => format!("{} {key}", address.ip()),
        port => format!("[{}]:{port} {key}", address.ip()),
    }
}

fn configuration(folder: &Path, address: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "Port {}\nListenAddress {}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n\
         ForceCommand {folder}/command\nPidFile none\nStrictModes no\nUsePAM no\nUseDNS no\nPermitRootLogin yes\n\
         PubkeyAuthentication yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\n\
         AcceptEnv GIT_PROTOCOL\nX11Forwarding no\nMaxStartups 100:30:200\n",
        address.port(),
        address.ip(),
    )
}

/// The forced command of every session.
fn command(git: &Path, root: &Path, folder: &Path) -> String {
    let (git, root, folder) = (git.display(), root.display(), folder.display());
    format!(
        "#!/bin/sh\n\
         printf '%s\\n' \"$SSH_ORIGINAL_COMMAND\" >> {folder}/commands\n\
         [ -e {folder}/hang ] && exec sleep 600\n\
         case $SSH_ORIGINAL_COMMAND in\n\
         \"git-upload-pack '\"*\"'\" | \"git upload-pack '\"*\"'\") ;;\n\
         *) echo 'only git-upload-pack' >&2; exit 1 ;;\n\
         esac\n\
         path=${{SSH_ORIGINAL_COMMAND#*\\'}}; path=${{path%\\'}}\n\
         export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1\n\
         if [ -e {folder}/break ]; then\n\
         # Byte by byte: buffered bytes would come too late. The kill keeps git from waiting for the client.\n\
         {git} upload-pack \"{root}/${{path#/}}\" 2>/dev/null |\n\
         {{ dd bs=1 count=\"$(cat {folder}/break)\" 2>/dev/null; kill -9 $$; }}\n\
         fi\n\
         exec {git} upload-pack \"{root}/${{path#/}}\"\n"
    )
}
