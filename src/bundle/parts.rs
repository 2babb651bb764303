//! A bundle split into parts of one size, for disks that are smaller than the bundle or take no larger files. A list
//! names the parts with their sizes and digests. A repeated run writes each part only from its first difference on.

use std::io::{self, Read, Seek, SeekFrom, Write};

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::{Digest, Hasher};

const FORMAT: u32 = 1;
const MAX_PARTS: usize = 99_999;
/// The smallest size of a part in bytes; the last part may be smaller.
pub const MIN_PART_BYTES: u64 = 1 << 20;
const MAX_LIST: usize = 32 << 20;

/// The contents of `larder-bundle.parts.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartList {
    format: u32,
    /// The creation time of the bundle, in epoch seconds. A repeated run reuses it, so that the bytes are equal as far
    /// as the store has not changed.
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
        if bytes.len() > MAX_LIST {
            return bad(format!("it is larger than {} MiB", MAX_LIST >> 20));
        }
        let list: Self = serde_json::from_slice(bytes).map_err(|e| BadParts::Unreadable(e.to_string()))?;
        if list.format != FORMAT {
            return bad(format!("it has format {}, but this larder reads {FORMAT}", list.format));
        }
        if list.parts.len() > MAX_PARTS || list.part_bytes < MIN_PART_BYTES {
            return bad("there are too many parts, or they are too small".to_owned());
        }
        let last = list.parts.len();
        for (number, part) in (1..).zip(&list.parts) {
            // Only this name is accepted, so that none leads out of the folder.
            if part.name != Self::part_name(number) {
                return bad(format!("part {number} is not named {}", Self::part_name(number)));
            }
            let is_full = part.bytes == list.part_bytes || (number == last && part.bytes <= list.part_bytes);
            if !is_full || part.bytes == 0 {
                return bad(format!("{} has an invalid size", part.name));
            }
        }
        Ok(list)
    }

    /// Serialises the list for [`PartList::read`].
    pub fn write(&self) -> Vec<u8> {
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
        let mut wrong = Vec::new();
        for BundlePart { name, bytes, .. } in &self.parts {
            match size_of(name) {
                Ok(Some(found)) if found == *bytes => {}
                Ok(Some(found)) => wrong.push(format!("{name} has {found} bytes instead of {bytes}")),
                Ok(None) => wrong.push(format!("{name} is missing")),
                Err(e) => wrong.push(format!("{name} cannot be read: {e}")),
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(BadParts::Missing(wrong.join("; "))) }
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
    now: Option<(BundlePart, R, Hasher, u64)>,
}

impl<R: Read, O: FnMut(&str) -> io::Result<R>> PartsReader<O, R> {
    /// Creates a reader over the parts of a list.
    pub fn new(list: PartList, open: O) -> Self {
        Self { open, parts: list.parts.into_iter(), now: None }
    }
}

impl<R: Read, O: FnMut(&str) -> io::Result<R>> Read for PartsReader<O, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let (part, from, hasher, left) = match &mut self.now {
                Some(now) => now,
                None => {
                    let Some(part) = self.parts.next() else { return Ok(0) };
                    let failed =
                        |e: io::Error| io::Error::new(e.kind(), format!("{} cannot be opened: {e}", part.name));
                    let from = (self.open)(&part.name).map_err(failed)?;
                    let left = part.bytes;
                    self.now.insert((part, from, Hasher::new(), left))
                }
            };
            let some = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
            let space = buffer.get_mut(..some).unwrap_or_default();
            if space.is_empty() && *left > 0 {
                return Ok(0);
            }
            if *left == 0 {
                let (now, _) = std::mem::take(hasher).finish();
                if now != part.sha256 {
                    let reason = format!("{} has changed: its SHA-256 is {now}, and was {}", part.name, part.sha256);
                    return Err(io::Error::other(reason));
                }
                self.now = None;
                continue;
            }
            let read = from.read(space)?;
            if read == 0 {
                return Err(io::Error::other(format!("{} ends too early", part.name)));
            }
            hasher.update(space.get(..read).unwrap_or_default());
            *left -= read as u64;
            return Ok(read);
        }
    }
}

/// Writes one stream in parts. Bytes that a part already contains are compared; writing starts at the first piece that
/// differs. `open` opens a part by its name for reading and writing, and creates it if absent. `keep` truncates it to
/// its size and syncs it.
pub struct PartsWriter<O, K, F> {
    open: O,
    keep: K,
    list: PartList,
    now: Option<CurrentPart<F>>,
    reused: u64,
    changed: Vec<String>,
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
    /// True while the file already contained every byte so far.
    agrees: bool,
}

impl<F, O, K> PartsWriter<O, K, F>
where
    F: Read + Write + Seek,
    O: FnMut(&str) -> io::Result<F>,
    K: FnMut(F, u64) -> io::Result<()>,
{
    /// Creates a writer with the creation time and part size of `list`.
    pub fn new(list: PartList, open: O, keep: K) -> Self {
        let list = PartList { parts: Vec::new(), complete: false, ..list };
        Self { open, keep, list, now: None, reused: 0, changed: Vec::new() }
    }

    /// Completes the last part and the list.
    ///
    /// # Errors
    /// Those of `keep`.
    pub fn end(mut self) -> io::Result<WrittenParts> {
        self.end_part()?;
        self.list.complete = true;
        Ok(WrittenParts { list: self.list, reused: self.reused, changed: self.changed })
    }

    fn end_part(&mut self) -> io::Result<()> {
        let Some(CurrentPart { name, file, hasher, bytes, agrees }) = self.now.take() else { return Ok(()) };
        (self.keep)(file, bytes).map_err(|e| of_part(&name, &e))?;
        if !agrees {
            self.changed.push(name.clone());
        }
        let (sha256, _) = hasher.finish();
        self.list.parts.push(BundlePart { name, bytes, sha256 });
        Ok(())
    }

    fn part(&mut self) -> io::Result<&mut CurrentPart<F>> {
        if self.now.as_ref().is_some_and(|now| now.bytes >= self.list.part_bytes) {
            self.end_part()?;
        }
        match &mut self.now {
            Some(_) => {}
            now @ None => {
                let number = self.list.parts.len() + 1;
                if number > MAX_PARTS {
                    return Err(io::Error::other(format!(
                        "more than {MAX_PARTS} parts would be needed; make them larger"
                    )));
                }
                let name = PartList::part_name(number);
                let file = (self.open)(&name).map_err(|e| of_part(&name, &e))?;
                *now = Some(CurrentPart { name, file, hasher: Hasher::new(), bytes: 0, agrees: true });
            }
        }
        self.now.as_mut().ok_or_else(|| io::Error::other("no part is open"))
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
        let part_bytes = self.list.part_bytes;
        let part = self.part()?;
        let space = usize::try_from(part_bytes - part.bytes).unwrap_or(usize::MAX);
        let some = bytes.get(..space.min(bytes.len())).unwrap_or_default();
        let mut reused = 0;
        if part.agrees {
            let mut filled = Vec::with_capacity(some.len());
            let read = (&mut part.file).take(some.len() as u64).read_to_end(&mut filled);
            read.map_err(|e| of_part(&part.name, &e))?;
            part.agrees = filled == some;
            if part.agrees {
                reused = some.len() as u64;
            } else {
                part.file.seek(SeekFrom::Start(part.bytes))?;
            }
        }
        if !part.agrees {
            part.file.write_all(some).map_err(|e| of_part(&part.name, &e))?;
        }
        part.hasher.update(some);
        part.bytes += some.len() as u64;
        self.reused += reused;
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn of_part(name: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{name}: {e}"))
}

#[cfg(test)]
#[path = "parts/tests.rs"]
mod tests;
