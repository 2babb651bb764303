//! A writer that collects its input into chunks.

use std::io::{self, Write};

/// A writer that passes its input on in chunks of equal size. A flush writes what is left. What is left when the writer is
/// dropped is discarded: a dropped [`io::BufWriter`] would write it, which could block on a pipe, or repeat a failed
/// write.
pub(super) struct FixedChunkWriter<W> {
    /// The writer that takes the chunks.
    pub(super) inner: W,
    chunk: Vec<u8>,
    chunk_bytes: usize,
}

impl<W> FixedChunkWriter<W> {
    pub(super) fn new(inner: W, chunk_bytes: usize) -> Self {
        Self { inner, chunk: Vec::with_capacity(chunk_bytes), chunk_bytes }
    }
}

impl<W: Write> Write for FixedChunkWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (accepted, _) = bytes.split_at(bytes.len().min(self.chunk_bytes - self.chunk.len()));
        self.chunk.extend_from_slice(accepted);
        if self.chunk.len() == self.chunk_bytes {
            self.flush()?;
        }
        Ok(accepted.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}
