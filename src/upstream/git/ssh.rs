//! Runs git over ssh by a spawned `ssh` process. All settings of `ssh` are explicit: the resolved address, and the key and
//! host keys of a `[[credential]]`. The process resolves no name, reads no user configuration and never prompts.

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
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::blocking_bridge::SshRequest;
use super::repository::SshRepository;
use crate::config::SshFiles;
use crate::upstream::egress_policy::EgressRefusal;
use crate::upstream::error::{Fault, UpstreamError, sanitized};
use crate::upstream::outbound::{Connectivity, Outbound};
use crate::upstream::request::UpstreamRequest;

/// Size limit for the part of standard error that an error quotes.
const MAX_STDERR_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 64 * 1024;
/// Time for `ssh` to exit after it closed its output.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Exit code of `ssh` for its own errors, as opposed to those of the remote command.
const SSH_ERROR_EXIT: i32 = 255;

impl Outbound {
    /// Connects to an ssh server and copies data both ways until one side ends. Tries the next address if one is
    /// unreachable.
    pub(super) async fn execute_ssh(&self, request: UpstreamRequest<'_>, ssh: SshRequest) -> Result<(), UpstreamError> {
        let repository = &ssh.repository;
        let origin = format!("ssh://{}", repository.host_and_port());
        let failed = |fault| request.failed(origin.clone(), fault);
        let files = self.ssh_files(&request, repository).map_err(|refusal| {
            self.traffic.count_refusal(request.upstream, &refusal);
            failed(Fault::Refused(refusal))
        })?;
        let mut last_fault = Fault::HostNotFound(format!("{} has no address", repository.host));
        for address in self.ssh_addresses(repository).await.map_err(failed)? {
            let mut process = SshProcess::spawn(repository, address, files).map_err(failed)?;
            match process.next_output(&ssh.reader_waits, self.first_byte_timeout()).await {
                Ok(Some(first_output)) => {
                    let copied = self.copy_both_ways(request, process, first_output, ssh).await;
                    return copied.map_err(failed);
                }
                Ok(None) => last_fault = process.exit_reason(files).await,
                Err(fault) => last_fault = fault,
            }
            self.traffic.count_request(request.upstream, None);
            // Another address helps only if this address could not be reached.
            if !matches!(last_fault, Fault::Unreachable(_)) {
                break;
            }
        }
        Err(failed(last_fault))
    }

    /// The key and host keys for a repository. Only hosts of a `[[credential]]` for this upstream are allowed (promise
    /// 8).
    fn ssh_files<'a>(
        &self,
        request: &UpstreamRequest<'a>,
        repository: &SshRepository,
    ) -> Result<&'a SshFiles, EgressRefusal> {
        if self.connectivity() == Connectivity::Offline {
            return Err(EgressRefusal::Offline);
        }
        request.credentials.ssh_key_for(repository.host.as_str(), repository.port).ok_or_else(|| {
            EgressRefusal::NoSshKey { host: repository.host_and_port(), upstream: request.upstream.to_string() }
        })
    }

    async fn ssh_addresses(&self, repository: &SshRepository) -> Result<Vec<IpAddr>, Fault> {
        let name = repository.host.as_str();
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let resolved = timeout(self.first_byte_timeout(), self.clients.addresses_of(name)).await;
        match resolved {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(Fault::HostNotFound(format!("{name}: {error}"))),
            Err(_) => Err(Fault::Slow(format!("its name {name} could not be looked up in time"))),
        }
    }

    async fn copy_both_ways(
        &self,
        request: UpstreamRequest<'_>,
        mut process: SshProcess,
        first_output: Bytes,
        ssh: SshRequest,
    ) -> Result<(), Fault> {
        let SshRequest { output, mut input, reader_waits, .. } = ssh;
        let bytes_counter = self.traffic.bytes_counter(request.upstream);
        let mut stdin = process.stdin.take();
        let copy_input = async {
            while let Some(bytes) = input.recv().await {
                let Some(open_stdin) = &mut stdin else { continue };
                if open_stdin.write_all(&bytes).await.is_err() || open_stdin.flush().await.is_err() {
                    // The output or exit status of `ssh` has the reason.
                    stdin = None;
                }
            }
            stdin = None;
            std::future::pending::<()>().await;
        };
        let copy_output = async {
            let mut chunk = Some(first_output);
            while let Some(bytes) = chunk.take() {
                bytes_counter.inc_by(bytes.len() as u64);
                if output.send(Some(bytes)).await.is_err() {
                    return Ok(());
                }
                chunk = tokio::select! {
                    chunk = process.next_output(&reader_waits, self.limits.git.idle) => chunk?,
                    () = output.closed() => return Ok(()),
                };
            }
            process.wait_for_success().await?;
            let _ = output.send(None).await;
            Ok(())
        };
        tokio::select! {
            result = copy_output => result,
            () = copy_input => Ok(()),
        }
    }
}

/// An `ssh` process in its own process group, killed on drop.
struct SshProcess {
    child: Child,
    /// The process group; `None` after the process has exited.
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    stderr_reader: AbortOnDropHandle<String>,
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
        let stderr_reader = AbortOnDropHandle::new(tokio::spawn(read_stderr(stderr)));
        Ok(Self { child, group, stdin: Some(stdin), stdout, stderr_reader })
    }

    /// Reads the next output; `None` at the end. The idle limit applies only while a reader waits.
    async fn next_output(&mut self, reader_waits: &AtomicBool, idle: Duration) -> Result<Option<Bytes>, Fault> {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        loop {
            match timeout(idle, self.stdout.read_buf(&mut chunk)).await {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(_)) => return Ok(Some(chunk.freeze())),
                Ok(Err(error)) => return Err(Fault::Unreachable(error.to_string())),
                Err(_) if reader_waits.load(Ordering::Acquire) => {
                    return Err(Fault::Slow(format!("no byte within {} s", idle.as_secs())));
                }
                Err(_) => {}
            }
        }
    }

    /// Waits for the exit of `ssh`. Any exit code other than 0 is an error.
    async fn wait_for_success(&mut self) -> Result<(), Fault> {
        match self.status().await {
            Some(0) => Ok(()),
            _ => Err(Fault::Unreachable(format!("the connection broke off: {}", self.stderr_text().await))),
        }
    }

    /// Waits for the exit of `ssh`, and makes the fault from its exit code and error output. The output may contain paths
    /// of key files, which are replaced.
    async fn exit_reason(mut self, files: &SshFiles) -> Fault {
        let status = self.status().await;
        let stderr = self.stderr_text().await;
        let placeholders = [(&files.key, "(the key)"), (&files.known_hosts, "(known_hosts)")];
        let stderr = placeholders
            .iter()
            .fold(stderr, |stderr, (path, placeholder)| stderr.replace(&*path.to_string_lossy(), placeholder));
        if status != Some(SSH_ERROR_EXIT) {
            return Fault::Unusable(format!("no repository: {stderr}"));
        }
        let trust_errors = ["Host key verification failed", "Permission denied", "UNPROTECTED PRIVATE KEY"];
        if trust_errors.iter().any(|text| stderr.contains(text)) {
            return Fault::Untrusted(format!("ssh said: {stderr}"));
        }
        Fault::Unreachable(format!("ssh said: {stderr}"))
    }

    /// Waits for the exit code.
    async fn status(&mut self) -> Option<i32> {
        let status = timeout(EXIT_TIMEOUT, self.child.wait()).await.ok()?.ok()?;
        // The process id may be reused from here on.
        self.group = None;
        status.code()
    }

    async fn stderr_text(&mut self) -> String {
        timeout(EXIT_TIMEOUT, &mut self.stderr_reader).await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // The process may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Returns the error output as one safe line. Reads all of it, so that `ssh` never blocks.
async fn read_stderr(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut quoted = Vec::new();
    let mut buffer = vec![0; MAX_STDERR_BYTES];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let space = MAX_STDERR_BYTES - quoted.len();
        quoted.extend_from_slice(&buffer[..read.min(space)]);
    }
    sanitized(&String::from_utf8_lossy(&quoted))
}

fn arguments(repository: &SshRepository, address: IpAddr, files: &SshFiles) -> Vec<String> {
    let fixed_options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "GlobalKnownHostsFile=/dev/null",
        "UpdateHostKeys=no",
        "VerifyHostKeyDNS=no",
        "CheckHostIP=no",
        "CanonicalizeHostname=no",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "PreferredAuthentications=publickey",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ProxyCommand=none",
        "ProxyJump=none",
        "ControlMaster=no",
        "ControlPath=none",
        "ConnectTimeout=10",
        "ServerAliveInterval=15",
        "SendEnv=GIT_PROTOCOL",
        "LogLevel=ERROR",
    ];
    let known_hosts = escape_tokens(&files.known_hosts);
    let options = [
        format!("HostKeyAlias={}", repository.known_hosts_name()),
        format!("HostName={address}"),
        format!("UserKnownHostsFile=\"{known_hosts}\""),
    ];
    let mut arguments: Vec<String> = ["-F", "/dev/null", "-T", "-x", "-a"].map(str::to_owned).into();
    for option in fixed_options.map(str::to_owned).into_iter().chain(options) {
        arguments.extend(["-o".to_owned(), option]);
    }
    let command = format!("git-upload-pack {}", shell_quoted(&repository.path));
    arguments.extend(["-i".to_owned(), escape_tokens(&files.key), "-p".to_owned(), repository.port.to_string()]);
    arguments.extend(["-l".to_owned(), repository.user.clone(), "--".to_owned(), repository.host.to_string(), command]);
    arguments
}

/// Escapes the `%` in a path, because `ssh` expands `%` tokens.
fn escape_tokens(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%%")
}

/// Quotes a text as one word for the remote shell, whichever shell that is. `!` is escaped for csh.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''").replace('!', r"'\!'"))
}

#[expect(clippy::disallowed_methods, reason = "the configuration does not say where programs are")]
fn path_of_programs() -> Option<OsString> {
    std::env::var_os("PATH")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Hostname;

    #[test]
    fn any_path_is_one_word_for_the_remote_shell() {
        assert_eq!(shell_quoted("/a b"), "'/a b'");
        assert_eq!(shell_quoted("/a'; rm -rf '/"), r"'/a'\''; rm -rf '\''/'");
        assert_eq!(shell_quoted("a!b"), r"'a'\!'b'");
    }

    #[test]
    fn ssh_gets_an_explicit_address_key_and_host_keys() {
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
            assert!(arguments.iter().any(|argument| argument == expected), "{expected}: {arguments:?}");
        }
    }
}
