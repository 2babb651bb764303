//! The manifest of a bundle: JSON with one line per entry, so that a person can read it. A manifest has one canonical
//! form and contains its own digest, so that an altered byte is found even without a signature.

use std::collections::{BTreeMap, HashMap, HashSet};

use derive_more::Display;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use url::Url;

use super::stream::{END_BYTES, tar_bytes_of_file};
use crate::address::{
    Address, Artifact, Hostname, ModuleAddress, ModulePackage, Package, PackageRef, Platform, ProviderAddress, Version,
};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::policy::{ApprovalEntry, MAX_DECISIONS};

/// The newest manifest format that this larder reads: that of a manifest with notes.
const FORMAT: u32 = 2;
/// The format of a manifest without notes, which older larders read.
const WITHOUT_NOTES: u32 = 1;

/// The manifest of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// The version of larder that made the bundle.
    pub larder: String,
    /// The creation time in epoch seconds.
    pub created: Timestamp,
    /// The SHA-256 of the inventory that this bundle is a delta to. Archives listed there may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Digest>,
    /// The entries in the order of their files.
    pub entries: Vec<BundleEntry>,
    /// The sender's notes about the versions of addresses. They count only if a trusted key signed the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "read_notes")]
    pub notes: Vec<AddressNotes>,
    /// The SHA-256 of the manifest with zeros in this field.
    digest: Digest,
}

/// The sender's notes about the versions of a provider or a module: its word, which nothing else proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressNotes {
    /// The provider or the module.
    pub address: Address,
    /// The moments from which the ages of versions count, in epoch seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub since: BTreeMap<Version, Timestamp>,
    /// Decisions of persons about versions, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<ApprovalEntry>,
}

/// One document or package. It is imported as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum BundleEntry {
    /// The discovery document of a registry.
    Discovery {
        /// The registry.
        host: Hostname,
        /// The document.
        #[serde(flatten)]
        document: BundledDocument,
    },
    /// The version list of a provider.
    ProviderVersions {
        /// The provider.
        #[serde(with = "crate::address::provider_as_text")]
        provider: ProviderAddress,
        /// The document.
        #[serde(flatten)]
        document: BundledDocument,
    },
    /// The version list of a module.
    ModuleVersions {
        /// The module.
        #[serde(with = "module")]
        module: ModuleAddress,
        /// The document.
        #[serde(flatten)]
        document: BundledDocument,
    },
    /// A provider version for one platform: its proof set and its archive.
    Provider(Box<ProviderEntry>),
    /// A module version: its location and its archive.
    Module(Box<ModuleEntry>),
}

/// A document as upstream sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledDocument {
    /// Where the document came from, and when.
    pub said: FetchOrigin,
    /// The document as upstream sent it.
    pub document: BundledFile,
    /// A JSON list of the entries that upstream has removed from this version list and that larder still lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<BundledFile>,
}

/// Where a document was fetched from, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchOrigin {
    /// The requested URL, without its query.
    pub asked: Url,
    /// The URL that the bytes came from after redirects, without its query.
    pub url: Url,
    /// The time of the fetch in epoch seconds.
    pub fetched: Timestamp,
    /// The time of the last revalidation in epoch seconds.
    pub checked: Timestamp,
    /// True if upstream has deleted the document since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// A provider version for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderEntry {
    /// The provider.
    #[serde(with = "crate::address::provider_as_text")]
    pub provider: ProviderAddress,
    /// The version.
    #[serde(deserialize_with = "Version::deserialize_of_provider")]
    pub version: Version,
    /// The platform.
    pub platform: Platform,
    /// The fingerprint of the publisher's key that signed SHA256SUMS. Informational: the importer verifies the
    /// signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
    /// Where its download document came from, and when.
    pub said: FetchOrigin,
    /// Its download document.
    pub document: BundledFile,
    /// Its SHA256SUMS.
    pub sums: BundledFile,
    /// The signature of SHA256SUMS; `None` for an unsigned version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<BundledFile>,
    /// Its archive.
    pub archive: BundledArchive,
}

/// A module version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleEntry {
    /// The module.
    #[serde(with = "module")]
    pub module: ModuleAddress,
    /// The version.
    pub version: Version,
    /// The git commit; `None` where the source was not git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The digest of its tree.
    pub tree: Digest,
    /// The version of the packer that made its archive.
    pub packer: u32,
    /// The module's folder in the archive; `None` for the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdir: Option<String>,
    /// The SHA-256 of the location from which this tree was first fetched.
    pub source: Digest,
    /// The origin (scheme, host, port) that the module was fetched from.
    pub origin: String,
    /// The time of the version's first-seen record in epoch seconds.
    pub first_seen: Timestamp,
    /// Where its location came from, and when.
    pub said: FetchOrigin,
    /// Its location.
    pub location: BundledFile,
    /// Its archive.
    pub archive: BundledArchive,
}

impl Manifest {
    /// Creates a manifest of these entries and notes, made by this version of larder.
    pub fn new(created: Timestamp, since: Option<Digest>, entries: Vec<BundleEntry>, notes: Vec<AddressNotes>) -> Self {
        let (larder, digest) = (env!("CARGO_PKG_VERSION").to_owned(), Digest::of(b""));
        let format = if notes.is_empty() { WITHOUT_NOTES } else { FORMAT };
        let mut manifest = Self { format, larder, created, since, entries, notes, digest };
        manifest.digest = manifest.own_digest();
        manifest
    }

    /// The files in the tar, each once and in order, with the index of the first entry that lists it. Archives that
    /// were left out are not included.
    pub fn files(&self) -> impl Iterator<Item = (usize, EntryFile)> {
        let mut listed = HashSet::new();
        let files = self
            .entries
            .iter()
            .enumerate()
            .flat_map(|(index, entry)| entry.files().into_iter().map(move |file| (index, file)));
        files.filter(move |(_, file)| !file.left_out && listed.insert(file.file.sha256))
    }

    /// The size of the bundle in bytes, given the sizes of its manifest and signature in bytes.
    pub fn bundle_bytes(&self, manifest_bytes: usize, signature_bytes: Option<usize>) -> u64 {
        let head = [Some(manifest_bytes), signature_bytes].into_iter().flatten();
        let head = head.map(|bytes| tar_bytes_of_file(bytes as u64));
        let files = self.files().map(|(_, file)| tar_bytes_of_file(file.file.bytes));
        head.chain(files).fold(END_BYTES, u64::saturating_add)
    }
}

impl BundleEntry {
    /// The package or document of this entry.
    pub fn package_ref(&self) -> PackageRef {
        match self {
            Self::Discovery { host, .. } => PackageRef::discovery(host),
            Self::ProviderVersions { provider, .. } => PackageRef::version_list(provider),
            Self::ModuleVersions { module, .. } => PackageRef::version_list(module),
            Self::Provider(entry) => (&entry.package()).into(),
            Self::Module(entry) => (&entry.package()).into(),
        }
    }

    /// The registry of this entry.
    pub fn host(&self) -> &Hostname {
        match self {
            Self::Discovery { host, .. } => host,
            Self::ProviderVersions { provider, .. } => &provider.host,
            Self::ModuleVersions { module, .. } => &module.host,
            Self::Provider(entry) => &entry.provider.host,
            Self::Module(entry) => &entry.module.host,
        }
    }

    /// The package of this entry, and its archive; `None` for a document.
    pub fn package_archive(&self) -> Option<(Artifact, BundledArchive)> {
        match self {
            Self::Provider(entry) => Some((Artifact::Provider(entry.package()), entry.archive)),
            Self::Module(entry) => Some((Artifact::Module(entry.package()), entry.archive)),
            Self::Discovery { .. } | Self::ProviderVersions { .. } | Self::ModuleVersions { .. } => None,
        }
    }

    /// The files in their order in the tar; the archive is last.
    pub fn files(&self) -> Vec<EntryFile> {
        let small_file = |role, file: BundledFile| EntryFile { role, file, left_out: false };
        let archive_file = |BundledArchive { sha256, bytes, left_out }: BundledArchive| {
            let file = BundledFile { sha256, bytes };
            EntryFile { role: FileRole::Archive, file, left_out }
        };
        match self {
            Self::Discovery { document, .. }
            | Self::ProviderVersions { document, .. }
            | Self::ModuleVersions { document, .. } => {
                let dropped = document.dropped.map(|dropped| small_file(FileRole::Dropped, dropped));
                [small_file(FileRole::Document, document.document)].into_iter().chain(dropped).collect()
            }
            Self::Provider(entry) => {
                let signature = entry.signature.map(|signature| small_file(FileRole::Signature, signature));
                let required = [small_file(FileRole::Document, entry.document), small_file(FileRole::Sums, entry.sums)];
                required.into_iter().chain(signature).chain([archive_file(entry.archive)]).collect()
            }
            Self::Module(entry) => vec![small_file(FileRole::Location, entry.location), archive_file(entry.archive)],
        }
    }
}

impl ProviderEntry {
    /// The package of this entry.
    pub fn package(&self) -> Package {
        Package { provider: self.provider.clone(), version: self.version.clone(), platform: self.platform.clone() }
    }
}

impl ModuleEntry {
    /// The module version of this entry.
    pub fn package(&self) -> ModulePackage {
        ModulePackage { module: self.module.clone(), version: self.version.clone() }
    }
}

/// The digest and size of a file in a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledFile {
    /// The SHA-256 of the file. It is also the file's name in the tar: `sha256/HEX`.
    pub sha256: Digest,
    /// The size in bytes.
    pub bytes: u64,
}

/// The digest and size of an archive. A delta may leave the archive itself out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledArchive {
    /// The SHA-256 of the archive. It is also the archive's name in the tar: `sha256/HEX`.
    pub sha256: Digest,
    /// The size in bytes.
    pub bytes: u64,
    /// True if the archive is not in the tar, because the inventory says that the receiving store already has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
}

/// The role of a file in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
pub enum FileRole {
    /// A JSON document as upstream sent it: a discovery document, a version list or a download document.
    #[display("document")]
    Document,
    /// A JSON list of the entries that upstream has removed from the version list and that larder still lists.
    #[display("list of dropped versions")]
    Dropped,
    /// SHA256SUMS.
    #[display("SHA256SUMS")]
    Sums,
    /// The signature of SHA256SUMS.
    #[display("signature")]
    Signature,
    /// The location of a module version: the source address that the registry gave for it.
    #[display("location")]
    Location,
    /// The archive of a provider or a module.
    #[display("archive")]
    Archive,
}

/// A file of a bundle entry, and its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFile {
    /// The role of the file.
    pub role: FileRole,
    /// The digest and size of the file.
    pub file: BundledFile,
    /// True if the file is not in the tar.
    pub left_out: bool,
}

impl EntryFile {
    /// The name of the file in the tar.
    pub fn name(&self) -> String {
        format!("sha256/{}", self.file.sha256)
    }
}

/// The size limit of a manifest, in bytes.
pub const MAX_MANIFEST: u64 = 64 << 20;
const MAX_ENTRIES: usize = 100_000;
/// The size limit of all notes, in bytes.
const MAX_NOTES_BYTES: usize = 8 << 20;
/// The most versions of one address with notes.
const MAX_VERSIONS: usize = 20_000;
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
    /// Parses the bytes that [`Manifest::to_bytes`] makes. Any other spelling is an error.
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
        if manifest.digest != manifest.own_digest() || manifest.to_bytes() != bytes {
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
        self.check_notes().map_err(BadManifest::Refused)?;
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
                let sum = total_bytes.checked_add(tar_bytes_of_file(file.bytes));
                let too_large = || BadManifest::Refused("its files are larger than any disk".to_owned());
                total_bytes = sum.ok_or_else(too_large)?;
            }
        }
        Ok(())
    }
}

/// Reads the notes of a manifest. Each takes far more memory than its text, so that has a limit of its own.
fn read_notes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AddressNotes>, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    if text.get().len() > MAX_NOTES_BYTES {
        return Err(D::Error::custom(format!("its notes are longer than {} MiB", MAX_NOTES_BYTES >> 20)));
    }
    serde_json::from_str(text.get()).map_err(D::Error::custom)
}

impl Manifest {
    fn check_notes(&self) -> Result<(), String> {
        let mut noted = HashSet::new();
        for AddressNotes { address, since, approvals } in &self.notes {
            if !noted.insert(address) {
                return Err(format!("{address} has notes twice"));
            }
            if since.len() > MAX_VERSIONS || approvals.len() > MAX_DECISIONS {
                return Err(format!("{address} has notes about too many versions"));
            }
            let texts = approvals.iter().flat_map(|approval| [&approval.reason, &approval.by]).flatten();
            if texts.into_iter().any(|text| text.len() > MAX_TEXT_BYTES || text.contains(char::is_control)) {
                return Err(format!("{address}: a text in its notes is too long, or has invalid characters"));
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
    pub fn to_bytes(&self) -> Vec<u8> {
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
        if !self.notes.is_empty() {
            written.extend_from_slice(b"],\n \"notes\":[");
            for (index, notes) in self.notes.iter().enumerate() {
                written.extend_from_slice(if index == 0 { b"\n  " } else { b",\n  " });
                written.extend_from_slice(json(notes).as_bytes());
            }
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

/// A module as `HOST/NAMESPACE/NAME/SYSTEM`.
mod module {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::address::{Address, ModuleAddress};

    pub(super) fn serialize<S: Serializer>(address: &ModuleAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModuleAddress, D::Error> {
        match Address::deserialize(deserializer)? {
            Address::Module(module) => Ok(module),
            Address::Provider(_) => Err(D::Error::custom("not a module address")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fetch_origin() -> FetchOrigin {
        let url = Url::parse("https://registry.example/v1/providers/acme/null/1.0.0/download/linux/amd64").unwrap();
        FetchOrigin { url: url.clone(), asked: url, fetched: Timestamp(1), checked: Timestamp(2), gone: false }
    }

    fn file(content: &str) -> BundledFile {
        BundledFile { sha256: Digest::of(content.as_bytes()), bytes: content.len() as u64 }
    }

    fn archive(content: &str, left_out: bool) -> BundledArchive {
        let BundledFile { sha256, bytes } = file(content);
        BundledArchive { sha256, bytes, left_out }
    }

    fn discovery() -> BundleEntry {
        let document = BundledDocument { said: fetch_origin(), document: file("{}"), dropped: Some(file("[]")) };
        BundleEntry::Discovery { host: Hostname::parse("registry.example:8443").unwrap(), document }
    }

    fn provider(platform: &str, left_out: bool) -> BundleEntry {
        let json = serde_json::json!({
            "provider": "registry.example/acme/null", "version": "1.0.0", "platform": platform, "signed_by": "AB",
            "said": fetch_origin(), "document": file(platform), "sums": file("sums"), "signature": file("signature"),
            "archive": archive(&format!("zip of {platform}"), left_out),
        });
        BundleEntry::Provider(Box::new(serde_json::from_value(json).unwrap()))
    }

    fn module() -> BundleEntry {
        let json = serde_json::json!({
            "module": "registry.example/Acme/vpc/aws", "version": "1.2.0", "commit": "c0ffee", "tree": Digest::of(b"tree"),
            "packer": 1, "subdir": "modules/x", "source": Digest::of(b"source"), "origin": "https://git.example",
            "first_seen": 3, "said": fetch_origin(), "location": file("git::https://git.example/x"), "archive": archive("tgz", false),
        });
        BundleEntry::Module(Box::new(serde_json::from_value(json).unwrap()))
    }

    fn manifest(entries: Vec<BundleEntry>) -> Manifest {
        Manifest::new(Timestamp(1_795_293_761), Some(Digest::of(b"inventory")), entries, Vec::new())
    }

    #[test]
    fn a_manifest_round_trips_and_has_one_line_per_entry() {
        let manifest = manifest(vec![discovery(), provider("linux_amd64", false), module()]);
        let written = manifest.to_bytes();
        assert_eq!(Manifest::read(&written).unwrap(), manifest);
        let text = String::from_utf8(written).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(r#""kind""#)).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains(r#""kind":"provider","provider":"registry.example/acme/null","version":"1.0.0","#));
        assert!(lines[2].contains(r#""module":"registry.example/Acme/vpc/aws","version":"1.2.0","commit":"c0ffee","#));
    }

    /// Older larders read a manifest without notes. One with notes has a format of its own, because they would drop them.
    #[test]
    fn notes_round_trip_and_raise_the_format() {
        let notes: AddressNotes = serde_json::from_value(serde_json::json!({
            "address": "registry.example/Acme/vpc/aws", "since": { "1.2.0": 5 },
            "approvals": [{ "version": "1.2.0", "decision": "approved", "time": 6, "until": 9, "reason": "a fix", "by": "Ada" }],
        }))
        .unwrap();
        let with = |notes: Vec<AddressNotes>| Manifest::new(Timestamp(7), None, vec![module()], notes);
        let written = String::from_utf8(with(vec![notes.clone()]).to_bytes()).unwrap();
        assert_eq!(Manifest::read(written.as_bytes()).unwrap().notes, vec![notes.clone()]);
        assert!(
            written.starts_with("{\"format\":2,") && written.contains("\n \"notes\":[\n  {\"address\":"),
            "{written}"
        );
        assert!(String::from_utf8(with(Vec::new()).to_bytes()).unwrap().starts_with("{\"format\":1,"));
        let refusal = |notes: Vec<AddressNotes>| Manifest::read(&with(notes).to_bytes()).unwrap_err().to_string();
        assert!(refusal(vec![notes.clone(), notes.clone()]).contains("has notes twice"));
        let mut hostile = notes;
        hostile.approvals[0].by = Some("A\u{1b}[2J".to_owned());
        assert!(refusal(vec![hostile]).contains("invalid characters"));
    }

    #[test]
    fn each_file_is_listed_once_and_the_archive_of_an_entry_last() {
        let manifest = manifest(vec![provider("linux_amd64", false), provider("linux_arm64", true)]);
        let files: Vec<_> = manifest.files().map(|(entry, file)| (entry, file.role)).collect();
        let of_first_entry =
            [FileRole::Document, FileRole::Sums, FileRole::Signature, FileRole::Archive].map(|role| (0, role));
        assert_eq!(files, [&of_first_entry[..], &[(1, FileRole::Document)]].concat());
    }

    #[test]
    fn an_invalid_entry_is_refused_and_named() {
        let refusal =
            |entries: Vec<BundleEntry>| Manifest::read(&manifest(entries).to_bytes()).unwrap_err().to_string();
        assert!(refusal(vec![module(), module()]).contains("registry.example/Acme/vpc/aws 1.2.0 is listed twice"));
        let refusal_with = |change: &dyn Fn(&mut ProviderEntry)| {
            let BundleEntry::Provider(mut entry) = provider("linux_amd64", false) else { unreachable!() };
            change(&mut entry);
            refusal(vec![BundleEntry::Provider(entry)])
        };
        assert!(
            refusal_with(&|entry| entry.sums.bytes = MAX_SUMS_BYTES + 1)
                .contains("acme/null 1.0.0 (linux_amd64): its SHA256SUMS")
        );
        assert!(refusal_with(&|entry| entry.archive.sha256 = entry.sums.sha256).contains("has two sizes"));
        assert!(refusal_with(&|entry| entry.archive.bytes = u64::MAX).contains("larger than any disk"));
        assert!(refusal_with(&|entry| entry.signed_by = Some("A\u{1b}[2J".into())).contains("characters"));
        assert!(refusal_with(&|entry| entry.said.url.set_query(Some("token=x"))).contains("without a query"));
        assert!(
            refusal_with(&|entry| entry.said.asked = Url::parse("file:///etc").unwrap())
                .contains("must be an http(s) URL")
        );
    }

    #[test]
    fn a_manifest_of_a_newer_format_is_refused_as_newer() {
        let written = String::from_utf8(manifest(vec![]).to_bytes()).unwrap();
        let newer = written.replace(r#""format":1"#, r#""format":3,"more":{}"#);
        assert_eq!(Manifest::read(newer.as_bytes()), Err(BadManifest::Newer(3)));
    }

    proptest! {
        /// The manifest contains its own digest, so an altered byte is found even without a signature.
        #[test]
        fn any_altered_byte_of_a_manifest_is_refused(index in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut written = manifest(vec![discovery(), provider("linux_amd64", true), module()]).to_bytes();
            let index = index.index(written.len());
            written[index] ^= flip;
            prop_assert!(Manifest::read(&written).is_err());
            written[index] ^= flip;
            prop_assert!(Manifest::read(&written[..index]).is_err());
            written.insert(index, flip);
            prop_assert!(Manifest::read(&written).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,200}") {
            let _ = Manifest::read(&bytes);
            let _ = Manifest::read(format!(r#"{{"format":1,"larder":"x","created":1,"entries":[{text}],"digest":""}}"#).as_bytes());
        }
    }
}
