//! Parses `modules.v1`: versions and locations (PROTOCOL 4). Upstream JSON is preserved verbatim, so that unknown
//! fields survive.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use url::Url;

use super::providers::{MAX_VERSIONS, RawObject, refuse_other_spellings};
use crate::address::{ModuleAddress, Version};

/// The URL of a module's version list, in the requested spelling.
pub fn versions_url(base: &Url, address: &ModuleAddress) -> Result<Url, url::ParseError> {
    base.join(&format!("{}/versions", below(address)))
}

/// The location URL of a module version. `spelled` is the version as the upstream's own list spells it.
pub fn download_url(base: &Url, address: &ModuleAddress, spelled: &str) -> Result<Url, url::ParseError> {
    base.join(&format!("{}/{spelled}/download", below(address)))
}

fn below(ModuleAddress { namespace, name, system, .. }: &ModuleAddress) -> String {
    format!("{namespace}/{name}/{system}")
}

/// A module's version list: the first module of the document, because clients read no other (PROTOCOL 4.2).
#[derive(Debug, Clone)]
pub struct ModuleVersionList {
    /// The entries with a valid version, in upstream's order.
    pub versions: Vec<ListedModuleVersion>,
    /// Every other member of the module.
    pub module: RawObject,
    /// Every other member of the document.
    pub rest: RawObject,
}

/// One entry of a module's version list.
#[derive(Debug, Clone)]
pub struct ListedModuleVersion {
    /// The version as clients request it.
    pub version: Version,
    /// The version as upstream spells it, for requests to upstream.
    pub spelled: String,
    /// The entry as upstream wrote it.
    pub raw: Box<RawValue>,
}

impl ModuleVersionList {
    /// Parses a list. Drops entries with an invalid version, because clients would warn about each. Of versions that
    /// clients treat as equal, the first counts.
    ///
    /// # Errors
    /// The reason why the document is not a version list.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let mut rest: RawObject = serde_json::from_slice(body).map_err(|e| format!("it is not a JSON object: {e}"))?;
        let modules = rest.shift_remove("modules").ok_or("it has no \"modules\"")?;
        refuse_other_spellings(&rest, &["modules"])?;
        let modules: Vec<RawObject> =
            serde_json::from_str(modules.get()).map_err(|e| format!("its \"modules\" are no list of objects: {e}"))?;
        let mut module = modules.into_iter().next().ok_or("its \"modules\" are empty")?;
        let listed: Vec<Box<RawValue>> = match module.shift_remove("versions") {
            None => Vec::new(),
            Some(listed) => {
                serde_json::from_str(listed.get()).map_err(|e| format!("its \"versions\" are no list: {e}"))?
            }
        };
        refuse_other_spellings(&module, &["versions"])?;
        let mut list = Self { versions: Vec::new(), module, rest };
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
        let mut known: HashSet<Version> = self.versions.iter().map(|listed| listed.version.clone()).collect();
        for listed in entries.into_iter().filter_map(ListedModuleVersion::read) {
            if known.insert(listed.version.clone()) {
                self.versions.push(listed);
            }
        }
    }

    /// The entry of a version.
    pub fn get(&self, version: &Version) -> Option<&ListedModuleVersion> {
        self.versions.iter().find(|listed| listed.version == *version)
    }
}

impl ListedModuleVersion {
    fn read(raw: Box<RawValue>) -> Option<Self> {
        #[derive(Deserialize)]
        struct ModuleVersionJson {
            version: String,
        }
        let ModuleVersionJson { version: spelled } = serde_json::from_str(raw.get()).ok()?;
        let version = Version::parse_lenient(&spelled).ok()?;
        Some(Self { version, spelled, raw })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_drops_unparsable_entries_and_keeps_upstreams_spelling() {
        let body = br#"{"meta":1e400,"modules":[{"source":"a/b/c","versions":[{"version":"v1.0","root":{"x":1e400}},{"version":"1.0.0"},{"version":"x"},{"version":"2.0.0-rc.1"},7]},{"versions":[{"version":"9.0.0"}]}]}"#;
        let list = ModuleVersionList::parse(body).unwrap();
        let spelled: Vec<_> = list.versions.iter().map(|v| (v.version.as_str(), v.spelled.as_str())).collect();
        assert_eq!(spelled, [("1.0.0", "v1.0"), ("2.0.0-rc.1", "2.0.0-rc.1")]);
        assert_eq!(list.versions[0].raw.get(), r#"{"version":"v1.0","root":{"x":1e400}}"#);
        assert_eq!((list.rest["meta"].get(), list.module["source"].get()), ("1e400", r#""a/b/c""#));
        for body in [
            "[]",
            "{}",
            r#"{"modules":[]}"#,
            r#"{"modules":{}}"#,
            r#"{"modules":[7]}"#,
            r#"{"modules":[{"versions":[{"version":"x"}]}]}"#,
            r#"{"modules":[{}],"Modules":[]}"#,
            "",
        ] {
            assert!(ModuleVersionList::parse(body.as_bytes()).is_err(), "{body}");
        }
        assert_eq!(ModuleVersionList::parse(br#"{"modules":[{}]}"#).unwrap().versions.len(), 0);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,100}") {
            let _ = ModuleVersionList::parse(&body);
            let _ = ModuleVersionList::parse(text.as_bytes());
        }
    }
}
