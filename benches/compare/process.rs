//! Child processes that end with their handle, and their processor time and memory.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, kill_process_group, setrlimit};

/// Time for a process to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The unit of processor time in `/proc` (USER_HZ).
const TICKS_PER_SECOND: u64 = 100;

/// A process and its children. Dropping it ends them, also after a panic or Ctrl-C.
pub(crate) struct Running(Child);

impl Running {
    /// Starts the command in its own process group, so that no child of it outlives the handle.
    pub(crate) fn start(command: &mut Command) -> std::io::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        command.process_group(0).spawn().map(Self)
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Process ids of the process and its children.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let parent = self.0.id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        [parent].into_iter().chain(children.split_whitespace().filter_map(|id| id.parse().ok())).collect()
    }

    /// Sends SIGTERM, and SIGKILL after a timeout; returns the status unless SIGKILL was needed.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(ended)) = self.0.try_wait() {
            return Some(ended);
        }
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            if let Ok(Some(ended)) = self.0.try_wait() {
                return Some(ended);
            }
            sleep(Duration::from_millis(5));
        }
        self.kill();
        None
    }

    /// Sends SIGKILL to the whole process group.
    pub(crate) fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A program on PATH or in /usr/sbin, where distributions install servers.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Lets this process have so many connections: each needs a file descriptor.
pub(crate) fn raise_file_limit(connections: usize) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let needed = connections as u64 + 500;
    ensure!(limit.maximum.is_none_or(|hard| hard >= needed), "the hard limit of open files is below {needed}");
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum.or(limit.current), ..limit })?;
    Ok(())
}

/// The processor time these processes have taken, in user and in kernel mode.
pub(crate) fn processor_time(processes: &[u32]) -> Duration {
    let ticks: u64 = processes
        .iter()
        .filter_map(|process| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            // The name, in parentheses, may contain any character.
            let after_name = stat.rsplit_once(')')?.1;
            let mut fields = after_name.split_whitespace().skip(11);
            Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
        })
        .sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// The processor time of all children of this process that have ended, and of theirs.
pub(crate) fn own_children_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, after_name)| after_name);
    let ticks: u64 = after_name.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// The anonymous memory of these processes (`RssAnon`), in bytes.
pub(crate) fn anonymous_memory(processes: &[u32]) -> u64 {
    let kib = |process: &u32| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let field = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        field.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    processes.iter().filter_map(kib).sum::<u64>() * 1024
}
