//! A bundle on its way out: the manifest, its signature, then each file, as its reader will want them.

use std::io::{self, Read, Write};

use super::open::{MANIFEST, SIGNATURE};
use super::tar::TarWriter;
use super::{FileRef, Manifest, SigningKey};
use crate::digest::{Digest, Hasher};

/// How much is copied at a time, in bytes.
const COPIED_AT_ONCE: usize = 256 * 1024;

/// Writes a bundle. The same manifest, key and files give the same bytes.
#[derive(Debug)]
pub struct Writer<W> {
    tar: TarWriter<W>,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// How many bytes a bundle has.
    pub fn bytes_of(manifest: &Manifest, key: Option<&SigningKey>) -> u64 {
        let written = manifest.write();
        let signature = key.map(|key| key.sign(&written).write().len());
        manifest.bundle_bytes(written.len(), signature)
    }

    /// Writes what a bundle begins with.
    ///
    /// # Errors
    /// Where the manifest is none that would be read back, and those of the writer.
    pub fn begin(out: W, manifest: &Manifest, key: Option<&SigningKey>) -> io::Result<Self> {
        manifest.check().map_err(io::Error::other)?;
        let written = manifest.write();
        let signature = key.map(|key| key.sign(&written).write());
        Self::begin_with(out, &written, signature.as_deref())
    }

    /// The same with a manifest and a signature that are written already.
    pub(super) fn begin_with(out: W, manifest: &[u8], signature: Option<&[u8]>) -> io::Result<Self> {
        let mut tar = TarWriter::new(out);
        tar.file(MANIFEST, manifest.len() as u64, |out| out(manifest))?;
        if let Some(signature) = signature {
            tar.file(SIGNATURE, signature.len() as u64, |out| out(signature))?;
        }
        Ok(Self { tar, buffer: vec![0; COPIED_AT_ONCE] })
    }

    /// Writes the next of [`Manifest::files`].
    ///
    /// # Errors
    /// Where its bytes are not those that the manifest names, and those of either side.
    pub fn file(&mut self, file: &FileRef, mut from: impl Read) -> io::Result<()> {
        let (mut hasher, buffer) = (Hasher::new(), &mut self.buffer);
        self.tar.file(&file.name(), file.file.bytes, |out| {
            loop {
                let read = from.read(buffer)?;
                let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { return Ok(()) };
                hasher.update(piece);
                out(piece)?;
            }
        })?;
        let (now, _): (Digest, _) = hasher.finish();
        if now != file.file.sha256 {
            let was = file.file.sha256;
            return Err(io::Error::other(format!("its bytes have SHA-256 {now}, and had {was}")));
        }
        Ok(())
    }

    /// The same of a file that `give` gives piece by piece, and has held against its digest.
    pub(super) fn file_by(
        &mut self,
        file: &FileRef,
        give: impl FnMut(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.tar.file(&file.name(), file.file.bytes, give)
    }

    /// Writes the end.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(self) -> io::Result<W> {
        self.tar.end()
    }
}
