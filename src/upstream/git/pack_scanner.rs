//! Scans a git pack as it arrives, and enforces the limits on objects, their sizes and delta chains. gix holds each
//! object in memory together with its bases, so declared sizes are checked before gix receives the bytes.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

use super::delta_memory::{DeltaBaseRef, DeltaChains, PackLimits};
use crate::pack::TreeError;
use crate::upstream::error::Fault;

/// The pack header: `PACK`, a version and the number of objects.
const HEADER: usize = 12;
/// The longest prefix of a delta that contains both of its sizes, in bytes.
const SIZES: usize = 20;
const ID: usize = 20;
/// Packed bytes that an entry may have beyond 9/8 of its declared size.
const SLACK: u64 = 64 << 10;

/// A reader that scans a pack while gix reads it.
pub(super) struct PackScanner<R, B> {
    pack: R,
    /// Called when the first byte of the pack arrives.
    begun: Option<B>,
    /// Buffered bytes already scanned.
    examined: usize,
    entries: PackScanState,
}

impl<R: BufRead, B: FnOnce()> PackScanner<R, B> {
    pub(super) fn new(pack: R, most: PackLimits, begun: B) -> Self {
        Self { pack, begun: Some(begun), examined: 0, entries: PackScanState::new(most) }
    }
}

impl<R: BufRead, B: FnOnce()> BufRead for PackScanner<R, B> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let waiting = self.pack.fill_buf()?;
        if let Some(begun) = self.begun.take_if(|_| !waiting.is_empty()) {
            begun();
        }
        self.entries.examine(waiting.get(self.examined..).unwrap_or_default())?;
        self.examined = waiting.len();
        Ok(waiting)
    }

    fn consume(&mut self, read: usize) {
        self.examined = self.examined.saturating_sub(read);
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

/// The scanner's state: the position in the pack, and the entries before it.
struct PackScanState {
    part: PackPosition,
    /// Offsets in the pack: of the next byte, and of the current entry.
    offset: u64,
    begins: u64,
    left: u32,
    limits: PackLimits,
    chains: DeltaChains,
    inflate: Decompress,
    buffer: Box<[u8]>,
}

/// The part of the pack that the next byte belongs to.
enum PackPosition {
    Header(Vec<u8>),
    Kind,
    Size {
        kind: u8,
        size: u64,
        shift: u32,
    },
    Distance {
        size: u64,
        distance: u64,
        is_first: bool,
    },
    Id {
        size: u64,
        id: Vec<u8>,
    },
    Body(EntryInflater),
    /// Past the last entry.
    End,
}

/// An entry being inflated. Its output is discarded, except for the two sizes at the start of a delta.
struct EntryInflater {
    base: DeltaBaseRef,
    /// Declared size after inflation.
    size: u64,
    packed: u64,
    unpacked: u64,
    sizes: Vec<u8>,
}

impl PackScanState {
    fn new(limits: PackLimits) -> Self {
        Self {
            part: PackPosition::Header(Vec::with_capacity(HEADER)),
            offset: 0,
            begins: 0,
            left: 0,
            limits,
            chains: DeltaChains::new(limits),
            inflate: Decompress::new(true),
            buffer: vec![0; 32 << 10].into(),
        }
    }

    fn examine(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(&first) = bytes.first() {
            let taken = match self.part {
                PackPosition::End => return Ok(()),
                PackPosition::Body(_) => self.unpack(bytes)?,
                _ => {
                    self.byte(first)?;
                    1
                }
            };
            self.offset += taken as u64;
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> io::Result<()> {
        let more = byte & 0x80 != 0;
        let low = u64::from(byte & 0x7f);
        let part = match std::mem::replace(&mut self.part, PackPosition::End) {
            PackPosition::Header(mut header) => {
                header.push(byte);
                if header.len() < HEADER {
                    PackPosition::Header(header)
                } else {
                    let count = header.last_chunk().copied().unwrap_or_default();
                    self.left = u32::from_be_bytes(count);
                    if self.left > self.limits.objects {
                        return Err(too_large(format!("{} objects in one pack", self.limits.objects)));
                    }
                    if self.left == 0 { PackPosition::End } else { PackPosition::Kind }
                }
            }
            PackPosition::Kind => {
                self.begins = self.offset;
                let (kind, size) = ((byte >> 4) & 7, u64::from(byte & 0xf));
                if more { PackPosition::Size { kind, size, shift: 4 } } else { self.start_entry(kind, size)? }
            }
            PackPosition::Size { kind, size, shift } => {
                // Larger than any limit.
                let size = if shift > 50 { u64::MAX } else { size | low << shift };
                if more && size < u64::MAX {
                    PackPosition::Size { kind, size, shift: shift + 7 }
                } else {
                    self.start_entry(kind, size)?
                }
            }
            PackPosition::Distance { size, distance, is_first } => {
                let before = if is_first { Some(0) } else { distance.checked_add(1) };
                let distance = before.and_then(|before| before.checked_mul(128)).ok_or_else(broken)? | low;
                if more {
                    PackPosition::Distance { size, distance, is_first: false }
                } else {
                    let base = self
                        .begins
                        .checked_sub(distance)
                        .and_then(|index| self.chains.index_at(index))
                        .ok_or_else(broken)?;
                    PackPosition::Body(EntryInflater::new(DeltaBaseRef::Before(base), size))
                }
            }
            PackPosition::Id { size, mut id } => {
                id.push(byte);
                match <[u8; ID]>::try_from(&id[..]) {
                    Ok(id) => PackPosition::Body(EntryInflater::new(DeltaBaseRef::Named(id), size)),
                    Err(_) => PackPosition::Id { size, id },
                }
            }
            other @ (PackPosition::Body(_) | PackPosition::End) => other,
        };
        self.part = part;
        Ok(())
    }

    fn start_entry(&mut self, kind: u8, size: u64) -> io::Result<PackPosition> {
        let largest = if kind == 3 || kind > 4 { self.limits.blob } else { self.limits.other };
        if size > largest {
            return Err(too_large(format!("{largest} bytes in one object")));
        }
        self.inflate.reset(true);
        match kind {
            1 | 2 | 4 => Ok(PackPosition::Body(EntryInflater::new(DeltaBaseRef::Nothing { is_blob: false }, size))),
            3 => Ok(PackPosition::Body(EntryInflater::new(DeltaBaseRef::Nothing { is_blob: true }, size))),
            6 => Ok(PackPosition::Distance { size, distance: 0, is_first: true }),
            7 => Ok(PackPosition::Id { size, id: Vec::with_capacity(ID) }),
            _ => Err(broken()),
        }
    }

    /// Inflates part of an entry. Returns the number of packed bytes that were read.
    fn unpack(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let PackPosition::Body(body) = &mut self.part else { return Ok(0) };
        let (packed, unpacked) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(bytes, &mut self.buffer, FlushDecompress::None).map_err(|_| broken())?;
        let packed = self.inflate.total_in() - packed;
        let unpacked = self.inflate.total_out() - unpacked;
        let taken = usize::try_from(packed).map_err(|_| broken())?;
        body.packed += packed;
        body.unpacked += unpacked;
        let missing = SIZES - body.sizes.len();
        let new = usize::try_from(unpacked).map_err(|_| broken())?.min(missing);
        body.sizes.extend_from_slice(&self.buffer[..new]);
        let is_more_than_it_said = body.unpacked > body.size || body.packed > body.size + body.size / 8 + SLACK;
        if is_more_than_it_said || (status != Status::StreamEnd && packed == 0 && unpacked == 0) {
            return Err(broken());
        }
        if status == Status::StreamEnd {
            self.finish_entry()?;
        }
        Ok(taken)
    }

    /// Finishes an entry: checks its size, and adds it to the delta chains.
    fn finish_entry(&mut self) -> io::Result<()> {
        let PackPosition::Body(body) = std::mem::replace(&mut self.part, PackPosition::Kind) else { return Ok(()) };
        if body.unpacked != body.size {
            return Err(broken());
        }
        let (of_base, size) = match body.base {
            DeltaBaseRef::Nothing { .. } => (0, body.size),
            DeltaBaseRef::Before(_) | DeltaBaseRef::Named(_) => both_sizes(&body.sizes).ok_or_else(broken)?,
        };
        self.chains.add(self.begins, body.base, of_base, size).map_err(too_large)?;
        self.left -= 1;
        if self.left == 0 {
            self.part = PackPosition::End;
            self.chains.check().map_err(too_large)?;
        }
        Ok(())
    }
}

impl EntryInflater {
    fn new(base: DeltaBaseRef, size: u64) -> Self {
        Self { base, size, packed: 0, unpacked: 0, sizes: Vec::with_capacity(SIZES) }
    }
}

/// The two sizes at the start of a delta: of its base and of its result.
fn both_sizes(delta: &[u8]) -> Option<(u64, u64)> {
    let mut bytes = delta.iter();
    let mut size = || {
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
    Some((size()?, size()?))
}

fn broken() -> io::Error {
    io::Error::other(Fault::Unusable("a pack that cannot be read".to_owned()))
}

fn too_large(subject: String) -> io::Error {
    io::Error::other(TreeError::TooLarge(subject))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;

    use super::*;

    const MOST: PackLimits =
        PackLimits { objects: 100, blob: 10_000, other: 5_000, chain_memory: 30_000, chain_total: 30_000 };

    fn packed(bytes: &[u8]) -> Vec<u8> {
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
        [head, base.to_vec(), packed(bytes)].concat()
    }

    fn pack(entries: &[Vec<u8>]) -> Vec<u8> {
        let count = (entries.len() as u32).to_be_bytes();
        [b"PACK\0\0\0\x02", &count[..], &entries.concat(), &[7; 20]].concat()
    }

    /// A blob, a commit, a delta to the blob by offset, and a delta by id.
    fn full_packs(of_delta: u64) -> Vec<Vec<u8>> {
        let file = entry(3, 3000, &[], &[b'x'; 3000]);
        let commit = entry(1, 5, &[], b"tree ");
        let delta = [varint(3000), varint(of_delta), vec![0x90, 10]].concat();
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

    fn examined(bytes: &[u8], at_once: usize) -> io::Result<PackScanState> {
        let mut entries = PackScanState::new(MOST);
        bytes.chunks(at_once.max(1)).try_for_each(|piece| entries.examine(piece))?;
        Ok(entries)
    }

    #[test]
    fn declared_sizes_in_a_pack_are_limited() {
        for (entries, message) in [
            (full_packs(4000), None),
            (full_packs(10_001), Some("10000 bytes in one object")),
            (vec![entry(3, 10_001, &[], &[0; 10_001])], Some("10000 bytes in one object")),
            (vec![entry(2, 5_001, &[], &[0; 5_001])], Some("5000 bytes in one object")),
            (vec![entry(3, 100, &[], &[0; 101])], Some("cannot be read")),
            (vec![entry(3, 102, &[], &[0; 101])], Some("cannot be read")),
            (vec![entry(5, 1, &[], b"x")], Some("cannot be read")),
            (vec![entry(6, 4, &[100], b"\x01\x01\x90\x01")], Some("cannot be read")),
            (vec![entry(7, 1, &[1; 20], b"\x81")], Some("cannot be read")),
        ] {
            for at_once in [1, 7, 100_000] {
                match (examined(&pack(&entries), at_once), message) {
                    (Ok(entries), None) => assert!(matches!(entries.part, PackPosition::End)),
                    (Err(error), Some(message)) => assert!(error.to_string().contains(message), "{error}"),
                    (_, message) => panic!("{message:?} {at_once}"),
                }
            }
        }
    }

    /// DESIGN, promise 11: no memory is reserved for more objects than allowed.
    #[test]
    fn a_pack_that_announces_too_many_objects_is_refused_by_its_header_alone() {
        for (announced, is_refused) in [(100_u32, false), (101, true), (u32::MAX, true)] {
            let header = [b"PACK\0\0\0\x02", &announced.to_be_bytes()[..]].concat();
            let refused = examined(&header, 5).err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), is_refused, "{announced}");
            assert!(refused.is_none_or(|refused| refused.contains("more than 100 objects in one pack")));
        }
    }

    #[test]
    fn the_scanner_passes_a_pack_on_unchanged_and_reports_its_start() {
        let bytes = pack(&full_packs(4000));
        let begun = std::cell::Cell::new(0);
        let pieces = io::BufReader::with_capacity(13, &bytes[..]);
        let mut watched = PackScanner::new(pieces, MOST, || begun.set(begun.get() + 1));
        let mut read = Vec::new();
        watched.read_to_end(&mut read).unwrap();
        assert_eq!((&read, begun.get()), (&bytes, 1));
        assert!(matches!(watched.entries.part, PackPosition::End));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_pack_or_refused(offset in 0_usize..200, byte in any::<u8>(), at_once in 1_usize..50, tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = pack(&full_packs(4000));
            let place = offset % bytes.len();
            bytes[place] = byte;
            let _ = examined(&bytes, at_once);
            bytes.truncate(offset);
            bytes.extend(tail);
            let _ = examined(&bytes, at_once);
        }
    }
}
