//! The entries of a list, reduced to what the policies allow: an entry shows the newest permitted version, or is dropped. So is
//! one that cannot be judged.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::{RawValue, Value};

use super::{Edit, with_edits};
use crate::address::{Address, Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System, Version};
use crate::upstream::discovery::Service;

/// The version to show in the entries of each address. Those of others are dropped.
pub(super) type ShownEntries = BTreeMap<Address, Version>;

/// The members of an entry, as the page writes them.
type Members<'a> = IndexMap<Cow<'a, str>, &'a RawValue>;

/// Members of an entry that describe its version, and cannot be said of another one.
const OF_THE_VERSION: [&str; 2] = ["published_at", "tag"];

/// An entry of a list.
struct Entry<'a> {
    raw: &'a RawValue,
    members: Members<'a>,
}

impl<'a> Entry<'a> {
    /// Reads an entry; `None` for what is no object.
    fn of(raw: &'a RawValue) -> Option<Self> {
        Some(Self { raw, members: serde_json::from_str(raw.get()).ok()? })
    }

    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        serde_json::from_str(self.members.get(name)?.get()).ok()
    }

    /// The provider or module; `None` for one that no client can ask for.
    fn address(&self, service: Service, host: &Hostname) -> Option<Address> {
        let (namespace, name, host) = (self.text("namespace")?, self.text("name")?, host.clone());
        Some(match service {
            Service::Modules => Address::Module(ModuleAddress {
                host,
                namespace: ModuleName::parse(&namespace).ok()?,
                name: ModuleName::parse(&name).ok()?,
                system: System::parse(&self.text("provider")?).ok()?,
            }),
            Service::Providers => Address::Provider(ProviderAddress {
                host,
                namespace: Name::parse(&namespace).ok()?,
                type_: Name::parse(&name).ok()?,
            }),
        })
    }

    fn version(&self) -> Option<Version> {
        Version::parse_of_module(&self.text("version")?).ok()
    }

    /// The entry with the version that is shown, everything else as upstream wrote it. A list of all versions names that one alone:
    /// nobody has judged the others.
    fn with_version(&self, shown: &Version) -> String {
        let all = self.members.get("versions").map(|all| Edit::new(all, vec![shown.as_str()]));
        if self.version().as_ref() == Some(shown) {
            return with_edits(self.raw.get(), all.as_slice());
        }
        let mut edits: Vec<Edit<'_>> = all.into_iter().collect();
        if let Some(version) = self.members.get("version") {
            edits.push(Edit::new(version, shown.as_str()));
        }
        // `NAMESPACE/NAME/VERSION` in the public registries; something else has nothing to change.
        let own = self.text("version").unwrap_or_default();
        if let (Some(raw), Some(id)) = (self.members.get("id"), self.text("id"))
            && let Some(address) = id.strip_suffix(&*own).filter(|address| address.ends_with('/'))
        {
            edits.push(Edit::new(raw, format!("{address}{shown}")));
        }
        edits.extend(OF_THE_VERSION.iter().filter_map(|name| Some(Edit::new(self.members.get(*name)?, Value::Null))));
        edits.sort_by_key(Edit::position);
        with_edits(self.raw.get(), &edits)
    }
}

/// The version that a details page is about; `None` if the page does not say.
pub(super) fn version_of_details(page: &Bytes) -> Option<Version> {
    #[derive(Deserialize)]
    struct Details<'a> {
        #[serde(borrow)]
        version: Cow<'a, str>,
    }
    Version::parse_of_module(&serde_json::from_slice::<Details<'_>>(page).ok()?.version).ok()
}

/// The list of a page, and its entries.
fn raw_entries<'a>(text: &'a str, service: Service) -> Option<(&'a RawValue, Vec<&'a RawValue>)> {
    let members: Members<'a> = serde_json::from_str(text).ok()?;
    let list = *members.get(match service {
        Service::Modules => "modules",
        Service::Providers => "providers",
    })?;
    Some((list, serde_json::from_str(list.get()).unwrap_or_default()))
}

/// The providers or modules of a list, each once, with the version that its first entry names.
pub(super) fn listed_entries(page: &Bytes, service: Service, host: &Hostname) -> BTreeMap<Address, Option<Version>> {
    let (_, entries) = raw_entries(std::str::from_utf8(page).unwrap_or_default(), service).unzip();
    let mut listed = BTreeMap::new();
    for entry in entries.unwrap_or_default().into_iter().filter_map(Entry::of) {
        if let Some(address) = entry.address(service, host) {
            listed.entry(address).or_insert_with(|| entry.version());
        }
    }
    listed
}

/// Reduces a list to the entries that are shown. Everything else stays as upstream wrote it, byte for byte.
///
/// # Errors
/// The reason why the page cannot be read.
pub(super) fn keep_entries(
    page: &Bytes,
    service: Service,
    host: &Hostname,
    shown: &ShownEntries,
) -> Result<Bytes, String> {
    let text = std::str::from_utf8(page).map_err(|e| e.to_string())?;
    let Some((list, entries)) = raw_entries(text, service) else { return Ok(page.clone()) };
    let show = |raw: &RawValue| -> Option<String> {
        let entry = Entry::of(raw)?;
        let version = shown.get(&entry.address(service, host)?)?;
        Some(entry.with_version(version))
    };
    let entries: Vec<String> = entries.into_iter().filter_map(show).collect();
    Ok(with_edits(text, &[Edit { original: list, replacement: format!("[{}]", entries.join(",")) }]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Hostname {
        Hostname::parse("registry.example").unwrap()
    }

    #[test]
    fn entries_show_the_newest_permitted_version_or_are_dropped() {
        let page = Bytes::from_static(
            br#"{ "meta":{"limit":2}, "modules": [ {"id":"a/x/aws/2.0.0","namespace":"a","name":"x","provider":"aws","version":"2.0.0","tag":"v2.0.0", "n":1e400},
              {"version" : "v1.0.0","namespace":"b","name":"x","provider":"aws"} ,{"namespace":"c"}, 7,
              {"id":7,"namespace":"a","name":"y","provider":"aws","version":"3.0.0","versions": ["2.0.0", "3.0.0"]},
              {"namespace":"bad","name":"x","provider":"aws"}, {"namespace":"a","name":"z","provider":"aws","version":"new"} ] }"#,
        );
        let listed: Vec<String> = listed_entries(&page, Service::Modules, &host())
            .into_iter()
            .map(|(address, version)| {
                format!("{} {}", address.path(), version.map_or("?".to_owned(), |version| version.to_string()))
            })
            .collect();
        assert_eq!(listed, ["a/x/aws 2.0.0", "a/y/aws 3.0.0", "a/z/aws ?", "b/x/aws 1.0.0", "bad/x/aws ?"]);
        let shown = |namespace: &str, name: &str, version: &str| {
            let [namespace, name] = [namespace, name].map(|name| ModuleName::parse(name).unwrap());
            let address = ModuleAddress { host: host(), namespace, name, system: System::parse("aws").unwrap() };
            (Address::Module(address), Version::parse(version).unwrap())
        };
        let shown = ShownEntries::from([shown("a", "x", "1.9.0"), shown("a", "y", "1.9.0"), shown("b", "x", "1.0.0")]);
        assert_eq!(
            keep_entries(&page, Service::Modules, &host(), &shown).unwrap(),
            r#"{ "meta":{"limit":2}, "modules": [{"id":"a/x/aws/1.9.0","namespace":"a","name":"x","provider":"aws","version":"1.9.0","tag":null, "n":1e400},{"version" : "v1.0.0","namespace":"b","name":"x","provider":"aws"},{"id":7,"namespace":"a","name":"y","provider":"aws","version":"1.9.0","versions": ["1.9.0"]}] }"#
        );
        assert_eq!(keep_entries(&page, Service::Providers, &host(), &shown).unwrap(), page);
    }

    #[test]
    fn the_version_of_a_details_page_is_read() {
        let version = |page: &'static str| version_of_details(&Bytes::from_static(page.as_bytes()));
        assert_eq!(version(r#"{"id":"x","version":"v1.2.0"}"#), Version::parse("1.2.0").ok());
        for unreadable in ["{}", r#"{"version":7}"#, "[]", r#"{"version":"new"}"#] {
            assert_eq!(version(unreadable), None);
        }
    }
}
