//! Reads tars of provider trees, hostile ones included.

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
