//! Decompresses gzip and bzip2, concatenated streams included.

use std::io::{self, BufRead, Read};

use ::bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;

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
