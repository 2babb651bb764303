//! Writes a bundle: the manifest, its signature, then each file in the manifest's order.

use std::io::{self, Read, Write};

use super::open::{MANIFEST_NAME, SIGNATURE_NAME};
use super::tar::TarWriter;
use super::{EntryFile, Manifest, SigningKey};
use crate::digest::{Digest, Hasher};

const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// A writer of bundles. Equal manifests, keys and files give equal bytes.
#[derive(Debug)]
pub struct BundleWriter<W> {
    tar: TarWriter<W>,
    buffer: Vec<u8>,
}

impl<W: Write> BundleWriter<W> {
    /// The size of the bundle with this manifest, in bytes.
    pub fn bundle_bytes(manifest: &Manifest, key: Option<&SigningKey>) -> u64 {
        let manifest_bytes = manifest.write();
        let signature = key.map(|key| key.sign(&manifest_bytes).write().len());
        manifest.bundle_bytes(manifest_bytes.len(), signature)
    }

    /// Checks and writes the manifest, then its signature.
    ///
    /// # Errors
    /// The manifest is one that a reader would refuse; also errors of the writer.
    pub fn begin(out: W, manifest: &Manifest, key: Option<&SigningKey>) -> io::Result<Self> {
        manifest.check().map_err(io::Error::other)?;
        let manifest_bytes = manifest.write();
        let signature = key.map(|key| key.sign(&manifest_bytes).write());
        Self::begin_serialized(out, &manifest_bytes, signature.as_deref())
    }

    /// Writes a manifest and a signature that are already serialised.
    pub(super) fn begin_serialized(out: W, manifest: &[u8], signature: Option<&[u8]>) -> io::Result<Self> {
        let mut tar = TarWriter::new(out);
        tar.file(MANIFEST_NAME, manifest.len() as u64, |write| write(manifest))?;
        if let Some(signature) = signature {
            tar.file(SIGNATURE_NAME, signature.len() as u64, |write| write(signature))?;
        }
        Ok(Self { tar, buffer: vec![0; COPY_BUFFER_BYTES] })
    }

    /// Writes the next of [`Manifest::files`].
    ///
    /// # Errors
    /// The size or digest is not the manifest's; also errors of `contents` and the writer.
    pub fn file(&mut self, file: &EntryFile, mut contents: impl Read) -> io::Result<()> {
        let (mut hasher, buffer) = (Hasher::new(), &mut self.buffer);
        self.tar.file(&file.name(), file.file.bytes, |write| {
            loop {
                let read = match contents.read(buffer) {
                    Ok(read) => read,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => return Err(e),
                };
                let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { return Ok(()) };
                hasher.update(chunk);
                write(chunk)?;
            }
        })?;
        let (actual, _): (Digest, _) = hasher.finish();
        if actual != file.file.sha256 {
            let expected = file.file.sha256;
            return Err(io::Error::other(format!("expected SHA-256 {expected}, got {actual}")));
        }
        Ok(())
    }

    /// Writes the next file. `write_contents` passes the bytes to its argument, and checks their digest itself.
    pub(super) fn write_file_with(
        &mut self,
        file: &EntryFile,
        write_contents: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.tar.file(&file.name(), file.file.bytes, write_contents)
    }

    /// Writes the end of the tar and returns the inner writer.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn end(self) -> io::Result<W> {
        self.tar.end()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BundledFile, FileRole};
    use super::*;
    use crate::clock::Timestamp;

    /// Reads one byte after the other; a signal interrupts every second read.
    struct Interrupted<'a> {
        contents: &'a [u8],
        is_interrupted: bool,
    }

    impl Read for Interrupted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_interrupted = !self.is_interrupted;
            if self.is_interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            (&mut self.contents).take(1).read(buffer)
        }
    }

    #[test]
    fn an_interrupted_read_is_repeated() {
        let manifest = Manifest::new(Timestamp(1), None, Vec::new());
        let file = BundledFile { sha256: Digest::of(b"contents"), bytes: 8 };
        let file = EntryFile { role: FileRole::Document, file, left_out: false };
        let mut writer = BundleWriter::begin(Vec::new(), &manifest, None).unwrap();
        writer.file(&file, Interrupted { contents: b"contents", is_interrupted: false }).unwrap();
    }
}
