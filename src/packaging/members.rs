//! Decompresses gzip and bzip2, concatenated streams included, and limits the decompressed size.

use std::io::{self, BufRead, Read};

use ::bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;

use super::TreeLimits;

/// The most concatenated streams. Even an empty stream costs time.
const MAX_STREAMS: u32 = 1_000_000;

/// Reads concatenated compressed streams as one.
pub(super) struct ConcatenatedStreams<R, D> {
    decoder: Option<D>,
    open: fn(R) -> D,
    close: fn(D) -> R,
    /// The byte with which every stream of this format begins.
    first_byte: u8,
    stream_count: u32,
}

/// Decompresses gzip. Trailing bytes that are not gzip are ignored, as gunzip does.
pub(super) fn gzip<R: BufRead>(input: R) -> ConcatenatedStreams<R, GzDecoder<R>> {
    let (open, close) = (GzDecoder::new, GzDecoder::into_inner);
    ConcatenatedStreams { decoder: Some(open(input)), open, close, first_byte: 0x1f, stream_count: 1 }
}

/// Decompresses bzip2.
pub(super) fn bzip2<R: BufRead>(input: R) -> ConcatenatedStreams<R, BzDecoder<R>> {
    let (open, close) = (BzDecoder::new, BzDecoder::into_inner);
    ConcatenatedStreams { decoder: Some(open(input)), open, close, first_byte: b'B', stream_count: 1 }
}

impl<R: BufRead, D: Read> Read for ConcatenatedStreams<R, D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(decoder) = self.decoder.as_mut() else { return Ok(0) };
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(mut input) = self.decoder.take().map(self.close) else { return Ok(0) };
            if input.fill_buf()?.first() != Some(&self.first_byte) {
                return Ok(0);
            }
            self.stream_count += 1;
            if self.stream_count > MAX_STREAMS {
                return Err(io::Error::other("it has too many compressed streams"));
            }
            self.decoder = Some((self.open)(input));
        }
    }
}

/// A reader that fails once it has returned more bytes than any tree within the limits needs. Every later read fails as
/// well.
pub(super) struct OutputLimit<R> {
    inner: Option<R>,
    remaining_bytes: u64,
}

impl<R: Read> OutputLimit<R> {
    /// The limit for a tar: the files, and a few blocks for each entry.
    pub(super) fn for_tar(inner: R, limits: TreeLimits) -> Self {
        let entries = u64::try_from(limits.entries).unwrap_or(u64::MAX);
        Self {
            inner: Some(inner),
            remaining_bytes: limits.bytes.saturating_add(entries.saturating_mul(4096)).saturating_add(1 << 20),
        }
    }
}

impl<R: Read> Read for OutputLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(inner) = self.inner.as_mut() else { return Err(io::Error::other("it is damaged")) };
        let read = match inner.read(buffer) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(e),
            Err(e) => {
                // Decoders must not be read again after an error.
                self.inner = None;
                return Err(e);
            }
        };
        match self.remaining_bytes.checked_sub(read as u64) {
            Some(remaining_bytes) => {
                self.remaining_bytes = remaining_bytes;
                Ok(read)
            }
            None => {
                self.inner = None;
                Err(io::Error::other("it unpacks to more than the module limit"))
            }
        }
    }
}
