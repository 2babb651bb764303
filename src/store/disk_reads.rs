//! Reads and hashes a stored archive piece by piece, so that the caller can pause in between.

use std::io::Read;
use std::path::PathBuf;

use super::{READ_AT_ONCE, StoreError};
use crate::digest::{Digest, Hasher};

/// Position and hash state of the read.
pub struct ReadCursor {
    from: Box<dyn Read + Send>,
    path: PathBuf,
    hasher: Hasher,
    buffer: Vec<u8>,
}

impl ReadCursor {
    pub(super) fn new(from: impl Read + Send + 'static, path: PathBuf) -> Self {
        Self { from: Box::new(from), path, hasher: Hasher::new(), buffer: vec![0; READ_AT_ONCE] }
    }

    /// Reads and hashes the next piece; returns its length, and `None` at the end.
    pub fn read_next(&mut self) -> Result<u64, StoreError> {
        let read = self.from.read(&mut self.buffer).map_err(|e| StoreError::io("read", &self.path, e))?;
        self.hasher.update(&self.buffer[..read]);
        Ok(read as u64)
    }

    /// Digest of the bytes read.
    pub fn digest(self) -> Digest {
        self.hasher.finish().0
    }
}
