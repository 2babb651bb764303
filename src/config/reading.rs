//! What reading one configuration file needs, and the problems that it finds.

use std::collections::BTreeSet;
use std::path::Path;

use super::problem::{Remark, Warning};

/// The context and the results of reading one configuration file.
pub(super) struct ConfigReader<'a> {
    file: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    line_starts: Vec<usize>,
    pub(super) problems: Vec<Remark>,
    pub(super) warnings: Vec<Warning>,
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

    pub(super) fn remark(&self, line: Option<usize>, key: String, text: String) -> Remark {
        Remark { file: self.file.to_owned(), line, key, text }
    }
}
