//! Parses `providers.v1` (PROTOCOL 2). Upstream JSON is preserved verbatim, so that unknown fields survive.

use std::collections::HashMap;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use url::Url;

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

/// The URL of a download document. `spelled` is the version as the upstream's own list spells it.
pub fn download_url(
    base: &Url,
    address: &ProviderAddress,
    spelled: &str,
    platform: &Platform,
) -> Result<Url, url::ParseError> {
    let Platform { os, arch } = platform;
    base.join(&format!("{}/{}/{spelled}/download/{os}/{arch}", address.namespace, address.type_))
}

/// A provider's version list.
#[derive(Debug, Clone)]
pub struct VersionList {
    /// The entries with a valid version, in upstream's order.
    pub versions: Vec<ListedVersion>,
    /// Every other member of the document.
    pub rest: RawObject,
}

/// One entry of a version list.
#[derive(Debug, Clone)]
pub struct ListedVersion {
    /// The version as clients request it.
    pub version: Version,
    /// The version as upstream spells it, for requests to upstream.
    pub spelled: String,
    /// Listed platforms; empty if the list has none.
    pub platforms: Vec<Platform>,
    /// The entry as upstream wrote it.
    pub raw: Box<RawValue>,
}

impl VersionList {
    /// Parses a list. Drops entries with an invalid version, because clients would reject the whole list for one of
    /// them (PROTOCOL 2.2). Of versions that clients treat as equal, the first counts.
    ///
    /// # Errors
    /// The reason why the document is not a version list.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let mut rest: RawObject = serde_json::from_slice(body).map_err(|e| format!("it is not a JSON object: {e}"))?;
        let listed = rest.shift_remove("versions").ok_or("it has no \"versions\"")?;
        refuse_other_spellings(&rest, &["versions"])?;
        let listed: Vec<Box<RawValue>> =
            serde_json::from_str(listed.get()).map_err(|e| format!("its \"versions\" are no list: {e}"))?;
        let mut list = Self { versions: Vec::new(), rest };
        let number = listed.len();
        if number > MAX_VERSIONS {
            return Err(format!("it lists {number} versions; at most {MAX_VERSIONS} are read"));
        }
        list.add(listed);
        if number > 0 && list.versions.is_empty() {
            return Err(format!("none of its {number} versions is one that a client could read"));
        }
        Ok(list)
    }

    /// Adds entries for versions that the list does not contain.
    pub fn add(&mut self, entries: Vec<Box<RawValue>>) {
        let mut known: std::collections::HashSet<Version> = self.versions.iter().map(|v| v.version.clone()).collect();
        for listed in entries.into_iter().filter_map(ListedVersion::read) {
            if known.insert(listed.version.clone()) {
                self.versions.push(listed);
            }
        }
    }

    /// The entry of a version.
    pub fn get(&self, version: &Version) -> Option<&ListedVersion> {
        self.versions.iter().find(|listed| listed.version == *version)
    }
}

impl ListedVersion {
    fn read(raw: Box<RawValue>) -> Option<Self> {
        #[derive(Deserialize)]
        struct VersionJson {
            version: String,
            #[serde(default)]
            platforms: Option<Box<RawValue>>,
        }
        #[derive(Deserialize)]
        struct Listed {
            os: String,
            arch: String,
        }
        let entry: VersionJson = serde_json::from_str(raw.get()).ok()?;
        let version = Version::parse(&entry.version).ok()?;
        let platform = |raw: Box<RawValue>| {
            let Listed { os, arch } = serde_json::from_str(raw.get()).ok()?;
            Platform::new(&os, &arch).ok()
        };
        let platforms: Option<Vec<Box<RawValue>>> =
            entry.platforms.and_then(|raw| serde_json::from_str(raw.get()).ok());
        let platforms: Option<Vec<Platform>> = platforms.map(|all| all.into_iter().filter_map(platform).collect());
        Some(Self { version, spelled: entry.version, platforms: platforms.unwrap_or_default(), raw })
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
struct Fields {
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

/// The members that [`Fields`] reads.
const MEMBERS: [&str; 8] =
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
    /// The reason why clients cannot use it (PROTOCOL 2.3).
    pub fn parse(body: &[u8], url: &Url, platform: &Platform) -> Result<Self, String> {
        let fields: Fields = serde_json::from_slice(body).map_err(|e| format!("its download document: {e}"))?;
        let members: RawObject = serde_json::from_slice(body).map_err(|e| format!("its download document: {e}"))?;
        refuse_other_spellings(&members, &MEMBERS)?;
        if fields.os != platform.os || fields.arch != platform.arch {
            return Err(format!("its download document is for {}_{} and not for {platform}", fields.os, fields.arch));
        }
        let file = |name: &str, reference: &str| {
            let resolved = url.join(reference).map_err(|e| format!("its {name} is not a URL: {e}"))?;
            match resolved.scheme() {
                _ if reference.is_empty() => Err(format!("its {name} is empty")),
                "http" | "https" => Ok(resolved),
                other => Err(format!("its {name} must be http or https, and is {other}")),
            }
        };
        let signature = fields.shasums_signature_url.as_deref().filter(|reference| !reference.is_empty());
        let keys = fields.signing_keys.and_then(|keys| keys.gpg_public_keys).unwrap_or_default();
        Ok(Self {
            filename: FileName::parse(&fields.filename).map_err(|e| e.to_string())?,
            shasum: Digest::parse(&fields.shasum).map_err(|e| format!("its shasum: {e}"))?,
            archive_url: file("download_url", &fields.download_url)?,
            sums_url: file("shasums_url", &fields.shasums_url)?,
            signature_url: signature.map(|reference| file("shasums_signature_url", reference)).transpose()?,
            keys: keys.into_iter().map(|key| key.ascii_armor).filter(|armor| !armor.is_empty()).collect(),
            fields: members,
        })
    }

    /// Renders the document with other URLs for the archive, SHA256SUMS and the signature (DESIGN, promise 5).
    ///
    /// # Errors
    /// A serialization error, which no document can cause.
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
}

impl DownloadDocument {
    /// The size of the archive in bytes, if the document announces it (PROTOCOL 6.1).
    pub fn announced_size(&self, platform: &Platform) -> Option<u64> {
        #[derive(Deserialize)]
        struct Sized {
            package_size: u64,
        }
        let packages: HashMap<String, &RawValue> = serde_json::from_str(self.fields.get("packages")?.get()).ok()?;
        let Sized { package_size } = serde_json::from_str(packages.get(&platform.to_string())?.get()).ok()?;
        Some(package_size)
    }
}

/// Refuses a second spelling of a member that larder reads. Clients match member names in any case and take the last of
/// several. Such a document would mean something else to them, and could lead them past larder.
pub(super) fn refuse_other_spellings(members: &RawObject, known: &[&str]) -> Result<(), String> {
    let is_known_but_for_its_case =
        |name: &&String| !known.contains(&name.as_str()) && known.iter().any(|known| folded(known).eq(folded(name)));
    match members.keys().find(is_known_but_for_its_case) {
        Some(name) => Err(format!("its {name:?} is another spelling of a member that clients read")),
        None => Ok(()),
    }
}

/// Folds a name at least as widely as the clients do. Lower case followed by upper case also covers their folding of
/// the Kelvin sign to K and of the long s to S.
fn folded(name: &str) -> impl Iterator<Item = char> {
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
        let spelled: Vec<_> = list.versions.iter().map(|v| (v.version.to_string(), v.spelled.clone())).collect();
        assert_eq!(spelled, [("1.2.0".to_owned(), "1.2".to_owned())]);
        assert_eq!(
            list.versions[0].raw.get(),
            r#"{"version":"1.2","x":1e400,"platforms":[{"os":"linux","arch":"amd64","y":1e400},7]}"#
        );
        assert_eq!(list.versions[0].platforms, [Platform::parse("linux_amd64").unwrap()]);
        assert_eq!(list.rest.keys().collect::<Vec<_>>(), ["warnings", "z"]);
        for body in
            ["[]", "{}", "{\"versions\":{}}", "{\"versions\":null}", "{\"versions\":[{\"version\":1}]}", "", "<html>"]
        {
            assert!(VersionList::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    /// Clients match member names in any case and take the last. Larder must read the same members as they do.
    #[test]
    fn a_second_spelling_of_a_member_is_refused() {
        let url = Url::parse("https://registry.example/x").unwrap();
        let platform = Platform::parse("linux_amd64").unwrap();
        let document = |more: &str| {
            let shasum = Digest::of(b"zip");
            let body = format!(
                r#"{{"os":"linux","arch":"amd64","filename":"f.zip","shasum":"{shasum}","download_url":"f.zip","shasums_url":"s"{more}}}"#
            );
            DownloadDocument::parse(body.as_bytes(), &url, &platform)
        };
        assert!(document(r#","Download URL":"x","Protocols":[]"#).is_ok());
        for name in ["Download_URL", "SHASUM", "ſhaſums_url", "shasums_signature_Url", "Os", "Signing_Keys"] {
            let refused = document(&format!(r#","{name}":"x""#)).unwrap_err();
            assert!(refused.contains("another spelling"), "{refused}");
        }
        let list = |name: &str| VersionList::parse(format!(r#"{{"versions":[],"{name}":[]}}"#).as_bytes());
        assert!(list("version").is_ok());
        for name in ["Versions", "VERSIONS", "verſions"] {
            assert!(list(name).unwrap_err().contains("another spelling"), "{name}");
        }
    }

    fn any_entry() -> impl Strategy<Value = String> {
        let version = "\"v?[01](\\.0){0,3}(-[a-z0-9.]{1,4})?\"|[0-9]|null";
        let more = prop_oneof![
            Just(""),
            Just(r#","x":1e400"#),
            Just(r#","platforms":null"#),
            Just(r#", "platforms": [{"os":"linux","arch":"amd64"},7]"#)
        ];
        (version, more).prop_map(|(version, more)| format!(r#"{{"version":{version}{more}}}"#))
    }

    proptest! {
        #[test]
        fn list_entries_stay_verbatim(entries in prop::collection::vec(any_entry(), 0..8), rest in "[a-z]{1,8}") {
            let body = format!(r#"{{"{rest}":1e400,"versions":[{}]}}"#, entries.join(","));
            if let Ok(list) = VersionList::parse(body.as_bytes()) {
                let mut seen = std::collections::HashSet::new();
                for listed in &list.versions {
                    prop_assert!(entries.iter().any(|entry| entry == listed.raw.get()));
                    prop_assert_eq!(Version::parse(&listed.spelled), Ok(listed.version.clone()));
                    prop_assert!(seen.insert(&listed.version));
                }
                prop_assert_eq!(list.rest[&rest].get(), "1e400");
            }
        }

        #[test]
        fn foreign_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,200}") {
            let url = Url::parse("https://registry.example/x").unwrap();
            let platform = Platform::parse("linux_amd64").unwrap();
            let _ = VersionList::parse(&body);
            let _ = VersionList::parse(text.as_bytes());
            let _ = DownloadDocument::parse(&body, &url, &platform);
            let _ = super::super::discovery::Discovery::parse(text.as_bytes(), url);
        }
    }
}
