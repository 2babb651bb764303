//! The meter of untrusted streams: it fails once more bytes were read than a limit allows. What a limit is for is left
//! to the readers of the formats.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

/// A reader with a limit of bytes. Every read after an error fails as well, because decoders must not be read again
/// after one.
pub struct Meter<R> {
    inner: R,
    remaining_bytes: Rc<Cell<u64>>,
    excess: &'static str,
    has_failed: bool,
}

impl<R> Meter<R> {
    /// Creates a meter. `excess` is the text of the error for a byte more than `max_bytes`.
    pub(super) fn new(inner: R, max_bytes: u64, excess: &'static str) -> Self {
        Self { inner, remaining_bytes: Rc::new(Cell::new(max_bytes)), excess, has_failed: false }
    }

    /// The bytes that may still be read. Setting another number changes the limit.
    pub(super) fn remaining_bytes(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.remaining_bytes)
    }
}

impl<R: Read> Read for Meter<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.has_failed {
            return Err(io::Error::other("it is damaged"));
        }
        let read = self.inner.read(buffer);
        let metered = read.and_then(|read| {
            let remaining_bytes = self.remaining_bytes.get().checked_sub(read as u64);
            self.remaining_bytes.set(remaining_bytes.ok_or_else(|| io::Error::other(self.excess))?);
            Ok(read)
        });
        self.has_failed = metered.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        metered
    }
}

impl<R: Seek> Seek for Meter<R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}
