//! Reads a bundle as a stream: the manifest first, then each file in the manifest's order. Every byte is checked
//! against the manifest. The manifest's signature is verified by [`super::BundleTrust`].

use std::io::{self, Read};
use std::sync::Arc;

use super::manifest::MAX_MANIFEST;
use super::tar::{BadTar, TarReader};
use super::{BadManifest, BundleTrust, EntryFile, Manifest, Signature, SignatureStatus};
use crate::digest::{Digest, Hasher};

pub(super) const MANIFEST_NAME: &str = "larder-bundle.json";
pub(super) const SIGNATURE_NAME: &str = "larder-bundle.sig";
const MAX_SIGNATURE_BYTES: u64 = 4 << 10;
const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Why reading a bundle stopped.
#[derive(Debug, thiserror::Error)]
pub enum BadBundle {
    /// The stream is truncated.
    #[error("the bundle ends too early: truncated, or not completely written")]
    Truncated,
    /// The stream cannot be read.
    #[error("the bundle cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// The stream is not a bundle.
    #[error("not a larder bundle: it does not begin with {MANIFEST_NAME}")]
    NotABundle,
    /// A part of the bundle is not in the canonical form.
    #[error("the bundle was altered: {0}")]
    Altered(String),
    /// The manifest is refused.
    #[error(transparent)]
    Manifest(#[from] BadManifest),
    /// The signature is missing, wrong or by a key that is not trusted.
    #[error("the bundle is refused: {0}")]
    Untrusted(String),
}

impl From<BadTar> for BadBundle {
    fn from(bad: BadTar) -> Self {
        match bad {
            BadTar::Truncated => Self::Truncated,
            BadTar::Unreadable(e) => Self::Unreadable(e),
            BadTar::NotCanonical(reason) => Self::Altered(reason),
        }
    }
}

/// The result of checking a file against the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestCheck {
    /// The digest matches.
    Matches,
    /// The digest differs.
    Differs {
        /// The digest of the bytes that were read.
        actual: Digest,
    },
}

/// An opened bundle: the manifest is read and accepted, the files are still to be read.
#[derive(Debug)]
pub struct BundleReader<R> {
    tar: TarReader<R>,
    buffer: Vec<u8>,
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The SHA-256 of the manifest's bytes.
    pub digest: Digest,
    /// The outcome of the signature check.
    pub signature_status: SignatureStatus,
    signature: Option<Signature>,
}

impl<R: Read> BundleReader<R> {
    /// Reads and verifies the manifest and the signature.
    ///
    /// # Errors
    /// [`BadBundle`].
    pub fn open(input: R, trust: &BundleTrust) -> Result<Self, BadBundle> {
        let (mut tar, mut buffer) = (TarReader::new(input), vec![0; READ_BUFFER_BYTES]);
        if !tar.first_file_is(MANIFEST_NAME)? {
            return Err(BadBundle::NotABundle);
        }
        let manifest =
            read_file_if_next(&mut tar, &mut buffer, MANIFEST_NAME, MAX_MANIFEST)?.ok_or(BadBundle::NotABundle)?;
        let signature = match read_file_if_next(&mut tar, &mut buffer, SIGNATURE_NAME, MAX_SIGNATURE_BYTES)? {
            None => None,
            Some(bytes) => {
                let malformed = || BadBundle::Altered(format!("{SIGNATURE_NAME} is malformed"));
                Some(Signature::read(&bytes).ok_or_else(malformed)?)
            }
        };
        let signature_status = trust.verify_manifest(&manifest, signature.as_ref()).map_err(BadBundle::Untrusted)?;
        let digest = Digest::of(&manifest);
        let manifest = Arc::new(Manifest::read(&manifest)?);
        Ok(Self { tar, buffer, manifest, digest, signature_status, signature })
    }

    /// The bytes of the manifest and of the signature, as they are in the bundle.
    pub(super) fn manifest_and_signature(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.manifest.write(), self.signature.as_ref().map(Signature::write))
    }

    /// The size of the whole bundle in bytes, by its manifest.
    pub fn bundle_bytes(&self) -> u64 {
        let (manifest, signature) = self.manifest_and_signature();
        self.manifest.bundle_bytes(manifest.len(), signature.map(|signature| signature.len()))
    }

    /// Reads the next of [`Manifest::files`] and passes its bytes to `on_chunk`. The bytes are verified only once this
    /// returns [`DigestCheck::Matches`].
    ///
    /// # Errors
    /// [`BadBundle`], after which nothing more can be read; also errors of `on_chunk`.
    pub fn file<E: From<BadBundle>>(
        &mut self,
        file: &EntryFile,
        mut on_chunk: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<DigestCheck, E> {
        let name = file.name();
        self.tar.expect_header(&name, file.file.bytes).map_err(BadBundle::from)?;
        let mut hasher = Hasher::new();
        let hash_and_pass_on = |chunk: &[u8]| {
            hasher.update(chunk);
            on_chunk(chunk).map_err(FileReadError::Callback)
        };
        let result = self.tar.content(&name, file.file.bytes, &mut self.buffer, hash_and_pass_on);
        result.map_err(|error| match error {
            FileReadError::Callback(e) => e,
            FileReadError::Tar(bad) => BadBundle::from(bad).into(),
        })?;
        let (actual, _) = hasher.finish();
        Ok(if actual == file.file.sha256 { DigestCheck::Matches } else { DigestCheck::Differs { actual } })
    }

    /// Reads the end of the tar. Nothing may follow the last file.
    ///
    /// # Errors
    /// [`BadBundle`].
    pub fn end(&mut self) -> Result<(), BadBundle> {
        Ok(self.tar.end()?)
    }
}

/// An error of [`BundleReader::file`]: of its callback, or of the tar.
enum FileReadError<E> {
    Callback(E),
    Tar(BadTar),
}

impl<E> From<BadTar> for FileReadError<E> {
    fn from(bad: BadTar) -> Self {
        Self::Tar(bad)
    }
}

/// Reads the next file into memory if it has this name; otherwise returns `None` and reads nothing.
fn read_file_if_next<R: Read>(
    tar: &mut TarReader<R>,
    buffer: &mut [u8],
    name: &str,
    max_bytes: u64,
) -> Result<Option<Vec<u8>>, BadTar> {
    let Some(size) = tar.next_size_if(name, max_bytes)? else { return Ok(None) };
    let mut bytes = Vec::new();
    tar.content(name, size, buffer, |chunk| {
        bytes.extend_from_slice(chunk);
        Ok::<_, BadTar>(())
    })?;
    Ok(Some(bytes))
}
