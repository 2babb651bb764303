//! The audit trail: a line of JSON for each decision, to a file or to the journal (`[audit]`). Nobody waits for it: lines that the
//! disk does not take in time are lost, counted and reported.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rustix::fs::{Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, fstat, stat};
use rustix::io::Errno;
use serde::Serialize;

use crate::config::AuditTarget;

/// The most lines that wait.
const QUEUED: usize = 8192;
/// The time in which lines gather: a thread that is woken for each, and a write of each, cost more than the line itself.
const GATHER: Duration = Duration::from_millis(10);
/// The most bytes that are written at once, about.
const BATCH_BYTES: usize = 1 << 20;
/// The socket of systemd's journal, and the beginning of an entry (its native protocol).
const JOURNAL: &str = "/run/systemd/journal/socket";
const JOURNAL_ENTRY: &[u8] = b"SYSLOG_IDENTIFIER=larder-audit\nPRIORITY=6\nMESSAGE=";
/// The longest wait for a file to open, and for the last lines at a stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two looks whether the file is still at its path.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The time between two lines of the log about a queue that is full.
const LOG_AGAIN: Duration = Duration::from_secs(10);

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
    /// The lines in the queue, about.
    queued: Arc<AtomicUsize>,
    counters: AuditCounters,
    /// The last line of the log about a queue that is full.
    logged: Mutex<Option<Instant>>,
}

/// The weight of a line. While half of the queue is full, only the heavy ones are taken: whoever fetches a package must not be able
/// to push its lines out with searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// About a package: a list, a document, an archive.
    Package,
    /// About anything else.
    Other,
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
    /// [`AuditError`], also for a disk that does not answer in time.
    pub async fn open(target: &AuditTarget, counters: AuditCounters) -> Result<Arc<Self>, AuditError> {
        let failed = |cause| AuditError { target: target.to_string(), cause };
        let (name, of_thread) = (target.to_string(), target.clone());
        let opening = tokio::task::spawn_blocking(move || Sink::open(&of_thread));
        let opened = tokio::time::timeout(PATIENCE, opening).await;
        let sink = match opened {
            Ok(Ok(sink)) => sink.map_err(failed)?,
            Ok(Err(_)) | Err(_) => return Err(failed(io::ErrorKind::TimedOut.into())),
        };
        let (queue, lines) = sync_channel(QUEUED);
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            sink,
            name,
            queued: Arc::clone(&queued),
            counters: counters.clone(),
            is_failing: false,
            told: counters.lost(),
        };
        let thread = std::thread::Builder::new().name("larder-audit".to_owned());
        thread.spawn(move || writer.run(&lines)).map_err(failed)?;
        Ok(Arc::new(Self { queue, queued, counters, logged: Mutex::default() }))
    }

    /// Adds a line, or counts it as lost.
    pub fn add(&self, weight: Weight, line: T) {
        let waiting = self.queued.fetch_add(1, Ordering::Relaxed);
        let has_room = weight == Weight::Package || waiting < QUEUED / 2;
        if !has_room || self.queue.try_send(Message::Line(line)).is_err() {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            self.counters.lost.inc();
            let mut logged = self.logged.lock();
            if logged.is_none_or(|logged| logged.elapsed() > LOG_AGAIN) {
                *logged = Some(Instant::now());
                tracing::error!("the audit trail is slower than the requests: lines are lost");
            }
        }
    }

    /// Waits until the lines so far are written, for a few seconds at most.
    pub async fn flush(self: &Arc<Self>) {
        let trail = Arc::clone(self);
        let flushing = tokio::task::spawn_blocking(move || {
            let (done, is_done) = sync_channel(1);
            let end = Instant::now() + PATIENCE;
            let mut message = Message::Flush(done);
            loop {
                match trail.queue.try_send(message) {
                    Ok(()) => return is_done.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok(),
                    Err(TrySendError::Full(back)) if Instant::now() < end => message = back,
                    Err(_) => return false,
                }
                std::thread::sleep(Duration::from_millis(5));
            }
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
        path: PathBuf,
        file: File,
        /// True if its last line has no end: the disk was full, or the machine went down.
        is_torn: bool,
        /// The last look whether the file is still at its path.
        looked: Instant,
    },
    Journal(UnixDatagram),
}

impl Sink {
    fn open(target: &AuditTarget) -> io::Result<Self> {
        match target {
            AuditTarget::Journal => journal().map(Self::Journal),
            AuditTarget::File(path) => {
                let (file, is_torn) = open_file(path)?;
                Ok(Self::File { path: path.clone(), file, is_torn, looked: Instant::now() })
            }
        }
    }

    /// Opens the file at the path anew if another one is there, or none: it was rotated, whatever became of the reload.
    fn follow_rotation(&mut self) -> io::Result<()> {
        let Self::File { path, file, is_torn, looked } = self else { return Ok(()) };
        if looked.elapsed() < LOOK_AGAIN {
            return Ok(());
        }
        *looked = Instant::now();
        let is_there = match (stat(path.as_path()), fstat(&*file)) {
            (Ok(there), Ok(open)) => (there.st_dev, there.st_ino) == (open.st_dev, open.st_ino),
            (Err(Errno::NOENT), _) => false,
            (Err(failure), _) | (_, Err(failure)) => return Err(failure.into()),
        };
        if !is_there {
            (*file, *is_torn) = open_file(path)?;
        }
        Ok(())
    }

    /// Writes whole lines. Returns how many of them arrived, and the failure of one that did not.
    fn write(&mut self, lines: &[u8]) -> (u64, Option<io::Error>) {
        let followed = self.follow_rotation().err();
        match self {
            Self::Journal(socket) => {
                let (mut arrived, mut failed) = (0, None);
                for line in lines.split_inclusive(|byte| *byte == b'\n') {
                    let entry = [JOURNAL_ENTRY, line].concat();
                    let sent = socket.send(&entry).or_else(|_| {
                        // The journal was restarted.
                        *socket = journal()?;
                        socket.send(&entry)
                    });
                    match sent {
                        Ok(_) => arrived += 1,
                        Err(failure) => failed = Some(failure),
                    }
                }
                (arrived, failed)
            }
            Self::File { file, is_torn, .. } => {
                if *is_torn {
                    match write_all(file, b"\n") {
                        (1, _) => *is_torn = false,
                        (_, failure) => return (0, failure),
                    }
                }
                let (written, failure) = write_all(file, lines);
                let written = lines.get(..written).unwrap_or_default();
                *is_torn = written.last().is_some_and(|last| *last != b'\n');
                (written.iter().filter(|byte| **byte == b'\n').count() as u64, failure.or(followed))
            }
        }
    }
}

fn journal() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(JOURNAL)?;
    Ok(socket)
}

/// Opens a file for more lines, or makes it, readable by its group whatever the umask is. Also returns true if its last line has no
/// end.
#[expect(clippy::disallowed_methods, reason = "the trail is not in the store: other programs rotate and read it")]
fn open_file(path: &Path) -> io::Result<(File, bool)> {
    // A named pipe that nobody reads would block.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut options = File::options();
    options.append(true).custom_flags(nonblocking);
    let file = match options.clone().create_new(true).mode(0o640).open(path) {
        Ok(file) => {
            fchmod(&file, Mode::from_raw_mode(0o640))?;
            file
        }
        Err(there) if there.kind() == io::ErrorKind::AlreadyExists => options.open(path)?,
        Err(failure) => return Err(failure),
    };
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(0, |metadata| metadata.len());
    let last = || {
        let mut last = [0];
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(length.checked_sub(1)?)).ok()?;
        file.read_exact(&mut last).ok()?;
        Some(last[0])
    };
    Ok((file, last().is_some_and(|last| last != b'\n')))
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
    queued: Arc<AtomicUsize>,
    counters: AuditCounters,
    is_failing: bool,
    /// The lost lines that a line of the trail tells.
    told: u64,
}

/// The line in place of lost ones.
#[derive(Serialize)]
struct LostLines {
    lost: u64,
}

impl Writer {
    /// Writes lines until nobody can add any more.
    fn run<T: Serialize>(mut self, messages: &Receiver<Message<T>>) {
        let (mut lines, mut is_idle) = (Vec::new(), true);
        while let Ok(first) = messages.recv() {
            if is_idle && matches!(first, Message::Line(_)) {
                std::thread::sleep(GATHER);
            }
            is_idle = true;
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
                    is_idle = false;
                    break;
                }
            }
            self.queued.fetch_sub(usize::try_from(count).unwrap_or_default(), Ordering::Relaxed);
            self.write(&lines, count);
            lines.clear();
            for done in flushes {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, lines: &[u8], count: u64) {
        let lost = self.counters.lost();
        if lost > self.told && count > 0 {
            let mut gap = serde_json::to_vec(&LostLines { lost: lost - self.told }).unwrap_or_default();
            gap.push(b'\n');
            if self.sink.write(&gap).0 == 1 {
                self.told = lost;
            }
        }
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
        let trail = AuditTrail::open(&AuditTarget::File("/dev/full".into()), counters.clone()).await.unwrap();
        (0..3).for_each(|line| trail.add(Weight::Package, line));
        trail.flush().await;
        assert_eq!((counters.written.get(), counters.lost()), (0, 3));
    }

    #[tokio::test]
    async fn lines_are_added_to_those_of_before_and_none_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        for _ in 0..2 {
            let trail = AuditTrail::open(&AuditTarget::File(file.clone()), AuditCounters::default()).await.unwrap();
            (0..2000).for_each(|line| trail.add(Weight::Package, line));
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
            let target = AuditTarget::File(path.into());
            let text = AuditTrail::<u8>::open(&target, AuditCounters::default()).await.unwrap_err().to_string();
            assert!(text.starts_with(&format!("[audit] path: {path} cannot be opened: ")), "{text}");
        }
    }

    /// A power cut leaves half a line, and a rotation another file at the path: no line is glued to the half one, and none goes to
    /// a file that nobody finds.
    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a test makes and reads the files")]
    async fn half_a_line_and_a_rotation_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (file, rotated) = (folder.path().join("audit.jsonl"), folder.path().join("audit.jsonl.1"));
        std::fs::write(&file, "{\"half").unwrap();
        let trail = AuditTrail::open(&AuditTarget::File(file.clone()), AuditCounters::default()).await.unwrap();
        trail.add(Weight::Package, 1);
        trail.flush().await;
        std::fs::rename(&file, &rotated).unwrap();
        let mut line = 1;
        while !file.exists() {
            line += 1;
            trail.add(Weight::Package, line);
            trail.flush().await;
        }
        let text = [rotated, file].map(|file| std::fs::read_to_string(file).unwrap()).concat();
        let expected: String = (1..=line).map(|line| format!("{line}\n")).collect();
        assert_eq!(text, format!("{{\"half\n{expected}"));
    }
}
