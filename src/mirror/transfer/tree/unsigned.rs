//! Proof sets for providers imported without signatures: larder creates them, and replaces them once upstream offers a
//! verified set. An unsigned set never replaces a verified one.

use crate::mirror::Transfers;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use crate::address::{Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::filesystem_mirror::MirrorPath;
use crate::mirror::RequestContext;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::stored_document::{DocumentMetadata as ListAbout, StoredDocument};
use crate::mirror::transfer::tree::sidecar_files::{conventional_url, set_of};
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::discovery::Service;
use crate::upstream::limits::MemoryGrant;
use crate::upstream::providers::versions_url;
use crate::upstream::request::Validators;
use crate::verify::{Proof, ProofBasis};

/// The body of the signature file. OpenTofu requests it even if the document lists no keys.
const NO_SIGNATURE: &[u8] = b"There is no signature: the operator of this mirror imported it.\n";

/// Creates the proof set of an unsigned archive: a document without keys, and these SHA256SUMS.
pub(in crate::mirror) fn unsigned_set(
    package: &Package,
    digest: Digest,
    sums: Bytes,
    upstream: &Upstream,
    now: Timestamp,
) -> Result<ProofSet, String> {
    let filename = MirrorPath::archive(package).file_name();
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
    set_of(package, url, proof, now, [body.to_string().into(), sums, Bytes::from_static(NO_SIGNATURE)])
}

/// Writes a SHA256SUMS for these archives.
pub(in crate::mirror) fn sums_of<'a>(archives: impl IntoIterator<Item = (&'a Package, Digest)>) -> Bytes {
    let mut lines: Vec<String> = archives
        .into_iter()
        .map(|(package, digest)| format!("{digest}  {}\n", MirrorPath::archive(package).file_name()))
        .collect();
    lines.sort_by(|one, other| one[64..].cmp(&other[64..]));
    lines.concat().into()
}

impl Transfers {
    /// Gives every unsigned set of a version the sums of all its platforms.
    pub(in crate::mirror) async fn complete_sums(
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
                let set = unsigned_set(package, digest, sums.clone(), &upstream, call.now);
                let set = set.map_err(|reason| Error::Interrupted(format!("the proof set of {package}: {reason}")))?;
                self.proof_sets.keep_unsigned(package, set, call).await?;
            }
            let key = Key::ProofSet(package.clone());
            self.library.on_disk(move |library| library.store.records.sync(&key)).await?;
        }
        Ok(())
    }

    /// Adds the stored versions that upstream does not list to the cached version list, and creates the list if there
    /// is none.
    pub(in crate::mirror) async fn list_imported(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let upstream = Arc::clone(call.upstream(&provider.host)?);
        let key = Key::ProviderVersions(provider.clone());
        let unreadable = |reason| Error::Interrupted(format!("the cached version list of {provider}: {reason}"));
        let before = match self.library.stored_document(&key).await? {
            Some(stored_list) => stored_list.value,
            None => {
                let base = upstream.settings.url.join("v1/providers/");
                let url = base.and_then(|base| versions_url(&base, provider));
                let url = url.unwrap_or_else(|_| upstream.settings.url.clone());
                let metadata = ListAbout {
                    url: url.clone(),
                    asked: url,
                    origins: Vec::new(),
                    validators: Validators::default(),
                    fetched: call.now,
                    checked: Timestamp(0),
                    gone: true,
                    carried: false,
                };
                let body = Bytes::from_static(br#"{"versions":[]}"#);
                Arc::new(StoredDocument { metadata, body, dropped: Bytes::new(), _room: MemoryGrant::default() })
            }
        };
        let of_upstream = Arc::new(StoredDocument { dropped: Bytes::new(), ..(*before).clone() });
        let list = of_upstream.versions(Service::Providers).await.map_err(unreadable)?;
        let dropped =
            self.documents.dropped_but_stored(&upstream, &provider.into(), &list, Some(&before), call.now).await?;
        self.library.store_document(key.clone(), StoredDocument { dropped, ..(*before).clone() }).await?;
        self.library.on_disk(move |library| library.store.records.sync(&key)).await?;
        self.library.bump_revision(provider);
        Ok(())
    }
}
