//! What is wrong or noteworthy in a configuration file, and how it is printed: one line each, the file and line first.

use std::fmt;
use std::path::{Path, PathBuf};

use super::outside::Unreadable;

/// More lines than this help nobody.
const SHOWN: usize = 50;

/// One sentence about one place in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; none when it is about the file as a whole.
    pub line: Option<usize>,
    /// The key with its section, such as `server.listen`; empty when it is about no key.
    pub key: String,
    /// What is the matter, and what to write instead. Never holds a secret.
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

/// Something that does not stop larder from starting, but must be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(
    /// What must be said, and where it is.
    pub Remark,
);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Everything that is wrong with a configuration file: at least one thing, in the order of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Remark>);

impl Problems {
    /// The problems, in the order of lines.
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
        for remark in self.0.iter().take(SHOWN) {
            write!(f, "\n{remark}")?;
        }
        if self.0.len() > SHOWN {
            write!(f, "\n… and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
