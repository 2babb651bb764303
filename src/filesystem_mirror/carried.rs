//! A strict reader of a provider tree that arrives as a tar: regular files only, each at a path of a tree, within
//! limits. Extension headers are read here, because the tar crate would load one of any length into memory.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tar::{Archive, Entries, Entry, EntryType, PaxExtensions};

use super::layout::MAX_PATH;
use super::{BadMirrorPath, MirrorPath, Mode, PathMeaning};

/// The most entries in one tar.
pub const MAX_ENTRIES: u64 = 1_000_000;
/// The size limit of an extension header, in bytes.
const MAX_EXTENSION_BYTES: u64 = 64 << 10;
/// The prefix of paths that `tar -C DIR -c .` writes.
const CURRENT_FOLDER_PREFIX: &str = "./";
/// The most bytes read after the end of a tar. Tar programs pad to whole records.
const MAX_TRAILING_BYTES: u64 = 1 << 20;

/// A reader of a provider tree in a tar.
pub struct ProviderTreeReader<R: Read> {
    archive: Archive<EndDetector<R>>,
    has_reached_end: Arc<AtomicBool>,
}

impl<R: Read> ProviderTreeReader<R> {
    /// Creates a reader.
    pub fn new(input: R) -> Self {
        let has_reached_end = Arc::new(AtomicBool::new(false));
        Self {
            archive: Archive::new(EndDetector { inner: input, has_reached_end: Arc::clone(&has_reached_end) }),
            has_reached_end,
        }
    }

    /// Passes each entry to `on_entry` in order, folders excepted.
    ///
    /// # Errors
    /// The tar is truncated, malformed or has too many entries; also errors of `on_entry`.
    pub fn for_each_entry<E: From<io::Error>>(
        self,
        mut on_entry: impl FnMut(TarEntry<'_, R>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { mut archive, has_reached_end } = self;
        {
            let mut entries = TarEntries { entries: archive.entries()?.raw(true), remaining_entries: MAX_ENTRIES };
            while let Some(entry) = entries.next()? {
                on_entry(entry)?;
            }
        }
        // A complete tar ends with a block of zeros, so the tar crate stops before the end of the stream.
        if has_reached_end.load(Ordering::Relaxed) {
            let reason = "the tar has no end: it is truncated";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into());
        }
        io::copy(&mut archive.into_inner().take(MAX_TRAILING_BYTES), &mut io::sink())?;
        Ok(())
    }
}

/// A reader that records that its end was reached.
struct EndDetector<R> {
    inner: R,
    has_reached_end: Arc<AtomicBool>,
}

impl<R: Read> Read for EndDetector<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            self.has_reached_end.store(true, Ordering::Relaxed);
        }
        Ok(read)
    }
}

/// One entry of the tar.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is not kept")]
pub enum TarEntry<'a, R: Read> {
    /// A regular file.
    File {
        /// The path as in the tar, without a leading `./`.
        path: String,
        /// The meaning of the path.
        meaning: PathMeaning,
        /// The contents.
        contents: TarFileContents<'a, R>,
    },
    /// A refused entry, such as a link, a device or a path that leads out of the tree.
    Refused {
        /// The path, printable.
        path: String,
        /// The reason.
        reason: String,
    },
}

/// The contents of a file. Yields exactly `size_bytes` bytes or an error.
pub struct TarFileContents<'a, R: Read> {
    entry: Entry<'a, EndDetector<R>>,
    size_bytes: u64,
    remaining_bytes: u64,
}

impl<R: Read> TarFileContents<'_, R> {
    /// The size in bytes from the tar's header.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The mode from the tar's header.
    pub fn mode(&self) -> Mode {
        // An unreadable mode counts as not executable.
        Mode::of(self.entry.header().mode().unwrap_or_default())
    }

    /// Reads the whole file if it has at most `max_bytes` bytes, otherwise returns `None`.
    pub fn read_at_most(&mut self, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
        if self.size_bytes > max_bytes as u64 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

impl<R: Read> Read for TarFileContents<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.entry.read(buffer)?;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(read as u64);
        // The tar crate takes the end of the archive for the end of the file.
        if read == 0 && self.remaining_bytes > 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar ends within a file"));
        }
        Ok(read)
    }
}

struct TarEntries<'a, R: Read> {
    entries: Entries<'a, EndDetector<R>>,
    remaining_entries: u64,
}

impl<'a, R: Read> TarEntries<'a, R> {
    /// The next entry that is not a folder; `None` at the end.
    fn next(&mut self) -> io::Result<Option<TarEntry<'a, R>>> {
        // The path from an extension header, which applies to the next entry.
        let mut long_path = None;
        loop {
            let Some(entry) = self.entries.next() else { return Ok(None) };
            let mut entry = entry?;
            self.remaining_entries = self.remaining_entries.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!("the tar has more than {MAX_ENTRIES} entries; import the tree in parts"))
            })?;
            match entry.header().entry_type() {
                EntryType::XGlobalHeader => {}
                EntryType::GNULongName => {
                    let mut name = read_extension(&mut entry)?;
                    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
                    long_path = Some(name);
                }
                EntryType::XHeader => {
                    let extension_headers = read_extension(&mut entry)?;
                    for record in PaxExtensions::new(&extension_headers) {
                        let record = record?;
                        match record.key_bytes() {
                            b"path" => long_path = Some(record.value_bytes().to_vec()),
                            b"size" => return Err(io::Error::other("a pax header gives a file another size")),
                            _ => {}
                        }
                    }
                }
                EntryType::Directory => long_path = None,
                EntryType::Regular | EntryType::Continuous => {
                    let path = long_path.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
                    return Ok(Some(file_entry(path, entry)));
                }
                kind => {
                    let path = long_path.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
                    let reason = match kind {
                        EntryType::Symlink | EntryType::Link => "it is a link, and no link is followed",
                        EntryType::Char | EntryType::Block => "it is a device",
                        EntryType::Fifo => "it is a pipe",
                        _ => "it is not a regular file",
                    };
                    return Ok(Some(TarEntry::Refused { path: printable(&path), reason: reason.to_owned() }));
                }
            }
        }
    }
}

/// Makes the entry for a regular file. A path that is not one of a tree is refused.
fn file_entry<R: Read>(path: Vec<u8>, entry: Entry<'_, EndDetector<R>>) -> TarEntry<'_, R> {
    let Ok(path) = String::from_utf8(path) else {
        return TarEntry::Refused {
            path: printable(entry.path_bytes().as_ref()),
            reason: "its name is not UTF-8".to_owned(),
        };
    };
    let path = path.strip_prefix(CURRENT_FOLDER_PREFIX).unwrap_or(&path).to_owned();
    match MirrorPath::parse(&path) {
        Ok(meaning) => {
            let size_bytes = entry.size();
            TarEntry::File {
                path,
                meaning,
                contents: TarFileContents { entry, size_bytes, remaining_bytes: size_bytes },
            }
        }
        Err(bad @ BadMirrorPath { .. }) => {
            TarEntry::Refused { path: printable(path.as_bytes()), reason: bad.to_string() }
        }
    }
}

/// Makes an untrusted path printable. At most `MAX_PATH` characters are kept, which include the package's folder.
fn printable(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    path.strip_prefix(CURRENT_FOLDER_PREFIX)
        .unwrap_or(&path)
        .chars()
        .take(MAX_PATH)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Reads an extension header, up to its size limit.
fn read_extension<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > MAX_EXTENSION_BYTES {
        return Err(io::Error::other(format!("an extension header has more than {MAX_EXTENSION_BYTES} bytes")));
    }
    let mut bytes = Vec::new();
    entry.take(MAX_EXTENSION_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
