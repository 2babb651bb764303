//! Scans a git pack as it arrives, and enforces the limits on objects, their sizes and delta chains. gix holds each
//! object in memory together with its bases, so declared sizes are checked before gix receives the bytes.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

use super::delta_memory::{DeltaBaseRef, DeltaChains, PackLimits};
use crate::packaging::TreeError;
use crate::upstream::error::Fault;

/// The pack header: `PACK`, a version and the number of objects.
const HEADER_BYTES: usize = 12;
/// The longest prefix of a delta that contains both of its sizes, in bytes.
const MAX_DELTA_SIZES_BYTES: usize = 20;
const ID_BYTES: usize = 20;
/// Compressed bytes that an entry may have beyond 9/8 of its declared size.
const MAX_EXTRA_BYTES: u64 = 64 << 10;

/// A reader that scans a pack while gix reads it.
pub(super) struct PackScanner<R, B> {
    pack: R,
    /// Called when the first byte of the pack arrives.
    on_start: Option<B>,
    /// Number of buffered bytes that are scanned already.
    scanned: usize,
    state: PackScanState,
}

impl<R: BufRead, B: FnOnce()> PackScanner<R, B> {
    pub(super) fn new(pack: R, limits: PackLimits, on_start: B) -> Self {
        Self { pack, on_start: Some(on_start), scanned: 0, state: PackScanState::new(limits) }
    }
}

impl<R: BufRead, B: FnOnce()> BufRead for PackScanner<R, B> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let buffered = self.pack.fill_buf()?;
        if let Some(on_start) = self.on_start.take_if(|_| !buffered.is_empty()) {
            on_start();
        }
        self.state.scan(buffered.get(self.scanned..).unwrap_or_default())?;
        self.scanned = buffered.len();
        Ok(buffered)
    }

    fn consume(&mut self, read: usize) {
        self.scanned = self.scanned.saturating_sub(read);
        self.pack.consume(read);
    }
}

impl<R: BufRead, B: FnOnce()> Read for PackScanner<R, B> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

/// The scanner's state: the position in the pack, and the entries that are complete.
struct PackScanState {
    position: PackPosition,
    /// Offset in the pack of the next byte.
    offset: u64,
    /// Offset in the pack of the current entry.
    entry_offset: u64,
    /// Number of entries that are not complete.
    remaining_entries: u32,
    limits: PackLimits,
    chains: DeltaChains,
    inflate: Decompress,
    buffer: Box<[u8]>,
}

/// The part of the pack that the next byte belongs to.
enum PackPosition {
    Header(Vec<u8>),
    /// The first byte of an entry.
    Kind,
    /// The rest of the declared size.
    Size {
        kind: u8,
        size: u64,
        shift: u32,
    },
    /// The distance to the base of a delta, in bytes of the pack.
    Distance {
        size: u64,
        distance: u64,
        is_first: bool,
    },
    /// The id of the base of a delta.
    Id {
        size: u64,
        id: Vec<u8>,
    },
    /// The compressed data of an entry.
    Body(EntryInflater),
    /// Past the last entry.
    End,
}

/// An entry being inflated. Its output is discarded, except for the two sizes at the start of a delta.
struct EntryInflater {
    base: DeltaBaseRef,
    /// Declared size after inflation.
    size: u64,
    compressed: u64,
    inflated: u64,
    /// The first bytes of a delta, which contain its two sizes.
    delta_start: Vec<u8>,
}

impl PackScanState {
    fn new(limits: PackLimits) -> Self {
        Self {
            position: PackPosition::Header(Vec::with_capacity(HEADER_BYTES)),
            offset: 0,
            entry_offset: 0,
            remaining_entries: 0,
            limits,
            chains: DeltaChains::new(limits),
            inflate: Decompress::new(true),
            buffer: vec![0; 32 << 10].into(),
        }
    }

    fn scan(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(&first) = bytes.first() {
            let taken = match self.position {
                PackPosition::End => return Ok(()),
                PackPosition::Body(_) => self.inflate_body(bytes)?,
                _ => {
                    self.scan_byte(first)?;
                    1
                }
            };
            self.offset += taken as u64;
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    fn scan_byte(&mut self, byte: u8) -> io::Result<()> {
        let continues = byte & 0x80 != 0;
        let low_bits = u64::from(byte & 0x7f);
        let position = match std::mem::replace(&mut self.position, PackPosition::End) {
            PackPosition::Header(mut header) => {
                header.push(byte);
                if header.len() < HEADER_BYTES {
                    PackPosition::Header(header)
                } else {
                    let count = header.last_chunk().copied().unwrap_or_default();
                    self.remaining_entries = u32::from_be_bytes(count);
                    if self.remaining_entries > self.limits.objects {
                        return Err(too_large(format!("{} objects in one pack", self.limits.objects)));
                    }
                    if self.remaining_entries == 0 { PackPosition::End } else { PackPosition::Kind }
                }
            }
            PackPosition::Kind => {
                self.entry_offset = self.offset;
                let (kind, size) = ((byte >> 4) & 7, u64::from(byte & 0xf));
                if continues { PackPosition::Size { kind, size, shift: 4 } } else { self.start_entry(kind, size)? }
            }
            PackPosition::Size { kind, size, shift } => {
                // A longer encoding is larger than any limit.
                let size = if shift > 50 { u64::MAX } else { size | low_bits << shift };
                if continues && size < u64::MAX {
                    PackPosition::Size { kind, size, shift: shift + 7 }
                } else {
                    self.start_entry(kind, size)?
                }
            }
            PackPosition::Distance { size, distance, is_first } => {
                let high_bits = if is_first { Some(0) } else { distance.checked_add(1) };
                let distance =
                    high_bits.and_then(|high_bits| high_bits.checked_mul(128)).ok_or_else(unreadable)? | low_bits;
                if continues {
                    PackPosition::Distance { size, distance, is_first: false }
                } else {
                    let base = self
                        .entry_offset
                        .checked_sub(distance)
                        .and_then(|base_offset| self.chains.index_at(base_offset))
                        .ok_or_else(unreadable)?;
                    PackPosition::Body(EntryInflater::new(DeltaBaseRef::Entry(base), size))
                }
            }
            PackPosition::Id { size, mut id } => {
                id.push(byte);
                match <[u8; ID_BYTES]>::try_from(&id[..]) {
                    Ok(id) => PackPosition::Body(EntryInflater::new(DeltaBaseRef::Id(id), size)),
                    Err(_) => PackPosition::Id { size, id },
                }
            }
            unchanged @ (PackPosition::Body(_) | PackPosition::End) => unchanged,
        };
        self.position = position;
        Ok(())
    }

    fn start_entry(&mut self, kind: u8, size: u64) -> io::Result<PackPosition> {
        let largest = if kind == 3 || kind > 4 { self.limits.blob_bytes } else { self.limits.other_bytes };
        if size > largest {
            return Err(too_large(format!("{largest} bytes in one object")));
        }
        self.inflate.reset(true);
        match kind {
            1 | 2 | 4 => Ok(PackPosition::Body(EntryInflater::new(DeltaBaseRef::NotADelta { is_blob: false }, size))),
            3 => Ok(PackPosition::Body(EntryInflater::new(DeltaBaseRef::NotADelta { is_blob: true }, size))),
            6 => Ok(PackPosition::Distance { size, distance: 0, is_first: true }),
            7 => Ok(PackPosition::Id { size, id: Vec::with_capacity(ID_BYTES) }),
            _ => Err(unreadable()),
        }
    }

    /// Inflates the next bytes of an entry. Returns the number of compressed bytes that were read.
    fn inflate_body(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let PackPosition::Body(body) = &mut self.position else { return Ok(0) };
        let (compressed, inflated) = (self.inflate.total_in(), self.inflate.total_out());
        let status =
            self.inflate.decompress(bytes, &mut self.buffer, FlushDecompress::None).map_err(|_| unreadable())?;
        let compressed = self.inflate.total_in() - compressed;
        let inflated = self.inflate.total_out() - inflated;
        let taken = usize::try_from(compressed).map_err(|_| unreadable())?;
        body.compressed += compressed;
        body.inflated += inflated;
        let missing = MAX_DELTA_SIZES_BYTES - body.delta_start.len();
        let added = usize::try_from(inflated).map_err(|_| unreadable())?.min(missing);
        body.delta_start.extend_from_slice(&self.buffer[..added]);
        let exceeds_declared_size =
            body.inflated > body.size || body.compressed > body.size + body.size / 8 + MAX_EXTRA_BYTES;
        if exceeds_declared_size || (status != Status::StreamEnd && compressed == 0 && inflated == 0) {
            return Err(unreadable());
        }
        if status == Status::StreamEnd {
            self.finish_entry()?;
        }
        Ok(taken)
    }

    /// Finishes an entry: checks its size, and adds it to the delta chains.
    fn finish_entry(&mut self) -> io::Result<()> {
        let PackPosition::Body(body) = std::mem::replace(&mut self.position, PackPosition::Kind) else { return Ok(()) };
        if body.inflated != body.size {
            return Err(unreadable());
        }
        let (base_size, size) = match body.base {
            DeltaBaseRef::NotADelta { .. } => (0, body.size),
            DeltaBaseRef::Entry(_) | DeltaBaseRef::Id(_) => delta_sizes(&body.delta_start).ok_or_else(unreadable)?,
        };
        self.chains.add(self.entry_offset, body.base, base_size, size).map_err(too_large)?;
        self.remaining_entries -= 1;
        if self.remaining_entries == 0 {
            self.position = PackPosition::End;
            self.chains.check().map_err(too_large)?;
        }
        Ok(())
    }
}

impl EntryInflater {
    fn new(base: DeltaBaseRef, size: u64) -> Self {
        Self { base, size, compressed: 0, inflated: 0, delta_start: Vec::with_capacity(MAX_DELTA_SIZES_BYTES) }
    }
}

/// The two sizes at the start of a delta: of its base and of its result.
fn delta_sizes(delta: &[u8]) -> Option<(u64, u64)> {
    let mut bytes = delta.iter();
    let mut read_size = || {
        let mut size = 0;
        for shift in (0..57).step_by(7) {
            let byte = bytes.next()?;
            size |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(size);
            }
        }
        None
    };
    Some((read_size()?, read_size()?))
}

fn unreadable() -> io::Error {
    io::Error::other(Fault::Unusable("a pack that cannot be read".to_owned()))
}

fn too_large(limit: String) -> io::Error {
    io::Error::other(TreeError::TooLarge(limit))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: PackLimits = PackLimits {
        objects: 100,
        blob_bytes: 10_000,
        other_bytes: 5_000,
        buffered_base_bytes: 30_000,
        chain_object_bytes: 30_000,
    };

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn varint(mut size: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while size > 0x7f {
            bytes.push(size as u8 | 0x80);
            size >>= 7;
        }
        bytes.push(size as u8);
        bytes
    }

    fn entry(kind: u8, size: usize, base: &[u8], bytes: &[u8]) -> Vec<u8> {
        let first = (kind << 4) | (size & 0xf) as u8;
        let head = if size > 0xf { [vec![first | 0x80], varint(size as u64 >> 4)].concat() } else { vec![first] };
        [head, base.to_vec(), deflate(bytes)].concat()
    }

    fn pack(entries: &[Vec<u8>]) -> Vec<u8> {
        let count = (entries.len() as u32).to_be_bytes();
        [b"PACK\0\0\0\x02", &count[..], &entries.concat(), &[7; 20]].concat()
    }

    /// A blob, a commit, a delta to the blob by offset, and a delta by id. Both deltas result in `result_size` bytes.
    fn sample_entries(result_size: u64) -> Vec<Vec<u8>> {
        let file = entry(3, 3000, &[], &[b'x'; 3000]);
        let commit = entry(1, 5, &[], b"tree ");
        let delta = [varint(3000), varint(result_size), vec![0x90, 10]].concat();
        // The offset spans both entries before this one, in git's encoding of at most two bytes.
        let distance = (file.len() + commit.len()) as u64;
        let distance = if distance < 128 {
            vec![distance as u8]
        } else {
            vec![(distance / 128 - 1) as u8 | 0x80, (distance % 128) as u8]
        };
        let by_offset = entry(6, delta.len(), &distance, &delta);
        vec![file, commit, by_offset, entry(7, delta.len(), &[9; 20], &delta)]
    }

    fn scan(bytes: &[u8], chunk_size: usize) -> io::Result<PackScanState> {
        let mut state = PackScanState::new(LIMITS);
        bytes.chunks(chunk_size.max(1)).try_for_each(|chunk| state.scan(chunk))?;
        Ok(state)
    }

    #[test]
    fn declared_sizes_in_a_pack_are_limited() {
        for (entries, message) in [
            (sample_entries(4000), None),
            (sample_entries(10_001), Some("10000 bytes in one object")),
            (vec![entry(3, 10_001, &[], &[0; 10_001])], Some("10000 bytes in one object")),
            (vec![entry(2, 5_001, &[], &[0; 5_001])], Some("5000 bytes in one object")),
            (vec![entry(3, 100, &[], &[0; 101])], Some("cannot be read")),
            (vec![entry(3, 102, &[], &[0; 101])], Some("cannot be read")),
            (vec![entry(5, 1, &[], b"x")], Some("cannot be read")),
            (vec![entry(6, 4, &[100], b"\x01\x01\x90\x01")], Some("cannot be read")),
            (vec![entry(7, 1, &[1; 20], b"\x81")], Some("cannot be read")),
        ] {
            for chunk_size in [1, 7, 100_000] {
                match (scan(&pack(&entries), chunk_size), message) {
                    (Ok(state), None) => assert!(matches!(state.position, PackPosition::End)),
                    (Err(error), Some(message)) => assert!(error.to_string().contains(message), "{error}"),
                    (_, message) => panic!("{message:?} {chunk_size}"),
                }
            }
        }
    }

    /// No memory is reserved for more objects than allowed (DESIGN, promise 11).
    #[test]
    fn a_pack_that_announces_too_many_objects_is_refused_by_its_header_alone() {
        for (announced, is_refused) in [(100_u32, false), (101, true), (u32::MAX, true)] {
            let header = [b"PACK\0\0\0\x02", &announced.to_be_bytes()[..]].concat();
            let refused = scan(&header, 5).err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), is_refused, "{announced}");
            assert!(refused.is_none_or(|refused| refused.contains("more than 100 objects in one pack")));
        }
    }

    #[test]
    fn the_scanner_passes_a_pack_on_unchanged_and_reports_its_start() {
        let bytes = pack(&sample_entries(4000));
        let start_reports = std::cell::Cell::new(0);
        let reader = io::BufReader::with_capacity(13, &bytes[..]);
        let mut scanner = PackScanner::new(reader, LIMITS, || start_reports.set(start_reports.get() + 1));
        let mut read = Vec::new();
        scanner.read_to_end(&mut read).unwrap();
        assert_eq!((&read, start_reports.get()), (&bytes, 1));
        assert!(matches!(scanner.state.position, PackPosition::End));
    }

    proptest! {
        #[test]
        fn any_bytes_are_scanned_or_refused(offset in 0_usize..200, byte in any::<u8>(), chunk_size in 1_usize..50, tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = pack(&sample_entries(4000));
            let index = offset % bytes.len();
            bytes[index] = byte;
            let _ = scan(&bytes, chunk_size);
            bytes.truncate(offset);
            bytes.extend(tail);
            let _ = scan(&bytes, chunk_size);
        }
    }
}
