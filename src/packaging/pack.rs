//! Packs a tree into the module archive that clients download. Equal trees give equal bytes on any machine.

use std::io::{self, Write};

use aws_lc_rs::digest::{Context, SHA256};
use flate2::{Compression, GzBuilder};

use super::resolve::{ResolvedEntry, ResolvedTree, resolve};
use super::tar::{BLOCK, COPY_BUFFER_BYTES, TarWriter};
use super::{Tree, TreeError, TreePath};
use crate::digest::{Digest, Hasher};

/// The version of the packer. Any change to the bytes of an archive needs a new version: other headers, another level,
/// or other output of the encoder (zlib-rs, which `Cargo.lock` pins; the golden test detects a change). Tree digests do
/// not depend on it.
pub const PACKER: u32 = 1;

const COMPRESSION_LEVEL: u32 = 6;
/// The operating system "unknown" in a gzip header (RFC 1952).
const UNKNOWN_SYSTEM: u8 = 255;
/// The size of each write to the encoder, in bytes. The encoder's output depends on it.
const CHUNK_BYTES: usize = 64 * 1024;
/// The length from which a name may need a tar entry of its own.
const MIN_LONG_NAME_BYTES: u64 = 100;

/// The result of packing a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackResult {
    /// The digest of the tree: SHA-256 over `larder tree 1\n`, then over each entry, in the order of the paths as
    /// bytes. An entry is one byte for its kind (`d` a folder, `f` a file, `x` a file that its owner may execute), its
    /// path relative to the root, and a zero byte. For a file, the 32 bytes of the SHA-256 of its contents follow.
    /// Links are followed first. Every folder is an entry, except the root. The digest depends neither on the format
    /// that a tree arrived in nor on the packer.
    pub tree: Digest,
    /// Notes for the operator about links that were left out.
    pub notes: Vec<String>,
}

/// Follows the links below `root` and packs it as `tar.gz`, as [`ResolvedTree::write`] does.
///
/// # Errors
/// Errors of [`resolve`] and of [`ResolvedTree::write`].
pub fn pack(tree: &Tree, root: &TreePath, out: &mut dyn Write) -> Result<PackResult, TreeError> {
    resolve(tree, root)?.write(out)
}

impl ResolvedTree<'_> {
    /// An upper bound for the size of the archive in bytes, before it is written: the file contents, 1 KiB for each
    /// entry, and more for long names.
    pub fn max_archive_bytes(&self) -> u64 {
        let entry_bytes = |(path, entry): (&TreePath, &ResolvedEntry)| {
            let content_bytes = if let ResolvedEntry::File { size_bytes, .. } = entry { *size_bytes } else { 0 };
            let name_bytes = path.as_bytes().len() as u64;
            let long_name_bytes = if name_bytes < MIN_LONG_NAME_BYTES { 0 } else { 1024 + name_bytes };
            content_bytes.saturating_add(1024 + long_name_bytes)
        };
        self.entries.iter().map(entry_bytes).fold(2 * BLOCK as u64, u64::saturating_add)
    }

    /// Writes a `tar.gz`: links replaced by copies, entries sorted, no owners, no times. Files keep their permission
    /// bits and are at least readable by their owner; folders have 0755. Contents are not loaded into memory.
    ///
    /// # Errors
    /// [`TreeError::Spool`] if reading or writing fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<PackResult, TreeError> {
        self.write_with_buffer(vec![0; COPY_BUFFER_BYTES], out)
    }

    /// Implements [`ResolvedTree::write`] with a buffer of any size, which does not change the bytes.
    fn write_with_buffer(&self, buffer: Vec<u8>, out: &mut dyn Write) -> Result<PackResult, TreeError> {
        let gzip =
            GzBuilder::new().mtime(0).operating_system(UNKNOWN_SYSTEM).write(out, Compression::new(COMPRESSION_LEVEL));
        let chunks = FixedChunkWriter { inner: gzip, chunk: Vec::with_capacity(CHUNK_BYTES) };
        let mut tar = TarWriter::with_buffer(chunks, buffer);
        let mut tree_hasher = Hasher::new();
        tree_hasher.update(b"larder tree 1\n");
        for (path, entry) in &self.entries {
            let kind = match entry {
                ResolvedEntry::Folder => b"d",
                ResolvedEntry::File { mode, .. } if mode & 0o100 == 0 => b"f",
                ResolvedEntry::File { .. } => b"x",
            };
            tree_hasher.update(kind);
            tree_hasher.update(path.as_bytes());
            tree_hasher.update(b"\0");
            match *entry {
                ResolvedEntry::Folder => tar.folder(path.as_bytes()).map_err(TreeError::spool)?,
                ResolvedEntry::File { mode, offset, size_bytes } => {
                    let mut context = Context::new(&SHA256);
                    let contents = self.tree.contents(offset, size_bytes);
                    tar.file(path.as_bytes(), mode | 0o400, size_bytes, contents, |chunk| context.update(chunk))
                        .map_err(TreeError::spool)?;
                    tree_hasher.update(context.finish().as_ref());
                }
            }
        }
        let gzip = tar.end().map_err(TreeError::spool)?.inner;
        gzip.finish().and_then(Write::flush).map_err(TreeError::spool)?;
        Ok(PackResult { tree: tree_hasher.finish().0, notes: self.notes.clone() })
    }
}

/// A writer that passes its input on in chunks of `CHUNK_BYTES`. A flush writes what is left.
struct FixedChunkWriter<W> {
    inner: W,
    chunk: Vec<u8>,
}

impl<W: Write> Write for FixedChunkWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (accepted, _) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk.len()));
        self.chunk.extend_from_slice(accepted);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(accepted.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
