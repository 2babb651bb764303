//! Reads a bundle as a stream: the manifest first, then each file in the manifest's order. Every byte is checked
//! against the manifest. The manifest's signature is verified by [`super::BundleTrust`].

use std::io::{self, Read};
use std::sync::Arc;

use super::manifest::MAX_MANIFEST;
use super::tar::{BadTar, TarReader};
use super::{BadManifest, BundleTrust, EntryFile, Manifest, Signature, SignatureStatus};
use crate::digest::{Digest, Hasher};

pub(super) const MANIFEST: &str = "larder-bundle.json";
pub(super) const SIGNATURE: &str = "larder-bundle.sig";
const MAX_SIGNATURE: u64 = 4 << 10;
const READ_AT_ONCE: usize = 256 * 1024;

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
    #[error("not a larder bundle: it does not begin with {MANIFEST}")]
    NoBundle,
    /// A part of it is not in the canonical form.
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
            BadTar::Differs(reason) => Self::Altered(reason),
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
        now: Digest,
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
    pub fn open(from: R, trust: &BundleTrust) -> Result<Self, BadBundle> {
        let (mut tar, mut buffer) = (TarReader::new(from), vec![0; READ_AT_ONCE]);
        if !tar.first_is(MANIFEST)? {
            return Err(BadBundle::NoBundle);
        }
        let manifest = whole(&mut tar, &mut buffer, MANIFEST, MAX_MANIFEST)?.ok_or(BadBundle::NoBundle)?;
        let signature = match whole(&mut tar, &mut buffer, SIGNATURE, MAX_SIGNATURE)? {
            None => None,
            Some(bytes) => {
                let reason = || BadBundle::Altered(format!("{SIGNATURE} is malformed"));
                Some(Signature::read(&bytes).ok_or_else(reason)?)
            }
        };
        let signature_status = trust.verify_manifest(&manifest, signature.as_ref()).map_err(BadBundle::Untrusted)?;
        let digest = Digest::of(&manifest);
        let manifest = Arc::new(Manifest::read(&manifest)?);
        Ok(Self { tar, buffer, manifest, digest, signature_status, signature })
    }

    /// The bytes of the manifest and of the signature.
    pub(super) fn head(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.manifest.write(), self.signature.as_ref().map(Signature::write))
    }

    /// The size of the whole bundle in bytes, by its manifest.
    pub fn bundle_bytes(&self) -> u64 {
        let (manifest, signature) = self.head();
        self.manifest.bundle_bytes(manifest.len(), signature.map(|signature| signature.len()))
    }

    /// Reads the next of [`Manifest::files`] and passes its bytes to `take`. They are verified only once this returns
    /// [`DigestCheck::Matches`].
    ///
    /// # Errors
    /// [`BadBundle`], after which nothing more can be read, and those of `take`.
    pub fn file<E: From<BadBundle>>(
        &mut self,
        file: &EntryFile,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<DigestCheck, E> {
        let name = file.name();
        self.tar.expect_header(&name, file.file.bytes).map_err(BadBundle::from)?;
        let mut hasher = Hasher::new();
        let piece = |piece: &[u8]| {
            hasher.update(piece);
            take(piece).map_err(FileReadError::Take)
        };
        let read = self.tar.content(&name, file.file.bytes, &mut self.buffer, piece);
        read.map_err(|ended| match ended {
            FileReadError::Take(e) => e,
            FileReadError::Tar(bad) => BadBundle::from(bad).into(),
        })?;
        let (now, _) = hasher.finish();
        Ok(if now == file.file.sha256 { DigestCheck::Matches } else { DigestCheck::Differs { now } })
    }

    /// Reads the end of the tar. Nothing may follow the last file.
    ///
    /// # Errors
    /// [`BadBundle`].
    pub fn end(&mut self) -> Result<(), BadBundle> {
        Ok(self.tar.end()?)
    }
}

enum FileReadError<E> {
    Take(E),
    Tar(BadTar),
}

impl<E> From<BadTar> for FileReadError<E> {
    fn from(bad: BadTar) -> Self {
        Self::Tar(bad)
    }
}

fn whole<R: Read>(
    tar: &mut TarReader<R>,
    buffer: &mut [u8],
    name: &str,
    largest: u64,
) -> Result<Option<Vec<u8>>, BadTar> {
    let Some(size) = tar.next_size_if(name, largest)? else { return Ok(None) };
    let mut bytes = Vec::new();
    tar.content(name, size, buffer, |piece| {
        bytes.extend_from_slice(piece);
        Ok::<_, BadTar>(())
    })?;
    Ok(Some(bytes))
}
