//! Sets up the process log: its filter, and a format for its reader: a terminal, the journal, or a collector.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;
use std::iter::successors;

use rustix::fs::fstat;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::log_output::LogOutput;
use super::terminal::escape_for_terminal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogFormat {
    /// Lines with a time, for people.
    Text { colours: bool },
    /// Lines for systemd's journal, which adds the time: each begins with its priority (sd-daemon(3)).
    Journal,
    /// One JSON object per line, for log collectors.
    Json,
    /// Sentences among the other lines of a command.
    Sentences,
}

/// The process that logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoggingProcess {
    /// A service, with a log of its own.
    Service,
    /// A command, whose standard error is for the person who typed it.
    Command,
}

/// An invalid environment variable of the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LogConfigError {
    #[error("LARDER_LOG_FORMAT is {0:?}: write text or json")]
    Format(String),
    /// An invalid part of `LARDER_LOG`.
    #[error(
        "LARDER_LOG has {0:?}: write off, error, warn, info, debug or trace, or module=level, with a comma between them"
    )]
    Level(String),
}

/// The first part of `LARDER_LOG` without a valid level.
fn invalid_directive(directives: &str) -> Option<LogConfigError> {
    let has_level = |part: &str| part.rsplit('=').next().unwrap_or_default().trim().parse::<LevelFilter>().is_ok();
    let parts = directives
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty() && !part.contains(['[', '{']) && !part.contains("::"));
    parts.into_iter().find(|part| !has_level(part)).map(|part| LogConfigError::Level(part.to_owned()))
}

/// Starts logging to standard error, by `LARDER_LOG` or else by these directives. A command logs sentences, unless one of the
/// variables asks for a log.
///
/// # Errors
/// Returns [`LogConfigError`] for an invalid variable. The log then falls back to text.
#[expect(clippy::disallowed_methods, reason = "whatever is read first may have to be logged")]
pub(super) fn init_logging(process: LoggingProcess, directives: &str) -> Result<(), LogConfigError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let is_asked_for = ["LARDER_LOG", "LARDER_LOG_FORMAT"].iter().any(|name| variable(name).is_some());
    let (format, result) = match log_format(variable, std::io::stderr().is_terminal(), stderr_is_the_journal) {
        Ok(format) => (format, Ok(())),
        Err(bad) => (LogFormat::Text { colours: false }, Err(bad)),
    };
    let format = if process == LoggingProcess::Command && !is_asked_for { LogFormat::Sentences } else { format };
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let log_variable = variable("LARDER_LOG");
    let result = result.and(log_variable.as_deref().and_then(invalid_directive).map_or(Ok(()), Err));
    let filter = builder.parse_lossy(log_variable.as_deref().unwrap_or(directives));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogOutput)
        .with_target(false)
        // A log write that fails cannot be logged.
        .log_internal_errors(false);
    match format {
        LogFormat::Text { colours: true } => log.with_ansi(true).init(),
        LogFormat::Text { colours: false } => log.with_ansi(false).fmt_fields(PlainFields).init(),
        LogFormat::Journal => log
            .with_ansi(false)
            .fmt_fields(PlainFields)
            .event_format(WithPriority(Format::default().without_time()))
            .init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Sentences => log.with_ansi(false).event_format(AsSentence).init(),
    }
    result
}

fn log_format(
    variable: impl Fn(&str) -> Option<String>,
    is_terminal: bool,
    is_journal: impl Fn(&str) -> bool,
) -> Result<LogFormat, LogConfigError> {
    match variable("LARDER_LOG_FORMAT").as_deref() {
        Some("json") => Ok(LogFormat::Json),
        Some("text") | None if variable("JOURNAL_STREAM").is_some_and(|stream| is_journal(&stream)) => {
            Ok(LogFormat::Journal)
        }
        // https://no-color.org, https://bixense.com/clicolors
        Some("text") | None => {
            let is_disabled = variable("NO_COLOR").is_some() || variable("CLICOLOR").as_deref() == Some("0");
            let is_forced = variable("CLICOLOR_FORCE").is_some_and(|force| force != "0");
            Ok(LogFormat::Text { colours: !is_disabled && (is_terminal || is_forced) })
        }
        Some(other) => Err(LogConfigError::Format(other.to_owned())),
    }
}

/// Compares `JOURNAL_STREAM` (device and inode of the journal's socket) with standard error, which may have been
/// redirected since (systemd.exec(5)).
fn stderr_is_the_journal(stream: &str) -> bool {
    fstat(std::io::stderr()).is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
}

/// Formats lines that begin with a priority.
struct WithPriority(Format<Full, ()>);

impl<S> FormatEvent<S, PlainFields> for WithPriority
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, PlainFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Formats the fields of a line without colours: the message, then each as `name=value`, as the formatter of tracing does,
/// which takes several times longer because it asks for a colour at each step.
struct PlainFields;

impl<'writer> FormatFields<'writer> for PlainFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut written = PlainVisitor { writer, has_fields: false, result: Ok(()) };
        fields.record(&mut written);
        written.result
    }
}

struct PlainVisitor<'writer> {
    writer: Writer<'writer>,
    has_fields: bool,
    result: fmt::Result,
}

impl PlainVisitor<'_> {
    fn write(&mut self, field: &Field, write: impl FnOnce(&mut Escaped<'_, '_>) -> fmt::Result) {
        let name = field.name();
        // A library's own file and line.
        if self.result.is_err() || name.starts_with("log.") {
            return;
        }
        let mut writer = Escaped(&mut self.writer);
        let separated = if std::mem::replace(&mut self.has_fields, true) { writer.0.write_char(' ') } else { Ok(()) };
        let named = match name {
            "message" => separated,
            name => separated
                .and_then(|()| writer.0.write_str(name.strip_prefix("r#").unwrap_or(name)))
                .and_then(|()| writer.0.write_char('=')),
        };
        self.result = named.and_then(|()| write(&mut writer));
    }
}

impl Visit for PlainVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, |writer| match field.name() {
            "message" => writer.write_str(value),
            _ => write!(writer, "{value:?}"),
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, |writer| write!(writer.0, "{value}"));
    }

    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        self.write(field, |writer| {
            write!(writer, "{error}")?;
            let sources: Vec<String> =
                successors(error.source(), |error| error.source()).map(ToString::to_string).collect();
            if sources.is_empty() {
                Ok(())
            } else {
                write!(writer, " {}.sources=[{}]", field.name(), sources.join(", "))
            }
        });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, |writer| write!(writer, "{value:?}"));
    }
}

/// Writes text without characters that control a terminal: each as its number.
struct Escaped<'a, 'writer>(&'a mut Writer<'writer>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) || matches!(byte, b'\n' | b'\t');
        if text.bytes().all(is_plain) {
            return self.0.write_str(text);
        }
        text.chars().try_for_each(|character| match character {
            '\n' | '\t' | '\r' => self.0.write_char(character),
            character if character.is_control() => write!(self.0, "\\x{:02x}", u32::from(character)),
            character => self.0.write_char(character),
        })
    }
}

/// Formats events as the command's own messages: `larder: SENTENCE: CAUSE (NAME VALUE, …)`.
struct AsSentence;

impl<S> FormatEvent<S, DefaultFields> for AsSentence
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, DefaultFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        writeln!(writer, "larder: {}", escape_for_terminal(&sentence.to_string()))
    }
}

/// The fields of an event.
#[derive(Debug, Default)]
struct Sentence {
    text: String,
    cause: Option<String>,
    details: Vec<String>,
}

impl Visit for Sentence {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.text = value.to_owned(),
            // A library's own file and line.
            name if name.starts_with("log.") => {}
            "error" | "reason" => self.cause = Some(value.to_owned()),
            name => self.details.push(format!("{} {value}", name.replace('_', " "))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.cause.iter().try_for_each(|cause| write!(f, ": {cause}"))?;
        if self.details.is_empty() { Ok(()) } else { write!(f, " ({})", self.details.join(", ")) }
    }
}

/// Syslog severity (RFC 5424, section 6.2.1).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_format_with(variables: &[(&str, &str)], is_terminal: bool) -> Result<LogFormat, LogConfigError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        log_format(variable, is_terminal, |stream| stream == "8:1")
    }

    #[test]
    fn the_log_format_follows_the_terminal_the_journal_and_the_variables() {
        let text = |colours| Ok(LogFormat::Text { colours });
        assert_eq!(log_format_with(&[], true), text(true));
        assert_eq!(log_format_with(&[], false), text(false));
        assert_eq!(log_format_with(&[("NO_COLOR", "1")], true), text(false));
        assert_eq!(log_format_with(&[("CLICOLOR", "0")], true), text(false));
        assert_eq!(log_format_with(&[("CLICOLOR", "1")], true), text(true));
        assert_eq!(log_format_with(&[("CLICOLOR_FORCE", "1")], false), text(true));
        assert_eq!(log_format_with(&[("JOURNAL_STREAM", "8:1")], false), Ok(LogFormat::Journal));
        assert_eq!(log_format_with(&[("JOURNAL_STREAM", "8:2")], true), text(true), "the journal of another process");
        assert_eq!(
            log_format_with(&[("LARDER_LOG_FORMAT", "json"), ("JOURNAL_STREAM", "8:1")], false),
            Ok(LogFormat::Json)
        );
        assert_eq!(log_format_with(&[("LARDER_LOG_FORMAT", "text")], true), text(true));
        assert_eq!(
            log_format_with(&[("LARDER_LOG_FORMAT", "xml")], true),
            Err(LogConfigError::Format("xml".to_owned()))
        );
    }
}
