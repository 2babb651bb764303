//! Packs trees into zips, as provider packages are: only files, sorted by path, without times or owners. Equal trees
//! give equal zips for first version of the encoder (zlib-rs, which `Cargo.lock` pins).

use std::io::{Read, Write};

use ::zip::write::{SimpleFileOptions, ZipWriter};
use ::zip::{CompressionMethod, DateTime, System};

use super::{Tree, TreeEntry, TreeError};

const COMPRESSION_LEVEL: i64 = 6;
/// The size of each write to the encoder, in bytes. The encoder's output depends on it.
const CHUNK_BYTES: usize = 64 * 1024;
/// The largest file without zip64 fields. The margin below 4 GiB is for bytes that the encoder may add.
const MAX_ZIP32_BYTES: u64 = u32::MAX as u64 - (64 << 20);

/// Writes a tree as a zip. A file has mode 0755 if its owner may execute it, otherwise 0644. Folders have no entry, so
/// empty folders are left out.
///
/// # Errors
/// [`TreeError::Refused`] for a link or a name that is not UTF-8; [`TreeError::Spool`] if reading or writing fails.
pub fn pack_zip(tree: &Tree, out: impl Write) -> Result<(), TreeError> {
    let mut zip = ZipWriter::new_stream(out);
    let mut buffer = vec![0; CHUNK_BYTES];
    for (path, entry) in tree.entries() {
        let (mode, offset, size_bytes) = match *entry {
            TreeEntry::File { mode, offset, size_bytes } => (mode, offset, size_bytes),
            TreeEntry::Folder => continue,
            TreeEntry::Link(_) => return Err(TreeError::refused(path, "it is a link")),
        };
        let name = std::str::from_utf8(path.as_bytes());
        let name = name.map_err(|_| TreeError::refused(path, "its name is not UTF-8"))?;
        let options = SimpleFileOptions::DEFAULT
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(COMPRESSION_LEVEL))
            .last_modified_time(DateTime::DEFAULT)
            .system(System::Unix)
            .unix_permissions(if mode & 0o100 == 0 { 0o644 } else { 0o755 })
            .large_file(size_bytes > MAX_ZIP32_BYTES);
        zip.start_file(name, options).map_err(|e| TreeError::spool(e.into()))?;
        let mut contents = tree.contents(offset, size_bytes);
        loop {
            let mut chunk_length = 0;
            while chunk_length < CHUNK_BYTES {
                match contents.read(&mut buffer[chunk_length..]).map_err(TreeError::spool)? {
                    0 => break,
                    read => chunk_length += read,
                }
            }
            if chunk_length == 0 {
                break;
            }
            zip.write_all(&buffer[..chunk_length]).map_err(TreeError::spool)?;
        }
    }
    let mut out = zip.finish().map_err(|e| TreeError::spool(e.into()))?.into_inner();
    out.flush().map_err(TreeError::spool)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{TreeLimits, TreePath};
    use super::*;
    use crate::digest::Digest;
    use crate::verify::{PackageLimits, package_hashes};

    fn tree(files: &[(&str, u32, &[u8])]) -> Tree {
        let mut tree = Tree::new(tempfile::tempfile().unwrap(), TreeLimits::default());
        for (path, mode, bytes) in files {
            tree.add_file(&TreePath::parse(path.as_bytes()).unwrap(), *mode, &mut &bytes[..]).unwrap();
        }
        tree
    }

    fn zip(tree: &Tree) -> Vec<u8> {
        let mut zip = Vec::new();
        pack_zip(tree, &mut zip).unwrap();
        zip
    }

    #[test]
    fn equal_trees_give_equal_zips_and_only_the_executable_bit_of_modes_counts() {
        let large = vec![7; 300_000];
        let (binary, license) = (("terraform-provider-null", 0o755, &large[..]), ("docs/LICENSE", 0o644, &b"x"[..]));
        let first = zip(&tree(&[binary, license]));
        let second = zip(&tree(&[(license.0, 0o600, license.2), (binary.0, 0o700, binary.2)]));
        assert!(first == second);
        assert_ne!(Digest::of(&first), Digest::of(&zip(&tree(&[(binary.0, 0o644, binary.2), license]))));
        let hashes = package_hashes(Cursor::new(&first), PackageLimits::default()).unwrap();
        assert_eq!(hashes.zip, hashes.directory);
        let mut archive = ::zip::ZipArchive::new(Cursor::new(first)).unwrap();
        assert_eq!(archive.by_name("terraform-provider-null").unwrap().unix_mode(), Some(0o100_755));
        assert_eq!(archive.by_name("docs/LICENSE").unwrap().unix_mode(), Some(0o100_644));
    }

    #[test]
    fn a_tree_with_a_link_is_refused() {
        let mut tree = tree(&[("a", 0o644, b"x")]);
        tree.add_symlink(&TreePath::parse(b"b").unwrap(), b"a").unwrap();
        assert!(matches!(pack_zip(&tree, Vec::new()), Err(TreeError::Refused { .. })));
    }
}
