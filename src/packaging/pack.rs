//! Packs a tree into the module archive that clients download. Equal trees give equal bytes on any machine.

use std::io::{self, Read, Write};

use ::tar::{EntryType, Header};
use aws_lc_rs::digest::{Context, SHA256};
use flate2::{Compression, GzBuilder};

use super::resolve::{ResolvedEntry, ResolvedTree, resolve};
use super::{Tree, TreeError, TreePath};
use crate::digest::{Digest, Hasher};

/// The version of the packer. Any change to the bytes of an archive needs a new version: other headers, another level,
/// or other output of the encoder (zlib-rs, which `Cargo.lock` pins; the golden test detects a change). Tree digests do
/// not depend on it.
pub const PACKER: u32 = 1;

const COMPRESSION_LEVEL: u32 = 6;
const COPY_BUFFER_BYTES: usize = 256 * 1024;
/// The operating system "unknown" in a gzip header (RFC 1952).
const UNKNOWN_SYSTEM: u8 = 255;
/// The size of each write to the encoder, in bytes. The encoder's output depends on it.
const CHUNK_BYTES: usize = 64 * 1024;
const BLOCK: usize = 512;
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
        self.write_with_buffer(&mut vec![0; COPY_BUFFER_BYTES], out)
    }

    /// Implements [`ResolvedTree::write`] with a buffer of any size, which does not change the bytes.
    fn write_with_buffer(&self, buffer: &mut [u8], out: &mut dyn Write) -> Result<PackResult, TreeError> {
        let gzip =
            GzBuilder::new().mtime(0).operating_system(UNKNOWN_SYSTEM).write(out, Compression::new(COMPRESSION_LEVEL));
        let mut gzip = FixedChunkWriter { inner: gzip, chunk: Vec::with_capacity(CHUNK_BYTES) };
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
                ResolvedEntry::Folder => {
                    let name = [path.as_bytes(), b"/"].concat();
                    write_header(&mut gzip, &name, EntryType::Directory, 0o755, 0).map_err(TreeError::spool)?;
                }
                ResolvedEntry::File { mode, offset, size_bytes } => {
                    write_header(&mut gzip, path.as_bytes(), EntryType::Regular, mode | 0o400, size_bytes)
                        .map_err(TreeError::spool)?;
                    let mut contents = self.tree.contents(offset, size_bytes);
                    let digest = copy(&mut contents, &mut gzip, buffer).map_err(TreeError::spool)?;
                    tree_hasher.update(digest.as_ref());
                    pad(&mut gzip, size_bytes).map_err(TreeError::spool)?;
                }
            }
        }
        gzip.write_all(&[0; 2 * BLOCK]).and_then(|()| gzip.flush()).map_err(TreeError::spool)?;
        gzip.inner.finish().and_then(Write::flush).map_err(TreeError::spool)?;
        Ok(PackResult { tree: tree_hasher.finish().0, notes: self.notes.clone() })
    }
}

/// Writes the header of an entry. If the name is too long for ustar, a GNU long-name entry with the name precedes the
/// header. Unlike a pax header, that entry may contain any bytes.
fn write_header(out: &mut dyn Write, name: &[u8], kind: EntryType, mode: u32, size: u64) -> io::Result<()> {
    if let Some((prefix, name)) = split_name(name) {
        let mut header = Header::new_ustar();
        if let Some(ustar) = header.as_ustar_mut() {
            fill(&mut ustar.prefix, prefix);
            fill(&mut ustar.name, name);
        }
        return finish_header(out, header, kind, mode, size);
    }
    let name_bytes_with_nul = name.len() as u64 + 1;
    let mut long_name_header = Header::new_gnu();
    fill(&mut long_name_header.as_old_mut().name, b"././@LongLink");
    finish_header(out, long_name_header, EntryType::GNULongName, 0o644, name_bytes_with_nul)?;
    out.write_all(name)?;
    out.write_all(&[0])?;
    pad(out, name_bytes_with_nul)?;
    let mut header = Header::new_gnu();
    fill(&mut header.as_old_mut().name, name);
    finish_header(out, header, kind, mode, size)
}

fn finish_header(out: &mut dyn Write, mut header: Header, kind: EntryType, mode: u32, size: u64) -> io::Result<()> {
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    out.write_all(header.as_bytes())
}

/// Splits a name into ustar's prefix and name, at the first slash where both fit their fields.
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((b"", name));
    }
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
    // The second half begins with the slash, which ustar does not store.
    let (prefix, slash_and_name) = slashes.map(|index| name.split_at(index)).find(|(prefix, slash_and_name)| {
        (1..=155).contains(&prefix.len()) && (2..=101).contains(&slash_and_name.len())
    })?;
    Some((prefix, slash_and_name.get(1..)?))
}

/// Copies as much of the bytes as fits the field.
fn fill(field: &mut [u8], bytes: &[u8]) {
    for (target, byte) in field.iter_mut().zip(bytes) {
        *target = *byte;
    }
}

/// Writes zeros up to the end of the block.
fn pad(out: &mut dyn Write, size: u64) -> io::Result<()> {
    let bytes_in_last_block = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    out.write_all([0; BLOCK].get(bytes_in_last_block..).filter(|_| bytes_in_last_block > 0).unwrap_or_default())
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

/// Copies a file and returns its SHA-256.
fn copy(input: &mut dyn Read, out: &mut dyn Write, buffer: &mut [u8]) -> io::Result<impl AsRef<[u8]> + use<>> {
    let mut context = Context::new(&SHA256);
    loop {
        let read = match input.read(buffer) {
            Ok(0) => return Ok(context.finish()),
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        context.update(bytes);
        out.write_all(bytes)?;
    }
}

#[cfg(test)]
mod tests;
