//! The canonical form of a manifest: JSON with one line per entry, and a digest over all of it. Manifests from other stores
//! are accepted in that form only, and within limits. Addresses are text: `HOST/NAMESPACE/TYPE` of a provider and
//! `HOST/NAMESPACE/NAME/SYSTEM` of a module.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use url::Url;

use super::super::tar;
use super::{BundleEntry, EntryFile, FORMAT, FileRole, Manifest};
use crate::digest::Digest;

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

impl Manifest {
    /// The bytes of the manifest in a bundle.
    pub fn write(&self) -> Vec<u8> {
        self.write_with_digest(&self.digest.to_string())
    }

    /// Writes the manifest with this text in its digest field.
    fn write_with_digest(&self, digest: &str) -> Vec<u8> {
        let Self { format, created, larder, since, .. } = self;
        let larder = json(larder);
        let since = since.map_or_else(String::new, |since| format!(",\n \"since\":\"{since}\""));
        let head = format!("{{\"format\":{format},\n \"larder\":{larder},\n \"created\":{}{since},\n", created.0);
        let mut written = head.into_bytes();
        written.extend_from_slice(b" \"entries\":[");
        for (index, entry) in self.entries.iter().enumerate() {
            written.extend_from_slice(if index == 0 { b"\n  " } else { b",\n  " });
            written.extend_from_slice(json(entry).as_bytes());
        }
        written.extend_from_slice(format!("],\n \"digest\":\"{digest}\"}}\n").as_bytes());
        written
    }

    /// The SHA-256 of the manifest with zeros in its digest field.
    pub(super) fn own_digest(&self) -> Digest {
        Digest::of(&self.write_with_digest(&"0".repeat(64)))
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("names and numbers always serialise")
}

/// A provider as `HOST/NAMESPACE/TYPE`.
pub(super) mod provider {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::address::{Hostname, Name, ProviderAddress};

    pub(crate) fn serialize<S: Serializer>(address: &ProviderAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProviderAddress, D::Error> {
        let text = String::deserialize(deserializer)?;
        let [host, namespace, type_] =
            super::segments(&text).ok_or_else(|| D::Error::custom("not a provider address"))?;
        Ok(ProviderAddress {
            host: Hostname::parse(host).map_err(D::Error::custom)?,
            namespace: Name::parse(namespace).map_err(D::Error::custom)?,
            type_: Name::parse(type_).map_err(D::Error::custom)?,
        })
    }
}

/// A module as `HOST/NAMESPACE/NAME/SYSTEM`.
pub(super) mod module {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::address::{Hostname, ModuleAddress, ModuleName, System};

    pub(crate) fn serialize<S: Serializer>(address: &ModuleAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModuleAddress, D::Error> {
        let text = String::deserialize(deserializer)?;
        let [host, namespace, name, system] =
            super::segments(&text).ok_or_else(|| D::Error::custom("not a module address"))?;
        Ok(ModuleAddress {
            host: Hostname::parse(host).map_err(D::Error::custom)?,
            namespace: ModuleName::parse(namespace).map_err(D::Error::custom)?,
            name: ModuleName::parse(name).map_err(D::Error::custom)?,
            system: System::parse(system).map_err(D::Error::custom)?,
        })
    }
}

/// Splits an address into its segments; `None` if their number is not `N`.
fn segments<const N: usize>(text: &str) -> Option<[&str; N]> {
    text.split('/').collect::<Vec<_>>().try_into().ok()
}
