//! Proof sets that no upstream sent. Those of a tree consist of the small files beside its archives. For a provider that
//! is imported without signatures larder writes a set itself: an unsigned one, which never replaces a verified set, and
//! which the first verified set from upstream replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use url::Url;

use crate::address::{Address, Artifact, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::filesystem_mirror::index::{self, VersionIndex};
use crate::filesystem_mirror::{MirrorFileKind, MirrorPath, SumsScope};
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::stored_document::{DocumentMetadata, StoredDocument};
use crate::mirror::proof_sets::describe_set;
use crate::mirror::transfer::set_of_files;
use crate::mirror::{RequestContext, Transfers, Urgency};
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::error::sanitized;
use crate::upstream::limits::MemoryGrant;
use crate::upstream::providers::{DownloadDocument, download_url, versions_url};
use crate::verify::{Checksums, Proof, ProofBasis, VerificationPolicy, checksums, verify_proof_set};

/// The body of the signature file. OpenTofu requests it even if the document lists no keys.
const NO_SIGNATURE: &[u8] = b"There is no signature: the operator of this mirror imported this provider without one.\n";

const MAX_DOCUMENT_BYTES: usize = 2 << 20;
const MAX_SIDECAR_SIGNATURE_BYTES: usize = 64 << 10;
/// Maximum total size of the small files of one provider, in bytes.
const MAX_SIDECAR_BYTES_PER_PROVIDER: usize = 64 << 20;

/// The small files of one provider in a tree: indexes, sums, signatures, download documents. In memory only while that
/// provider is read.
#[derive(Debug, Default)]
pub(super) struct SidecarFiles {
    pub(super) provider: Option<ProviderAddress>,
    files: BTreeMap<MirrorFileKind, Bytes>,
    bytes: usize,
}

/// The evidence of a tree for an archive.
pub(super) enum SidecarProof {
    /// No signed proof set.
    None,
    /// A proof set that does not verify.
    Bad(String),
    /// A proof set whose signature verifies. Its key is from the tree too, so the caller must check the key.
    Signed(Box<ProofSet>),
}

impl SidecarFiles {
    pub(super) fn of(provider: &ProviderAddress) -> Self {
        Self { provider: Some(provider.clone()), ..Self::default() }
    }

    /// True if all files that can prove a package were read: its document, and sums with a signature.
    pub(super) fn can_prove(&self, package: &Package) -> bool {
        let Package { version, platform, .. } = package;
        let has = |member: MirrorFileKind| self.files.contains_key(&member);
        let is_signed =
            |scope: SumsScope| has(MirrorFileKind::Sums(scope.clone())) && has(MirrorFileKind::Signature(scope));
        has(MirrorFileKind::Document(version.clone(), platform.clone()))
            && sums_scopes(version, platform).into_iter().any(is_signed)
    }

    /// The most bytes of a file of this kind; `None` if it is not needed.
    pub(super) fn max_sidecar_bytes(kind: &MirrorFileKind) -> Option<usize> {
        match kind {
            // `index.json` adds nothing to the archives themselves.
            MirrorFileKind::Index | MirrorFileKind::Archive(..) => None,
            MirrorFileKind::VersionIndex(_) => Some(index::MAX_INDEX_BYTES),
            MirrorFileKind::Sums(_) => Some(checksums::MAX_BYTES),
            MirrorFileKind::Signature(_) => Some(MAX_SIDECAR_SIGNATURE_BYTES),
            MirrorFileKind::Document(..) => Some(MAX_DOCUMENT_BYTES),
        }
    }

    /// Adds a file of this provider.
    ///
    /// # Errors
    /// The reason that the file is refused.
    pub(super) fn insert(&mut self, kind: MirrorFileKind, bytes: Vec<u8>) -> Result<(), String> {
        if self.bytes + bytes.len() > MAX_SIDECAR_BYTES_PER_PROVIDER {
            return Err(format!(
                "the small files in its folder have more than {} MiB",
                MAX_SIDECAR_BYTES_PER_PROVIDER >> 20
            ));
        }
        self.bytes += bytes.len();
        self.files.insert(kind, bytes.into());
        Ok(())
    }

    /// The parsed `VERSION.json`.
    pub(super) fn version_index(&self, version: &Version) -> Option<Result<VersionIndex, String>> {
        self.files.get(&MirrorFileKind::VersionIndex(version.clone())).map(|bytes| VersionIndex::parse(bytes))
    }

    /// The SHA-256 of an archive according to the SHA256SUMS in the tree. Unsigned sums cannot prove it, but they can contradict it.
    pub(super) fn listed_digest(&self, package: &Package, name: &str) -> Option<Digest> {
        sums_scopes(&package.version, &package.platform)
            .into_iter()
            .filter_map(|scope| Checksums::parse(self.files.get(&MirrorFileKind::Sums(scope))?).ok())
            .find_map(|sums| sums.get(name))
    }

    /// The proof set of a package in the tree, if a key signed it. A signature is required whatever `verification`
    /// says: unsigned sums that come with their files prove nothing. The key is from the tree too, so the caller must
    /// check it.
    pub(super) fn find_proof(&self, package: &Package, upstream: &Upstream, now: Timestamp) -> SidecarProof {
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
        for scope in sums_scopes(version, platform) {
            let Some(sums) = self.files.get(&MirrorFileKind::Sums(scope.clone())) else { continue };
            let signature = self.files.get(&MirrorFileKind::Signature(scope)).cloned().unwrap_or_default();
            let (filename, shasum) = (document.name_in_sums.as_str(), &document.shasum);
            let verified =
                verify_proof_set(VerificationPolicy::Signature, sums, &signature, &document.keys, filename, shasum);
            let verified = verified.map_err(|verdict| sanitized(&verdict.to_string()));
            let set = verified.and_then(|(proof, _)| {
                set_of_files(package, [url.clone(), url.clone()], now, proof, [body.clone(), sums.clone(), signature])
            });
            match set {
                Ok(set) => return SidecarProof::Signed(Box::new(set)),
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

/// The URL where upstream would have the document, by convention. The relative URLs in the document are resolved
/// against it if the archive must be fetched later.
pub(super) fn conventional_url(package: &Package, upstream: &Upstream) -> Url {
    let base = upstream.settings.url.join("v1/providers/").unwrap_or_else(|_| upstream.settings.url.clone());
    let url = download_url(&base, &package.provider, package.version.as_str(), &package.platform);
    url.unwrap_or(base)
}

/// Creates the proof set of an unsigned archive: a document without keys, and these SHA256SUMS.
pub(super) fn unsigned_set(
    package: &Package,
    digest: Digest,
    sums: Bytes,
    upstream: &Upstream,
    now: Timestamp,
) -> Result<ProofSet, Error> {
    let filename = MirrorPath::archive(package).name_of_file();
    let Platform { os, arch } = &package.platform;
    let body = json!({
        "os": os,
        "arch": arch,
        "filename": filename,
        "download_url": filename,
        "shasums_url": "SHA256SUMS",
        "shasums_signature_url": "SHA256SUMS.sig",
        "shasum": digest,
        "signing_keys": { "gpg_public_keys": [] },
    });
    let proof = Proof { how: ProofBasis::Imported, warnings: Vec::new() };
    let url = conventional_url(package, upstream);
    let files = [body.to_string().into(), sums, Bytes::from_static(NO_SIGNATURE)];
    let set = set_of_files(package, [url.clone(), url], now, proof, files);
    set.map_err(|reason| Error::Unreadable { subject: describe_set(package), reason })
}

/// Writes a SHA256SUMS for these archives.
pub(super) fn sums_of<'a>(archives: impl IntoIterator<Item = (&'a Package, Digest)>) -> Bytes {
    let mut lines: Vec<String> = archives
        .into_iter()
        .map(|(package, digest)| format!("{digest}  {}\n", MirrorPath::archive(package).name_of_file()))
        .collect();
    lines.sort_by(|one, other| one[64..].cmp(&other[64..]));
    lines.concat().into()
}

/// The versions with archives that were imported without signatures.
pub(super) type ImportedVersions = BTreeMap<ProviderAddress, BTreeSet<Version>>;

impl Transfers {
    /// Completes what a killed import left behind: it may have stored archives, and ended before the documents that they
    /// share with others named them.
    ///
    /// # Errors
    /// The index cannot be read. The failure of one provider is logged.
    pub async fn complete_imports(self: &Arc<Self>, now: Timestamp) -> Result<(), Error> {
        let imported = self.library.on_complete_index(|library| {
            library.names(|artifact, name| match artifact {
                Artifact::Provider(package) if name.imported => Some((package.provider, package.version)),
                _ => None,
            })
        });
        let mut versions = ImportedVersions::new();
        for (provider, version) in imported.await? {
            versions.entry(provider).or_default().insert(version);
        }
        let call = self.runtime.step_context(Urgency::Job, now);
        for (provider, versions) in &versions {
            if call.upstream(&provider.host).is_err() {
                continue;
            }
            if let Err(error) = self.complete_documents(provider, versions, &call).await {
                tracing::warn!(%provider, %error, "the documents of an imported provider could not be completed");
            }
        }
        Ok(())
    }

    /// Completes the documents that imported archives of a provider share: the SHA256SUMS of each version, and the version
    /// list.
    pub(super) async fn complete_documents(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        versions: &BTreeSet<Version>,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let _lock = self.completion_lock.lock().await;
        for version in versions {
            self.complete_sums(provider, version, call).await?;
        }
        self.add_to_version_list(provider, call).await
    }

    /// Rewrites the SHA256SUMS of every unsigned set of a version, so that each lists the archives of all platforms
    /// without a signature.
    async fn complete_sums(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let upstream = Arc::clone(call.upstream(&provider.host)?);
        let mut unsigned = Vec::new();
        for platform in self.library.platforms_with_sets(provider, version).await? {
            let package = Package { provider: provider.clone(), version: version.clone(), platform };
            let Some(stored) = self.proof_sets.usable_set(&package, call).await? else { continue };
            if stored.stored_set.current.proof().how == ProofBasis::Imported {
                unsigned.push((package, stored.stored_set));
            }
        }
        let sums = sums_of(unsigned.iter().map(|(package, stored_set)| (package, stored_set.current.document.shasum)));
        for (package, stored_set) in &unsigned {
            if stored_set.current.sums != sums {
                let digest = stored_set.current.document.shasum;
                let set = unsigned_set(package, digest, sums.clone(), &upstream, call.now)?;
                self.proof_sets.keep_unsigned(package, set, call).await?;
            }
            let key = Key::ProofSet(package.clone());
            self.library.on_disk(move |library| library.sync_record(&key)).await?;
        }
        Ok(())
    }

    /// Adds the stored versions that upstream does not list to the cached version list, and creates the list if there
    /// is none.
    async fn add_to_version_list(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let upstream = call.upstream(&provider.host)?;
        let base = upstream.settings.url.join("v1/providers/");
        let url = base.and_then(|base| versions_url(&base, provider));
        let url = url.unwrap_or_else(|_| upstream.settings.url.clone());
        let metadata = DocumentMetadata {
            // Upstream never sent this list. It counts as absent there until a request to upstream.
            checked: Timestamp(0),
            gone: true,
            // No request was sent. Upstream would have the list here, by convention.
            ..DocumentMetadata::new(url.clone(), url, call.now)
        };
        let body = Bytes::from_static(br#"{"versions":[]}"#);
        let absent = StoredDocument { metadata, body, dropped: Bytes::new(), _room: MemoryGrant::default() };
        let (address, now) = (Address::from(provider), call.now);
        self.library
            .on_disk(move |library| {
                library.list_stored_versions(&address, Some(&absent), now)?;
                library.sync_record(&Key::version_list(&address)).map(drop)
            })
            .await
    }
}
