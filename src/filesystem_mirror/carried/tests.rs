//! Reads tars of provider trees, hostile ones included.

use proptest::prelude::*;
use tar::{Builder, Header};

use super::super::written::ProviderTreeWriter;
use super::*;

/// The path and bytes of an entry, or the reason for its refusal.
type WasRead = (String, Result<Vec<u8>, String>);

fn all(tar: &[u8]) -> io::Result<Vec<WasRead>> {
    let mut all = Vec::new();
    ProviderTreeReader::new(tar).for_each_entry::<io::Error>(|entry| {
        all.push(match entry {
            TarEntry::File { path, mut contents, .. } => {
                let mut bytes = Vec::new();
                contents.read_to_end(&mut bytes)?;
                (path, Ok(bytes))
            }
            TarEntry::Refused { path, reason } => (path, Err(reason)),
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
    let mut writing = ProviderTreeWriter::new(Vec::new());
    writing.add("a/b/c/d", 5000, &[7; 5000][..]).unwrap();
    let tar = writing.end().unwrap();
    assert!(all(&tar).is_ok());
    // Cut within the file, and right after the file, where the end of the tar is missing.
    for length in [3000, 512 + 5120] {
        assert!(all(&tar[..length]).is_err(), "{length}");
    }
    let mut writing = ProviderTreeWriter::new(Vec::new());
    assert!(writing.add("a/b/c/d", 5000, &[7; 4999][..]).is_err());
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        files in prop::collection::vec(("([a-zé]{1,60}/){1,4}[a-z]{1,40}", prop::collection::vec(any::<u8>(), 0..600)), 0..6),
    ) {
        let mut writing = ProviderTreeWriter::new(Vec::new());
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
        let mut writing = ProviderTreeWriter::new(Vec::new());
        writing.add(&"a/".repeat(90), 3, &b"abc"[..]).unwrap();
        let mut tar = writing.end().unwrap();
        let index = at.index(tar.len());
        tar[index] = to;
        let _ = all(&tar);
    }
}
