//! Progress of a transfer: a bar on a terminal, nothing elsewhere.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use tokio::task::JoinHandle;

use super::terminal::TerminalLines;
use super::text::width_of_stderr;

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
const MAX_BAR: usize = 40;
const SHORTEST_BAR: usize = 10;

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

/// Counts the bytes of a reader or writer.
#[derive(Debug)]
pub(super) struct CountingIo<T> {
    pub(super) inner: T,
    pub(super) bytes: ByteCounter,
}

impl<R: Read> Read for CountingIo<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes.add(read as u64);
        Ok(read)
    }
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
    /// Starts drawing if standard error is a terminal. `all` is the total number of bytes, if available.
    pub(super) fn begin(doing: &'static str, bytes: &ByteCounter, all: Option<u64>) -> Self {
        if width_of_stderr().is_none() {
            return Self(None);
        }
        let bytes = bytes.clone();
        Self(Some(tokio::spawn(async move {
            let (bars, began) = (TerminalLines::on_stderr(), Instant::now());
            loop {
                // Some terminals wrap in the last column.
                let width = width_of_stderr().unwrap_or(80).saturating_sub(1);
                bars.draw(&[line(doing, bytes.bytes(), all, began.elapsed(), width)]);
                tokio::time::sleep(REDRAW_INTERVAL).await;
            }
        })))
    }

    /// Removes the bar from the terminal.
    pub(super) async fn end(mut self) {
        if let Some(drawing) = self.0.take() {
            drawing.abort();
            // The task may still be writing to the terminal.
            let _ = drawing.await;
        }
    }
}

impl Drop for ProgressTask {
    fn drop(&mut self) {
        if let Some(drawing) = &self.0 {
            drawing.abort();
        }
    }
}

/// Renders `writing  [=====>      ]  12.0 of 40.1 MiB  8.0 MiB/s`.
fn line(doing: &str, bytes: u64, all: Option<u64>, since: Duration, width: usize) -> String {
    let speed = match since.as_secs_f64() {
        seconds if seconds >= 0.5 => format!("  {}/s", ByteSize((bytes as f64 / seconds) as u64)),
        _ => String::new(),
    };
    let progress = match all.filter(|all| *all > 0) {
        Some(all) => format!("{} of {}{speed}", ByteSize(bytes.min(all)), ByteSize(all)),
        None => format!("{}{speed}", ByteSize(bytes)),
    };
    let available = width.saturating_sub(doing.chars().count() + progress.chars().count() + 4);
    let line = match all.filter(|all| *all > 0 && available >= SHORTEST_BAR) {
        Some(all) => {
            let inside = available.min(MAX_BAR) - 2;
            let full = (u128::from(bytes.min(all)) * inside as u128 / u128::from(all)) as usize;
            let head = if full > 0 && full < inside { ">" } else { "" };
            let done = "=".repeat(full - head.len());
            format!("{doing}  [{:inside$}]  {progress}", format!("{done}{head}"))
        }
        None => format!("{doing}  {progress}"),
    };
    line.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_the_terminal_and_says_how_far_it_is() {
        let second = Duration::from_secs(1);
        assert_eq!(
            line("applying", 20 << 20, Some(40 << 20), second, 79),
            "applying  [===============>                 ]  20.0 MiB of 40.0 MiB  20.0 MiB/s"
        );
        assert_eq!(line("writing", 1024, None, second, 79), "writing  1.0 KiB  1.0 KiB/s");
        for width in [10, 20, 40, 79, 159] {
            for bytes in [0, 1, 5 << 20, u64::MAX] {
                assert!(line("applying", bytes, Some(10 << 20), second, width).chars().count() <= width);
            }
        }
    }
}
