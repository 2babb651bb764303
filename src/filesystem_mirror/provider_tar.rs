//! A provider tree as a tar: its writer, and a strict reader of one that arrives: regular files only, each at a path of a
//! tree, within limits.

use std::io::{self, Read, Write};

use tar::EntryType;

use super::layout::MAX_PATH;
use super::{BadMirrorPath, MirrorPath, Mode, PathMeaning};
use crate::packaging::{BadTar, TarLimits, TarMember, TarReader, TarWriter};

/// The limits of one tar.
const LIMITS: TarLimits = TarLimits { entries: 1_000_000, extension_bytes: 64 << 10 };
/// The prefix of paths that `tar -C DIR -c .` writes.
const CURRENT_FOLDER_PREFIX: &str = "./";
/// The most bytes read after the end of a tar. Tar programs pad to whole records.
const MAX_TRAILING_BYTES: u64 = 1 << 20;

/// A reader of a provider tree in a tar.
pub struct ProviderTreeReader<R> {
    tar: TarReader<R>,
}

impl<R: Read> ProviderTreeReader<R> {
    /// Creates a reader.
    pub fn new(input: R) -> Self {
        Self { tar: TarReader::new(input, LIMITS) }
    }

    /// Passes each entry to `on_entry` in order, folders excepted.
    ///
    /// # Errors
    /// The tar is truncated, malformed or has too many entries; also errors of `on_entry`.
    pub fn for_each_entry<E: From<io::Error>>(
        mut self,
        mut on_entry: impl FnMut(TarEntry<'_, R>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(member) = self.tar.next_member().map_err(unreadable)? {
            if member.kind() != EntryType::Directory {
                on_entry(entry(member, &mut self.tar))?;
            }
        }
        if !self.tar.has_end_marker() {
            let reason = "the tar has no end: it is truncated";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into());
        }
        io::copy(&mut self.tar.into_input().take(MAX_TRAILING_BYTES), &mut io::sink())?;
        Ok(())
    }
}

fn unreadable(bad: BadTar) -> io::Error {
    match bad {
        BadTar::TooManyEntries(_) => io::Error::other(format!("{bad}; import the tree in parts")),
        bad => bad.into(),
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
pub struct TarFileContents<'a, R> {
    tar: &'a mut TarReader<R>,
    size_bytes: u64,
    mode: Mode,
}

impl<R: Read> TarFileContents<'_, R> {
    /// The size in bytes from the tar's header.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The mode from the tar's header.
    pub fn mode(&self) -> Mode {
        self.mode
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
        self.tar.read(buffer)
    }
}

/// Makes the entry for anything but a folder. Other kinds than regular files are refused, and so is a path that is not
/// one of a tree.
fn entry<R: Read>(member: TarMember, tar: &mut TarReader<R>) -> TarEntry<'_, R> {
    let reason = match member.kind() {
        _ if member.is_sparse => "it is not a regular file".to_owned(),
        EntryType::Regular | EntryType::Continuous => {
            match std::str::from_utf8(&member.name)
                .map(without_current_folder)
                .map(|path| (path, MirrorPath::parse(path)))
            {
                Ok((path, Ok(meaning))) => {
                    // An unreadable mode counts as not executable.
                    let mode = Mode::of(member.header.mode().unwrap_or_default());
                    let contents = TarFileContents { tar, size_bytes: member.size_bytes, mode };
                    return TarEntry::File { path: path.to_owned(), meaning, contents };
                }
                Ok((_, Err(bad @ BadMirrorPath { .. }))) => bad.to_string(),
                Err(_) => "its name is not UTF-8".to_owned(),
            }
        }
        EntryType::Symlink | EntryType::Link => "it is a link, and no link is followed".to_owned(),
        EntryType::Char | EntryType::Block => "it is a device".to_owned(),
        EntryType::Fifo => "it is a pipe".to_owned(),
        _ => "it is not a regular file".to_owned(),
    };
    TarEntry::Refused { path: printable(&member.name), reason }
}

fn without_current_folder(path: &str) -> &str {
    path.strip_prefix(CURRENT_FOLDER_PREFIX).unwrap_or(path)
}

/// Makes an untrusted path printable. At most `MAX_PATH` characters are kept, which include the package's folder.
fn printable(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    without_current_folder(&path).chars().take(MAX_PATH).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A writer of a provider tree as a tar. If it is dropped before [`ProviderTreeWriter::end`], a reader notices the
/// truncation.
pub struct ProviderTreeWriter<W> {
    tar: TarWriter<W>,
}

impl<W: Write> ProviderTreeWriter<W> {
    /// Creates a writer.
    pub fn new(out: W) -> Self {
        Self { tar: TarWriter::new(out) }
    }

    /// Adds a file of `size_bytes` bytes that is not executable. Equal files give equal bytes of tar.
    ///
    /// # Errors
    /// The file cannot be read or written, or has fewer bytes than `size_bytes`.
    pub fn add(&mut self, path: &str, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        self.add_with_mode(path, Mode::Plain, size_bytes, contents)
    }

    /// Adds a file with a mode.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_with_mode(&mut self, path: &str, mode: Mode, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        self.tar.file(path.as_bytes(), mode.bits(), size_bytes, contents, |_| {})
    }

    /// Writes the end marker, flushes and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn end(self) -> io::Result<W> {
        self.tar.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tar::{Builder, Header};

    use super::*;

    /// The path and bytes of an entry, or the reason for its refusal.
    type ReadEntry = (String, Result<Vec<u8>, String>);

    /// Reads all entries of a tar.
    fn read_all(tar: &[u8]) -> io::Result<Vec<ReadEntry>> {
        let mut entries = Vec::new();
        ProviderTreeReader::new(tar).for_each_entry::<io::Error>(|entry| {
            entries.push(match entry {
                TarEntry::File { path, mut contents, .. } => {
                    let mut bytes = Vec::new();
                    contents.read_to_end(&mut bytes)?;
                    (path, Ok(bytes))
                }
                TarEntry::Refused { path, reason } => (path, Err(reason)),
            });
            Ok(())
        })?;
        Ok(entries)
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
    fn only_regular_files_within_the_tree_are_accepted() {
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
        let entries = read_all(&tar).unwrap();
        let accepted: Vec<_> = entries.iter().filter(|(_, read)| read.is_ok()).map(|(path, _)| path.as_str()).collect();
        assert_eq!((accepted, entries.len()), (vec!["a/b/c/index.json"], 8));
    }

    #[test]
    fn a_truncated_tar_is_an_error() {
        let mut writer = ProviderTreeWriter::new(Vec::new());
        writer.add("a/b/c/d", 5000, &[7; 5000][..]).unwrap();
        let tar = writer.end().unwrap();
        assert!(read_all(&tar).is_ok());
        // The tar is cut within the file, and right after the file, before the end marker.
        for length in [3000, 512 + 5120] {
            assert!(read_all(&tar[..length]).is_err(), "{length}");
        }
        let mut writer = ProviderTreeWriter::new(Vec::new());
        assert!(writer.add("a/b/c/d", 5000, &[7; 4999][..]).is_err());
    }

    #[test]
    fn a_dropped_writer_writes_no_end_marker() {
        let mut out = Vec::new();
        let mut tar = ProviderTreeWriter::new(&mut out);
        tar.add("a", 1, &b"x"[..]).unwrap();
        drop(tar);
        assert_eq!(out.len(), 2 * 512, "a header and a block, and no blocks of zeros");
    }

    proptest! {
        #[test]
        fn written_files_are_read_back(
            files in prop::collection::vec(("([a-zé]{1,60}/){1,4}[a-z]{1,40}", prop::collection::vec(any::<u8>(), 0..600)), 0..6),
        ) {
            let mut writer = ProviderTreeWriter::new(Vec::new());
            for (path, bytes) in &files {
                writer.add(path, bytes.len() as u64, &bytes[..]).unwrap();
            }
            let read = read_all(&writer.end().unwrap()).unwrap();
            prop_assert_eq!(read, files.into_iter().map(|(path, bytes)| (path, Ok(bytes))).collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..2048),
            changed_byte in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let _ = read_all(&bytes);
            let mut writer = ProviderTreeWriter::new(Vec::new());
            writer.add(&"a/".repeat(90), 3, &b"abc"[..]).unwrap();
            let mut tar = writer.end().unwrap();
            let index = changed_byte.index(tar.len());
            tar[index] = to;
            let _ = read_all(&tar);
        }
    }
}
