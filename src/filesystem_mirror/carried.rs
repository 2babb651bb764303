//! A tree as a tar, in both directions. Read strictly: regular files alone, each at a path of a tree, within bounds. The
//! extensions are read here: the tar crate would take any length into memory.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tar::{Archive, Builder, Entries, Entry, EntryType, Header, PaxExtensions};

use super::{BadPath, Meaning, TreePath};

/// The most entries of one tar.
pub const MOST_ENTRIES: u64 = 1_000_000;
/// The longest extension header that is read, in bytes.
const LONGEST_EXTENSION: u64 = 64 << 10;
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
    pub fn each(self, mut take: impl FnMut(Carried<'_, R>) -> io::Result<()>) -> io::Result<()> {
        let Self { mut archive, has_run_out } = self;
        {
            let mut reading = Reading { entries: archive.entries()?.raw(true), left: MOST_ENTRIES };
            while let Some(entry) = reading.next()? {
                take(entry)?;
            }
        }
        // Its end is a block of zeros: where there is none, more was to come.
        if has_run_out.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar has no end: some of it is missing"));
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
    // As `tar -C DIR -c .` writes it.
    let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
    match TreePath::parse(&path) {
        Ok(meaning) => {
            let size_bytes = entry.size();
            Carried::File { path, meaning, contents: Contents { entry, size_bytes, left: size_bytes } }
        }
        Err(bad @ BadPath { .. }) => Carried::Refused { path: shown(path.as_bytes()), why: bad.to_string() },
    }
}

/// A path that nobody vouches for, for people.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn extension<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > LONGEST_EXTENSION {
        return Err(io::Error::other(format!("an extension header has more than {LONGEST_EXTENSION} bytes")));
    }
    let mut bytes = Vec::new();
    entry.take(LONGEST_EXTENSION).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A tar under way.
pub struct Writing<W: Write> {
    tar: Builder<W>,
}

impl<W: Write> Writing<W> {
    /// Begins one.
    pub fn to(out: W) -> Self {
        Self { tar: Builder::new(out) }
    }

    /// Adds a file of `size_bytes` bytes. The same file is always the same bytes of tar.
    ///
    /// # Errors
    /// It could not be written, or what was read has another size.
    pub fn add(&mut self, path: &str, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(size_bytes);
        header.set_mode(0o644);
        header.set_mtime(0);
        let mut counted = Counted { inner: contents.take(size_bytes), bytes: 0 };
        self.tar.append_data(&mut header, path, &mut counted)?;
        if counted.bytes == size_bytes {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{path} became shorter while it was read")))
    }

    /// Ends it.
    ///
    /// # Errors
    /// It could not be written.
    pub fn end(self) -> io::Result<W> {
        self.tar.into_inner()
    }
}

struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Its path and its bytes, or why it is refused.
    type WasRead = (String, Result<Vec<u8>, String>);

    /// Every entry.
    fn all(tar: &[u8]) -> io::Result<Vec<WasRead>> {
        let mut all = Vec::new();
        Tar::new(tar).each(|entry| {
            all.push(match entry {
                Carried::File { path, mut contents, .. } => {
                    let mut bytes = Vec::new();
                    contents.read_to_end(&mut bytes)?;
                    (path, Ok(bytes))
                }
                Carried::Refused { path, why } => (path, Err(why)),
            });
            Ok(())
        })?;
        Ok(all)
    }

    fn tar_of(entries: &[(&str, EntryType)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(0);
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            tar.append(&header, io::empty()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn only_plain_files_within_the_tree_are_taken() {
        let tar = tar_of(&[
            ("a/b/c", EntryType::Directory),
            ("./a/b/c/index.json", EntryType::Regular),
            ("a/link", EntryType::Symlink),
            ("a/hard", EntryType::Link),
            ("a/device", EntryType::Char),
            ("a/pipe", EntryType::Fifo),
            ("a/sparse", EntryType::GNUSparse),
            ("../out", EntryType::Regular),
            ("/etc/passwd", EntryType::Regular),
        ]);
        let all = all(&tar).unwrap();
        let taken: Vec<_> = all.iter().filter(|(_, read)| read.is_ok()).map(|(path, _)| path.as_str()).collect();
        assert_eq!((taken, all.len()), (vec!["a/b/c/index.json"], 8));
    }

    #[test]
    fn a_file_that_the_tar_cuts_short_is_an_error() {
        let mut writing = Writing::to(Vec::new());
        writing.add("a/b/c/d", 5000, &[7; 5000][..]).unwrap();
        let tar = writing.end().unwrap();
        assert!(all(&tar).is_ok());
        // In the middle of a file, and right behind it.
        for length in [3000, 512 + 5120] {
            assert!(all(&tar[..length]).is_err(), "{length}");
        }
        let mut writing = Writing::to(Vec::new());
        assert!(writing.add("a/b/c/d", 5000, &[7; 4999][..]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            files in prop::collection::vec(("([a-zé]{1,60}/){1,4}[a-z]{1,40}", prop::collection::vec(any::<u8>(), 0..600)), 0..6),
        ) {
            let mut writing = Writing::to(Vec::new());
            for (path, bytes) in &files {
                writing.add(path, bytes.len() as u64, &bytes[..]).unwrap();
            }
            let read = all(&writing.end().unwrap()).unwrap();
            prop_assert_eq!(read, files.into_iter().map(|(path, bytes)| (path, Ok(bytes))).collect::<Vec<_>>());
        }

        #[test]
        fn hostile_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..2048),
            at in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let _ = all(&bytes);
            let mut writing = Writing::to(Vec::new());
            writing.add(&"a/".repeat(90), 3, &b"abc"[..]).unwrap();
            let mut tar = writing.end().unwrap();
            let at = at.index(tar.len());
            tar[at] = to;
            let _ = all(&tar);
        }
    }
}
