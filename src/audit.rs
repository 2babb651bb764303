//! The audit trail: a line of JSON for each decision, to a file or to the journal (`[audit]`). Nobody waits for it: lines that the
//! disk does not take in time are lost, counted and reported.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::Serialize;

use crate::config::AuditTarget;

/// The most lines that wait.
const QUEUED: usize = 8192;
/// The most bytes that are written at once, about.
const BATCH_BYTES: usize = 64 << 10;
/// The socket of systemd's journal, and the beginning of an entry (its native protocol).
const JOURNAL: &str = "/run/systemd/journal/socket";
const JOURNAL_ENTRY: &[u8] = b"SYSLOG_IDENTIFIER=larder-audit\nPRIORITY=6\nMESSAGE=";
/// The longest wait for the last lines at a stop.
const FLUSH: Duration = Duration::from_secs(5);

/// The lines written and lost since the start, shared by all copies.
#[derive(Debug, Clone, Default)]
pub struct AuditCounters {
    written: Counter,
    lost: Counter,
}

impl AuditCounters {
    /// Adds them to the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("larder_audit_lines", "Lines written to the audit trail", self.written.clone());
        registry.register(
            "larder_audit_lost_lines",
            "Lines that the audit trail did not take in time",
            self.lost.clone(),
        );
    }

    /// The lines lost since the start.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }
}

/// The audit trail cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("[audit] path: {target} cannot be opened: {cause}")]
pub struct AuditError {
    target: String,
    cause: io::Error,
}

/// An open audit trail of lines of one kind. A thread of its own writes them.
#[derive(Debug)]
pub struct AuditTrail<T> {
    queue: SyncSender<Message<T>>,
    counters: AuditCounters,
    /// True while lines are being lost because the queue is full.
    is_full: AtomicBool,
}

#[derive(Debug)]
enum Message<T> {
    Line(T),
    /// Answered when all lines before are written.
    Flush(SyncSender<()>),
}

impl<T: Serialize + Send + 'static> AuditTrail<T> {
    /// Opens a trail. A file is made if it is absent, and its lines are added to those that it has.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn open(target: &AuditTarget, counters: AuditCounters) -> Result<Arc<Self>, AuditError> {
        let failed = |cause| AuditError { target: target.to_string(), cause };
        let sink = Sink::open(target).map_err(failed)?;
        let (queue, lines) = sync_channel(QUEUED);
        let writer = Writer { sink, name: target.to_string(), counters: counters.clone(), is_failing: false };
        std::thread::Builder::new()
            .name("larder-audit".to_owned())
            .spawn(move || writer.run(&lines))
            .map_err(failed)?;
        Ok(Arc::new(Self { queue, counters, is_full: AtomicBool::new(false) }))
    }

    /// Adds a line, or counts it as lost.
    pub fn add(&self, line: T) {
        match self.queue.try_send(Message::Line(line)) {
            Ok(()) => {
                if self.is_full.load(Ordering::Relaxed) {
                    self.is_full.store(false, Ordering::Relaxed);
                }
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counters.lost.inc();
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    tracing::error!("the audit trail is slower than the requests: lines are lost");
                }
            }
        }
    }

    /// Waits until the lines so far are written, for a few seconds at most.
    pub async fn flush(self: &Arc<Self>) {
        let trail = Arc::clone(self);
        let flushing = tokio::task::spawn_blocking(move || {
            let (done, is_done) = sync_channel(1);
            // A full queue: its lines are being written, or are lost at the stop.
            trail.queue.try_send(Message::Flush(done)).is_ok() && is_done.recv_timeout(FLUSH).is_ok()
        });
        if !flushing.await.unwrap_or(false) {
            tracing::error!("the last lines of the audit trail could not be written in time");
        }
    }
}

/// The place of the lines.
#[derive(Debug)]
enum Sink {
    File {
        file: File,
        /// True if its last line has no end: the disk was full.
        is_torn: bool,
    },
    Journal(UnixDatagram),
}

impl Sink {
    #[expect(clippy::disallowed_methods, reason = "the trail is not in the store: other programs rotate and read it")]
    fn open(target: &AuditTarget) -> io::Result<Self> {
        match target {
            AuditTarget::Journal => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(JOURNAL)?;
                Ok(Self::Journal(socket))
            }
            AuditTarget::File(path) => {
                // A named pipe that nobody reads would block the start.
                let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
                let mut options = File::options();
                let file = options.append(true).create(true).mode(0o640).custom_flags(nonblocking).open(path)?;
                fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
                Ok(Self::File { file, is_torn: false })
            }
        }
    }

    /// Writes whole lines. Returns how many of them arrived, and the failure of the first that did not.
    fn write(&mut self, lines: &[u8]) -> (u64, Option<io::Error>) {
        match self {
            Self::Journal(socket) => {
                let mut arrived = 0;
                for line in lines.split_inclusive(|byte| *byte == b'\n') {
                    match socket.send(&[JOURNAL_ENTRY, line].concat()) {
                        Ok(_) => arrived += 1,
                        Err(failure) => return (arrived, Some(failure)),
                    }
                }
                (arrived, None)
            }
            Self::File { file, is_torn } => {
                let (written, failure) = match *is_torn {
                    true => match write_all(file, b"\n") {
                        (1, _) => write_all(file, lines),
                        (_, failure) => return (0, failure),
                    },
                    false => write_all(file, lines),
                };
                let written = lines.get(..written).unwrap_or_default();
                *is_torn = written.last().map_or(*is_torn && failure.is_some(), |last| *last != b'\n');
                (written.iter().filter(|byte| **byte == b'\n').count() as u64, failure)
            }
        }
    }
}

/// Writes bytes. Returns how many arrived, and the failure of the others.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(failure) if failure.kind() == io::ErrorKind::Interrupted => {}
            Err(failure) => return (written, Some(failure)),
        }
    }
    (written, None)
}

/// The thread that writes.
struct Writer {
    sink: Sink,
    /// The name of the target, for messages.
    name: String,
    counters: AuditCounters,
    is_failing: bool,
}

impl Writer {
    /// Writes lines until nobody can add any more.
    fn run<T: Serialize>(mut self, messages: &Receiver<Message<T>>) {
        let mut lines = Vec::new();
        while let Ok(first) = messages.recv() {
            let (mut count, mut flushes) = (0, Vec::new());
            for message in std::iter::once(first).chain(std::iter::from_fn(|| messages.try_recv().ok())) {
                match message {
                    Message::Line(line) => {
                        let start = lines.len();
                        match serde_json::to_writer(&mut lines, &line) {
                            Ok(()) => lines.push(b'\n'),
                            Err(_) => lines.truncate(start),
                        }
                        count += 1;
                    }
                    Message::Flush(done) => flushes.push(done),
                }
                if lines.len() >= BATCH_BYTES {
                    break;
                }
            }
            self.write(&lines, count);
            lines.clear();
            for done in flushes {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, lines: &[u8], count: u64) {
        let (arrived, failure) = self.sink.write(lines);
        self.counters.written.inc_by(arrived);
        self.counters.lost.inc_by(count.saturating_sub(arrived));
        match failure {
            Some(failure) if !self.is_failing => {
                tracing::error!(path = self.name, error = %failure, "the audit trail cannot be written: lines are lost");
                self.is_failing = true;
            }
            None if self.is_failing && arrived > 0 => {
                tracing::warn!(path = self.name, lost = self.counters.lost.get(), "the audit trail is written again");
                self.is_failing = false;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev/full` takes nothing.
    #[tokio::test]
    async fn lines_that_the_disk_does_not_take_are_counted() {
        let counters = AuditCounters::default();
        let trail = AuditTrail::open(&AuditTarget::File("/dev/full".into()), counters.clone()).unwrap();
        (0..3).for_each(|line| trail.add(line));
        trail.flush().await;
        assert_eq!((counters.written.get(), counters.lost()), (0, 3));
    }

    #[tokio::test]
    async fn lines_are_added_to_those_of_before_and_none_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        for _ in 0..2 {
            let trail = AuditTrail::open(&AuditTarget::File(file.clone()), AuditCounters::default()).unwrap();
            (0..2000).for_each(|line| trail.add(line));
            trail.flush().await;
        }
        #[expect(clippy::disallowed_methods, reason = "a test reads what was written")]
        let text = std::fs::read_to_string(&file).unwrap();
        let expected: String = (0..2000).chain(0..2000).map(|line| format!("{line}\n")).collect();
        assert_eq!(text, expected);
    }

    #[tokio::test]
    async fn what_cannot_be_opened_is_named() {
        for path in ["/nowhere/audit.jsonl", "/"] {
            let failed = AuditTrail::<u8>::open(&AuditTarget::File(path.into()), AuditCounters::default());
            let text = failed.unwrap_err().to_string();
            assert!(text.starts_with(&format!("[audit] path: {path} cannot be opened: ")), "{text}");
        }
    }
}
