//! Decompresses gzip, bzip2 and xz, concatenated streams included.
//!
//! The container of xz (.xz file format 1.2) declares how much memory the decoder needs, up to 4 GiB. The reader limits the
//! memory, because a hostile archive may ask for all of it. LZMA2 is the only supported filter, as in go-getter's reader.

use std::io::{self, BufRead, Read};

use ::bzip2::bufread::BzDecoder;
use aws_lc_rs::digest::{Context, SHA256};
use flate2::bufread::GzDecoder;
use flate2::{Crc, CrcReader};
use lzma_rust2::Lzma2Reader;

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

/// The largest dictionary in bytes: that of `xz -9`.
const MAX_DICTIONARY: u32 = 64 << 20;
/// The budget for the dictionaries of all blocks, in bytes, before any output. Every block allocates a new dictionary.
const INITIAL_DICTIONARY_BUDGET: u64 = 1 << 30;
const MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const LZMA2: u8 = 0x21;
/// The polynomial of ECMA-182, bit-reversed.
const ECMA_182: u64 = 0xc96c_5795_d787_0f42;

const CRC64_TABLE: [u64; 256] = crc64_table();

/// Decompresses xz, concatenated streams included. Must not be read again after an error.
pub(super) struct XzReader<R> {
    state: State<R>,
    flags: [u8; 2],
    blocks: BlockTotals,
    /// The bytes of dictionaries that may still be allocated.
    dictionary_budget: u64,
    /// The output since the budget was last raised, in bytes.
    new_output_bytes: u64,
}

enum State<R> {
    /// The next bytes are the header of a stream.
    StreamStart(R),
    /// The next bytes are a block or the index.
    BlockOrIndex(R),
    /// Within a block.
    Block(Box<Lzma2Reader<CountingReader<R>>>, Block),
    /// The end was reached, or reading failed.
    End,
}

/// A block that is being read. Sizes are in bytes.
struct Block {
    header_size: u64,
    check: Check,
    unpacked_size: u64,
    declared: Sizes,
}

/// The sizes that a block's header declares.
#[derive(Default, Clone, Copy)]
struct Sizes {
    packed: Option<u64>,
    unpacked: Option<u64>,
}

/// Totals of the blocks read so far, which the index must match.
#[derive(Default, PartialEq, Eq)]
struct BlockTotals {
    count: u64,
    unpadded: u64,
    unpacked: u64,
}

impl<R: BufRead> XzReader<R> {
    pub(super) fn new(from: R) -> Self {
        let (flags, blocks) = ([0; 2], BlockTotals::default());
        Self {
            state: State::StreamStart(from),
            flags,
            blocks,
            dictionary_budget: INITIAL_DICTIONARY_BUDGET,
            new_output_bytes: 0,
        }
    }

    /// Returns the state that follows `state`, once that was read to its end.
    fn advance(&mut self, state: State<R>) -> io::Result<State<R>> {
        match state {
            State::StreamStart(mut from) => {
                let header: [u8; 12] = read_array(&mut from)?;
                let [m0, m1, m2, m3, m4, m5, f0, f1, crc @ ..] = header;
                if [m0, m1, m2, m3, m4, m5] != MAGIC {
                    return Err(damaged("not an xz file"));
                }
                if crc32(&[f0, f1]) != crc || f0 != 0 {
                    return Err(damaged("the header of its xz stream is damaged"));
                }
                self.flags = [f0, f1];
                self.blocks = BlockTotals::default();
                Ok(State::BlockOrIndex(from))
            }
            State::BlockOrIndex(mut from) => match read_array::<1>(&mut from)? {
                [0] => {
                    self.read_index_and_footer(&mut from)?;
                    skip_stream_padding(from)
                }
                [size] => self.read_block_header(from, size),
            },
            State::Block(decoder, block) => {
                let counted = decoder.into_inner();
                let (packed, mut from) = (counted.count, counted.inner);
                let has_declared_sizes = block.declared.packed.is_none_or(|declared| declared == packed)
                    && block.declared.unpacked.is_none_or(|declared| declared == block.unpacked_size);
                if !has_declared_sizes {
                    return Err(damaged("a block of its xz does not have its declared size"));
                }
                read_zeros(&mut from, padding(packed))?;
                let expected = block.check.finish();
                let mut stored = vec![0; expected.len()];
                from.read_exact(&mut stored)?;
                if stored != expected {
                    return Err(damaged("a checksum of its xz is wrong"));
                }
                self.blocks.count += 1;
                let unpadded = block.header_size.wrapping_add(packed).wrapping_add(expected.len() as u64);
                self.blocks.unpadded = self.blocks.unpadded.wrapping_add(unpadded);
                self.blocks.unpacked = self.blocks.unpacked.wrapping_add(block.unpacked_size);
                Ok(State::BlockOrIndex(from))
            }
            State::End => Ok(State::End),
        }
    }

    /// Reads a block header after its first byte, `size`.
    fn read_block_header(&mut self, mut from: R, size: u8) -> io::Result<State<R>> {
        let malformed = || damaged("the header of a block of its xz is malformed, or uses a filter other than LZMA2");
        let mut header = vec![0; usize::from(size) * 4 + 3];
        from.read_exact(&mut header)?;
        header.insert(0, size);
        let (fields, crc) = header.split_last_chunk::<4>().ok_or_else(malformed)?;
        if crc32(fields) != *crc {
            return Err(damaged("the header of a block of its xz is damaged"));
        }
        let (flags, mut rest) = fields.get(1..).and_then(<[u8]>::split_first).ok_or_else(malformed)?;
        if flags & 0b0011_1111 != 0 {
            return Err(malformed());
        }
        let mut read_number_if = |bit: u8| (flags & bit != 0).then(|| read_number(&mut rest)).transpose();
        let declared = Sizes { packed: read_number_if(0x40)?, unpacked: read_number_if(0x80)? };
        let [LZMA2, 1, dictionary, zeros @ ..] = rest else { return Err(malformed()) };
        if *dictionary > 40 || zeros.iter().any(|byte| *byte != 0) {
            return Err(malformed());
        }
        let dictionary = self.charge_dictionary(*dictionary)?;
        let check = Check::from_id(self.flags[1]).ok_or_else(|| damaged("its xz has a checksum of an unknown kind"))?;
        let decoder = Lzma2Reader::new(CountingReader { inner: from, count: 0 }, dictionary, None);
        let header_size = header.len() as u64;
        Ok(State::Block(Box::new(decoder), Block { header_size, check, unpacked_size: 0, declared }))
    }

    /// Decodes the size of a dictionary and takes it from the budget. Each byte of output adds four bytes to the
    /// budget. A stream of almost empty blocks exceeds the budget and is refused.
    fn charge_dictionary(&mut self, encoded: u8) -> io::Result<u32> {
        let size = (2 | u64::from(encoded & 1)) << (encoded / 2 + 11);
        let size = u32::try_from(size).ok().filter(|size| *size <= MAX_DICTIONARY);
        let size = size.ok_or_else(|| damaged("its xz needs more memory than xz -9"))?;
        self.dictionary_budget = self
            .dictionary_budget
            .saturating_add(std::mem::take(&mut self.new_output_bytes).saturating_mul(4))
            .checked_sub(u64::from(size))
            .ok_or_else(|| damaged("its xz has too many almost empty blocks"))?;
        Ok(size)
    }

    /// Reads the index after its first byte, then the footer.
    fn read_index_and_footer(&self, from: &mut R) -> io::Result<()> {
        let mut from = CountingReader { inner: from, count: 1 };
        // The checksum includes the first byte, which was read as the type of this part.
        let mut index = CrcReader::new((&[0][..]).chain(&mut from));
        read_zeros(&mut index, 1)?;
        let count = read_number(&mut index)?;
        // A hostile count must not determine the length of the loop that follows.
        if count != self.blocks.count {
            return Err(damaged("the index of its xz does not match its blocks"));
        }
        let mut listed = BlockTotals { count, ..BlockTotals::default() };
        for _ in 0..count {
            listed.unpadded = listed.unpadded.wrapping_add(read_number(&mut index)?);
            listed.unpacked = listed.unpacked.wrapping_add(read_number(&mut index)?);
        }
        let padding_length = padding(index.crc().amount().into());
        read_zeros(&mut index, padding_length)?;
        let sum = index.crc().sum().to_le_bytes();
        let size = from.count;
        let crc: [u8; 4] = read_array(&mut from)?;
        if crc != sum || listed != self.blocks {
            return Err(damaged("the index of its xz does not match its blocks"));
        }
        let [c0, c1, c2, c3, fields @ .., b'Y', b'Z'] = read_array::<12>(&mut from)? else {
            return Err(damaged("the end of its xz is malformed"));
        };
        let [b0, b1, b2, b3, f0, f1] = fields;
        let index_size = (u64::from(u32::from_le_bytes([b0, b1, b2, b3])) + 1) * 4;
        if crc32(&fields) != [c0, c1, c2, c3] || [f0, f1] != self.flags || index_size != size + 4 {
            return Err(damaged("the end of its xz is malformed"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for XzReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match &mut self.state {
                State::End => return Ok(0),
                State::Block(decoder, block) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 {
                        block.check.update(buffer.get(..read).unwrap_or_default());
                        block.unpacked_size += read as u64;
                        self.new_output_bytes = self.new_output_bytes.saturating_add(read as u64);
                        return Ok(read);
                    }
                }
                _ => {}
            }
            let state = std::mem::replace(&mut self.state, State::End);
            self.state = self.advance(state)?;
        }
    }
}

/// Skips the padding after a stream, a multiple of four zero bytes, and returns the next state.
fn skip_stream_padding<R: BufRead>(mut from: R) -> io::Result<State<R>> {
    loop {
        match from.fill_buf()?.first() {
            None => return Ok(State::End),
            Some(0) => read_zeros(&mut from, 4)?,
            Some(_) => return Ok(State::StreamStart(from)),
        }
    }
}

/// The number of bytes up to a multiple of four.
fn padding(size: u64) -> u64 {
    size.wrapping_neg() % 4
}

/// Reads padding, which must be zero.
fn read_zeros(from: &mut dyn Read, count: u64) -> io::Result<()> {
    for _ in 0..count {
        if read_array::<1>(from)? != [0] {
            return Err(damaged("the padding in its xz is not zero"));
        }
    }
    Ok(())
}

/// Reads exactly `N` bytes.
fn read_array<const N: usize>(from: &mut (impl Read + ?Sized)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads a variable-length integer of up to nine bytes with seven bits each.
fn read_number(from: &mut dyn Read) -> io::Result<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let [byte] = read_array(from)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(damaged("its xz has a number that is too long"))
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes()
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// A reader that counts the bytes read.
struct CountingReader<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count += read as u64;
        Ok(read)
    }
}

/// A checksum that an xz stream may use for its blocks.
enum Check {
    Nothing,
    Crc32(Crc),
    Crc64(u64),
    Sha256(Box<Context>),
}

impl Check {
    /// Creates the checksum with this id in the stream header. `None` for an unknown id.
    fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::Nothing),
            1 => Some(Self::Crc32(Crc::new())),
            4 => Some(Self::Crc64(!0)),
            10 => Some(Self::Sha256(Box::new(Context::new(&SHA256)))),
            _ => None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Crc32(crc) => crc.update(bytes),
            Self::Crc64(crc) => {
                for byte in bytes {
                    let [low, ..] = crc.to_le_bytes();
                    *crc = CRC64_TABLE[usize::from(low ^ byte)] ^ (*crc >> 8);
                }
            }
            Self::Sha256(context) => context.update(bytes),
        }
    }

    /// The checksum in the byte order of the stream.
    fn finish(self) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Crc32(crc) => crc.sum().to_le_bytes().to_vec(),
            Self::Crc64(crc) => (!crc).to_le_bytes().to_vec(),
            Self::Sha256(context) => context.finish().as_ref().to_vec(),
        }
    }
}

const fn crc64_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ ECMA_182 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_inputs_have_their_known_checksums() {
        for (id, expected) in [(0, ""), (1, "2639f4cb"), (4, "fa3919dfbbc95d99")] {
            let mut check = Check::from_id(id).unwrap();
            check.update(b"12345");
            check.update(b"6789");
            assert_eq!(hex::encode(check.finish()), expected, "{id}");
        }
        assert!(Check::from_id(2).is_none());
    }
}
