//! Reads one table of the parsed file. Every problem is recorded with its line, and reading goes on. `values` parses
//! the values. Problems and warnings are printed one per line as `FILE:LINE: KEY: TEXT`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::os;
use super::values::{self, ValueError, quoted};
use crate::wording::plural;

/// Maximum number of lines printed.
const MAX_SHOWN: usize = 50;

/// One message about a line of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The configuration file.
    pub file: PathBuf,
    /// Line, from 1; `None` for the whole file.
    pub line: Option<usize>,
    /// Key with its section, such as `server.listen`; empty for the whole section or file.
    pub key: String,
    /// The problem, and the remedy. Never contains a secret.
    pub text: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let key = if self.key.is_empty() { String::new() } else { format!(": {}", self.key) };
        write!(f, "{}{line}{key}: {}", self.file.display(), self.text)
    }
}

/// All problems of a configuration file, at least one, in line order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Diagnostic>);

impl Problems {
    /// The problems, in line order.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.0
    }

    pub(super) fn new(mut diagnostics: Vec<Diagnostic>) -> Self {
        diagnostics.sort_by_key(|diagnostic| diagnostic.line);
        Self(diagnostics)
    }

    pub(super) fn unreadable(path: &Path, cause: &os::Unreadable) -> Self {
        Self(vec![Diagnostic {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            text: format!("the configuration cannot be read: {cause}"),
        }])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in the configuration:", plural(self.0.len() as u64, "problem"))?;
        for diagnostic in self.0.iter().take(MAX_SHOWN) {
            write!(f, "\n{diagnostic}")?;
        }
        if self.0.len() > MAX_SHOWN {
            write!(f, "\n… and {} more", self.0.len() - MAX_SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Keys of earlier versions, each with what is so now and the remedy.
const REMOVED_KEYS: [(&str, &str); 1] = [(
    "server.http2",
    "larder answers clients over HTTP/1.1 only, because HTTP/2 cannot show them the cause of an error; remove this line, and \
     let a proxy in front of larder speak HTTP/2 where you want it",
)];

/// The context and the results of reading one configuration file.
pub(super) struct ConfigReader<'a> {
    file: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    line_starts: Vec<usize>,
    pub(super) problems: Vec<Diagnostic>,
    pub(super) warnings: Vec<Diagnostic>,
    /// Every key that was asked for, with its section.
    pub(super) known_keys: BTreeSet<String>,
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(text: &str, file: &'a Path, env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            file,
            folder: file.parent().unwrap_or(Path::new("")),
            env,
            line_starts: newlines.map(|(offset, _)| offset + 1).collect(),
            problems: Vec::new(),
            warnings: Vec::new(),
            known_keys: BTreeSet::new(),
        }
    }

    /// The line, from 1, of a byte offset into the text.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) + 1
    }

    pub(super) fn diagnostic(&self, line: Option<usize>, key: String, text: String) -> Diagnostic {
        Diagnostic { file: self.file.to_owned(), line, key, text }
    }
}

/// One table of the file. An absent table is read too, so that its options get their defaults.
pub(super) struct Section<'r, 'a, 't> {
    reader: &'r mut ConfigReader<'a>,
    /// The dotted name of the table; empty for the whole file.
    path: String,
    /// The offset of the table in the file, in bytes.
    offset: usize,
    table: Option<&'t DeTable<'t>>,
    /// The keys that were asked for, each with a valid line as an example.
    known: Vec<(&'static str, String)>,
    required: &'static [&'static str],
}

impl<'r, 'a, 't> Section<'r, 'a, 't> {
    /// An environment variable.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.reader.env)(name)
    }

    /// Reads `[key]`. An absent table is read too, so that its options get their defaults.
    pub(super) fn table_or_defaults<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T,
    ) -> T {
        let value = self.value_of(key, format!("[{key}]"));
        let table = value.and_then(|value| self.as_table(key, value));
        let offset = value.map_or(self.offset, |value| value.span().start);
        let path = self.path_of(key);
        Section::read_table(self.reader, path, offset, table, read)
    }

    /// Reads an optional table; `None` if it is absent.
    pub(super) fn optional_table<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T,
    ) -> Option<T> {
        let value = self.value_of(key, format!("{key} = {example}"))?;
        let table = self.as_table(key, value)?;
        let path = self.path_of(key);
        Some(Section::read_table(self.reader, path, value.span().start, Some(table), read))
    }

    /// Reads every `[[key]]`; `None` where the key is absent.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Section<'_, 'a, 't>) -> T,
    ) -> Option<Vec<T>> {
        let value = self.value_of(key, format!("[[{key}]]"))?;
        let DeValue::Array(items) = value.get_ref() else {
            self.mistyped(key, value, "array of tables");
            return Some(Vec::new());
        };
        let mut results = Vec::new();
        for item in items.iter() {
            if let Some(table) = self.as_table(key, item) {
                let path = self.path_of(key);
                results.push(Section::read_table(self.reader, path, item.span().start, Some(table), &mut read));
            }
        }
        Some(results)
    }

    /// Reads a string with `parse`; messages quote `example` as a valid value.
    pub(super) fn text<T, E: Into<ValueError>>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let value = self.value_of(key, format!("{key} = \"{example}\""))?;
        self.parsed(key, value, parse)
    }

    /// Reads an array of strings, each with `parse`.
    pub(super) fn list<T, E: Into<ValueError>>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let value = self.value_of(key, format!("{key} = {example}"))?;
        let DeValue::Array(items) = value.get_ref() else {
            self.mistyped(key, value, "array of strings");
            return None;
        };
        Some(items.iter().filter_map(|item| self.parsed(key, item, &parse)).collect())
    }

    /// Reads a table whose keys are free and whose values are texts.
    pub(super) fn texts(&mut self, key: &'static str, example: &str) -> Option<Vec<(String, String)>> {
        let value = self.value_of(key, format!("{key} = {example}"))?;
        let table = self.as_table(key, value)?;
        let mut texts = Vec::new();
        for (name, value) in table.iter() {
            let name = name.get_ref().to_string();
            let path = format!("{}.{name}", self.path_of(key));
            self.reader.known_keys.insert(path);
            texts.extend(self.parsed(key, value, |text| Ok::<_, String>(text.to_owned())).map(|text| (name, text)));
        }
        Some(texts)
    }

    /// Reads a boolean.
    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.value_of(key, format!("{key} = true"))?;
        let DeValue::Boolean(flag) = value.get_ref() else {
            self.mistyped(key, value, "boolean");
            return None;
        };
        Some(*flag)
    }

    /// Reads a path; a relative one is resolved against the folder of the configuration file.
    pub(super) fn path(&mut self, key: &'static str, example: &str) -> Option<PathBuf> {
        let folder = self.reader.folder;
        self.text(key, example, |value| {
            if value.is_empty() || value.contains('\0') {
                return Err("this is not a path".to_owned());
            }
            if value.starts_with('~') {
                return Err(format!("{} is not expanded: write the home folder in place of ~", quoted(value)));
            }
            Ok(folder.join(value))
        })
    }

    /// The folder of the configuration file, where relative paths start.
    pub(super) fn folder(&self) -> &'a Path {
        self.reader.folder
    }

    /// True for a key with an empty array.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| matches!(value.get_ref(), DeValue::Array(items) if items.is_empty()))
    }

    /// True for a key with a text.
    pub(super) fn is_text(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| matches!(value.get_ref(), DeValue::String(_)))
    }

    /// Returns true if a key has exactly this text.
    pub(super) fn has_text(&self, key: &str, text: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| matches!(value.get_ref(), DeValue::String(written) if *written == text))
    }

    /// Reads the path of a file that is opened later. The file must be readable now.
    pub(super) fn file(&mut self, key: &'static str, example: &str) -> Option<PathBuf> {
        let path = self.path(key, example)?;
        if let Err(cause) = os::check(&path) {
            self.problem(key, format!("{} cannot be read: {cause}", path.display()));
        }
        Some(path)
    }

    /// True for a key that is present, valid or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Reports a problem where more than one of these keys is present.
    pub(super) fn at_most_one(&mut self, keys: &[&'static str]) {
        let present: Vec<_> = keys.iter().copied().filter(|key| self.has(key)).collect();
        if let [first, .., last] = present[..] {
            self.problem(last, format!("only one of {} is allowed; {first} is set already", keys.join(", ")));
        }
    }

    /// The line of a key. For an absent key, or an empty text, the line of the section.
    pub(super) fn line_of(&self, key: &str) -> usize {
        let offset = self.table.and_then(|table| table.get_key_value(key)).map(|(key, _)| key.span().start);
        self.reader.line(offset.unwrap_or(self.offset))
    }

    /// Records a problem with a key. An empty text as key means the whole section.
    pub(super) fn problem(&mut self, key: &str, text: String) {
        let line = self.line_of(key);
        self.problem_at(line, key, text);
    }

    /// Records a warning, which does not prevent a start.
    pub(super) fn warning(&mut self, key: &str, text: String) {
        let line = self.line_of(key);
        self.warning_at(line, key, text);
    }

    /// Records a warning about a key on a given line.
    pub(super) fn warning_at(&mut self, line: usize, key: &str, text: String) {
        let diagnostic = self.reader.diagnostic(Some(line), self.path_of(key), text);
        self.reader.warnings.push(diagnostic);
    }

    /// Records a problem with a key on a given line.
    pub(super) fn problem_at(&mut self, line: usize, key: &str, text: String) {
        let diagnostic = self.reader.diagnostic(Some(line), self.path_of(key), text);
        self.reader.problems.push(diagnostic);
    }

    /// Reads a table with `read`, then reports unknown and missing keys.
    pub(super) fn read_table<T>(
        reader: &mut ConfigReader<'a>,
        path: String,
        offset: usize,
        table: Option<&'t DeTable<'t>>,
        read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T,
    ) -> T {
        let mut section = Section { reader, path, offset, table, known: Vec::new(), required: &[] };
        let result = read(&mut section);
        let misspelt = section.report_unknown();
        section.report_missing(&misspelt);
        result
    }

    /// The value of a key, which becomes a known key; `example_line` is a valid line for it.
    pub(super) fn value_of(&mut self, key: &'static str, example_line: String) -> Option<&'t Spanned<DeValue<'t>>> {
        if !self.is_known(key) {
            self.known.push((key, example_line));
            let path = self.path_of(key);
            self.reader.known_keys.insert(path);
        }
        self.table?.get(key)
    }

    fn is_known(&self, key: &str) -> bool {
        self.known.iter().any(|(known, _)| *known == key)
    }

    /// The advice to write a valid line for a known key.
    fn example(&self, key: &str) -> String {
        let example = self.known.iter().find(|(known, _)| *known == key);
        example.map(|(_, line)| format!("write for example {line}")).unwrap_or_default()
    }

    /// The dotted name of a key.
    fn path_of(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            ("", key) => key.to_owned(),
            (path, "") => path.to_owned(),
            (path, key) => format!("{path}.{key}"),
        }
    }

    /// Makes keys required: once the table is read, absent ones are reported.
    pub(super) fn require(&mut self, keys: &'static [&'static str]) {
        self.required = keys;
    }

    /// Reports required keys that are absent, except keys that are probably just misspelt.
    fn report_missing(&mut self, misspelt: &[&'static str]) {
        for key in self.required {
            if !self.has(key) && !misspelt.contains(key) {
                let line = self.line_of("");
                self.problem_at(line, key, format!("missing; {}", self.example(key)));
            }
        }
    }

    fn as_table(&mut self, key: &str, value: &'t Spanned<DeValue<'t>>) -> Option<&'t DeTable<'t>> {
        if let DeValue::Table(table) = value.get_ref() {
            return Some(table);
        }
        self.mistyped(key, value, "table");
        None
    }

    fn parsed<T, E: Into<ValueError>>(
        &mut self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let DeValue::String(text) = value.get_ref() else {
            self.mistyped(key, value, "string");
            return None;
        };
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                let line = self.reader.line(value.span().start);
                let ValueError { text, suggestion } = error.into();
                let remedy =
                    suggestion.map_or_else(|| self.example(key), |suggestion| format!("write \"{suggestion}\""));
                self.problem_at(line, key, format!("{text}; {remedy}"));
                None
            }
        }
    }

    /// Reports a value of another type. Shows only the type, because the value may be a misplaced secret.
    fn mistyped(&mut self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) {
        let found = value.get_ref().type_str();
        let line = self.reader.line(value.span().start);
        let text = format!("this is of type {found}, not {expected}; {}", self.example(key));
        self.problem_at(line, key, text);
    }

    /// Reports unknown keys. Returns the known keys that the user probably meant.
    fn report_unknown(&mut self) -> Vec<&'static str> {
        let mut meant_keys = Vec::new();
        let known: Vec<&'static str> = self.known.iter().map(|(known, _)| *known).collect();
        for (key, _) in self.table.into_iter().flat_map(|table| table.iter()) {
            let name = key.get_ref().as_ref();
            if self.is_known(name) {
                continue;
            }
            let line = self.reader.line(key.span().start);
            let full_name = format!("{}.{name}", self.path);
            if let Some((_, remedy)) = REMOVED_KEYS.iter().find(|(removed, _)| *removed == full_name) {
                self.problem_at(line, name, (*remedy).to_owned());
                continue;
            }
            let near = nearest(name, &known);
            meant_keys.extend(near);
            let hint = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
            let text = format!("unknown; {hint}known here: {}", known.join(", "));
            let shown = quoted(name);
            self.problem_at(line, shown.trim_matches('"'), text);
        }
        meant_keys
    }
}

/// The known key that is most similar to a name; `None` if none is similar.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    // A longer name is like no key, and computing its distance is slow.
    let name: Vec<char> = name.chars().take(40).collect();
    let distances = known.iter().map(|known| (values::edit_distance(&name, known), *known));
    let (edits, near) = distances.min()?;
    (edits <= 1 + name.len() / 4).then_some(near)
}
