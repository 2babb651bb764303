//! Packs trees into zips, as provider packages are: only files, sorted by path, without times or owners. Equal trees
//! give equal zips for one version of the encoder (zlib-rs, which `Cargo.lock` pins).

use std::io::{Read, Write};

use ::zip::write::{SimpleFileOptions, ZipWriter};
use ::zip::{CompressionMethod, DateTime, System};

use super::{Tree, TreeEntry, TreeError};

const LEVEL: i64 = 6;
/// The size of each write to the encoder, in bytes. The encoder's output depends on it.
const PIECE: usize = 64 * 1024;
/// Larger files get zip64 fields. The margin below 4 GiB is for bytes that the encoder may add.
const LARGE: u64 = u32::MAX as u64 - (64 << 20);

/// Writes a tree as a zip. Files have mode 0755 if their owner may execute them, otherwise 0644. Folders have no entry,
/// so empty ones are left out.
///
/// # Errors
/// [`TreeError::Refused`] for a link or a name that is not UTF-8; [`TreeError::Spool`] where reading or writing fails.
pub fn pack_zip(tree: &Tree, out: impl Write) -> Result<(), TreeError> {
    let mut zip = ZipWriter::new_stream(out);
    let mut buffer = vec![0; PIECE];
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
            .compression_level(Some(LEVEL))
            .last_modified_time(DateTime::DEFAULT)
            .system(System::Unix)
            .unix_permissions(if mode & 0o100 == 0 { 0o644 } else { 0o755 })
            .large_file(size_bytes > LARGE);
        zip.start_file(name, options).map_err(|e| TreeError::spool(e.into()))?;
        let mut contents = tree.contents(offset, size_bytes);
        loop {
            let mut filled = 0;
            while filled < PIECE {
                match contents.read(&mut buffer[filled..]).map_err(TreeError::spool)? {
                    0 => break,
                    read => filled += read,
                }
            }
            if filled == 0 {
                break;
            }
            zip.write_all(&buffer[..filled]).map_err(TreeError::spool)?;
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
    fn a_tree_is_the_same_zip_in_whatever_order_it_came_and_only_the_executable_bit_counts() {
        let large = vec![7; 300_000];
        let (binary, license) = (("terraform-provider-null", 0o755, &large[..]), ("docs/LICENSE", 0o644, &b"x"[..]));
        let one = zip(&tree(&[binary, license]));
        let other = zip(&tree(&[(license.0, 0o600, license.2), (binary.0, 0o700, binary.2)]));
        assert!(one == other);
        assert_ne!(Digest::of(&one), Digest::of(&zip(&tree(&[(binary.0, 0o644, binary.2), license]))));
        let hashes = package_hashes(Cursor::new(&one), PackageLimits::default()).unwrap();
        assert_eq!(hashes.zip, hashes.directory);
        let mut read = ::zip::ZipArchive::new(Cursor::new(one)).unwrap();
        assert_eq!(read.by_name("terraform-provider-null").unwrap().unix_mode(), Some(0o100_755));
        assert_eq!(read.by_name("docs/LICENSE").unwrap().unix_mode(), Some(0o100_644));
    }

    #[test]
    fn a_link_is_in_no_package() {
        let mut tree = tree(&[("a", 0o644, b"x")]);
        tree.add_symlink(&TreePath::parse(b"b").unwrap(), b"a").unwrap();
        assert!(matches!(pack_zip(&tree, Vec::new()), Err(TreeError::Refused { .. })));
    }
}
