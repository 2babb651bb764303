//! A reader of the xz container (.xz file format 1.2) around LZMA2. The container sets the memory that the decoder
//! takes, up to 4 GiB, and a hostile archive may ask for all of it; this reader limits it. As in go-getter's reader,
//! LZMA2 is the only filter.

mod check;

use std::io::{self, BufRead, Read};

use flate2::Crc;
use lzma_rust2::Lzma2Reader;

use self::check::Check;

/// The largest dictionary in bytes: that of `xz -9`.
const MAX_DICTIONARY: u32 = 64 << 20;
/// The budget for dictionaries in bytes before any output. Every block allocates a new one.
const FIRST_DICTIONARIES: u64 = 1 << 30;
const MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const LZMA2: u8 = 0x21;

/// Decompresses xz, concatenated streams included. Must not be read again after an error.
pub(super) struct XzReader<R> {
    state: State<R>,
    flags: [u8; 2],
    blocks: BlockTotals,
    dictionaries: u64,
    produced: u64,
}

enum State<R> {
    /// Before a stream.
    Start(R),
    /// Before a block, or the index.
    Between(R),
    Block(Box<Lzma2Reader<CountingReader<R>>>, Block),
    /// Past the end, or failed.
    Over,
}

struct Block {
    header: u64,
    check: Check,
    size: u64,
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
        Self { state: State::Start(from), flags, blocks, dictionaries: FIRST_DICTIONARIES, produced: 0 }
    }

    /// Moves on once the current state is read to its end.
    fn advance(&mut self, state: State<R>) -> io::Result<State<R>> {
        match state {
            State::Start(mut from) => {
                let header: [u8; 12] = array(&mut from)?;
                let [m0, m1, m2, m3, m4, m5, f0, f1, crc @ ..] = header;
                if [m0, m1, m2, m3, m4, m5] != MAGIC {
                    return Err(damaged("not an xz file"));
                }
                if crc32(&[f0, f1]) != crc || f0 != 0 {
                    return Err(damaged("the header of its xz stream is damaged"));
                }
                self.flags = [f0, f1];
                self.blocks = BlockTotals::default();
                Ok(State::Between(from))
            }
            State::Between(mut from) => match array::<1>(&mut from)? {
                [0] => {
                    self.index(&mut from)?;
                    next_stream(from)
                }
                [size] => self.block(from, size),
            },
            State::Block(decoder, block) => {
                let counted = decoder.into_inner();
                let (packed, mut from) = (counted.count, counted.inner);
                let is_as_said = block.declared.packed.is_none_or(|declared| declared == packed)
                    && block.declared.unpacked.is_none_or(|declared| declared == block.size);
                if !is_as_said {
                    return Err(damaged("a block of its xz does not have its declared size"));
                }
                zeros(&mut from, padding(packed))?;
                let expected = block.check.finish();
                let mut found = vec![0; expected.len()];
                from.read_exact(&mut found)?;
                if found != expected {
                    return Err(damaged("a checksum of its xz is wrong"));
                }
                self.blocks.count += 1;
                let unpadded = block.header.wrapping_add(packed).wrapping_add(expected.len() as u64);
                self.blocks.unpadded = self.blocks.unpadded.wrapping_add(unpadded);
                self.blocks.unpacked = self.blocks.unpacked.wrapping_add(block.size);
                Ok(State::Between(from))
            }
            State::Over => Ok(State::Over),
        }
    }

    /// Reads a block header after its first byte, `size`.
    fn block(&mut self, mut from: R, size: u8) -> io::Result<State<R>> {
        let odd = || damaged("the header of a block of its xz is malformed, or uses a filter other than LZMA2");
        let mut header = vec![0; usize::from(size) * 4 + 3];
        from.read_exact(&mut header)?;
        header.insert(0, size);
        let (fields, crc) = header.split_last_chunk::<4>().ok_or_else(odd)?;
        if crc32(fields) != *crc {
            return Err(damaged("the header of a block of its xz is damaged"));
        }
        let (flags, mut rest) = fields.get(1..).and_then(<[u8]>::split_first).ok_or_else(odd)?;
        if flags & 0b0011_1111 != 0 {
            return Err(odd());
        }
        let mut number_if = |bit: u8| (flags & bit != 0).then(|| number(&mut rest)).transpose();
        let declared = Sizes { packed: number_if(0x40)?, unpacked: number_if(0x80)? };
        let [LZMA2, 1, dictionary, zeros @ ..] = rest else { return Err(odd()) };
        if *dictionary > 40 || zeros.iter().any(|byte| *byte != 0) {
            return Err(odd());
        }
        let dictionary = self.charge_dictionary(*dictionary)?;
        let check = Check::of(self.flags[1]).ok_or_else(|| damaged("its xz has a checksum of an unknown kind"))?;
        let decoder = Lzma2Reader::new(CountingReader { inner: from, count: 0 }, dictionary, None);
        let header = header.len() as u64;
        Ok(State::Block(Box::new(decoder), Block { header, check, size: 0, declared }))
    }

    /// Decodes a dictionary's size and charges it to the budget. Each byte of output adds four bytes to the budget, so
    /// that a stream of almost empty blocks is refused.
    fn charge_dictionary(&mut self, encoded: u8) -> io::Result<u32> {
        let size = (2 | u64::from(encoded & 1)) << (encoded / 2 + 11);
        let size = u32::try_from(size).ok().filter(|size| *size <= MAX_DICTIONARY);
        let size = size.ok_or_else(|| damaged("its xz needs more memory than xz -9"))?;
        self.dictionaries = self
            .dictionaries
            .saturating_add(std::mem::take(&mut self.produced).saturating_mul(4))
            .checked_sub(u64::from(size))
            .ok_or_else(|| damaged("its xz has too many almost empty blocks"))?;
        Ok(size)
    }

    /// Reads the index after its first byte, then the footer.
    fn index(&self, from: &mut R) -> io::Result<()> {
        let mut from = CountingReader { inner: from, count: 1 };
        let mut index = Crc32Reader { inner: &mut from, crc: Crc::new() };
        index.crc.update(&[0]);
        let count = number_from(&mut index)?;
        // A hostile count must not drive the loop below.
        if count != self.blocks.count {
            return Err(damaged("the index of its xz does not match its blocks"));
        }
        let mut found = BlockTotals { count, ..BlockTotals::default() };
        for _ in 0..count {
            found.unpadded = found.unpadded.wrapping_add(number_from(&mut index)?);
            found.unpacked = found.unpacked.wrapping_add(number_from(&mut index)?);
        }
        let pad = padding(index.inner.count);
        zeros(&mut index, pad)?;
        let sum = index.crc.sum().to_le_bytes();
        let size = from.count;
        let crc: [u8; 4] = array(&mut from)?;
        if crc != sum || found != self.blocks {
            return Err(damaged("the index of its xz does not match its blocks"));
        }
        let [c0, c1, c2, c3, fields @ .., b'Y', b'Z'] = array::<12>(&mut from)? else {
            return Err(damaged("the end of its xz is malformed"));
        };
        let [b0, b1, b2, b3, f0, f1] = fields;
        let backward = (u64::from(u32::from_le_bytes([b0, b1, b2, b3])) + 1) * 4;
        if crc32(&fields) != [c0, c1, c2, c3] || [f0, f1] != self.flags || backward != size + 4 {
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
                State::Over => return Ok(0),
                State::Block(decoder, block) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 {
                        block.check.update(buffer.get(..read).unwrap_or_default());
                        block.size += read as u64;
                        self.produced = self.produced.saturating_add(read as u64);
                        return Ok(read);
                    }
                }
                _ => {}
            }
            let state = std::mem::replace(&mut self.state, State::Over);
            self.state = self.advance(state)?;
        }
    }
}

/// Skips the padding after a stream, a multiple of four zero bytes.
fn next_stream<R: BufRead>(mut from: R) -> io::Result<State<R>> {
    loop {
        match from.fill_buf()?.first() {
            None => return Ok(State::Over),
            Some(0) => zeros(&mut from, 4)?,
            Some(_) => return Ok(State::Start(from)),
        }
    }
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % 4
}

fn zeros(from: &mut dyn Read, count: u64) -> io::Result<()> {
    for _ in 0..count {
        if array::<1>(from)? != [0] {
            return Err(damaged("the padding in its xz is not zero"));
        }
    }
    Ok(())
}

fn array<const N: usize>(from: &mut (impl Read + ?Sized)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(from: &mut &[u8]) -> io::Result<u64> {
    number_from(from)
}

/// Reads a variable-length integer of up to nine bytes with seven bits each.
fn number_from(from: &mut dyn Read) -> io::Result<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let [byte] = array(from)?;
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

/// A reader that computes the CRC-32 of its bytes.
struct Crc32Reader<'a, R> {
    inner: &'a mut R,
    crc: Crc,
}

impl<R: Read> Read for Crc32Reader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.crc.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}
