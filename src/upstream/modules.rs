//! Parses `modules.v1`: version lists and location URLs (module registry protocol). Upstream JSON is preserved
//! verbatim, so that unknown fields survive.

use serde_json::value::RawValue;
use url::Url;

use super::client_json;
use super::discovery::Service;
use super::providers::{VersionList, parse_object, take_versions};
use crate::address::ModuleAddress;

/// The URL of a module's version list. The address keeps the case of the request.
pub fn versions_url(base: &Url, address: &ModuleAddress) -> Result<Url, url::ParseError> {
    base.join(&format!("{}/versions", path_below_base(address)))
}

/// The location URL of a module version. `upstream_spelling` is the version as the upstream's list spells it.
pub fn download_url(base: &Url, address: &ModuleAddress, upstream_spelling: &str) -> Result<Url, url::ParseError> {
    base.join(&format!("{}/{upstream_spelling}/download", path_below_base(address)))
}

fn path_below_base(ModuleAddress { namespace, name, system, .. }: &ModuleAddress) -> String {
    format!("{namespace}/{name}/{system}")
}

impl VersionList {
    /// Parses a module's list (module registry protocol). Of versions that clients treat as equal, the first is used.
    ///
    /// # Errors
    /// The reason why the document is not a version list.
    pub fn parse_of_module(body: &[u8]) -> Result<Self, String> {
        let mut other_members = parse_object(body, &["modules"])?;
        let modules = other_members.shift_remove("modules").ok_or("it has no \"modules\"")?;
        let not_listed = |e: serde_json::Error| format!("its \"modules\" are no list of objects: {e}");
        let modules: Vec<&RawValue> = serde_json::from_str(modules.get()).map_err(not_listed)?;
        let module = modules.first().ok_or("its \"modules\" are empty")?;
        let mut module_members = client_json::members(module.get(), &["versions"]).map_err(not_listed)?;
        let entries = take_versions(&mut module_members)?.unwrap_or_default();
        Self { module_members, other_members, ..Self::empty(Service::Modules) }.with_entries(entries)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_keeps_upstreams_spelling_and_the_entries_that_cannot_be_read() {
        let body = br#"{"meta":1e400,"modules":[{"source":"a/b/c","versions":[{"version":"v1.0","root":{"x":1e400}},{"version":"1.0.0"},{"version":"x"},{"version":"2.0.0-rc.1"},{"version":"1.2.4.1"},7]},{"versions":[{"version":"9.0.0"}]}]}"#;
        let list = VersionList::parse_of_module(body).unwrap();
        let versions: Vec<_> =
            list.versions.iter().map(|v| (v.version.as_str(), v.upstream_spelling.as_str())).collect();
        assert_eq!(versions, [("1.0.0", "v1.0"), ("2.0.0-rc.1", "2.0.0-rc.1"), ("1.2.4.1", "1.2.4.1")]);
        let unreadable: Vec<_> = list.unreadable.iter().map(|entry| entry.raw.get()).collect();
        assert_eq!(unreadable, [r#"{"version":"x"}"#]);
        assert_eq!(list.versions[0].raw.get(), r#"{"version":"v1.0","root":{"x":1e400}}"#);
        assert_eq!((list.other_members["meta"].get(), list.module_members["source"].get()), ("1e400", r#""a/b/c""#));
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
            assert!(VersionList::parse_of_module(body.as_bytes()).is_err(), "{body}");
        }
        assert_eq!(VersionList::parse_of_module(br#"{"modules":[{}]}"#).unwrap().versions.len(), 0);
    }

    /// Clients would choose such a version, and larder has no URL for it.
    #[test]
    fn a_version_that_is_too_long_for_larder_is_dropped() {
        let long = format!("9.9.9+{}", "x".repeat(100));
        let body = format!(r#"{{"modules":[{{"versions":[{{"version":"{long}"}},{{"version":"1.0.0"}}]}}]}}"#);
        let list = VersionList::parse_of_module(body.as_bytes()).unwrap();
        assert_eq!((list.versions.len(), list.unreadable.len()), (1, 0));
    }

    /// Clients read version 9.9.9 from the first entry, too.
    #[test]
    fn the_last_member_that_clients_take_for_the_version_counts() {
        let body =
            br#"{"modules":[{"versions":[{"version":"1.0.0","Version":"9.9.9"},{"version":"2.0.0","Root":{}}]}]}"#;
        let list = VersionList::parse_of_module(body).unwrap();
        assert_eq!(list.versions.iter().map(|v| v.version.as_str()).collect::<Vec<_>>(), ["9.9.9", "2.0.0"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(body in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,100}") {
            let _ = VersionList::parse_of_module(&body);
            let _ = VersionList::parse_of_module(text.as_bytes());
        }
    }
}
