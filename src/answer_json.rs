//! JSON for people and scripts: answers of the admin API, and output with `--json`. Each [`Timestamp`] is a text in RFC
//! 3339, in UTC, in whole seconds: `2026-08-01T12:00:00Z`.
//!
//! Records and the files of bundles are written by serde_json alone: in them a time is its number of seconds since 1970.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use crate::clock::Timestamp;

/// Writes a value as compact JSON.
///
/// # Errors
/// The value has no JSON form.
pub(crate) fn to_vec(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Vec<u8>> {
    let mut json = Vec::new();
    to_writer(&mut json, value)?;
    Ok(json)
}

/// Writes a value as [`to_vec`] does.
///
/// # Errors
/// The value has no JSON form, or the writer fails.
pub(crate) fn to_writer(writer: impl io::Write, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(writer, TimesAsText))
}

/// Compact JSON with times as text.
struct TimesAsText;

impl Formatter for TimesAsText {
    /// Writes a time: nothing else serialises as a number of this size.
    fn write_u128<W: io::Write + ?Sized>(&mut self, writer: &mut W, seconds: u128) -> io::Result<()> {
        let time = Timestamp(u64::try_from(seconds).unwrap_or(u64::MAX));
        write!(writer, "\"{}\"", time.date_time())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "step", rename_all = "snake_case")]
    enum Step {
        Begun(Run),
        Ended { at: Option<Timestamp>, count: u64 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Run {
        started: Timestamp,
        ended: Option<Timestamp>,
        #[serde(flatten)]
        last: Last,
        runs: Vec<BTreeMap<String, Last>>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Last {
        seen: Timestamp,
        words: (u8, String),
    }

    const NOON: Timestamp = Timestamp(1_785_585_600);

    fn steps() -> Vec<(Step, String)> {
        let last = || Last { seen: Timestamp(0), words: (1, "é\"".to_owned()) };
        let runs = vec![BTreeMap::from([("one".to_owned(), last())])];
        let seen = r#""seen":"1970-01-01T00:00:00Z","words":[1,"é\""]"#;
        let begun = format!(
            r#"{{"step":"begun","started":"2026-08-01T12:00:00Z","ended":null,{seen},"runs":[{{"one":{{{seen}}}}}]}}"#
        );
        let ended = r#"{"step":"ended","at":"2026-08-01T12:00:00Z","count":7}"#.to_owned();
        vec![
            (Step::Begun(Run { started: NOON, ended: None, last: last(), runs }), begun),
            (Step::Ended { at: Some(NOON), count: 7 }, ended),
        ]
    }

    #[test]
    fn a_time_is_a_text_in_an_answer_and_a_number_in_a_file_and_both_are_read() {
        for (step, answer) in steps() {
            assert_eq!(String::from_utf8(to_vec(&step).unwrap()).unwrap(), answer);
            assert_eq!(serde_json::from_str::<Step>(&answer).unwrap(), step);
            let file = serde_json::to_string(&step).unwrap();
            assert_eq!(
                file,
                answer.replace("\"2026-08-01T12:00:00Z\"", "1785585600").replace("\"1970-01-01T00:00:00Z\"", "0")
            );
            assert_eq!(serde_json::from_str::<Step>(&file).unwrap(), step);
        }
    }

    #[test]
    fn what_is_no_time_is_no_timestamp() {
        for text in [r#""2026-08-01""#, r#""""#, "-1", "1.5", "null", r#""2026-13-01T00:00:00Z""#, "[]", "true"] {
            assert!(serde_json::from_str::<Timestamp>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn everything_else_is_the_json_of_serde_json() {
        let values = (u64::MAX, -7i64, 0.5f64, 'x', "\u{7}", (), [true, false], Some(Some(1u8)));
        assert_eq!(to_vec(&values).unwrap(), serde_json::to_vec(&values).unwrap());
    }
}
