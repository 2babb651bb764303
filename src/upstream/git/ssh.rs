//! Git over ssh by a spawned `ssh` process. All of its settings are explicit: the resolved address, and the key and
//! host keys of a `[[credential]]`. It resolves no name, reads no user configuration and never prompts.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::GitRequest;
use super::blocking_bridge::WirePiece;
use super::repository::SshRepository;
use super::transport::ReceivedBytes;
use crate::config::SshFiles;
use crate::upstream::egress_policy::EgressRefusal;
use crate::upstream::error::{Fault, UpstreamError, sanitized};
use crate::upstream::outbound::{Connectivity, Outbound};

/// Size limit for the part of standard error that an error quotes.
const MAX_STDERR_BYTES: usize = 4096;
const PIECE: usize = 64 * 1024;
/// Time for `ssh` to exit after it closed its output.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Exit code of `ssh` for its own errors, as opposed to those of the remote command.
const SSH_ERROR_EXIT: i32 = 255;

impl Outbound {
    /// Connects to an ssh server and copies data both ways until one side ends. Tries the next address if one is
    /// unreachable.
    pub(super) async fn execute_ssh(
        &self,
        ask: GitRequest<'_>,
        repository: &SshRepository,
        output: mpsc::Sender<WirePiece>,
        mut input: mpsc::Receiver<Bytes>,
        awaited: &AtomicBool,
        received: &mut ReceivedBytes,
    ) -> Result<(), UpstreamError> {
        let failed = |fault| ask.failed(format!("ssh://{}", repository.host_and_port()), fault);
        let files = self.ssh_allowed(&ask, repository).map_err(|refusal| {
            self.traffic.refused(ask.upstream, &refusal);
            failed(Fault::Refused(refusal))
        })?;
        let mut last = Fault::NoSuchName(format!("{} has no address", repository.host));
        for address in self.ssh_addresses(repository).await.map_err(failed)? {
            let mut running = SshProcess::spawn(repository, address, files).map_err(failed)?;
            let first = running.next_output(awaited, self.first_byte_within()).await;
            match first {
                Ok(Some(first)) => {
                    let carried = self.copy_both_ways(ask, running, first, output, &mut input, awaited, received).await;
                    return carried.map_err(failed);
                }
                Ok(None) => last = running.exit_reason(files).await,
                Err(fault) => last = fault,
            }
            self.traffic.count_request(ask.upstream, None);
            // Another address helps only if this one could not be reached.
            if !matches!(last, Fault::Unreachable(_)) {
                break;
            }
        }
        Err(failed(last))
    }

    /// DESIGN, promise 8: ssh connects only to hosts of a `[[credential]]` for this upstream.
    fn ssh_allowed<'a>(&self, ask: &GitRequest<'a>, repository: &SshRepository) -> Result<&'a SshFiles, EgressRefusal> {
        if self.connectivity() == Connectivity::Offline {
            return Err(EgressRefusal::Offline);
        }
        ask.credential_scope.ssh_key_for(repository.host.as_str(), repository.port).ok_or_else(|| {
            EgressRefusal::NoSshKey { host: repository.host_and_port(), upstream: ask.upstream.to_string() }
        })
    }

    async fn ssh_addresses(&self, repository: &SshRepository) -> Result<Vec<IpAddr>, Fault> {
        let name = repository.host.as_str();
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let found = timeout(self.first_byte_within(), self.clients.addresses_of(name)).await;
        match found {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(Fault::NoSuchName(format!("{name}: {error}"))),
            Err(_) => Err(Fault::Slow(format!("its name {name} could not be looked up in time"))),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "both ends of a conversation, and its bounds")]
    async fn copy_both_ways(
        &self,
        ask: GitRequest<'_>,
        mut running: SshProcess,
        first: Bytes,
        output: mpsc::Sender<WirePiece>,
        input: &mut mpsc::Receiver<Bytes>,
        awaited: &AtomicBool,
        received: &mut ReceivedBytes,
    ) -> Result<(), Fault> {
        let brought = self.traffic.bytes_counter(ask.upstream);
        let mut stdin = running.stdin.take();
        let reading = async {
            while let Some(bytes) = input.recv().await {
                let Some(open) = &mut stdin else { continue };
                if open.write_all(&bytes).await.is_err() || open.flush().await.is_err() {
                    // The output or exit status of `ssh` has the reason.
                    stdin = None;
                }
            }
            stdin = None;
            std::future::pending::<()>().await;
        };
        let listening = async {
            let mut piece = Some(first);
            while let Some(bytes) = piece.take() {
                brought.inc_by(bytes.len() as u64);
                received.add(&bytes)?;
                if output.send(Some(bytes)).await.is_err() {
                    return Ok(());
                }
                piece = tokio::select! {
                    piece = running.next_output(awaited, self.git_limits.idle) => piece?,
                    () = output.closed() => return Ok(()),
                };
            }
            running.ended().await?;
            let _ = output.send(None).await;
            Ok(())
        };
        tokio::select! {
            listened = listening => listened,
            () = reading => Ok(()),
        }
    }
}

/// An `ssh` process in its own process group, killed on drop.
struct SshProcess {
    child: Child,
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    complaint: Option<JoinHandle<String>>,
}

impl SshProcess {
    fn spawn(repository: &SshRepository, address: IpAddr, files: &SshFiles) -> Result<Self, Fault> {
        let mut command = Command::new("ssh");
        command.args(arguments(repository, address, files)).env_clear().env("GIT_PROTOCOL", "version=2");
        if let Some(path) = path_of_programs() {
            command.env("PATH", path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Fault::Unreachable("there is no ssh on the machine of larder; install openssh-client there".to_owned())
            }
            _ => Fault::Unreachable(format!("ssh could not be started: {error}")),
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let piped = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let ((stdin, stdout), stderr) =
            piped.ok_or_else(|| Fault::Unreachable("ssh was started without pipes".to_owned()))?;
        let complaint = Some(tokio::spawn(read_stderr(stderr)));
        Ok(Self { child, group, stdin: Some(stdin), stdout, complaint })
    }

    /// Reads the next output; `None` at the end. The idle limit applies only while a reader waits.
    async fn next_output(&mut self, awaited: &AtomicBool, idle: Duration) -> Result<Option<Bytes>, Fault> {
        let mut piece = BytesMut::with_capacity(PIECE);
        loop {
            match timeout(idle, self.stdout.read_buf(&mut piece)).await {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(_)) => return Ok(Some(piece.freeze())),
                Ok(Err(error)) => return Err(Fault::Unreachable(error.to_string())),
                Err(_) if awaited.load(Ordering::Acquire) => {
                    return Err(Fault::Slow(format!("no byte within {} s", idle.as_secs())));
                }
                Err(_) => {}
            }
        }
    }

    /// Waits for the exit of `ssh`. Any exit code other than 0 is an error.
    async fn ended(&mut self) -> Result<(), Fault> {
        match self.status().await {
            Some(0) => Ok(()),
            _ => Err(Fault::Unreachable(format!("the connection broke off: {}", self.stderr_text().await))),
        }
    }

    async fn exit_reason(mut self, files: &SshFiles) -> Fault {
        let status = self.status().await;
        let stderr = self.stderr_text().await;
        let names_of_files = [(&files.key, "(the key)"), (&files.known_hosts, "(known_hosts)")];
        let stderr =
            names_of_files.iter().fold(stderr, |stderr, (path, name)| stderr.replace(&*path.to_string_lossy(), name));
        if status != Some(SSH_ERROR_EXIT) {
            return Fault::Unusable(format!("no repository: {stderr}"));
        }
        let is_about_trust = ["Host key verification failed", "Permission denied", "UNPROTECTED PRIVATE KEY"];
        if is_about_trust.iter().any(|text| stderr.contains(text)) {
            return Fault::Untrusted(format!("ssh said: {stderr}"));
        }
        Fault::Unreachable(format!("ssh said: {stderr}"))
    }

    async fn status(&mut self) -> Option<i32> {
        let status = timeout(END_WITHIN, self.child.wait()).await.ok()?.ok()?;
        // Reaped: its process id may be reused.
        self.group = None;
        status.code()
    }

    async fn stderr_text(&mut self) -> String {
        let Some(mut complaint) = self.complaint.take() else { return String::new() };
        match timeout(END_WITHIN, &mut complaint).await {
            Ok(stderr) => stderr.unwrap_or_default(),
            Err(_) => {
                complaint.abort();
                String::new()
            }
        }
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // The process may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(complaint) = &self.complaint {
            complaint.abort();
        }
    }
}

/// Returns the error output as one safe line. Reads all of it, so that `ssh` never blocks.
async fn read_stderr(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = vec![0; MAX_STDERR_BYTES];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let space = MAX_STDERR_BYTES - kept.len();
        kept.extend_from_slice(&buffer[..read.min(space)]);
    }
    sanitized(&String::from_utf8_lossy(&kept))
}

fn arguments(repository: &SshRepository, address: IpAddr, files: &SshFiles) -> Vec<OsString> {
    let options = [
        "BatchMode=yes".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        "UpdateHostKeys=no".to_owned(),
        "VerifyHostKeyDNS=no".to_owned(),
        "CheckHostIP=no".to_owned(),
        "CanonicalizeHostname=no".to_owned(),
        "IdentitiesOnly=yes".to_owned(),
        "IdentityAgent=none".to_owned(),
        "PreferredAuthentications=publickey".to_owned(),
        "ClearAllForwardings=yes".to_owned(),
        "PermitLocalCommand=no".to_owned(),
        "ProxyCommand=none".to_owned(),
        "ProxyJump=none".to_owned(),
        "ControlMaster=no".to_owned(),
        "ControlPath=none".to_owned(),
        "ConnectTimeout=10".to_owned(),
        "ServerAliveInterval=15".to_owned(),
        "SendEnv=GIT_PROTOCOL".to_owned(),
        "LogLevel=ERROR".to_owned(),
        format!("HostKeyAlias={}", repository.known_as()),
        format!("HostName={address}"),
    ];
    let mut arguments: Vec<OsString> = ["-F", "/dev/null", "-T", "-x", "-a"].map(OsString::from).into();
    for option in options {
        arguments.extend(["-o".into(), option.into()]);
    }
    let mut known_hosts = OsString::from("UserKnownHostsFile=\"");
    known_hosts.push(without_tokens(&files.known_hosts));
    known_hosts.push("\"");
    arguments.extend(["-o".into(), known_hosts, "-i".into(), without_tokens(&files.key)]);
    arguments.extend(["-p".into(), repository.port.to_string().into(), "-l".into(), repository.user.clone().into()]);
    let command = format!("git-upload-pack {}", quoted(&repository.path));
    arguments.extend(["--".into(), repository.host.as_str().into(), command.into()]);
    arguments
}

/// Escapes a path: `ssh` expands `%` tokens in it.
fn without_tokens(path: &Path) -> OsString {
    path.to_string_lossy().replace('%', "%%").into()
}

/// Quotes a text as one word for the remote shell, whichever shell that is. `!` is escaped for csh.
fn quoted(text: &str) -> String {
    let inside: String = text
        .chars()
        .map(|c| match c {
            '\'' => r"'\''".to_owned(),
            '!' => r"'\!'".to_owned(),
            c => c.to_string(),
        })
        .collect();
    format!("'{inside}'")
}

#[expect(clippy::disallowed_methods, reason = "where programs are is no matter of the configuration")]
fn path_of_programs() -> Option<OsString> {
    std::env::var_os("PATH")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Hostname;

    #[test]
    fn any_path_is_one_word_for_the_remote_shell() {
        assert_eq!(quoted("/a b"), "'/a b'");
        assert_eq!(quoted("/a'; rm -rf '/"), r"'/a'\''; rm -rf '\''/'");
        assert_eq!(quoted("a!b"), r"'a'\!'b'");
    }

    #[test]
    fn ssh_is_told_an_address_and_resolves_nothing() {
        let repository = SshRepository {
            user: "git".into(),
            host: Hostname::parse("git.corp.example").unwrap(),
            port: 2222,
            path: "/x y".into(),
        };
        let files = SshFiles { key: "/k%h".into(), known_hosts: "/known hosts".into() };
        let arguments = arguments(&repository, "192.0.2.7".parse().unwrap(), &files);
        for expected in [
            "HostName=192.0.2.7",
            "HostKeyAlias=[git.corp.example]:2222",
            "UserKnownHostsFile=\"/known hosts\"",
            "/k%%h",
            "git-upload-pack '/x y'",
        ] {
            assert!(arguments.iter().any(|told| told == expected), "{expected}: {arguments:?}");
        }
    }
}
