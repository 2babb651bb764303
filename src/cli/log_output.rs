//! Standard error for the log. Lines about requests come by the ten thousand in a second, so they are written together, a moment
//! later; any other line is written at once, after those before it.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::terminal::with_bars_hidden;
use crate::http::REQUEST_LOG;
use crate::wording::escape_format_characters;

/// The longest that a line about a request waits.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// The bytes of waiting lines at which they are written at once.
const MAX_WAITING_BYTES: usize = 64 * 1024;

/// The bytes that wait for an output that is busy.
const MAX_LATE_BYTES: usize = 1 << 20;

/// Writes log lines, above the bars of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogOutput;

/// The lines that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingLines {
    lines: Mutex<Vec<u8>>,
    has_lines: Condvar,
}

/// `None` where the system has no thread for them: then no line waits.
static WAITING: OnceLock<Option<&'static WaitingLines>> = OnceLock::new();

fn start_waiting_lines() -> Option<&'static WaitingLines> {
    let waiting: &'static WaitingLines = Box::leak(Box::default());
    let writer = std::thread::Builder::new().name("log".to_owned());
    writer.spawn(|| waiting.write_in_time()).ok().map(|_| waiting)
}

impl WaitingLines {
    fn add(&self, line: &[u8]) -> io::Result<()> {
        let mut lines = self.lines.lock();
        if lines.is_empty() {
            self.has_lines.notify_one();
        }
        lines.extend_from_slice(line);
        if lines.len() >= MAX_WAITING_BYTES { write_out(&mut lines) } else { Ok(()) }
    }

    fn write_now(&self) -> io::Result<()> {
        write_out(&mut self.lines.lock())
    }

    fn write_in_time(&self) {
        loop {
            let mut lines = self.lines.lock();
            self.has_lines.wait_while(&mut lines, |lines| lines.is_empty());
            drop(lines);
            std::thread::sleep(MAX_WAIT);
            // A log write that fails cannot be logged.
            let _ = self.write_now();
        }
    }
}

/// Writes what the output takes. The rest waits if the output is only busy, and is lost if it is gone, as any other line.
fn write_out(lines: &mut Vec<u8>) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut written = 0;
    let result = with_bars_hidden(|| {
        while written < lines.len() {
            match io::stderr().write(&lines[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    match &result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && lines.len() < MAX_LATE_BYTES => {
            lines.drain(..written);
        }
        _ => lines.clear(),
    }
    result
}

/// Writes the lines that wait, before the process ends.
pub(super) fn write_waiting_lines() {
    if let Some(waiting) = WAITING.get().copied().flatten() {
        let _ = waiting.write_now();
    }
}

/// Writes one kind of lines.
#[derive(Debug)]
pub(super) enum LineWriter {
    /// At once.
    Now,
    /// A moment later.
    Waiting(&'static WaitingLines),
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter::Now
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> LineWriter {
        let is_request = line.target() == REQUEST_LOG;
        let waiting = is_request.then(|| *WAITING.get_or_init(start_waiting_lines)).flatten();
        waiting.map_or(LineWriter::Now, LineWriter::Waiting)
    }
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The formatter escapes control characters, and leaves those that turn the text around them.
        let escaped = match str::from_utf8(bytes).map(escape_format_characters) {
            Ok(Cow::Owned(escaped)) => Cow::Owned(escaped.into_bytes()),
            _ => Cow::Borrowed(bytes),
        };
        match self {
            Self::Waiting(waiting) => waiting.add(&escaped)?,
            Self::Now => {
                write_waiting_lines();
                with_bars_hidden(|| io::stderr().write_all(&escaped))?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
