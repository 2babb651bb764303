//! Parses and checks manifests from other stores: canonical form only, and within limits.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use url::Url;

use super::super::tar;
use super::{BundleEntry, EntryFile, FORMAT, FileRole, Manifest};

/// The size limit of a manifest, in bytes.
pub const MAX_MANIFEST: u64 = 64 << 20;
const MAX_ENTRIES: usize = 100_000;
// The size limits per kind of document, in bytes: the same that apply to documents from an upstream.
const MAX_DOCUMENT_BYTES: u64 = 16 << 20;
const MAX_DOWNLOAD_DOCUMENT_BYTES: u64 = 2 << 20;
pub(super) const MAX_SUMS_BYTES: u64 = 4 << 20;
const MAX_SIGNATURE_BYTES: u64 = 64 << 10;
const MAX_LOCATION_BYTES: u64 = 64 << 10;
/// The longest text other than an address, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// A newer larder wrote it.
    #[error("it has format {0}, but this larder reads {FORMAT}; apply it with the larder that made it, or a newer one")]
    Newer(u64),
    /// The manifest is malformed.
    #[error("its manifest cannot be read: {0}")]
    Unreadable(String),
    /// The manifest is not in the canonical form, or its digest is wrong.
    #[error("its manifest was altered after larder wrote it")]
    Altered,
    /// The contents of the manifest are contradictory or exceed a limit.
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

    /// Checks the rules of [`Manifest::read`] on a manifest in memory.
    ///
    /// # Errors
    /// [`BadManifest::Refused`].
    pub(in super::super) fn check(&self) -> Result<(), BadManifest> {
        let refused = |reason: String| Err(BadManifest::Refused(reason));
        if self.entries.len() > MAX_ENTRIES {
            return refused(format!("it lists {} items, the limit is {MAX_ENTRIES}", self.entries.len()));
        }
        if self.larder.len() > MAX_TEXT_BYTES {
            return refused("its larder version is too long".to_owned());
        }
        let (mut sizes, mut listed_names) = (HashMap::new(), HashSet::new());
        let mut total_bytes: u64 = 0;
        for entry in &self.entries {
            let name = entry.package_ref().to_string();
            if !listed_names.insert(name.clone()) {
                return refused(format!("{name} is listed twice"));
            }
            entry.check().map_err(|reason| BadManifest::Refused(format!("{name}: {reason}")))?;
            for EntryFile { role, file, .. } in entry.files() {
                if *sizes.entry(file.sha256).or_insert(file.bytes) != file.bytes {
                    return refused(format!("{name}: its {role} has two sizes"));
                }
                total_bytes = match total_bytes.checked_add(tar::tar_bytes_of_file(file.bytes)) {
                    Some(total_bytes) => total_bytes,
                    None => return refused("its files are larger than any disk".to_owned()),
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
            let max_bytes = match role {
                FileRole::Document if is_provider => MAX_DOWNLOAD_DOCUMENT_BYTES,
                FileRole::Document | FileRole::Dropped => MAX_DOCUMENT_BYTES,
                FileRole::Sums => MAX_SUMS_BYTES,
                FileRole::Signature => MAX_SIGNATURE_BYTES,
                FileRole::Location => MAX_LOCATION_BYTES,
                // The importing store has a limit for archives.
                FileRole::Archive => u64::MAX,
            };
            if file.bytes > max_bytes {
                return Err(format!("its {role} has {} bytes, the limit is {max_bytes}", file.bytes));
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
            if text.len() > MAX_TEXT_BYTES || text.contains(char::is_control) {
                return Err("a text in it is too long, or has invalid characters".to_owned());
            }
        }
        let is_http_without_query = |url: &Url| matches!(url.scheme(), "http" | "https") && url.query().is_none();
        if !is_http_without_query(&fetch_origin.asked) || !is_http_without_query(&fetch_origin.url) {
            return Err("its source must be an http(s) URL without a query".to_owned());
        }
        Ok(())
    }
}
