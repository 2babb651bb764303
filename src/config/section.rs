//! Reads one table of the parsed file, and records every problem with its line instead of stopping at the first.
//! The meaning of values is left to `values`.

use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::outside;
use super::problem::Warning;
use super::reading::ConfigReader;
use super::values::{self, ValueError, quoted};

mod secret;

/// One table of the file; absent tables are read too, for their defaults.
pub(super) struct Section<'r, 'a, 't> {
    reading: &'r mut ConfigReader<'a>,
    path: String,
    offset: usize,
    table: Option<&'t DeTable<'t>>,
    known: Vec<&'static str>,
    /// Required keys that are absent, each with an example to write.
    missing: Vec<(&'static str, String)>,
}

/// Outcome of checking a text as a path.
pub(super) enum PathCheck {
    /// The text is not a valid path.
    Invalid,
    /// No such file at the moment.
    NoSuchFile(PathBuf),
    Exists(PathBuf),
    /// A file or folder that we may not read.
    Unreadable(PathBuf, outside::Unreadable),
}

impl<'r, 'a, 't> Section<'r, 'a, 't> {
    /// Reads the whole file as one table. Keys that `read` does not ask for are reported as problems.
    pub(super) fn root<T>(
        reading: &'r mut ConfigReader<'a>,
        table: &'t DeTable<'t>,
        read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T,
    ) -> T {
        Self::in_range(reading, String::new(), 0, Some(table), read)
    }

    /// Reads `[key]`, also where it is absent, so that it gets its defaults.
    pub(super) fn part<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T) -> T {
        let value = self.value_of(key);
        let table = value.and_then(|value| self.as_table(key, value, &format!("[{key}]")));
        let offset = value.map_or(self.offset, |value| value.span().start);
        let path = self.path_of(key);
        Section::in_range(self.reading, path, offset, table, read)
    }

    /// Reads an optional table.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T,
    ) -> Option<T> {
        let value = self.value_of(key)?;
        let table = self.as_table(key, value, &format!("{key} = {example}"))?;
        let path = self.path_of(key);
        Some(Section::in_range(self.reading, path, value.span().start, Some(table), read))
    }

    /// Reads every `[[key]]`; `None` where the key is absent.
    pub(super) fn tables<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Section<'_, 'a, 't>) -> T,
    ) -> Option<Vec<T>> {
        let value = self.value_of(key)?;
        let written = format!("[[{key}]]");
        let DeValue::Array(items) = value.get_ref() else {
            self.mistyped(key, value, "array of tables", &written);
            return Some(Vec::new());
        };
        let mut found = Vec::new();
        for item in items.iter() {
            if let Some(table) = self.as_table(key, item, &written) {
                let path = self.path_of(key);
                found.push(Section::in_range(self.reading, path, item.span().start, Some(table), &mut read));
            }
        }
        Some(found)
    }

    /// Reads a string with `parse`; messages quote `example` as a valid value.
    pub(super) fn text<T, E: Into<ValueError>>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let value = self.value_of(key)?;
        let written = format!("{key} = \"{example}\"");
        self.parsed(key, value, &written, parse)
    }

    /// Reads a required string.
    pub(super) fn required<T, E: Into<ValueError>>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.must_have(key, &format!("\"{example}\""));
        self.text(key, example, parse)
    }

    /// Reads an array of strings, each with `parse`.
    pub(super) fn list<T, E: Into<ValueError>>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let value = self.value_of(key)?;
        let written = format!("{key} = {example}");
        let DeValue::Array(items) = value.get_ref() else {
            self.mistyped(key, value, "array of strings", &written);
            return None;
        };
        Some(items.iter().filter_map(|item| self.parsed(key, item, &written, &parse)).collect())
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.value_of(key)?;
        let DeValue::Boolean(flag) = value.get_ref() else {
            self.mistyped(key, value, "boolean", &format!("{key} = true"));
            return None;
        };
        Some(*flag)
    }

    /// Reads a path; a relative one is resolved against the folder of the configuration file.
    pub(super) fn path(&mut self, key: &'static str, example: &str) -> Option<PathBuf> {
        let folder = self.reading.folder;
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

    /// Reads an array of strings; `parse` also gets the outcome of checking each as a path.
    pub(super) fn list_with_paths<T>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl Fn(&str, PathCheck) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let folder = self.reading.folder;
        self.list(key, example, |value| {
            let path = folder.join(value);
            let place = match outside::check(&path) {
                _ if value.is_empty() || value.contains('\0') => PathCheck::Invalid,
                Ok(()) | Err(outside::Unreadable::Folder) => PathCheck::Exists(path),
                Err(cause) if cause.is_absent() => PathCheck::NoSuchFile(path),
                Err(cause) => PathCheck::Unreadable(path, cause),
            };
            parse(value, place)
        })
    }

    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| matches!(value.get_ref(), DeValue::Array(items) if items.is_empty()))
    }

    /// Reads the path of a file that another part opens; the file must be readable.
    pub(super) fn file(&mut self, key: &'static str, example: &str) -> Option<PathBuf> {
        let path = self.path(key, example)?;
        if let Err(cause) = outside::check(&path) {
            self.problem(key, format!("{} cannot be read: {cause}", path.display()));
        }
        Some(path)
    }

    /// Reads the required path of a file that must be readable.
    pub(super) fn required_file(&mut self, key: &'static str, example: &str) -> Option<PathBuf> {
        self.must_have(key, &format!("\"{example}\""));
        self.file(key, example)
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

    /// Line of a key; line of the section for an absent or empty key.
    pub(super) fn line_of(&self, key: &str) -> usize {
        let offset = self.table.and_then(|table| table.get_key_value(key)).map(|(key, _)| key.span().start);
        self.reading.line(offset.unwrap_or(self.offset))
    }

    /// Records a problem with a key, or with the whole section for an empty key.
    pub(super) fn problem(&mut self, key: &str, text: String) {
        let line = self.line_of(key);
        self.problem_at(line, key, text);
    }

    /// Records a warning, which does not prevent a start.
    pub(super) fn warning(&mut self, key: &str, text: String) {
        let line = self.line_of(key);
        let remark = self.reading.remark(Some(line), self.path_of(key), text);
        self.reading.warnings.push(Warning(remark));
    }

    /// Records a problem with a key on a given line.
    pub(super) fn problem_at(&mut self, line: usize, key: &str, text: String) {
        let remark = self.reading.remark(Some(line), self.path_of(key), text);
        self.reading.problems.push(remark);
    }

    /// Records a problem with a key of a subsection that has been read before.
    pub(super) fn problem_within(&mut self, part: &str, key: &str, text: String) {
        let below = self.table.and_then(|table| table.get(part));
        let below = below.and_then(|value| value.get_ref().as_table());
        let offset = below.and_then(|table| table.get_key_value(key)).map(|(key, _)| key.span().start);
        let line = self.reading.line(offset.unwrap_or(self.offset));
        self.problem_at(line, &format!("{part}.{key}"), text);
    }

    fn in_range<T>(
        reading: &mut ConfigReader<'a>,
        path: String,
        offset: usize,
        table: Option<&'t DeTable<'t>>,
        read: impl FnOnce(&mut Section<'_, 'a, 't>) -> T,
    ) -> T {
        let mut section = Section { reading, path, offset, table, known: Vec::new(), missing: Vec::new() };
        let read = read(&mut section);
        let misspelt = section.report_unknown();
        section.report_missing(&misspelt);
        read
    }

    fn value_of(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        if !self.known.contains(&key) {
            self.known.push(key);
            let path = self.path_of(key);
            self.reading.known_keys.insert(path);
        }
        self.table?.get(key)
    }

    fn path_of(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            ("", key) => key.to_owned(),
            (path, "") => path.to_owned(),
            (path, key) => format!("{path}.{key}"),
        }
    }

    fn must_have(&mut self, key: &'static str, example: &str) {
        if !self.has(key) {
            self.missing.push((key, format!("missing; write for example {key} = {example}")));
        }
    }

    /// Reports required keys that are absent, except those that a misspelt key probably stands for.
    fn report_missing(&mut self, misspelt: &[&'static str]) {
        let line = self.line_of("");
        for (key, text) in std::mem::take(&mut self.missing) {
            if !misspelt.contains(&key) {
                self.problem_at(line, key, text);
            }
        }
    }

    fn as_table(&mut self, key: &str, value: &'t Spanned<DeValue<'t>>, written: &str) -> Option<&'t DeTable<'t>> {
        if let DeValue::Table(table) = value.get_ref() {
            return Some(table);
        }
        self.mistyped(key, value, "table", written);
        None
    }

    fn parsed<T, E: Into<ValueError>>(
        &mut self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        written: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let DeValue::String(text) = value.get_ref() else {
            self.mistyped(key, value, "string", written);
            return None;
        };
        match parse(text) {
            Ok(value) => Some(value),
            Err(complaint) => {
                let line = self.reading.line(value.span().start);
                let ValueError { text, instead } = complaint.into();
                let remedy = match instead {
                    Some(selection) => format!("write \"{selection}\""),
                    None => format!("write for example {written}"),
                };
                self.problem_at(line, key, format!("{text}; {remedy}"));
                None
            }
        }
    }

    // Shows only the type: the value may be a secret in the wrong place.
    fn mistyped(&mut self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str, written: &str) {
        let found = value.get_ref().type_str();
        let line = self.reading.line(value.span().start);
        self.problem_at(line, key, format!("this is of type {found}, not {wanted}; write for example {written}"));
    }

    /// Reports unknown keys; returns the keys that they probably stand for.
    fn report_unknown(&mut self) -> Vec<&'static str> {
        let mut selection = Vec::new();
        for (key, _) in self.table.into_iter().flat_map(|table| table.iter()) {
            let name = key.get_ref().as_ref();
            if self.known.contains(&name) {
                continue;
            }
            let near = nearest(name, &self.known);
            selection.extend(near);
            let hint = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
            let text = format!("unknown; {hint}known here: {}", self.known.join(", "));
            let shown = quoted(name);
            let line = self.reading.line(key.span().start);
            self.problem_at(line, shown.trim_matches('"'), text);
        }
        selection
    }
}

fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    // A longer name matches no key, and computing its distance is slow.
    let name: Vec<char> = name.chars().take(40).collect();
    let distances = known.iter().map(|known| (values::edit_distance(&name, known), *known));
    let (edits, near) = distances.min()?;
    (edits <= 1 + name.len() / 4).then_some(near)
}
