//! Decompresses gzip, bzip2 and xz, concatenated streams included.
//!
//! The container of xz (.xz file format 1.2) declares how much memory the decoder needs, up to 4 GiB. The reader limits the
//! memory, because a hostile archive may ask for all of it.

use std::io::{self, BufRead, Read};

use ::bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Error, Stream, TELL_UNSUPPORTED_CHECK};

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

/// The memory that the decoder of an xz may use, in bytes: that of `xz -9`, whose dictionary has 64 MiB.
const MAX_XZ_MEMORY_BYTES: u64 = 65 << 20;

/// Bytes of an xz that may be read beyond those that its output accounts for. Empty blocks cost time and give nothing.
const MAX_XZ_OVERHEAD_BYTES: u64 = 16 << 20;

/// The input of an xz decoder. Fails once it is far longer than the output: one read of the decoder may consume any number
/// of empty blocks.
struct XzInput<R> {
    input: R,
    consumed: u64,
    output: u64,
}

impl<R: BufRead> Read for XzInput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for XzInput<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.consumed > self.output.saturating_mul(4).saturating_add(MAX_XZ_OVERHEAD_BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its xz has too many almost empty blocks"));
        }
        self.input.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.consumed += bytes as u64;
        self.input.consume(bytes);
    }
}

/// Decompresses xz, concatenated streams included. Must not be read again after an error.
pub(super) struct XzReader<R>(XzDecoder<XzInput<R>>);

impl<R: BufRead> XzReader<R> {
    /// Creates a reader.
    ///
    /// # Errors
    /// The decoder gets no memory.
    pub(super) fn new(input: R) -> io::Result<Self> {
        let stream = Stream::new_stream_decoder(MAX_XZ_MEMORY_BYTES, CONCATENATED | TELL_UNSUPPORTED_CHECK)?;
        Ok(Self(XzDecoder::new_stream(XzInput { input, consumed: 0, output: 0 }, stream)))
    }
}

impl<R: BufRead> Read for XzReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer).map_err(|error| {
            let reason = match error.get_ref().and_then(|source| source.downcast_ref()) {
                Some(Error::Format) => "not an xz file",
                Some(Error::MemLimit) => "its xz needs more memory than xz -9",
                Some(Error::UnsupportedCheck) => "its xz has a checksum of an unknown kind",
                Some(Error::Options) => "its xz uses an unknown filter or option",
                Some(Error::Data) => "its xz is damaged: its contents do not match its headers or checksums",
                _ => return error,
            };
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })?;
        self.0.get_mut().output += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    /// An empty stream costs the decoder time and gives no output that a limit could count.
    #[test]
    fn an_xz_of_nothing_but_empty_streams_is_refused() {
        let empty = *b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\0\0\0\0\x1c\xdf\x44\x21\x1f\xb6\xf3\x7d\x01\0\0\0\0\x04YZ";
        let read = |streams: &[u8]| XzReader::new(BufReader::new(streams)).unwrap().read_to_end(&mut Vec::new());
        assert_eq!(read(&empty.repeat(1000)).unwrap(), 0);
        let many = empty.repeat(MAX_XZ_OVERHEAD_BYTES as usize / empty.len() + 1000);
        assert!(read(&many).unwrap_err().to_string().contains("almost empty blocks"));
    }
}
