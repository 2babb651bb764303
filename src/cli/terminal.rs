//! Coordinates standard output and standard error on one terminal: bars are redrawn below all other output.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

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
