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
const MAX_EXTENSION: u64 = 64 << 10;
/// The prefix of paths that `tar -C DIR -c .` writes.
const HERE: &str = "./";
/// The most bytes read after the end of a tar. Tar pads to whole records.
const MAX_FILLING: u64 = 1 << 20;

/// A reader of a provider tree in a tar.
pub struct ProviderTreeReader<R: Read> {
    archive: Archive<EndRecorder<R>>,
    has_run_out: Arc<AtomicBool>,
}

impl<R: Read> ProviderTreeReader<R> {
    /// Creates a reader.
    pub fn new(from: R) -> Self {
        let has_run_out = Arc::new(AtomicBool::new(false));
        Self { archive: Archive::new(EndRecorder { inner: from, has_run_out: Arc::clone(&has_run_out) }), has_run_out }
    }

    /// Passes each entry to `take` in order, folders excepted.
    ///
    /// # Errors
    /// The tar is truncated, malformed or has too many entries; also errors of `take`.
    pub fn for_each_entry<E: From<io::Error>>(
        self,
        mut take: impl FnMut(TarEntry<'_, R>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { mut archive, has_run_out } = self;
        {
            let mut reading = TarEntries { entries: archive.entries()?.raw(true), left: MAX_ENTRIES };
            while let Some(entry) = reading.next()? {
                take(entry)?;
            }
        }
        // A tar ends with a block of zeros. Without one it was truncated.
        if has_run_out.load(Ordering::Relaxed) {
            let reason = "the tar has no end: it is truncated";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into());
        }
        io::copy(&mut archive.into_inner().take(MAX_FILLING), &mut io::sink())?;
        Ok(())
    }
}

/// A reader that records that its end was reached.
struct EndRecorder<R> {
    inner: R,
    has_run_out: Arc<AtomicBool>,
}

impl<R: Read> Read for EndRecorder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            self.has_run_out.store(true, Ordering::Relaxed);
        }
        Ok(read)
    }
}

/// One entry of the tar.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is not kept")]
pub enum TarEntry<'a, R: Read> {
    /// A regular file.
    File {
        /// Its path as in the tar, without a leading `./`.
        path: String,
        /// The meaning of its path.
        meaning: PathMeaning,
        /// Its contents.
        contents: TarFileContents<'a, R>,
    },
    /// A refused entry, such as a link, a device or a path that leads out of the tree.
    Refused {
        /// Its path, printable.
        path: String,
        /// The reason.
        reason: String,
    },
}

/// The contents of a file. Yields exactly `size_bytes` bytes or an error.
pub struct TarFileContents<'a, R: Read> {
    entry: Entry<'a, EndRecorder<R>>,
    size_bytes: u64,
    left: u64,
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

    /// Reads the whole file if it has at most `most` bytes, otherwise returns `None`.
    pub fn read_at_most(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        if self.size_bytes > most as u64 {
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
        self.left = self.left.saturating_sub(read as u64);
        // The tar crate takes the end of the archive for the end of the file.
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar ends within a file"));
        }
        Ok(read)
    }
}

struct TarEntries<'a, R: Read> {
    entries: Entries<'a, EndRecorder<R>>,
    left: u64,
}

impl<'a, R: Read> TarEntries<'a, R> {
    /// The next entry that is not a folder; `None` at the end.
    fn next(&mut self) -> io::Result<Option<TarEntry<'a, R>>> {
        let mut long = None;
        loop {
            let Some(entry) = self.entries.next() else { return Ok(None) };
            let mut entry = entry?;
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!("it has more than {MAX_ENTRIES} entries; import it in parts"))
            })?;
            match entry.header().entry_type() {
                EntryType::XGlobalHeader => {}
                EntryType::GNULongName => {
                    let mut name = extension(&mut entry)?;
                    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
                    long = Some(name);
                }
                EntryType::XHeader => {
                    let extension_headers = extension(&mut entry)?;
                    for record in PaxExtensions::new(&extension_headers) {
                        let record = record?;
                        match record.key_bytes() {
                            b"path" => long = Some(record.value_bytes().to_vec()),
                            b"size" => return Err(io::Error::other("a pax header gives a file another size")),
                            _ => {}
                        }
                    }
                }
                EntryType::Directory => long = None,
                EntryType::Regular | EntryType::Continuous => {
                    let path = long.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
                    return Ok(Some(file(path, entry)));
                }
                kind => {
                    let path = long.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
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

fn file<R: Read>(path: Vec<u8>, entry: Entry<'_, EndRecorder<R>>) -> TarEntry<'_, R> {
    let Ok(path) = String::from_utf8(path) else {
        return TarEntry::Refused {
            path: printable(entry.path_bytes().as_ref()),
            reason: "its name is not UTF-8".to_owned(),
        };
    };
    let path = path.strip_prefix(HERE).unwrap_or(&path).to_owned();
    match MirrorPath::parse(&path) {
        Ok(meaning) => {
            let size_bytes = entry.size();
            TarEntry::File { path, meaning, contents: TarFileContents { entry, size_bytes, left: size_bytes } }
        }
        Err(bad @ BadMirrorPath { .. }) => {
            TarEntry::Refused { path: printable(path.as_bytes()), reason: bad.to_string() }
        }
    }
}

/// Makes an untrusted path printable. The length suffices to name the package that it is in.
fn printable(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    path.strip_prefix(HERE)
        .unwrap_or(&path)
        .chars()
        .take(MAX_PATH)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn extension<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > MAX_EXTENSION {
        return Err(io::Error::other(format!("an extension header has more than {MAX_EXTENSION} bytes")));
    }
    let mut bytes = Vec::new();
    entry.take(MAX_EXTENSION).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
