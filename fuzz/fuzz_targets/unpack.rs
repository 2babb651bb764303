//! Archives: the first byte selects the format. An unpacked tree is within the limits, and packing it gives an archive
//! without links, which unpacks to the tree that was packed.
#![no_main]

use std::io::{Seek, Write};

use larder::packaging::{ArchiveFormat, Tree, TreeEntry, TreeError, TreeLimits, TreePath, pack, unpack};
use libfuzzer_sys::fuzz_target;

const LIMITS: TreeLimits = TreeLimits { entries: 64, bytes: 256 * 1024, file_bytes: 128 * 1024 };
const FORMATS: [ArchiveFormat; 4] =
    [ArchiveFormat::Zip, ArchiveFormat::TarGz, ArchiveFormat::TarBz2, ArchiveFormat::TarXz];

fuzz_target!(|bytes: &[u8]| {
    let Some((format, archive)) = bytes.split_first() else { return };
    // Any other byte: a plain tar, compressed here, because the fuzzer would not get through gzip.
    let (format, archive) = match FORMATS.get(usize::from(*format)) {
        Some(format) => (*format, archive.to_vec()),
        None => (ArchiveFormat::TarGz, gzip(archive)),
    };
    let tree = match unpack_bytes(format, &archive) {
        Ok(tree) => tree,
        Err(error) => return assert!(error.to_string().len() < 2_000),
    };
    assert!(tree.entries().count() <= LIMITS.entries && tree.bytes() <= LIMITS.bytes);
    for (path, _) in tree.entries() {
        assert!(!path.is_root() && path.names().all(|name| name != b".." && name != b"." && !name.contains(&0)));
    }
    let mut first = Vec::new();
    let Ok(packed) = pack(&tree, &TreePath::root(), &mut first) else { return };
    let mut second = Vec::new();
    let repeated = pack(&tree, &TreePath::root(), &mut second).expect("what was packed before");
    assert!(first == second && packed == repeated);
    let unpacked_again = match unpack_bytes(ArchiveFormat::TarGz, &first) {
        Ok(tree) => tree,
        // The tree had only dangling links; or two copies that packing made in place of links have names that collide.
        Err(TreeError::Unreadable(_) | TreeError::Refused { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    assert!(unpacked_again.entries().all(|(_, entry)| !matches!(entry, TreeEntry::Link(_))));
    let mut third = Vec::new();
    let repacked = pack(&unpacked_again, &TreePath::root(), &mut third).expect("what was packed before");
    assert!(third == first && repacked.tree_digest == packed.tree_digest);
});

fn unpack_bytes(format: ArchiveFormat, bytes: &[u8]) -> Result<Tree, TreeError> {
    let mut archive = tempfile::tempfile().expect("a file");
    archive.write_all(bytes).and_then(|()| archive.rewind()).expect("the archive is written");
    let mut tree = Tree::new(tempfile::tempfile().expect("a file"), LIMITS);
    unpack(format, &mut archive, &mut tree).map(|()| tree)
}

/// The bytes as a gzip file of uncompressed blocks (RFC 1952; RFC 1951, section 3.2.4).
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut archive = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut pieces = bytes.chunks(0xffff).peekable();
    if pieces.peek().is_none() {
        archive.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(piece) = pieces.next() {
        let length = piece.len() as u16;
        archive.push(u8::from(pieces.peek().is_none()));
        archive.extend(length.to_le_bytes());
        archive.extend((!length).to_le_bytes());
        archive.extend(piece);
    }
    archive.extend(crc32(bytes).to_le_bytes());
    archive.extend((bytes.len() as u32).to_le_bytes());
    archive
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 })
    })
}
