//! A strict reader of a provider tree in a tar: regular files only, each at a path of a tree, within limits.

use std::io::{self, Read};

use tar::EntryType;

use super::layout::MAX_PATH;
use super::{MirrorPath, Mode, PathMeaning};
use crate::packaging::{BadTar, TarLimits, TarMember, TarReader};

/// The limits of one tar.
const LIMITS: TarLimits = TarLimits { entries: 1_000_000, extension_bytes: 64 << 10 };
/// The prefix of paths that `tar -C DIR -c .` writes.
const CURRENT_FOLDER_PREFIX: &str = "./";
/// The most bytes read after the end of a tar. Tar programs pad to whole records.
const MAX_TRAILING_BYTES: u64 = 1 << 20;

/// A reader of a provider tree in a tar. [`Read`] reads the contents of the current file: exactly its size, or an error.
#[derive(Debug)]
pub struct ProviderTreeReader<R> {
    /// `None` at the end of the tar.
    tar: Option<TarReader<R>>,
    /// The size of the current file.
    size_bytes: u64,
}

impl<R: Read> ProviderTreeReader<R> {
    /// Creates a reader.
    pub fn new(input: R) -> Self {
        Self { tar: Some(TarReader::new(input, LIMITS)), size_bytes: 0 }
    }

    /// Skips what is left of the current entry and reads the next one, folders excepted; `None` at the end of the tar.
    ///
    /// # Errors
    /// The tar is truncated, malformed or has too many entries.
    pub fn next_entry(&mut self) -> io::Result<Option<TarEntry>> {
        let Some(tar) = &mut self.tar else { return Ok(None) };
        while let Some(member) = tar.next_member().map_err(unreadable)? {
            if member.kind() != EntryType::Directory {
                self.size_bytes = member.size_bytes;
                return Ok(Some(TarEntry::of(&member)));
            }
        }
        if !tar.has_end_marker() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar has no end: it is truncated"));
        }
        if let Some(tar) = self.tar.take() {
            io::copy(&mut tar.into_input().take(MAX_TRAILING_BYTES), &mut io::sink())?;
        }
        Ok(None)
    }

    /// Reads the whole current file if it has at most `max_bytes` bytes, otherwise returns `None`.
    pub fn read_at_most(&mut self, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
        if self.size_bytes > max_bytes as u64 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

impl<R: Read> Read for ProviderTreeReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tar.as_mut().map_or(Ok(0), |tar| tar.read(buffer))
    }
}

fn unreadable(bad: BadTar) -> io::Error {
    match bad {
        BadTar::TooManyEntries(_) => io::Error::other(format!("{bad}; import the tree in parts")),
        bad => bad.into(),
    }
}

/// One entry of the tar.
#[derive(Debug)]
pub struct TarEntry {
    /// The path as in the tar, without a leading `./`. That of a refused entry is only printable.
    pub path: String,
    /// The meaning of the path; the reason for a refused entry, such as a link, a device or a path out of the tree.
    pub meaning: Result<PathMeaning, String>,
    /// The size in bytes from the tar's header.
    pub size_bytes: u64,
    /// The mode from the tar's header.
    pub mode: Mode,
}

impl TarEntry {
    /// The entry for anything but a folder. Other kinds than regular files are refused, and so is a path that is not one
    /// of a tree.
    fn of(member: &TarMember) -> Self {
        let name = std::str::from_utf8(&member.name).map(without_current_folder);
        let meaning = match member.kind() {
            _ if member.is_sparse => Err("it is not a regular file".to_owned()),
            EntryType::Regular | EntryType::Continuous => match name {
                Ok(path) => MirrorPath::parse(path).map_err(|bad| bad.to_string()),
                Err(_) => Err("its name is not UTF-8".to_owned()),
            },
            EntryType::Symlink | EntryType::Link => Err("it is a link, and no link is followed".to_owned()),
            EntryType::Char | EntryType::Block => Err("it is a device".to_owned()),
            EntryType::Fifo => Err("it is a pipe".to_owned()),
            _ => Err("it is not a regular file".to_owned()),
        };
        let path = match (&meaning, name) {
            (Ok(_), Ok(path)) => path.to_owned(),
            _ => printable(&member.name),
        };
        // An unreadable mode counts as not executable.
        let mode = Mode::of(member.header.mode().unwrap_or_default());
        Self { path, meaning, size_bytes: member.size_bytes, mode }
    }
}

fn without_current_folder(path: &str) -> &str {
    path.strip_prefix(CURRENT_FOLDER_PREFIX).unwrap_or(path)
}

/// Makes an untrusted path printable. At most `MAX_PATH` characters are kept, which include the package's folder.
fn printable(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    without_current_folder(&path).chars().take(MAX_PATH).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tar::{Builder, Header};

    use super::*;
    use crate::packaging::TarWriter;

    /// The path and bytes of an entry, or the reason for its refusal.
    type ReadEntry = (String, Result<Vec<u8>, String>);

    /// Reads all entries of a tar.
    fn read_all(tar: &[u8]) -> io::Result<Vec<ReadEntry>> {
        let (mut reader, mut entries) = (ProviderTreeReader::new(tar), Vec::new());
        while let Some(TarEntry { path, meaning, .. }) = reader.next_entry()? {
            entries.push(match meaning {
                Ok(_) => {
                    let mut bytes = Vec::new();
                    reader.read_to_end(&mut bytes)?;
                    (path, Ok(bytes))
                }
                Err(reason) => (path, Err(reason)),
            });
        }
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
        let mut writer = TarWriter::new(Vec::new());
        writer.file(b"a/b/c/d", 0o644, 5000, &[7; 5000][..]).unwrap();
        let tar = writer.end().unwrap();
        assert!(read_all(&tar).is_ok());
        // The tar is cut within the file, and right after the file, before the end marker.
        for length in [3000, 512 + 5120] {
            assert!(read_all(&tar[..length]).is_err(), "{length}");
        }
        let mut writer = TarWriter::new(Vec::new());
        assert!(writer.file(b"a/b/c/d", 0o644, 5000, &[7; 4999][..]).is_err());
    }

    #[test]
    fn a_dropped_writer_discards_what_it_has_buffered() {
        let mut out = Vec::new();
        let mut tar = TarWriter::new(&mut out);
        tar.file(b"a", 0o644, 1, &b"x"[..]).unwrap();
        drop(tar);
        assert!(out.is_empty(), "{} bytes", out.len());
    }

    proptest! {
        #[test]
        fn written_files_are_read_back(
            files in prop::collection::vec(("([a-zé]{1,60}/){1,4}[a-z]{1,40}", prop::collection::vec(any::<u8>(), 0..600)), 0..6),
        ) {
            let mut writer = TarWriter::new(Vec::new());
            for (path, bytes) in &files {
                writer.file(path.as_bytes(), 0o644, bytes.len() as u64, &bytes[..]).unwrap();
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
            let mut writer = TarWriter::new(Vec::new());
            writer.file("a/".repeat(90).as_bytes(), 0o644, 3, &b"abc"[..]).unwrap();
            let mut tar = writer.end().unwrap();
            let index = changed_byte.index(tar.len());
            tar[index] = to;
            let _ = read_all(&tar);
        }
    }
}
