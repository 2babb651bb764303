//! The client's process: inherits the terminal, gets each signal once, and gives its exit code.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use crate::cli::CaughtSignals;
use crate::config::text;

/// Names the client's configuration file, to Terraform, OpenTofu and every program that calls them.
const CONFIG_VARIABLE: &str = "TF_CLI_CONFIG_FILE";

/// A client that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{program}: {reason}")]
pub(in crate::cli) struct NotStarted {
    program: String,
    reason: String,
    /// The exit code that shells give: 127 if the program was not found, 126 otherwise.
    pub(in crate::cli) code: u8,
}

impl NotStarted {
    fn of(program: &OsString, error: &io::Error) -> Self {
        let program = program.to_string_lossy().into_owned();
        match error.kind() {
            io::ErrorKind::NotFound => {
                let reason = match program.contains('/') {
                    true if Path::new(&program).exists() => {
                        "its interpreter or loader does not exist; see the first line of a script, and that it ends as on Unix"
                            .to_owned()
                    }
                    true => "there is no such program".to_owned(),
                    false => "command not found: no folder of PATH has it; install it, or write its path".to_owned(),
                };
                Self { program, reason, code: 127 }
            }
            _ => Self { program, reason: format!("could not be started: {error}"), code: 126 },
        }
    }
}

/// Runs the client to its end; returns its exit code, or 128 and the number of the signal that ended it.
pub(super) async fn run(
    command: &[OsString],
    config_file: &Path,
    signals: &mut CaughtSignals,
) -> Result<u8, NotStarted> {
    let Some((program, arguments)) = command.split_first() else { return Ok(0) };
    let mut command = Command::new(program);
    command.args(arguments).env(CONFIG_VARIABLE, config_file);
    let group = SignalGroup::of_this_process();
    if group == SignalGroup::Own {
        command.process_group(0);
    }
    let mut client = command.spawn().map_err(|error| NotStarted::of(program, &error))?;
    loop {
        tokio::select! {
            // First the signal: the Ctrl-C that ended the client must not count once more for what larder does then.
            biased;
            signal = next_to_forward(signals, group) => {
                let client = client.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
                // A client that has ended meanwhile needs no signal.
                let _ = client.map(|client| kill_process(client, signal));
            }
            status = client.wait() => return status.map(exit_code).map_err(|error| NotStarted::of(program, &error)),
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let signal_code = status.signal().map(|signal| 128 + signal);
    // Every code of a process fits: the system keeps eight bits.
    status.code().or(signal_code).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The processes that get a signal together with the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalGroup {
    /// larder: a client of a terminal must be in the foreground with it, to read and to get Ctrl-C.
    Shared,
    /// None: programs such as timeout(1) and CI runners signal the whole group of their child, and a client that gets
    /// SIGTERM a second time from larder gives up its work at once. So larder alone gets the signal, and forwards it.
    Own,
}

impl SignalGroup {
    fn of_this_process() -> Self {
        let terminal = rustix::fs::open("/dev/tty", OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
        if terminal.is_ok() { Self::Shared } else { Self::Own }
    }
}

/// Catches the signals that would end this process before its client. One that was ignored when this process began stays
/// ignored, for the client too, as `nohup` means it.
pub(super) fn catch_signals() -> anyhow::Result<CaughtSignals> {
    let ignored = ignored_signals();
    let ending =
        [(Signal::INT, "SIGINT"), (Signal::QUIT, "SIGQUIT"), (Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP")];
    CaughtSignals::catch(ending.into_iter().filter(|(number, _)| ignored & (1 << (number.as_raw() - 1)) == 0))
}

/// Waits for a signal that the client does not get by itself: a terminal sends Ctrl-C and Ctrl-\ to its whole group.
async fn next_to_forward(signals: &mut CaughtSignals, group: SignalGroup) -> Signal {
    loop {
        match (signals.next().await, group) {
            (Signal::INT | Signal::QUIT, SignalGroup::Shared) => {}
            (signal, _) => return signal,
        }
    }
}

const MAX_STATUS_BYTES: u64 = 64 * 1024;

/// The signals that this process ignores since its start: bit N - 1 stands for signal N (proc(5), `SigIgn`). None where the
/// system has no such file.
fn ignored_signals() -> u64 {
    let status = text(Path::new("/proc/self/status"), MAX_STATUS_BYTES).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
