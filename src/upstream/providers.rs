//! Parses `providers.v1` (provider registry protocol). Upstream JSON is preserved verbatim, so that unknown fields
//! survive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use url::Url;

use super::client_json;
use super::discovery::Service;
use crate::address::{BadAddress, FileName, Platform, ProviderAddress, Version};
use crate::digest::Digest;

/// A JSON object whose members are preserved verbatim.
pub type RawObject = IndexMap<String, Box<RawValue>>;

/// Limit for the number of versions in the list of a provider or a module.
pub const MAX_VERSIONS: usize = 20_000;

/// The longest unreadable version that is relayed, in bytes. Clients may read a longer one, which only larder's own limit refuses,
/// and would ask for it in vain.
const MAX_UNREADABLE_BYTES: usize = 90;

/// The URL of a provider's version list.
pub fn versions_url(base: &Url, address: &ProviderAddress) -> Result<Url, url::ParseError> {
    base.join(&format!("{}/{}/versions", address.namespace, address.type_))
}

/// The URL of a download document. `upstream_spelling` is the version as the upstream's list spells it.
pub fn download_url(
    base: &Url,
    address: &ProviderAddress,
    upstream_spelling: &str,
    platform: &Platform,
) -> Result<Url, url::ParseError> {
    let Platform { os, arch } = platform;
    base.join(&format!("{}/{}/{upstream_spelling}/download/{os}/{arch}", address.namespace, address.type_))
}

/// The version list of a provider or a module. A module's document lists several modules, of which clients read only
/// the first (module registry protocol).
#[derive(Debug, Clone)]
pub struct VersionList {
    /// The service that has the list.
    pub service: Service,
    /// The entries with a valid version, in upstream's order.
    pub versions: Vec<ListedVersion>,
    /// The entries whose version larder cannot read, in upstream's order. Clients of a module's list skip those with a
    /// warning. Older clients of a provider refuse the whole list for one of them, so they get none (promise 5).
    pub unreadable: Vec<UnreadableVersion>,
    /// The members of the first module other than `versions`; empty for a provider.
    pub module_members: RawObject,
    /// The members of the document other than the versions.
    pub other_members: RawObject,
    /// The versions of a provider that upstream has and that this list does not name yet.
    pub late: Vec<LateVersion>,
}

/// A version that a list does not name although upstream has its download document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateVersion {
    /// The version.
    pub version: Version,
    /// A platform of which upstream has the document.
    pub platform: Platform,
    /// The cause, for people: the registries that list it, and the age of the list.
    pub note: String,
}

impl fmt::Display for LateVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be chosen: {}", self.version, self.note)
    }
}

/// An entry of a version list whose version larder cannot read.
#[derive(Debug, Clone)]
pub struct UnreadableVersion {
    /// The version as upstream spells it.
    pub upstream_spelling: String,
    /// The entry as upstream wrote it.
    pub raw: Box<RawValue>,
}

/// One entry of a version list.
#[derive(Debug, Clone)]
pub struct ListedVersion {
    /// The version as clients request it.
    pub version: Version,
    /// The version as upstream spells it, for requests to upstream.
    pub upstream_spelling: String,
    /// The platforms as upstream wrote them. Most readers of a list never ask for them.
    platforms: Option<Box<RawValue>>,
    /// The entry as upstream wrote it.
    pub raw: Box<RawValue>,
}

impl VersionList {
    /// A list of no versions.
    pub fn empty(service: Service) -> Self {
        let (module_members, other_members) = (RawObject::new(), RawObject::new());
        let (versions, unreadable, late) = (Vec::new(), Vec::new(), Vec::new());
        Self { service, versions, unreadable, module_members, other_members, late }
    }

    /// Parses a provider's list (provider registry protocol). Of versions that clients treat as equal, the first is used.
    ///
    /// # Errors
    /// The reason why the document is not a version list.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let mut other_members = parse_object(body, &["versions"])?;
        let entries = take_versions(&mut other_members)?.ok_or("it has no \"versions\"")?;
        Self { other_members, ..Self::empty(Service::Providers) }.with_entries(entries)
    }

    /// The versions of a list, and nothing else of it: a fraction of the time.
    ///
    /// # Errors
    /// The reason why the document is not a version list.
    pub fn named(service: Service, body: &[u8]) -> Result<BTreeSet<Version>, String> {
        let unreadable = |e: serde_json::Error| format!("it is not a list: {e}");
        let text = String::from_utf8_lossy(body);
        let (document, first_module);
        let versions = match service {
            Service::Providers => {
                document = client_json::borrowed_members(&text, &["versions"]).map_err(unreadable)?;
                Some(*document.get("versions").ok_or("it has no \"versions\"")?)
            }
            Service::Modules => {
                document = client_json::borrowed_members(&text, &["modules"]).map_err(unreadable)?;
                let modules = document.get("modules").ok_or("it has no \"modules\"")?;
                let modules: Vec<&RawValue> = serde_json::from_str(modules.get()).map_err(unreadable)?;
                let module = modules.first().ok_or("its \"modules\" are empty")?;
                first_module = client_json::borrowed_members(module.get(), &["versions"]).map_err(unreadable)?;
                first_module.get("versions").copied()
            }
        };
        let entries: Option<Vec<&RawValue>> =
            versions.map(|versions| serde_json::from_str(versions.get())).transpose().map_err(unreadable)?;
        let entries = entries.unwrap_or_default();
        if entries.len() > MAX_VERSIONS {
            return Err(format!("it lists {} versions; at most {MAX_VERSIONS} are read", entries.len()));
        }
        let version = |entry: &RawValue| {
            let members = client_json::borrowed_members(entry.get(), members_of_entry(service)).ok()?;
            let spelling: String = serde_json::from_str(members.get("version")?.get()).ok()?;
            parse_version(service, &spelling).ok()
        };
        Ok(entries.into_iter().filter_map(version).collect())
    }

    /// Fills an empty list. Drops repeated versions, and entries of which clients would read something else than larder.
    ///
    /// # Errors
    /// There are too many entries, or no client could read any of them.
    pub(super) fn with_entries(mut self, entries: Vec<Box<RawValue>>) -> Result<Self, String> {
        let count = entries.len();
        if count > MAX_VERSIONS {
            return Err(format!("it lists {count} versions; at most {MAX_VERSIONS} are read"));
        }
        self.add_new_versions(entries);
        if count > 0 && self.versions.is_empty() {
            return Err(format!("none of its {count} versions is one that a client could read"));
        }
        Ok(self)
    }

    /// Adds the entries whose versions the list does not contain yet.
    pub fn add_new_versions(&mut self, entries: Vec<Box<RawValue>>) {
        let mut present: HashSet<Version> = self.versions.iter().map(|listed| listed.version.clone()).collect();
        for entry in entries {
            match ListedVersion::parse(self.service, entry) {
                Some(Ok(listed)) if present.insert(listed.version.clone()) => self.versions.push(listed),
                Some(Err(unreadable)) => self.unreadable.push(unreadable),
                Some(Ok(_)) | None => {}
            }
        }
    }

    /// The entry of a version.
    pub fn get(&self, version: &Version) -> Option<&ListedVersion> {
        self.versions.iter().find(|listed| listed.version == *version)
    }
}

impl ListedVersion {
    /// Parses an entry of a list. `None` if it has no version, or if clients would read other values from it.
    fn parse(service: Service, raw: Box<RawValue>) -> Option<Result<Self, UnreadableVersion>> {
        let mut members = client_json::members(raw.get(), members_of_entry(service)).ok()?;
        let upstream_spelling: String = serde_json::from_str(members.get("version")?.get()).ok()?;
        let platforms = members.swap_remove("platforms").filter(|_| service == Service::Providers);
        let Ok(version) = parse_version(service, &upstream_spelling) else {
            // Clients read such a version, and would ask for it.
            if upstream_spelling.len() > MAX_UNREADABLE_BYTES {
                return None;
            }
            return Some(Err(UnreadableVersion { upstream_spelling, raw }));
        };
        Some(Ok(Self { version, upstream_spelling, platforms, raw }))
    }

    /// The platforms of the version; empty if the entry lists none, and for a module.
    pub fn platforms(&self) -> Vec<Platform> {
        #[derive(Deserialize)]
        struct PlatformJson {
            os: String,
            arch: String,
        }
        let parse_platform = |raw: &RawValue| {
            let PlatformJson { os, arch } = serde_json::from_str(raw.get()).ok()?;
            Platform::new(&os, &arch).ok()
        };
        let listed: Option<Vec<&RawValue>> =
            self.platforms.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok());
        listed.unwrap_or_default().into_iter().filter_map(parse_platform).collect()
    }
}

/// The members of an entry of a list that clients read.
fn members_of_entry(service: Service) -> &'static [&'static str] {
    match service {
        Service::Providers => &["version", "platforms"],
        Service::Modules => &["version"],
    }
}

fn parse_version(service: Service, spelling: &str) -> Result<Version, BadAddress> {
    match service {
        Service::Providers => Version::parse(spelling),
        Service::Modules => Version::parse_of_module(spelling),
    }
}

/// A download document: the archive of one version and platform, and the URLs of its three files.
#[derive(Debug, Clone)]
pub struct DownloadDocument {
    /// The document's members, as upstream wrote them.
    pub fields: RawObject,
    /// The archive's file name.
    pub filename: FileName,
    /// Its name in SHA256SUMS, where a folder may precede it.
    pub name_in_sums: String,
    /// The archive's SHA-256.
    pub shasum: Digest,
    /// URL of the archive.
    pub archive_url: Url,
    /// URL of SHA256SUMS.
    pub sums_url: Url,
    /// URL of the signature; `None` if the document has none.
    pub signature_url: Option<Url>,
    /// Keys that may have signed SHA256SUMS, in ASCII armour.
    pub keys: Vec<String>,
}

/// The member with the hashes of every platform (OpenTofu's registry; `internal/getproviders/registry_client.go`).
const PACKAGES: &str = "packages";

/// The archives of every platform of a version, as OpenTofu reads them.
pub type Packages = BTreeMap<Platform, PlatformPackage>;

/// The archive of one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlatformPackage {
    /// `zh:` and `h1:` hashes.
    pub hashes: Vec<String>,
    /// Its size in bytes, where known. For the platform of the document clients compare it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_size: Option<u64>,
}

#[derive(Deserialize)]
struct DownloadJson {
    os: String,
    arch: String,
    filename: String,
    shasum: String,
    download_url: String,
    shasums_url: String,
    #[serde(default)]
    shasums_signature_url: Option<String>,
    #[serde(default)]
    signing_keys: Option<SigningKeys>,
}

/// The members that [`DownloadJson`] reads.
const READ_MEMBERS: [&str; 8] =
    ["os", "arch", "filename", "shasum", "download_url", "shasums_url", "shasums_signature_url", "signing_keys"];

#[derive(Deserialize)]
struct SigningKeys {
    #[serde(default)]
    gpg_public_keys: Option<Vec<GpgKey>>,
}

#[derive(Deserialize)]
struct GpgKey {
    #[serde(default)]
    ascii_armor: String,
}

impl DownloadDocument {
    /// Parses the document that `url` returned for `platform`.
    ///
    /// # Errors
    /// The reason why clients cannot use the document (provider registry protocol).
    pub fn parse(body: &[u8], url: &Url, platform: &Platform) -> Result<Self, String> {
        let unreadable = |e: serde_json::Error| format!("its download document: {e}");
        let members = client_json::object(body, &READ_MEMBERS).map_err(unreadable)?;
        let text = serde_json::to_string(&members).map_err(unreadable)?;
        let parsed: DownloadJson = serde_json::from_str(&text).map_err(unreadable)?;
        if parsed.os != platform.os || parsed.arch != platform.arch {
            return Err(format!("its download document is for {}_{} and not for {platform}", parsed.os, parsed.arch));
        }
        let resolve_url = |name: &str, reference: &str| {
            let resolved = url.join(reference).map_err(|e| format!("its {name} is not a URL: {e}"))?;
            match resolved.scheme() {
                _ if reference.is_empty() => Err(format!("its {name} is empty")),
                "http" | "https" => Ok(resolved),
                scheme => Err(format!("its {name} must be http or https, and is {scheme}")),
            }
        };
        let signature_url = parsed.shasums_signature_url.as_deref().filter(|reference| !reference.is_empty());
        let signature_url = signature_url.map(|reference| resolve_url("shasums_signature_url", reference));
        let keys = parsed.signing_keys.and_then(|keys| keys.gpg_public_keys).unwrap_or_default();
        Ok(Self {
            filename: file_name(&parsed.filename)?,
            name_in_sums: parsed.filename,
            shasum: Digest::parse(&parsed.shasum).map_err(|e| format!("its shasum: {e}"))?,
            archive_url: resolve_url("download_url", &parsed.download_url)?,
            sums_url: resolve_url("shasums_url", &parsed.shasums_url)?,
            signature_url: signature_url.transpose()?,
            keys: keys.into_iter().map(|key| key.ascii_armor).filter(|armor| !armor.is_empty()).collect(),
            fields: members,
        })
    }

    /// Renders the document with these URLs for the archive, SHA256SUMS and the signature, and with `packages` where upstream
    /// has none (promise 5).
    ///
    /// # Errors
    /// A serialization error, which no parsed document can cause.
    pub fn rendered(&self, urls: [String; 3], packages: Option<&Packages>) -> serde_json::Result<Vec<u8>> {
        let mut fields = self.fields.clone();
        if let Some(packages) = packages.filter(|_| !self.has_packages()) {
            fields.insert(PACKAGES.to_owned(), to_raw_value(packages)?);
        }
        let names = ["download_url", "shasums_url", "shasums_signature_url"];
        for (name, url) in names.into_iter().zip(urls) {
            if name == "shasums_signature_url" && self.signature_url.is_none() {
                // A document without a signature stays without one.
                continue;
            }
            if let Some(field) = fields.get_mut(name) {
                *field = to_raw_value(&url)?;
            }
        }
        serde_json::to_vec(&fields)
    }

    /// True if upstream sends the hashes of all platforms itself. Clients read a member in any case.
    pub fn has_packages(&self) -> bool {
        self.fields.keys().any(|name| client_json::is_same_name(PACKAGES, name))
    }

    /// The hashes of all platforms, where upstream sends them.
    pub fn hashes_in_packages(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct PackageJson {
            #[serde(default)]
            hashes: Vec<String>,
        }
        let packages = self.fields.get(PACKAGES).map(|raw| serde_json::from_str(raw.get()));
        let packages: HashMap<String, PackageJson> = packages.and_then(Result::ok).unwrap_or_default();
        packages.into_values().flat_map(|package| package.hashes).collect()
    }

    /// True if the document spells the digest of its archive as lock files do.
    pub fn spells_shasum_in_lower_case(&self) -> bool {
        let spelled = self.fields.get("shasum").map(|raw| serde_json::from_str::<String>(raw.get()));
        spelled.is_some_and(|spelled| spelled.is_ok_and(|spelled| spelled == self.shasum.to_string()))
    }

    /// The size of the archive in bytes, if the document announces it (OpenTofu registry).
    pub fn announced_size(&self, platform: &Platform) -> Option<u64> {
        #[derive(Deserialize)]
        struct PackageJson {
            package_size: u64,
        }
        let packages: HashMap<String, &RawValue> = serde_json::from_str(self.fields.get(PACKAGES)?.get()).ok()?;
        let PackageJson { package_size } = serde_json::from_str(packages.get(&platform.to_string())?.get()).ok()?;
        Some(package_size)
    }
}

/// The longest name of an archive with its folders, in bytes.
const MAX_NAME_IN_SUMS_BYTES: usize = 512;

/// The file name of an archive: clients compare the whole name with SHA256SUMS, and use it for nothing else.
fn file_name(name_in_sums: &str) -> Result<FileName, String> {
    let is_one_field = !name_in_sums.contains(|c: char| c.is_control() || c.is_whitespace());
    if name_in_sums.len() > MAX_NAME_IN_SUMS_BYTES || !is_one_field {
        return Err(
            FileName::parse(name_in_sums).map_or_else(|e| e.to_string(), |_| "its filename is too long".to_owned())
        );
    }
    FileName::parse(name_in_sums.rsplit('/').next().unwrap_or(name_in_sums)).map_err(|e| e.to_string())
}

pub(super) fn parse_object(body: &[u8], read_members: &[&str]) -> Result<RawObject, String> {
    client_json::object(body, read_members).map_err(|e| format!("it is not a JSON object: {e}"))
}

/// Removes and parses the member `versions`, if there is one.
pub(super) fn take_versions(members: &mut RawObject) -> Result<Option<Vec<Box<RawValue>>>, String> {
    let parse = |raw: Box<RawValue>| serde_json::from_str(raw.get());
    let versions = members.shift_remove("versions").map(parse).transpose();
    versions.map_err(|e| format!("its \"versions\" are no list: {e}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_drops_entries_that_clients_cannot_parse() {
        let body = br#"{"warnings":["old"],"versions":[{"version":"1.2","x":1e400,"platforms":[{"os":"linux","arch":"amd64","y":1e400},7]},{"version":"v1.3.0"},{"version":"1.2.0"},7,{}],"z":null}"#;
        let list = VersionList::parse(body).unwrap();
        let versions: Vec<_> =
            list.versions.iter().map(|v| (v.version.to_string(), v.upstream_spelling.clone())).collect();
        assert_eq!(versions, [("1.2.0".to_owned(), "1.2".to_owned())]);
        assert_eq!(list.unreadable.iter().map(|entry| &*entry.upstream_spelling).collect::<Vec<_>>(), ["v1.3.0"]);
        assert_eq!(
            list.versions[0].raw.get(),
            r#"{"version":"1.2","x":1e400,"platforms":[{"os":"linux","arch":"amd64","y":1e400},7]}"#
        );
        assert_eq!(list.versions[0].platforms(), [Platform::parse("linux_amd64").unwrap()]);
        assert_eq!(list.other_members.keys().collect::<Vec<_>>(), ["warnings", "z"]);
        for body in
            ["[]", "{}", "{\"versions\":{}}", "{\"versions\":null}", "{\"versions\":[{\"version\":1}]}", "", "<html>"]
        {
            assert!(VersionList::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    /// Clients match member names in any case and use the last match. What they would read from the document that larder
    /// writes is what larder read.
    #[test]
    fn a_document_with_members_in_other_cases_is_read_and_written_as_clients_read_it() {
        let url = Url::parse("https://registry.example/x").unwrap();
        let platform = Platform::parse("linux_amd64").unwrap();
        let (shasum, other) = (Digest::of(b"zip"), Digest::of(b"other"));
        let body = format!(
            r#"{{"OS":"linux","arch":"amd64","filename":"f.zip","shasum":"{other}","download_url":"a","shaſums_url":"s","SHASUM":"{shasum}","Download_URL":"b","x":1e400}} trailing"#
        );
        let document = DownloadDocument::parse(body.as_bytes(), &url, &platform).unwrap();
        assert_eq!((document.shasum, document.archive_url.path()), (shasum, "/b"));
        let written = document.rendered(["1", "2", "3"].map(str::to_owned), None).unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            format!(
                r#"{{"os":"linux","arch":"amd64","filename":"f.zip","shasum":"{shasum}","download_url":"1","shasums_url":"2","x":1e400}}"#
            )
        );
    }

    #[test]
    fn packages_are_seen_in_any_case_and_a_digest_in_upper_case_too() {
        let document = |shasum: &str, member: &str| {
            let body = format!(
                r#"{{"os":"linux","arch":"amd64","filename":"f.zip","shasum":"{shasum}","download_url":"/f","shasums_url":"/s"{member}}}"#
            );
            let url = Url::parse("https://registry.example/").unwrap();
            DownloadDocument::parse(body.as_bytes(), &url, &Platform::parse("linux_amd64").unwrap()).unwrap()
        };
        let lower = Digest::of(b"a").to_string();
        assert!(document(&lower, "").spells_shasum_in_lower_case() && !document(&lower, "").has_packages());
        assert!(!document(&lower.to_uppercase(), "").spells_shasum_in_lower_case());
        for member in [r#","packages":null"#, r#","Packages":{}"#, ",\"pac\u{212a}ages\":1"] {
            assert!(document(&lower, member).has_packages(), "{member}");
        }
    }

    fn any_entry() -> impl Strategy<Value = String> {
        let version = "\"v?[01](\\.0){0,3}(-[a-z0-9.]{1,4})?\"|[0-9]|null";
        let more_members = prop_oneof![
            Just(""),
            Just(r#","x":1e400"#),
            Just(r#","platforms":null"#),
            Just(r#", "platforms": [{"os":"linux","arch":"amd64"},7]"#)
        ];
        (version, more_members).prop_map(|(version, more_members)| format!(r#"{{"version":{version}{more_members}}}"#))
    }

    proptest! {
        #[test]
        fn list_entries_stay_verbatim(entries in prop::collection::vec(any_entry(), 0..8), other in "[a-z]{1,8}") {
            let body = format!(r#"{{"{other}":1e400,"versions":[{}]}}"#, entries.join(","));
            if let Ok(list) = VersionList::parse(body.as_bytes()) {
                let mut versions = HashSet::new();
                for listed in &list.versions {
                    prop_assert!(entries.iter().any(|entry| entry == listed.raw.get()));
                    prop_assert_eq!(Version::parse(&listed.upstream_spelling), Ok(listed.version.clone()));
                    prop_assert!(versions.insert(&listed.version));
                }
                prop_assert_eq!(list.other_members[&other].get(), "1e400");
                let named = versions.into_iter().cloned().collect();
                prop_assert_eq!(VersionList::named(Service::Providers, body.as_bytes()), Ok(named));
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(body in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,200}") {
            let url = Url::parse("https://registry.example/x").unwrap();
            let platform = Platform::parse("linux_amd64").unwrap();
            for body in [&body, text.as_bytes()] {
                let named = VersionList::named(Service::Providers, body);
                if let Ok(list) = VersionList::parse(body) {
                    prop_assert_eq!(named, Ok(list.versions.into_iter().map(|listed| listed.version).collect()));
                }
            }
            let _ = DownloadDocument::parse(&body, &url, &platform);
            let _ = super::super::discovery::Discovery::parse(text.as_bytes(), url);
        }
    }
}
