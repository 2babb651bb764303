//! Numbers, times and foreign text as people read them: on the command line and on the pages for browsers.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::clock::Timestamp;

/// A number with its noun: `1 archive`, `2 archives`.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// A duration in its largest unit: `59 s`, `2 min`, `1 h 5 min`, `3 days`.
pub(crate) fn format_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => plural(seconds / 86_400, "day"),
    }
}

/// Formats a time as `2026-11-21 20:42:41 UTC`.
pub(crate) fn format_timestamp(time: Timestamp) -> String {
    time.date_time().replace('T', " ").replace('Z', " UTC")
}

/// A share in percent; `None` for a total of zero.
pub(crate) fn percent(part: u64, total: u64) -> Option<u64> {
    u64::try_from(u128::from(part) * 100 / u128::from(total.max(1))).ok().filter(|_| total > 0)
}

/// A word of a command to paste, quoted for a shell where it must be, without control characters.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@=+,%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => escape_invisible(&format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

/// Escapes control and bidirectional characters, so that foreign text can neither control a terminal nor look like other
/// text.
pub(crate) fn escape_invisible(text: &str) -> String {
    text.chars().flat_map(|c| if is_plain(c) { vec![c] } else { c.escape_unicode().collect() }).collect()
}

/// Escapes the characters that [`escape_invisible`] escapes, but for control characters, as JSON does: for lines of a log and
/// for JSON, where they stand in strings alone.
pub(crate) fn escape_format_characters(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| !c.is_control() && !is_plain(c);
    // Most lines are, and a look at their bytes is many times faster.
    if text.is_ascii() || !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().fold(String::with_capacity(text.len() + 16), |mut escaped, c| {
        if is_hidden(c) {
            // All of them are in the basic plane.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
        escaped
    });
    Cow::Owned(escaped)
}

/// False for control characters, and for those that change the direction of the text around them.
pub(crate) fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_characters_are_escaped_in_json_without_another_value() {
        let text = "a\u{202e}b\u{feff}\u{61c}\té";
        let json = serde_json::to_string(text).unwrap();
        let escaped = escape_format_characters(&json);
        assert_eq!(escaped, "\"a\\u202eb\\ufeff\\u061c\\té\"");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        assert!(matches!(escape_format_characters("plain\n\u{1b}[1m"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_word_of_a_command_cannot_become_another_command() {
        assert_eq!(shell_word("/registry/a.example/v1-x_y/1.0.0+b"), "/registry/a.example/v1-x_y/1.0.0+b");
        assert_eq!(shell_word("/x';id;'.zip"), r"'/x'\'';id;'\''.zip'");
        assert_eq!(shell_word("$(id)"), "'$(id)'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a\u{1b}b"), "'a\\u{1b}b'");
    }

    #[test]
    fn durations_are_in_their_largest_unit_and_timestamps_are_calendar_dates() {
        let texts = [0, 59, 60, 3_599, 3_660, 86_399, 86_400, 259_200].map(format_seconds);
        assert_eq!(texts, ["0 s", "59 s", "1 min", "59 min", "1 h 1 min", "23 h 59 min", "1 day", "3 days"]);
        assert_eq!(format_timestamp(Timestamp(1_795_293_761)), "2026-11-21 20:42:41 UTC");
        assert_eq!(format_timestamp(Timestamp(u64::MAX)), "9999-12-31 23:59:59 UTC");
        assert_eq!((percent(1, 0), percent(1, 3), percent(u64::MAX, u64::MAX)), (None, Some(33), Some(100)));
    }
}
