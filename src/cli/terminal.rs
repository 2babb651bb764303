//! Output for people. Text is aligned, wrapped to the width of the terminal, with control characters escaped. Progress bars
//! are on a terminal only, redrawn below all other output of this process.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::time::Duration;

use anstyle::Style;
use bytesize::ByteSize;
use indicatif::{MultiProgress, ProgressBar, ProgressBarIter, ProgressDrawTarget, ProgressState, ProgressStyle};
use rustix::termios::tcgetwinsize;
use textwrap::{WordSeparator, WordSplitter};
use tokio::task::spawn_blocking;

use crate::config;
#[cfg(test)]
pub(super) use crate::wording::is_plain;
pub(super) use crate::wording::{
    escape_invisible as escape_for_terminal, format_seconds, format_timestamp, percent, plural, shell_word,
};

/// Wrapping to fewer columns would not help a reader.
const MIN_WIDTH: usize = 40;
/// Column where the text after a label begins.
const LABEL_WIDTH: usize = 13;

/// The command that runs, as a shell reads it.
pub(super) fn this_command() -> String {
    let words = std::env::args().skip(1).map(|word| shell_word(&word));
    std::iter::once("larder".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

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

/// Returns true if text on standard output may have colours: on a terminal, unless `NO_COLOR` or `TERM=dumb` is set.
pub(super) fn stdout_has_colour() -> bool {
    let environment = config::environment();
    let is_set = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
    let is_dumb = environment.get("TERM").is_some_and(|term| term == "dumb");
    width_of_stdout().is_some() && !is_set("NO_COLOR") && !is_dumb
}

/// Gives the first occurrence of `part` in a laid out text a style. Text is laid out without styles, which have no width.
pub(super) fn styled(text: &str, part: &str, style: Style) -> String {
    text.replacen(part, &format!("{style}{part}{style:#}"), 1)
}

/// The heading of a column of a table, by the side to which its cells are aligned.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column<'a> {
    /// Text.
    Left(&'a str),
    /// Numbers.
    Right(&'a str),
}

impl<'a> Column<'a> {
    fn heading(self) -> &'a str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }
}

/// Collects lines of output.
#[derive(Debug)]
pub(super) struct TextPage {
    width: Option<usize>,
    splits_words: bool,
    lines: Vec<String>,
}

impl TextPage {
    pub(super) fn of_width(width: Option<usize>) -> Self {
        Self { width: width.map(|width| width.max(MIN_WIDTH)), splits_words: true, lines: Vec::new() }
    }

    /// A page whose words are never split, so that they can be copied.
    pub(super) fn with_whole_words(width: Option<usize>) -> Self {
        Self { splits_words: false, ..Self::of_width(width) }
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

    /// A command to paste; never wrapped.
    pub(super) fn command(&mut self, command: &str) {
        self.push(format!("    {command}"));
    }

    /// A line that is never wrapped.
    pub(super) fn push(&mut self, line: String) {
        self.lines.push(line);
    }

    /// A table, without a header line if no column has a heading. The note of a row follows its cells, or goes below
    /// them where it would not fit.
    pub(super) fn columns<const N: usize>(&mut self, columns: [Column<'_>; N], rows: &[([String; N], String)]) {
        let widths: [usize; N] = std::array::from_fn(|index| {
            let cells = rows.iter().map(|(cells, _)| cells[index].chars().count());
            cells.chain([columns[index].heading().len()]).max().unwrap_or_default()
        });
        let line = |cells: [&str; N]| {
            let aligned = cells.iter().zip(columns).zip(widths).map(|((cell, column), width)| match column {
                Column::Left(_) => format!("{cell:width$}"),
                Column::Right(_) => format!("{cell:>width$}"),
            });
            format!("  {}", aligned.collect::<Vec<_>>().join("  "))
        };
        let header = columns.map(Column::heading);
        if header.iter().any(|heading| !heading.is_empty()) {
            self.lines.push(line(header).trim_end().to_owned());
        }
        for (cells, note) in rows {
            let row = line(cells.each_ref().map(String::as_str));
            let joined_length = row.chars().count() + 2 + note.chars().count();
            if note.is_empty() || self.width.is_none_or(|width| joined_length <= width) {
                self.lines.push(format!("{row}  {note}").trim_end().to_owned());
            } else {
                self.lines.push(row.trim_end().to_owned());
                self.push_with_prefix("    ", note);
            }
        }
    }

    /// A text after a prefix; further lines are indented to the width of the prefix.
    pub(super) fn push_with_prefix(&mut self, prefix: &str, text: &str) {
        let margin = prefix.chars().count();
        let available = self.width.map_or(usize::MAX, |width| width.saturating_sub(margin));
        for (index, line) in wrapped(text, available, self.splits_words).into_iter().enumerate() {
            let start = if index == 0 { prefix.to_owned() } else { " ".repeat(margin) };
            self.lines.push(format!("{start}{line}").trim_end().to_owned());
        }
    }

    /// A label with its subject, and foreign notes about it in the same column below.
    pub(super) fn outcome<'a>(&mut self, label: &str, subject: &str, notes: impl IntoIterator<Item = &'a String>) {
        self.push_with_prefix(label, subject);
        let margin = " ".repeat(label.chars().count());
        notes.into_iter().for_each(|note| self.push_with_prefix(&margin, &escape_for_terminal(note)));
    }

    pub(super) fn text(self) -> String {
        self.lines.join("\n")
    }
}

/// Wraps a text between words; splits a longer word if `splits_words`.
fn wrapped(text: &str, width: usize, splits_words: bool) -> Vec<Cow<'_, str>> {
    let options = textwrap::Options::new(width.max(1)).break_words(splits_words);
    let options = options.word_separator(WordSeparator::AsciiSpace).word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options)
}

/// Formats the time since a moment, in its largest unit: `5 min ago`.
pub(super) fn format_age(age: Duration) -> String {
    match age.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} ago", format_seconds(seconds)),
    }
}

const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Connects `send` and `receive` by a pipe, and shows the bytes that pass. `incomplete` explains a receiver's error.
pub(super) async fn through_pipe<T: Send + 'static>(
    label: &'static str,
    total: Option<u64>,
    send: impl AsyncFnOnce(ProgressBarIter<PipeWriter>) -> anyhow::Result<()>,
    receive: impl FnOnce(PipeReader) -> io::Result<T> + Send + 'static,
    incomplete: impl FnOnce(io::Error) -> anyhow::Error,
) -> anyhow::Result<T> {
    let (reader, writer) = io::pipe()?;
    let progress = TerminalBar::of_transfer(label, total);
    let receiving = spawn_blocking(move || receive(reader));
    let sent = send(progress.0.wrap_write(writer)).await;
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

/// Draws in a second, at most: so many that all lines of a report change together.
const REDRAW_HZ: u8 = 100;

/// The bars on the terminal: on standard error, below all other output of this process.
static BARS: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(REDRAW_HZ)));

/// Writes while the bars are hidden. `write` must not call this function again: it holds a lock.
pub(super) fn with_bars_hidden<T>(write: impl FnOnce() -> T) -> T {
    // A terminal that is gone has no bars any more, and `suspend` panics there.
    if BARS.clear().is_err() {
        BARS.set_draw_target(ProgressDrawTarget::hidden());
    }
    BARS.suspend(write)
}

/// True where bars are drawn: on a terminal.
pub(super) fn has_bars() -> bool {
    !BARS.is_hidden()
}

/// A line on the terminal that changes; removed on drop.
#[derive(Debug)]
pub(super) struct TerminalBar(pub(super) ProgressBar);

impl TerminalBar {
    /// A line below the others. `template` is that of indicatif, with `speed` for the bytes in a second, once there are any.
    pub(super) fn of_template(template: &str, length: Option<u64>) -> Self {
        Self::add(template, length, |bar| BARS.add(bar))
    }

    /// A line above this one.
    pub(super) fn above(&self, template: &str, length: Option<u64>) -> Self {
        Self::add(template, length, |bar| BARS.insert_before(&self.0, bar))
    }

    /// The progress of a transfer: `total` is its number of bytes, if available. The position of the bar counts them.
    pub(super) fn of_transfer(label: &'static str, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{prefix}  [{wide_bar}]  {binary_bytes} of {binary_total_bytes}  {speed}",
            None => "{prefix}  {binary_bytes}  {speed}",
        };
        let line = Self::of_template(template, total);
        line.0.set_prefix(label);
        if has_bars() {
            line.0.enable_steady_tick(REDRAW_INTERVAL);
        }
        line
    }

    fn add(template: &str, length: Option<u64>, add: impl FnOnce(ProgressBar) -> ProgressBar) -> Self {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
        let speed = |state: &ProgressState, text: &mut dyn fmt::Write| {
            let _ = write!(text, "{}", format_speed(state.per_sec() as u64));
        };
        let bar = add(ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden()));
        bar.set_style(style.with_key("speed", speed).progress_chars("=> "));
        Self(bar)
    }
}

impl Drop for TerminalBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
        BARS.remove(&self.0);
    }
}

/// Formats bytes in a second; empty for none.
pub(super) fn format_speed(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!("{}/s", ByteSize(bytes)) }
}

/// Columns for a line with a bar, now: the terminal may be resized. Some terminals wrap in the last column.
pub(super) fn bar_line_width() -> usize {
    width_of_stderr().unwrap_or(80).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wrapping_keeps_every_line_within_the_width_and_loses_no_letter(text in "[a-z]{0,30}( [a-zé]{1,90}){0,12}", width in 1usize..100) {
            let lines = wrapped(&text, width, true);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width));
            let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}
