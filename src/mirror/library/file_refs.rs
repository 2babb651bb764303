//! The files that our URLs name: archives, SHA256SUMS and signatures.

use bytes::Bytes;

use crate::address::{FileName, Package, ProviderAddress, Version};
use crate::digest::{Digest, DigestPrefix};
use crate::mirror::library::proof_set::ProofSet;

/// A provider archive, as one of our URLs names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArchiveRef {
    /// The package.
    pub package: Package,
    /// The first 16 hex digits of the file's own SHA-256, so that a client never mixes two proof sets.
    pub digest: DigestPrefix,
    /// The file's name.
    pub filename: FileName,
}

/// The SHA256SUMS of a version or its signature, as one of our URLs names it. The URL has no platform, because clients
/// such as Renovate count one list of hashes for each URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProofFileRef {
    /// The provider.
    pub provider: ProviderAddress,
    /// The version.
    pub version: Version,
    /// The first 16 hex digits of the file's own SHA-256.
    pub digest: DigestPrefix,
    /// Selects one of the two files.
    pub file: ProofFile,
}

/// A file of a proof set beside the download document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProofFile {
    /// SHA256SUMS.
    Sums,
    /// Its signature.
    Signature,
}

impl ProofFile {
    /// The file's name in our URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sums => "SHA256SUMS",
            Self::Signature => "SHA256SUMS.sig",
        }
    }

    /// Parses a name from one of our URLs.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Sums, Self::Signature].into_iter().find(|file| file.name() == name)
    }
}

/// The URLs of the files that one proof set names, as references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofSetRefs {
    /// The archive.
    pub archive: ArchiveRef,
    /// SHA256SUMS.
    pub sums: ProofFileRef,
    /// The signature.
    pub signature: ProofFileRef,
}

impl ProofSet {
    /// Builds the references for this set.
    pub fn refs(&self, package: &Package) -> ProofSetRefs {
        let Package { provider, version, .. } = package;
        let proof = |digest: Digest, file| ProofFileRef {
            provider: provider.clone(),
            version: version.clone(),
            digest: digest.prefix(),
            file,
        };
        let filename = self.document.filename.clone();
        ProofSetRefs {
            archive: ArchiveRef { package: package.clone(), digest: self.document.shasum.prefix(), filename },
            sums: proof(self.sums_digest(), ProofFile::Sums),
            signature: proof(self.signature_digest(), ProofFile::Signature),
        }
    }

    /// The bytes of one file of this set.
    pub fn proof_file(&self, file: ProofFile) -> ProofFileBytes {
        let (bytes, digest) = match file {
            ProofFile::Sums => (&self.sums, self.sums_digest()),
            ProofFile::Signature => (&self.signature, self.signature_digest()),
        };
        ProofFileBytes { bytes: bytes.clone(), digest }
    }
}

/// A file of a proof set to send: verified, whole in memory.
#[derive(Debug, Clone)]
pub struct ProofFileBytes {
    /// The bytes.
    pub bytes: Bytes,
    /// Their SHA-256.
    pub digest: Digest,
}
