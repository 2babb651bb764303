//! What one reading of a file needs throughout, and what it gathers.

use std::collections::BTreeSet;
use std::path::Path;

use super::problem::{Remark, Warning};

/// What one reading needs and gathers.
pub(super) struct Reading<'a> {
    file: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    line_starts: Vec<usize>,
    pub(super) problems: Vec<Remark>,
    pub(super) warnings: Vec<Warning>,
    /// Every key asked for, with its section: what the reader knows.
    pub(super) asked: BTreeSet<String>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(text: &str, file: &'a Path, env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            file,
            folder: file.parent().unwrap_or(Path::new("")),
            env,
            line_starts: newlines.map(|(offset, _)| offset + 1).collect(),
            problems: Vec::new(),
            warnings: Vec::new(),
            asked: BTreeSet::new(),
        }
    }

    /// The line, from 1, that an offset into the text is on.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) + 1
    }

    pub(super) fn remark(&self, line: Option<usize>, key: String, text: String) -> Remark {
        Remark { file: self.file.to_owned(), line, key, text }
    }
}
