//! The small files beside the archives of a provider in a tree: indexes, sums, signatures, download documents. In
//! memory only while that provider is read.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bytes::Bytes;
use url::Url;

use crate::address::{Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::filesystem_mirror::index::{self, VersionIndex};
use crate::filesystem_mirror::provider_tar::TarFileContents;
use crate::filesystem_mirror::{MirrorFileKind, MirrorPath, SumsScope};
use crate::mirror::library::proof_set::{ProofSet, ProofSetMetadata};
use crate::upstream::Upstream;
use crate::upstream::error::sanitized;
use crate::upstream::providers::{DownloadDocument, download_url};
use crate::upstream::request::Validators;
use crate::verify::{Checksums, Proof, VerificationPolicy, checksums, verify_proof_set};

const MAX_DOCUMENT_BYTES: usize = 2 << 20;
const MAX_SIDECAR_SIGNATURE_BYTES: usize = 64 << 10;
/// Maximum size of the small files of one provider, in bytes.
const MAX_SIDECAR_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub(in crate::mirror) struct SidecarFiles {
    provider: Option<ProviderAddress>,
    files: BTreeMap<MirrorFileKind, Bytes>,
    bytes: usize,
}

/// The evidence of a tree for an archive.
pub(in crate::mirror) enum SidecarProof {
    /// No signed proof set.
    None,
    /// A proof set that does not verify.
    Bad(String),
    Proven(Box<ProofSet>),
}

impl SidecarFiles {
    pub(in crate::mirror) fn provider(&self) -> Option<&ProviderAddress> {
        self.provider.as_ref()
    }

    /// Starts with another provider and drops all files.
    pub(in crate::mirror) fn switch_to(&mut self, provider: &ProviderAddress) {
        *self = Self { provider: Some(provider.clone()), ..Self::default() };
    }

    /// True if all files that can prove a package were read: its document, and sums with a signature.
    pub(in crate::mirror) fn can_prove(&self, package: &Package) -> bool {
        let Package { version, platform, .. } = package;
        let has = |member: MirrorFileKind| self.files.contains_key(&member);
        let is_signed =
            |covers: SumsScope| has(MirrorFileKind::Sums(covers.clone())) && has(MirrorFileKind::Signature(covers));
        has(MirrorFileKind::Document(version.clone(), platform.clone()))
            && sums_scopes(version, platform).into_iter().any(is_signed)
    }

    /// Reads a file of this provider that is not an archive.
    ///
    /// # Errors
    /// The tar broke off. The inner error is the reason that the file is refused.
    pub(in crate::mirror) fn take<R: Read>(
        &mut self,
        path: MirrorPath,
        contents: &mut TarFileContents<'_, R>,
    ) -> io::Result<Result<(), String>> {
        let most = match &path.kind {
            // Skipped: `index.json` adds nothing to the archives themselves.
            MirrorFileKind::Index | MirrorFileKind::Archive(..) => return Ok(Ok(())),
            MirrorFileKind::VersionIndex(_) => index::MAX_INDEX_BYTES,
            MirrorFileKind::Sums(_) => checksums::MAX_BYTES,
            MirrorFileKind::Signature(_) => MAX_SIDECAR_SIGNATURE_BYTES,
            MirrorFileKind::Document(..) => MAX_DOCUMENT_BYTES,
        };
        let Some(bytes) = contents.read_at_most(most)? else {
            return Ok(Err(format!("it has {} bytes; at most {most} are read", contents.size_bytes())));
        };
        if self.bytes + bytes.len() > MAX_SIDECAR_BYTES {
            return Ok(Err(format!("the small files in its folder have more than {} MiB", MAX_SIDECAR_BYTES >> 20)));
        }
        self.bytes += bytes.len();
        self.files.insert(path.kind, bytes.into());
        Ok(Ok(()))
    }

    /// The parsed `VERSION.json`.
    pub(in crate::mirror) fn version_index(&self, version: &Version) -> Option<Result<VersionIndex, String>> {
        self.files.get(&MirrorFileKind::VersionIndex(version.clone())).map(|bytes| VersionIndex::parse(bytes))
    }

    /// The SHA-256 that sums in the tree give an archive. Unsigned sums cannot prove it, but they can contradict it.
    pub(in crate::mirror) fn listed(&self, package: &Package, name: &str) -> Option<crate::digest::Digest> {
        sums_scopes(&package.version, &package.platform)
            .into_iter()
            .filter_map(|covers| Checksums::parse(self.files.get(&MirrorFileKind::Sums(covers))?).ok())
            .find_map(|sums| sums.get(name))
    }

    /// The proof set of a package in the tree, if a key signed it. A signature is required whatever `verification`
    /// says: unsigned sums that come with their files prove nothing. The key is from the tree too, so the caller must
    /// check it.
    pub(in crate::mirror) fn find_proof(&self, package: &Package, upstream: &Upstream, now: Timestamp) -> SidecarProof {
        let Package { version, platform, .. } = package;
        let Some(body) = self.files.get(&MirrorFileKind::Document(version.clone(), platform.clone())) else {
            return SidecarProof::None;
        };
        let url = conventional_url(package, upstream);
        let document = match DownloadDocument::parse(body, &url, platform) {
            Ok(document) if document.keys.is_empty() => return SidecarProof::None,
            Ok(document) => document,
            Err(reason) => return SidecarProof::Bad(sanitized(&reason)),
        };
        let mut bad = None;
        for covers in sums_scopes(version, platform) {
            let Some(sums) = self.files.get(&MirrorFileKind::Sums(covers.clone())) else { continue };
            let signature = self.files.get(&MirrorFileKind::Signature(covers)).cloned().unwrap_or_default();
            let (filename, shasum) = (document.filename.as_str(), &document.shasum);
            let verified =
                verify_proof_set(VerificationPolicy::Signature, sums, &signature, &document.keys, filename, shasum);
            let verified = verified.map_err(|verdict| sanitized(&verdict.to_string()));
            let set = verified.and_then(|(proof, _)| {
                set_of(package, url.clone(), proof, now, [body.clone(), sums.clone(), signature])
            });
            match set {
                Ok(set) => return SidecarProof::Proven(Box::new(set)),
                Err(reason) => bad = Some(reason),
            }
        }
        bad.map_or(SidecarProof::None, SidecarProof::Bad)
    }
}

/// The package's own sums come first.
fn sums_scopes(version: &Version, platform: &Platform) -> [SumsScope; 2] {
    [SumsScope::Package(version.clone(), platform.clone()), SumsScope::Version(version.clone())]
}

/// Builds a proof set from files that no upstream sent.
pub(in crate::mirror) fn set_of(
    package: &Package,
    url: Url,
    proof: Proof,
    now: Timestamp,
    [body, sums, signature]: [Bytes; 3],
) -> Result<ProofSet, String> {
    let metadata = ProofSetMetadata {
        asked: url.clone(),
        url,
        origins: Vec::new(),
        validators: Validators::default(),
        sums_validators: Validators::default(),
        signature_validators: Validators::default(),
        fetched: now,
        proof,
    };
    ProofSet::new(metadata, body, sums, signature, package).map_err(|reason| sanitized(&reason))
}

/// The URL where upstream would have the document, by convention. The relative URLs in the document are resolved
/// against it if the archive must be fetched later.
pub(in crate::mirror) fn conventional_url(package: &Package, upstream: &Upstream) -> Url {
    let base = upstream.settings.url.join("v1/providers/").unwrap_or_else(|_| upstream.settings.url.clone());
    let url = download_url(&base, &package.provider, package.version.as_str(), &package.platform);
    url.unwrap_or(base)
}
