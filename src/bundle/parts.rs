//! A bundle split into parts of one size, for disks that are smaller than the bundle or cannot store such large files.
//! A list names the parts with their sizes and digests. A repeated run compares each part with the bytes it would
//! write, and writes only from the first difference on.

use std::io::{self, Read, Seek, SeekFrom, Write};

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::{Digest, Hasher, HashingReader};

const FORMAT: u32 = 1;
const MAX_PARTS: usize = 99_999;
/// The smallest size of a part in bytes; the last part may be smaller.
pub const MIN_PART_BYTES: u64 = 1 << 20;
const MAX_LIST_BYTES: usize = 32 << 20;

/// The contents of `larder-bundle.parts.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartList {
    format: u32,
    /// The creation time of the bundle, in epoch seconds. A repeated run reuses the time, so that an unchanged store
    /// gives equal bytes.
    pub created: Timestamp,
    /// The size of every part but the last, in bytes.
    pub part_bytes: u64,
    /// True once every part is written.
    pub complete: bool,
    /// The parts in order.
    pub parts: Vec<BundlePart>,
}

/// One part of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundlePart {
    /// The file name.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The SHA-256 of its bytes.
    pub sha256: Digest,
}

/// Why a list of parts, or the parts themselves, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadParts {
    /// The list is malformed.
    #[error("larder-bundle.parts.json cannot be read: {0}")]
    Unreadable(String),
    /// The bundle was not written to its end.
    #[error("larder-bundle.parts.json lists an incomplete bundle; run the same `larder bundle create` again")]
    Incomplete,
    /// Parts are missing or have another size; the text names each.
    #[error("{0}")]
    Missing(String),
}

impl PartList {
    /// The file name of the list.
    pub const NAME: &'static str = "larder-bundle.parts.json";

    /// An incomplete list without parts. `part_bytes` is raised to [`MIN_PART_BYTES`].
    pub fn empty(created: Timestamp, part_bytes: u64) -> Self {
        Self { format: FORMAT, created, part_bytes: part_bytes.max(MIN_PART_BYTES), complete: false, parts: Vec::new() }
    }

    /// The file name of a part. Numbers start at one.
    pub fn part_name(number: usize) -> String {
        format!("part-{number:05}")
    }

    /// Parses and checks a list.
    ///
    /// # Errors
    /// [`BadParts::Unreadable`].
    pub fn read(bytes: &[u8]) -> Result<Self, BadParts> {
        let bad = |reason: String| Err(BadParts::Unreadable(reason));
        if bytes.len() > MAX_LIST_BYTES {
            return bad(format!("the list is larger than {} MiB", MAX_LIST_BYTES >> 20));
        }
        let list: Self = serde_json::from_slice(bytes).map_err(|e| BadParts::Unreadable(e.to_string()))?;
        if list.format != FORMAT {
            return bad(format!("the list has format {}, but this larder reads {FORMAT}", list.format));
        }
        if list.parts.len() > MAX_PARTS || list.part_bytes < MIN_PART_BYTES {
            return bad("there are too many parts, or they are too small".to_owned());
        }
        let last_number = list.parts.len();
        for (number, part) in (1..).zip(&list.parts) {
            // No other name is accepted, so that a list cannot name files outside the folder.
            if part.name != Self::part_name(number) {
                return bad(format!("part {number} is not named {}", Self::part_name(number)));
            }
            let is_full = part.bytes == list.part_bytes || (number == last_number && part.bytes <= list.part_bytes);
            if !is_full || part.bytes == 0 {
                return bad(format!("{} has an invalid size", part.name));
            }
        }
        Ok(list)
    }

    /// Serialises the list for [`PartList::read`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut written = serde_json::to_vec_pretty(self).expect("names and numbers always serialise");
        written.push(b'\n');
        written
    }

    /// Checks that every part exists and has its size; `size_of` returns the size of a file. Reads no contents.
    ///
    /// # Errors
    /// [`BadParts`], which names every part that is missing or has another size.
    pub fn check_sizes(&self, size_of: impl Fn(&str) -> io::Result<Option<u64>>) -> Result<(), BadParts> {
        if !self.complete {
            return Err(BadParts::Incomplete);
        }
        let mut problems = Vec::new();
        for BundlePart { name, bytes, .. } in &self.parts {
            match size_of(name) {
                Ok(Some(actual)) if actual == *bytes => {}
                Ok(Some(actual)) => problems.push(format!("{name} has {actual} bytes instead of {bytes}")),
                Ok(None) => problems.push(format!("{name} is missing")),
                Err(e) => problems.push(format!("{name} cannot be read: {e}")),
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(BadParts::Missing(problems.join("; "))) }
    }

    /// The bytes of all parts together.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }
}

/// Reads parts as one stream and checks the digest of each at its end. `open` opens a part by its name.
pub struct PartsReader<O, R> {
    open: O,
    parts: std::vec::IntoIter<BundlePart>,
    current: Option<(BundlePart, HashingReader<io::Take<R>>)>,
}

impl<R: Read, O: FnMut(&str) -> io::Result<R>> PartsReader<O, R> {
    /// Creates a reader over the parts of a list.
    pub fn new(list: PartList, open: O) -> Self {
        Self { open, parts: list.parts.into_iter(), current: None }
    }
}

impl<R: Read, O: FnMut(&str) -> io::Result<R>> Read for PartsReader<O, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let (part, mut contents) = match self.current.take() {
                Some(current) => current,
                None => {
                    let Some(part) = self.parts.next() else { return Ok(0) };
                    let failed =
                        |e: io::Error| io::Error::new(e.kind(), format!("{} cannot be opened: {e}", part.name));
                    let contents = HashingReader::new((self.open)(&part.name).map_err(failed)?.take(part.bytes));
                    (part, contents)
                }
            };
            let read = contents.read(buffer);
            if !matches!(read, Ok(0)) {
                self.current = Some((part, contents));
                return read;
            }
            if contents.inner().limit() > 0 {
                return Err(io::Error::other(format!("{} ends too early", part.name)));
            }
            let actual = contents.digest();
            if actual != part.sha256 {
                let reason = format!("{} has changed: expected SHA-256 {}, got {actual}", part.name, part.sha256);
                return Err(io::Error::other(reason));
            }
        }
    }
}

/// Writes one stream in parts. Bytes that a part already contains are compared; writing starts at the first chunk that
/// differs. `open` opens a part by its name for reading and writing, and creates the file if it is absent. `finish`
/// truncates a complete part to its size and syncs it.
pub struct PartsWriter<O, K, F> {
    open: O,
    finish: K,
    current: Option<CurrentPart<F>>,
    written: WrittenParts,
}

/// The result of writing all parts.
#[derive(Debug)]
pub struct WrittenParts {
    /// The complete list.
    pub list: PartList,
    /// The number of bytes that the files already contained.
    pub reused: u64,
    /// The names of the parts that were absent or differed.
    pub changed: Vec<String>,
}

/// The part that is being written.
struct CurrentPart<F> {
    name: String,
    file: F,
    hasher: Hasher,
    bytes: u64,
    /// True as long as the file already contained every byte that was written to this part.
    matches_so_far: bool,
}

impl<F, O, K> PartsWriter<O, K, F>
where
    F: Read + Write + Seek,
    O: FnMut(&str) -> io::Result<F>,
    K: FnMut(F, u64) -> io::Result<()>,
{
    /// Creates a writer with the creation time and part size of `list`.
    pub fn new(list: PartList, open: O, finish: K) -> Self {
        let list = PartList { parts: Vec::new(), complete: false, ..list };
        Self { open, finish, current: None, written: WrittenParts { list, reused: 0, changed: Vec::new() } }
    }

    /// Completes the last part and the list.
    ///
    /// # Errors
    /// Errors of `finish`.
    pub fn end(mut self) -> io::Result<WrittenParts> {
        if let Some(last) = self.current.take() {
            self.end_part(last)?;
        }
        self.written.list.complete = true;
        Ok(self.written)
    }

    fn end_part(&mut self, part: CurrentPart<F>) -> io::Result<()> {
        let CurrentPart { name, file, hasher, bytes, matches_so_far } = part;
        (self.finish)(file, bytes).map_err(|e| part_error(&name, &e))?;
        if !matches_so_far {
            self.written.changed.push(name.clone());
        }
        let (sha256, _) = hasher.finish();
        self.written.list.parts.push(BundlePart { name, bytes, sha256 });
        Ok(())
    }

    /// The part that the next byte belongs to. Finishes a full part and opens the next one.
    fn writable_part(&mut self) -> io::Result<&mut CurrentPart<F>> {
        let part = match self.current.take() {
            Some(part) if part.bytes < self.written.list.part_bytes => part,
            full => {
                full.map_or(Ok(()), |full| self.end_part(full))?;
                let number = self.written.list.parts.len() + 1;
                if number > MAX_PARTS {
                    let reason = format!("more than {MAX_PARTS} parts would be needed; make them larger");
                    return Err(io::Error::other(reason));
                }
                let name = PartList::part_name(number);
                let file = (self.open)(&name).map_err(|e| part_error(&name, &e))?;
                CurrentPart { name, file, hasher: Hasher::new(), bytes: 0, matches_so_far: true }
            }
        };
        Ok(self.current.insert(part))
    }
}

impl<F, O, K> Write for PartsWriter<O, K, F>
where
    F: Read + Write + Seek,
    O: FnMut(&str) -> io::Result<F>,
    K: FnMut(F, u64) -> io::Result<()>,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let part_bytes = self.written.list.part_bytes;
        let part = self.writable_part()?;
        let space = usize::try_from(part_bytes - part.bytes).unwrap_or(usize::MAX);
        let chunk = bytes.get(..space.min(bytes.len())).unwrap_or_default();
        if part.matches_so_far {
            let mut existing = Vec::with_capacity(chunk.len());
            let read = (&mut part.file).take(chunk.len() as u64).read_to_end(&mut existing);
            read.map_err(|e| part_error(&part.name, &e))?;
            part.matches_so_far = existing == chunk;
            if !part.matches_so_far {
                part.file.seek(SeekFrom::Start(part.bytes))?;
            }
        }
        if !part.matches_so_far {
            part.file.write_all(chunk).map_err(|e| part_error(&part.name, &e))?;
        }
        part.hasher.update(chunk);
        part.bytes += chunk.len() as u64;
        let is_reused = part.matches_so_far;
        self.written.reused += if is_reused { chunk.len() as u64 } else { 0 };
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds the name of a part to an error.
fn part_error(name: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{name}: {e}"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::io::Cursor;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    type Folder = Rc<RefCell<BTreeMap<String, Vec<u8>>>>;

    /// Writes `bytes` in parts into a folder that may contain earlier parts. Returns the list and the bytes reused.
    fn write(folder: &Folder, bytes: &[u8], chunk_bytes: usize) -> (PartList, u64) {
        let open_name = Rc::new(RefCell::new(String::new()));
        let (folder_to_read, name_to_set) = (Rc::clone(folder), Rc::clone(&open_name));
        let open = move |part: &str| {
            *name_to_set.borrow_mut() = part.to_owned();
            Ok(Cursor::new(folder_to_read.borrow().get(part).cloned().unwrap_or_default()))
        };
        let folder_to_write = Rc::clone(folder);
        let finish = move |file: Cursor<Vec<u8>>, bytes: u64| {
            let mut content = file.into_inner();
            content.truncate(bytes as usize);
            folder_to_write.borrow_mut().insert(open_name.borrow().clone(), content);
            Ok(())
        };
        let mut writer = PartsWriter::new(PartList::empty(Timestamp(1), MIN_PART_BYTES), open, finish);
        for chunk in bytes.chunks(chunk_bytes) {
            writer.write_all(chunk).unwrap();
        }
        let WrittenParts { list, reused, .. } = writer.end().unwrap();
        (list, reused)
    }

    fn read(folder: &Folder, list: &PartList) -> io::Result<Vec<u8>> {
        let open =
            |name: &str| folder.borrow().get(name).cloned().map(Cursor::new).ok_or(io::ErrorKind::NotFound.into());
        let mut stream = Vec::new();
        PartsReader::new(list.clone(), open).read_to_end(&mut stream)?;
        Ok(stream)
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 % 253) as u8).collect()
    }

    fn sizes(folder: &Folder) -> impl Fn(&str) -> io::Result<Option<u64>> {
        |name| Ok(folder.borrow().get(name).map(|bytes| bytes.len() as u64))
    }

    #[test]
    fn parts_are_read_as_one_stream_and_a_damaged_part_is_named() {
        let (folder, stream) = (Folder::default(), bytes(2 * MIN_PART_BYTES as usize + 5));
        let (list, reused) = write(&folder, &stream, 70_000);
        assert_eq!((list.parts.len(), reused, list.bytes()), (3, 0, stream.len() as u64));
        let list = PartList::read(&list.to_bytes()).unwrap();
        assert!(list.check_sizes(sizes(&folder)).is_ok());
        assert_eq!(read(&folder, &list).unwrap(), stream);
        folder.borrow_mut().get_mut("part-00002").unwrap()[9] ^= 1;
        assert!(read(&folder, &list).unwrap_err().to_string().starts_with("part-00002 has changed"));
        folder.borrow_mut().get_mut("part-00003").unwrap().pop();
        folder.borrow_mut().remove("part-00001");
        let missing = list.check_sizes(sizes(&folder)).unwrap_err().to_string();
        assert_eq!(missing, "part-00001 is missing; part-00003 has 4 bytes instead of 5");
    }

    #[test]
    fn a_run_after_an_interruption_reuses_the_parts_already_written() {
        let (folder, stream) = (Folder::default(), bytes(3 * MIN_PART_BYTES as usize));
        write(&folder, &stream, 70_000);
        folder.borrow_mut().get_mut("part-00002").unwrap().truncate(100_000);
        folder.borrow_mut().remove("part-00003");
        let (list, reused) = write(&folder, &stream, 50_000);
        // Bytes are compared chunk by chunk: 22 whole chunks match before the first that differs.
        assert_eq!(reused, 22 * 50_000);
        assert_eq!(read(&folder, &list).unwrap(), stream);
    }

    #[test]
    fn a_list_with_invalid_names_or_sizes_is_refused() {
        let (folder, stream) = (Folder::default(), bytes(MIN_PART_BYTES as usize + 5));
        let (list, _) = write(&folder, &stream, 70_000);
        let refused = |change: &dyn Fn(&mut PartList)| {
            let mut list = list.clone();
            change(&mut list);
            PartList::read(&list.to_bytes()).unwrap_err().to_string()
        };
        assert!(refused(&|list| list.parts[0].name = "../part-00001".to_owned()).contains("is not named part-00001"));
        assert!(refused(&|list| list.parts[0].bytes = 1).contains("an invalid size"));
        assert!(refused(&|list| list.part_bytes = 1).contains("too small"));
        assert!(PartList::read(b"{}").is_err());
        let unfinished = PartList { complete: false, ..list };
        assert!(matches!(unfinished.check_sizes(sizes(&folder)), Err(BadParts::Incomplete)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn parts_are_correct_after_any_earlier_contents(
            length in 1usize..(3 << 20),
            earlier_length in 0usize..(3 << 20),
            changed_byte in any::<prop::sample::Index>(),
            chunk_bytes in 1000usize..300_000,
        ) {
            let (folder, stream) = (Folder::default(), bytes(length));
            let mut earlier = bytes(earlier_length.max(1));
            let index = changed_byte.index(earlier.len());
            earlier[index] ^= 0xff;
            write(&folder, &earlier, chunk_bytes);
            let (list, _) = write(&folder, &stream, chunk_bytes);
            prop_assert_eq!(read(&folder, &list).unwrap(), stream);
        }
    }
}
