//! The versions that a page names, reduced to those that the policies allow. A details page gets the details of the newest
//! permitted version, and an entry of a list the number of it.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Edit, with_edits};
use crate::address::{Address, Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System, Version};
use crate::upstream::discovery::Service;

/// The entries of a list that the policies change, each with the version to show. `None` drops the entry.
pub(super) type ChangedEntries = HashMap<(Address, Version), Option<Version>>;

/// The members of an entry, or of a details page, that name its version.
#[derive(Deserialize)]
struct NamedVersion<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    /// The system of a module. Entries of providers have none.
    #[serde(borrow)]
    provider: Option<Cow<'a, str>>,
    #[serde(borrow)]
    version: &'a RawValue,
}

impl NamedVersion<'_> {
    /// The address and the version; `None` for one that no client can ask for.
    fn parse(&self, service: Service, host: &Hostname) -> Option<(Address, Version)> {
        let version = Version::parse_of_module(&serde_json::from_str::<Cow<'_, str>>(self.version.get()).ok()?).ok()?;
        let host = host.clone();
        let address = match service {
            Service::Modules => Address::Module(ModuleAddress {
                host,
                namespace: ModuleName::parse(&self.namespace).ok()?,
                name: ModuleName::parse(&self.name).ok()?,
                system: System::parse(self.provider.as_deref()?).ok()?,
            }),
            Service::Providers => Address::Provider(ProviderAddress {
                host,
                namespace: Name::parse(&self.namespace).ok()?,
                type_: Name::parse(&self.name).ok()?,
            }),
        };
        Some((address, version))
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

/// The entries of a list, as the page writes them.
fn raw_entries<'a>(text: &'a str, service: Service) -> Option<(&'a RawValue, Vec<&'a RawValue>)> {
    let members: IndexMap<Cow<'a, str>, &RawValue> = serde_json::from_str(text).ok()?;
    let list = *members.get(match service {
        Service::Modules => "modules",
        Service::Providers => "providers",
    })?;
    Some((list, serde_json::from_str(list.get()).ok()?))
}

/// The providers or modules that a list names, each with its version.
pub(super) fn entries(page: &Bytes, service: Service, host: &Hostname) -> Vec<(Address, Version)> {
    let text = std::str::from_utf8(page).unwrap_or_default();
    let (_, entries) = raw_entries(text, service).unzip();
    let parse = |entry: &RawValue| serde_json::from_str::<NamedVersion<'_>>(entry.get()).ok()?.parse(service, host);
    entries.unwrap_or_default().into_iter().filter_map(parse).collect()
}

/// Changes entries of a list. Everything else stays as upstream wrote it, byte for byte.
///
/// # Errors
/// The reason why the page cannot be read.
pub(super) fn change_entries(
    page: &Bytes,
    service: Service,
    host: &Hostname,
    changed: &ChangedEntries,
) -> Result<Bytes, String> {
    let text = std::str::from_utf8(page).map_err(|e| e.to_string())?;
    let Some((list, entries)) = raw_entries(text, service) else { return Ok(page.clone()) };
    let changed_entry = |entry: &RawValue| -> Option<String> {
        let unchanged = || Some(entry.get().to_owned());
        let Ok(named) = serde_json::from_str::<NamedVersion<'_>>(entry.get()) else { return unchanged() };
        let Some((address, version)) = named.parse(service, host) else { return unchanged() };
        match changed.get(&(address.clone(), version)) {
            None => unchanged(),
            Some(None) => None,
            Some(Some(shown)) => {
                let id = named.id.map(|id| Edit::new(id, format!("{}/{shown}", address.path())));
                let mut edits: Vec<Edit<'_>> = id.into_iter().collect();
                edits.push(Edit::new(named.version, shown.as_str()));
                edits.sort_by_key(Edit::position);
                Some(with_edits(entry.get(), &edits))
            }
        }
    };
    let entries: Vec<String> = entries.into_iter().filter_map(changed_entry).collect();
    let replacement = format!("[{}]", entries.join(","));
    Ok(with_edits(text, &[Edit { original: list, replacement }]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_list_are_changed_dropped_or_left_byte_for_byte() {
        let host = Hostname::parse("registry.example").unwrap();
        let page = Bytes::from_static(
            br#"{ "meta":{"limit":2}, "modules": [ {"id":"a/x/aws/2.0.0","namespace":"a","name":"x","provider":"aws","version":"2.0.0", "n":1e400},
              {"version" : "v1.0.0","namespace":"b","name":"x","provider":"aws"}, {"namespace":"c"}, 7 ] }"#,
        );
        let named = entries(&page, Service::Modules, &host);
        let texts: Vec<String> = named.iter().map(|(address, version)| format!("{address} {version}")).collect();
        assert_eq!(texts, ["registry.example/a/x/aws 2.0.0", "registry.example/b/x/aws 1.0.0"]);
        assert_eq!(change_entries(&page, Service::Providers, &host, &ChangedEntries::new()).unwrap(), page);
        let shown = Version::parse("1.9.0").unwrap();
        let changed = ChangedEntries::from([(named[0].clone(), Some(shown)), (named[1].clone(), None)]);
        assert_eq!(
            change_entries(&page, Service::Modules, &host, &changed).unwrap(),
            r#"{ "meta":{"limit":2}, "modules": [{"id":"a/x/aws/1.9.0","namespace":"a","name":"x","provider":"aws","version":"1.9.0", "n":1e400},{"namespace":"c"},7] }"#
        );
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
