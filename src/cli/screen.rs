//! What the standard output and the standard error share where both are one terminal: bars that are drawn again below
//! whatever else is written.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

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
pub(super) struct Bars {
    bar: ProgressBar,
    /// How the terminal was, where that was changed.
    before: Option<Termios>,
}

impl Bars {
    /// No lines yet.
    pub(super) fn on_stderr() -> Self {
        // Its lines are made elsewhere, to the width of the terminal.
        let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
        *DRAWN.lock() = Some(bar.clone());
        Self { bar, before: echo_no_control_characters() }
    }

    /// Draws these in place of those before.
    pub(super) fn draw(&self, lines: &[String]) {
        self.bar.set_message(lines.join("\n"));
        self.bar.tick();
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        *DRAWN.lock() = None;
        self.bar.finish_and_clear();
        if let Some(before) = &self.before
            && is_in_foreground()
        {
            // Whoever took the terminal away meanwhile has it as he wants it.
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Has the terminal write no `^C` where somebody presses it: that would go where the next bars are to be, and leave one
/// of those before standing.
fn echo_no_control_characters() -> Option<Termios> {
    if !is_in_foreground() {
        return None;
    }
    let before = tcgetattr(stdin()).ok()?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHOCTL);
    tcsetattr(stdin(), OptionalActions::Now, &quiet).ok()?;
    Some(before)
}

/// Whether the terminal is ours to change: who changes it from the background is stopped.
fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// The standard error, for the log: its lines go above the bars.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        beside_bars(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
