//! A tree that arrives as a tar. Read strictly: regular files alone, each at a path of a tree, within bounds. The extensions
//! are read here: the tar crate would take any length into memory.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tar::{Archive, Entries, Entry, EntryType, PaxExtensions};

use super::layout::LONGEST_PATH;
use super::{BadPath, Meaning, Mode, TreePath};

/// The most entries of one tar.
pub const MOST_ENTRIES: u64 = 1_000_000;
/// The longest extension header that is read, in bytes.
const LONGEST_EXTENSION: u64 = 64 << 10;
/// What paths begin with as `tar -C DIR -c .` writes them.
const HERE: &str = "./";
/// How much may follow the end of a tar, in bytes: it is filled up to whole records.
const LONGEST_FILLING: u64 = 1 << 20;

/// A tree that arrives as a tar.
pub struct Tar<R: Read> {
    archive: Archive<Watched<R>>,
    has_run_out: Arc<AtomicBool>,
}

impl<R: Read> Tar<R> {
    /// One that is read from here.
    pub fn new(from: R) -> Self {
        let has_run_out = Arc::new(AtomicBool::new(false));
        Self { archive: Archive::new(Watched { inner: from, has_run_out: Arc::clone(&has_run_out) }), has_run_out }
    }

    /// Hands over each entry that is more than a folder, one after the other.
    ///
    /// # Errors
    /// The tar broke off, is none, or has too many entries; or what `take` fails with.
    pub fn each<E: From<io::Error>>(self, mut take: impl FnMut(Carried<'_, R>) -> Result<(), E>) -> Result<(), E> {
        let Self { mut archive, has_run_out } = self;
        {
            let mut reading = Reading { entries: archive.entries()?.raw(true), left: MOST_ENTRIES };
            while let Some(entry) = reading.next()? {
                take(entry)?;
            }
        }
        // Its end is a block of zeros: where there is none, more was to come.
        if has_run_out.load(Ordering::Relaxed) {
            let why = "the tar has no end: some of it is missing";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into());
        }
        io::copy(&mut archive.into_inner().take(LONGEST_FILLING), &mut io::sink())?;
        Ok(())
    }
}

/// A reader that notes when there is no more.
struct Watched<R> {
    inner: R,
    has_run_out: Arc<AtomicBool>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            self.has_run_out.store(true, Ordering::Relaxed);
        }
        Ok(read)
    }
}

/// An entry of a tar.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is not kept")]
pub enum Carried<'a, R: Read> {
    /// A file, to be read to its end before the next entry is asked for.
    File {
        /// Its path, as the tar has it.
        path: String,
        /// What that means.
        meaning: Meaning,
        /// What is in it.
        contents: Contents<'a, R>,
    },
    /// What is not taken, and why. A link, a device, a path that leads elsewhere.
    Refused {
        /// Its path, as far as it can be shown.
        path: String,
        /// Why not.
        why: String,
    },
}

/// What is in a file of a tar: exactly its size, or an error.
pub struct Contents<'a, R: Read> {
    entry: Entry<'a, Watched<R>>,
    size_bytes: u64,
    left: u64,
}

impl<R: Read> Contents<'_, R> {
    /// Its size in bytes, as the tar says.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether it may be executed, as the tar says.
    pub fn mode(&self) -> Mode {
        // Of a header without a mode that can be read, nobody may execute anything.
        Mode::of(self.entry.header().mode().unwrap_or_default())
    }

    /// All of it, where it has no more bytes than that; else nothing.
    pub fn small(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        if self.size_bytes > most as u64 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

impl<R: Read> Read for Contents<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.entry.read(buffer)?;
        self.left = self.left.saturating_sub(read as u64);
        // The crate takes the end of the archive for the end of the file.
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar ends within a file"));
        }
        Ok(read)
    }
}

/// The entries of a tar.
struct Reading<'a, R: Read> {
    entries: Entries<'a, Watched<R>>,
    left: u64,
}

impl<'a, R: Read> Reading<'a, R> {
    /// The next entry that is more than a folder; nothing at the end.
    fn next(&mut self) -> io::Result<Option<Carried<'a, R>>> {
        let mut long = None;
        loop {
            let Some(entry) = self.entries.next() else { return Ok(None) };
            let mut entry = entry?;
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!("it has more than {MOST_ENTRIES} entries: import it in parts"))
            })?;
            match entry.header().entry_type() {
                EntryType::XGlobalHeader => {}
                EntryType::GNULongName => {
                    let mut name = extension(&mut entry)?;
                    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
                    long = Some(name);
                }
                EntryType::XHeader => {
                    let said = extension(&mut entry)?;
                    for record in PaxExtensions::new(&said) {
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
                    let why = match kind {
                        EntryType::Symlink | EntryType::Link => "it is a link, and no link is followed",
                        EntryType::Char | EntryType::Block => "it is a device",
                        EntryType::Fifo => "it is a pipe",
                        _ => "it is no plain file",
                    };
                    return Ok(Some(Carried::Refused { path: shown(&path), why: why.to_owned() }));
                }
            }
        }
    }
}

fn file<R: Read>(path: Vec<u8>, entry: Entry<'_, Watched<R>>) -> Carried<'_, R> {
    let Ok(path) = String::from_utf8(path) else {
        return Carried::Refused { path: shown(entry.path_bytes().as_ref()), why: "its name is no UTF-8".to_owned() };
    };
    let path = path.strip_prefix(HERE).unwrap_or(&path).to_owned();
    match TreePath::parse(&path) {
        Ok(meaning) => {
            let size_bytes = entry.size();
            Carried::File { path, meaning, contents: Contents { entry, size_bytes, left: size_bytes } }
        }
        Err(bad @ BadPath { .. }) => Carried::Refused { path: shown(path.as_bytes()), why: bad.to_string() },
    }
}

/// A path that nobody vouches for, for people; long enough to tell which package it lies in.
fn shown(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    path.strip_prefix(HERE)
        .unwrap_or(&path)
        .chars()
        .take(LONGEST_PATH)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn extension<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > LONGEST_EXTENSION {
        return Err(io::Error::other(format!("an extension header has more than {LONGEST_EXTENSION} bytes")));
    }
    let mut bytes = Vec::new();
    entry.take(LONGEST_EXTENSION).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
