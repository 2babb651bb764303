//! Problems and warnings of a configuration file, printed one per line as `FILE:LINE: KEY: TEXT`, and the reader that
//! collects them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::outside::Unreadable;

/// Maximum number of lines printed.
const MAX_SHOWN: usize = 50;

/// One message about a line of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The configuration file.
    pub file: PathBuf,
    /// Line, from 1; `None` for the whole file.
    pub line: Option<usize>,
    /// Key with its section, such as `server.listen`; empty for the whole section or file.
    pub key: String,
    /// The problem, and the remedy. Never contains a secret.
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.text)
    }
}

/// A finding that does not prevent a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(
    /// The finding and its place.
    pub Remark,
);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// All problems of a configuration file, at least one, in line order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Remark>);

impl Problems {
    /// The problems, in line order.
    pub fn remarks(&self) -> &[Remark] {
        &self.0
    }

    pub(super) fn new(mut remarks: Vec<Remark>) -> Self {
        remarks.sort_by_key(|remark| remark.line);
        Self(remarks)
    }

    pub(super) fn unreadable(path: &Path, cause: &Unreadable) -> Self {
        Self(vec![Remark {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            text: format!("the configuration cannot be read: {cause}"),
        }])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "1 problem in the configuration:")?,
            count => write!(f, "{count} problems in the configuration:")?,
        }
        for remark in self.0.iter().take(MAX_SHOWN) {
            write!(f, "\n{remark}")?;
        }
        if self.0.len() > MAX_SHOWN {
            write!(f, "\n… and {} more", self.0.len() - MAX_SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

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
