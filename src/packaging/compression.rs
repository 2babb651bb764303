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

/// Decompresses xz, concatenated streams included. Must not be read again after an error.
pub(super) struct XzReader<R>(XzDecoder<R>);

impl<R: BufRead> XzReader<R> {
    /// Creates a reader.
    ///
    /// # Errors
    /// The decoder gets no memory.
    pub(super) fn new(input: R) -> io::Result<Self> {
        let stream = Stream::new_stream_decoder(MAX_XZ_MEMORY_BYTES, CONCATENATED | TELL_UNSUPPORTED_CHECK)?;
        Ok(Self(XzDecoder::new_stream(input, stream)))
    }
}

impl<R: BufRead> Read for XzReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| {
            let reason = match error.get_ref().and_then(|source| source.downcast_ref()) {
                Some(Error::Format) => "not an xz file",
                Some(Error::MemLimit) => "its xz needs more memory than xz -9",
                Some(Error::UnsupportedCheck) => "its xz has a checksum of an unknown kind",
                Some(Error::Options) => "its xz uses an unknown filter or option",
                Some(Error::Data) => "its xz is damaged: its contents do not match its headers or checksums",
                _ => return error,
            };
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })
    }
}
