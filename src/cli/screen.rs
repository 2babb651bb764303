//! What the standard output and the standard error share where both are one terminal: bars that are drawn again below
//! whatever else is written.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

/// The bars that are on the terminal now: all lines in one, so that they change together.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes while no bars are in the way. What writes must not come here again.
pub(super) fn beside_bars<T>(write: impl FnOnce() -> T) -> T {
    match &*DRAWN.lock() {
        Some(bars) => bars.suspend(write),
        None => write(),
    }
}

/// Lines on the terminal that change, until this is dropped.
#[derive(Debug)]
pub(super) struct Bars(ProgressBar);

impl Bars {
    /// No lines yet.
    pub(super) fn on_stderr() -> Self {
        // Its lines are made elsewhere, to the width of the terminal.
        let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        *DRAWN.lock() = Some(bar.clone());
        Self(bar)
    }

    /// Draws these in place of those before.
    pub(super) fn draw(&self, lines: &[String]) {
        self.0.set_message(lines.join("\n"));
        self.0.tick();
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        *DRAWN.lock() = None;
        self.0.finish_and_clear();
    }
}

/// The standard error, for the log: its lines go above the bars.
#[derive(Debug, Clone, Copy)]
pub struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        beside_bars(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
