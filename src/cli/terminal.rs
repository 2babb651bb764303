//! Output for people. Text is aligned, wrapped to the width of the terminal, with control characters escaped. Progress bars
//! are on a terminal only, redrawn below all other output of this process.

use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use bytesize::ByteSize;
use humantime::format_rfc3339_seconds;
use indicatif::{ProgressBar, ProgressBarIter, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use tokio::task::spawn_blocking;

use crate::clock::Timestamp;

/// Wrapping to fewer columns would not help a reader.
const MIN_WIDTH: usize = 40;
/// Column where the text after a label begins.
const LABEL_WIDTH: usize = 13;

/// Width of standard output; `None` where it is not a terminal, and text is not wrapped.
pub(super) fn width_of_stdout() -> Option<usize> {
    columns_of(std::io::stdout())
}

/// Width of standard error; `None` where it is not a terminal.
pub(super) fn width_of_stderr() -> Option<usize> {
    columns_of(std::io::stderr())
}

fn columns_of(stream: impl AsFd) -> Option<usize> {
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col))
}

/// Collects lines of output.
#[derive(Debug)]
pub(super) struct TextPage {
    width: Option<usize>,
    lines: Vec<String>,
}

impl TextPage {
    pub(super) fn of_width(width: Option<usize>) -> Self {
        Self { width: width.map(|width| width.max(MIN_WIDTH)), lines: Vec::new() }
    }

    /// Begins a group: its name and a text about the whole group.
    pub(super) fn group(&mut self, name: &str, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(String::new());
        }
        self.push_with_prefix(&format!("{name:LABEL_WIDTH$}"), text);
    }

    /// A label and its text.
    pub(super) fn row(&mut self, label: &str, text: &str) {
        let width = LABEL_WIDTH - 2;
        self.push_with_prefix(&format!("  {label:width$}"), text);
    }

    /// One entry, with an optional text about it below.
    pub(super) fn item(&mut self, text: &str, note: Option<&str>) {
        self.push_with_prefix("  ", text);
        if let Some(note) = note {
            self.push_with_prefix("    ", note);
        }
    }

    /// Adds a text about the entry above.
    pub(super) fn note(&mut self, note: &str) {
        if !note.is_empty() {
            self.push_with_prefix("    ", note);
        }
    }

    /// A final line, after an empty one.
    pub(super) fn final_line(&mut self, text: &str) {
        self.lines.push(String::new());
        self.push_with_prefix("", text);
    }

    /// A command to paste; never wrapped.
    pub(super) fn command(&mut self, command: &str) {
        self.lines.push(format!("    {command}"));
    }

    /// A table. The first column is left-aligned, the others right-aligned. The note of a row follows its cells, or
    /// goes below them where it would not fit.
    pub(super) fn columns<const N: usize>(&mut self, header: [&str; N], rows: &[([String; N], String)]) {
        let widths: [usize; N] = std::array::from_fn(|index| {
            let cells = rows.iter().map(|(cells, _)| cells[index].chars().count());
            cells.chain([header[index].len()]).max().unwrap_or_default()
        });
        let line = |cells: [&str; N]| {
            let aligned = cells.iter().zip(widths).enumerate().map(|(index, (cell, width))| match index {
                0 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            format!("  {}", aligned.collect::<Vec<_>>().join("  "))
        };
        self.lines.push(line(header).trim_end().to_owned());
        for (cells, note) in rows {
            let row = line(cells.each_ref().map(String::as_str));
            let joined_length = row.chars().count() + 2 + note.chars().count();
            if note.is_empty() || self.width.is_none_or(|width| joined_length <= width) {
                self.lines.push(format!("{row}  {note}").trim_end().to_owned());
            } else {
                self.lines.push(row);
                self.push_with_prefix("    ", note);
            }
        }
    }

    /// A text after a prefix; further lines are indented to the width of the prefix.
    pub(super) fn push_with_prefix(&mut self, prefix: &str, text: &str) {
        let margin = prefix.chars().count();
        let available = self.width.map_or(usize::MAX, |width| width.saturating_sub(margin));
        for (index, line) in wrapped(text, available).into_iter().enumerate() {
            let start = if index == 0 { prefix.to_owned() } else { " ".repeat(margin) };
            self.lines.push(format!("{start}{line}").trim_end().to_owned());
        }
    }

    pub(super) fn text(self) -> String {
        self.lines.join("\n")
    }
}

/// Wraps a text between words; a longer word is split.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let joined_length = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && joined_length > width {
            lines.push(std::mem::take(&mut line));
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        while line.chars().count() > width {
            let cut = line.char_indices().nth(width).map_or(line.len(), |(end, _)| end);
            let rest = line.split_off(cut);
            lines.push(std::mem::replace(&mut line, rest));
        }
    }
    lines.push(line);
    lines
}

/// Escapes control and bidirectional characters, so that foreign text cannot control the terminal.
pub(super) fn escape_for_terminal(text: &str) -> String {
    text.chars().flat_map(|c| if is_plain(c) { vec![c] } else { c.escape_unicode().collect() }).collect()
}

/// False for control characters, and for those that change the direction of the text around them.
pub(super) fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

pub(super) fn plural(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub(super) fn format_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => plural(seconds / 86_400, "day"),
    }
}

/// Formats a time as `2026-11-21 20:42:41 UTC`.
pub(super) fn format_timestamp(time: Timestamp) -> String {
    let since_1970 = std::time::Duration::from_secs(time.0);
    // A file may contain a year that has no calendar date.
    match std::time::SystemTime::UNIX_EPOCH.checked_add(since_1970).filter(|_| time.0 < 253_402_300_800) {
        Some(time) => format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC"),
        None => "an invalid time".to_owned(),
    }
}

/// A share in percent; `None` for a total of zero.
pub(super) fn percent(part: u64, total: u64) -> Option<u64> {
    u64::try_from(u128::from(part) * 100 / u128::from(total.max(1))).ok().filter(|_| total > 0)
}

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
pub(super) const MAX_BAR_WIDTH: usize = 40;
const MIN_BAR_WIDTH: usize = 10;

/// The progress of a transfer in bytes: a bar on a terminal until it is dropped, nothing elsewhere.
#[derive(Debug)]
pub(super) struct TransferProgress {
    /// Counts the bytes.
    pub(super) bytes: ProgressBar,
    _lines: Option<TerminalLines>,
}

impl TransferProgress {
    /// Begins a transfer. `total` is the number of bytes, if available.
    pub(super) fn begin(label: &'static str, total: Option<u64>) -> Self {
        if width_of_stderr().is_none() {
            return Self { bytes: ProgressBar::hidden(), _lines: None };
        }
        let render = move |state: &ProgressState, line: &mut dyn fmt::Write| {
            let text = progress_line(label, state.pos(), total, state.elapsed(), bar_line_width());
            // Writing to a string cannot fail.
            let _ = line.write_str(&text);
        };
        let lines = TerminalLines::with_style(line_style("{line}").with_key("line", render));
        lines.bar.enable_steady_tick(REDRAW_INTERVAL);
        Self { bytes: lines.bar.clone(), _lines: Some(lines) }
    }
}

/// Connects `send` and `receive` by a pipe, and shows the bytes that pass. `incomplete` explains a receiver's error.
pub(super) async fn through_pipe<T: Send + 'static>(
    label: &'static str,
    total: Option<u64>,
    send: impl AsyncFnOnce(ProgressBarIter<PipeWriter>) -> anyhow::Result<()>,
    receive: impl FnOnce(PipeReader) -> io::Result<T> + Send + 'static,
    incomplete: impl FnOnce(io::Error) -> anyhow::Error,
) -> anyhow::Result<T> {
    let (reader, writer) = io::pipe()?;
    let progress = TransferProgress::begin(label, total);
    let receiving = spawn_blocking(move || receive(reader));
    let sent = send(progress.bytes.wrap_write(writer)).await;
    let received = receiving.await;
    drop(progress);
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

fn line_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Columns for a line with a bar, now: the terminal may be resized. Some terminals wrap in the last column.
pub(super) fn bar_line_width() -> usize {
    width_of_stderr().unwrap_or(80).saturating_sub(1)
}

/// Changing lines on the terminal; removed on drop.
#[derive(Debug)]
pub(super) struct TerminalLines {
    bar: ProgressBar,
    /// Terminal settings to restore, if they were changed.
    saved_settings: Option<Termios>,
}

impl TerminalLines {
    /// Lines on standard error; `None` where it is not a terminal.
    pub(super) fn on_stderr() -> Option<Self> {
        // The lines are rendered elsewhere, to the width of the terminal.
        width_of_stderr().map(|_| Self::with_style(line_style("{msg}")))
    }

    fn with_style(style: ProgressStyle) -> Self {
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_in_their_largest_unit_and_timestamps_are_calendar_dates() {
        let texts = [0, 59, 60, 3_599, 3_660, 86_399, 86_400, 259_200].map(format_seconds);
        assert_eq!(texts, ["0 s", "59 s", "1 min", "59 min", "1 h 1 min", "23 h 59 min", "1 day", "3 days"]);
        assert_eq!(format_timestamp(Timestamp(1_795_293_761)), "2026-11-21 20:42:41 UTC");
        assert_eq!(format_timestamp(Timestamp(u64::MAX)), "an invalid time");
        assert_eq!((percent(1, 0), percent(1, 3), percent(u64::MAX, u64::MAX)), (None, Some(33), Some(100)));
    }

    proptest! {
        #[test]
        fn wrapping_keeps_every_line_within_the_width_and_loses_no_letter(text in "[a-z]{0,30}( [a-zé]{1,90}){0,12}", width in 1usize..100) {
            let lines = wrapped(&text, width);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width));
            let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }

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
