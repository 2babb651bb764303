//! Scans a git pack as it arrives, and enforces the limits on objects, their sizes and delta chains. gix holds each
//! object in memory together with its bases, so declared sizes are checked before gix receives the bytes.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};
use gix_hash::ObjectId;
use gix_pack::data;
use gix_pack::data::entry::Header;

use super::connection::Extent;
use crate::packaging::TreeError;
use crate::upstream::error::Fault;
use crate::upstream::limits::{GitLimits, GrowingMemory};

/// The pack header: `PACK`, a version and the number of objects.
const HEADER_BYTES: usize = 12;
/// The longest prefix of a delta that contains both of its sizes, in bytes.
const MAX_DELTA_SIZES_BYTES: usize = 20;
const ID_BYTES: usize = 20;
/// The longest header of an entry: a size of 64 bits, and the id of a base.
const MAX_ENTRY_HEADER_BYTES: usize = 10 + ID_BYTES;
/// The size of an object from which its memory counts, in bytes.
const MIN_COUNTED_BYTES: u64 = 1 << 20;
/// The copies of an object that are in memory at one time, or objects of its size.
pub(super) const COPIES_IN_MEMORY: usize = 3;
/// Compressed bytes that an entry may have beyond 9/8 of its declared size.
const MAX_EXTRA_BYTES: u64 = 64 << 10;

/// A reader that scans a pack while gix reads it.
pub(super) struct PackScanner<'m, R, B> {
    pack: R,
    /// Called when the first byte of the pack arrives.
    on_start: Option<B>,
    /// Number of buffered bytes that are scanned already.
    scanned: usize,
    state: PackScanState<'m>,
}

impl<'m, R: BufRead, B: FnOnce()> PackScanner<'m, R, B> {
    pub(super) fn new(pack: R, limits: PackLimits, memory: &'m mut GrowingMemory, on_start: B) -> Self {
        Self { pack, on_start: Some(on_start), scanned: 0, state: PackScanState::new(limits, memory) }
    }
}

impl<R: BufRead, B: FnOnce()> BufRead for PackScanner<'_, R, B> {
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

impl<R: BufRead, B: FnOnce()> Read for PackScanner<'_, R, B> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

/// The scanner's state: the position in the pack, and the entries that are complete.
struct PackScanState<'m> {
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
    /// The memory of the largest objects.
    memory: &'m mut GrowingMemory,
}

/// The part of the pack that the next byte belongs to.
enum PackPosition {
    /// The pack header, with its bytes so far.
    PackHeader(Vec<u8>),
    /// The header of an entry, with its bytes so far.
    EntryHeader(Vec<u8>),
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

impl<'m> PackScanState<'m> {
    fn new(limits: PackLimits, memory: &'m mut GrowingMemory) -> Self {
        Self {
            position: PackPosition::PackHeader(Vec::with_capacity(HEADER_BYTES)),
            offset: 0,
            entry_offset: 0,
            remaining_entries: 0,
            limits,
            chains: DeltaChains::new(limits),
            inflate: Decompress::new(true),
            buffer: vec![0; 32 << 10].into(),
            memory,
        }
    }

    /// Takes memory for an object. git has it with its base and its delta, or with what is made of it.
    fn take_memory(&mut self, object_bytes: u64) -> io::Result<()> {
        if object_bytes < MIN_COUNTED_BYTES {
            return Ok(());
        }
        let taken = self.memory.grow_to(object_bytes.saturating_mul(COPIES_IN_MEMORY as u64));
        let reached = "the large objects of git repositories that are in memory have reached their limit";
        taken.map_err(|_| io::Error::other(Fault::LocalLimit(reached.to_owned())))
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
        match &mut self.position {
            PackPosition::PackHeader(header) => {
                header.push(byte);
                if header.len() == HEADER_BYTES {
                    self.remaining_entries = header.last_chunk().copied().map_or(0, u32::from_be_bytes);
                    TreeError::check_limit(self.remaining_entries, self.limits.objects, "objects in one pack")
                        .map_err(io::Error::other)?;
                    self.expect_entry();
                }
            }
            PackPosition::EntryHeader(header) => {
                if header.is_empty() {
                    self.entry_offset = self.offset;
                }
                header.push(byte);
                let length = header.len();
                match data::Entry::from_read(&mut &header[..], self.entry_offset, ID_BYTES) {
                    Ok(entry) => self.position = PackPosition::Body(self.start_entry(&entry)?),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && length < MAX_ENTRY_HEADER_BYTES => {}
                    Err(_) => return Err(unreadable()),
                }
            }
            PackPosition::Body(_) | PackPosition::End => {}
        }
        Ok(())
    }

    /// Goes on to the next entry, which begins after the current byte, or to the end.
    fn expect_entry(&mut self) {
        self.position = match self.remaining_entries {
            0 => PackPosition::End,
            _ => PackPosition::EntryHeader(Vec::with_capacity(MAX_ENTRY_HEADER_BYTES)),
        };
    }

    fn start_entry(&mut self, entry: &data::Entry) -> io::Result<EntryInflater> {
        let base = match entry.header {
            Header::Commit | Header::Tree | Header::Tag => DeltaBaseRef::NotADelta { is_blob: false },
            Header::Blob => DeltaBaseRef::NotADelta { is_blob: true },
            Header::OfsDelta { base_distance } => {
                let offset = self.entry_offset.checked_sub(base_distance);
                let base = offset.and_then(|offset| self.chains.index_at(offset));
                DeltaBaseRef::Entry(base.ok_or_else(unreadable)?)
            }
            Header::RefDelta { base_id } => DeltaBaseRef::Id(base_id),
        };
        let largest = match base {
            DeltaBaseRef::NotADelta { is_blob: false } => self.limits.other_bytes,
            _ => self.limits.blob_bytes,
        };
        if entry.decompressed_size > largest as u64 {
            // The size of a delta is not that of a file.
            let file_bytes = matches!(base, DeltaBaseRef::NotADelta { .. }).then_some(entry.decompressed_size);
            return Err(large_object(!matches!(base, DeltaBaseRef::NotADelta { is_blob: false }), file_bytes, largest));
        }
        self.take_memory(entry.decompressed_size)?;
        self.inflate.reset(true);
        let delta_start = Vec::with_capacity(MAX_DELTA_SIZES_BYTES);
        Ok(EntryInflater { base, size: entry.decompressed_size, compressed: 0, inflated: 0, delta_start })
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
        let PackPosition::Body(body) = std::mem::replace(&mut self.position, PackPosition::End) else { return Ok(()) };
        if body.inflated != body.size {
            return Err(unreadable());
        }
        let (base_size, size) = match body.base {
            DeltaBaseRef::NotADelta { .. } => (0, body.size),
            DeltaBaseRef::Entry(_) | DeltaBaseRef::Id(_) => delta_sizes(&body.delta_start).ok_or_else(unreadable)?,
        };
        self.chains.add(self.entry_offset, body.base, base_size, size)?;
        self.take_memory(size.max(base_size))?;
        self.remaining_entries -= 1;
        if self.remaining_entries == 0 {
            self.chains.check().map_err(too_large)?;
        }
        self.expect_entry();
        Ok(())
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

/// The error for an object beyond its limit. A delta may be of a file, and mostly is.
fn large_object(is_file: bool, size_bytes: Option<u64>, limit: usize) -> io::Error {
    match is_file {
        true => io::Error::other(TreeError::LargeFile { file: None, size_bytes, limit: limit as u64 }),
        false => too_large(format!("{limit} bytes in one object")),
    }
}

fn too_large(limit: String) -> io::Error {
    io::Error::other(TreeError::TooLarge(limit))
}

/// Allocation limit for the pack of a history. The history may contain larger files than the wanted commit, and many
/// objects, which are entries of one table.
pub(super) const MAX_HISTORY_BLOB_BYTES: usize = 256 << 20;
/// Number of deltas in a chain. Git makes at most 4,095.
const MAX_CHAIN_LENGTH: u32 = 4096;
/// Factor for the total size of a chain in a history. Chains of a history are as long as the history, so their total size
/// may be this multiple of the memory limit.
const HISTORY_CHAIN_FACTOR: u64 = 16;

/// Limits for one pack: the number of objects, their sizes in bytes, and their delta chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackLimits {
    pub(super) objects: u32,
    /// Size of a blob (a file).
    pub(super) blob_bytes: usize,
    /// Size of any other object: a tree, a commit or a tag.
    pub(super) other_bytes: usize,
    /// Bytes of the bases that stay in memory at one time while the deltas of one chain are resolved.
    pub(super) buffered_base_bytes: u64,
    /// Bytes of all objects of one chain, one after the other. Each is made of the one before, up to the last.
    pub(super) chain_object_bytes: u64,
}

impl PackLimits {
    /// Limits for the files of one commit, or for a history, which may contain larger files than the wanted commit.
    pub(super) fn of(extent: Extent, limits: GitLimits, max_file_bytes: u64) -> Self {
        let GitLimits { objects, object_bytes, chain_bytes, .. } = limits;
        // A chain of a few versions of the largest file is nothing unusual.
        let chain_bytes = chain_bytes.max(max_file_bytes.saturating_mul(COPIES_IN_MEMORY as u64));
        let max_file_bytes = usize::try_from(max_file_bytes).unwrap_or(usize::MAX);
        let (blob_bytes, chain_object_bytes) = match extent {
            Extent::OneCommit => (max_file_bytes, chain_bytes),
            Extent::CommitsOnly | Extent::Everything => {
                (max_file_bytes.max(MAX_HISTORY_BLOB_BYTES), chain_bytes.saturating_mul(HISTORY_CHAIN_FACTOR))
            }
        };
        let buffered_base_bytes = chain_bytes;
        Self { objects, blob_bytes, other_bytes: object_bytes, buffered_base_bytes, chain_object_bytes }
    }
}

/// The base of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeltaBaseRef {
    /// The entry is a whole object, not a delta.
    NotADelta {
        /// True for a blob (a file).
        is_blob: bool,
    },
    /// An earlier entry of the pack, by its index.
    Entry(u32),
    /// The object with this id, which may be anywhere in the pack.
    Id(ObjectId),
}

#[derive(Debug, Clone, Copy)]
struct PackEntry {
    /// Size of the base as the delta declares it; 0 for a whole object.
    base_size: u64,
    /// Offset in the pack.
    offset: u64,
    size: u64,
    base: DeltaBaseRef,
    is_blob: bool,
    /// Number of deltas with this entry as base.
    children: u32,
}

/// All entries of a pack, in the order of the pack.
#[derive(Debug)]
struct DeltaChains {
    limits: PackLimits,
    entries: Vec<PackEntry>,
}

/// Cumulative sizes of a chain at one entry.
#[derive(Debug, Clone, Copy, Default)]
struct ChainLink {
    depth: u32,
    /// Total size of the objects.
    total: u64,
    /// Total size of the bases that stay in memory.
    buffered: u64,
    /// Index of the chain's first entry.
    root: usize,
}

impl DeltaChains {
    fn new(limits: PackLimits) -> Self {
        Self { limits, entries: Vec::new() }
    }

    /// The index of the entry at this offset.
    fn index_at(&self, offset: u64) -> Option<u32> {
        let index = self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
        u32::try_from(index).ok()
    }

    /// Adds the next entry, whose base has `base_size` bytes.
    ///
    /// # Errors
    /// The limit that is exceeded.
    fn add(&mut self, offset: u64, base: DeltaBaseRef, base_size: u64, size: u64) -> io::Result<()> {
        let is_blob = match base {
            DeltaBaseRef::NotADelta { is_blob } => is_blob,
            DeltaBaseRef::Entry(base) => self.entries.get(base as usize).is_some_and(|base| base.is_blob),
            DeltaBaseRef::Id(_) => true,
        };
        let largest = if is_blob { self.limits.blob_bytes } else { self.limits.other_bytes };
        if size.max(base_size) > largest as u64 {
            return Err(large_object(is_blob, Some(size).filter(|size| *size > largest as u64), largest));
        }
        if let DeltaBaseRef::Entry(base) = base
            && let Some(base) = self.entries.get_mut(base as usize)
        {
            base.children += 1;
        }
        self.entries.push(PackEntry { base_size, offset, size, base, is_blob, children: 0 });
        Ok(())
    }

    /// Checks the limits after the last entry. A base stays in memory while another delta needs it.
    ///
    /// # Errors
    /// The limit that is exceeded.
    fn check(&self) -> Result<(), String> {
        let mut links: Vec<ChainLink> = Vec::with_capacity(self.entries.len());
        let mut max = ChainLink::default();
        // The id of an entry is unknown until the entry is resolved, so all chains with a base by id may form one chain.
        let mut chains_by_id: HashMap<usize, ChainLink> = HashMap::new();
        let mut base_ids = HashSet::new();
        let mut base_sizes: u64 = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if let DeltaBaseRef::Id(id) = entry.base
                && base_ids.insert(id)
            {
                base_sizes = base_sizes.saturating_add(entry.base_size);
            }
            let link = match entry.base {
                DeltaBaseRef::NotADelta { .. } | DeltaBaseRef::Id(_) => {
                    ChainLink { depth: 0, total: entry.size, buffered: 0, root: index }
                }
                DeltaBaseRef::Entry(base) => {
                    let (base_link, base) = links
                        .get(base as usize)
                        .zip(self.entries.get(base as usize))
                        .ok_or("the entries before a delta")?;
                    let buffered = if base.children > 1 { base.size } else { 0 };
                    ChainLink {
                        depth: base_link.depth + 1,
                        total: base_link.total.saturating_add(entry.size),
                        buffered: base_link.buffered.saturating_add(buffered),
                        root: base_link.root,
                    }
                }
            };
            if link.depth > MAX_CHAIN_LENGTH {
                return Err(format!("{MAX_CHAIN_LENGTH} objects one made out of the other"));
            }
            let has_base_by_id =
                matches!(self.entries.get(link.root), Some(PackEntry { base: DeltaBaseRef::Id(_), .. }));
            let group = if has_base_by_id { chains_by_id.entry(link.root).or_default() } else { &mut max };
            group.total = group.total.max(link.total);
            group.buffered = group.buffered.max(link.buffered);
            links.push(link);
        }
        for link in chains_by_id.values() {
            max.total = max.total.saturating_add(link.total);
            max.buffered = max.buffered.saturating_add(link.buffered);
        }
        max.buffered = max.buffered.saturating_add(base_sizes);
        let PackLimits { buffered_base_bytes, chain_object_bytes, .. } = self.limits;
        if max.buffered > buffered_base_bytes {
            return Err(format!("{buffered_base_bytes} bytes in objects of which others are made"));
        }
        if max.total > chain_object_bytes {
            return Err(format!("{chain_object_bytes} bytes in objects one made out of the other"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;

    use super::*;
    use crate::address::Hostname;
    use crate::upstream::limits::{DocumentMemory, UpstreamLimits};

    const LIMITS: PackLimits = PackLimits {
        objects: 100,
        blob_bytes: 10_000,
        other_bytes: 5_000,
        buffered_base_bytes: 30_000,
        chain_object_bytes: 30_000,
    };

    fn memory() -> GrowingMemory {
        let limits = UpstreamLimits::default().document_memory;
        DocumentMemory::new(limits).start(&Hostname::parse("registry.example").unwrap(), 0)
    }

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

    fn scan(bytes: &[u8], chunk_size: usize) -> io::Result<PackScanState<'static>> {
        let mut state = PackScanState::new(LIMITS, Box::leak(Box::new(memory())));
        bytes.chunks(chunk_size.max(1)).try_for_each(|chunk| state.scan(chunk))?;
        Ok(state)
    }

    #[test]
    fn declared_sizes_in_a_pack_are_limited() {
        for (entries, message) in [
            (sample_entries(4000), None),
            (sample_entries(10_001), Some("10001 bytes; larder takes 10000")),
            (vec![entry(3, 10_001, &[], &[0; 10_001])], Some("10001 bytes; larder takes 10000")),
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

    /// No memory is reserved for more objects than allowed (promise 11).
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
        let mut memory = memory();
        let on_start = || start_reports.set(start_reports.get() + 1);
        let mut scanner = PackScanner::new(reader, LIMITS, &mut memory, on_start);
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

    const MIB: u64 = 1 << 20;
    const ROOT: DeltaBaseRef = DeltaBaseRef::NotADelta { is_blob: true };

    fn check_entries(limits: PackLimits, entries: &[(DeltaBaseRef, u64)]) -> Result<(), String> {
        let mut chains = DeltaChains::new(limits);
        for (index, (base, size)) in entries.iter().enumerate() {
            chains.add(index as u64 * 10, *base, *size, *size).map_err(|error| error.to_string())?;
        }
        chains.check()
    }

    fn chain(length: u32, size: u64, with_siblings: bool) -> Vec<(DeltaBaseRef, u64)> {
        let mut entries = vec![(ROOT, size)];
        let mut last = 0;
        for _ in 1..length {
            entries.push((DeltaBaseRef::Entry(last), size));
            if with_siblings {
                entries.push((DeltaBaseRef::Entry(last), size));
            }
            last = entries.len() as u32 - 1;
        }
        entries
    }

    #[test]
    fn chains_are_limited_in_depth_and_size() {
        let commit_limits = PackLimits::of(Extent::OneCommit, GitLimits::default(), 32 * MIB);
        let history_limits = PackLimits::of(Extent::Everything, GitLimits::default(), 32 * MIB);
        for (entries, fits_commit, fits_history) in [
            (chain(8, 32 * MIB, true), true, true),
            (chain(1000, 32 * MIB, true), false, false),
            (chain(100, 32 * MIB, false), false, true),
            (chain(200, 32 * MIB, false), false, false),
            (chain(50, 10 * MIB, true), false, false),
            (chain(4097, 1, true), true, true),
            (chain(4098, 1, true), false, false),
            (vec![(ROOT, 33 * MIB)], false, true),
            (vec![(DeltaBaseRef::NotADelta { is_blob: false }, 33 * MIB)], false, false),
            (vec![(ROOT, 32 * MIB); 100], true, true),
            ((0..7).map(|n| (DeltaBaseRef::Id(ObjectId::from([n; 20])), 16 * MIB)).collect(), true, true),
            ((0..100).map(|n| (DeltaBaseRef::Id(ObjectId::from([n; 20])), 16 * MIB)).collect(), false, false),
        ] {
            let first = &entries[..entries.len().min(3)];
            assert_eq!(check_entries(commit_limits, &entries).is_ok(), fits_commit, "{first:?}");
            assert_eq!(check_entries(history_limits, &entries).is_ok(), fits_history, "in a history: {first:?}");
        }
    }
}
