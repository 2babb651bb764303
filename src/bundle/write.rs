//! Writes a bundle: the manifest, its signature, then each file in the manifest's order.

use std::io::{self, Read, Write};

use super::open::{MANIFEST, SIGNATURE};
use super::tar::TarWriter;
use super::{EntryFile, Manifest, SigningKey};
use crate::digest::{Digest, Hasher};

const COPIED_AT_ONCE: usize = 256 * 1024;

/// A writer of bundles. Equal manifests, keys and files give equal bytes.
#[derive(Debug)]
pub struct BundleWriter<W> {
    tar: TarWriter<W>,
    buffer: Vec<u8>,
}

impl<W: Write> BundleWriter<W> {
    /// The size of a bundle in bytes.
    pub fn bytes_of(manifest: &Manifest, key: Option<&SigningKey>) -> u64 {
        let written = manifest.write();
        let signature = key.map(|key| key.sign(&written).write().len());
        manifest.bundle_bytes(written.len(), signature)
    }

    /// Checks and writes the manifest, then its signature.
    ///
    /// # Errors
    /// The manifest is one that a reader would refuse; also those of the writer.
    pub fn begin(out: W, manifest: &Manifest, key: Option<&SigningKey>) -> io::Result<Self> {
        manifest.check().map_err(io::Error::other)?;
        let written = manifest.write();
        let signature = key.map(|key| key.sign(&written).write());
        Self::begin_with(out, &written, signature.as_deref())
    }

    /// Writes a manifest and a signature that are serialised already.
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
    /// The size or digest is not the manifest's; also those of the reader and the writer.
    pub fn file(&mut self, file: &EntryFile, mut from: impl Read) -> io::Result<()> {
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
            return Err(io::Error::other(format!("its SHA-256 is {now}, and was {was}")));
        }
        Ok(())
    }

    /// Writes the next file from `give`, which passes the pieces and checks the digest itself.
    pub(super) fn write_file_with(
        &mut self,
        file: &EntryFile,
        give: impl FnMut(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.tar.file(&file.name(), file.file.bytes, give)
    }

    /// Writes the end and returns the inner writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(self) -> io::Result<W> {
        self.tar.end()
    }
}
