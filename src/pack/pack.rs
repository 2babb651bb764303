//! A tree into the archive that clients get. The same tree gives the same bytes: on any machine, after any restart.

use std::io::{self, Read, Write};

use ::tar::{EntryType, Header};
use aws_lc_rs::digest::{Context, SHA256};
use flate2::{Compression, GzBuilder};

use super::resolve::{Node, Resolved, resolve};
use super::{Tree, TreeError, TreePath};
use crate::digest::{Digest, Hasher};

/// Which packer made an archive. Whatever changes the bytes of an archive makes it another packer: the headers written
/// here, the level, or what the encoder makes of the same bytes (zlib-rs, which `Cargo.lock` pins; the golden test
/// below finds out). Trees keep their digest all the same.
pub const PACKER: u32 = 1;

/// The level of gzip.
const LEVEL: u32 = 6;
/// How much is copied at a time, in bytes.
const COPIED_AT_ONCE: usize = 256 * 1024;
/// "Unknown", in the header of gzip (RFC 1952).
const NO_SYSTEM: u8 = 255;
/// How much the encoder gets at a time, in bytes: what it makes of the same bytes depends on that.
const PIECE: usize = 64 * 1024;
const BLOCK: usize = 512;
/// From how many bytes on a name may need a place of its own.
const SHORT_NAME: u64 = 100;

/// What was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The digest of the tree: SHA-256 over `larder tree 1\n`, then over each of its entries, in the order of their
    /// paths as bytes. An entry is one byte for its kind (`d` a folder, `f` a file, `x` a file that its owner may
    /// execute), its path relative to the root, and a zero byte; of a file, the 32 bytes of the SHA-256 of what is in it
    /// follow. Links are followed before, every folder is an entry, and the root itself is none. So it does not depend
    /// on how a tree arrived, nor on how it is packed.
    pub tree: Digest,
    /// What an operator should know: links that were left out.
    pub notes: Vec<String>,
}

/// Writes what is below `root` as `tar.gz`, as [`Resolved::write`] does.
///
/// # Errors
/// Those of [`resolve`], and of [`Resolved::write`].
pub fn pack(tree: &Tree, root: &TreePath, out: &mut dyn Write) -> Result<Packed, TreeError> {
    resolve(tree, root)?.write(out)
}

impl Resolved<'_> {
    /// How many bytes the archive may take, before it is written: what is in its files, and 1 KiB for each entry, or
    /// what a long name takes. Most are packed to less.
    pub fn bytes(&self) -> u64 {
        let entry = |(path, node): (&TreePath, &Node)| {
            let content = if let Node::File { size_bytes, .. } = node { *size_bytes } else { 0 };
            let name = path.as_bytes().len() as u64;
            let for_name = if name < SHORT_NAME { 0 } else { 1024 + name };
            content.saturating_add(1024 + for_name)
        };
        self.nodes.iter().map(entry).fold(2 * BLOCK as u64, u64::saturating_add)
    }

    /// Writes it as `tar.gz`: links followed to copies; sorted; no owners, no times. Files keep their permission bits,
    /// and are readable for their owner at least; folders have 0755. Memory is taken for names alone.
    ///
    /// # Errors
    /// [`TreeError::Spool`] where reading or writing fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<Packed, TreeError> {
        self.write_through(&mut vec![0; COPIED_AT_ONCE], out)
    }

    /// The same through a buffer of any size, which makes no difference to the bytes.
    fn write_through(&self, buffer: &mut [u8], out: &mut dyn Write) -> Result<Packed, TreeError> {
        let gzip = GzBuilder::new().mtime(0).operating_system(NO_SYSTEM).write(out, Compression::new(LEVEL));
        let mut gzip = Pieces { inner: gzip, piece: Vec::with_capacity(PIECE) };
        let mut listing = Hasher::new();
        listing.update(b"larder tree 1\n");
        for (path, node) in &self.nodes {
            let kind = match node {
                Node::Folder => b"d",
                Node::File { mode, .. } if mode & 0o100 == 0 => b"f",
                Node::File { .. } => b"x",
            };
            listing.update(kind);
            listing.update(path.as_bytes());
            listing.update(b"\0");
            match *node {
                Node::Folder => {
                    let name = [path.as_bytes(), b"/"].concat();
                    write_header(&mut gzip, &name, EntryType::Directory, 0o755, 0).map_err(TreeError::spool)?;
                }
                Node::File { mode, at, size_bytes } => {
                    write_header(&mut gzip, path.as_bytes(), EntryType::Regular, mode | 0o400, size_bytes)
                        .map_err(TreeError::spool)?;
                    let mut contents = self.tree.contents(at, size_bytes);
                    let digest = copy(&mut contents, &mut gzip, buffer).map_err(TreeError::spool)?;
                    listing.update(digest.as_ref());
                    pad(&mut gzip, size_bytes).map_err(TreeError::spool)?;
                }
            }
        }
        gzip.write_all(&[0; 2 * BLOCK]).and_then(|()| gzip.flush()).map_err(TreeError::spool)?;
        gzip.inner.finish().and_then(Write::flush).map_err(TreeError::spool)?;
        Ok(Packed { tree: listing.finish().0, notes: self.notes.clone() })
    }
}

/// Writes the header of an entry. A name that ustar has no room for goes before it as GNU tar does it: unlike pax, that
/// takes any bytes.
fn write_header(out: &mut dyn Write, name: &[u8], kind: EntryType, mode: u32, size: u64) -> io::Result<()> {
    if let Some((prefix, name)) = split(name) {
        let mut header = Header::new_ustar();
        if let Some(ustar) = header.as_ustar_mut() {
            fill(&mut ustar.prefix, prefix);
            fill(&mut ustar.name, name);
        }
        return finish_header(out, header, kind, mode, size);
    }
    let size_of_name = name.len() as u64 + 1;
    let mut before = Header::new_gnu();
    fill(&mut before.as_old_mut().name, b"././@LongLink");
    finish_header(out, before, EntryType::GNULongName, 0o644, size_of_name)?;
    out.write_all(name)?;
    out.write_all(&[0])?;
    pad(out, size_of_name)?;
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

/// A name as ustar has it, in its prefix and its name: cut at the first slash that leaves both room enough.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((b"", name));
    }
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let (prefix, rest) = slashes
        .map(|at| name.split_at(at))
        .find(|(prefix, rest)| (1..=155).contains(&prefix.len()) && (2..=101).contains(&rest.len()))?;
    Some((prefix, rest.get(1..)?))
}

/// Writes as much of a text as there is room for.
fn fill(field: &mut [u8], text: &[u8]) {
    for (to, from) in field.iter_mut().zip(text) {
        *to = *from;
    }
}

/// Fills up to a whole block.
fn pad(out: &mut dyn Write, size: u64) -> io::Result<()> {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    out.write_all([0; BLOCK].get(over..).filter(|_| over > 0).unwrap_or_default())
}

/// Passes on pieces of one size, whatever is written; what is left when it is flushed is the last.
struct Pieces<W> {
    inner: W,
    piece: Vec<u8>,
}

impl<W: Write> Write for Pieces<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (taken, _) = bytes.split_at(bytes.len().min(PIECE - self.piece.len()));
        self.piece.extend_from_slice(taken);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.write_all(&self.piece)?;
        self.piece.clear();
        Ok(())
    }
}

/// Copies a file, and hashes it on the way.
fn copy(from: &mut dyn Read, out: &mut dyn Write, buffer: &mut [u8]) -> io::Result<impl AsRef<[u8]> + use<>> {
    let mut context = Context::new(&SHA256);
    loop {
        let read = match from.read(buffer) {
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
