//! Progress bars on a terminal, redrawn below all other output of this process; nothing elsewhere.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::task::{JoinHandle, spawn_blocking};

use super::text::width_of_stderr;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
pub(super) const MAX_BAR_WIDTH: usize = 40;
const MIN_BAR_WIDTH: usize = 10;

/// Shared byte counter.
#[derive(Debug, Clone, Default)]
pub(super) struct ByteCounter(Arc<AtomicU64>);

impl ByteCounter {
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts the bytes that are written.
#[derive(Debug)]
pub(super) struct CountingIo<T> {
    pub(super) inner: T,
    pub(super) bytes: ByteCounter,
}

impl<W: Write> Write for CountingIo<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes.add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Draws a progress bar until it is dropped.
#[derive(Debug)]
pub(super) struct ProgressTask(Option<JoinHandle<()>>);

impl ProgressTask {
    /// Starts task if standard error is a terminal. `total` is the number of bytes, if available.
    pub(super) fn begin(label: &'static str, bytes: &ByteCounter, total: Option<u64>) -> Self {
        if width_of_stderr().is_none() {
            return Self(None);
        }
        let bytes = bytes.clone();
        Self(Some(tokio::spawn(async move {
            let (bars, began) = (TerminalLines::on_stderr(), Instant::now());
            loop {
                // Some terminals wrap in the last column.
                let width = width_of_stderr().unwrap_or(80).saturating_sub(1);
                bars.draw(&[progress_line(label, bytes.bytes(), total, began.elapsed(), width)]);
                tokio::time::sleep(REDRAW_INTERVAL).await;
            }
        })))
    }

    /// Removes the bar from the terminal.
    pub(super) async fn end(mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
            // The task may still be writing to the terminal.
            let _ = task.await;
        }
    }
}

impl Drop for ProgressTask {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Connects `send` and `receive` by a pipe, and shows the bytes that pass. `incomplete` explains a receiver's error.
pub(super) async fn through_pipe<T: Send + 'static>(
    label: &'static str,
    total: Option<u64>,
    send: impl AsyncFnOnce(CountingIo<PipeWriter>) -> anyhow::Result<()>,
    receive: impl FnOnce(PipeReader) -> io::Result<T> + Send + 'static,
    incomplete: impl FnOnce(io::Error) -> anyhow::Error,
) -> anyhow::Result<T> {
    let (reader, inner) = io::pipe()?;
    let bytes = ByteCounter::default();
    let progress = ProgressTask::begin(label, &bytes, total);
    let receiving = spawn_blocking(move || receive(reader));
    let sent = send(CountingIo { inner, bytes }).await;
    let received = receiving.await;
    progress.end().await;
    match (sent, received?) {
        (Ok(()), Ok(received)) => Ok(received),
        // A broken transfer truncates what is received; the sender's error is the cause.
        (Err(sent), Err(received)) if received.kind() == io::ErrorKind::UnexpectedEof => Err(sent),
        (Err(sent), Ok(_)) => Err(sent),
        (_, Err(received)) => Err(incomplete(received)),
    }
}

/// Renders `[====>    ]` in `width` columns; empty for an unknown share.
pub(super) fn bar(share: Option<(u64, u64)>, width: usize) -> String {
    let inside = width.saturating_sub(2);
    let filled = share
        .map_or(0, |(done, total)| (u128::from(done.min(total)) * inside as u128 / u128::from(total.max(1))) as usize);
    let head = if filled > 0 && filled < inside { ">" } else { "" };
    let done = "=".repeat(filled.saturating_sub(head.len()));
    format!("[{:inside$}]", format!("{done}{head}"))
}

/// Renders `writing  [=====>      ]  12.0 of 40.1 MiB  8.0 MiB/s`.
fn progress_line(label: &str, bytes: u64, total: Option<u64>, elapsed: Duration, width: usize) -> String {
    let speed = match elapsed.as_secs_f64() {
        seconds if seconds >= 0.5 => format!("  {}/s", ByteSize((bytes as f64 / seconds) as u64)),
        _ => String::new(),
    };
    let progress = match total.filter(|total| *total > 0) {
        Some(total) => format!("{} of {}{speed}", ByteSize(bytes.min(total)), ByteSize(total)),
        None => format!("{}{speed}", ByteSize(bytes)),
    };
    let available = width.saturating_sub(label.chars().count() + progress.chars().count() + 4);
    let line = match total.filter(|total| *total > 0 && available >= MIN_BAR_WIDTH) {
        Some(total) => format!("{label}  {}  {progress}", bar(Some((bytes, total)), available.min(MAX_BAR_WIDTH))),
        None => format!("{label}  {progress}"),
    };
    line.chars().take(width).collect()
}

/// The bars on the terminal. All lines are one bar, so that they change together.
static ACTIVE_BARS: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes while the bars are hidden. `write` must not call this function again: it holds the lock.
pub(super) fn with_bars_hidden<T>(write: impl FnOnce() -> T) -> T {
    match &*ACTIVE_BARS.lock() {
        Some(bars) => bars.suspend(write),
        None => write(),
    }
}

/// Changing lines on the terminal; removed on drop.
#[derive(Debug)]
pub(super) struct TerminalLines {
    bar: ProgressBar,
    /// Terminal settings to restore, if they were changed.
    saved_settings: Option<Termios>,
}

impl TerminalLines {
    pub(super) fn on_stderr() -> Self {
        // The lines are rendered elsewhere, to the width of the terminal.
        let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        *ACTIVE_BARS.lock() = Some(bar.clone());
        Self { bar, saved_settings: disable_control_echo() }
    }

    /// Replaces the lines.
    pub(super) fn draw(&self, lines: &[String]) {
        self.bar.set_message(lines.join("\n"));
        self.bar.tick();
    }
}

impl Drop for TerminalLines {
    fn drop(&mut self) {
        *ACTIVE_BARS.lock() = None;
        self.bar.finish_and_clear();
        if let Some(saved) = &self.saved_settings
            && is_in_foreground()
        {
            // Restored only in the foreground: another program may own the terminal by now.
            let _ = tcsetattr(stdin(), OptionalActions::Now, saved);
        }
    }
}

/// Disables the echo of `^C`: it would move the cursor, and the next redraw would leave an old bar behind.
fn disable_control_echo() -> Option<Termios> {
    if !is_in_foreground() {
        return None;
    }
    let settings = tcgetattr(stdin()).ok()?;
    let mut quiet = settings.clone();
    quiet.local_modes.remove(LocalModes::ECHOCTL);
    tcsetattr(stdin(), OptionalActions::Now, &quiet).ok()?;
    Some(settings)
}

/// True in the foreground process group. Changing terminal settings from the background stops the process.
fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// Standard error for the log; its lines go above the bars.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        with_bars_hidden(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_fits_the_terminal_and_shows_bytes_and_speed() {
        let second = Duration::from_secs(1);
        assert_eq!(
            progress_line("applying", 20 << 20, Some(40 << 20), second, 79),
            "applying  [===============>                 ]  20.0 MiB of 40.0 MiB  20.0 MiB/s"
        );
        assert_eq!(progress_line("writing", 1024, None, second, 79), "writing  1.0 KiB  1.0 KiB/s");
        for width in [10, 20, 40, 79, 159] {
            for bytes in [0, 1, 5 << 20, u64::MAX] {
                assert!(progress_line("applying", bytes, Some(10 << 20), second, width).chars().count() <= width);
            }
        }
    }
}
