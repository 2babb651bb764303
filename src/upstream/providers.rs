//! Parses `providers.v1` (provider registry protocol). Upstream JSON is preserved verbatim, so that unknown fields
//! survive.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use url::Url;

use super::discovery::Service;
use crate::address::{FileName, Platform, ProviderAddress, Version};
use crate::digest::Digest;

/// A JSON object whose members are preserved verbatim.
pub type RawObject = IndexMap<String, Box<RawValue>>;

/// Limit for the number of versions in the list of a provider or a module.
pub const MAX_VERSIONS: usize = 20_000;

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
    /// The platforms of the version; empty if the entry lists none, and for a module.
    pub platforms: Vec<Platform>,
    /// The entry as upstream wrote it.
    pub raw: Box<RawValue>,
}

impl VersionList {
    /// A list of no versions.
    pub fn empty(service: Service) -> Self {
        let (module_members, other_members) = (RawObject::new(), RawObject::new());
        Self { service, versions: Vec::new(), unreadable: Vec::new(), module_members, other_members }
    }

    /// Parses a provider's list (provider registry protocol). Of versions that clients treat as equal, the first is used.
    ///
    /// # Errors
    /// The reason why the document is not a version list.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let mut other_members = parse_object(body)?;
        let entries = take_versions(&mut other_members)?.ok_or("it has no \"versions\"")?;
        Self { other_members, ..Self::empty(Service::Providers) }.with_entries(entries)
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
        #[derive(Deserialize)]
        struct VersionJson {
            version: String,
            #[serde(default)]
            platforms: Option<Box<RawValue>>,
        }
        #[derive(Deserialize)]
        struct PlatformJson {
            os: String,
            arch: String,
        }
        let read_members: &[&str] = match service {
            Service::Providers => &["version", "platforms"],
            Service::Modules => &["version"],
        };
        reject_case_variants(&serde_json::from_str(raw.get()).ok()?, read_members).ok()?;
        let mut entry: VersionJson = serde_json::from_str(raw.get()).ok()?;
        let version = match service {
            Service::Providers => Version::parse(&entry.version),
            Service::Modules => {
                entry.platforms = None;
                Version::parse_of_module(&entry.version)
            }
        };
        let Ok(version) = version else {
            return Some(Err(UnreadableVersion { upstream_spelling: entry.version, raw }));
        };
        let parse_platform = |raw: Box<RawValue>| {
            let PlatformJson { os, arch } = serde_json::from_str(raw.get()).ok()?;
            Platform::new(&os, &arch).ok()
        };
        let platforms: Option<Vec<Box<RawValue>>> =
            entry.platforms.and_then(|raw| serde_json::from_str(raw.get()).ok());
        let platforms = platforms.unwrap_or_default().into_iter().filter_map(parse_platform).collect();
        Some(Ok(Self { version, upstream_spelling: entry.version, platforms, raw }))
    }
}

/// A download document: the archive of one version and platform, and the URLs of its three files.
#[derive(Debug, Clone)]
pub struct DownloadDocument {
    /// The document's members, as upstream wrote them.
    pub fields: RawObject,
    /// The archive's file name in SHA256SUMS.
    pub filename: FileName,
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
        let parsed: DownloadJson = serde_json::from_slice(body).map_err(|e| format!("its download document: {e}"))?;
        let members: RawObject = serde_json::from_slice(body).map_err(|e| format!("its download document: {e}"))?;
        reject_case_variants(&members, &READ_MEMBERS)?;
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
            filename: FileName::parse(&parsed.filename).map_err(|e| e.to_string())?,
            shasum: Digest::parse(&parsed.shasum).map_err(|e| format!("its shasum: {e}"))?,
            archive_url: resolve_url("download_url", &parsed.download_url)?,
            sums_url: resolve_url("shasums_url", &parsed.shasums_url)?,
            signature_url: signature_url.transpose()?,
            keys: keys.into_iter().map(|key| key.ascii_armor).filter(|armor| !armor.is_empty()).collect(),
            fields: members,
        })
    }

    /// Renders the document with these URLs for the archive, SHA256SUMS and the signature (promise 5).
    ///
    /// # Errors
    /// A serialization error, which no parsed document can cause.
    pub fn with_urls(&self, urls: [String; 3]) -> serde_json::Result<Vec<u8>> {
        let mut fields = self.fields.clone();
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

    /// The size of the archive in bytes, if the document announces it (OpenTofu registry).
    pub fn announced_size(&self, platform: &Platform) -> Option<u64> {
        #[derive(Deserialize)]
        struct PackageJson {
            package_size: u64,
        }
        let packages: HashMap<String, &RawValue> = serde_json::from_str(self.fields.get("packages")?.get()).ok()?;
        let PackageJson { package_size } = serde_json::from_str(packages.get(&platform.to_string())?.get()).ok()?;
        Some(package_size)
    }
}

pub(super) fn parse_object(body: &[u8]) -> Result<RawObject, String> {
    serde_json::from_slice(body).map_err(|e| format!("it is not a JSON object: {e}"))
}

/// Removes and parses the member `versions`, if there is one.
pub(super) fn take_versions(members: &mut RawObject) -> Result<Option<Vec<Box<RawValue>>>, String> {
    let versions = members.shift_remove("versions");
    reject_case_variants(members, &["versions"])?;
    let parse = |raw: Box<RawValue>| serde_json::from_str(raw.get());
    versions.map(parse).transpose().map_err(|e| format!("its \"versions\" are no list: {e}"))
}

/// Rejects members whose names differ only in case from one of `read_members`, which larder reads. Clients match member
/// names in any case and use the last match. A document with such a variant would mean something else to clients than to
/// larder, and could lead them to URLs outside of larder.
pub(super) fn reject_case_variants(members: &RawObject, read_members: &[&str]) -> Result<(), String> {
    let is_case_variant = |name: &&String| {
        !read_members.contains(&name.as_str())
            && read_members.iter().any(|read| case_folded(read).eq(case_folded(name)))
    };
    match members.keys().find(is_case_variant) {
        Some(name) => Err(format!("its {name:?} is another spelling of a member that clients read")),
        None => Ok(()),
    }
}

/// Folds the case of a name at least as widely as the clients do. They also fold the Kelvin sign to K and the long s to
/// S, which lower case followed by upper case covers.
fn case_folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase)
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
        assert_eq!(list.versions[0].platforms, [Platform::parse("linux_amd64").unwrap()]);
        assert_eq!(list.other_members.keys().collect::<Vec<_>>(), ["warnings", "z"]);
        for body in
            ["[]", "{}", "{\"versions\":{}}", "{\"versions\":null}", "{\"versions\":[{\"version\":1}]}", "", "<html>"]
        {
            assert!(VersionList::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    /// Clients match member names in any case and use the last match. Larder must read the same members as they do.
    #[test]
    fn a_case_variant_of_a_member_is_rejected() {
        let url = Url::parse("https://registry.example/x").unwrap();
        let platform = Platform::parse("linux_amd64").unwrap();
        let document = |more_members: &str| {
            let shasum = Digest::of(b"zip");
            let body = format!(
                r#"{{"os":"linux","arch":"amd64","filename":"f.zip","shasum":"{shasum}","download_url":"f.zip","shasums_url":"s"{more_members}}}"#
            );
            DownloadDocument::parse(body.as_bytes(), &url, &platform)
        };
        assert!(document(r#","Download URL":"x","Protocols":[]"#).is_ok());
        for name in ["Download_URL", "SHASUM", "ſhaſums_url", "shasums_signature_Url", "Os", "Signing_Keys"] {
            let error = document(&format!(r#","{name}":"x""#)).unwrap_err();
            assert!(error.contains("another spelling"), "{error}");
        }
        let list = |name: &str| VersionList::parse(format!(r#"{{"versions":[],"{name}":[]}}"#).as_bytes());
        assert!(list("version").is_ok());
        for name in ["Versions", "VERSIONS", "verſions"] {
            assert!(list(name).unwrap_err().contains("another spelling"), "{name}");
        }
    }

    /// Clients would read version 9.9.9, or no platforms, from these entries.
    #[test]
    fn an_entry_with_a_case_variant_of_a_member_is_dropped() {
        let body = br#"{"versions":[{"version":"1.0.0","Version":"9.9.9"},{"version":"1.1.0","platforms":[],"PlatformS":null},{"version":"2.0.0","x":1}]}"#;
        let list = VersionList::parse(body).unwrap();
        assert_eq!(list.versions.iter().map(|v| v.version.as_str()).collect::<Vec<_>>(), ["2.0.0"]);
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
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(body in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,200}") {
            let url = Url::parse("https://registry.example/x").unwrap();
            let platform = Platform::parse("linux_amd64").unwrap();
            let _ = VersionList::parse(&body);
            let _ = VersionList::parse(text.as_bytes());
            let _ = DownloadDocument::parse(&body, &url, &platform);
            let _ = super::super::discovery::Discovery::parse(text.as_bytes(), url);
        }
    }
}
