//! Parses and checks manifests from other stores: canonical form only, and within limits.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use url::Url;

use super::super::tar;
use super::{BundleEntry, EntryFile, FORMAT, FileRole, Manifest};

/// The size limit of a manifest, in bytes.
pub const MAX_MANIFEST: u64 = 64 << 20;
const MAX_ENTRIES: usize = 100_000;
/// The size limits per kind of document, in bytes. Nothing larger is accepted from an upstream.
const MAX_DOCUMENT: u64 = 16 << 20;
const MAX_DOWNLOAD_DOCUMENT: u64 = 2 << 20;
pub(super) const MAX_SUMS: u64 = 4 << 20;
const MAX_SIGNATURE: u64 = 64 << 10;
const MAX_LOCATION: u64 = 64 << 10;
/// The longest text other than an address, in bytes.
const MAX_TEXT: usize = 4096;

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// A newer larder wrote it.
    #[error("it has format {0}, but this larder reads {FORMAT}; apply it with the larder that made it, or a newer one")]
    Newer(u64),
    /// It is malformed.
    #[error("its manifest cannot be read: {0}")]
    Unreadable(String),
    /// It is not in the canonical form, or its digest is wrong.
    #[error("its manifest was altered after larder wrote it")]
    Altered,
    /// Its contents are contradictory or exceed a limit.
    #[error("its manifest is refused: {0}")]
    Refused(String),
}

impl Manifest {
    /// Parses the bytes that [`Manifest::write`] makes. Any other spelling is an error.
    ///
    /// # Errors
    /// [`BadManifest`].
    pub fn read(bytes: &[u8]) -> Result<Self, BadManifest> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        let unreadable = |e: serde_json::Error| BadManifest::Unreadable(e.to_string());
        let Format { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format > u64::from(FORMAT) {
            return Err(BadManifest::Newer(format));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        if manifest.digest != manifest.own_digest() || manifest.write() != bytes {
            return Err(BadManifest::Altered);
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that [`Manifest::read`] would accept the manifest.
    ///
    /// # Errors
    /// [`BadManifest::Refused`].
    pub(in super::super) fn check(&self) -> Result<(), BadManifest> {
        let refused = |reason: String| Err(BadManifest::Refused(reason));
        if self.entries.len() > MAX_ENTRIES {
            return refused(format!("it lists {} items, the limit is {MAX_ENTRIES}", self.entries.len()));
        }
        if self.larder.len() > MAX_TEXT {
            return refused("its larder version is too long".to_owned());
        }
        let (mut sizes, mut named) = (HashMap::new(), HashSet::new());
        let mut bytes: u64 = 0;
        for entry in &self.entries {
            let called = entry.package_ref().to_string();
            if !named.insert(called.clone()) {
                return refused(format!("{called} is listed twice"));
            }
            entry.check().map_err(|reason| BadManifest::Refused(format!("{called}: {reason}")))?;
            for EntryFile { role, file, .. } in entry.files() {
                if *sizes.entry(file.sha256).or_insert(file.bytes) != file.bytes {
                    return refused(format!("{called}: its {role} has two sizes"));
                }
                bytes = match bytes.checked_add(tar::bytes_of(file.bytes)) {
                    Some(bytes) => bytes,
                    None => return refused("it is larger than any disk".to_owned()),
                };
            }
        }
        Ok(())
    }
}

impl BundleEntry {
    fn check(&self) -> Result<(), String> {
        let is_provider = matches!(self, Self::Provider(_));
        for EntryFile { role, file, .. } in self.files() {
            let largest = match role {
                FileRole::Document if is_provider => MAX_DOWNLOAD_DOCUMENT,
                FileRole::Document | FileRole::Dropped => MAX_DOCUMENT,
                FileRole::Sums => MAX_SUMS,
                FileRole::Signature => MAX_SIGNATURE,
                FileRole::Location => MAX_LOCATION,
                // The importing store has a limit for archives.
                FileRole::Archive => u64::MAX,
            };
            if file.bytes > largest {
                return Err(format!("its {role} has {} bytes, the limit is {largest}", file.bytes));
            }
        }
        let (texts, fetch_origin) = match self {
            Self::Provider(entry) => (vec![entry.signed_by.as_deref()], &entry.said),
            Self::Module(entry) => {
                (vec![entry.commit.as_deref(), entry.subdir.as_deref(), Some(&entry.origin)], &entry.said)
            }
            Self::Discovery { document, .. }
            | Self::ProviderVersions { document, .. }
            | Self::ModuleVersions { document, .. } => (vec![], &document.said),
        };
        let texts = texts.into_iter().flatten().chain([fetch_origin.asked.as_str(), fetch_origin.url.as_str()]);
        for text in texts {
            if text.len() > MAX_TEXT || text.contains(char::is_control) {
                return Err("a text in it is too long, or has invalid characters".to_owned());
            }
        }
        let is_plain = |url: &Url| matches!(url.scheme(), "http" | "https") && url.query().is_none();
        if !is_plain(&fetch_origin.asked) || !is_plain(&fetch_origin.url) {
            return Err("its source must be an http(s) URL without a query".to_owned());
        }
        Ok(())
    }
}
