//! Reads and hashes a stored archive piece by piece, so that the caller can pause in between.

use std::io::Read;
use std::path::PathBuf;

use super::{READ_BUFFER_BYTES, StoreError};
use crate::digest::{Digest, Hasher};

/// Position and hash state of the read.
pub struct ReadCursor {
    reader: Box<dyn Read + Send>,
    path: PathBuf,
    hasher: Hasher,
    buffer: Vec<u8>,
}

impl ReadCursor {
    pub(super) fn new(reader: impl Read + Send + 'static, path: PathBuf) -> Self {
        Self { reader: Box::new(reader), path, hasher: Hasher::new(), buffer: vec![0; READ_BUFFER_BYTES] }
    }

    /// Reads and hashes the next piece; returns its length in bytes, 0 at the end.
    pub fn read_next(&mut self) -> Result<u64, StoreError> {
        let read = self.reader.read(&mut self.buffer).map_err(|e| StoreError::io("read", &self.path, e))?;
        self.hasher.update(&self.buffer[..read]);
        Ok(read as u64)
    }

    /// The digest of the bytes read so far.
    pub fn digest(self) -> Digest {
        self.hasher.finish().0
    }
}
