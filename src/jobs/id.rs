//! Identifiers of jobs.

use std::fmt;

/// Identifier of a job: sixteen random hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId([u8; 8]);

impl JobId {
    /// Parses the printed form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = [0; 8];
        hex::decode_to_slice(text, &mut id).ok()?;
        Some(Self(id)).filter(|id| id.to_string() == text)
    }

    pub(super) fn random() -> Option<Self> {
        let mut id = [0; 8];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        Some(Self(id))
    }

    pub(super) fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}
